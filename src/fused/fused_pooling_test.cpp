// Fused layers with a pooling at the end: against their pair and the pooling called one after the other, and the
// promises of the C interface.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/test.h"
#include "fused/fused.h"
#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

namespace obn::fused {
namespace {

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  float value() { return static_cast<float>(static_cast<double>(below(1 << 20)) / (1 << 19) - 1.0); }
  std::vector<float> values(size_t n) {
    std::vector<float> all(n);
    for (float& v : all) v = value();
    return all;
  }
};

struct Setup {
  size_t n = 3, c = 1, h = 20, w = 20, o = 8, kernel = 3, stride = 1, pad = 1;
  BNNSFilterType norm = BNNSBatchNorm;
  BNNSActivationFunction activation = BNNSActivationFunctionRectifiedLinear;
  BNNSPoolingFunction function = BNNSPoolingFunctionMax;
  size_t window = 2, step = 2, window_pad = 0, over = 0;  // over: windows that hang over, on each axis
  BNNSActivationFunction last = BNNSActivationFunctionIdentity;
  size_t y_gap = 0, dy_gap = 0;  // behind each row
  size_t shift = 0;              // values in front of arrays
  bool accumulate = false, has_moving = false;
  size_t threads = 0;

  size_t p() const { return (h + 2 * pad - kernel) / stride + 1; }
  size_t q() const { return (w + 2 * pad - kernel) / stride + 1; }
  size_t rows() const { return (p() + 2 * window_pad - window) / step + 1 + over; }
  size_t columns() const { return (q() + 2 * window_pad - window) / step + 1 + over; }
  std::string text() const {
    char buffer[200];
    std::snprintf(buffer, sizeof buffer,
                  "N %zu (%zu, %zu, %zu) O %zu k %zu s %zu p %zu norm %u act %u function %u window %zu/%zu", n, c, h, w,
                  o, kernel, stride, pad, static_cast<unsigned>(norm), static_cast<unsigned>(activation),
                  static_cast<unsigned>(function), window, step);
    return buffer;
  }
};

struct Images {
  BNNSNDArrayDescriptor descriptor = {};
  std::vector<float> memory;
  size_t shift = 0, batch = 0, step = 0;

  Images() = default;
  Images(size_t n, size_t c, size_t h, size_t w, size_t gap, size_t front) : shift(front), batch(n) {
    descriptor.layout = BNNSDataLayoutImageCHW;
    descriptor.data_type = BNNSDataTypeFloat32;
    descriptor.size[0] = w;
    descriptor.size[1] = h;
    descriptor.size[2] = c;
    descriptor.stride[0] = 1;
    descriptor.stride[1] = w + gap;
    descriptor.stride[2] = h * (w + gap);
    step = c * h * (w + gap);
    memory.assign(front + n * step, 5.0f);
  }
  float* data() { return memory.data() + shift; }
  void fill(Random& random) {
    for (float& v : memory) v = random.value();
  }
  BNNSNDArrayDescriptor with_data(bool accumulate = false) {
    BNNSNDArrayDescriptor d = descriptor;
    d.data = data();
    d.flags = accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    return d;
  }
};

BNNSNDArrayDescriptor vector_of(std::vector<float>& values, bool accumulate = false) {
  BNNSNDArrayDescriptor d = {};
  d.layout = BNNSDataLayoutVector;
  d.data_type = BNNSDataTypeFloat32;
  d.size[0] = values.size();
  d.data = values.data();
  d.flags = accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
  return d;
}

// The three layers in one, and beside them the pair and the pooling with arrays of their own.
struct Trio {
  Setup s;
  Images x, dx, between, between_gradient, y, dy;
  std::vector<float> w, bias, gamma, beta, dw, db, dgamma, dbeta, mean, variance;
  std::vector<uint32_t> indices;
  BNNSLayerParametersConvolution convolution = {};
  BNNSLayerParametersNormalization norm = {};
  BNNSLayerParametersPooling pooling = {};
  BNNSFilterParameters options = {};
  BNNSFilter fused = nullptr, pair = nullptr, pool = nullptr;

  Trio(const Setup& setup, uint64_t seed) : s(setup) {
    Random random{seed};
    x = Images(s.n, s.c, s.h, s.w, 0, s.shift);
    dx = Images(s.n, s.c, s.h, s.w, 0, s.shift);
    between = between_gradient = Images(s.n, s.o, s.p(), s.q(), 0, 0);
    y = Images(s.n, s.o, s.rows(), s.columns(), s.y_gap, s.shift);
    dy = Images(s.n, s.o, s.rows(), s.columns(), s.dy_gap, s.shift);
    x.fill(random);
    dx.fill(random);
    dy.fill(random);
    const size_t taps = s.c * s.kernel * s.kernel;
    w = random.values(s.o * taps);
    dw = random.values(s.o * taps);
    bias = random.values(s.o);
    db = random.values(s.o);
    gamma = random.values(s.o);
    dgamma = random.values(s.o);
    beta = random.values(s.o);
    dbeta = random.values(s.o);
    mean = random.values(s.o);
    variance = random.values(s.o);
    for (float& v : gamma) v += 1.5f;
    for (float& v : variance) v += 2.0f;
    indices.resize(s.n * s.o * s.rows() * s.columns());
  }
  Trio(const Trio&) = delete;
  ~Trio() {
    for (BNNSFilter filter : {fused, pair, pool}) BNNSFilterDestroy(filter);
  }

  void describe() {
    convolution.i_desc = x.descriptor;
    convolution.o_desc = between.descriptor;
    BNNSNDArrayDescriptor weights = {};
    weights.layout = BNNSDataLayoutConvolutionWeightsOIHW;
    weights.data_type = BNNSDataTypeFloat32;
    weights.size[0] = weights.size[1] = s.kernel;
    weights.size[2] = s.c;
    weights.size[3] = s.o;
    weights.data = w.data();
    convolution.w_desc = weights;
    convolution.bias = vector_of(bias);
    convolution.x_stride = convolution.y_stride = s.stride;
    convolution.x_padding = convolution.y_padding = s.pad;
    norm.i_desc = norm.o_desc = between.descriptor;
    norm.beta_desc = vector_of(beta);
    norm.gamma_desc = vector_of(gamma);
    if (s.has_moving) {
      norm.moving_mean_desc = vector_of(mean);
      norm.moving_variance_desc = vector_of(variance);
    }
    norm.momentum = 0.9f;
    norm.epsilon = 1e-3f;
    norm.num_groups = 2;
    norm.activation.function = s.activation;
    norm.activation.alpha = 0.25f;
    pooling.i_desc = between.descriptor;
    pooling.o_desc = y.descriptor;
    pooling.activation.function = s.last;
    pooling.pooling_function = s.function;
    pooling.k_width = pooling.k_height = s.window;
    pooling.x_stride = pooling.y_stride = s.step;
    pooling.x_padding = pooling.y_padding = s.window_pad;
    options.n_threads = s.threads;
  }
  BNNSFilter create(size_t count = 3) {
    const BNNSFilterType types[] = {BNNSConvolution, s.norm, OBN_FILTER_POOLING};
    const void* blocks[] = {&convolution, &norm, &pooling};
    return BNNSFilterCreateFusedLayer(count, types, blocks, &options);
  }
  void make_fused() {
    describe();
    fused = create();
    CHECK(fused, "%s: %s", s.text().c_str(), obn_last_error());
  }
  void make_separate() {
    describe();
    pair = create(2);
    pool = BNNSFilterCreateLayerPooling(&pooling, &options);
    CHECK(pair && pool, "%s: %s", s.text().c_str(), obn_last_error());
  }
  bool keeps_between() {
    return obn_filter_kept_bytes(fused, s.n) >= between.memory.size() * sizeof(float);
  }

  int apply(bool training = true) {
    return BNNSFusedFilterApplyBatch(fused, s.n, x.data(), x.step, y.data(), y.step, training);
  }
  // wanted: a bit each for dx, dw, db, dβ, dγ
  int apply_backward(unsigned wanted = 31, bool has_y = true) {
    return backward_of(fused, wanted, has_y ? y.data() : nullptr, y.step, dy);
  }
  int backward_of(BNNSFilter filter, unsigned wanted, float* out, size_t out_step, Images& gradient) {
    BNNSNDArrayDescriptor weights = convolution.w_desc;
    weights.data = dw.data();
    weights.flags = s.accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    BNNSNDArrayDescriptor d[] = {weights, vector_of(db, s.accumulate), vector_of(dbeta, s.accumulate),
                                 vector_of(dgamma, s.accumulate)};
    BNNSNDArrayDescriptor* parameters[4];
    for (size_t k = 0; k < 4; ++k) parameters[k] = wanted >> (k + 1) & 1 ? &d[k] : nullptr;
    BNNSNDArrayDescriptor to = dx.with_data(s.accumulate), from = gradient.with_data();
    return BNNSFusedFilterApplyBackwardBatch(filter, s.n, x.data(), x.step, wanted & 1 ? &to : nullptr, dx.step, out,
                                             out_step, &from, gradient.step, parameters);
  }
  void run_separate(unsigned wanted, bool training = true) {
    int status = BNNSFusedFilterApplyBatch(pair, s.n, x.data(), x.step, between.data(), between.step, training);
    const bool is_max = s.function == BNNSPoolingFunctionMax;
    indices.assign(y.memory.size(), 0);  // lie like y
    status |= BNNSPoolingFilterApplyBatchEx(pool, s.n, between.data(), between.step, y.data(), y.step,
                                            BNNSDataTypeUInt32, is_max ? indices.data() : nullptr, y.step);
    CHECK(status == 0, "%s: %s", s.text().c_str(), obn_last_error());
    if (!training) return;
    BNNSNDArrayDescriptor to = between_gradient.with_data(), from = dy.with_data();
    status = BNNSPoolingFilterApplyBackwardBatchEx(pool, s.n, between.data(), between.step, &to, between_gradient.step,
                                                   y.data(), y.step, &from, dy.step, nullptr, BNNSDataTypeUInt32,
                                                   is_max ? indices.data() : nullptr, y.step);
    status |= backward_of(pair, wanted, between.data(), between.step, between_gradient);
    CHECK(status == 0, "%s: %s", s.text().c_str(), obn_last_error());
  }
};

// Largest difference, as a part of the largest value.
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0, scale = 1e-3;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    scale = std::max(scale, std::fabs(static_cast<double>(b[i])));
  }
  return most / scale;
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr double kNear = 2e-5;

// With Winograd's algorithm it keeps other things than without.
bool goes_by_lanes(Trio& one) {
  const size_t kept = obn_filter_kept_bytes(one.fused, one.s.n);
  obn_filter_set_winograd(one.fused, 0);
  const bool is_other = obn_filter_kept_bytes(one.fused, one.s.n) != kept;
  obn_filter_set_winograd(one.fused, 1);
  return is_other;
}

// The same for layers whose channels go across lanes: in training, and with Winograd's algorithm.
void compare_lanes(const Setup& s, uint64_t seed, unsigned wanted = 31, bool is_taken = true) {
  Trio one(s, seed), other(s, seed);
  one.make_fused();
  other.make_separate();
  if (!one.fused || !other.pair || !other.pool) return;
  const std::string text = s.text();
  CHECK(goes_by_lanes(one) == is_taken, "%s: one pass or not", text.c_str());
  CHECK(one.apply() == 0, "%s: %s", text.c_str(), obn_last_error());
  CHECK(one.apply(false) == 0, "%s: %s", text.c_str(), obn_last_error());  // does not disturb what is kept
  const std::vector<float> inference = one.y.memory;
  CHECK(one.apply_backward(wanted, false) == 0, "%s: %s", text.c_str(), obn_last_error());
  other.run_separate(wanted);
  const std::vector<float> expected = other.y.memory;
  const struct {
    const char* name;
    const std::vector<float>&got, &expected;
    double near;
  } results[] = {{"running mean", one.mean, other.mean, 1e-6},
                 {"running variance", one.variance, other.variance, 1e-6},
                 {"dx", one.dx.memory, other.dx.memory, kNear},
                 {"dw", one.dw, other.dw, kNear},
                 {"db", one.db, other.db, 2e-2},  // of 1e-3, as it is 0
                 {"dbeta", one.dbeta, other.dbeta, kNear},
                 {"dgamma", one.dgamma, other.dgamma, kNear}};
  for (const auto& result : results)
    CHECK(apart(result.got, result.expected) < result.near, "%s: %s differs by %g", text.c_str(), result.name,
          apart(result.got, result.expected));
  other.run_separate(0, false);
  CHECK(apart(inference, other.y.memory) < 1e-6, "%s: inference", text.c_str());
  const std::vector<float> dw = one.dw, dx = one.dx.memory;
  if (!s.accumulate)
    CHECK(one.apply_backward(wanted, false) == 0 && same_bits(dw, one.dw) && same_bits(dx, one.dx.memory), "%s: again",
          text.c_str());
  // Trained again, now by statistics that moved; and without Winograd the layers are called one after the other.
  CHECK(one.apply() == 0 && apart(one.y.memory, expected) < 2e-6, "%s: y differs by %g", text.c_str(),
        apart(one.y.memory, expected));
  for (BNNSFilter filter : {one.fused, other.pair}) CHECK(obn_filter_set_winograd(filter, 0) == 0, "the switch");
  one.dx.memory = other.dx.memory;
  one.dw = other.dw;
  CHECK(one.apply() == 0 && one.apply_backward(wanted, false) == 0, "%s: %s", text.c_str(), obn_last_error());
  other.run_separate(wanted);
  CHECK(same_bits(one.y.memory, other.y.memory) && same_bits(one.dx.memory, other.dx.memory) &&
            same_bits(one.dw, other.dw),
        "%s: without Winograd", text.c_str());
}

void compare(const Setup& s, uint64_t seed, unsigned wanted = 31) {
  Trio one(s, seed), other(s, seed);
  one.make_fused();
  other.make_separate();
  if (!one.fused || !other.pair || !other.pool) return;
  const std::string text = s.text();
  CHECK(one.keeps_between(), "%s: in one pass", text.c_str());
  CHECK(one.apply() == 0, "%s: %s", text.c_str(), obn_last_error());
  CHECK(one.apply_backward(wanted, s.last != BNNSActivationFunctionIdentity) == 0, "%s: %s", text.c_str(),
        obn_last_error());
  other.run_separate(wanted);
  CHECK(same_bits(one.y.memory, other.y.memory), "%s: y differs by %g", text.c_str(),
        apart(one.y.memory, other.y.memory));
  CHECK(same_bits(one.mean, other.mean) && same_bits(one.variance, other.variance), "%s: running statistics",
        text.c_str());
  const struct {
    const char* name;
    const std::vector<float>&got, &expected;
  } gradients[] = {{"dx", one.dx.memory, other.dx.memory},
                   {"dw", one.dw, other.dw},
                   {"db", one.db, other.db},
                   {"dbeta", one.dbeta, other.dbeta},
                   {"dgamma", one.dgamma, other.dgamma}};
  for (const auto& gradient : gradients)
    CHECK(same_bits(gradient.got, gradient.expected), "%s: %s differs by %g", text.c_str(), gradient.name,
          apart(gradient.got, gradient.expected));
  // An inference in between does not disturb what is kept.
  CHECK(one.apply(false) == 0, "%s: %s", text.c_str(), obn_last_error());
  other.run_separate(0, false);
  CHECK(same_bits(one.y.memory, other.y.memory), "%s: inference", text.c_str());
  if (!s.accumulate && s.last == BNNSActivationFunctionIdentity) {
    const std::vector<float> dw = one.dw, dx = one.dx.memory;
    CHECK(one.apply_backward(wanted, false) == 0 && same_bits(dw, one.dw) && same_bits(dx, one.dx.memory),
          "%s: again", text.c_str());
  }
}

}  // namespace

TEST(fused_pooling_equals_the_pair_and_the_pooling) {
  uint64_t seed = 1;
  for (const bool accumulate : {false, true})
    for (const unsigned wanted : {31u, 30u, 2u, 24u, 1u}) {
      Setup s;
      s.accumulate = accumulate;
      compare(s, ++seed, wanted);
    }
  for (const auto activation : {BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear})
    for (const size_t window : {2, 3})
      for (const size_t step : {window, window + 1}) {
        Setup s;
        s.activation = activation;
        s.window = window;
        s.step = step;
        s.h = 15;
        s.w = 18;
        s.o = 5 * window;
        s.has_moving = step == window;
        compare(s, ++seed);
      }
  for (const size_t n : {1, 2, 9}) {
    Setup s;
    s.n = n;
    s.h = s.w = 11;
    s.shift = 1;
    compare(s, ++seed);
  }
  Setup colours;
  colours.c = 3;
  colours.o = 64;
  compare(colours, ++seed);
  Setup halving;
  halving.stride = 2;
  halving.h = halving.w = 35;
  compare(halving, ++seed);
  Setup gaps;
  gaps.dy_gap = 3;
  compare(gaps, ++seed);
}

TEST(fused_pooling_any_other_layers_are_called_one_after_the_other) {
  uint64_t seed = 100;
  Setup s;
  const auto with = [&](auto change) {
    Setup changed = s;
    change(&changed);
    compare(changed, ++seed);
    changed.accumulate = true;
    compare(changed, ++seed, 22u);
  };
  with([](Setup* t) { t->over = 1; t->h = t->w = 21; });
  with([](Setup* t) { t->window_pad = 1; });
  with([](Setup* t) { t->step = 1; });
  with([](Setup* t) { t->function = BNNSPoolingFunctionAverageCountIncludePadding; });
  with([](Setup* t) { t->function = BNNSPoolingFunctionAverageCountExcludePadding; t->window_pad = 1; });
  with([](Setup* t) { t->function = BNNSPoolingFunctionL2Norm; });
  with([](Setup* t) { t->norm = BNNSGroupNorm; });
  with([](Setup* t) { t->norm = BNNSInstanceNorm; t->activation = BNNSActivationFunctionIdentity; });
  with([](Setup* t) { t->activation = BNNSActivationFunctionTanh; });
  with([](Setup* t) { t->last = BNNSActivationFunctionTanh; });
  with([](Setup* t) { t->y_gap = 2; });
  with([](Setup* t) { t->c = 8; t->o = 6; t->n = 2; });
}

TEST(fused_pooling_in_lanes) {
  uint64_t seed = 200;
  Setup s;
  s.c = 16;
  s.o = 32;
  s.h = s.w = 14;
  const auto with = [&](auto change) {
    Setup changed = s;
    change(&changed);
    compare_lanes(changed, ++seed);
  };
  for (const bool accumulate : {false, true})
    for (const unsigned wanted : {31u, 30u, 2u, 24u, 1u, 5u}) {
      Setup t = s;
      t.accumulate = accumulate;
      compare_lanes(t, ++seed, wanted);
    }
  with([](Setup* t) { t->activation = BNNSActivationFunctionIdentity; t->has_moving = true; });
  with([](Setup* t) { t->n = 1; t->c = 8; t->o = 16; t->has_moving = true; });
  with([](Setup* t) { t->n = 13; t->c = 11; t->o = 21; t->h = 9; t->w = 7; t->shift = 1; });   // neither whole vectors
  with([](Setup* t) { t->n = 2; t->c = 19; t->o = 9; t->h = 11; t->w = 16; t->dy_gap = 3; });  // nor whole tiles
  with([](Setup* t) { t->n = 40; t->h = 12; t->w = 5; t->has_moving = true; });
  with([](Setup* t) { t->h = 2; t->w = 3; t->n = 20; });   // one window
  with([](Setup* t) { t->n = 7; t->h = t->w = 31; t->o = 16; });
  // Larger ones, other windows and paddings: one after the other.
  const auto without = [&](auto change) {
    Setup changed = s;
    change(&changed);
    compare_lanes(changed, ++seed, 31, false);
  };
  without([](Setup* t) { t->h = t->w = 70; t->n = 1; });
  without([](Setup* t) { t->pad = 0; });
  without([](Setup* t) { t->step = 3; });
  without([](Setup* t) { t->norm = BNNSInstanceNorm; });
}

TEST(fused_pooling_in_lanes_any_number_of_threads_gives_the_same_bits) {
  Setup s;
  s.n = 21;
  s.c = 16;
  s.o = 32;
  s.h = s.w = 14;
  std::vector<std::vector<float>> first;
  for (const size_t threads : {1, 2, 7}) {
    s.threads = threads;
    Trio one(s, 8);
    one.make_fused();
    CHECK(goes_by_lanes(one) && one.apply() == 0 && one.apply_backward() == 0, "%s", obn_last_error());
    const std::vector<std::vector<float>> got = {one.y.memory, one.dx.memory, one.dw, one.dbeta, one.dgamma};
    if (threads == 1) first = got;
    for (size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], first[i]), "%zu threads, array %zu", threads, i);
  }
}

TEST(fused_pooling_not_a_number_stays_one) {
  for (const auto function : {BNNSPoolingFunctionMax, BNNSPoolingFunctionAverageCountIncludePadding}) {
    Setup s;
    s.function = function;
    Trio one(s, 5);
    one.make_fused();
    one.x.data()[37] = std::numeric_limits<float>::quiet_NaN();
    CHECK(one.apply() == 0, "%s", obn_last_error());
    for (float v : one.y.memory) CHECK(std::isnan(v), "%g of a batch with NaN", static_cast<double>(v));
  }
  Setup lanes;
  lanes.c = 16;
  lanes.o = 32;
  Trio all(lanes, 5);
  all.make_fused();
  all.x.data()[37] = std::numeric_limits<float>::quiet_NaN();
  CHECK(goes_by_lanes(all) && all.apply() == 0 && all.apply_backward() == 0, "%s", obn_last_error());
  for (float v : all.y.memory) CHECK(std::isnan(v), "%g of a batch with NaN", static_cast<double>(v));
  for (float v : all.dx.memory) CHECK(std::isnan(v), "dx %g of a batch with NaN", static_cast<double>(v));
  // By running statistics one pixel reaches the windows around it only.
  Setup s;
  s.has_moving = true;
  Trio one(s, 6), other(s, 6);
  one.make_fused();
  other.make_separate();
  one.x.data()[45] = other.x.data()[45] = std::numeric_limits<float>::quiet_NaN();
  CHECK(one.apply(false) == 0, "%s", obn_last_error());
  other.run_separate(0, false);
  size_t found = 0;
  for (size_t i = 0; i < one.y.memory.size(); ++i) {
    CHECK(std::isnan(one.y.memory[i]) == std::isnan(other.y.memory[i]), "NaN at %zu", i);
    found += std::isnan(one.y.memory[i]);
  }
  CHECK(found == s.o * 4, "%zu windows", found);
}

TEST(fused_pooling_any_number_of_threads_gives_the_same_bits) {
  for (const size_t window_pad : {0, 1}) {
    Setup s;
    s.n = 9;
    s.h = 41;
    s.w = 38;
    s.window_pad = window_pad;
    std::vector<std::vector<float>> first;
    for (const size_t threads : {1, 2, 7}) {
      s.threads = threads;
      Trio one(s, 8);
      one.make_fused();
      CHECK(one.apply() == 0 && one.apply_backward() == 0, "%s", obn_last_error());
      std::vector<std::vector<float>> got = {one.y.memory, one.dx.memory, one.dw, one.dbeta, one.dgamma};
      CHECK(one.apply_backward(30) == 0, "%s", obn_last_error());
      got.push_back(one.dw);
      got.push_back(one.dgamma);
      if (threads == 1) first = got;
      for (size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], first[i]), "%zu threads, array %zu", threads, i);
    }
  }
}

// Whatever lies between the rows of y, what is kept has no gaps. Here the stride of the only channel is that of a row,
// so that its multiples say nothing of where the last row ends.
TEST(fused_pooling_keeps_indices_without_gaps) {
  for (size_t n : {1, 3}) {
    const Setup plain = {.n = n, .c = 2, .h = 6, .w = 6, .o = 1, .window = 3, .window_pad = 1};
    Setup wide = plain;
    wide.y_gap = wide.dy_gap = 5000;
    Trio one(wide, 3), other(plain, 3);
    one.y.descriptor.stride[2] = one.y.descriptor.stride[1];
    one.dy.descriptor.stride[2] = one.dy.descriptor.stride[1];
    for (size_t i = 0; i < n * plain.rows() * plain.columns(); ++i)
      one.dy.memory[i / plain.columns() * (plain.columns() + wide.dy_gap) + i % plain.columns()] = other.dy.memory[i];
    for (Trio* trio : {&one, &other}) {
      // What was drawn after dy differs.
      Random random{7};
      for (auto* values : {&trio->w, &trio->bias, &trio->gamma, &trio->beta})
        for (float& v : *values) v = random.value();
      trio->make_fused();
    }
    if (!one.fused || !other.fused) return;
    CHECK(obn_filter_kept_bytes(one.fused, n) == obn_filter_kept_bytes(other.fused, n), "N %zu: kept", n);
    for (Trio* trio : {&one, &other})
      CHECK(trio->apply() == 0 && trio->apply_backward(31, false) == 0, "N %zu: %s", n, obn_last_error());
    CHECK(same_bits(one.dx.memory, other.dx.memory) && same_bits(one.dw, other.dw) &&
              same_bits(one.dgamma, other.dgamma),
          "N %zu: gradients", n);
  }
}

TEST(fused_pooling_keeps_what_lies_between_and_an_index_per_window) {
  Setup s;
  s.n = 32;
  s.o = 32;
  Trio one(s, 3);
  one.make_fused();
  const size_t input = s.n * s.h * s.w * sizeof(float);
  const size_t least = s.n * s.o * (s.h * s.w + s.rows() * s.columns()) * sizeof(float) + input;
  const size_t kept = obn_filter_kept_bytes(one.fused, s.n);
  CHECK(kept > least && kept < least + 16384, "%zu bytes", kept);
}

// The pooling's part of the workspace lies behind the pair's, so the pair must not ask for more than it says.
TEST(fused_pooling_asks_for_no_more_than_it_says) {
  const auto check = [](const Setup& s) {
    std::thread([&] {  // whose workspace begins with nothing
      Trio one(s, 4);
      one.make_fused();
      const std::byte* block = workspace(obn_filter_work_bytes(one.fused, s.n));
      CHECK(one.apply() == 0 && one.apply_backward() == 0 && one.apply(false) == 0, "%s", obn_last_error());
      CHECK(workspace(1) == block, "%s: more than %zu bytes", s.text().c_str(),
            obn_filter_work_bytes(one.fused, s.n));
    }).join();
  };
  for (const size_t n : {1, 3, 40})
    for (const auto norm : {BNNSBatchNorm, BNNSInstanceNorm, BNNSGroupNorm})
      for (const size_t channels : {1, 8, 32})
        for (const size_t size : {9, 30}) {
          Setup s;
          s.n = n;
          s.norm = norm;
          s.c = channels;
          s.o = 16;
          s.h = s.w = size;
          check(s);
          s.window_pad = 1;
          s.activation = BNNSActivationFunctionTanh;
          check(s);
        }
}

TEST(fused_pooling_refuses_what_cannot_be) {
  const auto refuses = [](const char* sentence, auto change) {
    Setup s;
    Trio one(s, 1);
    one.describe();
    change(&one);
    BNNSFilter filter = one.create();
    CHECK(!filter && std::strstr(obn_last_error(), sentence), "%s: %s", sentence, obn_last_error());
    BNNSFilterDestroy(filter);
  };
  refuses("unmax", [](Trio* t) { t->pooling.pooling_function = BNNSPoolingFunctionUnMax; });
  refuses("bias: expected none", [](Trio* t) { t->pooling.bias = vector_of(t->bias); });
  refuses("input of the third layer", [](Trio* t) { t->pooling.i_desc.size[0] -= 1; });
  refuses("expected at most", [](Trio* t) {
    t->pooling.o_desc = packed(t->pooling.o_desc);
    t->pooling.o_desc.size[0] += 20;
  });
  refuses("weights", [](Trio* t) { t->convolution.w_desc.size[3] += 1; });
  Setup s;
  Trio one(s, 1);
  one.describe();
  const void* blocks[] = {&one.convolution, &one.norm, &one.pooling, &one.pooling};
  const BNNSFilterType wrong[] = {BNNSConvolution, BNNSBatchNorm, BNNSBatchNorm};
  CHECK(!BNNSFilterCreateFusedLayer(3, wrong, blocks, nullptr) && std::strstr(obn_last_error(), "third"), "%s",
        obn_last_error());
  const BNNSFilterType integers[] = {BNNSConvolution, BNNSQuantization, OBN_FILTER_POOLING};
  CHECK(!BNNSFilterCreateFusedLayer(3, integers, blocks, nullptr) && std::strstr(obn_last_error(), "normalization"),
        "%s", obn_last_error());
  const BNNSFilterType types[] = {BNNSConvolution, BNNSBatchNorm, OBN_FILTER_POOLING, OBN_FILTER_POOLING};
  CHECK(!BNNSFilterCreateFusedLayer(4, types, blocks, nullptr), "four");
  blocks[2] = nullptr;
  CHECK(!BNNSFilterCreateFusedLayer(3, types, blocks, nullptr), "no block");
  CHECK(!BNNSFilterCreateFusedLayer(2, types + 1, blocks, nullptr), "a pair with a pooling");
}

TEST(fused_pooling_failing_calls_leave_outputs_alone) {
  for (const size_t window_pad : {0, 1}) {
    Setup s;
    s.has_moving = true;
    s.window_pad = window_pad;
    Trio one(s, 2);
    one.make_fused();
    const std::vector<float> y = one.y.memory, dw = one.dw, dx = one.dx.memory, mean = one.mean;
    const auto untouched = [&] {
      return same_bits(y, one.y.memory) && same_bits(dw, one.dw) && same_bits(dx, one.dx.memory) &&
             same_bits(mean, one.mean);
    };
    CHECK(one.apply_backward() != 0 && untouched(), "gradients before a training call");
    CHECK(one.apply(false) == 0, "%s", obn_last_error());
    one.y.memory = y;
    CHECK(one.apply_backward() != 0 && untouched(), "gradients after an inference");
    CHECK(BNNSFusedFilterApplyBatch(one.fused, s.n, one.x.data(), 0, nullptr, 0, true) != 0 && untouched(), "no y");
    CHECK(BNNSFusedFilterApplyBatch(one.fused, s.n, nullptr, 0, one.y.data(), 0, true) != 0 && untouched(), "no x");
    CHECK(BNNSFusedFilterApplyBatch(one.fused, 1, one.x.data(), 0, one.x.data() + 4, 0, true) != 0 && untouched(),
          "y over x");
    CHECK(BNNSFusedFilterApplyBatch(one.fused, s.n, one.x.data(), 0, one.y.data(), 3, true) != 0 && untouched(),
          "samples that overlap");
    CHECK(one.apply() == 0, "%s", obn_last_error());
    one.y.memory = y;
    one.mean = mean;
    one.s.n = s.n - 1;
    CHECK(one.apply_backward() != 0 && untouched(), "another batch size");
    one.s.n = s.n;
    const Images dy = one.dy;
    one.dy.descriptor.size[0] -= 1;
    CHECK(one.apply_backward() != 0 && untouched(), "another shape");
    one.dy = dy;
    CHECK(BNNSFusedFilterApplyBackwardBatch(one.fused, s.n, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0, nullptr) !=
                  0 && untouched(), "no output gradient");
    CHECK(one.apply_backward(31, false) == 0, "%s", obn_last_error());
    const void* in[] = {one.x.data()};
    CHECK(BNNSFusedFilterApplyMultiInputBatch(one.fused, s.n, 1, in, nullptr, one.y.data(), 0, true) != 0,
          "several inputs");
  }
}

TEST(fused_pooling_behind_arithmetic) {
  // Instance norm of a + b, then averages: the same as the pair and the pooling.
  constexpr size_t kN = 2;
  Random random{12};
  Images a(kN, 4, 6, 8, 0, 0), b = a, z = a, y(kN, 4, 3, 4, 0, 0), expected = y;
  a.fill(random);
  b.fill(random);
  BNNSArithmeticBinary binary = {a.descriptor, BNNSSample, b.descriptor, BNNSSample, z.descriptor, BNNSSample};
  BNNSLayerParametersArithmetic arithmetic = {};
  arithmetic.arithmetic_function = BNNSArithmeticAdd;
  arithmetic.arithmetic_function_fields = &binary;
  BNNSLayerParametersNormalization norm = {};
  norm.i_desc = norm.o_desc = z.descriptor;
  norm.epsilon = 1e-5f;
  BNNSLayerParametersPooling pooling = {};
  pooling.i_desc = z.descriptor;
  pooling.o_desc = y.descriptor;
  pooling.pooling_function = BNNSPoolingFunctionAverageCountIncludePadding;
  pooling.k_width = pooling.k_height = pooling.x_stride = pooling.y_stride = 2;
  const BNNSFilterType types[] = {BNNSArithmetic, BNNSInstanceNorm, OBN_FILTER_POOLING};
  const void* blocks[] = {&arithmetic, &norm, &pooling};
  BNNSFilter fused = BNNSFilterCreateFusedLayer(3, types, blocks, nullptr);
  BNNSFilter pair = BNNSFilterCreateFusedLayer(2, types, blocks, nullptr);
  BNNSFilter pool = BNNSFilterCreateLayerPooling(&pooling, nullptr);
  const void* in[] = {a.data(), b.data()};
  const size_t strides[] = {a.step, b.step};
  for (const bool training : {true, false}) {
    CHECK(BNNSFusedFilterApplyMultiInputBatch(fused, kN, 2, in, strides, y.data(), y.step, training) == 0, "%s",
          obn_last_error());
    CHECK(BNNSFusedFilterApplyMultiInputBatch(pair, kN, 2, in, strides, z.data(), z.step, training) == 0, "%s",
          obn_last_error());
    CHECK(BNNSFilterApplyBatch(pool, kN, z.data(), z.step, expected.data(), expected.step) == 0, "%s",
          obn_last_error());
    CHECK(same_bits(y.memory, expected.memory), "y");
  }
  Images dy = y, da = a, db = a;
  dy.fill(random);
  BNNSNDArrayDescriptor from = dy.with_data(), to_a = da.with_data(), to_b = db.with_data();
  BNNSNDArrayDescriptor* to[] = {&to_a, &to_b};
  CHECK(BNNSFusedFilterApplyBackwardMultiInputBatch(fused, kN, 2, in, strides, to, strides, nullptr, 0, &from, dy.step,
                                                    nullptr) == 0, "%s", obn_last_error());
  CHECK(same_bits(da.memory, db.memory) && !same_bits(da.memory, a.memory), "both inputs of a sum");
  for (BNNSFilter filter : {fused, pair, pool}) BNNSFilterDestroy(filter);
}

}  // namespace obn::fused
