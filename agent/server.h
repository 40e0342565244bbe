// SPDX-License-Identifier: Apache-2.0

// The agent's socket: accepts clients of our own user, reads their messages, and gives them to the
// broker.
//
// Belongs to the loop's thread. A client that breaks the protocol, or does not read what it is
// sent, is dropped, and every cell it held ends. A client that connects while the agent has no room
// gets an error with the numbers; the other clients are not affected.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>

#include "agent/broker.h"
#include "loop/loop.h"
#include "wire/fd.h"

namespace hutch {

class Server {
 public:
  Server(Loop& loop, Broker& broker, Fd listener, std::string agent_name);
  ~Server();

 private:
  class Connection;
  void OnAccept();
  void Listen();
  void Drop(uint64_t id);
  std::optional<Error> WhyRefuse(int socket) const;

  Loop& loop_;
  Broker& broker_;
  Fd listener_;
  TimerId listen_again_ = 0;  // set while it does not listen: accept() would fail again and again
  std::string agent_name_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  size_t refused_ = 0;  // of those: clients that are being turned away
};

}  // namespace hutch
