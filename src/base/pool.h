// The one thread pool of the process. Work is cut into pieces whose number and borders do not depend on how many
// threads there are; every thread begins with a share of neighbours, and who is done takes from the others' shares.
// A reduction writes one partial result per piece and adds them up in piece order afterwards: so any number of threads
// gives the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>

#include "base/integer.h"

namespace obn {

// Threads that a call may use: min(limit, library setting), limit 0 = no limit of its own.
size_t threads_for(size_t limit);

// How long all pieces of a call take one thread, in nanoseconds: a guess, good to a factor of two or three. A call takes
// no more threads than that pays for (see pool.cpp: handing over, fetching, joining). This says that it is enough for all:
inline constexpr double kAnyWork = std::numeric_limits<double>::infinity();

// What one core does about: for such guesses. Vector instructions differ by a factor of four between targets, and so do
// memory and caches; what takes longer than here only gets a thread less than it could have.
inline constexpr double kMultiplyAdd = 0.025;  // of float32, in a loop of nothing else
inline constexpr double kByte = 0.04;          // read or written, when it is not at hand
inline constexpr double kFunction = 0.5;       // exp and its like, a value

// How many of the threads so much work is worth.
size_t threads_worth(size_t threads, double work);

// For tests, whose arrays are small: every call is worth all its threads. OPENBNNS_EAGER_THREADS=1 says the same.
void set_eager_threads(bool are_eager);

// For work whose cut does not change a bit: units of a piece, between `least` and `most`, when `all` units are cut so for
// each of `times` things. The threads take turns, and all wait for the one with the most units, and for one that was late
// by half a piece: those pieces for which that takes least, and larger ones where it hardly matters. What a piece takes
// before its first unit counts as `extra` units.
inline size_t even_pieces(size_t all, size_t least, size_t most, size_t times, size_t threads, size_t extra = 0) {
  constexpr size_t kManyTurns = 6;  // then it hardly matters
  size_t best = std::max<size_t>(most, 1), fewest = 0;
  for (size_t pieces = divide_up(all, best);; ++pieces) {
    const size_t piece = divide_up(all, pieces), turns = divide_up(divide_up(all, piece) * times, threads);
    if (fewest > 0 && (turns > kManyTurns || piece < std::max<size_t>(least, 1))) return best;
    const size_t halves = (2 * turns + 1) * (piece + extra);
    if (fewest == 0 || 16 * halves < 15 * fewest) {
      best = fewest == 0 ? best : piece;
      fewest = halves;
    }
    if (piece <= 1 || threads < 2) return best;
  }
}

// Calls body(context, piece) once for every piece in [0, pieces), on at most `threads` threads including the caller,
// and returns when all are done, or the call is given up (base/interrupt.h). Nested calls, and calls made while another
// thread has the pool, run on the calling thread alone; and a call leaves a thread to each other thread that calls at the
// same time. Never allocates once the workers exist; never fails.
void run_pieces(size_t pieces, size_t threads, double work, void (*body)(void* context, size_t piece), void* context);

// Whether this is a worker, and the call it helps with is given up.
bool is_stopped_worker();

template <class Body>  // void body(size_t piece)
void parallel(size_t pieces, size_t threads, double work, const Body& body) {
  run_pieces(
      pieces, threads, work, [](void* context, size_t piece) { (*static_cast<const Body*>(context))(piece); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// Calls body(first, count) for the pieces of [0, total); a single piece stays on this thread and off the pool. Pieces
// take about kUsualPiece, which is what families that walk over values make them for, or as long as `each` says.
inline constexpr double kUsualPiece = 8000.0;
template <class Body>
void by_pieces(size_t total, size_t piece, size_t thread_limit, const Body& body, double each = kUsualPiece) {
  if (total <= piece) return body(size_t{0}, total);
  parallel(divide_up(total, piece), threads_for(thread_limit),
           each * static_cast<double>(total) / static_cast<double>(piece),
           [&](size_t i) { body(i * piece, std::min(piece, total - i * piece)); });
}

}  // namespace obn
