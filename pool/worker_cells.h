// SPDX-License-Identifier: Apache-2.0

// The slots and cells of one worker: orders them from its warden, hands out their channels, and
// checks what the warden reports of them.
//
// A report that does not fit what was ordered ends the worker (the zygote beneath the warden may be
// hostile), and that is all it can do to us. Channels of a cell are made here and sent in; no
// descriptor ever comes out of a worker. Belongs to the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loop/loop.h"
#include "pool/cell_channels.h"
#include "pool/cgroups.h"
#include "pool/slot_table.h"
#include "wire/cell_frame.h"
#include "wire/fd.h"

namespace hutch {

// What happens to a cell that is kept for a session.
enum class SessionEvent {
  kKept,        // it outlives its user process from now on
  kKeptOnce,    // it serves one call after another, and ends with its user process
  kUserExit,    // its user process has ended, and every other one with it
  kUserReady,   // it has another one
  kBackground,  // what it did between two calls was measured
};

class WorkerCells {
 public:
  class Owner {
   public:
    // `report`: of kUserExit; of kBackground its CPU time only.
    virtual void OnSessionEvent(uint64_t cell, SessionEvent event, const CellReport& report) = 0;
    virtual void OnCellReady(uint64_t cell) = 0;
    virtual void OnCellGone(uint64_t cell, const CellReport& report) = 0;
    virtual void OnSlotsChanged() = 0;
    // The worker is of no more use; calls Drop().
    virtual void GiveUp(const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };
  // As WardenLink::Send().
  using Send = std::function<bool(const FrameHeader&, std::span<const int> descriptors)>;
  // Serves the networks of cells: `open` is given the egress channel of a cell that is being made,
  // and `close` is called when that cell is gone, reported or not. Both outlive the cells.
  struct Networks {
    std::function<void(uint64_t cell, Fd channel)> open;
    std::function<void(uint64_t cell)> close;
  };

  // `crowded`: as WardenLink::IsCrowded(). `worker` is the worker's name, for the log. `loop` and
  // `owner` outlive it.
  WorkerCells(Loop& loop, Owner& owner, Send send, std::function<bool()> crowded,
              std::string worker);
  ~WorkerCells();
  WorkerCells(const WorkerCells&) = delete;
  WorkerCells& operator=(const WorkerCells&) = delete;

  // REQUIRES, for these three: before the first slot.
  void UseNetworks(Networks networks) { networks_ = std::move(networks); }
  void UseCgroups(Cgroups* cgroups, const CgroupLimits& limits) {  // see SlotTable
    slots_.UseCgroups(cgroups, limits);
  }
  // The worker is given up if its warden does not end a cell in time. Needed where the warden does
  // not run on the host's kernel: there it can be held up.
  void EndCellsInTime() { ends_in_time_ = true; }

  const SlotTable& slots() const { return slots_; }
  uint64_t calls() const { return calls_; }  // cells that were taken
  bool tainted() const { return tainted_; }  // a slot failed for no reason that a call gave
  bool starved() const { return starved_; }  // a slot has no cell for want of descriptors

  void AddSlot();                            // and its first cell
  void MakeCells(uint64_t count);            // in free slots
  void EndFreeSlots(uint64_t count);         // at most that many
  void TryAgain();                           // makes one cell, to see whether it is still starved
  void StopRefilling() { refill_ = false; }  // a slot gets no cell by itself from now on
  // While few cells are parked, new ones skip the warm-up call that precedes kCellReady.
  void SkipWarmUp(bool skip) { skip_warm_up_ = skip; }

  // Takes the channels of a parked cell: it is leased from now on. REQUIRES: the cell is there.
  CellChannels Take(uint64_t cell);
  void Arm(uint64_t cell, uint64_t timeout_ms, uint64_t cpu_ms, uint64_t result_kb);
  void ArmLoading(uint64_t cell, uint64_t cpu_ms);
  void Kill(uint64_t cell);  // OnCellGone follows
  // Keeps the cell, which is taken, when its user process ends: OnSessionEvent follows, now and for
  // each of those. Nothing follows where it cannot be kept.
  void Keep(uint64_t cell);
  // No call runs in a kept cell from now on, until it is armed. `cpu_ms`: of all that runs in it
  // meanwhile; 0: no limit.
  void EndCall(uint64_t cell, uint64_t cpu_ms);
  // Has the call with these low bits of its id raise KeyboardInterrupt, if it still runs, and
  // `user` user processes have ended before.
  void InterruptUser(uint64_t cell, uint64_t user, uint32_t call);
  // Ends the user process of a kept cell, if `user` of them have ended before.
  void RestartUser(uint64_t cell, uint64_t user);
  void Discard(uint64_t cell);  // as Kill; a cell that is being made ends as soon as it is ready

  // Reports of the warden: a cell or slot that is not known, or in another state, ends the worker.
  void OnSlotReady(uint32_t slot);
  void OnSlotGone(uint32_t slot);
  void OnCellReady(uint64_t cell);
  void OnCellExit(uint64_t cell, std::string_view payload);
  void OnKept(uint64_t cell, bool restartable);
  void OnUserExit(uint64_t cell, std::string_view payload);
  void OnUserReady(uint64_t cell);
  void OnBackground(uint64_t cell, uint64_t cpu_us);
  void OnFailed(uint32_t slot, uint64_t cell, const std::string& reason);

  void Drop();  // Reports every cell as lost, and forgets slots and cells.

 private:
  struct Cell {
    uint32_t slot;
    CellChannels channels;
    bool ready = false;
    bool unwanted = false;            // it ends when it is ready
    bool keeping = false;             // it was asked to be kept
    bool restarting = false;          // it is kept, and has no user process
    std::vector<FrameHeader> held{};  // orders that wait until the warden has read others
    std::shared_ptr<void> network{};  // closes it at its end
  };

  void MakeCell(uint32_t slot);
  void EndSlot(uint32_t slot);  // kSlotGone follows, even if the slot is gone already
  std::map<uint64_t, Cell>::iterator CellOf(uint32_t slot);
  // The cell of that slot, if there is one, is gone, and the warden will not report it.
  void LoseCellOf(uint32_t slot);
  void BlameMemory(uint32_t slot, CellReport* report);
  void SendSoon(const FrameHeader& order);
  void SendHeld();
  bool CountFailedCell();  // True if so many failed in a row that the worker is given up.

  Loop& loop_;
  Owner& owner_;
  Send send_;
  std::function<bool()> crowded_;
  const std::string worker_;
  Networks networks_;
  SlotTable slots_;
  std::map<uint64_t, Cell> cells_;
  uint64_t calls_ = 0;
  unsigned failed_cells_ = 0;  // cells and slots that failed since a cell was last ready
  bool tainted_ = false;
  bool starved_ = false;
  bool refill_ = true;
  bool skip_warm_up_ = false;
  bool ends_in_time_ = false;
  bool sends_held_ = false;      // SendHeld() is to come
  std::shared_ptr<bool> alive_;  // false once destroyed
};

}  // namespace hutch
