// SPDX-License-Identifier: Apache-2.0

// Calls that nobody waits for one by one: any number under way, driven by one thread.
//
// Start and Cancel are for any thread and never wait. Next is for one thread at a time: it sends
// what waits as cells come, polls all cells that have a call, and gives what happened. No
// descriptor and no thread of its own for a call; one that waits costs memory only.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/stock.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {

class Client;
struct CallRecord;

// A call that is over, but for what the agent has to tell of it: Client::Conclude takes it.
struct OpenCall;

// What happened to a call: it printed `text`, or it is over, which is one of the last three.
struct FlightEvent {
  uint64_t id = 0;
  int stream = -1;  // 0: stdout, 1: stderr
  std::string text{};
  std::shared_ptr<CallRecord> record{};
  std::shared_ptr<OpenCall> open{};
  std::optional<Error> error{};
  std::shared_ptr<const void> owner{};  // of the request's bytes, when it is over
};

class Flights {
 public:
  explicit Flights(Client& client);
  ~Flights();

  // `owner` keeps what `request` points to. `output`: whether to tell what it prints as it comes.
  uint64_t Start(const std::string& key, CallRequest request, std::shared_ptr<const void> owner,
                 bool output);
  void Cancel(uint64_t id);
  // Waits until something happened, at most `patience`. Empty: that passed, or Stop was called.
  std::vector<FlightEvent> Next(Clock::duration patience);
  void Stop();

  // ---- for the client, under its lock
  bool waiting(const std::string& key) const;
  void Granted(const std::string& key);  // a cell of that pool is there
  void Answered(const std::string& key,
                uint64_t request);  // an Acquire of ours, not with a refusal
  void Refused(const std::string& key, uint64_t request, Error error);

 private:
  void Wake();
  struct Flight;
  struct Line {  // who waits for a cell of one pool
    std::deque<std::unique_ptr<Flight>> flights;
    // What the agent has not answered, the oldest first, and until when each may wait there. Cells
    // go to calls in the order in which these came, whichever request one answers.
    std::map<uint64_t, Clock::time_point> asked;
    Clock::time_point due = Clock::time_point::max();  // nobody's patience ends before
  };
  using Air = std::list<std::unique_ptr<Flight>>;

  void DropCancelled();
  void Expire();
  void Launch();  // sends what waits on the cells that are there, and asks for more
  void SendOn(std::unique_ptr<Flight> flight, HeldLease held);
  void AskForMore();
  void Join(Line& line, std::unique_ptr<Flight> flight, bool first);
  void TakeUnwanted(Line& line, std::vector<uint64_t>& requests);
  bool Step(Flight& flight, const pollfd* polled);  // true when it is over
  bool Waiting() const;                             // whether any call waits for a cell
  void LookAtAgentLocked(Clock::duration late);
  std::set<uint64_t> LostLocked() const;  // leases of flights whose cells nobody watches any more
  void GiveUp(const std::set<uint64_t>& lost);
  void Land(Flight& flight, CallOutcome outcome);
  void Over(const Flight& flight, FlightEvent event);
  void Fail(Flight& flight, Error error);
  Clock::time_point NextDue() const;

  Client& client_;
  Fd wake_;
  std::atomic<uint64_t> next_id_{1};
  Air air_;                          // of the thread in Next
  std::vector<FlightEvent> events_;  // of the thread in Next
  // Under the client's lock:
  std::unordered_map<std::string, Line> lines_;
  std::vector<uint64_t> cancelled_;
  std::vector<FlightEvent> refused_;
  bool awake_ = false;  // Next will look at all of this before it waits
  bool stopped_ = false;
};

}  // namespace hutch
