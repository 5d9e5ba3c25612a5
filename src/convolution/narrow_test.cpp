// Convolution of few input channels: every target against the reference loops.
#include "convolution/narrow.h"

#include "convolution/algorithm_test.h"

namespace obn::convolution::narrow {
namespace {

using namespace test;

const Passes<Kernels> passes = {targets, fits, work_bytes, forward, input_gradient, weight_gradient};

Problem make_problem(size_t n, size_t c, size_t o, Axis x, Axis y) { return {n, c, o, 1, x, y}; }

}  // namespace

TEST(narrow_every_width) {
  Random random{1};
  for (int64_t w = 1; w <= 50; ++w)
    for (int64_t stride : {1, 2})
      passes.check(make_problem(2, 1, 7, make_axis(w, 3, stride, 1, 1, 1), make_axis(5, 3, stride, 1, 1, 1)),
                    static_cast<size_t>(w % 3), random);
}

TEST(narrow_every_height) {
  Random random{2};
  for (int64_t h = 1; h <= 20; ++h)
    for (int64_t stride : {1, 2})
      passes.check(make_problem(1, 2, 5, make_axis(9, 3, stride, 1, 1, 1), make_axis(h, 3, stride, 1, 1, 1)), 0,
                    random);
}

TEST(narrow_random_geometry) {
  Random random{3};
  for (int round = 0; round < 600; ++round) {
    auto axis = [&] {
      const int64_t kernel = random.from({1, 2, 3, 3, 3, 4, 5, 5, 7, 7}), stride = random.from({1, 1, 1, 2, 2, 3, 4});
      const int64_t dilation = random.from({1, 1, 1, 2, 3});
      const int64_t before = static_cast<int64_t>(random.below(5)), after = static_cast<int64_t>(random.below(5));
      return make_axis(static_cast<int64_t>(random.between(1, 40)), kernel, stride, dilation, before, after);
    };
    const Axis x = axis(), y = axis();
    const size_t c = random.between(1, 4);
    if (c * static_cast<size_t>(x.kernel * y.kernel) > kMostTaps) continue;
    passes.check(make_problem(random.between(1, 3), c, random.between(1, 9), x, y),
                  random.below(3), random);
  }
}

// Planes that are done in bands, and a batch that is summed in several segments.
TEST(narrow_large_planes) {
  Random random{4};
  passes.check(make_problem(3, 1, 4, make_axis(200, 3, 1, 1, 1, 1), make_axis(150, 3, 1, 1, 1, 1)), 1, random);
  passes.check(make_problem(2, 2, 3, make_axis(151, 5, 2, 1, 2, 2), make_axis(131, 5, 2, 1, 2, 2)), 0, random);
  passes.check(make_problem(1, 1, 2, make_axis(99, 7, 1, 3, 9, 9), make_axis(120, 7, 3, 2, 6, 6)), 0, random);
}

// Samples that are summed several at a time, the last of a segment alone.
TEST(narrow_many_samples) {
  Random random{7};
  for (size_t n : {25, 41})
    for (size_t gap : {0, 1})
      passes.check(make_problem(n, 1, 4, make_axis(9, 3, 1, 1, 1, 1), make_axis(7, 3, 1, 1, 1, 1)), gap, random);
}

TEST(narrow_infinity_stays_local) {
  Random random{5};
  for (int64_t w : {5, 7, 9, 17, 20, 33})
    for (int64_t stride : {1, 2})
      passes.check_infinity(
          make_problem(1, 2, 3, make_axis(w, 3, stride, 1, 0, 0), make_axis(7, 3, stride, 1, 0, 0)), random);
}

TEST(narrow_same_bits_for_any_threads) {
  Random random{6};
  for (size_t c : {1, 3})
    passes.check_threads(make_problem(9, c, 20, make_axis(45, 3, 1, 1, 1, 1), make_axis(50, 3, 2, 1, 1, 1)), random);
}

TEST(narrow_refuses_what_it_cannot_do) {
  const Axis axis = make_axis(8, 3, 1, 1, 1, 1);
  CHECK(!fits({1, 4, 4, 2, axis, axis}), "two groups");
  CHECK(!fits({1, 64, 64, 1, axis, axis}), "many channels");
  const Axis large = make_axis(30, 9, 1, 1, 4, 4);
  CHECK(!fits({1, 1, 4, 1, large, large}), "more taps than planned for");
  CHECK(!fits({1, 1, 10000, 1, axis, axis}), "more sums than scratch holds");
  const Axis wide = make_axis(int64_t{1} << 20, 3, 1, 1, 1, 1);
  CHECK(!fits({1, 1, 4, 1, wide, axis}), "a row that does not fit the stage");
}

TEST(narrow_fits_where_it_wins) {
  const Axis axis = make_axis(20, 3, 1, 1, 1, 1), halving = make_axis(20, 3, 2, 1, 1, 1);
  const Problem digits = {32, 1, 32, 1, axis, axis}, colours = {32, 3, 32, 1, axis, axis};
  CHECK(narrow_forward.fits(digits) && narrow_input_gradient.fits(digits) && narrow_weight_gradient.fits(digits),
        "one channel");
  CHECK(narrow_forward.fits(colours) && !narrow_input_gradient.fits(colours) && !narrow_weight_gradient.fits(colours),
        "three channels");
  CHECK(narrow_input_gradient.fits({32, 3, 32, 1, halving, halving}), "three channels, stride 2");
  CHECK(!narrow_forward.fits({32, 3, 3, 1, axis, axis}) && !narrow_input_gradient.fits({32, 3, 3, 1, axis, axis}) &&
            narrow_weight_gradient.fits({32, 3, 3, 1, axis, axis}),
        "three outputs");
}

}  // namespace obn::convolution::narrow
