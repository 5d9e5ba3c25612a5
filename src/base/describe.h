// What runs, in words: a filter's own description, and the line that each of its calls prints with OPENBNNS_VERBOSE=1.
#pragma once

#include <chrono>
#include <cstddef>
#include <ratio>

#include "base/filter.h"
#include "base/interrupt.h"

namespace obn {

enum class Pass { forward, backward };

// Both write one line without its end, as snprintf does: at most `capacity` bytes with the NUL, and the length of the
// whole is returned. -1 with a sentence where the batch cannot be addressed.
int describe_filter(const Filter& filter, size_t batch, char* text, size_t capacity);
int describe_call(const Filter& filter, Pass pass, size_t batch, int status, double milliseconds, char* text,
                  size_t capacity);

// Whether OPENBNNS_VERBOSE asks for a line per call. Looked up once: afterwards this is a load.
bool is_verbose();
void print_call(const Filter& filter, Pass pass, size_t batch, int status, double milliseconds);

// A call of the interface on a filter: every entry point that computes with one goes through here. body() returns 0 or
// -1, and may be given up half-way (interrupt.h).
template <class Body>
int call_filter(Filter* filter, Pass pass, size_t batch, const Body& body) {
  if (!is_verbose()) [[likely]] return interruptible(filter, body);
  const auto start = std::chrono::steady_clock::now();
  const int status = interruptible(filter, body);
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
  print_call(*filter, pass, batch, status, passed.count());
  return status;
}

}  // namespace obn
