// Operands as pairs of bfloat16, for the instructions that multiply those. Kernel files only (see simd/vec.h).
//
// A word is two values of k, the earlier one in its lower half; behind an odd k comes a 0. Float32 operands are rounded
// to nearest, ties to even. Words travel in vectors of float, which are only moved, never computed with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gemm/gemm_blocks.h"
#include "simd/convert.h"
#include "simd/tile.h"

namespace obn::OBN_TARGET::gemm {

// ---- values to words ----

struct Brain {
  using Value = uint16_t;
  OBN_INLINE uint32_t one(const uint16_t* p) { return *p; }

  // kLanes words of the n values at p; n may be 0.
  OBN_INLINE F along(const uint16_t* p, size_t n) {
    F v;
    if (n >= 2 * kLanes) {
      std::memcpy(&v, p, sizeof v);
      return v;
    }
    uint16_t values[2 * kLanes];
    copy_first(p, n, values);
    std::memcpy(&v, values, sizeof v);
    return v;
  }

  // The first kLanes of the n > 0 values at p, in the lower halves of words.
  OBN_INLINE U across(const uint16_t* p, size_t n) {
    if (n >= kLanes) return load_words(p);
#if defined(__AVX512BW__)
    const __mmask16 first = static_cast<__mmask16>((1u << n) - 1);
    return reinterpret_cast<U>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, p)));
#else
    U words{};
    for (size_t i = 0; i < n; ++i) words[i] = p[i];
    return words;
#endif
  }
};

struct Rounded {
  using Value = float;
  OBN_INLINE uint32_t one(const float* p) { return bfloat16_of_float(*p); }

  OBN_INLINE F along(const float* p, size_t n) {
    const F low = n >= kLanes ? load(p) : load_first(p, n);
    const F high = n >= 2 * kLanes ? load(p + kLanes) : n > kLanes ? load_first(p + kLanes, n - kLanes) : F{};
#if defined(__AVX512BF16__)
    return reinterpret_cast<F>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low)));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return reinterpret_cast<F>(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(reinterpret_cast<float32x4_t>(low)),
                                                   reinterpret_cast<float32x4_t>(high)));
#else
    F even, odd;
    split_pairs(low, high, &even, &odd);
    return reinterpret_cast<F>(round_to_bfloat16(even) | round_to_bfloat16(odd) << 16);
#endif
  }

  OBN_INLINE U across(const float* p, size_t n) { return round_to_bfloat16(n >= kLanes ? load(p) : load_first(p, n)); }
};

// ---- squares of words ----

// An operand as a panel sees it: lines (rows of a, columns of b) and values of k along them.
struct Lines {
  const Operand& operand;
  size_t offset;         // of line 0, value 0
  size_t line, value;    // strides
  size_t lines, values;  // that are there
};

OBN_INLINE Lines rows_of_a(const Product& p, size_t row, size_t rows) {
  return {p.a, row * p.a.row, p.a.row, p.a.column, rows, p.k};
}
OBN_INLINE Lines columns_of_b(const Product& p, size_t column, size_t columns) {
  return {p.b, column * p.b.column, p.b.column, p.b.row, columns, p.k};
}

// Words of kLanes lines and kLanes steps, from (line, step) on; 0 where there are none. v[i] is line i, or else step i.
template <class Type, bool kByLine>
OBN_INLINE void load_square(const Lines& s, size_t line, size_t step, F (&v)[kLanes]) {
  const auto* from = static_cast<const typename Type::Value*>(s.operand.data) + s.offset;
  const size_t first = 2 * step, values = s.values > first ? s.values - first : 0;
  const bool by_step = s.line == 1 && s.value != 1;
  for (size_t i = 0; i < kLanes; ++i) v[i] = F{};
  if (by_step) {
    const size_t lines = s.lines > line ? s.lines - line : 0;
    for (size_t i = 0; i < kLanes && lines && 2 * i < values; ++i) {
      const auto* at = from + (first + 2 * i) * s.value + line;
      prefetch_l1(at + 2 * kLanes * s.value);  // rows are often pages apart, which the machine does not foresee
      prefetch_l1(at + (2 * kLanes + 1) * s.value);
      const U low = Type::across(at, lines), high = 2 * i + 1 < values ? Type::across(at + s.value, lines) : U{};
      v[i] = reinterpret_cast<F>(low | high << 16);
    }
  } else if (s.value == 1) {
    for (size_t i = 0; i < kLanes && line + i < s.lines && values; ++i)
      v[i] = Type::along(from + (line + i) * s.line + first, values);
  } else {
    for (size_t i = 0; i < kLanes && line + i < s.lines; ++i) {
      uint32_t words[kLanes] = {};
      for (size_t q = 0; q < 2 * kLanes && q < values; ++q)
        words[q / 2] |= Type::one(from + (line + i) * s.line + (first + q) * s.value) << q % 2 * 16;
      std::memcpy(&v[i], words, sizeof words);
    }
  }
  if (by_step == kByLine) transpose(v);
}

template <bool kByLine>
OBN_INLINE void load_words(const Lines& s, size_t line, size_t step, F (&v)[kLanes]) {
  if (s.operand.type == BNNSDataTypeBFloat16) return load_square<Brain, kByLine>(s, line, step, v);
  load_square<Rounded, kByLine>(s, line, step, v);
}

OBN_INLINE void store_steps(const Lines& s, size_t width, size_t first, size_t depth, size_t i, size_t p, float* to) {
  F v[kLanes];
  load_words<false>(s, i, first + p, v);
  const size_t steps = least(kLanes, depth - p);
  for (size_t q = 0; q < steps; ++q) {
    float* at = to + (p + q) * width + i;
    if (width - i >= kLanes) {
      store(at, v[q]);
    } else {
      store_first(at, v[q], width - i);
    }
  }
}

// to[p · width + i] = word first + p of line i, for depth steps; 0 for lines and values that are not there. Memory is
// read along its runs: lines are often a power of two apart and throw each other out of the first-level cache.
[[maybe_unused, gnu::noinline]] static void pack_by_step(const Lines& s, size_t width, size_t first, size_t depth,
                                                         float* to) {
  if (s.line == 1) {
    for (size_t p = 0; p < depth; p += kLanes)
      for (size_t i = 0; i < width; i += kLanes) store_steps(s, width, first, depth, i, p, to);
  } else {
    for (size_t i = 0; i < width; i += kLanes)
      for (size_t p = 0; p < depth; p += kLanes) store_steps(s, width, first, depth, i, p, to);
  }
}

}  // namespace obn::OBN_TARGET::gemm
