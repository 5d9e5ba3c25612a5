// Convolution of few input channels, the desk: plans the stage and its taps, cuts a call into pieces.
#include "convolution/few_channels/few_channels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/pool.h"
#include "convolution/segments.h"

namespace obn::convolution {
namespace few_channels {

namespace {

constexpr size_t kMostChannels = 4;                   // C
constexpr size_t kStageFloats = size_t{1} << 12;      // aimed at: half of a small first-level cache
constexpr size_t kGradientFloats = size_t{1} << 14;   // the same for g, which is written and read once: second level
constexpr size_t kMostStageFloats = size_t{1} << 18;  // never more: 1 MiB
constexpr size_t kLeastRows = 4;                      // of a band, unless the stage grows too large
constexpr size_t kMostSums = size_t{1} << 14;         // O·T: dw keeps a vector of each in scratch
constexpr size_t kPieceValues = size_t{1} << 15;      // of y or dz in one piece: some 10 us
constexpr size_t kSegmentValues = size_t{1} << 16;    // of one plane, summed in one go: bounds the rounding error
constexpr size_t kLeastSegments = 8;
constexpr size_t kMomentPixels = size_t{1} << 12;     // whose moments one part has, about
constexpr size_t kMostMomentSegments = 16;
constexpr size_t kMostWideFloats = size_t{1} << 16;   // of the stage of moments, which takes 16 bytes of each

// The stage for `band` rows of y, or g for `band` rows of places. False when it grows too large.
bool lay_out_stage(const Problem& s, size_t band, Plan* plan) {
  plan->band = band;
  plan->stage_rows = band + largest_shift(s.y);
  plan->copy = as_size(s.y.stride) * plan->stage_rows * as_size(s.x.out);
  plan->stage_floats = s.in_channels * as_size(s.x.kernel) * plan->copy + 2 * kPad;
  return plan->stage_floats <= kMostStageFloats;
}
bool lay_out_gradient(const Problem& s, size_t band, Plan* plan) {
  plan->band = band;
  plan->gradient = round_up((band + largest_shift(s.y)) * as_size(s.x.out) + kPad, kPad);
  plan->stage_floats = s.in_channels * as_size(s.x.kernel * s.y.kernel) * plan->gradient + 2 * kPad;
  return plan->stage_floats <= kMostStageFloats;
}

// As many rows as `aim` values hold, where every row takes row_values; bands come out even.
void plan_bands(const Problem& s, size_t rows, size_t aim, size_t row_values,
                bool (*lay_out)(const Problem&, size_t, Plan*), Plan* plan) {
  const size_t shift = largest_shift(s.y), room = aim / row_values;
  const size_t band = std::min(std::max(room > shift ? room - shift : 0, kLeastRows), rows);
  plan->rows = rows;
  plan->bands = divide_up(rows, band);
  if (!lay_out(s, (rows + plan->bands - 1) / plan->bands, plan)) {
    lay_out(s, 1, plan);
    plan->bands = rows;
  }
}

// Where the taps lie in the stage of the plan.
void place_taps(const Problem& s, Plan* plan) {
  const size_t kw = as_size(s.x.kernel), kh = as_size(s.y.kernel), q = as_size(s.x.out);
  plan->problem = s;
  plan->taps = s.in_channels * kh * kw;
  for (size_t t = 0; t < plan->taps; ++t) {
    const size_t c = t / (kh * kw), ky = t / kw % kh, kx = t % kw;
    const size_t row = phase_of(s.y, ky) * plan->stage_rows + shift_of(s.y, ky);
    plan->at[t] = static_cast<uint32_t>((c * kw + kx) * plan->copy + row * q);
  }
}

void plan_forward(const Problem& s, Plan* plan) { plan_bands_of_stage(s, kStageFloats, plan); }

// The stage alone, under `band` rows of y. False when it grows too large.
bool plan_stage(const Problem& s, size_t band, Plan* plan) {
  if (!lay_out_stage(s, band, plan)) return false;
  place_taps(s, plan);
  return true;
}

void plan_input_gradient(const Problem& s, Plan* plan) {
  plan->problem = s;
  plan->taps = s.in_channels * as_size(s.x.kernel * s.y.kernel);
  plan_bands(s, places_of(s.y), kGradientFloats, plan->taps * as_size(s.x.out), lay_out_gradient, plan);
  for (size_t k = 0; k < as_size(s.x.kernel); ++k) {
    plan->phase_x[k] = static_cast<uint8_t>(phase_of(s.x, k));
    plan->shift_x[k] = static_cast<uint32_t>(shift_of(s.x, k));
  }
  for (size_t k = 0; k < as_size(s.y.kernel); ++k) {
    plan->phase_y[k] = static_cast<uint8_t>(phase_of(s.y, k));
    plan->shift_y[k] = static_cast<uint32_t>(shift_of(s.y, k));
  }
}

// Rows of y, at most, whose windows hold a place of one band of dx.
size_t rows_under(const Problem& s, const Plan& plan) {
  return std::min(plan.band + largest_shift(s.y), as_size(s.y.out));
}

// Enough parts for all threads, and none so long that its float32 sums grow inaccurate.
size_t segments_of(const Problem& s) {
  const size_t for_accuracy = divide_up(s.batch * as_size(s.x.out * s.y.out), kSegmentValues);
  return std::min(std::max(for_accuracy, kLeastSegments), s.batch);
}

// Calls body(first, count) for pieces of the bands of all samples.
template <class Body>
void by_units(const Problem& s, const Plan& plan, size_t threads, const Body& body) {
  const size_t units = s.batch * plan.bands;
  const size_t values = std::max(s.out_channels * as_size(s.x.out * s.y.out) / plan.bands, size_t{1});  // of a unit
  const size_t per_piece = std::max(kPieceValues / values, size_t{1});
  parallel(divide_up(units, per_piece), threads, kMultiplyAdd * s.multiplications(),
           [&](size_t i) { body(i * per_piece, std::min(per_piece, units - i * per_piece)); });
}

}  // namespace

bool fits(const Problem& s) {
  if (s.groups != 1 || s.in_channels > kMostChannels) return false;
  constexpr int64_t kLimit = 1 << 15;
  for (const Axis* axis : {&s.x, &s.y}) {
    if (axis->in < 1 || axis->out < 1 || axis->kernel < 1 || axis->before < 0) return false;
    if (axis->in > kLimit || axis->out > kLimit || axis->before > kLimit || axis->dilation > kLimit) return false;
    if (axis->kernel > int64_t{kMostTaps} || axis->stride > int64_t{kMostTaps}) return false;
  }
  const size_t taps = s.in_channels * as_size(s.x.kernel * s.y.kernel);
  if (taps > kMostTaps || s.out_channels > kMostSums / taps) return false;
  Plan plan;
  return lay_out_stage(s, 1, &plan) && lay_out_gradient(s, 1, &plan);
}

void plan_bands_of_stage(const Problem& s, size_t floats, Plan* plan) {
  const size_t row = s.in_channels * as_size(s.x.kernel * s.y.stride * s.x.out);
  plan_bands(s, as_size(s.y.out), floats, row, lay_out_stage, plan);
  place_taps(s, plan);
}

size_t work_bytes(const Problem& s) {
  return segments_of(s) * s.out_channels * s.in_channels * as_size(s.x.kernel * s.y.kernel) * sizeof(float);
}

void forward(const Kernels& kernels, const Problem& s, const Forward& call, size_t threads) {
  Plan plan;
  plan_forward(s, &plan);
  by_units(s, plan, threads,
           [&](size_t first, size_t count) { kernels.forward(plan, call, first, count, scratch()); });
}

void input_gradient(const Kernels& kernels, const Problem& s, const InputGradient& call, size_t threads) {
  Plan plan;
  plan_input_gradient(s, &plan);
  by_units(s, plan, threads,
           [&](size_t first, size_t count) { kernels.input_gradient(plan, call, first, count, scratch()); });
}

void weight_gradient(const Kernels& kernels, const Problem& s, const WeightGradient& call, size_t threads,
                     std::byte* work) {
  Plan plan;
  plan_forward(s, &plan);
  plan.segments = segments_of(s);
  float* sums = reinterpret_cast<float*>(work);  // (segments, O, T)
  const size_t all = s.out_channels * plan.taps;
  parallel(plan.segments, threads, 2 * kMultiplyAdd * s.multiplications(), [&](size_t segment) {
    const size_t first = s.batch * segment / plan.segments, end = s.batch * (segment + 1) / plan.segments;
    kernels.weight_gradient(plan, call, first, end - first, sums + segment * all, scratch());
  });
  add_segments(sums, plan.segments, all, call.accumulate, call.dw);
}

// ---- with a batch norm ----

namespace {

// totals (n) = Σ sums (segments, n), in order.
template <class Value>
void total_segments(const Value* sums, size_t segments, size_t n, double* totals) {
  std::fill_n(totals, n, 0.0);
  for (size_t segment = 0; segment < segments; ++segment)
    for (size_t i = 0; i < n; ++i) totals[i] += static_cast<double>(sums[segment * n + i]);
}

size_t taps_in(const Problem& s) { return s.in_channels * as_size(s.x.kernel * s.y.kernel); }
size_t moments_of(const Problem& s) { return taps_in(s) * (taps_in(s) + 1); }
size_t masked_of(const Problem& s) { return s.out_channels * (taps_in(s) + 1); }

// float64 sums may be long: only as many parts as give some threads enough to do, and an even number of them.
size_t moment_segments(const Problem& s) {
  const size_t parts = (s.batch * as_size(s.x.out * s.y.out) / kMomentPixels + 1) / 2 * 2;
  return std::min(std::clamp<size_t>(parts, 2, kMostMomentSegments), s.batch);
}

}  // namespace

bool fits_norm(const Problem& s) {
  if (!fits(s) || taps_in(s) > kMostNormTaps) return false;
  Plan forward, plan, stage;
  plan_forward(s, &forward);
  plan_input_gradient(s, &plan);
  // Moments have a stage of float64 too, whose rows are whole vectors, and sums of all of them.
  const size_t q = as_size(s.x.out);
  return forward.stage_floats / q * round_up(q, kPad) <= kMostWideFloats &&
         plan_stage(s, rows_under(s, plan), &stage) && stage.stage_floats + plan.stage_floats <= kMostStageFloats;
}

size_t tap_moments_bytes(const Problem& s) { return moment_segments(s) * moments_of(s) * sizeof(double); }
size_t masked_sums_bytes(const Problem& s) { return segments_of(s) * masked_of(s) * sizeof(float); }

void tap_moments(const Kernels& kernels, const Problem& s, const Taps& x, size_t threads, double* sums,
                 std::byte* work) {
  Plan plan;
  plan_forward(s, &plan);
  const size_t segments = moment_segments(s), all = moments_of(s);
  double* partial = reinterpret_cast<double*>(work);  // (segments, T + T·T)
  parallel(segments, threads, 2 * kMultiplyAdd * s.multiplications(), [&](size_t k) {
    const size_t from = s.batch * k / segments, to = s.batch * (k + 1) / segments;
    kernels.tap_moments(plan, x, from, to - from, partial + k * all, scratch());
  });
  total_segments(partial, segments, all, sums);
}

void standardize(const Kernels& kernels, const Problem& s, const Standardize& call, size_t threads) {
  Plan plan;
  plan_forward(s, &plan);
  by_units(s, plan, threads,
           [&](size_t first, size_t count) { kernels.standardize(plan, call, first, count, scratch()); });
}

void masked_sums(const Kernels& kernels, const Problem& s, const Taps& x, const Masked& dz, size_t threads,
                 double* sums, std::byte* work) {
  Plan plan;
  plan_forward(s, &plan);
  const size_t segments = segments_of(s), all = masked_of(s);
  float* partial = reinterpret_cast<float*>(work);  // (segments, O·T + O)
  parallel(segments, threads, 2 * kMultiplyAdd * s.multiplications(), [&](size_t k) {
    const size_t from = s.batch * k / segments, to = s.batch * (k + 1) / segments;
    kernels.masked_sums(plan, x, dz, from, to - from, partial + k * all, scratch());
  });
  total_segments(partial, segments, all, sums);
}

void norm_input_gradient(const Kernels& kernels, const Problem& s, const NormInputGradient& call, size_t threads) {
  Plan plan, stage;
  plan_input_gradient(s, &plan);
  plan_stage(s, rows_under(s, plan), &stage);
  by_units(s, plan, threads, [&](size_t first, size_t count) {
    kernels.norm_input_gradient(plan, stage, call, first, count, scratch());
  });
}

}  // namespace few_channels

namespace {

size_t nothing(const Problem&) { return 0; }

// Where these loops beat products over blocks (direct.cpp), as measured with AVX-512: forward needs a few outputs to
// share what is loaded; dx and dw grow with the taps, dx less so where strides leave few of them per value.
constexpr size_t kFewOutputs = 4;
constexpr size_t kFewTaps = 25;

size_t taps_of(const Problem& s) { return s.in_channels * as_size(s.x.kernel * s.y.kernel); }

bool fits_forward(const Problem& s) { return few_channels::fits(s) && s.out_channels >= kFewOutputs; }
bool fits_input_gradient(const Problem& s) {
  return few_channels::fits(s) && s.out_channels >= kFewOutputs &&
         (taps_of(s) <= kFewTaps || s.x.stride * s.y.stride > 1);
}
bool fits_weight_gradient(const Problem& s) {
  return few_channels::fits(s) && (s.out_channels < kFewOutputs || taps_of(s) <= kFewTaps);
}

void forward(const Problem& s, const Forward& call, size_t threads, std::byte*) {
  few_channels::forward(few_channels::targets.best(), s, call, threads);
}
void input_gradient(const Problem& s, const InputGradient& call, size_t threads, std::byte*) {
  few_channels::input_gradient(few_channels::targets.best(), s, call, threads);
}
void weight_gradient(const Problem& s, const WeightGradient& call, size_t threads, std::byte* work) {
  few_channels::weight_gradient(few_channels::targets.best(), s, call, threads, work);
}

}  // namespace

constinit const ForwardAlgorithm few_channels_forward = {"few channels", fits_forward, nothing, forward};
constinit const InputGradientAlgorithm few_channels_input_gradient = {"few channels", fits_input_gradient, nothing,
                                                                      input_gradient};
constinit const WeightGradientAlgorithm few_channels_weight_gradient = {
    "few channels", fits_weight_gradient, few_channels::work_bytes, weight_gradient};

}  // namespace obn::convolution
