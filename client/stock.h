// SPDX-License-Identifier: Apache-2.0

// The leases of one pool that no call of this process uses now, and how many to ask for ahead.
//
// A cell that was loaded ahead is for calls of one identity only: another call could read what it
// loaded. An unloaded one is for any call. So a call takes one that is loaded for it, or else an
// unloaded one.
//
// A value without a clock and sockets; its owner locks it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "client/lease.h"

namespace hutch {

// A lease with its client's data about it.
struct HeldLease {
  Lease lease;
  uint32_t table_slot = 0;
  Clock::duration queue{};         // until it was there
  Clock::duration worker_start{};  // part of that
  // Of a shared cell:
  uint64_t calls = 0;
  Clock::time_point first_call{};
  uint64_t cpu_us = 0;        // of its calls until now, as the cell reported it
  bool may_be_taken = false;  // the agent knows that its client keeps it between calls
};

class Stock {
 public:
  // For one caller two leases are kept ahead. Each call that comes before a requested lease does,
  // or finds only cells that are loaded for other calls, doubles that number, so that the next
  // burst finds as many; each kHits calls in a row that find one lower it by one. For callers in
  // parallel there is one lease each, and one more.
  static constexpr size_t kLeast = 2;
  static constexpr size_t kMostForBursts = 8;
  static constexpr size_t kMost = 64;
  static constexpr size_t kHits = 64;
  static constexpr size_t kRecent = 16;

  // For a call that begins. `shared`: one that served calls before comes first.
  std::optional<HeldLease> Take(bool shared, const Sha256Digest& identity) {
    std::optional<HeldLease> taken;
    if (shared) taken = TakeKept();
    if (taken) return taken;
    const auto found = Find(identity);
    missed_ = found == ahead_.end();
    if (missed_) {
      hits_ = 0;
      if (!ahead_.empty()) reserve_until_ = takes_ + kHits;
      if (asked_ > 0 || !ahead_.empty()) depth_ = std::min(depth_ * 2, kMostForBursts);
      return taken;
    }
    taken = std::move(found->held);
    ahead_.erase(found);
    ++takes_;
    if (++hits_ % kHits == 0) depth_ = std::max(depth_ - 1, kLeast);
    return taken;
  }
  // One that served calls before.
  std::optional<HeldLease> TakeKept() {
    std::optional<HeldLease> taken;
    if (kept_.empty()) return taken;
    taken = std::move(kept_.back());
    kept_.pop_back();
    return taken;
  }
  // After Take(): a loaded one that has not been taken for long, or because of which a call found
  // no cell, since it counts as one ahead. It is to be given back: it serves no other call.
  std::optional<HeldLease> TakeUnwanted() {
    const auto oldest = std::ranges::find_if(ahead_, &Ahead::is_loaded);
    std::optional<HeldLease> taken;
    if (oldest == ahead_.end()) return taken;
    const bool in_the_way = std::exchange(missed_, false) && Missing() == 0;
    if (!in_the_way && takes_ - oldest->since < kHits) return taken;
    taken = std::move(oldest->held);
    ahead_.erase(oldest);
    return taken;
  }
  void Add(HeldLease held) { ahead_.push_back({std::move(held), takes_}); }
  void Keep(HeldLease held) { kept_.push_back(std::move(held)); }

  // After a call of that identity: whether a cell that is requested now is to be loaded for the
  // next one. Not after the first call, as many functions are called once, nor in place of the last
  // unloaded one where calls differ.
  bool ShouldLoad(const Sha256Digest& identity) {
    const auto known = std::ranges::find(recent_, identity);
    const bool again = known != recent_.end();
    if (again) recent_.erase(known);
    recent_.push_front(identity);
    if (recent_.size() > kRecent) recent_.pop_back();
    if (!again) return false;
    return takes_ >= reserve_until_ || asked_unloaded_ > 0 ||
           std::ranges::any_of(ahead_, [](const Ahead& one) { return !one.is_loaded(); });
  }
  void Asked(bool loaded) {
    ++asked_;
    if (!loaded) ++asked_unloaded_;
  }
  void Answered(bool loaded) {  // came, or was refused
    --asked_;
    if (!loaded) --asked_unloaded_;
  }
  void Begun() { ++calls_; }
  void Over() { --calls_; }
  bool called() const { return calls_ > 0; }
  size_t size() const { return ahead_.size() + kept_.size(); }
  // The oldest one ahead, or else the oldest one kept. REQUIRES: size() > 0.
  HeldLease GiveUp() {
    const bool kept = ahead_.empty();
    HeldLease given = std::move(kept ? kept_.front() : ahead_.front().held);
    kept ? kept_.pop_front() : ahead_.pop_front();
    return given;
  }

  // Whether Take() gives one, and none that was requested may be better: an unloaded one is taken
  // only where no loaded one has come.
  bool Has(bool shared, const Sha256Digest& identity) {
    if (shared && !kept_.empty()) return true;
    const auto found = Find(identity);
    return found != ahead_.end() && (found->is_loaded() || asked_ == asked_unloaded_);
  }
  // How many more are to be requested.
  size_t Missing() const {
    const size_t wanted = std::clamp(calls_ + 1, depth_, kMost);
    const size_t have = ahead_.size() + asked_;
    return wanted > have ? wanted - have : 0;
  }

 private:
  struct Ahead {
    HeldLease held;
    size_t since;  // as many had been taken when it came
    bool is_loaded() const { return held.lease.loaded().has_only(); }
  };

  std::deque<Ahead>::iterator Find(const Sha256Digest& identity) {
    auto unloaded = ahead_.end();
    for (auto i = ahead_.begin(); i != ahead_.end(); ++i) {
      if (i->held.lease.loaded().IsOnly(identity)) return i;
      if (unloaded == ahead_.end() && !i->is_loaded()) unloaded = i;
    }
    return unloaded;
  }

  std::deque<Ahead> ahead_;     // the oldest first
  std::deque<HeldLease> kept_;  // shared cells between two calls; the one used last is the warmest
  std::deque<Sha256Digest> recent_;  // of calls that are over, the latest first
  size_t asked_ = 0;
  size_t asked_unloaded_ = 0;  // part of that
  size_t calls_ = 0;           // under way
  size_t depth_ = kLeast;
  size_t hits_ = 0;           // since a call found none
  bool missed_ = false;       // the last call did
  size_t takes_ = 0;          // calls that found one
  size_t reserve_until_ = 0;  // an unloaded one is kept until then: calls differ
};

}  // namespace hutch
