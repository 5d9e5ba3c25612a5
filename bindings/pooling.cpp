// Calls of openbnns/pooling.py.
#include "pooling.h"

#include <cstddef>

namespace obn::door {

bool parse_pooling(FilterObject* filter, PyObject* tuple, BNNSLayerParametersPooling* layer) {
  unsigned function;
  Py_ssize_t kh, kw, sh, sw, dh, dw, up, down, left, right;
  PyObject* activation;
  if (!PyArg_ParseTuple(tuple, "I(nn)(nn)(nn)(nnnn)O:pooling", &function, &kh, &kw, &sh, &sw, &dh, &dw, &up, &down,
                        &left, &right, &activation) ||
      !parse_activation(activation, filter, &layer->activation))
    return false;
  layer->pooling_function = static_cast<BNNSPoolingFunction>(function);
  layer->k_height = static_cast<size_t>(kh);
  layer->k_width = static_cast<size_t>(kw);
  layer->y_stride = static_cast<size_t>(sh);
  layer->x_stride = static_cast<size_t>(sw);
  layer->y_dilation_stride = static_cast<size_t>(dh);
  layer->x_dilation_stride = static_cast<size_t>(dw);
  layer->pad[0] = static_cast<size_t>(left);
  layer->pad[1] = static_cast<size_t>(right);
  layer->pad[2] = static_cast<size_t>(up);
  layer->pad[3] = static_cast<size_t>(down);
  return true;
}

namespace {

enum { kInput, kOutput, kBias, kIndices32, kIndices64, kPoolingOperands };  // operands
enum { kHasBias = 1, kWritesIndices = 2, kReadsIndices = 4 };  // flags

// name, input, output, bias spec, two index specs, bias or None, description, threads, copy_parameters
PyObject* pooling_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kPoolingOperands], *bias, *description;
  Py_ssize_t threads;
  int copy_parameters;
  if (!PyArg_ParseTuple(arguments, "UOOOOOOO!np:pooling_create", &name, &operands[kInput], &operands[kOutput],
                        &operands[kBias], &operands[kIndices32], &operands[kIndices64], &bias, &PyTuple_Type,
                        &description, &threads, &copy_parameters))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::pooling);
  if (!filter.parse_operands(operands, kPoolingOperands)) return nullptr;

  BNNSLayerParametersPooling layer = {};
  if (!parse_pooling(filter.get(), description, &layer)) return nullptr;
  Array bias_array;
  if (bias != Py_None) {
    if (!take_parameter(call, filter.get(), bias, filter->operands[kBias], "bias", copy_parameters, bias_array,
                        &layer.bias))
      return nullptr;
    filter->flags |= kHasBias;
  }
  layer.i_desc = filter->operands[kInput].descriptor;
  layer.o_desc = filter->operands[kOutput].descriptor;
  if (layer.pooling_function == BNNSPoolingFunctionMax) filter->flags |= kWritesIndices;
  if (layer.pooling_function == BNNSPoolingFunctionUnMax) filter->flags |= kReadsIndices;
  BNNSFilterParameters options = {};
  if (!copy_parameters) options.flags = BNNSFlagsUseClientPtr;
  options.n_threads = static_cast<size_t>(threads);
  return filter.open(BNNSFilterCreateLayerPooling(&layer, &options));
}

// True for arrays of 8-byte items; anything else is taken for 32-bit indices, and refused later if it is not.
bool is_wide(const Call& call, PyObject* indices) {
  PyObject* itemsize = PyObject_GetAttr(indices, call.state()->itemsize);
  bool wide = itemsize && PyLong_Check(itemsize) && PyLong_AsSsize_t(itemsize) == 8;
  Py_XDECREF(itemsize);
  PyErr_Clear();
  return wide;
}

PyObject* refuse_indices(const Call& call, const char* argument, const char* expected) {
  return PyErr_Format(call.state()->layer_apply_error, "[%U] %s: expected %s pooling to go with it; got another kind",
                      call.name(), argument, expected);
}

// filter, x, out or None, indices or None, return_indices
PyObject* pooling_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("pooling_apply", count, 5)) return nullptr;
  Call call(module, arguments[0], Family::pooling);
  if (!call.ok()) return nullptr;
  unsigned flags = call.flags();
  PyObject* given = arguments[3];
  int wanted = call.truth(arguments[4], "return_indices");
  if (wanted < 0) return nullptr;
  Array x, y, indices;
  if (!x.take(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !y.take_or_make(call, arguments[2], call.operand(kOutput), "out"))
    return nullptr;
  bool wide = false;
  if (given != Py_None) {
    if (!(flags & (kWritesIndices | kReadsIndices))) return refuse_indices(call, "indices", "max or unmax");
    wide = is_wide(call, given);
    if (!indices.take(call, given, call.operand(wide ? kIndices64 : kIndices32), "indices",
                      flags & kReadsIndices ? Use::read : Use::write))
      return nullptr;
  } else if (wanted) {
    if (!(flags & kWritesIndices)) return refuse_indices(call, "return_indices", "max");
    if (!indices.make(call, call.operand(kIndices32))) return nullptr;
  }
  auto apply = [handle = call.handle(), batch = call.samples(), x = x.place(), y = y.place(),
                indices = indices.place(), type = wide ? BNNSDataTypeUInt64 : BNNSDataTypeUInt32] {
    if (!indices.data) return BNNSFilterApplyBatch(handle, batch, x.data, x.stride, y.data, y.stride);
    return BNNSPoolingFilterApplyBatchEx(handle, batch, x.data, x.stride, y.data, y.stride, type, indices.data,
                                         indices.stride);
  };
  if (!call.perform(call.operand(kInput), apply))
    return nullptr;
  if (!wanted) return y.result();
  return Py_BuildValue("NN", y.result(), indices.result());
}

// filter, x or None, y or None, grad_output, indices or None, input_gradient, bias_gradient, accumulate (bit 0 input,
// bit 1 bias)
PyObject* pooling_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("pooling_backward", count, 8)) return nullptr;
  Call call(module, arguments[0], Family::pooling);
  if (!call.ok()) return nullptr;
  unsigned flags = call.flags();
  PyObject* given = arguments[4];
  long accumulate = PyLong_AsLong(arguments[7]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  Array x, y, dy, indices;
  Target dx, db;
  if (!x.take_optional(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !y.take_optional(call, arguments[2], call.operand(kOutput), "y", Use::read) ||
      !dy.take(call, arguments[3], call.operand(kOutput), "grad_output", Use::read, Strides::any))
    return nullptr;
  bool wide = false;
  if (given != Py_None) {
    if (!(flags & (kWritesIndices | kReadsIndices))) return refuse_indices(call, "indices", "max or unmax");
    wide = is_wide(call, given);
    if (!indices.take(call, given, call.operand(wide ? kIndices64 : kIndices32), "indices", Use::read)) return nullptr;
  }
  if (!dx.take(call, arguments[5], call.operand(kInput), "input_gradient", accumulate & 1, true) ||
      !db.take(call, arguments[6], call.operand(kBias), "bias_gradient", accumulate & 2, flags & kHasBias,
               Batched::no))
    return nullptr;
  auto apply = [handle = call.handle(), batch = call.samples(), x = x.place(), y = y.place(),
                indices = indices.place(), type = wide ? BNNSDataTypeUInt64 : BNNSDataTypeUInt32,
                dy = dy.described(call.operand(kOutput)), dx = dx.described(), db = db.described()]() mutable {
    return BNNSPoolingFilterApplyBackwardBatchEx(handle, batch, x.data, x.stride, dx.get(), dx.stride, y.data, y.stride,
                                                 dy.get(), dy.stride, db.get(), type, indices.data, indices.stride);
  };
  if (!call.perform(call.operand(kInput), apply))
    return nullptr;
  return Py_BuildValue("NN", dx.result(), db.result());
}

}  // namespace

PyMethodDef pooling_methods[] = {
    {"pooling_create", pooling_create, METH_VARARGS, nullptr},
    {"pooling_apply", as_method(pooling_apply), METH_FASTCALL, nullptr},
    {"pooling_backward", as_method(pooling_backward), METH_FASTCALL, nullptr},
    {},
};

}  // namespace obn::door
