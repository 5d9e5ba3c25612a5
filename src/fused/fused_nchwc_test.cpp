// The kernels of fused_nchwc.h against the formulas, on every target. Values are whole numbers, so that sums are exact
// and equal pixels frequent.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/test.h"
#include "convolution/algorithm_test.h"
#include "fused/fused_nchwc_kernels.h"

namespace obn::fused::nchwc {
namespace {

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  std::vector<float> wholes(size_t n) {
    std::vector<float> all(n);
    for (float& v : all) v = static_cast<float>(between(0, 6)) - 3.0f;
    return all;
  }
};

struct Case {
  size_t rows, columns, channels;  // of a plane, of a group
  bool clips;
};

void check(const Kernels& kernels, const char* on, Case k, Random& random) {
  const size_t lanes = kernels.lanes, row = (k.columns + 1) / 2 * 2 * lanes;
  k.channels = std::min(k.channels, lanes);
  const size_t window_rows = k.rows / 2, window_columns = k.columns / 2, windows = window_rows * window_columns;
  const std::vector<float> z = random.wholes((k.rows + 1) / 2 * 2 * row), mean = random.wholes(lanes),
                           scale = random.wholes(lanes), shift = random.wholes(lanes), start = random.wholes(lanes),
                           slope = random.wholes(lanes), dy = random.wholes(lanes * windows);
  const auto at = [&](size_t r, size_t c, size_t lane) { return z[r * row + c * lanes + lane]; };

  std::vector<float> guess(lanes), sum(lanes), squares(lanes);
  kernels.moments({z.data(), row, k.rows, k.columns, guess.data(), sum.data(), squares.data()});
  const double n = static_cast<double>(k.rows * k.columns);
  for (size_t lane = 0; lane < lanes; ++lane) {
    double all = 0.0, all_squares = 0.0;
    for (size_t r = 0; r < k.rows; ++r)
      for (size_t c = 0; c < k.columns; ++c) all += static_cast<double>(at(r, c, lane));
    for (size_t r = 0; r < k.rows; ++r)
      for (size_t c = 0; c < k.columns; ++c) all_squares += std::pow(static_cast<double>(at(r, c, lane)) - all / n, 2);
    const double rest = static_cast<double>(sum[lane]);
    const double got = static_cast<double>(guess[lane]) + rest / n;
    const double got_squares = static_cast<double>(squares[lane]) - rest * rest / n;
    CHECK(std::fabs(got - all / n) < 1e-6, "%s: mean %g, expected %g", on, got, all / n);
    CHECK(std::fabs(got_squares - all_squares) < 1e-6 * (1.0 + all_squares), "%s: squares %g, expected %g", on,
          got_squares, all_squares);
  }

  // Which pixel of a window wins, the first of equal ones.
  const auto value = [&](size_t r, size_t c, size_t lane) {
    return (at(r, c, lane) - mean[lane]) * scale[lane] + shift[lane];
  };
  const auto winner_of = [&](size_t window, size_t lane) {
    const size_t r = window / window_columns * 2, c = window % window_columns * 2;
    size_t best = 0;
    for (size_t i = 1; i < 4; ++i)
      if (value(r + i / 2, c + i % 2, lane) > value(r + best / 2, c + best % 2, lane)) best = i;
    return best;
  };
  const float low = k.clips ? 0.0f : -std::numeric_limits<float>::infinity();
  std::vector<float> y(k.channels * windows + 1, 77.0f), winners(windows * lanes);
  kernels.maxima({z.data(), row, window_rows, window_columns, mean.data(), scale.data(), shift.data(), low, k.clips,
                  y.data(), windows, k.channels, winners.data()});
  CHECK(y.back() == 77.0f, "%s: written behind the last plane", on);
  std::vector<float> dz(windows * lanes), products(lanes), u_expected(k.rows * k.columns * lanes);
  kernels.winner_sums({dy.data(), windows, k.channels, windows, winners.data(), mean.data(), dz.data(), sum.data(),
                       products.data()});
  for (size_t i = 0; i < u_expected.size(); ++i) {
    const size_t lane = i % lanes;
    u_expected[i] = start[lane] - slope[lane] * (at(i / lanes / k.columns, i / lanes % k.columns, lane) - mean[lane]);
  }
  for (size_t lane = 0; lane < k.channels; ++lane) {
    float all = 0.0f, all_products = 0.0f;
    for (size_t i = 0; i < windows; ++i) {
      const size_t best = winner_of(i, lane), r = i / window_columns * 2 + best / 2;
      const size_t c = i % window_columns * 2 + best % 2;
      const float most = std::max(low, value(r, c, lane));
      CHECK(y[lane * windows + i] == most, "%s: y %g, expected %g", on,
            static_cast<double>(y[lane * windows + i]), static_cast<double>(most));
      if (k.clips && !(most > 0.0f)) {
        CHECK(std::isnan(winners[i * lanes + lane]) && dz[i * lanes + lane] == 0.0f, "%s: a winner at %zu", on, i);
        continue;
      }
      const float given = dy[lane * windows + i];
      CHECK(dz[i * lanes + lane] == given, "%s: dz at %zu", on, i);
      all += given;
      all_products += given * (at(r, c, lane) - mean[lane]);
      u_expected[(r * k.columns + c) * lanes + lane] += scale[lane] * given;
    }
    CHECK(sum[lane] == all && products[lane] == all_products, "%s: sums %g and %g, expected %g and %g", on,
          static_cast<double>(sum[lane]), static_cast<double>(products[lane]), static_cast<double>(all),
          static_cast<double>(all_products));
  }

  const size_t u_rows = (k.rows + 1) / 2 * 2 + 2, u_columns = (k.columns + 1) / 2 * 2 + 2;
  std::vector<float> u(u_rows * u_columns * lanes + 1, 77.0f);
  kernels.gradient({z.data(), row, k.rows, k.columns, window_rows, window_columns, winners.data(), dz.data(),
                    mean.data(), scale.data(), start.data(), slope.data(), u.data(), u_rows, u_columns});
  CHECK(u.back() == 77.0f, "%s: written behind u", on);
  for (size_t i = 0; i + 1 < u.size(); ++i) {
    const size_t lane = i % lanes, r = i / lanes / u_columns, c = i / lanes % u_columns;
    if (lane >= k.channels) continue;
    const bool is_inside = r >= 1 && c >= 1 && r <= k.rows && c <= k.columns;
    const float expected = is_inside ? u_expected[((r - 1) * k.columns + c - 1) * lanes + lane] : 0.0f;
    CHECK(u[i] == expected, "%s: u at (%zu, %zu) is %g, expected %g", on, r, c, static_cast<double>(u[i]),
          static_cast<double>(expected));
  }
}

}  // namespace

TEST(fused_nchwc_every_target_by_the_formulas) {
  Random random{3};
  for (const auto& target : test::all_targets(targets))
    for (const bool clips : {true, false})
      for (const Case& k : {Case{14, 14, 99, clips}, Case{9, 7, 3, clips}, Case{2, 2, 1, clips},
                            Case{3, 12, 99, clips}, Case{12, 3, 2, clips}, Case{31, 33, 99, clips}})
        check(*target.kernels, target.name, k, random);
}

}  // namespace obn::fused::nchwc
