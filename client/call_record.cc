// SPDX-License-Identifier: Apache-2.0

#include "client/call_record.h"

#include <random>

namespace hutch {
namespace {

Ending EndingOf(const CallOutcome& outcome) {
  switch (outcome.status) {
    case CallStatus::kReturned:
      return Ending::kReturned;
    case CallStatus::kRaised: {
      const Ending limit = EndingOfLimit(outcome.usage.limit);
      return limit == Ending::kNoCall ? Ending::kRaised : limit;
    }
    case CallStatus::kUnencodable:
      return Ending::kRaised;
    case CallStatus::kTooLarge:
      return Ending::kLimitResult;
    case CallStatus::kOutOfMemory:
      return Ending::kLimitMemory;
    case CallStatus::kTimedOut:
      return Ending::kLimitTime;
    case CallStatus::kCancelled:
    case CallStatus::kInterrupted:
      return Ending::kCancelled;
    case CallStatus::kBroken:
      return Ending::kDied;
    case CallStatus::kEnded:
      return Ending::kUntold;
  }
  return Ending::kUntold;
}

}  // namespace

uint64_t RandomCallId() {
  thread_local std::mt19937_64 engine{(uint64_t{std::random_device{}()} << 32) ^
                                      std::random_device{}()};
  return engine() | 1;
}

bool IsSimple(const CallOutcome& outcome) {
  return outcome.status == CallStatus::kReturned || outcome.status == CallStatus::kUnencodable ||
         (outcome.status == CallStatus::kRaised && outcome.usage.limit == kNoLimit);
}

CallRecord RecordOf(const HeldLease& held, const CallRequest& request, Clock::time_point begun) {
  return {.outcome = CallOutcome(),
          .report = {},
          .worker = held.lease.worker(),
          .queue = held.queue,
          .worker_start = held.worker_start,
          .begun = begun,
          .policy = request.policy,
          .code = request.code,
          .calls = static_cast<uint32_t>(held.calls)};
}

void SetBroken(CallRecord& record, const HeldLease& held, const Error& error) {
  record.outcome.status = CallStatus::kBroken;
  record.outcome.sent = held.lease.clock().sent();
  record.outcome.ended = Clock::now();
  record.outcome.detail = error.what();
}

CallStats NoteOf(const CallRecord& record) {
  return {EndingOf(record.outcome),
          ToMicroseconds(record.queue),
          ToMicroseconds(record.send()),
          ToMicroseconds(record.run()),
          ToMicroseconds(Clock::now() - record.outcome.ended),
          record.outcome.call_id,
          record.policy,
          record.code,
          record.calls};
}

}  // namespace hutch
