// SPDX-License-Identifier: Apache-2.0

#include "pool/worker_cells.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "wire/log.h"

namespace hutch {
namespace {

constexpr auto kKillDeadline = std::chrono::seconds(5);
// So many cells may fail in a row, by ending before they are ready or because they cannot be made:
// without a bound, a hostile package would keep the worker forking for ever.
constexpr unsigned kMaxFailedCells = 16;
constexpr auto kCrowdedPeriod = std::chrono::milliseconds(5);

uint64_t NextCellId() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace

WorkerCells::WorkerCells(Loop& loop, Owner& owner, Send send, std::function<bool()> crowded,
                         std::string worker)
    : loop_(loop),
      owner_(owner),
      send_(std::move(send)),
      crowded_(std::move(crowded)),
      worker_(std::move(worker)),
      alive_(std::make_shared<bool>(true)) {}

WorkerCells::~WorkerCells() { *alive_ = false; }

// ---- what is ordered

void WorkerCells::AddSlot() {
  const uint32_t slot = slots_.Add();
  if (!slots_.Confine(slot)) {
    // The warden of this worker relies on cgroups. The next worker is configured without.
    loop_.Post([this, alive = alive_] {
      if (*alive) owner_.GiveUp("a cgroup could not be made");
    });
    return;
  }
  const Cgroups::Group* group = slots_.GroupOf(slot);
  const int descriptor[] = {group == nullptr ? -1 : group->procs()};
  const std::span<const int> descriptors(descriptor, group == nullptr ? 0 : 1);
  send_({.kind = FrameKind::kMakeSlot, .a = slot}, descriptors);
}

void WorkerCells::MakeCells(uint64_t count) {
  for (auto slot = slots_.NextFree(0); slot && count > 0 && !starved_; --count) {
    MakeCell(*slot);
    slot = slots_.NextFree(*slot + 1);
  }
}

void WorkerCells::EndFreeSlots(uint64_t count) {
  for (const uint32_t slot : slots_.HighestFree(count)) EndSlot(slot);
}

void WorkerCells::MakeCell(uint32_t slot) {
  auto channels = MakeCellChannels(networks_.open != nullptr);
  if (!channels) {
    starved_ = true;  // until TryAgain(): that another slot gets a cell does not fill this one
    return;
  }
  const uint64_t id = NextCellId();
  if (!send_(
          {.kind = FrameKind::kMakeCell, .a = slot, .id = id, .c = skip_warm_up_ ? kSkipWarmUp : 0},
          channels->theirs())) {
    starved_ = true;
    return;
  }
  slots_.Move(slot, SlotState::kMakingCell);
  Cell& cell =
      cells_.emplace(id, Cell{.slot = slot, .channels = std::move(channels->ours)}).first->second;
  if (networks_.open == nullptr) return;
  networks_.open(id, std::move(channels->egress));
  cell.network = {nullptr, [close = networks_.close, id](void*) { close(id); }};
}

void WorkerCells::TryAgain() {
  starved_ = false;
  if (refill_) MakeCells(1);
}

CellChannels WorkerCells::Take(uint64_t cell) {
  ++calls_;
  return std::move(cells_.at(cell).channels);
}

void WorkerCells::Arm(uint64_t cell, uint64_t timeout_ms, uint64_t cpu_ms, uint64_t result_kb) {
  if (!cells_.contains(cell)) return;
  const auto result = static_cast<uint32_t>(std::min<uint64_t>(result_kb, kBetweenCalls - 1));
  SendSoon({.kind = FrameKind::kArm, .a = result, .id = cell, .b = timeout_ms, .c = cpu_ms});
}

void WorkerCells::ArmLoading(uint64_t cell, uint64_t cpu_ms) {
  if (!cells_.contains(cell)) return;
  send_({.kind = FrameKind::kArm, .a = kLoading, .id = cell, .c = cpu_ms}, {});
}

void WorkerCells::Kill(uint64_t cell) {
  if (!cells_.contains(cell)) return;
  send_({.kind = FrameKind::kKill, .id = cell}, {});
  if (!ends_in_time_) return;
  loop_.After(kKillDeadline, [this, alive = alive_, cell] {
    if (*alive && cells_.contains(cell)) owner_.GiveUp("the warden did not end a cell in time");
  });
}

void WorkerCells::Keep(uint64_t id) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end() || cell->second.keeping) return;
  cell->second.keeping = true;
  // Where the kernel refuses, all of it is killed for want of memory, and the session ends.
  slots_.KillTogether(cell->second.slot, false);
  send_({.kind = FrameKind::kKeep, .id = id}, {});
}

void WorkerCells::EndCall(uint64_t cell, uint64_t cpu_ms) {
  if (!cells_.contains(cell)) return;
  SendSoon({.kind = FrameKind::kArm, .a = kBetweenCalls, .id = cell, .c = cpu_ms});
}

void WorkerCells::InterruptUser(uint64_t cell, uint64_t user, uint32_t call) {
  if (!cells_.contains(cell)) return;
  SendSoon({.kind = FrameKind::kInterrupt, .a = call, .id = cell, .b = user});
}

void WorkerCells::RestartUser(uint64_t cell, uint64_t user) {
  if (!cells_.contains(cell)) return;
  SendSoon({.kind = FrameKind::kRestart, .id = cell, .b = user});
}

// A client may ask for these as often as it likes. Where the warden is behind, the last of each
// kind waits here: so no client can fill what the orders for the cells of others go through.
void WorkerCells::SendSoon(const FrameHeader& order) {
  std::vector<FrameHeader>& held = cells_.at(order.id).held;
  if (held.empty() && !crowded_()) {
    send_(order, {});
    return;
  }
  const bool ends_call = order.kind == FrameKind::kArm && order.a == kBetweenCalls;
  std::erase_if(held, [&](const FrameHeader& one) {
    // The end of a call is kept before the limits of the next one, which it begins.
    const bool is_end = one.kind == FrameKind::kArm && one.a == kBetweenCalls;
    return one.kind == order.kind && (ends_call || !is_end);
  });
  held.push_back(order);
  if (std::exchange(sends_held_, true)) return;
  loop_.After(kCrowdedPeriod, [this, alive = alive_] {
    if (*alive) SendHeld();
  });
}

void WorkerCells::SendHeld() {
  sends_held_ = false;
  for (auto& [id, cell] : cells_) {
    for (const FrameHeader& order : std::exchange(cell.held, {})) SendSoon(order);
  }
}

void WorkerCells::Discard(uint64_t id) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end()) return;
  if (cell->second.ready) return Kill(id);
  cell->second.unwanted = true;
}

// ---- what the warden reports

void WorkerCells::OnSlotReady(uint32_t slot) {
  if (slots_.StateOf(slot) != SlotState::kMaking)
    return owner_.GiveUp("the warden reported an unexpected slot");
  // The zygote may be hostile, so the kernel is asked whether the slot is where its limits are.
  const Cgroups::Group* group = slots_.GroupOf(slot);
  if (group != nullptr && !group->populated())
    return owner_.GiveUp("a slot did not enter its cgroup");
  slots_.Move(slot, SlotState::kFree);
  if (refill_) MakeCell(slot);
}

void WorkerCells::OnSlotGone(uint32_t slot) {
  if (slots_.StateOf(slot) != SlotState::kEnding)
    return owner_.GiveUp("the warden reported an unexpected end of a slot");
  slots_.Release(slot);
  LoseCellOf(slot);
}

void WorkerCells::OnCellReady(uint64_t id) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end() || cell->second.ready)
    return owner_.GiveUp("the warden reported an unexpected cell");
  cell->second.ready = true;
  failed_cells_ = 0;
  slots_.Move(cell->second.slot, SlotState::kHasCell);
  if (cell->second.unwanted) return Kill(id);
  owner_.OnCellReady(id);
}

void WorkerCells::OnCellExit(uint64_t id, std::string_view payload) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end() || payload.size() != sizeof(CellReport))
    return owner_.GiveUp("the warden reported an unexpected end of a cell");
  CellReport report;
  std::memcpy(&report, payload.data(), sizeof report);
  const uint32_t slot = cell->second.slot;
  if (slots_.RanOutOfMemory(slot)) {
    BlameMemory(slot, &report);  // the slot was killed together with the cell
    cells_.erase(cell);
    EndSlot(slot);
    return owner_.OnCellGone(id, report);
  }
  if (!cell->second.ready && CountFailedCell())
    return owner_.GiveUp("its cells end before they are ready");
  if (cell->second.keeping && !slots_.KillTogether(slot, true)) {
    cells_.erase(cell);
    EndSlot(slot);  // the next cell in it could go on with some of its processes missing
    return owner_.OnCellGone(id, report);
  }
  const auto gone = cells_.extract(cell);  // Its network is closed after OnCellGone().
  slots_.Move(slot, SlotState::kFree);
  owner_.OnCellGone(id, report);
}

void WorkerCells::OnKept(uint64_t id, bool restartable) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end() || !cell->second.keeping)
    return owner_.GiveUp("the warden kept an unexpected cell");
  owner_.OnSessionEvent(id, restartable ? SessionEvent::kKept : SessionEvent::kKeptOnce, {});
}

void WorkerCells::OnUserExit(uint64_t id, std::string_view payload) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end() || !cell->second.keeping || cell->second.restarting ||
      payload.size() != sizeof(CellReport)) {
    return owner_.GiveUp("the warden reported an unexpected end of a user process");
  }
  cell->second.restarting = true;
  CellReport report;
  std::memcpy(&report, payload.data(), sizeof report);
  if (slots_.RanOutOfMemory(cell->second.slot)) BlameMemory(cell->second.slot, &report);
  slots_.ForgetMemoryKills(cell->second.slot);
  owner_.OnSessionEvent(id, SessionEvent::kUserExit, report);
}

void WorkerCells::OnUserReady(uint64_t id) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end() || !cell->second.restarting)
    return owner_.GiveUp("the warden reported an unexpected user process");
  cell->second.restarting = false;
  owner_.OnSessionEvent(id, SessionEvent::kUserReady, {});
}

void WorkerCells::OnBackground(uint64_t id, uint64_t cpu_us) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end() || !cell->second.keeping)
    return owner_.GiveUp("the warden measured an unexpected cell");
  owner_.OnSessionEvent(id, SessionEvent::kBackground, {.cpu_us = cpu_us});
}

// The kernel killed it, so the warden knows no reason.
void WorkerCells::BlameMemory(uint32_t slot, CellReport* report) {
  report->end = kKilled;
  report->limit = kLimitMemory;
  const uint64_t peak_kb = slots_.GroupOf(slot)->peak_kb();
  if (peak_kb != 0) report->peak_kb = peak_kb;
  report->memory_limit_kb = slots_.limits().memory_kb;
}

void WorkerCells::OnFailed(uint32_t slot, uint64_t cell, const std::string& reason) {
  LogWarn("a slot or cell could not be made",
          {{"worker", worker_}, {"slot", slot}, {"cell", cell}, {"why", reason}});
  const auto state = slots_.StateOf(slot);
  if (!state) return owner_.GiveUp("the warden reported a failure of an unknown slot");
  if (*state == SlotState::kEnding) return;  // kSlotGone follows
  if (slots_.RanOutOfMemory(slot)) {         // A call did that; nothing is wrong with the worker.
    EndSlot(slot);
    return owner_.OnSlotsChanged();
  }
  tainted_ = true;
  // A worker that cannot make its only slot is of no use.
  if (slots_.size() == 1 || CountFailedCell())
    return owner_.GiveUp("a cell could not be made: " + reason);
  slots_.Remove(slot);
  LoseCellOf(slot);
  owner_.OnSlotsChanged();
}

void WorkerCells::Drop() {
  for (auto& [id, cell] : std::exchange(cells_, {})) {
    owner_.OnCellGone(id, CellReport{.end = kLost});
  }
  slots_.Clear();
}

bool WorkerCells::CountFailedCell() { return ++failed_cells_ >= kMaxFailedCells; }

void WorkerCells::EndSlot(uint32_t slot) {
  slots_.Move(slot, SlotState::kEnding);
  send_({.kind = FrameKind::kEndSlot, .a = slot}, {});
  const auto cell = CellOf(slot);
  if (cell == cells_.end()) return;
  const uint64_t id = cell->first;
  cells_.erase(cell);
  owner_.OnCellGone(id, CellReport{});
}

std::map<uint64_t, WorkerCells::Cell>::iterator WorkerCells::CellOf(uint32_t slot) {
  return std::ranges::find_if(cells_, [slot](const auto& c) { return c.second.slot == slot; });
}

void WorkerCells::LoseCellOf(uint32_t slot) {
  const auto cell = CellOf(slot);
  if (cell == cells_.end()) return;
  const uint64_t id = cell->first;
  const auto gone = cells_.extract(cell);  // Its network is closed after OnCellGone().
  owner_.OnCellGone(id, CellReport{});
}

}  // namespace hutch
