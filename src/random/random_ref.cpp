// The obvious formulas (docs/interface/embedding_dropout_random.md, section 3).
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "random/random.h"

namespace obn::random::ref {

double uniform(uint32_t v, double low, double high) { return low + (high - low) * std::ldexp(v, -32); }

void normal(const uint32_t* v, double mean, double deviation, double* y) {
  const double u = std::ldexp(v[0] + 0.5, -32), angle = 2.0 * std::numbers::pi * std::ldexp(v[1], -32);
  const double radius = std::sqrt(-2.0 * std::log(u));
  y[0] = mean + deviation * radius * std::cos(angle);
  y[1] = mean + deviation * radius * std::sin(angle);
}

int64_t integer(const uint32_t* v, int64_t low, uint64_t range) {
  if (values_for(range) == 1) return low + static_cast<int64_t>(static_cast<uint64_t>(v[0]) * range >> 32);
  // v·range / 2^64, from the two halves of range
  const uint64_t high = range >> 32, rest = range & 0xffffffff;
  const uint64_t carry = (v[0] * rest >> 32) + (v[1] * rest & 0xffffffff) + (v[0] * high & 0xffffffff);
  const uint64_t product = v[1] * high + (v[1] * rest >> 32) + (v[0] * high >> 32) + (carry >> 32);
  return static_cast<int64_t>(static_cast<uint64_t>(low) + product);
}

size_t category(uint32_t v, const double* probabilities, size_t categories) {
  double total = 0.0, sum = 0.0;
  for (size_t k = 0; k < categories; ++k) total += probabilities[k];
  const double mark = std::ldexp(v, -32) * total;
  for (size_t k = 0; k < categories; ++k) {
    sum += probabilities[k];
    if (sum > mark) return k;
  }
  return categories;
}

}  // namespace obn::random::ref
