#include "images/warden/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace hutch {
namespace {

constexpr char kLent[] = "/memfd:hutch-arguments";
constexpr uint64_t kLittleKb = 1024;
// Of the warden's own processor time, for the shares of one cell's processes: a walk takes 0.2 ms
// for an ordinary one, 10 ms and more for one with as many maps as there may be. What is left then
// counts by its resident size, so that nobody keeps the warden from its other cells. On a slow
// processor, as an emulated one, where honest ones take as long, it is so many walks of our own.
constexpr int64_t kMaxWalkNs = 50'000'000;
constexpr int64_t kMaxSlowWalkNs = 500'000'000;
constexpr int64_t kMaxOwnWalks = 2000;  // of 0.01 ms
constexpr uint64_t kFreeSockets = 64;
constexpr uint64_t kSocketKb = 208;       // net.core.wmem_default
constexpr size_t kMaxMapsText = 2 << 20;  // 1500 maps: with more, what comes after them counts
constexpr int kMaxProcesses = 32768;      // more are not looked at in one round

struct DirectoryEntry {  // of getdents64
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[1];  // NUL-terminated, as long as it takes
};

// The text of a file in /proc, or "" where it is not there, or hidden.
const char* ReadFile(int proc, const char* path) {
  static char text[4096];
  text[0] = '\0';
  const int fd = openat(proc, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return text;
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  text[std::max<ssize_t>(size, 0)] = '\0';
  return text;
}

const char* ReadFile(int proc, pid_t pid, const char* file) {
  char path[64];
  snprintf(path, sizeof path, "%d/%s", pid, file);
  return ReadFile(proc, path);
}

uint64_t Field(const char* text, const char* name) {
  const char* found = strstr(text, name);
  return found == nullptr ? 0 : strtoull(found + strlen(name), nullptr, 10);
}

struct Share {
  uint64_t anonymous_kb = 0;
  uint64_t shared_kb = 0;
};

// Adds up, line by line, the pages of lent memory in the text of an smaps file.
class LentPages {
 public:
  void Line(const char* line) {
    if (*line >= 'A' && *line <= 'Z') {
      if (!inside_) return;
      if (strncmp(line, "Pss:", 4) == 0) pss_kb_ = strtoull(line + 4, nullptr, 10);
      if (strncmp(line, "Anonymous:", 10) != 0) return;
      const uint64_t own_kb = strtoull(line + 10, nullptr, 10);  // written to, and so copied
      total_kb_ += pss_kb_ - std::min(pss_kb_, own_kb);
      return;
    }
    int path = 0;
    sscanf(line, "%*s %*s %*s %*s %*s %n", &path);
    inside_ = path > 0 && strncmp(line + path, kLent, sizeof kLent - 1) == 0;
  }
  uint64_t total_kb() const { return total_kb_; }

 private:
  bool inside_ = false;
  uint64_t pss_kb_ = 0;
  uint64_t total_kb_ = 0;
};

// What a process maps of the memory that large arguments came in, which is the host's: a cell can
// neither make a memfd nor write to that one. (client/segment.h names it; no file of a cell's can
// be called so, since its root is read-only.)
uint64_t LentKb(int proc, pid_t pid) {
  static char text[32768];  // a path takes four times 4096 at most
  char path[64];
  snprintf(path, sizeof path, "%d/smaps", pid);
  const int fd = openat(proc, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return 0;
  LentPages lent;
  size_t have = 0;
  ssize_t size;
  for (size_t seen = 0;
       seen < kMaxMapsText && (size = read(fd, text + have, sizeof text - 1 - have)) > 0;
       seen += static_cast<size_t>(size)) {
    have += static_cast<size_t>(size);
    text[have] = '\0';
    char* line = text;
    for (char* end; (end = strchr(line, '\n')) != nullptr; line = end + 1) {
      *end = '\0';
      lent.Line(line);
    }
    have -= static_cast<size_t>(line - text);
    memmove(text, line, have);
  }
  close(fd);
  return lent.total_kb();
}

Share MeasureShare(int proc, pid_t pid) {
  const uint64_t tables_kb = Field(ReadFile(proc, pid, "status"), "\nVmPTE:");
  const char* text = ReadFile(proc, pid, "smaps_rollup");
  if (*text == '\0') return {ResidentKb(proc, pid), 0};
  Share share{Field(text, "\nPss_Anon:") + Field(text, "\nSwapPss:") + tables_kb,
              Field(text, "\nPss_Shmem:")};
  // The walk of all maps is worth it only where there may be something to take off.
  if (share.shared_kb >= kLittleKb) share.shared_kb -= std::min(share.shared_kb, LentKb(proc, pid));
  return share;
}

// User and system time of a process, and of its children that it has waited for.
uint64_t CpuUs(int proc, pid_t pid) {
  const char* text = ReadFile(proc, pid, "stat");
  const char* after_name = strrchr(text, ')');
  if (after_name == nullptr) return 0;
  unsigned long long user = 0, system = 0;
  long long children_user = 0, children_system = 0;
  sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld %lld", &user,
         &system, &children_user, &children_system);
  static const uint64_t us_per_tick = 1000000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return (user + system + static_cast<uint64_t>(children_user + children_system)) * us_per_tick;
}

int64_t OwnNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

int64_t MaxWalkNs() {
  int64_t own_ns = kMaxSlowWalkNs;
  for (int i = 0; i < 4; ++i) {
    const int64_t begun = OwnNs();
    ReadFile(AT_FDCWD, "/proc/self/smaps_rollup");
    own_ns = std::min(own_ns, OwnNs() - begun);
  }
  return std::clamp(own_ns * kMaxOwnWalks, kMaxWalkNs, kMaxSlowWalkNs);
}

bool IsDirectoryOf(int fd, long file_system) {
  struct statfs info;
  struct stat file;
  return fstat(fd, &file) == 0 && S_ISDIR(file.st_mode) && fstatfs(fd, &info) == 0 &&
         static_cast<long>(info.f_type) == file_system;
}

}  // namespace

uint64_t ResidentKb(int proc, pid_t pid) {
  static const uint64_t page_kb = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 1024;
  unsigned long long pages = 0;
  sscanf(ReadFile(proc, pid, "statm"), "%*u %llu", &pages);
  return pages * page_kb;
}

Usage MeasureProcesses(int proc, pid_t excluded_pid, Exactness exactness) {
  Usage usage;
  alignas(DirectoryEntry) static char entries[32768];
  lseek(proc, 0, SEEK_SET);
  static const int64_t max_walk_ns = MaxWalkNs();
  const int64_t begun = OwnNs();
  for (int seen = 0; seen < kMaxProcesses;) {
    const long size = syscall(SYS_getdents64, proc, entries, sizeof entries);
    if (size <= 0) break;
    for (long at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(entries + at);
      at += entry->length;
      if (entry->name[0] < '1' || entry->name[0] > '9') continue;
      const pid_t pid = static_cast<pid_t>(strtol(entry->name, nullptr, 10));
      ++seen;
      usage.cpu_us += CpuUs(proc, pid);
      if (pid == excluded_pid) continue;
      ++usage.processes;
      if (exactness == Exactness::kResident || OwnNs() - begun > max_walk_ns) {
        usage.memory_kb += ResidentKb(proc, pid);
      } else {
        const Share share = MeasureShare(proc, pid);
        usage.memory_kb += share.anonymous_kb;
        usage.shared_kb += share.shared_kb;
      }
    }
  }
  usage.walk_us = (OwnNs() - begun) / 1000;
  return usage;
}

uint64_t KernelsMemoryKb(int proc) { return Field(ReadFile(proc, "meminfo"), "\nAnonPages:"); }

ScratchUse MeasureScratch(int scratch) {
  struct statfs info;
  if (scratch < 0 || fstatfs(scratch, &info) != 0) return {};
  const uint64_t used = (info.f_blocks - info.f_bfree) * static_cast<uint64_t>(info.f_bsize) / 1024;
  return {used, info.f_files - info.f_ffree,
          (info.f_blocks > 0 && info.f_bfree == 0) || (info.f_files > 0 && info.f_ffree == 0)};
}

uint64_t SocketKb(int proc) {
  // PID 1 of the cell is in its network. The count is of all families, queued ones included.
  const uint64_t used = Field(ReadFile(proc, 1, "net/sockstat"), "sockets: used");
  return used > kFreeSockets ? (used - kFreeSockets) * kSocketKb : 0;
}

bool IsProc(int fd) { return IsDirectoryOf(fd, PROC_SUPER_MAGIC); }
bool IsScratch(int fd) { return IsDirectoryOf(fd, TMPFS_MAGIC); }

}  // namespace hutch
