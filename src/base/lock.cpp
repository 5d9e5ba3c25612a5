#include "base/lock.h"

#include <mutex>

#include "base/system.h"

namespace obn {

constinit std::mutex core_lock;

namespace {

// From the moment the library is loaded. The child's only thread is the one that took the lock.
[[maybe_unused]] const bool is_kept_over_forks =
    at_fork([] { core_lock.lock(); }, [] { core_lock.unlock(); }, [] { core_lock.unlock(); });

}  // namespace
}  // namespace obn
