// The loops of attention, once per instruction set. Letters as in attention.h; r is a score, p its softmax.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/attention.h"
#include "base/integer.h"
#include "base/interrupt.h"
#include "base/memory.h"
#include "simd/convert.h"
#include "simd/math.h"
#include "simd/tile.h"

namespace obn::OBN_TARGET::attention {
namespace {

using obn::attention::Blocks;
using obn::attention::Coming;
using obn::attention::Head;
using obn::attention::HeadGradients;
using obn::attention::score_pitch;
using obn::attention::whole_tiles;

constexpr float kNothing = -__builtin_inff();
constexpr size_t kShortRow = 128;  // values from row to row up to which rows are multiplied where they lie

OBN_INLINE size_t least(size_t a, size_t b) { return a < b ? a : b; }
OBN_INLINE size_t whole_vectors(size_t n) { return round_up(n, kLanes); }

// ---- products ----

// Value (i, p) lies at data[i·row + p·step].
struct Left {
  const float* data;
  size_t row, step;
};
// Value (p, j): rows, or panels [k][kTileColumns] one after the other.
struct Right {
  const float* data;
  size_t step;  // from one p to the next
  size_t tile;  // from one column to the next, at the first column of a tile
};
OBN_INLINE Right rows_of(const float* data, size_t row) { return {data, row, 1}; }
OBN_INLINE Right panels_of(const float* data, size_t k) { return {data, kTileColumns, k}; }

// Hands out what is to come, line by line, down the rows.
struct Ahead {
  const Coming& coming;
  size_t at = 0, line = 0, row = 0;

  // The next k lines; rows fewer than k are left out.
  void give(size_t k, Tile* t) {
    t->ahead = nullptr;
    t->ahead_step = 0;
    while (at < coming.count && coming.rows[at].rows < k) ++at;
    if (at == coming.count) return;
    const Coming::Rows& from = coming.rows[at];
    t->ahead = from.data + least(row, from.rows - k) * from.row + line * kLineFloats;
    t->ahead_step = from.row;
    row += k;
    if (row < from.rows) return;
    row = 0;
    if (++line * kLineFloats < from.width) return;
    line = 0;
    ++at;
  }
};

// c (m, n) = alpha · a (m, k) · b (k, n), set or added.
void multiply(const Left& a, const Right& b, size_t m, size_t n, size_t k, float* c, size_t c_row, bool accumulate,
              float alpha, Ahead* ahead = nullptr) {
  const size_t panels = row_panels(m), height = m / panels, longer = m % panels;
  Tile t;
  t.a_row = a.row;
  t.a_step = a.step;
  t.b_step = b.step;
  t.c_row = c_row;
  t.k = k;
  t.accumulate = accumulate;
  t.alpha = alpha;
  for (size_t j = 0; j < n; j += kTileColumns) {
    t.columns = least(kTileColumns, n - j);
    t.b = b.data + j * b.tile;
    for (size_t r = 0, i = 0; r < panels; ++r) {
      const size_t rows = height + (r < longer ? 1 : 0);
      t.a = a.data + i * a.row;
      t.c = c + i * c_row + j;
      if (ahead) ahead->give(k, &t);
      multiply_tile[rows](t);
      i += rows;
    }
  }
}

// ---- copies ----

// to (rows, n) = from · factor
void copy_rows(const float* from, size_t row, size_t rows, size_t n, float factor, float* to) {
  for (size_t i = 0; i < rows; ++i, from += row, to += n) {
    size_t c = 0;
    for (; c + kLanes <= n; c += kLanes) store(to + c, load(from + c) * factor);
    if (c < n) store_first(to + c, load_first(from + c, n - c) * factor, n - c);
  }
}

// Rows of keys or values: those of the sample, and the extra ones behind them.
struct Source {
  const float* data;
  size_t row, count;
  const float* extra;
  size_t width;

  const float* at(size_t j) const { return j < count ? data + j * row : extra + (j - count) * width; }
};
OBN_INLINE Source queries_of(const Head& h) { return {h.q, h.q_row, h.t, nullptr, h.key_width}; }
OBN_INLINE Source keys_of(const Head& h) { return {h.k, h.k_row, h.s, h.extra_k, h.key_width}; }
OBN_INLINE Source values_of(const Head& h) { return {h.v, h.v_row, h.s, h.extra_v, h.value_width}; }

// Rows [first, first + n) without gaps.
void copy_source(const Source& s, size_t first, size_t n, float* to) {
  const size_t own = first < s.count ? least(n, s.count - first) : 0;
  if (own) copy_rows(s.at(first), s.row, own, s.width, 1.0f, to);
  if (own < n) copy_rows(s.at(first + own), s.width, n - own, s.width, 1.0f, to + own * s.width);
}

// kLanes rows of kLanes values times factor, turned, to rows of a panel.
OBN_INLINE void turn_square(const float* from, size_t row, float factor, float* to) {
  F v[kLanes];
#pragma GCC unroll 16
  for (size_t l = 0; l < kLanes; ++l) v[l] = load(from + l * row) * factor;
  transpose(v);
#pragma GCC unroll 16
  for (size_t p = 0; p < kLanes; ++p) store(to + p * kTileColumns, v[p]);
}

// The same rows times factor, turned: panels [width][kTileColumns], zeros up to whole vectors of rows.
void turn_source(const Source& s, size_t first, size_t n, float factor, float* to) {
  for (size_t j = 0; j < n; j += kLanes) {
    float* panel = to + j / kTileColumns * kTileColumns * s.width + j % kTileColumns;
    const bool is_whole = j + kLanes <= n && first + j + kLanes <= s.count;
    for (size_t c = 0; c < s.width; c += kLanes) {
      const size_t steps = least(kLanes, s.width - c);
      if (is_whole && steps == kLanes) {
        turn_square(s.at(first + j) + c, s.row, factor, panel + c * kTileColumns);
        continue;
      }
      F v[kLanes];
      for (size_t l = 0; l < kLanes; ++l)
        v[l] = j + l < n ? load_first(s.at(first + j + l) + c, steps) * factor : F{};
      transpose(v);
      for (size_t p = 0; p < steps; ++p) store(panel + (c + p) * kTileColumns, v[p]);
    }
  }
}

// ---- scores ----

// What hides or moves the scores of a block of columns [first, first + n).
struct Columns {
  size_t first, n;
  size_t own;           // those below s
  const float* hidden;  // (whole vectors of n): minus infinity or 0; NULL: none
  float* spare;         // (whole vectors of n)
};

Columns columns_of(const Head& h, size_t first, size_t n, float* hidden, float* spare) {
  Columns c = {first, n, first < h.s ? least(n, h.s - first) : 0, nullptr, spare};
  if (!h.hidden || c.own == 0) return c;
  const uint8_t* flags = h.hidden + first * h.hidden_step;
  for (size_t j = 0; j < whole_vectors(n); ++j)
    hidden[j] = j < c.own && flags[j * h.hidden_step] ? kNothing : 0.0f;
  c.hidden = hidden;
  return c;
}

// Columns that the last of `rows` rows from `first` on can see: a run from the first column of the block.
size_t reach_of(const Head& h, const Columns& c, size_t first, size_t rows) {
  if (!h.causal || c.own < c.n) return c.n;
  const size_t end = first + rows;
  return end <= c.first ? 0 : least(c.n, end - c.first);
}

void add_to(const Head& h, const Columns& c, size_t i, size_t n, float* r) {
  const size_t own = least(n, c.own);
  const size_t at = i * h.added.row + c.first * h.added.column;
  if (h.added.type == BNNSDataTypeBoolean) {
    const uint8_t* flags = static_cast<const uint8_t*>(h.added.data) + at;
    for (size_t j = 0; j < own; ++j)
      if (flags[j * h.added.column]) r[j] = r[j] + kNothing;
    return;
  }
  const float* x = c.spare;
  const auto* data = static_cast<const unsigned char*>(h.added.data) + at * bytes_of(h.added.type);
  if (h.added.type == BNNSDataTypeFloat32 && h.added.column == 1) {
    x = reinterpret_cast<const float*>(data);
  } else {
    load_row(h.added.type, data, h.added.column, own, c.spare);
  }
  size_t j = 0;
  for (; j + kLanes <= own; j += kLanes) store(r + j, load(r + j) + load(x + j));
  for (; j < own; ++j) r[j] += x[j];
}

// Row i of the scores, n columns of the block: adds, hides, and fills up to whole vectors with minus infinity.
void adjust(const Head& h, const Columns& c, size_t i, size_t n, float* r) {
  for (size_t j = n; j < whole_vectors(n); ++j) r[j] = kNothing;
  if (h.added.data && c.own) add_to(h, c, i, n, r);
  if (c.hidden) {
    for (size_t j = 0; j < n; j += kLanes)
      store(r + j, load(c.hidden + j) < 0.0f ? splat(kNothing) : load(r + j));
  }
  if (h.causal) {
    const size_t end = least(n, c.own);
    for (size_t j = i + 1 > c.first ? i + 1 - c.first : 0; j < end; ++j) r[j] = kNothing;
  }
}

// p ∘ kept / (1 - rate)
void drop(const Head& h, const Columns& c, size_t i, size_t n, float* p) {
  uint32_t* numbers = reinterpret_cast<uint32_t*>(c.spare);
  h.dropout.get(h.dropout.stream, h.dropout.start + i * h.dropout.row + c.first, numbers, n);
  for (size_t j = 0; j < n; ++j) p[j] = numbers[j] < h.dropout.threshold ? 0.0f : p[j] * h.dropout.factor;
}

// ---- forward ----

// The scores of the forward pass lie turned, a row for every key and kTileColumns queries side by side: so that the
// largest score and the sum of every query come without adding up lanes. From one key to the next it is r_row values.

// n <= kLanes values of row i of what is added, from column j on.
F load_added(const Head& h, size_t i, size_t j, size_t n) {
  const size_t at = i * h.added.row + j * h.added.column;
  if (h.added.type == BNNSDataTypeFloat32 && h.added.column == 1) {
    const float* x = static_cast<const float*>(h.added.data) + at;
    return n == kLanes ? load(x) : load_first(x, n);
  }
  float lanes[kLanes] = {};
  if (h.added.type == BNNSDataTypeBoolean) {
    const uint8_t* flags = static_cast<const uint8_t*>(h.added.data) + at;
    for (size_t l = 0; l < n; ++l) lanes[l] = flags[l * h.added.column] ? kNothing : 0.0f;
  } else {
    const auto* data = static_cast<const unsigned char*>(h.added.data) + at * bytes_of(h.added.type);
    load_row(h.added.type, data, h.added.column, n, lanes);
  }
  return load(lanes);
}

// r (n, kTileColumns) of queries [i, i + rows): adds and hides.
void adjust_turned(const Head& h, const Columns& c, size_t i, size_t rows, size_t n, float* r, size_t r_row) {
  const size_t own = least(n, c.own);
  if (h.added.data) {
    for (size_t q = 0; q < rows; q += kLanes) {
      for (size_t j = 0; j < own; j += kLanes) {
        const size_t count = least(kLanes, own - j);
        F v[kLanes];
        for (size_t l = 0; l < kLanes; ++l) v[l] = q + l < rows ? load_added(h, i + q + l, c.first + j, count) : F{};
        transpose(v);
        for (size_t p = 0; p < count; ++p) {
          float* to = r + (j + p) * r_row + q;
          store(to, load(to) + v[p]);
        }
      }
    }
  }
  const size_t vectors = whole_vectors(rows);
  if (c.hidden) {
    for (size_t j = 0; j < own; ++j)
      if (c.hidden[j] < 0.0f)
        for (size_t q = 0; q < vectors; q += kLanes) store(r + j * r_row + q, splat(kNothing));
  }
  if (h.causal) {
    for (size_t j = i + 1 > c.first ? i + 1 - c.first : 0; j < own; ++j) {  // hidden from the first j + c.first - i
      const size_t blind = j + c.first - i;
      for (size_t q = 0; q < vectors; q += kLanes) {
        float* to = r + j * r_row + q;
        const I lane = iota() + static_cast<int32_t>(q);
        store(to, lane < static_cast<int32_t>(blind) ? splat(kNothing) : load(to));
      }
    }
  }
}

void drop_turned(const Head& h, const Columns& c, size_t i, size_t rows, size_t n, float* p) {
  uint32_t* numbers = reinterpret_cast<uint32_t*>(c.spare);
  for (size_t q = 0; q < rows; ++q) {
    h.dropout.get(h.dropout.stream, h.dropout.start + (i + q) * h.dropout.row + c.first, numbers, n);
    for (size_t j = 0; j < n; ++j) {
      float& value = p[j * kTileColumns + q];
      value = numbers[j] < h.dropout.threshold ? 0.0f : value * h.dropout.factor;
    }
  }
}

OBN_INLINE F largest_down(const float* r, size_t r_row, size_t n) {
  F top = load(r), other = top;
  size_t j = 0;
  for (; j + 1 < n; j += 2) {
    top = max(top, load(r + j * r_row));
    other = max(other, load(r + (j + 1) * r_row));
  }
  if (j < n) top = max(top, load(r + j * r_row));
  return max(top, other);
}

void scale_row(float* row, size_t n, float factor) {
  size_t c = 0;
  for (; c + kLanes <= n; c += kLanes) store(row + c, load(row + c) * factor);
  for (; c < n; ++c) row[c] *= factor;
}

// The running softmax of up to kLanes queries: r becomes p, not yet divided by the sum, which is kept in total. What
// was summed before against a lower top is scaled down, a with it.
void soften(const Head& h, size_t rows, size_t n, float* r, size_t r_row, float* a, size_t a_row, float* top,
            float* total, bool is_first) {
  constexpr size_t kChains = 4;  // of the sum: a single long one would round more
  const bool is_whole = rows == kLanes;
  F now = largest_down(r, r_row, n), sums = F{};
  if (!is_first) {
    const F before = is_whole ? load(top) : load_first(top, rows);
    now = max(before, now);
    const F factor = exp_in_sum(before - (now == kNothing ? F{} : now));
    sums = (is_whole ? load(total) : load_first(total, rows)) * factor;
    float factors[kLanes];
    store(factors, factor);
    for (size_t l = 0; l < rows; ++l)
      if (factors[l] != 1.0f) scale_row(a + l * a_row, h.value_width, factors[l]);
  }
  const F shift = now == kNothing ? F{} : now;  // a query that sees nothing: every value is 0
  F chain[kChains] = {};
  const auto soften_one = [&](size_t j, F& sum) __attribute__((always_inline)) {
    const F v = exp_in_sum(load(r + j * r_row) - shift);
    store(r + j * r_row, v);
    sum += v;
  };
  size_t j = 0;
  for (; j + kChains <= n; j += kChains) {
#pragma GCC unroll 4
    for (size_t l = 0; l < kChains; ++l) soften_one(j + l, chain[l]);
  }
  for (; j < n; ++j) soften_one(j, chain[0]);
  sums += (chain[0] + chain[1]) + (chain[2] + chain[3]);
  if (is_whole) {
    store(top, now);
    store(total, sums);
  } else {
    store_first(top, now, rows);
    store_first(total, sums, rows);
  }
}

// Divides the values of up to kLanes queries by their sums, which become their inverses.
void normalize(size_t rows, size_t n, float* p, size_t p_row, float* total) {
  const F factor = 1.0f / (rows == kLanes ? load(total) : load_first(total, rows, splat(1.0f)));
  if (rows == kLanes) {
    store(total, factor);
  } else {
    store_first(total, factor, rows);
  }
  for (size_t j = 0; j < n; ++j) store(p + j * p_row, load(p + j * p_row) * factor);
}

// Rows [from, to) of `vectors` values.
void clear_rows(float* p, size_t p_row, size_t from, size_t to, size_t vectors) {
  for (size_t j = from; j < to; ++j)
    for (size_t q = 0; q < vectors; q += kLanes) store(p + j * p_row + q, F{});
}

// Rows of keys or values [first, first + n) to multiply with: where they lie, or a copy.
OBN_INLINE const float* rows_at(const Source& s, size_t first, size_t n, float* copy, size_t* row) {
  *row = s.row;
  if (s.row <= kShortRow && first + n <= s.count) return s.at(first);
  copy_source(s, first, n, copy);
  *row = s.width;
  return copy;
}

void forward(const Head& h, const Coming& coming, const Blocks& blocks, size_t first, size_t rows, float* a,
             size_t a_row, float* top, float* inverse, float* kept, float* work) {
  Ahead ahead = {coming};
  const size_t pitch = score_pitch(blocks.columns), all = h.s + h.extra;
  const size_t r_row = kept ? score_pitch(h.t) : kTileColumns;
  const bool is_single = all <= blocks.columns;  // then the sums are known before p meets the values
  float* hidden = work;
  float* spare = hidden + pitch;
  float* own_r = spare + pitch;  // (columns, kTileColumns)
  float* q = own_r + blocks.columns * kTileColumns;
  float* key_copy = q + whole_tiles(blocks.rows) * h.key_width;
  float* value_copy = key_copy + blocks.columns * h.key_width;
  turn_source(queries_of(h), first, rows, h.scale, q);
  for (size_t j = 0; j < all; j += blocks.columns) {
    const Columns c = columns_of(h, j, least(blocks.columns, all - j), hidden, spare);
    if (reach_of(h, c, first, rows) == 0) continue;
    size_t key_row, value_row;
    const float* keys = rows_at(keys_of(h), j, c.n, key_copy, &key_row);
    const float* values = rows_at(values_of(h), j, c.n, value_copy, &value_row);
    for (size_t i = 0; i < rows; i += kTileColumns) {
      const size_t n = least(kTileColumns, rows - i), reach = reach_of(h, c, first + i, n);
      if (reach == 0) continue;
      float* r = kept ? kept + first + i : own_r;
      multiply({keys, key_row, 1}, panels_of(q + i * h.key_width, h.key_width), reach, whole_vectors(n), h.key_width, r,
               r_row, false, 1.0f, &ahead);
      adjust_turned(h, c, first + i, n, reach, r, r_row);
      for (size_t l = 0; l < n; l += kLanes) {
        const size_t row = first + i + l, count = least(kLanes, n - l);
        soften(h, count, reach, r + l, r_row, a + row * a_row, a_row, top + row, inverse + row, j == 0);
        if (is_single) normalize(count, reach, r + l, r_row, inverse + row);
      }
      if (kept) clear_rows(r, r_row, reach, c.n, whole_vectors(n));
      if (h.dropout.get) drop_turned(h, c, first + i, n, reach, r);
      multiply({r, 1, r_row}, rows_of(values, value_row), n, h.value_width, reach, a + (first + i) * a_row, a_row,
               j > 0, 1.0f, &ahead);
    }
  }
  if (is_single) return;
  for (size_t i = first; i < first + rows; ++i) {
    inverse[i] = 1.0f / inverse[i];  // was the sum
    scale_row(a + i * a_row, h.value_width, inverse[i]);
  }
}

// ---- backward ----

// One row: from scores r and dp' = da·vᵀ to p' = dropout(p) and dr, in place.
void slope(const Head& h, const HeadGradients& g, const Columns& c, size_t i, size_t n, float* r, float* dp) {
  adjust(h, c, i, n, r);
  const F top = splat(g.top[i]), inverse = splat(g.inverse[i]), dots = splat(g.dots[i]);
  if (!h.dropout.get) {
    for (size_t j = 0; j < n; j += kLanes) {
      const F p = exp_in_sum(load(r + j) - top) * inverse;
      store(r + j, p);
      store(dp + j, p * (load(dp + j) - dots));
    }
    return;
  }
  drop(h, c, i, n, dp);
  for (size_t j = 0; j < n; j += kLanes) {
    const F p = exp_in_sum(load(r + j) - top) * inverse;
    store(r + j, p);
    store(dp + j, p * (load(dp + j) - dots));
  }
  drop(h, c, i, n, r);
}

void clear(float* row, size_t from, size_t to) {
  for (size_t j = from; j < to; ++j) row[j] = 0.0f;
}

// Rows [first, first + n) of the gradients of keys or values.
void give_rows(const float* from, size_t width, size_t first, size_t n, size_t count, float* own, size_t own_row,
               float* extra) {
  for (size_t j = first; j < first + n; ++j, from += width) {
    float* to = j < count ? own + j * own_row : extra + (j - count) * width;
    std::memcpy(to, from, width * sizeof(float));
  }
}

void backward(const Head& h, const HeadGradients& g, const Blocks& blocks, float* work) {
  const size_t pitch = score_pitch(blocks.columns), all = h.s + h.extra;
  const size_t kw = h.key_width, vw = h.value_width, tiles = whole_tiles(blocks.columns);
  float* hidden = work;
  float* spare = hidden + pitch;
  float* p = spare + pitch;  // (rows, pitch)
  float* dp = p + blocks.rows * pitch;
  float* q_copy = dp + blocks.rows * pitch;
  float* da_copy = q_copy + blocks.copied * kw;
  float* key_copy = da_copy + blocks.copied * vw;
  float* turned_keys = key_copy + blocks.columns * kw;
  float* turned_values = turned_keys + tiles * kw;
  float* dk = turned_values + tiles * vw;
  float* dv = dk + blocks.columns * kw;
  // Scaled queries and da: of all rows, or of those of a block.
  const Source da_rows = {g.da, g.da_row, h.t, nullptr, vw};
  size_t da_row = 0;
  const float* copied_da = nullptr;
  const auto copy_queries = [&](size_t first, size_t rows) {
    copy_rows(h.q + first * h.q_row, h.q_row, rows, kw, h.scale, q_copy);
    copied_da = rows_at(da_rows, first, rows, da_copy, &da_row);
  };
  const bool at_once = h.t <= blocks.copied;
  if (at_once) copy_queries(0, h.t);
  for (size_t j = 0; j < all && !is_interrupted(); j += blocks.columns) {
    const Columns c = columns_of(h, j, least(blocks.columns, all - j), hidden, spare);
    size_t key_row;
    const float* keys = rows_at(keys_of(h), j, c.n, key_copy, &key_row);
    turn_source(keys_of(h), j, c.n, 1.0f, turned_keys);
    turn_source(values_of(h), j, c.n, 1.0f, turned_values);
    // A single block of rows gives its gradients where they belong: nothing of these keys and values, in whose place
    // they may come, is read any more.
    const bool is_direct = h.t <= blocks.rows && c.own == c.n;
    float* to_dk = is_direct ? g.dk + j * g.dk_row : dk;
    float* to_dv = is_direct ? g.dv + j * g.dv_row : dv;
    const size_t dk_row = is_direct ? g.dk_row : kw, dv_row = is_direct ? g.dv_row : vw;
    bool is_begun = false;
    for (size_t first = 0; first < h.t; first += blocks.rows) {
      const size_t rows = least(blocks.rows, h.t - first);
      if (reach_of(h, c, first, rows) == 0) continue;
      if (!at_once) copy_queries(first, rows);
      const float* q = at_once ? q_copy + first * kw : q_copy;
      const float* da = at_once ? copied_da + first * da_row : copied_da;
      const size_t panels = row_panels(rows), height = rows / panels, longer = rows % panels;
      for (size_t panel = 0, i = 0; panel < panels; ++panel) {
        const size_t n = height + (panel < longer ? 1 : 0);
        const size_t reach = reach_of(h, c, first + i, n);
        float* pi = p + i * pitch;
        float* dpi = dp + i * pitch;
        if (reach > 0) {
          multiply({q + i * kw, kw, 1}, panels_of(turned_keys, kw), n, whole_vectors(reach), kw, pi, pitch, false,
                   1.0f);
          multiply({da + i * da_row, da_row, 1}, panels_of(turned_values, vw), n, whole_vectors(reach), vw, dpi, pitch,
                   false, 1.0f);
        }
        for (size_t l = 0; l < n; ++l) {
          if (reach > 0) slope(h, g, c, first + i + l, reach, pi + l * pitch, dpi + l * pitch);
          clear(pi + l * pitch, reach, c.n);
          clear(dpi + l * pitch, reach, c.n);
        }
        if (reach > 0)
          multiply({dpi, pitch, 1}, rows_of(keys, key_row), n, kw, reach, g.dq + (first + i) * g.dq_row, g.dq_row,
                   j > 0, h.scale);
        i += n;
      }
      multiply({p, 1, pitch}, rows_of(da, da_row), c.n, vw, rows, to_dv, dv_row, is_begun, 1.0f);
      multiply({dp, 1, pitch}, rows_of(q, kw), c.n, kw, rows, to_dk, dk_row, is_begun, 1.0f);
      is_begun = true;
    }
    if (is_begun && is_direct) continue;
    if (!is_begun) {
      clear(dk, 0, c.n * kw);
      clear(dv, 0, c.n * vw);
    }
    give_rows(dk, kw, j, c.n, h.s, g.dk, g.dk_row, g.extra_dk);
    give_rows(dv, vw, j, c.n, h.s, g.dv, g.dv_row, g.extra_dv);
  }
}

// ---- backward with p of the forward pass ----

// Up to kLanes queries: from dp = da·vᵀ to dr = p ∘ (dp - Σ p·dp), in place. Turned, as in the forward pass.
void slope_kept(const float* p, float* dp, size_t row, size_t n) {
  F even = F{}, odd = F{};
  size_t j = 0;
  for (; j + 1 < n; j += 2) {
    even = fma(load(p + j * row), load(dp + j * row), even);
    odd = fma(load(p + (j + 1) * row), load(dp + (j + 1) * row), odd);
  }
  if (j < n) even = fma(load(p + j * row), load(dp + j * row), even);
  const F dots = even + odd;
  for (j = 0; j < n; ++j) store(dp + j * row, load(p + j * row) * (load(dp + j * row) - dots));
}

// c (n keys, width) = alpha · x (n, t) · b (t, width): from key `first` on; x points to key 0. Under a causal mask, x
// is 0 for queries before the key, so they are left out.
void multiply_keys(const Head& h, const float* x, size_t x_row, size_t first, size_t n, const Right& b, size_t width,
                   float* c, size_t c_row, float alpha, Ahead* ahead) {
  const size_t step = h.causal && first < h.s ? kTileRows : n;
  for (size_t j = 0; j < n; j += step) {
    const size_t rows = least(step, n - j), key = first + j;
    const size_t blind = h.causal && key < h.s ? least(key, h.t) : 0;
    multiply({x + key * x_row + blind, x_row, 1}, {b.data + blind * b.step, b.step, b.tile}, rows, width, h.t - blind,
             c + j * c_row, c_row, false, alpha, ahead);
  }
}

void backward_kept(const Head& h, const Coming& coming, const HeadGradients& g, const float* p, float* work) {
  Ahead ahead = {coming};
  const size_t pitch = score_pitch(h.t), all = h.s + h.extra, kw = h.key_width, vw = h.value_width;
  float* dp = work;  // (all, pitch), like p
  float* turned_da = dp + all * pitch;
  float* q_copy = turned_da + whole_tiles(h.t) * vw;
  float* da_copy = q_copy + h.t * kw;
  float* key_copy = da_copy + h.t * vw;
  float* value_copy = key_copy + all * kw;
  const Source da_rows = {g.da, g.da_row, h.t, nullptr, vw};
  const Columns c = {0, all, h.s, nullptr, nullptr};
  size_t q_row, da_row, key_row, value_row;
  const float* q = rows_at(queries_of(h), 0, h.t, q_copy, &q_row);
  const float* da = rows_at(da_rows, 0, h.t, da_copy, &da_row);
  const float* keys = rows_at(keys_of(h), 0, all, key_copy, &key_row);
  const float* values = rows_at(values_of(h), 0, all, value_copy, &value_row);
  turn_source(da_rows, 0, h.t, 1.0f, turned_da);
  for (size_t i = 0; i < h.t; i += kTileColumns) {
    const size_t n = least(kTileColumns, h.t - i), vectors = whole_vectors(n), reach = reach_of(h, c, i, n);
    multiply({values, value_row, 1}, panels_of(turned_da + i * vw, vw), reach, vectors, vw, dp + i, pitch, false, 1.0f,
             &ahead);
    for (size_t l = 0; l < n; l += kLanes) slope_kept(p + i + l, dp + i + l, pitch, reach);
    clear_rows(dp + i, pitch, reach, all, vectors);
    multiply({dp + i, 1, pitch}, rows_of(keys, key_row), n, kw, reach, g.dq + i * g.dq_row, g.dq_row, false, h.scale,
             &ahead);
  }
  // Keys and values, in whose place the gradients may come, are not read any more.
  multiply_keys(h, p, pitch, 0, h.s, rows_of(da, da_row), vw, g.dv, g.dv_row, 1.0f, &ahead);
  multiply_keys(h, dp, pitch, 0, h.s, rows_of(q, q_row), kw, g.dk, g.dk_row, h.scale, &ahead);
  if (h.extra == 0) return;
  multiply_keys(h, p, pitch, h.s, h.extra, rows_of(da, da_row), vw, g.extra_dv, vw, 1.0f, nullptr);
  multiply_keys(h, dp, pitch, h.s, h.extra, rows_of(q, q_row), kw, g.extra_dk, kw, h.scale, nullptr);
}

void dots(const float* a, size_t a_row, const float* da, size_t da_row, size_t rows, size_t n, float* to) {
  for (size_t i = 0; i < rows; ++i, a += a_row, da += da_row) {
    F total = F{};
    size_t c = 0;
    for (; c + kLanes <= n; c += kLanes) total = fma(load(a + c), load(da + c), total);
    if (c < n) total = fma(load_first(a + c, n - c), load_first(da + c, n - c), total);
    to[i] = sum(total);
  }
}

constexpr obn::attention::Kernels kernels = {forward, backward, backward_kept, dots};

}  // namespace

}  // namespace obn::OBN_TARGET::attention

constinit const obn::attention::Kernels obn::attention::Compiled::OBN_TARGET = obn::OBN_TARGET::attention::kernels;
