// What the layers with weights share, and the fused layers that begin with one: convolution and fully connected differ
// in their descriptions, not in how they are called.
#pragma once

#include <cstddef>

#include "array.h"

namespace obn::door {

enum { kInput, kOutput, kWeights, kBias, kWeightedOperands };  // operands
enum { kHasBias = 1, kHasWeightsGradient = 2 };                 // flags

// Weights and bias of a layer being made, which live until the native filter exists.
struct WeightedArrays {
  Array weights, bias;
};

struct ConvolutionDescription {
  BNNSFilterType type = BNNSConvolution;  // or BNNSTransposedConvolution
  BNNSLayerParametersConvolution layer = {};
  WeightedArrays arrays;
};

struct FullyConnectedDescription {
  BNNSLayerParametersFullyConnected layer = {};
  WeightedArrays arrays;
};

// The tuples of convolution.describe (openbnns/convolution.py) and fully_connected.describe (openbnns/
// fully_connected.py). They fill the first kWeightedOperands operands of the filter, and its flags. False with an
// exception.
bool parse_convolution(Call& call, FilterObject* filter, PyObject* tuple, bool copy,
                       ConvolutionDescription* description);
bool parse_fully_connected(Call& call, FilterObject* filter, PyObject* tuple, bool copy,
                           FullyConnectedDescription* description);

// Weights and bias (or None) by the operands of the filter. False with an exception.
bool take_weights(Call& call, FilterObject* filter, PyObject* weights, PyObject* bias, bool copy,
                  WeightedArrays& arrays, BNNSNDArrayDescriptor* weights_descriptor,
                  BNNSNDArrayDescriptor* bias_descriptor);

// A measure for the work of a call: whole images, or weights that are read for a small batch.
size_t weighted_items(const Call& call, const Operand& output);

}  // namespace obn::door
