#include "base/pool.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>

#include "base/memory.h"
#include "base/system.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

constexpr size_t kMaxThreads = 256;
constexpr auto kSpin = std::chrono::microseconds(200);  // a worker waits this long for the next call before it parks

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// ---- cores ----

constexpr int kNoCore = -1;
constexpr size_t kFewWorkers = 8;  // a call that wakes more of them leaves their places to the system

int this_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return kNoCore;
#endif
}

// Where a worker may run. On the caller's core it is worse than none, yet that is where the system puts it when the few
// other cores have something to do, and it may leave the two together for long. So a worker keeps off that core when it
// is woken, or finds itself there, until it has helped. Does nothing where there is no other core or no such system
// call.
class Place {
 public:
  bool is_parked = false;

  // By the worker itself, before all else.
  void take() {
#if defined(__linux__)
    thread_ = static_cast<pid_t>(syscall(SYS_gettid));
#endif
  }

  // This and roam(): by the worker, or for it while it is parked.
  void keep_off(int core) {
#if defined(__linux__)
    if (core == off_ || core < 0 || core >= CPU_SETSIZE) return;
    roam();
    if (sched_getaffinity(thread_, sizeof allowed_, &allowed_) != 0) return;
    const cpu_set_t others = all_but(core);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(thread_, sizeof others, &others) == 0) off_ = core;
#else
    (void)core;
#endif
  }

  // It may go wherever it could before, unless somebody has changed its cores meanwhile.
  void roam() {
#if defined(__linux__)
    if (off_ == kNoCore) return;
    const cpu_set_t others = all_but(off_);
    cpu_set_t now;
    if (sched_getaffinity(thread_, sizeof now, &now) == 0 && CPU_EQUAL(&now, &others))
      sched_setaffinity(thread_, sizeof allowed_, &allowed_);
    off_ = kNoCore;
#endif
  }

 private:
#if defined(__linux__)
  cpu_set_t all_but(int core) const {
    cpu_set_t others = allowed_;
    CPU_CLR(static_cast<size_t>(core), &others);
    return others;
  }

  pid_t thread_ = 0;
  cpu_set_t allowed_ = {};  // its cores when it may roam
  int off_ = kNoCore;
#endif
};

// ---- callers ----

// Threads of the caller that compute at the same time share the cores: a call leaves one of the library's threads to
// each other thread that is in a call, or was a moment ago. Without this, two threads that train a network each would
// keep three busy on two cores.
class Callers {
 public:
  // The calling thread is in a call from now on; returns how many others are.
  size_t enter() {
    const size_t mine = number() % kSlots;
    busy_until_[mine].store(std::numeric_limits<int64_t>::max(), std::memory_order_relaxed);
    if (threads_seen.load(std::memory_order_relaxed) < 2) [[likely]] return 0;
    const int64_t now = clock();
    size_t others = 0;
    for (size_t slot = 0; slot < kSlots; ++slot)
      others += slot != mine && busy_until_[slot].load(std::memory_order_relaxed) > now;
    return others;
  }

  void leave() {
    const bool is_alone = threads_seen.load(std::memory_order_relaxed) < 2;
    busy_until_[number() % kSlots].store(is_alone ? 0 : clock() + kMoment, std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kSlots = 16;  // threads beyond them are seen as one with another
  static constexpr int64_t kMoment = 2'000'000;  // ns: Python between two calls of a training step

  static int64_t clock() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  static size_t number() {
    thread_local const size_t mine = threads_seen.fetch_add(1, std::memory_order_relaxed);
    return mine;
  }

  static inline std::atomic<size_t> threads_seen{0};
  std::atomic<int64_t> busy_until_[kSlots] = {};
};

// ---- pieces ----

// Every thread of a call has a share of its pieces, a run of neighbours, and takes them in order; then it takes what is
// left of the others' shares. So a thread walks through memory in one direction, and finds in its caches what it wrote
// in the call before, if that had its pieces in the same order.
//
// The pieces of a share are handed out by one number, the ticket: which call it belongs to (upper half) and the next
// piece (lower half). Taking a piece is a compare-and-swap on it, so a worker that comes late, or was asleep, finds a
// ticket of another call or an exhausted one and takes nothing: nobody ever waits for it. The call's other words may be
// rewritten only while its tickets are closed; a worker that read them before a successful swap read those of its call.
// A call ends only when all its pieces are counted, and a worker counts its own after the last one: until then all
// tickets it sees are of this call.
constexpr uint64_t kClosed = 0xffffffff;

struct alignas(64) Share {
  std::atomic<uint64_t> ticket{kClosed};
  std::atomic<size_t> end{0};  // behind its last piece
};

struct Pool {
  Share shares[kMaxThreads];  // 0: the caller's, k + 1: that of worker k
  alignas(64) std::atomic<size_t> done{0};
  alignas(64) std::atomic<size_t> threads{0};  // shares that this call has
  std::atomic<void (*)(void*, size_t)> body{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int> core{kNoCore};  // where the caller was when it began

  Callers callers;

  std::mutex owner;               // held by the thread whose call this is
  uint64_t call = 0;              // guarded by owner
  size_t workers = 0;             // guarded by owner
  std::atomic<size_t> settled{0}; // workers that have allocated all they ever will

  std::mutex bed;  // parked workers wait here
  std::condition_variable alarm;
  std::atomic<size_t> parked{0};
  Place places[kMaxThreads];  // those of parked workers are guarded by bed

  // Runs pieces until the share has none; how many.
  size_t empty(Share& share) {
    for (size_t count = 0;;) {
      uint64_t now = share.ticket.load(std::memory_order_acquire);
      const size_t piece = now & kClosed;
      auto* run = body.load(std::memory_order_acquire);
      void* with = context.load(std::memory_order_acquire);
      if (piece >= share.end.load(std::memory_order_acquire)) return count;
      if (!share.ticket.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) continue;
      run(with, piece);
      ++count;
    }
  }

  void help(size_t first) {
    size_t count = empty(shares[first]);
    const size_t all = threads.load(std::memory_order_acquire);
    for (size_t i = first + 1; i < all; ++i) count += empty(shares[i]);
    for (size_t i = 0; i < first; ++i) count += empty(shares[i]);
    if (count > 0) done.fetch_add(count, std::memory_order_release);
  }

  void run(size_t count, size_t wanted, void (*run_body)(void*, size_t), void* with) {
    start_workers(wanted - 1);
    call = (call + 1) & kClosed;
    for (size_t i = 0; i < wanted; ++i) shares[i].ticket.store(call << 32 | kClosed, std::memory_order_release);
    done.store(0, std::memory_order_release);
    threads.store(wanted, std::memory_order_release);
    body.store(run_body, std::memory_order_release);
    context.store(with, std::memory_order_release);
    core.store(this_core(), std::memory_order_relaxed);
    call = (call + 1) & kClosed;
    const size_t least = count / wanted, more = count % wanted;  // the first `more` shares have a piece more
    for (size_t i = wanted; i-- > 0;) {
      const size_t begin = i * least + std::min(i, more);
      shares[i].end.store(begin + least + (i < more), std::memory_order_release);
      shares[i].ticket.store(call << 32 | begin, std::memory_order_seq_cst);
    }
    if (parked.load(std::memory_order_seq_cst) > 0) wake_workers();
    help(0);
    for (size_t tries = 0; done.load(std::memory_order_acquire) < count; ++tries) {
      if (tries < 4096) {
        pause();
      } else {
        yield_core();  // the machine is busy: let the worker that still computes have this core
      }
    }
  }

  bool is_on_callers_core() const {
    const int here = this_core();
    return here != kNoCore && here == core.load(std::memory_order_relaxed);
  }
  void start_workers(size_t wanted);
  void wake_workers();
  void work(size_t seat);
};

// Never destroyed: workers outlive main. A forked child has no workers and gets a new pool.
std::atomic<Pool*> the_pool{nullptr};
std::atomic<size_t> setting{0};  // 0: not read yet
thread_local bool inside = false;

struct Start {
  Pool* pool;
  size_t seat;
};

void worker_main(void* argument) {
  Start start = *static_cast<Start*>(argument);
  delete static_cast<Start*>(argument);
  const bool can_work = scratch() != nullptr;
  start.pool->settled.fetch_add(1, std::memory_order_release);
  inside = true;
  if (can_work) start.pool->work(start.seat);
}

void Pool::start_workers(size_t wanted) {
  if (workers >= wanted) [[likely]] return;
  for (; workers < wanted; ++workers) {
    auto* start = new (std::nothrow) Start{this, workers};
    if (!start || !start_thread(worker_main, start)) {
      delete start;
      break;  // fewer helpers; the caller computes whatever nobody takes
    }
  }
  // So that a warm call allocates nothing, not even on a worker that a busy machine starts late.
  while (settled.load(std::memory_order_acquire) < workers) yield_core();
}

void Pool::wake_workers() {
  {
    std::lock_guard guard(bed);
    const size_t wanted = std::min(workers, threads.load(std::memory_order_relaxed) - 1);
    for (size_t seat = 0; wanted <= kFewWorkers && seat < wanted; ++seat) {
      if (places[seat].is_parked) places[seat].keep_off(core.load(std::memory_order_relaxed));
    }
  }
  alarm.notify_all();
}

void Pool::work(size_t seat) {
  // A worker beyond the cores would spin on somebody else's time.
  const bool may_spin = seat + 1 < count_cores();
  Place& place = places[seat];
  place.take();
  const std::atomic<uint64_t>& ticket = shares[seat + 1].ticket;
  for (uint64_t seen = 0;;) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    uint64_t now = ticket.load(std::memory_order_acquire);
    for (size_t tries = 1; may_spin && now >> 32 == seen; now = ticket.load(std::memory_order_acquire), ++tries) {
      pause();
      if (tries % 64 == 0 && (is_on_callers_core() || std::chrono::steady_clock::now() > until)) break;
    }
    if (now >> 32 == seen) {
      std::unique_lock guard(bed);
      place.is_parked = true;
      parked.fetch_add(1, std::memory_order_seq_cst);
      alarm.wait(guard, [&] { return (now = ticket.load(std::memory_order_seq_cst)) >> 32 != seen; });
      parked.fetch_sub(1, std::memory_order_relaxed);
      place.is_parked = false;
    }
    seen = now >> 32;
    if (is_on_callers_core()) place.keep_off(core.load(std::memory_order_relaxed));
    if ((now & kClosed) != kClosed) help(seat + 1);
    place.roam();
  }
}

Pool* pool() {
  Pool* found = the_pool.load(std::memory_order_acquire);
  if (found) return found;
  Pool* made = new (std::nothrow) Pool;
  if (!made) return nullptr;
  if (!the_pool.compare_exchange_strong(found, made, std::memory_order_acq_rel)) {
    delete made;
    return found;
  }
  static const bool registered = after_fork_in_child([] {
    the_pool.store(nullptr, std::memory_order_release);
    inside = false;
  });
  (void)registered;
  return made;
}

size_t library_threads() {
  size_t threads = setting.load(std::memory_order_relaxed);
  if (threads == 0) [[unlikely]] {
    const char* text = std::getenv("OPENBNNS_NUM_THREADS");
    long asked = text ? std::strtol(text, nullptr, 10) : 0;
    threads = std::clamp(asked > 0 ? static_cast<size_t>(asked) : count_cores(), size_t{1}, kMaxThreads);
    size_t expected = 0;
    if (!setting.compare_exchange_strong(expected, threads, std::memory_order_relaxed)) threads = expected;
  }
  return threads;
}

}  // namespace

size_t threads_for(size_t limit) {
  size_t threads = library_threads();
  return limit == 0 ? threads : std::min(limit, threads);
}

void run_pieces(size_t pieces, size_t threads, void (*body)(void*, size_t), void* context) {
  if (pieces > 1 && threads > 1 && pieces < kClosed && !inside) {
    if (Pool* all = pool()) {
      const size_t others = all->callers.enter();
      size_t ours = std::min(threads, pieces);
      if (others > 0) ours = std::min(ours, library_threads() - std::min(others, library_threads()));
      inside = true;
      if (ours > 1 && all->owner.try_lock()) {
        all->run(pieces, ours, body, context);
        all->owner.unlock();
      } else {
        for (size_t piece = 0; piece < pieces; ++piece) body(context, piece);
      }
      inside = false;
      all->callers.leave();
      return;
    }
  }
  for (size_t piece = 0; piece < pieces; ++piece) body(context, piece);
}

}  // namespace obn

extern "C" {

void obn_set_num_threads(size_t n) {
  obn::setting.store(std::clamp(n == 0 ? obn::count_cores() : n, size_t{1}, obn::kMaxThreads),
                     std::memory_order_relaxed);
}

size_t obn_get_num_threads(void) { return obn::library_threads(); }
}
