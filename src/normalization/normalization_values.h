// What the kernel files of normalization share: values of a run on their way through a loop, and the functions that
// the table of a target is put together from. Letters and formulas as in normalization.h; all values are packed float32.
// Kernel files only (see simd/vec.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "normalization/normalization.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::normalization {

using obn::normalization::ColumnGradient;
using obn::normalization::Columns;
using obn::normalization::Forward;
using obn::normalization::Gradient;
using obn::normalization::Mask;
using obn::normalization::RowForward;
using obn::normalization::RowGradient;
using obn::normalization::RunMoments;
using obn::normalization::Runs;
using obn::normalization::Standard;
using obn::normalization::standard_of;
using obn::normalization::Sums;

// normalization_kernels.cpp
obn::normalization::Moments far_moments(const float* x, size_t step, size_t count);  // in double

// normalization_channels_kernels.cpp
void channel_forward(const Forward& job);
Sums channel_sums(const Gradient& job);
void channel_gradient(const Gradient& job);

// normalization_rows_kernels.cpp
void row_forward(RowForward* job);
void row_sums(RowGradient* job);
void row_backward(RowGradient* job);

// normalization_columns_kernels.cpp
void column_moments(const Runs& x, size_t rows, size_t width, double* mean, double* variance);
void standards(size_t n, const double* mean, const double* variance, float epsilon, float* rounded, float* r,
               float* rest);
void column_forward(const Columns& job);
void column_sums(const ColumnGradient& job, Sums* sums);
void column_gradient(const ColumnGradient& job);

namespace {  // nothing here may be shared between targets

OBN_INLINE bool is_finite(float v) { return v - v == 0.0f; }

constexpr size_t kBlock = obn::normalization::kSumBlock;
constexpr size_t kWide = 4 * kLanes;  // values that are worked on at a time

// A choice made outside a loop: body(Is<true>{}) or body(Is<false>{}).
template <bool value>
struct Is {
  static constexpr bool yes = value;
};
template <class Body>
OBN_INLINE void choose(bool flag, const Body& body) {
  if (flag) {
    body(Is<true>{});
  } else {
    body(Is<false>{});
  }
}

// Loads and stores of `n` values, where n == kLanes is known when it is compiled.
OBN_INLINE F load_part(const float* p, size_t n, F rest = F{}) {
  return n == kLanes ? load(p) : load_first(p, n, rest);
}
OBN_INLINE void store_part(float* p, F v, size_t n) {
  if (n == kLanes) return store(p, v);
  store_first(p, v, n);
}
template <bool past_caches>
OBN_INLINE void put(float* p, F v, size_t n) {
  if (past_caches && n == kLanes) return stream(p, v);
  store_part(p, v, n);
}

OBN_INLINE bool is_aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(F) == 0; }

// Values before the first one at an aligned address.
OBN_INLINE size_t head_of(const float* p) {
  return (sizeof(F) - reinterpret_cast<uintptr_t>(p) % sizeof(F)) % sizeof(F) / sizeof(float);
}

// ---- forward: y = max(low, γ·x̂ + β) ----

// γ and β of a run: the same for all its values, along it, or 1 and 0.
struct Same {
  F gamma, beta;
  [[gnu::always_inline]] F apply(F xhat, size_t, size_t) const { return fma(gamma, xhat, beta); }
  [[gnu::always_inline]] F times(F v) const { return gamma * v; }
  [[gnu::always_inline]] F times_plus(F a, F b, F c) const { return fma(gamma, a * b, c); }  // γ·a·b + c
};
struct Each {
  const float *gamma, *beta;
  [[gnu::always_inline]] F apply(F xhat, size_t i, size_t n) const {
    return fma(load_part(gamma + i, n), xhat, load_part(beta + i, n));
  }
  // γ of some values, in a register.
  [[gnu::always_inline]] Same at(size_t i, size_t n) const { return {held(load_part(gamma + i, n)), F{}}; }
};
struct Plain {
  [[gnu::always_inline]] F apply(F xhat, size_t, size_t) const { return xhat; }
  [[gnu::always_inline]] Plain at(size_t, size_t) const { return {}; }
  [[gnu::always_inline]] F times(F v) const { return v; }
  [[gnu::always_inline]] F times_plus(F a, F b, F c) const { return fma(a, b, c); }
};

// x̂ of a value; forward and backward share it, so that both see the same bits.
struct Standardize {
  F mean, r, rest;

  [[gnu::always_inline]] Standardize() = default;
  [[gnu::always_inline]] explicit Standardize(const Standard& s)
      : mean(splat(s.mean)), r(splat(s.r)), rest(splat(s.rest)) {}
  [[gnu::always_inline]] Standardize(F mean, F r, F rest) : mean(mean), r(r), rest(rest) {}
  [[gnu::always_inline]] F operator()(F x) const { return fma(x - mean, r, rest); }
};

// y, and the copy of x, of a run.
template <bool copies, bool streams, class Parameters>
struct Output {
  const float* x;
  float *y, *copy;
  Standardize standardize;
  F low;
  Parameters parameters;

  [[gnu::always_inline]] F of(F v, size_t i, size_t n) const {
    return max(low, parameters.apply(standardize(v), i, n));
  }
  [[gnu::always_inline]] void wide(size_t i) const {
    F v[4], w[4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      v[j] = load(x + i + j * kLanes);
      w[j] = of(v[j], i + j * kLanes, kLanes);
    }
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      if (copies) put<streams>(copy + i + j * kLanes, v[j], kLanes);
      put<streams>(y + i + j * kLanes, w[j], kLanes);
    }
  }
  [[gnu::always_inline]] void part(size_t i, size_t n) const {
    const F v = load_part(x + i, n), w = of(v, i, n);
    if (copies) put<streams>(copy + i, v, n);
    put<streams>(y + i, w, n);
  }
  [[gnu::always_inline]] void rest(size_t i, size_t length) const {
    for (; i + kWide <= length; i += kWide) wide(i);
    for (; i + kLanes <= length; i += kLanes) part(i, kLanes);
    if (i < length) part(i, length - i);
  }
};

// Writes what has to be written up to the first aligned place; where that is.
template <bool copies, bool streams, class Parameters>
OBN_INLINE size_t begin_output(const Output<copies, streams, Parameters>& output, size_t length) {
  size_t head = streams ? head_of(output.y) : 0;
  if (head > length) head = length;
  if (head > 0) output.part(0, head);
  return head;
}

// Streams are written both or not at all.
OBN_INLINE bool can_stream(const float* y, const float* copy) { return !copy || is_aligned(copy + head_of(y)); }

// ---- backward: dz and x̂ ----

// A mask chosen outside a loop: body(With<Mask::…>{}).
template <Mask value>
struct With {
  static constexpr Mask mask = value;
};
template <class Body>
OBN_INLINE void choose_mask(Mask mask, const Body& body) {
  switch (mask) {
    case Mask::output: return body(With<Mask::output>{});
    case Mask::input: return body(With<Mask::input>{});
    case Mask::none: return body(With<Mask::none>{});
  }
}

// dz and x̂ of some values of a run.
struct Point {
  F dz, xhat;
};
template <Mask mask>
struct Points {
  const float *dy, *y, *x;
  Standardize standardize;
  Same forward;  // of Mask::input

  [[gnu::always_inline]] Point at(size_t i, size_t n) const {
    // beyond the last value x̂ is nearly 0, not something large: dz, which is 0 there, shall stay that
    const F dy_here = load_part(dy + i, n), xhat = standardize(load_part(x + i, n, standardize.mean));
    if (mask == Mask::output) return {load_part(y + i, n) <= 0.0f ? F{} : dy_here, xhat};
    if (mask == Mask::input) return {forward.apply(xhat, i, n) <= 0.0f ? F{} : dy_here, xhat};
    return {dy_here, xhat};
  }
};

}  // namespace

}  // namespace obn::OBN_TARGET::normalization
