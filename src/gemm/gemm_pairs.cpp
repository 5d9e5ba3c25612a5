// Which instructions for pairs of bfloat16 the machine has, and whether its tiles compute what they should.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/lock.h"
#include "base/types.h"
#include "gemm/gemm_kernels.h"

namespace obn::portable::gemm {
extern const obn::gemm::Packing tile_pairs;
}
#if defined(OBN_X86)
namespace obn::avx512_bf16::gemm {
extern const obn::gemm::Packing pairs;
}
namespace obn::amx::gemm {
extern const obn::gemm::Packing tile_pairs;
}
#elif defined(OBN_ARM)
namespace obn::neon_bf16::gemm {
extern const obn::gemm::Packing pairs;
}
#endif

namespace obn::gemm {
namespace {

// Tails of rows, columns and k, and more than one tile in every direction.
constexpr size_t kRows = 35, kColumns = 50, kDeep = 75;
constexpr size_t kWork = 40 * 32 + 64 * 40;  // words: a tile column of b and a block of a, all steps of k

struct Trial {
  uint16_t a[kRows * kDeep], b[kDeep * kColumns];
  float c[kRows * kColumns], limit[kRows * kColumns];
  alignas(64) float work[kWork];

  Trial() {  // values of either sign, of many sizes, with all bits of bfloat16 in use
    uint32_t state = 1;
    const auto next = [&state] {
      state = state * 1664525 + 1013904223;
      const uint32_t bits = state >> 16;
      return static_cast<uint16_t>((bits & 0x807f) | (124 + (bits >> 7 & 7)) << 7);
    };
    for (uint16_t& v : a) v = next();
    for (uint16_t& v : b) v = next();
    for (size_t i = 0; i < kRows; ++i)
      for (size_t j = 0; j < kColumns; ++j) {
        float sum = 0.0f;
        for (size_t q = 0; q < kDeep; ++q)
          sum += std::fabs(float_of_bfloat16(a[i * kDeep + q]) * float_of_bfloat16(b[q * kColumns + j]));
        limit[i * kColumns + j] = sum;
      }
  }
  void run(const Packing& packing) {
    Product p = {.m = kRows, .n = kColumns, .k = kDeep, .a = {a, kDeep, 1, BNNSDataTypeBFloat16},
                 .b = {b, kColumns, 1, BNNSDataTypeBFloat16}, .c = c, .c_row = kColumns};
    packing.packed(p, {0, kRows, 0, kColumns}, nullptr, nullptr, work);
  }
};

}  // namespace

bool agrees_with_model(const Packing& packing) {
  constexpr float kTolerance = 0x1p-20f;  // of the sum of magnitudes: 16 roundings
  static Trial model, own;
  model.run(model_pairs());
  own.run(packing);
  for (size_t i = 0; i < kRows * kColumns; ++i)
    if (!(std::fabs(own.c[i] - model.c[i]) <= kTolerance * model.limit[i])) return false;
  return true;
}

bool can_be_pairs(const Product& p) {
  const auto fits = [&p](BNNSDataType type) {
    return type == BNNSDataTypeBFloat16 || (type == BNNSDataTypeFloat32 && p.precision == Precision::medium);
  };
  return fits(p.a.type) && fits(p.b.type);
}

const Packing& model_pairs() { return portable::gemm::tile_pairs; }

#if defined(OBN_X86)

constexpr Isa kDotPairs = Isa::avx512;  // has them, if the machine does
const Packing* dot_pairs() { return has_bfloat16_dots() ? &avx512_bf16::gemm::pairs : nullptr; }

const Packing* tile_pairs() {
  const bool usable = has_isa(Isa::amx) && once([] { return agrees_with_model(amx::gemm::tile_pairs); });
  return usable ? &amx::gemm::tile_pairs : nullptr;
}

#elif defined(OBN_ARM)

constexpr Isa kDotPairs = Isa::neon_bf16;
const Packing* dot_pairs() { return has_bfloat16_dots() ? &neon_bf16::gemm::pairs : nullptr; }
const Packing* tile_pairs() { return nullptr; }

#else

constexpr Isa kDotPairs = Isa::portable;
const Packing* dot_pairs() { return nullptr; }
const Packing* tile_pairs() { return nullptr; }

#endif

const Packing* best_pairs() {
  if (const Packing* tiles = isa() >= Isa::amx ? tile_pairs() : nullptr) return tiles;
  return isa() >= kDotPairs ? dot_pairs() : nullptr;
}

}  // namespace obn::gemm
