// Strides taken out of a convolution's axis (polyphase). Position u of the image is u + before = stride·j + r: place j
// of phase r. Output o meets tap k at place o + shift(k) of phase(k), where dilation·k = stride·shift + phase. Split by
// phase, neighbouring outputs read neighbouring values whatever the stride.
//   forward, dw: y(o) = Σ w(k) · x[phase(k)](o + shift(k))
//   dx:          dx[r](j) = Σ w(k) · dz(j - shift(k)) over the k whose phase is r
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "convolution/convolution.h"

namespace obn::convolution {

// Kernel files include this header too: nothing here may become a function of its own.
inline constexpr size_t kPad = 16;  // lanes of the widest target

[[gnu::always_inline]] inline size_t as_size(int64_t v) { return static_cast<size_t>(v); }
[[gnu::always_inline]] inline size_t least(size_t a, size_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline size_t most(size_t a, size_t b) { return a > b ? a : b; }

[[gnu::always_inline]] inline size_t shift_of(const Axis& axis, size_t k) {
  return as_size(axis.dilation) * k / as_size(axis.stride);
}
[[gnu::always_inline]] inline size_t phase_of(const Axis& axis, size_t k) {
  return as_size(axis.dilation) * k % as_size(axis.stride);
}
[[gnu::always_inline]] inline size_t largest_shift(const Axis& axis) {
  return shift_of(axis, as_size(axis.kernel) - 1);
}

// Places that the image spans.
[[gnu::always_inline]] inline size_t places_of(const Axis& axis) {
  return as_size((axis.in - 1 + axis.before) / axis.stride) + 1;
}

// Places of phase r that lie inside the image.
struct Places {
  size_t first;
  size_t end;
};
[[gnu::always_inline]] inline Places places_inside(const Axis& axis, size_t r) {
  const size_t stride = as_size(axis.stride), before = as_size(axis.before), end = before + as_size(axis.in);
  return {before > r ? divide_up(before - r, stride) : 0, end > r ? divide_up(end - r, stride) : 0};
}

}  // namespace obn::convolution
