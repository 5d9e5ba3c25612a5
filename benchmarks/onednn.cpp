// oneDNN without a framework, behind a small C interface for ctypes: one training layer with its own buffers, kept in
// the layout oneDNN is asked to use, nothing allocated and nothing reordered while it runs.
//
// Makers return NULL on failure; onednn_error() then gives the reason. Arrays cross this door in plain order
// (images: n c h w; weights: o i h w, transposed i o h w; activations: rows, columns). Weights are the exception to
// "nothing reordered": they belong to the caller, who updates them in plain order, so every pass converts them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::algorithm;
using dnnl::memory;
using Tag = memory::format_tag;
using Arguments = std::unordered_map<int, memory>;

std::string last_error;

dnnl::engine& cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct Layer {
  dnnl::stream stream{cpu()};
  memory x, y, dx, dy;
  memory::desc plain_x, plain_y;
  dnnl::primitive forward, backward;
  Arguments forward_arguments, backward_arguments;

  // x_desc, y_desc: the layout to run in; plain ones: the order in which the caller gives and takes values.
  Layer(memory::desc x_desc, memory::desc y_desc, memory::desc caller_x, memory::desc caller_y)
      : x(x_desc, cpu()), y(y_desc, cpu()), dx(x_desc, cpu()), dy(y_desc, cpu()), plain_x(caller_x),
        plain_y(caller_y) {}

  // Scratch memory belongs to the layer, so that no call allocates.
  void set_forward(const dnnl::primitive& primitive, const memory::desc& scratch, Arguments arguments) {
    forward = primitive;
    forward_arguments = std::move(arguments);
    forward_arguments[DNNL_ARG_SCRATCHPAD] = memory(scratch, cpu());
  }
  void set_backward(const dnnl::primitive& primitive, const memory::desc& scratch, Arguments arguments) {
    backward = primitive;
    backward_arguments = std::move(arguments);
    backward_arguments[DNNL_ARG_SCRATCHPAD] = memory(scratch, cpu());
  }
};

dnnl::primitive_attr own_scratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// The value of `name` in a list of (word, value) pairs.
template <class Value, size_t count>
Value choose(const std::pair<const char*, Value> (&table)[count], const char* name) {
  for (const auto& [word, value] : table) {
    if (std::strcmp(word, name) == 0) return value;
  }
  throw std::string("unknown word ") + name;
}

constexpr std::pair<const char*, Tag> kLayouts[] = {
    {"nchw", Tag::nchw}, {"nhwc", Tag::nhwc}, {"nChw16c", Tag::nChw16c}};

constexpr std::pair<const char*, algorithm> kPoolings[] = {
    {"max", algorithm::pooling_max},
    {"average", algorithm::pooling_avg_include_padding},
    {"average_exclude_padding", algorithm::pooling_avg_exclude_padding}};

// Named by what backward reads: x, or y where oneDNN has that form.
constexpr std::pair<const char*, algorithm> kFromX[] = {
    {"rectified_linear", algorithm::eltwise_relu}, {"tanh", algorithm::eltwise_tanh},
    {"sigmoid", algorithm::eltwise_logistic},      {"gelu", algorithm::eltwise_gelu_erf},
    {"silu", algorithm::eltwise_swish},            {"gelu_approximation", algorithm::eltwise_gelu_tanh}};
constexpr std::pair<const char*, algorithm> kFromY[] = {
    {"rectified_linear", algorithm::eltwise_relu_use_dst_for_bwd},
    {"tanh", algorithm::eltwise_tanh_use_dst_for_bwd},
    {"sigmoid", algorithm::eltwise_logistic_use_dst_for_bwd}};

Layer* make_pooling(const char* function, const char* layout, const memory::dims& shape, const memory::dims& windows,
                    const memory::dims& kernel, const memory::dims& stride, const memory::dims& before,
                    const memory::dims& after) {
  const Tag tag = choose(kLayouts, layout);
  const algorithm kind = choose(kPoolings, function);
  const memory::dims pooled{shape[0], shape[1], windows[0], windows[1]}, undilated{0, 0};
  const auto type = memory::data_type::f32;
  const memory::desc x(shape, type, tag), y(pooled, type, tag);
  const dnnl::pooling_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, kind, x, y, stride,
                                                      kernel, undilated, before, after, own_scratch());
  const dnnl::pooling_backward::primitive_desc backward(cpu(), kind, x, y, stride, kernel, undilated, before, after,
                                                        forward, own_scratch());
  auto* layer = new Layer(x, y, {shape, type, Tag::nchw}, {pooled, type, Tag::nchw});
  const memory workspace(forward.workspace_desc(), cpu());  // positions of the maxima; empty for averages
  layer->set_forward(dnnl::pooling_forward(forward), forward.scratchpad_desc(),
                     {{DNNL_ARG_SRC, layer->x}, {DNNL_ARG_DST, layer->y}, {DNNL_ARG_WORKSPACE, workspace}});
  layer->set_backward(
      dnnl::pooling_backward(backward), backward.scratchpad_desc(),
      {{DNNL_ARG_DIFF_DST, layer->dy}, {DNNL_ARG_DIFF_SRC, layer->dx}, {DNNL_ARG_WORKSPACE, workspace}});
  return layer;
}

Layer* make_softmax(const memory::desc& rows) {
  const auto kind = algorithm::softmax_accurate;
  const dnnl::softmax_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, kind, rows, rows, 1,
                                                      own_scratch());
  const dnnl::softmax_backward::primitive_desc backward(cpu(), kind, rows, rows, rows, 1, forward, own_scratch());
  auto* layer = new Layer(rows, rows, rows, rows);
  layer->set_forward(dnnl::softmax_forward(forward), forward.scratchpad_desc(),
                     {{DNNL_ARG_SRC, layer->x}, {DNNL_ARG_DST, layer->y}});
  layer->set_backward(dnnl::softmax_backward(backward), backward.scratchpad_desc(),
                      {{DNNL_ARG_DST, layer->y}, {DNNL_ARG_DIFF_DST, layer->dy}, {DNNL_ARG_DIFF_SRC, layer->dx}});
  return layer;
}

Layer* make_elementwise(const memory::desc& rows, algorithm kind, bool from_y) {
  const float alpha = kind == algorithm::eltwise_swish ? 1.0F : 0.0F;
  const dnnl::eltwise_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, kind, rows, rows,
                                                      alpha, 0.0F, own_scratch());
  const dnnl::eltwise_backward::primitive_desc backward(cpu(), kind, rows, rows, rows, alpha, 0.0F, forward,
                                                        own_scratch());
  auto* layer = new Layer(rows, rows, rows, rows);
  layer->set_forward(dnnl::eltwise_forward(forward), forward.scratchpad_desc(),
                     {{DNNL_ARG_SRC, layer->x}, {DNNL_ARG_DST, layer->y}});
  layer->set_backward(dnnl::eltwise_backward(backward), backward.scratchpad_desc(),
                      {{from_y ? DNNL_ARG_DST : DNNL_ARG_SRC, from_y ? layer->y : layer->x},
                       {DNNL_ARG_DIFF_DST, layer->dy},
                       {DNNL_ARG_DIFF_SRC, layer->dx}});
  return layer;
}

// ---- layers with weights: three passes, each with arrays in the layout it likes ----

enum { kForward, kInputGradient, kWeightGradient, kPasses };

struct Pass {
  std::vector<std::pair<dnnl::primitive, Arguments>> steps;
  std::vector<memory> kept;  // owners of what steps see with another description

  void add(const dnnl::primitive& primitive, Arguments arguments) {
    steps.emplace_back(primitive, std::move(arguments));
  }
  // `from` as it is if it lies as wanted, else a copy made in every run.
  memory as(const memory& from, const memory::desc& wanted) {
    if (from.get_desc() == wanted) return from;
    memory to(wanted, cpu());
    add(dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    return to;
  }
  // Where a primitive writes what `to` shall hold, and the way back afterwards.
  memory into(const memory& to, const memory::desc& written) {
    return to.get_desc() == written ? to : memory(written, cpu());
  }
  void back(const memory& from, const memory& to) {
    if (from.get() != to.get()) add(dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }
};

struct Trainer {
  dnnl::stream stream{cpu()};
  memory::desc plain_x, plain_y;
  memory w, dw;  // as the caller has them
  memory x, y, dx, dy, second_x, second_dy;  // second: what the weight gradient reads
  Pass passes[kPasses];
};

memory::desc as_grouped(const memory::desc& weights, int64_t groups) {
  if (groups == 1) return weights;
  memory::dims dims = weights.get_dims();
  dims[0] /= groups;
  dims.insert(dims.begin(), groups);
  return weights.reshape(dims);
}

// Forward, input gradient, weight gradient from the descriptions of the three primitives.
template <class Forward, class ByData, class ByWeights, class F, class D, class W>
void set_passes(Trainer& t, const F& forward, const D& by_data, const W& by_weights) {
  t.x = memory(forward.src_desc(), cpu());
  t.y = memory(forward.dst_desc(), cpu());
  t.dx = memory(by_data.diff_src_desc(), cpu());
  t.dy = memory(by_data.diff_dst_desc(), cpu());
  t.second_x = memory(by_weights.src_desc(), cpu());
  t.second_dy = memory(by_weights.diff_dst_desc(), cpu());
  Pass& f = t.passes[kForward];
  const memory forward_w = f.as(t.w, forward.weights_desc());
  f.add(Forward(forward), {{DNNL_ARG_SRC, t.x}, {DNNL_ARG_WEIGHTS, forward_w}, {DNNL_ARG_DST, t.y},
                           {DNNL_ARG_SCRATCHPAD, memory(forward.scratchpad_desc(), cpu())}});
  Pass& d = t.passes[kInputGradient];
  const memory data_w = d.as(t.w, by_data.weights_desc());
  d.add(ByData(by_data), {{DNNL_ARG_DIFF_DST, t.dy}, {DNNL_ARG_WEIGHTS, data_w}, {DNNL_ARG_DIFF_SRC, t.dx},
                          {DNNL_ARG_SCRATCHPAD, memory(by_data.scratchpad_desc(), cpu())}});
  Pass& g = t.passes[kWeightGradient];
  const memory dw = g.into(t.dw, by_weights.diff_weights_desc());
  g.add(ByWeights(by_weights),
        {{DNNL_ARG_SRC, t.second_x}, {DNNL_ARG_DIFF_DST, t.second_dy}, {DNNL_ARG_DIFF_WEIGHTS, dw},
         {DNNL_ARG_SCRATCHPAD, memory(by_weights.scratchpad_desc(), cpu())}});
  g.back(dw, t.dw);
}

struct Geometry {
  memory::dims stride, dilation, before, after;
};

constexpr std::pair<const char*, Tag> kImageLayouts[] = {{"nchw", Tag::nchw}, {"nhwc", Tag::nhwc}, {"any", Tag::any}};

// The three primitives of a convolution, and the caller's arrays.
struct ConvolutionPasses {
  memory::desc plain_x, plain_y, plain_w;
  dnnl::convolution_forward::primitive_desc forward;
  dnnl::convolution_backward_data::primitive_desc by_data;
  dnnl::convolution_backward_weights::primitive_desc by_weights;

  ConvolutionPasses(const char* layout, const memory::dims& in, const memory::dims& out, const memory::dims& kernel,
                    const Geometry& g, int64_t groups) {
    const auto type = memory::data_type::f32;
    const Tag tag = choose(kImageLayouts, layout);
    const memory::dims weights{out[1], in[1] / groups, kernel[0], kernel[1]};
    plain_x = {in, type, Tag::nchw};
    plain_y = {out, type, Tag::nchw};
    plain_w = as_grouped({weights, type, Tag::oihw}, groups);
    const memory::desc x(in, type, tag), y(out, type, tag), w(plain_w.get_dims(), type, Tag::any);
    const auto kind = algorithm::convolution_auto;  // Winograd where it has that
    forward = {cpu(), dnnl::prop_kind::forward_training, kind, x, w, y, g.stride, g.dilation, g.before, g.after,
               own_scratch()};
    by_data = {cpu(), kind, x, w, y, g.stride, g.dilation, g.before, g.after, forward, own_scratch()};
    by_weights = {cpu(), kind, x, w, y, g.stride, g.dilation, g.before, g.after, forward, own_scratch()};
  }
};

Trainer* make_convolution(const char* layout, const memory::dims& in, const memory::dims& out,
                          const memory::dims& kernel, const Geometry& g, int64_t groups) {
  const ConvolutionPasses p(layout, in, out, kernel, g, groups);
  auto* t = new Trainer{};
  t->plain_x = p.plain_x;
  t->plain_y = p.plain_y;
  t->w = memory(p.plain_w, cpu());
  t->dw = memory(p.plain_w, cpu());
  set_passes<dnnl::convolution_forward, dnnl::convolution_backward_data, dnnl::convolution_backward_weights>(
      *t, p.forward, p.by_data, p.by_weights);
  return t;
}

// One group only.
Trainer* make_transposed(const char* layout, const memory::dims& in, const memory::dims& out,
                         const memory::dims& kernel, const Geometry& g) {
  const auto type = memory::data_type::f32;
  const Tag tag = choose(kImageLayouts, layout);
  const memory::dims weights{out[1], in[1], kernel[0], kernel[1]};
  const memory::desc x(in, type, tag), y(out, type, tag), w(weights, type, Tag::any);
  auto* t = new Trainer{};
  t->plain_x = {in, type, Tag::nchw};
  t->plain_y = {out, type, Tag::nchw};
  t->w = memory({weights, type, Tag::iohw}, cpu());
  t->dw = memory({weights, type, Tag::iohw}, cpu());
  const auto kind = algorithm::deconvolution_direct;
  const dnnl::deconvolution_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, kind, x, w, y,
                                                            g.stride, g.dilation, g.before, g.after, own_scratch());
  const dnnl::deconvolution_backward_data::primitive_desc by_data(cpu(), kind, x, w, y, g.stride, g.dilation,
                                                                  g.before, g.after, forward, own_scratch());
  const dnnl::deconvolution_backward_weights::primitive_desc by_weights(
      cpu(), kind, x, w, y, g.stride, g.dilation, g.before, g.after, forward, own_scratch());
  set_passes<dnnl::deconvolution_forward, dnnl::deconvolution_backward_data, dnnl::deconvolution_backward_weights>(
      *t, forward, by_data, by_weights);
  return t;
}

constexpr std::pair<const char*, Tag> kMatrixLayouts[] = {{"plain", Tag::ab}, {"any", Tag::any}};

// x (n, inputs), weights (outputs, inputs).
struct InnerProductPasses {
  memory::desc plain_x, plain_y, plain_w;
  dnnl::inner_product_forward::primitive_desc forward;
  dnnl::inner_product_backward_data::primitive_desc by_data;
  dnnl::inner_product_backward_weights::primitive_desc by_weights;

  InnerProductPasses(const char* layout, int64_t n, int64_t inputs, int64_t outputs) {
    const auto type = memory::data_type::f32;
    plain_x = {{n, inputs}, type, Tag::ab};
    plain_y = {{n, outputs}, type, Tag::ab};
    plain_w = {{outputs, inputs}, type, Tag::ab};
    const memory::desc w({outputs, inputs}, type, choose(kMatrixLayouts, layout));
    forward = {cpu(), dnnl::prop_kind::forward_training, plain_x, w, plain_y, own_scratch()};
    by_data = {cpu(), plain_x, w, plain_y, forward, own_scratch()};
    by_weights = {cpu(), plain_x, w, plain_y, forward, own_scratch()};
  }
};

Trainer* make_fully_connected(const char* layout, int64_t n, int64_t inputs, int64_t outputs) {
  const InnerProductPasses p(layout, n, inputs, outputs);
  auto* t = new Trainer{};
  t->plain_x = p.plain_x;
  t->plain_y = p.plain_y;
  t->w = memory(p.plain_w, cpu());
  t->dw = memory(p.plain_w, cpu());
  set_passes<dnnl::inner_product_forward, dnnl::inner_product_backward_data, dnnl::inner_product_backward_weights>(
      *t, p.forward, p.by_data, p.by_weights);
  return t;
}

// y (m, n) = x (m, k) · w (k, n); `transposed`: w lies as (n, k). Forward only.
Trainer* make_matmul(int transposed, int64_t m, int64_t n, int64_t k) {
  const auto type = memory::data_type::f32;
  const memory::desc x({m, k}, type, Tag::ab), y({m, n}, type, Tag::ab);
  const memory::desc w({k, n}, type, transposed != 0 ? Tag::ba : Tag::ab);
  auto* t = new Trainer{};
  t->plain_x = x;
  t->plain_y = y;
  t->w = memory(w, cpu());
  t->x = memory(x, cpu());
  t->y = memory(y, cpu());
  const dnnl::matmul::primitive_desc product(cpu(), x, w, y, own_scratch());
  t->passes[kForward].add(dnnl::matmul(product), {{DNNL_ARG_SRC, t->x}, {DNNL_ARG_WEIGHTS, t->w}, {DNNL_ARG_DST, t->y},
                                                  {DNNL_ARG_SCRATCHPAD, memory(product.scratchpad_desc(), cpu())}});
  return t;
}

// ---- layers in a row, all gradients: normalizations, and what stands before them ----

struct Port {
  memory inside;
  memory::desc plain;  // the order in which the caller gives or takes its values
};

struct Chain {
  dnnl::stream stream{cpu()};
  Pass forward, backward;
  std::vector<Port> given, found;

  memory give(const memory::desc& inside, const memory::desc& plain) {
    given.push_back({memory(inside, cpu()), plain});
    return given.back().inside;
  }
  void find(const memory& inside, const memory::desc& plain) { found.push_back({inside, plain}); }
};

memory::desc vector_of(int64_t size) { return {{size}, memory::data_type::f32, Tag::a}; }

struct Normalized {
  memory y, dy, dx;
};

// y of x, and dx of dy later on; scale and shift are given, their gradients go to `gradients`. oneDNN computes the
// statistics that a caller would mix into running ones.
template <class Forward, class Backward, class F, class B>
Normalized normalize(Chain& c, const memory& x, int64_t channels, const F& forward, const B& backward,
                     std::vector<memory>& gradients) {
  const memory scale = c.give(vector_of(channels), vector_of(channels));
  const memory shift = c.give(vector_of(channels), vector_of(channels));
  const memory mean(forward.mean_desc(), cpu()), variance(forward.variance_desc(), cpu());
  const Normalized n{memory(x.get_desc(), cpu()), memory(x.get_desc(), cpu()), memory(x.get_desc(), cpu())};
  gradients = {memory(vector_of(channels), cpu()), memory(vector_of(channels), cpu())};
  Arguments up{{DNNL_ARG_SRC, x}, {DNNL_ARG_DST, n.y}, {DNNL_ARG_MEAN, mean}, {DNNL_ARG_VARIANCE, variance},
               {DNNL_ARG_SCALE, scale}, {DNNL_ARG_SHIFT, shift},
               {DNNL_ARG_SCRATCHPAD, memory(forward.scratchpad_desc(), cpu())}};
  Arguments down{{DNNL_ARG_SRC, x}, {DNNL_ARG_MEAN, mean}, {DNNL_ARG_VARIANCE, variance}, {DNNL_ARG_SCALE, scale},
                 {DNNL_ARG_DIFF_DST, n.dy}, {DNNL_ARG_DIFF_SRC, n.dx}, {DNNL_ARG_DIFF_SCALE, gradients[0]},
                 {DNNL_ARG_DIFF_SHIFT, gradients[1]},
                 {DNNL_ARG_SCRATCHPAD, memory(backward.scratchpad_desc(), cpu())}};
  if (forward.workspace_desc().get_size() > 0)  // where y is positive, for a fused ReLU
    up[DNNL_ARG_WORKSPACE] = down[DNNL_ARG_WORKSPACE] = memory(forward.workspace_desc(), cpu());
  if (backward.get_kind() == dnnl::primitive::kind::layer_normalization) down[DNNL_ARG_SHIFT] = shift;  // insists on it
  c.forward.add(Forward(forward), std::move(up));
  c.backward.add(Backward(backward), std::move(down));
  return n;
}

const auto kScaleAndShift = dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;

Normalized normalize_batch(Chain& c, const memory& x, float epsilon, bool relu, std::vector<memory>& gradients) {
  const memory::desc d = x.get_desc();
  const auto flags = relu ? kScaleAndShift | dnnl::normalization_flags::fuse_norm_relu : kScaleAndShift;
  const dnnl::batch_normalization_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, d, d,
                                                                  epsilon, flags, own_scratch());
  const dnnl::batch_normalization_backward::primitive_desc backward(cpu(), dnnl::prop_kind::backward, d, d, d, epsilon,
                                                                    flags, forward, own_scratch());
  return normalize<dnnl::batch_normalization_forward, dnnl::batch_normalization_backward>(
      c, x, d.get_dims()[1], forward, backward, gradients);
}

// Over the last axis.
Normalized normalize_rows(Chain& c, const memory& x, float epsilon, std::vector<memory>& gradients) {
  const memory::desc d = x.get_desc();
  const dnnl::layer_normalization_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, d, d,
                                                                  epsilon, kScaleAndShift, own_scratch());
  const dnnl::layer_normalization_backward::primitive_desc backward(cpu(), dnnl::prop_kind::backward, d, d, d, epsilon,
                                                                    kScaleAndShift, forward, own_scratch());
  return normalize<dnnl::layer_normalization_forward, dnnl::layer_normalization_backward>(
      c, x, d.get_dims().back(), forward, backward, gradients);
}

Normalized normalize_groups(Chain& c, const memory& x, int64_t groups, float epsilon,
                            std::vector<memory>& gradients) {
#if DNNL_VERSION_MAJOR > 3 || DNNL_VERSION_MINOR >= 3
  const memory::desc d = x.get_desc();
  const dnnl::group_normalization_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, d, d,
                                                                  groups, epsilon, kScaleAndShift, own_scratch());
  const dnnl::group_normalization_backward::primitive_desc backward(
      cpu(), dnnl::prop_kind::backward, d, d, d, groups, epsilon, kScaleAndShift, forward, own_scratch());
  return normalize<dnnl::group_normalization_forward, dnnl::group_normalization_backward>(
      c, x, d.get_dims()[1], forward, backward, gradients);
#else
  (void)c, (void)x, (void)groups, (void)epsilon, (void)gradients;
  throw std::string("this oneDNN has no group normalization");
#endif
}

// given: x, gamma, beta, dy; found: y, dx, dgamma, dbeta. groups: 0 for the norm over the batch, or over the last axis
// of rows.
Chain* make_normalization(const char* layout, const memory::dims& shape, int64_t groups, float epsilon, bool relu) {
  const bool rows = shape.size() == 2;
  const auto type = memory::data_type::f32;
  const memory::desc plain(shape, type, rows ? Tag::ab : Tag::nchw);
  const memory::desc inside = rows ? plain : memory::desc(shape, type, choose(kLayouts, layout));
  auto* c = new Chain{};
  const memory x = c->give(inside, plain);
  std::vector<memory> gradients;
  const Normalized n = rows         ? normalize_rows(*c, x, epsilon, gradients)
                       : groups > 0 ? normalize_groups(*c, x, groups, epsilon, gradients)
                                    : normalize_batch(*c, x, epsilon, relu, gradients);
  c->given.push_back({n.dy, plain});
  c->find(n.y, plain);
  c->find(n.dx, plain);
  for (const memory& gradient : gradients) c->find(gradient, gradient.get_desc());
  return c;
}

// The layer with weights before a norm over the batch. given: x, w, gamma, beta, dy; found: y, dx, dw, dgamma, dbeta.
// x and y stay in the layout of the forward pass; what backward wants otherwise is converted in every run.
template <class Forward, class ByData, class ByWeights, class F, class D, class W>
Chain* before_norm(const memory::desc& plain_x, const memory::desc& plain_w, const memory::desc& plain_y,
                   const F& forward, const D& by_data, const W& by_weights, float epsilon, bool relu) {
  auto* c = new Chain{};
  const memory x = c->give(forward.src_desc(), plain_x), w = c->give(plain_w, plain_w);
  const memory z(forward.dst_desc(), cpu()), dw(plain_w, cpu());
  c->forward.add(Forward(forward),
                 {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, c->forward.as(w, forward.weights_desc())}, {DNNL_ARG_DST, z},
                  {DNNL_ARG_SCRATCHPAD, memory(forward.scratchpad_desc(), cpu())}});
  std::vector<memory> gradients;
  const Normalized n = normalize_batch(*c, z, epsilon, relu, gradients);
  Pass& b = c->backward;
  const memory dx(by_data.diff_src_desc(), cpu());
  const memory data_w = b.as(w, by_data.weights_desc()), data_dz = b.as(n.dx, by_data.diff_dst_desc());
  b.add(ByData(by_data), {{DNNL_ARG_DIFF_DST, data_dz}, {DNNL_ARG_WEIGHTS, data_w}, {DNNL_ARG_DIFF_SRC, dx},
                          {DNNL_ARG_SCRATCHPAD, memory(by_data.scratchpad_desc(), cpu())}});
  const memory own_x = b.as(x, by_weights.src_desc()), own_dz = b.as(n.dx, by_weights.diff_dst_desc());
  const memory own_dw = b.into(dw, by_weights.diff_weights_desc());
  b.add(ByWeights(by_weights), {{DNNL_ARG_SRC, own_x}, {DNNL_ARG_DIFF_DST, own_dz}, {DNNL_ARG_DIFF_WEIGHTS, own_dw},
                                {DNNL_ARG_SCRATCHPAD, memory(by_weights.scratchpad_desc(), cpu())}});
  b.back(own_dw, dw);
  c->given.push_back({n.dy, plain_y});
  c->find(n.y, plain_y);
  c->find(dx, plain_x);
  c->find(dw, plain_w);
  for (const memory& gradient : gradients) c->find(gradient, gradient.get_desc());
  return c;
}

Chain* make_fused_convolution(const char* layout, const memory::dims& in, const memory::dims& out,
                              const memory::dims& kernel, const Geometry& g, int64_t groups, float epsilon,
                              bool relu) {
  const ConvolutionPasses p(layout, in, out, kernel, g, groups);
  return before_norm<dnnl::convolution_forward, dnnl::convolution_backward_data, dnnl::convolution_backward_weights>(
      p.plain_x, p.plain_w, p.plain_y, p.forward, p.by_data, p.by_weights, epsilon, relu);
}

Chain* make_fused_fully_connected(const char* layout, int64_t n, int64_t inputs, int64_t outputs, float epsilon,
                                  bool relu) {
  const InnerProductPasses p(layout, n, inputs, outputs);
  return before_norm<dnnl::inner_product_forward, dnnl::inner_product_backward_data,
                     dnnl::inner_product_backward_weights>(p.plain_x, p.plain_w, p.plain_y, p.forward, p.by_data,
                                                           p.by_weights, epsilon, relu);
}

// given: a, b, gamma, beta, dy; found: y, the gradient of both inputs, dgamma, dbeta
Chain* make_fused_add(const char* layout, const memory::dims& shape, float epsilon, bool relu) {
  const auto type = memory::data_type::f32;
  const memory::desc plain(shape, type, Tag::nchw), inside(shape, type, choose(kLayouts, layout));
  auto* c = new Chain{};
  const memory a = c->give(inside, plain), b = c->give(inside, plain), z(inside, cpu());
  const dnnl::binary::primitive_desc sum(cpu(), algorithm::binary_add, inside, inside, inside, own_scratch());
  c->forward.add(dnnl::binary(sum), {{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}, {DNNL_ARG_DST, z},
                                     {DNNL_ARG_SCRATCHPAD, memory(sum.scratchpad_desc(), cpu())}});
  std::vector<memory> gradients;
  const Normalized n = normalize_batch(*c, z, epsilon, relu, gradients);
  c->given.push_back({n.dy, plain});
  c->find(n.y, plain);
  c->find(n.dx, plain);
  for (const memory& gradient : gradients) c->find(gradient, gradient.get_desc());
  return c;
}

// Element-wise on arrays of any rank, forward only; extents of b are those of a or 1. given: a, b; found: y.
Chain* make_arithmetic(const char* function, const memory::dims& a_shape, const memory::dims& b_shape) {
  constexpr std::pair<const char*, algorithm> functions[] = {{"add", algorithm::binary_add},
                                                             {"multiply", algorithm::binary_mul}};
  constexpr Tag tags[] = {Tag::a, Tag::ab, Tag::abc, Tag::abcd};
  const auto type = memory::data_type::f32;
  const Tag tag = tags[a_shape.size() - 1];
  const memory::desc a_desc(a_shape, type, tag), b_desc(b_shape, type, tag);
  auto* c = new Chain{};
  const memory a = c->give(a_desc, a_desc), b = c->give(b_desc, b_desc), y(a_desc, cpu());
  const dnnl::binary::primitive_desc binary(cpu(), choose(functions, function), a_desc, b_desc, a_desc, own_scratch());
  c->forward.add(dnnl::binary(binary), {{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}, {DNNL_ARG_DST, y},
                                        {DNNL_ARG_SCRATCHPAD, memory(binary.scratchpad_desc(), cpu())}});
  c->find(y, a_desc);
  return c;
}

#include "onednn_products.h"

// ---- a network with its training step ----

// One learned array with the moments of Adam. It lies as its forward pass likes it: Adam does not care about the order,
// and values that only fill up a block stay 0.
struct Parameter {
  memory value, gradient;
  memory::desc plain;
  std::vector<float> first, second;

  Parameter(const memory::desc& inside, const memory::desc& caller)
      : value(inside, cpu()), gradient(inside, cpu()), plain(caller), first(inside.get_size() / sizeof(float)),
        second(first.size()) {}
};

struct Statistics {
  memory mean, variance;  // of the batch
  std::vector<float> moving_mean, moving_variance;
};

struct Network {
  dnnl::stream stream{cpu()};
  Pass forward, backward;
  memory images, logits, grad_logits;
  std::vector<Parameter> parameters;  // of every stage: weights, bias if any, gamma, beta; then fully connected
  std::vector<Statistics> statistics;
  int64_t batch = 0, classes = 0, time_step = 0;
  float rate = 0, clip = 0, l2 = 0, momentum = 0;  // clip 0: gradients stay as they are

  Parameter& add_parameter(const memory::desc& inside, const memory::desc& plain) {
    return parameters.emplace_back(inside, plain);
  }
};

// What a stage hands on, and the primitives that lead back through it, first to last.
struct Stage {
  memory x, y, dx, dy;  // dx: none for the first stage
  Pass back;
};

memory scratch_of(const memory::desc& desc) { return memory(desc, cpu()); }

// Convolution 3 x 3 to `outputs` channels, batch norm with ReLU, max pooling 2 x 2.
Stage add_stage(Network& net, const memory& given, Tag tag, int64_t outputs, bool with_bias, float epsilon,
                bool is_first) {
  const auto type = memory::data_type::f32;
  const memory::dims in = given.get_desc().get_dims(), out{in[0], outputs, in[2], in[3]};
  const memory::dims pooled{in[0], outputs, in[2] / 2, in[3] / 2}, one{1, 1}, two{2, 2}, none{0, 0};
  const auto kind = algorithm::convolution_auto, max = algorithm::pooling_max;
  const memory::desc x_desc = is_first ? given.get_desc() : memory::desc(in, type, tag), y_desc(out, type, tag);
  const memory::desc w_desc({outputs, in[1], 3, 3}, type, Tag::any), plain_w({outputs, in[1], 3, 3}, type, Tag::oihw);
  const memory::desc channels = vector_of(outputs);

  using Convolution = dnnl::convolution_forward;
  using ByWeights = dnnl::convolution_backward_weights;
  const auto training = dnnl::prop_kind::forward_training;
  const Convolution::primitive_desc convolution =
      with_bias ? Convolution::primitive_desc(cpu(), training, kind, x_desc, w_desc, channels, y_desc, one, one, one,
                                              own_scratch())
                : Convolution::primitive_desc(cpu(), training, kind, x_desc, w_desc, y_desc, one, one, one,
                                              own_scratch());
  const ByWeights::primitive_desc by_weights =
      with_bias ? ByWeights::primitive_desc(cpu(), kind, x_desc, w_desc, channels, y_desc, one, one, one, convolution,
                                            own_scratch())
                : ByWeights::primitive_desc(cpu(), kind, x_desc, w_desc, y_desc, one, one, one, convolution,
                                            own_scratch());

  Stage stage;
  stage.x = net.forward.as(given, convolution.src_desc());
  const memory z(convolution.dst_desc(), cpu());
  const Parameter w = net.add_parameter(convolution.weights_desc(), plain_w);
  Arguments up{{DNNL_ARG_SRC, stage.x}, {DNNL_ARG_WEIGHTS, w.value}, {DNNL_ARG_DST, z},
               {DNNL_ARG_SCRATCHPAD, scratch_of(convolution.scratchpad_desc())}};
  Arguments down{{DNNL_ARG_SCRATCHPAD, scratch_of(by_weights.scratchpad_desc())}};
  if (with_bias) {
    const Parameter bias = net.add_parameter(channels, channels);
    up[DNNL_ARG_BIAS] = bias.value;
    down[DNNL_ARG_DIFF_BIAS] = bias.gradient;
  }
  net.forward.add(Convolution(convolution), std::move(up));

  // The chain's norm: scale and shift are its given arrays.
  Chain chain;
  std::vector<memory> gradients;
  const Normalized norm = normalize_batch(chain, z, epsilon, true, gradients);
  auto& [norm_forward, norm_arguments] = chain.forward.steps[0];
  for (size_t i = 0; i < 2; i++) {
    Parameter& parameter = net.add_parameter(channels, channels);
    parameter.value = chain.given[i].inside;
    parameter.gradient = gradients[i];
  }
  net.statistics.push_back({norm_arguments.at(DNNL_ARG_MEAN), norm_arguments.at(DNNL_ARG_VARIANCE),
                            std::vector<float>(outputs, 0.0F), std::vector<float>(outputs, 1.0F)});
  net.forward.add(norm_forward, norm_arguments);

  const memory::desc inside = z.get_desc(), pooled_desc(pooled, type, Tag::any);
  const dnnl::pooling_forward::primitive_desc pool(cpu(), training, max, inside, pooled_desc, two, two, none, none,
                                                   none, own_scratch());
  const dnnl::pooling_backward::primitive_desc unpool(cpu(), max, inside, pool.dst_desc(), two, two, none, none, none,
                                                      pool, own_scratch());
  const memory winners(pool.workspace_desc(), cpu());
  stage.y = memory(pool.dst_desc(), cpu());
  stage.dy = memory(pool.dst_desc(), cpu());
  net.forward.add(dnnl::pooling_forward(pool), {{DNNL_ARG_SRC, norm.y}, {DNNL_ARG_DST, stage.y},
                                                {DNNL_ARG_WORKSPACE, winners},
                                                {DNNL_ARG_SCRATCHPAD, scratch_of(pool.scratchpad_desc())}});

  Pass& b = stage.back;
  b.add(dnnl::pooling_backward(unpool), {{DNNL_ARG_DIFF_DST, stage.dy}, {DNNL_ARG_DIFF_SRC, norm.dy},
                                         {DNNL_ARG_WORKSPACE, winners},
                                         {DNNL_ARG_SCRATCHPAD, scratch_of(unpool.scratchpad_desc())}});
  b.add(chain.backward.steps[0].first, chain.backward.steps[0].second);
  const memory dw = b.into(w.gradient, by_weights.diff_weights_desc());
  down[DNNL_ARG_SRC] = b.as(stage.x, by_weights.src_desc());
  down[DNNL_ARG_DIFF_DST] = b.as(norm.dx, by_weights.diff_dst_desc());
  down[DNNL_ARG_DIFF_WEIGHTS] = dw;
  b.add(ByWeights(by_weights), std::move(down));
  b.back(dw, w.gradient);
  if (is_first) return stage;

  const dnnl::convolution_backward_data::primitive_desc by_data(cpu(), kind, x_desc, w_desc, y_desc, one, one, one,
                                                                convolution, own_scratch());
  stage.dx = memory(by_data.diff_src_desc(), cpu());
  b.add(dnnl::convolution_backward_data(by_data),
        {{DNNL_ARG_DIFF_DST, b.as(norm.dx, by_data.diff_dst_desc())},
         {DNNL_ARG_WEIGHTS, b.as(w.value, by_data.weights_desc())}, {DNNL_ARG_DIFF_SRC, stage.dx},
         {DNNL_ARG_SCRATCHPAD, scratch_of(by_data.scratchpad_desc())}});
  return stage;
}

// Fully connected, of images in the layout they come in; their gradient goes to dx.
void add_classes(Network& net, const memory& x, const memory& dx, bool with_bias) {
  const auto type = memory::data_type::f32;
  memory::dims dims = x.get_desc().get_dims();
  dims[0] = net.classes;
  const memory::desc x_desc = x.get_desc(), w_desc(dims, type, Tag::any), plain_w(dims, type, Tag::oihw);
  const memory::desc y_desc({net.batch, net.classes}, type, Tag::ab), bias_desc = vector_of(net.classes);
  using Product = dnnl::inner_product_forward;
  using ByWeights = dnnl::inner_product_backward_weights;
  const auto training = dnnl::prop_kind::forward_training;
  const Product::primitive_desc product =
      with_bias ? Product::primitive_desc(cpu(), training, x_desc, w_desc, bias_desc, y_desc, own_scratch())
                : Product::primitive_desc(cpu(), training, x_desc, w_desc, y_desc, own_scratch());
  const dnnl::inner_product_backward_data::primitive_desc by_data(cpu(), x_desc, w_desc, y_desc, product,
                                                                  own_scratch());
  const ByWeights::primitive_desc by_weights =
      with_bias ? ByWeights::primitive_desc(cpu(), x_desc, w_desc, bias_desc, y_desc, product, own_scratch())
                : ByWeights::primitive_desc(cpu(), x_desc, w_desc, y_desc, product, own_scratch());

  net.logits = memory(y_desc, cpu());
  net.grad_logits = memory(y_desc, cpu());
  const Parameter w = net.add_parameter(product.weights_desc(), plain_w);
  Arguments up{{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w.value}, {DNNL_ARG_DST, net.logits},
               {DNNL_ARG_SCRATCHPAD, scratch_of(product.scratchpad_desc())}};
  Pass& b = net.backward;
  const memory dw = b.into(w.gradient, by_weights.diff_weights_desc());
  Arguments down{{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, net.grad_logits}, {DNNL_ARG_DIFF_WEIGHTS, dw},
                 {DNNL_ARG_SCRATCHPAD, scratch_of(by_weights.scratchpad_desc())}};
  if (with_bias) {
    const Parameter bias = net.add_parameter(bias_desc, bias_desc);
    up[DNNL_ARG_BIAS] = bias.value;
    down[DNNL_ARG_DIFF_BIAS] = bias.gradient;
  }
  net.forward.add(Product(product), std::move(up));
  b.add(ByWeights(by_weights), std::move(down));
  b.back(dw, w.gradient);
  b.add(dnnl::inner_product_backward_data(by_data),
        {{DNNL_ARG_DIFF_DST, net.grad_logits}, {DNNL_ARG_WEIGHTS, b.as(w.value, by_data.weights_desc())},
         {DNNL_ARG_DIFF_SRC, dx}, {DNNL_ARG_SCRATCHPAD, scratch_of(by_data.scratchpad_desc())}});
}

Network* make_network(const char* layout, const memory::dims& image, const std::vector<int64_t>& stages,
                      int64_t classes, bool stage_bias, bool bias, float epsilon) {
  const Tag tag = choose(kImageLayouts, layout);
  auto* net = new Network{};
  net->batch = image[0];
  net->classes = classes;
  // One channel: plain order is every order.
  net->images = memory({image, memory::data_type::f32, tag == Tag::any ? Tag::nchw : tag}, cpu());
  std::vector<Stage> built;
  for (const int64_t outputs : stages) {
    const bool is_first = built.empty();
    built.push_back(add_stage(*net, is_first ? net->images : built.back().y, tag, outputs, stage_bias, epsilon,
                              is_first));
  }
  add_classes(*net, built.back().y, built.back().dy, bias);
  for (size_t i = built.size(); i-- > 0;) {
    for (auto& step : built[i].back.steps) net->backward.steps.push_back(step);
    if (i > 0) net->backward.back(built[i].dx, built[i - 1].dy);
  }
  return net;
}

float* values_of(const memory& m) { return static_cast<float*>(m.get_data_handle()); }

// Mean softmax cross-entropy of rows, and its gradient.
float cross_entropy(const float* logits, const float* labels, float* gradient, int64_t rows, int64_t columns) {
  float loss = 0;
  for (int64_t r = 0; r < rows; r++, logits += columns, labels += columns, gradient += columns) {
    const float highest = *std::max_element(logits, logits + columns);
    float sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += gradient[i] = std::exp(logits[i] - highest);
    const float log_sum = std::log(sum) + highest;
    for (int64_t i = 0; i < columns; i++) {
      loss += labels[i] * (log_sum - logits[i]);
      gradient[i] = (gradient[i] / sum - labels[i]) / static_cast<float>(rows);
    }
  }
  return loss / static_cast<float>(rows);
}

void adam(Network& net) {
  net.time_step++;
  const double t = static_cast<double>(net.time_step);
  const float rate = static_cast<float>(net.rate * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t)));
  const float clip = net.clip > 0 ? net.clip : INFINITY, l2 = net.l2;
  for (Parameter& p : net.parameters) {
    const int64_t size = static_cast<int64_t>(p.first.size());
    float *w = values_of(p.value), *m = p.first.data(), *v = p.second.data();
    const float* gradient = values_of(p.gradient);
#pragma omp parallel for simd if (size > 4096)
    for (int64_t i = 0; i < size; i++) {
      const float g = std::min(std::max(gradient[i], -clip), clip) + l2 * w[i];
      m[i] = 0.9F * m[i] + 0.1F * g;
      v[i] = 0.999F * v[i] + 0.001F * g * g;
      w[i] -= rate * m[i] / (std::sqrt(v[i]) + 1e-8F);
    }
  }
}

void mix(std::vector<float>& moving, const memory& now, float momentum) {
  for (size_t i = 0; i < moving.size(); i++)
    moving[i] = momentum * moving[i] + (1 - momentum) * values_of(now)[i];
}

void run_pass(Network& net, Pass& pass) {
  for (auto& [primitive, arguments] : pass.steps) primitive.execute(net.stream, arguments);
  net.stream.wait();
}

void reorder(dnnl::stream& stream, memory from, memory to) {
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
}

memory::dims four(const int64_t* values) { return {values[0], values[1], values[2], values[3]}; }
memory::dims pair(const int64_t* values) { return {values[0], values[1]}; }

// Runs a maker; no exception passes the C door.
template <class Maker>
auto guarded(const Maker& maker) -> decltype(maker()) {
  try {
    return maker();
  } catch (const dnnl::error& error) {
    last_error = error.message;
  } catch (const std::string& message) {
    last_error = message;
  }
  return nullptr;
}

}  // namespace

extern "C" {

const char* onednn_error() { return last_error.c_str(); }

// major, minor, patch of the library that is really running
void onednn_version(int* version) {
  const dnnl_version_t* found = dnnl_version();
  version[0] = found->major;
  version[1] = found->minor;
  version[2] = found->patch;
}

// shape: n c h w; all others: vertical, horizontal
Layer* onednn_pooling(const char* function, const char* layout, const int64_t* shape, const int64_t* windows,
                      const int64_t* kernel, const int64_t* stride, const int64_t* before, const int64_t* after) {
  return guarded([&] {
    return make_pooling(function, layout, four(shape), pair(windows), pair(kernel), pair(stride), pair(before),
                        pair(after));
  });
}

// from_y: backward reads y instead of x (softmax always does)
Layer* onednn_activation(const char* function, int from_y, int64_t rows, int64_t columns) {
  return guarded([&] {
    const memory::desc array({rows, columns}, memory::data_type::f32, Tag::ab);
    if (std::strcmp(function, "softmax") == 0) return make_softmax(array);
    return make_elementwise(array, from_y != 0 ? choose(kFromY, function) : choose(kFromX, function), from_y != 0);
  });
}

void onednn_set(Layer* layer, float* x, float* dy) {
  reorder(layer->stream, memory(layer->plain_x, cpu(), x), layer->x);
  reorder(layer->stream, memory(layer->plain_y, cpu(), dy), layer->dy);
}

void onednn_get(Layer* layer, float* y, float* dx) {
  reorder(layer->stream, layer->y, memory(layer->plain_y, cpu(), y));
  reorder(layer->stream, layer->dx, memory(layer->plain_x, cpu(), dx));
}

void onednn_forward(Layer* layer) {
  layer->forward.execute(layer->stream, layer->forward_arguments);
  layer->stream.wait();
}

void onednn_backward(Layer* layer) {
  layer->backward.execute(layer->stream, layer->backward_arguments);
  layer->stream.wait();
}

void onednn_free(Layer* layer) { delete layer; }

// in, out: n c h w; dilation 1: the taps lie side by side; groups: 1 for transposed ones
Trainer* onednn_convolution(const char* layout, int transposed, const int64_t* in, const int64_t* out,
                            const int64_t* kernel, const int64_t* stride, const int64_t* dilation,
                            const int64_t* before, const int64_t* after, int64_t groups) {
  return guarded([&] {
    const Geometry geometry{pair(stride), {dilation[0] - 1, dilation[1] - 1}, pair(before), pair(after)};
    if (transposed != 0) return make_transposed(layout, four(in), four(out), pair(kernel), geometry);
    return make_convolution(layout, four(in), four(out), pair(kernel), geometry, groups);
  });
}

Trainer* onednn_fully_connected(const char* layout, int64_t n, int64_t inputs, int64_t outputs) {
  return guarded([&] { return make_fully_connected(layout, n, inputs, outputs); });
}

Trainer* onednn_matmul(int transposed, int64_t m, int64_t n, int64_t k) {
  return guarded([&] { return make_matmul(transposed, m, n, k); });
}

// dy may be NULL for a product alone
void onednn_trainer_set(Trainer* t, float* x, float* w, float* dy) {
  reorder(t->stream, memory(t->plain_x, cpu(), x), t->x);
  reorder(t->stream, memory(t->w.get_desc(), cpu(), w), t->w);
  if (dy == nullptr) return;
  reorder(t->stream, memory(t->plain_x, cpu(), x), t->second_x);
  reorder(t->stream, memory(t->plain_y, cpu(), dy), t->dy);
  reorder(t->stream, memory(t->plain_y, cpu(), dy), t->second_dy);
}

// dx and dw may be NULL
void onednn_trainer_get(Trainer* t, float* y, float* dx, float* dw) {
  reorder(t->stream, t->y, memory(t->plain_y, cpu(), y));
  if (dx != nullptr) reorder(t->stream, t->dx, memory(t->plain_x, cpu(), dx));
  if (dw != nullptr) reorder(t->stream, t->dw, memory(t->dw.get_desc(), cpu(), dw));
}

// pass: 0 forward, 1 input gradient, 2 weight gradient
void onednn_trainer_run(Trainer* t, int pass) {
  for (auto& [primitive, arguments] : t->passes[pass].steps) primitive.execute(t->stream, arguments);
  t->stream.wait();
}

void onednn_trainer_free(Trainer* t) { delete t; }

// shape: n c h w, or rows and columns; groups 0: batch norm, or rows by themselves
Chain* onednn_normalization(const char* layout, int rank, const int64_t* shape, int64_t groups, float epsilon,
                            int relu) {
  return guarded([&] { return make_normalization(layout, {shape, shape + rank}, groups, epsilon, relu != 0); });
}

Chain* onednn_fused_convolution(const char* layout, const int64_t* in, const int64_t* out, const int64_t* kernel,
                                const int64_t* stride, const int64_t* dilation, const int64_t* before,
                                const int64_t* after, int64_t groups, float epsilon, int relu) {
  return guarded([&] {
    const Geometry geometry{pair(stride), {dilation[0] - 1, dilation[1] - 1}, pair(before), pair(after)};
    return make_fused_convolution(layout, four(in), four(out), pair(kernel), geometry, groups, epsilon, relu != 0);
  });
}

Chain* onednn_fused_fully_connected(const char* layout, int64_t n, int64_t inputs, int64_t outputs, float epsilon,
                                    int relu) {
  return guarded([&] { return make_fused_fully_connected(layout, n, inputs, outputs, epsilon, relu != 0); });
}

Chain* onednn_fused_add(const char* layout, const int64_t* shape, float epsilon, int relu) {
  return guarded([&] { return make_fused_add(layout, four(shape), epsilon, relu != 0); });
}

Chain* onednn_arithmetic(const char* function, int rank, const int64_t* a_shape, const int64_t* b_shape) {
  return guarded([&] { return make_arithmetic(function, {a_shape, a_shape + rank}, {b_shape, b_shape + rank}); });
}

Chain* onednn_batched_matmul(int transpose_a, int transpose_b, int64_t batch, int64_t m, int64_t n, int64_t k) {
  return guarded([&] { return make_batched_matmul(transpose_a != 0, transpose_b != 0, batch, m, n, k); });
}

Chain* onednn_attention(int64_t n, int64_t t, int64_t s, int64_t heads, int64_t width, int causal) {
  return guarded([&] { return make_attention({n, t, s, heads, width}, causal != 0); });
}

// One array per port, in the order the maker says.
void onednn_chain_set(Chain* c, float* const* arrays) {
  for (const Port& port : c->given) reorder(c->stream, memory(port.plain, cpu(), *arrays++), port.inside);
}

void onednn_chain_get(Chain* c, float* const* arrays) {
  for (const Port& port : c->found) reorder(c->stream, port.inside, memory(port.plain, cpu(), *arrays++));
}

void onednn_chain_run(Chain* c, int backward) {
  for (auto& [primitive, arguments] : (backward != 0 ? c->backward : c->forward).steps)
    primitive.execute(c->stream, arguments);
  c->stream.wait();
}

void onednn_chain_free(Chain* c) { delete c; }

// image: n 1 h w; stages: channels of each; the two flags: whether convolutions and the last layer have a bias
Network* onednn_network(const char* layout, const int64_t* image, int64_t count, const int64_t* stages,
                        int64_t classes, int stage_bias, int bias, float epsilon) {
  return guarded([&] {
    return make_network(layout, four(image), {stages, stages + count}, classes, stage_bias != 0, bias != 0, epsilon);
  });
}

// As before the first step; arrays: the parameters in plain order, as Network lists them.
void onednn_network_set(Network* net, float* const* arrays, float rate, float clip, float l2, float momentum) {
  for (Parameter& p : net->parameters) {
    reorder(net->stream, memory(p.plain, cpu(), *arrays++), p.value);
    std::fill(p.first.begin(), p.first.end(), 0.0F);
    std::fill(p.second.begin(), p.second.end(), 0.0F);
  }
  for (Statistics& s : net->statistics) {
    std::fill(s.moving_mean.begin(), s.moving_mean.end(), 0.0F);
    std::fill(s.moving_variance.begin(), s.moving_variance.end(), 1.0F);
  }
  net->rate = rate;
  net->clip = clip;
  net->l2 = l2;
  net->momentum = momentum;
  net->time_step = 0;
}

// One step of training on images (n, 1, h, w) and one-hot labels (n, classes). Returns the loss.
float onednn_network_step(Network* net, float* images, const float* labels) {
  net->images.set_data_handle(images);
  run_pass(*net, net->forward);
  const float loss = cross_entropy(values_of(net->logits), labels, values_of(net->grad_logits), net->batch,
                                   net->classes);
  run_pass(*net, net->backward);
  for (Statistics& s : net->statistics) {
    mix(s.moving_mean, s.mean, net->momentum);
    mix(s.moving_variance, s.variance, net->momentum);
  }
  adam(*net);
  return loss;
}

void onednn_network_free(Network* net) { delete net; }
}
