// SPDX-License-Identifier: Apache-2.0

// Whether cells can be made here at all. Asked once, before anything but the warden runs in the
// container: what a package says of it later would be a package's word.
#pragma once

#include <cstdint>

namespace hutch {

struct Refusal {
  uint64_t error = 0;  // errno; 0: they can be made
  uint64_t step = 0;   // NamespaceStep
};

// Makes what a slot and a cell are made of, in processes that end with the answer.
Refusal TryNamespaces();

}  // namespace hutch
