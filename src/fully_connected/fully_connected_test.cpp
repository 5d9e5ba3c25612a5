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

struct Random {
  uint64_t state;

  uint64_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  }
  size_t below(size_t n) { return next() % n; }
  size_t between(size_t low, size_t high) { return low + below(high - low + 1); }
  bool coin() { return next() & 1; }
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
  void set(size_t r, size_t c, double value) { activation::ref::put_reals(values(), r * row + c * column, 1, 1, &value); }
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
  void use(const Kernels* kernels, size_t few_samples = SIZE_MAX) {
    static_cast<FullyConnected*>(find_filter(filter))->choice = {kernels, few_samples};
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
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
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
    const int status =
        form == 0 ? BNNSNDArrayFullyConnectedSparsifySparseCOO(&shape, &list, &numbers, &out, nullptr, 1, nullptr, 0,
                                                               nullptr)
                  : BNNSNDArrayFullyConnectedSparsifySparseCSR(&shape, &of_columns, &of_rows, &numbers, &out, nullptr, 1,
                                                               nullptr, 0, nullptr);
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
    CHECK(BNNSNDArrayFullyConnectedSparsifySparseCOO(&shape, &list, &numbers, &out, nullptr, n, nullptr, 0, nullptr) == 0,
          "%s", obn_last_error());
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
    CHECK(BNNSFilterApplyBackwardBatch(filter, n, nullptr, 0, &dx_d, 0, nullptr, 0, &dy_d, 0, nullptr, &db_d) == 0, "%s",
          obn_last_error());
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
  CHECK(BNNSNDArrayFullyConnectedSparsifySparseCSR(&shape, &of_columns, &of_rows, &numbers, &out, nullptr, 1, nullptr, 0,
                                                   nullptr) == -1 &&
            std::strstr(obn_last_error(), "row_starts"),
        "rows that step back");
  list.data_type = BNNSDataTypeFloat32;
  CHECK(coo() == -1, "indices that are no integers");
  list.data_type = BNNSDataTypeUInt32;
  out.size[0] = 3;
  CHECK(coo() == -1, "another shape");
  for (uint64_t word : buffer) CHECK(word == 0x5555555555555555u, "output was touched");
  CHECK(BNNSNDArrayFullyConnectedSparsifySparseCOO(nullptr, &list, &numbers, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            BNNSNDArrayFullyConnectedSparsifySparseCOO(&shape, nullptr, &numbers, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            BNNSNDArrayFullyConnectedSparsifySparseCOO(&shape, &list, nullptr, &out, nullptr, 1, nullptr, 0, nullptr) == -1 &&
            BNNSNDArrayFullyConnectedSparsifySparseCOO(&shape, &list, &numbers, nullptr, nullptr, 1, nullptr, 0, nullptr) == -1,
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

}  // namespace obn::fully_connected
