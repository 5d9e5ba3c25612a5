// Whole numbers, not negative. Kernels include this: nothing in it may become a function of theirs.
#pragma once

#include <type_traits>

namespace obn {

template <class Integer>
[[gnu::always_inline]] constexpr Integer divide_up(Integer n, std::type_identity_t<Integer> unit) {
  return (n + unit - 1) / unit;
}
template <class Integer>
[[gnu::always_inline]] constexpr Integer round_up(Integer n, std::type_identity_t<Integer> unit) {
  return divide_up(n, unit) * unit;
}

}  // namespace obn
