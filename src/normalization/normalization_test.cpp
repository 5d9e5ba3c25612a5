// Normalization: every target against the reference loops in float64, the recorded vectors, running statistics, and
// gradients against differences of the reference's own forward pass.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "normalization/normalization_test.h"

namespace obn::normalization {

using namespace test;

namespace {

void check_setup(const Setup& s, uint64_t seed) {
  for (const Target& target : all_targets()) {
    Random random{seed}, same{seed};
    Layer layer(s, random), before(s, same);
    if (!layer.filter) return;
    layer.use(target.kernels);
    const std::string on = s.text() + " on " + target.name;
    CHECK(layer.apply() == 0, "%s: %s", on.c_str(), obn_last_error());
    Expected<double> exact(before);
    Expected<float> plain(before);
    check_close(layer.y, before.y, exact.y, plain.y, "output", on.c_str());
    CHECK(layer.apply_backward() == 0, "%s: %s", on.c_str(), obn_last_error());
    exact.backward(layer, before);
    plain.backward(layer, before);
    check_close(layer.dx, before.dx, exact.dx, plain.dx, "input gradient", on.c_str(), exact.largest_term());
    check_close(layer.dbeta, before.dbeta, exact.dbeta, plain.dbeta, "beta gradient", on.c_str());
    check_close(layer.dgamma, before.dgamma, exact.dgamma, plain.dgamma, "gamma gradient", on.c_str());
    CHECK(layer.dy.bytes == before.dy.bytes, "%s: grad_output was touched", on.c_str());
    CHECK(s.in_place || layer.x.bytes == before.x.bytes, "%s: input was touched", on.c_str());
  }
}

}  // namespace

TEST(normalization_every_width_agrees_with_float64) {
  for (BNNSFilterType type : kTypes) {
    for (size_t w = 1; w <= 70; ++w) {
      Setup s;
      s.type = type;
      s.n = 3;
      s.c = 4;
      s.h = 1;
      s.w = w;
      s.groups = 2;
      s.axis = w % 3;
      s.function = w % 2 ? BNNSActivationFunctionRectifiedLinear : BNNSActivationFunctionIdentity;
      s.shift = w % 5;
      check_setup(s, w);
      s.is_vector = true;
      s.c = 2 * w;
      s.h = s.w = 1;
      s.axis = 0;
      s.n = 1 + w % 7;
      check_setup(s, w);
    }
  }
}

TEST(normalization_random_setups_agree_with_float64) {
  Random random{77};
  constexpr BNNSActivationFunction kFunctions[] = {
      BNNSActivationFunctionIdentity, BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear,
      BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionSigmoid, BNNSActivationFunctionLeakyRectifiedLinear,
      BNNSActivationFunctionTanh};
  for (int round = 0; round < 400; ++round) {
    Setup s;
    s.type = kTypes[random.below(4)];
    s.is_vector = random.below(4) == 0;
    s.n = random.between(1, 6);
    s.groups = random.between(1, 3);
    s.c = s.groups * random.between(1, 5);
    s.h = s.is_vector ? 1 : random.between(1, 9);
    s.w = s.is_vector ? 1 : random.between(1, 40);
    s.axis = random.below(3);
    for (size_t(*gaps)[4] : {&s.x_gaps, &s.y_gaps, &s.dy_gaps, &s.dx_gaps})
      for (size_t& gap : *gaps) gap = random.below(3) == 0 ? random.below(3) : 0;
    if (random.below(3) == 0) {
      s.x_type = kFloats[random.below(3)];
      s.y_type = kFloats[random.below(3)];
      s.dy_type = kFloats[random.below(3)];
      s.dx_type = kFloats[random.below(3)];
      s.parameter_type = kFloats[random.below(3)];
    }
    s.shift = random.below(3);
    s.parameter_gap = random.below(2);
    s.has_gamma = random.below(4) > 0;
    s.has_beta = random.below(4) > 0;
    s.gamma_is_whole = random.coin();
    s.beta_is_whole = random.coin();
    s.client = random.coin();
    s.accumulate = random.coin();
    s.in_place = random.coin() && s.x_type == s.y_type;
    if (s.in_place) std::copy_n(s.x_gaps, 4, s.y_gaps);
    s.function = kFunctions[random.below(std::size(kFunctions))];
    s.mean = random.below(3) == 0 ? 3.0 : 0.0;
    check_setup(s, 1000 + static_cast<uint64_t>(round));
  }
}

TEST(normalization_large_layers_agree_with_float64) {
  Setup s;
  s.function = BNNSActivationFunctionRectifiedLinear;
  s.n = 5;
  s.c = 3;
  s.h = 61;
  s.w = 57;
  for (BNNSFilterType type : kTypes) {
    s.type = type;
    s.groups = 3;
    for (s.axis = 0; s.axis < (type == BNNSLayerNorm ? 3u : 1u); ++s.axis) check_setup(s, 5);
  }
  // So large that results are streamed, at odd addresses too.
  s.type = BNNSBatchNorm;
  s.n = 32;
  s.c = 9;
  s.h = s.w = 128;
  s.shift = 3;
  check_setup(s, 6);
  // Groups so small that the sums of one are gathered while the one before is written.
  s.type = BNNSGroupNorm;
  s.n = 9;
  s.c = 24;
  s.h = 100;
  s.w = 99;
  s.groups = 8;
  check_setup(s, 10);
  s.type = BNNSInstanceNorm;
  s.function = BNNSActivationFunctionIdentity;
  check_setup(s, 11);
  s.type = BNNSLayerNorm;
  s.n = 300;
  s.c = 1;
  s.h = 30;
  s.w = 517;
  s.axis = 2;
  s.function = BNNSActivationFunctionIdentity;
  check_setup(s, 7);
  // A group beyond the scratch memory, not packed.
  s.type = BNNSLayerNorm;
  s.axis = 0;
  s.n = 2;
  s.c = 5;
  s.h = 500;
  s.w = 450;
  s.x_type = s.y_type = s.dy_type = s.dx_type = BNNSDataTypeBFloat16;
  check_setup(s, 8);
  s.type = BNNSBatchNorm;
  s.is_vector = true;
  s.n = 17000;
  s.c = 70;
  s.h = s.w = 1;
  check_setup(s, 9);
}

TEST(normalization_survives_a_large_mean) {
  for (BNNSFilterType type : kTypes) {
    for (double mean : {100.0, 1e4, -1e6}) {
      Setup s;
      s.type = type;
      s.n = 4;
      s.c = 4;
      s.h = 20;
      s.w = 33;
      s.groups = 2;
      s.mean = mean;
      check_setup(s, 21);
      s.is_vector = true;
      s.n = 600;
      s.c = 40;
      s.h = s.w = 1;
      check_setup(s, 22);
    }
  }
}

// Σ weight·y as a function of x, β and γ has the gradients that backward gives for dy = weight.
TEST(normalization_reference_gradients_are_differences) {
  for (BNNSFilterType type : kTypes) {
    for (size_t axis = 0; axis < 3; ++axis) {
      for (bool is_whole : {false, true}) {
        Setup s;
        s.type = type;
        s.axis = axis;
        s.n = 3;
        s.c = 4;
        s.groups = 2;
        s.h = 2;
        s.w = 3;
        s.gamma_is_whole = s.beta_is_whole = is_whole;
        s.function = BNNSActivationFunctionTanh;
        Random random{31 + axis};
        Layer layer(s, random);
        Expected<double> e(layer);
        std::vector<double> dx(e.x.size()), dgamma(e.gamma.size()), dbeta(e.beta.size()), y(e.y), xhat(e.xhat),
            mean(e.mean), variance(e.variance);
        ref::backward(e.p, e.xhat.data(), e.variance.data(), e.y.data(), e.dy.data(), dx.data(), dbeta.data(),
                      dgamma.data());
        const auto loss = [&] {
          ref::forward(e.p, e.x.data(), y.data(), xhat.data(), mean.data(), variance.data());
          double sum = 0.0;
          for (size_t i = 0; i < y.size(); ++i) sum += e.dy[i] * y[i];
          return sum;
        };
        const auto check = [&](std::vector<double>& values, const std::vector<double>& gradient, const char* what) {
          for (size_t i = 0; i < values.size(); ++i) {
            const double kept = values[i], step = 1e-5;
            values[i] = kept + step;
            const double above = loss();
            values[i] = kept - step;
            const double slope = (above - loss()) / (2 * step);
            values[i] = kept;
            CHECK(std::fabs(slope - gradient[i]) <= 1e-6 * (1.0 + std::fabs(slope)), "%s of %s at %zu: %g, not %g",
                  what, s.text().c_str(), i, gradient[i], slope);
          }
        };
        check(e.x, dx, "input gradient");
        check(e.gamma, dgamma, "gamma gradient");
        check(e.beta, dbeta, "beta gradient");
      }
    }
  }
}

// ---- vectors of the specification ----

namespace {

void check_values(const Array& got, std::initializer_list<double> expected, double tolerance, const char* what) {
  size_t i = 0;
  for (double value : expected) {
    CHECK(std::fabs(got.get(i) - value) <= tolerance, "%s at %zu: %g, not %g", what, i, got.get(i), value);
    ++i;
  }
}

}  // namespace

TEST(normalization_vectors_of_the_specification) {
  for (const Target& target : all_targets()) {
    Random random{1};
    const double sigma = std::sqrt(1.25);
    Setup s;
    s.type = BNNSLayerNorm;
    s.is_vector = true;
    s.n = 1;
    s.c = 4;
    s.h = s.w = 1;
    s.epsilon = 0.0f;
    s.has_gamma = s.has_beta = false;
    Layer row(s, random);
    row.use(target.kernels);
    row.x.fill({1, 2, 3, 4});
    row.dy.fill({1, 0, 0, 0});
    CHECK(row.apply() == 0 && row.apply_backward() == 0, "%s", obn_last_error());
    check_values(row.y, {-1.5 / sigma, -0.5 / sigma, 0.5 / sigma, 1.5 / sigma}, 1e-6, "layer norm");
    double sum = 0.0;
    for (size_t i = 0; i < 4; ++i) {
      const double xhat = (static_cast<double>(i) - 1.5) / sigma;
      const double dx = ((i == 0) - 0.25 - xhat * (-1.5 / (4 * sigma))) / sigma;
      CHECK(std::fabs(row.dx.get(i) - dx) <= 1e-6, "dx %zu: %g, not %g", i, row.dx.get(i), dx);
      sum += row.dx.get(i);
    }
    CHECK(std::fabs(sum) <= 1e-6, "%g", sum);

    s.type = BNNSInstanceNorm;
    s.is_vector = false;
    s.c = 3;
    s.w = 9;
    Layer planes(s, random);
    planes.use(target.kernels);
    for (size_t i = 0; i < 27; ++i) planes.x.set(i, static_cast<double>(i % 9 + 1) * std::pow(10.0, i / 9));
    CHECK(planes.apply(false) == 0, "%s", obn_last_error());
    for (size_t c = 0; c < 3; ++c)
      for (size_t i = 0; i < 9; ++i)
        CHECK(std::fabs(planes.y.get(c * 9 + i) - (static_cast<double>(i) - 4) * 0.3872983) <= 1e-5, "%g",
              planes.y.get(c * 9 + i));

    s.type = BNNSBatchNorm;
    s.is_vector = true;
    s.n = 2;
    s.c = 2;
    s.w = 1;
    s.epsilon = 1e-5f;
    Layer batch(s, random);
    batch.use(target.kernels);
    batch.x.fill({1, 2, 3, 4});
    batch.dy.fill({1, 0, 0, 2});
    CHECK(batch.apply() == 0 && batch.apply_backward() == 0, "%s", obn_last_error());
    check_values(batch.y, {-1, -1, 1, 1}, 1e-4, "batch norm");
    check_values(batch.dbeta, {1, 2}, 0.0, "beta gradient");
    check_values(batch.dgamma, {-1, 2}, 1e-4, "gamma gradient");
    check_values(batch.dx, {0, 0, 0, 0}, 1e-4, "input gradient");
  }
}

// ---- running statistics and modes ----

TEST(normalization_running_statistics_are_kept_and_used) {
  for (BNNSFilterType type : {BNNSBatchNorm, BNNSInstanceNorm}) {
    for (bool is_vector : {false, true}) {
      for (float momentum : {0.0f, 0.9f, 1.0f}) {
        Setup s;
        s.type = type;
        s.is_vector = is_vector;
        s.n = 5;
        s.c = 3;
        s.h = s.w = is_vector ? 1 : 3;
        s.has_moving = true;
        s.momentum = momentum;
        Random random{41}, same{41};
        Layer layer(s, random), before(s, same);
        CHECK(layer.apply() == 0, "%s", obn_last_error());
        const Expected<double> e(before);
        const double size = static_cast<double>(e.x.size() / e.p.group_count());
        const size_t samples = type == BNNSBatchNorm ? 1 : s.n;
        for (size_t c = 0; c < s.c; ++c) {
          double mean = 0.0, variance = 0.0;
          for (size_t n = 0; n < samples; ++n) {
            mean += e.mean[n * s.c + c] / static_cast<double>(samples);
            variance += e.variance[n * s.c + c] / static_cast<double>(samples);
          }
          if (size > 1) variance *= size / (size - 1);
          const double m = static_cast<double>(momentum);
          const double new_mean = m * before.moving_mean.get(c) + (1 - m) * mean;
          const double new_variance = m * before.moving_variance.get(c) + (1 - m) * variance;
          CHECK(std::fabs(layer.moving_mean.get(c) - new_mean) <= 1e-6, "%g, not %g", layer.moving_mean.get(c),
                new_mean);
          CHECK(std::fabs(layer.moving_variance.get(c) - new_variance) <= 1e-6, "%g, not %g",
                layer.moving_variance.get(c), new_variance);
        }
        // Inference uses them and leaves them alone, and the kept state too.
        const Array kept = layer.moving_mean;
        CHECK(layer.apply(false) == 0 && kept.bytes == layer.moving_mean.bytes, "%s", obn_last_error());
        for (size_t i = 0; i < e.x.size(); ++i) {
          const size_t c = i / (s.h * s.w) % s.c;
          const double xhat = (e.x[i] - layer.moving_mean.get(c)) /
                              std::sqrt(layer.moving_variance.get(c) + static_cast<double>(s.epsilon));
          const double expected = e.gamma[c] * xhat + e.beta[c];
          CHECK(std::fabs(layer.y.get(i) - expected) <= 1e-5 * (1 + std::fabs(expected)), "%g, not %g", layer.y.get(i),
                expected);
        }
        CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
        Expected<double> exact(before);
        Expected<float> plain(before);
        exact.backward(layer, before);
        plain.backward(layer, before);
        check_close(layer.dx, before.dx, exact.dx, plain.dx, "input gradient", "after inference", exact.largest_term());
      }
    }
  }
}

TEST(normalization_one_running_statistic_is_used_alone) {
  Setup s;
  s.n = 4;
  s.c = 3;
  s.h = 2;
  s.w = 5;
  Random random{43};
  Layer layer(s, random);
  const Expected<double> e(layer);
  for (bool has_mean : {false, true}) {
    BNNSLayerParametersNormalization p = layer.parameters();
    (has_mean ? p.moving_mean_desc : p.moving_variance_desc) =
        (has_mean ? layer.moving_mean : layer.moving_variance).with_data();
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(s.type, &p, nullptr);
    CHECK(BNNSNormalizationFilterApplyBatch(filter, s.n, layer.x.data(), 0, layer.y.data(), 0, false) == 0, "%s",
          obn_last_error());
    for (size_t i = 0; i < e.x.size(); ++i) {
      const size_t c = i / (s.h * s.w) % s.c;
      const double mean = has_mean ? layer.moving_mean.get(c) : e.mean[c];
      const double variance = has_mean ? e.variance[c] : layer.moving_variance.get(c);
      const double expected =
          e.gamma[c] * (e.x[i] - mean) / std::sqrt(variance + static_cast<double>(s.epsilon)) + e.beta[c];
      CHECK(std::fabs(layer.y.get(i) - expected) <= 1e-5, "%g, not %g", layer.y.get(i), expected);
    }
    BNNSFilterDestroy(filter);
  }
}

TEST(normalization_inference_gives_the_output_of_training) {
  for (BNNSFilterType type : kTypes) {
    Setup s;
    s.type = type;
    s.c = 6;
    s.h = 7;
    s.w = 9;
    s.groups = 3;
    s.function = BNNSActivationFunctionSigmoid;
    Random random{44};
    Layer layer(s, random);
    CHECK(layer.apply(true) == 0, "%s", obn_last_error());
    const Array trained = layer.y;
    CHECK(layer.apply(false) == 0 && layer.y.bytes == trained.bytes, "type %u", type);
  }
}

TEST(normalization_activations_follow_and_are_differentiated) {
  for (uint32_t function = 0; function < activation::kFunctions; ++function) {
    BNNSActivation activation = {};
    activation.function = static_cast<BNNSActivationFunction>(function);
    activation.alpha = 0.25f;
    activation.beta = 1.0f;
    activation::Fused fused;
    if (activation::Fused::read(activation, "activation", &fused) != 0 || !fused.is_elementwise()) continue;
    for (BNNSFilterType type : kTypes) {
      Setup s;
      s.type = type;
      s.function = activation.function;
      s.n = 3;
      s.c = 4;
      s.h = 5;
      s.w = 7;
      Random random{60}, same{60};
      Layer layer(s, random), before(s, same);
      CHECK(layer.apply() == 0, "%s", obn_last_error());
      Expected<double> e(before);
      double worst = 0.0;
      const bool has_steps = s.function == BNNSActivationFunctionHardShrink ||
                             s.function == BNNSActivationFunctionThreshold;
      for (size_t i = 0; i < e.y.size() && !has_steps; ++i) worst = std::max(worst, std::fabs(layer.y.get(i) - e.y[i]));
      CHECK(worst <= 1e-5, "%s: %g", s.text().c_str(), worst);
      const Array dx = layer.dx;
      if (layer.apply_backward() != 0) {
        CHECK(layer.dx.bytes == dx.bytes, "%s: touched", s.text().c_str());
        CHECK(fused.check_backward() != 0 || fused.depends_on_values(), "%s: %s", s.text().c_str(), obn_last_error());
        continue;
      }
      e.backward(layer, before);
      worst = 0.0;
      for (size_t i = 0; i < e.dx.size(); ++i)
        worst = std::max(worst, std::fabs(layer.dx.get(i) - e.dx[i]) / (1 + std::fabs(e.dx[i])));
      CHECK(worst <= 2e-4, "%s backward: %g", s.text().c_str(), worst);
    }
  }
}

}  // namespace obn::normalization
