// SPDX-License-Identifier: Apache-2.0

// Spares, and a Pool that takes them, against a fake libpod whose containers are scripted wardens.
#include "pool/spares.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "pool/pool.h"
#include "tests/faults/fake_warden.h"

namespace hutch {
namespace {

using std::chrono::milliseconds;

class SparesTest : public ::testing::Test {
 protected:
  SparesTest()
      : paths_(MakePaths()),
        wardens_(paths_.worker_dir()),
        podman_(wardens_.podman_socket()),
        background_(std::in_place, 1),
        spares_(std::in_place, Spares::Context{loop_, podman_, *background_, paths_, "generation",
                                               [] { return ::getuid(); }}) {
    spec_.base_id = "base";
    spec_.runtime_id = "runtime";
    spec_.warm = 1;
    spec_.max_cells = 2;
  }
  ~SparesTest() override {
    pool_.reset();
    spares_.reset();
    RunUntil([&] { return wardens_.containers().count() == 0; });
    background_.reset();
    std::filesystem::remove_all(paths_.run_dir);
  }
  static Paths MakePaths() {
    char name[] = "/tmp/hutch-spares-XXXXXX";
    Paths paths;
    paths.run_dir = ::mkdtemp(name);
    paths.state_dir = paths.run_dir + "/state";
    return paths;
  }
  Pool& MakePool() {
    Pool::Context context{
        loop_,
        podman_,
        *background_,
        paths_,
        "generation",
        2,
        [](uint64_t, const CellReport&) {},
        [](uint64_t, SessionEvent) {},
        [](Pool&, const std::string*) { return false; },
        [](uint64_t) { return true; },
        queues_,
        [] { return ::getuid(); },
        [this](const PoolSpec& s) { return spares_->Take(s.base_id, s.runtime_id); }};
    pool_ = std::make_unique<Pool>(std::move(context), "0123456789", spec_, environment_);
    return *pool_;
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
  std::string WorkerOfACall() {
    std::string worker;
    pool_->Acquire(
        1, std::chrono::hours(1), false, [&](LeasedCell grant) { worker = grant.worker; },
        [&](const Error& error) { worker = error.what(); });
    RunUntil([&] { return !worker.empty(); });
    return worker;
  }

  PoolSpec spec_;
  Environment environment_;
  Paths paths_;
  Loop loop_;
  QueuesInAll queues_;
  FakeWardens wardens_;
  Podman podman_;
  std::optional<Background> background_;
  std::optional<Spares> spares_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(SparesTest, ASpareWaitsUnconfiguredAndServesThePoolThatTakesIt) {
  spares_->Keep("base", "runtime");
  RunUntil([&] { return wardens_.connected == 1; });
  EXPECT_EQ(wardens_.configured, 0);
  MakePool();
  EXPECT_TRUE(WorkerOfACall().starts_with("hutch-worker-spare-"));
  EXPECT_EQ(wardens_.configured, 1);
}

TEST_F(SparesTest, OneThatIsStillStartingIsTakenToo) {
  spares_->Keep("base", "runtime");
  MakePool();
  EXPECT_TRUE(WorkerOfACall().starts_with("hutch-worker-spare-"));
}

TEST_F(SparesTest, AnotherOneTakesItsPlace) {
  spares_->Keep("base", "runtime");
  MakePool();
  WorkerOfACall();
  EXPECT_EQ(spares_->size(), 0u);
  RunUntil([&] { return wardens_.connected == 2; });
  EXPECT_EQ(spares_->size(), 1u);
}

TEST_F(SparesTest, IsToldOfThePackagesAndGivenTheModulesOfItsPool) {
  spares_->Keep("base", "runtime");
  spec_.requirements = {"pandas"};
  spec_.modules["m.py"] = "x = 1";
  environment_.digest = std::string(64, 'a');
  environment_.tree_dir = paths_.environment_dir() + "/" + environment_.digest + "/tree";
  MakePool();
  const std::string worker = WorkerOfACall();
  EXPECT_TRUE(worker.starts_with("hutch-worker-spare-"));
  EXPECT_TRUE(std::filesystem::exists(paths_.worker_dir() + "/" + worker + "/modules/m.py"));
  const std::string told = '\0' + wardens_.last_config();
  EXPECT_NE(told.find('\0' + ("HUTCH_ENVIRONMENT=" + environment_.digest) + '\0'),
            std::string::npos);
}

TEST_F(SparesTest, IsToldOfNoPackagesWhereItsPoolWantsNone) {
  spares_->Keep("base", "runtime");
  environment_.digest = std::string(64, 'a');  // of the empty set
  MakePool();
  EXPECT_TRUE(WorkerOfACall().starts_with("hutch-worker-spare-"));
  EXPECT_EQ(wardens_.last_config().find("HUTCH_ENVIRONMENT"), std::string::npos);
}

TEST_F(SparesTest, IsNotForPackagesThatLieElsewhereNorForMounts) {
  spares_->Keep("base", "runtime");
  spec_.venv = {MountSpec{}};
  environment_.digest = std::string(64, 'a');
  environment_.tree_dir = "/home/somebody/venv";
  MakePool();
  EXPECT_TRUE(WorkerOfACall().starts_with("hutch-worker-01234567-"));
  spec_.venv.clear();
  spec_.mounts = {MountSpec{}};
  MakePool();
  EXPECT_TRUE(WorkerOfACall().starts_with("hutch-worker-01234567-"));
  EXPECT_EQ(spares_->size(), 1u);
}

TEST_F(SparesTest, IsNotForAnotherBaseOrOtherWorkerFiles) {
  spares_->Keep("base", "runtime");
  EXPECT_EQ(spares_->Take("another", "runtime"), nullptr);
  EXPECT_EQ(spares_->Take("base", "another"), nullptr);
  EXPECT_NE(spares_->Take("base", "runtime"), nullptr);
  EXPECT_EQ(spares_->Take("base", "runtime"), nullptr) << "there was one";
}

TEST_F(SparesTest, OneThatDiesIsReplaced) {
  spares_->Keep("base", "runtime");
  RunUntil([&] { return wardens_.connected == 1; });
  wardens_.KillAll();
  RunUntil([&] { return spares_->size() == 0; });
  RunUntil([&] { return spares_->size() == 1; });
}

TEST_F(SparesTest, OneThatDiesAfterItIsTakenIsReplacedByAWorkerOfThePoolsOwn) {
  wardens_.Behave(WardenWay::kZygoteDies);
  spares_->Keep("base", "runtime");
  RunUntil([&] { return wardens_.connected == 1; });
  wardens_.Behave(WardenWay::kHonest);
  MakePool();
  EXPECT_TRUE(WorkerOfACall().starts_with("hutch-worker-01234567-"));
  EXPECT_EQ(pool_->GetStats().start_failures, 0u);
}

TEST_F(SparesTest, AStartFailsWhenThePoolsOwnWorkerDiesToo) {
  wardens_.Behave(WardenWay::kZygoteDies);
  spares_->Keep("base", "runtime");
  MakePool();
  EXPECT_TRUE(WorkerOfACall().starts_with("a worker could not be started: "));
  EXPECT_EQ(pool_->GetStats().worker_failures, 2u);
}

TEST_F(SparesTest, OneThatSaysItIsReadyUnaskedIsOfNoUse) {
  wardens_.Behave(WardenWay::kReadyUnasked);
  spares_->Keep("base", "runtime");
  RunUntil([&] { return spares_->size() == 0; });
}

TEST_F(SparesTest, RetiredItKeepsNone) {
  spares_->Keep("base", "runtime");
  RunUntil([&] { return wardens_.connected == 1; });
  spares_->Retire();
  RunUntil([&] { return wardens_.containers().count() == 0; });
  EXPECT_EQ(spares_->Take("base", "runtime"), nullptr);
}

}  // namespace
}  // namespace hutch
