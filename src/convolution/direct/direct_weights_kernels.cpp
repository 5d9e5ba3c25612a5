// Direct convolution, the loops of the weight gradient: compiled once per target.
#include <cstddef>

#include "base/integer.h"
#include "base/interrupt.h"
#include "convolution/direct/direct_frame.h"

namespace obn::OBN_TARGET::convolution::direct {

namespace {

// ---- weight gradient ----

// Turns positions of dz, output channels [first, first + kTileColumns), into (pixel, kTileColumns).
void transpose_pixels(const float* planes, size_t plane, size_t plane_row, size_t outputs, size_t rows, size_t columns,
                      float* to) {
  for (size_t o = 0; o < kTileColumns; o += kLanes) {
    const size_t height = o >= outputs ? 0 : smaller(kLanes, outputs - o);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t q = 0; q < columns; q += kLanes) {
        const size_t width = smaller(kLanes, columns - q);
        F v[kLanes];
#pragma GCC unroll 16
        for (size_t i = 0; i < kLanes; ++i) {
          const float* row = planes + (o + i) * plane + r * plane_row + q;
          v[i] = i >= height ? F{} : width == kLanes ? load(row) : load_first(row, width);
        }
        transpose(v);
        float* column = to + (r * columns + q) * kTileColumns + o;
        for (size_t i = 0; i < width; ++i) store(column + i * kTileColumns, v[i]);
      }
    }
  }
}

// c (rows, kTileColumns) = c + Σ over pixels of a(row, pixel) · b(pixel, :), a(i, pixel) at a[offsets[i] + pixel].
struct PixelSum {
  const float* a;
  const size_t* offsets;
  size_t a_pitch;
  const float* b;
  float* c;
  size_t rows, columns;  // of pixels
  bool accumulate;       // else c = …
  Ahead* ahead;          // two of them, fetched meanwhile one after the other
};

template <size_t kRows>
[[gnu::noinline]] static void sum_pixels(const PixelSum& t) {
  F left[kRows], right[kRows];
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) left[i] = right[i] = F{};
  const float* b = t.b;
  const size_t* offsets = t.offsets;
  const size_t columns = t.columns;
  for (size_t r = 0; r < t.rows; ++r) {
    const float* a = t.a + r * t.a_pitch;
    const float* next = a;
    size_t q = 0, next_step = kLine;
    for (size_t end = take_lines(t.ahead + (t.ahead->planes == 0), columns, &next);; end = columns) {
      for (; q < end; ++q, ++a, b += kTileColumns, next += next_step) {
        __builtin_prefetch(next, 0, 2);
        const F b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 16
        for (size_t i = 0; i < kRows; ++i) {
          const F v = splat(a[offsets[i]]);
          left[i] = fma(v, b0, left[i]);
          right[i] = fma(v, b1, right[i]);
        }
      }
      if (q == columns) break;
      next = a;  // a line that is there costs nothing
      next_step = 0;
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    float* c = t.c + i * kTileColumns;
    store(c, t.accumulate ? load(c) + left[i] : left[i]);
    store(c + kLanes, t.accumulate ? load(c + kLanes) + right[i] : right[i]);
  }
}

using SumPixels = void (*)(const PixelSum&);

#if defined(__AVX512F__)
static constexpr SumPixels sums_of_pixels[kTileRows + 1] = {
    nullptr,        sum_pixels<1>,  sum_pixels<2>,  sum_pixels<3>,  sum_pixels<4>,
    sum_pixels<5>,  sum_pixels<6>,  sum_pixels<7>,  sum_pixels<8>,  sum_pixels<9>,
    sum_pixels<10>, sum_pixels<11>, sum_pixels<12>, sum_pixels<13>, sum_pixels<14>};
#elif defined(__AVX2__) || defined(__SSE2__)
static constexpr SumPixels sums_of_pixels[kTileRows + 1] = {
    nullptr, sum_pixels<1>, sum_pixels<2>, sum_pixels<3>, sum_pixels<4>, sum_pixels<5>, sum_pixels<6>};
#else
static constexpr SumPixels sums_of_pixels[kTileRows + 1] = {
    nullptr,       sum_pixels<1>, sum_pixels<2>, sum_pixels<3>,  sum_pixels<4>,  sum_pixels<5>, sum_pixels<6>,
    sum_pixels<7>, sum_pixels<8>, sum_pixels<9>, sum_pixels<10>, sum_pixels<11>, sum_pixels<12>};
#endif

// Where the sums of a panel of a group begin: (channel, used tap, kTileColumns) follow.
OBN_INLINE float* sums_at(const WeightSum& call, size_t part, size_t group, size_t panel) {
  return call.sums +
         ((part * call.groups + group) * call.panels + panel) * call.in_channels * call.used * kTileColumns;
}

// Where a block of dz begins in the first output channel of a panel.
OBN_INLINE const float* gradient_at(const WeightSum& call, size_t block, size_t group, size_t panel) {
  const Block& b = call.block;
  const size_t blocks = b.row_blocks * b.column_blocks;
  const size_t row = block % blocks / b.column_blocks * b.rows, column = block % b.column_blocks * b.columns;
  return call.dz.data + block / blocks * call.dz.sample +
         (group * call.out_channels + panel * kTileColumns) * call.dz.plane + row * call.dz.row + column;
}

// The rows of x that the frame of a block is copied from, of `channels` channels from c0 on.
OBN_INLINE Ahead ahead_of_input(const WeightSum& call, size_t block, size_t group, size_t c0, size_t channels) {
  const Block& b = call.block;
  const size_t blocks = b.row_blocks * b.column_blocks;
  const size_t row = block % blocks / b.column_blocks * b.rows, column = block % b.column_blocks * b.columns;
  const float* x = call.x.data + block / blocks * call.x.sample + (group * call.in_channels + c0) * call.x.plane;
  if (call.is_flat) {
    const size_t width = static_cast<size_t>(call.x_taps.in);
    return ahead_of(x + column, call.x.plane, smaller(b.columns, width - column), channels);
  }
  const size_t step = static_cast<size_t>(call.y_taps.step), height = static_cast<size_t>(call.y_taps.in);
  const size_t first = smaller(row * step, height), last = smaller((row + b.rows) * step, height);
  return ahead_of(x + first * call.x.row, call.x.plane, (last - first) * call.x.row, first < last ? channels : 0);
}

}  // namespace

void sum_weights(const WeightSum& call, size_t piece, float* scratch) {
  const Block& b = call.block;
  const size_t channel_blocks = divide_up(call.in_channels, b.channels);
  const size_t panel_blocks = divide_up(call.panels, call.panels_at_once);
  const size_t c0 = piece % channel_blocks * b.channels;
  piece /= channel_blocks;
  const size_t first_panel = piece % panel_blocks * call.panels_at_once;
  piece /= panel_blocks;
  const size_t group = piece % call.groups, part = piece / call.groups;
  const size_t channels = smaller(b.channels, call.in_channels - c0);
  const size_t panels = smaller(call.panels_at_once, call.panels - first_panel);
  const size_t k = channels * call.used;
  if (k == 0) return;
  float* frame = scratch;
  float* pixels = call.is_flat ? scratch : frame + round_up(b.channels * b.channel + kFrameSlack, 16);
  const size_t blocks = b.row_blocks * b.column_blocks, all = call.batch * blocks;
  const size_t first_block = all * part / call.parts, last_block = all * (part + 1) / call.parts;
  for (size_t panel = first_panel; first_block == last_block && panel < first_panel + panels; ++panel)  // no sample
    fill_zero(sums_at(call, part, group, panel) + c0 * call.used * kTileColumns, k * kTileColumns);
  for (size_t block = first_block; block < last_block; ++block) {
    if (is_interrupted()) return;
    const bool is_first = block == first_block;
    const size_t sample = block / blocks, row = block % blocks / b.column_blocks * b.rows;
    const size_t column = block % b.column_blocks * b.columns;
    const size_t rows = smaller(b.rows, call.y_taps.count() - row);
    const size_t columns = smaller(b.columns, call.x_taps.count() - column);
    const float* x = call.x.data + sample * call.x.sample + (group * call.in_channels + c0) * call.x.plane;
    if (call.is_flat) {
      x += column;
    } else {
      copy_frame(call.x_taps, call.y_taps, b, x, call.x.plane, call.x.row, channels, row, column, frame);
      x = frame;
    }
    Ahead ahead[2] = {};  // gradients of the next panel, and the next block's x
    if (block + 1 < last_block) ahead[1] = ahead_of_input(call, block + 1, group, c0, channels);
    for (size_t panel = first_panel; panel < first_panel + panels; ++panel) {
      const size_t outputs = call.out_channels - panel * kTileColumns;
      transpose_pixels(gradient_at(call, block, group, panel), call.dz.plane, call.dz.row, outputs, rows, columns,
                       pixels);
      const bool is_last = panel + 1 == first_panel + panels;
      const size_t next_block = is_last ? block + 1 : block, next_panel = is_last ? first_panel : panel + 1;
      ahead[0] = {};
      if (next_block < last_block) {
        const size_t planes = smaller(kTileColumns, call.out_channels - next_panel * kTileColumns);
        ahead[0] = ahead_of(gradient_at(call, next_block, group, next_panel), call.dz.plane,
                         rows > 1 ? rows * call.dz.row : columns, planes);
      }
      float* sums = sums_at(call, part, group, panel) + c0 * call.used * kTileColumns;
      const size_t tiles = row_panels(k);
      for (size_t tile = 0; tile < tiles; ++tile) {
        const Panel p = panel_of(k, tile);
        sums_of_pixels[p.rows]({x, call.offsets + p.first, b.pitch, pixels, sums + p.first * kTileColumns, rows,
                                columns, !is_first, ahead});
      }
    }
  }
}

void finish_weights(const WeightSum& call, size_t group, size_t lanes_of_outputs) {
  const size_t o0 = lanes_of_outputs * kLanes, outputs = smaller(kLanes, call.out_channels - o0);
  const size_t k = call.in_channels * call.used, row = call.in_channels * call.taps;
  const size_t panel = o0 / kTileColumns, lane = o0 % kTileColumns;
  float* dw = call.dw + (group * call.out_channels + o0) * row;
  const bool all = call.used == call.taps;
  if (!all && !call.accumulate)
    for (size_t o = 0; o < outputs; ++o) fill_zero(dw + o * row, row);
  const bool add = call.accumulate || !all;
  for (size_t p = 0; p < k; p += kLanes) {
    const size_t width = smaller(kLanes, k - p);
    F v[kLanes];
#pragma GCC unroll 16
    for (size_t i = 0; i < kLanes; ++i) v[i] = F{};
    for (size_t part = 0; part < call.parts; ++part) {
      const float* from = sums_at(call, part, group, panel) + p * kTileColumns + lane;
      if (width == kLanes) {
#pragma GCC unroll 16
        for (size_t i = 0; i < kLanes; ++i) v[i] += load(from + i * kTileColumns);
      } else {
#pragma GCC unroll 16
        for (size_t i = 0; i < kLanes; ++i)
          if (i < width) v[i] += load(from + i * kTileColumns);
      }
    }
    transpose(v);
    for (size_t o = 0; o < outputs; ++o) {
      float* to = dw + o * row;
      if (all) {
        to += p;
        if (width == kLanes) {
          store(to, add ? load(to) + v[o] : v[o]);
        } else {
          store_first(to, add ? load_first(to, width) + v[o] : v[o], width);
        }
        continue;
      }
      for (size_t i = 0; i < width; ++i) {
        const size_t c = (p + i) / call.used, t = (p + i) % call.used, columns = call.x_taps.begin[1];
        const size_t ky = static_cast<size_t>(call.y_taps.taps[t / columns].index);
        const size_t kx = static_cast<size_t>(call.x_taps.taps[t % columns].index);
        to[c * call.taps + ky * call.kernel_columns + kx] += v[o][i];
      }
    }
  }
}

}  // namespace obn::OBN_TARGET::convolution::direct
