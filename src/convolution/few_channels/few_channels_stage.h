// What the kernel files share. Letters and the stage as in few_channels.h.
#pragma once

#include <cstddef>

#include "base/integer.h"
#include "convolution/few_channels/few_channels.h"
#include "convolution/rows.h"

namespace obn::OBN_TARGET::convolution::few_channels {

using obn::convolution::Planes;
using obn::convolution::Problem;
using obn::convolution::few_channels::kMostTaps;
using obn::convolution::few_channels::Plan;
using obn::convolution::few_channels::Taps;

// The next part of `left` things cut into the fewest parts of at most `limit`, evenly.
OBN_INLINE size_t next_part(size_t left, size_t limit) {
  const size_t parts = divide_up(left, limit);
  return divide_up(left, parts);
}

// The copies of one sample's x under rows [from, from + count) of y, in the order in which they lie: each may spill
// into the next.
void stage_input(const Plan& plan, const Planes& x, size_t n, size_t from, size_t count, float* stage);
// The same less the centre of each channel, where there is one.
void stage_taps(const Plan& plan, const Taps& taps, size_t n, size_t from, size_t count, float* stage);

// few_channels_moments_kernels.cpp
void tap_moments(const Plan& plan, const Taps& x, size_t first, size_t count, double* totals, std::byte* work);

}  // namespace obn::OBN_TARGET::convolution::few_channels

namespace obn::OBN_TARGET::convolution {
}
