// SPDX-License-Identifier: Apache-2.0

// The warden's slots and cells.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/clock.h"
#include "images/warden/measure.h"
#include "images/warden/warden.h"
#include "images/warden/write_file.h"

namespace hutch {
namespace {

// More user processes of a session in that time end it.
constexpr int kMostUsers = 100;
constexpr int64_t kUsersPeriodUs = 10'000'000;
constexpr uint64_t kCpuSlackUs = 100'000;  // between two ways to count it

uint64_t Microseconds(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000 + static_cast<uint64_t>(time.tv_usec);
}

FrameHeader About(FrameKind kind, int slot, uint64_t id) {
  FrameHeader header;
  header.kind = kind;
  header.a = static_cast<uint32_t>(slot);
  header.id = id;
  return header;
}

}  // namespace

Warden::Slot* Warden::FindCell(uint64_t id) {
  for (Slot& slot : slots_) {
    if (slot.cell.state != CellState::kNone && slot.cell.id == id) return &slot;
  }
  return nullptr;
}

void Warden::OnMakeSlot(const Datagram& message) {
  const auto refuse = [&](int error, const char* text) {
    FrameHeader failed = message.header;
    failed.kind = FrameKind::kFailed;
    failed.id = 0;
    failed.b = static_cast<uint64_t>(error);
    Report(failed, text, strlen(text));
  };
  const uint32_t number = message.header.a;
  if (number >= kMaxSlots || slots_[number].state != SlotState::kFree ||
      (single_cell_ && number != 0))
    return refuse(EBUSY, "no such free slot");
  if (!zygote_ready_) return refuse(EAGAIN, "the zygote is not ready");
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return refuse(errno, "socketpair");
  const int on = 1;
  setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  FrameHeader header = About(FrameKind::kMakeSlot, static_cast<int>(number), 0);
  const int descriptors[] = {pair[1], message.descriptors[0]};
  const bool sent =
      Send(zygote_control_, header, nullptr, 0, descriptors, message.count > 0 ? 2 : 1);
  const int error = errno;
  close(pair[1]);
  if (!sent) {
    close(pair[0]);
    return refuse(error, "the zygote does not listen");
  }
  Slot& slot = slots_[number];
  slot = Slot{};
  slot.state = SlotState::kStarting;
  slot.control = pair[0];
  slot.begun_us = NowUs();
  Watch(slot.control, number);
}

void Warden::OnMakeCell(const Datagram& message) {
  const uint32_t number = message.header.a;
  FrameHeader header = message.header;
  if (number >= kMaxSlots || slots_[number].state != SlotState::kServing ||
      slots_[number].cell.state != CellState::kNone || message.count < 3) {
    header.kind = FrameKind::kFailed;
    header.b = EBUSY;
    static constexpr char kText[] = "the slot is not there, or has a cell";
    return Report(header, kText, sizeof kText - 1);
  }
  Slot& slot = slots_[number];
  slot.cell = Cell{};
  slot.cell.state = CellState::kMaking;
  slot.cell.id = header.id;
  slot.cell.begun_us = NowUs();
  slot.waited_us = 0;
  if (!Send(slot.control, header, nullptr, 0, message.descriptors, message.count)) {
    static constexpr char kText[] = "the slot does not listen";
    FailSlot(static_cast<int>(number), errno, kText, sizeof kText - 1);
  }
}

void Warden::OnEndSlot(const Datagram& message) {
  const uint32_t number = message.header.a;
  if (number >= kMaxSlots) _exit(5);
  Slot& slot = slots_[number];
  // A slot that has failed meanwhile has been reported; one with a cell must not end.
  if (slot.state == SlotState::kServing && slot.cell.state == CellState::kNone) {
    if (slot.pid > 0) kill(slot.pid, SIGKILL);  // reaped as a child of nobody's
    FreeSlot(static_cast<int>(number));
  } else if (slot.state != SlotState::kFree) {
    _exit(5);
  }
  Report(About(FrameKind::kSlotGone, static_cast<int>(number), 0));
}

void Warden::OnSlot(int number) {
  Slot& slot = slots_[number];
  Datagram message;
  while (slot.state != SlotState::kFree && slot.control >= 0) {
    const Receiving got = Receive(slot.control, &message);
    if (got == Receiving::kNothing) return;
    if (got == Receiving::kMalformed) Fatal("a slot sent no frame");
    if (got == Receiving::kGone && single_cell_ && slot.cell.state == CellState::kReady) {
      close(slot.control);  // user code runs there, and has no way to us
      slot.control = -1;
      return;
    }
    if (got == Receiving::kGone) {
      static constexpr char kText[] = "the slot went away";
      return FailSlot(number, ECHILD, kText, sizeof kText - 1);
    }
    OnSlotMessage(number, &message);
    message.CloseDescriptors();
  }
}

void Warden::OnSlotMessage(int number, Datagram* message) {
  Slot& slot = slots_[number];
  Cell& cell = slot.cell;
  const FrameHeader& header = message->header;
  if (header.kind == FrameKind::kFailed && cell.kept && header.id == cell.id) {
    return Kill(&cell, kKilled);  // its code left what no user process can begin in
  }
  if (header.kind == FrameKind::kFailed) {
    return FailSlot(number, static_cast<int>(header.b), message->payload, message->size);
  }
  if (header.kind == FrameKind::kSlotReady) {
    const bool its_own = single_cell_ ? message->sender == zygote_ : IsNewChild(message->sender);
    if (slot.state != SlotState::kStarting || !its_own) Fatal("a slot is not what it says");
    if (!single_cell_) slot.pid = message->sender;
    slot.state = SlotState::kServing;
    return Report(About(FrameKind::kSlotReady, number, 0));
  }
  if (cell.state == CellState::kNone || header.id != cell.id)
    Fatal("a slot named a cell that it does not have");
  if (single_cell_ && header.kind == FrameKind::kCellReady && cell.state == CellState::kMaking)
    TakeSingleCell(&cell);
  // A session's cell that is being killed: its PID 1 may just have made another user process.
  if (cell.kept && cell.killed) {
    if (header.kind == kCellStatus && !cell.ended) {
      cell.ended = true;
      cell.status = static_cast<int>(header.a);
    }
    return;
  }
  if (header.kind == kCellMade) {
    if (!TakeCell(&slot, message)) Fatal("a cell is not what it says");
  } else if (header.kind == FrameKind::kCellReady && cell.state == CellState::kMade) {
    OnCellReady(number, message->sender);
  } else if (header.kind == kCellKept && cell.kept && cell.state == CellState::kReady) {
    Report(About(FrameKind::kKept, number, cell.id));
  } else if (header.kind == kCellStatus && cell.kept && cell.state == CellState::kReady) {
    OnUserEnd(number, static_cast<int>(header.a));
  } else if (header.kind == kCellStatus && !cell.ended && cell.state != CellState::kMaking) {
    cell.ended = true;
    cell.status = static_cast<int>(header.a);
  } else {
    Fatal("a slot spoke out of turn");
  }
}

void Warden::OnCellReady(int number, pid_t user) {
  Cell& cell = slots_[number].cell;
  cell.state = CellState::kReady;
  if (!single_cell_) cell.user = static_cast<int>(syscall(SYS_pidfd_open, user, 0));
  cell.user_pid = user;
  if (cell.kept) EndUserFirst(cell);
  FrameHeader ready =
      About(cell.kept ? FrameKind::kUserReady : FrameKind::kCellReady, number, cell.id);
  ready.b = static_cast<uint64_t>(NowUs() - cell.begun_us);
  Report(ready);
  if (parked_most_kb_ == 0 && !single_cell_ && !cell.kept) {
    cell.wanted = true;
    cell.asked_kb = MostOf(cell, Scratch(cell), NowUs());
    SendReaders();
  }
}

void Warden::OnKeep(const FrameHeader& header) {
  Slot* slot = FindCell(header.id);
  if (slot == nullptr || slot->cell.state != CellState::kReady) return;  // kCellExit is on its way
  Cell& cell = slot->cell;
  // Without a pidfd its user process could not be ended by itself.
  if (!single_cell_ && cell.user < 0) return Kill(&cell, kKilled);
  cell.kept = cell.between = true;
  cell.armed_us = NowUs();
  SampleCell(static_cast<int>(slot - slots_), cell.armed_us);
  cell.between_cpu_us = cell.used_cpu_us;
  if (single_cell_) {
    FrameHeader kept = About(FrameKind::kKept, static_cast<int>(slot - slots_), cell.id);
    kept.b = 1;
    return Report(kept);
  }
  EndUserFirst(cell);
  FrameHeader keep;
  keep.kind = kKeepCell;
  keep.id = cell.id;
  if (!Send(slot->control, keep, nullptr, 0)) {
    static constexpr char kText[] = "the slot does not listen";
    FailSlot(static_cast<int>(slot - slots_), errno, kText, sizeof kText - 1);
  }
}

// Where memory runs out, the kernel ends a process of the call before PID 1 and the slot, with
// which the files of the session would go. What it forks has this from it.
void Warden::EndUserFirst(const Cell& cell) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/oom_score_adj", cell.user_pid);
  WriteFile(path, "900");  // slots, and what they make, have 800
}

// The user process of a kept cell has ended, and all that it left; another one is being made.
void Warden::OnUserEnd(int number, int status) {
  Cell& cell = slots_[number].cell;
  const int64_t now = NowUs();
  SampleCell(number, now);
  cell.ended = true;
  cell.status = status;
  ++cell.users_ended;
  // Code may have left what ends each user process at once.
  if (now - cell.users_since_us > kUsersPeriodUs) {
    cell.users_since_us = now;
    cell.users = 0;
  }
  if (!cell.restart_ordered && ++cell.users > kMostUsers) return Kill(&cell, kKilled);
  const CellReport report = ReportOf(cell, cell.cpu_us);
  Report(About(FrameKind::kUserExit, number, cell.id), &report, sizeof report);
  close(cell.user);
  // Nothing that was measured of the processes that are gone is held against the next one.
  Cell next;
  next.state = CellState::kMade;
  next.id = cell.id;
  next.init = cell.init;
  next.proc = cell.proc;
  next.scratch = cell.scratch;
  next.scratch_kb = cell.scratch_kb;
  next.begun_us = next.armed_us = now;
  next.kept = next.between = true;
  next.users_ended = cell.users_ended;
  next.users = cell.users;
  next.users_since_us = cell.users_since_us;
  next.spent = cell.spent;
  next.used_cpu_us = next.base_cpu_us = cell.used_cpu_us;
  next.between_cpu_us = cell.between ? cell.between_cpu_us : cell.used_cpu_us;
  next.cpu_limit_us = next.background_limit_us = cell.background_limit_us;
  cell = next;
  slots_[number].waited_us = 0;
}

bool Warden::TakeCell(Slot* slot, Datagram* message) {
  Cell& cell = slot->cell;
  if (cell.state != CellState::kMaking || message->count != 2 || !IsProc(message->descriptors[0]) ||
      !IsScratch(message->descriptors[1]) || !IsNewChild(message->sender)) {
    return false;
  }
  cell.state = CellState::kMade;
  cell.init = message->sender;
  cell.proc = message->descriptors[0];
  cell.scratch = message->descriptors[1];
  message->count = 0;  // they are the cell's now
  if (cell.end != kEndedItself) kill(cell.init, SIGKILL);
  return true;
}

void Warden::Kill(Cell* cell, CellEnd end, uint32_t limit) {
  if (cell->kept ? cell->killed : cell->end != kEndedItself) return;
  cell->killed = true;
  if (cell->kept) cell->begun_us = NowUs();  // it has so long to end, see Tick()
  cell->end = end;
  cell->limit = limit;
  TakeLastMeasurement(cell);
  if (single_cell_ && cell->state != CellState::kNone) kill(-1, SIGKILL);
  if (cell->init > 0) kill(cell->init, SIGKILL);  // not reaped yet, so the pid is still its own
}

void Warden::KillWhatRuns(Cell* cell, uint32_t limit) {
  if (!cell->kept || single_cell_) return Kill(cell, kKilled, limit);
  if (cell->end != kEndedItself || cell->state != CellState::kReady) return;
  cell->end = kKilled;
  cell->limit = limit;
  cell->begun_us = NowUs();
  TakeLastMeasurement(cell);
  syscall(SYS_pidfd_send_signal, cell->user, SIGKILL, nullptr, 0);
}

void Warden::InterruptUser(const Cell& cell, const FrameHeader& interrupt) const {
  if (!cell.kept || cell.state != CellState::kReady || cell.end != kEndedItself ||
      interrupt.b != cell.users_ended) {
    return;
  }
  siginfo_t info{};
  info.si_signo = SIGINT;
  info.si_code = SI_QUEUE;
  info.si_value.sival_int = static_cast<int>(interrupt.a);
  if (single_cell_) {
    syscall(SYS_rt_sigqueueinfo, cell.init, SIGINT, &info);
  } else {
    syscall(SYS_pidfd_send_signal, cell.user, SIGINT, &info, 0);
  }
}

// What a dying namespace reaps by itself is in nobody's rusage.
void Warden::TakeLastMeasurement(Cell* cell) {
  if (cell->armed_us == 0) return;
  const int64_t now = NowUs();
  for (int i = 0; i < kMaxSlots; ++i) {
    if (&slots_[i].cell == cell) SampleCell(i, now);
  }
  if (cell->peak_kb != 0) return;
  // No reader was there in its short time. Memory that was lent to it is in there, so this may be
  // too much.
  const uint64_t most_kb = MostOf(*cell, Scratch(*cell), now);
  cell->peak_kb = std::min(parked_kb_ + most_kb - std::min(most_kb, parked_most_kb_), watch_kb_);
}

ScratchUse Warden::Scratch(const Cell& cell) const {
  ScratchUse use = MeasureScratch(cell.scratch);
  for (const int more : more_scratch_) {
    const ScratchUse its = MeasureScratch(more);
    use.used_kb += its.used_kb;
    use.files += its.files;
    use.full = use.full || its.full;
  }
  return use;
}

// The slot goes, and its cell with it. The agent gets the report of a cell that ran (kCellExit)
// before that of the slot.
void Warden::FailSlot(int number, int error, const char* text, size_t size) {
  Slot& slot = slots_[number];
  if (slot.state == SlotState::kFree || slot.state == SlotState::kLost) return;
  const bool ran = slot.cell.state == CellState::kReady || slot.cell.kept;
  FrameHeader failed = About(FrameKind::kFailed, number, ran ? 0 : slot.cell.id);
  failed.b = static_cast<uint64_t>(error);
  if (slot.pid > 0) kill(slot.pid, SIGKILL);
  slot.pid = 0;
  Kill(&slot.cell, kLost);
  if (ran) {
    slot.state = SlotState::kLost;  // until its cell is reaped
    return;
  }
  Report(failed, text, std::min<size_t>(size, sizeof Unsent::payload));
  FreeSlot(number);
}

void Warden::FreeSlot(int number) {
  Slot& slot = slots_[number];
  for (const int fd : {slot.control, slot.cell.proc, slot.cell.scratch, slot.cell.user}) {
    if (fd >= 0) close(fd);
  }
  slot = Slot{};
}

CellReport Warden::ReportOf(const Cell& cell, uint64_t cpu_us) const {
  CellReport report;
  if (cell.ended && WIFEXITED(cell.status)) report.exit_code = WEXITSTATUS(cell.status);
  if (cell.ended && WIFSIGNALED(cell.status)) report.signal = WTERMSIG(cell.status);
  if (cell.ended && WIFSTOPPED(cell.status)) report.signal = WSTOPSIG(cell.status);
  report.limit = cell.limit;
  // No code in a cell can kill its PID 1: when that ends and says nothing, it was killed from
  // outside.
  report.end = cell.ended || cell.end != kEndedItself ? cell.end : kLost;
  report.wall_us =
      static_cast<uint64_t>(NowUs() - (cell.armed_us != 0 ? cell.armed_us : cell.begun_us));
  report.cpu_us = cpu_us;
  // The kernel's own limit, in whole seconds; anybody can send the signal.
  const uint64_t cpu_limit_us = cell.armed_us != 0 ? cell.cpu_limit_us : 1'000'000;
  if (report.signal == SIGXCPU && cpu_limit_us != 0 && report.cpu_us + kCpuSlackUs >= cpu_limit_us)
    report.limit = kLimitCpuTime;
  report.peak_kb = cell.peak_kb;
  report.memory_limit_kb = memory_kb_;
  report.pids_peak = cell.pids_peak;
  report.disk_full = Scratch(cell).full ? 1 : 0;
  return report;
}

void Warden::OnCellDeath(int number, const rusage& usage) {
  Slot& slot = slots_[number];
  Cell& cell = slot.cell;
  cell.init = 0;
  if (cell.state != CellState::kReady && cell.end == kEndedItself && !cell.kept) {
    static constexpr char kText[] = "the cell died before it was ready";
    return FailSlot(number, ECHILD, kText, sizeof kText - 1);
  }
  const uint64_t cpu_us = Microseconds(usage.ru_utime) + Microseconds(usage.ru_stime);
  const CellReport report =
      ReportOf(cell, std::max(cell.cpu_us, cpu_us - std::min(cpu_us, cell.base_cpu_us)));
  Report(About(FrameKind::kCellExit, number, cell.id), &report, sizeof report);
  for (const int fd : {cell.proc, cell.scratch, cell.user}) {
    if (fd >= 0) close(fd);
  }
  cell = Cell{};
  if (slot.state != SlotState::kLost) return;
  FrameHeader failed = About(FrameKind::kFailed, number, 0);
  failed.b = ECHILD;
  static constexpr char kText[] = "the slot died";
  Report(failed, kText, sizeof kText - 1);
  FreeSlot(number);
}

}  // namespace hutch
