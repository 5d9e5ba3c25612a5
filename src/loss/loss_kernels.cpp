// The loops, once per target. A loss of single values is a struct that gives value and slope of a vector; the loop over
// a run is written once and takes any of them. Letters as in loss.h.
#include "loss/loss.h"
#include "simd/math.h"

namespace obn::OBN_TARGET::loss {

extern const obn::loss::Kernels kernels;

using obn::loss::Shape;
using obn::loss::SlopeRun;
using obn::loss::SoftmaxRun;
using obn::loss::SoftmaxSums;
using obn::loss::ValueRun;

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The first n values; n == kLanes is the whole vector.
OBN_INLINE F load_part(const float* p, size_t n) { return n == kLanes ? load(p) : load_first(p, n); }
OBN_INLINE void store_part(float* p, F v, size_t n) {
  if (n == kLanes) {
    store(p, v);
  } else {
    store_first(p, v, n);
  }
}

// The weights of a run: one for all, or one per value.
struct Weights {
  const float* w;
  bool moves;
  F all;

  Weights(const float* w, bool moves) : w(w), moves(moves), all(splat(moves ? 0.0f : *w)) {}
  [[gnu::always_inline]] F at(size_t i, size_t n) const { return moves ? load_part(w + i, n) : all; }
};

// Values before the first one of p that a vector aligned to itself begins with, at most n.
size_t values_to_vector(const float* p, size_t n) {
  const size_t bytes = (sizeof(F) - reinterpret_cast<uintptr_t>(p) % sizeof(F)) % sizeof(F);
  return bytes / sizeof(float) < n ? bytes / sizeof(float) : n;
}

// Calls body.at<streams>(i, count) for all of [0, n): whole vectors, two by two, and parts at the ends. Streamed
// vectors of dx are aligned to themselves.
template <bool streams, class Body>
OBN_INLINE void over_run(Body& body, const float* dx, size_t n) {
  size_t i = 0;
  if constexpr (streams) {
    i = values_to_vector(dx, n);
    if (i > 0) body.template at<false, 0>(0, i);
  }
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    body.template at<streams, 0>(i, kLanes);
    body.template at<streams, 1>(i + kLanes, kLanes);
  }
  if (i + kLanes <= n) {
    body.template at<streams, 0>(i, kLanes);
    i += kLanes;
  }
  if (i < n) body.template at<false, 1>(i, n - i);
}

template <bool streams>
OBN_INLINE void put(float* p, F v, size_t n) {
  if constexpr (streams) {
    stream(p, v);
  } else {
    store_part(p, v, n);
  }
}

// ---- losses of single values: f(x, l) and ∂f/∂x (spec loss.md 3) ----

struct Both {
  F loss, slope;
};

struct SigmoidCrossEntropy {
  F label_scale, label_shift;
  explicit SigmoidCrossEntropy(const Shape& s) : label_scale(splat(s.label_scale)), label_shift(splat(s.label_shift)) {}

  // With t = e^-|x|: max(x, 0) - x·l + log(1 + t), where log(1 + t) = 2·atanh(t / (2 + t)), and σ(x) - l, where σ is
  // 1 / (1 + t) or t / (1 + t). One division serves both.
  Both operator()(F x, F l) const {
    l = l * label_scale + label_shift;
    const F t = exp_of_negative(-abs(x));
    const F one = t + 1.0f, two = t + 2.0f;
    const F r = 1.0f / (one * two);
    const F large = two * r;
    return {(max(splat(0.0f), x) - x * l) + twice_atanh(t * (one * r)), (x < 0.0f ? t * large : large) - l};
  }
};

struct MeanSquareError {
  explicit MeanSquareError(const Shape&) {}
  Both operator()(F x, F l) const {
    const F e = x - l;
    return {e * e, e + e};
  }
};

struct Huber {
  F delta;
  explicit Huber(const Shape& s) : delta(splat(s.delta)) {}
  // With c = min(|e|, δ): c·(|e| - c/2), which is e²/2 up to δ and δ·(|e| - δ/2) beyond; the slope is ±c.
  Both operator()(F x, F l) const {
    const F e = x - l, size = abs(e), c = min(delta, size);
    return {c * (size - 0.5f * c), copysign(c, e)};
  }
};

struct Log {
  explicit Log(const Shape&) {}
  static F log_from_zero(F v) {  // and NaN below it
    const F outside = v == 0.0f ? splat(kMinusInfinity) : splat(__builtin_nanf(""));
    return v > 0.0f ? log(v) : outside;
  }
  Both operator()(F x, F l) const {
    const F p = x + obn::loss::kLogEpsilon, q = (1.0f - x) + obn::loss::kLogEpsilon;
    return {-l * log_from_zero(p) - (1.0f - l) * log_from_zero(q), (p - l) / (p * q)};
  }
};

struct Hinge {
  explicit Hinge(const Shape&) {}
  Both operator()(F x, F l) const {
    const F t = l + (l - 1.0f), tx = t * x;
    return {max(splat(0.0f), 1.0f - tx), tx <= 1.0f ? -t : splat(0.0f)};
  }
};

struct MeanAbsoluteError {
  explicit MeanAbsoluteError(const Shape&) {}
  Both operator()(F x, F l) const { return {abs(x - l), x >= l ? splat(1.0f) : splat(-1.0f)}; }
};

template <class Function, bool sums, bool keeps, bool slopes>
struct ValueLoop {
  const ValueRun& run;
  const Function function;
  const Weights weights;
  const F factor;
  F total[2] = {splat(0.0f), splat(0.0f)};

  explicit ValueLoop(const ValueRun& run)
      : run(run), function(run.shape), weights(run.w, run.w_moves), factor(splat(run.factor)) {}

  template <bool streams, size_t half>
  [[gnu::always_inline]] void at(size_t i, size_t n) {
    const Both both = function(load_part(run.x + i, n), load_part(run.l + i, n));
    const F w = weights.at(i, n);
    if constexpr (sums || keeps) {
      const F y = w * both.loss;
      if constexpr (keeps) store_part(run.y + i, y, n);
      if constexpr (sums) total[half] += n == kLanes ? y : first_lanes(y, n);
    }
    if constexpr (slopes) put<streams>(run.dx + i, factor * (w * both.slope), n);
  }

  // Lanes from n on become 0: the loss of x = l = 0 need not be.
  [[gnu::always_inline]] static F first_lanes(F v, size_t n) {
    return iota() < static_cast<int32_t>(n) ? v : splat(0.0f);
  }
};

template <class Function, bool sums, bool keeps, bool slopes>
float value_run(const ValueRun& run) {
  ValueLoop<Function, sums, keeps, slopes> loop(run);
  if (slopes && run.streams) {
    over_run<slopes>(loop, run.dx, run.n);
  } else {
    over_run<false>(loop, nullptr, run.n);
  }
  return sums ? sum(loop.total[0] + loop.total[1]) : 0.0f;
}

template <class Function>
float values(const ValueRun& run) {
  if (run.y) {
    if (run.dx) value_run<Function, false, true, true>(run);
    if (!run.dx) value_run<Function, false, true, false>(run);
    return 0.0f;
  }
  if (!run.sums) return value_run<Function, false, false, true>(run);
  return run.dx ? value_run<Function, true, false, true>(run) : value_run<Function, true, false, false>(run);
}

// ---- rows ----

float largest_of(const float* x, size_t n) {
  F m[4] = {splat(kMinusInfinity), splat(kMinusInfinity), splat(kMinusInfinity), splat(kMinusInfinity)};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (size_t k = 0; k < 4; ++k) m[k] = max(m[k], load(x + i + k * kLanes));
  for (; i + kLanes <= n; i += kLanes) m[0] = max(m[0], load(x + i));
  if (i < n) m[1] = max(m[1], load_first(x + i, n - i, splat(kMinusInfinity)));
  return largest(max(max(m[0], m[1]), max(m[2], m[3])));
}

template <bool labels, bool keeps>
struct SoftmaxLoop {
  const SoftmaxRun& run;
  const Weights weights;
  const F label_scale, label_shift, m;
  F total[2] = {splat(0.0f), splat(0.0f)}, all[2] = {splat(0.0f), splat(0.0f)},
    distance[2] = {splat(0.0f), splat(0.0f)};

  SoftmaxLoop(const SoftmaxRun& run, float largest)
      : run(run), weights(run.w, run.w_moves), label_scale(splat(run.shape.label_scale)),
        label_shift(splat(run.shape.label_shift)), m(splat(largest)) {}

  template <bool streams, size_t half>
  [[gnu::always_inline]] void at(size_t i, size_t n) {
    const F d = (n == kLanes ? load(run.x + i) : load_first(run.x + i, n, splat(kMinusInfinity))) - m;
    const F e = exp_in_sum(d);
    total[half] += e;
    if constexpr (keeps) store_part(run.e + i, e, n);
    if constexpr (labels) {
      F l = load_part(run.l + i, n) * label_scale + label_shift;
      if (n != kLanes) l = iota() < static_cast<int32_t>(n) ? l : splat(0.0f);
      const F wl = weights.at(i, n) * l;
      all[half] += wl;
      distance[half] -= l == 0.0f ? splat(0.0f) : wl * d;
    }
  }
};

template <bool labels, bool keeps>
SoftmaxSums softmax_run(const SoftmaxRun& run) {
  const float largest = __builtin_fmaxf(largest_of(run.x, run.n), -__FLT_MAX__);
  SoftmaxLoop<labels, keeps> loop(run, largest);
  over_run<false>(loop, nullptr, run.n);
  return {largest, sum(loop.total[0] + loop.total[1]), labels ? sum(loop.all[0] + loop.all[1]) : 0.0f,
          labels ? sum(loop.distance[0] + loop.distance[1]) : 0.0f};
}

SoftmaxSums softmax(const SoftmaxRun& run) {
  if (run.l) return run.e ? softmax_run<true, true>(run) : softmax_run<true, false>(run);
  return run.e ? softmax_run<false, true>(run) : softmax_run<false, false>(run);
}

// ℓ = Σ w·l·(log Σ e - x)  =>  ∂ℓ/∂x = p·Σ w·l - w·l, p = e / Σ e: factors and sums are the caller's.
template <bool labels, bool exponentiates, bool categorical>
struct SlopeLoop {
  const SlopeRun& run;
  const Weights weights;
  const F label_scale, label_shift, m, e_factor, l_factor;

  explicit SlopeLoop(const SlopeRun& run)
      : run(run), weights(run.w, run.w_moves), label_scale(splat(run.shape.label_scale)),
        label_shift(splat(run.shape.label_shift)), m(splat(run.largest)), e_factor(splat(run.e_factor)),
        l_factor(splat(run.l_factor)) {}

  template <bool streams, size_t>
  [[gnu::always_inline]] void at(size_t i, size_t n) {
    F e = load_part(run.e + i, n);
    if constexpr (exponentiates) e = exp_in_sum(e - m);
    F slope = e * e_factor;
    if constexpr (labels && categorical) {
      const F l = load_part(run.l + i, n);
      slope = l != 0.0f ? weights.at(i, n) * (slope - l_factor) : slope;
    } else if constexpr (labels) {
      const F l = load_part(run.l + i, n) * label_scale + label_shift;
      slope -= weights.at(i, n) * l * l_factor;
    }
    put<streams>(run.dx + i, slope, n);
  }
};

template <bool labels, bool exponentiates, bool categorical>
void slope_run(const SlopeRun& run) {
  SlopeLoop<labels, exponentiates, categorical> loop(run);
  if (run.streams) {
    over_run<true>(loop, run.dx, run.n);
  } else {
    over_run<false>(loop, run.dx, run.n);
  }
}

void slopes(const SlopeRun& run) {
  if (run.l) return run.exponentiates ? slope_run<true, true, false>(run) : slope_run<true, false, false>(run);
  return run.exponentiates ? slope_run<false, true, false>(run) : slope_run<false, false, false>(run);
}

void categorical_slopes(const SlopeRun& run) {
  if (run.exponentiates) return slope_run<true, true, true>(run);
  slope_run<true, false, true>(run);
}

struct ProductLoop {
  const float *x, *l;
  const Weights weights;
  F total[2] = {splat(0.0f), splat(0.0f)};

  ProductLoop(const float* x, const float* l, const float* w, bool w_moves) : x(x), l(l), weights(w, w_moves) {}

  template <bool streams, size_t half>
  [[gnu::always_inline]] void at(size_t i, size_t n) {
    total[half] += weights.at(i, n) * load_part(l + i, n) * load_part(x + i, n);
  }
};

float product(const float* x, const float* l, const float* w, bool w_moves, size_t n) {
  ProductLoop loop(x, l, w, w_moves);
  over_run<false>(loop, nullptr, n);
  return sum(loop.total[0] + loop.total[1]);
}

float sum_of(const float* v, size_t n) {
  F total[2] = {splat(0.0f), splat(0.0f)};
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    total[0] += load(v + i);
    total[1] += load(v + i + kLanes);
  }
  if (i + kLanes <= n) {
    total[0] += load(v + i);
    i += kLanes;
  }
  if (i < n) total[1] += load_first(v + i, n - i);
  return sum(total[0] + total[1]);
}

size_t count_nonzero(const float* v, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) count += v[i] != 0.0f;
  return count;
}

void fence_all() { fence(); }

constexpr obn::loss::Kernels table() {
  obn::loss::Kernels t{};
  t.values[BNNSLossFunctionSigmoidCrossEntropy] = values<SigmoidCrossEntropy>;
  t.values[BNNSLossFunctionMeanSquareError] = values<MeanSquareError>;
  t.values[BNNSLossFunctionHuber] = values<Huber>;
  t.values[BNNSLossFunctionLog] = values<Log>;
  t.values[BNNSLossFunctionHinge] = values<Hinge>;
  t.values[BNNSLossFunctionMeanAbsoluteError] = values<MeanAbsoluteError>;
  t.softmax = softmax;
  t.slopes = slopes;
  t.categorical_slopes = categorical_slopes;
  t.product = product;
  t.sum = sum_of;
  t.count_nonzero = count_nonzero;
  t.fence = fence_all;
  return t;
}

}  // namespace

constinit const obn::loss::Kernels kernels = table();

}  // namespace obn::OBN_TARGET::loss
