// SPDX-License-Identifier: Apache-2.0

// Checks of what a client sends, whichever client it is: no number or name from outside reaches a
// container unchecked. Pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "wire/message.h"

namespace hutch {

// Whether `text` is exactly `digits` lower-case hex digits.
bool IsHex(std::string_view text, size_t digits);

// Throws kInvalidArgument when a field of the request is out of bounds.
void Validate(const Prepare& prepare);

}  // namespace hutch
