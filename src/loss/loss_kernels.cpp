// The loops, once per target. A loss of single values is a struct that gives value and slope of a vector; the loop over
// a run is written once and takes any of them. Letters as in loss.h.
#include <cstddef>
#include <cstdint>

#include "loss/loss.h"
#include "simd/math.h"

namespace obn::OBN_TARGET::loss {

using obn::loss::kShortRow;
using obn::loss::RowsRun;
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

// Calls body.at<half>(i, count) for all of [0, n): whole vectors, two by two, and a part at the end.
template <class Body>
OBN_INLINE void over_run(Body& body, size_t n) {
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    body.template at<0>(i, kLanes);
    body.template at<1>(i + kLanes, kLanes);
  }
  if (i + kLanes <= n) {
    body.template at<0>(i, kLanes);
    i += kLanes;
  }
  if (i < n) body.template at<1>(i, n - i);
}

// Lanes from n on become 0.
OBN_INLINE F first_lanes(F v, size_t n) { return iota() < static_cast<int32_t>(n) ? v : splat(0.0f); }

// Rows come from memory block by block; the block after the next is on its way while this one is computed (softmax of
// 4096 x 32000 values: 15 ms; with the next block on its way 22).
constexpr size_t kAhead = 2048;

// ---- losses of single values: f(x, l) and ∂f/∂x (docs/interface/loss.md 3) ----

struct Both {
  F loss, slope;
};

// 1 / v for 1 <= v <= 2, to a unit in the last place. A division takes as long as ten other operations.
OBN_INLINE F reciprocal(F v) {
#if defined(__AVX512F__)
  const F r = reinterpret_cast<F>(_mm512_rcp14_ps(reinterpret_cast<__m512>(v)));
  return fma(r, fnma(v, r, splat(1.0f)), r);
#else
  return 1.0f / v;
#endif
}

// log(1 + t) / t for 0 <= t <= 1, relative error 1.7e-7; a minimax fit like those of simd/math.h, but no division.
OBN_INLINE F log1p_over_t(F t) {
  return polynomial(t, {9.99999940e-1f, -4.99994934e-1f, 3.33190978e-1f, -2.48429820e-1f, 1.91060066e-1f,
                        -1.36632442e-1f, 7.82259405e-2f, -2.95052323e-2f, 5.23269270e-3f});
}

struct SigmoidCrossEntropy {
  F label_scale, label_shift;
  explicit SigmoidCrossEntropy(const Shape& s) : label_scale(splat(s.label_scale)), label_shift(splat(s.label_shift)) {}

  // With t = e^-|x|: max(x, 0) - x·l + log(1 + t), and σ(x) - l, where σ is 1 / (1 + t) or t / (1 + t).
  Both operator()(F x, F l) const {
    l = fma(l, label_scale, label_shift);
    const F t = exp_in_sum(-abs(x)), large = reciprocal(t + 1.0f);
    return {fma(t, log1p_over_t(t), fnma(x, l, max(splat(0.0f), x))), (x < 0.0f ? t * large : large) - l};
  }
};

// The same where the above is NaN: at infinite x the loss is infinite, but 0 where the label is the limit of σ.
struct SigmoidCrossEntropyFar {
  F label_scale, label_shift;
  const SigmoidCrossEntropy near;
  explicit SigmoidCrossEntropyFar(const Shape& s)
      : label_scale(splat(s.label_scale)), label_shift(splat(s.label_shift)), near(s) {}

  Both operator()(F x, F l) const {
    const Both both = near(x, l);
    l = fma(l, label_scale, label_shift);
    const F apart = x < 0.0f ? l : 1.0f - l, size = abs(x);
    return {size > __FLT_MAX__ ? (apart == 0.0f ? splat(0.0f) : apart * size) : both.loss, both.slope};
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
    return {c * fnma(0.5f, c, size), copysign(c, e)};
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
    return {fnma(1.0f - l, log_from_zero(q), -l * log_from_zero(p)), (p - l) / (p * q)};
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

  template <size_t half>
  [[gnu::always_inline]] void at(size_t i, size_t n) {
    const Both both = function(load_part(run.x + i, n), load_part(run.l + i, n));
    const F w = weights.at(i, n);
    if constexpr (keeps) {
      const F y = w * both.loss;
      store_part(run.y + i, y, n);
      if constexpr (sums) total[half] += y;  // is one of them NaN? Beyond n it is not
    } else if constexpr (sums) {
      const F added = fma(w, both.loss, total[half]);
      total[half] = n == kLanes ? added : (iota() < static_cast<int32_t>(n) ? added : total[half]);
    }
    if constexpr (slopes) store_part(run.dx + i, (factor * w) * both.slope, n);
  }
};

template <class Function, bool sums, bool keeps, bool slopes>
float value_run(const ValueRun& run) {
  ValueLoop<Function, sums, keeps, slopes> loop(run);
  over_run(loop, run.n);
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

// NaN may stand for infinite x, which is rare: then all is computed again, and dx, which was right, is left alone.
float sigmoid_values(const ValueRun& run) {
  ValueRun again = run;
  again.dx = nullptr;
  if (run.y) {
    const float total = run.dx ? value_run<SigmoidCrossEntropy, true, true, true>(run)
                               : value_run<SigmoidCrossEntropy, true, true, false>(run);
    if (total != total) value_run<SigmoidCrossEntropyFar, false, true, false>(again);
    return 0.0f;
  }
  const float total = values<SigmoidCrossEntropy>(run);
  return total == total || !run.sums ? total : value_run<SigmoidCrossEntropyFar, true, false, false>(again);
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

  template <size_t half>
  [[gnu::always_inline]] void at(size_t i, size_t n) {
    const F d = (n == kLanes ? load(run.x + i) : load_first(run.x + i, n, splat(kMinusInfinity))) - m;
    const F e = exp_in_sum(d);
    total[half] += e;
    prefetch(run.x + i + kAhead);
    if constexpr (labels) prefetch(run.l + i + kAhead);
    if constexpr (keeps) store_part(run.e + i, e, n);
    if constexpr (labels) {
      F l = fma(load_part(run.l + i, n), label_scale, label_shift);
      if (n != kLanes) l = first_lanes(l, n);
      const F wl = weights.at(i, n) * l;
      all[half] += wl;
      distance[half] -= l == 0.0f ? splat(0.0f) : wl * d;
    }
  }
};

template <bool labels, bool keeps>
SoftmaxSums softmax_run(const SoftmaxRun& run) {
  const float found = largest_of(run.x, run.n), largest = found < -__FLT_MAX__ ? -__FLT_MAX__ : found;
  SoftmaxLoop<labels, keeps> loop(run, largest);
  over_run(loop, run.n);
  return {largest, sum(loop.total[0] + loop.total[1]), labels ? sum(loop.all[0] + loop.all[1]) : 0.0f,
          labels ? sum(loop.distance[0] + loop.distance[1]) : 0.0f};
}

SoftmaxSums softmax(const SoftmaxRun& run) {
  if (run.l) return run.e ? softmax_run<true, true>(run) : softmax_run<true, false>(run);
  return run.e ? softmax_run<false, true>(run) : softmax_run<false, false>(run);
}

// ℓ = Σ w·l·(log Σ e - x)  =>  ∂ℓ/∂x = p·Σ w·l - w·l, p = e / Σ e: factors and sums are the caller's.
template <bool labels, bool exponentiates, bool categorical, bool streams>
struct SlopeLoop {
  const SlopeRun& run;
  const Weights weights;
  const F label_scale, label_shift, m, e_factor, l_factor;

  explicit SlopeLoop(const SlopeRun& run)
      : run(run), weights(run.w, run.w_moves), label_scale(splat(run.shape.label_scale)),
        label_shift(splat(run.shape.label_shift)), m(splat(run.largest)), e_factor(splat(run.e_factor)),
        l_factor(splat(run.l_factor)) {}

  template <size_t>
  [[gnu::always_inline]] void at(size_t i, size_t n) {
    F e = load_part(run.e + i, n);
    if constexpr (exponentiates) e = exp_in_sum(e - m);
    F slope = e * e_factor;
    if constexpr (labels && categorical) {
      const F l = load_part(run.l + i, n);
      slope = l != 0.0f ? weights.at(i, n) * (slope - l_factor) : slope;
    } else if constexpr (labels) {
      const F l = fma(load_part(run.l + i, n), label_scale, label_shift);
      slope = fnma(weights.at(i, n) * l, l_factor, slope);
    }
    if constexpr (streams) {
      stream(run.dx + i, slope);
    } else {
      store_part(run.dx + i, slope, n);
    }
  }
};

template <bool labels, bool exponentiates, bool categorical>
void slope_run(const SlopeRun& run) {
  if (run.streams) {
    SlopeLoop<labels, exponentiates, categorical, true> loop(run);
    for (size_t i = 0; i < run.n; i += kLanes) loop.template at<0>(i, kLanes);
  } else {
    SlopeLoop<labels, exponentiates, categorical, false> loop(run);
    over_run(loop, run.n);
  }
}

void slopes(const SlopeRun& run) {
  if (run.l) return run.exponentiates ? slope_run<true, true, false>(run) : slope_run<true, false, false>(run);
  return run.exponentiates ? slope_run<false, true, false>(run) : slope_run<false, false, false>(run);
}

void categorical_slopes(const SlopeRun& run) {
  if (!run.l) return slopes(run);
  if (run.exponentiates) return slope_run<true, true, true>(run);
  slope_run<true, false, true>(run);
}

size_t count_nonzero(const float* v, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) count += v[i] != 0.0f;
  return count;
}

// ℓ = share·(Σ w·l·log S + Σ w·l·(m - x)) of one row, without its logarithm.
struct RowParts {
  float total, labels, distance, share;
};

RowParts softmax_row(const RowsRun& run, size_t row) {
  const size_t n = run.n;
  const float *x = run.x + row * n, *l = run.l ? run.l + row * run.l_step : nullptr, *w = run.w + row * run.w_step;
  float e[kShortRow];
  const SoftmaxSums sums = softmax({x, l, w, run.w_moves, n, run.shape, run.dx ? e : nullptr});
  RowParts parts{sums.total, sums.labels, sums.distance, 1.0f};
  const size_t label = run.classes ? run.classes[row] : 0;
  const float label_weight = run.classes ? run.shape.label_scale * w[run.w_moves ? label : 0] : 0.0f;
  if (run.classes) {
    parts.labels += label_weight;
    parts.distance = fma(label_weight, sums.largest - x[label], parts.distance);
  } else if (run.is_categorical) {
    const size_t nonzero = count_nonzero(l, n);
    parts.share = nonzero ? 1.0f / static_cast<float>(nonzero) : 0.0f;
  }
  if (!run.dx) return parts;

  float factor = run.dy ? run.factor * run.dy[row] : run.factor;
  if (parts.share == 0.0f) factor = 0.0f;
  const SlopeRun slope{e, l, w, run.w_moves, n, run.shape, false, 0.0f,
                       (run.is_categorical ? factor : factor * parts.labels) / parts.total, factor * parts.share,
                       run.dx + row * n};
  if (!run.is_categorical) {
    slopes(slope);
    if (run.classes) slope.dx[label] = fnma(label_weight, factor, slope.dx[label]);
  } else {
    categorical_slopes(slope);
    if (run.classes) slope.dx[label] = label_weight * (slope.dx[label] - factor);
  }
  return parts;
}

// Lane i is the largest lane of v[i]. Destroys v.
OBN_INLINE F largest_each(F (&v)[kLanes]) {
#pragma GCC unroll 4
  for (size_t n = kLanes / 2; n > 0; n /= 2) {
#pragma GCC unroll 8
    for (size_t i = 0; i < n; ++i) {
      F even, odd;
      split_pairs(v[2 * i], v[2 * i + 1], &even, &odd);
      v[i] = max(even, odd);
    }
  }
  return v[0];
}

// kLanes rows that fit in a vector each, with one weight per row: sums of all rows are found together, four times as
// fast as one after the other.
template <bool labels>
void softmax_group(const RowsRun& run, size_t first) {
  const size_t n = run.n;
  const float *x = run.x + first * n, *l = run.l ? run.l + first * run.l_step : nullptr;
  const size_t* classes = run.classes ? run.classes + first : nullptr;
  const F rest = splat(kMinusInfinity), scale = splat(run.shape.label_scale), shift = splat(run.shape.label_shift);
  const F w = run.w_step ? load(run.w + first) : splat(*run.w);
  const auto row_of = [&](size_t k) { return n == kLanes ? load(x + k * n) : load_first(x + k * n, n, rest); };
  const auto label_of = [&](size_t k) { return first_lanes(fma(load_part(l + k * run.l_step, n), scale, shift), n); };
  F v[kLanes];
  float m[kLanes], e[kLanes * kLanes];

  for (size_t k = 0; k < kLanes; ++k) v[k] = row_of(k);
  const F largest = max(splat(-__FLT_MAX__), largest_each(v));
  store(m, largest);
  for (size_t k = 0; k < kLanes; ++k) {
    v[k] = exp_in_sum(row_of(k) - splat(m[k]));
    store(e + k * kLanes, v[k]);
  }
  const F total = sum_each(v);
  F all = splat(0.0f), distance = splat(0.0f);  // without weights
  if constexpr (labels) {
    for (size_t k = 0; k < kLanes; ++k) v[k] = label_of(k);
    all = sum_each(v);
    for (size_t k = 0; k < kLanes; ++k) {
      const F label = label_of(k);
      v[k] = label == 0.0f ? splat(0.0f) : label * (splat(m[k]) - row_of(k));
    }
    distance = sum_each(v);
  }
  if (classes) {
    F at{};
    for (size_t k = 0; k < kLanes; ++k) at[k] = x[k * n + classes[k]];
    all += scale;
    distance = fma(scale, largest - at, distance);
  }
  const F log_total = total > 0.0f ? log(total) : splat(__builtin_nanf(""));  // 0: all of x is -infinity
  store(run.y + first, w * fma(all, log_total, distance));
  if (!run.dx) return;

  float* dx = run.dx + first * n;
  float e_factor[kLanes], l_factor[kLanes];
  const F factor = run.dy ? w * run.factor * load(run.dy + first) : w * run.factor;
  store(e_factor, factor * all / total);
  store(l_factor, factor);
  const I lane = iota();
  for (size_t k = 0; k < kLanes; ++k) {
    F slope = load(e + k * kLanes) * splat(e_factor[k]);
    if constexpr (labels) slope = fnma(label_of(k), splat(l_factor[k]), slope);
    if (classes) {
      const I is_class = lane == static_cast<int32_t>(classes[k]);
      slope -= is_class ? scale * splat(l_factor[k]) : splat(0.0f);
    }
    store_part(dx + k * n, slope, n);
  }
}

void softmax_rows(const RowsRun& run) {
  size_t begin = 0;
  if (run.n <= kLanes && !run.w_moves && !run.is_categorical) {
    for (; begin + kLanes <= run.rows; begin += kLanes) {
      if (run.l) {
        softmax_group<true>(run, begin);
      } else {
        softmax_group<false>(run, begin);
      }
    }
  }
  for (size_t first = begin; first < run.rows; first += kLanes) {
    const size_t count = run.rows - first < kLanes ? run.rows - first : kLanes;
    F total = splat(1.0f), labels = splat(0.0f), distance = splat(0.0f), share = splat(0.0f);
    for (size_t k = 0; k < count; ++k) {
      const RowParts parts = softmax_row(run, first + k);
      total[k] = parts.total;
      labels[k] = parts.labels;
      distance[k] = parts.distance;
      share[k] = parts.share;
    }
    const F log_total = total > 0.0f ? log(total) : splat(__builtin_nanf(""));  // 0: all of x is -infinity
    store_part(run.y + first, share * fma(labels, log_total, distance), count);
  }
}

struct ProductLoop {
  const float *x, *l;
  const Weights weights;
  F total[2] = {splat(0.0f), splat(0.0f)};

  ProductLoop(const float* x, const float* l, const float* w, bool w_moves) : x(x), l(l), weights(w, w_moves) {}

  template <size_t half>
  [[gnu::always_inline]] void at(size_t i, size_t n) {
    total[half] = fma(weights.at(i, n) * load_part(l + i, n), load_part(x + i, n), total[half]);
  }
};

float product(const float* x, const float* l, const float* w, bool w_moves, size_t n) {
  ProductLoop loop(x, l, w, w_moves);
  over_run(loop, n);
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

void stream_lines(const float* from, float* to, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) stream(to + i, load(from + i));
}

void fence_all() { fence(); }

constexpr obn::loss::Kernels table() {
  obn::loss::Kernels t{};
  t.values[BNNSLossFunctionSigmoidCrossEntropy] = sigmoid_values;
  t.values[BNNSLossFunctionMeanSquareError] = values<MeanSquareError>;
  t.values[BNNSLossFunctionHuber] = values<Huber>;
  t.values[BNNSLossFunctionLog] = values<Log>;
  t.values[BNNSLossFunctionHinge] = values<Hinge>;
  t.values[BNNSLossFunctionMeanAbsoluteError] = values<MeanAbsoluteError>;
  t.softmax = softmax;
  t.slopes = slopes;
  t.categorical_slopes = categorical_slopes;
  t.softmax_rows = softmax_rows;
  t.product = product;
  t.sum = sum_of;
  t.count_nonzero = count_nonzero;
  t.stream = stream_lines;
  t.fence = fence_all;
  return t;
}

}  // namespace

}  // namespace obn::OBN_TARGET::loss

constinit const obn::loss::Kernels obn::loss::Compiled::OBN_TARGET = obn::OBN_TARGET::loss::table();
