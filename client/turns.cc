// SPDX-License-Identifier: Apache-2.0

#include "client/turns.h"

#include <sys/epoll.h>

#include <utility>

#include "client/session.h"
#include "wire/error.h"

namespace hutch {

void Turns::Begin(const CallRequest& request, const CallHooks& hooks) {
  Drop();
  call_.emplace(session_.Send(request, hooks));
  call_->over = !call_->sent;
  if (call_->over) return;
  call_->hooks.interrupted = nullptr;  // signals are the event loop's
  waiting_.emplace(
      session_.held_->lease, request, call_->hooks, [this] { session_.OnSlow(*call_); },
      [this](bool hung_up) { return session_.IsLost(hung_up); });
  waiting_->TakeTurns();
}

bool Turns::Turn(std::optional<Question>& asked) {
  asked.reset();
  if (!call_ || call_->over) return true;
  try {
    if (waiting_->Turn(asked)) {
      call_->over = true;
      session_.Take(*call_, session_.held_->lease.Take());
    }
  } catch (...) {
    call_->over = true;
    call_->failure = std::current_exception();
  }
  return call_->over;
}

void Turns::Answer(uint64_t number, const std::optional<std::string>& answer) {
  if (!call_ || call_->over || !waiting_->Answer(number, answer)) return;
  call_->over = true;
  session_.Take(*call_, session_.held_->lease.Take());
}

void Turns::StopClock(bool stop) {
  if (call_ && !call_->over) waiting_->StopClock(stop);
}

void Turns::Cancel() {
  if (call_ && !call_->over) waiting_->Cancel();
}

int Turns::fd() {
  if (!session_.held_) return -1;
  if (!epoll_) {
    epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) ThrowErrno("make an epoll descriptor");
  }
  pollfd polled[kPolledOfCall];
  session_.held_->lease.Fill(polled);
  for (size_t i = 0; i < kPolledOfCall; ++i) {
    if (polled[i].fd == watched_[i]) continue;
    epoll_event event{.events = EPOLLIN, .data = {}};
    const bool ended = polled[i].fd < 0;
    const int fd = ended ? watched_[i] : polled[i].fd;
    if (::epoll_ctl(epoll_.get(), ended ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, fd, &event) < 0)
      ThrowErrno("watch a cell of a session");
    watched_[i] = polled[i].fd;
  }
  return epoll_.get();
}

Clock::time_point Turns::next() const { return waiting_ ? waiting_->next_turn() : Clock::now(); }

bool Turns::waits_at_end() const {
  return call_ && (call_->failure || !call_->record.outcome.replied);
}

CallRecord Turns::End() {
  if (!call_) throw Session::Over();
  waiting_.reset();
  Underway call = std::move(*call_);
  call_.reset();
  if (!call.sent) return session_.Unsent(call);
  if (call.failure) {
    try {
      std::rethrow_exception(call.failure);
    } catch (...) {
      session_.Fail(call);
    }
  }
  return session_.Conclude(call);
}

void Turns::Drop() {
  waiting_.reset();  // which uses the other
  call_.reset();
}

}  // namespace hutch
