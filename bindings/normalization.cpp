// Calls of openbnns/normalization.py.
#include "normalization.h"

#include <cstddef>

namespace obn::door {
namespace {

enum { kInput, kOutput, kParameters };  // operands; behind the last those of a description
enum { kHasBeta = 1, kHasGamma = 2, kBorrows = 4 };  // flags

static_assert(kParameters + kNormalizationOperands <= kMaxOperands);

// Running statistics are written to in every training call, so they are never copied. None is left out.
bool take_statistic(Call& call, FilterObject* filter, PyObject* object, const Operand& operand, const char* name,
                    Array& array, BNNSNDArrayDescriptor* descriptor) {
  if (object == Py_None) return true;
  if (!array.take(call, object, operand, name, Use::write, Strides::any, Batched::no)) return false;
  *descriptor = array.describe(operand);
  return array.give_to(filter);
}

}  // namespace

// type, groups, axis, momentum, epsilon, activation, then the operands of beta, gamma and the running statistics, then
// beta, gamma, moving mean, moving variance, each an array or None
bool parse_normalization(Call& call, FilterObject* filter, PyObject* tuple, bool copy, Operand* operands,
                         NormalizationDescription* description) {
  PyObject *activation, *tuples[kNormalizationOperands], *beta, *gamma, *moving_mean, *moving_variance;
  unsigned type;
  Py_ssize_t groups, axis;
  BNNSLayerParametersNormalization& layer = description->layer;
  if (!PyArg_ParseTuple(tuple, "InnffOOOOOOOO:normalization", &type, &groups, &axis, &layer.momentum, &layer.epsilon,
                        &activation, &tuples[kBeta], &tuples[kGamma], &tuples[kMoving], &beta, &gamma, &moving_mean,
                        &moving_variance))
    return false;
  description->type = static_cast<BNNSFilterType>(type);
  layer.num_groups = static_cast<size_t>(groups);
  layer.normalization_axis = static_cast<size_t>(axis);
  for (int i = 0; i < kNormalizationOperands; ++i)
    if (!operands[i].parse(tuples[i])) return false;
  description->has_beta = beta != Py_None;
  description->has_gamma = gamma != Py_None;
  return parse_activation(activation, filter, &layer.activation) &&
         (!description->has_beta || take_parameter(call, filter, beta, operands[kBeta], "beta", copy,
                                                   description->beta, &layer.beta_desc)) &&
         (!description->has_gamma || take_parameter(call, filter, gamma, operands[kGamma], "gamma", copy,
                                                    description->gamma, &layer.gamma_desc)) &&
         take_statistic(call, filter, moving_mean, operands[kMoving], "moving_mean", description->moving_mean,
                        &layer.moving_mean_desc) &&
         take_statistic(call, filter, moving_variance, operands[kMoving], "moving_variance",
                        description->moving_variance, &layer.moving_variance_desc);
}

namespace {

// name, input, output, description, threads, copy_parameters, borrow_input
PyObject* normalization_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kParameters], *tuple;
  Py_ssize_t threads;
  int copy_parameters, borrow_input;
  if (!PyArg_ParseTuple(arguments, "UOOOnpp:normalization_create", &name, &operands[kInput], &operands[kOutput], &tuple,
                        &threads, &copy_parameters, &borrow_input))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::normalization);
  if (!filter.parse_operands(operands, kParameters)) return nullptr;
  NormalizationDescription description;
  if (!parse_normalization(call, filter.get(), tuple, copy_parameters, &filter->operands[kParameters], &description))
    return nullptr;
  if (description.has_beta) filter->flags |= kHasBeta;
  if (description.has_gamma) filter->flags |= kHasGamma;
  description.layer.i_desc = filter->operands[kInput].descriptor;
  description.layer.o_desc = filter->operands[kOutput].descriptor;
  BNNSFilterParameters options = {};
  if (!copy_parameters) options.flags = BNNSFlagsUseClientPtr;
  options.n_threads = static_cast<size_t>(threads);
  BNNSFilter handle = BNNSFilterCreateLayerNormalization(description.type, &description.layer, &options);
  if (handle && borrow_input) {
    obn_filter_set_borrow_input(handle, 1);
    filter->flags |= kBorrows;
  }
  return filter.open(handle);
}

// filter, x, out or None, training
PyObject* normalization_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("normalization_apply", count, 4)) return nullptr;
  Call call(module, arguments[0], Family::normalization);
  if (!call.ok()) return nullptr;
  int training = call.truth(arguments[3], "training");
  if (training < 0 || !(training ? call.claim() : call.share())) return nullptr;
  Array x, y;
  if (!x.take(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !y.take_or_make(call, arguments[2], call.operand(kOutput), "out"))
    return nullptr;
  auto apply = [handle = call.handle(), batch = call.samples(), x = x.place(), y = y.place(), training] {
    return BNNSNormalizationFilterApplyBatch(handle, batch, x.data, x.stride, y.data, y.stride, training);
  };
  if (!call.perform(call.operand(kInput), apply))
    return nullptr;
  // an empty batch leaves what was kept before; what is recorded is kept by its program
  if (training && call.batch > 0 && !is_recording()) {
    call.keep();
    if (call.flags() & kBorrows && !x.lend_to(call.filter())) return nullptr;
  }
  return y.result();
}

// filter, y or None, grad_output, input_gradient, beta_gradient, gamma_gradient, accumulate (bit 0 input, bit 1 beta,
// bit 2 gamma)
PyObject* normalization_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("normalization_backward", count, 7)) return nullptr;
  Call call(module, arguments[0], Family::normalization);
  if (!call.ok() || !call.claim() || !call.use_kept()) return nullptr;
  unsigned flags = call.flags();
  long accumulate = PyLong_AsLong(arguments[6]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  Array y, dy;
  Target dx, dbeta, dgamma;
  if (!y.take_optional(call, arguments[1], call.operand(kOutput), "y", Use::read) ||
      !dy.take(call, arguments[2], call.operand(kOutput), "grad_output", Use::read, Strides::any) ||
      !dx.take(call, arguments[3], call.operand(kInput), "input_gradient", accumulate & 1, true) ||
      !dbeta.take(call, arguments[4], call.operand(kParameters + kBeta), "beta_gradient", accumulate & 2,
                  flags & kHasBeta, Batched::no) ||
      !dgamma.take(call, arguments[5], call.operand(kParameters + kGamma), "gamma_gradient", accumulate & 4,
                   flags & kHasGamma, Batched::no))
    return nullptr;
  auto apply = [handle = call.handle(), batch = call.samples(), y = y.place(),
                dy = dy.described(call.operand(kOutput)), dx = dx.described(), dbeta = dbeta.described(),
                dgamma = dgamma.described()]() mutable {
    return BNNSNormalizationFilterApplyBackwardBatch(handle, batch, dx.get(), dx.stride, y.data, y.stride, dy.get(),
                                                     dy.stride, dbeta.get(), dgamma.get());
  };
  if (!call.perform(call.operand(kInput), apply))
    return nullptr;
  return Py_BuildValue("NNN", dx.result(), dbeta.result(), dgamma.result());
}

// filter, batch
PyObject* normalization_kept_bytes(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("normalization_kept_bytes", count, 2)) return nullptr;
  Call call(module, arguments[0], Family::normalization);
  if (!call.ok()) return nullptr;
  size_t batch = PyLong_AsSize_t(arguments[1]);
  if (batch == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
  return call.answer(obn_filter_kept_bytes(call.handle(), batch));
}

}  // namespace

PyMethodDef normalization_methods[] = {
    {"normalization_create", normalization_create, METH_VARARGS, nullptr},
    {"normalization_apply", as_method(normalization_apply), METH_FASTCALL, nullptr},
    {"normalization_backward", as_method(normalization_backward), METH_FASTCALL, nullptr},
    {"normalization_kept_bytes", as_method(normalization_kept_bytes), METH_FASTCALL, nullptr},
    {},
};

}  // namespace obn::door
