// What an arithmetic layer and a fused layer that begins with one share: the description as Python gives it.
#pragma once

#include "array.h"

namespace obn::door {

inline constexpr int kMaxInputs = 3;

// The operands that a description brings along: the inputs, then the output.
inline constexpr int kArithmeticOutput = kMaxInputs, kArithmeticOperands = kMaxInputs + 1;

struct ArithmeticDescription {
  BNNSLayerParametersArithmetic layer = {};  // points into this struct
  BNNSArithmeticUnary unary = {};
  BNNSArithmeticBinary binary = {};
  BNNSArithmeticTernary ternary = {};
  int inputs = 0;
  unsigned flags = 0;
};

// What calls ask the flags of a description.
inline int inputs_of(unsigned flags) { return static_cast<int>(flags & 3u); }
inline bool is_constant(unsigned flags, int k) { return flags >> (4 + k) & 1u; }
// Operands other than samples have no batch axis; kArithmeticOutput asks about the output.
inline Batched batched_of(unsigned flags, int k) { return flags >> (8 + k) & 1u ? Batched::yes : Batched::no; }
// The argument that holds input k.
const char* input_name(unsigned flags, int k);

// The tuple of arithmetic.describe (openbnns/arithmetic.py). `operands` has room for kArithmeticOperands. False with an
// exception.
bool parse_arithmetic(FilterObject* filter, PyObject* tuple, Operand* operands, ArithmeticDescription* description);

}  // namespace obn::door
