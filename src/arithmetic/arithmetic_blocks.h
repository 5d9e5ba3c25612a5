// Walking over the tensors of a call in blocks of rows of packed float32. Letters as in arithmetic.h.
//
// The fastest axes form a group of at least kGroup values, so that short rows are not walked one by one. A group is
// done in blocks; a block holds whole rows of the group's axes but the last. A tensor that lies in one run along the
// group is used where it is; others are gathered into a buffer, and kept there while they do not change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "arithmetic/arithmetic.h"
#include "base/integer.h"
#include "base/loops.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/types.h"

namespace obn::arithmetic {

inline constexpr size_t kTensors = 2 * kInputs + 2;  // a, b, c, y, dy and the gradients
inline constexpr size_t kNoAxis = SIZE_MAX;
inline constexpr size_t kGroup = 64;
inline constexpr size_t kPiece = 16384;      // values of a piece of parallel work, about
inline constexpr size_t kBlock = 1024;       // values at a time, where they are converted or used more than once
inline constexpr size_t kMaxRow = 65536;     // of a softmax, which needs its row as a whole

using TensorLoops = Loops<kTensors>;

// How a walk is cut. It follows from shapes and strides alone.
struct Blocks {
  TensorLoops loops;
  BNNSDataType type;
  std::byte* data[kTensors];
  bool is_constant[kTensors];  // one value for the whole group
  bool is_flat[kTensors];      // one run of values along the group
  size_t group = 0;            // axes of it
  size_t group_count = 1;      // values in it
  size_t inner = 1;            // values in its axes but the last
  size_t block = 0;            // values of a block, a multiple of inner
  size_t blocks = 0;           // of a group
  size_t outer = 1;            // groups

  // Adds a tensor and returns its number.
  size_t add(const Operand& operand) {
    operands[loops.tensors] = &operand;
    data[loops.tensors] = operand.data;
    return loops.tensors++;
  }
  // All axes, and which of them are the group; with `row_axis` that one comes first and is a group of its own.
  void arrange(const View& shape, size_t batch, size_t row_axis);
  // Blocks of at most `most` values (kGroup or more).
  void cut(size_t most) {
    block = std::min(most / inner * inner, group_count);
    blocks = divide_up(group_count, block);
  }
  // Outer axes along which tensor t stands still come before the others. Returns how many values those axes have.
  size_t move_sums_first(size_t t);
  bool needs_no_buffer() const {
    if (type != BNNSDataTypeFloat32) return false;
    for (size_t t = 0; t < loops.tensors; ++t)
      if (!is_flat[t] && !is_constant[t]) return false;
    return true;
  }
  bool is_large() const { return outer * group_count * bytes_of(type) > kStreamBytes; }
  size_t values(size_t b) const { return std::min(block, group_count - b * block); }  // in block b
  size_t items() const { return outer * blocks; }

 private:
  void add_axis(const View& shape, size_t k, size_t batch, bool may_merge);

  const Operand* operands[kTensors];
};

inline void Blocks::add_axis(const View& shape, size_t k, size_t batch, bool may_merge) {
  size_t strides[kTensors];
  for (size_t t = 0; t < loops.tensors; ++t) {
    const Operand& o = *operands[t];
    strides[t] = k == shape.rank ? o.step : (o.view->extent[k] == 1 ? 0 : o.view->stride[k]);
  }
  loops.add(k == shape.rank ? batch : shape.extent[k], strides, may_merge);
}

inline void Blocks::arrange(const View& shape, size_t batch, size_t row_axis) {
  type = shape.type;
  bool may_merge = true;
  if (row_axis != kNoAxis) {
    add_axis(shape, row_axis, batch, false);
    may_merge = false;  // nor does the next one
    group = 1;
  }
  for (size_t k = 0; k <= shape.rank; ++k) {
    if (k == row_axis || (k == shape.rank ? batch : shape.extent[k]) == 1) continue;
    add_axis(shape, k, batch, may_merge);
    may_merge = true;
  }
  loops.finish();
  if (group == 1) group_count = loops.extent[0];
  while (group < loops.rank && group_count < kGroup && row_axis == kNoAxis) group_count *= loops.extent[group++];
  inner = group_count / loops.extent[group - 1];
  for (size_t k = group; k < loops.rank; ++k) outer *= loops.extent[k];
  for (size_t t = 0; t < loops.tensors; ++t) {
    is_constant[t] = is_flat[t] = true;
    size_t next = 1;
    for (size_t k = 0; k < group; next *= loops.extent[k++]) {
      is_constant[t] &= loops.stride[k][t] == 0;
      is_flat[t] &= loops.stride[k][t] == next;
    }
  }
}

inline size_t Blocks::move_sums_first(size_t t) {
  TensorLoops sorted = loops;
  size_t at = group, sums = 1;
  for (bool moves : {false, true}) {
    for (size_t k = group; k < loops.rank; ++k) {
      if ((loops.stride[k][t] != 0) != moves) continue;
      sorted.extent[at] = loops.extent[k];
      std::copy_n(loops.stride[k], loops.tensors, sorted.stride[at++]);
      if (!moves) sums *= loops.extent[k];
    }
  }
  loops = sorted;
  return sums;
}

// One thread's place in the walk, with a buffer per tensor.
class Walker {
 public:
  static constexpr size_t kExtras = 4;

  // Works in the calling thread's scratch.
  Walker(const Blocks& blocks, const Kernels& kernels)
      : blocks_(blocks),
        kernels_(kernels),
        buffers_(reinterpret_cast<float*>(scratch())),
        pitch_(round_up(blocks.block + kMaxLanes, kMaxLanes)),  // and what repeat writes too far
        outer_(blocks.loops, blocks.group) {
    std::fill_n(held_, kTensors, SIZE_MAX);
  }

  // A buffer for a block, besides the tensors' own.
  float* extra(size_t i) const { return buffers_ + (kTensors + i) * pitch_; }
  double* sums() const { return reinterpret_cast<double*>(extra(kExtras)); }

  void seek(size_t outer) { outer_.seek(outer); }
  void step() { outer_.step(); }

  // Tensor t in block b, as a source of a kernel.
  const float* read(size_t t, size_t b, bool* moves) {
    const size_t offset = offset_of(t, b), n = blocks_.values(b);
    *moves = !blocks_.is_constant[t];
    if (blocks_.type == BNNSDataTypeFloat32 && (blocks_.is_flat[t] || !*moves)) return floats(t) + offset;
    float* row = buffer(t);
    if (held_[t] == offset && held_count_[t] >= n) return row;
    const bool is_settled = blocks_.is_flat[t] || blocks_.is_constant[t] || blocks_.group == 1 ||
                            blocks_.loops.stride[blocks_.group - 1][t] == 0;  // the offset says all
    held_[t] = is_settled ? offset : SIZE_MAX;
    held_count_[t] = n;
    if (blocks_.is_constant[t]) {
      kernels_.load(blocks_.type, here(t, offset), 1, 1, row);
    } else if (blocks_.is_flat[t]) {
      kernels_.load(blocks_.type, here(t, offset), 1, n, row);
    } else {
      read_into(t, b, row);
    }
    return row;
  }

  // Tensor t in block b as it is now, to row, one of the walker's own.
  void read_into(size_t t, size_t b, float* row) const {
    const size_t offset = offset_of(t, b);
    if (blocks_.group == 2 && blocks_.loops.stride[0][t] == 0 && blocks_.type == BNNSDataTypeFloat32) {
      const size_t count = blocks_.loops.extent[0];
      return kernels_.repeat(floats(t) + offset, blocks_.loops.stride[1][t], blocks_.values(b) / count, count, row);
    }
    runs(t, blocks_.values(b), [&](size_t i, size_t from, size_t count, size_t stride) {
      if (blocks_.type != BNNSDataTypeFloat32 || count >= kGroup)
        return kernels_.load(blocks_.type, here(t, offset + from), stride, count, row + i);
      const float* values = floats(t) + offset + from;  // short runs are not worth a call
      for (size_t j = 0; j < count; ++j) row[i + j] = values[j * stride];
    });
  }

  // Where block b of tensor t is written: its own memory or a buffer.
  float* place(size_t t, size_t b) const { return is_direct(t) ? floats(t) + offset_of(t, b) : buffer(t); }
  float* buffer(size_t t) const { return buffers_ + t * pitch_; }
  bool is_direct(size_t t) const { return blocks_.is_flat[t] && blocks_.type == BNNSDataTypeFloat32; }

  // Puts row, block b of tensor t, where it belongs; row may be its place. streams: past the caches where that goes;
  // then the kernels' end_streams follows.
  void write(size_t t, size_t b, const float* row, bool streams = false) const {
    if (is_direct(t)) {
      float* to = place(t, b);
      if (row == to) return;
      if (streams) return kernels_.stream(row, to, blocks_.values(b));
    }
    const size_t offset = offset_of(t, b), n = blocks_.values(b);
    if (blocks_.is_flat[t]) return kernels_.store(blocks_.type, here(t, offset), 1, n, row);
    runs(t, n, [&](size_t i, size_t to, size_t count, size_t stride) {
      kernels_.store(blocks_.type, here(t, offset + to), stride, count, row + i);
    });
  }

  size_t offset_of(size_t t, size_t b) const {
    return outer_.offset(t) + b * (blocks_.block / blocks_.inner) * blocks_.loops.stride[blocks_.group - 1][t];
  }
  void* here(size_t t, size_t offset) const { return blocks_.data[t] + offset * bytes_of(blocks_.type); }

  // body(i, offset, count, stride) for the runs of n values of a block along the fastest axis: i counts within the
  // block, offset from the block's start in tensor t.
  template <class Body>
  void runs(size_t t, size_t n, const Body& body) const {
    const TensorLoops& loops = blocks_.loops;
    if (blocks_.group == 1) return body(0, 0, n, loops.stride[0][t]);
    size_t at[TensorLoops::kAxes] = {};
    for (size_t i = 0, offset = 0; i < n; i += loops.extent[0]) {
      body(i, offset, loops.extent[0], loops.stride[0][t]);
      for (size_t k = 1; k < blocks_.group; ++k) {
        offset += loops.stride[k][t];
        if (++at[k] < loops.extent[k] || k + 1 == blocks_.group) break;
        offset -= at[k] * loops.stride[k][t];
        at[k] = 0;
      }
    }
  }

 private:
  float* floats(size_t t) const { return reinterpret_cast<float*>(blocks_.data[t]); }

  static_assert((kTensors + kExtras) * (kMaxRow + 2 * kMaxLanes) * sizeof(float) + kMaxRow * sizeof(double) <=
                kScratchBytes);

  const Blocks& blocks_;
  const Kernels& kernels_;
  float* buffers_;
  size_t pitch_;  // floats from one buffer to the next
  Position<kTensors> outer_;
  size_t held_[kTensors];
  size_t held_count_[kTensors];
};

inline constexpr float kZero = 0.0f;

// What no function reads.
inline Sources no_sources() {
  Sources sources;
  std::fill_n(sources.p, kSources, &kZero);
  std::fill_n(sources.moves, kSources, false);
  return sources;
}

// Calls body(walker, block) for every block of the walk.
template <class Body>
void for_blocks(const Blocks& blocks, const Kernels& kernels, size_t thread_limit, const Body& body) {
  const size_t piece = std::max<size_t>(1, kPiece / blocks.block);
  by_pieces(blocks.items(), piece, thread_limit, [&](size_t first, size_t count) {
    Walker walker(blocks, kernels);
    walker.seek(first / blocks.blocks);
    for (size_t b = first % blocks.blocks; count > 0; --count) {
      body(walker, b);
      if (++b == blocks.blocks) {
        b = 0;
        walker.step();
      }
    }
    if (blocks.is_large()) kernels.end_streams();
  });
}

}  // namespace obn::arithmetic
