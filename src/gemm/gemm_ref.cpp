// The formula as it stands, summed in float64: what the engine is compared with.
#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "gemm/gemm.h"

namespace obn::gemm {
namespace {

double value(const Operand& o, size_t i, size_t j) {
  const size_t at = i * o.row + j * o.column;
  if (o.type == BNNSDataTypeFloat32) return static_cast<const float*>(o.data)[at];
  const uint16_t half = static_cast<const uint16_t*>(o.data)[at];
  return o.type == BNNSDataTypeBFloat16 ? float_of_bfloat16(half) : float_of_float16(half);
}

}  // namespace

void run_reference(const Product& p, size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) {
    float* c = p.c + i * p.c_row;
    for (size_t j = 0; j < p.n; ++j) {
      double sum = 0.0;
      for (size_t q = 0; q < p.k; ++q) sum += value(p.a, i, q) * value(p.b, q, j);
      sum *= p.alpha;
      if (p.row_bias) sum += p.row_bias[i];
      if (p.column_bias) sum += p.column_bias[j];
      c[j] = static_cast<float>(p.accumulate ? c[j] + sum : sum);
    }
    if (p.activation) p.activation->forward(c, p.n);
  }
}

}  // namespace obn::gemm
