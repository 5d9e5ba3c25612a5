// Convolution of few input channels, as in a first layer: what the desk (few_channels.cpp) and the benches
// (few_channels_kernels.cpp) share.
//
// Letters as in convolution.h; one group; T = C·kh·kw taps. Nearly all memory traffic is the O planes of y or dz, so
// those are read and written in place, pixels across lanes, many pixels and several planes at a time; what belongs to
// the few input channels lies in the first-level cache:
//   forward, dw: copies of x, one per kernel column, in rows of Q values that follow each other without gap (the
//                stage). Rows are split by phase (phases.h), so a tap is one distance in the stage for all pixels
//                of the plane: y(o) (P·Q) = Σ w(o, t) · stage(at(t)) (P·Q), and dw(o, t) = dz(o) · stage(at(t)).
//   dx:          first the gradient of every tap, g(t) (P·Q) = Σ w(o, t) · dz(o) (P·Q), then dx gathers the g(t) of
//                the windows that hold it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/targets.h"
#include "convolution/phases.h"

namespace obn::convolution::few_channels {

inline constexpr size_t kMostTaps = 64;

// Decided from the shape alone.
struct Plan {
  Problem problem;
  size_t taps;  // T

  // Rows done at a time: rows of y, for dx rows of places.
  size_t rows;
  size_t band;
  size_t bands;

  // Forward and dw: copy (c, kx) begins (c·kw + kx)·copy values into the stage, row phase r of it r·stage_rows rows
  // further.
  size_t stage_rows;
  size_t copy;
  size_t stage_floats;
  uint32_t at[kMostTaps];  // where tap t of output 0 lies
  size_t segments;         // dw: parts of the batch that are summed on their own

  // dx: gradient of tap t begins t·gradient values into g.
  size_t gradient;
  uint8_t phase_x[kMostTaps], phase_y[kMostTaps];
  uint32_t shift_x[kMostTaps], shift_y[kMostTaps];
};

// ---- with a batch norm behind it (fused/fused_few_channels.h) ----
//
// These passes work on the taps less the centre of their channel, which may be any number: tap(t) = stage(at(t)) -
// centre(c), also where the stage holds padding. dz = y > 0 ? dy : 0, or dy where there is no y.

inline constexpr size_t kMostNormTaps = 32;

struct Taps {
  Planes x;
  const float* centre;  // (C)
};
struct Masked {
  Planes dy;
  Planes y;  // data NULL: dz = dy
};

// y(o) = max(low, bias(o) + Σ w(o, t) · tap(t))
struct Standardize {
  Taps x;
  const float* w;     // (O, T)
  const float* bias;  // (O)
  float low;
  Planes y;           // written
};

// dx of the gradient of every tap, g(t) = start(t) + Σ slope(s, t) · tap(s) + Σ w(o, t) · dz(o)
struct NormInputGradient {
  Taps x;
  Masked dz;
  const float* w;      // (O, T)
  const float* start;  // (T)
  const float* slope;  // (T, T)
  Planes dx;           // every value is written
  bool accumulate;
};

// One implementation. A unit is one band of one sample; `work` is a block of kScratchBytes.
struct Kernels {
  void (*forward)(const Plan&, const Forward&, size_t first_unit, size_t units, std::byte* work);
  void (*input_gradient)(const Plan&, const InputGradient&, size_t first_unit, size_t units, std::byte* work);
  // Sums (O, T) over samples [first, first + count).
  void (*weight_gradient)(const Plan&, const WeightGradient&, size_t first, size_t count, float* sums,
                          std::byte* work);

  // Sums over samples [first, first + count): (T) of tap(t), then (T, T) of tap(s)·tap(t).
  void (*tap_moments)(const Plan&, const Taps&, size_t first, size_t count, double* sums, std::byte* work);
  void (*standardize)(const Plan&, const Standardize&, size_t first_unit, size_t units, std::byte* work);
  // Sums over samples [first, first + count): (O, T) of dz(o)·tap(t), then (O) of dz(o).
  void (*masked_sums)(const Plan&, const Taps&, const Masked&, size_t first, size_t count, float* sums,
                      std::byte* work);
  // `stage` is the plan of the stage under the rows of dz that a band of dx meets.
  void (*norm_input_gradient)(const Plan&, const Plan& stage, const NormInputGradient&, size_t first_unit,
                              size_t units, std::byte* work);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// The passes with a choice of kernels, for the tests; the algorithms take the best, and fit only where they win.
bool fits(const Problem& problem);
// The stage under bands of rows of y, of about `floats` values each; for a problem that fits.
void plan_bands_of_stage(const Problem& problem, size_t floats, Plan* plan);
size_t work_bytes(const Problem& problem);  // of the weight gradient; the others need none
void forward(const Kernels& kernels, const Problem& problem, const Forward& call, size_t threads);
void input_gradient(const Kernels& kernels, const Problem& problem, const InputGradient& call, size_t threads);
void weight_gradient(const Kernels& kernels, const Problem& problem, const WeightGradient& call, size_t threads,
                     std::byte* work);

// The passes with a batch norm. Sums are in float64, put together from those of parts in their order.
bool fits_norm(const Problem& problem);
size_t tap_moments_bytes(const Problem& problem);  // of work
size_t masked_sums_bytes(const Problem& problem);
void tap_moments(const Kernels& kernels, const Problem& problem, const Taps& x, size_t threads, double* sums,
                 std::byte* work);
void standardize(const Kernels& kernels, const Problem& problem, const Standardize& call, size_t threads);
void masked_sums(const Kernels& kernels, const Problem& problem, const Taps& x, const Masked& dz, size_t threads,
                 double* sums, std::byte* work);
void norm_input_gradient(const Kernels& kernels, const Problem& problem, const NormInputGradient& call,
                         size_t threads);

}  // namespace obn::convolution::few_channels

namespace obn::convolution {
}
