// SPDX-License-Identifier: Apache-2.0

#include "images/warden/reader.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hutch {
namespace {

constexpr size_t kStackSize = 256 << 10;  // of which only what is used is memory

void Signal(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = write(fd, &one, sizeof one);
}

}  // namespace

bool Reader::Start(Measure measure, int answered) {
  measure_ = measure;
  answered_ = answered;
  asked_ = eventfd(0, EFD_CLOEXEC);
  if (asked_ < 0) return false;
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackSize);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  const bool made = pthread_create(&thread, &attributes, &Reader::Run, this) == 0;
  pthread_attr_destroy(&attributes);
  if (made) return true;
  close(asked_);
  asked_ = -1;
  return false;
}

void* Reader::Run(void* self) {
  static_cast<Reader*>(self)->Serve();
  return nullptr;
}

void Reader::Serve() {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%ld/stat", syscall(SYS_gettid));
  stat_.store(open(path, O_RDONLY | O_CLOEXEC), std::memory_order_release);
  for (;;) {
    uint64_t times;
    if (read(asked_, &times, sizeof times) < 0) continue;
    if (state_.load(std::memory_order_acquire) != State::kAsked) continue;
    answer_ = measure_(job_);
    close(job_.proc);
    state_.store(State::kAnswered, std::memory_order_release);
    Signal(answered_);
  }
}

void Reader::Ask(const Job& job) {
  job_ = job;
  state_.store(State::kAsked, std::memory_order_release);
  Signal(asked_);
}

bool Reader::Take(Answer* answer) {
  if (state_.load(std::memory_order_acquire) != State::kAnswered) return false;
  *answer = answer_;
  state_.store(State::kIdle, std::memory_order_release);
  return true;
}

bool Reader::Waits() const {
  char text[128];
  const ssize_t size = pread(stat_.load(std::memory_order_acquire), text, sizeof text - 1, 0);
  if (size <= 0) return true;
  text[size] = '\0';
  const char* after_name = strrchr(text, ')');
  return after_name == nullptr || strncmp(after_name, ") R", 3) != 0;
}

Reader::Answer MeasureExactly(const Reader::Job& job) {
  Reader::Answer answer;
  if (job.objects) answer.objects = MeasureKernelObjects(job.proc, 1);
  if (job.areas) answer.areas = ListSharedAreas(job.proc, 1);
  answer.usage = MeasureShares(job.proc, 1, job.only, job.only_count, job.scratches);
  return answer;
}

}  // namespace hutch
