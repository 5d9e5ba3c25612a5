// A convolution by Winograd's algorithm, a batch norm and a max pooling, the bench of what lies between them: compiled
// once per target. Channels lie across lanes. Letters as in fused_nchwc.h.
#include "fused/fused_nchwc_kernels.h"

#include <cstddef>

#include "simd/tile.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET::fused::nchwc {

using obn::fused::nchwc::Gradient;
using obn::fused::nchwc::Kernels;
using obn::fused::nchwc::Maxima;
using obn::fused::nchwc::Moments;
using obn::fused::nchwc::WinnerSums;

namespace {

OBN_INLINE size_t least(size_t a, size_t b) { return a < b ? a : b; }

// The mean, about: what is rounded here is made up for by the distances from it.
OBN_INLINE F about_mean(const Moments& m) {
  F sums[4] = {};
  for (size_t r = 0; r < m.rows; ++r) {
    const float* z = m.z + r * m.row;
    size_t x = 0;
    for (; x + 4 <= m.columns; x += 4)
#pragma GCC unroll 4
      for (size_t k = 0; k < 4; ++k) sums[k] += load(z + (x + k) * kLanes);
    for (; x < m.columns; ++x) sums[3] += load(z + x * kLanes);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) * splat(1.0f / static_cast<float>(m.rows * m.columns));
}

// Rows are summed apart and then added: short chains round less.
void moments(const Moments& m) {
  const F guess = about_mean(m);
  F sum = {}, squares = {};
  for (size_t r = 0; r < m.rows; ++r) {
    const float* z = m.z + r * m.row;
    F sums[2] = {}, products[2] = {};
    size_t x = 0;
    for (; x + 2 <= m.columns; x += 2)
#pragma GCC unroll 2
      for (size_t k = 0; k < 2; ++k) {
        const F apart = load(z + (x + k) * kLanes) - guess;
        sums[k] += apart;
        products[k] = fma(apart, apart, products[k]);
      }
    if (x < m.columns) {
      const F apart = load(z + x * kLanes) - guess;
      sums[0] += apart;
      products[0] = fma(apart, apart, products[0]);
    }
    sum += sums[0] + sums[1];
    squares += products[0] + products[1];
  }
  store(m.guess, guess);
  store(m.sum, sum);
  store(m.squares, squares);
}

// ---- windows of 2x2 ----

// Pixel k of the window at z.
OBN_INLINE F pixel(const float* z, size_t row, size_t k) { return load(z + k / 2 * row + k % 2 * kLanes); }

// In training no value of a channel is NaN, or all are: then the first pixel wins.
void maxima(const Maxima& given) {
  const Maxima m = given;  // a copy of its own: the compiler reads the other one again after every store
  const F mean = load(m.mean), scale = load(m.scale), shift = load(m.shift), low = splat(m.low);
  const F none = splat(__builtin_nanf(""));
  const size_t windows = m.rows * m.columns;
  const float* z = m.z;
  size_t column = 0;
  for (size_t first = 0; first < windows; first += kLanes) {
    const size_t n = least(kLanes, windows - first);
    F values[kLanes] = {};
    for (size_t i = 0; i < n; ++i) {
      F winner = pixel(z, m.row, 0), best = fma(winner - mean, scale, shift);
#pragma GCC unroll 3
      for (size_t k = 1; k < 4; ++k) {
        const F other = pixel(z, m.row, k), value = fma(other - mean, scale, shift);
        winner = value > best ? other : winner;
        best = max(value, best);
      }
      values[i] = max(low, best);
      store(m.winners + (first + i) * kLanes, m.clips ? best > F{} ? winner : none : winner);
      z += 2 * kLanes;
      if (++column < m.columns) continue;
      column = 0;
      z += 2 * (m.row - m.columns * kLanes);
    }
    transpose(values);
    for (size_t c = 0; c < m.channels; ++c) {
      float* y = m.y + c * m.y_plane + first;
      if (n == kLanes) {
        store(y, values[c]);
      } else {
        store_first(y, values[c], n);
      }
    }
  }
}

void winner_sums(const WinnerSums& given) {
  const WinnerSums s = given;
  const F mean = load(s.mean);
  F sum = {}, products = {};
  for (size_t first = 0; first < s.windows; first += kLanes) {
    const size_t n = least(kLanes, s.windows - first);
    F dy[kLanes] = {};
    for (size_t c = 0; c < s.channels; ++c) {
      const float* from = s.dy + c * s.dy_plane + first;
      dy[c] = n == kLanes ? load(from) : load_first(from, n);
    }
    transpose(dy);
    for (size_t i = 0; i < n; ++i) {
      const F winner = load(s.winners + (first + i) * kLanes);
      const F dz = is_nan(winner) ? F{} : dy[i], apart = is_nan(winner) ? F{} : winner - mean;
      store(s.dz + (first + i) * kLanes, dz);
      sum += dz;
      products = fma(dz, apart, products);
    }
  }
  store(s.sum, sum);
  store(s.products, products);
}

OBN_INLINE void fill_zeros(float* to, size_t pixels) {
  for (size_t i = 0; i < pixels; ++i) store(to + i * kLanes, F{});
}

// Of values that are not equal to a NaN the first that equals the winner is the winner: an equal one before it would
// have won.
void gradient(const Gradient& given) {
  const Gradient g = given;
  const F mean = load(g.mean), scale = load(g.scale), start = load(g.start), slope = load(g.slope);
  const auto plain = [&](F z) __attribute__((always_inline)) { return fnma(slope, z - mean, start); };
  const size_t u_row = g.u_columns * kLanes;
  float* inside = g.u + u_row + kLanes;
  fill_zeros(g.u, g.u_columns + 1);
  const float *winners = g.winners, *dz = g.dz;
  for (size_t r = 0; r < g.window_rows; ++r) {
    const float* z = g.z + 2 * r * g.row;
    float* u = inside + 2 * r * u_row;
    for (size_t c = 0; c < g.window_columns; ++c) {
      const F winner = load(winners);
      F rest = scale * load(dz);  // what the winner gets, until it was there
#pragma GCC unroll 4
      for (size_t k = 0; k < 4; ++k) {
        const F value = pixel(z, g.row, k), base = plain(value);
        store(u + k / 2 * u_row + k % 2 * kLanes, value == winner ? base + rest : base);
        rest = value == winner ? F{} : rest;
      }
      winners += kLanes;
      dz += kLanes;
      z += 2 * kLanes;
      u += 2 * kLanes;
    }
    const size_t behind = g.columns - 2 * g.window_columns;
    for (size_t i = 0; i < 2; ++i) {
      for (size_t x = 0; x < behind; ++x)
        store(u + i * u_row + x * kLanes, plain(load(z + i * g.row + x * kLanes)));
      fill_zeros(u + i * u_row + behind * kLanes, g.u_columns - g.columns);  // up to the first pixel of the next row
    }
  }
  for (size_t r = 2 * g.window_rows; r < g.rows; ++r) {
    float* u = inside + r * u_row;
    for (size_t x = 0; x < g.columns; ++x) store(u + x * kLanes, plain(load(g.z + r * g.row + x * kLanes)));
    fill_zeros(u + g.columns * kLanes, g.u_columns - g.columns);
  }
  fill_zeros(g.u + (g.rows + 1) * u_row + kLanes, (g.u_rows - g.rows - 1) * g.u_columns - 1);
}

constexpr obn::fused::nchwc::Kernels kernels = {kLanes, moments, maxima, winner_sums, gradient};

}  // namespace

}  // namespace obn::OBN_TARGET::fused::nchwc

constinit const obn::fused::nchwc::Kernels obn::fused::nchwc::Compiled::OBN_TARGET = obn::OBN_TARGET::fused::nchwc::kernels;
