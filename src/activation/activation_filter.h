// The activation layer. Its members are defined in activation.cpp (creation, element-wise functions, gradients),
// activation_convert.cpp (types and integers) and activation_softmax.cpp (softmax and Gumbel).
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation/activation.h"
#include "activation/activation_walk.h"
#include "base/filter.h"
#include "base/view.h"

namespace obn::activation {

struct Groups;  // activation_softmax.cpp

class Activation final : public Filter {
 public:
  explicit Activation(const Options& options);
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
  void describe(Description* description) const override;

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

  // The ways to compute. The first that fits is chosen when the layer is created: once for samples that follow each
  // other without gaps, once for others.
  struct ForwardAlgorithm {
    const char* name;
    bool (*fits)(const Activation& layer, bool adjoins);
    void (Activation::*run)(const Operand& x, const Operand& y, size_t batch) const;
  };
  struct BackwardAlgorithm {
    const char* name;
    bool (*fits)(const Activation& layer);
    void (Activation::*run)(const Gradients& g) const;
  };
  static const ForwardAlgorithm kForward[];
  static const BackwardAlgorithm kBackward[];

  int prepare_types();
  int prepare_channels(const BNNSActivation& activation);
  int prepare_axes(uint32_t flags);
  bool is_prelu() const { return function_ == BNNSActivationFunctionPReLUPerChannel; }
  bool is_log() const { return function_ == BNNSActivationFunctionLogSoftmax; }

  bool is_dense() const;
  void softmax_rows(const Operand& x, const Operand& y, size_t batch) const;
  void forward_dense(const Operand& x, const Operand& y, size_t batch) const;
  void forward_rows(const Operand& x, const Operand& y, size_t batch) const;
  void convert(const Operand& x, const Operand& y, size_t batch) const;
  void convert_integers(const Operand& x, const Operand& y, size_t batch) const;
  void gumbel(const Operand& x, const Operand& y, size_t batch) const;
  void gumbel_max(const Operand& x, const Operand& y, size_t batch) const;

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
  const ForwardAlgorithm* forward_[2] = {};  // [samples adjoin]
  const BackwardAlgorithm* backward_ = nullptr;
  bool reduced_[kAxes] = {};      // softmax: axes of x_ (and the batch, last) it runs over
  size_t row_ = 0;                // softmax: values of a group where groups follow each other; 0 where not
  size_t channels_ = 1;           // PReLU and per-channel integers
  size_t channel_values_ = 1;     // values of one channel of one sample
  float* alphas_ = nullptr;       // (channels_), PReLU
  int32_t* integers_ = nullptr;   // (3, channels_): scale, offset, shift
  alignas(8) std::byte table_[256 * 8];  // indexed input
};

}  // namespace obn::activation
