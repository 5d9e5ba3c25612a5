// What this machine can do at best: ceilings THREADS. It answers line by line:
//
//   at the start              fused multiply-adds of one float32 value each, per second, all threads together
//   open READ:WRITTEN ...     makes ready loops that read and write so many bytes (of all threads together), one after
//                             the other, the simplest there are; stores are plain or streaming, as is faster: which
//   run COUNT                 seconds of so many turns of them
//
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr size_t kWidth = 64;
#elif defined(__AVX__)
constexpr size_t kWidth = 32;
#else
constexpr size_t kWidth = 16;
#endif
using Vector = float __attribute__((vector_size(kWidth)));

constexpr int kTries = 5;
constexpr int kFmaTries = 100;        // half a second: threads that begin on one core are given another meanwhile
constexpr double kTrySeconds = 5e-3;  // long beside the clock and the barriers, short enough to run undisturbed once
constexpr size_t kBlock = 256;        // bytes per turn of the inner loops
constexpr size_t kStep = 4096;        // bytes of the larger side between two changes from reading to writing

volatile float sink;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of calling body(thread) `calls` times, started together on all threads.
template <class Body>
double seconds_of(int threads, long calls, const Body& body) {
  double seconds = 0;
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
#pragma omp barrier
    const double start = now();
    for (long call = 0; call < calls; call++) body(thread);
#pragma omp barrier
    if (thread == 0) seconds = now() - start;
  }
  return seconds;
}

// Seconds per call in the best of several tries that are long enough.
template <class Body>
double best_seconds(int threads, const Body& body, int tries = kTries) {
  long calls = 1;
  while (seconds_of(threads, calls, body) < kTrySeconds) calls *= 2;
  double best = 1e30;
  for (int attempt = 0; attempt < tries; attempt++) best = std::min(best, seconds_of(threads, calls, body));
  return best / static_cast<double>(calls);
}

double fma_per_second(int threads) {
  constexpr long kTurns = 10000;
  constexpr int kChains = 12;  // enough to hide the latency, few enough for 16 registers
  const double seconds = best_seconds(threads, [](int) {
    const Vector factor = Vector{} + sink;
    Vector sum[kChains];
    for (Vector& chain : sum) chain = Vector{} + sink;  // read anew: the compiler must not find them equal
    for (long turn = 0; turn < kTurns; turn++) {
#pragma GCC unroll 12
      for (int chain = 0; chain < kChains; chain++) sum[chain] = sum[chain] * factor + factor;
    }
    for (int chain = 1; chain < kChains; chain++) sum[0] += sum[chain];
    sink = sum[0][0] * 0;
  }, kFmaTries);
  return static_cast<double>(kTurns) * kChains * threads * (kWidth / sizeof(float)) / seconds;
}

void store(char* at, Vector v) { std::memcpy(at, &v, sizeof v); }

void stream([[maybe_unused]] char* at, [[maybe_unused]] Vector v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(reinterpret_cast<float*>(at), v);
#elif defined(__AVX__)
  _mm256_stream_ps(reinterpret_cast<float*>(at), v);
#elif defined(__x86_64__)
  _mm_stream_ps(reinterpret_cast<float*>(at), v);
#else
  store(at, v);
#endif
}

void read(const char* begin, const char* end, Vector (&sum)[4]) {
  for (const char* at = begin; at < end; at += kBlock) {
    for (size_t k = 0; k < kBlock; k += 4 * kWidth) {
      for (size_t lane = 0; lane < 4; lane++) {
        Vector v;
        std::memcpy(&v, at + k + lane * kWidth, sizeof v);
        sum[lane] += v;
      }
    }
  }
}

template <bool streaming>
void write(char* begin, char* end) {
  const Vector v = Vector{} + 1.0F;
  for (char* at = begin; at < end; at += kBlock) {
    for (size_t k = 0; k < kBlock; k += kWidth) {
      if constexpr (streaming) {
        stream(at + k, v);
      } else {
        store(at + k, v);
      }
    }
  }
}

// Blocks that each thread reads and writes.
struct Sweep {
  size_t reads;
  size_t writes;
  bool streams = false;
};

size_t blocks_for(size_t bytes, int threads) {
  const size_t share = kBlock * static_cast<size_t>(threads);
  return (bytes + share - 1) / share;
}

// from (threads * reads blocks), to (threads * writes blocks): each thread reads and writes its own part in turns.
template <bool streaming>
void run_sweep(const Sweep& sweep, const char* from, char* to, int thread) {
  const size_t reads = sweep.reads, writes = sweep.writes;
  const size_t steps = std::max<size_t>(1, std::max(reads, writes) * kBlock / kStep);
  const char* x = from + static_cast<size_t>(thread) * reads * kBlock;
  char* y = to + static_cast<size_t>(thread) * writes * kBlock;
  Vector sum[4] = {};
  for (size_t step = 0; step < steps; step++) {
    read(x + reads * step / steps * kBlock, x + reads * (step + 1) / steps * kBlock, sum);
    write<streaming>(y + writes * step / steps * kBlock, y + writes * (step + 1) / steps * kBlock);
  }
#if defined(__x86_64__)
  if (streaming) _mm_sfence();
#endif
  sink = (sum[0] + sum[1] + sum[2] + sum[3])[0] * 0;
}

// Loops over memory that they share, as the passes of a layer do.
class Loops {
 public:
  Loops(int threads, std::vector<Sweep> sweeps) : threads_(threads), sweeps_(std::move(sweeps)) {
    size_t reads = 0, writes = 0;
    for (const Sweep& sweep : sweeps_) {
      reads = std::max(reads, sweep.reads);
      writes = std::max(writes, sweep.writes);
    }
    from_.resize(reads * kBlock * static_cast<size_t>(threads) + kPage);
    to_.resize(writes * kBlock * static_cast<size_t>(threads) + kPage);
    for (Sweep& sweep : sweeps_) {
      const double plain = best_seconds(threads, [&](int thread) { run_sweep<false>(sweep, from(), to(), thread); });
      const double streaming = best_seconds(threads, [&](int thread) { run_sweep<true>(sweep, from(), to(), thread); });
      sweep.streams = streaming < plain;
    }
  }
  double seconds(long turns) {
    return seconds_of(threads_, turns, [&](int thread) {
      for (const Sweep& sweep : sweeps_) (sweep.streams ? run_sweep<true> : run_sweep<false>)(sweep, from(), to(), thread);
    });
  }
  const std::vector<Sweep>& sweeps() const { return sweeps_; }

 private:
  static constexpr size_t kPage = 4096;
  static char* at_page(std::vector<char>& memory) {
    const size_t past = reinterpret_cast<size_t>(memory.data()) % kPage;
    return memory.data() + (past ? kPage - past : 0);
  }
  const char* from() { return at_page(from_); }
  char* to() { return at_page(to_); }

  int threads_;
  std::vector<Sweep> sweeps_;
  std::vector<char> from_, to_;  // written by their making: every page is there
};

}  // namespace

int main(int count, char** words) {
  if (count != 2) return 1;
  const int threads = std::atoi(words[1]);
  std::cout << fma_per_second(threads) << std::endl;
  Loops loops(threads, {});
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream rest(line);
    std::string command;
    rest >> command;
    if (command == "run") {
      long turns = 0;
      rest >> turns;
      std::cout << loops.seconds(turns) << std::endl;
      continue;
    }
    std::vector<Sweep> sweeps;
    size_t read_bytes = 0, written_bytes = 0;
    for (char colon; rest >> read_bytes >> colon >> written_bytes;)
      sweeps.push_back({blocks_for(read_bytes, threads), blocks_for(written_bytes, threads)});
    loops = Loops(threads, {});  // first free what the last one held
    loops = Loops(threads, std::move(sweeps));
    for (const Sweep& sweep : loops.sweeps()) std::cout << (sweep.streams ? "streaming " : "plain ");
    std::cout << std::endl;
  }
}
