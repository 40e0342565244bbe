// SPDX-License-Identifier: Apache-2.0

// Callers who wait for a pool to be warm: for a worker that is ready, or for so many parked cells.
//
// Each callback is called once, with nullptr or with what went wrong. A pure data structure; one
// thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "wire/error.h"

namespace hutch {

class WarmWatchers {
 public:
  using WorkerReady = std::function<void(const Error*)>;
  using CellsReady = std::function<void(uint64_t ready, const Error*)>;

  void AddForWorker(WorkerReady ready) { for_worker_.push_back(std::move(ready)); }
  void AddForCells(uint64_t cells, CellsReady done) {
    for_cells_.push_back({cells, std::move(done)});
  }
  bool empty() const { return for_worker_.empty() && for_cells_.empty(); }
  bool wait_for_cells() const { return !for_cells_.empty(); }
  uint64_t most_cells() const {  // that anybody waits for
    uint64_t most = 0;
    for (const ForCells& watcher : for_cells_) most = std::max(most, watcher.cells);
    return most;
  }

  void OnWorkerReady() {
    for (auto& ready : std::exchange(for_worker_, {})) ready(nullptr);
  }
  void OnCellsParked(uint64_t parked) {
    std::erase_if(for_cells_, [parked](ForCells& watcher) {
      if (parked < watcher.cells) return false;
      watcher.done(parked, nullptr);
      return true;
    });
  }
  void Fail(uint64_t parked, const Error& error) {
    for (auto& ready : std::exchange(for_worker_, {})) ready(&error);
    for (ForCells& watcher : std::exchange(for_cells_, {})) watcher.done(parked, &error);
  }

 private:
  struct ForCells {
    uint64_t cells;
    CellsReady done;
  };
  std::vector<WorkerReady> for_worker_;
  std::vector<ForCells> for_cells_;
};

}  // namespace hutch
