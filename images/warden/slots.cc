// SPDX-License-Identifier: Apache-2.0

#include "images/warden/slots.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/about.h"
#include "images/warden/clock.h"

namespace hutch {
namespace {

constexpr int64_t kMakingUs = 10'000'000;  // a slot or cell that takes longer hangs
constexpr int kStopsAtOnce = 256;

}  // namespace

Slot* Slots::Find(uint64_t cell) {
  for (Slot& slot : slots_) {
    if (slot.cell.state != CellState::kNone && slot.cell.id == cell) return &slot;
  }
  return nullptr;
}

bool Slots::busy() const {
  return std::any_of(slots_, slots_ + kMaxSlots, [](const Slot& slot) {
    const Cell& cell = slot.cell;
    return slot.state == SlotState::kStarting || slot.held.until_us != 0 ||
           cell.state == CellState::kMaking || (cell.kept && cell.state == CellState::kMade) ||
           cell.user.held_until_us != 0 || Watch::Needs(cell);
  });
}

void Slots::OnMakeSlot(const Datagram& order) {
  const auto refuse = [&](int error, const char* text) {
    FrameHeader failed = order.header;
    failed.kind = FrameKind::kFailed;
    failed.id = 0;
    failed.b = static_cast<uint64_t>(error);
    agent_.Report(failed, text, strlen(text));
  };
  const uint32_t number = order.header.a;
  if (number >= kMaxSlots || slots_[number].state != SlotState::kFree ||
      (configuration_.single_cell() && number != 0))
    return refuse(0, "no such free slot");
  if (!zygote_.ready()) return refuse(EAGAIN, "the zygote is not ready");
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return refuse(errno, "socketpair");
  const int on = 1;
  setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  const FrameHeader header = About(FrameKind::kMakeSlot, static_cast<int>(number), 0);
  const int descriptors[] = {pair[1], order.descriptors[0]};
  const bool sent =
      Send(zygote_.control(), header, nullptr, 0, descriptors, order.count > 0 ? 2 : 1);
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
  events_.Watch(slot.control, number);
}

void Slots::OnNotForked(const Datagram& message) {
  const uint32_t number = message.header.a;
  if (number >= kMaxSlots || slots_[number].state != SlotState::kStarting) return;
  Fail(&slots_[number], static_cast<int>(message.header.b), message.payload, message.size);
}

void Slots::OnEndSlot(const Datagram& order) {
  const uint32_t number = order.header.a;
  if (number >= kMaxSlots) _exit(5);
  Slot& slot = slots_[number];
  // A slot that has failed meanwhile has been reported; one with a cell must not end.
  if (slot.state == SlotState::kServing && slot.cell.state == CellState::kNone) {
    if (slot.pid > 0) kill(slot.pid, SIGKILL);  // reaped as a child of nobody's
    Free(&slot);
  } else if (slot.state != SlotState::kFree) {
    _exit(5);
  }
  agent_.Report(About(FrameKind::kSlotGone, static_cast<int>(number), 0));
}

void Slots::ReportAll() {
  FrameHeader header;
  for (int i = 0; i < kMaxSlots; ++i) {
    Slot& slot = slots_[i];
    slot.held = {};  // of a cell that the agent does not know
    if (slot.state != SlotState::kServing) continue;
    header.a = static_cast<uint32_t>(i);
    header.kind = FrameKind::kSlotReady;
    header.id = 0;
    if (slot.cell.state == CellState::kReady) {
      header.kind = FrameKind::kCellReady;
      header.id = slot.cell.id;
    } else if (slot.cell.state != CellState::kNone) {
      continue;
    }
    agent_.Report(header);
  }
}

void Slots::HearAll() {
  for (int i = 0; i < kMaxSlots; ++i) {
    if (slots_[i].state != SlotState::kFree) OnSlot(i);
  }
}

void Slots::OnSlot(int number) {
  Slot& slot = slots_[number];
  Datagram message;
  while (slot.state != SlotState::kFree && slot.control >= 0) {
    const Receiving got = Receive(slot.control, &message);
    if (got == Receiving::kNothing) return;
    if (got == Receiving::kMalformed) zygote_.Fatal("a slot sent no frame");
    if (got == Receiving::kGone && configuration_.single_cell() &&
        slot.cell.state == CellState::kReady) {
      close(slot.control);  // user code runs there, and has no way to us
      slot.control = -1;
      return;
    }
    if (got == Receiving::kGone) {
      static constexpr char kText[] = "the slot went away";
      return Fail(&slot, 0, kText, sizeof kText - 1);
    }
    OnMessage(&slot, &message);
    message.CloseDescriptors();
  }
}

void Slots::OnMessage(Slot* slot, Datagram* message) {
  Cell& cell = slot->cell;
  const FrameHeader& header = message->header;
  if (header.kind == FrameKind::kFailed && cell.kept && header.id == cell.id)
    return Kill(slot, kKilled);  // its code left what no user process can begin in
  if (header.kind == FrameKind::kFailed)
    return Fail(slot, static_cast<int>(header.b), message->payload, message->size);
  const bool single = configuration_.single_cell();
  if (header.kind == FrameKind::kSlotReady) {
    const bool its_own = single ? message->sender == zygote_.pid() : IsNewChild(message->sender);
    if (slot->state != SlotState::kStarting || !its_own)
      zygote_.Fatal("a slot is not what it says");
    if (!single) slot->pid = message->sender;
    slot->state = SlotState::kServing;
    return agent_.Report(About(FrameKind::kSlotReady, NumberOf(*slot), 0));
  }
  if (cell.state == CellState::kNone || header.id != cell.id)
    zygote_.Fatal("a slot named a cell that it does not have");
  if (single && header.kind == FrameKind::kCellReady && cell.state == CellState::kMaking)
    TakeSingleCell(&cell);
  Ending& ending = cell.ending;
  // A session's cell that is being killed: its PID 1 may just have made another user process.
  if (cell.kept && ending.killed) {
    if (header.kind == kCellStatus && !ending.ended) {
      ending.ended = true;
      ending.status = static_cast<int>(header.a);
    }
    return;
  }
  if (header.kind == kCellMade) {
    if (!TakeCell(slot, message)) zygote_.Fatal("a cell is not what it says");
  } else if (header.kind == FrameKind::kCellReady && cell.state == CellState::kMade) {
    OnReady(slot, message->sender);
  } else if (header.kind == kCellKept && cell.kept && cell.state == CellState::kReady) {
    agent_.Report(About(FrameKind::kKept, NumberOf(*slot), cell.id));
  } else if (header.kind == kCellStatus && cell.kept && cell.state == CellState::kReady) {
    HoldUserEnd(slot, static_cast<int>(header.a));
  } else if (header.kind == kCellStatus && !ending.ended && cell.state != CellState::kMaking) {
    ending.ended = true;
    ending.status = static_cast<int>(header.a);
  } else {
    zygote_.Fatal("a slot spoke out of turn");
  }
}

bool Slots::IsNewChild(pid_t pid) const {
  if (pid <= 1 || pid == zygote_.pid()) return false;
  for (const Slot& slot : slots_) {
    if (slot.pid == pid || slot.cell.init == pid) return false;
  }
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

bool Slots::OnDeath(pid_t pid, int status, const rusage& usage) {
  if (pid == zygote_.pid()) return configuration_.single_cell() && OnSingleCellDeath(status, usage);
  for (Slot& slot : slots_) {
    if (slot.cell.init == pid) return OnCellDeath(&slot, usage), true;
    if (slot.pid != pid) continue;
    slot.pid = 0;
    char text[64];
    const int size =
        WIFEXITED(status)
            ? snprintf(text, sizeof text, "the slot exited with %d", WEXITSTATUS(status))
            : snprintf(text, sizeof text, "the slot died of signal %d", WTERMSIG(status));
    return Fail(&slot, 0, text, static_cast<size_t>(size)), true;
  }
  return false;
}

// Code in a cell cannot stop its PID 1, nor a slot: a process that stops one of ours does so from
// outside. A zygote can stop itself; it is of as little use then.
void Slots::CheckStops() {
  if (configuration_.single_cell()) return CheckSingleStop();
  for (int i = 0; i < kStopsAtOnce; ++i) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WSTOPPED | WNOHANG | __WALL) != 0 || info.si_pid == 0) return;
    if (info.si_pid == zygote_.pid()) kill(zygote_.pid(), SIGKILL);
    for (Slot& slot : slots_) {
      if (slot.state == SlotState::kFree) continue;
      if (slot.cell.init == info.si_pid) Kill(&slot, kLost);
      if (slot.pid != info.si_pid) continue;
      static constexpr char kText[] = "the slot was stopped";
      Fail(&slot, 0, kText, sizeof kText - 1);
    }
  }
}

void Slots::FailLate(int64_t now, int64_t held_up_us) {
  for (Slot& slot : slots_) {
    const Cell& cell = slot.cell;
    slot.waited_us += held_up_us;
    const bool is_made = cell.state == CellState::kMaking || cell.state == CellState::kMade;
    const bool ends = cell.kept && cell.ending.end != kEndedItself;
    if ((slot.state != SlotState::kStarting || now - slot.begun_us - slot.waited_us <= kMakingUs) &&
        (!(is_made || ends) || now - cell.begun_us - slot.waited_us <= kMakingUs)) {
      continue;
    }
    static constexpr char kText[] = "it took longer than 10 s";
    Fail(&slot, ETIMEDOUT, kText, sizeof kText - 1);
  }
}

// The slot goes, and its cell with it. The agent gets the report of a cell that ran (kCellExit)
// before that of the slot.
void Slots::Fail(Slot* slot, int error, const char* text, size_t size) {
  if (slot->state == SlotState::kFree || slot->state == SlotState::kLost) return;
  const bool ran = slot->cell.state == CellState::kReady || slot->cell.kept;
  FrameHeader failed = About(FrameKind::kFailed, NumberOf(*slot), ran ? 0 : slot->cell.id);
  failed.b = static_cast<uint64_t>(error);
  if (slot->pid > 0) kill(slot->pid, SIGKILL);
  slot->pid = 0;
  Kill(slot, kLost);
  if (ran) {
    slot->state = SlotState::kLost;  // until its cell is reaped
    return;
  }
  ReportLost(slot);
  agent_.Report(failed, text, std::min(size, AgentLink::kMaxQueued));
  Free(slot);
}

}  // namespace hutch
