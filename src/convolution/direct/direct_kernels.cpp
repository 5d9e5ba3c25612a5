// Direct convolution, the loops of forward and input gradient: compiled once per target. Everything here assumes a
// checked call and a plan that fits.
//
// Letters: m output channel, c input channel, k = (c, tap), all within a group; a frame is the copy of a block of the
// input described in direct.h.
#include <cstddef>

#include "base/integer.h"
#include "convolution/direct/direct_frame.h"

namespace obn::OBN_TARGET::convolution::direct {

namespace {

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
      const SideBySide<FusedStep, kRows> rows(a);
#pragma GCC unroll 16
      for (size_t i = 0; i < kRows; ++i) {
        const auto left = rows[i];
#pragma GCC unroll 2
        for (size_t v = 0; v < kVectors; ++v) sum[i][v] = fma(left, right[v], sum[i][v]);
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
      const SideBySide<FusedStep, kRows> pixels(a);
#pragma GCC unroll 16
      for (size_t i = 0; i < kRows; ++i) {
        const auto v = pixels[i];
        left[i] = fma(v, b0, left[i]);
        right[i] = fma(v, b1, right[i]);
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
    nullptr,             multiply_turned<1>,  multiply_turned<2>, multiply_turned<3>, multiply_turned<4>,
    multiply_turned<5>,  multiply_turned<6>,  multiply_turned<7>, multiply_turned<8>, multiply_turned<9>,
    multiply_turned<10>, multiply_turned<11>, multiply_turned<12>};
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
      multiply<7, kVectors, kCopies>, multiply<8, kVectors, kCopies>, multiply<9, kVectors, kCopies>,
      multiply<10, kVectors, kCopies>, multiply<11, kVectors, kCopies>, multiply<12, kVectors, kCopies>};
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
  const size_t column_pieces = divide_up(b.column_blocks, call.blocks_at_once);
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
  size_t lines = next_in ? divide_up(b.columns, kLine) : 0;  // not yet asked for
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

constexpr obn::convolution::direct::Kernels kernels = {kLanes,    kTileRows,   kTileColumns,  pack_weights,
                                                       correlate, sum_weights, finish_weights};

}  // namespace

}  // namespace obn::OBN_TARGET::convolution::direct

constinit const obn::convolution::direct::Kernels obn::convolution::direct::Compiled::OBN_TARGET = obn::OBN_TARGET::convolution::direct::kernels;
