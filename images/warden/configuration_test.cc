// SPDX-License-Identifier: Apache-2.0

#include "images/warden/configuration.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace hutch {
namespace {

using std::string_literals::operator""s;

TEST(Configuration, HasWhatItWasGiven) {
  const auto one = std::make_unique<Configuration>();
  EXPECT_FALSE(one->taken());
  const std::string text = "HUTCH_MEMORY_KB=2048\0HUTCH_PIDS=7\0X=a=b\0"s;
  ASSERT_TRUE(one->Take(text.data(), text.size()));
  EXPECT_TRUE(one->taken());
  EXPECT_EQ(one->memory_kb(), 2048u);
  EXPECT_EQ(one->watch_kb(), 2048u) << "that of a call, where nothing else is said";
  EXPECT_EQ(one->pids(), 7u);
  EXPECT_EQ(one->worker_kb(), 4u << 20);
  EXPECT_STREQ(one->Text("X"), "a=b");
  EXPECT_STREQ(one->Text("HUTCH"), "") << "a part of a key is none";
  EXPECT_EQ(one->Number("Y", 9), 9u);
  EXPECT_FALSE(one->single_cell());
  EXPECT_EQ(one->files(), 0u);
}

TEST(Configuration, OfASingleCellHasALimitOfFiles) {
  const auto one = std::make_unique<Configuration>();
  const std::string text = "HUTCH_SINGLE_CELL=1\0HUTCH_DISK_KB=1048576\0HUTCH_WATCH_KB=5\0"s;
  ASSERT_TRUE(one->Take(text.data(), text.size()));
  EXPECT_TRUE(one->single_cell());
  EXPECT_FALSE(one->gvisor());
  EXPECT_EQ(one->files(), 65536u);
  EXPECT_EQ(one->watch_kb(), 5u);
}

TEST(Configuration, IsTakenOnceAndWhole) {
  const auto one = std::make_unique<Configuration>();
  const std::string cut = "HUTCH_PIDS=7";
  EXPECT_FALSE(one->Take(cut.data(), cut.size()));
  EXPECT_FALSE(one->Take(cut.data(), 0));
  const std::string large(kMaxConfig + 1, '\0');
  EXPECT_FALSE(one->Take(large.data(), large.size()));
  EXPECT_TRUE(one->Take(cut.c_str(), cut.size() + 1));
  EXPECT_FALSE(one->Take(cut.c_str(), cut.size() + 1)) << "twice";
}

}  // namespace
}  // namespace hutch
