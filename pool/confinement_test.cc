#include "pool/confinement.h"

#include <gtest/gtest.h>

#include <algorithm>

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
  for (const char* said : {R"("HTTPS_PROXY":"mine")", R"("http_proxy":"http://127.63.0.1:3128")",
                           R"("ALL_PROXY":"http://127.63.0.1:3128")",
                           R"("NO_PROXY":"localhost,127.0.0.1,::1,b.example")"}) {
    EXPECT_NE(env.find(said), std::string::npos) << said << " in " << env;
  }
}

TEST(WorkerConfig, HoldsNoSecret) {
  PoolSpec pool;
  pool.secrets = {{"b.example", "X-Name", "t0ps3cret", {}, {}}};
  EXPECT_EQ(WorkerConfig(pool, {}).find("t0ps3cret"), std::string::npos);
}

}  // namespace
}  // namespace hutch
