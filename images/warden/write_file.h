// SPDX-License-Identifier: Apache-2.0

// Writes a file of /proc or /sys.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

namespace hutch {

// Writes all of `text` in one call into an existing file. False: errno says why.
inline bool WriteFile(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = write(fd, text, strlen(text)) == static_cast<ssize_t>(strlen(text));
  const int error = errno;
  close(fd);
  errno = error;
  return written;
}

}  // namespace hutch
