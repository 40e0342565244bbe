// SPDX-License-Identifier: Apache-2.0

#include "pool/confinement.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "environments/node.h"
#include "podman/mounts.h"
#include "wire/cell_frame.h"
#include "wire/egress_rules.h"
#include "wire/error.h"

namespace hutch {

using nlohmann::json;

namespace {

constexpr unsigned kNoFile =
    1024;  // open files for each process of a cell: bounds kernel memory in sockets and pipes
// Open files of the warden, the zygote and slots. The kernel counts the descriptors that lie unread
// in sockets for a whole uid, and lets a process send more only while they are fewer than its own
// limit: cells, which have a lower limit, must not keep the warden from making others.
constexpr unsigned kWorkerNoFile = 4096;

json Bind(const std::string& from, const std::string& to, bool writable) {
  json options = {"rbind", "nosuid", "nodev", writable ? "rw" : "ro"};
  return {{"type", "bind"}, {"source", from}, {"destination", to}, {"options", options}};
}

// Binds a directory of the caller's files alone, without other file systems mounted below it, where
// "ro" would not hold. Files that are written there cannot be executed.
json BindShown(const std::string& from, const MountSpec& mount) {
  json options = {"bind", "private", "nosuid", "nodev", mount.writable ? "rw" : "ro"};
  if (mount.writable) options.push_back("noexec");
  return {
      {"type", "bind"}, {"source", from}, {"destination", mount.destination}, {"options", options}};
}

// Maps `uid` in the container to the user who runs Podman, who is 0 in Podman's own namespace. The
// ids below it are mapped to that user's subordinate ids; no others are mapped.
json MapCaller(unsigned uid) {
  const json ids = {{{"container_id", 0}, {"host_id", 1}, {"size", uid}},
                    {{"container_id", uid}, {"host_id", 0}, {"size", 1}}};
  return {{"UIDMap", ids}, {"GIDMap", ids}, {"HostUIDMapping", false}, {"HostGIDMapping", false}};
}

// Read-only, so that a call cannot change its own oom_score_adj, by which it is killed first when
// the host's memory is short.
json ReadOnlyProc() {
  const json options = {"nosuid", "nodev", "noexec", "ro"};
  return {{"type", "proc"}, {"source", "proc"}, {"destination", "/proc"}, {"options", options}};
}

json Scratch(const std::string& path, uint64_t mb) {
  return {{"type", "tmpfs"},
          {"source", "tmpfs"},
          {"destination", path},
          {"options", {"nosuid", "nodev", "size=" + std::to_string(mb) + "m", "mode=1777"}}};
}

json Limit(const char* type, uint64_t value) {
  return {{"type", type}, {"hard", value}, {"soft", value}};
}

// The limit of processes for a worker's uid. It bounds a worker whose packages fork; cells have the
// limit of their policy. It cannot exceed the limit of the user, which is lower on a small host.
uint64_t MostProcesses() {
  rlimit own{};
  const bool known = ::getrlimit(RLIMIT_NPROC, &own) == 0;
  return std::min<uint64_t>(32768, known ? own.rlim_max : 4096);
}

// What a program's own servers are called, as clients compare it: some know a network by its
// prefix, others compare texts. An address in brackets, which urllib would need, httpx refuses to
// start with.
constexpr char kOwnNames[] = "localhost,cell,127.0.0.0/8,127.0.0.1,0.0.0.0,::1,::";

// Sets the variables by which programs reach wildcards, networks and "*" through the proxy.
// Programs that speak SOCKS5 can do so on the same port, but the variables name HTTP for every
// scheme: a client that reads of SOCKS and has no library for it (httpx) does not start. Variables
// that `env` has already are kept.
void AddProxy(const EgressPlan& plan, const PoolSpec& pool,
              std::map<std::string, std::string>* env) {
  const std::string proxy =
      std::string("http://") + kProxyAddress + ":" + std::to_string(kProxyPort);
  std::string direct = kOwnNames;
  for (const SecretRule& secret : pool.secrets) direct.append(",").append(secret.host);
  if (!plan.proxy) return;
  for (const char* name : {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}) {
    std::string lower = name;
    for (char& c : lower) c = c == '_' ? c : static_cast<char>(c - 'A' + 'a');
    const std::string& value = lower == "no_proxy" ? direct : proxy;
    env->emplace(name, value);
    env->emplace(lower, value);
  }
}

// The lines from which a slot makes its listeners and its /etc/hosts (images/worker/network.h).
std::string ListenerLines(const EgressPlan& plan) {
  std::string lines;
  const auto add = [&lines](uint64_t number, const std::string& address, uint16_t port,
                            const std::string& name) {
    lines.append(std::to_string(number)).append(" ").append(address).append(" ");
    lines.append(std::to_string(port)).append(" ").append(name).append("\n");
  };
  for (size_t i = 0; i < plan.targets.size(); ++i) {
    const EgressTarget& target = plan.targets[i];
    add(i, target.address, target.port, target.host);
  }
  if (plan.proxy) add(kProxyListener, kProxyAddress, kProxyPort, "-");
  return lines;
}

// As MountLines(), for directories of the image.
std::string ShownLines(const std::vector<std::string>& paths) {
  std::string lines;
  for (const std::string& path : paths) lines += "ro\t0\t0\t" + path + "\n";
  return lines;
}

std::string Joined(const std::vector<std::string>& paths) {
  std::string joined;
  for (const std::string& path : paths) joined += (joined.empty() ? "" : ":") + path;
  return joined;
}

json MountsOf(const Paths& paths, const WorkerLaunch& launch) {
  json mounts = json::array();
  mounts.push_back(Bind(launch.runtime_dir, "/opt/hutch", false));
  // Read-only to a worker that owns it.
  mounts.push_back(Bind(launch.socket_dir, kWorkerSocketDir, !launch.as_caller));
  if (!launch.environment_dir.empty())
    mounts.push_back(Bind(launch.environment_dir, "/opt/env", false));
  if (!launch.node_dir.empty()) mounts.push_back(Bind(launch.node_dir, kNodeShown, false));
  if (launch.any_environment) {
    // Only the warden sees the first; it mounts one tree of it over the second
    // (images/warden/environments.h).
    mounts.push_back(Bind(paths.environment_dir(), "/opt/environments", false));
    mounts.push_back(Bind(launch.socket_dir + "/" + kNoPackages, "/opt/env", false));
  }
  if (launch.modules || launch.any_environment)
    mounts.push_back(Bind(launch.socket_dir + "/" + kModulesName, "/opt/modules", false));
  for (const MountSpec& mount : launch.mounts)
    mounts.push_back(BindShown(ShownPath(paths, mount), mount));
  // As a slot shows them (images/worker/slot.cc); a mount of the caller's has the place.
  const auto is_there = [](const MountSpec& mount) { return mount.destination == "/node_modules"; };
  if (launch.single_cell && launch.node_modules &&
      std::none_of(launch.mounts.begin(), launch.mounts.end(), is_there)) {
    mounts.push_back(Bind(launch.environment_dir + "/.node/node_modules", "/node_modules", false));
  }
  if (launch.single_cell) {
    for (const char* path : {"/work", "/tmp", "/dev/shm"})
      mounts.push_back(Scratch(path, launch.scratch_mb));
    if (!launch.gvisor) mounts.push_back(ReadOnlyProc());
  } else {
    mounts.push_back(Scratch("/tmp", 16));
  }
  return mounts;
}

json EnvironmentOf(const WorkerLaunch& launch) {
  json env = {
      {"HUTCH_SOCKET", std::string(kWorkerSocketDir) + "/" + kWorkerSocketName},
      {"HUTCH_TOKEN", launch.token},
      {"HUTCH_PYTHON", launch.base.python},
  };
  if (launch.any_environment) env["HUTCH_ANY_ENVIRONMENT"] = "1";
  return env;
}

// What holds only for some workers: whose files they see, and how a container of one cell differs
// from one that has slots.
void AddKindOfWorker(const WorkerLaunch& launch, json* container) {
  json& spec = *container;
  if (launch.as_caller) {
    spec["userns"] = {{"nsmode", "private"}};
    spec["idmappings"] = MapCaller(launch.uid);
  }
  // A cell mounts a fresh /proc in its own PID namespace. The kernel refuses that while parts of
  // the outer /proc are masked, so they are not; the cell masks them in its own.
  if (!launch.single_cell) spec["unmask"] = {"ALL"};
  // What a cell masks beside Podman's own list (images/worker/slot.cc).
  if (launch.single_cell && !launch.gvisor) {
    spec["mask"] = {"/proc/cmdline",  "/proc/config.gz",  "/proc/kallsyms",   "/proc/key-users",
                    "/proc/kmsg",     "/proc/kpagecount", "/proc/kpageflags", "/proc/locks",
                    "/proc/pressure", "/proc/vmallocinfo"};
  }
  // It is killed before any process of the host when memory is short. Slots set that for cells.
  if (launch.single_cell) spec["oom_score_adj"] = 800;
  if (launch.gvisor) spec["labels"][kGvisorLabel] = "1";
}

}  // namespace

std::string WorkerConfig(const PoolSpec& pool, const WorkerLaunch& launch) {
  std::string config;
  const auto add = [&config](const char* key, const std::string& value) {
    config.append(key).append("=").append(value).push_back('\0');
  };
  add("HUTCH_MEMORY_KB", std::to_string(pool.memory_mb * 1024));
  // The kernel counts other memory than the warden does (page tables and sockets, not the zygote's
  // pages). Where the kernel limits, the warden must not be the stricter of the two.
  if (launch.cgroups)
    add("HUTCH_WATCH_KB", std::to_string(pool.memory_mb * 1024 * 5 / 4 + 32 * 1024));
  add("HUTCH_DISK_KB", std::to_string(pool.disk_mb * 1024));
  add("HUTCH_PIDS", std::to_string(pool.pids));
  add("HUTCH_CPUS", std::to_string(static_cast<int>(std::ceil(pool.cpus))));
  add("HUTCH_NOFILE", std::to_string(kNoFile));
  add("HUTCH_PRELOAD", launch.preload);
  std::map<std::string, std::string> env = pool.env;
  if (!launch.base.path.empty()) env.emplace("PATH", "/opt/env/bin:" + launch.base.path);
  if (HasNetwork(pool)) {
    const EgressPlan plan = PlanEgress(EgressRulesOf(pool), pool.secrets);
    add("HUTCH_EGRESS", ListenerLines(plan));
    AddProxy(plan, pool, &env);
  }
  try {
    add("HUTCH_ENV", json(env).dump());
  } catch (const json::exception&) {
    throw Error(Code::kInvalidArgument, "a variable of env= is not valid UTF-8");
  }
  if (launch.single_cell) add("HUTCH_SINGLE_CELL", "1");
  if (launch.gvisor) add("HUTCH_GVISOR", "1");
  if (launch.setup) add("HUTCH_SETUP", std::string(kWorkerSocketDir) + "/" + kSetupName);
  if (!launch.mounts.empty()) add("HUTCH_MOUNTS", MountLines(launch.mounts));
  if (!launch.base.shown.empty()) add("HUTCH_SHOWN", ShownLines(launch.base.shown));
  if (!launch.base.packages.empty()) add("HUTCH_PATH", Joined(launch.base.packages));
  if (launch.modules) add("HUTCH_MODULES", "/opt/modules");
  if (!launch.environment.empty()) add("HUTCH_ENVIRONMENT", launch.environment);
  if (config.size() > kMaxConfig)
    throw Error(Code::kInvalidArgument,
                "env=, mounts=, preload= and allow_network= are larger than 48 KiB in all");
  return config;
}

std::string WorkerContainerSpec(const Paths& paths, const WorkerLaunch& launch) {
  const std::string user = std::to_string(launch.uid);
  json spec = {
      {"name", launch.name},
      {"image", launch.image},
      {"entrypoint", {"/opt/hutch/hutch-warden"}},
      {"command", json::array()},
      {"work_dir", "/"},
      {"image_volume_mode", "ignore"},  // volumes are writable, and no limit counts them
      {"env", EnvironmentOf(launch)},
      {"labels",
       {{"hutch.instance", paths.instance_label()},
        {"hutch.role", "worker"},
        {"hutch.generation", launch.generation}}},
      {"mounts", MountsOf(paths, launch)},
      // Any uid but 0: a process that is mapped to the container's root may not make a user
      // namespace.
      {"user", user + ":" + user},
      {"cap_drop", {"ALL"}},
      {"no_new_privileges", true},
      {"read_only_filesystem", true},
      // Denies by default; allows what the warden, slots and cells need.
      {"seccomp_profile_path",
       launch.runtime_dir + (launch.gvisor ? "/seccomp-gvisor.json" : "/seccomp-worker.json")},
      {"netns", {{"nsmode", "none"}}},
      {"pidns", {{"nsmode", "private"}}},
      {"ipcns", {{"nsmode", "private"}}},
      {"utsns", {{"nsmode", "private"}}},
      {"cgroupns", {{"nsmode", "private"}}},
      {"hostname", launch.single_cell ? "cell" : "worker"},
      {"use_image_hosts", true},
      {"log_configuration", {{"driver", "none"}}},
      {"healthconfig", {{"Test", {"NONE"}}}},  // even if the image has a check
      {"r_limits",
       {Limit("core", 0), Limit("nofile", kWorkerNoFile), Limit("nproc", MostProcesses())}},
      {"stop_timeout", 0},
      {"sdnotifyMode", "ignore"},
      {"volatile", true},
  };
  AddKindOfWorker(launch, &spec);
  return spec.dump();
}

}  // namespace hutch
