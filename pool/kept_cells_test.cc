// SPDX-License-Identifier: Apache-2.0

// KeptCells over a link that records what is ordered, and that can refuse it.
#include "pool/kept_cells.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hutch {
namespace {

class KeptCellsTest : public ::testing::Test, protected KeptCells::Owner {
 protected:
  void OnSessionEvent(uint64_t, SessionEvent event) override { events_.push_back(event.kind); }
  void GiveUp(const std::string& why) override { why_ = why; }
  static std::string Report() {
    const CellReport report{};
    return {reinterpret_cast<const char*>(&report), sizeof report};
  }

  SlotTable slots_;
  std::vector<FrameKind> orders_;
  bool sends_ = true;
  const OrderLink link_{.send =
                            [this](const FrameHeader& header, std::span<const int>) {
                              if (sends_) orders_.push_back(header.kind);
                              return sends_;
                            },
                        .crowded = [] { return false; }};
  std::vector<uint64_t> killed_;
  std::vector<SessionEvent::Kind> events_;
  std::string why_;  // the worker was given up, "": it was not
  KeptCells kept_{*this, link_, slots_, [this](uint64_t cell) { killed_.push_back(cell); }};
};

TEST_F(KeptCellsTest, ACellIsAskedForOnceAndForgottenOnce) {
  EXPECT_FALSE(kept_.Forget(7));
  kept_.Keep(7, 0);
  kept_.Keep(7, 0);
  EXPECT_EQ(orders_, std::vector{FrameKind::kKeep});
  EXPECT_TRUE(kept_.Forget(7));
  EXPECT_FALSE(kept_.Forget(7));
  kept_.OnKept(7, true);
  EXPECT_NE(why_, "") << "it is gone";
}

TEST_F(KeptCellsTest, UserProcessesEndAndComeInTurn) {
  kept_.Keep(7, 0);
  for (int user = 0; user < 2; ++user) {
    kept_.OnUserExit(7, Report());
    kept_.OnUserReady(7);
  }
  EXPECT_EQ(why_, "");
  EXPECT_EQ(events_, (std::vector{SessionEvent::kUserExit, SessionEvent::kUserReady,
                                  SessionEvent::kUserExit, SessionEvent::kUserReady}));
  kept_.OnUserReady(7);
  EXPECT_NE(why_, "");
}

TEST_F(KeptCellsTest, ACellThatCanHaveNoOtherUserProcessIsKilled) {
  kept_.Keep(7, 0);
  sends_ = false;
  kept_.OnUserExit(7, Report());
  EXPECT_EQ(killed_, std::vector<uint64_t>{7});
  EXPECT_TRUE(events_.empty());
}

}  // namespace
}  // namespace hutch
