// SPDX-License-Identifier: Apache-2.0

// The warden's slots (slots.cc) and their cells (cells.cc): makes them, passes on what the agent
// orders and what they say, kills and reports.
//
// What comes from a slot or a cell may be forged: it is acted on only in a state that expects it,
// and a pid counts only if the kernel attached it and it is a child of the warden with no other
// role. Anything else ends the worker.
//
// A user process that dies of SIGKILL, which nobody ordered, may be the first of a worker that is
// killed from outside, process by process: its end would be told as what the code did. It is held
// back until the warden has outlived it for a while (kHoldUs).
//
// Thread contract: one thread.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "images/warden/agent_link.h"
#include "images/warden/cell.h"
#include "images/warden/channel.h"
#include "images/warden/configuration.h"
#include "images/warden/events.h"
#include "images/warden/watch.h"
#include "images/warden/zygote.h"

namespace hutch {

class Slots {
 public:
  // All of them outlive it.
  Slots(const Configuration& configuration, AgentLink& agent, const Events& events, Zygote& zygote,
        Watch& watch, Slot (&slots)[kMaxSlots])
      : configuration_(configuration),
        agent_(agent),
        events_(events),
        zygote_(zygote),
        watch_(watch),
        slots_(slots) {}

  // ---- orders of the agent
  void OnMakeSlot(const Datagram& order);
  void OnEndSlot(const Datagram& order);
  void OnMakeCell(const Datagram& order);
  void OnArm(const FrameHeader& order);
  void OnKeep(const FrameHeader& order);
  void OnNextUser(const Datagram& order);
  void OnKill(uint64_t id);
  void OnInterrupt(const FrameHeader& order);
  void OnRestart(const FrameHeader& order);
  // Of those that are at work already, to an agent that comes later.
  void ReportAll();

  // ---- what they say, and their ends
  void OnNotForked(const Datagram& message);  // the zygote says so
  void OnSlot(int number);
  void HearAll();  // what each has said until now
  // Whether it was one of theirs.
  bool OnDeath(pid_t pid, int status, const rusage& usage);
  void CheckStops();  // nobody would continue what was stopped

  // ---- time
  void FailLate(int64_t now, int64_t held_up_us);  // those that take too long to be made, or to end
  void ReportHeld(int64_t now);
  void EndThoseOver();  // a limit, as the watch found
  void KillAll();
  bool busy() const;  // whether ticks are needed

 private:
  Slot* Find(uint64_t cell);
  int NumberOf(const Slot& slot) const { return static_cast<int>(&slot - slots_); }
  bool IsNewChild(pid_t pid) const;
  void OnMessage(Slot* slot, Datagram* message);
  bool TakeCell(Slot* slot, Datagram* message);
  void TakeSingleCell(Cell* cell);
  void OnReady(Slot* slot, pid_t user);
  void BeginCall(Slot* slot);
  void OnUserEnd(Slot* slot, int status);
  void HoldUserEnd(Slot* slot, int status);
  void OnCellDeath(Slot* slot, const rusage& usage);
  // single_cell.cc
  void CheckSingleStop();
  bool OnSingleCellDeath(int status, const rusage& usage);
  void ReportLost(Slot* slot);  // what is held back: it did not outlive the worker, or the slot
  void Kill(Slot* slot, CellEnd end, uint32_t limit = kNoLimit);
  // The cell, or of a kept one only its user process.
  void KillWhatRuns(Slot* slot, uint32_t limit);
  void Fail(Slot* slot, int error, const char* text, size_t size);

  const Configuration& configuration_;
  AgentLink& agent_;
  const Events& events_;
  Zygote& zygote_;
  Watch& watch_;
  Slot (&slots_)[kMaxSlots];
};

}  // namespace hutch
