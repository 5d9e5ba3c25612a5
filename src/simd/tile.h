// The register tile that every matrix product is made of, and the transposes that prepare its operands. Included by
// kernel files only.
//
//   c (rows, columns) = alpha · a (rows, k) · b (k, columns) + biases (+ c),  rows <= kTileRows, columns <= kTileColumns
//
// Every value of the product is one chain of fused multiply-adds in the order of k, begun at 0, so how a product is cut
// into tiles does not change its bits; where k is cut does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET {

#if defined(__AVX512F__)
constexpr size_t kTileRows = 14;  // 28 of 32 registers hold c
#elif defined(__AVX2__) || defined(__SSE2__)
constexpr size_t kTileRows = 6;  // 12 of 16
#else
constexpr size_t kTileRows = 12;  // ARM: 24 of 32, and 5 for the operands of a step
#endif
constexpr size_t kTileVectors = 2;

// Lines of c are fetched before the multiplications, or beside them, a row per step of k, where those leave slots for
// it: at the start they would hold up everything.
#if defined(__AVX512F__)
constexpr bool kFetchesBeside = true;
#else
constexpr bool kFetchesBeside = false;
#endif
constexpr size_t kTileColumns = kTileVectors * kLanes;

// One tile's operands. Strides count floats.
//   a(i, p) lies at a[i·a_row + p·a_step]; packed panels [k][rows] have a_row = 1, a_step = rows
//   b(p, j) lies at b[p·b_step + j]; packed panels [k][kTileColumns] have b_step = kTileColumns
//   c(i, j) lies at c[i·c_row + j]
struct Tile {
  const float* a;
  size_t a_row;
  size_t a_step;
  const float* b;
  size_t b_step;
  float* c;
  size_t c_row;
  size_t k;
  size_t columns;   // fewer than kTileColumns: the rest of b is not read, the rest of c not touched
  bool accumulate;  // the result is added to c, which is read last of all
  float alpha = 1.0f;
  const float* row_bias = nullptr;     // (rows)
  const float* column_bias = nullptr;  // (columns)
  // Fetched meanwhile, for whoever comes next: one line per step of k, the next one ahead_step further; after every
  // ahead_run of them ahead_jump more, which may be back.
  const float* ahead = nullptr;
  size_t ahead_step = 0;
  size_t ahead_run = SIZE_MAX;
  ptrdiff_t ahead_jump = 0;

  [[gnu::always_inline]] Tile() {}  // never a function that targets could share
};

// How b is stored: as the floats that the tile's pointer says, or not (gemm_kernels.cpp).
struct WordsOfB {
  using Stored = float;
  static constexpr bool kSplits = false;  // whole tiles are read as even and odd columns, by get_split()
  OBN_INLINE F get(const float* p) { return load(p); }
  OBN_INLINE F get_first(const float* p, size_t n) { return load_first(p, n); }
};

// One step of k: what a word of a becomes, and how it meets a word of b. Here words are floats;
// gemm_pairs_kernels.cpp has others.
struct FusedStep : WordsOfB {
  OBN_INLINE F spread(const float* a) { return splat(*a); }
  OBN_INLINE F add(F sum, F x, F w) { return fma(x, w, sum); }
#if defined(__ARM_NEON)
  OBN_INLINE F add(F sum, Lane x, F w) { return fma(x, w, sum); }
#endif
};

// Words of a that lie side by side: words[i] is what becomes of one of them. ARM multiplies by a lane, so kLanes words
// are one load and no spreading.
template <class Step, size_t kRows>
struct SideBySide {
#if defined(__ARM_NEON)
  static constexpr size_t kVectors = divide_up(kRows, kLanes), kLast = kRows - (kVectors - 1) * kLanes;
  F lanes[kVectors];
  [[gnu::always_inline]] explicit SideBySide(const float* a) {
#pragma GCC unroll 4
    for (size_t g = 0; g + 1 < kVectors; ++g) lanes[g] = load(a + g * kLanes);
    const float* last = a + (kVectors - 1) * kLanes;
    lanes[kVectors - 1] = kLast == kLanes ? load(last) : load_first(last, kLast);
  }
  [[gnu::always_inline]] Lane operator[](size_t i) const { return {lanes[i / kLanes], i % kLanes}; }
#else
  const float* a;
  [[gnu::always_inline]] explicit SideBySide(const float* a) : a(a) {}
  [[gnu::always_inline]] F operator[](size_t i) const { return Step::spread(a + i); }
#endif
};

// Whether the rows of a lie as a tile of so many wants its packed ones: on ARM side by side is enough.
#if defined(__ARM_NEON)
constexpr bool kPackedAtAnyStep = true;
#else
constexpr bool kPackedAtAnyStep = false;
#endif
OBN_INLINE bool is_packed(const Tile& t, size_t rows) {
  return t.a_row == 1 && (kPackedAtAnyStep || t.a_step == rows);
}

// A partial tile of up to kLanes columns has one vector, all others have two; the last one may be partial.
template <size_t kRows, size_t kVectors, bool kPacked, bool kWhole, bool kCopies, class Step = FusedStep>
OBN_INLINE void multiply_rows(const Tile& t, float* copy) {
  constexpr bool kSplit = Step::kSplits && kWhole && kVectors == 2;
  F sum[kRows][kVectors];
  const size_t last = kWhole ? kLanes : t.columns - (kVectors - 1) * kLanes;  // values in the last vector
  auto read = [&](const float* p, size_t v) __attribute__((always_inline)) {
    return kWhole || v + 1 < kVectors || last == kLanes ? load(p + v * kLanes) : load_first(p + v * kLanes, last);
  };
  auto read_b = [&](const typename Step::Stored* p, size_t v) __attribute__((always_inline)) {
    if (kWhole || v + 1 < kVectors || last == kLanes) return Step::get(p + v * kLanes);
    return Step::get_first(p + v * kLanes, last);
  };
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) {
      sum[i][v] = F{};
      if constexpr (!kFetchesBeside) prefetch_to_write(t.c + i * t.c_row + v * kLanes);
    }
  }
  const float* a = t.a;
  const auto* b = reinterpret_cast<const typename Step::Stored*>(t.b);
  // Fetching from nowhere would cost a walk through the page tables. A number, as it may leave the array.
  intptr_t ahead = reinterpret_cast<intptr_t>(t.ahead ? t.ahead : a);
  size_t run = t.ahead_run;
  [[maybe_unused]] const float* c_ahead = t.c;
  for (size_t p = 0; p < t.k; ++p) {
    if constexpr (kFetchesBeside) {
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) prefetch_to_write(c_ahead + v * kLanes);
      c_ahead += p + 1 < kRows ? t.c_row : 0;
    }
    F w[kVectors];
    if constexpr (kSplit) Step::get_split(b, &w[0], &w[1]);
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) {
      if constexpr (!kSplit) w[v] = read_b(b, v);
      if constexpr (kCopies) store(copy + v * kLanes, w[v]);
    }
    if constexpr (kCopies) copy += kTileColumns;
    if constexpr (kPacked) prefetch_l1(a + 16 * kRows);
    prefetch_l1(reinterpret_cast<const void*>(ahead));
    const auto add = [&](size_t i, auto x) __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) sum[i][v] = Step::add(sum[i][v], x, w[v]);
    };
    if constexpr (kPacked) {
      const SideBySide<Step, kRows> rows(a);
#pragma GCC unroll 16
      for (size_t i = 0; i < kRows; ++i) add(i, rows[i]);
    } else {
#pragma GCC unroll 16
      for (size_t i = 0; i < kRows; ++i) add(i, Step::spread(a + i * t.a_row));
    }
    a += kPacked && !kPackedAtAnyStep ? kRows : t.a_step;
    b += t.b_step;
    ahead += static_cast<ptrdiff_t>(t.ahead_step * sizeof(float));
    if (--run == 0) {
      ahead += t.ahead_jump * static_cast<ptrdiff_t>(sizeof(float));
      run = t.ahead_run;
    }
  }
  if constexpr (kSplit) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) join_pairs(sum[i][0], sum[i][1], &sum[i][0], &sum[i][1]);
  }
  if (t.alpha != 1.0f) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) sum[i][v] *= t.alpha;
  }
  if (t.row_bias) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) sum[i][v] += t.row_bias[i];
  }
  if (t.column_bias) {
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) {
      const F bias = read(t.column_bias, v);
#pragma GCC unroll 16
      for (size_t i = 0; i < kRows; ++i) sum[i][v] += bias;
    }
  }
  if (t.accumulate) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (size_t v = 0; v < kVectors; ++v) sum[i][v] += read(t.c + i * t.c_row, v);
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (size_t v = 0; v < kVectors; ++v) {
      float* c = t.c + i * t.c_row + v * kLanes;
      if (kWhole || v + 1 < kVectors || last == kLanes) {
        store(c, sum[i][v]);
      } else {
        store_first(c, sum[i][v], last);
      }
    }
  }
}

// multiply_tile[rows](tile). The functions live in gemm_kernels.cpp, once for all who use them.
using MultiplyTile = void (*)(const Tile&);
extern const MultiplyTile multiply_tile[kTileRows + 1];

// How many row panels `rows` rows are cut into, so that they come out even (30 rows: 3 x 10, not 14 + 14 + 2). Panel p
// has rows / panels rows, the first rows % panels of them one more.
OBN_INLINE size_t row_panels(size_t rows) { return divide_up(rows, kTileRows); }

// v[i][j] <-> v[j][i]
OBN_INLINE void transpose(F (&v)[kLanes]) {
#if defined(__AVX512F__)
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    __m512 a = reinterpret_cast<__m512>(v[2 * i]), b = reinterpret_cast<__m512>(v[2 * i + 1]);
    t[2 * i] = _mm512_unpacklo_ps(a, b);
    t[2 * i + 1] = _mm512_unpackhi_ps(a, b);
  }
  __m512 r[16];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
    __m512 c = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88), d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    v[j] = reinterpret_cast<F>(_mm512_shuffle_f32x4(a, c, 0x88));
    v[8 + j] = reinterpret_cast<F>(_mm512_shuffle_f32x4(a, c, 0xdd));
    v[4 + j] = reinterpret_cast<F>(_mm512_shuffle_f32x4(b, d, 0x88));
    v[12 + j] = reinterpret_cast<F>(_mm512_shuffle_f32x4(b, d, 0xdd));
  }
#elif defined(__AVX2__)
  F t[8], r[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    t[2 * i + 1] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = __builtin_shufflevector(t[4 * i], t[4 * i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    r[4 * i + 1] = __builtin_shufflevector(t[4 * i], t[4 * i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    r[4 * i + 2] = __builtin_shufflevector(t[4 * i + 1], t[4 * i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    r[4 * i + 3] = __builtin_shufflevector(t[4 * i + 1], t[4 * i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    v[j] = __builtin_shufflevector(r[j], r[4 + j], 0, 1, 2, 3, 8, 9, 10, 11);
    v[4 + j] = __builtin_shufflevector(r[j], r[4 + j], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#else
  const F a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
  const F c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5), d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
#endif
}

}  // namespace obn::OBN_TARGET
