// Every algorithm, as layers run it, against the reference loops: numbers whose sums round, special values, several
// threads, and work memory of just the size it asked for.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "convolution/algorithm_test.h"

namespace obn::convolution {
namespace {

using test::make_axis;
using test::Random;
using test::Tensor;
using test::Trial;

// Memory as an algorithm asked for it, full of NaN and with an end that must stay as it is.
struct Work {
  static constexpr size_t kEnd = 256;
  size_t bytes;
  std::vector<std::byte> memory;

  explicit Work(size_t bytes) : bytes(bytes), memory(bytes + kEnd + kAlignment, std::byte{0xff}) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (kAlignment - address % kAlignment) % kAlignment;
  }
  bool is_intact() {
    return std::all_of(data() + bytes, data() + bytes + kEnd, [](std::byte b) { return b == std::byte{0xff}; });
  }
};

// A problem with its data and with what passes its results on.
struct Run : Trial {
  Tensor dz;  // y, but special: where a window hangs over the image, a weight gradient may multiply dz by the padding
  bool is_special;  // some values of x and dz are NaN, infinite or huge

  Run(const Problem& s, size_t gap, bool special, Random& random) : Trial(s, gap, random), dz(y), is_special(special) {
    for (Tensor* tensor : {&x, &y, &w, &bias, &in_bias})
      for (float& value : tensor->values) value = value * 0.3f + 0.1f;
    dz = y;
    BNNSActivation leaky = {};
    leaky.function = BNNSActivationFunctionLeakyRectifiedLinear;
    leaky.alpha = 0.25f;
    activation::Fused::read(leaky, "activation", &activation);
    if (!special) return;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const float specials[] = {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 1e30f, -3e30f};
    x.at(random.below(x.count())) = specials[random.below(5)];
    dz.at(random.below(dz.count())) = specials[random.below(5)];
  }
};

// The same with all signs gone: its results are the sizes of the sums.
Run sizes_of(const Run& run) {
  Run copy = run;
  for (Tensor* tensor : {&copy.x, &copy.y, &copy.dz, &copy.w, &copy.bias, &copy.in_bias})
    for (float& value : tensor->values) value = std::fabs(value);
  return copy;
}

enum class End { plain, bias, activation, accumulate };

Tensor result_of(const ForwardAlgorithm& algorithm, const Run& run, End end, size_t threads) {
  Run r = run;
  Tensor result = r.y;
  Work work(algorithm.work_bytes(r.problem));
  const bool has_bias = end == End::bias || end == End::activation;
  algorithm.run(r.problem,
                {r.x.planes(), r.w.values.data(), result.planes(), has_bias ? r.bias.values.data() : nullptr,
                 end == End::activation ? &r.activation : nullptr},
                threads, work.data());
  CHECK(work.is_intact(), "%s forward wrote past its work", algorithm.name);
  return result;
}

Tensor result_of(const InputGradientAlgorithm& algorithm, const Run& run, End end, size_t threads) {
  Run r = run;
  Tensor result = r.x;
  for (size_t i = 0; i < result.count(); ++i) result.at(i) = static_cast<float>(i % 7);
  Work work(algorithm.work_bytes(r.problem));
  const bool has_bias = end == End::bias || end == End::activation;
  algorithm.run(r.problem,
                {r.dz.planes(), r.w.values.data(), result.planes(), end == End::accumulate,
                 has_bias ? r.in_bias.values.data() : nullptr, end == End::activation ? &r.activation : nullptr},
                threads, work.data());
  CHECK(work.is_intact(), "%s input gradient wrote past its work", algorithm.name);
  return result;
}

Tensor result_of(const WeightGradientAlgorithm& algorithm, const Run& run, End end, size_t threads) {
  Run r = run;
  Tensor result = r.w;
  for (size_t i = 0; i < result.count(); ++i) result.at(i) = static_cast<float>(i % 7);
  Work work(algorithm.work_bytes(r.problem));
  algorithm.run(r.problem, {r.x.planes(), r.y.planes(), result.values.data(), end == End::accumulate}, threads,
                work.data());
  CHECK(work.is_intact(), "%s weight gradient wrote past its work", algorithm.name);
  return result;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
}

// Within 1e-5 of what was added up; Winograd's errors belong to tiles, so there it is the largest sum that counts.
void compare(Tensor got, Tensor expected, Tensor sizes, bool is_winograd, const char* name, const char* pass) {
  float largest = 0.0f;
  for (size_t i = 0; i < sizes.count(); ++i) largest = std::max(largest, sizes.at(i));
  for (size_t i = 0; i < got.count(); ++i) {
    const float a = got.at(i), b = expected.at(i);
    const float tolerance = 1e-5f * (1.0f + (is_winograd ? largest : sizes.at(i)));
    CHECK(test::is_same(a, b) || std::fabs(a - b) <= tolerance, "%s %s: value %zu is %g, expected %g", name, pass, i,
          static_cast<double>(a), static_cast<double>(b));
    got.at(i) = expected.at(i) = 0.0f;
  }
  CHECK(same_bits(got, expected), "%s %s: memory between the rows was touched", name, pass);
}

// How often an algorithm ran.
struct Ran {
  const char* name;
  size_t times;
  bool is_built;
};

template <class Algorithm>
void try_algorithm(const Algorithm& algorithm, const Algorithm& reference, const Run& run, const char* pass,
                   std::initializer_list<End> ends, Ran* ran) {
  const bool is_winograd = std::strcmp(algorithm.name, "winograd") == 0;
  ran->name = algorithm.name;
  ran->is_built = algorithm.run != nullptr;
  if (!algorithm.fits(run.problem) || (is_winograd && run.is_special)) return;
  ++ran->times;
  const int failures_before = ::obn::test::failures;
  for (End end : ends) {
    const Tensor expected = result_of(reference, run, end, 1);
    const Tensor sizes = result_of(reference, sizes_of(run), end, 1);
    const Tensor got = result_of(algorithm, run, end, 1);
    compare(got, expected, sizes, is_winograd, algorithm.name, pass);
    for (size_t threads : {2, 7})
      CHECK(same_bits(result_of(algorithm, run, end, threads), got), "%s %s: %zu threads give other bits",
            algorithm.name, pass, threads);
  }
  if (::obn::test::failures != failures_before) std::printf("  %s\n", test::text_of(run.problem).c_str());
}

constexpr size_t kAlgorithms = 4;
Ran ran_forward[kAlgorithms], ran_input[kAlgorithms], ran_weights[kAlgorithms];

void try_algorithms(const Run& run) {
  const ForwardAlgorithm* forward[] = {&winograd_forward, &depthwise_forward, &few_channels_forward, &direct_forward};
  const InputGradientAlgorithm* input[] = {&winograd_input_gradient, &depthwise_input_gradient,
                                           &few_channels_input_gradient, &direct_input_gradient};
  const WeightGradientAlgorithm* weights[] = {&winograd_weight_gradient, &depthwise_weight_gradient,
                                              &few_channels_weight_gradient, &direct_weight_gradient};
  for (size_t i = 0; i < kAlgorithms; ++i) {
    try_algorithm(*forward[i], reference_forward, run, "forward", {End::plain, End::bias, End::activation},
                  &ran_forward[i]);
    try_algorithm(*input[i], reference_input_gradient, run, "input gradient",
                  {End::plain, End::accumulate, End::activation}, &ran_input[i]);
    try_algorithm(*weights[i], reference_weight_gradient, run, "weight gradient", {End::plain, End::accumulate},
                  &ran_weights[i]);
  }
}

// Anything a layer can be: windows that hang over, gaps between taps, groups.
Problem random_problem(Random& random) {
  const size_t groups = random.below(3) ? 1 : random.between(1, 4);
  size_t in = groups * random.between(1, 4), out = groups * random.between(1, 5);
  if (!random.below(3)) in *= 5, out *= 7;
  const bool depthwise = !random.below(4);
  const auto axis = [&] {
    const auto kernel = static_cast<int64_t>(random.between(1, 5)), stride = static_cast<int64_t>(random.between(1, 3)),
               dilation = static_cast<int64_t>(random.between(1, 2)), before = static_cast<int64_t>(random.below(3)),
               after = static_cast<int64_t>(random.below(3));
    const int64_t least = std::max<int64_t>(1, dilation * (kernel - 1) + 1 - before - after);
    return make_axis(least + static_cast<int64_t>(random.below(20)), kernel, stride, dilation, before, after);
  };
  const Axis x = axis(), y = axis();
  return {random.between(1, 3), in, depthwise ? in * random.between(1, 2) : out, depthwise ? in : groups, x, y};
}

struct Geometry {
  size_t n, in, out;
  int64_t h, w, kh, kw, s, d, pad;
  size_t groups;
};

constexpr Geometry kGeometries[] = {
    // 3x3, stride 1: planes of every size around tiles of 4 and vectors of 16, channels around 16
    {2, 16, 16, 8, 8, 3, 3, 1, 1, 1, 1},
    {1, 17, 33, 14, 14, 3, 3, 1, 1, 1, 1},
    {3, 32, 16, 7, 9, 3, 3, 1, 1, 1, 1},
    {1, 16, 24, 5, 31, 3, 3, 1, 1, 1, 1},
    {1, 20, 16, 20, 20, 3, 3, 1, 1, 0, 1},
    {1, 16, 16, 6, 6, 3, 3, 1, 1, 2, 1},
    {2, 16, 16, 4, 5, 3, 3, 1, 1, 3, 1},
    {1, 64, 48, 12, 13, 3, 3, 1, 1, 1, 1},
    {2, 16, 16, 1, 1, 3, 3, 1, 1, 1, 1},
    {1, 16, 16, 1, 40, 3, 3, 1, 1, 1, 1},
    // one tap
    {2, 16, 20, 7, 7, 1, 1, 1, 1, 0, 1},
    {2, 5, 70, 3, 5, 1, 1, 1, 1, 0, 1},
    {1, 300, 3, 4, 4, 1, 1, 1, 1, 0, 1},
    {2, 8, 8, 9, 9, 1, 1, 2, 1, 0, 1},
    {1, 4, 4, 5, 5, 1, 1, 1, 1, 2, 1},
    {1, 3, 5, 1, 1, 1, 1, 1, 1, 0, 1},
    // strides, large kernels, dilation
    {2, 16, 32, 14, 15, 3, 3, 2, 1, 1, 1},
    {1, 3, 64, 33, 35, 7, 7, 2, 1, 3, 1},
    {2, 8, 4, 8, 8, 4, 4, 2, 1, 1, 1},
    {1, 6, 7, 11, 12, 5, 5, 1, 1, 2, 1},
    {1, 6, 7, 19, 17, 3, 3, 1, 3, 3, 1},
    {1, 6, 7, 23, 17, 3, 2, 5, 1, 0, 1},
    {1, 2, 3, 3, 3, 5, 5, 1, 1, 4, 1},
    {2, 4, 4, 6, 30, 1, 5, 1, 1, 2, 1},
    {2, 4, 4, 30, 6, 5, 1, 1, 1, 2, 1},
    {1, 40, 40, 30, 2, 2, 2, 1, 1, 0, 1},
    // few input channels
    {4, 1, 32, 20, 20, 3, 3, 1, 1, 1, 1},
    {2, 2, 9, 11, 7, 3, 3, 1, 1, 1, 1},
    {2, 3, 16, 12, 12, 5, 5, 1, 1, 2, 1},
    {3, 4, 10, 9, 33, 3, 3, 1, 1, 0, 1},
    {2, 1, 1, 8, 8, 2, 2, 1, 1, 0, 1},
    // groups, and one input channel per group
    {2, 12, 18, 7, 8, 3, 3, 1, 1, 1, 3},
    {2, 8, 8, 6, 6, 1, 1, 1, 1, 0, 2},
    {2, 24, 24, 14, 14, 3, 3, 1, 1, 1, 24},
    {2, 7, 7, 9, 37, 3, 3, 1, 1, 1, 7},
    {2, 16, 16, 15, 16, 3, 3, 2, 1, 1, 16},
    {1, 5, 15, 8, 9, 3, 3, 1, 1, 1, 5},
    {2, 6, 6, 12, 13, 5, 5, 1, 1, 2, 6},
    {1, 6, 6, 17, 18, 7, 7, 2, 1, 3, 6},
    {1, 6, 12, 13, 13, 3, 3, 1, 2, 2, 6},
};

}  // namespace

TEST(convolution_every_algorithm_agrees_with_the_reference) {
  const size_t threads_before = obn_get_num_threads();
  obn_set_num_threads(7);
  Random random{12};
  for (const Geometry& g : kGeometries) {
    const Problem problem = {g.n, g.in, g.out, g.groups, make_axis(g.w, g.kw, g.s, g.d, g.pad, g.pad),
                             make_axis(g.h, g.kh, g.s, g.d, g.pad, g.pad)};
    for (size_t gap : {0, 3})
      for (bool special : {false, true}) try_algorithms(Run(problem, gap, special, random));
  }
  for (int round = 0; round < 300; ++round)
    try_algorithms(Run(random_problem(random), random.below(3), random.coin(), random));
  obn_set_num_threads(threads_before);
  for (const Ran* list : {ran_forward, ran_input, ran_weights})
    for (size_t i = 0; i < kAlgorithms; ++i)
      CHECK(list[i].times > 0 || !list[i].is_built, "%s never fitted", list[i].name);
}

}  // namespace obn::convolution
