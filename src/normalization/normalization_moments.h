// Moments of blocks of values: what the kernel files that need statistics share. Kernel files only (see simd/vec.h).
#pragma once

#include <cstddef>

#include "normalization/normalization_values.h"

namespace obn::OBN_TARGET::normalization {

using obn::normalization::kShortRun;
using obn::normalization::Moments;

// normalization_kernels.cpp
Moments two_pass_moments(const float* x, size_t length);  // of up to kBlock values
Moments long_moments(const float* x, size_t length);      // of any number, block by block
void some_block_moments(const float* const* x, size_t count, size_t length, RunMoments* moments);

namespace {  // nothing here may be shared between targets

// Σ x of a run
OBN_INLINE F run_sum(const float* x, size_t n) {
  F total[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (size_t j = 0; j < 4; ++j) total[j] += load(x + i + j * kLanes);
  for (; i + kLanes <= n; i += kLanes) total[0] += load(x + i);
  if (i < n) total[1] += load_first(x + i, n - i);
  return (total[0] + total[1]) + (total[2] + total[3]);
}

// What the second pass says about n values, whose mean is nearly `about`.
OBN_INLINE Moments moments_of(double n, double inverse, float about, float first, float second) {
  const double off = static_cast<double>(first);
  const double squares = fnma(off * off, inverse, static_cast<double>(second));
  return {n, fma(off, inverse, static_cast<double>(about)), squares < 0.0 ? 0.0 : squares};
}

// One number out of all lanes, neighbours first: the sum that sum_each gives.
OBN_INLINE float pairwise_sum(F v) {
#pragma GCC unroll 4
  for (size_t n = kLanes; n > 1; n /= 2) {
    F even, odd;
    split_pairs(v, v, &even, &odd);
    v = even + odd;
  }
  return v[0];
}

// Σ d and Σ d² of a block, d = x - about.
struct Gathered {
  const float* x;
  F about;
  F first[4] = {}, second[4] = {};

  [[gnu::always_inline]] void add(size_t j, F v) {
    const F d = v - about;
    first[j] += d;
    second[j] = fma(d, d, second[j]);
  }
  [[gnu::always_inline]] void wide(size_t i, size_t ahead) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      if (ahead > 0) prefetch(x + i + j * kLanes + ahead);
      add(j, load(x + i + j * kLanes));
    }
  }
  [[gnu::always_inline]] void rest(size_t i, size_t length) {
    for (; i + kWide <= length; i += kWide) wide(i, 0);
    for (; i + kLanes <= length; i += kLanes) add(0, load(x + i));
    if (i < length) add(1, load_first(x + i, length - i, about));
  }
  [[gnu::always_inline]] F first_sum() const { return (first[0] + first[1]) + (first[2] + first[3]); }
  [[gnu::always_inline]] F second_sum() const { return (second[0] + second[1]) + (second[2] + second[3]); }
};

// Moments of a block take one pass, about the mean of its beginning. Where that turns out to be far from the mean of
// all, compared with how the values spread, digits would be lost: then two passes follow.
OBN_INLINE size_t beginning_of(size_t length) { return length < kWide ? length : kWide; }
OBN_INLINE Gathered gather_about(const float* x, size_t length) {
  const size_t n = beginning_of(length);
  return {x, splat(pairwise_sum(run_sum(x, n)) / static_cast<float>(n))};
}
OBN_INLINE Moments moments_about(const float* x, size_t length, float about, float first, float second) {
  const double n = static_cast<double>(length), inverse = 1.0 / n, off = static_cast<double>(first) * inverse;
  const double spread = static_cast<double>(second) * inverse;
  if (2.0 * off * off <= spread && spread <= __FLT_MAX__) return moments_of(n, inverse, about, first, second);
  return two_pass_moments(x, length);
}
OBN_INLINE Moments moments_of(const Gathered& g, size_t length) {
  return moments_about(g.x, length, g.about[0], pairwise_sum(g.first_sum()), pairwise_sum(g.second_sum()));
}

}  // namespace

}  // namespace obn::OBN_TARGET::normalization
