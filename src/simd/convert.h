// Rows of the three float types, at any stride, to and from packed float32, and past the caches. Kernel files only (see
// vec.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET {

// kLanes half values at p (aligned to the element) as floats, and back; nearest, ties to even.
OBN_INLINE F load_float16(const uint16_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return reinterpret_cast<F>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__ARM_NEON)
  return reinterpret_cast<F>(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))));
#else
  F v{};
  for (size_t i = 0; i < kLanes; ++i) v[i] = float_of_float16(p[i]);
  return v;
#endif
}
OBN_INLINE void store_float16(uint16_t* p, F v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__ARM_NEON)
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(reinterpret_cast<float32x4_t>(v))));
#else
  for (size_t i = 0; i < kLanes; ++i) p[i] = float16_of_float(v[i]);
#endif
}
// kLanes values at p, each in a lane of its own. (gcc 12 makes five instructions of __builtin_convertvector.)
OBN_INLINE U load_words(const uint16_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<U>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<U>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  typedef uint16_t H __attribute__((vector_size(2 * kLanes)));
  H half;
  std::memcpy(&half, p, sizeof half);
  return __builtin_convertvector(half, U);
#endif
}
// The first n < kCount values at p, zeros behind them; kCount is kLanes or twice that.
template <size_t kCount>
OBN_INLINE void copy_first(const uint16_t* p, size_t n, uint16_t (&to)[kCount]) {
#if defined(__AVX512BW__)
  if constexpr (kCount == kLanes) {
    const __m256i values = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p);
    std::memcpy(to, &values, sizeof to);
  } else {
    const __m512i values = _mm512_maskz_loadu_epi16((1u << n) - 1, p);
    std::memcpy(to, &values, sizeof to);
  }
#elif defined(__ARM_NEON)  // of the loop below clang makes a call of memcpy, around which it saves all registers
#pragma GCC unroll 8
  for (size_t i = 0; i < kCount; ++i) to[i] = i < n ? p[i] : uint16_t{0};
#else
  std::memset(to, 0, sizeof to);
  for (size_t i = 0; i < n; ++i) to[i] = p[i];
#endif
}
OBN_INLINE F load_bfloat16(const uint16_t* p) { return from_bits(reinterpret_cast<I>(load_words(p) << 16)); }
// In the lower halves of the lanes.
OBN_INLINE U round_to_bfloat16(F v) {
  U u = reinterpret_cast<U>(v);
  U rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  U nan = (u >> 16) | 0x40;
  return (v != v) ? nan : rounded;
}
OBN_INLINE void store_bfloat16(uint16_t* p, F v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(round_to_bfloat16(v))));
#else
  typedef uint16_t H __attribute__((vector_size(2 * kLanes)));
  H half = __builtin_convertvector(round_to_bfloat16(v), H);
  std::memcpy(p, &half, sizeof half);
#endif
}

// `p` is where value 0 lies, `stride` counts values; type is float32, float16 or bfloat16. One copy for all kernels of a
// target, in convert_kernels.cpp.
void load_row(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);
void store_row(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
// A copy past the caches; fence() after the last one.
void stream_row(const float* row, float* to, size_t n);

}  // namespace obn::OBN_TARGET
