// The door between Python objects and the C interface: arrays become pointers and descriptors without copying, a
// failed call becomes an exception. Nothing here knows a layer; the families' files hold the calls.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

namespace obn::door {

// What the module keeps: looked up once, when it is imported.
struct State {
  PyTypeObject* filter_type;
  PyTypeObject* parameter_type;
  PyTypeObject* tensors_type;
  PyTypeObject* generator_type;
  PyTypeObject* program_type;
  PyObject* conform;               // openbnns._spec.conform
  PyObject* allocate;              // openbnns._spec.allocate
  PyObject* empty;                 // numpy.empty
  PyTypeObject* ndarray;           // numpy.ndarray
  PyObject* itemsize;              // words, interned: a new string per look-up would fill the interpreter's cache
  PyObject* dtype;
  PyObject* view;
  PyObject* base;
  PyObject* obj;
  PyObject* argument_error;        // openbnns._errors.ArgumentError
  PyObject* layer_creation_error;  // openbnns._errors.LayerCreationError
  PyObject* layer_apply_error;     // openbnns._errors.LayerApplyError
  PyObject* optimizer_step_error;  // openbnns._errors.OptimizerStepError
  PyObject* training_error;        // openbnns._errors.TrainingError
};

State* state_of(PyObject* module);

// One sample as arrays have to show it behind their batch axis. Made from the tuple of ArraySpec._operand.
struct Operand {
  BNNSNDArrayDescriptor descriptor;  // without data; its table lives as long as `table`
  Py_ssize_t rank;
  Py_ssize_t shape[BNNS_MAX_TENSOR_DIMENSION];    // slowest first, as in NumPy
  Py_ssize_t strides[BNNS_MAX_TENSOR_DIMENSION];  // in bytes
  Py_ssize_t items;                               // product of the shape
  Py_ssize_t itemsize;
  Py_ssize_t bits;        // width of one value; less than 8 for packed types
  char kinds[4];          // acceptable buffers: f float, i signed, u unsigned, b bool
  bool packed;            // numpy.empty makes such arrays
  bool has_strides;       // false: the descriptor stands for one arrangement only
  bool first_is_fastest;  // the axes' order in memory is not NumPy's own
  PyObject* spec;         // the ArraySpec, for the slow way and its messages
  PyObject* dtype;        // for numpy.empty
  PyObject* public_dtype; // what results are viewed as; NULL when it is `dtype`
  Py_buffer table;        // obj NULL when there is none

  // The k-th fastest axis.
  Py_ssize_t axis(Py_ssize_t k) const { return first_is_fastest ? k : rank - 1 - k; }
  // False with an exception. An operand that was never parsed is all zero.
  bool parse(PyObject* tuple);
  void release();
};

// Keeps the memory behind an array where it is. NumPy counts no buffers: resize(refcheck=False) moves what others read.
// But it refuses while there is a weak reference to the array that owns the memory, and this is one. None where the owner
// is no NumPy array: others do count their buffers. NULL with an exception.
PyObject* pin(State* state, PyObject* object);

// Memory of the caller that is kept for longer than a call. All zero: none.
struct Held {
  Py_buffer buffer;
  PyObject* pin;  // owned

  void release() {
    Py_CLEAR(pin);
    PyBuffer_Release(&buffer);  // nothing happens where there is none
  }
};

inline constexpr int kMaxOperands = 15;
inline constexpr int kMaxHeld = 12;

// weighted: convolution and fully connected
enum class Family { activation, arithmetic, attention, fused, loss, matmul, normalization, pooling, weighted };

// A native filter and what its calls need. Closing it while a call or a view of its parameters is under way only marks
// it; whoever leaves last destroys the native filter.
struct FilterObject : PyObject {
  std::atomic<BNNSFilter> handle;
  std::atomic<size_t> state;  // 2 · (calls and views under way) + (1 when closed)
  // Calls on what the native filter keeps: 1 for one that changes it, 2 for each that reads it; above, the generation.
  std::atomic<uint64_t> users;
  unsigned long kept_by;  // thread of the last training call; this and the next are changed by who claims
  enum : char { kept_used, kept_new, kept_contested } kept;  // contested: one was not used yet when another came
  Family family;
  PyObject* name;  // the class, for messages
  Operand operands[kMaxOperands];
  Held held[kMaxHeld];  // what the native filter reads
  int held_count;
  Held borrowed;        // the same, until the next call that brings some
  unsigned flags;  // the family's own

  bool enter();  // false when closed, without an exception
  void leave(bool has_gil = true);
  void close(bool has_gil = true);
  // By who is inside, to change what is kept or to read it. False, without an exception: another call is in the way.
  bool claim() { return use(1, UINT32_MAX); }
  bool share() { return use(2, 1); }
  void unclaim() { end_use(1); }
  void unshare() { end_use(2); }

 private:
  bool use(uint64_t mine, uint64_t against);
  void end_use(uint64_t mine);
};

// Counts the forks that led to this process, from 1: a call that another thread of the parent was in does not end here, so
// what it claimed is free.
extern std::atomic<uint32_t> generation;

// ---- recording: see program.cpp ----

// A native call that is kept, to be run again. What it reads and writes is kept by the program it belongs to.
struct Job {
  virtual ~Job();
  virtual int run() = 0;  // 0 when all went well

  Job* next = nullptr;
  FilterObject* filter = nullptr;  // owned; NULL for a direct function
  PyObject* label = nullptr;       // owned: whose call it is
  PyObject* name = nullptr;        // owned: the class, for messages
  PyObject* error = nullptr;       // what to raise, the module's
  const char* sentence = nullptr;  // NULL: the library's
  bool claims = false;
};

template <class Function>
struct JobOf final : Job {
  explicit JobOf(const Function& given) : function(given) {}
  int run() override { return function(); }
  Function function;
};

// Whether calls of this thread are recorded now instead of being run.
bool is_recording();
// The job becomes the next of the recorded ones; NULL: there was no memory for it. False with an exception.
bool record_job(Job* job, size_t items);
// The object lives as long as what is recorded.
bool keep_recorded(PyObject* object);
// This call cannot be recorded. Sets an exception; false.
bool refuse_recording();

// Work on more items than these lets other Python threads run meanwhile. Less is done before the GIL would be had back.
inline constexpr size_t kItemsWorthReleasing = 4096;

// The main thread without the GIL, in a native call. Meanwhile the library asks now and then whether to go on, for which
// Python's signal handlers are run; when one raises (Ctrl-C), the native call is given up and the exception is there when
// this ends.
class WithoutGil {
 public:
  WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil();

  // The same question between many short native calls: whether to stop. Does nothing most of the time.
  bool wants_end();

 private:
  long long asked_ = 0;  // when, in nanoseconds
};

// Has the library ask; `thread` is the ident of the main thread.
void watch_signals(unsigned long thread);

// One call: the filter is entered for as long as this lives.
class Call {
 public:
  Call(PyObject* module, PyObject* filter, Family family);  // exception and ok() false when the filter cannot be used
  Call(PyObject* module, PyObject* name);                   // a direct function, without a filter
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  bool ok() const { return ok_; }
  // Keeps other calls off a filter that keeps something, until this one ends. False with LayerApplyError when one is
  // under way.
  bool claim();
  // For a call that reads what others keep: keeps those off, or false with LayerApplyError while one is under way.
  bool share();
  // Whether an argument is true; -1 with ArgumentError where it cannot say.
  int truth(PyObject* object, const char* name) const;
  // A training call went well: its gradients can be had.
  void keep() const;
  // False with LayerApplyError when what the filter keeps is not of this thread although that has trained, too.
  bool use_kept() const;
  State* state() const { return state_; }
  PyObject* name() const { return name_; }
  unsigned flags() const { return filter_->flags; }
  FilterObject* filter() const { return filter_; }
  size_t samples() const { return static_cast<size_t>(batch); }
  BNNSFilter handle() const { return filter_->handle.load(std::memory_order_relaxed); }
  const Operand& operand(int i) const { return filter_->operands[i]; }

  Py_ssize_t batch = -1;  // samples, once the first array has told

  // Runs a native function on call.batch samples like `operand`, without the GIL when that is enough work to be worth
  // it. False with LayerApplyError when it fails.
  template <class Function>
  bool run(const Operand& operand, Function&& function) const {
    return run(static_cast<size_t>(batch) * static_cast<size_t>(operand.items), function);
  }
  // The same for work on that many items.
  template <class Function>
  bool run(size_t items, Function&& function) const {
    if (is_recording()) return refuse_recording();
    int status;
    if (items > kItemsWorthReleasing) {
      const WithoutGil released;
      status = function();
    } else {
      status = function();
    }
    return status == 0 || fail();
  }
  // The same for a function that has all it needs by value, so that it can be recorded instead.
  template <class Function>
  bool perform(size_t items, Function function) const {
    if (!is_recording()) return run(items, function);
    return record_job(prepare(new (std::nothrow) JobOf<Function>(function)), items);
  }
  template <class Function>
  bool perform(const Operand& operand, Function function) const {
    return perform(samples() * static_cast<size_t>(operand.items), function);
  }
  PyObject* answer(size_t bytes) const;  // a number, or NULL after SIZE_MAX, which is an error
  Job* prepare(Job* job) const;  // fills in whose call it is; NULL stays NULL

 private:
  bool fail() const;  // LayerApplyError with the library's sentence; false

  State* state_;
  FilterObject* filter_ = nullptr;
  PyObject* name_ = nullptr;
  bool ok_ = false;
  bool claims_ = false, shares_ = false;
};

enum class Use { read, write, share };      // share: a parameter that the filter keeps reading
enum class Strides { as_operand, any };     // any: whatever the C interface can express
enum class Batched { yes, no };

// Where an argument lies, without holding it.
struct Place {
  void* data;
  size_t stride;  // of the batch, in values
};

// The same with a descriptor; NULL where there is none.
struct Described {
  BNNSNDArrayDescriptor descriptor = {};
  size_t stride = 0;
  bool exists = false;

  BNNSNDArrayDescriptor* get() { return exists ? &descriptor : nullptr; }
};

// An argument held for the time of one call.
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array();

  // Exposes the memory of `object`; goes through openbnns._spec.conform when it does not fit as it is. The first
  // batched array of a call decides call.batch. False with an exception.
  bool take(Call& call, PyObject* object, const Operand& operand, const char* name, Use use,
            Strides strides = Strides::as_operand, Batched batched = Batched::yes);
  // The same for an argument that may be None: then data() is NULL.
  bool take_optional(Call& call, PyObject* object, const Operand& operand, const char* name, Use use);
  // A new array of call.batch samples.
  bool make(Call& call, const Operand& operand, Batched batched = Batched::yes);
  // What the caller gets: `object` if it is an array, a new array if it is None.
  bool take_or_make(Call& call, PyObject* object, const Operand& operand, const char* name,
                    Batched batched = Batched::yes);

  // The same for a whole array, without a batch axis, with any strides.
  bool take_or_make_whole(Call& call, PyObject* object, const Operand& operand, const char* name);

  void* data() const { return data_; }
  size_t batch_stride() const { return batch_stride_; }  // in values; 0 for a batch of one
  Place place() const { return {data_, batch_stride_}; }
  Described described(const Operand& operand) const { return {describe(operand), batch_stride_, true}; }
  PyObject* result() const { return Py_NewRef(result_ ? result_ : Py_None); }
  // One sample with the strides of this array.
  BNNSNDArrayDescriptor describe(const Operand& operand) const;
  // The same as a FirstMajor tensor, where size[k] is NumPy's axis k for every rank. Only for plain layouts.
  BNNSNDArrayDescriptor describe_first_major(const Operand& operand) const;
  // Keeps the memory where it is for as long as this lives. False with an exception.
  bool hold();
  // Hands the buffer over to a filter that goes on reading it. False with an exception.
  bool give_to(FilterObject* filter);
  // The same until another array takes its place.
  bool lend_to(FilterObject* filter);

 private:
  // NumPy exports no buffer of a dtype that is not its own, like bfloat16, but does of a view as what it is stored as:
  // this lets such a view stand in for such an array. False with an exception.
  bool view_storage(State* state, PyObject* object, const Operand& operand);
  bool expose(PyObject* object, Use use);
  bool fits(const Operand& operand, Strides strides, Batched batched, Py_ssize_t batch);
  void release();

  State* state_ = nullptr;
  Py_buffer buffer_ = {};
  PyObject* pin_ = nullptr;  // owned
  bool exposed_ = false;
  PyObject* result_ = nullptr;  // owned: what the caller passed, or what was allocated
  PyObject* stand_in_ = nullptr;  // owned: what was exposed instead: a view, or what conform gave
  void* data_ = nullptr;
  size_t batch_stride_ = 0;
  bool own_strides_ = false;  // the buffer's strides count, not the operand's
  Py_ssize_t lead_ = 0;       // 1 when axis 0 is the batch
};

// Memory of the caller that needs no operand, held for the time of one call.
struct Buffer {
  Py_buffer view = {};

  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view); }  // does nothing where there is none

  // False with an exception.
  bool take(PyObject* object, int flags) { return PyObject_GetBuffer(object, &view, flags) == 0; }
  size_t size() const { return static_cast<size_t>(view.len); }
  char* at(size_t byte) const { return static_cast<char*>(view.buf) + byte; }
};

// A gradient that a backward call writes: True allocates it if it `exists`, an array receives it, None and False leave
// it out.
class Target {
 public:
  bool take(Call& call, PyObject* target, const Operand& operand, const char* name, bool accumulate, bool exists,
            Batched batched = Batched::yes);
  BNNSNDArrayDescriptor* descriptor() { return wanted_ ? &descriptor_ : nullptr; }
  size_t batch_stride() const { return array_.batch_stride(); }
  Described described() const { return {descriptor_, array_.batch_stride(), wanted_}; }
  PyObject* result() const { return array_.result(); }

 private:
  Array array_;
  BNNSNDArrayDescriptor descriptor_ = {};
  bool wanted_ = false;
};

// A filter being made: closed, and dropped again unless it is opened.
class NewFilter {
 public:
  NewFilter(Call& call, Family family);  // get() is NULL, with an exception, when there is no memory
  NewFilter(const NewFilter&) = delete;
  NewFilter& operator=(const NewFilter&) = delete;
  ~NewFilter();

  FilterObject* get() const { return filter_; }
  FilterObject* operator->() const { return filter_; }
  // The first `count` operands from their tuples; false with an exception.
  bool parse_operands(PyObject* const* tuples, int count);
  // The finished object for Python, or NULL with LayerCreationError when the native creator gave NULL.
  PyObject* open(BNNSFilter handle);

 private:
  Call& call_;
  FilterObject* filter_;
};

// The tuple of Activation._native: function, alpha, beta, iscale, ioffset, ishift and three int32 arrays or None, which
// stay with the filter. False with an exception.
bool parse_activation(PyObject* tuple, FilterObject* filter, BNNSActivation* activation);

// A parameter for a filter being made: `array` holds it until the native filter exists, and unless that copies it, its
// memory stays with the filter. False with an exception.
bool take_parameter(Call& call, FilterObject* filter, PyObject* object, const Operand& operand, const char* name,
                    bool copy, Array& array, BNNSNDArrayDescriptor* descriptor);

// TypeError unless a function got as many arguments as it has. Only our own Python files call these functions.
bool check_count(const char* function, Py_ssize_t got, Py_ssize_t expected);

// The families' methods, each list ended by an empty entry.
extern PyMethodDef activation_methods[];
extern PyMethodDef arithmetic_methods[];
extern PyMethodDef attention_methods[];
extern PyMethodDef clip_methods[];
extern PyMethodDef convolution_methods[];
extern PyMethodDef fully_connected_methods[];
extern PyMethodDef fused_methods[];
extern PyMethodDef loss_methods[];
extern PyMethodDef matmul_methods[];
extern PyMethodDef normalization_methods[];
extern PyMethodDef optimizer_methods[];
extern PyMethodDef pooling_methods[];
extern PyMethodDef program_methods[];
extern PyMethodDef quantization_methods[];
extern PyMethodDef random_methods[];
extern PyMethodDef weighted_methods[];

// The families' own types.
extern PyType_Spec generator_spec;
extern PyType_Spec program_spec;
extern PyType_Spec tensors_spec;

// METH_FASTCALL functions have a type of their own; the table wants this one.
using FastCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
inline PyCFunction as_method(FastCall function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace obn::door
