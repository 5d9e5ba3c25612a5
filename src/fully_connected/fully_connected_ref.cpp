// Fully connected, the obvious loops: the kernels' formulas with float64 sums. Letters as in fully_connected.h.
#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "fully_connected/fully_connected.h"

namespace obn::fully_connected {
namespace {

float value_of(BNNSDataType type, const void* data, size_t index) {
  if (type == BNNSDataTypeFloat32) return static_cast<const float*>(data)[index];
  const uint16_t half = static_cast<const uint16_t*>(data)[index];
  return type == BNNSDataTypeFloat16 ? float_of_float16(half) : float_of_bfloat16(half);
}

void put_value(BNNSDataType type, void* data, size_t index, double value) {
  const float rounded = static_cast<float>(value);
  if (type == BNNSDataTypeFloat32) {
    static_cast<float*>(data)[index] = rounded;
  } else {
    static_cast<uint16_t*>(data)[index] =
        type == BNNSDataTypeFloat16 ? float16_of_float(rounded) : bfloat16_of_float(rounded);
  }
}

// out(s, r) = Σ_c m(r, c)·v(s, c)
void dot(const Matrix& m, const Part& part, const Floats& v, size_t n, float* out, size_t out_row, bool accumulate) {
  for (size_t s = 0; s < n; ++s) {
    for (size_t r = part.first; r < part.first + part.rows; ++r) {
      double sum = accumulate ? out[s * out_row + r] : 0.0;
      for (size_t c = 0; c < m.columns; ++c)
        sum += static_cast<double>(value_of(m.type, m.data, r * m.row + c)) * v.data[s * v.row + c];
      out[s * out_row + r] = static_cast<float>(sum);
    }
  }
}

// out(s, c) = Σ_r u(s, r)·m(r, c), the other way through the same matrix
void combine(const Matrix& m, const Part& part, const Floats& u, size_t n, float* out, size_t out_row,
             bool accumulate) {
  for (size_t s = 0; s < n; ++s) {
    for (size_t c = 0; c < m.columns; ++c) {
      double sum = accumulate ? out[s * out_row + c] : 0.0;
      for (size_t r = part.first; r < part.first + part.rows; ++r)
        sum += static_cast<double>(u.data[s * u.row + r]) * value_of(m.type, m.data, r * m.row + c);
      out[s * out_row + c] = static_cast<float>(sum);
    }
  }
}

// g(r, c) = Σ_s u(s, r)·v(s, c), from y(s, r) = Σ_c m(r, c)·v(s, c) with u = dy
void outer(const Floats& u, const Floats& v, size_t n, size_t columns, const Part& part, const Gradient& g) {
  for (size_t r = part.first; r < part.first + part.rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const size_t index = r * g.row + c * g.column;
      double sum = g.accumulate ? value_of(g.type, g.data, index) : 0.0;
      for (size_t s = 0; s < n; ++s) sum += static_cast<double>(u.data[s * u.row + r]) * v.data[s * v.row + c];
      put_value(g.type, g.data, index, sum);
    }
  }
}

}  // namespace

const Kernels reference = {dot, combine, outer, 0};

}  // namespace obn::fully_connected
