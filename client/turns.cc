// SPDX-License-Identifier: Apache-2.0

#include "client/turns.h"

#include <sys/epoll.h>

#include <utility>

#include "wire/error.h"

namespace hutch {

CallRecord Caller::MakeCall(const CallRequest& request, const CallHooks& hooks) {
  Underway call = Send(request, hooks);
  if (!call.sent) return Conclude(call);
  try {
    Take(call, Await(
                   *lease(), request, hooks, [&] { OnSlow(call); },
                   [&](bool hung_up) { return IsLost(hung_up); }));
  } catch (...) {
    Fail(call);
  }
  return Conclude(call);
}

void Turns::Begin(const CallRequest& request, const CallHooks& hooks) {
  Drop();
  call_.emplace(caller_.Send(request, hooks));
  call_->over = !call_->sent;
  if (call_->over) return;
  call_->hooks.interrupted = nullptr;  // signals are the event loop's
  waiting_.emplace(
      *caller_.lease(), request, call_->hooks, [this] { caller_.OnSlow(*call_); },
      [this](bool hung_up) { return caller_.IsLost(hung_up); });
  waiting_->TakeTurns();
}

bool Turns::Turn(std::optional<Question>& asked) {
  asked.reset();
  if (!call_ || call_->over) return true;
  try {
    if (waiting_->Turn(asked)) TakeOutcome();
  } catch (...) {
    call_->over = true;
    call_->failure = std::current_exception();
  }
  return call_->over;
}

bool Turns::Answer(uint64_t number, const std::optional<std::string>& answer) {
  if (!call_ || call_->over) return true;
  if (waiting_->Answer(number, answer)) TakeOutcome();
  if (!call_->over && epoll_) fd();  // who waits for it hears of room for an answer, too
  return call_->over;
}

void Turns::TakeOutcome() {
  call_->over = true;
  caller_.Take(*call_, caller_.lease()->Take());
}

void Turns::StopClock(bool stop) {
  if (call_ && !call_->over) waiting_->StopClock(stop);
}

bool Turns::Cancel() {
  if (!call_ || call_->over) return true;
  if (waiting_->Cancel()) TakeOutcome();
  return call_->over;
}

int Turns::fd() {
  const Lease* const lease = caller_.lease();
  if (lease == nullptr) return -1;
  if (!epoll_) {
    epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) ThrowErrno("make an epoll descriptor");
  }
  pollfd polled[kPolledOfCall];
  lease->Fill(polled);
  for (size_t i = 0; i < kPolledOfCall; ++i) Watch(watched_[i], polled[i]);
  return epoll_.get();
}

void Turns::Watch(Watched& watched, const pollfd& wanted) {
  const bool ends = wanted.fd < 0;
  const bool is_same = wanted.fd == watched.fd;
  if (is_same && (ends || wanted.events == watched.events)) return;
  // POLLIN and POLLOUT are EPOLLIN and EPOLLOUT.
  epoll_event event{.events = static_cast<uint32_t>(wanted.events), .data = {}};
  const int change = ends ? EPOLL_CTL_DEL : is_same ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (::epoll_ctl(epoll_.get(), change, ends ? watched.fd : wanted.fd, &event) < 0)
    ThrowErrno("watch a cell");
  watched = {wanted.fd, wanted.events};
}

Clock::time_point Turns::next() const { return waiting_ ? waiting_->next_turn() : Clock::now(); }

bool Turns::waits_at_end() const {
  return call_ && (call_->failure || caller_.WaitsToConclude(*call_));
}

CallRecord Turns::End() {
  if (!call_) throw caller_.NoCall();
  waiting_.reset();
  Underway call = std::move(*call_);
  call_.reset();
  if (call.failure) {
    try {
      std::rethrow_exception(call.failure);
    } catch (...) {
      caller_.Fail(call);
    }
  }
  return caller_.Conclude(call);
}

void Turns::Drop() {
  waiting_.reset();  // which uses the other
  call_.reset();
}

}  // namespace hutch
