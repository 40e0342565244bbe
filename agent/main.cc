// SPDX-License-Identifier: Apache-2.0

// hutch-agent: the agent itself (--serve, --foreground), its egress process (--egress), and the
// launcher's commands, which start, stop and examine it.
//
// Theory of operation. `--start`, run by a client, brings up Podman's service, the base image and
// the worker files, and creates the container `hutch-agent`, in which this same program runs with
// `--serve`: one thread with an event loop that owns everything (connections, leases, pools,
// workers), and a few more threads for what blocks (libpod, builds). It holds no capability,
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
#include "launcher/subprocess.h"
#include "loop/descriptors.h"
#include "wire/channel.h"
#include "wire/error.h"
#include "wire/json_text.h"
#include "wire/log.h"

namespace hutch {
namespace {

using nlohmann::json;

constexpr int kBacklog = 256;
constexpr auto kDrainOnSignal = std::chrono::seconds(5);

constexpr char kUsage[] =
    "usage: hutch-agent COMMAND [OPTIONS]\n"
    "\n"
    "The agent of Hutch. `hutch` and the package start it; nobody has to run it by hand.\n"
    "\n"
    "  --serve                  run the agent in this process, inside its container\n"
    "  --foreground LAUNCH      the same without a container\n"
    "  --start LAUNCH           start the agent in its container, unless it runs\n"
    "  --install LAUNCH         only prepare what --start needs\n"
    "  --stop [--force yes]     stop the agent\n"
    "  --check                  check agent.toml, as the agent does when it starts\n"
    "  --doctor                 check this host, and print the result as JSON\n"
    "  --podman -- ARGS         run podman on the agent's storage\n"
    "  --egress --socket PATH --ca PEM\n"
    "                           run the egress process, inside its container\n"
    "\n"
    "LAUNCH: --package DIR --python EXE --cloudpickle DIR --uv EXE --base-id HEX\n"
    "        --runtime-id HEX [--gvisor yes]\n";

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
  // Before any thread is made: threads inherit the mask, so the signals are read here only.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::prctl(PR_SET_DUMPABLE, 0);
  // When conmon is stopped nobody reads the log. Losing a line is better than blocking the agent.
  struct stat log{};
  if (::fstat(STDERR_FILENO, &log) == 0 && S_ISFIFO(log.st_mode))
    ::fcntl(STDERR_FILENO, F_SETFL, ::fcntl(STDERR_FILENO, F_GETFL) | O_NONBLOCK);
  ::umask(022);
  RaiseDescriptorLimit();
  const Paths paths = FindPaths();
  Cgroups cgroups(Variable("HUTCH_CELLS"));
  cgroups.Prove();  // forks, so it runs while there is one thread
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
  std::puts(JsonText(result).c_str());
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
    if (i + 1 == args.size()) throw Error(Code::kInvalidArgument, args[i] + " needs a value");
    flags[args[i]] = args[i + 1];
  }
  const LaunchOptions options{
      flags["--package"], flags["--python"], flags["--cloudpickle"], flags["--uv"],
      flags["--base-id"], flags["--runtime-id"], flags["--gvisor"] == "yes",
      // Reports a mistake in agent.toml to the caller, not only to the agent's log.
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
  if (verb == "--check") {
    const Paths paths = FindPaths();
    const AsUser user(paths);
    LoadConfig(ConfigFile(paths));
    return PrintResult({{"ok", true}});
  }
  if (verb == "--doctor") {
    std::puts(Doctor().c_str());
    return 0;
  }
  const bool asked = verb == "--help";
  std::fputs(kUsage, asked ? stdout : stderr);
  return asked ? 0 : 2;
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
    if (!args.empty() && args[0] == "--podman") {  // as `hutch` says it: it became this program
      const std::string hint = error.hint().empty() ? "" : "\n  hint: " + error.hint();
      std::fprintf(stderr, "hutch: %s%s\n", error.what(), hint.c_str());
      return 3;
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
