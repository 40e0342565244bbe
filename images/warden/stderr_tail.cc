// SPDX-License-Identifier: Apache-2.0

#include "images/warden/stderr_tail.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

namespace hutch {
namespace {

constexpr int kReadsAtOnce = 16;  // of 4 KiB: a full pipe

}  // namespace

void StderrTail::Open() {
  if (pipe2(ends_, O_CLOEXEC) != 0) {
    ends_[0] = ends_[1] = -1;
    return;
  }
  // This end only: the zygote's stderr blocks, as any program expects.
  fcntl(ends_[0], F_SETFL, O_NONBLOCK);
}

void StderrTail::Close() {
  for (int& end : ends_) {
    if (end >= 0) close(end);
    end = -1;
  }
  Clear();
}

void StderrTail::Read() {
  if (ends_[0] < 0) return;
  char chunk[kMaxZygoteStderr];
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t got = read(ends_[0], chunk, sizeof chunk);
    if (got <= 0) return;
    Add(chunk, static_cast<size_t>(got));
  }
}

void StderrTail::Add(const char* text, size_t size) {
  if (size > sizeof text_) {
    text += size - sizeof text_;
    size = sizeof text_;
  }
  const size_t room = sizeof text_ - size;
  if (size_ > room) {
    memmove(text_, text_ + (size_ - room), room);
    size_ = room;
  }
  memcpy(text_ + size_, text, size);
  size_ += size;
}

}  // namespace hutch
