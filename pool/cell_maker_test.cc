// SPDX-License-Identifier: Apache-2.0

// CellMaker over a link that records what is ordered, and that can refuse it.
#include "pool/cell_maker.h"

#include <gtest/gtest.h>

#include <vector>

namespace hutch {
namespace {

class CellMakerTest : public ::testing::Test {
 protected:
  std::vector<FrameHeader> orders_;
  std::vector<size_t> descriptors_;
  bool sends_ = true;
  const OrderLink link_{.send =
                            [this](const FrameHeader& header, std::span<const int> descriptors) {
                              if (!sends_) return false;
                              orders_.push_back(header);
                              descriptors_.push_back(descriptors.size());
                              return true;
                            },
                        .crowded = [] { return false; }};
  CellMaker maker_{link_};
};

TEST_F(CellMakerTest, EachCellHasAnIdAndChannelsOfItsOwn) {
  const auto first = maker_.Order(3);
  const auto second = maker_.Order(4);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->cell, second->cell);
  EXPECT_TRUE(first->channels.socket && first->channels.out && first->channels.err);
  EXPECT_FALSE(first->egress);
  EXPECT_EQ(orders_[0].a, 3u);
  EXPECT_EQ(orders_[0].id, first->cell);
  EXPECT_EQ(descriptors_, (std::vector<size_t>{3, 3}));
  EXPECT_EQ(maker_.OpenNetwork(first->cell, Fd()), nullptr);
}

TEST_F(CellMakerTest, IsStarvedUntilItIsToTryAgain) {
  sends_ = false;
  EXPECT_FALSE(maker_.Order(0));
  EXPECT_TRUE(maker_.starved());
  sends_ = true;
  EXPECT_TRUE(maker_.Order(0));
  EXPECT_TRUE(maker_.starved()) << "a cell in another slot does not fill the first one";
  maker_.TryAgain();
  EXPECT_FALSE(maker_.starved());
}

TEST_F(CellMakerTest, ANetworkIsOpenAsLongAsWhatIsReturned) {
  std::vector<uint64_t> opened, closed;
  maker_.UseNetworks({[&](uint64_t cell, Fd channel) {
                        EXPECT_TRUE(channel);
                        opened.push_back(cell);
                      },
                      [&](uint64_t cell) { closed.push_back(cell); }});
  auto ordered = maker_.Order(0);
  ASSERT_TRUE(ordered);
  EXPECT_EQ(descriptors_.back(), 4u) << "the forwarder's end goes to the cell, the other does not";
  auto network = maker_.OpenNetwork(ordered->cell, std::move(ordered->egress));
  EXPECT_EQ(opened, std::vector{ordered->cell});
  EXPECT_TRUE(closed.empty());
  network.reset();
  EXPECT_EQ(closed, opened);
}

}  // namespace
}  // namespace hutch
