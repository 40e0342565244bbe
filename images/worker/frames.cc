// SPDX-License-Identifier: Apache-2.0

#include "images/worker/frames.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "images/worker/beside.h"
#include "images/worker/printing.h"

namespace hutch {
namespace {

constexpr uint64_t kSlowLoadNs = 20'000'000;  // a load longer than this restarts the call's clock
constexpr uint64_t kLongNs = 5'000'000;       // a call in which it matters who else was running

alignas(4096) Frame incoming;  // so that a short one is of one page
size_t incoming_size = 0;

// The call being served.
struct Measured {
  rusage begin, end;
  bool ended;
  uint64_t clock_ns;  // of the last step
  uint64_t load_ns, wall_ns, encode_ns;
  uint32_t limit;
  uint64_t children_us;  // of processes that the calls until now have waited for
  uint64_t waited_ns;    // for a processor, as of the last time that it was read
} measured;
std::atomic<uint64_t> beside_us;  // CPU time of processes that were waited for beside calls

uint64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// How long the main thread could have run and waited for a processor, until now; 0: not known.
uint64_t CpuWaitNs() {
  char text[64] = "";
  unsigned long long ns = 0;
  const int fd = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  if (read(fd, text, sizeof text - 1) > 0) sscanf(text, "%*u %llu", &ns);
  close(fd);
  return ns;
}

uint64_t Step() {
  const uint64_t before = measured.clock_ns;
  measured.clock_ns = NowNs();
  return measured.clock_ns - before;
}

uint64_t CpuUs(const rusage& usage) {
  const auto us = [](const timeval& t) {
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000 + static_cast<uint64_t>(t.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

void MeasureEnd() {
  getrusage(RUSAGE_SELF, &measured.end);
  measured.ended = true;
}

CallUsage MeasuredUsage() {
  if (!measured.ended) MeasureEnd();
  CallUsage usage{};
  usage.load_us = measured.load_ns / 1000;
  usage.wall_us = measured.wall_ns / 1000;
  usage.cpu_us = CpuUs(measured.end) - CpuUs(measured.begin);
  usage.peak_kb = static_cast<uint64_t>(measured.end.ru_maxrss);
  if (measured.wall_ns >= kQuickUs * 1000) {  // a shorter one starts no other program
    rusage children;
    getrusage(RUSAGE_CHILDREN, &children);
    const uint64_t of_calls_us = CpuUs(children) - std::min<uint64_t>(CpuUs(children), beside_us);
    const uint64_t before_us = std::exchange(measured.children_us, of_calls_us);
    usage.cpu_us += of_calls_us - std::min(of_calls_us, before_us);
    usage.peak_kb = std::max(usage.peak_kb, static_cast<uint64_t>(children.ru_maxrss));
  }
  if (measured.wall_ns >= kLongNs) {
    const uint64_t before_ns = std::exchange(measured.waited_ns, CpuWaitNs());
    usage.cpu_wait_us = (measured.waited_ns - std::min(before_ns, measured.waited_ns)) / 1000;
  }
  usage.encode_us = measured.encode_ns / 1000;
  if (usage.encode_us >= kQuickUs) {
    rusage now;
    getrusage(RUSAGE_SELF, &now);
    usage.encode_us = CpuUs(now) - CpuUs(measured.end);
  }
  usage.minor_faults = static_cast<uint32_t>(
      std::min<long>(measured.end.ru_minflt - measured.begin.ru_minflt, 0x7fffffff));
  usage.limit = measured.limit;
  return usage;
}

// A bytes or bytearray as it is (the limited API of 3.10 has no buffers).
bool View(PyObject* object, iovec* part) {
  if (PyBytes_Check(object)) {
    part->iov_base = PyBytes_AsString(object);
    part->iov_len = static_cast<size_t>(PyBytes_Size(object));
  } else if (PyByteArray_Check(object)) {
    part->iov_base = PyByteArray_AsString(object);
    part->iov_len = static_cast<size_t>(PyByteArray_Size(object));
  } else {
    PyErr_SetString(PyExc_TypeError, "bytes or bytearray expected");
    return false;
  }
  return true;
}

// False with an exception.
bool SendParts(int fd, iovec* parts, size_t count) {
  WriteGathered();  // what was printed before is seen before
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  ssize_t sent;
  Py_BEGIN_ALLOW_THREADS sent = TEMP_FAILURE_RETRY(sendmsg(fd, &message, MSG_NOSIGNAL));
  Py_END_ALLOW_THREADS if (sent < 0) RaiseErrno();
  return sent >= 0;
}

PyObject* Recv(PyObject*, PyObject* args) {
  int fd;
  int waits = 1;
  if (!PyArg_ParseTuple(args, "i|p", &fd, &waits)) return nullptr;
  Received received;
  for (bool is_command = true; is_command;) {
    const ReadingCalls here;
    pollfd polled = {fd, POLLIN, 0};
    if (waits == 0 && poll(&polled, 1, 0) <= 0) return PyTuple_New(0);
    received = {};
    if (ReceiveUnlocked(fd, &received) == nullptr) return RaiseErrno();
    if (received.size < 0) Py_RETURN_NONE;
    is_command = incoming.header.kind == FrameKind::kCommand;
    if (is_command) StartCommand(&received);
  }
  const FrameHeader& header = incoming.header;
  PyObject* const frame =
      Py_BuildValue("(iIKKKy#N)", static_cast<int>(header.kind), header.a, header.id, header.b,
                    header.c, incoming.payload, received.size, Descriptors(received));
  TakeCommands();  // that came after it
  return frame;
}

// Keeps the calling thread on `count` CPUs, from `wanted` on, or from the current one, of those
// that the zygote could use. 0: on all.
class Pin {
 public:
  void Set(int count, int wanted) {
    if (count <= 0 || CPU_COUNT(&allowed_) <= count) return;
    const bool possible = wanted >= 0 && wanted < CPU_SETSIZE && CPU_ISSET(wanted, &allowed_);
    const int cpu = possible ? wanted : sched_getcpu();
    if (cpu < 0) return;
    cpu_set_t chosen;
    CPU_ZERO(&chosen);
    for (int i = 0; i < CPU_SETSIZE && count > 0; ++i) {
      const int candidate = (cpu + i) % CPU_SETSIZE;
      if (!CPU_ISSET(candidate, &allowed_)) continue;
      CPU_SET(candidate, &chosen);
      --count;
    }
    set_ = sched_setaffinity(0, sizeof chosen, &chosen) == 0;
  }
  void Learn() {
    if (sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
  }
  void Release() {
    if (set_) sched_setaffinity(0, sizeof allowed_, &allowed_);
    set_ = false;
  }

 private:
  bool set_ = false;
  cpu_set_t allowed_{};
} pin;

bool is_fork = false;

PyObject* Loaded(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(MeasureLoad()); }

PyObject* IsForkOf(PyObject*, PyObject*) { return PyBool_FromLong(IsFork() ? 1 : 0); }

PyObject* Ran(PyObject*, PyObject*) {
  MeasureRun();
  Py_RETURN_NONE;
}

PyObject* Encoded(PyObject*, PyObject*) {
  MeasureEncoding();
  Py_RETURN_NONE;
}

PyObject* HitLimit(PyObject*, PyObject* args) {
  if (!PyArg_ParseTuple(args, "I", &measured.limit)) return nullptr;
  Py_RETURN_NONE;
}

// The low bits of the id of the call that runs and may be interrupted; 0: none may.
volatile sig_atomic_t interruptible = 0;
// Those of a call that was interrupted before it came so far, or after it.
volatile sig_atomic_t interrupted = 0;
volatile sig_atomic_t is_always_interruptible = 1;  // by what names no call; not in a session

// The warden queues its interrupts, with a call's id: to processes of sessions alone. Any other is
// the code's own, or of a process that it has started.
void OnInterrupt(int, siginfo_t* info, void*) {
  if (info->si_code != SI_QUEUE) {
    if (is_always_interruptible != 0 || interruptible != 0) PyErr_SetInterrupt();
  } else if (interruptible != 0 && info->si_value.sival_int == interruptible) {
    PyErr_SetInterrupt();
  } else {
    interrupted = info->si_value.sival_int;
  }
}

PyObject *get_signal, *python_handler, *interrupt_number;  // of a session, once it has begun

PyObject* TakeInterrupts(PyObject*, PyObject*) {
  is_always_interruptible = 0;
  // Again: code that was loaded may have put a handler of its own there.
  if (!InstallInterruptHandler()) return RaiseErrno();
  PyObject* const module = PyImport_ImportModule("_signal");
  if (module == nullptr) return nullptr;
  get_signal = PyObject_GetAttrString(module, "getsignal");
  python_handler = PyObject_GetAttrString(module, "default_int_handler");
  interrupt_number = PyLong_FromLong(SIGINT);
  Py_DECREF(module);
  if (get_signal == nullptr || python_handler == nullptr || interrupt_number == nullptr)
    return nullptr;
  Py_RETURN_NONE;
}

// asyncio.run() leaves Python's own handler, which takes every interrupt for its own: one that
// comes before a call would end the process. A handler of the code's stays.
void PutHandlerBack() {
  if (get_signal == nullptr) return;
  PyObject* const now = PyObject_CallFunctionObjArgs(get_signal, interrupt_number, nullptr);
  if (now == nullptr) PyErr_Clear();
  if (now == python_handler) InstallInterruptHandler();
  Py_XDECREF(now);
}

// In C, so that no bytecode runs between the function's end and the moment from which the call
// cannot be interrupted. An interrupt that came after that is dropped.
PyObject* RunInterruptible(PyObject*, PyObject* args) {
  unsigned long long id;
  PyObject* function;
  if (!PyArg_ParseTuple(args, "KO", &id, &function)) return nullptr;
  interruptible = static_cast<int>(static_cast<uint32_t>(id));
  if (interrupted == interruptible) PyErr_SetInterrupt();
  interrupted = 0;
  PyObject* const result = PyObject_CallNoArgs(function);
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PutHandlerBack();
  interruptible = 0;
  if (PyErr_CheckSignals() != 0) PyErr_Clear();
  PyErr_Restore(type, error, traceback);
  return result;
}

bool ParseHeader(PyObject* args, int* fd, FrameHeader* header, PyObject** body) {
  int kind;
  unsigned long long id, b, c;
  if (!PyArg_ParseTuple(args, "iiIKKK|O", fd, &kind, &header->a, &id, &b, &c, body)) return false;
  header->kind = static_cast<FrameKind>(kind);
  header->id = id;
  header->b = b;
  header->c = c;
  return true;
}

PyObject* Send(PyObject*, PyObject* args) {
  int fd;
  FrameHeader header;
  PyObject* body = nullptr;
  if (!ParseHeader(args, &fd, &header, &body)) return nullptr;
  iovec parts[2] = {{&header, sizeof header}, {}};
  if (body != nullptr && !View(body, &parts[1])) return nullptr;
  if (!SendParts(fd, parts, 2)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* Reply(PyObject*, PyObject* args) {
  int fd;
  FrameHeader header;
  PyObject* body = nullptr;
  if (!ParseHeader(args, &fd, &header, &body)) return nullptr;
  iovec content{};
  if ((body != nullptr && !View(body, &content)) || !SendReply(fd, header, content)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* Pair(PyObject*, PyObject*) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return RaiseErrno();
  return Py_BuildValue("(ii)", pair[0], pair[1]);
}

PyObject* CpuUsed(PyObject*, PyObject*) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return PyLong_FromUnsignedLongLong(CpuUs(usage));
}

}  // namespace

const Frame* ReceiveUnlocked(int fd, Received* received) {
  const Frame* frame;
  Py_BEGIN_ALLOW_THREADS frame = Receive(fd, received);
  Py_END_ALLOW_THREADS return frame;
}

bool SectionsOf(const Received& received, CallSections* sections) {
  uint32_t lengths[kSections];
  constexpr size_t kBeforeSections = kIdentitySize + sizeof lengths;
  const auto size = static_cast<size_t>(received.size);
  const FrameHeader& header = incoming.header;
  if ((header.kind != FrameKind::kCall && header.kind != FrameKind::kLoad) ||
      header.a != kSections || size < kBeforeSections) {
    return false;
  }
  sections->identity = {incoming.payload, kIdentitySize};
  memcpy(lengths, incoming.payload + kIdentitySize, sizeof lengths);
  size_t at = kBeforeSections;
  for (int i = 0; i < kSections; ++i) {
    if (lengths[i] == kSectionInDescriptor) {
      sections->section[i] = std::string_view();
      continue;
    }
    if (lengths[i] > size - at) return false;
    sections->section[i] = {incoming.payload + at, lengths[i]};
    at += lengths[i];
  }
  return true;
}

PyObject* TupleOf(const CallSections& sections) {
  PyObject* const tuple = PyTuple_New(kSections);
  for (int i = 0; i < kSections && tuple != nullptr; ++i) {
    const std::string_view one = sections.section[i];
    PyTuple_SetItem(tuple, i,
                    one.data() == nullptr ? Py_NewRef(Py_None)
                                          : PyBytes_FromStringAndSize(
                                                one.data(), static_cast<Py_ssize_t>(one.size())));
  }
  return tuple;
}

PyObject* Descriptors(const Received& received) {
  PyObject* const descriptors = PyTuple_New(received.count);
  for (int i = 0; i < received.count && descriptors != nullptr; ++i) {
    PyTuple_SetItem(descriptors, i, PyLong_FromLong(received.descriptors[i]));
  }
  return descriptors;
}

void LearnCpus() { pin.Learn(); }

bool InstallInterruptHandler() {
  struct sigaction action{};
  action.sa_sigaction = OnInterrupt;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGINT, &action, nullptr) == 0;
}

void StayOn(int cpus, int cpu) { pin.Set(cpus, cpu); }

void LeaveAfterLong() {
  if (measured.wall_ns >= kQuickUs * 1000) pin.Release();
}

void BeginMeasuring(int cpus, int cpu) {
  StayOn(cpus, cpu);
  const auto [children_us, waited_ns] = std::pair(measured.children_us, measured.waited_ns);
  measured = Measured{};
  measured.children_us = children_us;
  measured.waited_ns = waited_ns;
  getrusage(RUSAGE_SELF, &measured.begin);
  measured.clock_ns = NowNs();
}

void LearnCpuWait() { measured.waited_ns = CpuWaitNs(); }

void MindForks() {
  pthread_atfork(nullptr, nullptr, [] { is_fork = true; });
}

bool IsFork() { return is_fork; }

uint64_t MeasureLoad() { return measured.load_ns = Step(); }

void TellSlowLoad(int fd, uint64_t id) {
  if (MeasureLoad() <= kSlowLoadNs) return;
  SendFrame(fd, {.kind = FrameKind::kStarted, .id = id});
  MeasureLoad();
}

void MeasureRun() {
  measured.wall_ns = Step();
  fflush(nullptr);  // what C code printed: this process never exits
  getrusage(RUSAGE_SELF, &measured.end);
  measured.ended = true;
}

void MeasureEncoding() { measured.encode_ns = Step(); }

void CountBeside(uint64_t cpu_us) { beside_us += cpu_us; }

bool SendFrame(int fd, FrameHeader header, std::string_view payload) {
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(payload.data()), payload.size()}};
  return SendParts(fd, parts, 2);
}

bool SendReply(int fd, FrameHeader header, iovec body) {
  CallUsage usage = MeasuredUsage();
  iovec parts[3] = {{&header, sizeof header}, {&usage, sizeof usage}, body};
  return SendParts(fd, parts, 3);
}

void CloseAll(Received* received) {
  while (received->count > 0) close(received->descriptors[--received->count]);
}

ssize_t ReceiveInto(int fd, iovec part, int flags, bool* is_whole, Received* received) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = TEMP_FAILURE_RETRY(recvmsg(fd, &message, flags | MSG_CMSG_CLOEXEC));
  *is_whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); size > 0 && c != nullptr;
       c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    received->count = static_cast<int>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(received->descriptors, CMSG_DATA(c), received->count * sizeof(int));
  }
  return size;
}

const Frame* Receive(int fd, Received* received) {
  bool is_whole;
  const ssize_t size = ReceiveInto(fd, {&incoming, sizeof incoming}, 0, &is_whole, received);
  if (size < 0 && errno != ECONNRESET) return nullptr;
  const auto arrived = static_cast<size_t>(std::max<ssize_t>(size, 0));
  if (arrived < incoming_size)
    memset(reinterpret_cast<char*>(&incoming) + arrived, 0, incoming_size - arrived);
  incoming_size = arrived;
  received->size = -1;
  if (size <= 0) return &incoming;
  const FrameHeader& header = incoming.header;
  if (static_cast<size_t>(size) < sizeof header || !is_whole || header.magic != kFrameMagic ||
      header.version != kFrameVersion) {
    CloseAll(received);
    errno = EPROTO;
    return nullptr;
  }
  received->size = size - static_cast<ssize_t>(sizeof header);
  return &incoming;
}

PyObject* RaiseErrno() { return PyErr_SetFromErrno(PyExc_OSError); }

PyMethodDef frame_methods[] = {
    {"recv", Recv, METH_VARARGS,
     "recv(fd, waits=True) -> (kind, a, id, b, c, payload, descriptors), None at the end, or, "
     "without a wait, (): nothing has come"},
    {"send", Send, METH_VARARGS, "send(fd, kind, a, id, b, c, body=b''): one frame"},
    {"pair", Pair, METH_NOARGS, "pair() -> (fd, fd): two ends of a channel for frames"},
    {"loaded", Loaded, METH_NOARGS, "loaded() -> ns: function and arguments are there"},
    {"is_fork", IsForkOf, METH_NOARGS, "is_fork() -> whether user code forked this process"},
    {"ran", Ran, METH_NOARGS, "the function has ended"},
    {"encoded", Encoded, METH_NOARGS, "its result is bytes"},
    {"hit_limit", HitLimit, METH_VARARGS, "hit_limit(limit): what ended the call"},
    {"reply", Reply, METH_VARARGS,
     "reply(fd, kind, a, id, b, c, body=b''): one frame, what was measured before the body"},
    {"take_interrupts", TakeInterrupts, METH_NOARGS,
     "SIGINT interrupts the call that it names, or, if it names none, the one that runs"},
    {"run_interruptible", RunInterruptible, METH_VARARGS,
     "run_interruptible(call id, function): calls it, while that call may be interrupted"},
    {"cpu_used", CpuUsed, METH_NOARGS, "cpu_used() -> microseconds of this process"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace hutch
