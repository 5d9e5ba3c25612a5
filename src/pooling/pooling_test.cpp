// Pooling: every target against the reference loops, the reference loops against the recorded vectors and against
// differences of their own forward pass, and the promises of the C interface.
#include "pooling/pooling.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/memory.h"
#include "base/test_array.h"
#include "openbnns/bnns/legacy.h"
#include "openbnns/openbnns.h"

namespace obn::pooling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- numbers ----

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  // Multiples of 1/4 between -4 and 4: exact in every type, and full of ties.
  float value() { return static_cast<float>(below(33)) * 0.25f - 4.0f; }
};

// ---- arrays ----

// A batch of images or indices. No guard behind them: sanitizers see what is read beyond.
struct Array : ::obn::test::PlacedArray {
  Array() = default;
  Array(BNNSDataType type, size_t n, size_t c, size_t h, size_t w, size_t step = 1, size_t row_gap = 0,
        size_t plane_gap = 0, size_t sample_gap = 0)
      : PlacedArray(
            ::obn::test::spaced(type, BNNSDataLayoutImageCHW, {w, h, c}, {step - 1, row_gap, plane_gap}), n,
            sample_gap, 0, 0) {}

  float get(size_t i) const { return static_cast<float>(PlacedArray::get(i)); }
  std::byte* at(size_t i) { return bytes.data() + place_of(i) * bytes_of(descriptor.data_type); }
  uint64_t index(size_t i) {
    uint64_t value = 0;  // little-endian
    std::memcpy(&value, at(i), bytes_of(descriptor.data_type));
    return value;
  }
  void set_index(size_t i, uint64_t value) { std::memcpy(at(i), &value, bytes_of(descriptor.data_type)); }
  void fill(Random& random) { PlacedArray::fill(random); }
  void fill(std::initializer_list<float> values) {
    size_t i = 0;
    for (float value : values) set(i++, value);
  }
};

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

// ---- one geometry ----

struct Shape {
  BNNSPoolingFunction function = BNNSPoolingFunctionMax;
  BNNSDataType type = BNNSDataTypeFloat32;
  BNNSDataType index_type = BNNSDataTypeUInt32;
  size_t n = 1, c = 1, h = 1, w = 1, p = 1, q = 1;
  size_t kh = 1, kw = 1, sy = 1, sx = 1, dy = 1, dx = 1;
  size_t left = 0, right = 0, up = 0, down = 0;
  size_t x_step = 1, x_gap = 0, y_step = 1, y_gap = 0, plane_gap = 0, sample_gap = 0;
  BNNSActivationFunction activation = BNNSActivationFunctionIdentity;
  bool has_bias = false;
  bool has_specials = false;
  bool accumulate = false;

  bool is_inverse() const { return function == BNNSPoolingFunctionUnMax; }
  void most_windows() {
    q = (w + left + right - 1) / sx + 1;
    p = (h + up + down - 1) / sy + 1;
  }
  Array image() const { return Array(type, n, c, h, w, x_step, x_gap, plane_gap, sample_gap); }
  Array windows() const { return Array(type, n, c, p, q, y_step, y_gap, plane_gap, sample_gap); }
  Array input() const { return is_inverse() ? windows() : image(); }
  Array output() const { return is_inverse() ? image() : windows(); }
  Array indices() const { return Array(index_type, n, c, p, q, y_step, y_gap, plane_gap, sample_gap + 3); }

  BNNSLayerParametersPooling parameters(float* bias) const {
    BNNSLayerParametersPooling parameters = {};
    parameters.i_desc = input().descriptor;
    parameters.o_desc = output().descriptor;
    if (has_bias) {
      parameters.bias.layout = BNNSDataLayoutVector;
      parameters.bias.size[0] = c;
      parameters.bias.data_type = BNNSDataTypeFloat32;
      parameters.bias.data = bias;
    }
    parameters.activation.function = activation;
    parameters.activation.alpha = 0.25f;
    parameters.pooling_function = function;
    parameters.k_width = kw;
    parameters.k_height = kh;
    parameters.x_stride = sx;
    parameters.y_stride = sy;
    parameters.x_dilation_stride = dx;
    parameters.y_dilation_stride = dy;
    const size_t pad[] = {left, right, up, down};
    std::copy_n(pad, 4, parameters.pad);
    return parameters;
  }
};

// Everything that one filter computes from the same inputs.
struct Results {
  Array y, indices, dx, dx_from_indices;
  std::vector<float> db;
};

struct Inputs {
  Array x, dy, dx, indices;
  std::vector<float> bias;
};

Inputs make_inputs(const Shape& shape, Random& random) {
  Inputs inputs{shape.input(), shape.output(), shape.input(), shape.indices(), std::vector<float>(shape.c)};
  inputs.x.fill(random);
  inputs.dy.fill(random);
  inputs.dx.fill(random);
  for (float& bias : inputs.bias) bias = random.value();
  for (size_t i = 0; i < inputs.indices.count(); ++i) inputs.indices.set_index(i, random.below(shape.h * shape.w));
  if (shape.has_specials) {
    const float specials[] = {kNan, kInfinity, -kInfinity};
    for (size_t i = 0; i < inputs.x.count(); ++i)
      if (random.below(8) == 0) inputs.x.set(i, specials[random.below(3)]);
  }
  return inputs;
}

// Runs forward and backward with the given kernels (NULL: the plan's choice).
Results run(const Shape& shape, Inputs inputs, const Kernels* kernels, const char* on) {
  Results results{shape.output(), shape.indices(), inputs.dx, inputs.dx, std::vector<float>(shape.c, 1.0f)};
  const auto parameters = shape.parameters(inputs.bias.data());
  BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
  CHECK(filter, "creation on %s: %s", on, obn_last_error());
  if (!filter) return results;
  auto* pooling = static_cast<Pooling*>(find_filter(filter));
  if (kernels && (pooling->plan().fits || kernels == &reference)) pooling->kernels = kernels;
  const bool uses_indices = shape.function == BNNSPoolingFunctionMax || shape.is_inverse();
  if (shape.is_inverse()) results.indices = inputs.indices;
  int status = BNNSPoolingFilterApplyBatchEx(filter, shape.n, inputs.x.data(), inputs.x.batch_stride, results.y.data(),
                                             results.y.batch_stride, shape.index_type,
                                             uses_indices ? results.indices.data() : nullptr,
                                             results.indices.batch_stride);
  CHECK(status == 0, "forward on %s: %s", on, obn_last_error());

  BNNSNDArrayDescriptor db = {};
  db.layout = BNNSDataLayoutVector;
  db.size[0] = shape.c;
  db.data_type = BNNSDataTypeFloat32;
  db.data = results.db.data();
  db.flags = shape.accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
  results.dx.descriptor.flags = results.dx_from_indices.descriptor.flags = db.flags;
  for (bool with_indices : {false, true}) {
    if (with_indices ? !uses_indices : shape.is_inverse()) continue;
    Array& dx = with_indices ? results.dx_from_indices : results.dx;
    std::fill(results.db.begin(), results.db.end(), 1.0f);
    status = BNNSPoolingFilterApplyBackwardBatchEx(
        filter, shape.n, with_indices ? nullptr : inputs.x.data(), inputs.x.batch_stride, &dx.descriptor,
        dx.batch_stride, results.y.data(), results.y.batch_stride, &inputs.dy.descriptor, inputs.dy.batch_stride, &db,
        shape.index_type, with_indices ? results.indices.data() : nullptr, results.indices.batch_stride);
    CHECK(status == 0, "backward on %s: %s", on, obn_last_error());
  }
  BNNSFilterDestroy(filter);
  return results;
}

using Target = ::obn::test::Target<Kernels>;
std::vector<Target> all_targets() { return ::obn::test::all_targets(targets); }

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

constexpr BNNSPoolingFunction kFunctions[] = {
    BNNSPoolingFunctionMax, BNNSPoolingFunctionAverageCountIncludePadding,
    BNNSPoolingFunctionAverageCountExcludePadding, BNNSPoolingFunctionUnMax, BNNSPoolingFunctionL2Norm};
constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};

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
      for (auto [kh, kw, s, pad] : sizes) {
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
    const bool fits = static_cast<Pooling*>(find_filter(filter))->plan().fits;
    CHECK(!fits, "expected the reference loops for rows of 300000 values");
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

// ---- indices ----

TEST(pooling_stray_indices_scatter_anywhere_in_the_plane) {
  for (const Target& target : all_targets()) {
    Shape shape;
    shape.h = shape.w = 4;
    shape.p = shape.q = shape.kh = shape.kw = shape.sy = shape.sx = 2;
    Array dy = shape.output(), dx = shape.input(), indices = shape.indices();
    dy.fill({1, 2, 3, 4});
    for (size_t i = 0; i < 4; ++i) indices.set_index(i, 15 - i % 2);
    const auto parameters = shape.parameters(nullptr);
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
    static_cast<Pooling*>(find_filter(filter))->kernels = target.kernels;
    const int status = BNNSPoolingFilterApplyBackwardBatchEx(filter, 1, nullptr, 0, &dx.descriptor, 0, nullptr, 0,
                                                             &dy.descriptor, 0, nullptr, BNNSDataTypeUInt32,
                                                             indices.data(), 0);
    CHECK(status == 0, "%s", obn_last_error());
    for (size_t i = 0; i < 16; ++i) {
      const float expected = i == 15 ? 4.0f : i == 14 ? 6.0f : 0.0f;
      CHECK(dx.get(i) == expected, "dx %zu on %s is %g", i, target.name, static_cast<double>(dx.get(i)));
    }
    BNNSFilterDestroy(filter);
  }
}

// One index after the other leaves its window, to all sides; its gradient goes where it points.
TEST(pooling_every_stray_index_is_found) {
  for (const Target& target : all_targets())
    for (size_t kh : {2, 3}) {
      Shape shape;
      shape.c = 4;  // of one sample: the planes of indices follow each other
      shape.p = 5;
      shape.q = 7;
      shape.kh = shape.sy = kh;
      shape.kw = shape.sx = 2;
      shape.h = kh * shape.p;
      shape.w = 2 * shape.q;
      const auto parameters = shape.parameters(nullptr);
      BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
      static_cast<Pooling*>(find_filter(filter))->kernels = target.kernels;
      const size_t windows = shape.p * shape.q, all = shape.n * shape.c * windows, plane = shape.h * shape.w;
      const auto first_of = [&](size_t i) { return i % windows / shape.q * kh * shape.w + i % shape.q * 2; };
      Random random{kh};
      Array dy = shape.output(), dx = shape.input(), indices = shape.indices();
      dy.fill(random);
      for (size_t stray = 0; stray < all; ++stray) {
        const size_t first = first_of(stray), beside[] = {first + plane - 1, first + 2, first + plane - shape.w,
                                                          first + kh * shape.w};
        const size_t moved = beside[stray % 4] % plane;
        std::vector<float> expected(shape.n * shape.c * plane, 0.0f);
        for (size_t i = 0; i < all; ++i) {
          const size_t position = i == stray ? moved : first_of(i);
          indices.set_index(i, position);
          expected[i / windows * plane + position] += dy.get(i);
        }
        const int status = BNNSPoolingFilterApplyBackwardBatchEx(
            filter, shape.n, nullptr, 0, &dx.descriptor, dx.batch_stride, nullptr, 0, &dy.descriptor, dy.batch_stride,
            nullptr, BNNSDataTypeUInt32, indices.data(), indices.batch_stride);
        CHECK(status == 0, "%s", obn_last_error());
        size_t wrong = 0;
        for (size_t i = 0; i < expected.size(); ++i) wrong += dx.get(i) != expected[i];
        CHECK(wrong == 0, "%zu gradients with a stray index at %zu on %s", wrong, stray, target.name);
      }
      BNNSFilterDestroy(filter);
    }
}

TEST(pooling_index_out_of_range_is_refused_before_anything_is_written) {
  for (BNNSPoolingFunction function : {BNNSPoolingFunctionMax, BNNSPoolingFunctionUnMax})
    for (BNNSDataType index_type : {BNNSDataTypeUInt32, BNNSDataTypeUInt64})
      for (size_t bad = 0; bad < 2 * 3 * 9 * 11; bad += 7) {
        Shape shape;
        shape.function = function;
        shape.index_type = index_type;
        shape.n = 2;
        shape.c = 3;
        shape.h = 18;
        shape.w = 22;
        shape.p = 9;
        shape.q = 11;
        shape.kh = shape.kw = shape.sy = shape.sx = 2;
        Random random{bad};
        Inputs inputs = make_inputs(shape, random);
        Array y = shape.output();
        const uint64_t wrong[] = {18 * 22, 0x80000000u, index_type == BNNSDataTypeUInt32 ? 0xffffffffu : ~uint64_t{0},
                                  index_type == BNNSDataTypeUInt32 ? 1000 : uint64_t{1} << 32};
        inputs.indices.set_index(bad, wrong[bad / 7 % 4]);
        const auto parameters = shape.parameters(nullptr);
        BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
        const std::vector<std::byte> dx_before = inputs.dx.bytes, y_before = y.bytes;
        obn_clear_error();
        int status = BNNSPoolingFilterApplyBackwardBatchEx(
            filter, 2, nullptr, 0, &inputs.dx.descriptor, inputs.dx.batch_stride, nullptr, 0, &inputs.dy.descriptor,
            inputs.dy.batch_stride, nullptr, index_type, inputs.indices.data(), inputs.indices.batch_stride);
        CHECK(status == -1 && std::strstr(obn_last_error(), "indices: "), "backward with a wrong index at %zu", bad);
        CHECK(inputs.dx.bytes == dx_before, "input_gradient was written");
        if (function == BNNSPoolingFunctionUnMax) {
          status = BNNSPoolingFilterApplyBatchEx(filter, 2, inputs.x.data(), inputs.x.batch_stride, y.data(),
                                                 y.batch_stride, index_type, inputs.indices.data(),
                                                 inputs.indices.batch_stride);
          CHECK(status == -1 && y.bytes == y_before, "forward with a wrong index at %zu", bad);
        }
        BNNSFilterDestroy(filter);
      }
}

// ---- threads ----

TEST(pooling_any_number_of_threads_gives_the_same_bits) {
  const size_t threads_before = obn_get_num_threads();
  Random random{6};
  for (BNNSPoolingFunction function : kFunctions)
    for (size_t side : {40, 600}) {
      Shape shape;
      shape.function = function;
      shape.n = side == 40 ? 8 : 1;
      shape.c = side == 40 ? 16 : 2;
      shape.h = shape.w = side;
      shape.kh = shape.kw = 3;
      shape.sy = shape.sx = 2;
      shape.left = shape.right = shape.up = shape.down = 1;
      shape.p = shape.q = side / 2;
      const Inputs inputs = make_inputs(shape, random);
      obn_set_num_threads(1);
      const Results one = run(shape, inputs, nullptr, "one thread");
      for (size_t threads : {2, 7}) {
        obn_set_num_threads(threads);
        const Results many = run(shape, inputs, nullptr, "many threads");
        CHECK(one.y.bytes == many.y.bytes && one.indices.bytes == many.indices.bytes && one.dx.bytes == many.dx.bytes &&
                  one.dx_from_indices.bytes == many.dx_from_indices.bytes && one.db == many.db,
              "function %u, side %zu: %zu threads differ from one", static_cast<unsigned>(function), side, threads);
      }
    }
  obn_set_num_threads(threads_before);
}

// Arrays above 16 MB are written past the caches, from any address; the same planes one at a time are not.
TEST(pooling_large_arrays_equal_small_ones) {
  Random random{9};
  for (BNNSPoolingFunction function : {BNNSPoolingFunctionMax, BNNSPoolingFunctionAverageCountExcludePadding})
    for (BNNSDataType index_type : {BNNSDataTypeUInt32, BNNSDataTypeUInt64}) {
      Shape shape;
      shape.function = function;
      shape.index_type = index_type;
      shape.c = 5;
      shape.h = shape.w = 1001;
      shape.kh = shape.kw = 2;
      shape.p = shape.q = 1000;
      const Inputs inputs = make_inputs(shape, random);
      const Results large = run(shape, inputs, nullptr, "large");
      const size_t image = shape.h * shape.w * 4, windows = shape.p * shape.q * 4;
      const size_t index = shape.p * shape.q * bytes_of(index_type);
      shape.c = 1;
      for (size_t c = 0; c < 5; ++c) {
        Inputs part{shape.input(), shape.output(), shape.input(), shape.indices(), {0.0f}};
        std::memcpy(part.x.data(), inputs.x.bytes.data() + c * image, image);
        std::memcpy(part.dy.data(), inputs.dy.bytes.data() + c * windows, windows);
        const Results small = run(shape, part, nullptr, "small");
        CHECK(!std::memcmp(small.y.bytes.data(), large.y.bytes.data() + c * windows, windows), "output, plane %zu", c);
        CHECK(!std::memcmp(small.dx.bytes.data(), large.dx.bytes.data() + c * image, image), "dx, plane %zu", c);
        if (function != BNNSPoolingFunctionMax) continue;
        CHECK(!std::memcmp(small.indices.bytes.data(), large.indices.bytes.data() + c * index, index),
              "indices, plane %zu", c);
        CHECK(!std::memcmp(small.dx_from_indices.bytes.data(), large.dx_from_indices.bytes.data() + c * image, image),
              "dx from indices, plane %zu", c);
      }
    }
}

// ---- the C interface ----

TEST(pooling_memory_comes_from_the_caller_and_goes_back) {
  using ::obn::test::Memory;
  float bias[2] = {1, 2};
  Shape shape;
  shape.c = 2;
  shape.has_bias = true;
  const auto parameters = shape.parameters(bias);
  size_t needed = 0;
  for (BNNSFilter filter = nullptr; !filter && needed < 10; ++needed) {
    const BNNSFilterParameters options = Memory::start(needed);
    obn_clear_error();
    filter = BNNSFilterCreateLayerPooling(&parameters, &options);
    if (filter) {
      CHECK(Memory::taken == needed && Memory::returned == 0, "%zu blocks", Memory::taken);
      BNNSFilterDestroy(filter);
    } else {
      CHECK(failed_with("memory"), "%s", obn_last_error());
    }
    CHECK(Memory::taken == Memory::returned, "%zu blocks, %zu given back", Memory::taken, Memory::returned);
  }
  CHECK(needed == 4, "expected bias, tables and filter; %zu", needed - 1);
}

TEST(pooling_generic_calls_serve_pooling) {
  Shape shape;
  shape.function = BNNSPoolingFunctionAverageCountExcludePadding;
  shape.h = shape.w = 3;
  shape.p = shape.q = shape.kh = shape.kw = shape.sy = shape.sx = 2;
  const auto parameters = shape.parameters(nullptr);
  BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
  Array x = shape.input(), y = shape.output(), dy = shape.output(), dx = shape.input();
  x.fill({1, 2, 3, 4, 5, 6, 7, 8, 9});
  dy.fill({4, 2, 2, 1});
  CHECK(BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
  const float means[] = {3, 4.5f, 7.5f, 9};
  for (size_t i = 0; i < 4; ++i) CHECK(y.get(i) == means[i], "y %zu is %g", i, static_cast<double>(y.get(i)));
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, nullptr, 0, &dx.descriptor, 0, nullptr, 0, &dy.descriptor, 0, nullptr,
                                     nullptr) == 0,
        "%s", obn_last_error());
  for (size_t i = 0; i < 9; ++i) CHECK(dx.get(i) == 1.0f, "dx %zu is %g", i, static_cast<double>(dx.get(i)));
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, nullptr, 0, &dx.descriptor, 0, nullptr, 0, &dy.descriptor, 0,
                                     &dx.descriptor, nullptr) == -1,
        "pooling has no weights");
  CHECK(BNNSFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0) == 0, "an empty batch is fine");
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, nullptr, 0, nullptr, 0, nullptr, 0, &dy.descriptor, 0, nullptr,
                                     nullptr) == 0,
        "no gradients asked for is fine");
  BNNSFilterDestroy(filter);
}

TEST(pooling_bias_is_copied_unless_the_client_keeps_it) {
  for (bool client : {false, true})
    for (BNNSDataType type : kTypes) {
      Shape shape;
      shape.c = 2;
      auto parameters = shape.parameters(nullptr);
      Array bias(type, 1, 1, 1, 2, 3);
      bias.fill({1, 2});
      parameters.bias = bias.descriptor;
      parameters.bias.layout = BNNSDataLayoutVector;
      BNNSFilterParameters options = {};
      if (client) options.flags = BNNSFlagsUseClientPtr;
      BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, &options);
      CHECK(filter, "%s", obn_last_error());
      bias.fill({10, 20});
      const float x[2] = {0.5f, 0.25f};
      float y[2] = {0, 0};
      CHECK(BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
      CHECK(y[0] == (client ? 10.5f : 1.5f) && y[1] == (client ? 20.25f : 2.25f), "%g %g",
            static_cast<double>(y[0]), static_cast<double>(y[1]));
      BNNSFilterDestroy(filter);
    }
}

TEST(pooling_legacy_creator) {
  BNNSImageStackDescriptor in = {}, out = {};
  in.width = in.height = 3;
  out.width = out.height = 2;
  in.channels = out.channels = 1;
  in.data_type = out.data_type = BNNSDataTypeFloat32;
  BNNSPoolingLayerParameters parameters = {};
  parameters.x_stride = parameters.y_stride = 1;
  parameters.k_width = parameters.k_height = 2;
  parameters.in_channels = parameters.out_channels = 1;
  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  float y[4] = {};
  BNNSFilter filter = BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
  CHECK(y[0] == 5 && y[1] == 6 && y[2] == 8 && y[3] == 9, "max");
  BNNSFilterDestroy(filter);

  const int8_t bias = 6;
  parameters.bias = {&bias, BNNSDataTypeInt8, 0.5f, 1.0f, nullptr};
  parameters.pooling_function = BNNSPoolingFunctionAverage;
  filter = BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
  CHECK(y[0] == 7 && y[1] == 8 && y[2] == 10 && y[3] == 11, "average of 3, 4, 6, 7 plus 0.5·6 + 1");
  BNNSFilterDestroy(filter);

  parameters.in_channels = 2;
  CHECK(!BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr), "channels must agree");
  parameters.in_channels = 1;
  in.row_stride = 2;
  CHECK(!BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr), "rows must not overlap");
  in.row_stride = 3;
  out.height = 4;
  CHECK(!BNNSFilterCreatePoolingLayer(&in, &out, &parameters, nullptr), "the first position of a window must exist");
}

TEST(pooling_refuses_what_cannot_be) {
  Shape shape;
  shape.c = 64;
  shape.h = shape.w = 112;
  shape.kh = shape.kw = 3;
  shape.sy = shape.sx = 2;
  shape.p = 57;
  shape.q = 56;
  auto parameters = shape.parameters(nullptr);
  CHECK(!BNNSFilterCreateLayerPooling(&parameters, nullptr), "57 rows of windows");
  CHECK(!std::strcmp(obn_last_error(),
                     "output: expected at most (64, 56, 56) for input (64, 112, 112), kernel_size (3, 3), stride "
                     "(2, 2), padding (left 0, right 0, up 0, down 0), dilation (1, 1); got (64, 57, 56)"),
        "%s", obn_last_error());
  auto refuses = [&](const char* word) {
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
    CHECK(!filter, "%s was accepted", word);
    CHECK(failed_with(word), "%s: %s", word, obn_last_error());
    shape.p = 56;
    parameters = shape.parameters(nullptr);
  };
  shape.p = 56;
  parameters = shape.parameters(nullptr);
  parameters.k_width = 0;
  refuses("kernel_size");
  parameters.k_width = parameters.k_height = SIZE_MAX / 2;
  refuses("kernel_size");
  parameters.x_padding = SIZE_MAX;
  refuses("padding");
  parameters.pooling_function = static_cast<BNNSPoolingFunction>(5);
  refuses("pooling");
  parameters.o_desc.size[2] = 63;
  refuses("output");
  parameters.o_desc.data_type = BNNSDataTypeFloat16;
  refuses("output");
  parameters.i_desc.layout = BNNSDataLayout3DLastMajor;
  refuses("input");
  parameters.i_desc.data_type = BNNSDataTypeInt8;
  refuses("input");
  float bias[64] = {};
  shape.has_bias = true;
  parameters = shape.parameters(bias);
  parameters.bias.size[0] = 63;
  refuses("bias");
  parameters = shape.parameters(bias);
  parameters.bias.data_type = BNNSDataTypeInt8;
  refuses("bias");
  shape.has_bias = false;
  parameters = shape.parameters(nullptr);
  parameters.activation.function = static_cast<BNNSActivationFunction>(99);
  refuses("activation");
}

TEST(pooling_failing_calls_leave_outputs_alone) {
  Shape shape;
  shape.h = shape.w = 4;
  shape.p = shape.q = shape.kh = shape.kw = shape.sy = shape.sx = 2;
  shape.activation = BNNSActivationFunctionTanh;
  Random random{7};
  Inputs inputs = make_inputs(shape, random);
  const auto parameters = shape.parameters(nullptr);
  BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
  Array y = shape.output();
  std::vector<float> db(1, 5.0f);
  BNNSNDArrayDescriptor bias_gradient = {};
  bias_gradient.layout = BNNSDataLayoutVector;
  bias_gradient.size[0] = 1;
  bias_gradient.data_type = BNNSDataTypeFloat32;
  bias_gradient.data = db.data();
  const std::vector<std::byte> y_before = y.bytes, dx_before = inputs.dx.bytes;
  int expected_failures = 0;
  auto refused = [&](int status, const char* word) {
    CHECK(status == -1 && failed_with(word), "%s: status %d, %s", word,
          status, obn_last_error());
    obn_clear_error();
    ++expected_failures;
  };
  void *x = inputs.x.data(), *indices = inputs.indices.data();
  const BNNSDataType u32 = BNNSDataTypeUInt32;
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, nullptr, 0, y.data(), 0, u32, indices, 0), "input");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, x, 0, nullptr, 0, u32, indices, 0), "output");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, x, 0, x, 0, u32, indices, 0), "output");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, x, 0, y.data(), 0, BNNSDataTypeInt32, indices, 0), "indices");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 1, x, 0, y.data(), 0, u32, y.data(), 0), "indices");
  refused(BNNSPoolingFilterApplyBatchEx(filter, 2, x, 1, y.data(), 1, u32, indices, 0), "output");
  refused(BNNSPoolingFilterApplyBatchEx(nullptr, 1, x, 0, y.data(), 0, u32, indices, 0), "filter");

  auto backward = [&](const void* in, BNNSNDArrayDescriptor* dx, const void* out, BNNSNDArrayDescriptor* dy,
                      BNNSNDArrayDescriptor* gradient, BNNSDataType type, const void* at) {
    return BNNSPoolingFilterApplyBackwardBatchEx(filter, 1, in, 0, dx, 0, out, 0, dy, 0, gradient, type, at, 0);
  };
  BNNSNDArrayDescriptor *dx = &inputs.dx.descriptor, *dy = &inputs.dy.descriptor;
  refused(backward(x, dx, y.data(), nullptr, nullptr, u32, nullptr), "grad_output");
  refused(backward(nullptr, dx, y.data(), dy, nullptr, u32, nullptr), "input");
  refused(backward(x, dx, nullptr, dy, nullptr, u32, nullptr), "output");
  refused(backward(x, dx, y.data(), dy, nullptr, BNNSDataTypeInt64, indices), "indices");
  BNNSNDArrayDescriptor wrong = *dx;
  wrong.data = inputs.x.data();
  refused(backward(x, &wrong, y.data(), dy, nullptr, u32, nullptr), "input_gradient");
  wrong = *dx;
  wrong.data = nullptr;
  refused(backward(x, &wrong, y.data(), dy, nullptr, u32, nullptr), "input_gradient");
  wrong = *dx;
  wrong.size[0] = 3;
  refused(backward(x, &wrong, y.data(), dy, nullptr, u32, nullptr), "input_gradient");
  wrong = *dy;
  wrong.data_type = BNNSDataTypeFloat16;
  refused(backward(x, dx, y.data(), &wrong, nullptr, u32, nullptr), "grad_output");
  wrong = bias_gradient;
  wrong.size[0] = 2;
  refused(backward(x, dx, y.data(), dy, &wrong, u32, nullptr), "bias_gradient");
  wrong = bias_gradient;
  wrong.data = inputs.dx.data();
  refused(backward(x, dx, y.data(), dy, &wrong, u32, nullptr), "bias_gradient");
  CHECK(expected_failures == 17, "%d calls were tried", expected_failures);
  CHECK(y.bytes == y_before && inputs.dx.bytes == dx_before && db[0] == 5.0f, "a failing call wrote something");
  BNNSFilterDestroy(filter);
}

TEST(pooling_activation_that_needs_x_cannot_be_trained) {
  Shape shape;
  shape.activation = BNNSActivationFunctionSiLU;
  Array x = shape.input(), y = shape.output(), dx = shape.input(), dy = shape.output();
  const auto parameters = shape.parameters(nullptr);
  BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, x.data(), 0, &dx.descriptor, 0, y.data(), 0, &dy.descriptor, 0,
                                     nullptr, nullptr) == -1,
        "SiLU cannot be differentiated from its output");
  BNNSFilterDestroy(filter);
}

// Parameter blocks with a few random fields spoilt: either they are refused with a sentence, or they run.
TEST(pooling_random_parameter_blocks_never_crash) {
  Random random{8};
  int refused = 0, accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    Shape shape;
    shape.function = kFunctions[random.below(5)];
    shape.h = shape.w = 6;
    shape.kh = shape.kw = 2;
    shape.p = shape.q = 5;
    auto parameters = shape.parameters(nullptr);
    size_t* const words[] = {
        &parameters.k_width,          &parameters.k_height,          &parameters.x_stride,
        &parameters.y_stride,         &parameters.x_dilation_stride, &parameters.y_dilation_stride,
        &parameters.x_padding,        &parameters.y_padding,         &parameters.pad[0],
        &parameters.pad[1],           &parameters.pad[2],            &parameters.pad[3],
        &parameters.i_desc.size[0],   &parameters.o_desc.size[1],    &parameters.i_desc.stride[1],
        &parameters.o_desc.stride[2], &parameters.i_desc.size[2],    &parameters.o_desc.stride[0]};
    const size_t values[] = {0, 1, 2, 3, 7, 1u << 20, size_t{1} << 40, SIZE_MAX / 2, SIZE_MAX / 3, SIZE_MAX};
    for (size_t spoilt = random.between(1, 3); spoilt > 0; --spoilt)
      *words[random.below(std::size(words))] = values[random.below(std::size(values))];
    if (random.below(8) == 0) parameters.pooling_function = static_cast<BNNSPoolingFunction>(random.below(9));
    if (random.below(8) == 0) parameters.i_desc.data_type = static_cast<BNNSDataType>(random.next());
    if (random.below(8) == 0) parameters.o_desc.layout = static_cast<BNNSDataLayout>(random.next());
    if (random.below(8) == 0) parameters.activation.function = static_cast<BNNSActivationFunction>(random.below(40));
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&parameters, nullptr);
    if (!filter) {
      CHECK(*obn_last_error(), "refused without a sentence");
      ++refused;
      continue;
    }
    ++accepted;
    parameters.i_desc.data = parameters.o_desc.data = &parameters;  // only sizes are asked for
    const size_t in_bytes = BNNSNDArrayGetDataSize(&parameters.i_desc);
    const size_t out_bytes = BNNSNDArrayGetDataSize(&parameters.o_desc);
    if (in_bytes < 100000 && out_bytes < 100000) {
      std::vector<float> x(in_bytes / 4 + 1), y(out_bytes / 4 + 1);
      std::vector<size_t> indices(std::max(x.size(), y.size()) * 2, 0);
      BNNSPoolingFilterApplyBatch(filter, 1, x.data(), 0, y.data(), 0, indices.data(), 0);
      parameters.i_desc.data = x.data();
      parameters.o_desc.data = y.data();
      BNNSPoolingFilterApplyBackwardBatch(filter, 1, nullptr, 0, &parameters.i_desc, 0, y.data(), 0,
                                          &parameters.o_desc, 0, nullptr, indices.data(), 0);
    }
    BNNSFilterDestroy(filter);
  }
  CHECK(refused >= 1000 && accepted >= 100, "%d refused, %d accepted", refused, accepted);
}

}  // namespace obn::pooling
