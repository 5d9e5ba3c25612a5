// Calls of openbnns/activation.py.
#include <cstddef>

#include "array.h"

namespace obn::door {
namespace {

enum { kInput, kOutput, kAlpha, kOperands };  // operands
enum { kHasAlpha = 1 };                       // flags

bool has_alpha_gradient(BNNSActivationFunction function) {
  return function == BNNSActivationFunctionLeakyRectifiedLinear || function == BNNSActivationFunctionPReLUPerChannel;
}

// name, input, output, alpha spec, activation, axis_flags, threads
PyObject* activation_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kOperands], *activation;
  unsigned axis_flags;
  Py_ssize_t threads;
  if (!PyArg_ParseTuple(arguments, "UOOOOIn:activation_create", &name, &operands[kInput], &operands[kOutput],
                        &operands[kAlpha], &activation, &axis_flags, &threads))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::activation);
  if (!filter.parse_operands(operands, kOperands)) return nullptr;
  BNNSLayerParametersActivation layer = {};
  if (!parse_activation(activation, filter.get(), &layer.activation)) return nullptr;
  layer.i_desc = filter->operands[kInput].descriptor;
  layer.o_desc = filter->operands[kOutput].descriptor;
  layer.axis_flags = axis_flags;
  if (has_alpha_gradient(layer.activation.function)) filter->flags |= kHasAlpha;
  BNNSFilterParameters options = {};
  options.n_threads = static_cast<size_t>(threads);
  return filter.open(BNNSFilterCreateLayerActivation(&layer, &options));
}

// filter, x, out or None
PyObject* activation_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("activation_apply", count, 3)) return nullptr;
  Call call(module, arguments[0], Family::activation);
  if (!call.ok()) return nullptr;
  Array x, y;
  if (!x.take(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !y.take_or_make(call, arguments[2], call.operand(kOutput), "out"))
    return nullptr;
  auto apply = [handle = call.handle(), batch = call.samples(), x = x.place(), y = y.place()] {
    return BNNSFilterApplyBatch(handle, batch, x.data, x.stride, y.data, y.stride);
  };
  if (!call.perform(call.operand(kInput), apply))
    return nullptr;
  return y.result();
}

// filter, x or None, y or None, grad_output, input_gradient, alpha_gradient, accumulate (bit 0 input, bit 1 alpha)
PyObject* activation_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("activation_backward", count, 7)) return nullptr;
  Call call(module, arguments[0], Family::activation);
  if (!call.ok()) return nullptr;
  long accumulate = PyLong_AsLong(arguments[6]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  Array x, y, dy;
  Target dx, dalpha;
  if (!x.take_optional(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !y.take_optional(call, arguments[2], call.operand(kOutput), "y", Use::read) ||
      !dy.take(call, arguments[3], call.operand(kOutput), "grad_output", Use::read, Strides::any) ||
      !dx.take(call, arguments[4], call.operand(kInput), "input_gradient", accumulate & 1, true) ||
      !dalpha.take(call, arguments[5], call.operand(kAlpha), "alpha_gradient", accumulate & 2,
                   call.flags() & kHasAlpha, Batched::no))
    return nullptr;
  auto apply = [handle = call.handle(), batch = call.samples(), x = x.place(), y = y.place(),
                dy = dy.described(call.operand(kOutput)), dx = dx.described(),
                dalpha = dalpha.described()]() mutable {
    return BNNSFilterApplyBackwardBatch(handle, batch, x.data, x.stride, dx.get(), dx.stride, y.data, y.stride,
                                        dy.get(), dy.stride, dalpha.get(), nullptr);
  };
  if (!call.perform(call.operand(kInput), apply))
    return nullptr;
  return Py_BuildValue("NN", dx.result(), dalpha.result());
}

// name, input, output, activation, axis_flags, threads, x, out or None; the arrays are one sample, without a batch axis
PyObject* activation_direct(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kOperands], *activation, *x_object, *y_object;
  unsigned axis_flags;
  Py_ssize_t threads;
  if (!PyArg_ParseTuple(arguments, "UOOOInOO:activation_direct", &name, &operands[kInput], &operands[kOutput],
                        &activation, &axis_flags, &threads, &x_object, &y_object))
    return nullptr;
  Call call(module, name);
  NewFilter keeper(call, Family::activation);  // never opened: it holds the operands for the time of the call
  if (!keeper.parse_operands(operands, kAlpha)) return nullptr;
  const Operand &input = keeper->operands[kInput], &output = keeper->operands[kOutput];
  BNNSLayerParametersActivation layer = {};
  if (!parse_activation(activation, keeper.get(), &layer.activation)) return nullptr;
  call.batch = 1;
  Array x, y;
  if (!x.take(call, x_object, input, "x", Use::read, Strides::any, Batched::no)) return nullptr;
  if (y_object == Py_None ? !y.make(call, output, Batched::no)
                          : !y.take(call, y_object, output, "out", Use::write, Strides::any, Batched::no))
    return nullptr;
  layer.i_desc = x.describe(input);
  layer.o_desc = y.describe(output);
  layer.axis_flags = axis_flags;
  BNNSFilterParameters options = {};
  options.n_threads = static_cast<size_t>(threads);
  if (!call.run(input, [&] { return BNNSDirectApplyActivationBatch(&layer, &options, 1, 0, 0); }))
    return nullptr;
  return y.result();
}

}  // namespace

PyMethodDef activation_methods[] = {
    {"activation_create", activation_create, METH_VARARGS, nullptr},
    {"activation_apply", as_method(activation_apply), METH_FASTCALL, nullptr},
    {"activation_backward", as_method(activation_backward), METH_FASTCALL, nullptr},
    {"activation_direct", activation_direct, METH_VARARGS, nullptr},
    {},
};

}  // namespace obn::door
