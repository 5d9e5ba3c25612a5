// The C++ tests: a function per case, registered by name, and one check that says where and what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/cpu.h"
#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

namespace obn::test {

struct Case {
  const char* name;
  void (*run)();
  Case* next;
  static Case* first;
  Case(const char* name, void (*run)()) : name(name), run(run), next(first) { first = this; }
};

extern int failures;  // checks that failed so far

// The same numbers on every machine. A family's tests derive their own, which knows the values they like.
struct Random {
  uint64_t state;

  explicit Random(uint64_t seed) : state(seed) {}
  uint64_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  }
  size_t below(size_t n) { return next() % n; }
  size_t between(size_t low, size_t high) { return low + below(high - low + 1); }
  bool coin() { return next() & 1; }
};

// A caller's memory that counts: blocks taken, blocks given back, and how many it still has to give.
struct Memory {
  static inline size_t taken = 0, returned = 0, left = SIZE_MAX;

  static BNNSFilterParameters start(size_t blocks = SIZE_MAX) {
    taken = returned = 0;
    left = blocks;
    BNNSFilterParameters options = {};
    options.alloc_memory = [](void** block, size_t alignment, size_t bytes) {
      if (left == 0) return 1;
      --left;
      ++taken;
      return ::posix_memalign(block, alignment, bytes);
    };
    options.free_memory = [](void* block) {
      ++returned;
      std::free(block);
    };
    return options;
  }
};

}  // namespace obn::test

namespace obn {

inline constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512};

// Whether the last failure's sentence begins so.
inline bool failed_with(const char* start) { return std::strncmp(obn_last_error(), start, std::strlen(start)) == 0; }

}  // namespace obn

#define TEST(name)                                              \
  static void name();                                           \
  static const ::obn::test::Case case_##name(#name, name);      \
  static void name()

// CHECK(condition, "x is %f", x): the sentence is printed when the condition is false.
#define CHECK(condition, ...)                                                  \
  do {                                                                         \
    if (!(condition)) {                                                        \
      if (++::obn::test::failures <= 50) {                                     \
        std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);            \
        std::printf(__VA_ARGS__);                                              \
        std::printf("\n");                                                     \
      }                                                                        \
    }                                                                          \
  } while (false)
