// SPDX-License-Identifier: Apache-2.0

// What a sandbox has printed, as text. It may be any bytes, and much of it.
#pragma once

#include <string_view>

#include "bindings/python.h"

namespace hutch {

// UTF-8; a byte that is none of it is \xff. As the codec's handler "backslashreplace", which takes
// fifty times as long, as it is asked for each of these bytes.
py::str PrintedText(std::string_view data);

// Adds `printed_text` and `printed_prefix` to the module.
void BindPrintedText(py::module_& m);

}  // namespace hutch
