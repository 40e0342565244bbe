// SPDX-License-Identifier: Apache-2.0

// Starts the workers of one pool, and remembers how the starts went: after failures in a row the
// next start is postponed (rotation.h).
//
// Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "environments/environment.h"
#include "loop/loop.h"
#include "pool/pool_context.h"
#include "pool/worker.h"
#include "wire/values.h"

namespace hutch {

class WorkerStarter {
 public:
  struct Record {
    unsigned failures = 0;       // starts failed in a row
    uint64_t starts = 0;         // since the pool is there, like
    uint64_t starts_failed = 0;  // this
    std::string last_failure;    // of a start, or the end of a worker
  };

  // All outlive it. `tag` is part of its workers' names.
  WorkerStarter(const PoolContext& context, const std::string& tag, const PoolSpec& spec,
                const Environment& environment);
  ~WorkerStarter();
  WorkerStarter(const WorkerStarter&) = delete;
  WorkerStarter& operator=(const WorkerStarter&) = delete;

  // True while the last failures forbid a start; `retry` is called when they no longer do.
  bool Postponed(Clock::time_point now, std::function<void()> retry);

  struct Started {
    std::unique_ptr<Worker> worker;
    bool spare = false;  // it was started ahead, for any pool
  };
  // A worker that is configured, or will be as soon as its warden is connected; it reports to
  // `listener`. Throws Error, and what the standard library throws for files that cannot be made.
  Started Start(Clock::time_point now, Worker::Listener& listener);

  void NoteFailure(const std::string& why);  // of a start
  void NoteSpareFailure();  // The next worker is no spare: what failed may be the spare's fault.
  void NoteEnd(const std::string& why) { record_.last_failure = why; }  // of any worker
  void NoteCell();                                                      // A cell was ready.
  // From now on the container is the one cell, since this host lets a worker make none.
  void UseSingleCells() { single_cells_ = true; }

  const Record& record() const { return record_; }

 private:
  std::unique_ptr<Worker> TakeSpare();
  std::unique_ptr<Worker> MakeOwn(Worker::Listener& listener);
  void ServeNetworks(Worker& worker);

  const PoolContext& context_;
  const std::string tag_;
  const PoolSpec& spec_;
  const Environment& environment_;
  bool single_cells_;
  bool no_spare_ = false;  // a spare failed: the next worker is made for this pool
  Record record_;
  std::optional<Clock::time_point> last_start_;
  TimerId retry_timer_ = 0;
};

}  // namespace hutch
