// SPDX-License-Identifier: Apache-2.0

// libFuzzer over what a hostile cell may send: each input is a run of datagrams, put on a real
// socket before its end closes; the lease must end the call with an outcome or an error of the
// protocol.
//
// An input is a sequence of: u8 how, u16 length, bytes. An even `how` sends the bytes as they are;
// an odd one puts the right magic, version and call id into them, so that the fuzzer gets past the
// first check at once. Where the whole has an odd size, the call may talk, and its cell is kept.
#include <fcntl.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "client/lease.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/tally.h"
#include "wire/channel.h"
#include "wire/error.h"

namespace {

// What lies unread when an end closes resets the other one, and takes what was sent with it.
void ReadAll(int fd) {
  static std::vector<char> buffer(sizeof(hutch::FrameHeader) + hutch::kMaxPayload);
  while (hutch::ReceiveDatagram(fd, buffer, nullptr, 0).status == hutch::ReceiveStatus::kData) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  static const std::shared_ptr<hutch::SegmentPool> segments = hutch::SegmentPool::Make();
  constexpr uint64_t kCallId = 77;
  auto [ours, theirs] = hutch::MakeSocketPair();
  auto [out_read, out_write] = hutch::MakePipe();
  auto [err_read, err_write] = hutch::MakePipe();
  hutch::Lease lease(1, "worker", std::move(ours), std::move(out_read), std::move(err_read),
                     segments);
  const hutch::Blob function{std::string("f")};
  hutch::CallRequest request;
  request.function = &function;
  request.limits.result_bytes = 1 << 20;
  const hutch::Dialogue dialogue = [](bool asks, const std::string& data, size_t body_size,
                                      const hutch::StopClock& stop_clock) {
    if (body_size > data.size()) std::abort();
    stop_clock(asks);
    return data.empty() ? std::nullopt : std::optional<std::string>(data);
  };
  if (size % 2 != 0) {
    request.dialogue = &dialogue;
    lease.SetKept([] {});
  }
  if (!lease.Send(request, kCallId)) std::abort();
  ReadAll(theirs.get());
  // The lease hears a frame before the next one is sent: what it answers is read, too.
  bool accepted = false;
  bool over = false;
  const auto listen = [&] {
    pollfd polled[hutch::kPolledOfCall];
    lease.Fill(polled);
    for (pollfd& one : polled) one.revents = POLLIN;
    try {
      if (!lease.Step(request, polled, {}, [] {})) return ReadAll(theirs.get());
      const hutch::CallOutcome outcome = lease.Take();
      if (outcome.payload && outcome.payload->body_size() > outcome.payload->size()) std::abort();
      accepted = outcome.status != hutch::CallStatus::kEnded;
    } catch (const hutch::Error& error) {
      if (error.code() != hutch::Code::kProtocol) std::abort();
    }
    over = true;
  };
  hutch::ForEachStep(data, size, [&](uint8_t how, std::string bytes) {
    if (over) return;
    if (how % 2 != 0) {
      hutch::WithHeader(bytes, [](hutch::FrameHeader& header) { header.id = kCallId; });
    }
    const iovec part{bytes.data(), bytes.size()};
    hutch::SendDatagram(theirs.get(), {&part, 1});
    listen();
  });
  theirs.reset();
  out_write.reset();
  err_write.reset();
  for (int i = 0; i < 2 && !over; ++i) listen();
  if (!over) std::abort();
  tally.Count(accepted);
  return 0;
}
