// SPDX-License-Identifier: Apache-2.0

// Of a kind of memory that does not show whose it is: the most that may be a cell's. That is what
// the host has now, less the least that it has had since the cell began to be watched. What the
// host gains or loses while all processes of the cell sleep is not the cell's.
//
// Thread contract: one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hutch {

class HostGrowth {
 public:
  // What the host has now, at a time when the cell may have run since the last one.
  void See(uint64_t kb) {
    if (!begun_ || kb < least_kb_) least_kb_ = kb;
    begun_ = true;
    seen_kb_ = kb;
  }
  // The same, where the cell has slept since the last one.
  void SeeAsleep(uint64_t kb) {
    if (!begun_) return See(kb);
    least_kb_ += kb;
    least_kb_ -= std::min(least_kb_, seen_kb_);
    See(kb);
  }
  // What there was when the host had `kb` is known of.
  void Explain(uint64_t kb) {
    if (!begun_) seen_kb_ = kb;
    begun_ = true;
    least_kb_ = kb;
  }
  // Of `kb`, what may be the cell's: nothing before the first See().
  uint64_t Of(uint64_t kb) const { return begun_ ? kb - std::min(kb, least_kb_) : 0; }

 private:
  bool begun_ = false;
  uint64_t least_kb_ = 0;
  uint64_t seen_kb_ = 0;
};

}  // namespace hutch
