// Fused layers, pairs that are done as one layer: against float64, its differences and the two layers.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "fused/fused_test.h"

namespace obn::fused {

using namespace test;

namespace {

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

TEST(fused_few_channels_agrees_with_float64_and_its_differences) {
  for (BNNSActivationFunction activation : {BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear}) {
    for (size_t c : {1, 2}) {
      for (size_t stride : {1, 2}) {
        Setup s = few_channels_setup();
        s.activation = activation;
        s.c = c;
        s.o = 7 * c * c * c;
        s.stride = stride;
        s.h = 8 * stride;
        s.w = 8 * stride + 1;
        if (c == 2) s.kernel = 2;
        CHECK(s.has_few_channels(), "%s", s.text().c_str());
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
TEST(fused_few_channels_is_as_near_to_float64_as_the_two_layers) {
  for (size_t pad : {0, 1}) {
    Setup s = few_channels_setup();
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
TEST(fused_few_channels_constant_images) {
  for (double value : {0.0, 0.1, -1234.5}) {
    Setup s = few_channels_setup();
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

TEST(fused_few_channels_not_a_number_stays_one) {
  Setup s = few_channels_setup();
  Pair pair(s, 3);
  pair.x[0].set(50, std::nan(""));
  if (!pair.make_fused()) return;
  CHECK(pair.apply() == 0, "%s", obn_last_error());
  for (size_t i = 0; i < pair.y.count(); ++i) CHECK(std::isnan(pair.y.get(i)), "y at %zu is %g", i, pair.y.get(i));
}

TEST(fused_few_channels_any_number_of_threads_gives_the_same_bits) {
  for (size_t c : {1, 3}) {
    Setup s = few_channels_setup();
    s.n = 9;
    s.c = c;
    s.o = 48;
    s.h = 37;
    s.w = 41;
    s.has_moving = true;
    CHECK(s.has_few_channels(), "%s", s.text().c_str());
    check_threads(s);
  }
}

// The input may be gone or changed when dβ and dγ alone are asked for; an inference in between changes nothing.
TEST(fused_few_channels_keeps_what_its_gradients_need) {
  const Setup s = few_channels_setup();
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

}  // namespace obn::fused
