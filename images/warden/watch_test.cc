// SPDX-License-Identifier: Apache-2.0

#include "images/warden/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "images/warden/clock.h"

namespace hutch {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr uint64_t kGiB = 1 << 20;  // in KiB: what a call may have, where nothing is configured

// A /proc of a cell: a directory with what is read there of a PID 1 and one other process.
class FakeProc {
 public:
  FakeProc() {
    EXPECT_NE(mkdtemp(name_), nullptr);
    std::filesystem::create_directories(path() / "1");
    std::filesystem::create_directories(path() / "2" / "task" / "2");
    Use(0);
    Have(1000, 1000);
  }
  ~FakeProc() { std::filesystem::remove_all(path()); }
  int Open() const { return open(name_, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }
  // The process has used so many hundredths of a second.
  void Use(int time) const {
    Write("stat",
          "2 (a) S 1 2 2 0 -1 0 5 0 0 0 " + std::to_string(time) + " 0 0 0 20 0 1 0 100 0 0 0");
  }
  // Its thread has waited so long for a processor, and had one.
  void Wait(int64_t us, int64_t had_us = 0) const {
    Write("task/2/schedstat",
          std::to_string(had_us * 1000) + " " + std::to_string(us * 1000) + " 3");
  }
  // Its resident size, and the part that is its own.
  void Have(uint64_t resident_kb, uint64_t own_kb) const {
    Write("statm", "9 " + std::to_string(resident_kb / 4) + " 0 0 0 0 0");
    const std::string own = std::to_string(own_kb);
    Write("status", "Name:\ta\nRssAnon:\t" + std::to_string(resident_kb) +
                        " kB\nVmPTE:\t0 kB\nThreads:\t1\n");
    Write("smaps_rollup", "0-1 ---p 0 0:0 0 [rollup]\nPss_Anon: " + own + " kB\nPss_Shmem: 0 kB\n");
  }
  void End() const { std::filesystem::remove_all(path() / "2"); }

 private:
  std::filesystem::path path() const { return name_; }
  void Write(const char* file, const std::string& text) const {
    std::ofstream(path() / "2" / file) << text;
  }

  char name_[32] = "/tmp/watch_test_XXXXXX";
};

// What the host has, in the tests that set it.
HostMemory host;
std::function<void()> at_read = [] {};  // done once, when the host's shared memory is read

// All that a watch refers to.
struct World {
  Settings settings;
  Environments environments;
  Configuration configuration;
  Events events;
  AgentLink agent{settings, events};
  Zygote zygote{settings, environments, configuration, agent, events};
  Slot slots[kMaxSlots];
  HostReads host_reads{[](int) { return host; },
                       [] {
                         std::exchange(at_read, [] {})();
                         return host.shmem_kb;
                       }};
  Watch watch{configuration, zygote, slots, host_reads};
};

class CellWatchTest : public testing::Test {
 protected:
  CellWatchTest() {
    world_->watch.Open();
    EXPECT_TRUE(world_->watch.StartReaders());
    slot_->state = SlotState::kServing;
    cell_->state = CellState::kReady;
    cell_->id = 77;
    cell_->proc = proc_.Open();
    cell_->call.armed_us = now_;
  }
  ~CellWatchTest() override { Free(slot_); }

  // A tick, and the answers of the readers that it sends.
  void Tick() {
    now_ += 20'000;
    EXPECT_EQ(watch_->LookAtReaders(now_), nullptr);
    watch_->LookAtCells(now_);
    EXPECT_EQ(watch_->LookAtWorker(now_), nullptr);
    if (cell_->looks.reader == nullptr) return;
    pollfd event{watch_->answered(), POLLIN, 0};
    ASSERT_EQ(poll(&event, 1, 30'000), 1);
    EXPECT_EQ(watch_->TakeAnswers(), nullptr);
    EXPECT_EQ(cell_->looks.reader, nullptr);
  }
  bool IsLookedAtInOneTick() {
    const int64_t before = cell_->looks.sampled_us;
    Tick();
    return cell_->looks.sampled_us != before;
  }

  const FakeProc proc_;
  World* const world_ = new World;  // a reader's thread stays
  Watch* const watch_ = &world_->watch;
  Slot* const slot_ = &world_->slots[3];
  Cell* const cell_ = &slot_->cell;
  int64_t now_ = NowUs();
};

TEST_F(CellWatchTest, FindsACallThatTookTooLong) {
  cell_->call.deadline_us = now_ + kSecond;
  Tick();
  EXPECT_EQ(cell_->over, kNoLimit);
  now_ += kSecond;
  Tick();
  EXPECT_EQ(cell_->over, kLimitTime);
}

TEST_F(CellWatchTest, FindsACallThatTookTooMuchCpuTime) {
  cell_->call.cpu_us = kSecond / 2;
  proc_.Use(50);
  Tick();
  EXPECT_EQ(cell_->over, kNoLimit);
  proc_.Use(51);
  Tick();
  EXPECT_EQ(cell_->over, kLimitCpuTime);
  EXPECT_EQ(cell_->time.cpu_us, 510'000u);
}

TEST_F(CellWatchTest, TellsHowLongACallWaitedForAProcessorUntilItWasKilled) {
  now_ -= kSecond;  // the last look is at the real time
  cell_->call.armed_us = now_ - 9 * kSecond;
  proc_.Wait(7 * kSecond);
  Tick();
  proc_.Wait(9 * kSecond);
  watch_->SampleLast(slot_);
  EXPECT_EQ(cell_->time.waited_us, 2u * kSecond);
  cell_->time.Begin();
  EXPECT_EQ(cell_->time.waited_us, 0u);
  watch_->SampleLast(slot_);
  EXPECT_EQ(cell_->time.waited_us, 0u) << "nobody has seen how it began";
}

TEST_F(CellWatchTest, ThreadsOfACallThatWaitForEachOtherWaitForNobodyElse) {
  now_ -= kSecond;
  cell_->call.armed_us = now_ - 9 * kSecond;
  proc_.Wait(0);
  Tick();
  proc_.Wait(150 * kSecond, 10 * kSecond);
  watch_->SampleLast(slot_);
  EXPECT_LT(cell_->time.waited_us, kSecond / 2u);
  proc_.Wait(150 * kSecond, 4 * kSecond);
  watch_->SampleLast(slot_);
  EXPECT_GE(cell_->time.waited_us, 6u * kSecond);
  EXPECT_LT(cell_->time.waited_us, 7u * kSecond) << "the rest of what one processor had";
}

TEST_F(CellWatchTest, FindsACallThatTookTooMuchMemory) {
  Tick();
  EXPECT_EQ(cell_->over, kNoLimit);
  proc_.Have(kGiB + 2000, kGiB + 2000);
  for (int i = 0; i < 50 && cell_->over == kNoLimit; ++i) Tick();
  EXPECT_EQ(cell_->over, kLimitMemory);
  EXPECT_GT(cell_->peak_kb, kGiB);
}

TEST_F(CellWatchTest, DoesNotEndACallForWhatItShares) {
  proc_.Have(2 * kGiB, 5000);
  for (int i = 0; i < 50; ++i) Tick();
  EXPECT_EQ(cell_->over, kNoLimit);
  EXPECT_GT(cell_->peak_kb, 0u);
  EXPECT_LT(cell_->peak_kb, kGiB);
}

TEST_F(CellWatchTest, CountsMemoryThatWasGivenForAResultThatDoesNotCome) {
  cell_->memory.result.Give(3 * kGiB, now_);
  for (int i = 0; i < 20; ++i) Tick();
  EXPECT_EQ(cell_->over, kNoLimit) << "the result is on its way";
  cell_->memory.result.Give(0, now_);
  cell_->memory.result.Give(3 * kGiB, now_ - 3 * kSecond);
  for (int i = 0; i < 20 && cell_->over == kNoLimit; ++i) Tick();
  EXPECT_EQ(cell_->over, kLimitMemory);
}

TEST_F(CellWatchTest, DoesNotCountMemoryForAResultThatHasCome) {
  cell_->memory.result.Give(3 * kGiB, now_ - 3 * kSecond);
  cell_->memory.result.Give(0, now_);
  for (int i = 0; i < 20; ++i) Tick();
  EXPECT_EQ(cell_->over, kNoLimit);
}

TEST_F(CellWatchTest, LooksAtACallAtEachTickAndAtOneThatIsToComeNowAndThen) {
  Tick();
  EXPECT_TRUE(IsLookedAtInOneTick()) << "a call runs";
  EXPECT_TRUE(Watch::Needs(*cell_));
  cell_->call.loading = true;
  Tick();
  EXPECT_TRUE(cell_->looks.quiet);
  EXPECT_FALSE(Watch::Needs(*cell_));
  EXPECT_FALSE(IsLookedAtInOneTick());
  now_ += kSecond;
  EXPECT_TRUE(IsLookedAtInOneTick());
}

// A cell between two calls, whose one process sleeps. The host's numbers are the test's.
class SleepingCellTest : public CellWatchTest {
 protected:
  SleepingCellTest() {
    host = {};
    at_read = [] {};
    proc_.End();
    cell_->kept = cell_->call.between = true;
    cell_->init = fork();
    if (cell_->init == 0) {
      signal(SIGUSR1, [](int) {});
      for (;;) pause();
    }
    const std::string stat = "/proc/" + std::to_string(cell_->init) + "/stat";
    for (std::string text; text.find(") S") == std::string::npos;)
      std::getline(std::ifstream(stat), text);
  }
  ~SleepingCellTest() override {
    kill(cell_->init, SIGKILL);
    waitpid(cell_->init, nullptr, 0);
  }

  // It is quiet, and asleep as soon as it has been seen to be.
  void FallAsleep() {
    for (int i = 0; i < 1000 && !cell_->looks.asleep; ++i) {
      usleep(1000);
      Tick();
    }
    ASSERT_TRUE(cell_->looks.asleep);
  }
  void Wake() {
    kill(cell_->init, SIGUSR1);
    while (cell_->looks.sleep.Lasts()) usleep(1000);
  }
};

TEST_F(SleepingCellTest, IsLookedAtAtOnceWhenItWakes) {
  FallAsleep();
  EXPECT_TRUE(Watch::Needs(*cell_));
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(IsLookedAtInOneTick());
  Wake();
  EXPECT_TRUE(IsLookedAtInOneTick());
}

TEST_F(SleepingCellTest, AnswersForWhatItTakesWhileItIsAskedWhetherItSleeps) {
  FallAsleep();
  at_read = [this] {
    Wake();
    host.shmem_kb += 64 << 10;
  };
  Tick();
  EXPECT_FALSE(cell_->looks.asleep);
  EXPECT_TRUE(cell_->memory.host_shares());
}

TEST_F(SleepingCellTest, DoesNotAnswerForWhatOthersTakeMeanwhile) {
  FallAsleep();
  at_read = [] { host.shmem_kb += 64 << 10; };
  Tick();
  EXPECT_TRUE(cell_->looks.asleep);
  Wake();
  Tick();
  EXPECT_FALSE(cell_->looks.asleep);
  EXPECT_FALSE(cell_->memory.host_shares());
}

TEST_F(CellWatchTest, TakesNoAnswerOfAProcessThatIsGone) {
  Tick();
  proc_.Have(kGiB + 2000, kGiB + 2000);
  now_ += kSecond;
  watch_->LookAtCells(now_);
  watch_->LookAtWorker(now_);
  ASSERT_NE(cell_->looks.reader, nullptr);
  cell_->looks.reader = nullptr;  // another user process
  pollfd event{watch_->answered(), POLLIN, 0};
  ASSERT_EQ(poll(&event, 1, 30'000), 1);
  EXPECT_EQ(watch_->TakeAnswers(), nullptr);
  EXPECT_EQ(cell_->over, kNoLimit);
}

}  // namespace
}  // namespace hutch
