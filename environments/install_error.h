// SPDX-License-Identifier: Apache-2.0

// Finds in the installer's log the sentence that a user should read, and adds what to do. Pure
// functions.
#pragma once

#include <string>
#include <string_view>

#include "wire/error.h"

namespace hutch {

// `text` without user names and passwords in URLs, and without control characters.
std::string ScrubCredentials(std::string_view text);

// The resolver's sentences without its decoration, at most about 1,500 characters.
std::string InstallerSentence(std::string_view log);

// kInstallFailed with the sentence and a hint; kPlatform when the disk is full.
Error InstallError(std::string_view stage, std::string_view log);

}  // namespace hutch
