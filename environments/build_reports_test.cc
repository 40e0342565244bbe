// SPDX-License-Identifier: Apache-2.0

#include "environments/build_reports.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hutch {
namespace {

using Strings = std::vector<std::string>;

TEST(InstallItem, IsProgressAFailureOrTheEnd) {
  const InstallItem progress =
      ReadInstallItem(R"({"stage": "download", "text": "six", "done": 1, "total": 2})");
  EXPECT_EQ(progress.progress, (BuildProgress{"download", "six", 1, 2}));
  EXPECT_FALSE(progress.end || progress.failure);
  const InstallItem failure = ReadInstallItem(R"({"failed": "resolve", "log": "no six"})");
  ASSERT_TRUE(failure.failure);
  EXPECT_EQ(failure.failure->code(), Code::kInstallFailed);
  const InstallItem end = ReadInstallItem(
      R"({"packages": ["six==1.17"], "modules": ["six"], "uncompiled": [], "bytes": 9, "files": 1})");
  ASSERT_TRUE(end.end);
  EXPECT_EQ(end.end->packages, Strings{"six==1.17"});
  EXPECT_EQ(end.end->modules, Strings{"six"});
  EXPECT_EQ(end.end->bytes, 9u);
}

TEST(InstallItem, HasNothingOfWhatIsMalformed) {
  for (const char* line : {"", "nonsense", "[]", "7", R"({"stage": "\u001b[2J", "text": "x"})",
                           R"({"stage": 3})", "\xff{}"}) {
    const InstallItem item = ReadInstallItem(line);
    EXPECT_FALSE(item.progress || item.failure || item.end) << line;
  }
  const InstallItem end = ReadInstallItem(
      R"({"packages": ["a\u001b[2Jb", 3], "modules": ["../x", "six"], "bytes": -1, "files": 1e300})");
  ASSERT_TRUE(end.end);
  EXPECT_EQ(end.end->packages, Strings{"a [2Jb"});
  EXPECT_EQ(end.end->modules, Strings{"six"});
  EXPECT_EQ(end.end->bytes + end.end->files, 0u);
}

TEST(ProbeAnswer, KeepsWhatLoadsAndNamesWhatDoesNot) {
  const ProbeAnswer answer = ReadProbeAnswer(
      R"({"modules": [{"module": "six", "ok": true, "sec": 0.1, "threads": 0, "error": ""},
                      {"module": "bad", "ok": false, "error": "ImportError: no libfoo"},
                      {"module": "busy", "ok": true, "threads": 3}],
          "files": ["six.py", "pkg/a.py"]})",
      {"six", "bad", "busy", "lost"});
  EXPECT_EQ(answer.preload, Strings{"six"});
  EXPECT_EQ(answer.files, (Strings{"six.py", "pkg/a.py"}));
  ASSERT_EQ(answer.notes.size(), 3u);
  EXPECT_NE(answer.notes[0].find("ImportError: no libfoo"), std::string::npos);
  EXPECT_NE(answer.notes[1].find("starts threads"), std::string::npos);
  EXPECT_NE(answer.notes[2].find("lost"), std::string::npos);
}

TEST(ProbeAnswer, TakesNoModuleThatWasNotAskedFor) {
  const ProbeAnswer answer =
      ReadProbeAnswer(R"({"modules": [{"module": "os", "ok": true}, {"module": "six", "ok": true},
                                      {"module": "six", "ok": true}]})",
                      {"six"});
  EXPECT_EQ(answer.preload, Strings{"six"});
}

TEST(ProbeAnswer, TakesNoPathThatLeadsOut) {
  const ProbeAnswer answer = ReadProbeAnswer(
      R"({"files": ["../x.py", "/etc/x.py", "a/../../x.py", "a//b.py", "./a.py", "a.so", 7, "a\u0000.py",
                      "ok.py"]})",
      {});
  EXPECT_EQ(answer.files, (Strings{"a//b.py", "ok.py"}));
}

TEST(ProbeAnswer, SurvivesAnythingAPackageMayWrite) {
  const Strings asked = {"six"};
  for (const std::string& text :
       {std::string(), std::string("nonsense"), std::string("[]"), std::string("{\"modules\": 3}"),
        std::string("{\"modules\": [{\"module\": [], \"ok\": \"yes\"}]}"),
        std::string(1 << 20, '['),
        std::string("{\"modules\": [{\"module\": \"six\", \"ok\": true, \"threads\": \"many\"}]"),
        std::string("\xff\xfe{}")}) {
    const ProbeAnswer answer = ReadProbeAnswer(text, asked);
    EXPECT_TRUE(answer.preload.empty());
    EXPECT_EQ(answer.notes.size(), 1u);
  }
}

TEST(ProbeAnswer, PutsNoControlCharactersIntoNotes) {
  const ProbeAnswer answer = ReadProbeAnswer(
      R"({"modules": [{"module": "six", "ok": false, "error": "\u001b]0;x\u0007\n"}]})", {"six"});
  ASSERT_EQ(answer.notes.size(), 1u);
  for (const char c : answer.notes[0]) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

}  // namespace
}  // namespace hutch
