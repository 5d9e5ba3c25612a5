// Arithmetic: the 41 element-wise functions of one to three inputs, with broadcasting, and their gradients.
//
//   a, b, c   the inputs of a function          y    its result (before the activation: z)
//   dz        gradient of z                     da, db, dc    gradients of the inputs
#pragma once

#include <cstddef>

#include "activation/activation.h"
#include "base/targets.h"
#include "base/view.h"
#include "openbnns/bnns/arithmetic.h"

namespace obn {
struct Description;
}

namespace obn::arithmetic {

using Function = BNNSArithmeticFunction;

inline constexpr size_t kFunctions = 41;
inline constexpr size_t kInputs = 3;  // at most

// "add", "multiply_no_nan", …; function must be below kFunctions.
const char* name_of(Function function);
size_t inputs_of(Function function);

// ---- rows of packed float32 ----

// What a row is computed from; a, b and c come first.
enum Source : size_t { kA, kB, kC, kY, kDz, kSources };

inline constexpr size_t kMaxLanes = 16;  // of the widest target

// p[s] points to the values of source s: (n) where moves[s], else one for the whole row.
struct Sources {
  const float* p[kSources];
  bool moves[kSources];
};

// out (n) is written; it may be one of the sources.
using Row = void (*)(const Sources& sources, float* out, size_t n);

// One target's loops.
struct Kernels {
  Row forward[kFunctions];
  Row gradient[kFunctions][kInputs];  // from a, b, c and dz; NULL where there is no such input
  Row gradient_from_y[kFunctions];    // of a, from y and dz alone; NULL where y does not determine it
  // The same past the caches, for cheap functions of two sources, else NULL; out is none of the sources.
  Row streamed[kFunctions];
  Row streamed_gradient[kFunctions][kInputs];

  // Each of `values` values, stride apart, `count` times in a row; writes up to kMaxLanes - 1 values too many.
  void (*repeat)(const float* p, size_t stride, size_t values, size_t count, float* row);
  void (*add)(const float* row, float* sum, size_t n);           // sum += row
  void (*add_to_doubles)(const float* row, double* sum, size_t n);
  float (*sum)(const float* row, size_t n);                      // in a fixed order
  void (*sum_rows)(const float* rows, size_t count, size_t n, double* sum);     // sum (count) += Σ of each row (n)
  void (*sum_columns)(const float* rows, size_t count, size_t n, double* sum);  // sum (n) += Σ of all rows, few
  void (*stream)(const float* row, float* y, size_t n);          // copies past the caches
  void (*end_streams)();                                         // after the last of them, on the same thread
  void (*load)(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);   // simd/convert.h
  void (*store)(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// ---- the obvious formulas (arithmetic_ref.cpp) ----

namespace ref {

double forward(Function function, double a, double b, double c);
// d forward / d input k, times dz.
double gradient(Function function, size_t k, double a, double b, double c, double dz);

}  // namespace ref

// ---- a layer, without its handle: what other layers are fused from ----

struct Blocks;  // arithmetic_blocks.h
class Walker;
struct Written;  // arithmetic_backward.cpp

// A tensor of a call: where, and how far from sample to sample (0 where all samples share it).
struct Operand {
  const View* view;
  std::byte* data;
  size_t step;
};

// The arguments of a call, as they come.
struct ForwardArguments {
  size_t batch, inputs;
  const void* const* x;
  const size_t* x_stride;  // NULL: packed
  void* y;
  size_t y_stride;
};
struct BackwardArguments {
  size_t batch, inputs;
  const void* const* x;  // NULL where the function needs no inputs
  const size_t* x_stride;
  BNNSNDArrayDescriptor* const* dx;
  const size_t* dx_stride;
  const void* y;
  size_t y_stride;
  const BNNSNDArrayDescriptor* dy;
  size_t dy_stride;
};

// The same, checked.
struct ForwardCall {
  size_t batch = 0;  // 0: nothing to do
  Operand x[kInputs] = {}, y = {};
};
struct BackwardCall {
  BackwardCall() = default;
  BackwardCall(const BackwardCall&) = delete;  // it points into itself

  size_t batch = 0;
  bool from_y = false;     // the gradient is made of y alone
  Operand x[kInputs] = {}; // data NULL where it is not read
  Operand y = {}, dy = {}; // y: data NULL where it is not read
  size_t targets = 0;      // distinct gradients
  Operand dx[kInputs] = {};        // of target t
  unsigned sources[kInputs] = {};  // inputs whose gradients target t receives: bit k
  View dy_view, dx_view[kInputs];

  // Where there are no samples; then all targets are sums.
  void clear_sums() const {
    for (size_t t = 0; t < targets; ++t) clear_sum(dx_view[t]);
  }
};

class Plan {
 public:
  // Returns 0, or -1 with a sentence.
  int read(const BNNSLayerParametersArithmetic& parameters, size_t threads);

  // check fills *call or fails; run cannot fail. scratch() must be there and is overwritten; work has work_bytes().
  int check(const ForwardArguments& arguments, ForwardCall* call) const;
  // The same for a layer that begins with this one and puts its own memory into call->y afterwards.
  int check_inputs(const ForwardArguments& arguments, ForwardCall* call) const;
  void run(const ForwardCall& call) const;
  int check(const BackwardArguments& arguments, BackwardCall* call) const;
  // Likewise, with call->dy.
  int check_gradients(const BackwardArguments& arguments, BackwardCall* call) const;
  void run(const BackwardCall& call, std::byte* work) const;
  size_t work_bytes() const;  // of the backward call; 0 where no gradient is a sum
  void describe(Description* description) const;

  const View& input(size_t k) const { return x_[k]; }
  const View& output() const { return y_; }
  size_t inputs() const { return inputs_; }
  bool has_activation() const { return !activation_.is_identity(); }
  BNNSDescriptorType output_role() const { return y_role_; }

 private:
  int read_operand(const BNNSNDArrayDescriptor& descriptor, BNNSDescriptorType role, Access access,
                   const char* argument, View* view) const;
  int check_shapes() const;
  size_t samples(size_t batch) const { return y_role_ == BNNSSample ? batch : (batch > 0); }
  unsigned needs(unsigned inputs) const;
  bool reduces(const Operand& dx, size_t batch) const;
  bool outputs_are_accepted(const BackwardCall& call) const;
  void run_direct(const Blocks& blocks, bool streams) const;
  void write_gradients(const BackwardCall& call) const;
  void write_block(const BackwardCall& call, const Written& written, const Sources& sources, Walker& walker, size_t b,
                   size_t n) const;
  Row streamed_gradient(const BackwardCall& call, const Written& written, size_t t) const;
  void sum_gradient(const BackwardCall& call, size_t target, bool writes_others, std::byte* work) const;
  const float* gradient_row(const BackwardCall& call, unsigned inputs, const Sources& sources, float* row,
                            float* other, size_t n) const;

  const Kernels* kernels_ = nullptr;
  Function function_ = BNNSArithmeticAdd;
  size_t inputs_ = 0;
  size_t threads_ = 0;
  View x_[kInputs], y_;
  BNNSDescriptorType x_role_[kInputs] = {}, y_role_ = BNNSSample;
  activation::Fused activation_;
};

}  // namespace obn::arithmetic
