// SPDX-License-Identifier: Apache-2.0

// One connection of a cell through the proxy: it is asked for, decided, resolved, vetted, dialled,
// checked and relayed.
//
// Belongs to the loop's thread. A Stream belongs to its Owner, which drops it in Ended().
//
// Theory of operation. `cell` is our end of a Unix stream socket whose other end the forwarder
// relays; `server` is the TCP connection, with TLS of our own on it for a host with a secret. A
// connection to a named host is handed to the forwarder once the server is connected, so that the
// program inside sees an earlier failure as a refused connection. One to the proxy's port, or to a
// secret's host, is handed over at once: there a failure can be reported in HTTP or SOCKS. Bytes go
// through one buffer that all streams share (relay.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/egress/limits.h"
#include "agent/egress/policy.h"
#include "agent/egress/proxy.h"
#include "agent/egress/relay.h"
#include "agent/egress/resolve.h"
#include "agent/egress/tls.h"
#include "loop/loop.h"
#include "wire/egress_rules.h"
#include "wire/fd.h"
#include "wire/values.h"

namespace hutch {

// What all streams of a process share.
struct EgressShared {
  Loop& loop;
  Resolver& resolver;
  const TlsContext* tls = nullptr;  // nullptr: there are no certificates; `tls_error` says why
  std::string tls_error;
  EgressLimits limits;
  std::vector<char> buffer = std::vector<char>(kRelayBuffer);
  size_t descriptors = kMostDescriptors;  // the limit of this process
  size_t cells = 0;                       // each is a channel
  size_t streams = 0;                     // of all cells

  // How many more streams all cells together can have.
  size_t FreeStreams() const {
    const size_t used = kOwnDescriptors + cells + 2 * resolver.running() + kOfStream * streams;
    return used >= descriptors ? 0 : (descriptors - used) / kOfStream;
  }
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  // The cell that has the stream.
  class Owner : public ByteBudget {
   public:
    virtual const EgressPolicy& policy() const = 0;
    virtual bool HandOver(uint64_t stream, Fd end) = 0;  // false: the cell is closing
    virtual void Reject(uint64_t stream) = 0;
    virtual void Note(NetworkRecord record) = 0;
    // The cell's lookups, also those of streams that are gone.
    virtual const std::shared_ptr<Resolver::Asker>& lookups() = 0;
    virtual void Ended(uint64_t stream) = 0;  // destroys it, unless it is in use
  };

  Stream(EgressShared& shared, Owner& owner, uint64_t id);
  ~Stream();

  void OpenTarget(const EgressTarget& target);
  void OpenProxy();
  void Tick(Clock::time_point now);
  void Close();  // notes the record, and does not call Ended()

 private:
  enum class State { kAsking, kResolving, kConnecting, kHandshake, kRelay, kAnswering, kClosed };

  // The vetted addresses, tried one after another.
  struct Dialling {
    std::vector<IpAddress> addresses{};
    size_t next = 0;
    std::string error{};        // of the last attempt
    Clock::time_point begun{};  // when the last attempt began
  };

  void Decide(Authority to);
  void StartLookup();
  void OnResolved(const Resolved& resolved);
  void Dial();
  void OnServerEvent(uint32_t events);
  void OnConnected();
  void Handshake();
  void BeginRelay();
  void OnCellEvent(uint32_t events);
  void ReadRequest();
  void Pump();
  void Watch();
  bool HandOver();
  void Refuse(const Refusal& refusal, bool denied, std::string host = {});
  void Answer(const std::string& text);
  void Finish();

  EgressShared& shared_;
  Owner& owner_;
  const uint64_t id_;
  State state_ = State::kAsking;
  NetworkRecord record_;
  bool recorded_ = false;  // record_ has to be noted when the stream ends
  Relay relay_;
  bool handed_over_ = false;
  std::optional<ProxyReader> proxy_;
  std::optional<RequestHead> head_;
  std::string early_;  // what followed the request to the proxy
  Authority to_;
  bool with_secret_ = false;
  Dialling dialling_;
  Clock::time_point begun_;
};

}  // namespace hutch
