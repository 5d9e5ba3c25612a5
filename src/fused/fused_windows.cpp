// A convolution of few taps, a batch norm and a max pooling in one pass, the desk: plans the stage of the windows and
// cuts a call into pieces.
#include "fused/fused_windows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/memory.h"
#include "base/pool.h"

namespace obn::portable::fused::windows {
extern const obn::fused::windows::Kernels kernels;
}
#if defined(OBN_X86)
namespace obn::avx2::fused::windows {
extern const obn::fused::windows::Kernels kernels;
}
namespace obn::avx512::fused::windows {
extern const obn::fused::windows::Kernels kernels;
}
#endif

namespace obn::fused::windows {

namespace narrow = convolution::narrow;
using convolution::as_size;
using convolution::Axis;
using convolution::Problem;

#if defined(OBN_X86)
constinit const Targets<Kernels> targets = {&portable::fused::windows::kernels, &avx2::fused::windows::kernels,
                                            &avx512::fused::windows::kernels, nullptr};
#else
constinit const Targets<Kernels> targets = {&portable::fused::windows::kernels, nullptr, nullptr, nullptr};
#endif

namespace {

constexpr size_t kStageFloats = size_t{1} << 11;      // aimed at; the places take about twice as much
constexpr size_t kMostPlaceFloats = size_t{1} << 18;  // never more: 1 MiB
constexpr size_t kPiecePixels = size_t{1} << 15;      // of all planes, in one piece: some 10 us
constexpr size_t kSegmentWindows = size_t{1} << 16;   // of one plane, summed in one go: bounds the rounding error
constexpr size_t kLeastSegments = 8;
constexpr size_t kJoined = 4;                         // samples whose last windows the kernels like to join
constexpr size_t kLeastPieces = 8;                    // where they are

// What a row of windows reaches, as an axis whose outputs are the windows.
Axis axis_of_windows(const Axis& axis, size_t windows, size_t kernel, size_t stride) {
  Axis to = axis;
  to.out = static_cast<int64_t>(windows);
  to.kernel = axis.stride * static_cast<int64_t>(kernel - 1) + axis.dilation * (axis.kernel - 1) + 1;
  to.stride = axis.stride * static_cast<int64_t>(stride);
  to.dilation = 1;
  return to;
}

size_t segments_of(const Plan& plan) {
  const Problem& s = plan.stage.problem;
  const size_t for_accuracy = (s.batch * as_size(s.x.out * s.y.out) + kSegmentWindows - 1) / kSegmentWindows;
  return std::min(std::max(for_accuracy, kLeastSegments), s.batch);
}

size_t sums_of(const Plan& plan) { return plan.stage.problem.out_channels * (plan.taps + 1); }

}  // namespace

bool make_plan(const Problem& s, const Windows& w, Plan* plan) {
  if (!narrow::fits_norm(s) || w.kh == 0 || w.kw == 0 || w.kh > kMostPixels || w.kw > kMostPixels / w.kh) return false;
  if (w.sx < w.kw || w.sy < w.kh || w.sx > narrow::kMostTaps || w.sy > narrow::kMostTaps) return false;
  if (w.columns == 0 || w.rows == 0 || w.sx * (w.columns - 1) + w.kw > as_size(s.x.out) ||
      w.sy * (w.rows - 1) + w.kh > as_size(s.y.out))
    return false;
  Problem of_windows = s;
  of_windows.x = axis_of_windows(s.x, w.columns, w.kw, w.sx);
  of_windows.y = axis_of_windows(s.y, w.rows, w.kh, w.sy);
  if (!narrow::fits(of_windows)) return false;
  narrow::plan_bands_of_stage(of_windows, kStageFloats, &plan->stage);
  plan->places = plan->stage.taps;
  if (plan->places * convolution::round_up(plan->stage.band * w.columns) > kMostPlaceFloats) return false;
  const size_t kh = as_size(s.y.kernel), kw = as_size(s.x.kernel);
  plan->taps = s.in_channels * kh * kw;
  plan->pixels = w.kh * w.kw;
  for (size_t k = 0; k < plan->pixels; ++k)
    for (size_t t = 0; t < plan->taps; ++t) {
      const size_t row = as_size(s.y.stride) * (k / w.kw) + as_size(s.y.dilation) * (t / kw % kh);
      const size_t column = as_size(s.x.stride) * (k % w.kw) + as_size(s.x.dilation) * (t % kw);
      const size_t channel = t / (kh * kw) * as_size(of_windows.y.kernel);
      plan->place[k * plan->taps + t] = static_cast<uint16_t>((channel + row) * as_size(of_windows.x.kernel) + column);
    }
  const auto slides = [](const Axis& axis) { return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1; };
  plan->in_pairs = w.kh == 2 && w.kw == 2 && slides(s.x) && slides(s.y);
  return true;
}

bool shares_weights(const Plan& plan) { return plan.in_pairs && plan.stage.problem.in_channels == 1; }

void share_weights(const Plan& plan, const float* w, float* to) {
  for (size_t row = 0; row < 3 * plan.stage.problem.out_channels; ++row, w += 3, to += 4) {
    to[0] = w[0];
    to[1] = 0.5f * (w[0] + w[1] + w[2]);
    to[2] = 0.5f * (w[0] - w[1] + w[2]);
    to[3] = w[2];
  }
}

void maxima(const Kernels& kernels, const Plan& plan, Maxima call, size_t threads) {
  const Problem& s = plan.stage.problem;
  for (size_t i = 0; i < s.out_channels * plan.taps; ++i) call.most_weight += std::fabs(call.w[i]);
  for (size_t o = 0; o < s.out_channels; ++o) call.most_bias += std::fabs(call.bias[o]);
  const size_t units = s.batch * plan.stage.bands;
  const size_t pixels = s.out_channels * plan.pixels * plan.stage.band * as_size(s.x.out);
  size_t per_piece = std::max<size_t>(1, kPiecePixels / pixels);
  if (plan.in_pairs && units >= kLeastPieces * kJoined) per_piece = (per_piece + kJoined - 1) / kJoined * kJoined;
  parallel((units + per_piece - 1) / per_piece, threads, 2 * kMultiplyAdd * s.multiplications(), [&](size_t i) {
    kernels.maxima(plan, call, i * per_piece, std::min(per_piece, units - i * per_piece), scratch());
  });
}

size_t winner_sums_bytes(const Plan& plan) { return segments_of(plan) * sums_of(plan) * sizeof(float); }

void winner_sums(const Kernels& kernels, const Plan& plan, const WinnerSums& call, size_t threads, double* sums,
                 std::byte* work) {
  const size_t batch = plan.stage.problem.batch, segments = segments_of(plan), all = sums_of(plan);
  float* partial = reinterpret_cast<float*>(work);  // (segments, O·T + O)
  parallel(segments, threads, kMultiplyAdd * plan.stage.problem.multiplications(), [&](size_t k) {
    const size_t from = batch * k / segments, to = batch * (k + 1) / segments;
    kernels.winner_sums(plan, call, from, to - from, partial + k * all, scratch());
  });
  std::fill_n(sums, all, 0.0);
  for (size_t segment = 0; segment < segments; ++segment)
    for (size_t i = 0; i < all; ++i) sums[i] += static_cast<double>(partial[segment * all + i]);
}

void scatter(const Problem& s, const Windows& w, const convolution::Planes& dy, const uint8_t* winners, size_t threads,
             float* dz) {
  const size_t q = as_size(s.x.out), plane = q * as_size(s.y.out), planes = s.batch * s.out_channels;
  const size_t per_piece = std::max<size_t>(1, kPiecePixels / plane);
  // Where the pixels of a window lie; without a winner a zero is written to the first, as there is already.
  uint32_t offset[256] = {};
  for (size_t k = 0; k < w.kh * w.kw; ++k) offset[k] = static_cast<uint32_t>(k / w.kw * q + k % w.kw);
  parallel((planes + per_piece - 1) / per_piece, threads, 8 * kByte * planes * plane, [&](size_t piece) {
    for (size_t i = piece * per_piece; i < std::min(planes, (piece + 1) * per_piece); ++i) {
      const float* from = dy.data + i / s.out_channels * dy.sample + i % s.out_channels * dy.plane;
      const uint8_t* winner = winners + i * w.rows * w.columns;
      float* to = dz + i * plane;
      std::fill_n(to, plane, 0.0f);
      for (size_t r = 0; r < w.rows; ++r) {
        float* row = to + w.sy * r * q;
        for (size_t c = 0; c < w.columns; ++c, ++winner, row += w.sx)
          row[offset[*winner]] = *winner == kNoWinner ? 0.0f : from[r * dy.row + c];
      }
    }
  });
}

}  // namespace obn::fused::windows
