// SPDX-License-Identifier: Apache-2.0

#include "wire/error.h"

#include <cerrno>
#include <cstring>

namespace hutch {

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
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(code, std::string(what) + ": " + std::strerror(error),
              full ? "free some space, then try again (`df -h` shows what is full)" : "");
}

}  // namespace hutch
