// SPDX-License-Identifier: Apache-2.0

// The memory of the host's in which large arguments of a call come: sealed memfds, mapped here so
// that what is written to them stays in this process.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <span>
#include <string_view>

namespace hutch {

// What the places in `table` (kCall, section 3) mean, as a list: a bytes each, or a writable view.
// A new reference, or nullptr with an exception. Closes the descriptors, whatever comes of it.
PyObject* BuffersOf(std::string_view table, std::span<const int> descriptors);

// For a table of methods; ends with an empty entry.
extern PyMethodDef lent_methods[];

}  // namespace hutch
