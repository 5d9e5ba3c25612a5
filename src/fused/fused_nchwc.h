// A convolution by Winograd's algorithm, a batch norm and a max pooling of 2x2 on small planes, trained as one layer.
//
// Letters as in normalization.h, convolution/winograd and fused.h; n = N·P·Q pixels, s = γ·r. Between the layers
// channels lie across lanes (Lanes in convolution/winograd/winograd.h), as Winograd's tiles have them anyway, so nothing is
// turned on the way from one layer to the next, and statistics, maxima and gradients are whole vectors.
//   forward:  z by blocks of samples, with the moments of each; then y = max of max(low, s·(z - mean) + shift), and the
//             z that won, NaN where no gradient gets through
//   backward: dβ = Σ dz and dγ = Σ dz·x̂ over windows, as only the pixel that won has a gradient; then by blocks of
//             samples u = s·(dz - dβ/n - x̂·dγ/n), and while it is near dx and the sums that dw is made of
// So z is written once and read twice, u never leaves the thread, and no array has the size of z besides.
#pragma once

#include <cstddef>

#include "base/kept_block.h"
#include "convolution/convolution_filter.h"
#include "convolution/winograd/winograd.h"
#include "fused/fused_nchwc_kernels.h"
#include "normalization/normalization.h"
#include "pooling/pooling.h"

namespace obn::fused {
class NchwcNorm {
 public:
  explicit NchwcNorm(const Options& options) : block_(options) {}

  // True: the layers are of the kind that can be trained here. All of them stay, as does `y`, the pooling's output.
  bool join(convolution::Convolution* first, normalization::Normalization* second, const pooling::Plan& pooling,
            const View& y);
  // And now they are, with this batch.
  bool takes(size_t batch) const;

  // A training call and its gradients. Everything was checked; -1 with a sentence where memory is missing.
  int apply(size_t batch, const convolution::Images& x, float* y, size_t y_step);
  int apply_backward(const convolution::Gradients& first, const normalization::Gradients& second);

  size_t work_bytes(size_t batch) const;  // SIZE_MAX with a sentence: more than can be addressed
  size_t saved_bytes(size_t batch) const;

 private:
  struct Shape;  // what follows from the problem and the batch
  struct Saved;   // what a training call leaves for its gradients
  struct ForwardWork;
  struct BackwardWork;

  Shape shape(size_t batch) const;
  Saved lay_out_saved(const Shape& s, std::byte* block, size_t* bytes) const;
  int reserve(size_t batch);
  void make_z(const Shape& s, const ForwardWork& work, const convolution::Planes& x, const Saved& saved,
              size_t block) const;
  void find_statistics(const Shape& s, const ForwardWork& work, const Saved& saved) const;
  void find_slopes(const Shape& s, const BackwardWork& work, const Saved& saved) const;
  void make_u(const Shape& s, const BackwardWork& work, const Saved& saved, size_t sample, float* u) const;
  void run_block(const Shape& s, const BackwardWork& work, const Saved& saved, const convolution::Planes& x,
                 const convolution::InputGradient& dx, size_t block, bool is_first, float* sum) const;

  convolution::Convolution* first_ = nullptr;
  normalization::Normalization* second_ = nullptr;
  const View* y_ = nullptr;            // of the pooling
  size_t rows_ = 0, columns_ = 0;      // of windows
  KeptBlock block_;                    // of the last training call
};

}  // namespace obn::fused
