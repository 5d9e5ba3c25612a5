// Sums of a weight gradient that were made in segments of the batch, for the desks.
#pragma once

#include <algorithm>
#include <cstddef>

namespace obn::convolution {

// to (n) = Σ sums (segments, n), in order and in float64; to is the first summand where accumulate.
inline void add_segments(const float* sums, size_t segments, size_t n, bool accumulate, float* to) {
  constexpr size_t kBlock = 64;
  for (size_t first = 0; first < n; first += kBlock) {
    const size_t count = std::min(kBlock, n - first);
    double totals[kBlock];
    for (size_t i = 0; i < count; ++i) totals[i] = accumulate ? to[first + i] : 0.0;
    for (size_t segment = 0; segment < segments; ++segment) {
      const float* some = sums + segment * n + first;
      for (size_t i = 0; i < count; ++i) totals[i] += some[i];
    }
    for (size_t i = 0; i < count; ++i) to[first + i] = static_cast<float>(totals[i]);
  }
}

}  // namespace obn::convolution
