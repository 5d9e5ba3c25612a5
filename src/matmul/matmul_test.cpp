// Sums of products against float64 loops, the recorded vectors, gradients against their formulas, and the promises of
// the C interface.
#include "matmul/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/test.h"
#include "base/types.h"
#include "openbnns/openbnns.h"

namespace obn::matmul {
namespace {

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  double value() { return static_cast<double>(below(1 << 12)) / (1 << 11) - 1.0; }
};

// ---- arrays ----

// A tensor over a batch with memory around its values that nobody may touch. Sizes are those of the descriptor.
struct Array {
  BNNSNDArrayDescriptor descriptor = {};
  View view;
  size_t batch = 1, step = 0;
  std::vector<std::byte> bytes;

  Array(BNNSDataLayout layout, std::initializer_list<size_t> sizes, size_t batch = 1,
        BNNSDataType type = BNNSDataTypeFloat32, std::initializer_list<size_t> strides = {}, size_t gap = 0)
      : batch(batch) {
    descriptor.layout = layout;
    std::copy(sizes.begin(), sizes.end(), descriptor.size);
    std::copy(strides.begin(), strides.end(), descriptor.stride);
    descriptor.data_type = type;
    CHECK(read_view(descriptor, Access::read, "array", &view) == 0, "%s", obn_last_error());
    step = view.packed_batch + gap;
    bytes.assign(((batch - 1) * step + view.span + 8) * bytes_of(type), std::byte{0x3c});
    descriptor.data = bytes.data();
  }
  Array(const Array& other) { *this = other; }
  Array& operator=(const Array& other) {
    descriptor = other.descriptor;
    view = other.view;
    batch = other.batch;
    step = other.step;
    bytes = other.bytes;
    descriptor.data = bytes.data();
    return *this;
  }

  Values values() const { return {bytes.data(), view.type, view.scale, view.bias, nullptr, BNNSDataTypeFloat32}; }
  size_t offset(size_t sample, size_t index) const {  // index counts values, fastest axis first
    size_t at = sample * step;
    for (size_t k = 0; k < view.rank; ++k) {
      at += index % view.extent[k] * view.stride[k];
      index /= view.extent[k];
    }
    return at;
  }
  double get(size_t sample, size_t index) const {
    double value;
    activation::ref::get_reals(values(), offset(sample, index), 1, 1, &value);
    return value;
  }
  void set(size_t sample, size_t index, double value) {
    activation::ref::put_reals(values(), offset(sample, index), 1, 1, &value);
  }
  Array& fill(Random& random) {
    for (size_t n = 0; n < batch; ++n)
      for (size_t i = 0; i < view.count; ++i) set(n, i, is_float(view.type) ? random.value() : 100.0 * random.value());
    return *this;
  }
  Array& fill(std::initializer_list<double> numbers) {
    size_t i = 0;
    for (double number : numbers) {
      set(i / view.count, i % view.count, number);
      ++i;
    }
    return *this;
  }
  bool holds(std::initializer_list<double> numbers) const {
    size_t i = 0;
    for (double number : numbers) {
      if (get(i / view.count, i % view.count) != number) return false;
      ++i;
    }
    return i == batch * view.count;
  }
  void* data() { return bytes.data(); }
};

constexpr auto kMatrix = BNNSDataLayoutRowMajorMatrix;  // size: columns, rows

// ---- products against the formula ----

// A random problem: every index belongs to some of the tensors, which lie in orders of their own, with gaps.
struct Sample {
  Problem problem;
  std::vector<std::byte> memory[kTensors];

  Sample(Random& random, size_t most) {
    Problem& p = problem;
    p.inputs = random.below(4) == 0 ? 1 : 2;
    p.count = random.between(1, 6);
    p.alpha = random.coin() ? 1.0f : 0.5f;
    p.accumulate = random.coin();
    unsigned members[kMostAxes];
    for (size_t i = 0; i < p.count; ++i) {
      p.axes[i].extent = random.below(3) == 0 ? random.between(1, most) : random.between(1, 6);
      members[i] = static_cast<unsigned>(random.between(1, 7));
      if (p.inputs == 1) members[i] = members[i] & ~2u ? members[i] & ~2u : 1u;
    }
    const bool is_brain = random.coin();
    for (size_t t = 0; t < kTensors; ++t) {
      const size_t kind = random.below(8);
      BNNSDataType type = BNNSDataTypeFloat32;
      if (kind == 0) type = is_brain ? BNNSDataTypeBFloat16 : BNNSDataTypeFloat16;
      if (kind == 1 && t != kResult) type = random.coin() ? BNNSDataTypeInt8 : BNNSDataTypeUInt16;
      lay_out(random, t, members, type);
    }
  }

  void lay_out(Random& random, size_t t, const unsigned* members, BNNSDataType type) {
    Problem& p = problem;
    size_t order[kMostAxes];
    for (size_t i = 0; i < p.count; ++i) {
      order[i] = i;
      std::swap(order[i], order[random.below(i + 1)]);
    }
    size_t step = random.below(4) == 0 ? 2 : 1;
    for (size_t k = 0; k < p.count; ++k) {
      Axis& axis = p.axes[order[k]];
      axis.stride[t] = members[order[k]] >> t & 1 ? step : 0;
      if (axis.stride[t] != 0) step = step * axis.extent + (random.below(4) == 0 ? 3 : 0);
    }
    memory[t].resize((step + 8) * bytes_of(type));
    p.tensor[t] = {memory[t].data(), type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
    if (!is_float(type)) p.tensor[t].scale = 0.25f;
    for (size_t i = 0; i < step; ++i) {
      double value = random.value() * (is_float(type) ? 1.0 : 20.0);
      activation::ref::put_reals(p.tensor[t], i, 1, 1, &value);
    }
  }

  // The result of a way of computing, which starts from what is there.
  template <class Run>
  std::vector<std::byte> result(const Run& run) {
    std::vector<std::byte> copy = memory[kResult];
    Problem p = problem;
    p.tensor[kResult].data = copy.data();
    run(p);
    return copy;
  }
};

void run_with(const Problem& problem, size_t threads) {
  Product product(problem, threads);
  Room counted;
  product.place(&counted);
  Room room(workspace(counted.used()));
  product.place(&room);
  product.run();
}

void check_sample(Sample& sample, size_t number) {
  const Values& of = sample.problem.tensor[kResult];
  const size_t size = bytes_of(of.type), count = sample.memory[kResult].size() / size;
  const auto exact = sample.result([](const Problem& p) { run_reference(p); });
  const auto got = sample.result([](const Problem& p) { run_with(p, 1); });
  const auto many = sample.result([](const Problem& p) { run_with(p, 3); });
  CHECK(got == many, "problem %zu: three threads give other bits", number);
  size_t terms = 1;
  for (size_t i = 0; i < sample.problem.count; ++i)
    if (sample.problem.axes[i].stride[kResult] == 0) terms *= sample.problem.axes[i].extent;
  const double unit = of.type == BNNSDataTypeFloat32 ? 0x1p-23 : of.type == BNNSDataTypeFloat16 ? 0x1p-10 : 0x1p-7;
  for (size_t i = 0; i < count; ++i) {
    double x, y;
    activation::ref::get_reals({exact.data(), of.type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32}, i, 1, 1, &x);
    activation::ref::get_reals({got.data(), of.type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32}, i, 1, 1, &y);
    const double allowed = unit * std::fabs(x) + 0x1p-22 * 25.0 * std::sqrt(static_cast<double>(terms));
    CHECK(std::fabs(x - y) <= allowed, "problem %zu, value %zu: %g, expected %g", number, i, y, x);
  }
}

TEST(matmul_products_match_the_formula) {
  CHECK(scratch() != nullptr, "no scratch");
  obn_set_num_threads(3);
  for (size_t i = 0; i < 3000; ++i) {
    Random random(i);
    Sample sample(random, i % 50 == 0 ? 120 : 17);
    check_sample(sample, i);
  }
  obn_set_num_threads(0);
}

// ---- the recorded vectors ----

BNNSLayerParametersBroadcastMatMul parameters_of(const Array& a, const Array& b, const Array& c) {
  BNNSLayerParametersBroadcastMatMul p = {};
  p.alpha = 1.0f;
  p.iA_desc = a.descriptor;
  p.iB_desc = b.descriptor;
  p.o_desc = c.descriptor;
  return p;
}

TEST(matmul_layer_gives_the_recorded_values) {
  Array a(kMatrix, {2, 2}), b(kMatrix, {2, 2}), c(kMatrix, {2, 2}), da = a, db = b, dc = c;
  a.fill({1, 2, 3, 4});
  b.fill({5, 6, 7, 8});
  dc.fill({1, 2, 3, 4});
  const auto p = parameters_of(a, b, c);
  BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr);
  CHECK(filter != nullptr, "%s", obn_last_error());
  CHECK(BNNSFilterApplyTwoInput(filter, a.data(), b.data(), c.data()) == 0, "%s", obn_last_error());
  CHECK(c.holds({19, 22, 43, 50}), "product");
  CHECK(BNNSFilterApplyBackwardTwoInputBatch(filter, 1, a.data(), 0, &da.descriptor, 0, b.data(), 0, &db.descriptor, 0,
                                             nullptr, 0, &dc.descriptor, 0, nullptr, nullptr) == 0,
        "%s", obn_last_error());
  CHECK(da.holds({17, 23, 39, 53}) && db.holds({10, 14, 14, 20}), "gradients");
  BNNSFilterDestroy(filter);
}

int multiply(Array& a, Array& b, Array& c, bool ta = false, bool tb = false, float alpha = 1.0f) {
  return BNNSMatMul(ta, tb, alpha, &a.descriptor, &b.descriptor, &c.descriptor, nullptr, nullptr);
}

TEST(matmul_direct_gives_the_recorded_values) {
  Array a(kMatrix, {3, 2}), b(kMatrix, {2, 3}), c(kMatrix, {2, 2});
  a.fill({1, 2, 3, 4, 5, 6});
  b.fill({7, 8, 9, 10, 11, 12});
  CHECK(multiply(a, b, c) == 0 && c.holds({58, 64, 139, 154}), "%s", obn_last_error());
  CHECK(multiply(a, b, c, false, false, 2.0f) == 0 && c.holds({116, 128, 278, 308}), "alpha 2");
  Array at(kMatrix, {2, 3}), bt(kMatrix, {3, 2});
  at.fill({1, 4, 2, 5, 3, 6});
  bt.fill({7, 9, 11, 8, 10, 12});
  CHECK(multiply(at, b, c, true) == 0 && c.holds({58, 64, 139, 154}), "a transposed");
  CHECK(multiply(a, bt, c, false, true) == 0 && c.holds({58, 64, 139, 154}), "b transposed");
  CHECK(multiply(at, bt, c, true, true) == 0 && c.holds({58, 64, 139, 154}), "both transposed");

  Array tall(BNNSDataLayout3DFirstMajor, {2, 2, 3}), result(BNNSDataLayout3DFirstMajor, {2, 2, 2});
  tall.fill({1, 2, 3, 4, 5, 6, 1, 0, 0, 0, 1, 0});
  CHECK(multiply(tall, b, result) == 0 && result.holds({58, 64, 139, 154, 7, 8, 9, 10}), "%s", obn_last_error());
  CHECK(BNNSMatMulWorkspaceSize(false, false, 1.0f, &a.descriptor, &a.descriptor, &c.descriptor, nullptr) < 0, "2x3·2x3");
}

TEST(matmul_workspace_is_enough_and_needs_no_data) {
  Random random(5);
  Array a(BNNSDataLayout3DFirstMajor, {3, 40, 70}, 1, BNNSDataTypeInt8);
  Array b(kMatrix, {50, 70}, 1, BNNSDataTypeFloat16), c(BNNSDataLayout3DFirstMajor, {3, 40, 50}, 1, BNNSDataTypeFloat16);
  a.fill(random);
  b.fill(random);
  Array expected = c;
  const ssize_t size =
      BNNSMatMulWorkspaceSize(false, false, 1.0f, &a.descriptor, &b.descriptor, &c.descriptor, nullptr);
  BNNSNDArrayDescriptor empty[] = {a.descriptor, b.descriptor, c.descriptor};
  for (auto& descriptor : empty) descriptor.data = nullptr;
  CHECK(BNNSMatMulWorkspaceSize(false, false, 1.0f, &empty[0], &empty[1], &empty[2], nullptr) == size, "without data");
  CHECK(size > 0, "%zd", size);
  std::vector<std::byte> memory(static_cast<size_t>(size) + 16, std::byte{7});
  CHECK(BNNSMatMul(false, false, 1.0f, &a.descriptor, &b.descriptor, &c.descriptor, memory.data() + 1, nullptr) == 0,
        "%s", obn_last_error());
  for (size_t i = static_cast<size_t>(size) + 1; i < memory.size(); ++i)
    CHECK(memory[i] == std::byte{7}, "written behind the workspace");
  BNNSDirectApplyBroadcastMatMul(false, false, 1.0f, &a.descriptor, &b.descriptor, &expected.descriptor, nullptr);
  CHECK(c.bytes == expected.bytes, "the workspace changes the result");
}

BNNSFilter contraction(const char* text, const Array& a, const Array& b, const Array& c, float alpha = 1.0f,
                       float beta = 0.0f, const BNNSFilterParameters* options = nullptr) {
  BNNSLayerParametersTensorContraction p = {};
  p.operation = text;
  p.alpha = alpha;
  p.beta = beta;
  p.iA_desc = a.descriptor;
  p.iB_desc = b.descriptor;
  p.o_desc = c.descriptor;
  return BNNSFilterCreateLayerTensorContraction(&p, options);
}

TEST(contraction_gives_the_documented_values) {
  Array a(kMatrix, {2, 1}), b(kMatrix, {2, 1}), c(kMatrix, {2, 2});
  a.fill({1, 2});
  b.fill({3, 4});
  BNNSFilter filter = contraction("a_ip, b_iq -> o_pq", a, b, c, 10.0f);
  CHECK(filter && BNNSFilterApplyTwoInput(filter, a.data(), b.data(), c.data()) == 0, "%s", obn_last_error());
  CHECK(c.holds({30, 40, 60, 80}), "outer product");
  BNNSFilterDestroy(filter);

  Array x(kMatrix, {3, 2}), y(kMatrix, {2, 3});
  x.fill({1, 2, 3, 4, 5, 6});
  filter = contraction(" a_ij->c_j i ", x, x, y);
  CHECK(filter && BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
  CHECK(y.holds({1, 4, 2, 5, 3, 6}), "transposed");
  BNNSFilterDestroy(filter);
}

TEST(gram_gives_the_recorded_values) {
  Array x(BNNSDataLayoutImageCHW, {2, 1, 2}), g(kMatrix, {2, 2}), dx = x, dg = g;
  x.fill({1, 2, 3, 4});
  dg.fill({1, 2, 3, 4});
  BNNSLayerParametersGram p = {};
  for (float alpha : {1.0f, 2.0f}) {
    p.alpha = alpha;
    p.i_desc = x.descriptor;
    p.o_desc = g.descriptor;
    BNNSFilter filter = BNNSFilterCreateLayerGram(&p, nullptr);
    CHECK(filter && BNNSFilterApply(filter, x.data(), g.data()) == 0, "%s", obn_last_error());
    CHECK(g.holds({5.0 * alpha, 11.0 * alpha, 11.0 * alpha, 25.0 * alpha}), "alpha %g", static_cast<double>(alpha));
    CHECK(BNNSFilterApplyBackwardBatch(filter, 1, x.data(), 0, &dx.descriptor, 0, nullptr, 0, &dg.descriptor, 0,
                                       nullptr, nullptr) == 0,
          "%s", obn_last_error());
    // dx(f) = alpha · Σ_c (dg(f, c) + dg(c, f))·x(c)
    CHECK(dx.holds({17.0 * alpha, 24.0 * alpha, 29.0 * alpha, 42.0 * alpha}), "gradient, alpha %g",
          static_cast<double>(alpha));
    BNNSFilterDestroy(filter);
  }
}

}  // namespace
}  // namespace obn::matmul
