// Normalization: what the desk (normalization.cpp), the computation (normalization_forward.cpp, …_backward.cpp), the
// kernels and the reference loops share.
//
// Letters: N samples, each of C channels of H·W values; μ and v are mean and population variance of one group of
// values (docs/interface/normalization.md 2), r = 1/sqrt(v + ε).
//
//   x̂ = (x - μ)·r        y = act(γ·x̂ + β)        dz = dy·act'(y)        g = γ·dz
//   dβ = Σ dz   dγ = Σ dz·x̂   dx = r·(g - mean(g) - x̂·mean(g·x̂))
//
// A sample is R runs of P values, in memory order. Two ways of working:
//   channels   γ and β are one number per run; a group is one run, several runs, or the same run of all samples
//   rows       γ and β are P numbers along the run; a group is one run
// Batch norm of vectors (P = 1) takes many channels at a time, one per lane: columns.
//
// Between a training call and its gradients the layer keeps x, not x̂, with mean and r of each group: a fused layer has
// x anyway and needs no copy, and x̂ made again by the same operations has the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation/activation.h"
#include "activation/activation_walk.h"
#include "base/targets.h"
#include "base/filter.h"
#include "base/kept_block.h"
#include "base/view.h"
#include "openbnns/bnns/normalization.h"

namespace obn::normalization {

// Variance that goes into the running one: N/(N-1) times the population variance, as PyTorch has it (the alternative:
// the population variance itself, as TensorFlow has it). The direction is TensorFlow's: moving = momentum·moving +
// (1 - momentum)·current.
inline constexpr bool kRunningVarianceIsUnbiased = true;

// ---- kernels ----

// Packed float32: run i starts at data + i·step.
struct Runs {
  float* data = nullptr;
  size_t step = 0;
};

// How many values, their mean, and the sum of squares of their distances from it.
struct Moments {
  double count = 0.0, mean = 0.0, squares = 0.0;
};
[[gnu::always_inline]] inline void add(const Moments& part, Moments* all) {
  if (all->count == 0.0) {
    *all = part;
    return;
  }
  const double n = all->count + part.count, apart = part.mean - all->mean;
  all->mean += apart * (part.count / n);
  all->squares += part.squares + apart * apart * (all->count * part.count / n);
  all->count = n;
}

// The same of one run of one sample: the pieces that statistics of channels are put together from, in memory order.
inline constexpr size_t kSumBlock = 4096;  // values that are summed in float before they go into a double

struct RunMoments {
  double mean, squares;
};

// x̂ = (x - mean)·r + rest: mean is rounded to float, and rest makes up for it.
struct Standard {
  float mean = 0.0f, r = 1.0f, rest = 0.0f;
};
[[gnu::always_inline]] inline Standard standard_of(double mean, double variance, float epsilon) {
  const double r = 1.0 / __builtin_sqrt(variance + static_cast<double>(epsilon));
  const float rounded = static_cast<float>(mean);
  return {rounded, static_cast<float>(r), static_cast<float>((static_cast<double>(rounded) - mean) * r)};
}

struct Sums {
  double dz = 0.0, dz_xhat = 0.0;
};

// Of two NaN a sum takes the sign and payload of one, and which one is the compiler's choice in every copy of a loop. So
// that no cut of the work shows, sums that are handed out become this one, and a group that is NaN is written as such.
inline constexpr float kNaN = __builtin_nanf("");
[[gnu::always_inline]] inline bool is_nan(float v) { return v != v; }
[[gnu::always_inline]] inline float settled(float v) { return v == v ? v : kNaN; }
[[gnu::always_inline]] inline double settled(double v) { return v == v ? v : static_cast<double>(kNaN); }
[[gnu::always_inline]] inline Sums settled(const Sums& s) { return {settled(s.dz), settled(s.dz_xhat)}; }
[[gnu::always_inline]] inline void set_nan(const Runs& runs, size_t count, size_t length) {
  for (size_t k = 0; k < count; ++k)
    for (size_t i = 0; i < length; ++i) runs.data[k * runs.step + i] = kNaN;
}

// Up to this length the moments of many runs are had at a time, not those of the next run on the way.
inline constexpr size_t kShortRun = 128;

// y = max(low, γ·x̂ + β) on `count` runs of `length` values. low is 0 for ReLU, else -infinity.
struct Forward {
  size_t count = 0, length = 0;
  Runs x, y, copy;             // copy of x; data NULL: none
  Standard standard;
  const float *gamma = nullptr, *beta = nullptr;  // one value each
  float low = 0.0f;
  bool stream_y = false, stream_copy = false;     // past the caches, where alignment allows it
  Runs next;                              // of the same shape: their moments are gathered on the way
  RunMoments* next_moments = nullptr;     // (count); NULL: not wanted
};

// The same, with statistics, on up to kRowsTogether rows.
inline constexpr size_t kRowsTogether = 16;
struct RowForward {
  size_t rows = 0, length = 0;
  const float* x[kRowsTogether] = {};
  float* y[kRowsTogether] = {};
  float* copy[kRowsTogether] = {};  // or NULL
  const float *gamma = nullptr, *beta = nullptr;  // (length), NULL both for 1 and 0
  float epsilon = 0.0f, low = 0.0f;
  bool stream_y = false, stream_copy = false;
  size_t ahead = 0;                  // from a row to the next; 0: elsewhere
  Standard standard[kRowsTogether];  // written
};

// What dz is made of.
enum class Mask {
  none,    // dz = dy
  output,  // dz = y > 0 ? dy : 0
  input,   // dz = γ·x̂ + β > 0 ? dy : 0, with the γ and β of the forward call: the same, as y = max(0, γ·x̂ + β)
};

// dx = r·(γ·dz - mean_g - x̂·mean_g_xhat) on `count` runs; x̂ from x by `standard`, with the arithmetic of Forward.
struct Gradient {
  size_t count = 0, length = 0;
  Runs dy, y, x, dx;
  Standard standard;
  Mask mask = Mask::none;
  float mask_gamma = 1.0f, mask_beta = 0.0f;
  const float* gamma = nullptr;  // one value
  float mean_g = 0.0f, mean_g_xhat = 0.0f;
  bool accumulate = false, stream = false;
  const Gradient* next = nullptr;  // of the same shape: only with `stream`, its sums are gathered on the way
  Sums* next_sums = nullptr;
};

// Gradients of up to kRowsTogether rows with the same γ.
struct RowGradient {
  size_t rows = 0, length = 0;
  const float* dy[kRowsTogether] = {};
  const float* y[kRowsTogether] = {};  // or NULL: dz = dy
  const float* x[kRowsTogether] = {};
  float* dx[kRowsTogether] = {};
  Standard standard[kRowsTogether];
  const float* gamma = nullptr;        // (length), NULL for 1
  float* dgamma = nullptr;             // (length) += Σ dz·x̂; NULL: not wanted
  float* dbeta = nullptr;              // (length) += Σ dz, wanted or not with dgamma
  float mean_g[kRowsTogether] = {}, mean_g_xhat[kRowsTogether] = {};  // what sums give and input gradients take
  bool accumulate = false, stream = false;
  size_t ahead = 0;                    // from a row to the next; 0: elsewhere
};

// `width` channels of `rows` samples, one value each; what belongs to a channel is an array (width).
inline constexpr size_t kColumns = 64;
struct Columns {
  size_t rows = 0, width = 0;
  Runs x, y, copy;
  const float *mean = nullptr, *r = nullptr, *rest = nullptr, *gamma = nullptr, *beta = nullptr;
  float low = 0.0f;
};
struct ColumnGradient {
  size_t rows = 0, width = 0;
  Runs dy, y, x, dx;
  const float *mean = nullptr, *r = nullptr, *rest = nullptr;
  Mask mask = Mask::none;
  const float *mask_gamma = nullptr, *mask_beta = nullptr;
  const float *gamma = nullptr, *mean_g = nullptr, *mean_g_xhat = nullptr;
  bool accumulate = false;
};

// One target's loops.
struct Kernels {
  void (*run_moments)(const Runs& x, size_t count, size_t length, RunMoments* moments);  // (count)
  void (*channel_forward)(const Forward& job);
  Sums (*channel_sums)(const Gradient& job);
  void (*channel_gradient)(const Gradient& job);  // last run first: it was read last
  void (*row_forward)(RowForward* job);
  void (*row_sums)(RowGradient* job);
  void (*row_backward)(RowGradient* job);  // and the input gradient
  void (*column_moments)(const Runs& x, size_t rows, size_t width, double* mean, double* variance);
  void (*standards)(size_t n, const double* mean, const double* variance, float epsilon, float* rounded, float* r,
                    float* rest);  // standard_of, n times
  void (*column_forward)(const Columns& job);
  void (*column_sums)(const ColumnGradient& job, Sums* sums);
  void (*column_gradient)(const ColumnGradient& job);
  void (*end_streams)();  // after the last call that streams, on its thread: others may read what was written
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// ---- the computation ----

enum class Kind { batch, instance, layer, group };

// γ, β or a running statistic as the layer holds it: `count` values, in memory order.
struct Parameter {
  const float* values = nullptr;  // packed float32, or NULL: absent, or to be read from `walk` at every call
  bool is_read_each_call = false;
  activation::Walk walk;
  size_t count = 0;
};

// The ways of a direction: lists in normalization_forward.cpp and …_backward.cpp.
struct ForwardWay;
struct BackwardWay;

// All that follows from the parameter block. Shares no memory with a call.
struct Plan {
  const Kernels* kernels;
  const ForwardWay* forward_way = nullptr;
  const BackwardWay* backward_way = nullptr;
  Kind kind;
  size_t c, h, w;
  size_t runs, length;       // R, P
  size_t group_runs;         // channels: runs of one sample that share statistics
  bool is_rows;
  float epsilon, momentum;
  size_t threads;
  Parameter gamma, beta;     // channels: (C); rows: (P) or (R·P)
  float* moving_mean = nullptr;      // (C), `…_step` apart; NULL: none
  float* moving_variance = nullptr;
  size_t moving_mean_step = 1, moving_variance_step = 1;
  activation::Fused activation;
  bool is_relu = false;

  bool spans_batch() const { return kind == Kind::batch; }
  bool is_columns() const { return spans_batch() && length == 1; }
  size_t sample() const { return runs * length; }
  size_t groups(size_t batch) const { return spans_batch() ? runs : batch * (runs / group_runs); }
  size_t group_values(size_t batch) const { return spans_batch() ? batch * length : group_runs * length; }
};

// One tensor of a call: a sample's values in memory order, and the distance from sample to sample.
struct Tensor {
  activation::Walk walk;
  size_t step = 0;

  Tensor() { walk.data = nullptr; }
  Tensor(const View& view, const void* data, size_t batch_step)
      : walk(activation::walk_of(view, data, 1, 0)), step(batch_step) {}
  bool is_given() const { return walk.data; }
};

// What a training call keeps for the gradients: its input, and how x̂ follows from it.
struct State {
  explicit State(const Options& options) : block(options) {}

  KeptBlock block;
  size_t batch = 0;          // 0: nothing kept
  float* copy = nullptr;     // (N, R, P): room for a copy of the input; NULL where the caller keeps it
  const float* x = nullptr;  // (N, R, P): the copy, or what the caller keeps
  size_t x_step = 0;         // from sample to sample
  float *mean = nullptr, *r = nullptr, *rest = nullptr;  // (groups): Standard
  float *gamma = nullptr, *beta = nullptr;               // (C) as they were, where gradients need them (Mask::input)

  // Bytes for a batch; SIZE_MAX: more than can be addressed.
  static size_t bytes_for(const Plan& plan, size_t batch, bool copies);
  // Room for a batch, kept or grown; -1 with a sentence, and then what was there is still there.
  int reserve(const Plan& plan, size_t batch, bool copies = true);
};

// A gradient of γ or β, with as many values as the parameter (rows: P or R·P).
struct ParameterGradient {
  bool is_wanted = false;
  bool accumulate = false;
  activation::Walk walk;
  size_t count = 0;
};

// The first way of the lists that fits the shapes of a plan.
const ForwardWay* choose_forward(const Plan& plan);
const BackwardWay* choose_backward(const Plan& plan);

// What the caller of forward and backward asks workspace() for; SIZE_MAX: more than can be addressed.
size_t forward_bytes(const Plan& plan, size_t batch, const Tensor& x, const Tensor& y, bool training);
size_t backward_bytes(const Plan& plan, size_t batch, const Tensor& dy, const Tensor& y, const Tensor& dx,
                      const ParameterGradient& dbeta, const ParameterGradient& dgamma);

// A training call needs no copy of such an input: float32, samples without gaps.
inline bool can_stay(const Tensor& x) {
  return x.walk.type == BNNSDataTypeFloat32 && x.walk.rank == 1 && x.walk.stride[0] == 1;
}

// y from x, in place or apart. state is NULL for inference; for training it has been reserved: without a copy, x has
// to be one that can stay, does so until the gradients have been had, and is not y. Everything was checked.
void forward(const Plan& plan, State* state, size_t batch, const Tensor& x, const Tensor& y, std::byte* work);

// The running statistics after a training call whose groups had these means and population variances.
void update_moving(const Plan& plan, size_t batch, const double* means, const double* variances);

// Takes the input gradient of a channel of batch norm, u (N, P), on the thread that made it. u lies in the second half
// of its scratch; the first half is free.
struct ChannelSink {
  void (*take)(void* context, size_t channel, float* u);
  void* context;
};
bool takes_sink(const Plan& plan, size_t batch, const Tensor& dy, const Tensor& y);

// Gradients of the last training call. y is not given where the activation is the identity; dx may be absent, or in
// the place of dy. A sink takes the place of dx where it can (takes_sink). others_read: dx is memory that other threads
// read after every call. A thread that writes it would have to fetch it from their caches first, so several threads
// write past the caches sooner.
void backward(const Plan& plan, const State& state, const Tensor& dy, const Tensor& y, const Tensor& dx,
              bool accumulate, const ParameterGradient& dbeta, const ParameterGradient& dgamma, std::byte* work,
              const ChannelSink* sink = nullptr, bool others_read = false);

// ---- the layer ----

// Bytes from the first to behind the last.
struct Range {
  uintptr_t first, end;
};

// The arguments of a backward call, as they come, and checked.
struct BackwardArguments {
  size_t batch;
  BNNSNDArrayDescriptor* dx;  // NULL: not wanted, as are dbeta and dgamma
  size_t dx_stride;
  const void* y;
  size_t y_stride;
  const BNNSNDArrayDescriptor* dy;
  size_t dy_stride;
  BNNSNDArrayDescriptor *dbeta, *dgamma;
};
struct Gradients {
  View dy_view, dx_view, beta_view, gamma_view;
  size_t dy_stride = 0, y_stride = 0;
  Tensor dy, y, dx;  // y: not given where the activation is the identity
  bool accumulate = false;
  ParameterGradient dbeta, dgamma;

  void clear_sums() const {  // those over no samples
    clear_sum(beta_view);
    clear_sum(gamma_view);
  }
};

class Normalization final : public Filter {
 public:
  explicit Normalization(const Options& options);
  ~Normalization() override;

  int prepare(BNNSFilterType type, const BNNSLayerParametersNormalization& parameters);
  int apply_normalization(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride, bool training);
  int apply_normalization_backward(const BackwardArguments& arguments);
  void forget() override { state.batch = 0; }
  size_t work_bytes(size_t batch) const override;
  size_t kept_bytes(size_t batch) const override;
  void describe(Description* description) const override;
  int set_borrow_input(int on) override;

  // For layers that end in this one and run its plan themselves: their checks.
  const View& input() const { return x_; }
  const View& output() const { return y_; }
  int check_output(size_t batch, const void* y, size_t requested, size_t* stride) const;  // of a forward call
  int check(const BackwardArguments& arguments, Gradients* g) const;
  // The same for dβ and dγ alone, where dy and y are not of this layer's shape.
  int check_parameters(size_t batch, BNNSNDArrayDescriptor* dbeta, BNNSNDArrayDescriptor* dgamma, Gradients* g) const;
  int check_own_apart(const Place& written) const;  // from parameters and running statistics of the caller
  // Calls body(Place) for each of the running statistics, which training writes, until one says -1.
  template <class Body>
  int for_moving(const Body& body) const {
    for (size_t k = 0; k < moving_count_; ++k)
      if (body(moving_[k]) != 0) return -1;
    return 0;
  }

  Plan plan;    // tests change its kernels
  State state;

 private:
  int prepare_geometry(BNNSFilterType type, const BNNSLayerParametersNormalization& parameters);
  int prepare_parameter(const BNNSNDArrayDescriptor& descriptor, const char* argument, float absent, bool is_needed,
                        Parameter* parameter, void** block);
  int prepare_moving(const BNNSNDArrayDescriptor& descriptor, const char* argument, float** values, size_t* step);
  int check_parameters_apart(const BNNSLayerParametersNormalization& parameters) const;
  int check_count(const View& view, const char* argument) const;
  int check_own_apart(const Range& range, const char* argument) const;
  int check_output_values(const Tensor& y, size_t batch) const;
  int check_batch(size_t batch) const;
  int read_delta(const BNNSNDArrayDescriptor& descriptor, Access access, size_t batch, size_t requested,
                 const char* argument, View* view, size_t* stride) const;
  int read_parameter_delta(const BNNSNDArrayDescriptor& descriptor, const Parameter& parameter, bool is_given,
                           const char* argument, View* view, ParameterGradient* gradient) const;

  View x_, y_;
  bool has_gamma_ = false, has_beta_ = false;  // given by the caller
  void* gamma_block_ = nullptr;
  void* beta_block_ = nullptr;
  struct {
    Range range;
    const char* argument;
  } own_[4];                                   // memory of the caller that the layer reads or writes
  size_t own_count_ = 0;
  View moving_view_[2];
  Place moving_[2];                            // running statistics
  size_t moving_count_ = 0;
  bool borrows_ = false;                       // the input of training calls, where it can stay
  const void* borrowed_ = nullptr;             // by the last one, or NULL
  size_t borrowed_step_ = 0;
};

// ---- the obvious loops (normalization_ref.cpp) ----

namespace ref {

// Everything packed. x (N, C, H, W); γ, β have gamma_count and beta_count values, or are NULL. Real is double, or
// float for the plain loop that the accuracy of kernels is measured by.
template <class Real>
struct Problem {
  Kind kind;
  size_t n, c, h, w;
  size_t groups;             // group norm
  size_t axis;               // layer norm
  Real epsilon;
  const Real *gamma, *beta;
  size_t gamma_count, beta_count;
  BNNSActivation activation;

  size_t total() const { return n * c * h * w; }
  size_t group_count() const;
  size_t group_of(size_t index) const;                     // of a value
  size_t parameter_of(size_t index, size_t count) const;   // its γ or β, of `count`
};

// mean and variance (groups) are written.
template <class Real>
void forward(const Problem<Real>& p, const Real* x, Real* y, Real* xhat, Real* mean, Real* variance);
// dβ, dγ have beta_count and gamma_count values.
template <class Real>
void backward(const Problem<Real>& p, const Real* xhat, const Real* variance, const Real* y, const Real* dy, Real* dx,
              Real* dbeta, Real* dgamma);

}  // namespace ref

}  // namespace obn::normalization
