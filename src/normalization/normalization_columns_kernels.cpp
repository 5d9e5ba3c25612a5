// Normalization, the bench of columns: channels of one value side by side, one per lane.
#include <cstddef>

#include "normalization/normalization_values.h"

namespace obn::OBN_TARGET::normalization {

namespace {

constexpr size_t kBlockRows = 64;  // that are summed before they go into the sum of all

// body(first column, how many) for a vector of columns at a time
template <class Body>
OBN_INLINE void by_vectors(size_t width, const Body& body) {
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, kLanes);
  if (i < width) body(i, width - i);
}

// The moments of those of n columns whose sums of squares are beyond float.
[[gnu::noinline]] void far_columns(const float* x, size_t step, size_t rows, size_t n, const float* squares,
                                   double* mean, double* variance) {
  for (size_t j = 0; j < n; ++j) {
    if (is_finite(squares[j])) continue;
    const obn::normalization::Moments m = far_moments(x + j, step, rows);
    mean[j] = m.mean;
    variance[j] = m.squares / m.count;
  }
}

}  // namespace

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
        part_squares = fma(d, d, part_squares);
      }
      off += part;
      squares += part_squares;
    }
    for (size_t j = 0; j < n; ++j) {
      const double rest = static_cast<double>(off[j]) / count;
      const double spread = fnma(rest, rest, static_cast<double>(squares[j]) / count);
      mean[i + j] = static_cast<double>(about[j]) + rest;
      variance[i + j] = spread < 0.0 ? 0.0 : spread;
    }
    if (!any(squares - squares != F{})) return;
    float found[kLanes];
    store(found, squares);
    far_columns(column, x.step, rows, n, found, mean + i, variance + i);
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

namespace {

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
        part_xhat = fma(p.dz, p.xhat, part_xhat);
      }
      first += part;
      second += part_xhat;
    }
    for (size_t j = 0; j < n; ++j) sums[i + j] = {static_cast<double>(first[j]), static_cast<double>(second[j])};
  });
}

}  // namespace

void column_sums(const ColumnGradient& job, Sums* sums) {
  choose_mask(job.mask, [&](auto with) { column_sums_of<decltype(with)::mask>(job, sums); });
}

namespace {

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
      const F g = fms(gamma, p.dz, mean_g);
      F v = standardize.r * fnma(p.xhat, mean_g_xhat, g);
      if (job.accumulate) v += load_part(dx, n);
      store_part(dx, v, n);
    }
  });
}

}  // namespace

void column_gradient(const ColumnGradient& job) {
  choose_mask(job.mask, [&](auto with) { column_gradient_of<decltype(with)::mask>(job); });
}

}  // namespace obn::OBN_TARGET::normalization
