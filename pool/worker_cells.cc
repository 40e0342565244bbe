// SPDX-License-Identifier: Apache-2.0

#include "pool/worker_cells.h"

#include <algorithm>
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

}  // namespace

WorkerCells::WorkerCells(Loop& loop, Owner& owner, OrderLink link, std::string worker,
                         bool ends_in_time)
    : loop_(loop),
      owner_(owner),
      link_(std::move(link)),
      worker_(std::move(worker)),
      ends_in_time_(ends_in_time),
      maker_(link_),
      kept_(owner, link_, slots_, [this](uint64_t cell) { Kill(cell); }),
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
  link_.send({.kind = FrameKind::kMakeSlot, .a = slot}, descriptors);
}

void WorkerCells::MakeCells(uint64_t count) {
  for (auto slot = slots_.NextFree(0); slot && count > 0 && !starved(); --count) {
    MakeCell(*slot);
    slot = slots_.NextFree(*slot + 1);
  }
}

void WorkerCells::EndFreeSlots(uint64_t count) {
  for (const uint32_t slot : slots_.HighestFree(count)) EndSlot(slot);
}

void WorkerCells::MakeCell(uint32_t slot) {
  auto ordered = maker_.Order(slot);
  if (!ordered) return;
  const uint64_t id = ordered->cell;
  slots_.Move(slot, SlotState::kMakingCell);
  Cell& cell = cells_
                   .emplace(id, Cell{.slot = slot,
                                     .channels = std::move(ordered->channels),
                                     .orders = std::make_unique<CellOrders>(loop_, link_, id)})
                   .first->second;
  cell.network = maker_.OpenNetwork(id, std::move(ordered->egress));
}

void WorkerCells::TryAgain() {
  maker_.TryAgain();
  if (refill_) MakeCells(1);
}

CellChannels WorkerCells::Take(uint64_t cell) {
  ++calls_;
  return std::move(cells_.at(cell).channels);
}

CellOrders* WorkerCells::OrdersFor(uint64_t cell) {
  const auto found = cells_.find(cell);
  return found == cells_.end() ? nullptr : found->second.orders.get();
}

void WorkerCells::Kill(uint64_t cell) {
  if (!cells_.contains(cell)) return;
  link_.send({.kind = FrameKind::kKill, .id = cell}, {});
  if (!ends_in_time_) return;
  loop_.After(kKillDeadline, [this, alive = alive_, cell] {
    if (*alive && cells_.contains(cell)) owner_.GiveUp("the warden did not end a cell in time");
  });
}

void WorkerCells::Keep(uint64_t id) {
  const auto cell = cells_.find(id);
  if (cell != cells_.end()) kept_.Keep(id, cell->second.slot);
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
  const bool kept = kept_.Forget(id);
  if (slots_.BlameMemory(slot, &report)) {  // the slot was killed together with the cell
    cells_.erase(cell);
    EndSlot(slot);
    return owner_.OnCellGone(id, report);
  }
  if (!cell->second.ready && CountFailedCell())
    return owner_.GiveUp("its cells end before they are ready");
  if (kept && !slots_.KillTogether(slot, true)) {
    cells_.erase(cell);
    EndSlot(slot);  // the next cell in it could go on with some of its processes missing
    return owner_.OnCellGone(id, report);
  }
  const auto gone = cells_.extract(cell);  // Its network is closed after OnCellGone().
  slots_.Move(slot, SlotState::kFree);
  owner_.OnCellGone(id, report);
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
  kept_.Clear();
  for (auto& [id, cell] : std::exchange(cells_, {})) {
    owner_.OnCellGone(id, CellReport{.end = kLost});
  }
  slots_.Clear();
}

bool WorkerCells::CountFailedCell() { return ++failed_cells_ >= kMaxFailedCells; }

void WorkerCells::EndSlot(uint32_t slot) {
  slots_.Move(slot, SlotState::kEnding);
  link_.send({.kind = FrameKind::kEndSlot, .a = slot}, {});
  LoseCellOf(slot);
}

void WorkerCells::LoseCellOf(uint32_t slot) {
  const auto cell =
      std::ranges::find_if(cells_, [slot](const auto& c) { return c.second.slot == slot; });
  if (cell == cells_.end()) return;
  const uint64_t id = cell->first;
  kept_.Forget(id);
  const auto gone = cells_.extract(cell);  // Its network is closed after OnCellGone().
  owner_.OnCellGone(id, CellReport{});
}

}  // namespace hutch
