// Calls of openbnns/quantization.py.
#include "quantization.h"

#include <cstddef>

namespace obn::door {

// function, axis mask, the operands of scale and bias, then scale and bias, each an array or None
bool parse_quantization(Call& call, FilterObject* filter, PyObject* tuple, bool copy, Operand* operands,
                        QuantizationDescription* description) {
  unsigned function;
  Py_ssize_t mask;
  PyObject *tuples[kQuantizationOperands], *scale, *bias;
  if (!PyArg_ParseTuple(tuple, "InOOOO:quantization", &function, &mask, &tuples[kQuantizationScale],
                        &tuples[kQuantizationBias], &scale, &bias))
    return false;
  BNNSLayerParametersQuantization& layer = description->layer;
  layer.function = static_cast<BNNSQuantizerFunction>(function);
  layer.axis_mask = static_cast<size_t>(mask);
  for (int i = 0; i < kQuantizationOperands; ++i)
    if (!operands[i].parse(tuples[i])) return false;
  return (scale == Py_None || take_parameter(call, filter, scale, operands[kQuantizationScale], "scale", copy,
                                             description->scale, &layer.scale)) &&
         (bias == Py_None || take_parameter(call, filter, bias, operands[kQuantizationBias], "bias", copy,
                                            description->bias, &layer.bias));
}

namespace {

enum { kInput, kOutput, kFactors };  // operands; behind the last those of a description

static_assert(kFactors + kQuantizationOperands <= kMaxOperands);

// name, input, output, description, threads, x, out or None; the arrays are one sample, without a batch axis
PyObject* quantization_direct(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kFactors], *tuple, *x_object, *y_object;
  Py_ssize_t threads;
  if (!PyArg_ParseTuple(arguments, "UOOOnOO:quantization_direct", &name, &operands[kInput], &operands[kOutput], &tuple,
                        &threads, &x_object, &y_object))
    return nullptr;
  Call call(module, name);
  NewFilter keeper(call, Family::activation);  // never opened: it holds the operands for the time of the call
  QuantizationDescription description;
  if (!keeper.parse_operands(operands, kFactors) ||
      !parse_quantization(call, keeper.get(), tuple, true, &keeper->operands[kFactors], &description))
    return nullptr;
  const Operand &input = keeper->operands[kInput], &output = keeper->operands[kOutput];
  call.batch = 1;
  Array x, y;
  if (!x.take(call, x_object, input, "x", Use::read, Strides::any, Batched::no)) return nullptr;
  if (y_object == Py_None ? !y.make(call, output, Batched::no)
                          : !y.take(call, y_object, output, "out", Use::write, Strides::any, Batched::no))
    return nullptr;
  description.layer.i_desc = x.describe(input);
  description.layer.o_desc = y.describe(output);
  BNNSFilterParameters options = {};
  options.n_threads = static_cast<size_t>(threads);
  if (!call.run(input, [&] { return BNNSDirectApplyQuantizer(&description.layer, &options, 1, 0, 0); }))
    return nullptr;
  return y.result();
}

}  // namespace

PyMethodDef quantization_methods[] = {
    {"quantization_direct", quantization_direct, METH_VARARGS, nullptr},
    {},
};

}  // namespace obn::door
