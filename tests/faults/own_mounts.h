// SPDX-License-Identifier: Apache-2.0

// Disks that are small, full or read-only, for one test.
//
// REQUIRES root, and a process of one thread.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace hutch {

// Runs `body` in a child with mounts of its own. Returns whether it got there and met every
// expectation, each of which is printed where it was not.
template <typename Body>
bool InOwnMounts(const Body& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const bool own = ::unshare(CLONE_NEWNS) == 0 &&
                     ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    if (own) body();
    ::_exit(own && !testing::Test::HasFailure() ? 0 : 1);
  }
  int status = -1;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

// A disk of `kilobytes` at the directory `place`; `flags`: as of mount(2).
inline bool MountDisk(const std::string& place, unsigned kilobytes, unsigned long flags = 0) {
  const std::string size = "size=" + std::to_string(kilobytes) + "k";
  return ::mount("tmpfs", place.c_str(), "tmpfs", flags, size.c_str()) == 0;
}

}  // namespace hutch
