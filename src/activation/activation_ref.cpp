// The same functions as plain formulas in double precision, one value at a time, and the values of every data type.
// Tests compare the kernels with this file; conversions, integer functions and Gumbel noise are computed by it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>

#include "activation/activation.h"
#include "base/types.h"

namespace obn::activation::ref {
namespace {

constexpr double kSeluScale = 1.0507009873554805;
constexpr double kSeluAlpha = 1.6732632423543772;
constexpr double kSigmoidGelu = 1.702;
constexpr double kHalfRoot = std::numbers::sqrt2 / 2;       // √½
constexpr double kErfSlope = 2 * std::numbers::inv_sqrtpi;  // of the error function at 0

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
double normal(double x) { return 0.5 * std::erfc(-x * kHalfRoot); }
double normal_density(double x) { return std::exp(-0.5 * x * x) * kErfSlope * kHalfRoot * 0.5; }
double sech_squared(double x) {  // 1 - tanh²
  double s = std::exp(-2.0 * std::fabs(x));
  return 4.0 * s / ((1.0 + s) * (1.0 + s));
}
double x_times_sigmoid(double x, double k) { return x == -INFINITY ? 0.0 : x * sigmoid(k * x); }
double x_times_sigmoid_slope(double x, double k) {
  if (std::isinf(x)) return x > 0.0 ? 1.0 : 0.0;
  double s = sigmoid(k * x);
  return s + k * x * s * (1.0 - s);
}
double gelu_argument(double x, double alpha, double beta) { return alpha * (x + beta * x * x * x); }

double tanh_shrink(double x) {  // the difference cancels for small x; its series does not
  if (std::fabs(x) > 0.01) return x - std::tanh(x);
  return x * x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0 - x * x * (17.0 / 315.0)));
}

// The x >= 0 with x - tanh x = y >= 0. The function is convex there, so that Newton's method started right of the root
// only comes down to it: x³/3 <= … gives cbrt(3y) <= x <= y + 1, and both bounds are tight at their end.
double tanh_shrink_inverse(double y) {
  if (!(y > 0.0) || std::isinf(y)) return y;
  double x = std::fmin(y + 1.0, std::cbrt(3.0 * y) + y);
  for (int step = 0; step < 50; ++step) {
    double t = std::tanh(x);
    double next = x - (tanh_shrink(x) - y) / (t * t);
    if (std::fabs(next - x) <= 1e-14 * x) return next;
    x = next;
  }
  return x;
}

// The x >= 0 with x·σ(1.702x) = y >= 0; x/2 <= y <= x, and the slope there is never below 1/2.
double gelu_sigmoid_inverse(double y) {
  if (!(y > 0.0) || std::isinf(y)) return y;
  double x = y < 1.0 ? 2.0 * y : y + 0.5;
  for (int step = 0; step < 50; ++step) {
    double next = x - (x_times_sigmoid(x, kSigmoidGelu) - y) / x_times_sigmoid_slope(x, kSigmoidGelu);
    if (std::fabs(next - x) <= 1e-14 * x) return next;
    x = next;
  }
  return x;
}

}  // namespace

double forward(Function function, double x, double alpha, double beta) {
  switch (function) {
    case BNNSActivationFunctionIdentity: return x;
    case BNNSActivationFunctionRectifiedLinear: return x < 0.0 ? 0.0 : x;
    case BNNSActivationFunctionLeakyRectifiedLinear: return x < 0.0 ? alpha * x : x;
    case BNNSActivationFunctionSigmoid: return sigmoid(x);
    case BNNSActivationFunctionTanh: return std::tanh(x);
    case BNNSActivationFunctionScaledTanh: return alpha * std::tanh(beta * x);
    case BNNSActivationFunctionAbs: return std::fabs(x);
    case BNNSActivationFunctionLinear: return alpha * x;
    case BNNSActivationFunctionClamp: return std::isnan(x) ? x : std::fmin(std::fmax(x, alpha), beta);
    case BNNSActivationFunctionGELUApproximation:
      return x == -INFINITY ? 0.0 : x * sigmoid(2.0 * gelu_argument(x, alpha, beta));
    case BNNSActivationFunctionHardSigmoid:
      return std::isnan(x) ? x : std::fmax(0.0, std::fmin(1.0, alpha * x + beta));
    case BNNSActivationFunctionSoftplus: return std::isnan(x) ? x : alpha * softplus(beta * x);
    case BNNSActivationFunctionSoftsign: return std::isinf(x) ? std::copysign(1.0, x) : x / (1.0 + std::fabs(x));
    case BNNSActivationFunctionELU: return x < 0.0 ? alpha * std::expm1(x) : x;
    case BNNSActivationFunctionClampedLeakyRectifiedLinear:
      return std::isnan(x) ? x : std::fmin(x < 0.0 ? alpha * x : x, beta);
    case BNNSActivationFunctionLinearWithBias: return alpha * x + beta;
    case BNNSActivationFunctionLogSigmoid: return std::isnan(x) ? x : -softplus(-x);
    case BNNSActivationFunctionSELU: return kSeluScale * (x < 0.0 ? kSeluAlpha * std::expm1(x) : x);
    case BNNSActivationFunctionCELU: return x < 0.0 ? alpha * std::expm1(x / alpha) : x;
    case BNNSActivationFunctionHardShrink: return std::fabs(x) < std::fabs(alpha) ? 0.0 : x;
    case BNNSActivationFunctionSoftShrink:
      return std::fabs(x) < std::fabs(alpha) ? 0.0 : x - std::copysign(alpha, x);
    case BNNSActivationFunctionTanhShrink: return tanh_shrink(x);
    case BNNSActivationFunctionThreshold: return x <= alpha ? beta : x;
    case BNNSActivationFunctionPReLUPerChannel: return x < 0.0 ? alpha * x : x;
    case BNNSActivationFunctionHardSwish:
      return x <= -3.0 ? 0.0 : (x >= 3.0 ? x : x * (x + 3.0) / 6.0);
    case BNNSActivationFunctionSiLU: return x_times_sigmoid(x, 1.0);
    case BNNSActivationFunctionReLU6: return std::isnan(x) ? x : std::fmin(std::fmax(x, 0.0), 6.0);
    case BNNSActivationFunctionErf: return std::erf(x);
    case BNNSActivationFunctionGELU: return x == -INFINITY ? 0.0 : x * normal(x);
    case BNNSActivationFunctionGELUApproximationSigmoid: return x_times_sigmoid(x, kSigmoidGelu);
    default: return std::numeric_limits<double>::quiet_NaN();  // not element-wise
  }
}

double slope_from_x(Function function, double x, double alpha, double beta) {
  switch (function) {
    case BNNSActivationFunctionIdentity: return 1.0;
    case BNNSActivationFunctionRectifiedLinear: return x <= 0.0 ? 0.0 : 1.0;
    case BNNSActivationFunctionLeakyRectifiedLinear: return x > 0.0 ? 1.0 : alpha;
    case BNNSActivationFunctionSigmoid: return sigmoid(x) * sigmoid(-x);
    case BNNSActivationFunctionTanh: return sech_squared(x);
    case BNNSActivationFunctionScaledTanh: return alpha * beta * sech_squared(beta * x);
    case BNNSActivationFunctionAbs: return x > 0.0 ? 1.0 : (x < 0.0 ? -1.0 : 0.0 * x);
    case BNNSActivationFunctionLinear: return alpha;
    case BNNSActivationFunctionClamp: return alpha <= x && x <= beta ? 1.0 : 0.0;
    case BNNSActivationFunctionGELUApproximation: {
      if (std::isinf(x)) return x > 0.0 ? 1.0 : 0.0;
      double s = sigmoid(2.0 * gelu_argument(x, alpha, beta));
      return s + x * s * (1.0 - s) * 2.0 * alpha * (1.0 + 3.0 * beta * x * x);
    }
    case BNNSActivationFunctionHardSigmoid: return 0.0 < alpha * x + beta && alpha * x + beta < 1.0 ? alpha : 0.0;
    case BNNSActivationFunctionSoftplus: return alpha * beta * sigmoid(beta * x);
    case BNNSActivationFunctionSoftsign: return 1.0 / ((1.0 + std::fabs(x)) * (1.0 + std::fabs(x)));
    case BNNSActivationFunctionELU: return x < 0.0 ? alpha * std::exp(x) : 1.0;
    case BNNSActivationFunctionClampedLeakyRectifiedLinear:
      return (x < 0.0 ? alpha * x : x) < beta ? (x < 0.0 ? alpha : 1.0) : 0.0;
    case BNNSActivationFunctionLinearWithBias: return alpha;
    case BNNSActivationFunctionLogSigmoid: return sigmoid(-x);
    case BNNSActivationFunctionSELU: return kSeluScale * (x < 0.0 ? kSeluAlpha * std::exp(x) : 1.0);
    case BNNSActivationFunctionCELU: return x < 0.0 ? std::exp(x / alpha) : 1.0;
    case BNNSActivationFunctionHardShrink: return std::fabs(x) < std::fabs(alpha) ? 0.0 : 1.0;
    case BNNSActivationFunctionSoftShrink: return std::fabs(x) < std::fabs(alpha) ? 0.0 : 1.0;
    case BNNSActivationFunctionTanhShrink: return std::tanh(x) * std::tanh(x);
    case BNNSActivationFunctionThreshold: return x <= alpha ? 0.0 : 1.0;
    case BNNSActivationFunctionPReLUPerChannel: return x > 0.0 ? 1.0 : alpha;
    case BNNSActivationFunctionHardSwish: return x <= -3.0 ? 0.0 : (x >= 3.0 ? 1.0 : (2.0 * x + 3.0) / 6.0);
    case BNNSActivationFunctionSiLU: return x_times_sigmoid_slope(x, 1.0);
    case BNNSActivationFunctionReLU6: return 0.0 < x && x < 6.0 ? 1.0 : 0.0;
    case BNNSActivationFunctionErf: return kErfSlope * std::exp(-x * x);
    case BNNSActivationFunctionGELU:
      return std::isinf(x) ? normal(x) : normal(x) + x * normal_density(x);
    case BNNSActivationFunctionGELUApproximationSigmoid: return x_times_sigmoid_slope(x, kSigmoidGelu);
    default: return std::numeric_limits<double>::quiet_NaN();
  }
}

double slope_from_y(Function function, double y, double alpha, double beta) {
  switch (function) {
    case BNNSActivationFunctionIdentity: return 1.0;
    case BNNSActivationFunctionRectifiedLinear: return y <= 0.0 ? 0.0 : 1.0;
    case BNNSActivationFunctionLeakyRectifiedLinear: return y > 0.0 ? 1.0 : alpha;
    case BNNSActivationFunctionSigmoid: return y * (1.0 - y);
    case BNNSActivationFunctionTanh: return 1.0 - y * y;
    case BNNSActivationFunctionScaledTanh: return beta * (alpha - y * y / alpha);
    case BNNSActivationFunctionLinear: return alpha;
    case BNNSActivationFunctionClamp: return alpha < y && y < beta ? 1.0 : 0.0;
    case BNNSActivationFunctionHardSigmoid: return 0.0 < y && y < 1.0 ? alpha : 0.0;
    case BNNSActivationFunctionSoftplus: return alpha * beta * -std::expm1(-y / alpha);
    case BNNSActivationFunctionSoftsign: return (1.0 - std::fabs(y)) * (1.0 - std::fabs(y));
    case BNNSActivationFunctionELU: return y < 0.0 ? y + alpha : 1.0;
    case BNNSActivationFunctionClampedLeakyRectifiedLinear: return y < beta ? (y < 0.0 ? alpha : 1.0) : 0.0;
    case BNNSActivationFunctionLinearWithBias: return alpha;
    case BNNSActivationFunctionLogSigmoid: return -std::expm1(y);
    case BNNSActivationFunctionSELU: return y < 0.0 ? y + kSeluScale * kSeluAlpha : kSeluScale;
    case BNNSActivationFunctionCELU: return y < 0.0 ? y / alpha + 1.0 : 1.0;
    case BNNSActivationFunctionHardShrink: return y == 0.0 ? 0.0 : 1.0;
    case BNNSActivationFunctionSoftShrink: return y == 0.0 ? 0.0 : 1.0;
    case BNNSActivationFunctionTanhShrink:
      return slope_from_x(function, tanh_shrink_inverse(std::fabs(y)), alpha, beta);  // even
    case BNNSActivationFunctionThreshold: return y <= alpha ? 0.0 : 1.0;
    case BNNSActivationFunctionPReLUPerChannel: return y > 0.0 ? 1.0 : alpha;
    case BNNSActivationFunctionReLU6: return 0.0 < y && y < 6.0 ? 1.0 : 0.0;
    case BNNSActivationFunctionGELUApproximationSigmoid:
      return slope_from_x(function, gelu_sigmoid_inverse(y), alpha, beta);
    default: return std::numeric_limits<double>::quiet_NaN();  // y does not determine it
  }
}

void tanh_shrink_from_y(const float* y, const float* dy, float* dx, size_t n, float alpha, float beta) {
  for (size_t i = 0; i < n; ++i)
    dx[i] = static_cast<float>(dy[i] * slope_from_y(BNNSActivationFunctionTanhShrink, y[i], alpha, beta));
}

void gelu_sigmoid_from_y(const float* y, const float* dy, float* dx, size_t n, float alpha, float beta) {
  for (size_t i = 0; i < n; ++i)
    dx[i] = static_cast<float>(dy[i] * slope_from_y(BNNSActivationFunctionGELUApproximationSigmoid, y[i], alpha, beta));
}

// y_i = e^(x_i - m) / Σ_j e^(x_j - m), or its logarithm, whose sum leaves out NaN
void softmax(const float* x, float* y, size_t n, size_t step, bool log) {
  double m = -INFINITY, total = 0.0;
  for (size_t i = 0; i < n; ++i)
    if (x[i * step] > m) m = x[i * step];  // not fmax: gcc 12 for ARM breaks down over it
  for (size_t i = 0; i < n; ++i)
    if (const double e = std::exp(x[i * step] - m); !log || !std::isnan(e)) total += e;
  if (log && total == 0.0) total = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < n; ++i) {
    double shifted = x[i * step] - m;
    y[i * step] = static_cast<float>(log ? shifted - std::log(total) : std::exp(shifted) / total);
  }
}

// dx_i = y_i·(dy_i - Σ_j dy_j·y_j), or dy_i - e^y_i·Σ_j dy_j
void softmax_backward(const float* y, const float* dy, float* dx, size_t n, size_t step, bool log) {
  double total = 0.0;
  for (size_t i = 0; i < n; ++i) total += log ? dy[i * step] : static_cast<double>(dy[i * step]) * y[i * step];
  for (size_t i = 0; i < n; ++i) {
    size_t k = i * step;
    dx[k] = static_cast<float>(log ? dy[k] - std::exp(static_cast<double>(y[k])) * total : y[k] * (dy[k] - total));
  }
}

double gumbel(double u, double alpha, double beta) { return -std::log(-std::log(alpha * u + beta) + beta); }

// ---- single values of any type ----

namespace {

bool is_signed(BNNSDataType type) { return static_cast<uint32_t>(type) & BNNSDataTypeIntBit; }
bool is_unsigned(BNNSDataType type) { return static_cast<uint32_t>(type) & BNNSDataTypeUIntBit; }
bool is_integer(BNNSDataType type) { return is_signed(type) || is_unsigned(type); }

Whole smallest(BNNSDataType type) { return is_signed(type) ? -(Whole{1} << (bits_of(type) - 1)) : 0; }
Whole largest(BNNSDataType type) { return (Whole{1} << (bits_of(type) - is_signed(type))) - 1; }

template <class T>
T get(const void* data, size_t index) {
  return static_cast<const T*>(data)[index];
}
template <class T>
void put(const void* data, size_t index, Whole value) {
  static_cast<T*>(const_cast<void*>(data))[index] = static_cast<T>(value);
}

// Packed values: the first in the low bits; one may lie across two bytes.
uint32_t get_packed(const void* data, size_t width, size_t index) {
  const uint8_t* byte = static_cast<const uint8_t*>(data) + index * width / 8;
  size_t shift = index * width % 8;
  uint32_t two = byte[0];
  if (shift + width > 8) two |= static_cast<uint32_t>(byte[1]) << 8;
  return (two >> shift) & ((1u << width) - 1);
}
void put_packed(const void* data, size_t width, size_t index, uint32_t value) {
  uint8_t* byte = static_cast<uint8_t*>(const_cast<void*>(data)) + index * width / 8;
  size_t shift = index * width % 8;
  uint32_t mask = ((1u << width) - 1) << shift, placed = value << shift & mask;
  byte[0] = static_cast<uint8_t>((byte[0] & ~mask) | placed);
  if (shift + width > 8) byte[1] = static_cast<uint8_t>((byte[1] & ~(mask >> 8)) | placed >> 8);
}

Values table_of(const Values& values) {
  return {values.table, values.table_type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
}

}  // namespace

bool is_whole(const Values& values) {
  if (is_indexed(values.type)) return is_whole(table_of(values));
  if (values.type == BNNSDataTypeBoolean) return true;
  return is_integer(values.type) && values.scale == 1.0f && values.bias == 0.0f;
}

Whole get_stored(const Values& from, size_t index) {
  const size_t width = bits_of(from.type);
  const bool with_sign = is_signed(from.type);
  switch (width) {
    case 8: return with_sign ? Whole{get<int8_t>(from.data, index)} : Whole{get<uint8_t>(from.data, index)};
    case 16: return with_sign ? Whole{get<int16_t>(from.data, index)} : Whole{get<uint16_t>(from.data, index)};
    case 32: return with_sign ? Whole{get<int32_t>(from.data, index)} : Whole{get<uint32_t>(from.data, index)};
    case 64: return with_sign ? Whole{get<int64_t>(from.data, index)} : Whole{get<uint64_t>(from.data, index)};
    default: {
      Whole value = get_packed(from.data, width, index);
      return value > largest(from.type) ? value - (Whole{1} << width) : value;  // only a signed type can exceed it
    }
  }
}

void put_stored(const Values& to, size_t index, Whole value) {
  const size_t width = bits_of(to.type);
  if (value < smallest(to.type)) value = smallest(to.type);
  if (value > largest(to.type)) value = largest(to.type);
  switch (width) {
    case 8: return put<uint8_t>(to.data, index, value);
    case 16: return put<uint16_t>(to.data, index, value);
    case 32: return put<uint32_t>(to.data, index, value);
    case 64: return put<uint64_t>(to.data, index, value);
    default: return put_packed(to.data, width, index, static_cast<uint32_t>(value));
  }
}

Whole get_whole(const Values& from, size_t index) {
  if (is_indexed(from.type)) return get_whole(table_of(from), static_cast<size_t>(get_stored(from, index)));
  Whole stored = get_stored(from, index);
  return from.type == BNNSDataTypeBoolean ? stored != 0 : stored;
}

namespace {

double get_real(const Values& from, size_t index) {
  if (is_indexed(from.type)) return get_real(table_of(from), static_cast<size_t>(get_stored(from, index)));
  switch (from.type) {
    case BNNSDataTypeFloat32: return get<float>(from.data, index);
    case BNNSDataTypeFloat16: return float_of_float16(get<uint16_t>(from.data, index));
    case BNNSDataTypeBFloat16: return float_of_bfloat16(get<uint16_t>(from.data, index));
    case BNNSDataTypeBoolean: return get<uint8_t>(from.data, index) != 0;
    default: return static_cast<double>(from.scale) * static_cast<double>(get_stored(from, index)) + from.bias;
  }
}

void put_real(const Values& to, size_t index, double value) {
  switch (to.type) {
    case BNNSDataTypeFloat32:
      static_cast<float*>(const_cast<void*>(to.data))[index] = static_cast<float>(value);
      return;
    case BNNSDataTypeFloat16: return put<uint16_t>(to.data, index, float16_of_float(static_cast<float>(value)));
    case BNNSDataTypeBFloat16: return put<uint16_t>(to.data, index, bfloat16_of_float(static_cast<float>(value)));
    case BNNSDataTypeBoolean: return put<uint8_t>(to.data, index, value != 0.0);
    default: {
      double stored = std::nearbyint(value / to.scale - to.bias);
      if (std::isnan(stored)) stored = 0.0;
      stored = std::fmin(std::fmax(stored, -0x1p65), 0x1p65);  // far outside every type, and a Whole
      return put_stored(to, index, static_cast<Whole>(stored));
    }
  }
}

// The two above for whole rows of the common types, without a choice per value.
void get_floats(const Values& from, size_t index, size_t stride, size_t n, double* row) {
  const float* p = static_cast<const float*>(from.data) + index;
  for (size_t i = 0; i < n; ++i) row[i] = p[i * stride];
}
void put_floats(const Values& to, size_t index, size_t stride, size_t n, const double* row) {
  float* p = static_cast<float*>(const_cast<void*>(to.data)) + index;
  for (size_t i = 0; i < n; ++i) p[i * stride] = static_cast<float>(row[i]);
}
template <class T>
void get_integers(const Values& from, size_t index, size_t stride, size_t n, double* row) {
  const T* p = static_cast<const T*>(from.data) + index;
  const double scale = from.scale, bias = from.bias;
  for (size_t i = 0; i < n; ++i) row[i] = scale * p[i * stride] + bias;
}
template <class T>
void put_integers(const Values& to, size_t index, size_t stride, size_t n, const double* row) {
  T* p = static_cast<T*>(const_cast<void*>(to.data)) + index;
  const double scale = to.scale, bias = to.bias;
  constexpr double kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to a whole number, ties to even
  for (size_t i = 0; i < n; ++i) {
    double v = row[i] / scale - bias;
    v = v == v ? v : 0.0;
    v = v < kLow ? kLow : (v > kHigh ? kHigh : v);
    p[i * stride] = static_cast<T>(static_cast<int64_t>((v + kMagic) - kMagic));
  }
}

}  // namespace

void get_reals(const Values& from, size_t index, size_t stride, size_t n, double* row) {
  switch (from.type) {
    case BNNSDataTypeFloat32: return get_floats(from, index, stride, n, row);
    case BNNSDataTypeInt8: return get_integers<int8_t>(from, index, stride, n, row);
    case BNNSDataTypeInt16: return get_integers<int16_t>(from, index, stride, n, row);
    case BNNSDataTypeInt32: return get_integers<int32_t>(from, index, stride, n, row);
    case BNNSDataTypeUInt8: return get_integers<uint8_t>(from, index, stride, n, row);
    case BNNSDataTypeUInt16: return get_integers<uint16_t>(from, index, stride, n, row);
    case BNNSDataTypeUInt32: return get_integers<uint32_t>(from, index, stride, n, row);
    default:
      for (size_t i = 0; i < n; ++i) row[i] = get_real(from, index + i * stride);
  }
}

void put_reals(const Values& to, size_t index, size_t stride, size_t n, const double* row) {
  switch (to.type) {
    case BNNSDataTypeFloat32: return put_floats(to, index, stride, n, row);
    case BNNSDataTypeInt8: return put_integers<int8_t>(to, index, stride, n, row);
    case BNNSDataTypeInt16: return put_integers<int16_t>(to, index, stride, n, row);
    case BNNSDataTypeInt32: return put_integers<int32_t>(to, index, stride, n, row);
    case BNNSDataTypeUInt8: return put_integers<uint8_t>(to, index, stride, n, row);
    case BNNSDataTypeUInt16: return put_integers<uint16_t>(to, index, stride, n, row);
    case BNNSDataTypeUInt32: return put_integers<uint32_t>(to, index, stride, n, row);
    default:
      for (size_t i = 0; i < n; ++i) put_real(to, index + i * stride, row[i]);
  }
}

void put_whole(const Values& to, size_t index, Whole value) {
  if (to.type == BNNSDataTypeBoolean) return put<uint8_t>(to.data, index, value != 0);
  if (is_whole(to)) return put_stored(to, index, value);
  // A float is rounded once: not through double.
  put_real(to, index, is_float(to.type) ? static_cast<float>(value) : static_cast<double>(value));
}

Whole integer_linear(Whole x, int32_t scale, int32_t offset, int32_t shift) { return (scale * x + offset) >> shift; }

}  // namespace obn::activation::ref
