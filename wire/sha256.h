// SHA-256 (FIPS 180-4) of bytes at hand: what names a set of packages and everything made from it.
// Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace hutch {

// 64 lower-case hex digits.
std::string Sha256Hex(std::string_view bytes);

}  // namespace hutch
