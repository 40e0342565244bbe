// SPDX-License-Identifier: Apache-2.0

#include "images/worker/walls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (offset))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (value))
// The second filter. The container's profile (seccomp-worker.json), inherited from the zygote at no
// cost, is the big one; here is only what a slot needs to make a cell and a cell must not have, and
// what the profile cannot say: libseccomp compares all 64 bits of an argument of which the kernel
// reads 32. Each rule and its reason are in seccomp.json. Installing costs about 2 us an
// instruction.
sock_filter kDelta[] = {
#include "images/worker/seccomp_delta.inc"
};

const char* Set(__rlimit_resource resource, rlim_t value, const char* name, rlim_t most = 0) {
  if (WallIsDown(name)) return nullptr;
  const rlimit limit{value, std::max(value, most)};
  return setrlimit(resource, &limit) == 0 ? nullptr : name;
}

// Renaming between directories is refused in every Landlock domain that has no rule to allow it. If
// the rule cannot be made, it stays refused.
void AllowEverywhere(int ruleset, uint64_t access) {
  const int root = open("/", O_PATH | O_CLOEXEC);
  const landlock_path_beneath_attr rule{access, root};
  syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
  close(root);
}

}  // namespace

const char* ApplyLimits(const Limits& limits) {
  const char* failed = nullptr;
  const auto set = [&](__rlimit_resource resource, rlim_t value, const char* name,
                       rlim_t most = 0) {
    if (failed == nullptr) failed = Set(resource, value, name, most);
    if (failed == name && !limits.host_kernel && errno == EPERM) failed = nullptr;
  };
  // A distant backstop: an allocation that could never be used fails at once, as a MemoryError.
  // What is in use is the warden's to count, and what is only reserved (an untouched array,
  // threads' stacks) is nobody's. lent.cc raises it by what the call is lent, which is private and
  // writable, and so counts here, though no page of it is the cell's own until it is written to.
  failed = Set(RLIMIT_DATA, limits.data_bytes, "RLIMIT_DATA", limits.data_most_bytes);
  // Of this user namespace; PID 1 counts too. The hard limit has room for the thread of printing.h,
  // which raises the soft one when it is made.
  set(RLIMIT_NPROC, limits.pids + 1, "RLIMIT_NPROC", limits.pids + 2);
  set(RLIMIT_NOFILE, limits.nofile, "RLIMIT_NOFILE");  // a socket pair holds 176 KB in the kernel
  set(RLIMIT_CORE, 0, "RLIMIT_CORE");  // the host's core_pattern may be a pipe to a program
  set(RLIMIT_MEMLOCK, 0, "RLIMIT_MEMLOCK");
  set(RLIMIT_MSGQUEUE, 0, "RLIMIT_MSGQUEUE");         // kernel memory that no watch sees
  set(RLIMIT_SIGPENDING, 1024, "RLIMIT_SIGPENDING");  // likewise, and of POSIX timers
  set(RLIMIT_NICE, 0, "RLIMIT_NICE");
  // The hard limit stays as it is: programs raise theirs to recurse deeply. What a stack holds is
  // memory of the call as any other.
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur > kStackBytes) {
    stack.rlim_cur = kStackBytes;
    setrlimit(RLIMIT_STACK, &stack);
  }
  set(RLIMIT_RTPRIO, 0, "RLIMIT_RTPRIO");
  return failed;
}

const char* DropCapabilities() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "no_new_privs";
  if (WallIsDown("capabilities")) return nullptr;
  int capability = 0;
  while (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0) ++capability;
  // In a container's own user namespace nobody may drop any; there are none to be dropped.
  if (errno == EPERM) {
    while (prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 0) ++capability;
  }
  if (errno != EINVAL)
    return "PR_CAPBSET_DROP";  // EINVAL: past the last one that this kernel knows
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0 ? nullptr : "capset";
}

const char* EnterDomain() {
  if (WallIsDown("landlock")) return nullptr;
  // As of ABI 6. Headers may be older than the kernel: it takes the size that its ABI knows.
  constexpr uint64_t kRefer = 1 << 13;  // renaming and linking between directories, of ABI 2
  struct {
    uint64_t files = LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK;
    uint64_t network = 0;
    uint64_t scoped = 3;  // abstract sockets, signals
  } rules;
  const long abi = syscall(SYS_landlock_create_ruleset, nullptr, 0, 1 /* what version */);
  if (abi < 1) return nullptr;  // not built in, or not switched on
  const size_t size = abi < 4 ? 8 : abi < 6 ? 16 : 24;
  if (abi >= 2) rules.files |= kRefer;
  const int ruleset = static_cast<int>(syscall(SYS_landlock_create_ruleset, &rules, size, 0));
  if (ruleset < 0) return "landlock_create_ruleset";
  if (abi >= 2) AllowEverywhere(ruleset, kRefer);
  const long entered = syscall(SYS_landlock_restrict_self, ruleset, 0);
  const int error = errno;
  close(ruleset);
  errno = error;
  return entered == 0 ? nullptr : "landlock_restrict_self";
}

const char* InstallFilter() {
  if (WallIsDown("filter")) return nullptr;
  const sock_fprog program{sizeof kDelta / sizeof kDelta[0], kDelta};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0 ? nullptr : "seccomp";
}

}  // namespace hutch
