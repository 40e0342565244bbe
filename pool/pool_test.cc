// SPDX-License-Identifier: Apache-2.0

// A Pool and its Workers against a fake libpod whose containers are scripted wardens on real
// sockets.
#include "pool/pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <latch>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "loop/descriptors.h"
#include "tests/faults/fake_warden.h"
#include "tests/faults/scarce.h"

namespace hutch {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class PoolTest : public ::testing::Test {
 protected:
  static constexpr int kThreads = 2;

  PoolTest()
      : paths_(MakePaths()), wardens_(paths_.worker_dir()), podman_(wardens_.podman_socket()) {
    spec_.warm = 1;
    spec_.max_cells = 4;
    spec_.idle_sec = 3600;
  }
  ~PoolTest() override {
    Drop();
    std::filesystem::remove_all(paths_.run_dir);
  }
  static Paths MakePaths() {
    char name[] = "/tmp/hutch-pool-XXXXXX";
    Paths paths;
    paths.run_dir = ::mkdtemp(name);
    paths.state_dir = paths.run_dir + "/state";
    return paths;
  }

  Pool& MakePool() {
    background_.emplace(kThreads);
    Pool::Context context{
        loop_,
        podman_,
        *background_,
        paths_,
        "generation",
        2,
        [this](uint64_t cell, const CellReport&) { gone_.insert(cell); },
        [](uint64_t, SessionEvent) {},
        [this](Pool& pool, const std::string* worker) { return Reclaim(pool, worker); },
        [this](uint64_t caller) { return !full_callers_.contains(caller); },
        queues_,
        [this] { return uid_; }};
    if (open_network_) {
      context.open_network = [this](uint64_t cell, const PoolSpec&, Fd) { open_network_(cell); };
      context.close_network = [](uint64_t) {};
    }
    context.idle_sec = [this] { return host_idle_sec_; };
    pool_ = std::make_unique<Pool>(std::move(context), "0123456789", spec_, Environment{});
    return *pool_;
  }
  // Destroys the pool and waits until what that left for the background is done.
  void Drop() {
    std::latch met(kThreads);
    pool_.reset();
    if (background_) {
      // All threads meet here, so all that was posted before is done: a container that is just
      // being made is removed by a later one, which must not be lost with the queue.
      for (int i = 0; i < kThreads; ++i) background_->Post([&met] { met.arrive_and_wait(); });
      RunUntil([&] { return met.try_wait() && wardens_.containers().count() == 0; });
    }
    background_.reset();
  }
  bool Reclaim(Pool& pool, const std::string* worker) {
    for (auto it = ahead_.begin(); it != ahead_.end(); ++it) {
      if (worker != nullptr && it->second != *worker) continue;
      const uint64_t cell = it->first;
      ahead_.erase(it);
      ++reclaimed_;
      pool.TakeBack(cell);
      return true;
    }
    return false;
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
  uint64_t Ask(bool ahead = false, Clock::duration patience = hours(1), uint64_t caller = 1) {
    return pool_->Acquire(
        caller, patience, ahead,
        [this, ahead, caller](LeasedCell grant) {
          served_.push_back(caller);
          workers_.insert(grant.worker);
          ++calls_[grant.worker];
          if (ahead) ahead_[grant.cell] = grant.worker;
          grants_.push_back(std::move(grant));
        },
        [this](const Error& error) { refusals_.push_back(error); });
  }
  LeasedCell* Await() {
    const size_t before = grants_.size();
    Ask();
    RunUntil([&] { return grants_.size() > before || !refusals_.empty(); });
    return grants_.size() > before ? &grants_.back() : nullptr;
  }

  PoolSpec spec_;
  Paths paths_;
  unsigned uid_ = ::getuid();
  double host_idle_sec_ = 0;
  Loop loop_;
  FakeWardens wardens_;
  Podman podman_;
  std::optional<Background> background_;
  std::unique_ptr<Pool> pool_;
  QueuesInAll queues_;
  std::function<void(uint64_t cell)> open_network_;
  std::set<uint64_t> full_callers_;
  std::vector<uint64_t> served_;  // callers, in the order in which they got a cell
  std::deque<LeasedCell> grants_;
  std::vector<Error> refusals_;
  std::set<std::string> workers_;
  std::map<std::string, uint64_t> calls_;
  std::map<uint64_t, std::string> ahead_;
  std::set<uint64_t> gone_;
  int reclaimed_ = 0;
};

TEST_F(PoolTest, GivesACellOfAWorkerThatItStarts) {
  MakePool();
  LeasedCell* grant = Await();
  ASSERT_NE(grant, nullptr);
  EXPECT_TRUE(grant->channels.socket && grant->channels.out && grant->channels.err);
  EXPECT_TRUE(grant->worker.starts_with("hutch-worker-01234567-"));
  EXPECT_EQ(pool_->GetStats().leased, 1u);
}

TEST_F(PoolTest, AReleasedCellDiesAndAnotherTakesItsPlace) {
  MakePool();
  const uint64_t cell = Await()->cell;
  pool_->OrdersFor(cell)->Arm(1000, 0);
  pool_->Release(cell);
  RunUntil([&] { return gone_.contains(cell) && pool_->GetStats().ready > 0; });
  EXPECT_EQ(wardens_.armed, 1);
  EXPECT_EQ(pool_->GetStats().leased, 0u);
  EXPECT_NE(Await()->cell, cell);
}

TEST_F(PoolTest, ReplacesAWorkerWhoseWardenIsSilent) {
  wardens_.Behave(WardenWay::kDeaf);
  MakePool();
  const LeasedCell* held = Await();
  ASSERT_NE(held, nullptr);
  const std::string frozen = held->worker;
  const uint64_t cell = held->cell;
  wardens_.Behave(WardenWay::kHonest);
  for (int i = 0; i < 3; ++i) pool_->Look(kWholeLook);
  EXPECT_FALSE(gone_.contains(cell));
  pool_->Look(kWholeLook);
  EXPECT_TRUE(gone_.contains(cell)) << "nobody watches a cell whose warden is frozen";
  EXPECT_NE(Await()->worker, frozen);
}

TEST_F(PoolTest, KeepsAWorkerWhoseWardenAnswers) {
  MakePool();
  const std::string name = Await()->worker;
  for (int i = 1; i <= 20; ++i) {
    pool_->Look(kWholeLook);
    RunUntil([&] { return wardens_.pings >= i; });
    bool turned = false;  // the answer is read before the next look
    loop_.After(milliseconds(20), [&] { turned = true; });
    RunUntil([&] { return turned; });
  }
  EXPECT_EQ(Await()->worker, name);
}

TEST_F(PoolTest, ALookOfOneWhoWasHeldUpHimselfProvesNothing) {
  wardens_.Behave(WardenWay::kDeaf);
  MakePool();
  const std::string name = Await()->worker;
  for (int i = 0; i < 1000; ++i) pool_->Look(0);
  EXPECT_EQ(Await()->worker, name);
}

TEST_F(PoolTest, GivesNoCellTwice) {
  MakePool();
  std::set<uint64_t> cells;
  for (int i = 0; i < 20; ++i) {
    const uint64_t cell = Await()->cell;
    EXPECT_TRUE(cells.insert(cell).second);
    if (i % 2 == 0) pool_->Release(cell);
    if (i % 2 == 1) pool_->Release(*cells.begin()), pool_->Release(cell);
  }
}

TEST_F(PoolTest, ServesWhoWaitsBeforeWhoOnlyLooksAhead) {
  spec_.max_cells = 1;
  MakePool();
  const uint64_t cell = Await()->cell;
  Ask(true);
  Ask(false);
  pool_->Release(cell);
  RunUntil([&] { return grants_.size() == 2; });
  EXPECT_TRUE(ahead_.empty());
}

TEST_F(PoolTest, TakesBackWhatWasLeasedAheadForWhoWaits) {
  spec_.max_cells = 1;
  MakePool();
  Ask(true);
  RunUntil([&] { return grants_.size() == 1; });
  EXPECT_NE(Await(), nullptr);
  EXPECT_EQ(reclaimed_, 1);
}

TEST_F(PoolTest, SaysThatNoCellCameFree) {
  spec_.max_cells = 1;
  MakePool();
  ASSERT_NE(Await(), nullptr);
  Ask(false, milliseconds(1));
  RunUntil([&] { return !refusals_.empty(); });
  EXPECT_EQ(refusals_[0].code(), Code::kBusy);
  EXPECT_GE(refusals_[0].figures().at("capacity"), 1);
}

TEST_F(PoolTest, ServesCallersInTurn) {
  spec_.max_cells = 1;
  MakePool();
  const uint64_t cell = Await()->cell;
  for (int i = 0; i < 50; ++i) Ask(false, hours(1), 7);
  Ask(false, hours(1), 8);
  for (size_t turn = 2; turn <= 3; ++turn) {
    pool_->Release(turn == 2 ? cell : grants_.back().cell);
    RunUntil([&] { return grants_.size() == turn; });
  }
  EXPECT_EQ(std::ranges::count(served_, 8u), 1)
      << "one call behind fifty of another waited for one";
}

TEST_F(PoolTest, ASessionTakesNoCellFromCalls) {
  spec_.max_cells = 1;
  MakePool();
  std::set<uint64_t> sessions;
  for (int i = 0; i < 5; ++i) {
    const LeasedCell* grant = Await();
    ASSERT_NE(grant, nullptr);
    sessions.insert(grant->cell);
    pool_->Keep(grant->cell);
  }
  EXPECT_EQ(pool_->GetStats().sessions, 5u);
  const uint64_t call = Await()->cell;
  Ask(false, milliseconds(5));
  RunUntil([&] { return refusals_.size() == 1; });
  EXPECT_NE(std::string(refusals_[0].what()).find("1 of 1 cells"), std::string::npos);
  pool_->Release(call);
  pool_->Release(*sessions.begin());
  RunUntil([&] { return gone_.size() == 2; });
  EXPECT_EQ(pool_->GetStats().sessions, 4u);
}

TEST_F(PoolTest, AWorkerThatIsReplacedStaysForItsSessions) {
  spec_.max_calls = 2;
  MakePool();
  const LeasedCell session = std::move(*Await());
  pool_->Keep(session.cell);
  for (int i = 0; i < 3; ++i) {
    const uint64_t cell = Await()->cell;
    pool_->Release(cell);
    RunUntil([&] { return gone_.contains(cell); });
  }
  EXPECT_GE(workers_.size(), 2u);
  EXPECT_FALSE(gone_.contains(session.cell));
  const auto has_worker = [&] {
    return std::ranges::count(pool_->GetStats().worker_names, session.worker) == 1;
  };
  RunUntil([&] { return pool_->GetStats().workers == 2; });
  EXPECT_TRUE(has_worker());
  pool_->Release(session.cell);
  RunUntil([&] { return !has_worker(); });
}

TEST_F(PoolTest, AFullQueueSaysSoWithItsNumbers) {
  spec_.max_cells = 1;
  queues_.capacity = 3;
  MakePool();
  const uint64_t cell = Await()->cell;
  for (int i = 0; i < 4; ++i) Ask(false, hours(1), 7);
  ASSERT_EQ(refusals_.size(), 1u) << "three wait";
  EXPECT_EQ(refusals_[0].code(), Code::kBusy);
  EXPECT_EQ(refusals_[0].figures().at("queued"), 3);
  EXPECT_EQ(refusals_[0].figures().at("capacity"), 1);
  EXPECT_EQ(refusals_[0].figures().at("waited_sec"), 0);
  EXPECT_NE(refusals_[0].hint(), "");
  Ask(false, hours(1), 8);
  EXPECT_EQ(refusals_.size(), 1u) << "another caller's one call has a place all the same";
  pool_->Release(cell);
  RunUntil([&] { return grants_.size() == 2; });
}

TEST_F(PoolTest, GivesNothingToWhoseTimeHasPassed) {
  spec_.max_cells = 1;
  MakePool();
  const uint64_t cell = Await()->cell;
  Ask(false, milliseconds(5));
  Ask();
  pool_->Release(cell);
  // The loop stands still meanwhile: the timer and the new cell are due at once.
  std::this_thread::sleep_for(milliseconds(50));
  RunUntil([&] { return grants_.size() == 2; });
  EXPECT_EQ(refusals_.size(), 1u);
}

TEST_F(PoolTest, RefusesEachAtItsOwnDeadlineWhateverTheOrder) {
  spec_.max_cells = 1;
  MakePool();
  ASSERT_NE(Await(), nullptr);
  Ask(false, milliseconds(40), 7);
  Ask(false, milliseconds(5), 8);
  pool_->Forget(Ask(false, milliseconds(1), 9));
  Ask(true, milliseconds(20), 9);
  RunUntil([&] { return refusals_.size() == 3; });
  EXPECT_EQ(pool_->GetStats().waiting, 0u);
  EXPECT_EQ(queues_.waiting, 0u);
}

TEST_F(PoolTest, ServesOthersWhileACallerCanHoldNoMore) {
  spec_.max_cells = 1;
  MakePool();
  const uint64_t cell = Await()->cell;
  full_callers_ = {7};
  Ask(false, hours(1), 7);
  Ask(false, hours(1), 8);
  pool_->Release(cell);
  RunUntil([&] { return grants_.size() == 2; });
  EXPECT_EQ(served_.back(), 8u);
  full_callers_.clear();
  pool_->Release(grants_.back().cell);
  RunUntil([&] { return grants_.size() == 3; });
  EXPECT_EQ(served_.back(), 7u);
}

TEST_F(PoolTest, ShortOfDescriptorsItRefusesAndKeepsItsWorker) {
  spec_.max_cells = 1;
  MakePool();
  const LeasedCell* grant = Await();
  const std::string worker = grant->worker;
  ScarceDescriptors scarce(256);
  scarce.TakeBelow(CellsBelow(256));
  pool_->Release(grant->cell);
  RunUntil([&] { return gone_.size() == 1; });
  EXPECT_EQ(Await(), nullptr);
  ASSERT_EQ(refusals_.size(), 1u);
  EXPECT_EQ(refusals_[0].code(), Code::kBusy);
  EXPECT_NE(std::string(refusals_[0].what()).find("256"), std::string::npos);
  EXPECT_EQ(refusals_[0].figures().at("capacity"), 1);
  EXPECT_EQ(pool_->GetStats().workers, 1u);
  scarce.GiveBack();
  refusals_.clear();
  grant = Await();
  ASSERT_NE(grant, nullptr) << "the capacity is back";
  EXPECT_EQ(grant->worker, worker) << "nothing that worked was given up";
}

TEST_F(PoolTest, WhoWaitsWhileDescriptorsAreShortIsServedWhenTheyAreBack) {
  spec_.max_cells = 1;
  MakePool();
  const uint64_t cell = Await()->cell;
  Ask();
  ScarceDescriptors scarce(256);
  scarce.TakeBelow(CellsBelow(256));
  pool_->Release(cell);
  RunUntil([&] { return gone_.size() == 1; });
  scarce.GiveBack();
  pool_->Tick();
  RunUntil([&] { return grants_.size() == 2; });
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(PoolTest, ShortOfDescriptorsItStartsNoWorker) {
  MakePool();
  {
    ScarceDescriptors scarce(256);
    scarce.TakeBelow(CellsBelow(256));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Await(), nullptr);
      EXPECT_EQ(refusals_.back().code(), Code::kBusy);
      refusals_.clear();
    }
    EXPECT_EQ(wardens_.containers().created(), 0);
  }
  EXPECT_NE(Await(), nullptr) << "at once: it was no failure of a worker";
}

TEST_F(PoolTest, NobodyGetsACellThatWasDiscardedBeforeOrAfterItWasReady) {
  spec_.allow_network = {"a.test:443"};
  spec_.warm = 2;
  std::vector<uint64_t> opened;
  open_network_ = [&](uint64_t cell) {
    opened.push_back(cell);
    if (opened.size() == 1) pool_->Discard(cell);  // it is just being made
  };
  MakePool();
  const LeasedCell* grant = Await();
  ASSERT_NE(grant, nullptr);
  EXPECT_NE(grant->cell, opened[0]);
  RunUntil([&] { return pool_->GetStats().ready == 2; });
  const std::set<uint64_t> parked(opened.begin(), opened.end());
  for (const uint64_t cell : parked) {
    if (cell != grant->cell) pool_->Discard(cell);
  }
  EXPECT_EQ(pool_->GetStats().ready, 0u);
  EXPECT_FALSE(parked.contains(Await()->cell));
  EXPECT_EQ(pool_->GetStats().worker_failures, 0u);
}

TEST_F(PoolTest, ForgetsWhoGaveUp) {
  spec_.max_cells = 1;
  MakePool();
  const uint64_t cell = Await()->cell;
  pool_->Forget(Ask());
  pool_->Forget(12345);
  pool_->Release(cell);
  RunUntil([&] { return pool_->GetStats().ready == 1; });
  EXPECT_EQ(grants_.size(), 1u);
}

TEST_F(PoolTest, FailsWhoWaitsWhenAContainerCannotBeMade) {
  wardens_.containers().FailCreates(true);
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  EXPECT_EQ(refusals_.at(0).code(), Code::kWorkerFailed);
  wardens_.containers().FailCreates(false);
  refusals_.clear();
  EXPECT_NE(Await(), nullptr) << "a later call tries again";
}

TEST_F(PoolTest, FailsWhoWaitsWhenAWorkersDirectoryCannotBeMade) {
  std::filesystem::remove_all(paths_.worker_dir());
  {
    const Fd file(::creat(paths_.worker_dir().c_str(), 0600));
  }
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  EXPECT_EQ(refusals_.at(0).code(), Code::kWorkerFailed);
}

TEST_F(PoolTest, RefusesAnEnvironmentVariableThatIsNoText) {
  spec_.env["X"] = "\xff";
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  EXPECT_EQ(refusals_.at(0).code(), Code::kInvalidArgument);
}

TEST_F(PoolTest, RefusesAnEnvironmentLargerThanAWardenIsTold) {
  spec_.env["X"] = std::string(kMaxConfig, 'x');
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  EXPECT_EQ(refusals_.at(0).code(), Code::kInvalidArgument);
}

TEST_F(PoolTest, BelievesNoWardenWithAnotherToken) {
  wardens_.Behave(WardenWay::kWrongToken);
  MakePool();
  EXPECT_EQ(Await(), nullptr);
}

TEST_F(PoolTest, BelievesNoWardenThatDoesNotSayWhoItIs) {
  wardens_.Behave(WardenWay::kNoHello);
  MakePool();
  EXPECT_EQ(Await(), nullptr);
}

TEST_F(PoolTest, EndsAWardenThatSaysWhoItIsWithoutEnd) {
  wardens_.Behave(WardenWay::kHelloForever);
  MakePool();
  EXPECT_EQ(Await(), nullptr);
}

TEST_F(PoolTest, TurnsAwayAPeerOfAnotherUid) {
  uid_ = ::getuid() + 1;
  MakePool();
  Ask();
  RunUntil([&] { return wardens_.turned_away == 1; });
  EXPECT_TRUE(grants_.empty());
}

TEST_F(PoolTest, AWorkersLastWordsAreMadePrintable) {
  wardens_.Behave(WardenWay::kZygoteDies);
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  for (const char c : pool_->GetStats().last_failure)
    EXPECT_TRUE(c >= 0x20 && c <= 0x7e) << static_cast<int>(c);
}

TEST_F(PoolTest, CellsThatCannotBeMadeAreAFailureAndNoLoop) {
  wardens_.Behave(WardenWay::kFailsCells);
  spec_.warm = 4;
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  EXPECT_LE(wardens_.cells_made, 64) << "16 in a row, of the worker and of its replacement";
}

TEST_F(PoolTest, CellsThatEndBeforeTheyAreReadyAreAFailureAndNoLoop) {
  wardens_.Behave(WardenWay::kEndsCellsUnready);
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  EXPECT_LE(wardens_.cells_made, 64);
}

TEST_F(PoolTest, AWorkerThatDiesTakesItsCellsAndIsReplaced) {
  MakePool();
  const LeasedCell* grant = Await();
  const uint64_t cell = grant->cell;
  const std::string worker = grant->worker;
  wardens_.KillAll();
  RunUntil([&] { return gone_.contains(cell); });
  const LeasedCell* next = Await();
  ASSERT_NE(next, nullptr);
  EXPECT_NE(next->worker, worker);
}

TEST_F(PoolTest, NoWorkerServesMoreCallsThanItMay) {
  spec_.max_calls = 3;
  MakePool();
  for (int i = 0; i < 12; ++i) {
    const LeasedCell* grant = Await();
    ASSERT_NE(grant, nullptr);
    pool_->Release(grant->cell);
    pool_->Tick();
  }
  for (const auto& [worker, calls] : calls_) EXPECT_LE(calls, 3u);
  EXPECT_GE(workers_.size(), 4u);
}

TEST_F(PoolTest, AReplacementThatFailsDoesNotFailWhoIsServedByTheOldWorker) {
  spec_.max_age_sec = 1e-9;  // due at once
  MakePool();
  const uint64_t first = Await()->cell;
  wardens_.Behave(WardenWay::kWrongToken);
  pool_->Tick();
  RunUntil([&] { return pool_->GetStats().start_failures == 1; });
  pool_->Release(first);
  EXPECT_NE(Await(), nullptr);
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(PoolTest, AReplacedWorkerGoesWhenItsLastCallHasEnded) {
  spec_.max_age_sec = 1e-9;
  MakePool();
  const uint64_t cell = Await()->cell;
  pool_->Tick();
  RunUntil([&] { return pool_->GetStats().rotations == 1; });
  EXPECT_EQ(pool_->GetStats().workers, 2u) << "a call still runs on it";
  pool_->Release(cell);
  RunUntil([&] { return pool_->GetStats().workers == 1 && wardens_.containers().count() == 1; });
  EXPECT_EQ(wardens_.retired, 1);
}

TEST_F(PoolTest, AnIdlePoolTakesBackItsLeasesAndEndsItsWorkers) {
  spec_.idle_sec = 1e-9;
  MakePool();
  Ask(true);
  RunUntil([&] { return grants_.size() == 1; });
  RunUntil([&] {
    pool_->Tick();
    return pool_->empty();
  });
  EXPECT_EQ(reclaimed_, 1);
  EXPECT_TRUE(pool_->abandoned());
}

TEST_F(PoolTest, TheHostMayEndAnIdlePoolBeforeItsCallerWould) {
  host_idle_sec_ = 1e-9;
  MakePool();
  Ask(true);
  RunUntil([&] { return grants_.size() == 1; });
  RunUntil([&] {
    pool_->Tick();
    return pool_->empty();
  });
}

TEST_F(PoolTest, TheHostKeepsNoPoolLongerThanItsCallerAskedFor) {
  spec_.idle_sec = 1e-9;
  host_idle_sec_ = 3600;
  MakePool();
  Ask(true);
  RunUntil([&] { return grants_.size() == 1; });
  RunUntil([&] {
    pool_->Tick();
    return pool_->empty();
  });
}

TEST_F(PoolTest, ACallThatRunsKeepsAnIdlePool) {
  spec_.idle_sec = 1e-9;
  MakePool();
  const uint64_t cell = Await()->cell;
  for (int i = 0; i < 3; ++i) pool_->Tick();
  EXPECT_EQ(pool_->GetStats().workers, 1u);
  EXPECT_FALSE(gone_.contains(cell));
}

TEST_F(PoolTest, WarmsAsManyCellsAsAsked) {
  MakePool();
  uint64_t ready = 0;
  pool_->EnsureWarm(3, [&](uint64_t cells, const Error* error) {
    EXPECT_EQ(error, nullptr);
    ready = cells;
  });
  RunUntil([&] { return ready != 0; });
  EXPECT_GE(ready, 3u);
}

TEST_F(PoolTest, ABurstOfAsManyAsAreParkedFindsThem) {
  MakePool();
  uint64_t ready = 0;
  pool_->EnsureWarm(3, [&](uint64_t cells, const Error*) { ready = cells; });
  RunUntil([&] { return ready == 3; });
  for (int i = 0; i < 3; ++i) Ask();
  EXPECT_EQ(grants_.size(), 3u) << "without a turn of the loop";
}

TEST_F(PoolTest, SlotsThatABurstLeavesOverAreEnded) {
  spec_.warm = -1;
  spec_.max_cells = 64;
  MakePool();
  for (int i = 0; i < 30; ++i) Ask();
  RunUntil([&] { return grants_.size() == 30; });
  EXPECT_GE(pool_->GetStats().slots, 30u);
  for (const LeasedCell& grant : grants_) pool_->Release(grant.cell);
  RunUntil([&] {
    pool_->Tick();
    const Pool::Stats stats = pool_->GetStats();
    return stats.slots <= 8 && stats.ready >= 4 && wardens_.slots_ended >= 22;
  });
  EXPECT_NE(Await(), nullptr) << "and it goes on";
}

TEST_F(PoolTest, EndsItsWorkersWhenAskedUnlessACallRuns) {
  MakePool();
  const uint64_t cell = Await()->cell;
  EXPECT_FALSE(pool_->EndUnused("test"));
  pool_->Release(cell);
  RunUntil([&] { return gone_.contains(cell); });
  EXPECT_TRUE(pool_->EndUnused("test"));
  RunUntil([&] { return pool_->empty(); });
  EXPECT_NE(Await(), nullptr) << "a later call starts another one";
}

TEST_F(PoolTest, IsNotEndedWhileSomebodyWaitsForItsFirstWorker) {
  MakePool();
  bool ready = false;
  pool_->WhenWorkerReady([&](const Error* error) { ready = error == nullptr; });
  EXPECT_FALSE(pool_->EndUnused("test"));
  RunUntil([&] { return ready; });
  EXPECT_TRUE(pool_->EndUnused("test"));
}

TEST_F(PoolTest, EndsWhenWhatWasLeasedAheadIsBack) {
  MakePool();
  Ask(true);
  RunUntil([&] { return grants_.size() == 1; });
  EXPECT_TRUE(pool_->EndUnused("test")) << "it is on its way: no other pool has to go";
  EXPECT_EQ(pool_->GetStats().workers, 1u);
  RunUntil([&] { return gone_.contains(grants_.front().cell); });
  EXPECT_TRUE(pool_->EndUnused("test"));
  RunUntil([&] { return pool_->empty(); });
}

TEST_F(PoolTest, TellsEverybodyWhoWaitsThatItRetires) {
  MakePool();
  int told = 0;
  const auto tell = [&](const Error* error) { told += error != nullptr ? 1 : 0; };
  pool_->WhenWorkerReady(tell);
  pool_->EnsureWarm(2, [&](uint64_t, const Error* error) { tell(error); });
  Ask();
  pool_->Retire();
  pool_->WhenWorkerReady(tell);
  pool_->EnsureWarm(2, [&](uint64_t, const Error* error) { tell(error); });
  Ask();
  EXPECT_EQ(told, 4);
  EXPECT_EQ(refusals_.size(), 2u);
  RunUntil([&] { return pool_->empty(); });
}

TEST_F(PoolTest, ARemovalNeverOvertakesTheStartItUndoes) {
  for (int i = 0; i < 10; ++i) {
    MakePool();
    Ask();
    if (i % 2 == 0) RunUntil([&] { return wardens_.containers().created() > 0; });
    pool_.reset();
    // Both threads must meet behind what was posted: whatever their order, no container is left,
    // and none comes later.
    std::atomic<int> met = 0;
    for (int thread = 0; thread < 2; ++thread) {
      background_->Post([&met] {
        ++met;
        while (met < 2) std::this_thread::yield();
      });
    }
    while (met < 2) std::this_thread::yield();
    background_.reset();
    EXPECT_EQ(wardens_.containers().count(), 0u);
  }
}

TEST_F(PoolTest, SurvivesWardensThatTalkNonsense) {
  wardens_.Behave(WardenWay::kNonsense);
  spec_.warm = 3;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    wardens_.seed = seed;
    MakePool();
    for (int i = 0; i < 3; ++i) Ask(i == 2);
    for (int turn = 0; turn < 3 && refusals_.empty(); ++turn) {
      int polls = 0;
      RunUntil([&] { return ++polls > 5 || !refusals_.empty(); });
      pool_->Tick();
      while (!grants_.empty()) {
        pool_->Release(grants_.front().cell);
        grants_.pop_front();
      }
    }
    ahead_.clear();
    Drop();
    wardens_.KillAll();
    refusals_.clear();
  }
}

// ---- workers that serve one call each

class SingleUseTest : public PoolTest {
 protected:
  SingleUseTest() { spec_.isolation = Isolation::kContainer; }
};

TEST_F(SingleUseTest, NoWorkerServesTwoCalls) {
  MakePool();
  for (int i = 0; i < 5; ++i) {
    const uint64_t cell = Await()->cell;
    pool_->Release(cell);
    RunUntil([&] { return gone_.contains(cell); });
  }
  EXPECT_EQ(workers_.size(), 5u);
  for (const auto& [worker, calls] : calls_) EXPECT_EQ(calls, 1u) << worker;
}

TEST_F(SingleUseTest, AUsedWorkerIsRemovedAndTheStockRefilled) {
  MakePool();
  LeasedCell* grant = Await();
  RunUntil([&] { return pool_->GetStats().ready == 1; });
  pool_->Release(grant->cell);
  RunUntil([&] { return gone_.contains(grant->cell) && wardens_.containers().count() == 1; });
  EXPECT_EQ(pool_->GetStats().workers, 1u);
  EXPECT_EQ(pool_->GetStats().ready, 1u);
  EXPECT_EQ(wardens_.cells_made, 2) << "no cell is made where a call ran";
}

TEST_F(SingleUseTest, WhereNoneIsKeptReadyNoneIsStartedAheadOfACall) {
  spec_.warm = 0;
  MakePool();
  const uint64_t cell = Await()->cell;
  Ask(true);
  EXPECT_EQ(refusals_.at(0).code(), Code::kBusy);
  refusals_.clear();
  pool_->Release(cell);
  RunUntil([&] { return gone_.contains(cell) && pool_->empty(); });
  EXPECT_EQ(pool_->GetStats().worker_starts, 1u);
  EXPECT_NE(Await(), nullptr);
}

TEST_F(SingleUseTest, CallsAtOnceHaveAWorkerEachAndNoMoreThanMayBe) {
  MakePool();
  for (int i = 0; i < 6; ++i) Ask();
  RunUntil([&] { return grants_.size() == 4; });
  EXPECT_EQ(workers_.size(), 4u);
  pool_->Tick();
  EXPECT_EQ(pool_->GetStats().workers, 4u);
  pool_->Release(grants_[0].cell);
  RunUntil([&] { return grants_.size() == 5; });
  EXPECT_EQ(workers_.size(), 5u);
}

TEST_F(SingleUseTest, AStockThatIsOldIsReplaced) {
  spec_.max_age_sec = 1e-9;
  MakePool();
  Await();
  RunUntil([&] {
    pool_->Tick();
    return wardens_.retired >= 2;
  });
}

TEST_F(SingleUseTest, AnIdlePoolEndsItsStockAndMakesNoOther) {
  spec_.idle_sec = 1e-9;
  MakePool();
  Ask(true);
  RunUntil([&] { return grants_.size() == 1; });
  RunUntil([&] {
    pool_->Tick();
    return pool_->empty();
  });
  const uint64_t starts = pool_->GetStats().worker_starts;
  for (int i = 0; i < 3; ++i) pool_->Tick();
  EXPECT_EQ(pool_->GetStats().worker_starts, starts);
}

TEST_F(SingleUseTest, WhereNoCellCanBeMadeItServesWithoutOne) {
  wardens_.Behave(WardenWay::kNoNamespaces);
  MakePool();
  LeasedCell* grant = Await();
  ASSERT_NE(grant, nullptr);
  EXPECT_EQ(pool_->GetStats().start_failures, 0u);
  EXPECT_FALSE(std::filesystem::exists(paths_.worker_dir() + "/" + grant->worker + "/warden.sock"))
      << "what runs beside the warden finds no socket";
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(PoolTest, WhereNoCellCanBeMadeTheReasonIsTold) {
  wardens_.Behave(WardenWay::kNoNamespaces);
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  EXPECT_EQ(refusals_.at(0).code(), Code::kPlatform);
  EXPECT_TRUE(std::string(refusals_[0].what()).find("within those of its slot") !=
              std::string::npos)
      << refusals_[0].what();
  EXPECT_TRUE(refusals_[0].hint().find("container") != std::string::npos);
}

TEST_F(SingleUseTest, SurvivesWardensThatTalkNonsense) {
  wardens_.Behave(WardenWay::kNonsense);
  spec_.warm = 3;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    wardens_.seed = seed;
    MakePool();
    for (int i = 0; i < 3; ++i) Ask(i == 2);
    int polls = 0;
    RunUntil([&] { return ++polls > 15 || !refusals_.empty(); });
    pool_->Tick();
    for (; !grants_.empty(); grants_.pop_front()) pool_->Release(grants_.front().cell);
    ahead_.clear();
    Drop();
    wardens_.KillAll();
    refusals_.clear();
  }
}

TEST_F(SingleUseTest, FailsWhoWaitsWhenWorkersCannotBeStarted) {
  wardens_.Behave(WardenWay::kEndsCellsUnready);
  MakePool();
  EXPECT_EQ(Await(), nullptr);
  EXPECT_EQ(refusals_[0].code(), Code::kWorkerFailed);
  EXPECT_LE(pool_->GetStats().worker_starts, 3u) << "starts that fail are not repeated at once";
}

}  // namespace
}  // namespace hutch
