// SPDX-License-Identifier: Apache-2.0

// Large arguments of a call, which the host sends in sealed memfds. They are mapped privately, so
// writes to them stay in this process. They are unmapped once nobody refers to them any more, which
// is looked for between calls: their memory is then the host's again.
//
// Thread contract: the GIL is held.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <span>
#include <string_view>

namespace hutch {

// The buffers at the places in `table` (kCall, section 3), as a list: each a bytes or a writable
// view. A new reference, or nullptr with an exception. Closes the descriptors in any case.
PyObject* BuffersOf(std::string_view table, std::span<const int> descriptors);

// Unmaps what nobody refers to any more.
void UnmapLent();

// For a table of methods; ends with an empty entry.
extern PyMethodDef lent_methods[];

}  // namespace hutch
