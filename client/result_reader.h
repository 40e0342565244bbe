// SPDX-License-Identifier: Apache-2.0

// Puts together what a cell sends: in parts, with the frame that ends it, or in memory that it was
// given (cell_frame.h). Frames that contradict one another throw kProtocol. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "client/call.h"
#include "client/given_memory.h"
#include "wire/cell_frame.h"

namespace hutch {

class ResultReader {
 public:
  void Begin() {  // of another call
    given_.TakeBack();
    parts_.clear();
  }
  // Of a kPart. `most`: bytes of all of them.
  void AddPart(const FrameHeader& header, std::string_view payload, uint64_t most);
  size_t parts_size() const { return parts_.size(); }
  std::string TakeParts() { return std::exchange(parts_, {}); }
  // As GivenMemory does.
  int GiveMemory(uint64_t size, bool stays) { return given_.GiveForResult(size, stays); }
  int GiveAnswer(std::string_view answer) { return given_.GiveAnswer(answer); }
  const GivenMemory& given() const { return given_; }
  // Of the frame that ends the call: its usage, and what it returns.
  void Take(const FrameHeader& header, std::string_view payload, CallOutcome& outcome);
  void TakeBack() { given_.TakeBack(); }  // The call is over.

 private:
  GivenMemory given_;
  std::string parts_;  // as they come
  uint64_t parts_size_ = 0;
};

}  // namespace hutch
