// SPDX-License-Identifier: Apache-2.0

// Positional arguments that are numbers, text, None and bytes, as a cell takes them: what
// _carry/arguments.py does for all others, whose code is cold in a process that calls now and then.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

namespace hutch {

using Arguments = std::pair<pybind11::bytes, pybind11::sequence>;

// Their bytes, by marshal, or where there is a large bytes among them its pickle, and those bytes
// beside it. Nothing: one of them is of another kind. Throws what marshal raises.
std::optional<Arguments> PlainArguments(const pybind11::tuple& args);

}  // namespace hutch
