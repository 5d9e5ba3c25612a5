// Losses: the examples of the specification, every target against the reference loops, and those against central
// differences.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "loss/loss_test.h"

namespace obn::loss {

using namespace test;

TEST(loss_examples_of_the_specification) {
  float x[] = {1, 2, 3}, zero[3] = {}, y[3], dx[3];
  auto block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionNone, 3);
  BNNSFilter none = BNNSFilterCreateLayerLoss(&block, nullptr);
  BNNSNDArrayDescriptor gradient = vector_of(3, dx);
  CHECK(BNNSLossFilterApplyBatch(none, 1, x, 0, zero, 0, nullptr, 0, y, &gradient, 0) == 0, "%s", obn_last_error());
  CHECK(y[0] == 1 && y[1] == 4 && y[2] == 9, "%g %g %g", y[0], y[1], y[2]);
  CHECK(dx[0] == 2 && dx[1] == 4 && dx[2] == 6, "%g %g %g", dx[0], dx[1], dx[2]);
  float ones[] = {1, 1, 1};
  std::fill_n(dx, 3, 0.0f);
  const BNNSNDArrayDescriptor upstream = vector_of(3, ones);
  CHECK(BNNSLossFilterApplyBackwardBatch(none, 1, x, 0, &gradient, 0, zero, 0, nullptr, 0, &upstream, 0) == 0, "%s",
        obn_last_error());
  CHECK(dx[0] == 2 && dx[1] == 4 && dx[2] == 6, "%g %g %g", dx[0], dx[1], dx[2]);
  float l[] = {0, 2, 6};
  CHECK(BNNSLossFilterApplyBatch(none, 1, x, 0, l, 0, nullptr, 0, y, nullptr, 0) == 0, "%s", obn_last_error());
  CHECK(y[0] == 1 && y[1] == 0 && y[2] == 9, "%g %g %g", y[0], y[1], y[2]);
  BNNSFilterDestroy(none);
  for (Reduction reduction : {BNNSLossReductionSum, BNNSLossReductionMean}) {
    block = block_of(BNNSLossFunctionMeanSquareError, reduction, 3);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    CHECK(BNNSLossFilterApplyBatch(filter, 1, x, 0, l, 0, nullptr, 0, y, nullptr, 0) == 0, "%s", obn_last_error());
    CHECK(near(y[0], reduction == BNNSLossReductionSum ? 10.0 : 10.0 / 3, 1e-7, 0), "%g", y[0]);
    BNNSFilterDestroy(filter);
  }
  float x10[] = {9, 1, 6, 3, 4, 5, 6, 7, 8, 9}, l10[10], dx10[10];
  for (int i = 0; i < 10; ++i) l10[i] = static_cast<float>(i);
  block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionSum, 10);
  BNNSFilter sum = BNNSFilterCreateLayerLoss(&block, nullptr);
  gradient = vector_of(10, dx10);
  CHECK(BNNSLossFilterApplyBatch(sum, 1, x10, 0, l10, 0, nullptr, 0, y, &gradient, 0) == 0, "%s", obn_last_error());
  CHECK(y[0] == 97, "%g", y[0]);
  for (int i = 0; i < 10; ++i) CHECK(dx10[i] == (i == 0 ? 18 : (i == 2 ? 8 : 0)), "%d: %g", i, dx10[i]);
  BNNSFilterDestroy(sum);
}

// ---- kernels against the reference, every target ----

TEST(loss_values_match_ref_on_every_target) {
  Random random(11);
  std::vector<size_t> sizes;
  for (size_t n = 1; n <= 70; ++n) sizes.push_back(n);
  sizes.insert(sizes.end(), {255, 1000, 2048});
  for (Function function : kAll) {
    if (!loss::ref::is_per_value(function)) continue;
    for (size_t n : sizes) {
      std::vector<float> x(n), l(n), w(n);
      for (size_t i = 0; i < n; ++i) {
        x[i] = input_of(function, random);
        l[i] = label_of(function, random);
        w[i] = random.uniform(-1.0f, 2.0f);
      }
      const bool w_moves = random.coin();
      loss::ref::Problem problem{function, BNNSLossReductionNone};
      problem.label_smooth = function == BNNSLossFunctionSigmoidCrossEntropy ? 0.125 : 0.0;
      problem.delta = 0.75;
      problem.n = n;
      const std::vector<double> xd = doubles(x), ld = doubles(l), wd = doubles(w), dy(n, 0.5);
      problem.x = xd.data();
      problem.l = ld.data();
      problem.w = wd.data();
      problem.weights = w_moves ? n : 1;
      std::vector<double> y(n), dx(n);
      loss::ref::run(problem, y.data(), dy.data(), dx.data());
      double sum = 0, size = 0;
      for (double v : y) {
        sum += v;
        size += std::fabs(v);
      }
      Shape shape;
      shape.label_scale = 1.0f - static_cast<float>(problem.label_smooth);
      shape.label_shift = static_cast<float>(problem.label_smooth) / 2;
      shape.delta = 0.75f;
      for (Isa isa : kIsas) {
        if (!has_isa(isa)) continue;
        const ValueLoss kernel = targets.at(isa).values[function];
        for (int mode = 0; mode < 5; ++mode) {  // sum, sum and slopes, values, values and slopes, slopes
          std::vector<float> got_y(n + 1, 77.0f), got_dx(n + 1, 77.0f);
          const bool keeps = mode == 2 || mode == 3, slopes = mode != 0 && mode != 2;
          const ValueRun run{x.data(), l.data(), w.data(), w_moves, n, shape, 0.5f, mode < 2,
                             keeps ? got_y.data() : nullptr, slopes ? got_dx.data() : nullptr};
          const float got = kernel(run);
          if (mode < 2)
            CHECK(near(got, sum, 2e-6, size), "%d %s %zu: %g, want %g", function, name_of(isa), n, got, sum);
          for (size_t i = 0; i < n; ++i) {
            if (keeps)
              CHECK(near(got_y[i], y[i], 2e-6, 0.1), "%d %s: %g, want %g", function, name_of(isa), got_y[i], y[i]);
            if (slopes)
              CHECK(near(got_dx[i], dx[i], 3e-6, 0.1), "%d %s x %g l %g: slope %g, want %g", function, name_of(isa),
                    x[i], l[i], got_dx[i], dx[i]);
          }
          CHECK(got_y[n] == 77.0f && got_dx[n] == 77.0f, "%d writes beyond the end", function);
        }
      }
    }
  }
}

TEST(loss_rows_match_ref_on_every_target) {
  Random random(12);
  for (size_t n = 1; n <= 90; ++n) {
    for (bool categorical : {false, true}) {
      std::vector<float> x(n), l(n), w(n);
      for (size_t i = 0; i < n; ++i) {
        x[i] = random.uniform(-30.0f, 5.0f);
        l[i] = categorical ? static_cast<float>(random.coin()) : random.uniform(0.0f, 1.0f);
        w[i] = random.uniform(0.0f, 2.0f);
      }
      l[random.below(n)] = 1.0f;
      const bool w_moves = random.coin(), has_labels = categorical || random.below(4);
      Shape shape;
      if (!categorical && has_labels) shape = {0.75f, 0.125f, 1.0f};
      double m = -HUGE_VAL, total = 0, labels = 0, distance = 0, product = 0, sum = 0;
      for (float v : x) m = std::max(m, double{v});
      const auto label = [&](size_t i) {
        return has_labels ? double{l[i]} * shape.label_scale + shape.label_shift : 0.0;
      };
      const auto weight = [&](size_t i) { return double{w[w_moves ? i : 0]}; };
      for (size_t i = 0; i < n; ++i) {
        total += std::exp(x[i] - m);
        labels += weight(i) * label(i);
        distance += weight(i) * label(i) * (m - x[i]);
        product += weight(i) * l[i] * x[i];
        sum += w[i];
      }
      for (Isa isa : kIsas) {
        if (!has_isa(isa)) continue;
        const Kernels& kernels = targets.at(isa);
        std::vector<float> e(n + 1, 77.0f), dx(n + 1, 77.0f);
        const SoftmaxRun run{x.data(), has_labels ? l.data() : nullptr, w.data(), w_moves, n, shape, e.data()};
        SoftmaxRun without = run;
        without.e = nullptr;
        for (const SoftmaxSums& sums : {kernels.softmax(run), kernels.softmax(without)}) {
          CHECK(double{sums.largest} == m, "%s: largest %g, want %g", name_of(isa), sums.largest, m);
          CHECK(near(sums.total, total, 1e-6, 0), "%s: total %g, want %g", name_of(isa), sums.total, total);
          CHECK(near(sums.labels, labels, 1e-6, 1), "%s: labels %g, want %g", name_of(isa), sums.labels, labels);
          CHECK(near(sums.distance, distance, 1e-6, 1), "%s: distance %g, want %g", name_of(isa), sums.distance,
                distance);
        }
        CHECK(e[n] == 77.0f, "%s writes beyond the end", name_of(isa));
        CHECK(near(kernels.product(x.data(), l.data(), w.data(), w_moves, n), product, 1e-6,
                   30.0 * static_cast<double>(n)),
              "%s: product, want %g", name_of(isa), product);
        CHECK(near(kernels.sum(w.data(), n), sum, 1e-6, 1), "%s: sum, want %g", name_of(isa), sum);
        size_t nonzero = 0;
        for (float v : l) nonzero += v != 0.0f;
        CHECK(kernels.count_nonzero(l.data(), n) == nonzero, "%s: count, want %zu", name_of(isa), nonzero);
        for (bool exponentiates : {false, true}) {
          const SlopeRun slope{exponentiates ? x.data() : e.data(), run.l, w.data(), w_moves, n, shape, exponentiates,
                               static_cast<float>(m), 0.5f, 0.25f, dx.data()};
          (categorical ? kernels.categorical_slopes : kernels.slopes)(slope);
          for (size_t i = 0; i < n; ++i) {
            const double p = std::exp(x[i] - m) * 0.5;
            double want = p - weight(i) * label(i) * 0.25;
            if (categorical) want = l[i] != 0.0f ? weight(i) * (p - 0.25) : p;
            CHECK(near(dx[i], want, 1e-6, 1), "%s: slope %g, want %g", name_of(isa), dx[i], want);
          }
          CHECK(dx[n] == 77.0f, "%s writes beyond the end", name_of(isa));
        }
      }
    }
  }
}

TEST(loss_short_rows_match_ref_on_every_target) {
  Random random(21);
  for (int round = 0; round < 400; ++round) {
    size_t n = random.between(1, 70);
    if (round % 3 == 0) n = random.between(1, 16);  // a vector each, on some targets
    if (round > 380) n = random.between(900, kShortRow);
    const size_t rows = random.between(1, 40);
    const bool categorical = random.coin(), classes = random.coin(), has_dy = random.coin(), wants_dx = random.below(4);
    const Function function =
        categorical ? BNNSLossFunctionCategoricalCrossEntropy : BNNSLossFunctionSoftmaxCrossEntropy;
    std::vector<float> x(rows * n), l(rows * n), zeros(n), w(rows * n), dy(rows);
    std::vector<size_t> labels(rows);
    std::vector<double> ld(rows * n);
    for (size_t i = 0; i < rows * n; ++i) {
      x[i] = random.uniform(-8.0f, 8.0f);
      l[i] = label_of(function, random);
      w[i] = random.uniform(0.0f, 2.0f);
    }
    for (size_t b = 0; b < rows; ++b) {
      labels[b] = random.below(n);
      dy[b] = has_dy ? random.uniform(-1.0f, 1.0f) : 1.0f;
      for (size_t i = 0; i < n; ++i) ld[b * n + i] = classes ? i == labels[b] : l[b * n + i];
    }
    loss::ref::Problem p{function, BNNSLossReductionNone};
    p.label_smooth = categorical || random.coin() ? 0.0 : 0.25;
    p.b = rows;
    p.n = n;
    p.weights = std::vector<size_t>{1, rows, rows * n}[random.below(3)];
    const std::vector<double> xd = doubles(x), wd = doubles(w), dyd = doubles(dy);
    p.x = xd.data();
    p.l = ld.data();
    p.w = wd.data();
    std::vector<double> want_y(rows), want_dx(rows * n);
    loss::ref::run(p, want_y.data(), dyd.data(), want_dx.data());
    const bool per_row = p.weights == rows && p.weights != 1, per_value = p.weights == rows * n && !per_row && n > 1;
    RowsRun run{x.data(), classes ? nullptr : l.data(), classes ? 0 : n, classes ? labels.data() : nullptr, w.data(),
                per_row ? size_t{1} : (per_value ? n : 0), per_value, n, rows, {}, categorical, 0.5f,
                has_dy ? dy.data() : nullptr, nullptr, nullptr};
    run.shape.label_scale = 1.0f - static_cast<float>(p.label_smooth);
    run.shape.label_shift = static_cast<float>(p.label_smooth) / static_cast<float>(n);
    if (classes && run.shape.label_shift != 0.0f) run.l = zeros.data();
    for (Isa isa : kIsas) {
      if (!has_isa(isa)) continue;
      std::vector<float> y(rows + 1, 77.0f), dx(rows * n + 1, 77.0f);
      run.y = y.data();
      run.dx = wants_dx ? dx.data() : nullptr;
      targets.at(isa).softmax_rows(run);
      for (size_t b = 0; b < rows; ++b)
        CHECK(near(y[b], want_y[b], 3e-6, 1), "%s, round %d: %g, want %g", name_of(isa), round, y[b], want_y[b]);
      for (size_t i = 0; wants_dx && i < rows * n; ++i)
        CHECK(near(dx[i], 0.5 * want_dx[i], 3e-6, 1), "%s, round %d: slope %g, want %g", name_of(isa), round, dx[i],
              0.5 * want_dx[i]);
      CHECK(y[rows] == 77.0f && dx[rows * n] == 77.0f, "%s writes beyond the end", name_of(isa));
    }
  }
}

// ---- the reference against central differences ----

TEST(loss_ref_gradients_are_derivatives) {
  Random random(13);
  for (Function function : kAll) {
    // The gradients of these three are not derivatives of their values (docs/interface/loss.md 3.5, 3.6, 3.9).
    const double slack = function == BNNSLossFunctionLog ? 1e-3 : 1e-6;
    if (function == BNNSLossFunctionCosineDistance || function == BNNSLossFunctionCategoricalCrossEntropy) continue;
    for (int r = 0; r <= 4; ++r) {
      loss::ref::Problem p{function, static_cast<Reduction>(r)};
      p.label_smooth = function <= BNNSLossFunctionSigmoidCrossEntropy ? 0.1 : 0.0;
      p.b = 3;
      p.n = 4;
      std::vector<double> x(12), l(12), w(12), dy(12), dx(12), unused(12);
      for (size_t i = 0; i < 12; ++i) {
        x[i] = input_of(function, random);
        l[i] = label_of(function, random);
        w[i] = random.below(4) ? random.uniform(0.5f, 2.0f) : 0.0;
        dy[i] = random.uniform(-1.0f, 1.0f);
      }
      p.x = x.data();
      p.l = l.data();
      p.w = w.data();
      p.weights = std::vector<size_t>{0, 1, 3, 12}[random.below(4)];
      loss::ref::run(p, nullptr, dy.data(), dx.data());
      const size_t outputs = r == 0 ? (loss::ref::is_per_value(function) ? 12 : 3) : 1;
      const auto objective = [&] {
        std::vector<double> y(12);
        loss::ref::run(p, y.data(), nullptr, nullptr);
        double sum = 0;
        for (size_t k = 0; k < outputs; ++k) sum += dy[k] * y[k];
        return sum;
      };
      for (size_t i = 0; i < 12; ++i) {
        const double at = x[i], h = 1e-5;
        x[i] = at + h;
        const double above = objective();
        x[i] = at - h;
        const double below = objective();
        x[i] = at;
        CHECK(near(dx[i], (above - below) / (2 * h), slack, 1), "%d, reduction %d: %g, differences say %g", function, r,
              dx[i], (above - below) / (2 * h));
      }
    }
  }
}

}  // namespace obn::loss
