// SPDX-License-Identifier: Apache-2.0

// pybind11, for every file of this folder alike: the same conversions wherever a value crosses.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace hutch {

namespace py = pybind11;

}  // namespace hutch
