// What the tests of fully connected layers share: tables with gaps that nobody may touch, a layer with its arrays, and
// its sums in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "base/test.h"
#include "fully_connected/fully_connected.h"
#include "openbnns/openbnns.h"

namespace obn::fully_connected::layer_test {

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

inline BNNSNDArrayDescriptor describe(BNNSDataLayout layout, size_t a, size_t b, BNNSDataType type, const void* data) {
  BNNSNDArrayDescriptor d = {};
  d.layout = layout;
  d.size[0] = a;
  d.size[1] = b;
  d.data_type = type;
  d.data = const_cast<void*>(data);
  return d;
}

inline bool is_by_output(BNNSDataLayout layout) {
  return layout == BNNSDataLayoutRowMajorMatrix || layout == BNNSDataLayout2DFirstMajor;
}

inline double step_of(BNNSDataType type) {  // half the distance of neighbours at 1
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
inline void check_sums(const Grid& got, const Grid& before, const std::vector<Sum>& sums, const char* what,
                       const char* on) {
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
inline void check_everywhere(const Setup& setup, uint64_t seed) {
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

inline constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutRowMajorMatrix, BNNSDataLayoutColumnMajorMatrix,
                                              BNNSDataLayout2DFirstMajor, BNNSDataLayout2DLastMajor};

}  // namespace obn::fully_connected::layer_test
