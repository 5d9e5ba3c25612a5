// Fully connected layers: what the desk (fully_connected.cpp), the products (fully_connected_products.cpp), sparse
// weights (fully_connected_sparse.cpp), the kernels and the reference loops share.
//
// Letters: N samples, I inputs, O outputs.
//   y(n, o) = act(b(o) + Σ_i w(o, i)·x(n, i))
//   dx(n, i) = Σ_o dz(n, o)·w(o, i)     dw(o, i) = Σ_n dz(n, o)·x(n, i)     db(o) = Σ_n dz(n, o)
//
// Kernels see the weights as a matrix m (R, C) whose rows are runs. When the weights of one output lie side by side,
// R = O and C = I; in the column-major layouts R = I and C = O. Forward and dx change places with that, and nothing
// is ever transposed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "activation/activation.h"
#include "base/targets.h"
#include "base/filter.h"
#include "base/memory.h"
#include "base/precision.h"
#include "base/types.h"
#include "base/view.h"
#include "base/workspace.h"
#include "openbnns/bnns/fully_connected.h"

namespace obn::gemm {
struct Product;
}

namespace obn::fully_connected {

// ---- kernels ----

// Value (r, c) lies at data[r·row + c]; float32, float16 or bfloat16.
struct Matrix {
  const void* data;
  size_t row;
  size_t columns;
  BNNSDataType type;
  bool is_far;  // so large that it comes from memory, and is fetched ahead
};

// Rows of float32: value (n, k) lies at data[n·row + k].
struct Floats {
  const float* data;
  size_t row;
};

// A gradient of the matrix. Value (r, c) lies at data[r·row + c·column].
struct Gradient {
  std::byte* data;
  size_t row;
  size_t column;
  BNNSDataType type;
  bool accumulate;
  bool stream;  // so large that it should go past the caches
};

// A part of the rows of a matrix.
struct Part {
  size_t first;
  size_t rows;
};

// One target's loops, made for few samples: every value of the matrix is read (or written) once for up to four of them.
struct Kernels {
  // out(s, r) = Σ_c m(r, c)·v(s, c) for the rows of the part and s < n; with `accumulate`, added.
  void (*dot)(const Matrix& m, const Part& part, const Floats& v, size_t n, float* out, size_t out_row,
              bool accumulate);
  // out(s, c) = Σ_r u(s, r)·m(r, c) over the rows of the part, in their order; all columns.
  void (*combine)(const Matrix& m, const Part& part, const Floats& u, size_t n, float* out, size_t out_row,
                  bool accumulate);
  // g(r, c) = Σ_s u(s, r)·v(s, c) for the rows of the part.
  void (*outer)(const Floats& u, const Floats& v, size_t n, size_t columns, const Part& part, const Gradient& g);
  size_t short_sum;  // up to this many rows, combine and outer suit any number of samples
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();
extern const Kernels reference;  // the formulas, float64 sums

// ---- arrays of a call ----

// Value (n, k) lies at data[n·row + k·column] and means what Values says. Weights are arrays too, with R rows.
struct Array {
  activation::ref::Values values;
  size_t row;
  size_t column;
  size_t columns;

  bool is_ready(size_t rows) const {  // rows of float32 without gaps, which kernels can read and write in place
    return values.type == BNNSDataTypeFloat32 && (column == 1 || columns == 1) && (row >= columns || rows == 1);
  }
  void* at(size_t n, size_t k) const {  // whole-byte types only
    return static_cast<std::byte*>(const_cast<void*>(values.data)) + (n * row + k * column) * bits_of(values.type) / 8;
  }
};

// Values (n, first …) as float32, and back (float types; rounded once). Adding: to(n, k) += row[k].
void load_row(const Array& from, size_t n, size_t first, size_t count, float* row);
void store_row(const Array& to, size_t n, size_t first, size_t count, const float* row, bool accumulate);

// A vector of every sample.
Array array_of(const View& view, const void* data, size_t stride);

// ---- products ----

// The ways to compute, best for the shapes; tests set them.
struct Choice {
  const Kernels* kernels;
  size_t few_samples;  // up to this many the kernels above are used, beyond it the matrix engine
  size_t near_bytes = kStreamBytes;  // of weights that the caches may hold between two calls
};

// y = x·Wᵀ or dx = dz·W: to (N, R or C) = from (N, C or R) times the matrix.
struct Multiply {
  Choice choice;
  size_t threads;          // limit of the filter
  size_t n;
  size_t rows;             // R
  Array m;                 // (R, C)
  bool sums_along_rows;    // from (N, C) to (N, R), else from (N, R) to (N, C)
  Array from;
  Array to;
  bool accumulate = false;
  const Array* bias = nullptr;                    // one row
  const activation::Fused* activation = nullptr;  // NULL: none
  bool activation_needs_rows = false;
  Precision precision = Precision::highest;

  void place(Workspace* workspace);  // twice: counting, and in the workspace
  void run() const;

 private:
  bool uses_kernels() const;
  gemm::Product engine_product() const;
  size_t parts() const;
  void run_dot(const Matrix& matrix, const Floats& v, float* out, size_t out_row) const;
  void run_combine(const Matrix& matrix, const Floats& u, float* out, size_t out_row) const;
  void finish(float* out, size_t first, size_t count) const;

  float* from_ = nullptr;   // from, where it is not ready
  float* m_ = nullptr;      // the matrix, where it is not
  float* to_ = nullptr;     // to, where it is not
  float* bias_ = nullptr;
  float* partial_ = nullptr;
  std::byte* work_ = nullptr;
};

// dw (R, C) = Σ_n u(n, r)·v(n, c)
struct Outer {
  Choice choice;
  size_t threads;
  size_t n;
  size_t rows;
  Array u;
  Array v;
  Array to;  // (R, C)
  bool accumulate;
  Precision precision = Precision::highest;

  void place(Workspace* workspace);
  void run() const;

 private:
  bool is_streamed() const;    // past the caches, row by row
  bool has_few_rows() const;
  bool uses_kernels() const;
  gemm::Product engine_product() const;

  float* u_ = nullptr;
  float* v_ = nullptr;
  float* to_ = nullptr;
  std::byte* work_ = nullptr;
};

// ---- sparse weights ----

// Packed weights, checked.
struct Sparse {
  size_t outputs;
  size_t inputs;
  bool is_dense;                     // packed as the plain matrix; the rest is not set
  void* block = nullptr;             // what was copied
  const uint32_t* starts = nullptr;  // (O + 1) where rows start
  const uint32_t* columns = nullptr;
  Array values;                      // one row; the caller's with BNNSFlagsUseClientPtr

  static int read(const BNNSNDArrayDescriptor& descriptor, const Options& options, Sparse* sparse);
};

// y = x·Wᵀ or dx = dz·W with sparse W.
struct SparseMultiply {
  const Sparse* sparse;
  size_t threads;
  size_t n;
  bool is_forward;
  Array from;
  Array to;
  bool accumulate = false;
  const Array* bias = nullptr;
  const activation::Fused* activation = nullptr;

  void place(Workspace* workspace);
  void run() const;

 private:
  void run_group(size_t group) const;

  float* values_ = nullptr;  // where they are halves
  float* bias_ = nullptr;
  float* groups_ = nullptr;
  size_t group_floats_ = 0;
};

// ---- the layer ----

// The arrays of a backward call, checked. Those that are not asked for or not needed have no data.
struct Gradients {
  size_t n = 0;
  Array x = {}, y = {}, dy = {}, dx = {}, dw = {}, db = {};
  View dy_view, dx_view, dw_view, db_view;
  bool dx_accumulate = false, dw_accumulate = false, db_accumulate = false;

  void clear_sums() const {  // those over no samples
    clear_sum(dw_view);
    clear_sum(db_view);
  }
};

class FullyConnected final : public Filter {
 public:
  explicit FullyConnected(const Options& options);
  ~FullyConnected() override;

  int prepare(const BNNSLayerParametersFullyConnected& parameters);
  int apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) override;
  int apply_backward(const Backward& arguments) override;
  int set_precision(int precision) override;
  size_t work_bytes(size_t batch) const override;
  void describe(Description* description) const override;

  Choice choice;  // tests put others here

  // The same calls in steps, for layers that begin with this one: output and output gradient are theirs. Checks come
  // first and fail with a sentence; scratch() must be there; work has as many bytes as the step before it said, which
  // is SIZE_MAX where they cannot be addressed.
  const View& input() const { return x_; }
  const View& output() const { return y_; }
  bool has_activation() const { return has_activation_; }
  int check_input(size_t batch, const void* x, size_t requested, Array* array) const;
  int check_own_apart(const Place& written) const;  // from weights and bias that stay the caller's
  size_t forward_bytes(size_t n, const Array& x, const Array& y) const;
  void run_forward(size_t n, const Array& x, const Array& y, std::byte* work) const;
  int check_gradients(const Backward& arguments, Gradients* g) const;  // all but dy and y
  size_t backward_bytes(const Gradients& g) const;
  void run_backward(const Gradients& g, std::byte* work) const;

 private:
  struct ForwardPlan;
  struct BackwardPlan;

  bool is_compressed() const { return is_sparse_ && !sparse_.is_dense; }
  int prepare_weights(const BNNSNDArrayDescriptor& descriptor);
  int prepare_sparse(const BNNSNDArrayDescriptor& descriptor);
  int hold_weights();
  int prepare_bias(const BNNSNDArrayDescriptor& descriptor);
  int check_output_gradient(const Backward& arguments, Gradients* g) const;
  int check_output_values(const Gradients& g) const;
  void make_dz(const BackwardPlan& plan) const;
  void sum_bias(const Gradients& g, const Array& dz) const;

  View x_, y_, w_;
  bool is_sparse_ = false;         // packed weights, in either form
  Sparse sparse_;
  Array m_;                        // the weights, copied or the caller's
  size_t rows_ = 0;                // R
  bool rows_are_outputs_ = true;
  Array bias_;                     // one row; data NULL: none
  activation::Fused activation_;
  bool has_activation_ = false;
  bool activation_needs_rows_ = false;
  void* copied_weights_ = nullptr;
  void* copied_bias_ = nullptr;
  std::atomic<int> precision_{-1};
  float weight_table_[256];        // of indexed types
  float bias_table_[256];
};

}  // namespace obn::fully_connected
