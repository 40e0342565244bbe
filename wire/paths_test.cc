// SPDX-License-Identifier: Apache-2.0

#include "wire/paths.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
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

}  // namespace
}  // namespace hutch
