// SPDX-License-Identifier: Apache-2.0

// Inputs that are a run of steps, `u8 how, u16 length, bytes` each, and frames in them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "wire/cell_frame.h"

namespace hutch {

// Calls `step(how, bytes)` for each.
template <class Step>
void ForEachStep(const uint8_t* data, size_t size, Step step) {
  while (size >= 3) {
    const uint8_t how = data[0];
    const size_t length = std::min<size_t>(data[1] | data[2] << 8, size - 3);
    step(how, std::string(reinterpret_cast<const char*>(data + 3), length));
    data += 3 + length;
    size -= 3 + length;
  }
}

// The frame in `bytes` with magic and version put right, and what else `mend` does to its header.
template <class Mend>
void WithHeader(std::string& bytes, Mend mend) {
  FrameHeader header;
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.magic = kFrameMagic;
  header.version = kFrameVersion;
  mend(header);
  std::memcpy(bytes.data(), &header, sizeof header);
}

}  // namespace hutch
