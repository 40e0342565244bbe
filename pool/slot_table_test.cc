// SPDX-License-Identifier: Apache-2.0

#include "pool/slot_table.h"

#include <gtest/gtest.h>

#include <set>

namespace hutch {
namespace {

TEST(SlotTable, CountsTheSlotsInEachState) {
  SlotTable slots;
  const uint32_t first = slots.Add();
  const uint32_t second = slots.Add();
  EXPECT_EQ(slots.making(), 2u);
  slots.Move(first, SlotState::kFree);
  slots.Move(second, SlotState::kFree);
  slots.Move(second, SlotState::kMakingCell);
  EXPECT_EQ(slots.making(), 0u);
  EXPECT_EQ(slots.free(), 1u);
  EXPECT_EQ(slots.making_cells(), 1u);
  slots.Move(first, SlotState::kEnding);
  EXPECT_EQ(slots.alive(), 1u);
  EXPECT_EQ(slots.size(), 2u);
  slots.Remove(first);
  slots.Release(second);
  EXPECT_EQ(slots.alive(), 0u);
  EXPECT_EQ(slots.making_cells(), 0u);
}

TEST(SlotTable, KnowsNothingOfASlotThatItNeverGave) {
  SlotTable slots;
  slots.Add();
  for (const uint32_t stranger : {1u, ~0u}) {
    EXPECT_EQ(slots.StateOf(stranger), std::nullopt);
    slots.Move(stranger, SlotState::kFree);
    slots.Remove(stranger);
    slots.Release(stranger);
    EXPECT_EQ(slots.GroupOf(stranger), nullptr);
  }
  EXPECT_EQ(slots.size(), 1u);
  EXPECT_EQ(slots.free(), 0u);
  EXPECT_EQ(slots.Add(), 1u) << "the number of a stranger was released";
}

TEST(SlotTable, UsesANumberAgainOnlyWhenItWasReleased) {
  SlotTable slots;
  std::set<uint32_t> numbers = {slots.Add(), slots.Add()};
  slots.Remove(0);
  EXPECT_TRUE(numbers.insert(slots.Add()).second) << "the removed one may still be reported";
  slots.Release(1);
  EXPECT_EQ(slots.Add(), 1u);
}

TEST(SlotTable, FindsFreeSlotsFromBothEnds) {
  SlotTable slots;
  for (int i = 0; i < 5; ++i) slots.Add();
  for (const uint32_t free : {1u, 3u, 4u}) slots.Move(free, SlotState::kFree);
  EXPECT_EQ(slots.NextFree(0), 1u);
  EXPECT_EQ(slots.NextFree(2), 3u);
  EXPECT_EQ(slots.NextFree(5), std::nullopt);
  EXPECT_EQ(slots.HighestFree(2), (std::vector<uint32_t>{4, 3}));
  EXPECT_EQ(slots.HighestFree(9).size(), 3u);
}

TEST(SlotTable, ClearForgetsEverySlot) {
  SlotTable slots;
  slots.Move(slots.Add(), SlotState::kFree);
  slots.Clear();
  EXPECT_EQ(slots.size(), 0u);
  EXPECT_EQ(slots.free(), 0u);
}

}  // namespace
}  // namespace hutch
