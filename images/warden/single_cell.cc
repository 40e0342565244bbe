// SPDX-License-Identifier: Apache-2.0

// The part of the warden for a worker that can make no cells: its one cell is the zygote, with the
// whole container to itself.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "images/warden/control.h"
#include "images/warden/warden.h"

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
void Warden::TakeSingleCell(Cell* cell) {
  zygote_stderr_.Close();  // in the call's container nothing keeps its code from the pipe
  cell->state = CellState::kMade;
  cell->init = zygote_;
  cell->proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  cell->scratch = OpenScratch("/work");
  more_scratch_[0] = OpenScratch("/tmp");
  more_scratch_[1] = OpenScratch("/dev/shm");
  const Usage usage = MeasureShares(cell->proc, 1);
  cell->base_kb =
      gvisor_ ? KernelsMemoryKb(cell->proc) : usage.memory_kb + usage.shared_kb + usage.scratch_kb;
  cell->base_cpu_us = MeasureProcesses(cell->proc, 1, Counting::kResident).cpu_us;
  if (!gvisor_) parked_most_kb_ = MostOf(*cell, Scratch(*cell), 0);
}

// Stopped is ended too: nobody would ever continue it, and its caller would wait in vain.
void Warden::CheckForStop() {
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
bool Warden::OnSingleCellDeath(int status, const rusage& usage) {
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
