// Calls that may be given up half-way, because the program's callback says so (obn_set_interrupt_callback). It is asked on
// the calling thread, between pieces of parallel work and where long pieces ask, now and then; when it says so, all pieces
// that are left are skipped, in this parallel call and in those that follow until the interface's function returns -1.
// Kernels include this: nothing in it may become a function of theirs.
#pragma once

namespace obn {

class Filter;

// The call of the interface that the calling thread is in, where it may be given up; otherwise there is none: while no
// callback is set, in functions that create, and on workers.
struct Call {
  bool is_given_up = false;
  double work = 0.0;      // so far, as in pool.h
  long long asked = 0;    // when, in nanoseconds; 0: not yet
  long long looked = 0;   // at the clock, likewise
  unsigned skips = 0, skipped = 0;  // questions of those that come thick and fast, for which it is not looked at

  bool is_long() const;
  // Whether so much work more makes the call long enough for looking at the clock.
  bool becomes_long(double more);
  // Asks the callback if it is time to; whether the call is given up.
  bool ask();
};
Call* current_call();

// Whether what this thread does is in vain: for pieces that may take longer than some 10 ms, to be asked every millisecond
// or so. What has been asked by one part of a piece may be answered otherwise for the next.
bool is_interrupted();

// Runs body(context), which returns 0 or -1, as such a call: -1 with a sentence when it is given up, and `filter` (may be
// NULL) forgets what it kept for a later call.
int run_interruptible(int (*body)(void* context), void* context, Filter* filter);

// For tests, whose calls are short: every call asks wherever it can.
void set_eager_questions(bool are_eager);

template <class Body>  // int body()
int interruptible(Filter* filter, const Body& body) {
  return run_interruptible([](void* context) { return (*static_cast<const Body*>(context))(); },
                           const_cast<void*>(static_cast<const void*>(&body)), filter);
}

}  // namespace obn
