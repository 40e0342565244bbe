// SPDX-License-Identifier: Apache-2.0

#include "launcher/podman_service.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "launcher/host_programs.h"
#include "launcher/mount_view.h"
#include "launcher/podman_user.h"
#include "launcher/subprocess.h"
#include "podman/host.h"
#include "podman/packages.h"
#include "podman/podman.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/fd.h"
#include "wire/log.h"

namespace hutch {
namespace {

using std::chrono::milliseconds;

// The wait for a service that hangs; one that ends is noticed at once. On an emulated processor a
// first start took more than 20 s.
constexpr milliseconds kServiceStart(60000);

std::string ReadText(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text
      << file.rdbuf();  // an iterator would throw where reading fails, as of a process that is gone
  return text.str();
}

std::string Tail(const std::string& text, size_t bytes) {
  return text.size() > bytes ? text.substr(text.size() - bytes) : text;
}

// One process of `podman system service`. There are two where gVisor is used, because a service has
// one runtime for all of its containers (before Podman 6, the REST API takes no runtime with a
// container). Both see the same containers.
struct Endpoint {
  std::string socket;
  std::string log;
  std::string unit;                  // of systemd's
  std::vector<std::string> options;  // of podman's, before the verb

  std::string url() const { return "unix://" + socket; }
};

std::string Unit(const Paths& paths, const char* suffix) {
  return std::string("hutch-podman") + suffix +
         (paths.instance.empty() ? "" : "-" + paths.instance);
}
constexpr uint64_t kGvisorKernelKb = 512 << 10;
std::string GvisorProgram(const Paths& paths) { return paths.state_dir + "/gvisor/runsc"; }
Endpoint MainEndpoint(const Paths& paths) {
  return {paths.podman_socket(), paths.run_dir + "/podman/service.log", Unit(paths, ""), {}};
}
Endpoint GvisorEndpoint(const Paths& paths) {
  return {paths.gvisor_socket(),
          paths.run_dir + "/podman/gvisor.log",
          Unit(paths, "-gvisor"),
          {"--runtime", GvisorProgram(paths)}};
}

// Writes `text` as Podman's user, under another name first: a reader never sees half of it.
void WriteFile(const Paths& paths, const std::string& path, const std::string& text,
               mode_t mode = 0600) {
  const AsUser user(paths);
  if (ReadText(path) == text) return;
  const std::string part = path + "." + std::to_string(::getpid());
  Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd || ::fchmod(fd.get(), mode) != 0) ThrowErrno("create " + part, Code::kPlatform);
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    ThrowErrno("write " + part);
  if (::rename(part.c_str(), path.c_str()) != 0) ThrowErrno("rename " + part);
}

// Podman's settings for the service user: before the first podman command, or it falls back to the
// vfs driver, which copies the whole base image for each container.
void WriteSettings(const Paths& paths) {
  const std::string config = paths.home + "/.config";
  EnsureDirectory(paths, config);
  EnsureDirectory(paths, config + "/containers");
  WriteFile(paths, config + "/containers/storage.conf",
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"" + paths.home +
                "/containers\"\nrunroot = \"" + paths.xdg_runtime_dir + "/containers\"\n");
  // Nobody reads events, so none are written. No default limit of processes: without the controller
  // it would be an error.
  WriteFile(
      paths, config + "/containers/containers.conf",
      "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\nruntime = \"crun\"\n"
      "[containers]\nlog_driver = \"k8s-file\"\npids_limit = 0\n");
}

struct Service {
  pid_t pid = 0;
  bool outer =
      false;  // in our own user namespace: the one whose mount namespace is the private view
};

// Processes of Podman's user with exactly the command line of a podman service: of our services
// only, or of any. Podman re-executes itself into its user namespace, so one service is two
// processes; with a pause process there already, it joins that one's namespaces instead.
std::vector<Service> FindServices(const Paths& paths, bool ours) {
  std::vector<Service> found;
  const std::string wanted[] = {MainEndpoint(paths).url(), GvisorEndpoint(paths).url()};
  struct stat own{};
  ::stat("/proc/self/ns/user", &own);
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = static_cast<pid_t>(std::atoi(entry->d_name));
    if (pid <= 1) continue;
    const std::string dir = "/proc/" + std::to_string(pid);
    const std::string status = ReadText(dir + "/status");
    const size_t at = status.find("\nUid:\t");
    if (at == std::string::npos || std::strtoul(status.c_str() + at + 6, nullptr, 10) != paths.uid)
      continue;
    const std::string words = ReadText(dir + "/cmdline");
    const std::string service = std::string("\0system\0service\0", 16);
    if (words.find(service) == std::string::npos) continue;
    const bool its_ours = std::ranges::any_of(wanted, [&](const std::string& url) {
      return words.find(std::string(1, '\0') + url + std::string(1, '\0')) != std::string::npos;
    });
    if (ours && !its_ours) continue;
    struct stat theirs{};
    const bool outer =
        ::stat((dir + "/ns/user").c_str(), &theirs) == 0 && theirs.st_ino == own.st_ino;
    found.push_back({pid, outer});
  }
  ::closedir(proc);
  return found;
}

// A stopped process never answers.
bool IsStopped(const Service& service) {
  const std::string stat = ReadText("/proc/" + std::to_string(service.pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.substr(name_end, 3) == ") T";
}

bool Answers(const Paths& paths, const Endpoint& endpoint) {
  const auto pings = [&](milliseconds patience) {
    const AsUser user(paths);
    return Podman(endpoint.socket).Ping(patience);
  };
  if (pings(milliseconds(2000))) return true;
  // A service that only waits for a busy processor is not replaced: it may be working for others.
  const std::vector<Service> services = FindServices(paths, true);
  if (services.empty() || std::ranges::any_of(services, IsStopped)) return false;
  return pings(milliseconds(10000));
}

// A service whose database was removed (`podman system reset`) answers a ping, and nothing else.
bool Works(const Paths& paths, const Endpoint& endpoint) {
  if (!Answers(paths, endpoint)) return false;
  const AsUser user(paths);
  try {
    Podman(endpoint.socket).List("hutch.instance=" + paths.instance_label());
    return true;
  } catch (const Error& error) {
    LogWarn("Podman's service does not work and is started again", {{"why", error.what()}});
    return false;
  }
}

// `child`: our child, which is reaped; -1: a unit's process, which is searched among all processes.
void WaitForService(const Paths& paths, const Endpoint& endpoint, pid_t child) {
  const auto deadline = Clock::now() + kServiceStart;
  auto look = Clock::now() + milliseconds(500);
  for (;;) {
    if (Answers(paths, endpoint)) return;
    const auto now = Clock::now();
    int status = 0;
    bool died = child > 0 && ::waitpid(child, &status, WNOHANG) == child;
    if (child < 0 && now >= look) {
      died = FindServices(paths, true).empty();
      look = now + milliseconds(500);
    }
    if (died || now >= deadline) {
      const AsUser user(paths);
      throw Refused(std::string("Podman's service ") + (died ? "ended" : "does not answer") + ": " +
                    (child < 0 ? "journalctl --user -u " + endpoint.unit + " says why"
                               : Tail(ReadText(endpoint.log), 2000)));
    }
    std::this_thread::sleep_for(milliseconds(15));
  }
}

// Whether a podman runs as this user, or a conmon, which supervises a container.
bool AnyPodman(const Paths& paths) {
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return true;
  bool found = false;
  while (const dirent* entry = ::readdir(proc)) {
    const std::string dir = std::string("/proc/") + entry->d_name;
    struct stat st{};
    if (std::atoi(entry->d_name) <= 1 || ::stat(dir.c_str(), &st) != 0) continue;
    const std::string program = ReadText(dir + "/cmdline").c_str();  // a zombie has none
    found = found || (st.st_uid == paths.uid &&
                      (program.ends_with("conmon") || program.ends_with("podman")));
  }
  ::closedir(proc);
  return found;
}

// Ends the pause process, and corrects Podman's records of containers whose processes are gone.
void Migrate(const Paths& paths) {
  Command migrate;
  migrate.argv = {FindPodman(), "system", "migrate"};
  migrate.environment = PodmanEnvironment(paths);
  migrate.private_view = paths.service_user;
  Run(paths, migrate);
}

// Every process was killed and the run directory stayed, as when a machine's container is
// restarted: Podman's records name processes that are gone, and it asks for a migration. That fails
// at the first container that it cannot stop, after five seconds. Where no process is left, the
// files that a reboot removes are removed instead, and Podman then takes all containers as ended.
void CorrectBooks(const Paths& paths) {
  if (AnyPodman(paths)) return Migrate(paths);
  const AsUser user(paths);
  ::unlink((paths.xdg_runtime_dir + "/libpod/tmp/pause.pid").c_str());
  ::unlink(("/dev/shm/libpod_rootless_lock_" + std::to_string(paths.uid)).c_str());
  ::unlink((paths.xdg_runtime_dir + "/libpod/tmp/alive").c_str());
}

void LaunchService(const Paths& paths, const Endpoint& endpoint) {
  Fd log;
  {
    const AsUser user(paths);
    // Nobody listens there: a stale file would make Podman fail.
    ::unlink(endpoint.socket.c_str());
    log = Fd(
        ::open(endpoint.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!log) ThrowErrno("create " + endpoint.log, Code::kPlatform);
  }
  Command command;
  command.argv = {FindPodman()};
  command.argv.insert(command.argv.end(), endpoint.options.begin(), endpoint.options.end());
  for (const std::string& word : {std::string("system"), std::string("service"), std::string("-t"),
                                  std::string("0"), endpoint.url()}) {
    command.argv.push_back(word);
  }
  command.environment = PodmanEnvironment(paths);
  command.out = command.err = log.get();
  if (HasUserManager(paths)) {
    // `env -i`: the manager's own environment may hold what the caller imported into it.
    Command run = command;
    run.argv = {FindTool("systemd-run"), "--user", "--collect", "--quiet",
                "--service-type=exec",  // it has become what we look for once this returns
                // Otherwise one process that the kernel kills for want of memory ends it all.
                "--property=OOMPolicy=continue", "--unit=" + endpoint.unit, FindTool("env"), "-i"};
    run.argv.insert(run.argv.end(), command.environment.begin(), command.environment.end());
    run.argv.insert(run.argv.end(), command.argv.begin(), command.argv.end());
    if (Run(paths, run) == 0) {
      WaitForService(paths, endpoint, -1);
      return;
    }
  }
  command.detach = true;
  command.private_view = paths.service_user;
  for (int attempt = 1;; ++attempt) {
    try {
      return WaitForService(paths, endpoint, Spawn(paths, command));
    } catch (const Error& error) {
      const bool stale = std::string_view(error.what()).find("system migrate") != std::string::npos;
      if (!stale || attempt == 3) throw;
      CorrectBooks(paths);
    }
  }
}

void SignalServices(const Paths& paths, int signal) {
  const AsUser user(paths);  // as the user: a pid that was reused by anybody else cannot be hit
  for (const Service& service : FindServices(paths, true)) ::kill(service.pid, signal);
}

bool WaitForEnd(const Paths& paths, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (FindServices(paths, true).empty()) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
}

void KillPause(const Paths& paths) {
  const AsUser user(paths);
  const std::string file = paths.xdg_runtime_dir + "/libpod/tmp/pause.pid";
  const pid_t pid = static_cast<pid_t>(std::atoi(ReadText(file).c_str()));
  if (pid <= 1) return;
  const std::string name = ReadText("/proc/" + std::to_string(pid) + "/comm");
  if (name.starts_with("podman") || name.starts_with("catatonit")) ::kill(pid, SIGKILL);
  ::unlink(file.c_str());
}

// Whether the service sees cgroup v2. Asking Podman takes a third of a second, because its answer
// has the versions of all that it uses, which it gets from Debian's package manager.
bool SeesCgroup2(const Paths& paths) {
  for (const Service& service : FindServices(paths, true)) {
    if (service.outer) continue;
    struct statfs found{};
    const std::string place = "/proc/" + std::to_string(service.pid) + "/root/sys/fs/cgroup";
    if (::statfs(place.c_str(), &found) == 0) return found.f_type == CGROUP2_SUPER_MAGIC;
  }
  const AsUser user(paths);
  return Podman(paths.podman_socket()).Version().cgroup_version == "v2";
}

// In the mounts as they are now: a new service would join the namespaces of the pause process.
void StartAnew(const Paths& paths) {
  StopService(paths, true);
  Migrate(paths);
  LaunchService(paths, MainEndpoint(paths));
}

// Whether the service finds our directory where we find it: its view of the mounts may be older.
bool SeesHome(const Paths& paths) {
  struct stat ours{};
  {
    const AsUser user(paths);
    if (::stat(paths.state_dir.c_str(), &ours) != 0) return true;
  }
  return std::ranges::none_of(FindServices(paths, true), [&](const Service& service) {
    struct stat theirs{};
    const std::string place = "/proc/" + std::to_string(service.pid) + "/root" + paths.state_dir;
    if (::stat(place.c_str(), &theirs) != 0) return errno == ENOENT;
    return theirs.st_dev != ours.st_dev || theirs.st_ino != ours.st_ino;
  });
}

}  // namespace

Error Refused(const std::string& text) {
  const std::optional<KnownCause> known = CauseOf(text);
  if (!known) return {Code::kPlatform, text, kDoctor};
  LogDebug("Podman refused", {{"text", text}});
  return {Code::kPlatform, known->cause, known->fix};
}

void EnsureService(const Paths& paths) {
  const Endpoint endpoint = MainEndpoint(paths);
  if (Works(paths, endpoint)) return;
  FindPodman();
  CheckSubIds(paths);
  if (paths.service_user) WriteSettings(paths);
  // A service that hangs is replaced; containers do not depend on it.
  if (!FindServices(paths, true).empty()) {
    SignalServices(paths, SIGKILL);
    WaitForEnd(paths, milliseconds(2000));
  }
  LaunchService(paths, endpoint);
  if (!paths.service_user) return;
  if (SeesCgroup2(paths)) return;
  StartAnew(paths);  // a pause process made elsewhere pins another view of the mounts
}

void EnsureSeen(const Paths& paths) {
  if (SeesHome(paths)) return;
  {
    const AsUser user(paths);
    const auto runs = [](const ContainerInfo& info) { return info.state == "running"; };
    if (std::ranges::any_of(Podman(paths.podman_socket()).List(""), runs)) {
      throw Error(Code::kPlatform,
                  "Podman does not see " + paths.state_dir +
                      ": it was mounted after containers had been started, which still run",
                  "stop them, then call again: hutch podman stop --all");
    }
  }
  StartAnew(paths);
}

void EnsureGvisor(const Paths& paths) {
  const Endpoint endpoint = GvisorEndpoint(paths);
  if (Answers(paths, endpoint)) return;
  const std::string runsc = FindTool("runsc");
  if (runsc.empty()) {
    throw Error(Code::kPlatform,
                "isolation=\"gvisor\" needs gVisor's runsc, which is not installed",
                InstallCommand(Package::kGvisor));
  }
  EnsureDirectory(paths, paths.state_dir + "/gvisor");
  // No cgroup: an ordinary user has none that runsc could make others in. No network but loopback.
  // The agent's socket is in a mount, and is only connected to.
  // gVisor's kernel has no limit of files and counts no memory of its own, so its process has one.
  WriteFile(paths, GvisorProgram(paths),
            "#!/bin/sh\nulimit -d " + std::to_string(kGvisorKernelKb) + " || :\nexec " + runsc +
                " --ignore-cgroups --network=none --host-uds=open --oci-seccomp \"$@\"\n",
            0700);
  LaunchService(paths, endpoint);
}

void StopService(const Paths& paths, bool keep_pause) {
  const Endpoint endpoints[] = {MainEndpoint(paths), GvisorEndpoint(paths)};
  if (HasUserManager(paths)) {
    Command stop;
    stop.argv = {FindTool("systemctl"), "--user", "stop", endpoints[0].unit, endpoints[1].unit};
    stop.environment = PodmanEnvironment(paths);
    Run(paths, stop);
  }
  SignalServices(paths, SIGTERM);
  if (!WaitForEnd(paths, milliseconds(3000))) {
    SignalServices(paths, SIGKILL);
    WaitForEnd(paths, milliseconds(2000));
  }
  {
    const AsUser user(paths);
    for (const Endpoint& endpoint : endpoints) ::unlink(endpoint.socket.c_str());
  }
  if (!paths.service_user || keep_pause || !FindServices(paths, false).empty()) return;
  KillPause(paths);
  RemoveCgroup(paths);
}

void ExecPodman(const Paths& paths, const std::vector<std::string>& args) {
  const std::string podman = FindPodman();
  std::vector<std::string> environment = PodmanEnvironment(paths);
  for (const char* name : {"TERM", "COLUMNS", "LINES"}) {
    if (const std::string value = Variable(name); !value.empty()) {
      environment.push_back(std::string(name) + "=" + value);
    }
  }
  if (paths.service_user) {
    // A restarted service has no outer process: it joined the pause process, and so will the
    // command.
    for (const Service& service : FindServices(paths, true)) {
      if (!service.outer) continue;
      const Fd view(::open(("/proc/" + std::to_string(service.pid) + "/ns/mnt").c_str(),
                           O_RDONLY | O_CLOEXEC));
      if (view && ::setns(view.get(), CLONE_NEWNS) == 0) break;
    }
    BecomeUser(paths);
    if (::chdir("/") != 0) ThrowErrno("change to the directory /");
  }
  std::vector<char*> argv = {const_cast<char*>("podman")};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (const std::string& word : environment) envp.push_back(const_cast<char*>(word.c_str()));
  envp.push_back(nullptr);
  ::execve(podman.c_str(), argv.data(), envp.data());
  ThrowErrno("execute " + podman, Code::kPlatform);
}

}  // namespace hutch
