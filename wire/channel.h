// SPDX-License-Identifier: Apache-2.0

// Datagrams and descriptors over a Unix SEQPACKET socket. Nothing here blocks: the caller polls.
//
// Stateless functions; safe from any thread, but two threads that read one socket share its
// datagrams at random.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "wire/fd.h"

namespace hutch {

// kNoDescriptors: this user's limit of descriptors that lie unread in sockets is reached.
enum class SendStatus { kSent, kFull, kNoDescriptors, kClosed };
enum class ReceiveStatus { kData, kNothing, kClosed, kTruncated };
struct ReceiveResult {
  ReceiveStatus status;
  size_t size = 0;
};

// One datagram made of `parts`, with `descriptors` (at most 16) attached. Throws kInternal on
// anything but a full or a closed socket.
SendStatus SendDatagram(int fd, std::span<const iovec> parts,
                        std::span<const int> descriptors = {});

// Receives one datagram into `buffer`. Up to `max_descriptors` are appended to `descriptors`
// (close-on-exec); with 0 any that come are closed by the kernel unseen. A datagram longer than the
// buffer, or with more descriptors than allowed, is kTruncated: its sender broke the
// protocol.
ReceiveResult ReceiveDatagram(int fd, std::span<char> buffer, std::vector<Fd>* descriptors,
                              int max_descriptors);

std::pair<Fd, Fd> MakeSocketPair();  // SEQPACKET, close-on-exec, first end non-blocking
std::pair<Fd, Fd> MakePipe();        // {read end (non-blocking), write end}

// Binds and listens at `path`, whose file gets `mode`. Replaces a socket file that is left there.
Fd ListenAt(const std::string& path, int backlog, unsigned mode = 0600);

// Connects. Returns an empty Fd when nobody listens there. With `euid` >= 0 this thread
// takes that effective uid around connect(), so that the peer sees it in SO_PEERCRED.
Fd ConnectTo(const std::string& path, long euid = -1);

struct PeerCredentials {
  int pid = -1;
  unsigned uid = ~0u;
};
PeerCredentials PeerOf(int fd);

}  // namespace hutch
