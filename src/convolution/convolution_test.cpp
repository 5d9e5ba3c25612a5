// Convolution: the C interface against the definition, and its promises.
#include "convolution/convolution.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/memory.h"
#include "base/test.h"
#include "convolution/convolution_filter.h"
#include "openbnns/bnns/legacy.h"
#include "openbnns/openbnns.h"

namespace obn::convolution {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- numbers ----

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  bool one_in(size_t n) { return below(n) == 0; }
  // Multiples of 1/4 between -4 and 4: exact in every type.
  float value() { return static_cast<float>(below(33)) * 0.25f - 4.0f; }
};

// ---- arrays ----

// Any descriptor with memory of its own, filled with a pattern that nobody may touch between the values. Values are
// numbered by their logical place, fastest first.
struct Array {
  BNNSNDArrayDescriptor descriptor = {};
  size_t batch = 1;
  size_t batch_stride = 0;
  std::vector<std::byte> bytes;
  size_t shift = 0;  // values between the start of the memory and the first value: unaligned arrays

  Array() = default;
  Array(const Array& other) { *this = other; }
  Array& operator=(const Array& other) {
    descriptor = other.descriptor;
    batch = other.batch;
    batch_stride = other.batch_stride;
    bytes = other.bytes;
    shift = other.shift;
    place();
    return *this;
  }
  void allocate(size_t values) {
    bytes.assign((values + shift) * bytes_of(descriptor.data_type), std::byte{0x3c});
    place();
  }
  void place() {
    descriptor.data = bytes.empty() ? nullptr : bytes.data() + shift * bytes_of(descriptor.data_type);
  }
  void* data() { return descriptor.data; }

  float get_at(size_t at) const {
    const auto* p = static_cast<const std::byte*>(descriptor.data) + at * bytes_of(descriptor.data_type);
    float value = 0.0f;
    uint16_t half = 0;
    switch (descriptor.data_type) {
      case BNNSDataTypeFloat32: std::memcpy(&value, p, 4); return value;
      case BNNSDataTypeFloat16: std::memcpy(&half, p, 2); return float_of_float16(half);
      case BNNSDataTypeBFloat16: std::memcpy(&half, p, 2); return float_of_bfloat16(half);
      case BNNSDataTypeInt8: return static_cast<float>(static_cast<int8_t>(*p));
      default: return static_cast<float>(static_cast<uint8_t>(*p));
    }
  }
  void set_at(size_t at, float value) {
    auto* p = static_cast<std::byte*>(descriptor.data) + at * bytes_of(descriptor.data_type);
    uint16_t half = 0;
    switch (descriptor.data_type) {
      case BNNSDataTypeFloat32: std::memcpy(p, &value, 4); return;
      case BNNSDataTypeFloat16: half = float16_of_float(value); break;
      case BNNSDataTypeBFloat16: half = bfloat16_of_float(value); break;
      default: *p = static_cast<std::byte>(static_cast<int>(value)); return;
    }
    std::memcpy(p, &half, 2);
  }
};

struct Image : Array {
  Image() = default;
  Image(BNNSDataType type, size_t n, size_t c, size_t h, size_t w, size_t step = 1, size_t row_gap = 0,
        size_t plane_gap = 0, size_t sample_gap = 0, size_t first = 0) {
    batch = n;
    shift = first;
    descriptor.layout = BNNSDataLayoutImageCHW;
    descriptor.data_type = type;
    const size_t size[] = {w, h, c}, stride[] = {step, step * w + row_gap, (step * w + row_gap) * h + plane_gap};
    std::copy_n(size, 3, descriptor.size);
    std::copy_n(stride, 3, descriptor.stride);
    batch_stride = stride[2] * c + sample_gap;
    allocate(batch_stride * n);
  }
  size_t count() const { return batch * descriptor.size[0] * descriptor.size[1] * descriptor.size[2]; }
  size_t place_of(size_t i) const {
    const size_t *size = descriptor.size, *stride = descriptor.stride;
    return i % size[0] * stride[0] + i / size[0] % size[1] * stride[1] + i / (size[0] * size[1]) % size[2] * stride[2] +
           i / (size[0] * size[1] * size[2]) * batch_stride;
  }
  float get(size_t i) const { return get_at(place_of(i)); }
  void set(size_t i, float value) { set_at(place_of(i), value); }
  void fill(Random& random) {
    for (size_t i = 0; i < count(); ++i) set(i, random.value());
  }
};

// W(kx, ky, i, o), numbered kx + kw·(ky + kh·(i + in·o)) whatever the layout.
struct Weights : Array {
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
    allocate(is_packed ? (out + 31) / 32 * 32 * in * kw * kh : stride[3] * size[3]);
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
  float get(size_t k) const { return get_at(place_of(k)); }
  void set(size_t k, float value) { set_at(place_of(k), value); }
  void fill(Random& random) {
    for (size_t k = 0; k < count(); ++k) set(k, random.value());
  }
};

struct Vector : Array {
  Vector() = default;
  explicit Vector(size_t n, BNNSDataType type = BNNSDataTypeFloat32, size_t stride = 1) {
    descriptor.layout = BNNSDataLayoutVector;
    descriptor.data_type = type;
    descriptor.size[0] = n;
    descriptor.stride[0] = stride;
    if (n) allocate(n * stride);
  }
  size_t count() const { return descriptor.size[0]; }
  size_t place_of(size_t i) const { return i * descriptor.stride[0]; }
  float get(size_t i) const { return get_at(place_of(i)); }
  void set(size_t i, float value) { set_at(place_of(i), value); }
  void fill(Random& random) {
    for (size_t i = 0; i < count(); ++i) set(i, random.value());
  }
};

float rounding_of(BNNSDataType type) {
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
  size_t kh = 1, kw = 1, sy = 1, sx = 1, dy = 1, dx = 1;
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
    rows = (large_h + up + down - (kh - 1) * dy - 1) / sy + 1;
    columns = (large_w + left + right - (kw - 1) * dx - 1) / sx + 1;
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
    parameters.x_dilation_stride = dx;
    parameters.y_dilation_stride = dy;
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
                transposed ? "transposed" : "convolution", n, in, h, w, out, p, q, groups, kh, kw, sy, sx, dy, dx, left,
                right, up, down, name_of(x_type), name_of(w_type), name_of(y_type), name_of(layout),
                static_cast<unsigned>(activation), use_client_ptr, accumulate);
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
                const size_t v = l.sy * p + l.dy * ky - l.up, u = l.sx * q + l.dx * kx - l.left;
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

Inputs make_inputs(const Layer& layer, Random& random) {
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
Results run(const Layer& layer, const Inputs& inputs) {
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

bool is_softmax(BNNSActivationFunction f) {
  return f == BNNSActivationFunctionSoftmax || f == BNNSActivationFunctionLogSoftmax;
}

// act(z) and dy · act'(y), in double precision except the softmax family.
void activate(const Layer& l, std::vector<double>* z) {
  if (!is_softmax(l.activation)) {
    for (double& value : *z) value = activation::ref::forward(l.activation, value, 0.25, 0.0);
    return;
  }
  std::vector<float> row(z->begin(), z->end());
  for (size_t i = 0; i < row.size(); i += l.q)
    activation::ref::softmax(&row[i], &row[i], l.q, 1, l.activation == BNNSActivationFunctionLogSoftmax);
  z->assign(row.begin(), row.end());
}

std::vector<double> gradient_before_activation(const Layer& l, const Image& y, const Image& dy) {
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
void check_layer(const Layer& l, Random& random) {
  const int failures_before = test::failures;
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
  if (test::failures != failures_before) l.print();
}

constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
constexpr BNNSDataLayout kLayouts[] = {
    BNNSDataLayoutConvolutionWeightsOIHW, BNNSDataLayoutConvolutionWeightsOIHrWr,
    BNNSDataLayoutConvolutionWeightsIOHrWr, BNNSDataLayoutConvolutionWeightsOIHW_Pack32};
constexpr BNNSActivationFunction kActivations[] = {BNNSActivationFunctionRectifiedLinear,
                                                   BNNSActivationFunctionSigmoid, BNNSActivationFunctionSoftmax,
                                                   BNNSActivationFunctionLeakyRectifiedLinear,
                                                   BNNSActivationFunctionLogSoftmax};

Layer random_layer(Random& random) {
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
  if (random.one_in(4)) l.dy = random.between(1, 3), l.dx = random.between(1, 3);
  if (random.one_in(2)) {
    l.left = random.below(4);
    l.right = random.below(4);
    l.up = random.below(4);
    l.down = random.below(4);
  }
  // The large image is at least the kernel.
  const size_t reach_y = (l.kh - 1) * l.dy, reach_x = (l.kw - 1) * l.dx;
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

}  // namespace

// ---- vectors of the specification ----

TEST(convolution_reproduces_the_documented_vectors) {
  const auto apply = [](const Layer& layer, std::vector<float> x, std::vector<float> w, float bias) {
    Weights weights = layer.weights();
    Vector b(1);
    b.set(0, bias);
    for (size_t k = 0; k < w.size(); ++k) weights.set(k, w[k]);
    std::vector<float> y(layer.out * layer.p * layer.q);
    BNNSFilter filter = layer.create(weights, b);
    CHECK(filter, "%s", obn_last_error());
    CHECK(BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
    BNNSFilterDestroy(filter);
    return y;
  };
  Layer layer;
  layer.h = layer.w = 3;
  layer.kh = layer.kw = 2;
  layer.set_outputs();
  std::vector<float> y = apply(layer, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1, 1, 1}, 0);
  CHECK((y == std::vector<float>{12, 16, 24, 28}), "%g %g %g %g", y[0], y[1], y[2], y[3]);

  layer.h = layer.w = 4;
  layer.kh = layer.kw = 3;
  layer.set_outputs();
  y = apply(layer, {0, 43, 3, 30, 0, 98, 0, 0, 7, 38, 0, 0, 19, 20, 175, 50}, {-2, 0, 1, 0, 1, 0, -1, -2, 0}, 0.5f);
  CHECK((y == std::vector<float>{18.5f, -93.5f, -20.5f, -565.5f}), "%g %g %g %g", y[0], y[1], y[2], y[3]);

  layer = {};
  layer.in = 3;
  layer.h = layer.w = layer.kh = layer.kw = 2;
  layer.set_outputs();
  y = apply(layer, {10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33}, std::vector<float>(12, 1.0f / 12), 0);
  CHECK(std::fabs(y[0] - 21.5f) < 1e-5f, "%g", y[0]);

  layer = {};
  layer.transposed = true;
  layer.p = layer.q = 4;
  layer.kh = layer.kw = 2;
  layer.set_outputs();
  y = apply(layer, std::vector<float>(9, 1.0f), {1, 1, 1, 1}, 0);
  CHECK((y == std::vector<float>{1, 2, 2, 1, 2, 4, 4, 2, 2, 4, 4, 2, 1, 2, 2, 1}), "transposed ones");
  layer.p = layer.q = layer.h = layer.w = 2;
  layer.kh = layer.kw = 1;
  y = apply(layer, {1, 2, 3, 4}, {2}, 0);
  CHECK((y == std::vector<float>{2, 4, 6, 8}), "transposed 1x1");
}

// ---- the definition ----

TEST(convolution_random_layers_agree_with_the_definition) {
  Random random{1};
  for (int round = 0; round < 1500; ++round) check_layer(random_layer(random), random);
}

TEST(convolution_common_shapes_agree_with_the_definition) {
  Random random{2};
  struct Shape {
    size_t n, in, out, h, w, k, s, pad, groups;
  };
  const Shape shapes[] = {{2, 16, 16, 14, 14, 3, 1, 1, 1},  {1, 3, 8, 17, 15, 7, 2, 3, 1},
                          {2, 32, 16, 7, 7, 1, 1, 0, 1},    {2, 8, 16, 9, 10, 3, 2, 1, 1},
                          {2, 12, 12, 9, 17, 3, 1, 1, 12},  {3, 1, 32, 10, 10, 3, 1, 1, 1},
                          {1, 8, 8, 8, 8, 5, 1, 2, 1},      {2, 4, 8, 6, 20, 3, 1, 1, 4},
                          {1, 6, 4, 5, 5, 4, 2, 1, 2}};
  for (const Shape& shape : shapes)
    for (bool transposed : {false, true})
      for (auto activation : {BNNSActivationFunctionIdentity, BNNSActivationFunctionRectifiedLinear}) {
        Layer l;
        l.transposed = transposed;
        l.n = shape.n;
        l.in = transposed ? shape.out : shape.in;
        l.out = transposed ? shape.in : shape.out;
        l.kh = l.kw = shape.k;
        l.sy = l.sx = shape.s;
        l.left = l.right = l.up = l.down = shape.pad;
        l.groups = shape.groups;
        (transposed ? l.p : l.h) = shape.h;
        (transposed ? l.q : l.w) = shape.w;
        l.set_outputs();
        l.activation = activation;
        l.use_client_ptr = true;
        check_layer(l, random);
      }
}

TEST(convolution_weight_layouts_hold_the_same_weights) {
  Random random{3};
  Layer l;
  l.in = 5;
  l.out = 37;  // one full block of 32 lanes and a part
  l.h = 6;
  l.w = 7;
  l.kh = 2;
  l.kw = 3;
  l.n = 2;
  l.set_outputs();
  const Inputs plain = make_inputs(l, random);
  const Results expected = run(l, plain);
  for (BNNSDataLayout layout : kLayouts)
    for (bool use_client_ptr : {false, true})
      for (bool accumulate : {false, true}) {
        l.layout = layout;
        l.use_client_ptr = use_client_ptr;
        l.accumulate = accumulate;
        Inputs in = plain;
        in.w = l.weights();
        in.dw = l.weights();
        // Lanes of padding must not be read.
        if (layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
          for (size_t i = 0; i < in.w.bytes.size() / sizeof(float); ++i) in.w.set_at(i, kNan), in.dw.set_at(i, kNan);
        for (size_t k = 0; k < in.w.count(); ++k) in.w.set(k, plain.w.get(k)), in.dw.set(k, 1.0f);
        Results got = run(l, in);
        CHECK(got.y.bytes == expected.y.bytes, "output in layout %s", name_of(layout));
        size_t zeros = 0;
        for (size_t k = 0; k < got.dw.count(); ++k) {
          const float wanted = expected.dw.get(k) + (accumulate ? 1.0f : 0.0f);
          CHECK(std::fabs(got.dw.get(k) - wanted) <= 1e-4f, "dw %zu in layout %s: %g, expected %g", k, name_of(layout),
                got.dw.get(k), wanted);
          got.dw.set(k, 1.0f);
        }
        for (size_t i = 0; i < got.dw.bytes.size() / sizeof(float); ++i) zeros += got.dw.get_at(i) == 0.0f;
        CHECK(zeros == got.dw.bytes.size() / sizeof(float) - got.dw.count(), "%zu lanes of padding are 0", zeros);
      }
}

TEST(convolution_transposed_takes_weights_in_the_order_of_its_problem) {
  Random random{21};
  for (size_t groups : {1, 3})
    for (bool use_client_ptr : {false, true}) {
      Layer l;
      l.transposed = true;
      l.in = 6;
      l.out = 9;
      l.groups = groups;
      l.n = l.kh = l.sy = 2;
      l.kw = 3;
      l.p = 8;
      l.q = 7;
      l.use_client_ptr = use_client_ptr;
      l.set_outputs();
      const Inputs plain = make_inputs(l, random);
      const Results expected = run(l, plain);

      // The same as (in, out / groups, kh, kw).
      const size_t taps = l.kh * l.kw, in = l.in / groups, out = l.out / groups;
      const auto place_of = [&](size_t k) {
        const size_t i = k / taps % in, o = k / (taps * in);
        return k % taps + taps * (o % out + out * (i + in * (o / out)));
      };
      Inputs ordered = plain;
      for (Weights* w : {&ordered.w, &ordered.dw}) {
        w->descriptor.layout = BNNSDataLayout4DFirstMajor;
        const size_t size[] = {l.in, out, l.kh, l.kw};
        std::copy_n(size, 4, w->descriptor.size);
      }
      for (size_t k = 0; k < plain.w.count(); ++k) ordered.w.set_at(place_of(k), plain.w.get(k));
      const Results got = run(l, ordered);
      CHECK(got.y.bytes == expected.y.bytes, "output with %zu groups", groups);
      CHECK(got.dx.bytes == expected.dx.bytes, "dx with %zu groups", groups);
      for (size_t k = 0; k < plain.w.count(); ++k)
        CHECK(got.dw.get_at(place_of(k)) == expected.dw.get(k), "dw %zu with %zu groups: %g, expected %g", k, groups,
              got.dw.get_at(place_of(k)), expected.dw.get(k));
    }
}

TEST(convolution_strides_of_single_rows_and_columns_are_free) {
  Random random{13};
  for (size_t h : {1, 2})
    for (size_t w : {1, 20})
      for (size_t c : {1, 8}) {
        Layer l;
        l.n = 2;
        l.in = l.out = c;
        l.h = h;
        l.w = w;
        l.kh = l.kw = 3;
        l.left = l.right = l.up = l.down = 1;
        l.set_outputs();
        l.activation = BNNSActivationFunctionTanh;
        Inputs in = make_inputs(l, random);
        const Results expected = run(l, in);
        auto parameters = l.parameters(in.w, in.bias);
        Results got{l.output(), in.dx, in.dw, in.db};
        for (auto* image : {&parameters.i_desc, &parameters.o_desc, &in.dy.descriptor, &got.dx.descriptor}) {
          if (w == 1) image->stride[0] = 0, image->stride[1] = 1;
          if (h == 1) image->stride[1] = image->stride[0];
          if (c == 1) image->stride[2] = image->stride[1];
        }
        BNNSFilter filter = BNNSFilterCreateLayerConvolution(&parameters, nullptr);
        CHECK(filter, "%s", obn_last_error());
        const size_t step = c * h * w;
        CHECK(BNNSFilterApplyBatch(filter, l.n, in.x.data(), step, got.y.data(), step) == 0, "%s", obn_last_error());
        CHECK(BNNSFilterApplyBackwardBatch(filter, l.n, in.x.data(), step, &got.dx.descriptor, step, got.y.data(), step,
                                           &in.dy.descriptor, step, &got.dw.descriptor, &got.db.descriptor) == 0,
              "%s", obn_last_error());
        CHECK(got.y.bytes == expected.y.bytes, "output (%zu, %zu, %zu)", c, h, w);
        CHECK(got.dx.bytes == expected.dx.bytes, "input_gradient (%zu, %zu, %zu)", c, h, w);
        CHECK(got.dw.bytes == expected.dw.bytes, "weights_gradient (%zu, %zu, %zu)", c, h, w);
        CHECK(got.db.bytes == expected.db.bytes, "bias_gradient (%zu, %zu, %zu)", c, h, w);
        BNNSFilterDestroy(filter);
      }
}

// ---- integers and tables ----

namespace {

// The definition on real numbers.
using Real = std::function<double(float)>;  // what a stored number stands for
std::vector<double> real_output(const Layer& l, const Image& x, const Weights& w, const Vector& bias,
                                const Real& x_real, const Real& w_real) {
  std::vector<double> y(l.n * l.out * l.p * l.q);
  for (size_t i = 0; i < y.size(); ++i) y[i] = bias.get(i / (l.p * l.q) % l.out);
  for_products(l, [&](size_t xi, size_t yi, size_t wi) { y[yi] += x_real(x.get(xi)) * w_real(w.get(wi)); });
  return y;
}

Layer integer_layer(Random& random) {
  Layer l;
  l.n = 2;
  l.groups = random.between(1, 2);
  l.in = 4 * l.groups;
  l.out = 3 * l.groups;
  l.h = random.between(4, 9);
  l.w = random.between(4, 40);
  l.kh = 3;
  l.kw = random.between(1, 3);
  l.sx = random.between(1, 2);
  l.left = random.below(3);
  l.down = random.below(3);
  l.x_step = random.between(1, 2);
  l.set_outputs();
  l.use_client_ptr = random.one_in(2);
  return l;
}

}  // namespace

TEST(convolution_of_bytes_sums_integers) {
  Random random{4};
  constexpr BNNSDataType kBytes[] = {BNNSDataTypeInt8, BNNSDataTypeUInt8};
  for (int round = 0; round < 200; ++round) {
    Layer l = integer_layer(random);
    l.x_type = kBytes[random.below(2)];
    l.w_type = random.one_in(4) ? BNNSDataTypeUInt8 : BNNSDataTypeInt8;
    constexpr BNNSDataType kOutputs[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeInt8, BNNSDataTypeUInt8};
    l.y_type = kOutputs[random.below(4)];
    Image x = l.input(), y = l.output();
    Weights w = l.weights();
    Vector bias(l.out);
    bias.fill(random);
    for (size_t i = 0; i < x.count(); ++i)
      x.set(i, static_cast<float>(random.below(256)) - (l.x_type == BNNSDataTypeInt8 ? 128.0f : 0.0f));
    for (size_t i = 0; i < w.count(); ++i)
      w.set(i, static_cast<float>(random.below(256)) - (l.w_type == BNNSDataTypeInt8 ? 128.0f : 0.0f));
    auto parameters = l.parameters(w, bias);
    parameters.i_desc.data_scale = 0.5f;
    parameters.w_desc.data_scale = 0.25f;
    if (random.one_in(2)) parameters.i_desc.data_bias = 3.0f;
    if (random.one_in(2)) parameters.w_desc.data_bias = -2.0f;
    parameters.o_desc.data_scale = 1024.0f;
    parameters.o_desc.data_bias = 5.0f;
    BNNSFilterParameters client = {};
    if (l.use_client_ptr) client.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerConvolution(&parameters, &client);
    CHECK(filter, "%s", obn_last_error());
    const int status =
        BNNSFilterApplyBatch(filter, l.n, x.data(), x.batch_stride, y.data(), y.batch_stride);
    CHECK(status == 0, "%s", obn_last_error());
    BNNSFilterDestroy(filter);
    const auto real = real_output(
        l, x, w, bias, [&](float v) { return 0.5 * static_cast<double>(v) + parameters.i_desc.data_bias; },
        [&](float v) { return 0.25 * static_cast<double>(v) + parameters.w_desc.data_bias; });
    for (size_t i = 0; i < y.count(); ++i) {
      double expected = real[i];
      if (!is_float(l.y_type)) {
        const double low = l.y_type == BNNSDataTypeInt8 ? -128 : 0, high = low + 255;
        expected = std::clamp(std::nearbyint(real[i] / 1024.0 - 5.0), low, high);
      } else if (l.y_type == BNNSDataTypeFloat16) {
        expected = float_of_float16(float16_of_float(static_cast<float>(real[i])));
      }
      CHECK(static_cast<double>(y.get(i)) == expected, "value %zu is %g, expected %g", i,
            static_cast<double>(y.get(i)), expected);
    }
  }
}

TEST(convolution_of_bytes_does_not_overflow) {
  // 300 · 300 taps of 255 · -128: more than 32 bits hold.
  Layer l;
  l.h = l.w = l.kh = l.kw = 300;
  l.x_type = BNNSDataTypeUInt8;
  l.w_type = BNNSDataTypeInt8;
  l.has_bias = false;
  Image x = l.input(), y = l.output();
  Weights w = l.weights();
  std::fill(x.bytes.begin(), x.bytes.end(), std::byte{255});
  std::fill(w.bytes.begin(), w.bytes.end(), std::byte{0x80});
  BNNSFilter filter = l.create(w, Vector());
  CHECK(BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  CHECK(y.get(0) == 90000.0f * 255.0f * -128.0f, "%g", y.get(0));
}

TEST(convolution_mixed_integers_and_tables_are_real_numbers) {
  Random random{5};
  for (int round = 0; round < 60; ++round) {
    Layer l = integer_layer(random);
    l.x_type = random.one_in(2) ? BNNSDataTypeUInt8 : BNNSDataTypeFloat32;
    const bool is_table = l.x_type == BNNSDataTypeUInt8 || random.one_in(2);
    l.w_type = is_table ? BNNSDataTypeIndexed8 : BNNSDataTypeInt8;
    float table[256];
    for (float& value : table) value = random.value();
    Image x = l.input(), y = l.output();
    Weights w = l.weights();
    Vector bias(l.out);
    bias.fill(random);
    for (size_t i = 0; i < x.count(); ++i) x.set(i, static_cast<float>(random.below(100)));
    for (size_t i = 0; i < w.count(); ++i) w.set(i, static_cast<float>(random.below(100)));
    auto parameters = l.parameters(w, bias);
    parameters.i_desc.data_scale = 0.5f;
    parameters.w_desc.data_scale = 2.0f;
    parameters.w_desc.table_data = table;
    parameters.w_desc.table_data_type = BNNSDataTypeFloat32;
    BNNSFilterParameters client = {};
    if (l.use_client_ptr) client.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerConvolution(&parameters, &client);
    CHECK(filter, "%s", obn_last_error());
    CHECK(BNNSFilterApplyBatch(filter, l.n, x.data(), x.batch_stride, y.data(), y.batch_stride) == 0, "%s",
          obn_last_error());
    Image dx = l.input(), dy = l.output();
    CHECK(BNNSFilterApplyBackwardBatch(filter, l.n, x.data(), x.batch_stride, &dx.descriptor, dx.batch_stride, nullptr,
                                       0, &dy.descriptor, dy.batch_stride, nullptr, nullptr) == -1,
          "integers have no gradient");
    BNNSFilterDestroy(filter);
    const double x_scale = l.x_type == BNNSDataTypeUInt8 ? 0.5 : 1.0;
    const auto real = real_output(
        l, x, w, bias, [&](float v) { return x_scale * static_cast<double>(v); },
        [&](float v) { return is_table ? table[static_cast<size_t>(v)] : 2.0 * static_cast<double>(v); });
    for (size_t i = 0; i < y.count(); ++i)
      CHECK(std::fabs(y.get(i) - real[i]) <= 0.1, "value %zu is %g, expected %g", i, static_cast<double>(y.get(i)),
            real[i]);
  }
}

// ---- promises ----

TEST(convolution_any_number_of_threads_gives_the_same_bits) {
  Random random{6};
  const size_t threads_before = obn_get_num_threads();
  obn_set_num_threads(7);
  for (int round = 0; round < 60; ++round) {
    Layer l = random_layer(random);
    l.n = random.between(1, 20);
    if (random.one_in(2)) l.in *= 8, l.out *= 8;
    const Inputs in = make_inputs(l, random);
    l.threads = 1;
    const Results one = run(l, in);
    for (size_t threads : {2, 7}) {
      l.threads = threads;
      const Results many = run(l, in);
      CHECK(one.y.bytes == many.y.bytes, "output with %zu threads", threads);
      CHECK(one.dx.bytes == many.dx.bytes, "input_gradient with %zu threads", threads);
      CHECK(one.dw.bytes == many.dw.bytes, "weights_gradient with %zu threads", threads);
      CHECK(one.db.bytes == many.db.bytes, "bias_gradient with %zu threads", threads);
    }
  }
  obn_set_num_threads(threads_before);
}

TEST(convolution_gradients_are_the_same_alone_and_together) {
  Random random{7};
  for (int round = 0; round < 100; ++round) {
    const Layer l = random_layer(random);
    Inputs in = make_inputs(l, random);
    const Results all = run(l, in);
    BNNSFilter filter = l.create(in.w, in.bias);
    Image y = all.y;
    const auto flags = l.accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    for (unsigned wanted = 0; wanted < 8; ++wanted) {
      Results got{y, in.dx, in.dw, in.db};
      got.dx.descriptor.flags = got.dw.descriptor.flags = got.db.descriptor.flags = flags;
      const bool dx = wanted & 1, dw = wanted & 2, db = wanted & 4;
      const int status = BNNSFilterApplyBackwardBatch(
          filter, l.n, dw ? in.x.data() : nullptr, in.x.batch_stride, dx ? &got.dx.descriptor : nullptr,
          in.dx.batch_stride, l.activation == BNNSActivationFunctionIdentity ? nullptr : y.data(), y.batch_stride,
          &in.dy.descriptor, in.dy.batch_stride, dw ? &got.dw.descriptor : nullptr, db ? &got.db.descriptor : nullptr);
      CHECK(status == 0, "%s", obn_last_error());
      CHECK(got.dx.bytes == (dx ? all.dx : in.dx).bytes, "input_gradient, wanted %u", wanted);
      CHECK(got.dw.bytes == (dw ? all.dw : in.dw).bytes, "weights_gradient, wanted %u", wanted);
      CHECK(got.db.bytes == (db ? all.db : in.db).bytes, "bias_gradient, wanted %u", wanted);
    }
    BNNSFilterDestroy(filter);
  }
}

TEST(convolution_reads_the_callers_weights_when_told_to) {
  for (BNNSDataLayout layout : kLayouts)
    for (bool use_client_ptr : {false, true}) {
      Layer l;
      l.layout = layout;
      l.use_client_ptr = use_client_ptr;
      Weights w = l.weights();
      Vector bias(1);
      w.set(0, 2.0f);
      bias.set(0, 1.0f);
      BNNSFilter filter = l.create(w, bias);
      w.set(0, 3.0f);
      bias.set(0, 10.0f);
      float x = 5.0f, y = 0.0f;
      CHECK(BNNSFilterApply(filter, &x, &y) == 0, "%s", obn_last_error());
      CHECK(y == (use_client_ptr ? 25.0f : 11.0f), "%g in layout %s", y, name_of(layout));
      BNNSFilterDestroy(filter);
    }
}

TEST(convolution_samples_may_be_slices_of_a_larger_array) {
  // Input and output interleaved in one array: batch strides keep them apart.
  Layer l;
  l.h = l.w = 2;
  l.set_outputs();
  Weights w = l.weights();
  w.set(0, 2.0f);
  l.has_bias = false;
  BNNSFilter filter = l.create(w, Vector());
  float both[3][8];
  for (auto& sample : both)
    for (int i = 0; i < 8; ++i) sample[i] = static_cast<float>(i);
  CHECK(BNNSFilterApplyBatch(filter, 3, both[0], 8, both[0] + 4, 8) == 0, "%s", obn_last_error());
  for (auto& sample : both)
    for (int i = 0; i < 4; ++i) CHECK(sample[i + 4] == 2.0f * sample[i], "%g", sample[i + 4]);
  CHECK(BNNSFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0) == 0, "no samples are no failure");
  BNNSFilterDestroy(filter);
}

TEST(convolution_gives_back_what_it_took) {
  using ::obn::test::Memory;
  Layer l;
  const Weights w = l.weights();
  Vector bias(1);
  const auto parameters = l.parameters(w, bias);
  size_t granted = 0;
  for (BNNSFilter filter = nullptr; !filter && granted < 10; ++granted) {
    const BNNSFilterParameters options = Memory::start(granted);
    filter = BNNSFilterCreateLayerConvolution(&parameters, &options);
    if (filter) BNNSFilterDestroy(filter);
    CHECK(!filter || granted > 0, "nothing was asked for");
    CHECK(Memory::taken == Memory::returned, "%zu blocks taken, %zu given back", Memory::taken, Memory::returned);
  }
  CHECK(granted < 10, "never enough");
}

TEST(convolution_says_what_it_holds) {
  Random random{8};
  for (int round = 0; round < 300; ++round) {
    Layer l = random_layer(random);
    l.n = random.between(1, 40);
    const Inputs in = make_inputs(l, random);
    BNNSFilter filter = l.create(in.w, in.bias);
    const size_t bytes = obn_filter_work_bytes(filter, l.n);
    auto* convolution = static_cast<Convolution*>(find_filter(filter));
    // Without what algorithms pack: two forms of the weights, sums, and copies within the larger of input and output.
    const Choice& choice = convolution->choice();
    Problem problem = convolution->problem();
    problem.batch = l.n;
    const size_t algorithm = std::max({choice.forward->work_bytes(problem), choice.input_gradient->work_bytes(problem),
                                       choice.weight_gradient->work_bytes(problem)});
    const size_t larger = std::max(in.x.count() * bytes_of(l.x_type), in.dy.count() * bytes_of(l.y_type));
    const size_t one_sample = 4 * (in.x.count() + in.dy.count()) / l.n;
    const size_t parameters = 2 * 4 * in.w.count() + (kSumGroups + 2) * 8 * l.out;
    CHECK(bytes <= algorithm + std::max(larger, one_sample) + parameters + 10 * kAlignment,
          "%zu bytes for arrays of %zu", bytes, larger);
    BNNSFilterDestroy(filter);
  }
}

TEST(convolution_winograd_has_a_switch) {
  Layer l;
  l.n = 2;
  l.in = l.out = 32;
  l.h = l.w = 20;
  l.kh = l.kw = 3;
  l.left = l.right = l.up = l.down = 1;
  l.set_outputs();
  Random random{9};
  const Inputs in = make_inputs(l, random);
  BNNSFilter filter = l.create(in.w, in.bias);
  auto* convolution = static_cast<Convolution*>(find_filter(filter));
  const bool fits = winograd_forward.fits(convolution->problem());
  const auto uses = [&] { return std::strcmp(convolution->choice().forward->name, "winograd") == 0; };
  const char* said = std::getenv("OPENBNNS_WINOGRAD");
  const int from_start = said && std::strcmp(said, "0") == 0 ? 0 : 1;
  CHECK(obn_get_winograd() == from_start, "on unless OPENBNNS_WINOGRAD says 0");
  CHECK(uses() == (from_start && fits), "used where it fits");
  CHECK(obn_set_winograd(0) == 0 && obn_get_winograd() == 0, "off");
  CHECK(!uses(), "the library's switch");
  CHECK(obn_filter_set_winograd(filter, 1) == 0, "%s", obn_last_error());
  CHECK(uses() == fits, "the filter's switch wins");
  CHECK(obn_set_winograd(1) == 0 && obn_filter_set_winograd(filter, 0) == 0, "%s", obn_last_error());
  CHECK(!uses(), "the filter's switch wins");
  CHECK(obn_filter_set_winograd(filter, -1) == 0, "%s", obn_last_error());
  CHECK(uses() == fits, "back to the library's");
  CHECK(obn_set_winograd(from_start) == 0, "%s", obn_last_error());
  CHECK(obn_set_winograd(2) == -1 && obn_filter_set_winograd(filter, -2) == -1, "no other numbers");
  CHECK(obn_filter_work_bytes(filter, SIZE_MAX) == SIZE_MAX && obn_filter_work_bytes(filter, 0) == 0, "odd batches");
  CHECK(obn_filter_set_winograd(nullptr, 1) == -1 && obn_filter_work_bytes(nullptr, 1) == SIZE_MAX, "no filter");
  BNNSFilterDestroy(filter);
}

// ---- failures ----

namespace {

void expect_no_filter(const Layer& l, const Weights& w, const Vector& bias, const char* word,
                      const std::function<void(BNNSLayerParametersConvolution&)>& spoil) {
  auto parameters = l.parameters(w, bias);
  spoil(parameters);
  obn_clear_error();
  BNNSFilter filter = l.transposed ? BNNSFilterCreateLayerTransposedConvolution(&parameters, nullptr)
                                   : BNNSFilterCreateLayerConvolution(&parameters, nullptr);
  CHECK(!filter, "a filter was made; expected a sentence about %s", word);
  CHECK(failed_with(word), "\"%s\" does not begin with %s", obn_last_error(),
        word);
  BNNSFilterDestroy(filter);
}

}  // namespace

TEST(convolution_refuses_bad_layers_with_a_sentence) {
  using P = BNNSLayerParametersConvolution;
  for (bool transposed : {false, true}) {
    Layer l;
    l.transposed = transposed;
    l.in = 4;
    l.out = 6;
    l.h = l.w = l.p = l.q = 5;
    l.kh = l.kw = 3;
    l.left = l.right = l.up = l.down = 1;
    const Weights w = l.weights();
    const Vector bias(l.out);
    const auto refuse = [&](const char* word, const std::function<void(P&)>& spoil) {
      expect_no_filter(l, w, bias, word, spoil);
    };
    BNNSFilter good = l.create(w, bias);
    CHECK(good, "%s", obn_last_error());
    BNNSFilterDestroy(good);
    const char* small = transposed ? "input" : "output";
    refuse("input", [](P& p) { p.i_desc.layout = BNNSDataLayoutVector; });
    refuse("output", [](P& p) { p.o_desc.layout = BNNSDataLayout3DFirstMajor; });
    refuse("input", [](P& p) { p.i_desc.data_type = BNNSDataTypeInt32; });
    refuse("output", [](P& p) { p.o_desc.data_type = BNNSDataTypeBoolean; });
    refuse("input", [](P& p) { p.i_desc.size[1] = 0; });
    refuse("input", [](P& p) { p.i_desc.size[2] = SIZE_MAX; });
    refuse("output", [](P& p) { p.o_desc.stride[1] = 2; });
    refuse("weights", [](P& p) { p.w_desc.layout = BNNSDataLayout4DLastMajor; });
    refuse("weights", [](P& p) { p.w_desc.data = nullptr; });
    refuse("weights", [](P& p) { p.w_desc.data = static_cast<std::byte*>(p.w_desc.data) + 1; });
    refuse("weights", [](P& p) { p.w_desc.size[2] = 5; });
    refuse("weights", [](P& p) { p.w_desc.size[3] = 5; });
    refuse("weights", [](P& p) { p.w_desc.layout = BNNSDataLayoutConvolutionWeightsIOHrWr; });
    refuse("weights", [](P& p) { p.w_desc.data_type = BNNSDataTypeBoolean; });
    refuse("weights", [](P& p) { p.w_desc.data_type = BNNSDataTypeIndexed8; });
    refuse("weights", [](P& p) { p.w_desc.size[0] = 8; });
    refuse("weights", [](P& p) { p.x_dilation_stride = 4; });
    refuse("weights", [](P& p) { p.y_dilation_stride = SIZE_MAX; });
    refuse(small, [](P& p) { p.x_stride = 2; });
    refuse(small, [](P& p) { p.pad[1] = 0; });
    refuse(small, [](P& p) { p.y_padding = 1; });  // then left and right are x_padding = 0
    refuse("padding", [](P& p) { p.pad[3] = SIZE_MAX; });
    refuse("padding", [](P& p) { p.y_padding = size_t{1} << 62; });
    refuse("groups", [](P& p) { p.groups = 4; });
    refuse("groups", [](P& p) { p.groups = SIZE_MAX; });
    refuse("weights", [](P& p) { p.groups = 2; });
    refuse("bias", [](P& p) { p.bias.size[0] = 5; });
    refuse("bias", [](P& p) { p.bias.layout = static_cast<BNNSDataLayout>(7); });
    refuse("bias", [](P& p) { p.bias.data_type = BNNSDataTypeInt64; });
    refuse("activation", [](P& p) { p.activation.function = BNNSActivationFunctionGumbel; });
    refuse("activation", [](P& p) { p.activation.function = static_cast<BNNSActivationFunction>(99); });
    Layer packed = l;
    packed.layout = BNNSDataLayoutConvolutionWeightsOIHW_Pack32;
    expect_no_filter(packed, packed.weights(), bias, "weights", [](P& p) { p.w_desc.stride[0] = 2; });
    packed.groups = 2;
    packed.in = 8;
    expect_no_filter(packed, packed.weights(), bias, "weights", [](P&) {});
    if (transposed) refuse("input", [](P& p) { p.i_desc.data_type = BNNSDataTypeInt8; });
  }
  CHECK(!BNNSFilterCreateLayerConvolution(nullptr, nullptr), "no parameters");
  CHECK(!BNNSFilterCreateLayerTransposedConvolution(nullptr, nullptr), "no parameters");
}

TEST(convolution_failing_calls_leave_outputs_alone) {
  for (bool transposed : {false, true}) {
    Layer l;
    l.transposed = transposed;
    l.n = 2;
    l.in = 3;
    l.out = 4;
    l.h = l.w = l.p = l.q = 5;
    l.kh = l.kw = 3;
    l.left = l.right = l.up = l.down = 1;
    l.activation = BNNSActivationFunctionSigmoid;
    l.use_client_ptr = true;
    Random random{10};
    Inputs in = make_inputs(l, random);
    Image y = l.output();
    BNNSFilter filter = l.create(in.w, in.bias);
    CHECK(filter, "%s", obn_last_error());

    const auto refuse_forward = [&](const char* word, const void* x, size_t x_stride, void* to, size_t y_stride) {
      const Inputs before = in;
      const Image y_before = y;
      obn_clear_error();
      CHECK(BNNSFilterApplyBatch(filter, l.n, x, x_stride, to, y_stride) == -1, "expected a failure about %s", word);
      CHECK(failed_with(word), "\"%s\"", obn_last_error());
      CHECK(in.x.bytes == before.x.bytes && in.w.bytes == before.w.bytes && y.bytes == y_before.bytes, "touched");
    };
    auto* x_bytes = static_cast<std::byte*>(in.x.data());
    refuse_forward("input", nullptr, 0, y.data(), 0);
    refuse_forward("output", in.x.data(), 0, nullptr, 0);
    refuse_forward("input", x_bytes + 1, 0, y.data(), 0);
    refuse_forward("output", in.x.data(), 0, y.data(), 7);
    refuse_forward("input", in.x.data(), SIZE_MAX / 8, y.data(), 0);
    refuse_forward("output", in.x.data(), 0, x_bytes + 8, 0);
    refuse_forward("output", in.x.data(), 0, in.w.data(), 0);
    refuse_forward("output", in.x.data(), 0, in.bias.data(), 0);

    struct Call {
      const void *x, *y;
      BNNSNDArrayDescriptor dx, dy, dw, db;
      size_t dx_stride = 0, dy_stride = 0;
    };
    const auto refuse_backward = [&](const char* word, const std::function<void(Call&)>& spoil) {
      Call call{in.x.data(), y.data(), in.dx.descriptor, in.dy.descriptor, in.dw.descriptor, in.db.descriptor};
      spoil(call);
      const Inputs before = in;
      obn_clear_error();
      const int status = BNNSFilterApplyBackwardBatch(filter, l.n, call.x, 0, &call.dx, call.dx_stride, call.y, 0,
                                                      &call.dy, call.dy_stride, &call.dw, &call.db);
      CHECK(status == -1, "expected a failure about %s", word);
      CHECK(failed_with(word), "\"%s\", expected %s", obn_last_error(),
            word);
      CHECK(in.dx.bytes == before.dx.bytes && in.dw.bytes == before.dw.bytes && in.db.bytes == before.db.bytes &&
                in.x.bytes == before.x.bytes && in.dy.bytes == before.dy.bytes && in.w.bytes == before.w.bytes,
            "touched after: %s", obn_last_error());
    };
    refuse_backward("input", [](Call& c) { c.x = nullptr; });
    refuse_backward("output", [](Call& c) { c.y = nullptr; });
    refuse_backward("grad_output", [](Call& c) { c.dy.data = nullptr; });
    refuse_backward("grad_output", [](Call& c) { c.dy.size[0] = 4; });
    refuse_backward("grad_output", [](Call& c) { c.dy.data_type = BNNSDataTypeFloat16; });
    refuse_backward("input_gradient", [](Call& c) { c.dx.data = nullptr; });
    refuse_backward("input_gradient", [](Call& c) { c.dx.layout = BNNSDataLayout3DLastMajor; });
    refuse_backward("input_gradient", [](Call& c) { c.dx_stride = 3; });
    refuse_backward("input_gradient", [](Call& c) { c.dx.flags = static_cast<BNNSNDArrayFlags>(2); });
    refuse_backward("input_gradient", [](Call& c) { c.dx.data = const_cast<void*>(c.x); });
    refuse_backward("input_gradient", [](Call& c) { c.dx.data = const_cast<void*>(c.y); });
    refuse_backward("input_gradient", [](Call& c) { c.dx.data = c.dy.data; });
    refuse_backward("input_gradient", [&](Call& c) { c.dx.data = in.w.data(); });
    refuse_backward("weights_gradient", [](Call& c) { c.dw.data = nullptr; });
    refuse_backward("weights_gradient", [](Call& c) { c.dw.size[3] = 3; });
    refuse_backward("weights_gradient", [](Call& c) { c.dw.layout = BNNSDataLayoutConvolutionWeightsOIHrWr; });
    refuse_backward("weights_gradient", [](Call& c) { c.dw.data_type = BNNSDataTypeInt8; });
    refuse_backward("weights_gradient", [&](Call& c) { c.dw.data = in.w.data(); });
    refuse_backward("input_gradient", [](Call& c) { c.dw.data = c.dx.data; });
    refuse_backward("bias_gradient", [](Call& c) { c.db.size[0] = 5; });
    refuse_backward("bias_gradient", [](Call& c) { c.db.data_type = BNNSDataTypeInt32; });
    refuse_backward("bias_gradient", [](Call& c) { c.db.data = c.dy.data; });
    refuse_backward("weights_gradient", [](Call& c) { c.db.data = c.dw.data; });
    BNNSFilterDestroy(filter);

    // Activations that are not differentiable from y: some never, some for certain values.
    for (auto function : {BNNSActivationFunctionGELUApproximation, BNNSActivationFunctionGELUApproximationSigmoid}) {
      l.activation = function;
      filter = l.create(in.w, in.bias);
      CHECK(filter, "inference works: %s", obn_last_error());
      CHECK(BNNSFilterApplyBatch(filter, l.n, in.x.data(), 0, y.data(), 0) == 0, "%s", obn_last_error());
      y.set(y.count() - 1, -0.1f);
      refuse_backward(function == BNNSActivationFunctionGELUApproximation ? "activation" : "output", [](Call&) {});
      BNNSFilterDestroy(filter);
    }
  }
}

TEST(convolution_random_bad_descriptors_never_crash) {
  Random random{11};
  size_t made = 0;
  for (int round = 0; round < 3000; ++round) {
    const Layer l = random_layer(random);
    const Weights w = l.weights();
    const Vector bias(l.out);
    auto parameters = l.parameters(w, bias);
    for (size_t spoiled = random.between(1, 3); spoiled > 0; --spoiled) {
      constexpr size_t kNumbers[] = {0,    1, 2, 3, 31, 0x10000, 0x30000, 0x40010, size_t{1} << 31, size_t{1} << 40,
                                     size_t{1} << 62, SIZE_MAX / 2, SIZE_MAX};
      const size_t number = kNumbers[random.below(std::size(kNumbers))];
      BNNSNDArrayDescriptor* arrays[] = {&parameters.i_desc, &parameters.w_desc, &parameters.o_desc, &parameters.bias};
      BNNSNDArrayDescriptor& array = *arrays[random.below(4)];
      switch (random.below(8)) {
        case 0: array.size[random.below(4)] = number; break;
        case 1: array.stride[random.below(4)] = number; break;
        case 2: array.layout = static_cast<BNNSDataLayout>(number); break;
        case 3:
          array.data_type = static_cast<BNNSDataType>(random.one_in(2) ? number : 0x20000 + random.below(65));
          break;
        case 4: (random.one_in(2) ? parameters.x_stride : parameters.y_dilation_stride) = number; break;
        case 5: (random.one_in(2) ? parameters.y_padding : parameters.pad[random.below(4)]) = number; break;
        case 6: parameters.groups = number; break;
        default: parameters.activation.function = static_cast<BNNSActivationFunction>(number); break;
      }
    }
    // The filter reads nothing but descriptors: the arrays may be smaller than they say.
    BNNSFilterParameters client = {};
    client.flags = BNNSFlagsUseClientPtr;
    obn_clear_error();
    BNNSFilter filter = l.transposed ? BNNSFilterCreateLayerTransposedConvolution(&parameters, &client)
                                     : BNNSFilterCreateLayerConvolution(&parameters, &client);
    CHECK(filter || *obn_last_error(), "a failure without a sentence");
    made += filter != nullptr;
    if (filter) obn_filter_work_bytes(filter, 3);
    BNNSFilterDestroy(filter);
  }
  CHECK(made > 100 && made < 2000, "%zu of 3000 filters were made", made);
}

// ---- the first interface ----

TEST(convolution_first_interface) {
  BNNSImageStackDescriptor in = {3, 3, 1, 3, 9, BNNSDataTypeFloat32, 1.0f, 0.0f};
  BNNSImageStackDescriptor out = {2, 2, 1, 2, 4, BNNSDataTypeFloat32, 1.0f, 0.0f};
  const float ones[] = {1, 1, 1, 1}, half = 0.5f;
  const uint8_t indices[] = {7, 7, 7, 7};
  const int8_t twos[] = {2, 2, 2, 2};
  float table[256] = {};
  table[7] = 3.0f;
  BNNSConvolutionLayerParameters p = {};
  p.x_stride = p.y_stride = 1;
  p.k_width = p.k_height = 2;
  p.in_channels = p.out_channels = 1;
  p.weights.data = ones;
  p.weights.data_type = BNNSDataTypeFloat32;
  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto check = [&](float factor, float bias) {
    BNNSFilter filter = BNNSFilterCreateConvolutionLayer(&in, &out, &p, nullptr);
    CHECK(filter, "%s", obn_last_error());
    float y[4] = {};
    CHECK(BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
    const float expected[] = {12, 16, 24, 28};
    for (int i = 0; i < 4; ++i) CHECK(y[i] == factor * expected[i] + bias, "%g", y[i]);
    BNNSFilterDestroy(filter);
  };
  check(1.0f, 0.0f);
  p.bias.data = &half;
  p.bias.data_type = BNNSDataTypeFloat32;
  check(1.0f, 0.5f);
  p.weights = {twos, BNNSDataTypeInt8, 0.5f, 1.0f, nullptr};
  check(2.0f, 0.5f);
  p.weights = {indices, BNNSDataTypeIndexed8, 0.0f, 0.0f, table};
  check(3.0f, 0.5f);
  const auto refuse = [&](const char* word) {
    CHECK(!BNNSFilterCreateConvolutionLayer(&in, &out, &p, nullptr), "expected a sentence about %s", word);
    CHECK(failed_with(word), "\"%s\"", obn_last_error());
  };
  p.weights.data_table = nullptr;
  refuse("weights");
  p.weights = {ones, BNNSDataTypeFloat32, 0.0f, 0.0f, nullptr};
  out.width = 1;  // fine for the later interface, not for this one
  refuse("output");
  out.width = 2;
  p.in_channels = 2;
  refuse("input");
  p.in_channels = 1;
  in.row_stride = 2;
  refuse("input");
  in.row_stride = 0;  // packed
  in.image_stride = 0;
  check(1.0f, 0.5f);
  CHECK(!BNNSFilterCreateConvolutionLayer(nullptr, &out, &p, nullptr), "no input");
}

}  // namespace obn::convolution
