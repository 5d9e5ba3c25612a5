// Vectors of double, as many lanes as F, and the few functions of them that float32 results are made of: where a
// difference cancels or an exponent multiplies errors, float32 arithmetic is not enough. Kernel files only (see vec.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/vec.h"

namespace obn::OBN_TARGET {

typedef double D __attribute__((vector_size(8 * kLanes)));
typedef uint64_t UD __attribute__((vector_size(8 * kLanes)));

// One register of doubles.
constexpr size_t kWideLanes = kLanes / 2;
typedef double W __attribute__((vector_size(8 * kWideLanes)));

OBN_INLINE D widen(F v) { return __builtin_convertvector(v, D); }
OBN_INLINE F narrow(D v) { return __builtin_convertvector(v, F); }
OBN_INLINE D wide_splat(double v) { return v - D{}; }

// As those of F (see vec.h).
OBN_INLINE W fma(W a, W b, W c) {
#if defined(__AVX512F__)
  return reinterpret_cast<W>(
      _mm512_fmadd_pd(reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<W>(
      _mm256_fmadd_pd(reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#elif defined(__ARM_FEATURE_FMA)
  return reinterpret_cast<W>(
      vfmaq_f64(reinterpret_cast<float64x2_t>(c), reinterpret_cast<float64x2_t>(a), reinterpret_cast<float64x2_t>(b)));
#else
  return a * b + c;
#endif
}
OBN_INLINE W fnma(W a, W b, W c) {
#if defined(__AVX512F__)
  return reinterpret_cast<W>(
      _mm512_fnmadd_pd(reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<W>(
      _mm256_fnmadd_pd(reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#elif defined(__ARM_FEATURE_FMA)
  return reinterpret_cast<W>(
      vfmsq_f64(reinterpret_cast<float64x2_t>(c), reinterpret_cast<float64x2_t>(a), reinterpret_cast<float64x2_t>(b)));
#else
  return c - a * b;
#endif
}

// The registers of a D.
struct Halves {
  W low, high;
};
OBN_INLINE Halves halves(D v) {
  Halves h;
  std::memcpy(&h, &v, sizeof v);
  return h;
}
OBN_INLINE D whole(Halves h) {
  D v;
  std::memcpy(&v, &h, sizeof v);
  return v;
}
OBN_INLINE D fma(D a, D b, D c) {
  const Halves x = halves(a), y = halves(b), z = halves(c);
  return whole({fma(x.low, y.low, z.low), fma(x.high, y.high, z.high)});
}
OBN_INLINE D fnma(D a, D b, D c) {
  const Halves x = halves(a), y = halves(b), z = halves(c);
  return whole({fnma(x.low, y.low, z.low), fnma(x.high, y.high, z.high)});
}

template <size_t n>
OBN_INLINE D wide_polynomial(D x, const double (&c)[n]) {
  D sum = wide_splat(c[n - 1]);
  for (size_t k = n - 1; k > 0; --k) sum = fma(sum, x, wide_splat(c[k - 1]));
  return sum;
}

// The whole number next to x, ties to even, for |x| < 2^51.
OBN_INLINE D wide_round(D x) { return (x + 0x1.8p52) - 0x1.8p52; }

OBN_INLINE D wide_abs(D x) { return reinterpret_cast<D>(reinterpret_cast<UD>(x) & 0x7fffffffffffffff); }
OBN_INLINE D wide_copysign(D magnitude, D sign) {
  return reinterpret_cast<D>(reinterpret_cast<UD>(wide_abs(magnitude)) |
                             (reinterpret_cast<UD>(sign) & 0x8000000000000000));
}

OBN_INLINE D wide_sqrt(D x) {
  D r{};
  for (size_t i = 0; i < kLanes; ++i) r[i] = __builtin_sqrt(x[i]);  // which the compiler makes whole vectors of
  return r;
}

// The whole number below x (at x), and the one towards 0; from 2^51 on x itself.
OBN_INLINE D wide_floor(D x) {
  D whole = wide_round(x);
  whole = whole > x ? whole - 1.0 : whole;
  return wide_abs(x) < 0x1p51 ? whole : x;
}
OBN_INLINE D wide_truncate(D x) { return wide_copysign(wide_floor(wide_abs(x)), x); }

// x = 2^e·m, sqrt(1/2) <= m < sqrt(2), for finite x > 0 that is a normal double: every float32 above 0 is.
struct WideLog {
  D e;
  D log_m;  // relative error 2e-12
};
OBN_INLINE WideLog wide_split_log(D x) {
  constexpr uint64_t kHalfRoot = 0x3fe6a09e667f3bcd;                            // the bits of sqrt(1/2)
  UD u = reinterpret_cast<UD>(x) - kHalfRoot + (uint64_t{1023} << 52);
  D e = reinterpret_cast<D>((u >> 52) | 0x4330000000000000) - (0x1p52 + 1023);  // the bits of 2^52 + k
  D m = reinterpret_cast<D>((u & 0xfffffffffffff) + kHalfRoot);
  D s = (m - 1.0) / (m + 1.0), z = s * s;  // log m = 2·atanh s
  D series = wide_polynomial(z, {1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13});
  return {e, fma(2.0 * s * z, series, 2.0 * s)};
}
OBN_INLINE D wide_log(D x) {
  WideLog l = wide_split_log(x);
  return fma(l.e, wide_splat(0.6931471805599453), l.log_m);
}
OBN_INLINE D wide_log2(D x) {
  WideLog l = wide_split_log(x);
  return fma(l.log_m, wide_splat(1.4426950408889634), l.e);
}

// 2^x for |x| <= 1000, relative error 1e-11.
OBN_INLINE D wide_exp2(D x) {
  D shifted = x + 0x1.8p52;
  D r = (x - (shifted - 0x1.8p52)) * 0.6931471805599453;
  D p = wide_polynomial(r, {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
                            1.0 / 362880});
  return reinterpret_cast<D>(reinterpret_cast<UD>(p) + (reinterpret_cast<UD>(shifted) << 52));
}

}  // namespace obn::OBN_TARGET
