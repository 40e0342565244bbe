// SPDX-License-Identifier: Apache-2.0

// The one port on which the cell's proxy-aware programs ask for hosts: HTTP CONNECT, HTTP requests
// in absolute form, and SOCKS5 with names, told apart by the first byte. One reader for each, and
// one for all of their names (ParseAuthority).
//
// A value of one thread. Nothing here does I/O.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "agent/egress/http.h"

namespace hutch {

struct ProxyRequest {
  Authority to;
  std::optional<RequestHead> head;  // of a request in absolute form: its target is the path already
};

class ProxyReader {
 public:
  // Takes from the front of `in`, appends to `reply` what the client is told meanwhile. Throws a
  // Refusal.
  std::optional<ProxyRequest> Feed(std::string_view& in, std::string* reply);
  bool empty() const { return text_.empty() && head_.empty(); }

  // What the client is told of its request; of one in absolute form only refusals.
  std::string Granted() const;
  std::string Refused(const Refusal& refusal) const;

 private:
  enum class Kind { kUnknown, kHttp, kSocksGreeting, kSocksRequest };
  std::optional<ProxyRequest> FeedHttp(std::string_view& in);
  std::optional<ProxyRequest> FeedSocks(std::string_view& in, std::string* reply);

  Kind kind_ = Kind::kUnknown;
  std::string text_;  // of SOCKS: at most 262 bytes
  HeadReader head_;
};

}  // namespace hutch
