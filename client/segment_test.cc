// SPDX-License-Identifier: Apache-2.0

#include "client/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace hutch {
namespace {

constexpr size_t kSize = 200'000;
constexpr auto kLong = std::chrono::hours(1);

std::string Content(int fd, size_t size) {
  std::string text(size, '\0');
  EXPECT_EQ(::pread(fd, text.data(), size, 0), static_cast<ssize_t>(size));
  return text;
}

std::shared_ptr<SegmentPool> MakePool(size_t bytes = 64 << 20) {
  return std::make_shared<SegmentPool>(bytes, kLong);
}

// Lent and given back as of a cell that is certainly dead.
void UseOnce(SegmentPool& pool, std::string_view content, const std::string& worker = "w") {
  const auto segment = pool.Take(content.size(), worker);
  segment->Fill(std::array{content});
  const Fd fd = segment->Lend();
  segment->Ended();
}

TEST(Segment, HoldsEachPartAtTheNextPage) {
  Segment segment(16384);
  for (int round = 0; round < 3; ++round) {  // by write(), then by our mapping
    const std::string first(5000, static_cast<char>('a' + round));
    segment.Fill(std::array<std::string_view, 2>{first, "second"});
    const Fd fd = segment.Lend();
    const std::string text = Content(fd.get(), 16384);
    EXPECT_EQ(text.substr(0, 5000), first);
    EXPECT_EQ(text.substr(8192, 6), "second");
    segment.Ended();
  }
}

TEST(Segment, WhatACallDoesNotFillIsZeroWhateverWasThereBefore) {
  Segment segment(16384);
  const std::string secret(16384, 's');
  segment.Fill(std::array<std::string_view, 1>{secret});
  segment.Fill(std::array<std::string_view, 2>{"a", "b"});
  const Fd fd = segment.Lend();
  std::string expected(16384, '\0');
  expected[0] = 'a';
  expected[4096] = 'b';
  EXPECT_EQ(Content(fd.get(), 16384), expected);
}

// The borrower of these tests has our own uid, and so may open the file anew: it is the seal that
// holds then.
TEST(Segment, ABorrowerCannotWriteByAnyWay) {
  Segment segment(8192);
  segment.Fill(std::array<std::string_view, 1>{"content"});
  const Fd fd = segment.Lend();
  EXPECT_EQ(Content(fd.get(), 7), "content") << "the harmless counterpart: it can be read";
  EXPECT_EQ(::pwrite(fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(::mmap(nullptr, 8192, PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  void* shared = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(shared, MAP_FAILED);
  EXPECT_EQ(::mprotect(shared, 8192, PROT_READ | PROT_WRITE), -1);
  ::munmap(shared, 8192);
  EXPECT_EQ(::ftruncate(fd.get(), 0), -1);
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  const Fd again(::open(path.c_str(), O_RDWR));
  if (again) {
    EXPECT_EQ(::pwrite(again.get(), "x", 1, 0), -1);
    EXPECT_EQ(::mmap(nullptr, 8192, PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
    EXPECT_EQ(::ftruncate(again.get(), 0), -1);
    EXPECT_EQ(::fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  }
  EXPECT_EQ(Content(fd.get(), 7), "content");
}

TEST(Segment, AnotherUserCannotOpenItAnew) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  Segment segment(8192);
  segment.Fill(std::array<std::string_view, 1>{"content"});
  const Fd fd = segment.Lend();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
    char text[7];
    const bool read = ::pread(fd.get(), text, sizeof text, 0) == 7;
    const bool opened = ::open(path.c_str(), O_RDONLY) >= 0 || ::open(path.c_str(), O_RDWR) >= 0;
    ::_exit(read && !opened ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Segment, BorrowersDoNotMeetInOffsetsFlagsOrLocks) {
  Segment segment(8192);
  segment.Fill(std::array<std::string_view, 1>{"content"});
  const Fd one = segment.Lend();
  const Fd other = segment.Lend();
  EXPECT_EQ(::lseek(one.get(), 5, SEEK_SET), 5);
  EXPECT_EQ(::fcntl(one.get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(::lseek(other.get(), 0, SEEK_CUR), 0);
  EXPECT_EQ(::fcntl(other.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(SegmentPool, UsesAgainWhatCameBack) {
  const auto pool = MakePool();
  const Segment* first = nullptr;
  {
    const auto segment = pool->Take(kSize, "w");
    first = segment.get();
    segment->Fill(std::array{std::string_view("content")});
    const Fd fd = segment->Lend();
    segment->Ended();
  }
  EXPECT_EQ(pool->Take(kSize - 10'000, "w").get(), first);
}

TEST(SegmentPool, NeverUsesAgainWhatMayStillBeBorrowed) {
  const auto pool = MakePool();
  Fd fd;
  {
    const auto segment = pool->Take(kSize, "w");
    segment->Fill(std::array{std::string_view("content")});
    fd = segment->Lend();
    const Fd second = segment->Lend();
    segment->Ended();  // of one of the two
  }
  EXPECT_EQ(pool->held_bytes(), 0u);
  EXPECT_EQ(Content(fd.get(), 7), "content") << "the cell keeps what it has";
}

TEST(SegmentPool, WorkersDoNotShare) {
  const auto pool = MakePool();
  UseOnce(*pool, std::string(kSize, 'x'), "one");
  const size_t held = pool->held_bytes();
  EXPECT_GE(held, kSize);
  const auto segment = pool->Take(kSize, "other");
  EXPECT_EQ(pool->held_bytes(), held) << "what another worker's cell had was taken";
  EXPECT_NE(pool->Take(kSize, "one"), segment);
  EXPECT_EQ(pool->held_bytes(), held) << "what came back unused is held again";
}

TEST(SegmentPool, ALargeSegmentIsNotSpentOnASmallArgument) {
  const auto pool = MakePool();
  UseOnce(*pool, std::string(8 << 20, 'x'));
  const size_t held = pool->held_bytes();
  const auto small = pool->Take(100'000, "w");
  EXPECT_EQ(pool->held_bytes(), held);
  EXPECT_LT(small->capacity(), size_t{1} << 20);
}

TEST(SegmentPool, HoldsNoMoreThanItsBoundAndTheYoungest) {
  const auto pool = MakePool(1 << 20);
  for (const char* worker : {"a", "b", "c"}) UseOnce(*pool, std::string(400'000, 'x'), worker);
  EXPECT_LE(pool->held_bytes(), size_t{1} << 20);
  const size_t held = pool->held_bytes();
  pool->Take(400'000, "a");
  EXPECT_EQ(pool->held_bytes(), held) << "the oldest was to go";
  UseOnce(*pool, std::string(4 << 20, 'x'));
  EXPECT_LE(pool->held_bytes(), size_t{1} << 20) << "one that is larger than the bound is not held";
}

TEST(SegmentPool, GivesBackWhatNobodyUsesForAWhile) {
  const auto pool = std::make_shared<SegmentPool>(64 << 20, std::chrono::milliseconds(20));
  for (int round = 0; round < 3; ++round) {  // the thread ends and is started again
    UseOnce(*pool, std::string(kSize, 'x'));
    while (pool->held_bytes() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(SegmentPool, ASegmentMayOutliveIt) {
  auto pool = MakePool();
  auto segment = pool->Take(kSize, "w");
  pool.reset();
  segment->Fill(std::array{std::string_view("content")});
  segment.reset();
}

// Waits until every other thread of this process sleeps.
void AwaitSleepOfOthers() {
  const auto sleep = [](const std::filesystem::path& task) {
    std::ifstream file(task / "stat");
    std::string stat;
    std::getline(file, stat);
    return stat.substr(stat.rfind(')') + 1, 2) == " S";
  };
  const auto all = [&] {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
      if (task.path().filename() != std::to_string(::getpid()) && !sleep(task.path())) return false;
    return true;
  };
  while (!all()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(SegmentPool, AChildMayDestroyItsCopy) {
  auto pool = MakePool();
  UseOnce(*pool, std::string(kSize, 'x'));
  AwaitSleepOfOthers();  // the pool's thread waits for what is held to be old
  const pid_t child = ::fork();
  if (child == 0) {
    pool.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(SegmentPool, ThreadsShareIt) {
  const auto pool = MakePool(2 << 20);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string content(100'000 + static_cast<size_t>(i) * 50'000,
                                static_cast<char>('a' + i));
      for (int round = 0; round < 50; ++round) {
        const auto segment = pool->Take(content.size(), round % 2 == 0 ? "one" : "other");
        segment->Fill(std::array{std::string_view(content)});
        const Fd fd = segment->Lend();
        ASSERT_EQ(Content(fd.get(), content.size()), content);
        segment->Ended();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(pool->held_bytes(), size_t{2} << 20);
}

}  // namespace
}  // namespace hutch
