// SPDX-License-Identifier: Apache-2.0

#include "loop/background.h"

#include <utility>

namespace hutch {

Background::Background(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Background::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Background::RunThread() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace hutch
