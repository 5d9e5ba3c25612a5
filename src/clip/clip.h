// Clipping and the L2 norm: each slice over the chosen axes has a norm, by which it is measured or scaled.
//
//   x, y    input and output       kept    axes that are not chosen: one norm per place along them
//
// Sums of squares are float64, added up in an order that only the shape decides.
#pragma once

#include <cstddef>

#include "base/targets.h"
#include "openbnns/bnns/base.h"

namespace obn::clip {

// One target's loops, on packed rows. y may be x.
struct Kernels {
  double (*sum_squares)(const float* x, size_t n);
  void (*add_squares)(const float* x, double* sums, size_t n);  // sums (n): each gets the square of its value
  // y (n) = x·factor, or with `accumulate` that added to y; factors is (n) where they move, else one value.
  void (*scale)(const float* x, const double* factors, bool factors_move, float* y, bool accumulate, size_t n);
  void (*clamp)(const float* x, float low, float high, float* y, size_t n);  // NaN stays NaN
  void (*load)(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);  // simd/convert.h
  void (*store)(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// What a norm is multiplied by so that it is at most max_norm. A norm that is no number changes nothing: what made it
// NaN stays where it is.
inline double factor_of(double norm, double max_norm) { return norm > max_norm ? max_norm / norm : 1.0; }

// Arguments that optimizers have too. Return 0, or -1 with a sentence.
int check_bounds(float low, float high);
int check_max_norm(float max_norm, float use_norm);

// ---- the obvious formulas (clip_ref.cpp), on rows: x (n), x_stride apart ----

namespace ref {

double norm(const float* x, size_t x_stride, size_t n);
// dx (n) = dy·x/y, 0 where y = 0; y is the norm of x.
void norm_backward(const float* x, double y, double dy, size_t stride, size_t n, double* dx);
void clip_by_norm(const float* x, size_t stride, size_t n, double max_norm, double* y);

}  // namespace ref

}  // namespace obn::clip
