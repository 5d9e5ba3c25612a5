// oneDNN without a framework, behind a small C interface for ctypes: one training layer with its own buffers, kept in
// the layout oneDNN is asked to use, nothing allocated and nothing reordered while it runs.
//
// Makers return NULL on failure; onednn_error() then gives the reason. Arrays cross this door in plain order
// (images: n c h w; weights: o i h w, transposed i o h w; activations: rows, columns). Weights are the exception to
// "nothing reordered": they belong to the caller, who updates them in plain order, so every pass converts them.
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

Trainer* make_convolution(const char* layout, const memory::dims& in, const memory::dims& out,
                          const memory::dims& kernel, const Geometry& g, int64_t groups) {
  const auto type = memory::data_type::f32;
  const Tag tag = choose(kImageLayouts, layout);
  const memory::dims weights{out[1], in[1] / groups, kernel[0], kernel[1]};
  const memory::desc x(in, type, tag), y(out, type, tag), plain = as_grouped({weights, type, Tag::oihw}, groups);
  const memory::desc w(plain.get_dims(), type, Tag::any);
  auto* t = new Trainer{};
  t->plain_x = {in, type, Tag::nchw};
  t->plain_y = {out, type, Tag::nchw};
  t->w = memory(plain, cpu());
  t->dw = memory(plain, cpu());
  const auto kind = algorithm::convolution_auto;  // Winograd where it has that
  const dnnl::convolution_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, kind, x, w, y,
                                                          g.stride, g.dilation, g.before, g.after, own_scratch());
  const dnnl::convolution_backward_data::primitive_desc by_data(cpu(), kind, x, w, y, g.stride, g.dilation, g.before,
                                                                g.after, forward, own_scratch());
  const dnnl::convolution_backward_weights::primitive_desc by_weights(
      cpu(), kind, x, w, y, g.stride, g.dilation, g.before, g.after, forward, own_scratch());
  set_passes<dnnl::convolution_forward, dnnl::convolution_backward_data, dnnl::convolution_backward_weights>(
      *t, forward, by_data, by_weights);
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
Trainer* make_fully_connected(const char* layout, int64_t n, int64_t inputs, int64_t outputs) {
  const auto type = memory::data_type::f32;
  const Tag tag = choose(kMatrixLayouts, layout);
  const memory::desc x({n, inputs}, type, Tag::ab), y({n, outputs}, type, Tag::ab), w({outputs, inputs}, type, tag);
  auto* t = new Trainer{};
  t->plain_x = x;
  t->plain_y = y;
  t->w = memory({{outputs, inputs}, type, Tag::ab}, cpu());
  t->dw = memory({{outputs, inputs}, type, Tag::ab}, cpu());
  const dnnl::inner_product_forward::primitive_desc forward(cpu(), dnnl::prop_kind::forward_training, x, w, y,
                                                            own_scratch());
  const dnnl::inner_product_backward_data::primitive_desc by_data(cpu(), x, w, y, forward, own_scratch());
  const dnnl::inner_product_backward_weights::primitive_desc by_weights(cpu(), x, w, y, forward, own_scratch());
  set_passes<dnnl::inner_product_forward, dnnl::inner_product_backward_data, dnnl::inner_product_backward_weights>(
      *t, forward, by_data, by_weights);
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
}
