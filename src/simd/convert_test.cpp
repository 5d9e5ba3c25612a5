// Rows of halves to and from floats, on every target: every word widened and narrowed back, and every place where
// narrowing turns from one word to the next. Whole vectors and the values behind the last one take different ways.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/test.h"
#include "base/types.h"

namespace obn {
namespace portable {
void load_row(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);
void store_row(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
}  // namespace portable
#if defined(OBN_X86)
namespace avx2 {
void load_row(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);
void store_row(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
}  // namespace avx2
namespace avx512 {
void load_row(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);
void store_row(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
}  // namespace avx512
#endif

namespace {

struct Rows {
  void (*load)(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);
  void (*store)(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
};
constexpr Rows kPortable = {portable::load_row, portable::store_row};
#if defined(OBN_X86)
constexpr Rows kAvx2 = {avx2::load_row, avx2::store_row}, kAvx512 = {avx512::load_row, avx512::store_row};
constexpr Targets<Rows> kRows = {&kPortable, &kAvx2, &kAvx512};
#else
constexpr Targets<Rows> kRows = {&kPortable, nullptr, nullptr};
#endif

constexpr BNNSDataType kHalves[] = {BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
constexpr uint16_t kUntouched = 0x5a5a;

// One of the two types by its definition: what its words stand for, and the word that is nearest to a number.
struct Half {
  BNNSDataType type;
  int fraction_bits, least_exponent;  // of the mantissa, and of the smallest normal number
  uint16_t infinity;
  std::vector<double> magnitudes;  // of the words from 0 to infinity, which counts as what would come next

  explicit Half(BNNSDataType type)
      : type(type), fraction_bits(type == BNNSDataTypeFloat16 ? 10 : 7),
        least_exponent(type == BNNSDataTypeFloat16 ? -14 : -126),
        infinity(type == BNNSDataTypeFloat16 ? 0x7c00 : 0x7f80) {
    for (int word = 0; word <= infinity; ++word) {
      const int exponent = word >> fraction_bits, one = 1 << fraction_bits, fraction = word & (one - 1);
      magnitudes.push_back(std::ldexp(exponent == 0 ? fraction : one + fraction,
                                      std::max(exponent - 1, 0) + least_exponent - fraction_bits));
    }
  }
  bool is_nan(uint16_t word) const { return (word & 0x7fff) > infinity; }
  bool is_quiet_nan(uint16_t word) const { return is_nan(word) && (word >> (fraction_bits - 1) & 1); }
  double value_of(uint16_t word) const {
    const size_t k = word & 0x7fff;
    const double magnitude = k == infinity ? std::numeric_limits<double>::infinity() : magnitudes[k];
    return word & 0x8000 ? -magnitude : magnitude;
  }
  uint16_t nearest(float v) const {  // v is a number
    const double x = std::fabs(static_cast<double>(v));
    const size_t above = static_cast<size_t>(std::upper_bound(magnitudes.begin(), magnitudes.end(), x) -
                                             magnitudes.begin());
    size_t word = above - 1;
    if (above < magnitudes.size()) {
      const double down = x - magnitudes[word], up = magnitudes[above] - x;
      if (up < down || (up == down && word % 2 == 1)) word = above;
    }
    return static_cast<uint16_t>(word | (std::signbit(v) ? 0x8000 : 0));
  }
};

// All words, in order.
std::vector<uint16_t> all_words() {
  std::vector<uint16_t> words(65536);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i);
  return words;
}

// Every number of the type, the middle between it and the next one, and the floats beside both; with either sign.
std::vector<float> turning_points(const Half& half) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> all = {kInfinity, -kInfinity, std::numeric_limits<float>::max()};
  for (size_t k = 0; k < half.infinity; ++k) {
    const double here = half.magnitudes[k], next = half.magnitudes[k + 1];
    for (double x : {here, (here + next) / 2}) {
      const float exact = static_cast<float>(x);
      for (float v : {std::nextafter(exact, -kInfinity), exact, std::nextafter(exact, kInfinity)}) {
        all.push_back(v);
        all.push_back(-v);
      }
    }
  }
  return all;
}

}  // namespace

TEST(convert_every_half_is_widened_and_narrowed_back) {
  const std::vector<uint16_t> words = all_words();
  for (const auto& target : test::all_targets(kRows)) {
    for (BNNSDataType type : kHalves) {
      const Half half(type);
      std::vector<float> wide(words.size());
      std::vector<uint16_t> back(words.size());
      target.kernels->load(type, words.data(), 1, words.size(), wide.data());
      target.kernels->store(type, back.data(), 1, wide.size(), wide.data());
      for (size_t i = 0; i < words.size(); ++i) {
        const uint16_t word = words[i];
        if (half.is_nan(word)) {
          CHECK(std::isnan(wide[i]) && half.is_quiet_nan(back[i]) && (back[i] & 0x8000) == (word & 0x8000),
                "%s on %s: the NaN 0x%x gave %g and 0x%x", name_of(type), target.name, word, wide[i], back[i]);
        } else {
          CHECK(wide[i] == half.value_of(word) && std::signbit(wide[i]) == (word >= 0x8000) && back[i] == word,
                "%s on %s: 0x%x gave %g and 0x%x", name_of(type), target.name, word, wide[i], back[i]);
        }
      }
    }
  }
}

TEST(convert_narrows_to_the_nearest_half) {
  for (BNNSDataType type : kHalves) {
    const Half half(type);
    const std::vector<float> values = turning_points(half);
    std::vector<uint16_t> expected;
    for (float v : values) expected.push_back(half.nearest(v));
    for (const auto& target : test::all_targets(kRows)) {
      for (size_t stride : {1, 3}) {
        std::vector<uint16_t> got(stride * values.size());
        target.kernels->store(type, got.data(), stride, values.size(), values.data());
        for (size_t i = 0; i < values.size(); ++i)
          CHECK(got[i * stride] == expected[i], "%s on %s, stride %zu: %a became 0x%x, not 0x%x", name_of(type),
                target.name, stride, values[i], got[i * stride], expected[i]);
      }
    }
  }
}

TEST(convert_makes_quiet_what_is_not_a_number) {
  // Also where only bits that are cut off tell it from infinity.
  std::vector<float> values;
  for (uint32_t sign : {0u, 0x80000000u})
    for (uint32_t fraction = 1; fraction < 0x800000; fraction = fraction * 3 / 2 + 1)
      values.push_back(std::bit_cast<float>(sign | 0x7f800000 | fraction));
  while (values.size() % 16 != 0) values.push_back(values.back());
  for (const auto& target : test::all_targets(kRows)) {
    for (BNNSDataType type : kHalves) {
      const Half half(type);
      std::vector<uint16_t> got(values.size());
      target.kernels->store(type, got.data(), 1, values.size(), values.data());
      for (size_t i = 0; i < values.size(); ++i)
        CHECK(half.is_quiet_nan(got[i]) && (got[i] >= 0x8000) == std::signbit(values[i]), "%s on %s: 0x%x became 0x%x",
              name_of(type), target.name, std::bit_cast<uint32_t>(values[i]), got[i]);
    }
  }
}

TEST(convert_rows_of_any_length_and_place) {
  const std::vector<uint16_t> words = all_words();
  for (const auto& target : test::all_targets(kRows)) {
    for (BNNSDataType type : kHalves) {
      for (size_t stride : {1, 2}) {
        for (size_t n = 0; n <= 40; ++n) {
          const size_t first = 0x3c01 + n;  // numbers in both types
          std::vector<float> wide(n + 1, -1.0f);
          std::vector<uint16_t> back(1 + n * stride + 1, kUntouched);
          target.kernels->load(type, words.data() + first, stride, n, wide.data());
          target.kernels->store(type, back.data() + 1, stride, n, wide.data());
          bool is_right = wide[n] == -1.0f;
          for (size_t i = 0; i < back.size(); ++i) {
            const bool is_value = i >= 1 && i < back.size() - 1 && (i - 1) % stride == 0;
            is_right = is_right && back[i] == (is_value ? words[first + i - 1] : kUntouched);
          }
          CHECK(is_right, "%s on %s: %zu values at stride %zu", name_of(type), target.name, n, stride);
        }
      }
    }
  }
}

}  // namespace obn
