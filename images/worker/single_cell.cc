// SPDX-License-Identifier: Apache-2.0

#include "images/worker/single_cell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "images/warden/control.h"
#include "images/worker/cell_init.h"
#include "images/worker/frames.h"

namespace hutch {
namespace {

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, field))
#define JUMP_IF(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (yes), (no))

// On gVisor PID 1 can be killed, and stopped, from inside: this filter refuses signals to the
// warden. And runsc answers EPERM where the container's profile says ENOSYS, which would keep libc
// from making threads, and programs from falling back to other calls: the filter answers ENOSYS.
sock_filter kWardenIsAlone[] = {
    LOAD(nr),
#ifdef __NR_inotify_init  // aarch64 has its successor alone
    JUMP_IF(__NR_inotify_init, 21, 0),
#endif
    JUMP_IF(__NR_clone3, 20, 0),
    JUMP_IF(__NR_memfd_create, 19, 0),
    JUMP_IF(__NR_inotify_init1, 18, 0),
    JUMP_IF(__NR_sendfile, 17, 0),
    JUMP_IF(__NR_splice, 16, 0),
    JUMP_IF(__NR_tee, 15, 0),
    JUMP_IF(__NR_vmsplice, 14, 0),
    JUMP_IF(__NR_fcntl, 9, 0),
    JUMP_IF(__NR_kill, 5, 0),
    JUMP_IF(__NR_tkill, 4, 0),
    JUMP_IF(__NR_tgkill, 3, 0),
    JUMP_IF(__NR_rt_sigqueueinfo, 2, 0),
    JUMP_IF(__NR_rt_tgsigqueueinfo, 1, 0),
    JUMP_IF(__NR_pidfd_open, 0, 2),
    LOAD(args[0]),  // a thread of the warden's: it has one
    JUMP_IF(1, 3, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    LOAD(args[1]),
    JUMP_IF(F_SETSIG, 0, 1),  // SIGIO alone can be sent so, and is blocked
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
};

const char* ProtectWarden() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "no_new_privs";
  const sock_fprog program{sizeof kWardenIsAlone / sizeof kWardenIsAlone[0], kWardenIsAlone};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0 ? nullptr : "seccomp";
}

}  // namespace

const char* BecomeSingleCell(const SlotOptions& options, int control, uint32_t slot, bool gvisor,
                             uint64_t* id, bool* skip_warm_up) {
  Limits limits = LimitsOf(options);
  limits.host_kernel = !gvisor;
  if (const char* failed = PlaceControl(control)) return failed;
  FrameHeader ready;
  ready.kind = FrameKind::kSlotReady;
  ready.a = slot;
  if (send(kControlFd, &ready, sizeof ready, MSG_NOSIGNAL) < 0) return "send to the warden";
  Received received;
  const Frame* frame = Receive(kControlFd, &received);
  if (frame == nullptr) return "receive from the warden";
  if (received.size < 0) _exit(0);
  if (frame->header.kind != FrameKind::kMakeCell || received.count != 3) _exit(70);
  *id = frame->header.id;
  *skip_warm_up = frame->header.c == kSkipWarmUp;
  const int descriptors[3] = {received.descriptors[0], received.descriptors[1],
                              received.descriptors[2]};
  if (const char* failed = gvisor ? ProtectWarden() : nullptr) return failed;
  return RaiseWalls(limits, descriptors);  // after which no filter can be added
}

}  // namespace hutch
