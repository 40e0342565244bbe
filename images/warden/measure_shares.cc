// SPDX-License-Identifier: Apache-2.0

// The true shares of memory that processes have.
#include <sys/stat.h>

#include <algorithm>

#include "images/warden/measure.h"
#include "images/warden/proc_files.h"

namespace hutch {
namespace {

constexpr char kLent[] = "/memfd:hutch-arguments";
constexpr uint64_t kLittleKb = 1024;
constexpr uint64_t kLittleScratchKb = 64;  // mapped by one process
// Of the warden's own processor time, for the shares of one cell's processes: a walk takes 0.2 ms
// for an ordinary one, 10 ms and more for one with as many maps as there may be. What is left then
// counts by its resident size, so that nobody keeps the warden from its other cells. On a slow
// processor, as an emulated one, where honest ones take as long, it is so many walks of our own.
constexpr int64_t kMaxWalkNs = 50'000'000;
constexpr int64_t kMaxSlowWalkNs = 500'000'000;
constexpr int64_t kMaxOwnWalks = 2000;    // of 0.01 ms
constexpr size_t kMaxMapsText = 2 << 20;  // 1500 maps: with more, what comes after them counts

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
    const bool is_of_scratch = area.inode != 0 && scratches_.Have(area.device);
    if (!is_of_scratch && strncmp(area.path, kLent, sizeof kLent - 1) == 0) {
      total_kb_ = &lent_kb_;
    } else if (is_of_scratch || strncmp(area.path, kMemfdPath, sizeof kMemfdPath - 1) == 0) {
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

}  // namespace

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

}  // namespace hutch
