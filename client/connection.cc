// SPDX-License-Identifier: Apache-2.0

#include "client/connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "wire/channel.h"
#include "wire/heartbeat.h"
#include "wire/paths.h"

namespace hutch {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(250);

Error NoAnswer() {
  return Error(Code::kUnavailable, "the agent does not answer: it is stopped, or hangs",
               "the next call ends it and starts another one");
}

Error Cancelled(bool interrupted) {
  return Error(Code::kCancelled,
               interrupted ? "the call was interrupted" : "the call was cancelled before it began");
}

uint64_t RequestOf(const Message& message) {
  return std::visit(
      [](const auto& m) -> uint64_t {
        if constexpr (requires { m.request; }) return m.request;
        return 0;
      },
      message);
}

bool Never() { return false; }

}  // namespace

Error ErrorFrom(const Failed& failed) {
  return Error(static_cast<Code>(failed.code), failed.message, failed.hint, failed.may_have_run,
               failed.figures);
}

Error Connection::LostError() {
  return Error(Code::kUnavailable, "the agent closed the connection",
               "the next call starts the agent again; `hutch logs` shows its last lines");
}

Connection::Connection(const std::string& socket, long connect_uid, Receiver& receiver)
    : receiver_(receiver),
      socket_(ConnectTo(socket, connect_uid)),
      pid_(::getpid()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!socket_) throw Error(Code::kUnavailable, "no agent listens at " + socket);
  ShakeHands();
}

void Connection::ShakeHands() {
  Send(Hello{kWireVersion, pid_, ::getuid()});
  pollfd polled{socket_.get(), POLLIN, 0};
  Heartbeat heartbeat;
  std::optional<ReceivedMessage> received;
  while (!received) {
    const Clock::time_point begun = Clock::now();
    const auto period = std::chrono::milliseconds(kLookPeriod).count();
    if (::poll(&polled, 1, static_cast<int>(period)) > 0) {
      received = ReceiveMessage(socket_.get());
    } else if (heartbeat.Look(WorthOfLook(Clock::now() - begun - kLookPeriod, 0)) ==
               Heartbeat::Next::kGiveUp) {
      throw NoAnswer();
    }
  }
  if (const auto* failed = std::get_if<Failed>(&received->message)) {
    throw Error(static_cast<Code>(failed->code), failed->message, failed->hint, false,
                failed->figures);
  }
  const auto* welcome = std::get_if<Welcome>(&received->message);
  if (welcome == nullptr || received->descriptors.size() != 1)
    throw Error(Code::kProtocol, "the agent gave no welcome");
  lease_table_ = std::move(received->descriptors[0]);
}

void Connection::Break() {
  broken_ = true;
  changed_.NotifyAll();
}

void Connection::Send(const Message& message) {
  if (broken_) throw LostError();
  try {
    while (!SendMessage(socket_.get(), message)) {
      pollfd polled{socket_.get(), POLLOUT, 0};
      ::poll(&polled, 1, 250);
    }
  } catch (const Error&) {
    Break();
    throw;
  }
}

void Connection::Tell(const Message& message, Clock::duration patience) {
  if (broken_) return;
  const Clock::time_point deadline = Clock::now() + patience;
  try {
    while (!SendMessage(socket_.get(), message) && Clock::now() < deadline) {
      pollfd polled{socket_.get(), POLLOUT, 0};
      ::poll(&polled, 1, 50);
    }
  } catch (const Error&) {
    Break();
  }
}

void Connection::GiveBack(const Message& message) {
  if (const auto* leased = std::get_if<Leased>(&message))
    Tell(LeaseEnded{leased->lease, false, {}});
}

void Connection::Dispatch(ReceivedMessage received) {
  const uint64_t request = RequestOf(received.message);
  if (watch_.TakeAnswer(request)) return;
  const auto pending = pending_.find(request);
  if (pending != pending_.end()) {
    pending->second->arrived.push_back(std::move(received));
  } else {
    receiver_.OnMessage(request, std::move(received));
  }
}

void Connection::Drain(const Done& enough) {
  try {
    while (!enough()) {
      auto received = ReceiveMessage(socket_.get());
      if (!received) return;
      Dispatch(std::move(*received));
    }
  } catch (const Error&) {
    broken_ = true;
    receiver_.OnLost();
  }
}

void Connection::ReadIfFree(const Done& enough) {
  if (!reading_) Drain(enough);
}

void Connection::Read() {
  Drain(Never);
  changed_.NotifyAll();
  // What it waits for may have been read here before it began to poll.
  if (reading_) WakeReader();
}

void Connection::WakeReader() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) return;  // a full counter is as readable
}

void Connection::Deliver(uint64_t request, ReceivedMessage received) {
  const auto pending = pending_.find(request);
  if (pending == pending_.end()) return;
  pending->second->arrived.push_back(std::move(received));
  changed_.NotifyAll();
  WakeReader();
}

void Connection::CheckAgent(Clock::duration late) {
  switch (watch_.Look(Clock::now(), late, pressure())) {
    case Heartbeat::Next::kAsk: {
      const uint64_t request = NextRequest();
      watch_.Asked(request);
      return Tell(Ask{request, "alive"});
    }
    case Heartbeat::Next::kWait:
      return;
    case Heartbeat::Next::kGiveUp:
      GiveUpAgent();
  }
}

void Connection::GiveUpAgent() {
  Break();
  receiver_.OnLost();
  throw NoAnswer();
}

bool Connection::WaitFor(Clock::time_point deadline, const CallHooks& hooks, const Done& done) {
  for (;;) {
    if (done()) return true;
    if (broken_) throw LostError();
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return false;
    const Clock::duration wait = std::min<Clock::duration>(kSlice, deadline - now);
    if (reading_) {
      WaitForReader(wait, hooks, done);
    } else {
      WaitAndRead(wait, hooks, done);
    }
  }
}

void Connection::WaitAndRead(Clock::duration wait, const CallHooks& hooks, const Done& done) {
  const Clock::time_point now = Clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait);
  bool cancelled = false;
  bool interrupted = false;
  reading_ = true;
  {
    const Unlock unlocked(*this);
    pollfd polled[3] = {
        {socket_.get(), POLLIN, 0}, {hooks.cancel_fd, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    ::poll(polled, 3, static_cast<int>(ms.count()));
    cancelled = polled[1].revents != 0;
    interrupted = !cancelled && hooks.interrupted && hooks.interrupted();
    eventfd_t woken = 0;
    if (polled[2].revents != 0) ::eventfd_read(wake_.get(), &woken);
  }
  reading_ = false;
  Read();
  if (done()) return;
  if (cancelled || interrupted) throw Cancelled(interrupted);
  CheckAgent(Clock::now() - now - ms);
}

void Connection::WaitForReader(Clock::duration wait, const CallHooks& hooks, const Done& done) {
  WaitForChange(wait);
  if (done()) return;
  const Unlock unlocked(*this);
  pollfd polled{hooks.cancel_fd, POLLIN, 0};
  const bool cancelled = hooks.cancel_fd >= 0 && ::poll(&polled, 1, 0) > 0;
  const bool interrupted = !cancelled && hooks.interrupted && hooks.interrupted();
  if (cancelled || interrupted) throw Cancelled(interrupted);
}

void Connection::Converse(const Message& request, uint64_t id, Clock::time_point deadline,
                          const CallHooks& hooks,
                          const std::function<bool(ReceivedMessage&)>& handle,
                          const std::function<void()>& begin) {
  Pending pending;
  try {
    const Lock lock(*this);
    pending_[id] = &pending;
    if (begin) begin();
    {
      const Unlock unlocked(*this);
      Send(request);
    }
    for (bool finished = false; !finished;) {
      if (!WaitFor(deadline, hooks, [&] { return !pending.arrived.empty(); })) {
        if (watch_.overdue()) GiveUpAgent();
        throw Error(Code::kTimeout, "the agent did not answer in time");
      }
      ReceivedMessage received = std::move(pending.arrived.front());
      pending.arrived.pop_front();
      const Unlock unlocked(*this);
      if (const auto* failed = std::get_if<Failed>(&received.message)) throw ErrorFrom(*failed);
      finished = handle(received);
    }
    pending_.erase(id);
  } catch (...) {
    {
      const Lock lock(*this);
      pending_.erase(id);
    }
    Tell(Forget{id});
    for (const ReceivedMessage& late : pending.arrived) GiveBack(late.message);
    throw;
  }
}

}  // namespace hutch
