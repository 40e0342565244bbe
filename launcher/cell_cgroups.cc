// SPDX-License-Identifier: Apache-2.0

#include "launcher/cell_cgroups.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "launcher/host_programs.h"
#include "launcher/mount_view.h"
#include "launcher/subprocess.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/log.h"

namespace hutch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kUnitStart(10000);

// The unit's process. It moves into a cgroup of its own, because a cgroup that passes controllers
// on may hold no process; it enables each controller separately, so that a refused one does not
// prevent the others; and it writes down where it is.
constexpr char kHold[] =
    "cd \"/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)\" && mkdir -p keeper cells && "
    "echo $$ >keeper/cgroup.procs && for c in memory pids cpu; do "
    "echo +$c >cgroup.subtree_control && echo +$c >cells/cgroup.subtree_control; done; "
    "echo \"$PWD/cells\" >\"$1.part\" && mv \"$1.part\" \"$1\" && exec sleep infinity";

std::string Unit(const Paths& paths) {
  return "hutch-cells" + (paths.instance.empty() ? "" : "-" + paths.instance);
}

std::string Place(const Paths& paths) { return paths.run_dir + "/cells"; }

std::string ReadLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// The directory if it exists and has the controllers that limits need; else "".
std::string Usable(const std::string& directory) {
  if (directory.empty() || ::access((directory + "/cgroup.procs").c_str(), W_OK) != 0) return {};
  std::ifstream words(directory + "/cgroup.subtree_control");
  bool memory = false;
  bool pids = false;
  for (std::string word; words >> word;) {
    memory = memory || word == "memory";
    pids = pids || word == "pids";
  }
  return memory && pids ? directory : "";
}

// systemd replaces variables in a unit's command line before a shell reads it.
std::string Quoted(const std::string& text) {
  std::string quoted;
  for (const char c : text) quoted += c == '$' ? std::string("$$") : std::string(1, c);
  return quoted;
}

int Systemctl(const Paths& paths, const char* verb) {
  Command command;
  command.argv = {FindTool("systemctl"), "--user", verb, Unit(paths)};
  command.environment = PodmanEnvironment(paths);
  return Run(paths, command);
}

}  // namespace

std::string EnsureCells(const Paths& paths) {
  if (paths.service_user) {
    struct statfs fs{};
    const bool pure = ::statfs("/sys/fs/cgroup", &fs) == 0 &&
                      static_cast<unsigned long>(fs.f_type) == CGROUP2_SUPER_MAGIC;
    const AsUser user(paths);
    return pure ? Usable(kCellsOfServiceUser) : "";
  }
  if (!HasUserManager(paths)) return {};
  if (const std::string there = Usable(ReadLine(Place(paths))); !there.empty()) return there;
  try {
    ::unlink(Place(paths).c_str());
    Systemctl(paths, "stop");  // one that is left half made
    Command run;
    run.argv = {FindTool("systemd-run"),
                "--user",
                "--collect",
                "--quiet",
                "--unit=" + Unit(paths),
                "--property=Delegate=yes",
                "--property=TasksMax=infinity",
                "--property=OOMPolicy=continue",  // one call's end is not the others'
                FindTool("env"),
                "-i",
                "PATH=/usr/bin:/bin",
                FindTool("sh"),
                "-c",
                Quoted(kHold),
                "sh",
                Quoted(Place(paths))};
    run.environment = PodmanEnvironment(paths);
    if (Run(paths, run) != 0) return {};
    for (const auto deadline = Clock::now() + kUnitStart; Clock::now() < deadline;) {
      if (::access(Place(paths).c_str(), R_OK) == 0) return Usable(ReadLine(Place(paths)));
      std::this_thread::sleep_for(milliseconds(10));
    }
  } catch (const Error& error) {
    LogWarn("there is no cgroup for the limits of calls", {{"why", error.what()}});
  }
  return {};
}

void StopCells(const Paths& paths) {
  if (paths.service_user || !HasUserManager(paths)) return;
  Systemctl(paths, "stop");
  ::unlink(Place(paths).c_str());
}

}  // namespace hutch
