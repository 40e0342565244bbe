// SPDX-License-Identifier: Apache-2.0

#include "podman/host.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "podman/packages.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {
namespace {

std::string FindProgram(const std::string& name) {
  const char* own = ::geteuid() == 0 ? nullptr : ::secure_getenv("PATH");
  std::stringstream search(
      std::string(own == nullptr ? "" : own) +
      ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec/podman");
  for (std::string dir; std::getline(search, dir, ':');) {
    const std::string path = dir + "/" + name;
    if (!dir.empty() && dir[0] == '/' && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

// "" when it does not run.
std::string AskVersion(const std::string& program, const std::optional<Paths>& paths) {
  int ends[2];
  if (program.empty() || ::pipe2(ends, O_CLOEXEC) != 0) return {};
  const Fd reads(ends[0]);
  Fd writes(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writes.get(), 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  char word[] = "--version";
  std::string path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
  // Without root it needs the user's own directories even for this.
  std::string home = "HOME=" + (paths && ::geteuid() != 0 ? paths->home : "/nonexistent");
  std::string runtime_dir = "XDG_RUNTIME_DIR=" + (paths ? paths->xdg_runtime_dir : "");
  char* argv[] = {const_cast<char*>(program.c_str()), word, nullptr};
  char* environment[] = {path.data(), home.data(), runtime_dir.data(), nullptr};
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return {};
  writes.reset();
  std::string said;
  char part[256];
  for (ssize_t n = 0; (n = ::read(reads.get(), part, sizeof part)) > 0;)
    said.append(part, static_cast<size_t>(n));
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status == 0 ? VersionIn(said) : "";
}

uint64_t CountIds(const char* file, const std::string& user, uid_t uid) {
  std::ifstream lines(file);
  uint64_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(user + ":") && !line.starts_with(std::to_string(uid) + ":")) continue;
    count += std::strtoull(line.c_str() + line.rfind(':') + 1, nullptr, 10);
  }
  return count;
}

// Makes a user namespace with a mount in it, as the user, in a child. "" or what failed: some
// kernels let the namespace be made and then refuse everything in it.
std::string TryUserNamespace(bool switch_user, uid_t uid, gid_t gid) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "a process to try it in could not be made";
  const Fd reads(ends[0]);
  Fd writes(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return "a process to try it in could not be made";
  if (pid == 0) {
    const char* failed = nullptr;
    if (switch_user && (::setresgid(gid, gid, gid) != 0 || ::setresuid(uid, uid, uid) != 0))
      failed = "cannot change the user";
    if (failed == nullptr && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
      failed = "cannot make a user namespace";
    if (failed == nullptr && ::mount("tmpfs", "/tmp", "tmpfs", 0, nullptr) != 0)
      failed = "cannot mount in a user namespace";
    if (failed != nullptr) {
      const std::string text = std::string(failed) + ": " + std::strerror(errno);
      [[maybe_unused]] const ssize_t ignored = ::write(writes.get(), text.data(), text.size());
    }
    ::_exit(0);
  }
  writes.reset();
  char text[256];
  const ssize_t n = ::read(reads.get(), text, sizeof text);
  ::waitpid(pid, nullptr, 0);
  return {text, n > 0 ? static_cast<size_t>(n) : 0};
}

CgroupLayout FindCgroups() {
  struct statfs fs{};
  if (::statfs("/sys/fs/cgroup", &fs) != 0) return CgroupLayout::kNone;
  if (static_cast<unsigned long>(fs.f_type) == CGROUP2_SUPER_MAGIC) return CgroupLayout::kV2;
  if (::statfs("/sys/fs/cgroup/unified", &fs) == 0 &&
      static_cast<unsigned long>(fs.f_type) == CGROUP2_SUPER_MAGIC) {
    return CgroupLayout::kHybrid;
  }
  return ::access("/sys/fs/cgroup/memory", F_OK) == 0 ? CgroupLayout::kV1 : CgroupLayout::kNone;
}

std::vector<std::string> ReadControllers(CgroupLayout layout, bool root, uid_t uid) {
  std::string file;
  if (layout == CgroupLayout::kV2) {
    const std::string id = std::to_string(uid);
    file = root ? "/sys/fs/cgroup/cgroup.controllers"
                : "/sys/fs/cgroup/user.slice/user-" + id + ".slice/user@" + id +
                      ".service/cgroup.controllers";
  } else if (layout == CgroupLayout::kHybrid && root) {
    file = "/sys/fs/cgroup/unified/cgroup.controllers";
  }
  std::vector<std::string> found;
  std::ifstream words(file);
  for (std::string word; words >> word;) found.push_back(word);
  return found;
}

bool HasOverlay(const std::string& kernel) {
  int major = 0;
  int minor = 0;
  if (std::sscanf(kernel.c_str(), "%d.%d", &major, &minor) != 2) return false;
  return major > 5 || (major == 5 && minor >= 11);  // the first that mounts it in a user namespace
}

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// As one operand of a command: a name may come from USER.
std::string Quoted(const std::string& word) {
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("._-", c); };
  if (!word.empty() && word[0] != '-' && std::ranges::all_of(word, is_plain)) return word;
  std::string text = word.starts_with("-") ? "-- '" : "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

int Sysctl(const char* name) {
  int value = -1;
  std::ifstream("/proc/sys/" + std::string(name)) >> value;
  return value;
}

std::string FixUserNamespaces() {
  if (Sysctl("kernel/unprivileged_userns_clone") == 0)
    return "sudo sysctl -w kernel.unprivileged_userns_clone=1";
  if (Sysctl("user/max_user_namespaces") == 0)
    return "sudo sysctl -w user.max_user_namespaces=15000";
  if (Sysctl("kernel/apparmor_restrict_unprivileged_userns") == 1) {
    return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";
  }
  return {};
}

// `good` is what a check that holds says; `bad` and `fix` are of one that does not.
void Add(std::vector<HostCheck>* checks, std::string name, bool ok, std::string good,
         std::string bad, std::string fix, bool required = true) {
  checks->push_back({std::move(name), ok, required, ok ? std::move(good) : std::move(bad),
                     ok ? "" : std::move(fix)});
}

void CheckPodman(const HostFacts& facts, std::vector<HostCheck>* checks) {
  Add(checks, "podman", !facts.podman_version.empty(), "Podman " + facts.podman_version,
      facts.podman_path.empty() ? "Podman is not installed" : facts.podman_path + " does not run",
      facts.podman_path.empty() ? InstallCommand(Package::kPodman)
                                : "see what it says: " + facts.podman_path + " --version");
  Add(checks, "oci runtime", !facts.oci_runtime.empty(), facts.oci_runtime,
      "neither crun nor runc is installed", InstallCommand(Package::kOciRuntime));
}

// Who containers belong to, and which ids that user may map in them.
void CheckUser(const HostFacts& facts, std::vector<HostCheck>* checks) {
  Add(checks, "user", !facts.user.empty() && facts.place_error.empty(),
      "containers belong to " + facts.user + (facts.root ? " (root runs nothing itself)" : ""),
      facts.place_error.empty()
          ? std::string("there is no service user yet; the first call makes it")
          : facts.place_error,
      facts.place_fix, !facts.place_is_made);
  Add(checks, "uid helpers", facts.uid_helpers, "newuidmap and newgidmap are there",
      "newuidmap or newgidmap is missing: no rootless container starts",
      InstallCommand(Package::kUidHelpers));
  if (!facts.user.empty()) {
    // The base image and a uid for each worker, as Podman's own default.
    constexpr uint64_t kEnough = 65536;
    Add(checks, "sub-ids", facts.subuids >= kEnough && facts.subgids >= kEnough,
        std::to_string(facts.subuids) + " uids and " + std::to_string(facts.subgids) + " gids",
        facts.user + " may map " + std::to_string(facts.subuids) + " uids and " +
            std::to_string(facts.subgids) + " gids; 65536 are needed",
        SubIdCommand(facts.user));
  }
  Add(checks, "user namespaces", facts.user_namespaces_error.empty(), "usable",
      facts.user_namespaces_error, FixUserNamespaces());
}

void CheckOverlay(const HostFacts& facts, std::vector<HostCheck>* checks) {
  Add(checks, "overlay",
      facts.overlay && (facts.graph_driver.empty() || facts.graph_driver == "overlay"),
      facts.graph_driver.empty() ? "the kernel has it (" + facts.kernel + ")" : "in use",
      facts.overlay ? "Podman uses the " + facts.graph_driver +
                          " driver: each container copies the whole image"
                    : "Linux " + facts.kernel + " cannot mount overlay without root",
      facts.overlay ? "set driver = \"overlay\" in ~/.config/containers/storage.conf and run: "
                      "podman system reset"
                    : "",
      false);
}

constexpr char kHybrid[] = "hybrid (v1 and v2): crun starts no rootless container on it";
constexpr char kUnifyCgroups[] =
    "add systemd.unified_cgroup_hierarchy=1 to the kernel's command line and reboot";
constexpr char kDelegate[] =
    "sudo mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu cpuset "
    "io memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf && sudo "
    "systemctl daemon-reload   (and log in again)";

void CheckCgroups(const HostFacts& facts, std::vector<HostCheck>* checks) {
  const bool is_needed =
      facts.cgroups == CgroupLayout::kHybrid || std::atoi(facts.podman_version.c_str()) >= 6;
  // root's launcher gives Podman a view without the hybrid; an ordinary user cannot.
  Add(checks, "cgroup layout", facts.root || facts.cgroups == CgroupLayout::kV2,
      facts.cgroups == CgroupLayout::kV2 ? "cgroup v2"
                                         : "a private cgroup v2 view is made for Podman",
      facts.cgroups == CgroupLayout::kHybrid ? kHybrid
      : is_needed ? "no cgroup v2, without which this Podman starts no container"
                  : "no cgroup v2: rootless containers have no limits",
      kUnifyCgroups, is_needed);
  std::vector<std::string> missing;
  for (const char* name : {"memory", "pids", "cpu"}) {
    if (std::find(facts.controllers.begin(), facts.controllers.end(), name) ==
        facts.controllers.end()) {
      missing.push_back(name);
    }
  }
  std::string mend;
  if (!facts.root && facts.systemd)
    mend = facts.cgroups == CgroupLayout::kV2 ? kDelegate : kUnifyCgroups;
  Add(checks, "cgroup limits", missing.empty(),
      "enforced by the kernel: " + Join(facts.controllers),
      "not delegated to Podman: " + Join(missing) +
          "; Hutch then watches memory about every 20 ms, counts the kernel's own objects (locks, "
          "mappings, pipes, sockets) by estimate, and limits processes by rlimit; CPU shares are "
          "not enforced",
      mend, false);
  Add(checks, "systemd user manager", facts.systemd_user || facts.root,
      facts.root ? "not used for root" : "answers",
      "none: the service is started without it, and ends with the machine",
      facts.user.empty() || !facts.systemd ? ""
                                           : "sudo loginctl enable-linger " + Quoted(facts.user),
      false);
}

void CheckNetwork(const HostFacts& facts, std::vector<HostCheck>* checks) {
  Add(checks, "network helper", !facts.network_helper.empty(), facts.network_helper,
      (Knows(facts.podman_version, "slirp4netns")
           ? "neither slirp4netns nor pasta is"
           : "pasta, which alone this Podman knows, is not") +
          std::string(" installed: no dependency can be installed"),
      InstallCommand(Package::kNetworkHelper));
  Add(checks, "/dev/net/tun", facts.tun_usable, "usable",
      facts.tun_exists ? "not usable by " + facts.user : "missing",
      facts.tun_exists ? "sudo chmod 666 /dev/net/tun"
                       : "sudo mkdir -p /dev/net && sudo mknod /dev/net/tun c 10 200 && sudo chmod "
                         "666 /dev/net/tun");
}

}  // namespace

HostFacts InspectHost(const std::optional<Paths>& paths,
                      const std::optional<PodmanVersion>& service) {
  HostFacts facts;
  facts.root = ::geteuid() == 0;
  const uid_t uid = paths ? paths->uid : ::geteuid();
  const gid_t gid = paths ? paths->gid : ::getegid();
  if (paths || !facts.root) facts.user = UserName(uid);
  struct utsname name{};
  if (::uname(&name) == 0) facts.kernel = name.release;
  facts.podman_path = FindProgram("podman");
  facts.podman_version = service ? service->podman : AskVersion(facts.podman_path, paths);
  for (const char* runtime : {"crun", "runc"}) {
    if (facts.oci_runtime.empty() && !FindProgram(runtime).empty()) facts.oci_runtime = runtime;
  }
  for (const char* helper : {"slirp4netns", "pasta"}) {
    if (!Knows(facts.podman_version, helper)) continue;
    if (facts.network_helper.empty() && !FindProgram(helper).empty()) facts.network_helper = helper;
  }
  facts.gvisor = !FindProgram("runsc").empty();
  if (service) facts.network_helper = service->network_helper;  // which of them it knows
  facts.uid_helpers = !FindProgram("newuidmap").empty() && !FindProgram("newgidmap").empty();
  if (!facts.user.empty()) {
    facts.subuids = CountIds("/etc/subuid", facts.user, uid);
    facts.subgids = CountIds("/etc/subgid", facts.user, uid);
  }
  facts.user_namespaces_error = TryUserNamespace(facts.root && paths.has_value(), uid, gid);
  facts.overlay = HasOverlay(facts.kernel);
  facts.cgroups = FindCgroups();
  facts.controllers =
      service ? service->cgroup_controllers : ReadControllers(facts.cgroups, facts.root, uid);
  if (service) facts.graph_driver = service->graph_driver;
  facts.systemd = ::access("/run/systemd/system", F_OK) == 0;
  facts.systemd_user = !facts.root && paths &&
                       ::access((paths->xdg_runtime_dir + "/systemd/private").c_str(), R_OK) == 0;
  struct stat st{};
  facts.tun_exists = ::stat("/dev/net/tun", &st) == 0 && S_ISCHR(st.st_mode);
  facts.tun_usable = facts.tun_exists && (facts.root || ::access("/dev/net/tun", R_OK | W_OK) == 0);
  return facts;
}

bool Knows(const std::string& podman, const std::string& helper) {
  return helper != "slirp4netns" || std::atoi(podman.c_str()) < 6;
}

std::string VersionIn(const std::string& said) {
  std::stringstream words(said);
  std::string name;
  std::string label;
  std::string version;
  words >> name >> label >> version;
  const bool is_one =
      label == "version" && !version.empty() && version[0] >= '0' && version[0] <= '9';
  return is_one ? version : "";
}

std::optional<KnownCause> CauseOf(std::string_view said) {
  const auto says = [said](std::string_view words) {
    return said.find(words) != std::string_view::npos;
  };
  if (says("cgroups in hybrid mode")) {
    return KnownCause{std::string("the layout of cgroups is ") + kHybrid, kUnifyCgroups};
  }
  if (says("newuidmap") && says("not found"))
    return KnownCause{"newuidmap is missing", InstallCommand(Package::kUidHelpers)};
  if (says("no space left on device") || says("disk quota exceeded"))
    return KnownCause{"the disk that Podman keeps its images on is full", kMakeRoom};
  if (says("read-only file system")) {
    return KnownCause{
        "Podman keeps its images on a disk that is mounted read-only",
        "mount it writable: `podman info -f '{{.Store.GraphRoot}}'` says where it is"};
  }
  return std::nullopt;
}

std::string SubIdCommand(const std::string& user) {
  uint64_t free = 100000;  // where useradd begins
  for (const char* file : {"/etc/subuid", "/etc/subgid"}) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      unsigned long long first = 0;
      unsigned long long count = 0;
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      if (std::sscanf(line.c_str() + colon, ":%llu:%llu", &first, &count) != 2) continue;
      if (first < 4000000000u && count < 4000000000u)
        free = std::max<uint64_t>(free, first + count);
    }
  }
  const std::string range = std::to_string(free) + "-" + std::to_string(free + 65535);
  return "sudo usermod --add-subuids " + range + " --add-subgids " + range + " " + Quoted(user);
}

std::vector<HostCheck> CheckHost(const HostFacts& facts) {
  std::vector<HostCheck> checks;
  CheckPodman(facts, &checks);
  CheckUser(facts, &checks);
  CheckOverlay(facts, &checks);
  CheckCgroups(facts, &checks);
  CheckNetwork(facts, &checks);
  Add(&checks, "gvisor", facts.gvisor, "runsc is there",
      "runsc is not installed: isolation=\"gvisor\" is refused", InstallCommand(Package::kGvisor),
      false);
  return checks;
}

std::string ChecksToJson(const std::vector<HostCheck>& checks) {
  nlohmann::json list = nlohmann::json::array();
  bool ok = true;
  for (const HostCheck& check : checks) {
    ok = ok && (check.ok || !check.required);
    list.push_back({{"name", check.name},
                    {"ok", check.ok},
                    {"required", check.required},
                    {"detail", check.detail},
                    {"fix", check.fix}});
  }
  return nlohmann::json{{"ok", ok}, {"checks", list}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace hutch
