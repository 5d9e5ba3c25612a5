#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "base/filter.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/system.h"
#include "base/test.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/openbnns.h"

using namespace obn;
using std::chrono::microseconds;
using std::this_thread::sleep_for;

namespace {

BNNSNDArrayDescriptor describe(BNNSDataLayout layout, std::initializer_list<size_t> size,
                               std::initializer_list<size_t> stride = {}) {
  BNNSNDArrayDescriptor descriptor = {};
  descriptor.layout = layout;
  descriptor.data_type = BNNSDataTypeFloat32;
  size_t i = 0;
  for (size_t value : size) descriptor.size[i++] = value;
  i = 0;
  for (size_t value : stride) descriptor.stride[i++] = value;
  return descriptor;
}

bool refused(const BNNSNDArrayDescriptor& descriptor, Access access, const char* reason) {
  View view;
  obn_clear_error();
  return read_view(descriptor, access, "input", &view) == -1 && std::strstr(obn_last_error(), reason);
}

}  // namespace

TEST(view_resolves_strides_of_every_pairing) {
  View view;
  CHECK(read_view(describe(BNNSDataLayoutImageCHW, {5, 3, 2}), Access::write, "input", &view) == 0, "%s",
        obn_last_error());
  CHECK(view.stride[0] == 1 && view.stride[1] == 5 && view.stride[2] == 15 && view.packed_batch == 30 &&
            view.is_packed(),
        "packed CHW");
  CHECK(read_view(describe(BNNSDataLayout3DFirstMajor, {2, 3, 5}), Access::write, "input", &view) == 0, "first major");
  CHECK(view.extent[0] == 5 && view.extent[2] == 2 && view.stride[2] == 15 && view.axis_of_size[0] == 2, "first major");
  CHECK(read_view(describe(BNNSDataLayoutMHA_DHK, {4, 3, 2}), Access::write, "input", &view) == 0, "attention");
  CHECK(view.extent[1] == 2 && view.extent[2] == 3 && view.stride[2] == 8 && view.axis_of_size[1] == 2, "attention");
  CHECK(read_view(describe(BNNSDataLayoutImageCHW, {5, 3, 2}, {1, 8, 0}), Access::write, "input", &view) == 0, "mixed");
  CHECK(view.stride[2] == 24 && view.span == 1 + 4 + 16 + 24 && !view.is_packed(), "mixed");
}

TEST(view_keeps_no_stride_that_nobody_steps_by) {
  constexpr size_t kFar = size_t{1} << 62;
  View view;
  size_t step;
  const auto read = [&](const BNNSNDArrayDescriptor& descriptor) {
    return read_view(descriptor, Access::write, "input", &view) == 0;
  };
  CHECK(read(describe(BNNSDataLayoutImageCHW, {5, 3, 1}, {1, 8, kFar})) && view.stride[1] == 8 &&
            view.stride[2] == 24 && view.packed_batch == kFar,
        "one channel");
  float data[24] = {};
  CHECK(read_batch(view, data, 1, 0, Access::write, "input", &step) == 0 && step == 24, "one sample");
  CHECK(read_batch(view, data, 1, kFar, Access::write, "input", &step) == 0 && step == 24, "one sample");
  CHECK(read_batch(view, data, 1, 23, Access::write, "input", &step) == 0 && step == 23, "one sample");
  CHECK(read_batch(view, data, 2, 0, Access::write, "input", &step) == -1, "samples far apart");
  CHECK(read(describe(BNNSDataLayoutImageCHW, {1, 3, 2}, {7, 8, 30})) && view.stride[0] == 1 && view.stride[1] == 8 &&
            view.packed_batch == 60,
        "one column");
  CHECK(read(describe(BNNSDataLayoutImageCHW, {5, 1, 2}, {1, 30, 30})) && view.stride[1] == 5 && view.stride[2] == 30,
        "one row");
  CHECK(read(describe(BNNSDataLayoutImageCHW, {5, 1, 1}, {1, 3, 0})) && view.stride[1] == 3 && view.stride[2] == 3 &&
            view.packed_batch == 3,
        "less than packed");
  CHECK(refused(describe(BNNSDataLayoutImageCHW, {1, 1, 2}, {1, kFar, 4}), Access::read, "decrease"), "still in order");
}

TEST(sizes_that_no_machine_has_are_refused) {
  View view;
  CHECK(refused(describe(BNNSDataLayoutVector, {size_t{1} << 46}), Access::read, "overflow"), "%s", obn_last_error());
  CHECK(read_view(describe(BNNSDataLayoutVector, {size_t{1} << 20}), Access::read, "input", &view) == 0, "a million");
  CHECK(check_batch_size(view, 0) == 0 && check_batch_size(view, size_t{1} << 25) == 0, "%s", obn_last_error());
  for (size_t batch : {size_t{1} << 26, size_t{1} << 44, size_t{1} << 62, SIZE_MAX})
    CHECK(check_batch_size(view, batch) == -1 && failed_with("batch"), "%zu", batch);
}

TEST(view_refuses_what_cannot_be) {
  CHECK(refused(describe(static_cast<BNNSDataLayout>(0x12345), {4}), Access::read, "layout"), "%s", obn_last_error());
  CHECK(refused(describe(BNNSDataLayoutVector, {0}), Access::read, "at least 1"), "%s", obn_last_error());
  CHECK(refused(describe(BNNSDataLayout2DLastMajor, {4, 4}, {4, 1}), Access::read, "decrease"), "%s", obn_last_error());
  CHECK(refused(describe(BNNSDataLayout2DLastMajor, {4, 4}, {1, 3}), Access::write, "apart"), "%s", obn_last_error());
  CHECK(refused(describe(BNNSDataLayout2DLastMajor, {SIZE_MAX, 4}), Access::read, "overflow"), "%s", obn_last_error());
  CHECK(refused(describe(BNNSDataLayoutVector, {SIZE_MAX / 8}), Access::read, "overflow"), "%s", obn_last_error());
  auto descriptor = describe(BNNSDataLayoutVector, {4});
  descriptor.data_type = BNNSDataTypeFloatBit;
  CHECK(refused(descriptor, Access::read, "data type"), "%s", obn_last_error());
  descriptor.data_type = BNNSDataTypeIndexed4;
  CHECK(refused(descriptor, Access::read, "table"), "%s", obn_last_error());
  View view;
  CHECK(read_view(describe(BNNSDataLayout2DLastMajor, {4, 4}, {1, 3}), Access::read, "input", &view) == 0,
        "overlap may be read");
}

TEST(batch_strides_are_checked) {
  View view;
  read_view(describe(BNNSDataLayoutImageCHW, {4, 4, 2}), Access::write, "output", &view);
  std::vector<float> data(512);
  size_t stride;
  CHECK(read_batch(view, data.data(), 4, 0, Access::write, "output", &stride) == 0 && stride == 32, "packed");
  CHECK(read_batch(view, data.data(), 4, 31, Access::write, "output", &stride) == -1, "overlapping samples");
  CHECK(read_batch(view, data.data(), 4, 31, Access::read, "output", &stride) == 0, "may be read");
  CHECK(read_batch(view, nullptr, 4, 0, Access::read, "output", &stride) == -1, "NULL");
  CHECK(read_batch(view, nullptr, 0, 0, Access::read, "output", &stride) == 0, "an empty batch needs no data");
  CHECK(read_batch(view, reinterpret_cast<char*>(data.data()) + 1, 1, 0, Access::read, "output", &stride) == -1,
        "misaligned");
  CHECK(read_batch(view, data.data(), SIZE_MAX, 7, Access::read, "output", &stride) == -1, "overflow");
  // samples between the channels of one another: C, N, H, W in memory
  read_view(describe(BNNSDataLayoutImageCHW, {4, 4, 2}, {1, 4, 64}), Access::write, "output", &view);
  CHECK(read_batch(view, data.data(), 4, 16, Access::write, "output", &stride) == 0, "%s", obn_last_error());
}

TEST(overlap_is_told_from_neighbourhood) {
  View view;
  read_view(describe(BNNSDataLayoutImageCHW, {4, 4, 2}), Access::write, "output", &view);
  std::vector<float> data(1024);
  CHECK(disjoint(view, data.data(), 32, view, data.data() + 128, 32, 4), "one after the other");
  CHECK(!disjoint(view, data.data(), 32, view, data.data() + 127, 32, 4), "one value shared");
  CHECK(disjoint(view, data.data(), 64, view, data.data() + 32, 64, 4), "interleaved by sample");
  CHECK(disjoint(view, data.data() + 32, 64, view, data.data(), 64, 4), "the other way round");
  CHECK(!disjoint(view, data.data(), 64, view, data.data() + 31, 64, 4), "interleaved, one value shared");
  CHECK(!disjoint(view, data.data(), 60, view, data.data() + 32, 60, 4), "interleaved too tightly");
}

TEST(half_types_round_trip_and_round_to_even) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto half = static_cast<uint16_t>(bits);
    float f = float_of_float16(half), b = float_of_bfloat16(half);
    if (std::isnan(f)) {
      CHECK(std::isnan(float_of_float16(float16_of_float(f))), "NaN %x", bits);
    } else {
      CHECK(float16_of_float(f) == half, "float16 %x", bits);
    }
    if (std::isnan(b)) {
      CHECK(std::isnan(float_of_bfloat16(bfloat16_of_float(b))), "NaN %x", bits);
    } else {
      CHECK(bfloat16_of_float(b) == half, "bfloat16 %x", bits);
    }
    // half way between two neighbours goes to the even one
    if ((bits & 0x7fff) < 0x7bff) {
      float next = float_of_float16(static_cast<uint16_t>(bits + 1));
      CHECK(float16_of_float((f + next) / 2) == (bits & 1 ? bits + 1 : bits), "tie above %x", bits);
    }
  }
  CHECK(float16_of_float(65519.0f) == 0x7bff && float16_of_float(65520.0f) == 0x7c00, "the border of infinity");
  CHECK(float16_of_float(0x1p-25f) == 0 && float16_of_float(0x1.8p-25f) == 1, "the border of zero");
}

TEST(handles_survive_misuse) {
  int object = 0, other = 0;
  void* first = add_handle(HandleKind::filter, &object);
  CHECK(find_handle(HandleKind::filter, first) == &object, "found");
  CHECK(!find_handle(HandleKind::random_generator, first) && std::strstr(obn_last_error(), "got a filter"), "%s",
        obn_last_error());
  CHECK(!find_handle(HandleKind::filter, nullptr) && std::strstr(obn_last_error(), "NULL"), "%s", obn_last_error());
  CHECK(drop_handle(HandleKind::filter, first) == &object, "dropped");
  CHECK(!drop_handle(HandleKind::filter, first) && std::strstr(obn_last_error(), "destroyed"), "%s", obn_last_error());
  void* second = add_handle(HandleKind::filter, &other);
  CHECK(!find_handle(HandleKind::filter, first), "a stale handle does not find the slot's next tenant");
  for (uint64_t stray = 1; stray; stray <<= 1)
    CHECK(!find_handle(HandleKind::filter, reinterpret_cast<void*>(stray)), "stray %llx",
          static_cast<unsigned long long>(stray));
  CHECK(!find_handle(HandleKind::filter, &object), "an address is not a handle");
  drop_handle(HandleKind::filter, second);
  std::vector<void*> many;
  for (int i = 0; i < 5000; ++i) many.push_back(add_handle(HandleKind::filter, &object));
  for (void* handle : many) CHECK(drop_handle(HandleKind::filter, handle) == &object, "many");
}

TEST(generic_calls_refuse_dead_filters) {
  float x = 1, y = 7;
  CHECK(BNNSFilterApply(nullptr, &x, &y) == -1 && y == 7, "NULL filter");
  CHECK(BNNSGetPointer(nullptr, BNNSPointerSpecifierAlpha).data == nullptr, "NULL filter");
  BNNSFilterDestroy(nullptr);
  BNNSFilterDestroy(&x);  // a stray pointer is not a filter
}

TEST(every_piece_runs_once_for_any_number_of_threads) {
  for (size_t threads : {1, 2, 3, 7, 16}) {
    for (size_t pieces : {0, 1, 2, 5, 64, 1000}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<std::atomic<int>> runs(pieces);
        parallel(pieces, threads, kAnyWork, [&](size_t piece) { runs[piece].fetch_add(1, std::memory_order_relaxed); });
        for (size_t i = 0; i < pieces; ++i) CHECK(runs[i] == 1, "piece %zu of %zu ran %d times", i, pieces, +runs[i]);
      }
    }
  }
}

TEST(very_many_pieces_run_once_each) {
  constexpr size_t pieces = 600'001;  // more than there are tickets
  std::vector<std::atomic<uint8_t>> runs(pieces);
  parallel(pieces, 3, kAnyWork, [&](size_t piece) { runs[piece].fetch_add(1, std::memory_order_relaxed); });
  for (size_t i = 0; i < pieces; ++i) CHECK(runs[i] == 1, "piece %zu ran %d times", i, +runs[i]);
}

TEST(workers_come_again_after_they_have_slept) {
  for (size_t threads : {2, 7, 12, 3, 12}) {
    sleep_for(microseconds(1500));  // longer than they spin
    std::atomic<size_t> there{0};
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    parallel(threads, threads, kAnyWork, [&](size_t) {
      there.fetch_add(1);
      while (there.load() < threads && std::chrono::steady_clock::now() < until) sleep_for(microseconds(20));
    });
    CHECK(there == threads, "%zu of %zu", there.load(), threads);
    CHECK(std::chrono::steady_clock::now() < until, "only some of %zu came", threads);
  }
}

TEST(little_work_is_worth_few_threads) {
  CHECK(threads_worth(16, 1.0) == 16, "tests are eager");
  set_eager_threads(false);
  CHECK(threads_worth(16, 0.0) == 1 && threads_worth(16, 1000.0) == 1 && threads_worth(1, 1e12) == 1, "little");
  CHECK(threads_worth(16, 1e9) == 16 && threads_worth(16, kAnyWork) == 16, "much");
  for (double work = 1.0; work < 1e9; work *= 1.5) {
    const size_t here = threads_worth(64, work);
    CHECK(here >= 1 && here <= 64 && here <= threads_worth(64, 1.5 * work), "%g ns: %zu threads", work, here);
  }
  set_eager_threads(true);
}

TEST(even_pieces_leave_no_thread_longer_than_large_ones) {
  const auto longest = [](size_t all, size_t piece, size_t times, size_t threads) {  // with one that is half a piece late
    const size_t turns = ((all + piece - 1) / piece * times + threads - 1) / threads;
    return static_cast<double>(turns * piece) + 0.5 * static_cast<double>(piece);
  };
  for (size_t all : {1, 2, 7, 37, 128, 1000}) {
    for (size_t most : {1, 5, 28, 1000}) {
      for (size_t least : {0, 1, 4}) {
        for (size_t times : {1, 3, 16}) {
          for (size_t threads : {1, 2, 7, 16}) {
            const size_t piece = even_pieces(all, least, most, times, threads);
            CHECK(piece >= std::min({least, most, all}) && piece <= most, "%zu of %zu: %zu", least, most, piece);
            CHECK(threads > 1 || piece == most, "one thread: %zu", piece);
            CHECK(longest(all, piece, times, threads) <= longest(all, most, times, threads), "%zu", piece);
          }
        }
      }
    }
  }
}

TEST(every_thread_takes_runs_of_neighbouring_pieces) {
  constexpr size_t pieces = 400;
  const size_t threads = 3;
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<std::thread::id> who(pieces);
    std::vector<size_t> when(pieces);
    std::atomic<size_t> clock{0};
    parallel(pieces, threads, kAnyWork, [&](size_t piece) {
      who[piece] = std::this_thread::get_id();
      when[piece] = clock.fetch_add(1, std::memory_order_relaxed);
    });
    // In the order of its pieces a thread goes forward, but for the one place where it begins the others' shares again.
    for (size_t first = 0; first < pieces; ++first) {
      size_t last = first, turns = 0;
      for (size_t i = first + 1; i < pieces; ++i) {
        if (who[i] != who[first]) continue;
        turns += when[i] < when[last];
        last = i;
      }
      CHECK(turns <= 1, "a thread turned back %zu times", turns);
      if (who[first] == std::this_thread::get_id()) CHECK(turns == 0, "the caller turned back %zu times", turns);
    }
  }
}

TEST(nested_and_simultaneous_calls_finish) {
  std::atomic<size_t> total{0};
  auto outer = [&] {
    for (int repeat = 0; repeat < 50; ++repeat)
      parallel(8, 4, kAnyWork, [&](size_t) {
        parallel(8, 4, kAnyWork, [&](size_t) { total.fetch_add(1, std::memory_order_relaxed); });
      });
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) callers.emplace_back(outer);
  for (auto& caller : callers) caller.join();
  CHECK(total == 6 * 50 * 64, "%zu", total.load());
}

namespace {

// Two threads of the caller that make sure to be in a call at the same time.
struct TwoCallers {
  std::atomic<int> stage{0};  // 1: the first has the pool, 2: the second computes, 3: it may end

  static void wait(const std::atomic<int>& stage, int wanted) {
    while (stage.load() < wanted) sleep_for(microseconds(20));
  }

  void second() {
    wait(stage, 1);
    parallel(2, 2, kAnyWork, [&](size_t piece) {
      if (piece == 0) stage.store(2);
      wait(stage, 3);
    });
  }
};

}  // namespace

TEST(threads_that_call_at_the_same_time_share_the_cores) {
  const size_t before = obn_get_num_threads();
  obn_set_num_threads(2);
  sleep_for(microseconds(5000));  // whoever called before this test is forgotten
  TwoCallers two;
  std::thread second([&] { two.second(); });
  parallel(2, 2, kAnyWork, [&](size_t) {
    int none = 0;
    two.stage.compare_exchange_strong(none, 1);
    TwoCallers::wait(two.stage, 2);
  });
  // The pool is free again, but one of the two threads is the second caller's.
  const auto caller = std::this_thread::get_id();
  std::atomic<size_t> elsewhere{0};
  parallel(64, 2, kAnyWork, [&](size_t) {
    sleep_for(microseconds(50));
    if (caller != std::this_thread::get_id()) elsewhere.fetch_add(1);
  });
  CHECK(elsewhere == 0, "%zu pieces on a third thread", elsewhere.load());
  two.stage.store(3);
  second.join();
  obn_set_num_threads(before);
}

#if defined(__linux__)
namespace {

struct Meeting {
  bool met = false;
  int caller = -1, worker = -1;  // their cores when they had met
  pid_t thread = 0;              // of the worker
};

// Caller and worker take a piece each and wait for the other; the worker has had time to park before.
Meeting meet() {
  sleep_for(microseconds(300));
  Meeting m;
  std::atomic<int> there{0};
  const auto caller = std::this_thread::get_id();
  parallel(2, 2, kAnyWork, [&](size_t) {
    there.fetch_add(1);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (there.load() < 2 && std::chrono::steady_clock::now() < until) sleep_for(microseconds(20));
    const bool is_caller = caller == std::this_thread::get_id();
    if (is_caller) m.met = there.load() == 2;
    (is_caller ? m.caller : m.worker) = sched_getcpu();
    if (!is_caller) m.thread = static_cast<pid_t>(syscall(SYS_gettid));
  });
  return m;
}

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  return set;
}

}  // namespace

TEST(workers_keep_off_the_callers_core) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;  // nowhere else to go
  int cores[2], found = 0;
  for (int core = 0; found < 2; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &all)) cores[found++] = core;
  }
  sleep_for(microseconds(5000));  // threads that called before this test are forgotten
  CHECK(meet().met, "the worker did not come");  // it exists before the caller is bound, and inherits all cores
  // Wherever the caller goes: twice to each core, so that the worker must come back to where it was sent away from.
  pid_t worker = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const cpu_set_t here = only(cores[turn % 2]);
    sched_setaffinity(0, sizeof here, &here);
    for (int call = 0; call < 25; ++call) {
      const Meeting m = meet();
      CHECK(m.met, "the worker did not come");
      CHECK(m.caller == cores[turn % 2] && m.worker != m.caller, "turn %d: both on core %d", turn, m.worker);
      worker = m.thread;
    }
  }
  // What somebody else wants of the worker stands, even where it means to share a core with the caller.
  const cpu_set_t here = only(cores[0]);
  sched_setaffinity(0, sizeof here, &here);
  sched_setaffinity(worker, sizeof here, &here);
  for (int call = 0; call < 5; ++call) {
    const Meeting m = meet();
    CHECK(m.met && m.worker == cores[0], "the worker is on core %d", m.worker);
  }
  sched_setaffinity(worker, sizeof all, &all);
  sched_setaffinity(0, sizeof all, &all);
}
#endif

TEST(scratch_is_there_in_every_piece) {
  CHECK(scratch() != nullptr, "%s", obn_last_error());
  std::atomic<int> missing{0};
  parallel(64, 4, kAnyWork, [&](size_t piece) {
    std::byte* block = scratch();
    if (!block || reinterpret_cast<uintptr_t>(block) % kAlignment != 0) {
      missing.fetch_add(1);
    } else {
      std::memset(block, static_cast<int>(piece), kScratchBytes);
    }
  });
  CHECK(missing == 0, "%d", missing.load());
}

TEST(number_of_threads_can_be_set_and_limited) {
  size_t before = obn_get_num_threads();
  obn_set_num_threads(7);
  CHECK(obn_get_num_threads() == 7 && threads_for(0) == 7 && threads_for(3) == 3 && threads_for(100) == 7, "7");
  obn_set_num_threads(0);
  CHECK(obn_get_num_threads() >= 1, "0 means all cores");
  obn_set_num_threads(before);
}

TEST(instruction_set_is_one_the_machine_has) {
  CHECK(has_isa(isa()), "%s", obn_isa());
  CHECK(obn_isa_available(obn_isa()) == 1 && obn_isa_available("abacus") == 0 && obn_isa_available(nullptr) == 0,
        "%s", obn_isa());
  CHECK(std::strlen(obn_isa_reason()) > 0, "a reason is given");
}

TEST(a_failure_is_told_to_the_log) {
  std::string* heard = new std::string;
  obn_set_log_callback([](const char* message, void* user) { *static_cast<std::string*>(user) = message; }, heard);
  fail("input: expected %d; got %d", 1, 2);
  obn_set_log_callback(nullptr, nullptr);
  fail("nobody hears this");
  CHECK(*heard == "input: expected 1; got 2", "%s", heard->c_str());
  delete heard;
}

TEST(callers_allocator_serves_options) {
  static int given = 0, taken = 0;
  BNNSFilterParameters parameters = {};
  parameters.alloc_memory = [](void** memory, size_t alignment, size_t size) {
    ++given;
    *memory = allocate_aligned(alignment, size);
    return *memory ? 0 : 1;
  };
  Options options;
  CHECK(Options::read(&parameters, &options) == -1, "one callback alone is refused");
  parameters.free_memory = [](void* memory) {
    ++taken;
    free_aligned(memory);
  };
  CHECK(Options::read(&parameters, &options) == 0, "%s", obn_last_error());
  void* block = options.get(100);
  CHECK(block && reinterpret_cast<uintptr_t>(block) % kAlignment == 0, "aligned");
  options.release(block);
  CHECK(given == 1 && taken == 1, "%d %d", given, taken);
}

TEST(sizes_of_arrays_and_tensors) {
  float data[64];
  auto descriptor = describe(BNNSDataLayoutImageCHW, {4, 3, 2}, {1, 8, 0});
  CHECK(BNNSNDArrayGetDataSize(&descriptor) == 0, "no data");
  descriptor.data = data;
  CHECK(BNNSNDArrayGetDataSize(&descriptor) == 4 * (1 + 3 + 16 + 24), "with gaps");
  auto packed = describe(BNNSDataLayoutVector, {5});
  packed.data = data;
  packed.data_type = BNNSDataTypeUInt4;
  CHECK(BNNSNDArrayGetDataSize(&packed) == 3, "five half bytes");
  CHECK(BNNSDataLayoutGetRank(BNNSDataLayout5DFirstMajor) == 5, "rank");
  CHECK(BNNSDataLayoutGetRank(static_cast<BNNSDataLayout>(3)) == SIZE_MAX, "unknown layout");
  BNNSTensor tensor = {};
  tensor.data_type = BNNSDataTypeFloat32;
  tensor.rank = 2;
  tensor.shape[0] = 2;
  tensor.shape[1] = 3;
  CHECK(BNNSTensorGetAllocationSize(&tensor) == 4, "stride 0 is a literal 0");
  tensor.stride[0] = 3;
  tensor.stride[1] = 1;
  CHECK(BNNSTensorGetAllocationSize(&tensor) == 24, "packed");
  tensor.shape[0] = -1;
  CHECK(BNNSTensorGetAllocationSize(&tensor) == SIZE_MAX, "dynamic");
}
