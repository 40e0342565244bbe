// SPDX-License-Identifier: Apache-2.0

#include "pool/confinement.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "podman/mounts.h"
#include "wire/cell_frame.h"
#include "wire/egress.h"
#include "wire/error.h"

namespace hutch {

using nlohmann::json;

namespace {

constexpr unsigned kNoFile =
    1024;  // open files for each process of a cell: bounds kernel memory in sockets and pipes
// Of warden, zygote and slots. The kernel counts the descriptors that are on their way in sockets
// for a whole uid, and lets a process send more only while they are fewer than its own limit:
// cells, stopped at theirs, must not keep the warden from making others.
constexpr unsigned kWorkerNoFile = 4096;

json Bind(const std::string& from, const std::string& to, bool writable) {
  json options = {"rbind", "nosuid", "nodev", writable ? "rw" : "ro"};
  return {{"type", "bind"}, {"source", from}, {"destination", to}, {"options", options}};
}

// Of the caller's files: that directory alone, without what else is mounted below it, for "ro"
// would not hold there. Nothing that is written there is executed.
json BindShown(const std::string& from, const MountSpec& mount) {
  json options = {"bind", "private", "nosuid", "nodev", mount.writable ? "rw" : "ro"};
  if (mount.writable) options.push_back("noexec");
  return {
      {"type", "bind"}, {"source", from}, {"destination", mount.destination}, {"options", options}};
}

// `uid` inside is the user whose Podman it is, 0 where Podman is; the ids below it come from that
// user's subordinate ones, and there are no others.
json MapCaller(unsigned uid) {
  const json ids = {{{"container_id", 0}, {"host_id", 1}, {"size", uid}},
                    {{"container_id", uid}, {"host_id", 0}, {"size", 1}}};
  return {{"UIDMap", ids}, {"GIDMap", ids}, {"HostUIDMapping", false}, {"HostGIDMapping", false}};
}

// Nothing of a process can be written there: what makes a call go first when the host's memory is
// short stays.
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

// Processes of a worker's uid. The cells' own limit is their policy's; this one bounds a worker
// whose packages fork. More than the user may have themselves cannot be asked for: on a small host
// that is less.
uint64_t MostProcesses() {
  rlimit own{};
  const bool known = ::getrlimit(RLIMIT_NPROC, &own) == 0;
  return std::min<uint64_t>(32768, known ? own.rlim_max : 4096);
}

// Programs that heed them reach wildcards, networks and "*" by the proxy, as those that speak
// SOCKS5 on the same port can. By HTTP for every kind: a client that is told of SOCKS and has no
// library for it (httpx) refuses to start at all. What `env` says stands.
void AddProxy(const EgressPlan& plan, const PoolSpec& pool,
              std::map<std::string, std::string>* env) {
  const std::string proxy =
      std::string("http://") + kProxyAddress + ":" + std::to_string(kProxyPort);
  std::string direct = "localhost,127.0.0.1,::1";
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

// The lines that a slot makes its listeners and its /etc/hosts of (images/worker/network.h).
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

// As MountLines(), for directories of the image itself.
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

}  // namespace

std::string WorkerConfig(const PoolSpec& pool, const WorkerLaunch& launch) {
  std::string config;
  const auto add = [&config](const char* key, const std::string& value) {
    config.append(key).append("=").append(value).push_back('\0');
  };
  add("HUTCH_MEMORY_KB", std::to_string(pool.memory_mb * 1024));
  // The kernel counts other things than the warden (page tables and sockets, not the zygote's
  // pages): where it does, the warden must not be the stricter one of the two.
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
  if (launch.single_cell) add("HUTCH_BARE", "1");
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
  json mounts = json::array();
  mounts.push_back(Bind(launch.runtime_dir, "/opt/hutch", false));
  // Read-only to a worker that owns it.
  mounts.push_back(Bind(launch.socket_dir, kWorkerSocketDir, !launch.as_caller));
  if (!launch.environment_dir.empty())
    mounts.push_back(Bind(launch.environment_dir, "/opt/env", false));
  if (launch.any_environment) {
    // The warden alone ever sees the first, and mounts one tree of it over the second
    // (images/warden/environments.h).
    mounts.push_back(Bind(paths.environment_dir(), "/opt/environments", false));
    mounts.push_back(Bind(launch.socket_dir + "/" + kNoPackages, "/opt/env", false));
  }
  if (launch.modules || launch.any_environment)
    mounts.push_back(Bind(launch.socket_dir + "/" + kModulesName, "/opt/modules", false));
  for (const MountSpec& mount : launch.mounts)
    mounts.push_back(BindShown(ShownPath(paths, mount), mount));
  if (launch.single_cell) {
    for (const char* path : {"/work", "/tmp", "/dev/shm"})
      mounts.push_back(Scratch(path, launch.scratch_mb));
    if (!launch.gvisor) mounts.push_back(ReadOnlyProc());
  } else {
    mounts.push_back(Scratch("/tmp", 16));
  }

  json env = {
      {"HUTCH_SOCKET", std::string(kWorkerSocketDir) + "/" + kWorkerSocketName},
      {"HUTCH_TOKEN", launch.token},
      {"HUTCH_PYTHON", launch.base.python},
  };
  if (launch.any_environment) env["HUTCH_ANY_ENVIRONMENT"] = "1";

  json spec = {
      {"name", launch.name},
      {"image", launch.image},
      {"entrypoint", {"/opt/hutch/hutch-warden"}},
      {"command", json::array()},
      {"work_dir", "/"},
      {"image_volume_mode", "ignore"},  // a writable place that no limit counts
      {"env", env},
      {"labels",
       {{"hutch.instance", paths.instance_label()},
        {"hutch.role", "worker"},
        {"hutch.generation", launch.generation}}},
      {"mounts", mounts},
      // Any uid but 0: a process mapped to the container's root may not make a user namespace of
      // its own.
      {"user", user + ":" + user},
      {"cap_drop", {"ALL"}},
      {"no_new_privileges", true},
      {"read_only_filesystem", true},
      // Default-deny; what it lets through is what the warden, slots and cells need.
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
      {"healthconfig", {{"Test", {"NONE"}}}},  // whatever the image says
      {"r_limits",
       {Limit("core", 0), Limit("nofile", kWorkerNoFile), Limit("nproc", MostProcesses())}},
      {"stop_timeout", 0},
      {"sdnotifyMode", "ignore"},
      {"volatile", true},
  };
  if (launch.as_caller) {
    spec["userns"] = {{"nsmode", "private"}};
    spec["idmappings"] = MapCaller(launch.uid);
  }
  // A cell mounts a fresh /proc in its own PID namespace, which the kernel refuses while parts of
  // the outer one are masked. The cell masks them again.
  if (!launch.single_cell) spec["unmask"] = {"ALL"};
  // What else of the host a cell would have masked (images/worker/slot.cc); Podman has the rest.
  if (launch.single_cell && !launch.gvisor) {
    spec["mask"] = {"/proc/cmdline",  "/proc/config.gz",  "/proc/kallsyms",   "/proc/key-users",
                    "/proc/kmsg",     "/proc/kpagecount", "/proc/kpageflags", "/proc/locks",
                    "/proc/pressure", "/proc/vmallocinfo"};
  }
  // Before anything of the host. A cell's slot sees to that itself.
  if (launch.single_cell) spec["oom_score_adj"] = 800;
  if (launch.gvisor) spec["labels"][kGvisorLabel] = "1";
  return spec.dump();
}

}  // namespace hutch
