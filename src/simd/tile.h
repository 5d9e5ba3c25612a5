// The register tile that every matrix product is made of, and the transposes that prepare its operands. Included by
// kernel files only.
//
//   c (rows, columns) = start + a (rows, k) · b (k, columns),  rows <= kTileRows, columns <= kTileColumns
//
// Every value of c is one chain of fused multiply-adds in the order of k, so how a product is cut into tiles does not
// change its bits; where k is cut does.
#pragma once

#include "simd/vec.h"

namespace obn::OBN_TARGET {

#if defined(__AVX512F__)
constexpr size_t kTileRows = 14;  // 28 of 32 registers hold c
#elif defined(__AVX2__) || defined(__SSE2__)
constexpr size_t kTileRows = 6;  // 12 of 16
#else
constexpr size_t kTileRows = 8;  // ARM: 16 of 32
#endif
constexpr size_t kTileVectors = 2;
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
  bool accumulate;  // start = c, else 0
};

template <size_t kRows, bool kPacked, bool kWhole>
OBN_INLINE void multiply_rows(const Tile& t) {
  F left[kRows], right[kRows];
  const size_t tail = t.columns <= kLanes ? t.columns : t.columns - kLanes;  // values in the last vector
  const bool two = t.columns > kLanes;
  auto read = [&](const float* p, F* l, F* r) __attribute__((always_inline)) {
    if constexpr (kWhole) {
      *l = load(p);
      *r = load(p + kLanes);
    } else {
      *l = two || tail == kLanes ? load(p) : load_first(p, tail);
      *r = !two ? F{} : tail == kLanes ? load(p + kLanes) : load_first(p + kLanes, tail);
    }
  };
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    left[i] = right[i] = F{};
    __builtin_prefetch(t.c + i * t.c_row, 1);
    __builtin_prefetch(t.c + i * t.c_row + kLanes, 1);
  }
  if (t.accumulate) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) read(t.c + i * t.c_row, &left[i], &right[i]);
  }
  const float* a = t.a;
  const float* b = t.b;
  for (size_t p = 0; p < t.k; ++p) {
    F b0, b1;
    read(b, &b0, &b1);
#pragma GCC unroll 16
    for (size_t i = 0; i < kRows; ++i) {
      const F v = splat(kPacked ? a[i] : a[i * t.a_row]);
      left[i] += v * b0;
      right[i] += v * b1;
    }
    a += t.a_step;
    b += t.b_step;
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kRows; ++i) {
    float* c = t.c + i * t.c_row;
    if (kWhole || two || tail == kLanes) {
      store(c, left[i]);
    } else {
      store_first(c, left[i], tail);
    }
    if (kWhole || (two && tail == kLanes)) {
      store(c + kLanes, right[i]);
    } else if (two) {
      store_first(c + kLanes, right[i], tail);
    }
  }
}

template <size_t kRows>
[[gnu::noinline]] static void multiply_some(const Tile& t) {
  const bool packed = t.a_row == 1, whole = t.columns == kTileColumns;
  if (packed && whole) return multiply_rows<kRows, true, true>(t);
  if (packed) return multiply_rows<kRows, true, false>(t);
  if (whole) return multiply_rows<kRows, false, true>(t);
  multiply_rows<kRows, false, false>(t);
}

using MultiplyTile = void (*)(const Tile&);

#if defined(__AVX512F__)
static constexpr MultiplyTile multiply_tile[kTileRows + 1] = {
    nullptr,           multiply_some<1>,  multiply_some<2>,  multiply_some<3>,  multiply_some<4>,
    multiply_some<5>,  multiply_some<6>,  multiply_some<7>,  multiply_some<8>,  multiply_some<9>,
    multiply_some<10>, multiply_some<11>, multiply_some<12>, multiply_some<13>, multiply_some<14>};
#elif defined(__AVX2__) || defined(__SSE2__)
static constexpr MultiplyTile multiply_tile[kTileRows + 1] = {
    nullptr,          multiply_some<1>, multiply_some<2>, multiply_some<3>,
    multiply_some<4>, multiply_some<5>, multiply_some<6>};
#else
static constexpr MultiplyTile multiply_tile[kTileRows + 1] = {
    nullptr,          multiply_some<1>, multiply_some<2>, multiply_some<3>, multiply_some<4>,
    multiply_some<5>, multiply_some<6>, multiply_some<7>, multiply_some<8>};
#endif

// How many row panels `rows` rows are cut into, so that they come out even (30 rows: 3 x 10, not 14 + 14 + 2). Panel p
// has rows / panels rows, the first rows % panels of them one more.
OBN_INLINE size_t row_panels(size_t rows) { return (rows + kTileRows - 1) / kTileRows; }

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
#else
  // Halves change places, then halves of halves: log2(kLanes) rounds.
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < kLanes; ++i) {
      if (i & half) continue;
      const F a = v[i], b = v[i + half];
      for (size_t j = 0; j < kLanes; ++j) {
        if (j & half) {
          v[i][j] = b[j - half];
        } else {
          v[i + half][j] = a[j + half];
        }
      }
    }
  }
#endif
}

}  // namespace obn::OBN_TARGET
