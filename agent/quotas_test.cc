// SPDX-License-Identifier: Apache-2.0

#include "agent/quotas.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

AgentConfig ConfigOf(uint64_t cells, uint64_t memory_mb, uint64_t tenant_cells) {
  AgentConfig config;
  config.host.cells = cells;
  config.host.memory_mb = memory_mb;
  config.tenants = {{.name = "a", .labels = {{"t", "a"}}, .cells = tenant_cells, .ceiling = {}}};
  return config;
}

TEST(Quotas, NobodyIsBoundedWithoutASetting) {
  Quotas quotas;
  quotas.Configure({});
  for (int i = 0; i < 1000; ++i) quotas.Take({"", 1 << 20});
  EXPECT_TRUE(quotas.MayTake({"", 1 << 20}));
}

TEST(Quotas, CellsAndMemoryAreCountedInAll) {
  Quotas quotas;
  quotas.Configure(ConfigOf(3, 1000, 0));
  quotas.Take({"", 400});
  quotas.Take({"a", 400});
  EXPECT_FALSE(quotas.MayTake({"", 400}));  // memory
  EXPECT_TRUE(quotas.MayTake({"", 200}));
  quotas.Take({"", 200});
  EXPECT_FALSE(quotas.MayTake({"", 0}));  // cells
  quotas.Release({"a", 400});
  EXPECT_TRUE(quotas.MayTake({"", 400}));
}

TEST(Quotas, ATenantTakesNoMoreThanItsOwnAndOthersGoOn) {
  Quotas quotas;
  quotas.Configure(ConfigOf(10, 0, 2));
  quotas.Take({"a", 1});
  quotas.Take({"a", 1});
  EXPECT_FALSE(quotas.MayTake({"a", 1}));
  EXPECT_TRUE(quotas.TenantIsFull({"a", 1}));
  EXPECT_TRUE(quotas.MayTake({"", 1}));
  EXPECT_TRUE(quotas.MayTake({"b", 1}));
  EXPECT_EQ(quotas.cells("a"), 2u);
  quotas.Release({"a", 1});
  EXPECT_TRUE(quotas.MayTake({"a", 1}));
}

TEST(Quotas, ABoundOnTheCellsOfATenantBoundsItsSessions) {
  Quotas quotas;
  quotas.Configure(ConfigOf(0, 0, 2));
  quotas.Take({"a", 1, true});
  EXPECT_FALSE(quotas.WhyNoSession("a"));
  quotas.Take({"a", 1, true});
  ASSERT_TRUE(quotas.WhyNoSession("a"));
  EXPECT_EQ(quotas.WhyNoSession("a")->most, 2u);
  EXPECT_FALSE(quotas.WhyNoSession(""));
}

TEST(Quotas, ASessionIsNoCellButKeepsItsMemory) {
  AgentConfig config = ConfigOf(1, 1000, 0);
  config.host.sessions = 2;
  config.tenants[0].sessions = 1;
  Quotas quotas;
  quotas.Configure(config);
  quotas.Take({"a", 400, true});
  EXPECT_TRUE(quotas.MayTake({"", 400}));
  EXPECT_FALSE(quotas.MayTake({"", 700}));
  EXPECT_EQ(quotas.cells("a"), 0u);
  EXPECT_FALSE(quotas.WhyNoSession(""));
  const auto tenant = quotas.WhyNoSession("a");
  ASSERT_TRUE(tenant);
  EXPECT_EQ(tenant->whose, "a");
  EXPECT_EQ(tenant->held, 1u);
  EXPECT_EQ(tenant->most, 1u);
  quotas.Take({"", 1, true});
  ASSERT_TRUE(quotas.WhyNoSession(""));
  EXPECT_EQ(quotas.WhyNoSession("a")->whose, "") << "the host is full";
  quotas.Release({"a", 400, true});
  EXPECT_FALSE(quotas.WhyNoSession("a"));
  EXPECT_TRUE(quotas.MayTake({"", 700}));
}

}  // namespace
}  // namespace hutch
