// Matrix products, tensor contractions, Gram matrices: what the desk (matmul.cpp), the expressions
// (matmul_expression.cpp), the products (matmul_products.cpp) and the reference loops share.
//
// All three layers are sums of products over indices,
//   c(z) = alpha · Σ a(x)·b(y)
// where x, y, z are the letters of an expression such as "a_*ik, b_*kj -> c_*ij". A tensor that does not move along an
// index, because it does not have it or has extent 1 there, has stride 0. The gradients are sums of the same kind with
// the tensors in other places:
//   da(x) = alpha · Σ dc(z)·b(y)     db(y) = alpha · Σ dc(z)·a(x)
// and the batch is one index more, which weights do not have: so their gradient is summed over it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation/activation.h"
#include "base/filter.h"
#include "base/view.h"
#include "base/workspace.h"
#include "gemm/gemm.h"
#include "openbnns/bnns/matmul.h"

namespace obn::matmul {

// ---- expressions ----

// The tensors of an expression.
enum : size_t { kA, kB, kC, kTensors };

inline constexpr size_t kMostIndices = kTensors * BNNS_MAX_TENSOR_DIMENSION;

// One operand of an expression: a name and the letters of its axes, with a star in front or behind for any others.
struct Word {
  static constexpr size_t kNameSize = 32;

  char name[kNameSize] = {};
  char letters[BNNS_MAX_TENSOR_DIMENSION] = {};
  size_t count = 0;  // of letters
  bool star_first = false;
  bool star_last = false;

  bool has_star() const { return star_first || star_last; }
  bool is_weights() const { return name[0] == 'w' && name[1] == '\0'; }
};

// "a_ij, b_jk -> c_ik". With one operand, word[kB] is not set.
struct Expression {
  size_t inputs = 0;
  Word word[kTensors];
  bool letters_spread = true;  // an extent of 1 goes with any other; a star's always does

  // Returns 0, or -1 with a sentence.
  static int read(const char* text, Expression* expression);
  bool is_square() const;  // the tensor times itself
};

// Which axes of the tensors' views move along which index.
struct Form {
  size_t count = 0;
  size_t extent[kMostIndices];
  uint8_t axes[kMostIndices][kTensors];  // bit k: axis k of the view
  bool repeats[kTensors] = {};           // a letter twice: only a diagonal of the tensor takes part

  // Views of one sample. `text` is quoted in sentences, `words` name the tensors.
  static int read(const Expression& expression, const char* text, const View* const* views, const char* const* words,
                  Form* form);
};

// ---- products ----

using Values = activation::ref::Values;

// The tensors of a product.
enum : size_t { kFirst, kSecond, kResult };

inline constexpr size_t kMostAxes = kMostIndices + 1;  // those of a form, and the batch

// An index and how far the tensors move along it, in values.
struct Axis {
  size_t extent;
  size_t stride[kTensors];
};

// result = alpha · Σ first · second; with one input, of first alone. Sums run over the axes along which the result does
// not move. The result must not overlap the inputs.
struct Problem {
  size_t inputs = 2;
  size_t count = 0;
  Axis axes[kMostAxes];
  Values tensor[kTensors];  // inputs: floats or short integers; result: floats
  float alpha = 1.0f;
  bool accumulate = false;
};

// A tensor and its packed float32 copy.
struct Move {
  struct Step {
    size_t extent;
    size_t from;  // stride in the tensor
    size_t to;    // stride in the copy
  };
  size_t count = 0;
  Step steps[kMostAxes];
  size_t values = 0;  // 0: there is no copy
  float* floats = nullptr;
};

// A problem mapped to the matrix engine: one axis each for rows, columns and sums, loops over all others.
class Product {
 public:
  Product(const Problem& problem, size_t threads);

  void place(Workspace* workspace);  // twice: counting, and in the workspace
  void run() const;

 private:
  static constexpr size_t kNone = SIZE_MAX;

  enum class Class { row, column, sum, batch };
  Class class_of(const Axis& axis) const;
  void merge_axes();
  bool is_row_wise() const;
  void choose_axes();
  size_t smallest_step(Class wanted) const;
  size_t longest(Class wanted) const;
  void copy_inputs();
  size_t uses_of(size_t tensor) const;
  void rearrange(size_t tensor, size_t fastest, size_t next, Move* move);
  gemm::Product engine_product() const;
  void run_products() const;
  void run_rows() const;
  void run_row(size_t piece, size_t row_axis, size_t blocks) const;

  Problem p_;
  size_t threads_;
  bool by_rows_ = false;
  size_t m_ = kNone, n_ = kNone, k_ = kNone;  // axes of the matrix product
  Move move_[kTensors];
  size_t ones_ = 0;  // length of a second operand of ones
  float* one_ = nullptr;
  std::byte* work_ = nullptr;
  size_t outer_[kMostAxes], outer_count_ = 0;  // axes of the result that are looped over
  size_t sums_[kMostAxes], sums_count_ = 0;    // the same for sums
};

// Every value becomes 0.
void clear(const View& view, void* data, size_t batch, size_t step, size_t threads);
// A packed copy of one sample, in the view's order of axes; from floats and short integers to floats.
void copy_packed(const View& view, const void* data, BNNSDataType type, void* to);
// The way back for a batch, set or added.
void copy_unpacked(const float* from, const View& view, void* data, size_t batch, size_t step, bool accumulate,
                   size_t threads);
// The same view without gaps.
void make_packed(View* view);

// matmul_ref.cpp: the formula, float64 sums.
void run_reference(const Problem& problem);

// ---- the layer ----

// A tensor of a call, checked.
struct Tensor {
  const View* view = nullptr;
  const void* data = nullptr;  // NULL: not there
  size_t step = 0;             // 0 for weights
};

struct Gradients;

// All three layers.
class Contraction final : public Filter {
 public:
  Contraction(const char* kind, const Options& options) : Filter(kind, options) {}
  ~Contraction() override;

  // a_desc and so on: those of the parameters; b is not read where the expression does not need it.
  int prepare(const char* expression, float alpha, float beta, const BNNSNDArrayDescriptor& a,
              const BNNSNDArrayDescriptor& b, const BNNSNDArrayDescriptor& c);

  int apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) override;
  int apply_two(size_t batch, const void* a, size_t a_stride, const void* b, size_t b_stride, void* y,
                size_t y_stride) override;
  int apply_backward(const Backward& arguments) override;
  int apply_two_backward(const BackwardTwo& arguments) override;
  size_t work_bytes(size_t batch) const override;
  void describe(Description* description) const override;

 private:
  bool takes_two() const { return inputs_ == 2 && !is_square_ && weights_ == kNone; }
  size_t data_operand() const { return weights_ == kA ? kB : kA; }
  const char* word_of(size_t operand) const;
  const char* gradient_word_of(size_t operand) const;
  int hold_weights();
  int check_input(size_t operand, size_t batch, const void* data, size_t requested, Tensor* tensor) const;
  int forward(size_t batch, Tensor* inputs, void* y, size_t y_stride) const;
  int check_gradient(size_t operand, BNNSNDArrayDescriptor* descriptor, size_t requested, Gradients* g) const;
  int backward(const BNNSNDArrayDescriptor* dy, size_t dy_stride, BNNSNDArrayDescriptor* const* descriptors,
               const size_t* strides, Gradients* g) const;
  size_t backward_bytes(const Gradients& g) const;
  // These take their parts of the workspace, and do the work where they are to.
  void make_gradients(const Gradients& g, Workspace* workspace, bool runs) const;
  void make_square_gradient(const Gradients& g, Workspace* workspace, bool runs) const;
  void add_gradient(const Gradients& g, size_t operand, const Tensor& result, bool accumulate, Workspace* workspace,
                    bool runs) const;
  void clear_gradient(const Gradients& g, size_t operand) const;
  Problem problem(size_t batch, const Tensor& first, size_t first_role, const Tensor& second, size_t second_role,
                  const Tensor& result, size_t result_role) const;

  static constexpr size_t kNone = SIZE_MAX;

  size_t inputs_ = 0;
  bool is_square_ = false;
  size_t weights_ = kNone;  // kA, kB or kNone
  View view_[kTensors];
  Form form_;
  float alpha_ = 1.0f;
  bool accumulate_ = false;
  bool has_integers_ = false;
  void* copied_weights_ = nullptr;
};

}  // namespace obn::matmul
