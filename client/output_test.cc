// SPDX-License-Identifier: Apache-2.0

#include "client/output.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

TEST(Output, KeepsEverythingThatFits) {
  Output output(100);
  output.Add(0, "hello ");
  output.Add(1, "oops");
  output.Add(0, "world");
  EXPECT_EQ(output.text(0), "hello world");
  EXPECT_EQ(output.text(1), "oops");
  EXPECT_FALSE(output.truncated(0));
  EXPECT_EQ(output.size(0), 11u);
}

TEST(Output, KeepsBeginningAndEndAndCountsTheRest) {
  Output output(40);
  for (int i = 0; i < 1000; ++i) output.Add(0, "0123456789");
  EXPECT_TRUE(output.truncated(0));
  EXPECT_EQ(output.size(0), 10'000u);
  const std::string text = output.text(0);
  EXPECT_TRUE(text.starts_with("01234567890123456789"));
  EXPECT_TRUE(text.ends_with("0123456789"));
  EXPECT_NE(text.find("9970 bytes left out"), std::string::npos);
  EXPECT_LT(text.size(), 100u);
}

TEST(Output, MemoryStaysWithinTheLimitWhateverIsPrinted) {
  Output output(1000);
  const std::string chunk(1 << 16, 'x');
  for (int i = 0; i < 100; ++i) output.Add(i % 2, chunk);
  EXPECT_LT(output.text(0).size() + output.text(1).size(), 1200u);
}

TEST(Output, AStreamThatEndsExactlyAtTheLimitIsWhole) {
  Output output(8);
  output.Add(0, "1234");
  output.Add(0, "56");
  EXPECT_EQ(output.text(0), "123456");
  EXPECT_FALSE(output.truncated(0));
}

}  // namespace
}  // namespace hutch
