// Fused layers: against their two layers called one after the other (to the bit, or nearly where the pair is done as
// one layer), against float64 and its differences, and the recorded vectors.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "fused/fused_test.h"

namespace obn::fused {

using namespace test;

TEST(fused_vectors_of_the_specification) {
  // Identity matrix before a batch norm, then the sum of two inputs.
  for (bool is_sum : {false, true}) {
    Array w(BNNSDataTypeFloat32, BNNSDataLayoutRowMajorMatrix, 1, {2, 2});
    const auto vectors = [] { return Array(BNNSDataTypeFloat32, BNNSDataLayoutVector, 2, {2}); };
    const auto vector = [] { return Array(BNNSDataTypeFloat32, BNNSDataLayoutVector, 1, {2}); };
    Array a = vectors(), b = vectors(), y = vectors(), dy = vectors(), da = vectors(), db = vectors(), dw = w;
    Array gamma = vector(), beta = vector(), dgamma = vector(), dbeta = vector(), dbias = vector();
    w.fill({1, 0, 0, 1});
    gamma.fill({1, 1});
    beta.fill({0, 0});
    dy.fill({1, 0, 0, 2});
    BNNSLayerParametersFullyConnected fc = {};
    fc.i_desc = fc.o_desc = a.descriptor;
    fc.w_desc = w.with_data();
    BNNSArithmeticBinary binary = {a.descriptor, BNNSSample, b.descriptor, BNNSSample, a.descriptor, BNNSSample};
    BNNSLayerParametersArithmetic sum = {};
    sum.arithmetic_function = BNNSArithmeticAdd;
    sum.arithmetic_function_fields = &binary;
    BNNSLayerParametersNormalization norm = {};
    norm.i_desc = norm.o_desc = a.descriptor;
    norm.gamma_desc = gamma.with_data();
    norm.beta_desc = beta.with_data();
    norm.epsilon = 1e-5f;
    const BNNSFilterType types[] = {is_sum ? BNNSArithmetic : BNNSFullyConnected, BNNSBatchNorm};
    const void* blocks[] = {is_sum ? static_cast<const void*>(&sum) : &fc, &norm};
    BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, nullptr);
    CHECK(filter, "%s", obn_last_error());
    BNNSNDArrayDescriptor dy_d = dy.with_data(), da_d = da.with_data(), db_d = db.with_data(), dw_d = dw.with_data();
    BNNSNDArrayDescriptor bias_d = dbias.with_data(), beta_d = dbeta.with_data(), gamma_d = dgamma.with_data();
    int forward, backward;
    if (is_sum) {
      a.fill({1, 2, 2, 3});
      b.fill({0, 0, 1, 1});
      const void* in[] = {a.data(), b.data()};
      BNNSNDArrayDescriptor *deltas[] = {&da_d, &db_d}, *parameters[] = {&beta_d, &gamma_d};
      forward = BNNSFusedFilterApplyMultiInputBatch(filter, 2, 2, in, nullptr, y.data(), 0, true);
      backward = BNNSFusedFilterApplyBackwardMultiInputBatch(filter, 2, 2, nullptr, nullptr, deltas, nullptr, nullptr,
                                                             0, &dy_d, 0, parameters);
    } else {
      a.fill({1, 2, 3, 4});
      BNNSNDArrayDescriptor* parameters[] = {&dw_d, &bias_d, &beta_d, &gamma_d};
      forward = BNNSFusedFilterApplyBatch(filter, 2, a.data(), 0, y.data(), 0, true);
      backward = BNNSFusedFilterApplyBackwardBatch(filter, 2, a.data(), 0, &da_d, 0, nullptr, 0, &dy_d, 0, parameters);
    }
    CHECK(forward == 0 && backward == 0, "%s", obn_last_error());
    const double expected[] = {-1, -1, 1, 1};
    for (size_t i = 0; i < 4; ++i) {
      CHECK(std::fabs(y.get(i) - expected[i]) < 1e-4, "y[%zu] is %g", i, y.get(i));
      CHECK(std::fabs(da.get(i)) < 1e-4, "dx[%zu] is %g", i, da.get(i));
      if (is_sum) {
        CHECK(db.get(i) == da.get(i), "db[%zu] is %g, da is %g", i, db.get(i), da.get(i));
      } else {
        CHECK(std::fabs(dw.get(i)) < 1e-4, "dw[%zu] is %g", i, dw.get(i));
        CHECK(std::fabs(dbias.get(i % 2)) < 1e-4, "db[%zu] is %g", i, dbias.get(i % 2));
      }
    }
    CHECK(dbeta.get(0) == 1.0 && dbeta.get(1) == 2.0, "dbeta is %g, %g", dbeta.get(0), dbeta.get(1));
    CHECK(std::fabs(dgamma.get(0) + 1.0) < 1e-4 && std::fabs(dgamma.get(1) - 2.0) < 1e-4, "dgamma is %g, %g",
          dgamma.get(0), dgamma.get(1));
    BNNSFilterDestroy(filter);
  }
}

TEST(fused_agrees_with_float64_and_its_differences) {
  for (First first : kFirsts) {
    for (BNNSFilterType norm : kNorms) {
      for (BNNSActivationFunction activation :
           {BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionTanh}) {
        Setup s;
        s.first = first;
        s.norm = norm;
        s.activation = activation;
        if (first == First::arithmetic) s.function = BNNSArithmeticMultiply;
        if (first == First::arithmetic) s.c = 4;
        Pair pair(s, 7);
        if (!pair.make_fused()) continue;
        CHECK(pair.apply() == 0 && pair.apply_backward() == 0, "%s: %s", s.text().c_str(), obn_last_error());
        Exact exact(pair);
        check_near(pair.y, exact.output(), 1e-5, "output", s);
        for (size_t k = 0; k < pair.x.size(); ++k)
          check_near(pair.dx[k], exact.differences(&exact.x[k]), 1e-4, "input gradient", s);
        if (s.has_weights()) check_near(pair.dw, exact.differences(&exact.w), 1e-4, "weights gradient", s);
        if (s.has_weights()) check_near(pair.db, exact.differences(&exact.bias), 1e-4, "bias gradient", s);
        check_near(pair.dbeta, exact.differences(&exact.beta), 1e-4, "beta gradient", s);
        check_near(pair.dgamma, exact.differences(&exact.gamma), 1e-4, "gamma gradient", s);
      }
    }
  }
}

TEST(fused_equals_the_two_layers) {
  Random random{20};
  constexpr BNNSActivationFunction kActivations[] = {
      BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionSigmoid,
      BNNSActivationFunctionLeakyRectifiedLinear};
  constexpr BNNSArithmeticFunction kFunctions[] = {BNNSArithmeticAdd,      BNNSArithmeticSubtract,
                                                   BNNSArithmeticMultiply, BNNSArithmeticDivide,
                                                   BNNSArithmeticExp,      BNNSArithmeticSquareRoot,
                                                   BNNSArithmeticMultiplyAdd, BNNSArithmeticMaximum};
  for (size_t round = 0; round < 600; ++round) {
    Setup s;
    s.first = kFirsts[random.below(4)];
    s.norm = kNorms[random.below(4)];
    s.n = random.between(1, 5);
    s.groups = random.coin() ? 1 : 2;
    s.c = s.groups * random.between(1, 4);
    s.o = s.groups * random.between(1, 9);
    if (s.first == First::arithmetic) s.o = s.c;
    s.h = random.between(3, 12);
    s.w = random.between(3, 20);
    s.kernel = random.between(1, 3);
    s.pad = random.below(s.kernel);
    s.stride = random.between(1, 2);
    if (s.first == First::fully_connected) s.c = random.between(1, 70);
    s.norm_groups = s.norm == BNNSGroupNorm && s.o % 2 == 0 ? 2 : 1;
    s.axis = random.below(3);
    s.activation = kActivations[random.below(4)];
    s.function = kFunctions[random.below(8)];
    s.broadcasts = s.inputs() > 1 && random.below(4) == 0;
    s.has_parameter = s.inputs() > 1 && random.below(4) == 0;
    if (random.below(3) == 0) {
      s.type = kFloats[random.below(3)];
      s.joint_type = s.first == First::arithmetic ? s.type : kFloats[random.below(3)];
      s.y_type = kFloats[random.below(3)];
    }
    if (random.coin()) {
      for (auto* gaps : {&s.x_gaps, &s.y_gaps, &s.dy_gaps, &s.dx_gaps, &s.joint_gaps})
        for (size_t& gap : *gaps) gap = random.below(4) == 0 ? random.between(1, 2) : 0;
      s.shift = random.below(4);
    }
    s.has_bias = random.below(4) > 0;
    s.has_gamma = random.below(4) > 0;
    s.has_moving = random.coin() && (s.norm == BNNSBatchNorm || s.norm == BNNSInstanceNorm);
    s.client = random.coin();
    s.accumulate = random.coin();
    s.threads = random.below(3);
    check_setup(s, round);
  }
}

// Shapes of every algorithm of the convolution, with batches large enough to be cut.
TEST(fused_large_layers_equal_the_two_layers) {
  const struct {
    First first;
    size_t n, c, o, h, w, kernel, stride, pad, groups;
  } shapes[] = {
      {First::convolution, 5, 16, 32, 14, 14, 3, 1, 1, 1},   {First::convolution, 3, 64, 48, 9, 13, 3, 1, 1, 1},
      {First::convolution, 6, 24, 24, 15, 17, 3, 1, 1, 24},  {First::convolution, 9, 1, 32, 20, 20, 3, 1, 1, 1},
      {First::convolution, 4, 32, 40, 13, 11, 1, 1, 0, 1},   {First::convolution, 4, 16, 24, 17, 15, 3, 2, 1, 1},
      {First::convolution, 2, 3, 20, 33, 31, 5, 2, 2, 1},    {First::convolution, 40, 2, 3, 6, 6, 3, 1, 1, 1},
      {First::transposed, 4, 16, 12, 7, 9, 4, 2, 1, 1},      {First::fully_connected, 33, 200, 70, 1, 1, 1, 1, 0, 1},
      {First::fully_connected, 32, 1568, 10, 1, 1, 1, 1, 0, 1}, {First::fully_connected, 2, 300, 200, 1, 1, 1, 1, 0, 1},
      {First::arithmetic, 8, 32, 32, 28, 28, 1, 1, 0, 1}};
  for (const auto& shape : shapes) {
    for (BNNSFilterType norm : kNorms) {
      Setup s;
      s.first = shape.first;
      s.norm = norm;
      s.n = shape.n;
      s.c = shape.c;
      s.o = shape.o;
      s.h = shape.h;
      s.w = shape.w;
      s.kernel = shape.kernel;
      s.stride = shape.stride;
      s.pad = shape.pad;
      s.groups = shape.groups;
      s.norm_groups = norm == BNNSGroupNorm && s.o % 2 == 0 ? 2 : 1;
      s.has_moving = norm == BNNSBatchNorm;
      check_setup(s, shape.n);
      s.activation = BNNSActivationFunctionIdentity;
      s.client = true;
      check_setup(s, shape.n);
    }
  }
}

// Large enough that results and gradients go past the caches.
TEST(fused_large_images_equal_the_two_layers) {
  for (BNNSFilterType norm : {BNNSBatchNorm, BNNSGroupNorm}) {
    for (bool is_odd : {false, true}) {
      Setup s;
      s.norm = norm;
      s.n = 6;
      s.c = s.o = s.groups = 12;
      s.h = is_odd ? 131 : 128;
      s.w = is_odd ? 129 : 128;
      check_setup(s, 1);  // depthwise
      s.groups = s.c = 1;
      check_setup(s, 2);  // few channels
      s.first = First::arithmetic;
      s.c = 12;
      s.n = 24;
      if (!is_odd) s.shift = 12;  // on a cache line
      check_setup(s, 3);
      s.n = 7;  // sums of the next group while a gradient is written
      s.c = s.o = 20;
      check_setup(s, 5);
      s.c = s.o = 12;
      s.function = BNNSArithmeticMultiplyAdd;
      s.n = 6;
      check_setup(s, 4);
    }
    Setup s = many_planes();
    s.norm = norm;
    for (BNNSActivationFunction activation : {BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionTanh}) {
      s.activation = activation;
      for (size_t axis : {0, 1, 2}) {
        std::fill_n(s.y_gaps, 5, size_t{0});
        s.y_gaps[axis] = axis < 2 ? 3 : 0;
        check_setup(s, 6);
      }
    }
  }
}

// Both gradients of a plane in one pass: strips of all widths, and planes that are all border.
TEST(fused_depthwise_planes_of_all_sizes_equal_the_two_layers) {
  for (size_t h : {1, 2, 3, 4, 7}) {
    for (size_t w : {1, 2, 7, 15, 16, 17, 31, 32, 33}) {
      for (size_t pad : {0, 1, 2}) {
        if (h + 2 * pad < 3 || w + 2 * pad < 3) continue;
        Setup s;
        s.n = 3;
        s.c = s.o = s.groups = 2;
        s.h = h;
        s.w = w;
        s.pad = pad;
        check_setup(s, h);
        s.accumulate = true;
        s.x_gaps[1] = s.dx_gaps[1] = 3;
        check_setup(s, w);
      }
    }
  }
}

TEST(fused_any_number_of_threads_gives_the_same_bits) {
  for (First first : kFirsts) {
    for (BNNSFilterType norm : kNorms) {
      Setup s;
      s.first = first;
      s.norm = norm;
      s.n = 7;
      s.c = s.o = 16;
      s.h = 19;
      s.w = 21;
      if (first == First::fully_connected) s.c = 2000;
      if (first == First::fully_connected) s.o = 300;
      if (first == First::arithmetic) s.h = s.w = 150;  // gradients past the caches
      check_threads(s);
    }
  }
  check_threads(many_planes());
}

// Gradients between the layers that are smaller than those which one thread would write past the caches.
TEST(fused_gradients_past_the_caches_have_the_bits_of_two_layers) {
  for (bool is_aligned : {true, false}) {
    Setup s;
    s.n = 5;
    s.c = 12;
    s.o = 8;
    s.kernel = 1;
    s.pad = 0;
    s.h = s.w = is_aligned ? 116 : 115;
    check_setup(s, 4);
    check_threads(s);
  }
}

TEST(fused_gradients_are_had_one_by_one_and_again) {
  for (First first : kFirsts) {
    for (BNNSFilterType norm : {BNNSBatchNorm, BNNSLayerNorm}) {
      Setup s;
      s.first = first;
      s.norm = norm;
      s.n = 4;
      if (first == First::arithmetic) s.function = BNNSArithmeticSquare;
      if (first == First::arithmetic) s.c = 4;
      if (first == First::convolution && norm == BNNSBatchNorm) s = few_channels_setup();
      Pair all(s, 5);
      if (!all.make_fused()) continue;
      CHECK(all.apply() == 0 && all.apply_backward() == 0, "%s", obn_last_error());
      const auto whole = all.results();
      for (unsigned wanted = 0; wanted < 32; ++wanted) {
        Pair part(s, 5), untouched(s, 5);
        std::swap(part.fused, all.fused);
        part.y = all.y;
        CHECK(part.apply_backward(wanted) == 0, "%s: %s", s.text().c_str(), obn_last_error());
        std::swap(part.fused, all.fused);
        const auto got = part.results(), old = untouched.results();
        for (size_t k = 0; k < got.size(); ++k) {
          const unsigned bit = got[k].second == &part.dx[0]    ? 1
                               : got[k].second == &part.dw     ? 2
                               : got[k].second == &part.db     ? 4
                               : got[k].second == &part.dbeta  ? 8
                               : got[k].second == &part.dgamma ? 16
                                                               : 0;
          if (!bit) continue;
          const Array& expected = wanted & bit ? *whole[k].second : *old[k].second;
          CHECK(got[k].second->bytes == expected.bytes, "%s: %s with wanted %u", s.text().c_str(), got[k].first,
                wanted);
        }
      }
    }
  }
}

}  // namespace obn::fused
