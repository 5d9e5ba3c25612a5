// Convolution of small integers. With x = a·X + b and w = c·W + d, X and W stored,
//   Σ w·x = a·c·ΣXW + a·d·ΣX + b·c·ΣW + b·d·n
// over the n taps inside the image; padding is the real number 0.
// The four sums are integers and exact.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/pool.h"
#include "convolution/convolution_filter.h"

namespace obn::convolution {
namespace {

constexpr size_t kColumns = 1024;     // outputs of a row done at a time
constexpr size_t kMostTaps = 1 << 15;  // products (below 2^16 each) whose sum stays below 2^31

// Sums of some columns of one output row.
struct Sums {
  int32_t products[kColumns];
  int64_t products_so_far[kColumns];
  int64_t x[kColumns], w[kColumns], taps[kColumns];
};

void flush(Sums* sums, size_t n) {
  for (size_t q = 0; q < n; ++q) {
    sums->products_so_far[q] += sums->products[q];
    sums->products[q] = 0;
  }
}

// The columns [begin, end) of [first, first + n) whose tap k lies inside the image, counted from first.
void inside(const Axis& axis, int64_t k, int64_t first, int64_t n, int64_t* begin, int64_t* end) {
  const int64_t start = axis.at(first, k);  // where tap k of the first column reads
  *begin = start >= 0 ? 0 : std::min(n, divide_up(-start, axis.stride));
  *end = start >= axis.in ? *begin : std::clamp((axis.in - 1 - start) / axis.stride + 1, *begin, n);
}

// Adds one row of taps. x is the image row, values x_step apart; w (kw).
template <class T>
void add_taps(const Axis& axis, const T* x, size_t x_step, const float* w, int64_t first, size_t n, bool with_offsets,
              size_t* taken, Sums* sums) {
  for (int64_t k = 0; k < axis.kernel; ++k) {
    int64_t begin, end;
    inside(axis, k, first, static_cast<int64_t>(n), &begin, &end);
    if (begin >= end) continue;
    if (++*taken == kMostTaps) {
      flush(sums, n);
      *taken = 1;
    }
    const int32_t weight = static_cast<int32_t>(w[k]);
    const size_t step = static_cast<size_t>(axis.stride) * x_step, count = static_cast<size_t>(end - begin);
    const T* from = x + static_cast<size_t>(axis.at(first + begin, k)) * x_step;
    int32_t* products = sums->products + begin;
    for (size_t q = 0; q < count; ++q) products[q] += weight * from[q * step];
    if (!with_offsets) continue;
    for (size_t q = 0; q < count; ++q) {
      sums->x[static_cast<size_t>(begin) + q] += from[q * step];
      sums->w[static_cast<size_t>(begin) + q] += weight;
      ++sums->taps[static_cast<size_t>(begin) + q];
    }
  }
}

template <class T>
void forward(const Problem& s, const IntegerForward& f, size_t threads) {
  const View &xv = *f.x.view, &yv = *f.y.view;
  const size_t channels = s.in_channels / s.groups, outputs = s.out_channels / s.groups;
  const size_t kw = static_cast<size_t>(s.x.kernel), kh = static_cast<size_t>(s.y.kernel);
  const size_t rows = static_cast<size_t>(s.y.out), columns = static_cast<size_t>(s.x.out);
  const bool with_offsets = xv.bias != 0.0f || f.w_bias != 0.0f;
  const double a = xv.scale, b = xv.bias, c = f.w_scale, d = f.w_bias;
  // One piece is one row of y.
  parallel(s.batch * s.out_channels * rows, threads, 16 * kMultiplyAdd * s.multiplications(), [&](size_t piece) {
    const size_t n = piece / rows / s.out_channels, o = piece / rows % s.out_channels, p = piece % rows;
    const size_t y_row = n * f.y.step + o * yv.stride[2] + p * yv.stride[1];
    Sums* sums = reinterpret_cast<Sums*>(scratch());
    float* results = reinterpret_cast<float*>(scratch() + sizeof(Sums));
    for (size_t first = 0; first < columns; first += kColumns) {
      const size_t count = std::min(kColumns, columns - first);
      *sums = {};
      size_t taken = 0;
      for (size_t i = 0; i < channels; ++i) {
        for (size_t ky = 0; ky < kh; ++ky) {
          const int64_t v = s.y.at(static_cast<int64_t>(p), static_cast<int64_t>(ky));
          if (v < 0 || v >= s.y.in) continue;
          const T* x = reinterpret_cast<const T*>(f.x.data) + n * f.x.step +
                       (o / outputs * channels + i) * xv.stride[2] + static_cast<size_t>(v) * xv.stride[1];
          add_taps(s.x, x, xv.stride[0], f.w + ((o * channels + i) * kh + ky) * kw, static_cast<int64_t>(first), count,
                   with_offsets, &taken, sums);
        }
      }
      flush(sums, count);
      for (size_t q = 0; q < count; ++q) {
        double y = a * c * static_cast<double>(sums->products_so_far[q]) + a * d * static_cast<double>(sums->x[q]) +
                   b * c * static_cast<double>(sums->w[q]) + b * d * static_cast<double>(sums->taps[q]);
        if (f.bias) y += f.bias[o];
        results[q] = static_cast<float>(y);
      }
      if (f.activation) f.activation->forward(results, count);
      store_run(f.y, y_row + first * yv.stride[0], count, results);
    }
  });
}

}  // namespace

void integer_forward(const Problem& problem, const IntegerForward& f, size_t threads) {
  if (f.x.view->type == BNNSDataTypeInt8) {
    forward<int8_t>(problem, f, threads);
  } else {
    forward<uint8_t>(problem, f, threads);
  }
}

}  // namespace obn::convolution
