// SPDX-License-Identifier: Apache-2.0

#include "client/lending.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace hutch {
namespace {

constexpr size_t kLentSize = 1 << 20;

class LendingTest : public ::testing::Test {
 protected:
  std::vector<Fd> Lend(char fill) {
    content_.assign(kLentSize, fill);
    std::vector<Fd> descriptors;
    lending_.Lend({Buffer(content_)}, "worker", descriptors);
    return descriptors;
  }

  std::shared_ptr<SegmentPool> segments_ =
      std::make_shared<SegmentPool>(64 << 20, std::chrono::seconds(60));
  Lending lending_{segments_};
  std::string content_;
};

TEST_F(LendingTest, WhatIsStillOpenOrMappedStaysLent) {
  std::vector<Fd> theirs = Lend('a');
  lending_.FreeReturned(true);
  EXPECT_GE(lending_.bytes(), kLentSize);
  void* const mapped = ::mmap(nullptr, kLentSize, PROT_READ, MAP_PRIVATE, theirs[0].get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  theirs.clear();
  lending_.FreeReturned(true);
  EXPECT_TRUE(lending_.any());
  ::munmap(mapped, kLentSize);
  lending_.FreeReturned(true);
  EXPECT_FALSE(lending_.any());
  EXPECT_EQ(lending_.bytes(), 0u);
}

// Its pages may be in a pipe.
TEST_F(LendingTest, WhatCameBackOfALivingCellServesThatCellAndNoOther) {
  const auto inode = [](const Fd& fd) {
    struct stat status{};
    EXPECT_EQ(::fstat(fd.get(), &status), 0);
    return status.st_ino;
  };
  const ino_t first = inode(Lend('a')[0]);
  lending_.FreeReturned(true);
  EXPECT_FALSE(lending_.any());
  std::vector<Fd> again = Lend('b');
  EXPECT_EQ(inode(again[0]), first);
  char byte = 0;
  EXPECT_EQ(::pread(again[0].get(), &byte, 1, kLentSize - 1), 1);
  EXPECT_EQ(byte, 'b');
  again.clear();
  lending_.FreeReturned(true);
  lending_ = Lending(segments_);
  EXPECT_EQ(segments_->held_bytes(), 0u);
  EXPECT_NE(inode(Lend('c')[0]), first);
}

TEST_F(LendingTest, OnceNobodyIsAskedNothingIsKept) {
  const std::vector<Fd> held = Lend('a');
  Lend('b');
  lending_.FreeReturned(true);  // one is there for the next call, one is held
  lending_.FreeAll();
  EXPECT_FALSE(lending_.any());
  EXPECT_EQ(lending_.bytes(), 0u);
  EXPECT_EQ(segments_->held_bytes(), 0u) << "it would serve another cell";
}

// Code can have a call fail to be sent, and look at what it has while others use it again.
TEST_F(LendingTest, WhatWasNeverSentIsUsedAgainAndNothingOfEarlierCalls) {
  const std::vector<Fd> first = Lend('a');
  const uint64_t lent = lending_.bytes();
  Lend('b');
  lending_.TakeBackUnsent();
  EXPECT_EQ(segments_->held_bytes(), lent);
  EXPECT_EQ(lending_.bytes(), lent);
  lending_.TakeBackUnsent();
  EXPECT_EQ(lending_.bytes(), lent);
}

TEST_F(LendingTest, BeforeACallThatIsLentNothingOnlyTheLatestIsLookedAt) {
  Lend('a');
  Lend('b');
  lending_.FreeReturned(false);
  EXPECT_LT(lending_.bytes(), 2 * kLentSize);
  EXPECT_TRUE(lending_.any());
  lending_.FreeReturned(true);
  EXPECT_FALSE(lending_.any());
}

// Another cell may have it, so what this one gave back of it is not known.
TEST_F(LendingTest, WhatIsLentAsItIsCountsOnce) {
  const auto own = std::make_shared<Segment>(kLentSize);
  const Buffer buffer({own->Map(), kLentSize}, own);
  std::vector<Fd> descriptors;
  for (int i = 0; i < 3; ++i) lending_.Lend({buffer}, "worker", descriptors);
  EXPECT_EQ(lending_.bytes(), kLentSize);
  EXPECT_EQ(descriptors.size(), 3u);
}

}  // namespace
}  // namespace hutch
