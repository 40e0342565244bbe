// SPDX-License-Identifier: Apache-2.0

// What agent and egress process tell each other, over one SEQPACKET socket: JSON, and descriptors
// beside it. Both ends are ours; the egress process's answers are bounded and read as text only,
// for its parsers face strangers.
//
// Stateless functions; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "wire/fd.h"
#include "wire/values.h"

namespace hutch {

// egress process -> agent, first of all
struct EgressHello {
  std::string token;  // that it was started with
};
// agent -> egress process
struct SetPolicy {
  uint64_t id = 0;
  std::vector<std::string> allow_network;
  std::vector<SecretRule> secrets;
};
struct ForgetPolicy {
  uint64_t id = 0;
};
struct AddCell {  // with one descriptor: our end of its egress channel
  uint64_t cell = 0;
  uint64_t policy = 0;
};
struct CallOver {  // its forwarder may end from now on: we end what it is in
  uint64_t cell = 0;
};
struct CloseCell {
  uint64_t cell = 0;
};
struct EgressPing {};  // answered at once, by the same
// egress process -> agent, once for each CloseCell
struct CellClosed {
  uint64_t cell = 0;
  std::vector<NetworkRecord> records;
};

// egress process -> agent: before CallOver and CloseCell of that cell
struct ForwarderGone {
  uint64_t cell = 0;
};

using EgressMessage = std::variant<EgressHello, SetPolicy, ForgetPolicy, AddCell, CallOver,
                                   CloseCell, EgressPing, CellClosed, ForwarderGone>;

// False when the socket is full. Throws kUnavailable when it is closed.
bool SendEgress(int fd, const EgressMessage& message, int descriptor = -1);

struct ReceivedEgress {
  EgressMessage message;
  Fd descriptor;  // of an AddCell
};
// std::nullopt: nothing is there. Throws kUnavailable when it is closed, kProtocol on anything else
// than a message.
std::optional<ReceivedEgress> ReceiveEgress(int fd);

}  // namespace hutch
