// SPDX-License-Identifier: Apache-2.0

#include "client/given_memory.h"

#include <tuple>
#include <utility>

namespace hutch {

int GivenMemory::GiveForResult(uint64_t size, bool stays) {
  result_size_ = size;
  stays_ = stays;
  if (stays) {
    std::tie(result_, theirs_) = MakeReturnableMemfd(size);
    return theirs_.get();
  }
  result_ = MakeResultMemfd(size);
  return result_.get();
}

PrivateMapping GivenMemory::TakeResult(uint64_t size) {
  if (!stays_) return {result_.get(), size};
  theirs_.reset();
  if (IsHeldElsewhere(result_.get())) return PrivateMapping::CopyOf(result_.get(), size);
  const Fd ours = std::move(result_);  // nobody else has it: it lives as long as the mapping
  return PrivateMapping::OfSole(ours.get(), size);
}

int GivenMemory::GiveAnswer(std::string_view answer) {
  if (answer_) hutch::TakeBack(answer_.get());
  answer_ = MakeAnswerMemfd("hutch-answer", answer.data(), answer.size());
  return answer_.get();
}

void GivenMemory::TakeBack() {
  if (answer_) hutch::TakeBack(answer_.get());
  answer_.reset();
  if (!stays_) return;  // its end is near, and takes it with it
  if (result_) hutch::TakeBack(result_.get());
  result_.reset();
  theirs_.reset();
}

}  // namespace hutch
