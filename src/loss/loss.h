// Losses: ten functions, five ways to combine the losses of a batch, and their gradients (docs/interface/loss.md).
//
//   x, l, w    input, labels, weights                       b, n      samples, values of one sample
//   y, dy      losses or what they are reduced to, and its  dx        gradient of x
//              gradient
#pragma once

#include <cstddef>

#include "base/targets.h"
#include "openbnns/bnns/loss.h"

namespace obn::loss {

using Function = BNNSLossFunction;
using Reduction = BNNSLossReductionFunction;

inline constexpr size_t kFunctions = 11;  // numbered from 1

// ---- what the documents leave open (docs/interface/loss.md 3) ----

// ε of the log loss cannot be set. 1e-7 is what the vendor's GPU library takes.
inline constexpr float kLogEpsilon = 1e-7f;
// Softmax cross entropy is the plain sum over the classes. The vendor's header divides by their number as well; its
// published training curve does not.
inline constexpr bool kDivideByClasses = false;
// Mean reductions divide the gradient by what they divide the loss by. The alternative: the gradient of the sum.
inline constexpr bool kDivideGradient = true;
// YOLO: x and y of a prediction pass through the sigmoid. The alternative: they are compared as they are.
inline constexpr bool kYoloSquashes = true;

// ---- parameters ----

struct Shape {
  float label_scale = 1.0f;  // a label counts as label_scale·l + label_shift
  float label_shift = 0.0f;
  float delta = 1.0f;        // Huber
};

struct Yolo {
  size_t columns = 0, rows = 0, anchors = 0;
  size_t box = 0;  // values of one anchor: x, y, w, h, confidence, classes
  float delta = 1.0f;
  bool rescore = false;
  float scale_xy = 0.0f, scale_wh = 0.0f, scale_object = 0.0f, scale_no_object = 0.0f, scale_classes = 0.0f;
  float object_minimum = 0.0f, no_object_maximum = 0.0f;
  const float* sizes = nullptr;  // (anchors, 2): width, height in cells
};

// Loss of one cell; x, l (anchors, box), iou (anchors) is scratch. dx, unless NULL, becomes factor times the
// gradient; it may be x or l.
double yolo_cell(const Yolo& yolo, const float* x, const float* l, double* iou, float factor, float* dx);

// ---- runs of packed float32 ----

// y = w·f(x, l), dx = factor·w·∂f/∂x, each value for itself. w is (n), or one weight for all.
struct ValueRun {
  const float* x;
  const float* l;
  const float* w;
  bool w_moves;
  size_t n;
  Shape shape;
  float factor;
  bool sums;  // the result is wanted
  float* y;   // NULL: not written
  float* dx;  // NULL: not written; may be x or l, but for sigmoid cross entropy, which may read them twice
};
using ValueLoss = float (*)(const ValueRun&);  // Σ y where it sums

// Part of a row for softmax. l NULL: all labels are 0, with no shift.
struct SoftmaxRun {
  const float* x;
  const float* l;
  const float* w;
  bool w_moves;
  size_t n;
  Shape shape;
  float* e;  // (n), gets e^(x - largest); NULL: not wanted
};
struct SoftmaxSums {
  float largest;   // of x, at least the smallest float
  float total;     // Σ e^(x - largest)
  float labels;    // Σ w·l
  float distance;  // Σ w·l·(largest - x); labels of 0 add nothing, even where x is infinite
};

// dx = e·e_factor - w·l·l_factor. Where `exponentiates`, e^(e - largest) stands for e.
struct SlopeRun {
  const float* e;
  const float* l;  // NULL: as above
  const float* w;
  bool w_moves;
  size_t n;
  Shape shape;
  bool exponentiates;
  float largest;
  float e_factor, l_factor;
  float* dx;             // may be e or l
  bool streams = false;  // dx goes past the caches: whole lines of 64 bytes, apart from e and l; fence() after the last
};

// Whole rows for softmax, one after the other, n <= kShortRow.
inline constexpr size_t kShortRow = 1024;
struct RowsRun {
  const float* x;         // (rows, n)
  const float* l;         // l_step apart; NULL: as above
  size_t l_step;
  const size_t* classes;  // (rows), each a label of 1 on top of l; NULL: none
  const float* w;         // w_step apart
  size_t w_step;
  bool w_moves;           // within a row
  size_t n, rows;
  Shape shape;
  bool is_categorical;
  float factor;
  const float* dy;  // (rows), further factors of dx; NULL: none
  float* y;         // (rows)
  float* dx;        // (rows, n) or NULL; may be x or l
};

// One target's loops.
struct Kernels {
  ValueLoss values[kFunctions];  // NULL for the losses of whole samples
  SoftmaxSums (*softmax)(const SoftmaxRun& run);
  void (*slopes)(const SlopeRun& run);
  // Of categorical cross entropy: l != 0 ? w·(e·e_factor - l_factor) : e·e_factor.
  void (*categorical_slopes)(const SlopeRun& run);
  void (*softmax_rows)(const RowsRun& run);
  float (*product)(const float* x, const float* l, const float* w, bool w_moves, size_t n);  // Σ w·l·x
  float (*sum)(const float* v, size_t n);
  size_t (*count_nonzero)(const float* v, size_t n);
  // Copies whole lines of 64 bytes past the caches; both are aligned to that. fence() once after the last.
  void (*stream)(const float* from, float* to, size_t n);
  void (*fence)();
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// ---- the obvious loops (loss_ref.cpp), in double precision ----

namespace ref {

struct Problem {
  Function function;
  Reduction reduction;
  double label_smooth = 0.0, delta = 1.0;
  size_t b = 1, n = 1;
  const double* x = nullptr;  // (b, n)
  const double* l = nullptr;  // (b, n)
  const double* w = nullptr;  // (weights)
  size_t weights = 0;         // 0, 1, b or b·n
};

bool is_per_value(Function function);
// y: one value, or all losses where nothing is reduced. dx (b, n) = Σ dy·∂y/∂x, dy like y. Any of them may be NULL.
void run(const Problem& problem, double* y, const double* dy, double* dx);

}  // namespace ref

}  // namespace obn::loss
