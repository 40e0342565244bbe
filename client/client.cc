// SPDX-License-Identifier: Apache-2.0

#include "client/client.h"

#include <charconv>
#include <utility>

namespace hutch {

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

CallRecord Client::Conclude(OpenCall& open) {
  return leases_.Conclude(open.key, open.held.lease.id(), std::move(open.record),
                          open.held.lease.lending().TakeAll(), open.network);
}

}  // namespace hutch
