// SPDX-License-Identifier: Apache-2.0

// The processor time of a cell: that of its living processes, of those that they waited for, and of
// those that no process waited for. The kernel adds the time of a process to its parent's when it
// is waited for; where a parent has SIGCHLD ignored it adds it to nobody's.
//
// Each sample shows what every process has used. A process that is gone since the last sample has
// left its time, and its page faults, with the process that waited for it; what is missing was
// lost, and is added here as it was last seen. What such processes used after that sample, and
// processes that no sample saw, are estimated, once faults prove that processes go without being
// waited for: a process that runs at the time of a sample stands for all that ran since the sample
// before. So is what a process used whose time the kernel has not shown yet, which it counts in
// units of 10 ms. The times of samples cannot be predicted (Ticker::Set), so the estimate is
// right on average.
//
// Thread contract: one thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace hutch {

// What /proc shows of a process.
struct ProcessTimes {
  pid_t pid = 0;
  pid_t parent = 0;
  bool running = false;  // or ready to run: its first thread, or others where that one is not
  uint32_t threads = 0;  // all, or those others
  uint32_t all_threads = 0;
  uint64_t began = 0;     // distinguishes it from an earlier process with that number
  uint64_t cpu_us = 0;    // its own, and of children that it waited for
  uint64_t given_us = 0;  // of the latter
  uint64_t faults = 0;    // likewise
  uint64_t given_faults = 0;
  uint64_t ran_us = 0;  // estimated by SpentTime: at the looks so far, where it ran
};

class SpentTime {
 public:
  // More processes at once are not followed: each counts while it lives.
  static constexpr size_t kMost = 1024;

  void Reset() { *this = {}; }

  // Adds a sample. `share`: how much of a processor a thread that can run has, 1 where there are
  // enough. `processes` are in the order of their numbers, are filled in (`ran_us`), and are kept:
  // swap two tables in turn.
  void AddSample(ProcessTimes* processes, size_t count, const ProcessTimes* before,
                 size_t before_count, int64_t now_us, double share, unsigned cpus);

  // What is missing from what the living have.
  uint64_t lost_us() const;

  // Whether processes go without being waited for, so that their last samples matter.
  bool loses() const;

 private:
  // What went away without being received. A process may be gone, and its parent's times have been
  // read before: what is received until the next sample still counts.
  class Missing {
   public:
    void Add(uint64_t gone, uint64_t received);
    uint64_t certain() const { return certain_; }

   private:
    uint64_t certain_ = 0;
    uint64_t last_ = 0;  // missing since the last sample
  };

  int64_t sampled_us_ = 0;
  Missing seen_;
  Missing estimated_;
  Missing faults_;
};

}  // namespace hutch
