// SPDX-License-Identifier: Apache-2.0

// The kernel objects that processes cause.
#include <sys/stat.h>

#include <algorithm>

#include "images/warden/measure.h"
#include "images/warden/proc_files.h"

namespace hutch {
namespace {

// Of the kernel's memory, for each: an area of memory and its place in the tree; a file that is
// open; a pipe as full as it may be; a character that /proc says of an open file, which has a line
// of 50 for each lock (230 bytes) and of 80 for each watch of an epoll (200).
constexpr uint64_t kMappingBytes = 256;
constexpr uint64_t kFileBytes = 256;
constexpr uint64_t kPipeBytes = 65536;
constexpr uint64_t kBytesOfText = 4;

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

}  // namespace

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

}  // namespace hutch
