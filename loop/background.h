// SPDX-License-Identifier: Apache-2.0

// A few threads for what blocks: libpod and environment builds. Results go back to the event loop
// by Loop::Post.
//
// Post() is safe from any thread. The destructor lets running work end and drops what has not
// begun.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "wire/thread_annotations.h"

namespace hutch {

class Background {
 public:
  explicit Background(int threads);
  ~Background();
  void Post(std::function<void()> work);  // REQUIRES: `work` does not throw

 private:
  void RunThread();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace hutch
