// What the tests of pooling share: arrays with gaps, one geometry with its arrays, and everything one filter computes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "base/test_array.h"
#include "openbnns/openbnns.h"
#include "pooling/pooling.h"

namespace obn::pooling::layer_test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

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

inline Inputs make_inputs(const Shape& shape, Random& random) {
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
inline Results run(const Shape& shape, Inputs inputs, const Kernels* kernels, const char* on) {
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
inline std::vector<Target> all_targets() { return ::obn::test::all_targets(targets); }

inline constexpr BNNSPoolingFunction kFunctions[] = {
    BNNSPoolingFunctionMax, BNNSPoolingFunctionAverageCountIncludePadding,
    BNNSPoolingFunctionAverageCountExcludePadding, BNNSPoolingFunctionUnMax, BNNSPoolingFunctionL2Norm};
inline constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};

}  // namespace obn::pooling::layer_test
