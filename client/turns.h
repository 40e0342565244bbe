// SPDX-License-Identifier: Apache-2.0

// A call in turns, for an event loop. What the cell asks comes out of a turn, and the loop answers
// it when it can; what the cell only says goes to the dialogue. One call at a time, on one thread.
#pragma once

#include <poll.h>

#include <array>
#include <exception>
#include <optional>
#include <string>

#include "client/call_record.h"
#include "client/lease.h"
#include "client/waiting.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {

// A call that was sent, or could not be.
struct Underway {
  const CallRequest& request;
  CallHooks hooks;
  CallRecord record;
  bool sent = false;
  bool announced = false;                // to the agent
  Clock::duration unannounced{};         // how long it ran before that
  bool over = false;                     // in turns: its outcome is decided
  std::exception_ptr failure = nullptr;  // instead of one
};

// Whose calls they are: what makes each, and concludes it, however it is waited for.
class Caller {
 public:
  virtual Underway Send(const CallRequest& request, const CallHooks& hooks) = 0;
  virtual Lease* lease() = 0;  // of the cell that it was sent to; nullptr: there is none
  virtual void OnSlow(Underway& call) = 0;
  virtual bool IsLost(bool hung_up) = 0;
  // What Await() or turns of the lease gave, or failed with.
  virtual void Take(Underway& call, CallOutcome outcome) = 0;
  virtual void Fail(Underway& call) = 0;                         // within a catch block
  virtual bool WaitsToConclude(const Underway& call) const = 0;  // for the agent
  virtual CallRecord Conclude(Underway& call) = 0;
  virtual Error NoCall() const = 0;  // why none is under way

  CallRecord MakeCall(const CallRequest& request, const CallHooks& hooks);  // and waits for it

 protected:
  ~Caller() = default;
};

class Turns {
 public:
  // `caller` outlives it.
  explicit Turns(Caller& caller) : caller_(caller) {}

  // Sends it; waits only where the caller has no cell yet. `request`, and what it and `hooks` refer
  // to, are used until End(). Throws as a call that is waited for does.
  void Begin(const CallRequest& request, const CallHooks& hooks);
  // Takes what came since, and never waits. True: the call is over, and End() is to be called.
  // `asked`: what is to be answered at some time.
  bool Turn(std::optional<Question>& asked);
  // The question of that number; nullopt: the call is to end. True: it is over.
  bool Answer(uint64_t number, const std::optional<std::string>& answer);
  void StopClock(bool stop);  // of its wall time, until the next answer; or has it go on
  // Ends it. In a session it raises KeyboardInterrupt, for which it has a grace, as at a time
  // limit. True: it is over.
  bool Cancel();
  int fd();                        // readable: there is something to take
  Clock::time_point next() const;  // when a turn is due though nothing came
  bool waits_at_end() const;       // whether End() waits for the agent
  CallRecord End();                // throws as a call that is waited for does

  // ---- for the caller
  void Drop();  // nothing comes of the call
  // The cell has another socket. A process that this one forked may have the last one still, which
  // then stays in its epoll set for good.
  void ForgetSocket() {
    epoll_.reset();
    watched_.fill({});
  }

 private:
  struct Watched {
    int fd = -1;
    short events = 0;
  };

  void TakeOutcome();
  void Watch(Watched& watched, const pollfd& wanted);

  Caller& caller_;
  std::optional<Underway> call_;
  std::optional<Waiting> waiting_;
  // Of the descriptors of its cell that are not at their end.
  Fd epoll_;
  std::array<Watched, kPolledOfCall> watched_;
};

}  // namespace hutch
