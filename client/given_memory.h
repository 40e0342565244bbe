// SPDX-License-Identifier: Apache-2.0

// Memory of the host that the user process of a cell is given while a call runs: one piece to write
// a large result to, and one for each large answer to what it asks.
//
// No size of its processes shows that memory while none of them maps it, so none of it is left with
// them: an answer is taken back when the next one is given, since code asks one question at a time,
// and what is left of all when the call is over. Taking back is truncating it, whoever holds it,
// with a seal against its growth. That is for cells that may serve other calls (`stays`); the end
// of any other takes its memory with it. The result of one that stays is mapped as it is only if no
// process has it any more; otherwise it is copied first.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <string_view>

#include "wire/fd.h"
#include "wire/memfd.h"

namespace hutch {

class GivenMemory {
 public:
  GivenMemory() = default;
  GivenMemory(GivenMemory&&) = default;
  GivenMemory& operator=(GivenMemory&&) = default;

  // The descriptor to send, which stays ours. `stays`: the cell may serve other calls.
  int GiveForResult(uint64_t size, bool stays);
  // Whether it was given memory for a result, and how much.
  bool has_result() const { return static_cast<bool>(result_); }
  uint64_t result_size() const { return result_size_; }
  uint64_t result_kb() const { return has_result() ? result_size_ / 1024 + 1 : 0; }
  // What the cell says it wrote there. Throws kProtocol where there is less.
  // REQUIRES: size <= result_size().
  PrivateMapping TakeResult(uint64_t size);

  // The descriptor to send, which stays ours.
  int GiveAnswer(std::string_view answer);

  // The call is over, as the cell said or the caller decided.
  void TakeBack();

 private:
  Fd result_, theirs_;  // `theirs_`: as the cell got it
  Fd answer_;
  uint64_t result_size_ = 0;
  bool stays_ = false;
};

}  // namespace hutch
