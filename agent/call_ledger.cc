// SPDX-License-Identifier: Apache-2.0

#include "agent/call_ledger.h"

#include <utility>

namespace hutch {

void CallLedger::Configure(const AuditSettings& settings) {
  if (audit_ != nullptr) audit_->Configure(settings);
}

void CallLedger::NotePolicy(const Prepare& prepare) {
  if (audit_ != nullptr) audit_->NotePolicy(prepare);
}

void CallLedger::Count(PoolMetrics* pool, bool held_ahead, const CallStats& note,
                       Clock::time_point now) {
  if (note.ending == Ending::kNoCall) return;
  ++calls_;
  if (pool != nullptr) pool->Add(note, held_ahead, now);
}

void CallLedger::CountAbandoned(PoolMetrics& pool, bool held_ahead, Clock::time_point now) {
  ++calls_;
  pool.AddAbandoned(held_ahead, now);
}

void CallLedger::Audit(AuditEntry entry, const CallStats& note) {
  if (audit_ == nullptr || entry.pool == nullptr || note.ending == Ending::kNoCall) return;
  entry.note = note;
  audit_->Append(std::move(entry));
}

}  // namespace hutch
