// SPDX-License-Identifier: Apache-2.0

#include "agent/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "wire/error.h"

namespace hutch {
namespace {

std::string WhyNot(const std::string& text) {
  try {
    ParseConfig(text, "agent.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "it was taken";
}

TEST(Config, NothingInItBoundsNothing) {
  EXPECT_EQ(ParseConfig("", "a"), AgentConfig{});
  EXPECT_EQ(LoadConfig("/nonexistent/agent.toml"), AgentConfig{});
}

TEST(Config, EveryKeyArrives) {
  const AgentConfig config = ParseConfig(R"(
[ceiling]
timeout_sec = 60
cpu_sec = 12.5
memory_mb = 2048
disk_mb = 512
pids = 128
cpus = 0.5
output_mb = 2
result_mb = 64
allow_network = ["*.example.org", "10.0.0.0/8"]
mounts = ["/srv/data"]
isolation = "cell"
allow_sdists = false
[host]
memory_mb = 8192
cells = 32
sessions = 40
queue = 100
environment_disk_mb = 4096
idle_sec = 2.5
warm_workers = 3
sweep_sec = 5
ca_bundle = "/etc/company.pem"
[audit]
enabled = false
file_mb = 2
files = 3
[tenants.web]
labels = { team = "web", stage = "live" }
cells = 8
sessions = 4
memory_mb = 1024
[tenants.batch]
labels = { team = "batch" }
ceiling = { memory_mb = 256, allow_network = [] }
)",
                                         "a");
  EXPECT_EQ(config.ceiling.timeout_sec, 60);
  EXPECT_EQ(config.ceiling.cpu_sec, 12.5);
  EXPECT_EQ(config.ceiling.memory_mb, 2048u);
  EXPECT_EQ(config.ceiling.disk_mb, 512u);
  EXPECT_EQ(config.ceiling.pids, 128u);
  EXPECT_EQ(config.ceiling.cpus, 0.5);
  EXPECT_EQ(config.ceiling.output_mb, 2);
  EXPECT_EQ(config.ceiling.result_mb, 64);
  EXPECT_EQ(config.ceiling.allow_network,
            (std::vector<std::string>{"*.example.org", "10.0.0.0/8"}));
  EXPECT_EQ(config.ceiling.mounts, std::vector<std::string>{"/srv/data"});
  EXPECT_EQ(config.ceiling.isolation, Isolation::kCell);
  EXPECT_EQ(config.ceiling.allow_sdists, false);
  EXPECT_EQ(config.host, (HostQuotas{32, 40, 8192, 100, 4096, 2.5, 3, 5, "/etc/company.pem"}));
  EXPECT_EQ(config.audit, (AuditSettings{.enabled = false, .file_mb = 2, .files = 3}));
  ASSERT_EQ(config.tenants.size(), 2u);
  EXPECT_EQ(config.tenants[0].name, "web");  // in the file's order
  EXPECT_EQ(config.tenants[0].labels,
            (std::map<std::string, std::string>{{"stage", "live"}, {"team", "web"}}));
  EXPECT_EQ(config.tenants[0].cells, 8u);
  EXPECT_EQ(config.tenants[0].sessions, 4u);
  EXPECT_EQ(config.tenants[1].name, "batch");
  EXPECT_EQ(config.tenants[1].ceiling.memory_mb, 256u);
  EXPECT_EQ(config.tenants[1].ceiling.allow_network, std::vector<std::string>{});
  EXPECT_FALSE(config.tenants[1].ceiling.timeout_sec);
}

TEST(Config, AMistakeIsNamedWithItsLineAndWhatWasMeant) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"[ceiling]\nmemory_gb = 1",
       "agent.toml:2: [ceiling] unknown key \"memory_gb\"; did you mean \"memory_mb\"?"},
      {"[ceiling]\ntimeout = 1",
       "agent.toml:2: [ceiling] unknown key \"timeout\"; did you mean \"timeout_sec\"?"},
      {"[ceiling]\n\ntimeout_ms = 1",
       "agent.toml:3: [ceiling] unknown key \"timeout_ms\"; did you"},
      {"[cieling]\nx = 1", "unknown key \"cieling\"; did you mean \"ceiling\"?"},
      {"memory_mb = 1", "unknown key \"memory_mb\""},
      {"[ceiling]\nmemory_mb = 0", "memory_mb must be a whole number from 16"},
      {"[ceiling]\nmemory_mb = -1", "memory_mb must be a whole number from 16"},
      {"[ceiling]\nmemory_mb = 1.5", "memory_mb must be a whole number from 16"},
      {"[ceiling]\nmemory_mb = \"1\"", "memory_mb must be a whole number from 16"},
      {"[ceiling]\nmemory_mb = 99999999999999", "memory_mb must be a whole number from 16"},
      {"[ceiling]\ntimeout_sec = nan", "timeout_sec must be a number above 0"},
      {"[ceiling]\ntimeout_sec = inf", "timeout_sec must be a number above 0"},
      {"[ceiling]\ntimeout_sec = 0", "timeout_sec must be a number above 0"},
      {"[ceiling]\ntimeout_sec = true", "timeout_sec must be a number above 0"},
      {"[ceiling]\nallow_network = \"*\"", "allow_network must be a list of strings"},
      {"[ceiling]\nallow_network = [\"http://a.org/\"]", "agent.toml:2: [ceiling]"},
      {"[ceiling]\nallow_network = [1]", "allow_network must be a list of strings"},
      {"[ceiling]\nmounts = [\"data\"]", "mounts has \"data\", which is not an absolute path"},
      {"[ceiling]\nmounts = [\"/a/../b\"]", "which is not an absolute path"},
      {"[ceiling]\nisolation = \"vm\"", "isolation must be \"shared\", \"cell\""},
      {"[ceiling]\nallow_sdists = 1", "allow_sdists must be true or false"},
      {"ceiling = 5", "ceiling must be a table"},
      {"[host]\ncells = 0", "[host] cells must be a whole number from 1"},
      {"[host]\nidle_sec = 0", "[host] idle_sec must be a number above 0"},
      {"[host]\nwarm_workers = 33", "[host] warm_workers must be a whole number from 0 to 32"},
      {"[host]\nsweep_sec = 0", "[host] sweep_sec must be a whole number from 1 to 86400"},
      {"[host]\ncels = 3", "did you mean \"cells\"?"},
      {"[host]\nca_bundle = \"ca.pem\"",
       "[host] ca_bundle must be the absolute path of a PEM file"},
      {"[host]\nca_bundle = \"\"", "[host] ca_bundle must be the absolute path of a PEM file"},
      {"[tenants.a]\ncells = 1", "[tenants.a] labels is missing"},
      {"[tenants.a]\nlabels = {team = 1}", "[tenants.a] labels must be strings"},
      {"[tenants.a]\nlabels = {t = \"x\"}\nceiling = {pid = 1}",
       "[tenants.a.ceiling] unknown key \"pid\"; did you mean \"pids\"?"},
      {"[tenants]\na = 5", "tenants.a must be a table"},
      {"[audit]\nfiles = 0", "[audit] files must be a whole number from 1"},
      {"[ceiling\n", "agent.toml:1: not valid TOML"},
      {"a = \xff", "not valid TOML"},
      {"a = 1\na = 2", "agent.toml:2: not valid TOML"},
  };
  for (const auto& [text, words] : mistakes)
    EXPECT_NE(WhyNot(text).find(words), std::string::npos) << text << "\n" << WhyNot(text);
}

TEST(Config, AFileThatCannotBeReadIsNoEmptyOne) {
  char name[] = "/tmp/hutch-config-XXXXXX";
  const std::string dir = ::mkdtemp(name);
  std::filesystem::create_directory_symlink("agent.toml", dir + "/agent.toml");  // a loop
  EXPECT_THROW(LoadConfig(dir + "/agent.toml"), Error);
  std::filesystem::remove(dir + "/agent.toml");
  std::ofstream(dir + "/agent.toml") << "[host]\ncells = 7\n";
  EXPECT_EQ(LoadConfig(dir + "/agent.toml").host.cells, 7u);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace hutch
