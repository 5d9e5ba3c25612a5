// No samples: gradients that are sums over the batch become 0, or stay where they are added to. Gradients of samples
// are not written, and a call that is refused writes nothing.
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/test.h"
#include "base/test_array.h"
#include "base/view.h"
#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

using namespace obn;

namespace {

using test::Array;
using Descriptor = BNNSNDArrayDescriptor;

constexpr BNNSDataType kFloats[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
constexpr auto kFloat = BNNSDataTypeFloat32;
constexpr auto kVector = BNNSDataLayoutVector;
constexpr auto kImage = BNNSDataLayoutImageCHW;

// Nobody has written to it: its bytes are those of numbers other than 0.
Array spaced(BNNSDataLayout layout, std::vector<size_t> size, BNNSDataType type = kFloat) {
  static constexpr size_t kGaps[5] = {1, 2, 3, 1, 2};
  return Array(type, layout, 1, size, kGaps, 3);
}
Array packed(BNNSDataLayout layout, std::vector<size_t> size, BNNSDataType type = kFloat) {
  return Array(type, layout, 1, size);
}

// call(sums, dx) is a backward call without samples; sums and dx are what it may write.
using Call = std::function<int(Descriptor*, Descriptor*)>;

void check_sums(const std::string& what, std::vector<Array> sums, Array dx, const Call& call) {
  const std::vector<Array> before = sums;
  const Array dx_before = dx;
  const auto describe = [&](bool accumulate) {
    std::vector<Descriptor> all;
    for (Array& sum : sums) all.push_back(sum.with_data(accumulate));
    return all;
  };
  const auto check = [&](const std::vector<Array>& want, const char* how) {
    for (size_t i = 0; i < sums.size(); ++i)
      CHECK(sums[i].bytes == want[i].bytes, "%s: sum %zu, %s", what.c_str(), i, how);
    CHECK(dx.bytes == dx_before.bytes, "%s: the gradient of samples, %s", what.c_str(), how);
  };
  Descriptor of_dx = dx.with_data();
  std::vector<Descriptor> added = describe(true);
  CHECK(call(added.data(), &of_dx) == 0, "%s: %s", what.c_str(), obn_last_error());
  check(before, "added to");

  for (size_t wrong = 0; wrong < sums.size(); ++wrong) {
    std::vector<Descriptor> all = describe(false);
    all[wrong].size[0] += 1;
    for (size_t k = 1; k < BNNS_MAX_TENSOR_DIMENSION; ++k)
      if (all[wrong].stride[k]) all[wrong].stride[k] += 100;
    CHECK(call(all.data(), &of_dx) == -1, "%s: sum %zu of another size was accepted", what.c_str(), wrong);
    check(before, "refused");
  }
  Descriptor other = of_dx;
  other.size[0] += 1;
  std::vector<Descriptor> set = describe(false);
  CHECK(call(set.data(), &other) == -1, "%s: an input gradient of another size was accepted", what.c_str());
  check(before, "refused");

  CHECK(call(set.data(), &of_dx) == 0, "%s: %s", what.c_str(), obn_last_error());
  std::vector<Array> zeros = before;
  for (Array& sum : zeros)
    for (size_t i = 0; i < sum.count(); ++i) sum.set(i, 0.0);
  check(zeros, "set");
}

}  // namespace

TEST(empty_batch_clears_what_has_gaps) {
  for (BNNSDataType type : {BNNSDataTypeFloat32, BNNSDataTypeFloat16}) {
    for (bool has_gaps : {false, true}) {
      Array array = has_gaps ? spaced(kImage, {3, 1, 4}, type) : packed(kImage, {3, 1, 4}, type);
      Array want = array;
      for (size_t i = 0; i < want.count(); ++i) want.set(i, 0.0);
      View view = array.view;
      clear_sum(view);  // without data
      view.data = array.data();
      view.accumulate = true;
      clear_sum(view);
      CHECK(array.bytes != want.bytes, "values that are added to");
      view.accumulate = false;
      clear_sum(view);
      CHECK(array.bytes == want.bytes, "type %x, gaps %d", static_cast<unsigned>(type), has_gaps);
    }
  }
}

TEST(empty_batch_convolution) {
  for (bool transposed : {false, true}) {
    for (BNNSDataType type : kFloats) {
      Array x = packed(kImage, {4, 4, 2}), y = packed(kImage, transposed ? std::vector<size_t>{6, 6, 3}
                                                                        : std::vector<size_t>{2, 2, 3});
      const auto weights = BNNSDataLayoutConvolutionWeightsOIHW;
      Array w = packed(weights, {3, 3, 2, 3}), b = packed(kVector, {3});
      BNNSLayerParametersConvolution p = {};
      p.i_desc = x.descriptor;
      p.o_desc = y.descriptor;
      p.w_desc = w.with_data();
      p.bias = b.with_data();
      p.activation.function = BNNSActivationFunctionSigmoid;
      BNNSFilter filter = transposed ? BNNSFilterCreateLayerTransposedConvolution(&p, nullptr)
                                     : BNNSFilterCreateLayerConvolution(&p, nullptr);
      CHECK(filter, "%s", obn_last_error());
      Descriptor dy = y.descriptor;
      check_sums("convolution", {spaced(weights, {3, 3, 2, 3}, type), spaced(kVector, {3}, type)}, x,
                 [&](Descriptor* sums, Descriptor* dx) {
        return BNNSFilterApplyBackwardBatch(filter, 0, nullptr, 0, dx, 0, nullptr, 0, &dy, 0, &sums[0], &sums[1]);
      });
      BNNSFilterDestroy(filter);
    }
  }
}

TEST(empty_batch_fully_connected) {
  for (BNNSDataType type : kFloats) {
    const auto matrix = BNNSDataLayoutRowMajorMatrix;
    Array x = packed(kVector, {5}), y = packed(kVector, {3}), w = packed(matrix, {5, 3}, type);
    Array b = packed(kVector, {3});
    BNNSLayerParametersFullyConnected p = {};
    p.i_desc = x.descriptor;
    p.o_desc = y.descriptor;
    p.w_desc = w.with_data();
    p.bias = b.with_data();
    p.activation.function = BNNSActivationFunctionTanh;
    BNNSFilterParameters options = {};
    options.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, &options);
    CHECK(filter, "%s", obn_last_error());
    Descriptor dy = y.descriptor;
    const auto call = [&](Descriptor* sums, Descriptor* dx) {
      return BNNSFilterApplyBackwardBatch(filter, 0, nullptr, 0, dx, 0, nullptr, 0, &dy, 0, &sums[0], &sums[1]);
    };
    check_sums("fully connected", {spaced(matrix, {5, 3}, type), spaced(kVector, {3}, type)}, x, call);
    // Memory of samples that are not there is nobody's; that of the weights is the caller's.
    const std::vector<std::byte> before = w.bytes;
    Array dw = packed(matrix, {5, 3}, type), db = packed(kVector, {3}, type);
    Descriptor sums[] = {dw.with_data(), db.with_data()}, dx = x.descriptor;
    dx.data = dw.data();
    CHECK(call(sums, &dx) == 0, "%s", obn_last_error());
    sums[0].data = w.data();
    CHECK(call(sums, &dx) == -1 && w.bytes == before, "weights_gradient over weights");
    BNNSFilterDestroy(filter);
  }
}

TEST(empty_batch_pooling) {
  for (BNNSPoolingFunction function : {BNNSPoolingFunctionMax, BNNSPoolingFunctionL2Norm, BNNSPoolingFunctionUnMax}) {
    const bool is_inverse = function == BNNSPoolingFunctionUnMax;
    Array large = packed(kImage, {4, 4, 3}), small = packed(kImage, {2, 2, 3}), b = packed(kVector, {3});
    BNNSLayerParametersPooling p = {};
    p.i_desc = (is_inverse ? small : large).descriptor;
    p.o_desc = (is_inverse ? large : small).descriptor;
    p.bias = b.with_data();
    p.activation.function = BNNSActivationFunctionSigmoid;
    p.pooling_function = function;
    p.k_width = p.k_height = p.x_stride = p.y_stride = 2;
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    Descriptor dy = p.o_desc;
    check_sums("pooling", {spaced(kVector, {3})}, is_inverse ? small : large, [&](Descriptor* sums, Descriptor* dx) {
      return BNNSPoolingFilterApplyBackwardBatch(filter, 0, nullptr, 0, dx, 0, nullptr, 0, &dy, 0, sums, nullptr, 0);
    });
    BNNSFilterDestroy(filter);
  }
}

TEST(empty_batch_normalization) {
  for (BNNSFilterType type : {BNNSBatchNorm, BNNSInstanceNorm, BNNSLayerNorm, BNNSGroupNorm}) {
    Array x(kFloat, kImage, 2, {3, 3, 4}), y = x;
    const size_t values = type == BNNSLayerNorm ? 36 : 4;
    Array gamma = packed(kVector, {values}), beta = gamma, mean = packed(kVector, {4}), variance = mean;
    test::Random random{1};
    x.fill(random);
    BNNSLayerParametersNormalization p = {};
    p.i_desc = x.descriptor;
    p.o_desc = y.descriptor;
    p.gamma_desc = gamma.with_data();
    p.beta_desc = beta.with_data();
    p.moving_mean_desc = mean.with_data();
    p.moving_variance_desc = variance.with_data();
    p.momentum = 0.9f;
    p.epsilon = 1e-3f;
    p.num_groups = 2;
    p.activation.function = BNNSActivationFunctionRectifiedLinear;
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(type, &p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    Descriptor dy = y.descriptor;
    for (bool is_trained : {false, true}) {
      if (is_trained)
        CHECK(BNNSNormalizationFilterApplyBatch(filter, 2, x.data(), 0, y.data(), 0, true) == 0, "%s",
              obn_last_error());
      const std::vector<std::byte> mean_before = mean.bytes, variance_before = variance.bytes;
      CHECK(BNNSNormalizationFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0, true) == 0, "%s", obn_last_error());
      check_sums("normalization", {spaced(kVector, {values}), spaced(kVector, {values})}, packed(kImage, {3, 3, 4}),
                 [&](Descriptor* sums, Descriptor* dx) {
        return BNNSNormalizationFilterApplyBackwardBatch(filter, 0, dx, 0, nullptr, 0, &dy, 0, &sums[0], &sums[1]);
      });
      CHECK(mean.bytes == mean_before && variance.bytes == variance_before, "running statistics");
    }
    // What the training call kept is still there.
    Descriptor of_dy = x.with_data();
    Array dbeta = beta;
    Descriptor of_dbeta = dbeta.with_data();
    CHECK(BNNSNormalizationFilterApplyBackwardBatch(filter, 2, nullptr, 0, y.data(), 0, &of_dy, 0, &of_dbeta,
                                                    nullptr) == 0,
          "%s", obn_last_error());
    BNNSFilterDestroy(filter);
  }
}

TEST(empty_batch_matmul) {
  for (bool a_is_weights : {false, true}) {
    const auto matrix = BNNSDataLayoutRowMajorMatrix;
    Array a = packed(matrix, {3, 2}), b = packed(matrix, {4, 3}), c = packed(matrix, {4, 2});
    BNNSLayerParametersBroadcastMatMul p = {};
    p.alpha = 1.0f;
    p.iA_desc = a.with_data();
    p.iB_desc = b.with_data();
    p.o_desc = c.descriptor;
    p.a_is_weights = a_is_weights;
    p.b_is_weights = !a_is_weights;
    BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    Descriptor dy = c.descriptor;
    const std::vector<size_t> size = a_is_weights ? std::vector<size_t>{3, 2} : std::vector<size_t>{4, 3};
    check_sums("matmul", {spaced(matrix, size)}, a_is_weights ? b : a, [&](Descriptor* sums, Descriptor* dx) {
      return BNNSFilterApplyBackwardBatch(filter, 0, nullptr, 0, dx, 0, nullptr, 0, &dy, 0, sums, nullptr);
    });
    BNNSFilterDestroy(filter);
  }
  // Operands of samples have nothing to write.
  Array a = packed(BNNSDataLayoutRowMajorMatrix, {2, 2}), before = a;
  BNNSLayerParametersBroadcastMatMul p = {};
  p.alpha = 1.0f;
  p.iA_desc = p.iB_desc = p.o_desc = a.descriptor;
  BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr);
  Descriptor da = a.with_data(), dy = a.descriptor;
  CHECK(BNNSFilterApplyBackwardTwoInputBatch(filter, 0, nullptr, 0, &da, 0, nullptr, 0, &da, 0, nullptr, 0, &dy, 0,
                                             nullptr, nullptr) == 0,
        "%s", obn_last_error());
  CHECK(a.bytes == before.bytes, "gradients of samples were written");
  BNNSFilterDestroy(filter);
}

TEST(empty_batch_arithmetic) {
  for (bool broadcasts : {false, true}) {
    const std::vector<size_t> size = broadcasts ? std::vector<size_t>{1, 1, 4} : std::vector<size_t>{3, 2, 4};
    Array x = packed(kImage, {3, 2, 4}), w = packed(kImage, size);
    BNNSArithmeticBinary binary = {x.descriptor, BNNSSample, spaced(kImage, size).descriptor, BNNSParameter,
                                   x.descriptor, BNNSSample};
    BNNSLayerParametersArithmetic p = {};
    p.arithmetic_function = BNNSArithmeticMultiply;
    p.arithmetic_function_fields = &binary;
    p.activation.function = BNNSActivationFunctionSigmoid;
    BNNSFilter filter = BNNSFilterCreateLayerArithmetic(&p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    Descriptor dy = x.descriptor;
    Array values = spaced(kImage, size);
    for (bool has_inputs : {false, true}) {
      const void* in[] = {nullptr, values.data()};
      const auto call = [&](Descriptor* sums, Descriptor* dx) {
        Descriptor* gradients[] = {dx, &sums[0]};
        return BNNSArithmeticFilterApplyBackwardBatch(filter, 0, 2, has_inputs ? in : nullptr, nullptr, gradients,
                                                      nullptr, nullptr, 0, &dy, 0);
      };
      check_sums("arithmetic", {spaced(kImage, size)}, x, call);
    }
    BNNSFilterDestroy(filter);
  }
}

TEST(empty_batch_activation) {
  for (bool is_prelu : {false, true}) {
    Array x = packed(kImage, {3, 2, 4});
    BNNSLayerParametersActivation p = {};
    p.i_desc = p.o_desc = x.descriptor;
    p.activation.function =
        is_prelu ? BNNSActivationFunctionPReLUPerChannel : BNNSActivationFunctionLeakyRectifiedLinear;
    p.activation.alpha = 0.25f;
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    Descriptor dy = x.descriptor;
    check_sums("activation", {spaced(kVector, {is_prelu ? size_t{4} : size_t{1}})}, x,
               [&](Descriptor* sums, Descriptor* dx) {
      return BNNSFilterApplyBackwardBatch(filter, 0, nullptr, 0, dx, 0, nullptr, 0, &dy, 0, sums, nullptr);
    });
    BNNSFilterDestroy(filter);
  }
}

TEST(empty_batch_attention) {
  constexpr size_t kRows = 3, kInputs = 4, kWidth = 2, kHeads = 2, kOutputs = 5;
  // Of layouts whose first size is the fastest.
  const auto two = BNNSDataLayout2DLastMajor, three = BNNSDataLayout3DLastMajor;
  const std::vector<size_t> in = {kRows, kInputs}, out = {kRows, kOutputs}, bias = {kWidth, kHeads};
  const std::vector<size_t> weights = {kInputs, kWidth, kHeads}, of_output = {kHeads * kWidth, kOutputs};
  Array x = packed(two, in), y = packed(two, out), w = packed(three, weights), b = packed(two, bias);
  Array w_out = packed(two, of_output), b_out = packed(kVector, {kOutputs});
  for (float dropout : {0.0f, 0.5f}) {
    BNNSLayerParametersMultiheadAttention p = {};
    for (BNNSMHAProjectionParameters* part : {&p.query, &p.key, &p.value}) {
      part->target_desc = x.descriptor;
      part->weights = w.with_data();
      part->bias = b.with_data();
    }
    p.output.target_desc = y.descriptor;
    p.output.weights = w_out.with_data();
    p.output.bias = b_out.with_data();
    p.key_attn_bias = p.value_attn_bias = b.with_data();
    p.dropout = dropout;
    BNNSFilter filter = BNNSFilterCreateLayerMultiheadAttention(&p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    const Array dw = spaced(three, weights), db = spaced(two, bias);
    check_sums("attention",
               {dw, dw, dw, db, db, db, spaced(two, of_output), spaced(kVector, {kOutputs}), db, db}, x,
               [&](Descriptor* sums, Descriptor* dx) {
      BNNSMHAProjectionParameters deltas[4] = {};
      for (size_t i = 0; i < 3; ++i) {
        deltas[i].target_desc = *dx;
        deltas[i].weights = sums[i];
        deltas[i].bias = sums[3 + i];
      }
      deltas[3].target_desc = y.descriptor;
      deltas[3].weights = sums[6];
      deltas[3].bias = sums[7];
      return BNNSApplyMultiheadAttentionBackward(filter, 0, nullptr, 0, &deltas[0], nullptr, 0, nullptr, 0, &deltas[1],
                                                 nullptr, 0, &deltas[2], nullptr, &sums[8], &sums[9], nullptr, 0,
                                                 &deltas[3], 0, nullptr, nullptr, nullptr);
    });
    BNNSFilterDestroy(filter);
  }
}

// ---- fused ----

namespace {

BNNSLayerParametersNormalization norm_of(const Array& z, Array* gamma, Array* beta) {
  BNNSLayerParametersNormalization norm = {};
  norm.i_desc = norm.o_desc = z.descriptor;
  norm.gamma_desc = gamma->with_data();
  norm.beta_desc = beta->with_data();
  norm.epsilon = 1e-3f;
  norm.activation.function = BNNSActivationFunctionRectifiedLinear;
  return norm;
}

// Two layers, or three; the first has weights.
void check_fused(const char* what, std::vector<BNNSFilterType> types, std::vector<const void*> blocks,
                 const Array& x, const Array& y, const std::vector<Array>& sums) {
  BNNSFilter filter = BNNSFilterCreateFusedLayer(types.size(), types.data(), blocks.data(), nullptr);
  CHECK(filter, "%s: %s", what, obn_last_error());
  Descriptor dy = y.descriptor;
  const size_t n = 2;
  Array many_x(x.descriptor, n), many_y(y.descriptor, n);
  test::Random random{2};
  many_x.fill(random);
  for (bool is_trained : {false, true}) {
    if (is_trained)
      CHECK(BNNSFusedFilterApplyBatch(filter, n, many_x.data(), 0, many_y.data(), 0, true) == 0, "%s: %s", what,
            obn_last_error());
    check_sums(what, sums, x, [&](Descriptor* of, Descriptor* dx) {
      Descriptor* parameters[] = {&of[0], &of[1], &of[2], &of[3]};
      return BNNSFusedFilterApplyBackwardBatch(filter, 0, nullptr, 0, dx, 0, nullptr, 0, &dy, 0, parameters);
    });
  }
  BNNSFilterDestroy(filter);
}

}  // namespace

TEST(empty_batch_fused) {
  const auto weights = BNNSDataLayoutConvolutionWeightsOIHW;
  // Of one input channel: as one layer, with the pooling or without; of more: one after the other.
  for (size_t channels : {1, 6}) {
    const std::vector<size_t> size = {3, 3, channels, 8};
    Array x = packed(kImage, {12, 12, channels}), z = packed(kImage, {12, 12, 8}), y = packed(kImage, {6, 6, 8});
    Array w = packed(weights, size), b = packed(kVector, {8}), gamma = b, beta = b;
    BNNSLayerParametersConvolution first = {};
    first.i_desc = x.descriptor;
    first.o_desc = z.descriptor;
    first.w_desc = w.with_data();
    first.bias = b.with_data();
    first.x_padding = first.y_padding = 1;
    const BNNSLayerParametersNormalization norm = norm_of(z, &gamma, &beta);
    BNNSLayerParametersPooling pooling = {};
    pooling.i_desc = z.descriptor;
    pooling.o_desc = y.descriptor;
    pooling.k_width = pooling.k_height = pooling.x_stride = pooling.y_stride = 2;
    const Array vector = spaced(kVector, {8});
    const std::vector<Array> sums = {spaced(weights, size), vector, vector, vector};
    check_fused("convolution and norm", {BNNSConvolution, BNNSBatchNorm}, {&first, &norm}, x, z, sums);
    pooling.pooling_function = BNNSPoolingFunctionMax;
    check_fused("with maxima", {BNNSConvolution, BNNSBatchNorm, OBN_FILTER_POOLING}, {&first, &norm, &pooling}, x, y,
                sums);
    pooling.pooling_function = BNNSPoolingFunctionAverageCountIncludePadding;
    check_fused("with means", {BNNSConvolution, BNNSBatchNorm, OBN_FILTER_POOLING}, {&first, &norm, &pooling}, x, y,
                sums);
    // An activation of which the output does not tell the gradient is refused here too.
    pooling.activation.function = BNNSActivationFunctionGELUApproximation;
    const BNNSFilterType types[] = {BNNSConvolution, BNNSBatchNorm, OBN_FILTER_POOLING};
    const void* blocks[] = {&first, &norm, &pooling};
    BNNSFilter filter = BNNSFilterCreateFusedLayer(3, types, blocks, nullptr);
    CHECK(filter, "%s", obn_last_error());
    Array dbeta = vector;
    Descriptor dy = y.descriptor, of_dbeta = dbeta.with_data();
    Descriptor* parameters[] = {nullptr, nullptr, &of_dbeta, nullptr};
    CHECK(BNNSFusedFilterApplyBackwardBatch(filter, 0, nullptr, 0, nullptr, 0, nullptr, 0, &dy, 0, parameters) == -1,
          "a gradient that is not known");
    CHECK(dbeta.bytes == vector.bytes, "a refused call wrote");
    BNNSFilterDestroy(filter);
  }
  const auto matrix = BNNSDataLayoutRowMajorMatrix;
  Array x = packed(kVector, {5}), z = packed(kVector, {3}), w = packed(matrix, {5, 3}), gamma = z, beta = z;
  BNNSLayerParametersFullyConnected first = {};
  first.i_desc = x.descriptor;
  first.o_desc = z.descriptor;
  first.w_desc = w.with_data();
  first.bias = z.with_data();
  const BNNSLayerParametersNormalization norm = norm_of(z, &gamma, &beta);
  const Array vector = spaced(kVector, {3});
  check_fused("fully connected and norm", {BNNSFullyConnected, BNNSBatchNorm}, {&first, &norm}, x, z,
              {spaced(matrix, {5, 3}), vector, vector, vector});
}

TEST(empty_batch_fused_arithmetic) {
  Array x = packed(kImage, {3, 2, 4}), w = packed(kImage, {1, 1, 4}), gamma = packed(kVector, {4}), beta = gamma;
  BNNSArithmeticBinary binary = {x.descriptor, BNNSSample, w.descriptor, BNNSParameter, x.descriptor, BNNSSample};
  BNNSLayerParametersArithmetic first = {};
  first.arithmetic_function = BNNSArithmeticMultiply;
  first.arithmetic_function_fields = &binary;
  const BNNSLayerParametersNormalization norm = norm_of(x, &gamma, &beta);
  const BNNSFilterType types[] = {BNNSArithmetic, BNNSBatchNorm};
  const void* blocks[] = {&first, &norm};
  BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, nullptr);
  CHECK(filter, "%s", obn_last_error());
  Descriptor dy = x.descriptor;
  const Array vector = spaced(kVector, {4});
  check_sums("arithmetic and norm", {spaced(kImage, {1, 1, 4}), vector, vector}, x,
             [&](Descriptor* sums, Descriptor* dx) {
    const void* in[] = {nullptr, w.data()};
    Descriptor *gradients[] = {dx, &sums[0]}, *parameters[] = {&sums[1], &sums[2]};
    return BNNSFusedFilterApplyBackwardMultiInputBatch(filter, 0, 2, in, nullptr, gradients, nullptr, nullptr, 0, &dy,
                                                       0, parameters);
  });
  BNNSFilterDestroy(filter);
}
