// SPDX-License-Identifier: Apache-2.0

// Takes this process's descriptors away, for tests of what happens then. One thread.
#pragma once

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "wire/fd.h"

namespace hutch {

// Lowers the soft limit while it lives, and holds descriptors until asked to give them back.
class ScarceDescriptors {
 public:
  explicit ScarceDescriptors(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lower{limit, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~ScarceDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  ScarceDescriptors(const ScarceDescriptors&) = delete;
  ScarceDescriptors& operator=(const ScarceDescriptors&) = delete;

  // Opens until none below `number` is free; so that none is, with the limit as number.
  void TakeBelow(int number) {
    for (;;) {
      Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!fd || fd.get() >= number) return;
      taken_.push_back(std::move(fd));
    }
  }
  void GiveBack() { taken_.clear(); }

 private:
  rlimit before_{};
  std::vector<Fd> taken_;
};

// This thread without the capabilities that lift such limits, while it lives; as root, with a real
// uid of its own, since the kernel counts for each user what all of its processes have in sockets.
class Unprivileged {
 public:
  Unprivileged() {
    own_ = ::syscall(SYS_setresuid, 1'000'000 + ::getpid(), -1, -1) == 0;
    ::syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct less[2] = {before_[0], before_[1]};
    less[0].effective &= ~((1u << CAP_SYS_ADMIN) | (1u << CAP_SYS_RESOURCE));
    ::syscall(SYS_capset, &header_, less);
  }
  ~Unprivileged() {
    ::syscall(SYS_capset, &header_, before_);
    if (own_) ::syscall(SYS_setresuid, 0, -1, -1);
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  bool own_ = false;
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

}  // namespace hutch
