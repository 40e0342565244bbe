// SPDX-License-Identifier: Apache-2.0

#include "pool/slot_table.h"

#include <utility>

namespace hutch {

uint32_t SlotTable::Add() {
  uint32_t slot = next_number_;
  if (free_numbers_.empty()) {
    ++next_number_;
  } else {
    slot = free_numbers_.back();
    free_numbers_.pop_back();
  }
  slots_.emplace(slot, SlotState::kMaking);
  ++counts_[static_cast<size_t>(SlotState::kMaking)];
  return slot;
}

std::optional<SlotState> SlotTable::StateOf(uint32_t slot) const {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return std::nullopt;
  return found->second;
}

void SlotTable::Move(uint32_t slot, SlotState state) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return;
  Uncount(found->second);
  found->second = state;
  ++counts_[static_cast<size_t>(state)];
}

void SlotTable::Remove(uint32_t slot) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return;
  groups_.erase(slot);
  Uncount(found->second);
  slots_.erase(found);
}

void SlotTable::Release(uint32_t slot) {
  if (slots_.contains(slot)) free_numbers_.push_back(slot);
  Remove(slot);
}

void SlotTable::Clear() {
  slots_.clear();
  for (uint64_t& count : counts_) count = 0;
}

std::optional<uint32_t> SlotTable::NextFree(uint32_t from) const {
  for (auto slot = slots_.lower_bound(from); slot != slots_.end(); ++slot) {
    if (slot->second == SlotState::kFree) return slot->first;
  }
  return std::nullopt;
}

std::vector<uint32_t> SlotTable::HighestFree(uint64_t count) const {
  std::vector<uint32_t> highest;
  for (auto slot = slots_.rbegin(); slot != slots_.rend() && highest.size() < count; ++slot) {
    if (slot->second == SlotState::kFree) highest.push_back(slot->first);
  }
  return highest;
}

void SlotTable::UseCgroups(Cgroups* cgroups, const CgroupLimits& limits) {
  cgroups_ = cgroups;
  limits_ = limits;
}

bool SlotTable::Confine(uint32_t slot) {
  if (cgroups_ == nullptr) return true;
  auto group = cgroups_->Make(limits_);
  if (group == nullptr) return false;
  groups_.insert_or_assign(slot, std::move(group));
  memory_kills_.erase(slot);
  return true;
}

const Cgroups::Group* SlotTable::GroupOf(uint32_t slot) const {
  const auto group = groups_.find(slot);
  return group == groups_.end() ? nullptr : group->second.get();
}

bool SlotTable::RanOutOfMemory(uint32_t slot) const {
  const Cgroups::Group* group = GroupOf(slot);
  const auto forgotten = memory_kills_.find(slot);
  return group != nullptr &&
         group->memory_kills() > (forgotten == memory_kills_.end() ? 0 : forgotten->second);
}

bool SlotTable::BlameMemory(uint32_t slot, CellReport* report) const {
  if (!RanOutOfMemory(slot)) return false;
  report->end = kKilled;
  report->limit = kLimitMemory;
  const uint64_t peak_kb = GroupOf(slot)->peak_kb();
  if (peak_kb != 0) report->peak_kb = peak_kb;
  report->memory_limit_kb = limits_.memory_kb;
  return true;
}

void SlotTable::ForgetMemoryKills(uint32_t slot) {
  if (const Cgroups::Group* group = GroupOf(slot)) memory_kills_[slot] = group->memory_kills();
}

bool SlotTable::KillTogether(uint32_t slot, bool all) const {
  const Cgroups::Group* group = GroupOf(slot);
  return group == nullptr || group->KillTogether(all);
}

void SlotTable::KillGroups() const {
  for (const auto& [slot, group] : groups_) group->Kill();
}

}  // namespace hutch
