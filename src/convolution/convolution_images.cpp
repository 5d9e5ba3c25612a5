// Images of any type and stride, to and from float32; what happens to the output gradient before the products.
#include <algorithm>
#include <atomic>
#include <cstddef>

#include "base/integer.h"
#include "base/pool.h"
#include "base/status.h"
#include "convolution/convolution_filter.h"

namespace obn {

namespace convolution {

namespace {

constexpr size_t kBlock = 2048;                     // values done at a time, in the first-level cache
constexpr size_t kPieceValues = size_t{1} << 15;    // of one piece of work, about

// The rows of one plane, taken as a single one where they follow each other.
struct Rows {
  size_t count;
  size_t length;

  Rows(const View& view, bool follow) : count(view.extent[1]), length(view.extent[0]) {
    if (!follow) return;
    length *= count;
    count = 1;
  }
};

// Then the plane is one run of values, stride[0] apart. A row of one value says nothing about stride[0].
bool rows_follow(const View& view) {
  return view.extent[1] == 1 || (view.stride[1] == view.extent[0] * view.stride[0] &&
                                 (view.extent[0] > 1 || view.stride[0] == 1));
}

// Index of the first value of a row.
size_t row_index(const Images& images, size_t sample, size_t channel, size_t row) {
  return sample * images.step + channel * images.view->stride[2] + row * images.view->stride[1];
}

// n <= kBlock values of any type from `index` on, to or from float32.
void load_values(const Kernels& kernels, const Images& from, size_t index, size_t n, float* row) {
  const View& v = *from.view;
  if (is_float(v.type)) return kernels.load(v.type, from.data + index * bytes_of(v.type), v.stride[0], n, row);
  double reals[kBlock];
  activation::ref::get_reals({from.data, v.type, v.scale, v.bias, v.table, v.table_type}, index, v.stride[0], n, reals);
  std::copy_n(reals, n, row);
}

void store_values(const Kernels& kernels, const Images& to, size_t index, size_t n, const float* row) {
  const View& v = *to.view;
  if (is_float(v.type)) return kernels.store(v.type, to.data + index * bytes_of(v.type), v.stride[0], n, row);
  double reals[kBlock];
  std::copy_n(row, n, reals);
  activation::ref::put_reals({to.data, v.type, v.scale, v.bias, v.table, v.table_type}, index, v.stride[0], n, reals);
}

// Calls body(sample, channel) for every plane, planes of a piece in order.
template <class Body>
void for_planes(const View& view, size_t samples, size_t threads, const Body& body) {
  const size_t channels = view.extent[2], planes = samples * channels;
  const size_t together = std::max<size_t>(1, kPieceValues / (view.extent[0] * view.extent[1]));
  parallel(divide_up(planes, together), threads, 8 * kByte * planes * view.extent[0] * view.extent[1], [&](size_t piece) {
    const size_t end = std::min(planes, (piece + 1) * together);
    for (size_t plane = piece * together; plane < end; ++plane) body(plane / channels, plane % channels);
  });
}

// Calls body(begin, n) for the blocks of [0, length).
template <class Body>
void by_blocks(size_t length, size_t block, const Body& body) {
  for (size_t begin = 0; begin < length; begin += block) body(begin, std::min(block, length - begin));
}

}  // namespace

bool Images::is_direct() const {
  return view->type == BNNSDataTypeFloat32 && (view->stride[0] == 1 || view->extent[0] == 1);
}

// Strides of axes with one value are free in a descriptor; algorithms get those of an image without gaps.
Planes Images::planes(size_t sample) const {
  const size_t row = view->extent[1] == 1 ? view->extent[0] : view->stride[1];
  const size_t plane = view->extent[2] == 1 ? row * view->extent[1] : view->stride[2];
  return {reinterpret_cast<float*>(data) + sample * step, row, plane, step};
}

Planes dense_planes(const View& view, float* data) {
  const size_t plane = view.extent[0] * view.extent[1];
  return {data, view.extent[0], plane, plane * view.extent[2]};
}

void load_images(const Images& from, size_t first, size_t samples, size_t threads, float* to) {
  const Kernels& kernels = targets.best();
  const View& v = *from.view;
  const Planes dense = dense_planes(v, to);
  const Rows rows(v, rows_follow(v));
  for_planes(v, samples, threads, [&](size_t n, size_t c) {
    for (size_t row = 0; row < rows.count; ++row) {
      const size_t index = row_index(from, first + n, c, row);
      float* y = dense.data + n * dense.sample + c * dense.plane + row * dense.row;
      by_blocks(rows.length, kBlock, [&](size_t i, size_t m) {
        load_values(kernels, from, index + i * v.stride[0], m, y + i);
      });
    }
  });
}

void store_images(const float* from, const Images& to, size_t first, size_t samples, bool accumulate, size_t threads) {
  const Kernels& kernels = targets.best();
  const View& v = *to.view;
  const Planes dense = dense_planes(v, const_cast<float*>(from));
  const Rows rows(v, rows_follow(v));
  for_planes(v, samples, threads, [&](size_t n, size_t c) {
    float sum[kBlock];
    for (size_t row = 0; row < rows.count; ++row) {
      const size_t index = row_index(to, first + n, c, row);
      const float* x = dense.data + n * dense.sample + c * dense.plane + row * dense.row;
      by_blocks(rows.length, kBlock, [&](size_t i, size_t m) {
        const size_t at = index + i * v.stride[0];
        if (!accumulate) return store_values(kernels, to, at, m, x + i);
        load_values(kernels, to, at, m, sum);
        kernels.add(x + i, sum, m);
        store_values(kernels, to, at, m, sum);
      });
    }
  });
}

void store_run(const Images& to, size_t index, size_t n, const float* row) {
  by_blocks(n, kBlock, [&](size_t i, size_t m) {
    store_values(targets.best(), to, index + i * to.view->stride[0], m, row + i);
  });
}

void activate_rows(const activation::Fused& activation, const View& view, const Planes& y, size_t samples,
                   size_t threads) {
  for_planes(view, samples, threads, [&](size_t n, size_t c) {
    for (size_t row = 0; row < view.extent[1]; ++row)
      activation.forward(y.data + n * y.sample + c * y.plane + row * y.row, view.extent[0]);
  });
}

namespace {

// One plane of dz. Returns the sum of its values, if that is wanted.
double make_plane(const OutputGradient& g, const Kernels& kernels, size_t sample, size_t channel, float* dz) {
  const View& v = *g.dy.view;
  const bool together = !g.needs_rows && rows_follow(v) && (!g.activation || rows_follow(*g.y.view));
  const Rows rows(v, together);
  const bool y_direct = g.activation && g.y.is_direct();
  float* y_row = reinterpret_cast<float*>(scratch());
  double sum = 0.0;
  for (size_t row = 0; row < rows.count; ++row) {
    const size_t at = row_index(g.dy, sample, channel, row);
    float* to = dz ? dz + row * rows.length : reinterpret_cast<float*>(g.dy.data) + at;
    const size_t y_at = g.activation ? row_index(g.y, sample, channel, row) : 0;
    if (g.needs_rows) {  // creation made sure that a row fits into scratch
      by_blocks(rows.length, kBlock, [&](size_t i, size_t n) {
        load_values(kernels, g.dy, at + i * v.stride[0], n, to + i);
        load_values(kernels, g.y, y_at + i * g.y.view->stride[0], n, y_row + i);
      });
      g.activation->backward(y_row, to, rows.length);
      if (g.partial) sum += kernels.sum(to, rows.length);
      continue;
    }
    by_blocks(rows.length, kBlock, [&](size_t i, size_t n) {
      if (dz) load_values(kernels, g.dy, at + i * v.stride[0], n, to + i);
      if (g.activation) {
        const float* y = reinterpret_cast<const float*>(g.y.data) + y_at + i;
        if (!y_direct) {
          load_values(kernels, g.y, y_at + i * g.y.view->stride[0], n, y_row);
          y = y_row;
        }
        g.activation->backward(y, to + i, n);
      }
      if (g.partial) sum += kernels.sum(to + i, n);
    });
  }
  return sum;
}

}  // namespace

// A piece is one channel of some samples; without sums to keep apart, of one sample.
void make_output_gradient(const OutputGradient& g, size_t first, size_t samples, size_t threads) {
  const View& v = *g.dy.view;
  const size_t channels = v.extent[2], plane = v.extent[0] * v.extent[1];
  const Kernels& kernels = targets.best();
  const auto one = [&](size_t n, size_t c) {
    return make_plane(g, kernels, first + n, c, g.dz ? g.dz + (n * channels + c) * plane : nullptr);
  };
  if (!g.partial) return for_planes(v, samples, threads, [&](size_t n, size_t c) { one(n, c); });
  const size_t groups = std::min(samples, kSumGroups);
  parallel(groups * channels, threads, 12 * kByte * samples * channels * plane, [&](size_t piece) {
    const size_t group = piece / channels, c = piece % channels;
    double sum = 0.0;
    for (size_t n = group * samples / groups; n < (group + 1) * samples / groups; ++n) sum += one(n, c);
    g.partial[piece] = sum;
  });
  for (size_t piece = 0; piece < groups * channels; ++piece) g.sums[piece % channels] += g.partial[piece];
}

double sum_channel(const float* dz, size_t samples, size_t values) {
  const Kernels& kernels = targets.best();
  const size_t groups = std::min(samples, kSumGroups);
  double all = 0.0;
  for (size_t group = 0; group < groups; ++group) {
    double sum = 0.0;
    for (size_t n = group * samples / groups; n < (group + 1) * samples / groups; ++n) {
      double plane = 0.0;
      by_blocks(values, kBlock, [&](size_t i, size_t m) { plane += kernels.sum(dz + n * values + i, m); });
      sum += plane;
    }
    all += sum;
  }
  return all;
}

bool accepts_output(const activation::Fused& activation, const Images& y, size_t batch, size_t threads) {
  const Kernels& kernels = targets.best();
  const View& v = *y.view;
  const Rows rows(v, rows_follow(v));
  std::atomic<bool> accepted{true};
  for_planes(v, batch, threads, [&](size_t n, size_t c) {
    float values[kBlock];
    for (size_t row = 0; row < rows.count; ++row) {
      const size_t at = row_index(y, n, c, row);
      by_blocks(rows.length, kBlock, [&](size_t i, size_t m) {
        load_values(kernels, y, at + i * v.stride[0], m, values);
        if (!activation.accepts(values, m)) accepted.store(false, std::memory_order_relaxed);
      });
    }
  });
  return accepted.load(std::memory_order_relaxed);
}

void load_channels(const View& v, size_t stride, size_t channels, float* to) {
  const activation::ref::Values values = {v.data, v.type, v.scale, v.bias, v.table, v.table_type};
  for (size_t c = 0; c < channels; ++c) {
    double real;
    activation::ref::get_reals(values, c * stride, 1, 1, &real);
    to[c] = static_cast<float>(real);
  }
}

}  // namespace convolution
}  // namespace obn
