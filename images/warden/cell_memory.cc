// SPDX-License-Identifier: Apache-2.0

#include "images/warden/cell_memory.h"

#include <algorithm>

namespace hutch {
namespace {

constexpr int64_t kReturningUs = 2'000'000;  // for a result to be written, of any size
// A loss of the host's memory after which the kernel objects of a cell are measured.
constexpr uint64_t kAvailableStepKb = 32 << 10;
constexpr int kMostCutSamples = 4;

}  // namespace

void ResultMemory::Give(uint64_t kb, int64_t now) {
  if (kb != 0 && kb_ == 0) given_us_ = now;
  kb_ = kb;
}

uint64_t ResultMemory::CountedKb(int64_t now) const {
  return now - given_us_ > kReturningUs ? kb_ : 0;
}

// Of the host's shared memory, what is neither in a scratch of ours nor mapped in another cell.
uint64_t CellMemory::UnexplainedKb(const HostView& host) const {
  const uint64_t known_kb = host.known_shared_kb - std::min(host.known_shared_kb, shared_kb_);
  return host.memory.shmem_kb - std::min(host.memory.shmem_kb, known_kb);
}

void CellMemory::See(const HostView& host) {
  const uint64_t slab_kb = host.memory.slab_kb;
  slab_.See(slab_kb);
  unmeasured_slab_.See(slab_kb);
  available_kb_ = std::max(available_kb_, host.memory.available_kb);
  host_lost_ = unmeasured_slab_.Of(slab_kb) > kStepKb ||
               host.memory.available_kb + kAvailableStepKb < available_kb_;
  const uint64_t unexplained_kb = UnexplainedKb(host);
  shared_.See(unexplained_kb);
  unmeasured_shared_.See(unexplained_kb);
  host_shares_ = unmeasured_shared_.Of(unexplained_kb) > kStepKb;
}

void CellMemory::SeeAsleep(const HostView& host) {
  const uint64_t unexplained_kb = UnexplainedKb(host);
  shared_.SeeAsleep(unexplained_kb);
  unmeasured_shared_.SeeAsleep(unexplained_kb);
}

void CellMemory::Ask(const HostView& host) {
  asked_slab_kb_ = host.memory.slab_kb;
  asked_available_kb_ = host.memory.available_kb;
  asked_unexplained_kb_ = UnexplainedKb(host);
}

void CellMemory::TakeObjects(const KernelObjects& objects, const HostView& host) {
  kernel_kb_ = objects.bytes / 1024;
  // Who hides what it has made answers for what the host has lost meanwhile.
  if (!objects.whole) ChargeObjects(host);
  unmeasured_slab_.Explain(asked_slab_kb_);
  available_kb_ = std::max(asked_available_kb_, host.memory.available_kb);
}

void CellMemory::ChargeObjects(const HostView& host) {
  kernel_kb_ = std::max(kernel_kb_, slab_.Of(host.memory.slab_kb));
}

// A cell answers for what its areas may hold, but for no more than the host has lost since it
// began: one with small areas is not blamed for what others take.
void CellMemory::TakeAreas(const SharedAreas& areas, const HostView& host) {
  SharedAreas all = areas;
  all.Remember(areas_);
  areas_ = all;
  const uint64_t growth_kb = shared_.Of(UnexplainedKb(host));
  // On a busy machine a measurement may be cut short, which is not held against the cell unless it
  // happens each time.
  cut_samples_ = areas.cut ? cut_samples_ + 1 : 0;
  const bool seen = all.whole && cut_samples_ < kMostCutSamples;
  areas_kb_ = seen ? std::min(all.MostKb(kStepKb), growth_kb) : growth_kb;
  unmeasured_shared_.Explain(asked_unexplained_kb_);
}

void CellMemory::ChargeAreas(const HostView& host) {
  areas_kb_ = std::max(areas_kb_, shared_.Of(UnexplainedKb(host)));
}

void CellMemory::ForgetAreas() {
  areas_.count = 0;
  shared_kb_ = 0;
}

uint64_t CellMemory::SetScratch(uint64_t kb) {
  const uint64_t before_kb = scratch_kb_;
  scratch_kb_ = kb;
  return before_kb;
}

uint64_t CellMemory::Sum(const Usage& usage, uint64_t scratch_kb, uint64_t socket_kb,
                         int64_t now) const {
  // Scratch that is mapped counts once. Counters do not tell it from other shared memory: then that
  // is what the last exact measurement found.
  const uint64_t known_kb = usage.exact ? usage.shared_kb : shared_kb_;
  const uint64_t mapped_kb = usage.shared_kb + usage.scratch_kb;
  const uint64_t shared_kb = std::clamp(known_kb, usage.shared_kb, mapped_kb);
  const uint64_t all = usage.memory_kb + std::max(shared_kb, areas_kb_) +
                       std::max(mapped_kb - shared_kb, scratch_kb + result.CountedKb(now)) +
                       socket_kb + kernel_kb_;
  return all - std::min(all, base_kb_);
}

uint64_t CellMemory::SumOfKernel(uint64_t kernels_kb, int64_t now) const {
  const uint64_t all = kernels_kb + result.CountedKb(now);
  return all - std::min(all, base_kb_);
}

}  // namespace hutch
