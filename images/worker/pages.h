// SPDX-License-Identifier: Apache-2.0

// Big pages for what the zygote imports. A fork copies a page table entry for each page: of 4 KiB
// they are thousands with a library like pandas, and the copy is most of what making a cell costs.
//
// Where the kernel gives no big pages nothing changes. One thread.
#pragma once

namespace hutch {

// From now on the interpreter's arenas lie in pairs in regions of 2 MiB that may be one page.
void UseBigArenas();

// The interpreter's own arenas again: a cell that needs one more shall not pay for 2 MiB. Then puts
// what else there is of heap and data into big pages, at its addresses.
void SettlePages();

}  // namespace hutch
