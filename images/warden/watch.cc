// SPDX-License-Identifier: Apache-2.0

#include "images/warden/watch.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "images/warden/clock.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr uint32_t kExactEvery = 5;  // samples of a cell
// Between samples of a cell that is quiet, and of one where no process has run since.
constexpr int64_t kQuietUs = 900'000;
constexpr int64_t kAsleepUs = 5'000'000;

}  // namespace

void Watch::Open() { proc_ = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

void Watch::SampleHost() {
  host_.memory = host_reads_.all(proc_);
  host_.known_shared_kb = 0;
  for (const Slot& slot : slots_) {
    if (slot.state == SlotState::kFree) continue;
    host_.known_shared_kb += slot.cell.memory.scratch_kb() + slot.cell.memory.shared_kb();
  }
}

Usage Watch::Sample(Slot* slot, int64_t now) {
  static ProcessTable table;
  static ProcessTable before[kMaxSlots];
  const bool gvisor = configuration_.gvisor();
  Cell* const cell = &slot->cell;
  SpentTime& spent = cell->time.spent;
  const Usage usage =
      MeasureProcesses(cell->proc, 1, Counting::kResident, &table, !gvisor && spent.loses());
  cell->pids_peak = std::max(cell->pids_peak, usage.processes);
  if (!gvisor) {
    ProcessTable& last = before[slot - slots_];
    spent.AddSample(table.one, table.count, last.one, last.count, now, ProcessorShare(proc_),
                    Processors());
    std::copy_n(table.one, table.count, last.one);
    last.count = table.count;
  }
  cell->time.Add(usage.cpu_us + (WallIsDown("lost_time") ? 0 : spent.lost_us()));
  return usage;
}

// The most that it may have, which is known at once.
uint64_t Watch::MostOf(const Cell& cell, const ScratchUse& scratch, int64_t now) const {
  if (configuration_.gvisor()) return cell.memory.SumOfKernel(KernelsMemoryKb(cell.proc), now);
  const Usage most = MeasureProcesses(cell.proc, 1, Counting::kMost);
  return cell.memory.Sum(most, scratch.used_kb, SocketKb(cell.proc), now);
}

uint64_t Watch::ExactOf(const Cell& cell, const Usage& usage, int64_t now) const {
  return cell.memory.Sum(usage, ScratchOf(cell).used_kb, SocketKb(cell.proc), now);
}

// What a dying namespace reaps by itself is in nobody's rusage.
void Watch::SampleLast(Slot* slot) {
  Cell* const cell = &slot->cell;
  if (cell->call.armed_us == 0) return;
  const int64_t now = NowUs();
  Sample(slot, now);
  CellTime& time = cell->time;
  if (time.before) {
    const ProcessorTime all = ProcessorTimeOf(cell->proc, 1);
    const auto since = [](uint64_t us, uint64_t before) { return us - std::min(us, before); };
    const uint64_t had_us = std::max(time.cpu_us, since(all.had_us, time.before->had_us));
    // Threads that wait while the call has all that it may have wait for each other.
    const uint64_t cpus = std::min<uint64_t>(configuration_.cpus(), Processors());
    const uint64_t most_us =
        cpus * static_cast<uint64_t>(std::max<int64_t>(now - cell->call.armed_us, 0));
    time.waited_us = std::min(since(all.waited_us, time.before->waited_us), since(most_us, had_us));
  }
  if (cell->peak_kb != 0) return;
  // No reader was there in its short time. Memory that was lent to it is in there, so this may be
  // too much.
  const uint64_t most_kb = MostOf(*cell, ScratchOf(*cell), now);
  cell->peak_kb = std::min(parked_kb_ + most_kb - std::min(most_kb, parked_most_kb_),
                           configuration_.watch_kb());
}

void Watch::MeasureParked(Cell* cell) {
  if (parked_most_kb_ != 0 || configuration_.single_cell() || cell->kept) return;
  cell->looks.wanted = true;
  cell->looks.asked_kb = MostOf(*cell, ScratchOf(*cell), NowUs());
  SendReaders();
}

void Watch::MeasureBase(Cell* cell) {
  const Usage usage = MeasureShares(cell->proc, 1);
  cell->memory.SetBase(configuration_.gvisor()
                           ? KernelsMemoryKb(cell->proc)
                           : usage.memory_kb + usage.shared_kb + usage.scratch_kb);
  cell->time.base_us = MeasureProcesses(cell->proc, 1, Counting::kResident).cpu_us;
  if (!configuration_.gvisor()) parked_most_kb_ = MostOf(*cell, ScratchOf(*cell), 0);
}

bool Watch::Needs(const Cell& cell) {
  return cell.call.armed_us != 0 && (!cell.looks.quiet || cell.call.between);
}

void Watch::LookAtCells(int64_t now) {
  bool measured = false;
  const HostView begin = AtBegin();
  first_ = (first_ + 1) % kMaxSlots;
  for (int turn = 0; turn < kMaxSlots; ++turn) {
    Slot* const slot = &slots_[(first_ + turn) % kMaxSlots];
    Cell* const cell = &slot->cell;
    if (!cell->runs() || cell->call.armed_us == 0 || !IsDue(cell, now)) continue;
    if (!std::exchange(measured, true)) SampleHost();
    const int64_t begun_us = cell->looks.extra ? OwnCpuUs() : 0;
    Look(slot, now);
    if (cell->looks.extra) looks_.Spend(OwnCpuUs() - begun_us);
  }
  SeeSleepers(begin);
}

// One that is quiet is looked at at once, when it has waked, as far as the processor time for that
// goes, and otherwise now and then.
bool Watch::IsDue(Cell* cell, int64_t now) {
  Looks& looks = cell->looks;
  const bool between = cell->call.between;
  looks.asleep = between && looks.quiet && looks.sleep.Lasts();
  looks.extra = false;
  const int64_t since_us = now - looks.sampled_us;
  if (!looks.quiet || since_us >= (looks.asleep ? kAsleepUs : kQuietUs)) return true;
  looks.extra = between && !looks.asleep && !configuration_.single_cell() && looks_.Has(now);
  return looks.extra;
}

// Before any cell is asked whether it still sleeps: what one takes that wakes meanwhile is not in
// there.
HostView Watch::AtBegin() const {
  HostView begin = host_;
  const bool may_sleep = std::ranges::any_of(
      slots_, [](const Slot& slot) { return slot.cell.call.between && slot.cell.looks.quiet; });
  if (may_sleep) begin.memory.shmem_kb = host_reads_.shared_kb();
  return begin;
}

// What the host takes while a cell sleeps is not that cell's.
void Watch::SeeSleepers(const HostView& begin) {
  for (Slot& slot : slots_) {
    if (slot.cell.looks.asleep) slot.cell.memory.SeeAsleep(begin);
  }
}

void Watch::TakeMemory(Cell* cell, uint64_t exact_kb, uint64_t resident_kb) const {
  cell->looks.exact_kb = exact_kb;
  cell->looks.resident_kb = resident_kb;
  cell->peak_kb = std::max(cell->peak_kb, exact_kb);
  if (exact_kb > configuration_.watch_kb() && !WallIsDown("watch")) cell->over = kLimitMemory;
}

void Watch::Look(Slot* slot, int64_t now) {
  Cell* const cell = &slot->cell;
  const auto over = [cell](CellLimit limit) { cell->over = limit; };
  const bool gvisor = configuration_.gvisor();
  const uint64_t watch_kb = configuration_.watch_kb();
  CellMemory& memory = cell->memory;
  Looks& looks = cell->looks;
  if (cell->call.deadline_us != 0 && now > cell->call.deadline_us) return over(kLimitTime);
  const ScratchUse scratch = ScratchOf(*cell);
  host_.known_shared_kb += scratch.used_kb - memory.SetScratch(scratch.used_kb);
  const Usage usage = Sample(slot, now);
  looks.quiet = (cell->call.loading || cell->call.between) && looks.sampled_us != 0 &&
                cell->time.cpu_us == cell->time.seen_us;
  if (looks.quiet && cell->call.between && !looks.asleep && !configuration_.single_cell())
    looks.sleep.Begin(proc_, cell->init, cell->proc);
  if (!cell->call.loading && !cell->call.between && !cell->time.before)
    cell->time.before = ProcessorTimeOf(cell->proc, 1);
  looks.sampled_us = now;
  cell->time.seen_us = cell->time.cpu_us;
  if (cell->call.cpu_us != 0 && cell->time.cpu_us > cell->call.cpu_us && !WallIsDown("cpu"))
    return over(kLimitCpuTime);
  if (gvisor && usage.processes > configuration_.pids())  // it counts none for RLIMIT_NPROC
    return over(kLimitPids);
  if (configuration_.files() != 0 && scratch.files > configuration_.files())
    return over(kLimitDisk);
  if (!gvisor) memory.See(host_);
  const bool lost = memory.host_lost() && !WallIsDown("objects");
  const bool unseen = memory.host_shares() && !WallIsDown("objects");
  const uint64_t resident_kb =
      usage.memory_kb + memory.BesideProcesses(scratch.used_kb, SocketKb(cell->proc));
  const bool suspect = lost || unseen || resident_kb > watch_kb + memory.base_kb();
  if (suspect) looks.sleep.End();
  if (!suspect && !gvisor && (looks.extra || looks.samples++ % kExactEvery != 0)) return;
  const bool grown = looks.exact_kb + resident_kb > watch_kb + looks.resident_kb;
  if (now < (grown ? looks.exact_if_grown_us : looks.exact_after_us)) return;
  if (gvisor) return TakeMemory(cell, MostOf(*cell, scratch, now), resident_kb);
  if (looks.reader != nullptr) return;
  // Who keeps a reader waiting is sent none while there is nothing to find.
  if (looks.slow && !lost && !unseen) {
    const bool within = MostOf(*cell, scratch, now) <= watch_kb;
    looks.exact_after_us = now + 5 * (NowUs() - now);
    if (within) return;
  }
  looks.wanted = true;
  looks.objects = lost || memory.has_objects();
  looks.areas = unseen || memory.has_areas();
  looks.asked_kb = resident_kb;
}

const char* Watch::LookAtWorker(int64_t now) {
  const char* const failed = worker_.Look(proc_, now, zygote_.ready(), zygote_.kb());
  SendReaders();
  return failed;
}

}  // namespace hutch
