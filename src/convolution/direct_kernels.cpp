// Direct convolution, the loops: compiled once per target. Everything here assumes a checked call and a plan that fits.
//
// Letters: m output channel, c input channel, k = (c, tap), all within a group; a frame is the copy of a block of the
// input described in direct.h.
#include "convolution/direct.h"

#include "simd/tile.h"

namespace obn::OBN_TARGET::convolution::direct {

using obn::convolution::Planes;
using obn::convolution::direct::Block;
using obn::convolution::direct::Correlation;
using obn::convolution::direct::Kernels;
using obn::convolution::direct::Phase;
using obn::convolution::direct::Tap;
using obn::convolution::direct::Taps;
using obn::convolution::direct::WeightSum;

namespace {

constexpr size_t kSlack = 64;  // floats behind a frame that a tile may read

OBN_INLINE size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
OBN_INLINE size_t round_up(size_t a, size_t b) { return (a + b - 1) / b * b; }

// Panel p of `rows` rows, cut as row_panels() says.
struct Panel {
  size_t first;
  size_t rows;
};
OBN_INLINE Panel panel_of(size_t rows, size_t p) {
  const size_t panels = row_panels(rows), each = rows / panels, more = rows % panels;
  return {p * each + smaller(p, more), each + (p < more)};
}

// ---- frames ----

OBN_INLINE void fill_zero(float* p, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(p + i, F{});
  for (; i < n; ++i) p[i] = 0.0f;
}

// to[i] = from[i·step]
OBN_INLINE void copy_run(const float* from, size_t step, size_t n, float* to) {
  size_t i = 0;
  if (step == 1) {
    for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
    if (i < n) store_first(to + i, load_first(from + i, n - i), n - i);
    return;
  }
  if (step == 2) {
    for (; i + kLanes < n; i += kLanes) {  // not the last value: the one behind it may be nobody's
      F even, odd;
      split_pairs(load(from + 2 * i), load(from + 2 * i + kLanes), &even, &odd);
      store(to + i, even);
    }
  }
  for (; i < n; ++i) to[i] = from[i * step];
}

// Values [low, high) of a run of n lie in the image; the first of them is `from`.
struct Run {
  size_t low, high;
  int64_t from;
};
OBN_INLINE Run run_of(const Taps& t, int64_t start, size_t n) {
  const int64_t length = static_cast<int64_t>(n);
  int64_t low = start >= 0 ? 0 : (-start + t.step - 1) / t.step;
  int64_t high = start >= t.in ? 0 : (t.in - start + t.step - 1) / t.step;
  low = low < length ? low : length;
  high = high < low ? low : high < length ? high : length;
  return {static_cast<size_t>(low), static_cast<size_t>(high), start + low * t.step};
}

// The frame of the block whose first position is (row, column), from `channels` planes of the input.
void copy_frame(const Taps& x, const Taps& y, const Block& b, const float* planes, size_t plane, size_t plane_row,
                size_t channels, size_t row, size_t column, float* frame) {
  const size_t rows = b.slot / b.pitch;
  for (size_t sx = 0; sx < x.slots; ++sx) {
    const int64_t start = x.step * (static_cast<int64_t>(column) + x.first) + x.remainders[sx];
    const Run run = run_of(x, start, b.pitch);
    for (size_t sy = 0; sy < y.slots; ++sy) {
      for (size_t c = 0; c < channels; ++c) {
        float* to = frame + c * b.channel + (sy * x.slots + sx) * b.slot;
        int64_t v = y.step * (static_cast<int64_t>(row) + y.first) + y.remainders[sy];
        for (size_t r = 0; r < rows; ++r, v += y.step, to += b.pitch) {
          if (v < 0 || v >= y.in || run.low == run.high) {
            fill_zero(to, b.pitch);
            continue;
          }
          const float* from = planes + c * plane + static_cast<size_t>(v) * plane_row + run.from;
          for (size_t i = 0; i < run.low; ++i) to[i] = 0.0f;
          copy_run(from, static_cast<size_t>(x.step), run.high - run.low, to + run.low);
          for (size_t i = run.high; i < b.pitch; ++i) to[i] = 0.0f;
        }
      }
    }
  }
  fill_zero(frame + channels * b.channel, kSlack);
}

// ---- weights ----

// to[p·rows + i] = from[i·step + p], p < n: a panel of rows becomes columns.
void transpose_panel(const float* from, size_t step, size_t rows, size_t n, float* to) {
  for (size_t i = 0; i < rows; i += kLanes) {
    const size_t height = smaller(kLanes, rows - i);
    for (size_t p = 0; p < n; p += kLanes) {
      const size_t width = smaller(kLanes, n - p);
      F v[kLanes];
#pragma GCC unroll 16
      for (size_t r = 0; r < kLanes; ++r) {
        const float* row = from + (i + r) * step + p;
        v[r] = r >= height ? F{} : width == kLanes ? load(row) : load_first(row, width);
      }
      transpose(v);
      for (size_t q = 0; q < width; ++q) {
        float* column = to + (p + q) * rows + i;
        if (height == kLanes) {
          store(column, v[q]);
        } else {
          store_first(column, v[q], height);
        }
      }
    }
  }
}

void pack_weights(const Correlation& call, size_t group, size_t panel) {
  const Panel rows = panel_of(call.out_channels, panel);
  const float* w = call.w + group * call.w_group + rows.first * call.w_out;
  float* packed = call.packed + group * call.packed_group;
  const size_t y_phases = static_cast<size_t>(call.y.phases), x_phases = static_cast<size_t>(call.x.phases);
  const Phase* phase = call.phases;
  if (call.w_in * call.in_channels == call.w_out && phase->taps == call.w_in) {  // k lies in order
    transpose_panel(w, call.w_out, rows.rows, call.w_out, packed + rows.first * call.w_out);
    return;
  }
  for (size_t py = 0; py < y_phases; ++py) {
    for (size_t px = 0; px < x_phases; ++px, ++phase) {
      float* to = packed + phase->weights + rows.first * call.in_channels * phase->taps;
      for (size_t c = 0; c < call.in_channels; ++c) {
        for (size_t ty = call.y.begin[py]; ty < call.y.begin[py + 1]; ++ty) {
          for (size_t tx = call.x.begin[px]; tx < call.x.begin[px + 1]; ++tx, to += rows.rows) {
            const size_t tap = static_cast<size_t>(call.y.taps[ty].index) * call.kernel_columns +
                               static_cast<size_t>(call.x.taps[tx].index);
            const float* from = w + c * call.w_in + tap;
            for (size_t i = 0; i < rows.rows; ++i) to[i] = from[i * call.w_out];
          }
        }
      }
    }
  }
}

// ---- products ----

// c (rows, columns) = start + a (rows, k) · b (k, columns); a is packed, b(p, j) lies at b[offsets[p] + j], which is
// there for whole vectors. start is c where accumulate, else bias (rows), else 0.
struct Product {
  const float* a;
  const float* b;
  const size_t* offsets;
  size_t k;
  float* c;
  size_t c_row;
  size_t columns;
  const float* bias;
  bool accumulate;
};

template <size_t kRows, size_t kVectors>
[[gnu::noinline]] static void multiply(const Product& t) {
  F sum[kRows][kVectors];
  const size_t tail = t.columns - (kVectors - 1) * kLanes;  // values in the last vector
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    const F start = t.bias ? splat(t.bias[i]) : F{};
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) sum[i][v] = start;
    __builtin_prefetch(t.c + i * t.c_row, 1);
    __builtin_prefetch(t.c + i * t.c_row + t.columns - 1, 1);
  }
  if (t.accumulate) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) {
      const float* c = t.c + i * t.c_row;
      if constexpr (kVectors == 2) sum[i][0] = load(c);
      const float* last = c + (kVectors - 1) * kLanes;
      sum[i][kVectors - 1] = tail == kLanes ? load(last) : load_first(last, tail);
    }
  }
  const float* a = t.a;
  for (size_t p = 0; p < t.k; ++p, a += kRows) {
    const float* b = t.b + t.offsets[p];
    F right[kVectors];
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) {
      const F left = splat(a[i]);
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) sum[i][v] += left * right[v];
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    float* c = t.c + i * t.c_row;
    if constexpr (kVectors == 2) store(c, sum[i][0]);
    float* last = c + (kVectors - 1) * kLanes;
    if (tail == kLanes) {
      store(last, sum[i][kVectors - 1]);
    } else {
      store_first(last, sum[i][kVectors - 1], tail);
    }
  }
}

using Multiply = void (*)(const Product&);

template <size_t kVectors>
struct Multiplies {
#if defined(__AVX512F__)
  static constexpr Multiply of[] = {
      nullptr,                multiply<1, kVectors>,  multiply<2, kVectors>,  multiply<3, kVectors>,
      multiply<4, kVectors>,  multiply<5, kVectors>,  multiply<6, kVectors>,  multiply<7, kVectors>,
      multiply<8, kVectors>,  multiply<9, kVectors>,  multiply<10, kVectors>, multiply<11, kVectors>,
      multiply<12, kVectors>, multiply<13, kVectors>, multiply<14, kVectors>};
#elif defined(__AVX2__) || defined(__SSE2__)
  static constexpr Multiply of[] = {nullptr,               multiply<1, kVectors>, multiply<2, kVectors>,
                                    multiply<3, kVectors>, multiply<4, kVectors>, multiply<5, kVectors>,
                                    multiply<6, kVectors>};
#else
  static constexpr Multiply of[] = {nullptr,               multiply<1, kVectors>, multiply<2, kVectors>,
                                    multiply<3, kVectors>, multiply<4, kVectors>, multiply<5, kVectors>,
                                    multiply<6, kVectors>, multiply<7, kVectors>, multiply<8, kVectors>};
#endif
};

// ---- forward and input gradient ----

// One row of the output from the sums of all phases of the columns: to[phases·j + phase] = sums[phase·step + j].
OBN_INLINE void join_run(const float* sums, size_t step, size_t phases, size_t n, bool accumulate, float* to) {
  size_t u = 0;
  if (phases == 1) {
    for (; u + kLanes <= n; u += kLanes) store(to + u, accumulate ? load(to + u) + load(sums + u) : load(sums + u));
  } else if (phases == 2) {
    for (; u + 2 * kLanes <= n; u += 2 * kLanes) {
      F a, b;
      join_pairs(load(sums + u / 2), load(sums + step + u / 2), &a, &b);
      store(to + u, accumulate ? load(to + u) + a : a);
      store(to + u + kLanes, accumulate ? load(to + u + kLanes) + b : b);
    }
  }
  for (; u < n; ++u) {
    const float v = sums[u % phases * step + u / phases];
    to[u] = accumulate ? to[u] + v : v;
  }
}

// One piece of work.
struct Place {
  size_t sample, group;
  size_t first_panel, last_panel;
  size_t row, rows;        // positions of the block
  size_t column, columns;
};

OBN_INLINE Place place_of(const Correlation& call, size_t piece) {
  const Block& b = call.block;
  Place p;
  p.column = piece % b.column_blocks * b.columns;
  piece /= b.column_blocks;
  p.row = piece % b.row_blocks * b.rows;
  piece /= b.row_blocks;
  const size_t panels = row_panels(call.out_channels), part = piece % call.parts;
  piece /= call.parts;
  p.first_panel = panels * part / call.parts;
  p.last_panel = panels * (part + 1) / call.parts;
  p.group = piece % call.groups;
  p.sample = piece / call.groups;
  return p;
}

// Sums of one panel and one phase of both axes, channels [first, first + channels) of the frame, into c: rows of output
// channels c_row apart, rows of positions c_pitch apart.
void multiply_panel(const Correlation& call, const Phase& phase, const float* weights, const float* bias, size_t m,
                    const float* frame, size_t channels, bool accumulate, size_t rows, size_t columns, float* c,
                    size_t c_row, size_t c_pitch) {
  const Block& b = call.block;
  const size_t runs = call.by_rows ? rows : 1;
  const size_t length = call.by_rows ? columns : (rows - 1) * b.pitch + columns;
  Product t;
  t.c_row = c_row;
  t.offsets = phase.offsets;
  for (size_t done = 0; done < channels; done += phase.channels) {
    t.a = weights + done * phase.taps * m;
    t.k = smaller(phase.channels, channels - done) * phase.taps;
    t.accumulate = accumulate || done > 0;
    t.bias = bias;
    for (size_t run = 0; run < runs; ++run) {
      for (size_t j = 0; j < length; j += kTileColumns) {
        t.b = frame + done * b.channel + run * b.pitch + j;
        t.c = c + run * c_pitch + j;
        t.columns = smaller(kTileColumns, length - j);
        if (!call.by_rows) t.columns = round_up(t.columns, kLanes);
        (t.columns > kLanes ? Multiplies<2>::of : Multiplies<1>::of)[m](t);
      }
    }
  }
}

void correlate(const Correlation& call, size_t piece, float* scratch) {
  const Block& b = call.block;
  const Place at = place_of(call, piece);
  const size_t x_phases = static_cast<size_t>(call.x.phases), y_phases = static_cast<size_t>(call.y.phases);
  float* frame = scratch;
  float* sums = frame + round_up(b.channels * b.channel + kSlack, 16);
  const size_t c_row = round_up((b.rows - 1) * b.pitch + b.columns, kTileColumns);  // of sums
  const bool at_once = b.channels >= call.in_channels;
  const size_t part_first = panel_of(call.out_channels, at.first_panel).first;
  const size_t part_last = at.last_panel == 0 ? 0
                                              : panel_of(call.out_channels, at.last_panel - 1).first +
                                                    panel_of(call.out_channels, at.last_panel - 1).rows;
  const size_t sum_rows = at_once ? kTileRows : part_last - part_first;  // output channels in sums
  const float* in = call.in.data + at.sample * call.in.sample + at.group * call.in_channels * call.in.plane;
  float* out = call.out.data + at.sample * call.out.sample + at.group * call.out_channels * call.out.plane;
  const size_t out_width = static_cast<size_t>(call.x.out), first_column = at.column * x_phases;
  for (size_t py = 0; py < y_phases; ++py) {
    if (call.y.count(py) <= at.row) continue;
    const size_t rows = smaller(b.rows, call.y.count(py) - at.row);
    for (size_t c = 0; c < call.in_channels; c += b.channels) {
      const size_t channels = smaller(b.channels, call.in_channels - c);
      const bool is_last = c + channels == call.in_channels;
      if (py == 0 || !at_once)
        copy_frame(call.x, call.y, b, in + c * call.in.plane, call.in.plane, call.in.row, channels, at.row, at.column,
                   frame);
      for (size_t panel = at.first_panel; panel < at.last_panel; ++panel) {
        const Panel m = panel_of(call.out_channels, panel);
        const float* bias = call.bias ? call.bias + at.group * call.out_channels + m.first : nullptr;
        const size_t sum_first = at_once ? 0 : m.first - part_first;
        float* first_row = out + m.first * call.out.plane + (py + at.row * y_phases) * call.out.row + first_column;
        for (size_t px = 0; px < x_phases; ++px) {
          if (call.x.count(px) <= at.column) continue;
          const Phase& phase = call.phases[py * x_phases + px];
          const float* weights = call.packed + at.group * call.packed_group + phase.weights +
                                 (m.first * call.in_channels + c * m.rows) * phase.taps;
          const size_t columns = smaller(b.columns, call.x.count(px) - at.column);
          if (call.in_place) {
            multiply_panel(call, phase, weights, bias, m.rows, frame, channels, c > 0 || call.accumulate, rows,
                           columns, first_row, call.out.plane, call.out.row * y_phases);
          } else {
            multiply_panel(call, phase, weights, bias, m.rows, frame, channels, c > 0, rows, columns,
                           sums + (px * sum_rows + sum_first) * c_row, c_row, b.pitch);
          }
        }
        if (!is_last || (call.in_place && !call.activation)) continue;
        const size_t n = smaller(b.columns * x_phases, out_width - first_column);
        for (size_t i = 0; i < m.rows; ++i) {
          for (size_t r = 0; r < rows; ++r) {
            float* to = first_row + i * call.out.plane + r * y_phases * call.out.row;
            if (!call.in_place)
              join_run(sums + (sum_first + i) * c_row + r * b.pitch, sum_rows * c_row, x_phases, n, call.accumulate,
                       to);
            if (call.activation) call.activation->forward(to, n);
          }
        }
      }
    }
  }
}

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

// c (rows, kTileColumns) += Σ over pixels of a(row, pixel) · b(pixel, :), a(i, pixel) at a[offsets[i] + pixel].
struct PixelSum {
  const float* a;
  const size_t* offsets;
  size_t a_pitch;
  const float* b;
  float* c;
  size_t rows, columns;  // of pixels
};

template <size_t kRows>
[[gnu::noinline]] static void sum_pixels(const PixelSum& t) {
  F left[kRows], right[kRows];
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) left[i] = right[i] = F{};
  const float* b = t.b;
  for (size_t r = 0; r < t.rows; ++r) {
    const float* a = t.a + r * t.a_pitch;
    for (size_t q = 0; q < t.columns; ++q, ++a, b += kTileColumns) {
      const F b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 16
      for (size_t i = 0; i < kRows; ++i) {
        const F v = splat(a[t.offsets[i]]);
        left[i] += v * b0;
        right[i] += v * b1;
      }
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    float* c = t.c + i * kTileColumns;
    store(c, load(c) + left[i]);
    store(c + kLanes, load(c + kLanes) + right[i]);
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
    nullptr,       sum_pixels<1>, sum_pixels<2>, sum_pixels<3>, sum_pixels<4>,
    sum_pixels<5>, sum_pixels<6>, sum_pixels<7>, sum_pixels<8>};
#endif

// Where the sums of a panel of a group begin: (channel, used tap, kTileColumns) follow.
OBN_INLINE float* sums_at(const WeightSum& call, size_t part, size_t group, size_t panel) {
  return call.sums +
         ((part * call.groups + group) * call.panels + panel) * call.in_channels * call.used * kTileColumns;
}

void sum_weights(const WeightSum& call, size_t piece, float* scratch) {
  const Block& b = call.block;
  const size_t channel_blocks = (call.in_channels + b.channels - 1) / b.channels;
  const size_t panel_blocks = (call.panels + call.panels_at_once - 1) / call.panels_at_once;
  const size_t c0 = piece % channel_blocks * b.channels;
  piece /= channel_blocks;
  const size_t first_panel = piece % panel_blocks * call.panels_at_once;
  piece /= panel_blocks;
  const size_t group = piece % call.groups, part = piece / call.groups;
  const size_t channels = smaller(b.channels, call.in_channels - c0);
  const size_t panels = smaller(call.panels_at_once, call.panels - first_panel);
  const size_t k = channels * call.used;
  for (size_t panel = first_panel; panel < first_panel + panels; ++panel)
    fill_zero(sums_at(call, part, group, panel) + c0 * call.used * kTileColumns, k * kTileColumns);
  if (k == 0) return;
  float* frame = scratch;
  float* pixels = call.is_flat ? scratch : frame + round_up(b.channels * b.channel + kSlack, 16);
  const size_t blocks = b.row_blocks * b.column_blocks, all = call.batch * blocks;
  for (size_t block = all * part / call.parts; block < all * (part + 1) / call.parts; ++block) {
    const size_t sample = block / blocks, row = block % blocks / b.column_blocks * b.rows;
    const size_t column = block % b.column_blocks * b.columns;
    const size_t rows = smaller(b.rows, call.y_taps.count() - row);
    const size_t columns = smaller(b.columns, call.x_taps.count() - column);
    const float* x = call.x.data + sample * call.x.sample + (group * call.in_channels + c0) * call.x.plane;
    const float* dz = call.dz.data + sample * call.dz.sample + row * call.dz.row + column;
    if (call.is_flat) {
      x += column;
    } else {
      copy_frame(call.x_taps, call.y_taps, b, x, call.x.plane, call.x.row, channels, row, column, frame);
      x = frame;
    }
    for (size_t panel = first_panel; panel < first_panel + panels; ++panel) {
      const size_t o = panel * kTileColumns;
      transpose_pixels(dz + (group * call.out_channels + o) * call.dz.plane, call.dz.plane, call.dz.row,
                       call.out_channels - o, rows, columns, pixels);
      float* sums = sums_at(call, part, group, panel) + c0 * call.used * kTileColumns;
      const size_t tiles = row_panels(k);
      for (size_t tile = 0; tile < tiles; ++tile) {
        const Panel p = panel_of(k, tile);
        sums_of_pixels[p.rows](
            {x, call.offsets + p.first, b.pitch, pixels, sums + p.first * kTileColumns, rows, columns});
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
    for (size_t i = 0; i < kLanes; ++i) v[i] = F{};
    for (size_t i = 0; i < width; ++i) {
      for (size_t part = 0; part < call.parts; ++part)
        v[i] += load(sums_at(call, part, group, panel) + (p + i) * kTileColumns + lane);
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

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {kLanes, kTileRows, kTileColumns, pack_weights, correlate, sum_weights, finish_weights};

}  // namespace obn::OBN_TARGET::convolution::direct
