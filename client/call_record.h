// SPDX-License-Identifier: Apache-2.0

// What became of a call, with all that the agent and the warden report of it. Values: one thread at
// a time.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/stock.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/message.h"

namespace hutch {

struct CallRecord {
  CallOutcome outcome;
  std::optional<CellReport> report;  // requested unless the call simply returned or raised
  std::vector<NetworkRecord> network{};
  std::string worker;
  Clock::duration queue{};         // until it had a cell
  Clock::duration worker_start{};  // part of that
  Clock::time_point begun{};
  uint64_t policy = 0;  // with `code` and `calls`: see CallStats
  std::array<uint64_t, 2> code{};
  uint32_t calls = 1;
  Clock::duration background{};  // CPU time, see Session

  Clock::duration send() const { return outcome.sent - begun - queue; }
  Clock::duration run() const { return outcome.ended - outcome.sent; }
};

// A call that is over, but whose report is still to be requested: see Client::Conclude.
struct OpenCall {
  std::string key;
  HeldLease held;
  CallRecord record;
  bool network = false;
};

uint64_t RandomCallId();  // never 0
// Whether no report is needed to say how it ended.
bool IsSimple(const CallOutcome& outcome);
CallRecord RecordOf(const HeldLease& held, const CallRequest& request, Clock::time_point begun);
// The cell broke the protocol.
void SetBroken(CallRecord& record, const HeldLease& held, const Error& error);
CallStats NoteOf(const CallRecord& record);

}  // namespace hutch
