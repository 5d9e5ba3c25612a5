#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "activation/activation.h"
#include "base/test.h"
#include "base/types.h"
#include "base/view.h"
#include "loss/loss.h"
#include "openbnns/openbnns.h"

using namespace obn;
using namespace obn::loss;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Losses that need no block of their own besides the four plain ones: all but YOLO.
constexpr Function kAll[] = {BNNSLossFunctionSoftmaxCrossEntropy, BNNSLossFunctionSigmoidCrossEntropy,
                             BNNSLossFunctionMeanSquareError,     BNNSLossFunctionHuber,
                             BNNSLossFunctionLog,                 BNNSLossFunctionCosineDistance,
                             BNNSLossFunctionHinge,               BNNSLossFunctionMeanAbsoluteError,
                             BNNSLossFunctionCategoricalCrossEntropy};

struct Random : obn::test::Random {
  using obn::test::Random::Random;
  float uniform(float low, float high) { return low + (high - low) * static_cast<float>(below(1 << 20)) * 0x1p-20f; }
};

BNNSNDArrayDescriptor vector_of(size_t n, void* data = nullptr, BNNSDataType type = BNNSDataTypeFloat32) {
  BNNSNDArrayDescriptor d{};
  d.layout = BNNSDataLayoutVector;
  d.size[0] = n;
  d.data_type = type;
  d.data = data;
  return d;
}

// Any of the blocks but YOLO's: they share their first four fields and the place of the fifth.
BNNSLayerParametersLossHuber block_of(Function function, Reduction reduction, size_t n, float fifth = 0.0f) {
  BNNSLayerParametersLossHuber p{};
  p.function = function;
  p.reduction = reduction;
  p.i_desc = vector_of(n);
  p.o_desc = vector_of(reduction == BNNSLossReductionNone && loss::ref::is_per_value(function) ? n : 1);
  p.huber_delta = fifth;
  return p;
}

// What x and labels of a loss look like.
float input_of(Function function, Random& random) {
  if (function == BNNSLossFunctionLog) return random.uniform(0.01f, 0.99f);
  return random.uniform(-4.0f, 4.0f);
}
float label_of(Function function, Random& random) {
  if (function == BNNSLossFunctionCategoricalCrossEntropy || function == BNNSLossFunctionHinge) return random.coin();
  if (function == BNNSLossFunctionMeanSquareError || function == BNNSLossFunctionHuber ||
      function == BNNSLossFunctionMeanAbsoluteError)
    return random.uniform(-3.0f, 3.0f);
  return random.below(3) ? random.uniform(0.0f, 1.0f) : static_cast<float>(random.coin());
}

std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

// |got - want| within `relative` of |want| + scale; equal infinities and two NaN agree.
bool near(double got, double want, double relative, double scale) {
  if (std::isnan(want) || std::isinf(want)) return std::isnan(want) ? std::isnan(got) : got == want;
  return std::fabs(got - want) <= relative * (std::fabs(want) + scale);
}

}  // namespace

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
    // The gradients of these three are not derivatives of their values (spec loss.md 3.5, 3.6, 3.9).
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

// ---- calls ----

namespace {

// One tensor of a call: values of `type` at any stride, in an allocation of their own, between guards.
struct Tensor {
  BNNSNDArrayDescriptor descriptor{};
  View view;
  size_t batch = 0, step = 0;
  std::vector<uint32_t> memory;

  Tensor(const BNNSNDArrayDescriptor& like, size_t samples, size_t gap, size_t stride0) : batch(samples) {
    descriptor = like;
    for (size_t& s : descriptor.stride) s = 0;
    descriptor.stride[0] = stride0;
    CHECK(read_view(descriptor, Access::write, "tensor", &view) == 0, "%s", obn_last_error());
    step = view.packed_batch + gap;
    memory.assign(batch * step + 2, 0x42424242);
    descriptor.data = memory.data() + 1;
  }
  void* data() const { return descriptor.data; }

  // Where value i of sample b lies.
  size_t offset(size_t b, size_t i) const {
    size_t at = b * step;
    for (size_t k = 0; k < view.rank; ++k) {
      at += i % view.extent[k] * view.stride[k];
      i /= view.extent[k];
    }
    return at;
  }
  activation::ref::Values values() const {
    return {descriptor.data, descriptor.data_type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
  }
  double get(size_t b, size_t i) const {
    double v;
    activation::ref::get_reals(values(), offset(b, i), 1, 1, &v);
    return v;
  }
  void put(size_t b, size_t i, double v) { activation::ref::put_reals(values(), offset(b, i), 1, 1, &v); }
};

}  // namespace

// Functions, reductions, weights, types, layouts, strides, class numbers, set or accumulate, at random.
TEST(loss_any_call_matches_ref) {
  Random random(14);
  constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutVector, BNNSDataLayoutVector, BNNSDataLayoutRowMajorMatrix,
                                         BNNSDataLayoutImageCHW, BNNSDataLayout4DFirstMajor};
  constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat32, BNNSDataTypeFloat16,
                                     BNNSDataTypeBFloat16};
  for (int round = 0; round < 4000; ++round) {
    const Function function = kAll[random.below(std::size(kAll))];
    const Reduction reduction = static_cast<Reduction>(random.below(5));
    const bool per_value = loss::ref::is_per_value(function), keeps = reduction == BNNSLossReductionNone;
    BNNSLayerParametersLossHuber block = block_of(function, reduction, 1);
    block.i_desc.layout = kLayouts[random.below(std::size(kLayouts))];
    block.i_desc.data_type = kTypes[random.below(std::size(kTypes))];
    const size_t rank = rank_of(block.i_desc.layout);
    for (size_t i = 0; i < rank; ++i) block.i_desc.size[i] = random.between(1, rank == 1 ? 40 : 5);
    size_t batch = random.between(1, 9);
    if (round % 50 == 0) {  // several blocks of a row, and of values
      block.i_desc.layout = BNNSDataLayoutVector;
      block.i_desc.size[0] = random.between(1000, 5000);
    }
    if (round % 50 == 1) batch = random.between(500, 3000);
    if (round == 100) block.i_desc.size[0] = 140000;  // exponentials are not kept
    if (random.coin()) block.i_desc.stride[0] = random.between(1, 2);
    const double smooth = function <= BNNSLossFunctionSigmoidCrossEntropy && random.coin() ? 0.25 : 0.0;
    block.huber_delta = static_cast<float>(function == BNNSLossFunctionHuber ? 0.75 : smooth);
    const Tensor shape(block.i_desc, 1, 0, block.i_desc.stride[0]);
    const size_t n = shape.view.count, losses = keeps && per_value ? n : 1;  // of one sample, or in all
    if (keeps && per_value) {
      std::copy_n(block.i_desc.size, 8, block.o_desc.size);
      block.o_desc.layout = block.i_desc.layout;
    }
    if (random.coin()) block.o_desc.data_type = block.i_desc.data_type;
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    CHECK(filter, "%s", obn_last_error());

    const size_t x_gap = random.below(3), results = keeps ? batch : 1;
    Tensor x(block.i_desc, batch, x_gap, block.i_desc.stride[0]),
        l(block.i_desc, batch, random.below(3), block.i_desc.stride[0]);
    Tensor dx(block.i_desc, batch, random.below(3), random.between(1, 2));
    Tensor y(block.o_desc, results, 0, 1), dy(block.o_desc, results, random.below(3), random.between(1, 2));
    const bool is_softmax = function == BNNSLossFunctionSoftmaxCrossEntropy;
    const bool classes = (is_softmax || function == BNNSLossFunctionCategoricalCrossEntropy) && random.below(3) == 0;
    const bool wide = random.coin();
    const size_t class_step = random.between(1, 2);
    std::vector<int64_t> wide_classes(batch * class_step, -5);
    std::vector<uint8_t> narrow_classes(batch * class_step, 255);
    std::vector<double> xd(batch * n), ld(batch * n), dyd(results * losses), old(batch * n);
    for (size_t b = 0; b < batch; ++b) {
      const size_t c = random.below(std::min<size_t>(n, 256));
      wide_classes[b * class_step] = static_cast<int64_t>(c);
      narrow_classes[b * class_step] = static_cast<uint8_t>(c);
      for (size_t i = 0; i < n; ++i) {
        const double length = function == BNNSLossFunctionCosineDistance ? std::sqrt(static_cast<double>(n)) : 1.0;
        x.put(b, i, input_of(function, random) / length);
        l.put(b, i, label_of(function, random) / length);
        dx.put(b, i, random.uniform(-1.0f, 1.0f));
        xd[b * n + i] = x.get(b, i);
        ld[b * n + i] = classes ? i == c : l.get(b, i);
        old[b * n + i] = dx.get(b, i);
      }
    }
    for (size_t b = 0; b < results; ++b) {
      for (size_t i = 0; i < losses; ++i) {
        dy.put(b, i, random.uniform(-2.0f, 2.0f));
        dyd[b * losses + i] = dy.get(b, i);
      }
    }
    const size_t counts[] = {0, 1, batch, batch * n};
    const size_t weights_size = counts[random.below(4)];
    std::vector<float> w(std::max<size_t>(1, weights_size));
    const bool all_zero = random.below(20) == 0;
    for (float& v : w) v = all_zero || random.below(4) == 0 ? 0.0f : random.uniform(0.5f, 1.5f);

    const bool backward = random.coin(), wants_dx = backward || random.below(4);
    dx.descriptor.flags = random.coin() ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    const bool accumulates = dx.descriptor.flags == BNNSNDArrayFlagBackpropAccumulate;
    const void* numbers = wide ? static_cast<void*>(wide_classes.data()) : narrow_classes.data();
    const BNNSDataType number_type = wide ? BNNSDataTypeInt64 : BNNSDataTypeUInt8;
    int status;
    if (backward && classes) {
      status =
          obn_loss_apply_backward_classes(filter, batch, x.data(), x.step, &dx.descriptor, dx.step, numbers,
                                          number_type, class_step, w.data(), weights_size, &dy.descriptor, dy.step);
    } else if (backward) {
      status = BNNSLossFilterApplyBackwardBatch(filter, batch, x.data(), x.step, &dx.descriptor, dx.step, l.data(),
                                                l.step, w.data(), weights_size, &dy.descriptor, dy.step);
    } else if (classes) {
      status = obn_loss_apply_classes(filter, batch, x.data(), x.step, numbers, number_type, class_step, w.data(),
                                      weights_size, y.data(), wants_dx ? &dx.descriptor : nullptr, dx.step);
    } else {
      status = BNNSLossFilterApplyBatch(filter, batch, x.data(), x.step, l.data(), l.step, w.data(), weights_size,
                                        y.data(), wants_dx ? &dx.descriptor : nullptr, dx.step);
    }
    CHECK(status == 0, "%s", obn_last_error());

    loss::ref::Problem problem{function, reduction};
    problem.label_smooth = smooth;
    problem.delta = 0.75;
    problem.b = batch;
    problem.n = n;
    problem.x = xd.data();
    problem.l = ld.data();
    const std::vector<double> wd = doubles(w);
    problem.w = wd.data();
    problem.weights = weights_size;
    std::vector<double> want_y(results * losses), want_dx(batch * n);
    if (!backward) std::fill(dyd.begin(), dyd.end(), 1.0);
    loss::ref::run(problem, want_y.data(), dyd.data(), want_dx.data());
    const auto slack_of = [](BNNSDataType type) {
      return type == BNNSDataTypeFloat32 ? 4e-6 : (type == BNNSDataTypeFloat16 ? 6e-4 : 5e-3);
    };
    const double added = static_cast<double>(per_value ? batch * n : batch);  // rounding grows with what is added up
    const double size = reduction == BNNSLossReductionSum ? std::max(1.0, 0.2 * added) : 1.0;
    for (size_t b = 0; b < results; ++b) {
      for (size_t i = 0; !backward && i < losses; ++i) {
        const double got = y.get(b, i), want = want_y[b * losses + i];
        CHECK(near(got, want, slack_of(block.o_desc.data_type), size) ||
                  (block.o_desc.data_type == BNNSDataTypeFloat16 && std::fabs(want) > 65504),
              "round %d, loss %d, reduction %d: %.9g, want %.9g", round, function, reduction, got, want);
      }
    }
    for (size_t b = 0; b < batch; ++b) {
      for (size_t i = 0; i < n; ++i) {
        double want = wants_dx ? want_dx[b * n + i] : old[b * n + i];
        if (wants_dx && accumulates) want += old[b * n + i];
        // The slope of the log loss divides a difference by as little as 0.01.
        CHECK(near(dx.get(b, i), want, slack_of(block.i_desc.data_type), function == BNNSLossFunctionLog ? 3.0 : 0.3),
              "round %d, loss %d, reduction %d: gradient %.9g, want %.9g", round, function, reduction, dx.get(b, i),
              want);
      }
    }
    for (const Tensor* t : {&x, &l, &dx, &y, &dy})
      CHECK(t->memory.front() == 0x42424242 && t->memory.back() == 0x42424242, "round %d writes outside", round);
    BNNSFilterDestroy(filter);
  }
}

TEST(loss_large_gradients_go_past_the_caches) {
  Random random(15);
  const size_t batch = 151, n = 33001;  // 20 MB, rows that begin anywhere in a line
  std::vector<float> x(batch * n), l(batch * n), dx(batch * n + 2, 77.0f);
  for (Function function : {BNNSLossFunctionSoftmaxCrossEntropy, BNNSLossFunctionMeanSquareError}) {
    for (size_t i = 0; i < batch * n; ++i) {
      x[i] = static_cast<float>(i * 2654435761u % 1000) * 0.01f;
      l[i] = static_cast<float>(i * 40503u % 7) * 0.1f;
    }
    auto block = block_of(function, BNNSLossReductionSum, n);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    float y;
    BNNSNDArrayDescriptor gradient = vector_of(n, dx.data() + 1);
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, nullptr, 0, &y, &gradient, 0) == 0, "%s",
          obn_last_error());
    for (size_t b : {size_t{0}, size_t{77}, batch - 1}) {
      const std::vector<double> xd(x.begin() + static_cast<ptrdiff_t>(b * n),
                                   x.begin() + static_cast<ptrdiff_t>((b + 1) * n));
      const std::vector<double> ld(l.begin() + static_cast<ptrdiff_t>(b * n),
                                   l.begin() + static_cast<ptrdiff_t>((b + 1) * n));
      loss::ref::Problem problem{function, BNNSLossReductionSum};
      problem.n = n;
      problem.x = xd.data();
      problem.l = ld.data();
      const double one = 1.0;
      std::vector<double> want(n);
      loss::ref::run(problem, nullptr, &one, want.data());
      for (size_t i = 0; i < n; ++i)
        CHECK(near(dx[1 + b * n + i], want[i], 2e-6, 1), "%zu, %zu: %g, want %g", b, i, dx[1 + b * n + i], want[i]);
    }
    CHECK(dx.front() == 77.0f && dx.back() == 77.0f, "written outside");
    BNNSFilterDestroy(filter);
  }
}

// Rows of a large call against each of them in a call of its own, whose gradient is too small to go past the caches.
TEST(loss_large_gradients_have_the_bits_of_small_ones) {
  const size_t threads_before = obn_get_num_threads();
  struct Trial {
    Function function;
    bool by_class;
    float label_smooth;
    size_t batch, n;
  };
  for (const Trial& trial : {Trial{BNNSLossFunctionSoftmaxCrossEntropy, false, 0.1f, 131, 32999},
                             Trial{BNNSLossFunctionSoftmaxCrossEntropy, true, 0.0f, 131, 32999},
                             Trial{BNNSLossFunctionSoftmaxCrossEntropy, true, 0.1f, 4201, 1030},
                             Trial{BNNSLossFunctionSoftmaxCrossEntropy, true, 0.0f, 31, 140009},  // not kept
                             Trial{BNNSLossFunctionCategoricalCrossEntropy, false, 0.0f, 131, 32999},
                             Trial{BNNSLossFunctionCategoricalCrossEntropy, true, 0.0f, 131, 32999},
                             Trial{BNNSLossFunctionCosineDistance, false, 0.0f, 131, 32999},
                             Trial{BNNSLossFunctionHuber, false, 1.0f, 131, 32999}}) {
    const size_t batch = trial.batch, n = trial.n;
    Random random(17);
    std::vector<float> x(batch * n), l(trial.by_class ? 0 : batch * n), row(n);
    std::vector<int32_t> classes(batch);
    for (float& v : x) v = random.uniform(-4.0f, 4.0f);
    for (float& v : l) v = label_of(trial.function, random);
    for (int32_t& c : classes) c = static_cast<int32_t>(random.below(static_cast<uint32_t>(n)));
    classes.front() = 0;
    classes.back() = static_cast<int32_t>(n - 1);
    auto block = block_of(trial.function, BNNSLossReductionSum, n, trial.label_smooth);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    const auto run = [&](size_t first, size_t rows, float* dx) {
      float y;
      BNNSNDArrayDescriptor gradient = vector_of(n, dx);
      const float* input = x.data() + first * n;
      const int status =
          trial.by_class
              ? obn_loss_apply_classes(filter, rows, input, 0, &classes[first], BNNSDataTypeInt32, 0, nullptr, 0, &y,
                                       &gradient, 0)
              : BNNSLossFilterApplyBatch(filter, rows, input, 0, l.data() + first * n, 0, nullptr, 0, &y, &gradient, 0);
      CHECK(status == 0, "%s", obn_last_error());
    };
    std::vector<float> dx(batch * n + 32, 77.0f);
    for (size_t shift : {0, 5, 15}) {
      obn_set_num_threads(1 + shift / 5);
      std::fill(dx.begin(), dx.end(), 77.0f);
      run(0, batch, dx.data() + shift);
      CHECK((shift == 0 || dx[shift - 1] == 77.0f) && dx[shift + batch * n] == 77.0f, "written outside");
      for (size_t b = 0; b < batch; b += b < 3 || batch - b < 4 ? 1 : batch / 7) {
        run(b, 1, row.data());
        CHECK(std::memcmp(row.data(), &dx[shift + b * n], n * sizeof(float)) == 0,
              "loss %d%s, shift %zu: row %zu has other bits", trial.function, trial.by_class ? " by class" : "", shift,
              b);
      }
    }
    BNNSFilterDestroy(filter);
  }
  obn_set_num_threads(threads_before);
}

TEST(loss_threads_do_not_change_bits) {
  Random random(16);
  const size_t threads_before = obn_get_num_threads();
  for (Function function : kAll) {
    const size_t batch = 301, n = 257;
    std::vector<float> x(batch * n), l(batch * n), w(batch * n);
    for (size_t i = 0; i < batch * n; ++i) {
      x[i] = input_of(function, random);
      l[i] = label_of(function, random);
      w[i] = random.uniform(0.0f, 1.0f);
    }
    auto block = block_of(function, BNNSLossReductionWeightedMean, n, 0.5f);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    std::vector<float> first;
    float first_y = 0;
    for (size_t threads : {1, 2, 7}) {
      obn_set_num_threads(threads);
      std::vector<float> dx(batch * n);
      float y;
      BNNSNDArrayDescriptor gradient = vector_of(n, dx.data());
      CHECK(
          BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, w.data(), batch * n, &y, &gradient, 0) == 0,
          "%s", obn_last_error());
      if (threads == 1) {
        first = dx;
        first_y = y;
      }
      CHECK(std::memcmp(&y, &first_y, sizeof y) == 0 &&
                std::memcmp(dx.data(), first.data(), sizeof(float) * dx.size()) == 0,
            "loss %d: %zu threads differ", function, threads);
    }
    BNNSFilterDestroy(filter);
  }
  obn_set_num_threads(threads_before);
}

TEST(loss_gradient_may_take_the_place_of_input_or_labels) {
  Random random(17);
  for (Function function : kAll) {
    const size_t batch = 3, n = 2100;
    std::vector<float> x(batch * n), l(batch * n), dx(batch * n);
    for (size_t i = 0; i < batch * n; ++i) {
      x[i] = input_of(function, random);
      l[i] = label_of(function, random);
    }
    auto block = block_of(function, BNNSLossReductionMean, n, 0.5f);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    float y, in_place;
    BNNSNDArrayDescriptor gradient = vector_of(n, dx.data());
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, nullptr, 0, &y, &gradient, 0) == 0, "%s",
          obn_last_error());
    for (bool over_labels : {false, true}) {
      std::vector<float> x2 = x, l2 = l;
      gradient.data = over_labels ? l2.data() : x2.data();
      CHECK(
          BNNSLossFilterApplyBatch(filter, batch, x2.data(), 0, l2.data(), 0, nullptr, 0, &in_place, &gradient, 0) == 0,
          "%s", obn_last_error());
      CHECK(y == in_place && std::memcmp(gradient.data, dx.data(), sizeof(float) * dx.size()) == 0, "loss %d",
            function);
    }
    gradient.data = x.data() + 1;
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, nullptr, 0, &y, &gradient, 0) != 0 &&
              failed_with("input_gradient: expected memory apart from input"), "%s", obn_last_error());
    gradient.data = dx.data();
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, nullptr, 0, dx.data() + 5, &gradient, 0) !=
                  0 &&
              failed_with("output: expected memory apart from input_gradient"),
          "%s", obn_last_error());
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, dx.data(), batch, &y, &gradient, 0) != 0 &&
              failed_with("input_gradient: expected memory apart from weights"), "%s", obn_last_error());
    BNNSFilterDestroy(filter);
  }
}

// Logits far out, infinite or masked give the limits, not NaN.
TEST(loss_stays_finite_at_the_ends) {
  const float big = 1e4f;
  float y[4], dx[4];
  auto block = block_of(BNNSLossFunctionSigmoidCrossEntropy, BNNSLossReductionNone, 4);
  BNNSFilter sigmoid = BNNSFilterCreateLayerLoss(&block, nullptr);
  float x[] = {big, -big, big, -big}, l[] = {1, 0, 0, 1};
  BNNSNDArrayDescriptor gradient = vector_of(4, dx);
  CHECK(BNNSLossFilterApplyBatch(sigmoid, 1, x, 0, l, 0, nullptr, 0, y, &gradient, 0) == 0, "%s", obn_last_error());
  CHECK(std::fabs(y[0]) < 1e-6f && std::fabs(y[1]) < 1e-6f && y[2] == big && y[3] == big, "%g %g %g %g", y[0], y[1],
        y[2], y[3]);
  CHECK(dx[0] == 0 && std::fabs(dx[1]) < 1e-30f && dx[2] == 1 && dx[3] == -1, "%g %g %g %g", dx[0], dx[1], dx[2],
        dx[3]);
  BNNSFilterDestroy(sigmoid);

  // Masked classes in front, in whole blocks and beside the label.
  const size_t n = 3000;
  std::vector<float> wide(n, -kInfinity), labels(n, 0.0f), slopes(n, 7.0f);
  wide[2500] = 3.0f * big;
  wide[2501] = 3.0f * big + 1.0f;
  labels[2500] = 1.0f;
  block = block_of(BNNSLossFunctionSoftmaxCrossEntropy, BNNSLossReductionSum, n);
  BNNSFilter softmax = BNNSFilterCreateLayerLoss(&block, nullptr);
  gradient = vector_of(n, slopes.data());
  CHECK(BNNSLossFilterApplyBatch(softmax, 1, wide.data(), 0, labels.data(), 0, nullptr, 0, y, &gradient, 0) == 0, "%s",
        obn_last_error());
  CHECK(near(y[0], std::log(1 + std::exp(1.0)), 1e-6, 0), "%g", y[0]);
  CHECK(near(slopes[2501], 1 / (1 + std::exp(-1.0)), 1e-6, 0) && near(slopes[2500], -slopes[2501], 1e-6, 0), "%g %g",
        slopes[2500], slopes[2501]);
  CHECK(slopes[0] == 0 && slopes[2499] == 0, "%g %g", slopes[0], slopes[2499]);
  const int32_t label = 2500;
  float by_class;
  CHECK(obn_loss_apply_classes(softmax, 1, wide.data(), 0, &label, BNNSDataTypeInt32, 0, nullptr, 0, &by_class, nullptr,
                               0) == 0 && by_class == y[0], "%g, want %g", by_class, y[0]);
  wide[7] = std::nanf("");
  CHECK(BNNSLossFilterApplyBatch(softmax, 1, wide.data(), 0, labels.data(), 0, nullptr, 0, y, &gradient, 0) == 0 &&
            std::isnan(y[0]) && std::isnan(slopes[0]), "%g %g", y[0], slopes[0]);
  BNNSFilterDestroy(softmax);
}

// ---- YOLO ----

namespace {

struct YoloCase {
  BNNSLayerParametersLossYolo block{};
  std::vector<float> anchors;

  YoloCase(size_t rows, size_t columns, size_t count, size_t classes, bool rescore) : anchors(2 * count) {
    for (size_t i = 0; i < anchors.size(); ++i) anchors[i] = 1.0f + 0.5f * static_cast<float>(i);
    block.function = BNNSLossFunctionYolo;
    block.reduction = BNNSLossReductionSum;
    block.i_desc = vector_of(rows * columns * count * (5 + classes));
    block.o_desc = vector_of(1);
    block.number_of_grid_rows = rows;
    block.number_of_grid_columns = columns;
    block.number_of_anchor_boxes = count;
    block.anchor_box_size = 5 + classes;
    block.rescore = rescore;
    block.scale_xy = 10;
    block.scale_wh = 8;
    block.scale_object = 100;
    block.scale_no_object = 5;
    block.scale_classification = 2;
    block.object_minimum_iou = 0.7f;
    block.no_object_maximum_iou = 0.3f;
    block.anchors_data = anchors.data();
  }
  size_t values() const { return block.i_desc.size[0]; }

  // Predictions anywhere; truth in about half of the cells, the same for every anchor of one.
  void fill(Random& random, size_t batch, std::vector<float>* x, std::vector<float>* l) const {
    const size_t box = block.anchor_box_size, cell = block.number_of_anchor_boxes * box;
    x->resize(batch * values());
    l->assign(batch * values(), 0.0f);
    for (float& v : *x) v = random.uniform(-1.5f, 1.5f);
    for (size_t at = 0; at < l->size(); at += cell) {
      if (random.coin()) continue;
      float truth[] = {random.uniform(0, 1), random.uniform(0, 1), random.uniform(-1, 1), random.uniform(-1, 1), 1.0f};
      const size_t c = box > 5 ? random.below(box - 5) : 0;
      for (size_t a = 0; a < block.number_of_anchor_boxes; ++a) {
        std::copy_n(truth, 5, l->data() + at + a * box);
        if (box > 5) (*l)[at + a * box + 5 + c] = 1.0f;
      }
    }
  }
};

}  // namespace

// One cell, one anchor, everything by hand.
TEST(loss_yolo_by_hand) {
  YoloCase one(1, 1, 1, 2, false);
  BNNSFilter filter = BNNSFilterCreateLayerLoss(&one.block, nullptr);
  CHECK(filter, "%s", obn_last_error());
  const float x[] = {0.5f, -0.25f, 0.5f, 2.0f, 0.25f, 1.0f, -1.0f};
  float l[] = {0.25f, 0.75f, 0.25f, 0.25f, 1.0f, 0.0f, 1.0f}, y, dx[7];
  BNNSNDArrayDescriptor gradient = vector_of(7, dx);
  CHECK(BNNSLossFilterApplyBatch(filter, 1, x, 0, l, 0, nullptr, 0, &y, &gradient, 0) == 0, "%s", obn_last_error());
  const auto sigma = [](double v) { return 1 / (1 + std::exp(-v)); };
  const double ex = sigma(0.5) - 0.25, ey = sigma(-0.25) - 0.75;
  const double want = 10 * (ex * ex + ey * ey) + 8 * (0.5 * 0.25 * 0.25 + (1.75 - 0.5)) + 100 * -std::log(sigma(0.25)) +
                      2 * std::log(1 + std::exp(2.0));
  CHECK(near(y, want, 1e-6, 0), "%g, want %g", y, want);
  const double slopes[] = {20 * ex * sigma(0.5) * (1 - sigma(0.5)),
                           20 * ey * sigma(-0.25) * (1 - sigma(-0.25)),
                           8 * 0.25,
                           8,
                           100 * (sigma(0.25) - 1),
                           2 * sigma(2.0),
                           -2 * sigma(2.0)};
  for (size_t i = 0; i < 7; ++i) CHECK(near(dx[i], slopes[i], 1e-6, 0), "%zu: %g, want %g", i, dx[i], slopes[i]);
  l[4] = 0.0f;  // no object: the confidence alone counts
  CHECK(BNNSLossFilterApplyBatch(filter, 1, x, 0, l, 0, nullptr, 0, &y, &gradient, 0) == 0, "%s", obn_last_error());
  CHECK(near(y, 5 * -std::log(1 - sigma(0.25)), 1e-6, 0), "%g", y);
  for (size_t i = 0; i < 7; ++i) CHECK(near(dx[i], i == 4 ? 5 * sigma(0.25) : 0.0, 1e-6, 0), "%zu: %g", i, dx[i]);
  BNNSFilterDestroy(filter);
}

TEST(loss_yolo_gradient_is_the_derivative) {
  Random random(18);
  for (int round = 0; round < 60; ++round) {
    // Rescored confidences move with the box; the gradient takes the overlap for a constant, so only without.
    YoloCase c(random.between(1, 3), random.between(1, 3), random.between(1, 3), random.below(4), false);
    std::vector<float> x, l;
    const size_t batch = random.between(1, 2);
    c.fill(random, batch, &x, &l);
    Yolo yolo;
    yolo.rows = c.block.number_of_grid_rows;
    yolo.columns = c.block.number_of_grid_columns;
    yolo.anchors = c.block.number_of_anchor_boxes;
    yolo.box = c.block.anchor_box_size;
    yolo.scale_xy = 10;
    yolo.scale_wh = 8;
    yolo.scale_object = 100;
    yolo.scale_no_object = 5;
    yolo.scale_classes = 2;
    yolo.object_minimum = 0.7f;
    yolo.no_object_maximum = 0.3f;
    yolo.sizes = c.anchors.data();
    const size_t cell = yolo.anchors * yolo.box;
    std::vector<double> iou(yolo.anchors), iou_after(yolo.anchors);
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&c.block, nullptr);
    std::vector<float> dx(x.size());
    float y, up = -0.5f;
    BNNSNDArrayDescriptor gradient = vector_of(c.values(), dx.data());
    const BNNSNDArrayDescriptor upstream = vector_of(1, &up);
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, nullptr, 0, &y, nullptr, 0) == 0, "%s",
          obn_last_error());
    CHECK(BNNSLossFilterApplyBackwardBatch(filter, batch, x.data(), 0, &gradient, 0, l.data(), 0, nullptr, 0, &upstream,
                                           0) == 0, "%s", obn_last_error());
    double sum = 0;
    for (size_t at = 0; at < x.size(); at += cell) {
      sum += yolo_cell(yolo, x.data() + at, l.data() + at, iou.data(), 1.0f, nullptr);
      for (size_t i = at; i < at + cell; ++i) {
        const float here = x[i], h = 0x1p-8f;
        x[i] = here + h;
        const double above = yolo_cell(yolo, x.data() + at, l.data() + at, iou_after.data(), 1.0f, nullptr);
        x[i] = here - h;
        const double below = yolo_cell(yolo, x.data() + at, l.data() + at, iou.data(), 1.0f, nullptr);
        x[i] = here;
        const double slope = -0.5 * (above - below) / (2.0 * h);
        bool steps = false;  // an anchor changed sides: no derivative there
        for (size_t a = 0; a < yolo.anchors; ++a)
          for (double border : {0.7, 0.3}) steps = steps || (iou[a] < border) != (iou_after[a] < border);
        steps = steps || (std::max_element(iou.begin(), iou.end()) - iou.begin()) !=
                             (std::max_element(iou_after.begin(), iou_after.end()) - iou_after.begin());
        CHECK(steps || near(dx[i], slope, 1e-3, 1), "round %d, %zu: %g, differences say %g", round, i % yolo.box, dx[i],
              slope);
      }
    }
    CHECK(near(y, sum, 1e-6, 0), "%g, want %g", y, sum);
    BNNSFilterDestroy(filter);
  }
}

TEST(loss_yolo_any_type_and_thread_count) {
  Random random(19);
  const size_t threads_before = obn_get_num_threads(), batch = 5;
  YoloCase c(7, 9, 3, 4, true);
  std::vector<float> x, l;
  c.fill(random, batch, &x, &l);
  BNNSFilter filter = BNNSFilterCreateLayerLoss(&c.block, nullptr);
  std::vector<float> first, dx(x.size());
  float y = 0, first_y = 0;
  BNNSNDArrayDescriptor gradient = vector_of(c.values(), dx.data());
  for (size_t threads : {1, 2, 7}) {
    obn_set_num_threads(threads);
    CHECK(BNNSLossFilterApplyBatch(filter, batch, x.data(), 0, l.data(), 0, nullptr, 9999, &y, &gradient, 0) == 0, "%s",
          obn_last_error());  // weights are not looked at
    if (threads == 1) {
      first = dx;
      first_y = y;
    }
    CHECK(y == first_y && dx == first, "%zu threads differ", threads);
  }
  obn_set_num_threads(threads_before);
  BNNSFilterDestroy(filter);

  for (BNNSDataType type : {BNNSDataTypeFloat16, BNNSDataTypeBFloat16}) {
    c.block.i_desc.data_type = type;
    filter = BNNSFilterCreateLayerLoss(&c.block, nullptr);
    Tensor xh(c.block.i_desc, batch, 3, 2), lh(c.block.i_desc, batch, 1, 2), dxh(c.block.i_desc, batch, 2, 1);
    // x and labels lie like the filter's input, so give that the strides of these tensors.
    BNNSFilterDestroy(filter);
    c.block.i_desc.stride[0] = 2;
    filter = BNNSFilterCreateLayerLoss(&c.block, nullptr);
    c.block.i_desc.stride[0] = 0;
    for (size_t b = 0; b < batch; ++b) {
      for (size_t i = 0; i < c.values(); ++i) {
        xh.put(b, i, x[b * c.values() + i]);
        lh.put(b, i, l[b * c.values() + i]);
        dxh.put(b, i, 0.5);
      }
    }
    dxh.descriptor.flags = BNNSNDArrayFlagBackpropAccumulate;
    CHECK(BNNSLossFilterApplyBatch(filter, batch, xh.data(), xh.step, lh.data(), lh.step, nullptr, 0, &y,
                                   &dxh.descriptor, dxh.step) == 0,
          "%s", obn_last_error());
    const double slack = type == BNNSDataTypeFloat16 ? 2e-3 : 2e-2;
    CHECK(near(y, first_y, slack, 0), "%g, want %g", y, first_y);
    size_t far = 0;  // rounding moves some anchors across a border
    for (size_t b = 0; b < batch; ++b)
      for (size_t i = 0; i < c.values(); ++i) far += !near(dxh.get(b, i), first[b * c.values() + i] + 0.5, slack, 3);
    CHECK(far * 50 < x.size(), "%zu of %zu gradients differ", far, x.size());
    BNNSFilterDestroy(filter);
  }
}

// ---- refusals ----

TEST(loss_refuses_with_a_sentence) {
  const auto refused = [](const void* block, const char* start) {
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerLoss(block, nullptr);
    BNNSFilterDestroy(filter);
    return !filter && failed_with(start);
  };
  CHECK(refused(nullptr, "layer_params"), "%s", obn_last_error());
  auto block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionSum, 4);
  for (unsigned function : {0u, 11u, 99u}) {
    block.function = static_cast<Function>(function);
    CHECK(refused(&block, "loss: expected a function from 1 to 10"), "%s", obn_last_error());
  }
  block = block_of(BNNSLossFunctionMeanSquareError, static_cast<Reduction>(5), 4);
  CHECK(refused(&block, "reduction"), "%s", obn_last_error());
  for (float delta : {0.0f, -1.0f, std::nanf("")}) {
    block = block_of(BNNSLossFunctionHuber, BNNSLossReductionSum, 4, delta);
    CHECK(refused(&block, "delta: expected a number above 0"), "%s", obn_last_error());
  }
  for (float smooth : {-0.1f, 1.5f, std::nanf("")}) {
    for (Function function : {BNNSLossFunctionSoftmaxCrossEntropy, BNNSLossFunctionSigmoidCrossEntropy}) {
      block = block_of(function, BNNSLossReductionSum, 4, smooth);
      CHECK(refused(&block, "label_smoothing: expected a number from 0 to 1"), "%s", obn_last_error());
    }
  }
  block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionSum, 4);
  block.i_desc.data_type = BNNSDataTypeInt8;
  CHECK(refused(&block, "input: expected float32, float16 or bfloat16; got int8"), "%s", obn_last_error());
  block.i_desc.data_type = BNNSDataTypeFloat32;
  block.o_desc.data_type = BNNSDataTypeFloat16;
  CHECK(refused(&block, "output: expected float32; got float16"), "%s", obn_last_error());
  block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionSum, 4);
  block.o_desc.size[0] = 4;
  CHECK(refused(&block, "output: expected 1 value without gaps, as the reduction of mean_square_error; got (4,)"), "%s",
        obn_last_error());
  block = block_of(BNNSLossFunctionMeanSquareError, BNNSLossReductionNone, 4);
  block.o_desc.stride[0] = 2;
  CHECK(refused(&block, "output: expected 4 values without gaps"), "%s", obn_last_error());

  YoloCase yolo(2, 2, 2, 1, true);
  const BNNSLayerParametersLossYolo good = yolo.block;
  BNNSLayerParametersLossYolo bad = good;
  bad.reduction = BNNSLossReductionMean;
  CHECK(refused(&bad, "reduction: expected sum (1) for yolo"), "%s", obn_last_error());
  bad = good;
  bad.anchors_data = nullptr;
  CHECK(refused(&bad, "anchors: expected 2 pairs"), "%s", obn_last_error());
  bad = good;
  bad.anchor_box_size = 4;
  CHECK(refused(&bad, "anchor_box_size: expected at least 5"), "%s", obn_last_error());
  bad.anchor_box_size = SIZE_MAX;
  CHECK(refused(&bad, "anchor_box_size: expected cells of at most"), "%s", obn_last_error());
  bad = good;
  bad.number_of_grid_rows = 3;
  CHECK(refused(&bad, "input: expected rows·columns·anchors·anchor_box_size"), "%s", obn_last_error());
  bad.number_of_grid_rows = 0;
  CHECK(refused(&bad, "grid"), "%s", obn_last_error());
  bad = good;
  bad.huber_delta = -1;
  CHECK(refused(&bad, "huber_delta"), "%s", obn_last_error());

  // Calls.
  block = block_of(BNNSLossFunctionSoftmaxCrossEntropy, BNNSLossReductionSum, 4);
  BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
  block.function = BNNSLossFunctionCosineDistance;
  BNNSFilter cosine = BNNSFilterCreateLayerLoss(&block, nullptr);
  float x[8] = {}, l[8] = {}, w[8] = {}, y = 7, dx[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  int32_t classes[] = {1, 3};
  BNNSNDArrayDescriptor gradient = vector_of(4, dx), up = vector_of(1, w);
  const auto apply = [&](const void* in, const void* labels, const void* weights, size_t count, void* out,
                         BNNSNDArrayDescriptor* delta, const char* start) {
    obn_clear_error();
    return BNNSLossFilterApplyBatch(filter, 2, in, 0, labels, 0, weights, count, out, delta, 0) != 0 &&
           failed_with(start);
  };
  CHECK(apply(nullptr, l, w, 0, &y, &gradient, "input: expected data"), "%s", obn_last_error());
  CHECK(apply(x, nullptr, w, 0, &y, &gradient, "labels: expected data"), "%s", obn_last_error());
  CHECK(apply(x, l, nullptr, 2, &y, &gradient, "weights: expected data"), "%s", obn_last_error());
  CHECK(apply(x, l, w, 3, &y, &gradient, "weights: expected 0, 1, 2 (one per sample) or 8 values; got 3"), "%s",
        obn_last_error());
  CHECK(apply(x, l, w, 0, nullptr, &gradient, "output: expected data"), "%s", obn_last_error());
  CHECK(apply(x, l, w, 0, x + 3, &gradient, "output: expected memory apart from input"), "%s", obn_last_error());
  BNNSNDArrayDescriptor wrong = gradient;
  wrong.size[0] = 3;
  CHECK(apply(x, l, w, 0, &y, &wrong, "input_gradient: expected (4,)"), "%s", obn_last_error());
  wrong = gradient;
  wrong.data = nullptr;
  CHECK(apply(x, l, w, 0, &y, &wrong, "input_gradient: expected data"), "%s", obn_last_error());
  const auto backward = [&](BNNSNDArrayDescriptor* delta, const BNNSNDArrayDescriptor* upstream, const char* start) {
    obn_clear_error();
    return BNNSLossFilterApplyBackwardBatch(filter, 2, x, 0, delta, 0, l, 0, nullptr, 0, upstream, 0) != 0 &&
           failed_with(start);
  };
  CHECK(backward(nullptr, &up, "input_gradient: expected a descriptor"), "%s", obn_last_error());
  CHECK(backward(&gradient, nullptr, "grad_output: expected a descriptor"), "%s", obn_last_error());
  wrong = up;
  wrong.size[0] = 2;
  CHECK(backward(&gradient, &wrong, "grad_output: expected (1,)"), "%s", obn_last_error());
  const auto by_class = [&](BNNSFilter which, BNNSDataType type, const char* start) {
    obn_clear_error();
    return obn_loss_apply_classes(which, 2, x, 0, classes, type, 0, nullptr, 0, &y, &gradient, 0) != 0 &&
           failed_with(start);
  };
  CHECK(by_class(cosine, BNNSDataTypeInt32, "labels: expected values like the input for cosine_distance"), "%s",
        obn_last_error());
  CHECK(by_class(filter, BNNSDataTypeFloat32, "labels: expected class numbers of an integer type"), "%s",
        obn_last_error());
  CHECK(by_class(filter, BNNSDataTypeInt4, "labels: expected class numbers of an integer type"), "%s",
        obn_last_error());
  for (int32_t number : {4, -1}) {
    classes[1] = number;
    CHECK(by_class(filter, BNNSDataTypeInt32, "labels: expected class numbers from 0 to 3; got"), "%s",
          obn_last_error());
  }
  for (float v : dx) CHECK(v == 7, "the gradient is written");
  CHECK(y == 7, "the loss is written");
  CHECK(BNNSFilterApplyBatch(filter, 1, x, 0, &y, 0) != 0 && failed_with("filter: a loss filter has"), "%s",
        obn_last_error());
  CHECK(BNNSLossFilterApplyBatch(nullptr, 1, x, 0, l, 0, nullptr, 0, &y, nullptr, 0) != 0 && failed_with("filter"),
        "%s", obn_last_error());
  CHECK(BNNSLossFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, nullptr, 0) == 0, "%s",
        obn_last_error());
  CHECK(BNNSLossFilterApplyBatch(filter, SIZE_MAX / 8, x, 1, l, 1, nullptr, 0, &y, nullptr, 0) != 0,
        "expected a refusal");
  BNNSFilterDestroy(filter);
  BNNSFilterDestroy(cosine);
}

// Blocks and calls by the thousand: nothing crashes, and what fails says why.
TEST(loss_survives_any_block) {
  Random random(20);
  constexpr size_t kSizes[] = {0, 1, 2, 3, 6, 8, SIZE_MAX, size_t{1} << 40};
  alignas(16) static float memory[5][64];
  YoloCase yolo(1, 2, 1, 1, false);
  for (int round = 0; round < 20000; ++round) {
    BNNSLayerParametersLossYolo block = yolo.block;
    block.function = static_cast<Function>(random.below(12));
    block.reduction = static_cast<Reduction>(random.below(6));
    if (block.function != BNNSLossFunctionYolo) {
      const size_t n = random.between(1, 12);
      block.i_desc = vector_of(n);
      block.o_desc = vector_of(random.coin() ? n : 1);
      block.huber_delta = random.coin() ? 0.5f : random.uniform(-1, 2);
    }
    BNNSNDArrayDescriptor dx = block.i_desc, dy = block.o_desc;
    for (BNNSNDArrayDescriptor* d : {&block.i_desc, &block.o_desc, &dx, &dy}) {
      if (random.below(10) == 0) d->layout = static_cast<BNNSDataLayout>(random.coin() ? 0x20000 : random.next());
      if (random.below(10) == 0)
        d->data_type = random.coin() ? BNNSDataTypeFloat16 : static_cast<BNNSDataType>(random.next() & 0x1f803f);
      if (random.below(10) == 0) d->size[random.below(3)] = kSizes[random.below(8)];
      if (random.below(10) == 0) d->stride[random.below(3)] = kSizes[random.below(8)];
      if (random.below(20) == 0) d->flags = static_cast<BNNSNDArrayFlags>(random.below(3));
    }
    if (random.below(10) == 0) block.anchor_box_size = kSizes[random.below(8)];
    if (random.below(10) == 0) block.number_of_anchor_boxes = kSizes[random.below(8)];
    if (random.below(10) == 0) block.number_of_grid_columns = kSizes[random.below(8)];
    if (block.number_of_anchor_boxes > 1) block.anchors_data = memory[4];
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    CHECK(filter || *obn_last_error(), "round %d fails silently", round);
    if (!filter) continue;
    View views[4];
    const BNNSNDArrayDescriptor* all[] = {&block.i_desc, &block.o_desc, &dx, &dy};
    bool fits = true;  // in the memory given
    for (int k = 0; k < 4; ++k)
      fits = fits &&
             (read_view(*all[k], Access::read, "x", &views[k]) != 0 || views[k].span + views[k].packed_batch <= 60);
    if (fits) {
      const size_t batch = random.below(3), count = kSizes[random.below(6)];
      dx.data = random.below(10) ? memory[2] : nullptr;
      dy.data = random.below(10) ? memory[3] : nullptr;
      obn_clear_error();
      const void* w = random.below(5) ? memory[4] : nullptr;
      CHECK(BNNSLossFilterApplyBatch(filter, batch, memory[0], random.below(2), memory[1], 0, w, count, memory[3],
                                     random.coin() ? &dx : nullptr, 0) == 0 || *obn_last_error(), "round %d", round);
      obn_clear_error();
      CHECK(BNNSLossFilterApplyBackwardBatch(filter, batch, memory[0], 0, &dx, 0, memory[1], 0, w, count, &dy,
                                             random.below(3)) == 0 || *obn_last_error(), "round %d", round);
      int64_t classes[] = {static_cast<int64_t>(random.below(4)) - 1, 0};
      obn_clear_error();
      CHECK(obn_loss_apply_classes(filter, batch, memory[0], 0, classes,
                                   static_cast<BNNSDataType>(0x20000 | random.below(65)), 0, nullptr, 0, memory[3], &dx,
                                   0) == 0 ||
                *obn_last_error(),
            "round %d", round);
    }
    BNNSFilterDestroy(filter);
  }
}

static size_t blocks_left, blocks_out;

TEST(loss_lives_with_an_allocator_that_fails) {
  BNNSFilterParameters options{};
  options.alloc_memory = [](void** block, size_t alignment, size_t size) {
    if (blocks_left == 0) return 1;
    --blocks_left;
    ++blocks_out;
    return ::posix_memalign(block, alignment, size);
  };
  options.free_memory = [](void* block) {
    --blocks_out;
    std::free(block);
  };
  YoloCase yolo(1, 1, 2, 1, false);
  for (size_t allowed = 0; allowed <= 2; ++allowed) {
    blocks_left = allowed;
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&yolo.block, &options);
    CHECK((filter != nullptr) == (allowed == 2), "%zu blocks", allowed);
    BNNSFilterDestroy(filter);
    CHECK(blocks_out == 0, "%zu blocks are lost", blocks_out);
  }
}
