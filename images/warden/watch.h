// SPDX-License-Identifier: Apache-2.0

// The warden's watch over its cells, and over what belongs to none: what is measured, when, and
// which limit that is over. It ends nothing: a cell that is over a limit has that in `over`, and a
// worker that takes too much has the reason returned.
//
// A cell is sampled at each tick while a call runs: cheap counters, which never show less than
// there is. Where they show more than the limit, and now and then anyway, a reader measures exactly
// (watch_readers.cc). A cell that uses no CPU time between two calls is quiet: while all of its
// processes sleep (sleep.h) it needs no look, and when one wakes it is looked at at once, as far as
// the processor time for that goes.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>

#include "images/warden/cell.h"
#include "images/warden/configuration.h"
#include "images/warden/measure.h"
#include "images/warden/reader_pool.h"
#include "images/warden/sleep.h"
#include "images/warden/worker_watch.h"
#include "images/warden/zygote.h"

namespace hutch {

class Watch {
 public:
  // All of them outlive it.
  Watch(const Configuration& configuration, const Zygote& zygote, Slot (&slots)[kMaxSlots],
        const HostReads& host_reads = {})
      : configuration_(configuration),
        zygote_(zygote),
        slots_(slots),
        host_reads_(host_reads),
        worker_(configuration, slots) {}

  void Open();  // the worker's /proc
  // Once all but the last capabilities are dropped. False: a thread could not be made.
  bool StartReaders() { return readers_.Start(); }
  int answered() const { return readers_.answered(); }  // readable: TakeAnswers()

  // At a tick, in this order. Each returns nullptr, or why the worker ends.
  const char* LookAtReaders(int64_t now);
  void LookAtCells(int64_t now);
  const char* LookAtWorker(int64_t now);
  const char* TakeAnswers();
  // Whether ticks are needed for a cell.
  static bool Needs(const Cell& cell);

  // What its processes have, and the time they have used, by cheap reads.
  Usage Sample(Slot* slot, int64_t now);
  // Nobody may have measured it in its short time: its last word on its memory.
  void SampleLast(Slot* slot);
  // A cell that is ready, and waits for its call.
  void MeasureParked(Cell* cell);
  // Single cell: what the zygote had before it became the cell.
  void MeasureBase(Cell* cell);

 private:
  void SampleHost();
  bool IsDue(Cell* cell, int64_t now);
  void Look(Slot* slot, int64_t now);
  HostView AtBegin() const;
  void SeeSleepers(const HostView& begin);
  uint64_t MostOf(const Cell& cell, const ScratchUse& scratch, int64_t now) const;
  uint64_t ExactOf(const Cell& cell, const Usage& usage, int64_t now) const;
  void TakeMemory(Cell* cell, uint64_t exact_kb, uint64_t resident_kb) const;
  // watch_readers.cc
  void SendReaders();
  bool SendReader(int number);
  void TakeAnswer(const Reader& reader, const Reader::Job& job, const Reader::Answer& answer);
  const char* LookAtLate(const Reader& reader, uint32_t ticks, bool none_left, int64_t now);
  bool IsAt(const Reader& reader, const Cell& cell) const;

  const Configuration& configuration_;
  const Zygote& zygote_;
  Slot (&slots_)[kMaxSlots];
  const HostReads host_reads_;
  WorkerWatch worker_;
  ReaderPool readers_;
  Allowance looks_{2, 20'000};  // for looks at cells that are quiet, and not asleep
  int proc_ = -1;
  int first_ = 0;        // of the slots, in turn
  int next_wanted_ = 0;  // likewise, for readers
  HostView host_;        // as of this tick
  // Of a cell that waits for its call: its memory, and the most that it may have by its counters.
  uint64_t parked_kb_ = 0;
  uint64_t parked_most_kb_ = 0;
};

}  // namespace hutch
