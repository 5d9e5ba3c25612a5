// What the tests of fused layers share: a pair with all its arrays, its two layers called one after the other, and the
// same in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/test_array.h"
#include "fused/fused.h"
#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

namespace obn::fused::test {

using ::obn::test::Array;
using ::obn::test::Random;

// ---- one pair with its arrays ----

enum class First { convolution, transposed, fully_connected, arithmetic };
inline constexpr First kFirsts[] = {First::convolution, First::transposed, First::fully_connected, First::arithmetic};
inline constexpr BNNSFilterType kNorms[] = {BNNSBatchNorm, BNNSInstanceNorm, BNNSLayerNorm, BNNSGroupNorm};
inline constexpr BNNSDataType kFloats[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};

struct Setup {
  First first = First::convolution;
  BNNSFilterType norm = BNNSBatchNorm;
  size_t n = 3;
  size_t c = 3, h = 5, w = 6;              // input; a fully connected layer has c inputs
  size_t o = 4, kernel = 3, stride = 1, pad = 1, groups = 1;
  BNNSArithmeticFunction function = BNNSArithmeticAdd;
  bool broadcasts = false, has_parameter = false;  // the second input of arithmetic
  size_t norm_groups = 2, axis = 0;
  BNNSActivationFunction activation = BNNSActivationFunctionRectifiedLinear;
  BNNSDataType type = BNNSDataTypeFloat32, joint_type = BNNSDataTypeFloat32, y_type = BNNSDataTypeFloat32;
  size_t x_gaps[5] = {}, y_gaps[5] = {}, dy_gaps[5] = {}, dx_gaps[5] = {}, joint_gaps[5] = {};
  size_t shift = 0;
  bool has_bias = true, has_gamma = true, has_moving = false, client = false, accumulate = false;
  size_t threads = 0;

  bool is_vector() const { return first == First::fully_connected; }
  BNNSDataLayout layout() const { return is_vector() ? BNNSDataLayoutVector : BNNSDataLayoutImageCHW; }
  size_t out(size_t in) const {
    if (first == First::convolution) return (in + 2 * pad - kernel) / stride + 1;
    if (first == First::transposed) return (in - 1) * stride + kernel - 2 * pad;
    return in;
  }
  std::vector<size_t> in_size() const { return is_vector() ? std::vector{c} : std::vector{w, h, c}; }
  std::vector<size_t> out_size() const {
    if (is_vector()) return {o};
    return {out(w), out(h), first == First::arithmetic ? c : o};
  }
  size_t inputs() const { return first == First::arithmetic ? arithmetic::inputs_of(function) : 1; }
  bool has_weights() const { return first != First::arithmetic; }
  size_t parameter_count() const {
    const std::vector<size_t> size = out_size();
    if (norm != BNNSLayerNorm) return size.back();
    return is_vector() ? (axis == 0 ? o : 1)
                       : axis == 0 ? size[0] * size[1] * size[2] : axis == 1 ? size[0] * size[1] : size[0];
  }
  // Done as one layer (fused_few_channels.h): other sums than those of the two layers.
  bool has_few_channels() const {
    const size_t taps = c * kernel * kernel;
    return first == First::convolution && norm == BNNSBatchNorm && groups == 1 && c <= 4 &&
           joint_type == BNNSDataTypeFloat32 && y_type == BNNSDataTypeFloat32 && y_gaps[0] == 0 &&
           (activation == BNNSActivationFunctionIdentity || activation == BNNSActivationFunctionRectifiedLinear) &&
           taps <= 32 && taps * taps <= 16 * o && out(h) * out(w) >= 64;
  }
  std::string text() const {
    char buffer[240];
    std::snprintf(buffer, sizeof buffer,
                  "first %d norm %u N %zu in (%zu, %zu, %zu) O %zu k %zu s %zu p %zu G %zu function %u act %u type %x "
                  "joint %x y %x axis %zu",
                  static_cast<int>(first), static_cast<unsigned>(norm), n, c, h, w, o, kernel, stride, pad, groups,
                  static_cast<unsigned>(function), static_cast<unsigned>(activation), static_cast<unsigned>(type),
                  static_cast<unsigned>(joint_type), static_cast<unsigned>(y_type), axis);
    return buffer;
  }
};

// A convolution of few taps, batch norm and ReLU.
inline Setup few_channels_setup() {
  Setup s;
  s.n = 2;
  s.c = 1;
  s.o = 7;
  s.h = 9;
  s.w = 11;
  return s;
}

// Depthwise, with many planes that are no longer than what is summed in one go.
inline Setup many_planes() {
  Setup s;
  s.n = 9;
  s.c = s.o = s.groups = 180;
  s.h = 27;
  s.w = 26;
  s.has_moving = true;
  return s;
}

struct Pair {
  Setup s;
  std::vector<Array> x, dx;
  Array z, u, y, dy, w, bias, dw, db, gamma, beta, dgamma, dbeta, mean, variance;
  BNNSLayerParametersConvolution convolution = {};
  BNNSLayerParametersFullyConnected fully_connected = {};
  BNNSArithmeticUnary unary = {};
  BNNSArithmeticBinary binary = {};
  BNNSArithmeticTernary ternary = {};
  BNNSLayerParametersArithmetic arithmetic = {};
  BNNSLayerParametersNormalization norm = {};
  BNNSFilterParameters options = {};
  BNNSFilter fused = nullptr, first = nullptr, second = nullptr;

  Pair(const Setup& setup, uint64_t seed) : s(setup) {
    Random random{seed};
    const size_t k = s.kernel;
    for (size_t i = 0; i < s.inputs(); ++i) {
      std::vector<size_t> size = s.in_size();
      if (i == 1 && s.broadcasts) size[0] = size[1] = 1;
      const size_t n = i == 1 && s.has_parameter ? 1 : s.n;
      x.emplace_back(s.type, s.layout(), n, size, s.x_gaps, s.shift);
      dx.emplace_back(s.type, s.layout(), n, size, s.dx_gaps, s.shift);
      x.back().fill(random, s.first == First::arithmetic ? 2.0 : 0.0);
      dx.back().fill(random);
    }
    z = Array(s.joint_type, s.layout(), s.n, s.out_size());
    u = z;
    y = Array(s.y_type, s.layout(), s.n, s.out_size(), s.y_gaps, s.shift);
    dy = Array(s.y_type, s.layout(), s.n, s.out_size(), s.dy_gaps, s.shift);
    dy.fill(random);
    const auto vector = [](BNNSDataType type, size_t count) {
      return Array(type, BNNSDataLayoutVector, 1, {count});
    };
    if (s.has_weights()) {
      w = s.is_vector() ? Array(s.type, BNNSDataLayoutRowMajorMatrix, 1, {s.c, s.o})
                        : Array(s.type, BNNSDataLayoutConvolutionWeightsOIHW, 1, {k, k, s.c / s.groups, s.o});
      bias = vector(s.type, s.o);
      w.fill(random, 0.0, 0.5);
      bias.fill(random);
      dw = w;
      db = bias;
      dw.fill(random);
      db.fill(random);
    }
    gamma = dgamma = vector(BNNSDataTypeFloat32, s.parameter_count());
    beta = dbeta = gamma;
    gamma.fill(random, 1.0, 0.5);
    beta.fill(random, 0.25, 0.5);
    dgamma.fill(random);
    dbeta.fill(random);
    mean = variance = vector(BNNSDataTypeFloat32, s.out_size().back());
    mean.fill(random);
    variance.fill(random, 2.0);
  }
  Pair(const Pair&) = delete;
  ~Pair() {
    for (BNNSFilter filter : {fused, first, second}) BNNSFilterDestroy(filter);
  }

  // The descriptors between the layers of a pair may have gaps; its own memory has none, as that of separate calls.
  void describe(bool is_fused = true) {
    const Array joint = is_fused ? Array(s.joint_type, s.layout(), 1, s.out_size(), s.joint_gaps) : z;
    if (s.is_vector()) {
      fully_connected.i_desc = x[0].descriptor;
      fully_connected.o_desc = joint.descriptor;
      fully_connected.w_desc = w.with_data();
      if (s.has_bias) fully_connected.bias = bias.with_data();
    } else if (s.has_weights()) {
      convolution.i_desc = x[0].descriptor;
      convolution.o_desc = joint.descriptor;
      convolution.w_desc = w.with_data();
      if (s.has_bias) convolution.bias = bias.with_data();
      convolution.x_stride = convolution.y_stride = s.stride;
      convolution.x_padding = convolution.y_padding = s.pad;
      convolution.groups = s.groups;
    } else {
      const BNNSDescriptorType other = s.has_parameter ? BNNSParameter : BNNSSample;
      arithmetic.arithmetic_function = s.function;
      switch (s.inputs()) {
        case 1:
          unary = {x[0].descriptor, BNNSSample, joint.descriptor, BNNSSample};
          arithmetic.arithmetic_function_fields = &unary;
          break;
        case 2:
          binary = {x[0].descriptor, BNNSSample, x[1].descriptor, other, joint.descriptor, BNNSSample};
          arithmetic.arithmetic_function_fields = &binary;
          break;
        default:
          ternary = {x[0].descriptor, BNNSSample, x[1].descriptor, other, x[2].descriptor, BNNSSample,
                     joint.descriptor, BNNSSample};
          arithmetic.arithmetic_function_fields = &ternary;
      }
    }
    norm.i_desc = joint.descriptor;
    norm.o_desc = y.descriptor;
    if (s.has_gamma) {
      norm.gamma_desc = gamma.with_data();
      norm.beta_desc = beta.with_data();
    }
    if (s.has_moving) {
      norm.moving_mean_desc = mean.with_data();
      norm.moving_variance_desc = variance.with_data();
    }
    norm.momentum = 0.9f;
    norm.epsilon = 1e-3f;
    norm.activation.function = s.activation;
    norm.activation.alpha = 0.25f;
    norm.activation.beta = 1.0f;
    norm.num_groups = s.norm_groups;
    norm.normalization_axis = s.axis;
    if (s.client) options.flags = BNNSFlagsUseClientPtr;
    options.n_threads = s.threads;
  }
  BNNSFilterType first_type() const {
    switch (s.first) {
      case First::convolution: return BNNSConvolution;
      case First::transposed: return BNNSTransposedConvolution;
      case First::fully_connected: return BNNSFullyConnected;
      default: return BNNSArithmetic;
    }
  }
  const void* first_block() const {
    if (s.is_vector()) return &fully_connected;
    return s.has_weights() ? static_cast<const void*>(&convolution) : &arithmetic;
  }
  BNNSFilter make_fused() {
    describe();
    const BNNSFilterType types[] = {first_type(), s.norm};
    const void* blocks[] = {first_block(), &norm};
    fused = BNNSFilterCreateFusedLayer(2, types, blocks, &options);
    CHECK(fused, "%s: %s", s.text().c_str(), obn_last_error());
    return fused;
  }
  void make_separate() {
    describe(false);
    switch (s.first) {
      case First::convolution: first = BNNSFilterCreateLayerConvolution(&convolution, &options); break;
      case First::transposed: first = BNNSFilterCreateLayerTransposedConvolution(&convolution, &options); break;
      case First::fully_connected: first = BNNSFilterCreateLayerFullyConnected(&fully_connected, &options); break;
      default: first = BNNSFilterCreateLayerArithmetic(&arithmetic, &options);
    }
    second = BNNSFilterCreateLayerNormalization(s.norm, &norm, &options);
    CHECK(first && second, "%s: %s", s.text().c_str(), obn_last_error());
  }

  // Inputs and their gradients as calls take them.
  struct Inputs {
    const void* x[3] = {};
    size_t x_stride[3] = {}, dx_stride[3] = {};
    BNNSNDArrayDescriptor gradients[3] = {}, *dx[3] = {};

    explicit Inputs(Pair& pair) {
      for (size_t i = 0; i < pair.x.size(); ++i) {
        x[i] = pair.x[i].data();
        x_stride[i] = pair.x[i].batch_stride;
        gradients[i] = pair.dx[i].with_data(pair.s.accumulate);
        dx[i] = &gradients[i];
        dx_stride[i] = pair.dx[i].batch_stride;
      }
    }
    Inputs(const Inputs&) = delete;
  };

  int apply(bool training = true) {
    Inputs in(*this);
    if (s.first != First::arithmetic || (s.inputs() == 1 && s.n % 2 == 0))
      return BNNSFusedFilterApplyBatch(fused, s.n, in.x[0], in.x_stride[0], y.data(), y.batch_stride, training);
    return BNNSFusedFilterApplyMultiInputBatch(fused, s.n, x.size(), in.x, in.x_stride, y.data(), y.batch_stride,
                                               training);
  }
  // wanted: a bit each for dx, dw, db, dβ, dγ
  int apply_backward(unsigned wanted = 31) {
    BNNSNDArrayDescriptor dy_d = dy.with_data();
    Inputs in(*this);
    const auto of = [&](Array& array) {
      return array.bytes.empty() ? BNNSNDArrayDescriptor{} : array.with_data(s.accumulate);
    };
    BNNSNDArrayDescriptor d[] = {of(dw), of(db), of(dbeta), of(dgamma)};
    BNNSNDArrayDescriptor* parameters[4];
    for (size_t k = 0; k < 4; ++k) parameters[k] = wanted >> (k + 1) & 1 ? &d[k] : nullptr;
    BNNSNDArrayDescriptor** deltas = s.has_weights() ? parameters : parameters + 2;
    if (!(wanted >> 1)) deltas = nullptr;
    const void* out = s.activation == BNNSActivationFunctionIdentity ? nullptr : y.data();
    if (s.first != First::arithmetic || (s.inputs() == 1 && s.n % 2 == 0))
      return BNNSFusedFilterApplyBackwardBatch(fused, s.n, in.x[0], in.x_stride[0], wanted & 1 ? in.dx[0] : nullptr,
                                               in.dx_stride[0], out, y.batch_stride, &dy_d, dy.batch_stride, deltas);
    return BNNSFusedFilterApplyBackwardMultiInputBatch(fused, s.n, x.size(), in.x, in.x_stride, in.dx, in.dx_stride,
                                                       out, y.batch_stride, &dy_d, dy.batch_stride, deltas);
  }

  int apply_separate(bool training = true) {
    Inputs in(*this);
    const int status =
        s.has_weights()
            ? BNNSFilterApplyBatch(first, s.n, in.x[0], in.x_stride[0], z.data(), z.batch_stride)
            : BNNSArithmeticFilterApplyBatch(first, s.n, x.size(), in.x, in.x_stride, z.data(), z.batch_stride);
    if (status != 0) return status;
    return BNNSNormalizationFilterApplyBatch(second, s.n, z.data(), z.batch_stride, y.data(), y.batch_stride, training);
  }
  int apply_backward_separate() {
    BNNSNDArrayDescriptor dy_d = dy.with_data(), u_d = u.with_data();
    BNNSNDArrayDescriptor db_d = dbeta.with_data(s.accumulate), dg_d = dgamma.with_data(s.accumulate);
    const void* out = s.activation == BNNSActivationFunctionIdentity ? nullptr : y.data();
    if (BNNSNormalizationFilterApplyBackwardBatch(second, s.n, &u_d, u.batch_stride, out, y.batch_stride, &dy_d,
                                                  dy.batch_stride, &db_d, &dg_d) != 0)
      return -1;
    Inputs in(*this);
    if (!s.has_weights())
      return BNNSArithmeticFilterApplyBackwardBatch(first, s.n, x.size(), in.x, in.x_stride, in.dx, in.dx_stride,
                                                    z.data(), z.batch_stride, &u_d, u.batch_stride);
    BNNSNDArrayDescriptor dw_d = dw.with_data(s.accumulate), bias_d = db.with_data(s.accumulate);
    return BNNSFilterApplyBackwardBatch(first, s.n, in.x[0], in.x_stride[0], in.dx[0], in.dx_stride[0], nullptr, 0,
                                        &u_d, u.batch_stride, &dw_d, &bias_d);
  }
  std::vector<std::pair<const char*, Array*>> results() {
    std::vector<std::pair<const char*, Array*>> all = {{"output", &y}, {"beta gradient", &dbeta},
                                                       {"gamma gradient", &dgamma}, {"moving mean", &mean},
                                                       {"moving variance", &variance}, {"grad_output", &dy}};
    for (size_t i = 0; i < x.size(); ++i) {
      all.push_back({"input gradient", &dx[i]});
      all.push_back({"input", &x[i]});
    }
    if (s.has_weights()) {
      all.push_back({"weights gradient", &dw});
      all.push_back({"bias gradient", &db});
    }
    return all;
  }
};

inline void check_same(Pair& a, Pair& b, const char* what) {
  const auto first = a.results(), second = b.results();
  for (size_t k = 0; k < first.size(); ++k) {
    const Array &p = *first[k].second, &q = *second[k].second;
    if (p.bytes == q.bytes) continue;
    size_t i = 0;
    while (i + 1 < p.count() && p.get(i) == q.get(i)) ++i;
    CHECK(false, "%s: %s differs from %s at %zu: %.9g, not %.9g", a.s.text().c_str(), first[k].first, what, i, p.get(i),
          q.get(i));
  }
}

// The bits of one thread for any number of them.
inline void check_threads(Setup s) {
  s.threads = 1;
  Pair one(s, 3);
  if (!one.make_fused()) return;
  CHECK(one.apply() == 0 && one.apply_backward() == 0, "%s", obn_last_error());
  const size_t before = obn_get_num_threads();
  for (size_t threads : {size_t{2}, size_t{7}}) {
    s.threads = threads;
    obn_set_num_threads(threads);
    Pair many(s, 3);
    if (!many.make_fused()) break;
    CHECK(many.apply() == 0 && many.apply_backward() == 0, "%s", obn_last_error());
    check_same(many, one, "one thread");
  }
  obn_set_num_threads(before);
}

// The largest distance, by the largest value (or 1).
inline double distance(const Array& got, const std::vector<double>& expected) {
  double apart = 0.0, most = 1.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    apart = std::max(apart, std::isnan(got.get(i)) ? 1e9 : std::fabs(got.get(i) - expected[i]));
    most = std::max(most, std::fabs(expected[i]));
  }
  return apart / most;
}

// Nearly the same values, and the memory between them untouched. What is stored as half is rounded to it.
inline void check_alike(Pair& a, Pair& b, const char* what) {
  const auto first = a.results(), second = b.results();
  for (size_t k = 0; k < first.size(); ++k) {
    Array p = *first[k].second;
    const Array& q = *second[k].second;
    const bool is_half = p.descriptor.data_type != BNNSDataTypeFloat32;
    // Nothing but rounding is in the bias gradient of the two layers: that of a mean, once for every position.
    const double rounding = first[k].second == &a.db ? 2e-4 + 1e-7 * static_cast<double>(a.y.count() / a.s.o) : 2e-5;
    const double apart = distance(p, q.numbers()), allowed = is_half ? 1e-2 : rounding;
    CHECK(apart <= allowed, "%s: %s is %g from %s", a.s.text().c_str(), first[k].first, apart, what);
    for (size_t i = 0; i < p.count(); ++i) p.set(i, q.get(i));
    CHECK(p.bytes == q.bytes, "%s: %s has changed between its values", a.s.text().c_str(), first[k].first);
  }
}

// ReLU may be open in one and closed in the other where its input is nearly 0: gradients are not asked for there.
inline void keep_from_kinks(Pair& a, Pair& b) {
  for (size_t i = 0; i < a.y.count(); ++i) {
    if (a.y.get(i) > 1e-4 || b.y.get(i) > 1e-4) continue;
    a.dy.set(i, 0.0);
    b.dy.set(i, 0.0);
  }
}

inline void check_setup(const Setup& s, uint64_t seed) {
  const auto check_same = s.has_few_channels() ? check_alike : test::check_same;
  Pair pair(s, seed), separate(s, seed);
  if (!pair.make_fused()) return;
  separate.make_separate();
  if (!separate.first || !separate.second) return;
  CHECK(pair.apply() == 0, "%s: %s", s.text().c_str(), obn_last_error());
  CHECK(separate.apply_separate() == 0, "%s: %s", s.text().c_str(), obn_last_error());
  if (s.has_few_channels() && s.activation == BNNSActivationFunctionRectifiedLinear) keep_from_kinks(pair, separate);
  CHECK(pair.apply_backward() == 0, "%s: %s", s.text().c_str(), obn_last_error());
  CHECK(separate.apply_backward_separate() == 0, "%s: %s", s.text().c_str(), obn_last_error());
  check_same(pair, separate, "the two layers");
  CHECK(pair.apply(false) == 0 && separate.apply_separate(false) == 0, "%s: %s", s.text().c_str(), obn_last_error());
  check_same(pair, separate, "the two layers in inference");
}

// ---- the same in float64 ----

struct Exact {
  const Setup& s;
  std::vector<std::vector<double>> x;
  std::vector<double> w, bias, gamma, beta, dy;

  explicit Exact(const Pair& pair)
      : s(pair.s), w(pair.w.numbers()), bias(pair.bias.numbers()), gamma(pair.gamma.numbers()),
        beta(pair.beta.numbers()), dy(pair.dy.numbers()) {
    for (const Array& array : pair.x) x.push_back(array.numbers());
  }

  std::vector<double> first() const {
    const std::vector<size_t> size = s.out_size();
    if (s.is_vector()) {
      std::vector<double> z(s.n * s.o);
      for (size_t i = 0; i < z.size(); ++i) {
        z[i] = bias[i % s.o];
        for (size_t k = 0; k < s.c; ++k) z[i] += w[i % s.o * s.c + k] * x[0][i / s.o * s.c + k];
      }
      return z;
    }
    const size_t q = size[0], p = size[1], channels = size[2], plane = q * p;
    std::vector<double> z(s.n * channels * plane, 0.0);
    if (s.first == First::arithmetic) {
      for (size_t i = 0; i < z.size(); ++i) {
        double in[3] = {};
        for (size_t k = 0; k < x.size(); ++k) {
          const size_t values = x[k].size();
          const size_t at = k == 1 && s.broadcasts ? i / plane : i;
          in[k] = x[k][at % values];
        }
        z[i] = arithmetic::ref::forward(s.function, in[0], in[1], in[2]);
      }
      return z;
    }
    for (size_t i = 0; i < z.size(); ++i) z[i] = bias[i / plane % channels];
    // Every weight joins one value of the smaller image with one of the larger.
    const bool transposed = s.first == First::transposed;
    const size_t rows = transposed ? s.h : p, columns = transposed ? s.w : q;
    const size_t large_h = transposed ? p : s.h, large_w = transposed ? q : s.w;
    const size_t in_group = s.c / s.groups, out_group = s.o / s.groups;
    for (size_t n = 0; n < s.n; ++n)
      for (size_t o = 0; o < s.o; ++o)
        for (size_t c = 0; c < in_group; ++c)
          for (size_t ky = 0; ky < s.kernel; ++ky)
            for (size_t kx = 0; kx < s.kernel; ++kx)
              for (size_t row = 0; row < rows; ++row)
                for (size_t column = 0; column < columns; ++column) {
                  const size_t y = row * s.stride + ky - s.pad, xx = column * s.stride + kx - s.pad;
                  if (y >= large_h || xx >= large_w) continue;  // also what is below 0
                  const size_t in = n * s.c + o / out_group * in_group + c, out = n * s.o + o;
                  const double weight = w[((o * in_group + c) * s.kernel + ky) * s.kernel + kx];
                  const size_t at_small = row * columns + column, at_large = y * large_w + xx;
                  if (transposed) {
                    z[out * plane + at_large] += weight * x[0][in * rows * columns + at_small];
                  } else {
                    z[out * plane + at_small] += weight * x[0][in * large_h * large_w + at_large];
                  }
                }
    return z;
  }
  using Normalization = normalization::ref::Problem<double>;
  Normalization norm() const {
    const std::vector<size_t> size = s.out_size();
    Normalization p = {};
    p.kind = s.norm == BNNSBatchNorm      ? normalization::Kind::batch
             : s.norm == BNNSInstanceNorm ? normalization::Kind::instance
             : s.norm == BNNSLayerNorm    ? normalization::Kind::layer
                                          : normalization::Kind::group;
    p.n = s.n;
    p.c = size.back();
    p.h = s.is_vector() ? 1 : size[1];
    p.w = s.is_vector() ? 1 : size[0];
    p.groups = s.norm_groups;
    p.axis = s.axis;
    p.epsilon = static_cast<double>(1e-3f);
    p.gamma = gamma.data();
    p.beta = beta.data();
    p.gamma_count = gamma.size();
    p.beta_count = beta.size();
    p.activation.function = s.activation;
    p.activation.alpha = 0.25f;
    p.activation.beta = 1.0f;
    return p;
  }
  std::vector<double> output() const {
    const Normalization p = norm();
    const std::vector<double> z = first();
    std::vector<double> y(z.size()), xhat(z.size()), mean(p.group_count()), variance(p.group_count());
    normalization::ref::forward(p, z.data(), y.data(), xhat.data(), mean.data(), variance.data());
    return y;
  }

  // Of a convolution without strides and groups, by the formulas.
  struct Gradients {
    std::vector<double> y, dbeta, dgamma, dw, dx;
  };
  Gradients gradients() const {
    const Normalization p = norm();
    const std::vector<double> z = first();
    std::vector<double> xhat(z.size()), mean(s.o), variance(s.o), u(z.size());
    Gradients g = {std::vector<double>(z.size()), std::vector<double>(s.o), std::vector<double>(s.o),
                   std::vector<double>(w.size()), std::vector<double>(x[0].size())};
    normalization::ref::forward(p, z.data(), g.y.data(), xhat.data(), mean.data(), variance.data());
    normalization::ref::backward(p, xhat.data(), variance.data(), g.y.data(), dy.data(), u.data(), g.dbeta.data(),
                                 g.dgamma.data());
    for (size_t i = 0; i < u.size(); ++i) {
      const size_t q = i % p.w, row = i / p.w % p.h, o = i / (p.w * p.h) % s.o, n = i / (p.w * p.h * s.o);
      for (size_t k = 0; k < s.c * s.kernel * s.kernel; ++k) {
        const size_t c = k / (s.kernel * s.kernel), ky = k / s.kernel % s.kernel, kx = k % s.kernel;
        const size_t at_y = row + ky - s.pad, at_x = q + kx - s.pad;
        if (at_y >= s.h || at_x >= s.w) continue;
        const size_t from = ((n * s.c + c) * s.h + at_y) * s.w + at_x, weight = o * s.c * s.kernel * s.kernel + k;
        g.dw[weight] += u[i] * x[0][from];
        g.dx[from] += u[i] * w[weight];
      }
    }
    return g;
  }
  double loss() const {
    const std::vector<double> y = output();
    double sum = 0.0;
    for (size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
    return sum;
  }
  // d loss / d value by a difference.
  std::vector<double> differences(std::vector<double>* values) {
    constexpr double kStep = 1e-5;
    std::vector<double> gradient(values->size());
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double old = (*values)[i];
      (*values)[i] = old + kStep;
      const double more = loss();
      (*values)[i] = old - kStep;
      const double less = loss();
      (*values)[i] = old;
      gradient[i] = (more - less) / (2.0 * kStep);
    }
    return gradient;
  }
};

inline void check_near(const Array& got, const std::vector<double>& exact, double allowed, const char* what,
                       const Setup& s) {
  double most = 1.0;
  for (double value : exact) most = std::max(most, std::fabs(value));
  for (size_t i = 0; i < exact.size(); ++i) {
    if (std::fabs(got.get(i) - exact[i]) <= allowed * most) continue;
    CHECK(false, "%s: %s at %zu: %.9g, not %.9g", s.text().c_str(), what, i, got.get(i), exact[i]);
    return;
  }
}

}  // namespace obn::fused::test
