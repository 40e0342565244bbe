// SPDX-License-Identifier: Apache-2.0

// WorkerCells against recorded orders: what a hostile warden reports is given to it directly.
#include "pool/worker_cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loop/loop.h"

namespace hutch {
namespace {

class WorkerCellsTest : public ::testing::Test, protected WorkerCells::Owner {
 protected:
  WorkerCellsTest() { Begin(); }
  void Begin() {
    orders_.clear();
    cells_.emplace(
        loop_, static_cast<WorkerCells::Owner&>(*this),
        OrderLink{.send =
                      [this](const FrameHeader& header, std::span<const int> descriptors) {
                        EXPECT_EQ(descriptors.size() >= 3, header.kind == FrameKind::kMakeCell);
                        orders_.push_back(header);
                        return sends_;
                      },
                  .crowded = [] { return false; }},
        "worker");
  }
  void OnCellReady(uint64_t cell) override { ready_.push_back(cell); }
  void OnCellGone(uint64_t cell, const CellReport& report) override {
    gone_.push_back(cell);
    last_report_ = report;
  }
  void OnSlotsChanged() override { ++slots_changed_; }
  void OnSessionEvent(uint64_t cell, SessionEvent event) override {
    session_events_.emplace_back(cell, event.kind);
    reports_of_users_.push_back(event.report);
    if (event.socket) ++sockets_;
  }
  void GiveUp(const std::string& why) override {
    if (why_.empty()) why_ = why;
    cells_->Drop();
  }
  uint64_t CellOrdered() {
    EXPECT_EQ(orders_.back().kind, FrameKind::kMakeCell);
    return orders_.back().id;
  }
  // A slot with a cell that is being made.
  uint64_t MakeCell(uint32_t slot = 0) {
    cells_->AddSlot();
    cells_->OnSlotReady(slot);
    return CellOrdered();
  }
  static std::string Bytes(const CellReport& report) {
    return {reinterpret_cast<const char*>(&report), sizeof report};
  }

  Loop loop_;
  std::optional<WorkerCells> cells_;
  std::vector<FrameHeader> orders_;
  bool sends_ = true;
  std::vector<uint64_t> ready_, gone_;
  CellReport last_report_;
  int slots_changed_ = 0;
  std::vector<std::pair<uint64_t, SessionEvent::Kind>> session_events_;
  int sockets_ = 0;  // of calls of another user process
  std::vector<CellReport> reports_of_users_;
  std::string why_;  // the worker was given up, "": it was not
};

TEST_F(WorkerCellsTest, ASlotGetsACellWhenItIsReady) {
  const uint64_t cell = MakeCell();
  cells_->OnCellReady(cell);
  EXPECT_EQ(ready_, std::vector{cell});
  EXPECT_TRUE(cells_->Take(cell).socket);
  EXPECT_EQ(cells_->calls(), 1u);
  cells_->OnCellExit(cell, Bytes({.wall_us = 7}));
  EXPECT_EQ(gone_, std::vector{cell});
  EXPECT_EQ(last_report_.wall_us, 7u);
  EXPECT_EQ(cells_->slots().free(), 1u);
  EXPECT_EQ(why_, "");
}

TEST_F(WorkerCellsTest, EveryReportThatFitsNoOrderEndsTheWorker) {
  const auto after = [this](const auto& report) {
    why_.clear();
    report(MakeCell());
    EXPECT_NE(why_, "");
    EXPECT_EQ(cells_->slots().size(), 0u);
    Begin();
  };
  after([this](uint64_t) { cells_->OnSlotReady(0); });  // it was ready before
  after([this](uint64_t) { cells_->OnSlotReady(9); });
  after([this](uint64_t) { cells_->OnSlotGone(0); });  // nobody ended it
  after([this](uint64_t) { cells_->OnSlotGone(9); });
  after([this](uint64_t cell) { cells_->OnCellReady(cell + 1); });
  after([this](uint64_t cell) {
    cells_->OnCellReady(cell);
    EXPECT_EQ(why_, "");
    cells_->OnCellReady(cell);
  });
  after([this](uint64_t cell) { cells_->OnCellExit(cell + 1, Bytes({})); });
  after([this](uint64_t cell) { cells_->OnCellExit(cell, Bytes({}).substr(1)); });
  after([this](uint64_t) { cells_->OnFailed(9, 0, "no such slot"); });
  after([this](uint64_t) { cells_->OnFailed(0, 0, "its only slot"); });
}

TEST_F(WorkerCellsTest, AKeptCellOutlivesItsUserProcesses) {
  const uint64_t cell = MakeCell();
  cells_->OnCellReady(cell);
  cells_->Take(cell);
  cells_->Keep(cell);
  EXPECT_EQ(orders_.back().kind, FrameKind::kKeep);
  cells_->Keep(cell);
  EXPECT_EQ(std::ranges::count(orders_, FrameKind::kKeep, &FrameHeader::kind), 1);
  cells_->kept().OnKept(cell, true);
  for (uint64_t user = 0; user < 3; ++user) {
    cells_->OrdersFor(cell)->RestartUser(user);
    EXPECT_EQ(orders_.back().b, user);
    cells_->kept().OnUserExit(cell, Bytes({.cpu_us = user}));
    EXPECT_EQ(reports_of_users_.back().cpu_us, user);
    EXPECT_EQ(orders_.back().kind, FrameKind::kNextUser);
    EXPECT_EQ(sockets_, static_cast<int>(user) + 1);
    cells_->kept().OnUserReady(cell);
  }
  EXPECT_EQ(session_events_.size(), 7u);
  EXPECT_EQ(session_events_.back(), std::pair(cell, SessionEvent::Kind{SessionEvent::kUserReady}));
  EXPECT_TRUE(gone_.empty());
  cells_->OnCellExit(cell, Bytes({}));
  EXPECT_EQ(gone_, std::vector{cell});
  EXPECT_EQ(why_, "");
}

TEST_F(WorkerCellsTest, EveryReportOfASessionThatFitsNoOrderEndsTheWorker) {
  const auto after = [this](bool keep, const auto& report) {
    why_.clear();
    const uint64_t cell = MakeCell();
    cells_->OnCellReady(cell);
    if (keep) cells_->Keep(cell);
    report(cell);
    EXPECT_NE(why_, "");
    Begin();
  };
  after(false, [this](uint64_t cell) { cells_->kept().OnKept(cell, true); });
  after(false, [this](uint64_t cell) { cells_->kept().OnUserExit(cell, Bytes({})); });
  after(true, [this](uint64_t cell) { cells_->kept().OnUserReady(cell); });
  after(false, [this](uint64_t cell) { cells_->kept().OnBackground(cell, 1); });
  after(true, [this](uint64_t cell) { cells_->kept().OnBackground(cell + 1, 1); });
  after(true, [this](uint64_t cell) { cells_->kept().OnUserExit(cell + 1, Bytes({})); });
  after(true, [this](uint64_t cell) { cells_->kept().OnUserExit(cell, Bytes({}).substr(1)); });
  after(true, [this](uint64_t cell) {
    cells_->kept().OnUserExit(cell, Bytes({}));
    EXPECT_EQ(why_, "");
    cells_->kept().OnUserExit(cell, Bytes({}));
  });
}

TEST_F(WorkerCellsTest, ReportsEveryCellGoneOnceWhenTheWorkerIsGivenUp) {
  const uint64_t cell = MakeCell();
  cells_->OnCellReady(cell);
  cells_->OnSlotGone(0);
  EXPECT_EQ(gone_, std::vector{cell});
  EXPECT_EQ(last_report_.end, kLost);
}

TEST_F(WorkerCellsTest, CellsThatEndUnreadyEndTheWorkerAfterSixteenInARow) {
  uint64_t cell = MakeCell();
  for (int i = 1; i < 16; ++i) {
    cells_->OnCellExit(cell, Bytes({}));
    EXPECT_EQ(why_, "") << i;
    cells_->MakeCells(1);
    cell = CellOrdered();
  }
  cells_->OnCellExit(cell, Bytes({}));
  EXPECT_NE(why_, "");
}

TEST_F(WorkerCellsTest, AFailedSlotTaintsAndItsNumberIsNotUsedAgain) {
  MakeCell(0);
  cells_->AddSlot();
  cells_->OnFailed(1, 0, "no memory");
  EXPECT_EQ(why_, "");
  EXPECT_TRUE(cells_->tainted());
  EXPECT_EQ(slots_changed_, 1);
  cells_->AddSlot();
  EXPECT_EQ(orders_.back().a, 2u) << "a second report of slot 1 would end its successor";
}

TEST_F(WorkerCellsTest, AnEndedSlotIsGoneWhenTheWardenSaysSo) {
  const uint64_t cell = MakeCell();
  cells_->OnCellReady(cell);
  cells_->StopRefilling();
  cells_->OnCellExit(cell, Bytes({}));
  cells_->EndFreeSlots(5);
  EXPECT_EQ(orders_.back().kind, FrameKind::kEndSlot);
  EXPECT_EQ(cells_->slots().alive(), 0u);
  cells_->OnFailed(0, 0, "it is ending anyway");
  EXPECT_FALSE(cells_->tainted());
  cells_->OnSlotGone(0);
  EXPECT_EQ(cells_->slots().size(), 0u);
  EXPECT_EQ(why_, "");
}

TEST_F(WorkerCellsTest, AnOrderThatCannotBeSentLeavesTheSlotStarved) {
  cells_->AddSlot();
  sends_ = false;
  cells_->OnSlotReady(0);
  EXPECT_TRUE(cells_->starved());
  EXPECT_EQ(cells_->slots().free(), 1u);
  sends_ = true;
  cells_->TryAgain();
  EXPECT_FALSE(cells_->starved());
  EXPECT_EQ(cells_->slots().making_cells(), 1u);
}

TEST_F(WorkerCellsTest, ADiscardedCellIsKilledAsSoonAsItIsReady) {
  const uint64_t cell = MakeCell();
  cells_->Discard(cell);
  EXPECT_EQ(orders_.back().kind, FrameKind::kMakeCell);
  cells_->OnCellReady(cell);
  EXPECT_EQ(orders_.back().kind, FrameKind::kKill);
  EXPECT_TRUE(ready_.empty());
}

TEST_F(WorkerCellsTest, NothingIsSaidOfACellThatIsGone) {
  const uint64_t cell = MakeCell();
  cells_->OnCellExit(cell, Bytes({}));
  const size_t before = orders_.size();
  EXPECT_EQ(cells_->OrdersFor(cell), nullptr);
  cells_->Kill(cell);
  cells_->Discard(cell);
  EXPECT_EQ(orders_.size(), before);
}

TEST_F(WorkerCellsTest, CellsSkipTheWarmUpWhileAsked) {
  cells_->maker().SkipWarmUp(true);
  MakeCell(0);
  EXPECT_EQ(orders_.back().c, kSkipWarmUp);
  cells_->maker().SkipWarmUp(false);
  MakeCell(1);
  EXPECT_EQ(orders_.back().c, 0u);
}

TEST_F(WorkerCellsTest, ANetworkIsClosedAfterItsCellWasReportedGone) {
  std::vector<uint64_t> opened;
  size_t gone_when_closed = 0;
  cells_->maker().UseNetworks({[&](uint64_t cell, Fd channel) {
                                 EXPECT_TRUE(channel);
                                 opened.push_back(cell);
                               },
                               [&](uint64_t) { gone_when_closed = gone_.size(); }});
  const uint64_t cell = MakeCell();
  EXPECT_EQ(opened, std::vector{cell});
  cells_->OnCellReady(cell);
  cells_->OnCellExit(cell, Bytes({}));
  EXPECT_EQ(gone_when_closed, 1u);
}

}  // namespace
}  // namespace hutch
