// SPDX-License-Identifier: Apache-2.0

// The header of a frame to the agent about a slot, or its cell.
#pragma once

#include <cstdint>

#include "wire/cell_frame.h"

namespace hutch {

inline FrameHeader About(FrameKind kind, int slot, uint64_t id) {
  FrameHeader header;
  header.kind = kind;
  header.a = static_cast<uint32_t>(slot);
  header.id = id;
  return header;
}

}  // namespace hutch
