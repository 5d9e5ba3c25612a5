// Two-dimensional convolution over ImageCHW: what the desk (convolution.cpp), the algorithms (winograd, depthwise,
// few_channels, direct) and the reference loops (convolution_ref.cpp) share.
//
// Letters: N samples, C input channels, O output channels, G groups, an input plane of H rows and W columns, an output
// plane of P rows and Q columns, a kernel of kh rows and kw columns.
//   y(n, o, p, q) = act(bias(o) + Σ w(o, c, ky, kx) · x(n, c, sy·p + dilation_y·ky - up, sx·q + dilation_x·kx - left))
// Algorithms see float32 whose rows are runs, and weights as (O, C/G, kh, kw) without gaps. The desk turns everything
// else (half types, integers, strided rows, the other weight layouts) into that, and transposed convolution into the
// convolution whose input gradient it is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation/activation.h"
#include "base/cpu.h"
#include "base/memory.h"

namespace obn::convolution {

struct Axis {
  int64_t in;        // W or H
  int64_t out;       // Q or P
  int64_t kernel;    // taps
  int64_t stride;
  int64_t dilation;
  int64_t before;    // padding in front; what hangs over behind reads zeros

  // Input position of tap k of output o; outside [0, in) it is padding.
  [[gnu::always_inline]] inline int64_t at(int64_t o, int64_t k) const { return stride * o + dilation * k - before; }
};

struct Problem {
  size_t batch;         // N
  size_t in_channels;   // C, all groups
  size_t out_channels;  // O, all groups
  size_t groups;        // G >= 1
  Axis x;
  Axis y;

  // Of any of the three passes.
  double multiplications() const {
    const auto of = [](const Axis& axis) { return static_cast<double>(axis.kernel) * static_cast<double>(axis.out); };
    return static_cast<double>(batch * out_channels) * static_cast<double>(in_channels / groups) * of(x) * of(y);
  }
};

// (N, channels, rows, columns) of float32; columns lie side by side. Strides count values.
struct Planes {
  float* data;
  size_t row;
  size_t plane;
  size_t sample;
};

struct Forward {
  Planes x;                             // read
  const float* w;                       // (O, C/G, kh, kw)
  Planes y;                             // written
  const float* bias;                    // (O), may be NULL
  const activation::Fused* activation;  // element-wise, over rows of y; NULL: none
};

// Also the forward pass of a transposed convolution: then dx is its output, and may have a bias and an activation.
struct InputGradient {
  Planes dz;                            // (N, O, P, Q) read
  const float* w;                       // (O, C/G, kh, kw)
  Planes dx;                            // (N, C, H, W) every value is written, also those no window reads
  bool accumulate;                      // dx += …; never together with bias or activation
  const float* bias;                    // (C), may be NULL
  const activation::Fused* activation;  // NULL: none
};

struct WeightGradient {
  Planes x;     // read
  Planes dz;    // read
  float* dw;    // (O, C/G, kh, kw) without gaps
  bool accumulate;
};

// One way to compute. Each pass has its own list, best first, the reference loops last; the desk takes the first that
// fits. `fits` looks at the shape only (any batch); `work_bytes` is what the threads of one call share in `work`
// (aligned to kAlignment); every thread may use its scratch besides. Bits do not depend on `threads`.
struct ForwardAlgorithm {
  const char* name;
  bool (*fits)(const Problem&);
  size_t (*work_bytes)(const Problem&);
  void (*run)(const Problem&, const Forward&, size_t threads, std::byte* work);
};
struct InputGradientAlgorithm {
  const char* name;
  bool (*fits)(const Problem&);
  size_t (*work_bytes)(const Problem&);
  void (*run)(const Problem&, const InputGradient&, size_t threads, std::byte* work);
};
struct WeightGradientAlgorithm {
  const char* name;
  bool (*fits)(const Problem&);
  size_t (*work_bytes)(const Problem&);
  void (*run)(const Problem&, const WeightGradient&, size_t threads, std::byte* work);
};

// winograd/: 3x3, stride 1, no dilation, one group. A value may reach the 6x6 tile around it (at most 5 columns and
// rows away), so one huge value, Inf or NaN is not local: there is a switch.
extern const ForwardAlgorithm winograd_forward;
extern const InputGradientAlgorithm winograd_input_gradient;
extern const WeightGradientAlgorithm winograd_weight_gradient;

// depthwise/: G = C = O (and O = m·C)
extern const ForwardAlgorithm depthwise_forward;
extern const InputGradientAlgorithm depthwise_input_gradient;
extern const WeightGradientAlgorithm depthwise_weight_gradient;

// few_channels/: few input channels, as in a first layer
extern const ForwardAlgorithm few_channels_forward;
extern const InputGradientAlgorithm few_channels_input_gradient;
extern const WeightGradientAlgorithm few_channels_weight_gradient;

// direct/: everything else, as products over blocks of the image that are laid out on the fly; fits unless a block
// would not
extern const ForwardAlgorithm direct_forward;
extern const InputGradientAlgorithm direct_input_gradient;
extern const WeightGradientAlgorithm direct_weight_gradient;

// convolution_ref.cpp: the formulas, float64 sums; fits always
extern const ForwardAlgorithm reference_forward;
extern const InputGradientAlgorithm reference_input_gradient;
extern const WeightGradientAlgorithm reference_weight_gradient;

}  // namespace obn::convolution
