// SPDX-License-Identifier: Apache-2.0

// A thread that measures one cell's processes exactly. A process that keeps it waiting delays
// nothing else: the warden's own thread asks, goes on, and is notified of the answer by an eventfd.
//
// Thread contract: one thread uses it, and it has a thread of its own, which owns the job between
// Ask() and the answer. It is never destroyed.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "images/warden/measure.h"

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
  using Measure = Answer (*)(const Job& job);

  // Starts the thread. `answered`, an eventfd, is written to with each answer. False: it cannot
  // start.
  bool Start(Measure measure, int answered);
  bool started() const { return asked_ >= 0; }

  // REQUIRES: started() and not busy().
  void Ask(const Job& job);
  bool busy() const { return state_.load(std::memory_order_acquire) != State::kIdle; }
  const Job& job() const { return job_; }  // REQUIRES: busy()

  // Takes the answer, once. False: there is none yet.
  bool Take(Answer* answer);

  // Whether its thread is blocked now, by more than waiting for a processor.
  bool Waits() const;

 private:
  enum class State { kIdle, kAsked, kAnswered };
  static void* Run(void* self);
  void Serve();

  Measure measure_ = nullptr;
  int answered_ = -1;
  int asked_ = -1;             // an eventfd
  std::atomic<int> stat_{-1};  // what /proc says of the thread
  std::atomic<State> state_{State::kIdle};
  Job job_;
  Answer answer_;
};

// Does a job; passed to Start().
Reader::Answer MeasureExactly(const Reader::Job& job);

}  // namespace hutch
