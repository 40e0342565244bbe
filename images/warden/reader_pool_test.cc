// SPDX-License-Identifier: Apache-2.0

#include "images/warden/reader_pool.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "images/warden/measured_pipe.h"

namespace hutch {
namespace {

ReaderPool* NewPool() {
  auto* pool = new ReaderPool(&MeasurePipe);  // its threads stay
  EXPECT_TRUE(pool->Start());
  return pool;
}

void WaitForAnswer(const ReaderPool& pool) {
  pollfd event{pool.answered(), POLLIN, 0};
  ASSERT_EQ(poll(&event, 1, 30'000), 1);
}

// So many ticks, at each of which every reader that was asked waits.
void Tick(ReaderPool* pool, uint32_t ticks) {
  for (uint32_t i = 0; i < ticks; ++i) pool->EachLate([](const Reader&, uint32_t) {});
}

TEST(ReaderPool, HasAnotherOnlyWhereAllBeforeItAreKeptWaiting) {
  static ReaderPool* const pool = NewPool();
  Pipe pipes[ReaderPool::kMost];
  Reader* readers[ReaderPool::kMost];
  for (int i = 0; i < ReaderPool::kMost; ++i) {
    readers[i] = pool->Free();
    ASSERT_NE(readers[i], nullptr);
    AskAndWait(readers[i], {.owner = i, .proc = pipes[i].ends[0]});
    EXPECT_EQ(pool->Free(), nullptr) << "it may answer soon";
    EXPECT_FALSE(pool->all_late());
    Tick(pool, ReaderPool::kLongWait);
  }
  EXPECT_TRUE(pool->all_late());
  EXPECT_EQ(pool->Free(), nullptr) << "there are no more";
  pipes[2].Say(42);
  WaitForAnswer(*pool);
  int answers = 0;
  pool->EachAnswer([&](const Reader& reader, const Reader::Job& job, const Reader::Answer& answer) {
    ++answers;
    EXPECT_EQ(&reader, readers[2]);
    EXPECT_EQ(job.owner, 2);
    EXPECT_EQ(answer.usage.memory_kb, 42u);
  });
  EXPECT_EQ(answers, 1);
  pool->EachAnswer([&](const Reader&, const Reader::Job&, const Reader::Answer&) { ++answers; });
  EXPECT_EQ(answers, 1) << "each is taken once";
  EXPECT_EQ(pool->Free(), readers[2]);
  EXPECT_FALSE(pool->all_late());
  for (const int i : {0, 1, 3}) pipes[i].Say(1);
}

TEST(ReaderPool, TellsWhoIsKeptWaitingForHowLong) {
  static ReaderPool* const pool = NewPool();
  const Pipe pipe;
  Reader* const reader = pool->Free();
  AskAndWait(reader, {.owner = 5, .proc = pipe.ends[0]});
  uint32_t told = 0;
  const auto tick = [&] {
    pool->EachLate([&](const Reader& late, uint32_t ticks) {
      EXPECT_EQ(late.job().owner, 5);
      told = ticks;
    });
  };
  for (uint32_t i = 1; i < ReaderPool::kLongWait; ++i) tick();
  EXPECT_EQ(told, 0u);
  tick();
  EXPECT_EQ(told, ReaderPool::kLongWait);
  tick();
  EXPECT_EQ(told, ReaderPool::kLongWait + 1);
  pipe.Say(1);
  WaitForAnswer(*pool);
}

}  // namespace
}  // namespace hutch
