// Entry points of the loss layer: check everything, then walk over pieces. Letters as in loss.h.
#include "loss/loss.h"

#include <algorithm>
#include <cmath>

#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/types.h"
#include "loss/loss_filter.h"
#include "openbnns/openbnns.h"

namespace obn {

namespace portable::loss {
extern const obn::loss::Kernels kernels;
}
#if defined(OBN_X86)
namespace avx2::loss {
extern const obn::loss::Kernels kernels;
}
namespace avx512::loss {
extern const obn::loss::Kernels kernels;
}
#endif

namespace loss {

#if defined(OBN_X86)
constinit const Targets<Kernels> targets{&portable::loss::kernels, &avx2::loss::kernels, &avx512::loss::kernels,
                                         nullptr};
#else
constinit const Targets<Kernels> targets{&portable::loss::kernels, nullptr, nullptr, nullptr};
#endif

namespace {

using activation::by_blocks;
using activation::by_pieces;
using activation::Cursor;
using activation::Operand;
using activation::Walk;
using activation::walk_of;

constexpr char kKind[] = "loss";
constexpr size_t kPiece = 16384;                   // values of a piece of parallel work, about
constexpr size_t kBlock = 2048;                    // values done at a time; their losses are added up in float
constexpr size_t kRowBlock = 1024;                 // the same of a row: three such blocks stay in the first-level cache
constexpr size_t kKept = size_t{1} << 17;          // rows up to this length keep their exponentials for the gradient
constexpr size_t kStreamBytes = size_t{16} << 20;  // gradients larger than this go past the caches
constexpr size_t kCellValues = size_t{1} << 18;    // YOLO: values of one cell at most, so that cells fit in scratch

constexpr const char* kNames[kFunctions] = {"", "softmax_cross_entropy", "sigmoid_cross_entropy", "mean_square_error",
                                            "huber", "yolo", "log", "cosine_distance", "hinge", "mean_absolute_error",
                                            "categorical_cross_entropy"};

// Parts of a thread's scratch, in floats.
struct Rooms {
  float *x, *l, *w, *y, *dx, *e;

  explicit Rooms(float* block)
      : x(block), l(x + kBlock), w(l + kBlock), y(w + kBlock), dx(y + kBlock), e(dx + kBlock) {}
};
static_assert((5 * kBlock + kKept) * sizeof(float) <= kScratchBytes);
static_assert((3 * kCellValues * sizeof(float) + kCellValues / 5 * sizeof(double)) <= kScratchBytes);
static_assert(kRowBlock <= kBlock);

bool is_float_type(BNNSDataType type) {
  return type == BNNSDataTypeFloat32 || type == BNNSDataTypeFloat16 || type == BNNSDataTypeBFloat16;
}

bool is_dense(const Walk& walk) {
  return walk.type == BNNSDataTypeFloat32 && walk.rank == 1 && walk.stride[0] == 1;
}

// A tensor's values from a linear index on, as packed float32: where they lie if they lie so, else copied to `room`.
class Source {
 public:
  Source(const Walk& walk, size_t first, float* room)
      : cursor_(walk, first), room_(room),
        dense_(is_dense(walk) ? reinterpret_cast<const float*>(walk.data) + first : nullptr) {}

  const float* next(size_t n) {
    if (!dense_) {
      activation::read_row(activation::targets.best(), cursor_, n, room_);
      return room_;
    }
    const float* here = dense_;
    dense_ += n;
    return here;
  }

 private:
  Cursor cursor_;
  float* room_;
  const float* dense_;
};

// Where a kernel writes the next values of a tensor: to their place, or to `room` if they must be converted, spread or
// added.
class Sink {
 public:
  Sink(const Walk& walk, size_t first, bool accumulate, float* room)
      : to_(walk, first), old_(walk, first), accumulate_(accumulate), room_(room),
        dense_(is_dense(walk) ? reinterpret_cast<float*>(walk.data) + first : nullptr) {}

  float* place() const { return dense_ && !accumulate_ ? dense_ : room_; }

  // The n values at place() are there now.
  void done(size_t n) {
    const activation::Kernels& kernels = activation::targets.best();
    if (dense_) {
      if (accumulate_) kernels.add(room_, dense_, n);
      dense_ += n;
      return;
    }
    if (accumulate_) {
      by_blocks(0, n, kOldValues, [&](size_t i, size_t count) {
        float old[kOldValues];
        activation::read_row(kernels, old_, count, old);
        kernels.add(old, room_ + i, count);
      });
    }
    activation::write_row(kernels, to_, n, room_);
  }

 private:
  static constexpr size_t kOldValues = 512;

  Cursor to_, old_;
  bool accumulate_;
  float* room_;
  float* dense_;
};

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

// The whole batch as one sample, for comparisons of places.
View all_of(const View& view, size_t step, size_t batch) {
  View all = view;
  all.span = (batch - 1) * step + view.span;
  return all;
}

}  // namespace

// A call, checked.
struct Loss::Job {
  enum class Weighting { none, one, per_sample, per_value };

  size_t batch = 0;
  Walk x{}, l{}, y{}, dy{}, dx{};  // x always; the others where the call has them
  bool are_classes = false;
  activation::ref::Values classes{};
  size_t class_step = 0;
  Weighting weighting = Weighting::none;
  const float* w = nullptr;
  bool wants_y = false, wants_dx = false, accumulates = false, streams = false;
  bool has_dy = false;  // one per loss
  float factor = 1.0f;  // of the gradient: 1 / denominator, times the one dy of a reduced loss
  View dx_view, dy_view;
  size_t x_step = 0, l_step = 0, dx_step = 0, dy_step = 0;

  size_t class_of(size_t sample) const {
    return static_cast<size_t>(activation::ref::get_stored(classes, sample * class_step));
  }
};

// ---- creation ----

Loss::Loss(const Options& options) : Filter(kKind, options), kernels_(targets.best()) {}

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
  size_t values;
  if (__builtin_mul_overflow(a.batch, x_.count, &values))
    return fail("batch_size: expected a number of values that can be counted; got %zu samples of %zu", a.batch,
                x_.count);
  if (read_batch(x_, a.x, a.batch, a.x_stride, Access::read, "input", &job->x_step) != 0) return -1;
  job->x = walk_of(x_, a.x, a.batch, job->x_step);
  if (check_labels(a, job) != 0 || check_weights(a, job) != 0 || check_results(a, job) != 0) return -1;
  return check_places(*job);
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
  job->classes = {a.labels, a.class_type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
  for (size_t b = 0; b < a.batch; ++b) {
    const activation::ref::Whole number = activation::ref::get_stored(job->classes, b * job->class_step);
    if (number < 0 || number >= static_cast<activation::ref::Whole>(x_.count))
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
  return 0;
}

int Loss::check_results(const Arguments& a, Job* job) const {
  const size_t results = is_reduced() ? 1 : a.batch;
  if (!a.is_backward) {
    size_t step;
    if (read_batch(y_, a.y, results, 0, Access::write, "output", &step) != 0) return -1;
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
  job->streams = is_dense(job->dx) && !job->accumulates && a.batch * x_.count * sizeof(float) > kStreamBytes &&
                 job->dx.data != job->x.data && (job->are_classes || job->dx.data != job->l.data);
  return 0;
}

// What is written lies apart from what is read, except that dx may take the place of x or of the labels.
int Loss::check_places(const Job& job) const {
  const size_t batch = job.batch, results = is_reduced() ? 1 : batch;
  const View class_view = values_view(job.classes.type), weight_view = values_view(BNNSDataTypeFloat32);
  const size_t weights = job.weighting == Job::Weighting::none  ? 0
                         : job.weighting == Job::Weighting::one ? 1
                         : job.weighting == Job::Weighting::per_sample ? batch
                                                                       : batch * x_.count;
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
      {"labels", job.are_classes ? class_view : x_, job.are_classes ? job.classes.data : job.l.data,
       job.are_classes ? job.class_step : job.l_step, batch, !job.are_classes},
      {"weights", weight_view, job.w, 1, weights, false},
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

// ---- calls ----

// A unit is what a piece has whole numbers of: values, samples, or cells.
size_t Loss::units(size_t batch) const {
  if (function_ == BNNSLossFunctionYolo) return batch * yolo_.rows * yolo_.columns;
  return is_per_value() ? batch * x_.count : batch;
}

size_t Loss::piece_units() const {
  if (function_ == BNNSLossFunctionYolo) return std::max<size_t>(1, kPiece / (yolo_.anchors * yolo_.box));
  return is_per_value() ? kPiece : std::max<size_t>(1, kPiece / x_.count);
}

size_t Loss::work_bytes(size_t batch) const {
  const size_t piece = piece_units(), count = units(batch);
  return (count / piece + (count % piece != 0)) * sizeof(double);  // one partial sum per piece
}

int Loss::call(const Arguments& arguments) {
  if (arguments.batch == 0) return 0;
  Job job;
  if (check(arguments, &job) != 0) return -1;
  double* partial = reinterpret_cast<double*>(workspace(work_bytes(arguments.batch)));
  if (!partial || !scratch()) return -1;

  const double divisor = denominator(job, partial);
  const double factor = divisor == 0.0 ? 0.0 : 1.0 / divisor;
  job.factor = kDivideGradient ? static_cast<float>(factor) : 1.0f;
  if (job.has_dy && is_reduced()) {
    float dy;
    Cursor at(job.dy, 0);
    activation::read_row(activation::targets.best(), at, 1, &dy);
    job.factor = static_cast<float>((kDivideGradient ? factor : 1.0) * dy);
    job.has_dy = false;
  }
  double sum;
  if (function_ == BNNSLossFunctionYolo) {
    sum = run_yolo(job, partial);
  } else {
    sum = is_per_value() ? run_values(job, partial) : run_rows(job, partial);
  }
  if (job.wants_y && is_reduced()) {
    float y = divisor == 0.0 ? 0.0f : static_cast<float>(sum / divisor);
    Cursor at(job.y, 0);
    activation::write_row(activation::targets.best(), at, 1, &y);
  }
  return 0;
}

namespace {

double sum_of(const double* partial, size_t units, size_t piece) {
  double sum = 0.0;
  for (size_t i = 0; i * piece < units; ++i) sum += partial[i];
  return sum;
}

}  // namespace

// What the sum of the losses is divided by (spec loss.md 2); 0 stands for a result of 0.
double Loss::denominator(const Job& job, double* partial) const {
  const double n = static_cast<double>(x_.count), batch = static_cast<double>(job.batch);
  const double losses = is_per_value() ? n * batch : batch;
  if (reduction_ == BNNSLossReductionMean) return losses;
  if (reduction_ != BNNSLossReductionWeightedMean && reduction_ != BNNSLossReductionNonZeroWeightMean) return 1.0;
  const bool counts = reduction_ == BNNSLossReductionNonZeroWeightMean;
  if (job.weighting == Job::Weighting::none) return losses;
  if (job.weighting == Job::Weighting::one) return counts ? (*job.w != 0.0f) * losses : *job.w * losses;
  // Σ or count of w (m), by blocks.
  const auto total = [&](const float* w, size_t m) {
    double sum = 0.0;
    by_blocks(0, m, kBlock, [&](size_t i, size_t some) {
      sum += counts ? static_cast<double>(kernels_.count_nonzero(w + i, some)) : kernels_.sum(w + i, some);
    });
    return sum;
  };
  if (job.weighting == Job::Weighting::per_sample) return total(job.w, job.batch) * (is_per_value() ? n : 1.0);
  const size_t all = units(job.batch), piece = piece_units();
  by_pieces(all, piece, options().threads, [&](size_t first, size_t count) {
    if (is_per_value()) {
      partial[first / piece] = total(job.w + first, count);
      return;
    }
    double sum = 0.0;  // the weight of a sample is the mean of its weights
    for (size_t b = first; b < first + count; ++b) {
      double weight = 0.0;
      by_blocks(b * x_.count, x_.count, kBlock,
                [&](size_t i, size_t some) { weight += kernels_.sum(job.w + i, some); });
      sum += counts ? weight != 0.0 : weight / n;
    }
    partial[first / piece] = sum;
  });
  return sum_of(partial, all, piece);
}

namespace {

// The weights of m values from linear index i on, where each sample of n values has one.
void spread(const float* w, size_t n, size_t i, size_t m, float* row) {
  for (size_t done = 0; done < m;) {
    const size_t sample = (i + done) / n, some = std::min(m - done, (sample + 1) * n - (i + done));
    std::fill_n(row + done, some, w[sample]);
    done += some;
  }
}

}  // namespace

// Every value for itself.
double Loss::run_values(const Job& job, double* partial) const {
  const size_t n = x_.count, total = units(job.batch);
  const float one = 1.0f;
  const ValueLoss loss = kernels_.values[function_];
  const bool keeps = job.wants_y && !is_reduced();
  by_pieces(total, kPiece, options().threads, [&](size_t first, size_t count) {
    const Rooms rooms(reinterpret_cast<float*>(scratch()));
    Source x(job.x, first, rooms.x), l(job.l, first, rooms.l), dy(job.has_dy ? job.dy : job.x, first, rooms.y);
    Sink y(keeps ? job.y : job.x, first, false, rooms.y);
    Sink dx(job.wants_dx ? job.dx : job.x, first, job.accumulates, rooms.dx);
    double sum = 0.0;
    by_blocks(first, count, kBlock, [&](size_t i, size_t m) {
      ValueRun run{x.next(m), l.next(m), &one, false, m, shape_, job.factor, job.wants_y, nullptr, nullptr,
                   job.streams};
      if (job.weighting == Job::Weighting::one) run.w = job.w;
      if (job.weighting == Job::Weighting::per_value) {
        run.w = job.w + i;
        run.w_moves = true;
      }
      if (job.weighting == Job::Weighting::per_sample) {
        run.w = job.w + i / n;
        if (i / n != (i + m - 1) / n) {  // several samples
          spread(job.w, n, i, m, rooms.w);
          run.w = rooms.w;
          run.w_moves = true;
        }
      }
      if (job.has_dy) {  // acts like a weight
        const float* gradient = dy.next(m);
        for (size_t k = 0; k < m; ++k) rooms.w[k] = run.w[run.w_moves ? k : 0] * gradient[k];
        run.w = rooms.w;
        run.w_moves = true;
      }
      if (keeps) run.y = y.place();
      if (job.wants_dx) run.dx = dx.place();
      sum += loss(run);
      if (keeps) y.done(m);
      if (job.wants_dx) dx.done(m);
    });
    if (job.streams) kernels_.fence();
    partial[first / kPiece] = sum;
  });
  return sum_of(partial, total, kPiece);
}

// Every sample for itself.
double Loss::run_rows(const Job& job, double* partial) const {
  const size_t piece = piece_units();
  const bool keeps = job.wants_y && !is_reduced();
  by_pieces(job.batch, piece, options().threads, [&](size_t first, size_t count) {
    float* room = reinterpret_cast<float*>(scratch());
    if (job.are_classes) std::fill_n(Rooms(room).l, kRowBlock, 0.0f);
    Sink y(keeps ? job.y : job.x, first, false, Rooms(room).y);
    double sum = 0.0;
    for (size_t b = first; b < first + count; ++b) {
      const double loss = row(job, b, room);
      sum += loss;
      if (!keeps) continue;
      *y.place() = static_cast<float>(loss);
      y.done(1);
    }
    if (job.streams) kernels_.fence();
    partial[first / piece] = sum;
  });
  return sum_of(partial, job.batch, piece);
}

double Loss::row(const Job& job, size_t sample, float* room) const {
  return function_ == BNNSLossFunctionCosineDistance ? cosine_row(job, sample, room)
                                                     : softmax_row(job, sample, room);
}

namespace {

// The weights of a sample.
struct RowWeights {
  const float* w;
  bool moves;
  const float* at(size_t i) const { return moves ? w + i : w; }
};

// The labels of a row, block after block: dense, or a row of zeros with the 1 of the class.
class RowLabels {
 public:
  RowLabels(const Walk& walk, size_t first, float* room) : source_(walk, first, room), room_(room) {}
  RowLabels(const Walk& any, size_t label, float* zeros, bool needs_zeros)
      : source_(any, 0, zeros), room_(zeros), label_(label), is_class_(true), needs_zeros_(needs_zeros) {}

  // The labels of values i … i + n - 1 of the row; NULL where all are 0 and need not be seen.
  const float* next(size_t i, size_t n) {
    if (!is_class_) return source_.next(n);
    room_[marked_] = 0.0f;
    const bool is_here = label_ >= i && label_ < i + n;
    if (is_here) room_[marked_ = label_ - i] = 1.0f;
    return is_here || needs_zeros_ ? room_ : nullptr;
  }
  ~RowLabels() {
    if (is_class_) room_[marked_] = 0.0f;
  }

 private:
  Source source_;
  float* room_;
  size_t label_ = 0, marked_ = 0;
  bool is_class_ = false, needs_zeros_ = false;
};

}  // namespace

double Loss::softmax_row(const Job& job, size_t sample, float* room) const {
  const size_t n = x_.count, first = sample * n;
  const Rooms rooms(room);
  const bool is_categorical = function_ == BNNSLossFunctionCategoricalCrossEntropy;
  const bool keeps = job.wants_dx && n <= kKept;
  const float one = 1.0f;
  RowWeights weights{&one, false};
  if (job.weighting == Job::Weighting::one) weights.w = job.w;
  if (job.weighting == Job::Weighting::per_sample) weights.w = job.w + sample;
  if (job.weighting == Job::Weighting::per_value) weights = {job.w + first, true};
  const size_t label = job.are_classes ? job.class_of(sample) : 0;
  const auto labels_of_row = [&] {
    return job.are_classes ? RowLabels(job.x, label, rooms.l, shape_.label_shift != 0.0f || is_categorical)
                           : RowLabels(job.l, first, rooms.l);
  };

  // ℓ = Σ w·l·(log S + m - x) with m = max x, S = Σ e^(x - m), from blocks that have an m of their own.
  double m = 0.0, total = 0.0, all = 0.0, distance = 0.0;
  size_t nonzero = 0;
  float largest[kKept / kRowBlock];
  {
    Source x(job.x, first, rooms.x);
    RowLabels labels = labels_of_row();
    by_blocks(0, n, kRowBlock, [&](size_t i, size_t count) {
      const float* l = labels.next(i, count);
      const SoftmaxSums part = kernels_.softmax({x.next(count), l, weights.at(i), weights.moves, count, shape_,
                                                 keeps ? rooms.e + i : nullptr});
      if (is_categorical) nonzero += kernels_.count_nonzero(l, count);
      if (keeps) largest[i / kRowBlock] = part.largest;
      if (i == 0) {
        m = part.largest;
        total = part.total;
        all = part.labels;
        distance = part.distance;
        return;
      }
      const double higher = std::max(m, double{part.largest});
      total = total * std::exp(m - higher) + part.total * std::exp(part.largest - higher);
      distance += all * (higher - m) + part.distance + part.labels * (higher - part.largest);
      all += part.labels;
      m = higher;
    });
  }
  const double share = is_categorical ? (nonzero ? 1.0 / static_cast<double>(nonzero) : 0.0) : 1.0;
  const double loss = job.wants_y ? share * (all * std::log(total) + distance) : 0.0;
  if (!job.wants_dx) return loss;

  double factor = job.factor;
  if (job.has_dy) factor *= *Source(job.dy, sample, rooms.y).next(1);
  const bool is_flat = is_categorical && nonzero == 0;
  const double e_factor = is_flat ? 0.0 : factor * (is_categorical ? 1.0 : all) / total;
  const float l_factor = static_cast<float>(is_flat ? 0.0 : factor * share);
  Source x(job.x, first, rooms.x);
  RowLabels labels = labels_of_row();
  Sink dx(job.dx, first, job.accumulates, rooms.dx);
  by_blocks(0, n, kRowBlock, [&](size_t i, size_t count) {
    const double own = keeps && n > kRowBlock ? std::exp(largest[i / kRowBlock] - m) : 1.0;
    const SlopeRun run{keeps ? rooms.e + i : x.next(count), labels.next(i, count), weights.at(i), weights.moves, count,
                       shape_, !keeps, static_cast<float>(m), static_cast<float>(e_factor * own), l_factor, dx.place(),
                       job.streams};
    if (is_categorical) {
      kernels_.categorical_slopes(run);
    } else {
      kernels_.slopes(run);
    }
    dx.done(count);
  });
  return loss;
}

// ℓ = 1 - Σ w·l·x, and on the unit sphere ∂ℓ/∂x = (1 - ℓ)·x - w·l.
double Loss::cosine_row(const Job& job, size_t sample, float* room) const {
  const size_t n = x_.count, first = sample * n;
  const Rooms rooms(room);
  const float one = 1.0f;
  RowWeights weights{&one, false};
  if (job.weighting == Job::Weighting::one) weights.w = job.w;
  if (job.weighting == Job::Weighting::per_sample) weights.w = job.w + sample;
  if (job.weighting == Job::Weighting::per_value) weights = {job.w + first, true};
  double product = 0.0;
  {
    Source x(job.x, first, rooms.x), l(job.l, first, rooms.l);
    by_blocks(0, n, kRowBlock, [&](size_t i, size_t count) {
      product += kernels_.product(x.next(count), l.next(count), weights.at(i), weights.moves, count);
    });
  }
  if (!job.wants_dx) return 1.0 - product;
  double factor = job.factor;
  if (job.has_dy) factor *= *Source(job.dy, sample, rooms.y).next(1);
  Source x(job.x, first, rooms.x), l(job.l, first, rooms.l);
  Sink dx(job.dx, first, job.accumulates, rooms.dx);
  by_blocks(0, n, kRowBlock, [&](size_t i, size_t count) {
    kernels_.slopes({x.next(count), l.next(count), weights.at(i), weights.moves, count, shape_, false, 0.0f,
                     static_cast<float>(factor * product), static_cast<float>(factor), dx.place(), job.streams});
    dx.done(count);
  });
  return 1.0 - product;
}

double Loss::run_yolo(const Job& job, double* partial) const {
  const size_t cells = units(job.batch), piece = piece_units(), values = yolo_.anchors * yolo_.box;
  by_pieces(cells, piece, options().threads, [&](size_t first, size_t count) {
    double* iou = reinterpret_cast<double*>(scratch());  // (anchors), then the values of a cell, three times
    float* room = reinterpret_cast<float*>(iou + yolo_.anchors);
    Source x(job.x, first * values, room), l(job.l, first * values, room + values);
    Sink dx(job.wants_dx ? job.dx : job.x, first * values, job.accumulates, room + 2 * values);
    double sum = 0.0;
    for (size_t cell = first; cell < first + count; ++cell) {
      sum += yolo_cell(yolo_, x.next(values), l.next(values), iou, job.factor,
                       job.wants_dx ? dx.place() : nullptr);
      if (job.wants_dx) dx.done(values);
    }
    partial[first / piece] = sum;
  });
  return sum_of(partial, cells, piece);
}

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
  if (filter->prepare(layer_params) != 0) {
    destroy(filter);
    return nullptr;
  }
  return publish(filter);
}

int call(BNNSFilter handle, const Arguments& arguments) {
  Filter* filter = find_filter(handle, kKind);
  return filter ? static_cast<Loss*>(filter)->call(arguments) : -1;
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
