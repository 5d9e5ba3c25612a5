// Losses through the C interface: any call against the reference loops, large ones, any number of threads, gradients in
// place, the ends of the range.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "activation/activation.h"
#include "base/types.h"
#include "base/view.h"
#include "loss/loss_test.h"

namespace obn::loss {

using namespace test;

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
    const PlacedArray shape = tensor_of(block.i_desc, 1, 0, block.i_desc.stride[0]);
    const size_t n = shape.view.count, losses = keeps && per_value ? n : 1;  // of one sample, or in all
    if (keeps && per_value) {
      std::copy_n(block.i_desc.size, 8, block.o_desc.size);
      block.o_desc.layout = block.i_desc.layout;
    }
    if (random.coin()) block.o_desc.data_type = block.i_desc.data_type;
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&block, nullptr);
    CHECK(filter, "%s", obn_last_error());

    const size_t x_gap = random.below(3), results = keeps ? batch : 1;
    PlacedArray x = tensor_of(block.i_desc, batch, x_gap, block.i_desc.stride[0]);
    PlacedArray l = tensor_of(block.i_desc, batch, random.below(3), block.i_desc.stride[0]);
    PlacedArray dx = tensor_of(block.i_desc, batch, random.below(3), random.between(1, 2));
    PlacedArray y = tensor_of(block.o_desc, results, 0, 1);
    PlacedArray dy = tensor_of(block.o_desc, results, random.below(3), random.between(1, 2));
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
        x.set(b, i, input_of(function, random) / length);
        l.set(b, i, label_of(function, random) / length);
        dx.set(b, i, random.uniform(-1.0f, 1.0f));
        xd[b * n + i] = x.get(b, i);
        ld[b * n + i] = classes ? i == c : l.get(b, i);
        old[b * n + i] = dx.get(b, i);
      }
    }
    for (size_t b = 0; b < results; ++b) {
      for (size_t i = 0; i < losses; ++i) {
        dy.set(b, i, random.uniform(-2.0f, 2.0f));
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
      status = obn_loss_apply_backward_classes(filter, batch, x.data(), x.batch_stride, &dx.descriptor, dx.batch_stride,
                                               numbers, number_type, class_step, w.data(), weights_size,
                                               &dy.descriptor, dy.batch_stride);
    } else if (backward) {
      status = BNNSLossFilterApplyBackwardBatch(filter, batch, x.data(), x.batch_stride, &dx.descriptor,
                                                dx.batch_stride, l.data(), l.batch_stride, w.data(), weights_size,
                                                &dy.descriptor, dy.batch_stride);
    } else if (classes) {
      status = obn_loss_apply_classes(filter, batch, x.data(), x.batch_stride, numbers, number_type, class_step,
                                      w.data(), weights_size, y.data(), wants_dx ? &dx.descriptor : nullptr,
                                      dx.batch_stride);
    } else {
      status = BNNSLossFilterApplyBatch(filter, batch, x.data(), x.batch_stride, l.data(), l.batch_stride, w.data(),
                                        weights_size, y.data(), wants_dx ? &dx.descriptor : nullptr, dx.batch_stride);
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
    for (const PlacedArray* array : {&x, &l, &dx, &y, &dy})
      CHECK(array->has_its_guards(), "round %d writes outside", round);
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

}  // namespace obn::loss
