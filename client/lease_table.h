// SPDX-License-Identifier: Apache-2.0

// The marks of one client's leases, in memory shared with the agent, by which exactly one of the
// two takes a lease that is idle: the client for a call, or the agent to end it.
//
// Thread-safe: each mark is changed atomically.
#pragma once

#include <cstdint>

#include "wire/fd.h"

namespace hutch {

class LeaseTable {
 public:
  explicit LeaseTable(const Fd& memfd);  // as the agent sends it with Welcome
  ~LeaseTable();
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;

  // False: the agent has taken the lease back.
  bool MarkUsed(uint32_t slot, uint64_t lease);
  void MarkIdle(uint32_t slot, uint64_t lease);
  void CountUse(uint32_t slot);  // of a lease that serves several calls

 private:
  uint32_t* slots_;  // kLeaseTableSlots, and their counters
};

}  // namespace hutch
