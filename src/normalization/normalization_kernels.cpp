// The loops, once per target. Letters and formulas as in normalization.h; all values are packed float32.
#include "normalization/normalization.h"
#include "simd/fused.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::normalization {

using obn::normalization::add;
using obn::normalization::ColumnGradient;
using obn::normalization::Columns;
using obn::normalization::Forward;
using obn::normalization::Gradient;
using obn::normalization::kColumns;
using obn::normalization::kRowsTogether;
using obn::normalization::kShortRun;
using obn::normalization::Mask;
using obn::normalization::Moments;
using obn::normalization::RowForward;
using obn::normalization::RowGradient;
using obn::normalization::RunMoments;
using obn::normalization::Runs;
using obn::normalization::Standard;
using obn::normalization::standard_of;
using obn::normalization::Sums;

extern const obn::normalization::Kernels kernels;

namespace {

constexpr size_t kBlock = 4096;  // values that are summed in float before they go into a double
constexpr size_t kBlockRows = 64;
constexpr size_t kSumsTogether = 2;   // rows that are summed at a time, while γ, dβ and dγ are at hand
constexpr size_t kWide = 4 * kLanes;  // values that are worked on at a time
constexpr size_t kAhead = 2048;       // values between what is fetched and what is worked on, at least

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

bool is_aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(F) == 0; }

// Values before the first one at an aligned address.
size_t head_of(const float* p) {
  return (sizeof(F) - reinterpret_cast<uintptr_t>(p) % sizeof(F)) % sizeof(F) / sizeof(float);
}

// From a value to one that is read much later: in the same place of a later run.
OBN_INLINE size_t ahead_in(const Runs& runs, size_t length) {
  return (kAhead + length - 1) / length * (runs.step > 0 ? runs.step : length);
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

// Moments of up to kBlock values; the second pass corrects the rounding of the first mean.
Moments two_pass_moments(const float* x, size_t length) {
  const double n = static_cast<double>(length), inverse = 1.0 / n;
  const float about = pairwise_sum(run_sum(x, length)) * static_cast<float>(inverse);
  const Spread spread = run_spread(x, length, splat(about));
  return moments_of(n, inverse, about, pairwise_sum(spread.first), pairwise_sum(spread.second));
}

// Σ d and Σ d² of a block, d = x - about.
struct Gathered {
  const float* x;
  F about;
  F first[4] = {}, second[4] = {};

  [[gnu::always_inline]] void add(size_t j, F v) {
    const F d = v - about;
    first[j] += d;
    second[j] += d * d;
  }
  [[gnu::always_inline]] void wide(size_t i, size_t ahead) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      if (ahead > 0) prefetch(x + i + j * kLanes + ahead);
      add(j, load(x + i + j * kLanes));
    }
  }
  [[gnu::always_inline]] void rest(size_t i, size_t length) {
    for (; i + kWide <= length; i += kWide) wide(i, 0);
    for (; i + kLanes <= length; i += kLanes) add(0, load(x + i));
    if (i < length) add(1, load_first(x + i, length - i, about));
  }
  [[gnu::always_inline]] F first_sum() const { return (first[0] + first[1]) + (first[2] + first[3]); }
  [[gnu::always_inline]] F second_sum() const { return (second[0] + second[1]) + (second[2] + second[3]); }
};

// A sum of two that is put down on its way into the moments of a block.
struct Summed {
  const float *a, *b;
  float* to;

  [[gnu::always_inline]] F at(size_t i, size_t n) const { return load_part(a + i, n) + load_part(b + i, n); }
  [[gnu::always_inline]] void wide(size_t i, Gathered* gathered) const {
    F v[4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      v[j] = at(i + j * kLanes, kLanes);
      gathered->add(j, v[j]);
    }
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) store(to + i + j * kLanes, v[j]);
  }
  // Values i … length - 1, for whoever reads them there.
  [[gnu::always_inline]] void rest(size_t i, size_t length) const {
    for (; i + kLanes <= length; i += kLanes) store(to + i, at(i, kLanes));
    if (i < length) store_first(to + i, at(i, length - i), length - i);
  }
};

// Moments of a block take one pass, about the mean of its beginning. Where that turns out to be far from the mean of
// all, compared with how the values spread, digits would be lost: then two passes follow.
OBN_INLINE size_t beginning_of(size_t length) { return length < kWide ? length : kWide; }
OBN_INLINE Gathered gather_about(const float* x, size_t length) {
  const size_t n = beginning_of(length);
  return {x, splat(pairwise_sum(run_sum(x, n)) / static_cast<float>(n))};
}
OBN_INLINE Moments moments_about(const float* x, size_t length, float about, float first, float second) {
  const double n = static_cast<double>(length), inverse = 1.0 / n, off = static_cast<double>(first) * inverse;
  if (2.0 * off * off <= static_cast<double>(second) * inverse) return moments_of(n, inverse, about, first, second);
  return two_pass_moments(x, length);
}
OBN_INLINE Moments moments_of(const Gathered& g, size_t length) {
  return moments_about(g.x, length, g.about[0], pairwise_sum(g.first_sum()), pairwise_sum(g.second_sum()));
}
Moments block_moments(const float* x, size_t length) {
  Gathered gathered = gather_about(x, length);
  gathered.rest(0, length);
  return moments_of(gathered, length);
}

// The same of up to kLanes blocks, one per lane where all lanes are added up. Block k is at(k).
template <class At>
OBN_INLINE void some_block_moments(const At& at, size_t count, size_t length, RunMoments* moments) {
  F first[kLanes], second[kLanes];
  float about[kLanes], firsts[kLanes], seconds[kLanes];
  for (size_t k = count; k < kLanes; ++k) first[k] = second[k] = F{};
  for (size_t k = 0; k < count; ++k) first[k] = run_sum(at(k), beginning_of(length));
  store(about, sum_each(first) / splat(static_cast<float>(beginning_of(length))));
  for (size_t k = 0; k < count; ++k) {
    Gathered gathered = {at(k), splat(about[k])};
    gathered.rest(0, length);
    first[k] = gathered.first_sum();
    second[k] = gathered.second_sum();
  }
  store(firsts, sum_each(first));
  store(seconds, sum_each(second));
  for (size_t k = 0; k < count; ++k) {
    const Moments m = moments_about(at(k), length, about[k], firsts[k], seconds[k]);
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
  if (length <= kShortRun) {  // adding up the lanes counts
    for (; k + 1 < count; k += kLanes)
      some_block_moments([&](size_t i) { return x.data + (k + i) * x.step; }, k + kLanes < count ? kLanes : count - k,
                         length, moments + k);
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
  [[gnu::always_inline]] F apply(F xhat, size_t, size_t) const { return gamma * xhat + beta; }
  [[gnu::always_inline]] F times(F v) const { return gamma * v; }
  [[gnu::always_inline]] F times_plus(F a, F b, F c) const { return fused(gamma, a * b, c); }  // γ·a·b + c
};
struct Each {
  const float *gamma, *beta;
  [[gnu::always_inline]] F apply(F xhat, size_t i, size_t n) const {
    return load_part(gamma + i, n) * xhat + load_part(beta + i, n);
  }
  // γ of some values, in a register.
  [[gnu::always_inline]] Same at(size_t i, size_t n) const { return {held(load_part(gamma + i, n)), F{}}; }
};
struct Plain {
  [[gnu::always_inline]] F apply(F xhat, size_t, size_t) const { return xhat; }
  [[gnu::always_inline]] Plain at(size_t, size_t) const { return {}; }
  [[gnu::always_inline]] F times(F v) const { return v; }
  [[gnu::always_inline]] F times_plus(F a, F b, F c) const { return fused(a, b, c); }
};

// x̂ of a value; forward and backward share it, so that both see the same bits.
struct Standardize {
  F mean, r, rest;

  [[gnu::always_inline]] Standardize() = default;
  [[gnu::always_inline]] explicit Standardize(const Standard& s)
      : mean(splat(s.mean)), r(splat(s.r)), rest(splat(s.rest)) {}
  [[gnu::always_inline]] Standardize(F mean, F r, F rest) : mean(mean), r(r), rest(rest) {}
  [[gnu::always_inline]] F operator()(F x) const { return (x - mean) * r + rest; }
};

// A run is written while the statistics of the next one are gathered: the arithmetic hides behind memory. All of a step
// is read before anything is written, because a read that follows a write to the same place of another page may wait;
// and reading begins a step earlier where the writing of a run begins some values later.

// y, and the copy of x, of a run.
template <bool copies, bool streams, class Parameters>
struct Output {
  const float* x;
  float *y, *copy;
  Standardize standardize;
  F low;
  Parameters parameters;
  const float* fetch[2] = {};

  [[gnu::always_inline]] F of(F v, size_t i, size_t n) const {
    return max(low, parameters.apply(standardize(v), i, n));
  }
  [[gnu::always_inline]] void wide(size_t i) const {
    F v[4], w[4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      if (fetch[0]) prefetch(fetch[0] + i + j * kLanes);
      if (fetch[1]) prefetch(fetch[1] + i + j * kLanes);
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

template <bool copies, bool streams, bool sums>
OBN_INLINE void channels_forward(const Forward& job) {
  const size_t length = job.length, ahead = ahead_in(job.next, length);
  for (size_t k = 0; k < job.count; ++k) {
    const Output<copies, streams, Same> output = {job.x.data + k * job.x.step,
                                                  job.y.data + k * job.y.step,
                                                  copies ? job.copy.data + k * job.copy.step : nullptr,
                                                  Standardize(job.standard),
                                                  splat(job.low),
                                                  {splat(*job.gamma), splat(*job.beta)},
                                                  {job.fetch[0], job.fetch[1]}};
    size_t o = begin_output(output, length);
    Moments all;
    for (size_t block = 0; job.next_moments && block < length; block += kBlock) {
      const size_t n = block + kBlock < length ? kBlock : length - block;
      const float* from = job.next.data + k * job.next.step + block;
      const Summed summed = {from, sums ? job.next2.data + k * job.next2.step + block : nullptr,
                             sums ? job.made.data + k * job.made.step + block : nullptr};
      if (sums) summed.rest(0, beginning_of(n));
      Gathered next = gather_about(sums ? summed.to : from, n);
      const auto gather = [&](size_t i) __attribute__((always_inline)) {
        if (sums) return summed.wide(i, &next);
        next.wide(i, ahead);
      };
      size_t i = 0;
      if (o > 0 && n >= kWide) {
        gather(0);
        i = kWide;
      }
      for (; i + kWide <= n && o + kWide <= length; i += kWide, o += kWide) {
        gather(i);
        output.wide(o);
      }
      if (sums) summed.rest(i, n);
      next.rest(i, n);
      add(moments_of(next, n), &all);
    }
    output.rest(o, length);
    if (job.next_moments) job.next_moments[k] = {all.mean, all.squares};
  }
}

void channel_forward(const Forward& job) {
  bool streams_all = job.stream_y && (job.stream_copy || !job.copy.data);
  for (size_t k = 0; k < job.count && streams_all && job.copy.data; ++k)
    streams_all = can_stream(job.y.data + k * job.y.step, job.copy.data + k * job.copy.step);
  choose(job.copy.data != nullptr, [&](auto copies) {
    choose(streams_all, [&](auto streams) {
      choose(job.made.data != nullptr, [&](auto sums) {
        channels_forward<decltype(copies)::yes, decltype(streams)::yes, decltype(sums)::yes>(job);
      });
    });
  });
}

// ---- rows, forward ----

// 1/n is ready before the sums are: rows wait for their statistics.
Standard standard_of_row(const Moments& m, float epsilon) {
  return standard_of(m.mean, m.squares * (1.0 / m.count), epsilon);
}

void short_row_standards(RowForward* job) {
  RunMoments moments[kRowsTogether];
  const double inverse = 1.0 / static_cast<double>(job->length);
  for (size_t k = 0; k < job->rows; k += kLanes)
    some_block_moments([&](size_t i) { return job->x[k + i]; }, k + kLanes < job->rows ? kLanes : job->rows - k,
                       job->length, moments + k);
  for (size_t k = 0; k < job->rows; ++k)
    job->standard[k] = standard_of(moments[k].mean, moments[k].squares * inverse, job->epsilon);
}

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
        job->x[k], job->y[k], copies ? job->copy[k] : nullptr, Standardize(standard), splat(job->low), parameters, {}};
    size_t o = begin_output(output, length);
    const bool is_last = k + 1 == job->rows;
    if (is_last || length > kBlock || length <= kShortRun) {
      output.rest(o, length);
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
    next.rest(i, length);
    standard = standard_of_row(moments_of(next, length), epsilon);
    job->standard[k + 1] = standard;
  }
}

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

// Σ dz and Σ dz·x̂ of some runs: in float for about kBlock values, then in double.
template <Mask mask>
struct ChannelSums {
  size_t dy_ahead, x_ahead;
  F first[4] = {}, second[4] = {};
  Sums all = {};

  [[gnu::always_inline]] void add(size_t j, const Point& p) {
    first[j] += p.dz;
    second[j] += p.dz * p.xhat;
  }
  [[gnu::always_inline]] void wide(const Points<mask>& points, size_t i) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      prefetch(points.dy + i + j * kLanes + dy_ahead);
      prefetch(points.x + i + j * kLanes + x_ahead);
      add(j, points.at(i + j * kLanes, kLanes));
    }
  }
  [[gnu::always_inline]] void rest(const Points<mask>& points, size_t i, size_t n) {
    for (; i + kWide <= n; i += kWide) wide(points, i);
    for (; i + kLanes <= n; i += kLanes) add(0, points.at(i, kLanes));
    if (i < n) add(1, points.at(i, n - i));
  }
  // After every block of run q of `count`.
  [[gnu::always_inline]] void end_block(size_t q, size_t count, size_t length) {
    const size_t together = length < kBlock ? kBlock / length : 1;
    if (q + 1 < count && (q + 1) % together != 0) return;
    all.dz += static_cast<double>(sum((first[0] + first[1]) + (first[2] + first[3])));
    all.dz_xhat += static_cast<double>(sum((second[0] + second[1]) + (second[2] + second[3])));
    for (size_t j = 0; j < 4; ++j) first[j] = second[j] = F{};
  }
};

OBN_INLINE size_t block_at(size_t i, size_t length) { return i + kBlock < length ? kBlock : length - i; }

template <Mask mask>
OBN_INLINE Sums sums_of(const Gradient& job) {
  ChannelSums<mask> sums = {ahead_in(job.dy, job.length), ahead_in(job.x, job.length)};
  for (size_t q = 0; q < job.count; ++q) {
    for (size_t i = 0; i < job.length; i += kBlock) {
      sums.rest(points_of<mask>(job, q, i), 0, block_at(i, job.length));
      sums.end_block(q, job.count, job.length);
    }
  }
  return sums.all;
}

Sums channel_sums(const Gradient& job) {
  Sums sums;
  choose_mask(job.mask, [&](auto with) { sums = sums_of<decltype(with)::mask>(job); });
  return sums;
}

// How an input gradient is written.
enum class Store { plain, added, streamed, streamed_twice };
constexpr bool streams(Store store) { return store >= Store::streamed; }

// A second place of a run that is written vector by vector: its own lines are put together out of two vectors, since it
// may lie otherwise to a cache line than the first place.
struct Twin {
  float* to;
  size_t by;  // from the beginning of a vector to that of a line
  F last;     // the vector before, of which the first `by` values are written

  [[gnu::always_inline]] void begin(size_t i, F v) {
    store_first(to + i, v, by);
    last = v;
  }
  [[gnu::always_inline]] void next(size_t i, F v) {
    stream(to + i + by - kLanes, joined(last, v, by));
    last = v;
  }
  [[gnu::always_inline]] void end(size_t i) const {
    store_part(to + i + by - kLanes, joined(last, last, by), kLanes - by);
  }
};

// dx = r·γ·dz - r·mean_g - x̂·(r·mean_g_xhat) of one run, from its first value to its last: begin, some wide, rest.
template <Mask mask, Store store>
struct ChannelInput {
  Points<mask> points;
  F gamma, mean_g, mean_g_xhat;  // each times r
  float* dx;
  Twin twin;

  static constexpr bool kIsTwice = store == Store::streamed_twice;

  [[gnu::always_inline]] F at(size_t i, size_t n) const {
    const Point p = points.at(i, n);
    const F v = (gamma * p.dz - mean_g) - p.xhat * mean_g_xhat;
    return store == Store::added ? v + load_part(dx + i, n) : v;
  }
  [[gnu::always_inline]] void write(F v, size_t i) {
    put<streams(store)>(dx + i, v, kLanes);
    if (kIsTwice) twin.next(i, v);
  }
  // Where nothing is streamed: before the first and behind the last full vector.
  [[gnu::always_inline]] void part(size_t i, size_t n) const {
    const F v = at(i, n);
    store_part(dx + i, v, n);
    if (kIsTwice) store_part(twin.to + i, v, n);
  }
  [[gnu::always_inline]] void wide(size_t i) {
    F v[4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) v[j] = at(i + j * kLanes, kLanes);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) write(v[j], i + j * kLanes);
  }
  // Writes what has to be written up to the first aligned place, and of two places the first vector; where it ends.
  [[gnu::always_inline]] size_t begin(size_t length) {
    size_t head = streams(store) ? head_of(dx) : 0;
    if (head > length) head = length;
    if (head > 0) part(0, head);
    if (!kIsTwice || head + kLanes > length) return head;
    const F v = at(head, kLanes);
    twin.by = head_of(twin.to + head);
    twin.begin(head, v);
    stream(dx + head, v);
    return head + kLanes;
  }
  [[gnu::always_inline]] void rest(size_t i, size_t length) {
    const bool has_vector = i >= kLanes;  // after begin
    for (; i + kWide <= length; i += kWide) wide(i);
    for (; i + kLanes <= length; i += kLanes) write(at(i, kLanes), i);
    if (kIsTwice && has_vector) twin.end(i);
    if (i < length) part(i, length - i);
  }
};

// The last run comes first. A run is written while one of the next group is summed: the memory that is read and the
// memory that is written are busy at the same time, which takes a quarter off the time of a large batch norm.
template <Mask mask, Store store, bool has_next>
OBN_INLINE void channels_gradient(const Gradient& job) {
  const size_t length = job.length;
  const F r = splat(job.standard.r);
  const Gradient& next_job = has_next ? *job.next : job;
  ChannelSums<mask> sums = {ahead_in(next_job.dy, length), ahead_in(next_job.x, length)};
  for (size_t q = 0; q < job.count; ++q) {
    const size_t k = job.count - 1 - q;
    ChannelInput<mask, store> input = {points_of<mask>(job, k, 0),
                                       r * splat(*job.gamma),
                                       r * splat(job.mean_g),
                                       r * splat(job.mean_g_xhat),
                                       job.dx.data + k * job.dx.step,
                                       {job.also.data ? job.also.data + k * job.also.step : nullptr, 0, F{}}};
    size_t o = input.begin(length);
    for (size_t block = 0; has_next && block < length; block += kBlock) {
      const Points<mask> next = points_of<mask>(next_job, q, block);
      const size_t n = block_at(block, length);
      size_t i = 0;
      for (; i + kWide <= n && o + kWide <= length; i += kWide, o += kWide) {
        sums.wide(next, i);
        input.wide(o);
      }
      sums.rest(next, i, n);
      sums.end_block(q, job.count, length);
    }
    input.rest(o, length);
  }
  if (has_next) *job.next_sums = sums.all;
}

template <Mask mask>
OBN_INLINE void gradient_of(const Gradient& job) {
  if (job.accumulate) return channels_gradient<mask, Store::added, false>(job);
  if (!job.stream) return channels_gradient<mask, Store::plain, false>(job);
  choose(job.next != nullptr, [&](auto has_next) {
    if (job.also.data) return channels_gradient<mask, Store::streamed_twice, decltype(has_next)::yes>(job);
    channels_gradient<mask, Store::streamed, decltype(has_next)::yes>(job);
  });
}

void channel_gradient(const Gradient& job) {
  choose_mask(job.mask, [&](auto with) { gradient_of<decltype(with)::mask>(job); });
}

// body(accumulates, streams)
template <class Body>
OBN_INLINE void choose_store(bool accumulate, bool stream, const Body& body) {
  if (accumulate) return body(Is<true>{}, Is<false>{});
  choose(stream, [&](auto streams) { body(Is<false>{}, streams); });
}

// ---- rows, backward ----

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
      const F dz = held(p.dz), g = held(scale.times(dz));
      first[r][j] += g;
      second[r][j] = fused(g, p.xhat, second[r][j]);
      added.beta += dz;
      added.gamma = fused(dz, p.xhat, added.gamma);
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
    const F v = gamma.at(i, n).times_plus(points.standardize.r, p.dz, fused(p.xhat, slope, shift));
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

void row_sums(RowGradient* job) {
  choose_row(*job, [&](auto with, const auto& gamma) {
    choose(job->dgamma != nullptr, [&](auto adds) {
      for (size_t k = 0; k < job->rows; ++k) sum_rows<decltype(with)::mask, decltype(adds)::yes, 1>(job, k, gamma);
    });
  });
}

void row_gradient(const RowGradient& job) {
  choose_row(job, [&](auto with, const auto& gamma) {
    choose_store(job.accumulate, job.stream, [&](auto accumulates, auto streams) {
      write_rows<decltype(with)::mask, decltype(accumulates)::yes, decltype(streams)::yes>(job, 0, job.rows, gamma);
    });
  });
}

void row_backward(RowGradient* job) {
  if (job->accumulate) {  // rare
    row_sums(job);
    row_gradient(*job);
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

void end_streams() { fence(); }

}  // namespace

constinit const obn::normalization::Kernels kernels = {
    run_moments,  channel_forward, channel_sums,   channel_gradient, row_forward, row_sums,        row_gradient,
    row_backward, column_moments,  standards,      column_forward,   column_sums, column_gradient, end_streams,
};

}  // namespace obn::OBN_TARGET::normalization
