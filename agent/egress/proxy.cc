// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/proxy.h"

#include <algorithm>

#include "agent/egress/vet.h"

namespace hutch {
namespace {

constexpr char kSocks5 = 5;
constexpr char kSocksConnect = 1;
constexpr char kSocksV4 = 1;
constexpr char kSocksName = 3;
constexpr char kSocksV6 = 4;
constexpr char kNoAuthentication = 0;

// Reply codes of SOCKS5 (RFC 1928).
enum SocksReply : char {
  kGranted = 0,
  kNotAllowed = 2,
  kHostUnreachable = 4,
  kNoSuchCommand = 7,
  kNoSuchAddress = 8
};

std::string SocksAnswer(char reply) { return {kSocks5, reply, 0, kSocksV4, 0, 0, 0, 0, 0, 0}; }

uint8_t Byte(char c) { return static_cast<uint8_t>(c); }

}  // namespace

std::optional<ProxyRequest> ProxyReader::Feed(std::string_view& in, std::string* reply) {
  if (kind_ == Kind::kUnknown && !in.empty()) {
    kind_ = in.front() == kSocks5 ? Kind::kSocksGreeting : Kind::kHttp;
    if (kind_ == Kind::kHttp && (in.front() < 'A' || in.front() > 'z'))
      ThrowRefusal({400, "this is neither HTTP nor SOCKS5"});
  }
  return kind_ == Kind::kHttp ? FeedHttp(in) : FeedSocks(in, reply);
}

std::optional<ProxyRequest> ProxyReader::FeedHttp(std::string_view& in) {
  if (!head_.Feed(in)) return std::nullopt;
  RequestHead head = head_.Take();
  if (head.method == "CONNECT") {
    const auto to = ParseAuthority(head.target);
    if (!to) ThrowRefusal({400, "CONNECT needs host:port"});
    if (head.body != RequestHead::Body::kNone) ThrowRefusal({400, "CONNECT has no body"});
    return ProxyRequest{*to, std::nullopt};
  }
  constexpr std::string_view kScheme = "http://";
  if (!head.target.starts_with(kScheme))
    ThrowRefusal({400, "a proxy needs CONNECT host:port or http://host/path"});
  const std::string_view rest = std::string_view(head.target).substr(kScheme.size());
  const size_t end = rest.find_first_of("/?#");
  const auto to = ParseAuthority(rest.substr(0, end), 80);
  if (!to) ThrowRefusal({400, "the target does not name a valid host"});
  std::string path(end == rest.npos ? std::string_view() : rest.substr(end));
  if (!path.starts_with('/')) path.insert(path.begin(), '/');
  head.target = path;
  return ProxyRequest{*to, std::move(head)};
}

std::optional<ProxyRequest> ProxyReader::FeedSocks(std::string_view& in, std::string* reply) {
  while (!in.empty()) {
    text_ += in.front();
    in.remove_prefix(1);
    const size_t size = text_.size();
    if (kind_ == Kind::kSocksGreeting) {
      if (size < 2 || size < 2u + Byte(text_[1])) continue;
      const bool open = std::find(text_.begin() + 2, text_.end(), kNoAuthentication) != text_.end();
      reply->append({kSocks5, open ? kNoAuthentication : '\xff'});
      if (!open) ThrowRefusal({0, "SOCKS is available without authentication only"});
      text_.clear();
      kind_ = Kind::kSocksRequest;
      continue;
    }
    if (text_[0] != kSocks5) ThrowRefusal({0, "this is not SOCKS5"});
    if (size < 5) continue;
    const char command = text_[1];
    const char type = text_[3];
    if (command != kSocksConnect) {
      reply->append(SocksAnswer(kNoSuchCommand));
      ThrowRefusal({0, "the only SOCKS command is CONNECT"});
    }
    size_t address = 0;
    if (type == kSocksV4) address = 4;
    if (type == kSocksV6) address = 16;
    if (type == kSocksName) address = 1u + Byte(text_[4]);
    if (address == 0 || text_[2] != 0) {
      reply->append(SocksAnswer(kNoSuchAddress));
      ThrowRefusal({0, "the SOCKS address is not valid"});
    }
    if (size < 4 + address + 2) continue;
    std::string host;
    if (type == kSocksName) {
      host = text_.substr(5, address - 1);
      // Some programs send addresses as names. ParseAuthority() reads them; IPv6 needs brackets.
      if (const auto ip = ParseIp(host); ip && ip->v6) host = InAuthority(host);
    } else {
      IpAddress ip;
      ip.v6 = type == kSocksV6;
      std::copy_n(text_.begin() + 4, address, reinterpret_cast<char*>(ip.bytes.data()));
      host = InAuthority(ip.ToText());
    }
    const unsigned port = Byte(text_[4 + address]) * 256u + Byte(text_[5 + address]);
    text_.clear();
    const auto to = ParseAuthority(host.append(1, ':').append(std::to_string(port)));
    if (!to) ThrowRefusal({400, "SOCKS was not given a hostname"});
    return ProxyRequest{*to, std::nullopt};
  }
  return std::nullopt;
}

std::string ProxyReader::Granted() const {
  return kind_ == Kind::kHttp ? "HTTP/1.1 200 Connection established\r\n\r\n"
                              : SocksAnswer(kGranted);
}

std::string ProxyReader::Refused(const Refusal& refusal) const {
  if (refusal.status == 0) return {};
  if (kind_ == Kind::kSocksRequest)
    return SocksAnswer(refusal.status == 502 || refusal.status == 504 ? kHostUnreachable
                                                                      : kNotAllowed);
  return HttpAnswer(refusal);
}

}  // namespace hutch
