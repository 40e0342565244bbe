// SPDX-License-Identifier: Apache-2.0

// The extension module _hutch_cell: what zygote.py and call.py need of the kernel. CPython's
// limited API of 3.10, so that one file serves every interpreter.
//
// Thread contract: frames (`send`, `recv`) from one thread at a time; everything else from the only
// thread of its process.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "images/warden/control.h"
#include "images/worker/beside.h"
#include "images/worker/cell_init.h"
#include "images/worker/footprint.h"
#include "images/worker/frames.h"
#include "images/worker/lent.h"
#include "images/worker/network.h"
#include "images/worker/pages.h"
#include "images/worker/printing.h"
#include "images/worker/serving.h"
#include "images/worker/single_cell.h"
#include "images/worker/slot.h"
#include "images/worker/spawn.h"

namespace hutch {
namespace {

CellPlan plan;

PyObject* Failed(const char* step) {
  PyObject* arguments = Py_BuildValue("(is)", errno, step);
  if (arguments == nullptr) return nullptr;
  PyErr_SetObject(PyExc_OSError, arguments);
  Py_DECREF(arguments);
  return nullptr;
}

// Calls what modules registered with os.register_at_fork(). What one raises is written to stderr.
void CallAll(PyObject* hooks) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(hooks); ++i) {
    PyObject* hook = PyTuple_GetItem(hooks, i);
    PyObject* result = PyObject_CallNoArgs(hook);
    if (result == nullptr) PyErr_WriteUnraisable(hook);
    Py_XDECREF(result);
  }
}

PyObject* Fork(PyObject*, PyObject*) {
  PyOS_BeforeFork();
  const long pid = ForkSlot();
  if (pid == 0) {
    PyOS_AfterFork_Child();
  } else {
    PyOS_AfterFork_Parent();
  }
  if (pid < 0) {
    errno = static_cast<int>(-pid);
    return RaiseErrno();
  }
  return PyLong_FromLong(pid);
}

PyObject* Enter(PyObject*, PyObject* args) {
  int control;
  int cgroup = -1;
  unsigned long long memory_kb, disk_kb, pids, nofile;
  const char* mounts = "";
  const char* egress = "";
  if (!PyArg_ParseTuple(args, "iKKKK|sis", &control, &memory_kb, &disk_kb, &pids, &nofile, &mounts,
                        &cgroup, &egress))
    return nullptr;
  const SlotOptions options{memory_kb, disk_kb, pids, nofile, mounts, cgroup, egress};
  bool locks_shared = false;
  if (const char* step = EnterSlot(options, control, &plan, &locks_shared)) return Failed(step);
  return PyBool_FromLong(locks_shared);
}

// A forwarder of its own for each cell that has a network; the last one's ends first.
long MakeNetworkAndCell(const Received& received, uint64_t id, const int (&descriptors)[3],
                        const char** step) {
  if (has_network()) StopForwarder();
  if (const char* failed = RenewNetwork()) return *step = failed, -errno;
  if (has_network()) {
    if (const char* failed = StartForwarder(received.descriptors[3])) return *step = failed, -errno;
  }
  return MakeCell(plan, id, descriptors, step);
}

// Of Serve(): what modules registered to be called around a fork, and what seeds generators.
struct {
  PyObject *before, *parent, *child, *reseed;
} hooks;

// In a user process of a kept cell that is not its first.
[[noreturn]] void ServeAgain() {
  const uint64_t id = BeginAgain();
  CallAll(hooks.before);
  CallAll(hooks.child);
  ServeCell(hooks.reseed, id, true);
}

// Makes cells until the warden is gone. PyOS_BeforeFork() and its like are not called: they
// repair locks that another thread may hold, and there is no other thread here. They would cost as
// much as the fork.
PyObject* Serve(PyObject*, PyObject* args) {
  if (!PyArg_ParseTuple(args, "O!O!O!O!", &PyTuple_Type, &hooks.before, &PyTuple_Type,
                        &hooks.parent, &PyTuple_Type, &hooks.child, &PyTuple_Type, &hooks.reseed)) {
    return nullptr;
  }
  if (_setjmp(restart_frame) != 0) ServeAgain();
  for (;;) {
    Received received;
    const Frame* frame = Receive(kControlFd, &received);
    if (frame == nullptr || received.size < 0) _exit(received.size < 0 ? 0 : 70);
    if (frame->header.kind == kKeepCell && received.count == 0) {
      FrameHeader kept = frame->header;
      KeepCell();
      kept.kind = kCellKept;
      if (send(kControlFd, &kept, sizeof kept, MSG_NOSIGNAL) < 0) _exit(70);
      continue;
    }
    if (frame->header.kind == FrameKind::kNextUser && received.count == 1) {
      if (!PassNextUser(frame->header, received.descriptors[0])) _exit(70);
      CloseAll(&received);
      continue;
    }
    if (frame->header.kind != FrameKind::kMakeCell || received.count != (has_network() ? 4 : 3))
      _exit(70);
    const int descriptors[3] = {received.descriptors[0], received.descriptors[1],
                                received.descriptors[2]};
    const uint64_t id = frame->header.id;
    const bool skip_warm_up = frame->header.c == kSkipWarmUp;
    const char* step = "";
    CallAll(hooks.before);
    const long made = MakeNetworkAndCell(received, id, descriptors, &step);
    if (made == 0) {
      CallAll(hooks.child);
      ServeCell(hooks.reseed, id, skip_warm_up);
    }
    CallAll(hooks.parent);
    CloseAll(&received);
    if (made < 0) {
      FrameHeader failed;
      failed.kind = FrameKind::kFailed;
      failed.id = id;
      failed.b = static_cast<uint64_t>(-made);
      iovec parts[2] = {{&failed, sizeof failed}, {const_cast<char*>(step), strlen(step)}};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = 2;
      sendmsg(kControlFd, &message, MSG_NOSIGNAL);
      _exit(71);
    }
  }
}

// This process becomes the one cell of a worker that can make none. Returns only if that failed.
PyObject* EnterSingleCell(PyObject*, PyObject* args) {
  int control, gvisor;
  PyObject* reseed;
  unsigned slot;
  unsigned long long memory_kb, disk_kb, pids, nofile;
  if (!PyArg_ParseTuple(args, "iIKKKKiO!", &control, &slot, &memory_kb, &disk_kb, &pids, &nofile,
                        &gvisor, &PyTuple_Type, &reseed)) {
    return nullptr;
  }
  uint64_t id = 0;
  bool skip_warm_up = false;
  const SlotOptions options{memory_kb, disk_kb, pids, nofile};
  if (const char* step = BecomeSingleCell(options, control, slot, gvisor != 0, &id, &skip_warm_up))
    return Failed(step);
  ServeCell(reseed, id, skip_warm_up);
}

// Whether one more process may be made now: distinguishes EAGAIN of the process limit from any
// other.
PyObject* CanFork(PyObject*, PyObject*) {
  const pid_t pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (pid == 0) syscall(SYS_exit_group, 0);
  if (pid > 0) TEMP_FAILURE_RETRY(waitpid(pid, nullptr, 0));
  return PyBool_FromLong(pid > 0);
}

// Every cell can open /proc/self/exe, which is the one file that all cells of a worker see as the
// same inode. The zygote always holds every lock on it that can be taken on a file opened for
// reading, so that cells cannot communicate by locks there.
PyObject* LockExecutable(PyObject*, PyObject*) {
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct flock all{};
  all.l_type = F_RDLCK;
  all.l_whence = SEEK_SET;
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 || fcntl(fd, F_OFD_SETLK, &all) != 0)
    return RaiseErrno();
  return PyLong_FromLong(fd);
}

// OpenSSL reseeds after a fork when getpid() has changed. A cell's pids are small, and so may the
// zygote's have been: draw from both of its generators once, so that the state which a grandchild
// inherits is the cell's own.
using Draw = int (*)(unsigned char*, int);
using Add = void (*)(const void*, int, double);
struct Generator {
  Add add = nullptr;
  Draw draw[2] = {};
};
Generator openssl[2];

// To look for a library costs a hundred system calls where it is not: once, in the zygote.
PyObject* FindOpenssl(PyObject*, PyObject*) {
  Generator* found = openssl;
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);  // never closed: it stays
    if (library == nullptr) continue;
    found->add = reinterpret_cast<Add>(dlsym(library, "RAND_add"));
    found->draw[0] = reinterpret_cast<Draw>(dlsym(library, "RAND_bytes"));
    found->draw[1] = reinterpret_cast<Draw>(dlsym(library, "RAND_priv_bytes"));
    ++found;
  }
  Py_RETURN_NONE;
}

PyObject* StirOpenssl(PyObject*, PyObject*) {
  for (const Generator& generator : openssl) {
    if (generator.add == nullptr) continue;
    unsigned char fresh[32];
    if (getentropy(fresh, sizeof fresh) != 0) return RaiseErrno();
    generator.add(fresh, sizeof fresh, sizeof fresh);
    for (const Draw draw : generator.draw) {
      unsigned char byte;
      if (draw != nullptr) draw(&byte, 1);
    }
  }
  Py_RETURN_NONE;
}

PyObject* BigArenas(PyObject*, PyObject*) {
  UseBigArenas();
  Py_RETURN_NONE;
}

PyObject* Settle(PyObject*, PyObject*) {
  SettlePages();
  Py_RETURN_NONE;
}

PyObject* Watch(PyObject*, PyObject*) {
  WatchPages();
  Py_RETURN_NONE;
}

PyObject* Touched(PyObject*, PyObject*) {
  const Footprint found = TouchedPages();
  return PyBytes_FromStringAndSize(found.bytes, static_cast<Py_ssize_t>(found.size));
}

PyObject* Keep(PyObject*, PyObject* args) {
  const char* bytes;
  Py_ssize_t size, most;
  if (!PyArg_ParseTuple(args, "y#n", &bytes, &size, &most)) return nullptr;
  const Footprint footprint{bytes, static_cast<size_t>(size)};
  return PyLong_FromSize_t(KeepFootprint(footprint, static_cast<size_t>(most)));
}

PyMethodDef methods[] = {
    {"fork_slot", Fork, METH_NOARGS, "fork with the same parent"},
    {"enter_slot", Enter, METH_VARARGS,
     "enter_slot(control, memory_kb, disk_kb, pids, nofile, mounts='', cgroup=-1, egress='') -> "
     "locks are shared"},
    {"enter_single_cell", EnterSingleCell, METH_VARARGS,
     "enter_single_cell(control, slot, memory_kb, disk_kb, pids, nofile, gvisor, reseed): become "
     "the one "
     "cell of this worker, and serve its call"},
    {"serve", Serve, METH_VARARGS,
     "serve(before, parent, child, reseed): make cells, with these tuples of hooks around each "
     "fork; "
     "each serves its call"},
    {"can_fork", CanFork, METH_NOARGS, "whether one more process may be made"},
    {"lock_executable", LockExecutable, METH_NOARGS, "hold every lock on /proc/self/exe"},
    {"use_big_arenas", BigArenas, METH_NOARGS,
     "what is allocated from now on may lie in big pages"},
    {"settle_pages", Settle, METH_NOARGS, "no more of that; make big pages of what is there"},
    {"watch_pages", Watch, METH_NOARGS, "from now on, which pages this process touches"},
    {"touched_pages", Touched, METH_NOARGS,
     "those, as bytes; none where the kernel does not report them"},
    {"keep_footprint", Keep, METH_VARARGS,
     "keep_footprint(touched pages, most): cells that wait have them ahead, if no more than `most` "
     "are to be copied -> so many"},
    {"find_openssl", FindOpenssl, METH_NOARGS, "find OpenSSL where it is loaded"},
    {"stir_openssl", StirOpenssl, METH_NOARGS,
     "give the generators of what was found a state of this process"},
    {nullptr, nullptr, 0, nullptr},
};

// What call.py and zygote.py use of wire/cell_frame.h and control.h.
constexpr struct {
  const char* name;
  long value;
} kConstants[] = {
    {"CALL", static_cast<long>(FrameKind::kCall)},
    {"STARTED", static_cast<long>(FrameKind::kStarted)},
    {"RESULT", static_cast<long>(FrameKind::kResult)},
    {"RAISED", static_cast<long>(FrameKind::kRaised)},
    {"UNENCODABLE", static_cast<long>(FrameKind::kUnencodable)},
    {"NEED", static_cast<long>(FrameKind::kNeed)},
    {"MEMFD", static_cast<long>(FrameKind::kMemfd)},
    {"TOO_LARGE", static_cast<long>(FrameKind::kTooLarge)},
    {"PART", static_cast<long>(FrameKind::kPart)},
    {"SAY", static_cast<long>(FrameKind::kSay)},
    {"ASK", static_cast<long>(FrameKind::kAsk)},
    {"ANSWER", static_cast<long>(FrameKind::kAnswer)},
    {"COMMAND_BEGUN", static_cast<long>(FrameKind::kCommandBegun)},
    {"COMMAND_ENDED", static_cast<long>(FrameKind::kCommandEnded)},
    {"COMMAND_DONE", static_cast<long>(FrameKind::kCommandDone)},
    {"MAKE_SLOT", static_cast<long>(FrameKind::kMakeSlot)},
    {"ZYGOTE_READY", static_cast<long>(FrameKind::kZygoteReady)},
    {"SLOT_READY", static_cast<long>(FrameKind::kSlotReady)},
    {"FAILED", static_cast<long>(FrameKind::kFailed)},
    {"CONFIG", static_cast<long>(kConfig)},
    {"IMPORTING", static_cast<long>(kImporting)},
    {"SKIP", static_cast<long>(kSkip)},
    {"IN_MEMFD", kFlagInMemfd},
    {"IN_PARTS", kFlagInParts},
    {"MOST_IN_PARTS", kMostInParts},
    {"MAX_PAYLOAD", kMaxPayload},
    {"SECTIONS", kSections},
    {"USAGE_SIZE", sizeof(CallUsage)},
    {"PLAIN", kPlain},
    {"PLAIN_KEPT", kPlainKept},
    {"PICKLE", static_cast<unsigned char>(kPickled)},
    {"MARSHAL", static_cast<unsigned char>(kMarshalled)},
    {"LIMIT_MEMORY", kLimitMemory},
    {"LIMIT_PIDS", kLimitPids},
    {"LIMIT_DISK", kLimitDisk},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_hutch_cell", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace hutch

PyMODINIT_FUNC PyInit__hutch_cell() {
  PyObject* module = PyModule_Create(&hutch::module);
  if (module != nullptr && (PyModule_AddFunctions(module, hutch::frame_methods) != 0 ||
                            PyModule_AddFunctions(module, hutch::lent_methods) != 0 ||
                            PyModule_AddFunctions(module, hutch::printing_methods) != 0 ||
                            PyModule_AddFunctions(module, hutch::serving_methods) != 0 ||
                            PyModule_AddFunctions(module, hutch::spawn_methods) != 0 ||
                            PyModule_AddFunctions(module, hutch::beside_methods) != 0)) {
    return nullptr;
  }
  for (const auto& [name, value] : hutch::kConstants) {
    if (module != nullptr && PyModule_AddIntConstant(module, name, value) != 0) return nullptr;
  }
  return module;
}
