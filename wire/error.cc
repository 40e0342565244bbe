// SPDX-License-Identifier: Apache-2.0

#include "wire/error.h"

#include <cerrno>
#include <cstring>

namespace hutch {
namespace {

// What can be done about an errno; "": it depends.
std::string WayOn(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return kMakeRoom;
    case EMFILE:
      return "raise `ulimit -n`, or close files and connections of this process";
    case ENFILE:
    case ENOMEM:
    case EAGAIN:
      return "the host is short of memory, processes or open files: end some, then try again";
    case EACCES:
    case EPERM:
    case EROFS:
      return "let the user that Podman runs as do this, or set HUTCH_HOME to another directory";
    default:
      return {};
  }
}

}  // namespace

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kInternal:
      return "internal";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kVersionMismatch:
      return "version_mismatch";
    case Code::kProtocol:
      return "protocol";
    case Code::kTimeout:
      return "timeout";
    case Code::kBusy:
      return "busy";
    case Code::kMissingBase:
      return "missing_base";
    case Code::kMissingRuntime:
      return "missing_runtime";
    case Code::kUnknownPool:
      return "unknown_pool";
    case Code::kInstallFailed:
      return "install_failed";
    case Code::kWorkerFailed:
      return "worker_failed";
    case Code::kPodman:
      return "podman";
    case Code::kPlatform:
      return "platform";
    case Code::kPodmanDown:
      return "podman_down";
    case Code::kPodmanMissing:
      return "podman_missing";
    case Code::kCancelled:
      return "cancelled";
  }
  return "internal";
}

void ThrowErrno(std::string_view what, Code code) {
  const int error = errno;
  throw Error(code, "cannot " + std::string(what) + ": " + std::strerror(error), WayOn(error));
}

}  // namespace hutch
