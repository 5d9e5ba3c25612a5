// Programs: native calls that were recorded once, with their arrays, and run in order without Python between them.
//
//   record([(label, callable), ...])   every callable is called; the native calls it makes are kept instead of being run
//   program()                          runs them; the first that fails raises what it would have raised by itself
//   repeat(program, runs, feeds, ...)  runs it many times, with other values in its arrays each time
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "array.h"

namespace obn::door {
namespace {

// Eight calls' worth. A thread that waits for the GIL sleeps, and takes some 20 µs to wake: two threads that each do
// steps of 8 µs are twice as slow with the GIL released in between, with steps of 60 µs 1.7 times as fast.
constexpr size_t kProgramWorthReleasing = 8 * kItemsWorthReleasing;

struct ProgramObject : PyObject {
  Job* first;
  PyObject* kept;  // list: whatever the jobs read and write
  size_t items;    // of all jobs, to decide whether the GIL is worth releasing
  std::atomic<uint32_t> running;  // the generation that runs it, or another number
};

ProgramObject* program_of(PyObject* self) { return static_cast<ProgramObject*>(self); }

// What is being recorded in this thread.
struct Recording {
  State* state;
  ProgramObject* program;
  Job** end;
  PyObject* label = nullptr;  // borrowed
  bool is_refused = false;
};

thread_local Recording* recording = nullptr;

void program_dealloc(PyObject* self) {
  ProgramObject* program = program_of(self);
  while (Job* job = program->first) {
    program->first = job->next;
    delete job;
  }
  Py_XDECREF(program->kept);
  PyTypeObject* type = Py_TYPE(self);
  auto free = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free(self);
  Py_DECREF(type);
}

enum class Outcome { done, failed, closed, busy };

Outcome run_job(Job* job) {
  FilterObject* filter = job->filter;
  if (!filter) return job->run() == 0 ? Outcome::done : Outcome::failed;
  if (!filter->enter()) return Outcome::closed;
  Outcome outcome = Outcome::busy;
  if (job->claims ? filter->claim() : filter->share()) {
    outcome = job->run() == 0 ? Outcome::done : Outcome::failed;
    job->claims ? filter->unclaim() : filter->unshare();
  }
  filter->leave(false);  // without the GIL, if there is enough to do
  return outcome;
}

const char* sentence_of(const Job* job, Outcome outcome) {
  switch (outcome) {
    case Outcome::closed: return "layer: expected an open layer; got a closed one";
    case Outcome::busy: return "layer: expected one training or backward call at a time; got one while another is "
                               "under way";
    default: return job->sentence ? job->sentence : obn_last_error();
  }
}

// Its arrays are there once, so one thread runs it at a time.
class Turn {
 public:
  // Exception and ok() false when another thread has it.
  explicit Turn(ProgramObject* program)
      : program_(program->running.exchange(generation.load()) == generation.load() ? nullptr : program) {
    if (program_) return;
    PyErr_SetString(program->first ? program->first->error : PyExc_RuntimeError,
                    "[program] threads: expected one run at a time; got one on another thread");
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (program_) program_->running.store(0);
  }
  bool ok() const { return program_; }

 private:
  ProgramObject* program_;
};

PyObject* program_call(PyObject* self, PyObject*, PyObject*) {
  ProgramObject* program = program_of(self);
  const Turn turn(program);
  if (!turn.ok()) return nullptr;
  Outcome outcome = Outcome::done;
  Job* job = program->first;
  const auto run_all = [&](WithoutGil* released) {
    while (job && (outcome = run_job(job)) == Outcome::done) {
      job = job->next;
      if (released && released->wants_end()) break;
    }
  };
  if (program->items > kProgramWorthReleasing) {
    WithoutGil released;
    run_all(&released);
  } else {
    run_all(nullptr);
  }
  if (PyErr_Occurred()) return nullptr;  // what a signal handler raised
  if (!job) Py_RETURN_NONE;
  return PyErr_Format(job->error, "[%U] %U: %s", job->name, job->label, sentence_of(job, outcome));
}

// ---- many runs ----

constexpr int kPacked = PyBUF_C_CONTIGUOUS;

// Fills `into` before every run: with the next bytes of `from`, or with those of its rows that are next in `numbers`.
struct Feed {
  Buffer into, from, numbers;
  size_t row = 0;      // bytes of one
  size_t per_run = 0;  // rows

  const int64_t* rows(size_t run) const {
    return reinterpret_cast<const int64_t*>(numbers.at(run * per_run * sizeof(int64_t)));
  }
  // False with an exception.
  bool take(PyObject* tuple, size_t runs) {
    PyObject *to, *source, *order;
    if (!PyArg_ParseTuple(tuple, "OOO:repeat", &to, &source, &order) || !into.take(to, kPacked | PyBUF_WRITABLE) ||
        !from.take(source, kPacked) || (order != Py_None && !numbers.take(order, kPacked)))
      return false;
    if (order == Py_None ? from.size() == runs * into.size() : fits(runs)) return true;
    PyErr_SetString(PyExc_ValueError, "repeat: an array does not have as many values as so many runs read");
    return false;
  }
  bool fits(size_t runs) {
    const size_t count = from.view.ndim > 0 ? static_cast<size_t>(from.view.shape[0]) : 0;
    if (count == 0 || from.size() == 0 || numbers.view.itemsize != sizeof(int64_t)) return false;
    row = from.size() / count;
    per_run = into.size() / row;
    const size_t all = runs * per_run;
    if (into.size() != per_run * row || numbers.size() != all * sizeof(int64_t)) return false;
    for (size_t i = 0; i < all; ++i)
      if (static_cast<uint64_t>(rows(0)[i]) >= count) return false;
    return true;
  }
  void fill(size_t run) const {
    if (!per_run) {
      std::memcpy(into.at(0), from.at(run * into.size()), into.size());
      return;
    }
    for (size_t i = 0; i < per_run; ++i)
      std::memcpy(into.at(i * row), from.at(static_cast<size_t>(rows(run)[i]) * row), row);
  }
};

// program, runs, list of (into, from, numbers of rows (int64) or None), an array that the program writes, an array for
// what it wrote in each run. The number of runs that went well: all, or those before the first that did not, which
// raises nothing.
PyObject* repeat(PyObject* module, PyObject* arguments) {
  PyObject *object, *lists, *result, *results;
  Py_ssize_t wanted;
  if (!PyArg_ParseTuple(arguments, "O!nO!OO:repeat", state_of(module)->program_type, &object, &wanted, &PyList_Type,
                        &lists, &result, &results))
    return nullptr;
  ProgramObject* program = program_of(object);
  const Turn turn(program);
  if (!turn.ok()) return nullptr;
  const size_t runs = wanted < 0 ? 0 : static_cast<size_t>(wanted), count = static_cast<size_t>(PyList_Size(lists));
  const std::unique_ptr<Feed[]> feeds(new (std::nothrow) Feed[count]);
  if (!feeds) return PyErr_NoMemory();
  for (size_t i = 0; i < count; ++i)
    if (!feeds[i].take(PyList_GetItem(lists, static_cast<Py_ssize_t>(i)), runs)) return nullptr;
  Buffer from, into;
  if (!from.take(result, kPacked) || !into.take(results, kPacked | PyBUF_WRITABLE)) return nullptr;
  if (into.size() != runs * from.size()) {
    PyErr_SetString(PyExc_ValueError, "repeat: expected room for one result of each run");
    return nullptr;
  }
  size_t done = 0;
  {
    WithoutGil released;
    for (bool goes_well = true; goes_well && done < runs; goes_well = goes_well && !released.wants_end()) {
      for (size_t i = 0; i < count; ++i) feeds[i].fill(done);
      for (Job* job = program->first; goes_well && job; job = job->next) goes_well = run_job(job) == Outcome::done;
      if (goes_well) std::memcpy(into.at(done++ * from.size()), from.at(0), from.size());
    }
  }
  if (PyErr_Occurred()) return nullptr;  // what a signal handler raised
  return PyLong_FromSize_t(done);
}

PyType_Slot program_slots[] = {
    {Py_tp_doc, const_cast<char*>("Native calls that run one after the other.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(program_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(program_call)},
    {0, nullptr},
};

// list of (label, callable). None when one of them makes a call that cannot be recorded.
PyObject* record(PyObject* module, PyObject* calls) {
  if (is_recording() || !PyList_Check(calls)) {
    PyErr_SetString(PyExc_TypeError, "record: expected a list, and no recording under way");
    return nullptr;
  }
  PyObject* self = PyType_GenericAlloc(state_of(module)->program_type, 0);  // all zero
  if (!self) return nullptr;
  ProgramObject* program = program_of(self);
  program->kept = PyList_New(0);
  Recording here{state_of(module), program, &program->first};
  bool ok = program->kept;
  for (Py_ssize_t i = 0; ok && i < PyList_Size(calls); ++i) {
    PyObject* callable;
    ok = PyArg_ParseTuple(PyList_GetItem(calls, i), "UO:record", &here.label, &callable);
    if (!ok) break;
    recording = &here;
    PyObject* result = PyObject_CallNoArgs(callable);
    recording = nullptr;
    ok = result;
    Py_XDECREF(result);
  }
  if (ok && !here.is_refused) return self;
  Py_DECREF(self);
  if (!here.is_refused) return nullptr;
  PyErr_Clear();
  Py_RETURN_NONE;
}

// name, float32 array of one value: TrainingError unless it is finite
PyObject* require_finite(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("require_finite", count, 2)) return nullptr;
  Call call(module, arguments[0]);
  Buffer array;
  if (!array.take(arguments[1], PyBUF_SIMPLE)) return nullptr;
  const float* value = static_cast<const float*>(array.view.buf);
  if (array.size() != sizeof(float)) {
    PyErr_SetString(PyExc_TypeError, "require_finite: expected one float32");
    return nullptr;
  }
  const auto look = [value] { return std::isfinite(*value) ? 0 : -1; };
  constexpr const char* kSentence = "expected a finite number";
  PyObject* error = call.state()->training_error;
  if (is_recording()) {
    Job* job = call.prepare(new (std::nothrow) JobOf(look));
    if (job) job->error = error, job->sentence = kSentence;
    if (!record_job(job, 0) || !keep_recorded(arguments[1])) return nullptr;
  } else if (look() != 0) {
    return PyErr_Format(error, "[%U] %s", call.name(), kSentence);
  }
  Py_RETURN_NONE;
}

}  // namespace

Job::~Job() {
  Py_XDECREF(filter);
  Py_XDECREF(label);
  Py_XDECREF(name);
}

bool is_recording() { return recording != nullptr; }

bool record_job(Job* job, size_t items) {
  if (!job) {
    PyErr_NoMemory();
    return false;
  }
  job->label = Py_NewRef(recording->label);
  *recording->end = job;
  recording->end = &job->next;
  recording->program->items += items;
  return true;
}

bool keep_recorded(PyObject* object) {
  PyObject* reference = pin(recording->state, object);
  const bool ok = reference && PyList_Append(recording->program->kept, object) == 0 &&
                  PyList_Append(recording->program->kept, reference) == 0;
  Py_XDECREF(reference);
  return ok;
}

bool refuse_recording() {
  recording->is_refused = true;
  PyErr_SetString(PyExc_NotImplementedError, "this call cannot be recorded");
  return false;
}

PyMethodDef program_methods[] = {
    {"record", record, METH_O, nullptr},
    {"repeat", repeat, METH_VARARGS, nullptr},
    {"require_finite", as_method(require_finite), METH_FASTCALL, nullptr},
    {},
};

PyType_Spec program_spec = {"openbnns._core.Program", sizeof(ProgramObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, program_slots};

}  // namespace obn::door
