#if defined(_WIN32)
#define _CRT_RAND_S  // declares rand_s
#endif

#include "base/system.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(_WIN32)
#include <malloc.h>
#include <windows.h>

#include <bit>
#else
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#endif

namespace obn {
namespace {

struct Start {  // what a new thread does
  void (*body)(void*);
  void* argument;
};

}  // namespace

#if defined(_WIN32)

void* allocate_aligned(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }

void free_aligned(void* block) { _aligned_free(block); }

namespace {

DWORD WINAPI thread_main(void* start) {
  const Start what = *static_cast<Start*>(start);
  delete static_cast<Start*>(start);
  what.body(what.argument);
  return 0;
}

}  // namespace

bool start_thread(void (*body)(void*), void* argument) {
  // Threads that are never joined need the library for ever.
  HMODULE library;
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                     reinterpret_cast<const wchar_t*>(&thread_main), &library);
  auto* start = new (std::nothrow) Start{body, argument};
  HANDLE thread = start ? CreateThread(nullptr, 0, thread_main, start, 0, nullptr) : nullptr;
  if (!thread) {
    delete start;
    return false;
  }
  CloseHandle(thread);
  return true;
}

AtThreadEnd::AtThreadEnd(void (*body)(void*)) : key_(FlsAlloc(body)), has_key_(key_ != FLS_OUT_OF_INDEXES) {}
AtThreadEnd::~AtThreadEnd() {}  // those that still run need it
bool AtThreadEnd::set(void* argument) const { return has_key_ && FlsSetValue(static_cast<DWORD>(key_), argument); }

void yield_core() { SwitchToThread(); }

size_t count_cores() {
  DWORD_PTR ours = 0, all = 0;  // both 0 for a process that spans more than 64 cores
  if (GetProcessAffinityMask(GetCurrentProcess(), &ours, &all) && ours != 0)
    return static_cast<size_t>(std::popcount(ours));
  return std::max<size_t>(1, GetActiveProcessorCount(ALL_PROCESSOR_GROUPS));
}

bool at_fork(void (*)(), void (*)(), void (*)()) { return true; }

size_t second_level_cache_bytes() { return 0; }

uint64_t unpredictable_seed() {
  unsigned low = 0, high = 0;
  return rand_s(&low) == 0 && rand_s(&high) == 0 ? uint64_t{high} << 32 | low : 0;
}

#else

void* allocate_aligned(size_t alignment, size_t bytes) {
  // Large blocks lie on large pages where the system has them to give: a norm that keeps 25 MB would otherwise touch
  // more pages than a processor remembers.
  constexpr size_t kLargeBlock = size_t{4} << 20, kLargePage = size_t{2} << 20;
  void* block = nullptr;
  if (posix_memalign(&block, bytes >= kLargeBlock ? kLargePage : alignment, bytes) != 0) return nullptr;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (bytes >= kLargeBlock) madvise(block, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
  return block;
}

void free_aligned(void* block) { std::free(block); }

namespace {

void* thread_main(void* start) {
  const Start what = *static_cast<Start*>(start);
  delete static_cast<Start*>(start);
  what.body(what.argument);
  return nullptr;
}

}  // namespace

bool start_thread(void (*body)(void*), void* argument) {
  auto* start = new (std::nothrow) Start{body, argument};
  pthread_t thread;
  if (!start || pthread_create(&thread, nullptr, thread_main, start) != 0) {
    delete start;
    return false;
  }
  pthread_detach(thread);
  return true;
}

AtThreadEnd::AtThreadEnd(void (*body)(void*)) {
  pthread_key_t key;
  has_key_ = pthread_key_create(&key, body) == 0;
  if (has_key_) key_ = key;
}

AtThreadEnd::~AtThreadEnd() {  // a library that is unloaded has no body to call
  if (has_key_) pthread_key_delete(static_cast<pthread_key_t>(key_));
}

bool AtThreadEnd::set(void* argument) const {
  return has_key_ && pthread_setspecific(static_cast<pthread_key_t>(key_), argument) == 0;
}

void yield_core() { sched_yield(); }

size_t count_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<size_t>(std::max(1, CPU_COUNT(&set)));
#endif
  return static_cast<size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

bool at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
  return pthread_atfork(before, in_parent, in_child) == 0;
}

size_t second_level_cache_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  return static_cast<size_t>(std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE)));
#else
  return 0;
#endif
}

uint64_t unpredictable_seed() {  // getentropy is younger than some C libraries we run with
  uint64_t number = 0;
  const int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  if (read(file, &number, sizeof number) != sizeof number) number = 0;
  close(file);
  return number;
}

#endif

}  // namespace obn
