// Forks at any moment: whatever other threads of the parent were doing, the child can use the library. Not under
// ThreadSanitizer, which starts no threads in such a child, nor on ARM, where our tests run in qemu-user, which loses
// threads over a fork. While others allocate, not under AddressSanitizer either: the locks of gcc 12's allocator stay
// locked in the child (glibc's do not), seen in the stack of a child that waited.
#if defined(__linux__) && !defined(__aarch64__)
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

#include "base/lock.h"
#include "base/pool.h"
#include "base/test.h"
#include "openbnns/openbnns.h"

#if !defined(__SANITIZE_THREAD__)

using namespace obn;

namespace {

constexpr size_t kValues = 3 << 14;  // some pieces
constexpr unsigned kPatience = 30;   // seconds; a child that has to wait would wait for ever

BNNSFilter make_tanh() {
  BNNSLayerParametersActivation p = {};
  p.i_desc = p.o_desc = vector_of(kValues);
  p.activation.function = BNNSActivationFunctionTanh;
  return BNNSFilterCreateLayerActivation(&p, nullptr);
}

// Runs body in a child; whether it came back with true in time.
template <class Body>
bool in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGALRM, SIG_DFL);
    alarm(kPatience);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST(fork_waits_for_what_is_found_out_once) {
  static std::atomic<bool> is_inside{false};
  const auto find = [] {
    return once([] {
      is_inside.store(true);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return 42;
    });
  };
  std::thread other([&] { find(); });
  while (!is_inside.load()) std::this_thread::yield();
  CHECK(in_child([&] { return find() == 42; }), "the child waits for a thread that it does not have");
  other.join();
}

TEST(the_log_may_use_the_library) {
  static bool could = false;
  could = false;
  BNNSFilter filter = make_tanh();
  BNNSFilterDestroy(filter);
  // In a child, because it would wait for itself.
  CHECK(in_child([&] {
          obn_set_log_callback(
              [](const char*, void*) {
                BNNSFilter made = make_tanh();
                could = made != nullptr;
                BNNSFilterDestroy(made);
              },
              nullptr);
          BNNSFilterDestroy(filter);
          return could;
        }),
        "a callback that makes and destroys a filter");
}

#if !defined(__SANITIZE_ADDRESS__)
namespace {

bool computes(BNNSFilter filter) {
  std::vector<float> in(kValues, 0.5f), out(kValues);
  if (!filter || BNNSFilterApply(filter, in.data(), out.data()) != 0) return false;
  for (float v : out)
    if (std::fabs(v - std::tanh(0.5f)) > 1e-5f) return false;
  return true;
}

// All that takes a lock or the pool, once.
bool uses_everything(void* generator) {
  BNNSFilter filter = make_tanh();
  if (!computes(filter)) return false;
  BNNSFilterDestroy(filter);
  float drawn[8];
  auto descriptor = vector_of(8, drawn);
  if (BNNSRandomFillUniformFloat(generator, &descriptor, 0.0f, 1.0f) != 0) return false;
  obn_set_log_callback([](const char*, void*) {}, nullptr);
  BNNSFilterDestroy(filter);  // destroyed before: told to the log
  obn_set_log_callback(nullptr, nullptr);
  obn_set_seed(1);
  return true;
}

// Threads that do body over and over while this lives.
template <class Body>
class Others {
 public:
  Others(size_t count, const Body& body) {
    for (size_t i = 0; i < count; ++i)
      threads_.emplace_back([this, &body] {
        do {
          body();
          rounds_.fetch_add(1);
        } while (!is_over_.load());
      });
  }
  ~Others() {
    is_over_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }
  size_t rounds() const { return rounds_.load(); }

 private:
  std::atomic<bool> is_over_{false};
  std::atomic<size_t> rounds_{0};
  std::vector<std::thread> threads_;
};

struct Generator {
  void* handle = BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethodAES_CTR, 7, nullptr);
  ~Generator() { BNNSDestroyRandomGenerator(handle); }
};

}  // namespace

TEST(a_forked_child_can_use_what_other_threads_were_using) {
  obn_set_num_threads(3);
  const Generator generator;
  const auto busy = [&] {
    BNNSFilter filters[8];
    for (BNNSFilter& filter : filters) filter = make_tanh();
    computes(filters[0]);
    for (int i = 0; i < 50; ++i) {
      float drawn[4];
      auto descriptor = vector_of(4, drawn);
      BNNSRandomFillUniformFloat(generator.handle, &descriptor, 0.0f, 1.0f);
      obn_set_seed(1);
      obn_set_log_callback(nullptr, nullptr);
      BNNSFilterDestroy(filters[i % 8]);
      filters[i % 8] = make_tanh();
    }
    for (BNNSFilter filter : filters) BNNSFilterDestroy(filter);
  };
  size_t done = 0;
  {
    Others others(3, busy);
    while (others.rounds() < 3) std::this_thread::yield();
    constexpr size_t kForks = 60;
    while (done < kForks && in_child([&] { return uses_everything(generator.handle); })) ++done;
    CHECK(done == kForks, "child %zu did not come back", done);
  }
  obn_set_num_threads(0);
}

TEST(a_child_forked_while_the_pool_starts_has_its_own) {
  obn_set_num_threads(4);
  constexpr size_t kForks = 40;
  size_t done = 0;
  // A child has no pool yet: its threads start one while it forks again.
  const auto forks_at_the_start = [&] {
    const Generator generator;
    std::atomic<bool> is_begun{false};
    std::thread starter([&] {
      BNNSFilter filter = make_tanh();
      is_begun.store(true);
      computes(filter);
      BNNSFilterDestroy(filter);
    });
    while (!is_begun.load()) std::this_thread::yield();
    for (size_t i = 0; i < 1000 * (done % 8); ++i) is_begun.load();  // a little later each time
    const bool went_well = in_child([&] { return uses_everything(generator.handle); });
    starter.join();
    return went_well && uses_everything(generator.handle);
  };
  while (done < kForks && in_child(forks_at_the_start)) ++done;
  CHECK(done == kForks, "child %zu did not come back", done);
  obn_set_num_threads(0);
}
#endif

#endif
#endif
