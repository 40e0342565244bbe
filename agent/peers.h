// SPDX-License-Identifier: Apache-2.0

// The clients that are connected, and those of their requests that are not answered yet.
//
// Belongs to the loop's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "agent/audit.h"
#include "wire/error.h"
#include "wire/message.h"

namespace hutch {

// One client as the broker sees it. Owned by the server, which calls Broker::Gone() before it is
// destroyed.
class Peer {
 public:
  virtual ~Peer() = default;
  // False when the peer is gone or does not read, and will be dropped by the server; or when there
  // are no descriptors to keep `descriptors` until they can be sent.
  virtual bool Send(const Message& message, std::span<const int> descriptors = {}) = 0;
  virtual uint64_t id() const = 0;
  // The lease table shared with this client, kLeaseTableBytes.
  virtual uint32_t* lease_table() = 0;
  virtual AuditCaller caller() const { return {}; }
};

class Peers {
 public:
  struct Place {  // in the queue of a pool
    std::string pool;
    uint64_t ticket = 0;  // 0: not known yet
  };
  struct State {
    Peer* peer = nullptr;
    // By request:
    std::map<uint64_t, Place> waiting{};
    std::map<uint64_t, std::shared_ptr<std::atomic<bool>>>
        preparing{};           // true: the build is not wanted any more
    uint64_t awaits_stop = 0;  // answered when the agent begins to stop; 0: none
  };
  using All = std::unordered_map<uint64_t, State>;

  bool Add(Peer& peer);                        // false: it is there
  std::optional<State> Remove(uint64_t peer);  // nullopt: it never sent anything
  State* Find(uint64_t peer);                  // nullptr: it is gone

  // To a client that is gone nothing is sent.
  void Send(uint64_t peer, const Message& message, std::span<const int> descriptors = {});
  void Fail(uint64_t peer, uint64_t request, const Error& error);  // answers the request so

  size_t size() const { return all_.size(); }
  All::iterator begin() { return all_.begin(); }
  All::iterator end() { return all_.end(); }

 private:
  All all_;
};

}  // namespace hutch
