// SPDX-License-Identifier: Apache-2.0

#include "loop/loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "loop/background.h"
#include "wire/channel.h"

namespace hutch {
namespace {

using std::chrono::milliseconds;

TEST(Loop, StopsEvenWhenToldBeforeItRuns) {
  Loop loop;
  loop.Stop();
  loop.Run();
}

TEST(Loop, RunsTimersInTheOrderOfTheirTimes) {
  Loop loop;
  std::vector<int> order;
  loop.After(milliseconds(2), [&] { order.push_back(2); });
  loop.After(milliseconds(1), [&] { order.push_back(1); });
  loop.After(milliseconds(3), [&] {
    order.push_back(3);
    loop.Stop();
  });
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(Loop, ACancelledTimerNeverFires) {
  Loop loop;
  bool fired = false;
  const TimerId timer = loop.After(milliseconds(1), [&] { fired = true; });
  loop.Cancel(timer);
  loop.Cancel(timer);
  loop.Cancel(12345);
  loop.After(milliseconds(2), [&] { loop.Stop(); });
  loop.Run();
  EXPECT_FALSE(fired);
}

TEST(Loop, ATimerMayCancelAnotherThatIsDue) {
  Loop loop;
  bool fired = false;
  TimerId second = 0;
  loop.After(milliseconds(0), [&] { loop.Cancel(second); });
  second = loop.After(milliseconds(0), [&] { fired = true; });
  loop.After(milliseconds(1), [&] { loop.Stop(); });
  loop.Run();
  EXPECT_FALSE(fired);
}

TEST(Loop, ATimerMaySetItselfAgain) {
  Loop loop;
  int count = 0;
  std::function<void()> again = [&] {
    if (++count == 5) return loop.Stop();
    loop.After(milliseconds(0), again);
  };
  loop.After(milliseconds(0), again);
  loop.Run();
  EXPECT_EQ(count, 5);
}

TEST(Loop, AnAbsurdDelayDoesNotOverflow) {
  Loop loop;
  bool fired = false;
  const TimerId timer = loop.After(Clock::duration::max(), [&] { fired = true; });
  loop.After(milliseconds(0), [&] { loop.Stop(); });
  loop.Run();
  loop.Cancel(timer);
  EXPECT_FALSE(fired);
}

TEST(Loop, TellsAReadyDescriptor) {
  Loop loop;
  auto [read_end, write_end] = MakePipe();
  std::string got;
  loop.Add(read_end.get(), EPOLLIN, [&](uint32_t) {
    char buffer[8];
    const ssize_t n = ::read(read_end.get(), buffer, sizeof buffer);
    if (n <= 0) return loop.Stop();
    got.append(buffer, static_cast<size_t>(n));
    write_end.reset();
  });
  ASSERT_EQ(::write(write_end.get(), "hi", 2), 2);
  loop.Run();
  EXPECT_EQ(got, "hi");
  loop.Remove(read_end.get());
}

TEST(Loop, ACallbackMayRemoveItselfAndOthers) {
  Loop loop;
  auto [first_read, first_write] = MakePipe();
  auto [second_read, second_write] = MakePipe();
  int calls = 0;
  const auto remove_both = [&](uint32_t) {
    ++calls;
    loop.Remove(first_read.get());
    loop.Remove(second_read.get());
    loop.Remove(second_read.get());
    loop.After(milliseconds(0), [&] { loop.Stop(); });
  };
  loop.Add(first_read.get(), EPOLLIN, remove_both);
  loop.Add(second_read.get(), EPOLLIN, remove_both);
  ASSERT_EQ(::write(first_write.get(), "x", 1), 1);
  ASSERT_EQ(::write(second_write.get(), "x", 1), 1);
  loop.Run();
  EXPECT_EQ(calls, 1) << "the other was removed before its turn";
}

TEST(Loop, ChangesWhatIsWaitedFor) {
  Loop loop;
  auto [a, b] = MakeSocketPair();
  uint32_t seen = 0;
  loop.Add(a.get(), EPOLLIN, [&](uint32_t events) {
    seen = events;
    loop.Stop();
  });
  loop.Change(a.get(), EPOLLIN | EPOLLOUT);
  loop.Run();
  EXPECT_TRUE(seen & EPOLLOUT);
}

TEST(Loop, RunsWhatOtherThreadsPostInTheirOrder) {
  Loop loop;
  std::vector<std::vector<int>> seen(4);
  int left = 4 * 500;
  {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 500; ++i) {
          loop.Post([&, t, i] {
            seen[t].push_back(i);
            if (--left == 0) loop.Stop();
          });
        }
      });
    }
    loop.Run();
    for (std::thread& thread : threads) thread.join();
  }
  for (const std::vector<int>& numbers : seen) {
    ASSERT_EQ(numbers.size(), 500u);
    EXPECT_TRUE(std::ranges::is_sorted(numbers));
  }
}

TEST(Loop, WorkPostedByWorkRunsToo) {
  Loop loop;
  loop.Post([&] { loop.Post([&] { loop.Stop(); }); });
  loop.Run();
}

TEST(Background, LetsRunningWorkEndAndDropsTheRest) {
  std::atomic<int> ended = 0;
  std::atomic<bool> begun = false;
  std::atomic<bool> go_on = false;
  std::thread releaser;
  {
    Background background(1);
    background.Post([&] {
      begun = true;
      while (!go_on) std::this_thread::yield();
      ++ended;
    });
    while (!begun) std::this_thread::yield();
    releaser = std::thread([&] { go_on = true; });
  }
  releaser.join();
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace hutch
