// The loss layer. Its members are defined in loss.cpp (creation, checks) and loss_run.cpp (checked calls).
// Letters as in loss.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation/activation_walk.h"
#include "base/filter.h"
#include "base/view.h"
#include "loss/loss_rows.h"

namespace obn::loss {

// The arguments of a call. Labels are rows like x, or class numbers.
struct Arguments {
  size_t batch = 0;
  const void* x = nullptr;
  size_t x_stride = 0;
  const void* labels = nullptr;
  size_t labels_stride = 0;
  bool are_classes = false;
  BNNSDataType class_type = BNNSDataTypeInt32;
  const void* weights = nullptr;
  size_t weights_size = 0;
  void* y = nullptr;  // forward
  bool is_backward = false;
  const BNNSNDArrayDescriptor* dy = nullptr;
  size_t dy_stride = 0;
  BNNSNDArrayDescriptor* dx = nullptr;
  size_t dx_stride = 0;
};

// The weights of a sample.
struct RowWeights {
  const float* w;
  size_t step;  // to the next sample
  bool moves;   // one per value
  const float* at(size_t i) const { return moves ? w + i : w; }
};

// A class number; beyond int64 it comes out negative, which no class is.
inline int64_t class_at(const void* data, BNNSDataType type, size_t i) {
  switch (type) {
    case BNNSDataTypeInt8: return static_cast<const int8_t*>(data)[i];
    case BNNSDataTypeInt16: return static_cast<const int16_t*>(data)[i];
    case BNNSDataTypeInt32: return static_cast<const int32_t*>(data)[i];
    case BNNSDataTypeInt64: return static_cast<const int64_t*>(data)[i];
    case BNNSDataTypeUInt8: return static_cast<const uint8_t*>(data)[i];
    case BNNSDataTypeUInt16: return static_cast<const uint16_t*>(data)[i];
    case BNNSDataTypeUInt32: return static_cast<const uint32_t*>(data)[i];
    case BNNSDataTypeUInt64: return static_cast<int64_t>(static_cast<const uint64_t*>(data)[i]);
    default: return -1;
  }
}

// A call, checked.
struct Job {
  enum class Weighting { none, one, per_sample, per_value };

  size_t batch = 0;
  Walk x{}, l{}, y{}, dy{}, dx{};  // x always; the others where the call has them
  bool are_classes = false;
  const void* classes = nullptr;
  BNNSDataType class_type = BNNSDataTypeInt32;
  size_t class_step = 0;
  Weighting weighting = Weighting::none;
  const float* w = nullptr;
  size_t weights_size = 0;
  bool wants_y = false, wants_dx = false, accumulates = false, streams = false;
  bool has_dy = false;  // one per loss
  float factor = 1.0f;  // of the gradient: 1 / denominator, times the one dy of a reduced loss
  View dx_view, dy_view;
  size_t x_step = 0, l_step = 0, dx_step = 0, dy_step = 0;
  bool is_reduced = false;
  double* partial = nullptr;  // (pieces) sums of losses, workspace

  bool keeps_losses() const { return wants_y && !is_reduced; }
  RowWeights weights_of(size_t sample, size_t n) const {
    static constexpr float kOne = 1.0f;
    switch (weighting) {
      case Weighting::none: return {&kOne, 0, false};
      case Weighting::one: return {w, 0, false};
      case Weighting::per_sample: return {w + sample, 1, false};
      case Weighting::per_value: return {w + sample * n, n, true};
    }
    return {&kOne, 0, false};
  }
  size_t class_of(size_t sample) const {
    return static_cast<size_t>(class_at(classes, class_type, sample * class_step));
  }
};

class Loss final : public Filter {
 public:
  // A way through the batch, for checked calls.
  struct Runner {
    const char* name;
    bool (*fits)(Function function, size_t n);  // NULL: always
    int (Loss::*run)(Job* job) const;           // 0
  };

  explicit Loss(const Options& options);
  ~Loss() override { options().release(anchors_); }

  int prepare(const void* layer_params);
  // Fills *job and gets its memory, or says what is wrong. Nothing is written.
  int check(const Arguments& arguments, Job* job) const;
  // A call without samples: the loss, where one is wanted, is 0.
  int answer_empty(const Arguments& arguments) const;
  const Runner& runner() const { return *runner_; }
  size_t work_bytes(size_t batch) const override;
  void describe(Description* description) const override;

 private:
  static const Runner kRunners[];  // the last one always fits

  int prepare_function(const void* layer_params);
  int prepare_yolo(const BNNSLayerParametersLossYolo& parameters);
  int check_labels(const Arguments& arguments, Job* job) const;
  int check_weights(const Arguments& arguments, Job* job) const;
  int check_results(const Arguments& arguments, Job* job) const;
  int check_no_alias(const Job& job) const;

  bool is_reduced() const { return reduction_ != BNNSLossReductionNone; }
  bool is_per_value() const { return kernels_.values[function_] != nullptr; }
  // A piece has whole units: values, samples, or cells.
  size_t units(size_t batch) const { return batch * (x_.count / unit_); }
  size_t piece_units(size_t batch) const;

  double denominator(const Job& job) const;
  double begin(Job* job) const;
  int finish(const Job& job, double divisor) const;
  int run_values(Job* job) const;
  int run_short_rows(Job* job) const;
  int run_softmax(Job* job) const;
  int run_cosine(Job* job) const;
  int run_yolo(Job* job) const;
  template <class Piece>
  void by_samples(const Job& job, const Piece& piece) const;
  template <class Row>
  int run_rows(Job* job, const Row& row) const;
  double softmax_row(const Job& job, size_t sample, const Scratch& scratch, Gradient* dx) const;
  double cosine_row(const Job& job, size_t sample, const Scratch& scratch, Gradient* dx) const;

  const Kernels& kernels_;
  const Runner* runner_ = nullptr;
  Function function_ = BNNSLossFunctionSoftmaxCrossEntropy;
  Reduction reduction_ = BNNSLossReductionNone;
  size_t unit_ = 1;  // values of one
  View x_, y_;
  Shape shape_;
  Yolo yolo_;
  float* anchors_ = nullptr;  // (anchors, 2), YOLO
};

}  // namespace obn::loss
