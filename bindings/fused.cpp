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
// asks for its gradient. A first layer without weights has those from kFirstOfNorm on.
enum { kFirstOfNorm = 2, kParameters = 4 };
struct Parameter {
  int operand;
  const char* name;
};
constexpr Parameter kParameterList[kParameters] = {{kWeights, "weights_gradient"},
                                                   {kBias, "bias_gradient"},
                                                   {kSecond + kBeta, "beta_gradient"},
                                                   {kSecond + kGamma, "gamma_gradient"}};

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

// The inputs of a call.
struct Inputs {
  Array arrays[kMaxInputs];
  std::array<Place, kMaxInputs> places = {};
  bool any = false;

  // False with an exception.
  bool take(Call& call, PyObject* const* objects, bool optional) {
    const unsigned flags = call.flags();
    for (int k = 0; k < inputs_of(flags); ++k) {
      if (optional && objects[k] == Py_None) continue;
      if (!arrays[k].take(call, objects[k], call.operand(k), input_name(flags, k), Use::read, Strides::as_operand,
                          batched_of(flags, k)))
        return false;
      places[k] = arrays[k].place();
      any = true;
    }
    return true;
  }
};

// Several arrays as the C interface takes them.
struct Pointers {
  const void* data[kMaxInputs];
  size_t strides[kMaxInputs];

  explicit Pointers(const std::array<Place, kMaxInputs>& places) {
    for (int k = 0; k < kMaxInputs; ++k) {
      data[k] = places[k].data;
      strides[k] = places[k].stride;
    }
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
  const int training = call.truth(arguments[2], "training");
  if (training < 0 || !(training ? call.claim() : call.share())) return nullptr;
  Inputs x;
  Array y;
  if (!x.take(call, arguments + 3, false)) return nullptr;
  if (call.batch < 0 && arguments[1] == Py_None) call.batch = 1;
  if (!y.take_or_make(call, arguments[1], call.operand(kResult), "out")) return nullptr;
  auto apply = [handle = call.handle(), batch = samples_of(call), flags, x = x.places, y = y.place(), training] {
    if (flags & kIsWeighted)
      return BNNSFusedFilterApplyBatch(handle, batch, x[0].data, x[0].stride, y.data, y.stride, training);
    Pointers in(x);
    return BNNSFusedFilterApplyMultiInputBatch(handle, batch, static_cast<size_t>(inputs_of(flags)), in.data,
                                               in.strides, y.data, y.stride, training);
  };
  if (!call.perform(items_of(call), apply)) return nullptr;
  if (training && !is_recording()) call.keep();
  return y.result();
}

// filter, y or None, grad_output, accumulate (bit k: gradient k of those that follow), then the inputs, each or None,
// then the gradients: those of the inputs; of weights and bias, if there is one input; of beta and gamma
PyObject* fused_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 4) return PyErr_Format(PyExc_TypeError, "fused_backward takes at least 4 arguments; got %zd", count);
  Call call(module, arguments[0], Family::fused);
  if (!call.ok() || !call.claim() || !call.use_kept()) return nullptr;
  const unsigned flags = call.flags();
  const int inputs = inputs_of(flags);
  const int first = inputs == 1 ? 0 : int{kFirstOfNorm};
  const int gradients = inputs + kParameters - first;
  if (!check_count("fused_backward", count, 4 + inputs + gradients)) return nullptr;
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

  constexpr const char* kNames[kMaxInputs] = {"a_gradient", "b_gradient", "c_gradient"};
  Target dx[kMaxInputs];
  std::array<Described, kMaxInputs> dx_described;
  for (int k = 0; k < inputs; ++k) {
    const char* name = inputs == 1 ? "input_gradient" : kNames[k];
    const bool exists = !is_constant(flags, k);
    if (!dx[k].take(call, objects[k], call.operand(k), name, accumulate >> k & 1, exists, batched_of(flags, k)))
      return nullptr;
    dx_described[k] = dx[k].described();
    if (dx_described[k].exists && !exists)
      return PyErr_Format(call.state()->layer_apply_error,
                          "[%U] %s: expected None, since a constant has no gradient; got an array", call.name(), name);
  }
  objects += inputs;

  Target deltas[kParameters];
  std::array<Described, kParameters> deltas_described;
  for (int k = first; k < kParameters; ++k) {
    const Parameter& parameter = kParameterList[k];
    PyObject* target = objects[k - first];
    if (k < kFirstOfNorm && !(flags & kIsWeighted)) {
      if (target == Py_None || PyBool_Check(target)) continue;
      return PyErr_Format(call.state()->layer_apply_error,
                          "[%U] %s: expected None, since arithmetic has no weights; got an array", call.name(),
                          parameter.name);
    }
    const bool adds = accumulate >> (inputs + k - first) & 1, exists = flags & given(k);
    if (!deltas[k].take(call, target, call.operand(parameter.operand), parameter.name, adds, exists, Batched::no))
      return nullptr;
    deltas_described[k] = deltas[k].described();
  }

  auto apply = [handle = call.handle(), batch = samples_of(call), flags, has_x = x.any, x = x.places, y = y.place(),
                dy = dy.described(output), dx = dx_described, deltas = deltas_described]() mutable {
    BNNSNDArrayDescriptor* parameters[kParameters];
    for (int k = 0; k < kParameters; ++k) parameters[k] = deltas[k].get();
    if (flags & kIsWeighted)
      return BNNSFusedFilterApplyBackwardBatch(handle, batch, x[0].data, x[0].stride, dx[0].get(), dx[0].stride, y.data,
                                               y.stride, dy.get(), dy.stride, parameters);
    Pointers in(x);
    BNNSNDArrayDescriptor* to[kMaxInputs];
    size_t strides[kMaxInputs];
    for (int k = 0; k < kMaxInputs; ++k) {
      to[k] = &dx[k].descriptor;  // without data: not wanted
      strides[k] = dx[k].stride;
    }
    return BNNSFusedFilterApplyBackwardMultiInputBatch(
        handle, batch, static_cast<size_t>(inputs_of(flags)), has_x ? in.data : nullptr, has_x ? in.strides : nullptr,
        to, strides, y.data, y.stride, dy.get(), dy.stride, parameters + kFirstOfNorm);
  };
  if (!call.perform(items_of(call), apply)) return nullptr;
  PyObject* results = PyTuple_New(gradients);
  for (int k = 0; results && k < gradients; ++k)
    PyTuple_SetItem(results, k, (k < inputs ? dx[k] : deltas[first + k - inputs]).result());
  return results;
}

// filter, batch, and what the library says about them
PyObject* bytes_of(PyObject* module, PyObject* const* arguments, Py_ssize_t count,
                   size_t (*question)(BNNSFilter, size_t)) {
  if (!check_count("fused bytes", count, 2)) return nullptr;
  Call call(module, arguments[0], Family::fused);
  if (!call.ok()) return nullptr;
  const size_t batch = PyLong_AsSize_t(arguments[1]);
  if (batch == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
  return call.answer(question(call.handle(), batch));
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
