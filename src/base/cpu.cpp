#include "base/cpu.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(OBN_X86)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(OBN_ARM)
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
#include <windows.h>
#endif
#endif

#include "base/lock.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

#if defined(OBN_X86)

struct Features {
  bool avx2 = false, avx512 = false, bfloat16_dots = false, amx = false;
};

[[gnu::target("xsave")]] unsigned long long enabled_state() { return _xgetbv(0); }

#if defined(__linux__)

sigjmp_buf after_trial;

// One tile product with known numbers. Hypervisors may announce AMX and still not run it (or hide leaf 0x1d and run it
// well), so the announcement is not enough: an illegal instruction jumps back, a wrong number says no.
[[gnu::target("amx-tile,amx-bf16")]] bool amx_computes() {
  struct {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    unsigned short columns[16] = {64, 64, 64};  // bytes per row of tiles 0, 1, 2
    unsigned char rows[16] = {16, 16, 16};
  } shape;
  alignas(64) unsigned short ones[16 * 32];
  alignas(64) float product[16 * 16];
  for (unsigned short& one : ones) one = 0x3f80;  // 1.0 in bfloat16
  asm volatile("" : : : "memory");                // gcc 12 does not know that tiles and their shape read memory
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_loadd(1, ones, 64);
  _tile_loadd(2, ones, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, product, 64);
  _tile_release();
  for (float value : product)
    if (value != 32.0f) return false;
  return true;
}

bool amx_works() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return false;
  struct sigaction guard = {}, before = {};
  guard.sa_handler = [](int) { siglongjmp(after_trial, 1); };
  if (sigaction(SIGILL, &guard, &before) != 0) return false;
  bool works = sigsetjmp(after_trial, 1) == 0 && amx_computes();
  sigaction(SIGILL, &before, nullptr);
  return works;
}

#else

bool amx_works() { return false; }

#endif

Features detect() {
  Features found;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool has_xsave = c & bit_OSXSAVE, has_fma = c & bit_FMA, has_f16c = c & bit_F16C;
  if (!has_xsave || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  const unsigned long long state = enabled_state();
  const bool keeps_ymm = (state & 0x6) == 0x6, keeps_zmm = (state & 0xe6) == 0xe6;
  const bool keeps_tiles = (state & 0x60000) == 0x60000;
  found.avx2 = keeps_ymm && has_fma && has_f16c && (b & bit_AVX2);
  found.avx512 = found.avx2 && keeps_zmm && (b & bit_AVX512F) && (b & bit_AVX512BW) && (b & bit_AVX512DQ) &&
                 (b & bit_AVX512VL);
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  const bool has_tiles = keeps_tiles && (d & kAmxBf16) && (d & kAmxTile);
  constexpr unsigned kAvx512Bf16 = 1u << 5;  // in leaf 7, part 1
  found.bfloat16_dots = found.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvx512Bf16);
  found.amx = found.bfloat16_dots && has_tiles && amx_works();  // its kernels also round with AVX512_BF16
  return found;
}

#elif defined(OBN_ARM)

struct Features {
  bool bfloat16_dots = false;  // FEAT_BF16: the instructions bfdot and bfmmla
};

Features detect() {
  Features found;
#if defined(__linux__)
  found.bfloat16_dots = getauxval(AT_HWCAP2) & HWCAP2_BF16;
#elif defined(__APPLE__)
  int value = 0;
  size_t size = sizeof value;
  found.bfloat16_dots = sysctlbyname("hw.optional.arm.FEAT_BF16", &value, &size, nullptr, 0) == 0 && value != 0;
#elif defined(_WIN32)
  constexpr DWORD kBf16 = 68;  // PF_ARM_V86_BF16_INSTRUCTIONS_AVAILABLE, which older headers lack
  found.bfloat16_dots = IsProcessorFeaturePresent(kBf16) != 0;
#endif
  return found;
}

#endif

#if defined(OBN_X86) || defined(OBN_ARM)

const Features& features() {
  return once([] { return detect(); });
}

#endif

struct Choice {
  Isa isa = Isa::portable;
  char reason[160] = "";
};

Choice choose() {
  Choice choice;
  Isa best = Isa::portable;
  for (Isa candidate : kAllIsas)
    if (has_isa(candidate)) best = candidate;
  choice.isa = best;
  const char* asked = std::getenv("OPENBNNS_ISA");
  if (!asked || !*asked) {
    std::snprintf(choice.reason, sizeof choice.reason, "%s is the best this machine has", name_of(best));
    return choice;
  }
  for (Isa candidate : kAllIsas) {
    if (std::strcmp(asked, name_of(candidate)) != 0) continue;
    if (candidate <= best) {
      choice.isa = candidate;
      std::snprintf(choice.reason, sizeof choice.reason, "OPENBNNS_ISA asks for %s; this machine has %s", asked,
                    name_of(best));
    } else {
      std::snprintf(choice.reason, sizeof choice.reason, "OPENBNNS_ISA asks for %.40s, but this machine has only %s",
                    asked, name_of(best));
    }
    return choice;
  }
  std::snprintf(choice.reason, sizeof choice.reason, "OPENBNNS_ISA=%.40s is not a name we know; %s is the best here",
                asked, name_of(best));
  return choice;
}

const Choice& choice() {
#if defined(OBN_X86) || defined(OBN_ARM)
  features();  // found before: once() does not nest
#endif
  return once([] { return choose(); });
}

}  // namespace

bool has_isa(Isa wanted) {
  switch (wanted) {
    case Isa::portable: return true;
#if defined(OBN_X86)
    case Isa::avx2: return features().avx2;
    case Isa::avx512: return features().avx512;
    case Isa::amx: return features().amx;
    case Isa::neon_bf16: return false;
#elif defined(OBN_ARM)
    case Isa::neon_bf16: return features().bfloat16_dots;
    default: return false;
#else
    default: return false;
#endif
  }
  return false;
}

bool has_bfloat16_dots() {
#if defined(OBN_X86) || defined(OBN_ARM)
  return features().bfloat16_dots;
#else
  return false;
#endif
}

const char* name_of(Isa isa) {
  switch (isa) {
#if defined(__aarch64__)
    case Isa::portable: return "neon";
#else
    case Isa::portable: return "portable";
#endif
    case Isa::neon_bf16: return "neon_bf16";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::amx: return "amx";
  }
  return "portable";
}

Isa isa() {
  return choice().isa;
}

}  // namespace obn

extern "C" {

const char* obn_version(void) { return OPENBNNS_VERSION; }

const char* obn_isa(void) { return obn::name_of(obn::isa()); }

const char* obn_isa_reason(void) { return obn::choice().reason; }

int obn_isa_available(const char* name) {
  if (!name) return 0;
  for (obn::Isa candidate : obn::kAllIsas)
    if (std::strcmp(name, obn::name_of(candidate)) == 0) return obn::has_isa(candidate);
  return 0;
}
}
