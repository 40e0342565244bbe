// SPDX-License-Identifier: Apache-2.0

// Frames over SOCK_SEQPACKET, as the warden sends and receives them: without blocking, and without
// trust in any length that a frame contains.
//
// Thread contract: single-threaded; the payload of a received Datagram lies in one static buffer,
// valid until the next Receive().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "images/warden/control.h"

namespace hutch {

inline constexpr int kMaxDescriptors = 4;

struct Datagram {
  FrameHeader header;
  const char* payload = nullptr;
  size_t size = 0;  // of the payload
  int descriptors[kMaxDescriptors] = {-1, -1, -1, -1};
  int count = 0;
  pid_t sender = 0;  // by the kernel, where the socket has SO_PASSCRED

  void CloseDescriptors();
};

enum class Receiving { kDatagram, kNothing, kGone, kMalformed };

// On kDatagram the caller owns the descriptors; otherwise there are none.
Receiving Receive(int fd, Datagram* message);

// False: not sent (full, or the other side is gone); errno says why. Descriptors stay the caller's.
bool Send(int fd, const FrameHeader& header, const void* payload = nullptr, size_t size = 0,
          const int* descriptors = nullptr, int count = 0);

}  // namespace hutch
