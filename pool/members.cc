// SPDX-License-Identifier: Apache-2.0

#include "pool/members.h"

#include <algorithm>
#include <utility>

#include "wire/log.h"

namespace hutch {

Members::Members(Loop& loop, std::function<bool(const std::string&)> reclaim)
    : loop_(loop), reclaim_(std::move(reclaim)), alive_(std::make_shared<bool>(true)) {}

Members::~Members() { *alive_ = false; }

Member& Members::Add(std::unique_ptr<Worker> worker, bool spare, double jitter) {
  Member& member = all_.emplace_back();
  member.worker = std::move(worker);
  member.spare = spare;
  member.jitter = jitter;
  return member;
}

uint64_t Members::ready() const {
  uint64_t ready = 0;
  for (const Member& member : all_) ready += member.ready.size();
  return ready;
}

uint64_t Members::alive() const {
  return static_cast<uint64_t>(
      std::ranges::count_if(all_, [](const Member& m) { return !m.retiring; }));
}

bool Members::starting() const {
  return std::ranges::any_of(all_,
                             [](const Member& m) { return !m.retiring && !m.worker->ready(); });
}

Member* Members::Of(const Worker& worker) {
  const auto found =
      std::ranges::find_if(all_, [&](const Member& m) { return m.worker.get() == &worker; });
  return found == all_.end() ? nullptr : &*found;
}

Member* Members::OfLeased(uint64_t cell) {
  const auto found = leased_.find(cell);
  return found == leased_.end() ? nullptr : found->second;
}

Member* Members::WithReadyCell(uint64_t max_calls) {
  const auto found = std::ranges::find_if(all_, [max_calls](const Member& m) {
    return !m.retiring && m.worker->ready() && !m.ready.empty() &&
           m.worker->cells().calls() < max_calls;
  });
  return found == all_.end() ? nullptr : &*found;
}

uint64_t Members::Lease(Member& member) {
  const uint64_t cell = member.ready.front();
  member.ready.pop_front();
  ++member.leased;
  leased_[cell] = &member;
  return cell;
}

void Members::Keep(uint64_t cell) {
  Member* member = OfLeased(cell);
  if (member != nullptr && kept_.insert(cell).second) ++member->kept;
}

bool Members::EndCell(Member& member, uint64_t cell) {
  std::erase(member.ready, cell);
  if (leased_.erase(cell) == 0) return false;
  --member.leased;
  member.kept -= kept_.erase(cell);
  return true;
}

void Members::Retire(Member& member, std::string_view why) {
  if (member.retiring) return;
  LogInfo("a worker retires", {{"worker", member.worker->name()}, {"why", why}});
  member.retiring = true;
  const std::deque<uint64_t> parked = std::exchange(member.ready, {});
  WorkerCells& cells = member.worker->cells();
  cells.StopRefilling();
  const std::string name = member.worker->name();
  while (reclaim_(name)) {
  }
  // Leased cells, of sessions above all, may hold the worker for long: nothing is parked meanwhile.
  if (member.leased > 0) {
    for (const uint64_t cell : parked) cells.Kill(cell);
    cells.EndFreeSlots(kMostSlots);
  }
  SweepSoon();
}

Member Members::Remove(Member& member) {
  const auto found = std::ranges::find_if(all_, [&](const Member& m) { return &m == &member; });
  dead_workers_.push_back(std::move(found->worker));
  Member removed = std::move(*found);
  all_.erase(found);
  SweepSoon();
  return removed;
}

void Members::TryStarved() {
  for (Member& member : all_) {
    if (member.worker->cells().starved()) member.worker->cells().TryAgain();
  }
}

void Members::Look(unsigned worth) {
  std::vector<Worker*> workers;  // One that is given up leaves the list, and lives on for a while.
  for (const Member& member : all_) workers.push_back(member.worker.get());
  for (Worker* worker : workers) worker->Look(worth);
}

void Members::Discard(uint64_t cell) {
  for (Member& member : all_) {
    std::erase(member.ready, cell);
    member.worker->cells().Discard(cell);
  }
}

void Members::SweepSoon() {
  loop_.Post([this, alive = alive_] {
    if (*alive) Sweep();
  });
}

void Members::Sweep() {
  for (auto it = all_.begin(); it != all_.end();) {
    if (it->retiring && it->leased == 0) {
      dead_workers_.push_back(std::move(it->worker));
      it = all_.erase(it);
    } else {
      ++it;
    }
  }
  dead_workers_.clear();
}

}  // namespace hutch
