// Sums of products against float64 loops, the recorded vectors, gradients against their formulas, and the promises of
// the C interface.
#include "matmul/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/test_array.h"
#include "openbnns/openbnns.h"

namespace obn::matmul {
namespace {

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  double value() { return static_cast<double>(below(1 << 12)) / (1 << 11) - 1.0; }
};

// ---- arrays ----

// Sizes are those of the descriptor.
struct Array : ::obn::test::PlacedArray {
  using PlacedArray::PlacedArray;
  Array(BNNSDataLayout layout, std::initializer_list<size_t> sizes, size_t batch = 1,
        BNNSDataType type = BNNSDataTypeFloat32, std::initializer_list<size_t> strides = {}, size_t gap = 0)
      : PlacedArray(descriptor_of(layout, sizes, type, strides), batch, gap) {}
  static BNNSNDArrayDescriptor descriptor_of(BNNSDataLayout layout, std::initializer_list<size_t> sizes,
                                             BNNSDataType type, std::initializer_list<size_t> strides) {
    BNNSNDArrayDescriptor d = array_of(layout, sizes, nullptr, type);
    std::copy(strides.begin(), strides.end(), d.stride);
    return d;
  }

  Array& fill(Random& random) {
    PlacedArray::fill(random, 0.0, is_float(view.type) ? 1.0 : 100.0);
    return *this;
  }
  Array& fill(std::initializer_list<double> numbers) {
    PlacedArray::fill(numbers);
    return *this;
  }
  bool holds(std::initializer_list<double> numbers) const {
    size_t i = 0;
    for (double number : numbers)
      if (get(i++) != number) return false;
    return i == count();
  }
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
  Workspace counted;
  product.place(&counted);
  Workspace placed(workspace(counted.used()));
  product.place(&placed);
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


// ---- layers and gradients against sums over all values of the letters ----

constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayout1DFirstMajor, BNNSDataLayout2DFirstMajor,
                                       BNNSDataLayout3DFirstMajor, BNNSDataLayout4DFirstMajor};

// Letters five apart have the same extent.
size_t extent_of(char letter) { return 2 + static_cast<size_t>(letter - 'a') % 5; }

// An array whose axes are the letters, first one slowest; without letters a single value.
Array array_for(const std::string& letters, size_t batch, BNNSDataType type, bool has_gaps) {
  BNNSNDArrayDescriptor d = vector_of(1, type);
  if (letters.empty()) return Array(d, batch);
  d.layout = kLayouts[letters.size() - 1];
  for (size_t k = 0; k < letters.size(); ++k) d.size[k] = extent_of(letters[k]);
  if (has_gaps) d.stride[0] = 2;
  return Array(d, batch, has_gaps ? 5 : 0);
}

// Which value of an array, fastest axis first, belongs to values of the letters.
size_t index_for(const std::string& letters, const size_t* value) {
  size_t index = 0;
  for (char letter : letters) index = index * extent_of(letter) + value[static_cast<size_t>(letter)];
  return index;
}

// Calls body(value) for all values of the letters.
template <class Body>
void each_value(const std::string& letters, const Body& body) {
  size_t value[128] = {};
  const std::string distinct = [&] {
    std::string all = letters;
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }();
  for (;;) {
    body(value);
    size_t k = 0;
    for (; k < distinct.size(); ++k) {
      size_t& v = value[static_cast<size_t>(distinct[k])];
      if (++v < extent_of(distinct[k])) break;
      v = 0;
    }
    if (k == distinct.size()) return;
  }
}

struct Words {
  std::string text, name[2], letters[kTensors];
  bool has_two = false;

  explicit Words(const char* expression) : text(expression) {
    const size_t arrow = text.find(" -> "), comma = text.find(", ");
    has_two = comma != std::string::npos;
    const std::string first = text.substr(0, std::min(arrow, comma));
    name[0] = first.substr(0, 1);
    letters[kA] = first.substr(2);
    if (has_two) {
      name[1] = text.substr(comma + 2, 1);
      letters[kB] = text.substr(comma + 4, arrow - comma - 4);
    }
    letters[kC] = text.substr(arrow + 6);
  }
  std::string all() const { return letters[kA] + letters[kB] + letters[kC]; }
};

void check_array(const Array& got, const Array& before, const std::vector<double>& expected, const char* what,
                 const char* text) {
  const double unit = got.view.type == BNNSDataTypeFloat32 ? 0x1p-22 : got.view.type == BNNSDataTypeFloat16 ? 0x1p-10
                                                                                                          : 0x1p-7;
  for (size_t n = 0, i = 0; n < got.batch; ++n)
    for (size_t k = 0; k < got.view.count; ++k, ++i) {
      const double value = got.get(n, k);
      CHECK(std::fabs(value - expected[i]) <= unit * std::fabs(expected[i]) + 2e-5, "%s of \"%s\", value %zu: %g, expected %g",
            what, text, i, value, expected[i]);
    }
  Array restored = got;  // apart from the values nothing has changed
  for (size_t n = 0; n < got.batch; ++n)
    for (size_t k = 0; k < got.view.count; ++k) restored.set(n, k, before.get(n, k));
  CHECK(restored.bytes == before.bytes, "%s of \"%s\": memory between values was written", what, text);
}

struct Types {
  BNNSDataType a, b, c;
};

// Forward and backward of one expression, with and without gaps, set and added.
void check_layer(const char* text, size_t batch, const Types& types, bool has_gaps, bool accumulates, bool keeps) {
  const Words words(text);
  const bool is_square = words.has_two && words.name[0] == words.name[1];
  const size_t weights = words.name[0] == "w" ? kA : words.name[1] == "w" ? kB : SIZE_MAX;
  const bool takes_two = words.has_two && !is_square && weights == SIZE_MAX;
  Random random(batch * 100 + words.text.size());
  const float alpha = 0.5f;
  Array a = array_for(words.letters[kA], weights == kA ? 1 : batch, types.a, has_gaps);
  Array b = is_square || !words.has_two ? a : array_for(words.letters[kB], weights == kB ? 1 : batch, types.b, has_gaps);
  Array c = array_for(words.letters[kC], batch, types.c, has_gaps);
  a.fill(random);
  b = is_square ? a : b.fill(random);
  c.fill(random);
  Array da = a, db = b, dc = c;
  da.fill(random);
  db.fill(random);
  dc.fill(random);
  for (Array* d : {&da, &db}) d->descriptor.flags = static_cast<BNNSNDArrayFlags>(accumulates);

  BNNSFilterParameters options = {};
  if (keeps) options.flags = BNNSFlagsUseClientPtr;
  BNNSFilter filter = contraction(text, a, b, c, alpha, accumulates ? 1.0f : 0.0f, &options);
  CHECK(filter != nullptr, "\"%s\": %s", text, obn_last_error());
  if (!filter) return;

  // the formula
  std::vector<double> of_c, of_a, of_b;
  const auto start = [&](const Array& array, std::vector<double>& sums) {
    for (size_t n = 0; n < array.batch; ++n)
      for (size_t i = 0; i < array.view.count; ++i) sums.push_back(accumulates ? array.get(n, i) : 0.0);
  };
  start(c, of_c);
  start(da, of_a);
  start(db, of_b);
  for (size_t n = 0; n < batch; ++n)
    each_value(words.all(), [&](const size_t* value) {
      const size_t x = index_for(words.letters[kA], value), y = index_for(words.letters[kB], value),
                   z = index_for(words.letters[kC], value);
      const size_t na = weights == kA ? 0 : n, nb = weights == kB ? 0 : n;
      const double of_x = a.get(na, x), of_y = words.has_two ? b.get(nb, y) : 1.0;
      of_c[n * c.view.count + z] += alpha * of_x * of_y;
      of_a[na * a.view.count + x] += alpha * dc.get(n, z) * of_y;
      if (words.has_two) (is_square ? of_a : of_b)[nb * b.view.count + y] += alpha * dc.get(n, z) * of_x;
    });

  const Array c_before = c, da_before = da, db_before = db;
  int status;
  if (takes_two) {
    CHECK(BNNSFilterApplyBatch(filter, batch, a.data(), a.batch_stride, c.data(), c.batch_stride) != 0,
          "one input taken");
    status = BNNSFilterApplyTwoInputBatch(filter, batch, a.data(), a.batch_stride, b.data(), b.batch_stride, c.data(),
                                          c.batch_stride);
  } else {
    Array& x = weights == kA ? b : a;
    CHECK(BNNSFilterApplyTwoInputBatch(filter, batch, x.data(), 0, x.data(), 0, c.data(), 0) != 0, "two inputs taken");
    status = BNNSFilterApplyBatch(filter, batch, x.data(), x.batch_stride, c.data(), c.batch_stride);
  }
  CHECK(status == 0, "\"%s\": %s", text, obn_last_error());
  check_array(c, c_before, of_c, "output", text);

  if (takes_two) {
    status = BNNSFilterApplyBackwardTwoInputBatch(filter, batch, a.data(), a.batch_stride, &da.descriptor,
                                                  da.batch_stride, b.data(), b.batch_stride, &db.descriptor,
                                                  db.batch_stride, nullptr, 0, &dc.descriptor, dc.batch_stride,
                                                  nullptr, nullptr);
  } else {
    Array &x = weights == kA ? b : a, &dx = weights == kA ? db : da, &dw = weights == kA ? da : db;
    status = BNNSFilterApplyBackwardBatch(filter, batch, x.data(), x.batch_stride, &dx.descriptor, dx.batch_stride,
                                          nullptr, 0, &dc.descriptor, dc.batch_stride,
                                          weights == SIZE_MAX ? nullptr : &dw.descriptor,
                                          nullptr);
  }
  CHECK(status == 0, "\"%s\": %s", text, obn_last_error());
  check_array(da, da_before, of_a, "gradient of a", text);
  if (words.has_two && !is_square) check_array(db, db_before, of_b, "gradient of b", text);
  BNNSFilterDestroy(filter);
}

constexpr const char* kExpressions[] = {
    "a_ij, b_jk -> c_ik",    "a_ji, b_jk -> c_ik",     "a_ij, b_kj -> c_ik",   "a_ji, b_kj -> c_ki",
    "a_ijk, b_kl -> c_ijl",  "a_ijk, b_ikl -> c_ijl",  "a_jki, b_lik -> c_lj", "a_ij, b_ij -> c_ij",
    "a_ij, b_ij -> c_",      "a_ij, b_ij -> c_i",      "a_ji, b_ji -> c_i",    "a_i, b_j -> c_ij",
    "a_i, b_j -> c_ji",      "a_ijk, b_k -> c_ij",     "a_ikb, b_kjb -> c_ijb", "a_ij, b_k -> c_i",
    "a_ij, b_k -> c_ik",     "a_ij -> c_ji",           "a_ij -> c_i",          "a_ij -> c_j",
    "a_ijk -> c_",           "a_ijk -> c_kj",          "a_ii -> c_i",          "a_ii -> c_",
    "a_i -> c_ii",           "a_iij, b_j -> c_i",      "a_ij, b_jj -> c_ij",   "a_ij, b_jk -> c_iik",
    "a_ij, a_nj -> c_in",    "a_ji, a_jn -> c_in",     "a_ij, a_ij -> c_ij",   "a_ij, a_ij -> c_",
    "w_ij, b_jk -> c_ik",    "a_ij, w_jk -> c_ik",     "a_ij, w_j -> c_i",     "w_i, b_ij -> c_ij",
    "a_ijk, w_kl -> c_ijl",  "a_kij, w_lk -> c_jil",   "x_ijf, x_ijk -> g_fk",
};

TEST(contraction_layers_match_the_formula) {
  constexpr auto f32 = BNNSDataTypeFloat32, f16 = BNNSDataTypeFloat16, bf16 = BNNSDataTypeBFloat16;
  const Types types[] = {{f32, f32, f32}, {f16, f16, f16}, {bf16, bf16, bf16}, {f16, f16, f32}, {f32, bf16, f32},
                         {f16, f32, f32}};
  obn_set_num_threads(2);
  for (const char* text : kExpressions)
    for (size_t k = 0; k < std::size(types); ++k)
      for (size_t batch : {1, 3})
        for (bool has_gaps : {false, true}) check_layer(text, batch, types[k], has_gaps, k % 2 == batch % 2, has_gaps);
  obn_set_num_threads(0);
}

// ---- broadcasting ----

// a (2, 1, 3, 4) · b (5, 4, 6), each transposed or not, gradients summed over what is spread.
TEST(matmul_layer_broadcasts_and_sums_gradients) {
  for (int turned = 0; turned < 4; ++turned) {
    const bool ta = turned & 1, tb = turned & 2;
    Random random(static_cast<uint64_t>(turned));
    Array a(BNNSDataLayout4DFirstMajor, {2, 1, ta ? size_t{4} : 3, ta ? size_t{3} : 4}, 2);
    Array b(BNNSDataLayout3DFirstMajor, {5, tb ? size_t{6} : 4, tb ? size_t{4} : 6}, 2);
    Array c(BNNSDataLayout4DFirstMajor, {2, 5, 3, 6}, 2), da = a, db = b, dc = c;
    a.fill(random);
    b.fill(random);
    dc.fill(random);
    auto p = parameters_of(a, b, c);
    p.transA = ta;
    p.transB = tb;
    p.alpha = 2.0f;
    BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr);
    CHECK(filter != nullptr, "%s", obn_last_error());
    std::vector<double> of_c(2 * 180), of_a(2 * 24), of_b(2 * 120);
    for (size_t n = 0; n < 2; ++n)
      for (size_t t = 0; t < 2 * 5 * 3 * 6 * 4; ++t) {
        const size_t k = t % 4, j = t / 4 % 6, i = t / 24 % 3, q = t / 72 % 5, o = t / 360;
        const size_t x = o * 12 + (ta ? k * 3 + i : i * 4 + k), y = q * 24 + (tb ? j * 4 + k : k * 6 + j);
        const size_t z = (o * 5 + q) * 18 + i * 6 + j;
        of_c[n * 180 + z] += 2.0 * a.get(n, x) * b.get(n, y);
        of_a[n * 24 + x] += 2.0 * dc.get(n, z) * b.get(n, y);
        of_b[n * 120 + y] += 2.0 * dc.get(n, z) * a.get(n, x);
      }
    const Array c_before = c, da_before = da, db_before = db;
    CHECK(BNNSFilterApplyTwoInputBatch(filter, 2, a.data(), 0, b.data(), 0, c.data(), 0) == 0, "%s", obn_last_error());
    CHECK(BNNSFilterApplyBackwardTwoInputBatch(filter, 2, a.data(), 0, &da.descriptor, 0, b.data(), 0, &db.descriptor,
                                               0, nullptr, 0, &dc.descriptor, 0, nullptr, nullptr) == 0,
          "%s", obn_last_error());
    check_array(c, c_before, of_c, "output", "broadcast");
    check_array(da, da_before, of_a, "gradient of a", "broadcast");
    check_array(db, db_before, of_b, "gradient of b", "broadcast");
    BNNSFilterDestroy(filter);
  }
}

TEST(matmul_matrices_of_images_are_their_last_two_indices) {
  // (x, y, c) of ImageCHW: for every x a matrix (y, c)
  Array a(BNNSDataLayoutImageCHW, {2, 3, 4}), w(kMatrix, {5, 4}), c(BNNSDataLayoutImageCHW, {2, 3, 5});
  Random random(9);
  a.fill(random);
  w.fill(random);
  auto p = parameters_of(a, w, c);
  p.b_is_weights = true;
  BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr);
  CHECK(filter && BNNSFilterApply(filter, a.data(), c.data()) == 0, "%s", obn_last_error());
  for (size_t x = 0; x < 2; ++x)
    for (size_t y = 0; y < 3; ++y)
      for (size_t j = 0; j < 5; ++j) {
        double sum = 0.0;
        for (size_t k = 0; k < 4; ++k) sum += a.get(0, x + 2 * y + 6 * k) * w.get(0, k * 5 + j);
        CHECK(std::fabs(c.get(0, x + 2 * y + 6 * j) - sum) < 1e-6, "(%zu, %zu, %zu)", x, y, j);
      }
  BNNSFilterDestroy(filter);
}

TEST(contraction_stars_align_at_their_end) {
  Random random(4);
  // at the start, from the back: (3, 2, i) with (2, j)
  Array a(BNNSDataLayout3DFirstMajor, {3, 2, 4}), b(BNNSDataLayout2DFirstMajor, {2, 5});
  Array c(BNNSDataLayout4DFirstMajor, {3, 2, 4, 5});
  a.fill(random);
  b.fill(random);
  BNNSFilter filter = contraction("a_*i, b_*j -> c_*ij", a, b, c);
  CHECK(filter && BNNSFilterApplyTwoInput(filter, a.data(), b.data(), c.data()) == 0, "%s", obn_last_error());
  for (size_t t = 0; t < 120; ++t)
    CHECK(std::fabs(c.get(0, t) - a.get(0, t / 5) * b.get(0, t / 20 % 2 * 5 + t % 5)) < 1e-6, "start, value %zu", t);
  BNNSFilterDestroy(filter);
  // at the end, from the front: (i, 3, 2) with (j, 3)
  Array d(BNNSDataLayout3DFirstMajor, {4, 3, 2}), e(BNNSDataLayout2DFirstMajor, {5, 3});
  Array f(BNNSDataLayout4DFirstMajor, {4, 5, 3, 2});
  d.fill(random);
  e.fill(random);
  filter = contraction("a_i*, b_j* -> c_ij*", d, e, f);
  CHECK(filter && BNNSFilterApplyTwoInput(filter, d.data(), e.data(), f.data()) == 0, "%s", obn_last_error());
  for (size_t t = 0; t < 120; ++t) {
    const size_t i = t / 30, j = t / 6 % 5, q = t / 2 % 3, o = t % 2;
    CHECK(std::fabs(f.get(0, t) - d.get(0, i * 6 + q * 2 + o) * e.get(0, j * 3 + q)) < 1e-6, "end, value %zu", t);
  }
  BNNSFilterDestroy(filter);
}

TEST(matmul_of_integers_is_exact) {
  Random random(3);
  Array a(kMatrix, {40, 7}, 1, BNNSDataTypeInt8), b(kMatrix, {9, 40}, 1, BNNSDataTypeUInt8), c(kMatrix, {9, 7});
  a.descriptor.data_scale = 0.5f;
  b.descriptor.data_scale = 0.25f;
  b.descriptor.data_bias = -3.0f;
  CHECK(read_view(a.descriptor, Access::read, "a", &a.view) == 0 && read_view(b.descriptor, Access::read, "b", &b.view) == 0,
        "%s", obn_last_error());
  a.fill(random);
  for (size_t i = 0; i < 360; ++i) b.set(0, i, 0.25 * static_cast<double>(random.below(256)) - 3.0);
  CHECK(multiply(a, b, c) == 0, "%s", obn_last_error());
  for (size_t i = 0; i < 7; ++i)
    for (size_t j = 0; j < 9; ++j) {
      double sum = 0.0;
      for (size_t k = 0; k < 40; ++k) sum += a.get(0, i * 40 + k) * b.get(0, k * 9 + j);
      CHECK(c.get(0, i * 9 + j) == sum, "(%zu, %zu): %g, expected %g", i, j, c.get(0, i * 9 + j), sum);
    }
}

// ---- one product, many threads ----

TEST(matmul_same_bits_for_any_number_of_threads) {
  Random random(8);
  Array a(BNNSDataLayout3DFirstMajor, {5, 130, 90}), b(BNNSDataLayout3DFirstMajor, {5, 90, 70});
  Array c(BNNSDataLayout3DFirstMajor, {5, 130, 70}), w(kMatrix, {70, 90}), dw = w, dc = c;
  a.fill(random);
  b.fill(random);
  w.fill(random);
  dc.fill(random);
  auto p = parameters_of(a, w, c);
  p.b_is_weights = true;
  BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr);
  std::vector<std::byte> products, gradients;
  for (size_t threads : {1, 2, 7}) {
    obn_set_num_threads(threads);
    CHECK(multiply(a, b, c) == 0, "%s", obn_last_error());
    CHECK(BNNSFilterApplyBackwardBatch(filter, 1, a.data(), 0, nullptr, 0, nullptr, 0, &dc.descriptor, 0,
                                       &dw.descriptor, nullptr) == 0,
          "%s", obn_last_error());
    if (threads == 1) {
      products = c.bytes;
      gradients = dw.bytes;
    }
    CHECK(c.bytes == products && dw.bytes == gradients, "%zu threads", threads);
  }
  obn_set_num_threads(0);
  BNNSFilterDestroy(filter);
}

// ---- refusals ----

bool says(const char* words) { return std::strstr(obn_last_error(), words) != nullptr; }

TEST(contraction_refuses_what_the_grammar_does_not_have) {
  Array a(kMatrix, {3, 2}), b(kMatrix, {4, 3}), c(kMatrix, {4, 2});
  const struct {
    const char *text, *words;
  } cases[] = {
      {nullptr, "got NULL"},
      {"", "a name"},
      {"a_ij, b_jk", "an arrow"},
      {"a_ij, b_jk - c_ik", "an arrow"},
      {"a_ij, b_jk -> c_ik, x", "the end"},
      {"a_ij b_jk -> c_ik", "an arrow"},
      {"aij, b_jk -> c_ik", "an underscore"},
      {"a_ij, b_jk -> _ik", "a name"},
      {"a_*ij*, b_jk -> c_ik", "one star"},
      {"a_abcdefghi, b_jk -> c_ik", "at most 8 letters"},
      {"a_*ij, b_jk* -> c_ik", "same end"},
      {"a_ij, b_jk -> c_il", "letters of the inputs"},
      {"a_ijk, b_jk -> c_ik", "expected 3 axes"},
      {"a_ij, b_ik -> c_ik", "expected extent"},
      {"a_ij, b_jk -> c_ki", "expected extent"},
      {"w_ij, w_jk -> c_ik", "besides the weights"},
      {"w_ij -> c_ij", "besides the weights"},
  };
  for (const auto& of : cases) {
    CHECK(contraction(of.text, a, b, c) == nullptr, "\"%s\" was taken", of.text ? of.text : "NULL");
    CHECK(says(of.words), "\"%s\": %s", of.text ? of.text : "NULL", obn_last_error());
  }
  CHECK(contraction("a_ij, b_jk -> c_ik", a, b, c, 1.0f, 0.5f) == nullptr && says("beta"), "%s", obn_last_error());
  Array one(BNNSDataLayoutVector, {4});
  CHECK(contraction("a_*j, b_jk -> c_k", a, b, one) == nullptr && says("never summed"), "%s", obn_last_error());
  Array half(kMatrix, {3, 2}, 1, BNNSDataTypeFloat16), brain(kMatrix, {4, 3}, 1, BNNSDataTypeBFloat16);
  CHECK(contraction("a_ij, b_jk -> c_ik", half, brain, c) == nullptr && says("do not meet"), "%s", obn_last_error());
  CHECK(BNNSFilterCreateLayerTensorContraction(nullptr, nullptr) == nullptr, "NULL parameters");
}

TEST(matmul_refuses_what_does_not_multiply) {
  Array a(kMatrix, {3, 2}), b(kMatrix, {4, 3}), c(kMatrix, {4, 2}), v(BNNSDataLayoutVector, {3});
  auto refused = [&](const BNNSLayerParametersBroadcastMatMul& p, const char* words) {
    CHECK(BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr) == nullptr && says(words), "%s", obn_last_error());
  };
  auto p = parameters_of(a, b, c);
  p.beta = 2.0f;
  refused(p, "beta: expected 0 or 1");
  refused(parameters_of(a, a, c), "input_b: expected extent");
  refused(parameters_of(a, b, a), "output: expected extent");
  Array narrow(kMatrix, {1, 2});
  refused(parameters_of(narrow, b, c), "input_b: expected extent 1 along k");
  refused(parameters_of(v, b, c), "input_a: expected a matrix");
  p = parameters_of(a, b, c);
  p.a_is_weights = p.b_is_weights = true;
  refused(p, "at most");
  p = parameters_of(a, b, c);
  p.b_is_weights = true;
  p.iB_desc.data = nullptr;
  refused(p, "weights: expected data");
  p = parameters_of(a, b, c);
  p.o_desc.data_type = BNNSDataTypeInt8;
  refused(p, "output: expected float32");
  p.o_desc.data_type = BNNSDataTypeFloat32;
  p.iA_desc.data_type = BNNSDataTypeInt32;
  refused(p, "input_a: expected float32");

  p = parameters_of(a, b, c);
  BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, nullptr);
  Array before = c, da = a, dc = c;
  CHECK(BNNSFilterApplyTwoInput(filter, a.data(), nullptr, c.data()) == -1 && says("input_b: expected data"), "%s",
        obn_last_error());
  CHECK(BNNSFilterApplyTwoInput(filter, a.data(), b.data(), b.data()) == -1 && says("overlap"), "%s", obn_last_error());
  CHECK(c.bytes == before.bytes, "a refused call wrote");
  CHECK(BNNSFilterApplyBackwardTwoInputBatch(filter, 1, a.data(), 0, &da.descriptor, 0, nullptr, 0, nullptr, 0, nullptr,
                                             0, &dc.descriptor, 0, nullptr, nullptr) == -1 &&
            says("which a_gradient needs"),
        "%s", obn_last_error());
  CHECK(BNNSFilterApplyBackwardTwoInputBatch(filter, 1, a.data(), 0, &dc.descriptor, 0, b.data(), 0, nullptr, 0, nullptr,
                                             0, &dc.descriptor, 0, nullptr, nullptr) == -1 &&
            says("a_gradient: expected"),
        "%s", obn_last_error());
  CHECK(BNNSFilterApplyBackwardTwoInputBatch(filter, 1, a.data(), 0, &da.descriptor, 0, b.data(), 0, nullptr, 0, nullptr,
                                             0, &dc.descriptor, 0, &da.descriptor, nullptr) == -1 &&
            says("weights_gradient: expected NULL"),
        "%s", obn_last_error());
  CHECK(BNNSFilterApplyTwoInputBatch(filter, 0, nullptr, 0, nullptr, 0, nullptr, 0) == 0, "an empty batch");
  BNNSFilterDestroy(filter);
  CHECK(BNNSFilterApplyTwoInput(filter, a.data(), b.data(), c.data()) == -1, "a destroyed filter");
  CHECK(BNNSMatMul(false, false, 1.0f, &a.descriptor, nullptr, &c.descriptor, nullptr, nullptr) == -1, "NULL");
  BNNSDirectApplyBroadcastMatMul(false, false, 1.0f, &a.descriptor, &a.descriptor, &c.descriptor, nullptr);
  CHECK(c.bytes == before.bytes && says("expected extent"), "%s", obn_last_error());
}

TEST(matmul_weights_are_copied_or_kept) {
  Array a(kMatrix, {2, 1}), w(kMatrix, {2, 2}), c(kMatrix, {2, 1});
  a.fill({1, 2});
  for (bool keeps : {false, true}) {
    w.fill({1, 0, 0, 1});
    auto p = parameters_of(a, w, c);
    p.b_is_weights = true;
    BNNSFilterParameters options = {};
    if (keeps) options.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&p, &options);
    w.fill({3, 0, 0, 3});
    CHECK(BNNSFilterApply(filter, a.data(), c.data()) == 0, "%s", obn_last_error());
    CHECK(keeps ? c.holds({3, 6}) : c.holds({1, 2}), "keeps %d", keeps);
    if (keeps) CHECK(BNNSFilterApply(filter, a.data(), w.data()) == -1 && says("overlap"), "%s", obn_last_error());
    CHECK(obn_filter_work_bytes(filter, 4) != SIZE_MAX, "work bytes");
    BNNSFilterDestroy(filter);
  }
}

}  // namespace
}  // namespace obn::matmul
