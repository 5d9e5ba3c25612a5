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

constexpr size_t kNearBytes = size_t{8} << 20;  // of z, done at a time

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

// Reads the block with a packed output.
int read_plan(BNNSLayerParametersArithmetic parameters, size_t threads, arithmetic::Plan* plan) {
  const void* fields = parameters.arithmetic_function_fields;
  const auto read = [&](auto operands) {
    pack(&operands.out);
    parameters.arithmetic_function_fields = &operands;
    return plan->read(parameters, threads);
  };
  switch (arithmetic::inputs_of(parameters.arithmetic_function)) {
    case 1: return read(*static_cast<const BNNSArithmeticUnary*>(fields));
    case 2: return read(*static_cast<const BNNSArithmeticBinary*>(fields));
    default: return read(*static_cast<const BNNSArithmeticTernary*>(fields));
  }
}

}  // namespace

int ArithmeticFirst::prepare(const void* block) {
  const auto& parameters = *static_cast<const BNNSLayerParametersArithmetic*>(block);
  if (read_plan(parameters, threads_, &plan_) != 0) return -1;
  if (plan_.output_role() != BNNSSample)
    return fail("output: expected the descriptor type sample before a normalization; got %s",
                plan_.output_role() == BNNSConstant ? "constant" : "parameter");
  return 0;
}

int ArithmeticFirst::check(const ForwardArguments& a, Forward* f) const {
  return plan_.check_inputs({a.batch, a.inputs, a.x, a.x_stride, nullptr, 0}, f);
}

// The output may take the very place of an input, and what has no step is no output.
int ArithmeticFirst::check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const {
  for (size_t k = 0; k < plan_.inputs(); ++k) {
    const arithmetic::Operand& x = f.x[k];
    if (y.step > 0 && activation::same_place({y.view, y.data, y.step}, {x.view, x.data, x.step}, a.batch)) continue;
    if (obn::check_apart(y, {"an input", x.view, x.data, x.step, a.batch}) != 0) return -1;
  }
  return 0;
}

void ArithmeticFirst::run(const Forward& f, size_t, size_t, void* z, std::byte*) const {
  Forward call = f;
  call.y = {&plan_.output(), static_cast<std::byte*>(z), plan_.output().count};
  plan_.run(call);
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

}  // namespace obn::fused
