// Pooling, the bench: compiled once per target. Everything here assumes a checked call and a plan that fits.
#include <cstddef>
#include <cstdint>

#include "pooling/pooling_rows.h"

namespace obn::OBN_TARGET::pooling {

namespace {

// ---- runs to memory ----

// Copies `bytes` (a multiple of 4, both ends aligned to 4), past the caches if asked to.
void put_run(std::byte* to, const void* from, size_t bytes, bool past_caches) {
  if (!past_caches || bytes < 8 * sizeof(F)) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  const std::byte* source = static_cast<const std::byte*>(from);
  const size_t head = (sizeof(F) - reinterpret_cast<uintptr_t>(to) % sizeof(F)) % sizeof(F);
  __builtin_memcpy(to, source, head);
  size_t i = head;
  for (; i + sizeof(F) <= bytes; i += sizeof(F)) {
    F v;
    __builtin_memcpy(&v, source + i, sizeof v);
    stream(reinterpret_cast<float*>(to + i), v);
  }
  __builtin_memcpy(to + i, source + i, bytes - i);
}

}  // namespace

void put_rows(const Tensor& tensor, size_t n, size_t c, size_t row, size_t rows, size_t columns, const float* stage,
              float* line) {
  if (tensor.type == BNNSDataTypeFloat32 && tensor.is_one_run(columns)) {
    std::byte* to = tensor.at(n, c, row);
    if (!tensor.accumulate) {
      put_run(to, stage, rows * columns * sizeof(float), tensor.stream);
      return;
    }
    float* sum = reinterpret_cast<float*>(to);
    const size_t count = rows * columns;
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(sum + i, load(sum + i) + load(stage + i));
    for (; i < count; ++i) sum[i] += stage[i];
    return;
  }
  for (size_t r = 0; r < rows; ++r) {
    std::byte* to = tensor.at(n, c, row + r);
    const float* from = stage + r * columns;
    if (tensor.accumulate) {
      load_row(tensor.type, to, tensor.x_stride, columns, line);
      for (size_t i = 0; i < columns; ++i) line[i] += from[i];
      from = line;
    }
    store_row(tensor.type, to, tensor.x_stride, columns, from);
  }
}

namespace {

// stage (rows, columns) packed goes to rows of plane (n, c).
void put_indices(const Tensor& tensor, size_t n, size_t c, size_t row, size_t rows, size_t columns,
                 const int32_t* stage) {
  if (tensor.type == BNNSDataTypeUInt32 && tensor.is_one_run(columns)) {
    __builtin_memcpy(tensor.at(n, c, row), stage, rows * columns * sizeof(uint32_t));
    return;
  }
  for (size_t r = 0; r < rows; ++r) {
    const int32_t* from = stage + r * columns;
    if (tensor.type == BNNSDataTypeUInt32) {
      uint32_t* to = reinterpret_cast<uint32_t*>(tensor.at(n, c, row + r));
      for (size_t i = 0; i < columns; ++i) to[i * tensor.x_stride] = static_cast<uint32_t>(from[i]);
    } else {
      uint64_t* to = reinterpret_cast<uint64_t*>(tensor.at(n, c, row + r));
      for (size_t i = 0; i < columns; ++i) to[i * tensor.x_stride] = static_cast<uint32_t>(from[i]);
    }
  }
}

// ---- image rows, split by residue ----

// from (W) -> the residues of one ring slot. Values past the end of a residue are padding.
void split(const Plan& plan, const float* from, float padding, float* to) {
  const size_t w = static_cast<size_t>(plan.x.image), sx = static_cast<size_t>(plan.x.stride);
  const F rest = splat(padding);
  float* first = to + plan.slot_left;
  if (sx == 1) {
    for (size_t i = 0; i < w; i += kLanes) store(first + i, load_clipped(from, i, w, rest));
    return;
  }
  if (sx == 2 && plan.used_residues == 2) {
    float* second = first + plan.slot_floats;
    for (size_t i = 0; i < w; i += 2 * kLanes) {
      F even, odd;
      split_pairs(load_clipped(from, i, w, rest), load_clipped(from, i + kLanes, w, rest), &even, &odd);
      store(first + i / 2, even);
      store(second + i / 2, odd);
    }
    return;
  }
  for (size_t slot = 0; slot < plan.used_residues; ++slot) {
    float* residue = first + slot * plan.slot_floats;
    for (size_t i = static_cast<size_t>(plan.used_residue[slot]), j = 0; i < w; i += sx, ++j) residue[j] = from[i];
  }
}

bool has_nan(const float* row, size_t n) {
  I found = I{};
  for (size_t i = 0; i < n; i += kLanes) found |= is_nan(load_clipped(row, i, n, F{}));
  return any(found);
}

// Image row h into its slot of the ring.
[[gnu::noinline]] void split_into(SplitRows& rows, size_t h, size_t slot) {
  const Plan& plan = rows.plan;
  const size_t w = static_cast<size_t>(plan.x.image);
  rows.held[slot] = static_cast<int32_t>(h);
  const Tensor& x = *rows.x;
  const std::byte* at = x.at(rows.n, rows.c, h);
  const float* from = reinterpret_cast<const float*>(at);
  if (x.type != BNNSDataTypeFloat32 || x.x_stride != 1) {
    load_row(x.type, at, x.x_stride, w, rows.line);
    from = rows.line;
  }
  split(plan, from, rows.padding, rows.ring + slot * plan.row_floats);
  if (plan.function == BNNSPoolingFunctionMax) rows.nan[slot] = has_nan(from, w);
}

// The slot that holds image row h, after making sure that it does.
OBN_INLINE size_t split_row(SplitRows& rows, int64_t h) {
  const size_t slot = static_cast<size_t>(h) & (rows.plan.ring_rows - 1);
  if (rows.held[slot] != static_cast<int32_t>(h)) split_into(rows, static_cast<size_t>(h), slot);
  return slot;
}

// Splits what window row p needs. Done while the row before is computed, so that the stores have reached the cache by
// the time windows load across them.
OBN_INLINE void split_ahead(SplitRows& rows, int64_t p) {
  const Axis& y = rows.plan.y;
  for (int64_t k = y.first(p), end = y.end(p), start = y.start(p); k < end; ++k)
    split_row(rows, start + y.dilation * k);
}

// ---- one row of windows ----

// Up to kRowsAtOnce image rows under a row of windows.
struct Under {
  const float* row[kRowsAtOnce];
  int32_t position[kRowsAtOnce];  // h·W
  size_t count;
};

// Takes value and code where the value is larger, or (kNan) is the first NaN.
template <bool kNan>
OBN_INLINE void keep_largest(F value, int32_t code, F* best, I* best_code) {
#if defined(__AVX512F__)
  const __m512 v = reinterpret_cast<__m512>(value), b = reinterpret_cast<__m512>(*best);
  const __mmask16 take = kNan ? _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(b, b, _CMP_ORD_Q), v, b, _CMP_NLE_UQ)
                              : _mm512_cmp_ps_mask(v, b, _CMP_GT_OQ);
  *best = reinterpret_cast<F>(_mm512_mask_mov_ps(b, take, v));
  *best_code = reinterpret_cast<I>(
      _mm512_mask_mov_epi32(reinterpret_cast<__m512i>(*best_code), take, _mm512_set1_epi32(code)));
#else
  const I take = kNan ? ~(value <= *best) & (*best == *best) : value > *best;
  *best = take ? value : *best;
  *best_code = take ? splat(code) : *best_code;
#endif
}

// y (Q) the largest value, index (Q) its position, over `under` and, unless it is_first, what y and index hold already.
// kRows, kColumns: the counts when they are known at compile time, else 0.
template <size_t kRows, size_t kColumns, bool kNan>
OBN_INLINE void largest_of(const Plan& plan, const Under& under, bool is_first, float* y, int32_t* index) {
  const size_t windows = static_cast<size_t>(plan.x.windows);
  const int32_t sx = static_cast<int32_t>(plan.x.stride);
  I moved = iota() * sx;  // sx·q: codes are positions relative to it
  const float* from[kRows ? kRows * kColumns : 1];  // known counts: every tap in a register
  int32_t tap_code[kRows ? kRows * kColumns : 1];
  for (size_t r = 0; r < kRows; ++r)
    for (size_t k = 0; k < kColumns; ++k) {
      from[r * kColumns + k] = under.row[r] + plan.columns[k].at;
      tap_code[r * kColumns + k] = under.position[r] + plan.columns[k].offset;
    }
  for (size_t q = 0; q < windows; q += kLanes, moved += static_cast<int32_t>(kLanes) * sx) {
    // A window that is -inf everywhere has its first position as index.
    F best = is_first ? splat(-__builtin_inff()) : load(y + q);
    I code = (is_first ? load(plan.first_column + q) + under.position[0] : load(index + q)) - moved;
    if constexpr (kRows > 0) {
      for (size_t t = 0; t < kRows * kColumns; ++t) keep_largest<kNan>(load(from[t] + q), tap_code[t], &best, &code);
    } else {
      for (size_t r = 0; r < under.count; ++r)
        for (size_t k = 0; k < plan.columns_count; ++k)
          keep_largest<kNan>(load(under.row[r] + plan.columns[k].at + q), under.position[r] + plan.columns[k].offset,
                             &best, &code);
    }
    store(y + q, best);
    store(index + q, code + moved);
  }
}

// y (Q) sums over `under`, of squares if kSquares, added to y unless it is_first; each window row is summed on its own
// first, which keeps the error of large windows small.
template <bool kSquares, size_t kRows, size_t kColumns>
OBN_INLINE void sum_of(const Plan& plan, const Under& under, bool is_first, float* y) {
  const size_t windows = static_cast<size_t>(plan.x.windows);
  const size_t rows = kRows ? kRows : under.count, columns = kColumns ? kColumns : plan.columns_count;
  for (size_t q = 0; q < windows; q += kLanes) {
    F total = is_first ? F{} : load(y + q);
    for (size_t r = 0; r < rows; ++r) {
      F sum = F{};
      for (size_t k = 0; k < columns; ++k) {
        const F value = load(under.row[r] + plan.columns[k].at + q);
        sum += kSquares ? value * value : value;
      }
      total += sum;
    }
    store(y + q, total);
  }
}

template <bool kSquares>
void sum_windows(const Plan& plan, const Under& under, bool is_first, float* y) {
  if (under.count == 2 && plan.columns_count == 2) {
    sum_of<kSquares, 2, 2>(plan, under, is_first, y);
  } else if (under.count == 3 && plan.columns_count == 3) {
    sum_of<kSquares, 3, 3>(plan, under, is_first, y);
  } else {
    sum_of<kSquares, 0, 0>(plan, under, is_first, y);
  }
}

template <bool kNan>
void largest_windows(const Plan& plan, const Under& under, bool is_first, float* y, int32_t* index) {
  if (under.count == 2 && plan.columns_count == 2) {
    largest_of<2, 2, kNan>(plan, under, is_first, y, index);
  } else if (under.count == 3 && plan.columns_count == 3) {
    largest_of<3, 3, kNan>(plan, under, is_first, y, index);
  } else {
    largest_of<0, 0, kNan>(plan, under, is_first, y, index);
  }
}

// ---- one row of windows, straight from the image ----

// Stride 2 and columns 0, 1 or -1, 0, 1 of packed float32 rows (2x2, and 3x3 with padding 1): pairs are split in
// registers and nothing is laid out in scratch. With the data in cache this takes a fifth to a half less time than the
// ring does.

// The last lane of `before`, then all but the last of v.
OBN_INLINE F slide(F before, F v) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(
      _mm512_alignr_epi32(reinterpret_cast<__m512i>(v), reinterpret_cast<__m512i>(before), kLanes - 1));
#elif defined(__AVX2__)
  return __builtin_shufflevector(before, v, 7, 8, 9, 10, 11, 12, 13, 14);
#else
  return __builtin_shufflevector(before, v, 3, 4, 5, 6);
#endif
}

// The rows of windows that one call does: all of them have the same number of window rows inside the image.
struct Strip {
  const float* image;       // the first image row under the first of them; where rows are shared, the second
  size_t next_row;          // floats from an image row to the next one under the same windows
  size_t next_windows;      // and to the one under the next row of windows
  size_t rows;              // of windows
  size_t plane_rows;        // after so many positions start again: the rows of the next plane
  size_t next_index;        // Q; 0: nobody wants the indices, and one row takes them all
  int32_t position;         // h·W of the first image row under the first of them
  int32_t down;             // what next_row and next_windows add to it
  int32_t advance;
  float weight_y;           // rows that an average counts
  bool weighs_by_product;   // all weights are powers of two
  const SharedRow* shared;  // (2) the first: of the image row above `image`
};

// Where one row of windows of a strip begins.
struct StripRow {
  const float* image;
  int32_t position;
  size_t left;  // rows of this plane

  [[gnu::always_inline]] inline explicit StripRow(const Strip& strip)
      : image(strip.image), position(strip.position), left(strip.plane_rows) {}
  [[gnu::always_inline]] inline void move_down(const Strip& strip) {
    image += strip.next_windows;
    position += strip.advance;
    if (--left > 0) return;
    left = strip.plane_rows;
    position = strip.position;
  }
};

// Asks for what lies kAhead behind a place in the image that is about to be read. Rows are consumed several at a time,
// which the machine's own prefetching does not follow: a forward pass from memory takes up to twice as long without.
// Far ahead, and into the second-level cache: the first-level one waits for few lines at a time.
constexpr size_t kAhead = 8192;
template <class Where>
OBN_INLINE void prefetch_behind(const float* p, Where) {
  if (Where::fill == Fill::narrow) return;  // short rows are one run after the other, which the machine does follow
  const std::byte* at = reinterpret_cast<const std::byte*>(p) + kAhead;
  __builtin_prefetch(at, 0, 2);
  if (2 * sizeof(F) > 64) __builtin_prefetch(at + 64, 0, 2);
}

// The columns that windows have do not have to be all of the row.
OBN_INLINE Fill fill_of(const Plan& plan) {
  if (2 * plan.x.windows > plan.x.image) return Fill::clipped;
  if (plan.x.windows >= static_cast<int64_t>(kLanes)) return Fill::whole;
  return kLanes == 16 ? Fill::narrow : Fill::clipped;
}

// Where a vector of windows lies in its row.
template <Fill kFill, bool kIsFirst>
struct Part {
  static constexpr Fill fill = kFill;
  static constexpr bool is_first = kIsFirst;  // it begins with window 0; a clipped one may anyway
  Keep low = {};                              // narrow: which columns there are
  Keep high = {};
  Keep windows = {};                          // and which windows
};

// Calls visit(q, slot, Part) for the windows q, q+1, … of one row. The last vector of whole ones ends with the row, and
// visits some windows again; others reach past the row. Slots do not overlap (see slot_of_last).
template <Fill kFill, class Visit>
OBN_INLINE void for_windows(size_t windows, const Visit& visit) {
  if constexpr (kFill == Fill::whole) {
    const size_t last = windows - kLanes;
    visit(0, size_t{0}, Part<kFill, true>{});
    for (size_t q = kLanes; q < last; q += kLanes) visit(q, q, Part<kFill, false>{});
    if (last > 0) visit(last, slot_of_last(windows), Part<kFill, false>{});
  } else if constexpr (kFill == Fill::narrow) {
    const size_t columns = 2 * windows, low = columns < kLanes ? columns : kLanes;
    visit(0, size_t{0}, Part<kFill, true>{keep_lanes(0, low), keep_lanes(0, columns - low), keep_lanes(0, windows)});
  } else {
    for (size_t q = 0; q < windows; q += kLanes) visit(q, q, Part<kFill, false>{});
  }
}

// The columns of kLanes windows in one image row: even and odd ones, and (kThird) the odd ones before.
struct Columns {
  F before, even, odd;
};

template <bool kThird, class Where>
OBN_INLINE Columns columns_at(const float* row, size_t q, size_t w, F padding, Where where) {
  Columns c;
  if constexpr (Where::fill == Fill::narrow) {
    split_pairs(held(load_kept(row, where.low)), held(load_kept(row + kLanes, where.high)), &c.even, &c.odd);
  } else if constexpr (Where::fill == Fill::whole) {
    split_pairs(held(load(row + 2 * q)), held(load(row + 2 * q + kLanes)), &c.even, &c.odd);
  } else {
    split_pairs(load_clipped(row, 2 * q, w, padding), load_clipped(row, 2 * q + kLanes, w, padding), &c.even, &c.odd);
  }
  c.before = padding;
  if (!kThird) return c;
  const bool has_before = Where::fill == Fill::clipped ? q > 0 && 2 * q <= w : !Where::is_first;
  c.before = slide(has_before ? splat(row[2 * q - 1]) : padding, c.odd);
  return c;
}

// Collects whether there was a NaN.
struct NanWatch {
#if defined(__AVX512F__)
  __mmask16 numbers = 0xffff;
  [[gnu::always_inline]] inline void look_at(F a, F b) {
    numbers = _mm512_mask_cmp_ps_mask(numbers, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_ORD_Q);
  }
  [[gnu::always_inline]] inline bool any_found() const { return numbers != 0xffff; }
#else
  I found = {};
  [[gnu::always_inline]] inline void look_at(F a, F b) { found |= is_nan(a) | is_nan(b); }
  [[gnu::always_inline]] inline bool any_found() const { return any(found); }
#endif
};

// A maximum and where it is.
struct Best {
  F value;
  I code;
};
// The earlier of two equal ones; codes of `then` count from `further` on.
OBN_INLINE Best larger(Best first, Best then, I further) {
  const F value = max(then.value, first.value);
#if defined(__AVX512F__)
  const __mmask16 take = _mm512_cmp_ps_mask(reinterpret_cast<__m512>(then.value),
                                            reinterpret_cast<__m512>(first.value), _CMP_GT_OQ);
  return {value, reinterpret_cast<I>(_mm512_mask_add_epi32(reinterpret_cast<__m512i>(first.code), take,
                                                           reinterpret_cast<__m512i>(then.code),
                                                           reinterpret_cast<__m512i>(further)))};
#else
  return {value, then.value > first.value ? then.code + further : first.code};
#endif
}

// Columns of the windows q, q+1, … relative to those of window 0.
OBN_INLINE I places_of(size_t q) { return iota() * 2 + static_cast<int32_t>(2 * q); }

// The first column inside the image, relative to places_of(q): what a window that is -inf everywhere has as index.
template <bool kThird, class Where>
OBN_INLINE I first_code(const int32_t* first_column, size_t q, Where) {
  if (!kThird) return I{};
  if (Where::fill == Fill::whole && !Where::is_first) return splat(-1);
  return load(first_column + q) - places_of(q);
}

// The largest of the columns in one image row; codes are columns relative to places_of(q).
template <bool kThird, class Where>
OBN_INLINE Best best_of_row(const float* row, size_t q, size_t w, I first, NanWatch* nan, Where where) {
  const Columns c = columns_at<kThird>(row, q, w, splat(-__builtin_inff()), where);
  nan->look_at(c.even, c.odd);
  Best best{c.even, I{}};
  if (kThird) best = larger({c.before, first}, best, I{});
  return larger(best, {c.odd, splat(1)}, I{});
}

// What windows share of an image row; NULL: of a row of padding. True when there was a NaN.
template <bool kThird, Fill kFill>
bool share_largest(const Plan& plan, const float* row, int32_t down, const SharedRow& to) {
  const size_t windows = static_cast<size_t>(plan.x.windows), w = static_cast<size_t>(plan.x.image);
  const int32_t* first_column = plan.first_column;
  NanWatch nan;
  for_windows<kFill>(windows, [&](size_t q, size_t slot, auto where) __attribute__((always_inline)) {
    const I first = first_code<kThird>(first_column, q, where);
    Best best{splat(-__builtin_inff()), first + down};
    if (row) best = best_of_row<kThird>(row, q, w, first, &nan, where);
    store(to.value + slot, best.value);
    store(to.code + slot, best.code);
  });
  return nan.any_found();
}

// The columns of each row are compared first, then the rows: short chains of dependent instructions. True when there
// was a NaN, and everything has to be done again by largest_pairs_or_nan.
// kShares: the last image row of a window is the first of the one below, and is compared once.
template <size_t kRows, bool kThird, bool kShares, Fill kFill>
bool largest_pairs(const Plan& plan, const Strip& given, float* y, int32_t* index) {
  const Strip strip = given;  // a copy of its own: the compiler reads the other one again after every store
  const size_t windows = static_cast<size_t>(plan.x.windows), w = static_cast<size_t>(plan.x.image);
  const int32_t* first_column = plan.first_column;
  SharedRow above{}, below{};
  if (kShares) {
    above = strip.shared[0];
    below = strip.shared[1];
  }
  NanWatch nan[2];
  StripRow at(strip);
  size_t room = strip.rows * windows;
  for (size_t p = 0; p < strip.rows; ++p) {
    for_windows<kFill>(windows, [&](size_t q, size_t slot, auto where) __attribute__((always_inline)) {
      const I first = first_code<kThird>(first_column, q, where);
      const float* row = at.image;
      Best best;
      if (kShares) {
        best = {load(above.value + slot), load(above.code + slot)};
      } else {
        prefetch_behind(row + 2 * q, where);
        best = best_of_row<kThird>(row, q, w, first, &nan[0], where);
        row += strip.next_row;
      }
      for (size_t r = 1; r < kRows; ++r, row += strip.next_row) {
        prefetch_behind(row + 2 * q, where);
        const Best next = best_of_row<kThird>(row, q, w, first, &nan[r % 2], where);
        best = larger(best, next, splat(static_cast<int32_t>(r) * strip.down));
        if (!kShares || r + 1 < kRows) continue;
        store(below.value + slot, next.value);
        store(below.code + slot, next.code);
      }
      put<kFill>(y + q, best.value, where.windows, room - q);
      put<kFill>(reinterpret_cast<float*>(index + q), from_bits(best.code + (places_of(q) + at.position)), where.windows,
                 room - q);
    });
    if (kShares) {
      const SharedRow done = above;
      above = below;
      below = done;
    }
    at.move_down(strip);
    y += windows;
    index += strip.next_index;
    room -= windows;
  }
  return nan[0].any_found() || nan[1].any_found();
}

// The same one position after the other: the first NaN wins. `image` is the first row inside the image here.
template <size_t kRows, bool kThird>
void largest_pairs_or_nan(const Plan& plan, const Strip& strip, float* y, int32_t* index) {
  const size_t windows = static_cast<size_t>(plan.x.windows), w = static_cast<size_t>(plan.x.image);
  const F padding = splat(-__builtin_inff());
  StripRow at(strip);
  size_t room = strip.rows * windows;
  for (size_t p = 0; p < strip.rows; ++p) {
    for (size_t q = 0; q < windows; q += kLanes) {
      Best best{padding, load(plan.first_column + q) - places_of(q)};
      for (size_t r = 0; r < kRows; ++r) {
        const Columns c = columns_at<kThird>(at.image + r * strip.next_row, q, w, padding, Part<Fill::clipped, false>{});
        const int32_t code = static_cast<int32_t>(r) * strip.down;
        if (kThird) keep_largest<true>(c.before, code - 1, &best.value, &best.code);
        keep_largest<true>(c.even, code, &best.value, &best.code);
        keep_largest<true>(c.odd, code + 1, &best.value, &best.code);
      }
      put<Fill::clipped>(y + q, best.value, Keep{}, room - q);
      put<Fill::clipped>(reinterpret_cast<float*>(index + q), from_bits(best.code + (places_of(q) + at.position)), Keep{},
                         room - q);
    }
    at.move_down(strip);
    y += windows;
    index += strip.next_index;
    room -= windows;
  }
}

template <bool kSquares, bool kThird, class Where>
OBN_INLINE F sum_of_row(const float* row, size_t q, size_t w, Where where) {
  const Columns c = columns_at<kThird>(row, q, w, F{}, where);
  if (kSquares) return fma(c.before, c.before, fma(c.even, c.even, c.odd * c.odd));
  return c.even + c.odd + c.before;
}

template <bool kSquares, bool kThird, Fill kFill>
void share_sum(const Plan& plan, const float* row, const SharedRow& to) {
  const size_t windows = static_cast<size_t>(plan.x.windows), w = static_cast<size_t>(plan.x.image);
  for_windows<kFill>(windows, [&](size_t q, size_t slot, auto where) __attribute__((always_inline)) {
    store(to.value + slot, row ? sum_of_row<kSquares, kThird>(row, q, w, where) : F{});
  });
}

// Averages, or (kSquares) norms.
template <bool kSquares, size_t kRows, bool kThird, bool kShares, Fill kFill>
void sum_pairs(const Plan& plan, const Strip& given, float* y) {
  const Strip strip = given;
  const size_t windows = static_cast<size_t>(plan.x.windows), w = static_cast<size_t>(plan.x.image);
  const float *column_factor = plan.column_factor, *column_weight = plan.column_weight;
  SharedRow above{}, below{};
  if (kShares) {
    above = strip.shared[0];
    below = strip.shared[1];
  }
  const float* image = strip.image;
  const float factor_y = 1.0f / strip.weight_y;
  size_t room = strip.rows * windows;
  for (size_t p = 0; p < strip.rows; ++p) {
    for_windows<kFill>(windows, [&](size_t q, size_t slot, auto where) __attribute__((always_inline)) {
      const float* row = image;
      F total;
      if (kShares) {
        total = load(above.value + slot);
      } else {
        prefetch_behind(row + 2 * q, where);
        total = sum_of_row<kSquares, kThird>(row, q, w, where);
        row += strip.next_row;
      }
      for (size_t r = 1; r < kRows; ++r, row += strip.next_row) {
        prefetch_behind(row + 2 * q, where);
        const F sum = sum_of_row<kSquares, kThird>(row, q, w, where);
        total += sum;
        if (kShares && r + 1 == kRows) store(below.value + slot, sum);
      }
      if (kSquares) {
        total = sqrt(total);
      } else if (strip.weighs_by_product) {
        total *= load(column_factor + q) * factor_y;
      } else {
        total /= load(column_weight + q) * strip.weight_y;
      }
      put<kFill>(y + q, total, where.windows, room - q);
    });
    if (kShares) {
      const SharedRow done = above;
      above = below;
      below = done;
    }
    image += strip.next_windows;
    y += windows;
    room -= windows;
  }
}

template <size_t kRows, bool kThird, Fill kFill>
void window_pairs(const Plan& plan, const Strip& strip, float* y, int32_t* index) {
  if (plan.function == BNNSPoolingFunctionMax) {
    if (largest_pairs<kRows, kThird, false, kFill>(plan, strip, y, index)) [[unlikely]]
      largest_pairs_or_nan<kRows, kThird>(plan, strip, y, index);
  } else if (plan.function == BNNSPoolingFunctionL2Norm) {
    sum_pairs<true, kRows, kThird, false, kFill>(plan, strip, y);
  } else {
    sum_pairs<false, kRows, kThird, false, kFill>(plan, strip, y);
  }
}

// `under` image rows under each window.
template <bool kThird, Fill kFill>
void window_pairs_of(int64_t under, const Plan& plan, const Strip& strip, float* y, int32_t* index) {
  const auto run = under == 1   ? window_pairs<1, kThird, kFill>
                   : under == 2 ? window_pairs<2, kThird, kFill>
                                : window_pairs<3, kThird, kFill>;
  run(plan, strip, y, index);
}

// Three image rows under each window, the first of which rows.shared[0] holds, unless it has to be filled from `above`.
// NULL is a row of padding: then there is one row of windows.
template <bool kThird, Fill kFill>
void window_pairs_shared(SplitRows& rows, const Strip& strip, bool is_filled, const float* above, float* y,
                         int32_t* index) {
  const Plan& plan = rows.plan;
  if (plan.function == BNNSPoolingFunctionMax) {
    const bool has_nan = !is_filled && share_largest<kThird, kFill>(plan, above, strip.down, rows.shared[0]);
    if (!has_nan && !largest_pairs<3, kThird, true, kFill>(plan, strip, y, index)) [[likely]] return;
    rows.shared_row = SplitRows::kNone;
    Strip inside = strip;  // without the row of padding
    if (above) {
      inside.image = above;
      largest_pairs_or_nan<3, kThird>(plan, inside, y, index);
    } else {
      inside.position += strip.down;
      largest_pairs_or_nan<2, kThird>(plan, inside, y, index);
    }
  } else if (plan.function == BNNSPoolingFunctionL2Norm) {
    if (!is_filled) share_sum<true, kThird, kFill>(plan, above, rows.shared[0]);
    sum_pairs<true, 3, kThird, true, kFill>(plan, strip, y);
  } else {
    if (!is_filled) share_sum<false, kThird, kFill>(plan, above, rows.shared[0]);
    sum_pairs<false, 3, kThird, true, kFill>(plan, strip, y);
  }
}

bool is_power_of_two(float weight) { return (__builtin_bit_cast(uint32_t, weight) & 0x7fffff) == 0; }

// Rows of the image that an average counts in window row p.
float weight_of_row(const Plan& plan, int64_t p) {
  const int64_t count = plan.y.end(p) - plan.y.first(p);
  return plan.count_padding ? plan.full_height : static_cast<float>(count > 0 ? count : 1);
}

// The windows of `count` rows from p on, with equally many image rows under each, as they lie in the image.
void window_rows_pairs(SplitRows& rows, int64_t p, size_t count, float* y, int32_t* index, size_t next_index) {
  const Plan& plan = rows.plan;
  const Axis& axis = plan.y;
  const int64_t start = axis.start(p), first = axis.first(p), end = axis.end(p), under = end - first;
  const size_t pitch = rows.x->y_stride;
  const auto image_row = [&](int64_t k) {
    return reinterpret_cast<const float*>(rows.x->at(rows.n, rows.c, static_cast<size_t>(start + axis.dilation * k)));
  };
  const bool is_third = plan.columns_count == 3;
  const Fill fill = fill_of(plan);
  Strip strip;
  strip.next_row = static_cast<size_t>(axis.dilation) * pitch;
  strip.next_windows = static_cast<size_t>(axis.stride) * pitch;
  strip.rows = count;
  strip.plane_rows = static_cast<size_t>(axis.windows);
  strip.next_index = next_index;
  strip.down = static_cast<int32_t>(axis.dilation * plan.x.image);
  strip.advance = static_cast<int32_t>(axis.stride * plan.x.image);
  strip.weight_y = weight_of_row(plan, p);
  strip.weighs_by_product = plan.weights_are_powers_of_two && is_power_of_two(strip.weight_y);
  strip.shared = rows.shared;
  if (axis.kernel == 3 && end == 3 && first <= 1 && axis.stride == 2 * axis.dilation) {
    strip.image = image_row(1);
    strip.position = static_cast<int32_t>(start * plan.x.image);
    const bool is_filled = rows.shared_row == start;
    rows.shared_row = start + axis.stride * static_cast<int64_t>(count);
    const float* above = first == 0 ? image_row(0) : nullptr;
    with_fill(fill, [&](auto how) {
      const auto run = is_third ? window_pairs_shared<true, how.value> : window_pairs_shared<false, how.value>;
      run(rows, strip, is_filled, above, y, index);
    });
    if (count % 2 == 1) rows.swap_shared();
    return;
  }
  strip.image = image_row(first);
  strip.position = static_cast<int32_t>((start + axis.dilation * first) * plan.x.image);
  with_fill(fill, [&](auto how) {
    const auto run = is_third ? window_pairs_of<true, how.value> : window_pairs_of<false, how.value>;
    run(under, plan, strip, y, index);
  });
}

// ---- any row of windows ----

}  // namespace

// Powers of two become a product: the same bits, sooner.
void divide_by_weights(const Plan& plan, int64_t p, size_t rows, const float* sums, float* z) {
  const size_t values = rows * static_cast<size_t>(plan.x.windows);
  const float weight_y = weight_of_row(plan, p);
  if (plan.weights_are_powers_of_two && is_power_of_two(weight_y)) {
    const float factor_y = 1.0f / weight_y;
    for (size_t i = 0; i < values; i += kLanes)
      store(z + i, load_clipped(sums, i, values, F{}) * (load(plan.column_factor + i) * factor_y));
  } else {
    for (size_t i = 0; i < values; i += kLanes)
      store(z + i, load_clipped(sums, i, values, F{}) / (load(plan.column_weight + i) * weight_y));
  }
}

namespace {

// The rows under window row p, split by residue, as many at a time as the plan allows.
void window_row_split(SplitRows& rows, int64_t p, float* y, int32_t* index) {
  const Plan& plan = rows.plan;
  const int64_t first = plan.y.first(p), end = plan.y.end(p), start = plan.y.start(p);
  const int64_t step = static_cast<int64_t>(plan.rows_at_once);
  bool has_nan = false;  // in these rows, or in y from an earlier pass
  for (int64_t k = first; k < end; k += step) {
    Under under;
    under.count = static_cast<size_t>(end - k < step ? end - k : step);
    for (size_t r = 0; r < under.count; ++r) {
      const int64_t h = start + plan.y.dilation * (k + static_cast<int64_t>(r));
      const size_t slot = split_row(rows, h);
      under.row[r] = rows.ring + slot * plan.row_floats;
      under.position[r] = static_cast<int32_t>(h * plan.x.image);
      has_nan |= plan.function == BNNSPoolingFunctionMax && rows.nan[slot];
    }
    if (plan.function == BNNSPoolingFunctionL2Norm) {
      sum_windows<true>(plan, under, k == first, y);
    } else if (plan.function != BNNSPoolingFunctionMax) {
      sum_windows<false>(plan, under, k == first, y);
    } else if (has_nan) {
      largest_windows<true>(plan, under, k == first, y, index);
    } else {
      largest_windows<false>(plan, under, k == first, y, index);
    }
  }
}

}  // namespace

void window_rows(SplitRows& rows, int64_t p, size_t count, float* y, int32_t* index, bool keeps_index) {
  const Plan& plan = rows.plan;
  const size_t windows = static_cast<size_t>(plan.x.windows), values = count * windows;
  const bool is_max = plan.function == BNNSPoolingFunctionMax;
  if (plan.y.first(p) == plan.y.end(p)) {
    fill(y, values, 0.0f);
    if (is_max) fill(reinterpret_cast<float*>(index), values, 0.0f);
    return;
  }
  if (rows.in_pairs) {
    window_rows_pairs(rows, p, count, y, index, keeps_index ? windows : 0);
  } else {
    window_row_split(rows, p, y, index);
  }
  if (is_max) {
    if (!plan.has_empty_columns) return;
    for (size_t i = 0; i < values; ++i) {
      if (plan.column_count[i % windows] != 0) continue;
      y[i] = 0.0f;
      index[i] = 0;
    }
  } else if (rows.in_pairs) {
    return;
  } else if (plan.function == BNNSPoolingFunctionL2Norm) {
    for (size_t i = 0; i < values; i += kLanes) store(y + i, sqrt(load(y + i)));
  } else {
    divide_by_weights(plan, p, count, y, y);
  }
}

namespace {

// ---- forward ----

// z (rows, columns) becomes activation(z + bias of channel c).
void finish_rows(const Plan& plan, size_t c, size_t rows, size_t columns, float* z) {
  if (plan.bias.data) {
    const F bias = splat(obn::pooling::bias_of(plan, c));
    for (size_t i = 0; i < rows * columns; i += kLanes) store(z + i, load(z + i) + bias);
  }
  if (!plan.has_activation) return;
  for (size_t r = 0; r < rows; ++r) plan.activation.forward(z + r * columns, columns);
}

}  // namespace

void forward_in_place(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  Scratch scratch;
  SplitRows rows(plan, &scratch);
  int32_t* unwanted = scratch.take_indices(static_cast<size_t>(plan.x.windows) + kPad);  // (Q)
  // Several planes may be as good as one with many rows: no call per plane.
  const size_t window_rows_of_plane = static_cast<size_t>(plan.y.windows);
  const bool is_stack = piece.rows == window_rows_of_plane && has_full_rows_only(plan) &&
                        is_one_stack(call, call.x, window_rows_of_plane * static_cast<size_t>(plan.y.stride)) &&
                        is_one_stack(call, call.y, window_rows_of_plane) &&
                        (!call.indices.data || is_one_stack(call, call.indices, window_rows_of_plane));
  const size_t planes = is_stack ? 1 : piece.planes, end = piece.row + (is_stack ? piece.planes : 1) * piece.rows;
  for (size_t plane = piece.plane; plane < piece.plane + planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    rows.start_plane(call.x, n, c);
    for (size_t p = piece.row, together = 1; p < end; p += together) {
      together = is_stack ? end : rows_together(plan, static_cast<int64_t>(p), end - p);
      float* y = reinterpret_cast<float*>(call.y.at(n, c, p));
      int32_t* index = call.indices.data ? reinterpret_cast<int32_t*>(call.indices.at(n, c, p)) : unwanted;
      window_rows(rows, static_cast<int64_t>(p), together, y, index, call.indices.data);
    }
  }
}

void forward_windows(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t windows = static_cast<size_t>(plan.x.windows), stage = plan.forward_rows * windows + 2 * kPad;
  Scratch scratch;
  SplitRows rows(plan, &scratch);
  Outlet y_outlet(scratch.take(stage));  // (forward_rows, Q), as the index
  Outlet index_outlet(scratch.take(stage));
  Outlet wide_outlet(scratch.take(2 * stage));
  float* y = y_outlet.stage;
  int32_t* index = reinterpret_cast<int32_t*>(index_outlet.stage);
  const bool streams_y = call.y.stream && call.y.type == BNNSDataTypeFloat32 && call.y.is_one_run(windows);
  const bool streams_index = call.indices.stream && call.indices.is_one_run(windows);
  const bool is_wide = streams_index && call.indices.type == BNNSDataTypeUInt64;
  const size_t end = piece.row + piece.rows;
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    rows.start_plane(call.x, n, c);
    const bool splits_ahead = plan.splits_ahead && !rows.in_pairs;
    for (size_t p = piece.row; p < end; p += plan.forward_rows) {
      const size_t count = end - p < plan.forward_rows ? end - p : plan.forward_rows;
      for (size_t r = 0, together = 1; r < count; r += together) {
        const int64_t row = static_cast<int64_t>(p + r);
        if (splits_ahead && p + r + 1 < end) split_ahead(rows, row + 1);
        if (rows.in_pairs) together = rows_together(plan, row, count - r);
        window_rows(rows, row, together, y + r * windows, index + r * windows);
      }
      finish_rows(plan, c, count, windows, y);
      if (streams_y) {
        y_outlet.lead_to(call.y.at(n, c, p));
        y_outlet.put(count * windows);
      } else {
        put_rows(call.y, n, c, p, count, windows, y, rows.line);
      }
      if (!call.indices.data) continue;
      if (is_wide) {
        uint64_t* wide = reinterpret_cast<uint64_t*>(wide_outlet.stage);
        for (size_t i = 0; i < count * windows; ++i) wide[i] = static_cast<uint32_t>(index[i]);
        wide_outlet.lead_to(call.indices.at(n, c, p));
        wide_outlet.put(2 * count * windows);
      } else if (streams_index) {
        index_outlet.lead_to(call.indices.at(n, c, p));
        index_outlet.put(count * windows);
      } else {
        put_indices(call.indices, n, c, p, count, windows, index);
      }
    }
  }
  y_outlet.flush();
  index_outlet.flush();
  wide_outlet.flush();
  fence();
}

// y (H, W) = 0, then y[index] = x for every value of x (P, Q), in scan order.
void forward_inverse(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t windows = static_cast<size_t>(plan.x.windows), w = static_cast<size_t>(plan.x.image);
  Scratch scratch;
  float* x = scratch.take(plan.line_floats);
  int32_t* index = scratch.take_indices(plan.line_floats);
  float* y = scratch.take(plan.scatter_rows * w + 4 * kPad);  // (scatter_rows, W)
  const size_t end = piece.row + piece.rows;
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    for (size_t h = piece.row; h < end; h += plan.scatter_rows) {
      const size_t count = end - h < plan.scatter_rows ? end - h : plan.scatter_rows;
      const uint32_t first = static_cast<uint32_t>(h * w), positions = static_cast<uint32_t>(count * w);
      fill(y, positions, 0.0f);
      for (size_t p = 0; p < static_cast<size_t>(plan.y.windows); ++p) {
        load_line(call.x, n, c, p, windows, x);
        load_indices(call.indices, n, c, p, windows, index);
        for (size_t q = 0; q < windows; ++q) {
          const uint32_t position = static_cast<uint32_t>(index[q]) - first;
          if (position < positions) y[position] = x[q];
        }
      }
      finish_rows(plan, c, count, w, y);
      put_rows(call.y, n, c, h, count, w, y, x);
    }
  }
  fence();
}

// y (1, 1) = mean of the whole plane x (H, W), packed float32: one run, no windows.
void forward_global(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Plan& plan = *call.plan;
  const Piece piece = call.cut.piece(i);
  const size_t count = static_cast<size_t>(plan.x.image * plan.y.image);
  Scratch scratch;
  float* y = scratch.take(2 * kPad);
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const size_t n = plane / plan.channels, c = plane % plan.channels;
    const float* x = reinterpret_cast<const float*>(call.x.at(n, c, 0));
    F even = F{}, odd = F{};
    size_t at = 0;
    for (; at + 2 * kLanes <= count; at += 2 * kLanes) {
      even += load(x + at);
      odd += load(x + at + kLanes);
    }
    even += load_clipped(x, at, count, F{});
    odd += load_clipped(x, at + kLanes, count, F{});
    y[0] = sum(even + odd);
    divide_by_weights(plan, 0, 1, y, y);
    finish_rows(plan, c, 1, 1, y);
    store_row(call.y.type, call.y.at(n, c, 0), 1, 1, y);
  }
}

}  // namespace obn::OBN_TARGET::pooling
