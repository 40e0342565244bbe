// SPDX-License-Identifier: Apache-2.0

// The pages of memory that a piece of work touches, learned ahead of it: a fork of the zygote does
// the work (exercise.py) and finds out which pages were copied or mapped by it. A cell that waits
// copies and maps the same pages ahead of its call.
//
// They are learned only in the zygote, from work that is the same for all cells, never from a call:
// which pages a cell has would show later calls what earlier ones did.
//
// Where the kernel does not report them (/proc/self/pagemap) or cannot do it (MADV_POPULATE_WRITE,
// since Linux 5.14), nothing changes. One thread.
#pragma once

#include <stddef.h>

namespace hutch {

struct Footprint {
  const char* bytes;  // nullptr: not available
  size_t size;
};

// In the fork, before the work.
void WatchPages();

// In the fork, after it, for KeepFootprint() in the zygote. Lasts as long as the process.
Footprint TouchedPages();

// In the zygote: its cells are to have that ahead too, unless more than `most` pages would have to
// be copied, or it is more than there is room for. Returns how many pages are.
size_t KeepFootprint(Footprint footprint, size_t most);

// In a cell. No more than the first time.
bool HasFootprint();
void TakeFootprint();

}  // namespace hutch
