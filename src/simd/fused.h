// A fused product and sum by name. Kernel files only (see vec.h).
#pragma once

#include "simd/vec.h"

namespace obn::OBN_TARGET {

// a·b + c as one step where the target has it. The compiler fuses on its own, but not always the same products in every
// copy of a piece of code; where bits must not depend on that, this says which.
OBN_INLINE F fused(F a, F b, F c) {
#if defined(__AVX512F__)
  return reinterpret_cast<F>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<F>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__ARM_FEATURE_FMA)
  return reinterpret_cast<F>(
      vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

}  // namespace obn::OBN_TARGET
