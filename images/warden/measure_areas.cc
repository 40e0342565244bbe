// SPDX-License-Identifier: Apache-2.0

// Areas of shared memory without a file, whose pages may be in nobody's page tables.
#include <sys/mman.h>

#include <algorithm>

#include "images/warden/measure.h"
#include "images/warden/proc_files.h"

namespace hutch {
namespace {

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

}  // namespace

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
        if (strncmp(area.path, kMemfdPath, sizeof kMemfdPath - 1) == 0) return;
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

}  // namespace hutch
