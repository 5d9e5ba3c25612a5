// The loops, once per target; letters as in optimizer.h. A rule is a struct: how many accumulators it has, and what it
// makes of one vector of each.
#include <cstddef>
#include <cstdint>

#include "optimizer/optimizer.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::optimizer {

using obn::optimizer::kMaxRoles;
using obn::optimizer::kRules;
using obn::optimizer::Numbers;
using obn::optimizer::Penalty;
using obn::optimizer::Rule;
using obn::optimizer::Run;

namespace {

// a·x + b·y
OBN_INLINE F blend(float a, F x, float b, F y) { return fma(a, x, splat(b) * y); }

// beta2·mean + rest2·g², without the square itself: it would be infinite beyond 1.8e19, where the mean need not be.
OBN_INLINE F mean_square(const Numbers& c, F mean, F g) { return fma(c.beta2, mean, splat(c.rest2) * g * g); }

// g = scale·clamp(g) + penalty(w)
OBN_INLINE F penalized(const Numbers& c, F w, F g) {
  g = max(splat(c.low), min(splat(c.high), g)) * splat(c.scale);
  if (c.penalty == Penalty::l2) return fma(c.penalty_scale, w, g);
  if (c.penalty == Penalty::l1) {
    const F step = splat(c.penalty_scale);
    return w > 0.0f ? g + step : (w < 0.0f ? g - step : g);
  }
  return g;
}

struct Sgd {
  static constexpr size_t kRoles = 0;
  OBN_INLINE F step(const Numbers& c, F w, F g, F*) { return fma(-c.rate, g, w); }
};

template <bool nesterov>
struct Momentum0 {
  static constexpr size_t kRoles = 1;
  OBN_INLINE F step(const Numbers& c, F w, F g, F* a) {
    const F before = a[0];
    a[0] = blend(c.momentum, before, -c.rate, g);
    w = w + a[0];
    return nesterov ? fma(c.momentum, a[0] - before, w) : w;
  }
};

template <bool nesterov>
struct Momentum1 {
  static constexpr size_t kRoles = 1;
  OBN_INLINE F step(const Numbers& c, F w, F g, F* a) {
    const F m = splat(c.momentum);
    a[0] = fma(m, a[0], g);
    return fma(-c.rate, nesterov ? fma(m, a[0], g) : a[0], w);
  }
};

struct Momentum2 {
  static constexpr size_t kRoles = 1;
  OBN_INLINE F step(const Numbers& c, F w, F g, F* a) {
    a[0] = blend(c.momentum, a[0], c.rate, g);
    return w - a[0];
  }
};

template <bool amsgrad>
struct Adam {
  static constexpr size_t kRoles = amsgrad ? 3 : 2;
  OBN_INLINE F step(const Numbers& c, F w, F g, F* a) {
    a[0] = blend(c.beta1, a[0], c.rest1, g);
    a[1] = mean_square(c, a[1], g);
    F square = a[1];
    if constexpr (amsgrad) square = a[2] = max(a[2], a[1]);
    return fma(c.keep, w, splat(-c.rate) * a[0] / (sqrt(square) + splat(c.epsilon)));
  }
};

template <bool centered, bool momentum>
struct RmsProp {
  static constexpr size_t kRoles = 1 + centered + momentum;
  OBN_INLINE F step(const Numbers& c, F w, F g, F* a) {
    a[0] = mean_square(c, a[0], g);
    F square = a[0];
    if constexpr (centered) {
      a[1] = blend(c.beta2, a[1], c.rest2, g);
      square = max(F{}, fnma(a[1], a[1], square));
    }
    const F change = splat(-c.rate) * g / (sqrt(square) + splat(c.epsilon));
    if constexpr (momentum) {
      F& last = a[kRoles - 1];
      last = fma(c.momentum, last, change);
      return w + last;
    }
    return w + change;
  }
};

// One vector at i.
template <class Rule>
OBN_INLINE void step_vector(const Numbers& c, float* w, const float* g, float* const* a, size_t i) {
  const F old = load(w + i);
  F state[kMaxRoles] = {};
#pragma GCC unroll 3
  for (size_t k = 0; k < Rule::kRoles; ++k) state[k] = load(a[k] + i);
  store(w + i, Rule::step(c, old, penalized(c, old, load(g + i)), state));
#pragma GCC unroll 3
  for (size_t k = 0; k < Rule::kRoles; ++k) store(a[k] + i, state[k]);
}

// The n < kLanes values at i.
template <class Rule>
OBN_INLINE void step_first(const Numbers& c, float* w, const float* g, float* const* a, size_t i, size_t n) {
  const F old = load_first(w + i, n);
  F state[kMaxRoles] = {};
#pragma GCC unroll 3
  for (size_t k = 0; k < Rule::kRoles; ++k) state[k] = load_first(a[k] + i, n);
  store_first(w + i, Rule::step(c, old, penalized(c, old, load_first(g + i, n)), state), n);
#pragma GCC unroll 3
  for (size_t k = 0; k < Rule::kRoles; ++k) store_first(a[k] + i, state[k], n);
}

// Vectors begin where those of w lie on whole lines; arrays of one allocator usually agree on that (a million values at
// 16 bytes past a line: a quarter of the time).
template <class Rule>
void run(const Numbers& numbers, float* w, const float* g, float* const* a, size_t n) {
  const Numbers c = numbers;  // nobody else writes to this one
  float* roles[kMaxRoles] = {};
  for (size_t k = 0; k < Rule::kRoles; ++k) roles[k] = a[k];
  size_t i = (kLanes - reinterpret_cast<uintptr_t>(w) / sizeof(float) % kLanes) % kLanes;
  i = i < n ? i : n % kLanes;
  if (i > 0) step_first<Rule>(c, w, g, roles, 0, i);
  for (; i + kLanes <= n; i += kLanes) step_vector<Rule>(c, w, g, roles, i);
  if (i < n) step_first<Rule>(c, w, g, roles, i, n - i);
}

constexpr obn::optimizer::Kernels table() {
  obn::optimizer::Kernels t{};
  const auto list = [&](Rule rule, Run function) { t.run[static_cast<size_t>(rule)] = function; };
  list(Rule::sgd, run<Sgd>);
  list(Rule::sgd_momentum_0, run<Momentum0<false>>);
  list(Rule::sgd_momentum_1, run<Momentum1<false>>);
  list(Rule::sgd_momentum_2, run<Momentum2>);
  list(Rule::sgd_nesterov_0, run<Momentum0<true>>);
  list(Rule::sgd_nesterov_1, run<Momentum1<true>>);
  list(Rule::adam, run<Adam<false>>);
  list(Rule::amsgrad, run<Adam<true>>);
  list(Rule::rmsprop, run<RmsProp<false, false>>);
  list(Rule::rmsprop_momentum, run<RmsProp<false, true>>);
  list(Rule::rmsprop_centered, run<RmsProp<true, false>>);
  list(Rule::rmsprop_centered_momentum, run<RmsProp<true, true>>);
  return t;
}

}  // namespace

}  // namespace obn::OBN_TARGET::optimizer

constinit const obn::optimizer::Kernels obn::optimizer::Compiled::OBN_TARGET = obn::OBN_TARGET::optimizer::table();
