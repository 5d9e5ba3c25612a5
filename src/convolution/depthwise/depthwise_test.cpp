// Depthwise convolution: every target against the reference loops.
#include <cstddef>
#include <cstdint>

#include "convolution/depthwise/depthwise.h"

#include "convolution/algorithm_test.h"

namespace obn::convolution::depthwise {
namespace {

using namespace test;

const Passes<Kernels> passes = {targets, fits, work_bytes, forward, input_gradient, weight_gradient};

Problem make_problem(size_t n, size_t c, size_t m, Axis x, Axis y) { return {n, c, c * m, c, x, y}; }

}  // namespace

TEST(depthwise_every_width) {
  Random random{1};
  for (int64_t w = 1; w <= 50; ++w)
    for (int64_t stride : {1, 2})
      passes.check(make_problem(2, 3, 1, make_axis(w, 3, stride, 1, 1, 1), make_axis(5, 3, stride, 1, 1, 1)),
                    static_cast<size_t>(w % 3), random);
}

TEST(depthwise_every_height) {
  Random random{2};
  for (int64_t h = 1; h <= 20; ++h)
    for (int64_t stride : {1, 2})
      passes.check(make_problem(1, 2, 1, make_axis(9, 3, stride, 1, 1, 1), make_axis(h, 3, stride, 1, 1, 1)), 0,
                    random);
}

TEST(depthwise_random_geometry) {
  Random random{3};
  for (int round = 0; round < 600; ++round) {
    const Axis x = random_axis(random), y = random_axis(random);
    passes.check(make_problem(random.between(1, 3), random.between(2, 5), random.between(1, 3), x, y),
                  random.below(3), random);
  }
}

// Planes that are done in bands, and a batch that is summed in several segments.
TEST(depthwise_large_planes) {
  Random random{4};
  passes.check(make_problem(3, 1, 1, make_axis(200, 3, 1, 1, 1, 1), make_axis(150, 3, 1, 1, 1, 1)), 1, random);
  passes.check(make_problem(2, 2, 1, make_axis(151, 5, 2, 1, 2, 2), make_axis(131, 5, 2, 1, 2, 2)), 0, random);
  passes.check(make_problem(1, 2, 2, make_axis(99, 7, 1, 3, 9, 9), make_axis(120, 7, 3, 2, 6, 6)), 0, random);
}

TEST(depthwise_infinity_stays_local) {
  Random random{5};
  for (int64_t w : {5, 7, 9, 17, 20, 33})
    for (int64_t stride : {1, 2})
      passes.check_infinity(
          make_problem(1, 2, 1, make_axis(w, 3, stride, 1, 0, 0), make_axis(7, 3, stride, 1, 0, 0)), random);
}

// Nor does it leave the band of rows it was met in.
TEST(depthwise_infinity_in_large_planes) {
  Random random{7};
  for (int round = 0; round < 8; ++round)
    passes.check_infinity(make_problem(1, 2, 1, make_axis(150, 3, 1, 1, 0, 0), make_axis(75, 3, 1, 1, 0, 0)), random);
}

TEST(depthwise_every_padding_of_3x3) {
  Random random{8};
  for (int64_t before = 0; before <= 3; ++before)
    for (int64_t after = 0; after <= 3; ++after)
      for (int64_t size : {1, 2, 3, 16, 19, 33})
        passes.check(make_problem(2, 2, 1 + random.below(2), make_axis(size, 3, 1, 1, before, after),
                                  make_axis(size / 2 + 1, 3, 1, 1, after, before)),
                     random.below(3), random);
}

TEST(depthwise_same_bits_for_any_threads) {
  Random random{6};
  for (size_t c : {2, 40})
    passes.check_threads(make_problem(9, c, 2, make_axis(45, 3, 1, 1, 1, 1), make_axis(50, 3, 2, 1, 1, 1)), random);
}

TEST(depthwise_refuses_what_it_cannot_do) {
  const Axis axis = make_axis(8, 3, 1, 1, 1, 1);
  CHECK(!fits({1, 4, 4, 1, axis, axis}), "one group of four channels");
  CHECK(!fits({1, 4, 4, 2, axis, axis}), "two channels per group");
  CHECK(!fits({1, 1, 8, 1, axis, axis}), "one channel, many outputs");
  const Axis tall = make_axis(300, 129, 1, 1, 0, 0);
  CHECK(!fits({1, 4, 4, 4, axis, tall}), "more taps than planned for");
  const Axis wide = make_axis(int64_t{1} << 20, 3, 1, 1, 1, 1);
  CHECK(!fits({1, 4, 4, 4, wide, axis}), "a row that does not fit the stage");
}

}  // namespace obn::convolution::depthwise
