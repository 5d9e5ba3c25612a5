// Normalization, the bench: moments of runs, and the table of a target. The loops over the values are in
// normalization_channels_kernels.cpp, …_rows_… and …_columns_….
#include <cstddef>

#include "normalization/normalization_moments.h"

namespace obn::OBN_TARGET::normalization {

using obn::normalization::add;

namespace {

Moments block_moments(const float* x, size_t length) {
  Gathered gathered = gather_about(x, length);
  gathered.rest(0, length);
  return moments_of(gathered, length);
}

}  // namespace

// Where squares, or sums of values near the largest, are beyond float; NaN and infinities pass here, too.
Moments far_moments(const float* x, size_t step, size_t count) {
  const double n = static_cast<double>(count);
  double sum = 0.0, squares = 0.0;
  for (size_t i = 0; i < count; ++i) sum += static_cast<double>(x[i * step]);
  const double mean = sum / n;
  for (size_t i = 0; i < count; ++i) {
    const double d = static_cast<double>(x[i * step]) - mean;
    squares += d * d;
  }
  return {n, mean, squares};
}

// The second pass corrects the rounding of the first mean.
Moments two_pass_moments(const float* x, size_t length) {
  const double n = static_cast<double>(length), inverse = 1.0 / n;
  const float about = pairwise_sum(run_sum(x, length)) * static_cast<float>(inverse);
  Gathered gathered = {x, splat(about)};
  gathered.rest(0, length);
  const float second = pairwise_sum(gathered.second_sum());
  if (!is_finite(second)) return far_moments(x, 1, length);
  return moments_of(n, inverse, about, pairwise_sum(gathered.first_sum()), second);
}

Moments long_moments(const float* x, size_t length) {
  Moments all;
  for (size_t i = 0; i < length; i += kBlock)
    add(block_moments(x + i, i + kBlock < length ? kBlock : length - i), &all);
  return all;
}

// Of up to kLanes blocks, one per lane where all lanes are added up; each as block_moments has it.
void some_block_moments(const float* const* x, size_t count, size_t length, RunMoments* moments) {
  F first[kLanes], second[kLanes];
  float about[kLanes], firsts[kLanes], seconds[kLanes];
  for (size_t k = count; k < kLanes; ++k) first[k] = second[k] = F{};
  // Long blocks look ahead to the next one only: memory is to be read in its order.
  const bool are_long = length > kShortRun;
  if (are_long) {
    about[0] = gather_about(x[0], length).about[0];
  } else {
    for (size_t k = 0; k < count; ++k) first[k] = run_sum(x[k], beginning_of(length));
    store(about, sum_each(first) / splat(static_cast<float>(beginning_of(length))));
  }
  for (size_t k = 0; k < count; ++k) {
    if (are_long && k + 1 < count) about[k + 1] = gather_about(x[k + 1], length).about[0];
    Gathered gathered = {x[k], splat(about[k])};
    gathered.rest(0, length);
    first[k] = gathered.first_sum();
    second[k] = gathered.second_sum();
  }
  store(firsts, sum_each(first));
  store(seconds, sum_each(second));
  for (size_t k = 0; k < count; ++k) {
    const Moments m = moments_about(x[k], length, about[k], firsts[k], seconds[k]);
    moments[k] = {m.mean, m.squares};
  }
}

namespace {

void run_moments(const Runs& x, size_t count, size_t length, RunMoments* moments) {
  size_t k = 0;
  if (length <= kBlock) {  // adding up the lanes counts
    for (; k + 1 < count; k += kLanes) {
      const size_t together = k + kLanes < count ? kLanes : count - k;
      const float* runs[kLanes];
      for (size_t i = 0; i < together; ++i) runs[i] = x.data + (k + i) * x.step;
      some_block_moments(runs, together, length, moments + k);
    }
  }
  for (; k < count; ++k) {
    const Moments m = long_moments(x.data + k * x.step, length);
    moments[k] = {m.mean, m.squares};
  }
}

void end_streams() { fence(); }

constexpr obn::normalization::Kernels kernels = {
    run_moments,    channel_forward, channel_sums,   channel_gradient, row_forward,     row_sums,    row_backward,
    column_moments, standards,       column_forward, column_sums,      column_gradient, end_streams};

}  // namespace

}  // namespace obn::OBN_TARGET::normalization

constinit const obn::normalization::Kernels obn::normalization::Compiled::OBN_TARGET = obn::OBN_TARGET::normalization::kernels;
