// SPDX-License-Identifier: Apache-2.0

// One warm container of one environment under one policy: started, configured, watched, removed.
//
//   kStarting  --kHello-->  kConnected  --kConfigure-->  kConfigured  --kZygoteReady-->  kReady
//
// and from any of them to kDead. What it is made of: its container (worker_container.h), the
// connection to its warden (warden_link.h), its slots and cells (worker_cells.h).
//
// Belongs to the loop's thread. Everything the warden says is checked against the state and against
// what was ordered: a frame that does not fit ends the worker, since the zygote beneath the warden
// may be hostile, and that is all it can do to us.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "loop/background.h"
#include "loop/loop.h"
#include "podman/podman.h"
#include "pool/cgroups.h"
#include "pool/confinement.h"
#include "pool/last_words.h"
#include "pool/warden_link.h"
#include "pool/worker_cells.h"
#include "pool/worker_container.h"
#include "pool/worker_launch.h"
#include "wire/cell_frame.h"
#include "wire/error.h"
#include "wire/heartbeat.h"

namespace hutch {

class Worker final : private WardenLink::Owner, private WorkerCells::Owner {
 public:
  class Listener {
   public:
    virtual void OnWorkerReady(Worker& worker) = 0;
    virtual void OnCellReady(Worker& worker, uint64_t cell) = 0;
    virtual void OnCellGone(Worker& worker, uint64_t cell, const CellReport& report) = 0;
    virtual void OnSessionEvent(Worker& worker, uint64_t cell, SessionEvent event) = 0;
    virtual void OnSlotsChanged(Worker& worker) = 0;
    // The worker is of no more use; its container is being removed. Its cells were reported gone
    // before. Must not destroy the worker at once, but may do so on the loop's next turn.
    virtual void OnWorkerDead(Worker& worker, const std::string& why) = 0;

   protected:
    ~Listener() = default;
  };

  // Begins to start it. It belongs to no pool yet, runs no caller's code, and reports nothing but
  // OnWorkerDead. `loop`, `podman`, `background`, `paths` and `listener` outlive it.
  Worker(Loop& loop, Podman& podman, Background& background, Listener& listener, const Paths& paths,
         WorkerLaunch launch, const Modules& modules);
  ~Worker();  // kills and removes whatever is left of it
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Makes it `listener`'s, for the calls of `pool`, with the modules of `preload` (names separated
  // by commas) imported: OnWorkerReady or OnWorkerDead follows. Once. `cgroups`, where given,
  // outlives the worker: each slot gets one of them. A worker that was started for any environment
  // gets `environment`, the digest of one in the store ("": none), and the modules of `pool`;
  // others had theirs from the start. Throws what WorkerConfig does.
  // REQUIRES: for a pool with a network, cells().maker().UseNetworks() before.
  void Configure(Listener& listener, const PoolSpec& pool, const std::string& preload,
                 Cgroups* cgroups = nullptr, const std::string& environment = "");

  WorkerCells& cells() { return cells_; }
  const WorkerCells& cells() const { return cells_; }
  const std::string& name() const { return launch_.name; }
  bool ready() const { return state_ == State::kReady; }
  Clock::time_point ready_since() const { return ready_since_; }
  const std::string& notes() const { return notes_; }  // of its zygote, printable
  // Why it could not be started: kPodmanDown and kMissingBase are for the client to fix, kPlatform
  // says that cells cannot be made on this host.
  Code failure() const { return failure_; }
  // Checks that the warden still answers; called about once a second (heartbeat.h). A worker whose
  // warden is silent is ended, since nobody enforces the limits of its cells: OnWorkerDead follows.
  void Look(unsigned worth);

 private:
  enum class State { kStarting, kConnected, kConfigured, kReady, kDead };

  void OnFrame(const FrameHeader& header, std::string_view payload) override;
  void OnLinkBroken(const std::string& why) override { GiveUp(why); }
  void OnCellReady(uint64_t cell) override { listener_->OnCellReady(*this, cell); }
  void OnCellGone(uint64_t cell, const CellReport& report) override {
    listener_->OnCellGone(*this, cell, report);
  }
  void OnSessionEvent(uint64_t cell, SessionEvent event) override {
    listener_->OnSessionEvent(*this, cell, std::move(event));
  }
  void OnSlotsChanged() override { listener_->OnSlotsChanged(*this); }
  void GiveUp(const std::string& why) override;

  void OnHello(const FrameHeader& header, std::string_view payload);
  void OnZygoteReady(std::string_view payload);
  void OnContainerStarted(const std::optional<Error>& failure);
  void SendConfig();
  void SetStartDeadline();

  Loop& loop_;
  Listener* listener_;
  WorkerLaunch launch_;
  State state_ = State::kStarting;
  Clock::time_point ready_since_{};
  std::string notes_;
  Code failure_ = Code::kWorkerFailed;
  TimerId start_timer_ = 0;
  bool container_runs_ = false;
  unsigned unheard_ =
      0;             // worth of the looks since the container runs without a word of its warden
  Heartbeat heart_;  // of the warden
  LastWords last_words_;
  std::string config_;  // what kConfigure will carry
  WorkerContainer container_;
  WardenLink link_;
  WorkerCells cells_;
};

}  // namespace hutch
