// Entry point of the quantizer: check, then walk over rows. Letters as in quantization.h.
#include "quantization/quantization.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "activation/activation.h"
#include "base/integer.h"
#include "base/interrupt.h"
#include "base/loops.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/types.h"

namespace obn {

namespace quantization {

namespace {

constexpr size_t kPiece = 16384;  // values of a piece of parallel work, about
constexpr size_t kBlock = 512;    // of float16 converted at a time
constexpr size_t kNoAxis = SIZE_MAX;

constexpr BNNSDataType kIntegerTypes[kIntegers] = {BNNSDataTypeInt8,   BNNSDataTypeUInt8, BNNSDataTypeInt16,
                                                   BNNSDataTypeUInt16, BNNSDataTypeInt32, BNNSDataTypeUInt32};

size_t integer_of(BNNSDataType type) {
  return static_cast<size_t>(std::find(kIntegerTypes, kIntegerTypes + kIntegers, type) - kIntegerTypes);
}
bool is_real(BNNSDataType type) {
  return type == BNNSDataTypeInt32 || type == BNNSDataTypeFloat16 || type == BNNSDataTypeFloat32;
}

}  // namespace

// ---- creation ----

int Plan::read(const BNNSLayerParametersQuantization& parameters, size_t threads) {
  kernels_ = &targets.best();
  threads_ = threads;
  if (parameters.function != BNNSQuantizerFunctionQuantize && parameters.function != BNNSQuantizerFunctionDequantize)
    return fail("function: expected quantize (0) or dequantize (1); got %u",
                static_cast<unsigned>(parameters.function));
  quantizes_ = parameters.function == BNNSQuantizerFunctionQuantize;
  if (read_view(parameters.i_desc, Access::read, "input", &x_) != 0) return -1;
  if (read_view(parameters.o_desc, Access::write, "output", &y_) != 0) return -1;
  if (x_.layout == BNNSDataLayoutFullyConnectedSparse || x_.layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
    return fail("input: expected a layout of plain values; got %s", obn::name_of(x_.layout));
  bool same = x_.layout == y_.layout;
  for (size_t k = 0; same && k < x_.rank; ++k) same = x_.extent[k] == y_.extent[k];
  if (!same) {
    ShapeText expected, got;
    return fail("output: expected %s in layout %s, as the input; got %s in layout %s", shape_text(x_, &expected),
                obn::name_of(x_.layout), shape_text(y_, &got), obn::name_of(y_.layout));
  }
  if (read_types() != 0 || read_axis(parameters.axis_mask) != 0) return -1;
  if (axis_ != kNoAxis && axis_ < x_.rank) length_ = x_.extent[axis_];
  if (read_factor(parameters.scale, "scale", &scale_) != 0) return -1;
  return read_factor(parameters.bias, "bias", &bias_);
}

int Plan::read_types() {
  const View &real = quantizes_ ? x_ : y_, &whole = quantizes_ ? y_ : x_;
  if (!is_real(real.type))
    return fail("%s: expected int32, float16 or float32; got %s", quantizes_ ? "input" : "output",
                obn::name_of(real.type));
  const size_t integer = integer_of(whole.type), from_float = real.type != BNNSDataTypeInt32;
  if (integer == kIntegers)
    return fail("%s: expected an integer type of 8, 16 or 32 bits; got %s", quantizes_ ? "output" : "input",
                obn::name_of(whole.type));
  row_ = quantizes_ ? kernels_->quantize[from_float][integer] : kernels_->dequantize[integer][from_float];
  return 0;
}

int Plan::read_axis(size_t mask) {
  axis_ = kNoAxis;
  if (mask == 0) return 0;
  size_t bit = 0;
  while (bit < x_.rank && !(mask >> bit & 1)) ++bit;
  if (mask != size_t{1} << bit)
    return fail("axis: expected one bit, of an axis (0 to %zu) or the batch (%zu), or 0; got 0x%zx", x_.rank - 1,
                x_.rank, mask);
  axis_ = bit < x_.rank ? x_.axis_of_size[bit] : x_.rank;
  return 0;
}

// Along the batch, the first one given says how long they are.
int Plan::read_factor(const BNNSNDArrayDescriptor& descriptor, const char* argument, View* view) {
  view->data = nullptr;
  if (!descriptor.data) return 0;
  if (read_view(descriptor, Access::read, argument, view) != 0) return -1;
  if (view->rank != 1) return fail("%s: expected a vector; got layout %s", argument, obn::name_of(view->layout));
  if (is_along_batch() && (view == &scale_ || !scale_.data)) length_ = view->extent[0];
  if (view->extent[0] != length_)
    return fail("%s: expected %zu values; got %zu", argument, length_, view->extent[0]);
  size_t only_sample;
  return read_batch(*view, view->data, 1, 0, Access::read, argument, &only_sample);
}

void Plan::fill(double* factors) const {
  std::fill_n(factors, length_, 1.0);
  std::fill_n(factors + length_, length_, 0.0);
  for (const View* view : {&scale_, &bias_}) {
    if (!view->data) continue;
    const activation::ref::Values values{view->data, view->type, 1.0f, 0.0f, view->table, view->table_type};
    activation::ref::get_reals(values, 0, view->stride[0], length_, factors + (view == &bias_) * length_);
  }
}

// ---- calls ----

int Plan::check_output(size_t batch, void* y, size_t y_stride, Call* call) const {
  call->batch = batch;
  if (batch == 0) return 0;
  if (is_along_batch() && (scale_.data || bias_.data) && length_ != batch)
    return fail("batch_size: expected %zu, as many as there are scales or biases; got %zu", length_, batch);
  call->y = static_cast<std::byte*>(y);
  return read_batch(y_, y, batch, y_stride, Access::write, "output", &call->y_step);
}

int Plan::check_factors_apart(const Call& call) const {
  const Place y = {"output", &y_, call.y, call.y_step, call.batch};
  if (call.batch == 0) return 0;
  if (scale_.data && check_apart(y, {"scale", &scale_, scale_.data, 0, 1}) != 0) return -1;
  return bias_.data ? check_apart(y, {"bias", &bias_, bias_.data, 0, 1}) : 0;
}

int Plan::check(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride, Call* call) const {
  if (check_output(batch, y, y_stride, call) != 0 || check_factors_apart(*call) != 0) return -1;
  if (batch == 0) return 0;
  if (read_batch(x_, x, batch, x_stride, Access::read, "input", &call->x_step) != 0) return -1;
  call->x = static_cast<std::byte*>(const_cast<void*>(x));
  bool same_place = x == y && bytes_of(x_.type) == bytes_of(y_.type) && (batch == 1 || call->x_step == call->y_step);
  for (size_t k = 0; same_place && k < x_.rank; ++k) same_place = x_.extent[k] == 1 || x_.stride[k] == y_.stride[k];
  return same_place ? 0 : check_disjoint(y_, y, call->y_step, "output", x_, x, call->x_step, "input", batch);
}

void Plan::run(const Call& call, const double* factors) const {
  if (call.batch == 0) return;
  Loops<3> loops;  // x, y, factors
  loops.tensors = 3;
  const bool factors_move = length_ > 1;
  for (size_t k = 0; k <= x_.rank; ++k) {
    const bool is_batch = k == x_.rank;
    const size_t strides[] = {is_batch ? call.x_step : x_.stride[k], is_batch ? call.y_step : y_.stride[k],
                              factors_move && k == axis_};
    loops.add(is_batch ? call.batch : x_.extent[k], strides);
  }
  loops.finish();
  const size_t n = loops.extent[0];
  const bool has_halves = x_.type == BNNSDataTypeFloat16 || y_.type == BNNSDataTypeFloat16;
  const size_t block = std::min(n, has_halves ? kBlock : kPiece), blocks = divide_up(n, block);
  size_t rows = 1;
  for (size_t k = 1; k < loops.rank; ++k) rows *= loops.extent[k];

  const auto one_block = [&](const Position<3>& at, size_t first, size_t count) {
    const size_t* stride = loops.stride[0];
    const void* x = call.x + (at.offset(0) + first * stride[0]) * bytes_of(x_.type);
    void* y = call.y + (at.offset(1) + first * stride[1]) * bytes_of(y_.type);
    const bool moves = factors_move && stride[2] != 0;  // extents of 1 have no axis
    const double* scale = factors + (factors_move ? at.offset(2) + first * stride[2] : 0);
    if (!has_halves) return row_(x, stride[0], y, stride[1], scale, scale + length_, moves, count);
    float* row = reinterpret_cast<float*>(scratch());
    if (x_.type == BNNSDataTypeFloat16) {
      kernels_->load(x_.type, x, stride[0], count, row);
      row_(row, 1, y, stride[1], scale, scale + length_, moves, count);
    } else {
      row_(x, stride[0], row, 1, scale, scale + length_, moves, count);
      kernels_->store(y_.type, y, stride[1], count, row);
    }
  };
  const auto some_blocks = [&](size_t first, size_t count) {
    Position<3> at(loops, 1);
    at.seek(first / blocks);
    for (size_t b = first % blocks; count > 0; --count) {
      one_block(at, b * block, std::min(block, n - b * block));
      if (++b < blocks) continue;
      b = 0;
      at.step();
    }
  };
  const size_t items = rows * blocks, piece = std::max<size_t>(1, kPiece / block);
  if (items <= piece) return some_blocks(0, items);
  parallel(divide_up(items, piece), threads_for(threads_), kUsualPiece / static_cast<double>(piece) * items,
           [&](size_t i) { some_blocks(i * piece, std::min(piece, items - i * piece)); });
}

}  // namespace quantization
}  // namespace obn

extern "C" int BNNSDirectApplyQuantizer(const BNNSLayerParametersQuantization* layer_params,
                                        const BNNSFilterParameters* filter_params, size_t batch_size,
                                        size_t input_stride, size_t output_stride) {
  using namespace obn;
  if (!layer_params) return fail("layer_params: expected parameters; got NULL");
  Options options;
  quantization::Plan plan;
  quantization::Call call;
  if (Options::read(filter_params, &options) != 0 || plan.read(*layer_params, options.threads) != 0) return -1;
  if (plan.check(batch_size, layer_params->i_desc.data, input_stride, layer_params->o_desc.data, output_stride,
                 &call) != 0)
    return -1;
  double* factors = reinterpret_cast<double*>(workspace(2 * plan.length() * sizeof(double)));
  if (!factors || !scratch()) return -1;
  plan.fill(factors);
  return interruptible(nullptr, [&] {
    plan.run(call, factors);
    return 0;
  });
}
