// SPDX-License-Identifier: Apache-2.0

// hutch-warden: PID 1 of a worker's container. Static, because it runs in whatever image the worker
// has.
//
// Where the agent and the interpreter are comes in HUTCH_* variables (pool/ writes them), and stays
// here. What the worker is for comes from the agent later, over the socket (kConfigure), so that no
// environment block shows it.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "images/warden/namespace_probe.h"
#include "images/warden/warden.h"

namespace {

const char* Text(const char* name, const char* otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : text;
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
  syscall(SYS_close_range, 3, hutch::kLastFd, 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO);
  BurnPid();

  hutch::Settings settings;
  settings.namespaces = hutch::TryNamespaces();
  settings.socket = getenv("HUTCH_SOCKET");
  settings.token = getenv("HUTCH_TOKEN");
  settings.python = Text("HUTCH_PYTHON", "/opt/python/bin/python3");
  settings.zygote = "/opt/hutch/worker/zygote.py";
  settings.any_environment = getenv("HUTCH_ANY_ENVIRONMENT") != nullptr;
  if (settings.socket == nullptr || settings.token == nullptr) {
    fputs(
        "hutch-warden: HUTCH_SOCKET and HUTCH_TOKEN are not set; it is started by hutch-agent, in "
        "a container\n",
        stderr);
    return 2;
  }
  static hutch::Warden warden(settings);
  return warden.Run();
}
