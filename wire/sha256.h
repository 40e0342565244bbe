// SPDX-License-Identifier: Apache-2.0

// SHA-256 (FIPS 180-4) of bytes at hand: what names a set of packages and everything made from it.
// Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace hutch {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view bytes);
std::string Hex(const Sha256Digest& digest);
// 64 lower-case hex digits.
std::string Sha256Hex(std::string_view bytes);

}  // namespace hutch
