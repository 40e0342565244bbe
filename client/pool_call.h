// SPDX-License-Identifier: Apache-2.0

// One call of a pool: takes a cell of it, or waits for one, and sends the call; takes another one
// when the agent took that one back, or it is gone. Then Call() waits for its outcome, or turns()
// do. One thread at a time; its Client outlives it.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "client/call_record.h"
#include "client/held_leases.h"
#include "client/reports.h"
#include "client/turns.h"

namespace hutch {

class PoolCall final : private Caller {
 public:
  // `key`: the pool's, prepared.
  PoolCall(Reports& reports, HeldLeases& leases, std::string key)
      : reports_(reports), leases_(leases), key_(std::move(key)) {}
  ~PoolCall() { Close(); }
  PoolCall(const PoolCall&) = delete;
  PoolCall& operator=(const PoolCall&) = delete;

  CallRecord Call(const CallRequest& request, const CallHooks& hooks) {
    return MakeCall(request, hooks);
  }
  Turns& turns() { return turns_; }
  const Turns& turns() const { return turns_; }
  void Close();  // Ends it, if it is under way, as cancelled. Never throws.

 private:
  Underway Send(const CallRequest& request, const CallHooks& hooks) override;
  HeldLease SendOnce(const CallRequest& request, const CallHooks& hooks);
  Lease* lease() override { return held_ ? &held_->lease : nullptr; }
  void OnSlow(Underway& call) override { leases_.TellStarted(*held_, call.request); }
  bool IsLost(bool hung_up) override { return reports_.IsLost(held_->lease.id(), hung_up); }
  void Take(Underway& call, CallOutcome outcome) override {
    call.record.outcome = std::move(outcome);
  }
  void Fail(Underway& call) override;
  bool WaitsToConclude(const Underway& call) const override;
  CallRecord Conclude(Underway& call) override;
  Error NoCall() const override;
  void GiveUp(Ending ending);

  Reports& reports_;
  HeldLeases& leases_;
  std::string key_;
  std::optional<HeldLeases::CallUnderWay> under_way_;
  std::optional<HeldLease> held_;  // while the call is under way
  Turns turns_{*this};
};

}  // namespace hutch
