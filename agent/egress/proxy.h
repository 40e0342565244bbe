// SPDX-License-Identifier: Apache-2.0

// Reads what a cell's proxy-aware programs ask for on the proxy's port: HTTP CONNECT, HTTP requests
// in absolute form, or SOCKS5 with names; the first byte says which. Each has a reader of its own,
// and all their hosts are read by ParseAuthority().
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
  std::optional<RequestHead> head;  // for a request in absolute form: its target is only the path
};

class ProxyReader {
 public:
  // Takes from the front of `in`, and appends to `reply` what has to be sent to the client before
  // the request is complete. Throws a Refusal.
  std::optional<ProxyRequest> Feed(std::string_view& in, std::string* reply);
  bool empty() const { return text_.empty() && head_.empty(); }

  // The answers to the request. One in absolute form gets no answer that it is granted.
  std::string Granted() const;
  std::string Refused(const Refusal& refusal) const;

 private:
  enum class Kind { kUnknown, kHttp, kSocksGreeting, kSocksRequest };
  std::optional<ProxyRequest> FeedHttp(std::string_view& in);
  std::optional<ProxyRequest> FeedSocks(std::string_view& in, std::string* reply);

  Kind kind_ = Kind::kUnknown;
  std::string text_;  // for SOCKS: at most 262 bytes
  HeadReader head_;
};

}  // namespace hutch
