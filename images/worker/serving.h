// SPDX-License-Identifier: Apache-2.0

// Serves calls in the user process of a cell: what a plain call passes is done here, everything
// else by call.py's Worker. A fresh process pays a page fault for every few objects that Python
// code meets for the first time, so that the long way costs several times what the call itself
// does.
//
// A call is plain when its meta data says so (kPlain, wire/cell_frame.h) and no section of it came
// as a descriptor. Of its result the plainest values are encoded here, as encode.py does it.
//
// Thread contract: the only thread of its process, until user code starts others; the GIL is held.
#pragma once

#include "images/worker/frames.h"

namespace hutch {

// Makes the calling process's state its own (`reseed`: a tuple of functions to be called), says
// that the cell is ready, and serves: one call, or as many as come while the worker says `keep`.
// `hurried`: the warm-up is postponed until no call has come for a while.
[[noreturn]] void ServeCell(PyObject* reseed, uint64_t id, bool hurried);

// For a table of methods; ends with an empty entry.
extern PyMethodDef serving_methods[];

}  // namespace hutch
