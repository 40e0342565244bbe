// SPDX-License-Identifier: Apache-2.0

#include "tests/fuzz/request_mutator.h"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fuzz/choices.h"

namespace hutch {
namespace {

constexpr std::string_view kNameAlphabet = "abcxyzABCXYZ0123456789-.._";
constexpr std::string_view kVisible =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/?#&=%.:;@[]!$'()*+,~-_";

constexpr std::string_view kHosts[] = {"api.example.org",
                                       "a",
                                       "EXAMPLE.org.",
                                       "xn--bcher-kva.example",
                                       "192.0.2.1",
                                       "[2001:db8::1]",
                                       "[::ffff:192.0.2.1]",
                                       "[::]",
                                       "127.1",
                                       "0x7f.0.0.1",
                                       "localhost",
                                       "a_b.example",
                                       "1.2.3.4.5"};
constexpr std::string_view kUsualHosts[] = {"api.example.org", "192.0.2.1", "[2001:db8::1]"};
constexpr std::string_view kPorts[] = {"443", "80", "1", "65535", "8080", "0", "65536", "0443", ""};
constexpr std::string_view kMethods[] = {"GET", "POST", "HEAD", "OPTIONS", "PROPFIND", "get"};
constexpr std::string_view kHeaders[] = {"Accept: */*",
                                         "Content-Length: 4",
                                         "Content-Length: 0",
                                         "Transfer-Encoding: chunked",
                                         "Connection: Upgrade",
                                         "Upgrade: websocket",
                                         "Proxy-Connection: keep-alive",
                                         "Proxy-Authorization: Basic eDp5",
                                         "Host: b.example.org",
                                         "X:",
                                         "X-Y: \t z \t"};

// Of SOCKS5 as it goes over the wire: the greeting and the request are one run of bytes here.
struct Socks {
  std::string methods;
  std::string head;  // version, command, reserved
  char type = 0;
  std::string address;  // a name without its length
  std::string port;
  std::string rest;
};

struct Http {
  std::string method;
  std::string before;  // the scheme, of the absolute form
  std::string host;
  std::string port;  // with its colon, if there is one
  std::string path;
  std::string version;
  std::vector<std::string> headers;
  std::string rest;
};

std::string_view Cut(std::string_view& text, std::string_view before) {
  const size_t end = text.find(before);
  const std::string_view cut = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + before.size());
  return cut;
}

std::optional<Http> ParseHttp(std::string_view bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  if (end == bytes.npos) return std::nullopt;
  Http asked;
  asked.rest = bytes.substr(end + 4);
  bytes = bytes.substr(0, end);
  std::string_view line = Cut(bytes, "\r\n");
  asked.method = Cut(line, " ");
  std::string_view target = Cut(line, " ");
  asked.version = line;
  constexpr std::string_view kScheme = "http://";
  if (target.starts_with(kScheme)) {
    asked.before = kScheme;
    target.remove_prefix(kScheme.size());
  }
  const std::string_view authority = target.substr(0, target.find_first_of("/?#"));
  asked.path = target.substr(authority.size());
  const size_t colon = authority.rfind(':');
  const bool ported = colon != authority.npos && authority.find(']', colon) == authority.npos;
  asked.host = authority.substr(0, ported ? colon : authority.npos);
  if (ported) asked.port = authority.substr(colon);
  while (!bytes.empty()) asked.headers.emplace_back(Cut(bytes, "\r\n"));
  return asked;
}

std::string Text(const Http& asked) {
  std::string text = asked.method + " " + asked.before + asked.host + asked.port + asked.path +
                     " " + asked.version + "\r\n";
  for (const std::string& header : asked.headers) text += header + "\r\n";
  return text + "\r\n" + asked.rest;
}

std::optional<Socks> ParseSocks(std::string_view bytes) {
  bool ok = true;
  const auto take = [&](size_t size) {
    ok = ok && size <= bytes.size();
    if (!ok) return std::string();
    std::string taken(bytes.substr(0, size));
    bytes.remove_prefix(size);
    return taken;
  };
  const auto counted = [&] {
    const std::string size = take(1);
    return take(ok ? static_cast<uint8_t>(size[0]) : 0);
  };
  Socks asked;
  take(1);
  asked.methods = counted();
  asked.head = take(3);
  const std::string type = take(1);
  if (!ok) return std::nullopt;
  asked.type = type[0];
  asked.address = asked.type == 3 ? counted() : take(asked.type == 1 ? 4 : 16);
  asked.port = take(2);
  if (!ok) return std::nullopt;
  asked.rest = bytes;
  return asked;
}

std::string Text(const Socks& asked) {
  const auto counted = [](const std::string& text) {
    return static_cast<char>(text.size()) + text;
  };
  return '\5' + counted(asked.methods) + asked.head + asked.type +
         (asked.type == 3 ? counted(asked.address) : asked.address) + asked.port + asked.rest;
}

Http FreshHttp(bool connect) {
  if (connect) return {"CONNECT", "", "api.example.org", ":443", "", "HTTP/1.1", {"Host: x"}, ""};
  return {"GET", "http://", "api.example.org", "", "/v1?x", "HTTP/1.1", {"Host: x"}, ""};
}

Socks FreshSocks() {
  return {std::string(1, '\0'), {"\5\1\0", 3}, '\3', "api.example.org", "\x01\xbb", ""};
}

void MutateHost(std::string& host, Choices& choose) {
  if (choose.OneIn(3)) {
    host = choose.Of(kUsualHosts);
  } else if (choose.OneIn(6)) {
    host = choose.Of(kHosts);
  } else {
    choose.Tweak(host, host.starts_with('[') ? "0123456789abcdef:.[]" : kNameAlphabet);
  }
  if (choose.OneIn(24)) host = std::string(choose.Below(300), 'a');
  if (choose.OneIn(24)) host += "." + host;
}

void Mutate(Http& asked, Choices& choose) {
  std::vector<std::string>& headers = asked.headers;
  const bool connect = asked.method == "CONNECT";
  switch (choose.Below(10)) {
    case 0:
      if (choose.OneIn(4)) {
        asked.port = ":" + std::string(choose.Of(kPorts));
      } else {
        asked.port = ":" + std::to_string(1 + choose.Below(66000));
      }
      return;
    case 1:
      if (connect && !choose.OneIn(4)) return MutateHost(asked.host, choose);
      return choose.Tweak(asked.path, kVisible);
    case 2:
      if (connect && !choose.OneIn(4)) return MutateHost(asked.host, choose);
      asked.method = choose.Of(kMethods);
      return;
    case 3:
      headers.emplace_back(choose.Of(kHeaders));
      return;
    case 4:
      if (headers.size() > 1 || choose.OneIn(4)) headers.resize(headers.size() / 2);
      return;
    case 5:
      if (headers.empty()) return;
      return choose.Tweak(headers[choose.Below(headers.size())], kVisible);
    case 6:
      if (choose.OneIn(2)) asked.version = choose.OneIn(2) ? "HTTP/1.0" : "HTTP/1.1";
      asked.rest += choose.Byte();
      return;
    default:
      MutateHost(asked.host, choose);
  }
}

void Mutate(Socks& asked, Choices& choose) {
  switch (choose.Below(8)) {
    case 0:
      asked.methods = std::string(choose.Below(5), choose.Byte()) +
                      (choose.OneIn(8) ? "" : std::string(1, '\0'));
      return;
    case 1:
      asked.port = {choose.Byte(), choose.Byte()};
      return;
    case 2:
      asked.rest += choose.Byte();
      return;
    case 3: {  // another kind of address
      asked.type = choose.Of(std::string_view("\1\3\4"));
      asked.address = asked.type == 1   ? std::string("\xc0\0\2\1", 4)
                      : asked.type == 4 ? std::string(16, choose.Byte())
                                        : std::string(choose.Of(kHosts));
      return;
    }
    case 4:
      if (!asked.head.empty() && choose.OneIn(4)) asked.head[choose.Below(3)] = choose.Byte();
      [[fallthrough]];
    default:
      if (asked.type != 3) {
        asked.address[choose.Below(asked.address.size())] = choose.Byte();
      } else {
        MutateHost(asked.address, choose);
        if (asked.address.size() > 255) asked.address.resize(255);
        if (choose.OneIn(2) && asked.address.starts_with('['))  // no brackets are wanted here
          asked.address = asked.address.substr(1, asked.address.find(']') - 1);
      }
  }
}

}  // namespace

void MutateAsked(std::string& bytes, uint32_t seed) {
  Choices choose(seed);
  if (choose.OneIn(24)) return MutateBlindly(bytes);
  if (choose.OneIn(12)) {
    bytes = choose.OneIn(2) ? Text(FreshSocks()) : Text(FreshHttp(choose.OneIn(2)));
  }
  if (auto socks = bytes.starts_with('\5') ? ParseSocks(bytes) : std::nullopt) {
    for (size_t i = 1 + choose.Below(2); i > 0; --i) Mutate(*socks, choose);
    bytes = Text(*socks);
  } else if (auto http = ParseHttp(bytes)) {
    for (size_t i = 1 + choose.Below(2); i > 0; --i) Mutate(*http, choose);
    bytes = Text(*http);
  } else if (!choose.OneIn(4)) {
    bytes = choose.OneIn(2) ? Text(FreshSocks()) : Text(FreshHttp(choose.OneIn(2)));
  } else {
    MutateBlindly(bytes);
  }
}

}  // namespace hutch
