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

// Parts of a thread's scratch, in floats.
inline constexpr size_t kLine = 16;  // floats of a cache line
struct Rooms {
  float *x, *l, *w, *y, *dx, *e;

  explicit Rooms(float* block)
      : x(block), l(x + kBlock), w(l + kBlock), y(w + kBlock), dx(y + kBlock), e(dx + kBlock + kLine) {}
};
static_assert((5 * kBlock + kLine + kKept) * sizeof(float) <= kScratchBytes);
static_assert((3 * kCellValues * sizeof(float) + kCellValues / 5 * sizeof(double)) <= kScratchBytes);
static_assert(kRowBlock <= kBlock);

inline bool is_dense(const Walk& walk) {
  return walk.type == BNNSDataTypeFloat32 && walk.rank == 1 && walk.stride[0] == 1;
}

// A tensor's values from a linear index on, as packed float32: where they lie if they lie so, else copied to `room`.
class Source {
 public:
  Source(const Walk& walk, size_t first, float* room)
      : cursor_(walk, first), room_(room),
        dense_(is_dense(walk) ? reinterpret_cast<const float*>(walk.data) + first : nullptr) {}

  const float* next(size_t n) {
    if (!dense_) {
      activation::read_row(activation::targets.best(), cursor_, n, room_);
      return room_;
    }
    const float* here = dense_;
    dense_ += n;
    return here;
  }

 private:
  Cursor cursor_;
  float* room_;
  const float* dense_;
};

// Where a kernel writes the next values of a tensor: to their place, or to `room` if they must be converted, spread or
// added, or go past the caches.
class Sink {
 public:
  Sink(const Walk& walk, size_t first, bool accumulate, float* room)
      : to_(walk, first), old_(walk, first), accumulate_(accumulate), room_(room),
        dense_(is_dense(walk) ? reinterpret_cast<float*>(walk.data) + first : nullptr) {}

  float* place() const { return dense_ && !accumulate_ ? dense_ : room_; }

  // The n values at place() are there now.
  void done(size_t n) {
    const activation::Kernels& kernels = activation::targets.best();
    if (dense_) {
      if (accumulate_) kernels.add(room_, dense_, n);
      dense_ += n;
      return;
    }
    if (accumulate_) {
      by_blocks(0, n, kOldValues, [&](size_t i, size_t count) {
        float old[kOldValues];
        activation::read_row(kernels, old_, count, old);
        kernels.add(old, room_ + i, count);
      });
    }
    activation::write_row(kernels, to_, n, room_);
  }

 private:
  static constexpr size_t kOldValues = 512;

  Cursor to_, old_;
  bool accumulate_;
  float* room_;
  float* dense_;
};

// The same for dense values past the caches, whole lines only: a line that is written in parts is first read, and that
// made a stream of runs that begin inside a line two to four times slower. What does not fill a line waits in `room`.
class Stream {
 public:
  // room (kBlock + kLine) is aligned to a line.
  Stream(const Kernels& kernels, float* to, float* room)
      : kernels_(kernels), room_(room),
        skip_(reinterpret_cast<uintptr_t>(to) / sizeof(float) % kLine), held_(skip_), base_(to - skip_) {}

  float* place() const { return room_ + held_; }  // of the next kBlock values

  void done(size_t n) {
    held_ += n;
    const size_t whole = held_ / kLine * kLine;
    if (whole == 0) return;
    size_t from = 0;
    if (skip_ > 0) {  // the line begins with somebody else's values
      std::copy(room_ + skip_, room_ + kLine, base_ + skip_);
      skip_ = 0;
      from = kLine;
    }
    kernels_.stream(room_ + from, base_ + from, whole - from);
    std::copy(room_ + whole, room_ + held_, room_);
    base_ += whole;
    held_ -= whole;
  }

  // The next n values, made by compute(first, count, to, streams) in up to three goes: those that complete a line, whole
  // lines past the caches, and those that begin a line.
  template <class Compute>
  void put(size_t n, const Compute& compute) {
    const size_t head = std::min(n, held_ == 0 ? 0 : kLine - held_), whole = (n - head) / kLine * kLine;
    if (head > 0) {
      compute(0, head, place(), false);
      done(head);
    }
    if (whole > 0) {
      compute(head, whole, base_, true);
      base_ += whole;
    }
    if (head + whole < n) {
      compute(head + whole, n - head - whole, place(), false);
      done(n - head - whole);
    }
  }

  void finish() {
    std::copy(room_ + skip_, room_ + held_, base_ + skip_);
    kernels_.fence();
  }

 private:
  const Kernels& kernels_;
  float* room_;
  size_t skip_;  // values of the first line that are not ours
  size_t held_;  // values in room, with those
  float* base_;  // place of room[0]
};

// Where the gradient goes: one of the two.
class Gradient {
 public:
  Gradient(const Kernels& kernels, const Walk& walk, size_t first, bool accumulate, bool streams, float* room)
      : streams_(streams), sink_(walk, first, accumulate, room),
        stream_(kernels, streams ? reinterpret_cast<float*>(walk.data) + first : room, room) {}

  float* place() const { return streams_ ? stream_.place() : sink_.place(); }
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
      compute(0, n, sink_.place(), false);
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
