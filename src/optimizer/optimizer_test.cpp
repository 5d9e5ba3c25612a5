#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/test.h"
#include "openbnns/bnns/optimizer.h"
#include "openbnns/openbnns.h"
#include "optimizer/optimizer.h"

using namespace obn;
using namespace obn::optimizer;

namespace {

struct Random : test::Random {
  using test::Random::Random;
  float real() { return static_cast<float>(between(0, 2000)) / 500.0f - 2.0f; }
  void fill(std::vector<float>& values) {
    for (float& v : values) v = below(9) == 0 ? 0.0f : real();
  }
};

bool is_close(double got, double want, double magnitude) {
  return std::fabs(got - want) <= 2e-6 * (std::fabs(want) + magnitude);
}

BNNSNDArrayDescriptor vector_of(std::vector<float>& values) {
  BNNSNDArrayDescriptor d{};
  d.layout = BNNSDataLayoutVector;
  d.size[0] = values.size();
  d.data_type = BNNSDataTypeFloat32;
  d.data = values.data();
  return d;
}

// Tensors of the given sizes with all three accumulators, and the arrays of descriptors that a step takes.
struct Model {
  std::vector<std::vector<float>> w, g, a;
  std::vector<BNNSNDArrayDescriptor> descriptors;
  std::vector<BNNSNDArrayDescriptor*> parameters, accumulators;
  std::vector<const BNNSNDArrayDescriptor*> gradients;

  Model(const std::vector<size_t>& sizes, uint64_t seed, size_t roles = kMaxRoles) {
    Random random(seed);
    for (size_t n : sizes) {
      random.fill(w.emplace_back(n));
      random.fill(g.emplace_back(n));
    }
    for (size_t k = 0; k < roles; ++k)
      for (size_t n : sizes) a.emplace_back(n);
    descriptors.reserve(2 * w.size() + a.size());
    for (auto& values : w) parameters.push_back(&descriptors.emplace_back(vector_of(values)));
    for (auto& values : g) gradients.push_back(&descriptors.emplace_back(vector_of(values)));
    for (auto& values : a) accumulators.push_back(&descriptors.emplace_back(vector_of(values)));
  }
  int step(BNNSOptimizerFunction function, const void* fields, const BNNSFilterParameters* options = nullptr) {
    return BNNSOptimizerStep(function, fields, w.size(), parameters.data(), gradients.data(), accumulators.data(),
                             options);
  }
};

BNNSOptimizerSGDMomentumFields plain_sgd(float rate, float momentum) {
  BNNSOptimizerSGDMomentumFields fields{};
  fields.learning_rate = rate;
  fields.momentum = momentum;
  fields.gradient_scale = 1.0f;
  return fields;
}

BNNSOptimizerAdamWithClippingFields plain_adam() {
  BNNSOptimizerAdamWithClippingFields fields{};
  fields.learning_rate = 0.01f;
  fields.beta1 = 0.9f;
  fields.beta2 = 0.999f;
  fields.time_step = 1.0f;
  fields.epsilon = 1e-8f;
  fields.gradient_scale = 1.0f;
  return fields;
}

}  // namespace

TEST(optimizer_examples_of_the_specification) {
  Model plain({4}, 1);
  plain.w[0] = {1, 2, 3, 4};
  plain.g[0] = {.5f, -1, 2, 0};
  plain.descriptors[0].data = plain.w[0].data();
  plain.descriptors[1].data = plain.g[0].data();
  BNNSOptimizerSGDMomentumFields sgd = plain_sgd(0.1f, 0.0f);
  CHECK(BNNSOptimizerStep(BNNSOptimizerFunctionSGDMomentum, &sgd, 1, plain.parameters.data(), plain.gradients.data(),
                          nullptr, nullptr) == 0,
        "%s", obn_last_error());
  const float want[] = {.95f, 2.1f, 2.8f, 4};
  for (size_t i = 0; i < 4; ++i) CHECK(is_close(plain.w[0][i], want[i], 0), "%g", plain.w[0][i]);

  Model heavy({1}, 1);
  heavy.w[0][0] = 10;
  heavy.g[0][0] = 2;
  sgd = plain_sgd(0.1f, 0.9f);
  sgd.sgd_momentum_variant = BNNSSGDMomentumVariant1;
  CHECK(heavy.step(BNNSOptimizerFunctionSGDMomentum, &sgd) == 0, "%s", obn_last_error());
  CHECK(is_close(heavy.w[0][0], 9.8, 0) && is_close(heavy.a[0][0], 2, 0), "%g %g", heavy.w[0][0], heavy.a[0][0]);
  CHECK(heavy.step(BNNSOptimizerFunctionSGDMomentum, &sgd) == 0, "%s", obn_last_error());
  CHECK(is_close(heavy.w[0][0], 9.42, 0) && is_close(heavy.a[0][0], 3.8, 0), "%g %g", heavy.w[0][0], heavy.a[0][0]);
}

TEST(optimizer_rules_match_ref_on_every_target) {
  Random random(2);
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    for (size_t r = 0; r < kRules; ++r) {
      const Rule rule = static_cast<Rule>(r);
      for (Penalty penalty : {Penalty::none, Penalty::l1, Penalty::l2}) {
        for (size_t n = 1; n <= 37; ++n) {
          Numbers c{};
          c.low = -1.0f;
          c.high = n % 2 ? std::numeric_limits<float>::infinity() : 0.75f;
          c.scale = 0.5f;
          c.penalty = penalty;
          c.penalty_scale = n % 3 ? 0.01f : -0.02f;
          c.rate = 0.1f;
          c.momentum = 0.9f;
          c.beta1 = 0.9f;
          c.rest1 = 0.1f;
          c.beta2 = 0.99f;
          c.rest2 = 0.01f;
          c.epsilon = 1e-3f;
          c.keep = 0.999f;
          // One value too many at each end: neither may change; an odd start keeps vectors unaligned.
          const size_t room = n + 2;
          std::vector<float> w(room), g(room), a(kMaxRoles * room);
          random.fill(w);
          random.fill(g);
          for (float& v : a) v = std::fabs(random.real());
          for (size_t i = 0; i < room; ++i) a[room + i] = std::min(a[room + i], 0.1f);  // centered: n - a² > 0
          const std::vector<float> w_before = w, a_before = a;
          float* roles[kMaxRoles];
          for (size_t k = 0; k < kMaxRoles; ++k) roles[k] = a.data() + k * room + 1;
          targets.at(isa).run[r](c, w.data() + 1, g.data() + 1, roles, n);
          for (size_t i = 0; i < room; ++i) {
            double one[kMaxRoles], next = w_before[i];
            for (size_t k = 0; k < kMaxRoles; ++k) one[k] = a_before[k * room + i];
            if (i > 0 && i <= n) next = ref::step(rule, c, next, ref::gradient(c, next, g[i]), one);
            CHECK(is_close(w[i], next, 1), "%s rule %zu n %zu w[%zu] %g want %g", name_of(isa), r, n, i,
                  static_cast<double>(w[i]), next);
            for (size_t k = 0; k < kMaxRoles; ++k)
              CHECK(is_close(a[k * room + i], one[k], 1), "%s rule %zu n %zu a[%zu][%zu] %g want %g", name_of(isa), r,
                    n, k, i, static_cast<double>(a[k * room + i]), one[k]);
          }
        }
      }
    }
  }
}

// Where an array lies must not matter: ends and whole vectors round alike.
TEST(optimizer_same_bits_wherever_arrays_lie) {
  constexpr size_t n = 75, room = n + 32;
  Random random(8);
  std::vector<float> w(n), g(n), a(kMaxRoles * n);
  random.fill(w);
  random.fill(g);
  for (float& v : a) v = 0.01f + std::fabs(random.real());
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    for (size_t r = 0; r < kRules; ++r) {
      for (Penalty penalty : {Penalty::none, Penalty::l1, Penalty::l2}) {
        Numbers c{-1.5f, 1.5f, 0.3f, penalty, 0.013f, 0.07f, 0.9f, 0.9f, 0.1f, 0.99f, 0.01f, 1e-3f, 0.999f};
        std::vector<float> first;
        for (size_t offset = 0; offset <= 16; ++offset) {
          alignas(64) float memory[2 + kMaxRoles][room];
          float* place[2 + kMaxRoles];
          for (size_t k = 0; k < 2 + kMaxRoles; ++k) place[k] = memory[k] + offset + (k == 1 ? offset % 3 : 0);
          std::copy_n(w.data(), n, place[0]);
          std::copy_n(g.data(), n, place[1]);
          for (size_t k = 0; k < kMaxRoles; ++k) std::copy_n(a.data() + k * n, n, place[2 + k]);
          targets.at(isa).run[r](c, place[0], place[1], place + 2, n);
          std::vector<float> found(place[0], place[0] + n);
          for (size_t k = 0; k < kMaxRoles; ++k) found.insert(found.end(), place[2 + k], place[2 + k] + n);
          if (offset == 0) first = found;
          CHECK(found == first, "%s rule %zu penalty %d offset %zu", name_of(isa), r, static_cast<int>(penalty),
                offset);
        }
      }
    }
  }
}

// The fields of every function, through the interface, ten steps: sums over several tensors and pieces.
TEST(optimizer_functions_follow_their_formulas) {
  const std::vector<size_t> sizes = {1, 17, 20000, 3, 40000, 64};
  const float kInfinity = std::numeric_limits<float>::infinity();
  for (unsigned function = 1; function <= 12; ++function) {
    for (unsigned clipping = 0; clipping <= 3; ++clipping) {
      for (unsigned option = 0; option < 6; ++option) {
        const bool has_clipping = function > 6;
        if (!has_clipping && clipping > 1) continue;
        const unsigned kind = has_clipping ? function - 6 : function;
        BNNSOptimizerSGDMomentumFields sgd = plain_sgd(0.05f, option == 5 ? 0.0f : 0.9f);
        sgd.nesterov = option % 2;
        sgd.sgd_momentum_variant = static_cast<BNNSOptimizerSGDMomentumVariant>(option / 2);
        BNNSOptimizerRMSPropFields rms{0.01f, 0.9f, 1e-3f, option % 2 == 1, option < 3 ? 0.0f : 0.5f, 0.5f, 0.1f, false,
                                       0, 0, BNNSOptimizerRegularizationNone};
        BNNSOptimizerAdamWithClippingFields adam = plain_adam();
        adam.epsilon = 1e-3f;  // as above: a gradient that cancels to rounding noise must stay noise
        const auto penalty = static_cast<BNNSOptimizerRegularizationFunction>(option % 3);
        const auto clip = static_cast<BNNSOptimizerClippingFunction>(clipping);
        const float max_norm = 3.0f, use_norm = option == 4 ? 6.0f : 0.0f;
        sgd.regularization_func = rms.regularization_func = adam.regularization_func = penalty;
        sgd.regularization_scale = rms.regularization_scale = adam.regularization_scale = 0.1f;
        sgd.clip_gradients = rms.clip_gradients = clipping == 1;
        sgd.clip_gradients_min = rms.clip_gradients_min = adam.clip_gradients_min = -0.5f;
        sgd.clip_gradients_max = rms.clip_gradients_max = adam.clip_gradients_max = 0.25f;
        adam.clipping_func = clip;
        adam.clip_gradients_max_norm = max_norm;
        adam.clip_gradients_use_norm = use_norm;
        const BNNSOptimizerAdamFields old_adam{adam.learning_rate, adam.beta1, adam.beta2, 1.0f, adam.epsilon,
                                               adam.gradient_scale, 0.1f, clipping == 1, -0.5f, 0.25f, penalty};
        const BNNSOptimizerSGDMomentumWithClippingFields new_sgd{
            sgd.learning_rate, sgd.momentum, 1.0f, 0.1f, sgd.nesterov, penalty, sgd.sgd_momentum_variant,
            clip, -0.5f, 0.25f, max_norm, use_norm};
        const BNNSOptimizerRMSPropWithClippingFields new_rms{
            rms.learning_rate, rms.alpha, rms.epsilon, rms.centered, rms.momentum, 0.5f, 0.1f, penalty,
            clip, -0.5f, 0.25f, max_norm, use_norm};

        const bool is_sgd = kind == 1, is_rms = kind == 3, is_w = kind == 4 || kind == 6, is_ams = kind >= 5;
        Rule rule = is_ams ? Rule::amsgrad : Rule::adam;
        if (is_rms)
          rule = static_cast<Rule>(static_cast<unsigned>(Rule::rmsprop) + 2 * rms.centered + (rms.momentum != 0.0f));
        constexpr Rule kSgd[] = {Rule::sgd_momentum_0, Rule::sgd_nesterov_0, Rule::sgd_momentum_1,
                                 Rule::sgd_nesterov_1, Rule::sgd_momentum_2, Rule::sgd};
        if (is_sgd) rule = kSgd[option];

        Model model(sizes, 10 * function + option, roles_of(rule));
        auto w = std::vector<std::vector<double>>(sizes.size());
        for (size_t p = 0; p < sizes.size(); ++p) w[p].assign(model.w[p].begin(), model.w[p].end());
        std::vector<std::vector<double>> state(sizes.size());
        for (size_t p = 0; p < sizes.size(); ++p) state[p].assign(kMaxRoles * sizes[p], 0.0);

        double squares = 0.0;
        std::vector<double> norm(sizes.size());
        for (size_t p = 0; p < sizes.size(); ++p) {
          double own = 0.0;
          for (float g : model.g[p]) own += static_cast<double>(g) * static_cast<double>(g);
          norm[p] = std::sqrt(own);
          squares += own;
        }
        const double joint = use_norm != 0.0f ? use_norm : std::sqrt(squares);

        for (unsigned t = 1; t <= 10; ++t) {
          BNNSOptimizerAdamFields old_adam_now = old_adam;
          adam.time_step = old_adam_now.time_step = static_cast<float>(t);
          const void* fields = is_sgd   ? (has_clipping ? static_cast<const void*>(&new_sgd) : &sgd)
                               : is_rms ? (has_clipping ? static_cast<const void*>(&new_rms) : &rms)
                                        : (has_clipping ? static_cast<const void*>(&adam) : &old_adam_now);
          CHECK(model.step(static_cast<BNNSOptimizerFunction>(function), fields) == 0, "%u: %s", function,
                obn_last_error());
          for (size_t p = 0; p < sizes.size(); ++p) {
            Numbers c{};
            c.low = clipping == 1 ? -0.5f : -kInfinity;
            c.high = clipping == 1 ? 0.25f : kInfinity;
            double factor = 1.0;
            if (clipping == 2) factor = std::min(1.0, max_norm / norm[p]);
            if (clipping == 3) factor = std::min(1.0, max_norm / joint);
            c.scale = static_cast<float>(factor * (is_rms ? 0.5 : 1.0));
            c.penalty = is_w ? Penalty::none : static_cast<Penalty>(option % 3);
            c.penalty_scale = 0.1f;
            c.rate = is_sgd ? sgd.learning_rate : rms.learning_rate;
            c.momentum = is_sgd ? sgd.momentum : rms.momentum;
            c.beta2 = rms.alpha;
            c.epsilon = rms.epsilon;
            c.keep = 1.0f;
            if (!is_sgd && !is_rms) {
              c.beta1 = 0.9f;
              c.rest1 = static_cast<float>(1.0 - static_cast<double>(0.9f));
              c.beta2 = 0.999f;
              c.epsilon = adam.epsilon;
              c.rate = static_cast<float>(0.01f * std::sqrt(1.0 - std::pow(static_cast<double>(0.999f), t)) /
                                          (1.0 - std::pow(static_cast<double>(0.9f), t)));
              if (is_w) c.keep = 1.0f - 0.01f * 0.1f;
            }
            c.rest2 = static_cast<float>(1.0 - static_cast<double>(c.beta2));
            for (size_t i = 0; i < sizes[p]; ++i)
              w[p][i] = ref::step(rule, c, w[p][i], ref::gradient(c, w[p][i], model.g[p][i]),
                                  &state[p][kMaxRoles * i]);
          }
        }
        for (size_t p = 0; p < sizes.size(); ++p)
          for (size_t i = 0; i < sizes[p]; ++i)
            CHECK(std::fabs(model.w[p][i] - w[p][i]) <= 2e-5 * (1.0 + std::fabs(w[p][i])),
                  "function %u clipping %u option %u w[%zu][%zu] %g want %g", function, clipping, option, p, i,
                  static_cast<double>(model.w[p][i]), w[p][i]);
      }
    }
  }
}

TEST(optimizer_same_bits_for_any_number_of_threads) {
  const size_t before = obn_get_num_threads();
  const std::vector<size_t> sizes = {5, 300000, 1, 33000, 65536, 7};
  BNNSOptimizerAdamWithClippingFields adam = plain_adam();
  adam.clipping_func = BNNSOptimizerClippingByGlobalNorm;
  adam.clip_gradients_max_norm = 1.0f;
  Model first(sizes, 3);
  obn_set_num_threads(1);
  CHECK(first.step(BNNSOptimizerFunctionAdamWithClipping, &adam) == 0, "%s", obn_last_error());
  for (size_t threads : {2, 3, 7}) {
    obn_set_num_threads(threads);
    Model again(sizes, 3);
    CHECK(again.step(BNNSOptimizerFunctionAdamWithClipping, &adam) == 0, "%s", obn_last_error());
    CHECK(again.w == first.w && again.a == first.a, "%zu threads give other bits", threads);
  }
  obn_set_num_threads(before);
}

TEST(optimizer_nan_gradient_stays_with_its_value) {
  for (bool clips : {false, true}) {
    Model model({40}, 4);
    const std::vector<float> before = model.w[0];
    model.g[0][3] = std::nanf("");
    BNNSOptimizerSGDMomentumFields sgd = plain_sgd(0.1f, 0.0f);
    sgd.clip_gradients = clips;
    sgd.clip_gradients_min = -1.0f;
    sgd.clip_gradients_max = 1.0f;
    CHECK(model.step(BNNSOptimizerFunctionSGDMomentum, &sgd) == 0, "%s", obn_last_error());
    for (size_t i = 0; i < 40; ++i) CHECK(std::isnan(model.w[0][i]) == (i == 3), "%zu", i);
  }
}

TEST(optimizer_penalty_is_off_for_infinite_parameters) {
  Model model({20}, 5);
  model.w[0][2] = std::numeric_limits<float>::infinity();
  BNNSOptimizerSGDMomentumFields sgd = plain_sgd(0.1f, 0.0f);
  CHECK(model.step(BNNSOptimizerFunctionSGDMomentum, &sgd) == 0, "%s", obn_last_error());
  CHECK(std::isinf(model.w[0][2]), "%g", static_cast<double>(model.w[0][2]));
}

TEST(optimizer_refuses_before_it_writes) {
  Model model({8, 9}, 6);
  const auto w = model.w, a = model.a;
  BNNSOptimizerAdamWithClippingFields adam = plain_adam();
  const auto refused = [&](const char* start) {
    CHECK(model.step(BNNSOptimizerFunctionAdamWithClipping, &adam) != 0, "%s", start);
    CHECK(failed_with(start), "%s: %s", start, obn_last_error());
    CHECK(model.w == w && model.a == a, "%s: something was written", start);
    adam = plain_adam();
  };
  adam.time_step = 0.0f;
  refused("time_step: expected a number of at least 1; got 0");
  adam.beta1 = 1.0f;
  refused("beta1: expected at least 0 and below 1; got 1");
  adam.beta2 = std::nanf("");
  refused("beta2: expected at least 0 and below 1");
  adam.epsilon = -1.0f;
  refused("epsilon: expected a finite number of at least 0; got -1");
  adam.learning_rate = std::numeric_limits<float>::infinity();
  refused("learning_rate: expected a finite number; got inf");
  adam.regularization_func = static_cast<BNNSOptimizerRegularizationFunction>(3);
  refused("regularization_func: expected");
  adam.clipping_func = static_cast<BNNSOptimizerClippingFunction>(4);
  refused("clipping_func: expected");
  adam.clipping_func = BNNSOptimizerClippingByValue;
  adam.clip_gradients_min = 1.0f;
  refused("bounds: expected low <= high; got 1 and 0");
  adam.clipping_func = BNNSOptimizerClippingByNorm;
  adam.clip_gradients_max_norm = -1.0f;
  refused("threshold: expected at least 0; got -1");

  BNNSNDArrayDescriptor* last = model.accumulators[3];
  model.accumulators[3] = nullptr;
  refused("accumulators[3]: expected an array; got NULL");
  model.accumulators[3] = last;
  last->size[0] = 8;
  refused("accumulators[3]: expected 9 values, as its parameter; got 8");
  last->size[0] = 9;
  void* data = last->data;
  last->data = nullptr;
  refused("accumulators[3]: expected data; got NULL");
  last->data = model.w[1].data();
  refused("parameters, gradients, accumulators: expected arrays apart from each other");
  last->data = data;
  last->data_type = BNNSDataTypeFloat16;
  refused("accumulators[3]: expected float32; got float16");
  last->data_type = BNNSDataTypeFloat32;
  last->stride[0] = 2;
  refused("accumulators[3]: expected packed values");
  last->stride[0] = 0;

  CHECK(BNNSOptimizerStep(BNNSOptimizerFunctionAdamWithClipping, &adam, 2, model.parameters.data(),
                          model.gradients.data(), nullptr, nullptr) != 0 &&
            failed_with("accumulators: expected an array; got NULL"),
        "%s", obn_last_error());
  CHECK(BNNSOptimizerStep(BNNSOptimizerFunctionAdamWithClipping, nullptr, 2, model.parameters.data(),
                          model.gradients.data(), model.accumulators.data(), nullptr) != 0 &&
            failed_with("fields: expected"),
        "%s", obn_last_error());
  CHECK(BNNSOptimizerStep(BNNSOptimizerFunctionAdamWithClipping, &adam, 2, nullptr, model.gradients.data(),
                          model.accumulators.data(), nullptr) != 0 &&
            failed_with("parameters: expected arrays; got NULL"),
        "%s", obn_last_error());
  CHECK(model.step(static_cast<BNNSOptimizerFunction>(13), &adam) != 0 && failed_with("function: expected"), "%s",
        obn_last_error());
  CHECK(model.w == w && model.a == a, "something was written");
  CHECK(BNNSOptimizerStep(BNNSOptimizerFunctionAdamWithClipping, &adam, 0, nullptr, nullptr, nullptr, nullptr) == 0,
        "no parameters are no error: %s", obn_last_error());
  CHECK(model.step(BNNSOptimizerFunctionAdamWithClipping, &adam) == 0, "%s", obn_last_error());
}

// One gradient may serve two parameters: it is only read.
TEST(optimizer_shares_gradients) {
  Model model({50, 50}, 7);
  model.w[1] = model.w[0];
  model.descriptors[1].data = model.w[1].data();
  model.gradients[1] = model.gradients[0];
  BNNSOptimizerAdamWithClippingFields adam = plain_adam();
  CHECK(model.step(BNNSOptimizerFunctionAdamWithClipping, &adam) == 0, "%s", obn_last_error());
  CHECK(model.w[0] == model.w[1], "the two differ");
}
