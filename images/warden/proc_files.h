// SPDX-License-Identifier: Apache-2.0

// Reads the files of /proc that show processes: without the heap, and without trust in what they
// say. For what measures (measure.h, sleep.h); a file that is not there, or hidden, is empty.
//
// Thread contract: any thread.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "images/warden/clock.h"

namespace hutch {

// Of our own processor time, for what one cell's processes have opened or mapped.
inline constexpr int64_t kMaxObjectsNs = 50'000'000;
inline constexpr size_t kMaxAreasText = 8 << 20;  // of a list of mappings
inline constexpr char kMemfdPath[] = "/memfd:";   // how the path of a mapping of one begins

// ---- lists

struct DirectoryEntry {  // of getdents64
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[1];  // NUL-terminated, as long as it takes
};

// Calls `body` with each name in a directory that is a number, until it returns false.
template <typename Body>
void EachNumber(int directory, Body body) {
  alignas(DirectoryEntry) char entries[8192];
  for (;;) {
    const long size = syscall(SYS_getdents64, directory, entries, sizeof entries);
    if (size <= 0) return;
    for (long at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(entries + at);
      at += entry->length;
      if (entry->name[0] < '0' || entry->name[0] > '9') continue;
      if (!body(strtol(entry->name, nullptr, 10))) return;
    }
  }
}

// EachNumber() with a place in the list of its own, as others may go through it meanwhile. False:
// errno says why it cannot be opened.
template <typename Body>
bool EachNumberIn(int proc, const char* path, Body body) {
  const int list = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list < 0) return false;
  EachNumber(list, body);
  close(list);
  return true;
}

// ---- texts

using Text = char[4096];

// The text of a file in /proc, or "" where it is not there, or hidden.
const char* ReadFile(int proc, const char* path, Text& text);
uint64_t Field(const char* text, const char* name);

// A directory of /proc that shows a process: its own, or that of a thread of it.
struct View {
  explicit View(pid_t pid) { snprintf(path, sizeof path, "%d", pid); }
  explicit View(const char* name) { snprintf(path, sizeof path, "%s", name); }
  View(pid_t pid, pid_t thread) { snprintf(path, sizeof path, "%d/task/%d", pid, thread); }
  char path[64];
};

const char* ReadFile(int proc, const View& view, const char* file, Text& text);

// Calls `body` with each line of a file, of `most` characters at the most. False: there are more,
// or it is hidden.
template <typename Body>
bool EachLine(int proc, const View& view, const char* file, size_t most, Body body) {
  char text[32768];  // a path takes four times 4096 at most
  char path[128];
  snprintf(path, sizeof path, "%s/%s", view.path, file);
  const int fd = openat(proc, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return errno == ENOENT || errno == ESRCH;
  size_t have = 0;
  ssize_t size = 0;
  for (size_t seen = 0; seen < most && (size = read(fd, text + have, sizeof text - 1 - have)) > 0;
       seen += static_cast<size_t>(size)) {
    have += static_cast<size_t>(size);
    text[have] = '\0';
    char* line = text;
    for (char* end; (end = strchr(line, '\n')) != nullptr; line = end + 1) {
      *end = '\0';
      body(line);
    }
    have -= static_cast<size_t>(line - text);
    memmove(text, line, have);
  }
  close(fd);
  return size == 0 || (size < 0 && errno == ESRCH);
}

int64_t OwnNs();

// Reads a file to its end, or until the time is over: false then, and where it is hidden.
template <typename Body>
bool EachPiece(int proc, const char* path, int64_t begun, Body body) {
  char text[32768];
  const int fd = openat(proc, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return errno == ENOENT || errno == ESRCH;  // it has just gone
  ssize_t size;
  while ((size = read(fd, text, sizeof text - 1)) > 0 && OwnNs() - begun < kMaxObjectsNs) {
    text[size] = '\0';
    body(text, static_cast<size_t>(size));
  }
  close(fd);
  return size == 0 || (size < 0 && errno == ESRCH);
}

// ---- what they show

uint64_t ResidentPages(int proc, const View& view);
uint64_t PageKb();
// What counts for a process whose memory cannot be seen: all that the host has.
uint64_t HostKb();

struct ThreadState {
  bool exiting = true;  // or gone
  bool running = false;
};

ThreadState StateOf(int proc, const View& thread);

// The files that /proc shows of a process are those of its first thread, and are empty once that
// one has ended, though others live on. Finds a living thread of such a process.
struct Living {
  pid_t thread = 0;     // 0: there is none that can be seen
  uint64_t pages = 0;   // resident ones of the process
  bool hidden = false;  // its threads take turns so fast that none can be seen: an honest program
                        // has at least one that stays
};

Living FindThread(int proc, pid_t pid);

struct Share {
  uint64_t anonymous_kb = 0;
  uint64_t shared_kb = 0;
  uint64_t scratch_kb = 0;  // mapped files of the scratch, and memory for a result
};

// Never less than the share, and from counters: nobody's lock is waited for.
Share MeasureMost(int proc, pid_t pid);

// Fills `text` with the status of a process. `*view` is what shows its memory. False: nothing does,
// though it has some.
bool ReadStatus(int proc, pid_t pid, View* view, Text& text);

// One line of maps, or the first one of an area in smaps.
struct Area {
  uint64_t size = 0;
  uint64_t offset = 0;
  dev_t device = 0;
  uint64_t inode = 0;
  const char* path = "";

  explicit Area(const char* line) {
    unsigned long long begin = 0, end = 0, from = 0, number = 0;
    unsigned high = 0, low = 0;
    int path_at = 0;
    if (sscanf(line, "%llx-%llx %*s %llx %x:%x %llu %n", &begin, &end, &from, &high, &low, &number,
               &path_at) != 6) {
      return;
    }
    size = end - begin;
    offset = from;
    device = makedev(high, low);
    inode = number;
    path = line + path_at;
  }
};

// Of the time for which a cell's processes kept a measurement waiting, each by its locks.
inline constexpr int64_t kMaxWaitedUs = 300'000;

// How long others kept this thread waiting. A processor that is busy elsewhere is not counted.
class Waiting {
 public:
  template <typename Body>
  void In(Body body) {
    const long before = Waits();
    const int64_t begun = NowUs();
    body();
    if (Waits() != before) us_ += NowUs() - begun;
  }
  bool over() const { return us_ > kMaxWaitedUs; }

 private:
  static long Waits() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  }
  int64_t us_ = 0;
};

}  // namespace hutch
