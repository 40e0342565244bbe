// SPDX-License-Identifier: Apache-2.0

// The warden's connection to the agent, and the frames that the agent has not taken yet.
//
// Sending never waits: what finds no room in the socket is queued, and goes out in its order when
// there is room. An agent that leaves more than kMaxUnsent frames unread is given up, as one that
// is gone: whoever comes next is sent what still matters (Warden::Announce).
//
// Thread contract: one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "images/warden/events.h"
#include "images/warden/settings.h"
#include "wire/cell_frame.h"

namespace hutch {

class AgentLink {
 public:
  static constexpr size_t kMaxUnsent = 256;
  static constexpr size_t kMaxQueued =
      256;  // bytes of a payload: what is beyond is cut in the queue

  // Both outlive the link.
  AgentLink(const Settings& settings, const Events& events)
      : settings_(settings), events_(events) {}

  // Connects, and says hello with the token. False: there is no agent now.
  bool Connect();
  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void Lose();
  int64_t gone_us() const { return gone_us_; }  // since when there is none
  void NoteGone();

  // Where nobody is connected, nothing is sent.
  void Report(const FrameHeader& header, const void* payload = nullptr, size_t size = 0);
  void Flush();  // there may be room

 private:
  struct Unsent {
    FrameHeader header;
    uint16_t size;
    char payload[kMaxQueued];
  };

  const Settings& settings_;
  const Events& events_;
  int fd_ = -1;
  int64_t gone_us_ = 0;
  bool waits_ = false;  // for room
  Unsent unsent_[kMaxUnsent];
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace hutch
