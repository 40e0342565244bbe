// SPDX-License-Identifier: Apache-2.0

#include "pool/last_words.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "wire/log.h"

namespace hutch {
namespace {

std::string Logged(LastWords words, uint32_t status, const std::string& text, int times = 1) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < times; ++i) words.Log("worker-1", status, text);
  return testing::internal::GetCapturedStderr();
}

TEST(LastWords, SayWhoDiedHowAndWithWhat) {
  const std::string line = Logged({}, 6, "Traceback:\n  ValueError: x\n");
  EXPECT_TRUE(
      line.ends_with(" warn hutch: a zygote died worker=worker-1 why=\"signal 6\" "
                     "stderr=\"Traceback:\\n  ValueError: x\\n\"\n"))
      << line;
  EXPECT_NE(Logged({}, 3 << 8, "").find("why=\"exit code 3\" stderr=\"\""), std::string::npos);
}

TEST(LastWords, AreOneBoundedLineWhateverTheyAre) {
  const std::string line = Logged({}, 6, std::string(4096, '\x1b'));
  EXPECT_LE(line.size(), kMaxLogLine);
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
}

TEST(LastWords, FillNoLog) {
  const std::string lines = Logged({}, 6, "again", 1000);
  EXPECT_EQ(std::ranges::count(lines, '\n'), LastWords::kMostEntries);
}

TEST(LastWords, HideTheValuesOfEnv) {
  LastWords words;
  words.HideValues({{"TOKEN", "secret"}, {"LONGER", "secret-of-all"}, {"DEBUG", "1"}});
  const std::string line = Logged(words, 6, "secret-of-all, secret1 and 1");
  EXPECT_NE(line.find("stderr=\"[env], [env]1 and 1\""), std::string::npos) << line;
}

}  // namespace
}  // namespace hutch
