// SPDX-License-Identifier: Apache-2.0

#include "images/warden/measure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/clock.h"

namespace hutch {
namespace {

constexpr char kLent[] = "/memfd:hutch-arguments";
constexpr char kMemfd[] = "/memfd:";
constexpr uint64_t kLittleKb = 1024;
constexpr uint64_t kLittleScratchKb = 64;  // mapped by one process
// Of the warden's own processor time, for the shares of one cell's processes: a walk takes 0.2 ms
// for an ordinary one, 10 ms and more for one with as many maps as there may be. What is left then
// counts by its resident size, so that nobody keeps the warden from its other cells. On a slow
// processor, as an emulated one, where honest ones take as long, it is so many walks of our own.
constexpr int64_t kMaxWalkNs = 50'000'000;
constexpr int64_t kMaxSlowWalkNs = 500'000'000;
constexpr int64_t kMaxOwnWalks = 2000;  // of 0.01 ms
constexpr uint64_t kFreeSockets = 64;
// What a TCP socket may hold by the settings that a slot makes (slot.cc), and a packet more each
// way; of the other families each holds what the host has as the default, see BufferKb().
constexpr uint64_t kSocketKb = 256;
// Of the kernel's memory, for each: an area of memory and its place in the tree; a file that is
// open; a pipe as full as it may be; a character that /proc says of an open file, which has a line
// of 50 for each lock (230 bytes) and of 80 for each watch of an epoll (200).
constexpr uint64_t kMappingBytes = 256;
constexpr uint64_t kFileBytes = 256;
constexpr uint64_t kPipeBytes = 65536;
constexpr uint64_t kBytesOfText = 4;
// Likewise of the time for which the cell's processes kept us waiting, each by its locks.
constexpr int64_t kMaxWaitedUs = 300'000;
constexpr int64_t kMaxObjectsNs = 50'000'000;  // of our own processor time, to count them
constexpr size_t kMaxMapsText = 2 << 20;       // 1500 maps: with more, what comes after them counts
constexpr size_t kMaxAreasText = 8 << 20;
constexpr int kThreadTries = 8;
constexpr unsigned kExiting = 0x4;  // PF_EXITING, of the flags in a thread's stat

struct DirectoryEntry {  // of getdents64
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[1];  // NUL-terminated, as long as it takes
};

using Text = char[4096];

// The text of a file in /proc, or "" where it is not there, or hidden.
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

// A directory of /proc that shows a process: its own, or that of a thread of it.
struct View {
  explicit View(pid_t pid) { snprintf(path, sizeof path, "%d", pid); }
  explicit View(const char* name) { snprintf(path, sizeof path, "%s", name); }
  View(pid_t pid, pid_t thread) { snprintf(path, sizeof path, "%d/task/%d", pid, thread); }
  char path[64];
};

const char* ReadFile(int proc, const View& view, const char* file, Text& text) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", view.path, file);
  return ReadFile(proc, path, text);
}

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

// The same, with a place in the list of its own, as others may go through it meanwhile. False:
// errno says why it cannot be opened.
template <typename Body>
bool EachNumberIn(int proc, const char* path, Body body) {
  const int list = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list < 0) return false;
  EachNumber(list, body);
  close(list);
  return true;
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

// What counts for a process whose memory cannot be seen: all that the host has.
uint64_t HostKb() {
  static const uint64_t host_kb = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * PageKb();
  return host_kb;
}

struct ThreadState {
  bool exiting = true;  // or gone
  bool running = false;
};

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

// The files that /proc shows of a process are those of its first thread, and are empty once that
// one has ended, though others live on. Finds a living thread of such a process.
struct Living {
  pid_t thread = 0;     // 0: there is none that can be seen
  uint64_t pages = 0;   // resident ones of the process
  bool hidden = false;  // its threads take turns so fast that none can be seen: an honest program
                        // has at least one that stays
};

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

struct Share {
  uint64_t anonymous_kb = 0;
  uint64_t shared_kb = 0;
  uint64_t scratch_kb = 0;  // mapped files of the scratch, and memory for a result
};

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

// Adds up, line by line, what the text of an smaps file says of shared memory that has a name.
class NamedPages {
 public:
  explicit NamedPages(const Scratches& scratches) : scratches_(scratches) {}
  void Line(const char* line) {
    if (*line >= 'A' && *line <= 'Z') {
      if (total_kb_ == nullptr) return;
      if (strncmp(line, "Pss:", 4) == 0) pss_kb_ = strtoull(line + 4, nullptr, 10);
      if (strncmp(line, "Anonymous:", 10) != 0) return;
      const uint64_t own_kb = strtoull(line + 10, nullptr, 10);  // written to, and so copied
      *total_kb_ += pss_kb_ - std::min(pss_kb_, own_kb);
      return;
    }
    const Area area(line);
    total_kb_ = nullptr;
    if (area.inode != 0 && scratches_.Have(area.device)) {
      total_kb_ = &scratch_kb_;
    } else if (strncmp(area.path, kLent, sizeof kLent - 1) == 0) {
      total_kb_ = &lent_kb_;
    } else if (strncmp(area.path, kMemfd, sizeof kMemfd - 1) == 0) {
      total_kb_ = &scratch_kb_;
    }
  }
  uint64_t lent_kb() const { return lent_kb_; }
  uint64_t scratch_kb() const { return scratch_kb_; }

 private:
  const Scratches& scratches_;
  uint64_t* total_kb_ = nullptr;  // what the area counts in; null: in neither
  uint64_t pss_kb_ = 0;
  uint64_t lent_kb_ = 0;
  uint64_t scratch_kb_ = 0;
};

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

// Of what a process maps of shared memory: what large arguments came in, which is the host's, since
// a cell can neither make a memfd nor write to that one (client/segment.h names it); and what is
// the scratch's or that of a result. No area of a cell's own can be called so: a file of the
// scratch is known by its device, and the kernel puts the name that a process gives to an area in
// brackets.
NamedPages ReadNamed(int proc, const View& view, const Scratches& scratches) {
  NamedPages named(scratches);
  EachLine(proc, view, "smaps", kMaxMapsText, [&](const char* line) { named.Line(line); });
  return named;
}

// Fills `text` with the status of a process. `*view` is what shows its memory. False: nothing does,
// though it has some.
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

Share MeasureShare(int proc, pid_t pid, const Scratches& scratches) {
  Text text;
  View view(pid);
  if (!ReadStatus(proc, pid, &view, text)) return {HostKb(), 0};
  const uint64_t tables_kb = Field(text, "\nVmPTE:") + Field(text, "\nHugetlbPages:");
  ReadFile(proc, view, "smaps_rollup", text);
  if (*text == '\0') return {ResidentKb(proc, pid), 0};
  Share share{Field(text, "\nPss_Anon:") + Field(text, "\nSwapPss:") + tables_kb,
              Field(text, "\nPss_Shmem:")};
  // The walk of all maps is worth it only where there may be something to take off.
  if (share.shared_kb >= (scratches.used_kb >= kLittleKb ? kLittleScratchKb : kLittleKb)) {
    const NamedPages named = ReadNamed(proc, view, scratches);
    // Meanwhile it may have unmapped some, or ended: that is not what has no name.
    ReadFile(proc, view, "smaps_rollup", text);
    share.shared_kb = std::min(share.shared_kb, Field(text, "\nPss_Shmem:"));
    share.shared_kb -= std::min(share.shared_kb, named.lent_kb());
    share.scratch_kb = std::min(share.shared_kb, named.scratch_kb());
    share.shared_kb -= share.scratch_kb;
  }
  return share;
}

// Never less than the share, and from counters: nobody's lock is waited for.
Share MeasureMost(int proc, pid_t pid) {
  Text text;
  View view(pid);
  if (!ReadStatus(proc, pid, &view, text)) return {HostKb(), 0};
  return {Field(text, "\nRssAnon:") + Field(text, "\nVmSwap:") + Field(text, "\nVmPTE:") +
              Field(text, "\nHugetlbPages:"),
          0, Field(text, "\nRssShmem:")};
}

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

int64_t OwnNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

int64_t MaxWalkNs() {
  int64_t own_ns = kMaxSlowWalkNs;
  Text text;
  for (int i = 0; i < 4; ++i) {
    const int64_t begun = OwnNs();
    ReadFile(AT_FDCWD, "/proc/self/smaps_rollup", text);
    own_ns = std::min(own_ns, OwnNs() - begun);
  }
  return std::clamp(own_ns * kMaxOwnWalks, kMaxWalkNs, kMaxSlowWalkNs);
}

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

// Inodes of pipes that were counted. Two may take each other's place: then one of them is not.
class PipeSet {
 public:
  bool Add(uint64_t inode) {
    const uint64_t bit = inode * 0x9E3779B97F4A7C15u >> 48;
    const bool is_new = (bits_[bit / 64] >> (bit % 64) & 1) == 0;
    bits_[bit / 64] |= uint64_t{1} << (bit % 64);
    return is_new;
  }

 private:
  uint64_t bits_[1024] = {};
};

// False: none are shown.
bool AddMappings(int proc, const View& view, int64_t begun, KernelObjects* objects) {
  char path[128];
  snprintf(path, sizeof path, "%s/maps", view.path);
  bool shown = false;
  objects->whole &= EachPiece(proc, path, begun, [&](const char* text, size_t size) {
    shown = true;
    objects->bytes += kMappingBytes * static_cast<uint64_t>(std::count(text, text + size, '\n'));
  });
  return shown;
}

void AddOpenFiles(int proc, const View& view, int64_t begun, PipeSet* pipes, Waiting* waiting,
                  KernelObjects* objects) {
  char path[128];
  snprintf(path, sizeof path, "%s/fdinfo", view.path);
  const bool listed = EachNumberIn(proc, path, [&](long fd) {
    objects->bytes += kFileBytes;
    waiting->In([&] {
      snprintf(path, sizeof path, "%s/fdinfo/%ld", view.path, fd);
      objects->whole &= EachPiece(proc, path, begun, [&](const char* text, size_t size) {
        objects->bytes += kBytesOfText * size;
        if (Field(text, "scm_fds:") != 0) objects->whole = false;
      });
      snprintf(path, sizeof path, "%s/fd/%ld", view.path, fd);
      struct stat file;
      if (fstatat(proc, path, &file, 0) == 0 && S_ISFIFO(file.st_mode) && pipes->Add(file.st_ino))
        objects->bytes += kPipeBytes;
    });
    const bool goes_on = OwnNs() - begun < kMaxObjectsNs && !waiting->over();
    return goes_on || (objects->whole = false);
  });
  if (!listed) objects->whole &= errno == ENOENT || errno == ESRCH;
}

// The device of shared memory without a file; 0: none can be had.
dev_t SharedDevice() {
  const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const area = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (area == MAP_FAILED) return 0;
  char begin[32];
  snprintf(begin, sizeof begin, "%lx-", reinterpret_cast<unsigned long>(area));
  dev_t device = 0;
  EachLine(AT_FDCWD, View("/proc/self"), "maps", kMaxAreasText, [&](const char* line) {
    if (strncmp(line, begin, strlen(begin)) == 0) device = Area(line).device;
  });
  munmap(area, size);
  return device;
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

Usage MeasureShares(int proc, pid_t excluded_pid, const pid_t* only, size_t count,
                    const Scratches& scratches) {
  Usage usage;
  usage.exact = true;
  static const int64_t max_walk_ns = MaxWalkNs();
  const int64_t begun = OwnNs();
  Waiting waiting;
  int seen = 0;
  const auto add = [&](long number) {
    const pid_t pid = static_cast<pid_t>(number);
    if (pid == excluded_pid) return ++seen < kMaxProcesses;
    ++usage.processes;
    Share share;
    if (waiting.over() || OwnNs() - begun > max_walk_ns) {
      share = MeasureMost(proc, pid);
      usage.exact = false;
    } else {
      waiting.In([&] { share = MeasureShare(proc, pid, scratches); });
    }
    usage.memory_kb += share.anonymous_kb;
    usage.shared_kb += share.shared_kb;
    usage.scratch_kb += share.scratch_kb;
    return ++seen < kMaxProcesses;
  };
  if (only != nullptr) {
    for (size_t i = 0; i < count; ++i) add(only[i]);
  } else {
    EachNumberIn(proc, ".", add);
  }
  usage.walk_us = (OwnNs() - begun) / 1000;
  usage.kept_waiting = waiting.over();
  return usage;
}

HostMemory MeasureHost(int proc) {
  Text buffer;
  const char* text = ReadFile(proc, "meminfo", buffer);
  return {Field(text, "\nMemAvailable:"), Field(text, "\nSUnreclaim:"), Field(text, "\nShmem:")};
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

KernelObjects MeasureKernelObjects(int proc, pid_t excluded_pid) {
  KernelObjects objects;
  const int64_t begun = OwnNs();
  PipeSet pipes;
  Waiting waiting;
  EachNumberIn(proc, ".", [&](long pid) {
    if (pid == excluded_pid) return true;
    View view(static_cast<pid_t>(pid));
    Living living;
    bool shown = true;
    waiting.In([&] { shown = AddMappings(proc, view, begun, &objects); });
    if (!shown) living = FindThread(proc, static_cast<pid_t>(pid));
    if (living.thread != 0) {
      view = View(static_cast<pid_t>(pid), living.thread);
      waiting.In([&] { shown = AddMappings(proc, view, begun, &objects); });
    }
    AddOpenFiles(proc, view, begun, &pipes, &waiting, &objects);
    const bool lost = living.thread != 0 && (!shown || StateOf(proc, view).exiting);
    if (living.hidden || lost) objects.whole = false;
    return (OwnNs() - begun < kMaxObjectsNs && !waiting.over()) || (objects.whole = false);
  });
  objects.walk_us = (OwnNs() - begun) / 1000;
  objects.kept_waiting = waiting.over();
  return objects;
}

SharedAreas ListSharedAreas(int proc, pid_t excluded_pid, const pid_t* only, size_t count) {
  // The kernel keeps shared memory without a file in a file system of its own.
  static const dev_t device = SharedDevice();
  SharedAreas areas;
  const int64_t begun = OwnNs();
  Waiting waiting;
  const auto add = [&](long number) {
    const auto pid = static_cast<pid_t>(number);
    if (pid == excluded_pid) return true;
    const auto list = [&](const View& view) {
      bool shown = false;
      areas.whole &= EachLine(proc, view, "maps", kMaxAreasText, [&](const char* line) {
        shown = true;
        if (strstr(line, " 00:") == nullptr) return;  // most have no such device
        const Area area(line);
        if (area.inode == 0 || area.device != device) return;
        if (strncmp(area.path, kMemfd, sizeof kMemfd - 1) == 0) return;
        areas.Add(area.inode, (area.offset + area.size) / 1024);
      });
      return shown;
    };
    waiting.In([&] {
      if (list(View(pid))) return;
      const Living living = FindThread(proc, pid);
      if (living.hidden || (living.thread != 0 && !list(View(pid, living.thread))))
        areas.whole = false;
    });
    areas.cut = OwnNs() - begun >= kMaxObjectsNs || waiting.over();
    return !areas.cut;
  };
  if (only != nullptr) {
    for (size_t i = 0; i < count; ++i) add(only[i]);
  } else {
    EachNumberIn(proc, ".", add);
  }
  areas.walk_us = (OwnNs() - begun) / 1000;
  areas.kept_waiting = waiting.over();
  return areas;
}

void SharedAreas::Add(uint64_t inode, uint64_t kb, uint32_t unseen) {
  for (size_t i = 0; i < count; ++i) {
    if (one[i].inode != inode) continue;
    one[i].kb = std::max(one[i].kb, kb);
    return;
  }
  if (count == kMost) {
    whole = false;
  } else {
    one[count++] = {inode, kb, unseen};
  }
}

void SharedAreas::Remember(const SharedAreas& before) {
  for (size_t i = 0; i < before.count; ++i) {
    const auto& then = before.one[i];
    bool seen = false;
    for (size_t k = 0; k < count; ++k) seen = seen || one[k].inode == then.inode;
    if (seen || then.unseen < kForgottenAfter) Add(then.inode, then.kb, then.unseen + 1);
  }
}

uint64_t SharedAreas::MostKb(uint64_t least_kb) const {
  uint64_t kb = 0;
  for (size_t i = 0; i < count; ++i) kb += std::max(one[i].kb, least_kb);
  return kb;
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

void Scratches::Add(int scratch, uint64_t used) {
  struct stat file;
  used_kb += used;
  if (scratch >= 0 && count < kMost && fstat(scratch, &file) == 0) device[count++] = file.st_dev;
}

bool Scratches::Have(dev_t one) const {
  for (size_t i = 0; i < count; ++i) {
    if (device[i] == one) return true;
  }
  return false;
}

bool IsProc(int fd) { return IsDirectoryOf(fd, PROC_SUPER_MAGIC); }
bool IsScratch(int fd) { return IsDirectoryOf(fd, TMPFS_MAGIC); }

}  // namespace hutch
