// The loops, once per target; letters as in quantization.h. They are plain: the compiler makes vectors of them.
#include "quantization/quantization.h"
#include "simd/convert.h"

namespace obn::OBN_TARGET::quantization {

extern const obn::quantization::Kernels kernels;

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

struct Quantize {
  template <class From, class To>
  OBN_INLINE To of(From x, double scale, double bias) {
    return stored<To>(scale * static_cast<double>(x) + bias);
  }
};
struct Dequantize {
  template <class From, class To>
  OBN_INLINE To of(From x, double scale, double bias) {
    return stored<To>((static_cast<double>(x) - bias) / scale);
  }
};

template <class Way, class From, class To>
void row(const void* from, size_t x_stride, void* to, size_t y_stride, const double* scale, const double* bias,
         bool factors_move, size_t n) {
  const From* x = static_cast<const From*>(from);
  To* y = static_cast<To*>(to);
  if (x_stride != 1 || y_stride != 1) {
    const size_t step = factors_move;
    for (size_t i = 0; i < n; ++i)
      y[i * y_stride] = Way::template of<From, To>(x[i * x_stride], scale[i * step], bias[i * step]);
  } else if (factors_move) {
    for (size_t i = 0; i < n; ++i) y[i] = Way::template of<From, To>(x[i], scale[i], bias[i]);
  } else {
    const double s = *scale, b = *bias;
    for (size_t i = 0; i < n; ++i) y[i] = Way::template of<From, To>(x[i], s, b);
  }
}

template <class Integer>
constexpr void list(obn::quantization::Kernels& t, size_t integer) {
  t.quantize[0][integer] = row<Quantize, int32_t, Integer>;
  t.quantize[1][integer] = row<Quantize, float, Integer>;
  t.dequantize[integer][0] = row<Dequantize, Integer, int32_t>;
  t.dequantize[integer][1] = row<Dequantize, Integer, float>;
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

constinit const obn::quantization::Kernels kernels = table();

}  // namespace obn::OBN_TARGET::quantization
