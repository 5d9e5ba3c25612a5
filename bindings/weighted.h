// What the layers with weights share: convolution and fully connected differ in how they are made, not in how they are
// called.
#pragma once

#include "array.h"

namespace obn::door {

enum { kInput, kOutput, kWeights, kBias, kWeightedOperands };  // operands
enum { kHasBias = 1, kHasWeightsGradient = 2 };                 // flags

// Weights and bias (or None) of a layer being made; `arrays` live until the native filter exists. False with an
// exception.
struct WeightedArrays {
  Array weights, bias;
};
bool take_weights(Call& call, FilterObject* filter, PyObject* weights, PyObject* bias, bool copy,
                  WeightedArrays& arrays, BNNSNDArrayDescriptor* weights_descriptor,
                  BNNSNDArrayDescriptor* bias_descriptor);

}  // namespace obn::door
