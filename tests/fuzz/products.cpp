// Arithmetic, losses, matrix products, contractions and attention.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "common.h"

namespace fuzz {
namespace {

size_t product(std::initializer_list<size_t> factors) {
  size_t result = 1;
  for (size_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return SIZE_MAX;
  return result;
}

}  // namespace

// ---- arithmetic ----

void arithmetics(World& w) {
  constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutVector, BNNSDataLayoutImageCHW, BNNSDataLayout2DFirstMajor,
                                         BNNSDataLayoutRowMajorMatrix, BNNSDataLayout4DFirstMajor};
  const auto function = w.enumeration<BNNSArithmeticFunction>(41);
  const BNNSDataType type = w.in.one_in(4) ? w.any_type() : w.float_type();
  const BNNSDataLayout layout = kLayouts[w.in.pick(std::size(kLayouts))];
  const BNNSNDArrayDescriptor y = w.describe(layout, {w.extent(), w.extent(), w.few(5), w.few(3)}, type);
  BNNSNDArrayDescriptor x[3];
  BNNSDescriptorType roles[4];
  for (BNNSDescriptorType& role : roles)
    role = w.in.one_in(4) ? w.enumeration<BNNSDescriptorType>(3) : BNNSSample;
  for (BNNSNDArrayDescriptor& one : x) {
    one = y;
    w.restride(&one);
    if (w.in.one_in(4)) one.size[w.in.pick(4)] = 1;  // broadcast
    if (w.in.one_in(8)) one.data_type = w.any_type();
    if (w.odd()) one.size[w.in.pick(4)] = w.extent();
  }
  if (w.in.one_in(4)) x[1] = x[0];
  // The struct belongs to the function.
  BNNSArithmeticUnary unary = {x[0], roles[0], y, roles[3]};
  BNNSArithmeticBinary binary = {x[0], roles[0], x[1], roles[1], y, roles[3]};
  BNNSArithmeticTernary ternary = {x[0], roles[0], x[1], roles[1], x[2], roles[2], y, roles[3]};
  BNNSLayerParametersArithmetic p = {};
  p.arithmetic_function = function;
  size_t inputs = 1;
  switch (function) {
    case BNNSArithmeticMultiplyAdd:
    case BNNSArithmeticSelect: inputs = 3; break;
    case BNNSArithmeticAdd: case BNNSArithmeticSubtract: case BNNSArithmeticMultiply: case BNNSArithmeticDivide:
    case BNNSArithmeticPow: case BNNSArithmeticMultiplyNoNaN: case BNNSArithmeticDivideNoNaN: case BNNSArithmeticMinimum:
    case BNNSArithmeticMaximum: case BNNSArithmeticFloorDivide: case BNNSArithmeticTruncDivide:
    case BNNSArithmeticTruncRemainder: inputs = 2; break;
    default: break;
  }
  p.arithmetic_function_fields = inputs == 1 ? static_cast<void*>(&unary) : inputs == 2 ? static_cast<void*>(&binary) : &ternary;
  if (w.odd()) p.arithmetic_function_fields = nullptr;
  p.activation = w.activation(y.size[2]);
  w.say("  function %u roles %u %u %u %u activation %u\n", static_cast<unsigned>(function), static_cast<unsigned>(roles[0]),
        static_cast<unsigned>(roles[1]), static_cast<unsigned>(roles[2]), static_cast<unsigned>(roles[3]),
        static_cast<unsigned>(p.activation.function));
  for (size_t i = 0; i < inputs; ++i) w.say("x", x[i]);
  w.say("y", y);
  const BNNSFilterParameters* options = w.options();
  BNNSFilter filter =
      w.create("BNNSFilterCreateLayerArithmetic", [&] { return BNNSFilterCreateLayerArithmetic(&p, options); });
  if (!filter) return;
  w.question(filter);
  const size_t batch = w.batch(), y_step = w.step(y);
  const void* in[3] = {};
  size_t steps[3] = {}, batches[3] = {};
  for (size_t i = 0; i < inputs; ++i) {
    batches[i] = roles[i] == BNNSSample ? batch : 1;
    steps[i] = w.step(x[i]);
    in[i] = w.place(x[i], batches[i], batches[i] == 1 ? 0 : steps[i]);
    if (i == 1 && w.in.one_in(4) && std::memcmp(&x[0], &x[1], sizeof x[0]) == 0 && roles[0] == roles[1])
      in[1] = in[0], steps[1] = steps[0];
  }
  const bool out_is_sample = roles[3] == BNNSSample;
  const Written result = values_of(y, nullptr, out_is_sample ? batch : 1, out_is_sample ? y_step : 0);
  void* out = w.place(y, out_is_sample ? batch : std::max<size_t>(batch, 1), y_step, const_cast<void*>(in[0]));
  if (w.odd()) inputs = w.in.pick(4);
  const size_t number = w.odd() ? w.in.number() % 4 : inputs;
  w.say("  batch %zu steps %zu %zu %zu -> %zu, %zu inputs, %p %p %p -> %p\n", batch, steps[0], steps[1], steps[2], y_step, number,
        in[0], in[1], in[2], out);
  w.call("BNNSArithmeticFilterApplyBatch", {{out, result.where}},
         [&] { return BNNSArithmeticFilterApplyBatch(filter, batch, number, in, steps, out, y_step); });
  if (!w.flip()) return;
  const size_t dy_step = w.step(y);
  BNNSNDArrayDescriptor dx[3], dy = w.gradient(y, batch, dy_step);
  BNNSNDArrayDescriptor* pointers[3] = {};
  size_t dx_steps[3] = {};
  std::vector<Written> written;
  for (size_t i = 0; i < 3; ++i) {
    dx_steps[i] = w.step(x[i]);
    const size_t own = batches[i] ? batches[i] : 1;
    dx[i] = w.gradient(x[i], own, own == 1 ? 0 : dx_steps[i]);
    if (i == 1 && in[1] == in[0]) dx[1] = dx[0], dx_steps[1] = dx_steps[0];
    pointers[i] = w.odd() ? nullptr : &dx[i];
    written.push_back(values_of(pointers[i], own, own == 1 ? 0 : dx_steps[i]));
    w.say("dx", dx[i]);
  }
  w.say("dy", dy);
  const bool has_in = !w.in.one_in(4);
  const void* out_of_apply = w.in.one_in(4) ? nullptr : out;
  w.call_vector("BNNSArithmeticFilterApplyBackwardBatch", written, [&] {
    return BNNSArithmeticFilterApplyBackwardBatch(filter, batch, number, has_in ? in : nullptr, steps, pointers, dx_steps,
                                                  out_of_apply, y_step, &dy, dy_step);
  });
  w.destroy(filter);
}

// ---- losses ----

void losses(World& w) {
  union {
    BNNSLayerParametersLossBase base;
    BNNSLayerParametersLossSoftmaxCrossEntropy softmax;
    BNNSLayerParametersLossSigmoidCrossEntropy sigmoid;
    BNNSLayerParametersLossHuber huber;
    BNNSLayerParametersLossYolo yolo;
  } p;
  std::memset(static_cast<void*>(&p), 0, sizeof p);
  const auto function = w.enumeration<BNNSLossFunction>(10, 1);
  auto reduction = w.enumeration<BNNSLossReductionFunction>(5);
  const BNNSDataType type = w.float_type();
  size_t classes = w.extent();
  const size_t rows = 1 + w.in.pick(3), columns = 1 + w.in.pick(3), anchors = 1 + w.in.pick(3), box = 5 + w.in.pick(4);
  if (function == BNNSLossFunctionYolo) {
    if (!w.odd()) reduction = BNNSLossReductionSum;
    classes = rows * columns * anchors * box;
  }
  p.base.function = function;
  p.base.reduction = reduction;
  p.base.i_desc = w.in.one_in(6) ? w.describe(BNNSDataLayoutImageCHW, {classes, w.few(3), w.few(3)}, type)
                                 : w.describe(BNNSDataLayoutVector, {classes}, type);
  const bool per_sample = function == BNNSLossFunctionSoftmaxCrossEntropy || function == BNNSLossFunctionCosineDistance ||
                          function == BNNSLossFunctionCategoricalCrossEntropy || function == BNNSLossFunctionYolo;
  const size_t count = locate(p.base.i_desc).sound ? locate(p.base.i_desc).count : classes;
  const size_t values = reduction != BNNSLossReductionNone || per_sample ? 1 : count;
  p.base.o_desc = w.describe(BNNSDataLayoutVector, {values}, w.in.one_in(6) ? w.float_type() : type);
  if (!w.in.one_in(8)) std::fill_n(p.base.o_desc.stride, BNNS_MAX_TENSOR_DIMENSION, size_t{0});
  if (function == BNNSLossFunctionSoftmaxCrossEntropy) p.softmax.label_smooth = w.unit(0.0f);
  if (function == BNNSLossFunctionSigmoidCrossEntropy) p.sigmoid.label_smooth = w.unit(0.1f);
  if (function == BNNSLossFunctionHuber) p.huber.huber_delta = w.real(1.0f);
  if (function == BNNSLossFunctionYolo) {
    BNNSLayerParametersLossYolo& y = p.yolo;
    y.huber_delta = w.real(1.0f);
    y.number_of_grid_rows = w.odd() ? w.extent() : rows, y.number_of_grid_columns = w.odd() ? w.extent() : columns;
    y.number_of_anchor_boxes = w.odd() ? w.extent() : anchors, y.anchor_box_size = w.odd() ? w.extent() : box;
    y.rescore = w.flip();
    y.scale_xy = w.real(1.0f), y.scale_wh = w.real(1.0f), y.scale_object = w.real(1.0f);
    y.scale_no_object = w.real(1.0f), y.scale_classification = w.real(1.0f);
    y.object_minimum_iou = w.unit(0.7f), y.no_object_maximum_iou = w.unit(0.3f);
    if (y.number_of_anchor_boxes < 1024 && !w.odd())
      y.anchors_data = static_cast<float*>(w.raw(2 * sizeof(float) * y.number_of_anchor_boxes, BNNSDataTypeFloat32));
  }
  w.say("x", p.base.i_desc), w.say("y", p.base.o_desc);
  w.say("  function %u reduction %u\n", static_cast<unsigned>(function), static_cast<unsigned>(reduction));
  const BNNSFilterParameters* options = w.options();
  BNNSFilter filter = w.create("BNNSFilterCreateLayerLoss", [&] { return BNNSFilterCreateLayerLoss(&p, options); });
  if (!filter) return;
  w.question(filter);
  const BNNSNDArrayDescriptor &x_desc = p.base.i_desc, &y_desc = p.base.o_desc;
  const size_t batch = w.batch(), x_step = w.step(x_desc), l_step = w.step(x_desc), dx_step = w.step(x_desc);
  void* x = w.place(x_desc, batch, x_step);
  void* labels = w.place(x_desc, batch, l_step);
  const size_t sizes[] = {0, 1, batch, product({batch, count}), w.odd() ? w.extent() : 0};
  const size_t weights_size = sizes[w.in.pick(5)];
  BNNSNDArrayDescriptor vector = {};
  vector.layout = BNNSDataLayoutVector;
  vector.data_type = BNNSDataTypeFloat32;  // whatever the input is
  vector.size[0] = weights_size;
  void* weights = weights_size == 0 ? nullptr : w.place(vector);
  BNNSNDArrayDescriptor packed = y_desc;  // results lie one after the other
  std::fill_n(packed.stride, BNNS_MAX_TENSOR_DIMENSION, size_t{0});
  const size_t result_batch = reduction == BNNSLossReductionNone ? batch : 1;
  void* y = w.place(packed, result_batch);
  BNNSNDArrayDescriptor dx = w.gradient(x_desc, batch, dx_step);
  BNNSNDArrayDescriptor* dx_or_none = w.maybe(&dx);
  w.say("  batch %zu steps %zu %zu %zu, %zu weights, x %p labels %p y %p\n", batch, x_step, l_step, dx_step, weights_size, x,
        labels, y);
  w.say("dx", dx);
  const bool by_class = w.in.one_in(4);
  BNNSDataType class_type = BNNSDataTypeInt32;
  size_t class_step = 0;
  void* numbers = nullptr;
  if (by_class) {
    constexpr BNNSDataType kIntegers[] = {BNNSDataTypeInt32, BNNSDataTypeUInt8, BNNSDataTypeInt64, BNNSDataTypeUInt16};
    class_type = w.odd() ? w.any_type() : kIntegers[w.in.pick(4)];
    class_step = w.in.one_in(3) ? w.few(3) : 0;
    BNNSNDArrayDescriptor one = {};
    one.layout = BNNSDataLayoutVector;
    one.data_type = class_type;
    one.size[0] = 1;
    numbers = w.place(one, batch, class_step);
    const Where at = locate(one, batch, class_step);
    if (numbers && at.sound && !w.odd() && at.bits >= 8 && count > 0)
      for (size_t i = 0; i < batch; ++i) {
        const uint64_t v = i % std::min<size_t>(count, 100);
        std::memcpy(static_cast<char*>(numbers) + i * at.stride[1] * at.bits / 8, &v, at.bits / 8);
      }
  }
  w.call(by_class ? "obn_loss_apply_classes" : "BNNSLossFilterApplyBatch",
         {values_of(packed, y, result_batch), values_of(dx_or_none, batch, dx_step)}, [&] {
           return by_class ? obn_loss_apply_classes(filter, batch, x, x_step, numbers, class_type, class_step, weights,
                                                    weights_size, y, dx_or_none, dx_step)
                           : BNNSLossFilterApplyBatch(filter, batch, x, x_step, labels, l_step, weights, weights_size, y,
                                                      dx_or_none, dx_step);
         });
  if (w.odd()) w.refuse("BNNSFilterApply", [&] { return BNNSFilterApply(filter, x, y); });
  const size_t dy_step = w.step(y_desc);
  BNNSNDArrayDescriptor dy = w.gradient(y_desc, result_batch, reduction == BNNSLossReductionNone ? dy_step : 0);
  w.say("dy", dy);
  w.call(by_class ? "obn_loss_apply_backward_classes" : "BNNSLossFilterApplyBackwardBatch",
         {values_of(dx_or_none, batch, dx_step)}, [&] {
           return by_class ? obn_loss_apply_backward_classes(filter, batch, x, x_step, dx_or_none, dx_step, numbers,
                                                             class_type, class_step, weights, weights_size, &dy, dy_step)
                           : BNNSLossFilterApplyBackwardBatch(filter, batch, x, x_step, dx_or_none, dx_step, labels,
                                                              l_step, weights, weights_size, &dy, dy_step);
         });
  w.destroy(filter);
}

// ---- products of two ----

namespace {

struct Operand {
  BNNSNDArrayDescriptor d;
  bool is_weights;
};

// Apply and backward of a filter that takes a and b; one of them may be weights with data of its own.
void run_two(World& w, BNNSFilter filter, Operand a, Operand b, bool has_b, const BNNSNDArrayDescriptor& y, size_t work) {
  w.question(filter);
  const size_t batch = w.batch(), a_step = w.step(a.d), b_step = w.step(b.d), y_step = w.step(y);
  if (!w.affords(product({work, batch}))) return;
  void* in_a = a.is_weights ? a.d.data : w.place(a.d, batch, a_step);
  void* in_b = b.is_weights ? b.d.data : w.place(b.d, batch, b_step);
  void* out = w.place(y, batch, y_step, in_a);
  const bool is_two = has_b && !a.is_weights && !b.is_weights;
  const Operand& one = a.is_weights ? b : a;  // the input of a filter that takes one
  void* in = a.is_weights ? in_b : in_a;
  const size_t step = a.is_weights ? b_step : a_step;
  w.say("  batch %zu steps %zu %zu %zu, %p %p %p\n", batch, a_step, b_step, y_step, in_a, in_b, out);
  if (is_two) {
    w.call("BNNSFilterApplyTwoInputBatch", {values_of(y, out, batch, y_step)}, [&] {
      return BNNSFilterApplyTwoInputBatch(filter, batch, in_a, a_step, in_b, b_step, out, y_step);
    });
    if (w.odd()) w.refuse("BNNSFilterApply", [&] { return BNNSFilterApply(filter, in_a, out); });
  } else {
    w.call("BNNSFilterApplyBatch", {values_of(y, out, batch, y_step)},
           [&] { return BNNSFilterApplyBatch(filter, batch, in, step, out, y_step); });
    if (w.odd()) w.refuse("BNNSFilterApplyTwoInput", [&] { return BNNSFilterApplyTwoInput(filter, in, in, out); });
  }
  if (!w.flip()) return;
  const size_t da_step = w.step(a.d), db_step = w.step(b.d), dy_step = w.step(y);
  BNNSNDArrayDescriptor dy = w.gradient(y, batch, dy_step);
  w.say("dy", dy);
  if (is_two) {
    BNNSNDArrayDescriptor da = w.gradient(a.d, batch, da_step), db = w.gradient(b.d, batch, db_step);
    BNNSNDArrayDescriptor *da_or_none = w.maybe(&da), *db_or_none = w.maybe(&db);
    if (w.in.one_in(8)) in_a = nullptr;
    w.say("da", da), w.say("db", db);
    w.call("BNNSFilterApplyBackwardTwoInputBatch",
           {values_of(da_or_none, batch, da_step), values_of(db_or_none, batch, db_step)}, [&] {
             return BNNSFilterApplyBackwardTwoInputBatch(filter, batch, in_a, a_step, da_or_none, da_step, in_b, b_step,
                                                         db_or_none, db_step, out, y_step, &dy, dy_step, nullptr, nullptr);
           });
    return;
  }
  BNNSNDArrayDescriptor dx = w.gradient(one.d, batch, da_step), dw = w.gradient(a.is_weights ? a.d : b.d);
  BNNSNDArrayDescriptor *dx_or_none = w.maybe(&dx), *dw_or_none = a.is_weights || b.is_weights ? w.maybe(&dw) : nullptr;
  if (w.in.one_in(8)) in = nullptr;
  w.say("dx", dx), w.say("dw", dw);
  w.call("BNNSFilterApplyBackwardBatch", {values_of(dx_or_none, batch, da_step), values_of(dw_or_none)}, [&] {
    return BNNSFilterApplyBackwardBatch(filter, batch, in, step, dx_or_none, da_step, out, y_step, &dy, dy_step, dw_or_none,
                                        nullptr);
  });
}

// A matrix with leading axes, as FirstMajor of its rank.
BNNSNDArrayDescriptor matrix(World& w, size_t leading, const size_t* lead, size_t rows, size_t columns, BNNSDataType type) {
  const size_t skip = w.in.one_in(4) ? w.in.pick(leading + 1) : 0;  // broadcast: fewer axes, or of extent 1
  std::vector<size_t> sizes;
  for (size_t k = skip; k < leading; ++k) sizes.push_back(w.in.one_in(6) ? 1 : lead[k]);
  sizes.push_back(rows);
  sizes.push_back(columns);
  const size_t rank = sizes.size();
  BNNSNDArrayDescriptor d = w.describe(static_cast<BNNSDataLayout>(rank << 16 | 0x8001), {}, type);
  std::copy(sizes.begin(), sizes.end(), d.size);
  if (w.odd()) d.size[w.in.pick(rank)] = w.extent();
  w.restride(&d);
  return d;
}

}  // namespace

void matmuls(World& w) {
  const BNNSDataType type = w.float_type();
  const size_t leading = w.in.pick(3), lead[] = {w.few(3), w.few(3), w.few(2)};
  const size_t m = w.extent() * (w.in.one_in(6) ? 5 : 1), n = w.extent() * (w.in.one_in(6) ? 5 : 1), k = w.extent();
  BNNSLayerParametersBroadcastMatMul p = {};
  p.alpha = w.real(1.0f);
  p.beta = w.in.one_in(4) ? w.real(1.0f) : 0.0f;
  p.transA = w.flip(), p.transB = w.flip(), p.quadratic = w.in.one_in(8);
  p.iA_desc = matrix(w, leading, lead, p.transA ? k : m, p.transA ? m : k, type);
  p.iB_desc = matrix(w, leading, lead, p.transB ? n : k, p.transB ? k : n, w.odd() ? w.float_type() : type);
  p.o_desc = matrix(w, leading, lead, m, p.quadratic ? m : n, w.in.one_in(6) ? w.float_type() : type);
  w.say("a", p.iA_desc), w.say("b", p.iB_desc), w.say("y", p.o_desc);
  w.say("  alpha %g beta %g transposed %d %d quadratic %d\n", static_cast<double>(p.alpha), static_cast<double>(p.beta),
        p.transA, p.transB, p.quadratic);
  const size_t work = product({m, n, k, lead[0], lead[1]});
  if (!w.affords(work)) return;
  const BNNSFilterParameters* options = w.options();
  if (w.in.one_in(3)) {
    BNNSNDArrayDescriptor a = p.iA_desc, b = p.iB_desc, y = p.o_desc;
    a.data = w.place(a), b.data = w.place(b), y.data = w.place(y, 1, 0, a.data);
    const ssize_t bytes = w.ask("BNNSMatMulWorkspaceSize", ssize_t{-1}, [&] {
      return BNNSMatMulWorkspaceSize(p.transA, p.transB, p.alpha, &a, &b, &y, options);
    });
    if (bytes < -1) w.broken("a workspace of a negative size");
    void* workspace = bytes > 0 && w.flip() ? w.scratch(static_cast<size_t>(bytes)) : nullptr;
    const bool has_a = !w.odd();
    w.call("BNNSMatMul", {values_of(&y)}, [&] {
      return BNNSMatMul(p.transA, p.transB, p.alpha, has_a ? &a : nullptr, &b, &y, workspace, options);
    });
    w.call("BNNSDirectApplyBroadcastMatMul", {values_of(&y)}, [&] {
      BNNSDirectApplyBroadcastMatMul(p.transA, p.transB, p.alpha, has_a ? &a : nullptr, &b, &y, options);
      return *obn_last_error() ? -1 : 0;  // it reports nothing else
    });
    return;
  }
  p.a_is_weights = w.in.one_in(6), p.b_is_weights = w.in.one_in(4);
  if (p.a_is_weights) p.iA_desc.data = w.place(p.iA_desc);
  if (p.b_is_weights) p.iB_desc.data = w.place(p.iB_desc);
  const bool has_parameters = !w.odd();
  BNNSFilter filter = w.create("BNNSFilterCreateLayerBroadcastMatMul", [&] {
    return BNNSFilterCreateLayerBroadcastMatMul(has_parameters ? &p : nullptr, options);
  });
  if (!filter) return;
  run_two(w, filter, {p.iA_desc, p.a_is_weights}, {p.iB_desc, p.b_is_weights && !p.quadratic}, !p.quadratic, p.o_desc, work);
  w.destroy(filter);
}

void contractions(World& w) {
  const BNNSDataType type = w.float_type();
  const BNNSFilterParameters* options = w.options();
  if (w.in.one_in(4)) {
    BNNSLayerParametersGram p = {};
    p.alpha = w.real(1.0f);
    const size_t channels = w.extent();
    p.i_desc = w.describe(BNNSDataLayoutImageCHW, {w.extent(), w.extent(), channels}, type);
    p.o_desc = w.flip() ? w.describe(BNNSDataLayoutRowMajorMatrix, {channels, channels}, type)
                        : w.describe(BNNSDataLayout2DFirstMajor, {channels, channels}, type);
    w.say("x", p.i_desc), w.say("y", p.o_desc);
    BNNSFilter filter = w.create("BNNSFilterCreateLayerGram", [&] { return BNNSFilterCreateLayerGram(&p, options); });
    if (!filter) return;
    run_generic(w, filter, {p.i_desc, p.o_desc, nullptr, nullptr, channels});
    w.destroy(filter);
    return;
  }
  // Letters of a, of b and of the result; sizes belong to letters.
  size_t size_of[26];
  for (size_t& size : size_of) size = w.few(5);
  const auto letters = [&](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) {
      char letter = static_cast<char>('i' + w.in.pick(6));
      while (!w.odd() && text.find(letter) != std::string::npos) letter = static_cast<char>(letter == 'n' ? 'i' : letter + 1);
      text += letter;
    }
    return text;
  };
  constexpr size_t kSome[] = {2, 3, 1, 4};
  const std::string a = letters(kSome[w.in.pick(4)]), b = letters(kSome[w.in.pick(4)]);
  std::string o;
  for (char letter : a + b)
    if (o.find(letter) == std::string::npos && w.in.pick(3) != 1) o += letter;
  if (o.empty()) o = a.substr(0, 1);
  const bool is_one = w.in.one_in(8), a_is_weights = w.in.one_in(6), b_is_weights = !a_is_weights && w.in.one_in(6);
  std::string text = std::string(a_is_weights ? "w_" : "a_") + a;
  if (!is_one) text += (w.in.one_in(12) ? ",a_" : b_is_weights ? ", w_" : ", b_") + b;
  text += " -> o_" + o;
  if (w.in.one_in(8)) text.insert(w.in.pick(text.size()), 1, "*_ ,->a"[w.in.pick(7)]);
  if (w.odd()) text[w.in.pick(text.size())] = static_cast<char>(w.in.byte());
  const auto array = [&](const std::string& of) {
    BNNSNDArrayDescriptor d = w.describe(static_cast<BNNSDataLayout>(std::max<size_t>(1, of.size()) << 16 | 0x8001), {}, type);
    for (size_t k = 0; k < of.size(); ++k) d.size[k] = size_of[of[k] - 'a'];
    if (w.odd()) d.size[w.in.pick(8)] = w.extent();
    w.restride(&d);
    return d;
  };
  BNNSLayerParametersTensorContraction p = {};
  p.alpha = w.real(1.0f);
  p.beta = w.in.one_in(4) ? w.real(1.0f) : 0.0f;
  p.iA_desc = array(a), p.iB_desc = array(b), p.o_desc = array(o);
  std::vector<char> operation(text.begin(), text.end());  // exactly as long as it is
  operation.push_back('\0');
  p.operation = w.odd() ? nullptr : operation.data();
  w.say("  %s alpha %g beta %g\n", text.c_str(), static_cast<double>(p.alpha), static_cast<double>(p.beta));
  w.say("a", p.iA_desc), w.say("b", p.iB_desc), w.say("o", p.o_desc);
  if (a_is_weights) p.iA_desc.data = w.place(p.iA_desc);
  if (b_is_weights) p.iB_desc.data = w.place(p.iB_desc);
  size_t work = 1;
  for (char letter = 'i'; letter <= 'n'; ++letter)
    if ((a + b).find(letter) != std::string::npos) work = product({work, size_of[letter - 'a']});
  if (!w.affords(work)) return;
  BNNSFilter filter = w.create("BNNSFilterCreateLayerTensorContraction",
                               [&] { return BNNSFilterCreateLayerTensorContraction(&p, options); });
  if (!filter) return;
  const bool same = text.find(",a_") != std::string::npos;
  run_two(w, filter, {p.iA_desc, a_is_weights}, {p.iB_desc, b_is_weights}, !is_one && !same, p.o_desc, work);
  w.destroy(filter);
}

// ---- attention ----

void attentions(World& w) {
  const BNNSDataType type = w.in.one_in(4) ? w.float_type() : BNNSDataTypeFloat32;
  const size_t target = w.few(9), source = w.few(9), model = w.few(8), k_dim = w.in.one_in(4) ? w.few(8) : model;
  const size_t v_dim = w.in.one_in(4) ? w.few(8) : model, d_key = w.few(8), d_value = w.few(8), heads = w.few(3);
  const auto table = [&](size_t rows, size_t columns) {
    return w.describe(BNNSDataLayout2DFirstMajor, {rows, columns}, type);
  };
  const auto weights = [&](size_t in, size_t out) {
    constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayout3DFirstMajor, BNNSDataLayout3DLastMajor, BNNSDataLayoutMHA_DHK};
    return w.with_data(w.describe(kLayouts[w.in.pick(3)], {in, out, heads}, type));
  };
  BNNSLayerParametersMultiheadAttention p = {};
  p.query = {table(target, model), weights(model, d_key), w.optional(table(d_key, heads))};
  p.key = {table(source, k_dim), weights(k_dim, d_key), w.optional(table(d_key, heads))};
  p.value = {table(source, v_dim), weights(v_dim, d_value), w.optional(table(d_value, heads))};
  p.output = {table(target, model), w.with_data(table(product({heads, d_value}), model)),
              w.optional(w.describe(BNNSDataLayoutVector, {model}, type))};
  p.add_zero_attn = w.flip();
  p.key_attn_bias = w.optional(table(d_key, heads));
  p.value_attn_bias = w.optional(table(d_value, heads));
  if (!p.key_attn_bias.data && !w.odd()) p.value_attn_bias.data = nullptr;
  p.dropout = w.in.one_in(4) ? w.unit(0.5f) : 0.0f;
  p.seed = 1 + static_cast<uint32_t>(w.in.byte());
  for (const auto* each : {&p.query, &p.key, &p.value, &p.output})
    w.say("target", each->target_desc), w.say("weights", each->weights), w.say("bias", each->bias);
  w.say("key bias", p.key_attn_bias), w.say("value bias", p.value_attn_bias);
  w.say("  zero %d dropout %g\n", p.add_zero_attn, static_cast<double>(p.dropout));
  const BNNSFilterParameters* options = w.options();
  const bool has_parameters = !w.odd();
  BNNSFilter filter = w.create("BNNSFilterCreateLayerMultiheadAttention", [&] {
    return BNNSFilterCreateLayerMultiheadAttention(has_parameters ? &p : nullptr, options);
  });
  if (!filter) return;
  w.question(filter);
  if (w.in.one_in(3)) {
    const int on = static_cast<int>(w.in.pick(3));
    w.call("obn_attention_set_causal", {}, [&] { return obn_attention_set_causal(filter, on); });
  }
  const size_t batch = w.batch();
  const BNNSNDArrayDescriptor &q_desc = p.query.target_desc, &k_desc = p.key.target_desc, &v_desc = p.value.target_desc,
                              &y_desc = p.output.target_desc;
  const size_t q_step = w.step(q_desc), k_step = w.step(k_desc), v_step = w.step(v_desc), y_step = w.step(y_desc);
  const void* query = w.place(q_desc, batch, q_step);
  const void* key = w.place(k_desc, batch, k_step);
  const void* value = w.place(v_desc, batch, v_step);
  void* y = w.place(y_desc, batch, y_step, const_cast<void*>(query));
  BNNSNDArrayDescriptor mask = w.describe(BNNSDataLayoutVector, {source}, BNNSDataTypeBoolean);
  const size_t mask_step = w.step(mask);
  mask.data = w.place(mask, batch, mask_step);
  BNNSNDArrayDescriptor* mask_or_none = w.flip() ? &mask : nullptr;
  const BNNSDataType added_type = w.in.one_in(3) ? BNNSDataTypeBoolean : type;
  BNNSNDArrayDescriptor added = {};
  switch (w.in.pick(3)) {
    case 0: added = w.describe(BNNSDataLayout2DFirstMajor, {target, source}, added_type); break;
    case 1: added = w.describe(BNNSDataLayout3DFirstMajor, {heads, target, source}, added_type); break;
    default: added = w.describe(BNNSDataLayout4DFirstMajor, {batch, heads, target, source}, added_type);
  }
  added.data = w.place(added);
  BNNSNDArrayDescriptor* added_or_none = w.in.one_in(3) ? &added : nullptr;
  w.say("mask", mask), w.say("added", added);
  w.say("  batch %zu steps %zu %zu %zu %zu, mask %d (%zu), added %d\n", batch, q_step, k_step, v_step, y_step,
        mask_or_none != nullptr, mask_step, added_or_none != nullptr);
  if (!w.affords(product({batch, heads, target, source, 64}))) return;
  size_t cache_size = 0, workspace_size = 0;
  void *cache = nullptr, *workspace = nullptr;
  const auto forward = [&](size_t* c_size, void* c, size_t* w_size, void* space) {
    return BNNSApplyMultiheadAttention(filter, batch, query, q_step, key, k_step, mask_or_none, mask_step, value, v_step, y,
                                       y_step, added_or_none, c_size, c, w_size, space);
  };
  const bool wants_cache = w.flip(), wants_workspace = w.flip();
  if (wants_cache || wants_workspace) {
    const int status = w.call("BNNSApplyMultiheadAttention, sizes", {}, [&] {
      return forward(wants_cache ? &cache_size : nullptr, nullptr, wants_workspace ? &workspace_size : nullptr, nullptr);
    });
    if (status != 0) return;
    if (wants_cache) cache = w.scratch(cache_size);
    if (wants_workspace) workspace = w.scratch(workspace_size);
    if ((wants_cache && !cache) || (wants_workspace && !workspace)) return;
  }
  const int status = w.call("BNNSApplyMultiheadAttention", {values_of(y_desc, y, batch, y_step)}, [&] {
    return forward(cache ? &cache_size : nullptr, cache, workspace ? &workspace_size : nullptr, workspace);
  });
  if (w.odd()) w.refuse("BNNSFilterApply", [&] { return BNNSFilterApply(filter, query, y); });
  if (status != 0 || !w.flip()) return;
  std::vector<Written> written;
  BNNSMHAProjectionParameters deltas[4];
  const BNNSMHAProjectionParameters* of[] = {&p.query, &p.key, &p.value, &p.output};
  for (size_t i = 0; i < 4; ++i) {
    const size_t step = w.step(of[i]->target_desc);
    deltas[i].target_desc = w.gradient(of[i]->target_desc, batch, step);
    deltas[i].target_desc.stride[2] = step;
    deltas[i].weights = w.gradient(of[i]->weights);
    deltas[i].bias = w.gradient(of[i]->bias);
    if (w.in.one_in(4) && i < 3) deltas[i].target_desc.data = nullptr;
    if (w.in.one_in(4)) deltas[i].weights.data = nullptr;
    if (w.in.one_in(4)) deltas[i].bias.data = nullptr;
    if (i < 3) written.push_back(values_of(&deltas[i].target_desc, batch, step));
    written.push_back(values_of(&deltas[i].weights));
    written.push_back(values_of(&deltas[i].bias));
    w.say("d target", deltas[i].target_desc), w.say("d weights", deltas[i].weights), w.say("d bias", deltas[i].bias);
  }
  BNNSNDArrayDescriptor dkb = w.gradient(p.key_attn_bias), dvb = w.gradient(p.value_attn_bias);
  BNNSNDArrayDescriptor *dkb_or_none = w.maybe(&dkb), *dvb_or_none = w.maybe(&dvb);
  written.push_back(values_of(dkb_or_none));
  written.push_back(values_of(dvb_or_none));
  BNNSMHAProjectionParameters* pointers[3];
  for (size_t i = 0; i < 3; ++i) pointers[i] = w.in.one_in(6) ? nullptr : &deltas[i];
  const auto backward = [&](size_t* w_size, void* space) {
    return BNNSApplyMultiheadAttentionBackward(filter, batch, query, q_step, pointers[0], key, k_step, mask_or_none, mask_step,
                                               pointers[1], value, v_step, pointers[2], added_or_none, dkb_or_none, dvb_or_none, y, y_step,
                                               &deltas[3], cache ? cache_size : 0, cache, w_size, space);
  };
  size_t backward_size = 0;
  void* space = nullptr;
  if (w.flip()) {
    if (w.call("BNNSApplyMultiheadAttentionBackward, size", {}, [&] { return backward(&backward_size, nullptr); }) != 0) return;
    space = w.scratch(backward_size);
    if (!space) return;
  }
  w.call_vector("BNNSApplyMultiheadAttentionBackward", written, [&] { return backward(space ? &backward_size : nullptr, space); });
  w.destroy(filter);
}

}  // namespace fuzz
