// SPDX-License-Identifier: Apache-2.0

// One process's client of one agent: prepares pools, and runs calls on cells that it leases.
//
// Thread-safe, without a thread of its own: a thread that waits reads the connection and hands the
// others what is theirs (connection.h). Calls that no thread waits for one by one are in
// in_flight.h. Not usable after fork() in the child. When the agent is gone, or does not answer,
// every wait ends with kUnavailable; calls whose cell still lives go on to their end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "client/call_record.h"
#include "client/connection.h"
#include "client/held_leases.h"
#include "client/in_flight.h"
#include "client/pool_call.h"
#include "client/reports.h"
#include "client/session.h"
#include "wire/message.h"

namespace hutch {

class Client final : private Connection::Receiver {
 public:
  // Throws kUnavailable when nobody listens, kVersionMismatch.
  Client(const std::string& socket, long connect_uid);

  // `prepare`: its number is chosen here.
  PoolReady PreparePool(Prepare prepare, const std::function<void(const Progress&)>& progress,
                        const CallHooks& hooks);
  CallRecord Call(const std::string& key, const CallRequest& request, const CallHooks& hooks) {
    return PoolCall(reports_, leases_, key).Call(request, hooks);
  }
  uint64_t WarmPool(const std::string& key, int64_t cells, uint64_t timeout_ms,
                    const CallHooks& hooks);
  std::string AskAgent(const std::string& what, uint64_t timeout_ms, const CallHooks& hooks);

  // Of this client, which outlives it, in a pool that was prepared: one call, and a session.
  std::unique_ptr<PoolCall> MakeCall(std::string key) {
    return std::make_unique<PoolCall>(reports_, leases_, std::move(key));
  }
  std::unique_ptr<Session> MakeSession(std::string key, uint64_t idle_ms, std::string id) {
    return std::make_unique<Session>(Session::Parts{connection_, reports_, leases_, users_},
                                     std::move(key), idle_ms, std::move(id));
  }
  InFlightCalls& in_flight() { return in_flight_; }
  CallRecord Conclude(OpenCall& open);

  pid_t pid() const { return connection_.pid(); }
  void Abandon() { connection_.Abandon(); }  // see Connection
  bool broken() const { return connection_.broken(); }
  // Of the host, from 0 to 1, as of the latest lease.
  double pressure() const { return connection_.pressure(); }

 private:
  void OnMessage(uint64_t request, ReceivedMessage received) override REQUIRES(connection_lock);
  void OnLost() override REQUIRES(connection_lock) { reports_.OnConnectionLost(); }

  Connection connection_;
  Reports reports_{connection_};
  UserProcesses users_{connection_};
  HeldLeases leases_;
  InFlightCalls in_flight_{connection_, reports_, leases_};
};

}  // namespace hutch
