// The extension module openbnns._core: its types, the questions about the library, and the families' calls.
#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "array.h"

namespace obn::door {
namespace {

template <class Function>
void* slot(Function function) {
  return reinterpret_cast<void*>(function);
}

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

// ---- Filter ----

FilterObject* filter_of(PyObject* self) { return static_cast<FilterObject*>(self); }

void filter_dealloc(PyObject* self) {
  FilterObject* filter = filter_of(self);
  filter->close();
  while (filter->held_count > 0) filter->held[--filter->held_count].release();  // one that was never opened
  for (Operand& operand : filter->operands) operand.release();
  Py_XDECREF(filter->name);
  free_object(self);
}

PyObject* filter_close(PyObject* self, PyObject*) {
  filter_of(self)->close();
  Py_RETURN_NONE;
}

bool is_closed(PyObject* self) { return filter_of(self)->state.load() & 1; }

PyObject* filter_closed(PyObject* self, void*) { return PyBool_FromLong(is_closed(self)); }

// 0 once the filter is closed, although the native one may live on in a call under way.
PyObject* filter_handle(PyObject* self, void*) {
  return PyLong_FromVoidPtr(is_closed(self) ? nullptr : filter_of(self)->handle.load());
}

PyObject* filter_describe(PyObject* self, PyObject* batch) {
  PyObject* module = PyType_GetModule(Py_TYPE(self));
  if (!module) return nullptr;
  const Call call(module, self, filter_of(self)->family);
  if (!call.ok()) return nullptr;
  const size_t samples = PyLong_AsSize_t(batch);
  if (samples == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
  char text[1024];
  const int length = obn_filter_describe(call.handle(), samples, text, sizeof text);
  if (length < 0) return call.answer(SIZE_MAX);  // an exception with the library's sentence
  return PyUnicode_FromString(text);
}

PyMethodDef filter_methods[] = {
    {"close", filter_close, METH_NOARGS, "Free the native filter; closing twice does nothing."},
    {"describe", filter_describe, METH_O, "What calls with that batch size run, as obn_filter_describe says it."},
    {},
};

PyGetSetDef filter_properties[] = {
    {"closed", filter_closed, nullptr, "True after close().", nullptr},
    {"handle", filter_handle, nullptr, "The BNNSFilter as an integer, 0 when closed.", nullptr},
    {},
};

PyType_Slot filter_slots[] = {
    {Py_tp_doc, const_cast<char*>("A native filter.")},
    {Py_tp_dealloc, slot(filter_dealloc)},
    {Py_tp_methods, filter_methods},
    {Py_tp_getset, filter_properties},
    {0, nullptr},
};

PyType_Spec filter_spec = {"openbnns._core.Filter", sizeof(FilterObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, filter_slots};

// ---- Parameter: live float32 memory of a filter, which it keeps from being destroyed ----

struct ParameterObject : PyObject {
  FilterObject* filter;  // entered
  void* data;
  Py_ssize_t count;
  Py_ssize_t step;
};

ParameterObject* parameter_of(PyObject* self) { return static_cast<ParameterObject*>(self); }

void parameter_dealloc(PyObject* self) {
  FilterObject* filter = parameter_of(self)->filter;
  if (filter) {
    filter->leave();
    Py_DECREF(filter);
  }
  free_object(self);
}

int parameter_buffer(PyObject* self, Py_buffer* view, int flags) {
  ParameterObject* parameter = parameter_of(self);
  static char format[] = "f";
  *view = {};
  view->obj = Py_NewRef(self);
  view->buf = parameter->data;
  view->len = parameter->count * parameter->step;
  view->itemsize = parameter->step;
  view->ndim = 1;
  view->format = flags & PyBUF_FORMAT ? format : nullptr;
  view->shape = flags & PyBUF_ND ? &parameter->count : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &parameter->step : nullptr;
  return 0;
}

PyType_Slot parameter_slots[] = {
    {Py_tp_doc, const_cast<char*>("Live memory of a filter's parameter, through the buffer protocol.")},
    {Py_tp_dealloc, slot(parameter_dealloc)},
    {Py_bf_getbuffer, slot(parameter_buffer)},
    {0, nullptr},
};

PyType_Spec parameter_spec = {"openbnns._core.Parameter", sizeof(ParameterObject), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, parameter_slots};

// filter, 0 for alpha or 1 for beta
PyObject* activation_parameter(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("activation_parameter", count, 2)) return nullptr;
  Call call(module, arguments[0], Family::activation);
  if (!call.ok()) return nullptr;
  long target = PyLong_AsLong(arguments[1]);
  if (target == -1 && PyErr_Occurred()) return nullptr;
  BNNSNDArrayDescriptor found = BNNSGetPointer(call.handle(), static_cast<BNNSPointerSpecifier>(target));
  if (!found.data)
    return PyErr_Format(call.state()->layer_apply_error, "[%U] %s", call.name(), obn_last_error());
  PyObject* self = PyType_GenericAlloc(call.state()->parameter_type, 0);
  if (!self) return nullptr;
  ParameterObject* parameter = parameter_of(self);
  parameter->data = found.data;
  parameter->count = static_cast<Py_ssize_t>(found.size[0]);
  parameter->step = sizeof(float);
  FilterObject* filter = filter_of(arguments[0]);
  filter->state.fetch_add(2);  // the call is inside, so this cannot come too late
  parameter->filter = filter;
  Py_INCREF(filter);
  return self;
}

// ---- questions ----

PyObject* version(PyObject*, PyObject*) { return PyUnicode_FromString(obn_version()); }

PyObject* isa(PyObject*, PyObject*) { return PyUnicode_FromString(obn_isa()); }

PyObject* isa_reason(PyObject*, PyObject*) { return PyUnicode_FromString(obn_isa_reason()); }

PyObject* last_error(PyObject*, PyObject*) { return PyUnicode_FromString(obn_last_error()); }

PyObject* get_num_threads(PyObject*, PyObject*) { return PyLong_FromSize_t(obn_get_num_threads()); }

PyObject* set_num_threads(PyObject*, PyObject* number) {
  size_t threads = PyLong_AsSize_t(number);
  if (threads == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
  obn_set_num_threads(threads);
  Py_RETURN_NONE;
}

PyObject* get_matmul_precision(PyObject*, PyObject*) { return PyLong_FromLong(obn_get_matmul_precision()); }

PyObject* set_matmul_precision(PyObject*, PyObject* number) {
  long precision = PyLong_AsLong(number);
  if (precision == -1 && PyErr_Occurred()) return nullptr;
  obn_set_matmul_precision(static_cast<int>(precision));
  Py_RETURN_NONE;
}

PyObject* get_winograd(PyObject*, PyObject*) { return PyBool_FromLong(obn_get_winograd()); }

PyObject* set_winograd(PyObject*, PyObject* allowed) {
  int on = PyObject_IsTrue(allowed);
  if (on < 0) return nullptr;
  obn_set_winograd(on);
  Py_RETURN_NONE;
}

PyObject* set_seed(PyObject*, PyObject* number) {
  unsigned long long seed = PyLong_AsUnsignedLongLong(number);
  if (seed == static_cast<unsigned long long>(-1) && PyErr_Occurred()) return nullptr;
  obn_set_seed(seed);
  Py_RETURN_NONE;
}

PyObject* watch_signals_of(PyObject*, PyObject* ident) {
  const unsigned long thread = PyLong_AsUnsignedLong(ident);
  if (thread == static_cast<unsigned long>(-1) && PyErr_Occurred()) return nullptr;
  watch_signals(thread);
  Py_RETURN_NONE;
}

// In the child of a fork.
PyObject* forget_calls(PyObject*, PyObject*) {
  generation.fetch_add(1);
  Py_RETURN_NONE;
}

PyObject* is_implemented(PyObject*, PyObject* name) {
  PyObject* bytes = PyUnicode_AsUTF8String(name);
  if (!bytes) return nullptr;
  int answer = obn_is_implemented(PyBytes_AsString(bytes));
  Py_DECREF(bytes);
  return PyLong_FromLong(answer);
}

// The file the functions of this process really come from.
PyObject* library_path(PyObject*, PyObject*) {
#if defined(_WIN32)
  HMODULE library = nullptr;
  wchar_t path[32768];  // the longest there is
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                     reinterpret_cast<const wchar_t*>(obn_version), &library);
  const DWORD length = library ? GetModuleFileNameW(library, path, 32768) : 0;
  if (length == 0) return PyErr_SetFromWindowsErr(0);
  return PyUnicode_FromWideChar(path, length);
#else
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(obn_version), &info) || !info.dli_fname) {
    PyErr_SetString(PyExc_OSError, "the dynamic linker does not know where the library is");
    return nullptr;
  }
  return PyUnicode_DecodeFSDefault(info.dli_fname);
#endif
}

// to, from: True when both are packed and of one type, and the values were few enough to be copied with the GIL held.
// NumPy gives it away for 500 values, and a thread that wants it then has to be woken.
PyObject* copy_packed(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("copy_packed", count, 2)) return nullptr;
  constexpr Py_ssize_t kMostBytes = 1 << 16;
  Py_buffer to, from;
  if (PyObject_GetBuffer(arguments[0], &to, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) return nullptr;
  if (PyObject_GetBuffer(arguments[1], &from, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    PyBuffer_Release(&to);
    Py_RETURN_FALSE;
  }
  bool same = to.len == from.len && to.len <= kMostBytes && to.ndim == from.ndim && !std::strcmp(to.format, from.format);
  for (int k = 0; same && k < to.ndim; ++k) same = to.shape[k] == from.shape[k];
  if (same) std::memmove(to.buf, from.buf, static_cast<size_t>(to.len));
  PyBuffer_Release(&from);
  PyBuffer_Release(&to);
  return PyBool_FromLong(same);
}

PyMethodDef module_methods[] = {
    {"copy_packed", as_method(copy_packed), METH_FASTCALL, nullptr},
    {"activation_parameter", as_method(activation_parameter), METH_FASTCALL, nullptr},
    {"version", version, METH_NOARGS, nullptr},
    {"isa", isa, METH_NOARGS, nullptr},
    {"isa_reason", isa_reason, METH_NOARGS, nullptr},
    {"last_error", last_error, METH_NOARGS, nullptr},
    {"get_num_threads", get_num_threads, METH_NOARGS, nullptr},
    {"set_num_threads", set_num_threads, METH_O, nullptr},
    {"get_matmul_precision", get_matmul_precision, METH_NOARGS, nullptr},
    {"set_matmul_precision", set_matmul_precision, METH_O, nullptr},
    {"get_winograd", get_winograd, METH_NOARGS, nullptr},
    {"set_winograd", set_winograd, METH_O, nullptr},
    {"set_seed", set_seed, METH_O, nullptr},
    {"forget_calls", forget_calls, METH_NOARGS, nullptr},
    {"watch_signals", watch_signals_of, METH_O, nullptr},
    {"is_implemented", is_implemented, METH_O, nullptr},
    {"library_path", library_path, METH_NOARGS, nullptr},
    {},
};

// ---- the module ----

PyObject* import_name(const char* module_name, const char* attribute) {
  PyObject* module = PyImport_ImportModule(module_name);
  if (!module) return nullptr;
  PyObject* found = PyObject_GetAttrString(module, attribute);
  Py_DECREF(module);
  return found;
}

PyTypeObject* add_type(PyObject* module, PyType_Spec* spec) {
  PyObject* type = PyType_FromModuleAndSpec(module, spec, nullptr);
  if (type && PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type)) != 0) Py_CLEAR(type);
  return reinterpret_cast<PyTypeObject*>(type);
}

int execute(PyObject* module) {
  State* state = state_of(module);
  for (PyMethodDef* methods :
       {activation_methods, arithmetic_methods, attention_methods, clip_methods, convolution_methods,
        fully_connected_methods, fused_methods, loss_methods, matmul_methods, normalization_methods, optimizer_methods,
        pooling_methods, program_methods, quantization_methods, random_methods, weighted_methods})
    if (PyModule_AddFunctions(module, methods) != 0) return -1;
  bool complete = (state->filter_type = add_type(module, &filter_spec)) &&
                  (state->parameter_type = add_type(module, &parameter_spec)) &&
                  (state->tensors_type = add_type(module, &tensors_spec)) &&
                  (state->generator_type = add_type(module, &generator_spec)) &&
                  (state->program_type = add_type(module, &program_spec)) &&
                  (state->conform = import_name("openbnns._spec", "conform")) &&
                  (state->allocate = import_name("openbnns._spec", "allocate")) &&
                  (state->empty = import_name("numpy", "empty")) &&
                  (state->ndarray = reinterpret_cast<PyTypeObject*>(import_name("numpy", "ndarray"))) &&
                  (state->itemsize = PyUnicode_InternFromString("itemsize")) &&
                  (state->dtype = PyUnicode_InternFromString("dtype")) &&
                  (state->view = PyUnicode_InternFromString("view")) &&
                  (state->base = PyUnicode_InternFromString("base")) &&
                  (state->obj = PyUnicode_InternFromString("obj")) &&
                  (state->argument_error = import_name("openbnns._errors", "ArgumentError")) &&
                  (state->layer_creation_error = import_name("openbnns._errors", "LayerCreationError")) &&
                  (state->layer_apply_error = import_name("openbnns._errors", "LayerApplyError")) &&
                  (state->optimizer_step_error = import_name("openbnns._errors", "OptimizerStepError")) &&
                  (state->training_error = import_name("openbnns._errors", "TrainingError"));
  return complete ? 0 : -1;
}

int traverse(PyObject* module, visitproc visit, void* arg) {
  State* state = state_of(module);
  Py_VISIT(state->filter_type);
  Py_VISIT(state->parameter_type);
  Py_VISIT(state->tensors_type);
  Py_VISIT(state->generator_type);
  Py_VISIT(state->program_type);
  Py_VISIT(state->conform);
  Py_VISIT(state->allocate);
  Py_VISIT(state->empty);
  Py_VISIT(state->ndarray);
  Py_VISIT(state->itemsize);
  Py_VISIT(state->dtype);
  Py_VISIT(state->view);
  Py_VISIT(state->base);
  Py_VISIT(state->obj);
  Py_VISIT(state->argument_error);
  Py_VISIT(state->layer_creation_error);
  Py_VISIT(state->layer_apply_error);
  Py_VISIT(state->optimizer_step_error);
  Py_VISIT(state->training_error);
  return 0;
}

int clear(PyObject* module) {
  State* state = state_of(module);
  Py_CLEAR(state->filter_type);
  Py_CLEAR(state->parameter_type);
  Py_CLEAR(state->tensors_type);
  Py_CLEAR(state->generator_type);
  Py_CLEAR(state->program_type);
  Py_CLEAR(state->conform);
  Py_CLEAR(state->allocate);
  Py_CLEAR(state->empty);
  Py_CLEAR(state->ndarray);
  Py_CLEAR(state->itemsize);
  Py_CLEAR(state->dtype);
  Py_CLEAR(state->view);
  Py_CLEAR(state->base);
  Py_CLEAR(state->obj);
  Py_CLEAR(state->argument_error);
  Py_CLEAR(state->layer_creation_error);
  Py_CLEAR(state->layer_apply_error);
  Py_CLEAR(state->optimizer_step_error);
  Py_CLEAR(state->training_error);
  return 0;
}

void free_module(void* module) { clear(static_cast<PyObject*>(module)); }

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, slot(execute)},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", "The native side of openbnns.", sizeof(State), module_methods, module_slots,
    traverse, clear, free_module,
};

}  // namespace
}  // namespace obn::door

PyMODINIT_FUNC PyInit__core() { return PyModuleDef_Init(&obn::door::definition); }
