// The C++ tests: a function per case, registered by name, and one check that says where and what.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "base/cpu.h"
#include "base/targets.h"
#include "base/system.h"
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
  double value() { return static_cast<double>(below(1 << 20)) / (1 << 19) - 1.0; }  // in [-1, 1)
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
      *block = allocate_aligned(alignment, bytes);
      return *block ? 0 : 1;
    };
    options.free_memory = [](void* block) {
      ++returned;
      free_aligned(block);
    };
    return options;
  }
};

}  // namespace obn::test

namespace obn {

inline constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512};

namespace test {

// The targets this machine can run, each once.
template <class Kernels>
struct Target {
  const char* name;
  const Kernels* kernels;
};
template <class Kernels>
std::vector<Target<Kernels>> all_targets(const Targets<Kernels>& targets) {
  std::vector<Target<Kernels>> all;
  for (Isa isa : kIsas)
    if (has_isa(isa) && (all.empty() || &targets.at(isa) != all.back().kernels))
      all.push_back({name_of(isa), &targets.at(isa)});
  return all;
}

}  // namespace test

// Descriptors without strides.
inline BNNSNDArrayDescriptor array_of(BNNSDataLayout layout, std::initializer_list<size_t> size, void* data,
                                      BNNSDataType type = BNNSDataTypeFloat32) {
  BNNSNDArrayDescriptor d = {};
  d.layout = layout;
  std::copy(size.begin(), size.end(), d.size);
  d.data_type = type;
  d.data = data;
  return d;
}
inline BNNSNDArrayDescriptor vector_of(size_t n, BNNSDataType type = BNNSDataTypeFloat32, void* data = nullptr) {
  return array_of(BNNSDataLayoutVector, {n}, data, type);
}
inline BNNSNDArrayDescriptor vector_of(size_t n, void* data) { return vector_of(n, BNNSDataTypeFloat32, data); }

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
