// SPDX-License-Identifier: Apache-2.0

// Waits, on one thread, for what becomes of one call.
#pragma once

#include <poll.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "client/call.h"
#include "client/lease.h"
#include "wire/clock.h"

namespace hutch {

// Waits for what becomes of the call that was sent last. `slow`: as for Lease::Step().
// REQUIRES: Send() returned true. Throws kProtocol when the cell breaks the protocol. `lost` is
// called every quarter second in which the cell sends nothing; true: the wait ends, for the agent
// does not watch the cell any more, or (it hung up) it is dead.
CallOutcome Await(Lease& lease, const CallRequest& request, const CallHooks& hooks,
                  const std::function<void()>& slow,
                  const std::function<bool(bool hung_up)>& lost = nullptr);

// Within `request.dialogue`, on its thread, while what the cell asks is open and Await() waits:
// sends this answer, and waits for what is asked next, which is open from then on; a clock that was
// stopped goes on. nullopt: the call is over, and what the dialogue returns is not sent.
std::optional<Question> Exchange(Lease& lease, const std::string& answer);

// What both share, while Await() lasts; and a wait that an event loop drives.
class Waiting {
 public:
  using Slow = std::function<void()>;
  using Lost = std::function<bool(bool hung_up)>;

  // `lease`, `request` and `hooks` outlive it.
  Waiting(Lease& lease, const CallRequest& request, const CallHooks& hooks, Slow slow, Lost lost);
  ~Waiting() { lease_.waiting_ = nullptr; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  CallOutcome Await();
  static std::optional<Question> Exchange(Lease& lease, const std::string& answer);

  // ---- Await() in turns, for an event loop, which answers what the cell asks in its own time; the
  // dialogue gets the rest.
  void TakeTurns();  // before the others
  // Takes what came since, and never waits. True: it is decided, and Lease::Take() is to be called.
  // `asked`: what is to be answered at some time. Throws as Await does.
  bool Turn(std::optional<Question>& asked);
  // The question of that number. nullopt: the call is to end. A clock that was stopped goes on.
  // True: it is decided.
  bool Answer(uint64_t number, const std::optional<std::string>& answer);
  // Or has it go on. It does from each answer on.
  void StopClock(bool stop) { lease_.SetClock(stop, slow_); }
  // Ends the call. True: it is decided. Of a kept cell it is interrupted, as at its deadline.
  bool Cancel();
  Clock::time_point next_turn() const;  // though nothing came

  // For the lease: whether a question goes to Exchange(), and whether that has seen the call's end.
  // Throws what that threw.
  bool Takes(const Question& question);
  bool IsOver() const;

 private:
  // Polls once, for at most `patience`. True when the outcome is decided.
  bool Round(Clock::duration patience);
  bool End(CallStatus status);
  // By the clock, not when no descriptor is ready: a cell that prints or sends frames without end
  // would prevent it.
  bool IsInterrupted(bool now);
  std::optional<Question> ExchangeFor(const std::string& answer);

  Lease& lease_;
  const CallRequest& request_;
  const CallHooks& hooks_;
  const Slow slow_;
  const Lost lost_;
  Clock::time_point ask_again_;
  int cancel_fd_;
  bool over_ = false;              // decided in Exchange()
  std::exception_ptr failure_;     // why, if it threw
  bool exchanges_ = false;         // what is asked goes to Exchange(), or Turn()
  std::optional<Question> asked_;  // in it
};

}  // namespace hutch
