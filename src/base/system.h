// What every operating system says differently: memory, threads, cores, chance. Nothing else in the core asks one,
// except for what only Linux has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace obn {

// Memory with this alignment (a power of 2), to be given back by free_aligned; NULL when there is none.
void* allocate_aligned(size_t alignment, size_t bytes);
void free_aligned(void* block);  // NULL: nothing

// A thread that runs body(argument) and is never joined; false when there cannot be one more.
bool start_thread(void (*body)(void* argument), void* argument);

// Calls body(argument) when a thread ends that has set an argument. A thread_local with a destructor ends the process where
// there is no memory to remember it; set() says so. One of these lives as long as the library.
class AtThreadEnd {
 public:
  explicit AtThreadEnd(void (*body)(void* argument));
  AtThreadEnd(const AtThreadEnd&) = delete;
  AtThreadEnd& operator=(const AtThreadEnd&) = delete;
  ~AtThreadEnd();

  bool set(void* argument) const;  // for the calling thread; false when that cannot be

 private:
  unsigned long key_ = 0;
  bool has_key_ = false;
};

void yield_core();     // let another thread have this core, if one waits for it
size_t count_cores();  // those this process may use, at least 1

// Has these called around every fork, where there are such things: before it, and after it in either process. NULL:
// nothing. False when that cannot be.
bool at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

size_t second_level_cache_bytes();  // of one core, 0: not known

uint64_t unpredictable_seed();  // differs from run to run; 0 when the system has no chance to give

}  // namespace obn
