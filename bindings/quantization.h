// What the quantizer and a fused layer that ends in one share: the description as Python gives it.
#pragma once

#include "array.h"

namespace obn::door {

// The operands that a description brings along.
inline constexpr int kQuantizationScale = 0, kQuantizationBias = 1, kQuantizationOperands = 2;

struct QuantizationDescription {
  BNNSLayerParametersQuantization layer = {};  // without i_desc and o_desc
  Array scale, bias;                           // held until the native filter exists, or for the time of a call
};

// The tuple of quantization.describe (openbnns/quantization.py). `operands` has room for kQuantizationOperands. False
// with an exception.
bool parse_quantization(Call& call, FilterObject* filter, PyObject* tuple, bool copy, Operand* operands,
                        QuantizationDescription* description);

}  // namespace obn::door
