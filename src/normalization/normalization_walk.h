// What both directions of the computation share: how a call is cut into groups, where their values lie, and how what is
// not packed float32 is brought into that form. Letters as in normalization.h. Borders of pieces follow from shapes
// alone, and sums of pieces are added in their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/memory.h"
#include "base/workspace.h"
#include "normalization/normalization.h"

namespace obn::normalization {

using activation::Cursor;
using activation::Walk;

inline constexpr size_t kPiece = 16384;  // values of a piece, at least; fewer are not worth a thread
inline constexpr double kValue = 0.4;    // nanoseconds for one, about
inline constexpr size_t kBlock = 2048;   // values converted at a time
inline constexpr size_t kStage = kScratchBytes / 4 - kBlock;  // floats of scratch for one group; a block has the rest
inline constexpr size_t kFewestStreamed = size_t{2} << 20;    // of a gradient that other threads read
inline constexpr float kOne = 1.0f, kZero = 0.0f;

// Results of so many bytes are written past the caches: those of several threads hold more.
inline size_t streamed_bytes(size_t thread_limit) {
  return kStreamBytes * std::max<size_t>(1, threads_for(thread_limit) / 2);
}

inline const activation::Kernels& conversion() { return activation::targets.best(); }

// Groups of a piece: not too few values, and some groups one after the other where there are many.
inline size_t groups_together(size_t groups, size_t values) {
  return std::max({size_t{1}, kPiece / values, std::min(groups / 16, std::max<size_t>(4, 4 * kPiece / values))});
}

// The same where a group's memory is read while that of the one before is written: more of them. A group has the same
// result in any piece.
inline size_t groups_in_line(size_t groups, size_t values, size_t thread_limit) {
  constexpr size_t kMostValues = size_t{1} << 22;  // some milliseconds: between pieces a call may be given up
  const size_t most = std::min(groups / (4 * threads_for(thread_limit)), kMostValues / std::max<size_t>(values, 1));
  return std::max(groups_together(groups, values), most);
}

// body(block) for every kColumns columns of `samples` samples.
template <class Body>
void by_column_blocks(const Plan& plan, size_t samples, const Body& body) {
  const size_t blocks = divide_up(plan.runs, kColumns);
  const size_t piece = groups_together(blocks, samples * kColumns);
  by_pieces(
      blocks, piece, plan.threads,
      [&](size_t first, size_t count) {
        for (size_t k = first; k < first + count; ++k) body(k);
      },
      kValue * piece * samples * kColumns);
}

// body(first, end) for groups that follow one another.
template <class Body>
void by_groups(const Plan& plan, size_t batch, const Body& body) {
  const size_t groups = plan.groups(batch);
  const size_t piece = groups_in_line(groups, plan.group_values(batch), plan.threads);
  by_pieces(
      groups, piece, plan.threads, [&](size_t first, size_t count) { body(first, first + count); },
      kValue * piece * plan.group_values(batch));
}

// body(sample, run) for every run of `samples` samples in the order of memory, end() behind every piece; `values` are
// those that a call of body() goes through.
template <class Body, class End>
void by_runs(const Plan& plan, size_t samples, size_t values, const Body& body, const End& end) {
  const size_t runs = samples * plan.runs, piece = groups_in_line(runs, values, plan.threads);
  by_pieces(
      runs, piece, plan.threads,
      [&](size_t first, size_t count) {
        for (size_t k = first; k < first + count; ++k) body(k / plan.runs, k % plan.runs);
        end();
      },
      kValue * piece * values);
}

// Batch norm of many threads: each stays with some samples, as the layers before and after it do, and finds their values
// in its own caches. One or two go channel by channel, where a channel's values are still near when they are needed again.
// What it needs is counted for any number of threads: that may change between counting and running.
inline bool may_stay_with_samples(const Plan& plan) {
  return plan.spans_batch() && !plan.is_rows && !plan.is_columns();
}
inline bool stays_with_samples(const Plan& plan, size_t batch) {
  constexpr size_t kManyThreads = 4, kFewestValues = size_t{1} << 17;
  const size_t threads = threads_for(plan.threads);
  return may_stay_with_samples(plan) && threads >= kManyThreads && batch >= threads &&
         batch * plan.sample() >= kFewestValues;
}

// ---- tensors ----

// Values first … first + length - 1 of samples n … n + samples - 1.
struct Span {
  size_t n, samples, first, length;

  size_t values() const { return samples * length; }
};

inline Span span_of(const Plan& plan, size_t batch, size_t group) {
  if (plan.spans_batch()) return {0, batch, group * plan.length, plan.length};
  const size_t in_sample = plan.runs / plan.group_runs, length = plan.group_runs * plan.length;
  return {group / in_sample, 1, group % in_sample * length, length};
}

// Of rows, where a group is a run: `count` of them. One division for all.
inline void set_spans(const Plan& plan, size_t first, size_t count, Span* spans) {
  size_t n = first / plan.runs, run = first - n * plan.runs;
  for (size_t k = 0; k < count; ++k) {
    spans[k] = {n, 1, run * plan.length, plan.length};
    if (++run < plan.runs) continue;
    run = 0;
    ++n;
  }
}

// Kernels can work on it where it lies.
inline bool is_ready(const Plan& plan, const Tensor& t) {
  if (t.walk.type != BNNSDataTypeFloat32) return false;
  if (plan.is_columns()) return plan.runs == 1 || (t.walk.rank == 1 && t.walk.stride[0] == 1);
  return plan.length == 1 || (t.walk.stride[0] == 1 && t.walk.extent[0] % plan.length == 0);
}

inline float* address(const Tensor& t, size_t n, size_t index) {
  const size_t offset = t.walk.rank == 1 ? index * t.walk.stride[0] : Cursor(t.walk, index).offset();
  return reinterpret_cast<float*>(t.walk.data) + n * t.step + offset;
}

// The runs of a group in a tensor that is ready.
inline Runs runs_in(const Plan& plan, const Tensor& t, const Span& span) {
  float* first = address(t, span.n, span.first);
  if (span.samples > 1) return {first, t.step};
  if (span.length == plan.length) return {first, 0};
  return {first, static_cast<size_t>(address(t, span.n, span.first + plan.length) - first)};
}

// The runs of a group that lies in a buffer without gaps.
inline Runs runs_in(const Plan& plan, float* buffer, const Span& span) {
  return {buffer, span.samples > 1 ? span.length : plan.length};
}

inline Walk walk_at(const Tensor& t, size_t n) {
  Walk walk = t.walk;
  walk.data += n * t.step * bytes_of(walk.type);
  return walk;
}

inline void load_group(const Tensor& t, const Span& span, float* buffer) {
  for (size_t s = 0; s < span.samples; ++s) {
    const Walk walk = walk_at(t, span.n + s);
    Cursor from(walk, span.first);
    activation::read_row(conversion(), from, span.length, buffer + s * span.length);
  }
}

// row (n) to the place of `to`; `block` (kBlock) serves for adding.
inline void store_values(Cursor& to, Cursor& old, size_t n, float* row, bool accumulate, float* block) {
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t m = std::min(kBlock, n - i);
    if (accumulate) {
      activation::read_row(conversion(), old, m, block);
      conversion().add(block, row + i, m);
    }
    activation::write_row(conversion(), to, m, row + i);
  }
}

inline void store_group(const Tensor& t, const Span& span, float* buffer, bool accumulate, float* block) {
  for (size_t s = 0; s < span.samples; ++s) {
    const Walk walk = walk_at(t, span.n + s);
    Cursor to(walk, span.first), old(walk, span.first);
    store_values(to, old, span.length, buffer + s * span.length, accumulate, block);
  }
}

// Rows load γ and β again and again: where there are many, a call works with a copy of an array of the caller's in which
// vectors would straddle cache lines. Takes a twentieth off rows of 512 values.
inline constexpr size_t kRowsForCopy = 64;
inline bool is_copied(const Plan& plan, const Parameter& parameter, size_t batch) {
  if (parameter.is_read_each_call) return true;
  return plan.is_rows && parameter.count == plan.length && batch * plan.runs >= kRowsForCopy &&
         reinterpret_cast<uintptr_t>(parameter.values) % kAlignment != 0;
}

// γ or β as packed float32, copied to `place` if there is one; NULL: absent.
inline const float* read_parameter(const Parameter& parameter, float* place) {
  if (!place) return parameter.values;
  if (parameter.values) {
    std::copy_n(parameter.values, parameter.count, place);
  } else {
    Cursor from(parameter.walk, 0);
    activation::read_row(conversion(), from, parameter.count, place);
  }
  return place;
}

// One γ or β of channels.
struct PerChannel {
  const float* values;
  const float& absent;

  const float& operator[](size_t run) const { return values ? values[run] : absent; }
};

// The γ or β along run r of rows.
inline const float* along_run(const Plan& plan, const float* values, size_t count, size_t r) {
  return values && count > plan.length ? values + r * plan.length : values;
}

// A buffer for one group at a time: the thread's own where it fits, else a place of the group in the workspace.
inline float* stage_of(float* shared, size_t group, size_t values) {
  return shared ? shared + group * values : reinterpret_cast<float*>(scratch()) + kBlock;
}

// Gradients of channels find where ReLU was open from x̂; but a half output may have become 0 by rounding.
inline bool masks_by_input(const Plan& plan) { return plan.is_relu && !plan.is_rows; }

}  // namespace obn::normalization
