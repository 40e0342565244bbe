// SPDX-License-Identifier: Apache-2.0

#include "launcher/podman_service.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "launcher/host_programs.h"
#include "launcher/podman_user.h"
#include "launcher/subprocess.h"
#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;

// Paths of the user who runs the test: no service user, everything below one fresh directory.
class Service : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hutch-service-XXXXXX";
    root_ = ::mkdtemp(name);
    paths_.uid = ::geteuid();
    paths_.gid = ::getegid();
    paths_.home = root_ + "/home";
    paths_.xdg_runtime_dir = root_ + "/xdg";
    paths_.run_dir = root_ + "/xdg/hutch";
    paths_.state_dir = root_ + "/home/hutch";
    paths_.agent_socket = paths_.run_dir + "/agent-1.sock";
  }
  void TearDown() override { fs::remove_all(root_); }

  // What a program that ends at once wrote to stdout.
  std::string Output(Command command) {
    const std::string file = root_ + "/out";
    const Fd out(::open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    command.out = out.get();
    EXPECT_EQ(hutch::Run(paths_, command), 0);
    char text[4096];
    const ssize_t n = ::pread(out.get(), text, sizeof text, 0);
    return {text, n > 0 ? static_cast<size_t>(n) : 0};
  }

  static unsigned Mode(const std::string& path) {
    struct stat st{};
    EXPECT_EQ(::stat(path.c_str(), &st), 0) << path;
    return st.st_mode & 07777;
  }

  std::string root_;
  Paths paths_;
};

TEST_F(Service, GivesAChildNoneOfTheCallersEnvironment) {
  ::setenv("HUTCH_TEST_SECRET", "token", 1);
  const std::string output =
      Output({.argv = {"/usr/bin/env"}, .environment = PodmanEnvironment(paths_)});
  ::unsetenv("HUTCH_TEST_SECRET");
  EXPECT_EQ(output.find("token"), std::string::npos) << output;
  EXPECT_NE(output.find("HOME=" + paths_.home + "\n"), std::string::npos) << output;
  EXPECT_NE(output.find("XDG_RUNTIME_DIR=" + paths_.xdg_runtime_dir + "\n"), std::string::npos)
      << output;
}

TEST_F(Service, GivesAChildNoDescriptorOfTheCaller) {
  const Fd leaked(::open("/dev/null", O_RDONLY));  // without O_CLOEXEC
  const Fd high(::fcntl(leaked.get(), F_DUPFD, 200));
  const std::string output =
      Output({.argv = {"/bin/sh", "-c", "for f in /proc/$$/fd/*; do echo ${f##*/}; done"}});
  EXPECT_EQ(output.find("200"), std::string::npos) << output;
}

TEST_F(Service, ReportsAProgramThatIsNotThere) {
  EXPECT_THROW(Spawn(paths_, {.argv = {"/nonexistent/program"}}), Error);
}

TEST_F(Service, TellsAStatusFromASignal) {
  EXPECT_EQ(hutch::Run(paths_, {.argv = {"/bin/sh", "-c", "exit 7"}}), 7);
  EXPECT_EQ(hutch::Run(paths_, {.argv = {"/bin/sh", "-c", "kill -9 $$"}}), 137);
}

TEST_F(Service, MakesItsDirectoriesForItsUserOnly) {
  const mode_t mask = ::umask(0);
  const Fd lock = LockStart(paths_);
  ::umask(mask);
  for (const std::string& path :
       {paths_.run_dir, paths_.state_dir, paths_.worker_dir(), paths_.run_dir + "/podman"}) {
    EXPECT_EQ(Mode(path), 0700u) << path;
  }
}

TEST_F(Service, RefusesALinkInItsPlace) {
  fs::create_directories(paths_.xdg_runtime_dir);
  fs::create_directories(root_ + "/elsewhere");
  fs::create_directory_symlink(root_ + "/elsewhere", paths_.run_dir);
  EXPECT_THROW(LockStart(paths_), Error);
  EXPECT_TRUE(fs::is_empty(root_ + "/elsewhere"));
}

TEST_F(Service, RefusesAFileInItsPlace) {
  fs::create_directories(paths_.xdg_runtime_dir);
  const Fd file(::open(paths_.run_dir.c_str(), O_WRONLY | O_CREAT, 0600));
  EXPECT_THROW(LockStart(paths_), Error);
}

TEST_F(Service, RefusesADirectoryThatOthersMayWriteTo) {
  fs::create_directories(paths_.run_dir);
  ::chmod(paths_.run_dir.c_str(), 0777);
  EXPECT_THROW(LockStart(paths_), Error);
}

TEST_F(Service, RefusesADirectoryOfSomebodyElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  fs::create_directories(paths_.run_dir);
  ASSERT_EQ(::chown(paths_.run_dir.c_str(), 65534, 65534), 0);
  EXPECT_THROW(LockStart(paths_), Error);
}

TEST_F(Service, ClosesADirectoryThatOthersMayOnlyRead) {
  fs::create_directories(paths_.run_dir);
  ::chmod(paths_.run_dir.c_str(), 0755);
  const Fd lock = LockStart(paths_);
  EXPECT_EQ(Mode(paths_.run_dir), 0700u);
}

TEST_F(Service, LetsOnlyOneLauncherIn) {
  Fd lock = LockStart(paths_);
  const Command other{
      .argv = {"/usr/bin/flock", "--nonblock", paths_.run_dir + "/start.lock", "/bin/true"}};
  EXPECT_EQ(hutch::Run(paths_, other), 1);
  lock.reset();
  EXPECT_EQ(hutch::Run(paths_, other), 0);
}

}  // namespace
}  // namespace hutch
