// SPDX-License-Identifier: Apache-2.0

// The warden's limits: what is measured of a cell, and of the worker, when, and what ends it.
#include <stdlib.h>

#include <algorithm>
#include <utility>

#include "images/warden/clock.h"
#include "images/warden/measure.h"
#include "images/warden/warden.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr int64_t kGraceUs = 500'000;   // beyond the wall limit, which the client keeps itself
constexpr uint64_t kOwnProcesses = 64;  // of packages and a setup function, beside slots and cells
constexpr uint32_t kExactEvery = 5;     // samples of a cell
constexpr int64_t kReturningUs = 2'000'000;  // for a result to be written, of any size
// A loss of the host's memory after which the kernel objects of a cell are measured.
constexpr uint64_t kSlabStepKb = 8 << 10;
constexpr uint64_t kAvailableStepKb = 32 << 10;
// A growth of the host's shared memory that is worth measuring the shared areas of a cell; also
// what an area may have held before a sample saw it.
constexpr uint64_t kSharedStepKb = 8 << 10;
constexpr int kMostCutSamples = 4;

}  // namespace

void Warden::OnArm(const FrameHeader& header) {
  Slot* slot = FindCell(header.id);
  if (slot == nullptr) return;  // it has just ended: kCellExit is on its way
  Cell& cell = slot->cell;
  if (cell.kept && header.a == kBetweenCalls) {
    cell.armed_us = NowUs();
    if (!std::exchange(cell.between, true)) {
      SampleCell(static_cast<int>(slot - slots_), cell.armed_us);
      cell.between_cpu_us = cell.base_cpu_us = cell.used_cpu_us;
      cell.cpu_us = 0;
    }
    cell.deadline_us = 0;
    cell.cpu_limit_us = cell.background_limit_us = header.c * 1000;
    cell.result_kb = 0;
    return;
  }
  const bool loading = header.a == kLoading;
  const bool given = !loading && header.a != 0 && cell.result_kb == 0;
  cell.result_kb = loading ? 0 : header.a;
  if (given) cell.result_us = NowUs();
  if (given && cell.armed_us != 0 && !cell.loading && !cell.between) return;
  // Limits that change during a call leave what is known of it; what a kept cell shares it may have
  // had since an earlier call.
  const bool had_limits = !cell.loading && (cell.deadline_us != 0 || cell.cpu_limit_us != 0);
  cell.armed_us = NowUs();
  if (std::exchange(cell.between, false)) BeginCall(slot);
  cell.deadline_us =
      header.b == 0 ? 0 : cell.armed_us + static_cast<int64_t>(header.b) * 1000 + kGraceUs;
  cell.cpu_limit_us = header.c * 1000;
  cell.loading = loading;
  cell.quiet = false;
  if (cell.kept || had_limits) return;
  cell.areas.count = 0;
  cell.shared_kb = 0;
}

// A call of a kept cell begins: what the cell has taken until now is not the call's.
void Warden::BeginCall(Slot* slot) {
  Cell& cell = slot->cell;
  const int number = static_cast<int>(slot - slots_);
  SampleCell(number, cell.armed_us);
  FrameHeader background;
  background.kind = FrameKind::kBackground;
  background.a = static_cast<uint32_t>(number);
  background.id = cell.id;
  background.b = cell.used_cpu_us - std::min(cell.used_cpu_us, cell.between_cpu_us);
  Report(background);
  cell.base_cpu_us = cell.used_cpu_us;
  cell.cpu_us = 0;
  cell.peak_kb = 0;
  cell.pids_peak = 0;
}

void Warden::SampleHost() {
  host_ = MeasureHost(proc_);
  known_shared_kb_ = 0;
  for (const Slot& slot : slots_) {
    if (slot.state != SlotState::kFree)
      known_shared_kb_ += slot.cell.scratch_kb + slot.cell.shared_kb;
  }
}

// Samples the cell's processes: what they have, and the time they have used, by cheap reads.
Usage Warden::SampleCell(int number, int64_t now) {
  static ProcessTable table;
  static ProcessTable before[kMaxSlots];
  Cell& cell = slots_[number].cell;
  const Usage usage =
      MeasureProcesses(cell.proc, 1, Counting::kResident, &table, !gvisor_ && cell.spent.loses());
  cell.pids_peak = std::max(cell.pids_peak, usage.processes);
  if (!gvisor_) {
    cell.spent.AddSample(table.one, table.count, before[number].one, before[number].count, now,
                         ProcessorShare(proc_), Processors());
    std::copy_n(table.one, table.count, before[number].one);
    before[number].count = table.count;
  }
  const uint64_t used = usage.cpu_us + (WallIsDown("lost_time") ? 0 : cell.spent.lost_us());
  cell.used_cpu_us = std::max(cell.used_cpu_us, used);
  cell.cpu_us = std::max(cell.cpu_us, used - std::min(used, cell.base_cpu_us));
  return usage;
}

uint64_t Warden::Sum(const Cell& cell, const Usage& usage, const ScratchUse& scratch,
                     int64_t now) const {
  // What it returns is on its way for a while, and its own for good if it never comes.
  const bool kept = cell.result_kb != 0 && now - cell.result_us > kReturningUs;
  // Scratch that is mapped counts once. Counters do not tell it from other shared memory: then that
  // is what the last exact measurement found.
  const uint64_t known_kb = usage.exact ? usage.shared_kb : cell.shared_kb;
  const uint64_t shared_kb =
      std::clamp(known_kb, usage.shared_kb, usage.shared_kb + usage.scratch_kb);
  const uint64_t scratch_kb = usage.shared_kb + usage.scratch_kb - shared_kb;
  const uint64_t all = usage.memory_kb + std::max(shared_kb, cell.areas_kb) +
                       std::max(scratch_kb, scratch.used_kb + (kept ? cell.result_kb : 0)) +
                       SocketKb(cell.proc) + cell.kernel_kb;
  return all - std::min(all, cell.base_kb);
}

// The most that it may have, which is known at once.
uint64_t Warden::MostOf(const Cell& cell, const ScratchUse& scratch, int64_t now) const {
  if (!gvisor_) return Sum(cell, MeasureProcesses(cell.proc, 1, Counting::kMost), scratch, now);
  const uint64_t all = KernelsMemoryKb(cell.proc);
  return all - std::min(all, cell.base_kb);
}

// Whether the host has so much less memory than when this cell's kernel objects were last measured
// that they are measured again. The host's numbers do not show which process caused the loss.
bool Warden::HostLostMemory(Cell* cell) const {
  if (cell->least_slab_kb == 0) {
    cell->host = host_;
    cell->least_slab_kb = std::max<uint64_t>(host_.slab_kb, 1);
  }
  cell->least_slab_kb = std::min(cell->least_slab_kb, host_.slab_kb);
  cell->host.slab_kb = std::min(cell->host.slab_kb, host_.slab_kb);
  cell->host.available_kb = std::max(cell->host.available_kb, host_.available_kb);
  return host_.slab_kb > cell->host.slab_kb + kSlabStepKb ||
         host_.available_kb + kAvailableStepKb < cell->host.available_kb;
}

// Of the host's shared memory, what is neither in a scratch of ours nor mapped in another cell.
uint64_t Warden::UnexplainedKb(const Cell& cell) const {
  const uint64_t known_kb = known_shared_kb_ - std::min(known_shared_kb_, cell.shared_kb);
  return host_.shmem_kb - std::min(host_.shmem_kb, known_kb);
}

// How much more of it there is than when the call began.
uint64_t Warden::SharedGrowthKb(const Cell& cell) const {
  const uint64_t now_kb = UnexplainedKb(cell);
  return now_kb - std::min(now_kb, cell.least_unexplained_kb);
}

// Whether there is so much more than when the shared areas of this cell were last measured that it
// is worth measuring them again. As above, the host's numbers do not show whose it is.
bool Warden::HostSharesMore(Cell* cell) const {
  const uint64_t now_kb = UnexplainedKb(*cell);
  cell->least_unexplained_kb = std::min(cell->least_unexplained_kb, now_kb);
  cell->unexplained_kb = std::min(cell->unexplained_kb, now_kb);
  return now_kb > cell->unexplained_kb + kSharedStepKb;
}

// A call answers for what its areas may hold, but for no more than the host has lost since it
// began: one with small areas is not blamed for what others take.
void Warden::TakeAreas(Cell* cell, const SharedAreas& areas) const {
  SharedAreas all = areas;
  all.Remember(cell->areas);
  cell->areas = all;
  const uint64_t growth_kb = SharedGrowthKb(*cell);
  // On a busy machine a measurement may be cut short, which is not held against the call unless it
  // happens each time.
  cell->cut_samples = areas.cut ? cell->cut_samples + 1 : 0;
  const bool seen = all.whole && cell->cut_samples < kMostCutSamples;
  cell->areas_kb = seen ? std::min(all.MostKb(kSharedStepKb), growth_kb) : growth_kb;
  cell->unexplained_kb = UnexplainedKb(*cell);
}

void Warden::TakeObjects(Cell* cell, const KernelObjects& objects) const {
  cell->kernel_kb = objects.bytes / 1024;
  // Who hides what it has made answers for what the host has lost meanwhile.
  if (!objects.whole)
    cell->kernel_kb = std::max(cell->kernel_kb, host_.slab_kb - cell->least_slab_kb);
  cell->host = host_;
}

void Warden::TakeMemory(Cell* cell, uint64_t exact_kb, uint64_t resident_kb) {
  cell->exact_kb = exact_kb;
  cell->resident_kb = resident_kb;
  cell->peak_kb = std::max(cell->peak_kb, exact_kb);
  if (exact_kb > watch_kb_ && !WallIsDown("watch")) KillWhatRuns(cell, kLimitMemory);
}

void Warden::WatchCell(int number, int64_t now) {
  Cell* const cell = &slots_[number].cell;
  if (cell->deadline_us != 0 && now > cell->deadline_us) return KillWhatRuns(cell, kLimitTime);
  const ScratchUse scratch = Scratch(*cell);
  known_shared_kb_ += scratch.used_kb - std::exchange(cell->scratch_kb, scratch.used_kb);
  const Usage usage = SampleCell(number, now);
  cell->quiet = (cell->loading || cell->between) && cell->sampled_us != 0 &&
                cell->cpu_us == cell->seen_cpu_us;
  cell->sampled_us = now;
  cell->seen_cpu_us = cell->cpu_us;
  if (cell->cpu_limit_us != 0 && cell->cpu_us > cell->cpu_limit_us && !WallIsDown("cpu"))
    return KillWhatRuns(cell, kLimitCpuTime);
  if (gvisor_ && usage.processes > pids_)  // it counts none for RLIMIT_NPROC
    return KillWhatRuns(cell, kLimitPids);
  if (files_ != 0 && scratch.files > files_) return KillWhatRuns(cell, kLimitDisk);
  const bool lost = !gvisor_ && HostLostMemory(cell) && !WallIsDown("objects");
  const bool unseen = !gvisor_ && HostSharesMore(cell) && !WallIsDown("objects");
  const uint64_t resident_kb =
      usage.memory_kb + scratch.used_kb + SocketKb(cell->proc) + cell->kernel_kb + cell->result_kb;
  const bool suspect = lost || unseen || resident_kb > watch_kb_ + cell->base_kb;
  if (!suspect && !gvisor_ && cell->samples++ % kExactEvery != 0) return;
  const bool grown = cell->exact_kb + resident_kb > watch_kb_ + cell->resident_kb;
  if (now < (grown ? cell->exact_if_grown_us : cell->exact_after_us)) return;
  if (gvisor_) return TakeMemory(cell, MostOf(*cell, scratch, now), resident_kb);
  if (cell->reader != nullptr) return;
  // Who keeps a reader waiting is sent none while there is nothing to find.
  if (cell->slow && !lost && !unseen) {
    const bool within = MostOf(*cell, scratch, now) <= watch_kb_;
    cell->exact_after_us = now + 5 * (NowUs() - now);
    if (within) return;
  }
  cell->wanted = true;
  cell->wanted_objects = lost || cell->kernel_kb > kSlabStepKb;
  cell->wanted_areas = unseen || cell->areas_kb != 0;
  cell->asked_kb = resident_kb;
}

// What the processes have that belong to no cell, and which they are.
uint64_t Warden::OwnMemoryKb() {
  static ProcessParent table[kMaxProcesses];
  const ProcessParent* const end = table + ListParents(proc_, table, kMaxProcesses);
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
  own_count_ = 0;
  for (const ProcessParent* one = table; one != end; ++one) {
    if (one->pid == 1 || is_of_a_cell(one->pid)) continue;
    kb += ResidentKb(proc_, one->pid);
    own_[own_count_++] = one->pid;
  }
  return kb;
}

void Warden::WatchWorker() {
  if (!configured_) return;  // nobody's code is there yet
  uint64_t allowed = worker_kb_;
  uint64_t processes = kOwnProcesses;
  for (const Slot& slot : slots_) {
    if (slot.state != SlotState::kFree) processes += 2;  // itself, and a forwarder
    if (slot.cell.state == CellState::kNone) continue;
    allowed += watch_kb_;
    processes += pids_ + 2;  // its PID 1, and one that is about to be refused
  }
  const Usage seen = MeasureProcesses(proc_, 1, Counting::kResident);
  if (seen.processes > processes) {
    Fatal("the worker's packages or setup function made more processes than a worker may");
  }
  worker_allowed_kb_ = allowed;
  if (seen.memory_kb <= allowed || own_reader_ != nullptr) return;
  if (gvisor_) return JudgeWorker(seen.memory_kb);
  own_wanted_ = OwnMemoryKb() > allowed;
}

void Warden::JudgeWorker(uint64_t total_kb) {
  // A slot is not dumpable, so its whole size was counted, most of which is the zygote's, shared.
  uint64_t counted_twice = 0;
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::kServing) counted_twice += zygote_kb_;
  }
  if (total_kb > counted_twice && total_kb - counted_twice > worker_allowed_kb_) {
    Fatal("the worker's packages or setup function took more memory than a worker may");
  }
}

}  // namespace hutch
