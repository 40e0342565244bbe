// SPDX-License-Identifier: Apache-2.0

// What the warden knows of a slot and of its cell. A cell goes through: making (kMakeCell passed
// on), made (its PID 1 is known), ready (user process parked), armed (a call runs), dead (reaped:
// its PID namespace is empty, the slot may make the next).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "images/warden/cell_memory.h"
#include "images/warden/measure.h"
#include "images/warden/reader.h"
#include "images/warden/sleep.h"
#include "images/warden/spent.h"
#include "wire/cell_frame.h"

namespace hutch {

inline constexpr int kMaxSlots = kMostSlots;

enum class CellState { kNone, kMaking, kMade, kReady };

// The one that runs a call's code. A kept cell has one after another.
struct UserProcess {
  pid_t pid = 0;
  int fd = -1;         // its pidfd; not in a worker of a single cell
  uint64_t ended = 0;  // how many have, of a kept cell
  int recent = 0;      // of those, without an order, since:
  int64_t since_us = 0;
  bool restart_ordered = false;
  int64_t held_until_us = 0;  // its end, by `status`, is held back (slots.h); 0: it is not
  int status = 0;
};

struct CallLimits {
  int64_t armed_us = 0;        // 0: not armed
  int64_t deadline_us = 0;     // 0: none
  uint64_t cpu_us = 0;         // 0: none
  bool loading = false;        // armed for what it loads: its call is still to come
  bool between = false;        // kept, and serves no call now
  uint64_t background_us = 0;  // the limit of CPU time then; 0: none
  uint64_t told_us = 0;        // of CPU time, all that it had used as of the last kBackground
};

struct Ending {
  bool killed = false;  // the cell was, not only its user process
  CellEnd end = kEndedItself;
  uint32_t limit = kNoLimit;
  bool ended = false;  // `status` is known
  int status = 0;      // raw wait status of the user process
};

struct CellTime {
  SpentTime spent;
  uint64_t used_us = 0;                 // of all that it ran until now
  uint64_t base_us = 0;                 // of that, what is not the call's
  uint64_t cpu_us = 0;                  // the call's, as last seen
  uint64_t seen_us = 0;                 // of the last sample
  std::optional<ProcessorTime> before;  // of its threads, at the call's first look
  // How long others have kept its threads from a processor since, when the call was ended.
  uint64_t waited_us = 0;

  void Add(uint64_t all_us) {
    if (all_us > used_us) used_us = all_us;
    if (all_us > base_us && all_us - base_us > cpu_us) cpu_us = all_us - base_us;
  }
  // What it has used until now is not the next call's.
  void Begin() {
    base_us = used_us;
    cpu_us = waited_us = 0;
    before.reset();
  }
};

// When it is looked at, and how closely.
struct Looks {
  int64_t sampled_us = 0;
  uint32_t samples = 0;
  bool quiet = false;   // it took no CPU time between the last two samples
  Sleep sleep;          // if it is kept, since it became quiet
  bool asleep = false;  // as of this tick
  bool extra = false;   // it is looked at only because it has waked
  // When its memory may be measured exactly again, and when already if it has grown since.
  int64_t exact_after_us = 0;
  int64_t exact_if_grown_us = 0;
  uint64_t exact_kb = 0;  // as last seen, and the resident size that went with it
  uint64_t resident_kb = 0;
  // What a reader is wanted for.
  bool wanted = false;
  bool objects = false;
  bool areas = false;
  const Reader* reader = nullptr;  // at its processes now
  uint64_t asked_kb = 0;           // its resident size when it was sent
  bool slow = false;               // it kept one waiting for too long
};

struct Cell {
  CellState state = CellState::kNone;
  uint64_t id = 0;
  pid_t init = 0;
  int proc = -1;                   // the root of its /proc
  int scratch = -1;                // the root of its tmpfs
  int more_scratch[2] = {-1, -1};  // single cell: of others
  int64_t begun_us = 0;
  bool kept = false;  // it outlives its user process
  UserProcess user;
  CallLimits call;
  Ending ending;
  CellTime time;
  CellMemory memory;
  Looks looks;
  uint64_t peak_kb = 0;
  uint32_t pids_peak = 0;
  uint32_t over = kNoLimit;  // a limit that a look found it over, for which nobody has ended it yet

  // Its user process runs, and nothing has ended it.
  bool runs() const {
    return state == CellState::kReady && ending.end == kEndedItself && user.held_until_us == 0;
  }
};

// What is to be reported of a cell that is gone, unless the worker ends first.
struct HeldReport {
  int64_t until_us = 0;  // 0: there is none
  uint64_t id = 0;
  CellReport report;
};

enum class SlotState { kFree, kStarting, kServing, kLost };

struct Slot {
  SlotState state = SlotState::kFree;
  int control = -1;
  pid_t pid = 0;
  int64_t begun_us = 0;
  int64_t waited_us = 0;  // of the time since it or its cell was begun, when we had none
  Cell cell;
  HeldReport held;
};

ScratchUse ScratchOf(const Cell& cell);
void Free(Slot* slot);  // closes what it has

}  // namespace hutch
