// SPDX-License-Identifier: Apache-2.0

#include "pool/kept_cells.h"

#include <cstring>
#include <tuple>
#include <utility>

#include "wire/channel.h"
#include "wire/error.h"

namespace hutch {

KeptCells::KeptCells(Owner& owner, const OrderLink& link, SlotTable& slots,
                     std::function<void(uint64_t cell)> kill)
    : owner_(owner), link_(link), slots_(slots), kill_(std::move(kill)) {}

void KeptCells::Keep(uint64_t cell, uint32_t slot) {
  if (!cells_.emplace(cell, Kept{.slot = slot}).second) return;
  // Where the kernel refuses, all of it is killed for want of memory, and the session ends.
  slots_.KillTogether(slot, false);
  link_.send({.kind = FrameKind::kKeep, .id = cell}, {});
}

bool KeptCells::Forget(uint64_t cell) { return cells_.erase(cell) != 0; }

void KeptCells::OnKept(uint64_t cell, bool restartable) {
  if (!cells_.contains(cell)) return owner_.GiveUp("the warden kept an unexpected cell");
  owner_.OnSessionEvent(cell, {restartable ? SessionEvent::kKept : SessionEvent::kKeptOnce});
}

void KeptCells::OnUserExit(uint64_t cell, std::string_view payload) {
  const auto kept = cells_.find(cell);
  if (kept == cells_.end() || kept->second.restarting || payload.size() != sizeof(CellReport))
    return owner_.GiveUp("the warden reported an unexpected end of a user process");
  kept->second.restarting = true;
  CellReport report;
  std::memcpy(&report, payload.data(), sizeof report);
  slots_.BlameMemory(kept->second.slot, &report);
  slots_.ForgetMemoryKills(kept->second.slot);
  Fd ours, theirs;
  try {
    std::tie(ours, theirs) = MakeSocketPair();
  } catch (const Error&) {  // no descriptor is left
  }
  const int descriptor = theirs.get();
  if (!ours || !link_.send({.kind = FrameKind::kNextUser, .id = cell}, {&descriptor, 1}))
    return kill_(cell);
  owner_.OnSessionEvent(cell, {SessionEvent::kUserExit, report, std::move(ours)});
}

void KeptCells::OnUserReady(uint64_t cell) {
  const auto kept = cells_.find(cell);
  if (kept == cells_.end() || !kept->second.restarting)
    return owner_.GiveUp("the warden reported an unexpected user process");
  kept->second.restarting = false;
  owner_.OnSessionEvent(cell, {SessionEvent::kUserReady});
}

void KeptCells::OnBackground(uint64_t cell, uint64_t cpu_us) {
  if (!cells_.contains(cell)) return owner_.GiveUp("the warden measured an unexpected cell");
  owner_.OnSessionEvent(cell, {SessionEvent::kBackground, {.cpu_us = cpu_us}});
}

}  // namespace hutch
