// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/sni.h"

#include <cstdint>
#include <optional>

namespace hutch {
namespace {

using State = ClientHello::State;

constexpr uint8_t kHandshakeRecord = 22;
constexpr uint8_t kClientHelloType = 1;
constexpr size_t kRecordHeader = 5;
constexpr size_t kMaxRecord = 16 * 1024;
constexpr unsigned kServerName = 0;

// Takes from the front of what is left. Once something was missing, nothing more is found.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  size_t Number(int size) {
    const std::string_view bytes = Bytes(static_cast<size_t>(size));
    size_t value = 0;
    for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
    return value;
  }
  std::string_view Bytes(size_t size) {
    if (size > left_.size()) {
      ok_ = false;
      left_ = {};
      return {};
    }
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  std::string_view Vector(int length_size) { return Bytes(Number(length_size)); }
  bool ok() const { return ok_; }
  bool empty() const { return left_.empty(); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

const ClientHello kBad{State::kMalformed, {}};

ClientHello ReadBody(std::string_view body) {
  Reader hello(body);
  const size_t version = hello.Number(2);
  hello.Bytes(32);                                                      // random
  if (hello.Vector(1).size() > 32) return kBad;                         // session
  if (hello.Vector(2).empty() || hello.Vector(1).empty()) return kBad;  // ciphers, compression
  if (!hello.ok() || version >> 8 != 3) return kBad;
  if (hello.empty()) return {State::kNoName, {}};
  Reader extensions(hello.Vector(2));
  if (!hello.ok() || !hello.empty()) return kBad;
  std::optional<std::string_view> server_name;
  while (!extensions.empty()) {
    const size_t type = extensions.Number(2);
    const std::string_view data = extensions.Vector(2);
    if (!extensions.ok()) return kBad;
    if (type != kServerName) continue;
    if (server_name) return kBad;  // two of them: it is unknown which one the server uses
    server_name = data;
  }
  if (!server_name) return {State::kNoName, {}};
  Reader outer(*server_name);
  Reader names(outer.Vector(2));
  const bool host = names.Number(1) == 0;
  const std::string_view name = names.Vector(2);
  if (!outer.ok() || !outer.empty() || !names.ok() || !names.empty() || !host || name.empty() ||
      name.size() > 255)
    return kBad;
  ClientHello found{State::kName, std::string(name)};
  for (char& c : found.name) {
    if (c <= 0x20 || c > 0x7e) return kBad;
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return found;
}

}  // namespace

ClientHello ReadClientHello(std::string_view bytes) {
  ClientHello more{State::kMore, {}};
  if (bytes.empty()) return more;
  if (static_cast<uint8_t>(bytes[0]) != kHandshakeRecord) return {State::kNotTls, {}};
  if (bytes.size() >= 2 && bytes[1] != 3) return {State::kNotTls, {}};
  // The hello may lie in several records.
  std::string handshake;
  while (true) {
    if (handshake.size() >= 4) {
      Reader header(handshake);
      if (header.Number(1) != kClientHelloType) return kBad;
      const size_t length = header.Number(3);
      if (length > kMaxClientHello) return kBad;
      if (handshake.size() >= 4 + length) {
        // Nothing may follow the hello in its record: a client waits for the server's answer.
        if (handshake.size() > 4 + length) return kBad;
        return ReadBody(std::string_view(handshake).substr(4));
      }
    }
    if (bytes.size() < kRecordHeader) return more;
    Reader record(bytes);
    const size_t type = record.Number(1);
    const size_t version = record.Number(2);
    const size_t length = record.Number(2);
    if (type != kHandshakeRecord || version >> 8 != 3 || length == 0 || length > kMaxRecord)
      return kBad;
    const std::string_view data = bytes.substr(kRecordHeader, length);
    handshake += data;
    if (handshake.size() > kMaxClientHello + 4) return kBad;
    if (data.size() < length) {
      // The first byte may already say that it is not a hello.
      if (!handshake.empty() && handshake[0] != kClientHelloType) return kBad;
      return more;
    }
    bytes.remove_prefix(kRecordHeader + length);
  }
}

}  // namespace hutch
