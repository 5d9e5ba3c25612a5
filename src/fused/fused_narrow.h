// A convolution of few taps with a batch norm behind it, done as one layer.
//
// Letters as in normalization.h, convolution/narrow.h and fused.h; n = N·P·Q pixels, s = γ·r. The convolution is
// linear, z(o) = b(o) + Σ w(o, t)·tap(t), so all that the normalization has to know of z follows from the means m (T)
// and the covariances K (T, T) of the taps. With taps less the centre c of their channel, and m less it too:
//   mean of z = b + w·(m + c)   v = wᵀ K w   y = max(low, s·w·tap + β - s·w·m)
// And the gradients follow from D(t) = Σ dz·tap(t) and D₀ = Σ dz:
//   dβ = D₀   dγ = Σ dz·x̂ = r·(w·D - w·m·D₀)   u = s·(dz - D₀/n - x̂·dγ/n)
//   dw(t) = Σ u·tap(t) = s·(D(t) - m(t)·D₀ - r·dγ·(K w)(t))   db = Σ u = 0
// because Σ x̂ = 0 and Σ x̂·tap(t) = n·r·(K w)(t). And dx gathers the gradients of the taps, Σ w(o, t)·u(o), where x̂
// is linear in the taps again. So neither z nor u is stored: forward reads x twice and writes y once, backward reads dy
// and y once, and again where dx is wanted. Between them x, w and some numbers per tap and channel are kept.
//
// A max pooling behind the two joins them where fused_windows.h can do it: then y and dy are those of the windows, the
// pixels of a window that won are kept, a byte each, and no array has the size of z but the dz that dx is made of.
#pragma once

#include <cstddef>

#include "base/kept_block.h"
#include "convolution/convolution_filter.h"
#include "fused/fused_room.h"
#include "fused/fused_windows.h"
#include "normalization/normalization.h"
#include "pooling/pooling.h"

namespace obn::fused {

class NarrowNorm {
 public:
  explicit NarrowNorm(const Options& options) : block_(options) {}

  // True: the pair is done here. The layers are the pair's, and stay.
  bool prepare(convolution::Convolution* first, normalization::Normalization* second);
  // True: and so is the pooling that follows. `y` is its output, and stays.
  bool join(const pooling::Plan& pooling, const View& y);

  // Everything was checked; -1 with a sentence where memory is missing. dy and y of the second layer's gradients are
  // those of the pooling where there is one.
  int apply(size_t batch, const convolution::Images& x, float* y, size_t y_step, bool training);
  int apply_backward(const convolution::Gradients& first, const normalization::Gradients& second);

  size_t work_bytes(size_t batch) const;  // SIZE_MAX with a sentence: more than can be addressed
  size_t kept_bytes(size_t batch) const;

 private:
  struct Kept;  // what a training call leaves for its gradients
  struct ForwardWork;
  struct BackwardWork;

  convolution::Problem problem(size_t batch) const;
  double pixels(size_t batch) const;
  convolution::Planes planes_of_output(void* y, size_t step) const;
  windows::Plan plan_windows(size_t batch) const;
  size_t windows_of(size_t batch) const { return batch * outputs_ * windows_.rows * windows_.columns; }
  bool scatters(bool has_dx) const { return is_pooled_ && (has_dx || !sums_by_windows_); }
  Kept lay_out_kept(size_t batch, std::byte* block, size_t* bytes) const;
  int reserve(size_t batch);
  void find_moments(const double* sums, const float* first, double n, const Kept& kept, double* covariances) const;
  void find_statistics(const ForwardWork& work, const Kept& kept, bool training) const;
  void find_gradients(const BackwardWork& work, const Kept& kept) const;
  void find_tap_gradients(const BackwardWork& work, const Kept& kept, double n) const;

  convolution::Convolution* first_ = nullptr;
  normalization::Normalization* second_ = nullptr;
  const View* y_ = nullptr;                       // of the last layer
  size_t channels_ = 0, taps_ = 0, outputs_ = 0;  // C, T, O
  bool is_pooled_ = false, sums_by_windows_ = false;  // the second: pooled, and the plan is in pairs
  windows::Windows windows_ = {};
  KeptBlock block_;                               // of the last training call
};

}  // namespace obn::fused
