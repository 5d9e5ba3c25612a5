// Convolution of few input channels with a batch norm behind it, the bench: sums of the taps and of their products.
// Letters and the stage as in few_channels.h. float64 throughout: what the normalization makes of these numbers may
// cancel to a small part of them.
#include <cstddef>

#include "base/integer.h"
#include "convolution/few_channels/few_channels_stage.h"
#include "simd/wide.h"

namespace obn::OBN_TARGET::convolution::few_channels {

namespace {

// What is kept in registers at a time.
#if defined(__SSE2__) && !defined(__AVX512F__)
constexpr size_t kTapRows = 3, kTapColumns = 3;  // 16 registers
#else
constexpr size_t kTapRows = 3, kTapColumns = 9;  // 32 registers
#endif

OBN_INLINE W load_wide(const double* p) {
  W v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
OBN_INLINE void store_wide(double* p, W v) { __builtin_memcpy(p, &v, sizeof v); }
OBN_INLINE W widen_half(const float* p) {  // kWideLanes values
#if defined(__AVX512F__)
  return reinterpret_cast<W>(_mm512_cvtps_pd(_mm256_loadu_ps(p)));  // of what follows gcc makes four instructions
#else
  typedef float Half __attribute__((vector_size(2 * kLanes)));
  Half v;
  __builtin_memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, W);
#endif
}

OBN_INLINE double add_wide_lanes(W v) {
  double sum = v[0];
  for (size_t i = 1; i < kWideLanes; ++i) sum += v[i];
  return sum;
}

// sums(s, t) += x(at_s(s) + p) · x(at_t(t) + p), lane by lane over n values, whole vectors
struct TapProducts {
  const double* x;
  const size_t *at_s, *at_t;
  W* sums;
  size_t sums_row;
  size_t n;
};

template <size_t kRows, size_t kTaps>
void multiply_taps(const TapProducts& s) {
  W sums[kRows][kTaps];
#pragma GCC unroll 4
  for (size_t i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (size_t t = 0; t < kTaps; ++t) sums[i][t] = s.sums[i * s.sums_row + t];
  for (size_t p = 0; p < s.n; p += kWideLanes) {
    W left[kRows];
#pragma GCC unroll 4
    for (size_t i = 0; i < kRows; ++i) left[i] = load_wide(s.x + s.at_s[i] + p);
#pragma GCC unroll 16
    for (size_t t = 0; t < kTaps; ++t) {
      const W right = load_wide(s.x + s.at_t[t] + p);
#pragma GCC unroll 4
      for (size_t i = 0; i < kRows; ++i) sums[i][t] = fma(left[i], right, sums[i][t]);
    }
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (size_t t = 0; t < kTaps; ++t) s.sums[i * s.sums_row + t] = sums[i][t];
}

template <size_t kTaps>
void multiply_rows(const TapProducts& s, size_t rows) {
  if (rows == 3) return multiply_taps<3, kTaps>(s);
  if (rows == 2) return multiply_taps<2, kTaps>(s);
  multiply_taps<1, kTaps>(s);
}

using MultiplyRows = void (*)(const TapProducts&, size_t);
constexpr MultiplyRows kMultiplyTaps[] = {
    multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,
#if !defined(__SSE2__) || defined(__AVX512F__)
    multiply_rows<4>, multiply_rows<5>, multiply_rows<6>, multiply_rows<7>, multiply_rows<8>, multiply_rows<9>,
#endif
};
static_assert(sizeof kMultiplyTaps == kTapColumns * sizeof(MultiplyRows) && kTapRows == 3);

// Taps that differ in ky alone are one copy of x, a row further each: products of two of them differ in the first and
// last rows only. So rows are classed by the ky for which they count, first … last, every class is multiplied once, and
// tap(ky)·tap(ky + d) is the sum of the classes that ky is in. With strides or dilation every tap is a copy of its own.
class TapSums {
 public:
  TapSums(const Plan& plan, std::byte* work) : plan_(plan) {
    const Problem& s = plan.problem;
    const size_t kh = as_size(s.y.kernel), q = as_size(s.x.out);
    kw_ = as_size(s.x.kernel);
    const bool slides = s.y.stride == 1 && s.y.dilation == 1;
    shifts_ = slides ? kh : 1;
    pitch_ = round_up(q, kWideLanes);
    for (size_t t = 0; t < plan.taps; ++t) {
      if (slides && t / kw_ % kh != 0) continue;
      tap_[copies_] = t;
      left_[copies_++] = plan.at[t] / q * pitch_;
    }
    columns_ = shifts_ * copies_;
    for (size_t i = 0; i < columns_; ++i) right_[i] = left_[i % copies_] + i / copies_ * pitch_;
    rows_ = s.in_channels * kw_ * plan.copy / q;
    sums_ = reinterpret_cast<W*>(work);
    row_sums_ = sums_ + class_at(0, shifts_);
    wide_ = reinterpret_cast<double*>(row_sums_ + rows_);
    stage_ = reinterpret_cast<float*>(wide_ + rows_ * pitch_);
    for (size_t i = 0; i < class_at(0, shifts_); ++i) sums_[i] = W{};
  }

  void add(const Taps& x, size_t n, size_t from, size_t rows) {
    stage_input(plan_, x.x, n, from, rows, stage_);
    widen(x.centre);
    for (size_t r = 0; r < rows + shifts_ - 1;) {
      const size_t first = r < rows ? 0 : r - rows + 1, last = least(r, shifts_ - 1);
      const size_t end = first == 0 && last == shifts_ - 1 ? most(rows, r + 1) : r + 1;
      multiply_class(r, end - r, first, sums_ + class_at(first, last));
      r = end;
    }
  }

  // (T) sums, then (T, T) of products.
  void finish(double* totals) const {
    for (size_t i = 0; i < plan_.taps * (plan_.taps + 1); ++i) totals[i] = 0.0;
    double* products = totals + plan_.taps;
    for (size_t a = 0; a < copies_; ++a)
      for (size_t ky = 0; ky < shifts_; ++ky) {
        const size_t s = tap_[a] + ky * kw_;
        totals[s] = total(a, columns_, ky);
        for (size_t i = a; i < (shifts_ - ky) * copies_; ++i) {
          const size_t t = tap_[i % copies_] + (ky + i / copies_) * kw_;
          products[s * plan_.taps + t] = products[t * plan_.taps + s] = total(a, i, ky);
        }
      }
  }

 private:
  // Where the sums of rows that count for ky = first … last lie: (copies, shifts·copies) products, and copies sums.
  size_t class_at(size_t first, size_t last) const {
    return (last * (last + 1) / 2 + first) * copies_ * (columns_ + 1);
  }

  // The stage less the centres, in rows of whole vectors that end in zeros, and the sums of rows.
  void widen(const float* centre) {
    const size_t q = as_size(plan_.problem.x.out), rows = rows_ / plan_.problem.in_channels;
    const size_t last = pitch_ - kWideLanes;
    W inside = {};
    for (size_t i = last; i < q; ++i) inside[i - last] = 1.0;
    for (size_t r = 0; r < rows_; ++r) {
      const W less = static_cast<double>(centre[r / rows]) - W{};
      const float* row = stage_ + r * q;
      double* to = wide_ + r * pitch_;
      W sum = {};
      for (size_t i = 0; i < last; i += kWideLanes) {
        const W v = widen_half(row + i) - less;
        store_wide(to + i, v);
        sum += v;
      }
      const W v = inside != 0.0 ? widen_half(row + last) - less : W{};
      store_wide(to + last, v);
      row_sums_[r] = sum + v;
    }
  }

  // Rows that count for ky >= first alone are multiplied with those that lie up to kh - 1 - first rows further.
  void multiply_class(size_t row, size_t rows, size_t first, W* sums) const {
    const double* x = wide_ + row * pitch_;
    const size_t n = rows * pitch_, columns = (shifts_ - first) * copies_;
    for (size_t a = 0; a < copies_; ++a) {
      const W* from = row_sums_ + left_[a] / pitch_ + row;
      W total = sums[a * (columns_ + 1) + columns_];
      for (size_t r = 0; r < rows; ++r) total += from[r];
      sums[a * (columns_ + 1) + columns_] = total;
    }
    for (size_t a = 0; a < copies_;) {
      const size_t some = next_part(copies_ - a, kTapRows);
      W* to = sums + a * (columns_ + 1);
      for (size_t i = a; i < columns;) {
        const size_t now = next_part(columns - i, kTapColumns);
        kMultiplyTaps[now - 1]({x, left_ + a, right_ + i, to + i, columns_ + 1, n}, some);
        i += now;
      }
      a += some;
    }
  }

  double total(size_t a, size_t column, size_t ky) const {
    W sum = {};
    for (size_t first = 0; first <= ky; ++first)
      for (size_t last = ky; last < shifts_; ++last)
        sum += sums_[class_at(first, last) + a * (columns_ + 1) + column];
    return add_wide_lanes(sum);
  }

  const Plan& plan_;
  size_t kw_ = 0, copies_ = 0, shifts_ = 0, columns_ = 0;
  size_t pitch_ = 0, rows_ = 0;                          // of the wide stage
  size_t tap_[kMostTaps], left_[kMostTaps], right_[kMostTaps];
  W* sums_ = nullptr;                                    // (class, copies, shifts·copies + 1)
  W* row_sums_ = nullptr;
  double* wide_ = nullptr;
  float* stage_ = nullptr;
};

}  // namespace

void tap_moments(const Plan& plan, const Taps& x, size_t first, size_t count, double* totals, std::byte* work) {
  TapSums sums(plan, work);
  for (size_t n = first; n < first + count; ++n)
    for (size_t from = 0; from < plan.rows; from += plan.band)
      sums.add(x, n, from, least(plan.band, plan.rows - from));
  sums.finish(totals);
}

}  // namespace obn::OBN_TARGET::convolution::few_channels
