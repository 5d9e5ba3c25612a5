// The C++ tests: a function per case, registered by name, and one check that says where and what.
#pragma once

#include <cstdio>

namespace obn::test {

struct Case {
  const char* name;
  void (*run)();
  Case* next;
  static Case* first;
  Case(const char* name, void (*run)()) : name(name), run(run), next(first) { first = this; }
};

extern int failures;  // checks that failed so far

}  // namespace obn::test

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
