#include "pool/confinement.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

namespace hutch {
namespace {

using nlohmann::json;

json Spec(bool bare = false, bool gvisor = false) {
  WorkerLaunch launch;
  launch.bare = bare;
  launch.gvisor = gvisor;
  launch.scratch_mb = 7;
  return json::parse(WorkerContainerSpec(Paths{}, launch));
}

std::set<std::string> Writable(const json& spec) {
  std::set<std::string> paths;
  for (const json& mount : spec["mounts"]) {
    if (mount["type"] == "tmpfs") paths.insert(mount["destination"]);
  }
  return paths;
}

TEST(Confinement, EveryWorkerHasTheWalls) {
  for (const bool bare : {false, true}) {
    const json spec = Spec(bare);
    EXPECT_EQ(spec["cap_drop"], json({"ALL"}));
    EXPECT_TRUE(spec["no_new_privileges"] && spec["read_only_filesystem"]);
    EXPECT_EQ(spec["netns"]["nsmode"], "none");
    EXPECT_TRUE(spec.contains("seccomp_profile_path"));
    EXPECT_FALSE(spec["user"].get<std::string>().starts_with("0"));
  }
}

TEST(Confinement, OnlyAWorkerThatMakesCellsSeesTheWholeOfProc) {
  EXPECT_TRUE(Spec()["unmask"] == json({"ALL"}) && !Spec().contains("mask"));
  const json bare = Spec(true);
  EXPECT_FALSE(bare.contains("unmask"));
  EXPECT_TRUE(bare["mask"].size() > 5);
}

TEST(Confinement, ABareWorkerHasTheScratchOfItsCall) {
  EXPECT_EQ(Writable(Spec()), std::set<std::string>{"/tmp"});
  const json bare = Spec(true);
  EXPECT_EQ(Writable(bare), (std::set<std::string>{"/work", "/tmp", "/dev/shm"}));
  EXPECT_TRUE(bare.dump().find("size=7m") != std::string::npos);
}

TEST(Confinement, OnesOnGvisorSaySo) {
  const json spec = Spec(true, true);
  EXPECT_TRUE(IsOnGvisor(spec["labels"].get<std::map<std::string, std::string>>()));
  EXPECT_FALSE(IsOnGvisor(Spec(true)["labels"].get<std::map<std::string, std::string>>()));
}

}  // namespace
}  // namespace hutch
