// Convolution of few input channels: every target against the reference loops.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "convolution/few_channels/few_channels.h"

#include "convolution/algorithm_test.h"

namespace obn::convolution::few_channels {
namespace {

using namespace test;

const Passes<Kernels> passes = {targets, fits, work_bytes, forward, input_gradient, weight_gradient};

Problem make_problem(size_t n, size_t c, size_t o, Axis x, Axis y) { return {n, c, o, 1, x, y}; }

// The passes with a batch norm, by the formulas of few_channels.h. All numbers are exact, as in algorithm_test.h.
struct NormTrial {
  Trial trial;
  const Problem& s = trial.problem;
  Tensor y, start, slope;  // y: the mask
  size_t taps, pixels, q;
  std::vector<float> centre;

  NormTrial(const Problem& problem, size_t gap, Random& random)
      : trial(problem, gap, random), y(trial.y), start(1, 1, 1, count_taps(problem), 0),
        slope(1, 1, count_taps(problem), count_taps(problem), 0), taps(count_taps(problem)),
        pixels(static_cast<size_t>(problem.x.out * problem.y.out)), q(static_cast<size_t>(problem.x.out)) {
    y.fill(random);
    start.fill(random);
    slope.fill(random);
    for (size_t c = 0; c < problem.in_channels; ++c) centre.push_back(c == 1 ? 0.0f : random.value());
  }
  static size_t count_taps(const Problem& s) {
    return s.in_channels * static_cast<size_t>(s.x.kernel * s.y.kernel);
  }

  // Where tap t of a pixel lies in x; false: padding.
  bool find(size_t n, size_t t, size_t pixel, size_t* at) const {
    const auto kw = static_cast<size_t>(s.x.kernel), kernel = kw * static_cast<size_t>(s.y.kernel);
    const int64_t column = s.x.at(static_cast<int64_t>(pixel % q), static_cast<int64_t>(t % kw));
    const int64_t row = s.y.at(static_cast<int64_t>(pixel / q), static_cast<int64_t>(t % kernel / kw));
    if (column < 0 || column >= s.x.in || row < 0 || row >= s.y.in) return false;
    *at = ((n * s.in_channels + t / kernel) * static_cast<size_t>(s.y.in) + static_cast<size_t>(row)) *
              static_cast<size_t>(s.x.in) + static_cast<size_t>(column);
    return true;
  }
  double tap(size_t n, size_t t, size_t pixel) {
    size_t at;
    const double value = find(n, t, pixel, &at) ? static_cast<double>(trial.x.at(at)) : 0.0;
    return value - static_cast<double>(centre[t / (taps / s.in_channels)]);
  }
  double dz(size_t n, size_t o, size_t pixel, bool is_masked) {
    const size_t i = (n * s.out_channels + o) * pixels + pixel;
    return is_masked && !(y.at(i) > 0.0f) ? 0.0 : static_cast<double>(trial.y.at(i));
  }
  double w(size_t o, size_t t) const { return static_cast<double>(trial.w.values[o * taps + t]); }
  Taps call_taps() { return {trial.x.planes(), centre.data()}; }
  Masked call_dz(bool is_masked) { return {trial.y.planes(), is_masked ? y.planes() : Planes{}}; }

  void check_sums(const std::vector<double>& got, const std::vector<double>& expected, const char* what,
                  const std::string& on) const {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (got[i] == expected[i]) continue;
      CHECK(false, "%s on %s, %s: %g at %zu, expected %g", what, on.c_str(), text_of(s).c_str(), got[i], i,
            expected[i]);
      return;
    }
  }

  void check_moments(const Kernels& kernels, const std::string& on) {
    std::vector<double> got(taps * (taps + 1)), expected(got.size(), 0.0), values(taps);
    for (size_t n = 0; n < s.batch; ++n)
      for (size_t p = 0; p < pixels; ++p) {
        for (size_t t = 0; t < taps; ++t) expected[t] += values[t] = tap(n, t, p);
        for (size_t i = 0; i < taps * taps; ++i) expected[taps + i] += values[i / taps] * values[i % taps];
      }
    tap_moments(kernels, s, call_taps(), 1, got.data(), workspace(tap_moments_bytes(s)));
    check_sums(got, expected, "moments", on);
  }
  void check_standardize(const Kernels& kernels, float low, const std::string& on) {
    const float* bias = trial.bias.values.data();
    compare(trial, trial.y, "standardize", on,
            [&](Tensor& to) {
              standardize(kernels, s, {call_taps(), trial.w.values.data(), bias, low, to.planes()}, 1);
            },
            [&](Tensor& to) {
              for (size_t i = 0; i < to.count(); ++i) {
                const size_t o = i / pixels % s.out_channels;
                double sum = static_cast<double>(bias[o]);
                for (size_t t = 0; t < taps; ++t) sum += w(o, t) * tap(i / pixels / s.out_channels, t, i % pixels);
                to.at(i) = std::max(low, static_cast<float>(sum));
              }
            });
  }
  void check_masked_sums(const Kernels& kernels, bool is_masked, const std::string& on) {
    std::vector<double> got(s.out_channels * (taps + 1)), expected(got.size(), 0.0);
    for (size_t i = 0; i < s.batch * s.out_channels * pixels; ++i) {
      const size_t n = i / pixels / s.out_channels, o = i / pixels % s.out_channels;
      const double gradient = dz(n, o, i % pixels, is_masked);
      for (size_t t = 0; t < taps; ++t) expected[o * taps + t] += gradient * tap(n, t, i % pixels);
      expected[s.out_channels * taps + o] += gradient;
    }
    masked_sums(kernels, s, call_taps(), call_dz(is_masked), 1, got.data(), workspace(masked_sums_bytes(s)));
    check_sums(got, expected, is_masked ? "masked sums" : "sums", on);
  }
  void check_input_gradient(const Kernels& kernels, bool is_masked, bool accumulate, const std::string& on) {
    compare(trial, trial.x, accumulate ? "dx, accumulated" : "dx", on,
            [&](Tensor& to) {
              norm_input_gradient(kernels, s, {call_taps(), call_dz(is_masked), trial.w.values.data(),
                                               start.values.data(), slope.values.data(), to.planes(), accumulate}, 1);
            },
            [&](Tensor& to) {
              for (size_t i = 0; i < to.count() && !accumulate; ++i) to.at(i) = 0.0f;
              for (size_t i = 0; i < s.batch * pixels * taps; ++i) {
                const size_t n = i / taps / pixels, p = i / taps % pixels, t = i % taps;
                size_t at;
                if (!find(n, t, p, &at)) continue;
                double g = static_cast<double>(start.values[t]);
                for (size_t k = 0; k < taps; ++k) g += static_cast<double>(slope.values[k * taps + t]) * tap(n, k, p);
                for (size_t o = 0; o < s.out_channels; ++o) g += w(o, t) * dz(n, o, p, is_masked);
                to.at(at) += static_cast<float>(g);
              }
            });
  }
};

void check_norm(const Problem& s, size_t gap, Random& random) {
  CHECK(fits_norm(s), "does not fit: %s", text_of(s).c_str());
  if (!fits_norm(s)) return;
  NormTrial trial(s, gap, random);
  for (const auto& target : all_targets(targets)) {
    trial.check_moments(*target.kernels, target.name);
    for (float low : {0.0f, -std::numeric_limits<float>::infinity()})
      trial.check_standardize(*target.kernels, low, target.name);
    for (bool is_masked : {false, true}) {
      trial.check_masked_sums(*target.kernels, is_masked, target.name);
      trial.check_input_gradient(*target.kernels, is_masked, is_masked, target.name);
    }
  }
}

}  // namespace

TEST(few_channels_every_width) {
  Random random{1};
  for (int64_t w = 1; w <= 50; ++w)
    for (int64_t stride : {1, 2})
      passes.check(make_problem(2, 1, 7, make_axis(w, 3, stride, 1, 1, 1), make_axis(5, 3, stride, 1, 1, 1)),
                    static_cast<size_t>(w % 3), random);
}

TEST(few_channels_every_height) {
  Random random{2};
  for (int64_t h = 1; h <= 20; ++h)
    for (int64_t stride : {1, 2})
      passes.check(make_problem(1, 2, 5, make_axis(9, 3, stride, 1, 1, 1), make_axis(h, 3, stride, 1, 1, 1)), 0,
                    random);
}

TEST(few_channels_random_geometry) {
  Random random{3};
  for (int round = 0; round < 600; ++round) {
    const Axis x = random_axis(random), y = random_axis(random);
    const size_t c = random.between(1, 4);
    if (c * static_cast<size_t>(x.kernel * y.kernel) > kMostTaps) continue;
    passes.check(make_problem(random.between(1, 3), c, random.between(1, 9), x, y),
                  random.below(3), random);
  }
}

// Planes that are done in bands, and a batch that is summed in several segments.
TEST(few_channels_large_planes) {
  Random random{4};
  passes.check(make_problem(3, 1, 4, make_axis(200, 3, 1, 1, 1, 1), make_axis(150, 3, 1, 1, 1, 1)), 1, random);
  passes.check(make_problem(2, 2, 3, make_axis(151, 5, 2, 1, 2, 2), make_axis(131, 5, 2, 1, 2, 2)), 0, random);
  passes.check(make_problem(1, 1, 2, make_axis(99, 7, 1, 3, 9, 9), make_axis(120, 7, 3, 2, 6, 6)), 0, random);
}

// Samples that are summed several at a time, the last of a segment alone.
TEST(few_channels_many_samples) {
  Random random{7};
  for (size_t n : {25, 41})
    for (size_t gap : {0, 1})
      passes.check(make_problem(n, 1, 4, make_axis(9, 3, 1, 1, 1, 1), make_axis(7, 3, 1, 1, 1, 1)), gap, random);
}

TEST(few_channels_norm_every_width) {
  Random random{8};
  for (int64_t w = 1; w <= 36; ++w)
    check_norm(make_problem(2, 1, 5, make_axis(w, 3, 1, 1, 1, 1), make_axis(4, 3, 1, 1, 1, 1)),
               static_cast<size_t>(w % 3), random);
}

TEST(few_channels_norm_random_geometry) {
  Random random{9};
  for (int round = 0; round < 100; ++round) {
    auto axis = [&] {
      const int64_t kernel = random.from({1, 2, 3, 3, 4, 5}), stride = random.from({1, 1, 1, 2, 3});
      const int64_t before = static_cast<int64_t>(random.below(4)), after = static_cast<int64_t>(random.below(4));
      return make_axis(static_cast<int64_t>(random.between(1, 20)), kernel, stride, random.from({1, 1, 2}), before,
                       after);
    };
    const Axis x = axis(), y = axis();
    const size_t c = random.between(1, 3);
    if (c * static_cast<size_t>(x.kernel * y.kernel) > 32) continue;
    check_norm(make_problem(random.between(1, 12), c, random.between(1, 7), x, y), random.below(3), random);
  }
}

TEST(few_channels_norm_large_planes) {
  Random random{10};
  check_norm(make_problem(2, 1, 3, make_axis(100, 3, 1, 1, 1, 1), make_axis(70, 3, 1, 1, 1, 1)), 1, random);
  check_norm(make_problem(1, 2, 2, make_axis(131, 3, 2, 1, 1, 1), make_axis(90, 3, 2, 1, 1, 1)), 0, random);
}

TEST(few_channels_infinity_stays_local) {
  Random random{5};
  for (int64_t w : {5, 7, 9, 17, 20, 33})
    for (int64_t stride : {1, 2})
      passes.check_infinity(
          make_problem(1, 2, 3, make_axis(w, 3, stride, 1, 0, 0), make_axis(7, 3, stride, 1, 0, 0)), random);
}

TEST(few_channels_same_bits_for_any_threads) {
  Random random{6};
  for (size_t c : {1, 3})
    passes.check_threads(make_problem(9, c, 20, make_axis(45, 3, 1, 1, 1, 1), make_axis(50, 3, 2, 1, 1, 1)), random);
}

TEST(few_channels_refuses_what_it_cannot_do) {
  const Axis axis = make_axis(8, 3, 1, 1, 1, 1);
  CHECK(!fits({1, 4, 4, 2, axis, axis}), "two groups");
  CHECK(!fits({1, 64, 64, 1, axis, axis}), "many channels");
  const Axis large = make_axis(30, 9, 1, 1, 4, 4);
  CHECK(!fits({1, 1, 4, 1, large, large}), "more taps than planned for");
  CHECK(!fits({1, 1, 10000, 1, axis, axis}), "more sums than scratch holds");
  const Axis wide = make_axis(int64_t{1} << 20, 3, 1, 1, 1, 1);
  CHECK(!fits({1, 1, 4, 1, wide, axis}), "a row that does not fit the stage");
}

TEST(few_channels_fits_where_it_wins) {
  const Axis axis = make_axis(20, 3, 1, 1, 1, 1), halving = make_axis(20, 3, 2, 1, 1, 1);
  const auto forward = few_channels_forward.fits;
  const auto input = few_channels_input_gradient.fits, weights = few_channels_weight_gradient.fits;
  const Problem digits = {32, 1, 32, 1, axis, axis}, colours = {32, 3, 32, 1, axis, axis};
  const Problem few_outputs = {32, 3, 3, 1, axis, axis};
  CHECK(forward(digits) && input(digits) && weights(digits), "one channel");
  CHECK(forward(colours) && !input(colours) && !weights(colours), "three channels");
  CHECK(input({32, 3, 32, 1, halving, halving}), "three channels, stride 2");
  CHECK(!forward(few_outputs) && !input(few_outputs) && weights(few_outputs), "three outputs");
}

}  // namespace obn::convolution::few_channels
