// Attention: every target against the obvious loops, the whole layer against its formula in float64 and its gradients
// against differences of that formula, and the promises of the C interface.
#include "attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "base/memory.h"
#include "base/random.h"
#include "base/test.h"
#include "base/types.h"
#include "openbnns/openbnns.h"

namespace obn::attention {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  float value() { return static_cast<float>(below(1 << 20)) / (1 << 19) - 1.0f; }
  std::vector<float> values(size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = value();
    return v;
  }
  std::vector<uint8_t> flags(size_t n, size_t one_in) {
    std::vector<uint8_t> v(n);
    for (uint8_t& x : v) x = below(one_in) == 0;
    return v;
  }
};

bool is_close(double got, double want, double scale) {
  if (std::isnan(want)) return std::isnan(got);
  return std::fabs(got - want) <= 1e-5 * (scale + std::fabs(want));
}

// ---- heads ----

struct HeadCase {
  size_t t, s, extra, key_width, value_width;
  Blocks blocks;
  bool hidden, causal, dropout;
  int added;  // 0 none, 1 float32, 2 booleans, 3 bfloat16 with gaps
};

void get_numbers(const void* stream, uint64_t position, uint32_t* values, size_t n) {
  static_cast<const RandomStream*>(stream)->get(position, values, n);
}

void check_head(const HeadCase& c, uint64_t seed) {
  Random random(seed);
  const RandomStream stream(seed + 1);
  const size_t q_row = c.key_width + 3, v_row = c.value_width + 1;
  std::vector<float> q = random.values(c.t * q_row), k = random.values(c.s * q_row), v = random.values(c.s * v_row);
  for (float& x : q) x *= 4.0f;
  const std::vector<float> extra_k = random.values(c.extra * c.key_width + 1);
  const std::vector<float> extra_v = random.values(c.extra * c.value_width + 1);
  const std::vector<float> x = random.values(c.t * c.s), da = random.values(c.t * v_row);
  std::vector<uint16_t> halves(c.t * c.s * 2);
  for (uint16_t& half : halves) half = bfloat16_of_float(random.value());
  std::vector<uint8_t> flags = random.flags(c.t * c.s, 4), hidden = random.flags(c.s * 2, 3);
  if (c.causal) {  // every row sees the first column: the NaN of one that does not would stay within its reach
    hidden[0] = 0;
    for (size_t i = 0; i < c.t; ++i) flags[i * c.s] = 0;
  }
  Head h;
  h.t = c.t;
  h.s = c.s;
  h.extra = c.extra;
  h.key_width = c.key_width;
  h.value_width = c.value_width;
  h.scale = c.key_width > 64 ? 0.125f : 0.5f;
  h.q = q.data();
  h.k = k.data();
  h.v = v.data();
  h.q_row = h.k_row = q_row;
  h.v_row = v_row;
  h.extra_k = extra_k.data();
  h.extra_v = extra_v.data();
  if (c.hidden) h.hidden = hidden.data();
  h.hidden_step = 2;
  h.causal = c.causal;
  if (c.added == 1) h.added = {x.data(), BNNSDataTypeFloat32, c.s, 1};
  if (c.added == 2) h.added = {flags.data(), BNNSDataTypeBoolean, c.s, 1};
  if (c.added == 3) h.added = {halves.data(), BNNSDataTypeBFloat16, 2 * c.s, 2};
  if (c.dropout) h.dropout = {get_numbers, &stream, 17, c.s + c.extra, 1u << 30, 4.0f / 3.0f};

  std::vector<float> a(c.t * v_row), top(c.t), inverse(c.t), dots(c.t);
  std::vector<float> dq(c.t * q_row), dk(c.s * q_row), dv(c.s * v_row);
  std::vector<float> extra_dk(c.extra * c.key_width + 1), extra_dv(c.extra * c.value_width + 1);
  ref::forward(h, 0, c.t, a.data(), v_row, top.data(), inverse.data());
  HeadGradients g;
  g.da = da.data();
  g.da_row = v_row;
  g.top = top.data();
  g.inverse = inverse.data();
  g.dots = dots.data();
  g.dq = dq.data();
  g.dk = dk.data();
  g.dv = dv.data();
  g.dq_row = g.dk_row = q_row;
  g.dv_row = v_row;
  g.extra_dk = extra_dk.data();
  g.extra_dv = extra_dv.data();
  for (size_t i = 0; i < c.t; ++i) {
    double dot = 0.0;
    for (size_t w = 0; w < c.value_width; ++w)
      dot += static_cast<double>(a[i * v_row + w]) * static_cast<double>(da[i * v_row + w]);
    dots[i] = static_cast<float>(dot);
  }
  ref::backward(h, g);

  Coming coming;  // changes no value
  coming.add(h.k, q_row, c.s, c.key_width);
  coming.add(h.v, v_row, c.s, c.value_width);
  const auto compare = [&](const char* isa, const char* what, const std::vector<float>& got,
                           const std::vector<float>& want, size_t rows, size_t row, size_t width) {
    for (size_t i = 0; i < rows; ++i)
      for (size_t w = 0; w < width; ++w)
        CHECK(is_close(got[i * row + w], want[i * row + w], 1.0),
              "%s %s (%zu, %zu) %.9g want %.9g: t %zu s %zu extra %zu widths %zu %zu blocks %zu %zu", isa, what, i, w,
              static_cast<double>(got[i * row + w]), static_cast<double>(want[i * row + w]), c.t, c.s, c.extra,
              c.key_width, c.value_width, c.blocks.rows, c.blocks.columns);
  };
  for (const Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    std::vector<float> a2(c.t * v_row, 7.0f), top2(c.t), inverse2(c.t), dots2(c.t), dq2(c.t * q_row, 7.0f);
    std::vector<float> k2 = k, v2 = v;  // gradients take their place
    std::vector<float> extra_dk2(extra_dk.size()), extra_dv2(extra_dv.size());
    std::vector<float> work(forward_values(c.blocks, c.key_width, c.value_width), kNan);
    for (size_t first = 0; first < c.t; first += c.blocks.rows)
      kernels.forward(h, coming, c.blocks, first, std::min(c.blocks.rows, c.t - first), a2.data(), v_row, top2.data(),
                      inverse2.data(), nullptr, work.data());
    compare(name_of(isa), "a", a2, a, c.t, v_row, c.value_width);
    kernels.dots(a2.data(), v_row, da.data(), v_row, c.t, c.value_width, dots2.data());
    compare(name_of(isa), "dots", dots2, dots, c.t, 1, 1);
    Head h2 = h;
    h2.k = k2.data();
    h2.v = v2.data();
    HeadGradients g2 = g;
    g2.top = top2.data();
    g2.inverse = inverse2.data();
    g2.dots = dots2.data();
    g2.dq = dq2.data();
    g2.dk = k2.data();
    g2.dv = v2.data();
    g2.extra_dk = extra_dk2.data();
    g2.extra_dv = extra_dv2.data();
    const auto compare_gradients = [&] {
      compare(name_of(isa), "dq", dq2, dq, c.t, q_row, c.key_width);
      compare(name_of(isa), "dk", k2, dk, c.s, q_row, c.key_width);
      compare(name_of(isa), "dv", v2, dv, c.s, v_row, c.value_width);
      compare(name_of(isa), "extra dk", extra_dk2, extra_dk, c.extra, c.key_width, c.key_width);
      compare(name_of(isa), "extra dv", extra_dv2, extra_dv, c.extra, c.value_width, c.value_width);
    };
    for (const size_t copied : {c.blocks.rows, c.t}) {
      Blocks blocks = c.blocks;
      blocks.copied = copied;
      dq2.assign(dq2.size(), kNan);
      k2 = k;
      v2 = v;
      work.assign(backward_values(blocks, c.key_width, c.value_width), kNan);
      kernels.backward(h2, g2, blocks, work.data());
      compare_gradients();
    }

    // The same with p kept.
    if (!c.dropout) {
      const Blocks whole = {c.t, c.s + c.extra};
      std::vector<float> p(whole.columns * score_pitch(c.t), kNan);
      for (std::vector<float>* array : {&a2, &dq2}) array->assign(array->size(), 7.0f);
      for (std::vector<float>* array : {&top2, &inverse2, &dots2, &extra_dk2, &extra_dv2})
        array->assign(array->size(), kNan);
      k2 = k;
      v2 = v;
      work.assign(forward_values(whole, c.key_width, c.value_width), kNan);
      kernels.forward(h, coming, whole, 0, c.t, a2.data(), v_row, top2.data(), inverse2.data(), p.data(), work.data());
      compare(name_of(isa), "a", a2, a, c.t, v_row, c.value_width);
      g2.top = g2.inverse = g2.dots = nullptr;
      work.assign(kept_backward_values(c.t, whole.columns, c.key_width, c.value_width), kNan);
      kernels.backward_kept(h2, coming, g2, p.data(), work.data());
      compare_gradients();
    }
    for (size_t i = 0; i < c.t; ++i)  // what lies between the rows is nobody's
      for (size_t w = c.value_width; w < v_row; ++w) CHECK(a2[i * v_row + w] == 7.0f, "gap of row %zu", i);
  }
}

// ---- the whole layer ----

struct Shape {
  size_t batch, t, s, heads, key_width, value_width, q_inputs, k_inputs, v_inputs, outputs;
};

// All numbers of a layer, packed: weights (inputs, width, heads), biases (width, heads).
struct Numbers {
  std::vector<double> q, k, v, wq, wk, wv, wo, bq, bk, bv, bo, key_bias, value_bias;
  static constexpr size_t kTensors = 13;
  std::vector<double>& tensor(size_t i) {
    std::vector<double>* all[] = {&q,  &k,  &v,  &wq, &wk,       &wv,        &wo,
                                  &bq, &bk, &bv, &bo, &key_bias, &value_bias};
    return *all[i];
  }
};

struct Extras {
  bool biases = false, attention_bias = false, zero = false, hides = false, causal = false;
  std::vector<double> added;    // (t, s), empty: none
  std::vector<uint8_t> hidden;  // (batch, s)
};

std::vector<double> formula(const Shape& n, const Extras& e, Numbers& x) {
  const size_t all = n.s + e.attention_bias + e.zero;
  std::vector<double> y(n.batch * n.t * n.outputs);
  const auto project = [&](const std::vector<double>& in, const std::vector<double>& w, const std::vector<double>& b,
                           size_t row, size_t inputs, size_t width, size_t c, size_t h) {
    double sum = e.biases ? b[c * n.heads + h] : 0.0;
    for (size_t i = 0; i < inputs; ++i) sum += in[row * inputs + i] * w[(i * width + c) * n.heads + h];
    return sum;
  };
  for (size_t b = 0; b < n.batch; ++b) {
    std::vector<double> a(n.t * n.heads * n.value_width);
    for (size_t h = 0; h < n.heads; ++h) {
      std::vector<double> k(all * n.key_width), v(all * n.value_width);
      for (size_t j = 0; j < n.s; ++j) {
        for (size_t c = 0; c < n.key_width; ++c)
          k[j * n.key_width + c] = project(x.k, x.wk, x.bk, b * n.s + j, n.k_inputs, n.key_width, c, h);
        for (size_t c = 0; c < n.value_width; ++c)
          v[j * n.value_width + c] = project(x.v, x.wv, x.bv, b * n.s + j, n.v_inputs, n.value_width, c, h);
      }
      if (e.attention_bias) {
        for (size_t c = 0; c < n.key_width; ++c) k[n.s * n.key_width + c] = x.key_bias[c * n.heads + h];
        for (size_t c = 0; c < n.value_width; ++c) v[n.s * n.value_width + c] = x.value_bias[c * n.heads + h];
      }
      for (size_t i = 0; i < n.t; ++i) {
        std::vector<double> r(all);
        double top = -std::numeric_limits<double>::infinity(), sum = 0.0;
        for (size_t j = 0; j < all; ++j) {
          for (size_t c = 0; c < n.key_width; ++c)
            r[j] += project(x.q, x.wq, x.bq, b * n.t + i, n.q_inputs, n.key_width, c, h) * k[j * n.key_width + c];
          r[j] /= std::sqrt(static_cast<double>(n.key_width));
          if (j < n.s && !e.added.empty()) r[j] += e.added[i * n.s + j];
          if (j < n.s && ((e.hides && e.hidden[b * n.s + j]) || (e.causal && j > i)))
            r[j] = -std::numeric_limits<double>::infinity();
          top = std::max(top, r[j]);
        }
        for (double& score : r) sum += score = std::exp(score - top);
        for (size_t j = 0; j < all; ++j)
          for (size_t c = 0; c < n.value_width; ++c)
            a[(i * n.heads + h) * n.value_width + c] += r[j] / sum * v[j * n.value_width + c];
      }
    }
    for (size_t i = 0; i < n.t; ++i) {
      for (size_t o = 0; o < n.outputs; ++o) {
        double sum = e.biases ? x.bo[o] : 0.0;
        for (size_t c = 0; c < n.heads * n.value_width; ++c)
          sum += a[i * n.heads * n.value_width + c] * x.wo[c * n.outputs + o];
        y[(b * n.t + i) * n.outputs + o] = sum;
      }
    }
  }
  return y;
}

BNNSNDArrayDescriptor array_of(BNNSDataLayout layout, std::initializer_list<size_t> size, void* data,
                               BNNSDataType type = BNNSDataTypeFloat32) {
  BNNSNDArrayDescriptor d = {};
  d.layout = layout;
  std::copy(size.begin(), size.end(), d.size);
  d.data_type = type;
  d.data = data;
  return d;
}

// Where values (inputs, width, heads) lie in one of the layouts of weights.
constexpr BNNSDataLayout kWeightLayouts[] = {BNNSDataLayout3DFirstMajor, BNNSDataLayout3DLastMajor,
                                             BNNSDataLayoutMHA_DHK};
size_t place_of(BNNSDataLayout layout, size_t inputs, size_t width, size_t heads, size_t i, size_t w, size_t h) {
  if (layout == BNNSDataLayout3DFirstMajor) return (i * width + w) * heads + h;
  if (layout == BNNSDataLayout3DLastMajor) return i + inputs * (w + width * h);
  return i + inputs * (h + heads * w);
}

// A layer of the C interface and float32 copies of its numbers; gradients are shaped alike.
struct Layer {
  Shape n;
  const Extras& e;
  BNNSDataLayout layout;
  std::vector<float> values[Numbers::kTensors], gradients[Numbers::kTensors];
  std::vector<float> y, dy;
  std::vector<float> added;
  BNNSFilter filter = nullptr;
  BNNSMHAProjectionParameters deltas[4] = {};
  BNNSNDArrayDescriptor key_bias_delta = {}, value_bias_delta = {}, mask = {}, added_array = {};

  bool is_weights(size_t tensor) const { return tensor >= 3 && tensor <= 5; }
  size_t place(size_t tensor, size_t index) const {
    if (!is_weights(tensor)) return index;
    const size_t inputs = tensor == 3 ? n.q_inputs : tensor == 4 ? n.k_inputs : n.v_inputs;
    const size_t width = tensor == 5 ? n.value_width : n.key_width;
    return place_of(layout, inputs, width, n.heads, index / n.heads / width, index / n.heads % width, index % n.heads);
  }

  Layer(const Shape& shape, const Extras& extras, Numbers& numbers, BNNSDataLayout weights_layout, bool client,
        float rate = 0.0f, uint32_t seed = 1)
      : n(shape), e(extras), layout(weights_layout) {
    for (size_t i = 0; i < Numbers::kTensors; ++i) {
      const std::vector<double>& from = numbers.tensor(i);
      values[i].resize(from.size());
      gradients[i].assign(from.size(), 0.0f);
      for (size_t l = 0; l < from.size(); ++l) values[i][place(i, l)] = static_cast<float>(from[l]);
    }
    y.assign(n.batch * n.t * n.outputs, 7.0f);
    added.assign(e.added.begin(), e.added.end());
    BNNSLayerParametersMultiheadAttention p = {};
    describe(values, &p.query, &p.key, &p.value, &p.output, &p.key_attn_bias, &p.value_attn_bias);
    p.add_zero_attn = e.zero;
    p.dropout = rate;
    p.seed = seed;
    BNNSFilterParameters options = {};
    if (client) options.flags = BNNSFlagsUseClientPtr;
    filter = BNNSFilterCreateLayerMultiheadAttention(&p, &options);
    CHECK(filter, "%s", obn_last_error());
    if (e.causal) CHECK(obn_attention_set_causal(filter, 1) == 0, "%s", obn_last_error());
    describe(gradients, &deltas[0], &deltas[1], &deltas[2], &deltas[3], &key_bias_delta, &value_bias_delta);
    mask = array_of(BNNSDataLayoutVector, {n.s}, const_cast<uint8_t*>(e.hidden.data()), BNNSDataTypeBoolean);
    added_array = array_of(BNNSDataLayout2DFirstMajor, {n.t, n.s}, added.data());
  }
  ~Layer() { BNNSFilterDestroy(filter); }

  void describe(std::vector<float>* from, BNNSMHAProjectionParameters* q, BNNSMHAProjectionParameters* k,
                BNNSMHAProjectionParameters* v, BNNSMHAProjectionParameters* o, BNNSNDArrayDescriptor* key_bias,
                BNNSNDArrayDescriptor* value_bias) {
    const auto two = BNNSDataLayout2DFirstMajor;
    q->target_desc = array_of(two, {n.t, n.q_inputs}, from[0].data());
    k->target_desc = array_of(two, {n.s, n.k_inputs}, from[1].data());
    v->target_desc = array_of(two, {n.s, n.v_inputs}, from[2].data());
    q->weights = array_of(layout, {n.q_inputs, n.key_width, n.heads}, from[3].data());
    k->weights = array_of(layout, {n.k_inputs, n.key_width, n.heads}, from[4].data());
    v->weights = array_of(layout, {n.v_inputs, n.value_width, n.heads}, from[5].data());
    o->target_desc = array_of(two, {n.t, n.outputs}, nullptr);
    o->weights = array_of(two, {n.heads * n.value_width, n.outputs}, from[6].data());
    if (e.biases) {
      q->bias = array_of(two, {n.key_width, n.heads}, from[7].data());
      k->bias = array_of(two, {n.key_width, n.heads}, from[8].data());
      v->bias = array_of(two, {n.value_width, n.heads}, from[9].data());
      o->bias = array_of(BNNSDataLayoutVector, {n.outputs}, from[10].data());
    }
    if (!e.attention_bias) return;
    *key_bias = array_of(two, {n.key_width, n.heads}, from[11].data());
    *value_bias = array_of(two, {n.value_width, n.heads}, from[12].data());
  }

  int apply(size_t* cache_size = nullptr, void* cache = nullptr, size_t* work_size = nullptr, void* work = nullptr) {
    return BNNSApplyMultiheadAttention(filter, n.batch, values[0].data(), 0, values[1].data(), 0,
                                       e.hides ? &mask : nullptr, 0, values[2].data(), 0, y.data(), 0,
                                       added.empty() ? nullptr : &added_array, cache_size, cache, work_size, work);
  }
  int apply_backward(size_t cache_size = 0, void* cache = nullptr, size_t* work_size = nullptr, void* work = nullptr) {
    deltas[3].target_desc.data = dy.data();
    return BNNSApplyMultiheadAttentionBackward(
        filter, n.batch, values[0].data(), 0, &deltas[0], values[1].data(), 0, e.hides ? &mask : nullptr, 0, &deltas[1],
        values[2].data(), 0, &deltas[2], added.empty() ? nullptr : &added_array, &key_bias_delta, &value_bias_delta,
        nullptr, 0, &deltas[3], cache_size, cache, work_size, work);
  }
};

Numbers numbers_of(const Shape& n, Random* random) {
  Numbers x;
  const auto fill = [&](std::vector<double>& v, size_t count) {
    v.resize(count);
    for (double& value : v) value = static_cast<double>(random->value());
  };
  fill(x.q, n.batch * n.t * n.q_inputs);
  fill(x.k, n.batch * n.s * n.k_inputs);
  fill(x.v, n.batch * n.s * n.v_inputs);
  fill(x.wq, n.q_inputs * n.key_width * n.heads);
  fill(x.wk, n.k_inputs * n.key_width * n.heads);
  fill(x.wv, n.v_inputs * n.value_width * n.heads);
  fill(x.wo, n.heads * n.value_width * n.outputs);
  fill(x.bq, n.key_width * n.heads);
  fill(x.bk, n.key_width * n.heads);
  fill(x.bv, n.value_width * n.heads);
  fill(x.bo, n.outputs);
  fill(x.key_bias, n.key_width * n.heads);
  fill(x.value_bias, n.value_width * n.heads);
  return x;
}

// Gradients of Σ y·dy against the difference of the formula along a random direction, one tensor after the other.
void check_gradients(Layer& layer, Numbers& x, const Extras& e, Random* random) {
  constexpr double kStep = 1e-5;
  for (size_t tensor = 0; tensor < Numbers::kTensors; ++tensor) {
    if (tensor >= 7 && tensor <= 10 && !e.biases) continue;
    if (tensor >= 11 && !e.attention_bias) continue;
    std::vector<double>& values = x.tensor(tensor);
    const std::vector<double> before = values;
    std::vector<double> direction(values.size());
    double got = 0.0, want = 0.0, size = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      direction[i] = static_cast<double>(random->value());
      const double gradient = static_cast<double>(layer.gradients[tensor][layer.place(tensor, i)]);
      got += gradient * direction[i];
      size += std::fabs(gradient * direction[i]);
    }
    for (const double sign : {1.0, -1.0}) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = before[i] + sign * kStep * direction[i];
      const std::vector<double> y = formula(layer.n, e, x);
      for (size_t i = 0; i < y.size(); ++i) want += sign * y[i] * static_cast<double>(layer.dy[i]) / (2 * kStep);
    }
    values = before;
    const double most = tensor == 8 ? 4.0 : 1.0;  // a bias of all keys changes no softmax: what is left is rounding
    CHECK(std::fabs(got - want) <= 2e-5 * (size + most), "tensor %zu: %.9g want %.9g", tensor, got, want);
  }
}

// Float32 values, so that the formula sees the same.
void round_numbers(Numbers* x) {
  for (size_t i = 0; i < Numbers::kTensors; ++i)
    for (double& v : x->tensor(i)) v = static_cast<double>(static_cast<float>(v));
}

}  // namespace

TEST(attention_heads_against_the_obvious_loops) {
  const HeadCase cases[] = {
      {1, 1, 0, 1, 1, {1, 1}, false, false, false, 0},
      {5, 7, 0, 4, 3, {5, 7}, false, false, false, 1},
      {33, 70, 2, 16, 16, {16, 24}, true, false, false, 0},
      {40, 40, 1, 20, 33, {14, 40}, false, true, false, 2},
      {19, 50, 2, 8, 40, {19, 17}, true, true, true, 3},
      {50, 19, 0, 64, 64, {25, 10}, false, true, false, 0},
      {31, 45, 0, 17, 5, {31, 45}, false, false, true, 0},
      {70, 90, 1, 130, 140, {70, 91}, true, true, false, 1},
      {140, 70, 0, 130, 16, {64, 70}, false, true, false, 0},
  };
  for (const HeadCase& c : cases) check_head(c, 3);
  Random random(11);
  for (size_t i = 0; i < 60; ++i) {
    const size_t t = random.between(1, 40), s = random.between(1, 60), extra = random.below(3);
    check_head({t, s, extra, random.between(1, 40), random.between(1, 40),
                {random.between(1, t), random.between(1, s + extra)}, random.coin(), random.coin(), random.coin(),
                static_cast<int>(random.below(4))},
               random.next());
  }
}

TEST(attention_vector_of_the_specification) {
  float q = 0.5f, k = 1.5f, v = 3.5f, wq = 1.0f, wk = 1.0f, wv = 2.0f, wo = 3.0f, y = 0.0f, dy = 1.0f;
  const auto two = BNNSDataLayout2DFirstMajor;
  BNNSLayerParametersMultiheadAttention p = {};
  p.query = {array_of(two, {1, 1}, nullptr), array_of(BNNSDataLayoutMHA_DHK, {1, 1, 1}, &wq), {}};
  p.key = {array_of(two, {1, 1}, nullptr), array_of(BNNSDataLayoutMHA_DHK, {1, 1, 1}, &wk), {}};
  p.value = {array_of(two, {1, 1}, nullptr), array_of(BNNSDataLayoutMHA_DHK, {1, 1, 1}, &wv), {}};
  p.output = {array_of(two, {1, 1}, nullptr), array_of(two, {1, 1}, &wo), {}};
  const BNNSFilter filter = BNNSFilterCreateLayerMultiheadAttention(&p, nullptr);
  CHECK(filter, "%s", obn_last_error());
  CHECK(BNNSApplyMultiheadAttention(filter, 1, &q, 0, &k, 0, nullptr, 0, &v, 0, &y, 0, nullptr, nullptr, nullptr,
                                    nullptr, nullptr) == 0,
        "%s", obn_last_error());
  CHECK(y == 21.0f, "y %g", static_cast<double>(y));
  float got[7] = {9, 9, 9, 9, 9, 9, 9};
  BNNSMHAProjectionParameters dq = p.query, dk = p.key, dv = p.value, dout = p.output;
  dq.target_desc.data = &got[0];
  dk.target_desc.data = &got[1];
  dv.target_desc.data = &got[2];
  dq.weights.data = &got[3];
  dk.weights.data = &got[4];
  dv.weights.data = &got[5];
  dout.weights.data = &got[6];
  dout.target_desc.data = &dy;
  CHECK(BNNSApplyMultiheadAttentionBackward(filter, 1, &q, 0, &dq, &k, 0, nullptr, 0, &dk, &v, 0, &dv, nullptr, nullptr,
                                            nullptr, nullptr, 0, &dout, 0, nullptr, nullptr, nullptr) == 0,
        "%s", obn_last_error());
  const float want[] = {0, 0, 6, 0, 0, 10.5, 7};
  for (size_t i = 0; i < 7; ++i) CHECK(got[i] == want[i], "gradient %zu is %g", i, static_cast<double>(got[i]));
  BNNSFilterDestroy(filter);
  const BNNSLayerParametersMultiheadAttention empty = {};
  CHECK(!BNNSFilterCreateLayerMultiheadAttention(&empty, nullptr), "made of nothing");
}

TEST(attention_layer_against_the_formula) {
  const Shape shapes[] = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                          {2, 5, 7, 3, 4, 6, 8, 5, 9, 10},
                          {3, 9, 9, 2, 16, 16, 32, 32, 32, 32},
                          {1, 20, 3, 4, 5, 3, 7, 7, 7, 6}};
  for (size_t options = 0; options < 32; ++options) {
    Extras e;
    e.biases = options & 1;
    e.attention_bias = options & 2;
    e.zero = options & 4;
    e.causal = options & 8;
    e.hides = options & 16;
    for (const Shape& n : shapes) {
      Random random(options + 100 * n.t);
      Numbers x = numbers_of(n, &random);
      round_numbers(&x);
      e.hidden = random.flags(n.batch * n.s, 3);
      for (size_t b = 0; b < n.batch; ++b) e.hidden[b * n.s] = 0;  // every row sees something
      e.added.clear();
      if (options % 3 == 0) {
        for (const float v : random.values(n.t * n.s)) e.added.push_back(static_cast<double>(v));
      }
      const std::vector<double> want = formula(n, e, x);
      for (const BNNSDataLayout layout : kWeightLayouts) {
        for (const bool client : {false, true}) {
          Layer layer(n, e, x, layout, client);
          CHECK(layer.apply() == 0, "%s", obn_last_error());
          for (size_t i = 0; i < want.size(); ++i)
            CHECK(is_close(layer.y[i], want[i], 4.0), "options %zu layout %x [%zu] %.9g want %.9g", options,
                  static_cast<unsigned>(layout), i, static_cast<double>(layer.y[i]), want[i]);
          layer.dy = random.values(want.size());
          CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
          if (layout == kWeightLayouts[options % 3]) check_gradients(layer, x, e, &random);
        }
      }
    }
  }
}

TEST(attention_cache_workspace_and_threads_keep_the_bits) {
  const size_t before = obn_get_num_threads();
  const Shape n = {3, 70, 90, 4, 24, 40, 50, 60, 30, 44};
  Extras e;
  e.biases = e.attention_bias = e.zero = true;
  Random random(5);
  Numbers x = numbers_of(n, &random);
  const std::vector<float> dy = random.values(n.batch * n.t * n.outputs);
  Layer first(n, e, x, BNNSDataLayout3DLastMajor, false);
  first.dy = dy;
  obn_set_num_threads(1);
  CHECK(first.apply() == 0 && first.apply_backward() == 0, "%s", obn_last_error());
  for (const size_t threads : {size_t{1}, size_t{2}, size_t{7}}) {
    obn_set_num_threads(threads);
    for (const bool is_cached : {false, true}) {
      Layer layer(n, e, x, BNNSDataLayout3DLastMajor, false);
      layer.dy = dy;
      size_t cache_size = 0, work_size = 0;
      CHECK(layer.apply(is_cached ? &cache_size : nullptr, nullptr, &work_size, nullptr) == 0, "%s", obn_last_error());
      CHECK(layer.y[0] == 7.0f, "a query computed something");
      CHECK(work_size > 0 && (cache_size > 0) == is_cached, "sizes %zu %zu", cache_size, work_size);
      std::vector<std::byte> cache(cache_size + 4), work(work_size + 8);
      void* at = is_cached ? cache.data() + 4 : nullptr;  // a float may lie there
      std::byte* odd = work.data() + 3;
      --work_size;
      CHECK(layer.apply(is_cached ? &cache_size : nullptr, at, &work_size, odd) != 0 && failed_with("workspace: "),
            "one byte short: %s", obn_last_error());
      ++work_size;
      CHECK(layer.apply(is_cached ? &cache_size : nullptr, at, &work_size, odd) == 0, "%s", obn_last_error());
      CHECK(layer.y == first.y, "threads %zu cached %d", threads, is_cached);
      size_t back_size = 0;
      CHECK(layer.apply_backward(cache_size, at, &back_size, nullptr) == 0, "%s", obn_last_error());
      work.assign(back_size, std::byte{0x7f});
      CHECK(layer.apply_backward(cache_size, at, &back_size, work.data()) == 0, "%s", obn_last_error());
      for (size_t i = 0; i < Numbers::kTensors; ++i)
        CHECK(layer.gradients[i] == first.gradients[i], "tensor %zu threads %zu cached %d", i, threads, is_cached);
      if (!is_cached) continue;
      CHECK(layer.apply_backward(cache_size - 1, at) != 0 && failed_with("cache: "), "%s", obn_last_error());
      size_t short_size = cache_size - 1;
      CHECK(layer.apply(&short_size, at) != 0 && failed_with("cache: "), "%s", obn_last_error());
      CHECK(layer.apply(&cache_size, cache.data() + 2) != 0 && failed_with("cache: "), "%s", obn_last_error());
      std::memset(at, 0, 8);
      CHECK(layer.apply_backward(cache_size, at) != 0 && failed_with("cache: "), "%s", obn_last_error());
    }
  }
  obn_set_num_threads(before);
}

TEST(attention_gradients_accumulate_alias_and_are_left_out) {
  const Shape n = {2, 6, 6, 2, 5, 5, 8, 8, 8, 8};
  Extras e;
  e.biases = e.attention_bias = true;
  Random random(6);
  Numbers x = numbers_of(n, &random);
  Layer layer(n, e, x, BNNSDataLayoutMHA_DHK, true);
  layer.dy = random.values(n.batch * n.t * n.outputs);
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  std::vector<float> first[Numbers::kTensors];
  for (size_t i = 0; i < Numbers::kTensors; ++i) first[i] = layer.gradients[i];
  // Added to what is there.
  for (BNNSMHAProjectionParameters& d : layer.deltas)
    d.target_desc.flags = d.weights.flags = d.bias.flags = BNNSNDArrayFlagBackpropAccumulate;
  layer.key_bias_delta.flags = layer.value_bias_delta.flags = BNNSNDArrayFlagBackpropAccumulate;
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  for (size_t i = 0; i < Numbers::kTensors; ++i)
    for (size_t l = 0; l < first[i].size(); ++l)
      CHECK(layer.gradients[i][l] == 2 * first[i][l], "tensor %zu [%zu]", i, l);
  // One buffer for all three inputs, with gaps between samples.
  const size_t sample = n.t * n.q_inputs, step = sample + 5;
  std::vector<float> sum(n.batch * step, 7.0f);
  for (size_t i = 0; i < 3; ++i) {
    layer.deltas[i].target_desc.data = sum.data();
    layer.deltas[i].target_desc.stride[2] = step;
    layer.deltas[i].target_desc.flags = BNNSNDArrayFlagBackpropSet;
  }
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  for (size_t b = 0; b < n.batch; ++b) {
    for (size_t i = 0; i < sample; ++i) {
      const size_t at = b * sample + i;
      CHECK(is_close(sum[b * step + i], first[0][at] + first[1][at] + first[2][at], 1.0), "sum [%zu] of %zu", i, b);
    }
    for (size_t i = sample; i < step; ++i) CHECK(sum[b * step + i] == 7.0f, "gap [%zu] of %zu", i, b);
  }
  layer.deltas[1].target_desc.flags = BNNSNDArrayFlagBackpropAccumulate;
  CHECK(layer.apply_backward() != 0 && failed_with("query, key, value gradients: "), "%s", obn_last_error());
  // Only the bias of the values.
  for (size_t i = 0; i < Numbers::kTensors; ++i) std::fill(layer.gradients[i].begin(), layer.gradients[i].end(), 3.0f);
  for (size_t i = 0; i < 4; ++i) layer.deltas[i].weights.data = nullptr;
  for (size_t i = 0; i < 3; ++i) layer.deltas[i].target_desc.data = nullptr;
  layer.deltas[0].bias.data = layer.deltas[1].bias.data = layer.deltas[3].bias.data = nullptr;
  layer.deltas[2].bias.flags = BNNSNDArrayFlagBackpropSet;
  layer.key_bias_delta.data = nullptr;
  layer.value_bias_delta.data = nullptr;
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  for (size_t i = 0; i < Numbers::kTensors; ++i)
    for (size_t l = 0; l < first[i].size(); ++l)
      CHECK(layer.gradients[i][l] == (i == 9 ? first[i][l] : 3.0f), "tensor %zu [%zu]", i, l);
}

// Products that share packed operands between threads: however the gradient lies, the reported work is enough.
TEST(attention_output_gradient_with_gaps_needs_no_more_work) {
  const size_t before = obn_get_num_threads();
  obn_set_num_threads(4);
  const Shape n = {8, 128, 2, 2, 8, 256, 4, 4, 4, 544};
  Extras e;
  Random random(7);
  Numbers x = numbers_of(n, &random);
  Layer layer(n, e, x, BNNSDataLayout3DFirstMajor, false);
  layer.dy = random.values(n.batch * n.t * n.outputs);
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  const std::vector<float> want = layer.gradients[6];
  std::vector<float> spread(2 * layer.dy.size(), kNan);
  for (size_t i = 0; i < layer.dy.size(); ++i) spread[2 * i] = layer.dy[i];
  layer.dy.swap(spread);
  BNNSNDArrayDescriptor& dy = layer.deltas[3].target_desc;
  dy.stride[0] = 2;
  dy.stride[1] = 2 * n.outputs;
  dy.stride[2] = 2 * n.t * n.outputs;
  size_t size = 0;
  CHECK(layer.apply_backward(0, nullptr, &size) == 0 && size > 0, "%s", obn_last_error());
  constexpr size_t kGuard = size_t{4} << 20;
  std::vector<std::byte> work(size + kGuard, std::byte{7});
  CHECK(layer.apply_backward(0, nullptr, &size, work.data()) == 0, "%s", obn_last_error());
  const size_t untouched = static_cast<size_t>(std::count(work.begin() + static_cast<ptrdiff_t>(size), work.end(),
                                                        std::byte{7}));
  CHECK(untouched == kGuard, "%zu bytes behind the work were written", kGuard - untouched);
  for (size_t i = 0; i < want.size(); ++i)
    CHECK(is_close(layer.gradients[6][i], want[i], 16.0), "[%zu] %g want %g", i,
          static_cast<double>(layer.gradients[6][i]), static_cast<double>(want[i]));
  obn_set_num_threads(before);
}

TEST(attention_dropout_is_the_same_in_both_passes) {
  const Shape n = {2, 40, 50, 2, 8, 8, 16, 16, 16, 16};
  Extras e;
  Random random(8);
  Numbers x = numbers_of(n, &random);
  Layer layer(n, e, x, BNNSDataLayout3DFirstMajor, false, 0.25f, 42);
  Layer same(n, e, x, BNNSDataLayout3DFirstMajor, false, 0.25f, 42);
  layer.dy = random.values(n.batch * n.t * n.outputs);
  size_t size = 0;
  CHECK(layer.apply(&size) == 0, "%s", obn_last_error());
  std::vector<std::byte> cache(size);
  CHECK(layer.apply(&size, cache.data()) == 0 && same.apply() == 0, "%s", obn_last_error());
  CHECK(layer.y == same.y, "the same seed gave other results");
  const std::vector<float> y = layer.y;
  CHECK(layer.apply_backward(size, cache.data()) == 0, "%s", obn_last_error());
  CHECK(layer.apply() == 0 && layer.y != y, "a second call dropped the same");
  CHECK(layer.apply_backward() != 0 && failed_with("cache: "), "%s", obn_last_error());
  // y is linear in the weights of the output, so Σ dy·y = Σ dWO·WO when the same values were dropped.
  double from_y = 0.0, from_weights = 0.0;
  for (size_t i = 0; i < y.size(); ++i) from_y += static_cast<double>(y[i]) * static_cast<double>(layer.dy[i]);
  for (size_t i = 0; i < layer.values[6].size(); ++i)
    from_weights += static_cast<double>(layer.values[6][i]) * static_cast<double>(layer.gradients[6][i]);
  CHECK(is_close(from_weights, from_y, 1.0), "%g %g", from_weights, from_y);
  // The same for the weights of the values, through which the gradient of P passes.
  from_weights = 0.0;
  for (size_t i = 0; i < layer.values[5].size(); ++i)
    from_weights += static_cast<double>(layer.values[5][i]) * static_cast<double>(layer.gradients[5][i]);
  CHECK(is_close(from_weights, from_y, 1.0), "%g %g", from_weights, from_y);
}

TEST(attention_row_that_sees_nothing_is_nan) {
  const Shape n = {1, 3, 4, 1, 2, 2, 3, 3, 3, 3};
  Extras e;
  e.hides = true;
  e.hidden = {1, 1, 1, 1};
  Random random(9);
  Numbers x = numbers_of(n, &random);
  Layer layer(n, e, x, BNNSDataLayout3DFirstMajor, false);
  CHECK(layer.apply() == 0, "%s", obn_last_error());
  for (const float v : layer.y) CHECK(std::isnan(v), "%g", static_cast<double>(v));
  e.zero = true;
  Layer with_zero(n, e, x, BNNSDataLayout3DFirstMajor, false);
  CHECK(with_zero.apply() == 0, "%s", obn_last_error());
  for (const float v : with_zero.y) CHECK(v == 0.0f, "%g", static_cast<double>(v));
}

TEST(attention_very_wide_heads_take_the_obvious_loops) {
  const Shape n = {1, 2, 3, 1, 70000, 3, 2, 2, 2, 2};
  Extras e;
  Random random(10);
  Numbers x = numbers_of(n, &random);
  for (double& v : x.wq) v /= 100;
  round_numbers(&x);
  const std::vector<double> want = formula(n, e, x);
  Layer layer(n, e, x, BNNSDataLayout3DFirstMajor, false);
  layer.dy = random.values(want.size());
  CHECK(layer.apply() == 0, "%s", obn_last_error());
  for (size_t i = 0; i < want.size(); ++i) CHECK(is_close(layer.y[i], want[i], 4.0), "[%zu]", i);
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  check_gradients(layer, x, e, &random);
}

}  // namespace obn::attention
