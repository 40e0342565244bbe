// SPDX-License-Identifier: Apache-2.0

#include "pool/queue.h"

#include <algorithm>

namespace hutch {
namespace {

constexpr uint64_t kServedForPace = 32;  // with fewer, the pace is not known

}  // namespace

size_t Queue::LineOf(uint64_t caller, bool ahead) const {
  const auto line = lines_[ahead].find(caller);
  return line == lines_[ahead].end() ? 0 : line->second.size();
}

Queue::Full Queue::IsFull(uint64_t caller, bool ahead) const {
  const size_t own = LineOf(caller, ahead);
  if (ahead) return own < kMaxAhead ? Full::kNo : Full::kQueue;
  if (own != 0 && waiting() >= capacity_) return Full::kQueue;
  const bool full = in_all_.waiting >= in_all_.capacity && in_all_.by_caller.contains(caller);
  return full ? Full::kAgent : Full::kNo;
}

void Queue::Count(uint64_t caller) {
  ++in_all_.waiting;
  ++in_all_.by_caller[caller];
}

void Queue::Uncount(uint64_t caller) {
  --in_all_.waiting;
  const auto its = in_all_.by_caller.find(caller);
  if (--its->second == 0) in_all_.by_caller.erase(its);
}

std::optional<Queue::Duration> Queue::Outlook(uint64_t caller) const {
  if (served_ < kServedForPace || waiting() == 0) return std::nullopt;
  // Callers take turns: before the new call come all of this caller's, and of each other caller as
  // many as that makes turns.
  const size_t turns = LineOf(caller, false) + 1;
  size_t before = turns - 1;
  for (const auto& [other, line] : lines_[false]) {
    if (other != caller) before += std::min(line.size(), turns);
  }
  const Duration pace = (last_served_at_ - first_served_) / static_cast<int64_t>(served_ - 1);
  return pace * static_cast<int64_t>(before);
}

void Queue::Add(const Place& place) {
  if (!place.ahead && waiting() == 0) served_ = 0;
  places_.emplace(place.ticket, place);
  lines_[place.ahead][place.caller].insert(place.ticket);
  deadlines_.emplace(place.deadline, place.ticket);
  if (place.ahead) {
    ++ahead_;
  } else {
    Count(place.caller);
  }
}

std::optional<Queue::Place> Queue::Remove(uint64_t ticket) {
  const auto found = places_.find(ticket);
  if (found == places_.end()) return std::nullopt;
  const Place place = found->second;
  places_.erase(found);
  const auto line = lines_[place.ahead].find(place.caller);
  line->second.erase(ticket);
  if (line->second.empty()) lines_[place.ahead].erase(line);
  deadlines_.erase({place.deadline, ticket});
  if (place.ahead) {
    --ahead_;
  } else {
    Uncount(place.caller);
  }
  return place;
}

void Queue::NoteServed(Time now) {
  if (served_++ == 0) first_served_ = now;
  last_served_at_ = now;
}

std::optional<Queue::Time> Queue::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

std::vector<Queue::Place> Queue::TakeLate(Time now) {
  std::vector<Place> late;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    late.push_back(*Remove(deadlines_.begin()->second));
  }
  return late;
}

std::vector<Queue::Place> Queue::TakeAll() {
  std::vector<Place> all;
  while (!places_.empty()) all.push_back(*Remove(places_.begin()->first));
  return all;
}

}  // namespace hutch
