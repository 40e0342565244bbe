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
#include "images/worker/footprint.h"
#include "images/worker/lent.h"

namespace hutch {
namespace {

constexpr int kIdleMs = 20;
constexpr int kMisdirectedExit = 73;
constexpr uint64_t kSlowLoadNs = 20'000'000;  // a load longer than this restarts the call's clock
constexpr size_t kShort = 4096;               // bytes of a text that is encoded here
constexpr size_t kLongestHeader = 9;          // of a value, in bytes

// What serve_with() got, and names: made in the zygote.
struct {
  PyObject *worker, *loaded;  // `loaded`: the worker's, by identity (meta, function, code, plain)
  PyObject *modules, *run_exit_functions, *log_handlers;
  PyObject *unpickle, *unmarshal, *function_type, *builtins_module, *builtins;
  PyObject *finish_program, *exit_program, *fail_program, *resume_chunk, *compiled, *filename,
      *main, *file_name, *annotations;
  PyObject *threading, *active_threads, *thread_exits;
  PyObject *load, *handle, *buffers, *finish, *fail, *leave_fork, *function_of, *warm_up, *keep,
      *flush, *builtins_name;
  int cpus;
} own;

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

PyObject* BytesOf(std::string_view section) {
  return PyBytes_FromStringAndSize(section.data(), static_cast<Py_ssize_t>(section.size()));
}

// A new reference, or nullptr with an exception.
PyObject* CallWithBytes(PyObject* function, std::string_view section) {
  PyObject* bytes = BytesOf(section);
  PyObject* result =
      bytes == nullptr ? nullptr : PyObject_CallFunctionObjArgs(function, bytes, nullptr);
  Py_XDECREF(bytes);
  return result;
}

bool Begins(std::string_view section, char first) {
  return !section.empty() && section[0] == first;
}

bool IsMarshalled(std::string_view code) { return Begins(code, kMarshalled); }
bool IsKept(std::string_view meta) { return Begins(meta, kPlainKept); }
bool IsChunk(std::string_view meta) { return Begins(meta, kPlainChunk); }
bool IsPlain(std::string_view meta) {
  return Begins(meta, kPlain) || IsKept(meta) || IsChunk(meta);
}

// A function that refers to nothing: (code, globals, defaults).
PyObject* MakeFunction(std::string_view marshalled) {
  PyObject* const parts = CallWithBytes(own.unmarshal, marshalled);
  if (parts == nullptr) return nullptr;
  PyObject *code, *globals, *defaults, *function = nullptr;
  if (PyArg_ParseTuple(parts, "OO!O", &code, &PyDict_Type, &globals, &defaults) &&
      PyDict_SetItem(globals, own.builtins_name, own.builtins) == 0) {
    function =
        PyObject_CallFunctionObjArgs(own.function_type, code, globals, Py_None, defaults, nullptr);
  }
  Py_DECREF(parts);
  return function;
}

PyObject* FunctionOf(std::string_view code) {
  if (IsMarshalled(code)) return MakeFunction(code.substr(1));
  PyObject* const bytes = BytesOf(code);
  if (bytes == nullptr) return nullptr;
  PyObject* const function =
      PyObject_CallMethodObjArgs(own.worker, own.function_of, bytes, nullptr);
  Py_DECREF(bytes);
  return function;
}

// What they were made of, a new reference.
PyObject* Unpacked(const CallSections& call, const Received& received) {
  const std::string_view section = call.arguments();
  if (call.places().empty())
    return CallWithBytes(Begins(section, kPickled) ? own.unpickle : own.unmarshal, section);
  PyObject* const buffers =
      BuffersOf(call.places(), {received.descriptors, static_cast<size_t>(received.count)});
  PyObject* const given = buffers == nullptr ? nullptr : Py_BuildValue("(N)", BytesOf(section));
  PyObject* const lent = given == nullptr ? nullptr : Py_BuildValue("{OO}", own.buffers, buffers);
  PyObject* const arguments = lent == nullptr ? nullptr : PyObject_Call(own.unpickle, given, lent);
  Py_XDECREF(buffers);
  Py_XDECREF(given);
  Py_XDECREF(lent);
  return arguments;
}

// (positional, by name or nullptr), as new references; of a chunk a list of positional ones.
bool LoadArguments(const CallSections& call, const Received& received, bool of_chunk,
                   PyObject** args, PyObject** kwargs) {
  const bool pickled = Begins(call.arguments(), kPickled);
  PyObject* const given = Unpacked(call, received);
  if (given == nullptr) return false;
  if (!pickled) {
    *args = given;
    if (of_chunk ? PyList_Check(given) : PyTuple_Check(given)) return true;
    PyErr_SetString(PyExc_TypeError, "the arguments of a call are a tuple, of a chunk a list");
    return false;
  }
  if (!PyArg_ParseTuple(given, "O!O!", &PyTuple_Type, args, &PyDict_Type, kwargs)) {
    Py_DECREF(given);
    *args = *kwargs = nullptr;
    return false;
  }
  Py_INCREF(*args);
  Py_INCREF(*kwargs);
  Py_DECREF(given);
  return true;
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

char encoded[kMaxPayload - sizeof(CallUsage)];

// MessagePack as encode.py writes it, into `encoded`.
class ShortBody {
 public:
  ShortBody() {
    Put(0xC1);
    Put(1);
  }

  // False: no value for here.
  bool Encode(PyObject* value) {
    if (size_ + kLongestHeader + kShort > sizeof encoded) return false;
    if (value == Py_None) return Put(0xC0), true;
    if (PyBool_Check(value)) return Put(value == Py_True ? 0xC3 : 0xC2), true;
    if (PyLong_CheckExact(value)) return EncodeInt(value);
    if (PyFloat_CheckExact(value)) {
      const double number = PyFloat_AsDouble(value);
      uint64_t bits;
      memcpy(&bits, &number, sizeof bits);
      Put(0xCB);
      PutBig(bits, 8);
      return true;
    }
    if (PyUnicode_CheckExact(value)) return EncodeText(value);
    if (!PyBytes_CheckExact(value)) return false;
    const auto size = static_cast<size_t>(PyBytes_Size(value));
    if (size > kShort) return false;
    PutSize(size, 0xC4, 0xC5);
    PutAll(PyBytes_AsString(value), size);
    return true;
  }
  // ("ok", values): what a chunk gives of which no item raised.
  bool EncodeAll(PyObject* values) {
    const auto count = static_cast<size_t>(PyList_Size(values));
    constexpr char kPairOfOk[] = "\x93\xd4\x01\x01\xa2ok";
    if (count > 0xffff) return false;
    PutAll(kPairOfOk, sizeof kPairOfOk - 1);
    Put(0xDC);
    PutBig(count, 2);
    for (size_t i = 0; i < count; ++i) {
      if (!Encode(PyList_GetItem(values, static_cast<Py_ssize_t>(i)))) return false;
    }
    return true;
  }
  size_t size() const { return size_; }

 private:
  void Put(int byte) { encoded[size_++] = static_cast<char>(byte); }
  void PutBig(uint64_t value, int bytes) {
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) Put(static_cast<int>(value >> shift));
  }
  void PutSize(size_t size, int one, int two) {
    const bool small = size < 256;
    Put(small ? one : two);
    PutBig(size, small ? 1 : 2);
  }
  void PutAll(const char* bytes, size_t size) {
    memcpy(encoded + size_, bytes, size);
    size_ += size;
  }

  bool EncodeInt(PyObject* value) {
    int overflow = 0;
    const long long x = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    const auto bits = static_cast<uint64_t>(x);
    if (x >= -32 && x < 128) {
      Put(static_cast<int>(x & 0xFF));
    } else if (x >= 0) {
      const int step = x < 1 << 8 ? 0 : x < 1 << 16 ? 1 : x < 1LL << 32 ? 2 : 3;
      Put(0xCC + step);
      PutBig(bits, 1 << step);
    } else {
      const int step = x >= -(1 << 7) ? 0 : x >= -(1 << 15) ? 1 : x >= -(1LL << 31) ? 2 : 3;
      Put(0xD0 + step);
      PutBig(bits, 1 << step);
    }
    return true;
  }

  bool EncodeText(PyObject* value) {
    // A long one is not even looked at: it would keep its UTF-8 beside it.
    if (static_cast<size_t>(PyUnicode_GetLength(value)) > kShort) return false;
    Py_ssize_t length = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(value, &length);
    if (text == nullptr) PyErr_Clear();  // surrogates
    const auto size = static_cast<size_t>(length);
    if (text == nullptr || size > kShort) return false;
    if (size < 32) {
      Put(static_cast<int>(0xA0 | size));
    } else {
      PutSize(size, 0xD9, 0xDA);
    }
    PutAll(text, size);
    return true;
  }

  size_t size_ = 0;
};

// The exception that is set, as an object with its traceback.
PyObject* TakeError() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr && value != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return value;
}

// In a process that user code forked, and that came back from it: call.py ends it. What it came
// back with is no reply.
[[noreturn]] void LeaveFork() {
  PyObject* const error = PyErr_Occurred() == nullptr ? Py_NewRef(Py_None) : TakeError();
  PyObject_CallMethodObjArgs(own.worker, own.leave_fork, error, nullptr);
  _exit(1);
}

void TellSlowLoad(int fd, uint64_t id) {
  if (MeasureLoad() <= kSlowLoadNs) return;
  SendFrame(fd, {.kind = FrameKind::kStarted, .id = id});
  MeasureLoad();
}

// Whether a module's list or dict of that name has more items; where there is none it has not.
bool HasMore(PyObject* module, PyObject* name, Py_ssize_t few) {
  PyObject* const found = PyObject_GetAttr(module, name);
  const Py_ssize_t size = found == nullptr ? 0 : PyObject_Size(found);
  PyErr_Clear();
  Py_XDECREF(found);
  return size > few;
}

constexpr Py_ssize_t kNamesOfMain = 8;  // before a program adds some

// As end_interpreter() of call.py does it.
PyObject* FinishProgram(PyObject* space) {
  PyObject* const threading = PyDict_GetItemWithError(own.modules, own.threading);
  if ((threading != nullptr &&
       (HasMore(threading, own.active_threads, 1) || HasMore(threading, own.thread_exits, 0))) ||
      PyList_Size(own.log_handlers) > 1 || PyDict_Size(space) > kNamesOfMain) {
    return PyObject_CallMethodObjArgs(own.worker, own.finish_program, nullptr);
  }
  return PyObject_CallNoArgs(own.run_exit_functions);
}

bool PrepareMain(PyObject* space, PyObject* main, PyObject* filename) {
  PyObject* const annotations = PyDict_New();
  PyObject* const arguments = PyList_New(0);
  char directory[4096];
  PyObject* const here = getcwd(directory, sizeof directory) == nullptr
                             ? nullptr
                             : PyUnicode_DecodeFSDefault(directory);
  PyObject* const path = PySys_GetObject("path");
  const bool done = annotations != nullptr && arguments != nullptr && here != nullptr &&
                    path != nullptr && PyList_Append(arguments, filename) == 0 &&
                    PySys_SetObject("argv", arguments) == 0 && PyList_Insert(path, 0, here) == 0 &&
                    PyDict_SetItem(space, own.file_name, filename) == 0 &&
                    PyDict_SetItem(space, own.builtins_name, own.builtins_module) == 0 &&
                    PyDict_SetItem(space, own.annotations, annotations) == 0 &&
                    PyDict_SetItem(own.modules, own.main, main) == 0;
  Py_XDECREF(annotations);
  Py_XDECREF(arguments);
  Py_XDECREF(here);
  return done;
}

// A program that was compiled ahead and is given nothing of its own, to its end: None, or an
// exception.
PyObject* RunProgram(int fd, uint64_t id, PyObject* text) {
  PyObject* const code = PyObject_GetAttr(text, own.compiled);
  PyObject* const filename = PyObject_GetAttr(text, own.filename);
  PyObject* const main = PyModule_NewObject(own.main);
  PyObject* const space = main == nullptr ? nullptr : PyModule_GetDict(main);
  PyObject* result = nullptr;
  if (code != nullptr && filename != nullptr && space != nullptr &&
      PrepareMain(space, main, filename)) {
    TellSlowLoad(fd, id);
    result = PyEval_EvalCode(code, space, space);
    if (result != nullptr) {
      Py_DECREF(result);
      result = FinishProgram(space);
    } else if (PyErr_ExceptionMatches(PyExc_SystemExit)) {
      PyObject* const error = TakeError();
      result = PyObject_CallMethodObjArgs(own.worker, own.exit_program, error, nullptr);
      Py_XDECREF(error);
    } else {
      PyObject* const error = TakeError();
      Py_XDECREF(PyObject_CallMethodObjArgs(own.worker, own.fail_program, error, nullptr));
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
      Py_DECREF(error);
    }
  }
  Py_XDECREF(code);
  Py_XDECREF(filename);
  Py_XDECREF(main);
  return result;
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
    done = SendReply(fd, header, {encoded, body.size()});
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
  const struct {
    PyObject** name;
    const char* text;
  } names[] = {{&own.load, "load"},
               {&own.handle, "handle"},
               {&own.buffers, "buffers"},
               {&own.finish, "finish"},
               {&own.fail, "fail"},
               {&own.leave_fork, "leave_fork"},
               {&own.keep, "keep"},
               {&own.function_of, "function_of"},
               {&own.flush, "flush"},
               {&own.warm_up, "warm_up"},
               {&own.builtins_name, "__builtins__"},
               {&own.finish_program, "finish_program"},
               {&own.exit_program, "exit_program"},
               {&own.fail_program, "fail_program"},
               {&own.resume_chunk, "resume_chunk"},
               {&own.compiled, "compiled"},
               {&own.filename, "filename"},
               {&own.main, "__main__"},
               {&own.file_name, "__file__"},
               {&own.annotations, "__annotations__"},
               {&own.threading, "threading"},
               {&own.active_threads, "_active"},
               {&own.thread_exits, "_threading_atexits"}};
  for (const auto& [name, text] : names) {
    if (*name == nullptr) *name = PyUnicode_InternFromString(text);
    if (*name == nullptr) return nullptr;
  }
  Py_RETURN_NONE;
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
    LeaveAfterLong();
  }
}

PyMethodDef serving_methods[] = {
    {"serve_with", ServeWith, METH_VARARGS,
     "serve_with(worker, worker.loaded, sys.modules, what runs exit functions, logging's handlers, "
     "pickle.loads, marshal.loads, FunctionType, builtins, its dict, cpus)"},
    {"serve_one", ServeOneOf, METH_VARARGS, "serve_one(fd): one frame of a call's socket"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace hutch
