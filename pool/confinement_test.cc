// SPDX-License-Identifier: Apache-2.0

#include "pool/confinement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace hutch {
namespace {

std::string Value(const PoolSpec& pool, const std::string& key) {
  const std::string config = '\0' + WorkerConfig(pool, {});
  const std::string start = '\0' + key + "=";
  const size_t at = config.find(start);
  return at == std::string::npos ? "" : config.c_str() + at + start.size();
}

TEST(WorkerConfig, TellsNothingOfANetworkWhereThereIsNone) {
  EXPECT_EQ(Value({}, "HUTCH_EGRESS"), "");
  EXPECT_EQ(Value({}, "HUTCH_ENV"), "{}");
}

TEST(WorkerConfig, GivesEachHostAnAddressAndEachPortAListener) {
  PoolSpec pool;
  pool.allow_network = {"a.example", "b.example:5432"};
  EXPECT_EQ(Value(pool, "HUTCH_EGRESS"),
            "0 127.64.0.1 443 a.example\n"
            "1 127.64.0.1 80 a.example\n"
            "2 127.64.0.2 5432 b.example\n");
  EXPECT_EQ(Value(pool, "HUTCH_ENV"), "{}") << "who is reached by name needs no proxy";
}

TEST(WorkerConfig, NamesTheProxyWhereNamesAreNotEnoughAndLeavesTheCallersOwn) {
  PoolSpec pool;
  pool.allow_network = {"*.a.example"};
  pool.secrets = {{"b.example", "X", "t0ps3cret", {}, {}}};
  pool.env = {{"HTTPS_PROXY", "mine"}};
  EXPECT_EQ(Value(pool, "HUTCH_EGRESS"), "0 127.64.0.1 80 b.example\n65535 127.63.0.1 3128 -\n");
  const std::string env = Value(pool, "HUTCH_ENV");
  for (const char* said :
       {R"("HTTPS_PROXY":"mine")", R"("http_proxy":"http://127.63.0.1:3128")",
        R"("ALL_PROXY":"http://127.63.0.1:3128")",
        R"("NO_PROXY":"localhost,cell,127.0.0.0/8,127.0.0.1,0.0.0.0,::1,::,b.example")"}) {
    EXPECT_NE(env.find(said), std::string::npos) << said << " in " << env;
  }
}

TEST(WorkerContainerSpec, HasEveryEnvironmentOnlyWhereItIsMadeForAnyOfThem) {
  Paths paths;
  paths.state_dir = "/state";
  WorkerLaunch launch;
  launch.environment_dir = "/state/environments/d/tree";
  EXPECT_EQ(WorkerContainerSpec(paths, launch).find("/opt/environments"), std::string::npos);
  launch.environment_dir.clear();
  launch.any_environment = true;
  const std::string spec = WorkerContainerSpec(paths, launch);
  EXPECT_NE(spec.find(R"({"destination":"/opt/environments","options":["rbind","nosuid","nodev",)"
                      R"("ro"],"source":"/state/environments","type":"bind"})"),
            std::string::npos);
}

TEST(WorkerConfig, HoldsNoSecret) {
  PoolSpec pool;
  pool.secrets = {{"b.example", "X-Name", "t0ps3cret", {}, {}}};
  EXPECT_EQ(WorkerConfig(pool, {}).find("t0ps3cret"), std::string::npos);
}

using nlohmann::json;

json Spec(bool single_cell = false, bool gvisor = false) {
  WorkerLaunch launch;
  launch.single_cell = single_cell;
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
  for (const bool single_cell : {false, true}) {
    const json spec = Spec(single_cell);
    EXPECT_EQ(spec["cap_drop"], json({"ALL"}));
    EXPECT_TRUE(spec["no_new_privileges"] && spec["read_only_filesystem"]);
    EXPECT_EQ(spec["netns"]["nsmode"], "none");
    EXPECT_TRUE(spec.contains("seccomp_profile_path"));
    EXPECT_FALSE(spec["user"].get<std::string>().starts_with("0"));
  }
}

TEST(Confinement, OnlyAWorkerThatMakesCellsSeesTheWholeOfProc) {
  EXPECT_TRUE(Spec()["unmask"] == json({"ALL"}) && !Spec().contains("mask"));
  const json single = Spec(true);
  EXPECT_FALSE(single.contains("unmask"));
  EXPECT_TRUE(single["mask"].size() > 5);
}

TEST(Confinement, AWorkerOfASingleCellHasTheScratchOfItsCall) {
  EXPECT_EQ(Writable(Spec()), std::set<std::string>{"/tmp"});
  const json single = Spec(true);
  EXPECT_EQ(Writable(single), (std::set<std::string>{"/work", "/tmp", "/dev/shm"}));
  EXPECT_TRUE(single.dump().find("size=7m") != std::string::npos);
}

TEST(Confinement, ACallOfAWorkerOfASingleCellCannotUndoThatItGoesFirst) {
  const json single = Spec(true);
  EXPECT_EQ(single["oom_score_adj"], 800);
  json proc;
  for (const json& mount : single["mounts"]) {
    if (mount["destination"] == "/proc") proc = mount["options"];
  }
  EXPECT_EQ(std::count(proc.begin(), proc.end(), "ro"), 1);
}

TEST(Confinement, OnesOnGvisorSaySo) {
  const json spec = Spec(true, true);
  EXPECT_TRUE(IsOnGvisor(spec["labels"].get<std::map<std::string, std::string>>()));
  EXPECT_FALSE(IsOnGvisor(Spec(true)["labels"].get<std::map<std::string, std::string>>()));
}

TEST(WorkerSpec, MountsAreReadOnlyAndQuietInTheContainer) {
  WorkerLaunch launch;
  launch.mounts.resize(2);
  launch.mounts[0].destination = "/data";
  launch.mounts[1].destination = "/out";
  launch.mounts[1].writable = true;
  launch.as_caller = true;
  launch.uid = kCallerUid;
  const std::string spec = WorkerContainerSpec({}, launch);
  EXPECT_NE(
      spec.find(R"("destination":"/data","options":["bind","private","nosuid","nodev","ro"])"),
      std::string::npos);
  EXPECT_NE(
      spec.find(
          R"("destination":"/out","options":["bind","private","nosuid","nodev","rw","noexec"])"),
      std::string::npos);
  EXPECT_NE(spec.find(R"({"container_id":1000,"host_id":0,"size":1})"), std::string::npos);
  launch.as_caller = false;
  EXPECT_EQ(WorkerContainerSpec({}, launch).find("idmappings"), std::string::npos);
}

}  // namespace
}  // namespace hutch
