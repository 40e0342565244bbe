// SPDX-License-Identifier: Apache-2.0

// Opens files of the host by names that a sandbox chose.
#pragma once

#include <string>

namespace hutch {

// openat2() of a path below an open directory. A symbolic link on the way, `..` that leads out of
// the directory, or an absolute path is refused by the kernel. Close-on-exec. Throws OSError.
int OpenBeneath(int directory, const std::string& path, int flags, int mode);

}  // namespace hutch
