// Calls of openbnns/convolution.py, which openbnns/fully_connected.py inherits.
#include "weighted.h"

#include <algorithm>
#include <cstddef>

namespace obn::door {

bool take_weights(Call& call, FilterObject* filter, PyObject* weights, PyObject* bias, bool copy,
                  WeightedArrays& arrays, BNNSNDArrayDescriptor* weights_descriptor,
                  BNNSNDArrayDescriptor* bias_descriptor) {
  if (!take_parameter(call, filter, weights, filter->operands[kWeights], "weights", copy, arrays.weights,
                      weights_descriptor))
    return false;
  if (bias == Py_None) return true;
  filter->flags |= kHasBias;
  return take_parameter(call, filter, bias, filter->operands[kBias], "bias", copy, arrays.bias, bias_descriptor);
}

size_t weighted_items(const Call& call, const Operand& output) {
  Py_ssize_t images = call.batch * std::max(call.operand(kInput).items, output.items);
  return static_cast<size_t>(std::max(images, call.operand(kWeights).items));
}

namespace {

// filter, x, out or None
PyObject* weighted_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("weighted_apply", count, 3)) return nullptr;
  Call call(module, arguments[0], Family::weighted);
  if (!call.ok()) return nullptr;
  Array x, y;
  if (!x.take(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !y.take_or_make(call, arguments[2], call.operand(kOutput), "out"))
    return nullptr;
  auto apply = [handle = call.handle(), batch = call.samples(), x = x.place(), y = y.place()] {
    return BNNSFilterApplyBatch(handle, batch, x.data, x.stride, y.data, y.stride);
  };
  if (!call.perform(weighted_items(call, call.operand(kOutput)), apply))
    return nullptr;
  return y.result();
}

// filter, x or None, y or None, grad_output, input_gradient, weights_gradient, bias_gradient, accumulate (bit 0 input,
// bit 1 weights, bit 2 bias)
PyObject* weighted_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("weighted_backward", count, 8)) return nullptr;
  Call call(module, arguments[0], Family::weighted);
  if (!call.ok()) return nullptr;
  unsigned flags = call.flags();
  long accumulate = PyLong_AsLong(arguments[7]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  Array x, y, dy;
  Target dx, dw, db;
  if (!x.take_optional(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !y.take_optional(call, arguments[2], call.operand(kOutput), "y", Use::read) ||
      !dy.take(call, arguments[3], call.operand(kOutput), "grad_output", Use::read, Strides::any) ||
      !dx.take(call, arguments[4], call.operand(kInput), "input_gradient", accumulate & 1, true) ||
      !dw.take(call, arguments[5], call.operand(kWeights), "weights_gradient", accumulate & 2,
               flags & kHasWeightsGradient, Batched::no) ||
      !db.take(call, arguments[6], call.operand(kBias), "bias_gradient", accumulate & 4, flags & kHasBias,
               Batched::no))
    return nullptr;
  auto apply = [handle = call.handle(), batch = call.samples(), x = x.place(), y = y.place(),
                      dy = dy.described(call.operand(kOutput)), dx = dx.described(), dw = dw.described(),
                      db = db.described()]() mutable {
    return BNNSFilterApplyBackwardBatch(handle, batch, x.data, x.stride, dx.get(), dx.stride, y.data, y.stride,
                                        dy.get(), dy.stride, dw.get(), db.get());
  };
  if (!call.perform(weighted_items(call, call.operand(kOutput)), apply))
    return nullptr;
  return Py_BuildValue("NNN", dx.result(), dw.result(), db.result());
}

// filter, batch
PyObject* weighted_work_bytes(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("weighted_work_bytes", count, 2)) return nullptr;
  Call call(module, arguments[0], Family::weighted);
  if (!call.ok()) return nullptr;
  size_t batch = PyLong_AsSize_t(arguments[1]);
  if (batch == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
  return call.answer(obn_filter_work_bytes(call.handle(), batch));
}

}  // namespace

PyMethodDef weighted_methods[] = {
    {"weighted_apply", as_method(weighted_apply), METH_FASTCALL, nullptr},
    {"weighted_backward", as_method(weighted_backward), METH_FASTCALL, nullptr},
    {"weighted_work_bytes", as_method(weighted_work_bytes), METH_FASTCALL, nullptr},
    {},
};

}  // namespace obn::door
