// Activations: the 36 functions, their derivatives, softmax, and conversion between data types.
//
//   x, y    input and output of the forward call       dx, dy    their gradients
//   n       values in a row                            a         alpha, one per value
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/targets.h"
#include "openbnns/bnns/activation.h"

namespace obn::activation {

using Function = BNNSActivationFunction;

inline constexpr size_t kFunctions = 36;

// "tanh", "gelu_approximation", …; function must be below kFunctions.
const char* name_of(Function function);

// ---- rows of packed float32 ----
// x, dy (n) are read, y, dx (n) are written; in place (y == x, dx == dy, dx == s) is fine.

using ForwardRow = void (*)(const float* x, float* y, size_t n, float alpha, float beta);
// s is x or y, as the table says: dx = dy · f'(s). For the softmax pair s = y and the row is one group.
using BackwardRow = void (*)(const float* s, const float* dy, float* dx, size_t n, float alpha, float beta);

// One target's loops. An entry is NULL where the function has no such row.
struct Kernels {
  ForwardRow forward[kFunctions];
  BackwardRow from_x[kFunctions];
  BackwardRow from_y[kFunctions];

  // y[i] = x[i] < 0 ? a[i]·x[i] : x[i] and its gradient; s is x, or y where a >= 0.
  void (*prelu)(const float* x, const float* a, float* y, size_t n);
  void (*prelu_backward)(const float* s, const float* a, const float* dy, float* dx, size_t n);
  // Σ dy·x over x < 0, in a fixed order.
  float (*alpha_gradient)(const float* x, const float* dy, size_t n);

  // Softmax of the rows of (rows, n), one after the other: faster than each on its own.
  void (*softmax_rows)(const float* x, float* y, size_t n, size_t rows);
  // Softmax (or its logarithm) down the columns of (r, w), rows x_step, y_step, … values apart.
  void (*softmax_columns)(const float* x, size_t x_step, float* y, size_t y_step, size_t r, size_t w, bool log);
  void (*softmax_columns_backward)(const float* y, size_t y_step, const float* dy, size_t dy_step, float* dx,
                                   size_t dx_step, size_t r, size_t w, bool log);

  void (*add)(const float* a, float* sum, size_t n);        // sum += a
  void (*stream)(const float* row, float* y, size_t n);     // copies past the caches
  void (*load)(BNNSDataType type, const void* p, size_t stride, size_t n, float* row);   // simd/convert.h
  void (*store)(BNNSDataType type, void* p, size_t stride, size_t n, const float* row);
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// ---- the obvious loops (activation_ref.cpp) ----

namespace ref {

// One value, in double precision; element-wise functions only.
double forward(Function function, double x, double alpha, double beta);
double slope_from_x(Function function, double x, double alpha, double beta);
double slope_from_y(Function function, double y, double alpha, double beta);

// The two functions whose inverse has no closed form (docs/interface/activation.md 5), as rows.
void tanh_shrink_from_y(const float* y, const float* dy, float* dx, size_t n, float alpha, float beta);
void gelu_sigmoid_from_y(const float* y, const float* dy, float* dx, size_t n, float alpha, float beta);

// Softmax (or its logarithm) of n values, `step` apart.
void softmax(const float* x, float* y, size_t n, size_t step, bool log);
void softmax_backward(const float* y, const float* dy, float* dx, size_t n, size_t step, bool log);

// -log(-log(alpha·u + beta) + beta)
double gumbel(double u, double alpha, double beta);

// ---- single values of any type ----

__extension__ typedef __int128 Whole;  // holds every int64 and every uint64

// Where values of one tensor lie and what they mean. Index counts values from data.
struct Values {
  const void* data;
  BNNSDataType type;
  float scale, bias;        // integer types: real = scale·stored + bias
  const void* table;        // indexed types: real = table[stored]
  BNNSDataType table_type;
};

// True when a value is exactly a whole number: integer or boolean, neither scaled nor shifted.
bool is_whole(const Values& values);
// Integers saturate, booleans become 0 or 1. The data of `to` is written.
Whole get_whole(const Values& from, size_t index);
void put_whole(const Values& to, size_t index, Whole value);
// The stored integer, with scale and bias ignored; put_stored saturates.
Whole get_stored(const Values& from, size_t index);
void put_stored(const Values& to, size_t index, Whole value);
// Rows (n) of real numbers, from value `index` on, `stride` apart. Exact for integers of up to 32 bits.
void get_reals(const Values& from, size_t index, size_t stride, size_t n, double* row);
void put_reals(const Values& to, size_t index, size_t stride, size_t n, const double* row);

// (scale·x + offset) >> shift; the accumulator cannot overflow, saturation is put_stored's.
Whole integer_linear(Whole x, int32_t scale, int32_t offset, int32_t shift);

}  // namespace ref

// An activation at the end of another layer: y = act(z), on rows of packed float32.
class Fused {
 public:
  // Refuses unknown functions and those that cannot be fused (integer, Gumbel). Returns 0 or -1.
  static int read(const BNNSActivation& activation, const char* argument, Fused* fused);
  bool is_identity() const { return function_ == BNNSActivationFunctionIdentity; }
  bool is_elementwise() const;                                // a row may be done in parts: all but the softmax family
  void forward(float* row, size_t n) const;                   // in place; softmax family over the row
  int check_backward() const;                                 // 0, or -1 with a sentence: not differentiable from y
  bool depends_on_values() const;                             // some y are ambiguous
  bool accepts(const float* y, size_t n) const;               // only then: are all these y usable
  void backward(const float* y, float* dy, size_t n) const;   // dy becomes dz = dy · act'(from y), in place

 private:
  Function function_ = BNNSActivationFunctionIdentity;
  float alpha_ = 0.0f;
  float beta_ = 0.0f;
  ForwardRow forward_ = nullptr;
  BackwardRow backward_ = nullptr;  // NULL: needs x
};

}  // namespace obn::activation
