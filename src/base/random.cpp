#include "base/random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#if defined(OBN_X86)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "base/cpu.h"
#include "base/lock.h"
#include "base/system.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

// ---- AES, as the standard (FIPS 197) defines it; a column of the state is a big-endian word ----

// Product in the field of 256 elements, modulo x^8 + x^4 + x^3 + x + 1.
constexpr uint8_t multiply(uint8_t a, uint8_t b) {
  uint8_t product = 0;
  for (; b != 0; b >>= 1) {
    if (b & 1) product ^= a;
    a = static_cast<uint8_t>((a << 1) ^ (a & 0x80 ? 0x1b : 0));
  }
  return product;
}

// The inverse (a^254 = a^2·a^4· … ·a^128; 0 for 0), then the affine map.
constexpr uint8_t substitute(uint8_t a) {
  uint8_t inverse = 1, power = a;
  for (int k = 1; k < 8; ++k) {
    power = multiply(power, power);
    inverse = multiply(inverse, power);
  }
  uint8_t v = inverse;
  for (int k = 1; k <= 4; ++k) v ^= std::rotl(inverse, k);
  return v ^ 0x63;
}

constexpr std::array<uint8_t, 256> make_substitution() {
  std::array<uint8_t, 256> box{};
  for (size_t a = 0; a < 256; ++a) box[a] = substitute(static_cast<uint8_t>(a));
  return box;
}
constexpr std::array<uint8_t, 256> kBox = make_substitution();

// What one byte of a column contributes to the mixed column, for the topmost row; the others are rotations of it.
constexpr std::array<uint32_t, 256> make_mixed() {
  std::array<uint32_t, 256> mixed{};
  for (size_t a = 0; a < 256; ++a) {
    uint32_t s = kBox[a], twice = multiply(kBox[a], 2);
    mixed[a] = twice << 24 | s << 16 | s << 8 | (twice ^ s);
  }
  return mixed;
}
constexpr std::array<uint32_t, 256> kMixed = make_mixed();

constexpr uint8_t byte_of(uint32_t word, int row) { return static_cast<uint8_t>(word >> (24 - 8 * row)); }

uint32_t substitute_word(uint32_t w) {
  return static_cast<uint32_t>(kBox[byte_of(w, 0)]) << 24 | static_cast<uint32_t>(kBox[byte_of(w, 1)]) << 16 |
         static_cast<uint32_t>(kBox[byte_of(w, 2)]) << 8 | kBox[byte_of(w, 3)];
}

// keys (44), block (4) in, block (4) out
void encrypt(const uint32_t* keys, uint32_t* block) {
  uint32_t state[4], next[4];
  for (int c = 0; c < 4; ++c) state[c] = block[c] ^ keys[c];
  for (int round = 1; round < 10; ++round) {
    for (int c = 0; c < 4; ++c)  // row r of column c comes from column c + r: the shift of the rows
      next[c] = kMixed[byte_of(state[c], 0)] ^ std::rotr(kMixed[byte_of(state[(c + 1) & 3], 1)], 8) ^
                std::rotr(kMixed[byte_of(state[(c + 2) & 3], 2)], 16) ^
                std::rotr(kMixed[byte_of(state[(c + 3) & 3], 3)], 24) ^ keys[4 * round + c];
    for (int c = 0; c < 4; ++c) state[c] = next[c];
  }
  for (int c = 0; c < 4; ++c) {
    uint32_t shifted = (state[c] & 0xff000000) | (state[(c + 1) & 3] & 0xff0000) | (state[(c + 2) & 3] & 0xff00) |
                       (state[(c + 3) & 3] & 0xff);
    block[c] = substitute_word(shifted) ^ keys[40 + c];
  }
}

#if defined(OBN_X86)

// ---- the same by the processor's own instructions ----

// OPENBNNS_ISA=portable means tables, too.
bool has_instructions() {
  return isa() != Isa::portable && once([] {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_AES) && (c & bit_SSSE3);
  });
}

constexpr size_t kSide = 8;  // blocks at a time: one round must not wait for the round before

// Blocks first, first + 1, … as 4·count values, count a multiple of kSide.
[[gnu::target("aes,ssse3")]] void encrypt_blocks(const uint32_t* round_keys, uint64_t first, uint32_t* values,
                                                 size_t count) {
  const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);  // bytes of every word
  __m128i keys[11];
  for (int round = 0; round < 11; ++round)
    keys[round] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(round_keys) + round), swap);
  for (size_t i = 0; i < count; i += kSide) {
    __m128i state[kSide];
#pragma GCC unroll 8
    for (size_t k = 0; k < kSide; ++k) {
      const long long counter = static_cast<long long>(__builtin_bswap64(first + i + k));
      state[k] = _mm_xor_si128(_mm_set_epi64x(counter, 0), keys[0]);
    }
    for (int round = 1; round < 10; ++round) {
#pragma GCC unroll 8
      for (size_t k = 0; k < kSide; ++k) state[k] = _mm_aesenc_si128(state[k], keys[round]);
    }
#pragma GCC unroll 8
    for (size_t k = 0; k < kSide; ++k)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 4 * (i + k)), _mm_aesenclast_si128(state[k], keys[10]));
  }
}

#endif

}  // namespace

RandomStream::RandomStream(uint64_t seed) {
  round_keys_[0] = round_keys_[2] = __builtin_bswap32(static_cast<uint32_t>(seed));
  round_keys_[1] = round_keys_[3] = __builtin_bswap32(static_cast<uint32_t>(seed >> 32));
  uint8_t constant = 1;
  for (size_t i = 4; i < 44; ++i) {
    uint32_t last = round_keys_[i - 1];
    if (i % 4 == 0) {
      last = substitute_word(std::rotl(last, 8)) ^ static_cast<uint32_t>(constant) << 24;
      constant = multiply(constant, 2);
    }
    round_keys_[i] = round_keys_[i - 4] ^ last;
  }
}

void RandomStream::get_from_tables(uint64_t position, uint32_t* values, size_t n) const {
  for (size_t i = 0; i < n;) {
    uint64_t counter = (position + i) / 4;
    uint32_t block[4] = {0, 0, static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(counter)};
    encrypt(round_keys_, block);
    for (size_t k = (position + i) % 4; k < 4 && i < n; ++k, ++i) values[i] = __builtin_bswap32(block[k]);
  }
}

void RandomStream::get(uint64_t position, uint32_t* values, size_t n) const {
#if defined(OBN_X86)
  if (n > 8 && has_instructions()) {
    const size_t lead = (4 - position % 4) % 4;  // up to the next whole block
    get_from_tables(position, values, lead);
    const size_t whole = (n - lead) / (4 * kSide) * kSide;
    encrypt_blocks(round_keys_, (position + lead) / 4, values + lead, whole);
    position += lead + 4 * whole;
    values += lead + 4 * whole;
    n -= lead + 4 * whole;
    if (n > 4) {
      uint32_t last[4 * kSide];
      encrypt_blocks(round_keys_, position / 4, last, kSide);
      std::copy_n(last, n, values);
      return;
    }
  }
#endif
  get_from_tables(position, values, n);
}

// ---- the process-wide stream ----

namespace {

std::optional<RandomStream> process_stream;  // guarded by core_lock, as the one below; made at first use
uint64_t process_position = 0;

}  // namespace

RandomDraw draw_random(uint64_t n) {
  std::lock_guard guard(core_lock);
  if (!process_stream) process_stream.emplace(unpredictable_seed());
  RandomDraw draw{*process_stream, process_position};
  process_position += n;
  return draw;
}

}  // namespace obn

extern "C" void obn_set_seed(uint64_t seed) {
  const obn::RandomStream stream(seed);
  std::lock_guard guard(obn::core_lock);
  obn::process_stream = stream;
  obn::process_position = 0;
}
