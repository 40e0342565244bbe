// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/cell.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "wire/cell_frame.h"
#include "wire/channel.h"

namespace hutch {
namespace {

constexpr unsigned kFramesInARow = 64;

}  // namespace

EgressCell::EgressCell(EgressShared& shared, std::shared_ptr<const EgressPolicy> policy, Fd channel,
                       std::function<void()> forwarder_gone)
    : shared_(shared),
      policy_(std::move(policy)),
      channel_(std::move(channel)),
      forwarder_gone_(std::move(forwarder_gone)) {
  ++shared_.cells;
  shared_.loop.Add(channel_.get(), EPOLLIN, [this](uint32_t events) { OnChannel(events); });
}

EgressCell::~EgressCell() {
  Close();
  --shared_.cells;
}

std::vector<NetworkRecord> EgressCell::Close() {
  if (channel_) {
    shared_.loop.Remove(channel_.get());
    channel_.reset();
  }
  replies_.clear();
  for (const auto& [id, stream] : std::exchange(streams_, {})) stream->Close();
  lookups_->waiting.clear();
  std::vector<NetworkRecord> records = std::exchange(records_, {});
  if (dropped_records_ > 0) {
    NetworkRecord more;
    more.reason = "further connections, which are only counted";
    more.allowed = true;
    more.count = std::exchange(dropped_records_, 0);
    records.push_back(more);
  }
  return records;
}

// The forwarder broke the protocol (`why`) or is gone ("").
void EgressCell::Drop(const std::string& why) {
  if (!channel_) return;
  shared_.loop.Remove(channel_.get());
  channel_.reset();
  replies_.clear();
  for (const auto& [id, stream] : std::exchange(streams_, {})) stream->Close();
  lookups_->waiting.clear();
  if (why.empty()) {
    if (const auto gone = std::exchange(forwarder_gone_, nullptr)) gone();
    return;
  }
  NetworkRecord record;
  record.reason = why;
  Note(record);
}

void EgressCell::OnChannel(uint32_t events) {
  if ((events & EPOLLOUT) != 0) Flush();
  for (unsigned i = 0; i < kFramesInARow && channel_ && replies_.empty(); ++i) {
    FrameHeader frame;
    std::array<char, sizeof frame + 1> buffer;
    const ReceiveResult got = ReceiveDatagram(channel_.get(), buffer, nullptr, 0);
    if (got.status == ReceiveStatus::kNothing) return;
    if (got.status == ReceiveStatus::kClosed) return Drop({});
    if (got.status != ReceiveStatus::kData || got.size != sizeof frame)
      return Drop("the cell's forwarder broke its protocol");
    std::memcpy(&frame, buffer.data(), sizeof frame);
    if (frame.magic != kFrameMagic || frame.version != kFrameVersion ||
        frame.kind != FrameKind::kOpenStream || frame.id <= last_id_ || frame.b != 0 ||
        frame.c != 0)
      return Drop("the cell's forwarder broke its protocol");
    last_id_ = frame.id;
    Open(frame.a, frame.id);
  }
}

void EgressCell::Open(uint32_t listener, uint64_t id) {
  const bool proxy = listener == kProxyListener && policy_->plan.proxy;
  if (!proxy && listener >= policy_->plan.targets.size())
    return Drop("the cell's forwarder broke its protocol");
  std::string why;
  if (streams_.size() >= shared_.limits.connections)
    why = std::to_string(shared_.limits.connections) + " connections are open at once";
  if (const size_t share = ShareOf(shared_.FreeStreams()); streams_.size() >= share)
    why = "the call has its share of the connections while so many are open";
  if (++opened_ > shared_.limits.all_connections)
    why = "the call has opened " + std::to_string(shared_.limits.all_connections) + " connections";
  if (spent_ >= shared_.limits.bytes) why = "the call has used up its bytes";
  if (!why.empty()) {
    NetworkRecord record;
    if (!proxy) {
      record.host = policy_->plan.targets[listener].host;
      record.port = policy_->plan.targets[listener].port;
    }
    record.reason = why;
    Note(record);
    return Reject(id);
  }
  const auto stream = std::make_shared<Stream>(shared_, *this, id);
  streams_[id] = stream;
  if (proxy) {
    stream->OpenProxy();
  } else {
    stream->OpenTarget(policy_->plan.targets[listener]);
  }
}

void EgressCell::Reply(bool granted, uint64_t id, Fd end) {
  if (!channel_) return;
  replies_.push_back({granted, id, std::move(end)});
  if (replies_.size() == 1) Flush();
}

void EgressCell::Flush() {
  while (!replies_.empty()) {
    const Pending& reply = replies_.front();
    FrameHeader frame;
    frame.kind = reply.granted ? FrameKind::kStream : FrameKind::kNoStream;
    frame.id = reply.id;
    const iovec part{&frame, sizeof frame};
    const int fd = reply.end.get();
    const SendStatus sent =
        SendDatagram(channel_.get(), {&part, 1}, {&fd, reply.granted ? 1u : 0u});
    if (sent == SendStatus::kClosed) return Drop({});
    if (sent != SendStatus::kSent) {
      shared_.loop.Change(channel_.get(), EPOLLOUT);
      return;
    }
    replies_.pop_front();
  }
  shared_.loop.Change(channel_.get(), EPOLLIN);
}

bool EgressCell::HandOver(uint64_t stream, Fd end) {
  Reply(true, stream, std::move(end));
  return static_cast<bool>(channel_);
}

void EgressCell::Reject(uint64_t stream) { Reply(false, stream, Fd()); }

void EgressCell::Note(NetworkRecord record) {
  for (NetworkRecord& known : records_) {
    if (known.host != record.host || known.port != record.port || known.allowed != record.allowed ||
        known.reason != record.reason)
      continue;
    known.count += record.count;
    known.bytes_sent += record.bytes_sent;
    known.bytes_received += record.bytes_received;
    return;
  }
  if (records_.size() >= shared_.limits.records) {
    ++dropped_records_;
    return;
  }
  records_.push_back(std::move(record));
}

bool EgressCell::Spend(uint64_t bytes) {
  spent_ += bytes;
  return spent_ <= shared_.limits.bytes;
}

void EgressCell::Ended(uint64_t stream) { streams_.erase(stream); }

void EgressCell::Tick(Clock::time_point now) {
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [id, stream] : streams_) all.push_back(stream);
  for (const auto& stream : all) stream->Tick(now);
}

}  // namespace hutch
