// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/gate.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "agent/egress/sni.h"
#include "wire/egress_rules.h"

namespace hutch {
namespace {

constexpr char kSwitching[] = "HTTP/1.1 101";

bool Matches(const SecretRule& secret, const RequestHead& head) {
  const bool method = secret.methods.empty() ||
                      std::ranges::find(secret.methods, head.method) != secret.methods.end();
  return method && PathMatches(head.target, secret.paths);
}

std::string InLowerCase(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

// A header's name as servers read it that pass headers on as variables: to them "X_Forwarded_Host"
// and "X-Forwarded-Host" are the same.
std::string NormalName(const std::string& name) {
  std::string normal = InLowerCase(name);
  std::ranges::replace(normal, '_', '-');
  return normal;
}

// Removes headers that are meant for a proxy, and those by which a proxy states who asked or for
// which host: some servers believe these instead of Host.
void RemoveProxyHeaders(RequestHead* head) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"proxy-authorization", "proxy-connection", "proxy-authenticate", "x-real-ip", "forwarded",
       "via", "x-host", "x-original-host", "x-http-host-override"});
  std::erase_if(head->headers, [&](const auto& header) {
    const std::string name = NormalName(header.first);
    return name.starts_with("x-forwarded-") || std::ranges::find(kNames, name) != kNames.end();
  });
}

// Whether some servers follow this header rather than the request's first line: it can change the
// method or the path.
bool OverridesFirstLine(const std::string& normal_name) {
  if (normal_name == "destination") return true;  // of COPY and MOVE
  if (!normal_name.starts_with("x-")) return false;
  for (const char* part : {"method", "override", "rewrite", "original-ur", "original-path"}) {
    if (normal_name.find(part) != normal_name.npos) return true;
  }
  return std::ranges::any_of(std::to_array<std::string_view>({"-url", "-uri", "-path", "-prefix"}),
                             [&](std::string_view end) { return normal_name.ends_with(end); });
}

bool HasLimits(const SecretRule& secret) {
  return !secret.paths.empty() || !secret.methods.empty();
}

bool IsUpgradeToWebSocket(const RequestHead& head) {
  const bool one = std::ranges::count_if(head.headers, [](const auto& header) {
                     return NormalName(header.first) == "upgrade";
                   }) == 1;
  const std::string* to = head.Find("upgrade");
  return one && to != nullptr && InLowerCase(*to) == "websocket" && head.method == "GET" &&
         head.minor_version == 1;
}

// Refuses what a server, or a proxy in front of it, could read differently than Gate: as a request
// to another host, or as another protocol than HTTP/1.1.
void CheckOneMeaning(const RequestHead& head) {
  const std::string method = InLowerCase(head.method);
  if (method == "connect" || method == "pri")
    ThrowRefusal({405, "the method " + head.method + " asks for something other than this host"});
  if (head.target == "*" && head.method != "OPTIONS")
    ThrowRefusal({400, "the request's target is not a path"});
  for (const auto& [name, value] : head.headers) {
    if (NormalName(name) == "http2-settings")
      ThrowRefusal({400, "HTTP/2 is not supported: its requests could name another host"});
    if (NormalName(name) != "connection") continue;
    // A proxy between us and the server removes the headers named here, Host among them.
    std::string_view left = value;
    while (!left.empty()) {
      const size_t comma = left.find(',');
      std::string_view word = left.substr(0, comma);
      left.remove_prefix(comma == left.npos ? left.size() : comma + 1);
      while (!word.empty() && (word.front() == ' ' || word.front() == '\t')) word.remove_prefix(1);
      while (!word.empty() && (word.back() == ' ' || word.back() == '\t')) word.remove_suffix(1);
      const std::string lower = InLowerCase(std::string(word));
      if (lower.empty() || lower == "close" || lower == "keep-alive" || lower == "upgrade" ||
          lower == "te")
        continue;
      ThrowRefusal({400, "Connection names something other than close, keep-alive, upgrade, te"});
    }
  }
}

}  // namespace

bool PathMatches(std::string_view target, const std::vector<std::string>& prefixes) {
  if (prefixes.empty()) return true;
  const std::string_view path = target.substr(0, target.find_first_of("?#"));
  const std::string lower = InLowerCase(std::string(path));
  for (const char* trick : {"/../", "/./", "//", "%2e", "%2f", "%5c", "\\", ";", "%00"}) {
    if (lower.find(trick) != lower.npos) return false;
  }
  if (lower.ends_with("/..") || lower.ends_with("/.")) return false;
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) {
    if (prefix.ends_with("/*")) prefix.remove_suffix(1);
    if (!path.starts_with(prefix)) return false;
    return prefix.ends_with('/') || path.size() == prefix.size() || path[prefix.size()] == '/';
  });
}

void Gate::Feed(std::string_view in, std::string* out) {
  if (open_) {
    out->append(in);
  } else if (options_.kind == GateOptions::Kind::kHttp) {
    FeedRequests(in, out);
  } else {
    FeedHello(in, out);
  }
}

void Gate::FeedHello(std::string_view in, std::string* out) {
  held_ += in;
  const ClientHello hello = ReadClientHello(held_);
  switch (hello.state) {
    case ClientHello::State::kMore:
      return;
    case ClientHello::State::kNotTls:
      if (options_.kind == GateOptions::Kind::kTls)
        ThrowRefusal({0, "what was sent to port 443 is not TLS"});
      break;
    case ClientHello::State::kMalformed:
      ThrowRefusal({0, "the TLS hello is malformed"});
    case ClientHello::State::kNoName:
      if (!options_.literal) ThrowRefusal({0, "the TLS hello names no host (SNI)"});
      break;
    case ClientHello::State::kName:
      if (options_.literal ? options_.allows && options_.allows(hello.name)
                           : hello.name == options_.host)
        break;
      named_ = hello.name;
      ThrowRefusal({0, "TLS to " + options_.host + " names another host (SNI)"});
  }
  open_ = true;
  out->append(held_);
  held_.clear();
}

void Gate::FeedRequests(std::string_view in, std::string* out) {
  while (!in.empty()) {
    if (awaits_answer_) {
      if (held_.size() + in.size() > kMaxRequestHead)
        ThrowRefusal({400, "too much was sent before the server took the other protocol"});
      held_ += in;
      return;
    }
    if (body_ && !body_->done()) {
      const size_t passed = body_->Feed(in);
      out->append(in.substr(0, passed));
      in.remove_prefix(passed);
      continue;
    }
    if (options_.one_request && any_request_) return;  // what follows may be meant for another host
    if (!reader_.Feed(in)) return;
    RequestHead head = reader_.Take();
    if (!head.target.starts_with('/') && head.target != "*")
      ThrowRefusal({400, "the request's target is not a path"});
    const std::string* host = head.Find("host");
    if (host == nullptr || !HostIs(*host, options_.host, options_.port)) {
      const auto named = host == nullptr ? std::nullopt : ParseAuthority(*host, options_.port);
      if (named) named_ = named->host;
      ThrowRefusal({421, "the request to " + options_.host + " is for another host"});
    }
    PassHead(std::move(head), out);
  }
}

void Gate::FeedHead(RequestHead head, std::string* out) { PassHead(std::move(head), out); }

void Gate::PassHead(RequestHead head, std::string* out) {
  const bool first = !std::exchange(any_request_, true);
  body_.emplace(head);
  RemoveProxyHeaders(&head);
  if (options_.one_request) {
    for (const char* name : {"connection", "keep-alive", "upgrade", "http2-settings", "te", "host"})
      head.Remove(name);
    head.headers.emplace(head.headers.begin(), "Host",
                         options_.port == kHttpPort ? InAuthority(options_.host)
                                                    : HostPort(options_.host, options_.port));
    head.headers.emplace_back("Connection", "close");
  } else if (head.upgrade) {
    // Nothing goes on until the answer says whether what follows is still HTTP. For a later request
    // it would be unclear which answer is the one to it.
    if (!IsUpgradeToWebSocket(head))
      ThrowRefusal({400, "the only protocol that Upgrade may ask for is websocket, with GET"});
    if (!first || head.body != RequestHead::Body::kNone)
      ThrowRefusal(
          {400, "only the first request may ask for another protocol, and must have no body"});
    awaits_answer_ = true;
  }
  CheckOneMeaning(head);
  if (!options_.secrets.empty()) AddSecrets(&head);
  out->append(head.ToText());
}

void Gate::AddSecrets(RequestHead* head) const {
  const std::string method = InLowerCase(head->method);
  if (method == "trace" || method == "track")
    ThrowRefusal({405, "the answer to " + head->method + " would contain the secret"});
  if (std::ranges::any_of(options_.secrets, HasLimits)) {
    for (const auto& [name, value] : head->headers) {
      if (OverridesFirstLine(NormalName(name)))
        ThrowRefusal(
            {400, name + " could make the server do something that the secret is not meant for"});
    }
  }
  head->Remove("host");
  head->headers.emplace(head->headers.begin(), "Host", options_.host);
  for (const SecretRule& secret : options_.secrets) {
    if (!Matches(secret, *head)) continue;
    head->Remove(InLowerCase(secret.header));
    head->headers.emplace_back(secret.header, secret.value);
  }
}

void Gate::FeedAnswer(std::string_view bytes, std::string* out) {
  if (!awaits_answer_) return;
  const std::string_view want(kSwitching);
  answer_.append(bytes.substr(0, want.size() - answer_.size()));
  if (answer_.size() < want.size() && want.starts_with(answer_)) return;
  awaits_answer_ = false;
  open_ = answer_ == want;
  const std::string held = std::exchange(held_, {});
  Feed(held, out);
}

}  // namespace hutch
