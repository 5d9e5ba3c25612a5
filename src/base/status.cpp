#include "base/status.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "base/lock.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

thread_local char message[512];

obn_log_callback log_callback = nullptr;  // guarded by core_lock
void* log_user = nullptr;                 // guarded by core_lock
std::atomic<bool> logging{false};         // spares failing calls the lock while nobody listens

void tell_log() {
  if (!logging.load(std::memory_order_acquire)) return;
  obn_log_callback callback;
  void* user;
  {
    std::lock_guard guard(core_lock);
    callback = log_callback;
    user = log_user;
  }
  if (callback) callback(message, user);  // outside the lock: the callback may itself call the library
}

}  // namespace

int fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  tell_log();
  return -1;
}

int not_implemented(const char* function) { return fail("%s: not implemented", function); }

}  // namespace obn

extern "C" {

const char* obn_last_error(void) { return obn::message; }

void obn_clear_error(void) { obn::message[0] = '\0'; }

void obn_set_log_callback(obn_log_callback callback, void* user) {
  std::lock_guard guard(obn::core_lock);
  obn::log_callback = callback;
  obn::log_user = user;
  obn::logging.store(callback != nullptr, std::memory_order_release);
}
}
