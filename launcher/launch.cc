// SPDX-License-Identifier: Apache-2.0

#include "launcher/launch.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "launcher/cell_cgroups.h"
#include "launcher/host_programs.h"
#include "launcher/install.h"
#include "launcher/podman_service.h"
#include "launcher/podman_user.h"
#include "launcher/subprocess.h"
#include "podman/host.h"
#include "podman/podman.h"
#include "wire/channel.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/fd.h"
#include "wire/heartbeat.h"
#include "wire/log.h"
#include "wire/message.h"

namespace hutch {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kAgentStart(60000);  // an agent that ends is noticed at once
constexpr milliseconds kGrace(5000);
constexpr int kAgentGraceSec = 8;  // after SIGTERM it drains for 5 s, while sessions are saved
constexpr char kWireLabel[] = "hutch.wire";

void CheckId(const std::string& id, const char* what) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (id.size() != 32 || !std::all_of(id.begin(), id.end(), hex)) {
    throw Error(Code::kInvalidArgument, std::string(what) + " must be 32 hexadecimal digits");
  }
}

void Check(const LaunchOptions& options) {
  CheckId(options.base_id, "--base-id");
  CheckId(options.runtime_id, "--runtime-id");
  if (options.package.empty() || options.package[0] != '/' || options.python.empty() ||
      options.python[0] != '/') {
    throw Error(Code::kInvalidArgument, "--package and --python must be absolute paths");
  }
}

enum class Listener { kYes, kNobody, kAbsent, kSilent };

// Whether the listener at the other end of `fd` answers a hello in time (heartbeat.h).
bool Greets(int fd) {
  SendMessage(fd, Hello{kWireVersion, ::getpid(), ::getuid()});
  pollfd polled{fd, POLLIN, 0};
  for (Heartbeat heart;;) {
    const auto begun = Clock::now();
    const auto period = milliseconds(kLookPeriod);
    // A listener that refuses us, or hangs up, is alive too.
    if (::poll(&polled, 1, static_cast<int>(period.count())) > 0) return true;
    const auto next = heart.Look(WorthOfLook(Clock::now() - begun - period, 0));
    if (next == Heartbeat::Next::kGiveUp) return false;
  }
}

// Says hello as Podman's user and hangs up; a listener of any other user is an attack, not an
// agent. `listener`: gets its process.
Listener Try(const Paths& paths, pid_t* listener = nullptr) {
  const AsUser user(paths);
  const Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) ThrowErrno("make a socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  paths.agent_socket.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == ECONNREFUSED) return Listener::kNobody;
    if (errno == ENOENT || errno == ENOTDIR) return Listener::kAbsent;
    ThrowErrno("connect to " + paths.agent_socket, Code::kUnavailable);
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    ThrowErrno("ask who is at the other end of a socket");
  if (peer.uid != paths.uid) {
    throw Error(
        Code::kPlatform,
        "somebody else (uid " + std::to_string(peer.uid) + ") listens on " + paths.agent_socket,
        "set HUTCH_HOME to a directory of your own");
  }
  if (listener != nullptr) *listener = peer.pid;
  try {
    return Greets(fd.get()) ? Listener::kYes : Listener::kSilent;
  } catch (const Error&) {
    return Listener::kNobody;  // it ended meanwhile
  }
}

// The end of the agent's log, for an error's message.
std::string LogTail(const Podman& podman, const std::string& id) {
  try {
    const std::string log = podman.Logs(id, 3000);
    return log.empty() ? " (its log is empty)" : "; its log ends with:\n" + log;
  } catch (const Error&) {
    return {};
  }
}

void WaitForAgent(const Paths& paths, const Podman& podman, const std::string& id) {
  const auto deadline = Clock::now() + kAgentStart;
  auto look = Clock::now() + milliseconds(300);
  for (;;) {
    if (Try(paths) == Listener::kYes) return;
    const auto now = Clock::now();
    if (now >= look || now >= deadline) {
      look = now + milliseconds(300);
      const AsUser user(paths);
      const std::optional<ContainerInfo> info = podman.Inspect(id);
      if (!info || info->state == "exited" || info->state == "stopped") {
        throw Error(Code::kPlatform, "the agent ended with status " +
                                         std::to_string(info ? info->exit_code : -1) +
                                         LogTail(podman, id));
      }
      if (now >= deadline) {
        throw Error(Code::kTimeout,
                    "the agent does not answer on " + paths.agent_socket + LogTail(podman, id),
                    "`hutch stop` ends it; the next call starts another one");
      }
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
}

bool IsAgent(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  const std::string command{std::istreambuf_iterator<char>(file), {}};
  return command.find("hutch-agent") != std::string::npos;
}

// Whether the container's process exists and is an agent. Podman's own record may be outdated.
bool Alive(const ContainerInfo& info) {
  if (info.state != "running" && info.state != "stopping" && info.state != "paused") return false;
  return IsAgent(info.pid);
}

// Ends an agent that does not answer, because it is stopped or hangs. It has ended before another
// one is started: otherwise there would be two once it continues.
void EndSilent(const Paths& paths, pid_t pid) {
  const AsUser user(paths);
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process || !IsAgent(pid)) return;  // it has just ended
  LogWarn("the agent does not answer: it is ended", {{"pid", pid}});
  ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
  pollfd ended{process.get(), POLLIN, 0};
  if (::poll(&ended, 1, static_cast<int>(kGrace.count())) <= 0) {
    throw Error(Code::kUnavailable,
                "the agent (process " + std::to_string(pid) + ") neither answers nor ends",
                "end that process: kill -9 " + std::to_string(pid));
  }
}

// Frees the container's name: removes a dead agent, and renames one of another version, which keeps
// serving its clients. Returns the id of a live agent of this version.
std::optional<std::string> ClearName(const Paths& paths, Podman* podman) {
  const std::optional<ContainerInfo> info = podman->Inspect(paths.agent_container());
  if (!info || info->name != paths.agent_container()) return std::nullopt;
  const auto wire = info->labels.find(kWireLabel);
  const std::string version = wire == info->labels.end() ? "0" : wire->second;
  const bool alive = Alive(*info);
  if (alive && version == std::to_string(kWireVersion)) return info->id;
  if (!alive) {
    podman->Remove(info->id);
    return std::nullopt;
  }
  LogInfo("an agent of another version keeps serving its own clients", {{"wire_version", version}});
  podman->Rename(info->id, paths.agent_container() + "-v" + version);
  return std::nullopt;
}

std::string Launch(const Paths& paths, const LaunchOptions& options) {
  EnsureSeen(paths);
  Podman podman(paths.podman_socket());
  const std::string cells = EnsureCells(paths);
  std::string id;
  {
    const AsUser user(paths);
    if (options.check_config) options.check_config(paths);
    if (const auto alive = ClearName(paths, &podman)) {
      id = *alive;  // another launcher has just started it
    } else {
      LogInfo("starting the agent");
      ::unlink(paths.agent_socket.c_str());
      id = podman.Create(AgentSpec(paths, options, cells));
      try {
        podman.Start(id);
      } catch (const Error& error) {
        // Nothing of it has run, so the cause is the host.
        podman.Remove(id);
        throw Refused("the agent could not be started: " + std::string(error.what()));
      }
    }
  }
  WaitForAgent(paths, podman, id);
  return paths.agent_socket;
}

// Removes what ended containers left in the run directory. REQUIRES: AsUser.
void RemoveSockets(const Paths& paths) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  ::unlink(paths.agent_socket.c_str());
  for (const auto& entry : fs::directory_iterator(paths.run_dir, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("agent-") && name.ends_with(".sock")) fs::remove(entry.path(), ignored);
  }
  for (const auto& entry : fs::directory_iterator(paths.worker_dir(), ignored))
    fs::remove_all(entry.path(), ignored);
}

// The file of certificates that the host trusts; "": there is none at a known path. Only the
// launcher can see the host's files.
std::string CaBundle() {
  for (const char* file : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file, ignored)) return file;
  }
  return {};
}

// Inside, Podman's user is root: the files of run_dir and state_dir are its own, and it needs no
// capability.
Paths Inside(Paths paths) {
  paths.service_user = false;
  paths.uid = paths.gid = 0;
  return paths;
}

}  // namespace

std::string AgentSpec(const Paths& paths, const LaunchOptions& options, const std::string& cells) {
  const auto bind = [](const std::string& source, const std::string& destination,
                       const char* mode) {
    return Json{{"type", "bind"},
                {"source", source},
                {"destination", destination},
                {"options", {"bind", mode, "nosuid", "nodev", "private"}}};
  };
  Json mounts = {bind(paths.runtime_dir(options.runtime_id), "/opt/hutch", "ro"),
                 bind(paths.run_dir, paths.run_dir, "rw"),
                 bind(paths.state_dir, paths.state_dir, "rw"),
                 Json{{"type", "tmpfs"},
                      {"destination", "/tmp"},
                      {"options", {"rw", "nosuid", "nodev", "size=64m"}}}};
  if (paths.agent_socket_dir() != paths.run_dir) {
    mounts.push_back(bind(paths.agent_socket_dir(), paths.agent_socket_dir(),
                          "rw"));  // $HUTCH_SOCKET is elsewhere
  }
  if (!cells.empty()) {
    mounts.push_back(bind(cells, kCellsInside, "rw"));
    mounts.back()["options"].push_back(
        "noexec");  // as the host's own mount: it cannot be taken off
  }
  Json spec = {
      {"name", paths.agent_container()},
      {"image", BaseReference(options.base_id)},
      {"command", {"/opt/hutch/hutch-agent", "--serve"}},
      {"env",
       {{"HUTCH_PATHS", Inside(paths).ToText()},
        {"HUTCH_BASE_ID", options.base_id},
        {"HUTCH_RUNTIME_ID", options.runtime_id},
        {"HUTCH_CA_BUNDLE", CaBundle()},
        {"LD_LIBRARY_PATH", "/opt/hutch/lib"},
        {"HOME", "/tmp"}}},
      {"labels",
       {{"hutch.instance", paths.instance_label()},
        {kWireLabel, std::to_string(kWireVersion)},
        {"hutch.role", "agent"}}},
      {"user", "0:0"},
      {"cap_drop", {"all"}},
      {"no_new_privileges", true},
      {"read_only_filesystem", true},
      {"netns", {{"nsmode", "none"}}},
      {"use_image_hosts", true},
      {"use_image_resolve_conf", true},
      {"selinux_opts", {"disable"}},
      {"mounts", mounts},
      {"r_limits", {{{"type", "nofile"}, {"soft", 4096}, {"hard", 4096}}}},
      {"restart_policy", "on-failure"},
      {"restart_tries", 5},
      {"log_configuration", {{"driver", "k8s-file"}, {"size", 1 << 20}}},
      {"systemd", "false"},
      {"sdnotifyMode", "ignore"},
      {"image_volume_mode", "ignore"},
      {"stop_timeout", kAgentGraceSec},
      {"umask", "0077"},
      {"volatile", true},
  };
  if (const std::string level = LogLevelSetting(); !level.empty()) spec["env"]["HUTCH_LOG"] = level;
  if (!cells.empty()) {
    spec["env"]["HUTCH_CELLS"] = kCellsInside;
    // A slot moves from its container's cgroup into one of ours, so the agent, which opens that
    // one, must see both. No worker does.
    spec["cgroupns"] = {{"nsmode", "host"}};
  }
  return spec.dump();
}

Paths PrepareHost() {
  FindPodman();  // before anything is changed on the host
  EnsureServiceUser();
  return FindPaths();
}

std::string Start(const LaunchOptions& options) {
  Check(options);
  const Paths paths = PrepareHost();
  if (Try(paths) == Listener::kYes) return paths.agent_socket;
  const Fd lock = LockStart(paths);
  pid_t listener = 0;
  switch (Try(paths, &listener)) {
    case Listener::kYes:
      return paths.agent_socket;  // another launcher was quicker
    case Listener::kSilent:
      EndSilent(paths, listener);
      break;
    case Listener::kNobody:
    case Listener::kAbsent:
      break;
  }
  InstallRuntime(paths, options);  // first: a disk that is too small is found before anything runs
  EnsureService(paths);
  InstallBase(paths, options);
  return Launch(paths, options);
}

void Install(const LaunchOptions& options) {
  Check(options);
  const Paths paths = PrepareHost();
  const Fd lock = LockStart(paths);
  InstallRuntime(paths, options);
  EnsureService(paths);
  if (options.gvisor) EnsureGvisor(paths);
  InstallBase(paths, options);
}

void Foreground(const LaunchOptions& options) {
  Check(options);
  const Paths paths = PrepareHost();
  if (Try(paths) == Listener::kYes) {
    throw Error(Code::kInvalidArgument, "an agent runs already at " + paths.agent_socket,
                "stop it first: hutch agent stop");
  }
  Install(options);
  const std::string runtime = paths.runtime_dir(options.runtime_id);
  const std::string cells = EnsureCells(paths);
  // In Podman's user namespace uids are what they are in the agent's container: our own user is 0,
  // and a worker's uid is the one it was given.
  ExecPodman(paths, {"unshare", "env", "HUTCH_PATHS=" + Inside(paths).ToText(),
                     "HUTCH_BASE_ID=" + options.base_id, "HUTCH_RUNTIME_ID=" + options.runtime_id,
                     "HUTCH_CA_BUNDLE=" + CaBundle(), "HUTCH_CELLS=" + cells,
                     "HUTCH_LOG=" + LogLevelSetting(), "LD_LIBRARY_PATH=" + runtime + "/lib",
                     runtime + "/hutch-agent", "--serve"});
}

void Stop(bool force) {
  FindPodman();
  Paths paths;
  try {
    paths = FindPaths();
  } catch (const Error& error) {
    if (::geteuid() == 0 && error.code() == Code::kPlatform)
      return;  // no service user: nothing of ours
    throw;
  }
  {
    const AsUser user(paths);
    if (::access(paths.run_dir.c_str(), F_OK) != 0) return;
  }
  const Fd lock = LockStart(paths);
  EnsureService(paths);  // containers can be removed only through it
  bool others = false;
  {
    const AsUser user(paths);
    Podman podman(paths.podman_socket());
    Podman gvisor(paths.gvisor_socket());
    std::vector<ContainerInfo> ours = podman.List("hutch.instance=" + paths.instance_label());
    // The agent first: otherwise it would replace the workers that are removed.
    const auto is_agent = [](const ContainerInfo& info) {
      return HasLabel(info, "hutch.role", "agent");
    };
    std::stable_partition(ours.begin(), ours.end(), is_agent);
    for (const ContainerInfo& info : ours) {
      if (!force && is_agent(info) && info.state == "running") {
        podman.Kill(info.id, "TERM");
        podman.WaitExit(info.id, std::chrono::seconds(kAgentGraceSec));
      }
      (IsOnGvisor(info.labels) && gvisor.Ping(kGrace) ? gvisor : podman).Remove(info.id);
    }
    others = !podman.List("").empty();
    RemoveSockets(paths);
  }
  StopCells(paths);
  StopService(paths, others);
}

std::string Doctor() {
  std::optional<Paths> paths;
  std::optional<PodmanVersion> service;
  std::string place_error;
  std::string place_fix;
  bool place_is_made = false;
  try {
    paths = FindPaths();
  } catch (const Error& error) {  // a missing place is a finding here, not a failure
    place_error = error.what();
    place_fix = error.hint();
    place_is_made = ::geteuid() == 0 && error.code() == Code::kPlatform;
  }
  if (paths) {
    const AsUser user(*paths);
    const Podman podman(paths->podman_socket());
    try {
      if (podman.Ping(milliseconds(2000))) service = podman.Version();
    } catch (const Error&) {
      // A service that does not say what it is counts as none: the checks then ask the host itself.
    }
  }
  HostFacts facts = InspectHost(paths, service);
  facts.place_error = place_error;
  facts.place_fix = place_fix;
  facts.place_is_made = place_is_made;
  return ChecksToJson(CheckHost(facts));
}

void PodmanCommand(const std::vector<std::string>& args) {
  const Paths paths = PrepareHost();
  {
    const Fd lock = LockStart(paths);
    EnsureService(paths);
  }
  ExecPodman(paths, args);
}

}  // namespace hutch
