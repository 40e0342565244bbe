// SPDX-License-Identifier: Apache-2.0

// Who waits for a cell of one pool, and whose turn it is.
//
// First come, first served within a caller; callers in turn; those who only look ahead after
// everybody who waits for a call. So a caller with a thousand waiting calls delays one with a
// single call by one cell. A full queue has one place left for each caller who has none in it, and
// where all queues together are full, for each who has none in any: so no caller can shut out
// another, and the number of callers bounds what that adds.
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

// How many may wait. A place costs about half a kilobyte; what the numbers keep short is the time
// that a hopeless call waits for its answer.
inline constexpr size_t kMinQueue = 2048;        // of a pool, at the least
inline constexpr size_t kQueuedPerCell = 16;     // of a pool, for each cell that it may have
inline constexpr size_t kMaxQueuedInAll = 8192;  // of all pools of an agent together
inline constexpr size_t kMaxAhead = 256;         // who look ahead, of one caller in one pool

constexpr size_t QueueCapacity(uint64_t max_cells) {
  return max_cells * kQueuedPerCell > kMinQueue ? max_cells * kQueuedPerCell : kMinQueue;
}

// Shared by the queues of one agent; it outlives them.
struct QueuesInAll {
  size_t capacity = kMaxQueuedInAll;
  size_t waiting = 0;
  std::map<uint64_t, size_t> by_caller{};  // of those who have a place
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

  enum class Full { kNo, kQueue, kAgent };  // kQueue of who looks ahead: it does so enough
  Full IsFull(uint64_t caller, bool ahead) const;

  // How long a newcomer of `caller` would wait at the pace at which cells have come since somebody
  // last began to wait; std::nullopt while too few came to tell.
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
  size_t LineOf(uint64_t caller, bool ahead) const;  // how many places it has

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
