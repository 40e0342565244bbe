// SPDX-License-Identifier: Apache-2.0

// Calls that no thread waits for one by one: any number under way, driven by one thread.
//
// Start and Cancel are for any thread and never wait; Start sends a call for which a cell is there.
// Next is for one thread at a time: it sends waiting calls as cells come, polls all cells that have
// a call, and returns what happened. A call has no descriptor and no thread of its own; one that
// waits costs memory only.
#pragma once

#include <poll.h>

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/call_record.h"
#include "client/connection.h"
#include "client/held_leases.h"
#include "client/reports.h"
#include "client/waiting_calls.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {

// What happened to a call: it printed `text`, or it is over, which is one of `record`, `open`,
// `error`.
struct CallEvent {
  uint64_t id = 0;
  int stream = -1;  // 0: stdout, 1: stderr
  std::string text{};
  std::shared_ptr<CallRecord> record{};
  std::shared_ptr<OpenCall> open{};
  std::optional<Error> error{};
  std::shared_ptr<const void> owner{};  // of the request's bytes, when it is over
};

class InFlightCalls {
 public:
  InFlightCalls(Connection& connection, Reports& reports, HeldLeases& leases);
  ~InFlightCalls();

  // `owner` keeps what `request` points to. `output`: what it prints is an event each.
  uint64_t Start(const std::string& key, CallRequest request, std::shared_ptr<const void> owner,
                 bool output) EXCLUDES(connection_lock);
  void Cancel(uint64_t id) EXCLUDES(connection_lock);
  // Waits until something happened, at most `patience` (0: looks once). Empty: that passed, or Stop
  // was called.
  std::vector<CallEvent> Next(Clock::duration patience) EXCLUDES(connection_lock);
  void Stop() EXCLUDES(connection_lock);

  // The pool was prepared; how many cells it has is a figure for refusals.
  void SetMaxCells(const std::string& key, uint64_t cells) EXCLUDES(connection_lock);
  // The pool's stock has got a cell.
  void OnCell(const std::string& key) REQUIRES(connection_lock);
  // The answer to a request of ours for a cell. False: it is none.
  bool OnMessage(uint64_t request, ReceivedMessage& received) REQUIRES(connection_lock);

 private:
  using Calls = std::list<std::unique_ptr<InFlightCall>>;
  struct Cell {
    std::optional<HeldLease> held;
    std::vector<HeldLease> unwanted;  // to be given back
  };

  void Wake();
  void WakeOnce() REQUIRES(connection_lock);
  void TakeSent() REQUIRES(connection_lock);
  void DropCancelled() EXCLUDES(connection_lock);
  void Expire() EXCLUDES(connection_lock);
  // Sends waiting calls to the cells that are there, and asks for more cells.
  void SendWaiting() EXCLUDES(connection_lock);
  void SendTo(std::unique_ptr<InFlightCall> call, HeldLease held) EXCLUDES(connection_lock);
  Cell TakeCell(const std::string& key, const CallRequest& request) REQUIRES(connection_lock);
  void GiveBack(const std::vector<HeldLease>& unwanted) EXCLUDES(connection_lock);
  void AskForMore() EXCLUDES(connection_lock);
  void Refuse(const WaitingCalls::Asked& asked, Error error) REQUIRES(connection_lock);
  void AddFailed(const InFlightCall& call, Error error) REQUIRES(connection_lock);
  // Polls all cells, at most until `until`, and takes what came. Returns whether Stop was called.
  bool Poll(Clock::time_point until) EXCLUDES(connection_lock);
  // True when the call is over.
  bool Step(InFlightCall& call, const pollfd* polled) EXCLUDES(connection_lock);
  void CheckAgent(Clock::duration late) REQUIRES(connection_lock);
  // The leases of calls whose cells nobody watches any more.
  std::set<uint64_t> LostLeases() const REQUIRES(connection_lock);
  void EndLost(const std::set<uint64_t>& lost) EXCLUDES(connection_lock);
  void Finish(InFlightCall& call, CallOutcome outcome) EXCLUDES(connection_lock);
  void AddEnd(const InFlightCall& call, CallEvent event) EXCLUDES(connection_lock);
  void Fail(InFlightCall& call, Error error);
  uint64_t MaxCells(const std::string& key) const EXCLUDES(connection_lock);
  // Until Next has something to do though nothing came.
  Clock::duration TimeToWait(Clock::time_point now, Clock::time_point until) const
      EXCLUDES(connection_lock);

  Connection& connection_;
  Reports& reports_;
  HeldLeases& leases_;
  Fd wake_;  // an eventfd that wakes the thread in Next
  std::atomic<uint64_t> next_id_{1};
  // Of the thread in Next:
  Calls running_;
  bool added_ = false;  // to running_, since it was looked for calls whose cells are lost
  std::vector<CallEvent> events_;
  std::vector<pollfd> polled_;
  // Of all:
  WaitingCalls waiting_ GUARDED_BY(connection_lock);
  std::unordered_map<std::string, uint64_t> max_cells_ GUARDED_BY(connection_lock);  // by pool key
  std::vector<uint64_t> cancelled_ GUARDED_BY(connection_lock);
  std::vector<CallEvent> failed_ GUARDED_BY(connection_lock);
  Calls sent_ GUARDED_BY(connection_lock);          // to their cells, since Next looked at running_
  bool awake_ GUARDED_BY(connection_lock) = false;  // Next will see all of this before it waits
  bool stopped_ GUARDED_BY(connection_lock) = false;
};

}  // namespace hutch
