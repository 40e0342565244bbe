// SPDX-License-Identifier: Apache-2.0

#include "client/waiting_calls.h"

#include <algorithm>
#include <utility>

namespace hutch {
namespace {

constexpr size_t kMostAsked = 64;  // cells requested at once, for the waiting calls of one pool
// Beyond a caller's patience the agent has this long to say so, for it knows the numbers of all.
constexpr auto kGrace = std::chrono::milliseconds(250);

}  // namespace

void WaitingCalls::Note(Queue& queue, const InFlightCall& call) {
  queue.due = std::min(queue.due, call.patience + kGrace);
}

void WaitingCalls::Add(CallPointer call) {
  Queue& queue = queues_[call->key];
  Note(queue, *call);
  queue.calls.push_back(std::move(call));
}

void WaitingCalls::AddAgain(CallPointer call) {
  Queue& queue = queues_[call->key];
  Note(queue, *call);
  queue.calls.push_front(std::move(call));
}

bool WaitingCalls::HasAny(const std::string& key) const {
  const auto queue = queues_.find(key);
  return queue != queues_.end() && !queue->second.calls.empty();
}

std::optional<Clock::time_point> WaitingCalls::due() const {
  std::optional<Clock::time_point> due;
  for (const auto& [key, queue] : queues_) {
    if (!queue.calls.empty()) due = std::min(due.value_or(queue.due), queue.due);
  }
  return due;
}

void WaitingCalls::Trim(Queue& queue, Left& left) {
  std::erase(queue.calls, nullptr);
  while (queue.asked.size() > queue.calls.size()) {
    const auto newest = std::prev(queue.asked.end());
    requests_.erase(newest->first);
    left.requests.push_back(newest->first);
    queue.asked.erase(newest);
  }
}

WaitingCalls::Left WaitingCalls::TakeCancelled(const std::vector<uint64_t>& ids) {
  Left left;
  if (ids.empty()) return left;
  for (auto& [key, queue] : queues_) {
    const size_t others = queue.calls.empty() ? 0 : queue.calls.size() - 1;
    for (CallPointer& call : queue.calls) {
      if (std::ranges::count(ids, call->id) > 0) left.calls.push_back({std::move(call), others});
    }
    Trim(queue, left);
  }
  return left;
}

WaitingCalls::Left WaitingCalls::TakeExpired(Clock::time_point now) {
  Left left;
  for (auto& [key, queue] : queues_) {
    if (queue.due > now) continue;
    queue.due = Clock::time_point::max();
    const size_t others = queue.calls.empty() ? 0 : queue.calls.size() - 1;
    for (CallPointer& call : queue.calls) {
      if (call->patience + kGrace <= now) {
        left.calls.push_back({std::move(call), others});
      } else {
        Note(queue, *call);
      }
    }
    Trim(queue, left);
  }
  return left;
}

WaitingCalls::Left WaitingCalls::TakeAll() {
  Left left;
  for (auto& [key, queue] : queues_) {
    const size_t others = queue.calls.empty() ? 0 : queue.calls.size() - 1;
    for (CallPointer& call : queue.calls) left.calls.push_back({std::move(call), others});
    queue.due = Clock::time_point::max();
    Trim(queue, left);
  }
  return left;
}

std::vector<Acquire> WaitingCalls::Ask(Clock::time_point now,
                                       const std::function<uint64_t()>& next) {
  std::vector<Acquire> requests;
  for (auto& [key, queue] : queues_) {
    const size_t wanted = std::min(queue.calls.size(), kMostAsked);
    while (queue.asked.size() < wanted) {
      const Clock::time_point until = queue.calls[queue.asked.size()]->patience;
      // Rounded up: the agent does not give up on it before its caller does.
      const auto patience = std::chrono::ceil<std::chrono::milliseconds>(until - now);
      const uint64_t request = next();
      requests.push_back(
          {request, key, static_cast<uint64_t>(std::max<int64_t>(1, patience.count())), false});
      queue.asked.emplace(request, until);
      requests_[request] = key;
    }
  }
  return requests;
}

std::optional<WaitingCalls::Asked> WaitingCalls::TakeRequest(uint64_t request) {
  auto found = requests_.extract(request);
  if (!found) return std::nullopt;
  const auto asked = queues_[found.mapped()].asked.extract(request);
  return Asked{std::move(found.mapped()), asked.mapped()};
}

WaitingCalls::CallPointer WaitingCalls::TakeCallOf(const Asked& asked) {
  auto& calls = queues_[asked.key].calls;
  const auto concerned =
      std::ranges::find(calls, asked.until, [](const CallPointer& call) { return call->patience; });
  if (concerned == calls.end()) return nullptr;
  CallPointer call = std::move(*concerned);
  calls.erase(concerned);
  return call;
}

}  // namespace hutch
