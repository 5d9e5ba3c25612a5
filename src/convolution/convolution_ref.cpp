// The formulas as they stand, summed in float64: what every other algorithm is compared with, and what runs where none
// of them fits.
#include <cstddef>
#include <cstdint>

#include "base/pool.h"
#include "convolution/convolution.h"

namespace obn::convolution {
namespace {

bool always(const Problem&) { return true; }
size_t nothing(const Problem&) { return 0; }

constexpr double kSlowly = 1.0;  // nanoseconds for a multiplication

size_t as_size(int64_t v) { return static_cast<size_t>(v); }

bool is_inside(const Axis& axis, int64_t position) { return position >= 0 && position < axis.in; }

// One piece is one plane of y.
void forward(const Problem& s, const Forward& f, size_t threads, std::byte*) {
  const size_t channels = s.in_channels / s.groups, outputs = s.out_channels / s.groups;
  const size_t taps = as_size(s.x.kernel * s.y.kernel);
  parallel(s.batch * s.out_channels, threads, kSlowly * s.multiplications(), [&](size_t piece) {
    const size_t n = piece / s.out_channels, o = piece % s.out_channels, c0 = o / outputs * channels;
    for (int64_t p = 0; p < s.y.out; ++p) {
      float* y = f.y.data + n * f.y.sample + o * f.y.plane + as_size(p) * f.y.row;
      for (int64_t q = 0; q < s.x.out; ++q) {
        double sum = f.bias ? f.bias[o] : 0.0;
        for (size_t c = 0; c < channels; ++c) {
          const float* x = f.x.data + n * f.x.sample + (c0 + c) * f.x.plane;
          const float* w = f.w + (o * channels + c) * taps;
          for (int64_t ky = 0; ky < s.y.kernel; ++ky) {
            for (int64_t kx = 0; kx < s.x.kernel; ++kx) {
              const int64_t v = s.y.at(p, ky), u = s.x.at(q, kx);
              if (!is_inside(s.y, v) || !is_inside(s.x, u)) continue;
              sum += static_cast<double>(w[ky * s.x.kernel + kx]) * x[as_size(v) * f.x.row + as_size(u)];
            }
          }
        }
        y[q] = static_cast<float>(sum);
      }
      if (f.activation) f.activation->forward(y, as_size(s.x.out));
    }
  });
}

// One piece is one plane of dx. Every position asks which windows read it.
void input_gradient(const Problem& s, const InputGradient& g, size_t threads, std::byte*) {
  const size_t channels = s.in_channels / s.groups, outputs = s.out_channels / s.groups;
  const size_t taps = as_size(s.x.kernel * s.y.kernel);
  parallel(s.batch * s.in_channels, threads, kSlowly * s.multiplications(), [&](size_t piece) {
    const size_t n = piece / s.in_channels, c = piece % s.in_channels, o0 = c / channels * outputs;
    for (int64_t v = 0; v < s.y.in; ++v) {
      float* dx = g.dx.data + n * g.dx.sample + c * g.dx.plane + as_size(v) * g.dx.row;
      for (int64_t u = 0; u < s.x.in; ++u) {
        double sum = g.bias ? g.bias[c] : 0.0;
        for (int64_t ky = 0; ky < s.y.kernel; ++ky) {
          const int64_t above = v + s.y.before - s.y.dilation * ky;  // stride · p
          if (above < 0 || above % s.y.stride != 0 || above / s.y.stride >= s.y.out) continue;
          for (int64_t kx = 0; kx < s.x.kernel; ++kx) {
            const int64_t left = u + s.x.before - s.x.dilation * kx;
            if (left < 0 || left % s.x.stride != 0 || left / s.x.stride >= s.x.out) continue;
            const float* dz = g.dz.data + n * g.dz.sample + as_size(above / s.y.stride) * g.dz.row +
                              as_size(left / s.x.stride);
            const float* w = g.w + (c % channels) * taps + as_size(ky * s.x.kernel + kx);
            for (size_t o = o0; o < o0 + outputs; ++o)
              sum += static_cast<double>(w[o * channels * taps]) * dz[o * g.dz.plane];
          }
        }
        dx[u] = g.accumulate ? static_cast<float>(dx[u] + sum) : static_cast<float>(sum);
      }
      if (g.activation) g.activation->forward(dx, as_size(s.x.in));
    }
  });
}

// One piece is the kernel between one input and one output channel.
void weight_gradient(const Problem& s, const WeightGradient& g, size_t threads, std::byte*) {
  const size_t channels = s.in_channels / s.groups, outputs = s.out_channels / s.groups;
  const size_t taps = as_size(s.x.kernel * s.y.kernel);
  parallel(s.out_channels * channels, threads, kSlowly * s.multiplications(), [&](size_t piece) {
    const size_t o = piece / channels, c = o / outputs * channels + piece % channels;
    for (int64_t ky = 0; ky < s.y.kernel; ++ky) {
      for (int64_t kx = 0; kx < s.x.kernel; ++kx) {
        double sum = 0.0;
        for (size_t n = 0; n < s.batch; ++n) {
          const float* x = g.x.data + n * g.x.sample + c * g.x.plane;
          const float* dz = g.dz.data + n * g.dz.sample + o * g.dz.plane;
          for (int64_t p = 0; p < s.y.out; ++p) {
            for (int64_t q = 0; q < s.x.out; ++q) {
              const int64_t v = s.y.at(p, ky), u = s.x.at(q, kx);
              if (!is_inside(s.y, v) || !is_inside(s.x, u)) continue;
              sum += static_cast<double>(dz[as_size(p) * g.dz.row + as_size(q)]) *
                     x[as_size(v) * g.x.row + as_size(u)];
            }
          }
        }
        float* dw = g.dw + piece * taps + as_size(ky * s.x.kernel + kx);
        *dw = g.accumulate ? static_cast<float>(*dw + sum) : static_cast<float>(sum);
      }
    }
  });
}

}  // namespace

constinit const ForwardAlgorithm reference_forward = {"reference", always, nothing, forward};
constinit const InputGradientAlgorithm reference_input_gradient = {"reference", always, nothing, input_gradient};
constinit const WeightGradientAlgorithm reference_weight_gradient = {"reference", always, nothing, weight_gradient};

}  // namespace obn::convolution
