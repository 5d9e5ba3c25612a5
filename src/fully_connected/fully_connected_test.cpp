// Fully connected: every target, every layout, type and activation against float64 sums, and the recorded vectors.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fully_connected/fully_connected_test.h"

namespace obn::fully_connected {

using namespace layer_test;

TEST(fully_connected_every_width_agrees_with_float64) {
  for (size_t width = 1; width <= 37; ++width) {
    for (BNNSDataLayout layout : {BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix}) {
      Setup setup;
      setup.layout = layout;
      setup.n = width % 9 + 1;
      setup.i = width;
      setup.o = width % 7 + 1;
      check_everywhere(setup, width);
      std::swap(setup.i, setup.o);
      setup.accumulate = true;
      check_everywhere(setup, width + 100);
    }
  }
}

TEST(fully_connected_random_setups_agree_with_float64) {
  constexpr BNNSDataType kFloats[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
  Random random{7};
  for (int round = 0; round < 200; ++round) {
    Setup s;
    s.n = random.between(1, 11);
    s.i = random.between(1, 90);
    s.o = random.between(1, 50);
    s.x_type = kFloats[random.below(3)];
    s.w_type = kFloats[random.below(3)];
    s.y_type = kFloats[random.below(3)];
    s.layout = kLayouts[random.below(4)];
    s.x_step = random.between(1, 2);
    s.w_step = random.between(1, 2);
    s.y_step = random.between(1, 2);
    s.gap = random.below(4);
    s.shift = random.below(4);
    s.client = random.coin();
    s.accumulate = random.coin();
    s.has_bias = random.coin();
    check_everywhere(s, 1000 + static_cast<uint64_t>(round));
  }
}

TEST(fully_connected_large_layers_agree_with_float64) {
  for (size_t n : {1, 3, 8}) {
    Setup s;
    s.n = n;
    s.i = 1030;
    s.o = 770;
    s.client = true;
    check_everywhere(s, n);
    s.layout = BNNSDataLayoutColumnMajorMatrix;
    check_everywhere(s, n);
  }
}

// Weights that are taken to come from memory, fetched ahead and their gradient past the caches: the bits of near ones.
TEST(fully_connected_far_weights_agree_with_float64) {
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    for (size_t n : {1, 3, 8}) {
      for (BNNSDataLayout layout : {BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix}) {
        Setup s;
        s.n = n;
        s.i = 1030;
        s.o = 770;
        s.layout = layout;
        s.shift = n;
        s.gap = n;
        s.client = true;
        Random first{n}, second{n};
        Layer far(s, first), near(s, second);
        far.use(&targets.at(isa), SIZE_MAX, 0);
        near.use(&targets.at(isa), SIZE_MAX, SIZE_MAX);
        far.check(name_of(isa));
        CHECK(near.apply() == 0 && near.apply_backward() == 0, "%s", obn_last_error());
        CHECK(far.y.bytes == near.y.bytes && far.dx.bytes == near.dx.bytes && far.dw.bytes == near.dw.bytes,
              "near on %s, N %zu", name_of(isa), n);
      }
    }
  }
}

// Sums so short that their weights stay in registers, and one step longer; with few samples and with many.
TEST(fully_connected_short_sums_agree_with_float64) {
  for (size_t o = 1; o <= 13; ++o) {
    for (size_t n : {4, 19}) {
      Setup s;
      s.n = n;
      s.i = 290 + 7 * o;
      s.o = o;
      s.w_type = o % 3 == 0 ? BNNSDataTypeFloat16 : BNNSDataTypeFloat32;
      s.shift = o % 4;
      s.gap = o % 2;
      s.accumulate = o % 2 == 0;
      check_everywhere(s, o);
      std::swap(s.i, s.o);
      s.layout = BNNSDataLayoutColumnMajorMatrix;
      check_everywhere(s, 100 + o);
    }
  }
}

TEST(fully_connected_vectors_of_the_specification) {
  Random random{1};
  Setup s;
  s.n = 2;
  s.i = 2;
  Layer layer(s, random);
  BNNSFilterDestroy(layer.filter);
  layer.w.fill({3, 4});
  layer.b.fill({5});
  layer.x.fill({1, 2, 10, 20});
  layer.create();
  CHECK(layer.apply() == 0 && layer.y.get(0, 0) == 16 && layer.y.get(1, 0) == 115, "forward");
  CHECK(BNNSFilterApplyBatch(layer.filter, 2, layer.x.data(), 0, layer.y.data(), 0) == 0 && layer.y.get(1, 0) == 115,
        "strides 0");
  layer.dy.fill({1, 2});
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  CHECK(layer.dx.get(0, 0) == 3 && layer.dx.get(0, 1) == 4 && layer.dx.get(1, 0) == 6 && layer.dx.get(1, 1) == 8, "dx");
  CHECK(layer.dw.get(0, 0) == 21 && layer.dw.get(0, 1) == 42 && layer.db.get(0, 0) == 3, "dw, db");

  const float spaced[] = {1, 2, -99, 10, 20};
  float y[2] = {};
  CHECK(BNNSFilterApplyBatch(layer.filter, 2, spaced, 3, y, 0) == 0 && y[0] == 16 && y[1] == 115, "input stride 3");

  s.n = 1;
  s.i = 3;
  s.o = 2;
  Layer wide(s, random);
  BNNSFilterDestroy(wide.filter);
  wide.w.fill({1, 2, 3, 4, 5, 6});
  wide.b.fill({0.5, -1});
  wide.create();
  const float ones[] = {1, 1, 1}, signs[] = {1, 0, -1};
  CHECK(BNNSFilterApply(wide.filter, ones, y) == 0 && y[0] == 6.5f && y[1] == 14, "6.5, 14");
  CHECK(BNNSFilterApply(wide.filter, signs, y) == 0 && y[0] == -1.5f && y[1] == -3, "-1.5, -3");
}

// ---- types ----

TEST(fully_connected_integers_agree_with_float64) {
  constexpr BNNSDataType kTypes[] = {BNNSDataTypeInt8, BNNSDataTypeUInt8, BNNSDataTypeInt16, BNNSDataTypeUInt16,
                                     BNNSDataTypeFloat32};
  Random random{11};
  for (BNNSDataType x_type : kTypes) {
    for (BNNSDataType w_type : kTypes) {
      Setup s;
      s.n = random.between(1, 9);
      s.i = random.between(1, 70);
      s.o = random.between(1, 30);
      s.x_type = x_type;
      s.w_type = w_type;
      s.y_type = random.coin() ? BNNSDataTypeFloat32 : BNNSDataTypeFloat16;
      s.layout = kLayouts[random.below(4)];
      s.w_step = random.between(1, 2);
      s.gap = random.below(3);
      s.client = random.coin();
      check_everywhere(s, 50 + random.below(1000));
      if (is_float(x_type) && is_float(w_type)) continue;
      Layer layer(s, random);
      const Grid before = layer.dx;
      CHECK(layer.apply_backward() == -1 && layer.dx.bytes == before.bytes, "integers have no gradient");
    }
  }
}

TEST(fully_connected_indexed_weights_are_looked_up) {
  const float table[16] = {-8, -4, -2, -1, -0.5f, -0.25f, 0, 0.25f, 0.5f, 1, 2, 3, 4, 5, 6, 8};
  const uint8_t packed[] = {0x21, 0x43, 0x65, 0x87};  // (2, 4): 1 2 3 4 / 5 6 7 8, the first in the low bits
  const float x[] = {1, 2, 3, 4};
  for (uint32_t flags : {0u, static_cast<uint32_t>(BNNSFlagsUseClientPtr)}) {
    BNNSLayerParametersFullyConnected p = {};
    p.i_desc = describe(BNNSDataLayoutVector, 4, 0, BNNSDataTypeFloat32, nullptr);
    p.o_desc = describe(BNNSDataLayoutVector, 2, 0, BNNSDataTypeFloat32, nullptr);
    p.w_desc = describe(BNNSDataLayoutRowMajorMatrix, 4, 2, BNNSDataTypeIndexed4, packed);
    p.w_desc.table_data = const_cast<float*>(table);
    p.w_desc.table_data_type = BNNSDataTypeFloat32;
    BNNSFilterParameters options = {};
    options.flags = flags;
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, &options);
    float y[2] = {};
    CHECK(filter && BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
    CHECK(y[0] == -4 - 4 - 3 - 2 && y[1] == -0.25f + 0.75f + 2.0f, "%g %g", y[0], y[1]);
    BNNSFilterDestroy(filter);
  }
}

// ---- activation ----

namespace {

bool is_softmax(BNNSActivationFunction function) {
  return function == BNNSActivationFunctionSoftmax || function == BNNSActivationFunctionLogSoftmax;
}

// z (one sample) becomes act(z).
void activate(const Setup& s, std::vector<double>* z) {
  if (!is_softmax(s.function)) {
    for (double& value : *z) value = activation::ref::forward(s.function, value, 0.25, 1.0);
    return;
  }
  const double most = *std::max_element(z->begin(), z->end());
  double sum = 0.0;
  for (double value : *z) sum += std::exp(value - most);
  for (double& value : *z)
    value = s.function == BNNSActivationFunctionSoftmax ? std::exp(value - most) / sum : value - most - std::log(sum);
}

// dz of one sample from y and dy.
std::vector<double> slope(const Setup& s, const Grid& y, const Grid& dy, size_t n) {
  std::vector<double> dz(s.o);
  double sum = 0.0;
  for (size_t o = 0; o < s.o; ++o)
    sum += dy.get(n, o) * (s.function == BNNSActivationFunctionSoftmax ? y.get(n, o) : 1.0);
  for (size_t o = 0; o < s.o; ++o) {
    const double d = dy.get(n, o), v = y.get(n, o);
    if (s.function == BNNSActivationFunctionSoftmax) {
      dz[o] = v * (d - sum);
    } else if (s.function == BNNSActivationFunctionLogSoftmax) {
      dz[o] = d - std::exp(v) * sum;
    } else {
      dz[o] = d * activation::ref::slope_from_y(s.function, v, 0.25, 1.0);
    }
  }
  return dz;
}

void check_activation(const Setup& s, const Kernels* kernels, size_t few_samples) {
  Random random{90 + static_cast<uint64_t>(s.function)};
  Layer layer(s, random);
  const char* name = activation::name_of(s.function);
  layer.use(kernels, few_samples);
  CHECK(layer.apply() == 0, "%s: %s", name, obn_last_error());
  const double tolerance = s.y_type == BNNSDataTypeFloat32 ? 2e-5 : 0.02;
  double worst = 0.0;
  for (size_t n = 0; n < s.n; ++n) {
    std::vector<double> z(s.o);
    for (size_t o = 0; o < s.o; ++o) {
      z[o] = s.has_bias ? layer.b.get(0, o) : 0.0;
      for (size_t i = 0; i < s.i; ++i) z[o] += layer.weight(o, i) * layer.x.get(n, i);
    }
    activate(s, &z);
    // A hard edge between z and its rounded self is no error: such steps are left to activation_test.cpp.
    if (s.function == BNNSActivationFunctionHardShrink || s.function == BNNSActivationFunctionThreshold) continue;
    for (size_t o = 0; o < s.o; ++o)
      worst = std::max(worst, std::fabs(layer.y.get(n, o) - z[o]) / (1.0 + std::fabs(z[o])));
  }
  CHECK(worst <= tolerance, "%s forward: %g", name, worst);

  const Grid dx = layer.dx, dw = layer.dw, db = layer.db;
  if (layer.apply_backward() != 0) {  // from the output alone there is no gradient, at least not of these
    CHECK(layer.dx.bytes == dx.bytes && layer.dw.bytes == dw.bytes && layer.db.bytes == db.bytes, "%s: touched", name);
    const BNNSActivationFunction trainable[] = {BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionSigmoid,
                                                BNNSActivationFunctionTanh, BNNSActivationFunctionSoftmax,
                                                BNNSActivationFunctionLogSoftmax, BNNSActivationFunctionELU,
                                                BNNSActivationFunctionLeakyRectifiedLinear};
    for (BNNSActivationFunction function : trainable) CHECK(s.function != function, "%s: %s", name, obn_last_error());
    return;
  }
  std::vector<double> x_sums(s.n * s.i), w_sums(s.o * s.i), b_sums(s.o);
  for (size_t n = 0; n < s.n; ++n) {
    const std::vector<double> dz = slope(s, layer.y, layer.dy, n);
    for (size_t o = 0; o < s.o; ++o) {
      b_sums[o] += dz[o];
      for (size_t i = 0; i < s.i; ++i) {
        x_sums[n * s.i + i] += dz[o] * layer.weight(o, i);
        w_sums[o * s.i + i] += dz[o] * layer.x.get(n, i);
      }
    }
  }
  worst = 0.0;
  const auto compare = [&](double got, double expected) {
    worst = std::max(worst, std::fabs(got - expected) / (1.0 + std::fabs(expected)));
  };
  for (size_t n = 0; n < s.n; ++n)
    for (size_t i = 0; i < s.i; ++i) compare(layer.dx.get(n, i), x_sums[n * s.i + i]);
  for (size_t o = 0; o < s.o; ++o) {
    compare(layer.db.get(0, o), b_sums[o]);
    for (size_t i = 0; i < s.i; ++i)
      compare(is_by_output(s.layout) ? layer.dw.get(o, i) : layer.dw.get(i, o), w_sums[o * s.i + i]);
  }
  CHECK(worst <= 10 * tolerance, "%s backward: %g", name, worst);
}

}  // namespace

TEST(fully_connected_activations_follow_and_are_differentiated) {
  for (uint32_t function = 0; function < activation::kFunctions; ++function) {
    activation::Fused unused;
    BNNSActivation activation = {};
    activation.function = static_cast<BNNSActivationFunction>(function);
    if (activation::Fused::read(activation, "activation", &unused) != 0) continue;
    Setup s;
    s.function = activation.function;
    s.n = 3;
    s.i = 7;
    s.o = 19;
    check_activation(s, &targets.best(), 8);
    check_activation(s, &targets.best(), 0);
    s.layout = BNNSDataLayoutColumnMajorMatrix;
    s.y_step = 2;
    check_activation(s, &targets.best(), 8);
    s.x_type = s.w_type = s.y_type = BNNSDataTypeBFloat16;
    if (s.function == BNNSActivationFunctionSoftmax || s.function == BNNSActivationFunctionTanh)
      check_activation(s, &targets.best(), 8);
  }
  Setup s;  // one row of outputs in several pieces
  s.function = BNNSActivationFunctionSoftmax;
  s.n = 2;
  s.i = 1000;
  s.o = 300;
  check_activation(s, &targets.best(), 8);
}

}  // namespace obn::fully_connected
