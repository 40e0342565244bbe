// The leases of one pool that no call of this process uses now, and how many to ask for ahead.
//
// A value that knows no clock and no socket; whoever owns it locks it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

#include "client/lease.h"

namespace hutch {

// A lease with what its client knows of it.
struct HeldLease {
  Lease lease;
  uint32_t table_slot = 0;
  Clock::duration queue{};         // until it was there
  Clock::duration worker_start{};  // part of that
  // Of a shared cell:
  uint64_t calls = 0;
  Clock::time_point first_call{};
  uint64_t cpu_us = 0;        // of its calls until now, as it said
  bool may_be_taken = false;  // the agent knows that its client keeps it between calls
};

class Stock {
 public:
  // Two are behind the call under way of a lone caller. Each call that comes before what was asked
  // for doubles that, for a burst is to find as many; each run of kHits that find one takes one
  // off. Callers side by side have one each, and one is on its way.
  static constexpr size_t kLeast = 2;
  static constexpr size_t kMostForBursts = 8;
  static constexpr size_t kMost = 64;
  static constexpr size_t kHits = 64;

  // For a call that begins. `shared`: one that served calls before comes first.
  std::optional<HeldLease> Take(bool shared) {
    std::optional<HeldLease> taken;
    if (shared && !kept_.empty()) {
      taken = std::move(kept_.back());
      kept_.pop_back();
      return taken;
    }
    if (ahead_.empty()) {
      hits_ = 0;
      if (asked_ > 0) depth_ = std::min(depth_ * 2, kMostForBursts);
      return taken;
    }
    taken = std::move(ahead_.front());
    ahead_.pop_front();
    if (++hits_ % kHits == 0) depth_ = std::max(depth_ - 1, kLeast);
    return taken;
  }
  void Add(HeldLease held) { ahead_.push_back(std::move(held)); }
  void Keep(HeldLease held) { kept_.push_back(std::move(held)); }

  void Asked() { ++asked_; }
  void Answered() { --asked_; }  // came, or was refused
  void Begun() { ++calls_; }
  void Over() { --calls_; }

  bool empty(bool shared) const { return ahead_.empty() && (!shared || kept_.empty()); }
  // How many more are to be asked for.
  size_t Missing() const {
    const size_t wanted = std::clamp(calls_ + 1, depth_, kMost);
    const size_t have = ahead_.size() + asked_;
    return wanted > have ? wanted - have : 0;
  }

 private:
  std::deque<HeldLease> ahead_;
  std::deque<HeldLease> kept_;  // shared cells between two calls; the one used last is the warmest
  size_t asked_ = 0;
  size_t calls_ = 0;  // under way
  size_t depth_ = kLeast;
  size_t hits_ = 0;
};

}  // namespace hutch
