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
#include <sstream>
#include <vector>

#include "launcher/host_programs.h"
#include "launcher/subprocess.h"
#include "podman/host.h"
#include "wire/error.h"
#include "wire/log.h"

namespace hutch {
namespace {

constexpr int kMostSteps = 200;  // names and links of one path; links may form a circle

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

// The names in `path`, the last one first, put behind those in `left`.
void AddNames(const std::string& path, std::vector<std::string>* left) {
  const size_t before = left->size();
  std::istringstream text(path);
  for (std::string name; std::getline(text, name, '/');) {
    if (!name.empty() && name != ".") left->push_back(name);
  }
  std::reverse(left->begin() + static_cast<std::ptrdiff_t>(before), left->end());
}

// Whether the directory is root's and root alone decides where its path leads: each link on the
// way, and each one that such a link names, is where only root may put one.
bool IsRootsAlone(const std::string& path) {
  std::vector<std::string> left;
  AddNames(path, &left);
  std::string real;  // so far, without links; "": the root directory
  for (int step = 0; step < kMostSteps; ++step) {
    struct stat st{};
    if (::lstat((real + "/").c_str(), &st) != 0 || st.st_uid != 0) return false;
    const bool is_shared = (st.st_mode & 0022) != 0;
    if (is_shared && (st.st_mode & S_ISVTX) == 0) return false;
    if (left.empty()) return true;
    const std::string name = left.back();
    left.pop_back();
    if (name == "..") {
      real.resize(real.empty() ? 0 : real.rfind('/'));
      continue;
    }
    const std::string entry = real + "/" + name;
    if (::lstat(entry.c_str(), &st) != 0) return false;
    if (!S_ISLNK(st.st_mode)) {
      real = entry;
      continue;
    }
    // Anybody may move a link of root's that lies in a directory of theirs into a shared one.
    if (is_shared) return false;
    std::error_code failed;
    const std::string target = std::filesystem::read_symlink(entry, failed).string();
    if (failed || target.empty()) return false;
    if (target[0] == '/') real.clear();
    AddNames(target, &left);
  }
  return false;
}

// For root to make something in and give it away: reached through no link, or only through links
// that root alone could have put there.
Fd OpenParent(const std::string& parent) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS;
  Fd found(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, parent.c_str(), &how, sizeof how)));
  if (!found && IsRootsAlone(parent))
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

std::string ParentOf(const std::string& path) {
  return path.substr(0, std::max<size_t>(path.rfind('/'), 1));
}

// Whether a command of root's that follows no link at the end of `path` does it to what is there:
// no part before it is the user's to replace.
bool IsLedByRoot(const std::string& path) {
  const std::string parent = ParentOf(path);
  if (IsRootsAlone(parent)) return true;
  const std::string above = ParentOf(parent);
  struct stat st{};
  const bool is_directory = ::lstat(parent.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
  return is_directory && IsRootsAlone(above) && ::stat(above.c_str(), &st) == 0 &&
         (st.st_mode & 0022) == 0;
}

Fd OpenDirectory(const std::string& path) {
  return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Gives the user what root has made in `parent`, or finds there as it makes it, and opens it as the
// user. What the user does not reach at `path` is taken back.
Fd MakeAndGive(const Paths& paths, const Fd& parent, const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const bool fresh = ::mkdirat(parent.get(), name.c_str(), 0700) == 0;
  if (!fresh && errno != EEXIST) ThrowErrno("make the directory " + path, Code::kPlatform);
  const Fd made(
      ::openat(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st{};
  // Or one that a launcher did not finish; the owner of anything else is not changed.
  const bool given = made && ::fstat(made.get(), &st) == 0 && st.st_uid == 0 &&
                     (st.st_mode & 07777) == 0700 &&
                     IsForHutch("/proc/self/fd/" + std::to_string(made.get()));
  const auto give = [&](uid_t uid, gid_t gid) {
    if (::fchown(made.get(), uid, gid) != 0)
      ThrowErrno("change the owner of the directory " + path, Code::kPlatform);
  };
  if (given) give(paths.uid, paths.gid);
  Fd dir;
  {
    const AsUser user(paths);
    dir = OpenDirectory(path);
  }
  if (!dir && given) give(st.st_uid, st.st_gid);
  if (!dir && fresh) ::unlinkat(parent.get(), name.c_str(), AT_REMOVEDIR);
  return dir;
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
    dir = OpenDirectory(path);
  }
  if (paths.service_user && !dir && (errno == ENOENT || errno == EACCES)) {
    if (const Fd parent = OpenParent(ParentOf(path))) dir = MakeAndGive(paths, parent, path);
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
    const bool is_safe = !paths.service_user || IsLedByRoot(path);
    throw Error(
        Code::kPlatform, path + " belongs to uid " + std::to_string(st.st_uid) + ", not to " + uid,
        (is_safe && IsForHutch(path) ? "as root: chown -h " + uid + " " + path + "; or " : "") +
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
