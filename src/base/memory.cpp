#include "base/memory.h"

#include <cstdlib>

#include "base/status.h"

namespace obn {

int Options::read(const BNNSFilterParameters* filter_params, Options* options) {
  *options = Options{};
  if (!filter_params) return 0;
  if (!filter_params->alloc_memory != !filter_params->free_memory)
    return fail("filter_params: alloc_memory and free_memory go together; got only one of them");
  options->use_client_ptr = filter_params->flags & BNNSFlagsUseClientPtr;
  options->threads = filter_params->n_threads;
  options->alloc = filter_params->alloc_memory;
  options->free = filter_params->free_memory;
  return 0;
}

void* Options::get(size_t bytes) const {
  void* block = nullptr;
  if (bytes == 0) bytes = kAlignment;
  int error = alloc ? alloc(&block, kAlignment, bytes) : ::posix_memalign(&block, kAlignment, bytes);
  if (error != 0 || !block) {
    fail("memory: %zu bytes could not be had", bytes);
    return nullptr;
  }
  return block;
}

void Options::release(void* block) const {
  if (!block) return;
  if (free) {
    free(block);
  } else {
    ::free(block);
  }
}

namespace {

struct ThreadScratch {
  std::byte* block = nullptr;
  ~ThreadScratch() { std::free(block); }
};
thread_local ThreadScratch thread_scratch;

}  // namespace

std::byte* scratch() {
  if (!thread_scratch.block) [[unlikely]] {
    void* block = nullptr;
    if (::posix_memalign(&block, 4096, kScratchBytes) != 0) {
      fail("memory: %zu bytes of scratch could not be had", kScratchBytes);
      return nullptr;
    }
    thread_scratch.block = static_cast<std::byte*>(block);
  }
  return thread_scratch.block;
}

}  // namespace obn
