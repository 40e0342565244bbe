// SPDX-License-Identifier: Apache-2.0

// Checks what a cell sends on one connection before any of it goes on to the server: TLS and HTTP
// requests must name the host that the connection was opened for. For a host with a secret it adds
// the secret's header to the requests.
//
// A value of one thread. Nothing here does I/O.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/egress/http.h"
#include "wire/values.h"

namespace hutch {

struct GateOptions {
  enum class Kind {
    kTls,     // port 443: a ClientHello, or nothing
    kHttp,    // port 80, and every connection to which a secret is added
    kEither,  // any other port: TLS is checked where the first byte is TLS's, the rest passes
  };
  Kind kind = Kind::kEither;
  std::string host;      // normal form or an address
  uint16_t port = 0;     // the one that the cell asked for
  bool literal = false;  // `host` is an address: the TLS hello need not name a host
  // Only one request passes. It came to the proxy in absolute form, and a next one on the same
  // connection could be for another host.
  bool one_request = false;
  std::vector<SecretRule> secrets{};  // of this host
  // Whether a rule allows this name, for a connection to an address.
  std::function<bool(const std::string& name)> allows{};
};

class Gate {
 public:
  explicit Gate(GateOptions options) : options_(std::move(options)) {}

  // Appends to `out` what may go on of `in` and of what was held back before. Throws a Refusal;
  // named() is then the host that the cell named instead, if any.
  void Feed(std::string_view in, std::string* out);
  // The same for a first request that was read already. Its target is a path.
  void FeedHead(RequestHead head, std::string* out);
  // Takes the server's answer while awaits_answer().
  void FeedAnswer(std::string_view bytes, std::string* out);

  bool open() const { return open_; }  // everything passes from here on
  bool awaits_answer() const { return awaits_answer_; }
  bool unfinished() const { return !held_.empty() || !reader_.empty(); }
  bool one_request() const { return options_.one_request; }
  const std::string& named() const { return named_; }

 private:
  void FeedHello(std::string_view in, std::string* out);
  void FeedRequests(std::string_view in, std::string* out);
  void PassHead(RequestHead head, std::string* out);
  void AddSecrets(RequestHead* head) const;

  GateOptions options_;
  std::string held_;  // part of a hello, or what follows a request for another protocol
  HeadReader reader_;
  std::optional<BodyReader> body_;
  bool open_ = false;
  bool any_request_ = false;
  bool awaits_answer_ = false;
  std::string answer_;
  std::string named_;
};

// Whether a secret that is limited to `prefixes` goes with a request for `target`. A prefix ends at
// a "/" of the path. A path that a server may read as another one (dots, escapes of "/" or of a
// dot, empty segments) matches none.
bool PathMatches(std::string_view target, const std::vector<std::string>& prefixes);

}  // namespace hutch
