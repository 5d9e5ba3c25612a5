// What the tests of convolution layers share: arrays with gaps that nobody may touch, a layer with its arrays, and its
// definition. (algorithm_test.h is for the algorithms behind the C interface.)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <vector>

#include "base/test_array.h"
#include "convolution/convolution.h"
#include "convolution/convolution_filter.h"
#include "openbnns/openbnns.h"

namespace obn::convolution::layer_test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- numbers ----

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  bool one_in(size_t n) { return below(n) == 0; }
  // Multiples of 1/4 between -4 and 4: exact in every type.
  float value() { return static_cast<float>(below(33)) * 0.25f - 4.0f; }
};

// ---- arrays ----

// No guard behind the values: sanitizers see what is read beyond them.
struct Image : ::obn::test::PlacedArray {
  Image() = default;
  Image(BNNSDataType type, size_t n, size_t c, size_t h, size_t w, size_t step = 1, size_t row_gap = 0,
        size_t plane_gap = 0, size_t sample_gap = 0, size_t first = 0)
      : PlacedArray(
            ::obn::test::spaced(type, BNNSDataLayoutImageCHW, {w, h, c}, {step - 1, row_gap, plane_gap}), n,
            sample_gap, first, 0) {}
};

// W(kx, ky, i, o), numbered kx + kw·(ky + kh·(i + in·o)) whatever the layout.
struct Weights : ::obn::test::PlacedArray {
  size_t kw = 0, kh = 0, in = 0, out = 0, groups = 1;

  Weights() = default;
  Weights(BNNSDataType type, BNNSDataLayout layout, size_t o, size_t i, size_t h, size_t w, size_t gap, size_t groups)
      : kw(w), kh(h), in(i), out(o), groups(groups) {
    descriptor.layout = layout;
    descriptor.data_type = type;
    const bool in_last = layout == BNNSDataLayoutConvolutionWeightsIOHrWr;
    const size_t size[] = {kw, kh, in_last ? out : in, in_last ? in : out};
    const size_t first_major[] = {in * groups, out / groups, kh, kw};
    std::copy_n(layout == BNNSDataLayout4DFirstMajor ? first_major : size, 4, descriptor.size);
    const bool is_packed = layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32;
    const size_t plane = (kw + gap) * kh + gap, stride[] = {1, kw + gap, plane, plane * size[2]};
    if (gap) std::copy_n(stride, 4, descriptor.stride);
    allocate(is_packed ? (out + 31) / 32 * 32 * in * kw * kh : stride[3] * size[3], 0);
    descriptor.data = data();
  }
  size_t count() const { return kw * kh * in * out; }
  size_t place_of(size_t k) const {
    const size_t kx = k % kw, ky = k / kw % kh, i = k / (kw * kh) % in, o = k / (kw * kh * in);
    const size_t* size = descriptor.size;
    size_t s1 = descriptor.stride[1], s2 = descriptor.stride[2], s3 = descriptor.stride[3];
    if (s1 == 0) s1 = size[0], s2 = s1 * size[1], s3 = s2 * size[2];
    const size_t of_group = out / groups;
    switch (descriptor.layout) {
      case BNNSDataLayout4DFirstMajor:
        return kx + kw * (ky + kh * (o % of_group + of_group * (o / of_group * in + i)));
      case BNNSDataLayoutConvolutionWeightsOIHW: return kx + ky * s1 + i * s2 + o * s3;
      case BNNSDataLayoutConvolutionWeightsOIHrWr: return kw - 1 - kx + (kh - 1 - ky) * s1 + i * s2 + o * s3;
      case BNNSDataLayoutConvolutionWeightsIOHrWr: return kw - 1 - kx + (kh - 1 - ky) * s1 + o * s2 + i * s3;
      default: return o % 32 + 32 * (kx + kw * (ky + kh * (i + in * (o / 32))));
    }
  }
  double get(size_t k) const { return get_at(place_of(k)); }
  void set(size_t k, double value) { set_at(place_of(k), value); }
  void fill(Random& random) {
    for (size_t k = 0; k < count(); ++k) set(k, random.value());
  }
};

struct Vector : ::obn::test::PlacedArray {
  Vector() = default;
  explicit Vector(size_t n, BNNSDataType type = BNNSDataTypeFloat32, size_t stride = 1)
      : PlacedArray(::obn::test::spaced(type, BNNSDataLayoutVector, {n}, {stride - 1}), 1, 0, 0, 0) {}
};

inline float rounding_of(BNNSDataType type) {
  return type == BNNSDataTypeFloat32 ? 0.0f : type == BNNSDataTypeFloat16 ? 0x1p-10f : 0x1p-7f;
}

// Values within a rounding of the type and 1e-5 of `size`, the sum of what was added up; memory between them untouched.
template <class A>
void check_values(A got, A before, const std::vector<double>& expected, const std::vector<double>& size,
                  const char* what) {
  const float rounding = rounding_of(got.descriptor.data_type);
  for (size_t i = 0; i < got.count(); ++i) {
    const double a = got.get(i), b = expected[i];
    CHECK(std::fabs(a - b) <= 1e-5 * (1.0 + size[i]) + static_cast<double>(rounding) * (0.1 + std::fabs(b)),
          "%s: value %zu is %g, expected %g", what, i, a, b);
    got.set(i, 0.0f);
    before.set(i, 0.0f);
  }
  CHECK(got.bytes == before.bytes, "%s: memory between the values was touched", what);
}

// ---- a layer and its definition ----

struct Layer {
  bool transposed = false;
  size_t n = 1, in = 1, out = 1, groups = 1;
  size_t h = 1, w = 1;  // input
  size_t p = 1, q = 1;  // output
  size_t kh = 1, kw = 1, sy = 1, sx = 1, dilation_y = 1, dilation_x = 1;
  size_t left = 0, right = 0, up = 0, down = 0;
  BNNSDataType x_type = BNNSDataTypeFloat32, w_type = BNNSDataTypeFloat32, y_type = BNNSDataTypeFloat32;
  BNNSDataLayout layout = BNNSDataLayoutConvolutionWeightsOIHW;
  size_t x_step = 1, x_gap = 0, y_step = 1, y_gap = 0, w_gap = 0, plane_gap = 0, sample_gap = 0, shift = 0;
  BNNSActivationFunction activation = BNNSActivationFunctionIdentity;
  bool has_bias = true, use_client_ptr = false, accumulate = false;
  size_t threads = 0;

  // The sizes that a convolution of the large image gives.
  void set_outputs(size_t surplus_y = 0, size_t surplus_x = 0) {
    size_t& rows = transposed ? h : p;
    size_t& columns = transposed ? w : q;
    const size_t large_h = transposed ? p : h, large_w = transposed ? q : w;
    rows = (large_h + up + down - (kh - 1) * dilation_y - 1) / sy + 1;
    columns = (large_w + left + right - (kw - 1) * dilation_x - 1) / sx + 1;
    rows -= std::min(surplus_y, rows - 1);
    columns -= std::min(surplus_x, columns - 1);
  }
  Image input() const { return Image(x_type, n, in, h, w, x_step, x_gap, plane_gap, sample_gap, shift); }
  Image output() const { return Image(y_type, n, out, p, q, y_step, y_gap, plane_gap, sample_gap, shift); }
  Weights weights() const { return Weights(w_type, layout, out, in / groups, kh, kw, w_gap, groups); }

  BNNSLayerParametersConvolution parameters(const Weights& weights, const Vector& bias) const {
    BNNSLayerParametersConvolution parameters = {};
    parameters.i_desc = input().descriptor;
    parameters.o_desc = output().descriptor;
    parameters.i_desc.data = parameters.o_desc.data = nullptr;
    parameters.w_desc = weights.descriptor;
    if (has_bias) parameters.bias = bias.descriptor;
    parameters.activation.function = activation;
    parameters.activation.alpha = 0.25f;
    parameters.x_stride = sx;
    parameters.y_stride = sy;
    parameters.x_dilation_stride = dilation_x;
    parameters.y_dilation_stride = dilation_y;
    parameters.groups = groups;
    const size_t pad[] = {left, right, up, down};
    std::copy_n(pad, 4, parameters.pad);
    return parameters;
  }
  BNNSFilter create(const Weights& weights, const Vector& bias) const {
    const auto parameters = this->parameters(weights, bias);
    BNNSFilterParameters filter_params = {};
    if (use_client_ptr) filter_params.flags = BNNSFlagsUseClientPtr;
    filter_params.n_threads = threads;
    return transposed ? BNNSFilterCreateLayerTransposedConvolution(&parameters, &filter_params)
                      : BNNSFilterCreateLayerConvolution(&parameters, &filter_params);
  }
  void print() const {
    std::printf("  %s n %zu (%zu, %zu, %zu) -> (%zu, %zu, %zu) groups %zu kernel (%zu, %zu) stride (%zu, %zu) dilation "
                "(%zu, %zu) pad %zu %zu %zu %zu types %s %s %s layout %s activation %u client %d accumulate %d\n",
                transposed ? "transposed" : "convolution", n, in, h, w, out, p, q, groups, kh, kw, sy, sx,
                dilation_y, dilation_x, left, right, up, down, name_of(x_type), name_of(w_type), name_of(y_type),
                name_of(layout), static_cast<unsigned>(activation), use_client_ptr, accumulate);
  }
};

// Calls body(x, y, w) for every product: value x of the input times weight w goes to value y of the output.
template <class Body>
void for_products(const Layer& l, const Body& body) {
  const size_t in = l.in / l.groups, out = l.out / l.groups;
  const size_t rows = l.transposed ? l.h : l.p, columns = l.transposed ? l.w : l.q;
  const size_t large_h = l.transposed ? l.p : l.h, large_w = l.transposed ? l.q : l.w;
  for (size_t n = 0; n < l.n; ++n)
    for (size_t o = 0; o < l.out; ++o)
      for (size_t i = 0; i < in; ++i)
        for (size_t ky = 0; ky < l.kh; ++ky)
          for (size_t kx = 0; kx < l.kw; ++kx)
            for (size_t p = 0; p < rows; ++p)
              for (size_t q = 0; q < columns; ++q) {
                const size_t v = l.sy * p + l.dilation_y * ky - l.up, u = l.sx * q + l.dilation_x * kx - l.left;
                if (v >= large_h || u >= large_w) continue;  // below 0 wraps around
                const size_t c = o / out * in + i;
                const size_t small = p * columns + q, large = v * large_w + u;
                const size_t x = (n * l.in + c) * l.h * l.w + (l.transposed ? small : large);
                const size_t y = (n * l.out + o) * l.p * l.q + (l.transposed ? large : small);
                body(x, y, kx + l.kw * (ky + l.kh * (i + in * o)));
              }
}

struct Inputs {
  Image x, dy;
  Weights w;
  Vector bias;
  Image dx;     // what is there before a gradient is added
  Weights dw;
  Vector db;
};

inline Inputs make_inputs(const Layer& layer, Random& random) {
  Inputs inputs{layer.input(), layer.output(), layer.weights(), Vector(layer.out), layer.input(), layer.weights(),
                Vector(layer.out)};
  inputs.x.fill(random);
  inputs.dy.fill(random);
  inputs.w.fill(random);
  inputs.bias.fill(random);
  inputs.dx.fill(random);
  inputs.dw.fill(random);
  inputs.db.fill(random);
  return inputs;
}

struct Results {
  Image y, dx;
  Weights dw;
  Vector db;
};

// Forward, then all gradients.
inline Results run(const Layer& layer, const Inputs& inputs) {
  Results results{layer.output(), inputs.dx, inputs.dw, inputs.db};
  Inputs in = inputs;
  BNNSFilter filter = layer.create(in.w, in.bias);
  CHECK(filter, "creation: %s", obn_last_error());
  if (!filter) return results;
  int status = BNNSFilterApplyBatch(filter, layer.n, in.x.data(), in.x.batch_stride, results.y.data(),
                                    results.y.batch_stride);
  CHECK(status == 0, "apply: %s", obn_last_error());
  const auto flags = layer.accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
  results.dx.descriptor.flags = results.dw.descriptor.flags = results.db.descriptor.flags = flags;
  status = BNNSFilterApplyBackwardBatch(filter, layer.n, in.x.data(), in.x.batch_stride, &results.dx.descriptor,
                                        results.dx.batch_stride, results.y.data(), results.y.batch_stride,
                                        &in.dy.descriptor, in.dy.batch_stride, &results.dw.descriptor,
                                        &results.db.descriptor);
  CHECK(status == 0, "backward: %s", obn_last_error());
  BNNSFilterDestroy(filter);
  return results;
}

inline bool is_softmax(BNNSActivationFunction f) {
  return f == BNNSActivationFunctionSoftmax || f == BNNSActivationFunctionLogSoftmax;
}

// act(z) and dy · act'(y), in double precision except the softmax family.
inline void activate(const Layer& l, std::vector<double>* z) {
  if (!is_softmax(l.activation)) {
    for (double& value : *z) value = activation::ref::forward(l.activation, value, 0.25, 0.0);
    return;
  }
  std::vector<float> row(z->begin(), z->end());
  for (size_t i = 0; i < row.size(); i += l.q)
    activation::ref::softmax(&row[i], &row[i], l.q, 1, l.activation == BNNSActivationFunctionLogSoftmax);
  z->assign(row.begin(), row.end());
}

inline std::vector<double> gradient_before_activation(const Layer& l, const Image& y, const Image& dy) {
  std::vector<double> dz(y.count());
  if (!is_softmax(l.activation)) {
    for (size_t i = 0; i < dz.size(); ++i)
      dz[i] = static_cast<double>(dy.get(i)) * activation::ref::slope_from_y(l.activation, y.get(i), 0.25, 0.0);
    return dz;
  }
  std::vector<float> ys(dz.size()), row(dz.size());
  for (size_t i = 0; i < dz.size(); ++i) ys[i] = y.get(i), row[i] = dy.get(i);
  for (size_t i = 0; i < row.size(); i += l.q)
    activation::ref::softmax_backward(&ys[i], &row[i], &row[i], l.q, 1,
                                      l.activation == BNNSActivationFunctionLogSoftmax);
  dz.assign(row.begin(), row.end());
  return dz;
}

// One layer through the C interface against the definition.
inline void check_layer(const Layer& l, Random& random) {
  const int failures_before = ::obn::test::failures;
  const Inputs in = make_inputs(l, random);
  const Results got = run(l, in);

  const size_t ys = l.n * l.out * l.p * l.q, xs = l.n * l.in * l.h * l.w, ws = in.w.count();
  std::vector<double> y(ys), y_size(ys), dx(xs), dx_size(xs), dw(ws), dw_size(ws), db(l.out), db_size(l.out);
  const auto channel = [&](size_t i) { return i / (l.p * l.q) % l.out; };
  for (size_t i = 0; i < ys; ++i) y[i] = l.has_bias ? in.bias.get(channel(i)) : 0.0;
  for_products(l, [&](size_t xi, size_t yi, size_t wi) {
    y[yi] += static_cast<double>(in.x.get(xi)) * in.w.get(wi);
    y_size[yi] += std::fabs(in.x.get(xi) * in.w.get(wi));
  });
  activate(l, &y);
  check_values(got.y, l.output(), y, y_size, "output");

  const std::vector<double> dz = gradient_before_activation(l, got.y, in.dy);
  if (l.accumulate) {
    for (size_t i = 0; i < xs; ++i) dx[i] = in.dx.get(i);
    for (size_t i = 0; i < ws; ++i) dw[i] = in.dw.get(i);
    for (size_t i = 0; i < l.out; ++i) db[i] = in.db.get(i);
  }
  for_products(l, [&](size_t xi, size_t yi, size_t wi) {
    const double w = in.w.get(wi), x = in.x.get(xi);
    dx[xi] += w * dz[yi];
    dx_size[xi] += std::fabs(w * dz[yi]);
    dw[wi] += x * dz[yi];
    dw_size[wi] += std::fabs(x * dz[yi]);
  });
  for (size_t i = 0; i < ys; ++i) {
    db[channel(i)] += dz[i];
    db_size[channel(i)] += std::fabs(dz[i]);
  }
  check_values(got.dx, in.dx, dx, dx_size, "input_gradient");
  check_values(got.db, in.db, db, db_size, "bias_gradient");
  Weights dw_before = in.dw;
  if (l.layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32) {
    for (size_t i = 0; i < dw_before.bytes.size() / bytes_of(l.w_type); ++i) dw_before.set_at(i, 0.0f);
  }
  check_values(got.dw, dw_before, dw, dw_size, "weights_gradient");
  if (::obn::test::failures != failures_before) l.print();
}

inline constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
inline constexpr BNNSDataLayout kLayouts[] = {
    BNNSDataLayoutConvolutionWeightsOIHW, BNNSDataLayoutConvolutionWeightsOIHrWr,
    BNNSDataLayoutConvolutionWeightsIOHrWr, BNNSDataLayoutConvolutionWeightsOIHW_Pack32};
inline constexpr BNNSActivationFunction kActivations[] = {
    BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionSigmoid, BNNSActivationFunctionSoftmax,
    BNNSActivationFunctionLeakyRectifiedLinear, BNNSActivationFunctionLogSoftmax};

inline Layer random_layer(Random& random) {
  Layer l;
  l.transposed = random.one_in(3);
  l.n = random.one_in(10) ? random.between(kSumGroups, 40) : random.between(1, 5);
  if (random.one_in(3)) l.groups = random.between(1, 4);
  l.in = l.groups * random.between(1, 5);
  l.out = l.groups * random.between(1, random.one_in(8) ? 40 : 5);
  l.kh = random.between(1, 4);
  l.kw = random.between(1, 4);
  if (random.one_in(3)) l.kh = l.kw = 3;
  if (random.one_in(6)) l.kh = l.kw = 1;
  if (random.one_in(2)) l.sy = random.between(1, 3), l.sx = random.between(1, 3);
  if (random.one_in(4)) l.dilation_y = random.between(1, 3), l.dilation_x = random.between(1, 3);
  if (random.one_in(2)) {
    l.left = random.below(4);
    l.right = random.below(4);
    l.up = random.below(4);
    l.down = random.below(4);
  }
  // The large image is at least the kernel.
  const size_t reach_y = (l.kh - 1) * l.dilation_y, reach_x = (l.kw - 1) * l.dilation_x;
  const size_t rows = std::max<size_t>(1, reach_y + 1 > l.up + l.down ? reach_y + 1 - l.up - l.down : 1);
  const size_t columns = std::max<size_t>(1, reach_x + 1 > l.left + l.right ? reach_x + 1 - l.left - l.right : 1);
  (l.transposed ? l.p : l.h) = rows + random.below(9);
  (l.transposed ? l.q : l.w) = columns + random.below(random.one_in(4) ? 40 : 9);
  l.set_outputs(random.one_in(4) ? random.below(3) : 0, random.one_in(4) ? random.below(3) : 0);
  if (l.groups == 1) l.layout = kLayouts[random.below(4)];
  if (l.transposed && random.one_in(3)) l.layout = BNNSDataLayout4DFirstMajor;
  if (random.one_in(3)) {
    l.x_type = kTypes[random.below(3)];
    l.w_type = kTypes[random.below(3)];
    l.y_type = kTypes[random.below(3)];
  }
  if (random.one_in(4)) l.x_step = random.between(1, 2), l.y_step = random.between(1, 2);
  if (random.one_in(3)) {
    l.x_gap = random.below(4);
    l.y_gap = random.below(4);
    l.plane_gap = random.below(4);
    l.sample_gap = random.below(4);
    l.shift = random.below(4);
  }
  if (random.one_in(4) && l.layout != BNNSDataLayoutConvolutionWeightsOIHW_Pack32 &&
      l.layout != BNNSDataLayout4DFirstMajor)
    l.w_gap = random.below(3);
  if (random.one_in(2)) l.activation = kActivations[random.below(5)];
  l.has_bias = !random.one_in(4);
  l.use_client_ptr = random.one_in(2);
  l.accumulate = random.one_in(2);
  return l;
}

}  // namespace obn::convolution::layer_test
