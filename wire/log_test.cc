// SPDX-License-Identifier: Apache-2.0

#include "wire/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <string>

namespace hutch {
namespace {

// What is logged while `body` runs, with HUTCH_LOG set to `level`.
template <class Body>
std::string Logged(const char* level, LogStyle style, Body body) {
  ::setenv("HUTCH_LOG", level, 1);
  StartLog("egress", style);
  testing::internal::CaptureStderr();
  body();
  ::unsetenv("HUTCH_LOG");
  StartLog("hutch");
  return testing::internal::GetCapturedStderr();
}

bool IsPrintable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
}

TEST(Log, WritesTimeLevelComponentAndFields) {
  const std::string line = Logged("info", LogStyle::kFull, [] {
    LogWarn("the worker died", {{"worker", "w-1"}, {"lease", 7u}, {"why", "exit code 1"}});
  });
  EXPECT_TRUE(std::regex_match(
      line, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warn egress: )"
                       R"(the worker died worker=w-1 lease=7 why="exit code 1"\n)")))
      << line;
}

TEST(Log, LeavesOutWhatIsBelowItsLevel) {
  const auto all = [] {
    LogError("one");
    LogWarn("two");
    LogInfo("three");
    LogDebug("four");
  };
  const auto lines = [&](const char* level) {
    return std::ranges::count(Logged(level, LogStyle::kFull, all), '\n');
  };
  EXPECT_EQ(lines("error"), 1);
  EXPECT_EQ(lines("warn"), 2);
  EXPECT_EQ(lines("info"), 3);
  EXPECT_EQ(lines("debug"), 4);
  EXPECT_EQ(lines("nonsense"), 3);
  EXPECT_EQ(lines("off"), 3);  // which concerns the progress that a client shows
}

TEST(Log, SpeaksPlainlyToPeopleUnlessALevelIsSet) {
  const auto say = [] { LogInfo("starting the agent"); };
  EXPECT_EQ(Logged("", LogStyle::kForPeople, say), "hutch: starting the agent\n");
  EXPECT_NE(Logged("info", LogStyle::kForPeople, say).find(" info egress: "), std::string::npos);
}

TEST(Log, WritesNoControlCharacterAndNoSecondLineOfAStrangers) {
  const std::string hostile =
      "\x1b[2J\x1b]0;title\x07\r\n2026-01-01T00:00:00.000Z error agent: "
      "forged\n\x7f\x9b\xe2\x80\xae";
  const std::string line = Logged("info", LogStyle::kFull, [&] {
    LogInfo(hostile, {{"why", hostile}, TailField("stderr", hostile)});
  });
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  EXPECT_TRUE(IsPrintable(std::string_view(line).substr(0, line.size() - 1))) << line;
  EXPECT_NE(line.find("\\x1b[2J"), std::string::npos);
  EXPECT_NE(line.find("\\xe2\\x80\\xae"), std::string::npos);
}

TEST(Log, HasNoFieldThatAValueMadeUp) {
  EXPECT_EQ(LogText("m", {{"why", "x\" lease=1 y=\""}}), R"(m why="x\" lease=1 y=\"")");
  EXPECT_EQ(LogText("m", {{"why", "x\\"}}), R"(m why="x\\")");
  EXPECT_EQ(LogText("m", {{"why", "a=b"}}), R"(m why="a=b")");
  EXPECT_EQ(LogText("m", {{"why", ""}}), R"(m why="")");
}

TEST(Log, IsNeverLongerThanAPipeTakesAtOnce) {
  for (const char c : {'x', '\x1b', '"', '\\'}) {
    const std::string big(1 << 20, c);
    const std::string line = Logged("info", LogStyle::kFull, [&] {
      LogInfo(big, {{"a", big}, {"b", big}, TailField("c", big), {"d", big}, {"lease", 7u}});
    });
    EXPECT_LE(line.size(), kMaxLogLine);
    EXPECT_EQ(line.back(), '\n');
    const std::string one = LogText("m", {{"a", big}, {"lease", 7u}});
    EXPECT_LT(one.size(), kMaxLogText + 32);
    EXPECT_TRUE(one.ends_with("...\" lease=7") || one.ends_with("... lease=7")) << one;
    // A quote that the text has itself is never left unescaped by the cut.
    EXPECT_EQ(one.find("\\..."), c == '\\' ? one.find("\\\\...") + 1 : std::string::npos);
  }
}

TEST(Log, KeepsTheEndOfATail) {
  const std::string text = std::string(1 << 20, '\n') + "ValueError: the last word";
  const std::string line = LogText("m", {TailField("stderr", text)});
  EXPECT_TRUE(line.ends_with("ValueError: the last word\"")) << line;
  EXPECT_LT(line.size(), kMaxLogTail + 32);
}

}  // namespace
}  // namespace hutch
