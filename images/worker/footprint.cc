// SPDX-License-Identifier: Apache-2.0

#include "images/worker/footprint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace hutch {
namespace {

constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // MADV_*, since Linux 5.14
constexpr size_t kMaxMappings = 8192;
constexpr size_t kMaxSpans = 8192;
constexpr size_t kMaxMapped = 4096;  // pages that are only to be mapped

// Of an entry of /proc/self/pagemap.
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kOfFile = uint64_t{1} << 61;
constexpr uint64_t kExclusive = uint64_t{1} << 56;

struct Mapping {
  uintptr_t from, to;
  size_t first;  // its first page in `states`
};

struct Span {
  uint64_t from;
  uint32_t pages;
  uint32_t copied;  // else only mapped
};

// Mapped when they are needed: what is watched is the heap.
struct Watch {
  Mapping mappings[kMaxMappings];
  size_t count;
  Span spans[kMaxSpans];
};
Watch* watch;
uint8_t* states;

Span kept[kMaxSpans];
size_t kept_count;

size_t PageSize() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

void* Reserve(size_t size) {
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

enum State : uint8_t { kAbsent, kMapped, kOwn };

State StateOf(uint64_t entry) {
  if ((entry & kPresent) == 0) return kAbsent;
  return (entry & (kOfFile | kExclusive)) == kExclusive ? kOwn : kMapped;
}

// Calls what(mapping, page of it, state) for each page. False: the kernel does not report it.
template <typename What>
bool EachPage(const What& what) {
  const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  uint64_t entries[512];
  bool known = false;
  for (size_t i = 0; i < watch->count; ++i) {
    const Mapping& mapping = watch->mappings[i];
    const size_t pages = (mapping.to - mapping.from) / PageSize();
    for (size_t page = 0; page < pages;) {
      const size_t wanted = std::min(pages - page, sizeof entries / sizeof entries[0]);
      const auto place = static_cast<off_t>((mapping.from / PageSize() + page) * sizeof entries[0]);
      const ssize_t size = pread(fd, entries, wanted * sizeof entries[0], place);
      if (size <= 0) break;
      for (size_t at = 0; at < static_cast<size_t>(size) / sizeof entries[0]; ++at)
        what(mapping, page + at, StateOf(entries[at]));
      page += static_cast<size_t>(size) / sizeof entries[0];
      known = true;
    }
  }
  close(fd);
  return known;
}

// What is private, and not the kernel's own.
size_t FindMappings() {
  FILE* const maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return 0;
  char line[512];
  size_t pages = 0;
  bool begins = true;
  while (fgets(line, sizeof line, maps) != nullptr && watch->count < kMaxMappings) {
    const bool whole = begins;
    begins = strchr(line, '\n') != nullptr;  // of a path that is longer the rest follows
    unsigned long long from = 0, to = 0;
    char access[8] = {};
    if (!whole || sscanf(line, "%llx-%llx %7s", &from, &to, access) != 3) continue;
    if (access[0] != 'r' || access[3] != 'p' || strstr(line, "[v") != nullptr) continue;
    watch->mappings[watch->count++] = {from, to, pages};
    pages += (to - from) / PageSize();
  }
  fclose(maps);
  return pages;
}

}  // namespace

void WatchPages() {
  watch = static_cast<Watch*>(Reserve(sizeof *watch));
  if (watch == nullptr) return;
  const size_t pages = FindMappings();
  states = pages == 0 ? nullptr : static_cast<uint8_t*>(Reserve(pages));
  const auto note = [](const Mapping& mapping, size_t page, State state) {
    states[mapping.first + page] = state;
  };
  if (states == nullptr || !EachPage(note)) watch = nullptr;
}

Footprint TouchedPages() {
  if (watch == nullptr) return {nullptr, 0};
  size_t count = 0;
  EachPage([&](const Mapping& mapping, size_t page, State state) {
    if (state <= states[mapping.first + page]) return;
    const uint64_t at = mapping.from + page * PageSize();
    const uint32_t copied = state == kOwn ? 1 : 0;
    Span* const last = count == 0 ? nullptr : &watch->spans[count - 1];
    if (last != nullptr && last->copied == copied && last->from + last->pages * PageSize() == at) {
      ++last->pages;
    } else if (count < kMaxSpans) {
      watch->spans[count++] = {at, 1, copied};
    }
  });
  return {reinterpret_cast<const char*>(watch->spans), count * sizeof(Span)};
}

size_t KeepFootprint(Footprint footprint, size_t most) {
  const size_t count = footprint.size / sizeof(Span);
  if (count > kMaxSpans - kept_count) return 0;
  Span* const spans = kept + kept_count;
  memcpy(spans, footprint.bytes, count * sizeof(Span));
  size_t pages[2] = {};  // mapped, copied
  for (size_t i = 0; i < count; ++i) pages[spans[i].copied != 0 ? 1 : 0] += spans[i].pages;
  if (pages[0] > kMaxMapped || pages[1] > most) return 0;
  kept_count += count;
  return pages[1];
}

bool HasFootprint() { return kept_count > 0; }

void TakeFootprint() {
  for (size_t i = 0; i < kept_count; ++i) {
    const Span& span = kept[i];
    void* const at = reinterpret_cast<void*>(span.from);  // NOLINT(performance-no-int-to-ptr)
    const int how = span.copied != 0 ? kPopulateWrite : kPopulateRead;
    // What is mapped otherwise by now, or not at all, is passed over.
    const int done = madvise(at, span.pages * PageSize(), how);
    if (done != 0 && errno == EINVAL) break;  // not known to this kernel
  }
  kept_count = 0;
}

}  // namespace hutch
