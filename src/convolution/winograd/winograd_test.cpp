// Winograd: every target against the formulas in float64, its error against that of a plain float32 loop, how far a
// NaN or a huge value reaches, and the same bits for any number of threads.
#include "convolution/winograd/winograd.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "convolution/algorithm_test.h"

namespace obn::convolution {
namespace {

using test::Work;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kGap = 777.0f;  // lies between the values; nobody may read it as one or touch it

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  double unit() { return (static_cast<double>(next()) + 0.5) * 0x1p-31; }
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log(unit()));
    return static_cast<float>(radius * std::cos(6.283185307179586 * unit()));
  }
};

std::vector<float> normals(size_t n, Random& random) {
  std::vector<float> values(n);
  for (float& v : values) v = random.normal();
  return values;
}

// (N, C, H, W) with gaps after rows, planes and samples, beginning `offset` values after an aligned address.
struct Array {
  size_t n, c, h, w;
  Planes planes;
  std::vector<float> memory;

  Array(size_t n, size_t c, size_t h, size_t w, size_t gap = 0, size_t offset = 0) : n(n), c(c), h(h), w(w) {
    planes.row = w + gap;
    planes.plane = planes.row * h + 2 * gap;
    planes.sample = planes.plane * c + 3 * gap;
    memory.assign(planes.sample * n + offset, kGap);
    planes.data = memory.data() + offset;
  }
  Array(const Array& other)
      : n(other.n), c(other.c), h(other.h), w(other.w), planes(other.planes), memory(other.memory) {
    planes.data = memory.data() + (other.planes.data - other.memory.data());
  }
  Array& operator=(const Array&) = delete;

  size_t count() const { return n * c * h * w; }
  float& at(size_t in, size_t ic, size_t y, size_t x) {
    return planes.data[in * planes.sample + ic * planes.plane + y * planes.row + x];
  }
  float& operator[](size_t i) { return at(i / (w * h * c), i / (w * h) % c, i / w % h, i % w); }
  Array& fill(Random& random) {
    for (size_t i = 0; i < count(); ++i) (*this)[i] = random.normal();
    return *this;
  }
};

using Target = ::obn::test::Target<winograd::Kernels>;
std::vector<Target> all_targets() { return ::obn::test::all_targets(winograd::targets); }

struct Shape {
  size_t n, c, o;
  int64_t h, w;
  int64_t up = 1, left = 1;
  int64_t p = 0, q = 0;  // 0: as many as there are with the same padding behind
  size_t gap = 0, offset = 0;
};

Problem problem_of(const Shape& s) {
  const int64_t p = s.p ? s.p : s.h + 2 * s.up - 2, q = s.q ? s.q : s.w + 2 * s.left - 2;
  return {s.n, s.c, s.o, 1, {s.w, q, 3, 1, 1, s.left}, {s.h, p, 3, 1, 1, s.up}};
}

// Arrays of one problem.
struct Data {
  Problem problem;
  Array x, dz;
  std::vector<float> w, bias, dx_bias;

  Data(const Shape& s, uint64_t seed)
      : problem(problem_of(s)),
        x(s.n, s.c, static_cast<size_t>(s.h), static_cast<size_t>(s.w), s.gap, s.offset),
        dz(s.n, s.o, static_cast<size_t>(problem.y.out), static_cast<size_t>(problem.x.out), s.gap, s.offset) {
    Random random{seed};
    x.fill(random);
    dz.fill(random);
    w = normals(s.o * s.c * 9, random);
    bias = normals(s.o, random);
    dx_bias = normals(s.c, random);
  }
};

// All values within `tolerance`, the gaps untouched.
void check_close(Array& got, Array& expected, double tolerance, const char* what, const Target& target,
                 const Shape& s) {
  for (size_t i = 0; i < got.count(); ++i) {
    const double a = got[i], b = expected[i];
    CHECK(std::fabs(a - b) <= tolerance, "%s on %s, N%zu C%zu O%zu %dx%d: value %zu is %g, expected %g", what,
          target.name, s.n, s.c, s.o, static_cast<int>(s.h), static_cast<int>(s.w), i, a, b);
    got[i] = expected[i] = 0.0f;
  }
  CHECK(got.memory == expected.memory, "%s on %s: memory between the values was touched", what, target.name);
}

// A sum of `terms` products of normal numbers is about √terms; what float32 loses on the way is below 4e-5 of that.
double tolerance_for(size_t terms) { return 4e-5 * std::sqrt(static_cast<double>(terms)); }

void check_forward(Data& d, const Shape& s, const activation::Fused* activation) {
  const float* bias = activation ? d.bias.data() : nullptr;
  Array reference(d.dz);  // filled with something to be overwritten
  reference_forward.run(d.problem, {d.x.planes, d.w.data(), reference.planes, bias, activation}, 1, nullptr);
  for (const Target& target : all_targets()) {
    Array got(d.dz), expected(reference);
    Work work(winograd::forward_bytes(*target.kernels, d.problem));
    winograd::forward(*target.kernels, d.problem, {d.x.planes, d.w.data(), got.planes, bias, activation}, 2,
                      work.data());
    check_close(got, expected, tolerance_for(9 * s.c + 1), "forward", target, s);
    CHECK(work.is_intact(), "forward on %s wrote behind its work", target.name);
  }
}

void check_input_gradient(Data& d, const Shape& s, bool accumulate, const activation::Fused* activation) {
  const float* bias = activation ? d.dx_bias.data() : nullptr;
  Array reference(d.x);
  reference_input_gradient.run(d.problem, {d.dz.planes, d.w.data(), reference.planes, accumulate, bias, activation},
                               1, nullptr);
  for (const Target& target : all_targets()) {
    Array got(d.x), expected(reference);
    Work work(winograd::input_gradient_bytes(*target.kernels, d.problem));
    winograd::input_gradient(*target.kernels, d.problem,
                             {d.dz.planes, d.w.data(), got.planes, accumulate, bias, activation}, 2, work.data());
    check_close(got, expected, tolerance_for(9 * s.o + 1), "input gradient", target, s);
    CHECK(work.is_intact(), "input gradient on %s wrote behind its work", target.name);
  }
}

void check_weight_gradient(Data& d, const Shape& s, bool accumulate) {
  std::vector<float> expected = d.w;
  reference_weight_gradient.run(d.problem, {d.x.planes, d.dz.planes, expected.data(), accumulate}, 1, nullptr);
  const double tolerance = tolerance_for(d.dz.n * d.dz.h * d.dz.w + 1);
  for (const Target& target : all_targets()) {
    std::vector<float> got = d.w;
    got.push_back(kGap);
    Work work(winograd::weight_gradient_bytes(*target.kernels, d.problem));
    winograd::weight_gradient(*target.kernels, d.problem, {d.x.planes, d.dz.planes, got.data(), accumulate}, 2,
                              work.data());
    for (size_t i = 0; i < expected.size(); ++i)
      CHECK(std::fabs(got[i] - expected[i]) <= tolerance,
            "weight gradient on %s, N%zu C%zu O%zu %dx%d: value %zu is %g, expected %g", target.name, s.n, s.c, s.o,
            static_cast<int>(s.h), static_cast<int>(s.w), i, static_cast<double>(got[i]),
            static_cast<double>(expected[i]));
    CHECK(got.back() == kGap && work.is_intact(), "weight gradient on %s wrote too far", target.name);
  }
}

activation::Fused relu() {
  BNNSActivation description = {};
  description.function = BNNSActivationFunctionRectifiedLinear;
  activation::Fused fused;
  CHECK(activation::Fused::read(description, "activation", &fused) == 0, "ReLU cannot be fused");
  return fused;
}

void check_all(const Shape& s) {
  Data d(s, 1 + s.n + 3 * s.c + 5 * s.o + 7 * static_cast<uint64_t>(s.h) + 11 * static_cast<uint64_t>(s.w));
  const activation::Fused fused = relu();
  check_forward(d, s, nullptr);
  check_forward(d, s, &fused);
  check_input_gradient(d, s, false, nullptr);
  check_input_gradient(d, s, true, nullptr);
  check_input_gradient(d, s, false, &fused);
  check_weight_gradient(d, s, false);
  check_weight_gradient(d, s, true);
}

// ---- against the formulas ----

TEST(winograd_planes_of_every_size) {
  for (int64_t h = 1; h <= 11; ++h) check_all({2, 5, 7, h, 12 - h});
  for (int64_t w : {13, 14, 15, 16, 17, 31, 33, 70}) check_all({1, 3, 4, 6, w});
}

TEST(winograd_channels_of_every_number) {
  for (size_t c : {1, 2, 4, 8, 15, 16, 17, 31, 33, 48, 65}) {
    check_all({1, c, 9, 6, 7});
    check_all({1, 9, c, 6, 7});
  }
}

TEST(winograd_padding_of_every_kind) {
  for (int64_t up = 0; up <= 4; ++up)
    for (int64_t left = 0; left <= 4; left += 2) check_all({2, 4, 6, 9, 8, up, left});
  check_all({1, 4, 6, 9, 8, 7, 9});           // windows without an image below them
  check_all({1, 4, 6, 9, 10, 0, 1, 3, 5});    // rows and columns that no window reads
  check_all({1, 4, 6, 5, 6, 1, 0, 12, 11});   // windows far behind the image
  check_all({3, 4, 6, 1, 1, 1, 1});
}

TEST(winograd_strided_and_unaligned) {
  for (size_t gap : {1, 3}) check_all({3, 5, 18, 10, 9, 1, 1, 0, 0, gap, 1});
  check_all({2, 17, 20, 22, 37, 1, 1, 0, 0, 2, 3});
}

// The ways through the drive, with small shapes that take them.
TEST(winograd_many_tiles) {
  check_all({2, 20, 36, 30, 71});      // several blocks across and down
  check_all({2, 16, 17, 150, 70});     // Σ V · Y in parts
  check_all({24, 8, 9, 14, 13});       // the same of few channels, where one part would be one thread's work
  check_all({3, 96, 100, 20, 21});     // weights beyond the second-level cache
}

TEST(winograd_many_channels) {
  check_all({1, 300, 130, 4, 4});      // few tiles: V shared, the weights of a panel made in two goes
  check_all({1, 4000, 2, 20, 32});     // V and products too large for scratch, V shared in two blocks
}

TEST(winograd_weight_gradient_of_shared_blocks) {
  const Shape shape = {2, 100, 104, 40, 46};
  Data d(shape, 3);
  check_weight_gradient(d, shape, false);
  check_weight_gradient(d, shape, true);
}

// ---- accuracy ----

struct Error {
  double largest = 0, squares = 0;

  void add(double got, double expected) {
    const double e = std::fabs(got - expected);
    largest = std::max(largest, e);
    squares += e * e;
  }
};

void check_error(const Error& ours, const Error& plain, const char* what, const Target& target, size_t channels) {
  CHECK(ours.largest <= 4 * plain.largest, "%s on %s, %zu channels: error %g, plain loop %g", what, target.name,
        channels, ours.largest, plain.largest);
  CHECK(ours.squares <= 16 * plain.squares, "%s on %s, %zu channels: rms error %g times the plain loop's", what,
        target.name, channels, std::sqrt(ours.squares / plain.squares));
}

// The formulas once more, sums in float32 with one accumulator, and their value in float64.
template <class Use>  // use(index of the output, float32 sum, float64 sum)
void plain_forward(Data& d, const Use& use) {
  const Problem& s = d.problem;
  for (size_t i = 0; i < d.dz.count(); ++i) {
    const size_t plane = d.dz.w * d.dz.h, n = i / (plane * d.dz.c), o = i / plane % d.dz.c;
    const int64_t p = static_cast<int64_t>(i / d.dz.w % d.dz.h), q = static_cast<int64_t>(i % d.dz.w);
    float sum = 0;
    double exact = 0;
    for (size_t c = 0; c < s.in_channels; ++c)
      for (int64_t k = 0; k < 9; ++k) {
        const int64_t v = s.y.at(p, k / 3), u = s.x.at(q, k % 3);
        if (v < 0 || v >= s.y.in || u < 0 || u >= s.x.in) continue;
        const float w = d.w[(o * s.in_channels + c) * 9 + static_cast<size_t>(k)];
        const float x = d.x.at(n, c, static_cast<size_t>(v), static_cast<size_t>(u));
        sum += w * x;
        exact += static_cast<double>(w) * x;
      }
    use(i, sum, exact);
  }
}

template <class Use>
void plain_weight_gradient(Data& d, const Use& use) {
  const Problem& s = d.problem;
  for (size_t i = 0; i < d.w.size(); ++i) {
    const size_t o = i / 9 / s.in_channels, c = i / 9 % s.in_channels;
    const int64_t ky = static_cast<int64_t>(i % 9 / 3), kx = static_cast<int64_t>(i % 3);
    float sum = 0;
    double exact = 0;
    for (size_t n = 0; n < s.batch; ++n)
      for (int64_t p = 0; p < s.y.out; ++p)
        for (int64_t q = 0; q < s.x.out; ++q) {
          const int64_t v = s.y.at(p, ky), u = s.x.at(q, kx);
          if (v < 0 || v >= s.y.in || u < 0 || u >= s.x.in) continue;
          const float x = d.x.at(n, c, static_cast<size_t>(v), static_cast<size_t>(u));
          const float dz = d.dz.at(n, o, static_cast<size_t>(p), static_cast<size_t>(q));
          sum += x * dz;
          exact += static_cast<double>(x) * dz;
        }
    use(i, sum, exact);
  }
}

// The input gradient of (O = channels, C = 16) is the forward pass of (C = channels, O = 16) over the same planes with
// transposed and turned weights: the plain loop of the one serves the other.
TEST(winograd_error_is_at_most_four_times_that_of_a_plain_loop) {
  for (size_t channels : {16, 64, 256}) {
    const size_t outputs = 16, n = channels == 16 ? 8 : 2;
    Data d({n, channels, outputs, 14, 15}, channels);
    std::vector<float> turned(d.w.size());
    for (size_t i = 0; i < d.w.size(); ++i) {
      const size_t o = i / 9 / channels, c = i / 9 % channels;
      turned[(c * outputs + o) * 9 + 8 - i % 9] = d.w[i];
    }
    Problem back = d.problem;
    std::swap(back.in_channels, back.out_channels);
    for (const Target& target : all_targets()) {
      Array y(d.dz), dx(d.dz);
      std::vector<float> dw = d.w;
      Work work(std::max({winograd::forward_bytes(*target.kernels, d.problem),
                          winograd::input_gradient_bytes(*target.kernels, back),
                          winograd::weight_gradient_bytes(*target.kernels, d.problem)}));
      winograd::forward(*target.kernels, d.problem, {d.x.planes, d.w.data(), y.planes, nullptr, nullptr}, 1,
                        work.data());
      winograd::input_gradient(*target.kernels, back,
                               {d.x.planes, turned.data(), dx.planes, false, nullptr, nullptr}, 1, work.data());
      winograd::weight_gradient(*target.kernels, d.problem, {d.x.planes, d.dz.planes, dw.data(), false}, 1,
                                work.data());
      Error plain, of_y, of_dx, plain_dw, of_dw;
      plain_forward(d, [&](size_t i, float sum, double exact) {
        plain.add(sum, exact);
        of_y.add(y[i], exact);
        of_dx.add(dx[i], exact);
      });
      plain_weight_gradient(d, [&](size_t i, float sum, double exact) {
        plain_dw.add(sum, exact);
        of_dw.add(dw[i], exact);
      });
      check_error(of_y, plain, "forward", target, channels);
      check_error(of_dx, plain, "input gradient", target, channels);
      check_error(of_dw, plain_dw, "weight gradient", target, channels);
    }
  }
}

// ---- what is not local ----

// Inputs 4t - 1 … 4t + 4 (padding 1) and outputs 4t … 4t + 3 of one sample belong together, on both axes; a short tile
// ends earlier. Everything else has the very bits that it has without the strange value.
TEST(winograd_strange_values_stay_in_their_tiles) {
  const Shape shape = {2, 9, 18, 22, 27};
  for (const Target& target : all_targets()) {
    Data d(shape, 5);
    Work work(winograd::forward_bytes(*target.kernels, d.problem));
    Array clean(d.dz);
    winograd::forward(*target.kernels, d.problem, {d.x.planes, d.w.data(), clean.planes, nullptr, nullptr}, 1,
                      work.data());
    Random random{9};
    for (float strange : {kNan, kInfinity, -kInfinity, 3e38f, 1e20f}) {
      const size_t v = random.below(22), u = random.below(27), c = random.below(9);
      const float kept = d.x.at(1, c, v, u);
      d.x.at(1, c, v, u) = strange;
      Array got(d.dz);
      winograd::forward(*target.kernels, d.problem, {d.x.planes, d.w.data(), got.planes, nullptr, nullptr}, 1,
                        work.data());
      d.x.at(1, c, v, u) = kept;
      for (size_t i = 0; i < got.count(); ++i) {
        const size_t n = i / (got.w * got.h * got.c), p = i / got.w % got.h / 4 * 4, q = i % got.w / 4 * 4;
        const bool may = n == 1 && v + 1 >= p && v <= p + 4 && u + 1 >= q && u <= q + 4;
        if (!may) {
          CHECK(got[i] == clean[i], "%g on %s at (%zu, %zu) reaches value %zu", static_cast<double>(strange),
                target.name, v, u, i);
        } else if (std::isnan(strange) && i / got.w % got.h + 1 >= v && i / got.w % got.h <= v + 1 &&
                   i % got.w + 1 >= u && i % got.w <= u + 1) {
          CHECK(std::isnan(got[i]), "NaN on %s at (%zu, %zu) does not reach value %zu", target.name, v, u, i);
        }
      }
    }
  }
}

// A strange value of x reaches the 9 taps between its channel and all output channels, one of dz those between all
// input channels and its own.
TEST(winograd_strange_values_stay_in_their_channels) {
  for (const Shape& shape : {Shape{2, 9, 18, 10, 11}, Shape{2, 140, 150, 6, 7}}) {
    for (const Target& target : all_targets()) {
      Data d(shape, 6);
      Work work(winograd::weight_gradient_bytes(*target.kernels, d.problem));
      std::vector<float> clean(d.w.size()), got(d.w.size());
      winograd::weight_gradient(*target.kernels, d.problem, {d.x.planes, d.dz.planes, clean.data(), false}, 1,
                                work.data());
      d.x.at(1, 7, 3, 4) = kNan;
      d.dz.at(0, 17, 3, 4) = kInfinity;
      winograd::weight_gradient(*target.kernels, d.problem, {d.x.planes, d.dz.planes, got.data(), false}, 1,
                                work.data());
      for (size_t i = 0; i < got.size(); ++i) {
        const size_t o = i / 9 / shape.c, c = i / 9 % shape.c;
        if (c != 7 && o != 17) {
          CHECK(got[i] == clean[i], "weight gradient on %s: value %zu is %g, not %g", target.name, i,
                static_cast<double>(got[i]), static_cast<double>(clean[i]));
        } else if (c == 7) {
          CHECK(std::isnan(got[i]), "weight gradient on %s: value %zu is no NaN", target.name, i);
        }
      }
    }
  }
}

// ---- promises ----

TEST(winograd_same_bits_for_any_number_of_threads) {
  for (const Shape& shape : {Shape{5, 20, 34, 22, 27}, Shape{3, 140, 150, 10, 13}, Shape{24, 8, 9, 14, 13}}) {
    for (const Target& target : all_targets()) {
      Data d(shape, 7);
      Work work(std::max({winograd::forward_bytes(*target.kernels, d.problem),
                          winograd::input_gradient_bytes(*target.kernels, d.problem),
                          winograd::weight_gradient_bytes(*target.kernels, d.problem)}));
      Array y1(d.dz), dx1(d.x);
      std::vector<float> dw1(d.w.size());
      for (size_t threads : {1, 2, 7}) {
        Array y(d.dz), dx(d.x);
        std::vector<float> dw(d.w.size());
        winograd::forward(*target.kernels, d.problem, {d.x.planes, d.w.data(), y.planes, d.bias.data(), nullptr},
                          threads, work.data());
        winograd::input_gradient(*target.kernels, d.problem,
                                 {d.dz.planes, d.w.data(), dx.planes, true, nullptr, nullptr}, threads, work.data());
        winograd::weight_gradient(*target.kernels, d.problem, {d.x.planes, d.dz.planes, dw.data(), false}, threads,
                                  work.data());
        if (threads == 1) {
          y1.memory = y.memory;
          dx1.memory = dx.memory;
          dw1 = dw;
        }
        CHECK(y.memory == y1.memory, "forward on %s: %zu threads, other bits", target.name, threads);
        CHECK(dx.memory == dx1.memory, "input gradient on %s: %zu threads, other bits", target.name, threads);
        CHECK(dw == dw1, "weight gradient on %s: %zu threads, other bits", target.name, threads);
      }
    }
  }
}

TEST(winograd_fits_only_what_it_can) {
  const Problem good = problem_of({1, 64, 64, 28, 28});
  CHECK(winograd_forward.fits(good) && winograd_input_gradient.fits(good) && winograd_weight_gradient.fits(good),
        "64 channels of 28x28 should fit");
  Problem bad = good;
  bad.groups = 2;
  CHECK(!winograd_forward.fits(bad), "groups fit");
  bad = good;
  bad.x.stride = 2;
  CHECK(!winograd_input_gradient.fits(bad), "stride 2 fits");
  bad = good;
  bad.y.dilation = 2;
  CHECK(!winograd_weight_gradient.fits(bad), "dilation 2 fits");
  bad = good;
  bad.y.kernel = 5;
  CHECK(!winograd_forward.fits(bad), "5x3 fits");
  const Problem few = problem_of({1, 3, 64, 28, 28});
  CHECK(!winograd_forward.fits(few) && !winograd_input_gradient.fits(few) && !winograd_weight_gradient.fits(few),
        "3 channels fit");
}

}  // namespace
}  // namespace obn::convolution
