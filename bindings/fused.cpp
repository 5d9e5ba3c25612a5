// Calls of openbnns/fused.py. The two or three layers come as the descriptions of their own families.
#include <array>
#include <cstddef>

#include "arithmetic.h"
#include "normalization.h"
#include "pooling.h"
#include "quantization.h"
#include "weighted.h"

namespace obn::door {
namespace {

// Operands: those of the first layer, the output of the last, the parameters of the second.
enum { kResult = kWeightedOperands, kSecond };

static_assert(kArithmeticOperands <= kResult);
static_assert(kSecond + kNormalizationOperands <= kMaxOperands);
static_assert(kSecond + kQuantizationOperands <= kMaxOperands);

// Flags: those of an arithmetic description, behind them our own. A first layer with weights has one input, a sample.
enum { kOneSample = 1 | 1 << 8, kIsWeighted = 1 << 12, kFirstParameter = 13 };

// Gradients of parameters in the order of the C interface. Flag kFirstParameter + k: parameter k was given, so True
// asks for its gradient. A first layer without weights begins at kFirstOfNorm.
enum { kFirstOfNorm = 2, kParameters = 4 };
struct Parameter {
  int operand;
  const char* name;
};
constexpr Parameter kParameterList[kParameters] = {{kWeights, "parameter_gradients, weights"},
                                                   {kBias, "parameter_gradients, bias"},
                                                   {kSecond + kBeta, "parameter_gradients, beta"},
                                                   {kSecond + kGamma, "parameter_gradients, gamma"}};

unsigned given(int parameter) { return 1u << (kFirstParameter + parameter); }

// The first layer of a filter being made; its block stays here until the native filter exists.
struct First {
  ConvolutionDescription convolution;
  FullyConnectedDescription fully_connected;
  ArithmeticDescription arithmetic;
  BNNSFilterType type = BNNSConvolution;
  const void* block = nullptr;
  int output = kOutput;  // its operand

  // False with an exception.
  bool parse(Call& call, FilterObject* filter, unsigned kind, PyObject* tuple, bool copy) {
    if (kind == BNNSArithmetic) {
      if (!parse_arithmetic(filter, tuple, filter->operands, &arithmetic)) return false;
      filter->flags = arithmetic.flags;
      type = BNNSArithmetic;
      block = &arithmetic.layer;
      output = kArithmeticOutput;
      return true;
    }
    if (kind == BNNSFullyConnected) {
      if (!parse_fully_connected(call, filter, tuple, copy, &fully_connected)) return false;
      type = BNNSFullyConnected;
      block = &fully_connected.layer;
    } else {
      if (!parse_convolution(call, filter, tuple, copy, &convolution)) return false;
      type = convolution.type;
      block = &convolution.layer;
    }
    const unsigned theirs = filter->flags;
    filter->flags = kOneSample | kIsWeighted;
    if (theirs & kHasWeightsGradient) filter->flags |= given(0);
    if (theirs & kHasBias) filter->flags |= given(1);
    return true;
  }
};

// name, type of the first layer, its description, output, type of the second layer, its description, description of a
// pooling behind them or None, winograd (1, 0, or -1: the library's setting), threads, copy_parameters
PyObject* fused_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *first_tuple, *output, *second_tuple, *third_tuple;
  unsigned first_kind, second_kind;
  Py_ssize_t threads;
  int winograd, copy_parameters;
  if (!PyArg_ParseTuple(arguments, "UIO!OIO!Oinp:fused_create", &name, &first_kind, &PyTuple_Type, &first_tuple,
                        &output, &second_kind, &PyTuple_Type, &second_tuple, &third_tuple, &winograd, &threads,
                        &copy_parameters))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::fused);
  First first;
  if (!filter.get() || !first.parse(call, filter.get(), first_kind, first_tuple, copy_parameters) ||
      !filter->operands[kResult].parse(output))
    return nullptr;

  NormalizationDescription norm;
  QuantizationDescription quantizer;
  const BNNSNDArrayDescriptor& between = filter->operands[first.output].descriptor;
  const BNNSNDArrayDescriptor& result = filter->operands[kResult].descriptor;
  Operand* operands = &filter->operands[kSecond];
  BNNSLayerParametersPooling pooling = {};
  BNNSFilterType types[3] = {first.type, BNNSQuantization, OBN_FILTER_POOLING};
  const void* blocks[3] = {first.block, &quantizer.layer, &pooling};
  const bool has_pooling = third_tuple != Py_None;
  if (has_pooling) {
    if (!parse_pooling(filter.get(), third_tuple, &pooling)) return nullptr;
    pooling.i_desc = between;
    pooling.o_desc = result;
  }
  if (second_kind == BNNSQuantization) {
    if (!parse_quantization(call, filter.get(), second_tuple, copy_parameters, operands, &quantizer)) return nullptr;
    quantizer.layer.i_desc = between;
    quantizer.layer.o_desc = result;
  } else {
    if (!parse_normalization(call, filter.get(), second_tuple, copy_parameters, operands, &norm)) return nullptr;
    norm.layer.i_desc = between;
    norm.layer.o_desc = has_pooling ? between : result;
    types[1] = norm.type;
    blocks[1] = &norm.layer;
    if (norm.has_beta) filter->flags |= given(kFirstOfNorm);
    if (norm.has_gamma) filter->flags |= given(kFirstOfNorm + 1);
  }
  BNNSFilterParameters options = {};
  if (!copy_parameters) options.flags = BNNSFlagsUseClientPtr;
  options.n_threads = static_cast<size_t>(threads);
  BNNSFilter handle = BNNSFilterCreateFusedLayer(has_pooling ? 3 : 2, types, blocks, &options);
  if (handle && winograd >= 0) obn_filter_set_winograd(handle, winograd);
  return filter.open(handle);
}

// Samples of a call; one where no array has a batch axis.
size_t samples_of(const Call& call) { return call.batch < 0 ? 1 : static_cast<size_t>(call.batch); }

size_t items_of(const Call& call) {
  const Operand& result = call.operand(kResult);
  if (call.flags() & kIsWeighted) return weighted_items(call, result);
  return samples_of(call) * static_cast<size_t>(result.items);
}

// The inputs of a call as the C interface takes them.
struct Inputs {
  Array arrays[kMaxInputs];
  const void* data[kMaxInputs] = {};
  size_t strides[kMaxInputs] = {};
  bool any = false;

  // False with an exception.
  bool take(Call& call, PyObject* const* objects, bool optional) {
    const unsigned flags = call.flags();
    for (int k = 0; k < inputs_of(flags); ++k) {
      if (optional && objects[k] == Py_None) continue;
      if (!arrays[k].take(call, objects[k], call.operand(k), input_name(flags, k), Use::read, Strides::as_operand,
                          batched_of(flags, k)))
        return false;
      data[k] = arrays[k].data();
      strides[k] = arrays[k].batch_stride();
      any = true;
    }
    return true;
  }
};

// filter, out or None, training, then the inputs
PyObject* fused_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 3) return PyErr_Format(PyExc_TypeError, "fused_apply takes at least 3 arguments; got %zd", count);
  Call call(module, arguments[0], Family::fused);
  if (!call.ok()) return nullptr;
  const unsigned flags = call.flags();
  if (count - 3 != inputs_of(flags))
    return PyErr_Format(PyExc_TypeError, "[%U] expected %d arrays; got %zd", call.name(), inputs_of(flags), count - 3);
  const int training = PyObject_IsTrue(arguments[2]);
  if (training < 0 || (training && !call.claim())) return nullptr;
  Inputs x;
  Array y;
  if (!x.take(call, arguments + 3, false)) return nullptr;
  if (call.batch < 0 && arguments[1] == Py_None) call.batch = 1;
  if (!y.take_or_make(call, arguments[1], call.operand(kResult), "out")) return nullptr;
  if (flags & kIsWeighted) {
    auto apply = [handle = call.handle(), batch = samples_of(call), x = x.arrays[0].place(), y = y.place(), training] {
      return BNNSFusedFilterApplyBatch(handle, batch, x.data, x.stride, y.data, y.stride, training);
    };
    return call.perform(items_of(call), apply) ? y.result() : nullptr;
  }
  if (!call.run(items_of(call), [&] {
        return BNNSFusedFilterApplyMultiInputBatch(call.handle(), samples_of(call),
                                                   static_cast<size_t>(inputs_of(flags)), x.data, x.strides, y.data(),
                                                   y.batch_stride(), training);
      }))
    return nullptr;
  return y.result();
}

PyObject* results_of(const Target* targets, int count) {
  PyObject* results = PyTuple_New(count);
  for (int k = 0; results && k < count; ++k) PyTuple_SetItem(results, k, targets[k].result());
  return results;
}

// filter, y or None, grad_output, accumulate (bit k: gradient k of those that follow), then the inputs, each or None,
// then the gradients: those of the inputs, those of the parameters
PyObject* fused_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 4) return PyErr_Format(PyExc_TypeError, "fused_backward takes at least 4 arguments; got %zd", count);
  Call call(module, arguments[0], Family::fused);
  if (!call.ok() || !call.claim()) return nullptr;
  const unsigned flags = call.flags();
  const int inputs = inputs_of(flags);
  const int first_parameter = flags & kIsWeighted ? 0 : int{kFirstOfNorm};
  const int parameters = kParameters - first_parameter;
  if (!check_count("fused_backward", count, 4 + 2 * inputs + parameters)) return nullptr;
  const long accumulate = PyLong_AsLong(arguments[3]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  PyObject* const* objects = arguments + 4;
  const Operand& output = call.operand(kResult);

  Inputs x;
  Array y, dy;
  if (!x.take(call, objects, true) || !y.take_optional(call, arguments[1], output, "y", Use::read) ||
      !dy.take(call, arguments[2], output, "grad_output", Use::read, Strides::any))
    return nullptr;
  objects += inputs;

  constexpr const char* kNames[kMaxInputs] = {"input_gradients, a", "input_gradients, b", "input_gradients, c"};
  Target dx[kMaxInputs];
  BNNSNDArrayDescriptor nothing = {};  // without data: not wanted
  BNNSNDArrayDescriptor* dx_descriptors[kMaxInputs] = {};
  size_t dx_strides[kMaxInputs] = {};
  for (int k = 0; k < inputs; ++k) {
    const char* name = inputs == 1 ? "input_gradient" : kNames[k];
    const bool exists = !is_constant(flags, k);
    if (!dx[k].take(call, objects[k], call.operand(k), name, accumulate >> k & 1, exists, batched_of(flags, k)))
      return nullptr;
    dx_descriptors[k] = dx[k].descriptor();
    if (dx_descriptors[k] && !exists)
      return PyErr_Format(call.state()->layer_apply_error,
                          "[%U] %s: expected None, since a constant has no gradient; got an array", call.name(), name);
    if (!dx_descriptors[k] && !(flags & kIsWeighted)) dx_descriptors[k] = &nothing;
    dx_strides[k] = dx[k].batch_stride();
  }
  objects += inputs;

  Target deltas[kParameters];
  BNNSNDArrayDescriptor* delta_descriptors[kParameters] = {};
  for (int k = 0; k < parameters; ++k) {
    const Parameter& parameter = kParameterList[first_parameter + k];
    const bool adds = accumulate >> (inputs + k) & 1, exists = flags & given(first_parameter + k);
    if (!deltas[k].take(call, objects[k], call.operand(parameter.operand), parameter.name, adds, exists, Batched::no))
      return nullptr;
    delta_descriptors[k] = deltas[k].descriptor();
  }

  if (flags & kIsWeighted) {
    std::array<Described, kParameters> described;
    for (int k = 0; k < kParameters; ++k) described[k] = deltas[k].described();
    auto apply = [handle = call.handle(), batch = samples_of(call), x = x.arrays[0].place(), y = y.place(),
                  dy = dy.described(output), dx = dx[0].described(), described]() mutable {
      BNNSNDArrayDescriptor* pointers[kParameters];
      for (int k = 0; k < kParameters; ++k) pointers[k] = described[k].get();
      return BNNSFusedFilterApplyBackwardBatch(handle, batch, x.data, x.stride, dx.get(), dx.stride, y.data, y.stride,
                                               dy.get(), dy.stride, pointers);
    };
    if (!call.perform(items_of(call), apply)) return nullptr;
  } else {
    BNNSNDArrayDescriptor dy_descriptor = dy.describe(output);
    if (!call.run(items_of(call), [&] {
          return BNNSFusedFilterApplyBackwardMultiInputBatch(
              call.handle(), samples_of(call), static_cast<size_t>(inputs), x.any ? x.data : nullptr,
              x.any ? x.strides : nullptr, dx_descriptors, dx_strides, y.data(), y.batch_stride(), &dy_descriptor,
              dy.batch_stride(), delta_descriptors);
        }))
      return nullptr;
  }
  return Py_BuildValue("NN", results_of(dx, inputs), results_of(deltas, parameters));
}

// filter, batch, and what the library says about them
PyObject* bytes_of(PyObject* module, PyObject* const* arguments, Py_ssize_t count,
                   size_t (*question)(BNNSFilter, size_t)) {
  if (!check_count("fused bytes", count, 2)) return nullptr;
  Call call(module, arguments[0], Family::fused);
  if (!call.ok()) return nullptr;
  const size_t batch = PyLong_AsSize_t(arguments[1]);
  if (batch == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
  return PyLong_FromSize_t(question(call.handle(), batch));
}

PyObject* fused_work_bytes(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return bytes_of(module, arguments, count, obn_filter_work_bytes);
}

PyObject* fused_kept_bytes(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return bytes_of(module, arguments, count, obn_filter_kept_bytes);
}

}  // namespace

PyMethodDef fused_methods[] = {
    {"fused_create", fused_create, METH_VARARGS, nullptr},
    {"fused_apply", as_method(fused_apply), METH_FASTCALL, nullptr},
    {"fused_backward", as_method(fused_backward), METH_FASTCALL, nullptr},
    {"fused_work_bytes", as_method(fused_work_bytes), METH_FASTCALL, nullptr},
    {"fused_kept_bytes", as_method(fused_kept_bytes), METH_FASTCALL, nullptr},
    {},
};

}  // namespace obn::door
