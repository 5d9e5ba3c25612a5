// What a normalization layer and a fused layer that ends in a normalization share: the description as Python gives it.
#pragma once

#include "array.h"

namespace obn::door {

// The operands that a description brings along.
inline constexpr int kBeta = 0, kGamma = 1, kMoving = 2, kNormalizationOperands = 3;

struct NormalizationDescription {
  BNNSFilterType type = BNNSBatchNorm;
  BNNSLayerParametersNormalization layer = {};      // without i_desc and o_desc
  Array beta, gamma, moving_mean, moving_variance;  // held until the native filter exists
  bool has_beta = false, has_gamma = false;
};

// The tuple of normalization.describe (openbnns/normalization.py). `operands` has room for kNormalizationOperands.
// False with an exception.
bool parse_normalization(Call& call, FilterObject* filter, PyObject* tuple, bool copy, Operand* operands,
                         NormalizationDescription* description);

}  // namespace obn::door
