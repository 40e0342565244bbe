// SPDX-License-Identifier: Apache-2.0

// The agent's one event loop: descriptors, timers, and work posted from other threads.
//
// Everything but Post() and Stop() belongs to the thread that calls Run(). Callbacks run on that
// thread, one at a time, so what they touch needs no lock. A callback may add and remove anything,
// itself included.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "wire/clock.h"
#include "wire/fd.h"
#include "wire/thread_annotations.h"

namespace hutch {

using TimerId = uint64_t;

class Loop {
 public:
  Loop();
  ~Loop();

  // Calls `ready(events)` whenever `fd` has any of `events` (EPOLLIN, ...). The loop does not own
  // `fd`: call Remove before closing it.
  void Add(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void Change(int fd, uint32_t events);
  void Remove(int fd);

  TimerId After(Clock::duration delay, std::function<void()> due);
  void Cancel(TimerId timer);  // of one that has fired or never was: nothing happens

  void Post(std::function<void()> work);  // from any thread

  void Run();   // until Stop(); may be run again
  void Stop();  // from any thread

 private:
  using Callback = std::shared_ptr<std::function<void(uint32_t)>>;
  int RunTimers();  // milliseconds until the next one, -1: none
  void RunPosted();

  Fd epoll_;
  Fd wake_;
  std::unordered_map<int, Callback> descriptors_;
  std::map<std::pair<Clock::time_point, TimerId>, std::function<void()>> timers_;
  std::unordered_map<TimerId, Clock::time_point> timer_times_;
  TimerId next_timer_ = 1;
  Mutex posted_mutex_;
  std::vector<std::function<void()>> posted_ GUARDED_BY(posted_mutex_);
  bool stopped_ = false;
};

}  // namespace hutch
