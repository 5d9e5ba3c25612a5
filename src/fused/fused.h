// Fused layers: a first layer (convolution, transposed convolution, fully connected, arithmetic) whose result z goes
// straight into a normalization or a quantization. Behind a normalization may be a pooling (fused_pooling.cpp).
//
//   x → first layer → z → second layer → y        dy → second layer → u → first layer → dx
//
// The pairs see their first layer through one of the classes below, which have the same members: checks that fail with
// a sentence before anything is written, then the size of the work, then the run, which cannot fail. z and u are
// memory of the pair, samples one after the other without gaps, of the type that the descriptors between the two
// layers give.
//
// Some first layers can be run in parts, each alone on one thread, which goes on with it while it is near: single
// channels of a sample (arithmetic), or whole samples. Then z and u are float32.
#pragma once

#include <cstddef>

#include "arithmetic/arithmetic.h"
#include "base/filter.h"
#include "base/view.h"
#include "convolution/convolution_filter.h"
#include "fully_connected/fully_connected.h"
#include "normalization/normalization.h"
#include "openbnns/bnns/fused.h"
#include "pooling/pooling.h"
#include "quantization/quantization.h"

namespace obn::fused {

// The arguments of a call, as they come. Calls with a single input have arrays of one.
struct ForwardArguments {
  size_t batch, inputs;
  const void* const* x;
  const size_t* x_stride;  // NULL: packed
  void* y;
  size_t y_stride;
  bool training;
  bool is_pooled = false;  // y is that of the pooling which the pair runs too
};
struct BackwardArguments {
  size_t batch, inputs;
  const void* const* x;              // NULL, or with NULL in it, where it is not needed
  const size_t* x_stride;
  BNNSNDArrayDescriptor* const* dx;  // NULL: not wanted
  const size_t* dx_stride;
  const void* y;
  size_t y_stride;
  const BNNSNDArrayDescriptor* dy;
  size_t dy_stride;
  BNNSNDArrayDescriptor* const* parameters;  // in the order of fused.md 3; NULL: none wanted
  bool is_pooled = false;                    // as the last training call was: dy is the pooling's, and y is not read
};

inline constexpr size_t kPlaces = 4;  // arrays of one kind that a first layer has, at most

// Convolution and transposed convolution.
class ConvolutionFirst {
 public:
  static constexpr size_t kParameters = 2;  // gradients of its own: weights, bias
  static constexpr bool kTakesMany = false;
  static constexpr bool kIsConvolution = true;

  ConvolutionFirst(const Options& options, BNNSFilterType type)
      : layer_(options, type == BNNSTransposedConvolution) {}

  static const BNNSNDArrayDescriptor* output_of(const void* block);  // that of z; NULL with a sentence
  int prepare(const void* block);                                    // with z packed

  const View& output() const { return layer_.output(); }
  bool has_activation() const { return layer_.has_activation(); }
  convolution::Convolution* convolution() { return &layer_; }
  fully_connected::FullyConnected* fully_connected() { return nullptr; }
  size_t work_bytes(size_t batch) const { return layer_.work_bytes(batch); }
  size_t most_samples(size_t batch) const;  // to be done at a time, so that z stays near

  struct Forward {
    convolution::Images x = {};
    convolution::Run run = {};
  };
  int check(const ForwardArguments& a, Forward* f) const;
  int check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const;
  size_t bytes(const Forward& f, size_t batch) const;
  // Samples first … first + batch - 1; z starts with the first of them.
  void run(const Forward& f, size_t first, size_t batch, void* z, std::byte* work) const;
  bool runs_in_parts(const Forward& f) const { return layer_.runs_alone(f.run, f.x); }
  size_t part_channels() const { return layer_.output().extent[2]; }
  void run_part(const Forward& f, size_t sample, size_t, float* z) const {  // z: of this part
    layer_.run_alone(f.run, f.x, sample, z);
  }
  static bool makes_runs(const Forward&) { return false; }
  static void make_run(const Forward&, size_t, size_t, float*) {}
  static void find_run(const Forward&, size_t, size_t, const float* (&)[2]) {}
  static bool is_sum() { return false; }

  struct Backward {
    convolution::Gradients g;
    convolution::Run run = {};
    convolution::depthwise::Channels channels;  // once takes_channels was true
  };
  static bool is_wanted(const BackwardArguments& a);
  int check(const BackwardArguments& a, const void* z, Backward* b) const;
  int check_own_apart(const Place& written) const { return layer_.check_own_apart(written); }
  static size_t written(const Backward& b, Place* places);
  static size_t read(const Backward& b, Place* places);
  size_t bytes(Backward* b) const;
  void run(Backward* b, void* u, std::byte* work) const;
  // Parts of whole samples; 0: not in parts. u: of this part.
  size_t parts(const Backward& b) const { return layer_.parts(b.run, b.g); }
  static size_t part_threads(const Backward& b) { return b.run.threads; }  // at most
  size_t parts_bytes(const Backward& b) const { return layer_.parts_bytes(b.run, b.g); }
  void run_part(const Backward& b, size_t part, float* u, std::byte* work) const {
    layer_.run_part(b.run, b.g, part, u, work);
  }
  void finish_parts(const Backward& b, std::byte* work) const { layer_.finish_parts(b.run, b.g, work); }
  static bool takes_runs(const Backward&) { return false; }
  static void take_run(const Backward&, size_t, size_t, float*) {}
  static bool find_copies(const Backward&, normalization::Tensor (&)[2]) { return false; }
  // A depthwise layer takes single channels of all samples. u: of this one.
  bool takes_channels(Backward* b) const;
  size_t channels_bytes(const Backward& b) const { return layer_.channels_bytes(b.run, b.g); }
  void take_channel(const Backward& b, size_t channel, float* u, std::byte* work) const;
  void finish_channels(const Backward& b, std::byte* work) const {
    layer_.finish_channels(b.channels, b.run, b.g, work);
  }

 private:
  convolution::Convolution layer_;
};

class FullyConnectedFirst {
 public:
  static constexpr size_t kParameters = 2;
  static constexpr bool kTakesMany = false;
  static constexpr bool kIsConvolution = false;

  FullyConnectedFirst(const Options& options, BNNSFilterType) : layer_(options) {}

  static const BNNSNDArrayDescriptor* output_of(const void* block);
  int prepare(const void* block);

  const View& output() const { return layer_.output(); }
  bool has_activation() const { return layer_.has_activation(); }
  convolution::Convolution* convolution() { return nullptr; }
  fully_connected::FullyConnected* fully_connected() { return &layer_; }
  size_t work_bytes(size_t batch) const { return layer_.work_bytes(batch); }
  size_t most_samples(size_t batch) const { return batch; }

  struct Forward {
    fully_connected::Array x = {};
  };
  int check(const ForwardArguments& a, Forward* f) const;
  int check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const;
  size_t bytes(const Forward& f, size_t batch) const;
  void run(const Forward& f, size_t first, size_t batch, void* z, std::byte* work) const;
  static bool runs_in_parts(const Forward&) { return false; }
  static size_t part_channels() { return 1; }
  static void run_part(const Forward&, size_t, size_t, float*) {}
  static bool makes_runs(const Forward&) { return false; }
  static void make_run(const Forward&, size_t, size_t, float*) {}
  static void find_run(const Forward&, size_t, size_t, const float* (&)[2]) {}
  static bool is_sum() { return false; }

  using Backward = fully_connected::Gradients;
  static bool is_wanted(const BackwardArguments& a) { return ConvolutionFirst::is_wanted(a); }
  int check(const BackwardArguments& a, const void* z, Backward* b) const;
  int check_own_apart(const Place& written) const { return layer_.check_own_apart(written); }
  static size_t written(const Backward& b, Place* places);
  size_t read(const Backward& b, Place* places) const;
  size_t bytes(Backward* b) const;
  void run(Backward* b, void* u, std::byte* work) const;
  static size_t parts(const Backward&) { return 0; }
  static size_t part_threads(const Backward&) { return 1; }
  static size_t parts_bytes(const Backward&) { return 0; }
  static void run_part(const Backward&, size_t, float*, std::byte*) {}
  static void finish_parts(const Backward&, std::byte*) {}
  static bool takes_runs(const Backward&) { return false; }
  static void take_run(const Backward&, size_t, size_t, float*) {}
  static bool find_copies(const Backward&, normalization::Tensor (&)[2]) { return false; }

 private:
  fully_connected::FullyConnected layer_;
};

class ArithmeticFirst {
 public:
  static constexpr size_t kParameters = 0;
  static constexpr bool kTakesMany = true;
  static constexpr bool kIsConvolution = false;

  ArithmeticFirst(const Options& options, BNNSFilterType) : threads_(options.threads) {}

  static const BNNSNDArrayDescriptor* output_of(const void* block);
  int prepare(const void* block);

  const View& output() const { return plan_.output(); }
  bool has_activation() const { return plan_.has_activation(); }
  convolution::Convolution* convolution() { return nullptr; }
  fully_connected::FullyConnected* fully_connected() { return nullptr; }
  size_t work_bytes(size_t) const { return plan_.work_bytes(); }
  size_t most_samples(size_t batch) const { return batch; }

  using Forward = arithmetic::ForwardCall;
  int check(const ForwardArguments& a, Forward* f) const;
  int check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const;
  size_t bytes(const Forward&, size_t) const { return 0; }
  void run(const Forward& f, size_t first, size_t batch, void* z, std::byte* work) const;
  bool runs_in_parts(const Forward&) const { return has_channels_; }
  size_t part_channels() const { return part_.output().extent[2]; }
  void run_part(const Forward& f, size_t sample, size_t channel, float* z) const;
  // Single channels of a sample, in any order and without scratch(); and where the first two operands of one lie.
  bool makes_runs(const Forward& f) const;
  void make_run(const Forward& f, size_t sample, size_t channel, float* z) const;
  void find_run(const Forward& f, size_t sample, size_t channel, const float* (&from)[2]) const;
  bool is_sum() const { return plan_.function() == BNNSArithmeticAdd; }

  using Backward = arithmetic::BackwardCall;
  static bool is_wanted(const BackwardArguments& a) { return a.dx != nullptr; }
  int check(const BackwardArguments& a, const void* z, Backward* b) const;
  int check_own_apart(const Place&) const { return 0; }
  static size_t written(const Backward& b, Place* places);
  static size_t read(const Backward& b, Place* places);
  size_t bytes(Backward*) const { return plan_.work_bytes(); }
  void run(Backward* b, void* u, std::byte* work) const;
  static size_t parts(const Backward&) { return 0; }
  static size_t part_threads(const Backward&) { return 1; }
  static size_t parts_bytes(const Backward&) { return 0; }
  static void run_part(const Backward&, size_t, float*, std::byte*) {}
  static void finish_parts(const Backward&, std::byte*) {}
  // Single channels of a sample. u: of this one.
  bool takes_runs(const Backward&) const { return has_channels_; }
  void take_run(const Backward& b, size_t sample, size_t channel, float* u) const;
  // Both inputs of a sum receive u itself: where.
  bool find_copies(const Backward& b, normalization::Tensor (&copies)[2]) const;

 private:
  int prepare_channels(const BNNSLayerParametersArithmetic& parameters);

  arithmetic::Plan plan_;
  arithmetic::Plan channel_;   // the same for images of one channel
  arithmetic::Plan part_;      // and of some
  bool has_channels_ = false;  // all operands are images of the output's shape, one per sample
  size_t threads_;
};

// What the C interface calls.
class Fused : public Filter {
 public:
  using Filter::Filter;
  virtual int prepare(const BNNSFilterType* types, const void* const* blocks) = 0;
  virtual bool takes_many() const = 0;  // inputs
  virtual int apply_fused(const ForwardArguments& arguments) = 0;
  virtual int apply_fused_backward(const BackwardArguments& arguments) = 0;

  // For a pooling behind a pair that ends in a normalization (fused_pooling.cpp).
  virtual const View* output() const { return nullptr; }
  // What the input and the parameters say to an output that lies there.
  virtual int check_output_place(const ForwardArguments&, const Place&) const { return 0; }
  // Tells of the pooling and of its output's view, which stay.
  virtual void join(const pooling::Plan&, const View&) {}
  // True: such a call of the pair can run the pooling too, in one pass (is_pooled). What it then needs and keeps:
  virtual bool takes_pooling(size_t, bool) const { return false; }  // batch, training
  virtual size_t pooled_work_bytes(size_t) const { return 0; }
  virtual size_t pooled_kept_bytes(size_t) const { return 0; }
};

extern const char kKind[];

// What one layer gives is what the next one takes; the words say which they are.
int check_joint(const BNNSNDArrayDescriptor& output, const char* of, const BNNSNDArrayDescriptor& input,
                const char* to);
BNNSNDArrayDescriptor packed(BNNSNDArrayDescriptor descriptor);

// A filter made by options.make, prepared and not yet published; NULL with a sentence.
Fused* make_pair(const BNNSFilterType* types, const void* const* blocks, const Options& options);
// The same for a pair with a normalization and the pooling behind it.
Fused* make_pooled(const BNNSFilterType* types, const void* const* blocks, const Options& options);

}  // namespace obn::fused
