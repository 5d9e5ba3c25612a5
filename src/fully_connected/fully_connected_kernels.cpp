// Fully connected, the bench: products of a matrix with few vectors. Letters as in fully_connected.h; s counts samples.
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/memory.h"
#include "fully_connected/fully_connected.h"
#include "simd/convert.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::fully_connected {

using namespace obn::fully_connected;

namespace {

#if defined(__AVX512F__)
constexpr size_t kRegisters = 32;
#elif defined(__AVX2__) || defined(__SSE2__)
constexpr size_t kRegisters = 16;
#else
constexpr size_t kRegisters = 32;
#endif

constexpr size_t kSamplesAtOnce = 4;
constexpr size_t kShortSum = kRegisters == 32 ? 12 : 0;  // rows of two vectors that registers can hold

// Rows whose dot products with so many samples are sums in registers. One sample alone waits for the memory, which
// gives most when read in many places at a time.
constexpr size_t dot_rows_for(size_t samples) { return samples == 1 ? 8 : kRegisters == 32 ? 5 : 2; }

// What is stored in a row of the matrix.
struct Float32 {
  using Stored = float;
  OBN_INLINE F get(const float* p) { return load(p); }
  OBN_INLINE F get_first(const float* p, size_t n) { return load_first(p, n); }
};
struct Float16 {
  using Stored = uint16_t;
  OBN_INLINE F get(const uint16_t* p) { return load_float16(p); }
  OBN_INLINE F get_first(const uint16_t* p, size_t n) {
    uint16_t few[kLanes];
    copy_first(p, n, few);
    return load_float16(few);
  }
};
struct BFloat16 {
  using Stored = uint16_t;
  OBN_INLINE F get(const uint16_t* p) { return load_bfloat16(p); }
  OBN_INLINE F get_first(const uint16_t* p, size_t n) {
    uint16_t few[kLanes];
    copy_first(p, n, few);
    return load_bfloat16(few);
  }
};

// A matrix that comes from memory is fetched into the second-level cache so many bytes ahead of its use. Rows are read
// several at a time; behind their end come the next ones.
template <class Stored>
struct Ahead {
  const Stored* next;  // NULL: nothing is fetched
  size_t left;         // columns from the first one that is read to the end of the rows

  // For the line at column c of kRows rows.
  template <size_t kRows>
  [[gnu::always_inline]] inline void fetch(const Stored* rows, size_t row, size_t c) const {
    constexpr size_t kValues = 2048 / sizeof(Stored), kLineValues = kAlignment / sizeof(Stored);
    if (!next || c % kLineValues != 0) return;
    const Stored* at = c + kValues < left ? rows + c + kValues : next + (c + kValues - left);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) prefetch(at + r * row);
  }
};

// ---- out(s, r) = Σ_c m(r, c)·v(s, c) ----

template <class Type, size_t kSamples, size_t kRows>
OBN_INLINE void dot_tile(const typename Type::Stored* m, size_t row, size_t columns,
                         const Ahead<typename Type::Stored>& ahead, const float* v, size_t v_row, float* out,
                         size_t out_row, bool accumulate) {
  constexpr size_t kChains = kSamples == 1 && kRows <= 4 ? 2 : 1;  // too few sums do not hide the latency
  F total[kChains][kRows][kSamples] = {};
  size_t c = 0;
  for (; c + kChains * kLanes <= columns; c += kChains * kLanes) {
#pragma GCC unroll 2
    for (size_t chain = 0; chain < kChains; ++chain) {
      const size_t at = c + chain * kLanes;
      ahead.template fetch<kRows>(m, row, at);
      F values[kSamples];
#pragma GCC unroll 8
      for (size_t s = 0; s < kSamples; ++s) values[s] = load(v + s * v_row + at);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const F weight = Type::get(m + r * row + at);
#pragma GCC unroll 8
        for (size_t s = 0; s < kSamples; ++s) total[chain][r][s] = fma(weight, values[s], total[chain][r][s]);
      }
    }
  }
  for (; c < columns; c += kLanes) {
    const size_t n = columns - c;
    F values[kSamples];
#pragma GCC unroll 8
    for (size_t s = 0; s < kSamples; ++s)
      values[s] = n < kLanes ? load_first(v + s * v_row + c, n) : load(v + s * v_row + c);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const F weight = n < kLanes ? Type::get_first(m + r * row + c, n) : Type::get(m + r * row + c);
#pragma GCC unroll 8
      for (size_t s = 0; s < kSamples; ++s) total[0][r][s] = fma(weight, values[s], total[0][r][s]);
    }
  }
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t s = 0; s < kSamples; ++s) {
      const float result = sum(kChains == 1 ? total[0][r][s] : total[0][r][s] + total[kChains - 1][r][s]);
      float* to = out + s * out_row + r;
      *to = accumulate ? *to + result : result;
    }
  }
}

// dot_tile<Type, kSamples, rows> for rows <= kRows.
template <class Type, size_t kSamples, size_t kRows>
OBN_INLINE void dot_few(size_t rows, const typename Type::Stored* m, size_t row, size_t columns,
                        const Ahead<typename Type::Stored>& ahead, const float* v, size_t v_row, float* out,
                        size_t out_row, bool accumulate) {
  if constexpr (kRows > 0) {
    if (rows == kRows)
      return dot_tile<Type, kSamples, kRows>(m, row, columns, ahead, v, v_row, out, out_row, accumulate);
    dot_few<Type, kSamples, kRows - 1>(rows, m, row, columns, ahead, v, v_row, out, out_row, accumulate);
  }
}

template <class Type, size_t kSamples>
[[gnu::noinline]] static void dot_rows(const typename Type::Stored* m, size_t row, size_t columns, size_t rows,
                                       bool is_far, const float* v, size_t v_row, float* out, size_t out_row,
                                       bool accumulate) {
  constexpr size_t kMost = dot_rows_for(kSamples);
  for (size_t r = 0; r < rows;) {
    // Even groups: with up to 5 at a time, 12 rows are 4 + 4 + 4, not 5 + 5 + 2.
    const size_t groups = divide_up(rows - r, kMost), at_once = divide_up(rows - r, groups);
    const Ahead<typename Type::Stored> ahead = {is_far ? m + (groups > 1 ? r + at_once : r) * row : nullptr, columns};
    dot_few<Type, kSamples, kMost>(at_once, m + r * row, row, columns, ahead, v, v_row, out + r, out_row, accumulate);
    r += at_once;
  }
}

template <class Type>
void dot_typed(const Matrix& m, const Part& part, const Floats& v, size_t n, float* out, size_t out_row,
               bool accumulate) {
  using Stored = typename Type::Stored;
  // Few rows at a time for all samples, so that the matrix comes from far only once.
  const size_t block = n == 1 ? part.rows : 4 * dot_rows_for(n);
  for (size_t done = 0; done < part.rows; done += block) {
    const size_t rows = part.rows - done < block ? part.rows - done : block;
    const Stored* from = static_cast<const Stored*>(m.data) + (part.first + done) * m.row;
    float* to = out + part.first + done;
    for (size_t s = 0; s < n;) {
      const float* values = v.data + s * v.row;
      float* results = to + s * out_row;
      const size_t groups = divide_up(n - s, kSamplesAtOnce), at_once = divide_up(n - s, groups);
      const bool is_far = m.is_far && s == 0;
      switch (at_once) {
        case 1:
          dot_rows<Type, 1>(from, m.row, m.columns, rows, is_far, values, v.row, results, out_row, accumulate);
          break;
        case 2:
          dot_rows<Type, 2>(from, m.row, m.columns, rows, is_far, values, v.row, results, out_row, accumulate);
          break;
        case 3:
          dot_rows<Type, 3>(from, m.row, m.columns, rows, is_far, values, v.row, results, out_row, accumulate);
          break;
        default:
          dot_rows<Type, 4>(from, m.row, m.columns, rows, is_far, values, v.row, results, out_row, accumulate);
          break;
      }
      s += at_once;
    }
  }
}

void dot(const Matrix& m, const Part& part, const Floats& v, size_t n, float* out, size_t out_row, bool accumulate) {
  if (m.type == BNNSDataTypeFloat32) return dot_typed<Float32>(m, part, v, n, out, out_row, accumulate);
  if (m.type == BNNSDataTypeFloat16) return dot_typed<Float16>(m, part, v, n, out, out_row, accumulate);
  dot_typed<BFloat16>(m, part, v, n, out, out_row, accumulate);
}

// ---- out(s, c) = Σ_r u(s, r)·m(r, c) ----

// Rows taken at a time: their factors stay in registers.
constexpr size_t combine_rows_for(size_t samples) {
  return kRegisters == 32 ? (samples <= 2 ? 8 : 4) : samples == 1 ? 8 : samples == 2 ? 4 : 2;
}

// u(s, r) lies at u[s·u_row + r]; `start` says that out is read first.
template <class Type, size_t kSamples, size_t kRows>
[[gnu::noinline]] static void combine_tile(const typename Type::Stored* m, size_t row, size_t columns,
                                           const Ahead<typename Type::Stored>& ahead, const float* u, size_t u_row,
                                           float* out, size_t out_row, bool start) {
  F factor[kRows][kSamples];
#pragma GCC unroll 8
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t s = 0; s < kSamples; ++s) factor[r][s] = splat(u[s * u_row + r]);
  }
  size_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    ahead.template fetch<kRows>(m, row, c);
    F total[kSamples];
#pragma GCC unroll 8
    for (size_t s = 0; s < kSamples; ++s) total[s] = start ? load(out + s * out_row + c) : F{};
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const F weight = Type::get(m + r * row + c);
#pragma GCC unroll 8
      for (size_t s = 0; s < kSamples; ++s) total[s] = fma(factor[r][s], weight, total[s]);
    }
#pragma GCC unroll 8
    for (size_t s = 0; s < kSamples; ++s) store(out + s * out_row + c, total[s]);
  }
  if (c == columns) return;
  const size_t n = columns - c;
#pragma GCC unroll 8
  for (size_t s = 0; s < kSamples; ++s) {
    F total = start ? load_first(out + s * out_row + c, n) : F{};
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) total = fma(factor[r][s], Type::get_first(m + r * row + c, n), total);
    store_first(out + s * out_row + c, total, n);
  }
}

template <class Type, size_t kSamples>
OBN_INLINE void combine_samples(const typename Type::Stored* m, size_t row, size_t columns, size_t rows,
                                Ahead<typename Type::Stored> ahead, const float* u, size_t u_row, float* out,
                                size_t out_row, bool accumulate) {
  constexpr size_t kRows = combine_rows_for(kSamples);
  const auto* behind = ahead.next;  // all rows
  size_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    if (behind) ahead.next = r + 2 * kRows <= rows ? m + (r + kRows) * row : behind;
    combine_tile<Type, kSamples, kRows>(m + r * row, row, columns, ahead, u + r, u_row, out, out_row,
                                        accumulate || r > 0);
  }
  ahead.next = nullptr;
  for (; r < rows; ++r)
    combine_tile<Type, kSamples, 1>(m + r * row, row, columns, ahead, u + r, u_row, out, out_row, accumulate || r > 0);
}

// All samples; only the first ones find their rows far away.
template <class Type>
OBN_INLINE void combine_columns(const typename Type::Stored* m, size_t row, size_t columns, size_t rows,
                                Ahead<typename Type::Stored> ahead, const float* u, size_t u_row, size_t n, float* out,
                                size_t out_row, bool accumulate) {
  for (size_t s = 0; s < n;) {
    const float* factors = u + s * u_row;
    float* to = out + s * out_row;
    const size_t groups = divide_up(n - s, kSamplesAtOnce), at_once = divide_up(n - s, groups);
    switch (at_once) {
      case 1: combine_samples<Type, 1>(m, row, columns, rows, ahead, factors, u_row, to, out_row, accumulate); break;
      case 2: combine_samples<Type, 2>(m, row, columns, rows, ahead, factors, u_row, to, out_row, accumulate); break;
      case 3: combine_samples<Type, 3>(m, row, columns, rows, ahead, factors, u_row, to, out_row, accumulate); break;
      default: combine_samples<Type, 4>(m, row, columns, rows, ahead, factors, u_row, to, out_row, accumulate); break;
    }
    ahead.next = nullptr;
    s += at_once;
  }
}

// Few rows, many samples: the weights of a strip of columns stay in registers while the samples pass by.
template <class Type, size_t kRows>
[[gnu::noinline]] static void combine_short(const typename Type::Stored* m, size_t row, size_t columns, const float* u,
                                            size_t u_row, size_t n, float* out, size_t out_row, bool accumulate) {
  const auto few = [&](size_t c, size_t count) __attribute__((always_inline)) {
    F weight[kRows];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r)
      weight[r] = held(count < kLanes ? Type::get_first(m + r * row + c, count) : Type::get(m + r * row + c));
    for (size_t s = 0; s < n; ++s) {
      float* to = out + s * out_row + c;
      F total = !accumulate ? F{} : count < kLanes ? load_first(to, count) : load(to);
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) total = fma(splat(u[s * u_row + r]), weight[r], total);
      if (count < kLanes) {
        store_first(to, total, count);
      } else {
        store(to, total);
      }
    }
  };
  const size_t before = floats_before(out, kAlignment);
  size_t c = 0;
  for (const size_t end = before < columns ? before : columns; c < end;) {
    const size_t count = end - c < kLanes ? end - c : kLanes;
    few(c, count);
    c += count;
  }
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) {
    F weight[kRows][2];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      weight[r][0] = held(Type::get(m + r * row + c));
      weight[r][1] = held(Type::get(m + r * row + c + kLanes));
    }
    for (size_t s = 0; s < n; ++s) {
      float* to = out + s * out_row + c;
      F low = accumulate ? load(to) : F{}, high = accumulate ? load(to + kLanes) : F{};
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const F factor = splat(u[s * u_row + r]);
        low = fma(factor, weight[r][0], low);
        high = fma(factor, weight[r][1], high);
      }
      store(to, low);
      store(to + kLanes, high);
    }
  }
  for (; c < columns; c += kLanes) few(c, columns - c < kLanes ? columns - c : kLanes);
}

// combine_short<Type, rows> for rows <= kRows.
template <class Type, size_t kRows>
OBN_INLINE void combine_few(size_t rows, const typename Type::Stored* m, size_t row, size_t columns, const float* u,
                            size_t u_row, size_t n, float* out, size_t out_row, bool accumulate) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return combine_short<Type, kRows>(m, row, columns, u, u_row, n, out, out_row, accumulate);
    combine_few<Type, kRows - 1>(rows, m, row, columns, u, u_row, n, out, out_row, accumulate);
  }
}

template <class Type>
void combine_typed(const Matrix& m, const Part& part, const Floats& u, size_t n, float* out, size_t out_row,
                   bool accumulate) {
  using Stored = typename Type::Stored;
  if (part.rows <= kShortSum && n >= kSamplesAtOnce)
    return combine_few<Type, kShortSum>(part.rows, static_cast<const Stored*>(m.data) + part.first * m.row, m.row,
                                        m.columns, u.data + part.first, u.row, n, out, out_row, accumulate);
  // As many columns at a time as keep the sums in the first-level cache.
  const size_t block = n >= 3 ? 1024 : n == 2 ? 2048 : 4096;
  for (size_t c = 0; c < m.columns; c += block) {
    const size_t columns = m.columns - c < block ? m.columns - c : block;
    const Stored* from = static_cast<const Stored*>(m.data) + part.first * m.row + c;
    combine_columns<Type>(from, m.row, columns, part.rows, {m.is_far ? from + columns : nullptr, columns},
                          u.data + part.first, u.row, n, out + c, out_row, accumulate);
  }
}

void combine(const Matrix& m, const Part& part, const Floats& u, size_t n, float* out, size_t out_row,
             bool accumulate) {
  if (m.type == BNNSDataTypeFloat32) return combine_typed<Float32>(m, part, u, n, out, out_row, accumulate);
  if (m.type == BNNSDataTypeFloat16) return combine_typed<Float16>(m, part, u, n, out, out_row, accumulate);
  combine_typed<BFloat16>(m, part, u, n, out, out_row, accumulate);
}

// ---- g(r, c) = Σ_s u(s, r)·v(s, c) ----

// Σ_s u(s, r)·v(s, c …): one vector of one row; u points at (0, r), v at (0, c).
OBN_INLINE F outer_vector(const Floats& u, const float* u_at, const Floats& v, const float* v_at, size_t n) {
  F total = splat(u_at[0]) * load(v_at);
  for (size_t s = 1; s < n; ++s) total = fma(splat(u_at[s * u.row]), load(v_at + s * v.row), total);
  return total;
}
OBN_INLINE F outer_first(const Floats& u, const float* u_at, const Floats& v, const float* v_at, size_t n,
                         size_t count) {
  F total = splat(u_at[0]) * load_first(v_at, count);
  for (size_t s = 1; s < n; ++s) total = fma(splat(u_at[s * u.row]), load_first(v_at + s * v.row, count), total);
  return total;
}

// One row of g, float32 without gaps.
OBN_INLINE void outer_row(const Floats& u, const float* u_at, const Floats& v, const float* v_at, size_t n,
                          size_t columns, float* g, bool accumulate) {
  size_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    const F total = outer_vector(u, u_at, v, v_at + c, n);
    store(g + c, accumulate ? load(g + c) + total : total);
  }
  if (c == columns) return;
  const F total = outer_first(u, u_at, v, v_at + c, n, columns - c);
  store_first(g + c, accumulate ? load_first(g + c, columns - c) + total : total, columns - c);
}

// The same past the caches, in whole cache lines; what lies before the first and after the last goes the usual way.
[[gnu::noinline]] static void outer_streamed(const Floats& u, const float* u_at, const Floats& v, const float* v_at,
                                             size_t n, size_t columns, float* g) {
  size_t before = floats_before(g, kAlignment);
  if (before > columns) before = columns;
  outer_row(u, u_at, v, v_at, n, before, g, false);
  size_t c = before;
  for (; c + kLineFloats <= columns; c += kLineFloats) {
#pragma GCC unroll 4
    for (size_t k = 0; k < kLineFloats; k += kLanes) stream(g + c + k, outer_vector(u, u_at, v, v_at + c + k, n));
  }
  outer_row(u, u_at, v, v_at + c, n, columns - c, g + c, false);
}

// Four rows together: each vector of v is loaded once for all of them.
[[gnu::noinline]] static void outer_four(const Floats& u, const float* u_at, const Floats& v, const float* v_at,
                                         size_t n, size_t columns, float* g, size_t g_row, bool accumulate) {
  size_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    F total[4] = {};
    if (accumulate) {
#pragma GCC unroll 4
      for (size_t r = 0; r < 4; ++r) total[r] = load(g + r * g_row + c);
    }
    for (size_t s = 0; s < n; ++s) {
      const F values = load(v_at + s * v.row + c);
#pragma GCC unroll 4
      for (size_t r = 0; r < 4; ++r) total[r] = fma(splat(u_at[s * u.row + r]), values, total[r]);
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; ++r) store(g + r * g_row + c, total[r]);
  }
  if (c == columns) return;
  for (size_t r = 0; r < 4; ++r)
    outer_row(u, u_at + r, v, v_at + c, n, columns - c, g + r * g_row + c, accumulate);
}

// Few rows, many samples: the sums of a strip of columns stay in registers while the samples pass by.
template <size_t kRows>
[[gnu::noinline]] static void outer_short(const Floats& u, const float* u_at, const Floats& v, size_t n, size_t columns,
                                          float* g, size_t g_row, bool accumulate) {
  size_t c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) {
    F total[kRows][2] = {};
    if (accumulate) {
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        total[r][0] = load(g + r * g_row + c);
        total[r][1] = load(g + r * g_row + c + kLanes);
      }
    }
    for (size_t s = 0; s < n; ++s) {
      const F low = load(v.data + s * v.row + c), high = load(v.data + s * v.row + c + kLanes);
#pragma GCC unroll 16
      for (size_t r = 0; r < kRows; ++r) {
        const F factor = splat(u_at[s * u.row + r]);
        total[r][0] = fma(factor, low, total[r][0]);
        total[r][1] = fma(factor, high, total[r][1]);
      }
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      store(g + r * g_row + c, total[r][0]);
      store(g + r * g_row + c + kLanes, total[r][1]);
    }
  }
  for (; c < columns; c += kLanes) {
    const size_t count = columns - c < kLanes ? columns - c : kLanes;
    for (size_t r = 0; r < kRows; ++r) {
      float* to = g + r * g_row + c;
      F total = !accumulate ? F{} : count < kLanes ? load_first(to, count) : load(to);
      for (size_t s = 0; s < n; ++s) {
        const float* from = v.data + s * v.row + c;
        total = fma(splat(u_at[s * u.row + r]), count < kLanes ? load_first(from, count) : load(from), total);
      }
      if (count < kLanes) {
        store_first(to, total, count);
      } else {
        store(to, total);
      }
    }
  }
}

// outer_short<rows> for rows <= kRows.
template <size_t kRows>
OBN_INLINE void outer_few(size_t rows, const Floats& u, const float* u_at, const Floats& v, size_t n, size_t columns,
                          float* g, size_t g_row, bool accumulate) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return outer_short<kRows>(u, u_at, v, n, columns, g, g_row, accumulate);
    outer_few<kRows - 1>(rows, u, u_at, v, n, columns, g, g_row, accumulate);
  }
}

// A gradient that is not plain rows of float32 goes through a block.
void outer_converted(const Floats& u, const Floats& v, size_t n, size_t columns, const Part& part,
                     const Gradient& g) {
  constexpr size_t kBlock = 512;
  float block[kBlock], old[kBlock];
  for (size_t r = part.first; r < part.first + part.rows; ++r) {
    for (size_t c = 0; c < columns; c += kBlock) {
      const size_t count = columns - c < kBlock ? columns - c : kBlock;
      std::byte* to = g.data + (r * g.row + c * g.column) * bytes_of(g.type);
      outer_row(u, u.data + r, v, v.data + c, n, count, block, false);
      if (g.accumulate) {
        load_row(g.type, to, g.column, count, old);
        for (size_t i = 0; i < count; ++i) block[i] += old[i];
      }
      store_row(g.type, to, g.column, count, block);
    }
  }
}

void outer(const Floats& u, const Floats& v, size_t n, size_t columns, const Part& part, const Gradient& g) {
  if (g.type != BNNSDataTypeFloat32 || g.column != 1) return outer_converted(u, v, n, columns, part, g);
  float* rows = reinterpret_cast<float*>(g.data);
  const size_t end = part.first + part.rows;
  if (g.stream && !g.accumulate) {
    for (size_t r = part.first; r < end; ++r)
      outer_streamed(u, u.data + r, v, v.data, n, columns, rows + r * g.row);
    fence();
    return;
  }
  if (part.rows <= kShortSum && n >= kSamplesAtOnce)
    return outer_few<kShortSum>(part.rows, u, u.data + part.first, v, n, columns, rows + part.first * g.row, g.row,
                                g.accumulate);
  // As many columns at a time as keep v in the first-level cache.
  const size_t block = n >= 4 ? 1024 : 4096;
  for (size_t c = 0; c < columns; c += block) {
    const size_t count = columns - c < block ? columns - c : block;
    size_t r = part.first;
    for (; r + 4 <= end; r += 4)
      outer_four(u, u.data + r, v, v.data + c, n, count, rows + r * g.row + c, g.row, g.accumulate);
    for (; r < end; ++r) outer_row(u, u.data + r, v, v.data + c, n, count, rows + r * g.row + c, g.accumulate);
  }
}

constexpr obn::fully_connected::Kernels kernels = {dot, combine, outer, kShortSum};

}  // namespace

}  // namespace obn::OBN_TARGET::fully_connected

constinit const obn::fully_connected::Kernels obn::fully_connected::Compiled::OBN_TARGET = obn::OBN_TARGET::fully_connected::kernels;
