// Products of half values that take a way of their own: the same bits as from floats of the same values, from any
// address and for any number of threads.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/memory.h"
#include "base/test.h"
#include "base/types.h"
#include "gemm/gemm_kernels.h"

namespace obn::gemm {
namespace {

constexpr BNNSDataType kHalves[] = {BNNSDataTypeFloat16, BNNSDataTypeBFloat16};

// a (m, k), b (k, n) in runs along n. Every type holds the values, but their sums are rounded: the order shows.
struct Case {
  size_t m, n, k, gap;  // between rows of b
  std::vector<float> a, b;

  Case(size_t m, size_t n, size_t k, size_t gap, test::Random& random) : m(m), n(n), k(k), gap(gap) {
    const auto value = [&] {
      const size_t scale = size_t{1} << random.below(10);
      const float size = static_cast<float>(128 + random.below(128)) / static_cast<float>(scale);
      return random.below(2) ? size : -size;
    };
    for (size_t i = 0; i < m * k; ++i) a.push_back(value());
    for (size_t i = 0; i < k * (n + gap); ++i) b.push_back(value());
  }

  // With c set to all zeros.
  Product product(Operand a_operand, Operand b_operand, std::vector<float>& c) const {
    c.assign(m * n, 0.0f);
    return {.m = m, .n = n, .k = k, .a = a_operand, .b = b_operand, .c = c.data(), .c_row = n};
  }
};

// The same values behind some others.
std::vector<uint16_t> halves(const std::vector<float>& values, BNNSDataType type, size_t before) {
  std::vector<uint16_t> all(before);
  for (float v : values) all.push_back(type == BNNSDataTypeFloat16 ? float16_of_float(v) : bfloat16_of_float(v));
  return all;
}

bool same(const std::vector<float>& x, const std::vector<float>& y) {
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

void check_widened(const Case& given, BNNSDataType type) {
  const std::vector<uint16_t> b = halves(given.b, type, 0);
  const size_t b_row = given.n + given.gap;
  std::vector<float> expected, got;
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Packing& floats = targets.at(isa).floats;
    const Block all = {0, given.m, 0, given.n};
    const Operand a = {given.a.data(), given.k, 1};
    float* work = reinterpret_cast<float*>(scratch());
    floats.packed(given.product(a, {given.b.data(), b_row, 1}, expected), all, nullptr, nullptr, work);
    floats.packed(given.product(a, {b.data(), b_row, 1, type}, got), all, nullptr, nullptr, work);
    CHECK(same(got, expected), "(%zu, %zu, %zu) on %s: other bits", given.m, given.n, given.k, name_of(isa));
  }
}

// run() with 1, 2 and 5 threads, from addresses of every kind.
void check_run(const Case& given, BNNSDataType type) {
  std::vector<float> expected, got;
  for (size_t before : {0, 1, 2}) {
    const std::vector<uint16_t> a = halves(given.a, type, before), b = halves(given.b, type, before);
    for (size_t threads : {1, 2, 5}) {
      const Product p = given.product({a.data() + before, given.k, 1, type},
                                      {b.data() + before, given.n + given.gap, 1, type}, got);
      run(p, threads, workspace(work_bytes(p)));
      if (expected.empty()) expected = got;
      CHECK(same(got, expected), "(%zu, %zu, %zu), %zu threads, %zu values before", given.m, given.n, given.k, threads,
            before);
    }
  }
}

}  // namespace

TEST(gemm_halves_converted_for_every_panel_are_those_of_floats) {
  test::Random random{41};
  for (BNNSDataType type : kHalves) {
    for (size_t m = 1; m <= 45; ++m)
      check_widened(Case(m, 1 + random.below(100), 1 + random.below(70), random.below(3), random), type);
    for (size_t n = 1; n <= 70; ++n) check_widened(Case(29, n, 9, random.below(3), random), type);
    for (size_t k : {kDepth - 1, kDepth + 1, 2 * kDepth + 3})
      for (size_t m : {15, 28, 42, 43}) check_widened(Case(m, 75, k, 1, random), type);
  }
}

TEST(gemm_halves_same_bits_from_any_address_and_for_any_number_of_threads) {
  test::Random random{42};
  for (BNNSDataType type : kHalves)
    for (size_t m : {7, 8, 15, 33, 42, 60})
      for (size_t n : {1, 6, 10, 15, 31, 32, 70})
        for (size_t k : {64, 301, 1568}) check_run(Case(m, n, k, 0, random), type);
}

}  // namespace obn::gemm
