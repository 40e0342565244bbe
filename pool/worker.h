// SPDX-License-Identifier: Apache-2.0

// One warm container of one environment under one policy: starts it, talks to its warden, keeps the
// books of its slots and cells, and removes it.
//
// Belongs to the loop's thread. Everything the warden says is checked against what it was asked: a
// frame that does not fit ends the worker (the zygote beneath it may be hostile), and that is all
// it can do to us. Channels of a cell are made here and sent in; no descriptor ever comes out of a
// worker.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "loop/background.h"
#include "loop/loop.h"
#include "podman/podman.h"
#include "pool/cell_channels.h"
#include "pool/cgroups.h"
#include "pool/confinement.h"
#include "wire/cell_frame.h"
#include "wire/error.h"
#include "wire/fd.h"
#include "wire/heartbeat.h"
#include "wire/thread_annotations.h"

namespace hutch {

// Worker uids in turn, so that two workers alive never share one.
unsigned NextWorkerUid();

// The launch of one more worker, named after `tag`, with no packages.
WorkerLaunch NewLaunch(const Paths& paths, const std::string& generation, unsigned uid,
                       const std::string& base_id, const std::string& runtime_id,
                       const std::string& tag);

class Worker {
 public:
  using Modules = std::map<std::string, std::string>;  // relative path to content
  class Listener {
   public:
    virtual void OnWorkerReady(Worker& worker) = 0;
    virtual void OnCellReady(Worker& worker, uint64_t cell) = 0;
    virtual void OnCellGone(Worker& worker, uint64_t cell, const CellReport& report) = 0;
    virtual void OnSlotsChanged(Worker& worker) = 0;
    // The worker is of no more use; its container is being removed. Cells it had are reported gone
    // before.
    virtual void OnWorkerDead(Worker& worker, const std::string& why) = 0;

   protected:
    ~Listener() = default;
  };

  // Begins to start it. It belongs to no pool yet, runs nobody's code, and says nothing but
  // OnWorkerDead. `loop`, `podman`, `background` and `listener` outlive it.
  Worker(Loop& loop, Podman& podman, Background& background, Listener& listener, const Paths& paths,
         WorkerLaunch launch, const Modules& modules);
  ~Worker();  // kills and removes whatever is left of it
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Who serves its cells' networks: `open` is given the egress channel of a cell that is being
  // made, and `close` is called when that cell is gone, whether anybody heard of it or not. Both
  // outlive this.
  struct CellNetworks {
    std::function<void(uint64_t cell, Fd channel)> open;
    std::function<void(uint64_t cell)> close;
  };
  // REQUIRES: before Configure() with a pool that has a network.
  void UseNetworks(CellNetworks networks) { networks_ = std::move(networks); }

  // Makes it `listener`'s, for the calls of `pool`, with the modules of `preload` (names separated
  // by commas) imported: OnWorkerReady or OnWorkerDead follows. Once. `cgroups`, where given,
  // outlives the worker: each slot gets one of them. One that was started for any environment gets
  // `environment`, the digest of one in the store ("": none), and the modules of `pool`; others had
  // theirs from the start. Throws what WorkerConfig does.
  void Configure(Listener& listener, const PoolSpec& pool, const std::string& preload,
                 Cgroups* cgroups = nullptr, const std::string& environment = "");

  const std::string& name() const { return launch_.name; }
  bool ready() const { return state_ == State::kReady; }
  Clock::time_point ready_since() const { return ready_since_; }
  double start_seconds() const { return start_seconds_; }
  const std::string& notes() const { return notes_; }
  uint64_t calls() const { return calls_; }
  // Why it could not be started: kPodmanDown and kMissingBase are the client's to mend, kPlatform
  // says that cells cannot be made on this host.
  Code failure() const { return failure_; }
  bool tainted() const { return tainted_; }

  uint64_t slots() const { return slots_.size() - in(SlotState::kEnding); }  // alive or being made
  uint64_t slots_making() const { return in(SlotState::kMaking); }
  uint64_t slots_free() const { return in(SlotState::kFree); }  // alive, and with no cell
  uint64_t cells_coming() const { return in(SlotState::kMakingCell); }
  uint64_t cells_alive() const { return cells_.size(); }

  void AddSlot();                     // and its first cell
  void MakeCells(uint64_t count);     // in free slots
  void EndFreeSlots(uint64_t count);  // as many as there are, of so many
  // A slot stayed without a cell for want of descriptors. TryAgain() makes one, to see.
  bool starved() const { return starved_; }
  void TryAgain();
  // Takes the channels of a parked cell: it is leased from now on.
  CellChannels Take(uint64_t cell);
  void Arm(uint64_t cell, uint64_t timeout_ms, uint64_t cpu_ms, uint64_t result_kb = 0);
  void ArmLoading(uint64_t cell, uint64_t cpu_ms);
  void Kill(uint64_t cell);     // OnCellGone follows
  void Discard(uint64_t cell);  // as Kill; of one that is being made, as soon as it is ready
  void StopRefilling() { refill_ = false; }
  // About once a second, see heartbeat.h: ends a worker whose warden is silent, OnWorkerDead
  // follows. What runs there is watched by nobody.
  void Look(unsigned worth);
  // While the stock is low, cells do not rehearse a call before they are ready.
  void Hurry(bool low) { hurried_ = low; }

 private:
  enum class State { kStarting, kReady, kDead };
  enum class SlotState { kMaking, kFree, kMakingCell, kHasCell, kEnding };
  struct Cell {
    uint32_t slot;
    CellChannels channels;
    bool ready = false;
    bool unwanted = false;            // it ends when it is ready
    std::shared_ptr<void> network{};  // closes it at its end
  };

  void OnAccept();
  void OnWarden();
  void OnFrame(const FrameHeader& header, std::string_view payload);
  void MakeCell(uint32_t slot);
  void SendConfig();
  bool Send(const FrameHeader& header, std::string_view payload = {},
            std::span<const int> descriptors = {});
  void Die(const std::string& why);
  void RefuseNamespaces(uint64_t step, uint64_t error);
  void ForgetSlot(uint32_t slot);
  void EndSlot(uint32_t slot);         // kSlotGone follows, whatever became of it
  bool RanOutOfMemory(uint32_t slot);  // by the kernel's own word
  uint64_t in(SlotState state) const { return in_state_[static_cast<size_t>(state)]; }
  void Put(uint32_t slot, SlotState state);  // into this state, from whatever it was in
  bool GivesNoCells();  // one more cell came to nothing; true when that is so many in a row that
                        // the worker is of no use

  // The container as the background threads know it: a removal never overtakes the start, nor a
  // start the removal.
  struct Container {
    Mutex mutex;
    bool removed GUARDED_BY(mutex) = false;
  };

  Loop& loop_;
  Podman& podman_;
  Background& background_;
  Listener* listener_;
  WorkerLaunch launch_;
  State state_ = State::kStarting;
  Clock::time_point started_;
  Clock::time_point ready_since_{};
  double start_seconds_ = 0;
  std::string notes_;
  Fd listener_fd_;
  Fd warden_;
  TimerId start_timer_ = 0;
  std::map<uint32_t, SlotState> slots_;
  Cgroups* cgroups_ = nullptr;
  CgroupLimits cgroup_limits_;
  std::map<uint32_t, std::unique_ptr<Cgroups::Group>> groups_;  // of slots, where there are any
  uint32_t next_slot_ = 0;              // the lowest number that was never used
  std::vector<uint32_t> free_numbers_;  // of slots that are gone
  uint64_t in_state_[5] = {};           // how many slots are in each
  std::map<uint64_t, Cell> cells_;
  uint64_t calls_ = 0;
  unsigned barren_ = 0;  // cells and slots that came to nothing since one was ready
  std::shared_ptr<Container> container_;
  Code failure_ = Code::kWorkerFailed;
  bool proved_ = false;   // the warden has shown its token
  bool made_ = false;     // its container runs
  unsigned unheard_ = 0;  // worth of the looks since
  Heartbeat heart_;       // of its warden
  std::string config_;    // what the warden is to be told when it has
  bool configured_ = false;
  CellNetworks networks_;
  bool tainted_ = false;
  bool starved_ = false;
  bool refill_ = true;
  bool hurried_ = false;
  std::shared_ptr<bool>
      alive_;  // false once destroyed: for results that come back from the background
};

}  // namespace hutch
