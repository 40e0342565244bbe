// SPDX-License-Identifier: Apache-2.0

#include "images/warden/zygote.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace hutch {
namespace {

TEST(SkipList, HasALineForEachModule) {
  SkipList list;
  EXPECT_STREQ(list.text(), "");
  const std::string two_lines = "b\tit\nsays";
  list.Add("a\twhy", 5);
  list.Add(two_lines.data(), two_lines.size());
  EXPECT_STREQ(list.text(), "a\twhy\nb\tit says\n");
}

TEST(SkipList, LeavesOutWhatFindsNoRoom) {
  const auto list = std::make_unique<SkipList>();
  const std::string long_line(5000, 'x');
  list->Add(long_line.data(), long_line.size());
  list->Add(long_line.data(), long_line.size());
  list->Add("a\twhy", 5);
  EXPECT_EQ(list->text(), long_line + "\na\twhy\n");
}

}  // namespace
}  // namespace hutch
