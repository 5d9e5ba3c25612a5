// Calls of openbnns/clip.py. Arrays are whole ones, without a batch axis; bit k of axis_flags is NumPy's axis k.
#include <cstddef>
#include <memory>
#include <new>

#include "array.h"

namespace obn::door {
namespace {

enum { kInput, kOutput };  // operands

// A call from one whole array to another, made if it is None. NULL with an exception.
template <class Function>
PyObject* run_whole(PyObject* module, PyObject* name, PyObject* const* operands, PyObject* x_object, PyObject* y_object,
                    const Function& function) {
  Call call(module, name);
  NewFilter keeper(call, Family::activation);  // never opened: it holds the operands for the time of the call
  if (!keeper.parse_operands(operands, 2)) return nullptr;
  const Operand &input = keeper->operands[kInput], &output = keeper->operands[kOutput];
  Array x, y;
  if (!x.take(call, x_object, input, "x", Use::read, Strides::any, Batched::no) ||
      !y.take_or_make_whole(call, y_object, output, "out"))
    return nullptr;
  const BNNSNDArrayDescriptor from = x.describe_first_major(input);
  BNNSNDArrayDescriptor to = y.describe_first_major(output);
  call.batch = 1;
  if (!call.run(input, [&] { return function(&to, &from); })) return nullptr;
  return y.result();
}

// name, input, output, x, out or None, low, high
PyObject* clip_value(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[2], *x_object, *y_object;
  float low, high;
  if (!PyArg_ParseTuple(arguments, "UOOOOff:clip_value", &name, &operands[kInput], &operands[kOutput], &x_object,
                        &y_object, &low, &high))
    return nullptr;
  return run_whole(module, name, operands, x_object, y_object,
                   [=](auto* to, auto* from) { return BNNSClipByValue(to, from, low, high); });
}

// name, input, output, x, out or None, threshold, axis_flags
PyObject* clip_norm(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[2], *x_object, *y_object;
  float threshold;
  unsigned axis_flags;
  if (!PyArg_ParseTuple(arguments, "UOOOOfI:clip_norm", &name, &operands[kInput], &operands[kOutput], &x_object,
                        &y_object, &threshold, &axis_flags))
    return nullptr;
  return run_whole(module, name, operands, x_object, y_object,
                   [=](auto* to, auto* from) { return BNNSClipByNorm(to, from, threshold, axis_flags); });
}

// One of several arrays of a call.
struct Item {
  Operand input = {}, output = {};
  Array x, y;
  BNNSNDArrayDescriptor from = {}, to = {};

  Item() = default;
  Item(const Item&) = delete;
  Item& operator=(const Item&) = delete;
  ~Item() {
    input.release();
    output.release();
  }
};

// name, list of (input, output, x, out or None), threshold, global_norm
PyObject* clip_global_norm(PyObject* module, PyObject* arguments) {
  PyObject *name, *list;
  float threshold, global_norm;
  if (!PyArg_ParseTuple(arguments, "UO!ff:clip_global_norm", &name, &PyList_Type, &list, &threshold, &global_norm))
    return nullptr;
  Call call(module, name);
  const size_t count = static_cast<size_t>(PyList_Size(list));
  std::unique_ptr<Item[]> items(new (std::nothrow) Item[count]);
  std::unique_ptr<BNNSNDArrayDescriptor*[]> to(new (std::nothrow) BNNSNDArrayDescriptor*[count]);
  std::unique_ptr<const BNNSNDArrayDescriptor*[]> from(new (std::nothrow) const BNNSNDArrayDescriptor*[count]);
  if (!items || !to || !from) return PyErr_NoMemory();
  size_t values = 0;
  for (size_t i = 0; i < count; ++i) {
    Item& item = items[i];
    PyObject *input, *output, *x, *y;
    char x_name[32], y_name[32];
    PyOS_snprintf(x_name, sizeof x_name, "xs[%zu]", i);
    PyOS_snprintf(y_name, sizeof y_name, "out[%zu]", i);
    if (!PyArg_ParseTuple(PyList_GetItem(list, static_cast<Py_ssize_t>(i)), "OOOO:clip_global_norm", &input, &output,
                          &x, &y) ||
        !item.input.parse(input) || !item.output.parse(output) ||
        !item.x.take(call, x, item.input, x_name, Use::read, Strides::any, Batched::no) ||
        !item.y.take_or_make_whole(call, y, item.output, y_name))
      return nullptr;
    item.from = item.x.describe_first_major(item.input);
    item.to = item.y.describe_first_major(item.output);
    from[i] = &item.from;
    to[i] = &item.to;
    values += static_cast<size_t>(item.input.items);
  }
  if (!call.run(values, [&] { return BNNSClipByGlobalNorm(to.get(), from.get(), count, threshold, global_norm); }))
    return nullptr;
  PyObject* results = PyList_New(static_cast<Py_ssize_t>(count));
  if (!results) return nullptr;
  for (size_t i = 0; i < count; ++i) PyList_SetItem(results, static_cast<Py_ssize_t>(i), items[i].y.result());
  return results;
}

// name, input, output, x, out or None, axis_flags
PyObject* clip_compute_norm(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[2], *x_object, *y_object;
  unsigned axis_flags;
  if (!PyArg_ParseTuple(arguments, "UOOOOI:clip_compute_norm", &name, &operands[kInput], &operands[kOutput], &x_object,
                        &y_object, &axis_flags))
    return nullptr;
  return run_whole(module, name, operands, x_object, y_object,
                   [=](auto* to, auto* from) { return BNNSComputeNorm(to, from, BNNSL2Norm, axis_flags); });
}

// name, input, output (both packed), x, y, grad_output, input_gradient or None for a new one, axis_flags, accumulate
PyObject* clip_norm_backward(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[2], *x_object, *y_object, *dy_object, *dx_object;
  unsigned axis_flags;
  int accumulate;
  if (!PyArg_ParseTuple(arguments, "UOOOOOOIp:clip_norm_backward", &name, &operands[kInput], &operands[kOutput],
                        &x_object, &y_object, &dy_object, &dx_object, &axis_flags, &accumulate))
    return nullptr;
  Call call(module, name);
  NewFilter keeper(call, Family::activation);
  if (!keeper.parse_operands(operands, 2)) return nullptr;
  const Operand &input = keeper->operands[kInput], &output = keeper->operands[kOutput];
  Array x, y, dy, dx;  // the strides of dx are also those of x, and the strides of dy those of y
  if (!x.take(call, x_object, input, "x", Use::read, Strides::as_operand, Batched::no) ||
      !y.take(call, y_object, output, "y", Use::read, Strides::as_operand, Batched::no) ||
      !dy.take(call, dy_object, output, "grad_output", Use::read, Strides::as_operand, Batched::no))
    return nullptr;
  if (dx_object == Py_None ? !dx.make(call, input, Batched::no)
                           : !dx.take(call, dx_object, input, "input_gradient", Use::write, Strides::as_operand,
                                      Batched::no))
    return nullptr;
  const BNNSNDArrayDescriptor from = dy.describe_first_major(output);
  BNNSNDArrayDescriptor to = dx.describe_first_major(input);
  if (accumulate) to.flags = BNNSNDArrayFlagBackpropAccumulate;
  call.batch = 1;
  if (!call.run(input, [&] {
        return BNNSComputeNormBackward(x.data(), &to, y.data(), &from, BNNSL2Norm, axis_flags);
      }))
    return nullptr;
  return dx.result();
}

}  // namespace

PyMethodDef clip_methods[] = {
    {"clip_value", clip_value, METH_VARARGS, nullptr},
    {"clip_norm", clip_norm, METH_VARARGS, nullptr},
    {"clip_global_norm", clip_global_norm, METH_VARARGS, nullptr},
    {"clip_compute_norm", clip_compute_norm, METH_VARARGS, nullptr},
    {"clip_norm_backward", clip_norm_backward, METH_VARARGS, nullptr},
    {},
};

}  // namespace obn::door
