// SPDX-License-Identifier: Apache-2.0

#include "launcher/subprocess.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>

#include "launcher/mount_view.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {

AsUser::AsUser(const Paths& paths) {
  if (::geteuid() == paths.uid || !paths.service_user) return;
  const int count = ::getgroups(0, nullptr);
  groups_.resize(static_cast<size_t>(std::max(count, 0)));
  if (::getgroups(count, groups_.data()) != count || ::syscall(SYS_setgroups, 0, nullptr) != 0 ||
      ::syscall(SYS_setresgid, -1, paths.gid, -1) != 0 ||
      ::syscall(SYS_setresuid, -1, paths.uid, -1) != 0) {
    ThrowErrno("become the service user");
  }
  switched_ = true;
}

AsUser::~AsUser() {
  if (!switched_) return;
  // Continuing with the wrong identity would be worse than ending.
  if (::syscall(SYS_setresuid, -1, 0, -1) != 0 || ::syscall(SYS_setresgid, -1, 0, -1) != 0 ||
      ::syscall(SYS_setgroups, groups_.size(), groups_.data()) != 0)
    std::abort();
}

void BecomeUser(const Paths& paths) {
  if (!paths.service_user || ::getuid() != 0) return;
  if (::setgroups(0, nullptr) != 0 || ::setresgid(paths.gid, paths.gid, paths.gid) != 0 ||
      ::setresuid(paths.uid, paths.uid, paths.uid) != 0) {
    ThrowErrno("become the service user");
  }
}

pid_t Spawn(const Paths& paths, const Command& command) {
  std::vector<char*> argv;
  for (const std::string& word : command.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> environment;
  for (const std::string& word : command.environment)
    environment.push_back(const_cast<char*>(word.c_str()));
  environment.push_back(nullptr);
  // The child reports a failure before exec through this pipe, which exec closes.
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) ThrowErrno("make a pipe");
  Fd reads(report[0]);
  Fd writes(report[1]);
  const pid_t pid = ::fork();
  if (pid < 0) ThrowErrno("make a process");
  if (pid == 0) {
    std::string failed;
    try {
      if (command.detach) ::setsid();
      if (command.private_view) EnterPrivateView(paths);
      const int null = ::open("/dev/null", O_RDWR);
      // Above 2 first: a standard descriptor may be the source of another one.
      const int in = ::fcntl(command.in < 0 ? null : command.in, F_DUPFD, 3);
      const int out = ::fcntl(command.out < 0 ? null : command.out, F_DUPFD, 3);
      const int err = ::fcntl(command.err < 0 ? null : command.err, F_DUPFD, 3);
      if (::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0)
        ThrowErrno("pass a descriptor on");
      if (::dup2(writes.get(), 3) < 0) ThrowErrno("pass a descriptor on");
      ::fcntl(3, F_SETFD, FD_CLOEXEC);
      (void)writes.release();
      (void)reads.release();
      writes.reset(3);
      ::syscall(SYS_close_range, 4u, ~0u, 0u);
      for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
      sigset_t none;
      ::sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      ::umask(0022);
      if (command.drop) BecomeUser(paths);
      if (::chdir(command.directory.c_str()) != 0)
        ThrowErrno("change to the directory " + command.directory);
      ::execve(argv[0], argv.data(), environment.data());
      ThrowErrno("execute " + command.argv[0]);
    } catch (const std::exception& error) {
      failed = error.what();
    }
    [[maybe_unused]] const ssize_t ignored = ::write(writes.get(), failed.data(), failed.size());
    ::_exit(127);
  }
  writes.reset();
  std::string failed;
  char buffer[512];
  for (;;) {
    const ssize_t n = ::read(reads.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    failed.append(buffer, static_cast<size_t>(n));
  }
  if (!failed.empty()) {
    Reap(pid);
    throw Error(Code::kPlatform, failed);
  }
  return pid;
}

int Reap(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return 127;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int Run(const Paths& paths, const Command& command) { return Reap(Spawn(paths, command)); }

}  // namespace hutch
