#include "base/precision.h"

#include <atomic>

#include "base/status.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

std::atomic<int> setting{static_cast<int>(Precision::highest)};

}  // namespace

Precision precision() { return static_cast<Precision>(setting.load(std::memory_order_relaxed)); }

Precision precision_of(int own) { return own < 0 ? precision() : static_cast<Precision>(own); }

int check_precision(int own) {
  if (own >= -1 && own <= 2) return 0;
  return fail("precision: expected -1 (follow the library), 0 (highest), 1 (high) or 2 (medium); got %d", own);
}

}  // namespace obn

extern "C" {

int obn_set_matmul_precision(int precision) {
  if (precision < 0 || precision > 2)
    return obn::fail("precision: expected 0 (highest), 1 (high) or 2 (medium); got %d", precision);
  obn::setting.store(precision, std::memory_order_relaxed);
  return 0;
}

int obn_get_matmul_precision(void) { return static_cast<int>(obn::precision()); }
}
