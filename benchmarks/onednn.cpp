// oneDNN without a framework, behind a small C interface for ctypes: one training layer with its own buffers, kept in
// the layout oneDNN is asked to use, nothing allocated and nothing reordered while it runs.
//
// Makers return NULL on failure; onednn_error() then gives the reason. Arrays cross this door in plain order
// (pooling: n c h w; activations: rows, columns).
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>

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

void reorder(Layer& layer, memory from, memory to) {
  dnnl::reorder(from, to).execute(layer.stream, from, to);
  layer.stream.wait();
}

memory::dims pair(const int64_t* values) { return {values[0], values[1]}; }

// Runs a maker; no exception passes the C door.
template <class Maker>
Layer* guarded(const Maker& maker) {
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
    return make_pooling(function, layout, {shape[0], shape[1], shape[2], shape[3]}, pair(windows), pair(kernel),
                        pair(stride), pair(before), pair(after));
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
  reorder(*layer, memory(layer->plain_x, cpu(), x), layer->x);
  reorder(*layer, memory(layer->plain_y, cpu(), dy), layer->dy);
}

void onednn_get(Layer* layer, float* y, float* dx) {
  reorder(*layer, layer->y, memory(layer->plain_y, cpu(), y));
  reorder(*layer, layer->dx, memory(layer->plain_x, cpu(), dx));
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
}
