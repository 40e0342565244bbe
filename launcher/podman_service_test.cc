// SPDX-License-Identifier: Apache-2.0

#include "launcher/podman_service.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
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
  EXPECT_TRUE(hint().starts_with("as root: chown -h ")) << hint();
  std::ofstream(paths_.run_dir + "/passwd");
  EXPECT_EQ(hint(), "set HUTCH_HOME to another directory") << "it is for something else";
  std::ofstream(paths_.run_dir + "/agent.toml");
  EXPECT_TRUE(hint().starts_with("as root: chown -h ")) << hint();
}

// A service user with a directory of its own, which may be hostile, and root's beside it.
class ServiceUser : public Service {
 protected:
  void SetUp() override {
    Service::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
    paths_.service_user = true;
    paths_.uid = paths_.gid = 65534;
    ::chmod(root_.c_str(), 0755);
    ASSERT_EQ(::chown(Make("/user", 0700).c_str(), paths_.uid, paths_.gid), 0);
    Make("/roots", 0755);
  }

  std::string Make(const std::string& name, mode_t mode) const {
    fs::create_directories(root_ + name);
    ::chmod((root_ + name).c_str(), mode);
    return root_ + name;
  }

  void Link(const std::string& name, const std::string& target) const {
    fs::create_directory_symlink(root_ + target, root_ + name);
  }

  static int Owner(const std::string& path) {
    struct stat st{};
    return ::stat(path.c_str(), &st) == 0 ? static_cast<int>(st.st_uid) : -1;
  }

  // What the error advises; "made": there was none.
  std::string Hint(const std::string& name) const {
    try {
      EnsureDirectory(paths_, root_ + name);
    } catch (const Error& error) {
      return error.hint();
    }
    return "made";
  }
};

TEST_F(ServiceUser, GetsADirectoryOfRootsOnlyWhereNoLinkOfItsOwnLeads) {
  const std::string secret = Make("/roots/secret", 0700);
  Link("/user/link", "/roots");
  EXPECT_NE(Hint("/user/link/secret"), "made");
  EXPECT_EQ(Owner(secret), 0);

  const std::string home = Make("/user/home", 0700);
  std::ofstream(home + "/agent.toml");
  EXPECT_EQ(Hint("/user/home"), "made");
  EXPECT_EQ(Owner(home), 65534);
  const std::string other = Make("/user/other", 0700);
  std::ofstream(other + "/passwd");
  EXPECT_NE(Hint("/user/other"), "made");
  EXPECT_EQ(Owner(other), 0) << "it is for something else";
}

TEST_F(ServiceUser, HasNoLinkOfItsOwnBehindOneOfRoots) {
  Link("/direct", "/roots");
  EXPECT_EQ(Hint("/direct/made"), "made");
  EXPECT_EQ(Owner(root_ + "/roots/made"), 65534);
  fs::create_directory_symlink("roots/../direct", root_ + "/relative");
  EXPECT_EQ(Hint("/relative/near"), "made");
  Link("/circle", "/circle");
  EXPECT_NE(Hint("/circle/made"), "made");

  Link("/user/hop", "/roots");
  Link("/indirect", "/user/hop");
  EXPECT_NE(Hint("/indirect/other"), "made");
  EXPECT_FALSE(fs::exists(root_ + "/roots/other"));
}

TEST_F(ServiceUser, LeadsNowhereByALinkOfRootsThatItHasMoved) {
  Make("/shared", 01777);
  Link("/user/link", "/roots");
  {
    const AsUser user(paths_);
    ASSERT_EQ(::rename((root_ + "/user/link").c_str(), (root_ + "/shared/link").c_str()), 0);
  }
  EXPECT_NE(Hint("/shared/link/made"), "made");
  EXPECT_FALSE(fs::exists(root_ + "/roots/made"));
}

TEST_F(ServiceUser, KeepsNoDirectoryThatItDoesNotReach) {
  Make("/closed", 0700);
  const std::string home = Make("/closed/home", 0700);
  EXPECT_NE(Hint("/closed/home"), "made");
  EXPECT_EQ(Owner(home), 0);
  EXPECT_NE(Hint("/closed/new"), "made");
  EXPECT_FALSE(fs::exists(root_ + "/closed/new"));
}

TEST_F(ServiceUser, IsGivenNothingByACommandThatItsLinkMisleads) {
  Make("/roots/open", 0755);
  Make("/user/open", 0755);
  for (const char* name : {"/roots/open", "/user/open"}) {
    const std::string command = "as root: chown -h 65534 " + root_ + name + "; or ";
    EXPECT_TRUE(Hint(name).starts_with(command)) << Hint(name);
  }
  ASSERT_EQ(::chown(Make("/user/own", 0700).c_str(), paths_.uid, paths_.gid), 0);
  Make("/user/own/open", 0755);
  EXPECT_EQ(Hint("/user/own/open"), "set HUTCH_HOME to another directory");
  ::chmod(root_.c_str(), 01777);
  EXPECT_EQ(Hint("/user/open"), "set HUTCH_HOME to another directory");
  Link("/user/link", "/roots");
  EXPECT_EQ(Hint("/user/link/open"), "set HUTCH_HOME to another directory");
}

TEST_F(ServiceUser, HasNoGroupOfTheCallers) {
  const gid_t group = 65533;
  EXPECT_TRUE(InOwnMounts([&] {  // the groups of a process of its own
    ASSERT_EQ(::setgroups(1, &group), 0);
    ASSERT_EQ(::chown(Make("/roots/group", 0770).c_str(), 0, group), 0);
    Link("/user/link", "/roots/group");
    {
      const AsUser user(paths_);
      EXPECT_NE(::mkdir((root_ + "/user/link/made").c_str(), 0700), 0);
      EXPECT_EQ(errno, EACCES);
    }
    gid_t now = 0;
    EXPECT_EQ(::getgroups(1, &now), 1);
    EXPECT_EQ(now, group);
  }));
}

TEST_F(ServiceUser, IsRefusedNoLessByAKernelThatCannotRefuseLinks) {
  const std::string secret = Make("/roots/secret", 0700);
  Link("/user/link", "/roots");
  EXPECT_TRUE(InOwnMounts([&] {
    sock_filter rows[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(rows), rows};
    ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    ASSERT_TRUE(::syscall(SYS_openat2, 0, nullptr, nullptr, 0) == -1 && errno == ENOSYS);
    EXPECT_NE(Hint("/user/link/secret"), "made");
    EXPECT_EQ(Hint("/roots/made"), "made");
  }));
  EXPECT_EQ(Owner(secret), 0);
  EXPECT_EQ(Owner(root_ + "/roots/made"), 65534);
}

TEST_F(ServiceUser, PutsNothingElseInPlaceOfADirectory) {
  Make("/user/taken", 0700);
  ASSERT_EQ(::mkfifo((root_ + "/roots/fifo").c_str(), 0700), 0);
  ASSERT_EQ(::mknod((root_ + "/roots/disk").c_str(), S_IFBLK | 0700, 0), 0);
  Link("/roots/link", "/user/taken");
  for (const char* name : {"/roots/fifo", "/roots/disk", "/roots/link"}) {
    EXPECT_NE(Hint(name), "made") << name;
    EXPECT_EQ(Owner(root_ + name), 0) << name;
  }
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
