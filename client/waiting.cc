// SPDX-License-Identifier: Apache-2.0

#include "client/waiting.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "wire/error.h"

namespace hutch {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(250);

}  // namespace

CallOutcome Await(Lease& lease, const CallRequest& request, const CallHooks& hooks,
                  const std::function<void()>& slow, const Waiting::Lost& lost) {
  return Waiting(lease, request, hooks, slow, lost).Await();
}

std::optional<Question> Exchange(Lease& lease, const std::string& answer) {
  return Waiting::Exchange(lease, answer);
}

Waiting::Waiting(Lease& lease, const CallRequest& request, const CallHooks& hooks, Slow slow,
                 Lost lost)
    : lease_(lease),
      request_(request),
      hooks_(hooks),
      slow_(std::move(slow)),
      lost_(std::move(lost)),
      ask_again_(lease.clock().sent() + kSlice),
      cancel_fd_(hooks.cancel_fd) {
  lease.waiting_ = this;
}

CallOutcome Waiting::Await() {
  while (!Round(kSlice)) {
  }
  return lease_.Take();
}

bool Waiting::End(CallStatus status) {
  lease_.outcome_ = lease_.End(status, hooks_.output);
  return true;
}

bool Waiting::IsInterrupted(bool now) {
  if (!hooks_.interrupted || (!now && Clock::now() < ask_again_)) return false;
  ask_again_ = Clock::now() + kSlice;
  return hooks_.interrupted();
}

bool Waiting::Round(Clock::duration patience) {
  pollfd polled[kPolledOfCall + 1];
  polled[kPolledOfCall] = {cancel_fd_, POLLIN, 0};
  lease_.Fill(polled);
  const Clock::duration left =
      std::min<Clock::duration>(lease_.clock().due() - Clock::now(), patience);
  const auto ns =
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(left).count());
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  const int ready = ::ppoll(polled, kPolledOfCall + 1, &timeout, nullptr);
  if (ready < 0 && errno != EINTR) ThrowErrno("wait for a cell");
  if (IsInterrupted(ready < 0) && lease_.GiveUp(CallStatus::kInterrupted))
    return End(CallStatus::kInterrupted);
  if (ready < 0) return false;
  if (polled[kPolledOfCall].revents != 0) {
    if (lease_.GiveUp(CallStatus::kCancelled)) return End(CallStatus::kCancelled);
    cancel_fd_ = -1;
  }
  if (lease_.Step(request_, polled, hooks_.output, slow_)) return true;
  return ready == 0 && lease_.clock().told() && lost_ && lost_(lease_.hung_up()) &&
         End(lease_.interrupted_.value_or(CallStatus::kEnded));
}

std::optional<Question> Waiting::Exchange(Lease& lease, const std::string& answer) {
  if (lease.waiting_ == nullptr || lease.waiting_->over_) return std::nullopt;
  return lease.waiting_->ExchangeFor(answer);
}

std::optional<Question> Waiting::ExchangeFor(const std::string& answer) {
  asked_.reset();
  exchanges_ = true;
  try {
    lease_.SetClock(false, slow_);
    if (const auto end = lease_.SendAnswer(lease_.said_.frames, answer, request_)) {
      lease_.outcome_.status = *end;
      over_ = true;
    }
    while (!asked_ && !over_) over_ = Round(kSlice);
  } catch (...) {  // that of a hook, too
    failure_ = std::current_exception();
    over_ = true;
  }
  exchanges_ = false;
  std::optional<Question> asked = std::exchange(asked_, std::nullopt);
  return over_ ? std::nullopt : std::move(asked);
}

void Waiting::TakeTurns() {
  cancel_fd_ = -1;
  exchanges_ = true;
}

bool Waiting::Turn(std::optional<Question>& asked) {
  asked_.reset();
  const bool over = Round({});
  if (!over) asked = std::exchange(asked_, std::nullopt);
  return over;
}

bool Waiting::Answer(uint64_t number, const std::optional<std::string>& answer) {
  lease_.SetClock(false, slow_);
  // At once, for the code may end before the next turn.
  if (lease_.clock_.IsOver(Clock::now()) && !lease_.interrupted_ &&
      lease_.GiveUp(CallStatus::kTimedOut))
    return End(CallStatus::kTimedOut);
  std::optional<CallStatus> end = CallStatus::kInterrupted;
  if (answer) end = lease_.SendAnswer(number, *answer, request_);
  if (!end) return false;
  lease_.outcome_.status = *end;
  lease_.outcome_.ended = Clock::now();
  return true;
}

bool Waiting::Cancel() {
  return !lease_.interrupted_ && lease_.GiveUp(CallStatus::kCancelled) &&
         End(CallStatus::kCancelled);
}

Clock::time_point Waiting::next_turn() const {
  return std::min(lease_.clock().due(), Clock::now() + kSlice);
}

bool Waiting::Takes(const Question& question) {
  if (exchanges_) asked_ = question;
  return exchanges_;
}

bool Waiting::IsOver() const {
  if (failure_) std::rethrow_exception(failure_);
  return over_;
}

}  // namespace hutch
