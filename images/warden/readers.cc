// SPDX-License-Identifier: Apache-2.0

// The warden's readers: which cell one is sent to, what becomes of its answer, and of a call that
// keeps one waiting.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "images/warden/clock.h"
#include "images/warden/warden.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

// Ticks at which it was kept waiting, and not for a processor: then what its counters say decides.
constexpr uint32_t kLongWait = 15;
// Ticks after which a call may keep it no longer, where there is no other reader left.
constexpr uint32_t kTooLongWait = 100;

}  // namespace

void Warden::StartReaders() {
  answered_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (answered_ < 0 || !readers_[0].Start(&MeasureExactly, answered_))
    Fatal("a thread could not be made");
  Watch(answered_, kReaderEvent);
}

// Another one only where all before it are kept waiting. Null: there is none now.
Reader* Warden::FreeReader() {
  for (int i = 0; i < kReaders; ++i) {
    Reader& reader = readers_[i];
    if (!reader.started() && !reader.Start(&MeasureExactly, answered_)) return nullptr;
    if (!reader.busy()) {
      reader_waits_[i] = 0;
      return &reader;
    }
    if (reader_waits_[i] < kLongWait) return nullptr;
  }
  return nullptr;
}

// In turn, so that no cell's processes keep a reader from those of the others.
void Warden::SendReaders() {
  const int first = next_wanted_;
  for (int i = 0; i <= kMaxSlots; ++i) {
    const int number = (first + i) % (kMaxSlots + 1);
    const bool own = number == kWorker;
    Cell* const cell = own ? nullptr : &slots_[number].cell;
    if (own ? !own_wanted_ : !cell->wanted) continue;
    Reader* const reader = FreeReader();
    if (reader == nullptr) return;
    Reader::Job job;
    job.owner = number;
    job.proc = fcntl(own ? proc_ : cell->proc, F_DUPFD_CLOEXEC, 3);
    if (job.proc < 0) return;  // at another time
    next_wanted_ = number + 1;
    if (own) {
      job.only = own_;
      job.only_count = own_count_;
      own_wanted_ = false;
      own_reader_ = reader;
    } else {
      job.cell = cell->id;
      job.objects = std::exchange(cell->wanted_objects, false);
      job.areas = std::exchange(cell->wanted_areas, false);
      job.scratches.Add(cell->scratch, cell->scratch_kb);
      for (const int more : more_scratch_) job.scratches.Add(more, 0);
      cell->wanted = false;
      cell->reader = reader;
    }
    reader->Ask(job);
  }
}

void Warden::OnReaders() {
  uint64_t times;
  [[maybe_unused]] const ssize_t size = read(answered_, &times, sizeof times);
  for (Reader& reader : readers_) {
    const Reader::Job job = reader.job();
    Reader::Answer answer;
    if (reader.Take(&answer)) TakeAnswer(reader, job, answer);
  }
  SendReaders();
}

void Warden::TakeAnswer(const Reader& reader, const Reader::Job& job,
                        const Reader::Answer& answer) {
  if (job.owner == kWorker) {
    own_reader_ = nullptr;
    JudgeWorker(answer.usage.memory_kb + answer.usage.shared_kb + answer.usage.scratch_kb);
    return;
  }
  Cell* const cell = &slots_[job.owner].cell;
  // It is gone, or the user process that was measured is.
  if (cell->reader != &reader || cell->id != job.cell) return;
  cell->reader = nullptr;
  if (cell->state != CellState::kReady || cell->end != kEndedItself) return;
  const int64_t now = NowUs();
  cell->slow = cell->slow || answer.usage.kept_waiting || answer.objects.kept_waiting ||
               answer.areas.kept_waiting;
  // One cell has a fifth of a processor at most, and half of it while it grows: what it takes in
  // the meantime nobody sees.
  const int64_t walk_us = answer.usage.walk_us + answer.objects.walk_us + answer.areas.walk_us;
  cell->exact_after_us = now + 5 * walk_us;
  cell->exact_if_grown_us = now + 2 * walk_us;
  if (answer.usage.exact) cell->shared_kb = answer.usage.shared_kb;
  if (job.objects) TakeObjects(cell, answer.objects);
  if (job.areas) TakeAreas(cell, answer.areas);
  const uint64_t exact_kb = Sum(*cell, answer.usage, Scratch(*cell), now);
  if (cell->armed_us != 0) return TakeMemory(cell, exact_kb, cell->asked_kb);
  parked_kb_ = exact_kb;
  parked_most_kb_ = cell->asked_kb;
}

// A call can keep a reader waiting, but not out of its own limit: then the most that it may have
// counts. An honest one is not blamed for a machine that is busy, nor for a short wait.
void Warden::WatchReaders(int64_t now) {
  bool wanted = own_wanted_;
  for (const Slot& slot : slots_) wanted = wanted || slot.cell.wanted;
  bool all_wait = true;
  for (int i = 0; i < kReaders; ++i) all_wait = all_wait && reader_waits_[i] >= kLongWait;
  for (int i = 0; i < kReaders; ++i) {
    if (!readers_[i].busy() || !readers_[i].Waits()) continue;
    if (++reader_waits_[i] < kLongWait) continue;
    const Reader::Job& job = readers_[i].job();
    if (job.owner == kWorker) {
      if (reader_waits_[i] > kTooLongWait)
        Fatal("the worker's packages hide what memory they take");
      continue;
    }
    Cell* const cell = &slots_[job.owner].cell;
    if (cell->id != job.cell || cell->reader != &readers_[i]) continue;
    cell->slow = true;
    if (cell->state != CellState::kReady || cell->end != kEndedItself || cell->armed_us == 0 ||
        now < cell->exact_if_grown_us) {
      continue;
    }
    if (job.objects)
      cell->kernel_kb =
          std::max(cell->kernel_kb, host_.slab_kb - std::min(host_.slab_kb, cell->least_slab_kb));
    // Others may have taken it: that counts only where the wait is no accident of a busy machine.
    if (job.areas && reader_waits_[i] > kTooLongWait)
      cell->areas_kb = std::max(cell->areas_kb, SharedGrowthKb(*cell));
    const int64_t begun_us = NowUs();
    const uint64_t most_kb = MostOf(*cell, Scratch(*cell), now);
    cell->exact_if_grown_us = now + 2 * (NowUs() - begun_us);
    const bool too_long = all_wait && wanted && reader_waits_[i] > kTooLongWait;
    if ((most_kb <= watch_kb_ && !too_long) || WallIsDown("watch")) continue;
    cell->peak_kb = std::max(cell->peak_kb, most_kb);
    KillWhatRuns(cell, kLimitMemory);
  }
}

}  // namespace hutch
