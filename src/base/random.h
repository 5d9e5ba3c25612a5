// Random numbers: AES-128 in counter mode, so that value i of a stream can be had without the values before it and a
// filled array does not depend on who filled which part. Not for cryptography.
#pragma once

#include <cstddef>
#include <cstdint>

namespace obn {

// The stream of one seed (docs/interface/quirks.md "Random numbers"): the key is the seed, little-endian, twice; block b is
// the encrypted 128-bit big-endian number b and gives four little-endian 32-bit values.
class RandomStream {
 public:
  explicit RandomStream(uint64_t seed);

  // values (n): those at position, position + 1, … of the stream. With the processor's AES instructions where it has
  // them.
  void get(uint64_t position, uint32_t* values, size_t n) const;
  // The same from tables, on any machine.
  void get_from_tables(uint64_t position, uint32_t* values, size_t n) const;

 private:
  uint32_t round_keys_[44];  // as FIPS 197 numbers them: words of four bytes, the first one uppermost
};

// A value spread over low … high; high itself can occur, by rounding.
inline float uniform(uint32_t value, float low, float high) {
  return __builtin_fmaf(static_cast<float>(value) * 0x1p-32f, high - low, low);
}

// A part of the process-wide stream, reserved for one call.
struct RandomDraw {
  RandomStream stream;
  uint64_t start;
};

// Reserves the next n values of the process-wide stream (obn_set_seed; without it the seed differs from run to run).
RandomDraw draw_random(uint64_t n);

}  // namespace obn
