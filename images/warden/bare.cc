// SPDX-License-Identifier: Apache-2.0

// The warden's one cell where none can be made: the zygote, with the whole container to itself.
#include "images/warden/bare.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "images/warden/control.h"
#include "images/warden/warden.h"
#include "images/warden/write_file.h"

namespace hutch {
namespace {

// One scratch would be three views of one file system in a cell; here they are mounts of the
// container's, each with the whole size.
int OpenScratch(const char* path) {
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || IsScratch(fd)) return fd;
  close(fd);
  return -1;
}

// Tries the rest of it in a child. What it answers goes up to us by way of `answer`.
template <typename Body>
void InChild(Refusal* answer, NamespaceStep step, Body body) {
  int pair[2];
  if (pipe2(pair, O_CLOEXEC) != 0) return;
  const pid_t pid = fork();
  if (pid == 0) {
    Refusal found;
    body(&found);
    [[maybe_unused]] const ssize_t size = write(pair[1], &found, sizeof found);
    _exit(0);
  }
  *answer = {static_cast<uint64_t>(errno), step};  // of fork
  close(pair[1]);
  if (pid > 0) {
    *answer = {EPERM, step};  // it was killed: the filter does so with what it does not like
    Refusal found;
    if (read(pair[0], &found, sizeof found) == sizeof found) *answer = found;
    waitpid(pid, nullptr, 0);
  }
  close(pair[0]);
}

bool MapUser(unsigned uid, unsigned gid) {
  char user[32];
  char group[32];
  snprintf(user, sizeof user, "%u %u 1", uid, uid);
  snprintf(group, sizeof group, "%u %u 1", gid, gid);
  WriteFile("/proc/self/setgroups", "deny");  // in a nested one it is denied already
  return WriteFile("/proc/self/uid_map", user) && WriteFile("/proc/self/gid_map", group);
}

}  // namespace

Refusal TryNamespaces() {
  const unsigned uid = getuid();
  const unsigned gid = getgid();
  Refusal answer;
  InChild(&answer, kNewNamespaces, [&](Refusal* slot) {
    const auto fail = [](Refusal* refusal, NamespaceStep step) {
      *refusal = {static_cast<uint64_t>(errno), step};
    };
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // the id maps can only be written by such a process
    if (unshare(SlotNamespaces()) != 0) return fail(slot, kNewNamespaces);
    if (!MapUser(uid, gid)) return fail(slot, kMappedUser);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, nullptr) != 0) {
      return fail(slot, kNewMounts);
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS) != 0 ||
        !MapUser(uid, gid)) {
      return fail(slot, kNestedNamespaces);
    }
    InChild(slot, kNestedNamespaces, [&](Refusal* cell) {
      if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
        fail(cell, kNewProc);
    });
  });
  return answer;
}

// The zygote has become the user process, and runs nothing of the call yet.
void Warden::TakeBare(Cell* cell) {
  zygote_stderr_.Close();  // in the call's container nothing keeps its code from the pipe
  cell->state = CellState::kMade;
  cell->init = zygote_;
  cell->proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  cell->scratch = OpenScratch("/work");
  more_scratch_[0] = OpenScratch("/tmp");
  more_scratch_[1] = OpenScratch("/dev/shm");
  const Usage usage = MeasureShares(cell->proc, 1);
  cell->base_kb = gvisor_ ? KernelsMemoryKb(cell->proc) : usage.memory_kb + usage.shared_kb;
  cell->base_cpu_us = MeasureProcesses(cell->proc, 1, Counting::kResident).cpu_us;
  if (!gvisor_) parked_most_kb_ = MostOf(*cell, Scratch(*cell), 0);
}

// Stopped is ended too: nobody would ever continue it, and its caller would wait in vain.
void Warden::LookForStop() {
  siginfo_t info{};
  if (zygote_ <= 0 || waitid(P_PID, static_cast<id_t>(zygote_), &info, WSTOPPED | WNOHANG) != 0 ||
      info.si_pid != zygote_ || info.si_code != CLD_STOPPED) {
    return;
  }
  for (Slot& slot : slots_) {
    Cell& cell = slot.cell;
    if (cell.state != CellState::kReady || cell.ended || cell.end != kEndedItself) continue;
    cell.ended = true;
    cell.status = W_STOPCODE(info.si_status);
    kill(-1, SIGKILL);
  }
}

// False: it was no cell yet.
bool Warden::OnBareDeath(int status, const rusage& usage) {
  for (int i = 0; i < kMaxSlots; ++i) {
    Cell& cell = slots_[i].cell;
    if (cell.state == CellState::kNone) continue;
    if (!cell.ended && cell.end == kEndedItself) {
      cell.ended = true;
      cell.status = status;
    }
    kill(-1, SIGKILL);  // what it left behind
    zygote_ = 0;
    OnCellDeath(i, usage);
    return true;
  }
  return false;
}

}  // namespace hutch
