// SPDX-License-Identifier: Apache-2.0

#include "client/pool_call.h"

namespace hutch {
namespace {

constexpr int kSendAttempts = 9;  // each on another cell

}  // namespace

HeldLease PoolCall::SendOnce(const CallRequest& request, const CallHooks& hooks) {
  Clock::duration queue{};  // of all attempts
  Clock::duration worker_start{};
  for (int attempt = 0; attempt < kSendAttempts; ++attempt) {
    std::optional<HeldLease> held = leases_.Take(key_, request);
    leases_.GiveBackUnwanted(key_);
    if (!held) held = leases_.Acquire(key_, request, hooks);
    held->queue = queue += held->queue;
    held->worker_start = worker_start += held->worker_start;
    if (leases_.Send(*held, request)) return std::move(*held);
  }
  throw CellsEnd();
}

Underway PoolCall::Send(const CallRequest& request, const CallHooks& hooks) {
  const Clock::time_point begun =
      request.begun == Clock::time_point{} ? Clock::now() : request.begun;
  under_way_.emplace(leases_, key_);
  held_ = SendOnce(request, hooks);
  if (!request.shared()) leases_.WhileCallRuns(key_, request.identity);
  return {
      .request = request, .hooks = hooks, .record = RecordOf(*held_, request, begun), .sent = true};
}

void PoolCall::Fail(Underway& call) {
  try {
    throw;
  } catch (const Error& error) {
    // What the cell does wrong is its call's failure, and no other call's on this connection.
    if (error.code() == Code::kProtocol) return SetBroken(call.record, *held_, error);
    GiveUp(Ending::kFault);
    // The call was sent: whatever went wrong then, it may have run.
    throw Error(error.code(), error.what(), error.hint(), true);
  } catch (...) {
    GiveUp(Ending::kFault);
    throw;
  }
}

bool PoolCall::WaitsToConclude(const Underway& call) const {
  return call.request.network || !IsSimple(call.record.outcome);
}

CallRecord PoolCall::Conclude(Underway& call) {
  const CallRequest& request = call.request;
  HeldLease held = std::move(*held_);
  held_.reset();
  CallRecord record = std::move(call.record);
  if (!leases_.Keep(key_, request, held, record.outcome)) {
    // Not after a call that did not return: loading its function may be what took so long.
    const bool load_again = !request.shared() && IsSimple(record.outcome);
    record =
        leases_.Conclude(key_, held.lease.id(), std::move(record), held.lease.lending().TakeAll(),
                         request.network, load_again ? &request : nullptr);
    if (record.outcome.status != CallStatus::kBroken) leases_.DeferClose(std::move(held));
  }
  under_way_.reset();
  return record;
}

Error PoolCall::NoCall() const {
  return Error(Code::kWorkerFailed, "this call was given up", "make it again", true);
}

void PoolCall::GiveUp(Ending ending) {
  if (held_) leases_.GiveUp(held_->lease.id(), ending);
  held_.reset();
  under_way_.reset();
}

void PoolCall::Close() {
  turns_.Drop();
  turns_.ForgetSocket();
  GiveUp(Ending::kCancelled);
}

}  // namespace hutch
