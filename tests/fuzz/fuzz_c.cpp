// A libFuzzer target for the C interface. Every input is a program of calls (world.h says how bytes become one); it is
// run with one thread and with three, and both runs have to leave the same bits. OPENBNNS_FUZZ_SAY=1 prints the calls.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "world.h"

namespace fuzz {
namespace {

constexpr void (*kFamilies[])(World&) = {
    activations, arithmetics, attentions,   clips,          convolutions, fully_connected, sparse,        fused,   legacies,
    losses,      matmuls,     contractions, normalizations, optimizers,   poolings,        quantizations, randoms, small_calls,
};

const uint8_t* current;
size_t current_size;

std::vector<World::Entry> run(size_t threads, bool speaks) {
  World world(current, current_size, threads, speaks);
  const size_t family = world.in.pick(std::size(kFamilies));
  world.say("---- family %zu, %zu thread%s, %s ----\n", family, threads, threads == 1 ? "" : "s", obn_isa());
  kFamilies[family](world);
  world.finish();
  return world.transcript();
}

}  // namespace

void World::broken(const char* what) {
  std::fprintf(stderr, "%s: %s (%zu threads, %s)\n", name_, what, threads_, obn_isa());
  if (!speaks_) {  // once more, aloud: it ends here again
    run(threads_, true);
    std::fprintf(stderr, "the second time it did not happen\n");
  }
  std::abort();
}

}  // namespace fuzz

// Asking for too much memory is no defect: the library has to live with NULL. The prefix is AddressSanitizer's.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1:max_allocation_size_mb=1024"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("OPENBNNS_EAGER_THREADS", "1", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fuzz;
  static const bool speaks = std::getenv("OPENBNNS_FUZZ_SAY") != nullptr;
  current = data;
  current_size = size;
  const auto one = run(1, speaks), three = run(3, speaks);
  for (size_t i = 0; i < one.size() && i < three.size(); ++i) {
    if (one[i].succeeded == three[i].succeeded && one[i].memory == three[i].memory) continue;
    std::fprintf(stderr, "%s, call %zu: %s for one thread and for three\n", one[i].name.c_str(), i,
                 one[i].succeeded == three[i].succeeded ? "other bits" : "another answer");
    run(1, true);
    run(3, true);
    std::abort();
  }
  if (one.size() != three.size()) std::abort();
  return 0;
}
