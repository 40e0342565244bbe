// SPDX-License-Identifier: Apache-2.0

#include "agent/sweeper.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/faults/fake_podman.h"

namespace hutch {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Podman with a list of containers, from which what is removed disappears.
class SweeperTest : public ::testing::Test {
 protected:
  SweeperTest()
      : paths_(MakePaths()),
        fake_([this](const std::string& head) { return Answer(head); }),
        podman_(fake_.path()),
        host_(podman_, paths_, "now") {}
  ~SweeperTest() override { fs::remove_all(paths_.run_dir); }

  static Paths MakePaths() {
    char name[] = "/tmp/hutch-sweeper-XXXXXX";
    Paths paths;
    paths.run_dir = ::mkdtemp(name);
    paths.state_dir = paths.run_dir + "/state";
    fs::create_directories(paths.worker_dir());
    return paths;
  }
  void Has(const std::string& name, const std::string& generation, const std::string& state,
           const std::string& role = "worker") {
    containers_[name] = {{"Id", name},
                         {"Names", {name}},
                         {"State", state},
                         {"Labels", {{"hutch.role", role}, {"hutch.generation", generation}}}};
  }
  std::string Answer(const std::string& head) {
    const std::lock_guard lock(mutex_);
    const std::string target = head.substr(0, head.find('\r'));
    if (target.find("/containers/json") != std::string::npos) {
      const bool remains = target.find("external=true") != std::string::npos;
      json list = json::array();
      for (const auto& [name, one] : containers_) {
        if ((one["State"] == "storage") == remains) list.push_back(one);
      }
      return HttpReply("200 OK", list.dump());
    }
    for (const auto& [name, one] : containers_) {
      if (target.find("/containers/" + name) == std::string::npos) continue;
      if (target.starts_with("DELETE")) {
        containers_.erase(name);
        return HttpReply("200 OK", "[]");
      }
      if (target.find("/kill") != std::string::npos) containers_[name]["State"] = "exited";
      const json inspected = {{"Id", name},
                              {"Name", name},
                              {"State", {{"Status", one["State"]}, {"ExitCode", 0}, {"Pid", 0}}},
                              {"Config", {{"Labels", one["Labels"]}}}};
      return HttpReply("200 OK", inspected.dump());
    }
    return HttpReply("404 Not Found", "{}");
  }
  std::set<std::string> Left() {
    const std::lock_guard lock(mutex_);
    std::set<std::string> names;
    for (const auto& [name, one] : containers_) names.insert(name);
    return names;
  }

  Paths paths_;
  std::mutex mutex_;
  std::map<std::string, json> containers_;
  FakePodman fake_;
  Podman podman_;
  ContainerHost host_;
};

using Names = std::set<std::string>;

TEST_F(SweeperTest, RemovesWorkersOfOtherAgentsAndThoseThatEnded) {
  Has("known", "now", "running");
  Has("of-before", "then", "running");
  Has("ended", "now", "exited");
  Has("egress", "then", "running", "egress");
  EXPECT_EQ(SweepContainers(host_, {{"known"}, {}}, {}), Names{});
  EXPECT_EQ(Left(), (Names{"known", "egress"}));
}

TEST_F(SweeperTest, LeavesWorkersOfAnAgentOfAnotherVersionThatRuns) {
  Has("this", "", "running", "agent");
  Has("other", "", "running", "agent");
  Has("of-other", "then", "running");
  Has("of-other-ended", "then", "exited");
  Has("ended", "now", "exited");
  SweepContainers(host_, {}, {});
  EXPECT_EQ(Left(), (Names{"this", "other", "of-other", "of-other-ended"}));
  Has("other", "", "exited", "agent");
  SweepContainers(host_, {}, {});
  EXPECT_EQ(Left(), (Names{"this", "other"}));
}

TEST(Removable, IsOfThatRoleAndWithTwoAgentsOnesOwnAlone) {
  const auto of = [](const char* role, const char* generation) {
    return ContainerInfo{.id = role + std::string(generation),
                         .state = "running",
                         .labels = {{"hutch.role", role}, {"hutch.generation", generation}}};
  };
  const auto names = [](const std::vector<ContainerInfo>& found) {
    Names ids;
    for (const ContainerInfo& info : found) ids.insert(info.id);
    return ids;
  };
  std::vector<ContainerInfo> all = {of("agent", ""), of("egress", "now"), of("egress", "then"),
                                    of("worker", "now")};
  EXPECT_EQ(names(Removable(all, "egress", "now")), (Names{"egressnow", "egressthen"}));
  all.push_back(of("agent", ""));
  EXPECT_EQ(names(Removable(all, "egress", "now")), Names{"egressnow"});
}

TEST_F(SweeperTest, RemovesAWorkerOfThisAgentOnlyWhenTwoSweepsFindItUnknown) {
  Has("young", "now", "running");
  const Names strangers = SweepContainers(host_, {}, {});
  EXPECT_EQ(strangers, Names{"young"});
  EXPECT_EQ(Left(), Names{"young"});
  SweepContainers(host_, {}, strangers);
  EXPECT_EQ(Left(), Names{});
}

TEST_F(SweeperTest, RemovesWhatPodmanDidNotFinishWhenTwoSweepsFindIt) {
  Has("hutch-worker-1", "", "storage");
  Has("other-2", "", "storage");
  const Names strangers = SweepContainers(host_, {}, {});
  EXPECT_EQ(strangers, Names{"hutch-worker-1"});
  SweepContainers(host_, {}, strangers);
  EXPECT_EQ(Left(), Names{"other-2"});
}

TEST_F(SweeperTest, RemovesOldDirectoriesOfWorkersThatHaveNoContainer) {
  Has("known", "now", "running");
  for (const char* name : {"known", "old", "young"})
    fs::create_directories(paths_.worker_dir() + "/" + name);
  for (const char* name : {"known", "old"}) {
    fs::last_write_time(paths_.worker_dir() + "/" + name,
                        fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  SweepContainers(host_, {{"known"}, {}}, {});
  EXPECT_TRUE(fs::exists(paths_.worker_dir() + "/known"));
  EXPECT_TRUE(fs::exists(paths_.worker_dir() + "/young"));
  EXPECT_FALSE(fs::exists(paths_.worker_dir() + "/old"));
}

}  // namespace
}  // namespace hutch
