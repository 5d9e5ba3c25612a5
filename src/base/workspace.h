// The workspace of one call, shared out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/types.h"
#include "base/view.h"

namespace obn {

// The parts of a block, each aligned to kAlignment. The same code asks twice: without a block, when the parts are only
// counted and NULL, then with one of used() bytes, when they are placed.
class Workspace {
 public:
  explicit Workspace(std::byte* block = nullptr) : block_(block) {}

  template <class T = std::byte>
  T* take(size_t rows, size_t columns = 1) {
    size_t bytes;
    if (used_ == SIZE_MAX || __builtin_mul_overflow(rows, columns, &bytes) ||
        __builtin_mul_overflow(bytes, sizeof(T), &bytes) || bytes > SIZE_MAX / 2 - used_) {
      used_ = SIZE_MAX;
      return nullptr;
    }
    T* part = block_ ? reinterpret_cast<T*>(block_ + used_) : nullptr;
    used_ += round_up(bytes, kAlignment);
    return part;
  }
  // For a batch of samples without gaps.
  std::byte* take_samples(const View& view, size_t batch) { return take(view.count * bytes_of(view.type), batch); }

  size_t used() const { return used_; }  // SIZE_MAX: more than can be addressed

 private:
  std::byte* block_;
  size_t used_ = 0;
};

// The first byte of a caller's block that is aligned to kAlignment.
inline std::byte* aligned(void* block) {
  return reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(block), kAlignment));
}

// A block of so many bytes for all threads of a call, NULL where none are needed, and scratch of the calling thread. -1
// with a sentence when they cannot be had.
inline int find_workspace(size_t bytes, std::byte** block) {
  *block = nullptr;
  if (bytes == SIZE_MAX) return fail("batch: expected a size whose workspace can be addressed; it overflows");
  if (!scratch()) return -1;
  if (bytes == 0) return 0;
  *block = workspace(bytes);
  return *block ? 0 : -1;
}

}  // namespace obn
