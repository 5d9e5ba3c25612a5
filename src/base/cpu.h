// Which instructions this machine has, and which of our targets is used.
#pragma once

namespace obn {

// Worst first, so that comparison means "at least". On ARM the portable code is the NEON code; neon_bf16 has products of
// bfloat16 besides.
enum class Isa { portable, neon_bf16, avx2, avx512, amx };
inline constexpr Isa kAllIsas[] = {Isa::portable, Isa::neon_bf16, Isa::avx2, Isa::avx512, Isa::amx};

Isa isa();                      // chosen once, at first use: the best there is, or what OPENBNNS_ISA names if lower
bool has_isa(Isa isa);          // the machine can run it
bool has_bfloat16_dots();       // AVX512_BF16, which some with avx512 have and all with amx; FEAT_BF16 of neon_bf16
const char* name_of(Isa isa);   // "portable" ("neon" on ARM), "neon_bf16", "avx2", "avx512", "amx"

}  // namespace obn
