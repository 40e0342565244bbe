// SPDX-License-Identifier: Apache-2.0

// Serves calls in the user process of a cell: plain calls in C, all others in the Worker of
// call.py. In a fresh process, Python code that runs for the first time has a page fault for every
// few objects, which would cost several times what the call itself costs (docs/fast-path.md).
//
// A call is plain if its meta data says so (kPlain, wire/cell_frame.h) and no section of it came as
// a descriptor. Short results are encoded in C, too (short_body.h).
//
// Thread contract: the only thread of its process, until user code starts others; the GIL is held.
#pragma once

#include "images/worker/frames.h"

namespace hutch {

// Calls the functions in the tuple `reseed`, which give the process a state of its own, reports the
// cell as ready, and serves one call, or more as long as the worker's `keep` is true.
// `skip_warm_up`: the warm-up is postponed until no call has come for a while.
[[noreturn]] void ServeCell(PyObject* reseed, uint64_t id, bool skip_warm_up);

// For a table of methods; ends with an empty entry.
extern PyMethodDef serving_methods[];

}  // namespace hutch
