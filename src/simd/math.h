// Elementary functions of whole vectors. Kernel files only (see vec.h).
//
// Relative errors stay below 4e-7 (tanh: 3.5e-7, the others less) where a comment does not say absolute; infinities
// give the limits and NaN gives NaN. activation_test.cpp checks that on every target. Coefficients are our own minimax
// fits (linear programming over about 1000 Chebyshev points), rounded to float.
#pragma once

#include <cstddef>

#include "simd/vec.h"

namespace obn::OBN_TARGET {

// c[0] + c[1]·x + c[2]·x² + …, by Horner's rule.
template <size_t n>
OBN_INLINE F polynomial(F x, const float (&c)[n]) {
  F sum = splat(c[n - 1]);
  for (size_t k = n - 1; k > 0; --k) sum = fma(sum, x, splat(c[k - 1]));
  return sum;
}

// x = n·ln 2 + r with |r| <= ln 2 / 2, for |x| <= 2e6. Adding 1.5·2^23 leaves n, rounded, in the low bits.
struct Reduced {
  F shifted;  // n + 1.5·2^23
  F n;
  F r;
};
OBN_INLINE Reduced reduce(F x) {
  const F magic = splat(12582912.0f);
  F shifted = fma(x, splat(1.44269504f), magic);
  F n = shifted - magic;
  F r = fnma(n, splat(0.693359375f), x);  // the upper bits of ln 2: n times them is exact
  return {shifted, n, fma(n, splat(2.12194440e-4f), r)};
}
// (e^r - 1 - r) / r²
OBN_INLINE F exp_series(F r) {
  return polynomial(r, {4.99999993e-1f, 1.66665420e-1f, 4.16662805e-2f, 8.36665928e-3f, 1.39465812e-3f});
}
// v·2^n, where neither v nor the result leaves the normal numbers.
OBN_INLINE F scale(F v, F shifted) {
  return reinterpret_cast<F>(reinterpret_cast<U>(v) + (reinterpret_cast<U>(shifted) << 23));  // U may wrap around
}

// v·2^n for -150 <= n <= 129 where shifted = n + 1.5·2^23; results below the normal numbers are rounded like any other.
OBN_INLINE F scale_far(F v, F shifted) {
#if defined(__AVX512F__)
  F n = shifted - splat(12582912.0f);
  return reinterpret_cast<F>(_mm512_scalef_ps(reinterpret_cast<__m512>(v), reinterpret_cast<__m512>(n)));
#else
  I n = bits(shifted) - bits(splat(12582912.0f));  // 2^n may be no number: two factors that are
  I half = n >> 1;
  return v * from_bits((half + 127) << 23) * from_bits((n - half + 127) << 23);
#endif
}

// e^x for |x| <= 2e6.
OBN_INLINE F exp_of_moderate(F x) {
#if !defined(__AVX512F__)
  x = min(splat(89.0f), max(splat(-104.0f), x));  // what scale_far can reach
#endif
  Reduced d = reduce(x);
  return scale_far(fma(d.r * d.r, exp_series(d.r), d.r + 1.0f), d.shifted);
}

// e^x for x <= 0 and for every x.
OBN_INLINE F exp_of_negative(F x) { return exp_of_moderate(max(splat(-104.0f), x)); }
OBN_INLINE F exp(F x) { return exp_of_moderate(min(splat(89.0f), max(splat(-104.0f), x))); }

// e^x for x <= 0 where many are added up and the small ones count little: fewer operations than above on targets that
// fuse products into sums. Relative error 1.5e-7 near 0, 3.9e-7 at -87. With skips_nan, NaN adds nothing.
template <bool skips_nan = false>
OBN_INLINE F exp_in_sum(F x) {
  x = skips_nan ? max(x, splat(-104.0f)) : max(splat(-104.0f), x);
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  const F magic = splat(12582912.0f);
  F shifted = fma(x, splat(1.44269504f), magic);
  F r = fnma(shifted - magic, splat(0.693147182f), x);  // the product is not rounded
  F v = polynomial(r, {1.0f, 9.99999702e-1f, 4.99991477e-1f, 1.66676387e-1f, 4.18981612e-2f, 8.29027221e-3f});
  return scale_far(v, shifted);
#else
  return exp_of_moderate(x);
#endif
}

// e^x - 1 = 2^n·(e^r - 1) + (2^n - 1), exact to the last bits near 0. Halves, because 2^128 is no float.
OBN_INLINE F expm1(F x) {
  Reduced d = reduce(min(splat(89.0f), max(splat(-20.0f), x)));
  F p = fma(d.r * d.r, exp_series(d.r), d.r);
  F half = scale(splat(0.5f), d.shifted);
  return 2.0f * fma(half, p, half - 0.5f);
}

// 2·atanh(s) for |s| <= 1/3
OBN_INLINE F twice_atanh(F s) {
  F z = s * s;
  F tail = polynomial(z, {6.66666746e-1f, 3.99988771e-1f, 2.86168844e-1f, 2.14276582e-1f, 2.43009329e-1f});
  return fma(s * z, tail, 2.0f * s);
}

// log x for normal x > 0; infinity and NaN give themselves. x = 2^e·m, sqrt(1/2) <= m < sqrt(2).
OBN_INLINE F log(F x) {
  U from_half = reinterpret_cast<U>(x) - 0x3f3504f3;  // bits above those of sqrt(1/2)
  I e = reinterpret_cast<I>(from_half) >> 23;
  F m = reinterpret_cast<F>((from_half & 0x7fffff) + 0x3f3504f3);
  F s = (m - 1.0f) / (m + 1.0f);
  F exponent = to_float(e);
  F value = fma(exponent, splat(0.693359375f), fnma(exponent, splat(2.12194440e-4f), twice_atanh(s)));
  return x <= splat(3.40282347e38f) ? value : x;
}

// log(1 + x) for 0 <= x <= 1
OBN_INLINE F log1p_of_fraction(F x) { return twice_atanh(x / (x + 2.0f)); }

// 1 / (1 + e^-x) for |x| <= 2e6 and for every x.
OBN_INLINE F sigmoid_of_moderate(F x) { return 1.0f / (1.0f + exp_of_moderate(-x)); }
OBN_INLINE F sigmoid(F x) { return 1.0f / (1.0f + exp(-x)); }

// σ and σ' = σ(1 - σ), both to full precision at either end: with t = e^-|x| they are 1/(1+t) or t/(1+t), and t/(1+t)².
struct SigmoidAndSlope {
  F value, slope;
};
OBN_INLINE SigmoidAndSlope sigmoid_and_slope(F x) {
  F t = exp_of_negative(-abs(x));
  F large = 1.0f / (1.0f + t);
  F small = t * large;
  return {x < 0.0f ? small : large, small * large};
}

// tanh x = x·P(x²)/Q(x²); from 9.02 on it is 1, and the bound keeps rounding from passing it.
OBN_INLINE F tanh(F x) {
  x = min(splat(9.02f), max(splat(-9.02f), x));
  F z = x * x;
  F p = x * polynomial(z, {1.0f, 1.33797176e-1f, 3.49403422e-3f, 2.05834762e-5f, 1.33190657e-8f});
  F q = polynomial(z, {1.0f, 4.67130329e-1f, 2.58710719e-2f, 3.28309231e-4f, 7.76201673e-7f});
  return min(splat(1.0f), max(splat(-1.0f), p / q));
}

// log(1 + e^x)
OBN_INLINE F softplus(F x) {
  return max(splat(0.0f), x) + log1p_of_fraction(exp_of_negative(-abs(x)));
}

// erf x = x·P(x²), P in w = x²·2/15.1 - 1; exactly ±1 from 3.85 on, where the next float below 1 is too small.
OBN_INLINE F erf(F x) {
  F w = fms(x * x, splat(2.0f / 15.1f), splat(1.0f));
  F p = polynomial(w, {3.63900155e-1f,  -1.81653276e-1f, 1.35120407e-1f,  -1.09778889e-1f, 9.07129571e-2f,
                       -7.36274794e-2f, 5.75500727e-2f,  -4.23754789e-2f, 2.87309643e-2f,  -1.90417487e-2f,
                       1.31506072e-2f,  -7.02966983e-3f, 1.89007144e-3f,  -1.29588670e-3f, 1.80558534e-3f,
                       -7.15903880e-4f});
  return abs(x) > 3.85f ? copysign(splat(1.0f), x) : x * p;
}

// Φ(x) - 1/2 = x·P(x²)/Q(x²), Φ the normal distribution function; absolute error 1e-7. Exactly ±1/2 from 5.45 on.
OBN_INLINE F normal_above_half(F x) {
  F z = x * x;
  F p = polynomial(z, {3.98942211e-1f, 3.42561953e-2f, 4.70470285e-3f, 1.73236908e-4f, 6.40952908e-6f,
                       2.26120184e-8f});
  F q = polynomial(z, {1.0f, 2.52533123e-1f, 2.88837574e-2f, 1.90944764e-3f, 7.51991854e-5f, 1.19768426e-6f});
  return abs(x) > 5.45f ? copysign(splat(0.5f), x) : max(splat(-0.5f), x * p / q);  // Φ is never negative
}

// Φ(x) + x·φ(x) - 1/2, the slope of x·Φ(x) less its half, likewise: no exponential at all. Exactly ±1/2 from 6 on.
OBN_INLINE F gelu_slope_above_half(F x) {
  F z = x * x;
  F p = polynomial(z, {7.97884540e-1f, -3.07436089e-2f, 1.42091852e-2f, 2.41815259e-5f, 3.58505476e-5f,
                       1.90885560e-7f});
  F q = polynomial(z, {1.0f, 2.94805507e-1f, 4.10646309e-2f, 3.52876152e-3f, 1.93518630e-4f, 8.88748856e-6f});
  return abs(x) > 6.0f ? copysign(splat(0.5f), x) : x * p / q;
}

// x - tanh x; a series below 1.2, where the difference would cancel.
OBN_INLINE F tanh_shrink(F x) {
  F z = x * x;
  F series = polynomial(z, {3.33333343e-1f, -1.33333057e-1f, 5.39630316e-2f, -2.18316857e-2f, 8.72300938e-3f,
                            -3.28974193e-3f, 1.04972685e-3f, -2.34612991e-4f, 2.58354266e-5f});
  return abs(x) < 1.2f ? x * z * series : x - tanh(x);
}

}  // namespace obn::OBN_TARGET
