// SPDX-License-Identifier: Apache-2.0

#include "images/warden/channel.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace hutch {
namespace {

char buffer[kMaxPayload];

// Room for more descriptors than are ever wanted, so that none is installed unseen.
constexpr size_t kControlSize = CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(16 * sizeof(int));

void TakeRights(const cmsghdr* rights, Datagram* message) {
  const size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < count; ++i) {
    int fd;
    memcpy(&fd, CMSG_DATA(rights) + i * sizeof fd, sizeof fd);
    if (message->count < kMaxDescriptors) {
      message->descriptors[message->count++] = fd;
    } else {
      close(fd);
    }
  }
}

}  // namespace

void Datagram::CloseDescriptors() {
  while (count > 0) close(descriptors[--count]);
}

Receiving Receive(int fd, Datagram* message) {
  *message = Datagram{};
  iovec parts[2] = {{&message->header, sizeof message->header}, {buffer, sizeof buffer}};
  alignas(cmsghdr) char control[kControlSize];
  msghdr header{};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t size = TEMP_FAILURE_RETRY(recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
  if (size < 0)
    return errno == EAGAIN || errno == EWOULDBLOCK ? Receiving::kNothing : Receiving::kGone;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_RIGHTS) TakeRights(c, message);
    if (c->cmsg_type == SCM_CREDENTIALS) {
      ucred sender;
      memcpy(&sender, CMSG_DATA(c), sizeof sender);
      message->sender = sender.pid;
    }
  }
  if (size == 0) {
    message->CloseDescriptors();
    return Receiving::kGone;
  }
  const FrameHeader& frame = message->header;
  if (static_cast<size_t>(size) < sizeof frame ||
      (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || frame.magic != kFrameMagic ||
      frame.version != kFrameVersion) {
    message->CloseDescriptors();
    return Receiving::kMalformed;
  }
  message->payload = buffer;
  message->size = static_cast<size_t>(size) - sizeof frame;
  return Receiving::kDatagram;
}

bool Send(int fd, const FrameHeader& header, const void* payload, size_t size,
          const int* descriptors, int count) {
  iovec parts[2] = {{const_cast<FrameHeader*>(&header), sizeof header},
                    {const_cast<void*>(payload), size}};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(static_cast<size_t>(count) * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(static_cast<size_t>(count) * sizeof(int));
    memcpy(CMSG_DATA(rights), descriptors, static_cast<size_t>(count) * sizeof(int));
  }
  return TEMP_FAILURE_RETRY(sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)) >= 0;
}

}  // namespace hutch
