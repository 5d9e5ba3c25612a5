// What the desk (fused_nchwc.cpp) and the benches (fused_nchwc_kernels.cpp) share. Letters as in fused_nchwc.h.
#pragma once

#include <cstddef>

#include "base/targets.h"

namespace obn::fused::nchwc {

// The jobs below are for one plane, which is one group of channels of one sample. Strides count floats; arrays of
// numbers per channel are (lanes).

// Distances from `guess`, a value of each channel that the kernel takes for its mean.
struct Moments {
  const float* z;
  size_t row;            // from one row of z to the next
  size_t rows, columns;  // P, Q
  float *guess, *sum, *squares;  // written
};

struct Maxima {
  const float* z;
  size_t row;
  size_t rows, columns;  // of windows
  const float *mean, *scale, *shift;
  float low;             // 0 where `clips`, else -infinity
  bool clips;            // values that are not above 0 pass no gradient
  float* y;              // planes of windows, written
  size_t y_plane, channels;
  float* winners;        // (windows, lanes), written
};

struct WinnerSums {
  const float* dy;       // planes of windows
  size_t dy_plane, channels;
  size_t windows;
  const float *winners, *mean;
  float* dz;             // (windows, lanes), written: 0 where there is no winner
  float *sum, *products; // written: Σ dz, Σ dz·(z - mean)
};

// u = scale·dz + start - slope·(z - mean).
struct Gradient {
  const float* z;
  size_t row;
  size_t rows, columns;                  // P, Q
  size_t window_rows, window_columns;
  const float *winners, *dz;
  const float *mean, *scale, *start, *slope;
  float* u;                              // (u_rows, u_columns, lanes), written: one pixel of zeros around, or more behind
  size_t u_rows, u_columns;
};

struct Kernels {
  size_t lanes;
  void (*moments)(const Moments&);
  void (*maxima)(const Maxima&);
  void (*winner_sums)(const WinnerSums&);
  void (*gradient)(const Gradient&);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

}  // namespace obn::fused::nchwc
