// SPDX-License-Identifier: Apache-2.0

#include "images/warden/proc_files.h"

#include <time.h>

#include <algorithm>

#include "images/warden/measure.h"

namespace hutch {
namespace {

constexpr int kThreadTries = 8;
constexpr unsigned kExiting = 0x4;  // PF_EXITING, of the flags in a thread's stat

}  // namespace

const char* ReadFile(int proc, const char* path, Text& text) {
  text[0] = '\0';
  const int fd = openat(proc, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return text;
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  text[std::max<ssize_t>(size, 0)] = '\0';
  return text;
}

uint64_t Field(const char* text, const char* name) {
  const char* found = strstr(text, name);
  return found == nullptr ? 0 : strtoull(found + strlen(name), nullptr, 10);
}

const char* ReadFile(int proc, const View& view, const char* file, Text& text) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", view.path, file);
  return ReadFile(proc, path, text);
}

int64_t OwnNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

uint64_t ResidentPages(int proc, const View& view) {
  unsigned long long pages = 0;
  Text text;
  sscanf(ReadFile(proc, view, "statm", text), "%*u %llu", &pages);
  return pages;
}

uint64_t PageKb() {
  static const uint64_t page_kb = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 1024;
  return page_kb;
}

uint64_t HostKb() {
  static const uint64_t host_kb = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * PageKb();
  return host_kb;
}

ThreadState StateOf(int proc, const View& thread) {
  Text buffer;
  const char* text = ReadFile(proc, thread, "stat", buffer);
  const char* after_name = strrchr(text, ')');
  char state = 0;
  unsigned flags = 0;
  if (after_name == nullptr ||
      sscanf(after_name + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2) {
    return {};
  }
  return {(flags & kExiting) != 0, state == 'R'};
}

Living FindThread(int proc, pid_t pid) {
  const View process(pid);
  char tasks[80];
  snprintf(tasks, sizeof tasks, "%s/task", process.path);
  uint64_t before = 0;
  for (int i = 0; i < kThreadTries; ++i) {
    Living found;
    bool all_end = true;
    uint64_t listed = 1;
    EachNumberIn(proc, tasks, [&](long number) {
      const auto thread = static_cast<pid_t>(number);
      listed = listed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(number);
      const View view(pid, thread);
      found.pages = ResidentPages(proc, view);
      if (found.pages != 0) found.thread = thread;
      if (found.pages == 0) all_end = all_end && StateOf(proc, view).exiting;
      return found.pages == 0;
    });
    if (found.thread != 0) return found;
    // A thread that is exiting makes no other one: if no other is there now, the process ends.
    if (all_end && (listed == 1 || listed == before)) return {};
    before = all_end ? listed : 0;
  }
  return {.hidden = true};
}

bool ReadStatus(int proc, pid_t pid, View* view, Text& text) {
  ReadFile(proc, *view, "status", text);
  if (Field(text, "\nThreads:") <= 1 || strstr(text, "\nVmPTE:") != nullptr) return true;
  for (int i = 0; i < kThreadTries; ++i) {
    const Living living = FindThread(proc, pid);
    if (living.thread == 0) return !living.hidden;
    *view = View(pid, living.thread);
    ReadFile(proc, *view, "status", text);
    if (strstr(text, "\nVmPTE:") != nullptr) return true;
  }
  return false;
}

Share MeasureMost(int proc, pid_t pid) {
  Text text;
  View view(pid);
  if (!ReadStatus(proc, pid, &view, text)) return {HostKb(), 0};
  return {Field(text, "\nRssAnon:") + Field(text, "\nVmSwap:") + Field(text, "\nVmPTE:") +
              Field(text, "\nHugetlbPages:"),
          0, Field(text, "\nRssShmem:")};
}

}  // namespace hutch
