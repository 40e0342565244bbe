// SPDX-License-Identifier: Apache-2.0

#include "agent/exposition.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace hutch {
namespace {

using nlohmann::json;

AgentState SomeState() {
  AgentState agent;
  agent.generation = "g";
  PoolState& pool = agent.pools.emplace_back();
  pool.key = std::string(64, 'a');
  pool.digest = std::string(64, 'b');
  pool.requirements = {"numpy", "pandas>=2; python_version > '3'"};
  pool.labels = {{"team", "a \"b\"\\\n"}, {"te-am", "x"}, {"te.am", "y"}, {"bytes", "\xff\r"}};
  pool.stats.ready = 3;
  pool.metrics.Add({Ending::kReturned, 0, 10, 90, 0}, true, {});
  pool.metrics.Add({Ending::kLimitMemory, 0, 1000, 9000, 0}, false, {});
  pool.recent = pool.metrics.total;
  return agent;
}

bool Has(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

const std::string kPool =
    R"(pool="aaaaaaaaaaaa",environment="bbbbbbbbbbbb",requirements="numpy pandas")";

TEST(Exposition, IsWhatPrometheusReads) {
  const std::string text = PrometheusText(FamiliesOf(SomeState()));
  EXPECT_TRUE(Has(text, "# TYPE hutch_calls_total counter"));
  EXPECT_TRUE(Has(text, "hutch_calls_total{" + kPool + R"(,status="limit",limit="memory"} 1)"));
  EXPECT_TRUE(Has(text, "hutch_calls_total{" + kPool + R"(,status="died",limit=""} 0)"));
  EXPECT_TRUE(Has(text, "hutch_cells{" + kPool + R"(,state="parked"} 3)"));
  EXPECT_TRUE(Has(text, "hutch_clients 0"));
  EXPECT_EQ(text.back(), '\n');
}

TEST(Exposition, BucketsAreCumulative) {
  const std::string text = PrometheusText(FamiliesOf(SomeState()));
  const std::string bucket = "hutch_call_seconds_bucket{" + kPool;
  EXPECT_TRUE(Has(text, bucket + R"(,le="6.4e-05"} 0)"));
  EXPECT_TRUE(Has(text, bucket + R"(,le="0.000128"} 1)"));
  EXPECT_TRUE(Has(text, bucket + R"(,le="0.008192"} 1)"));
  EXPECT_TRUE(Has(text, bucket + R"(,le="0.016384"} 2)"));
  EXPECT_TRUE(Has(text, bucket + R"(,le="+Inf"} 2)"));
  EXPECT_TRUE(Has(text, "hutch_call_seconds_sum{" + kPool + "} 0.0101"));
  EXPECT_TRUE(Has(text, "hutch_call_seconds_count{" + kPool + "} 2"));
}

TEST(Exposition, EscapesWhatCallersWrote) {
  const std::string text = PrometheusText(FamiliesOf(SomeState()));
  EXPECT_NE(text.find(R"(label_team="a \"b\"\\\n")"), std::string::npos) << text;
  EXPECT_NE(text.find("label_bytes=\"\xef\xbf\xbd \""), std::string::npos);
  EXPECT_NE(text.find(R"(label_te_am="x")"), std::string::npos);
  EXPECT_EQ(text.find(R"(label_te_am="y")"), std::string::npos) << "a label is there once";
}

TEST(Exposition, SaysTheSameAsJson) {
  const std::vector<Family> families = FamiliesOf(SomeState());
  const json exposed = json::parse(MetricsJson(families));
  ASSERT_EQ(exposed.size(), families.size());
  for (const json& family : exposed) {
    if (family["name"] != "hutch_call_leases_total") continue;
    EXPECT_EQ(family["samples"][0]["labels"]["lease"], "ahead");
    EXPECT_EQ(family["samples"][0]["value"], 1);
  }
}

TEST(Status, HasTheFiguresOfEachPool) {
  const json pool = json::parse(StatusJson(SomeState()))["pools"][0];
  EXPECT_EQ(pool["calls"], 2);
  EXPECT_EQ(pool["outcomes"], json({{"returned", 1}, {"limit:memory", 1}}));
  EXPECT_EQ(pool["hit_rate"], 0.5);
  EXPECT_NEAR(pool["p50_ms"].get<double>(), 0.1, 0.025);
  EXPECT_NEAR(pool["p99_ms"].get<double>(), 10, 2.5);
}

TEST(Status, HasNoFiguresOfNoCalls) {
  AgentState agent;
  agent.pools.emplace_back();
  const json pool = json::parse(StatusJson(agent))["pools"][0];
  EXPECT_TRUE(pool["hit_rate"].is_null());
  EXPECT_TRUE(pool["p50_ms"].is_null());
  EXPECT_EQ(pool["outcomes"], json::object());
}

TEST(ProcessState, IsThisProcess) {
  const ProcessState state = ReadProcessState();
  EXPECT_GT(state.resident_bytes, 100'000u);
  EXPECT_GE(state.open_descriptors, 3u);
  EXPECT_GE(state.max_descriptors, state.open_descriptors);
}

TEST(Names, AreWithoutVersions) {
  EXPECT_EQ(NamesOf({"a[b]>=1", "c~=2", "d @ https://x", "e; os_name"}), "a c d e");
  EXPECT_EQ(NamesOf({}), "");
  EXPECT_LE(NamesOf(std::vector<std::string>(100, "name")).size(), 120u);
}

}  // namespace
}  // namespace hutch
