// SPDX-License-Identifier: Apache-2.0

#include "client/client.h"

#include <charconv>
#include <utility>

namespace hutch {
namespace {

constexpr int kSendAttempts = 9;  // each on another cell

}  // namespace

Client::Client(const std::string& socket, long connect_uid)
    : connection_(socket, connect_uid, *this),
      leases_(connection_, reports_, [this](const std::string& key) REQUIRES(connection_lock) {
        in_flight_.OnCell(key);
      }) {}

void Client::OnMessage(uint64_t request, ReceivedMessage received) {
  if (const auto* report = std::get_if<Report>(&received.message)) {
    users_.OnGone(report->lease);
    return reports_.Add(*report);
  }
  if (const auto* ended = std::get_if<UserEnded>(&received.message))
    return users_.OnEnded(*ended, std::move(received.descriptors));
  if (const auto* ready = std::get_if<UserReady>(&received.message)) return users_.OnReady(*ready);
  if (const auto* background = std::get_if<BackgroundCpu>(&received.message))
    return users_.OnBackground(*background);
  if (leases_.OnMessage(request, received) || in_flight_.OnMessage(request, received)) return;
  connection_.GiveBack(received.message);  // the thread that asked for it gave up meanwhile
}

PoolReady Client::PreparePool(Prepare prepare, const std::function<void(const Progress&)>& progress,
                              const CallHooks& hooks) {
  const uint64_t id = prepare.request = connection_.NextRequest();
  PoolReady prepared;
  // The agent has the deadline; ours is only for an agent that does not answer at all.
  const Clock::time_point deadline = DeadlineIn(prepare.timeout_ms) + std::chrono::seconds(200);
  connection_.Converse(prepare, id, deadline, hooks, [&](ReceivedMessage& received) {
    if (const auto* step = std::get_if<Progress>(&received.message)) {
      if (progress) progress(*step);
      return false;
    }
    if (auto* done = std::get_if<PoolReady>(&received.message)) {
      prepared = std::move(*done);
      in_flight_.SetMaxCells(prepared.key, prepared.max_cells);
      return true;
    }
    throw Error(Code::kProtocol, "the agent did not answer whether a pool is prepared");
  });
  return prepared;
}

uint64_t Client::WarmPool(const std::string& key, int64_t cells, uint64_t timeout_ms,
                          const CallHooks& hooks) {
  const uint64_t id = connection_.NextRequest();
  uint64_t ready = 0;
  connection_.Converse(
      Warm{id, key, cells}, id, DeadlineIn(timeout_ms), hooks, [&](ReceivedMessage& received) {
        const auto* answer = std::get_if<Answer>(&received.message);
        if (answer == nullptr)
          throw Error(Code::kProtocol, "the agent did not answer what it was asked");
        const char* end = answer->text.data() + answer->text.size();
        if (std::from_chars(answer->text.data(), end, ready).ptr != end) {
          throw Error(Code::kProtocol, "the agent did not answer with a number");
        }
        return true;
      });
  return ready;
}

std::string Client::AskAgent(const std::string& what, uint64_t timeout_ms, const CallHooks& hooks) {
  const uint64_t id = connection_.NextRequest();
  std::string text;
  connection_.Converse(
      Ask{id, what}, id, DeadlineIn(timeout_ms), hooks, [&](ReceivedMessage& received) {
        auto* answer = std::get_if<Answer>(&received.message);
        if (answer == nullptr)
          throw Error(Code::kProtocol, "the agent did not answer what it was asked");
        text = std::move(answer->text);
        return true;
      });
  return text;
}

HeldLease Client::SendCall(const std::string& key, const CallRequest& request,
                           const CallHooks& hooks) {
  Clock::duration queue{};  // of all attempts
  Clock::duration worker_start{};
  for (int attempt = 0; attempt < kSendAttempts; ++attempt) {
    std::optional<HeldLease> held = leases_.Take(key, request);
    leases_.GiveBackUnwanted(key);
    if (!held) held = leases_.Acquire(key, request, hooks);
    held->queue = queue += held->queue;
    held->worker_start = worker_start += held->worker_start;
    if (leases_.Send(*held, request)) return std::move(*held);
  }
  throw CellsEnd();
}

CallRecord Client::Call(const std::string& key, const CallRequest& request,
                        const CallHooks& hooks) {
  const Clock::time_point begun =
      request.begun == Clock::time_point{} ? Clock::now() : request.begun;
  const HeldLeases::CallUnderWay under_way(leases_, key);
  HeldLease held = SendCall(key, request, hooks);
  const uint64_t lease = held.lease.id();
  CallRecord record = RecordOf(held, request, begun);
  if (!request.shared()) leases_.WhileCallRuns(key, request.identity);
  try {
    record.outcome = hutch::Await(
        held.lease, request, hooks, [&] { leases_.TellStarted(held, request); },
        [&](bool hung_up) { return reports_.IsLost(lease, hung_up); });
  } catch (const Error& error) {
    // What the cell does wrong is its call's failure, and no other call's on this connection.
    if (error.code() == Code::kProtocol) {
      SetBroken(record, held, error);
      return leases_.Conclude(key, lease, std::move(record), held.lease.lending().TakeAll(),
                              request.network);
    }
    leases_.GiveUp(lease, Ending::kFault);
    // The call was sent: whatever went wrong then, it may have run.
    throw Error(error.code(), error.what(), error.hint(), true);
  } catch (...) {
    leases_.GiveUp(lease, Ending::kFault);
    throw;
  }
  if (leases_.Keep(key, request, held, record.outcome)) return record;
  // Not after a call that did not return: loading its function may be what took so long.
  const bool load_again = !request.shared() && IsSimple(record.outcome);
  record = leases_.Conclude(key, lease, std::move(record), held.lease.lending().TakeAll(),
                            request.network, load_again ? &request : nullptr);
  leases_.DeferClose(std::move(held));
  return record;
}

CallRecord Client::Conclude(OpenCall& open) {
  return leases_.Conclude(open.key, open.held.lease.id(), std::move(open.record),
                          open.held.lease.lending().TakeAll(), open.network);
}

}  // namespace hutch
