// The one thread pool of the process. Work is cut into pieces whose number and borders do not depend on how many
// threads there are; every thread begins with a share of neighbours, and who is done takes from the others' shares.
// A reduction writes one partial result per piece and adds them up in piece order afterwards: so any number of threads
// gives the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

namespace obn {

// Threads that a call may use: min(limit, library setting), limit 0 = no limit of its own.
size_t threads_for(size_t limit);

// Calls body(context, piece) once for every piece in [0, pieces), on at most `threads` threads including the caller,
// and returns when all are done. Nested calls, and calls made while another thread has the pool, run on the calling
// thread alone; and a call leaves a thread to each other thread that calls at the same time. Never allocates once the
// workers exist; never fails.
void run_pieces(size_t pieces, size_t threads, void (*body)(void* context, size_t piece), void* context);

template <class Body>  // void body(size_t piece)
void parallel(size_t pieces, size_t threads, const Body& body) {
  run_pieces(
      pieces, threads, [](void* context, size_t piece) { (*static_cast<const Body*>(context))(piece); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// Calls body(first, count) for the pieces of [0, total); a single piece stays on this thread and off the pool.
template <class Body>
void by_pieces(size_t total, size_t piece, size_t thread_limit, const Body& body) {
  if (total <= piece) return body(size_t{0}, total);
  parallel((total + piece - 1) / piece, threads_for(thread_limit),
           [&](size_t i) { body(i * piece, std::min(piece, total - i * piece)); });
}

}  // namespace obn
