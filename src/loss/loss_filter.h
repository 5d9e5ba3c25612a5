// The loss layer. Letters as in loss.h.
#pragma once

#include <cstddef>

#include "activation/activation_walk.h"
#include "base/filter.h"
#include "base/view.h"
#include "loss/loss.h"

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

class Loss final : public Filter {
 public:
  explicit Loss(const Options& options);
  ~Loss() override { options().release(anchors_); }

  int prepare(const void* layer_params);
  int call(const Arguments& arguments);
  size_t work_bytes(size_t batch) const override;

 private:
  struct Job;

  int prepare_function(const void* layer_params);
  int prepare_yolo(const BNNSLayerParametersLossYolo& parameters);
  int check(const Arguments& arguments, Job* job) const;
  int check_labels(const Arguments& arguments, Job* job) const;
  int check_weights(const Arguments& arguments, Job* job) const;
  int check_results(const Arguments& arguments, Job* job) const;
  int check_places(const Job& job) const;

  bool is_reduced() const { return reduction_ != BNNSLossReductionNone; }
  bool is_per_value() const { return kernels_.values[function_] != nullptr; }
  size_t piece_units() const;      // how many values, samples or cells make a piece
  size_t units(size_t batch) const;

  double denominator(const Job& job, double* partial) const;
  double run_values(const Job& job, double* partial) const;
  double run_rows(const Job& job, double* partial) const;
  double run_yolo(const Job& job, double* partial) const;
  double row(const Job& job, size_t sample, float* room) const;
  double softmax_row(const Job& job, size_t sample, float* room) const;
  double cosine_row(const Job& job, size_t sample, float* room) const;

  const Kernels& kernels_;
  Function function_ = BNNSLossFunctionSoftmaxCrossEntropy;
  Reduction reduction_ = BNNSLossReductionNone;
  View x_, y_;
  Shape shape_;
  Yolo yolo_;
  float* anchors_ = nullptr;  // (anchors, 2), YOLO
};

}  // namespace obn::loss
