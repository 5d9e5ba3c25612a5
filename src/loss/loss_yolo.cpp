// The detection loss, cell by cell. What the documents say of it is the list of its parts; the rest is the model of
// YOLO version 2 (docs/interface/loss.md 4).
#include <cmath>
#include <cstddef>
#include <initializer_list>

#include "loss/loss.h"

namespace obn::loss {
namespace {

enum { kX, kY, kWidth, kHeight, kConfidence, kClasses };  // values of an anchor

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// max(x, 0) - x·target + log(1 + e^-|x|)
double cross_entropy(double x, double target) {
  return std::fmax(x, 0.0) - x * target + std::log1p(std::exp(-std::fabs(x)));
}

struct Box {
  double x, y, w, h;  // middle and size, in cells
};

// What two intervals around a and b share.
double shared_length(double a, double a_size, double b, double b_size) {
  const double first = std::fmax(a - a_size / 2, b - b_size / 2), last = std::fmin(a + a_size / 2, b + b_size / 2);
  return std::fmax(0.0, last - first);
}

double overlap(const Box& a, const Box& b) {
  const double shared = shared_length(a.x, a.w, b.x, b.w) * shared_length(a.y, a.h, b.y, b.h);
  const double united = a.w * a.h + b.w * b.h - shared;
  return united > 0.0 ? shared / united : 0.0;
}

double place(float x) { return kYoloSquashes ? sigmoid(x) : x; }
double place_slope(double at) { return kYoloSquashes ? at * (1 - at) : 1.0; }

// Overlap of prediction and truth of anchor a. Both stand in the same cell, whose place does not matter.
double overlap_of(const Yolo& yolo, size_t a, const float* x, const float* l) {
  const double w = yolo.sizes[2 * a], h = yolo.sizes[2 * a + 1];
  const Box predicted{place(x[kX]), place(x[kY]), w * std::exp(double{x[kWidth]}), h * std::exp(double{x[kHeight]})};
  const Box truth{l[kX], l[kY], w * std::exp(double{l[kWidth]}), h * std::exp(double{l[kHeight]})};
  return overlap(predicted, truth);
}

// A cell in which the anchor is responsible for an object. The overlap is a constant for the gradient.
double object_loss(const Yolo& yolo, double iou, const float* x, const float* l, float factor, float* dx) {
  double loss = 0.0;
  for (size_t i : {kX, kY}) {
    const double at = place(x[i]), e = at - l[i];
    loss += yolo.scale_xy * e * e;
    if (dx) dx[i] = static_cast<float>(factor * 2.0 * yolo.scale_xy * e * place_slope(at));
  }
  for (size_t i : {kWidth, kHeight}) {
    const double e = double{x[i]} - l[i], c = std::fmin(std::fabs(e), yolo.delta);
    loss += yolo.scale_wh * c * (std::fabs(e) - c / 2);
    if (dx) dx[i] = static_cast<float>(factor * yolo.scale_wh * std::copysign(c, e));
  }
  const double target = yolo.rescore ? iou : 1.0, confidence = x[kConfidence];
  loss += yolo.scale_object * cross_entropy(confidence, target);
  if (dx) dx[kConfidence] = static_cast<float>(factor * yolo.scale_object * (sigmoid(confidence) - target));

  if (yolo.box == kClasses) return loss;
  double m = x[kClasses], total = 0.0, labels = 0.0, distance = 0.0;
  for (size_t i = kClasses; i < yolo.box; ++i) m = x[i] > m ? x[i] : m;  // gcc 12 for ARM fails on fmax here
  for (size_t i = kClasses; i < yolo.box; ++i) {
    total += std::exp(x[i] - m);
    labels += l[i];
    if (l[i] != 0.0f) distance += l[i] * (m - x[i]);
  }
  loss += yolo.scale_classes * (labels * std::log(total) + distance);
  for (size_t i = kClasses; dx && i < yolo.box; ++i) {
    const double p = std::exp(x[i] - m) / total;
    dx[i] = static_cast<float>(factor * yolo.scale_classes * (p * labels - l[i]));
  }
  return loss;
}

}  // namespace

double yolo_cell(const Yolo& yolo, const float* x, const float* l, double* iou, float factor, float* dx) {
  const size_t none = yolo.anchors;
  size_t best = none;
  for (size_t a = 0; a < yolo.anchors; ++a) {
    const float *xa = x + a * yolo.box, *la = l + a * yolo.box;
    iou[a] = la[kConfidence] > 0.0f ? overlap_of(yolo, a, xa, la) : 0.0;
    if (la[kConfidence] > 0.0f && (best == none || iou[a] > iou[best])) best = a;
  }
  double loss = 0.0;
  for (size_t a = 0; a < yolo.anchors; ++a) {
    const float *xa = x + a * yolo.box, *la = l + a * yolo.box;
    float* dxa = dx ? dx + a * yolo.box : nullptr;
    const bool has_object = la[kConfidence] > 0.0f;
    if (has_object && (a == best || iou[a] >= yolo.object_minimum)) {
      loss += object_loss(yolo, iou[a], xa, la, factor, dxa);
      continue;
    }
    const bool counts = !has_object || iou[a] <= yolo.no_object_maximum;
    const double confidence = xa[kConfidence];
    if (counts) loss += yolo.scale_no_object * cross_entropy(confidence, 0.0);
    for (size_t i = 0; dxa && i < yolo.box; ++i) dxa[i] = 0.0f;
    if (dxa && counts) dxa[kConfidence] = static_cast<float>(factor * yolo.scale_no_object * sigmoid(confidence));
  }
  return loss;
}

}  // namespace obn::loss
