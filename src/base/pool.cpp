#include "base/pool.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <ratio>

#include "base/integer.h"
#include "base/interrupt.h"
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
constexpr size_t kFewThreads = 9;  // a call on more of them leaves the places of its workers to the system

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

// Every thread of a call has a share of its tickets, a run of neighbours, and takes them in order; then it takes what is
// left of the others' shares. So a thread walks through memory in one direction, and finds in its caches what it wrote
// in the call before, if that had its pieces in the same order. A ticket is a piece, or a few where there are very many.
//
// A share is one number: which call it belongs to, the next ticket, and the one behind its last. Taking a ticket is a
// compare-and-swap on it, so a worker that comes late, or was asleep, finds a share of another call or an empty one and
// takes nothing: nobody ever waits for it. The call's other words are rewritten only when all its tickets are counted; a
// worker counts what it took afterwards, so what it read between the share and a successful swap was of that call.
constexpr unsigned kTicketBits = 18;
constexpr uint64_t kMostTickets = (uint64_t{1} << kTicketBits) - 1;
constexpr uint64_t kCalls = uint64_t{1} << (64 - 2 * kTicketBits);

constexpr uint64_t share_of(uint64_t call, uint64_t next, uint64_t end) {
  return (call << kTicketBits | next) << kTicketBits | end;
}
constexpr uint64_t call_of(uint64_t share) { return share >> 2 * kTicketBits; }
constexpr size_t next_of(uint64_t share) { return share >> kTicketBits & kMostTickets; }
constexpr size_t end_of(uint64_t share) { return share & kMostTickets; }

// What a thread of the pool needs for itself, in lines of its own.
struct alignas(64) Seat {
  std::atomic<uint64_t> share{0};

  alignas(64) std::mutex bed;  // a parked worker waits here
  std::condition_variable alarm;
  Place place;  // guarded by bed while the worker is parked
};

// ---- what a call costs ----

using Clock = std::chrono::steady_clock;

double nanoseconds(Clock::duration time) { return std::chrono::duration<double, std::nano>(time).count(); }

enum class Eager { unknown, no, yes };
std::atomic<Eager> eager{Eager::unknown};

bool is_eager() {
  Eager now = eager.load(std::memory_order_relaxed);
  if (now == Eager::unknown) [[unlikely]] {
    const char* text = std::getenv("OPENBNNS_EAGER_THREADS");
    now = text && *text == '1' ? Eager::yes : Eager::no;
    eager.store(now, std::memory_order_relaxed);
  }
  return now == Eager::yes;
}

// Handing over to one more thread that is awake, and waiting for it: measured whenever workers are started.
std::atomic<double> hand_over{300.0};
constexpr double kLeastHandOver = 50.0, kMostHandOver = 5000.0;
constexpr double kWakeUp = 30000.0;  // what waking workers costs, about: the system has to

// Work below which one more thread costs more than it brings: it has to fetch what others have in their caches, and they
// have to fetch it back. Measured then, too; the bounds are those of the machines seen.
constexpr double kLeastWorth = 3000.0, kMostWorth = 12000.0;
std::atomic<double> worth_a_thread{kLeastWorth};

// Sleeping workers are woken once the calls that went without them have lost as much as that costs; a call that loses
// as much alone wakes them at once.
class Patience {
 public:
  // Whether `wanted` threads should compute although only `awake` would not have to be woken.
  bool wakes(double work, size_t awake, size_t wanted) {
    if (work == kAnyWork || is_eager()) return true;
    lost_ += work / static_cast<double>(awake) - work / static_cast<double>(wanted);
    if (lost_ < kWakeUp) return false;
    lost_ = 0;
    return true;
  }

 private:
  double lost_ = 0;
};

struct Pool {
  Seat seats[kMaxThreads];  // 0: the caller's, k: that of worker k
  alignas(64) std::atomic<size_t> done{0};  // tickets
  alignas(64) std::atomic<size_t> threads{0};  // shares that this call has
  std::atomic<size_t> pieces{0}, per_ticket{1};
  std::atomic<void (*)(void*, size_t)> body{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int> core{kNoCore};  // where the caller was when it began
  std::atomic<bool> is_stopped{false};  // what is left is not wanted any more

  // A bit for every worker that is parked. Whoever looks whether somebody must be woken changes the word too (by
  // nothing): so either he sees the bit, or the worker, when it has set the bit, sees its new share.
  alignas(64) std::atomic<uint64_t> parked[kMaxThreads / 64] = {};

  Callers callers;

  std::mutex owner;                // held by the thread whose call this is
  uint64_t call = 0;               // guarded by owner, as the two below
  size_t workers = 0;              // seats 1 to this one
  Patience patience;
  std::atomic<size_t> settled{0};  // workers that have allocated all they ever will

  // Runs tickets until the share has none. With `interruptible`, which the caller has where its call is long, it asks
  // after each whether to go on.
  void empty(std::atomic<uint64_t>& share, Call* interruptible) {
    size_t count = 0;
    for (;;) {
      uint64_t now = share.load(std::memory_order_acquire);
      const size_t ticket = next_of(now);
      if (ticket >= end_of(now)) break;
      auto* run = body.load(std::memory_order_relaxed);
      void* with = context.load(std::memory_order_relaxed);
      const size_t each = per_ticket.load(std::memory_order_relaxed), all = pieces.load(std::memory_order_relaxed);
      if (!share.compare_exchange_weak(now, now + (uint64_t{1} << kTicketBits), std::memory_order_acq_rel)) continue;
      for (size_t piece = ticket * each; piece < std::min(all, (ticket + 1) * each); ++piece) {
        if (is_stopped.load(std::memory_order_relaxed)) break;
        run(with, piece);
        if (interruptible && interruptible->ask()) is_stopped.store(true, std::memory_order_relaxed);
      }
      ++count;
    }
    if (count > 0) done.fetch_add(count, std::memory_order_release);
  }

  void help(size_t first, Call* interruptible = nullptr) {
    empty(seats[first].share, interruptible);
    const size_t all = threads.load(std::memory_order_acquire);
    for (size_t i = first + 1; i < all; ++i) empty(seats[i].share, interruptible);
    for (size_t i = 0; i < std::min(first, all); ++i) empty(seats[i].share, interruptible);
  }

  void run(size_t count, size_t wanted, void (*run_body)(void*, size_t), void* with, Call* interruptible = nullptr) {
    start_workers(wanted - 1);
    const size_t each = divide_up(count, kMostTickets), tickets = divide_up(count, each);
    done.store(0, std::memory_order_relaxed);
    is_stopped.store(false, std::memory_order_relaxed);
    threads.store(wanted, std::memory_order_relaxed);
    pieces.store(count, std::memory_order_relaxed);
    per_ticket.store(each, std::memory_order_relaxed);
    body.store(run_body, std::memory_order_relaxed);
    context.store(with, std::memory_order_relaxed);
    core.store(this_core(), std::memory_order_relaxed);
    call = (call + 1) % kCalls;
    const size_t least = tickets / wanted, more = tickets % wanted;  // the first `more` shares have a ticket more
    for (size_t left = wanted; left > 0; --left) {
      const size_t i = left - 1;
      const size_t begin = i * least + std::min(i, more);
      seats[i].share.store(share_of(call, begin, begin + least + (i < more)), std::memory_order_release);
    }
    wake_next(0, wanted);
    help(0, interruptible);
    for (size_t tries = 0; done.load(std::memory_order_acquire) < tickets; ++tries) {
      if (tries < 4096) {
        pause();
      } else {
        yield_core();  // the machine is busy: let the worker that still computes have this core
      }
      if (interruptible && tries % 64 == 0 && interruptible->ask()) is_stopped.store(true, std::memory_order_relaxed);
    }
  }

  bool is_on_callers_core() const {
    const int here = this_core();
    return here != kNoCore && here == core.load(std::memory_order_relaxed);
  }

  bool is_parked(size_t seat) {
    const uint64_t bits = parked[seat / 64].fetch_add(0, std::memory_order_acq_rel);
    return bits >> seat % 64 & 1;
  }
  // The caller, and the workers from seat 1 on that need not be woken.
  size_t awake() const {
    size_t seat = 1;
    while (seat <= workers && !(parked[seat / 64].load(std::memory_order_relaxed) >> seat % 64 & 1)) ++seat;
    return seat;
  }

  void start_workers(size_t wanted);
  void measure();
  double even_work();
  void wake_next(size_t seat, size_t wanted);
  void work(size_t seat);
};

// Never destroyed: workers outlive main. A forked child has no workers and gets a new pool.
std::atomic<Pool*> the_pool{nullptr};
std::atomic<size_t> setting{0};  // 0: not read yet
thread_local bool inside = false;
thread_local constinit const std::atomic<bool>* worker_stop = nullptr;  // its pool's is_stopped

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
  worker_stop = &start.pool->is_stopped;
  if (can_work) start.pool->work(start.seat);
}

void Pool::start_workers(size_t wanted) {
  if (workers >= wanted) [[likely]] return;
  const size_t before = workers;
  for (; workers < wanted; ++workers) {
    auto* start = new (std::nothrow) Start{this, workers + 1};
    if (!start || !start_thread(worker_main, start)) {
      delete start;
      break;  // fewer helpers; the caller computes whatever nobody takes
    }
  }
  // So that a warm call allocates nothing, not even on a worker that a busy machine starts late.
  while (settled.load(std::memory_order_acquire) < workers) yield_core();
  if (workers > before) measure();
}

// A call of one piece a thread, each of a known length: what it takes beyond that is what handing over and joining cost.
void Pool::measure() {
  static constexpr auto kPiece = std::chrono::microseconds(1);
  constexpr int kTrials = 12;
  const size_t all = std::min(workers + 1, count_cores());
  if (all < 2) return;
  auto best = Clock::duration::max();
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto begin = Clock::now();
    run(
        all, all,
        [](void*, size_t) {
          for (const auto until = Clock::now() + kPiece; Clock::now() < until;) pause();
        },
        nullptr);
    best = std::min(best, Clock::now() - begin - kPiece);
  }
  const double each = nanoseconds(best) / static_cast<double>(all - 1);
  hand_over.store(std::clamp(each, kLeastHandOver, kMostHandOver), std::memory_order_relaxed);
  worth_a_thread.store(std::clamp(even_work() / 2, kLeastWorth, kMostWorth), std::memory_order_relaxed);
}

// The work, as calls guess theirs, that two threads do as fast as one: copying strips, every other one a thread's own, as
// the channels of a sample are in a norm. Time and again, so that all is in caches, each thread's share in its own.
double Pool::even_work() {
  static constexpr size_t kStrip = 98 * 64, kLeast = 4, kMost = 64;  // bytes; strips
  struct Trial {
    char from[kMost * kStrip], to[kMost * kStrip];
    size_t strips;

    static void copy(void* context, size_t piece) {
      Trial& my = *static_cast<Trial*>(context);
      for (size_t i = piece; i < my.strips; i += 2) std::memcpy(my.to + i * kStrip, my.from + i * kStrip, kStrip);
    }
  };
  const std::unique_ptr<Trial> trial(new (std::nothrow) Trial{});
  if (!trial) return 2 * kMostWorth;
  const auto shortest = [&](auto call) {
    auto best = Clock::duration::max();
    for (int turn = 0; turn < 12; ++turn) {
      const auto begin = Clock::now();
      call();
      best = std::min(best, Clock::now() - begin);
    }
    return best;
  };
  for (size_t& strips = trial->strips = kLeast; strips <= kMost; strips += strips / 4) {
    const auto alone = shortest([&] {
      Trial::copy(trial.get(), 0);
      Trial::copy(trial.get(), 1);
    });
    if (shortest([&] { run(2, 2, Trial::copy, trial.get()); }) < alone)
      return 2 * kByte * static_cast<double>(strips * kStrip);
  }
  return 2 * kMostWorth;
}

// Wakes those of the next seats that are parked; each wakes some more, so that a few steps reach all.
void Pool::wake_next(size_t seat, size_t wanted) {
  constexpr size_t kEach = 4;
  const size_t end = std::min(kEach * seat + kEach + 1, wanted);  // a worker that could not be started is never parked
  for (size_t next = kEach * seat + 1; next < end; ++next) {
    if (!is_parked(next)) continue;
    Seat& sleeper = seats[next];
    {
      std::lock_guard guard(sleeper.bed);
      // Only while it sleeps: it clears its bit with the bed in its hands, and its place is its own from then on.
      if (wanted <= kFewThreads && is_parked(next)) sleeper.place.keep_off(core.load(std::memory_order_relaxed));
    }
    sleeper.alarm.notify_one();
  }
}

void Pool::work(size_t number) {
  // A worker beyond the cores would spin on somebody else's time.
  const bool may_spin = number < count_cores();
  Seat& seat = seats[number];
  seat.place.take();
  const std::atomic<uint64_t>& share = seat.share;
  std::atomic<uint64_t>& word = parked[number / 64];
  const uint64_t bit = uint64_t{1} << number % 64;
  for (uint64_t seen = 0;;) {
    const auto until = Clock::now() + kSpin;
    uint64_t now = share.load(std::memory_order_acquire);
    for (size_t tries = 1; may_spin && call_of(now) == seen; now = share.load(std::memory_order_acquire), ++tries) {
      pause();
      if (tries % 64 == 0 && (is_on_callers_core() || Clock::now() > until)) break;
    }
    if (call_of(now) == seen) {
      std::unique_lock guard(seat.bed);
      word.fetch_or(bit, std::memory_order_acq_rel);
      seat.alarm.wait(guard, [&] { return call_of(now = share.load(std::memory_order_acquire)) != seen; });
      word.fetch_and(~bit, std::memory_order_acq_rel);
    }
    seen = call_of(now);
    wake_next(number, threads.load(std::memory_order_relaxed));
    if (is_on_callers_core()) seat.place.keep_off(core.load(std::memory_order_relaxed));
    help(number);
    seat.place.roam();
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
  return made;
}

// Registered before there can be a pool: whatever a thread does with one at the moment of a fork, the child forgets it.
[[maybe_unused]] const bool forgets_in_child = at_fork(nullptr, nullptr, [] {
  the_pool.store(nullptr, std::memory_order_release);
  inside = false;
});

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

bool is_stopped_worker() { return worker_stop && worker_stop->load(std::memory_order_relaxed); }

size_t threads_for(size_t limit) {
  size_t threads = library_threads();
  return limit == 0 ? threads : std::min(limit, threads);
}

void set_eager_threads(bool are_eager) {
  eager.store(are_eager ? Eager::yes : Eager::no, std::memory_order_relaxed);
}

size_t threads_worth(size_t threads, double work) {
  if (work == kAnyWork || is_eager()) return threads;
  const double worth = worth_a_thread.load(std::memory_order_relaxed);
  if (threads < 2 || work < 2 * worth) return 1;
  // work / n + hand_over · n is least here.
  const double best = std::min(std::sqrt(work / hand_over.load(std::memory_order_relaxed)), work / worth);
  return best < static_cast<double>(threads) ? std::max(static_cast<size_t>(best), size_t{1}) : threads;
}

void run_pieces(size_t pieces, size_t threads, double work, void (*body)(void*, size_t), void* context) {
  Call* interruptible = current_call();
  if (interruptible) [[unlikely]] {
    if (interruptible->is_given_up) return;
    if (!interruptible->becomes_long(work)) interruptible = nullptr;
  }
  const auto run_alone = [&] {
    for (size_t piece = 0; piece < pieces; ++piece) {
      body(context, piece);
      if (interruptible && interruptible->ask()) break;
    }
  };
  const size_t wanted = inside ? 1 : threads_worth(std::min(threads, pieces), work);
  Pool* all = wanted > 1 ? pool() : nullptr;
  if (!all) return run_alone();
  const size_t others = all->callers.enter();
  size_t ours = others == 0 ? wanted : std::min(wanted, library_threads() - std::min(others, library_threads()));
  inside = true;
  if (ours > 1 && all->owner.try_lock()) {
    const size_t awake = all->awake();
    if (awake < ours && !all->patience.wakes(work, awake, ours)) ours = awake;
    if (ours > 1) all->run(pieces, ours, body, context, interruptible);
    all->owner.unlock();
  } else {
    ours = 1;
  }
  if (ours < 2) run_alone();
  inside = false;
  all->callers.leave();
}

}  // namespace obn

extern "C" {

void obn_set_num_threads(size_t n) {
  obn::setting.store(std::clamp(n == 0 ? obn::count_cores() : n, size_t{1}, obn::kMaxThreads),
                     std::memory_order_relaxed);
}

size_t obn_get_num_threads(void) { return obn::library_threads(); }
}
