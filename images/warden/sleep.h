// SPDX-License-Identifier: Apache-2.0

// Whether all processes of a cell have slept since they were last listed, at the price of a
// microsecond.
//
// The kernel keeps, to the nanosecond, how long each process has run. A process that has not run
// since its children were listed has no other ones, so where none of those that were listed has
// run, there are no others in the cell, and none of them took memory or made anything.
//
// Thread contract: one thread.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <cstddef>
#include <cstdint>

namespace hutch {

class Sleep {
 public:
  static constexpr size_t kMost = 64;  // of more processes it cannot be said

  // Lists `init`, by its number in `proc`, which only reaps, and all that descend from it.
  // `cell_proc` shows these and no others. False: it cannot be said, because some run now, or the
  // kernel does not tell.
  bool Begin(int proc, pid_t init, int cell_proc);

  // REQUIRES: nothing; false where Begin() was false.
  bool Lasts() const;

  void End() { count_ = 0; }

 private:
  bool Add(pid_t pid);

  struct One {
    clockid_t clock;
    pid_t pid;
    uint64_t ran_ns;
  };
  One one_[kMost];
  size_t count_ = 0;
};

// How much processor time may be spent on what is of use but can wait: so much of each second, and
// what was saved of it lately.
class Allowance {
 public:
  // `percent` of one processor, and `most_us` at once.
  Allowance(int percent, int64_t most_us) : percent_(percent), most_us_(most_us) {}
  bool Has(int64_t now_us);
  void Spend(int64_t us) { left_us_ -= us; }

 private:
  const int percent_;
  const int64_t most_us_;
  int64_t left_us_ = most_us_;
  int64_t filled_us_ = 0;
};

}  // namespace hutch
