// Fused layers with a pooling at the end, the kernels of the windows: against the formulas on every target.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "convolution/algorithm_test.h"
#include "fused/fused_windows.h"

namespace obn::fused {
namespace {

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  float value() { return static_cast<float>(static_cast<double>(below(1 << 20)) / (1 << 19) - 1.0); }
  float whole() { return static_cast<float>(between(0, 6)) - 3.0f; }  // sums of products are exact, and often equal
  std::vector<float> values(size_t n) {
    std::vector<float> all(n);
    for (float& v : all) v = value();
    return all;
  }
  std::vector<float> wholes(size_t n) {
    std::vector<float> all(n);
    for (float& v : all) v = whole();
    return all;
  }
};

using convolution::Axis;
using convolution::Planes;
using convolution::Problem;

struct KernelCase {
  size_t n, c, o, h, w, kernel, stride, pad;
  size_t window, step;
};

void check_kernels(const KernelCase& k, Random& random) {
  const size_t p = (k.h + 2 * k.pad - k.kernel) / k.stride + 1, q = (k.w + 2 * k.pad - k.kernel) / k.stride + 1;
  const auto axis = [&](size_t in, size_t out) {
    const auto i = [](size_t v) { return static_cast<int64_t>(v); };
    return Axis{i(in), i(out), i(k.kernel), i(k.stride), 1, i(k.pad)};
  };
  const Problem s = {k.n, k.c, k.o, 1, axis(k.w, q), axis(k.h, p)};
  const windows::Windows windows = {(p - k.window) / k.step + 1, (q - k.window) / k.step + 1,
                                    k.window, k.window, k.step, k.step};
  windows::Plan plan;
  const bool is_planned = windows::make_plan(s, windows, &plan);
  CHECK(is_planned, "O %zu of (%zu, %zu, %zu)", k.o, k.c, k.h, k.w);
  if (!is_planned) return;
  const size_t taps = k.c * k.kernel * k.kernel, count = windows.rows * windows.columns;
  std::vector<float> x = random.wholes(k.n * k.c * k.h * k.w), w = random.wholes(k.o * taps),
                     bias = random.wholes(k.o), dy = random.wholes(k.n * k.o * count), centre(k.c, 1.0f);
  const Planes from = {x.data(), k.w, k.h * k.w, k.c * k.h * k.w};
  const Planes of_dy = {dy.data(), windows.columns, count, k.o * count};

  // By the formulas.
  const auto tap = [&](size_t n, size_t t, size_t row, size_t column) {
    const auto y = static_cast<int64_t>(row * k.stride + t / k.kernel % k.kernel) - static_cast<int64_t>(k.pad);
    const auto u = static_cast<int64_t>(column * k.stride + t % k.kernel) - static_cast<int64_t>(k.pad);
    const size_t c = t / (k.kernel * k.kernel);
    const bool inside = y >= 0 && u >= 0 && y < static_cast<int64_t>(k.h) && u < static_cast<int64_t>(k.w);
    const size_t at = inside ? ((n * k.c + c) * k.h + static_cast<size_t>(y)) * k.w + static_cast<size_t>(u) : 0;
    return (inside ? x[at] : 0.0f) - centre[c];
  };
  for (const bool clips : {true, false}) {
    const float low = clips ? 0.0f : -std::numeric_limits<float>::infinity();
    std::vector<float> expected(k.n * k.o * count);
    std::vector<uint8_t> winners(expected.size());
    std::vector<double> sums(k.o * (taps + 1), 0.0);
    for (size_t i = 0; i < expected.size(); ++i) {
      const size_t n = i / count / k.o, o = i / count % k.o, row = i % count / windows.columns * k.step;
      const size_t column = i % windows.columns * k.step;
      float best = 0.0f;
      size_t winner = 0;
      for (size_t j = 0; j < k.window * k.window; ++j) {
        float z = bias[o];
        for (size_t t = 0; t < taps; ++t) z += w[o * taps + t] * tap(n, t, row + j / k.window, column + j % k.window);
        z = std::max(low, z);
        if (j > 0 && !(z > best)) continue;
        best = z;
        winner = j;
      }
      expected[i] = best;
      const bool is_dead = clips && !(best > 0.0f);
      winners[i] = is_dead ? windows::kNoWinner : static_cast<uint8_t>(winner);
      if (is_dead) continue;
      for (size_t t = 0; t < taps; ++t)
        sums[o * taps + t] += static_cast<double>(dy[i]) *
                              static_cast<double>(tap(n, t, row + winner / k.window, column + winner % k.window));
      sums[k.o * taps + o] += static_cast<double>(dy[i]);
    }
    std::vector<float> dz(k.n * k.o * p * q, 9.0f);
    windows::scatter(s, windows, of_dy, winners.data(), 2, dz.data());
    double all = 0.0, all_dz = 0.0;
    for (size_t o = 0; o < k.o; ++o) all += sums[k.o * taps + o];
    for (float v : dz) all_dz += static_cast<double>(v);
    CHECK(all == all_dz, "scattered %g of %g", all_dz, all);

    for (const auto& target : test::all_targets(windows::targets)) {
      std::vector<float> y(expected.size() + 1, -7.0f);
      std::vector<uint8_t> got(winners.size() + 1, 77);
      const Planes to = {y.data(), windows.columns, count, k.o * count};
      std::vector<float> shared(k.o * 12);
      for (const bool shares : {false, true}) {
        if (shares && !windows::shares_weights(plan)) continue;
        if (shares) windows::share_weights(plan, w.data(), shared.data());
        std::fill(y.begin(), y.end(), -7.0f);
        std::fill(got.begin(), got.end(), uint8_t{77});
        windows::maxima(*target.kernels, plan,
                        {{from, centre.data()}, w.data(), shares ? shared.data() : nullptr, bias.data(), low, clips, to,
                         got.data()},
                        1);
        const char* on = target.name;
        CHECK(std::equal(expected.begin(), expected.end(), y.begin()) && y.back() == -7.0f, "y on %s", on);
        CHECK(std::equal(winners.begin(), winners.end(), got.begin()) && got.back() == 77, "winners on %s", on);
      }
      if (!plan.in_pairs) continue;
      std::vector<double> totals(sums.size(), -1.0);
      std::vector<std::byte> work(windows::winner_sums_bytes(plan));
      windows::winner_sums(*target.kernels, plan, {{from, centre.data()}, of_dy, winners.data()}, 1, totals.data(),
                           work.data());
      CHECK(totals == sums, "sums on %s: N %zu O %zu (%zu, %zu, %zu)", target.name, k.n, k.o, k.c, k.h, k.w);
    }
  }
}

}  // namespace

TEST(fused_windows_every_target_by_the_formulas) {
  Random random{1};
  check_kernels({2, 1, 5, 20, 20, 3, 1, 1, 2, 2}, random);
  check_kernels({1, 1, 1, 8, 9, 3, 1, 0, 2, 2}, random);    // fewer windows than lanes
  check_kernels({3, 2, 6, 9, 13, 3, 1, 1, 2, 3}, random);   // windows apart
  check_kernels({9, 1, 7, 11, 12, 3, 1, 1, 2, 2}, random);  // odd plane, more samples than segments
  check_kernels({2, 1, 4, 13, 13, 3, 1, 1, 3, 3}, random);
  check_kernels({2, 2, 3, 17, 15, 3, 2, 1, 2, 2}, random);
  check_kernels({1, 1, 3, 14, 18, 5, 1, 2, 2, 2}, random);
  check_kernels({1, 1, 3, 60, 130, 3, 1, 1, 2, 2}, random);  // several bands
  check_kernels({1, 1, 2, 21, 18, 3, 1, 1, 1, 2}, random);   // windows of one pixel
  // Samples whose last windows share vectors: whole groups and what is left of one.
  check_kernels({33, 1, 7, 20, 20, 3, 1, 1, 2, 2}, random);
  check_kernels({35, 1, 4, 12, 12, 3, 1, 1, 2, 2}, random);
  check_kernels({6, 1, 3, 28, 28, 3, 1, 1, 2, 2}, random);
  check_kernels({33, 1, 5, 10, 14, 3, 1, 1, 2, 2}, random);
}

TEST(fused_windows_samples_do_not_see_each_other) {
  constexpr size_t kBatch = 11, kOutputs = 5, kSize = 20, kWindows = 100;
  Random random{2};
  std::vector<float> x = random.values(kBatch * kSize * kSize), w = random.values(kOutputs * 9);
  const std::vector<float> bias = random.values(kOutputs);
  x[2 * kSize * kSize + kSize * kSize - 1] = std::numeric_limits<float>::quiet_NaN();  // in the last window
  x[5 * kSize * kSize + 7] = 3e38f;
  const Axis axis = {kSize, kSize, 3, 1, 1, 1};
  const auto run = [&](const windows::Kernels& kernels, size_t first, size_t n, float* y, uint8_t* winners) {
    windows::Plan plan;
    CHECK(windows::make_plan({n, 1, kOutputs, 1, axis, axis}, {10, 10, 2, 2, 2, 2}, &plan), "no plan");
    std::vector<float> shared(kOutputs * 12);
    windows::share_weights(plan, w.data(), shared.data());
    const Planes from = {x.data() + first * kSize * kSize, kSize, kSize * kSize, kSize * kSize};
    windows::maxima(kernels, plan,
                    {{from, nullptr}, w.data(), shared.data(), bias.data(), 0.0f, true,
                     {y, 10, kWindows, kOutputs * kWindows}, winners},
                    1);
  };
  for (const auto& target : convolution::test::all_targets(windows::targets)) {
    std::vector<float> all(kBatch * kOutputs * kWindows), alone(all.size());
    std::vector<uint8_t> winners(all.size()), winners_alone(all.size());
    run(*target.kernels, 0, kBatch, all.data(), winners.data());
    for (size_t n = 0; n < kBatch; ++n) {
      const size_t at = n * kOutputs * kWindows;
      run(*target.kernels, n, 1, alone.data() + at, winners_alone.data() + at);
    }
    CHECK(std::memcmp(all.data(), alone.data(), all.size() * sizeof(float)) == 0, "y on %s", target.name);
    CHECK(winners == winners_alone, "winners on %s", target.name);
    CHECK(std::isnan(all[2 * kOutputs * kWindows + kWindows - 1]), "no NaN on %s", target.name);
  }
}

}  // namespace obn::fused
