// Convolution, the desk: checks every argument, chooses algorithms at creation, turns images and weights into what the
// algorithms see and their results back.
//
// What a layer holds. The filter owns a float32 copy of weights and bias, or nothing with BNNSFlagsUseClientPtr. While
// a call runs it holds, in the workspace of the calling thread,
//   the weights as (O, C/G, kh, kw) of float32, unless the caller's array is that already or was copied,
//   the gradient of the weights in that form, unless the caller's array is that already,
//   float32 copies of those images that are not float32 with unbroken rows, and dz where there is an activation,
//   what the algorithm itself shares between threads (packed weights, partial sums).
// The copies are made for some samples at a time (a chunk): together they take no more than the larger of input and
// output of the batch, and no more than kChunkBytes, but always one sample. Besides, each thread has its scratch.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/legacy.h"
#include "base/pool.h"
#include "base/status.h"
#include "convolution/convolution_filter.h"
#include "openbnns/openbnns.h"

namespace obn::convolution {
namespace {

constexpr char kKind[] = "convolution";
constexpr char kTransposedKind[] = "transposed convolution";

constexpr size_t kChunkBytes = size_t{32} << 20;
constexpr size_t kMostValues = size_t{1} << 58;      // of an array or a batch: sizes in bytes cannot overflow below
constexpr size_t kLongestRow = size_t{1} << 16;      // of a softmax, which needs it in scratch

// ---- choice ----

constexpr const ForwardAlgorithm* kForward[] = {&winograd_forward, &depthwise_forward, &few_channels_forward,
                                                &direct_forward, &reference_forward};
constexpr const InputGradientAlgorithm* kInputGradient[] = {&winograd_input_gradient, &depthwise_input_gradient,
                                                            &few_channels_input_gradient, &direct_input_gradient,
                                                            &reference_input_gradient};
constexpr const WeightGradientAlgorithm* kWeightGradient[] = {&winograd_weight_gradient, &depthwise_weight_gradient,
                                                              &few_channels_weight_gradient, &direct_weight_gradient,
                                                              &reference_weight_gradient};

// The first that fits. Winograd is first in every list; the reference is last, which always fits.
template <class Algorithm, size_t n>
const Algorithm* first_that_fits(const Algorithm* const (&list)[n], const Problem& problem, bool winograd) {
  size_t i = winograd ? 0 : 1;
  while (i + 1 < n && !list[i]->fits(problem)) ++i;
  return list[i];
}

std::atomic<int> winograd_setting{-1};  // -1: not asked for yet

bool library_uses_winograd() {
  int setting = winograd_setting.load(std::memory_order_relaxed);
  if (setting < 0) [[unlikely]] {
    const char* text = std::getenv("OPENBNNS_WINOGRAD");
    setting = text && std::strcmp(text, "0") == 0 ? 0 : 1;
    int expected = -1;
    if (!winograd_setting.compare_exchange_strong(expected, setting, std::memory_order_relaxed)) setting = expected;
  }
  return setting != 0;
}

// ---- geometry ----

size_t or_one(size_t n) { return n ? n : 1; }

struct Padding {
  size_t left, right, up, down;
};

Padding padding_of(const BNNSLayerParametersConvolution& p) {
  if (p.x_padding != 0 || p.y_padding != 0) return {p.x_padding, p.x_padding, p.y_padding, p.y_padding};
  return {p.pad[0], p.pad[1], p.pad[2], p.pad[3]};
}

// Most outputs of an axis: in + before + after >= stride·(out - 1) + dilation·(kernel - 1) + 1. 0: the kernel is too
// large. False when the padded input cannot be addressed.
bool most_outputs(size_t in, size_t kernel, size_t stride, size_t dilation, size_t before, size_t after, size_t* most) {
  size_t padded, reach;
  if (__builtin_add_overflow(in, before, &padded) || __builtin_add_overflow(padded, after, &padded) ||
      padded > size_t{1} << 62)
    return false;
  const bool fits = !__builtin_mul_overflow(kernel - 1, dilation, &reach) && reach < padded;
  *most = fits ? (padded - 1 - reach) / stride + 1 : 0;
  return true;
}

Axis make_axis(size_t in, size_t out, size_t kernel, size_t stride, size_t dilation, size_t before) {
  Axis axis;
  axis.in = static_cast<int64_t>(in);
  axis.out = static_cast<int64_t>(out);
  axis.kernel = static_cast<int64_t>(kernel);
  axis.stride = out == 1 ? 1 : static_cast<int64_t>(stride);      // one output never steps
  axis.dilation = kernel == 1 ? 1 : static_cast<int64_t>(dilation);  // nor does one tap
  axis.before = static_cast<int64_t>(before);
  return axis;
}

// ---- checks ----

bool is_image_type(BNNSDataType type) {
  return is_float(type) || type == BNNSDataTypeInt8 || type == BNNSDataTypeUInt8 || type == BNNSDataTypeInt16 ||
         type == BNNSDataTypeUInt16;
}

bool is_byte(BNNSDataType type) { return type == BNNSDataTypeInt8 || type == BNNSDataTypeUInt8; }

int check_image(const View& view, const char* argument) {
  if (view.layout != BNNSDataLayoutImageCHW)
    return fail("%s: expected layout ImageCHW; got %s", argument, name_of(view.layout));
  if (!is_image_type(view.type))
    return fail("%s: expected float32, float16, bfloat16 or integers of 8 or 16 bits; got %s", argument,
                name_of(view.type));
  if (view.count > kMostValues)
    return fail("%s: expected at most 2^58 values; got %zu", argument, view.count);
  return 0;
}

}  // namespace

int check_per_channel(const View& view, size_t channels, const char* argument, size_t* stride) {
  if (view.count == channels && view.layout != BNNSDataLayoutConvolutionWeightsOIHW_Pack32 &&
      view.layout != BNNSDataLayoutFullyConnectedSparse) {
    for (size_t k = 0; k < view.rank; ++k) {
      if (view.extent[k] != channels) continue;
      *stride = view.stride[k];
      return 0;
    }
  }
  ShapeText got;
  return fail("%s: expected %zu values, one per output channel; got %s", argument, channels, shape_text(view, &got));
}

Choice choose(const Problem& problem, bool winograd) {
  return {first_that_fits(kForward, problem, winograd), first_that_fits(kInputGradient, problem, winograd),
          first_that_fits(kWeightGradient, problem, winograd)};
}

// ---- creation ----

Convolution::Convolution(const Options& options, bool transposed)
    : Filter(transposed ? kTransposedKind : kKind, options), transposed_(transposed) {}

Convolution::~Convolution() { options().release(copies_); }

// A transposed layer runs the input gradient of its problem forward.
void Convolution::describe(Description* description) const {
  const Choice& of = choice();
  description->forward = is_integer_ ? "integer" : transposed_ ? of.input_gradient->name : of.forward->name;
  description->input_gradient = transposed_ ? of.forward->name : of.input_gradient->name;
  description->weight_gradient = of.weight_gradient->name;
  if (!is_float(input_.type) || !is_float(output_.type) || !has_float_weights())
    description->input_gradient = description->weight_gradient = "none";
  description->inputs[0] = &input_;
  description->output = &output_;
}

int Convolution::prepare(const BNNSLayerParametersConvolution& p) {
  if (read_view(p.i_desc, Access::read, "input", &input_) != 0 || check_image(input_, "input") != 0 ||
      read_view(p.o_desc, Access::write, "output", &output_) != 0 || check_image(output_, "output") != 0)
    return -1;
  if (prepare_weights(p.w_desc, or_one(p.groups)) != 0 || check_types() != 0 || prepare_geometry(p) != 0) return -1;
  if (prepare_bias(p.bias) != 0) return -1;
  if (activation::Fused::read(p.activation, "activation", &activation_) != 0) return -1;
  needs_rows_ = p.activation.function == BNNSActivationFunctionSoftmax ||
                p.activation.function == BNNSActivationFunctionLogSoftmax;
  if (needs_rows_ && output_.extent[0] > kLongestRow)
    return fail("activation: expected rows of at most %zu values for a softmax; got %zu", kLongestRow,
                output_.extent[0]);
  if (needs_rows_ && is_integer_)
    return fail("activation: expected an element-wise function for integer input and weights; got a softmax");
  for (bool winograd : {false, true}) choices_[winograd] = choose(problem_, winograd);
  return copy_parameters();
}

int Convolution::prepare_weights(const BNNSNDArrayDescriptor& descriptor, size_t groups) {
  size_t unused;
  order_ = {transposed_, groups};
  if (read_weights(descriptor, Access::read, "weights", order_, &weights_) != 0 ||
      read_batch(weights_.memory, weights_.memory.data, 1, 0, Access::read, "weights", &unused) != 0)
    return -1;
  const WeightArray& w = weights_;
  const size_t in = input_.extent[2], out = output_.extent[2];
  if (in % groups != 0 || out % groups != 0)
    return fail("groups: expected a divisor of %zu input and %zu output channels; got %zu", in, out, groups);
  if (groups > 1 && w.memory.layout != BNNSDataLayoutConvolutionWeightsOIHW &&
      w.memory.layout != BNNSDataLayout4DFirstMajor)
    return fail("weights: expected layout ConvolutionWeightsOIHW with %zu groups; got %s", groups,
                name_of(w.memory.layout));
  if (w.in != in / groups || w.out != out)
    return fail("weights: expected %zu output and %zu input channels for %zu, %zu and %zu groups; got %zu and %zu", out,
                in / groups, out, in, groups, w.out, w.in);
  if (w.memory.count > kMostValues) return fail("weights: expected at most 2^58 values; got %zu", w.memory.count);
  return 0;
}

int Convolution::check_types() const {
  const BNNSDataType type = weights_.memory.type;
  if (type == BNNSDataTypeBoolean || bits_of(type) == 64)
    return fail("weights: expected floating point, integers of at most 32 bits or indexed values; got %s",
                name_of(type));
  if (transposed_ && (!is_float(input_.type) || !is_float(output_.type) || !is_float(type)))
    return fail("input: expected float32, float16 or bfloat16 everywhere for a transposed convolution; got %s input, "
                "%s weights and %s output",
                name_of(input_.type), name_of(type), name_of(output_.type));
  return 0;
}

int Convolution::prepare_geometry(const BNNSLayerParametersConvolution& p) {
  const Padding pad = padding_of(p);
  const size_t stride_x = or_one(p.x_stride), stride_y = or_one(p.y_stride);
  const size_t dilation_x = or_one(p.x_dilation_stride), dilation_y = or_one(p.y_dilation_stride);
  const View& large = transposed_ ? output_ : input_;
  const View& small = transposed_ ? input_ : output_;
  const char* large_word = transposed_ ? "output" : "input";
  size_t most_x, most_y;
  if (!most_outputs(large.extent[0], weights_.kw, stride_x, dilation_x, pad.left, pad.right, &most_x) ||
      !most_outputs(large.extent[1], weights_.kh, stride_y, dilation_y, pad.up, pad.down, &most_y))
    return fail("padding: expected a padded image that can be addressed; got left %zu, right %zu, up %zu, down %zu",
                pad.left, pad.right, pad.up, pad.down);
  if (most_x == 0 || most_y == 0)
    return fail("weights: expected a kernel that fits into the padded %s (%zu, %zu); got (%zu, %zu) with dilation "
                "(%zu, %zu)",
                large_word, large.extent[1] + pad.up + pad.down, large.extent[0] + pad.left + pad.right, weights_.kh,
                weights_.kw, dilation_y, dilation_x);
  if (small.extent[0] > most_x || small.extent[1] > most_y) {
    ShapeText of_large, of_small;
    return fail("%s: expected at most %zu rows and %zu columns for %s %s, kernel (%zu, %zu), stride (%zu, %zu), "
                "dilation (%zu, %zu), padding (left %zu, right %zu, up %zu, down %zu); got %s",
                transposed_ ? "input" : "output", most_y, most_x, large_word, shape_text(large, &of_large), weights_.kh,
                weights_.kw, stride_y, stride_x, dilation_y, dilation_x, pad.left, pad.right, pad.up, pad.down,
                shape_text(small, &of_small));
  }
  problem_.batch = 1;
  problem_.in_channels = large.extent[2];
  problem_.out_channels = small.extent[2];
  problem_.groups = order_.groups;
  problem_.x = make_axis(large.extent[0], small.extent[0], weights_.kw, stride_x, dilation_x, pad.left);
  problem_.y = make_axis(large.extent[1], small.extent[1], weights_.kh, stride_y, dilation_y, pad.up);
  if (__builtin_mul_overflow(weights_.count(), small.extent[0] * small.extent[1], &products_)) products_ = SIZE_MAX;
  is_integer_ = is_byte(input_.type) && is_byte(weights_.memory.type);
  return 0;
}

int Convolution::prepare_bias(const BNNSNDArrayDescriptor& descriptor) {
  has_bias_ = descriptor.data != nullptr;
  if (!has_bias_) return 0;
  size_t unused;
  if (read_view(descriptor, Access::read, "bias", &bias_) != 0 ||
      check_per_channel(bias_, output_.extent[2], "bias", &bias_stride_) != 0 ||
      read_batch(bias_, bias_.data, 1, 0, Access::read, "bias", &unused) != 0)
    return -1;
  if (bias_.type == BNNSDataTypeBoolean || bits_of(bias_.type) == 64)
    return fail("bias: expected floating point, integers of at most 32 bits or indexed values; got %s",
                name_of(bias_.type));
  return 0;
}

// Copies what the filter is to own, or remembers which of the caller's arrays can be used as they lie.
int Convolution::copy_parameters() {
  const size_t channels = output_.extent[2];
  if (options().use_client_ptr) {
    if (!is_integer_ && is_canonical(weights_, order_)) w_ = static_cast<const float*>(weights_.memory.data);
    if (has_bias_ && bias_.type == BNNSDataTypeFloat32 && (bias_stride_ == 1 || channels == 1))
      b_ = static_cast<const float*>(bias_.data);
    return 0;
  }
  const size_t room = (weights_.count() + 15) / 16 * 16;
  copies_ = options().get((room + (has_bias_ ? channels : 0)) * sizeof(float));
  if (!copies_) return -1;
  float* copies = static_cast<float*>(copies_);
  expand_weights(weights_, order_, is_integer_, threads_for(options().threads), copies);
  w_ = copies;
  if (has_bias_) {
    load_channels(bias_, bias_stride_, channels, copies + room);
    b_ = copies + room;
  }
  return 0;
}

// ---- what calls share ----

bool Convolution::uses_winograd() const {
  const int setting = winograd_.load(std::memory_order_relaxed);
  return setting < 0 ? library_uses_winograd() : setting != 0;
}

int Convolution::set_winograd(int on) {
  if (on < -1 || on > 1) return fail("on: expected -1 (follow the library), 0 or 1; got %d", on);
  winograd_.store(on, std::memory_order_relaxed);
  return 0;
}

Problem Convolution::problem_of(size_t batch) const {
  Problem problem = problem_;
  problem.batch = batch;
  return problem;
}

Run Convolution::make_run(size_t batch) const {
  const double work = kMultiplyAdd * static_cast<double>(products_) * batch;
  return {choice(), problem_, threads_worth(threads_for(options().threads), work), nullptr};
}

int Convolution::check_size(size_t batch) const {
  if (batch <= kMostValues / std::max(input_.count, output_.count)) return 0;
  return fail("batch_size: expected at most 2^58 values in all samples together; got %zu samples", batch);
}

// Samples done at a time when each needs that many float32 in work.
size_t Convolution::chunk_of(size_t batch, size_t floats_per_sample) const {
  if (floats_per_sample == 0) return batch;
  const size_t larger = std::max(input_.count * bytes_of(input_.type), output_.count * bytes_of(output_.type));
  return std::clamp<size_t>(std::min(batch * larger, kChunkBytes) / (floats_per_sample * sizeof(float)), 1, batch);
}

void Convolution::to_output(const Run& run, const Planes& x, const float* w, const Planes& y, const float* bias) const {
  if (transposed_) {
    run.choice.input_gradient->run(run.problem, {x, w, y, false, bias, element_wise()}, run.threads, run.work);
  } else {
    run.choice.forward->run(run.problem, {x, w, y, bias, element_wise()}, run.threads, run.work);
  }
}

// The forward pass of a problem cannot add: a transposed layer that accumulates is given a copy.
void Convolution::to_input(const Run& run, const Planes& dz, const float* w, const Planes& dx, bool accumulate) const {
  if (transposed_) {
    run.choice.forward->run(run.problem, {dz, w, dx, nullptr, nullptr}, run.threads, run.work);
  } else {
    run.choice.input_gradient->run(run.problem, {dz, w, dx, accumulate, nullptr, nullptr}, run.threads, run.work);
  }
}

void Convolution::to_weights(const Run& run, const Planes& x, const Planes& dz, float* dw, bool accumulate) const {
  const WeightGradient g = {transposed_ ? dz : x, transposed_ ? x : dz, dw, accumulate};
  run.choice.weight_gradient->run(run.problem, g, run.threads, run.work);
}

size_t Convolution::bytes_to_output(const Choice& choice, size_t batch) const {
  const Problem problem = problem_of(batch);
  return transposed_ ? choice.input_gradient->work_bytes(problem) : choice.forward->work_bytes(problem);
}

size_t Convolution::bytes_to_input(const Choice& choice, size_t batch) const {
  const Problem problem = problem_of(batch);
  return transposed_ ? choice.forward->work_bytes(problem) : choice.input_gradient->work_bytes(problem);
}

size_t Convolution::bytes_to_weights(const Choice& choice, size_t batch) const {
  return choice.weight_gradient->work_bytes(problem_of(batch));
}

// ---- forward ----

struct Convolution::ForwardWork {
  size_t chunk;
  float* w;     // each NULL where it is not needed
  float* bias;
  float* x;
  float* y;
  std::byte* algorithm;
};

Convolution::ForwardWork Convolution::lay_out_forward(Workspace* workspace, const Run& run, size_t batch,
                                                      const Images& x, const Images& y) const {
  ForwardWork work = {};
  if (!w_) work.w = workspace->take<float>(weights_.count());
  if (has_bias_ && !b_) work.bias = workspace->take<float>(output_.extent[2]);
  work.chunk = batch;
  if (is_integer_) return work;
  const size_t x_floats = x.is_direct() ? 0 : input_.count, y_floats = y.is_direct() ? 0 : output_.count;
  work.chunk = chunk_of(batch, x_floats + y_floats);
  if (x_floats) work.x = workspace->take<float>(work.chunk, x_floats);
  if (y_floats) work.y = workspace->take<float>(work.chunk, y_floats);
  size_t bytes = bytes_to_output(run.choice, work.chunk);
  if (batch % work.chunk) bytes = std::max(bytes, bytes_to_output(run.choice, batch % work.chunk));
  work.algorithm = workspace->take(bytes);
  return work;
}

int Convolution::check_input(size_t batch, const void* x, size_t requested, Images* images) const {
  *images = {&input_, static_cast<std::byte*>(const_cast<void*>(x)), 0};
  if (read_batch(input_, x, batch, requested, Access::read, "input", &images->step) != 0) return -1;
  return check_size(batch);
}

int Convolution::check_own_apart(const Place& written) const {
  if (!options().use_client_ptr) return 0;
  if (check_apart(written, {"weights", &weights_.memory, weights_.memory.data, 0, 1}) != 0) return -1;
  return has_bias_ ? check_apart(written, {"bias", &bias_, bias_.data, 0, 1}) : 0;
}

size_t Convolution::forward_bytes(const Run& run, size_t batch, const Images& x, const Images& y) const {
  Workspace counted;
  lay_out_forward(&counted, run, batch, x, y);
  return counted.used();
}

int Convolution::apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) {
  if (batch == 0) return 0;
  Images from, to = {&output_, static_cast<std::byte*>(y), 0};
  if (check_input(batch, x, x_stride, &from) != 0 ||
      read_batch(output_, y, batch, y_stride, Access::write, "output", &to.step) != 0)
    return -1;
  const Place out = {"output", &output_, y, to.step, batch};
  if (check_apart(out, {"input", &input_, x, from.step, batch}) != 0 || check_own_apart(out) != 0) return -1;
  const Run run = make_run(batch);
  std::byte* block;
  if (find_workspace(forward_bytes(run, batch, from, to), &block) != 0) return -1;
  run_forward(run, batch, from, to, block);
  return 0;
}

void Convolution::run_forward(Run run, size_t batch, const Images& x, const Images& y, std::byte* block) const {
  Workspace workspace(block);
  const ForwardWork work = lay_out_forward(&workspace, run, batch, x, y);
  if (work.w) expand_weights(weights_, order_, is_integer_, run.threads, work.w);
  if (work.bias) load_channels(bias_, bias_stride_, output_.extent[2], work.bias);
  const float* w = w_ ? w_ : work.w;
  const float* bias = b_ ? b_ : work.bias;
  run.work = work.algorithm;
  if (is_integer_) {
    integer_forward(problem_of(batch), {x, y, w, weights_.memory.scale, weights_.memory.bias, bias, element_wise()},
                    run.threads);
    return;
  }
  for (size_t first = 0; first < batch; first += work.chunk) {
    const size_t samples = std::min(work.chunk, batch - first);
    run.problem.batch = samples;
    if (work.x) load_images(x, first, samples, run.threads, work.x);
    const Planes in = work.x ? dense_planes(input_, work.x) : x.planes(first);
    const Planes result = work.y ? dense_planes(output_, work.y) : y.planes(first);
    to_output(run, in, w, result, bias);
    if (needs_rows_) activate_rows(activation_, output_, result, samples, run.threads);
    if (work.y) store_images(work.y, y, first, samples, false, run.threads);
  }
}

void Convolution::read_parameters(size_t threads, float* w, float* bias) const {
  if (w_) {
    std::copy_n(w_, weights_.count(), w);
  } else {
    expand_weights(weights_, order_, false, threads, w);
  }
  const size_t channels = output_.extent[2];
  if (!has_bias_) {
    std::fill_n(bias, channels, 0.0f);
  } else if (b_) {
    std::copy_n(b_, channels, bias);
  } else {
    load_channels(bias_, bias_stride_, channels, bias);
  }
}

size_t Convolution::work_bytes(size_t batch) const {
  if (batch == 0) return 0;
  if (check_size(batch) != 0 || check_batch_size(input_, batch) != 0 || check_batch_size(output_, batch) != 0)
    return SIZE_MAX;
  const Run run = make_run(batch);
  std::byte some;  // stands for arrays that are there; only asked whether it is NULL
  const Images x = {&input_, &some, input_.packed_batch}, y = {&output_, &some, output_.packed_batch};
  size_t bytes = forward_bytes(run, batch, x, y);
  if (is_float(input_.type) && is_float(output_.type) && is_float(weights_.memory.type)) {
    Gradients g;
    g.batch = batch;
    g.x = g.dx = x;
    g.y = g.dy = y;
    g.dw = weights_;
    g.db.data = &some;
    bytes = std::max(bytes, backward_bytes(run, g));
  }
  if (bytes == SIZE_MAX) fail("batch: expected a size whose workspace can be addressed; it overflows");
  return bytes;
}

namespace {

BNNSFilter create(const BNNSLayerParametersConvolution* parameters, const BNNSFilterParameters* filter_params,
                  bool transposed) {
  if (!parameters) {
    fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  auto* filter = options.make<Convolution>(options, transposed);
  if (!filter) return nullptr;
  return publish(filter, filter->prepare(*parameters));
}

// An image stack of the first interface as an array.
int read_stack(const BNNSImageStackDescriptor& stack, size_t channels, const char* argument,
               BNNSNDArrayDescriptor* descriptor) {
  *descriptor = describe(stack);
  View view;
  if (read_view(*descriptor, Access::write, argument, &view) != 0 || check_image(view, argument) != 0) return -1;
  if (stack.channels != channels)
    return fail("%s: expected %zu channels, as layer_params says; got %zu", argument, channels, stack.channels);
  return 0;
}

// The first interface wants windows to end where the padded image ends.
int check_exact(size_t in, size_t out, size_t kernel, size_t stride, size_t padding, const char* axis) {
  size_t padded, windows;
  const bool exact = !__builtin_mul_overflow(padding, size_t{2}, &padded) &&
                     !__builtin_add_overflow(padded, in, &padded) &&
                     !__builtin_mul_overflow(or_one(stride), out - 1, &windows) &&
                     !__builtin_add_overflow(windows, kernel, &windows) && padded == windows;
  if (exact) return 0;
  return fail("output: expected a %s with stride * (%s - 1) + kernel = input + 2 * padding; got %zu for input %zu, "
              "kernel %zu, stride %zu, padding %zu",
              axis, axis, out, in, kernel, or_one(stride), padding);
}

}  // namespace
}  // namespace obn::convolution

// ---- the C interface ----

using namespace obn;
using namespace obn::convolution;

extern "C" {

BNNSFilter BNNSFilterCreateLayerConvolution(const BNNSLayerParametersConvolution* layer_params,
                                            const BNNSFilterParameters* filter_params) {
  return create(layer_params, filter_params, false);
}

BNNSFilter BNNSFilterCreateLayerTransposedConvolution(const BNNSLayerParametersConvolution* layer_params,
                                                      const BNNSFilterParameters* filter_params) {
  return create(layer_params, filter_params, true);
}

BNNSFilter BNNSFilterCreateConvolutionLayer(const BNNSImageStackDescriptor* in_desc,
                                            const BNNSImageStackDescriptor* out_desc,
                                            const BNNSConvolutionLayerParameters* layer_params,
                                            const BNNSFilterParameters* filter_params) {
  if (!in_desc || !out_desc || !layer_params) {
    fail("layer_params: expected input, output and parameters; got NULL");
    return nullptr;
  }
  const BNNSConvolutionLayerParameters& p = *layer_params;
  BNNSLayerParametersConvolution now = {};
  if (read_stack(*in_desc, p.in_channels, "input", &now.i_desc) != 0 ||
      read_stack(*out_desc, p.out_channels, "output", &now.o_desc) != 0 ||
      check_exact(in_desc->width, out_desc->width, p.k_width, p.x_stride, p.x_padding, "width") != 0 ||
      check_exact(in_desc->height, out_desc->height, p.k_height, p.y_stride, p.y_padding, "height") != 0)
    return nullptr;
  now.w_desc = describe(p.weights, BNNSDataLayoutConvolutionWeightsOIHW);
  const size_t sizes[] = {p.k_width, p.k_height, p.in_channels, p.out_channels};
  std::copy_n(sizes, 4, now.w_desc.size);
  now.bias = describe(p.bias, BNNSDataLayoutVector);
  now.bias.size[0] = p.out_channels;
  now.activation = p.activation;
  now.x_stride = p.x_stride;
  now.y_stride = p.y_stride;
  now.x_padding = p.x_padding;
  now.y_padding = p.y_padding;
  return create(&now, filter_params, false);
}

int obn_set_winograd(int on) {
  if (on != 0 && on != 1) return fail("on: expected 0 or 1; got %d", on);
  winograd_setting.store(on, std::memory_order_relaxed);
  return 0;
}

int obn_get_winograd(void) { return library_uses_winograd(); }
}
