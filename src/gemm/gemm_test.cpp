// The matrix engine: every target and every way against the formula, and its promises. Values are small multiples of
// 1/4, so that every sum is exact in float32 whatever its order, and results must be equal, not close.
#include "gemm/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>
#if defined(__aarch64__)
#include <bit>
#endif

#include "base/integer.h"
#include "base/memory.h"
#include "base/test.h"
#include "base/types.h"
#include "gemm/gemm_kernels.h"
#include "openbnns/openbnns.h"

namespace obn::gemm {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kUntouched = -777.25f;

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  float quarter() { return static_cast<float>(below(33)) * 0.25f - 4.0f; }
  float real() {  // about normal
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(next() & 0xffffff) * 0x1p-24f;
    return sum;
  }
};

enum class Order { rows, columns, strided };

// A matrix in memory that ends where its last value ends, one element off alignment.
struct Matrix {
  std::vector<std::byte> bytes;
  Operand operand;
  size_t rows, columns;

  Matrix(size_t m, size_t n, Order order, BNNSDataType type, size_t gap = 0) : rows(m), columns(n) {
    operand.type = type;
    operand.row = order == Order::rows ? n + gap : order == Order::columns ? 1 : 2 * n + 3;
    operand.column = order == Order::rows ? 1 : order == Order::columns ? m + gap : 2;
    const size_t span = (m - 1) * operand.row + (n - 1) * operand.column + 1;
    bytes.resize((span + 1) * bytes_of(type));
    operand.data = bytes.data() + bytes_of(type);
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  void set(size_t i, size_t j, float value) {
    std::byte* at = bytes.data() + (1 + i * operand.row + j * operand.column) * bytes_of(operand.type);
    if (operand.type == BNNSDataTypeFloat32) {
      std::memcpy(at, &value, sizeof value);
      return;
    }
    const uint16_t half = operand.type == BNNSDataTypeFloat16 ? float16_of_float(value) : bfloat16_of_float(value);
    std::memcpy(at, &half, sizeof half);
  }
  template <class Value>
  void fill(const Value& value) {
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) set(i, j, value());
  }
};

struct Options {
  Order a = Order::rows, b = Order::rows;
  BNNSDataType a_type = BNNSDataTypeFloat32, b_type = BNNSDataTypeFloat32;
  size_t gap = 0;  // between runs of the operands and of c
  float alpha = 1.0f;
  bool accumulate = false, row_bias = false, column_bias = false;
  const activation::Fused* activation = nullptr;
  Precision precision = Precision::highest;
};

// A product with its memory.
struct Setting {
  Matrix a, b;
  std::vector<float> c, row_bias, column_bias;
  Product product;

  Setting(size_t m, size_t n, size_t k, const Options& o, Random& random)
      : a(m, std::max<size_t>(k, 1), o.a, o.a_type, o.gap), b(std::max<size_t>(k, 1), n, o.b, o.b_type, o.gap) {
    a.fill([&] { return random.quarter(); });
    b.fill([&] { return random.quarter(); });
    c.assign(m * (n + o.gap) + 1, kUntouched);  // also what is added to
    for (size_t i = 0; i < m; ++i) row_bias.push_back(random.quarter());
    for (size_t j = 0; j < n; ++j) column_bias.push_back(random.quarter());
    product = {.m = m, .n = n, .k = k, .a = a.operand, .b = b.operand, .c = c.data() + 1, .c_row = n + o.gap};
    product.alpha = o.alpha;
    product.accumulate = o.accumulate;
    product.row_bias = o.row_bias ? row_bias.data() : nullptr;
    product.column_bias = o.column_bias ? column_bias.data() : nullptr;
    product.activation = o.activation;
    product.precision = o.precision;
  }
  Product with(std::vector<float>& result) const {
    result = c;
    Product p = product;
    p.c = result.data() + 1;
    return p;
  }
};

using Target = ::obn::test::Target<Kernels>;
std::vector<Target> all_targets() { return ::obn::test::all_targets(targets); }

// Equal, or as close as functions that round allow; also the memory around c.
void check_same(const std::vector<float>& got, const std::vector<float>& expected, float tolerance, const Product& p,
                const char* way, const char* on) {
  for (size_t i = 0; i < got.size(); ++i) {
    const float a = got[i], b = expected[i];
    const bool same = a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= tolerance * (1 + std::fabs(b));
    CHECK(same, "%s on %s: (%zu, %zu, %zu) value %zu is %.9g, expected %.9g", way, on, p.m, p.n, p.k, i, a, b);
    if (!same) return;
  }
}

void run_with_work(const Kernels& kernels, const Product& p, size_t threads) {
  run_on(kernels, nullptr, p, threads, workspace(work_bytes(p)));
}

// What this machine can multiply pairs of bfloat16 with.
struct PairTarget {
  const char* name;
  const Packing* pairs;
};
std::vector<PairTarget> all_pairs() {
  std::vector<PairTarget> all = {{"model tiles", &model_pairs()}};
  if (dot_pairs()) all.push_back({"AVX512_BF16 or FEAT_BF16", dot_pairs()});
  if (tile_pairs()) all.push_back({"AMX tiles", tile_pairs()});
  return all;
}
void run_pairs(const Packing* pairs, const Product& p, size_t threads) {
  run_on(targets.best(), pairs, p, threads, workspace(work_bytes(p)));
}

// The block of c in two by two parts, so that every loop also begins in the middle.
template <class Body>
void by_quarters(const Product& p, const Body& body) {
  const size_t i = p.m / 2, j = p.n / 2;
  for (size_t q = 0; q < 4; ++q) {
    const Block block = {q / 2 ? i : 0, q / 2 ? p.m - i : i, q % 2 ? j : 0, q % 2 ? p.n - j : j};
    if (block.rows && block.columns) body(block);
  }
}

// The packed way of one layout: operands packed by itself, or before.
template <class Check>
void check_packing(const Packing& packing, const Product& p, const Check& check) {
  float* work = reinterpret_cast<float*>(scratch());
  check("packed", [&](const Product& q) {
    by_quarters(q, [&](const Block& block) { packing.packed(q, block, nullptr, nullptr, work); });
  });
  const Steps steps(p.k, packing.word_values, packing.step_unit);
  const size_t rows = round_up(p.m, packing.row_unit);
  std::vector<float> shared(rows * steps.all);
  for (size_t first = 0; first < steps.all; first += steps.depth)
    for (size_t part : {2, 0, 1})  // in any order: none writes where another has
      packing.pack_a(p, 0, p.m, first, std::min(steps.depth, steps.all - first), part, 3, shared.data() + first * rows);
  check("packed, a shared", [&](const Product& q) {
    packing.packed(q, {0, q.m, 0, q.n}, shared.data(), nullptr, work);
  });
  const size_t width = packing.tile_columns, columns = round_up(p.n, width);
  std::vector<float> shared_b(columns * steps.all);
  for (size_t first = 0; first < steps.all; first += steps.depth) {
    const size_t depth = std::min(steps.depth, steps.all - first);
    for (size_t j = 0; j < p.n; j += width)
      packing.pack_b(p, j, std::min(width, p.n - j), first, depth, &shared_b[first * columns + j * depth]);
  }
  check("packed, b shared", [&](const Product& q) {
    const size_t i = q.m / 2, j = std::min(q.n, width);
    for (const Block& block : {Block{0, i, 0, q.n}, Block{i, q.m - i, 0, j}, Block{i, q.m - i, j, q.n - j}})
      if (block.rows && block.columns) packing.packed(q, block, nullptr, shared_b.data(), work);
  });
}

bool has_blocks(const Product& p) { return p.k > 0 && (!p.activation || p.activation->is_elementwise()); }

// One product on every target: the way run() chooses, and all others that can serve it.
void check_all(const Setting& s, float tolerance = 0.0f) {
  std::vector<float> expected, got;
  run_reference(s.with(expected), 0, s.product.m);
  float* work = reinterpret_cast<float*>(scratch());
  const Product& p = s.product;
  for (const Target& target : all_targets()) {
    const Kernels& kernels = *target.kernels;
    auto check = [&](const char* way, const auto& body) {
      const Product q = s.with(got);
      body(q);
      check_same(got, expected, tolerance, q, way, target.name);
    };
    check("run", [&](const Product& q) { run_with_work(kernels, q, 1); });
    check("run with 3 threads", [&](const Product& q) { run_with_work(kernels, q, 3); });
    if (!has_blocks(p)) continue;
    check_packing(kernels.floats, p, check);
    if (p.a.type != BNNSDataTypeFloat32 || p.b.type != BNNSDataTypeFloat32) continue;
    if (p.b.column == 1) {
      check("plain", [&](const Product& q) { by_quarters(q, [&](const Block& block) { kernels.plain(q, block); }); });
      if (p.a.column == 1)
        check("turned", [&](const Product& q) {
          by_quarters(q, [&](const Block& block) { kernels.turned(q, block, work); });
        });
      if (p.m <= kFewRows) {
        check("few rows", [&](const Product& q) {
          by_quarters(q, [&](const Block& block) { kernels.few_rows(q, block, work); });
        });
        check("all few rows", [&](const Product& q) { kernels.few_rows(q, {0, q.m, 0, q.n}, work); });
      }
    }
    if (p.a.column == 1 && p.b.row == 1)
      check("dots", [&](const Product& q) { by_quarters(q, [&](const Block& block) { kernels.dots(q, block); }); });
  }
}

// The same for pairs of bfloat16.
void check_pairs(const Setting& s, float tolerance = 0.0f) {
  const Product& p = s.product;
  CHECK(can_be_pairs(p), "not a product of pairs");
  std::vector<float> expected, got;
  run_reference(s.with(expected), 0, p.m);
  for (const PairTarget& target : all_pairs()) {
    auto check = [&](const char* way, const auto& body) {
      const Product q = s.with(got);
      body(q);
      check_same(got, expected, tolerance, q, way, target.name);
    };
    check("run", [&](const Product& q) { run_pairs(target.pairs, q, 1); });
    check("run with 3 threads", [&](const Product& q) { run_pairs(target.pairs, q, 3); });
    if (has_blocks(p)) check_packing(*target.pairs, p, check);
  }
}

// A random setting of everything that does not change the sizes.
Options random_options(Random& random) {
  constexpr Order orders[] = {Order::rows, Order::rows, Order::columns, Order::columns, Order::strided};
  constexpr BNNSDataType types[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat32, BNNSDataTypeFloat32,
                                    BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
  Options o;
  o.a = orders[random.below(5)];
  o.b = orders[random.below(5)];
  o.a_type = types[random.below(6)];
  o.b_type = types[random.below(6)];
  o.gap = random.below(2) * random.below(20);
  o.alpha = random.below(2) ? 1.0f : -0.5f;
  o.accumulate = random.below(2);
  o.row_bias = random.below(2);
  o.column_bias = random.below(2);
  return o;
}

// ---- values ----

TEST(gemm_every_order_of_both_operands) {
  Random random{1};
  for (Order a : {Order::rows, Order::columns, Order::strided})
    for (Order b : {Order::rows, Order::columns, Order::strided})
      for (size_t gap : {0, 5}) {
        Options o;
        o.a = a;
        o.b = b;
        o.gap = gap;
        check_all(Setting(37, 53, 70, o, random));
        check_all(Setting(130, 150, 600, o, random));
      }
}

TEST(gemm_every_tail_of_rows_columns_and_k) {
  Random random{2};
  for (size_t m = 1; m <= 43; ++m) {
    check_all(Setting(m, 1 + random.below(40), 1 + random.below(40), random_options(random), random));
    check_all(Setting(m, 33, 17, {}, random));
  }
  for (size_t n = 1; n <= 67; ++n) {
    check_all(Setting(1 + random.below(30), n, 1 + random.below(40), random_options(random), random));
    check_all(Setting(15, n, 9, {}, random));
  }
  for (size_t k = 1; k <= 50; ++k) {
    check_all(Setting(1 + random.below(30), 1 + random.below(40), k, random_options(random), random));
    check_all(Setting(15, 34, k, {.b = Order::columns}, random));
  }
}

TEST(gemm_k_around_its_cuts) {
  Random random{3};
  for (size_t k : {kDepth - 1, kDepth, kDepth + 1, 2 * kDepth, 2 * kDepth + 3, 3 * kDepth - 1})
    for (Order b : {Order::rows, Order::columns}) {
      Options o = random_options(random);
      o.b = b;
      check_all(Setting(16, 35, k, o, random));
      check_all(Setting(9, 11, k, {.b = b, .accumulate = true, .row_bias = true, .column_bias = true}, random));
    }
  // Beyond the cut of dot products; sums are exact up to 2^24 sixteenths.
  check_all(Setting(3, 6, kDotDepth + 5, {.b = Order::columns}, random));
  check_all(Setting(3, 6, 2 * kDotDepth + 17, {.b = Order::columns, .accumulate = true, .row_bias = true}, random));
}

TEST(gemm_blocks_of_rows_and_columns) {
  Random random{4};
  for (size_t m : {255, 700, 1111})
    for (Order b : {Order::rows, Order::columns}) check_all(Setting(m, 40, 513, {.b = b}, random));
  check_all(Setting(20, 2500, 30, random_options(random), random));
  check_all(Setting(70, 700, 200, {.a = Order::columns, .alpha = 0.5f, .column_bias = true}, random));
}

TEST(gemm_vectors_in_every_order) {
  Random random{5};
  for (Order a : {Order::rows, Order::columns, Order::strided})
    for (Order b : {Order::rows, Order::columns, Order::strided})
      for (size_t length : {1, 2, 15, 16, 31, 100, 2049, 5000})
        for (bool more : {false, true}) {
          Options o{.a = a, .b = b, .gap = more ? size_t{3} : 0};
          o.alpha = more ? 0.25f : 1.0f;
          o.accumulate = o.row_bias = o.column_bias = more;
          check_all(Setting(1, length, 37, o, random));
          check_all(Setting(length, 1, 37, o, random));
          if (length <= 2049) check_all(Setting(1, 1, length, o, random));
        }
}

TEST(gemm_half_types) {
  Random random{6};
  for (BNNSDataType a : {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16})
    for (BNNSDataType b : {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16})
      for (Order order : {Order::rows, Order::columns, Order::strided}) {
        check_all(Setting(29, 47, 65, {.a = order, .b = order, .a_type = a, .b_type = b}, random));
        check_all(Setting(1, 70, 33, {.a = order, .b = order, .a_type = a, .b_type = b}, random));
        check_all(Setting(33, 1, 21, {.a = order, .b = order, .a_type = a, .b_type = b}, random));
      }
}

TEST(gemm_repeated_is_run_to_the_bit) {
  Random random{17};
  for (size_t i = 0; i < 60; ++i) {
    size_t m = 1 + random.below(20), n = 1 + random.below(40), k = random.below(30);
    if (i % 5 == 0) n = 1;
    if (i % 10 == 0) m = random.below(2) ? 1 : 300 * m;
    const Setting s(m, n, k, random_options(random), random);
    std::vector<float> expected, got;
    const Product p = s.with(expected);
    run(p, 1, nullptr);
    const Product q = s.with(got);
    Product like = q;
    like.a.data = like.b.data = nullptr;
    like.c = nullptr;
    Repeated(like).run(q.a.data, q.b.data, q.c, q.accumulate);
    CHECK(std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)) == 0, "%zux%zux%zu: other bits", m, n,
          k);
  }
}

TEST(gemm_narrow_products_of_half_types) {
  Random random{16};
  for (BNNSDataType type : {BNNSDataTypeFloat16, BNNSDataTypeBFloat16})
    for (Order b : {Order::rows, Order::columns})
      for (size_t k : {1, 15, 16, 17, 31, 32, 33, 47, 64, 65, 100, 530}) {
        Options o{.b = b, .a_type = type, .b_type = type};
        o.gap = k % 2;
        o.accumulate = k % 3 == 0;
        for (size_t m : {1, 2, 3, 7, 40}) check_all(Setting(m, 6, k, o, random));  // dot products, turned or not
        check_all(Setting(2, 40, k, o, random));
        check_all(Setting(150, 27, k, o, random));  // rows converted panel by panel
      }
}

TEST(gemm_few_rows_with_half_weights_in_place) {
  Random random{18};
  for (BNNSDataType type : {BNNSDataTypeFloat16, BNNSDataTypeBFloat16})
    for (size_t m = 1; m <= 15; ++m)
      for (size_t n : {3, 16, 29, 32, 45, 150}) {
        Options o = random_options(random);
        o.b = Order::rows;
        o.b_type = type;
        check_all(Setting(m, n, n == 150 ? 700 : 37, o, random));
      }
}

// ---- pairs of bfloat16 ----

Options random_pairs(Random& random) {
  Options o = random_options(random);
  o.precision = Precision::medium;
  for (BNNSDataType* type : {&o.a_type, &o.b_type})
    *type = random.below(2) ? BNNSDataTypeBFloat16 : BNNSDataTypeFloat32;
  return o;
}

TEST(gemm_pairs_in_every_order) {
  Random random{21};
  for (BNNSDataType a_type : {BNNSDataTypeFloat32, BNNSDataTypeBFloat16})
    for (BNNSDataType b_type : {BNNSDataTypeFloat32, BNNSDataTypeBFloat16})
      for (Order a : {Order::rows, Order::columns, Order::strided})
        for (Order b : {Order::rows, Order::columns, Order::strided})
          for (size_t gap : {0, 5}) {
            Options o{.a = a, .b = b, .a_type = a_type, .b_type = b_type, .gap = gap};
            o.precision = Precision::medium;
            check_pairs(Setting(37, 53, 71, o, random));
          }
}

TEST(gemm_pairs_every_tail_of_rows_columns_and_k) {
  Random random{22};
  for (size_t m = 1; m <= 50; ++m) check_pairs(Setting(m, 1 + random.below(40), 33, random_pairs(random), random));
  for (size_t n = 1; n <= 67; ++n) check_pairs(Setting(15, n, 1 + random.below(40), random_pairs(random), random));
  for (size_t k = 0; k <= 70; ++k) check_pairs(Setting(1 + random.below(30), 34, k, random_pairs(random), random));
}

TEST(gemm_pairs_k_around_its_cuts) {
  Random random{23};
  for (size_t k : {2 * kDepth - 1, 2 * kDepth, 2 * kDepth + 1, 4 * kDepth + 3}) {
    check_pairs(Setting(16, 35, k, random_pairs(random), random));
    Options o{.b = Order::columns, .a_type = BNNSDataTypeBFloat16, .b_type = BNNSDataTypeBFloat16};
    o.accumulate = o.row_bias = o.column_bias = true;
    check_pairs(Setting(5, 3, k, o, random));
  }
}

TEST(gemm_pairs_blocks_of_rows_and_columns) {
  Random random{24};
  check_pairs(Setting(700, 40, 65, random_pairs(random), random));
  check_pairs(Setting(40, 700, 65, random_pairs(random), random));
  check_pairs(Setting(300, 300, 64, random_pairs(random), random));
}

TEST(gemm_random_settings) {
  Random random{7};
  for (int i = 0; i < 150; ++i) {
    const size_t m = 1 + random.below(90), n = 1 + random.below(120), k = random.below(150);
    check_all(Setting(m, n, k, random_options(random), random));
  }
}

TEST(gemm_k_of_zero_leaves_bias_and_c) {
  Random random{8};
  for (bool accumulate : {false, true})
    for (bool biased : {false, true}) {
      Setting s(17, 35, 0, {.gap = 2, .accumulate = accumulate, .row_bias = biased, .column_bias = biased}, random);
      check_all(s);
      s.product.a.data = s.product.b.data = nullptr;
      check_all(s);
      std::vector<float> c;
      run(s.with(c), 1, nullptr);
      const float expected = (accumulate ? kUntouched : 0.0f) + (biased ? s.row_bias[3] + s.column_bias[5] : 0.0f);
      CHECK(c[1 + 3 * s.product.c_row + 5] == expected, "%g, not %g", c[1 + 3 * s.product.c_row + 5], expected);
    }
}

// ---- activations ----

activation::Fused fused(BNNSActivationFunction function) {
  BNNSActivation description = {};
  description.function = function;
  activation::Fused result;
  CHECK(activation::Fused::read(description, "activation", &result) == 0, "%s", obn_last_error());
  return result;
}

TEST(gemm_activation_comes_last) {
  Random random{9};
  for (BNNSActivationFunction function :
       {BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionTanh, BNNSActivationFunctionSoftmax,
        BNNSActivationFunctionLogSoftmax}) {
    const activation::Fused act = fused(function);
    Options o{.alpha = 0.125f, .row_bias = true, .column_bias = true, .activation = &act};
    const float tolerance = function == BNNSActivationFunctionRectifiedLinear ? 0.0f : 2e-6f;
    for (Order b : {Order::rows, Order::columns}) {
      o.b = b;
      check_all(Setting(20, 50, 30, o, random), tolerance);
      check_all(Setting(1, 50, 30, o, random), tolerance);
      check_all(Setting(50, 1, 30, o, random), tolerance);
      check_all(Setting(90, 400, 60, o, random), tolerance);
      o.a = Order::columns;
      check_all(Setting(60, 1, 20, o, random), tolerance);
      check_all(Setting(16, 1500, 600, o, random), tolerance);
      o.a = Order::rows;
    }
  }
}

// ---- promises ----

TEST(gemm_nan_and_infinity_stay_in_their_row_and_column) {
  Random random{10};
  for (Order order : {Order::rows, Order::columns})
    for (size_t k : {20, 600}) {
      Setting s(45, 77, k, {.a = order, .b = order}, random);
      s.a.set(14, k - 1, kNan);
      s.a.set(44, 3, kInfinity);
      s.b.set(2, 76, kInfinity);
      s.b.set(k / 2, 31, kNan);
      check_all(s);
      std::vector<float> c;
      run_with_work(targets.best(), s.with(c), 1);
      for (size_t i = 0; i < 45; ++i)
        for (size_t j = 0; j < 77; ++j)
          CHECK(std::isfinite(c[1 + i * 77 + j]) == (i != 14 && i != 44 && j != 76 && j != 31), "(%zu, %zu) is %g", i,
                j, c[1 + i * 77 + j]);
    }
}

void fill_real(Setting& s, Random& random) {
  s.a.fill([&] { return random.real(); });
  s.b.fill([&] { return random.real(); });
  for (float& v : s.c) v = random.real();
}

constexpr Options kBrainy = {.a_type = BNNSDataTypeBFloat16, .b_type = BNNSDataTypeBFloat16};

TEST(gemm_pairs_keep_nan_and_infinity_in_their_row_and_column) {
  Random random{31};
  for (Order order : {Order::rows, Order::columns})
    for (size_t k : {21, 1100}) {
      Options o = kBrainy;
      o.a = o.b = order;
      Setting s(33, 37, k, o, random);
      s.a.set(14, k - 1, kNan);
      s.a.set(32, 3, kInfinity);
      s.b.set(2, 36, kInfinity);
      s.b.set(k / 2, 31, kNan);
      for (const PairTarget& target : all_pairs()) {
        std::vector<float> c;
        run_pairs(target.pairs, s.with(c), 1);
        for (size_t i = 0; i < 33; ++i)
          for (size_t j = 0; j < 37; ++j)
            CHECK(std::isfinite(c[1 + i * 37 + j]) == (i != 14 && i != 32 && j != 36 && j != 31),
                  "(%zu, %zu) is %g on %s", i, j, c[1 + i * 37 + j], target.name);
      }
    }
}

TEST(gemm_pairs_same_bits_for_any_number_of_threads) {
  Random random{32};
  struct Size {
    size_t m, n, k;
  };
  for (Size size : {Size{200, 180, 150}, Size{14, 900, 60}, Size{900, 14, 61}, Size{40, 40, 2100}, Size{128, 96, 70}})
    for (Order order : {Order::rows, Order::columns})
      for (BNNSDataType type : {BNNSDataTypeBFloat16, BNNSDataTypeFloat32}) {
        Options o{.a = order, .b = order, .a_type = type, .b_type = type, .alpha = 0.3f, .accumulate = true};
        o.precision = Precision::medium;
        Setting s(size.m, size.n, size.k, o, random);
        fill_real(s, random);
        for (const PairTarget& target : all_pairs()) {
          std::vector<float> one, many;
          run_pairs(target.pairs, s.with(one), 1);
          for (size_t threads : {2, 7}) {
            run_pairs(target.pairs, s.with(many), threads);
            CHECK(std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0,
                  "(%zu, %zu, %zu) differs on %s with %zu threads", size.m, size.n, size.k, target.name, threads);
          }
        }
      }
}

float flushed(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }
#if defined(OBN_ARM)

// What bfmmla does with one sum: both products added up, then their sum; sums are rounded to odd (towards 0, and then the
// last bit says whether something was lost), no numbers below the smallest normal one.
double sum_to_odd(double a, double b) {
  const double sum = a + b, of_b = sum - a, lost = (a - (sum - of_b)) + (b - of_b);
  const bool is_odd = std::bit_cast<uint64_t>(sum) & 1;
  return lost == 0.0 || is_odd ? sum : std::nextafter(sum, lost > 0.0 ? INFINITY : -INFINITY);
}
float add_to_odd(float a, float b) {
  const double sum = sum_to_odd(flushed(a), flushed(b));
  if (std::fabs(sum) < std::numeric_limits<float>::min()) return std::copysign(0.0f, static_cast<float>(sum));
  float rounded = static_cast<float>(sum);
  if (rounded == sum) return rounded;
  if (std::fabs(rounded) > std::fabs(sum)) rounded = std::nextafter(rounded, 0.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | 1);
}
float add_pair(float sum, float low_x, float low_w, float high_x, float high_w) {
  const float low = flushed(flushed(low_x) * flushed(low_w)), high = flushed(flushed(high_x) * flushed(high_w));
  return add_to_odd(sum, add_to_odd(low, high));
}

#else

// What the instruction of AVX512_BF16 does with one lane: the upper halves first, each sum fused and rounded, no
// numbers below the smallest normal one.
float add_pair(float sum, float low_x, float low_w, float high_x, float high_w) {
  sum = flushed(std::fma(flushed(high_x), flushed(high_w), flushed(sum)));
  return flushed(std::fma(flushed(low_x), flushed(low_w), sum));
}

#endif

TEST(gemm_pairs_are_summed_as_the_manual_says) {
  if (!dot_pairs()) return;
  Random random{33};
  for (int spread : {4, 60, 130})  // exponents; the last ones leave the normal numbers
    for (size_t k : {1, 2, 77, 1000}) {
      Setting s(17, 21, k, kBrainy, random);
      const auto value = [&] { return std::ldexp(random.real(), static_cast<int>(random.below(spread)) - spread); };
      s.a.fill(value);
      s.b.fill(value);
      std::vector<float> c;
      run_pairs(dot_pairs(), s.with(c), 1);
      const auto* x = static_cast<const uint16_t*>(s.product.a.data);
      const auto* w = static_cast<const uint16_t*>(s.product.b.data);
      for (size_t i = 0; i < 17; ++i)
        for (size_t j = 0; j < 21; ++j) {
          const auto a = [&](size_t q) { return q < k ? float_of_bfloat16(x[i * k + q]) : 0.0f; };
          const auto b = [&](size_t q) { return q < k ? float_of_bfloat16(w[q * 21 + j]) : 0.0f; };
          float sum = 0.0f;
          for (size_t q = 0; q < k; q += 2) sum = add_pair(sum, a(q), b(q), a(q + 1), b(q + 1));
          const float got = c[1 + i * 21 + j];
          CHECK(std::memcmp(&got, &sum, sizeof sum) == 0, "k %zu, spread %d: (%zu, %zu) is %a, expected %a", k, spread,
                i, j, got, sum);
        }
    }
}

// Products of bfloat16 are exact, so only sums can be wrong. Rounding to bfloat16 moves each factor by at most 2^-9.
TEST(gemm_pairs_error) {
  Random random{34};
  for (size_t k : {30, 500, 3000})
    for (BNNSDataType type : {BNNSDataTypeBFloat16, BNNSDataTypeFloat32}) {
      Options o{.a_type = type, .b_type = type};
      o.precision = Precision::medium;
      Setting s(20, 24, k, o, random), all(20, 24, k, o, random);
      std::vector<float> exact, got, magnitude;
      Random again{35}, also{35};
      s.a.fill([&] { return again.real(); });
      s.b.fill([&] { return again.real(); });
      all.a.fill([&] { return std::fabs(also.real()); });
      all.b.fill([&] { return std::fabs(also.real()); });
      run_reference(s.with(exact), 0, 20);
      run_reference(all.with(magnitude), 0, 20);
      const double factors = type == BNNSDataTypeBFloat16 ? 0.0 : 0x1p-8 + 0x1p-18;
      const double sums = static_cast<double>(k) * 0x1p-24;
      for (const PairTarget& target : all_pairs()) {
        run_pairs(target.pairs, s.with(got), 1);
        for (size_t i = 1; i < got.size(); ++i)
          CHECK(std::fabs(static_cast<double>(got[i]) - exact[i]) <= (factors + sums) * magnitude[i],
                "k %zu on %s: %g, not %g", k, target.name, got[i], exact[i]);
      }
    }
}

TEST(gemm_tiles_that_compute_nonsense_are_found_out) {
  CHECK(agrees_with_model(model_pairs()), "the model is not itself");
  if (dot_pairs()) CHECK(agrees_with_model(*dot_pairs()), "AVX512_BF16 or FEAT_BF16 is not like the model");
  static const auto packed = model_pairs().packed;
  Packing wrong = model_pairs();
  wrong.packed = [](const Product& p, const Block& block, const float* a, const float* b, float* work) {
    packed(p, block, a, b, work);
    p.c[p.m * p.n - 1] *= 1.00001f;
  };
  CHECK(!agrees_with_model(wrong), "a wrong number was not seen");
}

TEST(gemm_precision_decides_what_may_be_rounded) {
  Random random{36};
  for (Precision precision : {Precision::highest, Precision::high, Precision::medium})
    for (BNNSDataType a : {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16})
      for (BNNSDataType b : {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16}) {
        Setting s(3, 4, 5, {.a_type = a, .b_type = b, .precision = precision}, random);
        const bool half = a == BNNSDataTypeFloat16 || b == BNNSDataTypeFloat16;
        const bool brain = a == BNNSDataTypeBFloat16 && b == BNNSDataTypeBFloat16;
        CHECK(can_be_pairs(s.product) == (brain || (precision == Precision::medium && !half)), "precision %d: %x %x",
              static_cast<int>(precision), static_cast<unsigned>(a), static_cast<unsigned>(b));
      }
}

TEST(gemm_same_bits_for_any_number_of_threads) {
  Random random{11};
  struct Size {
    size_t m, n, k;
  };
  for (Size size : {Size{200, 180, 700}, Size{32, 10, 1568}, Size{64, 64, 64}, Size{100, 96, 70}, Size{1, 3000, 200},
                    Size{3000, 1, 200}, Size{14, 900, 600}, Size{900, 14, 600}, Size{40, 40, 9000}, Size{1, 1, 9000},
                    Size{300, 10, 300}, Size{300, 20, 300}, Size{300, 700, 600}, Size{130, 70, 9000}})
    for (Order a : {Order::rows, Order::columns})
      for (Order b : {Order::rows, Order::columns}) {
        Setting s(size.m, size.n, size.k, {.a = a, .b = b, .alpha = 0.3f, .accumulate = true}, random);
        fill_real(s, random);
        for (const Target& target : all_targets()) {
          std::vector<float> one, many;
          run_with_work(*target.kernels, s.with(one), 1);
          for (size_t threads : {2, 7}) {
            run_with_work(*target.kernels, s.with(many), threads);
            CHECK(std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0,
                  "(%zu, %zu, %zu) differs on %s with %zu threads", size.m, size.n, size.k, target.name, threads);
          }
        }
      }
}

// Against float64, beside the plain loop in float32.
TEST(gemm_error_within_four_times_the_plain_loop) {
  Random random{12};
  for (size_t k : {30, 500, 3000})
    for (Order b : {Order::rows, Order::columns})
      for (size_t m : {1, 12, 60}) {
        Setting s(m, 40, k, {.b = b}, random);
        fill_real(s, random);
        std::vector<float> exact, got;
        run_reference(s.with(exact), 0, m);
        const float* x = static_cast<const float*>(s.product.a.data);
        const float* w = static_cast<const float*>(s.product.b.data);
        double plain_error = 0.0;
        for (size_t i = 0; i < m; ++i)
          for (size_t j = 0; j < 40; ++j) {
            volatile float sum = 0.0f;  // not fused, one after the other
            for (size_t p = 0; p < k; ++p) {
              volatile float one = x[i * k + p] * w[p * s.product.b.row + j * s.product.b.column];
              sum = sum + one;
            }
            plain_error = std::max(plain_error, std::fabs(static_cast<double>(sum) - exact[1 + i * 40 + j]));
          }
        for (const Target& target : all_targets()) {
          run_with_work(*target.kernels, s.with(got), 1);
          double error = 0.0;
          for (size_t i = 1; i < got.size(); ++i)
            error = std::max(error, std::fabs(static_cast<double>(got[i]) - exact[i]));
          CHECK(error <= 4.0 * plain_error, "(%zu, 40, %zu) on %s: error %g, plain loop %g", m, k, target.name, error,
                plain_error);
        }
      }
}

TEST(gemm_batches) {
  Random random{13};
  struct Shape {
    size_t m, n, k, count;
  };
  for (Shape shape : {Shape{5, 7, 9, 4}, Shape{64, 50, 64, 3}, Shape{120, 130, 140, 2}, Shape{1, 40, 30, 70},
                      Shape{60, 1, 30, 6}, Shape{100, 100, 600, 9}})
    for (bool shares_b : {false, true})
      for (Order b : {Order::rows, Order::columns}) {
        const auto [m, n, k, count] = shape;
        Setting s(m * count, n, k, {.a = Order::rows, .b = b, .alpha = 0.5f, .column_bias = true}, random);
        Matrix others(k * count, n, b, BNNSDataTypeFloat32);
        others.fill([&] { return random.quarter(); });
        std::vector<float> expected, got;
        const size_t b_step = shares_b ? 0 : k * others.operand.row;
        Product all = s.with(expected), first = all;
        if (!shares_b) first.b = others.operand;
        first.m = m;
        for (size_t i = 0; i < count; ++i) {
          Product one = first;
          one.a.data = static_cast<const float*>(first.a.data) + i * m * first.a.row;
          one.b.data = static_cast<const float*>(first.b.data) + i * b_step;
          one.c = first.c + i * m * n;
          run_reference(one, 0, m);
        }
        for (size_t threads : {1, 3}) {
          first.c = s.with(got).c;
          run_batch(first, count, m * first.a.row, b_step, m * n, threads, workspace(work_bytes(first, count)));
          check_same(got, expected, 0.0f, first, "batch", "best");
        }
      }
}

TEST(matmul_precision_can_be_set_and_refuses_other_numbers) {
  CHECK(obn_get_matmul_precision() == 0 && precision() == Precision::highest, "highest is not the default");
  CHECK(obn_set_matmul_precision(2) == 0 && precision() == Precision::medium, "medium was not taken");
  for (int wrong : {-1, 3})
    CHECK(obn_set_matmul_precision(wrong) == -1 && obn_get_matmul_precision() == 2 &&
              std::strstr(obn_last_error(), "precision: expected 0"),
          "%d: %s", wrong, obn_last_error());
  CHECK(obn_set_matmul_precision(0) == 0 && obn_get_matmul_precision() == 0, "highest was not taken");
}

}  // namespace
}  // namespace obn::gemm
