// Fused layers: a first layer (convolution, transposed convolution, fully connected, arithmetic) whose result z goes
// straight into a normalization or a quantization. Behind a normalization may be a pooling (fused_pooling.cpp).
//
//   x → first layer → z → second layer → y        dy → second layer → u → first layer → dx
//
// The pairs see their first layer through one of the classes below, which have the same members: checks that fail with
// a sentence before anything is written, then the size of the work, then the run, which cannot fail. z and u are
// memory of the pair, samples one after the other without gaps, of the type that the descriptors between the two
// layers give.
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
  BNNSNDArrayDescriptor* const* parameters;  // in the order of docs/interface/fused.md 3; NULL: none wanted
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
  void describe(Description* description) const {
    layer_.describe(description);
    description->kinds[0] = layer_.kind();
  }
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

  struct Backward {
    convolution::Gradients g;
    convolution::Run run = {};
    convolution::depthwise::Channels channels;  // by plan_channels
  };
  static bool is_wanted(const BackwardArguments& a);
  static void clear_sums(const Backward& b) { b.g.clear_sums(); }  // those over no samples
  int check(const BackwardArguments& a, const void* z, Backward* b) const;
  int check_own_apart(const Place& written) const { return layer_.check_own_apart(written); }
  static size_t written(const Backward& b, Place* places);
  static size_t read(const Backward& b, Place* places);
  size_t bytes(Backward* b) const;
  void run(Backward* b, void* u, std::byte* work) const;
  // A depthwise layer takes single channels of all samples. u: of this one.
  bool is_depthwise() const { return layer_.choice().input_gradient == &convolution::depthwise_input_gradient; }
  bool takes_channels(const Backward& b) const { return layer_.takes_channels(b.run, b.g); }
  void plan_channels(Backward* b) const { layer_.plan_channels(b->g.batch, &b->channels); }
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
  void describe(Description* description) const {
    layer_.describe(description);
    description->kinds[0] = layer_.kind();
  }
  size_t most_samples(size_t batch) const { return batch; }

  struct Forward {
    fully_connected::Array x = {};
  };
  int check(const ForwardArguments& a, Forward* f) const;
  int check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const;
  size_t bytes(const Forward& f, size_t batch) const;
  void run(const Forward& f, size_t first, size_t batch, void* z, std::byte* work) const;

  using Backward = fully_connected::Gradients;
  static bool is_wanted(const BackwardArguments& a) { return ConvolutionFirst::is_wanted(a); }
  static void clear_sums(const Backward& b) { b.clear_sums(); }
  int check(const BackwardArguments& a, const void* z, Backward* b) const;
  int check_own_apart(const Place& written) const { return layer_.check_own_apart(written); }
  static size_t written(const Backward& b, Place* places);
  size_t read(const Backward& b, Place* places) const;
  size_t bytes(Backward* b) const;
  void run(Backward* b, void* u, std::byte* work) const;

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
  void describe(Description* description) const { plan_.describe(description); }
  size_t most_samples(size_t batch) const { return batch; }

  using Forward = arithmetic::ForwardCall;
  int check(const ForwardArguments& a, Forward* f) const;
  int check_apart(const ForwardArguments& a, const Forward& f, const Place& y) const;
  size_t bytes(const Forward&, size_t) const { return 0; }
  void run(const Forward& f, size_t first, size_t batch, void* z, std::byte* work) const;

  using Backward = arithmetic::BackwardCall;
  static bool is_wanted(const BackwardArguments& a) { return a.dx != nullptr; }
  static void clear_sums(const Backward& b) { b.clear_sums(); }
  int check(const BackwardArguments& a, const void* z, Backward* b) const;
  int check_own_apart(const Place&) const { return 0; }
  static size_t written(const Backward& b, Place* places);
  static size_t read(const Backward& b, Place* places);
  size_t bytes(Backward*) const { return plan_.work_bytes(); }
  void run(Backward* b, void* u, std::byte* work) const;

 private:
  arithmetic::Plan plan_;
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
  // True: a training call of so many samples can run the pooling too, in one pass (is_pooled). What it needs and keeps:
  virtual bool takes_pooling(size_t) const { return false; }
  virtual size_t pooled_work_bytes(size_t) const { return 0; }
  virtual size_t pooled_saved_bytes(size_t) const { return 0; }
};

extern const char kKind[];

// What one layer gives is what the next one takes; the words say which they are.
int check_joint(const BNNSNDArrayDescriptor& output, const char* of, const BNNSNDArrayDescriptor& input,
                const char* to);
BNNSNDArrayDescriptor packed(BNNSNDArrayDescriptor descriptor);

// The bytes that a batch saves for its gradients, with a sentence where they are SIZE_MAX.
size_t check_saved(size_t bytes, size_t batch);

// A filter made by options.make, prepared and not yet published; NULL with a sentence.
Fused* make_pair(const BNNSFilterType* types, const void* const* blocks, const Options& options);
// The same for a pair with a normalization and the pooling behind it.
Fused* make_pooled(const BNNSFilterType* types, const void* const* blocks, const Options& options);

}  // namespace obn::fused
