// Makes the filters of openbnns/convolution.py; weighted.cpp calls them.
#include <cstddef>

#include "weighted.h"

namespace obn::door {

// input, output, weights spec, bias spec, weights, bias or None, activation, transposed, (sh, sw), (dh, dw),
// (up, down, left, right), groups
bool parse_convolution(Call& call, FilterObject* filter, PyObject* tuple, bool copy,
                       ConvolutionDescription* description) {
  PyObject *operands[kWeightedOperands], *weights, *bias, *activation;
  Py_ssize_t sh, sw, dh, dw, up, down, left, right, groups;
  int transposed;
  if (!PyArg_ParseTuple(tuple, "OOOOOOOp(nn)(nn)(nnnn)n:convolution", &operands[kInput], &operands[kOutput],
                        &operands[kWeights], &operands[kBias], &weights, &bias, &activation, &transposed, &sh, &sw,
                        &dh, &dw, &up, &down, &left, &right, &groups))
    return false;
  for (int i = 0; i < kWeightedOperands; ++i)
    if (!filter->operands[i].parse(operands[i])) return false;
  BNNSLayerParametersConvolution& layer = description->layer;
  if (!parse_activation(activation, filter, &layer.activation) ||
      !take_weights(call, filter, weights, bias, copy, description->arrays, &layer.w_desc, &layer.bias))
    return false;
  filter->flags |= kHasWeightsGradient;
  description->type = transposed ? BNNSTransposedConvolution : BNNSConvolution;
  layer.i_desc = filter->operands[kInput].descriptor;
  layer.o_desc = filter->operands[kOutput].descriptor;
  layer.y_stride = static_cast<size_t>(sh);
  layer.x_stride = static_cast<size_t>(sw);
  layer.y_dilation_stride = static_cast<size_t>(dh);
  layer.x_dilation_stride = static_cast<size_t>(dw);
  layer.pad[0] = static_cast<size_t>(left);
  layer.pad[1] = static_cast<size_t>(right);
  layer.pad[2] = static_cast<size_t>(up);
  layer.pad[3] = static_cast<size_t>(down);
  layer.groups = static_cast<size_t>(groups);
  return true;
}

namespace {

// name, description, winograd (1, 0, or -1: the library's setting), threads, copy_parameters
PyObject* convolution_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *tuple;
  Py_ssize_t threads;
  int winograd, copy_parameters;
  if (!PyArg_ParseTuple(arguments, "UO!inp:convolution_create", &name, &PyTuple_Type, &tuple, &winograd, &threads,
                        &copy_parameters))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::weighted);
  ConvolutionDescription description;
  if (!filter.get() || !parse_convolution(call, filter.get(), tuple, copy_parameters, &description)) return nullptr;
  BNNSFilterParameters options = {};
  if (!copy_parameters) options.flags = BNNSFlagsUseClientPtr;
  options.n_threads = static_cast<size_t>(threads);
  BNNSFilter handle = description.type == BNNSTransposedConvolution
                          ? BNNSFilterCreateLayerTransposedConvolution(&description.layer, &options)
                          : BNNSFilterCreateLayerConvolution(&description.layer, &options);
  if (handle && winograd >= 0) obn_filter_set_winograd(handle, winograd);
  return filter.open(handle);
}

}  // namespace

PyMethodDef convolution_methods[] = {
    {"convolution_create", convolution_create, METH_VARARGS, nullptr},
    {},
};

}  // namespace obn::door
