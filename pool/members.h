// SPDX-License-Identifier: Apache-2.0

// The workers of one pool, oldest first, and which of their cells are parked and which are leased.
//
// Belongs to the loop's thread. A worker is never destroyed inside a call of its own: one that is
// removed or retired goes on the loop's next turn.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "loop/loop.h"
#include "pool/worker.h"

namespace hutch {

struct Member {
  std::unique_ptr<Worker> worker;
  double jitter = 0;           // 0 to 1, see rotation.h
  bool retiring = false;       // gives no more cells, and ends when its last leased cell is gone
  bool spare = false;          // it was started ahead, for any pool
  bool proven = false;         // a cell of it was ready once
  std::deque<uint64_t> ready;  // parked cells, oldest first
  uint64_t leased = 0;         // cells
  uint64_t kept = 0;           // of those, which are kept for sessions
};

class Members {
 public:
  // `reclaim` takes back one cell of that worker that was leased ahead; false: there is none.
  Members(Loop& loop, std::function<bool(const std::string& worker)> reclaim);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  Member& Add(std::unique_ptr<Worker> worker, bool spare, double jitter);
  std::list<Member>& all() { return all_; }
  const std::list<Member>& all() const { return all_; }
  bool empty() const { return all_.empty(); }
  uint64_t leased() const { return leased_.size(); }  // cells
  uint64_t kept() const { return kept_.size(); }      // of those, which are kept for sessions
  uint64_t ready() const;                             // parked cells
  uint64_t alive() const;                             // workers that do not retire
  bool starting() const;                              // one of those is not ready yet

  Member* Of(const Worker& worker);
  Member* OfLeased(uint64_t cell);  // nullptr: nobody has it
  // The oldest one with a parked cell that may serve one more call; nullptr: there is none.
  Member* WithReadyCell(uint64_t max_calls);

  uint64_t Lease(Member& member);  // Its oldest parked cell. REQUIRES: it has one.
  void Keep(uint64_t cell);        // A leased one is kept for a session from now on.
  // The cell is gone. True if it was leased.
  bool EndCell(Member& member, uint64_t cell);
  void Retire(Member& member, std::string_view why);
  // The worker is dead; returns what was known of it, without the worker.
  Member Remove(Member& member);
  void TryStarved();            // gives those that had no descriptors another try
  void Look(unsigned worth);    // see Worker::Look
  void Discard(uint64_t cell);  // ends a cell that is not leased
  void
  SweepSoon();  // Destroys, on the next turn, dead workers and retiring ones with no leased cell.

 private:
  void Sweep();

  Loop& loop_;
  const std::function<bool(const std::string&)> reclaim_;
  std::list<Member> all_;
  std::vector<std::unique_ptr<Worker>> dead_workers_;  // until the next turn
  std::map<uint64_t, Member*> leased_;                 // by cell
  std::set<uint64_t> kept_;                            // of those
  std::shared_ptr<bool> alive_;                        // false once destroyed
};

}  // namespace hutch
