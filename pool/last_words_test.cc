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

// What the entry has of a text, which stands in quotes where it has to.
std::string Shown(const LastWords& words, const std::string& text) {
  const std::string line = Logged(words, 6, text);
  std::string shown = line.substr(line.find("stderr=") + 7);
  shown.pop_back();
  return shown.starts_with('"') ? shown.substr(1, shown.size() - 2) : shown;
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

TEST(LastWords, HideAValueThatIsCutAtAnEnd) {
  const std::string value = "0123456789abcdefghij";
  LastWords words;
  words.HideValues({{"TOKEN", value}, {"SHORT", "secret"}, {"PART", "0123456789ab"}});
  const auto shown = [&words](const std::string& text) { return Shown(words, text); };
  for (size_t cut = 1; cut < value.size(); ++cut) {
    // Of two pieces, each has one part of it.
    const std::string first = shown("a = " + value.substr(0, cut));
    const std::string second = shown(value.substr(cut) + " = b");
    EXPECT_EQ(first, cut < 6 ? "a = " + value.substr(0, cut) : "a = [env]");
    EXPECT_EQ(second, value.size() - cut < 6 ? value.substr(cut) + " = b" : "[env] = b");
  }
  EXPECT_EQ(shown("a = sec"), "a = [env]") << "half of it";
  EXPECT_EQ(shown("cret = b"), "[env] = b");
  EXPECT_EQ(shown(value + value), "[env]");
  EXPECT_EQ(shown("6789abcdef"), "[env]") << "from the middle of it";
  EXPECT_EQ(shown("0123456789abc, secretsec"), "[env]c, [env]") << "at no end, only PART";
}

TEST(LastWords, HideAValueThatOverlapsItself) {
  LastWords words;
  words.HideValues({{"TOKEN", "abcabcabc"}});
  EXPECT_EQ(Shown(words, "<abcabcabcabc>"), "<[env]>");
}

TEST(LastWords, AreWholeWhereNoValueIs) {
  LastWords words;
  words.HideValues({{"TOKEN", "0123456789abcdefghij"}});
  for (const std::string text : {"ij: is not 6789abcdefg, said 012", "", "x", "hij"}) {
    EXPECT_EQ(Shown(words, text), text);
  }
}

}  // namespace
}  // namespace hutch
