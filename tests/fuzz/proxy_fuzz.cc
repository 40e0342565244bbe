// SPDX-License-Identifier: Apache-2.0

// libFuzzer over what proxy-aware programs of a cell ask for: HTTP CONNECT, absolute form and
// SOCKS5 give a host in normal form with a port, or a Refusal that can be sent, the same in
// whatever pieces they come.
//
// An input is u8 the size of the pieces (0: one), bytes.
#include <cstdlib>
#include <string>

#include "agent/egress/proxy.h"
#include "agent/egress/vet.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/choices.h"
#include "tests/fuzz/request_mutator.h"
#include "tests/fuzz/tally.h"
#include "wire/egress_rules.h"

namespace {

constexpr size_t kMostReply = 64;  // SOCKS says ten bytes at a time

void RequireNormal(const hutch::ProxyRequest& asked) {
  const hutch::Authority& to = asked.to;
  if (to.port == 0) std::abort();
  if (to.literal) {
    const auto address = hutch::ParseIp(to.host);
    if (!address || address->ToText() != to.host) std::abort();
  } else if (hutch::NormalHost(to.host) != to.host) {
    std::abort();
  }
  // As it is written in records, rules and Host headers, it is read as itself.
  const auto again = hutch::ParseAuthority(hutch::HostPort(to.host, to.port));
  if (!again || again->host != to.host || again->port != to.port || again->literal != to.literal)
    std::abort();
  if (asked.head && !asked.head->target.starts_with('/')) std::abort();
}

struct Asked {
  std::string text;
  bool granted = false;
};

Asked Ask(std::string_view bytes, size_t piece) {
  Asked asked;
  hutch::ProxyReader reader;
  std::string reply;
  try {
    for (size_t at = 0; at < bytes.size() && !asked.granted; at += piece) {
      std::string_view in = bytes.substr(at, piece);
      if (const auto request = reader.Feed(in, &reply)) {
        RequireNormal(*request);
        asked.granted = true;
        asked.text = hutch::HostPort(request->to.host, request->to.port) +
                     (request->head ? request->head->ToText() : std::string()) + reader.Granted();
      } else if (!in.empty()) {
        std::abort();
      }
    }
  } catch (const hutch::Error& error) {
    if (error.code() != hutch::Code::kProtocol) std::abort();
    const hutch::Refusal refusal = hutch::RefusalOf(error);
    asked.text = "!" + refusal.reason + reader.Refused(refusal);
  }
  if (reply.size() > kMostReply) std::abort();
  asked.text += reply;
  return asked;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::string bytes =
      size == 0 ? "" : std::string(reinterpret_cast<const char*>(data) + 1, size - 1);
  char piece = size == 0 ? '\0' : static_cast<char>(data[0]);
  if (hutch::Choices choose(~seed); choose.OneIn(16)) piece = static_cast<char>(choose.Below(32));
  hutch::MutateAsked(bytes, seed);
  return hutch::PutMutant(piece + bytes, data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const Asked whole = Ask(bytes, SIZE_MAX);
  if (data[0] != 0 && Ask(bytes, data[0]).text != whole.text) std::abort();
  tally.Count(whole.granted);
  return 0;
}
