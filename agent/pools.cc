// SPDX-License-Identifier: Apache-2.0

#include "agent/pools.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "agent/validate.h"
#include "podman/mounts.h"
#include "wire/message.h"
#include "wire/sha256.h"

namespace hutch {
namespace {

std::string Salt() {
  std::random_device entropy;
  std::string salt;
  for (int i = 0; i < 4; ++i) salt.append(std::to_string(entropy())).push_back('-');
  return salt;
}

}  // namespace

Pools::Pools(Loop& loop, ContainerHost& host, std::function<unsigned()> worker_uid,
             uint64_t most_workers, Callbacks callbacks)
    : loop_(loop),
      host_(host),
      worker_uid_(std::move(worker_uid)),
      most_workers_(most_workers),
      callbacks_(std::move(callbacks)),
      salt_(Salt()),
      spares_({loop_, host_.podman, host_.threads, host_.paths, host_.generation, worker_uid_}) {}

void Pools::KeepSpare(const std::string& base_id, const std::string& runtime_id) {
  if (!IsHex(base_id, 32) || !IsHex(runtime_id, 32)) return;
  keeps_spares_ = true;
  spares_.Keep(base_id, runtime_id);
}

std::string Pools::KeyOf(const PoolSpec& spec, const std::string& environment_digest) const {
  std::string keyed = environment_digest + EncodeMessage(Prepare{0, 0, spec});
  if (!spec.secrets.empty()) keyed += salt_;
  return Sha256Hex(keyed);
}

PoolEntry* Pools::FindEntry(const std::string& key) {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

Pool* Pools::Find(const std::string& key) {
  const PoolEntry* entry = FindEntry(key);
  return entry == nullptr ? nullptr : entry->pool.get();
}

CellOrders* Pools::OrdersFor(const std::string& key, uint64_t cell) {
  Pool* pool = Find(key);
  return pool == nullptr ? nullptr : pool->OrdersFor(cell);
}

PoolEntry* Pools::FindOrMake(const std::string& key, const PoolSpec& spec,
                             const Environment& environment) {
  if (PoolEntry* entry = FindEntry(key)) return entry;
  if (entries_.size() >= kMost) {
    const auto unused =
        std::ranges::find_if(entries_, [](const auto& e) { return e.second.pool->abandoned(); });
    if (unused != entries_.end()) entries_.erase(unused);
  }
  if (retired_ || entries_.size() >= kMost) return nullptr;
  std::unique_ptr<Pool> pool = Make(key, spec, environment);
  PoolEntry& entry = entries_[key];
  entry.pool = std::move(pool);
  return &entry;
}

std::unique_ptr<Pool> Pools::Make(const std::string& key, const PoolSpec& spec,
                                  const Environment& environment) {
  Pool::Context context{
      .loop = loop_,
      .podman = spec.isolation == Isolation::kGvisor ? host_.gvisor_podman : host_.podman,
      .background = host_.threads,
      .paths = host_.paths,
      .generation = host_.generation,
      .cores = std::max(1u, std::thread::hardware_concurrency()),
      .cell_gone = callbacks_.cell_gone,
      .session_event = callbacks_.session_event,
      .reclaim = callbacks_.reclaim,
      .may_take = [this, key](uint64_t caller) { return callbacks_.may_take(caller, key); },
      .queues = queues_,
      .worker_uid = worker_uid_,
      .spare =
          [this](const PoolSpec& wanted) {
            auto spare = spares_.Take(wanted.base_id, wanted.runtime_id);
            if (keeps_spares_ && !retired_) spares_.Keep(wanted.base_id, wanted.runtime_id);
            return spare;
          },
      .open_network = callbacks_.open_network,
      .close_network = callbacks_.close_network,
      .pressure = [this] { return pressure_.At(Clock::now()); },
      .idle_sec = [this] { return idle_sec_; },
      .warm_workers = warm_workers_,
      .cgroups = cgroups_};
  return std::make_unique<Pool>(std::move(context), key, spec, environment);
}

void Pools::InvalidateAll() {
  for (auto& [key, entry] : entries_) entry.stale = true;
}

void Pools::Describe(const std::string& key, const Reservation& reservation) {
  PoolEntry* entry = FindEntry(key);
  if (entry == nullptr || (entry->audit != nullptr && !entry->stale)) return;
  const Pool& pool = *entry->pool;
  entry->audit = std::make_shared<const AuditPool>(
      AuditPool{key, pool.environment().digest, pool.spec().labels, reservation.tenant});
  entry->reservation = reservation;
  entry->stale = false;
}

void Pools::Look(unsigned worth) {
  spares_.Look(worth);
  for (auto& [key, entry] : entries_) entry.pool->Look(worth);
}

void Pools::Tick() {
  for (auto& [key, entry] : entries_) entry.pool->Tick();
  EvictWorkers();
}

// One pool per tick, the one that was used the longest ago: the next tick, a second later, sees
// what that freed.
void Pools::EvictWorkers() {
  uint64_t workers = 0;
  std::vector<Pool*> with_workers;
  for (const auto& [key, entry] : entries_) {
    const uint64_t its = entry.pool->GetStats().workers;
    workers += its;
    if (its > 0) with_workers.push_back(entry.pool.get());
  }
  if (workers <= most_workers_) return;
  std::ranges::sort(with_workers, {}, &Pool::last_use);
  for (Pool* pool : with_workers) {
    if (pool->EndUnused("the host has as many workers as it may have")) return;
  }
}

std::vector<PoolEntry*> Pools::Waiting() {
  std::vector<PoolEntry*> waiting;
  for (auto& [key, entry] : entries_) {
    if (entry.pool->GetStats().waiting > 0) waiting.push_back(&entry);
  }
  return waiting;
}

void Pools::Discard(uint64_t cell) {
  for (auto& [key, entry] : entries_) entry.pool->Discard(cell);
}

std::set<std::string> Pools::Environments() const {
  std::set<std::string> used;
  for (const auto& [key, entry] : entries_) {
    if (!entry.pool->abandoned()) used.insert(entry.pool->environment().digest);
  }
  return used;
}

Sweeper::Known Pools::ForSweep() {
  Sweeper::Known known;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const Pool& pool = *it->second.pool;
    const std::vector<std::string> copies = CopiesOf(pool.spec());
    if (!copies.empty() && pool.abandoned() && Clock::now() - pool.last_use() > kCopyAge) {
      it = entries_.erase(it);
      continue;
    }
    known.copies.insert(copies.begin(), copies.end());
    for (const std::string& name : pool.GetStats().worker_names) known.containers.insert(name);
    ++it;
  }
  if (const std::string spare = spares_.name(); !spare.empty()) known.containers.insert(spare);
  return known;
}

void Pools::Retire() {
  retired_ = true;
  spares_.Retire();
  for (auto& [key, entry] : entries_) entry.pool->Retire();
}

bool Pools::HaveEnded() const {
  return std::ranges::all_of(entries_, [](const auto& e) { return e.second.pool->empty(); });
}

std::vector<PoolState> Pools::States(Clock::time_point now) {
  std::vector<PoolState> states;
  for (auto& [key, entry] : entries_) {
    const Pool& pool = *entry.pool;
    states.push_back({key, pool.environment().digest, pool.spec().requirements, pool.spec().labels,
                      pool.spec().memory_mb, NameOf(pool.spec().isolation), pool.GetStats(),
                      entry.metrics, entry.metrics.rate.PerSecond(now),
                      entry.metrics.recent.Get(now)});
  }
  return states;
}

}  // namespace hutch
