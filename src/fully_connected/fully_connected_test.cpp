// Fully connected: every target and every layout against float64 sums, the recorded vectors, and the promises of the C
// interface.
#include "fully_connected/fully_connected.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/memory.h"
#include "base/test.h"
#include "openbnns/bnns/legacy.h"
#include "openbnns/openbnns.h"

namespace obn::fully_connected {
namespace {

// ---- numbers and arrays ----

struct Random : ::obn::test::Random {
  using ::obn::test::Random::Random;
  float value() { return static_cast<float>(static_cast<double>(below(1 << 20)) / (1 << 19) - 1.0); }
};

// A table of values with strides, and memory between and behind them that nobody may touch.
struct Grid {
  BNNSDataType type = BNNSDataTypeFloat32;
  size_t rows = 0, columns = 0, row = 0, column = 0;
  size_t shift = 0;  // elements in front, so that rows need not be aligned
  float scale = 0.0f, bias = 0.0f;
  std::vector<std::byte> bytes;

  Grid() = default;
  Grid(BNNSDataType type, size_t rows, size_t columns, size_t column = 1, size_t gap = 0, size_t shift = 0)
      : type(type), rows(rows), columns(columns), row(columns * column + gap), column(column), shift(shift) {
    bytes.assign((shift + rows * row + 8) * bytes_of(type), std::byte{0x3c});
  }
  std::byte* data() { return bytes.data() + shift * bytes_of(type); }
  const std::byte* at(size_t r, size_t c) const {
    return bytes.data() + (shift + r * row + c * column) * bytes_of(type);
  }
  activation::ref::Values values() const {
    return {at(0, 0), type, scale == 0.0f ? 1.0f : scale, bias, nullptr, BNNSDataTypeFloat32};
  }
  double get(size_t r, size_t c) const {
    double value;
    activation::ref::get_reals(values(), r * row + c * column, 1, 1, &value);
    return value;
  }
  void set(size_t r, size_t c, double value) {
    activation::ref::put_reals(values(), r * row + c * column, 1, 1, &value);
  }
  void fill(Random& random) {
    const double factor = is_float(type) ? 1.0 : 100.0;
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) set(r, c, factor * random.value());
  }
  void fill(std::initializer_list<double> numbers) {
    size_t i = 0;
    for (double number : numbers) {
      set(i / columns, i % columns, number);
      ++i;
    }
  }
  // One row as a vector.
  BNNSNDArrayDescriptor vector(bool accumulate = false) {
    BNNSNDArrayDescriptor d = {};
    d.flags = accumulate ? BNNSNDArrayFlagBackpropAccumulate : BNNSNDArrayFlagBackpropSet;
    d.layout = BNNSDataLayoutVector;
    d.size[0] = columns;
    d.stride[0] = column;
    d.data = data();
    d.data_type = type;
    d.data_scale = scale;
    d.data_bias = bias;
    return d;
  }
  // The whole as a matrix; rows are the slow axis in every layout.
  BNNSNDArrayDescriptor matrix(BNNSDataLayout layout, bool accumulate = false) {
    BNNSNDArrayDescriptor d = vector(accumulate);
    d.layout = layout;
    const bool slow_first = layout == BNNSDataLayout2DFirstMajor;
    d.size[0] = slow_first ? rows : columns;
    d.size[1] = slow_first ? columns : rows;
    d.stride[1] = row;
    return d;
  }
};

bool is_by_output(BNNSDataLayout layout) {
  return layout == BNNSDataLayoutRowMajorMatrix || layout == BNNSDataLayout2DFirstMajor;
}

double step_of(BNNSDataType type) {  // half the distance of neighbours at 1
  return type == BNNSDataTypeFloat32 ? 0x1p-24 : type == BNNSDataTypeFloat16 ? 0x1p-11 : 0x1p-8;
}

// Sums of a product two ways: exactly (float64) and as the plain float32 loop has them.
struct Sum {
  double exact;
  float plain;

  void add(double a, double b) {
    exact += a * b;
    plain += static_cast<float>(a) * static_cast<float>(b);
  }
};

// `got` is no further from the exact sums than four times the plain loop, and one rounding to its type; the memory
// between its values is as it was.
void check_sums(const Grid& got, const Grid& before, const std::vector<Sum>& sums, const char* what, const char* on) {
  double allowed = 0.0, most = 0.0;
  for (const Sum& sum : sums) {
    allowed = std::max(allowed, std::fabs(sum.plain - sum.exact));
    most = std::max(most, std::fabs(sum.exact));
  }
  allowed = 4.0 * allowed + 2.0 * step_of(BNNSDataTypeFloat32) * most;
  for (size_t r = 0; r < got.rows; ++r) {
    for (size_t c = 0; c < got.columns; ++c) {
      const double exact = sums[r * got.columns + c].exact;
      const double rounding =
          got.type == BNNSDataTypeFloat32 ? 0.0 : step_of(got.type) * std::max(std::fabs(exact), 1e-4);
      if (std::fabs(got.get(r, c) - exact) <= allowed + rounding) continue;
      CHECK(false, "%s on %s at (%zu, %zu): %.9g, not %.9g (allowed %.3g)", what, on, r, c, got.get(r, c), exact,
            allowed + rounding);
      return;
    }
  }
  Grid masked = got;  // with the values taken back only the rest is compared
  for (size_t r = 0; r < got.rows; ++r)
    for (size_t c = 0; c < got.columns; ++c)
      std::memcpy(const_cast<std::byte*>(masked.at(r, c)), before.at(r, c), bytes_of(got.type));
  CHECK(masked.bytes == before.bytes, "%s on %s: memory between the values was touched", what, on);
}

// ---- one layer, all its arrays ----

struct Setup {
  size_t n = 1, i = 1, o = 1;
  BNNSDataType x_type = BNNSDataTypeFloat32, w_type = BNNSDataTypeFloat32, y_type = BNNSDataTypeFloat32;
  BNNSDataLayout layout = BNNSDataLayoutRowMajorMatrix;
  size_t x_step = 1, w_step = 1, y_step = 1;  // strides of the fastest axes
  size_t gap = 0, shift = 0;                  // between rows, and in front
  bool client = false, accumulate = false, has_bias = true;
  BNNSActivationFunction function = BNNSActivationFunctionIdentity;
  size_t threads = 0;
};

struct Layer {
  Setup setup;
  Grid x, w, b, y, dy, dx, dw, db;
  BNNSFilter filter = nullptr;

  Layer(const Setup& s, Random& random) : setup(s) {
    const bool by_output = is_by_output(s.layout);
    x = Grid(s.x_type, s.n, s.i, s.x_step, s.gap, s.shift);
    w = Grid(s.w_type, by_output ? s.o : s.i, by_output ? s.i : s.o, s.w_step, s.gap, s.shift);
    b = Grid(BNNSDataTypeFloat32, 1, s.o, s.w_step);
    y = Grid(s.y_type, s.n, s.o, s.y_step, s.gap, s.shift);
    if (!is_float(s.x_type)) x.scale = 0.03f, x.bias = 0.5f;
    if (!is_float(s.w_type)) w.scale = 0.02f, w.bias = -0.25f;
    dy = y;
    dx = x;
    dw = w;
    db = b;
    for (Grid* grid : {&x, &w, &b, &y, &dy, &dx, &dw, &db}) grid->fill(random);
    create();
  }
  Layer(const Layer&) = delete;
  ~Layer() { BNNSFilterDestroy(filter); }

  BNNSLayerParametersFullyConnected parameters() {
    BNNSLayerParametersFullyConnected p = {};
    p.i_desc = x.vector();
    p.o_desc = y.vector();
    p.w_desc = w.matrix(setup.layout);
    if (setup.has_bias) p.bias = b.vector();
    p.activation.function = setup.function;
    p.activation.alpha = 0.25f;
    p.activation.beta = 1.0f;
    return p;
  }
  void create() {
    const BNNSLayerParametersFullyConnected p = parameters();
    BNNSFilterParameters options = {};
    if (setup.client) options.flags = BNNSFlagsUseClientPtr;
    options.n_threads = setup.threads;
    filter = BNNSFilterCreateLayerFullyConnected(&p, &options);
    CHECK(filter, "creation: %s", obn_last_error());
  }
  void use(const Kernels* kernels, size_t few_samples = SIZE_MAX, size_t near_bytes = SIZE_MAX) {
    static_cast<FullyConnected*>(find_filter(filter))->choice = {kernels, few_samples, near_bytes};
  }
  int apply() { return BNNSFilterApplyBatch(filter, setup.n, x.data(), x.row, y.data(), y.row); }
  int apply_backward(bool wants_dx = true, bool wants_dw = true, bool wants_db = true) {
    BNNSNDArrayDescriptor dx_d = dx.vector(setup.accumulate), dy_d = dy.vector(),
                          dw_d = dw.matrix(setup.layout, setup.accumulate), db_d = db.vector(setup.accumulate);
    return BNNSFilterApplyBackwardBatch(filter, setup.n, wants_dw ? x.data() : nullptr, x.row,
                                        wants_dx ? &dx_d : nullptr, dx.row, y.data(), y.row, &dy_d, dy.row,
                                        wants_dw ? &dw_d : nullptr, wants_db ? &db_d : nullptr);
  }
  double weight(size_t o, size_t i) const { return is_by_output(setup.layout) ? w.get(o, i) : w.get(i, o); }

  // Identity activation: y, dx, dw and db against the sums of the formulas.
  void check(const char* on) {
    const Setup& s = setup;
    std::vector<Sum> sums(s.n * s.o);
    for (size_t n = 0; n < s.n; ++n) {
      for (size_t o = 0; o < s.o; ++o) {
        Sum& sum = sums[n * s.o + o];
        if (s.has_bias) sum.add(b.get(0, o), 1.0);
        for (size_t i = 0; i < s.i; ++i) sum.add(weight(o, i), x.get(n, i));
      }
    }
    Grid before = y;
    CHECK(apply() == 0, "apply: %s", obn_last_error());
    check_sums(y, before, sums, "y", on);
    if (!is_float(s.x_type) || !is_float(s.w_type)) return;

    std::vector<Sum> x_sums(s.n * s.i), w_sums(s.o * s.i), b_sums(s.o);
    for (size_t n = 0; n < s.n; ++n) {
      for (size_t i = 0; i < s.i; ++i) {
        Sum& sum = x_sums[n * s.i + i];
        if (s.accumulate) sum.add(dx.get(n, i), 1.0);
        for (size_t o = 0; o < s.o; ++o) sum.add(weight(o, i), dy.get(n, o));
      }
    }
    const bool by_output = is_by_output(s.layout);
    for (size_t o = 0; o < s.o; ++o) {
      if (s.accumulate) b_sums[o].add(db.get(0, o), 1.0);
      for (size_t n = 0; n < s.n; ++n) b_sums[o].add(dy.get(n, o), 1.0);
      for (size_t i = 0; i < s.i; ++i) {
        Sum& sum = w_sums[by_output ? o * s.i + i : i * s.o + o];
        if (s.accumulate) sum.add(by_output ? dw.get(o, i) : dw.get(i, o), 1.0);
        for (size_t n = 0; n < s.n; ++n) sum.add(dy.get(n, o), x.get(n, i));
      }
    }
    const Grid dx_before = dx, dw_before = dw, db_before = db;
    CHECK(apply_backward() == 0, "backward: %s", obn_last_error());
    check_sums(dx, dx_before, x_sums, "dx", on);
    check_sums(dw, dw_before, w_sums, "dw", on);
    check_sums(db, db_before, b_sums, "db", on);
  }
};

// Runs `setup` with the kernels of every target this machine has, with the matrix engine, and with the reference loops.
void check_everywhere(const Setup& setup, uint64_t seed) {
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    Random random{seed};
    Layer layer(setup, random);
    layer.use(&targets.at(isa));
    layer.check(name_of(isa));
  }
  {
    Random random{seed};
    Layer layer(setup, random);
    layer.use(&targets.best(), 0);
    layer.check("the matrix engine");
  }
  Random random{seed};
  Layer layer(setup, random);
  layer.use(&reference);
  layer.check("reference");
}

constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix,
                                       BNNSDataLayout2DFirstMajor, BNNSDataLayout2DLastMajor};

}  // namespace

TEST(fully_connected_every_width_agrees_with_float64) {
  for (size_t width = 1; width <= 37; ++width) {
    for (BNNSDataLayout layout : {BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix}) {
      Setup setup;
      setup.layout = layout;
      setup.n = width % 9 + 1;
      setup.i = width;
      setup.o = width % 7 + 1;
      check_everywhere(setup, width);
      std::swap(setup.i, setup.o);
      setup.accumulate = true;
      check_everywhere(setup, width + 100);
    }
  }
}

TEST(fully_connected_random_setups_agree_with_float64) {
  constexpr BNNSDataType kFloats[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
  Random random{7};
  for (int round = 0; round < 200; ++round) {
    Setup s;
    s.n = random.between(1, 11);
    s.i = random.between(1, 90);
    s.o = random.between(1, 50);
    s.x_type = kFloats[random.below(3)];
    s.w_type = kFloats[random.below(3)];
    s.y_type = kFloats[random.below(3)];
    s.layout = kLayouts[random.below(4)];
    s.x_step = random.between(1, 2);
    s.w_step = random.between(1, 2);
    s.y_step = random.between(1, 2);
    s.gap = random.below(4);
    s.shift = random.below(4);
    s.client = random.coin();
    s.accumulate = random.coin();
    s.has_bias = random.coin();
    check_everywhere(s, 1000 + static_cast<uint64_t>(round));
  }
}

TEST(fully_connected_large_layers_agree_with_float64) {
  for (size_t n : {1, 3, 8}) {
    Setup s;
    s.n = n;
    s.i = 1030;
    s.o = 770;
    s.client = true;
    check_everywhere(s, n);
    s.layout = BNNSDataLayoutColumnMajorMatrix;
    check_everywhere(s, n);
  }
}

// Weights that are taken to come from memory: fetched ahead, their gradient past the caches; and together with dx, if
// samples are few and its rows lie whole cache lines apart.
TEST(fully_connected_far_weights_agree_with_float64) {
  constexpr size_t kInputs = 1030, kToLine = 10;
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    for (size_t n : {1, 2, 3, 8}) {
      for (BNNSDataLayout layout : {BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix}) {
        Setup s;
        s.n = n;
        s.i = kInputs;
        s.o = 770;
        s.layout = layout;
        s.shift = n;
        s.gap = n == 8 ? n : kToLine;
        s.client = true;
        Random first{n}, second{n};
        Layer all(s, first), parts(s, second);
        all.use(&targets.at(isa), SIZE_MAX, 0);
        parts.use(&targets.at(isa), SIZE_MAX, n == 3 ? SIZE_MAX : 0);
        all.check(name_of(isa));
        CHECK(parts.apply() == 0 && parts.apply_backward(true, false, false) == 0 &&
                  parts.apply_backward(false, true, false) == 0,
              "%s", obn_last_error());
        CHECK(all.y.bytes == parts.y.bytes && all.dx.bytes == parts.dx.bytes && all.dw.bytes == parts.dw.bytes,
              "one by one on %s, N %zu", name_of(isa), n);
      }
    }
  }
}

// Sums so short that their weights stay in registers, and one step longer; with few samples and with many.
TEST(fully_connected_short_sums_agree_with_float64) {
  for (size_t o = 1; o <= 13; ++o) {
    for (size_t n : {4, 19}) {
      Setup s;
      s.n = n;
      s.i = 290 + 7 * o;
      s.o = o;
      s.w_type = o % 3 == 0 ? BNNSDataTypeFloat16 : BNNSDataTypeFloat32;
      s.shift = o % 4;
      s.gap = o % 2;
      s.accumulate = o % 2 == 0;
      check_everywhere(s, o);
      std::swap(s.i, s.o);
      s.layout = BNNSDataLayoutColumnMajorMatrix;
      check_everywhere(s, 100 + o);
    }
  }
}

TEST(fully_connected_vectors_of_the_specification) {
  Random random{1};
  Setup s;
  s.n = 2;
  s.i = 2;
  Layer layer(s, random);
  BNNSFilterDestroy(layer.filter);
  layer.w.fill({3, 4});
  layer.b.fill({5});
  layer.x.fill({1, 2, 10, 20});
  layer.create();
  CHECK(layer.apply() == 0 && layer.y.get(0, 0) == 16 && layer.y.get(1, 0) == 115, "forward");
  CHECK(BNNSFilterApplyBatch(layer.filter, 2, layer.x.data(), 0, layer.y.data(), 0) == 0 && layer.y.get(1, 0) == 115,
        "strides 0");
  layer.dy.fill({1, 2});
  CHECK(layer.apply_backward() == 0, "%s", obn_last_error());
  CHECK(layer.dx.get(0, 0) == 3 && layer.dx.get(0, 1) == 4 && layer.dx.get(1, 0) == 6 && layer.dx.get(1, 1) == 8, "dx");
  CHECK(layer.dw.get(0, 0) == 21 && layer.dw.get(0, 1) == 42 && layer.db.get(0, 0) == 3, "dw, db");

  const float spaced[] = {1, 2, -99, 10, 20};
  float y[2] = {};
  CHECK(BNNSFilterApplyBatch(layer.filter, 2, spaced, 3, y, 0) == 0 && y[0] == 16 && y[1] == 115, "input stride 3");

  s.n = 1;
  s.i = 3;
  s.o = 2;
  Layer wide(s, random);
  BNNSFilterDestroy(wide.filter);
  wide.w.fill({1, 2, 3, 4, 5, 6});
  wide.b.fill({0.5, -1});
  wide.create();
  const float ones[] = {1, 1, 1}, signs[] = {1, 0, -1};
  CHECK(BNNSFilterApply(wide.filter, ones, y) == 0 && y[0] == 6.5f && y[1] == 14, "6.5, 14");
  CHECK(BNNSFilterApply(wide.filter, signs, y) == 0 && y[0] == -1.5f && y[1] == -3, "-1.5, -3");
}

// ---- sparse weights ----

namespace {

BNNSNDArrayDescriptor describe(BNNSDataLayout layout, size_t a, size_t b, BNNSDataType type, const void* data) {
  BNNSNDArrayDescriptor d = {};
  d.layout = layout;
  d.size[0] = a;
  d.size[1] = b;
  d.data_type = type;
  d.data = const_cast<void*>(data);
  return d;
}

// A layer with the packed weights `w`; the caller destroys it.
BNNSFilter create_sparse(const BNNSNDArrayDescriptor& w, size_t inputs, size_t outputs, uint32_t flags = 0) {
  BNNSLayerParametersFullyConnected p = {};
  p.i_desc = describe(BNNSDataLayoutVector, inputs, 0, BNNSDataTypeFloat32, nullptr);
  p.o_desc = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, nullptr);
  p.w_desc = w;
  BNNSFilterParameters options = {};
  options.flags = flags;
  return BNNSFilterCreateLayerFullyConnected(&p, &options);
}

}  // namespace

TEST(fully_connected_sparse_vector_of_the_specification) {
  // W = 2·I plus 7 at row 3, column 0.
  const uint32_t pairs[] = {0, 0, 1, 1, 2, 2, 0, 3, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7};  // column, row
  const float values[] = {2, 2, 2, 7, 2, 2, 2, 2, 2};
  const uint64_t columns[] = {0, 1, 2, 0, 3, 4, 5, 6, 7};
  const int16_t starts[] = {0, 1, 2, 3, 5, 6, 7, 8, 9};
  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8}, expected[] = {2, 4, 6, 15, 10, 12, 14, 16};
  const BNNSNDArrayDescriptor shape = describe(BNNSDataLayoutRowMajorMatrix, 8, 8, BNNSDataTypeFloat32, nullptr),
                              list = describe(BNNSDataLayoutRowMajorMatrix, 2, 9, BNNSDataTypeUInt32, pairs),
                              numbers = describe(BNNSDataLayoutVector, 9, 0, BNNSDataTypeFloat32, values),
                              of_columns = describe(BNNSDataLayoutVector, 9, 0, BNNSDataTypeUInt64, columns),
                              of_rows = describe(BNNSDataLayoutVector, 9, 0, BNNSDataTypeInt16, starts);
  for (int form = 0; form < 2; ++form) {
    BNNSNDArrayDescriptor out = describe(BNNSDataLayoutFullyConnectedSparse, 8, 8, BNNSDataTypeFloat32, nullptr);
    const auto coo = BNNSNDArrayFullyConnectedSparsifySparseCOO;
    const auto csr = BNNSNDArrayFullyConnectedSparsifySparseCSR;
    const int status = form == 0
                           ? coo(&shape, &list, &numbers, &out, nullptr, 1, nullptr, 0, nullptr)
                           : csr(&shape, &of_columns, &of_rows, &numbers, &out, nullptr, 1, nullptr, 0, nullptr);
    CHECK(status == 0, "%s", obn_last_error());
    const size_t bytes = BNNSNDArrayGetDataSize(&out);
    CHECK(bytes > 0 && bytes < 8 * 8 * sizeof(float), "%zu bytes", bytes);
    for (uint32_t flags : {0u, static_cast<uint32_t>(BNNSFlagsUseClientPtr)}) {
      BNNSFilter filter = create_sparse(out, 8, 8, flags);
      float y[8] = {};
      CHECK(filter && BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
      CHECK(std::equal(y, y + 8, expected), "form %d: %g %g %g %g …", form, y[0], y[1], y[2], y[3]);
      BNNSFilterDestroy(filter);
    }
    std::free(out.data);
  }
}

TEST(fully_connected_sparse_agrees_with_dense) {
  Random random{5};
  for (int round = 0; round < 120; ++round) {
    const size_t inputs = random.between(1, 40), outputs = random.between(1, 30), n = random.between(1, 19);
    const size_t count = random.between(1, round % 3 == 0 ? 2 * inputs * outputs : 1 + inputs * outputs / 4);
    const bool by_output = random.coin(), own_buffer = random.coin();
    const BNNSDataType type = random.coin() ? BNNSDataTypeFloat32 : BNNSDataTypeBFloat16;
    std::vector<uint16_t> pairs;
    std::vector<float> values;
    std::vector<double> dense(outputs * inputs);
    for (size_t k = 0; k < count; ++k) {  // any order, some places twice
      const size_t o = random.below(outputs), i = random.below(inputs);
      pairs.push_back(static_cast<uint16_t>(by_output ? i : o));
      pairs.push_back(static_cast<uint16_t>(by_output ? o : i));
      values.push_back(static_cast<float>(random.between(1, 8)) * 0.25f);  // sums are exact in every type
      dense[o * inputs + i] += values.back();
    }
    const BNNSNDArrayDescriptor
        shape = by_output ? describe(BNNSDataLayoutRowMajorMatrix, inputs, outputs, type, nullptr)
                          : describe(BNNSDataLayoutColumnMajorMatrix, outputs, inputs, type, nullptr),
        list = describe(BNNSDataLayout2DFirstMajor, count, 2, BNNSDataTypeUInt16, pairs.data()),
        numbers = describe(BNNSDataLayoutVector, count, 0, BNNSDataTypeFloat32, values.data());
    std::vector<uint64_t> buffer(inputs * outputs * bytes_of(type) / 8 + 1);
    BNNSNDArrayDescriptor out = describe(BNNSDataLayoutFullyConnectedSparse, inputs, outputs, type,
                                         own_buffer ? buffer.data() : nullptr);
    const auto coo = BNNSNDArrayFullyConnectedSparsifySparseCOO;
    CHECK(coo(&shape, &list, &numbers, &out, nullptr, n, nullptr, 0, nullptr) == 0, "%s", obn_last_error());
    CHECK(BNNSNDArrayGetDataSize(&out) <= inputs * outputs * bytes_of(type), "never more than dense");
    BNNSFilter filter = create_sparse(out, inputs, outputs, random.coin() ? BNNSFlagsUseClientPtr : 0u);
    CHECK(filter, "%s", obn_last_error());
    std::vector<float> x(n * inputs), y(n * outputs), dx(n * inputs, 1.0f), db(outputs);
    for (float& value : x) value = static_cast<float>(random.between(0, 16)) - 8.0f;
    CHECK(BNNSFilterApplyBatch(filter, n, x.data(), 0, y.data(), 0) == 0, "%s", obn_last_error());
    bool same = true;
    for (size_t s = 0; s < n; ++s) {
      for (size_t o = 0; o < outputs; ++o) {
        double sum = 0.0;
        for (size_t i = 0; i < inputs; ++i) sum += dense[o * inputs + i] * x[s * inputs + i];
        same = same && y[s * outputs + o] == static_cast<float>(sum);
      }
    }
    CHECK(same, "forward, round %d", round);
    BNNSNDArrayDescriptor dx_d = describe(BNNSDataLayoutVector, inputs, 0, BNNSDataTypeFloat32, dx.data()),
                          dy_d = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, y.data()),
                          db_d = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, db.data()),
                          dw_d = out;
    dx_d.flags = BNNSNDArrayFlagBackpropAccumulate;
    for (float& value : y) value = static_cast<float>(random.between(0, 16)) - 8.0f;  // now dy
    CHECK(BNNSFilterApplyBackwardBatch(filter, n, x.data(), 0, &dx_d, 0, nullptr, 0, &dy_d, 0, &dw_d, &db_d) == -1 &&
              dx[0] == 1.0f && std::strstr(obn_last_error(), "weights_gradient"),
          "sparse weights have no gradient");
    CHECK(BNNSFilterApplyBackwardBatch(filter, n, nullptr, 0, &dx_d, 0, nullptr, 0, &dy_d, 0, nullptr, &db_d) == 0,
          "%s", obn_last_error());
    same = true;
    for (size_t s = 0; s < n; ++s) {
      for (size_t i = 0; i < inputs; ++i) {
        double sum = 1.0;
        for (size_t o = 0; o < outputs; ++o) sum += dense[o * inputs + i] * y[s * outputs + o];
        same = same && dx[s * inputs + i] == static_cast<float>(sum);
      }
    }
    CHECK(same, "dx, round %d", round);
    BNNSFilterDestroy(filter);
    if (!own_buffer) std::free(out.data);
  }
}

TEST(fully_connected_sparse_refuses_what_cannot_be) {
  const uint32_t pairs[] = {0, 0, 5, 1};
  const float values[] = {1, 2};
  const int32_t columns[] = {0, 1}, starts[] = {0, 2, 1};
  BNNSNDArrayDescriptor shape = describe(BNNSDataLayoutRowMajorMatrix, 4, 2, BNNSDataTypeFloat32, nullptr),
                        list = describe(BNNSDataLayoutRowMajorMatrix, 2, 2, BNNSDataTypeUInt32, pairs),
                        numbers = describe(BNNSDataLayoutVector, 2, 0, BNNSDataTypeFloat32, values),
                        of_columns = describe(BNNSDataLayoutVector, 2, 0, BNNSDataTypeInt32, columns),
                        of_rows = describe(BNNSDataLayoutVector, 3, 0, BNNSDataTypeInt32, starts);
  uint64_t buffer[32];
  std::memset(buffer, 0x55, sizeof buffer);
  BNNSNDArrayDescriptor out = describe(BNNSDataLayoutFullyConnectedSparse, 4, 2, BNNSDataTypeFloat32, buffer);
  const auto coo = [&] {
    return BNNSNDArrayFullyConnectedSparsifySparseCOO(&shape, &list, &numbers, &out, nullptr, 1, nullptr, 0, nullptr);
  };
  CHECK(coo() == -1 && std::strstr(obn_last_error(), "indices"), "column 5 of 4");
  const auto csr = BNNSNDArrayFullyConnectedSparsifySparseCSR;
  CHECK(csr(&shape, &of_columns, &of_rows, &numbers, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            std::strstr(obn_last_error(), "row_starts"),
        "rows that step back");
  list.data_type = BNNSDataTypeFloat32;
  CHECK(coo() == -1, "indices that are no integers");
  list.data_type = BNNSDataTypeUInt32;
  out.size[0] = 3;
  CHECK(coo() == -1, "another shape");
  for (uint64_t word : buffer) CHECK(word == 0x5555555555555555u, "output was touched");
  const auto pack = BNNSNDArrayFullyConnectedSparsifySparseCOO;
  CHECK(pack(nullptr, &list, &numbers, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            pack(&shape, nullptr, &numbers, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            pack(&shape, &list, nullptr, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            pack(&shape, &list, &numbers, nullptr, nullptr, 1, nullptr, 0, nullptr) == -1,
        "NULL");
  // Damaged packing: no size, another size, a column outside, rows that step back.
  const uint32_t good[] = {0, 0, 3, 1};
  const size_t inputs = 64;
  list.data = const_cast<uint32_t*>(good);
  shape.size[0] = out.size[0] = inputs;
  CHECK(coo() == 0, "%s", obn_last_error());
  const size_t bytes = BNNSNDArrayGetDataSize(&out);
  BNNSFilter filter = create_sparse(out, inputs, 2);
  CHECK(filter, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  auto* words = reinterpret_cast<uint32_t*>(buffer);
  for (size_t k = 0; k < bytes / 4 - 2; ++k) {  // all but the two values
    const uint32_t old = words[k];
    words[k] = 0xfffffff0u;
    CHECK(!create_sparse(out, inputs, 2), "word %zu may not be anything", k);
    words[k] = old;
  }
  for (size_t wrong : {size_t{0}, bytes - 4, bytes + 4, SIZE_MAX}) {
    BNNSNDArrayDescriptor other = out;
    other.stride[kSparseBytesEntry] = wrong;
    CHECK(!create_sparse(other, inputs, 2), "%zu bytes", wrong);
  }
}

// ---- types ----

TEST(fully_connected_integers_agree_with_float64) {
  constexpr BNNSDataType kTypes[] = {BNNSDataTypeInt8, BNNSDataTypeUInt8, BNNSDataTypeInt16, BNNSDataTypeUInt16,
                                     BNNSDataTypeFloat32};
  Random random{11};
  for (BNNSDataType x_type : kTypes) {
    for (BNNSDataType w_type : kTypes) {
      Setup s;
      s.n = random.between(1, 9);
      s.i = random.between(1, 70);
      s.o = random.between(1, 30);
      s.x_type = x_type;
      s.w_type = w_type;
      s.y_type = random.coin() ? BNNSDataTypeFloat32 : BNNSDataTypeFloat16;
      s.layout = kLayouts[random.below(4)];
      s.w_step = random.between(1, 2);
      s.gap = random.below(3);
      s.client = random.coin();
      check_everywhere(s, 50 + random.below(1000));
      if (is_float(x_type) && is_float(w_type)) continue;
      Layer layer(s, random);
      const Grid before = layer.dx;
      CHECK(layer.apply_backward() == -1 && layer.dx.bytes == before.bytes, "integers have no gradient");
    }
  }
}

TEST(fully_connected_indexed_weights_are_looked_up) {
  const float table[16] = {-8, -4, -2, -1, -0.5f, -0.25f, 0, 0.25f, 0.5f, 1, 2, 3, 4, 5, 6, 8};
  const uint8_t packed[] = {0x21, 0x43, 0x65, 0x87};  // (2, 4): 1 2 3 4 / 5 6 7 8, the first in the low bits
  const float x[] = {1, 2, 3, 4};
  for (uint32_t flags : {0u, static_cast<uint32_t>(BNNSFlagsUseClientPtr)}) {
    BNNSLayerParametersFullyConnected p = {};
    p.i_desc = describe(BNNSDataLayoutVector, 4, 0, BNNSDataTypeFloat32, nullptr);
    p.o_desc = describe(BNNSDataLayoutVector, 2, 0, BNNSDataTypeFloat32, nullptr);
    p.w_desc = describe(BNNSDataLayoutRowMajorMatrix, 4, 2, BNNSDataTypeIndexed4, packed);
    p.w_desc.table_data = const_cast<float*>(table);
    p.w_desc.table_data_type = BNNSDataTypeFloat32;
    BNNSFilterParameters options = {};
    options.flags = flags;
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, &options);
    float y[2] = {};
    CHECK(filter && BNNSFilterApply(filter, x, y) == 0, "%s", obn_last_error());
    CHECK(y[0] == -4 - 4 - 3 - 2 && y[1] == -0.25f + 0.75f + 2.0f, "%g %g", y[0], y[1]);
    BNNSFilterDestroy(filter);
  }
}

TEST(fully_connected_legacy_creator) {
  const int8_t w[] = {1, 2, 3, 4, 5, 6};
  const float b[] = {0.5f, -1};
  const float x[] = {1, 1, 1};
  float y[2] = {};
  const BNNSVectorDescriptor in = {3, BNNSDataTypeFloat32, 0, 0}, out = {2, BNNSDataTypeFloat32, 0, 0};
  BNNSFullyConnectedLayerParameters p = {};
  p.in_size = 3;
  p.out_size = 2;
  p.weights = {w, BNNSDataTypeInt8, 1.0f, 0.0f, nullptr};
  BNNSFilter filter = BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x, y) == 0 && y[0] == 6 && y[1] == 15, "%g %g", y[0], y[1]);
  BNNSFilterDestroy(filter);

  float table[256] = {};
  for (size_t i = 0; i < 256; ++i) table[i] = static_cast<float>(i) * 10.0f;
  p.weights = {w, BNNSDataTypeIndexed8, 0.0f, 0.0f, table};
  p.bias = {b, BNNSDataTypeFloat32, 0.0f, 0.0f, nullptr};
  p.activation.function = BNNSActivationFunctionClamp;
  p.activation.alpha = 0;
  p.activation.beta = 100;
  filter = BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, nullptr);
  CHECK(filter && BNNSFilterApply(filter, x, y) == 0 && y[0] == 60.5f && y[1] == 100, "%g %g", y[0], y[1]);
  BNNSFilterDestroy(filter);

  p.in_size = 4;
  CHECK(!BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, nullptr), "sizes that disagree");
  p.in_size = 3;
  p.weights.data = nullptr;
  CHECK(!BNNSFilterCreateFullyConnectedLayer(&in, &out, &p, nullptr), "no weights");
  CHECK(!BNNSFilterCreateFullyConnectedLayer(nullptr, &out, &p, nullptr) &&
            !BNNSFilterCreateFullyConnectedLayer(&in, nullptr, &p, nullptr) &&
            !BNNSFilterCreateFullyConnectedLayer(&in, &out, nullptr, nullptr),
        "NULL");
}

// ---- activation ----

namespace {

bool is_softmax(BNNSActivationFunction function) {
  return function == BNNSActivationFunctionSoftmax || function == BNNSActivationFunctionLogSoftmax;
}

// z (one sample) becomes act(z).
void activate(const Setup& s, std::vector<double>* z) {
  if (!is_softmax(s.function)) {
    for (double& value : *z) value = activation::ref::forward(s.function, value, 0.25, 1.0);
    return;
  }
  const double most = *std::max_element(z->begin(), z->end());
  double sum = 0.0;
  for (double value : *z) sum += std::exp(value - most);
  for (double& value : *z)
    value = s.function == BNNSActivationFunctionSoftmax ? std::exp(value - most) / sum : value - most - std::log(sum);
}

// dz of one sample from y and dy.
std::vector<double> slope(const Setup& s, const Grid& y, const Grid& dy, size_t n) {
  std::vector<double> dz(s.o);
  double sum = 0.0;
  for (size_t o = 0; o < s.o; ++o)
    sum += dy.get(n, o) * (s.function == BNNSActivationFunctionSoftmax ? y.get(n, o) : 1.0);
  for (size_t o = 0; o < s.o; ++o) {
    const double d = dy.get(n, o), v = y.get(n, o);
    if (s.function == BNNSActivationFunctionSoftmax) {
      dz[o] = v * (d - sum);
    } else if (s.function == BNNSActivationFunctionLogSoftmax) {
      dz[o] = d - std::exp(v) * sum;
    } else {
      dz[o] = d * activation::ref::slope_from_y(s.function, v, 0.25, 1.0);
    }
  }
  return dz;
}

void check_activation(const Setup& s, const Kernels* kernels, size_t few_samples) {
  Random random{90 + static_cast<uint64_t>(s.function)};
  Layer layer(s, random);
  const char* name = activation::name_of(s.function);
  layer.use(kernels, few_samples);
  CHECK(layer.apply() == 0, "%s: %s", name, obn_last_error());
  const double tolerance = s.y_type == BNNSDataTypeFloat32 ? 2e-5 : 0.02;
  double worst = 0.0;
  for (size_t n = 0; n < s.n; ++n) {
    std::vector<double> z(s.o);
    for (size_t o = 0; o < s.o; ++o) {
      z[o] = s.has_bias ? layer.b.get(0, o) : 0.0;
      for (size_t i = 0; i < s.i; ++i) z[o] += layer.weight(o, i) * layer.x.get(n, i);
    }
    activate(s, &z);
    // A hard edge between z and its rounded self is no error: such steps are left to activation_test.cpp.
    if (s.function == BNNSActivationFunctionHardShrink || s.function == BNNSActivationFunctionThreshold) continue;
    for (size_t o = 0; o < s.o; ++o)
      worst = std::max(worst, std::fabs(layer.y.get(n, o) - z[o]) / (1.0 + std::fabs(z[o])));
  }
  CHECK(worst <= tolerance, "%s forward: %g", name, worst);

  const Grid dx = layer.dx, dw = layer.dw, db = layer.db;
  if (layer.apply_backward() != 0) {  // from the output alone there is no gradient, at least not of these
    CHECK(layer.dx.bytes == dx.bytes && layer.dw.bytes == dw.bytes && layer.db.bytes == db.bytes, "%s: touched", name);
    const BNNSActivationFunction trainable[] = {BNNSActivationFunctionRectifiedLinear, BNNSActivationFunctionSigmoid,
                                                BNNSActivationFunctionTanh, BNNSActivationFunctionSoftmax,
                                                BNNSActivationFunctionLogSoftmax, BNNSActivationFunctionELU,
                                                BNNSActivationFunctionLeakyRectifiedLinear};
    for (BNNSActivationFunction function : trainable) CHECK(s.function != function, "%s: %s", name, obn_last_error());
    return;
  }
  std::vector<double> x_sums(s.n * s.i), w_sums(s.o * s.i), b_sums(s.o);
  for (size_t n = 0; n < s.n; ++n) {
    const std::vector<double> dz = slope(s, layer.y, layer.dy, n);
    for (size_t o = 0; o < s.o; ++o) {
      b_sums[o] += dz[o];
      for (size_t i = 0; i < s.i; ++i) {
        x_sums[n * s.i + i] += dz[o] * layer.weight(o, i);
        w_sums[o * s.i + i] += dz[o] * layer.x.get(n, i);
      }
    }
  }
  worst = 0.0;
  const auto compare = [&](double got, double expected) {
    worst = std::max(worst, std::fabs(got - expected) / (1.0 + std::fabs(expected)));
  };
  for (size_t n = 0; n < s.n; ++n)
    for (size_t i = 0; i < s.i; ++i) compare(layer.dx.get(n, i), x_sums[n * s.i + i]);
  for (size_t o = 0; o < s.o; ++o) {
    compare(layer.db.get(0, o), b_sums[o]);
    for (size_t i = 0; i < s.i; ++i)
      compare(is_by_output(s.layout) ? layer.dw.get(o, i) : layer.dw.get(i, o), w_sums[o * s.i + i]);
  }
  CHECK(worst <= 10 * tolerance, "%s backward: %g", name, worst);
}

}  // namespace

TEST(fully_connected_activations_follow_and_are_differentiated) {
  for (uint32_t function = 0; function < activation::kFunctions; ++function) {
    activation::Fused unused;
    BNNSActivation activation = {};
    activation.function = static_cast<BNNSActivationFunction>(function);
    if (activation::Fused::read(activation, "activation", &unused) != 0) continue;
    Setup s;
    s.function = activation.function;
    s.n = 3;
    s.i = 7;
    s.o = 19;
    check_activation(s, &targets.best(), 8);
    check_activation(s, &targets.best(), 0);
    s.layout = BNNSDataLayoutColumnMajorMatrix;
    s.y_step = 2;
    check_activation(s, &targets.best(), 8);
    s.x_type = s.w_type = s.y_type = BNNSDataTypeBFloat16;
    if (s.function == BNNSActivationFunctionSoftmax || s.function == BNNSActivationFunctionTanh)
      check_activation(s, &targets.best(), 8);
  }
  Setup s;  // one row of outputs in several pieces
  s.function = BNNSActivationFunctionSoftmax;
  s.n = 2;
  s.i = 1000;
  s.o = 300;
  check_activation(s, &targets.best(), 8);
}

// ---- promises ----

TEST(fully_connected_any_number_of_threads_gives_the_same_bits) {
  struct {
    size_t n, i, o;
  } const shapes[] = {{1, 1030, 770}, {7, 600, 500}, {40, 300, 200}, {64, 900, 10}, {8, 2500, 30}};
  for (const auto& shape : shapes) {
    for (BNNSDataLayout layout : {BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix}) {
      std::vector<std::byte> first;
      for (size_t threads : {1, 2, 7}) {
        Setup s;
        s.n = shape.n;
        s.i = shape.i;
        s.o = shape.o;
        s.layout = layout;
        s.function = BNNSActivationFunctionTanh;
        s.threads = threads;
        obn_set_num_threads(threads);
        Random random{3};
        Layer layer(s, random);
        CHECK(layer.apply() == 0 && layer.apply_backward() == 0, "%s", obn_last_error());
        std::vector<std::byte> all;
        for (const Grid* grid : {&layer.y, &layer.dx, &layer.dw, &layer.db})
          all.insert(all.end(), grid->bytes.begin(), grid->bytes.end());
        if (threads == 1) first = all;
        CHECK(all == first, "%zu threads, (%zu, %zu, %zu)", threads, s.n, s.i, s.o);
      }
    }
  }
  obn_set_num_threads(0);
}

TEST(fully_connected_large_gradients_equal_small_ones) {
  // Beyond 16 MiB the gradient goes past the caches; rows that do not begin on a cache line too.
  Setup s;
  s.n = 2;
  s.i = 2303;
  s.o = 1900;
  s.shift = 3;
  Random random{4};
  Layer layer(s, random);
  CHECK(layer.apply_backward(false, true, false) == 0, "%s", obn_last_error());
  size_t wrong = 0;
  for (size_t o = 0; o < s.o; ++o) {
    for (size_t i = 0; i < s.i; ++i) {
      const double exact = layer.dy.get(0, o) * layer.x.get(0, i) + layer.dy.get(1, o) * layer.x.get(1, i);
      wrong += std::fabs(layer.dw.get(o, i) - exact) > 3e-7;
    }
  }
  CHECK(wrong == 0, "%zu values", wrong);
}

TEST(fully_connected_weights_are_copied_unless_the_client_keeps_them) {
  for (bool client : {false, true}) {
    Setup s;
    s.i = 3;
    s.o = 2;
    s.client = client;
    Random random{8};
    Layer layer(s, random);
    CHECK(layer.apply() == 0, "%s", obn_last_error());
    const double before = layer.y.get(0, 1);
    layer.w.set(1, 0, layer.w.get(1, 0) + 1.0);
    layer.b.set(0, 1, layer.b.get(0, 1) + 2.0);
    CHECK(layer.apply() == 0, "%s", obn_last_error());
    const double change = layer.y.get(0, 1) - before, expected = client ? layer.x.get(0, 0) + 2.0 : 0.0;
    CHECK(std::fabs(change - expected) < 1e-6, "client %d: %g, not %g", client, change, expected);
  }
}

TEST(fully_connected_memory_comes_from_the_caller_and_goes_back) {
  using ::obn::test::Memory;
  Setup s;
  s.n = 4;
  s.i = 30;
  s.o = 20;
  Random random{9};
  Layer layer(s, random);
  BNNSLayerParametersFullyConnected p = layer.parameters();
  const BNNSFilterParameters options = Memory::start();
  BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, &options);
  CHECK(filter && Memory::taken == 3 && Memory::returned == 0, "%zu blocks", Memory::taken);
  std::swap(filter, layer.filter);
  CHECK(layer.apply() == 0 && layer.apply_backward() == 0 && Memory::taken == 3, "a call took memory");
  std::swap(filter, layer.filter);
  BNNSFilterDestroy(filter);
  CHECK(Memory::returned == 3, "%zu released", Memory::returned);
  p.bias.size[0] = 19;
  CHECK(!BNNSFilterCreateLayerFullyConnected(&p, &options) && Memory::taken == Memory::returned,
        "failed creation keeps memory");
}

TEST(fully_connected_tells_its_memory) {
  Setup s;
  s.i = 100;
  s.o = 50;
  Random random{15};
  Layer plain(s, random);
  CHECK(obn_filter_work_bytes(plain.filter, 1) == 0, "float32 in, float32 out: nothing to keep");
  s.x_type = s.y_type = BNNSDataTypeFloat16;
  Layer halves(s, random);
  // Forward keeps x and y as float32; backward dy, x and dx.
  const size_t least = 3 * (2 * 100 + 50) * sizeof(float), got = obn_filter_work_bytes(halves.filter, 3);
  CHECK(got >= least && got <= least + 4 * kAlignment, "%zu bytes, not %zu", got, least);
  CHECK(obn_filter_work_bytes(halves.filter, SIZE_MAX / 64) == SIZE_MAX, "a batch that overflows");
}

TEST(fully_connected_refuses_what_cannot_be) {
  Setup s;
  s.n = 2;
  s.i = 6;
  s.o = 4;
  Random random{10};
  Layer layer(s, random);
  const auto refused = [&](auto change, const char* word) {
    BNNSLayerParametersFullyConnected p = layer.parameters();
    change(&p);
    obn_clear_error();
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, nullptr);
    CHECK(!filter && std::strstr(obn_last_error(), word), "%s: got %s", word, obn_last_error());
    BNNSFilterDestroy(filter);
  };
  using P = BNNSLayerParametersFullyConnected*;
  refused([](P p) { p->i_desc.size[0] = 5; }, "weights");
  refused([](P p) { p->o_desc.size[0] = 3; }, "weights");
  refused([](P p) { p->i_desc.size[0] = 0; }, "input");
  refused([](P p) { p->i_desc.layout = BNNSDataLayoutImageCHW; }, "input");
  refused([](P p) { p->o_desc.layout = BNNSDataLayoutRowMajorMatrix; }, "output");
  refused([](P p) { p->w_desc.layout = BNNSDataLayoutVector; }, "weights");
  refused([](P p) { p->w_desc.layout = BNNSDataLayoutFullyConnectedSparse; }, "weights");
  refused([](P p) { p->w_desc.data = nullptr; }, "weights");
  refused([](P p) { p->w_desc.data_type = BNNSDataTypeInt32; }, "weights");
  refused([](P p) { p->w_desc.data_type = BNNSDataTypeIndexed8; }, "weights");
  refused([](P p) { p->i_desc.data_type = BNNSDataTypeInt64; }, "input");
  refused([](P p) { p->o_desc.data_type = BNNSDataTypeInt8; }, "output");
  refused([](P p) { p->bias.size[0] = 5; }, "bias");
  refused([](P p) { p->activation.function = static_cast<BNNSActivationFunction>(99); }, "activation");
  refused([](P p) { p->activation.function = BNNSActivationFunctionGumbel; }, "activation");
  refused([](P p) { p->w_desc.size[0] = p->i_desc.size[0] = SIZE_MAX / 2; }, "input");
  CHECK(!BNNSFilterCreateLayerFullyConnected(nullptr, nullptr), "NULL");
}

TEST(fully_connected_failing_calls_leave_outputs_alone) {
  Setup s;
  s.n = 2;
  s.i = 6;
  s.o = 4;
  s.client = true;
  s.function = BNNSActivationFunctionSigmoid;
  Random random{12};
  Layer layer(s, random);
  BNNSNDArrayDescriptor dx = layer.dx.vector(), dy = layer.dy.vector(),
                        dw = layer.dw.matrix(s.layout), db = layer.db.vector();
  const std::vector<std::byte> y_was = layer.y.bytes, dx_was = layer.dx.bytes, dw_was = layer.dw.bytes,
                               db_was = layer.db.bytes, w_was = layer.w.bytes, x_was = layer.x.bytes;
  const auto untouched = [&](int status, const char* what) {
    CHECK(status == -1, "%s: succeeded", what);
    CHECK(layer.y.bytes == y_was && layer.dx.bytes == dx_was && layer.dw.bytes == dw_was && layer.db.bytes == db_was &&
              layer.w.bytes == w_was && layer.x.bytes == x_was,
          "%s: wrote", what);
  };
  void *x = layer.x.data(), *y = layer.y.data();
  const auto backward = [&](const void* in, const void* out) {
    return BNNSFilterApplyBackwardBatch(layer.filter, 2, in, 0, &dx, 0, out, 0, &dy, 0, &dw, &db);
  };
  untouched(BNNSFilterApplyBatch(layer.filter, 2, nullptr, 0, y, 0), "no input");
  untouched(BNNSFilterApplyBatch(layer.filter, 2, x, 0, nullptr, 0), "no output");
  untouched(BNNSFilterApplyBatch(layer.filter, 2, x, 0, x, 0), "output over input");
  untouched(BNNSFilterApplyBatch(layer.filter, 1, x, 0, layer.w.data(), 0), "output over weights");
  untouched(BNNSFilterApplyBatch(layer.filter, 2, x, 0, y, 3), "samples that overlap");
  untouched(BNNSFilterApplyBatch(layer.filter, SIZE_MAX / 2, x, 0, y, 0), "a batch that overflows");
  untouched(BNNSFilterApplyBatch(layer.filter, 2, static_cast<char*>(x) + 1, 0, y, 0), "unaligned input");
  untouched(backward(nullptr, y), "no input for the gradient of the weights");
  untouched(backward(x, nullptr), "no output for the activation");
  untouched(BNNSFilterApplyBackwardBatch(layer.filter, 2, x, 0, &dx, 0, y, 0, nullptr, 0, &dw, &db), "no grad_output");
  const auto broken = [&](BNNSNDArrayDescriptor* d, auto change, const char* what) {
    const BNNSNDArrayDescriptor good = *d;
    change();
    untouched(backward(x, y), what);
    *d = good;
  };
  broken(&dy, [&] { dy.size[0] = 3; }, "grad_output of another size");
  broken(&dx, [&] { dx.data = nullptr; }, "input_gradient without data");
  broken(&dx, [&] { dx.data = x; }, "input_gradient over input");
  broken(&dx, [&] { dx.data = layer.w.data(); }, "input_gradient over weights");
  broken(&dx, [&] { dx.data_type = BNNSDataTypeFloat16; }, "input_gradient of another type");
  broken(&dw, [&] { dw.layout = BNNSDataLayoutColumnMajorMatrix; }, "weights_gradient in another layout");
  broken(&dw, [&] { dw.data = layer.w.data(); }, "weights_gradient over weights");
  broken(&dw, [&] { dw.stride[1] = 3; }, "weights_gradient that overlaps itself");
  broken(&db, [&] { db.size[0] = 5; }, "bias_gradient of another size");
  broken(&db, [&] { db.data = layer.dw.data(); }, "bias_gradient over weights_gradient");
  broken(&db, [&] { db.data_type = BNNSDataTypeInt8; }, "bias_gradient of integers");
  CHECK(backward(x, y) == 0, "%s", obn_last_error());
  CHECK(BNNSFilterApplyBatch(layer.filter, 0, nullptr, 0, nullptr, 0) == 0, "an empty batch");

  // Of GELUApproximationSigmoid a negative output has two origins.
  s.function = BNNSActivationFunctionGELUApproximationSigmoid;
  Layer ambiguous(s, random);
  for (size_t o = 0; o < s.o; ++o)
    for (size_t n = 0; n < s.n; ++n) ambiguous.y.set(n, o, 0.5);
  CHECK(ambiguous.apply_backward() == 0, "%s", obn_last_error());
  ambiguous.y.set(1, 3, -0.1);
  const Grid before = ambiguous.dx;
  CHECK(ambiguous.apply_backward() == -1 && ambiguous.dx.bytes == before.bytes, "ambiguous output");
}

TEST(fully_connected_gradients_are_had_one_by_one) {
  for (size_t n : {2, 20}) {
    Setup s;
    s.n = n;
    s.i = 33;
    s.o = 21;
    Random first{13}, second{13};
    Layer all(s, first), parts(s, second);
    CHECK(all.apply_backward() == 0 && parts.apply_backward(true, false, false) == 0 &&
              parts.apply_backward(false, true, false) == 0 && parts.apply_backward(false, false, true) == 0 &&
              parts.apply_backward(false, false, false) == 0,
          "%s", obn_last_error());
    CHECK(all.dx.bytes == parts.dx.bytes && all.dw.bytes == parts.dw.bytes && all.db.bytes == parts.db.bytes, "N %zu",
          n);
  }
}

TEST(fully_connected_random_parameter_blocks_never_crash) {
  constexpr BNNSDataLayout kAll[] = {BNNSDataLayoutVector, BNNSDataLayout1DFirstMajor, BNNSDataLayoutRowMajorMatrix,
                                     BNNSDataLayoutColumnMajorMatrix, BNNSDataLayout2DFirstMajor,
                                     BNNSDataLayout2DLastMajor, BNNSDataLayoutFullyConnectedSparse,
                                     BNNSDataLayoutImageCHW, static_cast<BNNSDataLayout>(0x12345)};
  constexpr BNNSDataType kAllTypes[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16,
                                        BNNSDataTypeInt8, BNNSDataTypeUInt16, BNNSDataTypeInt64, BNNSDataTypeIndexed4,
                                        BNNSDataTypeUInt1, BNNSDataTypeBoolean, static_cast<BNNSDataType>(0x10000)};
  std::vector<float> memory(1 << 14, 0.5f), x(1 << 12, 0.25f), y(1 << 12), dx(1 << 12), dw(1 << 12), db(1 << 12);
  Random random{14};
  size_t made = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const size_t inputs = random.between(1, 4), outputs = random.between(1, 4);
    BNNSLayerParametersFullyConnected p = {};
    const BNNSDataLayout layout = kLayouts[random.below(4)];
    const bool slow_first = layout == BNNSDataLayoutColumnMajorMatrix || layout == BNNSDataLayout2DFirstMajor ||
                            layout == BNNSDataLayout2DLastMajor;
    p.i_desc = describe(BNNSDataLayoutVector, inputs, 0, BNNSDataTypeFloat32, nullptr);
    p.o_desc = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, nullptr);
    p.w_desc = describe(layout, slow_first ? outputs : inputs, slow_first ? inputs : outputs, BNNSDataTypeFloat32,
                        memory.data());
    p.bias = describe(BNNSDataLayoutVector, outputs, 0, BNNSDataTypeFloat32, memory.data());
    BNNSNDArrayDescriptor* descriptors[] = {&p.i_desc, &p.o_desc, &p.w_desc, &p.bias};
    const size_t changes = random.below(3);
    for (size_t k = 0; k < changes; ++k) {
      BNNSNDArrayDescriptor& d = *descriptors[random.below(4)];
      constexpr size_t kHuge[] = {0, SIZE_MAX, SIZE_MAX / 2 + 1, size_t{1} << 40};
      switch (random.below(6)) {
        case 0: d.layout = kAll[random.below(9)]; break;
        case 1: d.data_type = kAllTypes[random.below(10)]; break;
        case 2: d.size[random.below(2)] = random.below(6); break;
        case 3: d.stride[random.below(2)] = random.below(7); break;
        case 4: (&d == &p.w_desc ? d.stride[7] : d.size[0]) = kHuge[random.below(4)]; break;
        default: d.data = random.coin() ? nullptr : reinterpret_cast<char*>(memory.data()) + random.below(4);
      }
    }
    p.activation.function = static_cast<BNNSActivationFunction>(random.below(38));
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&p, nullptr);
    if (!filter) {
      ++refused;
      continue;
    }
    ++made;
    const size_t n = random.between(1, 3);
    BNNSFilterApplyBatch(filter, n, x.data(), random.below(30), y.data(), random.below(30));
    BNNSNDArrayDescriptor dx_d = p.i_desc, dy_d = p.o_desc, dw_d = p.w_desc, db_d = p.bias;
    dx_d.data = dx.data();
    dy_d.data = x.data();
    dw_d.data = dw.data();
    db_d.data = db.data();
    BNNSFilterApplyBackwardBatch(filter, n, x.data(), random.below(30), &dx_d, random.below(30), y.data(),
                                 random.below(30), &dy_d, random.below(30), &dw_d, &db_d);
    BNNSFilterDestroy(filter);
  }
  CHECK(made > 500 && refused > 1000, "%zu made, %zu refused", made, refused);
}

}  // namespace obn::fully_connected
