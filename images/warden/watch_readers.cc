// SPDX-License-Identifier: Apache-2.0

// The watch's readers: which cell one is sent to, what becomes of its answer, and of a call that
// keeps one waiting.
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "images/warden/clock.h"
#include "images/warden/watch.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr int kWorker = kMaxSlots;  // the owner of what is no cell's

}  // namespace

// In turn, so that no cell's processes keep a reader from those of the others.
void Watch::SendReaders() {
  const int first = next_wanted_;
  for (int i = 0; i <= kMaxSlots; ++i) {
    const int number = (first + i) % (kMaxSlots + 1);
    const bool wanted = number == kWorker ? worker_.wanted() : slots_[number].cell.looks.wanted;
    if (wanted && !SendReader(number)) return;  // at another time
  }
}

bool Watch::SendReader(int number) {
  Cell* const cell = number == kWorker ? nullptr : &slots_[number].cell;
  Reader* const reader = readers_.Free();
  if (reader == nullptr) return false;
  Reader::Job job;
  job.owner = number;
  job.proc = fcntl(cell == nullptr ? proc_ : cell->proc, F_DUPFD_CLOEXEC, 3);
  if (job.proc < 0) return false;
  next_wanted_ = number + 1;
  if (cell == nullptr) {
    job.only = worker_.processes();
    job.only_count = worker_.count();
    worker_.Begin(reader);
  } else {
    Looks& looks = cell->looks;
    job.cell = cell->id;
    job.objects = std::exchange(looks.objects, false);
    job.areas = std::exchange(looks.areas, false);
    job.scratches.Add(cell->scratch, cell->memory.scratch_kb());
    for (const int more : cell->more_scratch) job.scratches.Add(more, 0);
    cell->memory.Ask(host_);
    looks.wanted = false;
    looks.reader = reader;
  }
  reader->Ask(job);
  return true;
}

const char* Watch::TakeAnswers() {
  const char* failed = nullptr;
  readers_.EachAnswer(
      [&](const Reader& reader, const Reader::Job& job, const Reader::Answer& answer) {
        if (job.owner != kWorker) return TakeAnswer(reader, job, answer);
        const Usage& usage = answer.usage;
        const char* const judged =
            worker_.Judge(usage.memory_kb + usage.shared_kb + usage.scratch_kb, zygote_.kb());
        if (judged != nullptr) failed = judged;
      });
  SendReaders();
  return failed;
}

// Not where the cell is gone, or the user process that is measured is.
bool Watch::IsAt(const Reader& reader, const Cell& cell) const {
  return cell.id == reader.job().cell && cell.looks.reader == &reader;
}

void Watch::TakeAnswer(const Reader& reader, const Reader::Job& job, const Reader::Answer& answer) {
  Cell* const cell = &slots_[job.owner].cell;
  if (cell->looks.reader != &reader || cell->id != job.cell) return;
  Looks& looks = cell->looks;
  looks.reader = nullptr;
  if (!cell->runs()) return;
  const int64_t now = NowUs();
  looks.slow = looks.slow || answer.usage.kept_waiting || answer.objects.kept_waiting ||
               answer.areas.kept_waiting;
  // One cell has a fifth of a processor at most, and half of it while it grows: what it takes in
  // the meantime nobody sees.
  const int64_t walk_us = answer.usage.walk_us + answer.objects.walk_us + answer.areas.walk_us;
  looks.exact_after_us = now + 5 * walk_us;
  looks.exact_if_grown_us = now + 2 * walk_us;
  if (answer.usage.exact) cell->memory.SetShared(answer.usage.shared_kb);
  if (job.objects) cell->memory.TakeObjects(answer.objects, host_);
  if (job.areas) cell->memory.TakeAreas(answer.areas, host_);
  const uint64_t exact_kb = ExactOf(*cell, answer.usage, now);
  if (cell->call.armed_us != 0) return TakeMemory(cell, exact_kb, looks.asked_kb);
  parked_kb_ = exact_kb;
  parked_most_kb_ = looks.asked_kb;
}

const char* Watch::LookAtReaders(int64_t now) {
  bool wanted = worker_.wanted();
  for (const Slot& slot : slots_) wanted = wanted || slot.cell.looks.wanted;
  const bool none_left = wanted && readers_.all_late();
  const char* failed = nullptr;
  readers_.EachLate([&](const Reader& reader, uint32_t ticks) {
    const char* const late = LookAtLate(reader, ticks, none_left, now);
    if (late != nullptr) failed = late;
  });
  return failed;
}

// A call can keep a reader waiting, but not out of its own limit: then the most that it may have
// counts. An honest one is not blamed for a machine that is busy, nor for a short wait.
const char* Watch::LookAtLate(const Reader& reader, uint32_t ticks, bool none_left, int64_t now) {
  const Reader::Job& job = reader.job();
  const bool too_long = ticks > ReaderPool::kTooLongWait;
  if (job.owner == kWorker)
    return too_long ? "the worker's packages hide what memory they take" : nullptr;
  Cell* const cell = &slots_[job.owner].cell;
  if (!IsAt(reader, *cell)) return nullptr;
  Looks& looks = cell->looks;
  looks.slow = true;
  if (!cell->runs() || cell->call.armed_us == 0 || now < looks.exact_if_grown_us) return nullptr;
  if (job.objects) cell->memory.ChargeObjects(host_);
  // Others may have taken it: that counts only where the wait is no accident of a busy machine.
  if (job.areas && too_long) cell->memory.ChargeAreas(host_);
  const int64_t begun_us = NowUs();
  const uint64_t most_kb = MostOf(*cell, ScratchOf(*cell), now);
  looks.exact_if_grown_us = now + 2 * (NowUs() - begun_us);
  if ((most_kb <= configuration_.watch_kb() && !(none_left && too_long)) || WallIsDown("watch"))
    return nullptr;
  cell->peak_kb = std::max(cell->peak_kb, most_kb);
  cell->over = kLimitMemory;
  return nullptr;
}

}  // namespace hutch
