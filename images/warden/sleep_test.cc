// SPDX-License-Identifier: Apache-2.0

#include "images/warden/sleep.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

namespace hutch {
namespace {

struct Shared {
  std::atomic<int> ready{0};
  std::atomic<bool> forks{false};
  std::atomic<bool> ends{false};
};

Shared* NewShared() {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Shared;
}

std::vector<pid_t> Children(pid_t pid) {
  std::vector<pid_t> found;
  const std::string number = std::to_string(pid);
  std::ifstream file("/proc/" + number + "/task/" + number + "/children");
  for (pid_t child; file >> child;) found.push_back(child);
  return found;
}

void WaitUntilItPauses(pid_t pid) {
  for (std::string text; text.find(") S") == std::string::npos; usleep(1000))
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
}

// In place of a cell's /proc, which shows its processes only: a directory with their numbers.
class Numbers {
 public:
  Numbers() {
    EXPECT_NE(mkdtemp(name_), nullptr);
    fd_ = open(name_, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  ~Numbers() {
    for (int i = 1; i <= count_; ++i) unlinkat(fd_, std::to_string(i).c_str(), 0);
    close(fd_);
    rmdir(name_);
  }
  void Show(int count) {
    while (count_ < count)
      close(openat(fd_, std::to_string(++count_).c_str(), O_CREAT | O_WRONLY, 0600));
  }
  int fd() const { return fd_; }

 private:
  char name_[32] = "/tmp/sleep_test_XXXXXX";
  int fd_ = -1;
  int count_ = 0;
};

class SleepTest : public testing::Test {
 protected:
  // A process with so many children, all of which sleep.
  void Make(int children) {
    init_ = fork();
    if (init_ == 0) {
      signal(SIGUSR1, [](int) {});
      for (int i = 0; i < children; ++i) {
        if (fork() != 0) continue;
        ++shared_->ready;
        for (;;) pause();
      }
      ++shared_->ready;
      for (;;) pause();
    }
    numbers_.Show(children + 1);
    while (shared_->ready != children + 1) usleep(1000);
    for (const pid_t pid : Children(init_)) WaitUntilItPauses(pid);
    WaitUntilItPauses(init_);
    while (!sleep_.Begin(proc_, init_, numbers_.fd()) || !sleep_.Lasts()) usleep(1000);
  }
  ~SleepTest() override {
    for (const pid_t pid : Children(init_)) kill(pid, SIGKILL);
    kill(init_, SIGKILL);
    waitpid(init_, nullptr, 0);
    close(proc_);
  }
  bool Wakes() const {
    for (int i = 0; i < 5000 && sleep_.Lasts(); ++i) usleep(1000);
    return !sleep_.Lasts();
  }

  const int proc_ = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  Shared* const shared_ = NewShared();
  Numbers numbers_;
  Sleep sleep_;
  pid_t init_ = 0;
};

TEST_F(SleepTest, LastsWhileNoProcessRuns) {
  Make(3);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(sleep_.Lasts());
}

TEST_F(SleepTest, IsOverWhenOneRuns) {
  Make(0);
  kill(init_, SIGUSR1);
  EXPECT_TRUE(Wakes());
}

TEST_F(SleepTest, IsOverWhenAChildOfItRuns) {
  Make(2);
  kill(Children(init_).at(1), SIGUSR1);
  EXPECT_TRUE(Wakes());
}

TEST_F(SleepTest, IsOverWhenOneEnds) {
  Make(0);
  kill(init_, SIGKILL);
  EXPECT_TRUE(Wakes());
}

TEST_F(SleepTest, CannotBeSaidOfAProcessThatWasNotFound) {
  Make(1);
  numbers_.Show(3);
  EXPECT_FALSE(sleep_.Begin(proc_, init_, numbers_.fd()));
  EXPECT_FALSE(sleep_.Lasts());
}

TEST_F(SleepTest, CannotBeSaidOfTooMany) {
  Make(1);
  numbers_.Show(1);
  Sleep other;
  EXPECT_FALSE(other.Lasts()) << "of none";
  EXPECT_FALSE(other.Begin(proc_, getppid() + 0x3fffffff, numbers_.fd())) << "of one that is gone";
}

TEST(Allowance, IsAShareOfTheTimeAndNoMoreThanWasSaved) {
  Allowance allowance(2, 20'000);
  EXPECT_TRUE(allowance.Has(2'000'000)) << "all of it, to begin with";
  allowance.Spend(20'001);
  EXPECT_FALSE(allowance.Has(2'000'000));
  EXPECT_TRUE(allowance.Has(2'100'000));
  EXPECT_TRUE(allowance.Has(900'000'000));
  allowance.Spend(20'000);
  EXPECT_FALSE(allowance.Has(900'000'000)) << "what is saved has an end";
}

}  // namespace
}  // namespace hutch
