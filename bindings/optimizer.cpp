// Calls of openbnns/optim.py.
#include <charconv>
#include <cstring>
#include <memory>
#include <new>

#include "array.h"

namespace obn::door {
namespace {

// ---- Tensors: arrays that steps write to, held and described once ----

struct Tensor {
  Operand operand = {};
  Array array;
  BNNSNDArrayDescriptor descriptor = {};

  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { operand.release(); }
};

struct TensorsObject : PyObject {
  Tensor* tensors;
  BNNSNDArrayDescriptor** pointers;
  size_t count;
  size_t values;
};

TensorsObject* tensors_of(PyObject* self) { return static_cast<TensorsObject*>(self); }

void tensors_dealloc(PyObject* self) {
  TensorsObject* object = tensors_of(self);
  delete[] object->tensors;
  delete[] object->pointers;
  PyTypeObject* type = Py_TYPE(self);
  auto free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

PyType_Slot tensors_slots[] = {
    {Py_tp_doc, const_cast<char*>("Arrays that optimizer steps write to.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(tensors_dealloc)},
    {0, nullptr},
};

// "gradients[3]": every array of a step gets its name, so this must be quick.
void name_entry(const char* argument, size_t index, char (&name)[48]) {
  const size_t length = std::strlen(argument);
  std::memcpy(name, argument, length);
  name[length] = '[';
  char* end = std::to_chars(name + length + 1, name + sizeof name - 2, index).ptr;
  end[0] = ']';
  end[1] = '\0';
}

// name, argument's word, list of operands, list of arrays
PyObject* optimizer_hold(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands, *arrays;
  const char* word;
  if (!PyArg_ParseTuple(arguments, "UsO!O!:optimizer_hold", &name, &word, &PyList_Type, &operands, &PyList_Type,
                        &arrays))
    return nullptr;
  const size_t count = static_cast<size_t>(PyList_Size(arrays));
  if (static_cast<size_t>(PyList_Size(operands)) != count || std::strlen(word) > 20) {
    PyErr_SetString(PyExc_ValueError, "optimizer_hold: operands and arrays do not agree");
    return nullptr;
  }
  Call call(module, name);
  PyObject* self = PyType_GenericAlloc(call.state()->tensors_type, 0);  // all zero
  if (!self) return nullptr;
  TensorsObject* object = tensors_of(self);
  object->tensors = new (std::nothrow) Tensor[count];
  object->pointers = new (std::nothrow) BNNSNDArrayDescriptor*[count];
  if (!object->tensors || !object->pointers) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  object->count = count;
  for (size_t i = 0; i < count; ++i) {
    Tensor& tensor = object->tensors[i];
    char entry[48];
    name_entry(word, i, entry);
    if (!tensor.operand.parse(PyList_GetItem(operands, static_cast<Py_ssize_t>(i))) ||
        !tensor.array.take(call, PyList_GetItem(arrays, static_cast<Py_ssize_t>(i)), tensor.operand, entry, Use::write,
                           Strides::as_operand, Batched::no) ||
        !tensor.array.hold()) {
      Py_DECREF(self);
      return nullptr;
    }
    tensor.descriptor = tensor.array.describe(tensor.operand);
    object->pointers[i] = &tensor.descriptor;
    object->values += static_cast<size_t>(tensor.operand.items);
  }
  return self;
}

// ---- steps ----

// What one step reads: gradients that are held already, or arrays for this one step.
struct Gradients {
  std::unique_ptr<Array[]> arrays;
  std::unique_ptr<BNNSNDArrayDescriptor[]> descriptors;
  std::unique_ptr<const BNNSNDArrayDescriptor*[]> own;
  const BNNSNDArrayDescriptor** pointers = nullptr;

  // False with an exception.
  bool take(Call& call, PyObject* object, const TensorsObject* parameters) {
    State* state = call.state();
    const bool are_held = PyObject_TypeCheck(object, state->tensors_type);
    const size_t n = parameters->count;
    const size_t given = are_held ? tensors_of(object)->count : static_cast<size_t>(PyList_Size(object));
    if (given != n) {
      PyErr_Format(state->optimizer_step_error, "[%U] gradients: expected %zu, as many as parameters; got %zu",
                   call.name(), n, given);
      return false;
    }
    if (are_held) {
      pointers = const_cast<const BNNSNDArrayDescriptor**>(tensors_of(object)->pointers);
      return true;
    }
    if (is_recording()) return refuse_recording();
    arrays.reset(new (std::nothrow) Array[n]);
    descriptors.reset(new (std::nothrow) BNNSNDArrayDescriptor[n]);
    own.reset(new (std::nothrow) const BNNSNDArrayDescriptor*[n]);
    if (!arrays || !descriptors || !own) {
      PyErr_NoMemory();
      return false;
    }
    for (size_t i = 0; i < n; ++i) {
      char entry[48];
      name_entry("gradients", i, entry);
      const Operand& operand = parameters->tensors[i].operand;
      if (!arrays[i].take(call, PyList_GetItem(object, static_cast<Py_ssize_t>(i)), operand, entry, Use::read,
                          Strides::as_operand, Batched::no))
        return false;
      descriptors[i] = arrays[i].describe(operand);
      own[i] = &descriptors[i];
    }
    pointers = own.get();
    return true;
  }
};

// name, function, the fields (bytes; or a bytearray, which a recorded step reads anew every time), parameters, list of
// gradients or held ones, accumulators or None, threads
PyObject* optimizer_step(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("optimizer_step", count, 7)) return nullptr;
  Call call(module, arguments[0]);
  State* state = call.state();
  const unsigned long function = PyLong_AsUnsignedLong(arguments[1]);
  const size_t threads = PyLong_AsSize_t(arguments[6]);
  if (PyErr_Occurred()) return nullptr;
  const bool is_bytes = PyBytes_Check(arguments[2]);
  const auto is_tensors = [&](int i) { return PyObject_TypeCheck(arguments[i], state->tensors_type); };
  if ((!is_bytes && !PyByteArray_Check(arguments[2])) || !is_tensors(3) ||
      (!PyList_Check(arguments[4]) && !is_tensors(4)) || (arguments[5] != Py_None && !is_tensors(5))) {
    PyErr_SetString(PyExc_TypeError, "optimizer_step: expected bytes, tensors, a list, and tensors or None");
    return nullptr;
  }
  const TensorsObject* parameters = tensors_of(arguments[3]);
  const TensorsObject* accumulators = arguments[5] == Py_None ? nullptr : tensors_of(arguments[5]);
  Gradients gradients;
  if (!gradients.take(call, arguments[4], parameters)) return nullptr;
  const char* fields = is_bytes ? PyBytes_AsString(arguments[2]) : PyByteArray_AsString(arguments[2]);
  BNNSFilterParameters options = {};
  options.n_threads = threads;
  const auto step = [=, pointers = gradients.pointers] {
    return BNNSOptimizerStep(static_cast<BNNSOptimizerFunction>(function), fields, parameters->count,
                             parameters->pointers, pointers, accumulators ? accumulators->pointers : nullptr, &options);
  };
  if (is_recording()) {
    Job* job = call.prepare(new (std::nothrow) JobOf(step));
    if (job) job->error = state->optimizer_step_error;
    if (!record_job(job, parameters->values)) return nullptr;
    for (int i = 2; i < 6; ++i)
      if (!keep_recorded(arguments[i])) return nullptr;
    Py_RETURN_NONE;
  }
  int status;
  if (parameters->values > kItemsWorthReleasing) {
    const WithoutGil released;
    status = step();
  } else {
    status = step();
  }
  if (PyErr_Occurred()) return nullptr;  // what a signal handler raised
  if (status != 0) return PyErr_Format(state->optimizer_step_error, "[%U] %s", call.name(), obn_last_error());
  Py_RETURN_NONE;
}

}  // namespace

PyType_Spec tensors_spec = {"openbnns._core.Tensors", sizeof(TensorsObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, tensors_slots};

PyMethodDef optimizer_methods[] = {
    {"optimizer_hold", optimizer_hold, METH_VARARGS, nullptr},
    {"optimizer_step", as_method(optimizer_step), METH_FASTCALL, nullptr},
    {},
};

}  // namespace obn::door
