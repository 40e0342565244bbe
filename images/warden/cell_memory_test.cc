// SPDX-License-Identifier: Apache-2.0

#include "images/warden/cell_memory.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

constexpr uint64_t kMb = 1024;
constexpr int64_t kLater = 1'000'000'000;

SharedAreas Areas(uint64_t inode, uint64_t kb, bool whole = true) {
  SharedAreas areas;
  areas.Add(inode, kb);
  areas.whole = whole;
  return areas;
}

HostView Host(uint64_t available_kb, uint64_t slab_kb, uint64_t shared_kb, uint64_t known_kb = 0) {
  return {{available_kb, slab_kb, shared_kb}, known_kb};
}

uint64_t SumOf(const CellMemory& memory, int64_t now = 0) { return memory.Sum({}, 0, 0, now); }

TEST(ResultMemory, IsOnItsWayForAWhileAndThenTheCells) {
  ResultMemory result;
  result.Give(100, 10);
  EXPECT_EQ(result.CountedKb(20), 0u);
  result.Give(100, kLater);
  EXPECT_EQ(result.CountedKb(kLater), 100u) << "since the first order of its call";
  result.Give(0, kLater);
  EXPECT_EQ(result.CountedKb(2 * kLater), 0u) << "the client has it again";
  result.Give(30, 2 * kLater);
  EXPECT_EQ(result.CountedKb(2 * kLater), 0u);
  EXPECT_EQ(result.CountedKb(3 * kLater), 30u);
}

TEST(CellMemory, CountsScratchThatIsMappedOnce) {
  CellMemory memory;
  Usage usage;
  usage.memory_kb = 10;
  usage.shared_kb = 5;
  usage.scratch_kb = 70;
  usage.exact = true;
  EXPECT_EQ(memory.Sum(usage, 100, 3, 0), 10u + 5u + 100u + 3u);
  EXPECT_EQ(memory.Sum(usage, 20, 3, 0), 10u + 5u + 70u + 3u);
  // Counters show it as one: then what was found exactly before decides.
  usage.exact = false;
  usage.shared_kb = 0;
  usage.scratch_kb = 75;
  memory.SetShared(5);
  EXPECT_EQ(memory.Sum(usage, 70, 0, 0), 10u + 5u + 70u);
  memory.SetBase(60);
  EXPECT_EQ(memory.Sum(usage, 70, 0, 0), 25u);
  memory.SetBase(1000);
  EXPECT_EQ(memory.Sum(usage, 70, 0, 0), 0u);
}

TEST(CellMemory, WantsItsObjectsMeasuredWhenTheHostHasLostSome) {
  CellMemory memory;
  memory.See(Host(900 * kMb, 10 * kMb, 0));
  EXPECT_FALSE(memory.host_lost());
  memory.See(Host(890 * kMb, 30 * kMb, 0));
  EXPECT_TRUE(memory.host_lost());
  memory.Ask(Host(890 * kMb, 30 * kMb, 0));
  memory.TakeObjects({.bytes = kMb << 10, .whole = true}, Host(890 * kMb, 30 * kMb, 0));
  EXPECT_EQ(SumOf(memory), kMb);
  memory.See(Host(890 * kMb, 30 * kMb, 0));
  EXPECT_FALSE(memory.host_lost()) << "it is known of now";
  memory.See(Host(800 * kMb, 30 * kMb, 0));
  EXPECT_TRUE(memory.host_lost()) << "of whatever kind";
  memory.TakeObjects({.bytes = 0, .whole = false}, Host(800 * kMb, 30 * kMb, 0));
  EXPECT_EQ(SumOf(memory), 20 * kMb) << "who hides some answers for all";
}

TEST(CellMemory, AnswersForItsSharedAreasAndForNoMoreThanTheHostHasLost) {
  CellMemory memory;
  memory.See(Host(0, 0, 100 * kMb));
  memory.See(Host(0, 0, 150 * kMb));
  EXPECT_TRUE(memory.host_shares());
  memory.Ask(Host(0, 0, 150 * kMb));
  memory.TakeAreas(Areas(1, 400 * kMb), Host(0, 0, 150 * kMb));
  EXPECT_EQ(SumOf(memory), 50 * kMb);
  EXPECT_TRUE(memory.has_areas());
  memory.See(Host(0, 0, 150 * kMb));
  EXPECT_FALSE(memory.host_shares());

  CellMemory small;
  small.See(Host(0, 0, 100 * kMb));
  small.TakeAreas(Areas(1, 20 * kMb), Host(0, 0, 500 * kMb));
  EXPECT_EQ(SumOf(small), 20 * kMb) << "others took the rest";
  small.TakeAreas(Areas(2, 0, false), Host(0, 0, 500 * kMb));
  EXPECT_EQ(SumOf(small), 400 * kMb) << "who hides some answers for all";
}

TEST(CellMemory, IsMeasuredAgainForWhatCameWhileItWasMeasured) {
  CellMemory memory;
  memory.See(Host(900 * kMb, 10 * kMb, 100 * kMb));
  memory.Ask(Host(900 * kMb, 10 * kMb, 100 * kMb));
  memory.See(Host(800 * kMb, 30 * kMb, 150 * kMb));
  memory.TakeAreas(SharedAreas(), Host(800 * kMb, 30 * kMb, 150 * kMb));
  memory.TakeObjects({.bytes = 0, .whole = true}, Host(800 * kMb, 30 * kMb, 150 * kMb));
  memory.See(Host(800 * kMb, 30 * kMb, 150 * kMb));
  EXPECT_TRUE(memory.host_shares()) << "a reader that had been there before";
  EXPECT_TRUE(memory.host_lost());
  memory.Ask(Host(800 * kMb, 30 * kMb, 150 * kMb));
  memory.TakeAreas(SharedAreas(), Host(800 * kMb, 30 * kMb, 150 * kMb));
  memory.TakeObjects({.bytes = 0, .whole = true}, Host(800 * kMb, 30 * kMb, 150 * kMb));
  memory.See(Host(800 * kMb, 30 * kMb, 150 * kMb));
  EXPECT_FALSE(memory.host_shares());
  EXPECT_FALSE(memory.host_lost());
}

TEST(CellMemory, DoesNotAnswerForWhatOthersAreKnownToHave) {
  CellMemory memory;
  memory.See(Host(0, 0, 100 * kMb, 0));
  memory.See(Host(0, 0, 500 * kMb, 400 * kMb));
  EXPECT_FALSE(memory.host_shares());
  memory.SetShared(390 * kMb);  // of that it has itself
  memory.See(Host(0, 0, 500 * kMb, 400 * kMb));
  EXPECT_TRUE(memory.host_shares());
}

TEST(CellMemory, DoesNotAnswerForWhatTheHostLosesWhileItSleeps) {
  CellMemory memory;
  memory.See(Host(0, 0, 100 * kMb));
  memory.SeeAsleep(Host(0, 0, 900 * kMb));
  memory.See(Host(0, 0, 905 * kMb));
  EXPECT_FALSE(memory.host_shares());
  memory.TakeAreas(Areas(1, 400 * kMb), Host(0, 0, 905 * kMb));
  EXPECT_EQ(SumOf(memory), 5 * kMb);
}

TEST(CellMemory, IsChargedForWhatItKeepsFromBeingMeasured) {
  CellMemory memory;
  memory.See(Host(0, 10 * kMb, 10 * kMb));
  memory.ChargeObjects(Host(0, 14 * kMb, 10 * kMb));
  EXPECT_EQ(SumOf(memory), 4 * kMb);
  memory.ChargeAreas(Host(0, 14 * kMb, 17 * kMb));
  EXPECT_EQ(SumOf(memory), 11 * kMb);
}

TEST(CellMemory, OfWhichEachLookIsCutShortAnswersForAll) {
  CellMemory memory;
  memory.See(Host(0, 0, 0));
  SharedAreas cut = Areas(1, 9 * kMb);
  cut.cut = true;
  for (int i = 0; i < 3; ++i) memory.TakeAreas(cut, Host(0, 0, 100 * kMb));
  EXPECT_EQ(SumOf(memory), 9 * kMb) << "a busy machine";
  memory.TakeAreas(cut, Host(0, 0, 100 * kMb));
  EXPECT_EQ(SumOf(memory), 100 * kMb);
}

}  // namespace
}  // namespace hutch
