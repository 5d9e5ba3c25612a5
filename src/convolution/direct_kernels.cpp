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
using obn::convolution::direct::kFrameSlack;
using obn::convolution::direct::Kernels;
using obn::convolution::direct::Phase;
using obn::convolution::direct::Tap;
using obn::convolution::direct::Taps;
using obn::convolution::direct::WeightSum;

namespace {

constexpr size_t kLine = 16;  // floats of a cache line

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

// The output channels of a panel.
OBN_INLINE Panel panel_of(const Correlation& call, size_t p) {
  if (!call.outputs_in_lanes) return panel_of(call.out_channels, p);
  return {p * kTileColumns, smaller(kTileColumns, call.out_channels - p * kTileColumns)};
}
// How many channels lie side by side in its packed weights.
OBN_INLINE size_t packed_rows(const Correlation& call, const Panel& panel) {
  return call.outputs_in_lanes ? kTileColumns : panel.rows;
}

// ---- frames ----

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

// Which of the n values from `start` on, `step` apart, lie in [0, in).
struct Range {
  size_t low, high;
};
OBN_INLINE int64_t steps_to(int64_t distance, int64_t step) {  // without a division where that is easy
  return step == 1 ? distance : step == 2 ? (distance + 1) >> 1 : (distance + step - 1) / step;
}
OBN_INLINE Range range_of(int64_t start, int64_t step, int64_t in, size_t n) {
  const int64_t length = static_cast<int64_t>(n);
  int64_t low = start >= 0 ? 0 : steps_to(-start, step);
  int64_t high = start >= in ? 0 : steps_to(in - start, step);
  low = low < length ? low : length;
  high = high < low ? low : high < length ? high : length;
  return {static_cast<size_t>(low), static_cast<size_t>(high)};
}

// kLanes columns of `rows` rows: to[i] = from[i·step] for the columns in `inside`, else 0.
OBN_INLINE void copy_columns(const float* from, size_t from_row, size_t step, Range inside, size_t rows, float* to,
                             size_t pitch) {
  const size_t low = inside.low, high = inside.high;
  if (low >= high) {
    for (size_t r = 0; r < rows; ++r) store(to + r * pitch, F{});
  } else if (step == 1 && high - low == kLanes) {
    for (size_t r = 0; r < rows; ++r) store(to + r * pitch, load(from + r * from_row));
  } else if (step == 1) {
    for (size_t r = 0; r < rows; ++r) store(to + r * pitch, load_between(from + r * from_row, low, high));
  } else if (step == 2) {
    // Values 2·low … 2·(high - 1), as lanes of two vectors.
    const size_t first = 2 * low, last = 2 * high - 1;
    const size_t low0 = smaller(first, kLanes), high0 = smaller(last, kLanes);
    const size_t low1 = first < kLanes ? 0 : first - kLanes, high1 = last < kLanes ? 0 : last - kLanes;
    for (size_t r = 0; r < rows; ++r) {
      const float* p = from + r * from_row;
      F even, odd;
      split_pairs(load_between(p, low0, high0), load_between(p + kLanes, smaller(low1, high1), high1), &even, &odd);
      store(to + r * pitch, even);
    }
  } else {
    for (size_t r = 0; r < rows; ++r) {
      store(to + r * pitch, F{});
      for (size_t i = low; i < high; ++i) to[r * pitch + i] = from[r * from_row + i * step];
    }
  }
}

// One slot of a frame: `rows` rows of b.pitch values that start at value (v, u) of a plane and are step apart in it.
// Whole vectors are written, past the end of a row by less than kLanes: the last columns come first and the rows in
// order, so that what spills over is overwritten.
OBN_INLINE void copy_slot(const Taps& x, const Taps& y, const float* plane, size_t plane_row, int64_t v, int64_t u,
                          size_t rows, size_t pitch, float* to) {
  const Range inside = range_of(v, y.step, y.in, rows), across = range_of(u, x.step, x.in, pitch);
  const size_t step = static_cast<size_t>(x.step), from_row = static_cast<size_t>(y.step) * plane_row;
  const size_t count = inside.high - inside.low;
  const float* from = plane + (v + static_cast<int64_t>(inside.low) * y.step) * static_cast<int64_t>(plane_row) + u;
  for (size_t i = 0; i < inside.low * pitch; i += kLanes) store(to + i, F{});
  float* body = to + inside.low * pitch;
  size_t j = 0;
  if (count == 1 && step == 1 && across.low == 0) {  // one long row: in its own order, which the machine expects
    for (; j + kLanes <= across.high; j += kLanes) store(body + j, load(from + j));
  }
  const size_t done = j;
  for (j = round_up(pitch, kLanes); count > 0 && j > done;) {
    j -= kLanes;
    const Range columns = {across.low > j ? smaller(across.low - j, kLanes) : 0,
                           across.high > j ? smaller(across.high - j, kLanes) : 0};
    copy_columns(from + j * step, from_row, step, columns, count, body + j, pitch);
  }
  for (size_t i = inside.high * pitch; i < rows * pitch; i += kLanes) store(to + i, F{});
}

// Both remainders of a row with step 2 at once: value (v, u) of the plane begins those of remainder 0, (v, u + 1) those
// of remainder 1. Only for a pitch of whole vectors, where nothing spills over.
OBN_INLINE void copy_pair_of_slots(const Taps& x, const Taps& y, const float* plane, size_t plane_row, int64_t v,
                                   int64_t u, size_t rows, size_t pitch, float* to_even, float* to_odd) {
  const Range inside = range_of(v, y.step, y.in, rows), across = range_of(u, 1, x.in, 2 * pitch);
  const size_t from_row = static_cast<size_t>(y.step) * plane_row;
  const float* from = plane + v * static_cast<int64_t>(plane_row) + u;
  for (size_t j = 0; j < pitch; j += kLanes) {
    size_t low[2], high[2];  // lanes of two vectors
    for (size_t i = 0; i < 2; ++i) {
      const size_t start = 2 * j + i * kLanes;
      high[i] = across.high > start ? smaller(across.high - start, kLanes) : 0;
      low[i] = across.low > start ? smaller(across.low - start, high[i]) : 0;
    }
    size_t r = 0;
    for (; r < inside.low; ++r) {
      store(to_even + r * pitch + j, F{});
      store(to_odd + r * pitch + j, F{});
    }
    for (; r < inside.high; ++r) {
      const float* p = from + r * from_row + 2 * j;
      F even, odd;
      split_pairs(load_between(p, low[0], high[0]), load_between(p + kLanes, low[1], high[1]), &even, &odd);
      store(to_even + r * pitch + j, even);
      store(to_odd + r * pitch + j, odd);
    }
    for (; r < rows; ++r) {
      store(to_even + r * pitch + j, F{});
      store(to_odd + r * pitch + j, F{});
    }
  }
}

// The frame of the block whose first position is (row, column), from `channels` planes of the input. Slots are written
// in the order in which they lie.
void copy_frame(const Taps& x, const Taps& y, const Block& b, const float* planes, size_t plane, size_t plane_row,
                size_t channels, size_t row, size_t column, float* frame) {
  const size_t rows = b.slot / b.pitch;
  const int64_t v = y.step * (static_cast<int64_t>(row) + y.first);
  const int64_t u = x.step * (static_cast<int64_t>(column) + x.first);
  const int64_t first = v * static_cast<int64_t>(plane_row) + u;  // where the block begins in a plane
  const bool in_pairs = x.step == 2 && x.slots == 2 && b.pitch % kLanes == 0;
  const Range height = range_of(v, 1, y.in, rows * static_cast<size_t>(y.step));
  const Range width = range_of(u, 1, x.in, b.pitch * static_cast<size_t>(x.step));
  for (size_t c = 0; c < channels; ++c) {
    if (c + 1 < channels) {
      for (size_t r = height.low; r < height.high; ++r) {
        const float* next = planes + (c + 1) * plane + first + static_cast<int64_t>(r * plane_row);
        for (size_t i = width.low; i < width.high; i += kLine) __builtin_prefetch(next + i);
      }
    }
    float* to = frame + c * b.channel;
    for (size_t sy = 0; sy < y.slots; ++sy) {
      if (in_pairs) {
        const size_t odd = x.remainders[0] == 1 ? 0 : b.slot;
        copy_pair_of_slots(x, y, planes + c * plane, plane_row, v + y.remainders[sy], u, rows, b.pitch,
                           to + (b.slot - odd), to + odd);
        to += 2 * b.slot;
        continue;
      }
      for (size_t sx = 0; sx < x.slots; ++sx, to += b.slot)
        copy_slot(x, y, planes + c * plane, plane_row, v + y.remainders[sy], u + x.remainders[sx], rows, b.pitch, to);
    }
  }
  fill_zero(frame + channels * b.channel, kFrameSlack);
}

// ---- weights ----

// to[p·width + i] = from[i·step + p], p < n, i < rows; 0 for i from rows to width: a panel of rows becomes columns.
void transpose_panel(const float* from, size_t step, size_t rows, size_t n, size_t width, float* to) {
  for (size_t i = 0; i < width; i += kLanes) {
    const size_t height = i >= rows ? 0 : smaller(kLanes, rows - i), stored = smaller(kLanes, width - i);
    for (size_t p = 0; p < n; p += kLanes) {
      const size_t some = smaller(kLanes, n - p);
      F v[kLanes];
#pragma GCC unroll 16
      for (size_t r = 0; r < kLanes; ++r) {
        const float* row = from + (i + r) * step + p;
        v[r] = r >= height ? F{} : some == kLanes ? load(row) : load_first(row, some);
      }
      transpose(v);
      for (size_t q = 0; q < some; ++q) {
        float* column = to + (p + q) * width + i;
        if (stored == kLanes) {
          store(column, v[q]);
        } else {
          store_first(column, v[q], stored);
        }
      }
    }
  }
}

void pack_weights(const Correlation& call, size_t group, size_t panel) {
  const Panel m = panel_of(call, panel);
  const size_t width = packed_rows(call, m);
  const float* w = call.w + group * call.w_group + m.first * call.w_out;
  float* packed = call.packed + group * call.packed_group;
  const size_t y_phases = static_cast<size_t>(call.y.phases), x_phases = static_cast<size_t>(call.x.phases);
  const Phase* phase = call.phases;
  if (call.w_in * call.in_channels == call.w_out && phase->taps == call.w_in) {  // k lies in order
    transpose_panel(w, call.w_out, m.rows, call.w_out, width, packed + m.first * call.w_out);
    return;
  }
  for (size_t py = 0; py < y_phases; ++py) {
    for (size_t px = 0; px < x_phases; ++px, ++phase) {
      float* to = packed + phase->weights + m.first * call.in_channels * phase->taps;
      for (size_t c = 0; c < call.in_channels; ++c) {
        for (size_t ty = call.y.begin[py]; ty < call.y.begin[py + 1]; ++ty) {
          for (size_t tx = call.x.begin[px]; tx < call.x.begin[px + 1]; ++tx, to += width) {
            const size_t tap = static_cast<size_t>(call.y.taps[ty].index) * call.kernel_columns +
                               static_cast<size_t>(call.x.taps[tx].index);
            const float* from = w + c * call.w_in + tap;
            size_t i = 0;
            for (; i < m.rows; ++i) to[i] = from[i * call.w_out];
            for (; i < width; ++i) to[i] = 0.0f;
          }
        }
      }
    }
  }
}

// ---- products ----

// c (rows, columns) = start + a (rows, k) · b (k, columns); a is packed, b(p, j) lies at b[offsets[p] + j], which is
// there for whole vectors. start is c where accumulate, else bias (rows), else 0. With kCopies columns is kTileColumns,
// b(p, j) lies at b[p·b_step + j] and goes to copy[p·kTileColumns + j] too.
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
  const float* next = nullptr;  // for every p a cache line at next + p·next_step is fetched
  size_t next_step = 0;
  size_t b_step = 0;
  float* copy = nullptr;
};

template <size_t kRows, size_t kVectors, bool kCopies>
[[gnu::noinline]] static void multiply(const Product& t) {
  F sum[kRows][kVectors];
  const size_t tail = t.columns - (kVectors - 1) * kLanes;  // values in the last vector
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    const F start = t.bias ? splat(t.bias[i]) : F{};
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) sum[i][v] = start;
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
  const float* from = t.b;
  const size_t* offsets = t.offsets;
  float* copy = t.copy;
  const size_t k = t.k, b_step = t.b_step;
  // The rows of c are asked for one after the other, then what comes next: all at once would keep b waiting.
  size_t p = 0;
  for (size_t stage = 0; p < k; ++stage) {
    const float* rows_of_c = t.c + (stage == 0 ? 0 : t.columns - 1);
    const float* fetched = stage < 2 ? rows_of_c : t.next ? t.next : a;  // a line that is there costs nothing
    const size_t step = stage < 2 ? t.c_row : t.next_step;
    const size_t end = stage < 2 ? smaller(p + kRows, k) : k;
    for (; p < end; ++p, a += kRows, fetched += step) {
      const float* b = kCopies ? from : from + offsets[p];
      __builtin_prefetch(fetched);
      F right[kVectors];
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) {
        right[v] = load(b + v * kLanes);
        if constexpr (kCopies) store(copy + v * kLanes, right[v]);
      }
      if constexpr (kCopies) {
        from += b_step;
        copy += kTileColumns;
      }
#pragma GCC unroll 16
      for (size_t i = 0; i < kRows; ++i) {
        const F left = splat(a[i]);
#pragma GCC unroll 2
        for (size_t v = 0; v < kVectors; ++v) sum[i][v] += left * right[v];
      }
    }
  }
  float* c = t.c;
  const size_t c_row = t.c_row;
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i, c += c_row) {
    if constexpr (kVectors == 2) store(c, sum[i][0]);
    float* last = c + (kVectors - 1) * kLanes;
    if (tail == kLanes) {
      store(last, sum[i][kVectors - 1]);
    } else {
      store_first(last, sum[i][kVectors - 1], tail);
    }
  }
}

// The same with output channels across: c (pixels, kTileColumns) = start + a (pixels, k) · b (k, kTileColumns);
// a(i, p) lies at a[offsets[p] + i], b is packed. start is c where accumulate, else bias (kTileColumns).
struct TurnedProduct {
  const float* a;
  const size_t* offsets;
  const float* b;
  size_t k;
  float* c;
  const float* bias;
  bool accumulate;
  const float* next[2];  // meanwhile lines[i] cache lines from next[i] on are fetched, one for every p
  size_t lines[2];
};

template <size_t kRows>
[[gnu::noinline]] static void multiply_turned(const TurnedProduct& t) {
  F left[kRows], right[kRows];
  const float* start = t.accumulate ? t.c : t.bias;
  const size_t step = t.accumulate ? kTileColumns : 0;
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    left[i] = load(start + i * step);
    right[i] = load(start + i * step + kLanes);
  }
  const float* b = t.b;
  const size_t k = t.k;
  size_t p = 0;
  for (size_t stage = 0; p < k; ++stage) {
    const float* next = stage < 2 ? t.next[stage] : b;  // a line that is there costs nothing
    const size_t next_step = stage < 2 ? kLine : 0, end = stage < 2 ? smaller(p + t.lines[stage], k) : k;
    for (; p < end; ++p, b += kTileColumns, next += next_step) {
      const float* a = t.a + t.offsets[p];
      __builtin_prefetch(next, 0, 2);
      const F b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 16
      for (size_t i = 0; i < kRows; ++i) {
        const F v = splat(a[i]);
        left[i] += v * b0;
        right[i] += v * b1;
      }
    }
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    store(t.c + i * kTileColumns, left[i]);
    store(t.c + i * kTileColumns + kLanes, right[i]);
  }
}

using MultiplyTurned = void (*)(const TurnedProduct&);

#if defined(__AVX512F__)
static constexpr MultiplyTurned multiplies_turned[kTileRows + 1] = {
    nullptr,             multiply_turned<1>,  multiply_turned<2>,  multiply_turned<3>,  multiply_turned<4>,
    multiply_turned<5>,  multiply_turned<6>,  multiply_turned<7>,  multiply_turned<8>,  multiply_turned<9>,
    multiply_turned<10>, multiply_turned<11>, multiply_turned<12>, multiply_turned<13>, multiply_turned<14>};
#elif defined(__AVX2__) || defined(__SSE2__)
static constexpr MultiplyTurned multiplies_turned[kTileRows + 1] = {
    nullptr,            multiply_turned<1>, multiply_turned<2>, multiply_turned<3>,
    multiply_turned<4>, multiply_turned<5>, multiply_turned<6>};
#else
static constexpr MultiplyTurned multiplies_turned[kTileRows + 1] = {
    nullptr,            multiply_turned<1>, multiply_turned<2>, multiply_turned<3>, multiply_turned<4>,
    multiply_turned<5>, multiply_turned<6>, multiply_turned<7>, multiply_turned<8>};
#endif

using Multiply = void (*)(const Product&);

template <size_t kVectors, bool kCopies>
struct Multiplies {
#if defined(__AVX512F__)
  static constexpr Multiply of[] = {
      nullptr, multiply<1, kVectors, kCopies>, multiply<2, kVectors, kCopies>, multiply<3, kVectors, kCopies>,
      multiply<4, kVectors, kCopies>, multiply<5, kVectors, kCopies>, multiply<6, kVectors, kCopies>,
      multiply<7, kVectors, kCopies>, multiply<8, kVectors, kCopies>, multiply<9, kVectors, kCopies>,
      multiply<10, kVectors, kCopies>, multiply<11, kVectors, kCopies>, multiply<12, kVectors, kCopies>,
      multiply<13, kVectors, kCopies>, multiply<14, kVectors, kCopies>};
#elif defined(__AVX2__) || defined(__SSE2__)
  static constexpr Multiply of[] = {
      nullptr, multiply<1, kVectors, kCopies>, multiply<2, kVectors, kCopies>, multiply<3, kVectors, kCopies>,
      multiply<4, kVectors, kCopies>, multiply<5, kVectors, kCopies>, multiply<6, kVectors, kCopies>};
#else
  static constexpr Multiply of[] = {
      nullptr, multiply<1, kVectors, kCopies>, multiply<2, kVectors, kCopies>, multiply<3, kVectors, kCopies>,
      multiply<4, kVectors, kCopies>, multiply<5, kVectors, kCopies>, multiply<6, kVectors, kCopies>,
      multiply<7, kVectors, kCopies>, multiply<8, kVectors, kCopies>};
#endif
};

// ---- forward and input gradient ----

// to[i] = v, or += v, for the first n values; n >= 1, all kLanes of them if more.
OBN_INLINE void put(float* to, F v, size_t n, bool accumulate) {
  if (n >= kLanes) {
    store(to, accumulate ? load(to) + v : v);
  } else {
    store_first(to, accumulate ? load_first(to, n) + v : v, n);
  }
}

// One row of the output from the sums of all phases of the columns: to[phases·j + phase] = sums[phase·step + j]. Reads
// whole vectors of sums.
OBN_INLINE void join_run(const float* sums, size_t step, size_t phases, size_t n, bool accumulate, float* to) {
  if (phases == 1) {
    for (size_t u = 0; u < n; u += kLanes) put(to + u, load(sums + u), n - u, accumulate);
  } else if (phases == 2) {
    for (size_t u = 0; u < n; u += 2 * kLanes) {
      F a, b;
      join_pairs(load(sums + u / 2), load(sums + step + u / 2), &a, &b);
      put(to + u, a, n - u, accumulate);
      if (u + kLanes < n) put(to + u + kLanes, b, n - u - kLanes, accumulate);
    }
  } else {
    for (size_t phase = 0; phase < phases; ++phase) {
      const float* from = sums + phase * step;
      for (size_t u = phase; u < n; u += phases, ++from) to[u] = accumulate ? to[u] + *from : *from;
    }
  }
}

// sums (rows · columns, kTileColumns) become `outputs` planes, their rows to_row apart. Reads up to kLanes pixels more.
void turn_sums(const float* sums, size_t rows, size_t columns, size_t outputs, float* to, size_t to_plane,
               size_t to_row) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < outputs; o += kLanes) {
      const size_t height = smaller(kLanes, outputs - o);
      for (size_t q = 0; q < columns; q += kLanes) {
        if (q + kLanes > columns && columns >= kLanes) q = columns - kLanes;  // the last ones again
        const size_t width = smaller(kLanes, columns - q);
        const float* from = sums + (r * columns + q) * kTileColumns + o;
        F v[kLanes];
#pragma GCC unroll 16
        for (size_t i = 0; i < kLanes; ++i) v[i] = load(from + i * kTileColumns);
        transpose(v);
        float* row = to + o * to_plane + r * to_row + q;
        if (height == kLanes && width == kLanes) {
#pragma GCC unroll 16
          for (size_t i = 0; i < kLanes; ++i) store(row + i * to_plane, v[i]);
        } else {
          for (size_t i = 0; i < height; ++i) put(row + i * to_plane, v[i], width, false);
        }
      }
    }
  }
}

// The same for two phases of the columns, which take turns in rows of n values: their sums are turned alternately.
// Those of the second are `phase` further.
void turn_pairs(const float* sums, size_t phase, size_t rows, size_t columns, size_t second_columns, size_t outputs,
                size_t n, bool accumulate, float* to, size_t to_plane, size_t to_row) {
  const bool may_repeat = n >= kLanes && n % 2 == 0 && !accumulate;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < outputs; o += kLanes) {
      const size_t height = smaller(kLanes, outputs - o);
      for (size_t u = 0; u < n; u += kLanes) {
        if (u + kLanes > n && may_repeat) u = n - kLanes;  // the last ones again
        const float* first = sums + (r * columns + u / 2) * kTileColumns + o;
        const float* second = sums + phase + (r * second_columns + u / 2) * kTileColumns + o;
        F v[kLanes];
#pragma GCC unroll 8
        for (size_t i = 0; i < kLanes / 2; ++i) {
          v[2 * i] = load(first + i * kTileColumns);
          v[2 * i + 1] = load(second + i * kTileColumns);
        }
        transpose(v);
        float* row = to + o * to_plane + r * to_row + u;
        if (height == kLanes && n - u >= kLanes && !accumulate) {
#pragma GCC unroll 16
          for (size_t i = 0; i < kLanes; ++i) store(row + i * to_plane, v[i]);
        } else {
          for (size_t i = 0; i < height; ++i) put(row + i * to_plane, v[i], n - u, accumulate);
        }
      }
    }
  }
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
  if (values < plane || planes == 0) return {start, plane, (values + kLine - 1) / kLine, planes};
  return {start, plane, (planes * plane + kLine - 1) / kLine, 1};
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

// One piece of work.
struct Place {
  size_t sample, group;
  size_t first_panel, last_panel;
  size_t row, column;  // first positions of the block
  size_t blocks;       // column blocks
};

OBN_INLINE Place place_of(const Correlation& call, size_t piece) {
  const Block& b = call.block;
  Place p;
  const size_t column_pieces = (b.column_blocks + call.blocks_at_once - 1) / call.blocks_at_once;
  const size_t block = piece % column_pieces * call.blocks_at_once;
  p.column = block * b.columns;
  p.blocks = smaller(call.blocks_at_once, b.column_blocks - block);
  piece /= column_pieces;
  p.row = piece % b.row_blocks * b.rows;
  piece /= b.row_blocks;
  const size_t part = piece % call.parts;
  piece /= call.parts;
  p.first_panel = call.panels * part / call.parts;
  p.last_panel = call.panels * (part + 1) / call.parts;
  p.group = piece % call.groups;
  p.sample = piece / call.groups;
  return p;
}

// The input of a piece: its first channel.
OBN_INLINE const float* input_at(const Correlation& call, const Place& at) {
  return call.in.data + at.sample * call.in.sample + at.group * call.in_channels * call.in.plane;
}

// What one panel and one phase of both axes are made of: the first `channels` of the frame, and their weights.
struct Step {
  const Phase* phase;
  const float* weights;
  const float* bias;
  const float* frame;
  size_t channels;
  size_t rows, columns;  // positions
  bool accumulate;
};

// Adds up m output channels in c: planes c_plane apart, rows of positions c_row apart.
void multiply_panel(const Correlation& call, const Step& s, size_t m, float* c, size_t c_plane, size_t c_row) {
  const Block& b = call.block;
  const size_t runs = call.by_rows ? s.rows : 1;
  const size_t length = call.by_rows ? s.columns : (s.rows - 1) * b.pitch + s.columns;
  Product t;
  t.c_row = c_plane;
  t.offsets = s.phase->offsets;
  t.bias = s.bias;
  for (size_t done = 0; done < s.channels; done += s.phase->channels) {
    t.a = s.weights + done * s.phase->taps * m;
    t.k = smaller(s.phase->channels, s.channels - done) * s.phase->taps;
    t.accumulate = s.accumulate || done > 0;
    for (size_t run = 0; run < runs; ++run) {
      for (size_t j = 0; j < length; j += kTileColumns) {
        t.b = s.frame + done * b.channel + run * b.pitch + j;
        t.c = c + run * c_row + j;
        t.columns = smaller(kTileColumns, length - j);
        if (!call.by_rows) t.columns = round_up(t.columns, kLanes);
        (t.columns > kLanes ? Multiplies<2, false>::of : Multiplies<1, false>::of)[m](t);
      }
    }
  }
}

// The same with output channels across, into sums (rows · columns, kTileColumns). Meanwhile the places of the output
// and the next block of the input are fetched.
void multiply_turned_panel(const Correlation& call, const Step& s, Ahead* out, Ahead* in, float* sums) {
  const Block& b = call.block;
  const size_t tiles = row_panels(s.columns);
  TurnedProduct t;
  t.offsets = s.phase->offsets;
  t.bias = s.bias;
  for (size_t done = 0; done < s.channels; done += s.phase->channels) {
    t.b = s.weights + done * s.phase->taps * kTileColumns;
    t.k = smaller(s.phase->channels, s.channels - done) * s.phase->taps;
    t.accumulate = s.accumulate || done > 0;
    for (size_t r = 0; r < s.rows; ++r) {
      for (size_t tile = 0; tile < tiles; ++tile) {
        const Panel pixels = panel_of(s.columns, tile);
        t.a = s.frame + done * b.channel + r * b.pitch + pixels.first;
        t.c = sums + (r * s.columns + pixels.first) * kTileColumns;
        t.next[0] = t.next[1] = t.a;
        t.lines[0] = take_lines(out, t.k, &t.next[0]);
        t.lines[1] = take_lines(in, t.k - t.lines[0], &t.next[1]);
        multiplies_turned[pixels.rows](t);
      }
    }
  }
}

// Some columns of k rows as a panel, filled up with zeros.
OBN_INLINE void copy_tile(const float* from, size_t step, size_t k, size_t columns, float* to) {
  const size_t second = columns > kLanes ? columns - kLanes : 0;
  for (size_t p = 0; p < k; ++p, from += step, to += kTileColumns) {
    store(to, load_between(from, 0, smaller(columns, kLanes)));
    store(to + kLanes, load_between(from + kLanes, 0, second));
  }
}

void correlate_block(const Correlation& call, const Place& at, const Place& next, float* scratch) {
  const Block& b = call.block;
  const size_t x_phases = static_cast<size_t>(call.x.phases), y_phases = static_cast<size_t>(call.y.phases);
  const size_t height = call.outputs_in_lanes ? kTileColumns : kTileRows;  // room for output channels of a panel
  const size_t run = round_up((b.rows - 1) * b.pitch + b.columns, kTileColumns);
  const bool at_once = b.channels >= call.in_channels;  // one panel's sums are enough, else those of all panels
  float* frame = scratch;
  float* joined = frame + round_up(b.channels * b.channel + kFrameSlack, 16);  // (x_phases, height, run)
  float* sums = call.outputs_in_lanes ? joined + x_phases * height * run : joined;
  const float* in = call.in.data + at.sample * call.in.sample + at.group * call.in_channels * call.in.plane;
  float* out = call.out.data + at.sample * call.out.sample + at.group * call.out_channels * call.out.plane;
  const size_t first_column = at.column * x_phases;
  const size_t n = smaller(b.columns * x_phases, static_cast<size_t>(call.x.out) - first_column);
  Ahead ahead_in, ahead_out;
  if (call.outputs_in_lanes && at_once && next.sample < call.batch) {
    const size_t step = static_cast<size_t>(call.y.step), height = static_cast<size_t>(call.y.in);
    const size_t first = smaller(next.row * step, height), last = smaller((next.row + b.rows) * step, height);
    ahead_in = ahead_of(input_at(call, next) + first * call.in.row, call.in.plane, (last - first) * call.in.row,
                        call.in_channels);
  }
  const bool turns_into_place = call.outputs_in_lanes && x_phases == 1 && !call.accumulate;
  const bool turns_pairs = call.outputs_in_lanes && x_phases == 2;
  for (size_t py = 0; py < y_phases; ++py) {
    if (call.y.count(py) <= at.row) continue;
    Step s;
    s.frame = frame;
    s.rows = smaller(b.rows, call.y.count(py) - at.row);
    for (size_t c = 0; c < call.in_channels; c += b.channels) {
      s.channels = smaller(b.channels, call.in_channels - c);
      if (py == 0 || !at_once)
        copy_frame(call.x, call.y, b, in + c * call.in.plane, call.in.plane, call.in.row, s.channels, at.row,
                   at.column, frame);
      for (size_t panel = at.first_panel; panel < at.last_panel; ++panel) {
        const Panel m = panel_of(call, panel);
        float* to = out + m.first * call.out.plane + (py + at.row * y_phases) * call.out.row + first_column;
        const size_t to_row = y_phases * call.out.row;
        float* own = at_once ? sums : sums + (panel - at.first_panel) * x_phases * height * run;
        alignas(64) float lane_bias[kTileColumns] = {};
        s.bias = call.bias ? call.bias + at.group * call.out_channels + m.first : nullptr;
        if (call.outputs_in_lanes) {
          for (size_t i = 0; s.bias && i < m.rows; ++i) lane_bias[i] = s.bias[i];
          s.bias = lane_bias;
          const bool is_last = c + s.channels == call.in_channels;
          ahead_out = ahead_of(to, call.out.plane, s.rows * to_row, is_last ? m.rows : 0);
        }
        for (size_t px = 0; px < x_phases; ++px) {
          if (call.x.count(px) <= at.column) continue;
          s.phase = &call.phases[py * x_phases + px];
          s.weights = call.packed + at.group * call.packed_group + s.phase->weights +
                      (m.first * call.in_channels + c * packed_rows(call, m)) * s.phase->taps;
          s.columns = smaller(b.columns, call.x.count(px) - at.column);
          s.accumulate = c > 0 || (call.in_place && call.accumulate);
          if (call.outputs_in_lanes) {
            multiply_turned_panel(call, s, &ahead_out, &ahead_in, own + px * height * run);
          } else if (call.in_place) {
            multiply_panel(call, s, m.rows, to, call.out.plane, to_row);
          } else {
            multiply_panel(call, s, m.rows, own + px * height * run, run, b.pitch);
          }
          if (c + s.channels < call.in_channels || !call.outputs_in_lanes || turns_pairs) continue;
          if (turns_into_place) {
            turn_sums(own, s.rows, s.columns, m.rows, to, call.out.plane, to_row);
          } else {
            turn_sums(own + px * height * run, s.rows, s.columns, m.rows, joined + px * height * run, run, b.pitch);
          }
        }
        if (c + s.channels < call.in_channels) continue;
        if (turns_pairs)
          turn_pairs(own, height * run, s.rows, smaller(b.columns, call.x.count(0) - at.column), s.columns, m.rows, n,
                     call.accumulate, to, call.out.plane, to_row);
        const float* finished = call.outputs_in_lanes ? joined : own;
        const bool is_there = call.in_place || turns_into_place || turns_pairs;
        if (is_there && !call.activation) continue;
        for (size_t i = 0; i < m.rows; ++i) {
          for (size_t r = 0; r < s.rows; ++r) {
            float* row = to + i * call.out.plane + r * to_row;
            if (!is_there)
              join_run(finished + i * run + r * b.pitch, height * run, x_phases, n, call.accumulate, row);
            if (call.activation) call.activation->forward(row, n);
          }
        }
      }
    }
  }
}

// A kernel of one tap on an image that is one row. A strip of columns is copied to panels (tile, k, kTileColumns) by
// the first products that read it; the others find their operands one behind the other. Meanwhile the next strip of the
// input is fetched, one cache line of every channel per tile.
void correlate_strip(const Correlation& call, const Place& at, const Place& next, float* strip) {
  const Block& b = call.block;
  const float* in = input_at(call, at) + at.column;
  const float* next_in = next.sample < call.batch ? input_at(call, next) + next.column : nullptr;
  float* out = call.out.data + at.sample * call.out.sample + at.group * call.out_channels * call.out.plane + at.column;
  const size_t columns = smaller(b.columns, static_cast<size_t>(call.x.out) - at.column);
  const Phase& phase = call.phases[0];
  size_t lines = next_in ? (b.columns + kLine - 1) / kLine : 0;  // not yet asked for
  for (size_t panel = at.first_panel; panel < at.last_panel; ++panel) {
    const Panel m = panel_of(call, panel);
    const bool is_first = panel == at.first_panel;
    Product t;
    t.offsets = phase.offsets;
    t.c_row = call.out.plane;
    t.b_step = call.in.plane;
    t.bias = call.bias ? call.bias + at.group * call.out_channels + m.first : nullptr;
    for (size_t done = 0; done < call.in_channels; done += phase.channels) {
      t.a = call.packed + at.group * call.packed_group + m.first * call.in_channels + done * m.rows;
      t.k = smaller(phase.channels, call.in_channels - done);
      t.accumulate = call.accumulate || done > 0;
      for (size_t j = 0; j < columns; j += kTileColumns) {
        float* packed = strip + j * call.in_channels + done * kTileColumns;
        t.c = out + m.first * call.out.plane + j;
        t.columns = smaller(kTileColumns, columns - j);
        t.next = nullptr;
        t.next_step = 0;
        if (lines > 0 && !is_first) {
          t.next = next_in + done * call.in.plane + --lines * kLine;
          t.next_step = call.in.plane;
        }
        if (is_first && t.columns == kTileColumns) {
          t.b = in + done * call.in.plane + j;
          t.copy = packed;
          Multiplies<2, true>::of[m.rows](t);
          continue;
        }
        if (is_first) copy_tile(in + done * call.in.plane + j, call.in.plane, t.k, t.columns, packed);
        t.b = packed;
        (t.columns > kLanes ? Multiplies<2, false>::of : Multiplies<1, false>::of)[m.rows](t);
      }
    }
    for (size_t i = 0; call.activation && i < m.rows; ++i)
      call.activation->forward(out + (m.first + i) * call.out.plane, columns);
  }
}

void correlate(const Correlation& call, size_t piece, float* scratch) {
  Place at = place_of(call, piece);
  const Place next_piece = place_of(call, piece + 1);
  for (; at.blocks > 0; --at.blocks, at.column += call.block.columns) {
    Place next = next_piece;
    if (at.blocks > 1) {
      next = at;
      next.column += call.block.columns;
    }
    if (call.in_strips) {
      correlate_strip(call, at, next, scratch);
    } else {
      correlate_block(call, at, next, scratch);
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
          left[i] += v * b0;
          right[i] += v * b1;
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
    nullptr,       sum_pixels<1>, sum_pixels<2>, sum_pixels<3>, sum_pixels<4>,
    sum_pixels<5>, sum_pixels<6>, sum_pixels<7>, sum_pixels<8>};
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
  if (k == 0) return;
  float* frame = scratch;
  float* pixels = call.is_flat ? scratch : frame + round_up(b.channels * b.channel + kFrameSlack, 16);
  const size_t blocks = b.row_blocks * b.column_blocks, all = call.batch * blocks;
  const size_t first_block = all * part / call.parts, last_block = all * (part + 1) / call.parts;
  for (size_t panel = first_panel; first_block == last_block && panel < first_panel + panels; ++panel)  // no sample
    fill_zero(sums_at(call, part, group, panel) + c0 * call.used * kTileColumns, k * kTileColumns);
  for (size_t block = first_block; block < last_block; ++block) {
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

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {kLanes, kTileRows, kTileColumns, pack_weights, correlate, sum_weights, finish_weights};

}  // namespace obn::OBN_TARGET::convolution::direct
