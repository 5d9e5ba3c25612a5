#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "activation/activation.h"
#include "base/test_array.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/bnns/legacy.h"
#include "openbnns/openbnns.h"

using namespace obn;
using namespace obn::activation;

namespace {

// A function with parameters (dyadic, so that bounds are the same number in float and double) and what its error is
// relative to: |value| everywhere, or 1 where a difference of larger numbers loses the leading digits. 2 marks what
// misses 4e-7: GELU (7.3e-7, in the left tail near -5) and the slope of
// tanh-shrink (6.2e-7; it is tanh squared).
struct Subject {
  Function function;
  float alpha, beta;
  double forward_floor, slope_floor;
};
constexpr Subject kSubjects[] = {
    {BNNSActivationFunctionIdentity, 0, 0, 0, 0},
    {BNNSActivationFunctionRectifiedLinear, 0, 0, 0, 0},
    {BNNSActivationFunctionLeakyRectifiedLinear, 0.125f, 0, 0, 0},
    {BNNSActivationFunctionSigmoid, 0, 0, 0, 0},
    {BNNSActivationFunctionTanh, 0, 0, 0, 0},
    {BNNSActivationFunctionScaledTanh, 1.75f, 0.5f, 0, 0},
    {BNNSActivationFunctionAbs, 0, 0, 0, 0},
    {BNNSActivationFunctionLinear, -1.5f, 0, 0, 0},
    {BNNSActivationFunctionClamp, -1, 2, 0, 0},
    {BNNSActivationFunctionGELUApproximation, 0.7978845608f, 0.044715f, 1, 1},
    {BNNSActivationFunctionHardSigmoid, 0.25f, 0.5f, 1, 0},
    {BNNSActivationFunctionSoftplus, 2, 0.5f, 0, 0},
    {BNNSActivationFunctionSoftsign, 0, 0, 0, 0},
    {BNNSActivationFunctionELU, 1.5f, 0, 0, 0},
    {BNNSActivationFunctionClampedLeakyRectifiedLinear, 0.125f, 4, 0, 0},
    {BNNSActivationFunctionLinearWithBias, 2, -0.5f, 1, 0},
    {BNNSActivationFunctionLogSigmoid, 0, 0, 0, 0},
    {BNNSActivationFunctionSELU, 0, 0, 0, 0},
    {BNNSActivationFunctionCELU, 2, 0, 0, 0},
    {BNNSActivationFunctionHardShrink, -0.5f, 0, 0, 0},
    {BNNSActivationFunctionSoftShrink, -0.5f, 0, 1, 0},
    {BNNSActivationFunctionTanhShrink, 0, 0, 0, 2},
    {BNNSActivationFunctionThreshold, 0.5f, -2, 0, 0},
    {BNNSActivationFunctionPReLUPerChannel, 0.125f, 0, 0, 0},
    {BNNSActivationFunctionHardSwish, 0, 0, 1, 1},
    {BNNSActivationFunctionSiLU, 0, 0, 1e-30, 1},
    {BNNSActivationFunctionReLU6, 0, 0, 0, 0},
    {BNNSActivationFunctionErf, 0, 0, 0, 1},
    {BNNSActivationFunctionGELU, 0, 0, 2, 1},
    {BNNSActivationFunctionGELUApproximationSigmoid, 0, 0, 1, 1},
};

constexpr float kInfinity = __builtin_inff();
constexpr float kNan = __builtin_nanf("");

// Specials, then floats spread over all exponents, then over the range where functions bend.
std::vector<float> many_floats() {
  std::vector<float> x = {0.0f, -0.0f, kInfinity, -kInfinity, kNan, 1e-45f, -1e-45f, 1e-38f, -1e-38f, 3.4e38f, -3.4e38f,
                          1.0f, -1.0f, 0.5f, -0.5f, 2.0f, -2.0f, 3.0f, -3.0f, 4.0f, 6.0f, -6.0f, 88.0f, -88.0f, 89.0f,
                          -89.0f, 103.0f, -103.0f, 104.0f, -104.0f, 0.7f, 3.85f, 5.45f, -5.45f, 10.0f, -17.5f};
  for (uint64_t u = 0; u < 0x100000000; u += 99991) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(u)));
  for (int i = -40000; i <= 40000; ++i) x.push_back(static_cast<float>(i) * 2.7183e-4f);
  for (int i = -20000; i <= 20000; ++i) x.push_back(static_cast<float>(i) * 5.23e-3f);
  return x;
}

// Within 4e-7 of |want| (or of floor, if that is more); below the normal numbers 0 will do.
bool is_close(float got, double want, double floor, double tolerance = 4e-7) {
  const float rounded = static_cast<float>(want);
  if (std::isnan(rounded)) return std::isnan(got);
  if (std::isinf(rounded)) return got == rounded || std::fabs(want) < 3.41e38;
  return std::fabs(got - want) <= tolerance * std::max(std::fabs(want), floor) + 1.2e-38;
}

BNNSLayerParametersActivation layer(BNNSNDArrayDescriptor x, BNNSNDArrayDescriptor y, Function function,
                                    float alpha = 0.0f, float beta = 0.0f, uint32_t axes = 0) {
  BNNSLayerParametersActivation p{};
  p.i_desc = x;
  p.o_desc = y;
  p.activation.function = function;
  p.activation.alpha = alpha;
  p.activation.beta = beta;
  p.axis_flags = axes;
  return p;
}

// One sample, no parameter gradients.
int backward(BNNSFilter filter, const void* x, BNNSNDArrayDescriptor* dx, const void* y,
             const BNNSNDArrayDescriptor& dy) {
  return BNNSFilterApplyBackwardBatch(filter, 1, x, 0, dx, 0, y, 0, &dy, 0, nullptr, nullptr);
}

}  // namespace

// ---- kernels against the reference, on every target ----

TEST(activation_rows_match_ref_on_every_target) {
  const std::vector<float> x = many_floats();
  std::vector<float> y(x.size()), dx(x.size()), ones(x.size(), 1.0f);
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (const Subject& s : kSubjects) {
      kernels.forward[s.function](x.data(), y.data(), x.size(), s.alpha, s.beta);
      kernels.from_x[s.function](x.data(), ones.data(), dx.data(), x.size(), s.alpha, s.beta);
      for (size_t i = 0; i < x.size(); ++i) {
        double want = ref::forward(s.function, x[i], s.alpha, s.beta);
        CHECK(is_close(y[i], want, s.forward_floor), "%s %s(%.9g) = %.9g, want %.9g", name_of(isa),
              name_of(s.function), x[i], y[i], want);
        want = ref::slope_from_x(s.function, x[i], s.alpha, s.beta);
        CHECK(is_close(dx[i], want, s.slope_floor), "%s %s'(%.9g) = %.9g, want %.9g", name_of(isa),
              name_of(s.function), x[i], dx[i], want);
      }
      if (!kernels.from_y[s.function]) continue;
      // From y: all outputs the function has, and slopes against the formula in y.
      kernels.from_y[s.function](y.data(), ones.data(), dx.data(), x.size(), s.alpha, s.beta);
      for (size_t i = 0; i < x.size(); ++i) {
        if (s.function == BNNSActivationFunctionGELUApproximationSigmoid && y[i] < 0.0f) continue;
        double want = ref::slope_from_y(s.function, y[i], s.alpha, s.beta);
        CHECK(is_close(dx[i], want, 1.0), "%s %s' from y = %.9g is %.9g, want %.9g", name_of(isa),
              name_of(s.function), y[i], dx[i], want);
      }
    }
  }
}

TEST(activation_slope_from_y_is_slope_from_x) {
  for (const Subject& s : kSubjects) {
    if (!targets.best().from_y[s.function]) continue;
    for (double x = -4.01; x < 4.0; x += 0.0171) {
      if (s.function == BNNSActivationFunctionGELUApproximationSigmoid && x < 0.0) continue;
      double y = ref::forward(s.function, x, s.alpha, s.beta);
      double from_x = ref::slope_from_x(s.function, x, s.alpha, s.beta);
      double from_y = ref::slope_from_y(s.function, y, s.alpha, s.beta);
      CHECK(std::fabs(from_x - from_y) < 1e-9, "%s at %g: %.12g from x, %.12g from y", name_of(s.function), x, from_x,
            from_y);
    }
  }
}

TEST(activation_slope_is_the_difference_quotient) {
  for (const Subject& s : kSubjects) {
    for (double x = -4.01; x < 4.0; x += 0.0171) {
      const double h = 1e-6;
      double quotient = (ref::forward(s.function, x + h, s.alpha, s.beta) -
                         ref::forward(s.function, x - h, s.alpha, s.beta)) / (2 * h);
      double slope = ref::slope_from_x(s.function, x, s.alpha, s.beta);
      CHECK(std::fabs(quotient - slope) < 1e-7, "%s at %g: slope %.9g, quotient %.9g", name_of(s.function), x, slope,
            quotient);
    }
  }
}

TEST(activation_tails_have_the_bits_of_whole_vectors) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (const Subject& s : kSubjects) {
      float x[64], dy[64], y_one[64], dx_one[64];
      for (size_t i = 0; i < 64; ++i) {
        x[i] = normal(random);
        dy[i] = normal(random);
        kernels.forward[s.function](x + i, y_one + i, 1, s.alpha, s.beta);
        kernels.from_x[s.function](x + i, dy + i, dx_one + i, 1, s.alpha, s.beta);
      }
      for (size_t n = 1; n <= 33; ++n) {
        float y[64], dx[64];
        std::fill_n(y, 64, 77.0f);
        std::fill_n(dx, 64, 77.0f);
        kernels.forward[s.function](x, y, n, s.alpha, s.beta);
        kernels.from_x[s.function](x, dy, dx, n, s.alpha, s.beta);
        CHECK(std::memcmp(y, y_one, n * 4) == 0, "%s %s forward, n = %zu", name_of(isa), name_of(s.function), n);
        CHECK(std::memcmp(dx, dx_one, n * 4) == 0, "%s %s backward, n = %zu", name_of(isa), name_of(s.function), n);
        CHECK(y[n] == 77.0f && dx[n] == 77.0f, "%s %s wrote past n = %zu", name_of(isa), name_of(s.function), n);
      }
    }
  }
}

TEST(activation_softmax_rows_and_columns_match_ref) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (bool log : {false, true}) {
      const Function function = log ? BNNSActivationFunctionLogSoftmax : BNNSActivationFunctionSoftmax;
      for (size_t n = 1; n <= 70; ++n) {
        for (size_t columns : {size_t{1}, size_t{5}, size_t{16}, size_t{19}, size_t{64}, size_t{83}}) {
          const size_t total = n * columns;
          std::vector<float> x(total), y(total), want(total), dy(total), dx(total), want_dx(total);
          for (size_t i = 0; i < total; ++i) {
            x[i] = i % 11 == 3 ? -kInfinity : normal(random);
            dy[i] = normal(random);
          }
          for (size_t c = 0; c < columns; ++c) {
            x[c] = 1.0f;  // at least one finite value
            ref::softmax(&x[c], &want[c], n, columns, log);
            ref::softmax_backward(&want[c], &dy[c], &want_dx[c], n, columns, log);
          }
          kernels.softmax_columns(x.data(), columns, y.data(), columns, n, columns, log);
          kernels.softmax_columns_backward(want.data(), columns, dy.data(), columns, dx.data(), columns, n, columns,
                                           log);
          for (size_t i = 0; i < total; ++i) {
            // x - max rounds, and e^ makes that relative: up to 30 · 2^-24 here.
            CHECK(is_close(y[i], want[i], log, 3e-6), "%s columns %zu x %zu: %g, want %g", name_of(isa), n, columns,
                  y[i], want[i]);
            CHECK(is_close(dx[i], want_dx[i], 20.0, 1e-6), "%s columns backward: %g, want %g", name_of(isa), dx[i],
                  want_dx[i]);
          }
          if (columns != 1) continue;
          kernels.forward[function](x.data(), y.data(), n, 0.0f, 0.0f);
          kernels.from_y[function](want.data(), dy.data(), dx.data(), n, 0.0f, 0.0f);
          for (size_t i = 0; i < n; ++i) {
            CHECK(is_close(y[i], want[i], log, 3e-6), "%s row of %zu: %g, want %g", name_of(isa), n, y[i], want[i]);
            CHECK(is_close(dx[i], want_dx[i], 20.0, 1e-6), "%s row backward: %g, want %g", name_of(isa), dx[i],
                  want_dx[i]);
          }
        }
      }
    }
  }
}

// Several rows at once, wherever they begin, are what each row is alone; gradients do not depend on the place either.
TEST(activation_softmax_of_many_rows_at_any_address) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  constexpr size_t kRows = 3;
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (size_t n : {1, 7, 16, 100, 127, 128, 131, 300}) {
      const size_t total = kRows * n;
      std::vector<float> x(total), dy(total), want(total), want_dx(total);
      for (size_t i = 0; i < total; ++i) {
        x[i] = normal(random);
        dy[i] = normal(random);
      }
      x[n / 2] = NAN;
      for (size_t i = 0; i < total; i += n) {
        kernels.forward[BNNSActivationFunctionSoftmax](&x[i], &want[i], n, 0.0f, 0.0f);
        kernels.from_y[BNNSActivationFunctionSoftmax](&want[i], &dy[i], &want_dx[i], n, 0.0f, 0.0f);
        std::vector<float> y(n), dx(n);
        ref::softmax(&x[i], y.data(), n, 1, false);
        ref::softmax_backward(y.data(), &dy[i], dx.data(), n, 1, false);
        for (size_t k = 0; k < n; ++k) {
          CHECK(i == 0 ? std::isnan(want[i + k]) : is_close(want[i + k], y[k], 0.0, 3e-6), "%s y of %zu: %g, want %g",
                name_of(isa), n, want[i + k], y[k]);
          CHECK(i == 0 ? std::isnan(want_dx[i + k]) : is_close(want_dx[i + k], dx[k], 20.0, 1e-6),
                "%s dx of %zu: %g, want %g", name_of(isa), n, want_dx[i + k], dx[k]);
        }
      }
      for (size_t offset = 0; offset < 16; ++offset) {
        std::vector<float> room(offset + total + 1, 77.0f);
        float* at = room.data() + offset;
        kernels.softmax_rows(x.data(), at, n, kRows);
        CHECK(std::memcmp(at, want.data(), total * 4) == 0 && at[total] == 77.0f, "%s rows of %zu, offset %zu",
              name_of(isa), n, offset);
        std::copy(x.begin(), x.end(), at);
        kernels.softmax_rows(at, at, n, kRows);
        CHECK(std::memcmp(at, want.data(), total * 4) == 0, "%s rows of %zu in place", name_of(isa), n);
        for (size_t i = 0; i < total; i += n)
          kernels.from_y[BNNSActivationFunctionSoftmax](&want[i], &dy[i], at + i, n, 0.0f, 0.0f);
        CHECK(std::memcmp(at, want_dx.data(), total * 4) == 0 && at[total] == 77.0f, "%s backward of %zu, offset %zu",
              name_of(isa), n, offset);
      }
    }
  }
}

TEST(activation_softmax_example_of_the_specification) {
  const float x[] = {3, 5, 1, 6, 2, 1, 4};
  const float want[] = {0.031415492f, 0.23213086f, 0.004251625f, 0.63099706f, 0.011557114f, 0.004251625f, 0.08539616f};
  float y[7];
  BNNSLayerParametersActivation p = layer(vector_of(7, BNNSDataTypeFloat32, const_cast<float*>(x)),
                                          vector_of(7, BNNSDataTypeFloat32, y), BNNSActivationFunctionSoftmax);
  CHECK(BNNSDirectApplyActivationBatch(&p, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  for (size_t i = 0; i < 7; ++i) CHECK(is_close(y[i], want[i], 0, 3e-7), "%.9g, want %.9g", y[i], want[i]);
}

// ---- any layout, stride, batch and float type against single values ----

namespace {

// A float tensor with a batch, filled with noise, between the values too.
struct Tensor : test::PlacedArray {
  Tensor(std::mt19937& random, const std::vector<size_t>& extents, BNNSDataLayout layout, BNNSDataType type,
         size_t batch_size, bool packed) {
    BNNSNDArrayDescriptor d = array_of(layout, {}, nullptr, type);
    std::copy(extents.begin(), extents.end(), d.size);
    if (!packed) {
      View plain;
      read_view(d, Access::write, "tensor", &plain);
      size_t next = 1 + random() % 2;
      for (size_t k = 0; k < plain.rank; ++k) {
        d.stride[k] = next;
        next = next * plain.extent[k] + random() % 3;
      }
    }
    PlacedArray::operator=(PlacedArray(d, batch_size, packed ? 0 : random() % 4));
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (size_t i = 0; i < bytes.size() / bytes_of(type); ++i) set_at(i, normal(random));
  }

  float get(size_t i) const { return static_cast<float>(PlacedArray::get(i)); }
  // Bytes between the values must stay what they were.
  std::vector<std::byte> gaps() const {
    std::vector<std::byte> between = bytes;
    const size_t size = bytes_of(view.type);
    for (size_t i = 0; i < count(); ++i) std::memset(&between[place_of(i) * size], 0, size);
    return between;
  }
  double tolerance() const {
    return view.type == BNNSDataTypeFloat32 ? 2e-6 : (view.type == BNNSDataTypeFloat16 ? 1e-3 : 8e-3);
  }
};

struct Shape {
  BNNSDataLayout layout;
  std::vector<size_t> extents;
};

// Shapes of n = 2·3·4·5 values, and one too large for a block.
Shape random_shape(std::mt19937& random, bool large) {
  if (large) return random() % 2 ? Shape{BNNSDataLayoutImageCHW, {50, 20, 6}} : Shape{BNNSDataLayoutVector, {6000}};
  switch (random() % 8) {
    case 0: return {BNNSDataLayoutVector, {120}};
    case 1: return {BNNSDataLayoutRowMajorMatrix, {20, 6}};
    case 2: return {BNNSDataLayout2DFirstMajor, {4, 30}};
    case 3: return {BNNSDataLayoutImageCHW, {5, 4, 6}};
    case 4: return {BNNSDataLayoutImageCHW, {1, 1, 120}};
    case 5: return {BNNSDataLayoutMHA_DHK, {3, 8, 5}};
    case 6: return {BNNSDataLayout4DFirstMajor, {2, 3, 4, 5}};
    default: return {BNNSDataLayout5DLastMajor, {3, 1, 2, 4, 5}};
  }
}

BNNSDataType random_float(std::mt19937& random) {
  constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat32, BNNSDataTypeFloat16,
                                     BNNSDataTypeBFloat16};
  return kTypes[random() % 4];
}

// Linear indices of every group of a softmax over `axes` of x.
std::vector<std::vector<size_t>> groups_of(const Tensor& x, uint32_t axes) {
  if (axes == 0) axes = 1;
  std::vector<std::vector<size_t>> groups;
  std::vector<size_t> group_of_key(x.count() * 2, SIZE_MAX);
  for (size_t i = 0; i < x.count(); ++i) {
    size_t rest = i % x.view.count, key = 0, place = 1;
    size_t coordinate[BNNS_MAX_TENSOR_DIMENSION + 1];
    for (size_t k = 0; k < x.view.rank; ++k) {
      coordinate[k] = rest % x.view.extent[k];
      rest /= x.view.extent[k];
    }
    for (size_t size = 0; size < x.view.rank; ++size) {
      size_t k = x.view.axis_of_size[size];
      if (axes >> size & 1) continue;
      key += coordinate[k] * place;
      place *= x.view.extent[k];
    }
    if (!(axes >> x.view.rank & 1)) key += i / x.view.count * place;
    if (group_of_key[key] == SIZE_MAX) {
      group_of_key[key] = groups.size();
      groups.emplace_back();
    }
    groups[group_of_key[key]].push_back(i);
  }
  return groups;
}

constexpr Subject kSoftmaxes[] = {{BNNSActivationFunctionSoftmax, 0, 0, 0, 0},
                                  {BNNSActivationFunctionLogSoftmax, 0, 0, 0, 0}};

}  // namespace

TEST(activation_any_layout_matches_single_values) {
  std::mt19937 random(3);
  for (int round = 0; round < 1500; ++round) {
    const bool softmax = round % 2;
    const Subject s = softmax ? kSoftmaxes[random() % 2] : kSubjects[random() % std::size(kSubjects)];
    const bool prelu = s.function == BNNSActivationFunctionPReLUPerChannel;
    const bool log = s.function == BNNSActivationFunctionLogSoftmax;
    const bool large = random() % 10 == 0;
    const size_t batch = 1 + random() % 3;
    Shape in = random_shape(random, large), out = random() % 2 ? in : random_shape(random, large);
    if (prelu) in = large ? Shape{BNNSDataLayoutImageCHW, {50, 20, 6}} : Shape{BNNSDataLayoutImageCHW, {5, 4, 6}};
    Tensor x(random, in.extents, in.layout, random_float(random), batch, random() % 2);
    Tensor y(random, out.extents, out.layout, random_float(random), batch, random() % 2);
    const uint32_t axes = random() % (2u << x.view.rank);
    BNNSLayerParametersActivation p = layer(x.descriptor, y.descriptor, s.function, s.alpha, s.beta, axes);
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
    CHECK(filter, "%s: %s", name_of(s.function), obn_last_error());
    if (!filter) continue;
    float alphas[6] = {0.5f, 0.25f, 0.0f, 1.0f, 2.0f, 0.125f};
    if (prelu) std::memcpy(BNNSGetPointer(filter, BNNSPointerSpecifierAlpha).data, alphas, sizeof alphas);

    // forward
    const std::vector<std::byte> y_gaps = y.gaps();
    CHECK(BNNSFilterApplyBatch(filter, batch, x.data(), x.batch_stride, y.data(), y.batch_stride) == 0, "%s",
          obn_last_error());
    CHECK(y.gaps() == y_gaps, "%s wrote between values", name_of(s.function));
    std::vector<float> xs = x.numbers<float>(), want(xs.size());
    const auto alpha_at = [&](size_t i) {
      return prelu ? alphas[i / (x.view.extent[0] * x.view.extent[1]) % 6] : s.alpha;
    };
    if (softmax) {
      for (const auto& group : groups_of(x, axes)) {
        std::vector<float> values, results(group.size());
        for (size_t i : group) values.push_back(xs[i]);
        ref::softmax(values.data(), results.data(), group.size(), 1, log);
        for (size_t k = 0; k < group.size(); ++k) want[group[k]] = results[k];
      }
    } else {
      for (size_t i = 0; i < xs.size(); ++i)
        want[i] = static_cast<float>(ref::forward(s.function, xs[i], alpha_at(i), s.beta));
    }
    for (size_t i = 0; i < xs.size(); ++i)
      CHECK(is_close(y.get(i), want[i], softmax && !log ? 1e-4 : 1.0, y.tolerance()),
            "%s forward [%zu]: %g, want %g (axes %u, round %d)", name_of(s.function), i, y.get(i), want[i], axes,
            round);

    // backward, from x or from y, set or added to, in place over dy or not
    const bool from_x = !targets.best().from_y[s.function] ||
                        s.function == BNNSActivationFunctionGELUApproximationSigmoid || random() % 2;
    const bool set = random() % 2;
    Tensor dy(random, out.extents, out.layout, y.view.type, batch, random() % 2);
    Tensor dx(random, in.extents, in.layout, x.view.type, batch, random() % 2);
    dx.descriptor.flags = set ? BNNSNDArrayFlagBackpropSet : BNNSNDArrayFlagBackpropAccumulate;
    const std::vector<float> ys = y.numbers<float>(), dys = dy.numbers<float>(), old = dx.numbers<float>();
    const std::vector<std::byte> dx_gaps = dx.gaps();
    CHECK(BNNSFilterApplyBackwardBatch(filter, batch, from_x ? x.data() : nullptr, x.batch_stride, &dx.descriptor,
                                       dx.batch_stride, from_x ? nullptr : y.data(), y.batch_stride, &dy.descriptor,
                                       dy.batch_stride, nullptr, nullptr) == 0,
          "%s: %s", name_of(s.function), obn_last_error());
    CHECK(dx.gaps() == dx_gaps, "%s backward wrote between values", name_of(s.function));
    std::vector<float> want_dx(xs.size());
    if (softmax) {
      for (const auto& group : groups_of(x, axes)) {
        std::vector<float> y_values, dy_values, results(group.size());
        for (size_t i : group) {
          y_values.push_back(from_x ? want[i] : ys[i]);
          dy_values.push_back(dys[i]);
        }
        ref::softmax_backward(y_values.data(), dy_values.data(), results.data(), group.size(), 1, log);
        for (size_t k = 0; k < group.size(); ++k) want_dx[group[k]] = results[k];
      }
    } else {
      for (size_t i = 0; i < xs.size(); ++i)
        want_dx[i] = static_cast<float>(
            dys[i] * (from_x ? ref::slope_from_x(s.function, xs[i], alpha_at(i), s.beta)
                             : ref::slope_from_y(s.function, ys[i], alpha_at(i), s.beta)));
    }
    for (size_t i = 0; i < xs.size(); ++i) {
      double expected = set ? want_dx[i] : static_cast<double>(old[i]) + want_dx[i];
      CHECK(is_close(dx.get(i), expected, log && large ? 300.0 : 10.0, dx.tolerance()),
            "%s backward [%zu]: %g, want %g (axes %u, round %d)", name_of(s.function), i, dx.get(i), expected, axes,
            round);
    }

    // in place
    Tensor same = x;
    p = layer(same.descriptor, same.descriptor, s.function, s.alpha, s.beta, axes);
    if (!prelu) {
      CHECK(BNNSDirectApplyActivationBatch(&p, nullptr, batch, same.batch_stride, same.batch_stride) == 0, "%s",
            obn_last_error());
      for (size_t i = 0; i < xs.size(); ++i)
        CHECK(is_close(same.get(i), want[i], softmax && !log ? 1e-4 : 1.0, same.tolerance()),
              "%s in place [%zu]: %g, want %g", name_of(s.function), i, same.get(i), want[i]);
    }
    BNNSFilterDestroy(filter);
  }
}

TEST(activation_softmax_of_groups_larger_than_scratch) {
  const size_t n = 300000;
  std::vector<uint16_t> x(n), y(n);
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (auto& v : x) v = bfloat16_of_float(normal(random));
  BNNSLayerParametersActivation p = layer(vector_of(n, BNNSDataTypeBFloat16, x.data()),
                                          vector_of(n, BNNSDataTypeBFloat16, y.data()),
                                          BNNSActivationFunctionLogSoftmax);
  CHECK(BNNSDirectApplyActivationBatch(&p, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  double total = 0.0;
  for (uint16_t v : x) total += std::exp(static_cast<double>(float_of_bfloat16(v)));
  for (size_t i = 0; i < n; i += 997)
    CHECK(is_close(float_of_bfloat16(y[i]), float_of_bfloat16(x[i]) - std::log(total), 0, 8e-3), "value %zu", i);
  // and its gradient: Σ dx = 0 for equal dy up to the softmax itself
  std::vector<uint16_t> dy(n, bfloat16_of_float(1.0f)), dx(n);
  BNNSNDArrayDescriptor dy_desc = vector_of(n, BNNSDataTypeBFloat16, dy.data());
  BNNSNDArrayDescriptor dx_desc = vector_of(n, BNNSDataTypeBFloat16, dx.data());
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  CHECK(backward(filter, x.data(), &dx_desc, nullptr, dy_desc) == 0, "%s", obn_last_error());
  for (size_t i = 0; i < n; i += 997) {
    double want = 1.0 - std::exp(static_cast<double>(float_of_bfloat16(x[i]))) / total * static_cast<double>(n);
    CHECK(is_close(float_of_bfloat16(dx[i]), want, 1.0, 8e-3), "gradient %zu", i);
  }
  BNNSFilterDestroy(filter);
}

TEST(activation_large_outputs_stream_the_same_bits) {
  const size_t n = (size_t{9} << 20) + 17;  // 36 MB and a tail
  std::vector<float> x(n), memory(n + 16), dy(n), small(2048);
  for (size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(i % 4001) * 1e-3f - 2.0f;
    dy[i] = static_cast<float>(i % 13);
  }
  float* y = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) / 4 % 16;
  BNNSLayerParametersActivation p = layer(vector_of(n, BNNSDataTypeFloat32), vector_of(n, BNNSDataTypeFloat32),
                                          BNNSActivationFunctionTanh);
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  const Kernels& kernels = targets.best();
  CHECK(BNNSFilterApply(filter, x.data(), y) == 0, "%s", obn_last_error());
  for (size_t first = 0; first < n; first += small.size()) {
    size_t m = std::min(small.size(), n - first);
    kernels.forward[BNNSActivationFunctionTanh](&x[first], small.data(), m, 0.0f, 0.0f);
    CHECK(std::memcmp(small.data(), y + first, m * 4) == 0, "forward at %zu", first);
  }
  BNNSNDArrayDescriptor dy_desc = vector_of(n, BNNSDataTypeFloat32, dy.data());
  BNNSNDArrayDescriptor dx_desc = vector_of(n, BNNSDataTypeFloat32, y);
  CHECK(backward(filter, x.data(), &dx_desc, nullptr, dy_desc) == 0, "%s", obn_last_error());
  for (size_t first = 0; first < n; first += small.size()) {
    size_t m = std::min(small.size(), n - first);
    kernels.from_x[BNNSActivationFunctionTanh](&x[first], &dy[first], small.data(), m, 0.0f, 0.0f);
    CHECK(std::memcmp(small.data(), y + first, m * 4) == 0, "backward at %zu", first);
  }
  BNNSFilterDestroy(filter);
}

// ---- integers ----

TEST(activation_integer_functions) {
  int32_t x[] = {100, -100, 2147483647, -3};
  int8_t y[4];
  BNNSLayerParametersActivation p = layer(vector_of(4, BNNSDataTypeInt32, x), vector_of(4, BNNSDataTypeInt8, y),
                                          BNNSActivationFunctionIntegerLinearSaturate);
  p.activation.iscale = 3;
  p.activation.ioffset = 1;
  p.activation.ishift = 2;
  CHECK(BNNSDirectApplyActivationBatch(&p, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  CHECK(y[0] == 75 && y[1] == -75 && y[2] == 127 && y[3] == -2, "%d %d %d %d", y[0], y[1], y[2], y[3]);
  const int32_t scale[] = {1, 2}, offset[] = {0, 10}, shift[] = {0, 1};
  p.i_desc.layout = p.o_desc.layout = BNNSDataLayoutImageCHW;
  p.i_desc.size[0] = p.o_desc.size[0] = 2;
  p.i_desc.size[1] = p.o_desc.size[1] = 1;
  p.i_desc.size[2] = p.o_desc.size[2] = 2;
  p.activation.function = BNNSActivationFunctionIntegerLinearSaturatePerChannel;
  CHECK(BNNSDirectApplyActivationBatch(&p, nullptr, 1, 0, 0) == -1 && failed_with("activation: expected"), "%s",
        obn_last_error());
  p.activation.iscale_per_channel = scale;
  p.activation.ioffset_per_channel = offset;
  p.activation.ishift_per_channel = shift;
  int32_t image[] = {-200, 7, 3, -9};
  p.i_desc.data = image;
  CHECK(BNNSDirectApplyActivationBatch(&p, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  CHECK(y[0] == -128 && y[1] == 7 && y[2] == 8 && y[3] == -4, "%d %d %d %d", y[0], y[1], y[2], y[3]);
}

// ---- parameters, gradients of alpha ----

TEST(activation_pointer_is_live) {
  float x[] = {-2.0f, 4.0f}, y[2];
  BNNSLayerParametersActivation p = layer(vector_of(2, BNNSDataTypeFloat32), vector_of(2, BNNSDataTypeFloat32),
                                          BNNSActivationFunctionLeakyRectifiedLinear, 0.25f);
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  CHECK(BNNSFilterApply(filter, x, y) == 0 && y[0] == -0.5f, "%g", y[0]);
  BNNSNDArrayDescriptor alpha = BNNSGetPointer(filter, BNNSPointerSpecifierAlpha);
  CHECK(alpha.data && alpha.size[0] == 1 && *static_cast<float*>(alpha.data) == 0.25f, "alpha");
  *static_cast<float*>(alpha.data) = 0.5f;
  CHECK(BNNSFilterApply(filter, x, y) == 0 && y[0] == -1.0f && y[1] == 4.0f, "%g", y[0]);
  CHECK(BNNSGetPointer(filter, BNNSPointerSpecifierBeta).data, "beta");
  CHECK(!BNNSGetPointer(filter, static_cast<BNNSPointerSpecifier>(2)).data, "no third parameter");
  BNNSFilterDestroy(filter);
}

TEST(activation_alpha_gradient_is_set_or_added) {
  std::mt19937 random(5);
  for (bool prelu : {false, true}) {
    const size_t channels = prelu ? 6 : 1, batch = 3;
    Tensor x(random, {5, 4, 6}, BNNSDataLayoutImageCHW, BNNSDataTypeFloat32, batch, false);
    Tensor dy(random, {5, 4, 6}, BNNSDataLayoutImageCHW, BNNSDataTypeFloat32, batch, false);
    BNNSLayerParametersActivation p =
        layer(x.descriptor, x.descriptor,
              prelu ? BNNSActivationFunctionPReLUPerChannel : BNNSActivationFunctionLeakyRectifiedLinear, -0.5f);
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
    std::vector<float> dw(channels, 1.0f);
    std::vector<double> want(channels);
    for (size_t i = 0; i < x.count(); ++i)
      if (x.get(i) < 0.0f) want[prelu ? i / 20 % 6 : 0] += static_cast<double>(x.get(i)) * dy.get(i);
    BNNSNDArrayDescriptor dw_desc = vector_of(channels, BNNSDataTypeFloat32, dw.data());
    for (BNNSNDArrayFlags flags : {BNNSNDArrayFlagBackpropSet, BNNSNDArrayFlagBackpropAccumulate}) {
      dw_desc.flags = flags;
      CHECK(BNNSFilterApplyBackwardBatch(filter, batch, x.data(), x.batch_stride, nullptr, 0, nullptr, 0,
                                         &dy.descriptor, dy.batch_stride, &dw_desc, nullptr) == 0,
            "%s", obn_last_error());
      const double times = flags == BNNSNDArrayFlagBackpropSet ? 1.0 : 2.0;
      for (size_t c = 0; c < channels; ++c)
        CHECK(is_close(dw[c], times * want[c], 1.0, 1e-5), "channel %zu: %g, want %g", c, dw[c], times * want[c]);
    }
    // Refused, and dw stays: no x; wrong size.
    const std::vector<float> before = dw;
    CHECK(BNNSFilterApplyBackwardBatch(filter, batch, nullptr, 0, nullptr, 0, x.data(), x.batch_stride, &dy.descriptor,
                                       dy.batch_stride, &dw_desc, nullptr) == -1 &&
              failed_with("input: expected"),
          "%s", obn_last_error());
    dw_desc.size[0] = channels + 1;
    CHECK(BNNSFilterApplyBackwardBatch(filter, batch, x.data(), x.batch_stride, nullptr, 0, nullptr, 0, &dy.descriptor,
                                       dy.batch_stride, &dw_desc, nullptr) == -1 &&
              failed_with("weights_gradient: expected"),
          "%s", obn_last_error());
    CHECK(dw == before, "a refused call changed weights_gradient");
    BNNSFilterDestroy(filter);
  }
}

// ---- which tensor backward needs ----

TEST(activation_backward_needs_the_right_tensor) {
  struct Rule {
    Function function;
    float alpha, beta;
    bool from_x, from_y, from_neither;
  };
  const Rule rules[] = {
      {BNNSActivationFunctionIdentity, 0, 0, true, true, true},
      {BNNSActivationFunctionLinear, 2, 0, true, true, true},
      {BNNSActivationFunctionTanh, 0, 0, true, true, false},
      {BNNSActivationFunctionAbs, 0, 0, true, false, false},
      {BNNSActivationFunctionGELUApproximation, 1, 1, true, false, false},
      {BNNSActivationFunctionHardSwish, 0, 0, true, false, false},
      {BNNSActivationFunctionSiLU, 0, 0, true, false, false},
      {BNNSActivationFunctionErf, 0, 0, true, false, false},
      {BNNSActivationFunctionGELU, 0, 0, true, false, false},
      {BNNSActivationFunctionLeakyRectifiedLinear, 0, 0, true, true, false},
      {BNNSActivationFunctionLeakyRectifiedLinear, -1, 0, true, false, false},
      {BNNSActivationFunctionClampedLeakyRectifiedLinear, 0, 1, true, false, false},
      {BNNSActivationFunctionELU, 1, 0, true, true, false},
      {BNNSActivationFunctionELU, 0, 0, true, false, false},
      {BNNSActivationFunctionCELU, -1, 0, true, false, false},
      {BNNSActivationFunctionThreshold, 1, 1, true, true, false},
      {BNNSActivationFunctionThreshold, 0, 1, true, false, false},
      {BNNSActivationFunctionSoftplus, 0, 1, true, false, false},
      {BNNSActivationFunctionScaledTanh, 0, 1, true, false, false},
      {BNNSActivationFunctionSoftmax, 0, 0, true, true, false},
      {BNNSActivationFunctionGELUApproximationSigmoid, 0, 0, true, true, false},
      {BNNSActivationFunctionGumbel, 1, 0, false, false, false},
      {BNNSActivationFunctionGumbelMax, 1, 0, false, false, false},
  };
  float x[4] = {0.5f, 1.0f, 1.5f, 2.0f}, y[4] = {0.25f, 0.5f, 0.75f, 0.875f}, dy[4] = {1, 1, 1, 1}, dx[4];
  BNNSNDArrayDescriptor dy_desc = vector_of(4, BNNSDataTypeFloat32, dy);
  BNNSNDArrayDescriptor dx_desc = vector_of(4, BNNSDataTypeFloat32, dx);
  for (const Rule& r : rules) {
    BNNSLayerParametersActivation p = layer(vector_of(4, BNNSDataTypeFloat32), vector_of(4, BNNSDataTypeFloat32),
                                            r.function, r.alpha, r.beta);
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
    const auto run = [&](const float* with_x, const float* with_y) {
      return backward(filter, with_x, &dx_desc, with_y, dy_desc) == 0;
    };
    CHECK(run(x, nullptr) == r.from_x, "%s alpha %g from x", name_of(r.function), r.alpha);
    CHECK(run(nullptr, y) == r.from_y, "%s alpha %g from y", name_of(r.function), r.alpha);
    CHECK(run(x, y) == r.from_x, "%s alpha %g from both", name_of(r.function), r.alpha);
    CHECK(run(nullptr, nullptr) == r.from_neither, "%s alpha %g from neither", name_of(r.function), r.alpha);
    BNNSFilterDestroy(filter);
  }
}

TEST(activation_ambiguous_outputs_are_refused_before_writing) {
  std::vector<float> y(40000, 0.5f), dy(40000, 1.0f), dx(40000, 7.0f);
  y[39999] = -0.1f;
  BNNSLayerParametersActivation p =
      layer(vector_of(40000, BNNSDataTypeFloat32), vector_of(40000, BNNSDataTypeFloat32),
            BNNSActivationFunctionGELUApproximationSigmoid);
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  BNNSNDArrayDescriptor dy_desc = vector_of(40000, BNNSDataTypeFloat32, dy.data());
  BNNSNDArrayDescriptor dx_desc = vector_of(40000, BNNSDataTypeFloat32, dx.data());
  CHECK(backward(filter, nullptr, &dx_desc, y.data(), dy_desc) == -1 && failed_with("input: expected"), "%s",
        obn_last_error());
  CHECK(std::all_of(dx.begin(), dx.end(), [](float v) { return v == 7.0f; }), "something was written");
  BNNSFilterDestroy(filter);
}

TEST(activation_clamp_bounds_from_x_and_y) {
  float x[] = {-1.0f, 0.0f, 2.0f, 3.0f}, y[] = {-1.0f, 0.0f, 2.0f, 2.0f}, dy[] = {1, 1, 1, 1}, dx[4];
  BNNSLayerParametersActivation p = layer(vector_of(4, BNNSDataTypeFloat32), vector_of(4, BNNSDataTypeFloat32),
                                          BNNSActivationFunctionClamp, -1.0f, 2.0f);
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  BNNSNDArrayDescriptor dy_desc = vector_of(4, BNNSDataTypeFloat32, dy);
  BNNSNDArrayDescriptor dx_desc = vector_of(4, BNNSDataTypeFloat32, dx);
  CHECK(backward(filter, x, &dx_desc, y, dy_desc) == 0, "%s", obn_last_error());
  CHECK(dx[0] == 1 && dx[1] == 1 && dx[2] == 1 && dx[3] == 0, "both given: %g %g %g %g", dx[0], dx[1], dx[2], dx[3]);
  CHECK(backward(filter, nullptr, &dx_desc, y, dy_desc) == 0, "%s", obn_last_error());
  CHECK(dx[0] == 0 && dx[1] == 1 && dx[2] == 0 && dx[3] == 0, "only y: %g %g %g %g", dx[0], dx[1], dx[2], dx[3]);
  BNNSFilterDestroy(filter);
}

TEST(activation_refuses_what_cannot_be_meant) {
  float memory[64] = {};
  BNNSNDArrayDescriptor four = vector_of(4, BNNSDataTypeFloat32, memory);
  const auto refused = [&](const BNNSLayerParametersActivation& p, const char* start) {
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
    BNNSFilterDestroy(filter);
    return !filter && failed_with(start);
  };
  CHECK(refused(layer(four, four, static_cast<Function>(36)), "activation: expected"), "%s", obn_last_error());
  CHECK(refused(layer(four, vector_of(5, BNNSDataTypeFloat32), BNNSActivationFunctionTanh), "output: expected"), "%s",
        obn_last_error());
  CHECK(refused(layer(four, vector_of(4, BNNSDataTypeInt8), BNNSActivationFunctionTanh), "output: expected"), "%s",
        obn_last_error());
  CHECK(refused(layer(four, four, BNNSActivationFunctionIntegerLinearSaturate), "input: expected"), "%s",
        obn_last_error());
  CHECK(refused(layer(four, four, BNNSActivationFunctionPReLUPerChannel), "input: expected"), "%s", obn_last_error());
  CHECK(refused(layer(four, four, BNNSActivationFunctionSoftmax, 0, 0, 4), "axes: expected"), "%s", obn_last_error());
  CHECK(!BNNSFilterCreateLayerActivation(nullptr, nullptr) && failed_with("layer_params: expected"), "%s",
        obn_last_error());
  CHECK(BNNSDirectApplyActivationBatch(nullptr, nullptr, 1, 0, 0) == -1 && failed_with("layer_params: expected"), "%s",
        obn_last_error());

  BNNSLayerParametersActivation p = layer(four, four, BNNSActivationFunctionTanh);
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  CHECK(BNNSFilterApply(filter, nullptr, memory) == -1 && failed_with("input: expected"), "%s", obn_last_error());
  CHECK(BNNSFilterApply(filter, memory, nullptr) == -1 && failed_with("output: expected"), "%s", obn_last_error());
  CHECK(BNNSFilterApply(filter, memory, memory + 1) == -1 && failed_with("output: expected"), "overlap: %s",
        obn_last_error());
  CHECK(BNNSFilterApply(filter, memory, memory) == 0, "in place");
  CHECK(BNNSFilterApplyBatch(filter, 0, nullptr, 0, nullptr, 0) == 0, "empty batch");
  BNNSNDArrayDescriptor dx = vector_of(4, BNNSDataTypeFloat32, memory + 8);
  CHECK(backward(filter, memory, &dx, nullptr, vector_of(5, BNNSDataTypeFloat32, memory)) == -1 &&
            failed_with("grad_output: expected"), "%s", obn_last_error());
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, memory, 0, &dx, 0, nullptr, 0, &four, 0, nullptr, &dx) == -1 &&
            failed_with("bias_gradient: expected"), "%s", obn_last_error());
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, memory, 0, &dx, 0, nullptr, 0, &four, 0, &dx, nullptr) == -1 &&
            failed_with("weights_gradient: expected"), "%s", obn_last_error());
  dx.data = memory + 2;
  CHECK(backward(filter, memory, &dx, nullptr, four) == -1 && failed_with("input_gradient: expected"), "%s",
        obn_last_error());
  BNNSFilterDestroy(filter);
}

TEST(activation_gradient_may_take_the_place_of_its_sources) {
  for (Function function : {BNNSActivationFunctionTanh, BNNSActivationFunctionSoftmax}) {
    float y[] = {0.25f, 0.5f, 0.125f, 0.125f}, dy[] = {1.0f, -2.0f, 3.0f, 4.0f}, apart[4];
    BNNSNDArrayDescriptor y_desc = vector_of(4, BNNSDataTypeFloat32, y);
    BNNSNDArrayDescriptor dy_desc = vector_of(4, BNNSDataTypeFloat32, dy);
    BNNSNDArrayDescriptor dx_desc = vector_of(4, BNNSDataTypeFloat32, apart);
    BNNSLayerParametersActivation p = layer(y_desc, y_desc, function);
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
    CHECK(backward(filter, nullptr, &dx_desc, y, dy_desc) == 0, "%s", obn_last_error());
    CHECK(backward(filter, nullptr, &dy_desc, y, dy_desc) == 0, "%s", obn_last_error());
    CHECK(std::memcmp(dy, apart, sizeof apart) == 0, "%s over grad_output", name_of(function));
    float fresh[] = {1.0f, -2.0f, 3.0f, 4.0f};
    dy_desc.data = fresh;
    CHECK(backward(filter, nullptr, &y_desc, y, dy_desc) == 0, "%s", obn_last_error());
    CHECK(std::memcmp(y, apart, sizeof apart) == 0, "%s over the output", name_of(function));
    BNNSFilterDestroy(filter);
  }
  // The gradient of alpha never may: it is not of their shape.
  float x = -1.0f, dy = 2.0f, dx;
  BNNSNDArrayDescriptor one = vector_of(1, BNNSDataTypeFloat32, &x), dy_desc = vector_of(1, BNNSDataTypeFloat32, &dy);
  BNNSNDArrayDescriptor dx_desc = vector_of(1, BNNSDataTypeFloat32, &dx);
  BNNSLayerParametersActivation p = layer(one, one, BNNSActivationFunctionLeakyRectifiedLinear, 0.5f);
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  CHECK(BNNSFilterApplyBackwardBatch(filter, 1, &x, 0, &dx_desc, 0, nullptr, 0, &dy_desc, 0, &one, nullptr) == -1 &&
            failed_with("weights_gradient: expected"), "%s", obn_last_error());
  BNNSFilterDestroy(filter);
}

TEST(activation_random_descriptors_never_crash) {
  std::mt19937 random(6);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    Shape shape = random_shape(random, false);
    BNNSLayerParametersActivation p{};
    for (BNNSNDArrayDescriptor* d : {&p.i_desc, &p.o_desc}) {
      d->layout = shape.layout;
      std::copy(shape.extents.begin(), shape.extents.end(), d->size);
      d->data_type = random_float(random);
    }
    p.activation.function = static_cast<Function>(random() % 38);
    p.axis_flags = random() % 8;
    for (int change = random() % 4; change > 0; --change) {
      BNNSNDArrayDescriptor& d = random() % 2 ? p.i_desc : p.o_desc;
      const size_t odd[] = {0, 1, 2, 7, SIZE_MAX, SIZE_MAX / 2, size_t{1} << 62, 120};
      switch (random() % 7) {
        case 0:
          d.layout = static_cast<BNNSDataLayout>(random() % 9 << 16 | (random() % 2 ? 0x8000 : random() % 4));
          break;
        case 1: d.size[random() % 8] = odd[random() % 8]; break;
        case 2: d.stride[random() % 8] = odd[random() % 8]; break;
        case 3: d.data_type = static_cast<BNNSDataType>(0x10000u << random() % 6 | 1u << random() % 7); break;
        case 4: d.flags = static_cast<BNNSNDArrayFlags>(random() % 4); break;
        case 5: d.table_data_type = static_cast<BNNSDataType>(random()); break;
        default: p.axis_flags = static_cast<uint32_t>(random()); break;
      }
    }
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
    if (filter) {
      ++accepted;
      CHECK(BNNSFilterApplyBatch(filter, 1, nullptr, 0, nullptr, 0) == -1, "no data");
      BNNSFilterDestroy(filter);
    } else {
      ++refused;
      CHECK(std::strstr(obn_last_error(), ": expected") || std::strstr(obn_last_error(), "memory"), "round %d: \"%s\"",
            round, obn_last_error());
    }
  }
  CHECK(refused > 1000 && accepted > 100, "%d refused, %d accepted", refused, accepted);
}

// ---- threads ----

TEST(activation_any_number_of_threads_gives_the_same_bits) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  const size_t batch = 7, w = 50, h = 40, c = 5, count = w * h * c;
  std::vector<float> x(batch * count), dy(batch * count);
  for (float& v : x) v = normal(random);
  for (float& v : dy) v = normal(random);
  BNNSNDArrayDescriptor image{};
  image.layout = BNNSDataLayoutImageCHW;
  image.data_type = BNNSDataTypeFloat32;
  image.size[0] = w;
  image.size[1] = h;
  image.size[2] = c;
  const size_t before = obn_get_num_threads();
  for (Function function : {BNNSActivationFunctionTanh, BNNSActivationFunctionSoftmax, BNNSActivationFunctionLogSoftmax,
                            BNNSActivationFunctionLeakyRectifiedLinear, BNNSActivationFunctionPReLUPerChannel,
                            BNNSActivationFunctionGumbel, BNNSActivationFunctionGumbelMax}) {
    const bool noise = function == BNNSActivationFunctionGumbel || function == BNNSActivationFunctionGumbelMax;
    const bool has_alpha = function == BNNSActivationFunctionLeakyRectifiedLinear ||
                           function == BNNSActivationFunctionPReLUPerChannel;
    BNNSLayerParametersActivation p = layer(image, image, function, noise ? 0.999f : 0.1f, noise ? 1e-4f : 0.0f, 4);
    std::vector<float> first_y, first_dx, first_dw;
    for (size_t threads : {1, 2, 7}) {
      obn_set_num_threads(threads);
      obn_set_seed(11);
      BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
      std::vector<float> y(x.size()), dx(x.size()), dw(5);
      CHECK(BNNSFilterApplyBatch(filter, batch, x.data(), 0, y.data(), 0) == 0, "%s", obn_last_error());
      if (!noise) {
        BNNSNDArrayDescriptor dy_desc = image, dx_desc = image;
        dy_desc.data = dy.data();
        dx_desc.data = dx.data();
        BNNSNDArrayDescriptor dw_desc =
            vector_of(function == BNNSActivationFunctionPReLUPerChannel ? 5 : 1, BNNSDataTypeFloat32, dw.data());
        CHECK(BNNSFilterApplyBackwardBatch(filter, batch, x.data(), 0, &dx_desc, 0, y.data(), 0, &dy_desc, 0,
                                           has_alpha ? &dw_desc : nullptr, nullptr) == 0, "%s", obn_last_error());
      }
      BNNSFilterDestroy(filter);
      if (threads == 1) {
        first_y = y;
        first_dx = dx;
        first_dw = dw;
      }
      CHECK(std::memcmp(y.data(), first_y.data(), y.size() * 4) == 0, "%s with %zu threads", name_of(function),
            threads);
      CHECK(std::memcmp(dx.data(), first_dx.data(), dx.size() * 4) == 0 && dw == first_dw,
            "%s backward with %zu threads", name_of(function), threads);
    }
  }
  obn_set_num_threads(before);
}

// ---- random numbers ----

TEST(activation_gumbel_noise) {
  const size_t n = 40000;
  std::vector<float> x(n, 5.0f), a(n), b(n), c(n);
  BNNSLayerParametersActivation p = layer(vector_of(n, BNNSDataTypeFloat32), vector_of(n, BNNSDataTypeFloat32),
                                          BNNSActivationFunctionGumbel, 1.0f - 2e-6f, 1e-6f);
  BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  obn_set_seed(42);
  BNNSFilterApply(filter, x.data(), a.data());
  BNNSFilterApply(filter, x.data(), b.data());
  obn_set_seed(42);
  BNNSFilterApply(filter, x.data(), c.data());
  CHECK(a == c && a != b, "the seed decides");
  double mean = 0.0;
  for (float v : a) mean += v / static_cast<double>(n);
  CHECK(std::fabs(mean - 0.5772) < 0.03, "mean %g", mean);  // Euler's constant, five standard errors
  BNNSFilterDestroy(filter);

  p = layer(vector_of(4, BNNSDataTypeFloat32), vector_of(4, BNNSDataTypeFloat32), BNNSActivationFunctionGumbelMax,
            1.0f - 2e-6f, 1e-6f);
  filter = BNNSFilterCreateLayerActivation(&p, nullptr);
  float logits[] = {0.0f, 1000.0f, 1.0f, 2.0f}, y[4];
  CHECK(BNNSFilterApply(filter, logits, y) == 0, "%s", obn_last_error());
  CHECK(y[0] == y[1] && y[1] == y[2] && y[2] == y[3] && std::fabs(y[0] - 1000.0f) < 30.0f, "%g %g", y[0], y[1]);
  BNNSFilterDestroy(filter);
}

// ---- fused and legacy ----

TEST(activation_fused_rows) {
  BNNSActivation a{};
  Fused fused;
  a.function = static_cast<Function>(99);
  CHECK(Fused::read(a, "activation", &fused) == -1 && failed_with("activation: expected"), "%s", obn_last_error());
  for (Function function : {BNNSActivationFunctionGumbel, BNNSActivationFunctionGumbelMax,
                            BNNSActivationFunctionIntegerLinearSaturate,
                            BNNSActivationFunctionIntegerLinearSaturatePerChannel}) {
    a.function = function;
    CHECK(Fused::read(a, "activation", &fused) == -1, "%s was accepted", name_of(function));
  }
  for (const Subject& s : kSubjects) {
    a.function = s.function;
    a.alpha = s.alpha;
    a.beta = s.beta;
    CHECK(Fused::read(a, "activation", &fused) == 0, "%s", obn_last_error());
    float row[5] = {0.5f, 1.0f, 1.5f, 2.0f, 3.5f}, dy[5] = {1, 2, 3, 4, 5};
    fused.forward(row, 5);
    CHECK(is_close(row[3], ref::forward(s.function, 2.0, s.alpha, s.beta), 1), "%s", name_of(s.function));
    CHECK((fused.check_backward() == 0) == (targets.best().from_y[s.function] != nullptr), "%s", name_of(s.function));
    if (fused.check_backward() != 0) continue;
    CHECK(!fused.depends_on_values() || fused.accepts(row, 5), "%s", name_of(s.function));
    fused.backward(row, dy, 5);
    CHECK(is_close(dy[3], 4.0 * ref::slope_from_y(s.function, row[3], s.alpha, s.beta), 4), "%s", name_of(s.function));
  }
  CHECK(fused.depends_on_values(), "the last one is the ambiguous one");
  const float negative[] = {0.5f, -0.1f};
  CHECK(!fused.accepts(negative, 2), "a negative output was accepted");
  a.function = BNNSActivationFunctionLeakyRectifiedLinear;
  a.alpha = -1.0f;
  CHECK(Fused::read(a, "activation", &fused) == 0, "%s", obn_last_error());
  CHECK(fused.check_backward() == -1 && failed_with("activation: expected"), "%s", obn_last_error());
  a.function = BNNSActivationFunctionSoftmax;
  float row[3] = {1.0f, 1.0f, 1.0f}, dy[3] = {3.0f, 0.0f, 0.0f};
  CHECK(Fused::read(a, "activation", &fused) == 0, "%s", obn_last_error());
  fused.forward(row, 3);
  fused.backward(row, dy, 3);
  CHECK(is_close(row[0], 1.0 / 3, 0) && is_close(dy[0], 2.0 / 3, 0) && is_close(dy[1], -1.0 / 3, 0), "%g %g", row[0],
        dy[0]);
}

TEST(activation_legacy_vector_layer) {
  BNNSVectorDescriptor x{4, BNNSDataTypeFloat32, 0.0f, 0.0f}, y{4, BNNSDataTypeInt8, 0.5f, 0.0f};
  BNNSActivation relu{};
  relu.function = BNNSActivationFunctionRectifiedLinear;
  float in[] = {-1, 2, -3, 4}, out[4];
  BNNSFilter filter = BNNSFilterCreateVectorActivationLayer(&x, &x, &relu, nullptr);
  CHECK(BNNSFilterApply(filter, in, out) == 0 && out[0] == 0 && out[1] == 2 && out[2] == 0 && out[3] == 4, "%s",
        obn_last_error());
  BNNSFilterDestroy(filter);
  BNNSActivation identity{};
  int8_t stored[4];
  filter = BNNSFilterCreateVectorActivationLayer(&x, &y, &identity, nullptr);
  CHECK(BNNSFilterApply(filter, in, stored) == 0 && stored[0] == -2 && stored[3] == 8, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  y.data_type = BNNSDataTypeIndexed8;
  CHECK(!BNNSFilterCreateVectorActivationLayer(&y, &x, &identity, nullptr) && failed_with("input: expected"), "%s",
        obn_last_error());
  CHECK(!BNNSFilterCreateVectorActivationLayer(nullptr, &x, &identity, nullptr) && failed_with("input: expected"), "%s",
        obn_last_error());
}
