// SPDX-License-Identifier: Apache-2.0

#include "client/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "wire/cell_frame.h"
#include "wire/error.h"

namespace hutch {
namespace {

constexpr size_t kSmallest = 64 * 1024;
constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr auto kIdle = std::chrono::seconds(10);

// Eight steps to a doubling: arguments that differ a little in size find the same segments.
size_t RoundedUp(size_t size) {
  const size_t step = std::max(kSmallest, std::bit_floor(size) / 8);
  return (size + step - 1) / step * step;
}

size_t AlignUp(size_t n) {
  return (n + kArgumentAlignment - 1) / kArgumentAlignment * kArgumentAlignment;
}

void WriteAll(int fd, std::string_view bytes, size_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ThrowErrno("place an argument in shared memory");
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += static_cast<size_t>(n);
  }
}

}  // namespace

Segment::Segment(size_t capacity)
    : fd_(::memfd_create("hutch-arguments", MFD_CLOEXEC | MFD_ALLOW_SEALING)), capacity_(capacity) {
  if (!fd_) ThrowErrno("make shared memory");
  if (::ftruncate(fd_.get(), static_cast<off_t>(capacity)) != 0)
    ThrowErrno("set the size of shared memory");
  // A cell is another user, without capabilities: /proc/self/fd opens nothing for it.
  if (::fchmod(fd_.get(), S_IRUSR) != 0) ThrowErrno("close shared memory to others");
  HoldSharedLocks(fd_.get());
}

Segment::~Segment() {
  if (data_ != nullptr) ::munmap(data_, capacity_);
}

char* Segment::Map() {
  if (data_ != nullptr) return data_;
  void* data = ::mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED) ThrowErrno("map shared memory");
  data_ = static_cast<char*>(data);
  if (::fcntl(fd_.get(), F_ADD_SEALS,
              F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    ThrowErrno("seal shared memory");
  }
  return data_;
}

void Segment::MakeExecutable() {
  if (::fchmod(fd_.get(), S_IRUSR | S_IXUSR | S_IXGRP | S_IXOTH) != 0)
    ThrowErrno("have shared memory executed by others");
}

void Segment::Fill(std::span<const std::string_view> parts) {
  // Into fresh pages write() is the fastest way: it zeroes nothing first.
  const bool fresh = data_ == nullptr;
  if (!fresh && !populated_) {
    // The pages are there: taken into our page table at once, not by a fault each. Only advice.
    ::madvise(data_, dirty_, MADV_POPULATE_WRITE);
    populated_ = true;
  }
  size_t at = 0;
  size_t end = 0;
  for (const std::string_view part : parts) {
    if (fresh) {
      WriteAll(fd_.get(), part, at);
    } else {
      std::memset(data_ + end, 0, at - end);
      std::memcpy(data_ + at, part.data(), part.size());
    }
    end = at + part.size();
    at = AlignUp(end);
  }
  if (!fresh && end < dirty_) std::memset(data_ + end, 0, dirty_ - end);
  dirty_ = end;
  Map();
}

Fd Segment::Lend() {
  Fd fd = LendMemfd(fd_.get());
  ++loans_;
  return fd;
}

std::shared_ptr<SegmentPool> SegmentPool::Make() {
  struct sysinfo info{};
  const size_t memory = ::sysinfo(&info) == 0 ? info.totalram * info.mem_unit : kMaxBytes;
  return std::make_shared<SegmentPool>(std::min(kMaxBytes, memory / 8), kIdle);
}

SegmentPool::SegmentPool(size_t max_bytes, std::chrono::milliseconds idle)
    : max_bytes_(max_bytes), idle_(idle), pid_(::getpid()) {}

SegmentPool::~SegmentPool() {
  if (!trimmer_.joinable()) return;
  if (::getpid() != pid_) {
    trimmer_.detach();  // it is the parent's
    // Its thread may have waited at the fork: the destructor would wait for it to be woken.
    (void)changed_.release();
    return;
  }
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_->NotifyAll();
  trimmer_.join();
}

std::shared_ptr<Segment> SegmentPool::Take(size_t size, const std::string& worker) {
  std::unique_ptr<Segment> found;
  {
    const MutexLock lock(mutex_);
    auto best = held_.end();
    for (auto i = held_.begin(); i != held_.end(); ++i) {
      const size_t capacity = i->segment->capacity();
      if (i->worker != worker || capacity < size || capacity > 2 * RoundedUp(size)) continue;
      if (best == held_.end() || capacity <= best->segment->capacity()) best = i;
    }
    if (best != held_.end()) {
      found = std::move(best->segment);
      held_bytes_ -= found->capacity();
      held_.erase(best);
    }
  }
  if (!found) found = std::make_unique<Segment>(RoundedUp(size));
  return {found.release(), [pool = weak_from_this(), worker](Segment* used) {
            std::unique_ptr<Segment> segment(used);
            if (segment->on_loan()) return;  // its pages live on while a cell has them
            if (const auto home = pool.lock()) home->GiveBack(std::move(segment), worker);
          }};
}

size_t SegmentPool::held_bytes() const {
  const MutexLock lock(mutex_);
  return held_bytes_;
}

void SegmentPool::GiveBack(std::unique_ptr<Segment> segment, const std::string& worker) {
  if (segment->capacity() > max_bytes_ || ::getpid() != pid_) return;
  std::deque<Held> dropped;  // unmapped without the lock
  const MutexLock lock(mutex_);
  held_bytes_ += segment->capacity();
  held_.push_back({std::move(segment), worker, Clock::now()});
  while (held_bytes_ > max_bytes_) {
    held_bytes_ -= held_.front().segment->capacity();
    dropped.push_back(std::move(held_.front()));
    held_.pop_front();
  }
  if (trimming_) return;
  if (trimmer_.joinable()) trimmer_.join();  // it has left Trim() already
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the caller's own threads take signals
  try {
    trimmer_ = std::thread([this] { Trim(); });
    trimming_ = true;
  } catch (const std::system_error&) {  // no thread to be had: nothing is held then
    dropped.swap(held_);
    held_bytes_ = 0;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void SegmentPool::Trim() {
  const MutexLock lock(mutex_);
  while (!stopping_ && !held_.empty()) {
    const Clock::time_point due = held_.front().since + idle_;
    if (Clock::now() < due) {
      changed_->WaitUntil(mutex_, due);
      continue;
    }
    std::unique_ptr<Segment> old = std::move(held_.front().segment);
    held_.pop_front();
    held_bytes_ -= old->capacity();
    const MutexUnlock unlocked(mutex_);  // unmapping a gigabyte takes a while
    old.reset();
  }
  trimming_ = false;
}

}  // namespace hutch
