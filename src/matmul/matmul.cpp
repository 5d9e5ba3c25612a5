// Matrix products, tensor contractions, Gram matrices, the desk: every layer is an expression of letters
// (matmul_expression.cpp); its calls are checked here and run as products (matmul_products.cpp).
#include "matmul/matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "base/interrupt.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/types.h"

namespace obn::matmul {
namespace {

constexpr char kProduct[] = "matrix product", kContraction[] = "tensor contraction", kGram[] = "Gram matrix";
constexpr char kGramExpression[] = "x_*ijf, x_*ijc -> g_*fc";

// What float32 holds exactly.
bool is_short_integer(BNNSDataType type) {
  return type == BNNSDataTypeInt8 || type == BNNSDataTypeUInt8 || type == BNNSDataTypeInt16 ||
         type == BNNSDataTypeUInt16;
}

Values values_of(const View& view, const void* data) {
  return {data, view.type, view.scale, view.bias, nullptr, BNNSDataTypeFloat32};
}

// The expression of a broadcast product.
struct ProductText {
  char buffer[32];
};
const char* product_text(const char* a_name, bool transpose_a, const char* b_name, bool transpose_b,
                         ProductText* text) {
  std::snprintf(text->buffer, sizeof text->buffer, "%s_*%s, %s_*%s -> c_*ij", a_name, transpose_a ? "ki" : "ik",
                b_name, transpose_b ? "jk" : "kj");
  return text->buffer;
}

// A tensor's descriptor: layouts that say where a value lies, types that can be multiplied.
int read_tensor(const BNNSNDArrayDescriptor& descriptor, Access access, const char* argument, View* view) {
  if (read_view(descriptor, access, argument, view) != 0) return -1;
  switch (view->layout) {
    case BNNSDataLayoutFullyConnectedSparse:
    case BNNSDataLayoutConvolutionWeightsOIHrWr:
    case BNNSDataLayoutConvolutionWeightsIOHrWr:
    case BNNSDataLayoutConvolutionWeightsOIHW_Pack32:
      return fail("%s: expected a layout of plain values; got %s", argument, name_of(view->layout));
    default: break;
  }
  if (is_float_type(view->type) || (access == Access::read && is_short_integer(view->type))) return 0;
  return fail("%s: expected float32, float16%s; got %s", argument,
              access == Access::read ? ", bfloat16 or integers of 8 or 16 bits" : " or bfloat16", name_of(view->type));
}

// float16 and bfloat16 do not meet in one product.
int check_types(const View* const* views, const char* const* words) {
  BNNSDataType half = BNNSDataTypeFloat32;
  for (size_t t = 0; t < kTensors; ++t) {
    const BNNSDataType type = views[t]->type;
    if (type != BNNSDataTypeFloat16 && type != BNNSDataTypeBFloat16) continue;
    if (half != BNNSDataTypeFloat32 && half != type)
      return fail("%s: expected float32 or %s, as float16 and bfloat16 do not meet in one product; got %s", words[t],
                  name_of(half), name_of(type));
    half = type;
  }
  return 0;
}

size_t bytes_of_product(Product product) {
  Workspace counted;
  product.place(&counted);
  return counted.used();
}

// How a form's tensors lie in a call, as the sum over the indices of the form and the batch.
Problem problem_of(const Form& form, size_t inputs, float alpha, size_t batch, const Tensor* tensors,
                   const size_t* roles) {
  Problem p;
  p.inputs = inputs;
  p.alpha = alpha;
  p.count = form.count + 1;
  for (size_t t = 0; t < kTensors; ++t) {
    if (t == kSecond && inputs == 1) {
      for (size_t i = 0; i < p.count; ++i) p.axes[i].stride[t] = 0;
      p.tensor[t] = {nullptr, BNNSDataTypeFloat32, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
      continue;
    }
    const View& view = *tensors[t].view;
    for (size_t i = 0; i < form.count; ++i) {
      size_t stride = 0;
      for (size_t k = 0; k < view.rank; ++k)
        if (form.axes[i][roles[t]] >> k & 1) stride += view.stride[k];
      p.axes[i].stride[t] = stride;
    }
    p.axes[form.count].stride[t] = tensors[t].step;
    p.tensor[t] = values_of(view, tensors[t].data);
  }
  for (size_t i = 0; i < form.count; ++i) p.axes[i].extent = form.extent[i];
  p.axes[form.count].extent = batch;
  return p;
}

}  // namespace

// ---- creation ----

Contraction::~Contraction() { options().release(copied_weights_); }

void Contraction::describe(Description* description) const {
  description->forward = description->input_gradient = "products";
  for (size_t k = 0; k < inputs_; ++k) description->inputs[k] = &view_[k];
  description->output = &view_[kC];
}

const char* Contraction::word_of(size_t operand) const {
  if (operand == weights_) return "weights";
  if (!takes_two()) return "input";
  return operand == kA ? "input_a" : "input_b";
}

const char* Contraction::gradient_word_of(size_t operand) const {
  if (operand == weights_) return "weights_gradient";
  if (!takes_two()) return "input_gradient";
  return operand == kA ? "a_gradient" : "b_gradient";
}

int Contraction::prepare(const char* text, float alpha, float beta, const BNNSNDArrayDescriptor& a,
                         const BNNSNDArrayDescriptor& b, const BNNSNDArrayDescriptor& c) {
  if (beta != 0.0f && beta != 1.0f)
    return fail("beta: expected 0 or 1; got %g", static_cast<double>(beta));
  alpha_ = alpha;
  accumulate_ = beta == 1.0f;
  Expression e;
  if (Expression::read(text, &e) != 0) return -1;
  e.letters_spread = kind() != kProduct;
  inputs_ = e.inputs;
  is_square_ = e.is_square();
  for (size_t t = kA; t < inputs_; ++t)
    if (e.word[t].is_weights()) weights_ = t;
  if (weights_ != kNone && (is_square_ || inputs_ == 1))
    return fail("expression: expected an input besides the weights; got \"%.200s\"", text);

  const char* const words[] = {word_of(kA), word_of(kB), "output"};
  if (read_tensor(a, Access::read, words[kA], &view_[kA]) != 0) return -1;
  if (inputs_ == 1 || is_square_) {
    view_[kB] = view_[kA];
  } else if (read_tensor(b, Access::read, words[kB], &view_[kB]) != 0) {
    return -1;
  }
  if (read_tensor(c, Access::write, words[kC], &view_[kC]) != 0) return -1;
  const View* const views[] = {&view_[kA], &view_[kB], &view_[kC]};
  if (check_types(views, words) != 0 || Form::read(e, text, views, words, &form_) != 0) return -1;
  has_integers_ = !is_float_type(view_[kA].type) || !is_float_type(view_[kB].type);
  return weights_ == kNone ? 0 : hold_weights();
}

// Copies the weights without gaps, unless they stay the caller's. Integers become float32 now, halves stay halves.
int Contraction::hold_weights() {
  View& w = view_[weights_];
  size_t unused;
  if (read_batch(w, w.data, 1, 0, Access::read, "weights", &unused) != 0) return -1;
  if (options().use_client_ptr) return 0;
  const BNNSDataType type = is_float_type(w.type) ? w.type : BNNSDataTypeFloat32;
  if (w.count > SIZE_MAX / sizeof(float))
    return fail("weights: expected a size that can be addressed; %zu values overflow", w.count);
  copied_weights_ = options().get(w.count * bytes_of(type));
  if (!copied_weights_) return -1;
  copy_packed(w, w.data, type, copied_weights_);
  make_packed(&w);
  w.type = type;
  w.scale = 1.0f;
  w.bias = 0.0f;
  w.data = copied_weights_;
  return 0;
}

// ---- forward ----

int Contraction::check_input(size_t operand, size_t batch, const void* data, size_t requested, Tensor* tensor) const {
  *tensor = {&view_[operand], data, 0};
  return read_batch(view_[operand], data, batch, requested, Access::read, word_of(operand), &tensor->step);
}

Problem Contraction::problem(size_t batch, const Tensor& first, size_t first_role, const Tensor& second,
                             size_t second_role, const Tensor& result, size_t result_role) const {
  const Tensor tensors[] = {first, second, result};
  const size_t roles[] = {first_role, second_role, result_role};
  return problem_of(form_, inputs_, alpha_, batch, tensors, roles);
}

// Weights are put in.
int Contraction::forward(size_t batch, Tensor* inputs, void* y, size_t y_stride) const {
  Tensor result = {&view_[kC], y, 0};
  if (read_batch(view_[kC], y, batch, y_stride, Access::write, "output", &result.step) != 0) return -1;
  if (weights_ != kNone) inputs[weights_] = {&view_[weights_], view_[weights_].data, 0};
  for (size_t t = kA; t < inputs_; ++t)
    if (check_apart({"output", &view_[kC], y, result.step, batch},
                    {word_of(t), inputs[t].view, inputs[t].data, inputs[t].step, t == weights_ ? 1 : batch}) != 0)
      return -1;
  Problem p = problem(batch, inputs[kA], kA, inputs[kB], kB, result, kC);
  p.accumulate = accumulate_ || form_.repeats[kC];
  Product product(p, options().threads);
  std::byte* work;
  if (find_workspace(bytes_of_product(product), &work) != 0) return -1;
  if (form_.repeats[kC] && !accumulate_) clear(view_[kC], y, batch, result.step, options().threads);
  Workspace workspace(work);
  product.place(&workspace);
  product.run();
  return 0;
}

int Contraction::apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) {
  if (takes_two()) return fail("filter: expected a call with two inputs, as this %s has; got one", kind());
  if (batch == 0) return 0;
  Tensor inputs[2];
  const size_t operand = data_operand();
  if (check_input(operand, batch, x, x_stride, &inputs[operand]) != 0) return -1;
  if (is_square_) inputs[kB] = inputs[kA];
  return forward(batch, inputs, y, y_stride);
}

int Contraction::apply_two(size_t batch, const void* a, size_t a_stride, const void* b, size_t b_stride, void* y,
                           size_t y_stride) {
  if (!takes_two()) return fail("filter: expected a call with one input, as this %s has; got two", kind());
  if (batch == 0) return 0;
  Tensor inputs[2];
  if (check_input(kA, batch, a, a_stride, &inputs[kA]) != 0 || check_input(kB, batch, b, b_stride, &inputs[kB]) != 0)
    return -1;
  return forward(batch, inputs, y, y_stride);
}

// ---- backward ----

// The tensors of a backward call, checked. Those that are not asked for or not given have no data.
struct Gradients {
  size_t batch = 0;
  Tensor input[2];
  Tensor dy;
  Tensor gradient[2];  // of a and b; a square has that of a
  View dy_view, view[2];
};

int Contraction::check_gradient(size_t operand, BNNSNDArrayDescriptor* descriptor, size_t requested,
                                Gradients* g) const {
  if (!descriptor) return 0;
  const char* word = gradient_word_of(operand);
  Tensor& gradient = g->gradient[operand];
  View& view = g->view[operand];
  const bool is_weights = operand == weights_;
  if (read_gradient(*descriptor, view_[operand], Access::write, is_weights ? 1 : g->batch, requested, word, &view,
                    &gradient.step) != 0)
    return -1;
  gradient.view = &view;
  gradient.data = view.data;
  if (is_weights) gradient.step = 0;
  // What the gradient of one operand is multiplied with.
  const size_t other = is_square_ ? kA : operand == kA ? kB : kA;
  if (inputs_ == 2 && !g->input[other].data && g->batch > 0)
    return fail("%s: expected the input of apply, which %s needs; got NULL", word_of(other), word);
  return 0;
}

// Everything is checked, then all gradients are made.
int Contraction::backward(const BNNSNDArrayDescriptor* dy, size_t dy_stride, BNNSNDArrayDescriptor* const* descriptors,
                          const size_t* strides, Gradients* g) const {
  const size_t batch = g->batch;
  if (has_integers_) return fail("input: expected floating-point types for gradients; got integers");
  if (read_gradient(*dy, view_[kC], Access::read, batch, dy_stride, "grad_output", &g->dy_view, &g->dy.step) != 0)
    return -1;
  g->dy.view = &g->dy_view;
  g->dy.data = g->dy_view.data;
  if (weights_ != kNone) g->input[weights_] = {&view_[weights_], view_[weights_].data, 0};
  for (size_t t = 0; t < 2; ++t)
    if (check_gradient(t, descriptors[t], strides[t], g) != 0) return -1;
  const auto place = [&](const char* word, const Tensor& tensor, size_t operand) {
    return Place{word, tensor.view, tensor.data, tensor.step, operand == weights_ ? 1 : batch};
  };
  for (size_t t = 0; t < 2; ++t) {
    const Place written = place(gradient_word_of(t), g->gradient[t], t);
    if (check_apart(written, place("grad_output", g->dy, kC)) != 0) return -1;
    for (size_t o = 0; o < inputs_; ++o)
      if (check_apart(written, place(word_of(o), g->input[o], o)) != 0) return -1;
  }
  if (check_apart(place("a_gradient", g->gradient[kA], kA), place("b_gradient", g->gradient[kB], kB)) != 0) return -1;

  if (batch == 0) {
    if (weights_ != kNone) clear_sum(g->view[weights_]);
    return 0;
  }
  std::byte* work;
  if (find_workspace(backward_bytes(*g), &work) != 0) return -1;
  Workspace workspace(work);
  make_gradients(*g, &workspace, true);
  return 0;
}

size_t Contraction::backward_bytes(const Gradients& g) const {
  Workspace counted;
  make_gradients(g, &counted, false);
  return counted.used();
}

void Contraction::make_gradients(const Gradients& g, Workspace* workspace, bool runs) const {
  for (size_t t = 0; t < 2; ++t) {
    if (!g.gradient[t].data) continue;
    if (is_square_) {
      make_square_gradient(g, workspace, runs);
    } else {
      const bool is_partial = form_.repeats[t];
      if (runs && is_partial && !g.view[t].accumulate) clear_gradient(g, t);
      add_gradient(g, t, g.gradient[t], g.view[t].accumulate || is_partial, workspace, runs);
    }
  }
}

void Contraction::clear_gradient(const Gradients& g, size_t operand) const {
  const Tensor& gradient = g.gradient[operand];
  clear(*gradient.view, const_cast<void*>(gradient.data), operand == weights_ ? 1 : g.batch, gradient.step,
        options().threads);
}

// c = alpha · Σ a·b:  da = alpha · Σ dc·b, and the same for b.
void Contraction::add_gradient(const Gradients& g, size_t operand, const Tensor& result, bool accumulate,
                               Workspace* workspace, bool runs) const {
  const size_t other = operand == kA ? kB : kA;
  Problem p = problem(g.batch, g.dy, kC, g.input[other], other, result, operand);
  p.accumulate = accumulate;
  Product product(p, options().threads);
  product.place(workspace);
  if (runs) product.run();
}

// c = alpha · Σ x·x: dx is the sum of both. Halves are added in float32 and rounded once.
void Contraction::make_square_gradient(const Gradients& g, Workspace* workspace, bool runs) const {
  const View& view = g.view[kA];
  const bool is_partial = form_.repeats[kA] || form_.repeats[kB], in_place = view.type == BNNSDataTypeFloat32;
  Tensor result = g.gradient[kA];
  View packed = view;
  if (!in_place) {
    make_packed(&packed);
    packed.type = BNNSDataTypeFloat32;
    result = {&packed, workspace->take<float>(view.count, g.batch), view.count};
  }
  const bool adds = in_place && view.accumulate;
  if (runs && is_partial && !adds)
    clear(*result.view, const_cast<void*>(result.data), g.batch, result.step, options().threads);
  add_gradient(g, kA, result, adds || is_partial, workspace, runs);
  add_gradient(g, kB, result, true, workspace, runs);
  if (runs && !in_place)
    copy_unpacked(static_cast<const float*>(result.data), view, view.data, g.batch, g.gradient[kA].step,
                  view.accumulate, options().threads);
}

int Contraction::apply_backward(const Backward& a) {
  if (takes_two()) return fail("filter: expected a call with two inputs, as this %s has; got one", kind());
  if (a.db) return fail("bias_gradient: expected NULL, a %s has no bias; got a descriptor", kind());
  if (a.dw && weights_ == kNone)
    return fail("weights_gradient: expected NULL, this %s has no weights; got a descriptor", kind());
  if (!a.dx && !a.dw) return 0;
  Gradients g;
  g.batch = a.batch;
  const size_t operand = data_operand();
  if (a.x && check_input(operand, a.batch, a.x, a.x_stride, &g.input[operand]) != 0) return -1;
  if (is_square_) g.input[kB] = g.input[kA];
  BNNSNDArrayDescriptor* descriptors[2] = {};
  size_t strides[2] = {};
  descriptors[operand] = a.dx;
  strides[operand] = a.dx_stride;
  if (weights_ != kNone) descriptors[weights_] = a.dw;
  return backward(a.dy, a.dy_stride, descriptors, strides, &g);
}

int Contraction::apply_two_backward(const BackwardTwo& a) {
  if (!takes_two()) return fail("filter: expected a call with one input, as this %s has; got two", kind());
  if (a.dw || a.dbias)
    return fail("%s_gradient: expected NULL, a %s of two inputs has none; got a descriptor",
                a.dw ? "weights" : "bias", kind());
  if (!a.da && !a.db) return 0;
  Gradients g;
  g.batch = a.batch;
  if ((a.a && check_input(kA, a.batch, a.a, a.a_stride, &g.input[kA]) != 0) ||
      (a.b && check_input(kB, a.batch, a.b, a.b_stride, &g.input[kB]) != 0))
    return -1;
  BNNSNDArrayDescriptor* const descriptors[] = {a.da, a.db};
  const size_t strides[] = {a.da_stride, a.db_stride};
  return backward(a.dy, a.dy_stride, descriptors, strides, &g);
}

size_t Contraction::work_bytes(size_t batch) const {
  if (batch == 0) return 0;
  for (size_t t = kA; t < kTensors; ++t)
    if ((t < inputs_ || t == kC) && check_batch_size(view_[t], t == weights_ ? 1 : batch) != 0) return SIZE_MAX;
  // Tensors somewhere, lying as they were described.
  const auto tensor = [&](size_t t) { return Tensor{&view_[t], kProduct, t == weights_ ? 0 : view_[t].packed_batch}; };
  Problem p = problem(batch, tensor(kA), kA, tensor(kB), kB, tensor(kC), kC);
  const size_t forward_bytes = bytes_of_product(Product(p, options().threads));
  if (has_integers_) return forward_bytes;
  Gradients g;
  g.batch = batch;
  g.dy = tensor(kC);
  for (size_t t = 0; t < inputs_; ++t) {
    g.input[t] = tensor(t);
    g.view[t] = view_[t];
    if (!is_square_ || t == kA) g.gradient[t] = tensor(t);
  }
  return std::max(forward_bytes, backward_bytes(g));
}

namespace {

BNNSFilter create(const char* kind, const char* text, float alpha, float beta, const BNNSNDArrayDescriptor& a,
                  const BNNSNDArrayDescriptor& b, const BNNSNDArrayDescriptor& c,
                  const BNNSFilterParameters* filter_params) {
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Contraction* filter = options.make<Contraction>(kind, options);
  if (!filter) return nullptr;
  return publish(filter, filter->prepare(text, alpha, beta, a, b, c));
}

int check_matrix(const BNNSNDArrayDescriptor& descriptor, const char* argument) {
  if (rank_of(descriptor.layout) != 1) return 0;
  return fail("%s: expected a matrix, or several; got one axis (layout %s)", argument, name_of(descriptor.layout));
}

// ---- direct products ----

// A product without a filter: the arrays are those of the descriptors.
struct Direct {
  Options options;
  View view[kTensors];
  Form form;
  Problem problem;

  // Does not look at data.
  int read(bool transpose_a, bool transpose_b, float alpha, const BNNSNDArrayDescriptor* const* descriptors,
           const BNNSFilterParameters* filter_params) {
    const char* const words[] = {"a", "b", "out"};
    const View* const views[] = {&view[kA], &view[kB], &view[kC]};
    if (Options::read(filter_params, &options) != 0) return -1;
    for (size_t t = 0; t < kTensors; ++t) {
      if (!descriptors[t]) return fail("%s: expected a descriptor; got NULL", words[t]);
      if (check_matrix(*descriptors[t], words[t]) != 0 ||
          read_tensor(*descriptors[t], t == kC ? Access::write : Access::read, words[t], &view[t]) != 0)
        return -1;
    }
    ProductText text;
    Expression e;
    if (check_types(views, words) != 0 ||
        Expression::read(product_text("a", transpose_a, "b", transpose_b, &text), &e) != 0)
      return -1;
    e.letters_spread = false;
    if (Form::read(e, text.buffer, views, words, &form) != 0) return -1;
    const Tensor tensors[] = {
        {&view[kA], view[kA].data, 0}, {&view[kB], view[kB].data, 0}, {&view[kC], view[kC].data, 0}};
    const size_t roles[] = {kA, kB, kC};
    problem = problem_of(form, 2, alpha, 1, tensors, roles);
    return 0;
  }

  int check_data() const {
    size_t unused;
    const Place c = {"out", &view[kC], view[kC].data, 0, 1};
    for (size_t t = 0; t < kTensors; ++t) {
      const char* const words[] = {"a", "b", "out"};
      if (read_batch(view[t], view[t].data, 1, 0, t == kC ? Access::write : Access::read, words[t], &unused) != 0 ||
          (t != kC && check_apart(c, {words[t], &view[t], view[t].data, 0, 1}) != 0))
        return -1;
    }
    return 0;
  }

  int check_workspace(const void* data, size_t bytes) const {
    const View memory = view_of_bytes(bytes);
    const Place workspace = {"workspace", &memory, data, 0, 1};
    const char* const words[] = {"a", "b", "out"};
    for (size_t t = 0; t < kTensors && bytes > 0; ++t)
      if (check_apart(workspace, {words[t], &view[t], view[t].data, 0, 1}) != 0) return -1;
    return 0;
  }
};

// What a workspace of the caller, of any alignment, must have.
size_t workspace_bytes(size_t bytes) { return bytes == 0 ? 0 : bytes + kAlignment - 1; }

int multiply(bool transpose_a, bool transpose_b, float alpha, const BNNSNDArrayDescriptor* a,
             const BNNSNDArrayDescriptor* b, const BNNSNDArrayDescriptor* c, void* given,
             const BNNSFilterParameters* filter_params) {
  const BNNSNDArrayDescriptor* const descriptors[] = {a, b, c};
  Direct direct;
  if (direct.read(transpose_a, transpose_b, alpha, descriptors, filter_params) != 0 || direct.check_data() != 0)
    return -1;
  Product product(direct.problem, direct.options.threads);
  const size_t bytes = bytes_of_product(product);
  std::byte* work;
  if (find_workspace(given && bytes != SIZE_MAX ? 0 : bytes, &work) != 0) return -1;
  if (given && direct.check_workspace(given, workspace_bytes(bytes)) != 0) return -1;
  Workspace workspace(given ? aligned(given) : work);
  product.place(&workspace);
  return interruptible(nullptr, [&] {
    product.run();
    return 0;
  });
}

}  // namespace
}  // namespace obn::matmul

// ---- the C interface ----

extern "C" {

BNNSFilter BNNSFilterCreateLayerBroadcastMatMul(const BNNSLayerParametersBroadcastMatMul* layer_params,
                                                const BNNSFilterParameters* filter_params) {
  using namespace obn::matmul;
  if (!layer_params) {
    obn::fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  const BNNSLayerParametersBroadcastMatMul& p = *layer_params;
  if (p.a_is_weights + p.b_is_weights + p.quadratic > 1) {
    obn::fail("layer_params: expected one of a_is_weights, b_is_weights and quadratic at most; got several");
    return nullptr;
  }
  const bool takes_two = !p.a_is_weights && !p.b_is_weights && !p.quadratic;
  if (check_matrix(p.iA_desc, p.a_is_weights ? "weights" : takes_two ? "input_a" : "input") != 0 ||
      (!p.quadratic && check_matrix(p.iB_desc, p.b_is_weights ? "weights" : takes_two ? "input_b" : "input") != 0) ||
      check_matrix(p.o_desc, "output") != 0)
    return nullptr;
  ProductText text;
  product_text(p.a_is_weights ? "w" : "a", p.transA, p.b_is_weights ? "w" : p.quadratic ? "a" : "b", p.transB, &text);
  return create(kProduct, text.buffer, p.alpha, p.beta, p.iA_desc, p.iB_desc, p.o_desc, filter_params);
}

BNNSFilter BNNSFilterCreateLayerTensorContraction(const BNNSLayerParametersTensorContraction* layer_params,
                                                  const BNNSFilterParameters* filter_params) {
  using namespace obn::matmul;
  if (!layer_params) {
    obn::fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  const BNNSLayerParametersTensorContraction& p = *layer_params;
  return create(kContraction, p.operation, p.alpha, p.beta, p.iA_desc, p.iB_desc, p.o_desc, filter_params);
}

BNNSFilter BNNSFilterCreateLayerGram(const BNNSLayerParametersGram* layer_params,
                                     const BNNSFilterParameters* filter_params) {
  using namespace obn::matmul;
  if (!layer_params) {
    obn::fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  const BNNSLayerParametersGram& p = *layer_params;
  return create(kGram, kGramExpression, p.alpha, 0.0f, p.i_desc, p.i_desc, p.o_desc, filter_params);
}

int BNNSMatMul(bool transA, bool transB, float alpha, const BNNSNDArrayDescriptor* inputA,
               const BNNSNDArrayDescriptor* inputB, const BNNSNDArrayDescriptor* output, void* workspace,
               const BNNSFilterParameters* filter_params) {
  return obn::matmul::multiply(transA, transB, alpha, inputA, inputB, output, workspace, filter_params);
}

void BNNSDirectApplyBroadcastMatMul(bool transA, bool transB, float alpha, const BNNSNDArrayDescriptor* inputA,
                                    const BNNSNDArrayDescriptor* inputB, const BNNSNDArrayDescriptor* output,
                                    const BNNSFilterParameters* filter_params) {
  obn::matmul::multiply(transA, transB, alpha, inputA, inputB, output, nullptr, filter_params);
}

ssize_t BNNSMatMulWorkspaceSize(bool transA, bool transB, float alpha, const BNNSNDArrayDescriptor* inputA,
                                const BNNSNDArrayDescriptor* inputB, const BNNSNDArrayDescriptor* output,
                                const BNNSFilterParameters* filter_params) {
  using namespace obn::matmul;
  const BNNSNDArrayDescriptor* const descriptors[] = {inputA, inputB, output};
  Direct direct;
  if (direct.read(transA, transB, alpha, descriptors, filter_params) != 0) return -1;
  const size_t bytes = bytes_of_product(Product(direct.problem, direct.options.threads));
  if (bytes >= PTRDIFF_MAX - obn::kAlignment)
    return obn::fail("out: expected a size whose workspace can be addressed; it overflows");
  return static_cast<ssize_t>(workspace_bytes(bytes));
}
}
