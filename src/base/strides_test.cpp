// An axis of one value, and a batch of one sample, never step: any stride may be said of them, and every family has to
// compute what it does without. Sanitizers see who forms an address from such a stride.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/test.h"
#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

using namespace obn;

namespace {

constexpr size_t kFar[] = {size_t{1} << 61, size_t{1} << 63};  // in bytes, and as they are, out of a signed range

// The same array with the longest strides that may be said of axes of one value. For layouts of which stride[k]
// belongs to size[k].
BNNSNDArrayDescriptor stretched(BNNSNDArrayDescriptor d, size_t rank, size_t far) {
  size_t stride = 1;
  for (size_t k = 0; k < rank; ++k) {
    d.stride[k] = stride;
    stride *= d.size[k];
  }
  size_t longest = far;
  for (size_t k = rank; k-- > 0;) {
    if (d.size[k] == 1) d.stride[k] = longest;
    longest = d.stride[k];
  }
  return d;
}

struct Numbers {
  test::Random random{5};
  std::vector<float> values(size_t n) {
    std::vector<float> all(n);
    for (float& v : all) v = static_cast<float>(random.value());
    return all;
  }
};

// Says descriptors plainly or stretched, and the batch stride of the only sample.
struct Words {
  size_t far;  // 0: plainly

  BNNSNDArrayDescriptor image(size_t c, size_t h, size_t w, void* data = nullptr) const {
    return say(array_of(BNNSDataLayoutImageCHW, {w, h, c}, data), 3);
  }
  BNNSNDArrayDescriptor say(const BNNSNDArrayDescriptor& d, size_t rank) const {
    return far ? stretched(d, rank, far) : d;
  }
  size_t batch() const { return far; }
};

using Results = std::vector<std::vector<float>>;

template <class Body>  // Results body(const Words&)
void compare(const Body& body, const char* what, std::initializer_list<size_t> shape) {
  const Results plain = body(Words{0});
  size_t s[6] = {};
  std::copy(shape.begin(), shape.end(), s);
  for (size_t far : kFar)
    CHECK(plain == body(Words{far}), "%s (%zu, %zu, %zu) %zu %zu %zu", what, s[0], s[1], s[2], s[3], s[4], s[5]);
}

Results convolve(const Words& say, BNNSDataLayout layout, bool transposed, size_t c, size_t h, size_t w, size_t o,
                 size_t kernel, size_t step) {
  Numbers numbers;
  const size_t p = (h - 1) / step + 1, q = (w - 1) / step + 1, taps = o * c * kernel * kernel;
  const size_t from = transposed ? o * p * q : c * h * w, to = transposed ? c * h * w : o * p * q;
  const size_t outputs = transposed ? c : o;
  std::vector<float> x = numbers.values(from), weights = numbers.values(taps), bias = numbers.values(outputs),
                     dy = numbers.values(to), y(to), dx(from), dw(taps), db(outputs);
  const auto large = [&](std::vector<float>& v) { return say.image(c, h, w, v.data()); };
  const auto small = [&](std::vector<float>& v) { return say.image(o, p, q, v.data()); };
  const auto taps_of = [&](std::vector<float>& v) {
    return say.say(array_of(layout, {kernel, kernel, transposed ? o : c, transposed ? c : o}, v.data()), 4);
  };
  BNNSLayerParametersConvolution parameters = {};
  parameters.i_desc = transposed ? small(x) : large(x);
  parameters.o_desc = transposed ? large(y) : small(y);
  parameters.w_desc = taps_of(weights);
  parameters.bias = vector_of(outputs, bias.data());
  parameters.x_stride = parameters.y_stride = step;
  parameters.x_padding = parameters.y_padding = kernel / 2;
  BNNSFilter filter = transposed ? BNNSFilterCreateLayerTransposedConvolution(&parameters, nullptr)
                                 : BNNSFilterCreateLayerConvolution(&parameters, nullptr);
  CHECK(filter, "%s", obn_last_error());
  BNNSNDArrayDescriptor in_delta = transposed ? small(dx) : large(dx), out_delta = transposed ? large(dy) : small(dy),
                        weights_delta = taps_of(dw), bias_delta = vector_of(outputs, db.data());
  const int status =
      BNNSFilterApplyBatch(filter, 1, x.data(), say.batch(), y.data(), say.batch()) |
      BNNSFilterApplyBackwardBatch(filter, 1, x.data(), say.batch(), &in_delta, say.batch(), y.data(), say.batch(),
                                   &out_delta, say.batch(), &weights_delta, &bias_delta);
  CHECK(status == 0, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  return {y, dx, dw, db};
}

Results pool(const Words& say, BNNSPoolingFunction function, size_t c, size_t h, size_t w, size_t window, size_t step) {
  Numbers numbers;
  const size_t p = (h - 1) / step + 1, q = (w - 1) / step + 1;
  std::vector<float> x = numbers.values(c * h * w), dy = numbers.values(c * p * q), y(c * p * q), dx(c * h * w);
  std::vector<uint32_t> indices(c * p * q);
  BNNSLayerParametersPooling parameters = {};
  parameters.i_desc = say.image(c, h, w);
  parameters.o_desc = say.image(c, p, q);
  parameters.pooling_function = function;
  parameters.k_width = parameters.k_height = window;
  parameters.x_stride = parameters.y_stride = step;
  BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
  CHECK(filter, "%s", obn_last_error());
  BNNSNDArrayDescriptor in_delta = say.image(c, h, w, dx.data()), out_delta = say.image(c, p, q, dy.data());
  const int status =
      BNNSPoolingFilterApplyBatchEx(filter, 1, x.data(), say.batch(), y.data(), say.batch(), BNNSDataTypeUInt32,
                                    indices.data(), say.batch()) |
      BNNSPoolingFilterApplyBackwardBatchEx(filter, 1, x.data(), say.batch(), &in_delta, say.batch(), y.data(),
                                            say.batch(), &out_delta, say.batch(), nullptr, BNNSDataTypeUInt32,
                                            indices.data(), say.batch());
  CHECK(status == 0, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  return {y, dx, {indices.begin(), indices.end()}};
}

Results normalize(const Words& say, BNNSFilterType type, size_t c, size_t h, size_t w) {
  Numbers numbers;
  const size_t n = c * h * w;
  std::vector<float> x = numbers.values(n), dy = numbers.values(n), gamma = numbers.values(c), beta = numbers.values(c),
                     y(n), dx(n), dgamma(c), dbeta(c);
  BNNSLayerParametersNormalization parameters = {};
  parameters.i_desc = parameters.o_desc = say.image(c, h, w);
  parameters.gamma_desc = vector_of(c, gamma.data());
  parameters.beta_desc = vector_of(c, beta.data());
  parameters.normalization_axis = 1;
  parameters.epsilon = 1e-3f;
  if (type == BNNSLayerNorm) parameters.gamma_desc.data = parameters.beta_desc.data = nullptr;
  BNNSFilter filter = BNNSFilterCreateLayerNormalization(type, &parameters, nullptr);
  CHECK(filter, "%s", obn_last_error());
  BNNSNDArrayDescriptor in_delta = say.image(c, h, w, dx.data()), out_delta = say.image(c, h, w, dy.data());
  BNNSNDArrayDescriptor gamma_delta = vector_of(c, dgamma.data()), beta_delta = vector_of(c, dbeta.data());
  const bool has_parameters = type != BNNSLayerNorm;
  const int status =
      BNNSNormalizationFilterApplyBatch(filter, 1, x.data(), say.batch(), y.data(), say.batch(), true) |
      BNNSNormalizationFilterApplyBackwardBatch(filter, 1, &in_delta, say.batch(), y.data(), say.batch(), &out_delta,
                                                say.batch(), has_parameters ? &beta_delta : nullptr,
                                                has_parameters ? &gamma_delta : nullptr);
  CHECK(status == 0, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  return {y, dx, dgamma, dbeta};
}

Results activate(const Words& say, BNNSActivationFunction function, size_t c, size_t h, size_t w) {
  Numbers numbers;
  const size_t n = c * h * w;
  std::vector<float> x = numbers.values(n), dy = numbers.values(n), y(n), dx(n);
  BNNSLayerParametersActivation parameters = {};
  parameters.i_desc = parameters.o_desc = say.image(c, h, w);
  parameters.activation.function = function;
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&parameters, nullptr);
  CHECK(filter, "%s", obn_last_error());
  BNNSNDArrayDescriptor in_delta = say.image(c, h, w, dx.data()), out_delta = say.image(c, h, w, dy.data());
  const int status = BNNSFilterApplyBatch(filter, 1, x.data(), say.batch(), y.data(), say.batch()) |
                     BNNSFilterApplyBackwardBatch(filter, 1, x.data(), say.batch(), &in_delta, say.batch(), y.data(),
                                                  say.batch(), &out_delta, say.batch(), nullptr, nullptr);
  CHECK(status == 0, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  return {y, dx};
}

// (m, k) · (k, n)
Results multiply(const Words& say, size_t m, size_t k, size_t n) {
  Numbers numbers;
  std::vector<float> a = numbers.values(m * k), b = numbers.values(k * n), c(m * n);
  const auto matrix = [&](size_t rows, size_t columns, std::vector<float>& v) {
    return say.say(array_of(BNNSDataLayoutRowMajorMatrix, {columns, rows}, v.data()), 2);
  };
  const BNNSNDArrayDescriptor of_a = matrix(m, k, a), of_b = matrix(k, n, b), of_c = matrix(m, n, c);
  CHECK(BNNSMatMul(false, false, 1.0f, &of_a, &of_b, &of_c, nullptr, nullptr) == 0, "%s", obn_last_error());
  return {c};
}

// x (k) to y (m), and the gradients.
Results connect(const Words& say, size_t m, size_t k) {
  Numbers numbers;
  std::vector<float> x = numbers.values(k), w = numbers.values(m * k), dy = numbers.values(m), y(m), dx(k), dw(m * k);
  const auto vector = [&](std::vector<float>& v) { return say.say(vector_of(v.size(), v.data()), 1); };
  const auto matrix = [&](std::vector<float>& v) {
    return say.say(array_of(BNNSDataLayoutRowMajorMatrix, {k, m}, v.data()), 2);
  };
  BNNSLayerParametersFullyConnected parameters = {};
  parameters.i_desc = vector(x);
  parameters.o_desc = vector(y);
  parameters.w_desc = matrix(w);
  BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&parameters, nullptr);
  CHECK(filter, "%s", obn_last_error());
  BNNSNDArrayDescriptor in_delta = vector(dx), out_delta = vector(dy), weights_delta = matrix(dw);
  const int status = BNNSFilterApplyBatch(filter, 1, x.data(), say.batch(), y.data(), say.batch()) |
                     BNNSFilterApplyBackwardBatch(filter, 1, x.data(), say.batch(), &in_delta, say.batch(), y.data(),
                                                  say.batch(), &out_delta, say.batch(), &weights_delta, nullptr);
  CHECK(status == 0, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  return {y, dx, dw};
}

template <class Body>  // void body(c, h, w)
void for_shapes(const Body& body) {
  for (size_t c : {1, 4})
    for (size_t h : {1, 7})
      for (size_t w : {1, 9, 40}) body(c, h, w);
}

}  // namespace

TEST(any_stride_of_one_value_convolution) {
  for_shapes([](size_t c, size_t h, size_t w) {
    for (bool transposed : {false, true})
      for (size_t o : {1, 5})
        for (size_t kernel : {1, 3})
          for (size_t step : {1, 2})
            for (BNNSDataLayout layout :
                 {BNNSDataLayoutConvolutionWeightsOIHW, BNNSDataLayoutConvolutionWeightsOIHrWr})
              compare([&](const Words& say) { return convolve(say, layout, transposed, c, h, w, o, kernel, step); },
                      transposed ? "transposed" : "convolution", {c, h, w, o, kernel, step});
  });
}

TEST(any_stride_of_one_value_pooling) {
  for_shapes([](size_t c, size_t h, size_t w) {
    for (BNNSPoolingFunction function : {BNNSPoolingFunctionMax, BNNSPoolingFunctionAverageCountIncludePadding})
      for (size_t window : {1, 2, 3})
        for (size_t step : {1, 2})
          compare([&](const Words& say) { return pool(say, function, c, h, w, window, step); }, "pooling",
                  {c, h, w, window, step});
  });
}

TEST(any_stride_of_one_value_other_layers) {
  for_shapes([](size_t c, size_t h, size_t w) {
    for (BNNSFilterType type : {BNNSBatchNorm, BNNSInstanceNorm, BNNSLayerNorm, BNNSGroupNorm})
      compare([&](const Words& say) { return normalize(say, type, c, h, w); }, "normalization", {c, h, w});
    for (BNNSActivationFunction function : {BNNSActivationFunctionTanh, BNNSActivationFunctionSoftmax})
      compare([&](const Words& say) { return activate(say, function, c, h, w); }, "activation", {c, h, w});
    compare([&](const Words& say) { return multiply(say, c, h, w); }, "product", {c, h, w});
    compare([&](const Words& say) { return connect(say, c * h, w); }, "fully connected", {c, h, w});
  });
}
