// The axes of several tensors that are walked together, merged into as few loops as possible. A tensor that is
// broadcast along an axis has stride 0 there.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/view.h"

namespace obn {

// n is the largest number of tensors.
template <size_t n>
struct Loops {
  static constexpr size_t kAxes = BNNS_MAX_TENSOR_DIMENSION + 1;  // those of a view, and the batch

  size_t tensors = 0;
  size_t rank = 0;  // at least 1 once axes were added and finish() was called
  size_t extent[kAxes];
  size_t stride[kAxes][n];

  // The next slower axis; its strides are those of the tensors in order. Axes that do not move are dropped, and an axis
  // that begins where the one before it ends, in every tensor, becomes part of it.
  void add(size_t axis_extent, const size_t* strides, bool may_merge = true) {
    if (axis_extent == 1 && may_merge) return;
    bool merges = rank > 0 && may_merge;
    for (size_t t = 0; merges && t < tensors; ++t) merges = strides[t] == stride[rank - 1][t] * extent[rank - 1];
    if (merges) {
      extent[rank - 1] *= axis_extent;
      return;
    }
    std::copy_n(strides, tensors, stride[rank]);
    extent[rank++] = axis_extent;
  }

  // Makes a single value one axis of extent 1, contiguous for every tensor.
  void finish() {
    if (rank > 0) return;
    std::fill_n(stride[0], tensors, size_t{1});
    extent[rank++] = 1;
  }
};

// Where the tensors stand, on the axes from `first` on; counts values from each tensor's data.
template <size_t n>
class Position {
 public:
  Position(const Loops<n>& loops, size_t first) : loops_(loops), first_(first) {}

  size_t offset(size_t tensor) const { return offset_[tensor]; }

  // index counts the axes from `first` on, fastest first.
  void seek(size_t index) {
    std::fill_n(offset_, loops_.tensors, size_t{0});
    for (size_t k = first_; k < loops_.rank; ++k) {
      at_[k] = index % loops_.extent[k];
      index /= loops_.extent[k];
      for (size_t t = 0; t < loops_.tensors; ++t) offset_[t] += at_[k] * loops_.stride[k][t];
    }
  }

  void step() {
    for (size_t k = first_; k < loops_.rank; ++k) {
      for (size_t t = 0; t < loops_.tensors; ++t) offset_[t] += loops_.stride[k][t];
      if (++at_[k] < loops_.extent[k]) return;
      for (size_t t = 0; t < loops_.tensors; ++t) offset_[t] -= at_[k] * loops_.stride[k][t];
      at_[k] = 0;
    }
  }

 private:
  const Loops<n>& loops_;
  size_t first_;
  size_t at_[Loops<n>::kAxes];
  size_t offset_[n] = {};  // for compilers that do not see that seek comes first
};

}  // namespace obn
