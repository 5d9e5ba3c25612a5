// The AMX kernels on machines without AMX: every tile instruction traps, is decoded from its bytes, and carried out on
// tiles in memory. That shows that the right instructions are there, with the right operands and shapes, begun and
// released as they should be; not that a processor agrees.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/memory.h"
#include "base/test.h"
#include "base/types.h"
#include "gemm/gemm_kernels.h"

#if defined(OBN_X86) && defined(__linux__)
#include <signal.h>
#include <sys/ucontext.h>
#include <unistd.h>

namespace obn::amx::gemm {
extern const obn::gemm::Packing tile_pairs;
}

namespace obn::gemm {
namespace {

// ---- tiles ----

struct Machine {
  bool is_configured = false;
  size_t products = 0;
  const char* wrong = nullptr;  // what was met first that should not be
  uint32_t tile[8][16][16] = {};

  void configure(const unsigned char* shape) {
    is_configured = true;
    if (shape[0] != 1) wrong = "palette";
    for (size_t i = 1; i < 16; ++i)
      if (shape[i] != 0) wrong = "reserved bytes";
    for (size_t t = 0; t < 8; ++t)
      if (shape[16 + 2 * t] != 64 || shape[17 + 2 * t] != 0 || shape[48 + t] != 16) wrong = "shape";
    std::memset(tile, 0, sizeof tile);
  }

  static float flushed(uint32_t bits) { return std::bit_cast<float>(bits & 0x7f800000 ? bits : bits & 0x80000000); }
  static float flushed(float v) { return flushed(std::bit_cast<uint32_t>(v)); }
  void add_product(size_t c, size_t a, size_t b) {
    if (c == a || c == b || a == b) wrong = "a tile twice in a product";
    for (size_t i = 0; i < 16; ++i)
      for (size_t j = 0; j < 16; ++j) {
        float sum[2] = {};
        for (size_t q = 0; q < 16; ++q)
          for (size_t half = 0; half < 2; ++half) {
            const uint32_t x = tile[a][i][q] >> 16 * half << 16, w = tile[b][q][j] >> 16 * half << 16;
            sum[half] = flushed(std::fma(flushed(x), flushed(w), sum[half]));
          }
        tile[c][i][j] = std::bit_cast<uint32_t>(flushed(flushed(tile[c][i][j]) + flushed(sum[0] + sum[1])));
      }
    ++products;
  }
};

Machine machine;

// ---- instructions ----

// VEX with three bytes, opcode, ModRM; an address is base + index · scale + displacement.
struct Instruction {
  size_t length = 5;
  unsigned prefix, opcode, mod, reg, rm, third;
  unsigned char* base = nullptr;
  size_t index = 0;

  Instruction(const unsigned char* at, const greg_t* registers) {
    prefix = at[2] & 3;
    opcode = at[3];
    mod = at[4] >> 6;
    reg = at[4] >> 3 & 7;
    rm = at[4] & 7;
    third = ~(at[2] >> 3) & 15u;
    if (at[0] != 0xc4 || (at[1] & 31) != 2 || (at[2] & 0x84) != 0) opcode = 0;
    if (mod == 3) return;
    constexpr int kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    const unsigned more_index = ~at[1] >> 6 & 1u, more_base = ~at[1] >> 5 & 1u;
    const auto value = [&](unsigned low, unsigned more) {
      return static_cast<uintptr_t>(registers[kRegisters[low | more << 3]]);
    };
    uintptr_t address;
    if (rm == 4) {
      const unsigned sib = at[length++], i = sib >> 3 & 7;
      if (mod == 0 && (sib & 7) == 5) opcode = 0;  // no base: not used
      address = value(sib & 7, more_base);
      if (i != 4 || more_index) index = value(i, more_index) << (sib >> 6);
    } else {
      if (mod == 0 && rm == 5) opcode = 0;  // relative to the instruction: not used
      address = value(rm, more_base);
    }
    if (mod == 1) address += static_cast<uintptr_t>(static_cast<intptr_t>(static_cast<signed char>(at[length++])));
    if (mod == 2) {
      int32_t displacement;
      std::memcpy(&displacement, at + length, sizeof displacement);
      address += static_cast<uintptr_t>(static_cast<intptr_t>(displacement));
      length += sizeof displacement;
    }
    base = reinterpret_cast<unsigned char*>(address);
  }
};

bool carry_out(const Instruction& now) {
  const bool in_memory = now.mod != 3;
  if (now.opcode == 0x49 && now.prefix == 0 && in_memory && now.reg == 0) {
    machine.configure(now.base);
    return true;
  }
  if (!machine.is_configured) machine.wrong = "a tile before its shape";
  if (now.opcode == 0x49 && now.prefix == 0 && now.reg == 0 && now.rm == 0) {
    machine.is_configured = false;
  } else if (now.opcode == 0x49 && now.prefix == 3 && !in_memory && now.rm == 0) {
    std::memset(machine.tile[now.reg], 0, sizeof machine.tile[0]);
  } else if (now.opcode == 0x4b && now.prefix == 3 && in_memory) {
    for (size_t i = 0; i < 16; ++i) std::memcpy(machine.tile[now.reg][i], now.base + i * now.index, 64);
  } else if (now.opcode == 0x4b && now.prefix == 2 && in_memory) {
    for (size_t i = 0; i < 16; ++i) std::memcpy(now.base + i * now.index, machine.tile[now.reg][i], 64);
  } else if (now.opcode == 0x5c && now.prefix == 2 && !in_memory && now.third < 8) {
    machine.add_product(now.reg, now.rm, now.third);
  } else {
    return false;
  }
  return true;
}

void on_trap(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction now(reinterpret_cast<const unsigned char*>(registers[REG_RIP]), registers);
  if (!carry_out(now)) _exit(3);  // an instruction that is not of tiles
  registers[REG_RIP] += static_cast<greg_t>(now.length);
}

// ---- the test ----

TEST(gemm_tile_instructions_carried_out_from_their_bytes) {
  // The kernels also use AVX512_BF16; where there is AMX itself, gemm_test.cpp runs it.
  if (!has_bfloat16_dots() || has_isa(Isa::amx)) return;
  struct sigaction trap = {}, before = {};
  trap.sa_sigaction = on_trap;
  trap.sa_flags = SA_SIGINFO;
  CHECK(sigaction(SIGILL, &trap, &before) == 0, "no signals");
  const Packing& tiles = amx::gemm::tile_pairs;
  CHECK(agrees_with_model(tiles), "not like the model");
  test::Random random{41};
  for (int i = 0; i < 40; ++i) {
    const size_t m = 1 + random.below(70), n = 1 + random.below(70), k = 1 + random.below(i % 10 ? 100 : 1200);
    const BNNSDataType type = i % 2 ? BNNSDataTypeBFloat16 : BNNSDataTypeFloat32;
    std::vector<float> a(m * k), b(k * n), c(m * n, 0.5f), expected = c;
    std::vector<uint16_t> half_a, half_b;
    for (float& v : a) half_a.push_back(bfloat16_of_float(v = static_cast<float>(random.below(2001)) * 1e-3f - 1.0f));
    for (float& v : b) half_b.push_back(bfloat16_of_float(v = static_cast<float>(random.below(2001)) * 1e-3f - 1.0f));
    Product p = {.m = m, .n = n, .k = k, .a = {a.data(), k, 1}, .b = {b.data(), n, 1}, .c = c.data(), .c_row = n};
    if (type == BNNSDataTypeBFloat16) p.a = {half_a.data(), k, 1, type}, p.b = {half_b.data(), n, 1, type};
    if (i % 3 == 0) p.a = {p.a.data, 1, m, type};
    if (i % 4 == 0) p.b = {p.b.data, 1, k, type};
    p.accumulate = i % 5 == 0;
    p.precision = Precision::medium;
    float* work = reinterpret_cast<float*>(scratch());
    tiles.packed(p, {0, m, 0, n}, nullptr, nullptr, work);
    CHECK(!machine.is_configured && !machine.wrong, "%s", machine.wrong ? machine.wrong : "tiles were not released");
    p.c = expected.data();
    model_pairs().packed(p, {0, m, 0, n}, nullptr, nullptr, work);
    CHECK(std::memcmp(c.data(), expected.data(), m * n * sizeof(float)) == 0, "(%zu, %zu, %zu) differs", m, n, k);
  }
  CHECK(machine.products > 100, "%zu products of tiles", machine.products);
  sigaction(SIGILL, &before, nullptr);
}

}  // namespace
}  // namespace obn::gemm

#endif
