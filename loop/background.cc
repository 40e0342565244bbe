// SPDX-License-Identifier: Apache-2.0

#include "loop/background.h"

#include <utility>

namespace hutch {

Background::Background(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

Background::~Background() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void Background::Post(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.NotifyOne();
}

void Background::RunThread() {
  for (;;) {
    std::function<void()> work;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && queue_.empty()) changed_.Wait(mutex_);
      if (stopping_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace hutch
