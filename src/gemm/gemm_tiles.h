// Tiles: registers of 16 rows of 16 words, which AMX multiplies whole. Twice: the machine's own, and a model of them in
// plain C++ that runs everywhere, so that the loops over tiles can be tested on any machine and the machine's tiles be
// compared with something. Kernel files only (see simd/vec.h).
//
//   begin(), end()     around all others; tiles lose their values
//   zero<t>()          load<t>(p, row)          store<t>(p, row): row is the words from one row in memory to the next
//   add_product<c, a, b>()   c (16, 16) of float32 += a (16, 32) · b (32, 16) of bfloat16. a holds pairs along its
//                            rows; row q of b holds its rows 2q and 2q + 1, pair by pair
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"
#include "simd/vec.h"

namespace obn::OBN_TARGET {
namespace {  // nothing here may be shared between targets

constexpr size_t kTileSide = 16;

#if defined(OBN_MACHINE_TILES)  // by the build; compilers do not agree on the name of theirs

// Instructions by hand: the compilers' own names for them take numbers of tiles only as literals, and gcc 12 does not
// know that a load of a tile reads memory.
struct MachineTiles {
  [[gnu::always_inline]] void begin() {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    static_assert(sizeof shape == 64);
    asm volatile("ldtilecfg %0" : : "m"(shape));
  }
  [[gnu::always_inline]] void end() { asm volatile("tilerelease"); }

  template <int kTile>
  [[gnu::always_inline]] void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  [[gnu::always_inline]] void load(const float* from, size_t row) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row * sizeof(float)), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] void store(float* to, size_t row) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row * sizeof(float)), "i"(kTile) : "memory");
  }
  template <int kSum, int kA, int kB>
  [[gnu::always_inline]] void add_product() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
};

#else

// As the manual describes it: of a product's pairs, lower and upper halves are summed apart, from 0 on, in the order of
// k; then both sums are added, and the result to c. Sums are fused and rounded to nearest; operands and results below
// the smallest normal float32 count as 0.
struct ModelTiles {
  float tile[8][kTileSide][kTileSide];

  void begin() {
    for (auto& each : tile) std::memset(&each, 0, sizeof each);
  }
  void end() {}

  template <int kTile>
  void zero() {
    std::memset(&tile[kTile], 0, sizeof tile[kTile]);
  }
  template <int kTile>
  void load(const float* from, size_t row) {
    for (size_t i = 0; i < kTileSide; ++i) std::memcpy(tile[kTile][i], from + i * row, sizeof tile[kTile][i]);
  }
  template <int kTile>
  void store(float* to, size_t row) {
    for (size_t i = 0; i < kTileSide; ++i) std::memcpy(to + i * row, tile[kTile][i], sizeof tile[kTile][i]);
  }
  template <int kSum, int kA, int kB>
  void add_product() {
    for (size_t i = 0; i < kTileSide; ++i)
      for (size_t j = 0; j < kTileSide; ++j) {
        float low = 0.0f, high = 0.0f;
        for (size_t q = 0; q < kTileSide; ++q) {
          const uint32_t x = word(tile[kA][i][q]), w = word(tile[kB][q][j]);
          low = add(low, value(x << 16), value(w << 16));
          high = add(high, value(x & 0xffff0000), value(w & 0xffff0000));
        }
        float& sum = tile[kSum][i][j];
        sum = flushed(flushed(sum) + flushed(low + high));
      }
  }

 private:
  static uint32_t word(float v) { return std::bit_cast<uint32_t>(v); }
  static float flushed(float v) {
    const uint32_t bits = word(v);
    return bits & 0x7f800000 ? v : std::bit_cast<float>(bits & 0x80000000);
  }
  static float value(uint32_t bits) { return flushed(std::bit_cast<float>(bits)); }
  static float add(float sum, float x, float w) { return flushed(__builtin_fmaf(x, w, sum)); }
};

#endif

}  // namespace
}  // namespace obn::OBN_TARGET
