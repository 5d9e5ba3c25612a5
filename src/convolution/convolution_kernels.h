// What the desk itself does to rows of float32, once per target.
#pragma once

#include <cstddef>

#include "base/targets.h"
#include "openbnns/bnns/base.h"

namespace obn::convolution {

struct Kernels {
  void (*load)(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);  // simd/convert.h
  void (*store)(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
  void (*add)(const float* a, float* sum, size_t n);  // sum += a
  double (*sum)(const float* row, size_t n);          // in a fixed order
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

}  // namespace obn::convolution
