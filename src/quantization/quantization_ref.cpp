// The obvious formulas (docs/interface/quantization.md).
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/types.h"
#include "quantization/quantization.h"

namespace obn::quantization::ref {

namespace {

// Nearest, ties to even, within the type; NaN becomes 0.
double to_integer(double v, BNNSDataType type) {
  if (std::isnan(v)) return 0.0;
  const bool is_signed = static_cast<uint32_t>(type) & BNNSDataTypeIntBit;
  const double range = std::ldexp(1.0, static_cast<int>(bits_of(type)));
  const double low = is_signed ? -range / 2 : 0.0, high = (is_signed ? range / 2 : range) - 1;
  return std::clamp(std::nearbyint(v), low, high);
}

}  // namespace

double quantize(double x, double scale, double bias, BNNSDataType to) { return to_integer(scale * x + bias, to); }

double dequantize(double x, double scale, double bias, BNNSDataType to) {
  const double y = (x - bias) / scale;
  return to == BNNSDataTypeInt32 ? to_integer(y, to) : y;
}

}  // namespace obn::quantization::ref
