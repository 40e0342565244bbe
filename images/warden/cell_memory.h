// SPDX-License-Identifier: Apache-2.0

// What is known of a cell's memory, beyond the sizes of its processes: its scratch, the memory that
// it was given for a result, and what no size of a process shows, kernel objects and shared areas
// whose pages may be in nobody's page tables. Of these the host's own numbers tell that there is
// more, and not whose it is: that decides when they are measured, and a cell that hides what it has
// answers for all of it. Reads nothing itself.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>

#include "images/warden/host_growth.h"
#include "images/warden/measure.h"

namespace hutch {

// What the host has, and what is known of its shared memory.
struct HostView {
  HostMemory memory;
  uint64_t known_shared_kb = 0;  // in the scratches of our cells, or mapped by their processes
};

// The memory that the client has given a cell to return its call's result in. The client takes it
// back when the call is over, whatever processes do with it (client/given_memory.h).
class ResultMemory {
 public:
  // An order for the cell's call says that it has `kb`.
  void Give(uint64_t kb, int64_t now);
  uint64_t kb() const { return kb_; }
  // What counts as the cell's: all, but only after a while, since a result that is on its way is
  // the caller's.
  uint64_t CountedKb(int64_t now) const;

 private:
  uint64_t kb_ = 0;
  int64_t given_us_ = 0;
};

class CellMemory {
 public:
  // A growth of the host's shared memory, or of its kernel's, that is worth a measurement; also
  // what an area may have held before a sample saw it.
  static constexpr uint64_t kStepKb = 8 << 10;

  ResultMemory result;

  // ---- what the host has more
  void See(const HostView& host);  // at a sample
  // The shared memory, as it was read before its processes were found to sleep on.
  void SeeAsleep(const HostView& host);
  bool host_lost() const { return host_lost_; }      // its objects are to be measured
  bool host_shares() const { return host_shares_; }  // its shared areas are
  bool has_objects() const { return kernel_kb_ > kStepKb; }
  bool has_areas() const { return areas_kb_ != 0; }
  // A reader is sent to its processes: what the host loses from then on it may not find.
  void Ask(const HostView& host);
  void TakeObjects(const KernelObjects& objects, const HostView& host);
  void TakeAreas(const SharedAreas& areas, const HostView& host);
  // It keeps from being measured what is measured now.
  void ChargeObjects(const HostView& host);
  void ChargeAreas(const HostView& host);
  void ForgetAreas();  // of an earlier call

  // ---- the sum
  void SetBase(uint64_t kb) { base_kb_ = kb; }  // single cell: what is not the call's
  uint64_t base_kb() const { return base_kb_; }
  // Returns what it was before.
  uint64_t SetScratch(uint64_t kb);
  uint64_t scratch_kb() const { return scratch_kb_; }
  void SetShared(uint64_t kb) { shared_kb_ = kb; }  // that its processes map
  uint64_t shared_kb() const { return shared_kb_; }
  uint64_t Sum(const Usage& usage, uint64_t scratch_kb, uint64_t socket_kb, int64_t now) const;
  // On gVisor: of what its kernel has.
  uint64_t SumOfKernel(uint64_t kernels_kb, int64_t now) const;
  // Beside the resident sizes of its processes.
  uint64_t BesideProcesses(uint64_t scratch_kb, uint64_t socket_kb) const {
    return scratch_kb + socket_kb + kernel_kb_ + result.kb();
  }

 private:
  uint64_t UnexplainedKb(const HostView& host) const;

  uint64_t base_kb_ = 0;
  uint64_t scratch_kb_ = 0;    // as measured last
  uint64_t shared_kb_ = 0;     // likewise
  uint64_t kernel_kb_ = 0;     // of kernel objects, as last seen
  uint64_t available_kb_ = 0;  // the most that the host had since they were measured
  HostGrowth slab_;            // of the host's
  HostGrowth unmeasured_slab_;
  HostGrowth shared_;  // of UnexplainedKb()
  HostGrowth unmeasured_shared_;
  // When a reader was last sent.
  uint64_t asked_slab_kb_ = 0;
  uint64_t asked_available_kb_ = 0;
  uint64_t asked_unexplained_kb_ = 0;
  bool host_lost_ = false;
  bool host_shares_ = false;
  SharedAreas areas_;      // as measured last
  uint64_t areas_kb_ = 0;  // what they may hold
  int cut_samples_ = 0;    // the last measurements of them that had no time to see all
};

}  // namespace hutch
