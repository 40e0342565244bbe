// SPDX-License-Identifier: Apache-2.0

#include "agent/ceiling.h"

#include <gtest/gtest.h>

#include <functional>
#include <tuple>
#include <utility>

namespace hutch {
namespace {

std::string WhyNot(const Ceiling& ceiling, const Prepare& prepare) {
  const auto error = AboveCeiling(ceiling, prepare, "[ceiling]");
  return error ? error->what() : "";
}

// Asks for `more` than the ceiling of one keyword allows, and for as much as that.
struct Case {
  Ceiling ceiling;
  Prepare more;
  Prepare as_much;
  const char* words;
};

Prepare With(const std::function<void(Prepare&)>& change) {
  Prepare prepare;
  change(prepare);
  return prepare;
}

TEST(Ceiling, EachKeywordIsHeldAgainstItsOwn) {
  const Case cases[] = {
      {{.timeout_sec = 10},
       With([](Prepare& p) { p.limits.timeout_ms = 10'002; }),
       With([](Prepare& p) { p.limits.timeout_ms = 10'000; }),
       "timeout_sec=10.002 is above what this agent allows: at most timeout_sec=10"},
      {{.timeout_sec = 10},
       With([](Prepare& p) { p.limits.timeout_ms = 0; }),
       With([](Prepare& p) { p.limits.timeout_ms = 1; }),
       "timeout_sec=None (unlimited) is above what this agent allows: at most timeout_sec=10"},
      {{.cpu_sec = 3},
       With([](Prepare& p) { p.limits.cpu_ms = 0; }),
       With([](Prepare& p) { p.limits.cpu_ms = 3000; }),
       "cpu_sec=None (unlimited)"},
      {{.memory_mb = 512},
       With([](Prepare& p) { p.spec.memory_mb = 513; }),
       With([](Prepare& p) { p.spec.memory_mb = 512; }),
       "memory_mb=513 is above what this agent allows: at most memory_mb=512"},
      {{.disk_mb = 64},
       With([](Prepare& p) { p.spec.disk_mb = 65; }),
       With([](Prepare& p) { p.spec.disk_mb = 64; }),
       "disk_mb=65"},
      {{.pids = 16},
       With([](Prepare& p) { p.spec.pids = 17; }),
       With([](Prepare& p) { p.spec.pids = 16; }),
       "pids=17"},
      {{.cpus = 0.5},
       With([](Prepare& p) { p.spec.cpus = 0.6; }),
       With([](Prepare& p) { p.spec.cpus = 0.5; }),
       "cpus=0.6 is above what this agent allows: at most cpus=0.5"},
      {{.output_mb = 1},
       With([](Prepare& p) { p.limits.output_bytes = 3 << 20; }),
       With([](Prepare& p) { p.limits.output_bytes = 1 << 20; }),
       "output_mb=3"},
      {{.result_mb = 16},
       With([](Prepare& p) { p.limits.result_bytes = 17 << 20; }),
       With([](Prepare& p) { p.limits.result_bytes = 16 << 20; }),
       "result_mb=17"},
      {{.isolation = Isolation::kContainer},
       With([](Prepare& p) { p.spec.isolation = Isolation::kCell; }),
       With([](Prepare& p) { p.spec.isolation = Isolation::kGvisor; }),
       "isolation=\"cell\" is above what this agent allows: at least \"container\""},
      {{.isolation = Isolation::kCell},
       With([](Prepare& p) { p.shared = true; }),
       With([](Prepare& p) { p.shared = false; }),
       "isolation=\"shared\""},
      {{.allow_sdists = false},
       With([](Prepare& p) { p.spec.allow_sdists = true; }),
       With([](Prepare& p) { p.spec.allow_sdists = false; }),
       "allow_sdists=True is above what this agent allows: wheels only"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(WhyNot(c.ceiling, c.more).substr(0, std::string_view(c.words).size()), c.words);
    EXPECT_EQ(WhyNot(c.ceiling, c.as_much), "") << c.words;
    EXPECT_EQ(WhyNot({}, c.more), "") << c.words;
  }
}

TEST(Ceiling, ARuleCoversWhatReachesNoFurther) {
  const std::tuple<const char*, const char*, bool> cases[] = {
      {"example.org", "example.org", true},
      {"example.org", "example.org:443", true},
      {"example.org", "example.org:8443", false},
      {"example.org:443", "example.org", false},  // which also means port 80
      {"example.org:8443", "example.org:8443", true},
      {"example.org", "example.com", false},
      {"example.org", "a.example.org", false},
      {"*.example.org", "a.example.org", true},
      {"*.example.org", "a.b.example.org", true},
      {"*.example.org", "*.a.example.org", true},
      {"*.example.org", "*.example.org", true},
      {"*.example.org", "example.org", false},
      {"*.example.org", "evilexample.org", false},
      {"*.example.org", "*", false},
      {"*", "*", true},
      {"*", "*.org", true},
      {"*", "example.org:80", true},
      {"*", "10.0.0.0/8", false},  // networks are named or not at all
      {"10.0.0.0/8", "10.0.0.0/8", true},
      {"10.0.0.0/8", "10.200.0.0/16", true},
      {"10.0.0.0/16", "10.0.0.0/8", false},
      {"10.0.0.0/8", "11.0.0.0/16", false},
      {"10.0.0.0/9", "10.128.0.0/9", false},
      {"10.0.0.0/8", "fd00::/8", false},
      {"fd00::/8", "fd12::/16", true},
      {"10.0.0.0/8", "*", false},
      {"10.0.0.0/8", "example.org", false},
  };
  for (const auto& [allowed, asked, covered] : cases)
    EXPECT_EQ(Covers(ParseEgressRule(allowed), ParseEgressRule(asked)), covered)
        << allowed << " and " << asked;
}

TEST(Ceiling, HostsAreHeldAgainstThoseThatMayBeNamed) {
  const Ceiling ceiling{.allow_network = {{"*.example.org", "db.local:5432"}}};
  Prepare prepare;
  EXPECT_EQ(WhyNot(ceiling, prepare), "");
  prepare.spec.allow_network = {"a.example.org", "db.local:5432"};
  EXPECT_EQ(WhyNot(ceiling, prepare), "");
  prepare.spec.secrets = {{"b.example.org", "Authorization", "x", {}, {}}};
  EXPECT_EQ(WhyNot(ceiling, prepare), "");
  prepare.spec.secrets[0].host = "evil.org";
  EXPECT_EQ(WhyNot(ceiling, prepare),
            "allow_network=\"evil.org:443\" is above what this agent allows: \"*.example.org\", "
            "\"db.local:5432\"");
  prepare.spec.allow_network = {"*"};
  EXPECT_NE(WhyNot(ceiling, prepare).find("allow_network=\"*\" is above"), std::string::npos);
  EXPECT_NE(WhyNot({.allow_network = {{}}}, prepare).find("no network"), std::string::npos);
  EXPECT_EQ(WhyNot({}, prepare), "");
}

TEST(Ceiling, WhatIsShownOfTheHostLiesInItsRoots) {
  const Ceiling ceiling{.mounts = {{"/srv/data"}}};
  Prepare prepare;
  prepare.spec.mounts.resize(1);
  prepare.spec.mounts[0].source = "/srv/data/a";
  EXPECT_EQ(WhyNot(ceiling, prepare), "");
  prepare.spec.mounts[0].source = "/srv/database";
  EXPECT_EQ(WhyNot(ceiling, prepare),
            "mounts=\"/srv/database\" is above what this agent allows: files in /srv/data");
  prepare.spec.venv = std::exchange(prepare.spec.mounts, {});
  EXPECT_NE(WhyNot(ceiling, prepare).find("environment=\"/srv/database\""), std::string::npos);
  EXPECT_NE(WhyNot({.mounts = {{}}}, prepare).find("no files of the host"), std::string::npos);
  EXPECT_EQ(WhyNot({}, prepare), "");
}

TEST(Ceiling, SaysWhichTableItIs) {
  const auto error = AboveCeiling({.pids = 1}, Prepare{}, "[tenants.a.ceiling]");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Code::kInvalidArgument);
  EXPECT_NE(error->hint().find("[tenants.a.ceiling]"), std::string::npos);
}

TEST(Ceiling, BoundsWhatAClientTellsOfACallThatRuns) {
  EXPECT_EQ(Bounded(500, std::nullopt), 500u);
  EXPECT_EQ(Bounded(0, std::nullopt), 0u);
  EXPECT_EQ(Bounded(500, 0.25), 250u);
  EXPECT_EQ(Bounded(200, 0.25), 200u);
  EXPECT_EQ(Bounded(0, 0.25), 250u);
  EXPECT_EQ(Bounded(0, 0.0001), 1u);
}

TEST(Ceiling, APathLiesInARootByWholeNames) {
  const std::vector<std::string> roots = {"/srv/data/", "/home/me"};
  EXPECT_TRUE(LiesIn("/srv/data", roots));
  EXPECT_TRUE(LiesIn("/srv/data/a/b", roots));
  EXPECT_FALSE(LiesIn("/srv/database", roots));
  EXPECT_FALSE(LiesIn("/srv", roots));
  EXPECT_FALSE(LiesIn("/srv/data/../secret", roots));
  EXPECT_FALSE(LiesIn("/srv/data/..", roots));
  EXPECT_FALSE(LiesIn("srv/data", roots));
  EXPECT_FALSE(LiesIn("", roots));
  EXPECT_FALSE(LiesIn("/srv/data", {}));
  EXPECT_TRUE(LiesIn("/etc", {"/"}));
}

TEST(Ceiling, AHostWithoutCgroupsNamesTheLimitsThatAreNotHard) {
  EXPECT_FALSE(NotHard("cgroup"));
  const auto error = NotHard("watchdog");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Code::kPlatform);
  const std::string text = error->what();
  EXPECT_NE(text.find("memory_mb"), std::string::npos);
  EXPECT_NE(text.find("cpus"), std::string::npos);
}

TEST(Ceiling, ATenantIsWhoHasAllOfItsLabels) {
  AgentConfig config;
  config.tenants = {{.name = "live", .labels = {{"team", "web"}, {"stage", "live"}}, .ceiling = {}},
                    {.name = "web", .labels = {{"team", "web"}}, .ceiling = {}}};
  PoolSpec spec;
  EXPECT_EQ(TenantOf(config, spec), nullptr);
  spec.labels = {{"team", "web"}, {"x", "y"}};
  EXPECT_EQ(TenantOf(config, spec)->name, "web");
  spec.labels["stage"] = "live";
  EXPECT_EQ(TenantOf(config, spec)->name, "live");
  spec.labels["team"] = "other";
  EXPECT_EQ(TenantOf(config, spec), nullptr);
}

}  // namespace
}  // namespace hutch
