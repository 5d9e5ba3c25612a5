#include "array.h"

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

namespace obn::door {

State* state_of(PyObject* module) { return static_cast<State*>(PyModule_GetState(module)); }

bool check_count(const char* function, Py_ssize_t got, Py_ssize_t expected) {
  if (got == expected) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments; got %zd", function, expected, got);
  return false;
}

// ---- operands ----

namespace {

// The numbers of a tuple; false with an exception when there are more than `room` or one does not fit.
template <class Number>
bool read_numbers(PyObject* tuple, Number* numbers, Py_ssize_t room, Py_ssize_t* count) {
  *count = PyTuple_Size(tuple);
  if (*count < 0) return false;
  if (*count > room) {
    PyErr_Format(PyExc_ValueError, "expected at most %zd axes; got %zd", room, *count);
    return false;
  }
  for (Py_ssize_t i = 0; i < *count; ++i) {
    Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GetItem(tuple, i));
    if (number == -1 && PyErr_Occurred()) return false;
    numbers[i] = static_cast<Number>(number);
  }
  return true;
}

}  // namespace

bool Operand::parse(PyObject* tuple) {
  PyObject *spec_object, *sizes, *steps, *array_shape, *array_strides, *dtype_object, *public_dtype_object,
      *table_object;
  unsigned layout, type, table_type;
  const char* letters;
  int is_packed, strided, flipped;
  float scale, offset;
  if (!PyArg_ParseTuple(tuple, "OIOOIsnOOpppOOOIff:operand", &spec_object, &layout, &sizes, &steps, &type, &letters,
                        &itemsize, &array_shape, &array_strides, &is_packed, &strided, &flipped, &dtype_object,
                        &public_dtype_object, &table_object, &table_type, &scale, &offset))
    return false;
  Py_ssize_t count;
  if (!read_numbers(sizes, descriptor.size, BNNS_MAX_TENSOR_DIMENSION, &count) ||
      !read_numbers(steps, descriptor.stride, BNNS_MAX_TENSOR_DIMENSION, &count) ||
      !read_numbers(array_strides, strides, BNNS_MAX_TENSOR_DIMENSION, &count) ||
      !read_numbers(array_shape, shape, BNNS_MAX_TENSOR_DIMENSION, &rank))
    return false;
  if (count != rank || itemsize < 1 || std::strlen(letters) >= sizeof kinds) {
    PyErr_SetString(PyExc_ValueError, "an operand does not agree with itself");
    return false;
  }
  std::strcpy(kinds, letters);
  descriptor.layout = static_cast<BNNSDataLayout>(layout);
  descriptor.data_type = static_cast<BNNSDataType>(type);
  descriptor.data_scale = scale;
  descriptor.data_bias = offset;
  bits = type & 0x7fff;
  packed = is_packed;
  has_strides = strided;
  first_is_fastest = flipped;
  items = 1;
  for (Py_ssize_t k = 0; k < rank; ++k) items *= shape[k];  // ArraySpec made sure that it fits
  if (table_object != Py_None) {
    if (PyObject_GetBuffer(table_object, &table, PyBUF_SIMPLE) != 0) return false;
    descriptor.table_data = table.buf;
    descriptor.table_data_type = static_cast<BNNSDataType>(table_type);
  }
  spec = Py_NewRef(spec_object);
  dtype = Py_NewRef(dtype_object);
  public_dtype = public_dtype_object == Py_None ? nullptr : Py_NewRef(public_dtype_object);
  return true;
}

void Operand::release() {
  Py_CLEAR(spec);
  Py_CLEAR(dtype);
  Py_CLEAR(public_dtype);
  PyBuffer_Release(&table);
}

// ---- filters ----

PyObject* pin(State* state, PyObject* object) {
  PyObject* owner = Py_NewRef(object);
  bool is_array;
  while ((is_array = PyObject_TypeCheck(owner, state->ndarray)) || PyMemoryView_Check(owner)) {
    PyObject* next = PyObject_GetAttr(owner, is_array ? state->base : state->obj);
    if (next == Py_None) break;
    Py_DECREF(owner);
    if (!next) return nullptr;
    owner = next;
  }
  PyObject* reference = is_array ? PyWeakref_NewRef(owner, nullptr) : Py_NewRef(Py_None);
  Py_DECREF(owner);
  return reference;
}

bool FilterObject::enter() {
  if (state.fetch_add(2) & 1) {
    leave();
    return false;
  }
  return true;
}

void FilterObject::leave(bool has_gil) {
  if (state.fetch_sub(2) == 3) close(has_gil);  // closed, and this was the last one inside
}

std::atomic<uint32_t> generation{1};

bool FilterObject::use(uint64_t mine, uint64_t against) {
  const uint64_t here = generation.load();
  uint64_t now = users.load();
  for (;;) {
    const uint64_t still = now >> 32 == here ? now : here << 32;
    if (still & against) return false;
    if (users.compare_exchange_weak(now, still + mine)) return true;
  }
}

void FilterObject::end_use(uint64_t mine) {
  const uint64_t here = generation.load();
  uint64_t now = users.load();
  while (now >> 32 == here && !users.compare_exchange_weak(now, now - mine)) {
  }
}

void FilterObject::close(bool has_gil) {
  if (state.fetch_or(1) >> 1) return;  // still in use: leave() comes back here
  BNNSFilter last = handle.exchange(nullptr);
  if (!last) return;
  BNNSFilterDestroy(last);
  PyGILState_STATE gil{};
  if (!has_gil) gil = PyGILState_Ensure();
  while (held_count > 0) held[--held_count].release();
  borrowed.release();
  if (!has_gil) PyGILState_Release(gil);
}

// ---- calls ----

Call::Call(PyObject* module, PyObject* filter, Family family) : state_(state_of(module)) {
  if (!PyObject_TypeCheck(filter, state_->filter_type) ||
      static_cast<FilterObject*>(filter)->family != family) {
    PyErr_SetString(PyExc_TypeError, "expected a filter of this family");
    return;
  }
  auto* candidate = static_cast<FilterObject*>(filter);
  if (!candidate->enter()) {
    PyErr_Format(state_->layer_apply_error, "[%U] layer: expected an open layer; got a closed one", candidate->name);
    return;
  }
  filter_ = candidate;
  name_ = candidate->name;
  ok_ = true;
}

Call::Call(PyObject* module, PyObject* name) : state_(state_of(module)), name_(name), ok_(true) {}

Call::~Call() {
  if (claims_) filter_->unclaim();
  if (shares_) filter_->unshare();
  if (filter_) filter_->leave();
}

bool Call::claim() {
  claims_ = filter_->claim();
  if (!claims_)
    PyErr_Format(state_->layer_apply_error,
                 "[%U] layer: expected one training or backward call at a time; got one while another is under way",
                 name_);
  return claims_;
}

bool Call::share() {
  shares_ = filter_->share();
  if (!shares_)
    PyErr_Format(state_->layer_apply_error,
                 "[%U] layer: expected no training or backward call under way; got one on another thread", name_);
  return shares_;
}

int Call::truth(PyObject* object, const char* name) const {
  const int found = PyObject_IsTrue(object);
  if (found < 0) {
    PyErr_Clear();
    PyErr_Format(state_->argument_error, "[%U] %s: expected True or False; got %R", name_, name, Py_TYPE(object));
  }
  return found;
}

void Call::keep() const {
  const unsigned long thread = PyThread_get_thread_ident();
  const bool is_overtaking = filter_->kept != FilterObject::kept_used && filter_->kept_by != thread;
  if (is_overtaking || filter_->kept != FilterObject::kept_contested)
    filter_->kept = is_overtaking ? FilterObject::kept_contested : FilterObject::kept_new;
  filter_->kept_by = thread;
}

bool Call::use_kept() const {
  if (filter_->kept == FilterObject::kept_contested && filter_->kept_by != PyThread_get_thread_ident()) {
    PyErr_Format(state_->layer_apply_error,
                 "[%U] layer: expected the gradients of the last training call; got those of an earlier one, before "
                 "that of another thread",
                 name_);
    return false;
  }
  if (filter_->kept == FilterObject::kept_new) filter_->kept = FilterObject::kept_used;
  return true;
}

// ---- without the GIL ----

namespace {

thread_local PyThreadState* released = nullptr;  // this thread's, while a WithoutGil lives

// Signal handlers run in the main thread alone; elsewhere PyErr_CheckSignals does nothing, so it is not asked.
std::atomic<unsigned long> main_thread{0};

int check_signals(void*) {
  if (!released || PyThread_get_thread_ident() != main_thread.load(std::memory_order_relaxed)) return 0;
  PyEval_RestoreThread(released);
  const int answer = PyErr_CheckSignals();
  released = PyEval_SaveThread();
  return answer;
}

}  // namespace

void watch_signals(unsigned long thread) {
  main_thread.store(thread, std::memory_order_relaxed);
  obn_set_interrupt_callback(check_signals, nullptr);
}

WithoutGil::WithoutGil() { released = PyEval_SaveThread(); }

bool WithoutGil::wants_end() {
  constexpr long long kAsks = 50'000'000;
  const long long now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::steady_clock::now().time_since_epoch()).count();
  if (asked_ == 0) asked_ = now;
  if (now - asked_ < kAsks) return false;
  asked_ = now;
  return check_signals(nullptr) != 0;
}

WithoutGil::~WithoutGil() {
  PyThreadState* state = released;
  released = nullptr;
  PyEval_RestoreThread(state);
}

bool Call::fail() const {
  if (PyErr_Occurred()) return false;  // what a signal handler raised
  PyErr_Format(state_->layer_apply_error, "[%U] %s", name_, obn_last_error());
  return false;
}

PyObject* Call::answer(size_t bytes) const {
  if (bytes != SIZE_MAX) return PyLong_FromSize_t(bytes);
  fail();
  return nullptr;
}

Job* Call::prepare(Job* job) const {
  if (!job) return nullptr;
  job->filter = filter_;
  Py_XINCREF(filter_);
  job->name = Py_NewRef(name_);
  job->error = state_->layer_apply_error;
  job->claims = claims_;
  return job;
}

// ---- arrays ----

namespace {

// The letter of NumPy's dtype.kind for a buffer's format, 0 for anything that is no plain native number.
char kind_of(const char* format) {
  if (!format) return 'u';  // the buffer protocol's default: unsigned bytes
  constexpr char kNative = std::endian::native == std::endian::little ? '<' : '>';
  if (*format == '@' || *format == '=' || *format == kNative) ++format;
  if (format[0] == 0 || format[1] != 0) return 0;
  switch (format[0]) {
    case 'e': case 'f': case 'd': return 'f';
    case 'b': case 'h': case 'i': case 'l': case 'q': return 'i';
    case 'B': case 'H': case 'I': case 'L': case 'Q': return 'u';
    case '?': return 'b';
    default: return 0;
  }
}

const char* word_of(Use use) {
  switch (use) {
    case Use::read: return "read";
    case Use::write: return "write";
    case Use::share: return "share";
  }
  return "read";
}

}  // namespace

Array::~Array() {
  release();
  Py_XDECREF(stand_in_);
  Py_XDECREF(result_);
}

void Array::release() {
  Py_CLEAR(pin_);
  if (exposed_) PyBuffer_Release(&buffer_);
  exposed_ = false;
}

bool Array::expose(PyObject* object, Use use) {
  if (!PyObject_CheckBuffer(object)) return false;
  if (PyObject_GetBuffer(object, &buffer_, use == Use::write ? PyBUF_RECORDS : PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();  // read-only, or a type NumPy cannot name: the slow way finds the words
    return false;
  }
  exposed_ = true;
  return true;
}

bool Array::view_storage(State* state, PyObject* object, const Operand& operand) {
  // a subclass may have a view of its own, and goes the slow way
  if (!operand.public_dtype || !Py_IS_TYPE(object, state->ndarray)) return true;
  PyObject* dtype = PyObject_GetAttr(object, state->dtype);
  if (!dtype) return false;
  bool is_public = dtype == operand.public_dtype;
  Py_DECREF(dtype);
  if (is_public) stand_in_ = PyObject_CallMethodObjArgs(object, state->view, operand.dtype, nullptr);
  return !is_public || stand_in_;
}

bool Array::fits(const Operand& operand, Strides strides, Batched batched, Py_ssize_t batch) {
  lead_ = batched == Batched::yes;
  if (buffer_.itemsize != operand.itemsize || buffer_.ndim != operand.rank + lead_) return false;
  char kind = kind_of(buffer_.format);
  if (!kind || !std::strchr(operand.kinds, kind)) return false;
  if (lead_ && batch >= 0 && buffer_.shape[0] != batch) return false;
  const Py_ssize_t* shape = buffer_.shape + lead_;
  for (Py_ssize_t k = 0; k < operand.rank; ++k)
    if (shape[k] != operand.shape[k]) return false;

  data_ = buffer_.buf;
  batch_stride_ = 0;
  own_strides_ = strides == Strides::any && operand.has_strides;
  if (buffer_.len == 0) return true;
  if (reinterpret_cast<uintptr_t>(data_) % static_cast<size_t>(operand.itemsize) != 0) return false;
  const Py_ssize_t* steps = buffer_.strides + lead_;
  Py_ssize_t faster = 1;
  for (Py_ssize_t k = 0; k < operand.rank; ++k) {
    Py_ssize_t axis = operand.axis(k);
    if (shape[axis] == 1) continue;
    if (!own_strides_) {
      if (steps[axis] != operand.strides[axis]) return false;
    } else {
      if (steps[axis] < faster || steps[axis] % operand.itemsize != 0) return false;
      faster = steps[axis];
    }
  }
  if (lead_ && buffer_.shape[0] > 1) {
    Py_ssize_t step = buffer_.strides[0];
    if (step <= 0 || step * 8 % operand.bits != 0) return false;
    batch_stride_ = static_cast<size_t>(step * 8 / operand.bits);
  }
  return true;
}

bool Array::take(Call& call, PyObject* object, const Operand& operand, const char* name, Use use, Strides strides,
                 Batched batched) {
  state_ = call.state();
  if (!view_storage(call.state(), object, operand)) return false;
  if (!expose(stand_in_ ? stand_in_ : object, use) || !fits(operand, strides, batched, call.batch)) {
    release();
    Py_CLEAR(stand_in_);
    Py_ssize_t batch = batched == Batched::yes ? call.batch : -2;
    stand_in_ = PyObject_CallFunction(call.state()->conform, "OsOOssni", call.name(), name, object, operand.spec,
                                      operand.kinds, word_of(use), batch, static_cast<int>(strides == Strides::any));
    if (!stand_in_) return false;
    if (!expose(stand_in_, use) || !fits(operand, strides, batched, call.batch)) {
      PyErr_Format(PyExc_SystemError, "[%U] %s: conform gave an array that does not fit", call.name(), name);
      return false;
    }
  }
  result_ = Py_NewRef(object);
  if (batched == Batched::yes) call.batch = buffer_.shape[0];
  if (!is_recording()) return true;
  return stand_in_ ? refuse_recording() : keep_recorded(object);
}

bool Array::take_optional(Call& call, PyObject* object, const Operand& operand, const char* name, Use use) {
  return object == Py_None || take(call, object, operand, name, use);
}

bool Array::make(Call& call, const Operand& operand, Batched batched) {
  if (is_recording()) return refuse_recording();
  State* state = call.state();
  bool has_batch = batched == Batched::yes;
  PyObject* array;
  if (operand.packed) {
    PyObject* shape = PyTuple_New(operand.rank + has_batch);
    if (!shape) return false;
    if (has_batch) PyTuple_SetItem(shape, 0, PyLong_FromSsize_t(call.batch));
    for (Py_ssize_t k = 0; k < operand.rank; ++k)
      PyTuple_SetItem(shape, k + has_batch, PyLong_FromSsize_t(operand.shape[k]));
    array = PyErr_Occurred() ? nullptr : PyObject_CallFunctionObjArgs(state->empty, shape, operand.dtype, nullptr);
    Py_DECREF(shape);
  } else {
    array = PyObject_CallFunction(state->allocate, "On", operand.spec, has_batch ? call.batch : Py_ssize_t{-1});
  }
  if (!array) return false;
  if (!expose(array, Use::write) || !fits(operand, Strides::as_operand, batched, call.batch)) {
    PyErr_Format(PyExc_SystemError, "[%U] a new array does not fit", call.name());
    Py_DECREF(array);
    return false;
  }
  if (operand.public_dtype) {
    PyObject* view = PyObject_CallMethodObjArgs(array, state->view, operand.public_dtype, nullptr);
    Py_DECREF(array);
    if (!view) return false;
    array = view;
  }
  result_ = array;
  return true;
}

bool Array::take_or_make(Call& call, PyObject* object, const Operand& operand, const char* name, Batched batched) {
  return object == Py_None ? make(call, operand, batched)
                           : take(call, object, operand, name, Use::write, Strides::as_operand, batched);
}

bool Array::take_or_make_whole(Call& call, PyObject* object, const Operand& operand, const char* name) {
  return object == Py_None ? make(call, operand, Batched::no)
                           : take(call, object, operand, name, Use::write, Strides::any, Batched::no);
}

BNNSNDArrayDescriptor Array::describe(const Operand& operand) const {
  BNNSNDArrayDescriptor descriptor = operand.descriptor;
  descriptor.data = data_;
  if (!own_strides_) return descriptor;
  size_t faster = 1;
  for (Py_ssize_t k = 0; k < operand.rank; ++k) {  // fastest first; an axis that never moves takes no step back
    Py_ssize_t axis = operand.axis(k);
    if (operand.shape[axis] != 1 && buffer_.len != 0)
      faster = static_cast<size_t>(buffer_.strides[lead_ + axis] / operand.itemsize);
    descriptor.stride[k] = faster;
  }
  return descriptor;
}

BNNSNDArrayDescriptor Array::describe_first_major(const Operand& operand) const {
  BNNSNDArrayDescriptor descriptor = describe(operand);
  const Py_ssize_t rank = operand.rank > 0 ? operand.rank : 1;
  descriptor.layout = static_cast<BNNSDataLayout>(BNNSDataLayout1DFirstMajor + 0x10000u * (rank - 1));
  for (Py_ssize_t k = 0; k < operand.rank; ++k) descriptor.size[k] = static_cast<size_t>(operand.shape[k]);
  return descriptor;
}

bool Array::hold() {
  pin_ = pin(state_, buffer_.obj);
  return pin_;
}

bool Array::give_to(FilterObject* filter) {
  if (!hold()) return false;
  filter->held[filter->held_count++] = {buffer_, std::exchange(pin_, nullptr)};
  exposed_ = false;
  return true;
}

bool Array::lend_to(FilterObject* filter) {
  if (!hold()) return false;
  Held last = std::exchange(filter->borrowed, {buffer_, std::exchange(pin_, nullptr)});
  exposed_ = false;
  last.release();
  return true;
}

bool Target::take(Call& call, PyObject* target, const Operand& operand, const char* name, bool accumulate, bool exists,
                  Batched batched) {
  if (target == Py_None || target == Py_False) return true;
  if (target == Py_True) {
    if (!exists) return true;
    if (!array_.make(call, operand, batched)) return false;
  } else if (!array_.take(call, target, operand, name, Use::write, Strides::any, batched)) {
    return false;
  }
  descriptor_ = array_.describe(operand);
  if (accumulate) descriptor_.flags = BNNSNDArrayFlagBackpropAccumulate;
  wanted_ = true;
  return true;
}

// ---- creation ----

NewFilter::NewFilter(Call& call, Family family) : call_(call) {
  PyObject* object = PyType_GenericAlloc(call.state()->filter_type, 0);  // all zero
  filter_ = static_cast<FilterObject*>(object);
  if (!filter_) return;
  filter_->state.store(1);
  filter_->family = family;
  filter_->name = Py_NewRef(call.name());
}

NewFilter::~NewFilter() { Py_XDECREF(filter_); }

bool NewFilter::parse_operands(PyObject* const* tuples, int count) {
  if (!filter_) return false;
  for (int i = 0; i < count; ++i)
    if (!filter_->operands[i].parse(tuples[i])) return false;
  return true;
}

PyObject* NewFilter::open(BNNSFilter handle) {
  if (!handle)
    return PyErr_Format(call_.state()->layer_creation_error, "[%U] %s", call_.name(), obn_last_error());
  filter_->handle.store(handle);
  filter_->state.store(0);
  return std::exchange(filter_, nullptr);
}

bool take_parameter(Call& call, FilterObject* filter, PyObject* object, const Operand& operand, const char* name,
                    bool copy, Array& array, BNNSNDArrayDescriptor* descriptor) {
  if (!array.take(call, object, operand, name, copy ? Use::read : Use::share, Strides::any, Batched::no)) return false;
  *descriptor = array.describe(operand);
  return copy || array.give_to(filter);
}

namespace {

// Keeps a buffer of int32 values with the filter; None gives NULL. False with an exception.
bool hold_int32(FilterObject* filter, PyObject* object, const int32_t** data) {
  *data = nullptr;
  if (object == Py_None) return true;
  Py_buffer* buffer = &filter->held[filter->held_count].buffer;  // of an array that nobody else has
  if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) != 0) return false;
  ++filter->held_count;
  *data = static_cast<const int32_t*>(buffer->buf);
  return true;
}

}  // namespace

bool parse_activation(PyObject* tuple, FilterObject* filter, BNNSActivation* activation) {
  unsigned function;
  PyObject *scales, *offsets, *shifts;
  if (!PyArg_ParseTuple(tuple, "IffiiiOOO:activation", &function, &activation->alpha, &activation->beta,
                        &activation->iscale, &activation->ioffset, &activation->ishift, &scales, &offsets, &shifts))
    return false;
  activation->function = static_cast<BNNSActivationFunction>(function);
  return hold_int32(filter, scales, &activation->iscale_per_channel) &&
         hold_int32(filter, offsets, &activation->ioffset_per_channel) &&
         hold_int32(filter, shifts, &activation->ishift_per_channel);
}

}  // namespace obn::door
