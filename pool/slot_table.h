// SPDX-License-Identifier: Apache-2.0

// The slots of one worker: their numbers, their states and their cgroups.
//
// The table decides nothing: what a worker may say about a slot is checked by its user
// (worker_cells.h). Belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "pool/cgroups.h"
#include "wire/cell_frame.h"

namespace hutch {

enum class SlotState {
  kMaking,      // the worker was asked to make it
  kFree,        // it is there and has no cell
  kMakingCell,  // it is there and was asked to make a cell
  kHasCell,     // its cell is parked or leased
  kEnding,      // the worker was asked to end it
};

class SlotTable {
 public:
  uint32_t Add();  // A slot in state kMaking; returns its number.
  // std::nullopt: there is no such slot.
  std::optional<SlotState> StateOf(uint32_t slot) const;
  void Move(uint32_t slot, SlotState state);  // Nothing happens if there is no such slot.
  // Remove() keeps the number out of use: the worker may still report the end of that slot, and the
  // report must not be taken for the end of a successor. Release() makes the number usable again.
  void Remove(uint32_t slot);
  void Release(uint32_t slot);
  void Clear();  // Removes every slot; cgroups stay until the table is destroyed.

  uint64_t size() const { return slots_.size(); }
  uint64_t alive() const { return size() - Count(SlotState::kEnding); }  // or being made
  uint64_t making() const { return Count(SlotState::kMaking); }
  uint64_t free() const { return Count(SlotState::kFree); }
  uint64_t making_cells() const { return Count(SlotState::kMakingCell); }

  // The free slot with the lowest number that is at least `from`.
  std::optional<uint32_t> NextFree(uint32_t from) const;
  // Free slots, highest number first, at most `count`.
  std::vector<uint32_t> HighestFree(uint64_t count) const;

  // From now on every slot gets one of `cgroups`, which outlives the table; nullptr: none does.
  void UseCgroups(Cgroups* cgroups, const CgroupLimits& limits);
  const CgroupLimits& limits() const { return limits_; }
  bool Confine(uint32_t slot);  // False: its cgroup could not be made.
  // nullptr: the slot has no cgroup.
  const Cgroups::Group* GroupOf(uint32_t slot) const;
  bool RanOutOfMemory(uint32_t slot) const;  // according to the kernel
  // True if it did: the report says so then, as the kernel killed it and the warden knows no
  // reason.
  bool BlameMemory(uint32_t slot, CellReport* report) const;
  void ForgetMemoryKills(uint32_t slot);             // those until now do not count any more
  bool KillTogether(uint32_t slot, bool all) const;  // see Cgroups::Group; true without one
  void KillGroups() const;                           // every process in any of them

 private:
  uint64_t Count(SlotState state) const { return counts_[static_cast<size_t>(state)]; }
  void Uncount(SlotState state) { --counts_[static_cast<size_t>(state)]; }

  std::map<uint32_t, SlotState> slots_;
  Cgroups* cgroups_ = nullptr;
  CgroupLimits limits_;
  std::map<uint32_t, std::unique_ptr<Cgroups::Group>> groups_;
  std::map<uint32_t, uint64_t> memory_kills_;  // that do not count, by slot
  uint32_t next_number_ = 0;                   // the lowest number that was never used
  std::vector<uint32_t> free_numbers_;         // of released slots
  uint64_t counts_[5] = {};                    // slots in each state
};

}  // namespace hutch
