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
// through one buffer that all streams share. Only what a slow reader leaves is kept, at most one
// buffer in each direction, and nothing more is read meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/egress/gate.h"
#include "agent/egress/limits.h"
#include "agent/egress/proxy.h"
#include "agent/egress/resolve.h"
#include "agent/egress/tls.h"
#include "loop/loop.h"
#include "wire/egress.h"
#include "wire/fd.h"
#include "wire/values.h"

namespace hutch {

struct EgressPolicy {
  std::vector<EgressRule> rules;
  std::vector<SecretRule> secrets;
  EgressPlan plan;
  std::vector<Cidr> named;  // networks of the rules

  // Throws kInvalidArgument.
  EgressPolicy(const std::vector<std::string>& allow_network, std::vector<SecretRule> secrets);
  std::vector<SecretRule> SecretsOf(const std::string& host) const;
  // Whether the policy allows the cell to ask for this. Decided before anything is resolved.
  bool MayAsk(const Authority& to) const;
  bool NamesOwnAddress(const IpAddress& address) const;
};

// What all streams of a process share.
struct EgressShared {
  Loop& loop;
  Resolver& resolver;
  const TlsContext* tls = nullptr;  // nullptr: there are no certificates; `tls_error` says why
  std::string tls_error;
  EgressLimits limits;
  uint16_t tls_port = kHttpsPort;  // for hosts with a secret; another one only in tests
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
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual const EgressPolicy& policy() const = 0;
    virtual bool HandOver(uint64_t stream, Fd end) = 0;  // false: the cell is closing
    virtual void Reject(uint64_t stream) = 0;
    virtual void Note(NetworkRecord record) = 0;
    virtual bool Spend(uint64_t bytes) = 0;  // false: the cell has used up its bytes
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

  void Decide(Authority to);
  void StartLookup();
  void OnResolved(Resolved resolved);
  void Dial();
  void OnServerEvent(uint32_t events);
  void OnConnected();
  void Handshake();
  void BeginRelay();
  void OnCellEvent(uint32_t events);
  void ReadRequest();
  void Pump();
  bool PumpToServer();
  bool PumpToCell();
  bool FlushToServer();
  bool FlushToCell();
  void Watch();
  bool HandOver();
  void Refuse(const Refusal& refusal, bool denied, std::string host = {});
  void Answer(const std::string& text);
  void Finish();

  EgressShared& shared_;
  Owner& owner_;
  const uint64_t id_;
  State state_ = State::kAsking;
  Fd cell_;
  Fd server_;
  std::unique_ptr<TlsClient> tls_;
  bool tls_wants_write_ = false;
  bool handed_over_ = false;
  bool cell_watched_ = false;
  bool server_watched_ = false;
  uint32_t cell_events_ = 0;
  uint32_t server_events_ = 0;
  bool cell_eof_ = false;
  bool server_eof_ = false;
  bool server_shut_ = false;
  bool cell_shut_ = false;

  std::optional<ProxyReader> proxy_;
  std::optional<RequestHead> head_;
  std::string early_;  // what followed the request to the proxy
  Authority to_;
  bool with_secret_ = false;
  std::vector<IpAddress> addresses_;
  size_t next_address_ = 0;
  std::string last_error_;
  std::optional<Gate> gate_;
  std::string to_server_;
  std::string to_cell_;

  NetworkRecord record_;
  bool recorded_ = false;  // record_ has to be noted when the stream ends
  Clock::time_point begun_;
  Clock::time_point attempt_begun_;
  Clock::time_point active_;
  std::optional<Clock::time_point> unfinished_since_;
};

}  // namespace hutch
