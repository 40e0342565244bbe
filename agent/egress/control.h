// SPDX-License-Identifier: Apache-2.0

// The messages between agent and egress process, over one SEQPACKET socket: JSON, with descriptors
// beside it. Both ends are ours, but the egress process may have been taken over by what it reads:
// its messages are bounded and hold text only.
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

// egress process -> agent, as the first message
struct EgressHello {
  std::string token;  // the one that it was started with
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
struct CallOver {  // its forwarder may end from now on: the agent ends its container
  uint64_t cell = 0;
};
struct CloseCell {
  uint64_t cell = 0;
};
struct EgressPing {};  // answered at once, with the same message
// egress process -> agent, once for each CloseCell
struct CellClosed {
  uint64_t cell = 0;
  std::vector<NetworkRecord> records;
};

// egress process -> agent, unless CallOver or CloseCell of that cell came before
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
// nullopt: no message has arrived. Throws kUnavailable when the socket is closed, kProtocol on
// anything that is not a message.
std::optional<ReceivedEgress> ReceiveEgress(int fd);

}  // namespace hutch
