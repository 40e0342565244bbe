// SPDX-License-Identifier: Apache-2.0

// A Lease against scripted cells: threads that hold the other ends of a real socket and two real
// pipes.
#include "client/lease.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "client/waiting.h"
#include "wire/channel.h"
#include "wire/error.h"

namespace hutch {
namespace {

constexpr uint64_t kCallId = 77;

// The cell's ends, with what a cell does with them.
struct Cell {
  Fd socket, out, err;

  struct Received {
    FrameHeader header{};
    std::string payload;
    std::vector<Fd> descriptors;
  };
  // Waits for one frame; nothing at the end of the stream.
  std::optional<Received> Receive() const {
    std::vector<char> buffer(sizeof(FrameHeader) + kMaxPayload);
    Received received;
    for (;;) {
      pollfd polled{socket.get(), POLLIN, 0};
      ::poll(&polled, 1, -1);
      const ReceiveResult got = ReceiveDatagram(socket.get(), buffer, &received.descriptors, 8);
      if (got.status == ReceiveStatus::kNothing) continue;
      if (got.status != ReceiveStatus::kData || got.size < sizeof(FrameHeader)) return std::nullopt;
      std::memcpy(&received.header, buffer.data(), sizeof(FrameHeader));
      received.payload.assign(buffer.data() + sizeof(FrameHeader), got.size - sizeof(FrameHeader));
      return received;
    }
  }
  void SendRaw(std::string_view bytes, std::span<const int> descriptors = {}) const {
    const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    while (SendDatagram(socket.get(), {&part, 1}, descriptors) == SendStatus::kFull) {
      pollfd polled{socket.get(), POLLOUT, 0};
      ::poll(&polled, 1, -1);
    }
  }
  void Send(const FrameHeader& header, std::string_view payload = {}) const {
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    SendRaw(bytes.append(payload));
  }
  void Reply(FrameKind kind, std::string_view body, CallUsage usage = {}) const {
    std::string payload(reinterpret_cast<const char*>(&usage), sizeof usage);
    Send({.kind = kind, .id = kCallId, .b = body.size(), .c = body.size()}, payload.append(body));
  }
  void Print(const Fd& stream, std::string_view text) const {
    while (!text.empty()) {
      const ssize_t n = ::write(stream.get(), text.data(), text.size());
      if (n <= 0) return;
      text.remove_prefix(static_cast<size_t>(n));
    }
  }
};

class LeaseTest : public ::testing::Test {
 protected:
  using Script = std::function<void(Cell&)>;

  LeaseTest() {
    std::signal(SIGPIPE, SIG_IGN);  // a script may print after the lease is gone
    request_.meta = "meta";
    request_.function = &function_;
    request_.arguments = "arguments";
    request_.limits.timeout_ms = 60'000;
    Renew();
  }
  ~LeaseTest() override {
    over_ = true;
    lease_.reset();
    if (thread_.joinable()) thread_.join();
  }

  // Another cell, when the last script is over.
  void Renew() {
    if (thread_.joinable()) thread_.join();
    auto [ours, theirs] = MakeSocketPair();
    auto [out_read, out_write] = MakePipe();
    auto [err_read, err_write] = MakePipe();
    cell_ = Cell{std::move(theirs), std::move(out_write), std::move(err_write)};
    lease_.emplace(1, "worker", std::move(ours), std::move(out_read), std::move(err_read),
                   SegmentPool::Make());
  }

  // The script gets the cell after the call has arrived; its ends close when it returns.
  void Play(Script script) {
    thread_ = std::thread([this, script = std::move(script)] {
      Cell cell = std::move(cell_);
      call_ = cell.Receive();
      script(cell);
    });
  }
  CallOutcome Run() {
    EXPECT_TRUE(lease_->Send(request_, kCallId));
    return Await(*lease_, request_, hooks_, [this] { ++slow_; });
  }
  CallOutcome RunAgainst(Script script) {
    Play(std::move(script));
    return Run();
  }
  // The cell's frame ends the call as an error of the protocol that says the call may have run.
  void ExpectProtocolError(Script script) {
    try {
      RunAgainst(std::move(script));
      ADD_FAILURE() << "the frame was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kProtocol) << error.what();
      EXPECT_TRUE(error.may_have_run());
    }
  }

  std::string IdentityBytes() const {
    return {reinterpret_cast<const char*>(request_.identity.data()), request_.identity.size()};
  }

  Blob function_{std::string("function")};
  CallRequest request_;
  CallHooks hooks_;
  std::optional<Lease> lease_;
  Cell cell_;
  std::optional<Cell::Received> call_;
  std::atomic<int> slow_ = 0;
  std::atomic<bool> over_ =
      false;  // a script that goes on for ever stops; outlives the test's body
  std::thread thread_;
};

std::string_view Text(const CallOutcome& outcome) {
  return {outcome.payload->data(), outcome.payload->size()};
}

// A cell that waits until the host is done with it.
void WaitForTheEnd(Cell& cell) {
  while (cell.Receive()) {
  }
}

TEST_F(LeaseTest, ReturnsWhatTheCellReplies) {
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.Reply(FrameKind::kResult, "result", {.load_us = 3, .cpu_us = 5});
    WaitForTheEnd(cell);
  });
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
  EXPECT_EQ(Text(outcome), "result");
  EXPECT_EQ(outcome.payload->body_size(), 6u);
  EXPECT_EQ(outcome.usage.load_us, 3u);
  EXPECT_EQ(outcome.usage.cpu_us, 5u);
}

TEST_F(LeaseTest, BelievesOfACellTheLimitsThatAnExceptionCanBe) {
  const auto raised = [](uint32_t limit) {
    return [limit](Cell& cell) { cell.Reply(FrameKind::kRaised, "error", {.limit = limit}); };
  };
  for (const uint32_t limit : {kNoLimit, kLimitMemory, kLimitPids, kLimitDisk}) {
    const CallOutcome outcome = RunAgainst(raised(limit));
    EXPECT_EQ(outcome.status, CallStatus::kRaised);
    EXPECT_EQ(outcome.usage.limit, limit);
    EXPECT_EQ(outcome.claimed, limit != kNoLimit);
    Renew();
  }
  for (const uint32_t limit : {1u, 2u, 6u, 77u, ~0u}) {
    ExpectProtocolError(raised(limit));
    Renew();
  }
}

TEST_F(LeaseTest, TellsACellThatWasQuickOnWhichCpuItsCallerWaits) {
  std::vector<uint64_t> told;
  Play([this, &told](Cell& cell) {
    for (const uint64_t wall_us : {5ul, 100'000ul, 5ul}) {
      told.push_back(call_->header.c);
      cell.Reply(FrameKind::kResult, "value", {.wall_us = wall_us});
      if (!(call_ = cell.Receive())) return;
    }
    told.push_back(call_->header.c);
  });
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const int here = ::sched_getcpu();
  CPU_ZERO(&one);
  CPU_SET(here, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Run().status, CallStatus::kReturned);
  EXPECT_TRUE(lease_->Send(request_, kCallId));
  ::sched_setaffinity(0, sizeof before, &before);
  thread_.join();
  const uint64_t ours = static_cast<uint64_t>(here) + 1;
  EXPECT_EQ(told, (std::vector<uint64_t>{0, ours, 0, ours}));
}

TEST_F(LeaseTest, TheFrameThatLoadsAFunctionHasAllOfACallButItsArguments) {
  const Blob pickled("\x80\x05.");
  request_.function = &pickled;
  request_.identity = {9};
  const std::string frame = LoadFrame(request_, false);
  FrameHeader header;
  ASSERT_GE(frame.size(), sizeof header);
  std::memcpy(&header, frame.data(), sizeof header);
  EXPECT_EQ(header.kind, FrameKind::kLoad);
  EXPECT_EQ(frame.substr(sizeof header, kIdentitySize), IdentityBytes());
  EXPECT_EQ(header.c, 0u);
  Play([](Cell& cell) { cell.Reply(FrameKind::kResult, "value"); });
  EXPECT_EQ(Run().status, CallStatus::kReturned);
  EXPECT_EQ(call_->header.kind, FrameKind::kCall);
  EXPECT_EQ(call_->payload.substr(0, kIdentitySize), IdentityBytes());
  EXPECT_TRUE(frame.ends_with("meta\x80\x05."));
  EXPECT_NE(call_->payload.find("meta\x80\x05.arguments"), std::string::npos);
}

TEST_F(LeaseTest, TheFrameThatLoadsAQuickFunctionSaysWhereItsCallerIs) {
  request_.identity = {9};
  FrameHeader header;
  std::memcpy(&header, LoadFrame(request_, true).data(), sizeof header);
  EXPECT_GE(header.c, 1u);
  EXPECT_LE(header.c, static_cast<uint64_t>(::sysconf(_SC_NPROCESSORS_CONF)));
}

TEST_F(LeaseTest, NothingLoadsAFunctionThatHasNoIdentityOrIsLarge) {
  EXPECT_EQ(LoadFrame(request_, false), "");
  request_.identity = {9};
  EXPECT_NE(LoadFrame(request_, false), "");
  const Blob large(std::string(20'000, 'x'));
  request_.function = &large;
  EXPECT_EQ(LoadFrame(request_, false), "");
  request_.function = &function_;
  request_.meta = large.bytes();
  EXPECT_EQ(LoadFrame(request_, false), "");
}

TEST_F(LeaseTest, ACellThatWasLoadedForAnotherCallIsSentNothing) {
  request_.identity = {9};
  lease_->loaded().SetOnly({8});
  EXPECT_FALSE(lease_->Send(request_, kCallId)) << "so it certainly did not run";
  lease_.reset();
  EXPECT_FALSE(cell_.Receive()) << "the cell sees the end of its socket only";
  Renew();
  lease_->loaded().SetOnly({9});
  EXPECT_EQ(RunAgainst([](Cell& cell) { cell.Reply(FrameKind::kResult, ""); }).status,
            CallStatus::kReturned);
}

TEST_F(LeaseTest, ACellCannotHaveItsCallRepeatedByTheWordThatItWasLoadedForAnother) {
  ExpectProtocolError(
      [](Cell& cell) { cell.Send({.kind = FrameKind::kMisdirected, .id = kCallId}); });
}

TEST(Identity, IsAnotherForAnythingThatIsLoadedAndNoPartCanBecomeAnother) {
  const Sha256Digest code = Sha256("code");
  std::set<Sha256Digest> seen = {
      IdentityOf("meta", code, 1, false),          IdentityOf("meta", code, 1, true),
      IdentityOf("meta", code, 2, false),          IdentityOf("metb", code, 1, false),
      IdentityOf("meta ", code, 1, false),         IdentityOf("", code, 1, false),
      IdentityOf("meta", Sha256("codf"), 1, false)};
  EXPECT_EQ(seen.size(), 7u);
  // What stands before the meta data never becomes part of it, nor the other way round.
  for (size_t moved = 0; moved < code.size(); ++moved) {
    Sha256Digest shifted{};
    std::copy(code.begin(), code.end() - static_cast<long>(moved),
              shifted.begin() + static_cast<long>(moved));
    const std::string rest(code.end() - static_cast<long>(moved), code.end());
    EXPECT_TRUE(seen.insert(IdentityOf(rest + "meta", shifted, 1, false)).second || moved == 0);
  }
  EXPECT_EQ(IdentityOf("meta", code, 1, false), IdentityOf("meta", code, 1, false));
}

TEST_F(LeaseTest, TellsRaisedAndUnencodableApart) {
  EXPECT_EQ(RunAgainst([](Cell& cell) { cell.Reply(FrameKind::kRaised, "error"); }).status,
            CallStatus::kRaised);
}

TEST_F(LeaseTest, TellsAResultThatIsNoData) {
  EXPECT_EQ(RunAgainst([](Cell& cell) { cell.Reply(FrameKind::kUnencodable, "map"); }).status,
            CallStatus::kUnencodable);
}

TEST_F(LeaseTest, PlacesTheCallAsTheSpecificationSays) {
  const std::string big_arguments(100'000, 'a');
  const std::string first(5000, 'x');
  const std::string second(10, 'y');
  const Blob big_function{std::string(50'000, 'f')};
  request_.function = &big_function;
  request_.arguments = big_arguments;
  request_.buffers = {Buffer(first), Buffer(second)};
  request_.buffers[1].is_bytes = true;
  RunAgainst([](Cell& cell) { cell.Reply(FrameKind::kResult, ""); });
  thread_.join();
  ASSERT_TRUE(call_);
  EXPECT_EQ(call_->header.kind, FrameKind::kCall);
  EXPECT_EQ(call_->header.a, 4u);
  EXPECT_EQ(call_->header.id, kCallId);
  std::array<uint32_t, 4> lengths;
  std::memcpy(lengths.data(), call_->payload.data() + kIdentitySize, sizeof lengths);
  EXPECT_EQ(lengths, (std::array<uint32_t, 4>{4, kSectionInDescriptor, kSectionInDescriptor, 48}));
  EXPECT_EQ(call_->payload.substr(48, 4), "meta");
  std::array<uint64_t, 6> places;
  std::memcpy(places.data(), call_->payload.data() + 52, sizeof places);
  EXPECT_EQ(places, (std::array<uint64_t, 6>{0, 0, 5000, kFlagBytes, 8192, 10}));
  ASSERT_EQ(call_->descriptors.size(), 3u);
  EXPECT_EQ(ReadSealedMemfd(call_->descriptors[0].get(), 1 << 20), big_function.bytes());
  EXPECT_EQ(ReadSealedMemfd(call_->descriptors[1].get(), 1 << 20), big_arguments);
  const std::string buffers = ReadSealedMemfd(call_->descriptors[2].get(), 1 << 20);
  EXPECT_EQ(buffers.substr(0, 5000), first);
  EXPECT_EQ(buffers.substr(8192, 10), second) << "each buffer is at the next multiple of 4096";
}

TEST_F(LeaseTest, LendsASegmentThatTheCallerFilledAsItIs) {
  const auto segment = std::make_shared<Segment>(10'000);
  std::memset(segment->Map(), 'z', 10'000);
  const std::string_view whole(segment->Map(), 10'000);
  const std::string copied = "copied";
  request_.buffers = {Buffer(whole, segment), Buffer(copied), Buffer(whole, segment)};
  RunAgainst([](Cell& cell) { cell.Reply(FrameKind::kResult, ""); });
  thread_.join();
  std::array<uint64_t, 9> places;
  std::memcpy(places.data(), call_->payload.data() + call_->payload.size() - sizeof places,
              sizeof places);
  EXPECT_EQ(places, (std::array<uint64_t, 9>{1, 0, 10'000, 0, 0, 6, 1, 0, 10'000}));
  ASSERT_EQ(call_->descriptors.size(), 2u);
  EXPECT_EQ(ReadSealedMemfd(call_->descriptors[1].get(), 1 << 20), whole);
  const Loans loans = lease_->lending().TakeAll();
  ASSERT_EQ(loans.size(), 2u);
  EXPECT_EQ(loans[1], segment);
  EXPECT_TRUE(segment->on_loan());
}

TEST_F(LeaseTest, OfManySharedSegmentsSomeAreCopied) {
  std::vector<std::shared_ptr<Segment>> segments;
  for (int i = 0; i < 20; ++i) {
    segments.push_back(std::make_shared<Segment>(4096));
    segments.back()->Map()[0] = static_cast<char>('a' + i);
    request_.buffers.emplace_back(std::string_view(segments.back()->Map(), 4096), segments.back());
  }
  RunAgainst([](Cell& cell) { cell.Reply(FrameKind::kResult, ""); });
  thread_.join();
  std::array<uint64_t, 60> places;
  std::memcpy(places.data(), call_->payload.data() + call_->payload.size() - sizeof places,
              sizeof places);
  for (size_t i = 0; i < segments.size(); ++i) {
    ASSERT_LT(places[3 * i], call_->descriptors.size());
    char first = 0;
    ASSERT_EQ(::pread(call_->descriptors[places[3 * i]].get(), &first, 1,
                      static_cast<off_t>(places[3 * i + 1])),
              1);
    EXPECT_EQ(first, static_cast<char>('a' + i));
  }
}

TEST_F(LeaseTest, ASentFunctionCannotBeChangedByItsCell) {
  const Blob big{std::string(50'000, 'f')};
  request_.function = &big;
  RunAgainst([this](Cell& cell) {
    EXPECT_EQ(::pwrite(call_->descriptors.at(0).get(), "x", 1, 0), -1);
    cell.Reply(FrameKind::kResult, "");
  });
}

TEST_F(LeaseTest, ALargeResultComesThroughMemoryOfTheHost) {
  const std::string result(300'000, 'r');
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = result.size()});
    const auto memfd = cell.Receive();
    ASSERT_TRUE(memfd && memfd->header.kind == FrameKind::kMemfd && memfd->descriptors.size() == 1);
    struct stat status;
    ASSERT_EQ(::fstat(memfd->descriptors[0].get(), &status), 0);
    EXPECT_EQ(static_cast<size_t>(status.st_size), result.size());
    EXPECT_EQ(::ftruncate(memfd->descriptors[0].get(), 1), -1) << "it can be truncated under us";
    ASSERT_EQ(::pwrite(memfd->descriptors[0].get(), result.data(), result.size(), 0),
              static_cast<ssize_t>(result.size()));
    const CallUsage usage;
    cell.Send(
        {.kind = FrameKind::kResult, .a = kFlagInMemfd, .id = kCallId, .b = 10, .c = result.size()},
        {reinterpret_cast<const char*>(&usage), sizeof usage});
  });
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
  EXPECT_EQ(Text(outcome), result);
  EXPECT_EQ(outcome.payload->body_size(), 10u);
}

TEST_F(LeaseTest, ACellThatKeepsAWritableMappingCannotChangeTheResultAfterwards) {
  char* mapped = nullptr;
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = 4096});
    const auto memfd = cell.Receive();
    ASSERT_TRUE(memfd && memfd->descriptors.size() == 1);
    mapped = static_cast<char*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memfd->descriptors[0].get(), 0));
    std::memset(mapped, 'a', 4096);
    const CallUsage usage;
    cell.Send({.kind = FrameKind::kResult, .a = kFlagInMemfd, .id = kCallId, .b = 4096, .c = 4096},
              {reinterpret_cast<const char*>(&usage), sizeof usage});
  });
  std::memset(mapped, 'b', 4096);
  EXPECT_EQ(Text(outcome), std::string(4096, 'a'));
  ::munmap(mapped, 4096);
}

TEST_F(LeaseTest, AResultSmallerThanAskedForIsTakenAtItsSize) {
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = 100'000});
    const auto memfd = cell.Receive();
    ASSERT_TRUE(memfd && memfd->descriptors.size() == 1);
    ASSERT_EQ(::pwrite(memfd->descriptors[0].get(), "abc", 3, 0), 3);
    const CallUsage usage;
    cell.Send({.kind = FrameKind::kResult, .a = kFlagInMemfd, .id = kCallId, .b = 3, .c = 3},
              {reinterpret_cast<const char*>(&usage), sizeof usage});
  });
  EXPECT_EQ(Text(outcome), "abc");
}

TEST_F(LeaseTest, ATooLargeResultIsRefusedAndItsSizeKept) {
  request_.limits.result_bytes = 1000;
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = 1001});
    const auto answer = cell.Receive();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->header.kind, FrameKind::kRefused);
    EXPECT_TRUE(answer->descriptors.empty());
    cell.Send({.kind = FrameKind::kTooLarge, .id = kCallId, .b = 1001});
  });
  EXPECT_EQ(outcome.status, CallStatus::kTooLarge);
  EXPECT_EQ(outcome.result_size, 1001u);
}

TEST_F(LeaseTest, WithoutALimitAnAbsurdSizeIsRefusedAllTheSame) {
  request_.limits.result_bytes = 0;
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = ~0ull});
    EXPECT_EQ(cell.Receive()->header.kind, FrameKind::kRefused);
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = 1 << 20});
    EXPECT_EQ(cell.Receive()->header.kind, FrameKind::kMemfd);
    cell.Reply(FrameKind::kResult, "x");
  });
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
}

TEST_F(LeaseTest, MemoryIsGivenOnce) {
  RunAgainst([](Cell& cell) {
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = 100});
    EXPECT_EQ(cell.Receive()->header.kind, FrameKind::kMemfd);
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = 100});
    EXPECT_EQ(cell.Receive()->header.kind, FrameKind::kRefused);
    cell.Reply(FrameKind::kResult, "x");
  });
}

void SendPart(const Cell& cell, std::string_view content, uint64_t size) {
  cell.Send({.kind = FrameKind::kPart, .id = kCallId, .c = size}, content);
}

void ReplyInParts(const Cell& cell, uint64_t body, uint64_t size, std::string_view more = "") {
  const CallUsage usage;
  std::string payload(reinterpret_cast<const char*>(&usage), sizeof usage);
  cell.Send({.kind = FrameKind::kResult, .a = kFlagInParts, .id = kCallId, .b = body, .c = size},
            payload.append(more));
}

TEST_F(LeaseTest, AResultThatComesInPartsIsPutTogether) {
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    SendPart(cell, std::string(kMaxPayload, 'a'), kMaxPayload + 3);
    cell.Print(cell.out, "printed");
    SendPart(cell, "bcd", kMaxPayload + 3);
    ReplyInParts(cell, 7, kMaxPayload + 3);
  });
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
  EXPECT_EQ(Text(outcome), std::string(kMaxPayload, 'a') + "bcd");
  EXPECT_EQ(outcome.payload->body_size(), 7u);
}

TEST_F(LeaseTest, OfPartsWithoutAReplyNothingIsLeft) {
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    SendPart(cell, "part", 1000);
    cell.Reply(FrameKind::kResult, "x");
  });
  EXPECT_EQ(Text(outcome), "x");
}

TEST_F(LeaseTest, PartsThatAreNotWhatTheySayAreRefused) {
  request_.limits.result_bytes = 1000;
  const std::vector<Script> scripts = {
      [](Cell& cell) { SendPart(cell, "", 10); },
      [](Cell& cell) { SendPart(cell, "more", 3); },
      [](Cell& cell) { SendPart(cell, "over the limit", 1001); },
      [](Cell& cell) { SendPart(cell, "absurd", ~0ull); },
      [](Cell& cell) {
        SendPart(cell, "some", 10);
        SendPart(cell, "of another", 11);
      },
      [](Cell& cell) {
        SendPart(cell, "some", 10);
        ReplyInParts(cell, 1, 10);
      },
      [](Cell& cell) {
        SendPart(cell, "some", 4);
        ReplyInParts(cell, 1, 4, "more");
      },
      [](Cell& cell) { ReplyInParts(cell, 0, 1); },
  };
  for (const Script& script : scripts) {
    Renew();
    ExpectProtocolError(script);
  }
}

TEST_F(LeaseTest, WhatIsPrintedAfterACellHungUpIsKept) {
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.Print(cell.out, "before, ");
    cell.socket.reset();  // as exec does
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cell.Print(cell.out, "after");
    cell.out.reset();
    cell.Print(cell.err, "and at last");
  });
  EXPECT_EQ(outcome.status, CallStatus::kEnded);
  EXPECT_EQ(outcome.output.text(0), "before, after");
  EXPECT_EQ(outcome.output.text(1), "and at last");
}

TEST_F(LeaseTest, ACellThatHungUpMeetsItsTimeLimit) {
  request_.limits.timeout_ms = 50;
  const CallOutcome outcome = RunAgainst([this](Cell& cell) {
    cell.socket.reset();
    while (!over_) std::this_thread::yield();
  });
  EXPECT_EQ(outcome.status, CallStatus::kTimedOut);
}

TEST_F(LeaseTest, ACellThatEndsWithoutReplyIsTold) {
  const CallOutcome outcome = RunAgainst([](Cell& cell) { cell.Print(cell.out, "last words"); });
  EXPECT_EQ(outcome.status, CallStatus::kEnded);
  EXPECT_EQ(outcome.output.text(0), "last words");
  EXPECT_EQ(outcome.payload, nullptr);
}

TEST_F(LeaseTest, ACellGoneBeforeTheCallCertainlyDidNotRunIt) {
  cell_ = {};
  EXPECT_FALSE(lease_->Send(request_, kCallId));
}

TEST_F(LeaseTest, TimesOutACallThatDoesNotEnd) {
  request_.limits.timeout_ms = 1;
  EXPECT_EQ(RunAgainst(WaitForTheEnd).status, CallStatus::kTimedOut);
}

TEST_F(LeaseTest, TimesOutACallThatPrintsWithoutEnd) {
  request_.limits.timeout_ms = 20;
  request_.limits.output_bytes = 1000;
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    const std::string chunk(65'536, 'x');
    while (::write(cell.out.get(), chunk.data(), chunk.size()) > 0) {
    }
  });
  EXPECT_EQ(outcome.status, CallStatus::kTimedOut);
  EXPECT_TRUE(outcome.output.truncated(0));
  EXPECT_LT(outcome.output.text(0).size(), 1100u);
}

TEST_F(LeaseTest, TimesOutACallThatSendsFramesWithoutEnd) {
  request_.limits.timeout_ms = 20;
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    while (!over_) {
      const FrameHeader need{.kind = FrameKind::kNeed, .id = kCallId, .b = 0};
      const iovec part{const_cast<FrameHeader*>(&need), sizeof need};
      SendDatagram(cell.socket.get(), {&part, 1});
    }
  });
  over_ = true;
  EXPECT_EQ(outcome.status, CallStatus::kTimedOut);
}

TEST_F(LeaseTest, StartedRestartsTheClockOnlyOnce) {
  request_.limits.timeout_ms = 1;
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    while (!over_) {
      const FrameHeader started{.kind = FrameKind::kStarted, .id = kCallId};
      const iovec part{const_cast<FrameHeader*>(&started), sizeof started};
      SendDatagram(cell.socket.get(), {&part, 1});
    }
  });
  over_ = true;
  EXPECT_EQ(outcome.status, CallStatus::kTimedOut);
}

FrameHeader Asking(uint64_t number, FrameKind kind = FrameKind::kAsk) {
  return {.kind = kind, .a = 1, .id = kCallId, .b = number, .c = 1};
}

TEST_F(LeaseTest, AnswersThatItsSocketHasNoRoomForAreSentOnceItHas) {
  constexpr uint64_t kMany = 16;
  const Dialogue dialogue = [&](bool, const std::string& data, size_t, const StopClock&) {
    // A socket takes some 200 kB, and each third answer comes in memory.
    return std::optional<std::string>(std::string(data == "l" ? 2 * kMaxPayload : 60'000, data[0]));
  };
  request_.dialogue = &dialogue;
  std::vector<uint64_t> answered;
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    for (uint64_t i = 1; i <= kMany; ++i) cell.Send(Asking(i), i % 3 == 0 ? "l" : "s");
    while (answered.size() < kMany) {
      const auto received = cell.Receive();
      ASSERT_TRUE(received);
      EXPECT_EQ(received->descriptors.size(), received->header.b % 3 == 0 ? 1u : 0u);
      EXPECT_EQ(received->payload.size(), received->header.b % 3 == 0 ? 0u : 60'000u);
      answered.push_back(received->header.b);
    }
    cell.Reply(FrameKind::kResult, "x");
  });
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
  for (uint64_t i = 1; i <= kMany; ++i) EXPECT_EQ(answered[i - 1], i);
}

TEST_F(LeaseTest, ACallMaySayOnlyWhatItsCallerListensTo) {
  ExpectProtocolError([](Cell& cell) { cell.Send(Asking(1, FrameKind::kSay), "x"); });
  Renew();
  std::vector<std::pair<bool, std::string>> heard;
  const Dialogue dialogue = [&](bool asks, const std::string& data, size_t body_size,
                                const StopClock&) {
    EXPECT_EQ(body_size, 1u);
    heard.emplace_back(asks, data);
    return std::optional<std::string>("answer");
  };
  request_.dialogue = &dialogue;
  std::string answer;
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    cell.Send(Asking(1, FrameKind::kSay), "x");
    cell.Send(Asking(2), "y");
    answer = cell.Receive()->payload;
    cell.Reply(FrameKind::kResult, "x");
  });
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
  EXPECT_EQ(heard, (std::vector<std::pair<bool, std::string>>{{false, "x"}, {true, "y"}}));
  EXPECT_EQ(answer, "answer");
}

TEST_F(LeaseTest, AnAnswerMayBeExchangedForTheNextQuestion) {
  std::vector<std::string> heard;
  const Dialogue dialogue = [&](bool asks, const std::string& data, size_t, const StopClock&) {
    heard.push_back(data);
    if (!asks) return std::optional<std::string>("");
    const std::optional<Question> next = Exchange(*lease_, "first");
    EXPECT_TRUE(next);
    heard.push_back(next ? next->data : "");
    return std::optional<std::string>("second");
  };
  request_.dialogue = &dialogue;
  std::vector<std::pair<uint64_t, std::string>> answers;
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    const auto take = [&] {
      const auto received = cell.Receive();
      if (received) answers.emplace_back(received->header.b, received->payload);
    };
    cell.Send(Asking(1), "a");
    take();
    cell.Send(Asking(2, FrameKind::kSay), "b");
    cell.Send(Asking(3), "c");
    take();
    cell.Reply(FrameKind::kResult, "x");
  });
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
  EXPECT_EQ(heard, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(answers, (std::vector<std::pair<uint64_t, std::string>>{{1, "first"}, {3, "second"}}));
  EXPECT_FALSE(Exchange(*lease_, "after the call"));
}

TEST_F(LeaseTest, ACallThatEndsInAnExchangeEndsAsEver) {
  int ended = 0;
  const Dialogue dialogue = [&](bool, const std::string&, size_t, const StopClock&) {
    for (int i = 0; i < 2; ++i) ended += Exchange(*lease_, "first") ? 0 : 1;
    return std::optional<std::string>("never sent");
  };
  request_.dialogue = &dialogue;
  const auto ends = [&](CallStatus status, const std::function<void(Cell&)>& how) {
    const CallOutcome outcome = RunAgainst([&](Cell& cell) {
      cell.Send(Asking(1), "a");
      cell.Receive();
      how(cell);
    });
    EXPECT_EQ(outcome.status, status);
    lease_.reset();  // which ends a script that waits
    Renew();
  };
  ends(CallStatus::kReturned, [](Cell& cell) { cell.Reply(FrameKind::kResult, "x"); });
  ends(CallStatus::kEnded, [](Cell&) {});
  request_.limits.timeout_ms = 50;
  ends(CallStatus::kTimedOut, [](Cell& cell) { cell.Receive(); });
  request_.limits.timeout_ms = 60'000;
  ExpectProtocolError([](Cell& cell) {
    cell.Send(Asking(1), "a");
    cell.Receive();
    cell.Send(Asking(7), "of another number");
  });
  EXPECT_EQ(ended, 8);
}

// Awaits the call in turns. `answer` is what each question gets.
class TurnsTest : public LeaseTest {
 protected:
  CallOutcome RunAgainst(Script script, const std::optional<std::string>& answer) {
    request_.dialogue = &dialogue_;
    Play(std::move(script));
    EXPECT_TRUE(lease_->Send(request_, kCallId));
    Waiting waiting(*lease_, request_, hooks_, [this] { ++slow_; }, nullptr);
    waiting.TakeTurns();
    std::optional<Question> asked;
    while (!waiting.Turn(asked)) {
      std::this_thread::yield();
      if (!asked) continue;
      asked_.push_back(asked->data);
      if (waiting.Answer(asked->number, answer)) break;
    }
    return lease_->Take();
  }

  std::vector<std::string> said_, asked_;
  Dialogue dialogue_ = [this](bool asks, const std::string& data, size_t, const StopClock&) {
    EXPECT_FALSE(asks);
    said_.push_back(data);
    return std::optional<std::string>("never sent");
  };
};

TEST_F(TurnsTest, WhatIsAskedIsAnsweredBetweenTwoOfThem) {
  std::vector<std::string> answers;
  const CallOutcome outcome = RunAgainst(
      [&](Cell& cell) {
        cell.Send(Asking(1, FrameKind::kSay), "a");
        for (const uint64_t number : {2, 3}) {
          cell.Send(Asking(number), "b");
          answers.push_back(cell.Receive()->payload);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        cell.Print(cell.out, "printed");
        cell.Reply(FrameKind::kResult, "x");
      },
      "answer");
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
  EXPECT_EQ(Text(outcome), "x");
  EXPECT_EQ(outcome.output.text(0), "printed");
  EXPECT_EQ(said_, std::vector<std::string>{"a"});
  EXPECT_EQ(asked_, (std::vector<std::string>{"b", "b"}));
  EXPECT_EQ(answers, (std::vector<std::string>{"answer", "answer"}));
  EXPECT_EQ(slow_, 1);
}

TEST_F(TurnsTest, SeveralQuestionsAreAnsweredInAnyOrder) {
  request_.dialogue = &dialogue_;
  std::vector<std::pair<uint64_t, std::string>> answers;
  Play([&](Cell& cell) {
    for (const uint64_t number : {1, 2, 3}) cell.Send(Asking(number), std::to_string(number));
    for (int i = 0; i < 3; ++i) {
      const auto answer = cell.Receive();
      answers.emplace_back(answer->header.b, answer->payload);
    }
    cell.Reply(FrameKind::kResult, "x");
  });
  EXPECT_TRUE(lease_->Send(request_, kCallId));
  Waiting waiting(*lease_, request_, hooks_, [] {}, nullptr);
  waiting.TakeTurns();
  std::vector<Question> open;
  std::optional<Question> asked;
  while (!waiting.Turn(asked)) {
    std::this_thread::yield();
    if (!asked) continue;
    open.push_back(*asked);
    if (open.size() < 3) continue;
    for (; !open.empty(); open.pop_back())
      EXPECT_FALSE(waiting.Answer(open.back().number, "to " + open.back().data));
  }
  EXPECT_EQ(lease_->Take().status, CallStatus::kReturned);
  EXPECT_EQ(answers,
            (std::vector<std::pair<uint64_t, std::string>>{{3, "to 3"}, {2, "to 2"}, {1, "to 1"}}));
}

TEST_F(TurnsTest, NoAnswerEndsTheCall) {
  const CallOutcome outcome = RunAgainst(
      [](Cell& cell) {
        cell.Send(Asking(1), "a");
        WaitForTheEnd(cell);
      },
      std::nullopt);
  EXPECT_EQ(outcome.status, CallStatus::kInterrupted);
  EXPECT_FALSE(outcome.replied);
  EXPECT_GE(outcome.ended, outcome.sent);
  lease_.reset();  // which ends the script
}

TEST_F(TurnsTest, EndsAsEver) {
  EXPECT_EQ(RunAgainst([](Cell&) {}, "").status, CallStatus::kEnded);
  Renew();
  request_.limits.timeout_ms = 20;
  EXPECT_EQ(RunAgainst([](Cell& cell) { cell.Receive(); }, "").status, CallStatus::kTimedOut);
  lease_.reset();
  Renew();
  try {
    RunAgainst([](Cell& cell) { cell.Send(Asking(7), "of another number"); }, "");
    ADD_FAILURE() << "the frame was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kProtocol);
  }
}

TEST_F(TurnsTest, ACallThatIsCancelledIsInterruptedOnceAndEndsAfterAGrace) {
  int interrupts = 0;
  lease_->SetKept([&] { ++interrupts; });
  Play(WaitForTheEnd);
  ASSERT_TRUE(lease_->Send(request_, kCallId));
  std::optional<Waiting> waiting(std::in_place, *lease_, request_, hooks_, [] {}, nullptr);
  waiting->TakeTurns();
  std::optional<Question> asked;
  EXPECT_FALSE(waiting->Turn(asked));
  for (int i = 0; i < 2; ++i) waiting->Cancel();
  EXPECT_EQ(interrupts, 1);
  EXPECT_FALSE(waiting->Turn(asked)) << "it has a grace";
  while (!waiting->Turn(asked)) std::this_thread::sleep_until(waiting->next_turn());
  EXPECT_EQ(lease_->Take().status, CallStatus::kCancelled);
  waiting.reset();
  lease_.reset();
}

// Whose cell is not kept.
TEST_F(TurnsTest, ACallThatIsCancelledOrAnsweredTooLateIsOverAtOnce) {
  request_.dialogue = &dialogue_;
  for (const bool late : {false, true}) {
    if (late) Renew();
    request_.limits.timeout_ms = late ? 20 : 60'000;
    Play([](Cell& cell) {
      cell.Print(cell.out, "printed");
      cell.Send(Asking(1), "a");
      WaitForTheEnd(cell);
    });
    ASSERT_TRUE(lease_->Send(request_, kCallId));
    std::optional<Waiting> waiting(std::in_place, *lease_, request_, hooks_, [] {}, nullptr);
    waiting->TakeTurns();
    std::optional<Question> asked;
    while (!asked) ASSERT_FALSE(waiting->Turn(asked));
    while (late && lease_->clock().left(Clock::now()) > Clock::duration{})
      std::this_thread::yield();
    EXPECT_TRUE(late ? waiting->Answer(asked->number, "too late") : waiting->Cancel());
    const CallOutcome outcome = lease_->Take();
    EXPECT_EQ(outcome.status, late ? CallStatus::kTimedOut : CallStatus::kCancelled);
    EXPECT_FALSE(outcome.replied);
    EXPECT_EQ(outcome.output.text(0), "printed");
    waiting.reset();
    lease_.reset();
  }
}

TEST_F(TurnsTest, ACallThatIsLostOnceItWasCancelledIsCancelled) {
  int told = 0;
  bool lost = false;
  lease_->SetKept([] {});
  Play(WaitForTheEnd);
  ASSERT_TRUE(lease_->Send(request_, kCallId));
  std::optional<Waiting> waiting(
      std::in_place, *lease_, request_, hooks_, [&] { ++told; }, [&](bool) { return lost; });
  waiting->TakeTurns();
  std::optional<Question> asked;
  while (told == 0) EXPECT_FALSE(waiting->Turn(asked));
  waiting->Cancel();
  EXPECT_FALSE(waiting->Turn(asked));
  lost = true;
  EXPECT_TRUE(waiting->Turn(asked));
  EXPECT_EQ(lease_->Take().status, CallStatus::kCancelled);
  waiting.reset();
  lease_.reset();
}

TEST_F(LeaseTest, ACallWhoseProcessEndedByAnInterruptEndsByWhatInterruptedIt) {
  std::atomic<bool> interrupted = false;
  lease_->SetKept([&] { interrupted = true; });
  request_.limits.timeout_ms = 20;
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    while (!interrupted) std::this_thread::yield();
    cell.Send({.kind = FrameKind::kUserEnded});
    WaitForTheEnd(cell);
  });
  EXPECT_EQ(outcome.status, CallStatus::kTimedOut);
  lease_.reset();
  thread_.join();
}

TEST_F(LeaseTest, WhatACallSaysIsNumberedAndLimitedInAll) {
  const Dialogue dialogue = [](bool, const std::string&, size_t, const StopClock&) {
    return std::optional<std::string>("");
  };
  request_.dialogue = &dialogue;
  for (const uint64_t number : {0, 2}) {
    ExpectProtocolError([&](Cell& cell) { cell.Send(Asking(number), "x"); });
    Renew();
  }
  request_.limits.result_bytes = 200;
  const auto say_three = [](Cell& cell) {
    for (uint64_t i = 1; i <= 7; ++i) cell.Send(Asking(i, FrameKind::kSay), "x");
    cell.Reply(FrameKind::kResult, "x");
  };
  EXPECT_EQ(RunAgainst(say_three).status, CallStatus::kTooLarge);
  Renew();
  request_.streams = true;
  EXPECT_EQ(RunAgainst(say_three).status, CallStatus::kReturned);
}

TEST_F(LeaseTest, TheClockStandsWhileTheCallerStopsIt) {
  request_.limits.timeout_ms = 400;
  bool stops = true;
  const Dialogue dialogue = [&](bool, const std::string&, size_t, const StopClock& stop_clock) {
    if (stops) stop_clock(true);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return std::optional<std::string>("");
  };
  request_.dialogue = &dialogue;
  std::vector<uint64_t> limits;  // as the agent is sent them
  const auto run = [&] {
    Play([](Cell& cell) {
      for (uint64_t i = 1; i <= 3; ++i) {
        cell.Send(Asking(i), "x");
        cell.Receive();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      cell.Reply(FrameKind::kResult, "x");
    });
    EXPECT_TRUE(lease_->Send(request_, kCallId));
    return Await(*lease_, request_, hooks_, [&] { limits.push_back(lease_->clock().timeout_ms()); })
        .status;
  };
  EXPECT_EQ(run(), CallStatus::kReturned);
  ASSERT_GE(limits.size(), 2u);  // it stands for all three, and goes on once
  EXPECT_EQ(limits.end()[-2], static_cast<uint64_t>(kYear.count()));
  EXPECT_LE(limits.back(), 350u);
  EXPECT_GE(limits.back(), 1u);
  Renew();
  stops = false;
  EXPECT_EQ(run(), CallStatus::kTimedOut);
}

// The first 20 ms of a call cannot have been slow loading: what says so is a lie, or nothing.
TEST_F(LeaseTest, StartedAtOnceRestartsNoClock) {
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    cell.Send({.kind = FrameKind::kStarted, .id = kCallId});
    cell.Reply(FrameKind::kResult, "x");
  });
  EXPECT_EQ(outcome.status, CallStatus::kReturned);
  EXPECT_EQ(slow_, 0);
}

TEST_F(LeaseTest, LoadingHasASecondOfItsOwnAndNoMore) {
  request_.limits.timeout_ms = 2500;
  const auto begun = Clock::now();
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2300));
    cell.Send({.kind = FrameKind::kStarted, .id = kCallId});
    WaitForTheEnd(cell);
  });
  EXPECT_EQ(outcome.status, CallStatus::kTimedOut);
  EXPECT_LT(Clock::now() - begun, std::chrono::milliseconds(4200)) << "4800 with the time twice";
}

TEST_F(LeaseTest, AResultLargerThanAllItsMemoryIsTheMemoryLimit) {
  request_.limits.memory_bytes = 1000;
  request_.limits.result_bytes = 100'000;
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = 1001});
    WaitForTheEnd(cell);
  });
  EXPECT_EQ(outcome.status, CallStatus::kOutOfMemory);
}

TEST_F(LeaseTest, AnAbsurdTimeoutDoesNotOverflow) {
  request_.limits.timeout_ms = ~uint64_t{0};
  EXPECT_EQ(RunAgainst([](Cell& cell) { cell.Reply(FrameKind::kResult, "x"); }).status,
            CallStatus::kReturned);
}

TEST_F(LeaseTest, IsCancelledThroughItsDescriptor) {
  auto [read_end, write_end] = MakePipe();
  hooks_.cancel_fd = read_end.get();
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    ASSERT_EQ(::write(write_end.get(), "x", 1), 1);
    WaitForTheEnd(cell);
  });
  EXPECT_EQ(outcome.status, CallStatus::kCancelled);
}

TEST_F(LeaseTest, IsInterruptedWhenItsHookSaysSo) {
  hooks_.interrupted = [] { return true; };
  EXPECT_EQ(RunAgainst(WaitForTheEnd).status, CallStatus::kInterrupted);
}

TEST_F(LeaseTest, IsInterruptedWhileTheCellSendsFramesWithoutEnd) {
  hooks_.interrupted = [] { return true; };
  const CallOutcome outcome = RunAgainst([&](Cell& cell) {
    while (!over_) {
      const FrameHeader need{.kind = FrameKind::kNeed, .id = kCallId, .b = 0};
      const iovec part{const_cast<FrameHeader*>(&need), sizeof need};
      SendDatagram(cell.socket.get(), {&part, 1});
      cell.Print(cell.out, ".");
    }
  });
  over_ = true;
  EXPECT_EQ(outcome.status, CallStatus::kInterrupted);
}

TEST_F(LeaseTest, TellsOnceThatACallIsSlow) {
  RunAgainst([this](Cell& cell) {
    while (slow_ == 0) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) cell.Print(cell.out, "x");
    cell.Reply(FrameKind::kResult, "x");
  });
  EXPECT_EQ(slow_, 1);
}

TEST_F(LeaseTest, KeepsBothStreamsApartAndTellsThemLive) {
  std::array<std::string, 2> live;
  hooks_.output = [&](int stream, std::string_view bytes) {
    live.at(static_cast<size_t>(stream)) += bytes;
  };
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.Print(cell.out, "out");
    cell.Print(cell.err, "err");
    cell.Reply(FrameKind::kResult, "");
  });
  EXPECT_EQ(outcome.output.text(0), "out");
  EXPECT_EQ(outcome.output.text(1), "err");
  EXPECT_EQ(live[0], "out");
  EXPECT_EQ(live[1], "err");
}

TEST_F(LeaseTest, StreamsThatEndEarlyAreNoEndOfTheCall) {
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.out.reset();
    cell.err.reset();
    cell.Reply(FrameKind::kResult, "still here");
  });
  EXPECT_EQ(Text(outcome), "still here");
}

TEST_F(LeaseTest, ClosesDescriptorsThatACellSends) {
  auto [read_end, write_end] = MakePipe();
  RunAgainst([&](Cell& cell) {
    const FrameHeader need{.kind = FrameKind::kNeed, .id = kCallId, .b = 0};
    const int descriptor = write_end.get();
    cell.SendRaw({reinterpret_cast<const char*>(&need), sizeof need}, {&descriptor, 1});
    cell.Receive();
    cell.Reply(FrameKind::kResult, "x");
  });
  write_end.reset();
  char byte;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0) << "the host kept a descriptor of a cell's";
}

TEST_F(LeaseTest, AReplyBeforeTheCallIsNoAnswer) {
  cell_.Reply(FrameKind::kResult, "made up");  // of a call that it cannot know
  cell_.Send({.kind = FrameKind::kResult, .id = 0, .c = 4}, std::string(sizeof(CallUsage), 0));
  ASSERT_TRUE(lease_->Send(request_, kCallId + 1));
  try {
    Await(*lease_, request_, hooks_, [] {});
    ADD_FAILURE() << "it was taken for the answer";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kProtocol);
    EXPECT_TRUE(error.may_have_run());
  }
}

TEST_F(LeaseTest, ACellThatNeverReadsMeetsTheDeadline) {
  request_.limits.timeout_ms = 30;
  const std::string large(100'000, 'x');
  request_.arguments = large;
  ASSERT_TRUE(lease_->Send(request_, kCallId));
  EXPECT_EQ(Await(*lease_, request_, hooks_, [] {}).status, CallStatus::kTimedOut);
}

TEST_F(LeaseTest, TheSecondReplyIsNobodysAnswer) {
  const CallOutcome outcome = RunAgainst([](Cell& cell) {
    cell.Reply(FrameKind::kResult, "first");
    cell.Reply(FrameKind::kResult, "second");
  });
  EXPECT_EQ(Text(outcome), "first");
}

TEST_F(LeaseTest, AReplyInPiecesIsNoReply) {
  ExpectProtocolError([](Cell& cell) {
    const std::string usage(sizeof(CallUsage), '\0');
    cell.Send({.kind = FrameKind::kResult, .id = kCallId, .b = 8, .c = 8}, usage + "half");
    cell.Send({.kind = FrameKind::kResult, .id = kCallId, .b = 8, .c = 8}, usage + "half");
  });
}

// ---- hostile frames
// ----------------------------------------------------------------------------------------------

struct Hostile {
  const char* name;
  std::function<void(Cell&)> script;
};
void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }

class HostileCell : public LeaseTest, public ::testing::WithParamInterface<Hostile> {};

TEST_P(HostileCell, BreaksTheProtocol) { ExpectProtocolError(GetParam().script); }

std::string Usage() { return std::string(sizeof(CallUsage), '\0'); }

// Asks for memory and takes it, so that a reply in memory has a place to be in.
void TakeMemory(Cell& cell) {
  cell.Send({.kind = FrameKind::kNeed, .id = kCallId, .b = 4096});
  cell.Receive();
}

const Hostile kHostile[] = {
    {"OneByte", [](Cell& cell) { cell.SendRaw("x"); }},
    {"HalfAHeader", [](Cell& cell) { cell.SendRaw(std::string(31, '\0')); }},
    {"ZeroHeader", [](Cell& cell) { cell.SendRaw(std::string(32, '\0')); }},
    {"TooLong",
     [](Cell& cell) { cell.SendRaw(std::string(sizeof(FrameHeader) + kMaxPayload + 1, 'x')); }},
    {"WrongMagic",
     [](Cell& cell) { cell.Send({.magic = 0x1234, .kind = FrameKind::kStarted, .id = kCallId}); }},
    {"WrongVersion",
     [](Cell& cell) { cell.Send({.version = 9, .kind = FrameKind::kStarted, .id = kCallId}); }},
    {"AnotherCall",
     [](Cell& cell) { cell.Send({.kind = FrameKind::kStarted, .id = kCallId + 1}); }},
    {"UnknownKind",
     [](Cell& cell) { cell.Send({.kind = static_cast<FrameKind>(200), .id = kCallId}); }},
    {"AWardensFrame", [](Cell& cell) { cell.Send({.kind = FrameKind::kCellExit, .id = kCallId}); }},
    {"AHostsFrame", [](Cell& cell) { cell.Send({.kind = FrameKind::kMemfd, .id = kCallId}); }},
    {"NoUsage", [](Cell& cell) { cell.Send({.kind = FrameKind::kResult, .id = kCallId}); }},
    {"HalfAUsage",
     [](Cell& cell) { cell.Send({.kind = FrameKind::kRaised, .id = kCallId}, "1234567"); }},
    {"UnknownFlags",
     [](Cell& cell) { cell.Send({.kind = FrameKind::kResult, .a = 4, .id = kCallId}, Usage()); }},
    {"InMemoryAndInParts",
     [](Cell& cell) { cell.Send({.kind = FrameKind::kResult, .a = 3, .id = kCallId}, Usage()); }},
    {"BodyBeyondTotal",
     [](Cell& cell) {
       cell.Send({.kind = FrameKind::kResult, .id = kCallId, .b = 5, .c = 4}, Usage() + "1234");
     }},
    {"TotalBeyondPayload",
     [](Cell& cell) {
       cell.Send({.kind = FrameKind::kResult, .id = kCallId, .b = 4, .c = 5}, Usage() + "1234");
     }},
    {"TotalBelowPayload",
     [](Cell& cell) {
       cell.Send({.kind = FrameKind::kResult, .id = kCallId, .b = 3, .c = 3}, Usage() + "1234");
     }},
    {"HugeTotal",
     [](Cell& cell) {
       cell.Send({.kind = FrameKind::kResult, .id = kCallId, .b = 4, .c = ~0ull}, Usage() + "1234");
     }},
    {"InMemoryNeverGiven",
     [](Cell& cell) {
       cell.Send({.kind = FrameKind::kResult, .a = kFlagInMemfd, .id = kCallId, .b = 4, .c = 4},
                 Usage());
     }},
    {"BeyondTheMemoryGiven",
     [](Cell& cell) {
       TakeMemory(cell);
       cell.Send({.kind = FrameKind::kResult, .a = kFlagInMemfd, .id = kCallId, .b = 4, .c = 4097},
                 Usage());
     }},
    {"BodyBeyondTheMemoryGiven",
     [](Cell& cell) {
       TakeMemory(cell);
       cell.Send(
           {.kind = FrameKind::kResult, .a = kFlagInMemfd, .id = kCallId, .b = ~0ull, .c = 4096},
           Usage());
     }},
    {"InMemoryAndInline",
     [](Cell& cell) {
       TakeMemory(cell);
       cell.Send({.kind = FrameKind::kResult, .a = kFlagInMemfd, .id = kCallId, .b = 4, .c = 4},
                 Usage() + "1234");
     }},
};

INSTANTIATE_TEST_SUITE_P(Frames, HostileCell, ::testing::ValuesIn(kHostile),
                         [](const auto& hostile) { return hostile.param.name; });

// Whatever a cell sends, the host ends the call with an outcome or an error of the protocol. The
// same each time.
TEST(LeaseMutation, EveryDamagedFrameEndsTheCall) {
  std::mt19937_64 random(20);  // NOLINT(bugprone-random-generator-seed): the same frames each time
  const FrameKind kinds[] = {FrameKind::kStarted,     FrameKind::kResult, FrameKind::kRaised,
                             FrameKind::kUnencodable, FrameKind::kNeed,   FrameKind::kTooLarge,
                             FrameKind::kCall};
  const uint64_t numbers[] = {0,      1,        47,    48,         49,        64,
                              65'536, 1u << 31, ~0ull, ~0ull >> 1, 1ull << 40};
  const auto pick = [&](const auto& from) { return from[random() % std::size(from)]; };
  const Blob function{std::string("f")};
  CallRequest request;
  request.function = &function;
  request.limits.result_bytes = 1 << 20;
  for (int round = 0; round < 2000; ++round) {
    auto [ours, theirs] = MakeSocketPair();
    auto [out_read, out_write] = MakePipe();
    auto [err_read, err_write] = MakePipe();
    Lease lease(1, "worker", std::move(ours), std::move(out_read), std::move(err_read), nullptr);
    ASSERT_TRUE(lease.Send(request, kCallId));
    for (uint64_t frames = 1 + random() % 6; frames > 0; --frames) {
      const FrameHeader header{.kind = pick(kinds),
                               .a = random() % 4 == 0 ? static_cast<uint32_t>(random())
                                                      : static_cast<uint32_t>(random() % 2),
                               .id = kCallId,
                               .b = pick(numbers),
                               .c = pick(numbers)};
      std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
      bytes.append(random() % 100, 'p');
      if (random() % 3 == 0)
        bytes[random() % bytes.size()] ^= static_cast<char>(1u << (random() % 8));
      if (random() % 10 == 0) bytes.resize(random() % bytes.size() + 1);
      const iovec part{bytes.data(), bytes.size()};
      SendDatagram(theirs.get(), {&part, 1});
    }
    theirs.reset();
    out_write.reset();
    err_write.reset();
    try {
      const CallOutcome outcome = Await(lease, request, {}, [] {});
      if (outcome.payload) {
        EXPECT_LE(outcome.payload->body_size(), outcome.payload->size());
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kProtocol) << error.what();
    }
  }
}

}  // namespace
}  // namespace hutch
