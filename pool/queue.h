// SPDX-License-Identifier: Apache-2.0

// The queue for the cells of one pool, and whose turn it is.
//
// Calls of one caller are served in their order, and callers in turn, so that a caller with a
// thousand waiting calls delays one with a single call by one cell. Those who ask for a cell ahead
// of a call come after everybody who has a call.
//
// A full queue has one place left for each caller who has none in it; where all queues together are
// full, for each caller who has none in any of them. So no caller can shut out another, and the
// number of callers bounds what the extra places add.
//
// A pure data structure: tickets, callers and time come in as numbers. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace hutch {

// Bounds of the queues. A place costs about half a kilobyte; the bounds are there so that a call
// which has no chance is refused soon.
inline constexpr size_t kMinQueue = 2048;        // places in a pool, at least
inline constexpr size_t kQueuedPerCell = 16;     // places in a pool for each cell that it may have
inline constexpr size_t kMaxQueuedInAll = 8192;  // places in all pools of an agent together
inline constexpr size_t kMaxAhead = 256;  // places ahead of calls, for one caller in one pool

constexpr size_t QueueCapacity(uint64_t max_cells) {
  return max_cells * kQueuedPerCell > kMinQueue ? max_cells * kQueuedPerCell : kMinQueue;
}

// Shared by the queues of one agent; it outlives them.
struct QueuesInAll {
  size_t capacity = kMaxQueuedInAll;
  size_t waiting = 0;
  std::map<uint64_t, size_t> by_caller{};  // places of each caller that has any
};

class Queue {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  struct Place {
    uint64_t ticket = 0;
    uint64_t caller = 0;
    bool ahead = false;
    Time since;
    Time deadline;
  };

  Queue(size_t capacity, QueuesInAll& in_all) : capacity_(capacity), in_all_(in_all) {}
  ~Queue() { TakeAll(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  size_t capacity() const { return capacity_; }
  size_t waiting() const { return places_.size() - ahead_; }  // for a call
  size_t ahead() const { return ahead_; }
  bool empty() const { return places_.empty(); }
  bool Contains(uint64_t ticket) const { return places_.contains(ticket); }

  // For a caller that asks ahead, kQueue says that it has kMaxAhead places.
  enum class Full { kNo, kQueue, kAgent };
  Full IsFull(uint64_t caller, bool ahead) const;

  // How long one more call of `caller` would wait, at the pace at which calls were served since the
  // queue was last empty; std::nullopt while too few were served to say.
  std::optional<Duration> Outlook(uint64_t caller) const;

  // REQUIRES: IsFull() said kNo; a ticket larger than every one before.
  void Add(const Place& place);
  std::optional<Place> Remove(uint64_t ticket);

  // Removes and returns whose turn it is, among the callers that `may_take` a cell now.
  template <class MayTake>
  std::optional<Place> Next(Time now, const MayTake& may_take) {
    for (const bool ahead : {false, true}) {
      auto& lines = lines_[ahead];
      auto line = lines.upper_bound(last_served_[ahead]);
      for (size_t tried = 0; tried < lines.size(); ++tried, ++line) {
        if (line == lines.end()) line = lines.begin();
        if (!may_take(line->first)) continue;
        last_served_[ahead] = line->first;
        if (!ahead) NoteServed(now);
        return Remove(*line->second.begin());
      }
    }
    return std::nullopt;
  }

  std::optional<Time> next_deadline() const;
  // Removes those whose deadline has passed.
  std::vector<Place> TakeLate(Time now);
  std::vector<Place> TakeAll();  // in the order in which they came

 private:
  void Count(uint64_t caller);
  void Uncount(uint64_t caller);
  void NoteServed(Time now);
  size_t LineOf(uint64_t caller, bool ahead) const;  // number of its places

  size_t capacity_;
  QueuesInAll& in_all_;
  std::map<uint64_t, Place> places_;                 // by ticket
  std::map<uint64_t, std::set<uint64_t>> lines_[2];  // [ahead]: caller -> tickets
  std::set<std::pair<Time, uint64_t>> deadlines_;
  uint64_t last_served_[2] = {0, 0};
  size_t ahead_ = 0;
  // Since the queue was last empty:
  uint64_t served_ = 0;
  Time first_served_, last_served_at_;
};

}  // namespace hutch
