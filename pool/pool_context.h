// SPDX-License-Identifier: Apache-2.0

// What a pool needs of its surroundings. All of it outlives the pool, and every callback is called
// on the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "loop/background.h"
#include "loop/loop.h"
#include "podman/podman.h"
#include "pool/cgroups.h"
#include "pool/queue.h"
#include "pool/sizing.h"
#include "pool/worker.h"
#include "wire/cell_frame.h"
#include "wire/fd.h"
#include "wire/paths.h"
#include "wire/values.h"

namespace hutch {

class Pool;

struct PoolContext {
  // ---- where its workers run
  Loop& loop;              // The loop whose thread everything of the pool belongs to.
  Podman& podman;          // The Podman service that its containers are made by.
  Background& background;  // The threads that wait for Podman.
  const Paths& paths;      // The directories of this agent.
  std::string generation;  // Names this run of the agent in the labels of its containers.
  unsigned cores;          // The processors of the host: bounds what is started at once.

  // ---- leases, which are the broker's
  // Called for every leased cell that is gone, with what its warden measured.
  std::function<void(uint64_t cell, const CellReport&)> cell_gone;
  // Called for a leased cell that is kept, see Pool::Keep().
  std::function<void(uint64_t cell, SessionEvent)> session_event;
  // Calls TakeBack() for one cell of the pool that was leased ahead and is not in use, of the
  // worker with that name or (nullptr) of any. False: there is none.
  std::function<bool(Pool&, const std::string* worker)> reclaim;
  // Whether that caller may hold one more lease.
  std::function<bool(uint64_t caller)> may_take;
  QueuesInAll& queues;  // Counts the waiting calls of all pools of the agent.

  // ---- workers
  // The uid, inside its container, of one more worker.
  std::function<unsigned()> worker_uid = NextWorkerUid;
  // A worker that was started ahead and serves any environment of the store; returns nullptr, or is
  // nullptr, where there is none.
  std::function<std::unique_ptr<Worker>(const PoolSpec&)> spare = nullptr;

  // ---- networks of cells, leased or parked: see CellMaker::Networks
  // Given the egress channel of a cell that is being made; nullptr: no pool has a network.
  std::function<void(uint64_t cell, const PoolSpec&, Fd channel)> open_network = nullptr;
  // Called when that cell is gone.
  std::function<void(uint64_t cell)> close_network = nullptr;

  // ---- the host
  // How hard it is pressed, from 0 to 1 (pressure.h); nullptr: not at all.
  std::function<double()> pressure = nullptr;
  // After how many seconds without a call the pool ends, if its spec does not end it before; 0, or
  // nullptr: never.
  std::function<double()> idle_sec = nullptr;
  // How many workers for one call a pool keeps parked at most, if its spec does not say it.
  uint64_t warm_workers = kMostParkedWorkers;
  // Gives each slot a cgroup; nullptr: slots have none.
  Cgroups* cgroups = nullptr;
};

}  // namespace hutch
