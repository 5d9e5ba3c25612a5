// A family's kernels, compiled once per target. The family's header declares the tables, the kernel file defines the one
// of its target:
//   struct Compiled { static const Kernels portable, avx2, avx512; };
//   inline constexpr Targets<Kernels> targets = targets_of<Compiled>();
//   constinit const Kernels Compiled::OBN_TARGET = …;
#pragma once

#include <type_traits>

#include "base/cpu.h"

namespace obn {

template <class Table>
struct Targets {
  const Table *portable, *avx2, *avx512;  // NULL: not compiled for this machine; portable always is

  const Table& at(Isa wanted) const {
    if (wanted >= Isa::avx512 && avx512) return *avx512;
    if (wanted >= Isa::avx2 && avx2) return *avx2;
    return *portable;
  }
  const Table& best() const { return at(isa()); }
};

template <class Compiled, class Table = std::remove_const_t<decltype(Compiled::portable)>>
constexpr Targets<Table> targets_of() {
#if defined(OBN_X86)
  return {&Compiled::portable, &Compiled::avx2, &Compiled::avx512};
#else
  return {&Compiled::portable, nullptr, nullptr};
#endif
}

}  // namespace obn
