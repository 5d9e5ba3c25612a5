// The one lock of the library, and what is found out once. A thread may fork while another is anywhere in the library; the
// child has the forking thread alone, and would wait for ever for a lock that the other held. So fork waits for this one.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <type_traits>

namespace obn {

// For what takes a moment: the table of handles, where a generator of random numbers is, the log's callback. Who holds it
// neither allocates nor calls the caller back.
extern std::mutex core_lock;

// What find() gives, which is called once. Instead of a local static, whose own lock a fork does not wait for. find() runs
// with core_lock held and must not need it. Every lambda is a type of its own, and has its own answer.
template <class Find>
const auto& once(Find find) {
  using Found = std::decay_t<decltype(find())>;
  static_assert(std::is_trivially_destructible_v<Found>);
  static constinit std::optional<Found> found;
  static constinit std::atomic<bool> is_found{false};
  if (!is_found.load(std::memory_order_acquire)) [[unlikely]] {
    std::lock_guard guard(core_lock);
    if (!is_found.load(std::memory_order_relaxed)) {
      found.emplace(find());
      is_found.store(true, std::memory_order_release);
    }
  }
  return *found;
}

}  // namespace obn
