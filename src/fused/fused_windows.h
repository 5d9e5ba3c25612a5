// A convolution of few taps, a batch norm and a max pooling in one pass: what the desk (fused_windows.cpp) and the
// benches (fused_windows_kernels.cpp) share.
//
// Letters and taps as in convolution/narrow.h; a window of the pooling has K = kh·kw pixels of the convolution's plane,
// numbered row by row, and all windows lie inside the plane without meeting each other. What window v reaches of x lies
// in rows and columns of its own, so it is staged as that of a convolution of larger kernel and stride, whose outputs
// are the windows: tap t of pixel k is one of its places. From the stage the places of a band of windows are laid out
// side by side for every vector of windows.
//   forward:  y(o, v) = max over k of max(low, bias(o) + Σ w(o, t) · tap(k, t)), and which k was first to have it
//   backward: only the pixel that won has a gradient, so the sums of dz·tap are sums over windows
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "convolution/narrow.h"

namespace obn::fused::windows {

inline constexpr size_t kMostPixels = 16;  // K
inline constexpr uint8_t kNoWinner = 255;  // the activation lets no gradient through

// Those of the pooling.
struct Windows {
  size_t rows, columns;  // of windows
  size_t kh, kw;         // pixels of one
  size_t sy, sx;         // pixels from one to the next
};

// Decided from the shapes alone.
struct Plan {
  convolution::narrow::Plan stage;
  size_t taps, pixels;  // T, K
  size_t places;
  uint16_t place[kMostPixels * convolution::narrow::kMostNormTaps];  // (K, T)
  bool in_pairs;        // windows of 2x2 over a convolution of 3x3, both strides 1: sums go by windows
};

struct Maxima {
  convolution::narrow::Taps x;
  const float* w;            // (O, T)
  const float* shared;       // what share_weights() makes of it, or NULL: Winograd's algorithm is not allowed
  const float* bias;         // (O)
  float low;
  bool clips;                // values that are not above 0 pass no gradient
  convolution::Planes y;     // (N, O, rows, columns), written; rows without gaps
  uint8_t* winners;          // (N, O, rows·columns), written; NULL: not wanted
  float most_weight = 0.0f, most_bias = 0.0f;  // bounds of |w| and |bias|, which maxima() finds
};

struct WinnerSums {
  convolution::narrow::Taps x;
  convolution::Planes dy;    // (N, O, rows, columns); rows without gaps
  const uint8_t* winners;
};

// One implementation. A unit is one band of one sample; `work` is a block of kScratchBytes.
struct Kernels {
  void (*maxima)(const Plan&, const Maxima&, size_t first_unit, size_t units, std::byte* work);
  // Sums over samples [first, first + count): (O, T) of dz(o)·tap(t), then (O) of dz(o). Plans in pairs only.
  void (*winner_sums)(const Plan&, const WinnerSums&, size_t first, size_t count, float* sums, std::byte* work);
};

extern const Targets<Kernels> targets;

// False: the shapes are not for this.
bool make_plan(const convolution::Problem& problem, const Windows& windows, Plan* plan);

// to (O, 12), for plans in pairs of one channel: the weights of Winograd's algorithm along the rows of the kernel.
bool shares_weights(const Plan& plan);
void share_weights(const Plan& plan, const float* w, float* to);
void maxima(const Kernels& kernels, const Plan& plan, Maxima call, size_t threads);
size_t winner_sums_bytes(const Plan& plan);  // of work
void winner_sums(const Kernels& kernels, const Plan& plan, const WinnerSums& call, size_t threads, double* sums,
                 std::byte* work);
// dz (N, O, P, Q) without gaps: dy at the pixels that won, zeros elsewhere.
void scatter(const convolution::Problem& problem, const Windows& windows, const convolution::Planes& dy,
             const uint8_t* winners, size_t threads, float* dz);

}  // namespace obn::fused::windows
