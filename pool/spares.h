// SPDX-License-Identifier: Apache-2.0

// Workers that are started ahead of the pool they will serve: container, warden and interpreter
// run, the worker files are loaded, and no caller's code has run. A pool takes one and configures
// it, and has its first cell after its imports and a fork or two instead of a container's start.
//
// A spare serves a pool of any environment: until it is configured, the warden alone can reach all
// of them, and it shows the pool's own to what it starts (images/warden/environments.h). A spare
// cannot serve a pool with mounts of the caller's files, or one whose packages are a directory of
// the caller's, since a container has those from its start.
//
// Belongs to the loop's thread.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "pool/worker.h"

namespace hutch {

class Spares final : public Worker::Listener {
 public:
  struct Context {  // all outlive it
    Loop& loop;
    Podman& podman;
    Background& background;
    const Paths& paths;
    std::string generation;
    std::function<unsigned()> worker_uid = NextWorkerUid;
  };
  explicit Spares(Context context);
  ~Spares();

  // Begins to keep a spare of this base image and these worker files, and stops keeping any other.
  void Keep(const std::string& base_id, const std::string& runtime_id);

  // The spare, if it is of this kind; it may still be starting. The next one is started a little
  // later, when the first call of the taker is done. nullptr: there is none.
  std::unique_ptr<Worker> Take(const std::string& base_id, const std::string& runtime_id);

  void Retire();              // keeps no spare from now on
  void Look(unsigned worth);  // as Worker::Look
  std::string name() const { return spare_ == nullptr ? "" : spare_->name(); }
  size_t size() const { return spare_ == nullptr ? 0 : 1; }

 private:
  void OnWorkerReady(Worker&) override {}
  void OnCellReady(Worker&, uint64_t) override {}
  void OnCellGone(Worker&, uint64_t, const CellReport&) override {}
  void OnSessionEvent(Worker&, uint64_t, SessionEvent) override {}
  void OnSlotsChanged(Worker&) override {}
  void OnWorkerDead(Worker& worker, const std::string& why) override;
  void MakeLater(Clock::duration delay);
  void Make();

  Context context_;
  std::string base_id_, runtime_id_;  // "": none is kept
  std::unique_ptr<Worker> spare_;
  TimerId timer_ = 0;
  unsigned failures_ = 0;  // in a row
};

}  // namespace hutch
