// SPDX-License-Identifier: Apache-2.0

#include "images/worker/pages.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <initializer_list>

namespace hutch {
namespace {

constexpr size_t kBig = 2 << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1
constexpr size_t kPage = 4096;
constexpr size_t kLeast = 64 << 10;  // that is worth a mapping of its own
constexpr int kMaxRegions = 256;

// CPython's PyObjectArenaAllocator, which is no part of its limited API; the same since 3.4.
struct ArenaAllocator {
  void* context;
  void* (*allocate)(void* context, size_t size);
  void (*release)(void* context, void* address, size_t size);
};
using Exchange = void (*)(ArenaAllocator*);

ArenaAllocator original;
Exchange set_allocator;
char* spare;  // the second half of the newest region
size_t spare_size;

// The kernel gives addresses as text.
char* At(uintptr_t at) {
  return reinterpret_cast<char*>(at);  // NOLINT(performance-no-int-to-ptr)
}
uintptr_t Up(uintptr_t at) { return (at + kBig - 1) & ~(kBig - 1); }
uintptr_t Down(uintptr_t at) { return at & ~(kBig - 1); }

char* Region(size_t size) {
  char* const whole = static_cast<char*>(
      mmap(nullptr, size + kBig, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (whole == MAP_FAILED) return nullptr;
  char* const aligned = At(Up(reinterpret_cast<uintptr_t>(whole)));
  if (aligned > whole) munmap(whole, static_cast<size_t>(aligned - whole));
  munmap(aligned + size, static_cast<size_t>(whole + kBig - aligned));
  madvise(aligned, size, MADV_HUGEPAGE);
  return aligned;
}

void* AllocateArena(void*, size_t size) {
  if (size > kBig || kBig % size != 0) return original.allocate(original.context, size);
  if (spare_size < size) {
    spare = Region(kBig);
    if (spare == nullptr) return original.allocate(original.context, size);
    spare_size = kBig;
  }
  void* const arena = spare;
  spare += size;
  spare_size -= size;
  return arena;
}

void ReleaseArena(void*, void* address, size_t size) { munmap(address, size); }

struct Ranges {
  struct {
    uintptr_t from, to;
  } of[kMaxRegions];
  int count = 0;

  void Add(uintptr_t from, uintptr_t to, uintptr_t least) {
    if (count < kMaxRegions && from + least <= to) of[count++] = {from, to};
  }
};

// Of [from, to), what is in memory.
void AddPresent(uintptr_t from, uintptr_t to, Ranges* ranges) {
  unsigned char present[kBig / kPage];
  for (; from < to; from = from < Up(from) ? Up(from) : from + kBig) {
    const uintptr_t end = to < Up(from + 1) ? to : Up(from + 1);
    if (mincore(At(from), end - from, present) != 0) return;
    uintptr_t begin = from;
    for (uintptr_t at = from; at <= end; at += kPage) {
      if (at < end && (present[(at - from) / kPage] & 1) != 0) continue;
      ranges->Add(begin, at, kLeast);
      begin = at + kPage;
    }
  }
}

// A mapping that its owner wants to be forked, locked or filled in another way than others are.
bool IsSpecial(const char* flags) {
  for (const char* flag : {" dc", " wf", " lo", " io", " pf", " um", " uw"}) {
    if (strstr(flags, flag) != nullptr) return true;
  }
  return false;
}

// The heap and data: of `whole`, each 2 MiB may become one big page where it lies; `rest` lies
// beside other things there.
void Find(Ranges* whole, Ranges* rest) {
  FILE* maps = fopen("/proc/self/smaps", "re");
  if (maps == nullptr) return;
  char line[512];
  uintptr_t from = 0, to = 0;
  bool data = false, anonymous = false;
  while (fgets(line, sizeof line, maps) != nullptr) {
    unsigned long long begin = 0, end = 0, inode = 0;
    char access[8] = {};
    if (sscanf(line, "%llx-%llx %7s %*s %*s %llu", &begin, &end, access, &inode) == 4) {
      from = begin;
      to = end;
      anonymous = inode == 0;
      data = memcmp(access, "rw-p", 4) == 0 && strstr(line, "[stack]") == nullptr;
    } else if (data && memcmp(line, "VmFlags:", 8) == 0 && !IsSpecial(line)) {
      if (anonymous && Up(from) < Down(to)) {
        whole->Add(Up(from), Down(to), kBig);
        AddPresent(from, Up(from), rest);
        AddPresent(Down(to), to, rest);
      } else {
        AddPresent(from, to, rest);
      }
    }
  }
  fclose(maps);
}

// Copies them into big pages, and moves those, in pieces, to where they were. They are mapped as
// small ones then, but from Linux 6.9 on a fork copies, and an exit drops, the entries of
// neighbours in one big page together. Only as many as fill big pages: no memory is spent for it.
void Gather(const Ranges& ranges) {
  size_t size = 0;
  for (int i = 0; i < ranges.count; ++i) size += ranges.of[i].to - ranges.of[i].from;
  size = Down(size);
  char* const region = size == 0 ? nullptr : Region(size);
  if (region == nullptr) return;
  const auto each = [&](auto&& what) {
    size_t done = 0;
    for (int i = 0; i < ranges.count && done < size; ++i) {
      const size_t length = ranges.of[i].to - ranges.of[i].from;
      const size_t part = length < size - done ? length : size - done;
      what(At(ranges.of[i].from), region + done, part);
      done += part;
    }
  };
  // Nothing but the stack is written to from here on.
  each([](void* at, char* copy, size_t part) { memcpy(copy, at, part); });
  for (size_t at = 0; at < size; at += kBig) {
    if (madvise(region + at, kBig, kCollapse) == 0) continue;  // it is one big page
    munmap(region, size);
    return;
  }
  each([](void* at, char* copy, size_t part) {
    mremap(copy, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, at);
  });
  munmap(region, size);  // what could not be moved
}

}  // namespace

void UseBigArenas() {
  const auto get = reinterpret_cast<Exchange>(dlsym(RTLD_DEFAULT, "PyObject_GetArenaAllocator"));
  set_allocator = reinterpret_cast<Exchange>(dlsym(RTLD_DEFAULT, "PyObject_SetArenaAllocator"));
  if (get == nullptr || set_allocator == nullptr) return;
  get(&original);
  ArenaAllocator ours{nullptr, AllocateArena, ReleaseArena};
  set_allocator(&ours);
}

void SettlePages() {
  if (set_allocator != nullptr) {
    set_allocator(&original);
    if (spare_size > 0) munmap(spare, spare_size);
    spare_size = 0;
  }
  Ranges whole, rest;
  Find(&whole, &rest);
  for (int i = 0; i < whole.count; ++i) {
    // One by one: a page that was never touched, or that the kernel cannot join, stops the rest.
    for (uintptr_t at = whole.of[i].from; at < whole.of[i].to; at += kBig)
      madvise(At(at), kBig, kCollapse);
  }
  Gather(rest);
}

}  // namespace hutch
