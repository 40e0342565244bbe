// SPDX-License-Identifier: Apache-2.0

#include "launcher/podman_user.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "launcher/host_programs.h"
#include "launcher/subprocess.h"
#include "podman/host.h"
#include "wire/error.h"
#include "wire/log.h"

namespace hutch {
namespace {

// A directory of Hutch's own, not a parent of one: nobody else may read it.
void EnsurePrivate(const Paths& paths, const std::string& path) {
  const Fd dir = EnsureDirectory(paths, path);
  struct stat st{};
  if (::fstat(dir.get(), &st) != 0) ThrowErrno("inspect " + path);
  if ((st.st_mode & 0022) != 0) {
    throw Error(Code::kPlatform,
                path + " can be written to by others: remove it, or: chmod 700 " + path);
  }
  if ((st.st_mode & 0077) != 0 && ::fchmod(dir.get(), 0700) != 0)
    ThrowErrno("set the mode of " + path);
}

// Whether root alone may put something else in its place, or in that of a directory above it.
bool IsRootsAlone(const std::string& path) {
  for (size_t end = path.size(); end != std::string::npos; end = path.rfind('/', end - 1)) {
    struct stat st{};
    if (::lstat(path.substr(0, std::max<size_t>(end, 1)).c_str(), &st) != 0 || st.st_uid != 0)
      return false;
    const bool is_shared = (st.st_mode & 0022) != 0 && (st.st_mode & S_ISVTX) == 0;
    if (!S_ISLNK(st.st_mode) && is_shared) return false;
    if (end == 0) break;
  }
  return true;
}

// The same of where its links lead.
bool MayMakeIn(const std::string& parent) {
  char* resolved = ::realpath(parent.c_str(), nullptr);
  const std::string real = resolved == nullptr ? "" : resolved;
  ::free(resolved);
  return !real.empty() && IsRootsAlone(parent) && IsRootsAlone(real);
}

// For root to make something in and give it away: reached through no link, or only through links
// that root alone could have put there.
Fd OpenParent(const std::string& parent) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS;
  Fd found(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, parent.c_str(), &how, sizeof how)));
  if (!found && MayMakeIn(parent))
    found = Fd(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  return found;
}

// Whether it holds nothing, or the settings of an agent that is to be started there: it is not,
// say, /etc.
bool IsForHutch(const std::string& directory) {
  std::error_code none;
  return std::filesystem::is_empty(directory, none) ||
         std::filesystem::exists(directory + "/agent.toml", none);
}

// What root has made, or finds as it makes it, becomes the user's. `name`: in `parent`.
bool MakeAndGive(const Paths& paths, const Fd& parent, const std::string& name) {
  const bool fresh = ::mkdirat(parent.get(), name.c_str(), 0700) == 0;
  if (!fresh && errno != EEXIST) ThrowErrno("make the directory " + name, Code::kPlatform);
  const Fd made(
      ::openat(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st{};
  // Or one that a launcher did not finish; the owner of anything else is not changed.
  if (made && ::fstat(made.get(), &st) == 0 && st.st_uid == 0 && (st.st_mode & 07777) == 0700 &&
      IsForHutch("/proc/self/fd/" + std::to_string(made.get()))) {
    if (::fchown(made.get(), paths.uid, paths.gid) != 0)
      ThrowErrno("change the owner of the directory " + name, Code::kPlatform);
  }
  return fresh;
}

}  // namespace

void EnsureServiceUser() {
  if (::geteuid() != 0) return;
  if (::getpwnam(kServiceUser) != nullptr) return;
  Fd lock(::open("/run/hutch-user.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0)
    ThrowErrno("lock /run/hutch-user.lock", Code::kPlatform);
  if (::getpwnam(kServiceUser) != nullptr) return;
  const std::string useradd = FindTool("useradd");
  const std::vector<std::string> words = {
      "--create-home",  "--home-dir", kServiceHome,        "--skel",       "/dev/null", "--key",
      "HOME_MODE=0700", "--shell",    "/usr/sbin/nologin", "--user-group", kServiceUser};
  std::string text = "useradd";
  for (const std::string& word : words) text += " " + word;
  if (useradd.empty())
    throw Error(Code::kPlatform,
                "there is no useradd on this host, which makes the user that containers run as",
                "install it, or as root run: " + text);
  LogInfo("making the user that containers run as", {{"command", text}});
  Command command;
  command.argv = {useradd};
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  command.environment = {std::string("PATH=") + kSafePath, "LANG=C.UTF-8"};
  command.err = 2;
  if (Run(Paths{}, command) != 0)
    throw Error(Code::kPlatform, "useradd could not make the user that containers run as",
                "as root: " + text);
}

void CheckSubIds(const Paths& paths) {
  const std::string name = UserName(paths.uid);
  const std::string id = std::to_string(paths.uid);
  for (const char* file : {"/etc/subuid", "/etc/subgid"}) {
    std::ifstream lines(file);
    bool found = false;
    for (std::string line; std::getline(lines, line);) {
      found = found || line.starts_with(name + ":") || line.starts_with(id + ":");
    }
    if (found) continue;
    throw Error(Code::kPlatform, std::string(file) + " has no range for " + name,
                SubIdCommand(name));
  }
}

Fd EnsureDirectory(const Paths& paths, const std::string& path) {
  const auto open = [&path] {
    return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  };
  Fd dir;
  int failed = 0;
  {
    const AsUser user(paths);
    const auto make = [&] { failed = ::mkdir(path.c_str(), 0700) == 0 ? 0 : errno; };
    make();
    if (failed == ENOENT) {
      const std::string parent = path.substr(0, path.rfind('/'));
      if (parent.empty()) ThrowErrno("make " + path, Code::kPlatform);
      EnsureDirectory(paths, parent);
      make();
    }
    dir = open();
  }
  if (paths.service_user && !dir && (errno == ENOENT || errno == EACCES)) {
    const size_t slash = path.rfind('/');
    const std::string name = path.substr(slash + 1);
    if (const Fd parent = OpenParent(path.substr(0, std::max<size_t>(slash, 1)))) {
      const bool fresh = MakeAndGive(paths, parent, name);
      {
        const AsUser user(paths);
        dir = open();
      }
      if (!dir && fresh) ::unlinkat(parent.get(), name.c_str(), AT_REMOVEDIR);
    }
  }
  if (!dir) {
    errno = failed;
    if (failed == EROFS || failed == ENOSPC || failed == EDQUOT)
      ThrowErrno("make " + path, Code::kPlatform);
    if (!paths.service_user) {
      throw Error(Code::kPlatform,
                  failed == EEXIST
                      ? path + " is a file, a link, or a directory that you may not read"
                      : "cannot make " + path + ": " + std::strerror(failed),
                  "set HUTCH_HOME to a directory that you may write to, or leave it unset");
    }
    throw Error(Code::kPlatform, path + " cannot be reached by the user that Podman runs as",
                "set HUTCH_HOME to a directory whose parents that user may enter, such as "
                "/var/lib/hutch/other, or make it for uid " +
                    std::to_string(paths.uid) + " yourself");
  }
  struct stat st{};
  if (::fstat(dir.get(), &st) != 0) ThrowErrno("inspect " + path);
  if (st.st_uid != paths.uid) {
    const std::string uid = std::to_string(paths.uid);
    throw Error(Code::kPlatform,
                path + " belongs to uid " + std::to_string(st.st_uid) + ", not to " + uid,
                (IsForHutch(path) ? "as root: chown " + uid + " " + path + "; or " : "") +
                    "set HUTCH_HOME to another directory");
  }
  return dir;
}

Fd LockStart(const Paths& paths) {
  if (paths.service_user) {
    EnsurePrivate(paths, paths.xdg_runtime_dir);
    EnsurePrivate(paths, paths.home);
  }
  for (const std::string& path :
       {paths.run_dir, paths.state_dir, paths.run_dir + "/podman", paths.worker_dir(),
        paths.state_dir + "/runtime", paths.store_dir(), paths.agent_socket_dir()}) {
    EnsurePrivate(paths, path);
  }
  const AsUser user(paths);
  struct statvfs home{};
  if (::statvfs(paths.state_dir.c_str(), &home) == 0 && (home.f_flag & ST_RDONLY) != 0) {
    errno = EROFS;
    ThrowErrno("write to " + paths.state_dir, Code::kPlatform);
  }
  // What `hutch uninstall` finds other instances by.
  [[maybe_unused]] const int there =
      ::symlink(paths.state_dir.c_str(), (paths.run_dir + "/state").c_str());
  const std::string path = paths.run_dir + "/start.lock";
  Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock) ThrowErrno("open " + path, Code::kPlatform);
  while (::flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) ThrowErrno("lock " + path, Code::kPlatform);
  }
  return lock;
}

}  // namespace hutch
