// Walking over the tensors of a call: where values lie, and in which pieces they are done. Letters as in activation.h.
//
// Every call is a walk over linear indices 0 … batch·count - 1, in the order of memory (fastest axis first, batch
// last); input and output meet at equal indices, whatever their shapes.
#pragma once

#include <algorithm>
#include <cstddef>

#include "activation/activation.h"
#include "base/pool.h"
#include "base/types.h"
#include "base/view.h"

namespace obn::activation {

inline constexpr size_t kPiece = 16384;  // values per piece of parallel work
inline constexpr size_t kBlock = 512;    // values converted in the first-level cache at a time
inline constexpr size_t kAxes = BNNS_MAX_TENSOR_DIMENSION + 1;

// One tensor over the whole batch: axes fastest first, merged where the next begins where the last ends.
struct Walk {
  std::byte* data;
  BNNSDataType type;
  size_t rank;
  size_t extent[kAxes];
  size_t stride[kAxes];
};

inline Walk walk_of(const View& view, const void* data, size_t batch, size_t batch_stride) {
  Walk walk;
  walk.rank = 0;
  walk.data = static_cast<std::byte*>(const_cast<void*>(data));
  walk.type = view.type;
  for (size_t k = 0; k <= view.rank; ++k) {
    size_t extent = k < view.rank ? view.extent[k] : batch;
    size_t stride = k < view.rank ? view.stride[k] : batch_stride;
    if (extent == 1) continue;
    const size_t last = walk.rank > 0 ? walk.rank - 1 : 0;
    if (walk.rank > 0 && stride == walk.stride[last] * walk.extent[last]) {
      walk.extent[last] *= extent;
    } else {
      walk.extent[walk.rank] = extent;
      walk.stride[walk.rank++] = stride;
    }
  }
  if (walk.rank == 0) {
    walk.rank = walk.extent[0] = walk.stride[0] = 1;
  }
  return walk;
}

// A tensor of a call, checked: what, where, and how far from sample to sample.
struct Operand {
  const View* view;
  const void* data;
  size_t step;

  Walk walk(size_t batch) const { return walk_of(*view, data, batch, step); }
  float* floats() const { return static_cast<float*>(const_cast<void*>(data)); }
};

// One unbroken run of float32.
inline bool is_dense_float32(const Operand& o, size_t batch) {
  size_t next = 1;
  for (size_t k = 0; k < o.view->rank; next *= o.view->extent[k++])
    if (o.view->stride[k] != next && o.view->extent[k] != 1) return false;
  return o.view->type == BNNSDataTypeFloat32 && (batch == 1 || o.step == next);
}

// The same values at the same places: a call may then work in place.
inline bool same_place(const Operand& a, const Operand& b, size_t batch) {
  if (a.data != b.data || bits_of(a.view->type) != bits_of(b.view->type)) return false;
  const Walk first = a.walk(batch), second = b.walk(batch);
  return first.rank == second.rank && std::equal(first.extent, first.extent + first.rank, second.extent) &&
         std::equal(first.stride, first.stride + first.rank, second.stride);
}

// Refuses two operands that share memory.
inline int check_apart(const Operand& a, const char* a_word, const Operand& b, const char* b_word, size_t batch) {
  return check_disjoint(*a.view, a.data, a.step, a_word, *b.view, b.data, b.step, b_word, batch);
}

// The same, unless one takes exactly the place of the other.
inline int check_places(const Operand& a, const char* a_word, const Operand& b, const char* b_word, size_t batch) {
  return same_place(a, b, batch) ? 0 : check_apart(a, a_word, b, b_word, batch);
}

// A place in a walk.
class Cursor {
 public:
  Cursor(const Walk& walk, size_t index) : walk_(walk) {
    for (size_t k = 0; k < walk.rank; ++k) {
      at_[k] = index % walk.extent[k];
      index /= walk.extent[k];
      offset_ += at_[k] * walk.stride[k];
    }
  }

  const Walk& walk() const { return walk_; }
  size_t offset() const { return offset_; }                          // in values, from data
  size_t run() const { return walk_.extent[0] - at_[0]; }            // values left along the fastest axis
  void* here() const { return walk_.data + offset_ * bytes_of(walk_.type); }  // whole-byte types

  // n <= run()
  void advance(size_t n) {
    at_[0] += n;
    offset_ += n * walk_.stride[0];
    for (size_t k = 0; at_[k] == walk_.extent[k] && k + 1 < walk_.rank; ++k) {
      offset_ -= at_[k] * walk_.stride[k];
      offset_ += walk_.stride[k + 1];
      at_[k] = 0;
      ++at_[k + 1];
    }
  }

 private:
  const Walk& walk_;
  size_t offset_ = 0;
  size_t at_[kAxes] = {};
};

// The next n values of a float tensor to or from row (n).
inline void read_row(const Kernels& kernels, Cursor& from, size_t n, float* row) {
  for (size_t done = 0; done < n;) {
    size_t m = std::min(n - done, from.run());
    kernels.load(from.walk().type, from.here(), from.walk().stride[0], m, row + done);
    from.advance(m);
    done += m;
  }
}
inline void write_row(const Kernels& kernels, Cursor& to, size_t n, const float* row) {
  for (size_t done = 0; done < n;) {
    size_t m = std::min(n - done, to.run());
    kernels.store(to.walk().type, to.here(), to.walk().stride[0], m, row + done);
    to.advance(m);
    done += m;
  }
}

// Calls body(first, count) for the blocks of [first, first + count).
template <class Body>
void by_blocks(size_t first, size_t count, size_t block, const Body& body) {
  for (size_t done = 0; done < count; done += block) body(first + done, std::min(block, count - done));
}

}  // namespace obn::activation
