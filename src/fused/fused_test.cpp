// Fused layers: against their two layers called one after the other (to the bit, or nearly where the pair is done as
// one layer), against float64 and its differences, the recorded vectors, and the promises of the C interface.
#include "fused/fused.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/test.h"
#include "base/types.h"
#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

namespace obn::fused {
namespace {

// ---- numbers and arrays ----

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  double value() { return static_cast<double>(below(1 << 20)) / (1 << 19) - 1.0; }
};

// A batch with strides, and memory between the values that nobody may touch. gaps: values behind each value of axis 0,
// behind each row, each plane, each sample; shift: values in front of all.
struct Array {
  BNNSNDArrayDescriptor descriptor = {};
  size_t rank = 0, batch = 1, batch_stride = 0, shift = 0;
  std::vector<std::byte> bytes;

  Array() = default;
  Array(BNNSDataType type, BNNSDataLayout layout, size_t n, std::vector<size_t> size, const size_t (&gaps)[5] = {},
        size_t front = 0)
      : rank(size.size()), batch(n), shift(front) {
    descriptor.layout = layout;
    descriptor.data_type = type;
    size_t stride = 1 + gaps[0];
    for (size_t k = 0; k < rank; ++k) {
      descriptor.size[k] = size[k];
      descriptor.stride[k] = stride;
      stride = stride * size[k] + gaps[k + 1];
    }
    batch_stride = stride;
    bytes.assign((shift + batch_stride * n) * bytes_of(type) + 8, std::byte{0x3c});
  }
  size_t sample() const {
    size_t all = 1;
    for (size_t k = 0; k < rank; ++k) all *= descriptor.size[k];
    return all;
  }
  size_t count() const { return bytes.empty() ? 0 : batch * sample(); }
  void* data() { return bytes.data() + shift * bytes_of(descriptor.data_type); }
  size_t offset(size_t i) const {
    size_t at = shift;
    for (size_t k = 0; k < rank; ++k) {
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
  std::vector<double> numbers() const {
    std::vector<double> all(count());
    for (size_t i = 0; i < all.size(); ++i) all[i] = get(i);
    return all;
  }
  BNNSNDArrayDescriptor with_data(bool accumulate = false) {
    BNNSNDArrayDescriptor d = descriptor;
    d.flags = accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    d.data = data();
    return d;
  }
};

// ---- one pair with its arrays ----

enum class First { convolution, transposed, fully_connected, arithmetic };
constexpr First kFirsts[] = {First::convolution, First::transposed, First::fully_connected, First::arithmetic};
constexpr BNNSFilterType kNorms[] = {BNNSBatchNorm, BNNSInstanceNorm, BNNSLayerNorm, BNNSGroupNorm};
constexpr BNNSDataType kFloats[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};

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
  size_t shift = 0, further = 0;  // `further`: of each input gradient than the one before
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
  // Done as one layer (fused_narrow.h): other sums than those of the two layers.
  bool is_narrow() const {
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
      dx.emplace_back(s.type, s.layout(), n, size, s.dx_gaps, s.shift + i * s.further);
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

  int apply(bool training = true) {
    const void* in[3];
    size_t stride[3];
    for (size_t i = 0; i < x.size(); ++i) {
      in[i] = x[i].data();
      stride[i] = x[i].batch_stride;
    }
    if (s.first != First::arithmetic || (s.inputs() == 1 && s.n % 2 == 0))
      return BNNSFusedFilterApplyBatch(fused, s.n, in[0], stride[0], y.data(), y.batch_stride, training);
    return BNNSFusedFilterApplyMultiInputBatch(fused, s.n, x.size(), in, stride, y.data(), y.batch_stride, training);
  }
  // wanted: a bit each for dx, dw, db, dβ, dγ
  int apply_backward(unsigned wanted = 31) {
    BNNSNDArrayDescriptor dy_d = dy.with_data(), dx_d[3], *dx_p[3];
    const void* in[3];
    size_t stride[3], dx_stride[3];
    for (size_t i = 0; i < x.size(); ++i) {
      in[i] = x[i].data();
      stride[i] = x[i].batch_stride;
      dx_d[i] = dx[i].with_data(s.accumulate);
      dx_p[i] = &dx_d[i];
      dx_stride[i] = dx[i].batch_stride;
    }
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
      return BNNSFusedFilterApplyBackwardBatch(fused, s.n, in[0], stride[0], wanted & 1 ? dx_p[0] : nullptr,
                                               dx_stride[0], out, y.batch_stride, &dy_d, dy.batch_stride, deltas);
    return BNNSFusedFilterApplyBackwardMultiInputBatch(fused, s.n, x.size(), in, stride, dx_p, dx_stride, out,
                                                       y.batch_stride, &dy_d, dy.batch_stride, deltas);
  }

  int apply_separate(bool training = true) {
    const void* in[3];
    size_t stride[3];
    for (size_t i = 0; i < x.size(); ++i) {
      in[i] = x[i].data();
      stride[i] = x[i].batch_stride;
    }
    const int status =
        s.has_weights()
            ? BNNSFilterApplyBatch(first, s.n, in[0], stride[0], z.data(), z.batch_stride)
            : BNNSArithmeticFilterApplyBatch(first, s.n, x.size(), in, stride, z.data(), z.batch_stride);
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
    BNNSNDArrayDescriptor dx_d[3], *dx_p[3];
    const void* in[3];
    size_t stride[3], dx_stride[3];
    for (size_t i = 0; i < x.size(); ++i) {
      in[i] = x[i].data();
      stride[i] = x[i].batch_stride;
      dx_d[i] = dx[i].with_data(s.accumulate);
      dx_p[i] = &dx_d[i];
      dx_stride[i] = dx[i].batch_stride;
    }
    if (!s.has_weights())
      return BNNSArithmeticFilterApplyBackwardBatch(first, s.n, x.size(), in, stride, dx_p, dx_stride, z.data(),
                                                    z.batch_stride, &u_d, u.batch_stride);
    BNNSNDArrayDescriptor dw_d = dw.with_data(s.accumulate), bias_d = db.with_data(s.accumulate);
    return BNNSFilterApplyBackwardBatch(first, s.n, in[0], stride[0], &dx_d[0], dx_stride[0], nullptr, 0, &u_d,
                                        u.batch_stride, &dw_d, &bias_d);
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

void check_same(Pair& a, Pair& b, const char* what) {
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
void check_threads(Setup s) {
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
double distance(const Array& got, const std::vector<double>& expected) {
  double apart = 0.0, most = 1.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    apart = std::max(apart, std::isnan(got.get(i)) ? 1e9 : std::fabs(got.get(i) - expected[i]));
    most = std::max(most, std::fabs(expected[i]));
  }
  return apart / most;
}

// Nearly the same values, and the memory between them untouched. What is stored as half is rounded to it.
void check_alike(Pair& a, Pair& b, const char* what) {
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
void keep_from_kinks(Pair& a, Pair& b) {
  for (size_t i = 0; i < a.y.count(); ++i) {
    if (a.y.get(i) > 1e-4 || b.y.get(i) > 1e-4) continue;
    a.dy.set(i, 0.0);
    b.dy.set(i, 0.0);
  }
}

void check_setup(const Setup& s, uint64_t seed) {
  const auto check_same = s.is_narrow() ? check_alike : obn::fused::check_same;
  Pair pair(s, seed), separate(s, seed);
  if (!pair.make_fused()) return;
  separate.make_separate();
  if (!separate.first || !separate.second) return;
  CHECK(pair.apply() == 0, "%s: %s", s.text().c_str(), obn_last_error());
  CHECK(separate.apply_separate() == 0, "%s: %s", s.text().c_str(), obn_last_error());
  if (s.is_narrow() && s.activation == BNNSActivationFunctionRectifiedLinear) keep_from_kinks(pair, separate);
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

void check_near(const Array& got, const std::vector<double>& exact, double allowed, const char* what, const Setup& s) {
  double most = 1.0;
  for (double value : exact) most = std::max(most, std::fabs(value));
  for (size_t i = 0; i < exact.size(); ++i) {
    if (std::fabs(got.get(i) - exact[i]) <= allowed * most) continue;
    CHECK(false, "%s: %s at %zu: %.9g, not %.9g", s.text().c_str(), what, i, got.get(i), exact[i]);
    return;
  }
}

}  // namespace

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

// ---- pairs that are done as one layer ----

namespace {

// A convolution of few taps, batch norm and ReLU.
Setup narrow_setup() {
  Setup s;
  s.n = 2;
  s.c = 1;
  s.o = 7;
  s.h = 9;
  s.w = 11;
  return s;
}

// Both ways of a pair, and how far each result is from float64.
struct Distances {
  double y, dbeta, dgamma, dw, dx;

  Distances(const Pair& pair, const Exact::Gradients& g)
      : y(distance(pair.y, g.y)), dbeta(distance(pair.dbeta, g.dbeta)), dgamma(distance(pair.dgamma, g.dgamma)),
        dw(distance(pair.dw, g.dw)), dx(distance(pair.dx[0], g.dx)) {}
};

// About as near to float64 as the two layers are, or nearer than `allowed`. `fill` changes the numbers.
template <class Fill>
void check_accuracy(const Setup& s, double allowed, const char* what, const Fill& fill) {
  Pair pair(s, 11), separate(s, 11);
  fill(pair);
  fill(separate);
  if (!pair.make_fused()) return;
  separate.make_separate();
  CHECK(pair.apply() == 0 && pair.apply_backward() == 0, "%s: %s", what, obn_last_error());
  CHECK(separate.apply_separate() == 0 && separate.apply_backward_separate() == 0, "%s: %s", what, obn_last_error());
  const Exact::Gradients exact = Exact(pair).gradients();
  const Distances here(pair, exact), there(separate, exact);
  const struct {
    const char* name;
    double here, there;
  } all[] = {{"output", here.y, there.y},
             {"beta gradient", here.dbeta, there.dbeta},
             {"gamma gradient", here.dgamma, there.dgamma},
             {"weights gradient", here.dw, there.dw},
             {"input gradient", here.dx, there.dx}};
  for (const auto& array : all)
    CHECK(array.here <= std::max(4.0 * array.there, allowed), "%s: %s is %g from float64, that of two layers %g", what,
          array.name, array.here, array.there);
}

}  // namespace

TEST(fused_narrow_agrees_with_float64_and_its_differences) {
  for (BNNSActivationFunction activation : {BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear}) {
    for (size_t c : {1, 2}) {
      for (size_t stride : {1, 2}) {
        Setup s = narrow_setup();
        s.activation = activation;
        s.c = c;
        s.o = 7 * c * c * c;
        s.stride = stride;
        s.h = 8 * stride;
        s.w = 8 * stride + 1;
        if (c == 2) s.kernel = 2;
        CHECK(s.is_narrow(), "%s", s.text().c_str());
        Pair pair(s, 7);
        if (!pair.make_fused()) continue;
        CHECK(obn_filter_kept_bytes(pair.fused, s.n) < s.n * pair.y.sample() * sizeof(float), "keeps no z");
        CHECK(pair.apply() == 0 && pair.apply_backward() == 0, "%s: %s", s.text().c_str(), obn_last_error());
        Exact exact(pair);
        check_near(pair.y, exact.output(), 2e-6, "output", s);
        check_near(pair.dx[0], exact.differences(&exact.x[0]), 1e-5, "input gradient", s);
        check_near(pair.dw, exact.differences(&exact.w), 1e-5, "weights gradient", s);
        check_near(pair.db, exact.differences(&exact.bias), 1e-5, "bias gradient", s);
        check_near(pair.dbeta, exact.differences(&exact.beta), 1e-5, "beta gradient", s);
        check_near(pair.dgamma, exact.differences(&exact.gamma), 1e-5, "gamma gradient", s);
      }
    }
  }
}

// Numbers whose statistics cancel, where those of the taps must be good enough.
TEST(fused_narrow_is_as_near_to_float64_as_the_two_layers) {
  for (size_t pad : {0, 1}) {
    Setup s = narrow_setup();
    s.n = 5;
    s.h = 20;
    s.w = 19;
    s.o = 12;
    s.pad = pad;
    s.activation = BNNSActivationFunctionIdentity;
    check_accuracy(s, 2e-6, "random", [](Pair&) {});
    check_accuracy(s, 2e-6, "a large mean", [](Pair& p) {
      for (size_t i = 0; i < p.x[0].count(); ++i) p.x[0].set(i, 1000.0 + p.x[0].get(i));
    });
    check_accuracy(s, 2e-6, "one large value", [](Pair& p) { p.x[0].set(0, 1e6); });
    check_accuracy(s, 2e-6, "smooth images and differences", [](Pair& p) {
      for (size_t i = 0; i < p.x[0].count(); ++i)
        p.x[0].set(i, std::sin(0.01 * static_cast<double>(i % 19) + 0.02 * static_cast<double>(i / 19)));
      for (size_t i = 0; i < p.w.count(); ++i) p.w.set(i, static_cast<double>(i % 3) - 1.0);
    });
    check_accuracy(s, 2e-6, "weights of 0", [](Pair& p) {
      for (size_t i = 0; i < p.w.count(); ++i) p.w.set(i, i < 18 ? 0.0 : p.w.get(i));
    });
    check_accuracy(s, 2e-6, "blank images", [](Pair& p) {
      for (size_t i = 0; i < p.x[0].count(); ++i) p.x[0].set(i, 0.0);
    });
  }
}

// Without padding all taps of a constant image are the same number: y is β, exactly.
TEST(fused_narrow_constant_images) {
  for (double value : {0.0, 0.1, -1234.5}) {
    Setup s = narrow_setup();
    s.pad = 0;
    s.h = s.w = 12;
    s.activation = BNNSActivationFunctionIdentity;
    Pair pair(s, 3);
    for (size_t i = 0; i < pair.x[0].count(); ++i) pair.x[0].set(i, value);
    if (!pair.make_fused()) continue;
    CHECK(pair.apply() == 0, "%s", obn_last_error());
    for (size_t i = 0; i < pair.y.count(); ++i)
      CHECK(pair.y.get(i) == pair.beta.get(i / 100 % s.o), "%g: y at %zu is %g", value, i, pair.y.get(i));
  }
}

TEST(fused_narrow_not_a_number_stays_one) {
  Setup s = narrow_setup();
  Pair pair(s, 3);
  pair.x[0].set(50, std::nan(""));
  if (!pair.make_fused()) return;
  CHECK(pair.apply() == 0, "%s", obn_last_error());
  for (size_t i = 0; i < pair.y.count(); ++i) CHECK(std::isnan(pair.y.get(i)), "y at %zu is %g", i, pair.y.get(i));
}

TEST(fused_narrow_any_number_of_threads_gives_the_same_bits) {
  for (size_t c : {1, 3}) {
    Setup s = narrow_setup();
    s.n = 9;
    s.c = c;
    s.o = 48;
    s.h = 37;
    s.w = 41;
    s.has_moving = true;
    CHECK(s.is_narrow(), "%s", s.text().c_str());
    check_threads(s);
  }
}

// The input may be gone or changed when dβ and dγ alone are asked for; an inference in between changes nothing.
TEST(fused_narrow_keeps_what_its_gradients_need) {
  const Setup s = narrow_setup();
  Pair all(s, 5), part(s, 5);
  if (!all.make_fused() || !part.make_fused()) return;
  CHECK(all.apply() == 0 && all.apply_backward() == 0 && part.apply() == 0, "%s", obn_last_error());
  const Array y = part.y;
  for (size_t i = 0; i < part.x[0].count(); ++i) part.x[0].set(i, 3.0);
  CHECK(part.apply(false) == 0, "%s", obn_last_error());
  part.y = y;
  BNNSNDArrayDescriptor dy = part.dy.with_data(), dbeta = part.dbeta.with_data(), dgamma = part.dgamma.with_data();
  BNNSNDArrayDescriptor* parameters[] = {nullptr, nullptr, &dbeta, &dgamma};
  CHECK(BNNSFusedFilterApplyBackwardBatch(part.fused, s.n, nullptr, 0, nullptr, 0, part.y.data(), 0, &dy, 0,
                                          parameters) == 0,
        "%s", obn_last_error());
  CHECK(part.dbeta.bytes == all.dbeta.bytes && part.dgamma.bytes == all.dgamma.bytes, "other bits");
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

// Large enough that the first layer is done in parts, and that gradients go past the caches.
TEST(fused_layers_in_parts_equal_the_two_layers) {
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
      check_setup(s, 2);  // narrow
      s.first = First::arithmetic;
      s.c = 12;
      s.n = 24;
      if (!is_odd) s.shift = 12;  // on a cache line
      for (size_t further : {0, 1, 7, 15}) {
        s.further = further;
        check_setup(s, 3);
      }
      s.n = 7;  // sums of the next group while both gradients are written
      s.c = s.o = 20;
      check_setup(s, 5);
      s.c = s.o = 12;
      s.function = BNNSArithmeticMultiplyAdd;
      s.n = 6;
      check_setup(s, 4);
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
      if (first == First::arithmetic) s.h = s.w = 150;  // made channel by channel, gradients past the caches
      check_threads(s);
    }
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
      if (first == First::convolution && norm == BNNSBatchNorm) s = narrow_setup();
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

// ---- quantization ----

namespace {

// A first layer before a quantizer, and the two one after the other.
void check_quantized(First first, BNNSDataType joint, BNNSQuantizerFunction function, BNNSDataType y_type,
                     size_t axis_mask, size_t n, bool client) {
  Setup s;
  s.first = first;
  s.n = n;
  s.h = 9;
  s.w = 7;
  s.joint_type = joint;
  s.type = joint == BNNSDataTypeFloat16 ? joint : BNNSDataTypeFloat32;
  s.client = client;
  Pair pair(s, 11);
  pair.describe();
  Array y(y_type, s.layout(), n, s.out_size()), expected = y;
  const std::vector<size_t> size = s.out_size();
  size_t length = n;
  for (size_t k = 0; k < size.size(); ++k)
    if (axis_mask == size_t{1} << k) length = size[k];
  Array scale(BNNSDataTypeFloat32, BNNSDataLayoutVector, 1, {length}), offset = scale;
  Random random{n};
  scale.fill(random, 20.0, 5.0);
  offset.fill(random, 1.0, 3.0);
  BNNSLayerParametersQuantization block = {};
  block.axis_mask = axis_mask;
  block.function = function;
  block.i_desc = pair.z.descriptor;
  block.o_desc = y.descriptor;
  block.i_desc.data = &block;  // ignored
  if (axis_mask) {
    block.scale = scale.with_data();
    block.bias = offset.with_data();
  }
  const BNNSFilterType types[] = {pair.first_type(), BNNSQuantization};
  const void* blocks[] = {pair.first_block(), &block};
  BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, &pair.options);
  CHECK(filter, "%s: %s", s.text().c_str(), obn_last_error());
  pair.first = s.is_vector() ? BNNSFilterCreateLayerFullyConnected(&pair.fully_connected, &pair.options)
               : first == First::convolution
                   ? BNNSFilterCreateLayerConvolution(&pair.convolution, &pair.options)
                   : BNNSFilterCreateLayerTransposedConvolution(&pair.convolution, &pair.options);
  if (!filter || !pair.first) return;
  block.i_desc.data = pair.z.data();
  block.o_desc.data = expected.data();
  CHECK(BNNSFilterApplyBatch(pair.first, n, pair.x[0].data(), 0, pair.z.data(), 0) == 0 &&
            BNNSDirectApplyQuantizer(&block, nullptr, n, 0, 0) == 0,
        "%s", obn_last_error());
  if (axis_mask && !client) std::fill(scale.bytes.begin(), scale.bytes.end(), std::byte{0});  // it was copied
  for (bool training : {false, true}) {
    y.bytes.assign(y.bytes.size(), std::byte{0x3c});
    CHECK(BNNSFusedFilterApplyBatch(filter, n, pair.x[0].data(), 0, y.data(), 0, training) == 0, "%s",
          obn_last_error());
    CHECK(y.bytes == expected.bytes, "%s: quantized to %x along %zx", s.text().c_str(), static_cast<unsigned>(y_type),
          axis_mask);
  }
  const size_t rank = size.size();
  if (axis_mask == size_t{1} << rank)
    CHECK(BNNSFusedFilterApplyBatch(filter, n + 1, pair.x[0].data(), 0, y.data(), 0, false) == -1, "another batch");
  BNNSNDArrayDescriptor d = y.with_data();
  CHECK(BNNSFusedFilterApplyBackwardBatch(filter, n, nullptr, 0, nullptr, 0, nullptr, 0, &d, 0, nullptr) == -1 &&
            std::strstr(obn_last_error(), "quantization"),
        "%s", obn_last_error());
  BNNSFilterDestroy(filter);
}

}  // namespace

TEST(fused_quantization_equals_the_two_layers) {
  for (First first : {First::convolution, First::transposed, First::fully_connected}) {
    const size_t batch_bit = first == First::fully_connected ? 2 : 8;
    for (BNNSDataType joint : {BNNSDataTypeFloat32, BNNSDataTypeFloat16})
      for (BNNSDataType y : {BNNSDataTypeInt8, BNNSDataTypeUInt8, BNNSDataTypeInt16, BNNSDataTypeInt32})
        for (size_t mask : {size_t{0}, size_t{1}, batch_bit})
          for (bool client : {false, true})
            check_quantized(first, joint, BNNSQuantizerFunctionQuantize, y, mask, 5, client);
  }
  for (BNNSDataType joint : {BNNSDataTypeInt8, BNNSDataTypeUInt8})  // the convolution itself gives integers
    check_quantized(First::convolution, joint, BNNSQuantizerFunctionDequantize, BNNSDataTypeFloat32, 4, 3, false);
}

// Enough samples that z is made in parts.
TEST(fused_quantization_of_many_samples) {
  constexpr size_t n = 70, c = 2, o = 8, side = 62;
  Array x(BNNSDataTypeFloat32, BNNSDataLayoutImageCHW, n, {side, side, c});
  Array z(BNNSDataTypeFloat32, BNNSDataLayoutImageCHW, n, {side, side, o});
  Array y(BNNSDataTypeInt8, BNNSDataLayoutImageCHW, n, {side, side, o}), expected = y;
  Array w(BNNSDataTypeFloat32, BNNSDataLayoutConvolutionWeightsOIHW, 1, {3, 3, c, o});
  Array scale(BNNSDataTypeFloat32, BNNSDataLayoutVector, 1, {n});
  Random random{1};
  x.fill(random);
  w.fill(random);
  scale.fill(random, 20.0, 10.0);
  BNNSLayerParametersConvolution convolution = {};
  convolution.i_desc = x.descriptor;
  convolution.o_desc = z.descriptor;
  convolution.w_desc = w.with_data();
  convolution.x_padding = convolution.y_padding = 1;
  BNNSLayerParametersQuantization block = {};
  block.axis_mask = 8;
  block.i_desc = z.descriptor;
  block.o_desc = y.descriptor;
  block.scale = scale.with_data();
  const BNNSFilterType types[] = {BNNSConvolution, BNNSQuantization};
  const void* blocks[] = {&convolution, &block};
  BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, nullptr);
  BNNSFilter first = BNNSFilterCreateLayerConvolution(&convolution, nullptr);
  block.i_desc.data = z.data();
  block.o_desc.data = expected.data();
  CHECK(BNNSFilterApplyBatch(first, n, x.data(), 0, z.data(), 0) == 0 &&
            BNNSDirectApplyQuantizer(&block, nullptr, n, 0, 0) == 0 &&
            BNNSFusedFilterApplyBatch(filter, n, x.data(), 0, y.data(), 0, false) == 0,
        "%s", obn_last_error());
  CHECK(y.bytes == expected.bytes, "parts of a batch are quantized like all of it");
  CHECK(obn_filter_work_bytes(filter, n) < z.bytes.size(), "z is held in parts: %zu bytes",
        obn_filter_work_bytes(filter, n));
  BNNSFilterDestroy(filter);
  BNNSFilterDestroy(first);
}

// ---- the C interface ----

TEST(fused_refuses_what_cannot_be) {
  Setup s;
  Pair pair(s, 1);
  pair.describe();
  const auto refuses = [](size_t count, std::vector<BNNSFilterType> types, std::vector<const void*> blocks,
                          const char* word) {
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateFusedLayer(count, types.data(), blocks.data(), nullptr);
    CHECK(!filter, "%s was accepted", word);
    CHECK(std::strstr(obn_last_error(), word), "expected a sentence with '%s'; got '%s'", word, obn_last_error());
    BNNSFilterDestroy(filter);
  };
  const void *conv = &pair.convolution, *norm = &pair.norm;
  for (size_t count : {size_t{0}, size_t{1}, size_t{4}})
    refuses(count, {BNNSConvolution, BNNSBatchNorm, BNNSBatchNorm, BNNSBatchNorm}, {conv, norm, norm, norm}, "two");
  for (unsigned a = 0; a < 12; ++a)
    for (unsigned b = 0; b < 12; ++b) {
      const bool has_norm = b >= BNNSBatchNorm && b <= BNNSGroupNorm;
      const bool has_weights = a == BNNSConvolution || a == BNNSFullyConnected || a == BNNSTransposedConvolution;
      if (has_weights && (has_norm || b == BNNSQuantization)) continue;
      if (a == BNNSArithmetic && has_norm) continue;
      refuses(2, {static_cast<BNNSFilterType>(a), static_cast<BNNSFilterType>(b)}, {conv, norm}, "layers: expected");
    }
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, nullptr}, "NULL");
  CHECK(!BNNSFilterCreateFusedLayer(2, nullptr, nullptr, nullptr), "NULL was accepted");
  BNNSLayerParametersNormalization other = pair.norm;
  other.i_desc.size[2] = other.o_desc.size[2] = 3;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, &other}, "input of the second layer");
  other = pair.norm;
  other.i_desc.data_type = BNNSDataTypeFloat16;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, &other}, "float32, as the first");
  other = pair.norm;
  other.i_desc.stride[2] = 100;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, &other}, "stride");
  other = pair.norm;
  other.epsilon = -1.0f;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {conv, &other}, "epsilon");
  BNNSLayerParametersConvolution no_weights = pair.convolution;
  no_weights.w_desc.data = nullptr;
  refuses(2, {BNNSConvolution, BNNSBatchNorm}, {&no_weights, norm}, "weights");
  BNNSLayerParametersArithmetic sum = {};
  refuses(2, {BNNSArithmetic, BNNSBatchNorm}, {&sum, norm}, "function");
  sum.arithmetic_function = static_cast<BNNSArithmeticFunction>(99);
  refuses(2, {BNNSArithmetic, BNNSBatchNorm}, {&sum, norm}, "function");
  BNNSArithmeticBinary binary = {pair.z.descriptor, BNNSConstant, pair.z.descriptor, BNNSParameter, pair.z.descriptor,
                                 BNNSParameter};
  sum.arithmetic_function = BNNSArithmeticAdd;
  sum.arithmetic_function_fields = &binary;
  refuses(2, {BNNSArithmetic, BNNSBatchNorm}, {&sum, norm}, "sample");
}

TEST(fused_failing_calls_leave_outputs_alone) {
  for (First kind : kFirsts) {
    Setup s;
    s.first = kind;
    s.client = true;
    s.has_moving = true;
    s.c = 16;  // more weights than outputs
    Pair pair(s, 2), before(s, 2);
    if (!pair.make_fused()) continue;
    const bool is_sum = kind == First::arithmetic;
    const auto refused = [&](int status, const char* word) {
      CHECK(status == -1, "%s: '%s' was accepted", s.text().c_str(), word);
      CHECK(std::strstr(obn_last_error(), word), "expected a sentence with '%s'; got '%s'", word, obn_last_error());
      for (auto array : {&Pair::y, &Pair::dw, &Pair::db, &Pair::dgamma, &Pair::dbeta, &Pair::mean, &Pair::w,
                         &Pair::gamma})
        CHECK((pair.*array).bytes == (before.*array).bytes, "'%s': something was written", word);
      for (size_t k = 0; k < pair.dx.size(); ++k)
        CHECK(pair.dx[k].bytes == before.dx[k].bytes, "'%s': an input gradient was written", word);
      obn_clear_error();
    };
    const void* in[] = {pair.x[0].data(), pair.x.back().data()};
    const auto apply = [&](size_t inputs, const void** x, void* y, bool training) {
      return is_sum ? BNNSFusedFilterApplyMultiInputBatch(pair.fused, s.n, inputs, x, nullptr, y, 0, training)
                    : BNNSFusedFilterApplyBatch(pair.fused, s.n, x[0], 0, y, 0, training);
    };
    refused(pair.apply_backward(), "training");
    const void* no_input[] = {nullptr, nullptr};
    const size_t inputs = pair.x.size();
    refused(apply(inputs, no_input, pair.y.data(), true), "input");
    refused(apply(inputs, in, nullptr, true), "output");
    refused(apply(inputs, in, pair.gamma.data(), true), "gamma");
    refused(apply(inputs, in, static_cast<float*>(pair.x[0].data()) + 1, true), "overlap");
    if (!is_sum) {
      refused(BNNSFusedFilterApplyMultiInputBatch(pair.fused, s.n, 1, in, nullptr, pair.y.data(), 0, true),
              "arithmetic");
      refused(apply(1, in, pair.w.data(), true), "weights");
    } else {
      refused(apply(1, in, pair.y.data(), true), "inputs: expected 2");
      refused(apply(3, in, pair.y.data(), true), "inputs: expected 2");
      refused(BNNSFusedFilterApplyBatch(pair.fused, s.n, in[0], 0, pair.y.data(), 0, true), "inputs: expected 2");
      refused(BNNSFusedFilterApplyMultiInputBatch(pair.fused, s.n, 2, nullptr, nullptr, pair.y.data(), 0, true),
              "inputs");
    }
    // An inference keeps nothing.
    CHECK(pair.apply(false) == 0, "%s", obn_last_error());
    before.y = pair.y;
    refused(pair.apply_backward(), "training");
    CHECK(pair.apply() == 0, "%s", obn_last_error());
    before.y = pair.y;
    before.mean = pair.mean;
    before.variance = pair.variance;

    BNNSNDArrayDescriptor dy = pair.dy.with_data(), dw = {}, db = {}, dbeta = pair.dbeta.with_data(),
                          dgamma = pair.dgamma.with_data(), dx[2], *dx_p[2];
    for (size_t k = 0; k < inputs; ++k) dx[k] = pair.dx[k].with_data();
    for (size_t k = 0; k < 2; ++k) dx_p[k] = &dx[k];
    if (!is_sum) {
      dw = pair.dw.with_data();
      db = pair.db.with_data();
    }
    const auto gradients = [&](const void* y, size_t batch) {
      BNNSNDArrayDescriptor* parameters[] = {&dw, &db, &dbeta, &dgamma};
      if (is_sum)
        return BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, batch, 2, in, nullptr, dx_p, nullptr, y, 0, &dy,
                                                           0, parameters + 2);
      return BNNSFusedFilterApplyBackwardBatch(pair.fused, batch, in[0], 0, dx_p[0], 0, y, 0, &dy, 0, parameters);
    };
    refused(gradients(nullptr, s.n), "output");
    refused(gradients(pair.y.data(), s.n + 1), "samples");
    const auto with = [&](void** slot, void* value, const char* word) {
      void* old = *slot;
      *slot = value;
      refused(gradients(pair.y.data(), s.n), word);
      *slot = old;
    };
    with(&dy.data, nullptr, "grad_output");
    with(&dbeta.data, nullptr, "beta_gradient");
    with(&dgamma.data, pair.dbeta.data(), "overlap");
    with(&dgamma.data, pair.dx[0].data(), "overlap");
    with(&dbeta.data, pair.dy.data(), "overlap");
    with(&dbeta.data, pair.gamma.data(), "overlap");
    with(&dx[0].data, static_cast<float*>(pair.dy.data()) + 1, "overlap");
    with(&dx[0].data, static_cast<float*>(pair.y.data()) + 1, "overlap");
    if (!is_sum) {
      with(&dx[0].data, nullptr, "input_gradient");
      with(&dw.data, pair.dbeta.data(), "overlap");
      with(&db.data, pair.dgamma.data(), "overlap");
      with(&dbeta.data, pair.w.data(), "overlap");
      with(&dbeta.data, pair.x[0].data(), "overlap");
      with(&dw.data, nullptr, "weights_gradient");
      BNNSNDArrayDescriptor* parameters[] = {&dw, &db, &dbeta, &dgamma};
      refused(BNNSFusedFilterApplyBackwardBatch(pair.fused, s.n, nullptr, 0, nullptr, 0, pair.y.data(), 0, &dy, 0,
                                                parameters),
              "input");
      refused(BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, s.n, 1, in, nullptr, dx_p, nullptr,
                                                          pair.y.data(), 0, &dy, 0, parameters),
              "arithmetic");
    } else {
      BNNSNDArrayDescriptor* one[] = {&dx[0], nullptr};
      refused(BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, s.n, 2, in, nullptr, one, nullptr, pair.y.data(),
                                                          0, &dy, 0, nullptr),
              "input_gradients");
      refused(BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, s.n, 2, in, nullptr, nullptr, nullptr,
                                                          pair.y.data(), 0, &dy, 0, nullptr),
              "input_gradients");
      refused(BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, s.n, 3, in, nullptr, dx_p, nullptr,
                                                          pair.y.data(), 0, &dy, 0, nullptr),
              "inputs: expected 2");
    }
    CHECK(gradients(pair.y.data(), s.n) == 0, "%s: %s", s.text().c_str(), obn_last_error());
    CHECK(gradients(pair.y.data(), 0) == 0, "no samples, nothing to do");
    CHECK(BNNSFilterApply(pair.fused, in[0], pair.y.data()) == -1, "it has entry points of its own");
  }
}

TEST(fused_activations_that_cannot_be_differentiated_are_refused) {
  Setup s;
  s.activation = BNNSActivationFunctionGELUApproximation;
  Pair pair(s, 3);
  if (!pair.make_fused()) return;
  CHECK(pair.apply() == 0 && pair.apply(false) == 0, "%s", obn_last_error());
  CHECK(pair.apply_backward() == -1 && obn_last_error()[0], "gelu needs its input");
  // An activation between the layers is for inference.
  s.activation = BNNSActivationFunctionIdentity;
  Pair between(s, 3);
  between.describe();
  between.convolution.activation.function = BNNSActivationFunctionTanh;
  const BNNSFilterType types[] = {BNNSConvolution, BNNSBatchNorm};
  const void* blocks[] = {&between.convolution, &between.norm};
  between.fused = BNNSFilterCreateFusedLayer(2, types, blocks, nullptr);
  CHECK(between.fused && between.apply(false) == 0 && between.apply() == 0, "%s", obn_last_error());
  CHECK(between.apply_backward() == -1 && std::strstr(obn_last_error(), "identity"), "%s", obn_last_error());
}

namespace {

void check_in_place(Setup s) {
  s.first = First::arithmetic;
  s.activation = BNNSActivationFunctionIdentity;
  Pair apart(s, 4), in_place(s, 4);
  if (!apart.make_fused() || !in_place.make_fused()) return;
  CHECK(apart.apply() == 0 && apart.apply_backward() == 0, "%s", obn_last_error());
  const void* in[] = {in_place.x[0].data(), in_place.x[1].data()};
  CHECK(BNNSFusedFilterApplyMultiInputBatch(in_place.fused, s.n, 2, in, nullptr, in_place.x[0].data(), 0, true) == 0,
        "%s", obn_last_error());
  CHECK(in_place.x[0].bytes == apart.y.bytes, "the output in the place of the first input");
  // One gradient in the place of the output's.
  Array kept = in_place.dy;
  BNNSNDArrayDescriptor dy = in_place.dy.with_data(), dx = dy, other = in_place.dx[1].with_data();
  BNNSNDArrayDescriptor* one_p[] = {&dx, &other};
  CHECK(BNNSFusedFilterApplyBackwardMultiInputBatch(in_place.fused, s.n, 2, nullptr, nullptr, one_p, nullptr, nullptr,
                                                    0, &dy, 0, nullptr) == 0,
        "%s", obn_last_error());
  CHECK(in_place.dy.bytes == apart.dx[0].bytes && in_place.dx[1].bytes == apart.dx[1].bytes, "a gradient in place");
  // The other one shared: both inputs receive the sum.
  std::copy(kept.bytes.begin(), kept.bytes.end(), in_place.dy.bytes.begin());
  BNNSNDArrayDescriptor* dx_p[] = {&dx, &dx};
  CHECK(BNNSFusedFilterApplyBackwardMultiInputBatch(in_place.fused, s.n, 2, nullptr, nullptr, dx_p, nullptr, nullptr, 0,
                                                    &dy, 0, nullptr) == 0,
        "%s", obn_last_error());
  for (size_t i = 0; i < apart.dx[0].count(); ++i) {
    const double expected = apart.dx[0].get(i) + apart.dx[1].get(i);
    CHECK(in_place.dy.get(i) == static_cast<double>(static_cast<float>(expected)), "shared gradient at %zu: %g, not %g",
          i, in_place.dy.get(i), expected);
  }
}

}  // namespace

TEST(fused_sums_work_in_place) {
  check_in_place({});
  Setup s;  // channel by channel, past the caches
  s.n = 8;
  s.c = s.o = 12;
  s.h = s.w = 152;
  check_in_place(s);
}

TEST(fused_memory_comes_from_the_caller_and_goes_back) {
  using ::obn::test::Memory;
  std::vector<Setup> setups(std::size(kFirsts));
  for (size_t k = 0; k < setups.size(); ++k) setups[k].first = kFirsts[k];
  setups.push_back(narrow_setup());
  for (const Setup& s : setups) {
    Pair pair(s, 6);
    const BNNSFilterParameters counted = Memory::start();
    pair.options.alloc_memory = counted.alloc_memory;
    pair.options.free_memory = counted.free_memory;
    if (!pair.make_fused()) continue;
    CHECK(pair.apply() == 0 && pair.apply_backward() == 0, "%s", obn_last_error());
    CHECK(Memory::taken > 0, "memory of the filter comes from the caller");
    const size_t before = Memory::taken;
    for (size_t round = 0; round < 3; ++round)
      CHECK(pair.apply() == 0 && pair.apply_backward() == 0, "%s", obn_last_error());
    CHECK(Memory::taken == before, "warm calls took %zu blocks", Memory::taken - before);
    BNNSFilterDestroy(pair.fused);
    pair.fused = nullptr;
    CHECK(Memory::taken == Memory::returned, "%zu blocks taken, %zu given back", Memory::taken, Memory::returned);
    CHECK(pair.make_fused() && obn_filter_kept_bytes(pair.fused, s.n) > 0 && obn_filter_work_bytes(pair.fused, s.n) > 0,
          "%s", obn_last_error());
  }
}

// Layers that put memory of their own behind it rely on that.
TEST(fused_asks_for_no_more_than_it_says) {
  const auto check = [](const Setup& s) {
    std::thread([&] {  // whose workspace begins with nothing
      Pair pair(s, 4);
      if (!pair.make_fused()) return;
      const std::byte* block = workspace(obn_filter_work_bytes(pair.fused, s.n));
      CHECK(pair.apply() == 0 && pair.apply_backward() == 0 && pair.apply(false) == 0, "%s", obn_last_error());
      CHECK(workspace(1) == block, "%s: more than %zu bytes", s.text().c_str(),
            obn_filter_work_bytes(pair.fused, s.n));
    }).join();
  };
  for (First first : kFirsts) {
    for (BNNSFilterType norm : kNorms) {
      Setup s;
      s.first = first;
      s.norm = norm;
      s.c = s.o;  // two groups
      check(s);
    }
  }
  for (size_t n : {1, 3, 40}) {
    for (size_t size : {1, 2, 3, 9, 30}) {  // depthwise: sums of weights may be more than the image
      Setup s;
      s.n = n;
      s.c = s.o = s.groups = 24;
      s.h = s.w = size;
      check(s);
    }
  }
}

TEST(fused_has_the_winograd_switch) {
  Setup s;
  s.c = s.o = 16;
  s.h = s.w = 12;
  Pair with(s, 8), without(s, 8);
  if (!with.make_fused() || !without.make_fused()) return;
  CHECK(obn_filter_set_winograd(without.fused, 0) == 0, "%s", obn_last_error());
  CHECK(with.apply() == 0 && without.apply() == 0, "%s", obn_last_error());
  CHECK(with.y.bytes != without.y.bytes, "another algorithm, other bits");
}

// Blocks with random changes: created or refused, applied or refused, never more.
TEST(fused_random_parameter_blocks_never_crash) {
  constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutVector,         BNNSDataLayoutImageCHW,
                                         BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutConvolutionWeightsOIHW,
                                         BNNSDataLayout3DFirstMajor,   static_cast<BNNSDataLayout>(0x12345)};
  constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16, BNNSDataTypeInt8,
                                     BNNSDataTypeUInt1, static_cast<BNNSDataType>(0x10000)};
  constexpr size_t kHuge[] = {0, SIZE_MAX, SIZE_MAX / 2 + 1, size_t{1} << 40};
  std::vector<float> memory(1 << 16, 0.5f), x(1 << 16, 0.25f), y(1 << 16), dx(1 << 16);
  Random random{99};
  size_t created = 0, refused = 0;
  for (size_t round = 0; round < 6000; ++round) {
    Setup s;
    s.first = kFirsts[random.below(4)];
    s.norm = kNorms[random.below(4)];
    s.norm_groups = random.below(3);
    s.axis = random.below(4);
    s.has_moving = random.coin();
    s.client = random.coin();
    if (s.first == First::arithmetic) s.c = s.o;
    Pair pair(s, round);
    pair.describe();
    BNNSLayerParametersQuantization quantization = {};
    quantization.axis_mask = random.below(10);
    quantization.i_desc = pair.norm.i_desc;
    quantization.o_desc = pair.norm.o_desc;
    quantization.o_desc.data_type = BNNSDataTypeInt8;
    const bool quantizes = random.below(4) == 0;
    BNNSNDArrayDescriptor* all[] = {&pair.convolution.i_desc, &pair.convolution.o_desc, &pair.convolution.w_desc,
                                    &pair.convolution.bias, &pair.fully_connected.i_desc, &pair.fully_connected.o_desc,
                                    &pair.fully_connected.w_desc, &pair.fully_connected.bias, &pair.binary.in1,
                                    &pair.binary.in2, &pair.binary.out, &pair.norm.i_desc, &pair.norm.o_desc,
                                    &pair.norm.beta_desc, &pair.norm.gamma_desc, &pair.norm.moving_mean_desc,
                                    &pair.norm.moving_variance_desc, &quantization.i_desc, &quantization.o_desc};
    for (size_t k = 0; k < std::size(all); ++k)
      if (all[k]->data) all[k]->data = memory.data() + 3000 * k;
    for (size_t changes = random.below(3); changes > 0; --changes) {
      BNNSNDArrayDescriptor& d = *all[random.below(std::size(all))];
      switch (random.below(6)) {
        case 0: d.layout = kLayouts[random.below(6)]; break;
        case 1: d.data_type = kTypes[random.below(6)]; break;
        case 2: d.size[random.below(4)] = random.below(7); break;
        case 3: d.stride[random.below(4)] = random.below(9); break;
        case 4: d.size[random.below(3)] = kHuge[random.below(4)]; break;
        default: if (d.data) d.data = random.coin() ? nullptr : reinterpret_cast<char*>(d.data) + random.below(4);
      }
    }
    pair.norm.activation.function = static_cast<BNNSActivationFunction>(random.below(38));
    pair.convolution.x_stride = random.below(4);
    pair.convolution.groups = random.below(3);
    const BNNSFilterType types[] = {pair.first_type(), quantizes ? BNNSQuantization : s.norm};
    const void* blocks[] = {pair.first_block(), quantizes ? static_cast<const void*>(&quantization) : &pair.norm};
    obn_clear_error();
    pair.fused = BNNSFilterCreateFusedLayer(2, types, blocks, &pair.options);
    if (!pair.fused) {
      CHECK(obn_last_error()[0], "refused without a sentence");
      ++refused;
      continue;
    }
    ++created;
    const size_t n = random.between(1, 3), stride[] = {random.below(400), random.below(400)};
    const void* in[] = {x.data(), x.data()};
    BNNSFusedFilterApplyBatch(pair.fused, n, x.data(), stride[0], y.data(), stride[1], random.coin());
    BNNSFusedFilterApplyMultiInputBatch(pair.fused, n, 2, in, stride, y.data(), stride[1], random.coin());
    BNNSNDArrayDescriptor d[] = {*all[random.below(std::size(all))], *all[random.below(std::size(all))]};
    BNNSNDArrayDescriptor dy = pair.norm.o_desc, dbeta = pair.norm.beta_desc, dgamma = pair.norm.gamma_desc;
    BNNSNDArrayDescriptor *parameters[] = {&d[0], &d[1], &dbeta, &dgamma}, *dx_p[] = {&d[0], &d[1]};
    dy.data = x.data();
    for (BNNSNDArrayDescriptor* p : {&d[0], &d[1], &dbeta, &dgamma}) p->data = dx.data() + random.below(1 << 15);
    BNNSFusedFilterApplyBackwardBatch(pair.fused, n, x.data(), stride[0], &d[0], stride[1], y.data(), stride[1], &dy,
                                      stride[0], parameters);
    BNNSFusedFilterApplyBackwardMultiInputBatch(pair.fused, n, 2, in, stride, dx_p, stride, y.data(), stride[1], &dy,
                                                stride[0], parameters);
    obn_filter_work_bytes(pair.fused, n);
    obn_filter_kept_bytes(pair.fused, n);
  }
  CHECK(created > 500 && refused > 1000, "%zu created, %zu refused", created, refused);
}

}  // namespace obn::fused
