// SPDX-License-Identifier: Apache-2.0

#include "images/warden/agent_link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/channel.h"
#include "images/warden/clock.h"

namespace hutch {

bool AgentLink::Connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, settings_.socket, sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  FrameHeader hello;
  hello.kind = FrameKind::kHello;
  hello.a = kFrameVersion;
  hello.b = settings_.namespaces.error;
  hello.c = settings_.namespaces.step;
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      !Send(fd, hello, settings_.token, strlen(settings_.token))) {
    if (fd >= 0) close(fd);
    return false;
  }
  fd_ = fd;
  waits_ = false;
  count_ = 0;
  events_.Watch(fd_, Events::kAgent);
  return true;
}

void AgentLink::Lose() {
  close(fd_);
  fd_ = -1;
  NoteGone();
}

void AgentLink::NoteGone() { gone_us_ = NowUs(); }

void AgentLink::Report(const FrameHeader& header, const void* payload, size_t size) {
  if (!connected()) return;
  if (count_ == 0) {
    if (Send(fd_, header, payload, size)) return;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return;  // its end comes as an event
  }
  if (count_ == kMaxUnsent) return Lose();  // it does not read
  Unsent& unsent = unsent_[(first_ + count_++) % kMaxUnsent];
  unsent.header = header;
  unsent.size = static_cast<uint16_t>(std::min(size, sizeof unsent.payload));
  if (payload != nullptr) memcpy(unsent.payload, payload, unsent.size);
  Flush();
}

void AgentLink::Flush() {
  while (count_ > 0) {
    const Unsent& unsent = unsent_[first_];
    if (!Send(fd_, unsent.header, unsent.payload, unsent.size)) break;
    first_ = (first_ + 1) % kMaxUnsent;
    --count_;
  }
  if (waits_ == (count_ > 0)) return;
  waits_ = count_ > 0;
  events_.WatchForRoom(fd_, Events::kAgent, waits_);
}

}  // namespace hutch
