// hutch-warden: PID 1 of a worker's container. Static, because it runs in whatever image the worker
// has.
//
// All settings come in HUTCH_* variables (pool/ writes them). Socket and token stay here; the rest
// is passed on to the zygote over its control socket, so that no environment block shows it.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/warden.h"

extern char** environ;

namespace {

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

const char* Text(const char* name, const char* otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : text;
}

// Gathers what the zygote may know into one payload of KEY=VALUE NUL.
size_t GatherConfig(char* out, size_t capacity) {
  size_t used = 0;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (strncmp(*variable, "HUTCH_", 6) != 0 || strncmp(*variable, "HUTCH_SOCKET=", 13) == 0 ||
        strncmp(*variable, "HUTCH_TOKEN=", 12) == 0) {
      continue;
    }
    const size_t size = strlen(*variable) + 1;
    if (used + size > capacity) continue;
    memcpy(out + used, *variable, size);
    used += size;
  }
  return used;
}

// A cell's user process is pid 2 there. No zygote and no slot may be pid 2 here: libraries that ask
// getpid() whether they were forked (OpenSSL does, before it trusts its random state) would not
// notice.
void BurnPid() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  if (pid > 0) waitpid(pid, nullptr, 0);
}

}  // namespace

int main() {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  syscall(SYS_close_range, 3, ~0u, 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO);
  BurnPid();

  hutch::Settings settings;
  settings.socket = getenv("HUTCH_SOCKET");
  settings.token = getenv("HUTCH_TOKEN");
  settings.python = Text("HUTCH_PYTHON", "/opt/python/bin/python3");
  settings.zygote = Text("HUTCH_ZYGOTE", "/opt/hutch/worker/zygote.py");
  settings.cpus = Text("HUTCH_CPUS", "1");
  settings.memory_kb = Number("HUTCH_MEMORY_KB", settings.memory_kb);
  // A package, or the caller's setup function, may load much; it may not eat the host.
  settings.worker_kb =
      Number("HUTCH_WORKER_KB", std::max<uint64_t>(4 << 20, 2 * settings.memory_kb));
  if (settings.socket == nullptr || settings.token == nullptr) {
    fputs(
        "hutch-warden: HUTCH_SOCKET and HUTCH_TOKEN are not set; it is started by hutch-agent, in "
        "a container\n",
        stderr);
    return 2;
  }
  static char config[32 * 1024];
  const size_t config_size = GatherConfig(config, sizeof config);
  static hutch::Warden warden(settings, config, config_size);
  return warden.Run();
}
