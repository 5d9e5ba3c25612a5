// Rows of values on their way in and out, for the kernels that split an axis by its stride (phases.h). Included by
// kernel files only.
#pragma once

#include <cstddef>

#include "convolution/phases.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::convolution {

using obn::convolution::as_size;
using obn::convolution::Axis;
using obn::convolution::kPad;
using obn::convolution::least;
using obn::convolution::most;

// Whole vectors: up to kLanes - 1 zeros more than n.
OBN_INLINE void fill_zeros(float* p, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) store(p + i, F{});
}

// A row of n values; may spill zeros, less than kLanes of them behind it.
OBN_INLINE void copy_row(const float* row, size_t n, float* to) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(row + i));
  if (i == n) return;
  if (kLanes == 16 || n < kLanes) return store(to + i, load_first(row + i, n - i));
  store(to + n - kLanes, load(row + n - kLanes));
}

// Values 0, 2, … of the row to even, 1, 3, … to odd; spills zeros, less than kLanes values behind each.
OBN_INLINE void copy_pairs(const float* row, size_t n, float* even, float* odd) {
  F e, o;
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    split_pairs(load(row + i), load(row + i + kLanes), &e, &o);
    store(even + i / 2, e);
    store(odd + i / 2, o);
  }
  if (i == n) return;
  const size_t rest = n - i;
  const F low = rest >= kLanes ? load(row + i) : load_first(row + i, rest);
  const F high = rest > kLanes ? load_first(row + i + kLanes, rest - kLanes) : F{};
  split_pairs(low, high, &e, &o);
  store(even + i / 2, e);
  if (rest > 1) store(odd + i / 2, o);
}

// Column u of a row of dx is value u / stride of lines[u % stride] (each `pitch` long), counted from column 0.
OBN_INLINE void join_row(const float* lines, size_t pitch, size_t stride, size_t n, bool accumulate, float* dx) {
  size_t u = 0;
  if (stride == 2) {
    F a, b;
    for (; u + 2 * kLanes <= n; u += 2 * kLanes) {
      join_pairs(load(lines + u / 2), load(lines + pitch + u / 2), &a, &b);
      store(dx + u, accumulate ? load(dx + u) + a : a);
      store(dx + u + kLanes, accumulate ? load(dx + u + kLanes) + b : b);
    }
    if (u + kLanes <= n) {
      join_pairs(load(lines + u / 2), load(lines + pitch + u / 2), &a, &b);
      store(dx + u, accumulate ? load(dx + u) + a : a);
      u += kLanes;
      if (kLanes == 16 && u < n) {
        store_first(dx + u, accumulate ? load_first(dx + u, n - u) + b : b, n - u);
        return;
      }
    } else if (kLanes == 16 && u < n) {
      join_pairs(load(lines + u / 2), load(lines + pitch + u / 2), &a, &b);
      store_first(dx + u, accumulate ? load_first(dx + u, n - u) + a : a, n - u);
      return;
    }
  }
  for (size_t r = 0; r < stride; ++r) {
    for (size_t i = u + (r + stride - u % stride) % stride; i < n; i += stride) {
      const float v = lines[r * pitch + i / stride];
      dx[i] = accumulate ? dx[i] + v : v;
    }
  }
}

// Asks for values that will be read soon, as many as the first-level cache can take beside what is in use.
OBN_INLINE void fetch_ahead(const float* p, size_t n) {
  constexpr size_t kMost = 1024, kLine = 16;
  for (size_t i = 0; i < n && i < kMost; i += kLine) __builtin_prefetch(p + i);
}

// y (rows, columns), finished, in place.
OBN_INLINE void activate(const obn::activation::Fused* activation, float* y, size_t y_row, size_t rows,
                         size_t columns) {
  if (!activation) return;
  if (y_row == columns) return activation->forward(y, rows * columns);
  for (size_t r = 0; r < rows; ++r) activation->forward(y + r * y_row, columns);
}

}  // namespace obn::OBN_TARGET::convolution
