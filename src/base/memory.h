// Where memory comes from: the caller's callbacks for what a filter owns; for every thread a fixed block of scratch, and a
// workspace that grows.
#pragma once

#include <cstddef>
#include <utility>

#include "openbnns/bnns/base.h"

namespace obn {

inline constexpr size_t kAlignment = 64;  // of everything a filter owns: one cache line, one AVX-512 register
inline constexpr size_t kLineFloats = kAlignment / sizeof(float);
inline constexpr size_t kStreamBytes = size_t{16} << 20;  // results larger than this go past the caches

// What BNNSFilterParameters says, checked and with the defaults filled in.
struct Options {
  bool use_client_ptr = false;
  size_t threads = 0;  // 0 = the library's setting
  BNNSAlloc alloc = nullptr;
  BNNSFree free = nullptr;

  // filter_params may be NULL. Returns 0, or -1 with a sentence.
  static int read(const BNNSFilterParameters* filter_params, Options* options);

  // NULL (with a sentence) when there is no memory. A size of 0 gives a valid block.
  void* get(size_t bytes) const;
  void release(void* block) const;

  // A T made in memory of the caller's allocator; NULL when there is none. T must not throw.
  template <class T, class... Arguments>
  T* make(Arguments&&... arguments) const {
    static_assert(alignof(T) <= kAlignment);
    void* block = get(sizeof(T));
    return block ? new (block) T(std::forward<Arguments>(arguments)...) : nullptr;
  }
};

// Scratch belongs to threads, not to filters: every thread that computes has one block of this size, aligned to
// kAlignment, got once and kept; pages that are never touched cost nothing. A plan that needs more than this must choose
// smaller tiles (or the reference loops).
inline constexpr size_t kScratchBytes = size_t{4} << 20;

// The calling thread's block; NULL (with a sentence) when it cannot be had. Entry points call it before they write
// anything; inside a pool piece it never fails.
std::byte* scratch();

// What the threads of one call share (packed weights, partial sums): a block of the calling thread, at least `bytes`
// long, aligned to kAlignment, kept and grown as needed; so layers called in turn share it. Contents do not survive the
// next call. NULL (with a sentence) when it cannot be had. Only entry points ask, once per call and before they write
// anything; whatever they call is handed its part. A layer that calls another one's entry point asks for both: the block
// stays as it is when less is asked for.
std::byte* workspace(size_t bytes);

// While one lives, the calling thread has other scratch and workspace: for calls made in the middle of a call.
class OtherBlocks {
 public:
  OtherBlocks();
  OtherBlocks(const OtherBlocks&) = delete;
  OtherBlocks& operator=(const OtherBlocks&) = delete;
  ~OtherBlocks();

 private:
  void* const before_;
};

// Asks for values that will soon be read or written, where the hardware does not see them coming.
inline void bring_near(const float* p, size_t n) {
  for (size_t i = 0; i < n; i += kLineFloats) __builtin_prefetch(p + i, 0, 2);
}

}  // namespace obn
