// SPDX-License-Identifier: Apache-2.0

// The broker's face, against a libpod that keeps names only: where a container is started, the
// test connects as its process would.
#include "agent/egress/egress.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/egress/control.h"
#include "agent/egress/server.h"
#include "tests/faults/fake_podman.h"
#include "wire/channel.h"
#include "wire/error.h"
#include "wire/memfd.h"

namespace hutch {
namespace {

using nlohmann::json;

class EgressFace : public ::testing::Test {
 protected:
  EgressFace()
      : podman_([this](const std::string&, const std::string& spec) {
          spec_ = json::parse(spec);
          if (!refuse_.empty()) return refuse_;
          if (wrong_first_) {
            const Fd stranger = ConnectTo(paths_.run_dir + "/egress/egress.sock");
            SendEgress(stranger.get(), EgressHello{"guessed"});
          }
          Fd connection = ConnectTo(paths_.run_dir + "/egress/egress.sock");
          SendEgress(connection.get(), EgressHello{spec_.at("env").at("HUTCH_TOKEN")});
          const std::lock_guard lock(mutex_);
          process_ = std::move(connection);  // its only descriptor: a test that resets it hangs up
          return std::string();
        }) {
    char name[] = "/tmp/hutch-egress-XXXXXX";
    paths_.run_dir = ::mkdtemp(name);
    paths_.state_dir = paths_.run_dir + "/state";
    pool_.allow_network = {"a.test:443"};
  }
  ~EgressFace() override { std::filesystem::remove_all(paths_.run_dir); }

  void RunUntil(const std::function<bool()>& done) {
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    bool is_done = false;
    std::function<void()> look = [&] {
      is_done = done();  // once: it may take what it finds
      if (is_done || Clock::now() > deadline) return loop_.Stop();
      loop_.After(std::chrono::milliseconds(2), look);
    };
    look();
    loop_.Run();
    ASSERT_TRUE(is_done);
  }
  // The next message to the process.
  ReceivedEgress Received() {
    std::optional<ReceivedEgress> received;
    RunUntil([&] {
      const std::lock_guard lock(mutex_);
      if (!process_ || !(received = ReceiveEgress(process_.get()))) return false;
      if (!std::holds_alternative<EgressPing>(received->message)) return true;
      SendEgress(process_.get(), EgressPing{});
      return false;
    });
    return received ? std::move(*received) : ReceivedEgress{};
  }
  Fd AddCell(Egress& egress, uint64_t id) {
    auto [ours, theirs] = MakeSocketPair();
    egress.AddCell(id, pool_, std::move(theirs));
    return std::move(ours);
  }
  static bool Closed(const Fd& channel) {
    pollfd p{channel.get(), POLLIN, 0};
    return ::poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0;
  }

  Loop loop_;
  Paths paths_;
  PoolSpec pool_;
  std::string refuse_;
  bool wrong_first_ = false;
  json spec_;
  std::mutex mutex_;  // of process_ while it starts
  Fd process_;
  FakeContainers podman_;
  Podman libpod_{podman_.path()};
};

TEST_F(EgressFace, StartsItsContainerWithTheFirstCellAndGivesItThePolicyOnce) {
  Egress egress(loop_, libpod_, paths_, {"base", "runtime", "g1", "/ca.pem"});
  EXPECT_EQ(podman_.created(), 0u);
  pool_.secrets = {{"a.test", "X-Key", std::string("v\xff", 2), {"/v1"}, {"GET"}}};
  const Fd one = AddCell(egress, 1);
  const Fd two = AddCell(egress, 2);
  const auto policy = std::get<SetPolicy>(Received().message);
  EXPECT_EQ(policy.allow_network, pool_.allow_network);
  EXPECT_EQ(policy.secrets, pool_.secrets);
  const ReceivedEgress first = Received();
  EXPECT_EQ(std::get<hutch::AddCell>(first.message).cell, 1u);
  EXPECT_TRUE(first.descriptor);
  EXPECT_EQ(std::get<hutch::AddCell>(Received().message).cell, 2u);
  EXPECT_EQ(podman_.created(), 1u);
  EXPECT_FALSE(Closed(one));

  std::vector<NetworkRecord> records;
  egress.CloseCell(1, [&](std::vector<NetworkRecord> r) { records = std::move(r); });
  EXPECT_EQ(std::get<hutch::CloseCell>(Received().message).cell, 1u);
  SendEgress(process_.get(), CellClosed{1, {{"a.test", 443, true, "", "", 5, 6, 7}}});
  RunUntil([&] { return !records.empty(); });
  EXPECT_EQ(records[0], (NetworkRecord{"a.test", 443, true, "", "", 5, 6, 7}));

  bool closed = false;
  egress.CloseCell(2, [&](std::vector<NetworkRecord>) { closed = true; });
  Received();
  SendEgress(process_.get(), CellClosed{2, {}});
  RunUntil([&] { return closed; });
  EXPECT_EQ(std::get<ForgetPolicy>(Received().message).id, policy.id);
}

TEST_F(EgressFace, GivesTheContainerNothingButItsSocket) {
  const json spec = json::parse(
      EgressContainerSpec(paths_, {"b", "r", "g", "/ca.pem"}, "name", "/run/x/egress", "t"));
  EXPECT_EQ(spec["cap_drop"], json({"ALL"}));
  EXPECT_EQ(spec["no_new_privileges"], true);
  EXPECT_EQ(spec["read_only_filesystem"], true);
  EXPECT_NE(spec["user"], "0:0");
  EXPECT_EQ(spec["netns"]["nsmode"], "host");
  std::vector<std::string> writable;
  for (const json& mount : spec["mounts"]) {
    EXPECT_EQ(mount["source"].get<std::string>().find("podman"), std::string::npos);
    for (const json& option : mount["options"]) {
      if (option == "rw") writable.push_back(mount["source"]);
    }
  }
  EXPECT_EQ(writable, std::vector<std::string>{"/run/x/egress"});
}

TEST_F(EgressFace, FailsClosedWhenItsProcessDies) {
  Egress egress(loop_, libpod_, paths_, {"base", "runtime", "g1", ""});
  std::vector<uint64_t> lost;
  egress.OnLost([&](uint64_t cell) { lost.push_back(cell); });
  const Fd one = AddCell(egress, 1);
  const Fd two = AddCell(egress, 2);
  Received();
  {
    const ReceivedEgress first = Received();
    Received();
  }
  std::vector<NetworkRecord> records;
  egress.CloseCell(1, [&](std::vector<NetworkRecord> r) { records = std::move(r); });
  process_.reset();
  RunUntil([&] { return !records.empty() && !lost.empty(); });
  EXPECT_FALSE(records[0].allowed);
  EXPECT_NE(records[0].reason.find("ended"), std::string::npos);
  EXPECT_EQ(lost, std::vector<uint64_t>{2});
  EXPECT_TRUE(Closed(two));
  records.clear();
  egress.CloseCell(2, [&](std::vector<NetworkRecord> r) { records = std::move(r); });
  ASSERT_EQ(records.size(), 1u);
  // The next cell has another process, which is sent the policy again.
  const Fd three = AddCell(egress, 3);
  EXPECT_TRUE(std::holds_alternative<SetPolicy>(Received().message));
  EXPECT_EQ(podman_.created(), 2u);
}

TEST_F(EgressFace, EndsAProcessThatDoesNotAnswer) {
  Egress egress(loop_, libpod_, paths_, {"base", "runtime", "g1", ""});
  egress.BeatEvery(std::chrono::milliseconds(5));
  std::vector<uint64_t> lost;
  egress.OnLost([&](uint64_t cell) { lost.push_back(cell); });
  const Fd one = AddCell(egress, 1);
  std::vector<NetworkRecord> records;
  RunUntil([&] { return lost == std::vector<uint64_t>{1}; });  // nobody answers
  RunUntil([&] { return podman_.count() == 0; });
  egress.CloseCell(1, [&](std::vector<NetworkRecord> r) { records = std::move(r); });
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].lost);
  EXPECT_NE(records[0].reason.find("did not answer"), std::string::npos);
  // The counterpart: one that answers stays.
  lost.clear();
  {
    const std::lock_guard lock(mutex_);
    process_.reset();
  }
  const Fd two = AddCell(egress, 2);
  int answered = 0;
  RunUntil([&] {
    const std::lock_guard lock(mutex_);
    if (!process_) return false;
    while (const auto received = ReceiveEgress(process_.get())) {
      if (!std::holds_alternative<EgressPing>(received->message)) continue;
      SendEgress(process_.get(), EgressPing{});
      ++answered;
    }
    return answered >= 50;
  });
  EXPECT_TRUE(lost.empty());
  EXPECT_EQ(podman_.created(), 2u);
}

TEST_F(EgressFace, SaysThatAForwarderEndedDuringACall) {
  Egress egress(loop_, libpod_, paths_, {"base", "runtime", "g1", ""});
  std::vector<uint64_t> lost;
  egress.OnLost([&](uint64_t cell) { lost.push_back(cell); });
  const Fd one = AddCell(egress, 1);
  const Fd two = AddCell(egress, 2);
  for (int i = 0; i < 3; ++i) Received();
  SendEgress(process_.get(), ForwarderGone{1});
  RunUntil([&] { return !lost.empty(); });
  EXPECT_EQ(lost, std::vector<uint64_t>{1});
  for (const uint64_t cell : {1u, 2u}) {
    egress.CallIsOver(cell);
    EXPECT_EQ(std::get<CallOver>(Received().message).cell, cell);
    std::optional<std::vector<NetworkRecord>> records;
    egress.CloseCell(cell, [&](std::vector<NetworkRecord> r) { records = std::move(r); });
    EXPECT_EQ(std::get<hutch::CloseCell>(Received().message).cell, cell);
    SendEgress(process_.get(), CellClosed{cell, {{"a.test", 443, true, "", "", 5, 6, 7}}});
    RunUntil([&] { return records.has_value(); });
    EXPECT_EQ(std::ranges::any_of(*records, &NetworkRecord::lost), cell == 1);
    EXPECT_EQ(records->front().host, "a.test");
  }
}

TEST_F(EgressFace, SaysWhyThereIsNoProcess) {
  refuse_ = "no such network";
  Egress egress(loop_, libpod_, paths_, {"base", "runtime", "g1", ""});
  const Fd one = AddCell(egress, 1);
  RunUntil([&] { return Closed(one); });
  std::vector<NetworkRecord> records;
  egress.CloseCell(1, [&](std::vector<NetworkRecord> r) { records = std::move(r); });
  ASSERT_EQ(records.size(), 1u);
  EXPECT_NE(records[0].reason.find("no such network"), std::string::npos);
  const Fd two = AddCell(egress, 2);  // it is not tried again at once
  EXPECT_TRUE(Closed(two));
  EXPECT_EQ(podman_.created(), 1u);
}

TEST_F(EgressFace, ReplacesTheProcessWhereAnotherFileSaysWhomToTrust) {
  Egress egress(loop_, libpod_, paths_, {"base", "runtime", "g1", "/old.pem"});
  const Fd one = AddCell(egress, 1);
  Received();
  egress.Trust("/old.pem");
  EXPECT_FALSE(Closed(one));
  std::vector<uint64_t> lost;
  egress.OnLost([&](uint64_t cell) { lost.push_back(cell); });
  egress.Trust("/new.pem");
  EXPECT_EQ(lost, std::vector<uint64_t>{1}) << "before any call can get it";
  process_.reset();  // as it ends when its agent hangs up
  EXPECT_TRUE(Closed(one));
  const Fd two = AddCell(egress, 2);
  EXPECT_TRUE(std::holds_alternative<SetPolicy>(Received().message));
  EXPECT_EQ(podman_.created(), 2u);
  EXPECT_EQ(spec_["mounts"].back()["source"], "/new.pem");
  EXPECT_EQ(spec_["command"].back(), spec_["mounts"].back()["destination"]);
}

TEST_F(EgressFace, CellsOfAStartThatFailedKeepTheReasonUntilAnotherSucceeds) {
  refuse_ = "no such file";
  Egress egress(loop_, libpod_, paths_, {"base", "runtime", "g1", "/gone.pem"});
  std::vector<uint64_t> lost;
  egress.OnLost([&](uint64_t cell) { lost.push_back(cell); });
  const Fd one = AddCell(egress, 1);
  RunUntil([&] { return Closed(one); });
  EXPECT_TRUE(lost.empty()) << "another one would have no network either";
  refuse_.clear();
  egress.Trust("/new.pem");
  EXPECT_EQ(lost, std::vector<uint64_t>{1});
  lost.clear();
  const Fd two = AddCell(egress, 2);
  RunUntil([&] { return !lost.empty(); });
  EXPECT_EQ(lost, std::vector<uint64_t>{1});
  EXPECT_FALSE(Closed(two));
}

TEST(EgressControl, TakesNoNumberThatIsNoneOfItsKind) {
  const auto takes = [](const std::string& text) {
    const auto [ours, theirs] = MakeSocketPair();
    const Fd memfd = MakeSealedMemfd("test", text.data(), text.size());
    const int fd = memfd.get();
    char mark = 'J';
    const iovec part{&mark, 1};
    SendDatagram(theirs.get(), {&part, 1}, {&fd, 1});
    try {
      return ReceiveEgress(ours.get()).has_value();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kProtocol);
      return false;
    }
  };
  const auto closed = [](const std::string& cell, const std::string& port) {
    return R"({"is":"closed","cell":)" + cell + R"(,"records":[{"host":"a","port":)" + port +
           R"(,"allowed":true,"reason":"","suggestion":"","sent":1,"received":1,"count":1}]})";
  };
  EXPECT_TRUE(takes(closed("1", "443")));
  EXPECT_TRUE(takes(closed("18446744073709551615", "0")));
  for (const char* none : {"1e300", "-1", "1.5", "18446744073709551616", "true", "\"1\""})
    EXPECT_FALSE(takes(closed(none, "443"))) << none;
  EXPECT_FALSE(takes(closed("1", "65536")));
}

TEST_F(EgressFace, ListensToTheProcessThatItStartedOnly) {
  wrong_first_ = true;
  Egress egress(loop_, libpod_, paths_, {"base", "runtime", "g1", ""});
  const Fd one = AddCell(egress, 1);
  EXPECT_TRUE(std::holds_alternative<SetPolicy>(Received().message));
}

}  // namespace
}  // namespace hutch
