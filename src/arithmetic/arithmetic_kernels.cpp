// The loops, once per target. A function is a struct of vector expressions: the result, then the gradients of its
// inputs; one row loop takes any of them. Letters as in arithmetic.h.
//
// Relative errors stay below 4e-7 (arithmetic_test.cpp checks that on every target). The common functions are those of
// simd/math.h, others are computed in double and rounded; of libm only fmod is called, which is exact.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arithmetic/arithmetic.h"
#include "simd/convert.h"
#include "simd/math.h"
#include "simd/wide.h"

namespace obn::OBN_TARGET::arithmetic {

namespace {

using obn::arithmetic::kSources;
using obn::arithmetic::Sources;

// One vector of everything a function may be computed from; what it does not use is not loaded.
struct At {
  F a, b, c, y, dz;
};

constexpr float kInfinity = __builtin_inff();
constexpr float kNan = __builtin_nanf("");

// ---- whole numbers ----

// The sign of a zero stays; from 2^23 on every float is a whole number.
OBN_INLINE F truncated(F v) {
  F size = min(abs(v), splat(8388608.0f));
  F whole = copysign(to_float(__builtin_convertvector(size, I)), v);
  return abs(v) < 8388608.0f ? whole : v;
}
OBN_INLINE F floored(F v) {
  F t = truncated(v);
  return t > v ? t - 1.0f : t;
}
OBN_INLINE F ceiled(F v) {
  F t = truncated(v);
  return t < v ? copysign(t + 1.0f, v) : t;
}
OBN_INLINE F rounded(F v) {  // ties to even
  F whole = (abs(v) + 8388608.0f) - 8388608.0f;
  return abs(v) < 8388608.0f ? copysign(whole, v) : v;
}

// -1, 0 or 1; NaN stays NaN.
OBN_INLINE F sign_of(F v) { return v > 0.0f ? splat(1.0f) : (v < 0.0f ? splat(-1.0f) : v * 0.0f); }

// Quotients of two float32 in double fall on the right side of every whole number that float32 can tell.
OBN_INLINE F floor_divide(F a, F b) { return narrow(wide_floor(widen(a) / widen(b))); }
OBN_INLINE F trunc_divide(F a, F b) { return narrow(wide_truncate(widen(a) / widen(b))); }

// a - b·trunc(a/b), exact as long as the quotient has at most 29 bits.
OBN_INLINE F trunc_remainder(F a, F b) {
  const F q = a / b;
  if (any(~(abs(q) < 5e8f) | (abs(b) == kInfinity))) {
    F r{};
    for (size_t i = 0; i < kLanes; ++i) r[i] = __builtin_fmodf(a[i], b[i]);
    return r;
  }
  D wide_a = widen(a), wide_b = widen(b);
  return copysign(narrow(fnma(wide_truncate(wide_a / wide_b), wide_b, wide_a)), a);
}

// ---- sine, cosine, tangent: x = q·π/2 + r, |r| <= π/4 ----

OBN_INLINE F sine_series(F r) {
  F z = r * r;
  return fma(r * z, polynomial(z, {-1.66666672e-1f, 8.33332911e-3f, -1.98393042e-4f, 2.71804652e-6f}), r);
}
OBN_INLINE F cosine_series(F r) {
  F z = r * r;
  F series = polynomial(z, {4.16666679e-2f, -1.38888834e-3f, 2.47994521e-5f, -2.72050443e-7f});
  return fma(z * z, series, fnma(splat(0.5f), z, splat(1.0f)));
}

// For |x| <= kNear, where q has 16 bits and its products with the first 35 bits of π/2 are exact.
constexpr float kNear = 1e5f;

// 2/π behind 32 zeros: the bits from 2^32 down.
constexpr uint32_t kTurns[] = {0x00000000, 0xa2f9836e, 0x4e441529, 0xfc2757d1,
                               0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};

// Far from 0, in whole numbers: x is m·2^e, so that only 96 bits of 2/π matter, those that m·2^e moves to 2^1 and below.
// Of m times them the upper 64 are kept: q modulo 4, and r in units of π/2·2^-62.
OBN_INLINE void turn_far(float x, float& r, int32_t& q) {
  uint32_t word;
  __builtin_memcpy(&word, &x, sizeof word);
  const uint32_t exponent = word >> 23 & 255;
  if (exponent == 255) {  // infinite or NaN
    r = x - x;
    q = 0;
    return;
  }
  const uint64_t m = (word & 0x7fffff) | 0x800000;
  const uint32_t first = exponent - 120, shift = first % 32;
  const uint32_t* from = kTurns + first / 32;
  const auto bits_at = [&](size_t i) { return ((uint64_t{from[i]} << 32 | from[i + 1]) << shift) >> 32; };
  const uint64_t turns = (m * bits_at(0) << 32) + m * bits_at(1) + (m * bits_at(2) >> 32);
  const uint64_t quarters = (turns + (uint64_t{1} << 61)) >> 62;
  const double rest = static_cast<double>(static_cast<int64_t>(turns - (quarters << 62))) * 0x1.921fb54442d18p-62;
  r = static_cast<float>(x < 0.0f ? -rest : rest);
  q = static_cast<int32_t>(x < 0.0f ? 4 - quarters : quarters);
}

struct Turned {
  F sine, cosine;  // of r
  I q;
};
OBN_INLINE Turned turned(F x) {
  D wide = widen(x);
  D shifted = fma(wide, wide_splat(0.6366197723675814), wide_splat(0x1.8p52));
  D quarters = shifted - 0x1.8p52;
  D rest = fnma(quarters, wide_splat(0x1.921fb5444p+0), wide);
  F r = narrow(fnma(quarters, wide_splat(0x1.68c234c4c6629p-39), rest));
  I q = reinterpret_cast<I>(__builtin_convertvector(reinterpret_cast<UD>(shifted), U));  // the low bits
  if (any(~(abs(x) <= kNear))) [[unlikely]] {  // or NaN; a lane's bits are its own business
    for (size_t i = 0; i < kLanes; ++i) {
      if (__builtin_fabsf(x[i]) <= kNear) continue;
      float far_r;
      int32_t far_q;
      turn_far(x[i], far_r, far_q);
      r[i] = far_r;
      q[i] = far_q;
    }
  }
  return {sine_series(r), cosine_series(r), q};
}

// sin (r + q·π/2): every second quarter is a cosine, every second half is negative.
OBN_INLINE F sine_of(const Turned& t, I q) {
  F value = (q & 1) != 0 ? t.cosine : t.sine;
  return from_bits(bits(value) ^ ((q & 2) << 30));
}

OBN_INLINE F sin(F x) {
  const Turned t = turned(x);
  return sine_of(t, t.q);
}
OBN_INLINE F cos(F x) {
  const Turned t = turned(x);
  return sine_of(t, t.q + 1);
}
OBN_INLINE F tan(F x) {
  const Turned t = turned(x);
  return sine_of(t, t.q) / sine_of(t, t.q + 1);
}

// ---- their inverses ----

// |x| is turned by 0, π/4 or π/2 into at most tan(π/8).
OBN_INLINE F atan(F x) {
  F size = abs(x);
  I far = size > 2.41421356f, near = size < 0.414213562f;
  F t = far ? -1.0f / size : (near ? size : (size - 1.0f) / (size + 1.0f));
  F z = t * t;
  F series = polynomial(z, {-3.33333164e-1f, 1.99984610e-1f, -1.42433107e-1f, 1.05920777e-1f, -6.07360974e-2f});
  F turn = far ? splat(1.57079633f) : (near ? splat(0.0f) : splat(0.785398163f));
  return copysign(turn + fma(t * z, series, t), x);
}

// asin x for |x| <= 1/2
OBN_INLINE F asin_series(F x) {
  F z = x * x;
  F series = polynomial(z, {1.66666597e-1f, 7.50050545e-2f, 4.45167087e-2f, 3.18099111e-2f, 1.44298375e-2f,
                          3.75293829e-2f});
  return fma(x * z, series, x);
}
// asin x = π/2 - 2·asin sqrt((1 - x)/2) beyond
OBN_INLINE F asin(F x) {
  F size = abs(x);
  F low = asin_series(size);
  F high = fnma(splat(2.0f), asin_series(sqrt(0.5f * (1.0f - size))), splat(1.57079633f));
  return copysign(size <= 0.5f ? low : high, x);
}
OBN_INLINE F acos(F x) {
  F size = abs(x);
  F low = 1.57079633f - asin_series(x), high = 2.0f * asin_series(sqrt(0.5f * (1.0f - size)));
  return size <= 0.5f ? low : (x < 0.0f ? 3.14159265f - high : high);
}

// ---- exponentials, logarithms, powers ----

// e^x / 2, which is finite wherever sinh and cosh are.
OBN_INLINE F half_exp(F x) {
  Reduced d = reduce(min(splat(90.0f), max(splat(-90.0f), x)));
  return scale_far(fma(d.r * d.r, exp_series(d.r), d.r + 1.0f), d.shifted - 1.0f);
}
OBN_INLINE F cosh(F x) {
  F e = half_exp(abs(x));
  return e + 0.25f / e;
}
OBN_INLINE F sinh(F x) {
  F z = x * x;
  F low = fma(x * z, polynomial(z, {1.66666672e-1f, 8.33335053e-3f, 1.98361493e-4f, 2.81701273e-6f}), x);
  F e = half_exp(abs(x));
  return abs(x) < 1.0f ? low : copysign(e - 0.25f / e, x);
}

OBN_INLINE F exp2(F x) {
  const F magic = splat(12582912.0f);
  x = min(splat(129.0f), max(splat(-150.0f), x));
  F shifted = x + magic;
  F r = (x - (shifted - magic)) * 0.693147181f;
  return scale_far(fma(r * r, exp_series(r), r + 1.0f), shifted);
}

// value where x > 0 and finite; the limits and NaN elsewhere.
OBN_INLINE F with_log_limits(F x, F value) {
  value = x == 0.0f ? splat(-kInfinity) : (x < 0.0f ? splat(kNan) : value);
  return x < kInfinity ? value : x;
}
// simd/math.h wants normal numbers: smaller ones are multiplied by 2^23.
OBN_INLINE F log_of_any(F x) {
  I tiny = x < 1.17549435e-38f;
  F value = log(tiny ? x * 8388608.0f : x);
  return with_log_limits(x, tiny ? value - 15.9423852f : value);
}
OBN_INLINE F log2(F x) { return with_log_limits(x, narrow(wide_log2(widen(x)))); }

OBN_INLINE F asinh(F x) {
  D size = widen(abs(x));
  F value = copysign(narrow(wide_log(size + wide_sqrt(fma(size, size, wide_splat(1.0))))), x);
  F z = x * x;
  value = abs(x) < 1e-2f ? fnma(x * z, fnma(splat(0.075f), z, splat(1.0f / 6.0f)), x) : value;
  return abs(x) < kInfinity ? value : x;
}
OBN_INLINE F acosh(F x) {
  D wide = widen(x);
  F value = narrow(wide_log(wide + wide_sqrt((wide - 1.0) * (wide + 1.0))));
  return x < 1.0f ? splat(kNan) : (x < kInfinity ? value : x);
}
OBN_INLINE F atanh(F x) {
  D size = widen(abs(x));
  F value = copysign(0.5f * narrow(wide_log((1.0 + size) / (1.0 - size))), x);
  F z = x * x;
  value = abs(x) < 1e-2f ? fma(x * z, fma(splat(0.2f), z, splat(1.0f / 3.0f)), x) : value;
  return abs(x) < 1.0f ? value : (abs(x) == 1.0f ? copysign(splat(kInfinity), x) : splat(kNan));
}

// 2^power; beyond ±200 it is 0 or infinite in float32.
OBN_INLINE D wide_power(D power) {
  return wide_exp2(power > 200.0 ? wide_splat(200.0) : (power < -200.0 ? wide_splat(-200.0) : power));
}

// a^b; b in double, so that b - 1 is exact.
OBN_INLINE F pow(F a, D b) {
  const D x = widen(a), size = wide_abs(x), log = wide_log2(size);
  if (!any(~((a > 0.0f) & (a < kInfinity) & (abs(narrow(b)) < kInfinity)))) [[likely]]
    return narrow(wide_power(log * b));
  // The same where all is well, and C's limits elsewhere: 1^b and a^0 are 1, the sign of a stays with an odd b.
  const D infinity = wide_splat(__builtin_inf()), nan = wide_splat(__builtin_nan("")), whole = wide_floor(b);
  const D limit = size == 0.0 ? -infinity : (size < infinity ? log : size);
  const D power = ((limit == 0.0) | (b == 0.0)) != 0 ? D{} : limit * b;
  D value = power == power ? wide_power(power) : nan;
  const auto is_odd = (whole == b) & (wide_floor(0.5 * b) != 0.5 * b);
  value = is_odd != 0 ? wide_copysign(value, x) : value;
  value = ((x < 0.0) & (x > -infinity) & (whole != b)) != 0 ? nan : value;
  return narrow(value);
}

// sqrt(x² + 1), sqrt(x² - 1): beyond 1e10 the 1 does not count, and x² might be infinite.
OBN_INLINE F root_of_square_plus_one(F x) { return abs(x) > 1e10f ? abs(x) : sqrt(fma(x, x, splat(1.0f))); }
OBN_INLINE F root_of_square_less_one(F x) {
  F size = abs(x);
  return size > 1e10f ? size : sqrt((size - 1.0f) * (size + 1.0f));
}

// ---- the functions: y, then da, db, dc (docs/interface/arithmetic.md 5) ----

struct Add {
  static F y(const At& v) { return v.a + v.b; }
  static F da(const At& v) { return v.dz; }
  static F db(const At& v) { return v.dz; }
};
struct Subtract {
  static F y(const At& v) { return v.a - v.b; }
  static F da(const At& v) { return v.dz; }
  static F db(const At& v) { return -v.dz; }
};
struct Multiply {
  static F y(const At& v) { return v.a * v.b; }
  static F da(const At& v) { return v.dz * v.b; }
  static F db(const At& v) { return v.dz * v.a; }
};
struct Divide {
  static F y(const At& v) { return v.a / v.b; }
  static F da(const At& v) { return v.dz / v.b; }
  static F db(const At& v) { return -(v.dz * (v.a / v.b)) / v.b; }  // b² might overflow
};
struct SquareRoot {
  static F y(const At& v) { return sqrt(v.a); }
  static F da(const At& v) { return 0.5f * v.dz / sqrt(v.a); }
  static F da_from_y(const At& v) { return 0.5f * v.dz / v.y; }
};
struct ReciprocalSquareRoot {
  static F slope(F y) { return -0.5f * y * (y * y); }
  static F y(const At& v) { return 1.0f / sqrt(v.a); }
  static F da(const At& v) { return v.dz * slope(1.0f / sqrt(v.a)); }
  static F da_from_y(const At& v) { return v.dz * slope(v.y); }
};
struct Ceil {
  static F y(const At& v) { return ceiled(v.a); }
  static F da(const At&) { return splat(0.0f); }
};
struct Floor {
  static F y(const At& v) { return floored(v.a); }
  static F da(const At&) { return splat(0.0f); }
};
struct Round {
  static F y(const At& v) { return rounded(v.a); }
  static F da(const At&) { return splat(0.0f); }
};
struct Sin {
  static F y(const At& v) { return sin(v.a); }
  static F da(const At& v) { return v.dz * cos(v.a); }
};
struct Cos {
  static F y(const At& v) { return cos(v.a); }
  static F da(const At& v) { return -v.dz * sin(v.a); }
};
struct Tan {
  static F y(const At& v) { return tan(v.a); }
  static F da(const At& v) {
    F y = tan(v.a);
    return v.dz * fma(y, y, splat(1.0f));
  }
};
struct Asin {
  static F y(const At& v) { return asin(v.a); }
  static F da(const At& v) { return v.dz / sqrt((1.0f - v.a) * (1.0f + v.a)); }
};
struct Acos {
  static F y(const At& v) { return acos(v.a); }
  static F da(const At& v) { return -v.dz / sqrt((1.0f - v.a) * (1.0f + v.a)); }
};
struct Atan {
  static F y(const At& v) { return atan(v.a); }
  static F da(const At& v) { return v.dz / fma(v.a, v.a, splat(1.0f)); }
};
struct Sinh {
  static F y(const At& v) { return sinh(v.a); }
  static F da(const At& v) { return v.dz * cosh(v.a); }
};
struct Cosh {
  static F y(const At& v) { return cosh(v.a); }
  static F da(const At& v) { return v.dz * sinh(v.a); }
};
struct Tanh {
  static F y(const At& v) { return tanh(v.a); }
  static F da(const At& v) { return v.dz * (4.0f * sigmoid_and_slope(2.0f * v.a).slope); }  // without the difference
  static F da_from_y(const At& v) { return v.dz * fnma(v.y, v.y, splat(1.0f)); }
};
struct Asinh {
  static F y(const At& v) { return asinh(v.a); }
  static F da(const At& v) { return v.dz / root_of_square_plus_one(v.a); }
};
struct Acosh {
  static F y(const At& v) { return acosh(v.a); }
  static F da(const At& v) { return v.dz / root_of_square_less_one(v.a); }
};
struct Atanh {
  static F y(const At& v) { return atanh(v.a); }
  static F da(const At& v) { return v.dz / ((1.0f - v.a) * (1.0f + v.a)); }
};
// At b = 0 the slope in a is 0, also where a = 0; the slope in b is 0 where a = 0 and b >= 0.
struct Pow {
  static F y(const At& v) { return pow(v.a, widen(v.b)); }
  static F da(const At& v) { return v.b == 0.0f ? splat(0.0f) : v.dz * (v.b * pow(v.a, widen(v.b) - 1.0)); }
  static F db(const At& v) {
    F value = v.dz * (pow(v.a, widen(v.b)) * log_of_any(v.a));
    return ((v.a == 0.0f) & (v.b >= 0.0f)) != 0 ? splat(0.0f) : value;
  }
};
struct Exp {
  static F y(const At& v) { return exp(v.a); }
  static F da(const At& v) { return v.dz * exp(v.a); }
  static F da_from_y(const At& v) { return v.dz * v.y; }
};
struct Exp2 {
  static F y(const At& v) { return exp2(v.a); }
  static F da(const At& v) { return v.dz * (exp2(v.a) * 0.693147181f); }
  static F da_from_y(const At& v) { return v.dz * (v.y * 0.693147181f); }
};
struct Log {
  static F y(const At& v) { return log_of_any(v.a); }
  static F da(const At& v) { return v.dz / v.a; }
};
struct Log2 {
  static F y(const At& v) { return log2(v.a); }
  static F da(const At& v) { return v.dz * 1.44269504f / v.a; }
};
// 0 wherever b is 0, whatever a is; in the gradient of b, dz takes the place of b.
struct MultiplyNoNaN {
  static F y(const At& v) { return v.b == 0.0f ? splat(0.0f) : v.a * v.b; }
  static F da(const At& v) { return v.b == 0.0f ? splat(0.0f) : v.dz * v.b; }
  static F db(const At& v) { return v.dz == 0.0f ? splat(0.0f) : v.dz * v.a; }
};
struct DivideNoNaN {
  static F y(const At& v) { return v.b == 0.0f ? splat(0.0f) : v.a / v.b; }
  static F da(const At& v) { return v.b == 0.0f ? splat(0.0f) : v.dz / v.b; }
  static F db(const At& v) { return v.b == 0.0f ? splat(0.0f) : Divide::db(v); }
};
struct MultiplyAdd {
  static F y(const At& v) { return fma(v.a, v.b, v.c); }
  static F da(const At& v) { return v.dz * v.b; }
  static F db(const At& v) { return v.dz * v.a; }
  static F dc(const At& v) { return v.dz; }
};
// NaN wins. A tie gives half of the gradient to either.
struct Minimum {
  static I is_a(const At& v) { return (v.a < v.b) | is_nan(v.a); }
  static F y(const At& v) { return is_a(v) ? v.a : v.b; }
  static F da(const At& v) { return v.a == v.b ? 0.5f * v.dz : (is_a(v) ? v.dz : splat(0.0f)); }
  static F db(const At& v) { return v.a == v.b ? 0.5f * v.dz : (is_a(v) ? splat(0.0f) : v.dz); }
};
struct Maximum {
  static I is_a(const At& v) { return (v.a > v.b) | is_nan(v.a); }
  static F y(const At& v) { return is_a(v) ? v.a : v.b; }
  static F da(const At& v) { return v.a == v.b ? 0.5f * v.dz : (is_a(v) ? v.dz : splat(0.0f)); }
  static F db(const At& v) { return v.a == v.b ? 0.5f * v.dz : (is_a(v) ? splat(0.0f) : v.dz); }
};
struct Select {
  static F y(const At& v) { return v.a != 0.0f ? v.b : v.c; }
  static F da(const At&) { return splat(0.0f); }
  static F db(const At& v) { return v.a != 0.0f ? v.dz : splat(0.0f); }
  static F dc(const At& v) { return v.a != 0.0f ? splat(0.0f) : v.dz; }
};
struct Abs {
  static F y(const At& v) { return abs(v.a); }
  static F da(const At& v) { return v.dz * sign_of(v.a); }
};
struct Sign {
  static F y(const At& v) { return sign_of(v.a); }
  static F da(const At&) { return splat(0.0f); }
};
struct Negate {
  static F y(const At& v) { return -v.a; }
  static F da(const At& v) { return -v.dz; }
};
struct Reciprocal {
  static F y(const At& v) { return 1.0f / v.a; }
  static F da(const At& v) { return -(v.dz / v.a) / v.a; }
};
struct Square {
  static F y(const At& v) { return v.a * v.a; }
  static F da(const At& v) { return 2.0f * v.a * v.dz; }
};
struct FloorDivide {
  static F y(const At& v) { return floor_divide(v.a, v.b); }
  static F da(const At&) { return splat(0.0f); }
  static F db(const At&) { return splat(0.0f); }
};
struct TruncDivide {
  static F y(const At& v) { return trunc_divide(v.a, v.b); }
  static F da(const At&) { return splat(0.0f); }
  static F db(const At&) { return splat(0.0f); }
};
struct TruncRemainder {
  static F y(const At& v) { return trunc_remainder(v.a, v.b); }
  static F da(const At& v) { return v.dz; }
  static F db(const At& v) { return -v.dz * trunc_divide(v.a, v.b); }
};
struct Erf {
  static F y(const At& v) { return erf(v.a); }
  static F da(const At& v) { return v.dz * (1.12837917f * exp(-v.a * v.a)); }
};

// ---- rows ----

// A source that does not move stands on copies of its value: a vector that a load gets whole from the store before it.
OBN_INLINE const float* first_of(const float* p, bool moves, float (&copies)[kLanes]) {
  if (moves) return p;
  store(copies, splat(*p));
  return copies;
}

// out (n) = f of the sources.
template <F (*f)(const At&)>
[[gnu::flatten]] void row(const Sources& sources, float* out, size_t n) {
  using namespace obn::arithmetic;
  alignas(64) float copies[kSources][kLanes];
  const float* a = first_of(sources.p[kA], sources.moves[kA], copies[kA]);
  const float* b = first_of(sources.p[kB], sources.moves[kB], copies[kB]);
  const float* c = first_of(sources.p[kC], sources.moves[kC], copies[kC]);
  const float* y = first_of(sources.p[kY], sources.moves[kY], copies[kY]);
  const float* dz = first_of(sources.p[kDz], sources.moves[kDz], copies[kDz]);
  const size_t a_step = sources.moves[kA] ? kLanes : 0, b_step = sources.moves[kB] ? kLanes : 0,
               c_step = sources.moves[kC] ? kLanes : 0, y_step = sources.moves[kY] ? kLanes : 0,
               dz_step = sources.moves[kDz] ? kLanes : 0;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, f({load(a), load(b), load(c), load(y), load(dz)}));
    a += a_step;
    b += b_step;
    c += c_step;
    y += y_step;
    dz += dz_step;
  }
  const size_t m = n - i;
  if (m > 0)
    store_first(out + i, f({load_first(a, m), load_first(b, m), load_first(c, m), load_first(y, m), load_first(dz, m)}),
                m);
}

// What is written too far is overwritten by the next value.
void repeat(const float* p, size_t stride, size_t values, size_t count, float* to) {
  for (size_t v = 0; v < values; ++v, p += stride, to += count) {
    const F value = splat(*p);
    for (size_t i = 0; i < count; i += kLanes) store(to + i, value);
  }
}

void add(const float* from, float* sum, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(sum + i, load(sum + i) + load(from + i));
  if (i < n) store_first(sum + i, load_first(sum + i, n - i) + load_first(from + i, n - i), n - i);
}

void add_to_doubles(const float* from, double* sum, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    D total;
    std::memcpy(&total, sum + i, sizeof total);
    total += widen(load(from + i));
    std::memcpy(sum + i, &total, sizeof total);
  }
  for (; i < n; ++i) sum[i] += from[i];
}

float sum_of(const float* from, size_t n) {
  F total[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (size_t k = 0; k < 4; ++k) total[k] += load(from + i + k * kLanes);
  for (; i + kLanes <= n; i += kLanes) total[0] += load(from + i);
  if (i < n) total[1] += load_first(from + i, n - i);
  return sum((total[0] + total[1]) + (total[2] + total[3]));
}

// Rows of n values each, one after the other: sums (rows) += Σ of each.
void sum_rows(const float* from, size_t rows, size_t n, double* sums) {
  for (size_t first = 0; first < rows; first += kLanes) {
    const size_t count = first + kLanes < rows ? kLanes : rows - first;
    F total[kLanes];
    for (size_t k = count; k < kLanes; ++k) total[k] = F{};
    for (size_t k = 0; k < count; ++k) {
      const float* p = from + (first + k) * n;
      F part = F{};
      size_t i = 0;
      for (; i + kLanes <= n; i += kLanes) part += load(p + i);
      if (i < n) part += load_first(p + i, n - i);
      total[k] = part;
    }
    const F all = sum_each(total);
    for (size_t k = 0; k < count; ++k) sums[first + k] += static_cast<double>(all[k]);
  }
}

// The same along the other axis: sums (n) += Σ of the rows.
void sum_columns(const float* from, size_t rows, size_t n, double* sums) {
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t count = i + kLanes < n ? kLanes : n - i;
    F total = F{};
    for (size_t k = 0; k < rows; ++k)
      total += count == kLanes ? load(from + k * n + i) : load_first(from + k * n + i, count);
    for (size_t k = 0; k < count; ++k) sums[i + k] += static_cast<double>(total[k]);
  }
}

// A function of sources p and q, past the caches. They are fetched long before: gradients change from one array to
// another too often for the processor to follow.
template <F (*f)(const At&), size_t p, size_t q>
[[gnu::flatten]] void streamed_row(const Sources& sources, float* out, size_t n) {
  using namespace obn::arithmetic;
  constexpr size_t kAhead = 2048;
  size_t i = floats_before(out, sizeof(F));
  if (i > n) i = n;
  if (i > 0) row<f>(sources, out, i);
  Sources rest = sources;
  const auto advance = [&](size_t count) {
    if (sources.moves[p]) rest.p[p] += count;
    if (sources.moves[q]) rest.p[q] += count;
  };
  advance(i);
  alignas(64) float copies[2][kLanes];
  const float* from_p = first_of(rest.p[p], sources.moves[p], copies[0]);
  const float* from_q = first_of(rest.p[q], sources.moves[q], copies[1]);
  const size_t p_step = sources.moves[p] ? kLanes : 0, q_step = sources.moves[q] ? kLanes : 0;
  const size_t p_ahead = sources.moves[p] ? kAhead : 0, q_ahead = sources.moves[q] ? kAhead : 0;
  const size_t whole = (n - i) / kLanes;
  for (size_t k = 0; k < whole; ++k) {
    prefetch(from_p + p_ahead);
    prefetch(from_q + q_ahead);
    F v[kSources] = {};
    v[p] = load(from_p);
    v[q] = load(from_q);
    stream(out + i + k * kLanes, f({v[kA], v[kB], v[kC], v[kY], v[kDz]}));
    from_p += p_step;
    from_q += q_step;
  }
  advance(whole * kLanes);
  i += whole * kLanes;
  if (i < n) row<f>(rest, out + i, n - i);
}

void end_streams() { fence(); }

template <class A>
constexpr void list(obn::arithmetic::Kernels& table, BNNSArithmeticFunction function) {
  table.forward[function] = row<A::y>;
  table.gradient[function][0] = row<A::da>;
  if constexpr (requires(At v) { A::db(v); }) table.gradient[function][1] = row<A::db>;
  if constexpr (requires(At v) { A::dc(v); }) table.gradient[function][2] = row<A::dc>;
  if constexpr (requires(At v) { A::da_from_y(v); }) table.gradient_from_y[function] = row<A::da_from_y>;
}

constexpr obn::arithmetic::Kernels table() {
  obn::arithmetic::Kernels t{};
  list<Add>(t, BNNSArithmeticAdd);
  list<Subtract>(t, BNNSArithmeticSubtract);
  list<Multiply>(t, BNNSArithmeticMultiply);
  list<Divide>(t, BNNSArithmeticDivide);
  list<SquareRoot>(t, BNNSArithmeticSquareRoot);
  list<ReciprocalSquareRoot>(t, BNNSArithmeticReciprocalSquareRoot);
  list<Ceil>(t, BNNSArithmeticCeil);
  list<Floor>(t, BNNSArithmeticFloor);
  list<Round>(t, BNNSArithmeticRound);
  list<Sin>(t, BNNSArithmeticSin);
  list<Cos>(t, BNNSArithmeticCos);
  list<Tan>(t, BNNSArithmeticTan);
  list<Asin>(t, BNNSArithmeticAsin);
  list<Acos>(t, BNNSArithmeticAcos);
  list<Atan>(t, BNNSArithmeticAtan);
  list<Sinh>(t, BNNSArithmeticSinh);
  list<Cosh>(t, BNNSArithmeticCosh);
  list<Tanh>(t, BNNSArithmeticTanh);
  list<Asinh>(t, BNNSArithmeticAsinh);
  list<Acosh>(t, BNNSArithmeticAcosh);
  list<Atanh>(t, BNNSArithmeticAtanh);
  list<Pow>(t, BNNSArithmeticPow);
  list<Exp>(t, BNNSArithmeticExp);
  list<Exp2>(t, BNNSArithmeticExp2);
  list<Log>(t, BNNSArithmeticLog);
  list<Log2>(t, BNNSArithmeticLog2);
  list<MultiplyNoNaN>(t, BNNSArithmeticMultiplyNoNaN);
  list<DivideNoNaN>(t, BNNSArithmeticDivideNoNaN);
  list<MultiplyAdd>(t, BNNSArithmeticMultiplyAdd);
  list<Minimum>(t, BNNSArithmeticMinimum);
  list<Maximum>(t, BNNSArithmeticMaximum);
  list<Select>(t, BNNSArithmeticSelect);
  list<Abs>(t, BNNSArithmeticAbs);
  list<Sign>(t, BNNSArithmeticSign);
  list<Negate>(t, BNNSArithmeticNegate);
  list<Reciprocal>(t, BNNSArithmeticReciprocal);
  list<Square>(t, BNNSArithmeticSquare);
  list<FloorDivide>(t, BNNSArithmeticFloorDivide);
  list<TruncDivide>(t, BNNSArithmeticTruncDivide);
  list<TruncRemainder>(t, BNNSArithmeticTruncRemainder);
  list<Erf>(t, BNNSArithmeticErf);
  using namespace obn::arithmetic;
  t.streamed[BNNSArithmeticAdd] = streamed_row<Add::y, kA, kB>;
  t.streamed[BNNSArithmeticSubtract] = streamed_row<Subtract::y, kA, kB>;
  t.streamed[BNNSArithmeticMultiply] = streamed_row<Multiply::y, kA, kB>;
  t.streamed[BNNSArithmeticDivide] = streamed_row<Divide::y, kA, kB>;
  t.streamed_gradient[BNNSArithmeticMultiply][0] = streamed_row<Multiply::da, kB, kDz>;
  t.streamed_gradient[BNNSArithmeticMultiply][1] = streamed_row<Multiply::db, kA, kDz>;
  t.streamed_gradient[BNNSArithmeticDivide][0] = streamed_row<Divide::da, kB, kDz>;
  t.repeat = repeat;
  t.add = add;
  t.add_to_doubles = add_to_doubles;
  t.sum = sum_of;
  t.sum_rows = sum_rows;
  t.sum_columns = sum_columns;
  t.stream = stream_row;
  t.end_streams = end_streams;
  t.load = load_row;
  t.store = store_row;
  return t;
}

}  // namespace

}  // namespace obn::OBN_TARGET::arithmetic

constinit const obn::arithmetic::Kernels obn::arithmetic::Compiled::OBN_TARGET = obn::OBN_TARGET::arithmetic::table();
