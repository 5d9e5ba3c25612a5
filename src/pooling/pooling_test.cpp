// Pooling: every target against the reference loops, the reference loops against the recorded vectors and against
// differences of their own forward pass.
#include "pooling/pooling_test.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace obn::pooling {

using namespace layer_test;

namespace {

// Values within `tolerance` (relative to 1 + |expected|), the memory between them the same byte for byte.
void check_same(Array got, Array expected, float tolerance, const char* what, const char* on) {
  for (size_t i = 0; i < got.count(); ++i) {
    const float a = got.get(i), b = expected.get(i);
    const bool same = a == b || (std::isnan(a) && std::isnan(b)) ||
                      std::fabs(a - b) <= tolerance * (1.0f + std::fabs(b));
    CHECK(same, "%s on %s: value %zu is %g, expected %g", what, on, i, static_cast<double>(a), static_cast<double>(b));
    got.set(i, 0.0f);
    expected.set(i, 0.0f);
  }
  CHECK(got.bytes == expected.bytes, "%s on %s: memory between the values was touched", what, on);
}

void check_same_indices(Array got, Array expected, const char* on) {
  for (size_t i = 0; i < got.count(); ++i) {
    const uint64_t a = got.index(i), b = expected.index(i);
    CHECK(a == b, "indices on %s: value %zu is %llu, expected %llu", on, i, static_cast<unsigned long long>(a),
          static_cast<unsigned long long>(b));
  }
  CHECK(got.bytes == expected.bytes, "indices on %s: memory between the values was touched", on);
}

// One rounding of the type at the size of the numbers in question.
float tolerance_of(BNNSDataType type) {
  return type == BNNSDataTypeFloat32 ? 2e-5f : type == BNNSDataTypeFloat16 ? 2e-3f : 1.6e-2f;
}

void check_targets(const Shape& shape, Random& random) {
  const Inputs inputs = make_inputs(shape, random);
  const Results expected = run(shape, inputs, &reference, "reference");
  const float tolerance = tolerance_of(shape.type);
  for (const Target& target : all_targets()) {
    const int before = test::failures;
    const Results got = run(shape, inputs, target.kernels, target.name);
    const bool is_exact = shape.function == BNNSPoolingFunctionMax &&
                          shape.activation == BNNSActivationFunctionIdentity;
    check_same(got.y, expected.y, is_exact ? 0.0f : tolerance, "output", target.name);
    if (shape.function == BNNSPoolingFunctionMax) check_same_indices(got.indices, expected.indices, target.name);
    // With an activation the two backward passes start from outputs that differ in the last bit.
    check_same(got.dx, expected.dx, 4 * tolerance, "input_gradient", target.name);
    check_same(got.dx_from_indices, expected.dx_from_indices, 4 * tolerance, "input_gradient from indices",
               target.name);
    for (size_t c = 0; c < shape.c; ++c)
      CHECK(std::fabs(got.db[c] - expected.db[c]) <= 4 * tolerance * (1.0f + std::fabs(expected.db[c])) ||
                std::isnan(expected.db[c]),
            "bias_gradient on %s: %g, expected %g", target.name, static_cast<double>(got.db[c]),
            static_cast<double>(expected.db[c]));
    if (test::failures != before)
      std::printf("  function %u type %s (%zu, %zu, %zu, %zu) -> (%zu, %zu) kernel (%zu, %zu) stride (%zu, %zu) "
                  "dilation (%zu, %zu) pad %zu %zu %zu %zu activation %u\n",
                  static_cast<unsigned>(shape.function), name_of(shape.type), shape.n, shape.c, shape.h, shape.w,
                  shape.p, shape.q, shape.kh, shape.kw, shape.sy, shape.sx, shape.dy, shape.dx, shape.left,
                  shape.right, shape.up, shape.down, static_cast<unsigned>(shape.activation));
  }
}

}  // namespace

// ---- targets against reference ----

TEST(pooling_every_width_agrees_with_reference) {
  Random random{1};
  for (BNNSPoolingFunction function : kFunctions)
    for (size_t w = 1; w <= 2 * kPad * 2 + 1; ++w) {
      Shape shape;
      shape.function = function;
      shape.n = 1;
      shape.c = 2;
      shape.h = 5;
      shape.w = w;
      const size_t sizes[][4] = {{2, 2, 2, 0}, {3, 3, 2, 1}, {3, 3, 1, 1}, {2, 3, 3, 1}};
      for (const auto& [kh, kw, s, pad] : sizes) {
        shape.kh = kh;
        shape.kw = kw;
        shape.sy = shape.sx = s;
        shape.left = shape.right = shape.up = shape.down = pad;
        shape.most_windows();
        check_targets(shape, random);
      }
    }
}

// 2x2 and 3x3 with padding 1, stride 2: rows of less and more than a vector, planes that are one stack (one sample,
// even heights) or are not, now and then with values that are no numbers.
TEST(pooling_in_pairs_agrees_with_reference) {
  Random random{12};
  const BNNSPoolingFunction functions[] = {BNNSPoolingFunctionMax, BNNSPoolingFunctionAverageCountExcludePadding,
                                           BNNSPoolingFunctionL2Norm};
  for (BNNSPoolingFunction function : functions)
    for (size_t w = 2; w <= 70; w += w < 36 ? 1 : 3)
      for (size_t kernel : {2, 3}) {
        Shape shape;
        shape.function = function;
        shape.n = random.between(1, 2);
        shape.c = random.between(1, 5);
        shape.h = random.between(2, 12);
        shape.w = w;
        shape.kh = shape.kw = kernel;
        shape.sy = shape.sx = 2;
        shape.left = shape.right = shape.up = shape.down = kernel - 2;
        shape.p = (shape.h + kernel - 2) / 2;
        shape.q = (w + kernel - 2) / 2;
        shape.has_specials = function == BNNSPoolingFunctionMax && random.below(3) == 0;
        shape.accumulate = random.below(4) == 0;
        check_targets(shape, random);
      }
}

TEST(pooling_random_geometries_agree_with_reference) {
  Random random{2};
  for (int round = 0; round < 3000; ++round) {
    Shape shape;
    shape.function = kFunctions[random.below(5)];
    shape.type = kTypes[random.below(3)];
    shape.index_type = random.below(2) ? BNNSDataTypeUInt32 : BNNSDataTypeUInt64;
    shape.n = random.between(1, 3);
    shape.c = random.between(1, 3);
    shape.h = random.between(1, 13);
    shape.w = random.between(1, random.below(4) ? 13 : 70);
    shape.kh = random.between(1, random.below(8) ? 4 : 20);
    shape.kw = random.between(1, random.below(8) ? 4 : 20);
    shape.sy = random.between(1, 5);
    shape.sx = random.between(1, 5);
    if (random.below(3) == 0) {
      shape.dy = random.between(1, 4);
      shape.dx = random.between(1, 4);
    }
    if (random.below(2) == 0) {
      shape.left = random.below(5);
      shape.right = random.below(5);
      shape.up = random.below(5);
      shape.down = random.below(5);
    }
    shape.most_windows();
    if (random.below(2) == 0) {
      shape.p = random.between(1, shape.p);
      shape.q = random.between(1, shape.q);
    }
    if (random.below(3) == 0) {
      shape.x_step = random.between(1, 2);
      shape.y_step = random.between(1, 3);
      shape.x_gap = random.below(3);
      shape.y_gap = random.below(3);
      shape.plane_gap = random.below(5);
      shape.sample_gap = random.below(7);
    }
    const BNNSActivationFunction activations[] = {BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionTanh,
                                                  BNNSActivationFunctionSoftmax,
                                                  BNNSActivationFunctionLeakyRectifiedLinear};
    if (random.below(3) == 0) shape.activation = activations[random.below(4)];
    shape.has_bias = random.below(2);
    shape.has_specials = shape.function == BNNSPoolingFunctionMax && random.below(4) == 0 &&
                         shape.activation == BNNSActivationFunctionIdentity;
    shape.accumulate = random.below(2);
    check_targets(shape, random);
  }
}

TEST(pooling_large_planes_and_windows_agree_with_reference) {
  Random random{3};
  struct Large {
    size_t h, w, k, s, d, pad;
  };
  const Large sizes[] = {{130, 517, 3, 2, 1, 1}, {112, 112, 112, 1, 1, 0}, {40, 300, 9, 1, 1, 4},
                         {64, 64, 5, 1, 3, 6},   {300, 40, 20, 3, 1, 0},   {3, 20000, 3, 2, 1, 1},
                         {90, 1200, 70, 10, 1, 3}};
  for (const Large& size : sizes)
    for (BNNSPoolingFunction function : kFunctions) {
      Shape shape;
      shape.function = function;
      shape.h = size.h;
      shape.w = size.w;
      shape.kh = shape.kw = size.k;
      shape.sy = shape.sx = size.s;
      shape.dy = shape.dx = size.d;
      shape.left = shape.right = shape.up = shape.down = size.pad;
      shape.p = (size.h + 2 * size.pad > size.d * (size.k - 1))
                    ? (size.h + 2 * size.pad - size.d * (size.k - 1) - 1) / size.s + 1
                    : 1;
      shape.q = (size.w + 2 * size.pad > size.d * (size.k - 1))
                    ? (size.w + 2 * size.pad - size.d * (size.k - 1) - 1) / size.s + 1
                    : 1;
      check_targets(shape, random);
    }
}

TEST(pooling_shapes_choose_the_algorithms) {
  constexpr auto kMax = BNNSPoolingFunctionMax, kMean = BNNSPoolingFunctionAverageCountExcludePadding;
  const struct {
    BNNSPoolingFunction function;
    size_t size, kernel, stride, padding, windows;
    const char *forward, *backward;
  } cases[] = {{kMax, 8, 2, 2, 0, 4, "in place", "push 2x2 maxima"},
               {kMax, 8, 3, 2, 1, 4, "in place", "push 3x3 maxima"},
               {kMean, 8, 2, 2, 0, 4, "in place", "push 2x2 averages"},
               {kMean, 8, 3, 2, 1, 4, "in place", "push 3x3 averages"},
               {BNNSPoolingFunctionL2Norm, 8, 2, 2, 0, 4, "in place", "pull"},
               {kMax, 9, 3, 3, 0, 3, "windows", "pull"},
               {kMax, 12, 5, 1, 2, 12, "windows", "scatter"},
               {kMean, 12, 5, 1, 2, 12, "windows", "pull"},
               {kMean, 7, 7, 1, 0, 1, "global average", "global average"},
               {kMax, 7, 7, 1, 0, 1, "windows", "scatter"},
               {BNNSPoolingFunctionUnMax, 8, 2, 2, 0, 4, "inverse", "inverse"}};
  for (const auto& c : cases) {
    Shape shape;
    shape.function = c.function;
    shape.h = shape.w = c.size;
    shape.kh = shape.kw = c.kernel;
    shape.sy = shape.sx = c.stride;
    shape.up = shape.down = shape.left = shape.right = c.padding;
    shape.p = shape.q = c.windows;
    const auto parameters = shape.parameters(nullptr);
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
    CHECK(filter, "%s", obn_last_error());
    const auto* pooling = static_cast<const Pooling*>(find_filter(filter));
    const char *forward = pooling->forward().name, *backward = pooling->backward().name;
    CHECK(std::strcmp(forward, c.forward) == 0, "%s forward, expected %s", forward, c.forward);
    CHECK(std::strcmp(backward, c.backward) == 0, "%s backward, expected %s", backward, c.backward);
    BNNSFilterDestroy(filter);
  }
}

TEST(pooling_geometries_beyond_the_kernels_run_on_reference) {
  Random random{4};
  for (BNNSPoolingFunction function : kFunctions) {
    Shape shape;
    shape.function = function;
    shape.h = 2;
    shape.w = 300000;
    shape.kh = 2;
    shape.kw = 3;
    shape.sx = 3;
    shape.p = 1;
    shape.q = 100000;
    const Inputs inputs = make_inputs(shape, random);
    const auto parameters = shape.parameters(nullptr);
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
    CHECK(filter, "%s", obn_last_error());
    const auto* pooling = static_cast<const Pooling*>(find_filter(filter));
    for (const Algorithm* chosen : {&pooling->forward(), &pooling->backward()})
      CHECK(std::strcmp(chosen->name, "reference") == 0, "%s for rows of 300000 values", chosen->name);
    BNNSFilterDestroy(filter);
    const Results results = run(shape, inputs, nullptr, "reference");
    Array y = results.y, x = inputs.x;
    if (function != BNNSPoolingFunctionMax) continue;
    float largest = -kInfinity;
    for (size_t i : {0, 1, 2, 300000, 300001, 300002}) largest = std::max(largest, x.get(i));
    CHECK(y.get(0) == largest, "%g, expected %g", static_cast<double>(y.get(0)), static_cast<double>(largest));
  }
}

// ---- vectors ----

TEST(pooling_vectors_of_the_specification) {
  for (const Target& target : all_targets()) {
    for (const Kernels* kernels : {target.kernels, &reference}) {
      Shape shape;
      auto forward = [&](std::initializer_list<float> values, std::initializer_list<float> expected) {
        Inputs inputs{shape.input(), shape.output(), shape.input(), shape.indices(), {0.0f}};
        inputs.x.fill(values);
        Array wanted = shape.output();
        wanted.fill(expected);
        const Results results = run(shape, inputs, kernels, target.name);
        check_same(results.y, wanted, 0.0f, "vector", target.name);
        return results;
      };
      shape.h = shape.w = 3;
      shape.kh = shape.kw = shape.p = shape.q = 2;
      forward({1, 2, 3, 4, 5, 6, 7, 8, 9}, {5, 6, 8, 9});

      shape = Shape();
      shape.function = BNNSPoolingFunctionAverageCountIncludePadding;
      shape.h = shape.w = shape.p = shape.q = shape.kh = shape.kw = shape.sy = shape.sx = 2;
      shape.left = shape.right = shape.up = shape.down = 1;
      forward({1, 2, 3, 4}, {0.25f, 0.5f, 0.75f, 1.0f});

      shape.function = BNNSPoolingFunctionMax;
      shape.sy = shape.sx = 1;
      shape.p = shape.q = 3;
      forward({1, 2, 3, 4}, {1, 2, 2, 3, 4, 4, 3, 4, 4});

      // Padding never wins, ties go to the first, NaN wins.
      forward({-1, -2, -3, -4}, {-1, -1, -2, -1, -1, -2, -3, -3, -4});
      shape = Shape();
      shape.h = 1;
      shape.w = shape.kw = 4;
      CHECK(forward({1, 3, 3, 2}, {3}).indices.index(0) == 1, "ties go to the first");
      CHECK(forward({1, kNan, 9, kNan}, {kNan}).indices.index(0) == 1, "the first NaN wins");
      CHECK(forward({-kInfinity, -kInfinity, -kInfinity, -kInfinity}, {-kInfinity}).indices.index(0) == 0,
            "the first position of a window that is -inf everywhere");

      // Windows outside the image: value 0, index 0.
      shape = Shape();
      shape.w = 2;
      shape.left = 3;
      shape.q = 5;
      Results outside = forward({-5, -6}, {0, 0, 0, -5, -6});
      CHECK(outside.indices.index(0) == 0 && outside.indices.index(4) == 1, "indices of windows outside the image");

      // Maxima and back.
      shape = Shape();
      shape.h = shape.w = 4;
      shape.p = shape.q = 3;
      shape.kh = shape.kw = 2;
      Inputs inputs{shape.input(), shape.output(), shape.input(), shape.indices(), {0.0f}};
      inputs.x.fill({1, 1, 1, 9, 1, 9, 9, 1, 1, 1, 1, 1, 1, 9, 1, 9});
      const Results there = run(shape, inputs, kernels, target.name);
      shape.function = BNNSPoolingFunctionUnMax;
      Inputs back{there.y, shape.output(), shape.input(), there.indices, {0.0f}};
      Array wanted = shape.output();
      wanted.fill({0, 0, 0, 9, 0, 9, 9, 0, 0, 0, 0, 0, 0, 9, 0, 9});
      check_same(run(shape, back, kernels, target.name).y, wanted, 0.0f, "unmax", target.name);
    }
  }
}

TEST(pooling_backward_vector_of_the_specification) {
  for (BNNSDataType index_type : {BNNSDataTypeUInt32, BNNSDataTypeUInt64}) {
    Shape shape;
    shape.index_type = index_type;
    shape.h = shape.w = 4;
    shape.p = shape.q = shape.kh = shape.kw = shape.sy = shape.sx = 2;
    Inputs inputs{shape.input(), shape.output(), shape.input(), shape.indices(), {0.0f}};
    for (size_t i = 0; i < 16; ++i) inputs.x.set(i, static_cast<float>(i + 1));
    inputs.dy.fill({1, 2, 3, 4});
    Results results = run(shape, inputs, nullptr, "best");
    const float expected[16] = {0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 3, 0, 4};
    for (size_t i = 0; i < 16; ++i) {
      CHECK(results.dx.get(i) == expected[i], "dx %zu is %g", i, static_cast<double>(results.dx.get(i)));
      CHECK(results.dx_from_indices.get(i) == expected[i], "dx %zu from indices", i);
    }
    CHECK(results.db[0] == 10.0f, "db is %g", static_cast<double>(results.db[0]));
    const uint64_t indices[4] = {5, 7, 13, 15};
    for (size_t i = 0; i < 4; ++i) CHECK(results.indices.index(i) == indices[i], "index %zu", i);
  }
}

TEST(pooling_backward_agrees_with_differences_of_forward) {
  Random random{5};
  for (BNNSPoolingFunction function : kFunctions) {
    if (function == BNNSPoolingFunctionUnMax) continue;
    Shape shape;
    shape.function = function;
    shape.h = 6;
    shape.w = 7;
    shape.kh = shape.kw = 3;
    shape.sy = shape.sx = 2;
    shape.left = shape.up = 1;
    shape.p = 3;
    shape.q = 4;
    Inputs inputs = make_inputs(shape, random);
    for (size_t i = 0; i < inputs.x.count(); ++i)  // no two alike, none near another
      inputs.x.set(i, static_cast<float>((i * 29) % 43) * 0.25f - 5.0f);
    Results results = run(shape, inputs, &reference, "reference");
    for (size_t i = 0; i < inputs.x.count(); ++i) {
      const float step = 1.0f / 64;
      double difference = 0.0;
      for (float sign : {1.0f, -1.0f}) {
        Inputs moved = inputs;
        moved.x.set(i, inputs.x.get(i) + sign * step);
        Array y = run(shape, moved, &reference, "reference").y;
        for (size_t o = 0; o < y.count(); ++o)
          difference += static_cast<double>(sign) * static_cast<double>(y.get(o)) *
                        static_cast<double>(inputs.dy.get(o));
      }
      difference /= 2.0 * static_cast<double>(step);
      CHECK(std::fabs(difference - static_cast<double>(results.dx.get(i))) < 2e-3, "function %u: dx %zu is %g, not %g",
            static_cast<unsigned>(function), i, static_cast<double>(results.dx.get(i)), difference);
    }
  }
}

}  // namespace obn::pooling
