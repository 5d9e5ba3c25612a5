// Pairs of bfloat16 whose a is read where it lies: the same bits as from a packed copy, whatever the tails, and only
// where whole, aligned words can be read.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/integer.h"
#include "base/memory.h"
#include "base/test.h"
#include "base/types.h"
#include "gemm/gemm_kernels.h"

namespace obn::gemm {
namespace {

struct Values : test::Random {
  using test::Random::Random;
  uint16_t value() { return bfloat16_of_float(static_cast<float>(below(4001)) * 1e-3f - 2.0f); }
  float real() { return static_cast<float>(below(4001)) * 1e-3f - 2.0f; }
};

// a lies in words, or one value off them.
struct Case {
  size_t m, n, k, gap;
  std::vector<uint32_t> a_words;
  std::vector<uint16_t> b;
  std::vector<float> c;  // also what is added to

  Case(size_t m, size_t n, size_t k, size_t gap, Values& values) : m(m), n(n), k(k), gap(gap) {
    a_words.resize(m * (k + gap) / 2 + 2);
    for (uint32_t& word : a_words) word = static_cast<uint32_t>(values.value()) << 16 | values.value();
    for (size_t i = 0; i < k * n; ++i) b.push_back(values.value());
    for (size_t i = 0; i < m * n; ++i) c.push_back(values.real());
  }

  Product product(const void* a, std::vector<float>& result) const {
    result = c;
    Product p = {.m = m, .n = n, .k = k, .a = {a, k + gap, 1, BNNSDataTypeBFloat16},
                 .b = {b.data(), n, 1, BNNSDataTypeBFloat16}, .c = result.data(), .c_row = n};
    p.alpha = 0.75f;
    p.accumulate = true;
    return p;
  }

  // `packed` alone, which reads a where it lies if it can.
  std::vector<float> left_to_itself(const Packing& packing, const void* a) const {
    std::vector<float> result;
    packing.packed(product(a, result), {0, m, 0, n}, nullptr, nullptr, reinterpret_cast<float*>(scratch()));
    return result;
  }

  std::vector<float> from_packed(const Packing& packing, const void* a) const {
    std::vector<float> result;
    const Product p = product(a, result);
    const Steps steps(k, 2, packing.step_unit);
    const size_t rows = round_up(m, packing.row_unit);
    std::vector<float> room(rows * steps.all + 16);
    void* at = room.data();
    size_t bytes = room.size() * sizeof(float);
    float* packed_a = static_cast<float*>(std::align(kAlignment, rows * steps.all * sizeof(float), at, bytes));
    for (size_t first = 0; first < steps.all; first += steps.depth) {
      const size_t depth = steps.all - first < steps.depth ? steps.all - first : steps.depth;
      packing.pack_a(p, 0, m, first, depth, 0, 1, packed_a + first * rows);
    }
    packing.packed(p, {0, m, 0, n}, packed_a, nullptr, reinterpret_cast<float*>(scratch()));
    return result;
  }
};

bool same(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

void check(size_t m, size_t n, size_t k, size_t gap, bool is_in_place, Values& values) {
  const Case given(m, n, k, gap, values);
  const void* words = given.a_words.data();
  std::vector<float> result;
  CHECK(is_paired_a_in_place(given.product(words, result), n) == is_in_place, "(%zu, %zu, %zu), gap %zu", m, n, k, gap);
  std::vector<uint16_t> moved(2 * given.a_words.size() + 1);
  std::memcpy(moved.data() + 1, words, 4 * given.a_words.size());
  CHECK(!is_paired_a_in_place(given.product(moved.data() + 1, result), n), "(%zu, %zu, %zu) off words", m, n, k);
  for (const Packing* packing : {dot_pairs(), tile_pairs(), &model_pairs()}) {
    if (!packing) continue;
    const auto expected = given.from_packed(*packing, words);
    CHECK(same(given.left_to_itself(*packing, words), expected), "(%zu, %zu, %zu), gap %zu", m, n, k, gap);
    CHECK(same(given.left_to_itself(*packing, moved.data() + 1), expected), "(%zu, %zu, %zu) off words", m, n, k);
  }
}

}  // namespace

TEST(gemm_pairs_with_a_in_place_are_those_of_packed_a) {
  Values values{31};
  for (size_t m = 1; m <= 45; ++m) check(m, 1 + values.below(70), 2 + 2 * values.below(40), 0, true, values);
  for (size_t n = 1; n <= 70; ++n) check(1 + values.below(30), n, 2 + 2 * values.below(40), 2, true, values);
  for (size_t k = 2; k <= 80; k += 2) check(1 + values.below(30), 1 + values.below(70), k, 0, true, values);
  for (size_t k : {2 * kDepth - 2, 2 * kDepth + 2, 4 * kDepth + 6})
    for (size_t m : {1, 14, 29}) check(m, 35, k, 4, true, values);
}

TEST(gemm_pairs_pack_an_a_without_whole_words) {
  Values values{32};
  for (size_t k : {1, 7, 31, 65}) check(17, 40, k, 1, false, values);            // a last word that is half there
  for (size_t k : {2, 64}) check(17, 40, k, 1, false, values);                   // every second row is off
  check(17, 40, 1024, 0, false, values);                                         // rows half a page apart
  check(17, kFewColumns + 1, 64, 0, false, values);                              // enough columns to pay for packing
}

}  // namespace obn::gemm
