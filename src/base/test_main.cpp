#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/pool.h"
#include "base/test.h"

namespace obn::test {
Case* Case::first = nullptr;
int failures = 0;
}  // namespace obn::test

namespace obn::test {
int record_bits(const char* path);  // bits_test.cpp
}

// core_test [WORD]: runs the cases whose name contains WORD.
// core_test --record-bits PATH: writes the table of bits_test.cpp.
int main(int count, char** arguments) {
  obn::set_eager_threads(true);  // cases are small, and what they check is to be computed by several threads
  if (count == 3 && std::strcmp(arguments[1], "--record-bits") == 0) return obn::test::record_bits(arguments[2]);
  int ran = 0, failed = 0;
  for (auto* test = obn::test::Case::first; test; test = test->next) {
    if (count > 1 && !std::strstr(test->name, arguments[1])) continue;
    int before = obn::test::failures;
    const auto begin = std::chrono::steady_clock::now();
    test->run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (took.count() > 20.0) std::printf("%s took %.0f s\n", test->name, took.count());
    ++ran;
    if (obn::test::failures != before) {
      ++failed;
      std::printf("FAILED %s\n", test->name);
    }
  }
  std::printf("%d passed, %d failed\n", ran - failed, failed);
  return failed != 0 || ran == 0;
}
