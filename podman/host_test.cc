// SPDX-License-Identifier: Apache-2.0

#include "podman/host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "podman/packages.h"
#include "wire/error.h"

namespace hutch {
namespace {

HostFacts Good() {
  HostFacts facts;
  facts.user = "ada";
  facts.kernel = "6.1.0";
  facts.podman_path = "/usr/bin/podman";
  facts.podman_version = "4.3.1";
  facts.oci_runtime = "crun";
  facts.network_helper = "slirp4netns";
  facts.gvisor = facts.uid_helpers = true;
  facts.subuids = facts.subgids = 65536;
  facts.overlay = true;
  facts.cgroups = CgroupLayout::kV2;
  facts.controllers = {"cpu", "memory", "pids"};
  facts.systemd = facts.systemd_user = facts.tun_exists = facts.tun_usable = true;
  return facts;
}

HostCheck Find(const HostFacts& facts, const std::string& name) {
  for (const HostCheck& check : CheckHost(facts)) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check named " << name;
  return {};
}

bool AllRequired(const HostFacts& facts) {
  return nlohmann::json::parse(ChecksToJson(CheckHost(facts)))["ok"].get<bool>();
}

TEST(Host, IsFineWhenNothingIsMissing) {
  for (const HostCheck& check : CheckHost(Good()))
    EXPECT_TRUE(check.ok) << check.name << ": " << check.detail;
  EXPECT_TRUE(AllRequired(Good()));
}

TEST(Host, NamesTheCommandThatGivesSubIds) {
  HostFacts facts = Good();
  facts.subgids = 0;
  const HostCheck check = Find(facts, "sub-ids");
  EXPECT_FALSE(check.ok);
  EXPECT_TRUE(check.fix.starts_with("sudo usermod --add-subuids ")) << check.fix;
  EXPECT_TRUE(check.fix.ends_with(" ada")) << check.fix;
  EXPECT_FALSE(AllRequired(facts));
}

TEST(Host, TakesNoNameForPartOfACommand) {
  HostFacts facts = Good();
  facts.subgids = 0;
  facts.systemd_user = false;
  facts.root = false;
  const std::pair<const char*, const char*> names[] = {{"ada; reboot", " 'ada; reboot'"},
                                                       {"$(reboot)", " '$(reboot)'"},
                                                       {"a'b", " 'a'\\''b'"},
                                                       {"--root=/tmp", " -- '--root=/tmp'"}};
  for (const auto& [name, quoted] : names) {
    facts.user = name;
    EXPECT_TRUE(Find(facts, "sub-ids").fix.ends_with(quoted)) << name;
    EXPECT_TRUE(Find(facts, "systemd user manager").fix.ends_with(quoted)) << name;
  }
}

TEST(Host, SaysWhichLimitsTheKernelWillNotEnforce) {
  HostFacts facts = Good();
  facts.controllers = {"memory"};
  const HostCheck check = Find(facts, "cgroup limits");
  EXPECT_FALSE(check.ok);
  EXPECT_NE(check.detail.find("pids, cpu"), std::string::npos) << check.detail;
  EXPECT_TRUE(AllRequired(facts)) << "Hutch works without them";
}

TEST(Host, GivesCommandsOfSystemdWhereItRuns) {
  HostFacts facts = Good();
  facts.controllers.clear();
  facts.systemd_user = false;
  for (const char* name : {"cgroup limits", "systemd user manager"}) {
    facts.systemd = true;
    const std::string fix = Find(facts, name).fix;
    EXPECT_TRUE(fix.starts_with("sudo ")) << fix;
    EXPECT_EQ(fix.find('\n'), std::string::npos) << "it is shown as one line: " << fix;
    facts.systemd = false;
    EXPECT_EQ(Find(facts, name).fix, "");
  }
}

TEST(Host, WorksWithoutGvisorAndSaysSo) {
  HostFacts facts = Good();
  facts.gvisor = false;
  EXPECT_NE(Find(facts, "gvisor").fix.find("runsc"), std::string::npos);
  EXPECT_TRUE(AllRequired(facts));
}

TEST(Host, KnowsWhatPodman6NoLongerHas) {
  HostFacts facts = Good();
  facts.cgroups = CgroupLayout::kV1;
  EXPECT_TRUE(AllRequired(facts));
  facts.podman_version = "6.0.0";
  EXPECT_NE(Find(facts, "cgroup layout").detail.find("no container"), std::string::npos);
  EXPECT_FALSE(AllRequired(facts));
  EXPECT_FALSE(Knows("6.0.0", "slirp4netns"));
  EXPECT_TRUE(Knows("5.8.0", "slirp4netns") && Knows("6.0.0", "pasta") && Knows("", "pasta"));
  facts = Good();
  facts.podman_version = "6.0.0";
  facts.network_helper.clear();
  EXPECT_NE(Find(facts, "network helper").detail.find("pasta, which alone"), std::string::npos);
}

TEST(Host, RefusesAHybridLayoutToAnOrdinaryUserOnly) {
  HostFacts facts = Good();
  facts.cgroups = CgroupLayout::kHybrid;
  EXPECT_FALSE(AllRequired(facts));
  EXPECT_NE(Find(facts, "cgroup layout").fix, "");
  facts.root = true;
  EXPECT_TRUE(AllRequired(facts));
}

TEST(Host, TellsAMissingPodmanFromABrokenOne) {
  HostFacts facts = Good();
  facts.podman_version.clear();
  EXPECT_NE(Find(facts, "podman").detail.find("does not run"), std::string::npos);
  EXPECT_NE(Find(facts, "podman").fix.find("/usr/bin/podman --version"), std::string::npos);
  facts.podman_path.clear();
  EXPECT_NE(Find(facts, "podman").detail.find("not installed"), std::string::npos);
  EXPECT_FALSE(Find(facts, "podman").fix.empty());
}

TEST(Host, TakesOnlyAVersionAsOne) {
  EXPECT_EQ(VersionIn("podman version 4.3.1\n"), "4.3.1");
  EXPECT_EQ(VersionIn("podman version 5.6.0-rc1"), "5.6.0-rc1");
  for (const char* other : {"", "podman", "cannot clone: run podman", "podman version podman"})
    EXPECT_EQ(VersionIn(other), "") << other;
}

TEST(Host, KnowsWhyPodmanRefusesAStart) {
  const auto hybrid = CauseOf(
      "crun: cgroups in hybrid mode not supported, drop all controllers from cgroup v2: OCI "
      "runtime "
      "error");
  ASSERT_TRUE(hybrid);
  HostFacts facts = Good();
  facts.cgroups = CgroupLayout::kHybrid;
  EXPECT_EQ(hybrid->fix, Find(facts, "cgroup layout").fix);
  EXPECT_NE(hybrid->cause.find(Find(facts, "cgroup layout").detail), std::string::npos);
  EXPECT_FALSE(CauseOf("crun: no such file or directory"));
  EXPECT_EQ(CauseOf("exec: \"newuidmap\": executable file not found in $PATH")->fix,
            InstallCommand(Package::kUidHelpers));
}

TEST(Host, KnowsADiskThatPodmanCannotWriteTo) {
  const auto full = CauseOf("write /home/ada/.local/share/containers/x: no space left on device");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->fix, kMakeRoom);
  const auto locked = CauseOf("mkdir /home/ada/.local/share/containers: read-only file system");
  ASSERT_TRUE(locked);
  EXPECT_NE(locked->cause.find("read-only"), std::string::npos);
}

TEST(Host, HasTheLineThatInstallsWhatIsMissing) {
  HostFacts facts = Good();
  facts.podman_version.clear();
  facts.podman_path.clear();
  facts.network_helper.clear();
  facts.uid_helpers = facts.gvisor = false;
  EXPECT_EQ(Find(facts, "podman").fix, InstallCommand(Package::kPodman));
  EXPECT_EQ(Find(facts, "network helper").fix, InstallCommand(Package::kNetworkHelper));
  EXPECT_EQ(Find(facts, "uid helpers").fix, InstallCommand(Package::kUidHelpers));
  EXPECT_EQ(Find(facts, "gvisor").fix, InstallCommand(Package::kGvisor));
}

TEST(Host, TakesAMissingServiceUserAsSomethingItCanMake) {
  HostFacts facts = Good();
  facts.root = true;
  facts.user.clear();
  facts.place_is_made = true;
  EXPECT_FALSE(Find(facts, "user").ok);
  EXPECT_TRUE(AllRequired(facts));
  facts.place_is_made = false;
  facts.place_error = "HUTCH_HOME must be an absolute path";
  EXPECT_FALSE(AllRequired(facts)) << "no call can make that one";
}

TEST(Host, PassesOnWhyThereIsNoPlaceForSockets) {
  HostFacts facts = Good();
  facts.place_error = "XDG_RUNTIME_DIR is not set";
  facts.place_fix = "sudo loginctl enable-linger 1000";
  const HostCheck check = Find(facts, "user");
  EXPECT_FALSE(check.ok);
  EXPECT_EQ(check.detail, facts.place_error);
  EXPECT_EQ(check.fix, facts.place_fix);
  EXPECT_FALSE(AllRequired(facts));
}

TEST(Host, IsReadWithoutAnAgentOrAService) {
  const HostFacts facts = InspectHost(std::nullopt, std::nullopt);
  EXPECT_EQ(facts.root, ::geteuid() == 0);
  EXPECT_FALSE(facts.kernel.empty());
  EXPECT_EQ(facts.graph_driver, "");
}

TEST(Host, BelievesTheServiceAboutWhatItHas) {
  PodmanVersion version;
  version.podman = "4.9.0";
  version.cgroup_controllers = {"pids"};
  version.graph_driver = "vfs";
  version.network_helper = "pasta";
  const HostFacts facts = InspectHost(std::nullopt, version);
  EXPECT_EQ(facts.podman_version, "4.9.0");
  EXPECT_EQ(facts.controllers, std::vector<std::string>{"pids"});
  EXPECT_FALSE(Find(facts, "overlay").ok);
  EXPECT_EQ(Find(facts, "network helper").detail, "pasta");
}

TEST(Host, PrintsOneJsonObjectWithEveryCheck) {
  const auto json = nlohmann::json::parse(ChecksToJson({{"a\xff", false, true, "detail", "fix"}}));
  ASSERT_EQ(json["checks"].size(), 1u);
  for (const char* key : {"name", "ok", "required", "detail", "fix"})
    EXPECT_TRUE(json["checks"][0].contains(key)) << key;
  EXPECT_FALSE(json["ok"].get<bool>());
}

}  // namespace
}  // namespace hutch
