// The loops, once per target. Letters and formulas as in normalization.h; all values are packed float32.
#include "normalization/normalization.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::normalization {

using obn::normalization::add;
using obn::normalization::ColumnGradient;
using obn::normalization::Columns;
using obn::normalization::Forward;
using obn::normalization::Gradient;
using obn::normalization::kColumns;
using obn::normalization::kRowsTogether;
using obn::normalization::Mask;
using obn::normalization::Moments;
using obn::normalization::RowForward;
using obn::normalization::RowSums;
using obn::normalization::RunMoments;
using obn::normalization::Runs;
using obn::normalization::Standard;
using obn::normalization::standard_of;
using obn::normalization::Sums;

extern const obn::normalization::Kernels kernels;

namespace {

constexpr size_t kBlock = 2048;  // values that are summed in float before they go into a double; they stay in L1
constexpr size_t kBlockRows = 64;

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

// body(i, m) for i from 0 on: first `head` < kLanes values, then whole vectors, then the rest.
template <class Body>
OBN_INLINE void along(size_t n, size_t head, const Body& body) {
  size_t i = 0;
  if (head > 0) {
    i = head < n ? head : n;
    body(0, i);
  }
#pragma GCC unroll 4
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

bool is_aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(F) == 0; }

// Values before the first one at an aligned address.
size_t head_of(const float* p) {
  return (sizeof(F) - reinterpret_cast<uintptr_t>(p) % sizeof(F)) % sizeof(F) / sizeof(float);
}

// ---- statistics ----

// Σ x of a run
OBN_INLINE F run_sum(const float* x, size_t n) {
  F total[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (size_t j = 0; j < 4; ++j) total[j] += load(x + i + j * kLanes);
  for (; i + kLanes <= n; i += kLanes) total[0] += load(x + i);
  if (i < n) total[1] += load_first(x + i, n - i);
  return (total[0] + total[1]) + (total[2] + total[3]);
}

// Σ (x - about) and Σ (x - about)² of a run
struct Spread {
  F first, second;
};
OBN_INLINE Spread run_spread(const float* x, size_t n, F about) {
  F first[4] = {}, second[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (size_t j = 0; j < 4; ++j) {
      const F d = load(x + i + j * kLanes) - about;
      first[j] += d;
      second[j] += d * d;
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    const F d = load(x + i) - about;
    first[0] += d;
    second[0] += d * d;
  }
  if (i < n) {
    const F d = load_first(x + i, n - i, about) - about;
    first[1] += d;
    second[1] += d * d;
  }
  return {(first[0] + first[1]) + (first[2] + first[3]), (second[0] + second[1]) + (second[2] + second[3])};
}

// What the second pass says about n values, whose mean is nearly `about`.
OBN_INLINE Moments moments_of(double n, double inverse, float about, float first, float second) {
  const double off = static_cast<double>(first);
  const double squares = static_cast<double>(second) - off * off * inverse;
  return {n, static_cast<double>(about) + off * inverse, squares < 0.0 ? 0.0 : squares};
}

// One number out of all lanes, neighbours first: the sum that sum_each gives.
OBN_INLINE float pairwise_sum(F v) {
#pragma GCC unroll 4
  for (size_t n = kLanes; n > 1; n /= 2) {
    F even, odd;
    split_pairs(v, v, &even, &odd);
    v = even + odd;
  }
  return v[0];
}

// Moments of up to kBlock values, two passes: the second one corrects the rounding of the first mean.
Moments block_moments(const float* x, size_t length) {
  const double n = static_cast<double>(length), inverse = 1.0 / n;
  const float about = pairwise_sum(run_sum(x, length)) * static_cast<float>(inverse);
  const Spread spread = run_spread(x, length, splat(about));
  return moments_of(n, inverse, about, pairwise_sum(spread.first), pairwise_sum(spread.second));
}

// The same of several blocks, one per lane where all lanes are added up.
void some_block_moments(const Runs& x, size_t count, size_t length, RunMoments* moments) {
  const double n = static_cast<double>(length), inverse = 1.0 / n;
  F first[kLanes] = {}, second[kLanes] = {};
  for (size_t k = 0; k < count; ++k) first[k] = run_sum(x.data + k * x.step, length);
  const F about = sum_each(first) * splat(static_cast<float>(inverse));
  for (size_t k = 0; k < count; ++k) {
    const Spread spread = run_spread(x.data + k * x.step, length, splat(about[k]));
    first[k] = spread.first;
    second[k] = spread.second;
  }
  const F off = sum_each(first), squares = sum_each(second);
  for (size_t k = 0; k < count; ++k) {
    const Moments m = moments_of(n, inverse, about[k], off[k], squares[k]);
    moments[k] = {m.mean, m.squares};
  }
}

// Blocks one after the other.
Moments long_moments(const float* x, size_t length) {
  Moments all;
  for (size_t i = 0; i < length; i += kBlock)
    add(block_moments(x + i, i + kBlock < length ? kBlock : length - i), &all);
  return all;
}

void run_moments(const Runs& x, size_t count, size_t length, RunMoments* moments) {
  size_t k = 0;
  if (length <= kBlock / kLanes) {  // so short that a few of them stay in L1
    for (; k + 1 < count; k += kLanes)
      some_block_moments({x.data + k * x.step, x.step}, k + kLanes < count ? kLanes : count - k, length, moments + k);
  }
  for (; k < count; ++k) {
    const Moments m = long_moments(x.data + k * x.step, length);
    moments[k] = {m.mean, m.squares};
  }
}

// ---- forward: y = max(low, γ·x̂ + β) ----

// γ and β of a run: the same for all its values, along it, or 1 and 0.
struct Same {
  F gamma, beta;
  F apply(F xhat, size_t, size_t) const { return gamma * xhat + beta; }
};
struct Each {
  const float *gamma, *beta;
  F apply(F xhat, size_t i, size_t n) const { return load_part(gamma + i, n) * xhat + load_part(beta + i, n); }
};
struct Plain {
  F apply(F xhat, size_t, size_t) const { return xhat; }
};

// x̂ of a value; forward and backward share it, so that both see the same bits.
struct Standardize {
  F mean, r, rest;

  explicit Standardize(const Standard& s) : mean(splat(s.mean)), r(splat(s.r)), rest(splat(s.rest)) {}
  Standardize(F mean, F r, F rest) : mean(mean), r(r), rest(rest) {}
  F operator()(F x) const { return (x - mean) * r + rest; }
};

template <bool copies, bool streams_y, bool streams_copy, class Parameters>
OBN_INLINE void forward_run(const float* x, float* y, float* copy, size_t length, size_t head, const Standard& standard,
                            float low, size_t ahead, const Parameters& parameters) {
  const Standardize standardize(standard);
  const F least = splat(low);
  along(length, head, [&](size_t i, size_t n) __attribute__((always_inline)) {
    if (ahead > 0) prefetch(x + i + ahead);
    const F v = load_part(x + i, n);
    if (copies) put<streams_copy>(copy + i, v, n);
    put<streams_y>(y + i, max(least, parameters.apply(standardize(v), i, n)), n);
  });
}

// Job is Forward or RowForward.
template <class Job, class Parameters>
OBN_INLINE void forward_any(const Job& job, const float* x, float* y, float* copy, const Standard& standard,
                            const Parameters& parameters) {
  const size_t n = job.length;
  if (!job.stream_y && !job.stream_copy) {
    choose(copy != nullptr, [&](auto copies) {
      forward_run<decltype(copies)::yes, false, false>(x, y, copy, n, 0, standard, job.low, job.ahead, parameters);
    });
    return;
  }
  const size_t head = job.stream_y ? head_of(y) : copy ? head_of(copy) : 0;
  choose(job.stream_y, [&](auto past_y) {
    constexpr bool streams_y = decltype(past_y)::yes;
    if (!copy) {
      forward_run<false, streams_y, false>(x, y, copy, n, head, standard, job.low, job.ahead, parameters);
    } else if (job.stream_copy && is_aligned(copy + head)) {
      forward_run<true, streams_y, true>(x, y, copy, n, head, standard, job.low, job.ahead, parameters);
    } else {
      forward_run<true, streams_y, false>(x, y, copy, n, head, standard, job.low, job.ahead, parameters);
    }
  });
}

void channel_forward(const Forward& job) {
  const Same parameters = {splat(*job.gamma), splat(*job.beta)};
  for (size_t k = 0; k < job.count; ++k)
    forward_any(job, job.x.data + k * job.x.step, job.y.data + k * job.y.step,
                job.copy.data ? job.copy.data + k * job.copy.step : nullptr, job.standard, parameters);
  if (job.stream_y || job.stream_copy) fence();
}

// Statistics of some rows at a time: the ends of their sums, which are long chains of operations, then overlap.
void row_standards(const RowForward& job, Standard* standard) {
  const size_t n = job.length;
  const double count = static_cast<double>(n), inverse = 1.0 / count;
  if (n > kBlock) {
    for (size_t k = 0; k < job.rows; ++k) {
      const Moments m = long_moments(job.x[k], n);
      standard[k] = standard_of(m.mean, m.squares * inverse, job.epsilon);
    }
    return;
  }
  float about[kRowsTogether];
  Moments m[kRowsTogether];
  for (size_t k = 0; k < job.rows; ++k) about[k] = sum(run_sum(job.x[k], n)) * static_cast<float>(inverse);
  for (size_t k = 0; k < job.rows; ++k) {
    const Spread spread = run_spread(job.x[k], n, splat(about[k]));
    m[k] = moments_of(count, inverse, about[k], sum(spread.first), sum(spread.second));
  }
  for (size_t k = 0; k < job.rows; ++k) standard[k] = standard_of(m[k].mean, m[k].squares * inverse, job.epsilon);
}

void row_forward(RowForward* job) {
  row_standards(*job, job->standard);
  for (size_t k = 0; k < job->rows; ++k) {
    if (job->gamma) {
      forward_any(*job, job->x[k], job->y[k], job->copy[k], job->standard[k], Each{job->gamma, job->beta});
    } else {
      forward_any(*job, job->x[k], job->y[k], job->copy[k], job->standard[k], Plain{});
    }
  }
  if (job->stream_y || job->stream_copy) fence();
}

// ---- backward ----

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

  Point at(size_t i, size_t n) const {
    // beyond the last value x̂ is nearly 0, not something large: dz, which is 0 there, shall stay that
    const F dy_here = load_part(dy + i, n), xhat = standardize(load_part(x + i, n, standardize.mean));
    if (mask == Mask::output) return {load_part(y + i, n) > 0.0f ? dy_here : F{}, xhat};
    if (mask == Mask::input) return {forward.apply(xhat, i, n) > 0.0f ? dy_here : F{}, xhat};
    return {dy_here, xhat};
  }
};
template <Mask mask>
OBN_INLINE Points<mask> points_of(const Gradient& job, size_t k, size_t first) {
  return {job.dy.data + k * job.dy.step + first,
          mask == Mask::output ? job.y.data + k * job.y.step + first : nullptr,
          job.x.data + k * job.x.step + first,
          Standardize(job.standard),
          {splat(job.mask_gamma), splat(job.mask_beta)}};
}

// Σ dz and Σ dz·x̂ of n values.
template <Mask mask>
OBN_INLINE void add_sums(const Points<mask>& points, size_t n, F* first, F* second) {
  const auto add_to = [&](size_t j, const Point& p) __attribute__((always_inline)) {
    first[j] += p.dz;
    second[j] += p.dz * p.xhat;
  };
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (size_t j = 0; j < 4; ++j) add_to(j, points.at(i + j * kLanes, kLanes));
  for (; i + kLanes <= n; i += kLanes) add_to(0, points.at(i, kLanes));
  if (i < n) add_to(1, points.at(i, n - i));
}

template <Mask mask>
OBN_INLINE Sums sums_of(const Gradient& job) {
  Sums all;
  const size_t part = job.length < kBlock ? job.length : kBlock;
  const size_t together = kBlock / part;
  for (size_t k = 0; k < job.count; k += together) {
    const size_t end = k + together < job.count ? k + together : job.count;
    for (size_t i = 0; i < job.length; i += part) {
      const size_t n = i + part < job.length ? part : job.length - i;
      F first[4] = {}, second[4] = {};
      for (size_t m = k; m < end; ++m) add_sums(points_of<mask>(job, m, i), n, first, second);
      all.dz += static_cast<double>(sum((first[0] + first[1]) + (first[2] + first[3])));
      all.dz_xhat += static_cast<double>(sum((second[0] + second[1]) + (second[2] + second[3])));
    }
  }
  return all;
}

Sums channel_sums(const Gradient& job) {
  Sums sums;
  choose_mask(job.mask, [&](auto with) { sums = sums_of<decltype(with)::mask>(job); });
  return sums;
}

// dx = r·(γ·dz - mean_g - x̂·mean_g_xhat), γ along the run (rows) or one for all of it
template <bool is_row, Mask mask, bool accumulates, bool streams>
OBN_INLINE void gradient_run(const Gradient& job, size_t k) {
  const Points<mask> points = points_of<mask>(job, k, 0);
  float* dx = job.dx.data + k * job.dx.step;
  const F r = points.standardize.r, mean_g = splat(job.mean_g), mean_g_xhat = splat(job.mean_g_xhat);
  const F same = splat(is_row ? 1.0f : *job.gamma);
  along(job.length, streams ? head_of(dx) : 0, [&](size_t i, size_t n) __attribute__((always_inline)) {
    if (job.ahead > 0) {
      prefetch(points.dy + i + job.ahead);
      prefetch(points.x + i + job.ahead);
      if (mask == Mask::output) prefetch(points.y + i + job.ahead);
    }
    const Point p = points.at(i, n);
    const F gamma = is_row ? load_part(job.gamma + i, n) : same;
    const F g = gamma * p.dz - mean_g;
    F v = r * (g - p.xhat * mean_g_xhat);
    if (accumulates) v += load_part(dx + i, n);
    put<streams>(dx + i, v, n);
  });
}

template <bool is_row>
OBN_INLINE void gradient_of(const Gradient& job, size_t k) {
  choose_mask(job.mask, [&](auto with) {
    constexpr Mask mask = decltype(with)::mask;
    if (job.accumulate) return gradient_run<is_row, mask, true, false>(job, k);
    choose(job.stream, [&](auto streams) { gradient_run<is_row, mask, false, decltype(streams)::yes>(job, k); });
  });
}

void channel_gradient(const Gradient& job) {
  for (size_t k = job.count; k-- > 0;) gradient_of<false>(job, k);
  if (job.stream) fence();
}

void row_gradient(const Gradient& job) {
  static constexpr float kOne = 1.0f;
  Gradient same = job;
  same.gamma = &kOne;
  for (size_t k = 0; k < job.count; ++k) {
    if (job.gamma) {
      gradient_of<true>(job, k);
    } else {
      gradient_of<false>(same, k);
    }
  }
  if (job.stream) fence();
}

// Σ g and Σ g·x̂ of each of some rows; dβ and dγ, which run across them, are read and written once for all.
template <size_t rows, bool has_y, bool has_gamma, bool adds>
OBN_INLINE void row_sums_of(RowSums* job) {
  F first[rows] = {}, second[rows] = {};
  const auto step = [&](size_t i, size_t n) __attribute__((always_inline)) {
    F beta_sum = F{}, gamma_sum = F{};
    const F gamma = has_gamma ? load_part(job->gamma + i, n) : splat(1.0f);
#pragma GCC unroll 4
    for (size_t k = 0; k < rows; ++k) {
      const Points<has_y ? Mask::output : Mask::none> points = {
          job->dy[k], job->y[k], job->x[k], Standardize(job->standard[k]), {F{}, F{}}};
      const Point p = points.at(i, n);
      const F product = p.dz * p.xhat;
      if (adds) {
        beta_sum += p.dz;
        gamma_sum += product;
      }
      first[k] += has_gamma ? gamma * p.dz : p.dz;
      second[k] += has_gamma ? gamma * product : product;
    }
    if (adds) {
      store_part(job->dbeta + i, load_part(job->dbeta + i, n) + beta_sum, n);
      store_part(job->dgamma + i, load_part(job->dgamma + i, n) + gamma_sum, n);
    }
  };
  size_t i = 0;
  for (; i + kLanes <= job->length; i += kLanes) step(i, kLanes);
  if (i < job->length) step(i, job->length - i);
#pragma GCC unroll 4
  for (size_t k = 0; k < rows; ++k)
    job->sums[k] = {static_cast<double>(sum(first[k])), static_cast<double>(sum(second[k]))};
}

void row_sums(RowSums* job) {
  choose(job->y[0] != nullptr, [&](auto has_y) {
    choose(job->gamma != nullptr, [&](auto has_gamma) {
      choose(job->dgamma != nullptr, [&](auto adds) {
        constexpr bool y = decltype(has_y)::yes, g = decltype(has_gamma)::yes, a = decltype(adds)::yes;
        switch (job->rows) {
          case 4: return row_sums_of<4, y, g, a>(job);
          case 3: return row_sums_of<3, y, g, a>(job);
          case 2: return row_sums_of<2, y, g, a>(job);
          default: return row_sums_of<1, y, g, a>(job);
        }
      });
    });
  });
}

// ---- columns: channels side by side ----

// body(first column, how many) for a vector of columns at a time
template <class Body>
OBN_INLINE void by_vectors(size_t width, const Body& body) {
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, kLanes);
  if (i < width) body(i, width - i);
}

void column_moments(const Runs& x, size_t rows, size_t width, double* mean, double* variance) {
  by_vectors(width, [&](size_t i, size_t n) __attribute__((always_inline)) {
    const float* column = x.data + i;
    F total = F{};
    for (size_t first = 0; first < rows; first += kBlockRows) {
      F part = F{};
      for (size_t k = first; k < rows && k < first + kBlockRows; ++k) part += load_part(column + k * x.step, n);
      total += part;
    }
    const double count = static_cast<double>(rows);
    const F about = total / splat(static_cast<float>(rows));
    F off = F{}, squares = F{};
    for (size_t first = 0; first < rows; first += kBlockRows) {
      F part = F{}, part_squares = F{};
      for (size_t k = first; k < rows && k < first + kBlockRows; ++k) {
        const F d = load_part(column + k * x.step, n) - about;
        part += d;
        part_squares += d * d;
      }
      off += part;
      squares += part_squares;
    }
    for (size_t j = 0; j < n; ++j) {
      const double rest = static_cast<double>(off[j]) / count;
      const double spread = static_cast<double>(squares[j]) / count - rest * rest;
      mean[i + j] = static_cast<double>(about[j]) + rest;
      variance[i + j] = spread < 0.0 ? 0.0 : spread;
    }
  });
}

void standards(size_t n, const double* mean, const double* variance, float epsilon, float* rounded, float* r,
               float* rest) {
  for (size_t i = 0; i < n; ++i) {
    const Standard s = standard_of(mean[i], variance[i], epsilon);
    rounded[i] = s.mean;
    r[i] = s.r;
    rest[i] = s.rest;
  }
}

void column_forward(const Columns& job) {
  by_vectors(job.width, [&](size_t i, size_t n) __attribute__((always_inline)) {
    const Standardize standardize(load_part(job.mean + i, n), load_part(job.r + i, n), load_part(job.rest + i, n));
    const Same parameters = {load_part(job.gamma + i, n), load_part(job.beta + i, n)};
    const F low = splat(job.low);
    for (size_t k = 0; k < job.rows; ++k) {
      const F v = load_part(job.x.data + k * job.x.step + i, n);
      if (job.copy.data) store_part(job.copy.data + k * job.copy.step + i, v, n);
      store_part(job.y.data + k * job.y.step + i, max(low, parameters.apply(standardize(v), 0, n)), n);
    }
  });
}

// Row k, of which columns i … i + n - 1 are looked at.
template <Mask mask>
OBN_INLINE Point column_point(const ColumnGradient& job, size_t k, size_t i, size_t n, const Standardize& standardize,
                              const Same& forward) {
  const Points<mask> points = {job.dy.data + k * job.dy.step,
                               mask == Mask::output ? job.y.data + k * job.y.step : nullptr,
                               job.x.data + k * job.x.step, standardize, forward};
  return points.at(i, n);
}
OBN_INLINE Standardize column_standardize(const ColumnGradient& job, size_t i, size_t n) {
  return {load_part(job.mean + i, n), load_part(job.r + i, n), load_part(job.rest + i, n)};
}
template <Mask mask>
OBN_INLINE Same column_parameters(const ColumnGradient& job, size_t i, size_t n) {
  if (mask != Mask::input) return {F{}, F{}};
  return {load_part(job.mask_gamma + i, n), load_part(job.mask_beta + i, n)};
}

template <Mask mask>
OBN_INLINE void column_sums_of(const ColumnGradient& job, Sums* sums) {
  by_vectors(job.width, [&](size_t i, size_t n) __attribute__((always_inline)) {
    const Standardize standardize = column_standardize(job, i, n);
    const Same parameters = column_parameters<mask>(job, i, n);
    F first = F{}, second = F{};
    for (size_t from = 0; from < job.rows; from += kBlockRows) {
      F part = F{}, part_xhat = F{};
      for (size_t k = from; k < job.rows && k < from + kBlockRows; ++k) {
        const Point p = column_point<mask>(job, k, i, n, standardize, parameters);
        part += p.dz;
        part_xhat += p.dz * p.xhat;
      }
      first += part;
      second += part_xhat;
    }
    for (size_t j = 0; j < n; ++j) sums[i + j] = {static_cast<double>(first[j]), static_cast<double>(second[j])};
  });
}

void column_sums(const ColumnGradient& job, Sums* sums) {
  choose_mask(job.mask, [&](auto with) { column_sums_of<decltype(with)::mask>(job, sums); });
}

template <Mask mask>
OBN_INLINE void column_gradient_of(const ColumnGradient& job) {
  by_vectors(job.width, [&](size_t i, size_t n) __attribute__((always_inline)) {
    const Standardize standardize = column_standardize(job, i, n);
    const Same parameters = column_parameters<mask>(job, i, n);
    const F gamma = load_part(job.gamma + i, n);
    const F mean_g = load_part(job.mean_g + i, n), mean_g_xhat = load_part(job.mean_g_xhat + i, n);
    for (size_t k = 0; k < job.rows; ++k) {
      float* dx = job.dx.data + k * job.dx.step + i;
      const Point p = column_point<mask>(job, k, i, n, standardize, parameters);
      const F g = gamma * p.dz - mean_g;
      F v = standardize.r * (g - p.xhat * mean_g_xhat);
      if (job.accumulate) v += load_part(dx, n);
      store_part(dx, v, n);
    }
  });
}

void column_gradient(const ColumnGradient& job) {
  choose_mask(job.mask, [&](auto with) { column_gradient_of<decltype(with)::mask>(job); });
}

}  // namespace

constinit const obn::normalization::Kernels kernels = {
    run_moments,  channel_forward, channel_sums, channel_gradient, row_forward, row_sums,
    row_gradient, column_moments,  standards,    column_forward,   column_sums, column_gradient,
};

}  // namespace obn::OBN_TARGET::normalization
