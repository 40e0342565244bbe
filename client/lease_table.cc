// SPDX-License-Identifier: Apache-2.0

#include "client/lease_table.h"

#include <sys/mman.h>

#include <atomic>

#include "wire/error.h"
#include "wire/message.h"

namespace hutch {
namespace {

constexpr size_t kBytes = kLeaseTableBytes;

}  // namespace

LeaseTable::LeaseTable(const Fd& memfd) {
  void* mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (mapped == MAP_FAILED) ThrowErrno("map the lease table");
  slots_ = static_cast<uint32_t*>(mapped);
}

LeaseTable::~LeaseTable() { ::munmap(slots_, kBytes); }

bool LeaseTable::MarkUsed(uint32_t slot, uint64_t lease) {
  uint32_t expected = MarkOf(lease, kLeaseIdle);
  return std::atomic_ref<uint32_t>(slots_[slot])
      .compare_exchange_strong(expected, MarkOf(lease, kLeaseUsed));
}

void LeaseTable::CountUse(uint32_t slot) {
  std::atomic_ref<uint32_t>(slots_[kLeaseTableSlots + slot]).fetch_add(1);
}

void LeaseTable::MarkIdle(uint32_t slot, uint64_t lease) {
  std::atomic_ref<uint32_t>(slots_[slot]).store(MarkOf(lease, kLeaseIdle));
}

}  // namespace hutch
