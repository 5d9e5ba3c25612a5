// The obvious formulas (docs/interface/gather_scatter_topk_copy_misc.md, section 10).
#include <cmath>
#include <cstddef>

#include "clip/clip.h"

namespace obn::clip::ref {

double norm(const float* x, size_t x_stride, size_t n) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) {
    const double v = x[i * x_stride];
    sum += v * v;
  }
  return std::sqrt(sum);
}

void norm_backward(const float* x, double y, double dy, size_t stride, size_t n, double* dx) {
  // y = √Σ x², so ∂y/∂x = x / y
  for (size_t i = 0; i < n; ++i) dx[i] = y == 0.0 ? 0.0 : dy * static_cast<double>(x[i * stride]) / y;
}

void clip_by_norm(const float* x, size_t stride, size_t n, double max_norm, double* y) {
  const double factor = factor_of(norm(x, stride, n), max_norm);
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<double>(x[i * stride]) * factor;
}

}  // namespace obn::clip::ref
