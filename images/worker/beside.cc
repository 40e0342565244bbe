// SPDX-License-Identifier: Apache-2.0

#include "images/worker/beside.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "images/warden/control.h"
#include "images/worker/frames.h"
#include "images/worker/process_tree.h"

namespace hutch {
namespace {

constexpr int kDescriptors = 4;
constexpr int kChannel = 0;         // of them
constexpr long kStack = 512 << 10;  // bytes of a thread's
constexpr int kLookMs = 50;         // at the CPU time of a command that has a limit
constexpr int kOfSignal = 128;      // an exit code above it is that of a signal
// As failures.py has it.
constexpr const char* kScratch[] = {"/work", "/tmp", "/dev/shm"};

// (start a thread, set the size of its stack, what it runs): set once a session has begun.
PyObject *start_thread, *stack_size, *run_command;
int reading = 0;  // threads

void Tell(int channel, FrameHeader header, const CallUsage* usage = nullptr) {
  iovec parts[2] = {{&header, sizeof header},
                    {const_cast<CallUsage*>(usage), usage == nullptr ? 0 : sizeof *usage}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  sendmsg(channel, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool StartThread(PyObject* descriptors) {
  PyObject* const small = PyLong_FromLong(kStack);
  PyObject* const before =
      small == nullptr ? nullptr : PyObject_CallFunctionObjArgs(stack_size, small, nullptr);
  PyObject* started = nullptr;
  if (before != nullptr) {
    started = PyObject_CallFunctionObjArgs(start_thread, run_command, descriptors, nullptr);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    Py_XDECREF(PyObject_CallFunctionObjArgs(stack_size, before, nullptr));
    PyErr_Restore(type, error, trace);
  }
  Py_XDECREF(small);
  Py_XDECREF(before);
  Py_XDECREF(started);
  return started != nullptr;
}

// Without a wait. False: a command does not lie first.
bool TakeOne() {
  FrameHeader header;
  if (recv(kCallFd, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT) !=
          static_cast<ssize_t>(sizeof header) ||
      header.magic != kFrameMagic || header.kind != FrameKind::kCommand) {
    return false;
  }
  bool is_whole;
  Received received;
  if (ReceiveInto(kCallFd, {&header, sizeof header}, MSG_DONTWAIT, &is_whole, &received) < 0)
    return false;
  StartCommand(&received);
  return true;
}

uint64_t Microseconds(const timeval& t) {
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000 + static_cast<uint64_t>(t.tv_usec);
}

// Until it has ended, or is to be.
CommandEnd Await(pid_t pid, int channel, uint64_t cpu_us) {
  const int end = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  CommandEnd how = kCommandExited;
  for (;;) {
    pollfd polled[2] = {{end, POLLIN, 0}, {channel, POLLIN | POLLRDHUP, 0}};
    const int ready = poll(polled, 2, cpu_us != 0 || end < 0 ? kLookMs : -1);
    if (ready < 0 && errno != EINTR) break;
    if (polled[0].revents != 0) break;
    siginfo_t info{};
    if (end < 0 &&
        (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0)) {
      break;
    }
    if (ready > 0 && polled[1].revents != 0) {
      how = kCommandCancelled;
      break;
    }
    if (cpu_us != 0 && CpuOfTreeUs(pid) >= cpu_us) {
      how = kCommandCpuTime;
      break;
    }
  }
  if (end >= 0) close(end);
  return how;
}

// What the scratch has none left of. A command that failed may have met that.
CommandEnd Shortage() {
  for (const char* const path : kScratch) {
    struct statvfs status;
    if (statvfs(path, &status) != 0) continue;
    if (status.f_blocks != 0 && status.f_bfree == 0) return kCommandNoSpace;
    if (status.f_files != 0 && status.f_ffree == 0) return kCommandNoFiles;
  }
  return kCommandExited;
}

// await_command(pid, channel, CPU time in ms or 0) -> exit code, or -1
PyObject* AwaitCommand(PyObject*, PyObject* args) {
  int pid, channel;
  unsigned long long cpu_ms;
  if (!PyArg_ParseTuple(args, "iiK", &pid, &channel, &cpu_ms)) return nullptr;
  int code = -1;
  Py_BEGIN_ALLOW_THREADS rusage usage{};
  CommandEnd how = Await(pid, channel, cpu_ms * 1000);
  int status = 0;
  if (how != kCommandExited) {
    status = EndTree(pid, &usage);
  } else if (TEMP_FAILURE_RETRY(wait4(pid, &status, 0, &usage)) != pid) {
    status = -1;
  }
  if (status != -1) {
    code = WIFSIGNALED(status) ? kOfSignal + WTERMSIG(status) : WEXITSTATUS(status);
    if (how == kCommandExited && code != 0) how = Shortage();
    CallUsage used{};
    used.cpu_us = Microseconds(usage.ru_utime) + Microseconds(usage.ru_stime);
    used.peak_kb = static_cast<uint64_t>(usage.ru_maxrss);
    CountBeside(used.cpu_us);
    Tell(channel, {.kind = FrameKind::kCommandEnded, .a = how, .b = static_cast<uint64_t>(code)},
         &used);
  }
  Py_END_ALLOW_THREADS return PyLong_FromLong(code);
}

PyObject* EndTreeOf(PyObject*, PyObject* args) {
  int pid;
  if (!PyArg_ParseTuple(args, "i", &pid)) return nullptr;
  int status;
  Py_BEGIN_ALLOW_THREADS rusage usage{};
  status = EndTree(pid, &usage);
  Py_END_ALLOW_THREADS return PyLong_FromLong(status == -1 ? SIGKILL : status);
}

PyObject* CommandsBy(PyObject*, PyObject* args) {
  PyObject *start, *size, *run;
  if (!PyArg_ParseTuple(args, "OOO", &start, &size, &run)) return nullptr;
  Py_INCREF(args);  // never released
  start_thread = start;
  stack_size = size;
  run_command = run;
  Py_RETURN_NONE;
}

// As a handler of signals is called.
PyObject* TakeCommandsOf(PyObject*, PyObject*) {
  TakeCommands();
  Py_RETURN_NONE;
}

}  // namespace

ReadingCalls::ReadingCalls() { ++reading; }

ReadingCalls::~ReadingCalls() { --reading; }

void StartCommand(Received* received) {
  if (received->count != kDescriptors || run_command == nullptr || IsFork())
    return CloseAll(received);
  PyObject* const descriptors = Descriptors(*received);
  if (descriptors == nullptr || !StartThread(descriptors)) {
    PyErr_Clear();
    Tell(received->descriptors[kChannel],
         {.kind = FrameKind::kCommandEnded, .a = kCommandNoThread});
    CloseAll(received);
  }
  Py_XDECREF(descriptors);
}

void TakeCommands() {
  while (run_command != nullptr && reading == 0 && !IsFork() && TakeOne()) {
  }
}

PyMethodDef beside_methods[] = {
    {"commands_by", CommandsBy, METH_VARARGS,
     "commands_by(start_new_thread, stack_size, run): from then on commands are taken, each by "
     "run(channel, stdout, stderr, order) in a thread"},
    {"take_commands", TakeCommandsOf, METH_VARARGS,
     "take_commands(signal, frame): those that wait"},
    {"await_command", AwaitCommand, METH_VARARGS,
     "await_command(pid, channel, cpu_ms) -> exit code, which is sent on its channel, or -1: other "
     "code has waited for it. It is killed with its tree once the channel says so"},
    {"end_tree", EndTreeOf, METH_VARARGS,
     "end_tree(pid) -> wait status: kills it with all that it has started"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace hutch
