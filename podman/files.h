// SPDX-License-Identifier: Apache-2.0

// Files and directories that a stranger may have written, such as what a build leaves. Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace hutch {

// What a regular file of at most `most` bytes holds. std::nullopt: it is longer, or something else,
// or not there. Follows no link in the last part of the path, never waits (for the other end of a
// pipe), and takes memory for `most` bytes only, whoever is writing to the file meanwhile.
std::optional<std::string> ReadRegularFile(const std::string& path, size_t most);

// Removes a directory and all below it, as far as that is possible, with few open files however
// deep it is. Follows no link. `path` may be missing, or a file.
void RemoveTree(const std::string& path) noexcept;

}  // namespace hutch
