// Memory of one call of a fused layer, counted first and then placed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.h"
#include "base/status.h"
#include "base/types.h"
#include "base/view.h"

namespace obn::fused {

// The parts of one call's workspace; with block NULL only their size is counted.
class Room {
 public:
  explicit Room(std::byte* block = nullptr) : block_(block) {}

  std::byte* take(size_t bytes) {
    std::byte* place = block_ ? block_ + used_ : nullptr;
    if (used_ == SIZE_MAX || bytes > SIZE_MAX / 2 - used_) {
      used_ = SIZE_MAX;
    } else {
      used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    return place;
  }
  template <class T>
  T* take_many(size_t rows, size_t columns) {
    size_t n;
    const bool fits = !__builtin_mul_overflow(rows, columns, &n) && n <= SIZE_MAX / sizeof(T);
    return reinterpret_cast<T*>(take(fits ? n * sizeof(T) : SIZE_MAX));
  }
  std::byte* values(const View& view, size_t batch) {
    size_t bytes;
    return take(__builtin_mul_overflow(view.count * bytes_of(view.type), batch, &bytes) ? SIZE_MAX : bytes);
  }
  size_t used() const { return used_; }

 private:
  std::byte* block_;
  size_t used_ = 0;
};

inline std::byte* workspace_for(const Room& counted) {
  if (counted.used() == SIZE_MAX) {
    fail("batch: expected a size whose workspace can be addressed; it overflows");
    return nullptr;
  }
  return scratch() ? workspace(counted.used()) : nullptr;
}

// The bytes that a batch keeps for its gradients, with a sentence where they are SIZE_MAX.
inline size_t check_kept(size_t bytes, size_t batch) {
  if (bytes == SIZE_MAX) fail("batch: expected a size that can be kept for the gradients; %zu samples overflow", batch);
  return bytes;
}

}  // namespace obn::fused
