// SPDX-License-Identifier: Apache-2.0

#include "launcher/podman_service.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "launcher/host_programs.h"
#include "launcher/install.h"
#include "launcher/mount_view.h"
#include "launcher/podman_user.h"
#include "launcher/subprocess.h"
#include "tests/faults/own_mounts.h"
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
  const auto hint = [this] {
    try {
      LockStart(paths_);
    } catch (const Error& error) {
      return error.hint();
    }
    return std::string("no error");
  };
  EXPECT_TRUE(hint().starts_with("as root: chown ")) << hint();
  std::ofstream(paths_.run_dir + "/passwd");
  EXPECT_EQ(hint(), "set HUTCH_HOME to another directory") << "it is for something else";
  std::ofstream(paths_.run_dir + "/agent.toml");
  EXPECT_TRUE(hint().starts_with("as root: chown ")) << hint();
}

TEST_F(Service, GivesRootsDirectoryAwayOnlyWhereNoLinkOfTheUserLeads) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  const auto owner = [](const std::string& path) {
    struct stat st{};
    return ::stat(path.c_str(), &st) == 0 ? static_cast<int>(st.st_uid) : -1;
  };
  const auto make = [this](const std::string& name) {
    fs::create_directories(root_ + name);
    ::chmod((root_ + name).c_str(), 0700);
    return root_ + name;
  };
  paths_.service_user = true;
  paths_.uid = paths_.gid = 65534;
  ::chmod(root_.c_str(), 0755);
  ASSERT_EQ(::chown(make("/user").c_str(), 65534, 65534), 0);

  const std::string secret = make("/roots/secret");
  ::chmod((root_ + "/roots").c_str(), 0755);
  fs::create_directory_symlink(root_ + "/roots", root_ + "/user/link");
  EXPECT_THROW(EnsureDirectory(paths_, root_ + "/user/link/secret"), Error);
  EXPECT_EQ(owner(secret), 0);

  const std::string home = make("/user/home");
  std::ofstream(home + "/agent.toml");
  EXPECT_TRUE(EnsureDirectory(paths_, home));
  EXPECT_EQ(owner(home), 65534);
  const std::string other = make("/user/other");
  std::ofstream(other + "/passwd");
  EXPECT_THROW(EnsureDirectory(paths_, other), Error);
  EXPECT_EQ(owner(other), 0) << "it is for something else";
}

TEST_F(Service, SaysWhyADirectoryCannotBeMade) {
  paths_.service_user = false;
  std::ofstream(root_ + "/file");
  paths_.run_dir = root_ + "/file/run";
  try {
    LockStart(paths_);
    FAIL() << "it was made";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "cannot make " + paths_.run_dir + ": Not a directory");
    EXPECT_TRUE(error.hint().starts_with("set HUTCH_HOME to a directory that you may write to"));
  }
}

TEST_F(Service, ClosesADirectoryThatOthersMayOnlyRead) {
  fs::create_directories(paths_.run_dir);
  ::chmod(paths_.run_dir.c_str(), 0755);
  const Fd lock = LockStart(paths_);
  EXPECT_EQ(Mode(paths_.run_dir), 0700u);
}

TEST_F(Service, SaysThatADiskIsReadOnly) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a disk";
  const auto said = [this] {
    try {
      LockStart(paths_);
    } catch (const Error& error) {
      return std::string(error.what()) + "|" + error.hint();
    }
    return std::string("no error");
  };
  fs::create_directories(paths_.home);
  EXPECT_TRUE(InOwnMounts([&] {  // nothing was ever made there
    ASSERT_TRUE(MountDisk(paths_.home, 64, MS_RDONLY));
    EXPECT_NE(said().find("Read-only file system|"), std::string::npos) << said();
  }));
  EXPECT_TRUE(InOwnMounts([&] {  // it became so
    LockStart(paths_);
    ASSERT_EQ(::mount(paths_.home.c_str(), paths_.home.c_str(), nullptr, MS_BIND, nullptr), 0);
    ASSERT_EQ(
        ::mount(nullptr, paths_.home.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr),
        0);
    EXPECT_NE(said().find("Read-only file system|"), std::string::npos) << said();
    EXPECT_NE(said().find("set HUTCH_HOME"), std::string::npos) << said();
  }));
}

TEST_F(Service, SaysHowMuchOfASmallDiskTheProgramsTake) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a disk";
  LaunchOptions options;
  options.package = root_ + "/package";
  options.python = "/bin/false";
  options.runtime_id = std::string(32, 'b');
  fs::create_directories(options.package);
  std::ofstream(options.package + "/program") << std::string(4 << 20, 'x');
  fs::create_directories(paths_.state_dir);
  EXPECT_TRUE(InOwnMounts([&] {
    ASSERT_TRUE(MountDisk(paths_.state_dir, 2 << 10));
    try {
      InstallRuntime(paths_, options);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the disk is full: 2 MB are free"),
                std::string::npos)
          << error.what();
      EXPECT_NE(error.hint().find("HUTCH_HOME"), std::string::npos);
    }
    EXPECT_TRUE(fs::is_empty(paths_.state_dir)) << "nothing is left in the way";
  }));
}

TEST_F(Service, NotesWhenARuntimeWasLastUsed) {
  LaunchOptions options;
  options.runtime_id = std::string(32, 'b');
  const std::string runtime = paths_.runtime_dir(options.runtime_id);
  fs::create_directories(runtime);
  const auto old = fs::last_write_time(runtime) - std::chrono::hours(24 * 40);
  fs::last_write_time(runtime, old);
  InstallRuntime(paths_, options);
  EXPECT_GT(fs::last_write_time(runtime), old);
  EXPECT_TRUE(fs::is_empty(runtime)) << "it was there already";
}

TEST(Refused, SaysTheCauseInPlaceOfWhatPodmanSaid) {
  const Error known = Refused("crun: cgroups in hybrid mode not supported: OCI runtime error");
  EXPECT_EQ(std::string(known.what()).find("OCI"), std::string::npos) << known.what();
  EXPECT_NE(std::string(known.what()).find("hybrid"), std::string::npos) << known.what();
  const Error unknown = Refused("crun: something new");
  EXPECT_STREQ(unknown.what(), "crun: something new");
  EXPECT_EQ(unknown.hint(), kDoctor);
}

TEST(SeparateMounts, ShowWhatIsMountedLaterAndHideTheirOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a disk";
  char name[] = "/tmp/hutch-mounts-XXXXXX";
  const std::string root = ::mkdtemp(name);
  fs::create_directories(root + "/later");
  fs::create_directories(root + "/own");
  const auto mounted = [&root](const char* place) {
    struct stat above{};
    struct stat there{};
    return ::stat(root.c_str(), &above) == 0 && ::stat((root + place).c_str(), &there) == 0 &&
           above.st_dev != there.st_dev;
  };
  EXPECT_TRUE(InOwnMounts([&] {
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_SHARED, nullptr), 0);  // as systemd does
    int ready[2];
    int later[2];
    ASSERT_TRUE(::pipe(ready) == 0 && ::pipe(later) == 0);
    const pid_t pid = ::fork();
    char byte = 0;
    if (pid == 0) {
      SeparateMounts();
      MountDisk(root + "/own", 64);
      ::_exit(::write(ready[1], "r", 1) == 1 && ::read(later[0], &byte, 1) == 1 && mounted("/later")
                  ? 0
                  : 1);
    }
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_FALSE(mounted("/own"));
    ASSERT_TRUE(MountDisk(root + "/later", 64));
    ASSERT_EQ(::write(later[1], "m", 1), 1);
    EXPECT_EQ(Reap(pid), 0);
  }));
  fs::remove_all(root);
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
