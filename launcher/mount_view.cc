// SPDX-License-Identifier: Apache-2.0

#include "launcher/mount_view.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>

#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {
namespace {

constexpr char kCgroups[] = "/sys/fs/cgroup";
constexpr char kOurs[] = "/sys/fs/cgroup/hutch";
constexpr unsigned kTunMajor = 10;
constexpr unsigned kTunMinor = 200;

bool WriteTo(const std::string& path, const std::string& text) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void MountCgroups() {
  SeparateMounts();
  struct statfs fs{};
  const bool pure =
      ::statfs(kCgroups, &fs) == 0 && static_cast<unsigned long>(fs.f_type) == CGROUP2_SUPER_MAGIC;
  if (pure && ::access(kCgroups, W_OK) == 0) return;
  if (!pure) ::umount2(kCgroups, MNT_DETACH);  // hybrid: crun refuses it
  if (::mount("cgroup2", kCgroups, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    ThrowErrno("mount cgroup2 in a private mount namespace", Code::kPlatform);
  }
}

// hutch/ is the user's to divide; hutch/service holds Podman, since a cgroup that delegates may
// hold no process; below hutch/cells each slot has its own.
void EnterCgroup(const Paths& paths) {
  const std::string ours = kOurs;
  const std::string service = ours + "/service";
  const std::string cells = kCellsOfServiceUser;
  for (const std::string& dir : {ours, service, cells}) {
    if (::mkdir(dir.c_str(), 0755) != 0 && errno != EEXIST)
      ThrowErrno("make " + dir, Code::kPlatform);
    if (dir == ours) {
      std::ifstream file(std::string(kCgroups) + "/cgroup.controllers");
      std::stringstream controllers;
      controllers << file.rdbuf();
      for (std::string name; controllers >> name;) {
        if (name != "cpu" && name != "memory" && name != "pids" && name != "cpuset" && name != "io")
          continue;
        // Each separately, so that a refused one does not prevent the others.
        if (WriteTo(std::string(kCgroups) + "/cgroup.subtree_control", "+" + name)) {
          WriteTo(ours + "/cgroup.subtree_control", "+" + name);
        }
      }
    }
    if (dir == cells) {
      for (const char* name : {"+memory", "+pids", "+cpu"})
        WriteTo(dir + "/cgroup.subtree_control", name);
    }
    for (const char* file : {"", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"}) {
      if (::chown((dir + file).c_str(), paths.uid, paths.gid) != 0)
        ThrowErrno("change the owner of " + dir, Code::kPlatform);
    }
  }
  if (!WriteTo(service + "/cgroup.procs", "0")) ThrowErrno("enter " + service, Code::kPlatform);
}

// A node on a tmpfs of its own: the machine's node may be for root only, and stays so. Without one
// slirp4netns, and with it the network of environment builds, does not start.
void MountTun() {
  struct stat st{};
  if (::stat("/dev/net/tun", &st) != 0 || (st.st_mode & 0006) == 0006) return;
  if (::mount("tmpfs", "/dev/net", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=16k") != 0) {
    ThrowErrno("mount a tmpfs at /dev/net", Code::kPlatform);
  }
  const mode_t mask = ::umask(0);
  const int made = ::mknod("/dev/net/tun", S_IFCHR | 0666, makedev(kTunMajor, kTunMinor));
  ::umask(mask);
  if (made != 0) ThrowErrno("make /dev/net/tun", Code::kPlatform);
}

// Deepest first. Links need no care: cgroupfs has none.
void RemoveTree(const std::string& path) {
  if (DIR* dir = ::opendir(path.c_str())) {
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (entry->d_type == DT_DIR && name != "." && name != "..") RemoveTree(path + "/" + name);
    }
    ::closedir(dir);
  }
  ::rmdir(path.c_str());
}

}  // namespace

void SeparateMounts() {
  if (::unshare(CLONE_NEWNS) != 0) ThrowErrno("make a mount namespace", Code::kPlatform);
  // Shared within, which Podman requires of its root.
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_SHARED, nullptr) != 0) {
    ThrowErrno("separate the mounts", Code::kPlatform);
  }
}

void EnterPrivateView(const Paths& paths) {
  MountCgroups();
  EnterCgroup(paths);
  MountTun();
}

void RemoveCgroup(const Paths&) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      MountCgroups();
      RemoveTree(kOurs);
    } catch (const std::exception&) {
      // An empty cgroup that stays costs nothing.
    }
    ::_exit(0);
  }
  if (pid > 0) ::waitpid(pid, nullptr, 0);
}

}  // namespace hutch
