// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/proxy.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

// "host port" of what is asked for, with "+path" in absolute form; "!" and the status where it is
// refused, "?" where it is not whole. Fed byte by byte.
std::string Ask(const std::string& text, std::string* reply = nullptr,
                ProxyReader* reader = nullptr) {
  ProxyReader own;
  if (reader == nullptr) reader = &own;
  std::string sent;
  std::string answer = "?";
  try {
    for (const char& c : text) {
      std::string_view in(&c, 1);
      if (const auto request = reader->Feed(in, &sent)) {
        answer = request->to.host + " " + std::to_string(request->to.port);
        if (request->head) answer += " +" + request->head->target;
        break;
      }
    }
  } catch (const Error& error) {
    answer = "!" + std::to_string(RefusalOf(error).status);
  }
  if (reply != nullptr) *reply = sent;
  return answer;
}

std::string Socks(const std::string& name, char command = 1) {
  return std::string("\x05\x01\0", 3) +
         std::string{5, command, 0, 3, static_cast<char>(name.size())} + name +
         std::string{1, '\xbb'};
}

TEST(Proxy, ReadsConnect) {
  const auto connect = [](const std::string& to) {
    return Ask("CONNECT " + to + " HTTP/1.1\r\nHost: whatever\r\n\r\n");
  };
  EXPECT_EQ(connect("A.org.:443"), "a.org 443");
  EXPECT_EQ(connect("[2001:db8::1]:22"), "2001:db8::1 22");
  for (const char* bad :
       {"a.org", "a.org:0", "a.org:65536", "a.org:+443", "a@b:443", "b#@a:443", "a%2eb:443",
        "http://a.org:443/", "a:443@b:443", ".a.org:443", "127.1:80"})
    EXPECT_EQ(connect(bad), "!400") << bad;
  EXPECT_EQ(Ask("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"), "!400");
  EXPECT_EQ(Ask("CONNECT a:1 HTTP/1.1\nHost: a\n\n"), "!400");
}

TEST(Proxy, ReadsRequestsInAbsoluteForm) {
  const auto get = [](const std::string& url) {
    return Ask("GET " + url + " HTTP/1.1\r\nHost: other.org\r\n\r\n");
  };
  EXPECT_EQ(get("http://A.org/x?y#z"), "a.org 80 +/x?y#z");
  EXPECT_EQ(get("http://a.org:8080"), "a.org 8080 +/");
  EXPECT_EQ(get("http://a.org?q"), "a.org 80 +/?q");
  for (const char* bad : {"http://user@a.org/", "http://user:p@a.org/", "http://a.org:80:90/",
                          "http:///x", "https://a.org/", "ftp://a.org/", "/", "HTTP://a.org/",
                          "http://a.org\\@b.org/", "http://127.1/"})
    EXPECT_EQ(get(bad), "!400") << bad;
}

TEST(Proxy, ReadsSocksWithNamesAndAddresses) {
  std::string reply;
  EXPECT_EQ(Ask(Socks("A.org"), &reply), "a.org 443");
  EXPECT_EQ(reply, std::string("\x05\0", 2));
  EXPECT_EQ(Ask(std::string("\x05\x02\x02\0\x05\x01\0\x01\x7f\0\0\x01\0\x50", 14)), "127.0.0.1 80");
  EXPECT_EQ(Ask(Socks("127.0.0.1")), "127.0.0.1 443");
  EXPECT_EQ(Ask(Socks("::1")), "::1 443");
}

TEST(Proxy, RefusesNamesThatTwoReadersCouldReadInTwoWays) {
  for (const std::string& name :
       {std::string("evil\0.allowed.org", 17), std::string("a.org\r\nx"), std::string("a.org:80"),
        std::string("a@b"), std::string(""), std::string("a b"), std::string("127.1"),
        std::string("a_b.org"), std::string(255, 'a')})
    EXPECT_EQ(Ask(Socks(name)), "!400") << name;
}

TEST(Proxy, SpeaksNoOtherCommandVersionOrAuthentication) {
  std::string reply;
  EXPECT_EQ(Ask(Socks("a.org", 2), &reply), "!0");  // BIND
  EXPECT_EQ(reply.substr(2, 2), "\x05\x07");
  EXPECT_EQ(Ask(Socks("a.org", 3)), "!0");  // UDP ASSOCIATE
  EXPECT_EQ(Ask(std::string("\x05\x01\x02", 3), &reply), "!0");
  EXPECT_EQ(reply, "\x05\xff");
  EXPECT_EQ(Ask(std::string("\x05\x01\0\x05\x01\0\x05", 7) + "xx", &reply), "!0");
  EXPECT_EQ(Ask(std::string("\x04\x01\0\x50\x01\x02\x03\x04\0\r\n", 11)), "!400");  // SOCKS4
}

TEST(Proxy, AnswersInTheLanguageItWasAskedIn) {
  ProxyReader socks;
  Ask(Socks("a.org"), nullptr, &socks);
  EXPECT_EQ(socks.Granted().substr(0, 2), std::string("\x05\0", 2));
  EXPECT_EQ(socks.Refused({403, "no"}).substr(0, 2), "\x05\x02");
  EXPECT_EQ(socks.Refused({502, "no"}).substr(0, 2), "\x05\x04");
  ProxyReader http;
  Ask("CONNECT a.org:443 HTTP/1.1\r\nHost: a\r\n\r\n", nullptr, &http);
  EXPECT_TRUE(http.Granted().starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(http.Refused({403, "no"}).starts_with("HTTP/1.1 403 Forbidden\r\n"));
}

}  // namespace
}  // namespace hutch
