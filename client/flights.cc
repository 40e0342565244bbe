// SPDX-License-Identifier: Apache-2.0

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
constexpr Clock::duration kLongestWait = std::chrono::seconds(10);
// What counts as the same wait, told by the agent and seen from here.
constexpr auto kSameWait = std::chrono::milliseconds(100);
// Beyond a caller's patience the agent has this long to say so, for it knows the numbers of all.
constexpr auto kGrace = std::chrono::milliseconds(250);

Error NoCell(Clock::duration waited, double queued, double capacity, const std::string& hint) {
  const double seconds = std::chrono::duration<double>(waited).count();
  char text[160];
  std::snprintf(text, sizeof text,
                "no cell came free within %.1f s: %.0f more calls wait, %.0f cells are in use",
                seconds, queued, capacity);
  return Error(Code::kBusy, text, hint, false,
               {{"queued", queued}, {"capacity", capacity}, {"waited_sec", seconds}});
}

// A call that was not asked for at once has waited longer than the agent knows.
Error Restated(const Error& error, Clock::duration waited) {
  Figures figures = error.figures();
  const auto told = std::chrono::duration<double>(figures["waited_sec"]);
  if (waited < told + kSameWait) return error;
  return NoCell(waited, figures["queued"], figures["capacity"], error.hint());
}

}  // namespace

struct Flights::Flight {
  uint64_t id = 0;
  std::string key;
  CallRequest request;
  std::shared_ptr<const void> owner;
  bool output = false;
  Clock::time_point asked;
  Clock::time_point patience;  // until then
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
  flight->patience = After(flight->request.limits.queue_ms);
  if (flight->request.begun == Clock::time_point{}) flight->request.begun = flight->asked;
  bool first = false;
  {
    const std::lock_guard lock(client_.mutex_);
    first = !awake_;
    Join(lines_[key], std::move(flight), false);
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

void Flights::Answered(const std::string& key, uint64_t request) {
  lines_[key].asked.erase(request);
}

void Flights::Refused(const std::string& key, uint64_t request, Error error) {
  Line& line = lines_[key];
  const auto asked = line.asked.extract(request);
  const auto concerned = std::ranges::find_if(line.flights, [&](const auto& flight) {
    return asked && flight->patience == asked.mapped();
  });
  // For whom it was asked has found another cell, or left. Who has not is asked for anew.
  if (concerned == line.flights.end()) return Granted(key);
  std::unique_ptr<Flight> flight = std::move(*concerned);
  line.flights.erase(concerned);
  const Clock::time_point now = Clock::now();
  if (error.code() == Code::kBusy && flight->patience <= now)
    error = Restated(error, now - flight->asked);
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
    const Clock::duration most = Waiting() ? Clock::duration(kLookPeriod) : kLongestWait;
    const Clock::duration wait =
        std::clamp<Clock::duration>(std::min(until, NextDue()) - now, {}, most);
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
    const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
    if (::ppoll(polled.data(), polled.size(), &timeout, nullptr) < 0 && errno != EINTR)
      ThrowErrno("poll");
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      if (::read(wake_.get(), &count, sizeof count) < 0) ThrowErrno("reading an eventfd");
    }
    std::set<uint64_t> lost;
    {
      const std::lock_guard lock(client_.mutex_);
      awake_ = false;
      if (polled[1].revents != 0) {
        client_.DrainLocked([] { return false; });
        client_.changed_.notify_all();
      }
      stopped = std::exchange(stopped_, false);
      LookAtAgentLocked(Clock::now() - now - wait);
      const bool hung_up = std::ranges::any_of(
          air_, [](const auto& flight) { return flight->held->lease.hung_up(); });
      if (hung_up || polled[1].revents != 0) lost = LostLocked();
    }
    at = 2;
    for (auto it = air_.begin(); it != air_.end(); at += Lease::kPolled) {
      it = Step(**it, &polled[at]) ? air_.erase(it) : std::next(it);
    }
    GiveUp(lost);
  }
  return std::exchange(events_, {});
}

bool Flights::Waiting() const {
  const std::lock_guard lock(client_.mutex_);
  return std::ranges::any_of(lines_, [](const auto& line) { return !line.second.flights.empty(); });
}

void Flights::LookAtAgentLocked(Clock::duration late) {
  const bool waiting =
      std::ranges::any_of(lines_, [](const auto& line) { return !line.second.flights.empty(); });
  if (!waiting || client_.broken_) return;
  try {
    client_.LookAtAgent(late);
  } catch (const Error&) {
    return;  // the connection counts as broken: Expire tells all who wait
  }
}

std::set<uint64_t> Flights::LostLocked() const {
  std::set<uint64_t> lost;
  for (const auto& flight : air_) {
    const Lease& lease = flight->held->lease;
    if (client_.IsLostLocked(lease.id(), lease.hung_up())) lost.insert(lease.id());
  }
  return lost;
}

void Flights::GiveUp(const std::set<uint64_t>& lost) {
  for (auto it = air_.begin(); it != air_.end();) {
    Flight& flight = **it;
    if (!lost.contains(flight.held->lease.id())) {
      ++it;
      continue;
    }
    Land(flight, flight.held->lease.End(CallStatus::kEnded, flight.printed));
    it = air_.erase(it);
  }
}

void Flights::DropCancelled() {
  std::vector<uint64_t> cancelled;
  std::vector<std::unique_ptr<Flight>> waiting;
  std::vector<uint64_t> unwanted;
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
      TakeUnwanted(line, unwanted);
    }
  }
  for (const uint64_t request : unwanted) client_.Tell(Forget{request});
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
  std::vector<uint64_t> unwanted;
  {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(client_.mutex_);
    for (auto& [key, line] : lines_) {
      if (!client_.broken_ && line.due > now) continue;
      line.due = Clock::time_point::max();
      const auto others = static_cast<double>(line.flights.empty() ? 0 : line.flights.size() - 1);
      for (auto& flight : line.flights) {
        if (client_.broken_) {
          failed.emplace_back(std::move(flight), Lost());
        } else if (flight->patience + kGrace <= now) {
          Error error = NoCell(now - flight->asked, others, static_cast<double>(air_.size()),
                               "raise queue_sec, or start fewer calls at once");
          failed.emplace_back(std::move(flight), std::move(error));
        } else {
          line.due = std::min(line.due, flight->patience + kGrace);
        }
      }
      std::erase(line.flights, nullptr);
      TakeUnwanted(line, unwanted);
    }
  }
  for (const uint64_t request : unwanted) client_.Tell(Forget{request});
  for (auto& [flight, error] : failed) Fail(*flight, std::move(error));
}

void Flights::Join(Line& line, std::unique_ptr<Flight> flight, bool first) {
  line.due = std::min(line.due, flight->patience + kGrace);
  line.flights.insert(first ? line.flights.begin() : line.flights.end(), std::move(flight));
}

// After calls have left: the places that were taken for them come free, and keep nobody waiting.
void Flights::TakeUnwanted(Line& line, std::vector<uint64_t>& requests) {
  while (line.asked.size() > line.flights.size()) {
    const auto newest = std::prev(line.asked.end());
    client_.flight_requests_.erase(newest->first);
    requests.push_back(newest->first);
    line.asked.erase(newest);
  }
}

void Flights::Launch() {
  if (client_.broken_) return;  // Expire tells all who wait
  for (;;) {
    std::unique_ptr<Flight> flight;
    std::optional<HeldLease> held;
    std::vector<HeldLease> unwanted;
    {
      const std::lock_guard lock(client_.mutex_);
      for (auto& [key, line] : lines_) {
        if (line.flights.empty()) continue;
        const CallRequest& request = line.flights.front()->request;
        Stock& stock = client_.stocks_[key];
        held = stock.Take(request.shared(), request.identity);
        while (auto one = stock.TakeUnwanted()) unwanted.push_back(std::move(*one));
        if (!held) continue;
        client_.reports_[held->lease.id()];
        flight = std::move(line.flights.front());
        line.flights.pop_front();
        break;
      }
    }
    for (const HeldLease& one : unwanted) client_.Tell(Done{one.lease.id(), false, {}});
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
  Line& line = lines_[flight->key];
  Join(line, std::move(flight), true);
}

void Flights::AskForMore() {
  std::vector<Acquire> requests;
  {
    const Clock::time_point now = Clock::now();
    const std::lock_guard lock(client_.mutex_);
    if (client_.broken_) return;
    for (auto& [key, line] : lines_) {
      const size_t wanted = std::min(line.flights.size(), kMostAsked);
      while (line.asked.size() < wanted) {
        const Clock::time_point until = line.flights[line.asked.size()]->patience;
        // Rounded up: the agent is not done with it before its caller is.
        const auto patience = std::chrono::ceil<std::chrono::milliseconds>(until - now);
        const uint64_t request = client_.NextRequest();
        requests.push_back(
            {request, key, static_cast<uint64_t>(std::max<int64_t>(1, patience.count())), false});
        line.asked.emplace(request, until);
        client_.flight_requests_[request] = key;
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
    if (!line.flights.empty()) due = std::min(due, line.due);
  }
  return due;
}

}  // namespace hutch
