// SPDX-License-Identifier: Apache-2.0

// Runs a program that was compiled ahead and is given nothing of its own, as programs.py and
// ending.py do.
//
// Thread contract: the GIL is held, in the only thread of its process.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

namespace hutch {

// `text`: what was compiled. To its end: None, or nullptr with an exception. `fd`, `id`: of the
// call, for TellSlowLoad().
PyObject* RunProgram(int fd, uint64_t id, PyObject* text);

}  // namespace hutch
