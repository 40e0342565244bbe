// SPDX-License-Identifier: Apache-2.0

#include "loop/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "wire/error.h"

namespace hutch {

Loop::Loop()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) ThrowErrno("make the event loop");
  Add(wake_.get(), EPOLLIN, [this](uint32_t) {
    uint64_t count;
    if (::read(wake_.get(), &count, sizeof count) < 0 && errno != EAGAIN)
      ThrowErrno("read the wake-up of the event loop");
    RunPosted();
  });
}

Loop::~Loop() = default;

void Loop::Add(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    ThrowErrno("add a descriptor to the event loop");
  descriptors_[fd] = std::make_shared<std::function<void(uint32_t)>>(std::move(ready));
}

void Loop::Change(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0)
    ThrowErrno("change a descriptor of the event loop");
}

void Loop::Remove(int fd) {
  if (descriptors_.erase(fd) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

TimerId Loop::After(Clock::duration delay, std::function<void()> due) {
  const TimerId id = next_timer_++;
  const Clock::time_point time = Clock::now() + ClampToYear(delay);
  timers_.emplace(std::pair(time, id), std::move(due));
  timer_times_[id] = time;
  return id;
}

void Loop::Cancel(TimerId timer) {
  const auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

void Loop::Post(std::function<void()> work) {
  {
    const MutexLock lock(posted_mutex_);
    posted_.push_back(std::move(work));
  }
  const uint64_t one = 1;
  // A full counter means that a wake-up is pending anyway.
  if (::write(wake_.get(), &one, sizeof one) < 0 && errno != EAGAIN)
    ThrowErrno("wake the event loop");
}

void Loop::Stop() {
  Post([this] { stopped_ = true; });
}

int Loop::RunTimers() {
  const Clock::time_point now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
  if (timers_.empty()) return -1;
  const auto wait =
      std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(wait.count(), 0, 60'000));
}

void Loop::RunPosted() {
  std::vector<std::function<void()>> work;
  {
    const MutexLock lock(posted_mutex_);
    work.swap(posted_);
  }
  for (auto& item : work) item();
}

void Loop::Run() {
  std::array<epoll_event, 64> events;
  while (!stopped_) {
    const int timeout = RunTimers();
    if (stopped_) break;
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
    if (count < 0 && errno != EINTR) ThrowErrno("wait for events");
    for (int i = 0; i < count; ++i) {
      const auto found = descriptors_.find(events[static_cast<size_t>(i)].data.fd);
      if (found == descriptors_.end()) continue;  // removed by an earlier callback of this round
      const Callback keep = found->second;        // the callback may remove itself
      (*keep)(events[static_cast<size_t>(i)].events);
    }
  }
  stopped_ = false;
}

}  // namespace hutch
