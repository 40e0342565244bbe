// The agent's socket: accepts clients of our own user, reads their messages, and gives them to the
// broker.
//
// Belongs to the loop's thread. A client that sends nonsense, or does not read what it is sent, is
// dropped, and every cell it held dies.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "agent/broker.h"
#include "pool/loop.h"
#include "wire/fd.h"

namespace hutch {

class Server {
 public:
  Server(Loop& loop, Broker& broker, Fd listener, std::string agent_name);
  ~Server();

 private:
  class Connection;
  void OnAccept();
  void Drop(uint64_t id);

  Loop& loop_;
  Broker& broker_;
  Fd listener_;
  Fd reserve_;  // given up for a moment when descriptors run out, so that accept() does not spin
  std::string agent_name_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
};

}  // namespace hutch
