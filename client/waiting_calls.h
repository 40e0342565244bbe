// SPDX-License-Identifier: Apache-2.0

// Calls in flight that wait for a cell, in a queue for each pool, and the requests to the agent
// that are made for them.
//
// Cells go to calls in the order in which these came, whichever request one answers; so a request
// belongs to a call only as far as it waits as long as that call does. A pure data structure: time
// comes in as an argument; used under the lock of a Connection.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/held_leases.h"
#include "client/lease.h"
#include "wire/clock.h"
#include "wire/message.h"
#include "wire/thread_annotations.h"

namespace hutch {

struct InFlightCall {
  uint64_t id = 0;
  std::string key;  // of its pool
  CallRequest request;
  std::shared_ptr<const void> owner;
  bool output = false;
  Clock::time_point asked;
  Clock::time_point patience;  // until then
  int attempts = 0;
  std::optional<HeldLease> held;  // once it is sent
  OutputHook printed;
};

class WaitingCalls {
 public:
  using CallPointer = std::unique_ptr<InFlightCall>;
  // What has left the queues.
  struct Left {
    struct One {
      CallPointer call;
      size_t others;  // that waited in its queue
    };
    std::vector<One> calls;
    std::vector<uint64_t> requests;  // that were made for them: to be withdrawn
  };
  struct Asked {
    std::string key;
    Clock::time_point until;  // it may wait
  };

  void Add(CallPointer call);       // after all others
  void AddAgain(CallPointer call);  // before all others: it had a cell, in vain
  bool HasAny(const std::string& key) const;
  // Until then no call has waited too long. nullopt: none waits.
  std::optional<Clock::time_point> due() const;

  // The first call of the first pool of which `takes(key, call)` returns true. `takes` may require
  // the lock, which the caller holds.
  template <class Takes>
  CallPointer TakeFirst(const Takes& takes) NO_THREAD_SAFETY_ANALYSIS {
    for (auto& [key, queue] : queues_) {
      if (queue.calls.empty() || !takes(key, *queue.calls.front())) continue;
      CallPointer call = std::move(queue.calls.front());
      queue.calls.pop_front();
      return call;
    }
    return nullptr;
  }
  Left TakeCancelled(const std::vector<uint64_t>& ids);
  Left TakeExpired(Clock::time_point now);
  Left TakeAll();

  // The requests that are missing: one for each call, and not too many. `next`: of the connection.
  std::vector<Acquire> Ask(Clock::time_point now, const std::function<uint64_t()>& next);
  // The agent has answered that request. nullopt: it is none of these, or was withdrawn.
  std::optional<Asked> TakeRequest(uint64_t request);
  // The call that it was sent for. nullptr: that one has found another cell, or left.
  CallPointer TakeCallOf(const Asked& asked);

 private:
  struct Queue {
    std::deque<CallPointer> calls;
    std::map<uint64_t, Clock::time_point> asked;  // the oldest first, and until when each may wait
    Clock::time_point due = Clock::time_point::max();  // no call has waited too long before
  };

  static void Note(Queue& queue, const InFlightCall& call);
  // Removes the calls that were moved from, and the requests that were made for them.
  void Trim(Queue& queue, Left& left);

  std::unordered_map<std::string, Queue> queues_;  // by pool key
  std::map<uint64_t, std::string> requests_;       // request -> pool
};

}  // namespace hutch
