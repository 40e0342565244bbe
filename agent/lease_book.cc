// SPDX-License-Identifier: Apache-2.0

#include "agent/lease_book.h"

#include <atomic>
#include <utility>

namespace hutch {

void LeaseBook::AddPeer(uint64_t peer, uint32_t* table) {
  auto [it, added] = peers_.try_emplace(peer);
  if (!added) return;
  it->second.table = table;
  it->second.free_slots.reserve(kLeaseTableSlots);
  for (uint32_t slot = kLeaseTableSlots; slot > 0; --slot)
    it->second.free_slots.push_back(slot - 1);
}

std::set<uint64_t> LeaseBook::RemovePeer(uint64_t peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return {};
  std::set<uint64_t> cells = std::move(found->second.cells);
  peers_.erase(found);
  return cells;
}

bool LeaseBook::HasFreeSlot(uint64_t peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && !found->second.free_slots.empty();
}

std::set<uint64_t> LeaseBook::CellsOf(uint64_t peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? std::set<uint64_t>() : found->second.cells;
}

LeaseRecord& LeaseBook::Add(uint64_t cell, LeaseRecord record) {
  PeerLeases& peer = peers_.at(record.peer);
  record.table_slot = peer.free_slots.back();
  peer.free_slots.pop_back();
  peer.cells.insert(cell);
  std::atomic_ref<uint32_t>(peer.table[record.table_slot]).store(MarkOf(cell, kLeaseIdle));
  return leases_[cell] = std::move(record);
}

LeaseRecord* LeaseBook::Find(uint64_t cell) {
  const auto found = leases_.find(cell);
  return found == leases_.end() ? nullptr : &found->second;
}

LeaseRecord* LeaseBook::FindOf(uint64_t peer, uint64_t cell) {
  LeaseRecord* lease = Find(cell);
  return lease != nullptr && lease->peer == peer ? lease : nullptr;
}

bool LeaseBook::Remove(uint64_t cell) {
  const auto found = leases_.find(cell);
  if (found == leases_.end()) return false;
  const auto peer = peers_.find(found->second.peer);
  bool was_full = false;
  if (peer != peers_.end()) {
    peer->second.cells.erase(cell);
    peer->second.free_slots.push_back(found->second.table_slot);
    was_full = peer->second.free_slots.size() == 1;
  }
  leases_.erase(found);
  return was_full;
}

bool LeaseBook::IsMarked(uint64_t cell, const LeaseRecord& lease, LeaseMark mark) const {
  const auto peer = peers_.find(lease.peer);
  if (peer == peers_.end()) return false;
  return std::atomic_ref<uint32_t>(peer->second.table[lease.table_slot]).load() ==
         MarkOf(cell, mark);
}

uint32_t LeaseBook::UsesOf(const LeaseRecord& lease) const {
  const auto peer = peers_.find(lease.peer);
  if (peer == peers_.end()) return 0;
  return std::atomic_ref<uint32_t>(peer->second.table[kLeaseTableSlots + lease.table_slot]).load();
}

bool LeaseBook::Reclaim(uint64_t cell, LeaseRecord& lease) {
  const auto peer = peers_.find(lease.peer);
  if (peer == peers_.end()) return false;
  uint32_t expected = MarkOf(cell, kLeaseIdle);
  if (!std::atomic_ref<uint32_t>(peer->second.table[lease.table_slot])
           .compare_exchange_strong(expected, MarkOf(cell, kLeaseReclaimed)))
    return false;
  lease.releasing = true;
  return true;
}

void LeaseBook::OfferUnused() {
  for (auto& [cell, lease] : leases_) {
    if (lease.ahead || lease.serves != Serves::kOneCall || lease.releasing ||
        ++lease.ticks_unused < kTicksToBegin)
      continue;
    lease.ahead = IsMarked(cell, lease, kLeaseIdle);
  }
}

void LeaseBook::KeepEnded(uint64_t peer, uint64_t cell, EndedLease ended) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  std::map<uint64_t, EndedLease>& all = found->second.ended;
  all.insert_or_assign(cell, std::move(ended));
  if (all.size() > kLeaseTableSlots) all.erase(all.begin());
}

std::optional<EndedLease> LeaseBook::TakeEnded(uint64_t peer, uint64_t cell) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  auto ended = found->second.ended.extract(cell);
  if (!ended) return std::nullopt;
  return std::move(ended.mapped());
}

}  // namespace hutch
