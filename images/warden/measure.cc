// SPDX-License-Identifier: Apache-2.0

#include "images/warden/measure.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/proc_files.h"

namespace hutch {
namespace {

constexpr uint64_t kFreeSockets = 64;
// What a TCP socket may hold by the settings that a slot makes (slot.cc), and a packet more each
// way; of the other families each holds what the host has as the default, see BufferKb().
constexpr uint64_t kSocketKb = 256;

// How many threads of a process run, of those that are not its first.
uint32_t RunningThreads(int proc, pid_t pid) {
  char tasks[80];
  snprintf(tasks, sizeof tasks, "%d/task", pid);
  uint32_t running = 0;
  EachNumberIn(proc, tasks, [&](long number) {
    const auto thread = static_cast<pid_t>(number);
    if (thread != pid && StateOf(proc, View(pid, thread)).running) ++running;
    return true;
  });
  return running;
}

// `all_threads`: whether it is worth it to look for one that runs where the first does not.
ProcessTimes TimesOf(int proc, pid_t pid, bool all_threads = false) {
  ProcessTimes times;
  times.pid = pid;
  Text buffer;
  const char* text = ReadFile(proc, View(pid), "stat", buffer);
  const char* after_name = strrchr(text, ')');
  if (after_name == nullptr) return times;
  char state = 0;
  unsigned long long minor = 0, minor_given = 0, major = 0, major_given = 0, user = 0, system = 0;
  unsigned long long began = 0;
  long long children_user = 0, children_system = 0;
  sscanf(after_name + 1,
         " %c %d %*d %*d %*d %*d %*u %llu %llu %llu %llu %llu %llu %lld %lld %*d %*d %u %*d %llu",
         &state, &times.parent, &minor, &minor_given, &major, &major_given, &user, &system,
         &children_user, &children_system, &times.threads, &began);
  static const uint64_t us_per_tick = 1000000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  times.all_threads = times.threads;
  times.running = state == 'R';
  if (!times.running && times.threads > 1 && (all_threads || state == 'Z')) {
    const uint32_t running = RunningThreads(proc, pid);
    times.running = running > 0;
    if (times.running) times.threads = running;
  }
  times.began = began;
  times.given_us = static_cast<uint64_t>(children_user + children_system) * us_per_tick;
  times.cpu_us = (user + system) * us_per_tick + times.given_us;
  times.given_faults = minor_given + major_given;
  times.faults = minor + major + times.given_faults;
  return times;
}

// What a socket of the other families may hold, by the host's own settings.
uint64_t BufferKb() {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int sent = 0, received = 0;
  socklen_t size = sizeof sent;
  if (fd < 0) return 0;
  getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sent, &size);
  getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &received, &size);
  close(fd);
  return static_cast<uint64_t>(std::max(sent, received)) / 1024;
}

bool IsDirectoryOf(int fd, long file_system) {
  struct statfs info;
  struct stat file;
  return fstat(fd, &file) == 0 && S_ISDIR(file.st_mode) && fstatfs(fd, &info) == 0 &&
         static_cast<long>(info.f_type) == file_system;
}

}  // namespace

uint64_t ResidentKb(int proc, pid_t pid, uint32_t threads) {
  const uint64_t pages = ResidentPages(proc, View(pid));
  if (pages != 0 || threads <= 1) return pages * PageKb();
  const Living living = FindThread(proc, pid);
  return living.hidden ? HostKb() : living.pages * PageKb();
}

Usage MeasureProcesses(int proc, pid_t excluded_pid, Counting counting, ProcessTable* times,
                       bool all_threads) {
  Usage usage;
  if (times != nullptr) times->count = 0;
  lseek(proc, 0, SEEK_SET);
  int seen = 0;
  EachNumber(proc, [&](long number) {
    const pid_t pid = static_cast<pid_t>(number);
    ProcessTimes spent;
    if (counting == Counting::kResident) spent = TimesOf(proc, pid, all_threads);
    usage.cpu_us += spent.cpu_us;
    if (times != nullptr && times->count < SpentTime::kMost) times->one[times->count++] = spent;
    if (pid == excluded_pid) return ++seen < kMaxProcesses;
    ++usage.processes;
    if (counting == Counting::kResident) {
      usage.memory_kb += ResidentKb(proc, pid, spent.all_threads);
    } else {
      const Share share = MeasureMost(proc, pid);
      usage.memory_kb += share.anonymous_kb;
      usage.shared_kb += share.shared_kb;
      usage.scratch_kb += share.scratch_kb;
    }
    return ++seen < kMaxProcesses;
  });
  return usage;
}

ProcessorTime ProcessorTimeOf(int proc, pid_t excluded_pid) {
  uint64_t had_ns = 0;
  uint64_t waited_ns = 0;
  int seen = 0;
  lseek(proc, 0, SEEK_SET);
  EachNumber(proc, [&](long number) {
    const auto pid = static_cast<pid_t>(number);
    if (pid == excluded_pid) return true;
    char tasks[80];
    snprintf(tasks, sizeof tasks, "%d/task", pid);
    EachNumberIn(proc, tasks, [&](long thread) {
      Text text;
      unsigned long long had = 0;
      unsigned long long waited = 0;
      sscanf(ReadFile(proc, View(pid, static_cast<pid_t>(thread)), "schedstat", text), "%llu %llu",
             &had, &waited);
      had_ns += had;
      waited_ns += waited;
      return ++seen < kMostThreadsSeen;
    });
    return seen < kMostThreadsSeen;
  });
  return {.had_us = had_ns / 1000, .waited_us = waited_ns / 1000};
}

size_t ListParents(int proc, ProcessParent* parents, size_t most) {
  size_t count = 0;
  lseek(proc, 0, SEEK_SET);
  EachNumber(proc, [&](long number) {
    const pid_t pid = static_cast<pid_t>(number);
    parents[count++] = {pid, TimesOf(proc, pid).parent};
    return count < most;
  });
  return count;
}

HostMemory MeasureHost(int proc) {
  Text buffer;
  const char* text = ReadFile(proc, "meminfo", buffer);
  return {Field(text, "\nMemAvailable:"), Field(text, "\nSUnreclaim:"), Field(text, "\nShmem:")};
}

uint64_t SharedKb() {
  struct sysinfo info;
  return sysinfo(&info) == 0 ? info.sharedram * info.mem_unit / 1024 : 0;
}

unsigned Processors() {
  static const unsigned count = static_cast<unsigned>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  return count;
}

double ProcessorShare(int proc) {
  unsigned running = 0;
  Text text;
  sscanf(ReadFile(proc, "loadavg", text), "%*f %*f %*f %u/", &running);
  // One of them is this one.
  return running <= Processors() + 1 ? 1.0 : static_cast<double>(Processors()) / (running - 1);
}

uint64_t KernelsMemoryKb(int proc) {
  Text text;
  return Field(ReadFile(proc, "meminfo", text), "\nAnonPages:");
}

ScratchUse MeasureScratch(int scratch) {
  struct statfs info;
  if (scratch < 0 || fstatfs(scratch, &info) != 0) return {};
  const uint64_t used = (info.f_blocks - info.f_bfree) * static_cast<uint64_t>(info.f_bsize) / 1024;
  return {used, info.f_files - info.f_ffree,
          (info.f_blocks > 0 && info.f_bfree == 0) || (info.f_files > 0 && info.f_ffree == 0)};
}

uint64_t SocketKb(int proc) {
  // PID 1 of the cell is in its network. The count is of all families, queued ones included.
  Text text;
  const uint64_t used = Field(ReadFile(proc, View(1), "net/sockstat", text), "sockets: used");
  static const uint64_t socket_kb = std::max(kSocketKb, BufferKb());
  return used > kFreeSockets ? (used - kFreeSockets) * socket_kb : 0;
}

bool IsProc(int fd) { return IsDirectoryOf(fd, PROC_SUPER_MAGIC); }
bool IsScratch(int fd) { return IsDirectoryOf(fd, TMPFS_MAGIC); }

}  // namespace hutch
