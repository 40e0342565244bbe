// SPDX-License-Identifier: Apache-2.0

// What one cell is lent: the memory of the large arguments of its calls.
//
// A cell that dies with its call gives all of it back by its death, which is somebody else's to
// learn (Reports). One that is kept gives back what none of its processes has any more: that is
// looked for when it is lent more, and of what its last call was lent, before the next one. Such
// memory is not used again for other cells: pages that code has put into a pipe have no open file
// that would tell of them. The last of it serves the cell's next call, the rest is freed.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/segment.h"
#include "wire/fd.h"

namespace hutch {

// A large part of the arguments. `segment`: the one whose content it is, which is lent as it is.
struct Buffer {
  explicit Buffer(std::string_view content, std::shared_ptr<Segment> holder = nullptr)
      : bytes(content), segment(std::move(holder)) {}
  std::string_view bytes;
  std::shared_ptr<Segment> segment;
  bool is_bytes = false;  // a Python bytes object: read-only
};

using Loans = std::vector<std::shared_ptr<Segment>>;

class Lending {
 public:
  // `segments`: where the memory comes from.
  explicit Lending(std::shared_ptr<SegmentPool> segments) : segments_(std::move(segments)) {}

  // Lends the buffers to a call of a cell of `worker`. Appends the descriptors of the memory that
  // holds them; returns the places, the kCall frame's section 3.
  std::vector<uint64_t> Lend(const std::vector<Buffer>& buffers, const std::string& worker,
                             std::vector<Fd>& descriptors);
  // Nothing of the last Lend() arrived.
  void TakeBackUnsent();

  // Of a kept cell, before it is lent `more` buffers.
  void FreeReturned(bool more);
  // No process has any of it, or none is asked: it is not used again.
  void FreeAll();
  uint64_t bytes() const;  // that are lent

  bool any() const { return !loans_.empty(); }
  // The caller calls Ended() of each when the cell is certainly dead; without that, it is not used
  // again.
  Loans TakeAll() { return std::exchange(loans_, {}); }

 private:
  // As large as that. What came back stays marked as lent, so that it never gets to the pool.
  std::shared_ptr<Segment> TakeFor(size_t size, const std::string& worker);

  std::shared_ptr<SegmentPool> segments_;
  Loans loans_;
  std::shared_ptr<Segment> spare_;  // came back: for this cell alone
  size_t before_ = 0;               // of them, those that calls before the last one were lent
};

}  // namespace hutch
