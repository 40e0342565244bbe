// SPDX-License-Identifier: Apache-2.0

// Workers that are started ahead of the pool they will serve: container, warden and interpreter are
// there, the worker files are loaded, and nobody's code has run. A pool takes one and configures
// it, and has its first cell in the time of its imports and a fork or two instead of a container's
// start. Whatever its environment is: the warden alone can reach them all until then, and shows the
// pool's own to what it starts (images/warden/environments.h). Not for a pool with mounts of the
// caller's files, nor one whose packages are a directory of the caller's: those a container has
// from its start.
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

  // Begins to keep a spare of this base image and these worker files. The kind that was wanted last
  // is kept, no other.
  void Keep(const std::string& base_id, const std::string& runtime_id);

  // The spare, when it is of this kind; it may still be starting. Another one is begun a little
  // later, when the taker's first call is done. nullptr: none is there.
  std::unique_ptr<Worker> Take(const std::string& base_id, const std::string& runtime_id);

  void Retire();              // keeps none any more
  void Look(unsigned worth);  // as Worker::Look
  std::string name() const { return spare_ == nullptr ? "" : spare_->name(); }
  size_t size() const { return spare_ == nullptr ? 0 : 1; }

 private:
  void OnWorkerReady(Worker&) override {}
  void OnCellReady(Worker&, uint64_t) override {}
  void OnCellGone(Worker&, uint64_t, const CellReport&) override {}
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
