// Weights in any layout and type, to and from (O, C/G, kh, kw) of float32.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/pool.h"
#include "base/status.h"
#include "convolution/convolution_filter.h"

namespace obn::convolution {
namespace {

constexpr size_t kLanes = 32;                    // of Pack32

// Sizes of the problem's weights: a is the slowest axis, b the channels of one group.
size_t first_channels(const WeightArray& w, WeightOrder order) {
  return order.transposed ? w.in * order.groups : w.out;
}
size_t second_channels(const WeightArray& w, WeightOrder order) {
  return order.transposed ? w.out / order.groups : w.in;
}

// Calls body(index in the array) for the weights (b, ky, kx) of the problem's channel a, in that order.
template <class Body>
void walk(const WeightArray& w, WeightOrder order, size_t a, const Body& body) {
  const size_t channels = second_channels(w, order), group = a / w.in;
  for (size_t b = 0; b < channels; ++b) {
    const size_t start = order.transposed ? w.index(0, 0, a % w.in, b + group * channels) : w.index(0, 0, b, a);
    for (size_t ky = 0; ky < w.kh; ++ky) {
      ptrdiff_t at = static_cast<ptrdiff_t>(start) + static_cast<ptrdiff_t>(ky) * w.ky_step;
      for (size_t kx = 0; kx < w.kw; ++kx, at += w.kx_step) body(static_cast<size_t>(at));
    }
  }
}

template <class T>
T* data_of(const WeightArray& w) {
  return static_cast<T*>(w.memory.data);
}

// Step between neighbours along an axis, as the order without gaps would have it; an axis of extent 1 never steps.
bool steps_by(size_t extent, ptrdiff_t step, size_t expected) {
  return extent == 1 || step == static_cast<ptrdiff_t>(expected);
}

}  // namespace

int read_weights(const BNNSNDArrayDescriptor& descriptor, Access access, const char* argument, WeightOrder order,
                 WeightArray* weights) {
  WeightArray& w = *weights;
  const BNNSDataLayout layout = descriptor.layout;
  w.is_packed32 = layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32;
  const bool is_in_order = order.transposed && layout == BNNSDataLayout4DFirstMajor;
  if (!is_in_order && !w.is_packed32 && layout != BNNSDataLayoutConvolutionWeightsOIHW &&
      layout != BNNSDataLayoutConvolutionWeightsOIHrWr && layout != BNNSDataLayoutConvolutionWeightsIOHrWr)
    return fail("%s: expected one of the four layouts of convolution weights; got %s", argument, name_of(layout));
  BNNSNDArrayDescriptor lying = descriptor;
  if (w.is_packed32) {
    // No strides but the first, and that one says nothing: the lanes are always full.
    if (descriptor.stride[0] > 1)
      return fail("%s: expected stride[0] = 0 or 1 for %s; got %zu", argument, name_of(layout), descriptor.stride[0]);
    std::fill_n(lying.stride, BNNS_MAX_TENSOR_DIMENSION, size_t{0});
    if (descriptor.size[3] <= SIZE_MAX - kLanes) lying.size[3] = round_up(descriptor.size[3], kLanes);
  }
  if (read_view(lying, access, argument, &w.memory) != 0) return -1;
  const View& v = w.memory;
  w.kw = v.extent[0];
  w.kh = v.extent[1];
  const auto step = [&](size_t axis) { return static_cast<ptrdiff_t>(v.stride[axis]); };
  if (w.is_packed32) {
    w.in = v.extent[2];
    w.out = descriptor.size[3];
    w.first = 0;
    w.block = kLanes;
    w.kx_step = kLanes;
    w.ky_step = static_cast<ptrdiff_t>(kLanes * w.kw);
    w.in_step = static_cast<ptrdiff_t>(kLanes * w.kw * w.kh);
    w.block_step = static_cast<ptrdiff_t>(kLanes * w.kw * w.kh * w.in);
    w.out_step = 1;
    return 0;
  }
  const bool in_last = is_in_order || layout == BNNSDataLayoutConvolutionWeightsIOHrWr;
  w.in = v.extent[in_last ? 3 : 2];
  w.out = v.extent[in_last ? 2 : 3];
  w.in_step = step(in_last ? 3 : 2);
  w.out_step = step(in_last ? 2 : 3);
  w.block = kLanes;
  w.block_step = w.out <= kLanes ? 0 : static_cast<ptrdiff_t>(kLanes) * w.out_step;
  w.first = 0;
  w.kx_step = step(0);
  w.ky_step = step(1);
  if (is_in_order) {
    if (w.in % order.groups != 0 || w.out > SIZE_MAX / order.groups)
      return fail("%s: expected a number of input channels that %zu groups divide; got %zu", argument, order.groups,
                  w.in);
    w.in /= order.groups;
    w.block = w.out;
    w.out *= order.groups;
    w.block_step = static_cast<ptrdiff_t>(w.in) * w.in_step;
    return 0;
  }
  if (layout != BNNSDataLayoutConvolutionWeightsOIHW) {
    w.first = static_cast<ptrdiff_t>(w.kw - 1) * w.kx_step + static_cast<ptrdiff_t>(w.kh - 1) * w.ky_step;
    w.kx_step = -w.kx_step;
    w.ky_step = -w.ky_step;
  }
  return 0;
}

bool is_canonical(const WeightArray& w, WeightOrder order) {
  if (w.memory.type != BNNSDataTypeFloat32 || w.is_packed32 || w.first != 0) return false;
  if (order.transposed && order.groups > 1 && w.memory.layout != BNNSDataLayout4DFirstMajor) return false;
  const size_t taps = w.kw * w.kh, a = first_channels(w, order), b = second_channels(w, order);
  return steps_by(w.kw, w.kx_step, 1) && steps_by(w.kh, w.ky_step, w.kw) &&
         steps_by(b, order.transposed ? w.out_step : w.in_step, taps) &&
         steps_by(a, order.transposed ? w.in_step : w.out_step, taps * b);
}

void expand_weights(const WeightArray& w, WeightOrder order, bool as_stored, size_t threads, float* to) {
  const size_t a = first_channels(w, order), run = w.count() / a;
  activation::ref::Values values = {w.memory.data,  w.memory.type,  w.memory.scale,
                                    w.memory.bias, w.memory.table, w.memory.table_type};
  if (as_stored) {
    values.scale = 1.0f;
    values.bias = 0.0f;
  }
  parallel(a, threads, 16 * kByte * w.count(), [&](size_t i) {
    float* next = to + i * run;
    switch (w.memory.type) {
      case BNNSDataTypeFloat32:
        return walk(w, order, i, [&](size_t at) { *next++ = data_of<const float>(w)[at]; });
      case BNNSDataTypeFloat16:
        return walk(w, order, i, [&](size_t at) { *next++ = float_of_float16(data_of<const uint16_t>(w)[at]); });
      case BNNSDataTypeBFloat16:
        return walk(w, order, i, [&](size_t at) { *next++ = float_of_bfloat16(data_of<const uint16_t>(w)[at]); });
      default:
        return walk(w, order, i, [&](size_t at) {
          double real;
          activation::ref::get_reals(values, at, 1, 1, &real);
          *next++ = static_cast<float>(real);
        });
    }
  });
}

void put_weights(const WeightArray& w, WeightOrder order, const float* dw, size_t threads) {
  const size_t a = first_channels(w, order), run = w.count() / a;
  const bool add = w.memory.accumulate;
  if (!add && is_canonical(w, order)) {
    std::copy_n(dw, w.count(), data_of<float>(w));
    return;
  }
  parallel(a, threads, 16 * kByte * w.count(), [&](size_t i) {
    const float* next = dw + i * run;
    const auto put = [&](auto* data, auto to_float, auto from_float) {
      walk(w, order, i, [&](size_t at) {
        const float value = *next++;
        data[at] = from_float(add ? to_float(data[at]) + value : value);
      });
    };
    switch (w.memory.type) {
      case BNNSDataTypeFloat16: return put(data_of<uint16_t>(w), float_of_float16, float16_of_float);
      case BNNSDataTypeBFloat16: return put(data_of<uint16_t>(w), float_of_bfloat16, bfloat16_of_float);
      default: {
        const auto same = [](float value) { return value; };
        return put(data_of<float>(w), same, same);
      }
    }
  });
  if (!w.is_packed32) return;
  // Zero has the same bits in all types.
  const size_t bytes = bytes_of(w.memory.type);
  auto* data = data_of<std::byte>(w);
  for (size_t o = w.out; o % kLanes != 0; ++o)
    for (size_t i = 0; i < w.in; ++i)
      for (size_t k = 0; k < w.kw * w.kh; ++k)
        std::fill_n(data + w.index(k % w.kw, k / w.kw, i, o) * bytes, bytes, std::byte{0});
}

}  // namespace obn::convolution
