// The loops, once per target; letters as in quantization.h. They are plain: the compiler makes vectors of them.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quantization/quantization.h"
#include "simd/convert.h"

namespace obn::OBN_TARGET::quantization {

namespace {

template <class T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;

// v as a T: a float, or the nearest integer (ties to even) within its range, 0 for NaN. Adding 1.5·2^52 leaves the
// rounded number in the low bits.
template <class T>
OBN_INLINE T stored(double v) {
  if constexpr (kIsFloat<T>) {
    return static_cast<T>(v);
  } else {
    constexpr bool kSigned = static_cast<T>(-1) < 0;
    constexpr double kRange = static_cast<double>(uint64_t{1} << (8 * sizeof(T)));
    constexpr double kLow = kSigned ? -kRange / 2 : 0.0, kHigh = (kSigned ? kRange / 2 : kRange) - 1;
    v = v == v ? v : 0.0;
    v = v < kLow ? kLow : (v > kHigh ? kHigh : v);
    v += 0x1.8p52;
    uint64_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    return static_cast<T>(static_cast<uint32_t>(bits));
  }
}

// Values go through double a few at a time, so that there is one loop per type on either side and not one per pair.
constexpr size_t kAtOnce = 256;

template <class From>
[[gnu::noinline]] void load_reals(const From* x, size_t stride, size_t n, double* v) {
  if (stride == 1) {
    for (size_t i = 0; i < n; ++i) v[i] = static_cast<double>(x[i]);
  } else {
    for (size_t i = 0; i < n; ++i) v[i] = static_cast<double>(x[i * stride]);
  }
}

template <class To>
[[gnu::noinline]] void store_reals(const double* v, size_t n, To* y, size_t stride) {
  if (stride == 1) {
    for (size_t i = 0; i < n; ++i) y[i] = stored<To>(v[i]);
  } else {
    for (size_t i = 0; i < n; ++i) y[i * stride] = stored<To>(v[i]);
  }
}

[[gnu::noinline]] void quantize(double* v, const double* scale, const double* bias, bool factors_move, size_t n) {
  if (factors_move) {
    for (size_t i = 0; i < n; ++i) v[i] = fma(scale[i], v[i], bias[i]);
  } else {
    const double s = *scale, b = *bias;
    for (size_t i = 0; i < n; ++i) v[i] = fma(s, v[i], b);
  }
}

[[gnu::noinline]] void dequantize(double* v, const double* scale, const double* bias, bool factors_move, size_t n) {
  if (factors_move) {
    for (size_t i = 0; i < n; ++i) v[i] = (v[i] - bias[i]) / scale[i];
  } else {
    const double s = *scale, b = *bias;
    for (size_t i = 0; i < n; ++i) v[i] = (v[i] - b) / s;
  }
}

template <auto way, class From, class To>
void row(const void* from, size_t x_stride, void* to, size_t y_stride, const double* scale, const double* bias,
         bool factors_move, size_t n) {
  const From* x = static_cast<const From*>(from);
  To* y = static_cast<To*>(to);
  alignas(64) double v[kAtOnce];
  for (size_t first = 0; first < n; first += kAtOnce) {
    const size_t count = n - first < kAtOnce ? n - first : kAtOnce, at = factors_move ? first : 0;
    load_reals(x + first * x_stride, x_stride, count, v);
    way(v, scale + at, bias + at, factors_move, count);
    store_reals(v, count, y + first * y_stride, y_stride);
  }
}

template <class Integer>
constexpr void list(obn::quantization::Kernels& t, size_t integer) {
  t.quantize[0][integer] = row<quantize, int32_t, Integer>;
  t.quantize[1][integer] = row<quantize, float, Integer>;
  t.dequantize[integer][0] = row<dequantize, Integer, int32_t>;
  t.dequantize[integer][1] = row<dequantize, Integer, float>;
}

constexpr obn::quantization::Kernels table() {
  obn::quantization::Kernels t{};
  list<int8_t>(t, 0);
  list<uint8_t>(t, 1);
  list<int16_t>(t, 2);
  list<uint16_t>(t, 3);
  list<int32_t>(t, 4);
  list<uint32_t>(t, 5);
  t.load = load_row;
  t.store = store_row;
  return t;
}

}  // namespace

}  // namespace obn::OBN_TARGET::quantization

constinit const obn::quantization::Kernels obn::quantization::Compiled::OBN_TARGET = obn::OBN_TARGET::quantization::table();
