// Calls of openbnns/matmul.py. Operands are described so that NumPy's axes are the C interface's indices in order;
// only a Gram matrix takes images as they are.
#include <algorithm>
#include <cstddef>

#include "array.h"

namespace obn::door {
namespace {

enum { kA, kB, kOut, kOperands };  // operands

// Flags of a filter: which operand is weights, and whether b is none or a itself.
enum : unsigned { kAIsWeights = 1, kBIsWeights = 2, kIsUnary = 4 };

constexpr const char* kNames[] = {"a", "b"};
constexpr const char* kGradientNames[] = {"a_gradient", "b_gradient"};

bool is_weights(unsigned flags, int k) { return flags & (k == kA ? kAIsWeights : kBIsWeights); }
// Arrays that a call brings along.
bool is_given(unsigned flags, int k) { return !is_weights(flags, k) && (k == kA || !(flags & kIsUnary)); }
bool takes_two(unsigned flags) { return is_given(flags, kA) && is_given(flags, kB); }
// The input of a call with one.
int data_operand(unsigned flags) { return flags & kAIsWeights ? kB : kA; }

size_t items_of(const Call& call) {
  const Py_ssize_t most = std::max({call.operand(kA).items, call.operand(kB).items, call.operand(kOut).items});
  return static_cast<size_t>(std::max<Py_ssize_t>(call.batch, 1) * most);
}

// What the three creators share: name, operands a, b, output, weights or None, flags, threads, copy_parameters.
class Creation {
 public:
  explicit Creation(PyObject* module, PyObject* name) : call(module, name), filter(call, Family::matmul) {}

  bool parse(PyObject* const* operands, PyObject* weights, unsigned flags, Py_ssize_t threads, bool copy) {
    if (!filter.get() || !filter.parse_operands(operands, kOperands)) return false;
    filter->flags = flags;
    for (int k = 0; k < kOperands; ++k) descriptor[k] = filter->operands[k].descriptor;
    if (!copy) options.flags = BNNSFlagsUseClientPtr;
    options.n_threads = static_cast<size_t>(threads);
    if (weights == Py_None) return true;
    const int k = flags & kAIsWeights ? kA : kB;
    return take_parameter(call, filter.get(), weights, filter->operands[k], "weights", copy, array, &descriptor[k]);
  }

  Call call;
  NewFilter filter;
  Array array;  // the weights, until the native filter exists
  BNNSNDArrayDescriptor descriptor[kOperands] = {};
  BNNSFilterParameters options = {};
};

// … , transpose_a, transpose_b, alpha, accumulate_to_output
PyObject* matmul_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kOperands], *weights;
  unsigned flags;
  Py_ssize_t threads;
  int copy, transpose_a, transpose_b, adds;
  float alpha;
  if (!PyArg_ParseTuple(arguments, "UOOOOInpppfp:matmul_create", &name, &operands[kA], &operands[kB], &operands[kOut],
                        &weights, &flags, &threads, &copy, &transpose_a, &transpose_b, &alpha, &adds))
    return nullptr;
  Creation of(module, name);
  if (!of.parse(operands, weights, flags, threads, copy)) return nullptr;
  BNNSLayerParametersBroadcastMatMul layer = {};
  layer.alpha = alpha;
  layer.beta = adds ? 1.0f : 0.0f;
  layer.transA = transpose_a;
  layer.transB = transpose_b;
  layer.quadratic = flags & kIsUnary;
  layer.a_is_weights = flags & kAIsWeights;
  layer.b_is_weights = flags & kBIsWeights;
  layer.iA_desc = of.descriptor[kA];
  layer.iB_desc = of.descriptor[kB];
  layer.o_desc = of.descriptor[kOut];
  return of.filter.open(BNNSFilterCreateLayerBroadcastMatMul(&layer, &of.options));
}

// … , expression, alpha, beta
PyObject* contraction_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kOperands], *weights;
  unsigned flags;
  Py_ssize_t threads;
  int copy;
  const char* expression;
  float alpha, beta;
  if (!PyArg_ParseTuple(arguments, "UOOOOInpsff:contraction_create", &name, &operands[kA], &operands[kB],
                        &operands[kOut], &weights, &flags, &threads, &copy, &expression, &alpha, &beta))
    return nullptr;
  Creation of(module, name);
  if (!of.parse(operands, weights, flags, threads, copy)) return nullptr;
  BNNSLayerParametersTensorContraction layer = {};
  layer.operation = expression;
  layer.alpha = alpha;
  layer.beta = beta;
  layer.iA_desc = of.descriptor[kA];
  layer.iB_desc = of.descriptor[kB];
  layer.o_desc = of.descriptor[kOut];
  return of.filter.open(BNNSFilterCreateLayerTensorContraction(&layer, &of.options));
}

// name, input, output, threads, alpha
PyObject* gram_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kOperands];
  Py_ssize_t threads;
  float alpha;
  if (!PyArg_ParseTuple(arguments, "UOOnf:gram_create", &name, &operands[kA], &operands[kOut], &threads, &alpha))
    return nullptr;
  operands[kB] = operands[kA];
  Creation of(module, name);
  if (!of.parse(operands, Py_None, kIsUnary, threads, true)) return nullptr;
  BNNSLayerParametersGram layer = {};
  layer.alpha = alpha;
  layer.i_desc = of.descriptor[kA];
  layer.o_desc = of.descriptor[kOut];
  return of.filter.open(BNNSFilterCreateLayerGram(&layer, &of.options));
}

// What a call brings for one operand; None for all others. False with an exception.
bool take_input(Call& call, PyObject* object, int k, bool is_optional, Array* array) {
  const unsigned flags = call.flags();
  if (is_given(flags, k))
    return is_optional ? array->take_optional(call, object, call.operand(k), kNames[k], Use::read)
                       : array->take(call, object, call.operand(k), kNames[k], Use::read);
  if (object == Py_None) return true;
  PyErr_Format(call.state()->layer_apply_error, "[%U] %s: expected None, since %s; got an array", call.name(),
               kNames[k], is_weights(flags, k) ? "it was given at creation" : "there is one input");
  return false;
}

// filter, a, b, out or None
PyObject* matmul_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("matmul_apply", count, 4)) return nullptr;
  Call call(module, arguments[0], Family::matmul);
  if (!call.ok()) return nullptr;
  const unsigned flags = call.flags();
  Array inputs[2], y;
  for (int k = kA; k <= kB; ++k)
    if (!take_input(call, arguments[1 + k], k, false, &inputs[k])) return nullptr;
  if (!y.take_or_make(call, arguments[3], call.operand(kOut), "out")) return nullptr;
  const size_t batch = static_cast<size_t>(call.batch);
  if (!call.run(items_of(call), [&] {
        if (takes_two(flags))
          return BNNSFilterApplyTwoInputBatch(call.handle(), batch, inputs[kA].data(), inputs[kA].batch_stride(),
                                              inputs[kB].data(), inputs[kB].batch_stride(), y.data(),
                                              y.batch_stride());
        const Array& x = inputs[data_operand(flags)];
        return BNNSFilterApplyBatch(call.handle(), batch, x.data(), x.batch_stride(), y.data(), y.batch_stride());
      }))
    return nullptr;
  return y.result();
}

// filter, a or None, b or None, grad_output, a_gradient, b_gradient, accumulate (bit 0 a, bit 1 b)
PyObject* matmul_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("matmul_backward", count, 7)) return nullptr;
  Call call(module, arguments[0], Family::matmul);
  if (!call.ok()) return nullptr;
  const unsigned flags = call.flags();
  const long accumulate = PyLong_AsLong(arguments[6]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  Array inputs[2], dy;
  for (int k = kA; k <= kB; ++k)
    if (!take_input(call, arguments[1 + k], k, true, &inputs[k])) return nullptr;
  if (!dy.take(call, arguments[3], call.operand(kOut), "grad_output", Use::read, Strides::any)) return nullptr;
  Target targets[2];
  for (int k = kA; k <= kB; ++k) {
    const bool exists = k == kA || !(flags & kIsUnary);
    if (!targets[k].take(call, arguments[4 + k], call.operand(k), kGradientNames[k], accumulate >> k & 1, exists,
                         is_weights(flags, k) ? Batched::no : Batched::yes))
      return nullptr;
    if (targets[k].descriptor() && !exists)
      return PyErr_Format(call.state()->layer_apply_error,
                          "[%U] %s: expected None, since there is one input; got an array", call.name(),
                          kGradientNames[k]);
  }
  const BNNSNDArrayDescriptor dy_descriptor = dy.describe(call.operand(kOut));
  const size_t batch = static_cast<size_t>(call.batch);
  if (!call.run(items_of(call), [&] {
        if (takes_two(flags))
          return BNNSFilterApplyBackwardTwoInputBatch(
              call.handle(), batch, inputs[kA].data(), inputs[kA].batch_stride(), targets[kA].descriptor(),
              targets[kA].batch_stride(), inputs[kB].data(), inputs[kB].batch_stride(), targets[kB].descriptor(),
              targets[kB].batch_stride(), nullptr, 0, &dy_descriptor, dy.batch_stride(), nullptr, nullptr);
        const int data = data_operand(flags), other = data == kA ? kB : kA;
        BNNSNDArrayDescriptor* dw = is_weights(flags, other) ? targets[other].descriptor() : nullptr;
        return BNNSFilterApplyBackwardBatch(call.handle(), batch, inputs[data].data(), inputs[data].batch_stride(),
                                            targets[data].descriptor(), targets[data].batch_stride(), nullptr, 0,
                                            &dy_descriptor, dy.batch_stride(), dw, nullptr);
      }))
    return nullptr;
  return Py_BuildValue("NN", targets[kA].result(), targets[kB].result());
}

// ---- direct products ----

// name, operands a, b, output, transpose_a, transpose_b, alpha
struct Direct {
  PyObject *name, *operands[kOperands];
  int transpose_a, transpose_b;
  float alpha;
};

// name, operands a, b, output, transpose_a, transpose_b, alpha, a, b, out or None, workspace or None
PyObject* matmul_direct(PyObject* module, PyObject* arguments) {
  Direct of;
  PyObject *objects[kOperands], *workspace;
  if (!PyArg_ParseTuple(arguments, "UOOOppfOOOO:matmul_direct", &of.name, &of.operands[kA], &of.operands[kB],
                        &of.operands[kOut], &of.transpose_a, &of.transpose_b, &of.alpha, &objects[kA], &objects[kB],
                        &objects[kOut], &workspace))
    return nullptr;
  Call call(module, of.name);
  NewFilter keeper(call, Family::matmul);  // never opened: it holds the operands for the time of the call
  if (!keeper.get() || !keeper.parse_operands(of.operands, kOperands)) return nullptr;
  Array a, b, y;
  if (!a.take(call, objects[kA], keeper->operands[kA], "a", Use::read, Strides::any, Batched::no) ||
      !b.take(call, objects[kB], keeper->operands[kB], "b", Use::read, Strides::any, Batched::no) ||
      !y.take_or_make_whole(call, objects[kOut], keeper->operands[kOut], "out"))
    return nullptr;
  const BNNSNDArrayDescriptor from_a = a.describe(keeper->operands[kA]), from_b = b.describe(keeper->operands[kB]),
                              to = y.describe(keeper->operands[kOut]);
  Py_buffer room = {};
  if (workspace != Py_None) {
    if (PyObject_GetBuffer(workspace, &room, PyBUF_WRITABLE) != 0) return nullptr;
    const ssize_t needed =
        BNNSMatMulWorkspaceSize(of.transpose_a, of.transpose_b, of.alpha, &from_a, &from_b, &to, nullptr);
    if (room.len < needed) {
      PyErr_Format(call.state()->layer_apply_error, "[%U] workspace: expected %zd bytes; got %zd", call.name(), needed,
                   room.len);
      PyBuffer_Release(&room);
      return nullptr;
    }
  }
  const size_t items = static_cast<size_t>(std::max(
      {keeper->operands[kA].items, keeper->operands[kB].items, keeper->operands[kOut].items}));
  const bool done = call.run(items, [&] {
    return BNNSMatMul(of.transpose_a, of.transpose_b, of.alpha, &from_a, &from_b, &to, room.buf, nullptr);
  });
  if (room.obj) PyBuffer_Release(&room);
  return done ? y.result() : nullptr;
}

// name, operands a, b, output, transpose_a, transpose_b, alpha
PyObject* matmul_workspace_size(PyObject* module, PyObject* arguments) {
  Direct of;
  if (!PyArg_ParseTuple(arguments, "UOOOppf:matmul_workspace_size", &of.name, &of.operands[kA], &of.operands[kB],
                        &of.operands[kOut], &of.transpose_a, &of.transpose_b, &of.alpha))
    return nullptr;
  Call call(module, of.name);
  NewFilter keeper(call, Family::matmul);
  if (!keeper.get() || !keeper.parse_operands(of.operands, kOperands)) return nullptr;
  const ssize_t bytes = BNNSMatMulWorkspaceSize(
      of.transpose_a, of.transpose_b, of.alpha, &keeper->operands[kA].descriptor, &keeper->operands[kB].descriptor,
      &keeper->operands[kOut].descriptor, nullptr);
  if (bytes < 0)
    return PyErr_Format(call.state()->layer_apply_error, "[%U] %s", call.name(), obn_last_error());
  return PyLong_FromSsize_t(bytes);
}

}  // namespace

PyMethodDef matmul_methods[] = {
    {"matmul_create", matmul_create, METH_VARARGS, nullptr},
    {"contraction_create", contraction_create, METH_VARARGS, nullptr},
    {"gram_create", gram_create, METH_VARARGS, nullptr},
    {"matmul_apply", as_method(matmul_apply), METH_FASTCALL, nullptr},
    {"matmul_backward", as_method(matmul_backward), METH_FASTCALL, nullptr},
    {"matmul_direct", matmul_direct, METH_VARARGS, nullptr},
    {"matmul_workspace_size", matmul_workspace_size, METH_VARARGS, nullptr},
    {},
};

}  // namespace obn::door
