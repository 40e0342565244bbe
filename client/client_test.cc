// SPDX-License-Identifier: Apache-2.0

// A Client against a scripted agent: a thread that listens on a real socket and speaks the messages
// of wire/message.h.
#include "client/client.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/stop_notice.h"
#include "wire/channel.h"
#include "wire/memfd.h"
#include "wire/paths.h"

namespace hutch {
namespace {

constexpr char kKey[] = "pool";

// The other side of one lease: a cell that answers "reply <its lease>" to a call, or does something
// else.
struct FakeCell {
  // kShuts, kFills: once it has replied it is deaf, as code may leave the socket of its calls.
  // kBoasts: it replies late, and says that it took an hour of CPU time in a microsecond.
  enum class Way {
    kReplies,
    kRepliesLate,
    kBoasts,
    kDiesBefore,
    kDiesDuring,
    kDiesAfter,
    kShuts,
    kFills,
  };
  Fd socket;
  Way way = Way::kReplies;
  std::thread thread;
};

// One connection's agent. The test's script decides what to answer; everything it does is done on
// the agent's thread.
class FakeAgent {
 public:
  using Script = std::function<void(FakeAgent&, const Message&)>;

  explicit FakeAgent(Script script, uint32_t version = kWireVersion)
      : script_(std::move(script)), version_(version) {
    char name[] = "/tmp/hutch-client-XXXXXX";
    dir_ = ::mkdtemp(name);
    listener_ = ListenAt(path(), 4);
    table_fd_ = MakeResultMemfd(kLeaseTableBytes);
    void* mapped =
        ::mmap(nullptr, kLeaseTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd_.get(), 0);
    table_ = static_cast<uint32_t*>(mapped);
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeAgent() {
    stop_ = true;
    thread_.join();
    for (FakeCell& cell : cells_) {
      cell.socket.reset();
      if (cell.thread.joinable()) cell.thread.join();
    }
    ::munmap(table_, kLeaseTableBytes);
    std::filesystem::remove_all(dir_);
  }
  std::string path() const { return dir_ + "/agent.sock"; }

  // ---- for scripts
  void Send(const Message& message, std::span<const int> descriptors = {}) {
    while (!SendMessage(peer_.get(), message, descriptors)) std::this_thread::yield();
  }
  uint64_t Grant(uint64_t request, FakeCell::Way way = FakeCell::Way::kReplies) {
    const uint64_t lease = next_lease_++;
    auto [ours, theirs] = MakeSocketPair();
    auto [out_read, out_write] = MakePipe();
    auto [err_read, err_write] = MakePipe();
    const auto slot = static_cast<uint32_t>(lease % kLeaseTableSlots);
    Mark(lease, kLeaseIdle);
    const int descriptors[] = {ours.get(), out_read.get(), err_read.get()};
    if (way == FakeCell::Way::kDiesBefore) {
      theirs.reset();
    } else {
      FakeCell cell;
      cell.thread = std::thread(
          [this, socket = std::move(theirs), out = std::move(out_write), way, lease,
           clients = way == FakeCell::Way::kFills ? Fd(::dup(ours.get())) : Fd()]() mutable {
            Serve(socket, out, way, lease);
            StayDeaf(socket, clients, way);
          });
      cells_.push_back(std::move(cell));
    }
    const std::string name = worker.empty() ? "worker-" + std::to_string(lease) : worker;
    Send(Leased{request, lease, slot, name, 5'000'000, 1'000'000}, descriptors);
    return lease;
  }
  // The user process of a kept cell has ended, and there is another one.
  void Renew(uint64_t lease, FakeCell::Way way = FakeCell::Way::kReplies) {
    auto [ours, theirs] = MakeSocketPair();
    auto [out_read, out_write] = MakePipe();
    FakeCell cell;
    cell.thread = std::thread([socket = std::move(theirs), out = std::move(out_write),
                               kept = std::move(out_read), way,
                               lease]() mutable { Serve(socket, out, way, lease); });
    cells_.push_back(std::move(cell));
    const int descriptor = ours.get();
    Send(UserEnded{lease, CellReport{.signal = 9, .memory_limit_kb = 1}}, {&descriptor, 1});
    Send(UserReady{lease});
  }
  void Mark(uint64_t lease, LeaseMark mark) {
    std::atomic_ref<uint32_t>(table_[lease % kLeaseTableSlots]).store(MarkOf(lease, mark));
  }
  bool IsUsed(uint64_t lease) {
    return std::atomic_ref<uint32_t>(table_[lease % kLeaseTableSlots]).load() ==
           MarkOf(lease, kLeaseUsed);
  }
  void HangUp() { peer_.reset(); }

  // Waits until `true_now` holds, asked on the test's thread.
  static void Until(const std::function<bool()>& true_now) {
    while (!true_now()) std::this_thread::yield();
  }
  std::string worker;  // of every cell; empty: one for each
  std::atomic<int> acquired = 0;
  std::atomic<int> ahead = 0;
  std::atomic<int> unused = 0;
  std::atomic<int> done = 0;
  std::atomic<int> forgotten = 0;
  std::atomic<bool> deaf = false;            // a cell is, or has ended
  std::array<std::atomic<int>, 13> ended{};  // calls by their Ending

 private:
  static void Serve(const Fd& socket, const Fd& out, FakeCell::Way way, uint64_t lease) {
    std::vector<char> buffer(sizeof(FrameHeader) + kMaxPayload);
    std::vector<Fd> descriptors;
    for (;;) {
      pollfd polled{socket.get(), POLLIN, 0};
      ::poll(&polled, 1, -1);
      const ReceiveResult got = ReceiveDatagram(socket.get(), buffer, &descriptors, 8);
      if (got.status == ReceiveStatus::kNothing) continue;
      if (got.status != ReceiveStatus::kData || way == FakeCell::Way::kDiesDuring) return;
      if (way == FakeCell::Way::kRepliesLate || way == FakeCell::Way::kBoasts)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      FrameHeader header;
      std::memcpy(&header, buffer.data(), sizeof header);
      std::string body = "reply " + std::to_string(lease);
      struct stat memory{};
      if (!descriptors.empty() && ::fstat(descriptors.back().get(), &memory) == 0)
        body = "memory " + std::to_string(memory.st_ino);
      if (::write(out.get(), "printed", 7) != 7) return;
      header.kind = FrameKind::kResult;
      header.a = 0;
      header.b = header.c = body.size();
      CallUsage usage;
      usage.wall_us = 1;
      if (way == FakeCell::Way::kBoasts) usage.cpu_us = 3'600'000'000;
      const iovec parts[] = {{&header, sizeof header},
                             {&usage, sizeof usage},
                             {const_cast<char*>(body.data()), body.size()}};
      SendDatagram(socket.get(), parts);
      if (way == FakeCell::Way::kShuts || way == FakeCell::Way::kFills ||
          way == FakeCell::Way::kDiesAfter)
        return;
    }
  }
  void StayDeaf(const Fd& socket, Fd& clients, FakeCell::Way way) {
    const iovec part{&way, sizeof way};
    if (way == FakeCell::Way::kShuts) ::shutdown(socket.get(), SHUT_RD);
    while (way == FakeCell::Way::kFills &&
           SendDatagram(clients.get(), {&part, 1}) == SendStatus::kSent) {
    }
    clients.reset();
    deaf = true;
    while ((way == FakeCell::Way::kShuts || way == FakeCell::Way::kFills) && !stop_)
      std::this_thread::yield();
  }
  void Run() {
    while (!stop_) {
      pollfd polled{peer_ ? peer_.get() : listener_.get(), POLLIN, 0};
      if (::poll(&polled, 1, 5) <= 0) continue;
      if (!peer_) {
        if (accepted_) continue;
        accepted_ = true;
        peer_ = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        continue;
      }
      try {
        while (peer_) {
          auto received = ReceiveMessage(peer_.get());
          if (!received) break;
          OnMessage(received->message);
        }
      } catch (const Error&) {
        peer_.reset();
      }
    }
    peer_.reset();
  }
  void OnMessage(const Message& message) {
    if (std::get_if<Hello>(&message) != nullptr) {
      if (version_ != kWireVersion) {
        Send(Failed{0, static_cast<int32_t>(Code::kVersionMismatch), "another version", "hint",
                    false});
      } else {
        const int table = table_fd_.get();
        Send(Welcome{version_, "fake"}, {&table, 1});
      }
      return;
    }
    if (const auto* acquire = std::get_if<Acquire>(&message)) ++(acquire->ahead ? ahead : acquired);
    if (const auto* over = std::get_if<LeaseEnded>(&message)) {
      ++done;
      if (over->note.ending == Ending::kNoCall) ++unused;
      ++ended[static_cast<size_t>(over->note.ending)];
    }
    if (std::get_if<Forget>(&message) != nullptr) ++forgotten;
    script_(*this, message);
    const auto* over = std::get_if<LeaseEnded>(&message);
    if (over != nullptr && over->next != 0)
      OnMessage(Acquire{over->next, kKey, kAheadPatienceMs, true});
  }

  Script script_;
  uint32_t version_;
  std::string dir_;
  Fd listener_;
  Fd peer_;
  Fd table_fd_;
  uint32_t* table_ = nullptr;
  uint64_t next_lease_ = 1;
  bool accepted_ = false;
  std::vector<FakeCell> cells_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

void Nothing(FakeAgent&, const Message&) {}

void GrantEach(FakeAgent& agent, const Message& message) {
  if (const auto* acquire = std::get_if<Acquire>(&message)) agent.Grant(acquire->request);
  if (const auto* done = std::get_if<LeaseEnded>(&message)) {
    if (done->want_report) agent.Send(Report{done->lease, CellReport{.signal = 9, .wall_us = 1}});
  }
}

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    request_.function = &function_;
    request_.limits.timeout_ms = 60'000;
  }
  std::string CallText(Client& client) {
    CallRecord record = client.Call(kKey, request_, {});
    EXPECT_EQ(record.outcome.status, CallStatus::kReturned);
    return {record.outcome.payload->data(), record.outcome.payload->size()};
  }
  Error ErrorOf(const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return Error(Code::kInternal, "");
  }

  Blob function_{std::string("function")};
  CallRequest request_;
};

TEST_F(ClientTest, SaysThatNobodyListens) {
  EXPECT_EQ(ErrorOf([] { Client("/tmp/hutch-nobody.sock", -1); }).code(), Code::kUnavailable);
}

TEST_F(ClientTest, SaysThatTheAgentSpeaksAnotherVersion) {
  const FakeAgent agent(Nothing, kWireVersion + 1);
  const Error error = ErrorOf([&] { Client(agent.path(), -1); });
  EXPECT_EQ(error.code(), Code::kVersionMismatch);
  EXPECT_EQ(error.hint(), "hint");
}

// What a notice reads next.
std::optional<std::chrono::milliseconds> NextOf(StopNotice& notice) {
  pollfd polled{notice.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 60'000), 1);
  return notice.Read();
}

TEST_F(ClientTest, IsInformedOnceThatTheAgentStops) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    const auto* ask = std::get_if<Ask>(&message);
    if (ask == nullptr || ask->what != "await stop") return;
    self.Send(Answer{ask->request, "4990"});
    self.HangUp();
  });
  StopNotice notice(agent.path(), -1);
  EXPECT_EQ(NextOf(notice), std::chrono::milliseconds(4990))
      << "also where the agent is gone by then";
  EXPECT_EQ(ErrorOf([&] { NextOf(notice); }).code(), Code::kUnavailable);
}

TEST_F(ClientTest, AnAgentThatDoesNotInformOfItsStopIsNotTakenForOneThatStops) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    const auto* ask = std::get_if<Ask>(&message);
    if (ask != nullptr) self.Send(Failed{ask->request, 0, "what?", "", false});
  });
  StopNotice notice(agent.path(), -1);
  EXPECT_EQ(NextOf(notice), std::nullopt);
  pollfd polled{notice.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 0), 0);
  EXPECT_EQ(notice.Read(), std::nullopt);
}

TEST_F(ClientTest, CallsOnACellThatItAskedFor) {
  FakeAgent agent(GrantEach);
  Client client(agent.path(), -1);
  const CallRecord record = client.Call(kKey, request_, {});
  EXPECT_EQ(record.outcome.status, CallStatus::kReturned);
  EXPECT_EQ(record.outcome.output.text(0), "printed");
  EXPECT_EQ(record.worker, "worker-1");
  EXPECT_GT(record.queue.count(), 0);
  EXPECT_EQ(record.worker_start, record.queue) << "more than the whole wait is not believed";
  EXPECT_FALSE(record.report) << "nobody asks the warden about a call that simply returned";
}

TEST_F(ClientTest, TellsHowEachCallEnded) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr || acquire->ahead) return;
    const bool dies = self.acquired == 2;
    const uint64_t lease =
        self.Grant(acquire->request, dies ? FakeCell::Way::kDiesDuring : FakeCell::Way::kReplies);
    if (!dies) return;
    FakeAgent::Until([&] { return self.IsUsed(lease); });
    self.Send(Report{lease, {.signal = 9}});
  });
  Client client(agent.path(), -1);
  client.Call(kKey, request_, {});
  FakeAgent::Until([&] { return agent.done == 1; });
  EXPECT_EQ(agent.ended[static_cast<size_t>(Ending::kReturned)], 1);
  EXPECT_EQ(client.Call(kKey, request_, {}).report->signal, 9);
  FakeAgent::Until([&] { return agent.done == 2; });
  EXPECT_EQ(agent.ended[static_cast<size_t>(Ending::kUntold)], 1)
      << "each call is reported once, also where the agent spoke first";
}

TEST_F(ClientTest, UsesWhatWasLeasedAheadAndAsksForMore) {
  FakeAgent agent(GrantEach);
  Client client(agent.path(), -1);
  EXPECT_EQ(CallText(client), "reply 1");
  FakeAgent::Until([&] { return agent.ahead == 2; });
  // Its leases ahead may still be under way: whatever it takes, it is its own.
  CallText(client);
  FakeAgent::Until([&] { return agent.ahead >= 3; });
  EXPECT_LE(agent.acquired, 2);
}

TEST_F(ClientTest, LeasesAheadOfManyPoolsAreBoundedTogether) {
  FakeAgent agent(GrantEach);
  Client client(agent.path(), -1);
  constexpr int kCalls = 150;
  for (int i = 0; i < kCalls; ++i) {
    client.Call("pool " + std::to_string(i), request_, {});
    // Its leases ahead have come before the next call, which is what reads them.
    FakeAgent::Until([&] { return agent.ahead >= 2 * i; });
  }
  EXPECT_GE(agent.ahead, 2 * (kCalls - 1)) << "each pool asks for its own";
  FakeAgent::Until([&] {
    const int held = agent.acquired + agent.ahead - agent.done;
    return held <= static_cast<int>(Stock::kMost) + 32;
  });
}

TEST_F(ClientTest, UsesMemoryAgainOnlyWhenTheWardenSaysThatItsCellIsDead) {
  const std::string large(100'000, 'x');
  request_.buffers = {Buffer(large)};
  for (const bool from_warden : {true, false}) {
    for (const bool same_worker : {true, false}) {
      FakeAgent agent([&](FakeAgent& self, const Message& message) {
        if (same_worker) self.worker = "worker";
        if (const auto* acquire = std::get_if<Acquire>(&message)) {
          if (!acquire->ahead) self.Grant(acquire->request);
        }
        if (const auto* done = std::get_if<LeaseEnded>(&message)) {
          EXPECT_TRUE(done->want_report);
          self.Send(Report{done->lease, {.memory_limit_kb = from_warden ? 1024u : 0u}});
        }
      });
      Client client(agent.path(), -1);
      const std::string first = CallText(client);
      EXPECT_TRUE(first.starts_with("memory ")) << first;
      // The report is read before the second cell comes.
      EXPECT_EQ(CallText(client) == first, from_warden && same_worker);
    }
  }
}

TEST_F(ClientTest, NeverUsesALeaseThatTheAgentTookBack) {
  std::atomic<uint64_t> taken_back = 0;
  std::vector<uint64_t> leases;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message)) {
      const uint64_t lease = self.Grant(acquire->request);
      if (acquire->ahead) {
        self.Mark(lease, kLeaseReclaimed);
        taken_back = lease;
      }
    }
  });
  Client client(agent.path(), -1);
  EXPECT_EQ(CallText(client), "reply 1");
  FakeAgent::Until([&] { return taken_back == 3; });
  EXPECT_EQ(CallText(client), "reply 4");
  EXPECT_EQ(agent.acquired, 2);
}

TEST_F(ClientTest, AnOldLeaseDoesNotMarkTheSlotsNewOne) {
  std::atomic<int> ahead = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr) return;
    const uint64_t lease = self.Grant(acquire->request);
    // The agent took it back, its cell ended, and the slot was given to another lease.
    if (acquire->ahead) self.Mark(lease + kLeaseTableSlots, kLeaseIdle), ++ahead;
  });
  Client client(agent.path(), -1);
  EXPECT_EQ(CallText(client), "reply 1");
  FakeAgent::Until([&] { return ahead == 2; });
  EXPECT_EQ(CallText(client), "reply 4");
  EXPECT_FALSE(agent.IsUsed(2 + kLeaseTableSlots));
  EXPECT_FALSE(agent.IsUsed(3 + kLeaseTableSlots));
}

TEST_F(ClientTest, ReplacesALeaseWhoseCellIsGone) {
  std::atomic<int> granted = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message)) {
      self.Grant(acquire->request,
                 granted++ < 3 ? FakeCell::Way::kDiesBefore : FakeCell::Way::kReplies);
    }
  });
  Client client(agent.path(), -1);
  EXPECT_EQ(CallText(client), "reply 4");
  FakeAgent::Until([&] { return agent.unused == 3; });
}

TEST_F(ClientTest, GivesUpWhenEveryCellIsGone) {
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      self.Grant(acquire->request, FakeCell::Way::kDiesBefore);
  });
  Client client(agent.path(), -1);
  const Error error = ErrorOf([&] { client.Call(kKey, request_, {}); });
  EXPECT_EQ(error.code(), Code::kWorkerFailed);
  EXPECT_FALSE(error.may_have_run());
}

TEST_F(ClientTest, AsksTheWardenAboutACellThatEnded) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      self.Grant(acquire->request, FakeCell::Way::kDiesDuring);
    const auto* done = std::get_if<LeaseEnded>(&message);
    if (done != nullptr && done->want_report)
      self.Send(Report{done->lease, CellReport{.signal = 11}});
  });
  Client client(agent.path(), -1);
  const CallRecord record = client.Call(kKey, request_, {});
  EXPECT_EQ(record.outcome.status, CallStatus::kEnded);
  ASSERT_TRUE(record.report);
  EXPECT_EQ(record.report->signal, 11);
}

TEST_F(ClientTest, AgentAndCellLostDuringACallMayHaveRun) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      self.Grant(acquire->request, FakeCell::Way::kDiesDuring);
    if (std::get_if<LeaseEnded>(&message) != nullptr) self.HangUp();
  });
  Client client(agent.path(), -1);
  const Error error = ErrorOf([&] { client.Call(kKey, request_, {}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(error.may_have_run());
  EXPECT_TRUE(client.broken());
}

TEST_F(ClientTest, ACallWhoseCellLivesOutlivesTheAgent) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message)) {
      self.Grant(acquire->request);
      self.HangUp();
    }
  });
  Client client(agent.path(), -1);
  EXPECT_EQ(CallText(client), "reply 1");
  const Error error = ErrorOf([&] { client.Call(kKey, request_, {}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_FALSE(error.may_have_run()) << "nothing was sent";
}

TEST_F(ClientTest, ACellThatADeadAgentLeftIsNotUsed) {
  std::atomic<int> granted = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message)) {
      self.Grant(acquire->request);
      if (++granted == 5) self.HangUp();
    }
  });
  Client client(agent.path(), -1);
  int answered = 0;
  const Error error = ErrorOf([&] {
    for (;; ++answered) client.Call(kKey, request_, {});
  });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_FALSE(error.may_have_run());
  EXPECT_LT(answered, granted) << "nobody would hold it to its limits";
}

TEST_F(ClientTest, AnAgentLostBeforeACellWasGivenCertainlyRanNothing) {
  FakeAgent agent([](FakeAgent& self, const Message&) { self.HangUp(); });
  Client client(agent.path(), -1);
  const Error error = ErrorOf([&] { client.Call(kKey, request_, {}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_FALSE(error.may_have_run());
}

TEST_F(ClientTest, CarriesTheAgentsRefusal) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message)) {
      self.Send(Failed{acquire->request, static_cast<int32_t>(Code::kBusy), "full", "wait", false});
    }
  });
  Client client(agent.path(), -1);
  const Error error = ErrorOf([&] { client.Call(kKey, request_, {}); });
  EXPECT_EQ(error.code(), Code::kBusy);
  EXPECT_STREQ(error.what(), "full");
  EXPECT_EQ(error.hint(), "wait");
}

TEST_F(ClientTest, GivesBackALeaseThatCameAfterItGaveUp) {
  std::atomic<uint64_t> asked = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message)) asked = acquire->request;
    if (const auto* forget = std::get_if<Forget>(&message)) self.Grant(forget->request);
    if (const auto* ask = std::get_if<Ask>(&message)) self.Send(Answer{ask->request, "here"});
  });
  Client client(agent.path(), -1);
  auto [read_end, write_end] = MakePipe();
  ASSERT_EQ(::write(write_end.get(), "x", 1), 1);
  const CallHooks cancelled{.interrupted = {}, .output = {}, .cancel_fd = read_end.get()};
  const Error error = ErrorOf([&] { client.Call(kKey, request_, cancelled); });
  EXPECT_EQ(error.code(), Code::kCancelled);
  EXPECT_FALSE(error.may_have_run());
  FakeAgent::Until([&] { return agent.forgotten == 1; });
  while (agent.unused == 0) EXPECT_EQ(client.AskAgent("status", 60'000, {}), "here");
}

TEST_F(ClientTest, TimesOutAnAgentThatDoesNotAnswer) {
  FakeAgent agent(Nothing);
  Client client(agent.path(), -1);
  EXPECT_EQ(ErrorOf([&] { client.AskAgent("status", 1, {}); }).code(), Code::kTimeout);
}

TEST_F(ClientTest, IsInterruptedWhileItWaits) {
  FakeAgent agent(Nothing);
  Client client(agent.path(), -1);
  const CallHooks hooks{.interrupted = [] { return true; }, .output = {}, .cancel_fd = -1};
  EXPECT_EQ(ErrorOf([&] { client.AskAgent("status", ~0ull, hooks); }).code(), Code::kCancelled);
}

TEST_F(ClientTest, ReportsTheStepsOfAPreparation) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    const auto* prepare = std::get_if<Prepare>(&message);
    if (prepare == nullptr) return;
    self.Send(Progress{prepare->request, "download", "x", 1, 2});
    self.Send(PoolReady{prepare->request, "key", "digest", "lock", {}, true, 1, 2, "watchdog"});
  });
  Client client(agent.path(), -1);
  std::vector<std::string> stages;
  Prepare prepare;
  prepare.timeout_ms = 1000;
  const PoolReady prepared =
      client.PreparePool(prepare, [&](const Progress& step) { stages.push_back(step.stage); }, {});
  EXPECT_EQ(prepared.key, "key");
  EXPECT_EQ(stages, std::vector<std::string>{"download"});
}

TEST_F(ClientTest, WarmsAPool) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* warm = std::get_if<Warm>(&message)) self.Send(Answer{warm->request, "3"});
  });
  Client client(agent.path(), -1);
  EXPECT_EQ(client.WarmPool(kKey, 3, 1000, {}), 3u);
}

TEST_F(ClientTest, AnAnswerOfAnotherKindIsAnErrorOfTheProtocol) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* ask = std::get_if<Ask>(&message))
      self.Send(Progress{ask->request, "x", "", 0, 0});
    if (const auto* warm = std::get_if<Warm>(&message)) self.Send(Answer{warm->request, "many"});
  });
  Client client(agent.path(), -1);
  EXPECT_EQ(ErrorOf([&] { client.AskAgent("status", 60'000, {}); }).code(), Code::kProtocol);
  EXPECT_EQ(ErrorOf([&] { client.WarmPool(kKey, 1, 60'000, {}); }).code(), Code::kProtocol);
}

TEST_F(ClientTest, ThreadsShareOneConnectionAndEachGetsItsOwn) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    GrantEach(self, message);
    if (const auto* ask = std::get_if<Ask>(&message)) self.Send(Answer{ask->request, ask->what});
  });
  Client client(agent.path(), -1);
  std::vector<std::thread> threads;
  std::atomic<int> calls = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        const std::string what = std::to_string(i) + "/" + std::to_string(round);
        EXPECT_EQ(client.AskAgent(what, 60'000, {}), what);
        EXPECT_TRUE(CallText(client).starts_with("reply "));
        ++calls;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(calls, 160);
}

TEST_F(ClientTest, EveryThreadThatWaitsHearsOfTheAgentsEnd) {
  std::atomic<int> asked = 0;
  FakeAgent agent([&](FakeAgent& self, const Message&) {
    if (++asked == 4) self.HangUp();
  });
  Client client(agent.path(), -1);
  std::vector<std::thread> threads;
  std::atomic<int> unavailable = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      if (ErrorOf([&] { client.AskAgent("status", 60'000, {}); }).code() == Code::kUnavailable)
        ++unavailable;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(unavailable, 4);
}

// ---- calls that nobody waits for one by one

class InFlightCallsTest : public ClientTest {
 protected:
  static CallEvent NextOf(Client& client) {
    while (waiting_.empty()) {
      for (CallEvent& event : client.in_flight().Next(std::chrono::seconds(60))) {
        if (event.stream < 0) waiting_.push_back(std::move(event));
      }
    }
    CallEvent first = std::move(waiting_.front());
    waiting_.pop_front();
    return first;
  }
  void SetUp() override { waiting_.clear(); }
  static inline std::deque<CallEvent> waiting_;
};

TEST_F(InFlightCallsTest, ManyAreServedByOneThread) {
  FakeAgent agent(GrantEach);
  Client client(agent.path(), -1);
  std::set<uint64_t> started;
  for (int i = 0; i < 100; ++i)
    started.insert(client.in_flight().Start(kKey, request_, nullptr, false));
  EXPECT_EQ(started.size(), 100u);
  while (!started.empty()) {
    const CallEvent event = NextOf(client);
    ASSERT_TRUE(event.record) << (event.error ? event.error->what() : "");
    EXPECT_EQ(event.record->outcome.status, CallStatus::kReturned);
    EXPECT_EQ(event.record->outcome.output.text(0), "printed");
    EXPECT_EQ(started.erase(event.id), 1u) << "each ends once";
  }
}

TEST_F(InFlightCallsTest, SaysWhatIsPrintedAsItComes) {
  FakeAgent agent(GrantEach);
  Client client(agent.path(), -1);
  const uint64_t id = client.in_flight().Start(kKey, request_, nullptr, true);
  std::string printed;
  for (bool over = false; !over;) {
    for (const CallEvent& event : client.in_flight().Next(std::chrono::seconds(60))) {
      EXPECT_EQ(event.id, id);
      if (event.stream == 0) printed += event.text;
      over |= event.stream < 0;
    }
  }
  EXPECT_EQ(printed, "printed");
}

// Reads leases until the second one ahead is there: cells 2 and 3.
void TakeLeasesAhead(Client& client, FakeAgent& agent, const std::atomic<uint64_t>& granted) {
  FakeAgent::Until([&] { return agent.ahead >= 2 && granted >= 3; });
  EXPECT_TRUE(client.in_flight().Next({}).empty());
}

TEST_F(InFlightCallsTest, WhoeverStartsOneSendsItWhereACellIsThere) {
  std::atomic<uint64_t> granted = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      granted = self.Grant(acquire->request, FakeCell::Way::kRepliesLate);
  });
  Client client(agent.path(), -1);
  InFlightCalls& calls = client.in_flight();
  calls.Start(kKey, request_, nullptr, false);
  NextOf(client);
  TakeLeasesAhead(client, agent, granted);
  const uint64_t id = calls.Start(kKey, request_, nullptr, false);
  EXPECT_TRUE(agent.IsUsed(2) || agent.IsUsed(3)) << "nobody has called Next";
  const uint64_t cancelled = calls.Start(kKey, request_, nullptr, false);
  calls.Cancel(cancelled);
  std::map<uint64_t, CallEvent> ended;
  while (ended.size() < 2) {
    CallEvent event = NextOf(client);
    const uint64_t ended_id = event.id;
    ended.emplace(ended_id, std::move(event));
  }
  ASSERT_TRUE(ended.at(id).record);
  EXPECT_EQ(ended.at(id).record->outcome.status, CallStatus::kReturned);
  ASSERT_TRUE(ended.at(cancelled).open) << "it had begun";
  EXPECT_EQ(ended.at(cancelled).open->record.outcome.status, CallStatus::kCancelled);
}

TEST_F(InFlightCallsTest, ACellThatIsGoneCostsTheCallAnotherOne) {
  std::atomic<uint64_t> granted = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr) return;
    const bool gone = granted == 1 || granted == 2;
    granted =
        self.Grant(acquire->request, gone ? FakeCell::Way::kDiesBefore : FakeCell::Way::kReplies);
  });
  Client client(agent.path(), -1);
  client.in_flight().Start(kKey, request_, nullptr, false);
  NextOf(client);
  TakeLeasesAhead(client, agent, granted);
  client.in_flight().Start(kKey, request_, nullptr, false);
  const CallEvent event = NextOf(client);
  ASSERT_TRUE(event.record) << (event.error ? event.error->what() : "");
  EXPECT_EQ(event.record->outcome.status, CallStatus::kReturned);
  FakeAgent::Until([&] { return agent.unused == 2; });
}

TEST_F(InFlightCallsTest, OneThatIsCancelledBeforeItBeganNeverRuns) {
  FakeAgent agent(Nothing);
  Client client(agent.path(), -1);
  const uint64_t first = client.in_flight().Start(kKey, request_, nullptr, false);
  const uint64_t second = client.in_flight().Start(kKey, request_, nullptr, false);
  client.in_flight().Cancel(second);
  const CallEvent event = NextOf(client);
  EXPECT_EQ(event.id, second);
  ASSERT_TRUE(event.error);
  EXPECT_EQ(event.error->code(), Code::kCancelled);
  EXPECT_FALSE(event.error->may_have_run());
  client.in_flight().Cancel(first);
  EXPECT_EQ(NextOf(client).id, first);
}

TEST_F(InFlightCallsTest, WhatTheWardenHasToTellIsLeftToWhoeverConcludes) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      self.Grant(acquire->request, FakeCell::Way::kDiesDuring);
    const auto* done = std::get_if<LeaseEnded>(&message);
    if (done != nullptr && done->want_report)
      self.Send(Report{done->lease, CellReport{.signal = 11}});
  });
  Client client(agent.path(), -1);
  client.in_flight().Start(kKey, request_, nullptr, false);
  const CallEvent event = NextOf(client);
  ASSERT_TRUE(event.open);
  const CallRecord record = client.Conclude(*event.open);
  EXPECT_EQ(record.outcome.status, CallStatus::kEnded);
  ASSERT_TRUE(record.report);
  EXPECT_EQ(record.report->signal, 11);
}

TEST_F(InFlightCallsTest, ARefusalIsOneCalls) {
  std::atomic<int> refused = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr) return;
    if (refused++ == 0) {
      self.Send(Failed{acquire->request, static_cast<int32_t>(Code::kBusy), "full", "wait", false});
    } else {
      self.Grant(acquire->request);
    }
  });
  Client client(agent.path(), -1);
  for (int i = 0; i < 3; ++i) client.in_flight().Start(kKey, request_, nullptr, false);
  int busy = 0, returned = 0;
  for (int i = 0; i < 3; ++i) {
    const CallEvent event = NextOf(client);
    EXPECT_TRUE(!event.error || event.error->code() == Code::kBusy);
    ++(event.error ? busy : returned);
  }
  EXPECT_EQ(busy, 1);
  EXPECT_EQ(returned, 2);
}

Failed Busy(uint64_t request) {
  return {request, static_cast<int32_t>(Code::kBusy), "full", "wait", false, {}};
}

TEST_F(InFlightCallsTest, ALackOfPatienceIsTheImpatientCallsOwn) {
  std::vector<uint64_t> asked;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr) return;
    asked.push_back(acquire->request);
    if (asked.size() != 2) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(acquire->queue_ms));
    self.Send(Busy(acquire->request));
    self.Grant(asked.front());
  });
  Client client(agent.path(), -1);
  request_.limits.queue_ms = 60'000;
  const uint64_t patient = client.in_flight().Start(kKey, request_, nullptr, false);
  request_.limits.queue_ms = 2;
  const uint64_t impatient = client.in_flight().Start(kKey, request_, nullptr, false);
  std::map<uint64_t, CallEvent> ends;
  for (int i = 0; i < 2; ++i) {
    CallEvent event = NextOf(client);
    ends[event.id] = std::move(event);
  }
  EXPECT_TRUE(ends[patient].record);
  ASSERT_TRUE(ends[impatient].error);
  EXPECT_EQ(ends[impatient].error->code(), Code::kBusy);
}

TEST_F(InFlightCallsTest, ARefusalIsThatCallsForWhichItWasAsked) {
  std::vector<uint64_t> asked;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr) return;
    asked.push_back(acquire->request);
    if (asked.size() != 3) return;
    self.Send(Busy(asked[1]));
    self.Grant(asked[0]);
    self.Grant(asked[2]);
  });
  Client client(agent.path(), -1);
  request_.limits.queue_ms = 60'000;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 3; ++i)
    ids.push_back(client.in_flight().Start(kKey, request_, nullptr, false));
  for (int i = 0; i < 3; ++i) {
    const CallEvent event = NextOf(client);
    EXPECT_EQ(event.error.has_value(), event.id == ids[1]);
  }
}

TEST_F(InFlightCallsTest, WhoWasNotAskedForYetHasNoMorePatienceThanItSaid) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* prepare = std::get_if<Prepare>(&message))
      self.Send(PoolReady{.request = prepare->request, .key = kKey, .max_cells = 3});
  });
  Client client(agent.path(), -1);
  Prepare prepare;
  prepare.timeout_ms = 60'000;
  client.PreparePool(prepare, {}, {});
  request_.limits.queue_ms = 60'000;
  for (int i = 0; i < 70; ++i) client.in_flight().Start(kKey, request_, nullptr, false);
  request_.limits.queue_ms = 1;
  const uint64_t impatient = client.in_flight().Start(kKey, request_, nullptr, false);
  const CallEvent event = NextOf(client);
  EXPECT_EQ(event.id, impatient);
  ASSERT_TRUE(event.error);
  EXPECT_EQ(event.error->code(), Code::kBusy);
  EXPECT_EQ(event.error->figures().at("queued"), 70);
  EXPECT_EQ(event.error->figures().at("capacity"), 3) << "its cells, whoever uses them";
  EXPECT_GE(event.error->figures().at("waited_sec"), 0.001);
}

TEST_F(InFlightCallsTest, TheRefusalOfALongWaitTellsAllOfIt) {
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr || acquire->queue_ms > 1'000) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(acquire->queue_ms));
    Failed busy = Busy(acquire->request);
    busy.figures = {{"queued", 7}, {"capacity", 3}, {"waited_sec", 0.001}};
    self.Send(busy);
  });
  Client client(agent.path(), -1);
  request_.limits.queue_ms = 200;
  client.in_flight().Start(kKey, request_, nullptr, false);
  const CallEvent event = NextOf(client);
  ASSERT_TRUE(event.error);
  EXPECT_EQ(event.error->figures().at("queued"), 7);
  EXPECT_EQ(event.error->figures().at("capacity"), 3);
  EXPECT_GE(event.error->figures().at("waited_sec"), 0.2);
  EXPECT_EQ(event.error->hint(), "wait");
}

TEST_F(InFlightCallsTest, OneThatIsCancelledGivesUpItsPlace) {
  FakeAgent agent(Nothing);
  Client client(agent.path(), -1);
  const uint64_t first = client.in_flight().Start(kKey, request_, nullptr, false);
  client.in_flight().Next(std::chrono::milliseconds(1));
  FakeAgent::Until([&] { return agent.acquired == 1; });
  client.in_flight().Cancel(first);
  EXPECT_EQ(NextOf(client).id, first);
  FakeAgent::Until([&] { return agent.forgotten == 1; });
}

TEST_F(InFlightCallsTest, AllThatWaitHearOfTheAgentsEnd) {
  std::atomic<int> asked = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (std::get_if<Acquire>(&message) != nullptr && ++asked == 5) self.HangUp();
  });
  Client client(agent.path(), -1);
  for (int i = 0; i < 5; ++i) client.in_flight().Start(kKey, request_, nullptr, false);
  for (int i = 0; i < 5; ++i) {
    const CallEvent event = NextOf(client);
    ASSERT_TRUE(event.error);
    EXPECT_EQ(event.error->code(), Code::kUnavailable);
    EXPECT_FALSE(event.error->may_have_run());
  }
}

TEST_F(InFlightCallsTest, ANoteBringsWhatTheNextCellIsToLoad) {
  std::mutex mutex;
  std::vector<LeaseEnded> notes;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* over = std::get_if<LeaseEnded>(&message)) {
      const std::lock_guard lock(mutex);
      notes.push_back(*over);
    }
    GrantEach(self, message);
  });
  Client client(agent.path(), -1);
  client.Call(kKey, request_, {});
  request_.identity = {9};
  client.Call(kKey, request_, {});
  client.Call(kKey, request_, {});
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return notes.size();
  };
  FakeAgent::Until([&] { return count() == 3; });
  const std::lock_guard lock(mutex);
  EXPECT_EQ(notes.at(0).load, "") << "it has no identity";
  EXPECT_EQ(notes.at(1).load, "") << "it may be the only one";
  EXPECT_EQ(notes.at(2).load.substr(sizeof(FrameHeader)),
            LoadFrame(request_, true).substr(sizeof(FrameHeader)));
  EXPECT_EQ(notes.at(2).load_cpu_ms, 60'000u) << "what its time limit is";
  for (const LeaseEnded& note : notes) EXPECT_TRUE(note.next != 0 || note.load.empty());
}

TEST_F(InFlightCallsTest, TheNoteOfOneInFlightBringsItToo) {
  std::mutex mutex;
  std::string load;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* over = std::get_if<LeaseEnded>(&message)) {
      const std::lock_guard lock(mutex);
      load += over->load;
    }
    GrantEach(self, message);
  });
  Client client(agent.path(), -1);
  request_.identity = {9};
  for (int i = 0; i < 2; ++i) {
    client.in_flight().Start(kKey, request_, nullptr, false);
    ASSERT_TRUE(NextOf(client).record);
  }
  const auto loads = [&] {
    const std::lock_guard lock(mutex);
    return load;
  };
  FakeAgent::Until([&] { return !loads().empty(); });
  EXPECT_EQ(loads().substr(sizeof(FrameHeader)),
            LoadFrame(request_, true).substr(sizeof(FrameHeader)))
      << "once, as the first may be the only one";
}

TEST_F(InFlightCallsTest, ACellThatWasLoadedServesCallsOfItsIdentityAlone) {
  std::mutex mutex;
  std::map<uint64_t, uint8_t> asked;      // requests, to whose function they are to load
  std::map<std::string, uint8_t> loaded;  // likewise, by reply
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    const std::lock_guard lock(mutex);
    const auto* done = std::get_if<LeaseEnded>(&message);
    if (done != nullptr && !done->load.empty())
      asked[done->next] = static_cast<uint8_t>(done->load[sizeof(FrameHeader)]);
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr) return;
    const uint64_t lease = self.Grant(acquire->request);
    if (asked.contains(acquire->request))
      loaded["reply " + std::to_string(lease)] = asked[acquire->request];
  });
  Client client(agent.path(), -1);
  std::minstd_rand random(7);
  int calls_of_loaded = 0;
  for (int i = 0; i < 400; ++i) {
    // Of few functions first, then of more than there are cells ahead, on both paths.
    const auto identity = static_cast<uint8_t>(1 + random() % (i < 200 ? 3 : 30));
    request_.identity = {identity};
    std::string text;
    if (i % 5 == 0) {
      client.in_flight().Start(kKey, request_, nullptr, false);
      CallEvent event = NextOf(client);
      ASSERT_TRUE(event.record);
      text = {event.record->outcome.payload->data(), event.record->outcome.payload->size()};
    } else {
      text = CallText(client);
    }
    const std::lock_guard lock(mutex);
    const auto found = loaded.find(text);
    if (found == loaded.end()) continue;
    ++calls_of_loaded;
    ASSERT_EQ(found->second, identity) << "call " << i;
    loaded.erase(found);
  }
  EXPECT_GT(calls_of_loaded, 50);
}

TEST_F(InFlightCallsTest, NothingIsLoadedOfACallThatDidNotComeBack) {
  std::mutex mutex;
  std::vector<LeaseEnded> notes;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      self.Grant(acquire->request, FakeCell::Way::kDiesDuring);
    const auto* done = std::get_if<LeaseEnded>(&message);
    if (done == nullptr) return;
    if (done->want_report) self.Send(Report{done->lease, CellReport{.signal = 11}});
    const std::lock_guard lock(mutex);
    notes.push_back(*done);
  });
  Client client(agent.path(), -1);
  request_.identity = {9};
  EXPECT_EQ(client.Call(kKey, request_, {}).outcome.status, CallStatus::kEnded);
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return notes.size();
  };
  FakeAgent::Until([&] { return count() >= 1; });
  const std::lock_guard lock(mutex);
  EXPECT_NE(notes.at(0).next, 0u);
  EXPECT_EQ(notes.at(0).load, "");
}

// ---- shared cells

TEST_F(InFlightCallsTest, ASharedCellServesManyCallsAndThenGoes) {
  FakeAgent agent(GrantEach);
  Client client(agent.path(), -1);
  request_.identity = {1};
  request_.calls_of_cell = 3;
  request_.age_of_cell = std::chrono::hours(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(CallText(client), "reply 1");
  EXPECT_NE(CallText(client), "reply 1");
  FakeAgent::Until([&] { return agent.done == 1; });
}

TEST_F(InFlightCallsTest, ASharedCellThatTheAgentTookBackIsNotUsed) {
  FakeAgent agent(GrantEach);
  Client client(agent.path(), -1);
  request_.identity = {1};
  request_.calls_of_cell = 100;
  request_.age_of_cell = std::chrono::hours(1);
  EXPECT_EQ(CallText(client), "reply 1");
  EXPECT_FALSE(agent.IsUsed(1)) << "between calls the agent may take it back";
  agent.Mark(1, kLeaseReclaimed);
  EXPECT_NE(CallText(client), "reply 1");
}

TEST_F(InFlightCallsTest, ACallForAFreshCellNeverGetsASharedOne) {
  FakeAgent agent(GrantEach);
  Client client(agent.path(), -1);
  CallRequest shared = request_;
  shared.identity = {1};
  shared.calls_of_cell = 100;
  shared.age_of_cell = std::chrono::hours(1);
  client.Call(kKey, shared, {});
  EXPECT_NE(CallText(client), "reply 1");
}

// ---- sessions

class SessionTest : public ClientTest {
 protected:
  // An agent whose cells are kept, and end as `way` says.
  static FakeAgent::Script Keeps(FakeCell::Way way = FakeCell::Way::kReplies) {
    return [way](FakeAgent& self, const Message& message) {
      if (const auto* acquire = std::get_if<Acquire>(&message)) self.Grant(acquire->request, way);
      if (const auto* keep = std::get_if<Keep>(&message)) self.Send(Answer{keep->request, ""});
      if (const auto* restart = std::get_if<Restart>(&message)) {
        self.Renew(restart->lease);
      }
    };
  }
};

TEST_F(SessionTest, ServesCallAfterCallOnOneCell) {
  FakeAgent agent(Keeps());
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  EXPECT_FALSE(session->started());
  for (int i = 0; i < 3; ++i) {
    CallRecord record = session->Call(request_, {});
    ASSERT_EQ(record.outcome.status, CallStatus::kReturned);
    EXPECT_EQ(std::string(record.outcome.payload->data(), record.outcome.payload->size()),
              "reply 1");
  }
  EXPECT_TRUE(session->started());
  session->Close();
  FakeAgent::Until([&] { return agent.done == 1; });
  EXPECT_EQ(ErrorOf([&] { session->Call(request_, {}); }).code(), Code::kWorkerFailed);
}

TEST_F(SessionTest, ARestartIsCountedAndTheNextCallIsServed) {
  FakeAgent agent(Keeps());
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  EXPECT_TRUE(session->Restart()) << "there is nothing to restart";
  session->Call(request_, {});
  EXPECT_TRUE(session->Restart());
  EXPECT_EQ(session->restarts(), 1u);
  EXPECT_EQ(session->Call(request_, {}).outcome.status, CallStatus::kReturned);
}

TEST_F(SessionTest, AUserProcessThatClosesItsSocketDuringACallIsReplaced) {
  FakeAgent agent(Keeps(FakeCell::Way::kDiesDuring));
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  EXPECT_EQ(session->Call(request_, {}).outcome.status, CallStatus::kBroken);
  EXPECT_EQ(session->restarts(), 1u);
  EXPECT_EQ(session->Call(request_, {}).outcome.status, CallStatus::kReturned);
}

// Its call was not sent, the files of the session stay, and the next one has a socket of its own.
TEST_F(SessionTest, AUserProcessThatLeftItsSocketShutOrFullIsReplaced) {
  for (const FakeCell::Way way : {FakeCell::Way::kShuts, FakeCell::Way::kFills}) {
    FakeAgent agent(Keeps(way));
    Client client(agent.path(), -1);
    const auto session = client.MakeSession(kKey, 0, "id");
    EXPECT_EQ(session->Call(request_, {}).outcome.status, CallStatus::kReturned);
    FakeAgent::Until([&] { return agent.deaf.load(); });
    const CallRecord unsent = session->Call(request_, {});
    EXPECT_EQ(unsent.outcome.status, CallStatus::kBroken);
    EXPECT_NE(unsent.outcome.detail.find("was not run"), std::string::npos);
    EXPECT_EQ(session->restarts(), 1u);
    EXPECT_FALSE(session->over());
    EXPECT_EQ(session->Call(request_, {}).outcome.status, CallStatus::kReturned);
  }
}

// As an event loop does. REQUIRES: what happens is seen by the descriptor, or is in time.
CallRecord InTurns(Turns& turns, const CallRequest& request) {
  turns.Begin(request, {});
  std::optional<Question> asked;
  while (!turns.Turn(asked)) {
    EXPECT_FALSE(asked);
    pollfd polled{turns.fd(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(turns.next() - Clock::now());
    ::poll(&polled, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
  }
  return turns.End();
}

TEST_F(ClientTest, MakesACallInTurns) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      self.Grant(acquire->request, FakeCell::Way::kRepliesLate);
  });
  Client client(agent.path(), -1);
  for (int i = 1; i <= 2; ++i) {
    const auto call = client.MakeCall(kKey);
    EXPECT_EQ(call->turns().fd(), -1) << "it has no cell yet";
    const CallRecord record = InTurns(call->turns(), request_);
    EXPECT_EQ(record.outcome.status, CallStatus::kReturned);
    EXPECT_EQ(record.outcome.output.text(0), "printed");
    EXPECT_FALSE(record.worker.empty());
    FakeAgent::Until([&] { return agent.ended[static_cast<size_t>(Ending::kReturned)] == i; });
  }
  EXPECT_EQ(agent.done, 2);
}

TEST_F(ClientTest, ACallInTurnsThatEndsWithoutAReplyWaitsForItsReport) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      self.Grant(acquire->request, FakeCell::Way::kDiesDuring);
    const auto* done = std::get_if<LeaseEnded>(&message);
    if (done != nullptr && done->want_report)
      self.Send(Report{done->lease, CellReport{.signal = 11, .wall_us = 1}});
  });
  Client client(agent.path(), -1);
  const auto call = client.MakeCall(kKey);
  call->turns().Begin(request_, {});
  std::optional<Question> asked;
  while (!call->turns().Turn(asked)) std::this_thread::yield();
  EXPECT_TRUE(call->turns().waits_at_end());
  const CallRecord record = call->turns().End();
  EXPECT_EQ(record.outcome.status, CallStatus::kEnded);
  ASSERT_TRUE(record.report);
  EXPECT_EQ(record.report->signal, 11);
}

TEST_F(ClientTest, ACallInTurnsIsGivenUpOnceWhetherCancelledOrDropped) {
  std::signal(SIGPIPE, SIG_IGN);  // cells print after their calls are given up
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* acquire = std::get_if<Acquire>(&message))
      self.Grant(acquire->request, FakeCell::Way::kRepliesLate);
  });
  Client client(agent.path(), -1);
  std::atomic<int>& cancelled = agent.ended[static_cast<size_t>(Ending::kCancelled)];
  auto call = client.MakeCall(kKey);
  call->turns().Begin(request_, {});
  EXPECT_TRUE(call->turns().Cancel());
  std::optional<Question> asked;
  EXPECT_TRUE(call->turns().Turn(asked));
  EXPECT_EQ(call->turns().End().outcome.status, CallStatus::kCancelled);
  call.reset();
  FakeAgent::Until([&] { return cancelled == 1; });
  call = client.MakeCall(kKey);
  call->turns().Begin(request_, {});
  call->Close();
  EXPECT_TRUE(call->turns().Turn(asked));
  EXPECT_TRUE(call->turns().Answer(1, "an answer"));
  const Error error = ErrorOf([&] { call->turns().End(); });
  EXPECT_EQ(error.code(), Code::kWorkerFailed);
  EXPECT_TRUE(error.may_have_run());
  call.reset();
  FakeAgent::Until([&] { return cancelled == 2; });
  EXPECT_EQ(agent.done, 2);
}

TEST_F(SessionTest, ServesCallsInTurns) {
  std::signal(SIGPIPE, SIG_IGN);  // the last cell prints after its session is closed
  FakeAgent agent(Keeps(FakeCell::Way::kRepliesLate));
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(InTurns(session->turns(), request_).outcome.status, CallStatus::kReturned);
    EXPECT_EQ(session->Call(request_, {}).outcome.status, CallStatus::kReturned);
  }
  session->turns().Begin(request_, {});
  session->Close();
  std::optional<Question> asked;
  EXPECT_TRUE(session->turns().Turn(asked)) << "nothing comes of a call whose session was closed";
  EXPECT_EQ(ErrorOf([&] { session->turns().End(); }).code(), Code::kWorkerFailed);
}

// Its socket may have the number that the socket of an earlier one had.
TEST_F(SessionTest, WhatEachUserProcessSendsIsSeenByTheDescriptorOfTurns) {
  FakeAgent agent(Keeps());
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  for (int user = 0; user < 3; ++user) {
    EXPECT_EQ(InTurns(session->turns(), request_).outcome.status, CallStatus::kReturned);
    session->turns().Begin(request_, {});
    std::optional<Question> asked;
    do {  // a busy machine may show what comes in two parts
      pollfd polled{session->turns().fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&polled, 1, 10'000), 1);
    } while (!session->turns().Turn(asked));
    EXPECT_EQ(session->turns().End().outcome.status, CallStatus::kReturned);
    for (int restart = 0; restart < 2; ++restart) EXPECT_TRUE(session->Restart());
  }
}

TEST_F(SessionTest, ACellThatIsGoneEndsATurn) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    Keeps(FakeCell::Way::kDiesDuring)(self, message);
    if (const auto* keep = std::get_if<Keep>(&message))
      self.Send(Report{keep->lease, CellReport{.end = kLost}});
  });
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  EXPECT_NE(InTurns(session->turns(), request_).outcome.status, CallStatus::kReturned);
  EXPECT_TRUE(session->over());
}

TEST_F(SessionTest, WhatItDidBetweenCallsIsReportedOnce) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    Keeps(FakeCell::Way::kRepliesLate)(self, message);
    if (const auto* started = std::get_if<Started>(&message))
      self.Send(BackgroundCpu{started->lease, 5'000'000});
  });
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  Clock::duration seen{};
  for (int i = 0; i < 3; ++i) seen += session->Call(request_, {}).background;
  EXPECT_GT(seen, std::chrono::seconds(4));
  EXPECT_LE(seen, std::chrono::seconds(15));
}

TEST_F(SessionTest, NothingThatACellSaysHidesWhatItDidBetweenCalls) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    Keeps(FakeCell::Way::kBoasts)(self, message);
    if (const auto* keep = std::get_if<Keep>(&message))
      self.Send(BackgroundCpu{keep->lease, 3'600'000'000});
  });
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  Clock::duration seen{};
  for (int i = 0; i < 2; ++i) seen += session->Call(request_, {}).background;
  EXPECT_GT(seen, std::chrono::hours(1) - std::chrono::milliseconds(1))
      << "before a call ran it used nothing";
  EXPECT_LE(seen, std::chrono::hours(1));
}

TEST_F(SessionTest, ThereMayBeNoMoreOfThem) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire == nullptr || !acquire->session) return;
    self.Send(Failed{.request = acquire->request,
                     .code = static_cast<int32_t>(Code::kBusy),
                     .message = "no room",
                     .hint = "",
                     .figures = {{"sessions", 3}}});
  });
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  EXPECT_EQ(ErrorOf([&] { session->Call(request_, {}); }).figures().at("sessions"), 3);
  EXPECT_FALSE(session->over()) << "it may be tried again";
}

TEST_F(SessionTest, ACellThatIsGoneEndsIt) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    if (const auto* restart = std::get_if<Restart>(&message)) {
      self.Send(Report{restart->lease, CellReport{.end = kLost}});
    } else {
      Keeps(FakeCell::Way::kDiesDuring)(self, message);
    }
  });
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  EXPECT_NE(session->Call(request_, {}).outcome.status, CallStatus::kReturned);
  EXPECT_TRUE(session->over());
  EXPECT_FALSE(ErrorOf([&] { session->Call(request_, {}); }).may_have_run());
}

// Where its user process cannot be replaced.
TEST_F(SessionTest, HowItEndedBetweenTwoCallsIsTheOutcomeOfTheNext) {
  const auto next = [&](CellReport report) {
    FakeAgent agent([report](FakeAgent& self, const Message& message) {
      if (const auto* keep = std::get_if<Keep>(&message)) {
        self.Send(Answer{keep->request, kEndsWithUser});
        self.Send(Report{keep->lease, report});
      } else {
        Keeps(FakeCell::Way::kDiesAfter)(self, message);
      }
    });
    Client client(agent.path(), -1);
    const auto session = client.MakeSession(kKey, 0, "id");
    EXPECT_EQ(session->Call(request_, {}).outcome.status, CallStatus::kReturned);
    FakeAgent::Until([&] { return agent.deaf.load(); });
    std::optional<CallRecord> record;
    try {
      record = session->Call(request_, {});
      EXPECT_EQ(record->outcome.status, CallStatus::kEnded);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kWorkerFailed);
      EXPECT_FALSE(error.may_have_run());
    }
    EXPECT_TRUE(session->over());
    EXPECT_FALSE(ErrorOf([&] { session->Call(request_, {}); }).may_have_run());
    return record;
  };
  EXPECT_EQ(next({.exit_code = 3, .memory_limit_kb = 1})->report->exit_code, 3);
  EXPECT_EQ(next({.signal = 9, .memory_limit_kb = 1})->report->signal, 9);
  EXPECT_EQ(next({.limit = kLimitMemory, .end = kKilled, .memory_limit_kb = 1})->report->limit,
            kLimitMemory);
  EXPECT_FALSE(next({.end = kKilled, .memory_limit_kb = 1})) << "it was idle for long";
  EXPECT_FALSE(next({.end = kLost, .memory_limit_kb = 1}));
  EXPECT_FALSE(next({})) << "its warden was lost";
}

TEST_F(SessionTest, AnAgentThatIsGoneEndsIt) {
  FakeAgent agent(Keeps());
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  session->Call(request_, {});
  agent.HangUp();
  FakeAgent::Until([&] {
    try {
      session->Call(request_, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnavailable);
      EXPECT_NE(std::string(error.what()).find("its agent is gone"), std::string::npos);
      EXPECT_FALSE(error.may_have_run());
      return true;
    }
    return false;
  });
  EXPECT_TRUE(session->over());
}

TEST_F(SessionTest, ACallThatItsAgentAndItsCellLeaveMayHaveRun) {
  FakeAgent agent([](FakeAgent& self, const Message& message) {
    Keeps(FakeCell::Way::kDiesDuring)(self, message);
    if (std::holds_alternative<Keep>(message)) self.HangUp();
  });
  Client client(agent.path(), -1);
  const auto session = client.MakeSession(kKey, 0, "id");
  const Error error = ErrorOf([&] { session->Call(request_, {}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_TRUE(error.may_have_run());
  EXPECT_TRUE(session->over());
}

TEST_F(InFlightCallsTest, WhoWaitsForASharedCellGetsTheNextThatIsLeft) {
  std::atomic<int> granted = 0;
  FakeAgent agent([&](FakeAgent& self, const Message& message) {
    const auto* acquire = std::get_if<Acquire>(&message);
    if (acquire != nullptr && granted++ == 0) self.Grant(acquire->request);
    if (const auto* ask = std::get_if<Ask>(&message)) self.Send(Answer{ask->request, ""});
  });
  Client client(agent.path(), -1);
  request_.identity = {1};
  request_.calls_of_cell = 1'000'000;
  request_.age_of_cell = std::chrono::hours(1);
  // Many last calls: a cell may be left just when nobody waits for it yet, and nobody will leave
  // it again.
  for (int round = 0; round < 300; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { EXPECT_EQ(CallText(client), "reply 1"); });
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace hutch
