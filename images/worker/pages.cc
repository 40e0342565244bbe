#include "images/worker/pages.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

namespace hutch {
namespace {

constexpr size_t kBig = 2 << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, since Linux 6.1
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

void* Region() {
  char* const whole = static_cast<char*>(
      mmap(nullptr, 2 * kBig, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (whole == MAP_FAILED) return nullptr;
  char* const aligned =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(whole) + kBig - 1) & ~(kBig - 1));
  if (aligned > whole) munmap(whole, static_cast<size_t>(aligned - whole));
  munmap(aligned + kBig, static_cast<size_t>(whole + kBig - aligned));
  madvise(aligned, kBig, MADV_HUGEPAGE);
  return aligned;
}

void* AllocateArena(void*, size_t size) {
  if (size > kBig || kBig % size != 0) return original.allocate(original.context, size);
  if (spare_size < size) {
    spare = static_cast<char*>(Region());
    if (spare == nullptr) return original.allocate(original.context, size);
    spare_size = kBig;
  }
  void* const arena = spare;
  spare += size;
  spare_size -= size;
  return arena;
}

void ReleaseArena(void*, void* address, size_t size) { munmap(address, size); }

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
  struct {
    uintptr_t from, to;
  } regions[kMaxRegions];
  int count = 0;
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return;
  char line[512];
  while (count < kMaxRegions && fgets(line, sizeof line, maps) != nullptr) {
    unsigned long long from = 0, to = 0, inode = 0;
    char access[8] = {};
    if (sscanf(line, "%llx-%llx %7s %*s %*s %llu", &from, &to, access, &inode) != 4) continue;
    const bool heap = inode == 0 && strstr(line, "[stack]") == nullptr;
    from = (from + kBig - 1) & ~(kBig - 1);
    to &= ~(kBig - 1);
    if (heap && memcmp(access, "rw-p", 4) == 0 && from < to)
      regions[count++] = {static_cast<uintptr_t>(from), static_cast<uintptr_t>(to)};
  }
  fclose(maps);
  for (int i = 0; i < count; ++i) {
    // One by one: a page that was never touched, or that the kernel cannot join, stops the rest.
    for (uintptr_t at = regions[i].from; at < regions[i].to; at += kBig)
      madvise(reinterpret_cast<void*>(at), kBig, kCollapse);
  }
}

}  // namespace hutch
