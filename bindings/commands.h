// SPDX-License-Identifier: Apache-2.0

// What comes on the channel of a command of a session (cell_frame.h), and what it prints.
#pragma once

#include "bindings/python.h"

namespace hutch {

// Adds `command_frame` and `Output` to the module.
void BindCommands(py::module_& m);

}  // namespace hutch
