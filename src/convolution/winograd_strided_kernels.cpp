// Winograd for stride 2, the bench: compiled once per target. Letters and steps as in winograd_strided.h.
//
// As in winograd_kernels.cpp planes are turned to channels-last on the way in and back on the way out. In such lines a
// half is every second column, and lines of a half every second row: splitting and joining costs nothing.
#include <cstddef>
#include <cstdint>

#include "convolution/winograd_strided.h"

#include "convolution/winograd_lines.h"
#include "simd/tile.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::winograd::strided {

using obn::convolution::winograd::strided::Grid;
using obn::convolution::winograd::strided::Grids;
using obn::convolution::winograd::strided::Kernels;
using obn::convolution::winograd::strided::KernelTaps;
using obn::convolution::winograd::strided::kMostTaps;
using obn::convolution::winograd::strided::kPoints;
using obn::convolution::winograd::strided::kSide;
using obn::convolution::winograd::strided::Slots;
using obn::convolution::winograd::strided::Taps;

namespace {

// ---- one axis ----
// The points are ∞, a, -a, b, -b. A short tile leaves b and -b (3 and 4) out.

constexpr float a = 0.375f, b = 1.25f;
constexpr float a2 = a * a, b2 = b * b, a3 = a * a2, b3 = b * b2;
// What the products at a and b are to be multiplied with, those at -a and -b with the opposite: 1 / Π (t - others).
constexpr float kScaleA = 1 / (2 * a * (a2 - b2)), kScaleB = 1 / (2 * b * (b2 - a2)), kShortA = 1 / (2 * a);

// Bᵀ: 5 inputs (short: 3) at the points.
template <bool kShort>
OBN_INLINE void data_at_points(const F (&d)[kSide], F (&r)[kSide]) {
  if constexpr (kShort) {
    r[0] = fnma(a2, d[0], d[2]);
    r[1] = fma(a, d[0], d[1]);
    r[2] = fnma(a, d[0], d[1]);
  } else {
    const F even_a = fnma(b2, d[0], d[2]), odd_a = fnma(b2, d[1], d[3]);
    const F even_b = fnma(a2, d[0], d[2]), odd_b = fnma(a2, d[1], d[3]);
    r[0] = fma(a2 * b2, d[0], fnma(a2 + b2, d[2], d[4]));
    r[1] = fma(a, even_a, odd_a);
    r[2] = fnma(a, even_a, odd_a);
    r[3] = fma(b, even_b, odd_b);
    r[4] = fnma(b, even_b, odd_b);
  }
}

// Aᵀ: products at the points to 4 outputs (short: 2).
template <bool kShort>
OBN_INLINE void outputs_of_points(const F (&m)[kSide], F (&y)[kOutputs]) {
  const F even_a = m[1] - m[2], odd_a = m[1] + m[2];
  if constexpr (kShort) {
    y[0] = kShortA * even_a;
    y[1] = fma(kShortA * a, odd_a, m[0]);
  } else {
    const F even_b = m[3] - m[4], odd_b = m[3] + m[4];
    y[0] = fma(kScaleA, even_a, kScaleB * even_b);
    y[1] = fma(kScaleA * a, odd_a, kScaleB * b * odd_b);
    y[2] = fma(kScaleA * a2, even_a, kScaleB * b2 * even_b);
    y[3] = m[0] + fma(kScaleA * a3, odd_a, kScaleB * b3 * odd_b);
  }
}

// A: the transpose of it.
template <bool kShort>
OBN_INLINE void gradient_at_points(const F (&y)[kOutputs], F (&r)[kSide]) {
  if constexpr (kShort) {
    const F odd = kShortA * a * y[1];
    r[0] = y[1];
    r[1] = fma(kShortA, y[0], odd);
    r[2] = fnma(kShortA, y[0], odd);
  } else {
    const F even_a = fma(kScaleA, y[0], kScaleA * a2 * y[2]), odd_a = fma(kScaleA * a, y[1], kScaleA * a3 * y[3]);
    const F even_b = fma(kScaleB, y[0], kScaleB * b2 * y[2]), odd_b = fma(kScaleB * b, y[1], kScaleB * b3 * y[3]);
    r[0] = y[3];
    r[1] = odd_a + even_a;
    r[2] = odd_a - even_a;
    r[3] = odd_b + even_b;
    r[4] = odd_b - even_b;
  }
}

// G: 2 weights at the points.
OBN_INLINE void weights_at_points(const F (&w)[2], F (&r)[kSide]) {
  r[0] = w[1];
  r[1] = fma(a, w[1], w[0]);
  r[2] = fnma(a, w[1], w[0]);
  r[3] = fma(b, w[1], w[0]);
  r[4] = fnma(b, w[1], w[0]);
}

// Gᵀ: the transpose of it.
OBN_INLINE void weights_of_points(const F (&s)[kSide], F (&w)[2]) {
  w[0] = (s[1] + s[2]) + (s[3] + s[4]);
  w[1] = s[0] + fma(a, s[1] - s[2], b * (s[3] - s[4]));
}

// ---- tiles ----

// rows[i] points to value (i, 0) of the tile; `step` floats further is value (i, 1).
template <bool kShortRow, bool kShortColumn>
OBN_INLINE void data_tile(const float* const (&rows)[kSide], size_t step, const TileAt<kSide>& t) {
  F half[kSide][kSide];  // [row point][column]
#pragma GCC unroll 5
  for (size_t x = 0; x < (kShortColumn ? 3 : kSide); ++x) {
    F d[kSide], r[kSide];
#pragma GCC unroll 5
    for (size_t y = 0; y < (kShortRow ? 3 : kSide); ++y) d[y] = load(rows[y] + x * step);
    data_at_points<kShortRow>(d, r);
#pragma GCC unroll 5
    for (size_t p = 0; p < (kShortRow ? 3 : kSide); ++p) half[p][x] = r[p];
  }
#pragma GCC unroll 5
  for (size_t py = 0; py < (kShortRow ? 3 : kSide); ++py) {
    F r[kSide];
    data_at_points<kShortColumn>(half[py], r);
#pragma GCC unroll 5
    for (size_t px = 0; px < (kShortColumn ? 3 : kSide); ++px) store(t.at(py, px), r[px]);
  }
}

template <bool kShortRow, bool kShortColumn>
OBN_INLINE void gradient_tile(const float* const (&rows)[kOutputs], const TileAt<kSide>& t) {
  F half[kSide][kOutputs];
#pragma GCC unroll 4
  for (size_t x = 0; x < (kShortColumn ? 2 : kOutputs); ++x) {
    F d[kOutputs], r[kSide];
#pragma GCC unroll 4
    for (size_t y = 0; y < (kShortRow ? 2 : kOutputs); ++y) d[y] = load(rows[y] + x * kLanes);
    gradient_at_points<kShortRow>(d, r);
#pragma GCC unroll 5
    for (size_t p = 0; p < (kShortRow ? 3 : kSide); ++p) half[p][x] = r[p];
  }
#pragma GCC unroll 5
  for (size_t py = 0; py < (kShortRow ? 3 : kSide); ++py) {
    F r[kSide];
    gradient_at_points<kShortColumn>(half[py], r);
#pragma GCC unroll 5
    for (size_t px = 0; px < (kShortColumn ? 3 : kSide); ++px) store(t.at(py, px), r[px]);
  }
}

// Whether the products at ∞ of an axis are there; if not they count as 0.
struct AtInfinity {
  bool y, x;
};

// The outputs go to stage[i·width + j·step], vectors of kLanes channels.
template <bool kShortRow, bool kShortColumn>
OBN_INLINE void output_tile(const TileAt<kSide>& t, AtInfinity has, F bias, float* stage, size_t width, size_t step) {
  F half[kOutputs][kSide];
#pragma GCC unroll 5
  for (size_t px = 0; px < (kShortColumn ? 3 : kSide); ++px) {
    F m[kSide], y[kOutputs];
    const bool is_there = px > 0 || has.x;
#pragma GCC unroll 5
    for (size_t py = 0; py < (kShortRow ? 3 : kSide); ++py)
      m[py] = is_there && (py > 0 || has.y) ? load(t.at(py, px)) : F{};
    outputs_of_points<kShortRow>(m, y);
#pragma GCC unroll 4
    for (size_t i = 0; i < (kShortRow ? 2 : kOutputs); ++i) half[i][px] = y[i];
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < (kShortRow ? 2 : kOutputs); ++i) {
    F y[kOutputs];
    outputs_of_points<kShortColumn>(half[i], y);
#pragma GCC unroll 4
    for (size_t j = 0; j < (kShortColumn ? 2 : kOutputs); ++j) store(stage + i * width + j * step, y[j] + bias);
  }
}

// ---- blocks of tiles ----

constexpr size_t kMostLines = 2 * kOutputs + 2;  // of the image that a tile reads, all halves together

constexpr size_t stage_columns(size_t columns) { return (columns + kLanes - 1) / kLanes * kLanes; }

size_t room_floats(size_t columns) {
  const size_t ring = kMostLines * (columns * 2 * kOutputs + 2);
  const size_t stage = kOutputs * stage_columns(columns * 2 * kOutputs);
  return (ring > stage ? ring : stage) * kLanes;
}

// Positions that `tiles` tiles in a row read, all halves together.
OBN_INLINE size_t positions_of(const Grid& grid, size_t tiles) {
  return grid.step * kOutputs * tiles + grid.shift[grid.count - 1] + 1;
}

// A ring of lines: those that a tile reads and the row of tiles above has read already are kept.
void data(const Image& x, const Grids& grids, const Block& block, Range channels, const Slots& slots,
          const Matrices& v, float* room) {
  const Grid &gy = grids.y, &gx = grids.x;
  const size_t lines_per_tile = positions_of(gy, 1), width = positions_of(gx, block.columns);
  const int64_t x0 = gx.start + static_cast<int64_t>(block.column * kOutputs * gx.step);
  for (size_t c = channels.first; c < channels.end; c += kLanes) {
    const size_t n = smaller(kLanes, channels.end - c);
    Walk walk(block);
    size_t lines = 0;  // of this plane that are in the ring or were there
    for (size_t r = block.row; r < block.row + block.rows; ++r) {
      const size_t sample = r / block.tile_rows, row = r % block.tile_rows;
      const bool is_short = block.is_short_row(r);
      const float* plane = x.planes.data + sample * x.planes.sample + c * x.planes.plane;
      const size_t top = row * kOutputs * gy.step;
      if (row == 0 || r == block.row) lines = top;
      for (; lines < top + lines_per_tile; ++lines)
        read_line(x, plane, n, gy.start + static_cast<int64_t>(lines), x0, width,
                  room + lines % lines_per_tile * width * kLanes);
      for (size_t hy = 0; hy < gy.count; ++hy) {
        const float* line[kSide];
        for (size_t i = 0; i < kSide; ++i)
          line[i] = room + (top + gy.step * i + gy.shift[hy]) % lines_per_tile * width * kLanes;
        for (size_t hx = 0; hx < gx.count; ++hx) {
          for (size_t column = 0; column < block.columns; ++column) {
            const float* rows[kSide];
            for (size_t i = 0; i < kSide; ++i)
              rows[i] = line[i] + (column * kOutputs * gx.step + gx.shift[hx]) * kLanes;
            const size_t step = gx.step * kLanes;
            const TileAt<kSide> t = walk.tile<kSide>(v, column, slots.at[hy][hx] + c);
            if (!is_short && !walk.is_short_column(column)) data_tile<false, false>(rows, step, t);
            else if (!is_short) data_tile<false, true>(rows, step, t);
            else if (!walk.is_short_column(column)) data_tile<true, false>(rows, step, t);
            else data_tile<true, true>(rows, step, t);
          }
        }
      }
      walk.next_row(is_short);
    }
  }
}

struct GradientTile {
  template <bool kShortRow, bool kShortColumn>
  OBN_INLINE void make(const float* const (&rows)[kOutputs], const TileAt<kSide>& t) {
    gradient_tile<kShortRow, kShortColumn>(rows, t);
  }
};

void gradient(const Image& dz, const Block& block, Range channels, const Matrices& y, float* room) {
  walk_gradient<kSide, GradientTile>(dz, block, channels, y, room);
}

void outputs(const Matrices& m, const Slots& slots, const KernelTaps& taps, const Grids& grids, const Block& block,
             const Image& y, const float* bias, bool accumulate, float* room) {
  const Grid &gy = grids.y, &gx = grids.x;
  const size_t side = kOutputs * gx.step, first = block.column * side, height = static_cast<size_t>(y.rows);
  const size_t columns = smaller(block.columns * side, static_cast<size_t>(y.columns) - first);
  const size_t width = stage_columns(block.columns * side) * kLanes;
  for (size_t c = 0; c < y.channels; c += kLanes) {
    const size_t n = smaller(kLanes, y.channels - c);
    const F added = !bias ? F{} : n == kLanes ? load(bias + c) : load_first(bias + c, n);
    Walk walk(block);
    for (size_t r = block.row; r < block.row + block.rows; ++r) {
      const size_t sample = r / block.tile_rows, top = r % block.tile_rows * kOutputs * gy.step;
      const bool is_short = block.is_short_row(r);
      float* plane = y.planes.data + sample * y.planes.sample + c * y.planes.plane + first;
      for (size_t hy = 0; hy < gy.count; ++hy) {
        for (size_t hx = 0; hx < gx.count; ++hx) {
          const AtInfinity has = {gy.count == 1 || taps.y.count[hy] == 2, gx.count == 1 || taps.x.count[hx] == 2};
          for (size_t column = 0; column < block.columns; ++column) {
            const TileAt<kSide> t = walk.tile<kSide>(m, column, slots.at[hy][hx] + c);
            float* to = room + (column * side + gx.shift[hx]) * kLanes;
            const size_t step = gx.step * kLanes;
            if (!is_short && !walk.is_short_column(column)) output_tile<false, false>(t, has, added, to, width, step);
            else if (!is_short) output_tile<false, true>(t, has, added, to, width, step);
            else if (!walk.is_short_column(column)) output_tile<true, false>(t, has, added, to, width, step);
            else output_tile<true, true>(t, has, added, to, width, step);
          }
        }
        for (size_t i = 0; i < kOutputs; ++i) {
          const size_t row = top + gy.step * i + gy.shift[hy];
          if (row >= height) break;
          write_line(room + i * width, columns, n, accumulate, plane + row * y.planes.row, y.planes.plane);
        }
      }
      walk.next_row(is_short);
    }
  }
}

// ---- weights ----

// taps[q] = tap q of n <= kLanes kernels of `count` taps; kernel i begins at w + i·step.
OBN_INLINE void read_taps(const float* w, size_t step, size_t n, size_t count, F (&taps)[kMostTaps]) {
#pragma GCC unroll 4
  for (size_t q = 0; q < kMostTaps; q += kLanes) {
    const size_t some = count > q ? smaller(kLanes, count - q) : 0;
    F v[kLanes];
    for (size_t i = 0; i < kLanes; ++i)
      v[i] = i >= n || some == 0 ? F{} : some == kLanes ? load(w + i * step + q) : load_first(w + i * step + q, some);
    transpose(v);
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) taps[q + i] = v[i];
  }
}

// The way back; added to what is there if asked to.
OBN_INLINE void write_taps(const F (&taps)[kMostTaps], float* w, size_t step, size_t n, size_t count,
                           bool accumulate) {
#pragma GCC unroll 4
  for (size_t q = 0; q < kMostTaps; q += kLanes) {
    const size_t some = count > q ? smaller(kLanes, count - q) : 0;
    F v[kLanes];
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) v[i] = taps[q + i];
    transpose(v);
    for (size_t i = 0; i < n && some > 0; ++i) {
      float* to = w + i * step + q;
      if (some == kLanes) {
        store(to, accumulate ? load(to) + v[i] : v[i]);
      } else {
        store_first(to, accumulate ? load_first(to, some) + v[i] : v[i], some);
      }
    }
  }
}

void weights(const KernelTaps& taps, const float* w, size_t k_step, size_t j_step, size_t inputs, size_t rows,
             size_t outputs, const Slots& slots, float* u, size_t point) {
  const Taps &ty = taps.y, &tx = taps.x;
  for (size_t k = 0; k < rows; ++k) {
    F all[kMostTaps] = {};
    if (k < inputs) read_taps(w + k * k_step, j_step, outputs, ty.kernel * tx.kernel, all);
    for (size_t h = 0; h < 4; ++h) {
      const size_t hy = h / 2, hx = h % 2;
      F half[kSide][2];
#pragma GCC unroll 2
      for (size_t x = 0; x < 2; ++x) {
        F column[2], r[kSide];
#pragma GCC unroll 2
        for (size_t y = 0; y < 2; ++y)
          column[y] = y < ty.count[hy] && x < tx.count[hx] ? all[ty.tap[hy][y] * tx.kernel + tx.tap[hx][x]] : F{};
        weights_at_points(column, r);
#pragma GCC unroll 5
        for (size_t p = 0; p < kSide; ++p) half[p][x] = r[p];
      }
      float* to = u + slots.at[hy][hx] + k * kTileColumns;
#pragma GCC unroll 5
      for (size_t py = 0; py < kSide; ++py) {
        F r[kSide];
        weights_at_points(half[py], r);
#pragma GCC unroll 5
        for (size_t px = 0; px < kSide; ++px) store(to + (py * kSide + px) * point, r[px]);
      }
    }
  }
}

// The taps between input channel and kLanes output channels; `from` is their first point of slot 0.
OBN_INLINE void taps_of_sums(const float* from, size_t point, const Slots& slots, const KernelTaps& kernel,
                             size_t parts, size_t part_step, F (&taps)[kMostTaps]) {
  const Taps &ty = kernel.y, &tx = kernel.x;
  for (size_t h = 0; h < 4; ++h) {
    const size_t hy = h / 2, hx = h % 2;
    F half[2][kSide];
#pragma GCC unroll 5
    for (size_t px = 0; px < kSide; ++px) {
      F column[kSide], r[2];
#pragma GCC unroll 5
      for (size_t py = 0; py < kSide; ++py) {
        const bool is_there = (py > 0 || ty.count[hy] == 2) && (px > 0 || tx.count[hx] == 2);
        const float* p = from + slots.at[hy][hx] + (py * kSide + px) * point;
        column[py] = is_there ? load(p) : F{};
        for (size_t part = 1; is_there && part < parts; ++part) column[py] += load(p + part * part_step);
      }
      weights_of_points(column, r);
      half[0][px] = r[0];
      half[1][px] = r[1];
    }
    for (size_t y = 0; y < ty.count[hy]; ++y) {
      F r[2];
      weights_of_points(half[y], r);
      for (size_t x = 0; x < tx.count[hx]; ++x) taps[ty.tap[hy][y] * tx.kernel + tx.tap[hx][x]] = r[x];
    }
  }
}

void weight_gradient(const Matrices& s, const Slots& slots, const KernelTaps& taps, size_t parts, size_t part_step,
                     Range inputs, Range outputs, size_t c, bool accumulate, float* dw) {
  const size_t count = taps.y.kernel * taps.x.kernel;
  for (size_t o = outputs.first; o < outputs.end; o += kLanes) {
    for (size_t i = inputs.first; i < inputs.end; ++i) {
      F all[kMostTaps] = {};
      taps_of_sums(s.data + (i - inputs.first) * s.row + (o - outputs.first), s.point, slots, taps, parts, part_step,
                   all);
      write_taps(all, dw + (o * c + i) * count, c * count, smaller(kLanes, outputs.end - o), count, accumulate);
    }
  }
}

// ---- products ----

void multiply(const float* v, size_t v_row, size_t tiles, const float* u, size_t step, size_t depth, size_t outputs,
              float* m, size_t m_row) {
  for (size_t j = 0; j < outputs; j += kTileColumns) {
    Tile t;
    t.a = v;
    t.a_row = v_row;
    t.a_step = 1;
    t.b = u + j / kTileColumns * step;
    t.b_step = kTileColumns;
    t.c = m + j;
    t.c_row = m_row;
    t.k = depth;
    t.columns = smaller(kTileColumns, whole_vectors(outputs - j));
    t.accumulate = false;
    multiply_panels(t, tiles);
  }
}

void correlate(const float* v, size_t v_row, size_t inputs, const float* y, size_t y_row, size_t outputs, size_t tiles,
               bool accumulate, float* s, size_t s_row) {
  for (size_t o = 0; o < outputs; o += kTileColumns) {
    Tile t;
    t.a = v;
    t.a_row = 1;
    t.a_step = v_row;
    t.b = y + o;
    t.b_step = y_row;
    t.c = s + o;
    t.c_row = s_row;
    t.k = tiles;
    t.columns = smaller(kTileColumns, whole_vectors(outputs - o));
    t.accumulate = accumulate;
    multiply_panels(t, inputs);
  }
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {kLanes, kTileColumns, room_floats, weights,   data,
                         gradient, multiply,   outputs,     correlate, weight_gradient};

}  // namespace obn::OBN_TARGET::winograd::strided
