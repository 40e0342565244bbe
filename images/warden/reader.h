// SPDX-License-Identifier: Apache-2.0

// A thread that looks at one cell's processes exactly, so that whoever keeps it waiting keeps
// nobody else: the warden's own thread asks, goes on, and is notified of the answer by an eventfd.
//
// Thread contract: one thread uses it, and it has one of its own. Between Ask() and the answer the
// job is that thread's. It is never destroyed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "images/warden/watch.h"

namespace hutch {

class Reader {
 public:
  struct Job {
    int owner = -1;  // whose processes these are: a slot, or the worker
    uint64_t cell = 0;
    int proc = -1;  // the reader's own, which closes it
    bool objects = false;
    bool areas = false;
    Scratches scratches{};
    const pid_t* only = nullptr;  // these, not all that `proc` shows
    size_t only_count = 0;
  };
  struct Answer {
    Usage usage;
    KernelObjects objects;
    SharedAreas areas;
  };
  using Look = Answer (*)(const Job& job);

  // Starts the thread. `answered`, an eventfd, is written to with each answer. False: it cannot
  // start.
  bool Start(Look look, int answered);
  bool started() const { return asked_ >= 0; }

  // Only one that is started and not busy.
  void Ask(const Job& job);
  bool busy() const { return state_.load(std::memory_order_acquire) != State::kIdle; }
  const Job& job() const { return job_; }  // of a busy one

  // The answer, once. False: there is none yet.
  bool Take(Answer* answer);

  // Whether its thread is kept waiting at this moment, and not merely for a processor.
  bool Waits() const;

 private:
  enum class State { kIdle, kAsked, kAnswered };
  static void* Run(void* self);
  void Serve();

  Look look_ = nullptr;
  int answered_ = -1;
  int asked_ = -1;             // an eventfd
  std::atomic<int> stat_{-1};  // what /proc says of the thread
  std::atomic<State> state_{State::kIdle};
  Job job_;
  Answer answer_;
};

// What a job asks for.
Reader::Answer LookExactly(const Reader::Job& job);

}  // namespace hutch
