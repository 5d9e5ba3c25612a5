// What the tests of normalization share: arrays with gaps that nobody may touch, a layer with all its arrays, and the
// same layer by the reference loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "base/test_array.h"
#include "normalization/normalization.h"
#include "openbnns/openbnns.h"

namespace obn::normalization::test {

// ---- numbers and arrays ----

using ::obn::test::Random;

struct Array : ::obn::test::Array {
  Array() = default;
  // gaps: values between columns, rows, planes, samples; shift: values in front.
  Array(BNNSDataType type, bool is_vector, size_t n, size_t c, size_t h, size_t w, const size_t (&gaps)[4],
        size_t shift = 0)
      : ::obn::test::Array(::obn::test::spaced(type, is_vector ? BNNSDataLayoutVector : BNNSDataLayoutImageCHW,
                                               is_vector ? std::vector{c} : std::vector{w, h, c}, {gaps, gaps + 3}),
                           n, gaps[3], shift) {}
  static Array of_values(BNNSDataType type, size_t count, size_t gap = 0) {
    return Array(type, true, 1, count, 1, 1, {gap, 0, 0, 0});
  }
};

inline double step_of(BNNSDataType type) {  // half the distance of neighbours at 1
  return type == BNNSDataTypeFloat32 ? 0x1p-24 : type == BNNSDataTypeFloat16 ? 0x1p-11 : 0x1p-8;
}

// No further from the exact numbers than four times the plain float32 loop, four roundings of the largest (of a result,
// or of a term of it: `most`) and one rounding to the type; the memory between the values is as it was.
inline void check_close(const Array& got, const Array& before, const std::vector<double>& exact,
                 const std::vector<float>& plain, const char* what, const char* on, double most = 0.0) {
  double allowed = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    allowed = std::max(allowed, std::fabs(static_cast<double>(plain[i]) - exact[i]));
    most = std::max(most, std::fabs(exact[i]));
  }
  allowed = 4.0 * allowed + 4.0 * step_of(BNNSDataTypeFloat32) * most;
  const BNNSDataType type = got.descriptor.data_type;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double rounding =
        type == BNNSDataTypeFloat32 ? 0.0 : step_of(type) * std::max(std::fabs(exact[i]) * 1.01, 1e-4);
    if (std::fabs(got.get(i) - exact[i]) <= allowed + rounding) continue;
    CHECK(false, "%s on %s at %zu: %.9g, not %.9g (allowed %.3g)", what, on, i, got.get(i), exact[i],
          allowed + rounding);
    return;
  }
  Array masked = got;
  for (size_t i = 0; i < exact.size(); ++i) masked.set(i, before.get(i));
  CHECK(masked.bytes == before.bytes, "%s on %s: memory between the values was touched", what, on);
}

using Target = ::obn::test::Target<Kernels>;
inline std::vector<Target> all_targets() { return ::obn::test::all_targets(targets); }

// ---- one layer with its arrays ----

struct Setup {
  BNNSFilterType type = BNNSBatchNorm;
  bool is_vector = false;
  size_t n = 2, c = 3, h = 2, w = 2;
  size_t groups = 1, axis = 0;
  BNNSDataType x_type = BNNSDataTypeFloat32, y_type = BNNSDataTypeFloat32, parameter_type = BNNSDataTypeFloat32;
  BNNSDataType dy_type = BNNSDataTypeFloat32, dx_type = BNNSDataTypeFloat32;
  size_t x_gaps[4] = {}, y_gaps[4] = {}, dy_gaps[4] = {}, dx_gaps[4] = {};
  size_t shift = 0, parameter_gap = 0;
  bool has_gamma = true, has_beta = true, gamma_is_whole = false, beta_is_whole = false;
  bool has_moving = false, client = false, in_place = false;
  bool accumulate = false;
  float epsilon = 1e-5f, momentum = 0.9f;
  double mean = 0.0;
  BNNSActivationFunction function = BNNSActivationFunctionIdentity;

  Kind kind() const {
    return type == BNNSBatchNorm      ? Kind::batch
           : type == BNNSInstanceNorm ? Kind::instance
           : type == BNNSLayerNorm    ? Kind::layer
                                      : Kind::group;
  }
  size_t sample() const { return c * h * w; }
  size_t parameter_count(bool is_whole) const {
    if (type != BNNSLayerNorm) return c;
    return is_whole || axis == 0 ? sample() : axis == 1 ? h * w : w;
  }
  std::string text() const {
    char buffer[200];
    std::snprintf(buffer, sizeof buffer, "type %u%s N %zu C %zu H %zu W %zu groups %zu axis %zu act %u types %x %x",
                  type, is_vector ? " vector" : "", n, c, h, w, groups, axis, static_cast<unsigned>(function),
                  static_cast<unsigned>(x_type), static_cast<unsigned>(y_type));
    return buffer;
  }
};

struct Layer {
  Setup s;
  Array x, y, dy, dx, gamma, beta, dgamma, dbeta, moving_mean, moving_variance;
  BNNSFilter filter = nullptr;

  Layer(const Setup& s, Random& random)
      : s(s),
        x(s.x_type, s.is_vector, s.n, s.c, s.h, s.w, s.x_gaps, s.shift),
        y(s.y_type, s.is_vector, s.n, s.c, s.h, s.w, s.y_gaps, s.shift),
        dy(s.dy_type, s.is_vector, s.n, s.c, s.h, s.w, s.dy_gaps, s.shift),
        dx(s.dx_type, s.is_vector, s.n, s.c, s.h, s.w, s.dx_gaps, s.shift),
        gamma(Array::of_values(s.parameter_type, s.parameter_count(s.gamma_is_whole), s.parameter_gap)),
        beta(Array::of_values(s.parameter_type, s.parameter_count(s.beta_is_whole), s.parameter_gap)),
        dgamma(Array::of_values(BNNSDataTypeFloat32, gamma.count())),
        dbeta(Array::of_values(BNNSDataTypeFloat32, beta.count(), 1)),
        moving_mean(Array::of_values(BNNSDataTypeFloat32, s.c)),
        moving_variance(Array::of_values(BNNSDataTypeFloat32, s.c)) {
    x.fill(random, s.mean);
    dy.fill(random);
    dx.fill(random);
    gamma.fill(random, 1.0, 0.5);
    beta.fill(random, 0.25);
    dgamma.fill(random);
    dbeta.fill(random);
    moving_mean.fill(random);
    moving_variance.fill(random, 2.0);
    if (s.in_place) y = x;
    const BNNSLayerParametersNormalization p = parameters();
    BNNSFilterParameters options = {};
    if (s.client) options.flags = BNNSFlagsUseClientPtr;
    filter = BNNSFilterCreateLayerNormalization(s.type, &p, &options);
    CHECK(filter, "%s: %s", s.text().c_str(), obn_last_error());
  }
  Layer(const Layer&) = delete;
  ~Layer() { BNNSFilterDestroy(filter); }

  BNNSLayerParametersNormalization parameters() {
    BNNSLayerParametersNormalization p = {};
    p.i_desc = x.descriptor;
    p.o_desc = y.descriptor;
    if (s.has_beta) p.beta_desc = beta.with_data();
    if (s.has_gamma) p.gamma_desc = gamma.with_data();
    if (s.has_moving) {
      p.moving_mean_desc = moving_mean.with_data();
      p.moving_variance_desc = moving_variance.with_data();
    }
    p.momentum = s.momentum;
    p.epsilon = s.epsilon;
    p.activation.function = s.function;
    p.activation.alpha = 0.25f;
    p.activation.beta = 1.0f;
    p.num_groups = s.groups;
    p.normalization_axis = s.axis;
    return p;
  }
  void use(const Kernels* kernels) { static_cast<Normalization*>(find_filter(filter))->plan.kernels = kernels; }
  int apply(bool training = true) {
    return BNNSNormalizationFilterApplyBatch(filter, s.n, s.in_place ? y.data() : x.data(),
                                             s.in_place ? y.batch_stride : x.batch_stride, y.data(), y.batch_stride,
                                             training);
  }
  int apply_backward(bool wants_dx = true, bool wants_dbeta = true, bool wants_dgamma = true) {
    BNNSNDArrayDescriptor dx_d = dx.with_data(s.accumulate), dy_d = dy.with_data();
    BNNSNDArrayDescriptor db_d = dbeta.with_data(s.accumulate), dg_d = dgamma.with_data(s.accumulate);
    return BNNSNormalizationFilterApplyBackwardBatch(
        filter, s.n, wants_dx ? &dx_d : nullptr, dx.batch_stride,
        s.function == BNNSActivationFunctionIdentity ? nullptr : y.data(), y.batch_stride, &dy_d, dy.batch_stride,
        wants_dbeta ? &db_d : nullptr, wants_dgamma ? &dg_d : nullptr);
  }
};

// The same by the reference loops.
template <class Real>
struct Expected {
  ref::Problem<Real> p;
  std::vector<Real> x, y, xhat, mean, variance, dy, dx, gamma, beta, dgamma, dbeta;

  explicit Expected(const Layer& layer) {
    const Setup& s = layer.s;
    x = layer.x.numbers<Real>();
    dy = layer.dy.numbers<Real>();
    gamma = layer.gamma.numbers<Real>();
    beta = layer.beta.numbers<Real>();
    BNNSActivation activation = {};
    activation.function = s.function;
    activation.alpha = 0.25f;
    activation.beta = 1.0f;
    p = {s.kind(), s.n, s.c, s.h, s.w, s.groups, s.axis, static_cast<Real>(s.epsilon),
         s.has_gamma ? gamma.data() : nullptr, s.has_beta ? beta.data() : nullptr, gamma.size(), beta.size(),
         activation};
    mean.resize(p.group_count());
    variance.resize(p.group_count());
    y.resize(x.size());
    xhat.resize(x.size());
    ref::forward(p, x.data(), y.data(), xhat.data(), mean.data(), variance.data());
  }
  // The largest of the terms r·g that the input gradient is a difference of.
  double largest_term() const {
    double most = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double g = static_cast<double>(dy[i] * (p.gamma ? gamma[p.parameter_of(i, gamma.size())] : Real{1}));
      most = std::max(most, std::fabs(g) / std::sqrt(static_cast<double>(variance[p.group_of(i)] + p.epsilon)));
    }
    return most;
  }
  // From the output as it was stored; with `old` values the gradients are added.
  void backward(const Layer& layer, const Layer& old) {
    const std::vector<Real> stored = layer.y.numbers<Real>();
    dx.resize(x.size());
    dgamma.resize(gamma.size());
    dbeta.resize(beta.size());
    ref::backward(p, xhat.data(), variance.data(), stored.data(), dy.data(), dx.data(), dbeta.data(), dgamma.data());
    if (!layer.s.accumulate) return;
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += static_cast<Real>(old.dx.get(i));
    for (size_t i = 0; i < dgamma.size(); ++i) dgamma[i] += static_cast<Real>(old.dgamma.get(i));
    for (size_t i = 0; i < dbeta.size(); ++i) dbeta[i] += static_cast<Real>(old.dbeta.get(i));
  }
};

inline constexpr BNNSFilterType kTypes[] = {BNNSBatchNorm, BNNSInstanceNorm, BNNSLayerNorm, BNNSGroupNorm};
inline constexpr BNNSDataType kFloats[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};

}  // namespace obn::normalization::test
