// SPDX-License-Identifier: Apache-2.0

// One call on one leased cell: sends it, polls its socket and its output with the deadline, and
// decides what became of it.
//
// A Lease is the exclusive use of a cell. Destroying it closes our ends; the agent kills the cell
// when it gets LeaseEnded, or when this process ends. One thread at a time.
#pragma once

#include <poll.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "client/call.h"
#include "client/call_clock.h"
#include "client/given_memory.h"
#include "client/lending.h"
#include "client/loaded.h"
#include "client/output_pipes.h"
#include "client/result_reader.h"
#include "wire/cell_frame.h"
#include "wire/clock.h"
#include "wire/fd.h"

namespace hutch {

inline constexpr size_t kPolledOfCall = 3;  // descriptors

class Waiting;

class Lease {
 public:
  // `segments`: where the memory of large arguments comes from.
  Lease(uint64_t id, std::string worker, Fd socket, Fd out, Fd err,
        std::shared_ptr<SegmentPool> segments)
      : lending_(std::move(segments)),
        id_(id),
        worker_(std::move(worker)),
        socket_(std::move(socket)),
        pipes_(std::move(out), std::move(err)) {}

  uint64_t id() const { return id_; }
  const std::string& worker() const { return worker_; }
  int socket() const { return socket_.get(); }       // of its calls
  const CallClock& clock() const { return clock_; }  // of the call that was sent last
  Loaded& loaded() { return loaded_; }
  const Loaded& loaded() const { return loaded_; }
  Lending& lending() { return lending_; }                       // what the cell was lent
  const GivenMemory& given() const { return result_.given(); }  // and given for the call

  // The cell is kept for a session, and serves calls of any kind. Calls end as kEnded when its user
  // process ends, which its PID 1 says.
  // `interrupt`, called at a call's deadline: has it raise KeyboardInterrupt, for which it has a
  // grace of 0.3 s.
  void SetKept(std::function<void()> interrupt) { interrupt_ = std::move(interrupt); }
  // What it was given and lent. REQUIRES: nothing of it is used again.
  void FreeMemory() {
    result_.Begin();
    lending_.FreeAll();
  }
  // After the end of its user process: takes all that it still printed. `socket`: of the calls of
  // the next one.
  void BeginUser(Fd socket, Output& output, const OutputHook& hook);

  // Sends the call. False: the cell was gone before it was sent, or is loaded for another, so it
  // certainly did not run. Of a kept cell also: its code filled or shut the socket of its calls, or
  // keeps too much of what it was lent.
  bool Send(const CallRequest& request, uint64_t call_id);

  // ---- what becomes of the call, in steps: Await() in waiting.h waits for it. REQUIRES: Send()
  // returned true. `slow` is called when the call has been running for some milliseconds, when its
  // clock begins anew, is stopped or goes on, and when it was given memory for its result.
  void Fill(pollfd* polled) const;  // kPolledOfCall descriptors to be polled
  // At clock().due() it has something to do though nothing came.
  // Takes what came since, and checks the deadline. True: it is decided, and Take() is to be
  // called. Throws kProtocol when the cell breaks the protocol.
  bool Step(const CallRequest& request, const pollfd* polled, const OutputHook& output,
            const std::function<void()>& slow);
  CallOutcome Take() {
    result_.TakeBack();
    return std::move(outcome_);
  }
  // No reply will come: the program was replaced (exec), or its process ended. Processes that have
  // its standard output may still print.
  bool hung_up() const { return hung_up_; }
  // Ends the wait with what was printed until now.
  CallOutcome End(CallStatus status, const OutputHook& output);

 private:
  friend class Waiting;

  // True when `outcome` is decided.
  bool OnFrame(CallOutcome& outcome, const CallRequest& request, const std::function<void()>& slow);
  bool OnNeed(uint64_t size, uint64_t limit, const CallRequest& request,
              const std::function<void()>& slow);
  // What became of the call, if it is to end.
  std::optional<CallStatus> OnSaid(const FrameHeader& header, std::string_view payload,
                                   const CallRequest& request, const std::function<void()>& slow);
  void SetClock(bool stop, const std::function<void()>& slow);
  void TellAgent(const std::function<void()>& slow);
  // To the question of that number: as soon as its socket has room.
  std::optional<CallStatus> SendAnswer(uint64_t number, const std::string& answer,
                                       const CallRequest& request);
  // False: the socket is full. `descriptor`: of memory that has the answer, or -1.
  bool SendNow(uint64_t number, std::string_view answer, int descriptor);
  void SendUnsent();
  // Whether the call is to end now; false: it was interrupted, and may end by itself for a while.
  bool GiveUp(CallStatus status);

  Lending lending_;
  ResultReader result_;
  Loaded loaded_;
  CallClock clock_;
  uint64_t id_;
  std::string worker_;
  Fd socket_;
  OutputPipes pipes_;
  bool quick_ = false;  // as its last call was
  bool hung_up_ = false;
  std::function<void()> interrupt_;        // of a kept one
  std::optional<CallStatus> interrupted_;  // why, since the call was
  CallOutcome outcome_;
  struct Said {
    uint64_t frames = 0;  // of the call's dialogue
    uint64_t bytes = 0;
  } said_;
  struct Unsent {
    uint64_t number;
    std::string answer;
    Fd memory;
  };
  std::deque<Unsent> unsent_;  // answers that its socket had no room for
  Waiting* waiting_ = nullptr;
};

}  // namespace hutch
