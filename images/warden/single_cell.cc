// SPDX-License-Identifier: Apache-2.0

// The part of the warden for a worker that can make no cells (control.h): its one cell is the
// zygote, with the whole container to itself.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "images/warden/slots.h"

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

}  // namespace

// The zygote has become the user process, and runs nothing of the call yet.
void Slots::TakeSingleCell(Cell* cell) {
  zygote_.BecomeCell();
  cell->state = CellState::kMade;
  cell->init = zygote_.pid();
  cell->proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  cell->scratch = OpenScratch("/work");
  cell->more_scratch[0] = OpenScratch("/tmp");
  cell->more_scratch[1] = OpenScratch("/dev/shm");
  watch_.MeasureBase(cell);
}

// Stopped is ended too: nobody would ever continue it, and its caller would wait in vain.
void Slots::CheckSingleStop() {
  siginfo_t info{};
  const pid_t pid = zygote_.pid();
  if (pid <= 0 || waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOHANG) != 0 ||
      info.si_pid != pid || info.si_code != CLD_STOPPED) {
    return;
  }
  for (Slot& slot : slots_) {
    Ending& ending = slot.cell.ending;
    if (!slot.cell.runs() || ending.ended) continue;
    ending.ended = true;
    ending.status = W_STOPCODE(info.si_status);
    kill(-1, SIGKILL);
  }
}

// False: it was no cell yet.
bool Slots::OnSingleCellDeath(int status, const rusage& usage) {
  for (Slot& slot : slots_) {
    if (slot.cell.state == CellState::kNone) continue;
    Ending& ending = slot.cell.ending;
    if (!ending.ended && ending.end == kEndedItself) {
      ending.ended = true;
      ending.status = status;
    }
    kill(-1, SIGKILL);  // what it left behind
    zygote_.Forget();
    OnCellDeath(&slot, usage);
    return true;
  }
  return false;
}

}  // namespace hutch
