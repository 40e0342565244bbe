// SPDX-License-Identifier: Apache-2.0

#include "images/warden/worker_watch.h"

#include <algorithm>

namespace hutch {
namespace {

constexpr uint64_t kOwnProcesses = 64;  // of packages and a setup function, beside slots and cells
constexpr int64_t kPeriodUs = 1'000'000;
constexpr int64_t kStartingPeriodUs = 100'000;

}  // namespace

const char* WorkerWatch::Look(int proc, int64_t now, bool ready, uint64_t zygote_kb) {
  if (now - sampled_us_ < (ready ? kPeriodUs : kStartingPeriodUs)) return nullptr;
  sampled_us_ = now;
  if (!configuration_.taken()) return nullptr;  // nobody's code is there yet
  uint64_t allowed = configuration_.worker_kb();
  uint64_t processes = kOwnProcesses;
  for (const Slot& slot : slots_) {
    if (slot.state != SlotState::kFree) processes += 2;  // itself, and a forwarder
    if (slot.cell.state == CellState::kNone) continue;
    allowed += configuration_.watch_kb();
    processes += configuration_.pids() + 2;  // its PID 1, and one that is about to be refused
  }
  const Usage seen = MeasureProcesses(proc, 1, Counting::kResident);
  if (seen.processes > processes)
    return "the worker's packages or setup function made more processes than a worker may";
  allowed_kb_ = allowed;
  if (seen.memory_kb <= allowed || reader_ != nullptr) return nullptr;
  if (configuration_.gvisor()) return Judge(seen.memory_kb, zygote_kb);
  wanted_ = OwnKb(proc) > allowed;
  return nullptr;
}

// What the processes have that belong to no cell, and which they are.
uint64_t WorkerWatch::OwnKb(int proc) {
  static ProcessParent table[kMaxProcesses];
  const ProcessParent* const end = table + ListParents(proc, table, kMaxProcesses);
  const auto parent_of = [&](pid_t pid) {
    const ProcessParent* found =
        std::lower_bound(static_cast<const ProcessParent*>(table), end, pid,
                         [](const ProcessParent& one, pid_t than) { return one.pid < than; });
    return found != end && found->pid == pid ? found->parent : 0;
  };
  const auto is_of_a_cell = [&](pid_t pid) {
    for (int i = 0; pid > 1 && i < kMaxProcesses; ++i, pid = parent_of(pid)) {
      for (const Slot& slot : slots_) {
        if (slot.cell.init == pid) return true;
      }
    }
    return false;
  };
  uint64_t kb = 0;
  count_ = 0;
  for (const ProcessParent* one = table; one != end; ++one) {
    if (one->pid == 1 || is_of_a_cell(one->pid)) continue;
    kb += ResidentKb(proc, one->pid);
    own_[count_++] = one->pid;
  }
  return kb;
}

const char* WorkerWatch::Judge(uint64_t total_kb, uint64_t zygote_kb) {
  reader_ = nullptr;
  // A slot is not dumpable, so its whole size was counted, most of which is the zygote's, shared.
  uint64_t counted_twice = 0;
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::kServing) counted_twice += zygote_kb;
  }
  if (total_kb > counted_twice && total_kb - counted_twice > allowed_kb_)
    return "the worker's packages or setup function took more memory than a worker may";
  return nullptr;
}

}  // namespace hutch
