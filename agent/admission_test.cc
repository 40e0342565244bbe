// SPDX-License-Identifier: Apache-2.0

#include "agent/admission.h"

#include <gtest/gtest.h>

#include <vector>

namespace hutch {
namespace {

PoolSpec SpecFor(const std::string& team, uint64_t memory_mb = 64) {
  PoolSpec spec;
  spec.labels = {{"team", team}};
  spec.memory_mb = memory_mb;
  return spec;
}

AgentConfig TwoTenants() {
  AgentConfig config;
  config.host.cells = 4;
  config.tenants = {{.name = "a", .labels = {{"team", "a"}}, .cells = 2, .ceiling = {}},
                    {.name = "b", .labels = {{"team", "b"}}, .cells = 4, .ceiling = {}}};
  return config;
}

TEST(Admission, BoundsNothingUntilItIsConfigured) {
  Admission admission;
  EXPECT_EQ(admission.WhyRefuse({1, 0, SpecFor("a", 1 << 20)}, "watchdog"), std::nullopt);
  EXPECT_TRUE(admission.MayTake({"", 1 << 20}));
  EXPECT_EQ(admission.TimeoutMs(0), 0u);
  EXPECT_EQ(admission.CpuMs(7), 7u);
  EXPECT_FALSE(admission.LimitsTime());
}

TEST(Admission, NamesTheTableThatRefuses) {
  AgentConfig config = TwoTenants();
  config.ceiling.memory_mb = 800;
  config.host.memory_mb = 600;
  config.tenants[0].ceiling.memory_mb = 400;
  config.tenants[0].memory_mb = 200;
  Admission admission;
  admission.Configure(config);
  const auto table = [&](const std::string& team, uint64_t memory_mb) {
    Prepare prepare{1, 0, SpecFor(team, memory_mb)};
    const auto why = admission.WhyRefuse(prepare, "cgroup");
    if (!why) return std::string("none");
    const size_t begin = why->hint().find('[');
    return why->hint().substr(begin, why->hint().find(']') + 1 - begin);
  };
  EXPECT_EQ(table("a", 900), "[ceiling]");
  EXPECT_EQ(table("a", 700), "[host]");
  EXPECT_EQ(table("a", 500), "[tenants.a.ceiling]");
  EXPECT_EQ(table("a", 300), "[tenants.a]");
  EXPECT_EQ(table("a", 100), "none");
  EXPECT_EQ(table("b", 500), "none");
}

TEST(Admission, RefusesAPolicyOfHardLimitsOnAHostThatOnlyWatchesThem) {
  Admission admission;
  Prepare prepare{1, 0, SpecFor("a")};
  prepare.hard_limits = true;
  EXPECT_EQ(admission.WhyRefuse(prepare, "watchdog")->code(), Code::kPlatform);
  EXPECT_EQ(admission.WhyRefuse(prepare, "cgroup"), std::nullopt);
}

TEST(Admission, SaysWhenAReleasedCellMakesRoom) {
  Admission admission;
  admission.Configure(TwoTenants());
  const Reservation a = admission.ReservationOf(SpecFor("a"));
  EXPECT_EQ(a.tenant, "a");
  EXPECT_EQ(admission.ReservationOf(SpecFor("other")).tenant, "");
  admission.Take(a);
  EXPECT_FALSE(admission.Release(a)) << "there was room for another one";
  admission.Take(a);
  admission.Take(a);
  EXPECT_FALSE(admission.MayTake(a));
  EXPECT_TRUE(admission.Release(a));
  EXPECT_TRUE(admission.MayTake(a));
}

TEST(Admission, OnlyCellsOfTheQuotaThatIsFullMakeRoom) {
  Admission admission;
  admission.Configure(TwoTenants());
  const Reservation a{"a", 1}, b{"b", 1}, nobody{"", 1};
  admission.Take(a);
  admission.Take(a);
  const std::vector<Reservation> waiting{a, b};
  const auto tenants = admission.ShortageOf(waiting);
  EXPECT_TRUE(tenants.IsEasedBy(a));
  EXPECT_FALSE(tenants.IsEasedBy(b)) << "b does not wait for a quota";
  admission.Take(nobody);
  admission.Take(nobody);
  const auto host = admission.ShortageOf(waiting);
  EXPECT_TRUE(host.IsEasedBy(b));
  EXPECT_TRUE(host.IsEasedBy(nobody)) << "the host is full: any cell makes room";
}

TEST(Admission, TenantsThatHoldTheFewestCellsHaveTheFirstTurn) {
  Admission admission;
  admission.Configure(TwoTenants());
  admission.Take({"b", 1});
  EXPECT_LT(admission.TurnOf({"a", 1}), admission.TurnOf({"b", 1}));
  EXPECT_EQ(admission.TurnOf({"", 1}), 0u);
}

TEST(Admission, HoldsTheCpuTimeOfALoadToTheTimeoutAsWell) {
  AgentConfig config;
  config.ceiling.timeout_sec = 1;
  config.ceiling.cpu_sec = 2;
  Admission admission;
  admission.Configure(config);
  EXPECT_TRUE(admission.LimitsTime());
  EXPECT_EQ(admission.TimeoutMs(0), 1000u);
  EXPECT_EQ(admission.TimeoutMs(900, std::chrono::milliseconds(400)), 600u) << "it runs already";
  EXPECT_EQ(admission.TimeoutMs(300, std::chrono::milliseconds(400)), 300u);
  EXPECT_EQ(admission.TimeoutMs(900, std::chrono::hours(1)), 1u);
  EXPECT_EQ(admission.CpuMs(0), 2000u);
  EXPECT_EQ(admission.CpuMs(5000), 2000u);
  EXPECT_EQ(admission.LoadCpuMs(0), 1000u);
  EXPECT_EQ(admission.LoadCpuMs(300), 300u);
}

}  // namespace
}  // namespace hutch
