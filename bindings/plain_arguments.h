// SPDX-License-Identifier: Apache-2.0

// Positional arguments that are numbers, text, None and bytes, as a cell reads them.
// _carry/arguments.py does this for all others; its code is cold in a process that rarely calls.
#pragma once

#include <optional>
#include <utility>

#include "bindings/python.h"

namespace hutch {

using Arguments = std::pair<pybind11::bytes, pybind11::sequence>;

// Their bytes by marshal; with a large bytes object among them, a pickle and those bytes beside it.
// Nothing if one is of another kind. Throws what marshal raises.
std::optional<Arguments> PlainArguments(const pybind11::tuple& args);

}  // namespace hutch
