// SPDX-License-Identifier: Apache-2.0

// What the kernel does with a real delegated cgroup is tried in tests/host: most machines that
// build this have none to give. Where this one has, Prove() is tried here too.
#include "pool/cgroups.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace hutch {
namespace {

namespace fs = std::filesystem;

class CgroupsTest : public testing::Test {
 protected:
  CgroupsTest() {
    std::string name = (fs::temp_directory_path() / "cgroups-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~CgroupsTest() override { fs::remove_all(directory_); }

  fs::path directory_;
};

// A cell whose network is there for a secret alone has a forwarder as well.
TEST(LimitsOfSlot, LeaveAllProcessesToTheCode) {
  PoolSpec pool;
  const uint64_t own = LimitsOfSlot(pool).pids - pool.pids;
  pool.secrets = {{"api.example.org", "Authorization", "x", {}, {}}};
  EXPECT_EQ(LimitsOfSlot(pool).pids, pool.pids + own + 1);
  pool.allow_network = {"api.example.org"};
  EXPECT_EQ(LimitsOfSlot(pool).pids, pool.pids + own + 1);
  pool.secrets.clear();
  EXPECT_EQ(LimitsOfSlot(pool).pids, pool.pids + own + 1);
}

TEST_F(CgroupsTest, AreTheWatchdogsAffairWhereNothingIsDelegated) {
  Cgroups none("");
  none.Prove();
  EXPECT_FALSE(none.usable());
  EXPECT_STREQ(none.enforcement(), "watchdog");
  EXPECT_NE(none.why(), "");
  EXPECT_EQ(none.Make({.memory_kb = 1024, .pids = 1, .cpus = 1}), nullptr);
}

TEST_F(CgroupsTest, SayWhichDirectoryIsMissing) {
  const Cgroups gone((directory_ / "gone").string());
  EXPECT_NE(gone.why().find("gone"), std::string::npos) << gone.why();
}

// Files that take a limit and do nothing about it: as a controller that is there and switched off.
TEST_F(CgroupsTest, BelieveNoLimitThatDoesNotBite) {
  Cgroups fake(directory_.string());
  fake.Prove();
  EXPECT_FALSE(fake.usable());
  EXPECT_STREQ(fake.enforcement(), "watchdog");
  EXPECT_NE(fake.why().find("memory"), std::string::npos) << fake.why();
  EXPECT_TRUE(fs::is_empty(directory_)) << "what was tried is left behind";
}

TEST_F(CgroupsTest, RemoveWhatAnEarlierAgentLeft) {
  fs::create_directory(directory_ / "slot-1-1");
  fs::create_directory(directory_ / "other");
  Cgroups cgroups(directory_.string());
  cgroups.Prove();
  EXPECT_FALSE(fs::exists(directory_ / "slot-1-1"));
  EXPECT_TRUE(fs::exists(directory_ / "other"));
}

}  // namespace
}  // namespace hutch
