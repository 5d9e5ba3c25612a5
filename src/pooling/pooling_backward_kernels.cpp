// Pooling, the bench of the backward pass: gradients of the image from those of the windows, and of the bias.
#include <cstddef>
#include <cstdint>

#include "pooling/pooling_rows.h"

namespace obn::OBN_TARGET::pooling {

namespace {

// ---- backward: gradients of the windows ----

// dz (columns) = dy · activation'(y) for one row of y; y_row (columns) is scratch.
void window_gradient(const Call& call, size_t n, size_t c, size_t row, size_t columns, float* dz, float* y_row) {
  load_line(call.dy, n, c, row, columns, dz);
  if (!call.plan->has_activation) return;
  load_line(call.y, n, c, row, columns, y_row);
  call.plan->activation.backward(y_row, dz, columns);
}

// What the gradient of a row of windows needs beside dz.
struct WindowGradients {
  const Call& call;
  SplitRows* rows;  // for what is computed again from x; NULL where x is not needed
  float* y_row;     // (line_floats)
  float* value;     // (line_floats) norms, or maxima that nobody needs
  size_t n;
  size_t c;
};

// g (Q): what window (q, p) gives to each (Max: to one) of its positions, before the factor x of the L2 norm.
// index (Q): that position, for Max.
void gradient_row(const WindowGradients& of, int64_t p, float* g, int32_t* index) {
  const Call& call = of.call;
  const Plan& plan = *call.plan;
  const size_t windows = static_cast<size_t>(plan.x.windows), row = static_cast<size_t>(p);
  window_gradient(call, of.n, of.c, row, windows, g, of.y_row);
  if (plan.function == BNNSPoolingFunctionMax) {
    if (call.indices.data) {
      load_indices(call.indices, of.n, of.c, row, windows, index);
    } else {
      window_rows(*of.rows, p, 1, of.value, index);
    }
    // Windows outside the image pass nothing on, whatever their index says.
    if (plan.y.first(p) == plan.y.end(p)) fill(g, windows, 0.0f);
    if (!plan.has_empty_columns) return;
    for (size_t q = 0; q < windows; ++q)
      if (plan.column_count[q] == 0) g[q] = 0.0f;
    return;
  }
  if (plan.function != BNNSPoolingFunctionL2Norm) {
    divide_by_weights(plan, p, 1, g, g);
    return;
  }
  window_rows(*of.rows, p, 1, of.value, index);
  for (size_t q = 0; q < windows; q += kLanes) {
    const F norm = load(of.value + q);
    store(g + q, norm == 0.0f ? F{} : load(g + q) / norm);
  }
}

// ---- backward: pulling gradients into image rows ----

// A staged row of window gradients is a pointer to the gradient of window 0; its index lies `to_index` floats further.

// g where the index is this very position (kMatches), or everywhere, added to sum.
template <bool kMatches>
OBN_INLINE F add_tap(F sum, const float* g, size_t at, size_t index_at, I position) {
  if constexpr (!kMatches) return sum + load(g + at);
  const I index = bits(load(g + index_at));
#if defined(__AVX512F__)
  const __mmask16 is_here =
      _mm512_cmpeq_epi32_mask(reinterpret_cast<__m512i>(index), reinterpret_cast<__m512i>(position));
  const __m512 old = reinterpret_cast<__m512>(sum);
  return reinterpret_cast<F>(_mm512_mask_add_ps(old, is_here, old, reinterpret_cast<__m512>(load(g + at))));
#else
  return sum + (index == position ? load(g + at) : F{});
#endif
}

// One image row of gradients to be made from the rows of windows over it.
struct Pull {
  const Plan& plan;
  const float* const* over;  // (overs)
  size_t overs;
  size_t to_index;
  I position;                // h·W + sx·lane

  // Values j, j+1, … of a residue with kTaps columns and rows of windows, all of them in registers.
  template <size_t kTaps>
  [[gnu::always_inline]] inline void gather(size_t residue, const float* (&tap)[kTaps]) const {
    const Column* column = plan.columns_by_residue + plan.residue_begin[residue];
    const float* const* from = over;
    for (size_t t = 0; t < kTaps; ++t) {
      tap[t] = *from - column->shift;
      if (++from < over + overs) continue;
      from = over;
      ++column;
    }
  }
};

template <size_t kTaps, bool kMatches>
OBN_INLINE F sum_taps(const float* const (&tap)[kTaps], size_t at, size_t index_at, I position) {
  F sum = F{};
  for (size_t t = 0; t < kTaps; ++t) sum = add_tap<kMatches>(sum, tap[t], at, index_at, position);
  return sum;
}

// dx (W), one image row, for strides 1 and 2 with that many taps per residue.
template <size_t kTaps, bool kMatches>
void pull_row_by_one(const Pull& pull, float* dx) {
  const float* tap[kTaps];
  pull.gather(0, tap);
  const size_t w = static_cast<size_t>(pull.plan.x.image), to_index = pull.to_index;
  I position = pull.position;
  for (size_t j = 0; j < w; j += kLanes, position += static_cast<int32_t>(kLanes))
    store(dx + j, sum_taps<kTaps, kMatches>(tap, j, j + to_index, position));
}

template <size_t kEven, size_t kOdd, bool kMatches>
void pull_row_by_two(const Pull& pull, float* dx) {
  const float *even[kEven], *odd[kOdd];
  pull.gather(0, even);
  pull.gather(1, odd);
  const size_t w = static_cast<size_t>(pull.plan.x.image), to_index = pull.to_index;
  I position = pull.position;
  for (size_t j = 0; 2 * j < w; j += kLanes, position += static_cast<int32_t>(2 * kLanes)) {
    F low, high;
    join_pairs(sum_taps<kEven, kMatches>(even, j, j + to_index, position),
               sum_taps<kOdd, kMatches>(odd, j, j + to_index, position + 1), &low, &high);
    store(dx + 2 * j, low);
    store(dx + 2 * j + kLanes, high);
  }
}

// Any stride, any count; line (line_floats) is scratch.
template <bool kMatches>
void pull_row_any(const Pull& pull, float* dx, float* line) {
  const Plan& plan = pull.plan;
  const size_t w = static_cast<size_t>(plan.x.image), sx = static_cast<size_t>(plan.x.stride);
  if (plan.used_residues < plan.residues) fill(dx, w, 0.0f);
  for (size_t slot = 0; slot < plan.used_residues; ++slot) {
    const size_t residue = static_cast<size_t>(plan.used_residue[slot]);
    const Column* begin = plan.columns_by_residue + plan.residue_begin[residue];
    const Column* end = plan.columns_by_residue + plan.residue_begin[residue + 1];
    float* to = sx == 1 ? dx : line;
    I position = pull.position + static_cast<int32_t>(residue);
    for (size_t j = 0; residue + j * sx < w; j += kLanes, position += static_cast<int32_t>(kLanes * sx)) {
      F sum = F{};
      for (const Column* column = begin; column < end; ++column)
        for (size_t o = 0; o < pull.overs; ++o)
          sum = add_tap<kMatches>(sum, pull.over[o] - column->shift, j, j + pull.to_index, position);
      store(to + j, sum);
    }
    if (sx == 1) return;
    for (size_t i = residue, j = 0; i < w; i += sx, ++j) dx[i] = line[j];
  }
}

// dx (W), one image row, from the rows of windows over it; line (line_floats) is scratch.
template <bool kMatches>
void pull_row(const Pull& pull, float* dx, float* line) {
  const Plan& plan = pull.plan;
  const int64_t sx = plan.x.stride;
  const size_t even = static_cast<size_t>(plan.residue_begin[1]) * pull.overs;
  const size_t odd = plan.residues > 1 ? static_cast<size_t>(plan.residue_begin[2]) * pull.overs - even : 0;
  if (sx == 1 && even == 3) return pull_row_by_one<3, kMatches>(pull, dx);
  if (sx == 1 && even == 9) return pull_row_by_one<9, kMatches>(pull, dx);
  if (sx == 2 && even == 1 && odd == 1) return pull_row_by_two<1, 1, kMatches>(pull, dx);
  if (sx == 2 && even == 1 && odd == 2) return pull_row_by_two<1, 2, kMatches>(pull, dx);
  if (sx == 2 && even == 2 && odd == 1) return pull_row_by_two<2, 1, kMatches>(pull, dx);
  if (sx == 2 && even == 2 && odd == 4) return pull_row_by_two<2, 4, kMatches>(pull, dx);
  if (sx == 2 && even == 4 && odd == 2) return pull_row_by_two<4, 2, kMatches>(pull, dx);
  pull_row_any<kMatches>(pull, dx, line);
}

// The rows of windows that may lie over an image row, followed down the image without a division per row.
struct WindowsOver {
  const Axis& y;
  int64_t first = 0;
  int64_t end = 0;

  [[gnu::always_inline]] inline void move_to(int64_t h) {
    while (end < y.windows && y.start(end) <= h) ++end;
    while (first < end && y.start(first) + y.dilation * (y.kernel - 1) < h) ++first;
  }
  template <class Visit>  // void visit(p)
  [[gnu::always_inline]] inline void each(int64_t h, const Visit& visit) const {
    for (int64_t p = first; p < end; ++p)
      if (y.dilation == 1 || (h - y.start(p)) % y.dilation == 0) visit(p);
  }
};

void backward_pull(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t w = static_cast<size_t>(plan.x.image), step = plan.gradient_floats;
  const bool is_max = plan.function == BNNSPoolingFunctionMax, is_norm = plan.function == BNNSPoolingFunctionL2Norm;
  Scratch scratch;
  SplitRows rows(plan, &scratch);
  float* g = scratch.take(plan.gradient_rows * step);                  // (gradient_rows, gradient_floats)
  int32_t* index = scratch.take_indices(plan.gradient_rows * step);    // the same, right behind
  float* sum = scratch.take(step);                                     // (gradient_floats)
  float* y_row = scratch.take(plan.line_floats);
  float* value = scratch.take(plan.line_floats);
  float* line = scratch.take(plan.line_floats);
  float* dx = scratch.take(plan.backward_rows * w + 4 * kPad);         // (backward_rows, W)
  // Zeros on both sides of a row stay for good; indices there are never looked at, only loaded.
  fill(g, plan.gradient_rows * step, 0.0f);
  fill(reinterpret_cast<float*>(index), plan.gradient_rows * step, 0.0f);
  const size_t end = piece.row + piece.rows;
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    if (call.x.data) rows.start_plane(call.x, n, c);
    const WindowGradients of{call, &rows, y_row, value, n, c};
    for (size_t first = piece.row; first < end; first += plan.backward_rows) {
      const size_t count = end - first < plan.backward_rows ? end - first : plan.backward_rows;
      const int64_t p0 = plan.y.first_window(static_cast<int64_t>(first));
      const int64_t p1 = plan.y.end_window(static_cast<int64_t>(first + count - 1));
      for (int64_t p = p0; p < p1; ++p) {
        const size_t at = static_cast<size_t>(p - p0) * step + plan.gradient_left;
        gradient_row(of, p, g + at, index + at);
        fill(g + at + plan.x.windows, kLanes, 0.0f);
      }
      WindowsOver windows{plan.y, p0, p0};
      for (size_t r = 0; r < count; ++r) {
        const int64_t h = static_cast<int64_t>(first + r);
        float* to = dx + r * w;
        windows.move_to(h);
        const float* over[kOversAtOnce];
        size_t overs = 0;
        const I position = iota() * static_cast<int32_t>(plan.x.stride) + static_cast<int32_t>(h * plan.x.image);
        if (is_max) {
          windows.each(h, [&](int64_t p) {
            over[overs++] = g + static_cast<size_t>(p - p0) * step + plan.gradient_left;
          });
          pull_row<true>({plan, over, overs, plan.gradient_rows * step, position}, to, line);
          continue;
        }
        // Average: y = Σ x / weight, so dx = Σ g over rows and columns of windows: rows first, then columns.
        const float* all = nullptr;
        windows.each(h, [&](int64_t p) __attribute__((always_inline)) {
          const float* next = g + static_cast<size_t>(p - p0) * step;
          if (!all) {
            all = next;
            return;
          }
          for (size_t i = 0; i < step; i += kLanes) store(sum + i, load(all + i) + load(next + i));
          all = sum;
        });
        if (all) {
          over[0] = all + plan.gradient_left;
          pull_row<false>({plan, over, 1, 0, position}, to, line);
        } else {
          fill(to, w, 0.0f);
        }
        if (is_norm) {  // y = sqrt(Σ x²), dx = Σ (dz / y) · x
          load_line(call.x, n, c, first + r, w, line);
          for (size_t i = 0; i < w; ++i) to[i] *= line[i];
        }
      }
      put_rows(call.dx, n, c, first, count, w, dx, line);
    }
  }
  fence();
}

// ---- backward: 2x2, and 3x3 with padding 1, both of stride 2 ----

// Here windows push: a vector of them is loaded once, and what it gives to each image row and column is picked in
// registers. Pulling, which serves every geometry, loads it once per position.

// Rows of dx, in order: either collected in scratch and put down a few at a time, or written where they belong.
struct Band {
  const Call& call;
  size_t n;
  size_t c;
  float* stage;     // (capacity, W)
  Outlet* outlet;   // has the stage if rows leave past the caches; else NULL
  float* spare;     // (line_floats) takes rows that belong to a neighbour's band
  size_t capacity;  // at least 2
  size_t next;      // row that comes next
  size_t end;
  bool is_direct;
  size_t staged = 0;

  // Where row h goes, whose turn it is unless it lies outside the band. At most `capacity` between calls of make_room.
  [[gnu::always_inline]] inline float* at(int64_t h) {
    if (h < static_cast<int64_t>(next) || h >= static_cast<int64_t>(end)) return spare;
    return take(1);
  }
  // Where the next rows go, one after the other.
  [[gnu::always_inline]] inline float* take(size_t rows) {
    if (outlet && staged == 0) outlet->lead_to(call.dx.at(n, c, next));
    float* to = is_direct ? reinterpret_cast<float*>(call.dx.at(n, c, next))
                          : stage + staged * static_cast<size_t>(call.plan->x.image);
    next += rows;
    staged += rows;
    return to;
  }
  void put() {
    const size_t w = static_cast<size_t>(call.plan->x.image);
    if (outlet) {
      if (staged > 0) outlet->put(staged * w);
    } else if (!is_direct) {
      put_rows(call.dx, n, c, next - staged, staged, w, stage, spare);
    }
    staged = 0;
  }
  [[gnu::always_inline]] inline void make_room(size_t rows) {
    if (staged + rows > capacity) put();
  }
  // How many of `most` rows of windows, the first of them from row h on, can push two rows each into the band at once.
  [[gnu::always_inline]] inline size_t pairs_at(int64_t h, size_t most) const {
    if (h != static_cast<int64_t>(next)) return 0;
    const size_t left = end - next < capacity - staged ? end - next : capacity - staged;
    return left / 2 < most ? left / 2 : most;
  }
};

// All but the first lane of v, then a zero.
template <class V>
OBN_INLINE V slide_back(V v) {
#if defined(__AVX512F__)
  return reinterpret_cast<V>(_mm512_alignr_epi32(_mm512_setzero_si512(), reinterpret_cast<__m512i>(v), 1));
#elif defined(__AVX2__)
  return __builtin_shufflevector(v, V{}, 1, 2, 3, 4, 5, 6, 7, 8);
#else
  return __builtin_shufflevector(v, V{}, 1, 2, 3, 4);
#endif
}

// A vector of windows: their gradients, and (Max) where the maxima lie relative to the first position of each.
struct Windows {
  F g;
  I offset;
};

// `sum` and what the windows give to the position `wanted` behind their first: all of g, or (kMax) g where the maximum
// lies there.
template <bool kMax>
OBN_INLINE F add_share(F sum, const Windows& from, int32_t wanted) {
  if constexpr (!kMax) return sum + from.g;
#if defined(__AVX512F__)
  const __mmask16 is_there =
      _mm512_cmpeq_epi32_mask(reinterpret_cast<__m512i>(from.offset), _mm512_set1_epi32(wanted));
  const __m512 old = reinterpret_cast<__m512>(sum);
  return reinterpret_cast<F>(_mm512_mask_add_ps(old, is_there, old, reinterpret_cast<__m512>(from.g)));
#else
  return sum + (from.offset == wanted ? from.g : F{});
#endif
}
// The same with nothing to add to.
template <bool kMax>
OBN_INLINE F share(const Windows& from, int32_t wanted) {
  if constexpr (!kMax) return from.g;
#if defined(__AVX512F__)
  const __mmask16 is_there =
      _mm512_cmpeq_epi32_mask(reinterpret_cast<__m512i>(from.offset), _mm512_set1_epi32(wanted));
  return reinterpret_cast<F>(_mm512_maskz_mov_ps(is_there, reinterpret_cast<__m512>(from.g)));
#else
  return from.offset == wanted ? from.g : F{};
#endif
}

// Some rows of windows to be pushed: their gradients and the positions of their maxima.
struct Pushed {
  const float* g;
  const int32_t* index;
  size_t next_g;      // floats from row to row
  size_t next_index;
  size_t rows;
  int32_t origin;     // of the first position of the first window
  size_t plane_rows;  // after so many positions start again: the rows of the next plane
};

// Every column belongs to a pair of them, and every pair to a window.
OBN_INLINE Fill push_fill_of(const Plan& plan) {
  if (2 * plan.x.windows != plan.x.image) return Fill::clipped;
  if (plan.x.windows >= static_cast<int64_t>(kLanes)) return Fill::whole;
  return kLanes == 16 ? Fill::narrow : Fill::clipped;
}

// One row of windows on its way to image rows of w columns, a vector of windows at a time.
template <bool kMax, Fill kFill>
struct PushedRow {
  const float* g;
  const int32_t* index;
  size_t windows;
  size_t w;
  I origin;   // of the windows 0, 1, …
  Keep keep;  // narrow: which windows there are, and which columns
  Keep low;
  Keep high;

  // The windows j, j+1, …; there is no gradient behind the last one, and any offset will do.
  [[gnu::always_inline]] inline Windows at(size_t j) const {
    const I first = origin + static_cast<int32_t>(2 * j);
    Windows found{};
    if constexpr (kFill == Fill::whole) {
      found.g = held(load(g + j));
      if (kMax) found.offset = load(index + j) - first;
    } else if constexpr (kFill == Fill::narrow) {
      found.g = held(load_kept(g, keep));
      if (kMax) found.offset = bits(load_kept(reinterpret_cast<const float*>(index), keep)) - first;
    } else {
      found.g = load_clipped(g, j, windows, F{});
      if (kMax && j + kLanes <= windows) found.offset = load(index + j) - first;
      if (kMax && j + kLanes > windows)
        found.offset = (j < windows ? load_first_indices(index + j, windows - j) : I{}) - first;
    }
    return found;
  }
  // The windows j+1, j+2, …, where those from j on are `here`. kIsLast: these are the last of the row.
  template <bool kIsLast>
  [[gnu::always_inline]] inline Windows after(size_t j, const Windows& here) const {
    if constexpr (kFill == Fill::clipped || !kIsLast) return at(j + 1);
    return {slide_back(here.g), kMax ? slide_back(here.offset) : I{}};
  }
  // Columns 2j, 2j + 1, … of a row, and nothing past its end: the row behind it may be there already.
  [[gnu::always_inline]] inline void put_pairs(float* row, size_t j, F even, F odd) const {
    F first, second;
    join_pairs(even, odd, &first, &second);
    const size_t left = w - 2 * j;
    put<kFill>(row + 2 * j, first, low, left);
    if (kFill == Fill::whole || left > kLanes) put<kFill>(row + 2 * j + kLanes, second, high, left - kLanes);
  }
};

template <bool kMax, Fill kFill>
OBN_INLINE PushedRow<kMax, kFill> pushed_row(const Plan& plan, const Pushed& from) {
  const size_t w = static_cast<size_t>(plan.x.image), windows = static_cast<size_t>(plan.x.windows);
  PushedRow<kMax, kFill> row{from.g, from.index, windows, w, iota() * 2 + from.origin, Keep{}, Keep{}, Keep{}};
  if constexpr (kFill == Fill::narrow) {
    const size_t columns = w < kLanes ? w : kLanes;
    row.keep = keep_lanes(0, windows);
    row.low = keep_lanes(0, columns);
    row.high = keep_lanes(0, w - columns);
  }
  return row;
}

// Calls visit(j, slot, IsLast) for vectors of windows that reach all columns of a row. The last whole one ends with the
// row, and visits some windows again; slots do not overlap (see slot_of_last).
template <Fill kFill, class Visit>
OBN_INLINE void for_pushed(size_t windows, size_t w, const Visit& visit) {
  if constexpr (kFill == Fill::whole) {
    const size_t last = windows - kLanes;
    for (size_t j = 0; j < last; j += kLanes) visit(j, j, Is<false>{});
    visit(last, slot_of_last(windows), Is<true>{});
  } else if constexpr (kFill == Fill::narrow) {
    visit(0, size_t{0}, Is<true>{});
  } else {
    for (size_t j = 0; 2 * j < w; j += kLanes) visit(j, j, Is<false>{});
  }
}

// Where two image rows go; those below them follow two rows of W further down each time.
struct PairOfRows {
  float* first;
  float* second;
};

// What an image row has so far, split by column: it waits for the windows below.
struct Waiting {
  float* even;  // (W / 2, rounded up), by slots
  float* odd;
};

// The last row that windows reach has nothing more to wait for.
template <Fill kFill>
void put_waiting(const Plan& plan, const Waiting& waiting, float* last) {
  const size_t w = static_cast<size_t>(plan.x.image), windows = static_cast<size_t>(plan.x.windows);
  const PushedRow<false, kFill> row = pushed_row<false, kFill>(plan, {});
  for_pushed<kFill>(windows, w, [&](size_t j, size_t slot, auto) __attribute__((always_inline)) {
    row.put_pairs(last, j, load(waiting.even + slot), load(waiting.odd + slot));
  });
}

// Where the gradients of windows that push come from.
struct PushSource {
  const WindowGradients& of;
  bool is_direct;  // dy, and for Max the indices, lie as push wants them
  float* g;        // (forward_rows, Q), as the index
  int32_t* index;

  // The gradients of `rows` rows of windows from p on; all but one are full rows of windows.
  Pushed rows_from(int64_t p, size_t rows) const {
    const Call& call = of.call;
    const Plan& plan = *call.plan;
    const size_t windows = static_cast<size_t>(plan.x.windows), row = static_cast<size_t>(p);
    const int32_t origin = static_cast<int32_t>(plan.y.start(p) * plan.x.image + plan.x.start(0));
    const size_t all = static_cast<size_t>(plan.y.windows);
    const bool is_inside = plan.y.first(p) < plan.y.end(p);
    const float* dy = reinterpret_cast<const float*>(call.dy.at(of.n, of.c, row));
    if (is_direct && is_inside && plan.function == BNNSPoolingFunctionMax)
      return {dy, reinterpret_cast<const int32_t*>(call.indices.at(of.n, of.c, row)), call.dy.y_stride,
              call.indices.y_stride, rows, origin, all};
    if (is_direct && plan.function != BNNSPoolingFunctionMax) {
      divide_by_weights(plan, p, rows, dy, g);
      return {g, nullptr, windows, 0, rows, origin, all};
    }
    for (size_t r = 0; r < rows; ++r)
      gradient_row(of, p + static_cast<int64_t>(r), g + r * windows, index + r * windows);
    return {g, index, windows, windows, rows, origin, all};
  }
};

// 2x2: window (q, p) is the image rows 2p, 2p + 1 and the columns 2q, 2q + 1.
// 3x3 (kThird): the rows 2p - 1, 2p (those that go out), 2p + 1 and the columns 2q - 1, 2q, 2q + 1, so neighbours share
// a row and a column: waiting[0] has the row 2p - 1, waiting[1] room for the row 2p + 1.
template <bool kMax, bool kThird>
void backward_push(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t w = static_cast<size_t>(plan.x.image), windows = static_cast<size_t>(plan.x.windows);
  const size_t gradients = plan.forward_rows * windows + 2 * kPad;
  Scratch scratch;
  SplitRows rows(plan, &scratch);
  float* g = scratch.take(gradients);
  int32_t* index = scratch.take_indices(gradients);
  float* y_row = scratch.take(plan.line_floats);
  float* value = scratch.take(plan.line_floats);
  Waiting waiting[2];
  for (Waiting& row : waiting) row = {scratch.take(plan.line_floats), scratch.take(plan.line_floats)};
  float* spare = scratch.take(plan.line_floats);
  Outlet outlet(scratch.take(plan.push_rows * w + 4 * kPad));
  const bool finds_gradients = call.dy.type == BNNSDataTypeFloat32 && call.dy.is_one_run(windows) &&
                               !plan.has_activation && !plan.has_empty_columns;
  const bool finds_indices = !kMax || (call.indices.data && call.indices.type == BNNSDataTypeUInt32 &&
                                       call.indices.x_stride == 1);
  const bool is_run = !call.dx.accumulate && call.dx.type == BNNSDataTypeFloat32 && call.dx.is_one_run(w);
  const bool is_direct = is_run && !call.dx.stream;
  // Several planes may be as good as one with many rows.
  const size_t all = static_cast<size_t>(plan.y.windows);
  const bool is_stack = kMax && !kThird && is_direct && finds_gradients && finds_indices && piece.rows == 2 * all &&
                        has_full_rows_only(plan) && is_one_stack(call, call.dx, 2 * all) &&
                        is_one_stack(call, call.dy, all) && is_one_stack(call, call.indices, all);
  const size_t planes = is_stack ? 1 : piece.planes, end = piece.row + (is_stack ? piece.planes : 1) * piece.rows;
  const int64_t p0 = plan.y.first_window(static_cast<int64_t>(piece.row));
  const int64_t p1 = is_stack ? static_cast<int64_t>(end / 2) : plan.y.end_window(static_cast<int64_t>(end - 1));
  // Rows at a time: there is room for the results, and for gradients that are not taken where they lie.
  const size_t capacity = is_direct ? end - piece.row + 1 : plan.push_rows;
  const size_t most_rows = kMax && finds_gradients && finds_indices ? end - piece.row : plan.forward_rows;
  const Fill fill_of_rows = push_fill_of(plan);
  for (size_t plane = piece.plane; plane < piece.plane + planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    if (call.x.data) rows.start_plane(call.x, n, c);
    const WindowGradients of{call, &rows, y_row, value, n, c};
    const PushSource source{of, finds_gradients && finds_indices, g, index};
    Band band{call, n, c, outlet.stage, is_run && call.dx.stream ? &outlet : nullptr, spare, capacity, piece.row, end,
              is_direct};
    if (kThird) {
      fill(waiting[0].even, plan.line_floats, 0.0f);
      fill(waiting[0].odd, plan.line_floats, 0.0f);
    }
    for (int64_t p = p0; p < p1;) {
      band.make_room(2);
      const int64_t h = plan.y.start(p);
      const size_t left = static_cast<size_t>(p1 - p), most = left < most_rows ? left : most_rows;
      const size_t pairs = band.pairs_at(h, is_stack ? most : rows_together(plan, p, most));
      const Pushed found = source.rows_from(p, pairs > 0 ? pairs : 1);
      p += static_cast<int64_t>(found.rows);
      PairOfRows to;
      to.first = pairs > 0 ? band.take(2 * pairs) : band.at(h);
      to.second = pairs > 0 ? to.first + w : band.at(h + 1);
      with_fill(fill_of_rows, [&](auto fill_is) __attribute__((noinline)) {
        // Copies of its own: the compiler reads others again after every store.
        const Pushed from = found;
        const size_t columns = w, count = windows;
        const int32_t down = static_cast<int32_t>(columns);
        PushedRow<kMax, fill_is.value> row = pushed_row<kMax, fill_is.value>(plan, from);
        const I origin = row.origin;
        PairOfRows now = to;
        Waiting above = waiting[0], below = waiting[1];
        for (size_t r = 0, left_of_plane = from.plane_rows; r < from.rows; ++r) {
          const auto give = [&](size_t j, size_t slot, auto is_last) __attribute__((always_inline)) {
            const Windows here = row.at(j);
            if constexpr (!kThird) {
              row.put_pairs(now.first, j, share<kMax>(here, 0), share<kMax>(here, 1));
              row.put_pairs(now.second, j, share<kMax>(here, down), share<kMax>(here, down + 1));
            } else {
              // The even column is of these windows alone, the odd one they share with the next.
              const Windows after = row.template after<is_last.value>(j, here);
              const F even = add_share<kMax>(load(above.even + slot), here, 1);
              const F odd = add_share<kMax>(add_share<kMax>(load(above.odd + slot), here, 2), after, 0);
              row.put_pairs(now.first, j, even, odd);
              row.put_pairs(now.second, j, share<kMax>(here, down + 1),
                            add_share<kMax>(share<kMax>(here, down + 2), after, down));
              store(below.even + slot, share<kMax>(here, 2 * down + 1));
              store(below.odd + slot, add_share<kMax>(share<kMax>(here, 2 * down + 2), after, 2 * down));
            }
          };
          for_pushed<fill_is.value>(count, columns, give);
          if (kThird) {
            const Waiting done = above;
            above = below;
            below = done;
          }
          row.g += from.next_g;
          row.index += from.next_index;
          row.origin += 2 * down;
          if (--left_of_plane == 0) {
            left_of_plane = from.plane_rows;
            row.origin = origin;
          }
          now.first += 2 * columns;
          now.second += 2 * columns;
        }
        waiting[0] = above;
        waiting[1] = below;
      });
    }
    if (kThird && p1 > p0) {
      band.make_room(1);
      float* last = band.at(plan.y.start(p1 - 1) + 2);
      (fill_of_rows == Fill::whole ? put_waiting<Fill::whole> : put_waiting<Fill::clipped>)(plan, waiting[0], last);
    }
    while (band.next < end) {  // and those that none does
      band.make_room(1);
      fill(band.at(static_cast<int64_t>(band.next)), w, 0.0f);
    }
    band.put();
  }
  outlet.flush();
  fence();
}

// y = Σ x / weight over the whole plane: every value of dx (H, W) is dz / weight.
void backward_global(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t h = static_cast<size_t>(plan.y.image), w = static_cast<size_t>(plan.x.image);
  Scratch scratch;
  float* g = scratch.take(2 * kPad);
  float* y_row = scratch.take(2 * kPad);
  float* line = scratch.take(plan.line_floats);
  float* dx = scratch.take(h * w + 2 * kPad);
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    window_gradient(call, n, c, 0, 1, g, y_row);
    divide_by_weights(plan, 0, 1, g, g);
    fill(dx, h * w, g[0]);
    put_rows(call.dx, n, c, 0, h, w, dx, line);
  }
  fence();
}

// ---- backward: scattering the gradients of maxima ----

// dx[index] += dz, for windows that overlap a lot and for indices that point anywhere in the plane.
void backward_scatter(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t w = static_cast<size_t>(plan.x.image), windows = static_cast<size_t>(plan.x.windows);
  Scratch scratch;
  SplitRows rows(plan, &scratch);
  float* g = scratch.take(plan.line_floats);
  int32_t* index = scratch.take_indices(plan.line_floats);
  float* y_row = scratch.take(plan.line_floats);
  float* value = scratch.take(plan.line_floats);
  float* dx = scratch.take(plan.scatter_rows * w + 4 * kPad);  // (scatter_rows, W)
  const size_t end = piece.row + piece.rows;
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    if (call.x.data) rows.start_plane(call.x, n, c);
    const WindowGradients of{call, &rows, y_row, value, n, c};
    for (size_t first = piece.row; first < end; first += plan.scatter_rows) {
      const size_t count = end - first < plan.scatter_rows ? end - first : plan.scatter_rows;
      const uint32_t start = static_cast<uint32_t>(first * w), positions = static_cast<uint32_t>(count * w);
      const bool all = call.stray_indices;
      const int64_t p0 = all ? 0 : plan.y.first_window(static_cast<int64_t>(first));
      const int64_t p1 = all ? plan.y.windows : plan.y.end_window(static_cast<int64_t>(first + count - 1));
      fill(dx, positions, 0.0f);
      for (int64_t p = p0; p < p1; ++p) {
        gradient_row(of, p, g, index);
        for (size_t q = 0; q < windows; ++q) {
          const uint32_t position = static_cast<uint32_t>(index[q]) - start;
          if (position < positions) dx[position] += g[q];
        }
      }
      put_rows(call.dx, n, c, first, count, w, dx, value);
    }
  }
  fence();
}

// dx (P, Q) = dz[index]; dz (H, W) is staged in bands, and a row of dx is visited once per band.
void backward_inverse(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t w = static_cast<size_t>(plan.x.image), h = static_cast<size_t>(plan.y.image);
  const size_t windows = static_cast<size_t>(plan.x.windows);
  Scratch scratch;
  float* dx = scratch.take(plan.line_floats);
  int32_t* index = scratch.take_indices(plan.line_floats);
  float* y_row = scratch.take(plan.line_floats);
  float* dz = scratch.take(plan.scatter_rows * w + 4 * kPad);  // (scatter_rows, W)
  const bool accumulate = call.dx.accumulate, several_bands = plan.scatter_rows < h;
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    for (size_t first = 0; first < h; first += plan.scatter_rows) {
      const size_t count = h - first < plan.scatter_rows ? h - first : plan.scatter_rows;
      const uint32_t start = static_cast<uint32_t>(first * w), positions = static_cast<uint32_t>(count * w);
      for (size_t r = 0; r < count; ++r) window_gradient(call, n, c, first + r, w, dz + r * w, y_row);
      for (size_t p = piece.row; p < piece.row + piece.rows; ++p) {
        std::byte* to = call.dx.at(n, c, p);
        // What other bands wrote goes through float32 and back unchanged.
        if (accumulate || several_bands) load_line(call.dx, n, c, p, windows, dx);
        load_indices(call.indices, n, c, p, windows, index);
        for (size_t q = 0; q < windows; ++q) {
          const uint32_t position = static_cast<uint32_t>(index[q]) - start;
          if (position < positions) dx[q] = accumulate ? dx[q] + dz[position] : dz[position];
        }
        store_row(call.dx.type, to, call.dx.x_stride, windows, dx);
      }
    }
  }
}

// ---- the rest ----

// y = activation(bias + …): db = Σ dz. A plane is summed in float32 vectors, planes are added in double.
void bias_backward(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t columns = plan.output_columns();
  Scratch scratch;
  float* dz = scratch.take(plan.line_floats);
  float* y_row = scratch.take(plan.line_floats);
  fill(dz, plan.line_floats, 0.0f);
  for (size_t c = piece.plane; c < piece.plane + piece.planes; ++c) {
    double total = 0.0;
    for (size_t n = 0; n < call.batch; ++n) {
      F plane = F{};
      for (size_t row = 0; row < plan.output_rows(); ++row) {
        window_gradient(call, n, c, row, columns, dz, y_row);
        for (size_t i = 0; i < columns; i += kLanes) plane += load(dz + i);
      }
      total += static_cast<double>(sum(plane));
    }
    std::byte* to = call.db + c * call.db_stride * bytes_of(call.db_type);
    float value;
    if (call.db_accumulate) {
      load_row(call.db_type, to, 1, 1, &value);
      total += static_cast<double>(value);
    }
    value = static_cast<float>(total);
    store_row(call.db_type, to, 1, 1, &value);
  }
}

bool accepts_output(const Call& call, const Piece& piece, std::byte* work) {
  const Plan& plan = *call.plan;
  const size_t columns = plan.output_columns();
  float* y_row = reinterpret_cast<float*>(work);  // (line_floats)
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    for (size_t row = piece.row; row < piece.row + piece.rows; ++row) {
      load_line(call.y, n, c, row, columns, y_row);
      if (!plan.activation.accepts(y_row, columns)) return false;
    }
  }
  return true;
}

constexpr obn::pooling::Kernels kernels = {
    .forward_inverse = forward_inverse,
    .forward_global = forward_global,
    .forward_in_place = forward_in_place,
    .forward_windows = forward_windows,
    .backward_inverse = backward_inverse,
    .backward_global = backward_global,
    .push_two_maxima = backward_push<true, false>,
    .push_two_averages = backward_push<false, false>,
    .push_three_maxima = backward_push<true, true>,
    .push_three_averages = backward_push<false, true>,
    .backward_pull = backward_pull,
    .backward_scatter = backward_scatter,
    .bias_backward = bias_backward,
    .look_at_indices = look_at_indices,
    .accepts_output = accepts_output};

}  // namespace

}  // namespace obn::OBN_TARGET::pooling

constinit const obn::pooling::Kernels obn::pooling::Compiled::OBN_TARGET = obn::OBN_TARGET::pooling::kernels;
