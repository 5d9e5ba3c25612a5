// Calls of openbnns/arithmetic.py.
#include "arithmetic.h"

#include <cstddef>

namespace obn::door {

const char* input_name(unsigned flags, int k) {
  constexpr const char* kNames[kMaxInputs] = {"a", "b", "c"};
  return inputs_of(flags) == 1 ? "x" : kNames[k];
}

// function, activation, then (operand, descriptor type) of every input and of the output
bool parse_arithmetic(FilterObject* filter, PyObject* tuple, Operand* operands, ArithmeticDescription* description) {
  unsigned function;
  PyObject *activation, *pairs;
  if (!PyArg_ParseTuple(tuple, "IOO!:arithmetic", &function, &activation, &PyTuple_Type, &pairs)) return false;
  const int inputs = static_cast<int>(PyTuple_Size(pairs)) - 1;
  if (inputs < 1 || inputs > kMaxInputs) {
    PyErr_Format(PyExc_ValueError, "expected one to three inputs; got %d", inputs);
    return false;
  }
  const BNNSNDArrayDescriptor* descriptors[kArithmeticOperands] = {};
  BNNSDescriptorType types[kArithmeticOperands] = {};
  description->inputs = inputs;
  description->flags = static_cast<unsigned>(inputs);
  for (int i = 0; i <= inputs; ++i) {
    const int k = i < inputs ? i : kArithmeticOutput;
    PyObject* operand;
    unsigned type;
    if (!PyArg_ParseTuple(PyTuple_GetItem(pairs, i), "OI:operand", &operand, &type) || !operands[k].parse(operand))
      return false;
    descriptors[k] = &operands[k].descriptor;
    types[k] = static_cast<BNNSDescriptorType>(type);
    if (type == BNNSConstant) description->flags |= 1u << (4 + k);
    if (type == BNNSSample) description->flags |= 1u << (8 + k);
  }
  BNNSLayerParametersArithmetic& layer = description->layer;
  layer.arithmetic_function = static_cast<BNNSArithmeticFunction>(function);
  const BNNSNDArrayDescriptor& output = *descriptors[kArithmeticOutput];
  const BNNSDescriptorType output_type = types[kArithmeticOutput];
  if (inputs == 1) {
    description->unary = {*descriptors[0], types[0], output, output_type};
    layer.arithmetic_function_fields = &description->unary;
  } else if (inputs == 2) {
    description->binary = {*descriptors[0], types[0], *descriptors[1], types[1], output, output_type};
    layer.arithmetic_function_fields = &description->binary;
  } else {
    description->ternary = {*descriptors[0], types[0], *descriptors[1], types[1], *descriptors[2], types[2], output,
                            output_type};
    layer.arithmetic_function_fields = &description->ternary;
  }
  return parse_activation(activation, filter, &layer.activation);
}

namespace {

// name, description, threads
PyObject* arithmetic_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *tuple;
  Py_ssize_t threads;
  if (!PyArg_ParseTuple(arguments, "UOn:arithmetic_create", &name, &tuple, &threads)) return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::arithmetic);
  ArithmeticDescription description;
  if (!filter.get() || !parse_arithmetic(filter.get(), tuple, filter->operands, &description)) return nullptr;
  filter->flags = description.flags;
  BNNSFilterParameters options = {};
  options.n_threads = static_cast<size_t>(threads);
  return filter.open(BNNSFilterCreateLayerArithmetic(&description.layer, &options));
}

// Samples of a call; one where no array has a batch axis.
size_t samples_of(const Call& call) { return call.batch < 0 ? 1 : static_cast<size_t>(call.batch); }

size_t items_of(const Call& call) {
  return samples_of(call) * static_cast<size_t>(call.operand(kArithmeticOutput).items);
}

// filter, out or None, then the inputs
PyObject* arithmetic_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1) return PyErr_Format(PyExc_TypeError, "arithmetic_apply takes a filter; got nothing");
  Call call(module, arguments[0], Family::arithmetic);
  if (!call.ok()) return nullptr;
  const unsigned flags = call.flags();
  const int inputs = inputs_of(flags);
  if (!check_count("arithmetic_apply", count, 2 + inputs)) return nullptr;
  Array x[kMaxInputs], y;
  const void* data[kMaxInputs];
  size_t strides[kMaxInputs];
  for (int k = 0; k < inputs; ++k) {
    if (!x[k].take(call, arguments[2 + k], call.operand(k), input_name(flags, k), Use::read, Strides::as_operand,
                   batched_of(flags, k)))
      return nullptr;
    data[k] = x[k].data();
    strides[k] = x[k].batch_stride();
  }
  if (call.batch < 0 && arguments[1] == Py_None) call.batch = 1;
  if (!y.take_or_make(call, arguments[1], call.operand(kArithmeticOutput), "out",
                      batched_of(flags, kArithmeticOutput)))
    return nullptr;
  if (!call.run(items_of(call), [&] {
        return BNNSArithmeticFilterApplyBatch(call.handle(), samples_of(call), static_cast<size_t>(inputs), data,
                                              strides, y.data(), y.batch_stride());
      }))
    return nullptr;
  return y.result();
}

// filter, y or None, grad_output, accumulate (bit k: input k), then the inputs, each or None, then their gradients
PyObject* arithmetic_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1) return PyErr_Format(PyExc_TypeError, "arithmetic_backward takes a filter; got nothing");
  Call call(module, arguments[0], Family::arithmetic);
  if (!call.ok()) return nullptr;
  const unsigned flags = call.flags();
  const int inputs = inputs_of(flags);
  if (!check_count("arithmetic_backward", count, 4 + 2 * inputs)) return nullptr;
  const long accumulate = PyLong_AsLong(arguments[3]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  PyObject* const* input_objects = arguments + 4;
  PyObject* const* target_objects = input_objects + inputs;
  const Operand& output = call.operand(kArithmeticOutput);
  const Batched output_batched = batched_of(flags, kArithmeticOutput);

  Array x[kMaxInputs], y, dy;
  const void* data[kMaxInputs];
  size_t strides[kMaxInputs];
  for (int k = 0; k < inputs; ++k) {
    if (input_objects[k] != Py_None && !x[k].take(call, input_objects[k], call.operand(k), input_name(flags, k),
                                                  Use::read, Strides::as_operand, batched_of(flags, k)))
      return nullptr;
    data[k] = x[k].data();
    strides[k] = x[k].batch_stride();
  }
  if (arguments[1] != Py_None &&
      !y.take(call, arguments[1], output, "y", Use::read, Strides::as_operand, output_batched))
    return nullptr;
  if (!dy.take(call, arguments[2], output, "grad_output", Use::read, Strides::any, output_batched)) return nullptr;

  constexpr const char* kNames[kMaxInputs] = {"a_gradient", "b_gradient", "c_gradient"};
  Target targets[kMaxInputs];
  BNNSNDArrayDescriptor nothing = {};  // without data: not wanted
  BNNSNDArrayDescriptor* descriptors[kMaxInputs];
  size_t target_strides[kMaxInputs];
  for (int k = 0; k < inputs; ++k) {
    const char* name = inputs == 1 ? "input_gradient" : kNames[k];
    const bool exists = !is_constant(flags, k);
    if (!targets[k].take(call, target_objects[k], call.operand(k), name, accumulate >> k & 1, exists,
                         batched_of(flags, k)))
      return nullptr;
    descriptors[k] = targets[k].descriptor();
    if (descriptors[k] && !exists)
      return PyErr_Format(call.state()->layer_apply_error,
                          "[%U] %s: expected None, since a constant has no gradient; got an array", call.name(), name);
    if (!descriptors[k]) descriptors[k] = &nothing;
    target_strides[k] = targets[k].batch_stride();
  }
  BNNSNDArrayDescriptor dy_descriptor = dy.describe(output);
  if (!call.run(items_of(call), [&] {
        return BNNSArithmeticFilterApplyBackwardBatch(
            call.handle(), samples_of(call), static_cast<size_t>(inputs), data, strides, descriptors, target_strides,
            y.data(), y.batch_stride(), &dy_descriptor, dy.batch_stride());
      }))
    return nullptr;
  PyObject* results = PyTuple_New(inputs);
  for (int k = 0; results && k < inputs; ++k) PyTuple_SetItem(results, k, targets[k].result());
  return results;
}

}  // namespace

PyMethodDef arithmetic_methods[] = {
    {"arithmetic_create", arithmetic_create, METH_VARARGS, nullptr},
    {"arithmetic_apply", as_method(arithmetic_apply), METH_FASTCALL, nullptr},
    {"arithmetic_backward", as_method(arithmetic_backward), METH_FASTCALL, nullptr},
    {},
};

}  // namespace obn::door
