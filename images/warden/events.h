// SPDX-License-Identifier: Apache-2.0

// What the warden's one thread waits for.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

namespace hutch {

class Events {
 public:
  // What an event is about: a slot's number (below kMostSlots), or one of these.
  enum Source : uint32_t { kAgent = 1000, kZygote, kTimer, kSignal, kReader, kStderr };

  void Open() { epoll_ = epoll_create1(EPOLL_CLOEXEC); }

  void Watch(int fd, uint32_t source) const { Control(EPOLL_CTL_ADD, fd, source, EPOLLIN); }

  // Of one that is watched: `room`: whether it is watched for room to write, too.
  void WatchForRoom(int fd, uint32_t source, bool room) const {
    Control(EPOLL_CTL_MOD, fd, source, EPOLLIN | (room ? EPOLLOUT : 0u));
  }

  // Waits without end; returns how many of `events` it has filled, or -1.
  int Wait(epoll_event* events, int most) const { return epoll_wait(epoll_, events, most, -1); }

 private:
  void Control(int operation, int fd, uint32_t source, uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.u32 = source;
    epoll_ctl(epoll_, operation, fd, &event);
  }

  int epoll_ = -1;
};

}  // namespace hutch
