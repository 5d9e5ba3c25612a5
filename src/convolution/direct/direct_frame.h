// What the kernel files of direct convolution share. Letters and frames as in direct.h and direct_kernels.cpp.
#pragma once

#include <cstddef>

#include "base/integer.h"
#include "convolution/direct/direct.h"

#include "simd/tile.h"

namespace obn::OBN_TARGET::convolution::direct {

using obn::convolution::Planes;
using obn::convolution::direct::Block;
using obn::convolution::direct::Correlation;
using obn::convolution::direct::kFrameSlack;
using obn::convolution::direct::Kernels;
using obn::convolution::direct::Phase;
using obn::convolution::direct::Tap;
using obn::convolution::direct::Taps;
using obn::convolution::direct::WeightSum;

constexpr size_t kLine = 16;  // floats of a cache line

OBN_INLINE size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// Panel p of `rows` rows, cut as row_panels() says.
struct Panel {
  size_t first;
  size_t rows;
};
OBN_INLINE Panel panel_of(size_t rows, size_t p) {
  const size_t panels = row_panels(rows), each = rows / panels, more = rows % panels;
  return {p * each + smaller(p, more), each + (p < more)};
}

// The output channels of a panel.
OBN_INLINE Panel panel_of(const Correlation& call, size_t p) {
  if (!call.outputs_in_lanes) return panel_of(call.out_channels, p);
  return {p * kTileColumns, smaller(kTileColumns, call.out_channels - p * kTileColumns)};
}
// How many channels lie side by side in its packed weights.
OBN_INLINE size_t packed_rows(const Correlation& call, const Panel& panel) {
  return call.outputs_in_lanes ? kTileColumns : panel.rows;
}

OBN_INLINE void fill_zero(float* p, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(p + i, F{});
  if (i < n) store_first(p + i, F{}, n - i);
}

// Lanes [low, high) of the vector at p; the others are 0 and their memory is not touched.
OBN_INLINE F load_between(const float* p, size_t low, size_t high) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << high) - (1u << low)), p));
#else
  float lanes[kLanes] = {};
  for (size_t i = low; i < high; ++i) lanes[i] = p[i];
  return load(lanes);
#endif
}

// Memory that will be needed soon: `lines` cache lines of each of some planes.
struct Ahead {
  const float* start;
  size_t plane;
  size_t lines;
  size_t planes = 0;
  size_t taken = 0;  // lines of the first plane
};

// `values` of each of some planes; planes that touch become one.
OBN_INLINE Ahead ahead_of(const float* start, size_t plane, size_t values, size_t planes) {
  if (values < plane || planes == 0) return {start, plane, divide_up(values, kLine), planes};
  return {start, plane, divide_up(planes * plane, kLine), 1};
}

// The first of the next lines; as many of them as there are in a row, at most `most`.
OBN_INLINE size_t take_lines(Ahead* ahead, size_t most, const float** first) {
  if (ahead->planes == 0) return 0;
  const size_t n = smaller(most, ahead->lines - ahead->taken);
  *first = ahead->start + ahead->taken * kLine;
  ahead->taken += n;
  if (ahead->taken == ahead->lines) {
    ahead->taken = 0;
    ahead->start += ahead->plane;
    --ahead->planes;
  }
  return n;
}

// direct_frame_kernels.cpp
// The frame of the block whose first position is (row, column), from `channels` planes of the input. Slots are written
// in the order in which they lie.
void copy_frame(const Taps& x, const Taps& y, const Block& b, const float* planes, size_t plane, size_t plane_row,
                size_t channels, size_t row, size_t column, float* frame);

// direct_weights_kernels.cpp
void sum_weights(const WeightSum& call, size_t piece, float* scratch);
void finish_weights(const WeightSum& call, size_t group, size_t lanes_of_outputs);

}  // namespace obn::OBN_TARGET::convolution::direct
