// SPDX-License-Identifier: Apache-2.0

// The two sides of a stream and what passes between them: from the cell through the gate, from the
// server as it comes, both within the bytes that the cell may spend.
//
// Belongs to the loop's thread. Nothing here waits: what a side does not take is kept, at most one
// buffer of it, and nothing more is read from the other side meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/egress/gate.h"
#include "agent/egress/tls.h"
#include "loop/loop.h"
#include "wire/clock.h"
#include "wire/fd.h"
#include "wire/values.h"

namespace hutch {

// What a cell may send and receive, in all its streams.
class ByteBudget {
 public:
  virtual ~ByteBudget() = default;
  virtual bool Spend(uint64_t bytes) = 0;  // false: it is used up
};

class Relay {
 public:
  struct End {
    Fd fd{};
    bool watched = false;  // the loop watches it, for `events`
    uint32_t events = 0;
    bool eof = false;       // it sends no more
    bool shut = false;      // no more is sent to it
    std::string pending{};  // to be sent to it; while there is any, the other side is not read

    void Unwatch(Loop& loop);
    bool Flush();  // sends what the socket takes; false: it is broken
  };
  struct Activity {
    Clock::time_point last;                               // when bytes came
    std::optional<Clock::time_point> unfinished_since{};  // of a request whose head is not whole
  };

  // All outlive it. `buffer` is used within a call only. `record` gets the bytes of each direction,
  // and why TLS broke off.
  Relay(std::vector<char>& buffer, ByteBudget& budget, NetworkRecord& record);

  End& cell() { return cell_; }
  End& server() { return server_; }
  Activity& activity() { return activity_; }
  const std::optional<Gate>& gate() const { return gate_; }  // there is one after Begin()

  void StartTls(const TlsContext& context, const std::string& host);
  TlsStatus Handshake();
  uint32_t HandshakeEvents() const;  // those of the server to wait for
  std::string tls_error() const { return tls_->error(); }

  // What was read of the cell before goes first: `head`, if there is one, then `early`. Throws a
  // Refusal.
  void Begin(GateOptions options, std::optional<RequestHead> head, const std::string& early);
  // Relays in both directions, as far as possible without waiting. False: it is over. Throws a
  // Refusal.
  bool Pump();
  uint32_t CellEvents() const;  // to wait for until the next Pump()
  uint32_t ServerEvents() const;

  void Close(Loop& loop);

 private:
  bool PumpToServer();  // false: it is over
  bool PumpToCell();
  bool FlushToServer();
  void Spend(ssize_t bytes);  // throws a Refusal

  std::vector<char>& buffer_;
  ByteBudget& budget_;
  NetworkRecord& record_;
  End cell_;
  End server_;
  std::unique_ptr<TlsClient> tls_;
  bool tls_wants_write_ = false;
  std::optional<Gate> gate_;
  Activity activity_;
};

}  // namespace hutch
