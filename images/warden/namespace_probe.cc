// SPDX-License-Identifier: Apache-2.0

#include "images/warden/namespace_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "images/warden/control.h"
#include "images/warden/write_file.h"

namespace hutch {
namespace {

// Runs `body` in a child process, which sends back what it found as `*answer`.
template <typename Body>
void InChild(NamespaceRefusal* answer, NamespaceStep step, Body body) {
  int pair[2];
  if (pipe2(pair, O_CLOEXEC) != 0) return;
  const pid_t pid = fork();
  if (pid == 0) {
    NamespaceRefusal found;
    body(&found);
    [[maybe_unused]] const ssize_t size = write(pair[1], &found, sizeof found);
    _exit(0);
  }
  *answer = {static_cast<uint64_t>(errno), step};  // if fork failed
  close(pair[1]);
  if (pid > 0) {
    *answer = {EPERM, step};  // unless it answers: a filter may kill it
    NamespaceRefusal found;
    if (read(pair[0], &found, sizeof found) == sizeof found) *answer = found;
    waitpid(pid, nullptr, 0);
  }
  close(pair[0]);
}

bool MapUser(unsigned uid, unsigned gid) {
  char user[32];
  char group[32];
  snprintf(user, sizeof user, "%u %u 1", uid, uid);
  snprintf(group, sizeof group, "%u %u 1", gid, gid);
  WriteFile("/proc/self/setgroups", "deny");  // in a nested one it is denied already
  return WriteFile("/proc/self/uid_map", user) && WriteFile("/proc/self/gid_map", group);
}

}  // namespace

NamespaceRefusal TryNamespaces() {
  const unsigned uid = getuid();
  const unsigned gid = getgid();
  NamespaceRefusal answer;
  InChild(&answer, kNewNamespaces, [&](NamespaceRefusal* slot) {
    const auto fail = [](NamespaceRefusal* to, NamespaceStep step) {
      *to = {static_cast<uint64_t>(errno), step};
    };
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // the id maps can only be written by such a process
    const int namespaces = SlotNamespaces();
    if (unshare(namespaces) != 0) return fail(slot, kNewNamespaces);
    if (!MapUser(uid, gid)) return fail(slot, kMappedUser);
    if ((namespaces & CLONE_NEWTIME) != 0 && !EnterOwnTime()) return fail(slot, kNewNamespaces);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, nullptr) != 0) {
      return fail(slot, kNewMounts);
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS) != 0 ||
        !MapUser(uid, gid)) {
      return fail(slot, kNestedNamespaces);
    }
    InChild(slot, kNestedNamespaces, [&](NamespaceRefusal* cell) {
      if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
        fail(cell, kNewProc);
    });
  });
  return answer;
}

}  // namespace hutch
