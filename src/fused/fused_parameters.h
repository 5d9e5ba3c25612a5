// What layers that run a batch norm themselves share: its parameters as numbers, and the way back.
#pragma once

#include <algorithm>
#include <cstddef>

#include "activation/activation_walk.h"
#include "base/view.h"
#include "convolution/convolution_filter.h"
#include "normalization/normalization.h"

namespace obn::fused {

// γ or β as float64; `absent` where there is none.
inline void read_parameter(const normalization::Parameter& parameter, size_t count, double absent, float* row,
                           double* to) {
  if (parameter.values) {
    std::copy_n(parameter.values, count, to);
  } else if (parameter.is_read_each_call) {
    activation::Cursor from(parameter.walk, 0);
    activation::read_row(activation::targets.best(), from, count, row);
    std::copy_n(row, count, to);
  } else {
    std::fill_n(to, count, absent);
  }
}

// dγ or dβ, set or added.
inline void store_gradient(const normalization::ParameterGradient& gradient, const double* values, size_t count,
                           float* row) {
  if (!gradient.is_wanted) return;
  const activation::Kernels& kernels = activation::targets.best();
  std::fill_n(row, count, 0.0f);
  if (gradient.accumulate) {
    activation::Cursor old(gradient.walk, 0);
    activation::read_row(kernels, old, count, row);
  }
  for (size_t i = 0; i < count; ++i) row[i] += static_cast<float>(values[i]);
  activation::Cursor to(gradient.walk, 0);
  activation::write_row(kernels, to, count, row);
}

// float32 planes without gaps.
inline bool has_plain_planes(const View& y) {
  return convolution::Images{&y, nullptr, 0}.is_direct() && (y.extent[1] == 1 || y.stride[1] == y.extent[0]);
}

}  // namespace obn::fused
