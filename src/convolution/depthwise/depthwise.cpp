// Depthwise convolution, the desk: plans the stage and its taps, cuts a call into pieces.
#include "convolution/depthwise/depthwise.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/memory.h"
#include "base/pool.h"
#include "convolution/segments.h"

namespace obn::convolution {
namespace depthwise {

namespace {

constexpr size_t kStageFloats = size_t{1} << 12;     // aimed at: half of a small first-level cache
constexpr size_t kMostStageFloats = size_t{1} << 18;  // never more: 1 MiB
constexpr size_t kLeastRows = 8;                     // of a band, unless the stage grows too large
constexpr double kValue = 0.3;                       // nanoseconds for one that is read and written, about
constexpr size_t kPieceValues = size_t{1} << 15;     // read and written by one piece: some 10 us
constexpr size_t kSegmentValues = size_t{1} << 16;   // of one channel, summed in one go: bounds the rounding error
constexpr size_t kLeastPieces = 16;                  // of the weight gradient
constexpr size_t kMostSums = size_t{1} << 14;        // m·kh·kw: the weight gradient keeps a vector of each in scratch
constexpr size_t kBlockValues = size_t{1} << 15;     // of the planes that the weight gradient reads in a row
constexpr size_t kBlockSums = size_t{1} << 8;        // and of the sums it keeps meanwhile

// The stage for `band` rows. False when it grows too large.
bool lay_out(const Problem& s, bool is_gradient, size_t band, Plan* plan) {
  const size_t phases_x = is_gradient ? 1 : as_size(s.x.stride), phases_y = is_gradient ? 1 : as_size(s.y.stride);
  const size_t columns = is_gradient ? std::max(as_size(s.x.out), places_of(s.x)) + largest_shift(s.x)
                                     : std::max(as_size(s.x.out) + largest_shift(s.x), places_of(s.x));
  plan->pitch = round_up(columns, kPad) + (phases_x > 1 ? kPad : 0);  // split rows spill zeros behind them
  plan->line = plan->pitch * phases_x;
  plan->stage_rows = band + largest_shift(s.y);
  plan->stage_left = is_gradient ? largest_shift(s.x) : as_size(s.x.before / s.x.stride);
  plan->stage_up = is_gradient ? largest_shift(s.y) : as_size(s.y.before);
  plan->stage_floats = phases_y * plan->stage_rows * plan->line + 3 * kPad;  // spilled, and for its alignment
  plan->band = band;
  return plan->stage_floats <= kMostStageFloats;
}

// Kernel rows of one phase, or of all, in chains of neighbouring stage rows. Returns how many.
size_t make_chains(const Axis& y, const Plan& plan, bool is_gradient, size_t phase, Chain* chains) {
  size_t count = 0;
  const size_t kernel = as_size(y.kernel);
  for (size_t i = 0; i < kernel; ++i) {
    const size_t ky = is_gradient ? kernel - 1 - i : i;  // rows of the stage ascend
    if (phase_of(y, ky) != phase) continue;
    const size_t row = is_gradient ? plan.stage_up - shift_of(y, ky) : phase * plan.stage_rows + shift_of(y, ky);
    Chain* last = chains + count - 1;
    if (count == 0 || last->count == kChain || last->row + last->count != static_cast<int>(row)) {
      last = chains + count++;
      last->row = static_cast<uint16_t>(row);
      last->count = 0;
    }
    last->ky[last->count++] = static_cast<uint8_t>(ky);
  }
  return count;
}

void plan_bands(const Problem& s, bool is_gradient, Plan* plan) {
  plan->rows = is_gradient ? places_of(s.y) : as_size(s.y.out);
  lay_out(s, is_gradient, 1, plan);
  const size_t row = plan->line * (is_gradient ? 1 : as_size(s.y.stride));
  const size_t aim = kStageFloats / row > largest_shift(s.y) ? kStageFloats / row - largest_shift(s.y) : 0;
  const size_t band = std::min(std::max(aim, kLeastRows), plan->rows);
  plan->bands = divide_up(plan->rows, band);
  if (!lay_out(s, is_gradient, (plan->rows + plan->bands - 1) / plan->bands, plan)) lay_out(s, is_gradient, 1, plan);
  plan->bands = (plan->rows + plan->band - 1) / plan->band;
}

void plan_problem(const Problem& s, Plan* plan) {
  plan->problem = s;
  plan->multiplier = s.out_channels / s.in_channels;
  plan->taps = as_size(s.x.kernel * s.y.kernel);
  for (size_t r = 0; r < as_size(s.y.stride); ++r) plan->inside[r] = places_inside(s.y, r);
}

void plan_forward(const Problem& s, Plan* plan) {
  plan_problem(s, plan);
  plan_bands(s, false, plan);
  plan->chain_count = 0;
  for (size_t r = 0; r < as_size(s.y.stride); ++r)
    plan->chain_count += make_chains(s.y, *plan, false, r, plan->chains + plan->chain_count);
  const size_t kw = as_size(s.x.kernel);
  size_t count = 0;
  for (size_t kx = 0; kx < kw; ++kx) {
    plan->column[kx] = static_cast<uint32_t>(phase_of(s.x, kx) * plan->pitch + shift_of(s.x, kx));
    for (size_t i = 0; i < plan->chain_count; ++i) {
      const Chain& chain = plan->chains[i];
      Group& group = plan->groups[count++];
      group.at = static_cast<uint32_t>(chain.row * plan->line + plan->column[kx]);
      group.count = chain.count;
      for (size_t k = 0; k < chain.count; ++k) group.tap[k] = static_cast<uint8_t>(chain.ky[k] * kw + kx);
    }
  }
  plan->begin[0] = 0;
  plan->begin[1] = static_cast<uint16_t>(count);
}

void plan_input_gradient(const Problem& s, Plan* plan) {
  plan_problem(s, plan);
  plan_bands(s, true, plan);
  const size_t kw = as_size(s.x.kernel), sx = as_size(s.x.stride);
  size_t count = 0;
  for (size_t ry = 0; ry < as_size(s.y.stride); ++ry) {
    plan->chain_count = make_chains(s.y, *plan, true, ry, plan->chains);
    for (size_t rx = 0; rx < sx; ++rx) {
      plan->begin[ry * sx + rx] = static_cast<uint16_t>(count);
      for (size_t kx = 0; kx < kw; ++kx) {
        if (phase_of(s.x, kx) != rx) continue;
        for (size_t i = 0; i < plan->chain_count; ++i) {
          const Chain& chain = plan->chains[i];
          Group& group = plan->groups[count++];
          group.at = static_cast<uint32_t>(chain.row * plan->line + plan->stage_left - shift_of(s.x, kx));
          group.count = chain.count;
          for (size_t k = 0; k < chain.count; ++k) group.tap[k] = static_cast<uint8_t>(chain.ky[k] * kw + kx);
        }
      }
    }
  }
  plan->begin[as_size(s.x.stride * s.y.stride)] = static_cast<uint16_t>(count);
}

size_t plane_values(const Problem& s) { return as_size(s.x.in * s.y.in + s.x.out * s.y.out); }

// Channels whose weight gradients are summed together.
size_t block_of(const Problem& s) {
  const size_t sums = s.out_channels / s.in_channels * as_size(s.x.kernel * s.y.kernel);
  return std::clamp(std::min(kBlockValues / plane_values(s), kBlockSums / sums), size_t{1}, s.in_channels);
}

// Enough parts for all threads, and none so long that its float32 sums grow inaccurate.
size_t segments_of(const Problem& s) {
  const size_t values = as_size(s.x.out * s.y.out), blocks = (s.in_channels + block_of(s) - 1) / block_of(s);
  const size_t for_accuracy = divide_up(s.batch * values, kSegmentValues);
  const size_t for_threads = divide_up(kLeastPieces, blocks);
  return std::clamp(std::max(for_accuracy, for_threads), size_t{1}, s.batch);
}

void plan_weight_gradient(const Problem& s, Plan* plan) {
  plan_forward(s, plan);
  plan->segments = segments_of(s);
  plan->block = block_of(s);
}

// Calls body(first, count) for pieces of `units` units of `values` values each.
template <class Body>
void by_units(size_t units, size_t values, size_t threads, const Body& body) {
  const size_t per_piece = std::max(kPieceValues / values, size_t{1});
  parallel(divide_up(units, per_piece), threads, kValue * units * values,
           [&](size_t i) { body(i * per_piece, std::min(per_piece, units - i * per_piece)); });
}

}  // namespace

bool fits(const Problem& s) {
  if (s.groups != s.in_channels || s.out_channels % s.in_channels != 0) return false;
  if (s.in_channels == 1 && s.out_channels > 1) return false;  // an ordinary convolution of one channel
  constexpr int64_t kLimit = 1 << 15;
  for (const Axis* axis : {&s.x, &s.y}) {
    if (axis->in < 1 || axis->out < 1 || axis->kernel < 1 || axis->before < 0) return false;
    if (axis->in > kLimit || axis->out > kLimit || axis->before > kLimit || axis->dilation > kLimit) return false;
    if (axis->kernel > int64_t{kMostTaps} || axis->stride > int64_t{kMostPhases}) return false;
  }
  if (s.x.kernel * s.y.kernel > int64_t{kMostTaps} || s.x.stride * s.y.stride > int64_t{kMostPhases}) return false;
  if (s.out_channels / s.in_channels > kMostSums / as_size(s.x.kernel * s.y.kernel)) return false;
  Plan plan;
  return lay_out(s, false, 1, &plan) && lay_out(s, true, 1, &plan);
}

size_t work_bytes(const Problem& s) {
  return segments_of(s) * s.out_channels * as_size(s.x.kernel * s.y.kernel) * sizeof(float);
}

void forward(const Kernels& kernels, const Problem& s, const Forward& call, size_t threads) {
  Plan plan;
  plan_forward(s, &plan);
  by_units(s.batch * s.in_channels * plan.bands, plane_values(s) * plan.multiplier / plan.bands, threads,
           [&](size_t first, size_t count) { kernels.forward(plan, call, first, count, scratch()); });
}

void input_gradient(const Kernels& kernels, const Problem& s, const InputGradient& call, size_t threads) {
  Plan plan;
  plan_input_gradient(s, &plan);
  by_units(s.batch * s.in_channels * plan.bands, plane_values(s) * plan.multiplier / plan.bands, threads,
           [&](size_t first, size_t count) { kernels.input_gradient(plan, call, first, count, scratch()); });
}

void weight_gradient(const Kernels& kernels, const Problem& s, const WeightGradient& call, size_t threads,
                     std::byte* work) {
  Plan plan;
  plan_weight_gradient(s, &plan);
  const size_t segments = plan.segments, per_channel = plan.multiplier * plan.taps, all = s.in_channels * per_channel;
  const size_t blocks = divide_up(s.in_channels, plan.block);
  float* sums = reinterpret_cast<float*>(work);  // (segments, O, kh, kw)
  parallel(blocks * segments, threads, kValue * s.batch * s.in_channels * plane_values(s) * plan.multiplier, [&](size_t i) {
    const size_t c = i % blocks * plan.block, part = i / blocks;
    const size_t from = s.batch * part / segments, to = s.batch * (part + 1) / segments;
    kernels.weight_gradient(plan, call, c, std::min(plan.block, s.in_channels - c), from, to - from,
                            sums + part * all + c * per_channel, scratch());
  });
  add_segments(sums, segments, all, call.accumulate, call.dw);
}

// ---- single channels ----

namespace {

// The planes of one channel, whichever it is.
Planes planes_of_channel(const Problem& s, float* data) {
  return {data, as_size(s.x.out), 0, as_size(s.x.out * s.y.out)};
}

}  // namespace

void Channels::plan(const Problem& s) {
  kernels = &targets.best();
  plan_weight_gradient(s, &weight);
  plan_input_gradient(s, &input);
}

bool Channels::adds_both() const {
  const auto fits = [](const Axis& axis) {
    return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1 && axis.before == 1 && axis.in == axis.out;
  };
  const Problem& s = weight.problem;
  return kernels->gradients && fits(s.x) && fits(s.y) && s.y.out >= 2 && weight.bands == 1;
}

void Channels::add_gradients(const InputGradient& to_x, const WeightGradient& to_w, size_t channel, float* dz,
                             std::byte* work) const {
  const Problem& s = weight.problem;
  const size_t segments = weight.segments, all = s.in_channels * weight.taps;
  InputGradient one = to_x;
  one.dz = planes_of_channel(s, dz);
  for (size_t part = 0; part < segments; ++part) {
    const size_t from = s.batch * part / segments, to = s.batch * (part + 1) / segments;
    kernels->gradients(weight, one, to_w, channel, from, to - from,
                       reinterpret_cast<float*>(work) + part * all + channel * weight.taps);
  }
}

void Channels::add_input_gradient(const InputGradient& call, size_t channel, float* dz, std::byte* scratch) const {
  const Problem& s = input.problem;
  InputGradient one = call;
  one.dz = planes_of_channel(s, dz);
  const size_t values = as_size(s.x.in * s.y.in);
  for (size_t n = 0; n < s.batch; ++n) {
    if (n + 1 < s.batch) bring_near(call.dx.data + (n + 1) * call.dx.sample + channel * call.dx.plane, values);
    kernels->input_gradient(input, one, (n * s.in_channels + channel) * input.bands, input.bands, scratch);
  }
}

void Channels::sum_weight_gradient(const WeightGradient& call, size_t channel, float* dz, std::byte* scratch,
                                   std::byte* work) const {
  const Problem& s = weight.problem;
  const size_t segments = weight.segments, all = s.in_channels * weight.taps;
  WeightGradient one = call;
  one.dz = planes_of_channel(s, dz);
  for (size_t part = 0; part < segments; ++part) {
    const size_t from = s.batch * part / segments, to = s.batch * (part + 1) / segments;
    kernels->weight_gradient(weight, one, channel, 1, from, to - from,
                             reinterpret_cast<float*>(work) + part * all + channel * weight.taps, scratch);
  }
}

void Channels::finish_weight_gradient(const WeightGradient& call, std::byte* work) const {
  add_segments(reinterpret_cast<float*>(work), weight.segments, weight.problem.in_channels * weight.taps,
               call.accumulate, call.dw);
}

}  // namespace depthwise

namespace {

size_t nothing(const Problem&) { return 0; }

void forward(const Problem& s, const Forward& call, size_t threads, std::byte*) {
  depthwise::forward(depthwise::targets.best(), s, call, threads);
}
void input_gradient(const Problem& s, const InputGradient& call, size_t threads, std::byte*) {
  depthwise::input_gradient(depthwise::targets.best(), s, call, threads);
}
void weight_gradient(const Problem& s, const WeightGradient& call, size_t threads, std::byte* work) {
  depthwise::weight_gradient(depthwise::targets.best(), s, call, threads, work);
}

}  // namespace

constinit const ForwardAlgorithm depthwise_forward = {"depthwise", depthwise::fits, nothing, forward};
constinit const InputGradientAlgorithm depthwise_input_gradient = {"depthwise", depthwise::fits, nothing,
                                                                   input_gradient};
constinit const WeightGradientAlgorithm depthwise_weight_gradient = {"depthwise", depthwise::fits,
                                                                     depthwise::work_bytes, weight_gradient};

}  // namespace obn::convolution
