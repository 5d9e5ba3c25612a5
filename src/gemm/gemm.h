// The matrix engine: c (m, n) = alpha · a (m, k) · b (k, n), set or added, with bias and activation at the end. Not a
// family of the interface: fully connected, matmul and attention are built on it.
//
// Operands may lie in any order and be float32, float16 or bfloat16; c is float32, its rows are runs. Sums are float32.
// The same bits for any number of threads.
#pragma once

#include <cstddef>

#include "activation/activation.h"
#include "base/cpu.h"
#include "base/precision.h"
#include "openbnns/bnns/base.h"

namespace obn::gemm {

// Value (i, j) lies at data[i·row + j·column], strides in values.
struct Operand {
  const void* data;
  size_t row;
  size_t column;
  BNNSDataType type = BNNSDataTypeFloat32;
};

struct Product {
  size_t m, n, k;                    // m, n >= 1; k = 0 gives alpha · 0
  Operand a;                         // (m, k)
  Operand b;                         // (k, n)
  float* c;                          // (m, n)
  size_t c_row;                      // values from one row of c to the next, >= n
  float alpha = 1.0f;
  bool accumulate = false;           // c += …, else c = …
  const float* row_bias = nullptr;   // (m), added to every value of a row
  const float* column_bias = nullptr;  // (n), added to every row
  const activation::Fused* activation = nullptr;  // last of all; a row of c is its row
  Precision precision = Precision::highest;
};

// Bytes that run() needs in `work`, shared by all threads of the call. They do not depend on the precision.
size_t work_bytes(const Product& product);

// c must not overlap a or b. `work` is aligned to kAlignment. Uses the scratch of every thread that takes part.
void run(const Product& product, size_t threads, std::byte* work);

// `count` products of the same sizes; operands and c of the next one lie a_step, b_step, c_step values further.
size_t work_bytes(const Product& first, size_t count);
void run_batch(const Product& first, size_t count, size_t a_step, size_t b_step, size_t c_step, size_t threads,
               std::byte* work);

// One product after the other of the same sizes and strides, alone on the calling thread, wherever the operands lie: how
// it is done is decided once. For products so small that deciding takes as long as multiplying. Needs no `work`; the same
// bits as run().
class Repeated {
 public:
  explicit Repeated(const Product& like);  // its pointers to a, b and c are not looked at
  void run(const void* a, const void* b, float* c, bool accumulate) const;

 private:
  Product product_;
  bool is_turned_;  // a and b have changed places
  int way_;         // of gemm.cpp; -1: run() decides
  bool as_pairs_;   // of bfloat16
};

// gemm_ref.cpp: the formula, float64 sums; rows [first, last) of c.
void run_reference(const Product& product, size_t first, size_t last);

}  // namespace obn::gemm
