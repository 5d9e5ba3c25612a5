#include "base/interrupt.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "base/filter.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

std::atomic<double> least_work{1e6};               // ns, as guessed: calls of less never look at the clock
std::atomic<long long> least_pause{50'000'000};  // ns from one question to the next

obn_interrupt_callback interrupt_callback = nullptr;  // guarded by core_lock
void* interrupt_user = nullptr;                       // guarded by core_lock
std::atomic<bool> is_set{false};                      // spares calls the rest while there is none

thread_local constinit Call* current = nullptr;
thread_local constinit bool is_asking = false;  // then the callback runs, whose own calls do not ask

long long nanoseconds() {
  using namespace std::chrono;
  return duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

bool callback_says_so() {
  obn_interrupt_callback callback;
  void* user;
  {
    std::lock_guard guard(core_lock);
    callback = interrupt_callback;
    user = interrupt_user;
  }
  if (!callback) return false;
  // It may call the library, whose calls are then others, with scratch and workspace of their own.
  Call* const outer = current;
  current = nullptr;
  is_asking = true;
  const OtherBlocks others;
  const bool answer = callback(user) != 0;
  is_asking = false;
  current = outer;
  return answer;
}

}  // namespace

Call* current_call() { return current; }

bool Call::is_long() const { return work > least_work.load(std::memory_order_relaxed); }

bool Call::becomes_long(double more) {
  work += more;
  return is_long();
}

bool Call::ask() {
  if (is_given_up) return true;
  if (skipped < skips) {
    ++skipped;
    return false;
  }
  constexpr long long kSoon = 100'000;
  constexpr unsigned kMostSkips = 15;
  const long long pause = least_pause.load(std::memory_order_relaxed), now = nanoseconds();
  skipped = 0;
  skips = now - looked < kSoon && pause > 0 ? std::min(2 * skips + 1, kMostSkips) : 0;
  looked = now;
  if (asked == 0) asked = now;
  if (now - asked < pause) return false;
  is_given_up = callback_says_so();
  asked = looked = nanoseconds();
  return is_given_up;
}

void set_eager_questions(bool are_eager) {
  least_work.store(are_eager ? -1.0 : 1e6, std::memory_order_relaxed);
  least_pause.store(are_eager ? 0 : 50'000'000, std::memory_order_relaxed);
}

bool is_interrupted() {
  if (current) return current->is_given_up || (current->is_long() && current->ask());
  return is_stopped_worker();
}

int run_interruptible(int (*body)(void*), void* context, Filter* filter) {
  if (current || is_asking || !is_set.load(std::memory_order_relaxed)) return body(context);
  Call call;
  current = &call;
  const int status = body(context);
  current = nullptr;
  if (!call.is_given_up) return status;
  if (filter) filter->forget();
  return fail("interrupted: outputs are incomplete");
}

}  // namespace obn

extern "C" void obn_set_interrupt_callback(obn_interrupt_callback callback, void* user) {
  std::lock_guard guard(obn::core_lock);
  obn::interrupt_callback = callback;
  obn::interrupt_user = user;
  obn::is_set.store(callback != nullptr, std::memory_order_relaxed);
}
