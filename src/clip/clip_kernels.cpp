// The loops, once per target; letters as in clip.h.
#include <cstddef>
#include <cstring>

#include "clip/clip.h"
#include "simd/convert.h"
#include "simd/wide.h"

namespace obn::OBN_TARGET::clip {

namespace {

typedef float Narrow __attribute__((vector_size(4 * kWideLanes)));

OBN_INLINE W load_wide(const float* p) {
  Narrow v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, W);
}

double sum_squares(const float* x, size_t n) {
  W sums[4] = {};
  size_t i = 0;
  for (; i + 4 * kWideLanes <= n; i += 4 * kWideLanes) {
#pragma GCC unroll 4
    for (size_t k = 0; k < 4; ++k) {
      const W v = load_wide(x + i + k * kWideLanes);
      sums[k] = fma(v, v, sums[k]);
    }
  }
  const W four = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double sum = 0.0;
  for (size_t k = 0; k < kWideLanes; ++k) sum += four[k];
  for (; i < n; ++i) sum = fma(static_cast<double>(x[i]), static_cast<double>(x[i]), sum);
  return sum;
}

// The others are plain: the compiler makes vectors of them.

void add_squares(const float* x, double* sums, size_t n) {
  for (size_t i = 0; i < n; ++i) sums[i] = fma(static_cast<double>(x[i]), static_cast<double>(x[i]), sums[i]);
}

void scale(const float* x, const double* factors, bool factors_move, float* y, bool accumulate, size_t n) {
  const double factor = *factors;
  if (accumulate) {
    const size_t step = factors_move;
    for (size_t i = 0; i < n; ++i)
      y[i] = static_cast<float>(fma(static_cast<double>(x[i]), factors[i * step], static_cast<double>(y[i])));
  } else if (factors_move) {
    for (size_t i = 0; i < n; ++i) y[i] = static_cast<float>(static_cast<double>(x[i]) * factors[i]);
  } else {
    for (size_t i = 0; i < n; ++i) y[i] = static_cast<float>(static_cast<double>(x[i]) * factor);
  }
}

void clamp(const float* x, float low, float high, float* y, size_t n) {
  const F least = splat(low), most = splat(high);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, max(least, min(most, load(x + i))));
  if (i < n) store_first(y + i, max(least, min(most, load_first(x + i, n - i))), n - i);
}

constexpr obn::clip::Kernels kernels = {sum_squares, add_squares, scale, clamp, load_row, store_row};

}  // namespace

}  // namespace obn::OBN_TARGET::clip

constinit const obn::clip::Kernels obn::clip::Compiled::OBN_TARGET = obn::OBN_TARGET::clip::kernels;
