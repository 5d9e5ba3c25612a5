// Creation and entry points of the loss layer: everything is checked here. Letters as in loss.h.
#include "loss/loss.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/describe.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/types.h"
#include "base/workspace.h"
#include "loss/loss_filter.h"
#include "openbnns/openbnns.h"

namespace obn {

namespace loss {

namespace {

using activation::Operand;
using activation::walk_of;

constexpr char kKind[] = "loss";

constexpr const char* kNames[kFunctions] = {"", "softmax_cross_entropy", "sigmoid_cross_entropy", "mean_square_error",
                                            "huber", "yolo", "log", "cosine_distance", "hinge", "mean_absolute_error",
                                            "categorical_cross_entropy"};

// One value per sample, `step` apart.
View values_view(BNNSDataType type) {
  View view;
  view.rank = 1;
  view.extent[0] = view.stride[0] = 1;
  view.axis_of_size[0] = 0;
  view.count = view.span = view.packed_batch = 1;
  view.type = type;
  return view;
}

// The whole batch as one sample, for comparisons of memory ranges.
View all_of(const View& view, size_t step, size_t batch) {
  View all = view;
  all.span = (batch - 1) * step + view.span;
  return all;
}

}  // namespace

// ---- creation ----

Loss::Loss(const Options& options) : Filter(kKind, options), kernels_(targets.best()) {}

void Loss::describe(Description* description) const {
  description->kinds[0] = kNames[function_];
  description->forward = description->input_gradient = runner_->name;
  description->inputs[0] = &x_;
  description->output = &y_;
}

int Loss::prepare(const void* layer_params) {
  const auto& base = *static_cast<const BNNSLayerParametersLossBase*>(layer_params);
  function_ = base.function;
  reduction_ = base.reduction;
  if (function_ < 1 || function_ >= kFunctions)
    return fail("loss: expected a function from 1 to %zu; got %u", kFunctions - 1, static_cast<unsigned>(function_));
  if (reduction_ > BNNSLossReductionNonZeroWeightMean)
    return fail("reduction: expected one from 0 to 4; got %u", static_cast<unsigned>(reduction_));
  if (read_view(base.i_desc, Access::read, "input", &x_) != 0) return -1;
  if (read_view(base.o_desc, Access::write, "output", &y_) != 0) return -1;
  if (x_.layout == BNNSDataLayoutFullyConnectedSparse || x_.layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
    return fail("input: expected a layout of plain values; got %s", obn::name_of(x_.layout));
  if (!is_float_type(x_.type))
    return fail("input: expected float32, float16 or bfloat16; got %s", obn::name_of(x_.type));
  if (y_.type != BNNSDataTypeFloat32 && y_.type != x_.type)
    return fail("output: expected float32%s%s; got %s", x_.type == BNNSDataTypeFloat32 ? "" : " or ",
                x_.type == BNNSDataTypeFloat32 ? "" : obn::name_of(x_.type), obn::name_of(y_.type));
  if (prepare_function(layer_params) != 0) return -1;
  runner_ = kRunners;
  while (runner_->fits && !runner_->fits(function_, x_.count)) ++runner_;
  unit_ = function_ == BNNSLossFunctionYolo ? yolo_.anchors * yolo_.box : is_per_value() ? 1 : x_.count;
  const size_t losses = !is_reduced() && is_per_value() ? x_.count : 1;
  if (y_.count != losses || !y_.is_packed()) {
    ShapeText got;
    return fail("output: expected %zu value%s without gaps, as %s of %s; got %s%s", losses, losses == 1 ? "" : "s",
                is_reduced() ? "the reduction" : "one sample", kNames[function_], shape_text(y_, &got),
                y_.is_packed() ? "" : " with gaps");
  }
  return 0;
}

int Loss::prepare_function(const void* layer_params) {
  const double n = static_cast<double>(x_.count);
  switch (function_) {
    case BNNSLossFunctionSoftmaxCrossEntropy:
    case BNNSLossFunctionSigmoidCrossEntropy: {
      const float smooth = static_cast<const BNNSLayerParametersLossSoftmaxCrossEntropy*>(layer_params)->label_smooth;
      if (!(smooth >= 0.0f && smooth <= 1.0f))
        return fail("label_smoothing: expected a number from 0 to 1; got %g", static_cast<double>(smooth));
      const bool is_softmax = function_ == BNNSLossFunctionSoftmaxCrossEntropy;
      const double divisor = is_softmax && kDivideByClasses ? n : 1.0;
      shape_.label_scale = static_cast<float>((1.0 - smooth) / divisor);
      shape_.label_shift = static_cast<float>(smooth / (is_softmax ? n : 2.0) / divisor);
      return 0;
    }
    case BNNSLossFunctionHuber:
      shape_.delta = static_cast<const BNNSLayerParametersLossHuber*>(layer_params)->huber_delta;
      if (!(shape_.delta > 0.0f))
        return fail("delta: expected a number above 0; got %g", static_cast<double>(shape_.delta));
      return 0;
    case BNNSLossFunctionYolo: return prepare_yolo(*static_cast<const BNNSLayerParametersLossYolo*>(layer_params));
    default: return 0;
  }
}

int Loss::prepare_yolo(const BNNSLayerParametersLossYolo& p) {
  if (reduction_ != BNNSLossReductionSum)
    return fail("reduction: expected sum (1) for yolo; got %u", static_cast<unsigned>(reduction_));
  if (!(p.huber_delta >= 0.0f))
    return fail("huber_delta: expected a number of at least 0; got %g", static_cast<double>(p.huber_delta));
  const size_t rows = p.number_of_grid_rows, columns = p.number_of_grid_columns, anchors = p.number_of_anchor_boxes;
  if (rows == 0 || columns == 0 || anchors == 0)
    return fail("grid: expected rows, columns and anchors of at least 1; got %zu, %zu, %zu", rows, columns, anchors);
  if (p.anchor_box_size < 5)
    return fail("anchor_box_size: expected at least 5 values: x, y, w, h, confidence, classes; got %zu",
                p.anchor_box_size);
  size_t cell, count;
  if (__builtin_mul_overflow(anchors, p.anchor_box_size, &cell) || cell > kCellValues)
    return fail("anchor_box_size: expected cells of at most %zu values; got %zu anchors of %zu", kCellValues, anchors,
                p.anchor_box_size);
  if (__builtin_mul_overflow(cell, columns, &count) || __builtin_mul_overflow(count, rows, &count) ||
      count != x_.count) {
    ShapeText got;
    return fail("input: expected rows·columns·anchors·anchor_box_size = %zu·%zu·%zu·%zu values; got %s", rows, columns,
                anchors, p.anchor_box_size, shape_text(x_, &got));
  }
  if (!p.anchors_data) return fail("anchors: expected %zu pairs of width and height; got NULL", anchors);
  anchors_ = static_cast<float*>(options().get(2 * anchors * sizeof(float)));
  if (!anchors_) return -1;
  std::copy_n(p.anchors_data, 2 * anchors, anchors_);
  yolo_.columns = columns;
  yolo_.rows = rows;
  yolo_.anchors = anchors;
  yolo_.box = p.anchor_box_size;
  yolo_.delta = p.huber_delta == 0.0f ? 1.0f : p.huber_delta;
  yolo_.rescore = p.rescore;
  yolo_.scale_xy = p.scale_xy;
  yolo_.scale_wh = p.scale_wh;
  yolo_.scale_object = p.scale_object;
  yolo_.scale_no_object = p.scale_no_object;
  yolo_.scale_classes = p.scale_classification;
  yolo_.object_minimum = p.object_minimum_iou;
  yolo_.no_object_maximum = p.no_object_maximum_iou;
  yolo_.sizes = anchors_;
  return 0;
}

// ---- checks ----

int Loss::check(const Arguments& a, Job* job) const {
  job->batch = a.batch;
  job->is_reduced = is_reduced();
  size_t values;
  if (__builtin_mul_overflow(a.batch, x_.count, &values))
    return fail("batch_size: expected a number of values that can be counted; got %zu samples of %zu", a.batch,
                x_.count);
  if (read_batch(x_, a.x, a.batch, a.x_stride, Access::read, "input", &job->x_step) != 0) return -1;
  job->x = walk_of(x_, a.x, a.batch, job->x_step);
  if (check_labels(a, job) != 0 || check_weights(a, job) != 0 || check_results(a, job) != 0) return -1;
  if (check_no_alias(*job) != 0) return -1;
  std::byte* block;
  if (find_workspace(work_bytes(a.batch), &block) != 0) return -1;
  job->partial = reinterpret_cast<double*>(block);
  return 0;
}

int Loss::answer_empty(const Arguments& a) const {
  if (!a.y || !is_reduced()) return 0;
  size_t step;
  if (read_batch(y_, a.y, 1, y_.count, Access::write, "output", &step) != 0) return -1;
  write_loss(walk_of(y_, a.y, 1, step), 0.0f);
  return 0;
}

int Loss::check_labels(const Arguments& a, Job* job) const {
  if (!a.are_classes) {
    if (read_batch(x_, a.labels, a.batch, a.labels_stride, Access::read, "labels", &job->l_step) != 0) return -1;
    job->l = walk_of(x_, a.labels, a.batch, job->l_step);
    return 0;
  }
  if (function_ != BNNSLossFunctionSoftmaxCrossEntropy && function_ != BNNSLossFunctionCategoricalCrossEntropy)
    return fail("labels: expected values like the input for %s; got class numbers", kNames[function_]);
  const uint32_t kind = static_cast<uint32_t>(a.class_type) & (BNNSDataTypeIntBit | BNNSDataTypeUIntBit);
  if (!is_known(a.class_type) || kind == 0 || bytes_of(a.class_type) == 0)
    return fail("labels: expected class numbers of an integer type of 8 to 64 bits; got %s",
                obn::name_of(a.class_type));
  const View view = values_view(a.class_type);
  if (read_batch(view, a.labels, a.batch, a.labels_stride, Access::read, "labels", &job->class_step) != 0) return -1;
  job->are_classes = true;
  job->classes = a.labels;
  job->class_type = a.class_type;
  for (size_t b = 0; b < a.batch; ++b) {
    const int64_t number = class_at(a.labels, a.class_type, b * job->class_step);
    if (number < 0 || static_cast<size_t>(number) >= x_.count)
      return fail("labels: expected class numbers from 0 to %zu; got %lld for sample %zu", x_.count - 1,
                  static_cast<long long>(number), b);
  }
  return 0;
}

int Loss::check_weights(const Arguments& a, Job* job) const {
  if (function_ == BNNSLossFunctionYolo || a.weights_size == 0) return 0;  // YOLO has scales instead
  const size_t all = a.batch * x_.count;
  if (a.weights_size == 1) {
    job->weighting = Job::Weighting::one;
  } else if (a.weights_size == a.batch) {
    job->weighting = Job::Weighting::per_sample;
  } else if (a.weights_size == all) {
    job->weighting = Job::Weighting::per_value;
  } else {
    return fail("weights: expected 0, 1, %zu (one per sample) or %zu values; got %zu", a.batch, all, a.weights_size);
  }
  size_t step;
  const View view = values_view(BNNSDataTypeFloat32);
  if (read_batch(view, a.weights, a.weights_size, 1, Access::read, "weights", &step) != 0) return -1;
  job->w = static_cast<const float*>(a.weights);
  job->weights_size = a.weights_size;
  return 0;
}

int Loss::check_results(const Arguments& a, Job* job) const {
  const size_t results = is_reduced() ? 1 : a.batch;
  if (!a.is_backward) {
    size_t step;
    if (read_batch(y_, a.y, results, y_.count, Access::write, "output", &step) != 0) return -1;  // without gaps
    job->wants_y = true;
    job->y = walk_of(y_, a.y, results, step);
  } else {
    if (!a.dy) return fail("grad_output: expected a descriptor; got NULL");
    if (!a.dx) return fail("input_gradient: expected a descriptor; got NULL");
    if (read_gradient(*a.dy, y_, Access::read, results, is_reduced() ? 0 : a.dy_stride, "grad_output", &job->dy_view,
                      &job->dy_step) != 0)
      return -1;
    job->has_dy = true;
    job->dy = walk_of(job->dy_view, job->dy_view.data, results, job->dy_step);
  }
  if (!a.dx) return 0;
  if (read_gradient(*a.dx, x_, Access::write, a.batch, a.dx_stride, "input_gradient", &job->dx_view,
                    &job->dx_step) != 0)
    return -1;
  job->wants_dx = true;
  job->accumulates = job->dx_view.accumulate;
  job->dx = walk_of(job->dx_view, job->dx_view.data, a.batch, job->dx_step);
  const bool is_apart = job->dx.data != job->x.data && (job->are_classes || job->dx.data != job->l.data);
  job->streams = is_dense(job->dx) && !job->accumulates && is_apart && function_ != BNNSLossFunctionYolo &&
                 a.batch * x_.count * sizeof(float) > kStreamBytes;
  return 0;
}

// What is written lies apart from what is read, except that dx may take the place of x or of the labels.
int Loss::check_no_alias(const Job& job) const {
  const size_t batch = job.batch, results = is_reduced() ? 1 : batch;
  const View class_view = values_view(job.class_type), weight_view = values_view(BNNSDataTypeFloat32);
  // What is read, each with the batch it has.
  struct Read {
    const char* word;
    View view;
    const void* data;
    size_t step, batch;
    bool may_share;
  };
  const Read reads[] = {
      {"input", x_, job.x.data, job.x_step, batch, true},
      {"labels", job.are_classes ? class_view : x_, job.are_classes ? job.classes : job.l.data,
       job.are_classes ? job.class_step : job.l_step, batch, !job.are_classes},
      {"weights", weight_view, job.w, 1, job.weights_size, false},
      {"grad_output", job.has_dy ? job.dy_view : y_, job.has_dy ? job.dy.data : nullptr, job.dy_step, results, true}};
  for (const Read& read : reads) {
    if (!read.data || read.batch == 0) continue;
    const View whole = all_of(read.view, read.step, read.batch);
    if (job.wants_y) {
      const View y = all_of(y_, y_.packed_batch, results);
      if (check_disjoint(y, job.y.data, 0, "output", whole, read.data, 0, read.word, 1) != 0) return -1;
    }
    if (!job.wants_dx) continue;
    if (read.batch != batch) {
      const View dx = all_of(job.dx_view, job.dx_step, batch);
      if (check_disjoint(dx, job.dx.data, 0, "input_gradient", whole, read.data, 0, read.word, 1) != 0) return -1;
      continue;
    }
    const Operand dx{&job.dx_view, job.dx.data, job.dx_step}, other{&read.view, read.data, read.step};
    const int apart = read.may_share ? activation::check_places(dx, "input_gradient", other, read.word, batch)
                                     : activation::check_apart(dx, "input_gradient", other, read.word, batch);
    if (apart != 0) return -1;
  }
  if (!job.wants_y || !job.wants_dx) return 0;
  const View y = all_of(y_, y_.packed_batch, results), dx = all_of(job.dx_view, job.dx_step, batch);
  return check_disjoint(y, job.y.data, 0, "output", dx, job.dx.data, 0, "input_gradient", 1);
}

// ---- entry points ----

namespace {

BNNSFilter create(const void* layer_params, const BNNSFilterParameters* filter_params) {
  if (!layer_params) {
    fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Loss* filter = options.make<Loss>(options);
  if (!filter) return nullptr;
  return publish(filter, filter->prepare(layer_params));
}

int call(BNNSFilter handle, const Arguments& arguments) {
  auto* loss = static_cast<Loss*>(find_filter(handle, kKind));
  if (!loss) return -1;
  if (arguments.batch == 0) return loss->answer_empty(arguments);
  Job job;
  if (loss->check(arguments, &job) != 0) return -1;
  const Pass pass = arguments.is_backward ? Pass::backward : Pass::forward;
  return call_filter(loss, pass, arguments.batch, [&] { return (loss->*loss->runner().run)(&job); });
}

}  // namespace
}  // namespace loss
}  // namespace obn

extern "C" {

BNNSFilter BNNSFilterCreateLayerLoss(const void* layer_params, const BNNSFilterParameters* filter_params) {
  return obn::loss::create(layer_params, filter_params);
}

int BNNSLossFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride, const void* labels,
                             size_t labels_stride, const void* weights, size_t weights_size, void* out,
                             BNNSNDArrayDescriptor* in_delta, size_t in_delta_stride) {
  return obn::loss::call(filter, {.batch = batch_size, .x = in, .x_stride = in_stride, .labels = labels,
                                  .labels_stride = labels_stride, .weights = weights, .weights_size = weights_size,
                                  .y = out, .dx = in_delta, .dx_stride = in_delta_stride});
}

int BNNSLossFilterApplyBackwardBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride,
                                     BNNSNDArrayDescriptor* in_delta, size_t in_delta_stride, const void* labels,
                                     size_t labels_stride, const void* weights, size_t weights_size,
                                     const BNNSNDArrayDescriptor* out_delta, size_t out_delta_stride) {
  return obn::loss::call(filter, {.batch = batch_size, .x = in, .x_stride = in_stride, .labels = labels,
                                  .labels_stride = labels_stride, .weights = weights, .weights_size = weights_size,
                                  .is_backward = true, .dy = out_delta, .dy_stride = out_delta_stride, .dx = in_delta,
                                  .dx_stride = in_delta_stride});
}

int obn_loss_apply_classes(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride, const void* classes,
                           BNNSDataType class_type, size_t classes_stride, const void* weights, size_t weights_size,
                           void* out, BNNSNDArrayDescriptor* in_delta, size_t in_delta_stride) {
  return obn::loss::call(filter, {.batch = batch_size, .x = in, .x_stride = in_stride, .labels = classes,
                                  .labels_stride = classes_stride, .are_classes = true, .class_type = class_type,
                                  .weights = weights, .weights_size = weights_size, .y = out, .dx = in_delta,
                                  .dx_stride = in_delta_stride});
}

int obn_loss_apply_backward_classes(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride,
                                    BNNSNDArrayDescriptor* in_delta, size_t in_delta_stride, const void* classes,
                                    BNNSDataType class_type, size_t classes_stride, const void* weights,
                                    size_t weights_size, const BNNSNDArrayDescriptor* out_delta,
                                    size_t out_delta_stride) {
  return obn::loss::call(filter, {.batch = batch_size, .x = in, .x_stride = in_stride, .labels = classes,
                                  .labels_stride = classes_stride, .are_classes = true, .class_type = class_type,
                                  .weights = weights, .weights_size = weights_size, .is_backward = true,
                                  .dy = out_delta, .dy_stride = out_delta_stride, .dx = in_delta,
                                  .dx_stride = in_delta_stride});
}
}
