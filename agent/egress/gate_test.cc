// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/gate.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

using Kind = GateOptions::Kind;

// What passes of `in`; "!" and the status where it is refused.
std::string Pass(Gate& gate, std::string_view in) {
  std::string out;
  try {
    gate.Feed(in, &out);
  } catch (const Error& error) {
    return "!" + std::to_string(RefusalOf(error).status);
  }
  return out;
}
std::string PassNew(GateOptions options, std::string_view in) {
  Gate gate(std::move(options));
  return Pass(gate, in);
}

GateOptions Http() { return {.kind = Kind::kHttp, .host = "a.org", .port = 80}; }
GateOptions WithSecret(std::vector<std::string> paths = {}, std::vector<std::string> methods = {}) {
  GateOptions options = Http();
  options.secrets = {{"a.org", "Authorization", "Bearer s3cret", paths, methods}};
  return options;
}
// A hello that names "a.org", made by an ordinary client.
std::string HelloTo(std::string name) {
  const auto number = [](size_t value, int size) {
    std::string text;
    for (int i = size - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  std::string extensions;
  if (!name.empty()) {
    name = std::string(1, '\0') + number(name.size(), 2) + name;
    name = number(name.size(), 2) + name;
    extensions = number(0, 2) + number(name.size(), 2) + name;
  }
  std::string body = number(0x0303, 2) + std::string(32, 'r') + number(0, 1) + number(2, 2) +
                     "\x13\x01" + number(1, 1) + number(0, 1) + number(extensions.size(), 2) +
                     extensions;
  body = number(1, 1) + number(body.size(), 3) + body;
  return number(22, 1) + number(0x0301, 2) + number(body.size(), 2) + body;
}

TEST(Gate, LetsTlsThroughThatNamesItsHost) {
  Gate gate({.kind = Kind::kTls, .host = "a.org", .port = 443});
  const std::string hello = HelloTo("A.org");
  std::string passed;
  for (const char c : hello) {
    EXPECT_FALSE(gate.open());
    passed += Pass(gate, {&c, 1});
  }
  EXPECT_EQ(passed, hello);
  EXPECT_TRUE(gate.open());
  EXPECT_EQ(Pass(gate, "anything"), "anything");
}

TEST(Gate, CutsTlsOffThatNamesAnotherHostOrNone) {
  const GateOptions tls{.kind = Kind::kTls, .host = "a.org", .port = 443};
  Gate gate(tls);
  EXPECT_EQ(Pass(gate, HelloTo("b.org")), "!0");
  EXPECT_EQ(gate.named(), "b.org");
  EXPECT_EQ(PassNew(tls, HelloTo("")), "!0");
  EXPECT_EQ(PassNew(tls, HelloTo("a.org.")), "!0");
  EXPECT_EQ(PassNew(tls, HelloTo("x.a.org")), "!0");
  EXPECT_EQ(PassNew(tls, "GET / HTTP/1.1\r\n"), "!0");
}

TEST(Gate, ChecksTlsOnOtherPortsAndLetsTheRestThrough) {
  const GateOptions either{.kind = Kind::kEither, .host = "a.org", .port = 5432};
  EXPECT_EQ(PassNew(either, "\x01hello"), "\x01hello");
  EXPECT_EQ(PassNew(either, HelloTo("a.org")), HelloTo("a.org"));
  EXPECT_EQ(PassNew(either, HelloTo("b.org")), "!0");
  EXPECT_EQ(PassNew(either, HelloTo("")), "!0");
}

TEST(Gate, LetsTlsToAnAddressNameNothingOrWhatARuleAllows) {
  const GateOptions literal{.kind = Kind::kTls,
                            .host = "10.0.0.1",
                            .port = 443,
                            .literal = true,
                            .allows = [](const std::string& name) { return name == "a.org"; }};
  EXPECT_EQ(PassNew(literal, HelloTo("")), HelloTo(""));
  EXPECT_EQ(PassNew(literal, HelloTo("a.org")), HelloTo("a.org"));
  EXPECT_EQ(PassNew(literal, HelloTo("b.org")), "!0");
}

TEST(Gate, ChecksTheHostOfEveryRequest) {
  const std::string good = "GET /x HTTP/1.1\r\nHost: A.org:80\r\n\r\n";
  Gate gate(Http());
  EXPECT_EQ(Pass(gate, good + good), good + good);
  EXPECT_EQ(Pass(gate, "GET /x HTTP/1.1\r\nHost: b.org\r\n\r\n"), "!421");
  EXPECT_EQ(gate.named(), "b.org");
  EXPECT_EQ(PassNew(Http(), "GET /x HTTP/1.1\r\nHost: a.org:81\r\n\r\n"), "!421");
  EXPECT_EQ(PassNew(Http(), "GET http://b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n"), "!400");
  EXPECT_EQ(PassNew(Http(), "CONNECT b.org:80 HTTP/1.1\r\nHost: a.org\r\n\r\n"), "!400");
  EXPECT_EQ(PassNew(Http(), "SSH-2.0-x\r\n\r\n"), "!400");
}

TEST(Gate, TakesNoBodyForARequest) {
  const std::string smuggled = "GET / HTTP/1.1\r\nHost: b.org\r\n\r\n";
  const std::string head =
      "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: " + std::to_string(smuggled.size()) +
      "\r\n\r\n";
  Gate gate(Http());
  EXPECT_EQ(Pass(gate, head + smuggled), head + smuggled);
  EXPECT_EQ(Pass(gate, smuggled), "!421");
}

TEST(Gate, AddsASecretInPlaceOfTheCellsOwnHeader) {
  Gate gate(WithSecret());
  EXPECT_EQ(
      Pass(gate,
           "GET /x HTTP/1.1\r\nHost: a.org\r\nAUTHORIZATION: mine\r\nAuthorization: too\r\n"
           "Proxy-Authorization: x\r\nX-Forwarded-For: y\r\nAccept: */*\r\n\r\n"),
      "GET /x HTTP/1.1\r\nHost: a.org\r\nAccept: */*\r\nAuthorization: Bearer s3cret\r\n\r\n");
  EXPECT_EQ(Pass(gate, "GET /y HTTP/1.1\r\nHost: a.org\r\n\r\n"),
            "GET /y HTTP/1.1\r\nHost: a.org\r\nAuthorization: Bearer s3cret\r\n\r\n");
}

TEST(Gate, KeepsASecretToItsPathsAndMethods) {
  const auto has = [](const GateOptions& options, const std::string& line) {
    return PassNew(options, line + " HTTP/1.1\r\nHost: a.org\r\n\r\n").find("s3cret") !=
           std::string::npos;
  };
  const GateOptions some = WithSecret({"/v1", "/two/"}, {"GET"});
  EXPECT_TRUE(has(some, "GET /v1"));
  EXPECT_TRUE(has(some, "GET /v1/x?y=/../"));
  EXPECT_TRUE(has(some, "GET /two/"));
  EXPECT_FALSE(has(some, "POST /v1"));
  EXPECT_FALSE(has(some, "get /v1"));
  for (const char* target :
       {"/", "/v2", "/v12", "/V1", "/v1/../admin", "/v1/%2e%2e/admin", "/v1/..%2fadmin",
        "/v1//admin", "/v1/./x", "/v1/..", "/v1\\..\\admin", "/v1/..;/admin", "/two"}) {
    EXPECT_FALSE(has(some, std::string("GET ") + target)) << target;
  }
  EXPECT_TRUE(has(WithSecret({"/v1/*"}), "GET /v1/x"));
}

TEST(Gate, PassesOneRequestOfAbsoluteForm) {
  GateOptions options = Http();
  options.one_request = true;
  options.port = 8080;
  HeadReader reader;
  std::string_view in =
      "POST /x HTTP/1.1\r\nHost: evil.org\r\nConnection: keep-alive\r\nProxy-Connection: x\r\n"
      "Proxy-Authorization: p\r\nVia: v\r\nContent-Length: 2\r\n\r\n";
  ASSERT_TRUE(reader.Feed(in));
  Gate gate(options);
  std::string out;
  gate.FeedHead(reader.Take(), &out);
  EXPECT_EQ(out,
            "POST /x HTTP/1.1\r\nHost: a.org:8080\r\nContent-Length: 2\r\nConnection: "
            "close\r\n\r\n");
  EXPECT_EQ(Pass(gate, "abGET /next HTTP/1.1\r\n"), "ab");
  EXPECT_EQ(Pass(gate, "GET /next HTTP/1.1\r\n"), "");
}

TEST(Gate, OpensForAnotherProtocolWhenTheServerTakesIt) {
  const std::string upgrade =
      "GET /ws HTTP/1.1\r\nHost: a.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
  const std::string next = "GET / HTTP/1.1\r\nHost: b.org\r\n\r\n";
  for (const bool taken : {true, false}) {
    Gate gate(Http());
    EXPECT_EQ(Pass(gate, upgrade + next), upgrade);
    EXPECT_TRUE(gate.awaits_answer());
    std::string out;
    const std::string answer = taken ? "HTTP/1.1 101 Switching" : "HTTP/1.1 200 OK";
    const auto feed = [&] {
      for (const char& c : answer) gate.FeedAnswer({&c, 1}, &out);
    };
    if (taken) {
      feed();
      EXPECT_EQ(out, next);
      EXPECT_TRUE(gate.open());
    } else {
      EXPECT_THROW(feed(), Error);
      EXPECT_EQ(out, "");
    }
  }
  Gate gate(Http());
  Pass(gate, "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n");
  EXPECT_EQ(Pass(gate, upgrade), "!400");
}

TEST(Gate, OpensForNoProtocolButWebSocket) {
  const auto asked = [](const std::string& headers, const std::string& line = "GET /") {
    return PassNew(Http(), line + " HTTP/1.1\r\nHost: a.org\r\n" + headers + "\r\n");
  };
  for (const std::string headers :
       {"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        "Connection: Upgrade\r\nUpgrade: h2c\r\n", "Upgrade: h2c\r\n", "Upgrade: H2C\r\n",
        "Upgrade: websocket, h2c\r\n", "Upgrade: h2c, websocket\r\n",
        "Upgrade: websocket\r\nUpgrade: h2c\r\n", "Upgrade: h2c\r\nUpgrade: websocket\r\n",
        "Upgrade: TLS/1.0\r\n", "Upgrade: HTTP/2.0\r\n", "Upgrade: websocket/13\r\n",
        "Upgrade:\r\n", "Connection: HTTP2-Settings\r\n", "HTTP2-Settings: AAMAAABk\r\n",
        "HTTP2_Settings: AAMAAABk\r\n"}) {
    EXPECT_EQ(asked(headers), "!400") << headers;
  }
  const std::string websocket = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n";
  EXPECT_TRUE(asked(websocket).starts_with("GET /"));
  EXPECT_EQ(asked(websocket, "POST /"), "!400");
  EXPECT_EQ(PassNew(Http(), "GET / HTTP/1.0\r\nHost: a.org\r\n" + websocket + "\r\n"), "!400");
  // Without the question there is no other protocol either, whatever the server says.
  EXPECT_EQ(PassNew(Http(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "!505");
  Gate gate(Http());
  Pass(gate, "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n");
  std::string out;
  gate.FeedAnswer("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", &out);
  EXPECT_FALSE(gate.open());
  EXPECT_EQ(Pass(gate, "PRI * HTTP/2.0\r\n\r\n"), "!505");
}

TEST(Gate, RefusesRequestsThatMeanMoreThanThisHost) {
  const auto asked = [](const std::string& line, const std::string& headers = "") {
    return PassNew(Http(), line + " HTTP/1.1\r\nHost: a.org\r\n" + headers + "\r\n");
  };
  EXPECT_EQ(asked("CONNECT /"), "!405");
  EXPECT_EQ(asked("connect /"), "!405");
  EXPECT_EQ(asked("CONNECT *"), "!405");
  EXPECT_EQ(asked("PRI *"), "!405");
  EXPECT_EQ(asked("GET *"), "!400");
  EXPECT_EQ(asked("GET /", "Connection: close, Host\r\n"), "!400");
  EXPECT_EQ(asked("GET /", "Connection: close\r\nConnection: host\r\n"), "!400");
  EXPECT_EQ(asked("GET /",
                  "X_Forwarded_Host: b.org\r\nX-Forwarded-Host: b.org\r\nForwarded: "
                  "host=b.org\r\nX-Original-Host: b.org\r\nX-Host: b.org\r\n"),
            "GET / HTTP/1.1\r\nHost: a.org\r\n\r\n");
  for (const std::string line : {"OPTIONS *", "OPTIONS /x", "TRACE /x", "PROPFIND /x", "GET /*"})
    EXPECT_TRUE(asked(line).starts_with(line)) << line;
  const std::string ordinary = "Connection: Keep-Alive, te\r\nTE: trailers\r\n";
  EXPECT_TRUE(asked("GET /", ordinary).ends_with(ordinary + "\r\n"));
}

TEST(Gate, RefusesWhatCouldLeadASecretElsewhere) {
  const auto asked = [](GateOptions options, const std::string& line, const std::string& headers) {
    return PassNew(std::move(options), line + " HTTP/1.1\r\nHost: a.org\r\n" + headers + "\r\n");
  };
  for (const std::string header :
       {"X-HTTP-Method-Override: DELETE", "x-http-method: DELETE", "X-Method-Override: DELETE",
        "X_HTTP_Method_Override: DELETE", "X-Original-URL: /admin", "X-Rewrite-URL: /admin",
        "X_Original_Url: /admin", "X-Original-URI: /admin", "X-Envoy-Original-Path: /admin",
        "X-Original-Method: DELETE", "X-Request-Uri: /admin", "X-Script-Path: /admin",
        "X-HTTP-Path-Override: /admin", "Destination: /admin"}) {
    EXPECT_EQ(asked(WithSecret({"/v1"}), "GET /v1", header + "\r\n"), "!400") << header;
    EXPECT_EQ(asked(WithSecret({}, {"GET"}), "GET /v1", header + "\r\n"), "!400") << header;
    EXPECT_EQ(asked(WithSecret({"/v1"}), "GET /v2", header + "\r\n"), "!400") << header;
    // A secret that is for all of its host is led nowhere by them.
    EXPECT_NE(asked(WithSecret(), "GET /v1", header + "\r\n").find("s3cret"), std::string::npos);
  }
  for (const std::string line : {"TRACE /v1", "trace /v1", "TRACK /v1", "TRACE /other"}) {
    EXPECT_EQ(asked(WithSecret({"/v1"}), line, ""), "!405") << line;
    EXPECT_EQ(asked(WithSecret(), line, ""), "!405") << line;
  }
  for (const std::string header : {"X-Requested-With: XMLHttpRequest", "X-Api-Version: 2",
                                   "X-Request-Id: 7", "Accept: */*", "Origin: http://a.org"}) {
    EXPECT_NE(asked(WithSecret({"/v1"}), "GET /v1", header + "\r\n").find("s3cret"),
              std::string::npos)
        << header;
  }
}

}  // namespace
}  // namespace hutch
