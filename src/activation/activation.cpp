// Entry points of the activation layer: check, then walk (activation_walk.h). Letters as in activation.h.
#include "activation/activation.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "activation/activation_filter.h"
#include "activation/activation_walk.h"
#include "base/filter.h"
#include "base/integer.h"
#include "base/interrupt.h"
#include "base/legacy.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/types.h"
#include "base/view.h"

namespace obn {

namespace activation {

namespace {

constexpr char kKind[] = "activation";
constexpr size_t kStreamBlock = 2048;  // values at a time where the result goes past the caches

constexpr const char* kNames[kFunctions] = {
    "identity", "rectified_linear", "leaky_rectified_linear", "sigmoid", "tanh", "scaled_tanh", "abs", "linear",
    "clamp", "integer_linear_saturate", "integer_linear_saturate_per_channel", "softmax", "gelu_approximation",
    "gumbel", "gumbel_max", "hard_sigmoid", "softplus", "softsign", "elu", "clamped_leaky_rectified_linear",
    "linear_with_bias", "log_softmax", "log_sigmoid", "selu", "celu", "hard_shrink", "soft_shrink", "tanh_shrink",
    "threshold", "prelu_per_channel", "hard_swish", "silu", "relu6", "erf", "gelu", "gelu_approximation_sigmoid"};

bool is_softmax(Function f) { return f == BNNSActivationFunctionSoftmax || f == BNNSActivationFunctionLogSoftmax; }
bool is_gumbel(Function f) { return f == BNNSActivationFunctionGumbel || f == BNNSActivationFunctionGumbelMax; }
bool is_integer_function(Function f) {
  return f == BNNSActivationFunctionIntegerLinearSaturate ||
         f == BNNSActivationFunctionIntegerLinearSaturatePerChannel;
}
bool is_integer_type(BNNSDataType type) {
  return static_cast<uint32_t>(type) & (BNNSDataTypeIntBit | BNNSDataTypeUIntBit);
}
// The slope is a constant: neither x nor y is read.
bool has_constant_slope(Function f) {
  return f == BNNSActivationFunctionIdentity || f == BNNSActivationFunctionLinear ||
         f == BNNSActivationFunctionLinearWithBias;
}
// Functions of which some y belong to two x with different slopes; the others are decided by alpha and beta.
bool is_ambiguous(Function f) { return f == BNNSActivationFunctionGELUApproximationSigmoid; }
// Both tensors at hand: x serves better, at bounds (clamp) or because y must be inverted step by step.
bool prefers_x(Function f) {
  return f == BNNSActivationFunctionClamp || f == BNNSActivationFunctionTanhShrink || is_ambiguous(f);
}

// What alpha and beta must be for y to determine the slope (docs/interface/activation.md 5); NULL when they are.
const char* condition_from_y(Function function, float alpha, float beta) {
  switch (function) {
    case BNNSActivationFunctionLeakyRectifiedLinear:
    case BNNSActivationFunctionPReLUPerChannel: return alpha >= 0.0f ? nullptr : "alpha >= 0";
    case BNNSActivationFunctionClampedLeakyRectifiedLinear:
    case BNNSActivationFunctionELU:
    case BNNSActivationFunctionCELU: return alpha > 0.0f ? nullptr : "alpha > 0";
    case BNNSActivationFunctionScaledTanh:
    case BNNSActivationFunctionSoftplus: return alpha != 0.0f ? nullptr : "alpha other than 0";
    case BNNSActivationFunctionThreshold: return beta <= alpha ? nullptr : "beta <= alpha";
    default: return nullptr;
  }
}

int fail_without_x(Function function, const char* condition) {
  return fail("input: expected the forward input, which the gradient of %s needs%s%s; got NULL", kNames[function],
              condition ? " unless " : "", condition ? condition : "");
}

}  // namespace

// ---- creation ----

Activation::Activation(const Options& options) : Filter(kKind, options), kernels_(targets.best()) {}

void Activation::describe(Description* description) const {
  description->kinds[0] = kNames[function_];
  description->forward = forward_[true]->name;
  description->input_gradient = backward_->name;
  description->inputs[0] = &x_;
  description->output = &y_;
}

int Activation::prepare(const BNNSLayerParametersActivation& parameters) {
  const BNNSActivation& activation = parameters.activation;
  function_ = activation.function;
  alpha_ = activation.alpha;
  beta_ = activation.beta;
  if (function_ >= kFunctions)
    return fail("activation: expected a function from 0 to %zu; got %u", kFunctions - 1,
                static_cast<unsigned>(function_));
  if (read_view(parameters.i_desc, Access::read, "input", &x_) != 0) return -1;
  if (read_view(parameters.o_desc, Access::write, "output", &y_) != 0) return -1;
  for (const View* view : {&x_, &y_}) {
    if (view->layout == BNNSDataLayoutFullyConnectedSparse ||
        view->layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
      return fail("%s: expected a layout of plain values; got %s", view == &x_ ? "input" : "output",
                  obn::name_of(view->layout));
  }
  if (x_.count != y_.count)
    return fail("output: expected %zu values, as many as the input has; got %zu", x_.count, y_.count);
  if (prepare_types() != 0 || prepare_channels(activation) != 0 || prepare_axes(parameters.axis_flags) != 0) return -1;
  for (const bool adjoins : {false, true}) {
    forward_[adjoins] = kForward;
    while (!forward_[adjoins]->fits(*this, adjoins)) ++forward_[adjoins];
  }
  backward_ = kBackward;
  while (!backward_->fits(*this)) ++backward_;
  return 0;
}

// Unbroken float32 and a function with a row loop for it; softmax over rows.
bool Activation::is_dense() const {
  return kernels_.forward[function_] && (!is_softmax(function_) || row_ > 0) && !is_prelu() &&
         is_dense_float32({&x_, nullptr, 0}, 1) && is_dense_float32({&y_, nullptr, 0}, 1);
}

// Best first; the last fits always.
constinit const Activation::ForwardAlgorithm Activation::kForward[] = {
    {"softmax rows",
     [](const Activation& a, bool adjoins) { return adjoins && is_softmax(a.function_) && a.is_dense(); },
     &Activation::softmax_rows},
    {"dense", [](const Activation& a, bool adjoins) { return adjoins && a.is_dense(); }, &Activation::forward_dense},
    {"softmax", [](const Activation& a, bool) { return is_softmax(a.function_); }, &Activation::softmax},
    {"gumbel", [](const Activation& a, bool) { return a.function_ == BNNSActivationFunctionGumbel; },
     &Activation::gumbel},
    {"gumbel max", [](const Activation& a, bool) { return a.function_ == BNNSActivationFunctionGumbelMax; },
     &Activation::gumbel_max},
    {"integers", [](const Activation& a, bool) { return is_integer_function(a.function_); },
     &Activation::convert_integers},
    {"rows", [](const Activation& a, bool) { return is_float(a.x_.type) && is_float(a.y_.type); },
     &Activation::forward_rows},
    {"conversion", [](const Activation&, bool) { return true; }, &Activation::convert},
};
constinit const Activation::BackwardAlgorithm Activation::kBackward[] = {
    {"softmax", [](const Activation& a) { return is_softmax(a.function_); }, &Activation::softmax_backward},
    {"rows", [](const Activation&) { return true; }, &Activation::backward_rows},
};

int Activation::prepare_types() {
  if (is_indexed(y_.type)) return fail("output: expected a type that is not indexed; got %s", obn::name_of(y_.type));
  if (function_ == BNNSActivationFunctionIdentity) {
    if (is_indexed(x_.type)) std::memcpy(table_, x_.table, (size_t{1} << bits_of(x_.type)) * bytes_of(x_.table_type));
    return 0;
  }
  for (const View* view : {&x_, &y_}) {
    const char* argument = view == &x_ ? "input" : "output";
    if (is_integer_function(function_) && !is_integer_type(view->type))
      return fail("%s: expected an integer type for %s; got %s", argument, kNames[function_],
                  obn::name_of(view->type));
    if (!is_integer_function(function_) && !is_float(view->type))
      return fail("%s: expected a floating-point type for %s; got %s", argument, kNames[function_],
                  obn::name_of(view->type));
  }
  return 0;
}

int Activation::prepare_channels(const BNNSActivation& activation) {
  const bool per_channel = function_ == BNNSActivationFunctionIntegerLinearSaturatePerChannel;
  if (is_prelu() && x_.layout != BNNSDataLayoutImageCHW)
    return fail("input: expected layout ImageCHW for %s; got %s", kNames[function_], obn::name_of(x_.layout));
  if (per_channel && x_.layout != BNNSDataLayoutImageCHW && x_.rank != 1)
    return fail("input: expected layout ImageCHW or Vector for %s; got %s", kNames[function_],
                obn::name_of(x_.layout));
  if (is_prelu() || per_channel) {
    channels_ = x_.extent[x_.rank - 1];
    channel_values_ = x_.count / channels_;
  }
  if (is_prelu()) {
    alphas_ = static_cast<float*>(options().get(channels_ * sizeof(float)));
    if (!alphas_) return -1;
    std::fill_n(alphas_, channels_, alpha_);
  }
  if (!is_integer_function(function_)) return 0;
  const int32_t* sources[] = {per_channel ? activation.iscale_per_channel : &activation.iscale,
                              per_channel ? activation.ioffset_per_channel : &activation.ioffset,
                              per_channel ? activation.ishift_per_channel : &activation.ishift};
  const char* words[] = {"iscale_per_channel", "ioffset_per_channel", "ishift_per_channel"};
  for (size_t k = 0; k < 3; ++k)
    if (!sources[k]) return fail("activation: expected %s, one value per channel; got NULL", words[k]);
  for (size_t c = 0; c < channels_; ++c)
    if (sources[2][c] < 0 || sources[2][c] > 63)
      return fail("activation: expected a shift from 0 to 63; got %d", static_cast<int>(sources[2][c]));
  integers_ = static_cast<int32_t*>(options().get(3 * channels_ * sizeof(int32_t)));
  if (!integers_) return -1;
  for (size_t k = 0; k < 3; ++k) std::copy_n(sources[k], channels_, integers_ + k * channels_);
  return 0;
}

int Activation::prepare_axes(uint32_t flags) {
  if (!is_softmax(function_) && function_ != BNNSActivationFunctionGumbelMax) return 0;
  if (flags == 0) flags = 1;
  if (flags >> (x_.rank + 1))
    return fail("axes: expected flags below 0x%x for %zu axes and the batch; got 0x%x", 2u << x_.rank, x_.rank,
                static_cast<unsigned>(flags));
  for (size_t i = 0; i <= x_.rank; ++i)
    if (flags >> i & 1) reduced_[i < x_.rank ? x_.axis_of_size[i] : x_.rank] = true;
  // The fastest axes and no others: then a group is a row.
  size_t fastest = 0;
  for (row_ = 1; fastest < x_.rank && (reduced_[fastest] || x_.extent[fastest] == 1); ++fastest)
    row_ *= x_.extent[fastest];
  for (size_t k = fastest; k <= x_.rank; ++k)
    if (reduced_[k]) row_ = 0;
  return 0;
}

BNNSNDArrayDescriptor Activation::pointer(BNNSPointerSpecifier target) {
  BNNSNDArrayDescriptor descriptor{};
  descriptor.layout = BNNSDataLayoutVector;
  descriptor.data_type = BNNSDataTypeFloat32;
  descriptor.stride[0] = 1;
  descriptor.size[0] = 1;
  if (target == BNNSPointerSpecifierBeta) {
    descriptor.data = &beta_;
  } else if (target != BNNSPointerSpecifierAlpha) {
    fail("target: expected alpha (0) or beta (1); got %u", static_cast<unsigned>(target));
    return BNNSNDArrayDescriptor{};
  } else if (is_prelu()) {
    descriptor.size[0] = channels_;
    descriptor.data = alphas_;
  } else {
    descriptor.data = &alpha_;
  }
  return descriptor;
}

// ---- forward ----

int Activation::apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) {
  if (batch == 0) return 0;
  Operand in{&x_, x, 0}, out{&y_, y, 0};
  if (read_batch(x_, x, batch, x_stride, Access::read, "input", &in.step) != 0) return -1;
  if (read_batch(y_, y, batch, y_stride, Access::write, "output", &out.step) != 0) return -1;
  if (check_places(out, "output", in, "input", batch) != 0) return -1;
  if (!scratch()) return -1;
  const bool adjoins = batch == 1 || (in.step == x_.count && out.step == y_.count);
  (this->*forward_[adjoins]->run)(in, out, batch);
  return 0;
}

namespace {

// Whether n floats at p are worth to be written past the caches: they are many, and whole lines.
bool goes_past_caches(const void* p, size_t n) {
  return n * sizeof(float) > kStreamBytes && reinterpret_cast<uintptr_t>(p) % kAlignment == 0;
}

}  // namespace

// Softmax of rows that follow each other.
void Activation::softmax_rows(const Operand& in, const Operand& out, size_t batch) const {
  const ForwardRow forward = kernels_.forward[function_];
  const float* x = in.floats();
  float* y = out.floats();
  const size_t total = batch * x_.count;
  by_pieces(total / row_, std::max<size_t>(1, kPiece / row_), options().threads, [&](size_t first, size_t rows) {
    if (!is_log()) return kernels_.softmax_rows(x + first * row_, y + first * row_, row_, rows);
    for (size_t i = first * row_; i < (first + rows) * row_; i += row_) forward(x + i, y + i, row_, alpha_, beta_);
  });
}

// In place or apart.
void Activation::forward_dense(const Operand& in, const Operand& out, size_t batch) const {
  const ForwardRow forward = kernels_.forward[function_];
  const float* x = in.floats();
  float* y = out.floats();
  const size_t total = batch * x_.count;
  const bool streams = x != y && goes_past_caches(y, total);
  if (!streams) {
    by_pieces(total, kPiece, options().threads,
              [&](size_t first, size_t n) { forward(x + first, y + first, n, alpha_, beta_); });
    return;
  }
  by_pieces(total, kPiece, options().threads, [&](size_t first, size_t count) {
    float* row = reinterpret_cast<float*>(scratch());
    by_blocks(first, count, kStreamBlock, [&](size_t i, size_t n) {
      forward(x + i, row, n, alpha_, beta_);
      kernels_.stream(row, y + i, n);
    });
  });
}

// The alpha of each of n values from linear index on.
void Activation::alphas_of(size_t index, size_t n, float* row) const {
  for (size_t done = 0; done < n;) {
    size_t within = (index + done) % channel_values_;
    size_t channel = (index + done) / channel_values_ % channels_;
    size_t m = std::min(n - done, channel_values_ - within);
    std::fill_n(row + done, m, alphas_[channel]);
    done += m;
  }
}

void Activation::forward_rows(const Operand& in, const Operand& out, size_t batch) const {
  const Walk x = in.walk(batch), y = out.walk(batch);
  by_pieces(batch * x_.count, kPiece, options().threads, [&](size_t first, size_t count) {
    float* row = reinterpret_cast<float*>(scratch());
    Cursor from(x, first), to(y, first);
    by_blocks(first, count, kBlock, [&](size_t i, size_t n) {
      read_row(kernels_, from, n, row);
      if (is_prelu()) {
        alphas_of(i, n, row + kBlock);
        kernels_.prelu(row, row + kBlock, row, n);
      } else if (function_ != BNNSActivationFunctionIdentity) {
        kernels_.forward[function_](row, row, n, alpha_, beta_);
      }
      write_row(kernels_, to, n, row);
    });
  });
}

// ---- backward ----

// condition_from_y for the alphas of now.
const char* Activation::unmet_condition() const {
  if (!is_prelu()) return condition_from_y(function_, alpha_, beta_);
  const char* condition = nullptr;
  for (size_t c = 0; c < channels_ && !condition; ++c) condition = condition_from_y(function_, alphas_[c], beta_);
  return condition;
}

int Activation::check_values_from_y(const Walk& y, size_t total) const {
  float row[kBlock];
  Cursor from(y, 0);
  for (size_t done = 0; done < total; done += kBlock) {
    size_t n = std::min(kBlock, total - done);
    read_row(kernels_, from, n, row);
    if (std::any_of(row, row + n, [](float v) { return v < 0.0f; }))
      return fail_without_x(function_, "no output is negative");
  }
  return 0;
}

int Activation::apply_backward(const Backward& b) {
  const char* name = kNames[function_];
  if (is_integer_function(function_) || is_gumbel(function_))
    return fail("activation: expected a function with a gradient; got %s", name);
  if (!is_float(x_.type) || !is_float(y_.type))
    return fail("input: expected floating-point input and output for a gradient; got %s and %s",
                obn::name_of(x_.type), obn::name_of(y_.type));
  if (b.db) return fail("bias_gradient: expected NULL for an activation; got a descriptor");
  const bool has_alpha_gradient = function_ == BNNSActivationFunctionLeakyRectifiedLinear || is_prelu();
  if (b.dw && !has_alpha_gradient) return fail("weights_gradient: expected NULL for %s; got a descriptor", name);
  if (b.dw && !b.x && b.batch > 0)
    return fail("input: expected the forward input, which weights_gradient needs; got NULL");

  // Which tensor the slope comes from: y, unless only x can serve or serves better.
  Gradients g;
  g.batch = b.batch;
  const bool needs_source = b.dx && b.batch > 0 && !has_constant_slope(function_);
  const bool has_from_y = kernels_.from_y[function_] != nullptr;
  g.from_x = b.x && (!b.y || !has_from_y || prefers_x(function_) || b.dw || unmet_condition());
  if (needs_source && !g.from_x) {
    if (!has_from_y) return fail_without_x(function_, nullptr);
    if (!b.y) return fail("output: expected the forward output (or the input) for the gradient of %s; got NULL", name);
    if (const char* condition = unmet_condition()) return fail_without_x(function_, condition);
  }

  View dy, dx;
  Operand x{&x_, b.x, 0}, y{&y_, b.y, 0};
  g.dy = {&dy, nullptr, 0};
  g.dx = {&dx, nullptr, 0};
  if (!b.dy) return fail("grad_output: expected a descriptor; got NULL");
  if (read_gradient(*b.dy, y_, Access::read, b.batch, b.dy_stride, "grad_output", &dy, &g.dy.step) != 0) return -1;
  if (b.dx && read_gradient(*b.dx, x_, Access::write, b.batch, b.dx_stride, "input_gradient", &dx, &g.dx.step) != 0)
    return -1;
  if (b.x && read_batch(x_, b.x, b.batch, b.x_stride, Access::read, "input", &x.step) != 0) return -1;
  if (b.y && read_batch(y_, b.y, b.batch, b.y_stride, Access::read, "output", &y.step) != 0) return -1;
  if (b.batch == 0) return b.dw ? alpha_gradient(*b.dw, x, g) : 0;

  g.dy.data = dy.data;
  g.dx.data = dx.data;
  g.accumulate = dx.accumulate;
  g.s = !needs_source ? g.dy : (g.from_x ? x : y);  // a constant slope is made of any row
  if (b.dx && (check_places(g.dx, "input_gradient", g.dy, "grad_output", b.batch) != 0 ||
               check_places(g.dx, "input_gradient", g.s, g.from_x ? "input" : "output", b.batch) != 0))
    return -1;
  if (needs_source && !g.from_x && is_ambiguous(function_) &&
      check_values_from_y(g.s.walk(b.batch), b.batch * x_.count) != 0)
    return -1;
  if (!scratch()) return -1;

  // The parameter first: it still has something to check, and dx may be written over x or dy.
  if (b.dw && alpha_gradient(*b.dw, x, g) != 0) return -1;
  if (!b.dx) return 0;
  (this->*backward_->run)(g);
  return 0;
}

void Activation::backward_rows(const Gradients& g) const {
  const BackwardRow backward = g.from_x ? kernels_.from_x[function_] : kernels_.from_y[function_];
  const size_t total = g.batch * x_.count;
  const bool apart = g.dx.data != g.dy.data && g.dx.data != g.s.data;
  const bool streams = apart && goes_past_caches(g.dx.data, total);
  if (g.is_dense() && !g.accumulate && !is_prelu()) {
    const float *s = g.s.floats(), *dy = g.dy.floats();
    float* dx = g.dx.floats();
    by_pieces(total, kPiece, options().threads, [&](size_t first, size_t count) {
      if (!streams) return backward(s + first, dy + first, dx + first, count, alpha_, beta_);
      float* row = reinterpret_cast<float*>(scratch());
      by_blocks(first, count, kStreamBlock, [&](size_t i, size_t n) {
        backward(s + i, dy + i, row, n, alpha_, beta_);
        kernels_.stream(row, dx + i, n);
      });
    });
    return;
  }
  const Walk s_walk = g.s.walk(g.batch), dy_walk = g.dy.walk(g.batch), dx_walk = g.dx.walk(g.batch);
  by_pieces(total, kPiece, options().threads, [&](size_t first, size_t count) {
    float* s_row = reinterpret_cast<float*>(scratch());
    float *dy_row = s_row + kBlock, *alpha_row = dy_row + kBlock;
    Cursor s(s_walk, first), dy(dy_walk, first), dx(dx_walk, first), old(dx_walk, first);
    by_blocks(first, count, kBlock, [&](size_t i, size_t n) {
      read_row(kernels_, s, n, s_row);
      read_row(kernels_, dy, n, dy_row);
      if (is_prelu()) {
        alphas_of(i, n, alpha_row);
        kernels_.prelu_backward(s_row, alpha_row, dy_row, dy_row, n);
      } else {
        backward(s_row, dy_row, dy_row, n, alpha_, beta_);
      }
      if (g.accumulate) {
        read_row(kernels_, old, n, s_row);
        kernels_.add(s_row, dy_row, n);
      }
      write_row(kernels_, dx, n, dy_row);
    });
  });
}

// dα = Σ dy·x over x < 0, for each channel; dw (channels_), set or added to. Sums of blocks are float, sums of those
// double; their order follows from the sizes alone.
int Activation::alpha_gradient(const BNNSNDArrayDescriptor& descriptor, const Operand& x, const Gradients& g) const {
  View like, dw;
  like.rank = 1;
  like.extent[0] = channels_;
  like.layout = rank_of(descriptor.layout) == 1 ? descriptor.layout : BNNSDataLayoutVector;
  size_t only_sample;
  if (read_gradient(descriptor, like, Access::write, 1, 0, "weights_gradient", &dw, &only_sample) != 0) return -1;
  const Operand parameter{&dw, dw.data, 0};
  if (check_apart(parameter, "weights_gradient", x, "input", g.batch) != 0 ||
      check_apart(parameter, "weights_gradient", g.dy, "grad_output", g.batch) != 0 ||
      check_apart(parameter, "weights_gradient", g.dx, "input_gradient", g.batch) != 0)
    return -1;
  if (g.batch == 0) {
    clear_sum(dw);
    return 0;
  }

  const Walk x_walk = x.walk(g.batch), dy_walk = g.dy.walk(g.batch);
  const auto sum_of = [&](size_t first, size_t count) {
    float x_row[kBlock], dy_row[kBlock];
    double sum = 0.0;
    Cursor x_at(x_walk, first), dy_at(dy_walk, first);
    by_blocks(first, count, kBlock, [&](size_t, size_t n) {
      read_row(kernels_, x_at, n, x_row);
      read_row(kernels_, dy_at, n, dy_row);
      sum += kernels_.alpha_gradient(x_row, dy_row, n);
    });
    return sum;
  };
  const auto put = [&](size_t channel, double sum) {
    float* to = static_cast<float*>(dw.data) + channel * dw.stride[0];
    *to = static_cast<float>(dw.accumulate ? *to + sum : sum);
  };
  if (is_prelu()) {  // a channel is summed by one thread
    by_pieces(channels_, std::max<size_t>(1, kPiece / (g.batch * channel_values_)), options().threads,
              [&](size_t first, size_t count) {
      for (size_t c = first; c < first + count; ++c) {
        double sum = 0.0;
        for (size_t b = 0; b < g.batch; ++b) sum += sum_of(b * x_.count + c * channel_values_, channel_values_);
        put(c, sum);
      }
    });
    return 0;
  }
  constexpr size_t kMaxPieces = 1024;
  const size_t total = g.batch * x_.count;
  const size_t piece = std::max(kPiece, divide_up(total, kMaxPieces));
  double partial[kMaxPieces] = {};
  by_pieces(total, piece, options().threads,
            [&](size_t first, size_t count) { partial[first / piece] = sum_of(first, count); });
  double sum = 0.0;
  for (double part : partial) sum += part;
  put(0, sum);
  return 0;
}

namespace {

// A layer that lives for one call has its one array, of alphas or of integers, in the calling thread's workspace, which
// nothing else of an activation asks for: so a warm call allocates nothing.
int lend_workspace(void** block, size_t, size_t bytes) {
  *block = workspace(bytes);
  return *block ? 0 : -1;
}

int apply_direct(const BNNSLayerParametersActivation& parameters, const BNNSFilterParameters* filter_params,
                 size_t batch, size_t x_stride, size_t y_stride) {
  Options options;
  if (Options::read(filter_params, &options) != 0) return -1;
  options.alloc = lend_workspace;
  options.free = [](void*) {};
  Activation filter(options);
  if (filter.prepare(parameters) != 0) return -1;
  return interruptible(nullptr, [&] { return filter.apply_to_own_data(batch, x_stride, y_stride); });
}

BNNSFilter create(const BNNSLayerParametersActivation& parameters, const BNNSFilterParameters* filter_params) {
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Activation* filter = options.make<Activation>(options);
  if (!filter) return nullptr;
  return publish(filter, filter->prepare(parameters));
}

}  // namespace

const char* name_of(Function function) { return kNames[function]; }

// ---- fused ----

static_assert(std::is_trivially_copyable_v<Fused>);

int Fused::read(const BNNSActivation& activation, const char* argument, Fused* fused) {
  const Function function = activation.function;
  if (function >= kFunctions)
    return fail("%s: expected a function from 0 to %zu; got %u", argument, kFunctions - 1,
                static_cast<unsigned>(function));
  if (is_integer_function(function) || is_gumbel(function))
    return fail("%s: expected a function that can follow another layer; got %s", argument, kNames[function]);
  const Kernels& kernels = targets.best();
  fused->function_ = function;
  fused->alpha_ = activation.alpha;
  fused->beta_ = activation.beta;
  fused->forward_ = kernels.forward[function];
  fused->backward_ = kernels.from_y[function];
  return 0;
}

bool Fused::is_elementwise() const {
  return function_ != BNNSActivationFunctionSoftmax && function_ != BNNSActivationFunctionLogSoftmax;
}

void Fused::forward(float* row, size_t n) const {
  if (!is_identity()) forward_(row, row, n, alpha_, beta_);
}

int Fused::check_backward() const {
  if (is_identity()) return 0;
  const char* condition = condition_from_y(function_, alpha_, beta_);
  if (backward_ && !condition) return 0;
  return fail("activation: expected a function whose gradient follows from the output%s%s; got %s",
              condition ? ", here one with " : "", condition ? condition : "", kNames[function_]);
}

bool Fused::depends_on_values() const { return is_ambiguous(function_); }

bool Fused::accepts(const float* y, size_t n) const {
  return std::none_of(y, y + n, [](float v) { return v < 0.0f; });
}

void Fused::backward(const float* y, float* dy, size_t n) const {
  if (!is_identity()) backward_(y, dy, dy, n, alpha_, beta_);
}

}  // namespace activation
}  // namespace obn

extern "C" {

BNNSFilter BNNSFilterCreateLayerActivation(const BNNSLayerParametersActivation* layer_params,
                                           const BNNSFilterParameters* filter_params) {
  if (!layer_params) {
    obn::fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  return obn::activation::create(*layer_params, filter_params);
}

int BNNSDirectApplyActivationBatch(const BNNSLayerParametersActivation* layer_params,
                                   const BNNSFilterParameters* filter_params, size_t batch_size, size_t in_stride,
                                   size_t out_stride) {
  if (!layer_params) return obn::fail("layer_params: expected parameters; got NULL");
  return obn::activation::apply_direct(*layer_params, filter_params, batch_size, in_stride, out_stride);
}

BNNSFilter BNNSFilterCreateVectorActivationLayer(const BNNSVectorDescriptor* in_desc,
                                                 const BNNSVectorDescriptor* out_desc,
                                                 const BNNSActivation* activation,
                                                 const BNNSFilterParameters* filter_params) {
  if (!in_desc || !out_desc || !activation) {
    obn::fail("%s: expected a description; got NULL", !in_desc ? "input" : (!out_desc ? "output" : "activation"));
    return nullptr;
  }
  BNNSLayerParametersActivation parameters{};
  parameters.i_desc = obn::describe(*in_desc);
  parameters.o_desc = obn::describe(*out_desc);
  parameters.activation = *activation;
  return obn::activation::create(parameters, filter_params);
}
}
