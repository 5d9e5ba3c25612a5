// Layers with an input of one value per row or channel against the plain loops. All values are small whole numbers, so
// that every sum is exact.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arithmetic/arithmetic.h"
#include "base/test.h"
#include "openbnns/openbnns.h"

using namespace obn;
using namespace obn::arithmetic;

namespace {

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  std::vector<float> wholes(size_t n) {
    std::vector<float> all(n);
    for (float& v : all) v = static_cast<float>(between(0, 8)) - 4.0f;
    return all;
  }
};

// A place `shift` floats behind a cache line in a vector that is long enough for `n` from there on.
float* placed(std::vector<float>& memory, size_t n, size_t shift) {
  memory.assign(n + 64, 9.0f);
  float* p = memory.data() + 16;
  while (reinterpret_cast<uintptr_t>(p) % 64 != 4 * shift) ++p;
  return p;
}

// (W, H, C) of the input of all values and of the other one.
struct Shape {
  size_t x[3], b[3];
  BNNSDescriptorType role;
  size_t batch;
};

BNNSNDArrayDescriptor image(const size_t (&size)[3], float* data) {
  BNNSNDArrayDescriptor d{};
  d.layout = BNNSDataLayoutImageCHW;
  d.data_type = BNNSDataTypeFloat32;
  std::copy_n(size, 3, d.size);
  d.data = data;
  return d;
}

// Both ways, with the input of few values first or second.
void check_layer(const Shape& s, Function function, bool few_first, bool accumulates, size_t shift, Random& random) {
  const size_t count = s.x[0] * s.x[1] * s.x[2], few = s.b[0] * s.b[1] * s.b[2];
  const size_t few_all = few * (s.role == BNNSSample ? s.batch : 1), all = count * s.batch;
  const std::vector<float> x = random.wholes(all), b = random.wholes(few_all);
  std::vector<float> dy = random.wholes(all), memory[2], db(few_all, 3.0f);
  float *y = placed(memory[0], all, shift), *dx = placed(memory[1], all, shift);
  std::fill_n(dx, all, 5.0f);
  BNNSArithmeticBinary operands{};
  operands.in1 = image(few_first ? s.b : s.x, nullptr);
  operands.in2 = image(few_first ? s.x : s.b, nullptr);
  operands.out = image(s.x, nullptr);
  operands.in1_type = few_first ? s.role : BNNSSample;
  operands.in2_type = few_first ? BNNSSample : s.role;
  operands.out_type = BNNSSample;
  BNNSLayerParametersArithmetic parameters{};
  parameters.arithmetic_function = function;
  parameters.arithmetic_function_fields = &operands;
  BNNSFilter filter = BNNSFilterCreateLayerArithmetic(&parameters, nullptr);
  CHECK(filter, "%s", obn_last_error());
  if (!filter) return;
  const void* in[] = {few_first ? b.data() : x.data(), few_first ? x.data() : b.data()};
  CHECK(BNNSArithmeticFilterApplyBatch(filter, s.batch, 2, in, nullptr, y, 0) == 0, "%s", obn_last_error());
  BNNSNDArrayDescriptor of_dy = image(s.x, dy.data()), of_dx = image(s.x, dx), of_db = image(s.b, db.data());
  if (accumulates) of_db.flags = BNNSNDArrayFlagBackpropAccumulate;
  BNNSNDArrayDescriptor* deltas[] = {few_first ? &of_db : &of_dx, few_first ? &of_dx : &of_db};
  CHECK(BNNSArithmeticFilterApplyBackwardBatch(filter, s.batch, 2, in, nullptr, deltas, nullptr, nullptr, 0, &of_dy,
                                               0) == 0, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  std::vector<double> sums(few_all, accumulates ? 3.0 : 0.0);
  size_t wrong = 0;
  for (size_t i = 0; i < all; ++i) {
    const size_t within = i % count;
    const size_t at[] = {within % s.x[0], within / s.x[0] % s.x[1], within / s.x[0] / s.x[1]};
    size_t j = s.role == BNNSSample ? i / count * few : 0, stride = 1;
    for (size_t k = 0; k < 3; stride *= s.b[k++]) j += (s.b[k] == 1 ? 0 : at[k]) * stride;
    const bool multiplies = function == BNNSArithmeticMultiply;
    wrong += y[i] != (multiplies ? x[i] * b[j] : x[i] + b[j]) || dx[i] != (multiplies ? dy[i] * b[j] : dy[i]);
    sums[j] += static_cast<double>(multiplies ? dy[i] * x[i] : dy[i]);
  }
  size_t wrong_sums = 0;
  for (size_t j = 0; j < few_all; ++j) wrong_sums += db[j] != static_cast<float>(sums[j]);
  CHECK(wrong == 0 && wrong_sums == 0, "%s (%zu, %zu, %zu) with (%zu, %zu, %zu), few %s%s: %zu values, %zu sums",
        name_of(function), s.x[2], s.x[1], s.x[0], s.b[2], s.b[1], s.b[0], few_first ? "first" : "second",
        accumulates ? ", accumulated" : "", wrong, wrong_sums);
}

}  // namespace

TEST(arithmetic_layers_of_one_value_per_row_match_plain_loops) {
  Random random(12);
  constexpr Shape kShapes[] = {
      {{56, 56, 64}, {1, 1, 64}, BNNSParameter, 3},   {{56, 56, 64}, {1, 1, 64}, BNNSSample, 3},
      {{56, 56, 64}, {1, 56, 64}, BNNSSample, 2},     {{56, 56, 64}, {1, 56, 64}, BNNSParameter, 3},
      {{17, 9, 5}, {1, 9, 5}, BNNSSample, 3},         {{17, 9, 5}, {1, 1, 5}, BNNSParameter, 4},
      {{15, 9, 5}, {1, 9, 1}, BNNSParameter, 2},      {{8, 9, 5}, {1, 1, 5}, BNNSParameter, 2},
      {{131, 151, 3}, {1, 1, 3}, BNNSParameter, 2},   {{131, 151, 3}, {1, 1, 1}, BNNSParameter, 2},
      {{100, 3, 1}, {1, 3, 1}, BNNSParameter, 1},     {{16, 1, 1500}, {1, 1, 1500}, BNNSParameter, 2},
      {{20000, 1, 1}, {1, 1, 1}, BNNSSample, 3},      {{70, 1, 2000}, {1, 1, 2000}, BNNSParameter, 2},
      {{110, 100, 130}, {1, 100, 130}, BNNSSample, 3}, {{110, 100, 130}, {1, 1, 130}, BNNSParameter, 3}};  // streamed
  for (const Shape& shape : kShapes)
    for (Function function : {BNNSArithmeticAdd, BNNSArithmeticMultiply})
      for (bool few_first : {false, true})
        check_layer(shape, function, few_first, random.below(2) == 0, random.below(16), random);
}
