// SPDX-License-Identifier: Apache-2.0

// The two strategies on Members whose workers are real but for their containers: the test is their
// warden.
#include "pool/refill.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "pool/shared_workers.h"
#include "pool/single_use_workers.h"
#include "wire/channel.h"

namespace hutch {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class RefillTest : public ::testing::Test, protected Worker::Listener {
 protected:
  RefillTest() : podman_("/nonexistent"), background_(0) {
    char name[] = "/tmp/hutch-refill-XXXXXX";
    paths_.run_dir = ::mkdtemp(name);
    members_.emplace(loop_, [this](const std::string&) {
      ++reclaims_;
      return false;
    });
    demand_ = {.now = Clock::now(), .depth = 2, .limits = {2, 4, 4}};
  }
  ~RefillTest() override {
    members_.reset();
    std::filesystem::remove_all(paths_.run_dir);
  }
  void OnWorkerReady(Worker&) override {}
  void OnCellReady(Worker&, uint64_t) override {}
  void OnCellGone(Worker&, uint64_t, const CellReport&) override {}
  void OnSessionEvent(Worker&, uint64_t, SessionEvent) override {}
  void OnSlotsChanged(Worker&) override {}
  void OnWorkerDead(Worker&, const std::string& why) override { FAIL() << why; }

  // A worker that starts; ready: its warden was here and has said so.
  Member& AddWorker(bool ready) {
    WorkerLaunch launch;
    launch.name = "worker-" + std::to_string(++workers_);
    launch.uid = ::geteuid();
    launch.socket_dir = paths_.run_dir + "/" + launch.name;
    const std::string socket = launch.socket_dir + "/" + kWorkerSocketName;
    auto worker =
        std::make_unique<Worker>(loop_, podman_, background_, static_cast<Worker::Listener&>(*this),
                                 paths_, std::move(launch), Modules{});
    worker->Configure(*this, PoolSpec{}, "");
    Member& member = members_->Add(std::move(worker), false, 0);
    if (!ready) return member;
    wardens_.push_back(ConnectTo(socket));
    for (const FrameKind kind : {FrameKind::kHello, FrameKind::kZygoteReady}) {
      FrameHeader header{.kind = kind};
      const iovec part{&header, sizeof header};
      EXPECT_EQ(SendDatagram(wardens_.back().get(), {&part, 1}), SendStatus::kSent);
    }
    while (!member.worker->ready()) Turn();
    return member;
  }
  // As if the warden had made a cell that is parked.
  static void Park(Member& member, uint64_t cell) {
    member.proven = true;
    member.ready.push_back(cell);
  }
  void Turn() {
    for (int i = 0; i < 3; ++i) {
      loop_.Stop();
      loop_.Run();
    }
  }

  Paths paths_;
  Loop loop_;
  Podman podman_;
  Background background_;  // of no threads: no container is started
  std::optional<Members> members_;
  std::vector<Fd> wardens_;
  Demand demand_;
  std::function<double()> pressure_;
  int workers_ = 0;
  int reclaims_ = 0;
};

class SharedWorkersTest : public RefillTest {
 protected:
  SharedWorkers refill_{*members_, {100, std::chrono::duration<double>(60)}, 2, pressure_};
};

TEST_F(SharedWorkersTest, StartsOneWorkerWhenSomethingIsWantedAndNoneIsComing) {
  EXPECT_EQ(refill_.Fill(demand_).start, 0u);
  demand_.wanted = true;
  EXPECT_EQ(refill_.Fill(demand_).start, 1u);
  AddWorker(false);
  EXPECT_EQ(refill_.Fill(demand_).start, 0u);
  EXPECT_EQ(refill_.Source(), nullptr);
}

TEST_F(SharedWorkersTest, MakesOneCellAtFirstAndMoreOnceOneWasReady) {
  Member& member = AddWorker(true);
  const SlotTable& slots = member.worker->cells().slots();
  refill_.Fill(demand_);
  EXPECT_EQ(slots.making(), 1u);
  Park(member, 1);
  demand_.waiting = 3;
  refill_.Fill(demand_);
  EXPECT_EQ(slots.making(), 4u) << "at most as many slots as cells may be";
}

TEST_F(SharedWorkersTest, TakesBackACellThatWasLeasedAheadWhenNoneCanBeMade) {
  Member& member = AddWorker(true);
  demand_.limits.max_cells = 0;
  EXPECT_FALSE(refill_.Fill(demand_).reclaim);
  demand_.waiting = 1;
  EXPECT_TRUE(refill_.Fill(demand_).reclaim);
  Park(member, 1);
  EXPECT_FALSE(refill_.Fill(demand_).reclaim) << "one is parked";
}

TEST_F(SharedWorkersTest, AWorkerThatIsOldIsReplacedByTheNextOne) {
  Member& old = AddWorker(true);
  EXPECT_EQ(refill_.Tick(demand_).start, 0u);
  demand_.now += hours(1);
  EXPECT_EQ(refill_.Tick(demand_).start, 1u);
  Member& next = AddWorker(true);
  EXPECT_EQ(refill_.OnWorkerReady(next), 1u);
  EXPECT_TRUE(old.retiring);
  EXPECT_EQ(reclaims_, 1);
  EXPECT_EQ(refill_.Source(), &next);
  Turn();
  EXPECT_EQ(members_->all().size(), 1u) << "no cell of it was leased";
}

TEST_F(SharedWorkersTest, ARetiringWorkerStaysUntilItsLastLeasedCellIsGone) {
  Member& member = AddWorker(true);
  Park(member, 1);
  Park(member, 2);
  EXPECT_EQ(members_->Lease(*members_->WithReadyCell(100)), 1u);
  members_->Retire(member, "test");
  EXPECT_EQ(members_->ready(), 0u);
  EXPECT_EQ(members_->WithReadyCell(100), nullptr);
  Turn();
  ASSERT_EQ(members_->OfLeased(1), &member);
  EXPECT_TRUE(members_->EndCell(member, 1));
  EXPECT_FALSE(members_->EndCell(member, 1));
  members_->SweepSoon();
  Turn();
  EXPECT_TRUE(members_->empty());
}

TEST_F(SharedWorkersTest, CellsOfSessionsAreNoneOfThePools) {
  Member& member = AddWorker(true);
  refill_.Fill(demand_);
  Park(member, 1);
  demand_.limits.max_cells = 1;
  EXPECT_TRUE(refill_.AtMost(1));
  members_->Keep(1);
  EXPECT_EQ(members_->kept(), 0u) << "it is not leased";
  members_->Lease(member);
  members_->Keep(1);
  members_->Keep(1);
  EXPECT_EQ(member.kept, 1u);
  EXPECT_FALSE(refill_.AtMost(1));
  members_->EndCell(member, 1);
  EXPECT_EQ(members_->kept(), 0u);
  EXPECT_TRUE(refill_.AtMost(1));
}

TEST_F(SharedWorkersTest, AWorkerWhoseSlotsSessionsHoldGetsANextOneBesideIt) {
  Member& member = AddWorker(true);
  member.proven = true;
  for (uint32_t i = 0; i < kMostSlots; ++i) member.worker->cells().AddSlot();
  const auto keep = [&](uint64_t first, uint64_t last) {
    for (uint64_t cell = first; cell <= last; ++cell) {
      member.ready = {cell};
      members_->Keep(members_->Lease(member));
    }
  };
  demand_.waiting = 200;
  demand_.limits = {2, 4, kMostSlots};
  keep(1, kMostSlots / 4 - 1);
  EXPECT_EQ(refill_.Fill(demand_).start, 0u) << "calls hold most of its slots, for a while";
  keep(kMostSlots / 4, kMostSlots);
  EXPECT_EQ(refill_.Fill(demand_).start, 1u);
  EXPECT_EQ(member.worker->cells().slots().alive(), kMostSlots) << "a warden has no more";
  Member& next = AddWorker(false);
  EXPECT_EQ(refill_.Fill(demand_).start, 0u) << "it is on its way";
  refill_.OnWorkerReady(next);
  Turn();
  EXPECT_EQ(members_->kept(), kMostSlots) << "no session ends for it";
  EXPECT_TRUE(member.retiring);
}

class SingleUseWorkersTest : public RefillTest {
 protected:
  SingleUseWorkers refill_{*members_, {100, std::chrono::duration<double>(60)}, 2};
};

TEST_F(SingleUseWorkersTest, StartsWorkersOnlyWhileThePoolIsInUse) {
  EXPECT_EQ(refill_.Fill(demand_).start, 0u);
  demand_.in_use = true;
  EXPECT_EQ(refill_.Fill(demand_).start, 2u);
  AddWorker(false);
  EXPECT_EQ(refill_.Fill(demand_).start, 1u) << "one is on its way";
}

TEST_F(SingleUseWorkersTest, WaitsForQuietBetweenTheMarks) {
  demand_.in_use = true;
  demand_.until_quiet = milliseconds(1);
  Park(AddWorker(true), 1);
  const RefillOrders orders = refill_.Fill(demand_);
  EXPECT_EQ(orders.start, 0u);
  EXPECT_TRUE(orders.later);
  demand_.until_quiet = milliseconds(0);
  EXPECT_EQ(refill_.Fill(demand_).start, 1u);
}

TEST_F(SingleUseWorkersTest, StartsNoMoreThanThereMayBeAndThenTakesBack) {
  demand_.waiting = 9;
  demand_.wanted = true;
  demand_.limits.max_cells = 1;
  Member& member = AddWorker(true);
  Park(member, 1);
  members_->Lease(member);
  const RefillOrders orders = refill_.Fill(demand_);
  EXPECT_EQ(orders.start, 0u);
  EXPECT_TRUE(orders.reclaim);
  EXPECT_TRUE(refill_.AtMost(1));
}

TEST_F(SingleUseWorkersTest, AWorkerWhoseCellIsGoneServesNoOther) {
  Member& member = AddWorker(true);
  EXPECT_EQ(refill_.OnWorkerReady(member), 0u);
  EXPECT_EQ(member.worker->cells().slots().making(), 1u);
  Park(member, 1);
  EXPECT_TRUE(refill_.OnCellGone(member));
  EXPECT_TRUE(member.retiring);
  EXPECT_EQ(refill_.Source(), nullptr);
}

TEST_F(SingleUseWorkersTest, ACellThatEndsBeforeItIsReadyIsAFailedStart) {
  EXPECT_FALSE(refill_.OnCellGone(AddWorker(true)));
}

TEST_F(SingleUseWorkersTest, ParkedWorkersThatAreOldOrTooManyAreEnded) {
  Member& member = AddWorker(true);
  Park(member, 1);
  refill_.Tick(demand_);
  EXPECT_FALSE(member.retiring);
  demand_.now += hours(1);
  refill_.Tick(demand_);
  EXPECT_TRUE(member.retiring);
  Member& surplus = AddWorker(true);
  Park(surplus, 2);
  demand_.now = Clock::now();
  demand_.depth = 0;
  refill_.Tick(demand_);
  EXPECT_TRUE(surplus.retiring);
}

}  // namespace
}  // namespace hutch
