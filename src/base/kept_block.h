// Memory of a filter from a training call to its gradients.
#pragma once

#include <cstddef>

#include "base/memory.h"

namespace obn {

// What a training call keeps for its gradients: a block from the caller's allocator, as large as the largest call's.
class KeptBlock {
 public:
  explicit KeptBlock(const Options& options) : options_(options) {}
  KeptBlock(const KeptBlock&) = delete;
  KeptBlock& operator=(const KeptBlock&) = delete;
  ~KeptBlock() { options_.release(block_); }

  std::byte* data() const { return block_; }
  size_t bytes() const { return bytes_; }

  // Makes it `bytes` long; -1 with a sentence, and then what was kept is still there. Where the block is a new one it
  // is gone, and `batch`, the number of samples it was of, becomes 0.
  int reserve(size_t bytes, size_t* batch) {
    if (bytes <= bytes_) return 0;
    auto* fresh = static_cast<std::byte*>(options_.get(bytes));
    if (!fresh) return -1;
    options_.release(block_);
    block_ = fresh;
    bytes_ = bytes;
    *batch = 0;
    return 0;
  }

 private:
  const Options options_;
  std::byte* block_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace obn
