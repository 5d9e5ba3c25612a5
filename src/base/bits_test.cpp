// The bits of results, recorded in bits.inc: hundreds of calls of all families through the C interface, each with one
// hash of everything it writes per instruction set. Compiler, optimization level and number of threads must not change
// them; who changes them on purpose records the table anew and so says it:
//
//   OPENBNNS_ISA=avx2 core_test --record-bits src/base/bits.inc
//
// writes the column of the instruction set in use and leaves the others as they are (`make record-bits`: all of this
// machine). Inputs come from an integer generator. Left out is what a function of the C library has a part in, since
// its bits are that library's: YOLO, softmax of rows in pieces (losses) or of types that are no floats, categorical
// random numbers, powers of betas in later steps of Adam, arguments that arithmetic functions leave to libm.
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_array.h"
#include "convolution/convolution_test.h"
#include "fully_connected/fully_connected_test.h"
#include "fused/fused_test.h"
#include "loss/loss_test.h"
#include "normalization/normalization_test.h"
#include "pooling/pooling_test.h"

namespace obn::test {
namespace {

// ---- the table ----

constexpr const char* kSets[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16"};
constexpr size_t kSetCount = std::size(kSets);

struct Row {
  uint32_t hash[kSetCount];  // 0: not recorded
  const char* name;
};
constexpr Row kTable[] = {
#include "base/bits.inc"
};

// The instruction set in use: that of products of bfloat16 has a name of its own here.
size_t column() {
  const std::string name = std::string(obn_isa()) + (isa() == Isa::avx512 && has_bfloat16_dots() ? "_bf16" : "");
  size_t k = 0;
  while (k + 1 < kSetCount && name != kSets[k]) ++k;
  return k;
}

// FNV-1a of what a call has written.
struct Result {
  std::string name;
  uint32_t hash = 2166136261u;

  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 16777619u;
  }
  void add(const std::vector<std::byte>& bytes) { add(bytes.data(), bytes.size()); }
  void add(const std::vector<float>& values) { add(values.data(), values.size() * sizeof(float)); }
};

thread_local std::vector<Result>* results;
bool changes_settings = true;  // of the process, for some cases; not while other threads do the same

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...) {
  char buffer[120];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

template <class... Arrays>
void record(std::string name, const Arrays&... arrays) {
  Result result{std::move(name)};
  (result.add(arrays), ...);
  results->push_back(std::move(result));
}

// A call that must succeed.
void done(int status) { CHECK(status == 0, "%s", obn_last_error()); }

template <class A>
void refill(A& array, Random& random, double mean = 0.0, double scale = 1.0) {
  for (size_t i = 0; i < array.count(); ++i) array.set(i, mean + scale * random.value());
}
std::vector<float> values(Random& random, size_t n, double mean = 0.0, double scale = 1.0) {
  std::vector<float> all(n);
  for (float& v : all) v = static_cast<float>(mean + scale * random.value());
  return all;
}

constexpr BNNSDataType kF32 = BNNSDataTypeFloat32, kF16 = BNNSDataTypeFloat16, kBF16 = BNNSDataTypeBFloat16;

// ---- activation ----

void activation_case(BNNSActivationFunction function, BNNSDataType type, uint32_t axes, size_t w, size_t h, size_t c) {
  Random random(function + 1);
  Array x(type, BNNSDataLayoutImageCHW, 3, {w, h, c}), y = x, dx = x, dy = x;
  x.fill(random, 0.0, 4.0);
  dy.fill(random);
  BNNSLayerParametersActivation p = {};
  p.i_desc = x.descriptor;
  p.o_desc = y.descriptor;
  p.activation.function = function;
  p.activation.alpha = 0.3f;
  p.activation.beta = 0.7f;
  p.axis_flags = axes;
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  CHECK(filter, "%s", obn_last_error());
  if (!filter) return;
  BNNSNDArrayDescriptor dx_d = dx.with_data(), dy_d = dy.with_data();
  done(BNNSFilterApplyBatch(filter, 3, x.data(), 0, y.data(), 0));
  done(BNNSFilterApplyBackwardBatch(filter, 3, x.data(), 0, &dx_d, 0, y.data(), 0, &dy_d, 0, nullptr, nullptr));
  BNNSFilterDestroy(filter);
  record(text("activation %u axes %u (%zu, %zu, %zu) %s", static_cast<unsigned>(function), axes, c, h, w,
              name_of(type)),
         y.bytes, dx.bytes);
}

void activations() {
  for (unsigned f = 0; f <= 35; ++f) {
    const auto function = static_cast<BNNSActivationFunction>(f);
    if (function == BNNSActivationFunctionIntegerLinearSaturate || function == BNNSActivationFunctionGumbel ||
        function == BNNSActivationFunctionIntegerLinearSaturatePerChannel ||
        function == BNNSActivationFunctionGumbelMax || function == BNNSActivationFunctionPReLUPerChannel)
      continue;
    activation_case(function, kF32, 0, 37, 5, 7);
  }
  for (BNNSActivationFunction function : {BNNSActivationFunctionSoftmax, BNNSActivationFunctionLogSoftmax}) {
    for (uint32_t axes : {1u, 2u, 4u}) activation_case(function, kF32, axes, 21, 19, 6);
    activation_case(function, kF32, 1, 1003, 2, 1);
  }
  for (BNNSDataType type : {kF16, kBF16})
    for (BNNSActivationFunction function :
         {BNNSActivationFunctionSigmoid, BNNSActivationFunctionTanh, BNNSActivationFunctionGELU,
          BNNSActivationFunctionSoftplus, BNNSActivationFunctionELU, BNNSActivationFunctionSoftmax})
      activation_case(function, type, 0, 37, 5, 7);
}

// ---- arithmetic ----

void arithmetic_case(BNNSArithmeticFunction function, BNNSDataType type) {
  Random random(function + 100);
  const size_t count = arithmetic::inputs_of(function), n = 3;
  Array x[3], dx[3], y(type, BNNSDataLayoutImageCHW, n, {29, 5, 3}), dy = y;
  const void* in[3] = {};
  const size_t strides[3] = {};
  BNNSNDArrayDescriptor gradients[3] = {}, *deltas[3] = {};
  for (size_t i = 0; i < count; ++i) {
    x[i] = dx[i] = y;
    // Within the domain of every function: above 0 (acosh: 1) and below 1.
    x[i].fill(random, function == BNNSArithmeticAcosh ? 2.5 : 0.5, function == BNNSArithmeticAcosh ? 1.0 : 0.45);
    in[i] = x[i].data();
    gradients[i] = dx[i].with_data();
    deltas[i] = &gradients[i];
  }
  dy.fill(random);
  BNNSArithmeticUnary unary = {x[0].descriptor, BNNSSample, y.descriptor, BNNSSample};
  BNNSArithmeticBinary binary = {x[0].descriptor, BNNSSample, x[1].descriptor, BNNSSample, y.descriptor, BNNSSample};
  BNNSArithmeticTernary ternary = {x[0].descriptor, BNNSSample, x[1].descriptor, BNNSSample,
                                   x[2].descriptor, BNNSSample, y.descriptor,    BNNSSample};
  BNNSLayerParametersArithmetic p = {};
  p.arithmetic_function = function;
  p.arithmetic_function_fields =
      count == 1 ? static_cast<void*>(&unary) : count == 2 ? static_cast<void*>(&binary) : &ternary;
  BNNSFilter filter = BNNSFilterCreateLayerArithmetic(&p, nullptr);
  CHECK(filter, "%s", obn_last_error());
  if (!filter) return;
  done(BNNSArithmeticFilterApplyBatch(filter, n, count, in, strides, y.data(), 0));
  const bool has_gradient = function != BNNSArithmeticFloorDivide && function != BNNSArithmeticTruncDivide &&
                            function != BNNSArithmeticTruncRemainder;
  BNNSNDArrayDescriptor dy_d = dy.with_data();
  if (has_gradient)
    done(BNNSArithmeticFilterApplyBackwardBatch(filter, n, count, in, strides, deltas, strides, y.data(), 0, &dy_d, 0));
  BNNSFilterDestroy(filter);
  record(text("arithmetic %u %s", static_cast<unsigned>(function), name_of(type)), y.bytes, dx[0].bytes, dx[1].bytes,
         dx[2].bytes);
}

void arithmetics() {
  for (unsigned f = 0; f <= 40; ++f) arithmetic_case(static_cast<BNNSArithmeticFunction>(f), kF32);
  for (BNNSDataType type : {kF16, kBF16})
    for (BNNSArithmeticFunction function :
         {BNNSArithmeticDivide, BNNSArithmeticSin, BNNSArithmeticPow, BNNSArithmeticLog2, BNNSArithmeticMultiplyAdd})
      arithmetic_case(function, type);
}

// ---- attention ----

void attention_case(size_t t, size_t s, size_t heads, size_t width, bool causal, bool keeps) {
  Random random(t + s);
  const size_t n = 2, model = heads * width;
  const auto two = BNNSDataLayout2DFirstMajor, three = BNNSDataLayout3DFirstMajor;
  std::vector<float> in[3], w[4], b[4], d_in[3], d_w[4], d_b[4], y(n * t * model), dy = values(random, y.size());
  BNNSLayerParametersMultiheadAttention p = {};
  BNNSMHAProjectionParameters *to[] = {&p.query, &p.key, &p.value, &p.output}, deltas[4] = {};
  for (size_t i = 0; i < 4; ++i) {
    w[i] = values(random, model * model, 0.0, 0.25);
    b[i] = values(random, model);
    d_w[i] = w[i];
    d_b[i] = b[i];
    if (i < 3) d_in[i] = in[i] = values(random, n * (i == 0 ? t : s) * model, 0.0, 2.0);
    const auto describe = [&](BNNSMHAProjectionParameters* of, float* target, float* weights, float* bias) {
      of->target_desc = array_of(two, {i == 0 || i == 3 ? t : s, model}, target);
      of->weights = i < 3 ? array_of(three, {model, width, heads}, weights) : array_of(two, {model, model}, weights);
      of->bias = i < 3 ? array_of(two, {width, heads}, bias) : vector_of(model, bias);
    };
    describe(to[i], i < 3 ? in[i].data() : nullptr, w[i].data(), b[i].data());
    describe(&deltas[i], i < 3 ? d_in[i].data() : dy.data(), d_w[i].data(), d_b[i].data());
  }
  BNNSFilter filter = BNNSFilterCreateLayerMultiheadAttention(&p, nullptr);
  CHECK(filter, "%s", obn_last_error());
  if (!filter) return;
  if (causal) done(obn_attention_set_causal(filter, 1));
  const auto apply = [&](size_t* size, void* cache) {
    return BNNSApplyMultiheadAttention(filter, n, in[0].data(), 0, in[1].data(), 0, nullptr, 0, in[2].data(), 0,
                                       y.data(), 0, nullptr, size, cache, nullptr, nullptr);
  };
  size_t size = 0;
  if (keeps) done(apply(&size, nullptr));
  std::vector<uint64_t> cache(size / sizeof(uint64_t) + 1);
  done(keeps ? apply(&size, cache.data()) : apply(nullptr, nullptr));
  done(BNNSApplyMultiheadAttentionBackward(filter, n, in[0].data(), 0, &deltas[0], in[1].data(), 0, nullptr, 0,
                                           &deltas[1], in[2].data(), 0, &deltas[2], nullptr, nullptr, nullptr, nullptr,
                                           0, &deltas[3], size, keeps ? cache.data() : nullptr, nullptr, nullptr));
  BNNSFilterDestroy(filter);
  record(text("attention %zu of %zu, %zu heads of %zu%s%s", t, s, heads, width, causal ? ", causal" : "",
              keeps ? ", with cache" : ""),
         y, d_in[0], d_in[1], d_in[2], d_w[0], d_w[1], d_w[2], d_w[3], d_b[0], d_b[1], d_b[2], d_b[3]);
}

void attentions() {
  for (bool keeps : {false, true}) {
    attention_case(9, 9, 2, 8, false, keeps);
    attention_case(33, 33, 1, 20, true, keeps);
    attention_case(70, 150, 3, 16, false, keeps);
    attention_case(200, 200, 2, 32, true, keeps);
  }
}

// ---- clip, optimizer ----

void clips() {
  Random random(7);
  const std::vector<float> given = values(random, 7 * 11 * 13, 0.0, 3.0);
  std::vector<float> x = given, y(x.size());
  const auto image = [](std::vector<float>& v) { return array_of(BNNSDataLayoutImageCHW, {13, 11, 7}, v.data()); };
  BNNSNDArrayDescriptor to = image(y), from = image(x);
  done(BNNSClipByValue(&to, &from, -0.75f, 0.3f));
  record("clip by value", y);
  for (uint32_t axes : {0u, 1u, 2u, 4u, 7u}) {
    done(BNNSClipByNorm(&to, &from, 2.0f, axes));
    record(text("clip by norm, axes %u", axes), y);
  }
  BNNSNDArrayDescriptor* tos[] = {&to};
  const BNNSNDArrayDescriptor* froms[] = {&from};
  done(BNNSClipByGlobalNorm(tos, froms, 1, 5.0f, 0.0f));
  record("clip by global norm", y);
  std::vector<float> norm(11 * 7), dnorm = values(random, 11 * 7);
  BNNSNDArrayDescriptor norm_d = array_of(BNNSDataLayout2DLastMajor, {11, 7}, norm.data());
  BNNSNDArrayDescriptor dnorm_d = array_of(BNNSDataLayout2DLastMajor, {11, 7}, dnorm.data());
  done(BNNSComputeNorm(&norm_d, &from, BNNSL2Norm, 1));
  done(BNNSComputeNormBackward(x.data(), &to, norm.data(), &dnorm_d, BNNSL2Norm, 1));
  record("norm along rows", norm, y);
}

void optimizer_case(const char* name, BNNSOptimizerFunction function, const void* fields) {
  Random random(function + 300);
  constexpr size_t kCount = 1003;
  std::vector<float> w = values(random, kCount), g = values(random, kCount), a[3];
  for (auto& accumulator : a) accumulator = values(random, kCount, 1.0, 0.5);
  BNNSNDArrayDescriptor w_d = vector_of(kCount, w.data()), g_d = vector_of(kCount, g.data()), a_d[3], *as[3];
  for (size_t k = 0; k < 3; ++k) {
    a_d[k] = vector_of(kCount, a[k].data());
    as[k] = &a_d[k];
  }
  BNNSNDArrayDescriptor* ws[] = {&w_d};
  const BNNSNDArrayDescriptor* gs[] = {&g_d};
  for (int step = 0; step < 3; ++step) done(BNNSOptimizerStep(function, fields, 1, ws, gs, as, nullptr));
  record(text("optimizer %s", name), w, a[0], a[1], a[2]);
}

void optimizers() {
  for (unsigned variant = 0; variant < 3; ++variant) {
    for (bool nesterov : {false, true}) {
      BNNSOptimizerSGDMomentumFields sgd = {};
      sgd.learning_rate = 0.03f;
      sgd.momentum = 0.9f;
      sgd.gradient_scale = 0.7f;
      sgd.regularization_scale = 0.01f;
      sgd.nesterov = nesterov;
      sgd.regularization_func = nesterov ? BNNSOptimizerRegularizationL2 : BNNSOptimizerRegularizationL1;
      sgd.sgd_momentum_variant = static_cast<BNNSOptimizerSGDMomentumVariant>(variant);
      optimizer_case(text("sgd %u%s", variant, nesterov ? " nesterov" : "").c_str(), BNNSOptimizerFunctionSGDMomentum,
                     &sgd);
    }
  }
  BNNSOptimizerAdamFields adam = {};
  adam.learning_rate = 0.01f;
  adam.beta1 = 0.9f;
  adam.beta2 = 0.999f;
  adam.time_step = 1.0f;  // a power of 1 is no matter of the C library
  adam.epsilon = 1e-8f;
  adam.gradient_scale = 0.7f;
  adam.regularization_scale = 0.01f;
  optimizer_case("adam", BNNSOptimizerFunctionAdam, &adam);
  optimizer_case("adamw", BNNSOptimizerFunctionAdamW, &adam);
  optimizer_case("adam amsgrad", BNNSOptimizerFunctionAdamAMSGrad, &adam);
  for (bool centered : {false, true}) {
    BNNSOptimizerRMSPropFields rms = {};
    rms.learning_rate = 0.01f;
    rms.alpha = 0.9f;
    rms.epsilon = 1e-3f;
    rms.centered = centered;
    rms.momentum = centered ? 0.8f : 0.0f;
    rms.gradient_scale = 0.7f;
    optimizer_case(centered ? "rmsprop centered" : "rmsprop", BNNSOptimizerFunctionRMSProp, &rms);
  }
}

// ---- convolution ----

struct Conv {
  size_t n, in, out, h, w, kernel, stride, pad, groups;
};

void convolution_case(const Conv& c, bool transposed, BNNSDataType type = kF32, bool winograd = true,
                      size_t dilation = 1, bool accumulate = false) {
  using namespace convolution::layer_test;
  Layer layer;
  layer.transposed = transposed;
  layer.n = c.n;
  layer.in = c.in;
  layer.out = c.out;
  layer.groups = c.groups;
  (transposed ? layer.p : layer.h) = c.h;
  (transposed ? layer.q : layer.w) = c.w;
  layer.kh = layer.kw = c.kernel;
  layer.sy = layer.sx = c.stride;
  layer.dilation_y = layer.dilation_x = dilation;
  layer.left = layer.right = layer.up = layer.down = c.pad;
  layer.x_type = layer.w_type = layer.y_type = type;
  layer.activation = BNNSActivationFunctionSigmoid;
  layer.accumulate = accumulate;
  layer.set_outputs();
  convolution::layer_test::Random wholes(1);
  Inputs inputs = make_inputs(layer, wholes);
  ::obn::test::Random random(c.in + 10 * c.out);
  refill(inputs.x, random);
  refill(inputs.w, random, 0.0, 0.25);
  refill(inputs.dy, random);
  refill(inputs.bias, random);
  const int before = obn_get_winograd();
  if (changes_settings) obn_set_winograd(winograd);
  const Results r = run(layer, inputs);
  if (changes_settings) obn_set_winograd(before);
  record(text("%s (%zu, %zu, %zu, %zu) to %zu, %zux%zu stride %zu pad %zu groups %zu%s%s%s %s",
              transposed ? "transposed" : "convolution", c.n, c.in, c.h, c.w, c.out, c.kernel, c.kernel, c.stride,
              c.pad, c.groups, dilation == 1 ? "" : " dilated", accumulate ? " added" : "",
              winograd ? "" : " no winograd", name_of(type)),
         r.y.bytes, r.dx.bytes, r.dw.bytes, r.db.bytes);
}

void convolutions() {
  const Conv cases[] = {
      {2, 3, 8, 12, 15, 3, 1, 1, 1},     {1, 1, 4, 28, 28, 5, 1, 2, 1},    {3, 1, 16, 20, 20, 3, 1, 0, 1},
      {2, 4, 7, 17, 19, 3, 2, 1, 1},     {2, 16, 24, 14, 14, 3, 1, 1, 1},  {3, 32, 32, 9, 11, 3, 1, 1, 1},
      {1, 64, 48, 28, 28, 3, 1, 1, 1},   {2, 33, 65, 7, 7, 3, 1, 1, 1},    {2, 16, 32, 15, 15, 3, 2, 1, 1},
      {2, 32, 40, 16, 16, 4, 2, 1, 1},   {2, 24, 40, 13, 13, 1, 1, 0, 1},  {4, 64, 64, 7, 7, 1, 1, 0, 1},
      {2, 32, 64, 14, 14, 1, 2, 0, 1},   {1, 3, 16, 32, 32, 7, 2, 3, 1},   {2, 20, 20, 12, 12, 3, 1, 1, 20},
      {2, 17, 17, 19, 23, 5, 1, 2, 17},  {2, 32, 32, 14, 14, 3, 2, 1, 32}, {2, 12, 24, 10, 10, 3, 1, 1, 4},
      {2, 16, 16, 9, 9, 2, 1, 0, 1},     {1, 5, 6, 11, 13, 3, 3, 2, 1},    {1, 8, 8, 40, 40, 3, 1, 1, 1},
      {5, 10, 12, 5, 5, 5, 1, 2, 1},     {1, 40, 40, 30, 30, 3, 1, 1, 40}, {2, 48, 16, 8, 8, 5, 1, 2, 1},
  };
  for (const Conv& c : cases) {
    convolution_case(c, false);
    if (c.kernel == 3 || c.kernel == 4) convolution_case(c, false, kF32, false);
  }
  for (const Conv& c : {cases[0], cases[4], cases[9], cases[10], cases[14], cases[17]}) {
    convolution_case(c, true);
    convolution_case(c, false, kF16);
    convolution_case(c, false, kBF16);
    convolution_case(c, false, kF32, true, 1, true);
  }
  for (const Conv& c : {cases[0], cases[4], cases[14]}) convolution_case(c, false, kF32, true, 2);
}

// ---- fully connected, matrix products ----

void fully_connected_case(size_t n, size_t i, size_t o, BNNSDataType type, BNNSDataLayout layout) {
  using namespace fully_connected::layer_test;
  Setup s;
  s.n = n;
  s.i = i;
  s.o = o;
  s.x_type = s.w_type = s.y_type = type;
  s.layout = layout;
  s.function = BNNSActivationFunctionTanh;
  fully_connected::layer_test::Random random(n + i + o);
  Layer layer(s, random);
  if (!layer.filter) return;
  done(layer.apply());
  done(layer.apply_backward());
  record(text("fully connected %zu: %zu to %zu%s %s", n, i, o,
              layout == BNNSDataLayoutColumnMajorMatrix ? " by columns" : "", name_of(type)),
         layer.y.bytes, layer.dx.bytes, layer.dw.bytes, layer.db.bytes);
}

void fully_connecteds() {
  for (size_t n : {1, 3, 40})
    for (size_t i : {7, 64, 300})
      for (size_t o : {5, 64, 129}) fully_connected_case(n, i, o, kF32, BNNSDataLayoutRowMajorMatrix);
  for (size_t n : {1, 5, 64}) {
    fully_connected_case(n, 100, 70, kF32, BNNSDataLayoutColumnMajorMatrix);
    fully_connected_case(n, 100, 70, kF16, BNNSDataLayoutRowMajorMatrix);
    fully_connected_case(n, 100, 70, kBF16, BNNSDataLayoutRowMajorMatrix);
  }
}

void matmul_case(size_t m, size_t n, size_t k, bool turns_a, bool turns_b, BNNSDataType type) {
  Random random(m + n + k);
  const auto matrix = [&](size_t rows, size_t columns) {
    return Array(array_of(BNNSDataLayout2DFirstMajor, {rows, columns}, nullptr, type));
  };
  Array a = turns_a ? matrix(k, m) : matrix(m, k), b = turns_b ? matrix(n, k) : matrix(k, n), c = matrix(m, n);
  Array da = a, db = b, dc = c;
  a.fill(random);
  b.fill(random);
  dc.fill(random);
  BNNSLayerParametersBroadcastMatMul p = {};
  p.alpha = 0.7f;
  p.transA = turns_a;
  p.transB = turns_b;
  p.iA_desc = a.descriptor;
  p.iB_desc = b.descriptor;
  p.o_desc = c.descriptor;
  BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr);
  CHECK(filter, "%s", obn_last_error());
  if (!filter) return;
  BNNSNDArrayDescriptor da_d = da.with_data(), db_d = db.with_data(), dc_d = dc.with_data();
  done(BNNSFilterApplyTwoInputBatch(filter, 1, a.data(), 0, b.data(), 0, c.data(), 0));
  done(BNNSFilterApplyBackwardTwoInputBatch(filter, 1, a.data(), 0, &da_d, 0, b.data(), 0, &db_d, 0, c.data(), 0,
                                            &dc_d, 0, nullptr, nullptr));
  BNNSFilterDestroy(filter);
  record(text("matmul (%zu, %zu)%s (%zu, %zu)%s %s", m, k, turns_a ? " turned" : "", k, n, turns_b ? " turned" : "",
              name_of(type)),
         c.bytes, da.bytes, db.bytes);
}

void matmuls() {
  const size_t sizes[][3] = {{1, 100, 64},  {5, 7, 3},      {13, 33, 17},   {64, 64, 64},
                             {100, 1, 300}, {200, 96, 300}, {33, 257, 500}, {130, 130, 1030}};
  for (const auto& s : sizes) {
    matmul_case(s[0], s[1], s[2], false, false, kF32);
    matmul_case(s[0], s[1], s[2], true, false, kF32);
    matmul_case(s[0], s[1], s[2], false, true, kF32);
    matmul_case(s[0], s[1], s[2], false, false, kF16);
    matmul_case(s[0], s[1], s[2], false, true, kBF16);
  }
  if (changes_settings) obn_set_matmul_precision(2);
  matmul_case(100, 80, 90, false, false, kF32);
  results->back().name += " medium";
  if (changes_settings) obn_set_matmul_precision(0);
}

// ---- normalization, fused layers ----

void normalization_case(const normalization::test::Setup& s, bool training, const char* more) {
  Random random(s.n + 10 * s.c + 100 * s.h);
  normalization::test::Layer layer(s, random);
  if (!layer.filter) return;
  done(layer.apply(training));
  if (training) done(layer.apply_backward());
  record(text("normalization %u (%zu, %zu, %zu, %zu) axis %zu groups %zu activation %u %s%s%s",
              static_cast<unsigned>(s.type), s.n, s.c, s.h, s.w, s.axis, s.groups, static_cast<unsigned>(s.function),
              name_of(s.x_type), training ? "" : " inference", more),
         layer.y.bytes, layer.dx.bytes, layer.dbeta.bytes, layer.dgamma.bytes, layer.moving_mean.bytes,
         layer.moving_variance.bytes);
}

void normalizations() {
  const size_t shapes[][4] = {{2, 6, 3, 5}, {3, 12, 9, 11}, {2, 8, 32, 37}, {40, 4, 7, 7}};
  for (BNNSFilterType type : normalization::test::kTypes) {
    for (const auto& shape : shapes) {
      normalization::test::Setup s;
      s.type = type;
      s.n = shape[0];
      s.c = shape[1];
      s.h = shape[2];
      s.w = shape[3];
      s.groups = type == BNNSGroupNorm ? 2 : 1;
      s.has_moving = type == BNNSBatchNorm;
      s.mean = 0.3;
      s.function = BNNSActivationFunctionRectifiedLinear;
      normalization_case(s, true, "");
      if (s.has_moving) normalization_case(s, false, "");
      s.accumulate = true;
      s.function = BNNSActivationFunctionSigmoid;
      normalization_case(s, true, " added");
      if (type == BNNSLayerNorm)
        for (size_t axis : {1, 2}) {
          s.axis = axis;
          normalization_case(s, true, " added");
        }
    }
    normalization::test::Setup s;
    s.type = type;
    s.n = 3;
    s.c = 8;
    s.h = s.w = 9;
    s.groups = type == BNNSGroupNorm ? 2 : 1;
    for (BNNSDataType half : {kF16, kBF16}) {
      s.x_type = s.y_type = s.dy_type = s.dx_type = half;
      normalization_case(s, true, "");
    }
  }
  for (size_t n : {3, 50}) {
    normalization::test::Setup s;
    s.type = BNNSLayerNorm;
    s.is_vector = true;
    s.n = n;
    s.c = 203;
    s.h = s.w = 1;
    normalization_case(s, true, " vector");
    s.type = BNNSBatchNorm;
    normalization_case(s, true, " vector");
  }
}

void fused_case(const fused::test::Setup& s) {
  fused::test::Pair pair(s, 17);
  if (!pair.make_fused()) return;
  done(pair.apply());
  done(pair.apply_backward());
  Result result{"fused " + s.text()};
  for (const auto& array : pair.results()) result.add(array.second->bytes);
  done(pair.apply(false));
  result.add(pair.y.bytes);
  results->push_back(std::move(result));
}

void fuseds() {
  using namespace fused::test;
  for (First first : kFirsts)
    for (BNNSFilterType norm : kNorms) {
      Setup s;
      s.first = first;
      s.norm = norm;
      if (s.is_vector() && norm != BNNSBatchNorm && norm != BNNSLayerNorm) continue;
      if (s.is_vector()) s.c = 50, s.o = 33, s.n = 20;
      if (first == First::arithmetic) s.c = 4;
      s.has_moving = norm == BNNSBatchNorm;
      fused_case(s);
    }
  for (size_t side : {9, 14, 28}) {
    Setup s;
    s.n = 4;
    s.c = 16;
    s.o = 24;
    s.h = s.w = side;
    fused_case(s);
    s.stride = 2;
    fused_case(s);
    s.stride = 1;
    s.c = s.o = s.groups = 20;
    fused_case(s);
    s = few_channels_setup();
    s.h = s.w = side;
    fused_case(s);
    s.c = 3;
    s.o = 50;
    s.activation = BNNSActivationFunctionIdentity;
    fused_case(s);
  }
  fused_case(many_planes());
  for (BNNSDataType type : {kF16, kBF16}) {
    Setup s;
    s.c = s.o = 8;
    s.h = s.w = 9;
    s.type = s.joint_type = s.y_type = type;
    fused_case(s);
  }
}

// Convolution, batch norm, ReLU and the largest of every 2x2 window in one layer.
void pooled_case(size_t n, size_t c, size_t o, size_t side) {
  Random random(n + c + o);
  const size_t half = side / 2;
  std::vector<float> x = values(random, n * c * side * side), dx = x, w = values(random, o * c * 9, 0.0, 0.3), dw = w;
  std::vector<float> b = values(random, o), db = b, gamma = values(random, o, 1.0, 0.5), dgamma = gamma;
  std::vector<float> beta = values(random, o), dbeta = beta, y(n * o * half * half), dy = values(random, y.size());
  const auto image = [](size_t c, size_t side, std::vector<float>* v) {
    return array_of(BNNSDataLayoutImageCHW, {side, side, c}, v ? v->data() : nullptr);
  };
  const auto weights = [&](std::vector<float>& v) {
    return array_of(BNNSDataLayoutConvolutionWeightsOIHW, {3, 3, c, o}, v.data());
  };
  BNNSLayerParametersConvolution convolution = {};
  convolution.i_desc = image(c, side, nullptr);
  convolution.o_desc = image(o, side, nullptr);
  convolution.w_desc = weights(w);
  convolution.bias = vector_of(o, b.data());
  convolution.x_stride = convolution.y_stride = convolution.groups = 1;
  convolution.x_padding = convolution.y_padding = 1;
  BNNSLayerParametersNormalization norm = {};
  norm.i_desc = norm.o_desc = image(o, side, nullptr);
  norm.gamma_desc = vector_of(o, gamma.data());
  norm.beta_desc = vector_of(o, beta.data());
  norm.momentum = 0.9f;
  norm.epsilon = 1e-3f;
  norm.activation.function = BNNSActivationFunctionRectifiedLinear;
  BNNSLayerParametersPooling pooling = {};
  pooling.i_desc = image(o, side, nullptr);
  pooling.o_desc = image(o, half, nullptr);
  pooling.pooling_function = BNNSPoolingFunctionMax;
  pooling.k_width = pooling.k_height = pooling.x_stride = pooling.y_stride = 2;
  const BNNSFilterType types[] = {BNNSConvolution, BNNSBatchNorm, OBN_FILTER_POOLING};
  const void* blocks[] = {&convolution, &norm, &pooling};
  BNNSFilter filter = BNNSFilterCreateFusedLayer(3, types, blocks, nullptr);
  CHECK(filter, "%s", obn_last_error());
  if (!filter) return;
  BNNSNDArrayDescriptor dx_d = image(c, side, &dx), dy_d = image(o, half, &dy), dw_d = weights(dw);
  BNNSNDArrayDescriptor db_d = vector_of(o, db.data()), dbeta_d = vector_of(o, dbeta.data());
  BNNSNDArrayDescriptor dgamma_d = vector_of(o, dgamma.data());
  BNNSNDArrayDescriptor* deltas[] = {&dw_d, &db_d, &dbeta_d, &dgamma_d, nullptr};
  done(BNNSFusedFilterApplyBatch(filter, n, x.data(), 0, y.data(), 0, true));
  done(BNNSFusedFilterApplyBackwardBatch(filter, n, x.data(), 0, &dx_d, 0, y.data(), 0, &dy_d, 0, deltas));
  BNNSFilterDestroy(filter);
  record(text("fused with pooling (%zu, %zu, %zu, %zu) to %zu", n, c, side, side, o), y, dx, dw, db, dbeta, dgamma);
}

void pooled() {
  pooled_case(3, 1, 8, 20);
  pooled_case(2, 3, 32, 28);
  pooled_case(4, 32, 32, 14);
  pooled_case(2, 20, 40, 10);
}

// ---- loss ----

void loss_case(BNNSLossFunction function, BNNSLossReductionFunction reduction, size_t n, size_t batch, bool weighted) {
  loss::test::Random random(function * 100 + n);
  std::vector<float> x(batch * n), l(batch * n), w(batch), dx(batch * n);
  for (float& v : x) v = loss::test::input_of(function, random);
  for (float& v : l) v = loss::test::label_of(function, random);
  for (float& v : w) v = random.uniform(0.5f, 2.0f);
  const BNNSLayerParametersLossHuber p = loss::test::block_of(
      function, reduction, n, function == BNNSLossFunctionHuber ? 0.8f : 0.1f);
  std::vector<float> y(batch * p.o_desc.size[0], 1.0f);
  BNNSFilter filter = BNNSFilterCreateLayerLoss(&p, nullptr);
  CHECK(filter, "%s", obn_last_error());
  if (!filter) return;
  BNNSNDArrayDescriptor dx_d = vector_of(n, dx.data());
  done(BNNSLossFilterApplyBatch(filter, batch, x.data(), n, l.data(), n, weighted ? w.data() : nullptr,
                                weighted ? batch : 0, y.data(), &dx_d, n));
  BNNSFilterDestroy(filter);
  record(text("loss %u of (%zu, %zu) reduction %u%s", static_cast<unsigned>(function), batch, n,
              static_cast<unsigned>(reduction), weighted ? " weighted" : ""),
         y, dx);
}

void losses() {
  for (BNNSLossFunction function : loss::test::kAll)
    for (BNNSLossReductionFunction reduction : {BNNSLossReductionNone, BNNSLossReductionMean}) {
      loss_case(function, reduction, 10, 35, false);
      loss_case(function, reduction, 203, 5, reduction == BNNSLossReductionMean);
    }
}

// ---- pooling ----

void poolings() {
  using namespace pooling::layer_test;
  const size_t shapes[][8] = {// n, c, h, w, kernel, stride, pad, dilation
                              {2, 3, 20, 20, 2, 2, 0, 1}, {2, 3, 19, 23, 3, 2, 1, 1}, {1, 4, 33, 35, 3, 1, 1, 1},
                              {2, 5, 7, 7, 7, 1, 0, 1},   {1, 2, 17, 40, 5, 3, 2, 1}, {1, 3, 18, 21, 3, 1, 2, 2}};
  const auto pooling_case = [](const size_t (&shape)[8], BNNSPoolingFunction function, BNNSDataType type) {
    Shape s;
    s.function = function;
    s.type = type;
    s.n = shape[0];
    s.c = shape[1];
    s.h = shape[2];
    s.w = shape[3];
    s.kh = s.kw = shape[4];
    s.sy = s.sx = shape[5];
    s.left = s.right = s.up = s.down = shape[6];
    s.dy = s.dx = shape[7];
    s.p = (s.h + 2 * shape[6] - (s.kh - 1) * s.dy - 1) / s.sy + 1;
    s.q = (s.w + 2 * shape[6] - (s.kw - 1) * s.dx - 1) / s.sx + 1;
    s.has_bias = true;
    pooling::layer_test::Random wholes(1);
    Inputs inputs = make_inputs(s, wholes);
    ::obn::test::Random random(s.h + function);
    refill(inputs.x, random);
    refill(inputs.dy, random);
    const Results r = run(s, inputs, nullptr, "the best target");
    record(text("pooling %u (%zu, %zu, %zu, %zu) %zux%zu stride %zu pad %zu dilation %zu %s",
                static_cast<unsigned>(function), s.n, s.c, s.h, s.w, s.kh, s.kw, s.sy, s.up, s.dy, name_of(type)),
           r.y.bytes, r.indices.bytes, r.dx.bytes, r.dx_from_indices.bytes, r.db);
  };
  for (const auto& shape : shapes)
    for (BNNSPoolingFunction function : kFunctions) pooling_case(shape, function, kF32);
  for (BNNSDataType type : {kF16, kBF16})
    for (BNNSPoolingFunction function : kFunctions) pooling_case(shapes[1], function, type);
}

// ---- quantization, random numbers ----

void quantizations() {
  for (BNNSDataType type : {BNNSDataTypeInt8, BNNSDataTypeUInt8, BNNSDataTypeInt32})
    for (bool each : {false, true}) {
      Random random(5);
      const size_t w = 13, h = 5, c = 7;
      std::vector<float> x = values(random, w * h * c, 0.0, 50.0), z(x.size());
      std::vector<float> scale = values(random, c, 1.5, 1.0), bias = values(random, c, 3.0, 2.0);
      std::vector<std::byte> y(x.size() * bytes_of(type));
      BNNSLayerParametersQuantization p = {};
      p.axis_mask = each ? 4 : 0;
      p.i_desc = array_of(BNNSDataLayoutImageCHW, {w, h, c}, x.data());
      p.o_desc = array_of(BNNSDataLayoutImageCHW, {w, h, c}, y.data(), type);
      p.scale = vector_of(each ? c : 1, scale.data());
      p.bias = vector_of(each ? c : 1, bias.data());
      done(BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0));
      p.function = BNNSQuantizerFunctionDequantize;
      p.i_desc = p.o_desc;
      p.o_desc = array_of(BNNSDataLayoutImageCHW, {w, h, c}, z.data());
      done(BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0));
      record(text("quantization to %s and back%s", name_of(type), each ? " by channels" : ""), y, z);
    }
}

void randoms() {
  BNNSRandomGenerator generator = BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethodAES_CTR, 11, nullptr);
  CHECK(generator, "%s", obn_last_error());
  std::vector<float> numbers(1003);
  std::vector<int32_t> wholes(1003);
  BNNSNDArrayDescriptor to = vector_of(numbers.size(), numbers.data());
  BNNSNDArrayDescriptor to_wholes = vector_of(wholes.size(), BNNSDataTypeInt32, wholes.data());
  done(BNNSRandomFillUniformFloat(generator, &to, -1.5f, 2.25f));
  record("random uniform", numbers);
  done(BNNSRandomFillNormalFloat(generator, &to, 0.5f, 2.0f));
  record("random normal", numbers);
  done(BNNSRandomFillUniformInt(generator, &to_wholes, -1000, 77777));
  Result result{"random whole"};
  result.add(wholes.data(), wholes.size() * sizeof(int32_t));
  results->push_back(std::move(result));
  BNNSDestroyRandomGenerator(generator);
}

std::vector<Result> all_results() {
  std::vector<Result> all;
  results = &all;
  activations();
  arithmetics();
  attentions();
  clips();
  convolutions();
  fully_connecteds();
  fuseds();
  pooled();
  losses();
  matmuls();
  normalizations();
  optimizers();
  poolings();
  quantizations();
  randoms();
  return all;
}

}  // namespace

TEST(results_have_the_recorded_bits) {
  const std::vector<Result> all = all_results();
  const size_t set = column();
  size_t unrecorded = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Result& got = all[i];
    for (size_t k = 0; k < i; ++k) CHECK(all[k].name != got.name, "two cases are called %s", got.name.c_str());
    const Row* row = std::begin(kTable);
    while (row != std::end(kTable) && got.name != row->name) ++row;
    const uint32_t expected = row == std::end(kTable) ? 0 : row->hash[set];
    if (row != std::end(kTable) && expected == 0) {
      ++unrecorded;
      continue;
    }
    CHECK(got.hash == expected, "%s on %s: %08" PRIx32 ", recorded is %08" PRIx32 " (see bits_test.cpp)",
          got.name.c_str(), kSets[set], got.hash, expected);
  }
  CHECK(all.size() == std::size(kTable), "%zu cases, recorded are %zu", all.size(), std::size(kTable));
  // Whoever adds cases records what his machine has; who has more adds the rest. AVX2 and below everybody has.
  const bool is_everywhere = set <= 1;
  CHECK(unrecorded == 0 || !is_everywhere, "%zu cases are not recorded for %s", unrecorded, kSets[set]);
  if (unrecorded > 0) std::printf("%zu cases are not recorded for %s and were not compared\n", unrecorded, kSets[set]);
}

// Threads that do all of it at the same time, and the number of threads changes meanwhile.
TEST(stress_results_are_the_same_in_many_threads_at_once) {
  changes_settings = false;
  const std::vector<Result> expected = all_results();
  std::atomic<size_t> different{0}, running{4};
  std::vector<std::thread> threads;
  for (size_t t = running; t-- > 0;)
    threads.emplace_back([&] {
      const std::vector<Result> got = all_results();
      for (size_t i = 0; i < expected.size(); ++i) different += i >= got.size() || got[i].hash != expected[i].hash;
      running.fetch_sub(1);
    });
  for (size_t n = 0; running.load() > 0; ++n) {
    obn_set_num_threads(1 + n % 5);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  for (std::thread& thread : threads) thread.join();
  obn_set_num_threads(0);
  changes_settings = true;
  CHECK(different == 0, "%zu results", different.load());
}

// Writes this instruction set's column of the table at `path`; other columns of cases that are there stay.
int record_bits(const char* path) {
  const size_t set = column();
  std::vector<Result> all = all_results();
  std::vector<std::vector<uint32_t>> table(all.size(), std::vector<uint32_t>(kSetCount));
  if (std::FILE* old = std::fopen(path, "r")) {
    char line[300], name[200];
    while (std::fgets(line, sizeof line, old)) {
      unsigned h[kSetCount];
      static_assert(kSetCount == 7);
      constexpr char kForm[] = " {{%x, %x, %x, %x, %x, %x, %x}, \"%199[^\"]";
      if (std::sscanf(line, kForm, &h[0], &h[1], &h[2], &h[3], &h[4], &h[5], &h[6], name) != 8) continue;
      for (size_t i = 0; i < all.size(); ++i)
        if (all[i].name == name) table[i].assign(h, h + kSetCount);
    }
    std::fclose(old);
  }
  std::FILE* file = std::fopen(path, "w");
  if (!file) return std::perror(path), 1;
  std::fprintf(file, "//");
  for (const char* name : kSets) std::fprintf(file, " %-11s", name);
  std::fprintf(file, "\n");
  for (size_t i = 0; i < all.size(); ++i) {
    table[i][set] = all[i].hash;
    for (size_t k = 0; k < kSetCount; ++k)
      std::fprintf(file, "%s0x%08" PRIx32, k == 0 ? "{{" : ", ", table[i][k]);
    std::fprintf(file, "}, \"%s\"},\n", all[i].name.c_str());
  }
  return std::fclose(file) != 0;
}

}  // namespace obn::test
