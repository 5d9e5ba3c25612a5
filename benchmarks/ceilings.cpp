// What this machine can do at best, as JSON: ceilings THREADS READ:WRITTEN ...
//
//   fma     fused multiply-adds of one float32 value each, per second, all threads together
//   sweeps  per READ:WRITTEN (bytes of all threads together): seconds of the simplest loop that reads that much and
//           writes that much, once with plain and once with streaming stores
//
// Every number is the best of several tries: a floor, not an expectation.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

constexpr int kTries = 15;
constexpr double kTrySeconds = 5e-3;  // long beside the clock and the barriers, short enough to run undisturbed once
constexpr size_t kBlock = 256;        // bytes per turn of the inner loops
constexpr size_t kStep = 4096;        // bytes of the larger side between two changes from reading to writing

volatile float sink;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of the best of several tries of calling body(thread) `calls` times, started together on all threads.
template <class Body>
double best_try(int threads, long calls, const Body& body) {
  double best = 1e30;
  for (int attempt = 0; attempt < kTries; attempt++) {
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
    best = std::min(best, seconds);
  }
  return best;
}

// Best seconds per call, from tries that are long enough.
template <class Body>
double best_seconds(int threads, const Body& body) {
  for (long calls = 1;; calls *= 2) {
    const double seconds = best_try(threads, calls, body);
    if (seconds >= kTrySeconds) return seconds / static_cast<double>(calls);
  }
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
  });
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

size_t blocks_for(size_t bytes, int threads) {
  const size_t share = kBlock * static_cast<size_t>(threads);
  return (bytes + share - 1) / share;
}

// from (threads * reads blocks), to (threads * writes blocks): each thread reads and writes its own part in turns.
template <bool streaming>
double sweep_seconds(int threads, const char* from, size_t reads, char* to, size_t writes) {
  const size_t steps = std::max<size_t>(1, std::max(reads, writes) * kBlock / kStep);
  return best_seconds(threads, [=](int thread) {
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
  });
}

char* touched(size_t bytes) {  // every page present before the first measurement
  char* memory = static_cast<char*>(std::aligned_alloc(4096, (bytes / 4096 + 1) * 4096));
  if (memory == nullptr) std::abort();
  std::memset(memory, 0, bytes);
  return memory;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return 1;
  const int threads = std::atoi(words[1]);
  std::printf("{\"fma\": %.6g, \"sweeps\": {", fma_per_second(threads));
  for (int k = 2; k < count; k++) {
    size_t read_bytes = 0, written_bytes = 0;
    if (std::sscanf(words[k], "%zu:%zu", &read_bytes, &written_bytes) != 2) return 1;
    const size_t reads = blocks_for(read_bytes, threads), writes = blocks_for(written_bytes, threads);
    char* from = touched(static_cast<size_t>(threads) * reads * kBlock);
    char* to = touched(static_cast<size_t>(threads) * writes * kBlock);
    std::printf("%s\"%s\": {\"plain\": %.6g, \"streaming\": %.6g}", k > 2 ? ", " : "", words[k],
                sweep_seconds<false>(threads, from, reads, to, writes),
                sweep_seconds<true>(threads, from, reads, to, writes));
    std::free(from);
    std::free(to);
  }
  std::printf("}}\n");
}
