// SPDX-License-Identifier: Apache-2.0

#include "images/warden/measure.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

namespace hutch {
namespace {

TEST(MeasureTest, TheMostIsNeverLessThanTheShare) {
  std::vector<char> held(32 << 20, 'x');
  const pid_t pid = getpid();
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const Usage share = MeasureShares(proc, 0, &pid, 1);
  const Usage most = MeasureProcesses(proc, 0, Counting::kMost);
  EXPECT_GE(share.memory_kb, 32u << 10);
  EXPECT_GE(most.memory_kb + 1024, share.memory_kb);  // the kernel's counters lag
  EXPECT_FALSE(share.kept_waiting);
  EXPECT_EQ(held.back(), 'x');
  close(proc);
}

// A child whose first thread ends, if `leaves`, while another one, which holds 32 MiB, waits or
// runs until it is killed.
class TwoThreads {
 public:
  TwoThreads(bool leaves, bool spins) {
    int ready[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      static std::vector<char> held;
      static bool runs;
      static int told;
      runs = spins;
      told = ready[1];
      pthread_t thread;
      pthread_create(
          &thread, nullptr,
          [](void*) -> void* {
            held.assign(32 << 20, 'x');
            usleep(50'000);
            if (write(told, "x", 1) != 1) _exit(1);
            for (;;) {
              if (!runs) pause();
            }
          },
          nullptr);
      if (leaves) syscall(SYS_exit, 0);
      for (;;) pause();
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~TwoThreads() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(MeasureTest, SeesAProcessWhoseFirstThreadHasEnded) {
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (const bool leaves : {false, true}) {
    const TwoThreads child(leaves, false);
    const pid_t pid = child.pid();
    EXPECT_GE(ResidentKb(proc, pid), 32u << 10) << leaves;
    EXPECT_GE(MeasureShares(proc, 0, &pid, 1).memory_kb, 32u << 10) << leaves;
  }
  close(proc);
}

TEST(MeasureTest, AProcessThatIsNotWaitedForHasNoMemory) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(ResidentKb(proc, pid), 0u);
  EXPECT_EQ(MeasureShares(proc, 0, &pid, 1).memory_kb, 0u);
  waitpid(pid, nullptr, 0);
  close(proc);
}

TEST(MeasureTest, AProcessRunsWhereAnyThreadOfItDoes) {
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  static ProcessTable table;
  const auto runs = [&](pid_t pid, bool all_threads) {
    MeasureProcesses(proc, 0, Counting::kResident, &table, all_threads);
    for (size_t i = 0; i < table.count; ++i) {
      if (table.one[i].pid == pid) return table.one[i].running;
    }
    ADD_FAILURE() << "it is not in the table";
    return false;
  };
  MeasureProcesses(proc, 0, Counting::kResident, &table, false);
  if (table.count > SpentTime::kMost / 2)
    GTEST_SKIP() << "this machine runs more processes than the table of a cell has places for";
  const TwoThreads left_spins(true, true), left_waits(true, false), spins(false, true);
  EXPECT_TRUE(runs(left_spins.pid(), false));
  EXPECT_FALSE(runs(left_waits.pid(), false));
  EXPECT_TRUE(runs(spins.pid(), true));
  close(proc);
}

// A child that maps what the test has mapped, and waits to be killed.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~Sleeper() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(MeasureTest, ListsSharedAreasThatNobodyHasInPageTables) {
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const auto map = [](size_t size, int flags) {
    return mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  };
  pid_t pids[] = {getpid(), 0};
  size_t processes = 1;
  const auto of_48_mb = [&] {
    const SharedAreas areas = ListSharedAreas(proc, 0, pids, processes);
    EXPECT_TRUE(areas.whole);
    return std::count_if(areas.one, areas.one + areas.count,
                         [](const auto& one) { return one.kb == 48 << 10; });
  };
  void* const own = map(48 << 20, MAP_PRIVATE);
  EXPECT_EQ(of_48_mb(), 0);
  void* const shared = map(48 << 20, MAP_SHARED);
  const Sleeper child;
  pids[processes++] = child.pid();
  EXPECT_EQ(of_48_mb(), 1) << "an area that two processes map is one";
  munmap(shared, 48 << 20);
  munmap(own, 48 << 20);
  EXPECT_EQ(of_48_mb(), 1) << "the child maps it still";
  close(proc);
}

TEST(MeasureTest, RemembersTheFarthestEndOfAnArea) {
  SharedAreas before, now;
  before.Add(1, 100);
  before.Add(1, 70);
  before.Add(2, 5);
  now.Add(1, 10);
  now.Remember(before);
  EXPECT_EQ(now.count, 2u);
  EXPECT_EQ(now.MostKb(0), 105u);
  EXPECT_EQ(now.MostKb(8), 108u);
  for (uint32_t i = 0; i < SharedAreas::kForgottenAfter; ++i) {
    before = now;
    now = {};
    now.Add(1, 10);
    now.Remember(before);
  }
  EXPECT_EQ(now.MostKb(8), 100u) << "one that is gone is forgotten";
  for (uint64_t inode = 1; inode <= SharedAreas::kMost; ++inode) now.Add(inode, 1);
  EXPECT_TRUE(now.whole);
  now.Add(SharedAreas::kMost + 1, 1);
  EXPECT_FALSE(now.whole) << "there is no room for it";
}

TEST(MeasureTest, DistinguishesWhatIsMappedOfTheScratch) {
  char path[] = "/dev/shm/hutch-watch-XXXXXX";
  const int file = mkstemp(path);
  unlink(path);
  EXPECT_EQ(ftruncate(file, 8 << 20), 0);
  void* const scratch = mmap(nullptr, 8 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* const area =
      mmap(nullptr, 16 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memset(scratch, 1, 8 << 20);
  memset(area, 1, 16 << 20);
  Scratches scratches;
  scratches.Add(file, 8 << 10);
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const pid_t pid = getpid();
  const Usage exact = MeasureShares(proc, 0, &pid, 1, scratches);
  EXPECT_TRUE(exact.exact);
  EXPECT_GE(exact.shared_kb, 16u << 10);
  EXPECT_LT(exact.shared_kb, 17u << 10);
  EXPECT_GE(exact.scratch_kb, 8u << 10);
  EXPECT_LT(exact.scratch_kb, 9u << 10);
  const Usage most = MeasureProcesses(proc, 0, Counting::kMost);
  EXPECT_FALSE(most.exact);
  EXPECT_GE(most.scratch_kb, 24u << 10);
  munmap(scratch, 8 << 20);
  munmap(area, 16 << 20);
  close(file);
  close(proc);
}

// A process in a /proc of ours, whose `smaps` is a pipe: what happens while it is read is known.
class MadeProc {
 public:
  MadeProc() {
    EXPECT_NE(mkdtemp(path_), nullptr);
    proc_ = open(path_, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    EXPECT_EQ(mkdirat(proc_, "9", 0700), 0);
    EXPECT_EQ(mkfifoat(proc_, "9/smaps", 0600), 0);
    Write("status", "Name:\tx\nThreads:\t1\nVmPTE:\t 0 kB\n");
  }
  ~MadeProc() {
    for (const char* name : {"9/smaps", "9/status", "9/smaps_rollup"}) unlinkat(proc_, name, 0);
    unlinkat(proc_, "9", AT_REMOVEDIR);
    close(proc_);
    rmdir(path_);
  }
  int proc() const { return proc_; }
  void Write(const char* name, const std::string& text) const {
    const int fd = openat(proc_, ("9/" + std::string(name)).c_str(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(fd);
  }
  void MapShared(int kb) const {
    Write("smaps_rollup", "0-1 ---p 0 00:00 0 [rollup]\nRss: 0 kB\nPss_Anon: 0 kB\nPss_Shmem: " +
                              std::to_string(kb) + " kB\n");
  }
  // Measures the process, of which `smaps` is then empty; `meanwhile` runs while it is read.
  template <typename Body>
  Usage Measure(Body meanwhile) const {
    Scratches scratches;
    scratches.used_kb = 140 << 10;
    std::thread writer([&] {
      const int end = openat(proc_, "9/smaps", O_WRONLY | O_CLOEXEC);
      meanwhile();
      close(end);
    });
    const pid_t pid = 9;
    const Usage usage = MeasureShares(proc_, 0, &pid, 1, scratches);
    writer.join();
    return usage;
  }

 private:
  char path_[32] = "/tmp/hutch-proc-XXXXXX";
  int proc_ = -1;
};

TEST(MeasureTest, WhatIsUnmappedWhileItIsReadIsNoOtherMemory) {
  const MadeProc made;
  made.MapShared(140 << 10);
  EXPECT_EQ(made.Measure([] {}).shared_kb, 140u << 10) << "the counterpart: it has no name";
  EXPECT_EQ(made.Measure([&] { made.MapShared(0); }).shared_kb, 0u);
  made.MapShared(140 << 10);
  EXPECT_EQ(made.Measure([&] { made.Write("smaps_rollup", ""); }).shared_kb, 0u) << "it has ended";
}

}  // namespace
}  // namespace hutch
