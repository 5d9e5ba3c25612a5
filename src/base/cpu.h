// Which instructions this machine has, and which of our targets is used.
#pragma once

namespace obn {

// Worst first, so that comparison means "at least". On ARM the portable code is the NEON code.
enum class Isa { portable, avx2, avx512, amx };

Isa isa();                      // chosen once, at first use: the best there is, or what OPENBNNS_ISA names if lower
bool has_isa(Isa isa);          // the machine can run it
bool has_bfloat16_dots();       // AVX512_BF16, which some with avx512 have and all with amx
const char* name_of(Isa isa);   // "portable" ("neon" on ARM), "avx2", "avx512", "amx"

// A family's table of kernels, one pointer per compiled target (NULL where a target was not compiled: then the next
// lower one serves; portable is always there).
template <class Table>
struct Targets {
  const Table* portable;
  const Table* avx2;
  const Table* avx512;
  const Table* amx;

  const Table& at(Isa wanted) const {
    if (wanted >= Isa::amx && amx) return *amx;
    if (wanted >= Isa::avx512 && avx512) return *avx512;
    if (wanted >= Isa::avx2 && avx2) return *avx2;
    return *portable;
  }
  const Table& best() const { return at(isa()); }
};

}  // namespace obn
