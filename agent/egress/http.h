// SPDX-License-Identifier: Apache-2.0

// Reads HTTP/1.1 requests strictly: what two readers could read in two ways is refused, so that the
// server sees what was checked here. The bytes are untrusted; everything is bounded.
//
// Values of one thread. Nothing here does I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/error.h"

namespace hutch {

inline constexpr size_t kMaxRequestHead = 64 * 1024;
inline constexpr size_t kMaxHeaders = 200;

// Why something is refused, and the status for an HTTP client (0: the connection is cut off).
struct Refusal {
  int status = 0;
  std::string reason;
};
// Thrown as an Error of kProtocol that carries the status.
[[noreturn]] void ThrowRefusal(const Refusal& refusal);
Refusal RefusalOf(const Error& error);

struct RequestHead {
  enum class Body { kNone, kLength, kChunked };

  std::string method;
  std::string target;
  int minor_version = 1;  // HTTP/1.x
  std::vector<std::pair<std::string, std::string>>
      headers;  // as written; values without blanks around
  Body body = Body::kNone;
  uint64_t length = 0;   // of a kLength body
  bool upgrade = false;  // asks for another protocol on this connection

  // The value of the first header of that name (in lower case); nullptr: none.
  const std::string* Find(std::string_view lower_name) const;
  void Remove(std::string_view lower_name);
  std::string ToText() const;
};

// Collects bytes until a head is whole.
class HeadReader {
 public:
  // Takes what belongs to the head from the front of `in`; true when it is whole. Throws a Refusal.
  bool Feed(std::string_view& in);
  RequestHead Take();  // REQUIRES: Feed returned true; ready for the next
  bool empty() const { return text_.empty(); }

 private:
  std::string text_;
};

// Follows a body to its end.
class BodyReader {
 public:
  explicit BodyReader(const RequestHead& head);
  // How many bytes at the front of `in` belong to the body. Throws a Refusal.
  size_t Feed(std::string_view in);
  bool done() const { return state_ == State::kDone; }

 private:
  enum class State { kSize, kSizeEnd, kData, kDataCr, kDataLf, kEndCr, kEndLf, kDone };
  State state_;
  bool chunked_;
  uint64_t left_ = 0;
  int digits_ = 0;
};

// Reads "host:port"; the port may be missing if there is a default. nullopt: it is not that. The
// host is in normal form (wire/egress_rules.h), or an address in its shortest form without
// brackets.
struct Authority {
  std::string host;
  uint16_t port = 0;
  bool literal = false;  // an address
};
std::optional<Authority> ParseAuthority(std::string_view text, uint16_t default_port = 0);

// The host as an authority has it: IPv6 in brackets.
std::string InAuthority(std::string_view host);
std::string HostPort(std::string_view host, uint16_t port);

// Whether a Host header names this host, with this port or none.
bool HostIs(std::string_view header, std::string_view host, uint16_t port);

// The proxy's own answer. The connection has to be closed after it.
std::string HttpAnswer(const Refusal& refusal);

}  // namespace hutch
