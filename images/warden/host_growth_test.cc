// SPDX-License-Identifier: Apache-2.0

#include "images/warden/host_growth.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

TEST(HostGrowth, IsSinceTheLeastThatWasSeen) {
  HostGrowth growth;
  EXPECT_EQ(growth.Of(1000), 0u) << "nothing is known of the time before";
  growth.See(1000);
  EXPECT_EQ(growth.Of(1300), 300u);
  growth.See(700);
  growth.See(1300);
  EXPECT_EQ(growth.Of(1300), 600u);
  EXPECT_EQ(growth.Of(100), 0u);
}

TEST(HostGrowth, LeavesOutWhatOthersTookWhileTheCellSlept) {
  HostGrowth growth;
  growth.See(1000);
  growth.See(1200);
  growth.SeeAsleep(5200);
  growth.SeeAsleep(9200);
  EXPECT_EQ(growth.Of(9200), 200u);
  growth.See(9250);
  EXPECT_EQ(growth.Of(9250), 250u) << "awake again";
}

TEST(HostGrowth, ForgetsNothingWhenOthersGiveBackMeanwhile) {
  HostGrowth growth;
  growth.See(5000);
  growth.See(5400);
  growth.SeeAsleep(1400);
  EXPECT_EQ(growth.Of(1400), 400u);
  growth.SeeAsleep(200);
  EXPECT_EQ(growth.Of(200), 200u) << "no more than there is";
}

TEST(HostGrowth, BeginsAnewWhereItIsExplained) {
  HostGrowth growth;
  growth.SeeAsleep(100);
  growth.See(900);
  growth.Explain(900);
  EXPECT_EQ(growth.Of(900), 0u);
  EXPECT_EQ(growth.Of(950), 50u);
}

TEST(HostGrowth, KeepsWhatCameAfterWhatIsExplained) {
  HostGrowth growth;
  growth.See(100);
  growth.See(900);
  growth.Explain(400);
  EXPECT_EQ(growth.Of(900), 500u);
  growth.SeeAsleep(1900);
  EXPECT_EQ(growth.Of(1900), 500u) << "the rest came while it slept";
}

}  // namespace
}  // namespace hutch
