// The vectors every kernel is written with: the compiler's own vector types, as wide as the target, and the few
// operations those types lack. Included only by kernel files, which are compiled once per target with OBN_TARGET set
// to the target's name; everything lives in that namespace and is inlined, so that no code of one target can be
// linked into another.
//
//   F        kLanes floats          I        kLanes int32; also a mask: every lane 0 or -1
//   a + b, a * b, a < b (gives I), mask ? a : b   are the compiler's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#ifndef OBN_TARGET
#error "OBN_TARGET names the namespace of the target"
#endif

#define OBN_INLINE [[gnu::always_inline]] static inline

namespace obn::OBN_TARGET {

#if defined(__AVX512F__)
constexpr size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr size_t kLanes = 8;
#else
constexpr size_t kLanes = 4;
#endif

typedef float F __attribute__((vector_size(4 * kLanes)));
typedef int32_t I __attribute__((vector_size(4 * kLanes)));
typedef uint32_t U __attribute__((vector_size(4 * kLanes)));

OBN_INLINE F splat(float v) { return v - F{}; }  // not F{} + v: that is no copy of -0, and costs an addition
OBN_INLINE I splat(int32_t v) { return I{} + v; }
OBN_INLINE I bits(F v) { return reinterpret_cast<I>(v); }
OBN_INLINE F from_bits(I v) { return reinterpret_cast<F>(v); }

// a·b + c, a·b - c and c - a·b, rounded once where the target can: the compiler itself fuses nothing (CMakeLists.txt),
// so what is fused is what says so here, in every copy of a piece of code and with every compiler. Without such an
// instruction they are a product and a sum.
OBN_INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<F>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__ARM_FEATURE_FMA)
  return reinterpret_cast<F>(
      vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}
OBN_INLINE F fms(F a, F b, F c) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(
      _mm512_fmsub_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<F>(
      _mm256_fmsub_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
  return fma(a, b, -c);
#endif
}
OBN_INLINE F fnma(F a, F b, F c) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(
      _mm512_fnmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<F>(
      _mm256_fnmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__ARM_FEATURE_FMA)
  return reinterpret_cast<F>(
      vfmsq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
#else
  return c - a * b;
#endif
}
#if defined(__ARM_NEON)
// One lane of a vector, as a factor: known when compiling, once loops are unrolled.
struct Lane {
  F values;
  size_t lane;
};
OBN_INLINE F fma(Lane a, F b, F c) {
  const float32x4_t x = reinterpret_cast<float32x4_t>(a.values), w = reinterpret_cast<float32x4_t>(b);
  const float32x4_t sum = reinterpret_cast<float32x4_t>(c);
  switch (a.lane) {
    case 0: return reinterpret_cast<F>(vfmaq_laneq_f32(sum, w, x, 0));
    case 1: return reinterpret_cast<F>(vfmaq_laneq_f32(sum, w, x, 1));
    case 2: return reinterpret_cast<F>(vfmaq_laneq_f32(sum, w, x, 2));
    default: return reinterpret_cast<F>(vfmaq_laneq_f32(sum, w, x, 3));
  }
}
#endif
OBN_INLINE F fma(float a, F b, F c) { return fma(splat(a), b, c); }
OBN_INLINE F fnma(float a, F b, F c) { return fnma(splat(a), b, c); }
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
OBN_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
OBN_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
OBN_INLINE float fma(float a, float b, float c) { return a * b + c; }
OBN_INLINE double fma(double a, double b, double c) { return a * b + c; }
#endif
OBN_INLINE float fnma(float a, float b, float c) { return fma(-a, b, c); }
OBN_INLINE double fnma(double a, double b, double c) { return fma(-a, b, c); }

// 0, 1, 2, …
OBN_INLINE I iota() {
  I v{};
  for (size_t i = 0; i < kLanes; ++i) v[i] = static_cast<int32_t>(i);
  return v;
}

// Memory need only be aligned to the element.
OBN_INLINE F load(const float* p) {
  F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
OBN_INLINE void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
OBN_INLINE I load(const int32_t* p) {
  I v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
OBN_INLINE void store(int32_t* p, I v) { std::memcpy(p, &v, sizeof v); }

// The same value, which the compiler now keeps in a register: gcc would rather load it again for every use.
OBN_INLINE F held(F v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__SSE2__)
  asm("" : "+x"(v));
#elif defined(__ARM_NEON)
  asm("" : "+w"(v));
#endif
  return v;
}
// The same pointer, without its history: a pointer that walks by a step is then one register, where gcc would keep one
// per multiple of the step.
OBN_INLINE const float* held(const float* p) {
  asm("" : "+r"(p));
  return p;
}

// Past the caches; p is aligned to the vector. Call fence() once after the last one.
OBN_INLINE void stream(float* p, F v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, reinterpret_cast<__m512>(v));
#elif defined(__AVX2__)
  _mm256_stream_ps(p, reinterpret_cast<__m256>(v));
#elif defined(__SSE2__)
  _mm_stream_ps(p, reinterpret_cast<__m128>(v));
#else
  store(p, v);
#endif
}
// How many floats lie between p and the next multiple of `bytes`.
OBN_INLINE size_t floats_before(const float* p, size_t bytes) {
  return (bytes - reinterpret_cast<uintptr_t>(p) % bytes) % bytes / sizeof(float);
}
// Bring the line of p into the second-level cache, the first-level one, and there to be written; any address will do.
OBN_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
OBN_INLINE void prefetch_l1(const void* p) { __builtin_prefetch(p); }
OBN_INLINE void prefetch_to_write(const void* p) { __builtin_prefetch(p, 1); }

OBN_INLINE void fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The first n <= kLanes values; the other lanes are `rest` and their memory is not touched.
OBN_INLINE F load_first(const float* p, size_t n, F rest = F{}) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(
      _mm512_mask_loadu_ps(reinterpret_cast<__m512>(rest), static_cast<__mmask16>((1u << n) - 1), p));
#elif defined(__ARM_NEON)  // of the loop below clang makes a call of memcpy, around which it saves all registers
  const float32x4_t r = reinterpret_cast<float32x4_t>(rest);
  if (n == 1) return reinterpret_cast<F>(vld1q_lane_f32(p, r, 0));
  if (n == 2) return reinterpret_cast<F>(vcombine_f32(vld1_f32(p), vget_high_f32(r)));
  if (n == 3) return reinterpret_cast<F>(vcombine_f32(vld1_f32(p), vld1_lane_f32(p + 2, vget_high_f32(r), 0)));
  return n == 0 ? rest : load(p);
#else
  float lanes[kLanes];
  store(lanes, rest);
  for (size_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
#endif
}
OBN_INLINE void store_first(float* p, F v, size_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m512>(v));
#elif defined(__ARM_NEON)
  if (n >= kLanes) return store(p, v);
  if (n >= 2) vst1_f32(p, vget_low_f32(reinterpret_cast<float32x4_t>(v)));
  if (n == 1) vst1q_lane_f32(p, reinterpret_cast<float32x4_t>(v), 0);
  if (n == 3) vst1q_lane_f32(p + 2, reinterpret_cast<float32x4_t>(v), 2);
#else
  for (size_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// Which lanes of a vector count: those in [from, to). The others are loaded as zeros; only with AVX-512 their memory is
// not touched.
#if defined(__AVX512F__)
typedef __mmask16 Keep;
OBN_INLINE Keep keep_lanes(size_t from, size_t to) {
  return static_cast<Keep>(((1u << to) - 1) & ~((1u << from) - 1));
}
OBN_INLINE F load_kept(const float* p, Keep keep) { return reinterpret_cast<F>(_mm512_maskz_loadu_ps(keep, p)); }
#else
typedef I Keep;
OBN_INLINE Keep keep_lanes(size_t from, size_t to) {
  const I lane = iota();
  return (lane >= static_cast<int32_t>(from)) & (lane < static_cast<int32_t>(to));
}
OBN_INLINE F load_kept(const float* p, Keep keep) { return from_bits(bits(load(p)) & keep); }
#endif

// min and max give b when either is NaN (what the x86 instruction does, the same on every target).
// Spelled out where the compiler would make a comparison and a blend of it.
OBN_INLINE F min(F a, F b) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(_mm512_min_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<F>(_mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<F>(_mm_min_ps(reinterpret_cast<__m128>(a), reinterpret_cast<__m128>(b)));
#else
  return a < b ? a : b;
#endif
}
OBN_INLINE F max(F a, F b) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<F>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<F>(_mm_max_ps(reinterpret_cast<__m128>(a), reinterpret_cast<__m128>(b)));
#else
  return a > b ? a : b;
#endif
}
OBN_INLINE F abs(F v) { return from_bits(bits(v) & 0x7fffffff); }
OBN_INLINE F copysign(F magnitude, F sign) {
  return from_bits((bits(magnitude) & 0x7fffffff) | (bits(sign) & static_cast<int32_t>(0x80000000)));
}
OBN_INLINE I is_nan(F v) { return v != v; }
OBN_INLINE bool any(I mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(reinterpret_cast<__m256>(mask)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps(reinterpret_cast<__m128>(mask)) != 0;
#elif defined(__ARM_NEON)
  return vmaxvq_u32(reinterpret_cast<uint32x4_t>(mask)) != 0;
#else
  int32_t all = 0;
  for (size_t i = 0; i < kLanes; ++i) all |= mask[i];
  return all != 0;
#endif
}

OBN_INLINE F to_float(I v) { return __builtin_convertvector(v, F); }

OBN_INLINE F sqrt(F v) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(_mm512_sqrt_ps(reinterpret_cast<__m512>(v)));
#elif defined(__AVX2__)
  return reinterpret_cast<F>(_mm256_sqrt_ps(reinterpret_cast<__m256>(v)));
#elif defined(__SSE2__)
  return reinterpret_cast<F>(_mm_sqrt_ps(reinterpret_cast<__m128>(v)));
#elif defined(__ARM_NEON)
  return reinterpret_cast<F>(vsqrtq_f32(reinterpret_cast<float32x4_t>(v)));
#else
  F r{};
  for (size_t i = 0; i < kLanes; ++i) r[i] = __builtin_sqrtf(v[i]);
  return r;
#endif
}

// One number out of all lanes, added up in a fixed tree.
OBN_INLINE float sum(F v) {
#if defined(__SSE2__)
#if defined(__AVX512F__)
  const __m512 all = reinterpret_cast<__m512>(v);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#elif defined(__AVX2__)
  const __m256 eight = reinterpret_cast<__m256>(v);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
  const __m128 four = reinterpret_cast<__m128>(v);
#endif
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#elif defined(__ARM_NEON)
  const float32x4_t four = reinterpret_cast<float32x4_t>(v);
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
#else
  float lanes[kLanes];
  store(lanes, v);
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
#endif
}
OBN_INLINE float largest(F v) {
#if defined(__ARM_NEON)
  const F two = max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
  return two[0] > two[1] ? two[0] : two[1];
#else
  float lanes[kLanes];
  store(lanes, v);
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
#endif
}

// a, b are 2·kLanes values in a row; even gets values 0, 2, 4, …, odd 1, 3, 5, …
OBN_INLINE void split_pairs(F a, F b, F* even, F* odd) {
#if defined(__AVX512F__)
  const __m512i pick_even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i pick_odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  __m512 low = reinterpret_cast<__m512>(a), high = reinterpret_cast<__m512>(b);
  *even = reinterpret_cast<F>(_mm512_permutex2var_ps(low, pick_even, high));
  *odd = reinterpret_cast<F>(_mm512_permutex2var_ps(low, pick_odd, high));
#elif defined(__AVX2__)
  *even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
  *odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  *even = __builtin_shufflevector(a, b, 0, 2, 4, 6);
  *odd = __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
}
// The way back.
OBN_INLINE void join_pairs(F even, F odd, F* a, F* b) {
#if defined(__AVX512F__)
  const __m512i pick_low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i pick_high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  __m512 e = reinterpret_cast<__m512>(even), o = reinterpret_cast<__m512>(odd);
  *a = reinterpret_cast<F>(_mm512_permutex2var_ps(e, pick_low, o));
  *b = reinterpret_cast<F>(_mm512_permutex2var_ps(e, pick_high, o));
#elif defined(__AVX2__)
  *a = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
  *b = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  *a = __builtin_shufflevector(even, odd, 0, 4, 1, 5);
  *b = __builtin_shufflevector(even, odd, 2, 6, 3, 7);
#endif
}

// Lane i is the sum of all lanes of v[i], added up in a fixed tree. Destroys v.
OBN_INLINE F sum_each(F (&v)[kLanes]) {
#pragma GCC unroll 4
  for (size_t n = kLanes / 2; n > 0; n /= 2) {
#pragma GCC unroll 8
    for (size_t i = 0; i < n; ++i) {
      F even, odd;
      split_pairs(v[2 * i], v[2 * i + 1], &even, &odd);
      v[i] = even + odd;
    }
  }
  return v[0];
}

}  // namespace obn::OBN_TARGET
