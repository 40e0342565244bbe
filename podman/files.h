// SPDX-License-Identifier: Apache-2.0

// Reads and removes files that a stranger may have written, such as those of a build. Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace hutch {

// The content of a regular file of at most `most` bytes. std::nullopt: it is longer, or not a
// regular file, or not there. Follows no link in the last part of the path, never blocks (on a
// pipe), and takes memory for `most` bytes only, even while somebody writes to the file.
std::optional<std::string> ReadRegularFile(const std::string& path, size_t most);

// Removes a directory and all below it, as far as that is possible, with few open files however
// deep it is. Follows no link. `path` may be missing, or a file.
void RemoveTree(const std::string& path) noexcept;

}  // namespace hutch
