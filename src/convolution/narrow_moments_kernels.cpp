// Convolution of few input channels with a batch norm behind it, the bench: sums of the taps and of their products.
// Letters and the stage as in narrow.h. float64 throughout: what the normalization makes of these numbers may cancel to
// a small part of them.
#include <cstddef>

#include "convolution/narrow_stage.h"
#include "simd/wide.h"

namespace obn::OBN_TARGET::convolution::narrow {

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

// ---- any kernel ----

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
    pitch_ = (q + kWideLanes - 1) / kWideLanes * kWideLanes;
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

// ---- one channel, 3 x 3, stride 1 ----

// All taps are one padded plane seen from nine places: tap (ky, kx) of output (p, q) is place (p + ky, q + kx). So the
// product of two of them depends on how far they are apart, (dy, dx), and on (ky, kx) only in the places that count.
// Sums are kept for every column of places, and apart for the first and last rows of a band, which do not count for
// every ky: 13 products per place give all 45.
constexpr size_t kSide = 3;
constexpr size_t kEdges = kSide - 1;        // rows, and columns, that do not count for every ky, kx: on either side
constexpr size_t kShifts = 2 * kSide - 1;   // dx: 1 - kSide … kSide - 1
constexpr size_t kDistances = 14;           // the plane itself; then dy = 0 with dx >= 0, dy = 1, dy = 2
constexpr size_t kClasses = 1 + 2 * kEdges; // rows that count for every ky; the first ones; the last ones
constexpr size_t kMostColumns = 1024;       // Q
constexpr size_t kBandPlaces = size_t{1} << 13, kLeastBand = 8;

// Places of kWideLanes columns in one row, as seen by every dx.
struct PlaceRow {
  W at[kShifts];
};
OBN_INLINE PlaceRow places_at(const double* x) {
  PlaceRow row;
#pragma GCC unroll 8
  for (size_t i = 0; i < kShifts; ++i) row.at[i] = load_wide(x + i - kEdges);
  return row;
}

// What the places of a row give, with those of the two rows below.
OBN_INLINE void add_places(const PlaceRow& row, const PlaceRow& below, const PlaceRow& last, W (&sums)[kDistances]) {
  const W here = row.at[kEdges];
  sums[0] += here;
#pragma GCC unroll 4
  for (size_t i = 0; i < kSide; ++i) sums[1 + i] = fma(here, row.at[kEdges + i], sums[1 + i]);
#pragma GCC unroll 8
  for (size_t i = 0; i < kShifts; ++i) sums[1 + kSide + i] = fma(here, below.at[i], sums[1 + kSide + i]);
#pragma GCC unroll 8
  for (size_t i = 0; i < kShifts; ++i)
    sums[1 + kSide + kShifts + i] = fma(here, last.at[i], sums[1 + kSide + kShifts + i]);
}

// sums (kDistances, pitch), kWideLanes columns of them += what `rows` rows of places from x on give. Every row is
// loaded once, and stays in registers for the two above it.
void add_place_rows(const double* x, size_t pitch, size_t rows, double* sums) {
  W totals[kDistances];
#pragma GCC unroll 16
  for (size_t i = 0; i < kDistances; ++i) totals[i] = load_wide(sums + i * pitch);
  PlaceRow a = places_at(x), b = places_at(x + pitch);
  x += 2 * pitch;
  for (size_t left = rows; left > 0; x += 3 * pitch) {
    const PlaceRow c = places_at(x);
    add_places(a, b, c, totals);
    if (--left == 0) break;
    a = places_at(x + pitch);
    add_places(b, c, a, totals);
    if (--left == 0) break;
    b = places_at(x + 2 * pitch);
    add_places(c, a, b, totals);
    --left;
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kDistances; ++i) store_wide(sums + i * pitch, totals[i]);
}

class PlaneSums {
 public:
  static bool fits(const Problem& s) {
    return s.in_channels == 1 && slides(s.x) && slides(s.y) && as_size(s.x.out) <= kMostColumns;
  }

  PlaneSums(const Problem& s, std::byte* work) : s_(s), q_(as_size(s.x.out)), p_(as_size(s.y.out)) {
    pitch_ = (q_ + kEdges + kWideLanes - 1) / kWideLanes * kWideLanes;
    bands_ = (p_ * pitch_ + kBandPlaces - 1) / kBandPlaces;
    bands_ = most(least(bands_, p_ / kLeastBand), 1);
    const size_t band = (p_ + bands_ - 1) / bands_;
    sums_ = reinterpret_cast<double*>(work);
    row_ = sums_ + kClasses * kDistances * pitch_;
    places_ = row_ + pitch_ + kWideLanes;  // what does not count is read in front of them, and behind
    const size_t all = (kClasses * kDistances + 1 + band + 2 * kEdges) * pitch_ + 2 * kWideLanes;
    for (size_t i = 0; i < all; i += kWideLanes) store_wide(sums_ + i, W{});
  }

  void add(const Taps& x, size_t n) {
    for (size_t i = 0; i < bands_; ++i) {
      const size_t from = p_ * i / bands_, rows = p_ * (i + 1) / bands_ - from;
      for (size_t v = 0; v < rows + kEdges; ++v) widen(x, n, from + v, places_ + v * pitch_);
      for (size_t u = 0; u < pitch_; u += kWideLanes) {
        if (rows > kEdges) add_place_rows(places_ + kEdges * pitch_ + u, pitch_, rows - kEdges, class_at(0) + u);
        for (size_t edge = 0; edge < kEdges; ++edge) {
          add_place_rows(places_ + edge * pitch_ + u, pitch_, 1, class_at(1 + edge) + u);
          add_place_rows(places_ + (rows + edge) * pitch_ + u, pitch_, 1, class_at(1 + kEdges + edge) + u);
        }
      }
    }
  }

  // (T) sums, then (T, T) of products.
  void finish(double* totals) {
    double* products = totals + kSide * kSide;
    double of_column[kSide];
    for (size_t ky = 0; ky < kSide; ++ky) {
      total_columns(0, ky, of_column);
      for (size_t kx = 0; kx < kSide; ++kx) totals[ky * kSide + kx] = of_column[kx];
    }
    for (size_t distance = 1; distance < kDistances; ++distance) {
      const size_t from_left = distance - 1 + kEdges;  // dy·kShifts + dx + kEdges
      const size_t dy = from_left / kShifts, shift = from_left % kShifts;
      for (size_t ky = 0; ky + dy < kSide; ++ky) {
        total_columns(distance, ky, of_column);
        for (size_t kx = 0; kx < kSide; ++kx) {
          if (kx + shift < kEdges || kx + shift >= kSide + kEdges) continue;
          const size_t s = ky * kSide + kx, t = (ky + dy) * kSide + kx + shift - kEdges;
          products[s * kSide * kSide + t] = products[t * kSide * kSide + s] = of_column[kx];
        }
      }
    }
  }

 private:
  static bool slides(const Axis& axis) {
    return as_size(axis.kernel) == kSide && axis.stride == 1 && axis.dilation == 1 && as_size(axis.out) >= kEdges;
  }

  // Sums (kDistances, pitch) of a class of rows.
  double* class_at(size_t number) const { return sums_ + number * kDistances * pitch_; }

  // Row v of all places, less the centre.
  void widen(const Taps& x, size_t n, size_t v, double* to) const {
    const double centre = static_cast<double>(x.centre[0]);
    const W less = centre - W{};
    for (size_t u = 0; u < pitch_; u += kWideLanes) store_wide(to + u, -less);
    const size_t up = as_size(s_.y.before), left = as_size(s_.x.before);
    if (v < up || v - up >= as_size(s_.y.in) || left >= q_ + kEdges) return;
    const float* row = x.x.data + n * x.x.sample + (v - up) * x.x.row;
    const size_t count = least(as_size(s_.x.in), q_ + kEdges - left);
    to += left;
    size_t i = 0;
    for (; i + kWideLanes <= count; i += kWideLanes) store_wide(to + i, widen_half(row + i) - less);
    if (i == count) return;
    if (count >= kWideLanes) return store_wide(to + count - kWideLanes, widen_half(row + count - kWideLanes) - less);
    for (; i < count; ++i) to[i] = static_cast<double>(row[i]) - centre;
  }

  // totals(kx): what the columns that count for kx have in the rows that count for ky.
  void total_columns(size_t distance, size_t ky, double (&totals)[kSide]) const {
    for (size_t u = 0; u < pitch_; u += kWideLanes) {
      const auto at = [&](size_t number) { return load_wide(class_at(number) + distance * pitch_ + u); };
      W sum = at(0);
      for (size_t edge = ky; edge < kEdges; ++edge) sum += at(1 + edge);
      for (size_t edge = 0; edge < ky; ++edge) sum += at(1 + kEdges + edge);
      store_wide(row_ + u, sum);
    }
    W sums = {};
    size_t u = kEdges;
    for (; u + kWideLanes <= q_; u += kWideLanes) sums += load_wide(row_ + u);
    double every = add_wide_lanes(sums);
    for (; u < q_; ++u) every += row_[u];
    for (size_t kx = 0; kx < kSide; ++kx) {
      totals[kx] = every;
      for (size_t edge = kx; edge < kEdges; ++edge) totals[kx] += row_[edge];
      for (size_t edge = 0; edge < kx; ++edge) totals[kx] += row_[q_ + edge];
    }
  }

  const Problem& s_;
  const size_t q_, p_;
  size_t pitch_ = 0, bands_ = 0;
  double* sums_ = nullptr;    // (kClasses, kDistances, pitch)
  double* row_ = nullptr;     // (pitch)
  double* places_ = nullptr;  // (P of a band + kEdges, pitch)
};

}  // namespace

void tap_moments(const Plan& plan, const Taps& x, size_t first, size_t count, double* totals, std::byte* work) {
  if (PlaneSums::fits(plan.problem)) {
    PlaneSums sums(plan.problem, work);
    for (size_t n = first; n < first + count; ++n) sums.add(x, n);
    return sums.finish(totals);
  }
  TapSums sums(plan, work);
  for (size_t n = first; n < first + count; ++n)
    for (size_t from = 0; from < plan.rows; from += plan.band)
      sums.add(x, n, from, least(plan.band, plan.rows - from));
  sums.finish(totals);
}

}  // namespace obn::OBN_TARGET::convolution::narrow
