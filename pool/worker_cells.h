// SPDX-License-Identifier: Apache-2.0

// The slots and cells of one worker: orders them from its warden, hands out their channels, and
// checks what the warden reports of them. How a cell comes to be is in cell_maker.h, what becomes
// of one that is kept for a session in kept_cells.h.
//
// A report that does not fit what was ordered ends the worker (the zygote beneath the warden may be
// hostile), and that is all it can do to us. Channels of a cell are made here and sent in; no
// descriptor ever comes out of a worker. Belongs to the loop's thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "loop/loop.h"
#include "pool/cell_channels.h"
#include "pool/cell_maker.h"
#include "pool/cell_orders.h"
#include "pool/cgroups.h"
#include "pool/kept_cells.h"
#include "pool/slot_table.h"
#include "wire/cell_frame.h"

namespace hutch {

class WorkerCells {
 public:
  class Owner : public KeptCells::Owner {  // GiveUp() calls Drop()
   public:
    virtual void OnCellReady(uint64_t cell) = 0;
    virtual void OnCellGone(uint64_t cell, const CellReport& report) = 0;
    virtual void OnSlotsChanged() = 0;

   protected:
    ~Owner() = default;
  };

  // `worker` is the worker's name, for the log. `ends_in_time`: the worker is given up if its
  // warden does not end a cell in time; needed where the warden does not run on the host's kernel,
  // as it can be held up there. `loop` and `owner` outlive it.
  WorkerCells(Loop& loop, Owner& owner, OrderLink link, std::string worker,
              bool ends_in_time = false);
  ~WorkerCells();
  WorkerCells(const WorkerCells&) = delete;
  WorkerCells& operator=(const WorkerCells&) = delete;

  // REQUIRES, as maker().UseNetworks(): before the first slot.
  void UseCgroups(Cgroups* cgroups, const CgroupLimits& limits) {  // see SlotTable
    slots_.UseCgroups(cgroups, limits);
  }

  CellMaker& maker() { return maker_; }
  KeptCells& kept() { return kept_; }  // for what the warden reports of them
  const SlotTable& slots() const { return slots_; }
  uint64_t calls() const { return calls_; }          // cells that were taken
  bool tainted() const { return tainted_; }          // a slot failed for no reason that a call gave
  bool starved() const { return maker_.starved(); }  // a slot has no cell for want of descriptors

  void AddSlot();                            // and its first cell
  void MakeCells(uint64_t count);            // in free slots
  void EndFreeSlots(uint64_t count);         // at most that many
  void TryAgain();                           // makes one cell, to see whether it is still starved
  void StopRefilling() { refill_ = false; }  // a slot gets no cell by itself from now on

  // Takes the channels of a parked cell: it is leased from now on. REQUIRES: the cell is there.
  CellChannels Take(uint64_t cell);
  CellOrders* OrdersFor(uint64_t cell);  // nullptr: it is gone
  void Kill(uint64_t cell);              // OnCellGone follows
  // Keeps the cell, which is taken, when its user process ends: OnSessionEvent follows, now and for
  // each of those. Nothing follows where it cannot be kept.
  void Keep(uint64_t cell);
  void Discard(uint64_t cell);  // as Kill; a cell that is being made ends as soon as it is ready

  // Reports of the warden: a cell or slot that is not known, or in another state, ends the worker.
  void OnSlotReady(uint32_t slot);
  void OnSlotGone(uint32_t slot);
  void OnCellReady(uint64_t cell);
  void OnCellExit(uint64_t cell, std::string_view payload);
  void OnFailed(uint32_t slot, uint64_t cell, const std::string& reason);

  void Drop();  // Reports every cell as lost, and forgets slots and cells.

 private:
  struct Cell {
    uint32_t slot;
    CellChannels channels;
    std::unique_ptr<CellOrders> orders;
    bool ready = false;
    bool unwanted = false;            // it ends when it is ready
    std::shared_ptr<void> network{};  // closes it at its end
  };

  void MakeCell(uint32_t slot);
  void EndSlot(uint32_t slot);  // kSlotGone follows, even if the slot is gone already
  // The cell of that slot, if there is one, is gone, and the warden will not report it.
  void LoseCellOf(uint32_t slot);
  bool CountFailedCell();  // True if so many failed in a row that the worker is given up.

  Loop& loop_;
  Owner& owner_;
  const OrderLink link_;
  const std::string worker_;
  const bool ends_in_time_;
  SlotTable slots_;
  CellMaker maker_;
  KeptCells kept_;
  std::map<uint64_t, Cell> cells_;
  uint64_t calls_ = 0;
  unsigned failed_cells_ = 0;  // cells and slots that failed since a cell was last ready
  bool tainted_ = false;
  bool refill_ = true;
  std::shared_ptr<bool> alive_;  // false once destroyed
};

}  // namespace hutch
