// Direct convolution: every target against the formulas. Numbers are small multiples of 1/4, so that all sums are exact
// and every comparison is one of bits; memory between the rows is compared too.
#include "convolution/direct/direct.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "base/memory.h"
#include "base/system.h"
#include "base/test.h"

namespace obn::convolution::direct {
namespace {

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  float value() { return static_cast<float>(between(-8, 8)) * 0.25f; }
  float real() { return static_cast<float>(between(-100000, 100000)) * 1e-5f; }
};

using Target = ::obn::test::Target<Kernels>;
std::vector<Target> all_targets() { return ::obn::test::all_targets(targets); }

// Images with gaps that nobody may touch.
struct Images {
  std::vector<float> memory;
  size_t n, c, h, w, row, plane, sample;

  Images(size_t n, size_t c, int64_t height, int64_t width, size_t row_gap, size_t gap)
      : n(n), c(c), h(static_cast<size_t>(height)), w(static_cast<size_t>(width)) {
    row = w + row_gap;
    plane = row * h + gap;
    sample = plane * c + 2 * gap;
    memory.assign(sample * n + 1, 77.0f);
  }
  Planes planes() { return {memory.data() + 1, row, plane, sample}; }  // off by one: not aligned
  float& at(size_t i, size_t j, size_t v, size_t u) {
    return memory[1 + i * sample + j * plane + v * row + u];
  }
  template <class Value>
  void fill(const Value& value) {
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < c; ++j)
        for (size_t v = 0; v < h; ++v)
          for (size_t u = 0; u < w; ++u) at(i, j, v, u) = value();
  }
};

// `work` of a given size, full of NaN, with a fence behind it; scratch is spoilt as well.
struct Work {
  static constexpr size_t kFence = 256;
  size_t bytes;
  std::byte* data;

  explicit Work(size_t n) : bytes(n) {
    const size_t all = (n + kFence + kAlignment - 1) / kAlignment * kAlignment;
    data = static_cast<std::byte*>(allocate_aligned(kAlignment, all));
    std::memset(data, 0xff, all);
    std::memset(scratch(), 0xff, kScratchBytes);
  }
  ~Work() { free_aligned(data); }
  bool is_intact() const {
    return std::all_of(data + bytes, data + bytes + kFence, [](std::byte b) { return b == std::byte{0xff}; });
  }
};

size_t first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    return i;
  }
  return a.size();
}

int64_t windows(const Axis& a, int64_t after) {
  return (a.in + a.before + after - a.dilation * (a.kernel - 1) - 1) / a.stride + 1;
}

struct Case {
  Problem problem;
  size_t row_gap = 0, gap = 0;
  bool accumulate = false, has_bias = false;
  const activation::Fused* activation = nullptr;
};

void say(const Case& test, char (&text)[256]) {
  const Problem& s = test.problem;
  std::snprintf(text, sizeof text,
                "N%zu %zu->%zu G%zu, x: in %lld out %lld k%lld s%lld d%lld p%lld, "
                "y: in %lld out %lld k%lld s%lld d%lld p%lld, gaps %zu %zu%s%s",
                s.batch, s.in_channels, s.out_channels, s.groups, static_cast<long long>(s.x.in),
                static_cast<long long>(s.x.out), static_cast<long long>(s.x.kernel),
                static_cast<long long>(s.x.stride), static_cast<long long>(s.x.dilation),
                static_cast<long long>(s.x.before), static_cast<long long>(s.y.in), static_cast<long long>(s.y.out),
                static_cast<long long>(s.y.kernel), static_cast<long long>(s.y.stride),
                static_cast<long long>(s.y.dilation), static_cast<long long>(s.y.before), test.row_gap, test.gap,
                test.accumulate ? " accumulate" : "", test.has_bias ? " bias" : "");
}

struct Data {
  Images x, z;  // input and output of the forward pass
  std::vector<float> w, bias_out, bias_in;

  Data(const Case& test, Random& random, bool exact = true)
      : x(test.problem.batch, test.problem.in_channels, test.problem.y.in, test.problem.x.in, test.row_gap, test.gap),
        z(test.problem.batch, test.problem.out_channels, test.problem.y.out, test.problem.x.out, test.row_gap,
          test.gap) {
    const Problem& s = test.problem;
    auto value = [&] { return exact ? random.value() : random.real(); };
    x.fill(value);
    z.fill(value);
    w.resize(s.out_channels * (s.in_channels / s.groups) * static_cast<size_t>(s.x.kernel * s.y.kernel));
    std::generate(w.begin(), w.end(), value);
    bias_out.resize(s.out_channels);
    std::generate(bias_out.begin(), bias_out.end(), value);
    bias_in.resize(s.in_channels);
    std::generate(bias_in.begin(), bias_in.end(), value);
  }
};

Images run_forward(const Kernels* kernels, const Case& test, Data& data, size_t threads = 1) {
  const Problem& s = test.problem;
  Images y = data.z;
  const Forward f = {data.x.planes(), data.w.data(), y.planes(), test.has_bias ? data.bias_out.data() : nullptr,
                     test.activation};
  if (!kernels) {
    reference_forward.run(s, f, 1, nullptr);
    return y;
  }
  CHECK(fits_forward(*kernels, s), "forward does not fit");
  const Work work(forward_bytes(*kernels, s));
  forward(*kernels, s, f, threads, work.data);
  CHECK(work.is_intact(), "forward wrote behind its workspace");
  return y;
}

Images run_input_gradient(const Kernels* kernels, const Case& test, Data& data, size_t threads = 1) {
  const Problem& s = test.problem;
  Images dx = data.x;
  const bool plain = test.accumulate;  // bias and activation only without it
  const InputGradient g = {data.z.planes(), data.w.data(), dx.planes(), test.accumulate,
                           test.has_bias && !plain ? data.bias_in.data() : nullptr, plain ? nullptr : test.activation};
  if (!kernels) {
    reference_input_gradient.run(s, g, 1, nullptr);
    return dx;
  }
  CHECK(fits_input_gradient(*kernels, s), "input gradient does not fit");
  const Work work(input_gradient_bytes(*kernels, s));
  input_gradient(*kernels, s, g, threads, work.data);
  CHECK(work.is_intact(), "input gradient wrote behind its workspace");
  return dx;
}

std::vector<float> run_weight_gradient(const Kernels* kernels, const Case& test, Data& data, size_t threads = 1) {
  const Problem& s = test.problem;
  std::vector<float> dw = data.w;
  const WeightGradient g = {data.x.planes(), data.z.planes(), dw.data(), test.accumulate};
  if (!kernels) {
    reference_weight_gradient.run(s, g, 1, nullptr);
    return dw;
  }
  CHECK(fits_weight_gradient(*kernels, s), "weight gradient does not fit");
  const Work work(weight_gradient_bytes(*kernels, s));
  weight_gradient(*kernels, s, g, threads, work.data);
  CHECK(work.is_intact(), "weight gradient wrote behind its workspace");
  return dw;
}

void compare(const char* pass, const Target& target, const Case& test, const std::vector<float>& got,
             const std::vector<float>& expected) {
  const size_t i = first_difference(got, expected);
  char text[256];
  say(test, text);
  CHECK(i == got.size(), "%s on %s: value %zu is %g, expected %g (%s)", pass, target.name, i,
        static_cast<double>(got[i]), static_cast<double>(expected[i]), text);
}

// All passes on all targets.
void check(const Case& test, Random& random) {
  Data data(test, random);
  const Images y = run_forward(nullptr, test, data), dx = run_input_gradient(nullptr, test, data);
  const std::vector<float> dw = run_weight_gradient(nullptr, test, data);
  for (const Target& target : all_targets()) {
    compare("forward", target, test, run_forward(target.kernels, test, data).memory, y.memory);
    compare("input gradient", target, test, run_input_gradient(target.kernels, test, data).memory, dx.memory);
    compare("weight gradient", target, test, run_weight_gradient(target.kernels, test, data), dw);
  }
}

Axis axis(int64_t in, int64_t kernel, int64_t stride, int64_t before, int64_t after, int64_t dilation = 1) {
  Axis a = {in, 0, kernel, stride, dilation, before};
  a.out = windows(a, after);
  return a;
}

Case square(size_t n, size_t in, size_t out, int64_t size, int64_t kernel, int64_t stride, int64_t padding) {
  const Axis a = axis(size, kernel, stride, padding, padding);
  return {{n, in, out, 1, a, a}};
}

TEST(direct_random_shapes) {
  Random random{1};
  for (int i = 0; i < 400; ++i) {
    Case test;
    Problem& s = test.problem;
    s.batch = static_cast<size_t>(random.between(1, 3));
    s.groups = static_cast<size_t>(random.between(0, 3) ? 1 : random.between(2, 3));
    s.in_channels = s.groups * static_cast<size_t>(random.between(1, 9));
    s.out_channels = s.groups * static_cast<size_t>(random.between(1, random.between(0, 3) ? 20 : 70));
    for (Axis* a : {&s.x, &s.y}) {
      do {
        *a = axis(random.between(1, a == &s.x ? 40 : 12), random.between(1, random.between(0, 4) ? 4 : 9),
                  random.between(1, random.between(0, 2) ? 2 : 6), random.between(0, random.between(0, 4) ? 2 : 12),
                  random.between(0, 3), random.between(0, 3) ? 1 : random.between(1, 4));
      } while (a->in + a->before + 3 < a->dilation * (a->kernel - 1) + 1 || a->out < 1);
    }
    test.row_gap = static_cast<size_t>(random.between(0, 1) * random.between(0, 3));
    test.gap = static_cast<size_t>(random.between(0, 1) * random.between(0, 5));
    test.accumulate = random.between(0, 2) == 0;
    test.has_bias = random.between(0, 1) == 0;
    check(test, random);
  }
}

TEST(direct_every_tail) {
  Random random{2};
  for (size_t out = 1; out <= 34; ++out) check(square(1, 3, out, 5, 3, 1, 1), random);  // rows of a panel, lanes of dz
  for (int64_t width = 1; width <= 68; ++width) {                                       // columns of a tile
    Case test = {{1, 2, 5, 1, axis(width, 3, 1, 1, 1), axis(2, 3, 1, 1, 1)}};
    check(test, random);
    test.problem.x = axis(width, 2, 2, 1, 1);
    check(test, random);
    test.problem.x = axis(width, 1, 1, 0, 0);
    check(test, random);
    test.problem.y = axis(2, 1, 1, 0, 0);  // one row for the algorithm
    check(test, random);
    test.row_gap = 3;
    check(test, random);
  }
}

TEST(direct_odd_shapes) {
  Random random{3};
  check(square(2, 3, 4, 1, 1, 1, 0), random);     // planes of one pixel
  check(square(2, 3, 4, 1, 3, 1, 1), random);     // all taps but one meet padding only
  check(square(1, 2, 3, 5, 9, 1, 4), random);     // kernel larger than the image
  check(square(1, 2, 3, 4, 3, 1, 7), random);     // windows that see padding only
  check(square(1, 2, 3, 11, 2, 5, 0), random);    // stride larger than the kernel: input that no window reads
  check(square(1, 2, 3, 3, 1, 7, 0), random);     // stride larger than the image
  check({{2, 4, 6, 2, axis(9, 3, 2, 0, 3, 2), axis(7, 2, 3, 2, 0, 3)}, 2, 3, true, false}, random);
  check({{1, 1, 1, 1, axis(2000, 5, 1, 2, 2), axis(1, 1, 1, 0, 0)}}, random);        // blocks of columns
  check({{1, 3, 2, 1, axis(1500, 4, 2, 1, 1), axis(3, 2, 1, 0, 0)}}, random);
  check({{1, 2, 1, 1, axis(9000, 3, 1, 4000, 4000, 4000), axis(1, 1, 1, 0, 0)}}, random);  // far taps
}

// Many channels: frames in parts, k in parts, sums in parts.
TEST(direct_many_channels) {
  Random random{4};
  check(square(1, 300, 40, 6, 3, 1, 1), random);
  check(square(1, 40, 300, 6, 3, 1, 1), random);
  check(square(2, 130, 90, 7, 1, 1, 0), random);
  Case wide = {{1, 700, 30, 1, axis(40, 3, 1, 60, 60, 60), axis(8, 3, 1, 60, 60, 60)}};
  check(wide, random);
  wide.accumulate = true;
  check(wide, random);
  wide.problem.x.stride = wide.problem.y.stride = 2;
  wide.problem.x.out = windows(wide.problem.x, 60);
  wide.problem.y.out = windows(wide.problem.y, 60);
  check(wide, random);
}

// One tap on long rows: strips of columns, whose last tile is full, half full or has a few columns.
TEST(direct_strips) {
  Random random{9};
  for (int64_t width : {640, 641, 655, 656, 657, 1003}) {
    Case test = {{2, 7, 30, 1, axis(width, 1, 1, 0, 0), axis(1, 1, 1, 0, 0)}};
    check(test, random);
    test.problem.groups = 2;
    test.problem.in_channels = 6;
    test.has_bias = true;
    test.gap = 5;
    check(test, random);
    test.has_bias = false;
    test.accumulate = true;
    check(test, random);
  }
  check(square(1, 300, 31, 25, 1, 1, 0), random);  // k in parts
  check(square(1, 31, 300, 25, 1, 1, 0), random);
  check(square(3, 20, 9, 24, 1, 1, 0), random);
  BNNSActivation description = {};
  description.function = BNNSActivationFunctionRectifiedLinear;
  activation::Fused relu;
  CHECK(activation::Fused::read(description, "activation", &relu) == 0, "relu refused");
  Case test = square(2, 20, 33, 27, 1, 1, 0);
  test.has_bias = true;
  test.activation = &relu;
  check(test, random);
}

TEST(direct_activation_follows_bias) {
  Random random{5};
  BNNSActivation description = {};
  description.function = BNNSActivationFunctionRectifiedLinear;
  activation::Fused relu;
  CHECK(activation::Fused::read(description, "activation", &relu) == 0, "relu refused");
  for (int64_t stride = 1; stride <= 3; ++stride) {
    for (int64_t kernel : {1, 3, 4}) {
      Case test = square(2, 5, 17, 33, kernel, stride, kernel / 2);
      test.has_bias = true;
      test.activation = &relu;
      check(test, random);
    }
  }
}

TEST(direct_same_bits_for_any_number_of_threads) {
  Random random{6};
  for (const Case& test : {square(2, 40, 48, 20, 3, 1, 1), square(3, 64, 70, 21, 1, 1, 0),
                           square(2, 96, 20, 40, 1, 1, 0), square(5, 3, 32, 40, 7, 2, 3),
                           square(2, 32, 24, 30, 4, 2, 1)}) {
    Data data(test, random, false);
    for (const Target& target : all_targets()) {
      const Images y = run_forward(target.kernels, test, data), dx = run_input_gradient(target.kernels, test, data);
      const std::vector<float> dw = run_weight_gradient(target.kernels, test, data);
      for (size_t threads : {2, 3, 7}) {
        compare("forward", target, test, run_forward(target.kernels, test, data, threads).memory, y.memory);
        compare("input gradient", target, test, run_input_gradient(target.kernels, test, data, threads).memory,
                dx.memory);
        compare("weight gradient", target, test, run_weight_gradient(target.kernels, test, data, threads), dw);
      }
    }
  }
}

// A NaN or infinity reaches the values whose window holds it, and no others.
TEST(direct_nan_stays_local) {
  Random random{7};
  for (float spoilt : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const Case& test : {square(1, 3, 5, 19, 3, 1, 1), square(1, 3, 5, 19, 3, 2, 1), square(1, 2, 17, 18, 1, 1, 0),
                             square(2, 3, 5, 9, 5, 3, 2), square(1, 2, 3, 7, 2, 1, 0), square(1, 2, 3, 20, 3, 1, 0)}) {
      for (int i = 0; i < 12; ++i) {
        Data data(test, random);
        auto pick = [&](Images& images) {
          images.at(0, images.c - 1, static_cast<size_t>(random.between(0, static_cast<int64_t>(images.h) - 1)),
                    static_cast<size_t>(random.between(0, static_cast<int64_t>(images.w) - 1))) = spoilt;
        };
        for (float& w : data.w) w = w == 0.0f ? 1.0f : w;  // 0 · infinity is NaN, in any order
        pick(data.x);
        const Images y = run_forward(nullptr, test, data);
        const std::vector<float> dw = run_weight_gradient(nullptr, test, data);
        for (const Target& target : all_targets()) {
          compare("forward", target, test, run_forward(target.kernels, test, data).memory, y.memory);
          compare("weight gradient", target, test, run_weight_gradient(target.kernels, test, data), dw);
        }
        pick(data.z);
        const Images dx = run_input_gradient(nullptr, test, data);
        for (const Target& target : all_targets())
          compare("input gradient", target, test, run_input_gradient(target.kernels, test, data).memory, dx.memory);
      }
    }
  }
}

// Real numbers: the error of a float32 sum, not more.
TEST(direct_rounding) {
  Random random{8};
  for (const Case& test : {square(2, 64, 33, 14, 3, 1, 1), square(2, 50, 64, 28, 3, 2, 1),
                           square(4, 100, 20, 20, 1, 1, 0)}) {
    Data data(test, random, false);
    const Images y = run_forward(nullptr, test, data), dx = run_input_gradient(nullptr, test, data);
    const std::vector<float> dw = run_weight_gradient(nullptr, test, data);
    for (const Target& target : all_targets()) {
      auto worst = [](const std::vector<float>& a, const std::vector<float>& b) {
        float difference = 0.0f, largest = 0.0f;
        for (size_t i = 0; i < a.size(); ++i) {
          difference = std::max(difference, std::fabs(a[i] - b[i]));
          if (b[i] != 77.0f) largest = std::max(largest, std::fabs(b[i]));
        }
        return difference / largest;
      };
      const float errors[] = {worst(run_forward(target.kernels, test, data).memory, y.memory),
                              worst(run_input_gradient(target.kernels, test, data).memory, dx.memory),
                              worst(run_weight_gradient(target.kernels, test, data), dw)};
      for (float error : errors)
        CHECK(error < 2e-6f, "%s: error %g of the largest value", target.name, static_cast<double>(error));
    }
  }
}

TEST(direct_says_when_it_does_not_fit) {
  for (const Target& target : all_targets()) {
    const Axis far = {3000000, 1, 2, 1, 2999999, 0}, one = {1, 1, 1, 1, 1, 0};
    const Problem s = {1, 1, 1, 1, far, one};
    CHECK(!fits_forward(*target.kernels, s), "%s", target.name);
    CHECK(!fits_weight_gradient(*target.kernels, s), "%s", target.name);
    CHECK(fits_forward(*target.kernels, square(1, 8, 8, 8, 3, 1, 1).problem), "%s", target.name);
  }
}

}  // namespace
}  // namespace obn::convolution::direct
