#include "base/memory.h"

#include <cstddef>
#include <new>

#include "base/status.h"
#include "base/system.h"

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
  if (!alloc) {
    block = allocate_aligned(kAlignment, bytes);
  } else if (alloc(&block, kAlignment, bytes) != 0) {
    block = nullptr;
  }
  if (!block) {
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
    free_aligned(block);
  }
}

namespace {

struct ThreadBlock {
  std::byte* block = nullptr;
  size_t size = 0;

  std::byte* at_least(size_t bytes, const char* what) {
    if (bytes <= size) [[likely]] return block;
    free_aligned(block);
    block = nullptr;
    size = 0;
    void* fresh = allocate_aligned(4096, bytes);
    if (!fresh) {
      fail("memory: %zu bytes of %s could not be had", bytes, what);
      return nullptr;
    }
    block = static_cast<std::byte*>(fresh);
    size = bytes;
    return block;
  }
};

struct ThreadBlocks {
  ThreadBlock scratch, workspace;
};
thread_local constinit ThreadBlocks* thread_blocks = nullptr;

void free_blocks(void* blocks) {
  auto* all = static_cast<ThreadBlocks*>(blocks);
  free_aligned(all->scratch.block);
  free_aligned(all->workspace.block);
  delete all;
}
const AtThreadEnd freeing(free_blocks);

// Those of the calling thread; NULL (with a sentence) when there cannot be any.
ThreadBlocks* blocks() {
  if (thread_blocks) [[likely]] return thread_blocks;
  auto* made = new (std::nothrow) ThreadBlocks;
  if (made && freeing.set(made)) return thread_blocks = made;
  delete made;
  fail("memory: %zu bytes of a thread could not be had", sizeof(ThreadBlocks));
  return nullptr;
}

}  // namespace

OtherBlocks::OtherBlocks() : before_(thread_blocks) { thread_blocks = nullptr; }

OtherBlocks::~OtherBlocks() {
  if (thread_blocks) {
    freeing.set(before_);
    free_blocks(thread_blocks);
  }
  thread_blocks = static_cast<ThreadBlocks*>(before_);
}

std::byte* scratch() {
  ThreadBlocks* mine = blocks();
  return mine ? mine->scratch.at_least(kScratchBytes, "scratch") : nullptr;
}

std::byte* workspace(size_t bytes) {
  ThreadBlocks* mine = blocks();
  return mine ? mine->workspace.at_least(bytes < kAlignment ? kAlignment : bytes, "workspace") : nullptr;
}

}  // namespace obn
