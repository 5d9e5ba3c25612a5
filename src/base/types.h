// Element types: which codes exist, how wide they are, and the two half formats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "openbnns/bnns/base.h"

namespace obn {

// Kernel files include this header too. They are compiled once per instruction set, so nothing here may become a
// function of its own: the linker would keep one copy for all of them.

bool is_known(BNNSDataType type);       // one of the types of docs/interface/descriptors.md; bare class bits are not types
const char* name_of(BNNSDataType type); // "float32", "uint4", …; "unknown" otherwise

constexpr size_t bits_of(BNNSDataType type) { return static_cast<uint32_t>(type) & 0x7fff; }
constexpr size_t bytes_of(BNNSDataType type) { return bits_of(type) / 8; }  // 0 for the sub-byte types
constexpr bool is_float(BNNSDataType type) { return static_cast<uint32_t>(type) & BNNSDataTypeFloatBit; }
constexpr bool is_float_type(BNNSDataType type) {  // of those that layers compute with
  return type == BNNSDataTypeFloat32 || type == BNNSDataTypeFloat16 || type == BNNSDataTypeBFloat16;
}
constexpr bool is_indexed(BNNSDataType type) { return static_cast<uint32_t>(type) & BNNSDataTypeIndexedBit; }

[[gnu::always_inline]] inline float float_of_bfloat16(uint16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }

// Nearest, ties to even; NaN stays NaN (quiet).
[[gnu::always_inline]] inline uint16_t bfloat16_of_float(float v) {
  uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

[[gnu::always_inline]] inline float float_of_float16(uint16_t v) {
  uint32_t sign = static_cast<uint32_t>(v & 0x8000) << 16;
  uint32_t magnitude = v & 0x7fff;
  if (magnitude >= 0x7c00)  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13));
  if (magnitude >= 0x400)  // normal: the exponent moves from bias 15 to 127
    return std::bit_cast<float>(sign | ((magnitude << 13) + ((127 - 15) << 23)));
  // subnormal or zero: magnitude · 2^-24, exact in float32
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
}

// Nearest, ties to even; beyond the largest half goes to infinity.
[[gnu::always_inline]] inline uint16_t float16_of_float(float v) {
  uint32_t u = std::bit_cast<uint32_t>(v);
  uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((u >> 13) & 0x3ff));
  if (u >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above round to infinity
  if (u < 0x38800000) {  // below 2^-14: adding 0.5 puts the wanted bits, rounded, at the bottom of the float
    float shifted = std::bit_cast<float>(u) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  u += 0xfff + ((u >> 13) & 1);
  return static_cast<uint16_t>(sign | ((u - ((127 - 15) << 23)) >> 13));
}

}  // namespace obn
