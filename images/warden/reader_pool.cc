// SPDX-License-Identifier: Apache-2.0

#include "images/warden/reader_pool.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace hutch {

bool ReaderPool::Start() {
  answered_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return answered_ >= 0 && readers_[0].Start(measure_, answered_);
}

Reader* ReaderPool::Free() {
  for (int i = 0; i < kMost; ++i) {
    Reader& reader = readers_[i];
    if (!reader.started() && !reader.Start(measure_, answered_)) return nullptr;
    if (!reader.busy()) {
      waits_[i] = 0;
      return &reader;
    }
    if (waits_[i] < kLongWait) return nullptr;
  }
  return nullptr;
}

bool ReaderPool::all_late() const {
  return std::all_of(std::begin(waits_), std::end(waits_),
                     [](uint32_t waits) { return waits >= kLongWait; });
}

void ReaderPool::DrainAnswered() const {
  uint64_t times;
  [[maybe_unused]] const ssize_t size = read(answered_, &times, sizeof times);
}

}  // namespace hutch
