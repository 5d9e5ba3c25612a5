// What the kernel files of narrow convolution share. Letters and the stage as in narrow.h.
#pragma once

#include <cstddef>

#include "convolution/narrow.h"
#include "convolution/rows.h"

namespace obn::OBN_TARGET::convolution::narrow {

using obn::convolution::Planes;
using obn::convolution::Problem;
using obn::convolution::narrow::kMostTaps;
using obn::convolution::narrow::Plan;
using obn::convolution::narrow::Taps;

// The next part of `left` things cut into the fewest parts of at most `limit`, evenly.
OBN_INLINE size_t next_part(size_t left, size_t limit) {
  const size_t parts = (left + limit - 1) / limit;
  return (left + parts - 1) / parts;
}

// The copies of one sample's x under rows [from, from + count) of y, in the order in which they lie: each may spill
// into the next.
void stage_input(const Plan& plan, const Planes& x, size_t n, size_t from, size_t count, float* stage);
// The same less the centre of each channel, where there is one.
void stage_taps(const Plan& plan, const Taps& taps, size_t n, size_t from, size_t count, float* stage);

// narrow_moments_kernels.cpp
void tap_moments(const Plan& plan, const Taps& x, size_t first, size_t count, double* totals, std::byte* work);

}  // namespace obn::OBN_TARGET::convolution::narrow
