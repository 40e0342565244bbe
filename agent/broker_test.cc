// SPDX-License-Identifier: Apache-2.0

// The Broker with a Server on a real socket and with peers of the test's own, over pools whose
// workers are scripted wardens.
#include "agent/broker.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <tuple>

#include "agent/server.h"
#include "loop/descriptors.h"
#include "tests/faults/fake_warden.h"
#include "tests/faults/scarce.h"
#include "wire/channel.h"

namespace hutch {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// What the broker sees of a client: notes what it is sent.
class FakePeer final : public Peer {
 public:
  explicit FakePeer(uint64_t id) : id_(id), table_(2 * kLeaseTableSlots) {}
  bool Send(const Message& message, std::span<const int> descriptors) override {
    if (deaf) return false;
    messages.push_back(message);
    descriptors_seen += descriptors.size();
    return true;
  }
  uint64_t id() const override { return id_; }
  uint32_t* lease_table() override { return table_.data(); }

  template <class T>
  std::vector<T> All() const {
    std::vector<T> all;
    for (const Message& message : messages) {
      if (const T* one = std::get_if<T>(&message)) all.push_back(*one);
    }
    return all;
  }
  template <class T>
  size_t Count() const {
    return All<T>().size();
  }
  void Use(const Leased& lease) { table_[lease.table_slot] = MarkOf(lease.lease, kLeaseUsed); }
  uint32_t mark(const Leased& lease) const { return table_[lease.table_slot]; }

  bool deaf = false;
  std::deque<Message> messages;
  size_t descriptors_seen = 0;

 private:
  uint64_t id_;
  std::vector<uint32_t> table_;
};

class BrokerTest : public ::testing::Test {
 protected:
  BrokerTest()
      : paths_(MakePaths()),
        wardens_(paths_.worker_dir()),
        podman_(wardens_.podman_socket()),
        store_(podman_, paths_),
        broker_(std::in_place, loop_, podman_, store_, paths_, "generation",
                [] { return ::getuid(); }) {
    spec_.base_id = std::string(32, 'b');
    spec_.runtime_id.assign(32, 'a');
    spec_.python_version = "3.11.7";
    spec_.platform = "linux_x86_64";
    spec_.warm = 1;
    spec_.max_cells = 2;
    std::filesystem::create_directories(paths_.runtime_dir(spec_.runtime_id));
  }
  ~BrokerTest() override {
    broker_.reset();
    wardens_.KillAll();
    std::filesystem::remove_all(paths_.run_dir);
  }
  static Paths MakePaths() {
    char name[] = "/tmp/hutch-broker-XXXXXX";
    Paths paths;
    paths.run_dir = ::mkdtemp(name);
    paths.state_dir = paths.run_dir + "/state";
    paths.agent_socket = paths.run_dir + "/agent.sock";
    std::filesystem::create_directories(paths.state_dir);
    return paths;
  }
  void RunUntil(const std::function<bool()>& done) {
    const Clock::time_point give_up = Clock::now() + std::chrono::seconds(60);
    std::function<void()> check = [&] {
      if (Clock::now() > give_up) ADD_FAILURE() << "it did not come about";
      if (done() || Clock::now() > give_up) return loop_.Stop();
      loop_.After(milliseconds(1), check);
    };
    check();
    loop_.Run();
  }
  // An environment without packages needs no build. Returns the pool's key.
  std::string PrepareFor(FakePeer& peer) {
    broker_->Handle(peer, Prepare{1, 60'000, spec_});
    RunUntil([&] { return peer.Count<PoolReady>() + peer.Count<Failed>() > 0; });
    if (peer.Count<Failed>() > 0) ADD_FAILURE() << peer.All<Failed>()[0].message;
    return peer.Count<PoolReady>() > 0 ? peer.All<PoolReady>()[0].key : "";
  }
  Leased AcquireFor(FakePeer& peer, const std::string& key, bool ahead = false) {
    const size_t before = peer.Count<Leased>();
    broker_->Handle(peer, Acquire{next_request_++, key, 60'000, ahead});
    RunUntil([&] { return peer.Count<Leased>() > before; });
    return peer.All<Leased>().back();
  }

  Paths paths_;
  PoolSpec spec_;
  Loop loop_;
  FakeWardens wardens_;
  Podman podman_;
  EnvironmentStore store_;
  std::optional<Broker> broker_;
  uint64_t next_request_ = 100;
};

TEST_F(BrokerTest, ACellGetsWhatItIsToLoadBeforeItIsLeased) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  const Leased first = AcquireFor(peer, key);
  peer.Use(first);
  broker_->Handle(peer, LeaseEnded{first.lease, false, {Ending::kReturned}, 90, "a frame"});
  RunUntil([&] { return peer.Count<Leased>() == 2; });
  RunUntil([&] { return wardens_.cells_ended == 1; });
  EXPECT_EQ(wardens_.last_frame(), "") << "the first one was given nothing";
  broker_->Handle(peer, LeaseEnded{peer.All<Leased>()[1].lease, false, {}});
  RunUntil([&] { return wardens_.cells_ended == 2; });
  EXPECT_EQ(wardens_.last_frame(), "a frame");
}

TEST_F(BrokerTest, WhoPreparesAPoolLearnsHowManyCellsItHas) {
  FakePeer peer(1);
  spec_.max_cells = 7;
  PrepareFor(peer);
  ASSERT_EQ(peer.Count<PoolReady>(), 1u);
  EXPECT_EQ(peer.All<PoolReady>()[0].max_cells, 7u);
}

TEST_F(BrokerTest, AnEnvironmentAloneIsAnsweredWithoutAPool) {
  FakePeer peer(1);
  Prepare prepare{1, 60'000, spec_};
  prepare.no_pool = true;
  broker_->Handle(peer, prepare);
  RunUntil([&] { return peer.Count<PoolReady>() + peer.Count<Failed>() > 0; });
  ASSERT_EQ(peer.Count<PoolReady>(), 1u);
  EXPECT_EQ(peer.All<PoolReady>()[0].key, "");
  EXPECT_EQ(peer.All<PoolReady>()[0].digest.size(), 64u);
  broker_->Handle(peer, Ask{2, "status"});
  ASSERT_EQ(peer.Count<Answer>(), 1u);
  EXPECT_TRUE(json::parse(peer.All<Answer>()[0].text)["pools"].empty());
}

TEST_F(BrokerTest, WhatIsTooLargeForACellIsNoFrameForIt) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  const Leased first = AcquireFor(peer, key);
  std::string large(sizeof(FrameHeader) + kMaxPayload, 'x');
  broker_->Handle(peer, LeaseEnded{first.lease, false, {}, 90, large});
  RunUntil([&] { return peer.Count<Leased>() == 2; });
  const Leased second = peer.All<Leased>()[1];
  large += 'x';
  EXPECT_THROW(broker_->Handle(peer, LeaseEnded{second.lease, false, {}, 91, large}), Error);
}

TEST_F(BrokerTest, PreparesAPoolAndLeasesItsCells) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  const Leased lease = AcquireFor(peer, key);
  EXPECT_EQ(peer.descriptors_seen, 3u);
  EXPECT_EQ(peer.mark(lease), MarkOf(lease.lease, kLeaseIdle));
  broker_->Handle(peer, LeaseEnded{lease.lease, true, {Ending::kReturned}});
  RunUntil([&] { return peer.Count<Report>() == 1; });
  EXPECT_EQ(peer.All<Report>()[0].lease, lease.lease);
  EXPECT_EQ(peer.All<Report>()[0].report.wall_us, 7u);
}

TEST_F(BrokerTest, KeepsAsManyContainersReadyAsItsConfigurationSays) {
  spec_.isolation = Isolation::kContainer;
  spec_.warm = -1;
  std::deque<FakePeer> peers;
  AgentConfig config;
  for (const uint64_t warm : {0, 1}) {
    config.host.warm_workers = warm;
    broker_->Configure(config);
    FakePeer& peer = peers.emplace_back(warm);
    spec_.env["N"] = std::to_string(warm);  // a pool of its own
    const std::string key = PrepareFor(peer);
    AcquireFor(peer, key);
    broker_->Handle(peer, Acquire{next_request_++, key, 60'000, true});
    RunUntil([&] { return peer.Count<Leased>() + peer.Count<Failed>() == 2; });
    EXPECT_EQ(peer.Count<Leased>(), 1 + warm) << "one of them ahead of a call";
  }
}

TEST_F(BrokerTest, LooksForWhatWasLeftAsOftenAsItsConfigurationSays) {
  AgentConfig config;
  config.host.sweep_sec = 1;
  broker_->Configure(config);
  RunUntil([&] { return wardens_.containers().listed() >= 3; });  // by default, after two minutes
}

TEST_F(BrokerTest, RefusesAnyNetworkAndMountsOnGvisorWhateverItsClientLetThrough) {
  FakePeer peer(1);
  uint64_t request = 1;
  const auto refusal = [&](const std::function<void(PoolSpec&)>& ask) {
    PoolSpec spec = spec_;
    spec.isolation = Isolation::kGvisor;
    ask(spec);
    const size_t before = peer.Count<Failed>();
    broker_->Handle(peer, Prepare{request++, 60'000, spec});
    if (peer.Count<Failed>() != before + 1) return std::string("none");
    EXPECT_EQ(peer.All<Failed>().back().code, static_cast<int32_t>(Code::kInvalidArgument));
    return peer.All<Failed>().back().message;
  };
  const std::string why = "isolation=\"gvisor\" takes no mounts, and has no network";
  EXPECT_EQ(refusal([](PoolSpec& s) { s.allow_network = {"a.test:443"}; }), why);
  EXPECT_EQ(refusal([](PoolSpec& s) { s.secrets = {{"a.test", "X", "v", {}, {}}}; }), why);
  EXPECT_EQ(refusal([](PoolSpec& s) { s.mounts.resize(1); }), why);
  EXPECT_EQ(peer.Count<PoolReady>(), 0u);
  EXPECT_EQ(wardens_.containers().created(), 0u);
  spec_.isolation = Isolation::kContainer;
  spec_.allow_network = {"a.test:443"};
  broker_->Handle(peer, Prepare{request, 60'000, spec_});
  EXPECT_EQ(peer.Count<Failed>(), 3u) << "elsewhere a network may be had";
}

TEST_F(BrokerTest, RemovesWhatWasUsedTheLongestAgoWhereEnvironmentsTakeMoreThanTheirShare) {
  namespace fs = std::filesystem;
  const auto place = [&](const std::string& digest) {
    return fs::path(paths_.environment_dir()) / digest;
  };
  const auto use = [&](const std::string& digest, std::chrono::seconds ago) {
    fs::last_write_time(place(digest) / "meta.json", fs::file_time_type::clock::now() - ago);
  };
  const auto plant = [&](const std::string& digest, uint64_t mb, std::chrono::seconds ago) {
    fs::create_directories(place(digest) / "tree");
    std::ofstream(place(digest) / "lock.txt").flush();
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    std::ofstream(place(digest) / "meta.json")
        << json{{"digest", digest},          {"requirements", json::array()},
                {"packages", json::array()}, {"python_version", "3.11.7"},
                {"base_id", spec_.base_id},  {"bytes", mb << 20},
                {"created_sec", 1},          {"build_sec", 1},
                {"preload", json::array()},  {"notes", json::array()},
                {"boot", boot + "\n"}};
    use(digest, ago);
  };
  using std::chrono::seconds;
  spec_.requirements = {"in-use"};
  const std::string in_use = DigestOf(SpecOf(spec_));
  const std::string older(64, 'a');
  const std::string old(64, 'b');
  const std::string fresh(64, 'c');
  for (const auto& [most_mb, goes, stays] :
       {std::tuple(50, std::set{older}, std::set{old, in_use, fresh}),
        std::tuple(10, std::set{older, old}, std::set{in_use, fresh})}) {
    plant(in_use, 20, seconds(0));
    plant(older, 20, seconds(2000));
    plant(old, 20, seconds(1000));
    plant(fresh, 5, seconds(1));
    broker_.emplace(loop_, podman_, store_, paths_, "generation", [] { return ::getuid(); });
    FakePeer peer(1);
    PrepareFor(peer);
    EXPECT_EQ(peer.All<PoolReady>()[0].digest, in_use);
    use(in_use, seconds(3000));  // but a pool has it
    AgentConfig config;
    config.host.environment_disk_mb = most_mb;
    broker_->Configure(config);
    RunUntil([&] {
      return std::ranges::none_of(goes, [&](const auto& one) { return fs::exists(place(one)); });
    });
    broker_.reset();  // and whatever was under way
    for (const std::string& digest : stays) EXPECT_TRUE(fs::exists(place(digest))) << digest;
  }
}

TEST_F(BrokerTest, AClientThatNamesTheDigestOfAnotherSetGetsItsOwn) {
  // There is one of that name, and a worker started ahead that could show it.
  const std::string theirs(64, 'd');
  std::filesystem::create_directories(paths_.environment_dir() + "/" + theirs + "/tree");
  const std::string variable = "HUTCH_ENVIRONMENT=" + theirs;
  const std::string line = std::string(1, '\0') + variable;
  uint64_t id = 1;
  const auto mine = [&](const std::function<void(PoolSpec&)>& name) {
    broker_->KeepSpare(spec_.base_id, spec_.runtime_id);
    FakePeer peer(id++);
    PoolSpec spec = spec_;
    spec.labels["case"] = std::to_string(id);  // a pool of its own
    name(spec);
    broker_->Handle(peer, Prepare{1, 60'000, spec});
    RunUntil([&] { return peer.Count<PoolReady>() + peer.Count<Failed>() > 0; });
    const bool shown = ('\0' + wardens_.last_config()).find(line) != std::string::npos;
    const bool prepared = peer.Count<PoolReady>() > 0;
    const bool named = prepared && peer.All<PoolReady>()[0].digest == theirs;
    broker_->Gone(peer);
    return shown || named ? "theirs" : prepared ? "its own" : "refused";
  };
  EXPECT_STREQ(mine([&](PoolSpec& s) { s.labels["digest"] = theirs; }), "its own");
  EXPECT_STREQ(mine([&](PoolSpec& s) { s.env["HUTCH_ENVIRONMENT"] = theirs; }), "its own");
  EXPECT_STREQ(mine([&](PoolSpec& s) { s.env["A"] = "b" + line; }), "its own");
  EXPECT_STREQ(mine([&](PoolSpec& s) { s.modules[theirs] = line; }), "its own");
  EXPECT_STREQ(mine([&](PoolSpec& s) { s.setup = line; }), "its own");
  EXPECT_STREQ(mine([&](PoolSpec& s) {
                 s.preload_given = true;
                 s.preload = {theirs};
               }),
               "its own");
  EXPECT_STREQ(mine([&](PoolSpec& s) {
                 s.preload_given = true;
                 s.preload = {"json" + line};
               }),
               "refused");
  FakePeer peer(id);
  broker_->Handle(peer, Acquire{1, theirs, 60'000, false});
  ASSERT_EQ(peer.Count<Failed>(), 1u);
  EXPECT_EQ(peer.All<Failed>()[0].code, static_cast<int32_t>(Code::kUnknownPool));
}

TEST_F(BrokerTest, CountsEachCallOnce) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  const auto state = [&] {
    const size_t before = peer.Count<Answer>();
    broker_->Handle(peer, Ask{next_request_++, "status"});
    RunUntil([&] { return peer.Count<Answer>() > before; });
    return json::parse(peer.All<Answer>().back().text);
  };
  EXPECT_EQ(state()["calls"], 0);

  const Leased simple = AcquireFor(peer, key);
  peer.Use(simple);
  broker_->Handle(peer,
                  LeaseEnded{simple.lease, false, {Ending::kReturned, 1000, 1000, 1000, 1000}});
  broker_->Handle(peer,
                  LeaseEnded{simple.lease, false, {Ending::kReturned, 1000, 1000, 1000, 1000}});
  EXPECT_EQ(state()["calls"], 1) << "also when it is reported twice";

  const Leased unused = AcquireFor(peer, key, true);
  broker_->Handle(peer, LeaseEnded{unused.lease, false, {}});
  EXPECT_EQ(state()["calls"], 1) << "a lease that served no call is none";

  // A cell that died is counted once, whether the warden or the client reports it first.
  const Leased untold = AcquireFor(peer, key, true);
  peer.Use(untold);
  broker_->Handle(peer, LeaseEnded{untold.lease, true, {Ending::kUntold, 0, 0, 1, 0}});
  RunUntil([&] { return peer.Count<Report>() == 1; });
  const json status = state();
  EXPECT_EQ(status["calls"], 2);
  const json& pool = status["pools"][0];
  EXPECT_EQ(pool["outcomes"]["returned"], 1);
  EXPECT_EQ(pool["calls"], 2);
  EXPECT_EQ(pool["hit_rate"], 0.5) << "one was leased ahead of its call";
  EXPECT_GE(pool["cells_made"], 3);
  EXPECT_EQ(pool["worker_starts"], 1);
}

TEST_F(BrokerTest, CountsACallWhoseClientIsGone) {
  FakePeer lost(1);
  FakePeer peer(2);
  const std::string key = PrepareFor(lost);
  lost.Use(AcquireFor(lost, key));
  AcquireFor(lost, key, true);  // never used: no call
  broker_->Gone(lost);
  broker_->Handle(peer, Ask{1, "metrics"});
  RunUntil([&] { return peer.Count<Answer>() == 1; });
  const std::string text = peer.All<Answer>()[0].text;
  EXPECT_NE(text.find("status=\"cancelled\",limit=\"\"} 1\n"), std::string::npos) << text;
}

TEST_F(BrokerTest, TheWorkerUsedTheLongestAgoGoesWhenThereAreTooMany) {
  broker_.emplace(loop_, podman_, store_, paths_, "generation", [] { return ::getuid(); }, 2);
  std::vector<std::unique_ptr<FakePeer>> peers;
  std::vector<std::string> workers;
  for (uint64_t i = 1; i <= 3; ++i) {
    spec_.env["N"] = std::to_string(i);
    FakePeer& peer = *peers.emplace_back(std::make_unique<FakePeer>(i));
    const Leased lease = AcquireFor(peer, PrepareFor(peer));
    workers.push_back(lease.worker);
    if (i != 1) broker_->Handle(peer, LeaseEnded{lease.lease, false, {}});
  }
  RunUntil([&] { return wardens_.retired == 1; });
  broker_->Handle(*peers[0], Ask{99, "status"});
  const std::string status = peers[0]->All<Answer>().back().text;
  EXPECT_NE(status.find(workers[0]), std::string::npos)
      << "the oldest of all, but a call runs on it";
  EXPECT_EQ(status.find(workers[1]), std::string::npos);
  EXPECT_NE(status.find(workers[2]), std::string::npos);
}

TEST_F(BrokerTest, TwoClientsOfOneSpecShareAPool) {
  FakePeer first(1);
  FakePeer second(2);
  EXPECT_EQ(PrepareFor(first), PrepareFor(second));
  EXPECT_EQ(wardens_.containers().created(), 1u);
  spec_.memory_mb += 1;
  FakePeer third(3);
  EXPECT_NE(PrepareFor(third), first.All<PoolReady>()[0].key);
}

TEST_F(BrokerTest, RefusesLimitsOutOfRange) {
  FakePeer peer(1);
  const auto refuses = [&](const PoolSpec& spec) {
    peer.messages.clear();
    broker_->Handle(peer, Prepare{1, 1000, spec});
    return peer.Count<Failed>() == 1 &&
           peer.All<Failed>()[0].code == static_cast<int32_t>(Code::kInvalidArgument);
  };
  PoolSpec bad = spec_;
  bad.memory_mb = 0;
  EXPECT_TRUE(refuses(bad));
  bad = spec_;
  bad.base_id = "../../etc";
  EXPECT_TRUE(refuses(bad));
  bad = spec_;
  bad.cpus = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refuses(bad));
  bad = spec_;
  bad.max_age_sec = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refuses(bad));
}

TEST_F(BrokerTest, SaysThatABaseOrARuntimeIsMissing) {
  FakePeer peer(1);
  wardens_.containers().HideImages(true);
  broker_->Handle(peer, Prepare{1, 1000, spec_});
  RunUntil([&] { return peer.Count<Failed>() == 1; });
  EXPECT_EQ(peer.All<Failed>()[0].code, static_cast<int32_t>(Code::kMissingBase));
  wardens_.containers().HideImages(false);
  spec_.runtime_id.assign(32, 'c');
  broker_->Handle(peer, Prepare{2, 1000, spec_});
  RunUntil([&] { return peer.Count<Failed>() == 2; });
  EXPECT_EQ(peer.All<Failed>()[1].code, static_cast<int32_t>(Code::kMissingRuntime));
}

TEST_F(BrokerTest, DoesNotKnowAPoolThatWasNotPrepared) {
  FakePeer peer(1);
  broker_->Handle(peer, Acquire{1, "no such key", 1000, false});
  ASSERT_EQ(peer.Count<Failed>(), 1u);
  EXPECT_EQ(peer.All<Failed>()[0].code, static_cast<int32_t>(Code::kUnknownPool));
}

TEST_F(BrokerTest, RefusesWhatNoClientSends) {
  FakePeer peer(1);
  EXPECT_THROW(broker_->Handle(peer, Welcome{}), Error);
  EXPECT_THROW(broker_->Handle(peer, Leased{}), Error);
}

TEST_F(BrokerTest, TakesBackAnUnusedLeaseForWhoWaits) {
  FakePeer idler(1);
  FakePeer caller(2);
  const std::string key = PrepareFor(idler);
  const Leased first = AcquireFor(idler, key, true);
  const Leased second = AcquireFor(idler, key, true);
  AcquireFor(caller, key);
  EXPECT_EQ(idler.mark(first), MarkOf(first.lease, kLeaseReclaimed));
  EXPECT_EQ(idler.mark(second), MarkOf(second.lease, kLeaseIdle)) << "one was enough";
}

TEST_F(BrokerTest, NeverTakesBackALeaseInUse) {
  FakePeer busy(1);
  FakePeer caller(2);
  const std::string key = PrepareFor(busy);
  const Leased used = AcquireFor(busy, key, true);
  busy.Use(used);
  const Leased unused = AcquireFor(busy, key, true);
  AcquireFor(caller, key);
  EXPECT_EQ(busy.mark(used), MarkOf(used.lease, kLeaseUsed));
  EXPECT_EQ(busy.mark(unused), MarkOf(unused.lease, kLeaseReclaimed));
}

TEST_F(BrokerTest, ACellWhoseCallDoesNotBeginGoesToWhoWaits) {
  FakePeer stopped(1);
  FakePeer caller(2);
  const std::string key = PrepareFor(stopped);
  const Leased used = AcquireFor(stopped, key);
  stopped.Use(used);
  const Leased unused = AcquireFor(stopped, key);
  AcquireFor(caller, key);
  EXPECT_EQ(stopped.mark(used), MarkOf(used.lease, kLeaseUsed));
  EXPECT_EQ(stopped.mark(unused), MarkOf(unused.lease, kLeaseReclaimed));
}

TEST_F(BrokerTest, APeerThatGoesGivesUpItsCellsAndItsPlaces) {
  const auto leaver = std::make_unique<FakePeer>(1);
  const std::string key = PrepareFor(*leaver);
  AcquireFor(*leaver, key);
  AcquireFor(*leaver, key);
  broker_->Handle(*leaver, Acquire{50, key, 60'000, false});  // waits
  broker_->Gone(*leaver);
  const size_t leases = leaver->Count<Leased>();
  FakePeer next(2);
  AcquireFor(next, key);
  AcquireFor(next, key);
  EXPECT_EQ(leaver->Count<Leased>(), leases) << "a cell went to a peer that is gone";
}

TEST_F(BrokerTest, AnotherPeersLeaseIsNoneOfItsBusiness) {
  FakePeer owner(1);
  FakePeer other(2);
  const Leased lease = AcquireFor(owner, PrepareFor(owner));
  broker_->Handle(other, LeaseEnded{lease.lease, false, {Ending::kReturned}});
  broker_->Handle(other, Started{lease.lease, 1, 1});
  broker_->Handle(owner, Started{lease.lease, 1000, 0});
  RunUntil([&] { return wardens_.armed == 1; });
  EXPECT_EQ(wardens_.cells_ended, 0);
}

TEST_F(BrokerTest, ForgetsWhoGaveUp) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  const Leased first = AcquireFor(peer, key);
  AcquireFor(peer, key);
  broker_->Handle(peer, Acquire{50, key, 60'000, false});
  broker_->Handle(peer, Forget{50});
  broker_->Handle(peer, Forget{50});
  broker_->Handle(peer, LeaseEnded{first.lease, true, {Ending::kReturned}});
  RunUntil([&] { return peer.Count<Report>() == 1; });
  AcquireFor(peer, key);
  for (const Leased& lease : peer.All<Leased>()) EXPECT_NE(lease.request, 50u);
}

TEST_F(BrokerTest, APreparationForWhoGaveUpIsNotAnswered) {
  FakePeer peer(1);
  broker_->Handle(peer, Prepare{1, 60'000, spec_});
  broker_->Handle(peer, Forget{1});
  FakePeer other(2);
  PrepareFor(other);
  EXPECT_EQ(peer.Count<PoolReady>(), 0u);
}

TEST_F(BrokerTest, NoTableSlotIsGivenTwice) {
  spec_.max_cells = 4;
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  std::deque<Leased> held;
  for (int i = 0; i < 20; ++i) {
    held.push_back(AcquireFor(peer, key));
    for (size_t a = 0; a + 1 < held.size(); ++a)
      EXPECT_NE(held[a].table_slot, held.back().table_slot);
    if (held.size() == 3) {
      broker_->Handle(peer, LeaseEnded{held.front().lease, true, {Ending::kReturned}});
      const size_t reports = peer.Count<Report>();
      RunUntil([&] { return peer.Count<Report>() > reports; });
      held.pop_front();
    }
  }
}

// A client may hold as many leases as its table has slots; one more waits for one of them to end.
TEST_F(BrokerTest, OneLeaseMoreThanItsTableHoldsWaitsAndDoesNotFail) {
  spec_.max_cells = kLeaseTableSlots + 8;
  FakePeer peer(1);
  FakePeer other(2);
  const std::string key = PrepareFor(peer);
  for (uint64_t i = 0; i <= kLeaseTableSlots; ++i)
    broker_->Handle(peer, Acquire{1000 + i, key, 60'000, false});
  RunUntil([&] { return peer.Count<Leased>() == kLeaseTableSlots; });
  AcquireFor(other, key);  // whom it does not keep waiting
  EXPECT_EQ(peer.Count<Leased>(), kLeaseTableSlots);
  broker_->Handle(peer, LeaseEnded{peer.All<Leased>()[7].lease, false, {Ending::kReturned}});
  RunUntil([&] { return peer.Count<Leased>() == kLeaseTableSlots + 1; });
  EXPECT_EQ(peer.Count<Failed>(), 0u);
}

TEST_F(BrokerTest, OnePeersManyWaitingCallsDoNotStarveAnothersOne) {
  FakePeer crowd(1);
  FakePeer single(2);
  const std::string key = PrepareFor(crowd);
  for (uint64_t i = 0; i < 1000; ++i) broker_->Handle(crowd, Acquire{1000 + i, key, 60'000, false});
  RunUntil([&] { return crowd.Count<Leased>() == 2; });
  broker_->Handle(single, Acquire{1, key, 60'000, false});
  for (size_t done = 0; single.Count<Leased>() == 0; ++done) {
    ASSERT_LT(done, 3u) << "it waits for more than its turn";
    broker_->Handle(crowd, LeaseEnded{crowd.All<Leased>()[done].lease, false, {Ending::kReturned}});
    RunUntil([&] { return crowd.Count<Leased>() + single.Count<Leased>() == 3 + done; });
  }
  EXPECT_EQ(crowd.Count<Failed>() + single.Count<Failed>(), 0u);
}

TEST_F(BrokerTest, ALeaseThatCannotBeSentIsNobodys) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  peer.deaf = true;
  broker_->Handle(peer, Acquire{50, key, 60'000, false});
  RunUntil([&] { return wardens_.cells_ended == 1; });
  peer.deaf = false;
  AcquireFor(peer, key);
}

TEST_F(BrokerTest, RefusesTheSameNumberTwice) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  AcquireFor(peer, key);
  AcquireFor(peer, key);
  broker_->Handle(peer, Acquire{50, key, 60'000, false});
  EXPECT_THROW(broker_->Handle(peer, Acquire{50, key, 60'000, false}), Error);
}

TEST_F(BrokerTest, AnswersItsStatusWhateverLabelsHold) {
  spec_.labels["team"] = "\xff\xfe";
  FakePeer peer(1);
  PrepareFor(peer);
  broker_->Handle(peer, Ask{9, "status"});
  ASSERT_EQ(peer.Count<Answer>(), 1u);
  EXPECT_NE(peer.All<Answer>()[0].text.find("\"pools\""), std::string::npos);
  broker_->Handle(peer, Ask{10, "what?"});
  EXPECT_EQ(peer.Count<Failed>(), 1u);
}

TEST_F(BrokerTest, StopsAtOnceWhenNothingRuns) {
  FakePeer peer(1);
  PrepareFor(peer);
  bool stopped = false;
  broker_->Stop(std::chrono::hours(1), [&] { stopped = true; });
  RunUntil([&] { return stopped; });
  broker_->Handle(peer, Prepare{2, 1000, spec_});
  EXPECT_EQ(peer.Count<Failed>(), 1u);
}

TEST_F(BrokerTest, DrainsACallThatRunsAndThenStops) {
  FakePeer peer(1);
  const Leased lease = AcquireFor(peer, PrepareFor(peer));
  peer.Use(lease);
  bool stopped = false;
  broker_->Stop(std::chrono::hours(1), [&] { stopped = true; });
  int turns = 0;
  RunUntil([&] { return ++turns > 40; });
  EXPECT_FALSE(stopped);
  broker_->Handle(peer, LeaseEnded{lease.lease, false, {Ending::kReturned}});
  RunUntil([&] { return stopped; });
}

TEST_F(BrokerTest, InformsThoseWhoAskedThatItStopsAndAwaitsTheirSessions) {
  FakePeer peer(1);
  FakePeer other(2);
  const Leased lease = AcquireFor(peer, PrepareFor(peer));
  broker_->Handle(peer, Keep{7, lease.lease, 0, "report"});
  const size_t before = peer.Count<Answer>();
  broker_->Handle(peer, Ask{8, "await stop"});
  broker_->Handle(other, Ask{9, "await stop"});
  broker_->Handle(other, Forget{9});
  EXPECT_EQ(peer.Count<Answer>(), before);
  bool stopped = false;
  broker_->Stop(std::chrono::hours(1), [&] { stopped = true; });
  ASSERT_EQ(peer.Count<Answer>(), before + 1);
  EXPECT_EQ(peer.All<Answer>().back().request, 8u);
  EXPECT_GT(std::stoul(peer.All<Answer>().back().text), 3'000'000u);
  EXPECT_EQ(other.Count<Answer>(), 0u) << "it has forgotten what it asked";
  int turns = 0;
  RunUntil([&] { return ++turns > 40; });
  EXPECT_FALSE(stopped);
  broker_->Handle(other, Ask{10, "await stop"});
  EXPECT_EQ(other.Count<Answer>(), 1u) << "it stops already";
  broker_->Handle(peer, LeaseEnded{lease.lease, false, {}});  // the session is saved and closed
  RunUntil([&] { return stopped; });
}

TEST_F(BrokerTest, AnswersWhoAskedItToStopOnceItHasDrained) {
  FakePeer peer(1);
  const Leased lease = AcquireFor(peer, PrepareFor(peer));
  peer.Use(lease);
  FakePeer other(2);
  broker_->Handle(other, Ask{1, "stop 3600000"});
  int turns = 0;
  RunUntil([&] { return ++turns > 40; });
  EXPECT_EQ(other.Count<Answer>(), 0u);
  broker_->Handle(peer, LeaseEnded{lease.lease, false, {Ending::kReturned}});
  RunUntil([&] { return other.Count<Answer>() == 1; });
}

TEST_F(BrokerTest, StopsWhenTheTimeToDrainHasPassed) {
  FakePeer peer(1);
  AcquireFor(peer, PrepareFor(peer));
  bool stopped = false;
  broker_->Stop(milliseconds(1), [&] { stopped = true; });
  RunUntil([&] { return stopped; });
  EXPECT_GE(wardens_.retired, 0);
}

// ---- what agent.toml allows, and what is written down

TEST_F(BrokerTest, APolicyAboveTheCeilingIsRefusedBeforeAnythingIsBuilt) {
  AgentConfig config;
  config.ceiling.memory_mb = 512;
  config.ceiling.timeout_sec = 10;
  broker_->Configure(config);
  FakePeer peer(1);
  spec_.requirements = {"pandas"};  // would have to be built
  broker_->Handle(peer, Prepare{1, 60'000, spec_});
  ASSERT_EQ(peer.Count<Failed>(), 1u);
  EXPECT_NE(peer.All<Failed>()[0].message.find("timeout_sec=30 is above"), std::string::npos);
  broker_->Handle(peer, Prepare{2, 60'000, spec_, {.timeout_ms = 1000}});
  ASSERT_EQ(peer.Count<Failed>(), 2u);
  EXPECT_NE(peer.All<Failed>()[1].message.find("memory_mb=1024 is above"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(paths_.store_dir() + "/build"));
}

TEST_F(BrokerTest, AHostThatCannotHoldEachLimitHardIsRefusedWhereThatIsWanted) {
  FakePeer peer(1);
  Prepare prepare{1, 60'000, spec_};
  prepare.hard_limits = true;
  broker_->Handle(peer, prepare);
  ASSERT_EQ(peer.Count<Failed>(), 1u);
  EXPECT_EQ(peer.All<Failed>()[0].code, static_cast<int32_t>(Code::kPlatform));
}

TEST_F(BrokerTest, AMemoryThatNoQuotaHoldsIsRefusedAtOnce) {
  AgentConfig config;
  config.host.memory_mb = 1000;
  broker_->Configure(config);
  FakePeer peer(1);
  broker_->Handle(peer, Prepare{1, 60'000, spec_});
  ASSERT_EQ(peer.Count<Failed>(), 1u);
  EXPECT_NE(peer.All<Failed>()[0].hint.find("[host]"), std::string::npos);
}

TEST_F(BrokerTest, CallersWaitForTheHostsQuotaAndGetItWhenItComesFree) {
  AgentConfig config;
  config.host.cells = 1;
  broker_->Configure(config);
  FakePeer one(1), two(2);
  const std::string key = PrepareFor(one);
  const Leased first = AcquireFor(one, key);
  one.Use(first);
  broker_->Handle(two, Acquire{7, key, 60'000, false});
  int turns = 0;
  RunUntil([&] { return ++turns > 40; });
  EXPECT_EQ(two.Count<Leased>(), 0u);
  broker_->Handle(one, LeaseEnded{first.lease, false, {Ending::kReturned}});
  RunUntil([&] { return two.Count<Leased>() == 1; });
}

TEST_F(BrokerTest, ACellHeldAheadMakesRoomForACallThatWaits) {
  AgentConfig config;
  config.host.cells = 1;
  broker_->Configure(config);
  FakePeer one(1), two(2);
  const std::string key = PrepareFor(one);
  const Leased ahead = AcquireFor(one, key, true);
  AcquireFor(two, key);
  EXPECT_EQ(one.mark(ahead), MarkOf(ahead.lease, kLeaseReclaimed));
  broker_->Handle(one, Acquire{8, key, 60'000, true});
  ASSERT_EQ(one.Count<Failed>(), 1u) << "nobody waits for it, and the quota is full";
}

TEST_F(BrokerTest, MoreSessionsThanThereMayBeAreRefusedAtOnce) {
  AgentConfig config;
  config.host.sessions = 1;
  config.host.cells = 1;
  broker_->Configure(config);
  FakePeer one(1), two(2);
  const std::string key = PrepareFor(one);
  const Leased session = AcquireFor(one, key);
  one.Use(session);
  broker_->Handle(one, Keep{7, session.lease, 0, "an id"});
  RunUntil([&] { return one.Count<Answer>() == 1; });
  broker_->Handle(two, Acquire{8, key, 60'000, false, true});
  ASSERT_EQ(two.Count<Failed>(), 1u) << "before it waits for a cell";
  const Leased call = AcquireFor(two, key);  // the session is no cell of the quota
  broker_->Handle(two, Keep{9, call.lease, 0, "other"});
  ASSERT_EQ(two.Count<Failed>(), 2u);
  const Failed failed = two.All<Failed>()[1];
  EXPECT_EQ(failed.code, static_cast<int32_t>(Code::kBusy));
  EXPECT_EQ(failed.figures.at("sessions"), 1);
  EXPECT_EQ(failed.figures.at("capacity"), 1);
  EXPECT_NE(failed.message.find("1 of 1"), std::string::npos);
  EXPECT_NE(failed.hint.find("[host]"), std::string::npos);
  broker_->Handle(one, Ask{10, "sessions"});
  const json listed = json::parse(one.All<Answer>().back().text);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["id"], "an id");
  EXPECT_EQ(listed[0]["state"], "running");
  broker_->Handle(one, LeaseEnded{session.lease, true, {}});
  RunUntil([&] { return one.Count<Report>() == 1; });
  broker_->Handle(two, Keep{11, call.lease, 0, "other"});
  RunUntil([&] { return two.Count<Answer>() == 1; });
}

TEST_F(BrokerTest, ASessionsCallsAreWrittenDownWithTheirNumbers) {
  {
    AuditLog audit(loop_, paths_.run_dir + "/audit", {});
    broker_->WriteAuditTo(&audit);
    FakePeer peer(1);
    const std::string key = PrepareFor(peer);
    const Leased session = AcquireFor(peer, key);
    peer.Use(session);
    broker_->Handle(peer, Keep{7, session.lease, 0, "an id"});
    for (uint64_t id = 1; id <= 2; ++id) {
      broker_->Handle(peer, Executed{session.lease, {.ending = Ending::kReturned, .call_id = id}});
    }
    broker_.reset();
  }
  std::ifstream in(paths_.run_dir + "/audit/audit.jsonl");
  uint64_t calls = 0;
  for (std::string line; std::getline(in, line);) {
    const json entry = json::parse(line);
    if (entry["event"] != "call") continue;
    EXPECT_EQ(entry["session"], "an id");
    EXPECT_EQ(entry["number"], ++calls);
  }
  EXPECT_EQ(calls, 2u);
}

TEST_F(BrokerTest, AnIdThatNoSessionHasEndsItsClient) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  const Leased session = AcquireFor(peer, key);
  EXPECT_THROW(
      broker_->Handle(peer, Keep{7, session.lease, 0, std::string(kMaxSessionId + 1, 'x')}), Error);
}

TEST_F(BrokerTest, ATenantWithAllItsCellsKeepsNobodyElseWaiting) {
  AgentConfig config;
  config.tenants = {{.name = "batch", .labels = {{"team", "batch"}}, .cells = 1}};
  broker_->Configure(config);
  FakePeer batch(1), web(2);
  spec_.labels = {{"team", "batch"}};
  const std::string key = PrepareFor(batch);
  batch.Use(AcquireFor(batch, key));
  broker_->Handle(batch, Acquire{7, key, 60'000, false});
  spec_.labels = {{"team", "web"}};
  const std::string other = PrepareFor(web);
  AcquireFor(web, other);
  EXPECT_EQ(batch.Count<Leased>(), 1u);
}

TEST_F(BrokerTest, ATenantsOwnCeilingIsNotTheOthers) {
  AgentConfig config;
  config.tenants = {{.name = "batch", .labels = {{"team", "batch"}}, .ceiling = {.memory_mb = 64}}};
  broker_->Configure(config);
  FakePeer batch(1), web(2);
  PrepareFor(web);
  spec_.labels = {{"team", "batch"}};
  broker_->Handle(batch, Prepare{1, 60'000, spec_});
  ASSERT_EQ(batch.Count<Failed>(), 1u);
  EXPECT_NE(batch.All<Failed>()[0].hint.find("[tenants.batch.ceiling]"), std::string::npos);
}

TEST_F(BrokerTest, APoolOfAnotherConfigurationIsPreparedAgain) {
  FakePeer peer(1);
  const std::string key = PrepareFor(peer);
  const Leased used = AcquireFor(peer, key, true);
  peer.Use(used);
  const Leased held = AcquireFor(peer, key, true);
  AgentConfig config;
  config.ceiling.memory_mb = 64;
  broker_->Configure(config);
  EXPECT_EQ(peer.mark(used), MarkOf(used.lease, kLeaseUsed)) << "a call that runs goes on";
  EXPECT_EQ(peer.mark(held), MarkOf(held.lease, kLeaseReclaimed));
  broker_->Handle(peer, Acquire{7, key, 60'000, false});
  ASSERT_EQ(peer.Count<Failed>(), 1u);
  EXPECT_EQ(peer.All<Failed>()[0].code, static_cast<int32_t>(Code::kUnknownPool));
  broker_->Handle(peer, Prepare{2, 60'000, spec_});
  EXPECT_EQ(peer.Count<Failed>(), 2u);
}

TEST_F(BrokerTest, AMistakeInAFileThatIsReadAgainIsToldAndChangesNothing) {
  const std::string file = paths_.run_dir + "/agent.toml";
  broker_->ReadConfigFrom(file);
  const auto ask = [&](FakePeer& peer, const char* text) {
    std::ofstream(file) << text;
    broker_->Handle(peer, Ask{1, "reload"});
  };
  FakePeer peer(1);
  ask(peer, "[ceiling]\nmemory_mb = 64\n");
  EXPECT_EQ(peer.Count<Answer>(), 1u);
  ask(peer, "[ceiling]\nmemory = 8000\n");
  ASSERT_EQ(peer.Count<Failed>(), 1u);
  EXPECT_NE(peer.All<Failed>()[0].message.find("did you mean \"memory_mb\""), std::string::npos);
  broker_->Handle(peer, Prepare{2, 60'000, spec_});
  EXPECT_EQ(peer.Count<Failed>(), 2u);
}

TEST_F(BrokerTest, EachCallIsWrittenDownOnceWithWhatTheWardenSays) {
  std::vector<json> calls;
  {
    AuditLog audit(loop_, paths_.run_dir + "/audit", {});
    broker_->WriteAuditTo(&audit);
    spec_.labels = {{"team", "x"}};
    FakePeer peer(1), lost(2);
    const std::string key = PrepareFor(peer);
    const Leased one = AcquireFor(peer, key);
    peer.Use(one);
    broker_->Handle(peer, LeaseEnded{one.lease, true, {.ending = Ending::kReturned, .call_id = 1}});
    RunUntil([&] { return peer.Count<Report>() == 1; });
    const Leased unused = AcquireFor(peer, key, true);
    broker_->Handle(peer, LeaseEnded{unused.lease, true, {}});
    RunUntil([&] { return peer.Count<Report>() == 2; });
    const Leased untold = AcquireFor(peer, key);
    peer.Use(untold);
    broker_->Handle(peer,
                    LeaseEnded{untold.lease, true, {.ending = Ending::kUntold, .call_id = 2}});
    RunUntil([&] { return peer.Count<Report>() == 3; });
    const Leased abandoned = AcquireFor(lost, key);
    lost.Use(abandoned);
    broker_->Gone(lost);
    RunUntil([&] {
      broker_->Handle(peer, Ask{next_request_++, "status"});
      return json::parse(peer.All<Answer>().back().text)["leases"] == 0;
    });
    broker_.reset();
  }
  std::ifstream in(paths_.run_dir + "/audit/audit.jsonl");
  for (std::string line; std::getline(in, line);) {
    if (json::parse(line)["event"] == "call") calls.push_back(json::parse(line));
  }
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0]["status"], "returned");
  EXPECT_EQ(calls[0]["labels"]["team"], "x");
  EXPECT_EQ(calls[0]["call_id"], "0000000000000001");
  EXPECT_EQ(calls[1]["call_id"], "0000000000000002");
  EXPECT_NE(calls[1]["status"], "");
  EXPECT_EQ(calls[2]["status"], "cancelled");
}

// ---- with the server
// ---------------------------------------------------------------------------------------------

class ServerTest : public BrokerTest {
 protected:
  ServerTest() { server_.emplace(loop_, *broker_, ListenAt(paths_.agent_socket, 16), "test"); }
  ~ServerTest() override { server_.reset(); }

  Fd Greet() {
    Fd client = ConnectTo(paths_.agent_socket);
    SendMessage(client.get(), Hello{kWireVersion, 1});
    return client;
  }
  std::string PrepareOver(int client) {
    SendMessage(client, Prepare{1, 60'000, spec_});
    auto prepared = Receive(client);
    while (prepared && std::holds_alternative<Progress>(prepared->message))
      prepared = Receive(client);
    if (!prepared || !std::holds_alternative<PoolReady>(prepared->message)) {
      ADD_FAILURE() << "no pool was prepared";
      return "";
    }
    return std::get<PoolReady>(prepared->message).key;
  }
  // Waits for one answer, while the loop runs.
  std::optional<ReceivedMessage> Receive(int fd) {
    std::optional<ReceivedMessage> received;
    RunUntil([&] {
      try {
        received = ReceiveMessage(fd);
      } catch (const Error&) {
        return true;
      }
      return received.has_value();
    });
    return received;
  }
  std::optional<Server> server_;
};

TEST_F(ServerTest, WelcomesAClientWithItsTable) {
  const Fd client = ConnectTo(paths_.agent_socket);
  SendMessage(client.get(), Hello{kWireVersion, 1});
  const auto received = Receive(client.get());
  ASSERT_TRUE(received && std::holds_alternative<Welcome>(received->message));
  ASSERT_EQ(received->descriptors.size(), 1u);
  struct stat status;
  ASSERT_EQ(::fstat(received->descriptors[0].get(), &status), 0);
  EXPECT_EQ(static_cast<size_t>(status.st_size), kLeaseTableBytes);
}

TEST_F(ServerTest, TellsAnotherVersionSo) {
  const Fd client = ConnectTo(paths_.agent_socket);
  SendMessage(client.get(), Hello{kWireVersion + 1, 1});
  const auto received = Receive(client.get());
  ASSERT_TRUE(received && std::holds_alternative<Failed>(received->message));
  EXPECT_EQ(std::get<Failed>(received->message).code, static_cast<int32_t>(Code::kVersionMismatch));
}

TEST_F(ServerTest, DropsAClientThatTalksNonsenseAndNobodyElse) {
  const Fd good = ConnectTo(paths_.agent_socket);
  SendMessage(good.get(), Hello{kWireVersion, 1});
  ASSERT_TRUE(Receive(good.get()));
  for (const std::string& bytes :
       {std::string("I\xff\xff\xff\xff"), std::string("M"), std::string(50'000, 'x')}) {
    const Fd bad = ConnectTo(paths_.agent_socket);
    const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    SendDatagram(bad.get(), {&part, 1});
    EXPECT_FALSE(Receive(bad.get()));
  }
  const Fd silent = ConnectTo(paths_.agent_socket);
  SendMessage(silent.get(), Ask{1, "status"});  // before any hello
  EXPECT_FALSE(Receive(silent.get()));
  SendMessage(good.get(), Ask{7, "status"});
  const auto answer = Receive(good.get());
  ASSERT_TRUE(answer && std::holds_alternative<Answer>(answer->message));
}

TEST_F(ServerTest, DropsAClientThatSendsDescriptorsOfNoUse) {
  const Fd good = Greet();
  ASSERT_TRUE(Receive(good.get()));
  const auto open_now = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  const auto open_before = open_now();
  const auto send = [](int socket, std::string_view bytes, const std::vector<int>& descriptors) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors.size()));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
    ASSERT_GE(::sendmsg(socket, &message, MSG_NOSIGNAL), 0);
  };
  const auto [pipe_read, pipe_write] = MakePipe();
  const Fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const Fd huge(::memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(huge.get(), 1l << 40), 0);
  ASSERT_EQ(::fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  const std::string hello = "I" + EncodeMessage(Hello{kWireVersion, 1});
  const std::pair<std::string, std::vector<int>> bad[] = {
      {"M", {pipe_read.get()}},
      {"M", {good.get()}},
      {"M", {unsealed.get()}},
      {"M", {huge.get()}},
      {hello, std::vector<int>(253, pipe_read.get())},
  };
  for (const auto& [bytes, descriptors] : bad) {
    const Fd client = ConnectTo(paths_.agent_socket);
    send(client.get(), bytes, descriptors);
    EXPECT_FALSE(Receive(client.get())) << bytes[0] << descriptors.size();
  }
  EXPECT_EQ(open_now(), open_before + 4) << "only the four made here";
  SendMessage(good.get(), Ask{7, "status"});
  EXPECT_TRUE(Receive(good.get()));
}

TEST_F(ServerTest, ShortOfDescriptorsItTellsANewClientSoAndServesTheOthers) {
  const Fd old = Greet();
  ASSERT_TRUE(Receive(old.get()));
  ScarceDescriptors scarce(256);
  scarce.TakeBelow(ConnectionsBelow(256));
  for (int i = 0; i < 100; ++i) {  // each is turned away, and leaves nothing
    const Fd late = Greet();
    const auto received = Receive(late.get());
    ASSERT_TRUE(received && std::holds_alternative<Failed>(received->message));
    const Failed& failed = std::get<Failed>(received->message);
    ASSERT_EQ(failed.code, static_cast<int32_t>(Code::kBusy));
    ASSERT_EQ(failed.figures.at("queued"), 1);
    ASSERT_NE(failed.message.find("256"), std::string::npos);
    ASSERT_FALSE(Receive(late.get())) << "and the connection ends";
  }
  SendMessage(old.get(), Ask{7, "status"});
  const auto answer = Receive(old.get());
  EXPECT_TRUE(answer && std::holds_alternative<Answer>(answer->message));
  scarce.GiveBack();
  const Fd next = Greet();
  const auto welcome = Receive(next.get());
  EXPECT_TRUE(welcome && std::holds_alternative<Welcome>(welcome->message));
}

TEST_F(ServerTest, TurnsClientsAwayBeyondAsManyAsThereMayBe) {
  if (RaiseDescriptorLimit() < 4096) GTEST_SKIP() << "this process may not open as many sockets";
  std::vector<Fd> clients;
  for (int i = 0; i < 1024; ++i) {
    clients.push_back(Greet());
    ASSERT_TRUE(Receive(clients.back().get()));
  }
  const Fd late = Greet();
  const auto received = Receive(late.get());
  ASSERT_TRUE(received && std::holds_alternative<Failed>(received->message));
  EXPECT_EQ(std::get<Failed>(received->message).figures.at("capacity"), 1024);
  clients.pop_back();
  bool welcome = false;
  for (int attempt = 0; attempt < 100 && !welcome; ++attempt) {  // until it sees that one is gone
    const Fd next = Greet();
    const auto answer = Receive(next.get());
    welcome = answer && std::holds_alternative<Welcome>(answer->message);
  }
  EXPECT_TRUE(welcome);
}

// Descriptors that lie unread in sockets count against the limit of their sender's user.
TEST_F(ServerTest, ALeaseThatCannotBeSentNowIsSentLater) {
  const Fd client = Greet();
  ASSERT_TRUE(Receive(client.get()));
  const std::string key = PrepareOver(client.get());
  for (bool parked = false; !parked;) {
    SendMessage(client.get(), Ask{1, "status"});
    const auto status = Receive(client.get());
    ASSERT_TRUE(status);
    parked = std::get<Answer>(status->message).text.find("\"ready\":1") != std::string::npos;
  }
  const auto [ours, theirs] = MakeSocketPair();
  {
    const ScarceDescriptors scarce(256);
    const Unprivileged unprivileged;
    const std::vector<int> many(16, client.get());
    char byte = 'x';
    const iovec part{&byte, 1};
    SendStatus status = SendStatus::kSent;
    for (int i = 0; i < 40 && status == SendStatus::kSent; ++i)
      status = SendDatagram(ours.get(), {&part, 1}, many);
    if (status == SendStatus::kSent) GTEST_SKIP() << "this kernel does not count them";
    ASSERT_EQ(status, SendStatus::kNoDescriptors);
    SendMessage(client.get(), Acquire{2, key, 60'000, false});
    SendMessage(client.get(), Ask{3, "status"});
    loop_.After(milliseconds(50), [this] { loop_.Stop(); });
    loop_.Run();
    EXPECT_FALSE(ReceiveMessage(client.get())) << "what follows the lease does not overtake it";
    std::vector<char> buffer(16);
    std::vector<Fd> read;
    while (ReceiveDatagram(theirs.get(), buffer, &read, 16).status == ReceiveStatus::kData)
      read.clear();
    const auto leased = Receive(client.get());
    ASSERT_TRUE(leased && std::holds_alternative<Leased>(leased->message));
    EXPECT_EQ(leased->descriptors.size(), 3u);
    const auto answer = Receive(client.get());
    EXPECT_TRUE(answer && std::holds_alternative<Answer>(answer->message));
  }
  EXPECT_EQ(wardens_.connected, 1) << "the worker was not given up for it";
}

TEST_F(ServerTest, KillsTheCellsOfAClientThatIsGone) {
  Fd client = ConnectTo(paths_.agent_socket);
  SendMessage(client.get(), Hello{kWireVersion, 1});
  ASSERT_TRUE(Receive(client.get()));
  SendMessage(client.get(), Acquire{2, PrepareOver(client.get()), 60'000, false});
  const auto leased = Receive(client.get());
  ASSERT_TRUE(leased && std::holds_alternative<Leased>(leased->message));
  EXPECT_EQ(leased->descriptors.size(), 3u);
  client.reset();
  RunUntil([&] { return wardens_.cells_ended == 1; });
}

}  // namespace
}  // namespace hutch
