// SPDX-License-Identifier: Apache-2.0

// Each call once: in the metrics of its pool, in the count of all calls, and in the audit log.
//
// Belongs to the loop's thread; time comes in as an argument.
#pragma once

#include <cstdint>

#include "agent/audit.h"
#include "agent/metrics.h"
#include "wire/message.h"

namespace hutch {

class CallLedger {
 public:
  // `audit` outlives this, or nullptr: nothing is written.
  void WriteAuditTo(AuditLog* audit) { audit_ = audit; }
  void Configure(const AuditSettings& settings);
  void NotePolicy(const Prepare& prepare);

  // Counts a call that has ended. `pool`: nullptr when its pool is gone. `held_ahead`: the cell was
  // leased before the call wanted it. A lease that served no call (kNoCall) is not counted.
  void Count(PoolMetrics* pool, bool held_ahead, const CallStats& note, Clock::time_point now);
  // Counts a call that was running when its client went away.
  void CountAbandoned(PoolMetrics& pool, bool held_ahead, Clock::time_point now);
  // Writes the call to the audit log; `entry` without a pool is dropped.
  void Audit(AuditEntry entry, const CallStats& note);

  uint64_t calls() const { return calls_; }  // in all, also of pools that are gone

 private:
  AuditLog* audit_ = nullptr;
  uint64_t calls_ = 0;
};

}  // namespace hutch
