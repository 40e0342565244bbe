// SPDX-License-Identifier: Apache-2.0

#include "wire/paths.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "wire/error.h"

namespace hutch {
namespace {

// Sets (or clears) one variable for one test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = ::getenv(name)) old_ = old;
    if (value == nullptr)
      ::unsetenv(name);
    else
      ::setenv(name, value, 1);
  }
  ~Variable() {
    if (old_)
      ::setenv(name_, old_->c_str(), 1);
    else
      ::unsetenv(name_);
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

Paths Example() {
  Paths paths;
  paths.uid = 1000;
  paths.gid = 1000;
  paths.home = "/home/a=b";
  paths.run_dir = "/run/user/1000/hutch";
  paths.state_dir = "/home/a=b/.local/share/hutch";
  paths.agent_socket = "/run/user/1000/hutch/agent-1.sock";
  return paths;
}

TEST(Paths, SurviveTheTripThroughText) {
  const Paths back = Paths::FromText(Example().ToText());
  EXPECT_EQ(back.ToText(), Example().ToText());
  EXPECT_EQ(back.home, "/home/a=b");
}

TEST(Paths, RefuseTextWithMissingOrUnknownKeys) {
  EXPECT_THROW(Paths::FromText(""), Error);
  EXPECT_THROW(Paths::FromText("nonsense"), Error);
  EXPECT_THROW(Paths::FromText(Example().ToText() + "more=1\n"), Error);
}

TEST(Paths, AreTakenFromTheLauncherWhereItGaveThem) {
  Variable given("HUTCH_PATHS", Example().ToText().c_str());
  Variable home("HUTCH_HOME", "/srv/ignored");
  EXPECT_EQ(FindPaths().ToText(), Example().ToText());
}

TEST(Paths, NameAnInstanceInEveryFilter) {
  EXPECT_EQ(Example().instance_label(), "default");
  EXPECT_EQ(Example().agent_container(), "hutch-agent");
}

TEST(UserName, IsTheDigitsOfAUidThatNobodyHas) { EXPECT_EQ(UserName(3999999999), "3999999999"); }

// As one of a directory service is to a static program.
TEST(Paths, AreFoundForAUserWhoHasNoEntry) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  EXPECT_EXIT(
      {
        const Variable user("USER", "alice");
        const Variable home("HOME", "/home/alice");
        const Variable runtime("XDG_RUNTIME_DIR", nullptr);
        if (::setresgid(54322, 54322, 54322) != 0 || ::setresuid(54321, 54321, 54321) != 0)
          ::_exit(1);
        const Paths paths = FindPaths();
        ::rmdir(paths.xdg_runtime_dir.c_str());
        const bool good = paths.home == "/home/alice" && paths.gid == 54322 &&
                          UserName(54321) == "alice" && UserName(54323) == "54323";
        ::_exit(good ? 0 : 2);
      },
      testing::ExitedWithCode(0), "");
}

class FoundPaths : public testing::Test {
 protected:
  void SetUp() override {
    try {
      FindPaths();
    } catch (const Error& error) {
      GTEST_SKIP() << "this host has no place for Hutch yet: " << error.what();
    }
  }
  Variable home_{"HUTCH_HOME", nullptr};
  Variable socket_{"HUTCH_SOCKET", nullptr};
};

TEST_F(FoundPaths, KeepTwoHomesApart) {
  const Paths usual = FindPaths();
  EXPECT_EQ(usual.instance, "");
  Variable first("HUTCH_HOME", "/srv/one");
  const Paths one = FindPaths();
  Variable second("HUTCH_HOME", "/srv/two");
  const Paths two = FindPaths();
  EXPECT_EQ(one.state_dir, "/srv/one");
  EXPECT_EQ(one.instance.size(), 8u);
  EXPECT_NE(one.instance, two.instance);
  EXPECT_NE(one.run_dir, two.run_dir);
  EXPECT_NE(one.run_dir, usual.run_dir);
  EXPECT_NE(one.agent_container(), usual.agent_container());
}

TEST_F(FoundPaths, TakeTwoSpellingsOfOneHomeAsOneInstance) {
  Variable first("HUTCH_HOME", "/srv/one");
  const std::string one = FindPaths().instance;
  Variable second("HUTCH_HOME", "/srv//one/./");
  EXPECT_EQ(FindPaths().instance, one);
}

TEST_F(FoundPaths, RefuseAHomeThatIsRelativeOrClimbs) {
  for (const char* bad : {"relative", "/srv/../etc", "/srv/a\nb", "/"}) {
    Variable home("HUTCH_HOME", bad);
    EXPECT_THROW(FindPaths(), Error) << bad;
  }
}

TEST_F(FoundPaths, FollowTheSocketOfTheEnvironment) {
  Variable socket("HUTCH_SOCKET", "/run/elsewhere.sock");
  EXPECT_EQ(FindPaths().agent_socket, "/run/elsewhere.sock");
}

TEST_F(FoundPaths, RefuseARuntimeDirectoryOfSomebodyElse) {
  if (::geteuid() == 0) GTEST_SKIP() << "root does not use XDG_RUNTIME_DIR";
  Variable runtime("XDG_RUNTIME_DIR", "/");
  EXPECT_THROW(FindPaths(), Error);
}

class Fallback : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(parent_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(parent_); }
  std::string Find() const { return FallbackRuntimeDir(parent_, ::geteuid()); }
  std::string parent_ = testing::TempDir() + "fallback-XXXXXX";
  std::string dir() const { return parent_ + "/podman-run-" + std::to_string(::geteuid()); }
};

TEST_F(Fallback, IsMadePrivateAndFoundAgain) {
  EXPECT_EQ(Find(), dir());
  struct stat st{};
  ASSERT_EQ(::lstat(dir().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700u);
  EXPECT_EQ(Find(), dir());
}

TEST_F(Fallback, IsRefusedWhereItIsOpenOrALinkOrAFile) {
  ASSERT_EQ(::mkdir(dir().c_str(), 0700), 0);
  ASSERT_EQ(::chmod(dir().c_str(), 0750), 0);
  EXPECT_THROW(Find(), Error);
  ASSERT_EQ(::rename(dir().c_str(), (parent_ + "/other").c_str()), 0);
  ASSERT_EQ(::chmod((parent_ + "/other").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("other", dir().c_str()), 0);
  EXPECT_THROW(Find(), Error);
  ASSERT_EQ(::unlink(dir().c_str()), 0);
  std::ofstream(dir()) << "";
  EXPECT_THROW(Find(), Error);
}

TEST_F(Fallback, IsRefusedWhereItIsSomebodyElses) {
  const uid_t other = ::geteuid() + 1;
  ASSERT_EQ(::mkdir((parent_ + "/podman-run-" + std::to_string(other)).c_str(), 0700), 0);
  EXPECT_THROW(FallbackRuntimeDir(parent_, other), Error);
}

}  // namespace
}  // namespace hutch
