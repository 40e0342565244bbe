#include "client/flights.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstdio>

#include "client/client.h"

namespace hutch {
namespace {

constexpr size_t kMostAsked = 64;  // cells asked for at once, for the calls of one pool that wait
constexpr int kSendAttempts = 9;   // each on another cell
// An agent that does not answer at all is given this long beyond the caller's own patience.
constexpr auto kGrace = std::chrono::seconds(5);

}  // namespace

struct Flights::Flight {
  uint64_t id = 0;
  std::string key;
  CallRequest request;
  std::shared_ptr<const void> owner;
  bool output = false;
  Clock::time_point asked;
  Clock::time_point give_up;
  int attempts = 0;
  std::optional<HeldLease> held;  // once it is sent
  OutputHook printed;
};

Flights::Flights(Client& client)
    : client_(client), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) ThrowErrno("eventfd");
}

Flights::~Flights() = default;

void Flights::Wake() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) return;  // a full counter is as readable
}

void Flights::Stop() {
  {
    const std::lock_guard lock(client_.mutex_);
    stopped_ = true;
  }
  Wake();
}

uint64_t Flights::Start(const std::string& key, CallRequest request,
                        std::shared_ptr<const void> owner, bool output) {
  auto flight = std::make_unique<Flight>();
  const uint64_t id = flight->id = next_id_++;
  flight->key = key;
  flight->request = std::move(request);
  flight->owner = std::move(owner);
  flight->output = output;
  flight->asked = Clock::now();
  flight->give_up = After(flight->request.limits.queue_ms) + kGrace;
  if (flight->request.begun == Clock::time_point{}) flight->request.begun = flight->asked;
  bool first = false;
  {
    const std::lock_guard lock(client_.mutex_);
    Line& line = lines_[key];
    first = !awake_;
    line.flights.push_back(std::move(flight));
    awake_ = true;
  }
  if (first) Wake();
  return id;
}

void Flights::Cancel(uint64_t id) {
  {
    const std::lock_guard lock(client_.mutex_);
    cancelled_.push_back(id);
  }
  Wake();
}

bool Flights::waiting(const std::string& key) const {
  const auto line = lines_.find(key);
  return line != lines_.end() && !line->second.flights.empty();
}

void Flights::Granted(const std::string& key) {
  if (waiting(key) && !std::exchange(awake_, true)) Wake();
}

void Flights::Answered(const std::string& key) {
  Line& line = lines_[key];
  line.asked -= line.asked > 0 ? 1 : 0;
}

void Flights::Refused(const std::string& key, Error error) {
  Line& line = lines_[key];
  if (line.flights.empty()) return;
  std::unique_ptr<Flight> flight = std::move(line.flights.front());
  line.flights.pop_front();
  refused_.push_back({.id = flight->id, .error = std::move(error), .owner = flight->owner});
  if (!std::exchange(awake_, true)) Wake();
}

void Flights::Fail(Flight& flight, Error error) {
  events_.push_back({.id = flight.id, .error = std::move(error), .owner = flight.owner});
}

std::vector<FlightEvent> Flights::Next(Clock::duration patience) {
  const Clock::time_point until = Clock::now() + patience;
  std::vector<pollfd> polled;
  for (bool stopped = false; !stopped;) {
    DropCancelled();
    Expire();
    Launch();
    if (!events_.empty()) break;
    const Clock::time_point now = Clock::now();
    if (now >= until) break;
    polled.assign(2 + air_.size() * Lease::kPolled, {});
    polled[0] = {wake_.get(), POLLIN, 0};
    polled[1] = {client_.broken_ ? -1 : client_.socket_.get(), POLLIN, 0};
    size_t at = 2;
    for (const auto& flight : air_) {
      flight->held->lease.Fill(&polled[at]);
      at += Lease::kPolled;
    }
    const Clock::duration wait =
        std::clamp<Clock::duration>(std::min(until, NextDue()) - now, {}, std::chrono::seconds(10));
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
    const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
    if (::ppoll(polled.data(), polled.size(), &timeout, nullptr) < 0 && errno != EINTR)
      ThrowErrno("poll");
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      if (::read(wake_.get(), &count, sizeof count) < 0) ThrowErrno("reading an eventfd");
    }
    {
      const std::lock_guard lock(client_.mutex_);
      awake_ = false;
      if (polled[1].revents != 0) {
        client_.DrainLocked([] { return false; });
        client_.changed_.notify_all();
      }
      stopped = std::exchange(stopped_, false);
    }
    at = 2;
    for (auto it = air_.begin(); it != air_.end(); at += Lease::kPolled) {
      it = Step(**it, &polled[at]) ? air_.erase(it) : std::next(it);
    }
  }
  return std::exchange(events_, {});
}

void Flights::DropCancelled() {
  std::vector<uint64_t> cancelled;
  std::vector<std::unique_ptr<Flight>> waiting;
  {
    const std::lock_guard lock(client_.mutex_);
    std::ranges::move(refused_, std::back_inserter(events_));
    refused_.clear();
    cancelled.swap(cancelled_);
    for (auto& [key, line] : lines_) {
      if (cancelled.empty()) break;
      for (auto& flight : line.flights) {
        if (std::ranges::count(cancelled, flight->id) > 0) waiting.push_back(std::move(flight));
      }
      std::erase(line.flights, nullptr);
    }
  }
  for (const auto& flight : waiting)
    Fail(*flight, Error(Code::kCancelled, "cancelled before it began"));
  for (const uint64_t id : cancelled) {
    const auto found = std::ranges::find_if(air_, [&](const auto& f) { return f->id == id; });
    if (found == air_.end()) continue;
    Land(**found, (*found)->held->lease.End(CallStatus::kCancelled, (*found)->printed));
    air_.erase(found);
  }
}

void Flights::Expire() {
  std::vector<std::pair<std::unique_ptr<Flight>, Error>> failed;
  {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(client_.mutex_);
    for (auto& [key, line] : lines_) {
      while (!line.flights.empty() && (client_.broken_ || line.flights.front()->give_up <= now)) {
        const double waited =
            std::chrono::duration<double>(now - line.flights.front()->asked).count();
        char text[96];
        std::snprintf(text, sizeof text, "no cell came free within %.1f s", waited);
        Error error =
            client_.broken_
                ? Lost()
                : Error(Code::kBusy, text, "raise queue_sec, or start fewer calls at once", false,
                        {{"queued", static_cast<double>(line.flights.size() - 1)},
                         {"capacity", static_cast<double>(air_.size())},
                         {"waited_sec", waited}});
        failed.emplace_back(std::move(line.flights.front()), std::move(error));
        line.flights.pop_front();
      }
    }
  }
  for (auto& [flight, error] : failed) Fail(*flight, std::move(error));
}

void Flights::Launch() {
  if (client_.broken_) return;  // Expire tells all who wait
  for (;;) {
    std::unique_ptr<Flight> flight;
    std::optional<HeldLease> held;
    {
      const std::lock_guard lock(client_.mutex_);
      for (auto& [key, line] : lines_) {
        if (line.flights.empty()) continue;
        held = client_.stocks_[key].Take(line.flights.front()->request.shared());
        if (!held) continue;
        client_.reports_[held->lease.id()];
        flight = std::move(line.flights.front());
        line.flights.pop_front();
        break;
      }
    }
    if (!flight) break;
    SendOn(std::move(flight), std::move(*held));
  }
  AskForMore();
}

void Flights::SendOn(std::unique_ptr<Flight> flight, HeldLease held) {
  const uint64_t lease = held.lease.id();
  try {
    if (!client_.MarkUsed(held)) {
      client_.ForgetReport(lease);  // the agent took it back: this call never ran
    } else {
      if (held.calls++ == 0) held.first_call = Clock::now();
      held.queue = Clock::now() - flight->asked;
      held.worker_start = std::min(held.worker_start, held.queue);
      if (held.lease.Send(flight->request, RandomId())) {
        flight->held = std::move(held);
        if (flight->output) {
          flight->printed = [this, id = flight->id](int stream, std::string_view text) {
            events_.push_back({.id = id, .stream = stream, .text = std::string(text)});
          };
        }
        const std::lock_guard lock(client_.mutex_);
        client_.stocks_[flight->key].Begun();
        air_.push_back(std::move(flight));
        return;
      }
      client_.ForgetLease(lease, Ending::kNoCall);
    }
    if (++flight->attempts >= kSendAttempts)
      throw Error(Code::kWorkerFailed, "cells end before a call can be sent to them",
                  "`hutch logs` says why");
  } catch (const Error& error) {
    if (error.code() != Code::kWorkerFailed) client_.ForgetLease(lease, Ending::kFault);
    return Fail(*flight, error);
  }
  const std::lock_guard lock(client_.mutex_);
  lines_[flight->key].flights.push_front(std::move(flight));
}

void Flights::AskForMore() {
  std::vector<Acquire> requests;
  {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(client_.mutex_);
    if (client_.broken_) return;
    for (auto& [key, line] : lines_) {
      const size_t wanted = std::min(line.flights.size(), kMostAsked);
      for (; line.asked < wanted; ++line.asked) {
        const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(
            line.flights[line.asked]->give_up - kGrace - now);
        requests.push_back({client_.NextRequest(), key,
                            static_cast<uint64_t>(std::max<int64_t>(1, patience.count())), false});
        client_.flight_requests_[requests.back().request] = key;
      }
    }
  }
  try {
    for (const Acquire& request : requests) client_.Send(request);
  } catch (const Error&) {
    return;  // the connection is broken: Expire tells all who wait
  }
}

bool Flights::Step(Flight& flight, const pollfd* polled) {
  Lease& lease = flight.held->lease;
  try {
    const auto slow = [&] { client_.TellStarted(*flight.held, flight.request); };
    if (!lease.Step(flight.request, polled, flight.printed, slow)) return false;
    Land(flight, lease.Take());
  } catch (const Error& error) {
    if (error.code() == Code::kProtocol) {
      CallRecord record = RecordOf(*flight.held, flight.request, flight.request.begun);
      SetBroken(record, *flight.held, error);
      auto open = std::make_shared<OpenCall>(
          OpenCall{flight.key, std::move(*flight.held), std::move(record), flight.request.network});
      Over(flight, {.id = flight.id, .open = std::move(open), .owner = flight.owner});
    } else {
      client_.ForgetLease(lease.id(), Ending::kFault);
      // The call was sent: whatever went wrong then, it may have run.
      Over(flight, {.id = flight.id,
                    .error = Error(error.code(), error.what(), error.hint(), true),
                    .owner = flight.owner});
    }
  }
  return true;
}

void Flights::Land(Flight& flight, CallOutcome outcome) {
  HeldLease held = std::move(*flight.held);
  CallRecord record = RecordOf(held, flight.request, flight.request.begun);
  record.outcome = std::move(outcome);
  FlightEvent event{.id = flight.id, .owner = flight.owner};
  const uint64_t lease = held.lease.id();
  if (client_.Keep(flight.key, flight.request, held, record.outcome)) {
    event.record = std::make_shared<CallRecord>(std::move(record));
  } else if (IsSimple(record.outcome) && !flight.request.network) {
    event.record = std::make_shared<CallRecord>(
        client_.Conclude(flight.key, lease, std::move(record), held.lease.TakeLoans(), false));
  } else {
    event.open = std::make_shared<OpenCall>(
        OpenCall{flight.key, std::move(held), std::move(record), flight.request.network});
  }
  Over(flight, std::move(event));
}

void Flights::Over(const Flight& flight, FlightEvent event) {
  {
    const std::lock_guard lock(client_.mutex_);
    client_.stocks_[flight.key].Over();
  }
  events_.push_back(std::move(event));
}

Clock::time_point Flights::NextDue() const {
  Clock::time_point due = Clock::time_point::max();
  for (const auto& flight : air_) due = std::min(due, flight->held->lease.due());
  const std::lock_guard lock(client_.mutex_);
  for (const auto& [key, line] : lines_) {
    if (!line.flights.empty()) due = std::min(due, line.flights.front()->give_up);
  }
  return due;
}

}  // namespace hutch
