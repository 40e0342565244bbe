// SPDX-License-Identifier: Apache-2.0

#include "images/worker/serving.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "images/warden/control.h"
#include "images/worker/beside.h"
#include "images/worker/footprint.h"
#include "images/worker/lent.h"
#include "images/worker/plain_call.h"
#include "images/worker/program.h"
#include "images/worker/serving_objects.h"
#include "images/worker/short_body.h"

namespace hutch {
namespace {

constexpr int kIdleMs = 20;
constexpr int kMisdirectedExit = 73;

// What this process was given to load, once: it then serves that, or ends.
struct {
  bool any = false;
  char identity[kIdentitySize];

  bool Is(std::string_view other) const {
    return memcmp(identity, other.data(), sizeof identity) == 0;
  }
} ahead;

bool Comes(int fd, int ms) {
  pollfd polled{fd, POLLIN, 0};
  int ready;
  Py_BEGIN_ALLOW_THREADS ready = poll(&polled, 1, ms);
  Py_END_ALLOW_THREADS return ready != 0;
}

void Flush(PyObject* stream) {
  if (stream == nullptr || stream == Py_None) return;
  Py_INCREF(stream);
  PyObject* const done = PyObject_CallMethodObjArgs(stream, own.flush, nullptr);
  if (done == nullptr) PyErr_Clear();
  Py_XDECREF(done);
  Py_DECREF(stream);
}

// What is printed is seen before the result is. Closed, replaced, or nobody reads: none of it may
// lose the result.
void FlushStreams() {
  for (const auto& [name, first_name] :
       {std::pair{"stdout", "__stdout__"}, std::pair{"stderr", "__stderr__"}}) {
    PyObject* const now = PySys_GetObject(name);
    Flush(now);
    PyObject* const first = PySys_GetObject(first_name);
    if (first != now) Flush(first);
  }
}

// In a process that user code forked, and that came back from it: ending.py ends it. What it came
// back with is no reply.
[[noreturn]] void LeaveFork() {
  PyObject* const error = PyErr_Occurred() == nullptr ? Py_NewRef(Py_None) : TakeError();
  PyObject_CallMethodObjArgs(own.worker, own.leave_fork, error, nullptr);
  _exit(1);
}

PyObject* MetaOf(PyObject* entry, const CallSections& call) {
  PyObject* const meta = entry == nullptr ? Py_None : PyTuple_GetItem(entry, 0);
  return meta == Py_None ? BytesOf(call.meta()) : Py_NewRef(meta);
}

// What `function` returns for each of these arguments, as a list; once one raised, what call.py
// makes of the rest, as a tuple.
PyObject* CallForEach(PyObject* function, PyObject* calls, PyObject* entry,
                      const CallSections& call) {
  PyObject* const values = PyList_New(0);
  if (values == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_Size(calls); ++i) {
    PyObject* const value = PyObject_Call(function, PyList_GetItem(calls, i), nullptr);
    if (IsFork()) LeaveFork();
    if (value == nullptr) {
      PyObject* const error = TakeError();
      PyObject* const meta = MetaOf(entry, call);
      PyObject* const rest = PyObject_CallMethodObjArgs(own.worker, own.resume_chunk, function,
                                                        calls, values, error, meta, nullptr);
      Py_XDECREF(error);
      Py_XDECREF(meta);
      Py_DECREF(values);
      return rest;
    }
    const int kept = PyList_Append(values, value);
    Py_DECREF(value);
    if (kept != 0) return nullptr;
  }
  return values;
}

// `how`: finish or fail, with a value or an error, and the call's meta data.
bool Conclude(PyObject* how, uint64_t id, PyObject* what, PyObject* entry,
              const CallSections& call) {
  PyObject* const meta = MetaOf(entry, call);
  PyObject* const number = PyLong_FromUnsignedLongLong(id);
  PyObject* const done = PyObject_CallMethodObjArgs(own.worker, how, number, what, meta, nullptr);
  Py_XDECREF(number);
  Py_XDECREF(meta);
  Py_XDECREF(done);
  return done != nullptr;
}

void Remember(PyObject* key, const CallSections& call, PyObject* function) {
  PyObject* const entry =
      Py_BuildValue("(NONO)", BytesOf(call.meta()), function, BytesOf(call.function()), Py_True);
  if (entry == nullptr || PyDict_SetItem(own.loaded, key, entry) != 0) PyErr_Clear();
  Py_XDECREF(entry);
}

// What is loaded ahead of a call, where it can be here.
bool LoadPlain(PyObject* key, const CallSections& call) {
  if (!IsMarshalled(call.function()) || !IsPlain(call.meta())) return false;
  PyObject* const function = MakeFunction(call.function().substr(1));
  if (function != nullptr) Remember(key, call, function);
  PyErr_Clear();  // what goes wrong here does so again in the call
  Py_XDECREF(function);
  return true;
}

bool ServePlain(int fd, uint64_t id, PyObject* key, PyObject* entry, const CallSections& call,
                const Received& received) {
  PyObject *args = nullptr, *kwargs = nullptr, *value = nullptr;
  PyObject* const function =
      entry != nullptr ? Py_NewRef(PyTuple_GetItem(entry, 1)) : FunctionOf(call.function());
  const bool is_program = function == Py_None;
  const bool is_chunk = IsChunk(call.meta());
  if (IsKept(call.meta())) {
    if (PyObject_SetAttr(own.worker, own.keep, Py_True) != 0) PyErr_Clear();
    if (entry == nullptr && function != nullptr) Remember(key, call, function);
  }
  if (is_program ||
      (function != nullptr && LoadArguments(call, received, is_chunk, &args, &kwargs))) {
    if (is_program) {
      value = RunProgram(fd, id, PyTuple_GetItem(entry, 2));
    } else {
      TellSlowLoad(fd, id);
      value = is_chunk ? CallForEach(function, args, entry, call)
                       : PyObject_Call(function, args, kwargs);
    }
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    FlushStreams();
    MeasureRun();
    PyErr_Restore(type, error, traceback);
    if (IsFork()) LeaveFork();
  }
  bool done;
  ShortBody body;
  if (value == nullptr) {
    PyObject* const error = TakeError();
    done = Conclude(own.fail, id, error, entry, call);
    Py_XDECREF(error);
  } else if (is_chunk && PyList_Check(value) ? body.EncodeAll(value) : body.Encode(value)) {
    MeasureEncoding();
    const FrameHeader header{
        .kind = FrameKind::kResult, .id = id, .b = body.size(), .c = body.size()};
    done = SendReply(fd, header, body.bytes());
  } else {
    if (is_chunk && PyList_Check(value)) value = Py_BuildValue("(sN)", "ok", value);
    done = value != nullptr && Conclude(own.finish, id, value, entry, call);
  }
  Py_XDECREF(value);
  Py_XDECREF(args);
  Py_XDECREF(kwargs);
  Py_XDECREF(function);
  return done;
}

bool IsServedHere(PyObject* entry, const CallSections& call) {
  if (IsChunk(call.meta()) && Begins(call.arguments(), kPickled)) return false;
  if (entry == nullptr) return IsPlain(call.meta());
  if (PyTuple_GetItem(entry, 3) != Py_True) return false;
  if (PyTuple_GetItem(entry, 1) != Py_None) return true;
  return Begins(call.meta(), kPlainProgram) && !Begins(call.arguments(), kPickled);
}

PyObject* Python(PyObject* how, PyObject* id, PyObject* key, const CallSections& call,
                 const Received& received) {
  PyObject* const sections = TupleOf(call);
  PyObject* const descriptors = Descriptors(received);
  PyObject* const done =
      sections == nullptr || descriptors == nullptr
          ? nullptr
          : PyObject_CallMethodObjArgs(own.worker, how, id, key, sections, descriptors, nullptr);
  Py_XDECREF(sections);
  Py_XDECREF(descriptors);
  return done;
}

// Whether this process may do what came. It may load one thing, before its call, and then serves
// that: whatever else was loaded is another call's.
bool IsForUs(FrameKind kind, std::string_view identity) {
  if (kind == FrameKind::kCall) return !ahead.any || ahead.Is(identity);
  if (ahead.any) return false;
  ahead.any = true;
  memcpy(ahead.identity, identity.data(), sizeof ahead.identity);
  return true;
}

enum class Served { kGone, kOther, kCall, kFailed };

// Serves one frame. kFailed: an exception is set. `dummy`: a call of the warm-up, which is never
// the last one.
Served ServeOne(int fd, int cpus, bool skip_warm_up, bool dummy) {
  Received received;
  const Frame* const frame = ReceiveUnlocked(fd, &received);
  if (frame == nullptr) return RaiseErrno(), Served::kFailed;
  if (received.size < 0) return Served::kGone;
  const FrameKind kind = frame->header.kind;
  const uint64_t id = frame->header.id;
  const int cpu = static_cast<int>(frame->header.c) - 1;
  if (kind == FrameKind::kCall) BeginMeasuring(cpus, cpu);
  if (kind == FrameKind::kCommand) return StartCommand(&received), Served::kOther;
  CallSections call;
  if (!SectionsOf(received, &call)) {
    CloseAll(&received);
    return Served::kOther;
  }
  if (!dummy && !IsForUs(kind, call.identity)) {
    SendFrame(fd, {.kind = FrameKind::kMisdirected, .id = id});
    _exit(kMisdirectedExit);
  }
  PyObject* const key = BytesOf(call.identity);
  if (key == nullptr) return Served::kFailed;
  PyObject* const entry = PyDict_GetItemWithError(own.loaded, key);
  bool done = true;
  if (kind == FrameKind::kLoad) {
    if (call.any_in_descriptor() || !LoadPlain(key, call)) {
      PyObject* const loaded = Python(own.load, Py_None, key, call, received);
      done = loaded != nullptr;
      Py_XDECREF(loaded);
    }
    if (cpu >= 0 && !skip_warm_up) StayOn(cpus, cpu);  // when the call comes
  } else if (!call.any_in_descriptor() && IsServedHere(entry, call)) {
    Py_XINCREF(entry);
    done = ServePlain(fd, id, key, entry, call, received);
    Py_XDECREF(entry);
  } else {
    PyObject* const number = PyLong_FromUnsignedLongLong(id);
    PyObject* const handled = Python(own.handle, number, key, call, received);
    done = handled != nullptr;
    Py_XDECREF(number);
    Py_XDECREF(handled);
  }
  Py_DECREF(key);
  return !done ? Served::kFailed : kind == FrameKind::kCall ? Served::kCall : Served::kOther;
}

bool CallEach(PyObject* functions) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(functions); ++i) {
    PyObject* const result = PyObject_CallNoArgs(PyTuple_GetItem(functions, i));
    if (result == nullptr) return false;
    Py_DECREF(result);
  }
  return true;
}

bool WarmUp() {
  PyObject* const done = PyObject_CallMethodObjArgs(own.worker, own.warm_up, nullptr);
  Py_XDECREF(done);
  return done != nullptr;
}

// A handler that user code left may run in between.
[[noreturn]] void SleepForEver() {
  PyThreadState* state = PyEval_SaveThread();
  for (;;) {
    pause();
    PyEval_RestoreThread(state);
    PyErr_CheckSignals();
    PyErr_Clear();
    state = PyEval_SaveThread();
  }
}

[[noreturn]] void FailCell(uint64_t id) {
  PyObject* const error = TakeError();
  PyObject* const text = error == nullptr ? nullptr : PyObject_Repr(error);
  const char* const reason = text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, nullptr);
  char message[200];
  snprintf(message, sizeof message, "%s", reason == nullptr ? "a cell's preparation" : reason);
  SendFrame(kControlFd, {.kind = FrameKind::kFailed, .id = id}, message);
  _exit(72);
}

bool KeepsOn() {
  PyObject* const keep = PyObject_GetAttr(own.worker, own.keep);
  if (keep == nullptr) PyErr_Clear();
  Py_XDECREF(keep);
  return keep == Py_True;
}

// ---- methods

PyObject* ServeWith(PyObject*, PyObject* args) {
  if (!PyArg_ParseTuple(args, "OO!O!OO!OOOOO!i", &own.worker, &PyDict_Type, &own.loaded,
                        &PyDict_Type, &own.modules, &own.run_exit_functions, &PyList_Type,
                        &own.log_handlers, &own.unpickle, &own.unmarshal, &own.function_type,
                        &own.builtins_module, &PyDict_Type, &own.builtins, &own.cpus)) {
    return nullptr;
  }
  Py_INCREF(args);  // never released
  LearnCpus();
  if (!InstallInterruptHandler()) return RaiseErrno();
  if (!MakeNames()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* FlushAll(PyObject*, PyObject*) {
  FlushStreams();
  fflush(nullptr);  // what C code printed: no end of a call's process does it
  Py_RETURN_NONE;
}

PyObject* ReplyPair(PyObject*, PyObject* args) {
  int fd;
  unsigned long long id, most;
  PyObject* pair;
  if (!PyArg_ParseTuple(args, "iKOK", &fd, &id, &pair, &most)) return nullptr;
  ShortBody body;
  if (!body.EncodePair(pair) || body.size() > most) Py_RETURN_FALSE;
  MeasureEncoding();
  const FrameHeader header{
      .kind = FrameKind::kResult, .id = id, .b = body.size(), .c = body.size()};
  if (!SendReply(fd, header, body.bytes())) return nullptr;
  Py_RETURN_TRUE;
}

PyObject* ServeOneOf(PyObject*, PyObject* args) {
  int fd;
  if (!PyArg_ParseTuple(args, "i", &fd)) return nullptr;
  if (ServeOne(fd, 0, true, true) == Served::kFailed) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace

void ServeCell(PyObject* reseed, uint64_t id, bool skip_warm_up) {
  if (!CallEach(reseed) || (!skip_warm_up && !WarmUp())) FailCell(id);
  SendFrame(kControlFd, {.kind = FrameKind::kCellReady, .id = id});
  close(kControlFd);
  PyGC_Enable();
  MindForks();
  LearnCpuWait();
  for (;;) {
    if ((skip_warm_up || HasFootprint()) &&
        !Comes(kCallFd, kIdleMs)) {  // nobody waits for this cell
      if (skip_warm_up && !WarmUp()) PyErr_Print();
      TakeFootprint();
      skip_warm_up = false;
    }
    const Served served = ServeOne(kCallFd, own.cpus, skip_warm_up, false);
    if (served == Served::kGone) _exit(0);
    if (served == Served::kFailed) {
      PyErr_Print();
      _exit(1);
    }
    if (served != Served::kCall) continue;
    skip_warm_up = false;
    // After its last call a cell sleeps until it is killed: the closing of its socket would only
    // wake it to compete with the reader of the result.
    if (!KeepsOn()) SleepForEver();
    UnmapLent();
    LeaveAfterLong();
  }
}

PyMethodDef serving_methods[] = {
    {"serve_with", ServeWith, METH_VARARGS,
     "serve_with(worker, worker.loaded, sys.modules, what runs exit functions, logging's handlers, "
     "pickle.loads, marshal.loads, FunctionType, builtins, its dict, cpus)"},
    {"flush_streams", FlushAll, METH_NOARGS, "writes what was printed, whatever becomes of that"},
    {"reply_pair", ReplyPair, METH_VARARGS,
     "reply_pair(fd, call id, pair, most bytes): whether it was one of a short value and None, "
     "which is replied"},
    {"serve_one", ServeOneOf, METH_VARARGS, "serve_one(fd): one frame of a call's socket"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace hutch
