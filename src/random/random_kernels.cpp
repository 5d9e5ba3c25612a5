// The loops, once per target; letters as in random.h. Random numbers have the same bits on every target: products and
// sums are rounded apart, where others write fma (simd/vec.h), and the one fused step here is fused everywhere.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "random/random.h"
#include "simd/convert.h"

namespace obn::OBN_TARGET::random {

namespace {

void uniform(const uint32_t* v, float low, float width, float factor, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = __builtin_fmaf(static_cast<float>(v[i]) * 0x1p-32f, width, low) * factor;
}

// ---- normal: radius √(-2·ln u), angle 2π·t; u and t from one value each ----

// c[0] + c[1]·x + c[2]·x² + …
template <size_t n>
OBN_INLINE F plain_polynomial(F x, const float (&c)[n]) {
  F sum = splat(c[n - 1]);
  for (size_t k = n - 1; k > 0; --k) sum = sum * x + splat(c[k - 1]);
  return sum;
}

// log x for normal x > 0, as in simd/math.h: x = 2^e·m, sqrt(1/2) <= m < sqrt(2), log m = 2·atanh s.
OBN_INLINE F plain_log(F x) {
  U from_half = reinterpret_cast<U>(x) - 0x3f3504f3;
  F e = to_float(reinterpret_cast<I>(from_half) >> 23);
  F m = reinterpret_cast<F>((from_half & 0x7fffff) + 0x3f3504f3);
  F s = (m - 1.0f) / (m + 1.0f), z = s * s;
  F tail = plain_polynomial(z, {6.66666746e-1f, 3.99988771e-1f, 2.86168844e-1f, 2.14276582e-1f, 2.43009329e-1f});
  F log_m = s * z * tail + 2.0f * s;
  return e * splat(0.693359375f) + (log_m - e * splat(2.12194440e-4f));
}

OBN_INLINE F radius_of(U v) {
  const F u = __builtin_convertvector(v, F) * 0x1p-32f + 0x1p-33f;  // above 0, at most 1
  return sqrt(plain_log(u) * -2.0f);
}

// The angle as a quarter turn, 0 to 3, and a rest of at most an eighth turn either way, both exact.
OBN_INLINE void turn(U v, F* cosine, F* sine) {
  const U quarter = (v + 0x20000000u) >> 30;
  const F x = to_float(reinterpret_cast<I>(v - (quarter << 30))) * 1.46291808e-9f;  // 2π / 2^32
  const F z = x * x;
  const F s = x + x * z * plain_polynomial(z, {-1.66666552e-1f, 8.332178e-3f, -1.95172979e-4f});
  const F c = 1.0f - z * 0.5f + z * z * plain_polynomial(z, {4.16666456e-2f, -1.38873677e-3f, 2.44384501e-5f});
  const I odd = -reinterpret_cast<I>(quarter & 1u);
  const U half = (quarter & 2u) << 30, past = ((quarter + 1u) & 2u) << 30;  // sign bits
  *cosine = from_bits(bits(odd ? s : c) ^ reinterpret_cast<I>(past));
  *sine = from_bits(bits(odd ? c : s) ^ reinterpret_cast<I>(half));
}

// Two vectors of numbers from two vectors of values.
OBN_INLINE void normal_pairs(F first, F second, F mean, F deviation, F* a, F* b) {
  F even, odd, cosine, sine;
  split_pairs(first, second, &even, &odd);
  const F radius = radius_of(reinterpret_cast<U>(even));
  turn(reinterpret_cast<U>(odd), &cosine, &sine);
  join_pairs(radius * cosine * deviation + mean, radius * sine * deviation + mean, a, b);
}

OBN_INLINE F load_values(const uint32_t* v) {
  F bits;
  std::memcpy(&bits, v, sizeof bits);
  return bits;
}

void normal(const uint32_t* v, float mean, float deviation, float* y, size_t n) {
  const F middle = splat(mean), width = splat(deviation);
  F a, b;
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    normal_pairs(load_values(v + i), load_values(v + i + kLanes), middle, width, &a, &b);
    store(y + i, a);
    store(y + i + kLanes, b);
  }
  if (i == n) return;
  uint32_t last[2 * kLanes] = {};
  float numbers[2 * kLanes];
  std::memcpy(last, v + i, (n - i) * sizeof *v);
  normal_pairs(load_values(last), load_values(last + kLanes), middle, width, &a, &b);
  store(numbers, a);
  store(numbers + kLanes, b);
  std::memcpy(y + i, numbers, (n - i) * sizeof *y);
}

// The upper half of v·range is spread evenly, but for one part in 2^32 (2^64) of the range.
template <class T>
void integers(const uint32_t* v, int64_t low, uint64_t range, void* to, size_t n) {
  T* y = static_cast<T*>(to);
  const uint64_t start = static_cast<uint64_t>(low);
  if (obn::random::values_for(range) == 1) {
    for (size_t i = 0; i < n; ++i) y[i] = static_cast<T>(start + (static_cast<uint64_t>(v[i]) * range >> 32));
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint64_t wide = static_cast<uint64_t>(v[2 * i + 1]) << 32 | v[2 * i];
    __extension__ typedef unsigned __int128 Product;
    y[i] = static_cast<T>(start + static_cast<uint64_t>(static_cast<Product>(wide) * range >> 64));
  }
}

void clamp(float limit, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] > limit ? limit : (y[i] < -limit ? -limit : y[i]);
}

constexpr obn::random::Kernels kernels = {
    uniform,
    normal,
    {integers<int8_t>, integers<uint8_t>, integers<int16_t>, integers<uint16_t>, integers<int32_t>, integers<uint32_t>,
     integers<int64_t>, integers<uint64_t>},
    clamp,
    load_row,
    store_row};

}  // namespace

}  // namespace obn::OBN_TARGET::random

constinit const obn::random::Kernels obn::random::Compiled::OBN_TARGET = obn::OBN_TARGET::random::kernels;
