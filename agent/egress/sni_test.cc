// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/sni.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

using State = ClientHello::State;

std::string Number(size_t value, int size) {
  std::string text;
  for (int i = size - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}
std::string Vector(const std::string& data, int size) { return Number(data.size(), size) + data; }
std::string Extension(unsigned type, const std::string& data) {
  return Number(type, 2) + Vector(data, 2);
}
std::string ServerName(const std::string& name) {
  return Extension(0, Vector(Number(0, 1) + Vector(name, 2), 2));
}
std::string Handshake(const std::string& extensions) {
  const std::string body = Number(0x0303, 2) + std::string(32, 'r') + Vector("session", 1) +
                           Vector("\x13\x01", 2) + Vector(std::string(1, '\0'), 1) +
                           Vector(extensions, 2);
  return Number(1, 1) + Vector(body, 3);
}
std::string Record(const std::string& data) {
  return Number(22, 1) + Number(0x0301, 2) + Vector(data, 2);
}
std::string Hello(const std::string& extensions) { return Record(Handshake(extensions)); }

TEST(ClientHello, GivesTheNameInLowerCase) {
  const ClientHello hello =
      ReadClientHello(Hello(Extension(16, "alpn") + ServerName("Api.Example.ORG")));
  EXPECT_EQ(hello.state, State::kName);
  EXPECT_EQ(hello.name, "api.example.org");
}

TEST(ClientHello, WaitsForEveryMissingByteAndReadsNoneTwice) {
  const std::string whole = Hello(ServerName("example.org"));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(ReadClientHello(whole.substr(0, size)).state, State::kMore) << size;
  EXPECT_EQ(ReadClientHello(whole).state, State::kName);
}

TEST(ClientHello, IsReadAcrossRecords) {
  const std::string handshake = Handshake(ServerName("example.org"));
  std::string split;
  for (const char c : handshake) split += Record(std::string(1, c));
  EXPECT_EQ(ReadClientHello(split).name, "example.org");
}

TEST(ClientHello, SaysWhenThereIsNoName) {
  EXPECT_EQ(ReadClientHello(Hello("")).state, State::kNoName);
  EXPECT_EQ(ReadClientHello(Hello(Extension(16, "x"))).state, State::kNoName);
}

TEST(ClientHello, KnowsWhatIsNotTls) {
  EXPECT_EQ(ReadClientHello("GET / HTTP/1.1\r\n").state, State::kNotTls);
  EXPECT_EQ(ReadClientHello("SSH-2.0-x").state, State::kNotTls);
  EXPECT_EQ(ReadClientHello("\x16\x02").state, State::kNotTls);
  EXPECT_EQ(ReadClientHello(std::string("\0\0\0\x08\x04\xd2\x16\x2f", 8)).state, State::kNotTls);
}

TEST(ClientHello, RefusesWhatTwoReadersCouldReadInTwoWays) {
  const std::string two =
      Vector(Number(0, 1) + Vector("a.org", 2) + Number(0, 1) + Vector("b.org", 2), 2);
  for (const std::string& extensions :
       {ServerName("a.org") + ServerName("b.org"), Extension(0, two), Extension(0, ""),
        Extension(0, Vector("", 2)), ServerName(""), ServerName(std::string("a\0b", 3)),
        ServerName("a b"), ServerName("a\nb"), ServerName(std::string(256, 'a')),
        Extension(0, Vector(Number(1, 1) + Vector("a.org", 2), 2)),
        Extension(0, Vector(Number(0, 1) + Vector("a.org", 2), 2) + "x")}) {
    EXPECT_EQ(ReadClientHello(Hello(extensions)).state, State::kMalformed);
  }
}

TEST(ClientHello, RefusesLengthsThatLie) {
  std::string longer = Hello(ServerName("example.org"));
  longer[43] = '\x7f';  // the session's length
  EXPECT_EQ(ReadClientHello(longer).state, State::kMalformed);
  EXPECT_EQ(ReadClientHello(Record(Number(2, 1) + Vector("", 3))).state, State::kMalformed);
  EXPECT_EQ(ReadClientHello(Record(Number(1, 1) + Number(0xffffff, 3))).state, State::kMalformed);
  EXPECT_EQ(ReadClientHello(Number(22, 1) + Number(0x0301, 2) + Number(0xffff, 2)).state,
            State::kMalformed);
  EXPECT_EQ(ReadClientHello(Number(22, 1) + Number(0x0301, 2) + Number(0, 2)).state,
            State::kMalformed);
  EXPECT_EQ(ReadClientHello(Record(Handshake(ServerName("a.org")) + "more")).state,
            State::kMalformed);
  EXPECT_EQ(ReadClientHello(Hello(Extension(21, std::string(kMaxClientHello, '\0')))).state,
            State::kMalformed);
}

TEST(ClientHello, EveryCorruptedByteIsAnswered) {
  const std::string whole = Hello(ServerName("example.org") + Extension(0xfe0d, "ech"));
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      const ClientHello hello = ReadClientHello(bytes);
      if (hello.state == State::kName) {
        EXPECT_LE(hello.name.size(), 255u);
      }
    }
  }
}

}  // namespace
}  // namespace hutch
