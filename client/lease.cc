// SPDX-License-Identifier: Apache-2.0

#include "client/lease.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "client/trace.h"
#include "wire/channel.h"
#include "wire/error.h"

namespace hutch {
namespace {

constexpr size_t kInlineSection = 15 * 1024;  // four of them fit a datagram
// Shorter calls are not announced to the agent: the message would cost more than the call.
constexpr auto kSlowAfter = std::chrono::milliseconds(5);
// How long loading took is what the cell claims, and code of the call may have run in that time: at
// most so much is believed, and nothing unless as much time has passed by our clock.
constexpr auto kMostLoading = std::chrono::seconds(1);
constexpr auto kSlowLoading = std::chrono::milliseconds(15);  // the cell reports 20 ms and more
constexpr auto kInterruptGrace = std::chrono::milliseconds(300);
constexpr auto kResumeAfter = std::chrono::milliseconds(50);
constexpr auto kSlice = std::chrono::milliseconds(250);
constexpr size_t kReadChunk = 64 * 1024;
constexpr size_t kMaxLent = 4;  // segments lent as they are: a cell takes 8 descriptors with a call
constexpr uint64_t kMaxResult = 64ull << 30;  // where the call has no limit of its own

size_t AlignUp(size_t n) {
  return (n + kArgumentAlignment - 1) / kArgumentAlignment * kArgumentAlignment;
}

uint64_t ThisCpu() { return static_cast<uint64_t>(::sched_getcpu()) + 1; }

Clock::time_point DeadlineFrom(Clock::time_point start, uint64_t timeout_ms) {
  if (timeout_ms == 0 || ClampToYear(timeout_ms) == kYear) return Clock::time_point::max();
  return start + ClampToYear(timeout_ms);
}

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

Blob::Blob(std::string bytes) : bytes_(std::move(bytes)), size_(bytes_.size()) {
  if (bytes_.size() > kInlineSection) {
    memfd_ = MakeSealedMemfd("hutch-function", bytes_.data(), bytes_.size());
    HoldSharedLocks(memfd_.get());
  }
}

Sha256Digest IdentityOf(std::string_view meta, const Sha256Digest& code, uint64_t policy,
                        bool shared) {
  // Each part but the last has a fixed size, so that different parts give different bytes.
  std::string parts = "hutch: what is loaded for a call";
  parts.append(reinterpret_cast<const char*>(code.data()), code.size());
  parts.append(reinterpret_cast<const char*>(&policy), sizeof policy);
  parts.push_back(shared ? 1 : 0);
  return Sha256(parts.append(meta));
}

std::string LoadFrame(const CallRequest& request, bool quick) {
  const std::string& function = request.function->bytes();
  if (request.identity == Sha256Digest{} || request.meta.size() > kInlineSection ||
      function.size() > kInlineSection)
    return {};
  FrameHeader header{.kind = FrameKind::kLoad, .a = 4};
  if (quick) header.c = ThisCpu();
  const uint32_t lengths[4] = {static_cast<uint32_t>(request.meta.size()),
                               static_cast<uint32_t>(function.size()), 0, 0};
  std::string frame;
  frame.reserve(sizeof header + kIdentitySize + sizeof lengths + request.meta.size() +
                function.size());
  frame.append(reinterpret_cast<const char*>(&header), sizeof header);
  frame.append(reinterpret_cast<const char*>(request.identity.data()), kIdentitySize);
  frame.append(reinterpret_cast<const char*>(lengths), sizeof lengths);
  return frame.append(request.meta).append(function);
}

std::vector<uint64_t> Lease::PlaceBuffers(const std::vector<Buffer>& buffers,
                                          std::vector<Fd>& owned) {
  std::vector<uint64_t> places;  // descriptor, offset, size
  std::vector<std::string_view> copied;
  Loans lent;
  size_t total = 0;
  for (const Buffer& buffer : buffers) {
    const bool as_it_is = buffer.segment != nullptr && lent.size() < kMaxLent;
    if (as_it_is) {
      auto found = std::ranges::find(lent, buffer.segment);
      const auto index = static_cast<uint64_t>(found - lent.begin()) + 1;
      if (found == lent.end()) lent.push_back(buffer.segment);
      places.insert(places.end(), {index, 0, buffer.bytes.size()});
      continue;
    }
    const uint64_t flags = buffer.is_bytes ? kFlagBytes : 0;
    places.insert(places.end(), {flags, total, buffer.bytes.size()});
    copied.push_back(buffer.bytes);
    total = AlignUp(total + buffer.bytes.size());
  }
  if (!copied.empty()) {
    lent.insert(lent.begin(), segments_->Take(total, worker_));
    lent.front()->Fill(copied);
  } else {
    for (size_t i = 0; i < places.size(); i += 3) --places[i];
  }
  for (std::shared_ptr<Segment>& segment : lent) {
    owned.push_back(segment->Lend());
    loans_.push_back(std::move(segment));
  }
  return places;
}

bool Lease::Send(const CallRequest& request, uint64_t call_id) {
  if (loaded_ && *loaded_ != request.identity) return false;
  call_id_ = call_id;
  restarted_ = reported_slow_ = false;
  result_memfd_.reset();
  parts_.clear();
  said_ = said_bytes_ = answer_bytes_ = 0;
  interrupted_ = false;
  timeout_ms_ = request.limits.timeout_ms;
  stopped_at_.reset();
  agent_stopped_ = false;
  outcome_ = CallOutcome(request.limits.output_bytes, call_id);
  std::vector<Fd> lent;
  const auto lent_before = static_cast<ptrdiff_t>(loans_.size());  // to earlier calls
  const std::vector<uint64_t> places = PlaceBuffers(request.buffers, lent);
  const std::string_view table(reinterpret_cast<const char*>(places.data()), places.size() * 8);
  const bool known = request.shared() && known_.contains(request.identity);
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
  sent_ = Clock::now();
  deadline_ = DeadlineFrom(sent_, request.limits.timeout_ms);
  const SendStatus status = SendDatagram(socket_.get(), {parts, count}, descriptors);
  if (status == SendStatus::kFull)
    throw Error(Code::kInternal, "the call cannot be sent: the socket of its fresh cell is full");
  if (status == SendStatus::kNoDescriptors) {
    throw Error(Code::kBusy,
                "this user's limit of descriptors that lie unread in sockets is reached",
                "start fewer calls at once, or raise `ulimit -n`");
  }
  outcome_.sent = sent_;
  if (IsTraced() && status == SendStatus::kSent)
    Trace("sent", {{"call", LogId(call_id)}, {"lease", id_}, {"worker", worker_}});
  if (status == SendStatus::kSent) return true;
  // None of it arrived. What earlier calls were lent their processes may have still.
  std::for_each(loans_.begin() + lent_before, loans_.end(),
                [](const std::shared_ptr<Segment>& segment) { segment->Ended(); });
  loans_.erase(loans_.begin() + lent_before, loans_.end());
  return false;
}

struct Lease::Wait {
  const CallRequest& request;
  const CallHooks& hooks;
  const std::function<void()>& slow;
  const std::function<bool(bool hung_up)>& lost;
  Clock::time_point ask_again;
  int cancel_fd;
  bool over = false;                     // decided in Exchange()
  std::exception_ptr failure = nullptr;  // why, if the protocol was broken
};

CallOutcome Lease::Await(const CallRequest& request, const CallHooks& hooks,
                         const std::function<void()>& slow,
                         const std::function<bool(bool hung_up)>& lost) {
  Wait wait{request, hooks, slow, lost, sent_ + kSlice, hooks.cancel_fd};
  wait_ = &wait;
  const struct End {
    Wait*& of;
    ~End() { of = nullptr; }
  } end{wait_};
  while (!Round(wait)) {
  }
  return Take();
}

bool Lease::Round(Wait& wait) {
  const auto end = [&](CallStatus status) {
    outcome_ = End(status, wait.hooks.output);
    return true;
  };
  // By the clock, not when no descriptor is ready: a cell that prints or sends frames without end
  // would prevent it.
  const auto interrupted = [&](bool now) {
    if (!wait.hooks.interrupted || (!now && Clock::now() < wait.ask_again)) return false;
    wait.ask_again = Clock::now() + kSlice;
    return wait.hooks.interrupted();
  };
  pollfd polled[kPolled + 1];
  polled[kPolled] = {wait.cancel_fd, POLLIN, 0};
  Fill(polled);
  const Clock::duration left = std::min<Clock::duration>(due() - Clock::now(), kSlice);
  const auto ns =
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(left).count());
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  const int ready = ::ppoll(polled, kPolled + 1, &timeout, nullptr);
  if (ready < 0 && errno != EINTR) ThrowErrno("wait for a cell");
  if (interrupted(ready < 0) && GiveUp(CallStatus::kInterrupted))
    return end(CallStatus::kInterrupted);
  if (ready < 0) return false;
  if (polled[kPolled].revents != 0) {
    if (GiveUp(CallStatus::kCancelled)) return end(CallStatus::kCancelled);
    wait.cancel_fd = -1;
  }
  if (Step(wait.request, polled, wait.hooks.output, wait.slow)) return true;
  return ready == 0 && reported_slow_ && wait.lost && wait.lost(hung_up_) &&
         end(CallStatus::kEnded);
}

std::optional<Question> Lease::Exchange(const std::string& answer) {
  if (wait_ == nullptr || wait_->over) return std::nullopt;
  Wait& wait = *wait_;
  asked_.reset();
  exchanges_ = true;
  try {
    SetClock(false, wait.slow);
    if (const auto end = SendAnswer(answer, wait.request)) {
      outcome_.status = *end;
      wait.over = true;
    }
    while (!asked_ && !wait.over) wait.over = Round(wait);
  } catch (...) {  // that of a hook, too
    wait.failure = std::current_exception();
    wait.over = true;
  }
  exchanges_ = false;
  std::optional<Question> asked = std::exchange(asked_, std::nullopt);
  return wait.over ? std::nullopt : std::move(asked);
}

void Lease::Fill(pollfd* polled) const {
  // The socket comes first: poll checks it before the pipes, so a round that finds the reply has
  // found all that was printed before it.
  polled[0] = {hung_up_ ? -1 : socket_.get(), POLLIN, 0};
  polled[1] = {stream_ended_[0] ? -1 : out_.get(), POLLIN, 0};
  polled[2] = {stream_ended_[1] ? -1 : err_.get(), POLLIN, 0};
}

Clock::time_point Lease::due() const {
  if (agent_stopped_) return std::min(deadline_, resumed_at_ + kResumeAfter);
  return reported_slow_ ? deadline_ : std::min(deadline_, sent_ + kSlowAfter);
}

bool Lease::Step(const CallRequest& request, const pollfd* polled, const OutputHook& output,
                 const std::function<void()>& slow) {
  for (int stream : {0, 1}) {
    if (polled[stream + 1].revents != 0) ReadOutput(stream, output);
  }
  if (polled[0].revents != 0) {
    const bool had_restarted = restarted_;
    const bool had_memory = static_cast<bool>(result_memfd_);
    if (OnFrame(outcome_, request, slow)) {
      for (int stream : {0, 1}) {
        if (polled[stream + 1].revents != 0) ReadOutput(stream, output);
      }
      if (outcome_.ended == Clock::time_point{}) outcome_.ended = Clock::now();
      if (IsTraced()) {
        Trace("reply", {{"call", LogId(call_id_)},
                        {"lease", id_},
                        {"worker", worker_},
                        {"us", ToMicroseconds(outcome_.ended - sent_)}});
      }
      return true;
    }
    // The clocks of the agent and the warden start again with ours. Memory for a result counts as
    // the call's.
    if (restarted_ != had_restarted || static_cast<bool>(result_memfd_) != had_memory) {
      reported_slow_ = true;
      slow();
    }
  }
  const Clock::time_point now = Clock::now();
  if (hung_up_ && stream_ended_[0] && stream_ended_[1]) {
    outcome_.status = CallStatus::kEnded;
    outcome_.ended = now;
    return true;
  }
  if (now >= deadline_ && GiveUp(CallStatus::kTimedOut)) {
    outcome_ = End(interrupted_ ? interrupted_as_ : CallStatus::kTimedOut, output);
    return true;
  }
  if (agent_stopped_ && now - resumed_at_ >= kResumeAfter) ResumeAtAgent(now, slow);
  if (!reported_slow_ && now - sent_ >= kSlowAfter) {
    reported_slow_ = true;
    slow();
  }
  return false;
}

CallOutcome Lease::End(CallStatus status, const OutputHook& output) {
  for (int stream : {0, 1}) ReadOutput(stream, output);
  outcome_.status = status;
  outcome_.ended = Clock::now();
  return Take();
}

void Lease::ReadOutput(int stream, const OutputHook& output) {
  thread_local char buffer[kReadChunk];
  // At most a pipe's content: a writer that never stops must not delay the check of the deadline.
  for (int i = 0; i < 4 && !stream_ended_[stream]; ++i) {
    const ssize_t n = ::read((stream == 0 ? out_ : err_).get(), buffer, sizeof buffer);
    if (n < 0) {
      stream_ended_[stream] = errno != EAGAIN && errno != EINTR;
      return;
    }
    if (n == 0) {
      stream_ended_[stream] = true;
      return;
    }
    const std::string_view bytes(buffer, static_cast<size_t>(n));
    outcome_.output.Add(stream, bytes);
    if (output) output(stream, bytes);
    if (bytes.size() < sizeof buffer) return;
  }
}

void Lease::TakeRest(Output& output, const OutputHook& hook) {
  std::swap(outcome_.output, output);
  for (int stream : {0, 1}) {
    for (size_t before = 0, now = 1; now != before;) {
      before = outcome_.output.size(stream);
      ReadOutput(stream, hook);
      now = outcome_.output.size(stream);
    }
  }
  std::swap(outcome_.output, output);
  alignas(FrameHeader) char frame[sizeof(FrameHeader)];
  while (ReceiveDatagram(socket_.get(), frame, nullptr, 0).status != ReceiveStatus::kNothing &&
         !IsClosed(socket_.get())) {
  }
}

bool Lease::OnFrame(CallOutcome& outcome, const CallRequest& request,
                    const std::function<void()>& slow) {
  alignas(FrameHeader) thread_local char buffer[sizeof(FrameHeader) + kMaxPayload];
  const ReceiveResult got = ReceiveDatagram(socket_.get(), buffer, nullptr, 0);
  if (got.status == ReceiveStatus::kNothing) return false;
  if (got.status == ReceiveStatus::kClosed) {
    if (!IsClosed(socket_.get()))  // what came is an empty frame
      throw Error(Code::kProtocol, "the cell sent a malformed frame", "", true);
    hung_up_ = true;
    return false;
  }
  const FrameHeader header = HeaderOf(buffer, got, call_id_, kept_);
  const std::string_view payload(buffer + sizeof header, got.size - sizeof header);
  const uint64_t limit =
      request.limits.result_bytes != 0 ? request.limits.result_bytes : kMaxResult;
  switch (header.kind) {
    case FrameKind::kStarted: {
      const Clock::duration loading = Clock::now() - sent_;
      if (restarted_ || loading < kSlowLoading) return false;
      restarted_ = true;
      if (IsTraced()) {
        Trace("started", {{"call", LogId(call_id_)},
                          {"lease", id_},
                          {"worker", worker_},
                          {"us", ToMicroseconds(loading)}});
      }
      deadline_ = DeadlineFrom(sent_ + std::min<Clock::duration>(loading, kMostLoading),
                               request.limits.timeout_ms);
      return false;
    }
    case FrameKind::kPart:
      TakePart(header, payload, std::min(limit, kMostInParts));
      return false;
    case FrameKind::kNeed: {
      FrameHeader reply{.kind = FrameKind::kRefused, .id = call_id_, .b = header.b};
      const iovec part{&reply, sizeof reply};
      if (header.b == 0 || header.b > limit || result_memfd_) {
        SendDatagram(socket_.get(), {&part, 1});
        return false;
      }
      // A result lies in the call's memory before it is returned: it cannot exceed the limit.
      if (request.limits.memory_bytes != 0 && header.b > request.limits.memory_bytes) {
        outcome.status = CallStatus::kOutOfMemory;
        outcome.result_size = header.b;
        return true;
      }
      result_memfd_ = MakeResultMemfd(header.b);
      result_memfd_size_ = header.b;
      reply.kind = FrameKind::kMemfd;
      const int descriptor = result_memfd_.get();
      SendDatagram(socket_.get(), {&part, 1}, {&descriptor, 1});
      return false;
    }
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
      outcome.status = interrupted_ ? interrupted_as_ : CallStatus::kTooLarge;
      outcome.replied = true;
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
      if (kept_) return outcome.status = CallStatus::kEnded, true;
      [[fallthrough]];
    default:
      throw Error(Code::kProtocol, "the cell sent a frame of an unknown kind", "", true);
  }
  outcome.ended = Clock::now();
  outcome.replied = true;
  TakeResult(outcome, header, payload);
  if (interrupted_) {
    if (outcome.status != CallStatus::kRaised) outcome.payload.reset();
    outcome.status = interrupted_as_;
  }
  if (header.kind == FrameKind::kResult && request.shared()) known_.insert(request.identity);
  return true;
}

bool Lease::GiveUp(CallStatus status) {
  if (!interrupt_ || interrupted_) return true;
  interrupted_ = true;
  interrupted_as_ = status;
  deadline_ = Clock::now() + kInterruptGrace;
  interrupt_();
  return false;
}

void Lease::SetClock(bool stop, const std::function<void()>& slow) {
  const bool is_stopped = stopped_at_.has_value();
  if (stop == is_stopped || interrupted_ || deadline_ == Clock::time_point::max()) return;
  const Clock::time_point now = Clock::now();
  if (!stop) {
    deadline_ += now - *stopped_at_;
    stopped_at_.reset();
    resumed_at_ = now;
    return;
  }
  stopped_at_ = now;
  if (std::exchange(agent_stopped_, true)) return;
  timeout_ms_ = static_cast<uint64_t>(kYear.count());
  reported_slow_ = true;
  slow();
}

void Lease::ResumeAtAgent(Clock::time_point now, const std::function<void()>& slow) {
  agent_stopped_ = false;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - now);
  timeout_ms_ = static_cast<uint64_t>(std::max<int64_t>(1, left.count()));
  slow();
}

std::optional<CallStatus> Lease::OnSaid(const FrameHeader& header, std::string_view payload,
                                        const CallRequest& request,
                                        const std::function<void()>& slow) {
  if (request.dialogue == nullptr)
    throw Error(Code::kProtocol, "the cell says something that nobody asked it for", "", true);
  const bool in_parts = payload.empty();
  const uint64_t limit =
      request.limits.result_bytes != 0 ? request.limits.result_bytes : kMaxResult;
  said_bytes_ += header.c + sizeof header;
  if (header.b != ++said_ || header.a > header.c || header.c > kMostInParts ||
      header.c != (in_parts ? parts_.size() : payload.size())) {
    throw Error(Code::kProtocol, "what the cell says contradicts itself", "", true);
  }
  if (said_bytes_ > limit && !request.streams) return CallStatus::kTooLarge;
  const std::string data = in_parts ? std::exchange(parts_, {}) : std::string(payload);
  const bool asks = header.kind == FrameKind::kAsk;
  if (asks && exchanges_) {
    asked_ = Question{data, header.a};
    return std::nullopt;
  }
  const std::optional<std::string> answer =
      (*request.dialogue)(asks, data, header.a, [&](bool stop) { SetClock(stop, slow); });
  if (wait_ != nullptr && wait_->failure) std::rethrow_exception(wait_->failure);
  if (wait_ != nullptr && wait_->over) return outcome_.status;
  SetClock(false, slow);
  if (!answer) return CallStatus::kInterrupted;
  return asks ? SendAnswer(*answer, request) : std::nullopt;
}

std::optional<CallStatus> Lease::SendAnswer(const std::string& answer, const CallRequest& request) {
  FrameHeader reply{.kind = FrameKind::kAnswer, .id = call_id_, .b = said_};
  iovec parts[] = {{&reply, sizeof reply}, {const_cast<char*>(answer.data()), answer.size()}};
  if (answer.size() <= kMaxPayload) {
    SendDatagram(socket_.get(), parts);
    return std::nullopt;
  }
  // Memory of the host that the cell holds for as long as it likes, unmapped: no size of its
  // processes shows that.
  answer_bytes_ += answer.size();
  if (request.limits.memory_bytes != 0 && answer_bytes_ > request.limits.memory_bytes)
    return CallStatus::kOutOfMemory;
  const Fd memfd = MakeSealedMemfd("hutch-answer", answer.data(), answer.size());
  const int descriptor = memfd.get();
  SendDatagram(socket_.get(), {parts, 1}, {&descriptor, 1});
  return std::nullopt;
}

void Lease::TakePart(const FrameHeader& header, std::string_view payload, uint64_t most) {
  if (parts_.empty()) {
    parts_size_ = header.c;
    if (parts_size_ <= most) parts_.reserve(parts_size_);
  }
  if (payload.empty() || header.c != parts_size_ || parts_size_ > most ||
      payload.size() > parts_size_ - parts_.size()) {
    throw Error(Code::kProtocol, "the parts of the cell's reply contradict each other", "", true);
  }
  parts_.append(payload);
}

void Lease::TakeResult(CallOutcome& outcome, const FrameHeader& header, std::string_view payload) {
  if (payload.size() < sizeof(CallUsage))
    throw Error(Code::kProtocol, "the cell's reply is too short", "", true);
  std::memcpy(&outcome.usage, payload.data(), sizeof(CallUsage));
  quick_ = outcome.usage.wall_us < kQuickUs;
  payload.remove_prefix(sizeof(CallUsage));
  outcome.result_size = header.c;
  if (header.b > header.c || header.a > kFlagInParts || (header.a != 0 && !payload.empty()))
    throw Error(Code::kProtocol, "the cell's reply contradicts itself", "", true);
  if (header.a == kFlagInParts) {
    if (header.c != parts_.size())
      throw Error(Code::kProtocol, "parts of the cell's reply are missing", "", true);
    outcome.payload = std::make_unique<Payload>(std::exchange(parts_, {}), header.b);
    return;
  }
  if (header.a == kFlagInMemfd) {
    if (!result_memfd_ || header.c > result_memfd_size_) {
      throw Error(Code::kProtocol, "the cell's reply is not where it says", "", true);
    }
    outcome.payload =
        std::make_unique<Payload>(PrivateMapping(result_memfd_.get(), header.c), header.b);
    return;
  }
  if (header.c != payload.size())
    throw Error(Code::kProtocol, "the cell's reply has another size", "", true);
  outcome.payload = std::make_unique<Payload>(std::string(payload), header.b);
}

}  // namespace hutch
