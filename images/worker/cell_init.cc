// SPDX-License-Identifier: Apache-2.0

#include "images/worker/cell_init.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "images/warden/control.h"
#include "images/worker/printing.h"
#include "images/worker/raw_syscall.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr int kNamespaces =
    CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS;
constexpr unsigned long kQuiet = MS_NOSUID | MS_NODEV;

// Between MakeCell() and CellInit(), which share memory. One cell at a time.
struct Birth {
  const CellPlan* plan;
  uint64_t id;
  int done;  // pipe: PID 1 writes one byte when the user process exists; its end is PID 1's death
  int descriptors[3];      // of the cell's call
  int next[2] = {-1, -1};  // of kNextUser: the slot's end, and that of its cells' PID 1s; made once
  volatile bool kept;      // the slot writes it, PID 1 reads it
  const char* failed_step;
  int failed_errno;
  jmp_buf frame;  // of MakeCell() in the slot
};
Birth birth;
alignas(64) char init_stack[32 * 1024];

struct Thread {
  int* tid = nullptr;
  void* robust_head = nullptr;
  size_t robust_size = 0;
  void* rseq = nullptr;
};
Thread thread;

[[noreturn]] void Exit(int status) {
  for (;;) RawCall(SYS_exit_group, status);
}

[[noreturn]] void FailInit(const char* step, long error) {
  birth.failed_step = step;
  birth.failed_errno = static_cast<int>(-error);
  Exit(1);
}

void Check(const char* step, long result) {
  if (result < 0) FailInit(step, result);
}

void WriteText(const char* path, const char* text) {
  size_t size = 0;
  while (text[size] != '\0') ++size;
  const long fd = RawCall(SYS_openat, AT_FDCWD, Arg(path), O_WRONLY | O_CLOEXEC);
  Check(path, fd);
  Check(path, RawCall(SYS_write, fd, Arg(text), static_cast<long>(size)));
  RawCall(SYS_close, fd);
}

void Mount(const char* source, const char* target, const char* type, unsigned long flags,
           const char* options) {
  Check(target, RawCall(SYS_mount, Arg(source), Arg(target), Arg(type), static_cast<long>(flags),
                        Arg(options)));
}

long OpenDirectory(const char* path) {
  const long fd = RawCall(SYS_openat, AT_FDCWD, Arg(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  Check(path, fd);
  return fd;
}

// One tmpfs is the working directory, /tmp and /dev/shm: one size limit, one thing to measure.
// Paths are the cell's, whose working directory is /work.
long MountScratch(const char* options) {
  Mount("scratch", "/work", "tmpfs", kQuiet, options);
  Check("chdir", RawCall(SYS_chdir, Arg("/work")));
  Check("mkdir", RawCall(SYS_mkdirat, AT_FDCWD, Arg("cwd"), 0755));
  Check("mkdir", RawCall(SYS_mkdirat, AT_FDCWD, Arg("tmp"), 01777));
  Check("mkdir", RawCall(SYS_mkdirat, AT_FDCWD, Arg("shm"), 01777));
  const long root = OpenDirectory(".");
  Mount("tmp", "/tmp", nullptr, MS_BIND, nullptr);
  Mount("shm", "/dev/shm", nullptr, MS_BIND, nullptr);
  Mount("cwd", "/work", nullptr, MS_BIND, nullptr);
  return root;
}

// Read-only: no call can undo its oom_score_adj, by which it goes before anything of the host, or
// reach what else a process may write to there (clear_refs of shared pages, loginuid, which counts
// for the whole machine).
long MountProc(const CellPlan& plan) {
  // No user namespace below this one: it would hand out capabilities again. The cell's filter
  // refuses them too. Written where the container's /proc still is.
  if (!WallIsDown("namespaces")) WriteText("/proc/sys/user/max_user_namespaces", "0");
  const unsigned long flags = kQuiet | MS_NOEXEC | (WallIsDown("proc-writes") ? 0 : MS_RDONLY);
  // The first is the warden's alone, and covered at once: to look something up in a directory waits
  // for those that list it or make something there, which is the call in its own.
  if (!WallIsDown("proc")) Mount("proc", "/proc", "proc", flags, nullptr);
  const long root = OpenDirectory("/proc");
  if (!WallIsDown("proc")) Mount("proc", "/proc", "proc", flags, nullptr);
  for (int i = 0; i < plan.masks; ++i)
    Mount(plan.mask_by[i], plan.mask[i], nullptr, MS_BIND, nullptr);
  return root;
}

// As sendmsg().
long SendFrame(int fd, FrameHeader header, const int* descriptors, int count, int flags) {
  iovec part{&header, sizeof header};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    int* out = reinterpret_cast<int*>(CMSG_DATA(rights));
    for (int i = 0; i < count; ++i) out[i] = descriptors[i];
  }
  return RawCall(SYS_sendmsg, fd, Arg(&message), MSG_NOSIGNAL | flags);
}

void Tell(FrameKind kind, uint32_t a, const int* descriptors, int count) {
  FrameHeader header;
  header.kind = kind;
  header.id = birth.id;
  header.a = a;
  Check("send to the warden", SendFrame(kControlFd, header, descriptors, count, 0));
}

// Closes all but the control socket, the descriptors of the call, and where kNextUser comes from.
void CloseOthers() {
  long first = 0;
  for (;;) {
    long next = kLastFd;
    for (const int kept : {kControlFd, birth.descriptors[0], birth.descriptors[1],
                           birth.descriptors[2], birth.next[1]}) {
      if (kept >= first && kept < next) next = kept;
    }
    if (next > first) RawCall(SYS_close_range, first, next == kLastFd ? next : next - 1, 0);
    if (next == kLastFd) return;
    first = next + 1;
  }
}

// libc caches the thread id: the kernel writes the new one where the old one was (a stale one turns
// abort() into SIGSEGV).
long CloneUser() {
#if defined(__x86_64__)
  return RawCall(SYS_clone, SIGCHLD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, 0, 0,
                 Arg(thread.tid), 0);
#else
  return RawCall(SYS_clone, SIGCHLD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, 0, 0, 0,
                 Arg(thread.tid));
#endif
}

// Ends every other process of the cell. A process that is killed makes no more, and one that its
// parent leaves behind is ours, so that none is left when there is none to wait for.
void EndOthers() {
  long pid;
  do {
    RawCall(SYS_kill, -1, SIGKILL);
    pid = RawCall(SYS_wait4, -1, 0, __WALL, 0);
  } while (pid != -ECHILD);
}

// What the user process had gathered to be printed, and was not there to write.
void WriteGatheredRest() {
  if (output_page == nullptr || output_page->size == 0) return;
  if (!birth.kept) EndOthers();  // they could fill the pipe as quickly as it is read
  size_t left = output_page->size;
  output_page->size = 0;
  if (left > sizeof output_page->bytes) return;
  for (const char* at = output_page->bytes; left > 0;) {
    const long written = RawCall(SYS_write, birth.descriptors[1], Arg(at), static_cast<long>(left));
    if (written == -EAGAIN) {
      pollfd room{birth.descriptors[1], POLLOUT, 0};
      const timespec most{1, 0};
      if (RawCall(SYS_ppoll, Arg(&room), 1, Arg(&most), 0, 0) <= 0) return;
    } else if (written > 0) {
      at += written;
      left -= static_cast<size_t>(written);
    } else if (written != -EINTR) {
      return;
    }
  }
}

// Tells the client to ask the agent. The agent alone is believed, so this may get lost: as where
// code left the socket full, or shut.
void TellClient() {
  FrameHeader header;
  header.kind = FrameKind::kUserEnded;
  RawCall(SYS_sendto, birth.descriptors[0], Arg(&header), sizeof header,
          MSG_NOSIGNAL | MSG_DONTWAIT, 0, 0);
}

// Waits for the socket of the calls of the next user process. No earlier one has had it.
int ReceiveCallSocket() {
  for (;;) {
    FrameHeader header;
    iovec part{&header, sizeof header};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const long size = RawCall(SYS_recvmsg, birth.next[1], Arg(&message), MSG_CMSG_CLOEXEC);
    if (size == -EINTR) continue;
    if (size <= 0) Exit(1);
    const cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    if (rights == nullptr || rights->cmsg_len != CMSG_LEN(sizeof(int))) continue;
    const int received = *reinterpret_cast<const int*>(CMSG_DATA(rights));
    // Above the places that the user process puts its own to.
    const long socket = RawCall(SYS_fcntl, received, F_DUPFD_CLOEXEC, kControlFd + 1);
    RawCall(SYS_close, received);
    Check("call socket", socket);
    if (header.id == birth.id) return static_cast<int>(socket);
    RawCall(SYS_close, socket);  // an earlier cell's
  }
}

int CellInit(void*) {
  const CellPlan& plan = *birth.plan;
  WriteText("/proc/self/uid_map", plan.uid_map);
  WriteText("/proc/self/gid_map",
            plan.gid_map);  // setgroups is denied in the slot's namespace, and so in this one
  const long scratch = MountScratch(plan.scratch_options);
  const long proc = MountProc(plan);
  const int shown[2] = {static_cast<int>(proc), static_cast<int>(scratch)};
  Tell(kCellMade, 0, shown, 2);
  // From here on this memory is nobody's to look into. The user process makes its own copy dumpable
  // again.
  if (!WallIsDown("dumpable")) Check("PR_SET_DUMPABLE", RawCall(SYS_prctl, PR_SET_DUMPABLE, 0));

  long user = CloneUser();
  if (user == 0) _longjmp(birth.frame, 1);
  Check("clone of the user process", user);
  const char done = 1;
  RawCall(SYS_write, birth.done, Arg(&done), 1);
  CloseOthers();
  for (;;) {
    int status = 0;
    const long pid = RawCall(SYS_wait4, -1, Arg(&status), __WALL | WUNTRACED, 0);
    if (pid == -ECHILD) Exit(1);
    if (pid != user) continue;
    // Stopped is ended too: nobody outside would ever continue it, and its caller would wait in
    // vain.
    if (birth.kept) EndOthers();
    WriteGatheredRest();
    if (!birth.kept) {
      Tell(kCellStatus, static_cast<uint32_t>(status), nullptr, 0);
      Exit(0);
    }
    Tell(kCellStatus, static_cast<uint32_t>(status), nullptr, 0);
    TellClient();
    RawCall(SYS_close, birth.descriptors[0]);
    birth.descriptors[0] = ReceiveCallSocket();
    user = CloneUser();
    if (user == 0) _longjmp(restart_frame, 1);
    Check("clone of the user process", user);
  }
}

void RestoreThread() {
  if (thread.robust_head != nullptr)
    syscall(SYS_set_robust_list, thread.robust_head, thread.robust_size);
  if (thread.rseq != nullptr) {
#if defined(__x86_64__)
    constexpr unsigned kSignature = 0x53053053;
#else
    constexpr unsigned kSignature = 0xd428bc00;
#endif
    syscall(SYS_rseq, thread.rseq, 32, 0, kSignature);
  }
}

constexpr int kPipeBytes = 64 << 10;  // as the kernel makes one, and the most that code may set

// What an earlier user process may have set of the open files that it shared with this one: of its
// output.
const char* ResetFlags(const int (&descriptors)[3]) {
  for (const int fd : {descriptors[1], descriptors[2]}) {
    if (fcntl(fd, F_SETFL, 0) != 0 || fcntl(fd, F_SETOWN, 0) != 0 || fcntl(fd, F_SETSIG, 0) != 0 ||
        flock(fd, LOCK_UN) != 0)
      return "flags";
    fcntl(fd, F_SETPIPE_SZ, kPipeBytes);  // it stays small where this user's pipes have too much
  }
  return nullptr;
}

const char* PlaceDescriptors(const int (&descriptors)[3]) {
  // Opened anew: locks, flags and owners belong to an open file, which the slot's is for all cells.
  if (!WallIsDown("stdin")) {
    const int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) return "stdin";
    if (null != STDIN_FILENO) close(null);
  }
  if (dup2(descriptors[1], STDOUT_FILENO) < 0) return "stdout";
  if (dup2(descriptors[2], STDERR_FILENO) < 0) return "stderr";
  if (descriptors[0] != kCallFd && dup3(descriptors[0], kCallFd, O_CLOEXEC) < 0)
    return "call socket";
  if (WallIsDown("descriptors")) return nullptr;
  return syscall(SYS_close_range, kControlFd + 1, kLastFd, 0) == 0 ? nullptr : "close_range";
}

[[noreturn]] void FailCell(const char* step) {
  struct {
    FrameHeader header;
    char text[64];
  } message{};
  message.header.kind = FrameKind::kFailed;
  message.header.id = birth.id;
  message.header.b = static_cast<uint64_t>(errno);
  strncpy(message.text, step, sizeof message.text - 1);
  send(kControlFd, &message, sizeof message.header + strlen(message.text), MSG_NOSIGNAL);
  Exit(1);
}

}  // namespace

const char* RaiseWalls(const Limits& limits, const int (&descriptors)[3]) {
  if (const char* step = PlaceDescriptors(descriptors)) return step;
  if (setsid() < 0) return "setsid";
  if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0)
    return "PR_SET_DUMPABLE";  // /proc/self is its own; the warden reads its size
  if (chdir("/work") != 0) return "/work";
  if (const char* step = ApplyLimits(limits)) return step;
  if (const char* step = DropCapabilities()) return step;
  if (const char* step = EnterDomain()) return step;
  if (const char* step = InstallFilter()) return step;
  sigset_t none;
  sigemptyset(&none);
  return sigprocmask(SIG_SETMASK, &none, nullptr) == 0 ? nullptr : "sigprocmask";
}

jmp_buf restart_frame;

void KeepCell() { birth.kept = true; }

bool PassNextUser(const FrameHeader& header, int descriptor) {
  return SendFrame(birth.next[0], header, &descriptor, 1, MSG_DONTWAIT) >= 0;
}

uint64_t BeginAgain() {
  RestoreThread();
  const char* failed = ResetFlags(birth.descriptors);
  if (failed == nullptr) failed = RaiseWalls(birth.plan->limits, birth.descriptors);
  if (failed != nullptr) FailCell(failed);
  return birth.id;
}

bool LearnThread() {
  if (prctl(PR_GET_TID_ADDRESS, &thread.tid, 0, 0, 0) != 0) return false;
  syscall(SYS_get_robust_list, 0, &thread.robust_head, &thread.robust_size);
  const void* offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
  const void* size = dlsym(RTLD_DEFAULT, "__rseq_size");
  if (offset != nullptr && size != nullptr && *static_cast<const unsigned*>(size) != 0) {
    thread.rseq =
        static_cast<char*>(__builtin_thread_pointer()) + *static_cast<const ptrdiff_t*>(offset);
  }
  return thread.tid != nullptr;
}

bool PrepareToKeep(int least) {
  int made[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, made) != 0) return false;
  for (int i = 0; i < 2; ++i) {
    birth.next[i] = fcntl(made[i], F_DUPFD_CLOEXEC, least);
    if (birth.next[i] < 0) return false;
  }
  return close(made[0]) == 0 && close(made[1]) == 0;
}

bool CloseFrom(int first) {
  for (const int kept : {birth.next[0], birth.next[1]}) {
    if (kept < first) continue;  // a cell that is the container has none
    if (kept > first && syscall(SYS_close_range, first, kept - 1, 0) != 0) return false;
    first = kept + 1;
  }
  return syscall(SYS_close_range, first, kLastFd, 0) == 0;
}

// Not inlined: the user process returns from this frame, in a copy of it.
__attribute__((noinline)) long MakeCell(const CellPlan& plan, uint64_t id,
                                        const int (&descriptors)[3], const char** step) {
  int done[2];
  if (pipe2(done, O_CLOEXEC) != 0) return *step = "pipe", -errno;
  birth.plan = &plan;
  birth.id = id;
  birth.done = done[1];
  birth.kept = false;
  RenewOutputPage(descriptors[1]);
  for (int i = 0; i < 3; ++i) birth.descriptors[i] = descriptors[i];
  birth.failed_step = nullptr;
  if (_setjmp(birth.frame) != 0) {
    RestoreThread();
    if (const char* failed = RaiseWalls(birth.plan->limits, descriptors)) FailCell(failed);
    return 0;
  }
  // The id maps can only be written by a dumpable process.
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  const int pid = clone(CellInit, init_stack + sizeof init_stack,
                        CLONE_VM | CLONE_PARENT | kNamespaces | SIGCHLD, nullptr);
  const int error = errno;
  close(done[1]);
  // A byte: the user process is there. The end without one: PID 1 failed, and said why, or was
  // killed, since the user process may be ready, and the agent done with it, before PID 1 writes.
  // That is the end of a cell, not of the slot.
  char byte = 0;
  if (pid > 0) [[maybe_unused]]
    const ssize_t size = TEMP_FAILURE_RETRY(read(done[0], &byte, 1));
  close(done[0]);
  if (!WallIsDown("dumpable")) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  if (pid > 0 && birth.failed_step == nullptr) return 1;
  *step = pid > 0 ? birth.failed_step : "clone";
  return pid > 0 ? -birth.failed_errno : -error;
}

}  // namespace hutch
