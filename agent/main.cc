// SPDX-License-Identifier: Apache-2.0

// hutch-agent: the agent itself (--serve, --foreground) and the launcher's verbs that make it be
// there.
//
// Theory of operation. `--start`, run by a client, brings up Podman's service, the base image and
// the worker files, and creates the container `hutch-agent`, in which this same program runs with
// `--serve`: one thread with an event loop that owns everything (connections, leases, pools,
// workers), and a few threads beside it for what blocks (libpod, builds). It holds no capability,
// has no network, and reaches the host only through its run and state directories, where Podman's
// socket is. `--foreground` is the same without a container.
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/audit.h"
#include "agent/broker.h"
#include "agent/config.h"
#include "agent/egress/server.h"
#include "agent/server.h"
#include "launcher/launch.h"
#include "loop/descriptors.h"
#include "wire/channel.h"
#include "wire/error.h"
#include "wire/log.h"

namespace hutch {
namespace {

using nlohmann::json;

constexpr int kBacklog = 256;
constexpr auto kDrainOnSignal = std::chrono::seconds(5);

constexpr char kUsage[] =
    "usage: hutch-agent --serve | --foreground\n"
    "       hutch-agent --start | --install --package DIR --python EXE --cloudpickle DIR --uv EXE\n"
    "                   --base-id HEX --runtime-id HEX [--gvisor yes]\n"
    "       hutch-agent --stop | --doctor | --podman -- ARGS\n"
    "       hutch-agent --egress --socket PATH --ca PEM\n";

std::string Generation() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  char text[40];
  std::snprintf(text, sizeof text, "%llx%05lx", static_cast<unsigned long long>(now.tv_sec),
                now.tv_nsec >> 10);
  return text;
}

std::string Variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

int Serve() {
  // Before any thread is made: each inherits the mask, so the signals are read here and nowhere
  // else.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::prctl(PR_SET_DUMPABLE, 0);
  // Nobody reads it where conmon is stopped: a line that is lost is better than an agent that
  // waits.
  struct stat log{};
  if (::fstat(STDERR_FILENO, &log) == 0 && S_ISFIFO(log.st_mode))
    ::fcntl(STDERR_FILENO, F_SETFL, ::fcntl(STDERR_FILENO, F_GETFL) | O_NONBLOCK);
  ::umask(022);
  RaiseDescriptorLimit();
  const Paths paths = FindPaths();
  Cgroups cgroups(Variable("HUTCH_CELLS"));
  cgroups.Prove();  // it forks: while there is one thread
  LogInfo("the enforcement of limits is chosen",
          {{"by", cgroups.enforcement()}, {"why", cgroups.why()}});
  const AgentConfig config = LoadConfig(ConfigFile(paths));
  Podman podman(paths.podman_socket());
  EnvironmentStore store(podman, paths);
  Loop loop;
  AuditLog audit(loop, paths.state_dir + "/audit", config.audit);
  Broker broker(loop, podman, store, paths, Generation());
  broker.UseCgroups(cgroups);
  broker.WriteAuditTo(&audit);
  broker.ReadConfigFrom(ConfigFile(paths));
  broker.Configure(config);

  const Fd signal_fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  loop.Add(signal_fd.get(), EPOLLIN, [&](uint32_t) {
    signalfd_siginfo info;
    if (::read(signal_fd.get(), &info, sizeof info) != sizeof info) return;
    if (info.ssi_signo == SIGHUP) {
      try {
        broker.Reload();
      } catch (const Error& error) {
        LogError("the new configuration is refused, the previous one stays in effect",
                 {{"why", error.what()}});
      }
      return;
    }
    LogInfo("draining", {{"signal", info.ssi_signo}});
    broker.Stop(kDrainOnSignal, [&] { loop.Stop(); });
  });

  store.Sweep();
  const Server server(loop, broker, ListenAt(paths.agent_socket, kBacklog),
                      std::string("hutch-agent ") + kHutchVersion);
  broker.KeepSpare(Variable("HUTCH_BASE_ID"), Variable("HUTCH_RUNTIME_ID"));
  LogInfo("listening", {{"socket", paths.agent_socket}, {"version", kHutchVersion}});
  loop.Run();
  ::unlink(paths.agent_socket.c_str());
  LogInfo("stopped");
  return 0;
}

int PrintResult(const json& result) {
  std::puts(result.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  return result.value("ok", false) ? 0 : 1;
}

int Main(const std::vector<std::string>& args) {
  const std::string verb = args.empty() ? "" : args[0];
  if (verb == "--serve") {
    StartLog("agent");
  } else if (verb == "--egress") {
    StartLog("egress");
  } else {
    StartLog("launcher", LogStyle::kForPeople);
  }
  if (verb == "--podman") {
    const size_t skip = args.size() > 1 && args[1] == "--" ? 2 : 1;
    PodmanCommand({args.begin() + static_cast<std::ptrdiff_t>(skip), args.end()});
  }
  std::map<std::string, std::string> flags;
  for (size_t i = 1; i < args.size(); i += 2) {
    if (i + 1 == args.size()) throw Error(Code::kInvalidArgument, args[i] + " wants a value");
    flags[args[i]] = args[i + 1];
  }
  const LaunchOptions options{
      flags["--package"], flags["--python"], flags["--cloudpickle"], flags["--uv"],
      flags["--base-id"], flags["--runtime-id"], flags["--gvisor"] == "yes",
      // A mistake in it is reported to the caller, not only to the agent's log.
      [](const Paths& paths) { LoadConfig(ConfigFile(paths)); }};
  if (verb == "--serve") return Serve();
  if (verb == "--foreground") Foreground(options);
  if (verb == "--egress")
    return RunEgress({flags["--socket"], Variable("HUTCH_TOKEN"), flags["--ca"]});
  if (verb == "--start") return PrintResult({{"ok", true}, {"socket", Start(options)}});
  if (verb == "--install") {
    Install(options);
    return PrintResult({{"ok", true}});
  }
  if (verb == "--stop") {
    Stop(flags["--force"] == "yes");
    return PrintResult({{"ok", true}});
  }
  if (verb == "--doctor") {
    std::puts(Doctor().c_str());
    return 0;
  }
  std::fputs(kUsage, stderr);
  return 2;
}

}  // namespace
}  // namespace hutch

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    return hutch::Main(args);
  } catch (const hutch::Error& error) {
    if (!args.empty() &&
        (args[0] == "--serve" || args[0] == "--foreground" || args[0] == "--egress")) {
      hutch::LogError(error.what(), {{"hint", error.hint()}});
      return 1;
    }
    return hutch::PrintResult({{"ok", false},
                               {"code", hutch::CodeName(error.code())},
                               {"message", error.what()},
                               {"hint", error.hint()}});
  } catch (const std::exception& error) {
    hutch::LogError(error.what());
    return 1;
  }
}
