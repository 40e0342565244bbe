// SPDX-License-Identifier: Apache-2.0

// CellOrders over a link that records what is sent, and that can be crowded.
#include "pool/cell_orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace hutch {
namespace {

class CellOrdersTest : public ::testing::Test {
 protected:
  using Sent = std::vector<std::pair<FrameKind, uint32_t>>;

  void RunFor(std::chrono::milliseconds time) {
    loop_.After(time, [this] { loop_.Stop(); });
    loop_.Run();
  }

  Loop loop_;
  bool crowded_ = false;
  Sent sent_;
  const OrderLink link_{.send =
                            [this](const FrameHeader& header, std::span<const int>) {
                              EXPECT_EQ(header.id, 7u);
                              sent_.emplace_back(header.kind, header.a);
                              return true;
                            },
                        .crowded = [this] { return crowded_; }};
  std::optional<CellOrders> orders_{std::in_place, loop_, link_, 7};
};

TEST_F(CellOrdersTest, TheMemoryForAResultIsNeverTakenForAnotherOrder) {
  orders_->Arm(1, 1, ~uint64_t{0});
  EXPECT_LT(sent_.back().second, std::min(kLoading, kBetweenCalls));
}

TEST_F(CellOrdersTest, AWardenThatIsBehindGetsTheLastOrdersOnly) {
  crowded_ = true;
  for (uint32_t call = 1; call <= 10'000; ++call) {
    orders_->Arm(call, 0);
    orders_->Interrupt(0, call);
    orders_->Interrupt(0, 0);
    orders_->RestartUser(0);
    orders_->EndCall(0);
  }
  orders_->Arm(77, 0);
  EXPECT_TRUE(sent_.empty());
  crowded_ = false;
  orders_->Interrupt(0, 20'000);  // which another reason to look does not replace
  orders_->Interrupt(0, 0);
  EXPECT_TRUE(sent_.empty()) << "one after the other";
  RunFor(std::chrono::milliseconds(100));
  EXPECT_EQ(sent_, (Sent{{FrameKind::kRestart, 0},
                         {FrameKind::kArm, kBetweenCalls},
                         {FrameKind::kArm, 0},
                         {FrameKind::kInterrupt, 20'000},
                         {FrameKind::kInterrupt, 0}}));
  orders_->Interrupt(0, 3);
  EXPECT_EQ(sent_.back().second, 3u) << "the counterpart: at once";
}

TEST_F(CellOrdersTest, WhatWaitsIsForgottenWithTheCell) {
  crowded_ = true;
  orders_->Interrupt(0, 1);
  orders_.reset();
  crowded_ = false;
  RunFor(std::chrono::milliseconds(50));
  EXPECT_TRUE(sent_.empty());
}

}  // namespace
}  // namespace hutch
