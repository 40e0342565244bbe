// SPDX-License-Identifier: Apache-2.0

// What the worker's processes take that belong to no cell: zygote, slots, and what packages or a
// setup function started. Too much of it ends the worker.
//
// Thread contract: one thread; between Begin() and Judge() a reader may be at processes().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "images/warden/cell.h"
#include "images/warden/configuration.h"
#include "images/warden/measure.h"
#include "images/warden/reader.h"

namespace hutch {

class WorkerWatch {
 public:
  // Both outlive it. `proc`: the root of the worker's /proc.
  WorkerWatch(const Configuration& configuration, const Slot (&slots)[kMaxSlots])
      : configuration_(configuration), slots_(slots) {}

  // At each tick; looks now and then, more often until the zygote is `ready`. Returns nullptr, or
  // why the worker ends. `zygote_kb`: what each slot shares with the zygote.
  const char* Look(int proc, int64_t now, bool ready, uint64_t zygote_kb);

  // Whether a reader is wanted at processes().
  bool wanted() const { return wanted_; }
  const pid_t* processes() const { return own_; }
  size_t count() const { return count_; }
  void Begin(const Reader* reader) { wanted_ = false, reader_ = reader; }
  // What that reader found.
  const char* Judge(uint64_t total_kb, uint64_t zygote_kb);

 private:
  uint64_t OwnKb(int proc);

  const Configuration& configuration_;
  const Slot (&slots_)[kMaxSlots];
  int64_t sampled_us_ = 0;
  uint64_t allowed_kb_ = 0;
  pid_t own_[kMaxProcesses];
  size_t count_ = 0;
  bool wanted_ = false;
  const Reader* reader_ = nullptr;
};

}  // namespace hutch
