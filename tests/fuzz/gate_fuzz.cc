// SPDX-License-Identifier: Apache-2.0

// libFuzzer over the gate that a cell's bytes pass before they go to a server, read again on its
// other side as the server reads them: every request there is for the host that was allowed, a
// secret's header has the secret's value and goes where its paths and methods say, and TLS names
// the host. The same in whatever pieces the bytes come.
//
// An input is u8 how (the bits of kHow), u8 the size of the pieces (0: one), bytes.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "agent/egress/gate.h"
#include "agent/egress/sni.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/tally.h"

namespace {

using Kind = hutch::GateOptions::Kind;

constexpr char kHost[] = "api.example.org";
constexpr char kValue[] = "Bearer t0ps3cret";

enum kHow : unsigned {
  kTls = 1,
  kEither = 2,
  kSecret = 4,
  kSwitches = 8,  // the server takes another protocol
  kLiteral = 16,
  kOneRequest = 32,
};

hutch::GateOptions Options(unsigned how) {
  hutch::GateOptions options;
  options.kind = (how & kTls) != 0      ? Kind::kTls
                 : (how & kEither) != 0 ? Kind::kEither
                                        : Kind::kHttp;
  options.host = kHost;
  options.port = options.kind == Kind::kTls ? 443 : 80;
  if (options.kind == Kind::kHttp) {
    options.one_request = (how & kOneRequest) != 0;
    if ((how & kSecret) != 0)
      options.secrets = {{kHost, "Authorization", kValue, {"/v1/"}, {"GET", "POST"}}};
  } else {
    options.literal = (how & kLiteral) != 0;
    options.allows = [](const std::string& name) { return name == kHost; };
  }
  return options;
}

// The requests in `out`, as a server reads them.
void RequireRequestsForTheHost(std::string_view out, const hutch::GateOptions& options) {
  while (!out.empty()) {
    hutch::HeadReader reader;
    if (!reader.Feed(out)) std::abort();
    const hutch::RequestHead head = reader.Take();
    const std::string* host = head.Find("host");
    if (host == nullptr || !hutch::HostIs(*host, kHost, options.port)) std::abort();
    bool has = false;
    bool other = false;
    for (const auto& [name, value] : head.headers) {
      has |= value == kValue;
      std::string lower = name;
      std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
      other |= lower == "authorization" && value != kValue;
    }
    if (!options.secrets.empty()) {
      const hutch::SecretRule& secret = options.secrets[0];
      const bool wanted = hutch::PathMatches(head.target, secret.paths) &&
                          std::ranges::find(secret.methods, head.method) != secret.methods.end();
      if (has != wanted || (wanted && other)) std::abort();
    }
    hutch::BodyReader body(head);
    if (!body.done()) out.remove_prefix(body.Feed(out));
  }
}

struct Passed {
  std::string out;
  bool refused = false;
};

Passed Pass(std::string_view bytes, unsigned how, size_t piece) {
  Passed passed;
  hutch::Gate gate(Options(how));
  const auto answer = [&] {
    if (gate.awaits_answer())
      gate.FeedAnswer((how & kSwitches) != 0 ? "HTTP/1.1 101 Switching" : "HTTP/1.1 200 OK\r\n",
                      &passed.out);
  };
  size_t requests = 0;  // the bytes of `out` that are requests
  try {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      gate.Feed(bytes.substr(at, piece), &passed.out);
      answer();
      if (!gate.open()) requests = passed.out.size();
    }
  } catch (const hutch::Error& error) {
    if (error.code() != hutch::Code::kProtocol) std::abort();
    passed.refused = true;
    if (!gate.open()) requests = passed.out.size();
  }
  const hutch::GateOptions options = Options(how);
  if (options.kind == Kind::kHttp) {
    if (!gate.open())
      RequireRequestsForTheHost(std::string_view(passed.out).substr(0, requests), options);
    return passed;
  }
  // Nothing is changed, and nothing went before the hello was whole.
  if (!bytes.starts_with(passed.out)) std::abort();
  if (passed.out.empty()) return passed;
  hutch::ClientHello hello;
  for (size_t size = 1; size <= passed.out.size(); ++size) {
    hello = hutch::ReadClientHello(std::string_view(passed.out).substr(0, size));
    if (hello.state != hutch::ClientHello::State::kMore) break;
  }
  using State = hutch::ClientHello::State;
  const bool named = hello.state == State::kName && hello.name == kHost;
  const bool unnamed = hello.state == State::kNoName && options.literal;
  const bool plain = hello.state == State::kNotTls && options.kind == Kind::kEither;
  if (!named && !unnamed && !plain) std::abort();
  return passed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  if (size < 2) return 0;
  const unsigned how = data[0];
  const std::string_view bytes(reinterpret_cast<const char*>(data + 2), size - 2);
  const Passed whole = Pass(bytes, how, SIZE_MAX);
  if (data[1] != 0) {
    const Passed pieces = Pass(bytes, how, data[1]);
    // A hello with more behind it is refused as one piece, and passes where its end comes alone.
    // Of a body that is refused, how much went on before depends on the pieces.
    if (Options(how).kind == Kind::kHttp &&
        (pieces.refused != whole.refused || !pieces.out.starts_with(whole.out) ||
         (!whole.refused && pieces.out != whole.out)))
      std::abort();
  }
  tally.Count(!whole.out.empty());
  return 0;
}
