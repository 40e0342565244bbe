// SPDX-License-Identifier: Apache-2.0

// libFuzzer over the messages between client and agent. Both are ours, but the agent outlives many
// clients: bytes that are no message are an error, never an allocation of what they claim.
//
// One mutant in four begins as a message of some type with nothing in it, which is always valid.
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "tests/fuzz/budget.h"
#include "tests/fuzz/tally.h"
#include "wire/error.h"
#include "wire/message.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

template <size_t... kIndex>
std::string Fresh(size_t which, std::index_sequence<kIndex...>) {
  std::string text;
  ((which == kIndex ? void(text = hutch::EncodeMessage(hutch::Message(std::in_place_index<kIndex>)))
                    : void()),
   ...);
  return text;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  constexpr size_t kTypes = std::variant_size_v<hutch::Message>;
  if (seed % 4 == 0) {
    const std::string fresh = Fresh(seed / 4 % kTypes, std::make_index_sequence<kTypes>());
    if (fresh.size() <= max_size) {
      std::memcpy(data, fresh.data(), fresh.size());
      size = fresh.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  bool accepted = false;
  try {
    const hutch::Message message =
        hutch::DecodeMessage({reinterpret_cast<const char*>(data), size});
    const std::string text = hutch::EncodeMessage(message);
    if (hutch::EncodeMessage(hutch::DecodeMessage(text)) != text) std::abort();
    accepted = true;
  } catch (const hutch::Error& error) {
    if (error.code() != hutch::Code::kProtocol) std::abort();
  }
  tally.Count(accepted);
  return 0;
}
