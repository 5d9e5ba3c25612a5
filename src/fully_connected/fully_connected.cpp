// Fully connected, the desk: checks every argument, decides at creation how the weights are held, and hands out the
// products of a call. Letters as in fully_connected.h.
#include "fully_connected/fully_connected.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "activation/activation_walk.h"
#include "base/legacy.h"
#include "base/status.h"
#include "base/types.h"

namespace obn::fully_connected {
namespace {

constexpr char kKind[] = "fully connected";
constexpr size_t kFewSamples = 8;
constexpr size_t kSumColumns = 1024;  // most columns of db that are summed at a time
constexpr size_t kLeastColumns = 32;  // and fewest: two lines of memory
constexpr double kSumValue = 0.1;     // nanoseconds, about, to add a value

// What float32 holds exactly.
bool is_short_integer(BNNSDataType type) {
  return type == BNNSDataTypeInt8 || type == BNNSDataTypeUInt8 || type == BNNSDataTypeInt16 ||
         type == BNNSDataTypeUInt16;
}

int check_vector(const View& view, const char* argument) {
  if (view.rank == 1) return 0;
  return fail("%s: expected layout Vector; got %s", argument, name_of(view.layout));
}

// One row of values: any layout whose only extent above 1 is `count`.
int check_row(const View& view, size_t count, const char* argument, size_t* stride) {
  if (view.count == count) {
    for (size_t k = 0; k < view.rank; ++k) {
      if (view.extent[k] != count) continue;
      *stride = view.stride[k];
      return 0;
    }
  }
  ShapeText got;
  return fail("%s: expected %zu values, one per output; got %s", argument, count, shape_text(view, &got));
}

activation::ref::Values values_of(const View& view, const void* data, const void* table) {
  return {data, view.type, view.scale, view.bias, table, table ? BNNSDataTypeFloat32 : view.table_type};
}

// The table of an indexed type, as float32.
void read_table(const View& view, float* table) {
  const size_t entries = size_t{1} << bits_of(view.type);
  double reals[256];
  const activation::ref::Values stored = {view.table, view.table_type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
  activation::ref::get_reals(stored, 0, 1, entries, reals);
  for (size_t i = 0; i < entries; ++i) table[i] = static_cast<float>(reals[i]);
}

// Bytes from the first to behind the last.
struct Range {
  uintptr_t first;
  uintptr_t end;
};
Range range_of(const Array& array, size_t rows) {
  if (rows == 0) return {0, 0};
  const size_t values = (rows - 1) * array.row + (array.columns - 1) * array.column + 1;
  const auto first = reinterpret_cast<uintptr_t>(array.values.data);
  return {first, first + (values * bits_of(array.values.type) + 7) / 8};
}

Range range_of(const Place& place) {
  if (place.batch == 0) return {0, 0};
  const size_t values = (place.batch - 1) * place.step + place.view->span;
  const auto first = reinterpret_cast<uintptr_t>(place.data);
  return {first, first + (values * bits_of(place.view->type) + 7) / 8};
}

int check_ranges(const Range& a, const char* a_argument, const Range& b, const char* b_argument) {
  if (a.end <= b.first || b.end <= a.first) return 0;
  return fail("%s: expected memory apart from %s; the two overlap", a_argument, b_argument);
}

template <class Plan>
size_t bytes_of_plan(Plan plan) {
  Workspace counted;
  plan.place(&counted);
  return counted.used();
}

}  // namespace

Array array_of(const View& view, const void* data, size_t stride) {
  return {values_of(view, data, nullptr), stride, view.stride[0], view.extent[0]};
}

// ---- creation ----

FullyConnected::FullyConnected(const Options& options)
    : Filter(kKind, options), choice{&targets.best(), kFewSamples} {
  bias_.values.data = nullptr;
}

FullyConnected::~FullyConnected() {
  options().release(copied_weights_);
  options().release(copied_bias_);
  options().release(sparse_.block);
}

void FullyConnected::describe(Description* description) const {
  description->forward = description->input_gradient = is_compressed() ? "sparse" : "products";
  description->inputs[0] = &x_;
  description->output = &y_;
}

int FullyConnected::prepare(const BNNSLayerParametersFullyConnected& p) {
  if (read_view(p.i_desc, Access::read, "input", &x_) != 0 || check_vector(x_, "input") != 0 ||
      read_view(p.o_desc, Access::write, "output", &y_) != 0 || check_vector(y_, "output") != 0)
    return -1;
  if (!is_float_type(x_.type) && !is_short_integer(x_.type))
    return fail("input: expected float32, float16, bfloat16 or integers of 8 or 16 bits; got %s", name_of(x_.type));
  if (!is_float_type(y_.type))
    return fail("output: expected float32, float16 or bfloat16; got %s", name_of(y_.type));
  if (activation::Fused::read(p.activation, "activation", &activation_) != 0) return -1;
  has_activation_ = !activation_.is_identity();
  activation_needs_rows_ = p.activation.function == BNNSActivationFunctionSoftmax ||
                           p.activation.function == BNNSActivationFunctionLogSoftmax;
  if (prepare_weights(p.w_desc) != 0) return -1;
  return p.bias.data ? prepare_bias(p.bias) : 0;
}

int FullyConnected::prepare_weights(const BNNSNDArrayDescriptor& descriptor) {
  const char* name = "weights";
  if (descriptor.layout == BNNSDataLayoutFullyConnectedSparse) return prepare_sparse(descriptor);
  size_t unused;
  if (read_view(descriptor, Access::read, name, &w_) != 0) return -1;
  switch (w_.layout) {
    case BNNSDataLayoutRowMajorMatrix:
    case BNNSDataLayout2DFirstMajor: rows_are_outputs_ = true; break;
    case BNNSDataLayoutColumnMajorMatrix:
    case BNNSDataLayout2DLastMajor: rows_are_outputs_ = false; break;
    default:
      return fail("%s: expected layout RowMajorMatrix, ColumnMajorMatrix, 2DFirstMajor or 2DLastMajor; got %s", name,
                  name_of(w_.layout));
  }
  const size_t inputs = x_.extent[0], outputs = y_.extent[0];
  rows_ = rows_are_outputs_ ? outputs : inputs;
  const size_t columns = rows_are_outputs_ ? inputs : outputs;
  if (w_.extent[1] != rows_ || w_.extent[0] != columns) {
    ShapeText got;
    return fail("%s: expected (%zu, %zu) in memory order for %zu inputs and %zu outputs; got %s", name, rows_, columns,
                inputs, outputs, shape_text(w_, &got));
  }
  if (!is_float_type(w_.type) && !is_short_integer(w_.type) && !is_indexed(w_.type))
    return fail("%s: expected float32, float16, bfloat16, integers of 8 or 16 bits or an indexed type; got %s", name,
                name_of(w_.type));
  if (read_batch(w_, w_.data, 1, 0, Access::read, name, &unused) != 0) return -1;
  if (is_indexed(w_.type)) read_table(w_, weight_table_);
  m_ = {values_of(w_, w_.data, is_indexed(w_.type) ? weight_table_ : nullptr), w_.stride[1], w_.stride[0], columns};
  return options().use_client_ptr ? 0 : hold_weights();
}

int FullyConnected::prepare_sparse(const BNNSNDArrayDescriptor& descriptor) {
  const size_t inputs = x_.extent[0], outputs = y_.extent[0];
  if (descriptor.size[0] != inputs || descriptor.size[1] != outputs)
    return fail("weights: expected size {%zu, %zu}, columns and rows, for %zu inputs and %zu outputs; got {%zu, %zu}",
                inputs, outputs, inputs, outputs, descriptor.size[0], descriptor.size[1]);
  is_sparse_ = true;
  if (Sparse::read(descriptor, options(), &sparse_) != 0) return -1;
  w_.type = descriptor.data_type;
  w_.count = outputs * inputs;
  rows_ = outputs;
  rows_are_outputs_ = true;
  if (!sparse_.is_dense) {
    m_ = sparse_.values;  // what the caller may still change
    rows_ = 1;
    return 0;
  }
  m_ = {{descriptor.data, w_.type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32}, inputs, 1, inputs};
  return options().use_client_ptr ? 0 : hold_weights();
}

// Copies the weights without gaps. Integers and indices become float32 now, halves stay halves.
int FullyConnected::hold_weights() {
  const size_t columns = m_.columns;
  const BNNSDataType type = is_float_type(w_.type) ? w_.type : BNNSDataTypeFloat32;
  size_t bytes;
  if (__builtin_mul_overflow(w_.count, bytes_of(type), &bytes))
    return fail("weights: expected a size that can be addressed; %zu values overflow", w_.count);
  copied_weights_ = options().get(bytes);
  if (!copied_weights_) return -1;
  const Array copy = {{copied_weights_, type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32}, columns, 1, columns};
  constexpr size_t kBlock = 512;
  float block[kBlock];
  for (size_t r = 0; r < rows_; ++r) {
    for (size_t c = 0; c < columns; c += kBlock) {
      const size_t count = std::min(kBlock, columns - c);
      load_row(m_, r, c, count, block);  // a half through float32 and back is itself
      store_row(copy, r, c, count, block, false);
    }
  }
  m_ = copy;
  return 0;
}

int FullyConnected::prepare_bias(const BNNSNDArrayDescriptor& descriptor) {
  const char* name = "bias";
  View view;
  size_t stride = 0, unused;
  if (read_view(descriptor, Access::read, name, &view) != 0 || check_row(view, y_.extent[0], name, &stride) != 0 ||
      read_batch(view, view.data, 1, 0, Access::read, name, &unused) != 0)
    return -1;
  if (view.type == BNNSDataTypeBoolean) return fail("%s: expected numbers; got booleans", name);
  if (is_indexed(view.type)) read_table(view, bias_table_);
  const size_t outputs = y_.extent[0];
  const float* table = is_indexed(view.type) ? bias_table_ : nullptr;
  bias_ = {values_of(view, view.data, table), outputs * stride, stride, outputs};
  if (options().use_client_ptr) return 0;
  if (outputs > SIZE_MAX / sizeof(float))
    return fail("%s: expected a number of outputs that can be addressed; got %zu", name, outputs);
  float* copy = static_cast<float*>(options().get(outputs * sizeof(float)));
  if (!copy) return -1;
  copied_bias_ = copy;
  load_row(bias_, 0, 0, outputs, copy);
  bias_ = {{copy, BNNSDataTypeFloat32, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32}, outputs, 1, outputs};
  return 0;
}

// ---- forward ----

int FullyConnected::check_own_apart(const Place& written) const {
  if (!options().use_client_ptr || !written.data) return 0;
  const Range range = range_of(written);
  if (check_ranges(range, written.word, range_of(m_, rows_), "weights") != 0) return -1;
  return bias_.values.data ? check_ranges(range, written.word, range_of(bias_, 1), "bias") : 0;
}

// The product of a forward call and its workspace.
struct FullyConnected::ForwardPlan {
  const bool is_compressed;
  Multiply product;
  SparseMultiply sparse;

  ForwardPlan(const FullyConnected& layer, size_t n, const Array& x, const Array& y)
      : is_compressed(layer.is_compressed()) {
    product.choice = layer.choice;
    product.threads = sparse.threads = layer.options().threads;
    product.precision = precision_of(layer.precision_.load(std::memory_order_relaxed));
    product.n = sparse.n = n;
    product.rows = layer.rows_;
    product.m = layer.m_;
    product.sums_along_rows = layer.rows_are_outputs_;
    product.from = x;
    product.to = y;
    product.bias = layer.bias_.values.data ? &layer.bias_ : nullptr;
    product.activation = layer.has_activation_ ? &layer.activation_ : nullptr;
    product.activation_needs_rows = layer.activation_needs_rows_;
    if (!is_compressed) return;
    sparse.sparse = &layer.sparse_;
    sparse.is_forward = true;
    sparse.from = x;
    sparse.to = y;
    sparse.bias = product.bias;
    sparse.activation = product.activation;
  }
  void place(Workspace* workspace) {
    if (is_compressed) {
      sparse.place(workspace);
    } else {
      product.place(workspace);
    }
  }
};

int FullyConnected::check_input(size_t batch, const void* x, size_t requested, Array* array) const {
  size_t stride;
  if (read_batch(x_, x, batch, requested, Access::read, "input", &stride) != 0) return -1;
  *array = array_of(x_, x, stride);
  return 0;
}

size_t FullyConnected::forward_bytes(size_t n, const Array& x, const Array& y) const {
  return bytes_of_plan(ForwardPlan(*this, n, x, y));
}

void FullyConnected::run_forward(size_t n, const Array& x, const Array& y, std::byte* work) const {
  ForwardPlan plan(*this, n, x, y);
  Workspace workspace(work);
  plan.place(&workspace);
  if (is_compressed()) {
    plan.sparse.run();
  } else {
    plan.product.run();
  }
}

int FullyConnected::apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) {
  if (batch == 0) return 0;
  Array from;
  if (check_input(batch, x, x_stride, &from) != 0 ||
      read_batch(y_, y, batch, y_stride, Access::write, "output", &y_stride) != 0 ||
      check_disjoint(y_, y, y_stride, "output", x_, x, from.row, "input", batch) != 0 ||
      check_own_apart({"output", &y_, y, y_stride, batch}) != 0)
    return -1;
  const Array to = array_of(y_, y, y_stride);
  std::byte* work;
  if (find_workspace(forward_bytes(batch, from, to), &work) != 0) return -1;
  run_forward(batch, from, to, work);
  return 0;
}

// ---- backward ----

int FullyConnected::check_output_gradient(const Backward& a, Gradients* g) const {
  size_t stride;
  if (read_gradient(*a.dy, y_, Access::read, a.batch, a.dy_stride, "grad_output", &g->dy_view, &stride) != 0)
    return -1;
  g->dy = array_of(g->dy_view, g->dy_view.data, stride);
  if (!has_activation_) return 0;
  if (activation_.check_backward() != 0) return -1;
  if (!a.y && a.batch > 0)
    return fail("output: expected the result of apply, which the activation's gradient needs; got NULL");
  if (read_batch(y_, a.y, a.batch, a.y_stride, Access::read, "output", &stride) != 0) return -1;
  g->y = array_of(y_, a.y, stride);
  return 0;
}

// Fills *g, or says what is wrong. Nothing is written.
int FullyConnected::check_gradients(const Backward& a, Gradients* g) const {
  if (!is_float_type(x_.type) || !is_float_type(w_.type))
    return fail("%s: expected a floating-point type for gradients; got %s",
                is_float_type(x_.type) ? "weights" : "input",
                name_of(is_float_type(x_.type) ? w_.type : x_.type));
  if (is_sparse_ && a.dw) return fail("weights_gradient: expected NULL, sparse weights have none; got a descriptor");
  const size_t n = g->n = a.batch;
  size_t stride;
  View &dw = g->dw_view, &db = g->db_view;
  if (a.dw) {
    if (!a.x && a.batch > 0)
      return fail("input: expected the input of apply, which weights_gradient needs; got NULL");
    if (check_input(n, a.x, a.x_stride, &g->x) != 0 ||
        read_gradient(*a.dw, w_, Access::write, 1, 0, "weights_gradient", &dw, &stride) != 0)
      return -1;
    g->dw = {values_of(dw, dw.data, nullptr), dw.stride[1], dw.stride[0], dw.extent[0]};
    g->dw_accumulate = dw.accumulate;
  }
  if (a.db) {
    const char* name = "bias_gradient";
    size_t unused;
    if (read_view(*a.db, Access::write, name, &db) != 0 || check_row(db, y_.extent[0], name, &stride) != 0 ||
        read_batch(db, db.data, 1, 0, Access::write, name, &unused) != 0)
      return -1;
    if (!is_float_type(db.type))
      return fail("%s: expected float32, float16 or bfloat16; got %s", name, name_of(db.type));
    g->db = {values_of(db, db.data, nullptr), y_.extent[0] * stride, stride, y_.extent[0]};
    g->db_accumulate = db.accumulate;
  }
  if (a.dx) {
    const char* name = "input_gradient";
    const View& dx = g->dx_view;
    if (read_gradient(*a.dx, x_, Access::write, n, a.dx_stride, name, &g->dx_view, &stride) != 0) return -1;
    g->dx = array_of(dx, dx.data, stride);
    g->dx_accumulate = dx.accumulate;
    const Place place = {name, &dx, dx.data, stride, n};
    if (check_apart(place, {"grad_output", &g->dy_view, g->dy.values.data, g->dy.row, n}) != 0 ||
        check_apart(place, {"input", &x_, g->x.values.data, g->x.row, n}) != 0 ||
        check_apart(place, {"output", &y_, g->y.values.data, g->y.row, n}) != 0 || check_own_apart(place) != 0)
      return -1;
  }
  // What is summed over the batch lies apart from everything else.
  const struct {
    const Array& array;
    size_t rows;
    const char* name;
    const View& view;
  } sums[] = {{g->dw, rows_, "weights_gradient", dw}, {g->db, 1, "bias_gradient", db}};
  const struct {
    const Array& array;
    const char* name;
  } others[] = {{g->x, "input"}, {g->y, "output"}, {g->dy, "grad_output"}, {g->dx, "input_gradient"}};
  for (const auto& sum : sums) {
    if (!sum.array.values.data) continue;
    const Range range = range_of(sum.array, sum.rows);
    for (const auto& other : others) {
      if (other.array.values.data && check_ranges(range, sum.name, range_of(other.array, n), other.name) != 0)
        return -1;
    }
    if (check_own_apart({sum.name, &sum.view, sum.view.data, 0, 1}) != 0) return -1;
  }
  if (a.dw && a.db &&
      check_ranges(range_of(g->dw, rows_), "weights_gradient", range_of(g->db, 1), "bias_gradient") != 0)
    return -1;
  return 0;
}

// Some activations can be differentiated at some outputs only.
int FullyConnected::check_output_values(const Gradients& g) const {
  constexpr size_t kBlock = 512;
  float block[kBlock];
  for (size_t n = 0; n < g.n; ++n) {
    for (size_t o = 0; o < g.y.columns; o += kBlock) {
      const size_t count = std::min(kBlock, g.y.columns - o);
      load_row(g.y, n, o, count, block);
      if (!activation_.accepts(block, count))
        return fail("output: expected values from which the activation's gradient is known; got ambiguous ones");
    }
  }
  return 0;
}

// The products of a backward call and their workspace. Rows of dz = dy · act'(y) are made first, unless dy serves as it
// is.
struct FullyConnected::BackwardPlan {
  const FullyConnected& layer;
  const Gradients& g;
  const bool makes_dz;
  const bool copies_y;
  Array dz;
  float* dz_rows = nullptr;
  float* y_rows = nullptr;
  Multiply dx;
  SparseMultiply sparse_dx;
  Outer dw;

  BackwardPlan(const FullyConnected& layer, const Gradients& g)
      : layer(layer),
        g(g),
        makes_dz(layer.has_activation_ || !g.dy.is_ready(g.n)),
        copies_y(layer.has_activation_ && !g.y.is_ready(g.n)),
        dz(g.dy) {
    dx.choice = dw.choice = layer.choice;
    dx.threads = sparse_dx.threads = dw.threads = layer.options().threads;
    dx.precision = dw.precision = precision_of(layer.precision_.load(std::memory_order_relaxed));
    dx.n = sparse_dx.n = dw.n = g.n;
    dx.rows = dw.rows = layer.rows_;
    if (g.dx.values.data) {
      dx.m = layer.m_;
      dx.sums_along_rows = !layer.rows_are_outputs_;
      dx.to = sparse_dx.to = g.dx;
      dx.accumulate = sparse_dx.accumulate = g.dx_accumulate;
      sparse_dx.sparse = &layer.sparse_;
      sparse_dx.is_forward = false;
    }
    if (g.dw.values.data) {
      (layer.rows_are_outputs_ ? dw.v : dw.u) = g.x;
      dw.to = g.dw;
      dw.accumulate = g.dw_accumulate;
    }
  }
  void place(Workspace* workspace) {
    const size_t outputs = g.dy.columns;
    if (makes_dz) {
      dz_rows = workspace->take<float>(g.n, outputs);
      dz = {{dz_rows, BNNSDataTypeFloat32, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32}, outputs, 1, outputs};
    }
    if (copies_y) y_rows = workspace->take<float>(g.n, outputs);
    if (g.dx.values.data && layer.is_compressed()) {
      sparse_dx.from = dz;
      sparse_dx.place(workspace);
    } else if (g.dx.values.data) {
      dx.from = dz;
      dx.place(workspace);
    }
    if (g.dw.values.data) {
      (layer.rows_are_outputs_ ? dw.u : dw.v) = dz;
      dw.place(workspace);
    }
  }
};

// dz = dy · act'(y)
void FullyConnected::make_dz(const BackwardPlan& plan) const {
  const Gradients& g = plan.g;
  const size_t outputs = g.dy.columns;
  by_pieces(g.n, std::max<size_t>(1, activation::kPiece / outputs), options().threads, [&](size_t first, size_t count) {
    for (size_t n = first; n < first + count; ++n) {
      float* row = plan.dz_rows + n * outputs;
      load_row(g.dy, n, 0, outputs, row);
      if (!has_activation_) continue;
      if (plan.copies_y) load_row(g.y, n, 0, outputs, plan.y_rows + n * outputs);
      activation_.backward(plan.copies_y ? plan.y_rows + n * outputs : static_cast<const float*>(g.y.at(n, 0)), row,
                           outputs);
    }
  });
}

// db(o) = Σ_n dz(n, o), in the order of n.
void FullyConnected::sum_bias(const Gradients& g, const Array& dz) const {
  const activation::Kernels& kernels = activation::targets.best();
  const size_t threads = threads_for(options().threads);
  const size_t piece = std::clamp(dz.columns / threads / kLeastColumns * kLeastColumns, kLeastColumns, kSumColumns);
  by_pieces(
      dz.columns, piece, threads,
      [&](size_t o, size_t count) {
        float sum[kSumColumns];
        load_row(dz, 0, o, count, sum);
        for (size_t n = 1; n < g.n; ++n) kernels.add(static_cast<const float*>(dz.at(n, o)), sum, count);
        store_row(g.db, 0, o, count, sum, g.db_accumulate);
      },
      kSumValue * g.n * piece);
}

size_t FullyConnected::backward_bytes(const Gradients& g) const { return bytes_of_plan(BackwardPlan(*this, g)); }

int FullyConnected::apply_backward(const Backward& a) {
  if (!a.dy) return fail("grad_output: expected a descriptor; got NULL");
  if (!a.dx && !a.dw && !a.db) return 0;
  Gradients g;
  if (check_output_gradient(a, &g) != 0 || check_gradients(a, &g) != 0) return -1;
  if (a.batch == 0) {
    g.clear_sums();
    return 0;
  }
  if (has_activation_ && activation_.depends_on_values() && check_output_values(g) != 0) return -1;
  std::byte* work;
  if (find_workspace(backward_bytes(g), &work) != 0) return -1;
  run_backward(g, work);
  return 0;
}

void FullyConnected::run_backward(const Gradients& g, std::byte* work) const {
  BackwardPlan plan(*this, g);
  Workspace workspace(work);
  plan.place(&workspace);
  if (plan.makes_dz) make_dz(plan);
  if (g.db.values.data) sum_bias(g, plan.dz);
  if (g.dx.values.data && is_compressed()) {
    plan.sparse_dx.run();
  } else if (g.dx.values.data) {
    plan.dx.run();
  }
  if (g.dw.values.data) plan.dw.run();
}

int FullyConnected::set_precision(int precision) {
  if (check_precision(precision) != 0) return -1;
  precision_.store(precision, std::memory_order_relaxed);
  return 0;
}

size_t FullyConnected::work_bytes(size_t batch) const {
  if (batch == 0) return 0;
  if (check_batch_size(x_, batch) != 0 || check_batch_size(y_, batch) != 0) return SIZE_MAX;
  // Arrays somewhere, lying as they were described.
  const Array x = array_of(x_, kKind, x_.packed_batch), y = array_of(y_, kKind, y_.packed_batch);
  const size_t forward = forward_bytes(batch, x, y);
  if (!is_float_type(x_.type) || !is_float_type(w_.type)) return forward;
  Gradients g;
  g.n = batch;
  g.x = g.dx = x;
  g.y = g.dy = y;
  if (!is_sparse_) g.dw = {values_of(w_, kKind, nullptr), w_.stride[1], w_.stride[0], w_.extent[0]};
  return std::max(forward, backward_bytes(g));
}

namespace {

BNNSFilter create(const BNNSLayerParametersFullyConnected& parameters, const BNNSFilterParameters* filter_params) {
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  FullyConnected* filter = options.make<FullyConnected>(options);
  if (!filter) return nullptr;
  return publish(filter, filter->prepare(parameters));
}

}  // namespace
}  // namespace obn::fully_connected

// ---- the C interface ----

extern "C" {

BNNSFilter BNNSFilterCreateLayerFullyConnected(const BNNSLayerParametersFullyConnected* layer_params,
                                               const BNNSFilterParameters* filter_params) {
  if (!layer_params) {
    obn::fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  return obn::fully_connected::create(*layer_params, filter_params);
}

// The first form of the interface: vectors and weights without shape.
BNNSFilter BNNSFilterCreateFullyConnectedLayer(const BNNSVectorDescriptor* in_desc,
                                               const BNNSVectorDescriptor* out_desc,
                                               const BNNSFullyConnectedLayerParameters* layer_params,
                                               const BNNSFilterParameters* filter_params) {
  if (!in_desc || !out_desc || !layer_params) {
    obn::fail("layer_params: expected input, output and parameters; got NULL");
    return nullptr;
  }
  const BNNSFullyConnectedLayerParameters& p = *layer_params;
  if (in_desc->size != p.in_size || out_desc->size != p.out_size) {
    obn::fail("layer_params: expected %zu inputs and %zu outputs, as the descriptors say; got %zu and %zu",
              in_desc->size, out_desc->size, p.in_size, p.out_size);
    return nullptr;
  }
  BNNSLayerParametersFullyConnected parameters = {};
  parameters.i_desc = obn::describe(*in_desc);
  parameters.o_desc = obn::describe(*out_desc);
  parameters.w_desc = obn::describe(p.weights, BNNSDataLayoutRowMajorMatrix);
  parameters.w_desc.size[0] = p.in_size;
  parameters.w_desc.size[1] = p.out_size;
  parameters.bias = obn::describe(p.bias, BNNSDataLayoutVector);
  parameters.bias.size[0] = p.out_size;
  parameters.activation = p.activation;
  return obn::fully_connected::create(parameters, filter_params);
}
}
