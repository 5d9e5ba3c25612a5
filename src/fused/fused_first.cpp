// The first layers of pairs. Letters as in fused.h.
#include <algorithm>
#include <cstddef>

#include "activation/activation_walk.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/types.h"
#include "fused/fused.h"

namespace obn::fused {
namespace {

constexpr size_t kNearBytes = size_t{8} << 20;     // of z, done at a time
constexpr size_t kPartBytes = size_t{64} << 10;    // of z in a part of arithmetic

void pack(BNNSNDArrayDescriptor* descriptor) { std::fill_n(descriptor->stride, BNNS_MAX_TENSOR_DIMENSION, size_t{0}); }

size_t stride_of(const size_t* strides) { return strides ? strides[0] : 0; }

// The arguments of a first layer with weights, as its own backward call has them. dy is the pair's.
Backward own_arguments(const BackwardArguments& a) {
  return {a.batch, a.x ? a.x[0] : nullptr, stride_of(a.x_stride), a.dx ? a.dx[0] : nullptr, stride_of(a.dx_stride),
          nullptr, 0, nullptr, 0, a.parameters ? a.parameters[0] : nullptr, a.parameters ? a.parameters[1] : nullptr};
}

// Adds an array that is there.
void add(const Place& place, Place* places, size_t* count) {
  if (place.data) places[(*count)++] = place;
}

}  // namespace

// ---- convolution ----

const BNNSNDArrayDescriptor* ConvolutionFirst::output_of(const void* block) {
  return &static_cast<const BNNSLayerParametersConvolution*>(block)->o_desc;
}

int ConvolutionFirst::prepare(const void* block) {
  BNNSLayerParametersConvolution parameters = *static_cast<const BNNSLayerParametersConvolution*>(block);
  pack(&parameters.o_desc);
  return layer_.prepare(parameters);
}

size_t ConvolutionFirst::most_samples(size_t batch) const {
  const View& z = layer_.output();
  return std::clamp<size_t>(kNearBytes / std::max<size_t>(1, z.count * bytes_of(z.type)), 1, batch);
}

int ConvolutionFirst::check(const ForwardArguments& a, Forward* f) const {
  if (layer_.check_input(a.batch, a.x[0], stride_of(a.x_stride), &f->x) != 0) return -1;
  f->run = layer_.make_run(a.batch);
  return 0;
}

int ConvolutionFirst::check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const {
  if (obn::check_apart(y, {"input", &layer_.input(), f.x.data, f.x.step, a.batch}) != 0) return -1;
  return layer_.check_own_apart(y);
}

size_t ConvolutionFirst::bytes(const Forward& f, size_t batch) const {
  return layer_.forward_bytes(f.run, batch, f.x, {&layer_.output(), nullptr, layer_.output().count});
}

void ConvolutionFirst::run(const Forward& f, size_t first, size_t batch, void* z, std::byte* work) const {
  convolution::Images x = f.x;
  x.data += first * x.step * bytes_of(x.view->type);
  layer_.run_forward(f.run, batch, x, {&layer_.output(), static_cast<std::byte*>(z), layer_.output().count}, work);
}

bool ConvolutionFirst::takes_channels(Backward* b) const {
  if (!layer_.takes_channels(b->run, b->g)) return false;
  layer_.plan_channels(b->g.batch, &b->channels);
  return true;
}

void ConvolutionFirst::take_channel(const Backward& b, size_t channel, float* u, std::byte* work) const {
  layer_.take_channel(b.channels, b.run, b.g, channel, u, scratch(), work);
}

bool ConvolutionFirst::is_wanted(const BackwardArguments& a) {
  return a.dx || (a.parameters && (a.parameters[0] || a.parameters[1]));
}

int ConvolutionFirst::check(const BackwardArguments& a, const void*, Backward* b) const {
  b->run = layer_.make_run(a.batch);
  return layer_.check_gradients(own_arguments(a), &b->g);
}

size_t ConvolutionFirst::written(const Backward& b, Place* places) {
  const convolution::Gradients& g = b.g;
  size_t count = 0;
  add({"input_gradient", &g.dx_view, g.dx.data, g.dx.step, g.batch}, places, &count);
  add({"weights_gradient", &g.dw.memory, g.dw.memory.data, 0, 1}, places, &count);
  add({"bias_gradient", &g.db, g.db.data, 0, 1}, places, &count);
  return count;
}

size_t ConvolutionFirst::read(const Backward& b, Place* places) {
  size_t count = 0;
  add({"input", b.g.x.view, b.g.x.data, b.g.x.step, b.g.batch}, places, &count);
  return count;
}

size_t ConvolutionFirst::bytes(Backward* b) const {
  b->g.dy = {&layer_.output(), nullptr, layer_.output().count};
  return layer_.backward_bytes(b->run, b->g);
}

void ConvolutionFirst::run(Backward* b, void* u, std::byte* work) const {
  b->g.dy.data = static_cast<std::byte*>(u);
  layer_.run_backward(b->run, b->g, work);
}

// ---- fully connected ----

const BNNSNDArrayDescriptor* FullyConnectedFirst::output_of(const void* block) {
  return &static_cast<const BNNSLayerParametersFullyConnected*>(block)->o_desc;
}

int FullyConnectedFirst::prepare(const void* block) {
  BNNSLayerParametersFullyConnected parameters = *static_cast<const BNNSLayerParametersFullyConnected*>(block);
  pack(&parameters.o_desc);
  return layer_.prepare(parameters);
}

int FullyConnectedFirst::check(const ForwardArguments& a, Forward* f) const {
  return layer_.check_input(a.batch, a.x[0], stride_of(a.x_stride), &f->x);
}

int FullyConnectedFirst::check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const {
  if (obn::check_apart(y, {"input", &layer_.input(), a.x[0], f.x.row, a.batch}) != 0) return -1;
  return layer_.check_own_apart(y);
}

size_t FullyConnectedFirst::bytes(const Forward& f, size_t batch) const {
  return layer_.forward_bytes(batch, f.x, fully_connected::array_of(layer_.output(), nullptr, layer_.output().count));
}

void FullyConnectedFirst::run(const Forward& f, size_t, size_t batch, void* z, std::byte* work) const {
  layer_.run_forward(batch, f.x, fully_connected::array_of(layer_.output(), z, layer_.output().count), work);
}

int FullyConnectedFirst::check(const BackwardArguments& a, const void*, Backward* b) const {
  return layer_.check_gradients(own_arguments(a), b);
}

size_t FullyConnectedFirst::written(const Backward& b, Place* places) {
  size_t count = 0;
  add({"input_gradient", &b.dx_view, b.dx.values.data, b.dx.row, b.n}, places, &count);
  add({"weights_gradient", &b.dw_view, b.dw.values.data, 0, 1}, places, &count);
  add({"bias_gradient", &b.db_view, b.db.values.data, 0, 1}, places, &count);
  return count;
}

size_t FullyConnectedFirst::read(const Backward& b, Place* places) const {
  size_t count = 0;
  add({"input", &layer_.input(), b.x.values.data, b.x.row, b.n}, places, &count);
  return count;
}

size_t FullyConnectedFirst::bytes(Backward* b) const {
  b->dy = fully_connected::array_of(layer_.output(), nullptr, layer_.output().count);
  return layer_.backward_bytes(*b);
}

void FullyConnectedFirst::run(Backward* b, void* u, std::byte* work) const {
  b->dy.values.data = u;
  layer_.run_backward(*b, work);
}

// ---- arithmetic ----

const BNNSNDArrayDescriptor* ArithmeticFirst::output_of(const void* block) {
  const auto& of = *static_cast<const BNNSLayerParametersArithmetic*>(block);
  const void* fields = of.arithmetic_function_fields;
  if (of.arithmetic_function >= arithmetic::kFunctions) {
    fail("function: expected one from 0 to %zu; got %u", arithmetic::kFunctions - 1,
         static_cast<unsigned>(of.arithmetic_function));
    return nullptr;
  }
  if (!fields) {
    fail("function: expected a description of its operands; got NULL");
    return nullptr;
  }
  switch (arithmetic::inputs_of(of.arithmetic_function)) {
    case 1: return &static_cast<const BNNSArithmeticUnary*>(fields)->out;
    case 2: return &static_cast<const BNNSArithmeticBinary*>(fields)->out;
    default: return &static_cast<const BNNSArithmeticTernary*>(fields)->out;
  }
}

namespace {

// Reads the block with a packed output; `change` may alter every operand before.
template <class Change>
int read_plan(BNNSLayerParametersArithmetic parameters, size_t threads, const Change& change, arithmetic::Plan* plan) {
  const void* fields = parameters.arithmetic_function_fields;
  const auto read = [&](auto operands, auto... inputs) {
    (change(&(operands.*inputs)), ...);
    pack(&operands.out);
    change(&operands.out);
    parameters.arithmetic_function_fields = &operands;
    return plan->read(parameters, threads);
  };
  switch (arithmetic::inputs_of(parameters.arithmetic_function)) {
    case 1: return read(*static_cast<const BNNSArithmeticUnary*>(fields), &BNNSArithmeticUnary::in);
    case 2:
      return read(*static_cast<const BNNSArithmeticBinary*>(fields), &BNNSArithmeticBinary::in1,
                  &BNNSArithmeticBinary::in2);
    default:
      return read(*static_cast<const BNNSArithmeticTernary*>(fields), &BNNSArithmeticTernary::in1,
                  &BNNSArithmeticTernary::in2, &BNNSArithmeticTernary::in3);
  }
}

}  // namespace

// Plans for one channel and for some, where channels are alike.
int ArithmeticFirst::prepare_channels(const BNNSLayerParametersArithmetic& parameters) {
  const View& z = plan_.output();
  has_channels_ = z.layout == BNNSDataLayoutImageCHW;
  for (size_t k = 0; k < plan_.inputs(); ++k)
    has_channels_ &= plan_.input_role(k) == BNNSSample && plan_.input(k).count == z.count;
  if (!has_channels_) return 0;
  // A part is a divisor of the channels.
  const size_t most = std::max<size_t>(1, kPartBytes / (z.extent[0] * z.extent[1] * sizeof(float)));
  size_t part = std::min(most, z.extent[2]);
  while (z.extent[2] % part != 0) --part;
  const auto some = [](size_t channels) {
    return [channels](BNNSNDArrayDescriptor* operand) { operand->size[2] = channels; };
  };
  if (read_plan(parameters, threads_, some(part), &part_) != 0) return -1;
  return read_plan(parameters, threads_, some(1), &channel_);
}

int ArithmeticFirst::prepare(const void* block) {
  const auto& parameters = *static_cast<const BNNSLayerParametersArithmetic*>(block);
  if (read_plan(parameters, threads_, [](BNNSNDArrayDescriptor*) {}, &plan_) != 0) return -1;
  if (plan_.output_role() != BNNSSample)
    return fail("output: expected the descriptor type sample before a normalization; got %s",
                plan_.output_role() == BNNSConstant ? "constant" : "parameter");
  return prepare_channels(parameters);
}

int ArithmeticFirst::check(const ForwardArguments& a, Forward* f) const {
  return plan_.check_inputs({a.batch, a.inputs, a.x, a.x_stride, nullptr, 0}, f);
}

// The output may take the very place of an input.
int ArithmeticFirst::check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const {
  for (size_t k = 0; k < plan_.inputs(); ++k) {
    const arithmetic::Operand& x = f.x[k];
    if (activation::same_place({y.view, y.data, y.step}, {x.view, x.data, x.step}, a.batch)) continue;
    if (obn::check_apart(y, {"an input", x.view, x.data, x.step, a.batch}) != 0) return -1;
  }
  return 0;
}

void ArithmeticFirst::run(const Forward& f, size_t, size_t, void* z, std::byte*) const {
  Forward call = f;
  call.y = {&plan_.output(), static_cast<std::byte*>(z), plan_.output().count};
  plan_.run(call);
}

namespace {

// Some channels of one sample of an operand, from `channel` on, as a plan of so many has it.
arithmetic::Operand part_of(const arithmetic::Operand& operand, const View& view, size_t sample, size_t channel) {
  if (!operand.data) return {&view, nullptr, 0};
  const size_t at = sample * operand.step + channel * operand.view->stride[2];
  return {&view, operand.data + at * bytes_of(view.type), operand.step};
}

}  // namespace

void ArithmeticFirst::run_part(const Forward& f, size_t sample, size_t channel, float* z) const {
  Forward part;
  part.batch = 1;
  for (size_t k = 0; k < plan_.inputs(); ++k) part.x[k] = part_of(f.x[k], part_.input(k), sample, channel);
  part.y = {&part_.output(), reinterpret_cast<std::byte*>(z), part_.output().count};
  part_.run(part);
}

bool ArithmeticFirst::makes_runs(const Forward& f) const {
  if (!has_channels_ || has_activation() || plan_.output().type != BNNSDataTypeFloat32) return false;
  for (size_t k = 0; k < plan_.inputs(); ++k) {
    const View& x = *f.x[k].view;
    if (x.stride[0] != 1 || x.stride[1] != x.extent[0]) return false;
  }
  return true;
}

namespace {

// The beginning of a channel of operands of float32.
const float* channel_at(const arithmetic::Operand& x, size_t sample, size_t channel) {
  return reinterpret_cast<const float*>(x.data) + sample * x.step + channel * x.view->stride[2];
}

}  // namespace

void ArithmeticFirst::make_run(const Forward& f, size_t sample, size_t channel, float* z) const {
  arithmetic::Sources sources;
  for (size_t s = 0; s < arithmetic::kSources; ++s) {
    sources.p[s] = channel_at(f.x[s < plan_.inputs() ? s : 0], sample, channel);
    sources.moves[s] = s < plan_.inputs();
  }
  plan_.run_row(sources, z, channel_.output().count);
}

void ArithmeticFirst::find_run(const Forward& f, size_t sample, size_t channel, const float* (&from)[2]) const {
  for (size_t k = 0; k < 2; ++k) from[k] = k < plan_.inputs() ? channel_at(f.x[k], sample, channel) : nullptr;
}

int ArithmeticFirst::check(const BackwardArguments& a, const void* z, Backward* b) const {
  return plan_.check_gradients({a.batch, a.inputs, a.x, a.x_stride, a.dx, a.dx_stride, z, 0, nullptr, 0}, b);
}

size_t ArithmeticFirst::written(const Backward& b, Place* places) {
  size_t count = 0;
  for (size_t t = 0; t < b.targets; ++t)
    add({"input_gradient", b.dx[t].view, b.dx[t].data, b.dx[t].step, b.dx[t].step ? b.batch : 1}, places, &count);
  return count;
}

size_t ArithmeticFirst::read(const Backward& b, Place* places) {
  size_t count = 0;
  for (const arithmetic::Operand& x : b.x) {
    if (!x.data) continue;
    add({"an input", x.view, x.data, x.step, x.step ? b.batch : 1}, places, &count);
  }
  return count;
}

void ArithmeticFirst::run(Backward* b, void* u, std::byte* work) const {
  b->dy = {&plan_.output(), static_cast<std::byte*>(u), plan_.output().count};
  plan_.run(*b, work);
}

bool ArithmeticFirst::find_copies(const Backward& b, normalization::Tensor (&copies)[2]) const {
  if (!has_channels_ || plan_.function() != BNNSArithmeticAdd || b.targets != 2) return false;
  for (size_t t = 0; t < 2; ++t) {
    if (b.dx_view[t].accumulate) return false;
    copies[t] = normalization::Tensor(b.dx_view[t], b.dx[t].data, b.dx[t].step);
  }
  return true;
}

void ArithmeticFirst::take_run(const Backward& b, size_t sample, size_t channel, float* u) const {
  Backward part;
  part.batch = 1;
  part.from_y = b.from_y;
  part.targets = b.targets;
  for (size_t k = 0; k < plan_.inputs(); ++k) part.x[k] = part_of(b.x[k], channel_.input(k), sample, channel);
  part.y = part_of(b.y, channel_.output(), sample, channel);
  part.dy = {&channel_.output(), reinterpret_cast<std::byte*>(u), channel_.output().count};
  for (size_t t = 0; t < b.targets; ++t) {
    View& view = part.dx_view[t];
    view = b.dx_view[t];
    view.extent[2] = 1;
    view.count = view.extent[0] * view.extent[1];
    view.span = 1 + (view.extent[0] - 1) * view.stride[0] + (view.extent[1] - 1) * view.stride[1];
    part.dx[t] = part_of(b.dx[t], view, sample, channel);
    part.sources[t] = b.sources[t];
  }
  channel_.run(part, nullptr);
}

}  // namespace obn::fused
