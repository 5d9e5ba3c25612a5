// Random fills: values of a stream (base/random.h) turned into numbers of a distribution. Value e of a fill, counted
// innermost axis first, comes from fixed values of the stream, so it matters neither who computes it nor on what
// machine: all targets and all thread counts give the same bits.
//
//   v    32-bit values of the stream      y    numbers
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/targets.h"
#include "openbnns/bnns/base.h"

namespace obn::random {

inline constexpr size_t kIntegers = 8;  // int8, uint8, int16, uint16, int32, uint32, int64, uint64

// One target's loops, on packed rows.
struct Kernels {
  // y (n) = factor·(low + width·v/2^32), the sum rounded once.
  void (*uniform)(const uint32_t* v, float low, float width, float factor, float* y, size_t n);
  // y (n), n even: pairs of the normal distribution from pairs of v (Box and Muller).
  void (*normal)(const uint32_t* v, float mean, float deviation, float* y, size_t n);
  // y (n) = low + a whole number below `range`; from one v each, or two where `range` needs more than 32 bits.
  void (*integers[kIntegers])(const uint32_t* v, int64_t low, uint64_t range, void* y, size_t n);
  void (*clamp)(float limit, float* y, size_t n);  // to ±limit
  void (*load)(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);  // simd/convert.h
  void (*store)(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// Stream values that a whole number below `range` takes.
constexpr size_t values_for(uint64_t range) { return range > uint64_t{1} << 32 ? 2 : 1; }

// ---- the obvious formulas (random_ref.cpp), one number in float64 ----

namespace ref {

double uniform(uint32_t v, double low, double high);
// The two numbers of a pair.
void normal(const uint32_t* v, double mean, double deviation, double* y);
int64_t integer(const uint32_t* v, int64_t low, uint64_t range);
// The category that v chooses: the first whose share, with those before it, passes v/2^32 of the total.
size_t category(uint32_t v, const double* probabilities, size_t categories);

}  // namespace ref

}  // namespace obn::random
