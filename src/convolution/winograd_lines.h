// Lines of channels-last values on their way in and out, and tiles in the matrices of the points: what the benches of
// Winograd's ways share. Included by kernel files only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "convolution/winograd_tiles.h"
#include "simd/tile.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::winograd {

using obn::convolution::winograd::Block;
using obn::convolution::winograd::Image;
using obn::convolution::winograd::is_far;
using obn::convolution::winograd::kOutputs;
using obn::convolution::winograd::Lanes;
using obn::convolution::winograd::Matrices;
using obn::convolution::winograd::Range;

namespace {  // nothing here may be shared between targets

OBN_INLINE constexpr size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// ---- planes to channels-last and back ----

// Row y of `channels` (at most kLanes) planes from column x on becomes line (columns, kLanes); zeros where there is no
// image and where there is no channel.
OBN_INLINE void read_line(const Image& image, const float* plane, size_t channels, int64_t y, int64_t x,
                          size_t columns, float* line) {
  const int64_t end = static_cast<int64_t>(columns), left = x < 0 ? -x : 0;
  const int64_t right = image.columns - x < end ? image.columns - x : end;
  if (y < 0 || y >= image.rows || left >= right) {
    for (size_t j = 0; j < columns; ++j) store(line + j * kLanes, F{});
    return;
  }
  const size_t first = static_cast<size_t>(left), last = static_cast<size_t>(right);
  for (size_t j = 0; j < first; ++j) store(line + j * kLanes, F{});
  for (size_t j = last; j < columns; ++j) store(line + j * kLanes, F{});
  const float* row = plane + y * static_cast<int64_t>(image.planes.row) + x;
  const size_t step = image.planes.plane;
  for (size_t j = first; j < last; j += kLanes) {
    // The last vector of a row overlaps the one before it where there is one.
    if (last - j < kLanes && last - first >= kLanes) j = last - kLanes;
    const size_t n = smaller(kLanes, last - j);
    F v[kLanes];
    if (n == kLanes && channels == kLanes) {
#pragma GCC unroll 16
      for (size_t i = 0; i < kLanes; ++i) v[i] = load(row + i * step + j);
    } else {
      for (size_t i = 0; i < kLanes; ++i)
        v[i] = i >= channels ? F{} : n == kLanes ? load(row + i * step + j) : load_first(row + i * step + j, n);
    }
    transpose(v);
    if (n == kLanes) {
#pragma GCC unroll 16
      for (size_t i = 0; i < kLanes; ++i) store(line + (j + i) * kLanes, v[i]);
    } else {
      for (size_t i = 0; i < n; ++i) store(line + (j + i) * kLanes, v[i]);
    }
  }
}

// The way back: line (columns, kLanes), of which up to kLanes - 1 columns more may be read, becomes or is added to
// the rows at `row`, one in each of `channels` planes.
OBN_INLINE void write_line(const float* line, size_t columns, size_t channels, bool accumulate, float* row,
                           size_t step) {
  for (size_t j = 0; j < columns; j += kLanes) {
    if (columns - j < kLanes && columns >= kLanes && !accumulate) j = columns - kLanes;
    const size_t n = smaller(kLanes, columns - j);
    F v[kLanes];
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) v[i] = load(line + (j + i) * kLanes);
    transpose(v);
    if (n == kLanes && channels == kLanes && !accumulate) {
#pragma GCC unroll 16
      for (size_t i = 0; i < kLanes; ++i) store(row + i * step + j, v[i]);
    } else if (n == kLanes) {
      for (size_t i = 0; i < channels; ++i)
        store(row + i * step + j, accumulate ? load(row + i * step + j) + v[i] : v[i]);
    } else {
      for (size_t i = 0; i < channels; ++i)
        store_first(row + i * step + j, accumulate ? load_first(row + i * step + j, n) + v[i] : v[i], n);
    }
  }
}

// ---- tiles ----

// Where one tile's values at the points begin: [far row point][far column point].
template <size_t kSide>
struct TileAt {
  float* base[2][2];
  size_t point;  // from one point to the next

  [[gnu::always_inline]] inline float* at(size_t py, size_t px) const {
    return base[is_far(py)][is_far(px)] + (py * kSide + px) * point;
  }
};

// Walks through the tiles of a block: which row of tiles comes, how many near and far ones were before.
struct Walk {
  const Block& block;
  size_t columns[2];  // of tiles with near and far points
  size_t before[2];

  [[gnu::always_inline]] inline explicit Walk(const Block& block)
      : block(block),
        columns{block.columns_with(0), block.columns_with(1)},
        before{block.before[0], block.before[1]} {}
  [[gnu::always_inline]] inline bool is_short_column(size_t column) const { return column >= columns[1]; }
  template <size_t kSide>
  [[gnu::always_inline]] inline TileAt<kSide> tile(const Matrices& v, size_t column, size_t channel) const {
    TileAt<kSide> t;
    t.point = v.point;
    for (size_t i = 0; i < 2; ++i)
      for (size_t j = 0; j < 2; ++j) t.base[i][j] = v.data + (before[i] * columns[j] + column) * v.row + channel;
    return t;
  }
  [[gnu::always_inline]] inline void next_row(bool is_short) {
    before[0] += 1;
    before[1] += is_short ? 0 : 1;
  }
};

// ---- gradients ----

// A row of tiles of dz (kOutputs, kOutputs), each brought to its points by Transform::make. rows: those of the first.
template <size_t kSide, class Transform>
OBN_INLINE void make_gradient_row(const Walk& walk, bool is_short, size_t c, const Matrices& y,
                                  const float* (&rows)[kOutputs]) {
  for (size_t column = 0; column < walk.block.columns; ++column) {
    const TileAt<kSide> t = walk.tile<kSide>(y, column, c);
    if (!is_short && !walk.is_short_column(column)) Transform::template make<false, false>(rows, t);
    else if (!is_short) Transform::template make<false, true>(rows, t);
    else if (!walk.is_short_column(column)) Transform::template make<true, false>(rows, t);
    else Transform::template make<true, true>(rows, t);
    for (size_t i = 0; i < kOutputs; ++i) rows[i] += kOutputs * kLanes;
  }
}

// The tiles of dz, row by row.
template <size_t kSide, class Transform>
OBN_INLINE void walk_gradient(const Image& dz, const Block& block, Range channels, const Matrices& y, float* room) {
  const size_t width = block.columns * kOutputs;
  const int64_t x0 = static_cast<int64_t>(block.column * kOutputs);
  for (size_t c = channels.first; c < channels.end; c += kLanes) {
    const size_t n = smaller(kLanes, channels.end - c);
    Walk walk(block);
    for (size_t r = block.row; r < block.row + block.rows; ++r) {
      const size_t sample = r / block.tile_rows, row = r % block.tile_rows;
      const bool is_short = block.is_short_row(r);
      const float* plane = dz.planes.data + sample * dz.planes.sample + c * dz.planes.plane;
      const float* rows[kOutputs];
      for (size_t i = 0; i < kOutputs; ++i) {
        float* line = room + i * width * kLanes;
        rows[i] = line;
        if (!is_short || i < 2)
          read_line(dz, plane, n, static_cast<int64_t>(row * kOutputs + i), x0, width, line);
      }
      make_gradient_row<kSide, Transform>(walk, is_short, c, y, rows);
      walk.next_row(is_short);
    }
  }
}

// ---- products ----

OBN_INLINE size_t whole_vectors(size_t channels) { return (channels + kLanes - 1) / kLanes * kLanes; }

// c (rows, t.columns) = t.a · t.b, panel by panel.
OBN_INLINE void multiply_panels(Tile t, size_t rows) {
  const size_t panels = row_panels(rows);
  for (size_t panel = 0; panel < panels; ++panel) {
    const size_t some = rows / panels + (panel < rows % panels ? 1 : 0);
    multiply_tile[some](t);
    t.a += some * t.a_row;
    t.c += some * t.c_row;
  }
}

}  // namespace
}  // namespace obn::OBN_TARGET::winograd
