// SPDX-License-Identifier: Apache-2.0

// Mutations of a result's payload (bindings/decode.h) that know its form: values are exchanged,
// wrapped, doubled and left out as wholes, with the counts around them mended, so that most mutants
// are still results and the fuzzer gets behind the parser. Stateless.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace hutch {

// A payload as the fuzzer keeps it: the size of the body, u32 little-endian, then body and buffers.
struct FuzzedPayload {
  std::string body;
  std::string buffers;

  static FuzzedPayload From(const uint8_t* data, size_t size);
  std::string Text() const;
};

// One to three mutations, chosen by `seed`; in one of twelve cases `blindly` changes the body's
// bytes instead, as it likes. The same seed gives the same mutant.
void Mutate(FuzzedPayload& payload, uint32_t seed,
            const std::function<void(std::string&)>& blindly);

}  // namespace hutch
