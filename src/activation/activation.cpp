// Entry points of the activation layer: check, then walk. Letters as in activation.h.
//
// Every call is a walk over linear indices 0 … batch·count - 1, in the order of memory (fastest axis first, batch
// last); input and output meet at equal indices, whatever their shapes.
#include "activation/activation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/filter.h"
#include "base/pool.h"
#include "base/random.h"
#include "base/status.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/bnns/legacy.h"

namespace obn {

namespace portable::activation {
extern const obn::activation::Kernels kernels;
}
#if defined(OBN_X86)
namespace avx2::activation {
extern const obn::activation::Kernels kernels;
}
namespace avx512::activation {
extern const obn::activation::Kernels kernels;
}
#endif

namespace activation {

#if defined(OBN_X86)
constinit const Targets<Kernels> targets{&portable::activation::kernels, &avx2::activation::kernels,
                                         &avx512::activation::kernels, nullptr};
#else
constinit const Targets<Kernels> targets{&portable::activation::kernels, nullptr, nullptr, nullptr};
#endif

namespace {

constexpr char kKind[] = "activation";
constexpr size_t kPiece = 16384;                    // values per piece of parallel work
constexpr size_t kBlock = 512;                      // values converted in the first-level cache at a time
constexpr size_t kStreamBlock = 2048;               // the same where the result goes past the caches
constexpr size_t kStreamBytes = size_t{32} << 20;   // outputs larger than this do
constexpr size_t kAxes = BNNS_MAX_TENSOR_DIMENSION + 1;
constexpr size_t kTileColumns = 64;                 // columns of a softmax across the fastest axis done at a time

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

// What alpha and beta must be for y to determine the slope (spec activation.md 5); NULL when they are.
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

// ---- walking ----

// One tensor over the whole batch: axes fastest first, merged where the next begins where the last ends.
struct Walk {
  std::byte* data;
  BNNSDataType type;
  size_t rank;
  size_t extent[kAxes];
  size_t stride[kAxes];
};

Walk walk_of(const View& view, const void* data, size_t batch, size_t batch_stride) {
  Walk walk;
  walk.rank = 0;
  walk.data = static_cast<std::byte*>(const_cast<void*>(data));
  walk.type = view.type;
  for (size_t k = 0; k <= view.rank; ++k) {
    size_t extent = k < view.rank ? view.extent[k] : batch;
    size_t stride = k < view.rank ? view.stride[k] : batch_stride;
    if (extent == 1) continue;
    size_t last = walk.rank - 1;
    if (walk.rank > 0 && stride == walk.stride[last] * walk.extent[last]) {
      walk.extent[last] *= extent;
    } else {
      walk.extent[walk.rank] = extent;
      walk.stride[walk.rank++] = stride;
    }
  }
  if (walk.rank == 0) {
    walk.rank = walk.extent[0] = walk.stride[0] = 1;
  }
  return walk;
}

// A tensor of a call, checked: what, where, and how far from sample to sample.
struct Operand {
  const View* view;
  const void* data;
  size_t step;

  Walk walk(size_t batch) const { return walk_of(*view, data, batch, step); }
  float* floats() const { return static_cast<float*>(const_cast<void*>(data)); }
};

// One unbroken run of float32.
bool is_dense_float32(const Operand& o, size_t batch) {
  size_t next = 1;
  for (size_t k = 0; k < o.view->rank; next *= o.view->extent[k++])
    if (o.view->stride[k] != next && o.view->extent[k] != 1) return false;
  return o.view->type == BNNSDataTypeFloat32 && (batch == 1 || o.step == next);
}

// The same values at the same places: a call may then work in place.
bool same_place(const Operand& a, const Operand& b, size_t batch) {
  if (a.data != b.data || bits_of(a.view->type) != bits_of(b.view->type)) return false;
  const Walk first = a.walk(batch), second = b.walk(batch);
  return first.rank == second.rank && std::equal(first.extent, first.extent + first.rank, second.extent) &&
         std::equal(first.stride, first.stride + first.rank, second.stride);
}

// Refuses two operands that share memory.
int check_apart(const Operand& a, const char* a_word, const Operand& b, const char* b_word, size_t batch) {
  return check_disjoint(*a.view, a.data, a.step, a_word, *b.view, b.data, b.step, b_word, batch);
}

// The same, unless one takes exactly the place of the other.
int check_places(const Operand& a, const char* a_word, const Operand& b, const char* b_word, size_t batch) {
  return same_place(a, b, batch) ? 0 : check_apart(a, a_word, b, b_word, batch);
}

// A place in a walk.
class Cursor {
 public:
  Cursor(const Walk& walk, size_t index) : walk_(walk) {
    for (size_t k = 0; k < walk.rank; ++k) {
      at_[k] = index % walk.extent[k];
      index /= walk.extent[k];
      offset_ += at_[k] * walk.stride[k];
    }
  }

  const Walk& walk() const { return walk_; }
  size_t offset() const { return offset_; }                          // in values, from data
  size_t run() const { return walk_.extent[0] - at_[0]; }            // values left along the fastest axis
  void* here() const { return walk_.data + offset_ * bytes_of(walk_.type); }  // whole-byte types

  // n <= run()
  void advance(size_t n) {
    at_[0] += n;
    offset_ += n * walk_.stride[0];
    for (size_t k = 0; at_[k] == walk_.extent[k] && k + 1 < walk_.rank; ++k) {
      offset_ += walk_.stride[k + 1] - at_[k] * walk_.stride[k];
      at_[k] = 0;
      ++at_[k + 1];
    }
  }

 private:
  const Walk& walk_;
  size_t offset_ = 0;
  size_t at_[kAxes] = {};
};

// The next n values of a float tensor to or from row (n).
void read_row(const Kernels& kernels, Cursor& from, size_t n, float* row) {
  for (size_t done = 0; done < n;) {
    size_t m = std::min(n - done, from.run());
    kernels.load(from.walk().type, from.here(), from.walk().stride[0], m, row + done);
    from.advance(m);
    done += m;
  }
}
void write_row(const Kernels& kernels, Cursor& to, size_t n, const float* row) {
  for (size_t done = 0; done < n;) {
    size_t m = std::min(n - done, to.run());
    kernels.store(to.walk().type, to.here(), to.walk().stride[0], m, row + done);
    to.advance(m);
    done += m;
  }
}

// The value of a float tensor at one linear index.
float value_at(const Kernels& kernels, const Walk& walk, size_t index) {
  float value;
  Cursor at(walk, index);
  read_row(kernels, at, 1, &value);
  return value;
}
void set_value_at(const Kernels& kernels, const Walk& walk, size_t index, double value) {
  const float rounded = static_cast<float>(value);
  Cursor at(walk, index);
  write_row(kernels, at, 1, &rounded);
}

// Calls body(first, count) for the pieces of [0, total); a single piece stays on this thread and off the pool.
template <class Body>
void by_pieces(size_t total, size_t piece, size_t thread_limit, const Body& body) {
  if (total <= piece) return body(size_t{0}, total);
  parallel((total + piece - 1) / piece, threads_for(thread_limit),
           [&](size_t i) { body(i * piece, std::min(piece, total - i * piece)); });
}

// Calls body(first, count) for the blocks of [first, first + count).
template <class Body>
void by_blocks(size_t first, size_t count, size_t block, const Body& body) {
  for (size_t done = 0; done < count; done += block) body(first + done, std::min(block, count - done));
}

// ---- softmax groups ----

// The axes of several tensors side by side: the shape of the input and the batch, merged where all tensors agree.
// `reduced` axes are those the softmax runs over.
struct Groups {
  static constexpr size_t kTensors = 3;
  size_t tensors = 0;
  size_t rank = 0;
  size_t extent[kAxes] = {};
  size_t stride[kTensors][kAxes] = {};
  bool reduced[kAxes] = {};

  size_t values(bool of_reduced) const {
    size_t n = 1;
    for (size_t k = 0; k < rank; ++k)
      if (reduced[k] == of_reduced) n *= extent[k];
    return n;
  }
};

// Some axes of the groups, fastest first, perhaps shortened: what is gathered at once.
struct Box {
  size_t rank = 0;
  size_t axis[kAxes] = {};
  size_t extent[kAxes] = {};

  void add(size_t which, size_t length) {
    axis[rank] = which;
    extent[rank++] = length;
  }
};

// Offset of the value whose index along the axes of `box` is `index`.
size_t offset_in(const Groups& groups, size_t tensor, const Box& box, size_t index) {
  size_t offset = 0;
  for (size_t k = 0; k < box.rank; ++k) {
    offset += index % box.extent[k] * groups.stride[tensor][box.axis[k]];
    index /= box.extent[k];
  }
  return offset;
}

// Calls body(offset, count) for every run of a box along its fastest axis, in order.
template <class Body>
void for_runs(const Groups& groups, size_t tensor, const Box& box, size_t base, const Body& body) {
  const size_t length = box.extent[0];
  size_t runs = 1;
  for (size_t k = 1; k < box.rank; ++k) runs *= box.extent[k];
  for (size_t run = 0; run < runs; ++run) body(base + offset_in(groups, tensor, box, run * length), length);
}

// ---- the filter ----

class Activation final : public Filter {
 public:
  explicit Activation(const Options& options) : Filter(kKind, options), kernels_(targets.best()) {}
  ~Activation() override {
    options().release(alphas_);
    options().release(integers_);
  }

  int prepare(const BNNSLayerParametersActivation& parameters);
  int apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) override;
  int apply_to_own_data(size_t batch, size_t x_stride, size_t y_stride) {
    return apply(batch, x_.data, x_stride, y_.data, y_stride);
  }
  int apply_backward(const Backward& arguments) override;
  BNNSNDArrayDescriptor pointer(BNNSPointerSpecifier target) override;

 private:
  // What a backward call works on, checked. s is x or y.
  struct Gradients {
    size_t batch;
    bool from_x;
    bool accumulate;
    Operand s, dy, dx;

    bool is_dense() const {
      return is_dense_float32(s, batch) && is_dense_float32(dy, batch) && is_dense_float32(dx, batch);
    }
  };

  int prepare_types();
  int prepare_channels(const BNNSActivation& activation);
  int prepare_axes(uint32_t flags);
  bool is_prelu() const { return function_ == BNNSActivationFunctionPReLUPerChannel; }
  bool is_log() const { return function_ == BNNSActivationFunctionLogSoftmax; }

  void forward_dense(const float* x, float* y, size_t total) const;
  void forward_rows(const Walk& x, const Walk& y, size_t total) const;
  void convert(const Walk& x, const Walk& y, size_t total) const;
  void convert_integers(const Walk& x, const Walk& y, size_t total) const;
  void gumbel(const Walk& y, size_t total) const;
  void gumbel_max(const Walk& x, const Walk& y, size_t batch) const;

  const char* unmet_condition() const;
  int check_values_from_y(const Walk& y, size_t total) const;
  void backward_rows(const Gradients& g) const;
  int alpha_gradient(const BNNSNDArrayDescriptor& descriptor, const Operand& x, const Gradients& g) const;

  bool align(const Operand& operand, size_t batch, Groups* groups) const;
  void merge(size_t batch, Groups* groups) const;
  void softmax(const Operand& x, const Operand& y, size_t batch) const;
  void softmax_backward(const Gradients& g) const;
  void softmax_slow(const Operand& x, const Operand& y, size_t batch) const;
  void softmax_backward_slow(const Gradients& g) const;
  template <class Body>
  void for_groups(size_t batch, const Body& body) const;

  void alphas_of(size_t index, size_t n, float* row) const;
  ref::Values values_of(const View& view, const Walk& walk) const {
    return {walk.data, view.type, view.scale, view.bias, table_, view.table_type};
  }

  const Kernels& kernels_;
  Function function_ = BNNSActivationFunctionIdentity;
  float alpha_ = 0.0f, beta_ = 0.0f;  // live: BNNSGetPointer shows them
  View x_, y_;
  bool is_dense_ = false;         // unbroken float32, and no softmax or one over rows: the short way
  bool reduced_[kAxes] = {};      // softmax: axes of x_ (and the batch, last) it runs over
  size_t row_ = 0;                // softmax: values of a group where groups follow each other; 0 where not
  size_t channels_ = 1;           // PReLU and per-channel integers
  size_t channel_values_ = 1;     // values of one channel of one sample
  float* alphas_ = nullptr;       // (channels_), PReLU
  int32_t* integers_ = nullptr;   // (3, channels_): scale, offset, shift
  alignas(8) std::byte table_[256 * 8];  // indexed input
};

// ---- creation ----

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
  is_dense_ = kernels_.forward[function_] && (!is_softmax(function_) || row_ > 0) && !is_prelu() &&
              is_dense_float32({&x_, nullptr, 0}, 1) && is_dense_float32({&y_, nullptr, 0}, 1);
  return 0;
}

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
  const size_t total = batch * x_.count;
  if (is_dense_ && (batch == 1 || (in.step == x_.count && out.step == y_.count))) {
    forward_dense(in.floats(), out.floats(), total);
    return 0;
  }
  if (is_softmax(function_)) {
    softmax(in, out, batch);
    return 0;
  }
  const Walk from = in.walk(batch), to = out.walk(batch);
  if (function_ == BNNSActivationFunctionGumbel) {
    gumbel(to, total);
  } else if (function_ == BNNSActivationFunctionGumbelMax) {
    gumbel_max(from, to, batch);
  } else if (is_integer_function(function_)) {
    convert_integers(from, to, total);
  } else if (is_float(x_.type) && is_float(y_.type)) {
    forward_rows(from, to, total);
  } else {
    convert(from, to, total);
  }
  return 0;
}

// x, y (total), in place or apart
void Activation::forward_dense(const float* x, float* y, size_t total) const {
  const ForwardRow forward = kernels_.forward[function_];
  if (is_softmax(function_)) {
    by_pieces(total / row_, std::max<size_t>(1, kPiece / row_), options().threads, [&](size_t first, size_t rows) {
      for (size_t i = first * row_; i < (first + rows) * row_; i += row_) forward(x + i, y + i, row_, alpha_, beta_);
    });
    return;
  }
  const bool streams = x != y && total * sizeof(float) > kStreamBytes && reinterpret_cast<uintptr_t>(y) % 64 == 0;
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

void Activation::forward_rows(const Walk& x, const Walk& y, size_t total) const {
  by_pieces(total, kPiece, options().threads, [&](size_t first, size_t count) {
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

// Sub-byte outputs share bytes between neighbours: one thread.
size_t piece_for(BNNSDataType output, size_t total) { return bytes_of(output) == 0 ? total : kPiece; }

// Identity between types of which at least one is not floating point.
void Activation::convert(const Walk& x, const Walk& y, size_t total) const {
  const ref::Values from_values = values_of(x_, x), to_values = values_of(y_, y);
  // 64 bits do not fit into a double: such values stay whole numbers when they are.
  const bool whole = ref::is_whole(from_values) &&
                     (bits_of(is_indexed(x_.type) ? x_.table_type : x_.type) == 64 || bits_of(y_.type) == 64);
  by_pieces(total, piece_for(y_.type, total), options().threads, [&](size_t first, size_t count) {
    Cursor from(x, first), to(y, first);
    double row[kBlock];
    for (size_t done = 0; done < count;) {
      size_t n = std::min({count - done, kBlock, from.run(), to.run()});
      if (whole) {
        for (size_t i = 0; i < n; ++i)
          ref::put_whole(to_values, to.offset() + i * y.stride[0],
                         ref::get_whole(from_values, from.offset() + i * x.stride[0]));
      } else {
        ref::get_reals(from_values, from.offset(), x.stride[0], n, row);
        ref::put_reals(to_values, to.offset(), y.stride[0], n, row);
      }
      from.advance(n);
      to.advance(n);
      done += n;
    }
  });
}

// y = sat((scale·x + offset) >> shift), on the stored integers
void Activation::convert_integers(const Walk& x, const Walk& y, size_t total) const {
  const ref::Values from_values = values_of(x_, x), to_values = values_of(y_, y);
  by_pieces(total, piece_for(y_.type, total), options().threads, [&](size_t first, size_t count) {
    Cursor from(x, first), to(y, first);
    for (size_t i = first; i < first + count; ++i) {
      const int32_t* of_channel = integers_ + i / channel_values_ % channels_;
      ref::Whole value = ref::integer_linear(ref::get_stored(from_values, from.offset()), of_channel[0],
                                             of_channel[channels_], of_channel[2 * channels_]);
      ref::put_stored(to_values, to.offset(), value);
      from.advance(1);
      to.advance(1);
    }
  });
}

// ---- Gumbel: value i of the call takes value i of its part of the stream ----

void Activation::gumbel(const Walk& y, size_t total) const {
  const RandomDraw draw = draw_random(total);
  by_pieces(total, kPiece, options().threads, [&](size_t first, size_t count) {
    uint32_t random[kBlock];
    float row[kBlock];
    Cursor to(y, first);
    by_blocks(first, count, kBlock, [&](size_t i, size_t n) {
      draw.stream.get(draw.start + i, random, n);
      for (size_t k = 0; k < n; ++k)
        row[k] = static_cast<float>(ref::gumbel(uniform(random[k], 0.0f, 1.0f), alpha_, beta_));
      write_row(kernels_, to, n, row);
    });
  });
}

// Every y of a group is the largest x + g of it.
void Activation::gumbel_max(const Walk& x, const Walk& y, size_t batch) const {
  const RandomDraw draw = draw_random(batch * x_.count);
  for_groups(batch, [&](const auto& for_values) {
    double best = -INFINITY;
    for_values([&](size_t index) {
      uint32_t random;
      draw.stream.get(draw.start + index, &random, 1);
      double noise = ref::gumbel(uniform(random, 0.0f, 1.0f), alpha_, beta_);
      best = std::fmax(best, value_at(kernels_, x, index) + noise);
    });
    for_values([&](size_t index) { set_value_at(kernels_, y, index, best); });
  });
}

// ---- softmax ----

// Appends a tensor to the groups: its strides along the axes of the input and the batch. False when its own shape is
// another one and not packed either.
bool Activation::align(const Operand& operand, size_t batch, Groups* groups) const {
  size_t* stride = groups->stride[groups->tensors];
  const View& view = *operand.view;
  const Walk walk = operand.walk(batch);
  if (view.rank == x_.rank && std::equal(view.extent, view.extent + view.rank, x_.extent)) {
    std::copy_n(view.stride, view.rank, stride);
    stride[x_.rank] = operand.step;
  } else if (walk.rank == 1) {
    size_t next = walk.stride[0];
    for (size_t k = 0; k <= x_.rank; ++k) {
      stride[k] = next;
      next *= k < x_.rank ? x_.extent[k] : batch;
    }
  } else {
    return false;
  }
  ++groups->tensors;
  return true;
}

// Gives the groups their axes, once all tensors are in.
void Activation::merge(size_t batch, Groups* groups) const {
  Groups merged;
  merged.tensors = groups->tensors;
  for (size_t k = 0; k <= x_.rank; ++k) {
    const size_t extent = k < x_.rank ? x_.extent[k] : batch;
    if (extent == 1) continue;
    const size_t last = merged.rank - 1;
    bool joins = merged.rank > 0 && merged.reduced[last] == reduced_[k];
    for (size_t t = 0; joins && t < merged.tensors; ++t)
      joins = groups->stride[t][k] == merged.stride[t][last] * merged.extent[last];
    if (joins) {
      merged.extent[last] *= extent;
      continue;
    }
    merged.extent[merged.rank] = extent;
    merged.reduced[merged.rank] = reduced_[k];
    for (size_t t = 0; t < merged.tensors; ++t) merged.stride[t][merged.rank] = groups->stride[t][k];
    ++merged.rank;
  }
  if (merged.rank == 0) {  // a single value
    merged.rank = merged.extent[0] = 1;
    merged.reduced[0] = true;
    for (size_t t = 0; t < merged.tensors; ++t) merged.stride[t][0] = 1;
  }
  *groups = merged;
}

// How groups are cut into units that a kernel does at once: one group when its fastest axis is reduced (row), or up to
// kTileColumns neighbouring groups when not (columns).
struct Cut {
  bool in_columns;
  Box box;        // the values of one unit, all columns there
  Box others;     // the axes that number the units
  size_t columns; // of the whole fastest axis; 1 in rows
  size_t r;       // values of a group
  size_t tiles;   // units along the fastest axis
  size_t units;

  explicit Cut(const Groups& groups) : in_columns(!groups.reduced[0]), columns(in_columns ? groups.extent[0] : 1) {
    if (in_columns) box.add(0, std::min(columns, kTileColumns));
    for (size_t k = 0; k < groups.rank; ++k) {
      if (groups.reduced[k]) {
        box.add(k, groups.extent[k]);
      } else if (k > 0) {
        others.add(k, groups.extent[k]);
      }
    }
    r = groups.values(true);
    tiles = (columns + kTileColumns - 1) / kTileColumns;
    units = groups.values(false) / columns * tiles;
  }

  size_t unit_values() const { return r * std::min(columns, kTileColumns); }
};

// One tensor's share of a unit: where it lies, or a packed copy in scratch.
struct Share {
  float* data;
  size_t step;  // columns: from row to row
};

// One tensor of a group walk.
struct Member {
  const Operand& operand;
  size_t tensor;

  // The kernel can work on the memory itself.
  bool is_direct(const Groups& groups, const Cut& cut) const {
    return type() == BNNSDataTypeFloat32 && groups.stride[tensor][cut.box.axis[0]] == 1 &&
           cut.box.rank <= (cut.in_columns ? 2u : 1u);
  }
  size_t offset(const Groups& groups, const Cut& cut, size_t unit) const {
    return offset_in(groups, tensor, cut.others, unit / cut.tiles) +
           unit % cut.tiles * kTileColumns * (cut.in_columns ? groups.stride[tensor][0] : 0);
  }
  Share direct(const Groups& groups, const Cut& cut, size_t unit) const {
    return {operand.floats() + offset(groups, cut, unit),
            cut.in_columns && cut.box.rank == 2 ? groups.stride[tensor][cut.box.axis[1]] : 0};
  }
  BNNSDataType type() const { return operand.view->type; }
  void* at(size_t offset) const {
    return static_cast<std::byte*>(const_cast<void*>(operand.data)) + offset * bytes_of(type());
  }

  // box is the unit's, shortened at the last tile; row is packed.
  void gather(const Kernels& kernels, const Groups& groups, const Box& box, size_t base, float* row) const {
    for_runs(groups, tensor, box, base, [&](size_t offset, size_t n) {
      kernels.load(type(), at(offset), groups.stride[tensor][box.axis[0]], n, row);
      row += n;
    });
  }
  void scatter(const Kernels& kernels, const Groups& groups, const Box& box, size_t base, const float* row) const {
    for_runs(groups, tensor, box, base, [&](size_t offset, size_t n) {
      kernels.store(type(), at(offset), groups.stride[tensor][box.axis[0]], n, row);
      row += n;
    });
  }
};

// The unit's box, with the columns that are left in the last tile.
Box box_of(const Cut& cut, size_t unit) {
  Box box = cut.box;
  if (cut.in_columns) box.extent[0] = std::min(kTileColumns, cut.columns - unit % cut.tiles * kTileColumns);
  return box;
}

void softmax_share(const Kernels& kernels, Function function, const Cut& cut, size_t columns, Share x, Share y) {
  if (cut.in_columns) {
    kernels.softmax_columns(x.data, x.step, y.data, y.step, cut.r, columns,
                            function == BNNSActivationFunctionLogSoftmax);
  } else {
    kernels.forward[function](x.data, y.data, cut.r, 0.0f, 0.0f);
  }
}

void Activation::softmax(const Operand& x, const Operand& y, size_t batch) const {
  Groups groups;
  if (!align(x, batch, &groups) || !align(y, batch, &groups)) return softmax_slow(x, y, batch);
  merge(batch, &groups);
  const Cut cut(groups);
  const Member from{x, 0}, to{y, 1};
  const bool direct_x = from.is_direct(groups, cut), direct_y = to.is_direct(groups, cut);
  if (!(direct_x && direct_y) && cut.unit_values() * sizeof(float) > kScratchBytes) return softmax_slow(x, y, batch);
  by_pieces(cut.units, std::max<size_t>(1, kPiece / cut.unit_values()), options().threads,
            [&](size_t first, size_t count) {
    float* row = reinterpret_cast<float*>(scratch());
    for (size_t unit = first; unit < first + count; ++unit) {
      const Box box = box_of(cut, unit);
      const Share packed{row, box.extent[0]};
      if (!direct_x) from.gather(kernels_, groups, box, from.offset(groups, cut, unit), row);
      softmax_share(kernels_, function_, cut, box.extent[0], direct_x ? from.direct(groups, cut, unit) : packed,
                    direct_y ? to.direct(groups, cut, unit) : packed);
      if (!direct_y) to.scatter(kernels_, groups, box, to.offset(groups, cut, unit), row);
    }
  });
}

void Activation::softmax_backward(const Gradients& g) const {
  if (row_ > 0 && g.is_dense() && !g.from_x && !g.accumulate) {
    const size_t rows = g.batch * x_.count / row_;
    by_pieces(rows, std::max<size_t>(1, kPiece / row_), options().threads, [&](size_t first, size_t count) {
      for (size_t i = first * row_; i < (first + count) * row_; i += row_)
        kernels_.from_y[function_](g.s.floats() + i, g.dy.floats() + i, g.dx.floats() + i, row_, alpha_, beta_);
    });
    return;
  }
  Groups groups;
  if (!align(g.s, g.batch, &groups) || !align(g.dy, g.batch, &groups) || !align(g.dx, g.batch, &groups))
    return softmax_backward_slow(g);
  merge(g.batch, &groups);
  const Cut cut(groups);
  const Member s{g.s, 0}, dy{g.dy, 1}, dx{g.dx, 2};
  const bool direct_s = s.is_direct(groups, cut), direct_dy = dy.is_direct(groups, cut);
  const bool direct_dx = dx.is_direct(groups, cut) && !g.accumulate;
  const size_t room = cut.unit_values();
  if (!(direct_s && direct_dy && direct_dx && !g.from_x) && 2 * room * sizeof(float) > kScratchBytes)
    return softmax_backward_slow(g);
  by_pieces(cut.units, std::max<size_t>(1, kPiece / room), options().threads, [&](size_t first, size_t count) {
    float* row = reinterpret_cast<float*>(scratch());
    for (size_t unit = first; unit < first + count; ++unit) {
      const Box box = box_of(cut, unit);
      const size_t columns = box.extent[0];
      const Share packed_y{row, columns}, packed_dy{row + room, columns};
      Share y = direct_s ? s.direct(groups, cut, unit) : packed_y;
      if (!direct_s) s.gather(kernels_, groups, box, s.offset(groups, cut, unit), row);
      if (g.from_x) {
        softmax_share(kernels_, function_, cut, columns, y, packed_y);
        y = packed_y;
      }
      const Share gradient = direct_dy ? dy.direct(groups, cut, unit) : packed_dy;
      if (!direct_dy) dy.gather(kernels_, groups, box, dy.offset(groups, cut, unit), row + room);
      const Share result = direct_dx ? dx.direct(groups, cut, unit) : packed_dy;
      if (cut.in_columns) {
        kernels_.softmax_columns_backward(y.data, y.step, gradient.data, gradient.step, result.data, result.step,
                                          cut.r, columns, is_log());
      } else {
        kernels_.from_y[function_](y.data, gradient.data, result.data, cut.r, 0.0f, 0.0f);
      }
      if (direct_dx) continue;
      const size_t base = dx.offset(groups, cut, unit);
      if (g.accumulate) {
        dx.gather(kernels_, groups, box, base, row);  // y is not needed any more
        kernels_.add(row, row + room, cut.in_columns ? cut.r * columns : cut.r);
      }
      dx.scatter(kernels_, groups, box, base, row + room);
    }
  });
}

// Calls body(for_values) for every group, where for_values(visit) calls visit(linear index) for each of its values.
template <class Body>
void Activation::for_groups(size_t batch, const Body& body) const {
  Groups groups;  // of one packed tensor: offsets are linear indices
  View linear = x_;
  for (size_t k = 0, next = 1; k < linear.rank; next *= linear.extent[k++]) linear.stride[k] = next;
  align({&linear, nullptr, linear.count}, batch, &groups);
  merge(batch, &groups);
  Box within, others;
  for (size_t k = 0; k < groups.rank; ++k) (groups.reduced[k] ? within : others).add(k, groups.extent[k]);
  const size_t n = groups.values(true);
  by_pieces(groups.values(false), std::max<size_t>(1, kPiece / n), options().threads,
            [&](size_t first, size_t count) {
    for (size_t group = first; group < first + count; ++group) {
      const size_t base = offset_in(groups, 0, others, group);
      body([&](const auto& visit) {
        for (size_t i = 0; i < n; ++i) visit(base + offset_in(groups, 0, within, i));
      });
    }
  });
}

// max and Σ e^(x - max) of a group
struct Normalizer {
  double max = -INFINITY;
  double total = 0.0;

  template <class ForValues>
  Normalizer(const Kernels& kernels, const Walk& x, const ForValues& for_values) {
    for_values([&](size_t i) { max = std::fmax(max, value_at(kernels, x, i)); });
    for_values([&](size_t i) { total += std::exp(value_at(kernels, x, i) - max); });
  }
  double softmax(double x, bool log) const { return log ? x - max - std::log(total) : std::exp(x - max) / total; }
};

// Shapes that do not fit side by side, or groups larger than scratch: value by value.
void Activation::softmax_slow(const Operand& in, const Operand& out, size_t batch) const {
  const Walk x = in.walk(batch), y = out.walk(batch);
  for_groups(batch, [&](const auto& for_values) {
    const Normalizer all(kernels_, x, for_values);
    for_values([&](size_t i) {
      set_value_at(kernels_, y, i, all.softmax(value_at(kernels_, x, i), is_log()));
    });
  });
}

void Activation::softmax_backward_slow(const Gradients& g) const {
  const Walk s_walk = g.s.walk(g.batch), dy_walk = g.dy.walk(g.batch), dx_walk = g.dx.walk(g.batch);
  for_groups(g.batch, [&](const auto& for_values) {
    const Normalizer all(kernels_, s_walk, for_values);
    const auto y_at = [&](size_t i) -> double {
      double s = value_at(kernels_, s_walk, i);
      return g.from_x ? all.softmax(s, is_log()) : s;
    };
    double total = 0.0;
    for_values([&](size_t i) { total += value_at(kernels_, dy_walk, i) * (is_log() ? 1.0 : y_at(i)); });
    for_values([&](size_t i) {
      double dy = value_at(kernels_, dy_walk, i), y = y_at(i);
      double dx = is_log() ? dy - std::exp(y) * total : y * (dy - total);
      set_value_at(kernels_, dx_walk, i, g.accumulate ? value_at(kernels_, dx_walk, i) + dx : dx);
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
  if (b.dw && !b.x) return fail("input: expected the forward input, which weights_gradient needs; got NULL");

  // Which tensor the slope comes from: y, unless only x can serve or serves better.
  Gradients g;
  g.batch = b.batch;
  const bool needs_source = b.dx && !has_constant_slope(function_);
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
  if (b.batch == 0) return 0;

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
  if (is_softmax(function_)) {
    softmax_backward(g);
  } else {
    backward_rows(g);
  }
  return 0;
}

void Activation::backward_rows(const Gradients& g) const {
  const BackwardRow backward = g.from_x ? kernels_.from_x[function_] : kernels_.from_y[function_];
  const size_t total = g.batch * x_.count;
  const bool apart = g.dx.data != g.dy.data && g.dx.data != g.s.data;
  const bool streams = apart && total * sizeof(float) > kStreamBytes &&
                       reinterpret_cast<uintptr_t>(g.dx.data) % 64 == 0;
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
  const size_t piece = std::max(kPiece, (total + kMaxPieces - 1) / kMaxPieces);
  double partial[kMaxPieces] = {};
  by_pieces(total, piece, options().threads,
            [&](size_t first, size_t count) { partial[first / piece] = sum_of(first, count); });
  double sum = 0.0;
  for (double part : partial) sum += part;
  put(0, sum);
  return 0;
}

BNNSFilter create(const BNNSLayerParametersActivation& parameters, const BNNSFilterParameters* filter_params) {
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Activation* filter = options.make<Activation>(options);
  if (!filter) return nullptr;
  if (filter->prepare(parameters) != 0) {
    destroy(filter);
    return nullptr;
  }
  return publish(filter);
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
  obn::Options options;
  if (obn::Options::read(filter_params, &options) != 0) return -1;
  obn::activation::Activation filter(options);
  if (filter.prepare(*layer_params) != 0) return -1;
  return filter.apply_to_own_data(batch_size, in_stride, out_stride);
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
  const BNNSVectorDescriptor* vectors[] = {in_desc, out_desc};
  BNNSNDArrayDescriptor* arrays[] = {&parameters.i_desc, &parameters.o_desc};
  for (size_t k = 0; k < 2; ++k) {
    arrays[k]->layout = BNNSDataLayoutVector;
    arrays[k]->size[0] = vectors[k]->size;
    arrays[k]->data_type = vectors[k]->data_type;
    arrays[k]->data_scale = vectors[k]->data_scale;
    arrays[k]->data_bias = vectors[k]->data_bias;
  }
  parameters.activation = *activation;
  return obn::activation::create(parameters, filter_params);
}
}
