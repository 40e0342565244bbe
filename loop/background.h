// SPDX-License-Identifier: Apache-2.0

// A few threads for what blocks: libpod and environment builds. Results go back to the event loop
// by Loop::Post.
//
// Post() is safe from any thread. The destructor lets running work end and drops what has not
// begun.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hutch {

class Background {
 public:
  explicit Background(int threads);
  ~Background();
  void Post(std::function<void()> work);  // REQUIRES: `work` does not throw

 private:
  void RunThread();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hutch
