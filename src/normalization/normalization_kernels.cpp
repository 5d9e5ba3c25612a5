// The loops, once per target. Letters and formulas as in normalization.h; all values are packed float32.
#include "normalization/normalization.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::normalization {

using obn::normalization::ColumnGradient;
using obn::normalization::Columns;
using obn::normalization::Forward;
using obn::normalization::Gradient;
using obn::normalization::kColumns;
using obn::normalization::kRowsTogether;
using obn::normalization::Moments;
using obn::normalization::RowForward;
using obn::normalization::RowSums;
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
OBN_INLINE Moments moments_of(double n, double inverse, float about, const Spread& spread) {
  const double off = static_cast<double>(sum(spread.first));
  const double squares = static_cast<double>(sum(spread.second)) - off * off * inverse;
  return {n, static_cast<double>(about) + off * inverse, squares < 0.0 ? 0.0 : squares};
}

// Moments of a block, two passes: the second one corrects the rounding of the first mean.
Moments block_moments(const float* x, size_t step, size_t count, size_t length) {
  const double n = static_cast<double>(count * length);
  F total = F{};
  for (size_t k = 0; k < count; ++k) total += run_sum(x + k * step, length);
  const float about = sum(total) / static_cast<float>(count * length);
  Spread spread = {F{}, F{}};
  for (size_t k = 0; k < count; ++k) {
    const Spread part = run_spread(x + k * step, length, splat(about));
    spread.first += part.first;
    spread.second += part.second;
  }
  return moments_of(n, 1.0 / n, about, spread);
}

void add(const Moments& part, Moments* all) {
  if (all->count == 0.0) {
    *all = part;
    return;
  }
  const double n = all->count + part.count, apart = part.mean - all->mean;
  all->mean += apart * (part.count / n);
  all->squares += part.squares + apart * apart * (all->count * part.count / n);
  all->count = n;
}

// Blocks one after the other. Short runs share a block.
Moments moments(const Runs& x, size_t count, size_t length) {
  Moments all;
  if (length < kBlock) {
    const size_t together = kBlock / length;
    for (size_t k = 0; k < count; k += together)
      add(block_moments(x.data + k * x.step, x.step, k + together < count ? together : count - k, length), &all);
    return all;
  }
  for (size_t k = 0; k < count; ++k)
    for (size_t i = 0; i < length; i += kBlock)
      add(block_moments(x.data + k * x.step + i, 0, 1, i + kBlock < length ? kBlock : length - i), &all);
  return all;
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

template <bool keeps, bool streams_y, bool streams_xhat, class Parameters>
OBN_INLINE void forward_run(const float* x, float* y, float* xhat, size_t length, size_t head, const Standard& standard,
                            float low, size_t ahead, const Parameters& parameters) {
  const F mean = splat(standard.mean), r = splat(standard.r), rest = splat(standard.rest), least = splat(low);
  along(length, head, [&](size_t i, size_t n) __attribute__((always_inline)) {
    if (ahead > 0) prefetch(x + i + ahead);
    const F v = (load_part(x + i, n) - mean) * r + rest;
    if (keeps) put<streams_xhat>(xhat + i, v, n);
    put<streams_y>(y + i, max(least, parameters.apply(v, i, n)), n);
  });
}

// Job is Forward or RowForward.
template <class Job, class Parameters>
OBN_INLINE void forward_any(const Job& job, const float* x, float* y, float* xhat, const Standard& standard,
                            const Parameters& parameters) {
  const size_t n = job.length;
  if (!job.stream_y && !job.stream_xhat) {
    choose(xhat != nullptr, [&](auto keeps) {
      forward_run<decltype(keeps)::yes, false, false>(x, y, xhat, n, 0, standard, job.low, job.ahead, parameters);
    });
    return;
  }
  const size_t head = job.stream_y ? head_of(y) : xhat ? head_of(xhat) : 0;
  choose(job.stream_y, [&](auto past_y) {
    constexpr bool streams_y = decltype(past_y)::yes;
    if (!xhat) {
      forward_run<false, streams_y, false>(x, y, xhat, n, head, standard, job.low, job.ahead, parameters);
    } else if (job.stream_xhat && is_aligned(xhat + head)) {
      forward_run<true, streams_y, true>(x, y, xhat, n, head, standard, job.low, job.ahead, parameters);
    } else {
      forward_run<true, streams_y, false>(x, y, xhat, n, head, standard, job.low, job.ahead, parameters);
    }
  });
}

void channel_forward(const Forward& job) {
  const Same parameters = {splat(*job.gamma), splat(*job.beta)};
  for (size_t k = 0; k < job.count; ++k)
    forward_any(job, job.x.data + k * job.x.step, job.y.data + k * job.y.step,
                job.xhat.data ? job.xhat.data + k * job.xhat.step : nullptr, job.standard, parameters);
  if (job.stream_y || job.stream_xhat) fence();
}

// Statistics of some rows at a time: the ends of their sums, which are long chains of operations, then overlap.
void row_standards(const RowForward& job, Standard* standard) {
  const size_t n = job.length;
  const double count = static_cast<double>(n), inverse = 1.0 / count;
  if (n > kBlock) {
    for (size_t k = 0; k < job.rows; ++k) {
      const Moments m = moments({const_cast<float*>(job.x[k]), 0}, 1, n);
      standard[k] = standard_of(m.mean, m.squares * inverse, job.epsilon);
    }
    return;
  }
  float about[kRowsTogether];
  Moments m[kRowsTogether];
  for (size_t k = 0; k < job.rows; ++k) about[k] = sum(run_sum(job.x[k], n)) * static_cast<float>(inverse);
  for (size_t k = 0; k < job.rows; ++k)
    m[k] = moments_of(count, inverse, about[k], run_spread(job.x[k], n, splat(about[k])));
  for (size_t k = 0; k < job.rows; ++k) standard[k] = standard_of(m[k].mean, m[k].squares * inverse, job.epsilon);
}

void row_forward(RowForward* job) {
  Standard standard[kRowsTogether];
  row_standards(*job, standard);
  for (size_t k = 0; k < job->rows; ++k) {
    job->r[k] = standard[k].r;
    if (job->gamma) {
      forward_any(*job, job->x[k], job->y[k], job->xhat[k], standard[k], Each{job->gamma, job->beta});
    } else {
      forward_any(*job, job->x[k], job->y[k], job->xhat[k], standard[k], Plain{});
    }
  }
  if (job->stream_y || job->stream_xhat) fence();
}

// ---- backward: dz = y > 0 ? dy : 0, or dy ----

template <bool has_y>
OBN_INLINE F dz_at(const float* dy, const float* y, size_t i, size_t n) {
  const F v = load_part(dy + i, n);
  if (!has_y) return v;
  return load_part(y + i, n) > 0.0f ? v : F{};
}

// Σ dz and Σ dz·x̂ of some runs of a block.
template <bool has_y>
OBN_INLINE void add_sums(const float* dy, const float* y, const float* xhat, size_t n, F* first, F* second) {
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (size_t j = 0; j < 4; ++j) {
      const F dz = dz_at<has_y>(dy, y, i + j * kLanes, kLanes);
      first[j] += dz;
      second[j] += dz * load(xhat + i + j * kLanes);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    const F dz = dz_at<has_y>(dy, y, i, kLanes);
    first[0] += dz;
    second[0] += dz * load(xhat + i);
  }
  if (i < n) {
    const F dz = dz_at<has_y>(dy, y, i, n - i);
    first[1] += dz;
    second[1] += dz * load_first(xhat + i, n - i);
  }
}

template <bool has_y>
Sums sums_of(const Gradient& job) {
  Sums all;
  const size_t part = job.length < kBlock ? job.length : kBlock;
  const size_t together = kBlock / part;
  for (size_t k = 0; k < job.count; k += together) {
    const size_t end = k + together < job.count ? k + together : job.count;
    for (size_t i = 0; i < job.length; i += part) {
      const size_t n = i + part < job.length ? part : job.length - i;
      F first[4] = {}, second[4] = {};
      for (size_t m = k; m < end; ++m)
        add_sums<has_y>(job.dy.data + m * job.dy.step + i, has_y ? job.y.data + m * job.y.step + i : nullptr,
                        job.xhat.data + m * job.xhat.step + i, n, first, second);
      all.dz += static_cast<double>(sum((first[0] + first[1]) + (first[2] + first[3])));
      all.dz_xhat += static_cast<double>(sum((second[0] + second[1]) + (second[2] + second[3])));
    }
  }
  return all;
}

Sums channel_sums(const Gradient& job) { return job.y.data ? sums_of<true>(job) : sums_of<false>(job); }

// dx = r·(γ·dz - mean_g - x̂·mean_g_xhat), γ along the run (rows) or one for all of it
template <bool is_row, bool has_y, bool accumulates, bool streams>
OBN_INLINE void gradient_run(const Gradient& job, size_t k) {
  const float* dy = job.dy.data + k * job.dy.step;
  const float* y = has_y ? job.y.data + k * job.y.step : nullptr;
  const float* xhat = job.xhat.data + k * job.xhat.step;
  float* dx = job.dx.data + k * job.dx.step;
  const F r = splat(job.r), mean_g = splat(job.mean_g), mean_g_xhat = splat(job.mean_g_xhat);
  const F same = splat(is_row ? 1.0f : *job.gamma);
  along(job.length, streams ? head_of(dx) : 0, [&](size_t i, size_t n) __attribute__((always_inline)) {
    if (job.ahead > 0) {
      prefetch(dy + i + job.ahead);
      prefetch(xhat + i + job.ahead);
      if (has_y) prefetch(y + i + job.ahead);
    }
    const F gamma = is_row ? load_part(job.gamma + i, n) : same;
    const F g = gamma * dz_at<has_y>(dy, y, i, n) - mean_g;
    F v = r * (g - load_part(xhat + i, n) * mean_g_xhat);
    if (accumulates) v += load_part(dx + i, n);
    put<streams>(dx + i, v, n);
  });
}

template <bool is_row>
OBN_INLINE void gradient_of(const Gradient& job, size_t k) {
  choose(job.y.data != nullptr, [&](auto has_y) {
    if (job.accumulate) return gradient_run<is_row, decltype(has_y)::yes, true, false>(job, k);
    choose(job.stream, [&](auto streams) {
      gradient_run<is_row, decltype(has_y)::yes, false, decltype(streams)::yes>(job, k);
    });
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
      const F dz = dz_at<has_y>(job->dy[k], job->y[k], i, n);
      const F product = dz * load_part(job->xhat[k] + i, n);
      if (adds) {
        beta_sum += dz;
        gamma_sum += product;
      }
      first[k] += has_gamma ? gamma * dz : dz;
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
    const F mean = load_part(job.mean + i, n), r = load_part(job.r + i, n), rest = load_part(job.rest + i, n);
    const F gamma = load_part(job.gamma + i, n), beta = load_part(job.beta + i, n), low = splat(job.low);
    for (size_t k = 0; k < job.rows; ++k) {
      const F v = (load_part(job.x.data + k * job.x.step + i, n) - mean) * r + rest;
      if (job.xhat.data) store_part(job.xhat.data + k * job.xhat.step + i, v, n);
      store_part(job.y.data + k * job.y.step + i, max(low, gamma * v + beta), n);
    }
  });
}

template <bool has_y>
OBN_INLINE F column_dz(const ColumnGradient& job, size_t k, size_t i, size_t n) {
  return dz_at<has_y>(job.dy.data + k * job.dy.step, has_y ? job.y.data + k * job.y.step : nullptr, i, n);
}

template <bool has_y>
OBN_INLINE void column_sums_of(const ColumnGradient& job, Sums* sums) {
  by_vectors(job.width, [&](size_t i, size_t n) __attribute__((always_inline)) {
    F first = F{}, second = F{};
    for (size_t from = 0; from < job.rows; from += kBlockRows) {
      F part = F{}, part_xhat = F{};
      for (size_t k = from; k < job.rows && k < from + kBlockRows; ++k) {
        const F dz = column_dz<has_y>(job, k, i, n);
        part += dz;
        part_xhat += dz * load_part(job.xhat.data + k * job.xhat.step + i, n);
      }
      first += part;
      second += part_xhat;
    }
    for (size_t j = 0; j < n; ++j) sums[i + j] = {static_cast<double>(first[j]), static_cast<double>(second[j])};
  });
}

void column_sums(const ColumnGradient& job, Sums* sums) {
  choose(job.y.data != nullptr, [&](auto has_y) { column_sums_of<decltype(has_y)::yes>(job, sums); });
}

template <bool has_y>
OBN_INLINE void column_gradient_of(const ColumnGradient& job) {
  by_vectors(job.width, [&](size_t i, size_t n) __attribute__((always_inline)) {
    const F gamma = load_part(job.gamma + i, n), r = load_part(job.r + i, n);
    const F mean_g = load_part(job.mean_g + i, n), mean_g_xhat = load_part(job.mean_g_xhat + i, n);
    for (size_t k = 0; k < job.rows; ++k) {
      float* dx = job.dx.data + k * job.dx.step + i;
      const F g = gamma * column_dz<has_y>(job, k, i, n) - mean_g;
      F v = r * (g - load_part(job.xhat.data + k * job.xhat.step + i, n) * mean_g_xhat);
      if (job.accumulate) v += load_part(dx, n);
      store_part(dx, v, n);
    }
  });
}

void column_gradient(const ColumnGradient& job) {
  choose(job.y.data != nullptr, [&](auto has_y) { column_gradient_of<decltype(has_y)::yes>(job); });
}

}  // namespace

constinit const obn::normalization::Kernels kernels = {
    moments,      channel_forward, channel_sums, channel_gradient, row_forward, row_sums,
    row_gradient, column_moments,  standards,    column_forward,   column_sums, column_gradient,
};

}  // namespace obn::OBN_TARGET::normalization
