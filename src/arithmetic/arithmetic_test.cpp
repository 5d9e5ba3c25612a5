#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "arithmetic/arithmetic.h"
#include "base/test_array.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/openbnns.h"

using namespace obn;
using namespace obn::arithmetic;

namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kNan = __builtin_nanf("");

Function function_at(size_t i) { return static_cast<Function>(i); }

// Within `tolerance` of |want| (or of floor, if that is more); below the normal numbers 0 will do.
bool is_close(float got, double want, double floor = 0.0, double tolerance = 4e-7) {
  const float rounded = static_cast<float>(want);
  if (std::isnan(rounded)) return std::isnan(got);
  if (std::isinf(rounded)) return got == rounded || std::fabs(want) < 3.41e38;
  return std::fabs(got - want) <= tolerance * std::max(std::fabs(want), floor) + 1.2e-38;
}

// 16367173·2^72 comes as close to a multiple of π/2 as float32 does.
constexpr float kSpecials[] = {0x1.f37c8ap+95f, 1e5f, -1e5f, 100000.0078f,
                               0.0f,  -0.0f, 1.0f,   -1.0f,  0.5f,   -0.5f,   2.0f,       -2.0f,     3.0f,  2.5f,
                               -2.5f, 0.1f,  0.3f,   1e-45f, -1e-45f, 1e-38f, 3.4e38f,    -3.4e38f,  1e20f, -1e20f,
                               1e-20f, 7.0f, -7.0f,  8388607.5f, -8388607.5f, 16777216.0f, kInfinity, -kInfinity, kNan};

// Values (a, b, c) to try a function with: specials in all pairs, all exponents, and the range where functions bend.
struct Points {
  std::vector<float> a, b, c;
  void add(float x, float y, float z) {
    a.push_back(x);
    b.push_back(y);
    c.push_back(z);
  }
};
const Points& points() {
  static const Points made = [] {
    Points p;
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (float x : kSpecials)
      for (float y : kSpecials) p.add(x, y, normal(random));
    for (uint64_t u = 0; u < 0x100000000; u += 99991)
      p.add(std::bit_cast<float>(static_cast<uint32_t>(u)), normal(random), normal(random));
    for (int i = -20000; i <= 20000; ++i) p.add(static_cast<float>(i) * 5.23e-3f, normal(random), normal(random));
    for (int i = -20000; i <= 20000; ++i) p.add(static_cast<float>(i) * 5.1e-5f, normal(random), normal(random));
    for (int i = 0; i < 20000; ++i) p.add(std::fabs(normal(random)), 5.0f * normal(random), normal(random));
    for (int i = -2000; i <= 2000; ++i) p.add(1.0f + static_cast<float>(i) * 1.2e-7f, normal(random), 1.0f);
    return p;
  }();
  return made;
}

Sources sources_of(const Points& p, const std::vector<float>& y, const std::vector<float>& dz) {
  return {{p.a.data(), p.b.data(), p.c.data(), y.data(), dz.data()}, {true, true, true, true, true}};
}

// What the error is relative to where the result is a difference of larger numbers; 0: the result.
double forward_floor(Function f, double a, double b, double c) {
  switch (f) {
    case BNNSArithmeticAdd:
    case BNNSArithmeticSubtract: return std::max(std::fabs(a), std::fabs(b));
    case BNNSArithmeticMultiplyAdd: return std::max(std::fabs(a * b), std::fabs(c));
    default: return 0.0;
  }
}
double gradient_floor(Function f, double want) {
  switch (f) {
    case BNNSArithmeticErf: return 1.0;                                        // rounding of a²
    case BNNSArithmeticReciprocalSquareRoot: return 2.0 * std::fabs(want);      // three roundings
    case BNNSArithmeticTan: return 4.0 * std::fabs(want);
    case BNNSArithmeticPow: return 2.0 * std::fabs(want);
    default: return 0.0;
  }
}

}  // namespace

// ---- kernels against the reference, on every target ----

TEST(arithmetic_rows_match_ref_on_every_target) {
  const Points& p = points();
  const size_t n = p.a.size();
  std::vector<float> y(n), dx(n), ones(n, 1.0f);
  const Sources sources = sources_of(p, y, ones);
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (size_t f = 0; f < kFunctions; ++f) {
      const Function function = function_at(f);
      kernels.forward[f](sources, y.data(), n);
      for (size_t i = 0; i < n; ++i) {
        const double want = ref::forward(function, p.a[i], p.b[i], p.c[i]);
        CHECK(is_close(y[i], want, forward_floor(function, p.a[i], p.b[i], p.c[i])),
              "%s %s(%.9g, %.9g, %.9g) = %.9g, want %.9g", name_of(isa), name_of(function), p.a[i], p.b[i], p.c[i],
              y[i], want);
      }
      for (size_t k = 0; k < inputs_of(function); ++k) {
        kernels.gradient[f][k](sources, dx.data(), n);
        for (size_t i = 0; i < n; ++i) {
          const double want = ref::gradient(function, k, p.a[i], p.b[i], p.c[i], 1.0);
          // Powers are rounded to float before they are multiplied: some are too large or too small for that.
          const double power = function == BNNSArithmeticPow    ? std::pow(p.a[i], p.b[i] - (k == 0 ? 1.0 : 0.0))
                               : function == BNNSArithmeticExp2 ? std::exp2(p.a[i])
                                                                : 1.0;
          if (std::fabs(power) > 3e38 || std::fabs(power) < 2e-38) continue;
          CHECK(is_close(dx[i], want, gradient_floor(function, want)),
                "%s %s, gradient %zu at (%.9g, %.9g, %.9g) = %.9g, want %.9g", name_of(isa), name_of(function), k,
                p.a[i], p.b[i], p.c[i], dx[i], want);
        }
      }
    }
  }
}

TEST(arithmetic_gradient_from_y_is_gradient_from_x) {
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    size_t found = 0;
    for (size_t f = 0; f < kFunctions; ++f) {
      if (!kernels.gradient_from_y[f]) continue;
      ++found;
      for (float a = 0.01f; a < 4.0f; a += 0.0171f) {
        float y, dx;
        const float dz = 1.5f;
        const Sources sources{{&a, &a, &a, &y, &dz}, {true, true, true, true, true}};
        kernels.forward[f](sources, &y, 1);
        kernels.gradient_from_y[f](sources, &dx, 1);
        const double want = ref::gradient(function_at(f), 0, a, 0.0, 0.0, dz);
        CHECK(is_close(dx, want, f == BNNSArithmeticTanh ? 3.0 : 2.0 * std::fabs(want)), "%s %s at %g: %g, want %g",
              name_of(isa), name_of(function_at(f)), a, dx, want);
      }
    }
    CHECK(found == 5, "%zu functions have a gradient from y", found);
  }
}

TEST(arithmetic_gradient_is_the_difference_quotient) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0.15, 0.85);
  for (size_t f = 0; f < kFunctions; ++f) {
    const Function function = function_at(f);
    for (int i = 0; i < 300; ++i) {
      double at[3] = {uniform(random), uniform(random) + 0.02, uniform(random)};
      if (function == BNNSArithmeticAcosh) at[0] += 1.0;
      if (function == BNNSArithmeticTruncRemainder) at[0] += 2.0;
      const double h = 1e-6;
      // Steps have no slope.
      if (function == BNNSArithmeticFloorDivide || function == BNNSArithmeticTruncDivide ||
          function == BNNSArithmeticTruncRemainder) {
        const double q = at[0] / at[1];
        if (std::fabs(q - std::nearbyint(q)) < 1e-3) continue;
      }
      if (std::fabs(at[0] - 0.5) < 1e-3 || std::fabs(at[0] - at[1]) < 1e-3) continue;  // round, minimum
      for (size_t k = 0; k < inputs_of(function); ++k) {
        double low[3] = {at[0], at[1], at[2]}, high[3] = {at[0], at[1], at[2]};
        low[k] -= h;
        high[k] += h;
        const double quotient = (ref::forward(function, high[0], high[1], high[2]) -
                                 ref::forward(function, low[0], low[1], low[2])) / (2 * h);
        const double slope = ref::gradient(function, k, at[0], at[1], at[2], 1.0);
        CHECK(std::fabs(quotient - slope) < 1e-6 * std::max(1.0, std::fabs(slope)), "%s, %zu at (%g, %g, %g): %g, %g",
              name_of(function), k, at[0], at[1], at[2], slope, quotient);
      }
    }
  }
}

// Numbers beyond what a vector's series is good for change nothing in the lanes beside them.
TEST(arithmetic_neighbours_do_not_change_a_value) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  const float odd[] = {-2.5f, 0.0f, -0.0f, 3e7f, -1e30f, 1e-40f, std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    const auto check = [&](Row row, const char* name) {
      float v[kSources][64], alone[64], beside[64];
      for (auto& values : v)
        for (float& x : values) x = std::fabs(normal(random));
      const Sources all{{v[0], v[1], v[2], v[3], v[4]}, {true, true, true, true, true}};
      row(all, alone, 64);
      for (float number : odd) {
        for (auto& values : v) {
          const float kept = std::exchange(values[37], number);
          row(all, beside, 64);
          values[37] = kept;
          for (size_t i = 0; i < 64; ++i)
            CHECK(i == 37 || std::memcmp(beside + i, alone + i, sizeof(float)) == 0, "%s %s beside %g: %a, %a",
                  name_of(isa), name, number, beside[i], alone[i]);
        }
      }
    };
    for (size_t f = 0; f < kFunctions; ++f) {
      check(kernels.forward[f], name_of(function_at(f)));
      for (size_t k = 0; k < inputs_of(function_at(f)); ++k) check(kernels.gradient[f][k], name_of(function_at(f)));
    }
  }
}

TEST(arithmetic_tails_and_scalars_have_the_bits_of_whole_vectors) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    float v[kSources][64], whole[64], part[64];
    for (auto& row : v)
      for (float& x : row) x = normal(random);
    const auto check = [&](Row row, const char* name) {
      const Sources all{{v[0], v[1], v[2], v[3], v[4]}, {true, true, true, true, true}};
      row(all, whole, 64);
      for (size_t n = 1; n <= 33; ++n) {
        std::fill_n(part, 64, 77.0f);
        row(all, part, n);
        for (size_t i = 0; i < n; ++i)
          CHECK(std::memcmp(part + i, whole + i, sizeof(float)) == 0, "%s %s, %zu of %zu: %a, %a from (%a, %a)",
                name_of(isa), name, i, n, part[i], whole[i], v[0][i], v[1][i]);
        CHECK(part[n] == 77.0f, "%s %s writes beyond %zu", name_of(isa), name, n);
      }
      for (unsigned still = 1; still < 1u << kSources; ++still) {  // sources of one value
        float copies[kSources][64];
        Sources mixed = all, filled = all;
        for (size_t s = 0; s < kSources; ++s) {
          if (!(still >> s & 1)) continue;
          std::fill_n(copies[s], 64, v[s][5]);
          mixed.p[s] = filled.p[s] = copies[s];
          mixed.moves[s] = false;
        }
        row(filled, whole, 37);
        row(mixed, part, 37);
        CHECK(std::memcmp(part, whole, 37 * sizeof(float)) == 0, "%s %s, still %u", name_of(isa), name, still);
      }
    };
    for (size_t f = 0; f < kFunctions; ++f) {
      check(kernels.forward[f], name_of(function_at(f)));
      for (size_t k = 0; k < inputs_of(function_at(f)); ++k) check(kernels.gradient[f][k], name_of(function_at(f)));
      if (kernels.gradient_from_y[f]) check(kernels.gradient_from_y[f], name_of(function_at(f)));
    }
  }
}

// ---- the layer ----

namespace {

// The parameter block with the fields it points to.
struct Block {
  BNNSArithmeticUnary one{};
  BNNSArithmeticBinary two{};
  BNNSArithmeticTernary three{};
  BNNSLayerParametersArithmetic layer{};

  Block(Function function, const BNNSNDArrayDescriptor* x, const BNNSDescriptorType* roles,
        const BNNSNDArrayDescriptor& y, BNNSDescriptorType y_role, BNNSActivation activation = {}) {
    layer.arithmetic_function = function;
    layer.activation = activation;
    switch (function < kFunctions ? inputs_of(function) : 3) {
      case 1:
        one = {x[0], roles[0], y, y_role};
        layer.arithmetic_function_fields = &one;
        return;
      case 2:
        two = {x[0], roles[0], x[1], roles[1], y, y_role};
        layer.arithmetic_function_fields = &two;
        return;
      default:
        three = {x[0], roles[0], x[1], roles[1], x[2], roles[2], y, y_role};
        layer.arithmetic_function_fields = &three;
    }
  }
  Block(const Block&) = delete;
  BNNSFilter create(const BNNSFilterParameters* options = nullptr) const {
    return BNNSFilterCreateLayerArithmetic(&layer, options);
  }
};

constexpr BNNSDescriptorType kSamples[] = {BNNSSample, BNNSSample, BNNSSample};

BNNSFilter vectors(Function function, size_t n, BNNSActivation activation = {}) {
  const BNNSNDArrayDescriptor all[] = {vector_of(n), vector_of(n), vector_of(n)};
  return Block(function, all, kSamples, vector_of(n), BNNSSample, activation).create();
}

// A tensor that knows where a place of the output lies in it.
struct Tensor : test::PlacedArray {
  void make(BNNSDataType type, size_t samples, size_t gap) {
    descriptor.data_type = type;
    PlacedArray::operator=(PlacedArray(descriptor, samples, gap));
  }
  // Index of output place (at over the axes, sample), broadcast.
  size_t index(const size_t* at, size_t sample) const {
    size_t i = batch > 1 ? sample * batch_stride : 0;
    for (size_t k = 0; k < view.rank; ++k) i += (view.extent[k] == 1 ? 0 : at[k]) * view.stride[k];
    return i;
  }
};

// body(at, sample) for every place of the output.
template <class Body>
void for_places(const View& view, size_t batch, const Body& body) {
  for (size_t sample = 0; sample < batch; ++sample) {
    size_t at[BNNS_MAX_TENSOR_DIMENSION] = {};
    for (size_t i = 0; i < view.count; ++i) {
      body(at, sample);
      for (size_t k = 0; k < view.rank && ++at[k] == view.extent[k]; ++k) at[k] = 0;
    }
  }
}

constexpr BNNSDataLayout kLayouts[] = {
    BNNSDataLayoutVector, BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix, BNNSDataLayoutImageCHW,
    BNNSDataLayout2DFirstMajor, BNNSDataLayout3DLastMajor, BNNSDataLayout4DFirstMajor, BNNSDataLayout5DLastMajor,
    BNNSDataLayoutMHA_DHK};

double tolerance_of(BNNSDataType type) {
  return type == BNNSDataTypeFloat32 ? 2e-6 : (type == BNNSDataTypeFloat16 ? 1.5e-3 : 1.2e-2);
}

}  // namespace

// Everything at once, at random: functions, layouts, broadcasting, strides, roles, types, batches, activations, flags,
// shared gradients, operations in place.
TEST(arithmetic_any_call_matches_single_values) {
  std::mt19937 random(11);
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::uniform_real_distribution<float> uniform(0.25f, 0.9f);
  constexpr size_t kExtents[] = {1, 2, 3, 5, 16, 17, 33, 70};
  for (int round = 0; round < 3000; ++round) {
    const Function function = function_at(pick(kFunctions));
    const size_t inputs = inputs_of(function);
    const BNNSDataLayout layout = kLayouts[pick(std::size(kLayouts))];
    const size_t rank = rank_of(layout), batch = 1 + pick(4);
    const BNNSDataType type = pick(3) ? BNNSDataTypeFloat32 : (pick(2) ? BNNSDataTypeFloat16 : BNNSDataTypeBFloat16);
    BNNSActivation activation{};
    constexpr BNNSActivationFunction kActivations[] = {BNNSActivationFunctionIdentity, BNNSActivationFunctionTanh,
                                                       BNNSActivationFunctionRectifiedLinear};
    activation.function = kActivations[pick(4) ? 0 : pick(3)];

    // Shapes: the output's, and each input's with some extents 1; every extent is somebody's.
    Tensor x[kInputs], y;
    size_t count = 1;
    for (size_t i = 0; i < rank; ++i) {
      size_t extent = kExtents[pick(rank > 3 ? 5 : 8)];
      if (count * extent > 6000) extent = 1;
      count *= extent;
      y.descriptor.size[i] = extent;
      const size_t owner = pick(inputs);
      for (size_t k = 0; k < inputs; ++k)
        x[k].descriptor.size[i] = k == owner || pick(3) ? extent : 1;
    }
    BNNSDescriptorType roles[kInputs] = {};
    for (size_t k = 0; k < inputs; ++k) roles[k] = static_cast<BNNSDescriptorType>(pick(3));
    const auto make = [&](Tensor& t, size_t samples) {
      t.descriptor.layout = layout;
      if (!pick(3)) t.descriptor.stride[0] = 1 + pick(3);
      t.make(type, samples, pick(2) * pick(9));
    };
    make(y, batch);
    for (size_t k = 0; k < inputs; ++k) {
      make(x[k], roles[k] == BNNSSample ? batch : 1);
      for_places(x[k].view, x[k].batch, [&](const size_t* at, size_t b) {
        float v = uniform(random) + (function == BNNSArithmeticAcosh ? 1.5f : 0.0f);
        if (function == BNNSArithmeticSelect && k == 0) v = static_cast<float>(pick(2));
        if (pick(3) == 0 && function <= BNNSArithmeticMultiply) v = -v;
        x[k].set_at(x[k].index(at, b), v);
      });
    }
    const BNNSNDArrayDescriptor descriptors[] = {x[0].descriptor, x[1].descriptor, x[2].descriptor};
    BNNSFilter filter = Block(function, descriptors, roles, y.descriptor, BNNSSample, activation).create();
    CHECK(filter, "%s: %s", name_of(function), obn_last_error());

    const void* in[kInputs];
    size_t in_stride[kInputs];
    for (size_t k = 0; k < inputs; ++k) {
      in[k] = x[k].data();
      in_stride[k] = x[k].batch_stride;
    }
    std::vector<std::byte> before = y.bytes;
    CHECK(BNNSArithmeticFilterApplyBatch(filter, batch, inputs, in, in_stride, y.data(), y.batch_stride) == 0, "%s: %s",
          name_of(function), obn_last_error());
    const double tolerance = tolerance_of(type);
    const auto act = [&](double z) { return activation::ref::forward(activation.function, z, 0.0, 0.0); };
    std::vector<bool> is_written(y.bytes.size() / bytes_of(type));
    for_places(y.view, batch, [&](const size_t* at, size_t b) {
      double v[kInputs] = {};
      for (size_t k = 0; k < inputs; ++k) v[k] = x[k].get_at(x[k].index(at, b));
      const double want = act(ref::forward(function, v[0], v[1], v[2]));
      const double got = y.get_at(y.index(at, b));
      is_written[y.index(at, b)] = true;
      CHECK(std::fabs(got - want) <= tolerance * std::max(std::fabs(want), 0.5), "%d: %s(%g, %g, %g) = %g, want %g",
            round, name_of(function), v[0], v[1], v[2], got, want);
    });
    const size_t bytes = bytes_of(type);
    for (size_t i = 0; i < is_written.size(); ++i)
      CHECK(is_written[i] || std::memcmp(&before[i * bytes], &y.bytes[i * bytes], bytes) == 0,
            "%d: %s touches value %zu between its own", round, name_of(function), i);

    // Gradients. Two inputs of one shape and role may share theirs; one may take the place of dy.
    Tensor dy, dx[kInputs];
    dy.descriptor = y.descriptor;
    make(dy, batch);
    for_places(dy.view, batch, [&](const size_t* at, size_t b) { dy.set_at(dy.index(at, b), uniform(random) - 0.5f); });
    const Tensor dy_before = dy;
    std::vector<double> want[kInputs];
    size_t target[kInputs];
    BNNSNDArrayDescriptor* slots[kInputs];
    size_t slot_stride[kInputs];
    for (size_t k = 0; k < inputs; ++k) {
      target[k] = k;
      if (k == 1 && roles[0] == roles[1] && x[0].view.count == x[1].view.count &&
          std::equal(x[0].view.extent, x[0].view.extent + rank, x[1].view.extent) && pick(2))
        target[k] = 0;
      dx[k].descriptor = x[k].descriptor;
      make(dx[k], x[k].batch);
      dx[k].descriptor.flags = pick(2) ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
      for_places(dx[k].view, dx[k].batch, [&](const size_t* at, size_t b) { dx[k].set_at(dx[k].index(at, b), 0.75f); });
    }
    const bool in_place = roles[0] == BNNSSample && x[0].view.count == y.view.count && !pick(4);
    if (in_place) {
      dx[0] = dy;
      dx[0].descriptor.flags = BNNSNDArrayFlagBackpropSet;
    }
    for (size_t k = 0; k < inputs; ++k) {
      Tensor& t = dx[target[k]];
      slots[k] = in_place && target[k] == 0 ? &dy.descriptor : &t.descriptor;
      if (roles[k] == BNNSConstant) slots[k] = &dx[k].descriptor;
      slot_stride[k] = t.batch_stride;
    }
    std::vector<std::byte> constant_before[kInputs];
    for (size_t k = 0; k < inputs; ++k) {
      constant_before[k] = dx[k].bytes;
      const Tensor& t = dx[target[k]];
      want[k].assign(t.bytes.size() / bytes_of(type), 0.0);
    }
    std::vector<double> size[kInputs];
    for (size_t k = 0; k < inputs; ++k) size[k].assign(want[k].size(), 0.0);
    for_places(y.view, batch, [&](const size_t* at, size_t b) {
      double v[kInputs] = {};
      for (size_t k = 0; k < inputs; ++k) v[k] = x[k].get_at(x[k].index(at, b));
      const double slope = activation::ref::slope_from_y(activation.function, y.get_at(y.index(at, b)), 0.0, 0.0);
      const double dz = dy_before.get_at(dy.index(at, b)) * slope;
      for (size_t k = 0; k < inputs; ++k) {
        const double part = ref::gradient(function, k, v[0], v[1], v[2], dz);
        want[target[k]][dx[target[k]].index(at, b)] += part;
        size[target[k]][dx[target[k]].index(at, b)] += std::fabs(part);
      }
    });
    CHECK(BNNSArithmeticFilterApplyBackwardBatch(filter, batch, inputs, in, in_stride, slots, slot_stride,
                                                 y.data(), y.batch_stride, &dy.descriptor, dy.batch_stride) == 0,
          "%d: %s: %s", round, name_of(function), obn_last_error());
    for (size_t k = 0; k < inputs; ++k) {
      if (roles[k] == BNNSConstant) {
        CHECK(constant_before[k] == dx[k].bytes, "%d: %s writes the gradient of a constant", round, name_of(function));
        continue;
      }
      if (target[k] != k) continue;
      const Tensor& result = in_place && k == 0 ? dy : dx[k];
      const double old = dx[k].descriptor.flags == BNNSNDArrayFlagBackpropAccumulate ? 0.75 : 0.0;
      for_places(dx[k].view, dx[k].batch, [&](const size_t* at, size_t b) {
        const size_t i = dx[k].index(at, b);
        const double got = result.get_at(i);
        CHECK(std::fabs(got - (want[k][i] + old)) <= 2.0 * tolerance * (size[k][i] + old + 0.05),
              "%d: %s, gradient %zu is %g, want %g", round, name_of(function), k, got, want[k][i] + old);
      });
    }
    if (!in_place) CHECK(dy.bytes == dy_before.bytes, "%d: %s changes dy", round, name_of(function));
    BNNSFilterDestroy(filter);
  }
}

TEST(arithmetic_vectors_of_the_specification) {
  const float a[] = {1, 2, 3, 10, 20, 30}, b[] = {10, 20, 30}, c[] = {0.5f, 0.5f, 0.5f, -1, -2, -3};
  float y[6];
  BNNSFilter add = vectors(BNNSArithmeticAdd, 3);
  const void* in[] = {a, b};
  const size_t none[] = {0, 0};
  CHECK(BNNSArithmeticFilterApplyBatch(add, 1, 2, in, none, y, 0) == 0, "%s", obn_last_error());
  CHECK(y[0] == 11 && y[1] == 22 && y[2] == 33, "%g %g %g", y[0], y[1], y[2]);
  in[1] = c;
  CHECK(BNNSArithmeticFilterApplyBatch(add, 2, 2, in, none, y, 0) == 0, "%s", obn_last_error());
  const float sums[] = {1.5f, 2.5f, 3.5f, 9, 18, 27};
  CHECK(std::memcmp(y, sums, sizeof sums) == 0, "%g %g", y[0], y[3]);
  float dy[] = {1, 2, 3}, da[3], db[3];
  BNNSNDArrayDescriptor dy_desc = vector_of(3, dy), da_desc = vector_of(3, da), db_desc = vector_of(3, db);
  BNNSNDArrayDescriptor* deltas[] = {&da_desc, &db_desc};
  CHECK(BNNSArithmeticFilterApplyBackwardBatch(add, 1, 2, nullptr, nullptr, deltas, none, nullptr, 0, &dy_desc, 0) == 0,
        "%s", obn_last_error());
  CHECK(std::memcmp(da, dy, sizeof dy) == 0 && std::memcmp(db, dy, sizeof dy) == 0, "%g %g", da[0], db[0]);
  CHECK(BNNSFilterApply(add, a, y) == -1 && BNNSFilterApplyBatch(add, 1, a, 0, y, 0) == -1, "generic apply");
  BNNSFilterDestroy(add);

  const float x[] = {-3, -1, 2, 4};
  const void* only[] = {x};
  BNNSFilter square = vectors(BNNSArithmeticSquare, 4);
  CHECK(BNNSArithmeticFilterApplyBatch(square, 1, 1, only, none, y, 0) == 0, "%s", obn_last_error());
  CHECK(y[0] == 9 && y[1] == 1 && y[2] == 4 && y[3] == 16, "%g %g", y[0], y[1]);
  BNNSFilterDestroy(square);
}

TEST(arithmetic_gradients_without_data_are_left_out) {
  float a[] = {1, -2, 3}, b[] = {4, 5, 6}, dy[] = {1, 10, 100}, db[3];
  BNNSFilter multiply = vectors(BNNSArithmeticMultiply, 3);
  const void* in[] = {a, nullptr};  // b is read for the gradient of a only
  BNNSNDArrayDescriptor dy_desc = vector_of(3, dy), none = vector_of(3), db_desc = vector_of(3, db);
  BNNSNDArrayDescriptor* deltas[] = {&none, &db_desc};
  const auto backward = [&] {
    return BNNSArithmeticFilterApplyBackwardBatch(multiply, 1, 2, in, nullptr, deltas, nullptr, nullptr, 0, &dy_desc,
                                                  0);
  };
  CHECK(backward() == 0, "%s", obn_last_error());
  CHECK(db[0] == 1 && db[1] == -20 && db[2] == 300, "%g %g %g", db[0], db[1], db[2]);
  std::swap(deltas[0], deltas[1]);
  CHECK(backward() == -1 && failed_with("input_b: expected data"), "%s", obn_last_error());
  in[0] = nullptr;
  in[1] = b;
  CHECK(backward() == 0 && db[0] == 4 && db[1] == 50 && db[2] == 600, "%s", obn_last_error());
  deltas[1] = deltas[0] = &none;
  CHECK(backward() == 0, "%s", obn_last_error());
  BNNSFilterDestroy(multiply);
}

TEST(arithmetic_one_array_twice_gets_the_sum) {
  float x[] = {1, -2, 3}, y[3], dy[] = {1, 10, 100}, dx[] = {5, 5, 5};
  BNNSFilter multiply = vectors(BNNSArithmeticMultiply, 3);
  const void* in[] = {x, x};
  BNNSNDArrayDescriptor dy_desc = vector_of(3, dy), dx_desc = vector_of(3, dx), same = dx_desc;
  BNNSNDArrayDescriptor* deltas[] = {&dx_desc, &same};
  const auto backward = [&] {
    return BNNSArithmeticFilterApplyBackwardBatch(multiply, 1, 2, in, nullptr, deltas, nullptr, y, 0, &dy_desc, 0);
  };
  CHECK(BNNSArithmeticFilterApplyBatch(multiply, 1, 2, in, nullptr, y, 0) == 0, "%s", obn_last_error());
  CHECK(backward() == 0, "%s", obn_last_error());
  CHECK(dx[0] == 2 && dx[1] == -40 && dx[2] == 600, "%g %g %g", dx[0], dx[1], dx[2]);
  dx_desc.flags = same.flags = BNNSNDArrayFlagBackpropAccumulate;
  CHECK(backward() == 0 && dx[0] == 4 && dx[1] == -80, "%g %g", dx[0], dx[1]);
  same.flags = BNNSNDArrayFlagBackpropSet;
  CHECK(backward() == -1 && failed_with("input_gradient: expected the same"), "%s", obn_last_error());
  CHECK(dx[0] == 4 && dx[1] == -80, "%g %g", dx[0], dx[1]);
  BNNSFilterDestroy(multiply);
}

TEST(arithmetic_works_in_place) {
  for (size_t f = 0; f < kFunctions; ++f) {
    const Function function = function_at(f);
    const size_t inputs = inputs_of(function), n = 1500, batch = 2;
    std::vector<float> v[kInputs], apart(n * batch);
    for (size_t k = 0; k < kInputs; ++k)
      for (size_t i = 0; i < n * batch; ++i) v[k].push_back(static_cast<float>((i * 7 + k * 3) % 90) / 100.0f + 0.01f);
    const void* in[] = {v[0].data(), v[1].data(), v[2].data()};
    BNNSFilter filter = vectors(function, n);
    CHECK(BNNSArithmeticFilterApplyBatch(filter, batch, inputs, in, nullptr, apart.data(), 0) == 0, "%s",
          obn_last_error());
    std::vector<float>& last = v[inputs - 1];
    CHECK(BNNSArithmeticFilterApplyBatch(filter, batch, inputs, in, nullptr, last.data(), 0) == 0, "%s",
          obn_last_error());
    CHECK(std::memcmp(apart.data(), last.data(), n * batch * sizeof(float)) == 0, "%s", name_of(function));
    CHECK(BNNSArithmeticFilterApplyBatch(filter, batch, inputs, in, nullptr, last.data() - 1, 0) == -1 &&
              failed_with("output: expected memory apart"), "%s", obn_last_error());
    BNNSFilterDestroy(filter);
  }
}

TEST(arithmetic_gradients_without_inputs) {
  float x[] = {0.5f, 1, 2}, b[] = {1, 2, 3}, y[3], dy[] = {1, 2, 3}, da[3], db[3], dc[3];
  BNNSNDArrayDescriptor dy_desc = vector_of(3, dy), d0 = vector_of(3, da), d1 = vector_of(3, db), d2 = vector_of(3, dc);
  BNNSNDArrayDescriptor* deltas[] = {&d0, &d1, &d2};
  for (size_t f = 0; f < kFunctions; ++f) {
    const Function function = function_at(f);
    const size_t inputs = inputs_of(function);
    const bool without = function == BNNSArithmeticAdd || function == BNNSArithmeticSubtract ||
                         function == BNNSArithmeticCeil || function == BNNSArithmeticFloor ||
                         function == BNNSArithmeticRound;
    const bool from_y = function == BNNSArithmeticSquareRoot || function == BNNSArithmeticReciprocalSquareRoot ||
                        function == BNNSArithmeticTanh || function == BNNSArithmeticExp ||
                        function == BNNSArithmeticExp2;
    const void* in[] = {x, b, b};
    for (bool is_fused : {false, true}) {
      BNNSActivation activation{};
      if (is_fused) activation.function = BNNSActivationFunctionSigmoid;
      BNNSFilter filter = vectors(function, 3, activation);
      CHECK(BNNSArithmeticFilterApplyBatch(filter, 1, inputs, in, nullptr, y, 0) == 0, "%s", obn_last_error());
      const auto backward = [&](const void** given, const void* out) {
        std::fill_n(da, 3, 77.0f);
        return BNNSArithmeticFilterApplyBackwardBatch(filter, 1, inputs, given, nullptr, deltas, nullptr, out, 0,
                                                      &dy_desc, 0);
      };
      CHECK(backward(in, y) == 0, "%s: %s", name_of(function), obn_last_error());
      const float want = da[1];
      const int expected = without || (from_y && !is_fused) ? 0 : -1;
      CHECK(backward(nullptr, y) == expected, "%s: %s", name_of(function), obn_last_error());
      CHECK(expected == 0 ? std::fabs(da[1] - want) < 1e-5f : da[1] == 77.0f, "%s: %g, want %g", name_of(function),
            da[1], want);
      CHECK(backward(nullptr, nullptr) == (without && !is_fused ? 0 : -1), "%s", name_of(function));
      CHECK(backward(in, nullptr) == (is_fused ? -1 : 0), "%s", name_of(function));
      if (from_y && !is_fused) {  // in place: the input is gone, its address is the output's
        const void* gone[] = {y};
        CHECK(backward(gone, y) == 0 && std::fabs(da[1] - want) < 1e-5f, "%s: %g, want %g", name_of(function), da[1],
              want);
      }
      BNNSFilterDestroy(filter);
    }
  }
}

TEST(arithmetic_sums_and_streams_match_ref_on_every_target) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (size_t rows : {1, 2, 15, 16, 17, 35}) {
      for (size_t n = 1; n <= 70; n += n < 36 ? 1 : 7) {
        std::vector<float> x(rows * n), y(rows * n + 40, 5.0f);
        for (float& v : x) v = normal(random);
        std::vector<double> by_row(rows, 1.0), by_column(n, 2.0), want_row = by_row, want_column = by_column;
        for (size_t i = 0; i < x.size(); ++i) {
          want_row[i / n] += static_cast<double>(x[i]);
          want_column[i % n] += static_cast<double>(x[i]);
        }
        kernels.sum_rows(x.data(), rows, n, by_row.data());
        kernels.sum_columns(x.data(), rows, n, by_column.data());
        for (size_t i = 0; i < rows; ++i)
          CHECK(std::fabs(by_row[i] - want_row[i]) < 1e-5, "%s: row %zu of %zu x %zu", name_of(isa), i, rows, n);
        for (size_t i = 0; i < n; ++i)
          CHECK(std::fabs(by_column[i] - want_column[i]) < 1e-5, "%s: column %zu of %zu x %zu", name_of(isa), i, rows,
                n);
        const size_t at = random() % 32;
        kernels.stream(x.data(), y.data() + at, x.size());
        kernels.end_streams();
        CHECK(std::equal(x.begin(), x.end(), y.begin() + static_cast<ptrdiff_t>(at)), "%s: %zu values at %zu",
              name_of(isa), x.size(), at);
        const auto is_old = [](float v) { return v == 5.0f; };
        CHECK(std::all_of(y.begin(), y.begin() + static_cast<ptrdiff_t>(at), is_old) &&
                  std::all_of(y.begin() + static_cast<ptrdiff_t>(at + x.size()), y.end(), is_old),
              "%s: written beside", name_of(isa));
      }
    }
  }
}

// ---- same bits for any number of threads; large outputs ----

TEST(arithmetic_threads_do_not_change_bits) {
  struct Shape {
    size_t x[3], b[3];
    BNNSDescriptorType role;
  };
  constexpr Shape kShapes[] = {{{70, 50, 64}, {1, 1, 64}, BNNSParameter}, {{70, 50, 64}, {70, 1, 1}, BNNSParameter},
                               {{70, 50, 64}, {1, 1, 1}, BNNSParameter},  {{70, 50, 64}, {70, 50, 64}, BNNSParameter},
                               {{3, 7000, 5}, {3, 1, 1}, BNNSParameter},  {{3, 7000, 5}, {1, 7000, 1}, BNNSSample},
                               {{200000, 1, 1}, {1, 1, 1}, BNNSSample},   {{10, 1, 30000}, {10, 1, 1}, BNNSParameter},
                               {{45, 100, 330}, {1, 100, 330}, BNNSSample}};  // streamed
  const size_t threads_before = obn_get_num_threads();
  for (const Shape& shape : kShapes) {
    for (BNNSActivationFunction act : {BNNSActivationFunctionIdentity, BNNSActivationFunctionSoftmax}) {
      if (act == BNNSActivationFunctionSoftmax && shape.x[0] > 65536) continue;
      BNNSNDArrayDescriptor x[3] = {}, y{};
      for (BNNSNDArrayDescriptor* d : {&x[0], &x[1], &y}) {
        d->layout = BNNSDataLayoutImageCHW;
        d->data_type = BNNSDataTypeFloat32;
        for (size_t i = 0; i < 3; ++i) d->size[i] = d == &x[1] ? shape.b[i] : shape.x[i];
      }
      const size_t batch = 3, count = shape.x[0] * shape.x[1] * shape.x[2];
      const size_t b_count = shape.b[0] * shape.b[1] * shape.b[2];
      const size_t b_batch = shape.role == BNNSSample ? batch : 1;
      std::mt19937 random(2);
      std::normal_distribution<float> normal;
      std::vector<float> a(count * batch), b(b_count * b_batch), dy(count * batch), out(count * batch);
      for (std::vector<float>* v : {&a, &b, &dy})
        for (float& f : *v) f = normal(random);
      const BNNSDescriptorType roles[] = {BNNSSample, shape.role, BNNSSample};
      BNNSActivation activation{};
      activation.function = act;
      BNNSFilter filter = Block(BNNSArithmeticMultiply, x, roles, y, BNNSSample, activation).create();
      CHECK(filter, "%s", obn_last_error());
      const void* in[] = {a.data(), b.data()};
      std::vector<float> first[3];
      for (size_t threads : {1, 2, 7}) {
        obn_set_num_threads(threads);
        std::vector<float> da(a.size()), db(b.size());
        BNNSNDArrayDescriptor dy_desc = y, da_desc = x[0], db_desc = x[1];
        dy_desc.data = dy.data();
        da_desc.data = da.data();
        db_desc.data = db.data();
        BNNSNDArrayDescriptor* deltas[] = {&da_desc, &db_desc};
        CHECK(BNNSArithmeticFilterApplyBatch(filter, batch, 2, in, nullptr, out.data(), 0) == 0, "%s",
              obn_last_error());
        CHECK(BNNSArithmeticFilterApplyBackwardBatch(filter, batch, 2, in, nullptr, deltas, nullptr, out.data(), 0,
                                                     &dy_desc, 0) == 0, "%s", obn_last_error());
        if (threads == 1) {
          first[0] = out;
          first[1] = da;
          first[2] = db;
          // Sums against double.
          if (act != BNNSActivationFunctionIdentity) continue;
          std::vector<double> want(b.size());
          for (size_t i = 0; i < a.size(); ++i) {
            const size_t within = i % count, at[] = {within % shape.x[0], within / shape.x[0] % shape.x[1],
                                                     within / shape.x[0] / shape.x[1]};
            size_t j = 0, stride = 1;
            for (size_t k = 0; k < 3; stride *= shape.b[k++]) j += (shape.b[k] == 1 ? 0 : at[k]) * stride;
            want[j + (b_batch > 1 ? i / count * b_count : 0)] += static_cast<double>(a[i]) * dy[i];
          }
          const double terms = static_cast<double>(a.size() / want.size());
          for (size_t j = 0; j < want.size(); ++j)
            CHECK(std::fabs(db[j] - want[j]) < 3e-6 * (std::sqrt(terms) + std::fabs(want[j])),
                  "db[%zu] = %g, want %g", j, db[j], want[j]);
          continue;
        }
        CHECK(first[0] == out && first[1] == da && first[2] == db, "%zu threads differ", threads);
      }
      BNNSFilterDestroy(filter);
    }
  }
  obn_set_num_threads(threads_before);
}

TEST(arithmetic_softmax_runs_over_the_first_size) {
  for (BNNSDataLayout layout : {BNNSDataLayout2DLastMajor, BNNSDataLayout2DFirstMajor}) {
    BNNSNDArrayDescriptor d[3] = {};
    for (BNNSNDArrayDescriptor& one : d) {
      one.layout = layout;
      one.data_type = BNNSDataTypeFloat32;
      one.size[0] = 5;
      one.size[1] = 4;
    }
    float a[20], b[20], y[20];
    for (size_t i = 0; i < 20; ++i) {
      a[i] = static_cast<float>(i % 7);
      b[i] = static_cast<float>(i % 3);
    }
    BNNSActivation activation{};
    activation.function = BNNSActivationFunctionSoftmax;
    BNNSFilter filter = Block(BNNSArithmeticAdd, d, kSamples, d[0], BNNSSample, activation).create();
    const void* in[] = {a, b};
    CHECK(BNNSArithmeticFilterApplyBatch(filter, 1, 2, in, nullptr, y, 0) == 0, "%s", obn_last_error());
    const size_t step = layout == BNNSDataLayout2DLastMajor ? 1 : 4, next = layout == BNNSDataLayout2DLastMajor ? 5 : 1;
    for (size_t j = 0; j < 4; ++j) {
      double total = 0.0;
      for (size_t i = 0; i < 5; ++i) total += std::exp(a[j * next + i * step] + b[j * next + i * step]);
      for (size_t i = 0; i < 5; ++i) {
        const size_t k = j * next + i * step;
        CHECK(is_close(y[k], std::exp(a[k] + b[k]) / total, 1.0), "%g", y[k]);
      }
    }
    BNNSFilterDestroy(filter);
  }
}

TEST(arithmetic_large_outputs_stream_the_same_values) {
  const size_t n = (size_t{9} << 20) + 5;
  std::vector<float> a(n), b(n), y(n), dy(n, 2.0f), da(n), db(n);
  for (size_t i = 0; i < n; ++i) {
    a[i] = static_cast<float>(i % 1000);
    b[i] = static_cast<float>(i % 77);
  }
  BNNSFilter filter = vectors(BNNSArithmeticMultiply, n);
  const void* in[] = {a.data(), b.data()};
  for (size_t shift : {0, 1}) {  // one of the two is not aligned to a line
    float* out = y.data();
    while (reinterpret_cast<uintptr_t>(out) % 64 != 4 * shift) ++out;
    const size_t m = n - 32;
    BNNSFilter less = vectors(BNNSArithmeticMultiply, m);
    CHECK(BNNSArithmeticFilterApplyBatch(less, 1, 2, in, nullptr, out, 0) == 0, "%s", obn_last_error());
    size_t wrong = 0;
    for (size_t i = 0; i < m; ++i) wrong += out[i] != a[i] * b[i];
    CHECK(wrong == 0, "%zu values", wrong);
    BNNSFilterDestroy(less);
  }
  BNNSNDArrayDescriptor dy_desc = vector_of(n, dy.data()), d0 = vector_of(n, da.data()), d1 = vector_of(n, db.data());
  BNNSNDArrayDescriptor* deltas[] = {&d0, &d1};
  CHECK(BNNSArithmeticFilterApplyBackwardBatch(filter, 1, 2, in, nullptr, deltas, nullptr, nullptr, 0, &dy_desc,
                                               0) == 0, "%s", obn_last_error());
  size_t wrong = 0;
  for (size_t i = 0; i < n; ++i) wrong += da[i] != 2.0f * b[i] || db[i] != 2.0f * a[i];
  CHECK(wrong == 0, "%zu gradients", wrong);
  BNNSFilterDestroy(filter);
}

// ---- what is refused ----

TEST(arithmetic_refuses_with_a_sentence) {
  const BNNSNDArrayDescriptor three[] = {vector_of(3), vector_of(3), vector_of(3)};
  const auto refused = [&](const Block& block, const char* start) {
    obn_clear_error();
    return block.create() == nullptr && failed_with(start);
  };
  CHECK(BNNSFilterCreateLayerArithmetic(nullptr, nullptr) == nullptr && failed_with("layer_params"), "%s",
        obn_last_error());
  CHECK(refused(Block(function_at(41), three, kSamples, three[0], BNNSSample), "function: expected"), "%s",
        obn_last_error());
  Block no_fields(BNNSArithmeticAdd, three, kSamples, three[0], BNNSSample);
  no_fields.layer.arithmetic_function_fields = nullptr;
  CHECK(refused(no_fields, "function: expected a description"), "%s", obn_last_error());
  CHECK(refused(Block(BNNSArithmeticAdd, three, kSamples, vector_of(4), BNNSSample), "output: expected the shape"),
        "%s", obn_last_error());
  const BNNSNDArrayDescriptor ones[] = {vector_of(1), vector_of(1), vector_of(1)};
  CHECK(refused(Block(BNNSArithmeticAdd, ones, kSamples, vector_of(4), BNNSSample), "output: expected the shape"),
        "%s", obn_last_error());
  CHECK(refused(Block(BNNSArithmeticAdd, three, kSamples, vector_of(3), BNNSConstant), "output: expected the desc"),
        "%s", obn_last_error());
  const BNNSDescriptorType strange[] = {BNNSSample, static_cast<BNNSDescriptorType>(3), BNNSSample};
  CHECK(refused(Block(BNNSArithmeticAdd, three, strange, vector_of(3), BNNSSample), "input_b: expected the desc"), "%s",
        obn_last_error());
  BNNSNDArrayDescriptor mixed[] = {vector_of(3), vector_of(3), vector_of(3)};
  mixed[1].data_type = BNNSDataTypeFloat16;
  CHECK(refused(Block(BNNSArithmeticAdd, mixed, kSamples, vector_of(3), BNNSSample), "input_b: expected float32"), "%s",
        obn_last_error());
  mixed[1].data_type = BNNSDataTypeInt32;
  CHECK(refused(Block(BNNSArithmeticAdd, mixed, kSamples, vector_of(3), BNNSSample), "input_b: expected a floating"),
        "%s", obn_last_error());
  mixed[1] = vector_of(3);
  mixed[1].layout = BNNSDataLayout1DFirstMajor;
  CHECK(refused(Block(BNNSArithmeticAdd, mixed, kSamples, vector_of(3), BNNSSample), "input_b: expected layout"), "%s",
        obn_last_error());
  BNNSActivation gumbel{};
  gumbel.function = BNNSActivationFunctionGumbel;
  CHECK(refused(Block(BNNSArithmeticAdd, three, kSamples, vector_of(3), BNNSSample, gumbel), "activation"), "%s",
        obn_last_error());

  float a[3] = {1, 2, 3}, y[3] = {7, 7, 7}, dx[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  const void* in[] = {a, nullptr};
  BNNSFilter filter = vectors(BNNSArithmeticMultiply, 3);
  CHECK(BNNSArithmeticFilterApplyBatch(filter, 1, 1, in, nullptr, y, 0) == -1 && failed_with("inputs: expected 2"),
        "%s", obn_last_error());
  CHECK(BNNSArithmeticFilterApplyBatch(filter, 1, 2, nullptr, nullptr, y, 0) == -1 && failed_with("inputs"), "%s",
        obn_last_error());
  CHECK(BNNSArithmeticFilterApplyBatch(filter, 1, 2, in, nullptr, y, 0) == -1 && failed_with("input_b: expected data"),
        "%s", obn_last_error());
  CHECK(BNNSArithmeticFilterApplyBatch(filter, 0, 2, in, nullptr, y, 0) == 0, "%s", obn_last_error());
  in[1] = a;
  CHECK(BNNSArithmeticFilterApplyBatch(filter, 1, 2, in, nullptr, nullptr, 0) == -1 && failed_with("output"), "%s",
        obn_last_error());
  BNNSNDArrayDescriptor dy_desc = vector_of(3, a), d0 = vector_of(3, dx), d1 = vector_of(3, dx + 1);
  BNNSNDArrayDescriptor* deltas[] = {&d0, nullptr};
  const auto backward = [&] {
    return BNNSArithmeticFilterApplyBackwardBatch(filter, 1, 2, in, nullptr, deltas, nullptr, y, 0, &dy_desc, 0);
  };
  CHECK(backward() == -1 && failed_with("input_gradients"), "%s", obn_last_error());
  deltas[1] = &d1;  // overlaps the first
  CHECK(backward() == -1 && failed_with("input_gradient: expected memory apart"), "%s", obn_last_error());
  d1 = vector_of(4, dx + 4);
  CHECK(backward() == -1 && failed_with("input_gradient: expected (3,)"), "%s", obn_last_error());
  CHECK(BNNSArithmeticFilterApplyBackwardBatch(filter, 1, 2, in, nullptr, nullptr, nullptr, y, 0, &dy_desc, 0) == -1,
        "no gradients");
  CHECK(BNNSArithmeticFilterApplyBackwardBatch(filter, 1, 2, in, nullptr, deltas, nullptr, y, 0, nullptr, 0) == -1,
        "no grad_output");
  for (float v : y) CHECK(v == 7.0f, "output written");
  for (float v : dx) CHECK(v == 7.0f, "gradient written");
  BNNSFilterDestroy(filter);
}

// Descriptors broken at random: whatever is accepted must run inside its memory, whatever is refused must say why.
TEST(arithmetic_survives_broken_descriptors) {
  std::mt19937 random(23);
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<float> memory(1 << 16, 0.5f);
  constexpr size_t kSizes[] = {0, 1, 2, 3, 7, SIZE_MAX, SIZE_MAX / 2, size_t{1} << 33};
  constexpr BNNSDataType kTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeInt8,
                                     static_cast<BNNSDataType>(0x10000), static_cast<BNNSDataType>(77)};
  size_t created = 0;
  for (int round = 0; round < 20000; ++round) {
    const BNNSDataLayout layout = pick(9) ? kLayouts[pick(std::size(kLayouts))]
                                          : static_cast<BNNSDataLayout>(random());
    BNNSNDArrayDescriptor d[4] = {};
    const size_t first_size = kSizes[pick(4)];
    for (BNNSNDArrayDescriptor& one : d) {
      one.layout = pick(20) ? layout : BNNSDataLayoutFullyConnectedSparse;
      one.data_type = pick(20) ? BNNSDataTypeFloat32 : kTypes[pick(5)];
      for (size_t& s : one.size) s = pick(12) ? std::max<size_t>(1, first_size) : kSizes[pick(8)];
      if (!pick(6)) one.stride[pick(8)] = kSizes[pick(8)];
      if (!pick(30)) one.flags = static_cast<BNNSNDArrayFlags>(pick(4));
    }
    BNNSDescriptorType roles[] = {BNNSSample, BNNSSample, BNNSSample};
    if (!pick(4)) roles[pick(3)] = static_cast<BNNSDescriptorType>(pick(4));
    BNNSActivation activation{};
    if (!pick(10)) activation.function = static_cast<BNNSActivationFunction>(pick(40));
    obn_clear_error();
    const auto y_role = static_cast<BNNSDescriptorType>(pick(10) ? 1 : pick(4));
    BNNSFilter filter = Block(function_at(pick(43)), d, roles, d[3], y_role, activation).create();
    if (!filter) {
      CHECK(*obn_last_error(), "round %d fails silently", round);
      continue;
    }
    ++created;
    View view;
    bool fits = true;
    for (BNNSNDArrayDescriptor& one : d)
      fits = fits && read_view(one, Access::read, "x", &view) == 0 && view.span <= memory.size() / 8;
    if (fits) {
      const void* in[] = {&memory[0], &memory[memory.size() / 8], &memory[memory.size() / 4]};
      for (size_t inputs = 1; inputs <= 3; ++inputs) {
        BNNSArithmeticFilterApplyBatch(filter, 1, inputs, in, nullptr, &memory[memory.size() / 2], 0);
        BNNSNDArrayDescriptor dx[4] = {d[0], d[1], d[2], d[3]};
        for (size_t k = 0; k < 4; ++k) dx[k].data = &memory[memory.size() / 8 * (4 + k)];
        if (!pick(3)) dx[pick(4)].size[pick(3)] = kSizes[pick(8)];
        if (!pick(3)) dx[pick(4)].data = nullptr;
        BNNSNDArrayDescriptor* deltas[] = {&dx[0], &dx[1], &dx[2]};
        bool inside = true;
        for (BNNSNDArrayDescriptor& one : dx)
          inside = inside && (read_view(one, Access::read, "dx", &view) != 0 || view.span <= memory.size() / 8);
        if (inside)
          BNNSArithmeticFilterApplyBackwardBatch(filter, 1, inputs, in, nullptr, deltas, nullptr,
                                                 &memory[memory.size() / 2], 0, &dx[3], 0);
      }
    }
    BNNSFilterDestroy(filter);
  }
  CHECK(created > 1000, "only %zu were created", created);
}
