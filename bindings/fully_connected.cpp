// Makes the filters of openbnns/fully_connected.py; weighted.cpp calls them. Packs sparse weights.
#include <cstdlib>

#include "weighted.h"

namespace obn::door {
// input, output, weights spec, bias spec, weights, bias or None, activation, weights gradient exists
bool parse_fully_connected(Call& call, FilterObject* filter, PyObject* tuple, bool copy,
                           FullyConnectedDescription* description) {
  PyObject *operands[kWeightedOperands], *weights, *bias, *activation;
  int has_gradient;
  if (!PyArg_ParseTuple(tuple, "OOOOOOOp:fully_connected", &operands[kInput], &operands[kOutput], &operands[kWeights],
                        &operands[kBias], &weights, &bias, &activation, &has_gradient))
    return false;
  for (int i = 0; i < kWeightedOperands; ++i)
    if (!filter->operands[i].parse(operands[i])) return false;
  BNNSLayerParametersFullyConnected& layer = description->layer;
  if (!parse_activation(activation, filter, &layer.activation) ||
      !take_weights(call, filter, weights, bias, copy, description->arrays, &layer.w_desc, &layer.bias))
    return false;
  if (has_gradient) filter->flags |= kHasWeightsGradient;
  layer.i_desc = filter->operands[kInput].descriptor;
  layer.o_desc = filter->operands[kOutput].descriptor;
  return true;
}

namespace {

// name, description, precision (-1: the library's setting), threads, copy_parameters
PyObject* fully_connected_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *tuple;
  Py_ssize_t threads;
  int precision, copy_parameters;
  if (!PyArg_ParseTuple(arguments, "UO!inp:fully_connected_create", &name, &PyTuple_Type, &tuple, &precision, &threads,
                        &copy_parameters))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::weighted);
  FullyConnectedDescription description;
  if (!filter.get() || !parse_fully_connected(call, filter.get(), tuple, copy_parameters, &description))
    return nullptr;
  BNNSFilterParameters options = {};
  if (!copy_parameters) options.flags = BNNSFlagsUseClientPtr;
  options.n_threads = static_cast<size_t>(threads);
  BNNSFilter handle = BNNSFilterCreateLayerFullyConnected(&description.layer, &options);
  if (handle && precision >= 0) obn_filter_set_matmul_precision(handle, precision);
  return filter.open(handle);
}

// name, rows, columns, values, their type, columns of the values (csr) or columns and rows in turn (coo) as uint64, row
// starts as uint64 or None, numerator and denominator of the share of zeros (0, 0: not known) -> bytes
PyObject* fully_connected_sparsify(PyObject* module, PyObject* arguments) {
  PyObject* name;
  Py_ssize_t rows, columns;
  Py_buffer values, indices, starts;
  unsigned type, numerator, denominator;
  if (!PyArg_ParseTuple(arguments, "Unny*Iy*z*II:fully_connected_sparsify", &name, &rows, &columns, &values, &type,
                        &indices, &starts, &numerator, &denominator))
    return nullptr;
  BNNSNDArrayDescriptor dense = {}, given = {}, places = {}, row_starts = {}, packed = {};
  dense.layout = BNNSDataLayoutRowMajorMatrix;
  dense.size[0] = static_cast<size_t>(columns);
  dense.size[1] = static_cast<size_t>(rows);
  dense.data_type = static_cast<BNNSDataType>(type);
  packed = dense;
  packed.layout = BNNSDataLayoutFullyConnectedSparse;
  given.layout = row_starts.layout = BNNSDataLayoutVector;
  given.size[0] = static_cast<size_t>(values.len) / ((type & 0x7fff) / 8);
  given.data = values.buf;
  given.data_type = dense.data_type;
  places.data = indices.buf;
  places.data_type = row_starts.data_type = BNNSDataTypeUInt64;
  BNNSSparsityParameters hint = {};
  hint.sparsity_ratio[0] = numerator;
  hint.sparsity_ratio[1] = denominator;
  const BNNSSparsityParameters* known = denominator ? &hint : nullptr;
  int status;
  if (starts.buf) {
    row_starts.size[0] = static_cast<size_t>(rows) + 1;
    row_starts.data = starts.buf;
    places.layout = BNNSDataLayoutVector;
    places.size[0] = given.size[0];
    status = BNNSNDArrayFullyConnectedSparsifySparseCSR(&dense, &places, &row_starts, &given, &packed, known, 1,
                                                        nullptr, 0, nullptr);
  } else {
    places.layout = BNNSDataLayout2DFirstMajor;
    places.size[0] = given.size[0];
    places.size[1] = 2;
    status = BNNSNDArrayFullyConnectedSparsifySparseCOO(&dense, &places, &given, &packed, known, 1, nullptr, 0,
                                                        nullptr);
  }
  PyBuffer_Release(&values);
  PyBuffer_Release(&indices);
  PyBuffer_Release(&starts);
  if (status != 0) return PyErr_Format(state_of(module)->layer_creation_error, "[%U] %s", name, obn_last_error());
  PyObject* bytes = PyBytes_FromStringAndSize(static_cast<const char*>(packed.data),
                                              static_cast<Py_ssize_t>(BNNSNDArrayGetDataSize(&packed)));
  std::free(packed.data);
  return bytes;
}

}  // namespace

PyMethodDef fully_connected_methods[] = {
    {"fully_connected_create", fully_connected_create, METH_VARARGS, nullptr},
    {"fully_connected_sparsify", fully_connected_sparsify, METH_VARARGS, nullptr},
    {},
};

}  // namespace obn::door
