// SPDX-License-Identifier: Apache-2.0

#include "pool/waiters.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace hutch {
namespace {

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Waiters::Waiters(Loop& loop, QueuesInAll& in_all, uint64_t max_cells,
                 std::function<Error(Clock::duration)> late)
    : loop_(loop),
      in_all_(in_all),
      max_cells_(max_cells),
      late_(std::move(late)),
      queue_(QueueCapacity(max_cells), in_all) {}

Waiters::~Waiters() { loop_.Cancel(timer_); }

Error Waiters::Busy(const std::string& text, const std::string& hint,
                    Clock::duration waited) const {
  return Error(Code::kBusy, text, hint, false,
               {{"queued", static_cast<double>(queue_.waiting())},
                {"capacity", static_cast<double>(max_cells_)},
                {"waited_sec", Seconds(waited)}});
}

std::optional<Error> Waiters::WhyFull(uint64_t caller, bool ahead) const {
  constexpr char kHint[] =
      "start fewer calls at once, try again later, or raise Pool(max_cells=...)";
  switch (queue_.IsFull(caller, ahead)) {
    case Queue::Full::kQueue:
      return Busy("the queue is full: " + std::to_string(queue_.waiting()) + " calls wait for " +
                      std::to_string(max_cells_) + " cells",
                  kHint, {});
    case Queue::Full::kAgent:
      return Busy("the agent's queue is full: " + std::to_string(in_all_.waiting) +
                      " calls wait in all pools, " + std::to_string(queue_.waiting()) +
                      " in this one",
                  kHint, {});
    case Queue::Full::kNo:
      break;
  }
  return std::nullopt;
}

std::optional<Error> Waiters::WhyTooLate(uint64_t caller, Clock::duration patience) const {
  const auto outlook = queue_.Outlook(caller);
  if (!outlook || *outlook / 2 < patience) return std::nullopt;
  char text[160];
  std::snprintf(text, sizeof text,
                "no cell will come free within %.1f s: at the present pace it takes %.1f s, "
                "%llu calls wait for %llu cells",
                Seconds(patience), Seconds(*outlook),
                static_cast<unsigned long long>(queue_.waiting()),
                static_cast<unsigned long long>(max_cells_));
  return Busy(text, "raise queue_sec, start fewer calls at once, or raise Pool(max_cells=...)", {});
}

void Waiters::Add(uint64_t ticket, Clock::time_point now, uint64_t caller, Clock::duration patience,
                  bool ahead, Waiter waiter) {
  // At least a millisecond, in which a cell that is ready is given.
  patience = ClampToYear(std::max<Clock::duration>(patience, std::chrono::milliseconds(1)));
  queue_.Add({ticket, caller, ahead, now, now + patience});
  waiters_[ticket] = std::move(waiter);
}

void Waiters::Forget(uint64_t ticket) {
  if (queue_.Remove(ticket)) waiters_.erase(ticket);
}

void Waiters::RefuseLate(Clock::time_point now) {
  for (const Queue::Place& place : queue_.TakeLate(now)) {
    Take(place.ticket).refused(late_(now - place.since));
  }
}

void Waiters::RefuseAll(const Error& error) {
  for (const Queue::Place& place : queue_.TakeAll()) Take(place.ticket).refused(error);
}

void Waiters::WatchDeadline(uint64_t ticket) {
  if (queue_.Contains(ticket)) SetTimer();
}

// One timer, for the earliest deadline at the time when it was set: most waiters are served before,
// and cost no timer.
void Waiters::SetTimer() {
  const auto next = queue_.next_deadline();
  if (!next || (timer_ != 0 && timer_due_ <= *next)) return;
  loop_.Cancel(timer_);
  timer_due_ = *next;
  timer_ = loop_.After(*next - Clock::now(), [this] {
    timer_ = 0;
    RefuseLate(Clock::now());
    SetTimer();
  });
}

}  // namespace hutch
