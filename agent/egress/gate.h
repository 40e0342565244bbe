// SPDX-License-Identifier: Apache-2.0

// What a cell says on one connection, checked before any of it goes on to the server: that TLS
// names the host it was opened for, that HTTP requests do, and, for a host with a secret, the
// requests with its header added.
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
  std::string host;          // normal form or an address
  uint16_t port = 0;         // that the cell meant
  bool literal = false;      // `host` is an address, which no TLS client names: it may name none
  bool one_request = false;  // what came to the proxy in absolute form: more may be for others
  std::vector<SecretRule> secrets{};  // of this host
  // Whether a rule allows this name, for a connection to an address.
  std::function<bool(const std::string& name)> allows{};
};

class Gate {
 public:
  explicit Gate(GateOptions options) : options_(std::move(options)) {}

  // Appends to `out` what of `in`, and of what was held back before, may go on. Throws a Refusal;
  // named() is then the host that the cell meant, if it said one.
  void Feed(std::string_view in, std::string* out);
  // As the first request, read already. Its target is a path.
  void FeedHead(RequestHead head, std::string* out);
  // What the server answered, until open() or no longer awaits_answer().
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
  std::string held_;  // of a hello, or behind a request that asks for another protocol
  HeadReader reader_;
  std::optional<BodyReader> body_;
  bool open_ = false;
  bool any_request_ = false;
  bool awaits_answer_ = false;
  std::string answer_;
  std::string named_;
};

// Whether a secret that is meant for `prefixes` goes with a request for `target`. A prefix ends at
// a "/" of the path; a path that a server may take for another one (dots, escapes of "/" or of a
// dot, empty segments) matches none.
bool PathMatches(std::string_view target, const std::vector<std::string>& prefixes);

}  // namespace hutch
