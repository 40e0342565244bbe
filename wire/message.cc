// SPDX-License-Identifier: Apache-2.0

#include "wire/message.h"

#include <cereal/cereal.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/variant.hpp>
#include <cereal/types/vector.hpp>
#include <cstring>
#include <type_traits>

#include "wire/channel.h"
#include "wire/memfd.h"

namespace hutch {
namespace {

constexpr char kInlineMark = 'I';
constexpr char kMemfdMark = 'M';
constexpr int kMaxMessageDescriptors = 4;
constexpr size_t kUsualMessage = 256;

}  // namespace

// Writes what cereal's own binary archive writes, without a stream: streams cost more than the
// message.
class FlatOutput : public cereal::OutputArchive<FlatOutput, cereal::AllowEmptyClassElision> {
 public:
  explicit FlatOutput(std::string& to)
      : cereal::OutputArchive<FlatOutput, cereal::AllowEmptyClassElision>(this), to_(to) {}

  void Write(const void* from, uint64_t size) {
    to_.append(static_cast<const char*>(from), static_cast<size_t>(size));
  }

 private:
  std::string& to_;
};
template <class T>
  requires std::is_arithmetic_v<T>
void CEREAL_SAVE_FUNCTION_NAME(FlatOutput& archive, const T& value) {
  archive.Write(&value, sizeof value);
}
template <class T>
void CEREAL_SAVE_FUNCTION_NAME(FlatOutput& archive, const cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}
template <class T>
void CEREAL_SAVE_FUNCTION_NAME(FlatOutput& archive, const cereal::SizeTag<T>& tag) {
  archive(tag.size);
}
template <class T>
void CEREAL_SAVE_FUNCTION_NAME(FlatOutput& archive, const cereal::BinaryData<T>& data) {
  archive.Write(data.data, data.size);
}

// Reads the same from memory. A length that is more than the bytes left is refused before anything
// of its size is allocated.
class BoundedInput : public cereal::InputArchive<BoundedInput, cereal::AllowEmptyClassElision> {
 public:
  explicit BoundedInput(std::string_view bytes)
      : cereal::InputArchive<BoundedInput, cereal::AllowEmptyClassElision>(this), left_(bytes) {}

  void Read(void* to, uint64_t size) {
    RequireLeft(size);
    if (size != 0) std::memcpy(to, left_.data(), size);
    left_.remove_prefix(size);
  }
  void RequireLeft(uint64_t size) const {
    if (size > left_.size()) throw Error(Code::kProtocol, "it is cut short");
  }
  bool empty() const { return left_.empty(); }

 private:
  std::string_view left_;
};
template <class T>
  requires std::is_arithmetic_v<T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& archive, T& value) {
  archive.Read(&value, sizeof value);
}
template <class T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& archive, cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}
template <class T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& archive, cereal::SizeTag<T>& tag) {
  archive(tag.size);
  archive.RequireLeft(tag.size);
}
template <class T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& archive, cereal::BinaryData<T>& data) {
  archive.Read(data.data, data.size);
}

// A bool crosses as a byte that is compared: one loaded from a byte other than 0 and 1 would be
// undefined.
struct Flag {
  bool& value;
};

template <class A>
void serialize(A& a, Flag& flag) {
  uint8_t byte = flag.value ? 1 : 0;
  a(byte);
  flag.value = byte != 0;
}
template <class A>
void serialize(A& a, IndexSettings& m) {
  a(m.index_url, m.extra_index_urls, m.http_proxy, m.https_proxy, m.no_proxy, m.ca_bundle,
    m.find_links, m.netrc, m.npm_sources, m.npm_credentials, m.npm_ca_bundle);
}
template <class A>
void serialize(A& a, MountSpec& m) {
  a(m.source, m.destination, Flag{m.writable}, Flag{m.as_caller}, m.copy, m.device, m.inode);
}
template <class A>
void serialize(A& a, SecretRule& m) {
  a(m.host, m.header, m.value, m.paths, m.methods);
}
template <class A>
void serialize(A& a, NetworkRecord& m) {
  a(m.host, m.port, Flag{m.allowed}, m.reason, m.suggestion, m.bytes_sent, m.bytes_received,
    m.count, Flag{m.lost});
}
template <class A>
void serialize(A& a, CallLimits& m) {
  a(m.timeout_ms, m.cpu_ms, m.output_bytes, m.result_bytes, m.queue_ms);
}
template <class A>
void serialize(A& a, PoolSpec& m) {
  ForEachField(m, [&](const char*, auto& member) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, bool>) {
      a(Flag{member});
    } else if constexpr (std::is_same_v<Member, Isolation>) {
      auto byte = static_cast<uint8_t>(member);
      a(byte);
      if (byte >= kIsolationNames.size())
        throw Error(Code::kProtocol, "the isolation is not a known one");
      member = static_cast<Isolation>(byte);
    } else {
      a(member);
    }
  });
}
template <class A>
void serialize(A& a, CellReport& m) {
  a(m.exit_code, m.signal, m.limit, m.end, m.wall_us, m.cpu_us, m.cpu_wait_us, m.peak_kb,
    m.memory_limit_kb, m.pids_peak, m.disk_full);
}
template <class A>
void serialize(A& a, Hello& m) {
  a(m.wire_version, m.pid, m.uid);
}
template <class A>
void serialize(A& a, Prepare& m) {
  a(m.request, m.timeout_ms, m.spec, m.limits, Flag{m.shared}, Flag{m.hard_limits}, m.policy,
    Flag{m.no_pool});
}
template <class A>
void serialize(A& a, Warm& m) {
  a(m.request, m.key, m.cells);
}
template <class A>
void serialize(A& a, Acquire& m) {
  a(m.request, m.key, m.queue_ms, Flag{m.ahead}, Flag{m.session});
}
template <class A>
void serialize(A& a, Forget& m) {
  a(m.request);
}
template <class A>
void serialize(A& a, Started& m) {
  a(m.lease, m.timeout_ms, m.cpu_ms, m.result_kb);
}
template <class A>
void serialize(A& a, CallStats& m) {
  auto ending = static_cast<uint8_t>(m.ending);
  a(ending, m.queue_us, m.send_us, m.run_us, m.receive_us, m.call_id, m.policy, m.function[0],
    m.function[1], m.calls);
  if (ending > static_cast<uint8_t>(Ending::kUntold))
    throw Error(Code::kProtocol, "the ending of a call is not a known one");
  m.ending = static_cast<Ending>(ending);
}
template <class A>
void serialize(A& a, LeaseEnded& m) {
  a(m.lease, Flag{m.want_report}, m.note, m.next, m.load, m.load_cpu_ms);
}
template <class A>
void serialize(A& a, Keep& m) {
  a(m.request, m.lease, m.idle_ms, m.id);
}
template <class A>
void serialize(A& a, Executed& m) {
  a(m.lease, m.note, Flag{m.beside});
}
template <class A>
void serialize(A& a, Interrupt& m) {
  a(m.lease, m.user, m.call);
}
template <class A>
void serialize(A& a, Restart& m) {
  a(m.lease, m.user);
}
template <class A>
void serialize(A& a, UserEnded& m) {
  a(m.lease, m.report);
}
template <class A>
void serialize(A& a, UserReady& m) {
  a(m.lease);
}
template <class A>
void serialize(A& a, BackgroundCpu& m) {
  a(m.lease, m.cpu_us);
}
template <class A>
void serialize(A& a, Ask& m) {
  a(m.request, m.what);
}
template <class A>
void serialize(A& a, Welcome& m) {
  a(m.wire_version, m.agent);
}
template <class A>
void serialize(A& a, Progress& m) {
  a(m.request, m.stage, m.text, m.done, m.total);
}
template <class A>
void serialize(A& a, PoolReady& m) {
  a(m.request, m.key, m.digest, m.lock, m.notes, Flag{m.built}, m.build_sec, m.worker_sec,
    m.enforcement, m.max_cells);
}
template <class A>
void serialize(A& a, Leased& m) {
  a(m.request, m.lease, m.table_slot, m.worker, m.waited_us, m.worker_us, m.pressure);
}
template <class A>
void serialize(A& a, Report& m) {
  a(m.lease, m.report, m.network);
}
template <class A>
void serialize(A& a, Answer& m) {
  a(m.request, m.text);
}
template <class A>
void serialize(A& a, Failed& m) {
  a(m.request, m.code, m.message, m.hint, Flag{m.may_have_run}, m.figures);
}

std::string EncodeMessage(const Message& message) {
  std::string bytes;
  bytes.reserve(kUsualMessage);
  FlatOutput archive(bytes);
  archive(message);
  return bytes;
}

Message DecodeMessage(std::string_view bytes) {
  try {
    BoundedInput archive(bytes);
    Message message;
    archive(message);
    if (!archive.empty()) throw Error(Code::kProtocol, "bytes follow its end");
    return message;
  } catch (const std::exception& e) {
    throw Error(Code::kProtocol, std::string("a message could not be read: ") + e.what());
  }
}

bool SendMessage(int fd, const Message& message, std::span<const int> descriptors) {
  std::string bytes = EncodeMessage(message);
  char mark = kInlineMark;
  Fd memfd;
  std::vector<int> all;
  if (bytes.size() > kInlineMessage) {
    memfd = MakeSealedMemfd("hutch-message", bytes.data(), bytes.size());
    all.push_back(memfd.get());
    mark = kMemfdMark;
    bytes.clear();
  }
  all.insert(all.end(), descriptors.begin(), descriptors.end());
  iovec parts[2] = {{&mark, 1}, {bytes.data(), bytes.size()}};
  switch (SendDatagram(fd, {parts, bytes.empty() ? 1u : 2u}, all)) {
    case SendStatus::kSent:
      return true;
    case SendStatus::kFull:
    case SendStatus::kNoDescriptors:
      return false;
    case SendStatus::kClosed:
      break;
  }
  throw Error(Code::kUnavailable, "the connection to the agent is closed");
}

std::optional<ReceivedMessage> ReceiveMessage(int fd) {
  thread_local std::vector<char> buffer(kInlineMessage + 1);
  std::vector<Fd> descriptors;
  const ReceiveResult got = ReceiveDatagram(fd, buffer, &descriptors, kMaxMessageDescriptors);
  switch (got.status) {
    case ReceiveStatus::kNothing:
      return std::nullopt;
    case ReceiveStatus::kClosed:
      throw Error(Code::kUnavailable, "the connection was closed by its peer");
    case ReceiveStatus::kTruncated:
      throw Error(Code::kProtocol, "a message is too long");
    case ReceiveStatus::kData:
      break;
  }
  if (buffer[0] == kInlineMark) {
    return ReceivedMessage{DecodeMessage({buffer.data() + 1, got.size - 1}),
                           std::move(descriptors)};
  }
  if (buffer[0] != kMemfdMark || descriptors.empty())
    throw Error(Code::kProtocol, "a message has an unknown form");
  const std::string bytes = ReadSealedMemfd(descriptors.front().get(), kMaxMessage);
  descriptors.erase(descriptors.begin());
  return ReceivedMessage{DecodeMessage(bytes), std::move(descriptors)};
}

}  // namespace hutch
