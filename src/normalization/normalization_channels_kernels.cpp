// Normalization, the bench of channels: one γ and one β for a run.
#include <cstddef>

#include "base/integer.h"
#include "normalization/normalization_moments.h"

namespace obn::OBN_TARGET::normalization {

using obn::normalization::add;
using obn::normalization::is_nan;
using obn::normalization::set_nan;

namespace {

constexpr size_t kAhead = 2048;  // values between what is fetched and what is worked on, at least

// From a value to one that is read much later: in the same place of a later run.
OBN_INLINE size_t ahead_in(const Runs& runs, size_t length) {
  return divide_up(kAhead, length) * (runs.step > 0 ? runs.step : length);
}

// ---- forward ----

// A run is written while the statistics of the next one are gathered: the arithmetic hides behind memory. All of a step
// is read before anything is written, because a read that follows a write to the same place of another page may wait;
// and reading begins a step earlier where the writing of a run begins some values later.
template <bool copies, bool streams>
OBN_INLINE void channels_forward(const Forward& job) {
  const size_t length = job.length, ahead = ahead_in(job.next, length);
  for (size_t k = 0; k < job.count; ++k) {
    const Output<copies, streams, Same> output = {job.x.data + k * job.x.step,
                                                  job.y.data + k * job.y.step,
                                                  copies ? job.copy.data + k * job.copy.step : nullptr,
                                                  Standardize(job.standard),
                                                  splat(job.low),
                                                  {splat(*job.gamma), splat(*job.beta)}};
    size_t o = begin_output(output, length);
    Moments all;
    for (size_t block = 0; job.next_moments && block < length; block += kBlock) {
      const size_t n = block + kBlock < length ? kBlock : length - block;
      const float* from = job.next.data + k * job.next.step + block;
      Gathered next = gather_about(from, n);
      size_t i = 0;
      if (o > 0 && n >= kWide) {
        next.wide(0, ahead);
        i = kWide;
      }
      for (; i + kWide <= n && o + kWide <= length; i += kWide, o += kWide) {
        next.wide(i, ahead);
        output.wide(o);
      }
      next.rest(i, n);
      add(moments_of(next, n), &all);
    }
    output.rest(o, length);
    if (job.next_moments) job.next_moments[k] = {all.mean, all.squares};
  }
  if (is_nan(job.standard.rest) || __builtin_isunordered(*job.gamma, *job.beta)) set_nan(job.y, job.count, length);
}

}  // namespace

void channel_forward(const Forward& job) {
  bool streams_all = job.stream_y && (job.stream_copy || !job.copy.data);
  for (size_t k = 0; k < job.count && streams_all && job.copy.data; ++k)
    streams_all = can_stream(job.y.data + k * job.y.step, job.copy.data + k * job.copy.step);
  choose(job.copy.data != nullptr, [&](auto copies) {
    choose(streams_all,
           [&](auto streams) { channels_forward<decltype(copies)::yes, decltype(streams)::yes>(job); });
  });
}

// ---- backward ----

namespace {

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
    second[j] = fma(p.dz, p.xhat, second[j]);
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

}  // namespace


Sums channel_sums(const Gradient& job) {
  Sums sums;
  choose_mask(job.mask, [&](auto with) { sums = sums_of<decltype(with)::mask>(job); });
  return sums;
}

namespace {

// How an input gradient is written.
enum class Store { plain, added, streamed };

// dx = r·γ·dz - r·mean_g - x̂·(r·mean_g_xhat) of one run, from its first value to its last: begin, some wide, rest.
template <Mask mask, Store store>
struct ChannelInput {
  Points<mask> points;
  F gamma, mean_g, mean_g_xhat;  // each times r
  float* dx;

  [[gnu::always_inline]] F at(size_t i, size_t n) const {
    const Point p = points.at(i, n);
    const F v = fnma(p.xhat, mean_g_xhat, fms(gamma, p.dz, mean_g));
    return store == Store::added ? v + load_part(dx + i, n) : v;
  }
  [[gnu::always_inline]] void write(F v, size_t i) const { put<store == Store::streamed>(dx + i, v, kLanes); }
  // Where nothing is streamed: before the first and behind the last full vector.
  [[gnu::always_inline]] void part(size_t i, size_t n) const { store_part(dx + i, at(i, n), n); }
  [[gnu::always_inline]] void wide(size_t i) const {
    F v[4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) v[j] = at(i + j * kLanes, kLanes);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) write(v[j], i + j * kLanes);
  }
  // Writes what has to be written up to the first aligned place; where that is.
  [[gnu::always_inline]] size_t begin(size_t length) const {
    size_t head = store == Store::streamed ? head_of(dx) : 0;
    if (head > length) head = length;
    if (head > 0) part(0, head);
    return head;
  }
  [[gnu::always_inline]] void rest(size_t i, size_t length) const {
    for (; i + kWide <= length; i += kWide) wide(i);
    for (; i + kLanes <= length; i += kLanes) write(at(i, kLanes), i);
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
    const ChannelInput<mask, store> input = {points_of<mask>(job, k, 0), r * splat(*job.gamma), r * splat(job.mean_g),
                                             r * splat(job.mean_g_xhat), job.dx.data + k * job.dx.step};
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
  if (__builtin_isunordered(job.mean_g, job.mean_g_xhat)) set_nan(job.dx, job.count, length);
}

template <Mask mask>
OBN_INLINE void gradient_of(const Gradient& job) {
  if (job.accumulate) return channels_gradient<mask, Store::added, false>(job);
  if (!job.stream) return channels_gradient<mask, Store::plain, false>(job);
  choose(job.next != nullptr,
         [&](auto has_next) { channels_gradient<mask, Store::streamed, decltype(has_next)::yes>(job); });
}

}  // namespace

void channel_gradient(const Gradient& job) {
  choose_mask(job.mask, [&](auto with) { gradient_of<decltype(with)::mask>(job); });
}

}  // namespace obn::OBN_TARGET::normalization
