// Normalization, the bench of rows: γ and β along a run, which is a group.
#include <cstddef>

#include "normalization/normalization_moments.h"

namespace obn::OBN_TARGET::normalization {

using obn::normalization::is_nan;
using obn::normalization::kRowsTogether;
using obn::normalization::set_nan;

namespace {

constexpr size_t kSumsTogether = 2;  // rows that are summed at a time, while γ, dβ and dγ are at hand

// ---- forward ----

// 1/n is ready before the sums are: rows wait for their statistics.
Standard standard_of_row(const Moments& m, float epsilon) {
  return standard_of(m.mean, m.squares * (1.0 / m.count), epsilon);
}

void short_row_standards(RowForward* job) {
  RunMoments moments[kRowsTogether];
  const double inverse = 1.0 / static_cast<double>(job->length);
  for (size_t k = 0; k < job->rows; k += kLanes)
    some_block_moments(job->x + k, k + kLanes < job->rows ? kLanes : job->rows - k, job->length, moments + k);
  for (size_t k = 0; k < job->rows; ++k)
    job->standard[k] = standard_of(moments[k].mean, moments[k].squares * inverse, job->epsilon);
}

// Written while the statistics of the next row are gathered, as channels are.
template <bool copies, bool streams, class Parameters>
OBN_INLINE void rows_forward(RowForward* job, const Parameters& parameters) {
  const size_t length = job->length, ahead = job->ahead;
  const float epsilon = job->epsilon;
  if (length <= kShortRun) {
    short_row_standards(job);
  } else {
    job->standard[0] = standard_of_row(long_moments(job->x[0], length), epsilon);
  }
  Standard standard = job->standard[0];  // of row k, without a detour through memory
  for (size_t k = 0; k < job->rows; ++k) {
    const Output<copies, streams, Parameters> output = {
        job->x[k], job->y[k], copies ? job->copy[k] : nullptr, Standardize(standard), splat(job->low), parameters};
    size_t o = begin_output(output, length);
    const bool is_last = k + 1 == job->rows;
    if (is_last || length > kBlock || length <= kShortRun) {
      output.rest(o, length);
      if (is_nan(standard.rest)) set_nan({job->y[k], 0}, 1, length);
      if (is_last) return;
      if (length > kBlock) job->standard[k + 1] = standard_of_row(long_moments(job->x[k + 1], length), epsilon);
      standard = job->standard[k + 1];
      continue;
    }
    Gathered next = gather_about(job->x[k + 1], length);
    size_t i = 0;
    if (o > 0) {
      next.wide(0, ahead);
      i = kWide;
    }
    for (; i + kWide <= length && o + kWide <= length; o += kWide, i += kWide) {
      next.wide(i, ahead);
      output.wide(o);
    }
    output.rest(o, length);
    if (is_nan(standard.rest)) set_nan({job->y[k], 0}, 1, length);
    next.rest(i, length);
    standard = standard_of_row(moments_of(next, length), epsilon);
    job->standard[k + 1] = standard;
  }
}

}  // namespace

void row_forward(RowForward* job) {
  const bool copies_any = job->copy[0] != nullptr;
  bool streams_all = job->stream_y && (job->stream_copy || !copies_any);
  for (size_t k = 0; k < job->rows && streams_all; ++k) streams_all = can_stream(job->y[k], job->copy[k]);
  choose(copies_any, [&](auto copies) {
    choose(streams_all, [&](auto streams) {
      if (job->gamma) {
        rows_forward<decltype(copies)::yes, decltype(streams)::yes>(job, Each{job->gamma, job->beta});
      } else {
        rows_forward<decltype(copies)::yes, decltype(streams)::yes>(job, Plain{});
      }
    });
  });
}

// ---- backward ----

namespace {

template <Mask mask>
OBN_INLINE Points<mask> points_of(const RowGradient& job, size_t k) {
  return {job.dy[k], job.y[k], job.x[k], Standardize(job.standard[k]), {F{}, F{}}};
}

// Σ g and Σ g·x̂ of some rows, and what they add to dβ and dγ: γ is loaded, dβ and dγ are loaded and stored once for all.
// A row has the same bits in any company.
template <Mask mask, bool adds, size_t together, class Gamma>
struct RowSums {
  Points<mask> points[together];
  Gamma gamma;
  float *dbeta, *dgamma;
  F first[together][2] = {}, second[together][2] = {};

  [[gnu::always_inline]] RowSums(const RowGradient& job, size_t k, const Gamma& gamma)
      : gamma(gamma), dbeta(job.dbeta), dgamma(job.dgamma) {
    for (size_t r = 0; r < together; ++r) points[r] = points_of<mask>(job, k + r);
  }
  // New values of dβ and dγ.
  struct Added {
    F beta, gamma;
  };
  [[gnu::always_inline]] Added add(size_t j, size_t i, size_t n) {
    const auto scale = gamma.at(i, n);
    Added added = {adds ? load_part(dbeta + i, n) : F{}, adds ? load_part(dgamma + i, n) : F{}};
#pragma GCC unroll 2
    for (size_t r = 0; r < together; ++r) {
      const Point p = points[r].at(i, n);
      const F dz = held(p.dz), g = scale.times(dz);
      first[r][j] += g;
      second[r][j] = fma(g, p.xhat, second[r][j]);
      added.beta += dz;
      added.gamma = fma(dz, p.xhat, added.gamma);
    }
    return added;
  }
  [[gnu::always_inline]] void put(const Added& added, size_t i, size_t n) const {
    if (!adds) return;
    store_part(dbeta + i, added.beta, n);
    store_part(dgamma + i, added.gamma, n);
  }
  [[gnu::always_inline]] void one(size_t j, size_t i, size_t n) { put(add(j, i, n), i, n); }
  // From i on, which is an even number of vectors.
  [[gnu::always_inline]] void rest(size_t i, size_t length) {
    for (; i + 2 * kLanes <= length; i += 2 * kLanes) {
      one(0, i, kLanes);
      one(1, i + kLanes, kLanes);
    }
    if (i + kLanes <= length) {
      one(0, i, kLanes);
      i += kLanes;
    }
    if (i < length) one(1, i, length - i);
  }
  [[gnu::always_inline]] void means(size_t length, float* mean_g, float* mean_g_xhat) const {
    const float inverse = static_cast<float>(1.0 / static_cast<double>(length));
    for (size_t r = 0; r < together; ++r) {
      mean_g[r] = sum(first[r][0] + first[r][1]) * inverse;
      mean_g_xhat[r] = sum(second[r][0] + second[r][1]) * inverse;
    }
  }
};

// dx of a row: r·(γ·dz - mean_g - x̂·mean_g_xhat) = γ·(r·dz) + x̂·slope + shift. Not a line in x: for a row of tiny
// values r² overflows.
template <Mask mask, bool accumulates, bool streams, class Gamma>
struct RowInput {
  Points<mask> points;
  Gamma gamma;
  F slope, shift;
  float* dx;

  [[gnu::always_inline]] RowInput(const RowGradient& job, size_t k, const Gamma& gamma)
      : points(points_of<mask>(job, k)), gamma(gamma), dx(job.dx[k]) {
    slope = -points.standardize.r * splat(job.mean_g_xhat[k]);
    shift = -points.standardize.r * splat(job.mean_g[k]);
  }
  [[gnu::always_inline]] F at(size_t i, size_t n) const {
    const Point p = points.at(i, n);
    const F v = gamma.at(i, n).times_plus(points.standardize.r, p.dz, fma(p.xhat, slope, shift));
    return accumulates ? v + load_part(dx + i, n) : v;
  }
  [[gnu::always_inline]] void part(size_t i, size_t n) const { put<streams>(dx + i, at(i, n), n); }
  // Writes what has to be written up to the first aligned place; where that is.
  [[gnu::always_inline]] size_t begin(size_t length) const {
    size_t head = streams ? head_of(dx) : 0;
    if (head > length) head = length;
    if (head > 0) part(0, head);
    return head;
  }
  [[gnu::always_inline]] void rest(size_t i, size_t length) const {
    for (; i + kLanes <= length; i += kLanes) part(i, kLanes);
    if (i < length) part(i, length - i);
  }
};

// A gradient that is NaN all over.
OBN_INLINE void settle_row(const RowGradient& job, size_t k) {
  if (__builtin_isunordered(job.mean_g[k], job.mean_g_xhat[k])) set_nan({job.dx[k], 0}, 1, job.length);
}

// Sums of rows k … k + together - 1, and input gradients of rows first … end - 1.
template <Mask mask, bool adds, size_t together, class Gamma>
OBN_INLINE void sum_rows(RowGradient* job, size_t k, const Gamma& gamma) {
  RowSums<mask, adds, together, Gamma> sums(*job, k, gamma);
  sums.rest(0, job->length);
  sums.means(job->length, &job->mean_g[k], &job->mean_g_xhat[k]);
}
template <Mask mask, bool accumulates, bool streams, class Gamma>
OBN_INLINE void write_rows(const RowGradient& job, size_t first, size_t end, const Gamma& gamma) {
  for (size_t k = first; k < end; ++k) {
    const RowInput<mask, accumulates, streams, Gamma> input(job, k, gamma);
    input.rest(input.begin(job.length), job.length);
    settle_row(job, k);
  }
}

template <Mask mask, bool adds, class Gamma>
OBN_INLINE void rows_backward(RowGradient* job, const Gamma& gamma) {
  size_t k = 0;
  for (; k + kSumsTogether <= job->rows; k += kSumsTogether) {
    sum_rows<mask, adds, kSumsTogether>(job, k, gamma);
    write_rows<mask, false, false>(*job, k, k + kSumsTogether, gamma);
  }
  for (; k < job->rows; ++k) {
    sum_rows<mask, adds, 1>(job, k, gamma);
    write_rows<mask, false, false>(*job, k, k + 1, gamma);
  }
}

// The same past the caches: a row is written while the next one is summed, so that memory is read and written at the
// same time.
template <Mask mask, bool adds, class Gamma>
OBN_INLINE void rows_backward_streamed(RowGradient* job, const Gamma& gamma) {
  const size_t length = job->length, ahead = job->ahead;
  sum_rows<mask, adds, 1>(job, 0, gamma);
  for (size_t k = 1; k < job->rows; ++k) {
    RowSums<mask, adds, 1, Gamma> sums(*job, k, gamma);
    const RowInput<mask, false, true, Gamma> input(*job, k - 1, gamma);
    size_t i = 0, o = input.begin(length);
    for (; o + 2 * kLanes <= length; o += 2 * kLanes, i += 2 * kLanes) {
      F dx[2];
      typename RowSums<mask, adds, 1, Gamma>::Added added[2];
#pragma GCC unroll 2
      for (size_t j = 0; j < 2; ++j) {
        const size_t at = i + j * kLanes;
        if (ahead > 0) {
          prefetch(sums.points[0].dy + at + ahead);
          prefetch(sums.points[0].x + at + ahead);
          if (mask == Mask::output) prefetch(sums.points[0].y + at + ahead);
        }
        dx[j] = input.at(o + j * kLanes, kLanes);
        added[j] = sums.add(j, at, kLanes);
      }
#pragma GCC unroll 2
      for (size_t j = 0; j < 2; ++j) {
        sums.put(added[j], i + j * kLanes, kLanes);
        put<true>(input.dx + o + j * kLanes, dx[j], kLanes);
      }
    }
    input.rest(o, length);
    settle_row(*job, k - 1);
    sums.rest(i, length);
    sums.means(length, &job->mean_g[k], &job->mean_g_xhat[k]);
  }
  write_rows<mask, false, true>(*job, job->rows - 1, job->rows, gamma);
}

// body(With<mask>{}, γ)
template <class Body>
OBN_INLINE void choose_row(const RowGradient& job, const Body& body) {
  choose(job.y[0] != nullptr, [&](auto has_y) {
    constexpr Mask mask = decltype(has_y)::yes ? Mask::output : Mask::none;
    if (job.gamma) {
      body(With<mask>{}, Each{job.gamma, nullptr});
    } else {
      body(With<mask>{}, Plain{});
    }
  });
}

}  // namespace

void row_sums(RowGradient* job) {
  choose_row(*job, [&](auto with, const auto& gamma) {
    choose(job->dgamma != nullptr, [&](auto adds) {
      for (size_t k = 0; k < job->rows; ++k) sum_rows<decltype(with)::mask, decltype(adds)::yes, 1>(job, k, gamma);
    });
  });
}

void row_backward(RowGradient* job) {
  if (job->accumulate) {  // rare
    row_sums(job);
    choose_row(*job, [&](auto with, const auto& gamma) {
      write_rows<decltype(with)::mask, true, false>(*job, 0, job->rows, gamma);
    });
    return;
  }
  choose_row(*job, [&](auto with, const auto& gamma) {
    choose(job->dgamma != nullptr, [&](auto adds) {
      constexpr Mask mask = decltype(with)::mask;
      if (job->stream) return rows_backward_streamed<mask, decltype(adds)::yes>(job, gamma);
      rows_backward<mask, decltype(adds)::yes>(job, gamma);
    });
  });
}

}  // namespace obn::OBN_TARGET::normalization
