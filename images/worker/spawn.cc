// SPDX-License-Identifier: Apache-2.0

#include "images/worker/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "images/worker/frames.h"
#include "images/worker/printing.h"

namespace hutch {
namespace {

constexpr int kAbove = 10;  // where descriptors go first, so that none overwrites another
constexpr int kMostGiven = 4;

struct Order {
  std::vector<char*> programs;  // the paths to be tried, one after another
  std::vector<char*> arguments;
  std::vector<char*> environment;
  char* directory = nullptr;
  int descriptors[kMostGiven] = {-1, -1, -1, -1};
  int given = 3;  // of them
  int lifts_cpu_limit = 0;
};

// What the child reports to its parent, whose memory it has.
struct Failure {
  volatile int error = 0;
  const char* volatile step = "";
};

// A handler would run in the parent's memory; what is ignored would stay so in the program.
void ResetSignals() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action;
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_DFL) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// A descriptor that is closed in the parent is /dev/null.
void PlaceDescriptors(const Order& order) {
  int moved[kMostGiven];
  for (int i = 0; i < order.given; ++i)
    moved[i] = fcntl(order.descriptors[i], F_DUPFD_CLOEXEC, kAbove);
  for (int i = 0; i < order.given; ++i) {
    if (moved[i] >= 0) {
      dup2(moved[i], i);
      continue;
    }
    const int null = open("/dev/null", O_RDWR);
    if (null != i && null >= 0) {
      dup2(null, i);
      if (null >= order.given) close(null);
    }
  }
  syscall(SYS_close_range, static_cast<unsigned>(order.given), ~0U, 0U);
}

// In the child. Returns where the program cannot be started.
void Become(const Order& order, Failure* failure) {
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  if (order.directory != nullptr && chdir(order.directory) != 0) {
    failure->error = errno;
    failure->step = "chdir";
    return;
  }
  PlaceDescriptors(order);
  ResetSignals();
  rlimit cpu;
  if (order.lifts_cpu_limit != 0 && getrlimit(RLIMIT_CPU, &cpu) == 0) {
    cpu.rlim_cur = cpu.rlim_max;
    setrlimit(RLIMIT_CPU, &cpu);
  }
  int refused = 0;  // what is said of one that is there comes before what is not there
  for (char* program : order.programs) {
    if (program == nullptr) break;
    execve(program, order.arguments.data(), order.environment.data());
    if (errno != ENOENT && errno != ENOTDIR && refused == 0) refused = errno;
  }
  failure->error = refused != 0 ? refused : ENOENT;
  failure->step = "exec";
}

// Not inlined: the child has this frame too.
__attribute__((noinline)) pid_t Start(const Order& order, Failure* failure) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // posix_spawn() lifts no limit and makes no subreaper.
  // NOLINTBEGIN(bugprone-unsafe-functions,clang-analyzer-*)
  const pid_t pid = vfork();
  if (pid == 0) {
    Become(order, failure);
    // NOLINTEND(bugprone-unsafe-functions,clang-analyzer-*)
    _exit(127);
  }
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

// False: an exception is set.
bool TextsOf(PyObject* tuple, std::vector<char*>* texts) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) {
    char* text;
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &text, nullptr) != 0) return false;
    texts->push_back(text);
  }
  texts->push_back(nullptr);
  return true;
}

PyObject* Spawn(PyObject*, PyObject* args) {
  PyObject *programs, *arguments, *environment, *directory;
  Order order;
  int(&fd)[kMostGiven] = order.descriptors;
  if (!PyArg_ParseTuple(args, "O!O!O!O(iii)|ii", &PyTuple_Type, &programs, &PyTuple_Type,
                        &arguments, &PyTuple_Type, &environment, &directory, &fd[0], &fd[1], &fd[2],
                        &fd[3], &order.lifts_cpu_limit) ||
      !TextsOf(programs, &order.programs) || !TextsOf(arguments, &order.arguments) ||
      !TextsOf(environment, &order.environment)) {
    return nullptr;
  }
  if (directory != Py_None && PyBytes_AsStringAndSize(directory, &order.directory, nullptr) != 0) {
    return nullptr;
  }
  if (fd[3] >= 0) order.given = kMostGiven;
  Failure failure;
  WriteGathered();
  const pid_t pid = Start(order, &failure);
  if (pid < 0) return RaiseErrno();
  if (failure.error == 0) return PyLong_FromLong(pid);
  TEMP_FAILURE_RETRY(waitpid(pid, nullptr, 0));
  PyObject* const said = Py_BuildValue("(is)", failure.error, failure.step);
  if (said != nullptr) PyErr_SetObject(PyExc_OSError, said);
  Py_XDECREF(said);
  return nullptr;
}

}  // namespace

PyMethodDef spawn_methods[] = {
    {"spawn", Spawn, METH_VARARGS,
     "spawn(programs, arguments, environment, directory, (stdin, stdout, stderr), descriptor 3=-1, "
     "lifts_cpu_limit=0) -> pid: the first of these paths that there is. OSError's text is "
     "\"chdir\" or \"exec\" where that failed"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace hutch
