// SPDX-License-Identifier: Apache-2.0

#include "bindings/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "bindings/python.h"

namespace hutch {

int OpenBeneath(int directory, const std::string& path, int flags, int mode) {
  if (path.find('\0') != std::string::npos) throw py::value_error("a path has a zero byte");
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.mode = static_cast<uint64_t>(mode);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  int64_t fd = 0;
  do {
    fd = syscall(SYS_openat2, directory, path.c_str(), &how, sizeof(how));
  } while (fd < 0 && errno == EINTR);
  if (fd >= 0) return static_cast<int>(fd);
  const int error = errno;
  const py::bytes name(path);
  errno = error;
  PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name.ptr());
  throw py::error_already_set();
}

}  // namespace hutch
