// A convolution of few taps with a batch norm behind it, done as one layer.
//
// Letters as in normalization.h, convolution/few_channels and fused.h; n = N·P·Q pixels, s = γ·r. The convolution is
// linear, z(o) = b(o) + Σ w(o, t)·tap(t), so all that the normalization has to know of z follows from the means m (T)
// and the covariances K (T, T) of the taps. With taps less the centre c of their channel, and m less it too:
//   mean of z = b + w·(m + c)   v = wᵀ K w   y = max(low, s·w·tap + β - s·w·m)
// And the gradients follow from D(t) = Σ dz·tap(t) and D₀ = Σ dz:
//   dβ = D₀   dγ = Σ dz·x̂ = r·(w·D - w·m·D₀)   u = s·(dz - D₀/n - x̂·dγ/n)
//   dw(t) = Σ u·tap(t) = s·(D(t) - m(t)·D₀ - r·dγ·(K w)(t))   db = Σ u = 0
// because Σ x̂ = 0 and Σ x̂·tap(t) = n·r·(K w)(t). And dx gathers the gradients of the taps, Σ w(o, t)·u(o), where x̂
// is linear in the taps again. So neither z nor u is stored: forward reads x twice and writes y once, backward reads dy
// and y once, and again where dx is wanted. Between them x, w and some numbers per tap and channel are saved.
#pragma once

#include <cstddef>

#include "base/kept_block.h"
#include "convolution/convolution_filter.h"
#include "normalization/normalization.h"

namespace obn::fused {

class FewChannelsNorm {
 public:
  explicit FewChannelsNorm(const Options& options) : block_(options) {}

  // True: the pair is done here. The layers are the pair's, and stay.
  bool prepare(convolution::Convolution* first, normalization::Normalization* second);

  // Everything was checked; -1 with a sentence where memory is missing.
  int apply(size_t batch, const convolution::Images& x, float* y, size_t y_step, bool training);
  int apply_backward(const convolution::Gradients& first, const normalization::Gradients& second);

  size_t work_bytes(size_t batch) const;  // SIZE_MAX with a sentence: more than can be addressed
  size_t saved_bytes(size_t batch) const;

 private:
  struct Saved;  // what a training call leaves for its gradients
  struct ForwardWork;
  struct BackwardWork;

  convolution::Problem problem(size_t batch) const;
  double pixels(size_t batch) const;
  convolution::Planes planes_of_output(void* y, size_t step) const;
  Saved lay_out_saved(size_t batch, std::byte* block, size_t* bytes) const;
  int reserve(size_t batch);
  void find_moments(const double* sums, const float* first, double n, const Saved& saved, double* covariances) const;
  void find_statistics(const ForwardWork& work, const Saved& saved, bool training) const;
  void find_gradients(const BackwardWork& work, const Saved& saved) const;
  void find_tap_gradients(const BackwardWork& work, const Saved& saved, double n) const;

  convolution::Convolution* first_ = nullptr;
  normalization::Normalization* second_ = nullptr;
  size_t channels_ = 0, taps_ = 0, outputs_ = 0;  // C, T, O
  KeptBlock block_;                               // of the last training call
};

}  // namespace obn::fused
