// SPDX-License-Identifier: Apache-2.0

// Big pages for what the zygote imports. A fork copies a page table entry for each page: of 4 KiB
// they are thousands with a library like pandas, and the copy is most of what making a cell costs.
//
// If the kernel gives no big pages, nothing changes. Thread contract: single-threaded processes
// only.
#pragma once

namespace hutch {

// From now on the interpreter's arenas lie in pairs in regions of 2 MiB that may be one page.
void UseBigArenas();

// Restores the interpreter's own arenas, so that a cell that needs one more does not pay for 2 MiB.
// Then moves the rest of heap and data into big pages, at the same addresses.
void SettlePages();

}  // namespace hutch
