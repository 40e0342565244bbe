// SPDX-License-Identifier: Apache-2.0

#include "client/lease.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "client/trace.h"
#include "client/waiting.h"
#include "wire/channel.h"
#include "wire/error.h"

namespace hutch {
namespace {

constexpr auto kInterruptGrace = std::chrono::milliseconds(300);
constexpr uint64_t kMaxResult = 64ull << 30;  // where the call has no limit of its own
// A kept cell that has so many times its memory in what it was lent keeps it by what is no mapping,
// for it may map twice as much.
constexpr uint64_t kMostLent = 4;
constexpr uint64_t kAlwaysLent = 64 << 20;
constexpr size_t kMostUnsent = 64;  // answers: four times as many as tools that run at once

// Of a frame that answers call `call_id`. Throws kProtocol when it is none.
FrameHeader HeaderOf(const char* frame, const ReceiveResult& got, uint64_t call_id, bool kept) {
  FrameHeader header;
  if (got.status == ReceiveStatus::kTruncated || got.size < sizeof header) {
    throw Error(Code::kProtocol, "the cell sent a malformed frame", "", true);
  }
  std::memcpy(&header, frame, sizeof header);
  const bool ended = kept && header.kind == FrameKind::kUserEnded && header.id == 0;
  if (header.magic != kFrameMagic || header.version != kFrameVersion ||
      (header.id != call_id && !ended)) {
    throw Error(Code::kProtocol, "the cell sent a frame that does not answer its call", "", true);
  }
  return header;
}

bool IsClosed(int socket) {
  pollfd closed{socket, POLLRDHUP, 0};
  return ::poll(&closed, 1, 0) > 0;
}

}  // namespace

bool Lease::Send(const CallRequest& request, uint64_t call_id) {
  if (!loaded_.Serves(request.identity)) return false;
  result_.Begin();
  said_ = {};
  unsent_.clear();
  interrupted_.reset();
  outcome_ = CallOutcome(request.limits.output_bytes, call_id);
  std::vector<Fd> lent;
  if (interrupt_ && lending_.any()) {
    lending_.FreeReturned(!request.buffers.empty());
    const uint64_t memory = request.limits.memory_bytes;
    if (memory != 0 && lending_.bytes() > kMostLent * memory + kAlwaysLent) return false;
  }
  const std::vector<uint64_t> places = lending_.Lend(request.buffers, worker_, lent);
  const std::string_view table(reinterpret_cast<const char*>(places.data()), places.size() * 8);
  const bool known = request.shared() && loaded_.Has(request.identity);
  const std::string_view nothing;
  const std::string_view sections[] = {known ? nothing : request.meta,
                                       known ? nothing : request.function->bytes(),
                                       request.arguments, table};

  FrameHeader header{.kind = FrameKind::kCall, .a = 4, .id = call_id};
  if (quick_) header.c = ThisCpu();
  uint32_t lengths[4];
  std::vector<Fd> owned;
  std::vector<int> descriptors;
  iovec parts[7] = {{&header, sizeof header},
                    {const_cast<uint8_t*>(request.identity.data()), kIdentitySize},
                    {lengths, sizeof lengths}};
  size_t count = 3;
  for (int i = 0; i < 4; ++i) {
    const std::string_view section = sections[i];
    if (section.size() <= kInlineSection) {
      lengths[i] = static_cast<uint32_t>(section.size());
      if (!section.empty()) parts[count++] = {const_cast<char*>(section.data()), section.size()};
      continue;
    }
    lengths[i] = kSectionInDescriptor;
    if (i == 1) {
      owned.push_back(LendMemfd(request.function->memfd()));
      descriptors.push_back(owned.back().get());
      continue;
    }
    owned.push_back(MakeSealedMemfd("hutch-section", section.data(), section.size()));
    descriptors.push_back(owned.back().get());
  }
  for (const Fd& fd : lent) descriptors.push_back(fd.get());
  clock_.Begin(request.limits.timeout_ms);
  const SendStatus status = SendDatagram(socket_.get(), {parts, count}, descriptors);
  if (status == SendStatus::kFull && !interrupt_)
    throw Error(Code::kInternal, "the call cannot be sent: the socket of its fresh cell is full");
  if (status == SendStatus::kNoDescriptors) {
    throw Error(Code::kBusy,
                "this user's limit of descriptors that lie unread in sockets is reached",
                "start fewer calls at once, or raise `ulimit -n`");
  }
  outcome_.sent = clock_.sent();
  if (IsTraced() && status == SendStatus::kSent)
    Trace("sent", {{"call", LogId(call_id)}, {"lease", id_}, {"worker", worker_}});
  if (status == SendStatus::kSent) return true;
  lending_.TakeBackUnsent();
  return false;
}

void Lease::Fill(pollfd* polled) const {
  // The socket comes first: poll checks it before the pipes, so a round that finds the reply has
  // found all that was printed before it.
  const auto events = static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
  polled[0] = {hung_up_ ? -1 : socket_.get(), events, 0};
  polled[1] = {pipes_.polled(0), POLLIN, 0};
  polled[2] = {pipes_.polled(1), POLLIN, 0};
}

bool Lease::Step(const CallRequest& request, const pollfd* polled, const OutputHook& output,
                 const std::function<void()>& slow) {
  for (int stream : {0, 1}) {
    if (polled[stream + 1].revents != 0) pipes_.Read(stream, outcome_.output, output);
  }
  if ((polled[0].revents & POLLOUT) != 0) SendUnsent();
  if ((polled[0].revents & ~POLLOUT) != 0) {
    if (OnFrame(outcome_, request, slow)) {
      for (int stream : {0, 1}) {
        if (polled[stream + 1].revents != 0) pipes_.Read(stream, outcome_.output, output);
      }
      if (outcome_.ended == Clock::time_point{}) outcome_.ended = Clock::now();
      if (IsTraced()) {
        Trace("reply", {{"call", LogId(outcome_.call_id)},
                        {"lease", id_},
                        {"worker", worker_},
                        {"us", ToMicroseconds(outcome_.ended - clock_.sent())}});
      }
      return true;
    }
  }
  const Clock::time_point now = Clock::now();
  if (hung_up_ && pipes_.ended()) {
    outcome_.status = interrupted_.value_or(CallStatus::kEnded);
    outcome_.ended = now;
    return true;
  }
  if (clock_.IsOver(now) && GiveUp(CallStatus::kTimedOut)) {
    outcome_ = End(interrupted_.value_or(CallStatus::kTimedOut), output);
    return true;
  }
  if (clock_.IsToBeTold(now)) TellAgent(slow);
  return false;
}

CallOutcome Lease::End(CallStatus status, const OutputHook& output) {
  pipes_.Read(outcome_.output, output);
  outcome_.status = status;
  outcome_.ended = Clock::now();
  return Take();
}

void Lease::BeginUser(Fd socket, Output& output, const OutputHook& hook) {
  pipes_.ReadRest(output, hook);
  FreeMemory();
  socket_ = std::move(socket);
  hung_up_ = false;
}

bool Lease::OnFrame(CallOutcome& outcome, const CallRequest& request,
                    const std::function<void()>& slow) {
  // On the heap: where a thread has no memory for its own data, the C library ends the process.
  thread_local std::vector<char> buffer(sizeof(FrameHeader) + kMaxPayload);
  const ReceiveResult got = ReceiveDatagram(socket_.get(), buffer, nullptr, 0);
  if (got.status == ReceiveStatus::kNothing) return false;
  if (got.status == ReceiveStatus::kClosed) {
    if (!IsClosed(socket_.get()))  // what came is an empty frame
      throw Error(Code::kProtocol, "the cell sent a malformed frame", "", true);
    hung_up_ = true;
    return false;
  }
  const FrameHeader header =
      HeaderOf(buffer.data(), got, outcome_.call_id, static_cast<bool>(interrupt_));
  const std::string_view payload(buffer.data() + sizeof header, got.size - sizeof header);
  const uint64_t limit =
      request.limits.result_bytes != 0 ? request.limits.result_bytes : kMaxResult;
  switch (header.kind) {
    case FrameKind::kStarted: {
      if (!clock_.BeginAnew()) return false;
      if (IsTraced()) {
        Trace("started", {{"call", LogId(outcome_.call_id)},
                          {"lease", id_},
                          {"worker", worker_},
                          {"us", ToMicroseconds(Clock::now() - clock_.sent())}});
      }
      TellAgent(slow);  // its clock and the warden's start again with ours
      return false;
    }
    case FrameKind::kPart:
      result_.AddPart(header, payload, std::min(limit, kMostInParts));
      return false;
    case FrameKind::kNeed:
      return OnNeed(header.b, limit, request, slow);
    case FrameKind::kSay:
    case FrameKind::kAsk:
      if (const auto end = OnSaid(header, payload, request, slow)) {
        outcome.status = *end;
        return true;
      }
      return false;
    case FrameKind::kMisdirected:
      // Send() makes sure that this is not so, and loaded code may lie: if that were believed, it
      // could have its call repeated as if the fault were ours.
      throw Error(Code::kProtocol, "the cell says that it was loaded for another call", "", true);
    case FrameKind::kTooLarge:
      outcome.status = interrupted_.value_or(CallStatus::kTooLarge);
      outcome.replied = true;
      outcome.claimed = !interrupted_;
      outcome.result_size = header.b;
      if (payload.size() > sizeof(CallUsage)) {
        const std::string_view detail = payload.substr(sizeof(CallUsage));
        outcome.payload = std::make_unique<Payload>(std::string(detail), detail.size());
      }
      return true;
    case FrameKind::kResult:
      outcome.status = CallStatus::kReturned;
      break;
    case FrameKind::kRaised:
      outcome.status = CallStatus::kRaised;
      break;
    case FrameKind::kUnencodable:
      outcome.status = CallStatus::kUnencodable;
      break;
    case FrameKind::kUserEnded:
      if (interrupt_) return outcome.status = interrupted_.value_or(CallStatus::kEnded), true;
      [[fallthrough]];
    default:
      throw Error(Code::kProtocol, "the cell sent a frame of an unknown kind", "", true);
  }
  outcome.ended = Clock::now();
  outcome.replied = true;
  result_.Take(header, payload, outcome);
  outcome.claimed = outcome.usage.limit != kNoLimit && !interrupted_;
  quick_ = outcome.usage.wall_us < kQuickUs;
  if (interrupted_) {
    if (outcome.status != CallStatus::kRaised) outcome.payload.reset();
    outcome.status = *interrupted_;
  }
  if (header.kind == FrameKind::kResult && request.shared()) loaded_.Add(request.identity);
  return true;
}

bool Lease::OnNeed(uint64_t size, uint64_t limit, const CallRequest& request,
                   const std::function<void()>& slow) {
  FrameHeader reply{.kind = FrameKind::kRefused, .id = outcome_.call_id, .b = size};
  const iovec part{&reply, sizeof reply};
  if (size == 0 || size > limit || given().has_result()) {
    SendDatagram(socket_.get(), {&part, 1});
    return false;
  }
  // A result lies in the call's memory before it is returned: it cannot exceed the limit.
  if (request.limits.memory_bytes != 0 && size > request.limits.memory_bytes) {
    outcome_.status = CallStatus::kOutOfMemory;
    outcome_.claimed = true;
    outcome_.result_size = size;
    return true;
  }
  reply.kind = FrameKind::kMemfd;
  const int descriptor = result_.GiveMemory(size, interrupt_ || request.shared());
  SendDatagram(socket_.get(), {&part, 1}, {&descriptor, 1});
  TellAgent(slow);  // it counts as the call's
  return false;
}

bool Lease::GiveUp(CallStatus status) {
  if (!interrupt_ || interrupted_) return true;
  interrupted_ = status;
  clock_.LimitTo(kInterruptGrace);
  interrupt_();
  return false;
}

void Lease::TellAgent(const std::function<void()>& slow) {
  clock_.SetTold();
  slow();
}

void Lease::SetClock(bool stop, const std::function<void()>& slow) {
  if (interrupted_) return;
  if (!stop) return clock_.Resume();
  if (clock_.Stop()) TellAgent(slow);
}

std::optional<CallStatus> Lease::OnSaid(const FrameHeader& header, std::string_view payload,
                                        const CallRequest& request,
                                        const std::function<void()>& slow) {
  if (request.dialogue == nullptr)
    throw Error(Code::kProtocol, "the cell says something that nobody asked it for", "", true);
  const bool in_parts = payload.empty();
  const uint64_t limit =
      request.limits.result_bytes != 0 ? request.limits.result_bytes : kMaxResult;
  said_.bytes += header.c + sizeof header;
  if (header.b != ++said_.frames || header.a > header.c || header.c > kMostInParts ||
      header.c != (in_parts ? result_.parts_size() : payload.size())) {
    throw Error(Code::kProtocol, "what the cell says contradicts itself", "", true);
  }
  if (said_.bytes > limit && !request.streams) return CallStatus::kTooLarge;
  const std::string data = in_parts ? result_.TakeParts() : std::string(payload);
  const bool asks = header.kind == FrameKind::kAsk;
  if (asks && waiting_ != nullptr && waiting_->Takes({data, header.a, header.b}))
    return std::nullopt;
  const std::optional<std::string> answer =
      (*request.dialogue)(asks, data, header.a, [&](bool stop) {
        SetClock(stop, slow);
        return clock_.left(Clock::now());
      });
  if (waiting_ != nullptr && waiting_->IsOver()) return outcome_.status;
  SetClock(false, slow);
  if (!answer) return CallStatus::kInterrupted;
  // The newest is open: that of Exchange(), if it was used.
  return asks ? SendAnswer(said_.frames, *answer, request) : std::nullopt;
}

std::optional<CallStatus> Lease::SendAnswer(uint64_t number, const std::string& answer,
                                            const CallRequest& request) {
  const bool small = answer.size() <= kMaxPayload;
  if (!small && request.limits.memory_bytes != 0 && answer.size() > request.limits.memory_bytes)
    return CallStatus::kOutOfMemory;
  const std::string_view content = small ? answer : std::string_view();
  const int descriptor = small ? -1 : result_.GiveAnswer(answer);
  if (unsent_.empty() && SendNow(number, content, descriptor)) return std::nullopt;
  // A cell that asks again and again, and reads nothing, loses the rest.
  if (unsent_.size() < kMostUnsent)
    unsent_.push_back({number, std::string(content), Fd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0))});
  return std::nullopt;
}

bool Lease::SendNow(uint64_t number, std::string_view answer, int descriptor) {
  FrameHeader reply{.kind = FrameKind::kAnswer, .id = outcome_.call_id, .b = number};
  const iovec parts[] = {{&reply, sizeof reply}, {const_cast<char*>(answer.data()), answer.size()}};
  const size_t given = descriptor < 0 ? 0 : 1;
  return SendDatagram(socket_.get(), parts, {&descriptor, given}) != SendStatus::kFull;
}

void Lease::SendUnsent() {
  while (!unsent_.empty()) {
    const Unsent& next = unsent_.front();
    if (!SendNow(next.number, next.answer, next.memory.get())) return;
    unsent_.pop_front();
  }
}

}  // namespace hutch
