// What the tests of the algorithms share: random problems, arrays with gaps that nobody may touch, and the comparison
// of one way to compute with the reference loops.
//
// All numbers are small multiples of 1/4, so products and sums are exact in float32 and results must be equal, not
// close.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/test.h"
#include "convolution/convolution.h"
#include "openbnns/openbnns.h"

namespace obn::convolution::test {

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  int64_t from(std::initializer_list<int64_t> choices) { return choices.begin()[below(choices.size())]; }
  float value() { return static_cast<float>(below(17)) * 0.25f - 2.0f; }
};

// (n, c, h, w) with gaps behind rows, planes and samples, and `skip` values in front so that nothing is aligned.
struct Tensor {
  size_t n, c, h, w;
  size_t row, plane, sample, skip;
  std::vector<float> values;

  Tensor(size_t n, size_t c, size_t h, size_t w, size_t gap, size_t skip = 0)
      : n(n), c(c), h(h), w(w), row(w + gap), plane(row * h + gap), sample(plane * c + gap), skip(skip),
        values(skip + sample * n, std::numeric_limits<float>::quiet_NaN()) {}
  Planes planes() { return {values.data() + skip, row, plane, sample}; }
  size_t count() const { return n * c * h * w; }
  float& at(size_t i) {
    return values[skip + i / (c * h * w) * sample + i / (h * w) % c * plane + i / w % h * row + i % w];
  }
  void fill(Random& random) {
    for (size_t i = 0; i < count(); ++i) at(i) = random.value();
  }
};

inline bool is_same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Every value the same; the memory between them as it was.
inline void check_same(Tensor& got, Tensor& expected, const char* what, const std::string& where) {
  for (size_t i = 0; i < got.values.size(); ++i) {
    if (is_same(got.values[i], expected.values[i])) continue;
    CHECK(false, "%s, %s: value at %zu is %g, expected %g", what, where.c_str(), i,
          static_cast<double>(got.values[i]), static_cast<double>(expected.values[i]));
    return;
  }
}

inline Axis make_axis(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t before, int64_t after) {
  const int64_t room = in + before + after - dilation * (kernel - 1) - 1;
  return {in, room < 0 ? 1 : room / stride + 1, kernel, stride, dilation, before};
}

inline Axis random_axis(Random& random) {
  const int64_t kernel = random.from({1, 2, 3, 3, 3, 4, 5, 5, 7, 7}), stride = random.from({1, 1, 1, 2, 2, 3, 4});
  const int64_t dilation = random.from({1, 1, 1, 2, 3});
  const int64_t before = static_cast<int64_t>(random.below(5)), after = static_cast<int64_t>(random.below(5));
  return make_axis(static_cast<int64_t>(random.between(1, 40)), kernel, stride, dilation, before, after);
}

inline std::string text_of(const Problem& s) {
  char text[200];
  auto number = [](auto v) { return static_cast<long long>(v); };
  std::snprintf(text, sizeof text, "N %lld C %lld O %lld G %lld in %lldx%lld out %lldx%lld k %lldx%lld s %lldx%lld "
                "d %lldx%lld p %lldx%lld", number(s.batch), number(s.in_channels), number(s.out_channels),
                number(s.groups), number(s.y.in), number(s.x.in), number(s.y.out), number(s.x.out),
                number(s.y.kernel), number(s.x.kernel), number(s.y.stride), number(s.x.stride),
                number(s.y.dilation), number(s.x.dilation), number(s.y.before), number(s.x.before));
  return text;
}

// Work memory of exactly the size asked for, aligned, with a canary behind.
struct Work {
  std::vector<std::byte> memory;
  size_t bytes;

  explicit Work(size_t bytes) : memory(bytes + 2 * kAlignment, std::byte{0x7f}), bytes(bytes) {}  // NaN-like floats
  std::byte* data() {
    return memory.data() + (kAlignment - reinterpret_cast<uintptr_t>(memory.data()) % kAlignment) % kAlignment;
  }
  bool is_intact() {
    return std::all_of(data() + bytes, data() + bytes + 8, [](std::byte b) { return b == std::byte{0x7f}; });
  }
};

// One problem with its data.
struct Trial {
  Problem problem;
  Tensor x, y, w, bias, in_bias;
  activation::Fused activation;

  Trial(const Problem& s, size_t gap, Random& random)
      : problem(s),
        x(s.batch, s.in_channels, static_cast<size_t>(s.y.in), static_cast<size_t>(s.x.in), gap, gap),
        y(s.batch, s.out_channels, static_cast<size_t>(s.y.out), static_cast<size_t>(s.x.out), gap, gap),
        w(s.out_channels, s.in_channels / s.groups, static_cast<size_t>(s.y.kernel),
          static_cast<size_t>(s.x.kernel), 0),
        bias(1, 1, 1, s.out_channels, 0),
        in_bias(1, 1, 1, s.in_channels, 0) {
    x.fill(random);
    y.fill(random);
    w.fill(random);
    bias.fill(random);
    in_bias.fill(random);
    BNNSActivation relu = {};
    relu.function = BNNSActivationFunctionRectifiedLinear;
    activation::Fused::read(relu, "activation", &activation);
  }
};

// Results of one way, compared with those of another. `run` fills its tensor from the trial's.
template <class Run, class Reference>
void compare(Trial& trial, Tensor start, const char* what, const std::string& on, const Run& run,
             const Reference& reference) {
  Tensor got = start, expected = start;
  run(got);
  reference(expected);
  check_same(got, expected, what, on + ": " + text_of(trial.problem));
}

template <class Pass>
void compare_forward(Trial& t, bool plain, const std::string& on, const Pass& pass) {
  auto call = [&](Tensor& y) {
    return Forward{t.x.planes(), t.w.values.data(), y.planes(), plain ? nullptr : t.bias.values.data(),
                   plain ? nullptr : &t.activation};
  };
  compare(t, t.y, plain ? "forward" : "forward with bias and activation", on,
          [&](Tensor& y) { pass(t.problem, call(y)); },
          [&](Tensor& y) { reference_forward.run(t.problem, call(y), 1, nullptr); });
}

template <class Pass>
void compare_input_gradient(Trial& t, bool plain, bool accumulate, const std::string& on, const Pass& pass) {
  auto call = [&](Tensor& dx) {
    return InputGradient{t.y.planes(), t.w.values.data(), dx.planes(), accumulate,
                         plain || accumulate ? nullptr : t.in_bias.values.data(),
                         plain || accumulate ? nullptr : &t.activation};
  };
  compare(t, t.x, accumulate ? "dx, accumulated" : plain ? "dx" : "dx with bias and activation", on,
          [&](Tensor& dx) { pass(t.problem, call(dx)); },
          [&](Tensor& dx) { reference_input_gradient.run(t.problem, call(dx), 1, nullptr); });
}

template <class Pass>
void compare_weight_gradient(Trial& t, bool accumulate, const std::string& on, const Pass& pass) {
  auto call = [&](Tensor& dw) { return WeightGradient{t.x.planes(), t.y.planes(), dw.values.data(), accumulate}; };
  compare(t, t.w, accumulate ? "dw, accumulated" : "dw", on, [&](Tensor& dw) { pass(t.problem, call(dw)); },
          [&](Tensor& dw) { reference_weight_gradient.run(t.problem, call(dw), 1, nullptr); });
}

using ::obn::test::all_targets;
using ::obn::test::Target;

// An algorithm as its tests see it: every pass for given kernels, one thread.
template <class Kernels>
struct Passes {
  const Targets<Kernels>& targets;
  bool (*fits)(const Problem&);
  size_t (*work_bytes)(const Problem&);
  void (*forward)(const Kernels&, const Problem&, const Forward&, size_t threads);
  void (*input_gradient)(const Kernels&, const Problem&, const InputGradient&, size_t threads);
  void (*weight_gradient)(const Kernels&, const Problem&, const WeightGradient&, size_t threads, std::byte* work);

  // All passes on all targets, plain or with everything that can be added.
  void check(Trial& trial, bool plain_only) const {
    const Problem& s = trial.problem;
    std::byte* work = workspace(work_bytes(s));
    for (const auto& target : all_targets(targets)) {
      const Kernels& kernels = *target.kernels;
      auto run_forward = [&](const Problem& p, const Forward& call) { forward(kernels, p, call, 1); };
      auto run_input = [&](const Problem& p, const InputGradient& call) { input_gradient(kernels, p, call, 1); };
      auto run_weights = [&](const Problem& p, const WeightGradient& call) {
        weight_gradient(kernels, p, call, 1, work);
      };
      compare_forward(trial, true, target.name, run_forward);
      compare_input_gradient(trial, true, false, target.name, run_input);
      compare_weight_gradient(trial, false, target.name, run_weights);
      if (plain_only) continue;
      compare_forward(trial, false, target.name, run_forward);
      compare_input_gradient(trial, false, false, target.name, run_input);
      compare_input_gradient(trial, true, true, target.name, run_input);
      compare_weight_gradient(trial, true, target.name, run_weights);
    }
  }
  void check(const Problem& s, size_t gap, Random& random) const {
    CHECK(fits(s), "does not fit: %s", text_of(s).c_str());
    if (!fits(s)) return;
    Trial trial(s, gap, random);
    check(trial, false);
  }
  // An infinite value reaches the outputs whose windows hold it, and no others. The problem has no padding.
  void check_infinity(const Problem& s, Random& random) const {
    Trial trial(s, 0, random);
    trial.x.at(random.below(trial.x.count())) = std::numeric_limits<float>::infinity();
    trial.y.at(random.below(trial.y.count())) = -std::numeric_limits<float>::infinity();
    for (float& weight : trial.w.values) weight = weight == 0.0f ? 1.0f : weight;
    check(trial, true);
  }
  // Numbers whose sums round: the bits must not depend on who adds them.
  void check_threads(const Problem& s, Random& random) const {
    const size_t before = obn_get_num_threads();
    obn_set_num_threads(7);
    Trial trial(s, 0, random);
    for (Tensor* tensor : {&trial.x, &trial.y, &trial.w})
      for (float& v : tensor->values) v = v * 0.3f + 0.1f;
    std::byte* work = workspace(work_bytes(s));
    Tensor y[2] = {trial.y, trial.y}, dx[2] = {trial.x, trial.x}, dw[2] = {trial.w, trial.w};
    const size_t threads[2] = {1, 7};
    const float* w = trial.w.values.data();
    for (size_t i = 0; i < 2; ++i) {
      const Kernels& kernels = targets.best();
      forward(kernels, s, {trial.x.planes(), w, y[i].planes(), nullptr, nullptr}, threads[i]);
      input_gradient(kernels, s, {trial.y.planes(), w, dx[i].planes(), false, nullptr, nullptr}, threads[i]);
      weight_gradient(kernels, s, {trial.x.planes(), trial.y.planes(), dw[i].values.data(), false}, threads[i], work);
    }
    check_same(y[1], y[0], "forward", "7 threads");
    check_same(dx[1], dx[0], "dx", "7 threads");
    check_same(dw[1], dw[0], "dw", "7 threads");
    obn_set_num_threads(before);
  }
};

}  // namespace obn::convolution::test
