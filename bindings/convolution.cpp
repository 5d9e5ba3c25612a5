// Makes the filters of openbnns/convolution.py; weighted.cpp calls them.
#include "weighted.h"

namespace obn::door {
namespace {

// name, input, output, weights spec, bias spec, weights, bias or None, activation, transposed, (sh, sw), (dh, dw),
// (up, down, left, right), groups, winograd (1, 0, or -1: the library's setting), threads, copy_parameters
PyObject* convolution_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kWeightedOperands], *weights, *bias, *activation;
  Py_ssize_t sh, sw, dh, dw, up, down, left, right, groups, threads;
  int transposed, winograd, copy_parameters;
  if (!PyArg_ParseTuple(arguments, "UOOOOOOOp(nn)(nn)(nnnn)ninp:convolution_create", &name, &operands[kInput],
                        &operands[kOutput], &operands[kWeights], &operands[kBias], &weights, &bias, &activation,
                        &transposed, &sh, &sw, &dh, &dw, &up, &down, &left, &right, &groups, &winograd, &threads,
                        &copy_parameters))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::weighted);
  if (!filter.parse_operands(operands, kWeightedOperands)) return nullptr;

  BNNSLayerParametersConvolution layer = {};
  WeightedArrays arrays;
  if (!parse_activation(activation, filter.get(), &layer.activation) ||
      !take_weights(call, filter.get(), weights, bias, copy_parameters, arrays, &layer.w_desc, &layer.bias))
    return nullptr;
  filter->flags |= kHasWeightsGradient;
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
  BNNSFilterParameters options = {};
  if (!copy_parameters) options.flags = BNNSFlagsUseClientPtr;
  options.n_threads = static_cast<size_t>(threads);
  BNNSFilter handle = transposed ? BNNSFilterCreateLayerTransposedConvolution(&layer, &options)
                                 : BNNSFilterCreateLayerConvolution(&layer, &options);
  if (handle && winograd >= 0) obn_filter_set_winograd(handle, winograd);
  return filter.open(handle);
}

}  // namespace

PyMethodDef convolution_methods[] = {
    {"convolution_create", convolution_create, METH_VARARGS, nullptr},
    {},
};

}  // namespace obn::door
