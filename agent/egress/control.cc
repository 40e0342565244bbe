// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/control.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "wire/channel.h"
#include "wire/error.h"
#include "wire/json_text.h"
#include "wire/memfd.h"

namespace hutch {
namespace {

using nlohmann::json;

constexpr size_t kMaxText = 16u << 20;

// Converting any other number would lose some of it, or be undefined.
template <class T>
T Number(const json& number) {
  if (!number.is_number_unsigned() || number.get<uint64_t>() > std::numeric_limits<T>::max())
    throw Error(Code::kProtocol, "a number is out of range");
  return number.get<T>();
}

// As numbers: a secret's value may not be UTF-8, which JSON must be.
json Bytes(const std::string& text) {
  json::array_t bytes;
  for (const char c : text) bytes.emplace_back(static_cast<unsigned char>(c));
  return bytes;
}
std::string FromBytes(const json& bytes) {
  std::string text;
  for (const json& byte : bytes) text += static_cast<char>(Number<uint8_t>(byte));
  return text;
}

json ToJson(const EgressHello& m) { return {{"is", "hello"}, {"token", m.token}}; }
json ToJson(const SetPolicy& m) {
  json secrets = json::array();
  for (const SecretRule& s : m.secrets) {
    secrets.push_back({{"host", s.host},
                       {"header", s.header},
                       {"value", Bytes(s.value)},
                       {"paths", s.paths},
                       {"methods", s.methods}});
  }
  return {{"is", "policy"}, {"id", m.id}, {"allow_network", m.allow_network}, {"secrets", secrets}};
}
json ToJson(const ForgetPolicy& m) { return {{"is", "forget"}, {"id", m.id}}; }
json ToJson(const AddCell& m) { return {{"is", "add"}, {"cell", m.cell}, {"policy", m.policy}}; }
json ToJson(const CallOver& m) { return {{"is", "over"}, {"cell", m.cell}}; }
json ToJson(const EgressPing&) { return {{"is", "ping"}}; }
json ToJson(const ForwarderGone& m) { return {{"is", "forwarder_gone"}, {"cell", m.cell}}; }
json ToJson(const CloseCell& m) { return {{"is", "close"}, {"cell", m.cell}}; }
json ToJson(const CellClosed& m) {
  json records = json::array();
  for (const NetworkRecord& r : m.records) {
    records.push_back({{"host", r.host},
                       {"port", r.port},
                       {"allowed", r.allowed},
                       {"reason", r.reason},
                       {"suggestion", r.suggestion},
                       {"sent", r.bytes_sent},
                       {"received", r.bytes_received},
                       {"count", r.count}});
  }
  return {{"is", "closed"}, {"cell", m.cell}, {"records", records}};
}

EgressMessage FromJson(const json& j) {
  const std::string is = j.at("is");
  if (is == "hello") return EgressHello{j.at("token")};
  if (is == "policy") {
    SetPolicy m{Number<uint64_t>(j.at("id")), j.at("allow_network"), {}};
    for (const json& s : j.at("secrets")) {
      m.secrets.push_back(
          {s.at("host"), s.at("header"), FromBytes(s.at("value")), s.at("paths"), s.at("methods")});
    }
    return m;
  }
  if (is == "forget") return ForgetPolicy{Number<uint64_t>(j.at("id"))};
  if (is == "add") return AddCell{Number<uint64_t>(j.at("cell")), Number<uint64_t>(j.at("policy"))};
  if (is == "over") return CallOver{Number<uint64_t>(j.at("cell"))};
  if (is == "ping") return EgressPing{};
  if (is == "forwarder_gone") return ForwarderGone{Number<uint64_t>(j.at("cell"))};
  if (is == "close") return CloseCell{Number<uint64_t>(j.at("cell"))};
  if (is != "closed") throw Error(Code::kProtocol, "an unknown message");
  CellClosed m{Number<uint64_t>(j.at("cell")), {}};
  for (const json& r : j.at("records")) {
    NetworkRecord record;
    record.host = r.at("host");
    record.port = Number<uint16_t>(r.at("port"));
    record.allowed = r.at("allowed");
    record.reason = r.at("reason");
    record.suggestion = r.at("suggestion");
    record.bytes_sent = Number<uint64_t>(r.at("sent"));
    record.bytes_received = Number<uint64_t>(r.at("received"));
    record.count = Number<uint64_t>(r.at("count"));
    m.records.push_back(std::move(record));
  }
  return m;
}

}  // namespace

// The text travels in a sealed memfd: it may be longer than a datagram, and a secret in it never
// lies in a socket's buffer.
bool SendEgress(int fd, const EgressMessage& message, int descriptor) {
  const std::string text = JsonText(std::visit([](const auto& m) { return ToJson(m); }, message));
  const Fd memfd = MakeSealedMemfd("hutch-egress", text.data(), text.size());
  const int both[] = {memfd.get(), descriptor};
  char mark = 'J';
  const iovec part{&mark, 1};
  switch (SendDatagram(fd, {&part, 1}, {both, descriptor < 0 ? 1u : 2u})) {
    case SendStatus::kSent:
      return true;
    case SendStatus::kFull:
    case SendStatus::kNoDescriptors:
      return false;
    case SendStatus::kClosed:
      break;
  }
  throw Error(Code::kUnavailable, "the egress process is gone");
}

std::optional<ReceivedEgress> ReceiveEgress(int fd) {
  char mark[2];
  std::vector<Fd> descriptors;
  const ReceiveResult got = ReceiveDatagram(fd, mark, &descriptors, 2);
  if (got.status == ReceiveStatus::kNothing) return std::nullopt;
  if (got.status == ReceiveStatus::kClosed)
    throw Error(Code::kUnavailable, "the egress process is gone");
  if (got.status != ReceiveStatus::kData || got.size != 1 || mark[0] != 'J' || descriptors.empty())
    throw Error(Code::kProtocol, "this is not a message of the egress process");
  const std::string text = ReadSealedMemfd(descriptors[0].get(), kMaxText);
  ReceivedEgress received;
  try {
    received.message = FromJson(json::parse(text));
  } catch (const json::exception&) {
    throw Error(Code::kProtocol, "a message of the egress process could not be read");
  }
  if (descriptors.size() > 1) received.descriptor = std::move(descriptors[1]);
  return received;
}

}  // namespace hutch
