// SPDX-License-Identifier: Apache-2.0

#include "agent/pools.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "tests/faults/fake_podman.h"

namespace hutch {
namespace {

class PoolsTest : public ::testing::Test {
 protected:
  PoolsTest() : paths_(MakePaths()), podman_(containers_.path()), host_(podman_, paths_, "now") {
    environment_.digest = std::string(64, 'd');
    spec_.base_id = std::string(32, 'b');
    spec_.runtime_id = std::string(32, 'a');
  }
  ~PoolsTest() override { std::filesystem::remove_all(paths_.run_dir); }
  static Paths MakePaths() {
    char name[] = "/tmp/hutch-pools-XXXXXX";
    Paths paths;
    paths.run_dir = ::mkdtemp(name);
    paths.state_dir = paths.run_dir + "/state";
    return paths;
  }
  static Pools::Callbacks NoLeases() {
    return {.cell_gone = [](uint64_t, const CellReport&) {},
            .session_event = [](uint64_t, SessionEvent) {},
            .reclaim = [](Pool&, const std::string*) { return false; },
            .may_take = [](uint64_t, const std::string&) { return true; },
            .open_network = [](uint64_t, const PoolSpec&, Fd) {},
            .close_network = [](uint64_t) {}};
  }

  Paths paths_;
  FakeContainers containers_{[](const std::string&, const std::string&) { return ""; }};
  Podman podman_;
  ContainerHost host_;
  Loop loop_;
  Environment environment_;
  PoolSpec spec_;
  Pools pools_{loop_, host_, [] { return ::getuid(); }, 10, NoLeases()};
};

TEST_F(PoolsTest, AKeyStandsForASpecAndAnEnvironment) {
  const std::string key = pools_.KeyOf(spec_, "digest");
  EXPECT_EQ(pools_.KeyOf(spec_, "digest"), key);
  EXPECT_NE(pools_.KeyOf(spec_, "other"), key);
  spec_.memory_mb += 1;
  EXPECT_NE(pools_.KeyOf(spec_, "digest"), key);
}

TEST_F(PoolsTest, AKeyWithASecretCannotBeGuessed) {
  spec_.secrets = {{"a.test", "X", "value", {}, {}}};
  const Pools others(loop_, host_, [] { return ::getuid(); }, 10, NoLeases());
  EXPECT_EQ(pools_.KeyOf(spec_, "digest"), pools_.KeyOf(spec_, "digest"));
  EXPECT_NE(pools_.KeyOf(spec_, "digest"), others.KeyOf(spec_, "digest"));
}

TEST_F(PoolsTest, MakesAPoolOnceAndNoneWhenTheAgentStops) {
  PoolEntry* entry = pools_.FindOrMake("key", spec_, environment_);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(pools_.FindOrMake("key", spec_, environment_), entry);
  EXPECT_EQ(pools_.Find("key"), entry->pool.get());
  EXPECT_EQ(pools_.Find("other"), nullptr);
  pools_.Retire();
  EXPECT_EQ(pools_.FindOrMake("other", spec_, environment_), nullptr);
  EXPECT_TRUE(pools_.HaveEnded());
}

TEST_F(PoolsTest, AnUnusedPoolMakesRoomForANewOne) {
  for (size_t i = 0; i <= Pools::kMost; ++i)
    ASSERT_NE(pools_.FindOrMake(std::to_string(i), spec_, environment_), nullptr);
  EXPECT_NE(pools_.Find(std::to_string(Pools::kMost)), nullptr);
  EXPECT_EQ(pools_.States(Clock::now()).size(), Pools::kMost);
}

TEST_F(PoolsTest, AnEntryIsDescribedAgainOnlyUnderANewConfiguration) {
  const PoolEntry& entry = *pools_.FindOrMake("key", spec_, environment_);
  pools_.Describe("key", {"a", 1});
  pools_.Describe("key", {"b", 1});
  EXPECT_EQ(entry.reservation.tenant, "a");
  EXPECT_EQ(entry.audit->tenant, "a");
  EXPECT_EQ(entry.audit->digest, environment_.digest);
  pools_.InvalidateAll();
  EXPECT_TRUE(entry.stale);
  pools_.Describe("key", {"b", 1});
  EXPECT_FALSE(entry.stale);
  EXPECT_EQ(entry.reservation.tenant, "b");
  EXPECT_EQ(entry.audit->tenant, "b");
}

}  // namespace
}  // namespace hutch
