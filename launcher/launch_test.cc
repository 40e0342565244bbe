// SPDX-License-Identifier: Apache-2.0

#include "launcher/launch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "wire/error.h"

namespace hutch {
namespace {

LaunchOptions Options() {
  LaunchOptions options;
  options.package = "/package";
  options.python = "/usr/bin/python3";
  options.base_id = std::string(32, 'a');
  options.runtime_id = std::string(32, 'b');
  return options;
}

Paths SomePaths() {
  Paths paths;
  paths.service_user = true;
  paths.uid = paths.gid = 1003;
  paths.home = "/var/lib/hutch";
  paths.xdg_runtime_dir = "/run/hutch";
  paths.run_dir = "/run/hutch/run";
  paths.state_dir = "/var/lib/hutch/state";
  paths.agent_socket = "/run/hutch/run/agent-1.sock";
  return paths;
}

nlohmann::json Spec(const Paths& paths) {
  return nlohmann::json::parse(AgentSpec(paths, Options(), ""));
}

TEST(Launch, GivesTheAgentNoPrivilegeAndNoNetwork) {
  const auto spec = Spec(SomePaths());
  EXPECT_EQ(spec["cap_drop"], nlohmann::json({"all"}));
  EXPECT_EQ(spec["no_new_privileges"], true);
  EXPECT_EQ(spec["read_only_filesystem"], true);
  EXPECT_EQ(spec["netns"]["nsmode"], "none");
  EXPECT_FALSE(spec.contains("privileged"));
  EXPECT_FALSE(spec.contains("pidns"));
}

TEST(Launch, MountsOnlyItsOwnDirectories) {
  const auto spec = Spec(SomePaths());
  for (const auto& mount : spec["mounts"]) {
    if (mount["type"] == "tmpfs") continue;
    const std::string source = mount["source"];
    EXPECT_TRUE(source == "/run/hutch/run" || source.starts_with("/var/lib/hutch/state")) << source;
  }
}

TEST(Launch, PassesNothingOfTheCallersEnvironment) {
  ::setenv("HUTCH_TEST_SECRET", "token", 1);
  EXPECT_EQ(AgentSpec(SomePaths(), Options(), "").find("token"), std::string::npos);
  ::unsetenv("HUTCH_TEST_SECRET");
}

TEST(Launch, TellsTheAgentThatItIsRootInside) {
  const std::string text = Spec(SomePaths())["env"]["HUTCH_PATHS"];
  const Paths inside = Paths::FromText(text);
  EXPECT_FALSE(inside.service_user);
  EXPECT_EQ(inside.uid, 0u);
  EXPECT_EQ(inside.run_dir, SomePaths().run_dir);
  EXPECT_EQ(inside.agent_socket, SomePaths().agent_socket);
}

TEST(Launch, MountsTheDirectoryOfASocketThatLiesElsewhere) {
  Paths paths = SomePaths();
  const size_t usual = Spec(paths)["mounts"].size();
  paths.agent_socket = "/srv/sockets/agent.sock";
  const auto mounts = Spec(paths)["mounts"];
  ASSERT_EQ(mounts.size(), usual + 1);
  EXPECT_EQ(mounts.back()["source"], "/srv/sockets");
}

TEST(Launch, SeesTheHostsCgroupsOnlyToPutSlotsIntoThem) {
  EXPECT_FALSE(Spec(SomePaths()).contains("cgroupns"));
  const auto spec = nlohmann::json::parse(AgentSpec(SomePaths(), Options(), "/sys/fs/cgroup/x"));
  EXPECT_EQ(spec["cgroupns"]["nsmode"], "host");
  EXPECT_EQ(spec["mounts"].back()["source"], "/sys/fs/cgroup/x");
  EXPECT_EQ(spec["env"]["HUTCH_CELLS"], spec["mounts"].back()["destination"]);
}

TEST(Launch, RefusesIdsThatAreNoIds) {
  for (const char* bad :
       {"", "../../etc", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"}) {
    LaunchOptions options = Options();
    options.base_id = bad;
    EXPECT_THROW(Start(options), Error) << bad;
    options = Options();
    options.runtime_id = bad;
    EXPECT_THROW(Install(options), Error) << bad;
  }
}

}  // namespace
}  // namespace hutch
