// Winograd for stride 2: every target against the formulas in float64, its error against that of a plain float32 loop,
// how far a strange value reaches, and the same bits for any number of threads.
#include "convolution/winograd_strided.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/test.h"
#include "convolution/algorithm_test.h"

namespace obn::convolution {
namespace {

using test::make_axis;
using test::Random;
using test::Tensor;
using test::text_of;
using test::Trial;
using test::Work;
using winograd::strided::Kernels;

using Target = test::Target<Kernels>;

std::vector<Target> all_targets() { return test::all_targets(winograd::strided::targets); }

struct Shape {
  size_t n, c, o;
  int64_t h, w;
  int64_t kh = 4, kw = 4;
  int64_t up = 1, left = 1;
  int64_t down = 1, right = 1;
  size_t gap = 0;
};

Problem problem_of(const Shape& s) {
  return {s.n, s.c, s.o, 1, make_axis(s.w, s.kw, 2, 1, s.left, s.right), make_axis(s.h, s.kh, 2, 1, s.up, s.down)};
}

// Values whose sums round.
void fill(Tensor& t, Random& random) {
  for (size_t i = 0; i < t.count(); ++i)
    t.at(i) = static_cast<float>(static_cast<double>(random.below(1 << 20)) * 0x1p-19 - 1.0);
}
Trial trial_of(const Shape& s) {
  Random random{1 + s.n + 3 * s.c + 5 * s.o + 7 * static_cast<uint64_t>(s.h) + 11 * static_cast<uint64_t>(s.w)};
  Trial trial(problem_of(s), s.gap, random);
  for (Tensor* t : {&trial.x, &trial.y, &trial.w, &trial.bias, &trial.in_bias}) fill(*t, random);
  return trial;
}

// The three passes of a trial into copies of y, x and w.
Tensor forward(const Target& on, Trial& t, bool plain, size_t threads = 2) {
  Tensor y = t.y;
  Work work(winograd::strided::forward_bytes(*on.kernels, t.problem));
  winograd::strided::forward(*on.kernels, t.problem,
                             {t.x.planes(), t.w.values.data(), y.planes(), plain ? nullptr : t.bias.values.data(),
                              plain ? nullptr : &t.activation},
                             threads, work.data());
  CHECK(work.is_intact(), "forward on %s wrote behind its work", on.name);
  return y;
}
Tensor input_gradient(const Target& on, Trial& t, bool plain, bool accumulate, size_t threads = 2) {
  Tensor dx = t.x;
  Work work(winograd::strided::input_gradient_bytes(*on.kernels, t.problem));
  winograd::strided::input_gradient(*on.kernels, t.problem,
                                    {t.y.planes(), t.w.values.data(), dx.planes(), accumulate,
                                     plain ? nullptr : t.in_bias.values.data(), plain ? nullptr : &t.activation},
                                    threads, work.data());
  CHECK(work.is_intact(), "input gradient on %s wrote behind its work", on.name);
  return dx;
}
Tensor weight_gradient(const Target& on, Trial& t, bool accumulate, size_t threads = 2) {
  Tensor dw = t.w;
  Work work(winograd::strided::weight_gradient_bytes(*on.kernels, t.problem));
  winograd::strided::weight_gradient(*on.kernels, t.problem,
                                     {t.x.planes(), t.y.planes(), dw.values.data(), accumulate}, threads, work.data());
  CHECK(work.is_intact(), "weight gradient on %s wrote behind its work", on.name);
  return dw;
}

// All values within `tolerance`, the gaps untouched.
void check_close(Tensor got, Tensor expected, double tolerance, const char* what, const Target& target,
                 const Problem& problem) {
  for (size_t i = 0; i < got.count(); ++i) {
    const double a = got.at(i), b = expected.at(i);
    CHECK(std::fabs(a - b) <= tolerance, "%s on %s, %s: value %zu is %g, expected %g", what, target.name,
          text_of(problem).c_str(), i, a, b);
    got.at(i) = expected.at(i) = 0.0f;
  }
  for (size_t i = 0; i < got.values.size(); ++i)
    CHECK(test::is_same(got.values[i], expected.values[i]), "%s on %s: memory between the values was touched", what,
          target.name);
}

// A sum of `terms` products is about √terms / 3; what float32 loses on the way is below 1e-5 of that.
double tolerance_for(size_t terms) { return 4e-6 * std::sqrt(static_cast<double>(terms)); }

void check_all(const Shape& s) {
  Trial t = trial_of(s);
  const Problem& p = t.problem;
  CHECK(winograd::strided::is_possible(p), "not possible: %s", text_of(p).c_str());
  const size_t taps = t.w.h * t.w.w;
  const float* w = t.w.values.data();
  for (bool plain : {true, false}) {
    const activation::Fused* activation = plain ? nullptr : &t.activation;
    Tensor y = t.y, dx = t.x;
    reference_forward.run(p, {t.x.planes(), w, y.planes(), plain ? nullptr : t.bias.values.data(), activation}, 1,
                          nullptr);
    reference_input_gradient.run(
        p, {t.y.planes(), w, dx.planes(), false, plain ? nullptr : t.in_bias.values.data(), activation}, 1, nullptr);
    for (const Target& on : all_targets()) {
      check_close(forward(on, t, plain), y, tolerance_for(taps * s.c + 1), "forward", on, p);
      check_close(input_gradient(on, t, plain, false), dx, tolerance_for(taps * s.o + 1), "dx", on, p);
    }
  }
  Tensor dx = t.x;
  reference_input_gradient.run(p, {t.y.planes(), w, dx.planes(), true, nullptr, nullptr}, 1, nullptr);
  for (const Target& on : all_targets())
    check_close(input_gradient(on, t, true, true), dx, tolerance_for(taps * s.o + 1), "dx, accumulated", on, p);
  for (bool accumulate : {false, true}) {
    Tensor dw = t.w;
    reference_weight_gradient.run(p, {t.x.planes(), t.y.planes(), dw.values.data(), accumulate}, 1, nullptr);
    for (const Target& on : all_targets())
      check_close(weight_gradient(on, t, accumulate), dw, tolerance_for(s.n * t.y.h * t.y.w + 1),
                  accumulate ? "dw, accumulated" : "dw", on, p);
  }
}

// ---- against the formulas ----

TEST(winograd_strided_planes_of_every_size) {
  for (int64_t k : {3, 4}) {
    for (int64_t h = 1; h <= 19; ++h) check_all({2, 5, 7, h, 20 - h, k, k});
    for (int64_t w : {25, 26, 27, 28, 33, 65, 70}) check_all({1, 3, 4, 6, w, k, k});
  }
}

TEST(winograd_strided_channels_of_every_number) {
  for (size_t c : {1, 2, 4, 8, 15, 16, 17, 31, 33, 48, 65}) {
    check_all({1, c, 9, 11, 14, 3, 4});
    check_all({1, 9, c, 11, 14, 4, 3});
  }
}

TEST(winograd_strided_padding_of_every_kind) {
  for (int64_t up = 0; up <= 4; ++up)
    for (int64_t left = 0; left <= 4; ++left)
      for (int64_t k : {3, 4}) check_all({2, 4, 6, 13, 12, k, 7 - k, up, left, left, up});
  check_all({1, 4, 6, 5, 6, 4, 4, 9, 7, 8, 12});   // windows without an image below them
  check_all({1, 4, 6, 15, 16, 3, 3, 0, 0, 0, 0});  // rows and columns that no window reads
}

TEST(winograd_strided_unaligned_planes_with_gaps) {
  for (size_t gap : {1, 3}) check_all({3, 5, 18, 18, 17, 4, 3, 1, 1, 1, 1, gap});
  check_all({2, 17, 20, 40, 71, 3, 4, 1, 1, 1, 1, 2});
}

TEST(winograd_strided_many_tiles) {
  check_all({2, 20, 36, 60, 142});           // several blocks across and down
  check_all({12, 24, 40, 34, 30, 3, 3});     // Σ V · Y in parts
  check_all({2, 100, 72, 28, 30});           // weights beyond the second-level cache
}

// ---- accuracy ----

struct Error {
  double largest = 0, squares = 0;

  void add(double got, double expected) {
    const double e = std::fabs(got - expected);
    largest = std::max(largest, e);
    squares += e * e;
  }
};

void check_error(const Error& ours, const Error& plain, const char* what, const Target& target, const Problem& p) {
  CHECK(ours.largest <= 4 * plain.largest && ours.squares <= 16 * plain.squares,
        "%s on %s, %s: largest error %g times, rms error %g times the plain loop's", what, target.name,
        text_of(p).c_str(), ours.largest / plain.largest, std::sqrt(ours.squares / plain.squares));
}

// The formulas once more: every sum in the order of its terms, in float32 with one accumulator and in float64.
struct Sums {
  std::vector<float> rounded;
  std::vector<double> exact;

  explicit Sums(size_t n) : rounded(n), exact(n) {}
  void add(size_t i, float a, float b) {
    rounded[i] += a * b;
    exact[i] += static_cast<double>(a) * b;
  }
};
template <class Use>  // use(index in x, in w, in y)
void for_products(const Problem& p, const Use& use) {
  const auto size = [](int64_t v) { return static_cast<size_t>(v); };
  for (size_t n = 0; n < p.batch; ++n)
    for (size_t o = 0; o < p.out_channels; ++o)
      for (size_t c = 0; c < p.in_channels; ++c)
        for (int64_t i = 0; i < p.y.out * p.x.out; ++i)
          for (int64_t k = 0; k < p.y.kernel * p.x.kernel; ++k) {
            const int64_t v = p.y.at(i / p.x.out, k / p.x.kernel), u = p.x.at(i % p.x.out, k % p.x.kernel);
            if (v < 0 || v >= p.y.in || u < 0 || u >= p.x.in) continue;
            use((n * p.in_channels + c) * size(p.y.in * p.x.in) + size(v * p.x.in + u),
                (o * p.in_channels + c) * size(p.y.kernel * p.x.kernel) + size(k),
                (n * p.out_channels + o) * size(p.y.out * p.x.out) + size(i));
          }
}

TEST(winograd_strided_error_is_at_most_four_times_that_of_a_plain_loop) {
  for (int64_t k : {3, 4}) {
    for (size_t channels : {16, 64}) {
      Trial t = trial_of({2, channels, 80 - channels, 28, 30, k, k});
      Sums y(t.y.count()), dx(t.x.count()), dw(t.w.count());
      for_products(t.problem, [&](size_t i, size_t j, size_t o) {
        const float a = t.x.values[i], b = t.w.values[j], c = t.y.values[o];
        y.add(o, a, b);
        dx.add(i, b, c);
        dw.add(j, a, c);
      });
      for (const Target& on : all_targets()) {
        const auto check = [&](const Sums& sums, Tensor got, const char* what) {
          Error plain, ours;
          for (size_t i = 0; i < got.count(); ++i) {
            plain.add(sums.rounded[i], sums.exact[i]);
            ours.add(got.values[i], sums.exact[i]);
          }
          check_error(ours, plain, what, on, t.problem);
        };
        check(y, forward(on, t, true), "forward");
        check(dx, input_gradient(on, t, true, false), "dx");
        check(dw, weight_gradient(on, t, false), "dw");
      }
    }
  }
}

// ---- what is not local ----

// Inputs 8t - 1 … 8t + 8 (padding 1) and outputs 4t … 4t + 3 of one sample belong together, on both axes; a short tile
// ends earlier. Everything else has the very bits that it has without the strange value.
TEST(winograd_strided_strange_values_stay_in_their_tiles) {
  Trial t = trial_of({2, 9, 18, 44, 58});
  Random random{9};
  for (const Target& on : all_targets()) {
    Tensor clean = forward(on, t, true);
    for (float strange : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
      const size_t v = random.below(44), u = random.below(58), c = random.below(9);
      float& value = t.x.at(((9 + c) * 44 + v) * 58 + u);
      const float kept = value;
      value = strange;
      Tensor got = forward(on, t, true);
      value = kept;
      for (size_t i = 0; i < got.count(); ++i) {
        const size_t n = i / (got.w * got.h * got.c), row = i / got.w % got.h, column = i % got.w;
        const size_t p = row / 4 * 8, q = column / 4 * 8;
        const bool may = n == 1 && v + 1 >= p && v <= p + 8 && u + 1 >= q && u <= q + 8;
        const bool must = n == 1 && v + 1 >= 2 * row && v <= 2 * row + 2 && u + 1 >= 2 * column && u <= 2 * column + 2;
        CHECK(may || got.at(i) == clean.at(i), "%g on %s at (%zu, %zu) reaches value %zu",
              static_cast<double>(strange), on.name, v, u, i);
        CHECK(!must || !std::isnan(strange) || std::isnan(got.at(i)),
              "NaN on %s at (%zu, %zu) does not reach value %zu", on.name, v, u, i);
      }
    }
  }
}

// ---- promises ----

TEST(winograd_strided_same_bits_for_any_number_of_threads) {
  for (const Shape& shape : {Shape{5, 20, 34, 44, 54}, Shape{12, 24, 40, 34, 30, 3, 3}}) {
    Trial t = trial_of(shape);
    for (const Target& on : all_targets()) {
      Tensor y = forward(on, t, false, 1), dx = input_gradient(on, t, true, true, 1);
      Tensor dw = weight_gradient(on, t, false, 1);
      for (size_t threads : {2, 7}) {
        Tensor y2 = forward(on, t, false, threads), dx2 = input_gradient(on, t, true, true, threads);
        Tensor dw2 = weight_gradient(on, t, false, threads);
        check_same(y2, y, "forward", on.name);
        check_same(dx2, dx, "dx", on.name);
        check_same(dw2, dw, "dw", on.name);
      }
    }
  }
}

TEST(winograd_strided_fits_only_what_it_can) {
  const Problem good = problem_of({1, 64, 64, 56, 56});
  const auto fits = [](const Problem& p) {
    return winograd_strided_forward.fits(p) || winograd_strided_input_gradient.fits(p) ||
           winograd_strided_weight_gradient.fits(p);
  };
  CHECK(winograd_strided_forward.fits(good) && winograd_strided_input_gradient.fits(good) &&
            winograd_strided_weight_gradient.fits(good),
        "64 channels of 56x56 should fit");
  Problem bad = good;
  bad.groups = 2;
  CHECK(!fits(bad), "groups fit");
  bad = good;
  bad.x.stride = 1;
  CHECK(!fits(bad), "stride 1 fits");
  bad = good;
  bad.y.dilation = 2;
  CHECK(!fits(bad), "dilation 2 fits");
  bad = good;
  bad.y.kernel = 5;
  CHECK(!fits(bad), "5x4 fits");
  CHECK(!fits(problem_of({1, 3, 64, 56, 56})), "3 channels fit");
  CHECK(!fits(problem_of({1, 512, 512, 56, 56})), "weights of 100 MB fit");
}

}  // namespace
}  // namespace obn::convolution
