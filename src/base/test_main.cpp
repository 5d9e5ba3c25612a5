#include <cstdio>
#include <cstring>

#include "base/test.h"

namespace obn::test {
Case* Case::first = nullptr;
int failures = 0;
}  // namespace obn::test

// core_test [WORD]: runs the cases whose name contains WORD.
int main(int count, char** arguments) {
  int ran = 0, failed = 0;
  for (auto* test = obn::test::Case::first; test; test = test->next) {
    if (count > 1 && !std::strstr(test->name, arguments[1])) continue;
    int before = obn::test::failures;
    test->run();
    ++ran;
    if (obn::test::failures != before) {
      ++failed;
      std::printf("FAILED %s\n", test->name);
    }
  }
  std::printf("%d passed, %d failed\n", ran - failed, failed);
  return failed != 0 || ran == 0;
}
