// SPDX-License-Identifier: Apache-2.0

// The cells of one worker that are kept for sessions: each outlives its user process, and gets
// another one.
//
// Only a cell that was asked to be kept may be reported here, and the end of a user process and the
// next one's being ready only in turn: any other report ends the worker. Belongs to the loop's
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "pool/cell_orders.h"
#include "pool/slot_table.h"
#include "wire/cell_frame.h"
#include "wire/fd.h"

namespace hutch {

// What happens to a cell that is kept for a session.
struct SessionEvent {
  enum Kind {
    kKept,        // it outlives its user process from now on
    kKeptOnce,    // it serves one call after another, and ends with its user process
    kUserExit,    // its user process has ended, and every other one with it
    kUserReady,   // it has another one
    kBackground,  // what it has used since the last was measured
  };
  Kind kind;
  CellReport report{};  // of kUserExit; of kBackground its CPU time only
  Fd socket{};          // of kUserExit: of the calls of its next user process, the host's end
};

class KeptCells {
 public:
  class Owner {
   public:
    virtual void OnSessionEvent(uint64_t cell, SessionEvent event) = 0;
    // The worker is of no more use.
    virtual void GiveUp(const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };

  // `kill` ends a cell that can have no other user process. All outlive it.
  KeptCells(Owner& owner, const OrderLink& link, SlotTable& slots,
            std::function<void(uint64_t cell)> kill);

  // Asks the warden to keep the cell of that slot, once. Nothing follows where it cannot be kept.
  void Keep(uint64_t cell, uint32_t slot);
  bool Forget(uint64_t cell);  // It is gone. True if it was to be kept.
  void Clear() { cells_.clear(); }

  // Reports of the warden.
  void OnKept(uint64_t cell, bool restartable);
  void OnUserExit(uint64_t cell, std::string_view payload);
  void OnUserReady(uint64_t cell);
  void OnBackground(uint64_t cell, uint64_t cpu_us);

 private:
  struct Kept {
    uint32_t slot;
    bool restarting = false;  // it has no user process
  };

  Owner& owner_;
  const OrderLink& link_;
  SlotTable& slots_;
  const std::function<void(uint64_t)> kill_;
  std::map<uint64_t, Kept> cells_;
};

}  // namespace hutch
