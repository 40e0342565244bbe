// SPDX-License-Identifier: Apache-2.0

// The warden's readers (reader.h). The first does all the work, unless it is kept waiting: then
// there is another one, up to kMost.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>

#include "images/warden/reader.h"

namespace hutch {

class ReaderPool {
 public:
  static constexpr int kMost = 4;
  // Ticks at which one was kept waiting, and not for a processor: then what the counters of the
  // processes say decides.
  static constexpr uint32_t kLongWait = 15;
  // Ticks after which a call may keep one no longer, where there is no other left.
  static constexpr uint32_t kTooLongWait = 100;

  explicit ReaderPool(Reader::Measure measure = &MeasureExactly) : measure_(measure) {}

  bool Start();
  int answered() const { return answered_; }  // readable: there are answers

  // Null: there is none now.
  Reader* Free();

  // Calls `body(reader, job, answer)` with each answer that has come.
  template <typename Body>
  void EachAnswer(Body body) {
    DrainAnswered();
    for (Reader& reader : readers_) {
      const Reader::Job job = reader.job();
      Reader::Answer answer;
      if (reader.Take(&answer)) body(reader, job, answer);
    }
  }

  // At a tick: calls `body(reader, ticks)` with each that has been kept waiting for long.
  template <typename Body>
  void EachLate(Body body) {
    for (int i = 0; i < kMost; ++i) {
      if (!readers_[i].busy() || !readers_[i].Waits()) continue;
      if (++waits_[i] >= kLongWait) body(readers_[i], waits_[i]);
    }
  }
  bool all_late() const;

 private:
  void DrainAnswered() const;

  const Reader::Measure measure_;
  Reader readers_[kMost];
  uint32_t waits_[kMost] = {};
  int answered_ = -1;
};

}  // namespace hutch
