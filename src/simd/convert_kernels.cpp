// Rows of the three float types to and from packed float32 and past the caches, once per target.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/convert.h"

namespace obn::OBN_TARGET {

void load_row(BNNSDataType type, const void* p, size_t stride, size_t n, float* row) {
  if (type == BNNSDataTypeFloat32) {
    const float* from = static_cast<const float*>(p);
    if (stride == 1) {
      std::memcpy(row, from, n * sizeof(float));
    } else {
      for (size_t i = 0; i < n; ++i) row[i] = from[i * stride];
    }
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(p);
  const bool brain = type == BNNSDataTypeBFloat16;
  size_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) store(row + i, brain ? load_bfloat16(from + i) : load_float16(from + i));
  }
  for (; i < n; ++i) row[i] = brain ? float_of_bfloat16(from[i * stride]) : float_of_float16(from[i * stride]);
}

void store_row(BNNSDataType type, void* p, size_t stride, size_t n, const float* row) {
  if (type == BNNSDataTypeFloat32) {
    float* to = static_cast<float*>(p);
    if (stride == 1) {
      std::memcpy(to, row, n * sizeof(float));
    } else {
      for (size_t i = 0; i < n; ++i) to[i * stride] = row[i];
    }
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(p);
  const bool brain = type == BNNSDataTypeBFloat16;
  size_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) {
      if (brain) {
        store_bfloat16(to + i, load(row + i));
      } else {
        store_float16(to + i, load(row + i));
      }
    }
  }
  for (; i < n; ++i) to[i * stride] = brain ? bfloat16_of_float(row[i]) : float16_of_float(row[i]);
}

void stream_row(const float* row, float* to, size_t n) {
  size_t i = floats_before(to, sizeof(F));
  if (i > n) i = n;
  if (i > 0) store_first(to, load_first(row, i), i);
  for (; i + kLanes <= n; i += kLanes) stream(to + i, load(row + i));
  if (i < n) store_first(to + i, load_first(row + i, n - i), n - i);
}

}  // namespace obn::OBN_TARGET
