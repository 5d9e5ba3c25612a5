// The convolution layer as its desk sees it. Its members are defined in convolution.cpp (creation, forward calls) and
// convolution_backward.cpp; images become float32 in convolution_images.cpp, weights (O, C/G, kh, kw) in
// convolution_weights.cpp, and integers are summed as integers in convolution_integer.cpp. Letters as in convolution.h.
#pragma once

#include <atomic>
#include <cstddef>

#include "activation/activation.h"
#include "base/filter.h"
#include "base/types.h"
#include "base/view.h"
#include "base/workspace.h"
#include "convolution/convolution.h"
#include "convolution/convolution_kernels.h"
#include "convolution/depthwise/depthwise.h"
#include "openbnns/bnns/convolution.h"

namespace obn::convolution {

// ---- weights (convolution_weights.cpp) ----

// The caller's weights or their gradient: where W(kx, ky, i, o) of the layer lies. i counts the input channels of one
// group, o the output channels of all. Rotated layouts walk backwards; Pack32 keeps 32 output channels side by side.
struct WeightArray {
  View memory;   // everything spanned, lanes of padding included
  size_t kw, kh;
  size_t in;     // of one group
  size_t out;    // of all groups
  ptrdiff_t first;       // where W(0, 0, 0, 0) lies
  ptrdiff_t kx_step, ky_step, in_step;
  size_t block;          // output channels that lie out_step apart: 32, or those of one group
  ptrdiff_t out_step;    // within a block
  ptrdiff_t block_step;  // from one block to the next
  bool is_packed32;

  size_t count() const { return kw * kh * in * out; }
  size_t index(size_t kx, size_t ky, size_t i, size_t o) const {
    const auto at = [](size_t k) { return static_cast<ptrdiff_t>(k); };
    return static_cast<size_t>(first + at(kx) * kx_step + at(ky) * ky_step + at(i) * in_step +
                               at(o / block) * block_step + at(o % block) * out_step);
  }
};

// The problem's weight (a, b, ky, kx) is W(kx, ky, b, a) of a convolution. For a transposed one the roles of the
// channels are exchanged: it is W(kx, ky, a mod in, b + (a div in) · out/G).
struct WeightOrder {
  bool transposed;
  size_t groups;
};

// Refuses other layouts; a transposed convolution takes 4DFirstMajor too, as (in, out/G, kh, kw), which is the
// problem's own order. Does not require data. Returns 0 or -1.
int read_weights(const BNNSNDArrayDescriptor& descriptor, Access access, const char* argument, WeightOrder order,
                 WeightArray* weights);

// True when the array is (O, C/G, kh, kw) of float32 without gaps.
bool is_canonical(const WeightArray& weights, WeightOrder order);
// w (O, C/G, kh, kw) from the caller's array; `as_stored` leaves out scale and bias of integers.
void expand_weights(const WeightArray& weights, WeightOrder order, bool as_stored, size_t threads, float* w);
// The way back for a gradient of a float type: set or added. Lanes of padding become 0.
void put_weights(const WeightArray& weights, WeightOrder order, const float* dw, size_t threads);

// ---- images (convolution_images.cpp) ----

// One array of a call: a batch of images, wherever they lie.
struct Images {
  const View* view;
  std::byte* data;
  size_t step;  // values from sample to sample

  bool is_direct() const;           // float32 whose rows are runs: algorithms may work on it
  Planes planes(size_t sample) const;  // from that sample on; direct ones only
};

// The same without gaps, as it lies in work.
Planes dense_planes(const View& view, float* data);

// to (samples, C, H, W) from the samples from `first` on.
void load_images(const Images& from, size_t first, size_t samples, size_t threads, float* to);
// The way back: set or added.
void store_images(const float* from, const Images& to, size_t first, size_t samples, bool accumulate, size_t threads);
// n values of one row, from `index` on.
void store_run(const Images& to, size_t index, size_t n, const float* row);
// Softmax over rows, in place. float32 rows.
void activate_rows(const activation::Fused& activation, const View& view, const Planes& y, size_t samples,
                   size_t threads);

inline constexpr size_t kSumGroups = 16;  // partial sums of a bias gradient, each over a part of the samples

// What happens to dy before the products: dz = dy · act'(y), and its sums.
struct OutputGradient {
  Images dy;
  Images y;                             // read with an activation only
  const activation::Fused* activation;  // NULL: none
  bool needs_rows;                      // softmax family
  float* dz;                            // (samples, O, P, Q), written; NULL: dy serves as it is
  double* partial;                      // (kSumGroups, O) scratch for sums; NULL: none wanted
  double* sums;                         // (O), added to
};
void make_output_gradient(const OutputGradient& g, size_t first, size_t samples, size_t threads);
// The sum over one channel, dz (samples, values), as make_output_gradient has it.
double sum_channel(const float* dz, size_t samples, size_t values);

// True when the activation can be differentiated at every value of y.
bool accepts_output(const activation::Fused& activation, const Images& y, size_t batch, size_t threads);

// A value per channel, of any type, as float32.
void load_channels(const View& view, size_t stride, size_t channels, float* to);

// ---- integers (convolution_integer.cpp) ----

// int8 or uint8 images with int8 or uint8 weights: sums of the stored integers, exact; scales and biases afterwards.
struct IntegerForward {
  Images x;
  Images y;
  const float* w;      // (O, C/G, kh, kw), the stored integers
  float w_scale, w_bias;
  const float* bias;   // (O), may be NULL
  const activation::Fused* activation;  // element-wise; NULL: none
};
void integer_forward(const Problem& problem, const IntegerForward& f, size_t threads);

// ---- the layer ----

// The algorithms of the three passes.
struct Choice {
  const ForwardAlgorithm* forward;
  const InputGradientAlgorithm* input_gradient;
  const WeightGradientAlgorithm* weight_gradient;
};
Choice choose(const Problem& problem, bool winograd);

// One call: what runs, on which samples, with which memory.
struct Run {
  Choice choice;
  Problem problem;
  size_t threads;
  std::byte* work;
};

// The arguments of a backward call, checked. Gradients that are not wanted have data NULL.
struct Gradients {
  Gradients() = default;
  Gradients(const Gradients&) = delete;  // it points into itself

  size_t batch = 0;
  Images x = {}, y = {}, dy = {}, dx = {};  // their views are those below, or the layer's
  View dy_view, dx_view;
  WeightArray dw = {};
  View db;
  size_t db_stride = 0;

  void clear_sums() const {  // those over no samples
    clear_sum(dw.memory);
    clear_sum(db);
  }
};

// A vector with one value per channel: any layout whose only extent above 1 is that of the channels.
int check_per_channel(const View& view, size_t channels, const char* argument, size_t* stride);

class Convolution final : public Filter {
 public:
  Convolution(const Options& options, bool transposed);
  ~Convolution() override;

  int prepare(const BNNSLayerParametersConvolution& parameters);
  int apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) override;
  int apply_backward(const Backward& arguments) override;
  int set_winograd(int on) override;
  size_t work_bytes(size_t batch) const override;
  void describe(Description* description) const override;

  const Problem& problem() const { return problem_; }
  const Choice& choice() const { return choices_[uses_winograd()]; }

  // The same calls in steps, for layers that begin with this one: output and output gradient are theirs. Checks come
  // first and fail with a sentence; scratch() must be there; work has as many bytes as the step before it said.
  const View& input() const { return input_; }
  const View& output() const { return output_; }
  bool has_activation() const { return !activation_.is_identity(); }
  bool has_float_weights() const { return is_float(weights_.memory.type); }
  bool is_transposed() const { return transposed_; }
  bool uses_winograd() const;  // where it can
  int check_input(size_t batch, const void* x, size_t requested, Images* images) const;
  int check_own_apart(const Place& written) const;  // from weights and bias that stay the caller's
  Run make_run(size_t batch) const;
  size_t forward_bytes(const Run& run, size_t batch, const Images& x, const Images& y) const;
  void run_forward(Run run, size_t batch, const Images& x, const Images& y, std::byte* block) const;
  int check_gradients(const Backward& arguments, Gradients* g) const;  // all but dy and y
  size_t backward_bytes(const Run& run, const Gradients& g) const;
  void run_backward(Run run, const Gradients& g, std::byte* block) const;

  // For layers that do the sums themselves: w (O, C/G, kh, kw) and bias (O) of a convolution as they are now, zeros
  // where there is no bias; and the way back for the gradients that are wanted.
  void read_parameters(size_t threads, float* w, float* bias) const;
  void put_gradients(const Gradients& g, const float* dw, const double* db, size_t threads) const;

  // All gradients of single channels, to the bit, each alone on its thread while dz (float32 without gaps, all samples
  // of this channel) is near: where the layer is depthwise. scratch is half of scratch(); finish is last.
  bool takes_channels(const Run& run, const Gradients& g) const;
  void plan_channels(size_t batch, depthwise::Channels* channels) const { channels->plan(problem_of(batch)); }
  size_t channels_bytes(const Run& run, const Gradients& g) const;
  void take_channel(const depthwise::Channels& channels, const Run& run, const Gradients& g, size_t channel, float* dz,
                    std::byte* scratch, std::byte* work) const;
  void finish_channels(const depthwise::Channels& channels, const Run& run, const Gradients& g, std::byte* work) const;

 private:
  struct ForwardWork;   // convolution.cpp
  struct BackwardWork;  // convolution_backward.cpp
  struct ChannelsWork;

  int check_types() const;
  int prepare_weights(const BNNSNDArrayDescriptor& descriptor, size_t groups);
  int prepare_geometry(const BNNSLayerParametersConvolution& parameters);
  int prepare_bias(const BNNSNDArrayDescriptor& descriptor);
  int copy_parameters();

  Problem problem_of(size_t batch) const;
  size_t chunk_of(size_t batch, size_t floats_per_sample) const;
  int check_size(size_t batch) const;

  ForwardWork lay_out_forward(Workspace* workspace, const Run& run, size_t batch, const Images& x,
                              const Images& y) const;

  int check_output_gradient(const Backward& arguments, Gradients* g) const;
  int check_weight_gradient(const BNNSNDArrayDescriptor& descriptor, Gradients* g) const;
  int check_bias_gradient(const BNNSNDArrayDescriptor& descriptor, Gradients* g) const;
  int check_places(const Gradients& g) const;
  BackwardWork lay_out_backward(Workspace* workspace, const Run& run, const Gradients& g) const;
  ChannelsWork lay_out_channels(Workspace* workspace, const Run& run, const Gradients& g) const;
  void backward_floats(Run* run, const BackwardWork& work, const Gradients& g) const;
  void put_bias_gradient(const Gradients& g, const double* sums) const;

  // The three directions of the layer, each an algorithm of the problem.
  void to_output(const Run& run, const Planes& x, const float* w, const Planes& y, const float* bias) const;
  void to_input(const Run& run, const Planes& dz, const float* w, const Planes& dx, bool accumulate) const;
  void to_weights(const Run& run, const Planes& x, const Planes& dz, float* dw, bool accumulate) const;
  size_t bytes_to_output(const Choice& choice, size_t batch) const;
  size_t bytes_to_input(const Choice& choice, size_t batch) const;
  size_t bytes_to_weights(const Choice& choice, size_t batch) const;
  const activation::Fused* element_wise() const {
    return activation_.is_identity() || needs_rows_ ? nullptr : &activation_;
  }

  const bool transposed_;
  bool is_integer_ = false;      // both images and weights are small integers
  bool needs_rows_ = false;      // the activation is of the softmax family
  View input_, output_;
  WeightArray weights_;          // memory.data is the caller's
  WeightOrder order_;
  View bias_;
  size_t bias_stride_ = 0;
  bool has_bias_ = false;
  activation::Fused activation_;
  Problem problem_;              // of the convolution, or of the one whose input gradient the layer is; batch 1
  size_t products_ = 0;          // multiplications of one sample
  Choice choices_[2];            // without and with Winograd
  std::atomic<int> winograd_{-1};
  const float* w_ = nullptr;     // (O, C/G, kh, kw); NULL: expanded in every call
  const float* b_ = nullptr;     // (output channels); NULL: none, or converted in every call
  void* copies_ = nullptr;       // what the filter owns
};

}  // namespace obn::convolution
