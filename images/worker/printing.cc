// SPDX-License-Identifier: Apache-2.0

#include "images/worker/printing.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "images/worker/frames.h"
#include "images/worker/serving_objects.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

// So many writes within that time are many.
constexpr int kMany = 512;
constexpr int64_t kManyNs = 10'000'000;
constexpr int64_t kWaitNs = 10'000'000;
constexpr size_t kLine = 1024;         // bytes: a line that is no longer has room in the page
constexpr size_t kStack = 256 * 1024;  // bytes; thread-local storage of libraries lies there too

// With the GIL: the one stream, what its type has from io.TextIOWrapper, and what tells of events.
PyObject *stream, *base, *base_write, *base_flush, *add_audit_hook;
bool prepared = false;
// Code has what lies below the stream. What it writes there comes in the order in which it was
// written, so that nothing is gathered from then on.
bool plain = false;
int64_t writes = 0;  // since:
int64_t since_ns = 0;
bool within_line = false;  // what was gathered last ends no line
pthread_t thread;
std::atomic<bool> has_thread = false;  // it was made, and nobody joins it yet

// No thread waits for the GIL while it holds this.
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t stopped;
bool stopping = false;  // the thread is to end
bool came = false;      // something was gathered since the thread looked
std::atomic<bool> gathers = false;

// Of the output that the cell was given.
dev_t output_device;
ino_t output_inode;

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// Whether descriptor 1 is what PID 1 writes to: code may have put another file in its place.
bool LeadsToOutput() {
  struct stat now;
  return fstat(STDOUT_FILENO, &now) == 0 && now.st_dev == output_device &&
         now.st_ino == output_inode;
}

enum class What { kLines, kAll };

// REQUIRES: `lock` is held. The page has no more of it while it is written: it would be written
// twice if the process ended then. Lines are whole for others that write there, as long as they
// are shorter than a page.
void WriteOut(What what) {
  if (!LeadsToOutput()) {
    gathers = false;
    what = What::kAll;
  }
  static char taken[sizeof output_page->bytes];
  char* const bytes = output_page->bytes;
  const size_t size = std::min<size_t>(output_page->size, sizeof taken);
  size_t left = size;
  if (what == What::kLines) {
    const void* const last = memrchr(bytes, '\n', size);
    if (last != nullptr) left = static_cast<size_t>(static_cast<const char*>(last) - bytes) + 1;
  }
  memcpy(taken, bytes, left);
  output_page->size = 0;
  memmove(bytes, bytes + left, size - left);
  output_page->size = static_cast<uint32_t>(size - left);
  for (const char* at = taken; left > 0;) {
    const ssize_t written = write(STDOUT_FILENO, at, left);
    if (written > 0) {
      at += written;
      left -= static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      pollfd room{STDOUT_FILENO, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      gathers = false;  // the next write is no gathered one, and raises the error
      output_page->size = 0;
      return;
    }
  }
}

void* WriteWhatIsOld(void*) {
  pthread_mutex_lock(&lock);
  do {
    const int64_t until_ns = NowNs() + kWaitNs;
    const timespec until{until_ns / 1'000'000'000, until_ns % 1'000'000'000};
    came = false;
    pthread_cond_timedwait(&stopped, &lock, &until);
    WriteOut(What::kLines);
  } while (came && gathers && !stopping);
  WriteOut(What::kAll);
  gathers = false;
  pthread_mutex_unlock(&lock);
  return nullptr;
}

// The thread is none of those that the call may have.
void MakeRoomForThread() {
  rlimit processes;
  if (getrlimit(RLIMIT_NPROC, &processes) != 0 || processes.rlim_cur >= processes.rlim_max) return;
  ++processes.rlim_cur;
  setrlimit(RLIMIT_NPROC, &processes);
}

bool StartThread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, kStack);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool made = pthread_create(&thread, &small, WriteWhatIsOld, nullptr) == 0;
  has_thread = made;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&small);
  return made;
}

// The thread has written what there was when it ends.
void EndThread() {
  if (!has_thread.exchange(false)) return;
  const pthread_t ending = thread;
  pthread_mutex_lock(&lock);
  stopping = true;
  pthread_cond_signal(&stopped);
  pthread_mutex_unlock(&lock);
  pthread_join(ending, nullptr);
}

void EndThreadUnlocked() {
  if (!has_thread) return;
  Py_BEGIN_ALLOW_THREADS EndThread();
  Py_END_ALLOW_THREADS
}

void BeforeFork() {
  EndThread();
  pthread_mutex_lock(&lock);
}

void AfterForkInParent() { pthread_mutex_unlock(&lock); }

void AfterForkInChild() {
  pthread_mutex_unlock(&lock);
  output_page = nullptr;  // it is the parent's
}

// sys.addaudithook(): of what else writes where this stream does.
PyObject* HeedEvent(PyObject*, PyObject* args) {
  if (!gathers) Py_RETURN_NONE;
  Py_ssize_t size = 0;
  const char* const name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(args, 0), &size);
  if (name == nullptr) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  const std::string_view event(name, static_cast<size_t>(size));
  for (const std::string_view one : {"open", "os.", "pty.", "subprocess."}) {
    if (event.substr(0, one.size()) == one) WriteGathered();
  }
  Py_RETURN_NONE;
}

PyMethodDef heed_event = {"heed_event", HeedEvent, METH_VARARGS, nullptr};

// Once in a process.
bool Prepare() {
  if (prepared) return true;
  PyObject* const hook = PyCFunction_New(&heed_event, nullptr);
  PyObject* const added =
      hook == nullptr ? nullptr : PyObject_CallFunctionObjArgs(add_audit_hook, hook, nullptr);
  Py_XDECREF(hook);
  Py_XDECREF(added);
  if (added == nullptr) PyErr_Clear();
  pthread_condattr_t steady;
  pthread_condattr_init(&steady);
  pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
  pthread_cond_init(&stopped, &steady);
  pthread_condattr_destroy(&steady);
  MakeRoomForThread();
  prepared =
      added != nullptr && pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0;
  return prepared;
}

// `text` was written. Nothing begins within a line, see Gather().
bool AreMany(PyObject* text) {
  if (writes == 0) since_ns = NowNs();
  const Py_ssize_t size = PyUnicode_GetLength(text);
  if (++writes < kMany || size == 0 || PyUnicode_ReadChar(text, size - 1) != '\n') return false;
  writes = 0;
  return NowNs() - since_ns < kManyNs;
}

void BeginGathering() {
  EndThreadUnlocked();  // one that has found nothing to write, and may not be gone yet
  stopping = false;
  gathers = true;
  within_line = false;
  if (!IsFork() && Prepare() && StartThread()) return;
  WriteGathered();  // of other threads, meanwhile
  gathers = false;
  plain = true;
}

// False: nothing is gathered. No other thread gets the GIL within a line, whose pieces are whole
// for them then, as they are without this.
bool Gather(const char* bytes, size_t size) {
  while (gathers) {
    if (within_line) {
      pthread_mutex_lock(&lock);
    } else if (pthread_mutex_trylock(&lock) != 0) {
      Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&lock);
      pthread_mutex_unlock(&lock);
      Py_END_ALLOW_THREADS continue;
    }
    const size_t used = output_page->size;
    const size_t room = sizeof output_page->bytes - std::min(used, sizeof output_page->bytes);
    if (!gathers || room >= (within_line ? size : std::max(size, kLine))) {
      if (gathers) {
        memcpy(output_page->bytes + used, bytes, size);
        output_page->size = static_cast<uint32_t>(used + size);
        came = true;
        if (size > 0) within_line = bytes[size - 1] != '\n';
      }
      const bool gathered = gathers;
      pthread_mutex_unlock(&lock);
      return gathered;
    }
    Py_BEGIN_ALLOW_THREADS WriteOut(What::kLines);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
  }
  return false;
}

// Whether all of `text` is in the page now. One that UTF-8 cannot express is not.
bool GatherText(PyObject* text) {
  if (!PyUnicode_CheckExact(text) ||
      PyUnicode_GetLength(text) > static_cast<Py_ssize_t>(sizeof output_page->bytes)) {
    return false;
  }
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text, &size);
  if (bytes == nullptr) PyErr_Clear();
  return bytes != nullptr && static_cast<size_t>(size) <= sizeof output_page->bytes &&
         Gather(bytes, static_cast<size_t>(size));
}

// Code flushes before it puts another file in the place of this one: what follows is not gathered
// until it is known where it goes.
PyObject* Flush(PyObject* self, PyObject*) {
  if (self == stream) {
    WriteGathered();
    EndThreadUnlocked();
  }
  return PyObject_CallFunctionObjArgs(base_flush, self, nullptr);
}

PyObject* Write(PyObject* self, PyObject* text) {
  if (self != stream || output_page == nullptr || plain)
    return PyObject_CallFunctionObjArgs(base_write, self, text, nullptr);
  if (gathers && GatherText(text)) return PyLong_FromSsize_t(PyUnicode_GetLength(text));
  WriteGathered();
  PyObject* const written = PyObject_CallFunctionObjArgs(base_write, self, text, nullptr);
  const bool many = written != nullptr && !gathers && AreMany(text) && LeadsToOutput();
  if (!gathers && !many) return written;
  // What follows may not come before it.
  PyObject* const flushed = PyObject_CallFunctionObjArgs(base_flush, self, nullptr);
  Py_XDECREF(flushed);
  if (flushed == nullptr) {
    Py_XDECREF(written);
    return nullptr;
  }
  if (many) BeginGathering();
  return written;
}

void BePlain(PyObject* self) {
  if (self != stream || std::exchange(plain, true)) return;
  EndThreadUnlocked();
}

PyObject* Buffer(PyObject* self, void*) {
  BePlain(self);
  PyObject* const member = PyObject_GetAttrString(base, "buffer");
  if (member == nullptr) return nullptr;
  PyObject* const buffer = PyObject_CallMethod(member, "__get__", "O", self);
  Py_DECREF(member);
  return buffer;
}

// As cloudpickle has it, which goes by the type: another process has a stream of its own.
PyObject* Reduce(PyObject* self, PyObject* protocol) {
  if (self != stream) {
    PyObject* const refuse = PyObject_GetAttrString(base, "__reduce_ex__");
    PyObject* const reduced =
        refuse == nullptr ? nullptr : PyObject_CallFunctionObjArgs(refuse, self, protocol, nullptr);
    Py_XDECREF(refuse);
    return reduced;
  }
  return Py_BuildValue("(O(Ns))", PyDict_GetItemString(own.builtins, "getattr"),
                       PyImport_ImportModule("sys"), "stdout");
}

PyObject* CallBase(const char* name, PyObject* self, PyObject* args, PyObject* kwargs) {
  BePlain(self);
  PyObject* const method = PyObject_GetAttrString(base, name);
  PyObject* const before = Py_BuildValue("(O)", self);
  PyObject* const all = before == nullptr ? nullptr : PySequence_Concat(before, args);
  PyObject* const result =
      method == nullptr || all == nullptr ? nullptr : PyObject_Call(method, all, kwargs);
  Py_XDECREF(method);
  Py_XDECREF(before);
  Py_XDECREF(all);
  return result;
}

PyObject* Close(PyObject* self, PyObject* args) { return CallBase("close", self, args, nullptr); }

PyObject* Detach(PyObject* self, PyObject* args) { return CallBase("detach", self, args, nullptr); }

PyObject* Fileno(PyObject* self, PyObject* args) { return CallBase("fileno", self, args, nullptr); }

PyObject* Reconfigure(PyObject* self, PyObject* args, PyObject* kwargs) {
  return CallBase("reconfigure", self, args, kwargs);
}

PyMethodDef stream_methods[] = {
    {"write", Write, METH_O, nullptr},
    {"flush", Flush, METH_NOARGS, nullptr},
    {"close", Close, METH_VARARGS, nullptr},
    {"detach", Detach, METH_VARARGS, nullptr},
    {"fileno", Fileno, METH_VARARGS, nullptr},
    {"__reduce_ex__", Reduce, METH_O, nullptr},
    {"reconfigure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Reconfigure)),
     METH_VARARGS | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef stream_members[] = {
    {"buffer", Buffer, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot stream_slots[] = {
    {Py_tp_methods, stream_methods},
    {Py_tp_getset, stream_members},
    {0, nullptr},
};

PyType_Spec stream_spec = {"_io.TextIOWrapper", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           stream_slots};

PyObject* MakeStdout(PyObject*, PyObject* args) {
  PyObject *type, *buffer;
  if (!PyArg_ParseTuple(args, "OOO", &type, &buffer, &add_audit_hook)) return nullptr;
  Py_INCREF(args);  // never released
  base = type;
  base_write = PyObject_GetAttrString(base, "write");
  base_flush = PyObject_GetAttrString(base, "flush");
  PyObject* const bases = Py_BuildValue("(O)", base);
  PyObject* const kind = bases == nullptr ? nullptr : PyType_FromSpecWithBases(&stream_spec, bases);
  Py_XDECREF(bases);
  if (base_write == nullptr || base_flush == nullptr || kind == nullptr) return nullptr;
  stream = PyObject_CallFunction(kind, "OssOi", buffer, "utf-8", "backslashreplace", Py_None, 1);
  Py_DECREF(kind);
  return Py_XNewRef(stream);
}

}  // namespace

OutputPage* output_page = nullptr;

void RenewOutputPage(int output) {
  struct stat given;
  if (fstat(output, &given) == 0) {
    output_device = given.st_dev;
    output_inode = given.st_ino;
  }
  if (output_page != nullptr && WallIsDown("page")) return;
  if (output_page != nullptr) munmap(output_page, sizeof *output_page);
  void* const made =
      mmap(nullptr, sizeof *output_page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  output_page = made == MAP_FAILED ? nullptr : static_cast<OutputPage*>(made);
}

void WriteGathered() {
  if (!gathers) return;
  Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&lock);
  WriteOut(What::kAll);
  pthread_mutex_unlock(&lock);
  Py_END_ALLOW_THREADS
}

PyMethodDef printing_methods[] = {
    {"make_stdout", MakeStdout, METH_VARARGS,
     "make_stdout(io.TextIOWrapper, buffer, sys.addaudithook): a stream that writes each line at "
     "once, and gathers those that come quickly"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace hutch
