// SPDX-License-Identifier: Apache-2.0

// Callers who wait for a cell of one pool: their places in its queue, their deadlines, and what
// they are informed.
//
// Every waiter is called exactly once, unless it is forgotten: with a cell or with an Error. Whose
// turn it is is decided by queue.h. Belongs to the loop's thread; time comes in as an argument, and
// only the one timer for the next deadline reads the clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "loop/loop.h"
#include "pool/cell_channels.h"
#include "pool/queue.h"
#include "wire/error.h"

namespace hutch {

// A cell that belongs to one caller until it is released.
struct LeasedCell {
  uint64_t cell = 0;
  std::string worker;
  CellChannels channels;
  Clock::duration waited{};
  Clock::duration worker_start{};  // part of the wait in which no worker was ready
};

class Waiters {
 public:
  using Granted = std::function<void(LeasedCell)>;
  using Refused = std::function<void(const Error&)>;
  struct Waiter {
    Clock::time_point since;
    Granted granted;
    Refused refused;
  };

  // `max_cells` is a figure for refusals. `late` makes the refusal of one whose deadline has
  // passed. `loop` and `in_all` outlive it.
  Waiters(Loop& loop, QueuesInAll& in_all, uint64_t max_cells,
          std::function<Error(Clock::duration waited)> late);
  ~Waiters();
  Waiters(const Waiters&) = delete;
  Waiters& operator=(const Waiters&) = delete;

  uint64_t waiting() const { return queue_.waiting(); }  // for a call
  uint64_t ahead() const { return queue_.ahead(); }      // for a cell that no call needs yet
  bool empty() const { return queue_.empty(); }

  // kBusy with the figures of this queue.
  Error Busy(const std::string& text, const std::string& hint, Clock::duration waited) const;
  // Why one more of `caller` has no place; std::nullopt: there is one.
  std::optional<Error> WhyFull(uint64_t caller, bool ahead) const;
  // Why it makes no sense for `caller` to wait: at the present pace its cell would come twice as
  // late as `patience` allows. It is a guess, so std::nullopt in every case that is less clear.
  std::optional<Error> WhyTooLate(uint64_t caller, Clock::duration patience) const;

  uint64_t NextTicket() { return next_ticket_++; }
  // REQUIRES: WhyFull() had no reason; a ticket of NextTicket(), in their order.
  void Add(uint64_t ticket, Clock::time_point now, uint64_t caller, Clock::duration patience,
           bool ahead, Waiter waiter);
  void WatchDeadline(uint64_t ticket);  // Sets the timer, unless the ticket was served already.
  void Forget(uint64_t ticket);

  // Removes and returns whose turn it is, among the callers that `may_take` a cell now.
  template <class MayTake>
  std::optional<Waiter> Next(Clock::time_point now, const MayTake& may_take) {
    const auto place = queue_.Next(now, may_take);
    if (!place) return std::nullopt;
    return Take(place->ticket);
  }
  void RefuseLate(Clock::time_point now);  // those whose deadline has passed
  void RefuseAll(const Error& error);

 private:
  Waiter Take(uint64_t ticket) { return std::move(waiters_.extract(ticket).mapped()); }
  void SetTimer();

  Loop& loop_;
  const QueuesInAll& in_all_;
  const uint64_t max_cells_;
  const std::function<Error(Clock::duration)> late_;
  Queue queue_;
  std::unordered_map<uint64_t, Waiter> waiters_;  // by ticket, for each place of the queue
  uint64_t next_ticket_ = 1;
  TimerId timer_ = 0;
  Clock::time_point timer_due_;
};

}  // namespace hutch
