// SPDX-License-Identifier: Apache-2.0

// What the agent orders of a warden for one cell that is in use: limits, the end of a call, an
// interrupt, another user process.
//
// A client may ask for these as often as it likes. Where the warden is behind, the last of each
// kind waits here: so no client can fill what the orders for the cells of others go through.
// Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "loop/loop.h"
#include "wire/cell_frame.h"

namespace hutch {

// The way to the warden of a worker.
struct OrderLink {
  // As WardenLink::Send().
  std::function<bool(const FrameHeader&, std::span<const int> descriptors)> send;
  std::function<bool()> crowded;  // as WardenLink::IsCrowded()
};

class CellOrders {
 public:
  // `loop` and `link` outlive it.
  CellOrders(Loop& loop, const OrderLink& link, uint64_t cell);
  ~CellOrders();
  CellOrders(const CellOrders&) = delete;
  CellOrders& operator=(const CellOrders&) = delete;

  // A call runs from now on, for at most so long and so much CPU time (0: no limit). `result_kb`:
  // of memory that it was given for its result.
  void Arm(uint64_t timeout_ms, uint64_t cpu_ms, uint64_t result_kb = 0);
  void ArmLoading(uint64_t cpu_ms);  // until Arm(): see kArm
  // No call runs in a kept cell from now on, until it is armed. `cpu_ms`: of all that runs in it
  // meanwhile; 0: no limit.
  void EndCall(uint64_t cpu_ms);
  // Has the call with these low bits of its id raise KeyboardInterrupt, if it still runs, and
  // `user` user processes have ended before. `call` 0: it looks for commands.
  void Interrupt(uint64_t user, uint32_t call);
  // Ends the user process of a kept cell, if `user` of them have ended before.
  void RestartUser(uint64_t user);

 private:
  void Send(const FrameHeader& order);
  void SendHeld();

  Loop& loop_;
  const OrderLink& link_;
  const uint64_t cell_;
  std::vector<FrameHeader> held_;  // until the warden has read others
  TimerId timer_ = 0;              // SendHeld() is to come
};

}  // namespace hutch
