// SPDX-License-Identifier: Apache-2.0

// What a cell's user process may do: limits, capabilities, system calls. Applied by that process to
// itself, once, before it has seen anything of a call. Single-threaded; async-signal-safe but for
// errno.
#pragma once

#include <cstdint>

namespace hutch {

inline constexpr uint64_t kStackBytes = 8 << 20;  // of each thread, reserved

struct Limits {
  uint64_t data_bytes = 0;       // RLIMIT_DATA: what the zygote had, and what the call may reserve
  uint64_t data_most_bytes = 0;  // and what the call may be lent
  uint64_t pids = 0;             // processes and threads of the user
  uint64_t nofile = 0;
  bool host_kernel =
      true;  // false: gVisor, which does not count some limits, and refuses to set them
};

// Each returns nullptr, or the name of the step that failed, with errno set.
const char* ApplyLimits(const Limits& limits);
const char* DropCapabilities();
// Where the kernel has Landlock: no mount, no device node, no process and no abstract socket but of
// this cell's own. A second wall for each; about 8 us. REQUIRES: after DropCapabilities().
const char* EnterDomain();
const char* InstallFilter();

}  // namespace hutch
