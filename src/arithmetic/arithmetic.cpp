// Entry points of the arithmetic layer: check, then walk (arithmetic_blocks.h). Letters as in arithmetic.h.
#include "arithmetic/arithmetic.h"

#include <algorithm>
#include <cstddef>

#include "arithmetic/arithmetic_blocks.h"
#include "base/describe.h"
#include "base/filter.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/types.h"
#include "base/workspace.h"

namespace obn {

namespace arithmetic {

namespace {

constexpr char kKind[] = "arithmetic";

struct Facts {
  const char* name;
  size_t inputs;
  unsigned needs[kInputs];  // bit s: the gradient of input k reads source s (docs/interface/arithmetic.md 5)
};
constexpr unsigned a = 1u << kA, b = 1u << kB;
constexpr Facts kFacts[kFunctions] = {
    {"add", 2, {0, 0}},
    {"subtract", 2, {0, 0}},
    {"multiply", 2, {b, a}},
    {"divide", 2, {b, a | b}},
    {"square_root", 1, {a}},
    {"reciprocal_square_root", 1, {a}},
    {"ceil", 1, {0}},
    {"floor", 1, {0}},
    {"round", 1, {0}},
    {"sin", 1, {a}},
    {"cos", 1, {a}},
    {"tan", 1, {a}},
    {"asin", 1, {a}},
    {"acos", 1, {a}},
    {"atan", 1, {a}},
    {"sinh", 1, {a}},
    {"cosh", 1, {a}},
    {"tanh", 1, {a}},
    {"asinh", 1, {a}},
    {"acosh", 1, {a}},
    {"atanh", 1, {a}},
    {"pow", 2, {a | b, a | b}},
    {"exp", 1, {a}},
    {"exp2", 1, {a}},
    {"log", 1, {a}},
    {"log2", 1, {a}},
    {"multiply_no_nan", 2, {b, a}},
    {"divide_no_nan", 2, {b, a | b}},
    {"multiply_add", 3, {b, a, 0}},
    {"minimum", 2, {a | b, a | b}},
    {"maximum", 2, {a | b, a | b}},
    {"select", 3, {0, a, a}},
    {"abs", 1, {a}},
    {"sign", 1, {0}},
    {"negate", 1, {0}},
    {"reciprocal", 1, {a}},
    {"square", 1, {a}},
    {"floor_divide", 2, {0, 0}},
    {"trunc_divide", 2, {0, 0}},
    {"trunc_remainder", 2, {0, a | b}},
    {"erf", 1, {a}},
};

const char* word_of_input(size_t inputs, size_t k) {
  constexpr const char* kWords[] = {"input_a", "input_b", "input_c"};
  return inputs == 1 ? "input" : kWords[k];
}

std::byte* bytes(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

}  // namespace

const char* name_of(Function function) { return kFacts[function].name; }
size_t inputs_of(Function function) { return kFacts[function].inputs; }

// What the gradients of the given inputs (bits) read, as bits.
unsigned Plan::needs(unsigned inputs) const {
  unsigned all = 0;
  for (size_t k = 0; k < inputs_; ++k)
    if (inputs >> k & 1) all |= kFacts[function_].needs[k];
  return all;
}

// ---- creation ----

int Plan::read_operand(const BNNSNDArrayDescriptor& descriptor, BNNSDescriptorType role, Access access,
                       const char* argument, View* view) const {
  if (role != BNNSConstant && role != BNNSSample && role != BNNSParameter)
    return fail("%s: expected the descriptor type constant (0), sample (1) or parameter (2); got %u", argument,
                static_cast<unsigned>(role));
  if (read_view(descriptor, access, argument, view) != 0) return -1;
  if (view->layout == BNNSDataLayoutFullyConnectedSparse || view->layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
    return fail("%s: expected a layout of plain values; got %s", argument, obn::name_of(view->layout));
  if (!is_float(view->type))
    return fail("%s: expected a floating-point type; got %s", argument, obn::name_of(view->type));
  return 0;
}

int Plan::read(const BNNSLayerParametersArithmetic& parameters, size_t threads) {
  function_ = parameters.arithmetic_function;
  if (function_ >= kFunctions)
    return fail("function: expected one from 0 to %zu; got %u", kFunctions - 1, static_cast<unsigned>(function_));
  if (!parameters.arithmetic_function_fields) return fail("function: expected a description of its operands; got NULL");
  kernels_ = &targets.best();
  threads_ = threads;
  inputs_ = inputs_of(function_);

  const BNNSNDArrayDescriptor* inputs[kInputs] = {};
  const BNNSNDArrayDescriptor* output;
  const void* fields = parameters.arithmetic_function_fields;
  if (inputs_ == 1) {
    const auto& of = *static_cast<const BNNSArithmeticUnary*>(fields);
    inputs[0] = &of.in;
    output = &of.out;
    x_role_[0] = of.in_type;
    y_role_ = of.out_type;
  } else if (inputs_ == 2) {
    const auto& of = *static_cast<const BNNSArithmeticBinary*>(fields);
    inputs[0] = &of.in1;
    inputs[1] = &of.in2;
    output = &of.out;
    x_role_[0] = of.in1_type;
    x_role_[1] = of.in2_type;
    y_role_ = of.out_type;
  } else {
    const auto& of = *static_cast<const BNNSArithmeticTernary*>(fields);
    inputs[0] = &of.in1;
    inputs[1] = &of.in2;
    inputs[2] = &of.in3;
    output = &of.out;
    x_role_[0] = of.in1_type;
    x_role_[1] = of.in2_type;
    x_role_[2] = of.in3_type;
    y_role_ = of.out_type;
  }
  for (size_t k = 0; k < inputs_; ++k)
    if (read_operand(*inputs[k], x_role_[k], Access::read, word_of_input(inputs_, k), &x_[k]) != 0) return -1;
  if (read_operand(*output, y_role_, Access::write, "output", &y_) != 0 || check_shapes() != 0) return -1;
  if (activation::Fused::read(parameters.activation, "activation", &activation_) != 0) return -1;
  if (!activation_.is_elementwise() && y_.extent[y_.axis_of_size[0]] > kMaxRow)
    return fail("activation: expected rows (size[0]) of at most %zu values for a softmax; got %zu", kMaxRow,
                y_.extent[y_.axis_of_size[0]]);
  return 0;
}

// Every extent is 1 or the output's, which is the largest of the inputs'.
int Plan::check_shapes() const {
  for (size_t k = 0; k < inputs_; ++k) {
    const char* word = word_of_input(inputs_, k);
    if (x_[k].layout != y_.layout)
      return fail("%s: expected layout %s, as the output; got %s", word, obn::name_of(y_.layout),
                  obn::name_of(x_[k].layout));
    if (x_[k].type != y_.type)
      return fail("%s: expected %s, as the output; got %s", word, obn::name_of(y_.type), obn::name_of(x_[k].type));
    if (x_role_[k] == BNNSSample && y_role_ != BNNSSample)
      return fail("output: expected the descriptor type sample, as %s; got %s", word,
                  y_role_ == BNNSConstant ? "constant" : "parameter");
  }
  for (size_t axis = 0; axis < y_.rank; ++axis) {
    bool is_largest = false, fits = true;
    for (size_t k = 0; k < inputs_; ++k) {
      is_largest |= x_[k].extent[axis] == y_.extent[axis];
      fits &= x_[k].extent[axis] == y_.extent[axis] || x_[k].extent[axis] == 1;
    }
    // A single input may be spread over any output.
    if (fits && (is_largest || inputs_ == 1)) continue;
    ShapeText first, other, third, got;
    return fail("output: expected the shape that %s%s%s%s%s together have, extents equal or 1; got %s",
                shape_text(x_[0], &first), inputs_ > 1 ? " and " : "", inputs_ > 1 ? shape_text(x_[1], &other) : "",
                inputs_ > 2 ? " and " : "", inputs_ > 2 ? shape_text(x_[2], &third) : "", shape_text(y_, &got));
  }
  return 0;
}

void Plan::describe(Description* description) const {
  description->kinds[0] = name_of(function_);
  for (size_t k = 0; k < inputs_; ++k) description->inputs[k] = &x_[k];
  description->output = &y_;
}

// ---- checks of a call ----

namespace {

// The same values at the same places.
bool same_place(const Operand& p, const Operand& q, size_t batch) {
  if (p.data != q.data || (batch > 1 && p.step != q.step)) return false;
  for (size_t k = 0; k < p.view->rank; ++k) {
    if (p.view->extent[k] != q.view->extent[k]) return false;
    if (p.view->extent[k] > 1 && p.view->stride[k] != q.view->stride[k]) return false;
  }
  return true;
}

int check_apart(const Operand& p, const char* p_word, const Operand& q, const char* q_word, size_t batch) {
  return check_disjoint(*p.view, p.data, p.step, p_word, *q.view, q.data, q.step, q_word, batch);
}

int check_places(const Operand& p, const char* p_word, const Operand& q, const char* q_word, size_t batch) {
  return !q.data || same_place(p, q, batch) ? 0 : check_apart(p, p_word, q, q_word, batch);
}

// An operand of a batch: those that all samples share are checked as one and do not move.
int read_operand_of(const View& view, BNNSDescriptorType role, const void* data, size_t batch, size_t requested,
                    Access access, const char* argument, Operand* operand) {
  *operand = {&view, role == BNNSSample && batch == 0 ? nullptr : bytes(data), 0};
  size_t step;
  if (read_batch(view, data, role == BNNSSample ? batch : 1, requested, access, argument, &step) != 0) return -1;
  if (role == BNNSSample) operand->step = step;
  return 0;
}

int check_count(size_t inputs, size_t expected, Function function) {
  if (inputs == expected) return 0;
  return fail("inputs: expected %zu for %s; got %zu", expected, name_of(function), inputs);
}

}  // namespace

int Plan::check_inputs(const ForwardArguments& of, ForwardCall* call) const {
  call->batch = samples(of.batch);
  if (check_count(of.inputs, inputs_, function_) != 0) return -1;
  if (call->batch == 0) return 0;
  if (!of.x) return fail("inputs: expected an array of pointers; got NULL");
  for (size_t k = 0; k < inputs_; ++k)
    if (read_operand_of(x_[k], x_role_[k], of.x[k], call->batch, of.x_stride ? of.x_stride[k] : 0, Access::read,
                        word_of_input(inputs_, k), &call->x[k]) != 0)
      return -1;
  return 0;
}

int Plan::check(const ForwardArguments& of, ForwardCall* call) const {
  if (check_inputs(of, call) != 0) return -1;
  if (call->batch == 0) return 0;
  if (read_operand_of(y_, y_role_, of.y, call->batch, of.y_stride, Access::write, "output", &call->y) != 0) return -1;
  for (size_t k = 0; k < inputs_; ++k)
    if (check_places(call->y, "output", call->x[k], word_of_input(inputs_, k), call->batch) != 0) return -1;
  return 0;
}

namespace {

// Functions of which the gradient may be asked without inputs, whatever the activation (docs/interface/arithmetic.md 4).
bool works_without_inputs(Function f) {
  return f == BNNSArithmeticAdd || f == BNNSArithmeticSubtract || f == BNNSArithmeticCeil ||
         f == BNNSArithmeticFloor || f == BNNSArithmeticRound;
}

}  // namespace

int Plan::check(const BackwardArguments& of, BackwardCall* call) const {
  if (!of.dy) return fail("grad_output: expected a descriptor; got NULL");
  const size_t batch = samples(of.batch);
  size_t step;
  if (read_gradient(*of.dy, y_, Access::read, batch, of.dy_stride, "grad_output", &call->dy_view, &step) != 0)
    return -1;
  call->dy = {&call->dy_view, batch > 0 ? bytes(call->dy_view.data) : nullptr, y_role_ == BNNSSample ? step : 0};
  return check_gradients(of, call);
}

int Plan::check_gradients(const BackwardArguments& of, BackwardCall* call) const {
  call->batch = samples(of.batch);
  call->targets = 0;
  const size_t batch = call->batch;
  if (check_count(of.inputs, inputs_, function_) != 0) return -1;
  if (!of.dx) return fail("input_gradients: expected an array of descriptors; got NULL");
  for (size_t k = 0; k < inputs_; ++k)
    if (!of.dx[k]) return fail("input_gradients: expected one for every input; number %zu is NULL", k);

  // y serves instead of a where there is no a, or no more (in place), or where it is as good.
  const bool is_identity = activation_.is_identity();
  const bool has_a = of.x && of.x[0], is_overwritten = has_a && of.x[0] == of.y;
  call->from_y = is_identity && of.y && kernels_->gradient_from_y[function_] &&
                 (!has_a || is_overwritten || (y_.type == BNNSDataTypeFloat32 && function_ != BNNSArithmeticTanh));
  if (batch > 0 && !of.x && !works_without_inputs(function_) && !call->from_y)
    return fail("inputs: expected the forward inputs, which the gradient of %s needs; got NULL", name_of(function_));
  if (batch > 0 && !is_identity && !of.y)
    return fail("output: expected the forward output for the activation; got NULL");
  if (activation_.check_backward() != 0) return -1;

  unsigned wanted = 0;
  for (size_t k = 0; k < inputs_; ++k)  // without data: not wanted
    if (x_role_[k] != BNNSConstant && of.dx[k]->data) wanted |= 1u << k;
  const unsigned needed = call->from_y || !of.x ? 0 : needs(wanted);
  for (size_t k = 0; k < inputs_; ++k) {
    call->x[k] = {&x_[k], nullptr, 0};
    if ((needed >> k & 1) && read_operand_of(x_[k], x_role_[k], of.x[k], batch, of.x_stride ? of.x_stride[k] : 0,
                                             Access::read, word_of_input(inputs_, k), &call->x[k]) != 0)
      return -1;
  }
  call->y = {&y_, nullptr, 0};
  if (of.y && (!is_identity || call->from_y) &&
      read_operand_of(y_, y_role_, of.y, batch, of.y_stride, Access::read, "output", &call->y) != 0)
    return -1;

  // Gradients of one address are one target. Those of no samples are none, and the rest is compared as for one sample.
  const size_t some = std::max<size_t>(batch, 1);
  for (size_t k = 0; k < inputs_; ++k) {
    if (!(wanted >> k & 1)) continue;
    size_t step;
    View& view = call->dx_view[call->targets];
    if (read_gradient(*of.dx[k], x_[k], Access::write, x_role_[k] == BNNSSample ? batch : 1,
                      of.dx_stride ? of.dx_stride[k] : 0, "input_gradient", &view, &step) != 0)
      return -1;
    if (x_role_[k] == BNNSSample && batch == 0) continue;
    const Operand dx{&view, bytes(view.data), x_role_[k] == BNNSSample ? step : 0};
    size_t t = 0;
    while (t < call->targets && call->dx[t].data != dx.data) ++t;
    if (t < call->targets) {
      if (!same_place(dx, call->dx[t], some) || view.accumulate != call->dx_view[t].accumulate)
        return fail("input_gradient: expected the same descriptor for gradients of one address; got different ones");
      call->sources[t] |= 1u << k;
      continue;
    }
    call->dx[t] = dx;
    call->sources[t] = 1u << k;
    ++call->targets;
    for (size_t other = 0; other < t; ++other)
      if (check_apart(dx, "input_gradient", call->dx[other], "another one", some) != 0) return -1;
  }

  // Of several sums each is written before the next one reads its sources.
  size_t sums = 0;
  for (size_t t = 0; t < call->targets; ++t) sums += reduces(call->dx[t], batch);
  for (size_t t = 0; t < call->targets; ++t) {
    const Operand& dx = call->dx[t];
    const bool may_share = sums <= 1 || !reduces(dx, batch);
    const auto check = [&](const Operand& source, const char* word) {
      if (may_share || !source.data) return check_places(dx, "input_gradient", source, word, some);
      return check_apart(dx, "input_gradient", source, word, some);
    };
    if (check(call->dy, "grad_output") != 0 || check(call->y, "output") != 0) return -1;
    for (size_t k = 0; k < inputs_; ++k)
      if (check(call->x[k], word_of_input(inputs_, k)) != 0) return -1;
  }
  if (batch > 0 && activation_.depends_on_values() && !outputs_are_accepted(*call))
    return fail("output: expected values that determine the gradient of the activation; some do not");
  return 0;
}

// ---- forward ----

// The walk where every tensor is used where it lies: nothing to do between two rows but to find the next. The output is
// the last tensor.
void Plan::run_direct(const Blocks& blocks, bool streams) const {
  const Row forward = streams ? kernels_->streamed[function_] : kernels_->forward[function_];
  const size_t y = inputs_;
  const auto data = [&](size_t t) { return reinterpret_cast<float*>(blocks.data[t]); };
  by_pieces(blocks.items(), std::max<size_t>(1, kPiece / blocks.block), threads_, [&](size_t first, size_t count) {
    Sources sources = no_sources();
    for (size_t k = 0; k < inputs_; ++k) sources.moves[k] = !blocks.is_constant[k];
    Position<kTensors> at(blocks.loops, blocks.group);
    at.seek(first / blocks.blocks);
    for (size_t b = first % blocks.blocks; count > 0; --count) {
      const size_t done = b * blocks.block;
      for (size_t k = 0; k < inputs_; ++k) sources.p[k] = data(k) + at.offset(k) + (sources.moves[k] ? done : 0);
      forward(sources, data(y) + at.offset(y) + done, blocks.values(b));
      if (++b < blocks.blocks) continue;
      b = 0;
      at.step();
    }
    if (streams) kernels_->end_streams();
  });
}

void Plan::run(const ForwardCall& call) const {
  if (call.batch == 0) return;
  Blocks blocks;
  for (size_t k = 0; k < inputs_; ++k) blocks.add(call.x[k]);
  const size_t y = blocks.add(call.y);
  const bool is_row_wise = !activation_.is_elementwise();
  blocks.arrange(y_, call.batch, is_row_wise ? y_.axis_of_size[0] : kNoAxis);
  bool in_place = false;
  for (size_t k = 0; k < inputs_; ++k) in_place |= call.x[k].data == call.y.data;
  const bool streams = !in_place && blocks.is_large();
  const bool is_direct = activation_.is_identity() && blocks.needs_no_buffer() &&
                         (!streams || kernels_->streamed[function_]);
  blocks.cut(is_row_wise ? blocks.group_count : (is_direct ? kPiece : kBlock));
  if (is_direct) return run_direct(blocks, streams);

  const Row forward = kernels_->forward[function_];
  for_blocks(blocks, *kernels_, threads_, [&](Walker& walker, size_t block) {
    Sources sources = no_sources();
    for (size_t k = 0; k < inputs_; ++k) sources.p[k] = walker.read(k, block, &sources.moves[k]);
    float* row = streams ? walker.extra(0) : walker.place(y, block);
    forward(sources, row, blocks.values(block));
    activation_.forward(row, blocks.values(block));
    walker.write(y, block, row, streams);
  });
}

// ---- the layer ----

namespace {

class Arithmetic final : public Filter {
 public:
  explicit Arithmetic(const Options& options) : Filter(kKind, options) {}
  size_t work_bytes(size_t) const override { return plan.work_bytes(); }
  void describe(Description* description) const override { plan.describe(description); }

  Plan plan;
};

BNNSFilter create(const BNNSLayerParametersArithmetic& parameters, const BNNSFilterParameters* filter_params) {
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Arithmetic* filter = options.make<Arithmetic>(options);
  if (!filter) return nullptr;
  return publish(filter, filter->plan.read(parameters, options.threads));
}

int apply(BNNSFilter handle, const ForwardArguments& arguments) {
  auto* filter = static_cast<Arithmetic*>(find_filter(handle, kKind));
  ForwardCall call;
  if (!filter || filter->plan.check(arguments, &call) != 0 || !scratch()) return -1;
  return call_filter(filter, Pass::forward, arguments.batch, [&] {
    filter->plan.run(call);
    return 0;
  });
}

int apply_backward(BNNSFilter handle, const BackwardArguments& arguments) {
  auto* filter = static_cast<Arithmetic*>(find_filter(handle, kKind));
  BackwardCall call;
  if (!filter || !scratch() || filter->plan.check(arguments, &call) != 0) return -1;
  std::byte* work;
  if (find_workspace(filter->plan.work_bytes(), &work) != 0) return -1;
  return call_filter(filter, Pass::backward, arguments.batch, [&] {
    filter->plan.run(call, work);
    return 0;
  });
}

}  // namespace
}  // namespace arithmetic
}  // namespace obn

extern "C" {

BNNSFilter BNNSFilterCreateLayerArithmetic(const BNNSLayerParametersArithmetic* layer_params,
                                           const BNNSFilterParameters* filter_params) {
  if (!layer_params) {
    obn::fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  return obn::arithmetic::create(*layer_params, filter_params);
}

int BNNSArithmeticFilterApplyBatch(BNNSFilter filter, size_t batch_size, size_t number_of_inputs, const void** in,
                                   const size_t* in_stride, void* out, size_t out_stride) {
  return obn::arithmetic::apply(filter, {batch_size, number_of_inputs, in, in_stride, out, out_stride});
}

int BNNSArithmeticFilterApplyBackwardBatch(BNNSFilter filter, size_t batch_size, size_t number_of_inputs,
                                           const void** in, const size_t* in_stride, BNNSNDArrayDescriptor** in_delta,
                                           const size_t* in_delta_stride, const void* out, size_t out_stride,
                                           BNNSNDArrayDescriptor* out_delta, size_t out_delta_stride) {
  return obn::arithmetic::apply_backward(filter, {batch_size, number_of_inputs, in, in_stride, in_delta,
                                                  in_delta_stride, out, out_stride, out_delta, out_delta_stride});
}
}
