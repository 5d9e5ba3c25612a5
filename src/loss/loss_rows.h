// From where a run of packed float32 comes and where it goes, whatever the type and the strides of the tensor. Letters
// as in loss.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "activation/activation_walk.h"
#include "base/memory.h"
#include "loss/loss.h"

namespace obn::loss {

using activation::by_blocks;
using activation::Cursor;
using activation::Walk;

inline constexpr size_t kBlock = 2048;                  // values done at a time; their losses are added up in float
inline constexpr size_t kRowBlock = kShortRow;          // the same of a row; three of them fit in the first-level cache
inline constexpr size_t kKept = size_t{1} << 17;        // rows up to this length keep their exponentials for dx
inline constexpr size_t kCellValues = size_t{1} << 18;  // YOLO: values of one cell, at most

// A thread's scratch, in floats.
inline constexpr size_t kLine = 16;  // floats of a cache line
struct Scratch {
  float *x, *l, *w, *y, *dx;  // (kBlock) each, dx with a line more
  float* e;                   // (kKept)

  Scratch() : Scratch(reinterpret_cast<float*>(obn::scratch())) {}

 private:
  explicit Scratch(float* block)
      : x(block), l(x + kBlock), w(l + kBlock), y(w + kBlock), dx(y + kBlock), e(dx + kBlock + kLine) {}
};
static_assert((5 * kBlock + kLine + kKept) * sizeof(float) <= kScratchBytes);
static_assert((3 * kCellValues * sizeof(float) + kCellValues / 5 * sizeof(double)) <= kScratchBytes);
static_assert(kRowBlock <= kBlock);

inline bool is_dense(const Walk& walk) {
  return walk.type == BNNSDataTypeFloat32 && walk.rank == 1 && walk.stride[0] == 1;
}

// One value, the first of a tensor.
inline void write_loss(const Walk& walk, float loss) {
  Cursor at(walk, 0);
  activation::write_row(activation::targets.best(), at, 1, &loss);
}

// A tensor's values from a linear index on, as packed float32: where they lie if they lie so, else copied to `buffer`.
class Source {
 public:
  Source(const Walk& walk, size_t first, float* buffer)
      : cursor_(walk, first), buffer_(buffer),
        dense_(is_dense(walk) ? reinterpret_cast<const float*>(walk.data) + first : nullptr) {}

  const float* next(size_t n) {
    if (!dense_) {
      activation::read_row(activation::targets.best(), cursor_, n, buffer_);
      return buffer_;
    }
    const float* here = dense_;
    dense_ += n;
    return here;
  }

 private:
  Cursor cursor_;
  float* buffer_;
  const float* dense_;
};

// Where a kernel writes the next values of a tensor: where they belong, or to `buffer` if they must be converted, spread
// or added, or go past the caches.
class Sink {
 public:
  Sink(const Walk& walk, size_t first, bool accumulate, float* buffer)
      : to_(walk, first), old_(walk, first), accumulate_(accumulate), buffer_(buffer),
        dense_(is_dense(walk) ? reinterpret_cast<float*>(walk.data) + first : nullptr) {}

  float* to() const { return dense_ && !accumulate_ ? dense_ : buffer_; }

  // The n values at to() are there now.
  void done(size_t n) {
    const activation::Kernels& kernels = activation::targets.best();
    if (dense_) {
      if (accumulate_) kernels.add(buffer_, dense_, n);
      dense_ += n;
      return;
    }
    if (accumulate_) {
      by_blocks(0, n, kOldValues, [&](size_t i, size_t count) {
        float old[kOldValues];
        activation::read_row(kernels, old_, count, old);
        kernels.add(old, buffer_ + i, count);
      });
    }
    activation::write_row(kernels, to_, n, buffer_);
  }

 private:
  static constexpr size_t kOldValues = 512;

  Cursor to_, old_;
  bool accumulate_;
  float* buffer_;
  float* dense_;
};

// The same for dense values past the caches, whole lines only: a line that is written in parts is first read, and that
// made a stream of runs that begin inside a line two to four times slower. What does not fill a line waits in `buffer`.
class Stream {
 public:
  // buffer (kBlock + kLine) is aligned to a line.
  Stream(const Kernels& kernels, float* to, float* buffer)
      : kernels_(kernels), buffer_(buffer),
        skip_(reinterpret_cast<uintptr_t>(to) / sizeof(float) % kLine), held_(skip_), base_(to - skip_) {}

  float* to() const { return buffer_ + held_; }  // of the next kBlock values

  void done(size_t n) {
    held_ += n;
    const size_t whole = held_ / kLine * kLine;
    if (whole == 0) return;
    size_t from = 0;
    if (skip_ > 0) {  // the line begins with somebody else's values
      std::copy(buffer_ + skip_, buffer_ + kLine, base_ + skip_);
      skip_ = 0;
      from = kLine;
    }
    kernels_.stream(buffer_ + from, base_ + from, whole - from);
    std::copy(buffer_ + whole, buffer_ + held_, buffer_);
    base_ += whole;
    held_ -= whole;
  }

  // The next n values, made by compute(first, count, to, streams) in up to three goes: those that complete a line, whole
  // lines past the caches, and those that begin a line.
  template <class Compute>
  void put(size_t n, const Compute& compute) {
    const size_t head = std::min(n, held_ == 0 ? 0 : kLine - held_), whole = (n - head) / kLine * kLine;
    if (head > 0) {
      compute(0, head, to(), false);
      done(head);
    }
    if (whole > 0) {
      compute(head, whole, base_, true);
      base_ += whole;
    }
    if (head + whole < n) {
      compute(head + whole, n - head - whole, to(), false);
      done(n - head - whole);
    }
  }

  void finish() {
    std::copy(buffer_ + skip_, buffer_ + held_, base_ + skip_);
    kernels_.fence();
  }

 private:
  const Kernels& kernels_;
  float* buffer_;
  size_t skip_;  // values of the first line that are not ours
  size_t held_;  // values in buffer, with those
  float* base_;  // where buffer[0] belongs
};

// Where the gradient goes: one of the two.
class Gradient {
 public:
  Gradient(const Kernels& kernels, const Walk& walk, size_t first, bool accumulate, bool streams, float* buffer)
      : streams_(streams), sink_(walk, first, accumulate, buffer),
        stream_(kernels, streams ? reinterpret_cast<float*>(walk.data) + first : buffer, buffer) {}

  float* to() const { return streams_ ? stream_.to() : sink_.to(); }
  void done(size_t n) {
    if (streams_) {
      stream_.done(n);
    } else {
      sink_.done(n);
    }
  }
  template <class Compute>  // as that of Stream
  void put(size_t n, const Compute& compute) {
    if (streams_) {
      stream_.put(n, compute);
    } else {
      compute(0, n, sink_.to(), false);
      sink_.done(n);
    }
  }
  void finish() {
    if (streams_) stream_.finish();
  }

 private:
  bool streams_;
  Sink sink_;
  Stream stream_;
};

}  // namespace obn::loss
