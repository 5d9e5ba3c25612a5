// Normalization: every target against the reference loops in float64, the recorded vectors, gradients against
// differences of the reference's own forward pass, and the promises of the C interface.
#include "normalization/normalization.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/test.h"
#include "openbnns/openbnns.h"

namespace obn::normalization {
namespace {

// ---- numbers and arrays ----

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  double value() { return static_cast<double>(below(1 << 20)) / (1 << 19) - 1.0; }
};

// A batch with strides, and memory between the values that nobody may touch.
struct Array {
  BNNSNDArrayDescriptor descriptor = {};
  size_t batch = 1, batch_stride = 0, shift = 0;
  std::vector<std::byte> bytes;

  Array() = default;
  // gaps: values between columns, rows, planes, samples; shift: values in front.
  Array(BNNSDataType type, bool is_vector, size_t n, size_t c, size_t h, size_t w, const size_t (&gaps)[4],
        size_t shift = 0)
      : batch(n), shift(shift) {
    descriptor.layout = is_vector ? BNNSDataLayoutVector : BNNSDataLayoutImageCHW;
    descriptor.data_type = type;
    const size_t size[] = {w, h, c};
    size_t stride = 1 + gaps[0];
    for (size_t k = is_vector ? 2 : 0, i = 0; k < 3; ++k, ++i) {
      descriptor.size[i] = size[k];
      descriptor.stride[i] = stride;
      stride = stride * size[k] + (k + 1 < 4 ? gaps[k + 1] : 0);
    }
    batch_stride = stride;
    bytes.assign((shift + batch_stride * n) * bytes_of(type) + 8, std::byte{0x3c});
  }
  static Array of_values(BNNSDataType type, size_t count, size_t gap = 0) {
    return Array(type, true, 1, count, 1, 1, {gap, 0, 0, 0});
  }
  size_t rank() const { return descriptor.layout == BNNSDataLayoutVector ? 1 : 3; }
  size_t count() const {
    size_t all = batch;
    for (size_t k = 0; k < rank(); ++k) all *= descriptor.size[k];
    return all;
  }
  void* data() { return bytes.data() + shift * bytes_of(descriptor.data_type); }
  size_t offset(size_t i) const {
    size_t at = shift;
    for (size_t k = 0; k < rank(); ++k) {
      at += i % descriptor.size[k] * descriptor.stride[k];
      i /= descriptor.size[k];
    }
    return at + i * batch_stride;
  }
  activation::ref::Values values() const {
    return {bytes.data(), descriptor.data_type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
  }
  double get(size_t i) const {
    double value;
    activation::ref::get_reals(values(), offset(i), 1, 1, &value);
    return value;
  }
  void set(size_t i, double value) { activation::ref::put_reals(values(), offset(i), 1, 1, &value); }
  void fill(Random& random, double mean = 0.0, double scale = 1.0) {
    for (size_t i = 0; i < count(); ++i) set(i, mean + scale * random.value());
  }
  void fill(std::initializer_list<double> numbers) {
    size_t i = 0;
    for (double number : numbers) set(i++, number);
  }
  template <class Real>
  std::vector<Real> numbers() const {
    std::vector<Real> all(count());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Real>(get(i));
    return all;
  }
  BNNSNDArrayDescriptor gradient(bool accumulate = false) {
    BNNSNDArrayDescriptor d = descriptor;
    d.flags = accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    d.data = data();
    return d;
  }
};

double step_of(BNNSDataType type) {  // half the distance of neighbours at 1
  return type == BNNSDataTypeFloat32 ? 0x1p-24 : type == BNNSDataTypeFloat16 ? 0x1p-11 : 0x1p-8;
}

// No further from the exact numbers than four times the plain float32 loop, four roundings of the largest (of a result,
// or of a term of it: `most`) and one rounding to the type; the memory between the values is as it was.
void check_close(const Array& got, const Array& before, const std::vector<double>& exact,
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

struct Target {
  const char* name;
  const Kernels* kernels;
};
std::vector<Target> all_targets() {
  std::vector<Target> all;
  for (Isa isa : kIsas)
    if (has_isa(isa) && (all.empty() || &targets.at(isa) != all.back().kernels))
      all.push_back({name_of(isa), &targets.at(isa)});
  return all;
}

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
    if (s.has_beta) p.beta_desc = beta.gradient();
    if (s.has_gamma) p.gamma_desc = gamma.gradient();
    if (s.has_moving) {
      p.moving_mean_desc = moving_mean.gradient();
      p.moving_variance_desc = moving_variance.gradient();
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
    BNNSNDArrayDescriptor dx_d = dx.gradient(s.accumulate), dy_d = dy.gradient();
    BNNSNDArrayDescriptor db_d = dbeta.gradient(s.accumulate), dg_d = dgamma.gradient(s.accumulate);
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

constexpr BNNSFilterType kTypes[] = {BNNSBatchNorm, BNNSInstanceNorm, BNNSLayerNorm, BNNSGroupNorm};
constexpr BNNSDataType kFloats[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};

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
        (has_mean ? layer.moving_mean : layer.moving_variance).gradient();
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

// ---- promises ----

TEST(normalization_any_number_of_threads_gives_the_same_bits) {
  for (BNNSFilterType type : kTypes) {
    for (int variant = 0; variant < 5; ++variant) {
      Setup s;
      s.type = type;
      s.n = variant == 1 ? 1 : 9;
      s.c = 12;
      s.h = 31;
      s.w = 45;
      s.groups = 3;
      s.axis = static_cast<size_t>(variant) % 3;
      s.has_moving = true;
      s.function = BNNSActivationFunctionRectifiedLinear;
      if (variant == 2) s.x_type = BNNSDataTypeBFloat16;
      if (variant == 3) {
        s.is_vector = true;
        s.n = 200;
        s.c = 600;
        s.h = s.w = 1;
        s.axis = 0;
      }
      if (variant == 4) {  // results are streamed
        s.c = 24;
        s.h = 100;
        s.w = 99;
        s.groups = 8;
      }
      std::vector<Array> first;
      const size_t threads = obn_get_num_threads();
      for (size_t count : {1, 2, 7}) {
        obn_set_num_threads(count);
        Random random{51};
        Layer layer(s, random);
        CHECK(layer.apply() == 0 && layer.apply_backward() == 0, "%s", obn_last_error());
        const std::vector<Array> all = {layer.y, layer.dx, layer.dbeta, layer.dgamma, layer.moving_mean,
                                        layer.moving_variance};
        if (first.empty()) first = all;
        for (size_t k = 0; k < all.size(); ++k)
          CHECK(all[k].bytes == first[k].bytes, "%s: result %zu with %zu threads", s.text().c_str(), k, count);
      }
      obn_set_num_threads(threads);
    }
  }
}

// ---- parts for layers that have a normalization inside ----

namespace {

Tensor tensor_of(Array& a) {
  View view;
  CHECK(read_view(a.descriptor, Access::write, "array", &view) == 0, "%s", obn_last_error());
  return Tensor(view, a.data(), a.batch_stride);
}

ParameterGradient gradient_of(Array& a, bool accumulate) {
  View view;
  CHECK(read_view(a.descriptor, Access::write, "array", &view) == 0, "%s", obn_last_error());
  ParameterGradient gradient;
  gradient.is_wanted = true;
  gradient.accumulate = accumulate;
  gradient.count = view.count;
  gradient.walk = activation::walk_of(view, a.data(), 1, 0);
  return gradient;
}

// Moments of all runs, gathered some runs at a time as a layer in front would have them.
std::vector<RunMoments> gather_moments(const Plan& plan, size_t batch, float* x, Random& random) {
  std::vector<RunMoments> moments(batch * plan.runs);
  for (size_t k = 0; k < moments.size();) {
    const size_t count = std::min(random.between(1, 40), moments.size() - k);
    plan.kernels->run_moments({x + k * plan.length, plan.length}, count, plan.length, moments.data() + k);
    k += count;
  }
  return moments;
}

// The layer's own calls, and the same with its input kept by the caller, moments from outside and gradients in two
// steps, some samples at a time: every result has the same bits.
void check_parts(const Setup& s, const Target& target, uint64_t seed) {
  Random random{seed}, same{seed};
  Layer whole(s, random), parts(s, same);
  if (!whole.filter || !parts.filter) return;
  const std::string on = s.text() + " on " + target.name;
  whole.use(target.kernels);
  CHECK(whole.apply() == 0 && whole.apply_backward(false, true, true) == 0, "%s: %s", on.c_str(), obn_last_error());
  whole.s.accumulate = false;
  CHECK(whole.apply_backward(true, false, false) == 0, "%s: %s", on.c_str(), obn_last_error());

  Plan plan = static_cast<Normalization*>(find_filter(parts.filter))->plan;
  plan.kernels = target.kernels;
  const Tensor x = tensor_of(parts.x), y = tensor_of(parts.y), dy = tensor_of(parts.dy), none;
  const bool is_identity = plan.activation.is_identity();
  float* values = static_cast<float*>(parts.x.data());
  std::vector<RunMoments> moments;
  if (takes_moments(plan)) moments = gather_moments(plan, s.n, values, random);
  const Array input = parts.x;
  State state;
  const Options options = find_filter(parts.filter)->options();
  CHECK(state.reserve(plan, options, s.n, false) == 0, "%s", obn_last_error());
  CHECK(state.bytes == State::bytes_for(plan, s.n, false), "%zu bytes", state.bytes);
  std::byte* work = workspace(forward_bytes(plan, s.n, x, y, true));
  forward(plan, &state, s.n, x, y, work, moments.empty() ? nullptr : moments.data());
  CHECK(parts.y.bytes == whole.y.bytes, "output of %s", on.c_str());
  CHECK(parts.x.bytes == input.bytes, "input of %s", on.c_str());
  CHECK(parts.moving_mean.bytes == whole.moving_mean.bytes, "running mean of %s", on.c_str());
  CHECK(parts.moving_variance.bytes == whole.moving_variance.bytes, "running variance of %s", on.c_str());

  const ParameterGradient dbeta = gradient_of(parts.dbeta, s.accumulate);
  const ParameterGradient dgamma = gradient_of(parts.dgamma, s.accumulate);
  Array u = parts.dx;
  const Tensor read_y = is_identity ? none : y;
  const Tensor all_u = tensor_of(u);
  work = workspace(backward_bytes(plan, s.n, dy, read_y, all_u, dbeta, dgamma));
  backward_sums(plan, state, dy, read_y, dbeta, dgamma, work);
  for (size_t n = 0; n < s.n;) {
    const size_t count = std::min(random.between(1, 3), s.n - n);
    Tensor some = all_u;
    some.walk.data += n * some.step * sizeof(float);
    backward_input(plan, state, dy, read_y, n, count, some, dbeta, dgamma, work);
    n += count;
  }
  CHECK(u.bytes == whole.dx.bytes, "input gradient of %s", on.c_str());
  CHECK(parts.dbeta.bytes == whole.dbeta.bytes, "beta gradient of %s", on.c_str());
  CHECK(parts.dgamma.bytes == whole.dgamma.bytes, "gamma gradient of %s", on.c_str());
  state.release(options);
}

}  // namespace

TEST(normalization_in_parts_gives_the_bits_of_the_layer) {
  Random random{63};
  constexpr BNNSActivationFunction kFunctions[] = {
      BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionRectifiedLinear,
      BNNSActivationFunctionTanh};
  for (int round = 0; round < 300; ++round) {
    Setup s;
    s.type = kTypes[random.below(4)];
    s.is_vector = random.below(4) == 0;
    s.n = random.below(8) == 0 ? random.between(60, 140) : random.between(1, 9);
    s.groups = random.between(1, 3);
    s.c = s.groups * random.between(1, 7);
    s.h = s.is_vector ? 1 : random.between(1, 12);
    s.w = s.is_vector ? 1 : random.between(1, 24);
    s.axis = random.below(3);
    for (size_t(*gaps)[4] : {&s.y_gaps, &s.dy_gaps})
      for (size_t& gap : *gaps) gap = random.below(4) == 0 ? random.below(3) : 0;
    if (random.below(4) == 0) s.y_type = kFloats[random.below(3)];
    if (random.below(4) == 0) s.dy_type = kFloats[random.below(3)];
    s.has_gamma = random.below(4) > 0;
    s.has_beta = random.below(4) > 0;
    s.gamma_is_whole = random.coin();
    s.beta_is_whole = random.coin();
    s.client = random.coin();
    s.parameter_gap = random.below(2);
    s.accumulate = random.coin();
    s.has_moving = random.coin();
    s.shift = random.below(3);
    s.function = kFunctions[random.below(std::size(kFunctions))];
    s.mean = random.below(3) == 0 ? 3.0 : 0.0;
    for (const Target& target : all_targets()) check_parts(s, target, 500 + static_cast<uint64_t>(round));
  }
  // long runs, more than one thread
  for (BNNSFilterType type : kTypes) {
    Setup s;
    s.type = type;
    s.n = 5;
    s.c = 6;
    s.h = 80;
    s.w = 77;
    s.groups = 2;
    s.function = BNNSActivationFunctionRectifiedLinear;
    for (const Target& target : all_targets()) check_parts(s, target, 900);
  }
}

// The gradient of ReLU is where γ·x̂ + β of the forward call was positive, whatever became of γ and of y since.
TEST(normalization_relu_remembers_where_it_was_open) {
  for (BNNSFilterType type : {BNNSBatchNorm, BNNSInstanceNorm, BNNSGroupNorm}) {
    for (bool is_vector : {false, true}) {
      if (is_vector && type == BNNSGroupNorm) continue;  // rows: the output is read
      Setup s;
      s.type = type;
      s.is_vector = is_vector;
      s.n = 7;
      s.c = 18;
      s.groups = 3;
      s.h = is_vector ? 1 : 3;
      s.w = is_vector ? 1 : 7;
      s.client = true;
      s.function = BNNSActivationFunctionRectifiedLinear;
      Random random{64}, same{64};
      Layer layer(s, random), other(s, same);
      CHECK(layer.apply() == 0 && other.apply() == 0, "%s", obn_last_error());
      other.beta.fill(random, 5.0);
      other.y.fill(random);
      CHECK(layer.apply_backward() == 0 && other.apply_backward() == 0, "%s", obn_last_error());
      CHECK(layer.dx.bytes == other.dx.bytes && layer.dbeta.bytes == other.dbeta.bytes &&
                layer.dgamma.bytes == other.dgamma.bytes, "%s", s.text().c_str());
    }
  }
}

TEST(normalization_gradients_are_had_one_by_one_and_again) {
  for (BNNSFilterType type : kTypes) {
    for (bool is_vector : {false, true}) {
      Setup s;
      s.type = type;
      s.is_vector = is_vector;
      s.n = 5;
      s.c = 6;
      s.groups = 2;
      s.h = s.w = is_vector ? 1 : 6;
      s.axis = is_vector ? 0 : 1;
      s.function = BNNSActivationFunctionRectifiedLinear;
      Random random{53}, same{53};
      Layer all(s, random), parts(s, same);
      CHECK(all.apply() == 0 && parts.apply() == 0 && all.apply_backward() == 0, "%s", obn_last_error());
      CHECK(parts.apply_backward(true, false, false) == 0 && parts.apply_backward(false, true, false) == 0 &&
                parts.apply_backward(false, false, true) == 0 && parts.apply_backward(false, false, false) == 0,
            "%s", obn_last_error());
      CHECK(all.dx.bytes == parts.dx.bytes && all.dbeta.bytes == parts.dbeta.bytes &&
                all.dgamma.bytes == parts.dgamma.bytes, "%s", s.text().c_str());
      CHECK(parts.apply_backward() == 0 && all.dx.bytes == parts.dx.bytes, "%s again", s.text().c_str());
    }
  }
}

TEST(normalization_input_gradient_may_take_the_place_of_grad_output) {
  for (BNNSFilterType type : kTypes) {
    for (BNNSDataType data_type : kFloats) {
      Setup s;
      s.type = type;
      s.c = 4;
      s.h = 5;
      s.w = 6;
      s.dy_type = s.dx_type = data_type;
      Random random{54};
      Layer layer(s, random);
      CHECK(layer.apply() == 0 && layer.apply_backward() == 0, "%s", obn_last_error());
      BNNSNDArrayDescriptor dy = layer.dy.gradient();
      CHECK(BNNSNormalizationFilterApplyBackwardBatch(layer.filter, s.n, &dy, 0, nullptr, 0, &dy, 0, nullptr,
                                                      nullptr) == 0, "%s", obn_last_error());
      for (size_t i = 0; i < layer.dx.count(); ++i)
        CHECK(layer.dy.get(i) == layer.dx.get(i), "type %u at %zu: %g, not %g", type, i, layer.dy.get(i),
              layer.dx.get(i));
    }
  }
}

namespace {

size_t blocks_got = 0, blocks_released = 0;
int count_alloc(void** block, size_t alignment, size_t bytes) {
  ++blocks_got;
  return posix_memalign(block, alignment, bytes);
}
void count_free(void* block) {
  ++blocks_released;
  std::free(block);
}

}  // namespace

TEST(normalization_memory_comes_from_the_caller_and_goes_back) {
  Setup s;
  s.n = 4;
  Random random{9};
  Layer layer(s, random);
  BNNSFilterParameters options = {};
  options.alloc_memory = count_alloc;
  options.free_memory = count_free;
  BNNSLayerParametersNormalization p = layer.parameters();
  blocks_got = blocks_released = 0;
  BNNSFilter filter = BNNSFilterCreateLayerNormalization(s.type, &p, &options);
  CHECK(filter && blocks_got == 3, "%zu blocks", blocks_got);
  std::swap(filter, layer.filter);
  CHECK(layer.apply(false) == 0 && blocks_got == 3, "inference took memory");
  CHECK(layer.apply() == 0 && blocks_got == 4, "the state is one block");
  CHECK(layer.apply() == 0 && layer.apply_backward() == 0 && blocks_got == 4, "a warm call took memory");
  layer.s.n = 2;
  CHECK(layer.apply() == 0 && layer.apply_backward() == 0 && blocks_got == 4, "a smaller batch took memory");
  std::swap(filter, layer.filter);
  BNNSFilterDestroy(filter);
  CHECK(blocks_released == 4, "%zu released", blocks_released);
  p.beta_desc.size[0] = 19;
  CHECK(!BNNSFilterCreateLayerNormalization(s.type, &p, &options) && blocks_got == blocks_released,
        "failed creation keeps memory");
}

TEST(normalization_parameters_are_copied_unless_the_client_keeps_them) {
  for (BNNSFilterType type : kTypes) {
    for (bool client : {false, true}) {
      Setup s;
      s.type = type;
      s.client = client;
      Random random{11}, same{11};
      Layer layer(s, random), before(s, same);
      layer.gamma.fill(random);
      layer.beta.fill(random);
      CHECK(layer.apply() == 0, "%s", obn_last_error());
      const Expected<double> e(client ? layer : before);
      for (size_t i = 0; i < e.y.size(); ++i)
        CHECK(std::fabs(layer.y.get(i) - e.y[i]) <= 1e-5, "type %u at %zu: %g, not %g", type, i, layer.y.get(i),
              e.y[i]);
    }
  }
}

TEST(normalization_refuses_what_cannot_be) {
  Setup s;
  s.c = 6;
  s.has_moving = true;
  Random random{12};
  Layer layer(s, random);
  const auto refuses = [&](const char* word, BNNSFilterType type, auto change) {
    BNNSLayerParametersNormalization p = layer.parameters();
    change(p);
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(type, &p, nullptr);
    CHECK(!filter && failed_with(word), "%s: %s", word, obn_last_error());
    BNNSFilterDestroy(filter);
  };
  using P = BNNSLayerParametersNormalization;
  CHECK(!BNNSFilterCreateLayerNormalization(BNNSBatchNorm, nullptr, nullptr), "no parameters");
  refuses("type", static_cast<BNNSFilterType>(0), [](P&) {});
  refuses("type", static_cast<BNNSFilterType>(6), [](P&) {});
  refuses("momentum", BNNSBatchNorm, [](P& p) { p.momentum = 1.5f; });
  refuses("momentum", BNNSLayerNorm, [](P& p) { p.momentum = -0.5f; });
  refuses("momentum", BNNSBatchNorm, [](P& p) { p.momentum = NAN; });
  refuses("epsilon", BNNSBatchNorm, [](P& p) { p.epsilon = -1.0f; });
  refuses("epsilon", BNNSBatchNorm, [](P& p) { p.epsilon = NAN; });
  refuses("num_groups", BNNSGroupNorm, [](P& p) { p.num_groups = 4; });
  refuses("axis", BNNSLayerNorm, [](P& p) { p.normalization_axis = 3; });
  refuses("activation", BNNSBatchNorm, [](P& p) { p.activation.function = BNNSActivationFunctionSoftmax; });
  refuses("activation", BNNSBatchNorm, [](P& p) { p.activation.function = BNNSActivationFunctionLogSoftmax; });
  refuses("input", BNNSBatchNorm, [](P& p) { p.i_desc.data_type = BNNSDataTypeInt8; });
  refuses("input", BNNSBatchNorm, [](P& p) { p.i_desc.layout = BNNSDataLayout3DLastMajor; });
  refuses("output", BNNSBatchNorm, [](P& p) { p.o_desc.size[0] += 1; });
  refuses("gamma", BNNSBatchNorm, [](P& p) { p.gamma_desc.size[0] = 5; });
  refuses("beta", BNNSLayerNorm, [](P& p) { p.gamma_desc.data = nullptr, p.beta_desc.size[0] = 5; });
  refuses("moving_mean", BNNSBatchNorm, [](P& p) { p.moving_mean_desc.data_type = BNNSDataTypeFloat16; });
  refuses("moving_variance", BNNSInstanceNorm, [](P& p) { p.moving_variance_desc.size[0] = 7; });
  // Descriptors without data, and running statistics of the other kinds, are not looked at.
  for (BNNSFilterType type : {BNNSGroupNorm, BNNSLayerNorm}) {
    P p = layer.parameters();
    p.moving_mean_desc.size[0] = 77;
    p.beta_desc = p.gamma_desc = BNNSNDArrayDescriptor{};
    p.beta_desc.layout = static_cast<BNNSDataLayout>(0x1234);
    p.num_groups = 0;
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(type, &p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    BNNSFilterDestroy(filter);
  }
}

TEST(normalization_failing_calls_leave_outputs_alone) {
  Setup s;
  s.n = 3;
  s.c = 4;
  s.h = s.w = 3;
  s.has_moving = true;
  s.client = true;
  s.function = BNNSActivationFunctionRectifiedLinear;
  Random random{13}, same{13};
  Layer layer(s, random);
  const Layer before(s, same);
  const auto untouched = [&](const char* what) {
    CHECK(std::strlen(obn_last_error()) > 0, "%s: no sentence", what);
    CHECK(layer.y.bytes == before.y.bytes && layer.dx.bytes == before.dx.bytes &&
              layer.dgamma.bytes == before.dgamma.bytes && layer.dbeta.bytes == before.dbeta.bytes &&
              layer.moving_mean.bytes == before.moving_mean.bytes, "%s: something was touched", what);
  };
  BNNSFilter filter = layer.filter;
  CHECK(BNNSFilterApply(filter, layer.x.data(), layer.y.data()) == -1, "generic apply");
  untouched("generic apply");
  CHECK(BNNSFilterApplyBatch(filter, s.n, layer.x.data(), 0, layer.y.data(), 0) == -1, "generic batch apply");
  CHECK(BNNSNormalizationFilterApplyBatch(nullptr, 1, layer.x.data(), 0, layer.y.data(), 0, true) == -1, "no filter");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, s.n, nullptr, 0, layer.y.data(), 0, true) == -1, "no input");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, s.n, layer.x.data(), 0, nullptr, 0, true) == -1, "no output");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, s.n, layer.x.data(), 0, layer.y.data(), 3, true) == -1, "overlap");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, 2, layer.y.data(), 0, static_cast<float*>(layer.y.data()) + 1, 0,
                                          true) == -1, "partly in place");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, 1, layer.x.data(), 0, layer.moving_mean.data(), 0, true) == -1,
        "over the running mean");
  CHECK(BNNSNormalizationFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0, true) == 0, "an empty batch");
  untouched("forward");
  CHECK(layer.apply_backward() == -1, "gradients before training");
  untouched("gradients before training");
  CHECK(layer.apply(false) == 0 && layer.apply_backward() == -1, "gradients after inference");
  CHECK(layer.apply(true) == 0, "%s", obn_last_error());
  layer.y.bytes = before.y.bytes;
  layer.moving_mean.bytes = before.moving_mean.bytes;
  layer.s.n = 2;
  CHECK(layer.apply_backward() == -1, "another batch size");
  untouched("another batch size");
  layer.s.n = 3;
  BNNSNDArrayDescriptor dx = layer.dx.gradient(), dy = layer.dy.gradient(), db = layer.dbeta.gradient();
  const auto backward = [&](BNNSNDArrayDescriptor* dx_d, const void* y, BNNSNDArrayDescriptor* dy_d,
                            BNNSNDArrayDescriptor* db_d, BNNSNDArrayDescriptor* dg_d) {
    return BNNSNormalizationFilterApplyBackwardBatch(filter, 3, dx_d, 0, y, 0, dy_d, 0, db_d, dg_d);
  };
  CHECK(backward(&dx, layer.y.data(), nullptr, nullptr, nullptr) == -1, "no grad_output");
  CHECK(backward(&dx, nullptr, &dy, nullptr, nullptr) == -1, "no output");
  CHECK(backward(&dx, layer.y.data(), &dy, &db, &db) == -1, "beta over gamma");
  BNNSNDArrayDescriptor wrong = dx;
  wrong.size[0] = 2;
  CHECK(backward(&wrong, layer.y.data(), &dy, &db, nullptr) == -1, "a wrong shape");
  wrong = db;
  wrong.size[0] = 3;
  CHECK(backward(&dx, layer.y.data(), &dy, &wrong, nullptr) == -1, "a wrong beta shape");
  wrong = db;
  wrong.data = layer.dx.data();
  CHECK(backward(&dx, layer.y.data(), &dy, &wrong, nullptr) == -1, "beta over the input gradient");
  wrong.data = layer.gamma.data();
  CHECK(backward(&dx, layer.y.data(), &dy, &wrong, nullptr) == -1, "beta gradient over gamma");
  wrong = dx;
  wrong.data = nullptr;
  CHECK(backward(&wrong, layer.y.data(), &dy, &db, nullptr) == -1, "no data");
  untouched("backward");
}

TEST(normalization_tells_its_memory) {
  Setup s;
  Random random{15};
  Layer layer(s, random);
  CHECK(obn_filter_work_bytes(layer.filter, 0) == 0, "an empty batch");
  CHECK(obn_filter_work_bytes(layer.filter, 4) <= 4096, "%zu", obn_filter_work_bytes(layer.filter, 4));
  s.type = BNNSInstanceNorm;
  Layer other(s, random);
  CHECK(obn_filter_work_bytes(other.filter, SIZE_MAX / 16) == SIZE_MAX, "a batch that overflows");
}

TEST(normalization_random_parameter_blocks_never_crash) {
  constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutVector, BNNSDataLayout1DFirstMajor, BNNSDataLayoutImageCHW,
                                         BNNSDataLayoutRowMajorMatrix, BNNSDataLayout3DFirstMajor,
                                         static_cast<BNNSDataLayout>(0x12345)};
  constexpr BNNSDataType kAllTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16,
                                        BNNSDataTypeInt8, BNNSDataTypeIndexed4, BNNSDataTypeUInt1,
                                        static_cast<BNNSDataType>(0x10000)};
  std::vector<float> memory(1 << 12, 0.5f), mean(1 << 12), variance(1 << 12, 1.0f), x(1 << 14, 0.25f), y(1 << 14),
      dx(1 << 14), dbeta(1 << 12), dgamma(1 << 12);
  Random random{14};
  size_t made = 0, refused = 0;
  for (int round = 0; round < 8000; ++round) {
    Setup s;
    s.is_vector = random.below(3) == 0;
    s.c = random.between(1, 6);
    s.h = s.is_vector ? 1 : random.between(1, 4);
    s.w = s.is_vector ? 1 : random.between(1, 4);
    const Array shape(BNNSDataTypeFloat32, s.is_vector, 1, s.c, s.h, s.w, {});
    BNNSLayerParametersNormalization p = {};
    p.i_desc = p.o_desc = shape.descriptor;
    const BNNSFilterType type = static_cast<BNNSFilterType>(random.between(1, 6));
    const BNNSNDArrayDescriptor values = Array::of_values(BNNSDataTypeFloat32, type == BNNSLayerNorm ? s.sample() : s.c)
                                             .descriptor;
    p.beta_desc = p.gamma_desc = p.moving_mean_desc = p.moving_variance_desc = values;
    p.beta_desc.data = memory.data();
    p.gamma_desc.data = memory.data() + 1000;
    if (random.coin()) p.moving_mean_desc.data = mean.data();
    if (random.coin()) p.moving_variance_desc.data = variance.data();
    p.num_groups = random.below(4);
    p.normalization_axis = random.below(4);
    p.epsilon = random.below(8) == 0 ? -1.0f : 1e-5f;
    p.momentum = random.below(8) == 0 ? 2.0f : 0.5f;
    BNNSNDArrayDescriptor* descriptors[] = {&p.i_desc, &p.o_desc, &p.beta_desc, &p.gamma_desc, &p.moving_mean_desc,
                                            &p.moving_variance_desc};
    const size_t changes = random.below(3);
    for (size_t k = 0; k < changes; ++k) {
      BNNSNDArrayDescriptor& d = *descriptors[random.below(6)];
      constexpr size_t kHuge[] = {0, SIZE_MAX, SIZE_MAX / 2 + 1, size_t{1} << 40};
      switch (random.below(6)) {
        case 0: d.layout = kLayouts[random.below(6)]; break;
        case 1: d.data_type = kAllTypes[random.below(7)]; break;
        case 2: d.size[random.below(3)] = random.below(6); break;
        case 3: d.stride[random.below(3)] = random.below(7); break;
        case 4: d.size[0] = kHuge[random.below(4)]; break;
        default: d.data = random.coin() ? nullptr : reinterpret_cast<char*>(memory.data()) + random.below(4);
      }
    }
    p.activation.function = static_cast<BNNSActivationFunction>(random.below(38));
    BNNSFilterParameters options = {};
    if (random.coin()) options.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(type, &p, &options);
    if (!filter) {
      ++refused;
      continue;
    }
    ++made;
    const size_t n = random.between(1, 3);
    BNNSNormalizationFilterApplyBatch(filter, n, x.data(), random.below(200), y.data(), random.below(200),
                                      random.below(4) > 0);
    BNNSNDArrayDescriptor dx_d = p.i_desc, dy_d = p.o_desc, db_d = p.beta_desc, dg_d = p.gamma_desc;
    dx_d.data = dx.data();
    dy_d.data = x.data();
    db_d.data = dbeta.data();
    dg_d.data = dgamma.data();
    BNNSNormalizationFilterApplyBackwardBatch(filter, n, &dx_d, random.below(200), y.data(), random.below(200), &dy_d,
                                              random.below(200), &db_d, &dg_d);
    BNNSFilterDestroy(filter);
  }
  CHECK(made > 500 && refused > 1000, "%zu made, %zu refused", made, refused);
}

}  // namespace obn::normalization
