// Calls of openbnns/random.py. Arrays are whole ones, without a batch axis.
#include <cstddef>

#include "array.h"

namespace obn::door {
namespace {

// ---- Generator ----

struct GeneratorObject : PyObject {
  BNNSRandomGenerator handle;
};

void generator_dealloc(PyObject* self) {
  BNNSDestroyRandomGenerator(static_cast<GeneratorObject*>(self)->handle);
  PyTypeObject* type = Py_TYPE(self);
  auto free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

PyType_Slot generator_slots[] = {
    {Py_tp_doc, const_cast<char*>("A native random generator.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(generator_dealloc)},
    {0, nullptr},
};

// NULL with an exception when the object is no generator.
BNNSRandomGenerator handle_of(PyObject* module, PyObject* object) {
  if (!PyObject_TypeCheck(object, state_of(module)->generator_type)) {
    PyErr_SetString(PyExc_TypeError, "expected a generator");
    return nullptr;
  }
  return static_cast<GeneratorObject*>(object)->handle;
}

PyObject* fail(PyObject* error) { return PyErr_Format(error, "[RandomGenerator] %s", obn_last_error()); }

// seed or None, threads
PyObject* random_create(PyObject* module, PyObject* arguments) {
  PyObject* seed_object;
  Py_ssize_t threads;
  if (!PyArg_ParseTuple(arguments, "On:random_create", &seed_object, &threads)) return nullptr;
  BNNSFilterParameters options = {};
  options.n_threads = static_cast<size_t>(threads);
  BNNSRandomGenerator handle;
  if (seed_object == Py_None) {
    handle = BNNSCreateRandomGenerator(BNNSRandomGeneratorMethodAES_CTR, &options);
  } else {
    const unsigned long long seed = PyLong_AsUnsignedLongLong(seed_object);
    if (PyErr_Occurred()) return nullptr;
    handle = BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethodAES_CTR, seed, &options);
  }
  if (!handle) return fail(state_of(module)->layer_creation_error);
  PyObject* self = PyType_GenericAlloc(state_of(module)->generator_type, 0);
  if (!self) {
    BNNSDestroyRandomGenerator(handle);
    return nullptr;
  }
  static_cast<GeneratorObject*>(self)->handle = handle;
  return self;
}

PyObject* random_get_state(PyObject* module, PyObject* generator) {
  BNNSRandomGenerator handle = handle_of(module, generator);
  if (!handle) return nullptr;
  const size_t size = BNNSRandomGeneratorStateSize(handle);
  PyObject* state = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (!state) return nullptr;
  if (BNNSRandomGeneratorGetState(handle, size, PyBytes_AsString(state)) == 0) return state;
  Py_DECREF(state);
  return fail(state_of(module)->layer_apply_error);
}

// generator, bytes
PyObject* random_set_state(PyObject* module, PyObject* arguments) {
  PyObject* generator;
  const char* state;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(arguments, "Oy#:random_set_state", &generator, &state, &size)) return nullptr;
  BNNSRandomGenerator handle = handle_of(module, generator);
  if (!handle) return nullptr;
  if (BNNSRandomGeneratorSetState(handle, static_cast<size_t>(size), const_cast<char*>(state)) != 0)
    return fail(state_of(module)->layer_apply_error);
  Py_RETURN_NONE;
}

// One fill of `out`, or of a new array, by a distribution with two numbers.
template <class Fill>
PyObject* fill(PyObject* module, PyObject* name, PyObject* operand, PyObject* out, const Fill& native) {
  Call call(module, name);
  NewFilter keeper(call, Family::activation);  // never opened: it holds the operand for the time of the call
  if (!keeper.parse_operands(&operand, 1)) return nullptr;
  Array y;
  if (!y.take_or_make_whole(call, out, keeper->operands[0], "out")) return nullptr;
  BNNSNDArrayDescriptor to = y.describe_first_major(keeper->operands[0]);
  call.batch = 1;
  if (!call.run(keeper->operands[0], [&] { return native(&to); })) return nullptr;
  return y.result();
}

// generator, name, operand, out or None, a, b
PyObject* random_uniform(PyObject* module, PyObject* arguments) {
  PyObject *generator, *name, *operand, *out;
  float a, b;
  if (!PyArg_ParseTuple(arguments, "OUOOff:random_uniform", &generator, &name, &operand, &out, &a, &b)) return nullptr;
  BNNSRandomGenerator handle = handle_of(module, generator);
  if (!handle) return nullptr;
  return fill(module, name, operand, out,
              [&](BNNSNDArrayDescriptor* to) { return BNNSRandomFillUniformFloat(handle, to, a, b); });
}

PyObject* random_normal(PyObject* module, PyObject* arguments) {
  PyObject *generator, *name, *operand, *out;
  float mean, deviation;
  if (!PyArg_ParseTuple(arguments, "OUOOff:random_normal", &generator, &name, &operand, &out, &mean, &deviation))
    return nullptr;
  BNNSRandomGenerator handle = handle_of(module, generator);
  if (!handle) return nullptr;
  return fill(module, name, operand, out,
              [&](BNNSNDArrayDescriptor* to) { return BNNSRandomFillNormalFloat(handle, to, mean, deviation); });
}

PyObject* random_integers(PyObject* module, PyObject* arguments) {
  PyObject *generator, *name, *operand, *out;
  long long a, b;
  if (!PyArg_ParseTuple(arguments, "OUOOLL:random_integers", &generator, &name, &operand, &out, &a, &b)) return nullptr;
  BNNSRandomGenerator handle = handle_of(module, generator);
  if (!handle) return nullptr;
  return fill(module, name, operand, out,
              [&](BNNSNDArrayDescriptor* to) { return BNNSRandomFillUniformInt(handle, to, a, b); });
}

// generator, name, operand of the weights, operand of the draws, probabilities, out or None, log
PyObject* random_categorical(PyObject* module, PyObject* arguments) {
  PyObject *generator, *name, *operands[2], *probabilities, *out;
  int log;
  if (!PyArg_ParseTuple(arguments, "OUOOOOp:random_categorical", &generator, &name, &operands[0], &operands[1],
                        &probabilities, &out, &log))
    return nullptr;
  BNNSRandomGenerator handle = handle_of(module, generator);
  if (!handle) return nullptr;
  Call call(module, name);
  NewFilter keeper(call, Family::activation);
  if (!keeper.parse_operands(operands, 2)) return nullptr;
  const Operand &weights = keeper->operands[0], &draws = keeper->operands[1];
  Array p, y;
  if (!p.take(call, probabilities, weights, "probabilities", Use::read, Strides::any, Batched::no) ||
      !y.take_or_make_whole(call, out, draws, "out"))
    return nullptr;
  const BNNSNDArrayDescriptor from = p.describe_first_major(weights), to = y.describe_first_major(draws);
  call.batch = 1;
  if (!call.run(draws, [&] { return BNNSRandomFillCategoricalFloat(handle, &to, &from, log); })) return nullptr;
  return y.result();
}

}  // namespace

PyType_Spec generator_spec = {"openbnns._core.Generator", sizeof(GeneratorObject), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, generator_slots};

PyMethodDef random_methods[] = {
    {"random_create", random_create, METH_VARARGS, nullptr},
    {"random_get_state", random_get_state, METH_O, nullptr},
    {"random_set_state", random_set_state, METH_VARARGS, nullptr},
    {"random_uniform", random_uniform, METH_VARARGS, nullptr},
    {"random_normal", random_normal, METH_VARARGS, nullptr},
    {"random_integers", random_integers, METH_VARARGS, nullptr},
    {"random_categorical", random_categorical, METH_VARARGS, nullptr},
    {},
};

}  // namespace obn::door
