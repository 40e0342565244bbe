// SPDX-License-Identifier: Apache-2.0

// Holds what a cell loads ahead of its call to the limits of a call. What it loads is its caller's
// code, as the call itself is. The warden is informed a moment after the load began, as clients do
// for calls (client/lease.cc): most cells are used, and gone, before that.
//
// Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "loop/loop.h"

namespace hutch {

class LoadWatch {
 public:
  static constexpr auto kDelay = std::chrono::milliseconds(5);

  // `arm(cell, cpu_ms)` is called from the loop, kDelay after Add(), whatever has become of the
  // cell.
  LoadWatch(Loop& loop, std::function<void(uint64_t cell, uint64_t cpu_ms)> arm)
      : loop_(loop), arm_(std::move(arm)) {}
  ~LoadWatch() { loop_.Cancel(timer_); }
  LoadWatch(const LoadWatch&) = delete;
  LoadWatch& operator=(const LoadWatch&) = delete;

  void Add(uint64_t cell, uint64_t cpu_ms);

 private:
  struct Loading {
    Clock::time_point due;
    uint64_t cell;
    uint64_t cpu_ms;
  };
  void ArmDue();

  Loop& loop_;
  std::function<void(uint64_t, uint64_t)> arm_;
  std::deque<Loading> loading_;  // in the order of `due`
  TimerId timer_ = 0;            // set while `loading_` is not empty
};

}  // namespace hutch
