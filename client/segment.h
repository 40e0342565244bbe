// SPDX-License-Identifier: Apache-2.0

// Shared memory that carries large arguments into cells, and is used again.
//
// Filling pages that are fresh costs several times the copy itself, so a segment keeps its memfd
// and our mapping of it; filled a second time it costs a memcpy. A cell gets a descriptor of its
// own that can only read, of a file that is sealed against every writer but our mapping and that
// no other user may open: it can neither change what it was lent, nor reach the file anew, nor
// leave a file offset or a lock in it for the next one.
//
// Reuse fails closed. A segment goes back to its pool only when each loan of it was reported
// Ended(), that is, the warden has reaped the PID 1 of the cell's PID namespace, which the kernel
// lets it do only when every process in there is gone. (The end of the cell's streams or of its
// socket does not show that: code can close those and live on.) And only for the same worker, whose
// packages could have kept a descriptor, as they could have looked into its later calls anyway.
// What a call does not fill of a segment that was used before is zero.
//
// Thread contract: SegmentPool and Lend()/Ended() are thread-safe; a Segment is filled by one
// thread before it is lent.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "wire/clock.h"
#include "wire/fd.h"
#include "wire/memfd.h"
#include "wire/thread_annotations.h"

namespace hutch {

class Segment {
 public:
  explicit Segment(size_t capacity);  // zeros; a page is allocated when it is touched
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  size_t capacity() const { return capacity_; }
  // Our own mapping, the only way to write. Sealed from then on.
  char* Map();
  // Cells may execute it, and not open it.
  void MakeExecutable();
  // Places `parts` one after the other, each at the next multiple of kArgumentAlignment; the rest
  // becomes zero. REQUIRES: they fit, and it is not on loan.
  void Fill(std::span<const std::string_view> parts);

  // A descriptor for one cell. REQUIRES: filled, or mapped.
  Fd Lend();
  void Ended() { --loans_; }  // that cell is certainly dead
  bool on_loan() const { return loans_ != 0; }
  // Whether a process that it was lent to may still have it. Its pages may be in a pipe, too.
  bool IsHeldElsewhere() const { return hutch::IsHeldElsewhere(fd_.get()); }

 private:
  Fd fd_;
  size_t capacity_;
  size_t dirty_ = 0;  // from here on it is zero
  char* data_ = nullptr;
  bool populated_ = false;
  std::atomic<int> loans_{0};
};

// Segments that are not in use, at most `max_bytes` of them, each for at most `idle`. A thread
// exists only while some are held. A child of fork() must not use it, but may destroy it.
class SegmentPool : public std::enable_shared_from_this<SegmentPool> {
 public:
  static std::shared_ptr<SegmentPool> Make();  // 1 GiB, or an eighth of the memory; 10 s
  SegmentPool(size_t max_bytes, std::chrono::milliseconds idle);
  ~SegmentPool();
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;

  // One of at least `size` bytes for a cell of `worker`. Comes back by itself when the last
  // reference goes, if it is not on loan then.
  std::shared_ptr<Segment> Take(size_t size, const std::string& worker);

  size_t held_bytes() const;

 private:
  struct Held {
    std::unique_ptr<Segment> segment;
    std::string worker;
    Clock::time_point since;
  };

  void GiveBack(std::unique_ptr<Segment> segment, const std::string& worker);
  void Trim();  // what the thread does

  const size_t max_bytes_;
  const std::chrono::milliseconds idle_;
  const pid_t pid_;
  mutable Mutex mutex_;
  std::unique_ptr<CondVar> changed_ = std::make_unique<CondVar>();  // see the destructor
  std::deque<Held> held_ GUARDED_BY(mutex_);                        // the longest held first
  size_t held_bytes_ GUARDED_BY(mutex_) = 0;
  bool trimming_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread trimmer_ GUARDED_BY(mutex_);
};

}  // namespace hutch
