// SPDX-License-Identifier: Apache-2.0

#include "pool/warden_link.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "wire/channel.h"
#include "wire/error.h"

namespace hutch {
namespace {

// Frames read in a row: a warden that sends without end must not keep the loop from its other work.
constexpr int kFramesAtOnce = 64;

}  // namespace

WardenLink::WardenLink(Loop& loop, Owner& owner)
    : loop_(loop), owner_(owner), alive_(std::make_shared<bool>(true)) {}

WardenLink::~WardenLink() {
  *alive_ = false;
  Close();
}

void WardenLink::Listen(const std::string& path, unsigned peer_uid) {
  path_ = path;
  peer_uid_ = peer_uid;
  listener_ = ListenAt(path, 1, 0666);
  loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { OnAccept(); });
}

void WardenLink::StopListening() {
  if (!listener_) return;
  loop_.Remove(listener_.get());
  listener_.reset();
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void WardenLink::StopReading() {
  if (warden_ && !stopped_) loop_.Remove(warden_.get());
  stopped_ = true;
}

void WardenLink::Close() {
  StopReading();
  if (listener_) loop_.Remove(listener_.get());
  listener_.reset();
  warden_.reset();
}

void WardenLink::OnAccept() {
  Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (stopped_) return;
  if (!peer) {
    if (errno == EMFILE || errno == ENFILE)
      owner_.OnLinkBroken("the agent has no file descriptor left");
    return;
  }
  // There is one warden, and it has its worker's uid: any other peer is dropped.
  if (warden_ || PeerOf(peer.get()).uid != peer_uid_) return;
  warden_ = std::move(peer);
  loop_.Add(warden_.get(), EPOLLIN, [this](uint32_t) { OnReadable(); });
}

void WardenLink::OnReadable() {
  alignas(FrameHeader) static char buffer[sizeof(FrameHeader) + kMaxPayload];
  const auto alive = alive_;
  for (int i = 0; i < kFramesAtOnce; ++i) {
    const ReceiveResult got = ReceiveDatagram(warden_.get(), buffer, nullptr, 0);
    if (got.status == ReceiveStatus::kNothing) return;
    if (got.status == ReceiveStatus::kClosed) return owner_.OnLinkBroken("the warden is gone");
    if (got.status == ReceiveStatus::kTruncated || got.size < sizeof(FrameHeader))
      return owner_.OnLinkBroken("the warden sent a malformed frame");
    FrameHeader header;
    std::memcpy(&header, buffer, sizeof header);
    if (header.magic != kFrameMagic || header.version != kFrameVersion)
      return owner_.OnLinkBroken("the warden sent an unknown frame");
    try {
      owner_.OnFrame(header, {buffer + sizeof header, got.size - sizeof header});
    } catch (const Error& error) {  // This worker is given up, the agent goes on.
      return owner_.OnLinkBroken(error.what());
    }
    if (!*alive || stopped_) return;
  }
}

bool WardenLink::Send(const FrameHeader& header, std::string_view payload,
                      std::span<const int> descriptors) {
  if (!warden_) return false;
  const iovec parts[] = {{const_cast<FrameHeader*>(&header), sizeof header},
                         {const_cast<char*>(payload.data()), payload.size()}};
  // The socket holds a few hundred frames; a warden that lets them pile up is given up.
  const SendStatus status = SendDatagram(warden_.get(), parts, descriptors);
  if (status == SendStatus::kSent) return true;
  if (status == SendStatus::kNoDescriptors) return false;
  loop_.Post([this, alive = alive_] {
    if (*alive && !stopped_) owner_.OnLinkBroken("the warden no longer reads its frames");
  });
  return false;
}

bool WardenLink::IsCrowded() const {
  int unread = 0, room = 0;
  socklen_t size = sizeof room;
  return warden_ && ::ioctl(warden_.get(), SIOCOUTQ, &unread) == 0 &&
         ::getsockopt(warden_.get(), SOL_SOCKET, SO_SNDBUF, &room, &size) == 0 && unread > room / 4;
}

}  // namespace hutch
