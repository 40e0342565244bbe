// SPDX-License-Identifier: Apache-2.0

// The egress process itself: `hutch-agent --egress`. Connects to the agent's socket, and serves the
// agent until that connection closes.
//
// Belongs to the loop's thread; RunEgress makes one of its own.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/egress/cell.h"
#include "agent/egress/control.h"

namespace hutch {

class EgressServer {
 public:
  // `control` is connected to the agent. `gone` is called when that connection ends.
  EgressServer(Loop& loop, Fd control, Lookup lookup, const TlsContext* tls, std::string tls_error,
               std::function<void()> gone);
  ~EgressServer();
  EgressServer(const EgressServer&) = delete;
  EgressServer& operator=(const EgressServer&) = delete;

  // For tests, before the first cell.
  EgressLimits& limits() { return shared_.limits; }
  void set_descriptors(size_t limit) { shared_.descriptors = limit; }

 private:
  void OnControl(uint32_t events);
  void Handle(ReceivedEgress received);
  void Send(EgressMessage message);
  void Flush();
  void Tick();

  Loop& loop_;
  Fd control_;
  Resolver resolver_;
  EgressShared shared_;
  std::function<void()> gone_;
  std::map<uint64_t, std::shared_ptr<const EgressPolicy>> policies_;
  std::map<uint64_t, std::unique_ptr<EgressCell>> cells_;
  std::deque<EgressMessage> answers_;  // that the socket has no room for
  TimerId tick_ = 0;
};

struct EgressOptions {
  std::string socket;  // the agent's
  std::string token;
  std::string ca_file;
};

// Returns when the agent is gone. Throws kUnavailable when no agent listens.
int RunEgress(const EgressOptions& options);

}  // namespace hutch
