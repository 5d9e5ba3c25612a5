// Rows of images on their way to float32 and back. Compiled once per target.
#include "convolution/convolution_kernels.h"

#include <cstddef>

#include "simd/convert.h"

namespace obn::OBN_TARGET::convolution {

namespace {

void add(const float* a, float* sum, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(sum + i, load(sum + i) + load(a + i));
  for (; i < n; ++i) sum[i] += a[i];
}

// Short runs in float32 (four sums side by side), those in float64.
double sum_row(const float* row, size_t n) {
  constexpr size_t kRun = 1024;
  double total = 0.0;
  for (size_t begin = 0; begin < n; begin += kRun) {
    const size_t end = begin + kRun < n ? begin + kRun : n;
    F sums[4] = {};
    size_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes)
      for (size_t k = 0; k < 4; ++k) sums[k] += load(row + i + k * kLanes);
    for (; i + kLanes <= end; i += kLanes) sums[0] += load(row + i);
    if (i < end) sums[1] += load_first(row + i, end - i);
    total += static_cast<double>(sum((sums[0] + sums[1]) + (sums[2] + sums[3])));
  }
  return total;
}

constexpr obn::convolution::Kernels kernels = {load_row, store_row, add, sum_row};

}  // namespace

}  // namespace obn::OBN_TARGET::convolution

constinit const obn::convolution::Kernels obn::convolution::Compiled::OBN_TARGET = obn::OBN_TARGET::convolution::kernels;
