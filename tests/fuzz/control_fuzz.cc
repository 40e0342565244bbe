// libFuzzer over what the egress process tells the agent, which may be hostile, for its parsers
// face strangers: a message or an error of the protocol.
//
// An input is the JSON text.
#include <cstdlib>
#include <string>
#include <variant>

#include "agent/egress/control.h"
#include "tests/fuzz/tally.h"
#include "wire/channel.h"
#include "wire/error.h"
#include "wire/memfd.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  auto [agents, theirs] = hutch::MakeSocketPair();
  const hutch::Fd memfd = hutch::MakeSealedMemfd("fuzz", data, size);
  const int fd = memfd.get();
  char mark = 'J';
  const iovec part{&mark, 1};
  if (hutch::SendDatagram(theirs.get(), {&part, 1}, {&fd, 1}) != hutch::SendStatus::kSent)
    std::abort();
  bool accepted = false;
  try {
    const auto received = hutch::ReceiveEgress(agents.get());
    if (!received) std::abort();
    accepted = true;
    // What was read can be said again, and is the same then.
    if (!hutch::SendEgress(theirs.get(), received->message)) std::abort();
    const auto again = hutch::ReceiveEgress(agents.get());
    if (!again || again->message.index() != received->message.index()) std::abort();
  } catch (const hutch::Error& error) {
    if (error.code() != hutch::Code::kProtocol) std::abort();
  }
  tally.Count(accepted);
  return 0;
}
