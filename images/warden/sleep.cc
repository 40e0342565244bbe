// SPDX-License-Identifier: Apache-2.0

#include "images/warden/sleep.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/proc_files.h"

namespace hutch {
namespace {

// False: there is no such process, or this kernel does not say.
bool RanNs(clockid_t clock, uint64_t* ns) {
  timespec time;
  if (clock_gettime(clock, &time) != 0) return false;
  *ns = static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  return true;
}

// Calls `body` with the number of each child that a thread has. False: the kernel does not say.
template <typename Body>
bool EachChild(int task, long thread, Body body) {
  char path[48];
  char text[1024];
  snprintf(path, sizeof path, "%ld/children", thread);
  const int fd = openat(task, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size < 0 || static_cast<size_t>(size) == sizeof text - 1) return false;
  text[size] = '\0';
  char* end = text;
  for (long child; (child = strtol(end, &end, 10)) > 0;) {
    if (!body(static_cast<pid_t>(child))) return false;
  }
  return true;
}

}  // namespace

bool Sleep::Add(pid_t pid) {
  if (count_ == kMost) return false;
  One& one = one_[count_];
  one.pid = pid;
  if (clock_getcpuclockid(pid, &one.clock) != 0 || !RanNs(one.clock, &one.ran_ns)) return false;
  ++count_;
  return true;
}

bool Sleep::Begin(int proc, pid_t init, int cell_proc) {
  count_ = 0;
  bool whole = Add(init);
  for (size_t i = 0; whole && i < count_; ++i) {
    char path[48];
    snprintf(path, sizeof path, "%d/task", one_[i].pid);
    const int task = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    whole = task >= 0;
    if (!whole) break;
    EachNumber(task, [&](long thread) {
      return whole = EachChild(task, thread, [this](pid_t child) { return Add(child); });
    });
    close(task);
  }
  // One whose parent has just ended may have changed places with it while they were listed.
  size_t shown = 0;
  if (whole) {
    lseek(cell_proc, 0, SEEK_SET);
    EachNumber(cell_proc, [&](long) { return ++shown <= count_; });
  }
  whole = whole && shown == count_;
  if (!whole) count_ = 0;
  return whole;
}

bool Sleep::Lasts() const {
  // Where there are others, `init` does nothing before one of them has.
  for (size_t i = count_ > 1 ? 1 : 0; i < count_; ++i) {
    uint64_t ns = 0;
    if (!RanNs(one_[i].clock, &ns) || ns != one_[i].ran_ns) return false;
  }
  return count_ != 0;
}

bool Allowance::Has(int64_t now_us) {
  left_us_ = std::min(most_us_, left_us_ + (now_us - filled_us_) * percent_ / 100);
  filled_us_ = now_us;
  return left_us_ > 0;
}

}  // namespace hutch
