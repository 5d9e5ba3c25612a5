// Winograd, the bench: compiled once per target. Letters and steps as in winograd.h.
//
// Planes are turned to channels-last on the way in, kLanes channels at a time and a few rows ahead of the tiles that
// read them, and back on the way out; in between everything is whole vectors.
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "convolution/winograd/winograd.h"
#include "simd/tile.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::winograd {

using obn::convolution::winograd::Block;
using obn::convolution::winograd::Image;
using obn::convolution::winograd::is_far;
using obn::convolution::winograd::Kernels;
using obn::convolution::winograd::kOutputs;
using obn::convolution::winograd::kPoints;
using obn::convolution::winograd::kSide;
using obn::convolution::winograd::Lanes;
using obn::convolution::winograd::Matrices;
using obn::convolution::winograd::Panels;
using obn::convolution::winograd::Range;

namespace {

constexpr size_t kTaps = 9;

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
  [[gnu::always_inline]] inline TileAt tile(const Matrices& v, size_t column, size_t channel) const {
    TileAt t;
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

// ---- one axis ----
// The points are 0, a, -a, b, -b, ∞. A short tile leaves b and -b (3 and 4) out.

constexpr float a = 0.75f, b = 1.5f;
constexpr float a2 = a * a, b2 = b * b, a3 = a * a2, b3 = b * b2;
// What the products are to be multiplied with: 1 / Π (t - other points).
constexpr float kScale0 = 1 / (a2 * b2), kScaleA = 1 / (2 * a2 * (a2 - b2)), kScaleB = 1 / (2 * b2 * (b2 - a2));
constexpr float kShort0 = -1 / a2, kShortA = 1 / (2 * a2);

// Bᵀ: 6 inputs (short: 4) at the points, three at a time: 0, a, -a, and then b, -b, ∞ (short: ∞).
template <bool kShort>
OBN_INLINE void data_at_first_points(const F (&d)[kSide], F (&r)[3]) {
  if constexpr (kShort) {
    r[0] = fnma(a2, d[0], d[2]);
    r[1] = fma(a, d[1], d[2]);
    r[2] = fnma(a, d[1], d[2]);
  } else {
    const F even = fnma(b2, d[2], d[4]), odd = a * fnma(b2, d[1], d[3]);
    r[0] = fma(a2 * b2, d[0], fnma(a2 + b2, d[2], d[4]));
    r[1] = even + odd;
    r[2] = even - odd;
  }
}
template <bool kShort>
OBN_INLINE void data_at_last_points(const F (&d)[kSide], F (&r)[3]) {
  if constexpr (kShort) {
    r[2] = fnma(a2, d[1], d[3]);
  } else {
    const F even = fnma(a2, d[2], d[4]), odd = b * fnma(a2, d[1], d[3]);
    r[0] = even + odd;
    r[1] = even - odd;
    r[2] = fma(a2 * b2, d[1], fnma(a2 + b2, d[3], d[5]));
  }
}

// Aᵀ: products at the points to 4 outputs (short: 2).
template <bool kShort>
OBN_INLINE void outputs_of_points(const F (&m)[kSide], F (&y)[kOutputs]) {
  const F even_a = m[1] + m[2], odd_a = m[1] - m[2];
  if constexpr (kShort) {
    y[0] = fma(kShort0, m[0], kShortA * even_a);
    y[1] = fma(kShortA * a, odd_a, m[5]);
  } else {
    const F even_b = m[3] + m[4], odd_b = m[3] - m[4];
    y[0] = fma(kScale0, m[0], fma(kScaleA, even_a, kScaleB * even_b));
    y[1] = fma(kScaleA * a, odd_a, kScaleB * b * odd_b);
    y[2] = fma(kScaleA * a2, even_a, kScaleB * b2 * even_b);
    y[3] = m[5] + fma(kScaleA * a3, odd_a, kScaleB * b3 * odd_b);
  }
}

// A: the transpose of it.
template <bool kShort>
OBN_INLINE void gradient_at_points(const F (&y)[kOutputs], F (&r)[kSide]) {
  if constexpr (kShort) {
    const F even = kShortA * y[0];
    r[0] = kShort0 * y[0];
    r[1] = fma(kShortA * a, y[1], even);
    r[2] = fnma(kShortA * a, y[1], even);
    r[5] = y[1];
  } else {
    const F even_a = fma(kScaleA, y[0], kScaleA * a2 * y[2]), odd_a = fma(kScaleA * a, y[1], kScaleA * a3 * y[3]);
    const F even_b = fma(kScaleB, y[0], kScaleB * b2 * y[2]), odd_b = fma(kScaleB * b, y[1], kScaleB * b3 * y[3]);
    r[0] = kScale0 * y[0];
    r[1] = even_a + odd_a;
    r[2] = even_a - odd_a;
    r[3] = even_b + odd_b;
    r[4] = even_b - odd_b;
    r[5] = y[3];
  }
}

// G: 3 weights at the points.
OBN_INLINE void weights_at_points(const F (&w)[3], F (&r)[kSide]) {
  const F even_a = fma(a2, w[2], w[0]), even_b = fma(b2, w[2], w[0]);
  r[0] = w[0];
  r[1] = fma(a, w[1], even_a);
  r[2] = fnma(a, w[1], even_a);
  r[3] = fma(b, w[1], even_b);
  r[4] = fnma(b, w[1], even_b);
  r[5] = w[2];
}

// Gᵀ: the transpose of it.
OBN_INLINE void weights_of_points(const F (&s)[kSide], F (&w)[3]) {
  const F even_a = s[1] + s[2], odd_a = s[1] - s[2], even_b = s[3] + s[4], odd_b = s[3] - s[4];
  w[0] = s[0] + (even_a + even_b);
  w[1] = fma(a, odd_a, b * odd_b);
  w[2] = s[5] + fma(a2, even_a, b2 * even_b);
}

// ---- tiles ----

// Half of the row points of a tile: what is between the two axes then fits into registers.
template <bool kLast, bool kShortRow, bool kShortColumn>
OBN_INLINE void half_data_tile(const float* const (&rows)[kSide], const TileAt& t) {
  F half[3][kSide];  // [row point][column]
#pragma GCC unroll 6
  for (size_t x = 0; x < (kShortColumn ? 4 : kSide); ++x) {
    F d[kSide], r[3];
#pragma GCC unroll 6
    for (size_t y = 0; y < (kShortRow ? 4 : kSide); ++y) d[y] = load(rows[y] + x * kLanes);
    if constexpr (kLast) {
      data_at_last_points<kShortRow>(d, r);
    } else {
      data_at_first_points<kShortRow>(d, r);
    }
#pragma GCC unroll 3
    for (size_t p = 0; p < 3; ++p) {
      if (kLast && kShortRow && p < 2) continue;
      half[p][x] = r[p];
    }
  }
#pragma GCC unroll 3
  for (size_t p = 0; p < 3; ++p) {
    const size_t py = p + (kLast ? 3 : 0);
    if (kShortRow && is_far(py)) continue;
    F first[3], last[3];
    data_at_first_points<kShortColumn>(half[p], first);
    data_at_last_points<kShortColumn>(half[p], last);
#pragma GCC unroll 3
    for (size_t px = 0; px < 3; ++px) {
      store(t.at(py, px), first[px]);
      if (!(kShortColumn && is_far(px + 3))) store(t.at(py, px + 3), last[px]);
    }
  }
}

// rows[i] points to the line of image row i, at the tile's first column.
template <bool kShortRow, bool kShortColumn>
OBN_INLINE void data_tile(const float* const (&rows)[kSide], const TileAt& t) {
  half_data_tile<false, kShortRow, kShortColumn>(rows, t);
  half_data_tile<true, kShortRow, kShortColumn>(rows, t);
}

template <bool kShortRow, bool kShortColumn>
OBN_INLINE void gradient_tile(const float* const (&rows)[kOutputs], const TileAt& t) {
  F half[kSide][kOutputs];
#pragma GCC unroll 4
  for (size_t x = 0; x < (kShortColumn ? 2 : kOutputs); ++x) {
    F d[kOutputs], r[kSide];
#pragma GCC unroll 4
    for (size_t y = 0; y < (kShortRow ? 2 : kOutputs); ++y) d[y] = load(rows[y] + x * kLanes);
    gradient_at_points<kShortRow>(d, r);
#pragma GCC unroll 6
    for (size_t p = 0; p < kSide; ++p) {
      if (kShortRow && is_far(p)) continue;
      half[p][x] = r[p];
    }
  }
#pragma GCC unroll 6
  for (size_t py = 0; py < kSide; ++py) {
    if (kShortRow && is_far(py)) continue;
    F r[kSide];
    gradient_at_points<kShortColumn>(half[py], r);
#pragma GCC unroll 6
    for (size_t px = 0; px < kSide; ++px) {
      if (kShortColumn && is_far(px)) continue;
      store(t.at(py, px), r[px]);
    }
  }
}

// stage (4, width, kLanes) gets the outputs, at the tile's first column.
template <bool kShortRow, bool kShortColumn>
OBN_INLINE void output_tile(const TileAt& t, F bias, float* stage, size_t width) {
  F half[kOutputs][kSide];
#pragma GCC unroll 6
  for (size_t px = 0; px < kSide; ++px) {
    if (kShortColumn && is_far(px)) continue;
    F m[kSide], y[kOutputs];
#pragma GCC unroll 6
    for (size_t py = 0; py < kSide; ++py) {
      if (kShortRow && is_far(py)) continue;
      m[py] = load(t.at(py, px));
    }
    outputs_of_points<kShortRow>(m, y);
#pragma GCC unroll 4
    for (size_t i = 0; i < (kShortRow ? 2 : kOutputs); ++i) half[i][px] = y[i];
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < (kShortRow ? 2 : kOutputs); ++i) {
    F y[kOutputs];
    outputs_of_points<kShortColumn>(half[i], y);
#pragma GCC unroll 4
    for (size_t j = 0; j < (kShortColumn ? 2 : kOutputs); ++j) store(stage + (i * width + j) * kLanes, y[j] + bias);
  }
}

// ---- blocks of tiles ----

constexpr size_t ring_columns(size_t columns) { return columns * kOutputs + 2; }
constexpr size_t stage_columns(size_t columns) { return round_up(columns * kOutputs, kLanes); }

size_t room_floats(size_t columns) {
  const size_t ring = kSide * ring_columns(columns), stage = kOutputs * stage_columns(columns);
  return (ring > stage ? ring : stage) * kLanes;
}

// Where row r of a block's tiles begins.
OBN_INLINE float* row_of(const Lanes& image, const Block& block, size_t r, size_t c) {
  return image.data + r / block.tile_rows * image.sample + c / kLanes * image.group +
         r % block.tile_rows * kOutputs * image.row + block.column * kOutputs * kLanes;
}

// A row of tiles; lines_of: those of the first.
void make_data_row(const Walk& walk, bool is_short, size_t c, const Matrices& v, const float* (&lines_of)[kSide]) {
  for (size_t column = 0; column < walk.block.columns; ++column) {
    const TileAt t = walk.tile(v, column, c);
    if (!is_short && !walk.is_short_column(column)) data_tile<false, false>(lines_of, t);
    else if (!is_short) data_tile<false, true>(lines_of, t);
    else if (!walk.is_short_column(column)) data_tile<true, false>(lines_of, t);
    else data_tile<true, true>(lines_of, t);
    for (size_t i = 0; i < kSide; ++i) lines_of[i] += kOutputs * kLanes;
  }
}

// A ring of six lines: of the six rows that a tile reads, the row of tiles above has read two.
void data(const Image& x, int64_t up, int64_t left, const Block& block, Range channels, const Matrices& v,
          float* room) {
  const size_t width = ring_columns(block.columns);
  const int64_t x0 = static_cast<int64_t>(block.column * kOutputs) - left;
  for (size_t c = channels.first; c < channels.end; c += kLanes) {
    const size_t n = smaller(kLanes, channels.end - c);
    Walk walk(block);
    size_t lines = 0;  // of this plane that are in the ring or were there
    for (size_t r = block.row; r < block.row + block.rows; ++r) {
      const size_t sample = r / block.tile_rows, row = r % block.tile_rows;
      const bool is_short = block.is_short_row(r);
      const float* plane = x.planes.data + sample * x.planes.sample + c * x.planes.plane;
      const size_t top = row * kOutputs;
      if (row == 0 || r == block.row) lines = top;
      for (; lines < top + (is_short ? 4 : kSide); ++lines)
        read_line(x, plane, n, static_cast<int64_t>(lines) - up, x0, width, room + lines % kSide * width * kLanes);
      const float* lines_of[kSide];
      for (size_t i = 0; i < kSide; ++i) lines_of[i] = room + (top + i) % kSide * width * kLanes;
      make_data_row(walk, is_short, c, v, lines_of);
      walk.next_row(is_short);
    }
  }
}

void data_of_lanes(const Lanes& x, const Block& block, Range channels, const Matrices& v) {
  for (size_t c = channels.first; c < channels.end; c += kLanes) {
    Walk walk(block);
    for (size_t r = block.row; r < block.row + block.rows; ++r) {
      const float* top = row_of(x, block, r, c);
      const float* lines_of[kSide];
      for (size_t i = 0; i < kSide; ++i) lines_of[i] = top + i * x.row;
      make_data_row(walk, block.is_short_row(r), c, v, lines_of);
      walk.next_row(block.is_short_row(r));
    }
  }
}

// A row of tiles of dz (kOutputs, kOutputs); rows: those of the first.
void make_gradient_row(const Walk& walk, bool is_short, size_t c, const Matrices& y,
                                  const float* (&rows)[kOutputs]) {
  for (size_t column = 0; column < walk.block.columns; ++column) {
    const TileAt t = walk.tile(y, column, c);
    if (!is_short && !walk.is_short_column(column)) gradient_tile<false, false>(rows, t);
    else if (!is_short) gradient_tile<false, true>(rows, t);
    else if (!walk.is_short_column(column)) gradient_tile<true, false>(rows, t);
    else gradient_tile<true, true>(rows, t);
    for (size_t i = 0; i < kOutputs; ++i) rows[i] += kOutputs * kLanes;
  }
}

void gradient(const Image& dz, const Block& block, Range channels, const Matrices& y, float* room) {
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
      make_gradient_row(walk, is_short, c, y, rows);
      walk.next_row(is_short);
    }
  }
}

void gradient_of_lanes(const Lanes& dz, const Block& block, Range channels, const Matrices& y) {
  for (size_t c = channels.first; c < channels.end; c += kLanes) {
    Walk walk(block);
    for (size_t r = block.row; r < block.row + block.rows; ++r) {
      const float* top = row_of(dz, block, r, c);
      const float* rows[kOutputs];
      for (size_t i = 0; i < kOutputs; ++i) rows[i] = top + i * dz.row;
      make_gradient_row(walk, block.is_short_row(r), c, y, rows);
      walk.next_row(block.is_short_row(r));
    }
  }
}

// A row of tiles, channel c of m and on; stage (4, width, kLanes) gets their outputs.
void make_output_row(const Walk& walk, bool is_short, size_t c, const Matrices& m, F bias, float* stage,
                     size_t width) {
  for (size_t column = 0; column < walk.block.columns; ++column, stage += kOutputs * kLanes) {
    const TileAt t = walk.tile(m, column, c);
    if (!is_short && !walk.is_short_column(column)) output_tile<false, false>(t, bias, stage, width);
    else if (!is_short) output_tile<false, true>(t, bias, stage, width);
    else if (!walk.is_short_column(column)) output_tile<true, false>(t, bias, stage, width);
    else output_tile<true, true>(t, bias, stage, width);
  }
}

void outputs(const Matrices& m, const Block& block, Range channels, const Image& y, const float* bias,
             bool accumulate, float* room) {
  const size_t width = stage_columns(block.columns), first = block.column * kOutputs;
  const size_t columns = smaller(block.columns * kOutputs, static_cast<size_t>(y.columns) - first);
  for (size_t c = channels.first; c < channels.end; c += kLanes) {
    const size_t n = smaller(kLanes, channels.end - c);
    const F added = !bias ? F{} : n == kLanes ? load(bias + c) : load_first(bias + c, n);
    Walk walk(block);
    for (size_t r = block.row; r < block.row + block.rows; ++r) {
      const size_t sample = r / block.tile_rows, row = r % block.tile_rows * kOutputs;
      const bool is_short = block.is_short_row(r);
      make_output_row(walk, is_short, c - channels.first, m, added, room, width);
      walk.next_row(is_short);
      const size_t rows = smaller(kOutputs, static_cast<size_t>(y.rows) - row);
      float* plane = y.planes.data + sample * y.planes.sample + c * y.planes.plane + first;
      for (size_t i = 0; i < rows; ++i)
        write_line(room + i * width * kLanes, columns, n, accumulate, plane + (row + i) * y.planes.row,
                   y.planes.plane);
    }
  }
}

void outputs_to_lanes(const Matrices& m, const Block& block, Range channels, const Lanes& y, const float* bias) {
  for (size_t c = channels.first; c < channels.end; c += kLanes) {
    const size_t n = smaller(kLanes, channels.end - c);
    const F added = !bias ? F{} : n == kLanes ? load(bias + c) : load_first(bias + c, n);
    Walk walk(block);
    for (size_t r = block.row; r < block.row + block.rows; ++r) {
      const bool is_short = block.is_short_row(r);
      make_output_row(walk, is_short, c - channels.first, m, added, row_of(y, block, r, c), y.row / kLanes);
      walk.next_row(is_short);
    }
  }
}

// ---- weights ----

// taps[q] = tap q of n <= kLanes kernels; kernel i begins at w + i·step. Some taps from kFirst on, and the rest.
template <size_t kFirst = 0>
OBN_INLINE void read_taps(const float* w, size_t step, size_t n, F (&taps)[kTaps]) {
  constexpr size_t kSome = smaller(kLanes, kTaps - kFirst);
  F v[kLanes];
  for (size_t i = 0; i < kLanes; ++i)
    v[i] = i >= n ? F{} : kSome == kLanes ? load(w + i * step + kFirst) : load_first(w + i * step + kFirst, kSome);
  transpose(v);
#pragma GCC unroll 9
  for (size_t i = 0; i < kSome; ++i) taps[kFirst + i] = v[i];
  if constexpr (kFirst + kSome < kTaps) read_taps<kFirst + kSome>(w, step, n, taps);
}

// The way back; added to what is there if asked to.
template <size_t kFirst = 0>
OBN_INLINE void write_taps(const F (&taps)[kTaps], float* w, size_t step, size_t n, bool accumulate) {
  constexpr size_t kSome = smaller(kLanes, kTaps - kFirst);
  F v[kLanes] = {};
#pragma GCC unroll 9
  for (size_t i = 0; i < kSome; ++i) v[i] = taps[kFirst + i];
  transpose(v);
  for (size_t i = 0; i < n; ++i) {
    float* to = w + i * step + kFirst;
    if (kSome == kLanes) {
      store(to, accumulate ? load(to) + v[i] : v[i]);
    } else {
      store_first(to, accumulate ? load_first(to, kSome) + v[i] : v[i], kSome);
    }
  }
  if constexpr (kFirst + kSome < kTaps) write_taps<kFirst + kSome>(taps, w, step, n, accumulate);
}

void weights(const float* w, size_t k_step, size_t j_step, bool turned, size_t inputs, size_t outputs, float* u,
             size_t point) {
  for (size_t k = 0; k < inputs; ++k) {
    F taps[kTaps], half[kSide][3];
    read_taps(w + k * k_step, j_step, outputs, taps);
#pragma GCC unroll 3
    for (size_t x = 0; x < 3; ++x) {
      F column[3], r[kSide];
#pragma GCC unroll 3
      for (size_t y = 0; y < 3; ++y) column[y] = turned ? taps[8 - 3 * y - x] : taps[3 * y + x];
      weights_at_points(column, r);
#pragma GCC unroll 6
      for (size_t p = 0; p < kSide; ++p) half[p][x] = r[p];
    }
    float* to = u + k * kTileColumns;
#pragma GCC unroll 6
    for (size_t py = 0; py < kSide; ++py) {
      F r[kSide];
      weights_at_points(half[py], r);
#pragma GCC unroll 6
      for (size_t px = 0; px < kSide; ++px) store(to + (py * kSide + px) * point, r[px]);
    }
  }
}

void weight_gradient(const Matrices& s, size_t parts, size_t part_step, Range inputs, Range outputs, size_t c,
                     bool accumulate, float* dw) {
  for (size_t o = outputs.first; o < outputs.end; o += kLanes) {
    for (size_t i = inputs.first; i < inputs.end; ++i) {
      const float* from = s.data + (i - inputs.first) * s.row + (o - outputs.first);
      F half[3][kSide], taps[kTaps];
#pragma GCC unroll 6
      for (size_t px = 0; px < kSide; ++px) {
        F column[kSide], r[3];
#pragma GCC unroll 6
        for (size_t py = 0; py < kSide; ++py) {
          const float* p = from + (py * kSide + px) * s.point;
          column[py] = load(p);
          for (size_t part = 1; part < parts; ++part) column[py] += load(p + part * part_step);
        }
        weights_of_points(column, r);
#pragma GCC unroll 3
        for (size_t y = 0; y < 3; ++y) half[y][px] = r[y];
      }
#pragma GCC unroll 3
      for (size_t y = 0; y < 3; ++y) {
        F r[3];
        weights_of_points(half[y], r);
#pragma GCC unroll 3
        for (size_t x = 0; x < 3; ++x) taps[3 * y + x] = r[x];
      }
      write_taps(taps, dw + (o * c + i) * kTaps, c * kTaps, smaller(kLanes, outputs.end - o), accumulate);
    }
  }
}

// ---- products ----

OBN_INLINE size_t whole_vectors(size_t channels) { return round_up(channels, kLanes); }

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

void multiply(const Block& block, const Matrices& v, size_t depth, const Panels& u, size_t outputs, bool accumulate,
              const Matrices& m) {
  for (size_t p = 0; p < kPoints; ++p) {
    const size_t tiles = block.tiles_at(p / kSide, p % kSide);
    for (size_t j = 0; j < outputs; j += kTileColumns) {
      Tile t;
      t.a = v.data + p * v.point + block.tiles_before(p / kSide, p % kSide) * v.row;
      t.a_row = v.row;
      t.a_step = 1;
      t.b = u.data + p * u.point + j / kTileColumns * u.step;
      t.b_step = kTileColumns;
      t.c = m.data + p * m.point + j;
      t.c_row = m.row;
      t.k = depth;
      t.columns = smaller(kTileColumns, whole_vectors(outputs - j));
      t.accumulate = accumulate;
      multiply_panels(t, tiles);
    }
  }
}

void correlate(const Block& block, const Matrices& v, const Matrices& y, Range inputs, Range outputs,
               bool accumulate, const Matrices& s) {
  for (size_t p = 0; p < kPoints; ++p) {
    for (size_t o = outputs.first; o < outputs.end; o += kTileColumns) {
      Tile t;
      t.a = v.data + p * v.point + inputs.first;
      t.a_row = 1;
      t.a_step = v.row;
      t.b = y.data + p * y.point + o;
      t.b_step = y.row;
      t.c = s.data + p * s.point + (o - outputs.first);
      t.c_row = s.row;
      t.k = block.tiles_at(p / kSide, p % kSide);
      t.columns = smaller(kTileColumns, whole_vectors(outputs.end - o));
      t.accumulate = accumulate;
      multiply_panels(t, inputs.end - inputs.first);
    }
  }
}

constexpr obn::convolution::winograd::Kernels kernels = {
    kLanes,   kTileColumns, room_floats,      weights,   data,           gradient, data_of_lanes, gradient_of_lanes,
    multiply, outputs,      outputs_to_lanes, correlate, weight_gradient};

}  // namespace

}  // namespace obn::OBN_TARGET::winograd

constinit const obn::convolution::winograd::Kernels obn::convolution::winograd::Compiled::OBN_TARGET = obn::OBN_TARGET::winograd::kernels;
