// The operations of simd/vec.h that have instructions of their own, against what they say they do: for the target that
// every processor of this kind has (NEON on ARM, SSE2 on x86-64).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/test.h"

#define OBN_TARGET vec_test
#include "simd/convert.h"
#include "simd/tile.h"

namespace obn::vec_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

struct Values : test::Random {
  using test::Random::Random;
  float one() {  // of many sizes, so that the order of sums shows
    constexpr float kSpecial[] = {0.0f, -0.0f, kNan, kInfinity, -kInfinity};
    if (below(12) == 0) return kSpecial[below(5)];
    return std::ldexp(static_cast<float>(value()), static_cast<int>(below(20)));
  }
  F vector() {
    float lanes[kLanes];
    for (float& lane : lanes) lane = one();
    return load(lanes);
  }
};

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); }

TEST(vectors_are_loaded_and_stored_in_part) {
  Values values{1};
  for (size_t n = 0; n <= kLanes; ++n) {
    float from[kLanes], to[kLanes];
    for (size_t i = 0; i < kLanes; ++i) from[i] = static_cast<float>(i + 1), to[i] = -1.0f;
    const F rest = splat(9.0f), v = load_first(from, n, rest), zeros = load_first(from, n);
    store_first(to, load(from), n);
    for (size_t i = 0; i < kLanes; ++i) {
      CHECK(v[i] == (i < n ? from[i] : 9.0f), "%zu of %zu: %g", i, n, v[i]);
      CHECK(same(zeros[i], i < n ? from[i] : 0.0f), "%zu of %zu: %g", i, n, zeros[i]);
      CHECK(to[i] == (i < n ? from[i] : -1.0f), "%zu of %zu: %g stored", i, n, to[i]);
    }
    const uint16_t halves[] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint16_t first[2 * kLanes];
    copy_first(halves, n, first);
    for (size_t i = 0; i < 2 * kLanes; ++i) CHECK(first[i] == (i < n ? halves[i] : 0), "half %zu of %zu", i, n);
  }
}

TEST(vectors_give_one_number_in_a_fixed_tree) {
  Values values{2};
  for (int round = 0; round < 1000; ++round) {
    const F v = values.vector();
    float total[kLanes], most[kLanes];
    store(total, v);
    store(most, v);
    for (size_t half = kLanes / 2; half > 0; half /= 2)
      for (size_t i = 0; i < half; ++i) {
        total[i] += total[i + half];
        most[i] = most[i] > most[i + half] ? most[i] : most[i + half];
      }
    CHECK(same(sum(v), total[0]), "sum %a, expected %a", sum(v), total[0]);
    CHECK(same(largest(v), most[0]), "largest %a, expected %a", largest(v), most[0]);
  }
  for (size_t i = 0; i < kLanes; ++i) {
    I mask{};
    CHECK(!any(mask), "no lane");
    mask[i] = -1;
    CHECK(any(mask), "lane %zu", i);
  }
}

TEST(vectors_are_computed_lane_by_lane) {
  Values values{3};
  for (int round = 0; round < 1000; ++round) {
    const F a = values.vector(), b = values.vector(), c = values.vector();
    const F lower = min(a, b), upper = max(a, b), root = sqrt(a), fused = fma(a, b, c);
    for (size_t i = 0; i < kLanes; ++i) {
      CHECK(same(lower[i], a[i] < b[i] ? a[i] : b[i]), "min of %a, %a is %a", a[i], b[i], lower[i]);
      CHECK(same(upper[i], a[i] > b[i] ? a[i] : b[i]), "max of %a, %a is %a", a[i], b[i], upper[i]);
      CHECK(same(root[i], std::sqrt(a[i])), "root of %a is %a", a[i], root[i]);
#if defined(__ARM_FEATURE_FMA)
      CHECK(same(fused[i], std::fma(a[i], b[i], c[i])), "%a * %a + %a is %a", a[i], b[i], c[i], fused[i]);
#else
      CHECK(same(fused[i], a[i] * b[i] + c[i]), "%a * %a + %a is %a", a[i], b[i], c[i], fused[i]);
#endif
    }
  }
}

TEST(values_side_by_side_are_multiplied_as_single_ones) {
  Values values{4};
  float a[12];
  for (float& v : a) v = values.one();
  const F w = values.vector(), sum = values.vector();
  const SideBySide<FusedStep, 12> twelve(a);
  const SideBySide<FusedStep, 7> seven(a);
  const SideBySide<FusedStep, 1> single(a);
  for (size_t i = 0; i < 12; ++i) {
    const F expected = fma(splat(a[i]), w, sum), got = fma(twelve[i], w, sum);
    const F of_seven = fma(seven[i < 7 ? i : 6], w, sum), of_one = fma(single[0], w, sum);
    for (size_t j = 0; j < kLanes; ++j) {
      CHECK(same(got[j], expected[j]), "%zu", i);
      if (i < 7) CHECK(same(of_seven[j], expected[j]), "%zu of seven", i);
      if (i == 0) CHECK(same(of_one[j], expected[j]), "one");
    }
  }
}

}  // namespace
}  // namespace obn::vec_test
