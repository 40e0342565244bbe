// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/http.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

// The status that a head is refused with; 0: it is taken.
int Status(const std::string& text, RequestHead* head = nullptr) {
  try {
    HeadReader reader;
    std::string_view in = text;
    if (!reader.Feed(in)) return -1;
    const RequestHead got = reader.Take();
    if (head != nullptr) *head = got;
    return 0;
  } catch (const Error& error) {
    return RefusalOf(error).status;
  }
}
int StatusOf(const std::string& headers) {
  return Status("GET / HTTP/1.1\r\nHost: a.org\r\n" + headers + "\r\n");
}

TEST(RequestHead, IsReadByteByByteAndLeavesWhatFollows) {
  const std::string text =
      "POST /x?y=%0d%0a HTTP/1.1\r\nHost: A.org\r\nX-A:  b \r\nContent-Length: 3\r\n\r\nabcGET";
  HeadReader reader;
  size_t used = 0;
  for (bool whole = false; !whole; ++used) {
    std::string_view in = std::string_view(text).substr(used, 1);
    whole = reader.Feed(in);
    ASSERT_TRUE(in.empty());
  }
  EXPECT_EQ(text.substr(used), "abcGET");
  const RequestHead head = reader.Take();
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.target, "/x?y=%0d%0a");
  EXPECT_EQ(*head.Find("x-a"), "b");
  EXPECT_EQ(head.body, RequestHead::Body::kLength);
  EXPECT_EQ(head.length, 3u);
  EXPECT_TRUE(reader.empty());
}

TEST(RequestHead, RefusesWhatTwoReadersCouldReadInTwoWays) {
  EXPECT_EQ(StatusOf(""), 0);
  EXPECT_EQ(StatusOf("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(StatusOf("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"), 400);
  EXPECT_EQ(StatusOf("Content-Length: 3\r\nContent-Length: 3\r\n"), 400);
  EXPECT_EQ(StatusOf("Content-Length: 3, 3\r\n"), 400);
  EXPECT_EQ(StatusOf("Content-Length: +3\r\n"), 400);
  EXPECT_EQ(StatusOf("Content-Length: -3\r\n"), 400);
  EXPECT_EQ(StatusOf("Content-Length: 0x3\r\n"), 400);
  EXPECT_EQ(StatusOf("Content-Length: 9999999999999999999\r\n"), 400);
  EXPECT_EQ(StatusOf("Content-Length:\r\n"), 400);
  EXPECT_EQ(StatusOf("Transfer-Encoding: gzip, chunked\r\n"), 501);
  EXPECT_EQ(StatusOf("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(StatusOf("Transfer-Encoding: xchunked\r\n"), 501);
  EXPECT_EQ(StatusOf("Transfer-Encoding : chunked\r\n"), 400);
  EXPECT_EQ(StatusOf("Transfer_Encoding: chunked\r\n"), 400);
  EXPECT_EQ(StatusOf("Content_Length: 3\r\n"), 400);
  EXPECT_EQ(StatusOf("X: a\r\n folded\r\n"), 400);
  EXPECT_EQ(StatusOf("X: a\r\n\tfolded\r\n"), 400);
  EXPECT_EQ(StatusOf("X: a\nY: b\r\n"), 400);
  EXPECT_EQ(StatusOf("X: a\rY: b\r\n"), 400);
  EXPECT_EQ(StatusOf(std::string("X: a\0b\r\n", 8)), 400);
  EXPECT_EQ(StatusOf("X\r\n"), 400);
  EXPECT_EQ(StatusOf(": x\r\n"), 400);
  EXPECT_EQ(StatusOf("Host: b.org\r\n"), 400);
  EXPECT_EQ(Status("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(Status("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(Status("GET / HTTP/1.0\r\n\r\n"), 0);
  EXPECT_EQ(Status("GET /\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(Status("GET  / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(Status("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(Status("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(Status("G@T / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(Status("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(Status("GET / HTTP/1.1\nHost: a\n\n"), 400);
}

TEST(RequestHead, BoundsTheHeadAndItsHeaders) {
  EXPECT_EQ(StatusOf("X: " + std::string(1 << 20, 'a') + "\r\n"), 431);
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "X: a\r\n";
  EXPECT_EQ(StatusOf(many), 431);
  many.resize(6 * kMaxHeaders);
  EXPECT_EQ(StatusOf(many), 431);
  many.resize(6 * (kMaxHeaders - 1));
  EXPECT_EQ(StatusOf(many), 0);
}

// What is left behind the body; "!": it is refused.
std::string Rest(const std::string& body, bool chunked, size_t step) {
  RequestHead head;
  Status(std::string("POST / HTTP/1.1\r\nHost: a\r\n") +
             (chunked ? "Transfer-Encoding: chunked" : "Content-Length: 5") + "\r\n\r\n",
         &head);
  BodyReader reader(head);
  size_t used = 0;
  try {
    while (!reader.done() && used < body.size()) {
      const std::string_view part = std::string_view(body).substr(used, step);
      used += reader.Feed(part);
    }
  } catch (const Error&) {
    return "!";
  }
  return reader.done() ? body.substr(used) : "?";
}

TEST(RequestBody, EndsWhereItsFramingSays) {
  for (const size_t step : {1u, 2u, 3u, 100u}) {
    EXPECT_EQ(Rest("helloGET", false, step), "GET");
    EXPECT_EQ(Rest("5\r\nhello\r\n0\r\n\r\nGET", true, step), "GET");
    EXPECT_EQ(Rest("A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n", true, step), "");
    EXPECT_EQ(Rest("5\r\nhel", true, step), "?");
    for (const char* bad :
         {"-2\r\n", "\r\n", "5 \r\nhello", "5;x=y\r\nhello", "5\nhello", "5\r\nhelloX", "0x5\r\n",
          "fffffffffffffffff\r\n", "0\r\nX: y\r\n\r\n", " 5\r\n"}) {
      EXPECT_EQ(Rest(bad, true, step), "!") << bad;
    }
  }
}

TEST(Authority, IsHostAndPortAndNothingElse) {
  const auto read = [](std::string_view text) {
    const auto got = ParseAuthority(text);
    return got ? got->host + " " + std::to_string(got->port) : std::string("-");
  };
  EXPECT_EQ(read("allowed.org:443"), "allowed.org 443");
  EXPECT_EQ(read("ALLOWED.org.:443"), "allowed.org 443");
  EXPECT_EQ(read("1.2.3.4:80"), "1.2.3.4 80");
  EXPECT_EQ(read("[2001:DB8::1]:80"), "2001:db8::1 80");
  for (const std::string text : {"",
                                 "allowed.org",
                                 "allowed.org:",
                                 "allowed.org:0",
                                 "allowed.org:65536",
                                 "allowed.org:+443",
                                 "allowed.org:443 ",
                                 " allowed.org:443",
                                 "allowed.org:443:80",
                                 "allowed.org:0443",
                                 "allowed.org:99999999999",
                                 ".allowed.org:443",
                                 "allowed..org:443",
                                 "allowed.org..:443",
                                 "allowed@evil:443",
                                 "evil#@allowed:443",
                                 "allowed\\@evil:443",
                                 "allowed%2eevil:443",
                                 "allowed:443@evil:443",
                                 "a_b.org:443",
                                 "-a.org:443",
                                 "[allowed.org]:443",
                                 "[1.2.3.4]:80",
                                 "2001:db8::1:80",
                                 "[fe80::1%eth0]:80",
                                 "127.1:80",
                                 "0x7f.1:80",
                                 "2130706433:80",
                                 "0177.0.0.1:80",
                                 "alloweđ.org:443",
                                 "allowed.org\r\nx:443"}) {
    EXPECT_EQ(read(text), "-") << text;
  }
  EXPECT_EQ(read(std::string("evil\0.allowed.org:443", 21)), "-");
}

TEST(Authority, OfAHostHeaderMayLeaveThePortOut) {
  EXPECT_TRUE(HostIs("A.org", "a.org", 80));
  EXPECT_TRUE(HostIs("a.org:80", "a.org", 80));
  EXPECT_FALSE(HostIs("a.org:81", "a.org", 80));
  EXPECT_FALSE(HostIs("b.org", "a.org", 80));
  EXPECT_FALSE(HostIs("a.org@b.org", "a.org", 80));
  EXPECT_FALSE(HostIs("", "a.org", 80));
}

}  // namespace
}  // namespace hutch
