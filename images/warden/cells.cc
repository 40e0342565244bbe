// SPDX-License-Identifier: Apache-2.0

// The life of a slot's cell.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "images/warden/about.h"
#include "images/warden/clock.h"
#include "images/warden/control.h"
#include "images/warden/slots.h"
#include "images/warden/write_file.h"

namespace hutch {
namespace {

constexpr int64_t kGraceUs = 500'000;  // beyond the wall limit, which the client keeps itself
// More user processes of a session in that time end it.
constexpr int kMostUsers = 100;
constexpr int64_t kUsersPeriodUs = 10'000'000;
constexpr int64_t kHoldUs = 50'000;
constexpr uint64_t kCpuSlackUs = 100'000;  // between two ways to count it
constexpr char kDeaf[] = "the slot does not listen";

uint64_t Microseconds(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000 + static_cast<uint64_t>(time.tv_usec);
}

// Where memory runs out, the kernel ends a process of the call before PID 1 and the slot, with
// which the files of the session would go. What it forks has this from it.
void EndUserFirst(const Cell& cell) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/oom_score_adj", cell.user.pid);
  WriteFile(path, "900");  // slots, and what they make, have 800
}

CellReport ReportOf(const Cell& cell, uint64_t cpu_us, uint64_t memory_limit_kb) {
  const Ending& ending = cell.ending;
  CellReport report;
  if (ending.ended && WIFEXITED(ending.status)) report.exit_code = WEXITSTATUS(ending.status);
  if (ending.ended && WIFSIGNALED(ending.status)) report.signal = WTERMSIG(ending.status);
  if (ending.ended && WIFSTOPPED(ending.status)) report.signal = WSTOPSIG(ending.status);
  report.limit = ending.limit;
  // No code in a cell can kill its PID 1: when that ends and says nothing, it was killed from
  // outside.
  report.end = ending.ended || ending.end != kEndedItself ? ending.end : kLost;
  const int64_t armed_us = cell.call.armed_us;
  report.wall_us = static_cast<uint64_t>(NowUs() - (armed_us != 0 ? armed_us : cell.begun_us));
  report.cpu_us = cpu_us;
  report.cpu_wait_us = cell.time.waited_us;
  // The kernel's own limit, in whole seconds; anybody can send the signal.
  const uint64_t cpu_limit_us = armed_us != 0 ? cell.call.cpu_us : 1'000'000;
  if (report.signal == SIGXCPU && cpu_limit_us != 0 && report.cpu_us + kCpuSlackUs >= cpu_limit_us)
    report.limit = kLimitCpuTime;
  report.peak_kb = cell.peak_kb;
  report.memory_limit_kb = memory_limit_kb;
  report.pids_peak = cell.pids_peak;
  report.disk_full = ScratchOf(cell).full ? 1 : 0;
  return report;
}

}  // namespace

void Slots::OnMakeCell(const Datagram& order) {
  const uint32_t number = order.header.a;
  FrameHeader header = order.header;
  if (number >= kMaxSlots || slots_[number].state != SlotState::kServing ||
      slots_[number].cell.state != CellState::kNone || order.count < 3) {
    header.kind = FrameKind::kFailed;
    header.b = 0;
    static constexpr char kText[] = "the slot is not there, or has a cell";
    return agent_.Report(header, kText, sizeof kText - 1);
  }
  Slot& slot = slots_[number];
  slot.cell = Cell{};
  slot.cell.state = CellState::kMaking;
  slot.cell.id = header.id;
  slot.cell.begun_us = NowUs();
  slot.waited_us = 0;
  if (!Send(slot.control, header, nullptr, 0, order.descriptors, order.count))
    Fail(&slot, errno, kDeaf, sizeof kDeaf - 1);
}

bool Slots::TakeCell(Slot* slot, Datagram* message) {
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
  if (cell.ending.end != kEndedItself) kill(cell.init, SIGKILL);
  return true;
}

void Slots::OnReady(Slot* slot, pid_t user) {
  Cell& cell = slot->cell;
  cell.state = CellState::kReady;
  if (!configuration_.single_cell())
    cell.user.fd = static_cast<int>(syscall(SYS_pidfd_open, user, 0));
  cell.user.pid = user;
  if (cell.kept) EndUserFirst(cell);
  FrameHeader ready =
      About(cell.kept ? FrameKind::kUserReady : FrameKind::kCellReady, NumberOf(*slot), cell.id);
  ready.b = static_cast<uint64_t>(NowUs() - cell.begun_us);
  agent_.Report(ready);
  watch_.MeasureParked(&cell);
}

void Slots::OnArm(const FrameHeader& order) {
  Slot* const slot = Find(order.id);
  if (slot == nullptr) return;  // it has just ended: kCellExit is on its way
  Cell& cell = slot->cell;
  CallLimits& call = cell.call;
  const int64_t now = NowUs();
  if (cell.kept && order.a == kBetweenCalls) {
    call.armed_us = now;
    if (!std::exchange(call.between, true)) {
      watch_.Sample(slot, now);
      cell.time.Begin();
    }
    call.deadline_us = 0;
    call.cpu_us = call.background_us = order.c * 1000;
    cell.memory.result.Give(0, now);
    cell.looks.quiet = false;
    return;
  }
  const bool loading = order.a == kLoading;
  const bool given = !loading && order.a != 0 && cell.memory.result.kb() == 0;
  cell.memory.result.Give(loading ? 0 : order.a, now);
  if (given && call.armed_us != 0 && !call.loading && !call.between) return;
  // Limits that change during a call leave what is known of it; what a kept cell shares it may have
  // had since an earlier call.
  const bool had_limits = !call.loading && (call.deadline_us != 0 || call.cpu_us != 0);
  call.armed_us = now;
  if (std::exchange(call.between, false)) BeginCall(slot);
  call.deadline_us = order.b == 0 ? 0 : now + static_cast<int64_t>(order.b) * 1000 + kGraceUs;
  call.cpu_us = order.c * 1000;
  call.loading = loading;
  cell.looks.quiet = false;
  if (!cell.kept && !had_limits) cell.memory.ForgetAreas();
}

// A call of a kept cell begins: what the cell has taken until now is not the call's.
void Slots::BeginCall(Slot* slot) {
  Cell& cell = slot->cell;
  watch_.Sample(slot, cell.call.armed_us);
  FrameHeader background = About(FrameKind::kBackground, NumberOf(*slot), cell.id);
  const uint64_t used_us = cell.time.used_us;
  background.b = used_us - std::exchange(cell.call.told_us, used_us);
  agent_.Report(background);
  cell.time.Begin();
  cell.peak_kb = 0;
  cell.pids_peak = 0;
}

void Slots::OnKeep(const FrameHeader& order) {
  Slot* const slot = Find(order.id);
  if (slot == nullptr || slot->cell.state != CellState::kReady) return;  // kCellExit is on its way
  Cell& cell = slot->cell;
  const bool single = configuration_.single_cell();
  // Without a pidfd its user process could not be ended by itself.
  if (!single && cell.user.fd < 0) return Kill(slot, kKilled);
  cell.kept = cell.call.between = true;
  cell.call.armed_us = NowUs();
  watch_.Sample(slot, cell.call.armed_us);
  cell.call.told_us = cell.time.used_us;
  if (single) {
    FrameHeader kept = About(FrameKind::kKept, NumberOf(*slot), cell.id);
    kept.b = 1;
    return agent_.Report(kept);
  }
  EndUserFirst(cell);
  FrameHeader keep;
  keep.kind = kKeepCell;
  keep.id = cell.id;
  if (!Send(slot->control, keep, nullptr, 0)) Fail(slot, errno, kDeaf, sizeof kDeaf - 1);
}

void Slots::OnKill(uint64_t id) {
  if (Slot* const slot = Find(id)) Kill(slot, kKilled);
}

void Slots::OnRestart(const FrameHeader& order) {
  Slot* const slot = Find(order.id);
  if (slot == nullptr || !slot->cell.kept || order.b != slot->cell.user.ended) return;
  slot->cell.user.restart_ordered = true;
  KillWhatRuns(slot, kNoLimit);
}

void Slots::OnInterrupt(const FrameHeader& order) {
  const Slot* const slot = Find(order.id);
  if (slot == nullptr) return;
  const Cell& cell = slot->cell;
  if (!cell.kept || !cell.runs() || order.b != cell.user.ended) return;
  siginfo_t info{};
  info.si_signo = order.a == 0 ? SIGURG : SIGINT;
  info.si_code = SI_QUEUE;
  info.si_value.sival_int = static_cast<int>(order.a);
  if (configuration_.single_cell()) {
    syscall(SYS_rt_sigqueueinfo, cell.init, info.si_signo, &info);
  } else {
    syscall(SYS_pidfd_send_signal, cell.user.fd, info.si_signo, &info, 0);
  }
}

void Slots::OnNextUser(const Datagram& order) {
  Slot* const slot = Find(order.header.id);
  if (slot == nullptr || !slot->cell.kept || slot->cell.state != CellState::kMade) return;
  if (order.count == 1 && Send(slot->control, order.header, nullptr, 0, order.descriptors, 1))
    return;
  Fail(slot, errno, kDeaf, sizeof kDeaf - 1);
}

// The user process of a kept cell has ended, and all that it left; another one is being made.
void Slots::OnUserEnd(Slot* slot, int status) {
  Cell& cell = slot->cell;
  UserProcess& user = cell.user;
  const int64_t now = NowUs();
  watch_.Sample(slot, now);
  cell.ending.ended = true;
  cell.ending.status = status;
  ++user.ended;
  // Code may have left what ends each user process at once.
  if (now - user.since_us > kUsersPeriodUs) {
    user.since_us = now;
    user.recent = 0;
  }
  if (!user.restart_ordered && ++user.recent > kMostUsers) return Kill(slot, kKilled);
  const CellReport report = ReportOf(cell, cell.time.cpu_us, configuration_.memory_kb());
  agent_.Report(About(FrameKind::kUserExit, NumberOf(*slot), cell.id), &report, sizeof report);
  close(user.fd);
  // Nothing that was measured of the processes that are gone is held against the next one.
  Cell next;
  next.state = CellState::kMade;
  next.id = cell.id;
  next.init = cell.init;
  next.proc = cell.proc;
  next.scratch = cell.scratch;
  next.memory.SetScratch(cell.memory.scratch_kb());
  next.begun_us = next.call.armed_us = now;
  next.kept = next.call.between = true;
  next.user.ended = user.ended;
  next.user.recent = user.recent;
  next.user.since_us = user.since_us;
  next.time.spent = cell.time.spent;
  next.time.used_us = next.time.base_us = cell.time.used_us;
  next.call.told_us = cell.call.told_us;
  next.call.cpu_us = next.call.background_us = cell.call.background_us;
  cell = next;
  slot->waited_us = 0;
}

void Slots::Kill(Slot* slot, CellEnd end, uint32_t limit) {
  Cell& cell = slot->cell;
  if (cell.kept ? cell.ending.killed : cell.ending.end != kEndedItself) return;
  cell.ending.killed = true;
  if (cell.kept) cell.begun_us = NowUs();  // it has so long to end, see FailLate()
  cell.ending.end = end;
  cell.ending.limit = limit;
  watch_.SampleLast(slot);
  if (configuration_.single_cell() && cell.state != CellState::kNone) kill(-1, SIGKILL);
  if (cell.init > 0) kill(cell.init, SIGKILL);  // not reaped yet, so the pid is still its own
}

void Slots::KillWhatRuns(Slot* slot, uint32_t limit) {
  Cell& cell = slot->cell;
  if (!cell.kept || configuration_.single_cell()) return Kill(slot, kKilled, limit);
  if (!cell.runs()) return;
  cell.ending.end = kKilled;
  cell.ending.limit = limit;
  cell.begun_us = NowUs();
  watch_.SampleLast(slot);
  syscall(SYS_pidfd_send_signal, cell.user.fd, SIGKILL, nullptr, 0);
}

void Slots::HoldUserEnd(Slot* slot, int status) {
  const Ending& ending = slot->cell.ending;
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL || ending.end != kEndedItself)
    return OnUserEnd(slot, status);
  slot->cell.user.held_until_us = NowUs() + kHoldUs;
  slot->cell.user.status = status;
}

void Slots::ReportHeld(int64_t now) {
  for (Slot& slot : slots_) {
    const UserProcess& user = slot.cell.user;
    if (user.held_until_us != 0 && user.held_until_us <= now && !slot.cell.ending.killed)
      OnUserEnd(&slot, user.status);
    if (slot.held.until_us == 0 || slot.held.until_us > now) continue;
    const HeldReport held = std::exchange(slot.held, {});
    agent_.Report(About(FrameKind::kCellExit, NumberOf(slot), held.id), &held.report,
                  sizeof held.report);
  }
}

void Slots::ReportLost(Slot* slot) {
  if (slot->held.until_us == 0) return;
  HeldReport held = std::exchange(slot->held, {});
  held.report.end = kLost;
  agent_.Report(About(FrameKind::kCellExit, NumberOf(*slot), held.id), &held.report,
                sizeof held.report);
}

void Slots::EndThoseOver() {
  for (Slot& slot : slots_) {
    const uint32_t limit = std::exchange(slot.cell.over, kNoLimit);
    if (limit != kNoLimit) KillWhatRuns(&slot, limit);
  }
}

void Slots::KillAll() {
  for (Slot& slot : slots_) {
    ReportLost(&slot);
    if (slot.cell.state != CellState::kNone) Kill(&slot, kLost);
  }
}

void Slots::OnCellDeath(Slot* slot, const rusage& usage) {
  Cell& cell = slot->cell;
  cell.init = 0;
  if (cell.state != CellState::kReady && cell.ending.end == kEndedItself && !cell.kept) {
    static constexpr char kText[] = "the cell died before it was ready";
    return Fail(slot, 0, kText, sizeof kText - 1);
  }
  const uint64_t cpu_us = Microseconds(usage.ru_utime) + Microseconds(usage.ru_stime);
  const CellReport report =
      ReportOf(cell, std::max(cell.time.cpu_us, cpu_us - std::min(cpu_us, cell.time.base_us)),
               configuration_.memory_kb());
  if (report.end == kEndedItself && report.signal == SIGKILL) {
    slot->held = {.until_us = NowUs() + kHoldUs, .id = cell.id, .report = report};
  } else {
    agent_.Report(About(FrameKind::kCellExit, NumberOf(*slot), cell.id), &report, sizeof report);
  }
  for (const int fd : {cell.proc, cell.scratch, cell.user.fd}) {
    if (fd >= 0) close(fd);
  }
  cell = Cell{};
  if (slot->state != SlotState::kLost) return;
  ReportLost(slot);
  FrameHeader failed = About(FrameKind::kFailed, NumberOf(*slot), 0);
  static constexpr char kText[] = "the slot died";
  agent_.Report(failed, kText, sizeof kText - 1);
  Free(slot);
}

}  // namespace hutch
