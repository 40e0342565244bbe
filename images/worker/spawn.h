// SPDX-License-Identifier: Apache-2.0

// Starts a program as a child of this process, which is not copied for it (vfork).
//
// The child leads neither a process group nor a session, as of a shell without job control:
// `setsid` would fork otherwise, and its exit code be lost. It adopts what its descendants leave
// behind (a "child subreaper"), so that as long as it lives all that it started is below it.
//
// Thread contract: the GIL is held.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace hutch {

// For a table of methods; ends with an empty entry.
extern PyMethodDef spawn_methods[];

}  // namespace hutch
