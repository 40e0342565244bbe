// SPDX-License-Identifier: Apache-2.0

#include "agent/audit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace hutch {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

class AuditTest : public ::testing::Test {
 protected:
  AuditTest() {
    char name[] = "/tmp/hutch-audit-XXXXXX";
    top_ = ::mkdtemp(name);
    dir_ = top_ + "/audit";
  }
  ~AuditTest() override { std::filesystem::remove_all(top_); }

  static AuditEntry Entry(uint64_t id, const std::string& label = "x") {
    AuditEntry entry;
    entry.pool = std::make_shared<const AuditPool>(
        AuditPool{std::string(64, 'k'), std::string(64, 'd'), {{"team", label}}, "batch"});
    entry.caller = {1000, 42};
    entry.note = {.ending = Ending::kReturned,
                  .queue_us = 10,
                  .run_us = 2'000'000,
                  .call_id = id,
                  .policy = 0xabc,
                  .function = {1, 2}};
    entry.worker.push_back('w');
    return entry;
  }
  static std::vector<json> Read(const std::string& file) {
    std::vector<json> lines;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }
  std::vector<json> Read() const { return Read(dir_ + "/audit.jsonl"); }
  void RunFor(milliseconds time) {
    loop_.After(time, [this] { loop_.Stop(); });
    loop_.Run();
  }
  void RunUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 2000 && !done(); ++i) RunFor(milliseconds(10));
    EXPECT_TRUE(done());
  }

  Loop loop_;
  std::string top_, dir_;
};

TEST_F(AuditTest, ACallIsOneLineWithWhoWhatAndHow) {
  AuditEntry entry = Entry(0xfeed);
  entry.report = CellReport{};
  entry.report->memory_limit_kb = 1;
  entry.report->cpu_us = 1'500'000;
  entry.report->peak_kb = 10;
  entry.network = {{"example.org", 443, true, "", "", 90, 9},
                   {"evil.org", 80, false, "not allowed", "evil.org"}};
  const json line = json::parse(AuditLine(entry));
  EXPECT_EQ(line["event"], "call");
  EXPECT_EQ(line["call_id"], "000000000000feed");
  EXPECT_EQ(line["uid"], 1000);
  EXPECT_EQ(line["pid"], 42);
  EXPECT_EQ(line["labels"]["team"], "x");
  EXPECT_EQ(line["tenant"], "batch");
  EXPECT_EQ(line["digest"], std::string(64, 'd'));
  EXPECT_EQ(line["code"], "00000000000000010000000000000002");
  EXPECT_EQ(line["policy"], "0000000000000abc");
  EXPECT_EQ(line["status"], "returned");
  EXPECT_EQ(line["usage"]["wall_sec"], 2.0);
  EXPECT_EQ(line["usage"]["cpu_sec"], 1.5);
  EXPECT_EQ(line["usage"]["peak_memory_bytes"], 10240);
  ASSERT_EQ(line["network"].size(), 2u);
  EXPECT_EQ(line["network"][0]["host"], "example.org");
  EXPECT_EQ(line["network"][0]["bytes"], 99);
  EXPECT_EQ(line["network"][1]["allowed"], false);
  EXPECT_EQ(line["network"][1]["reason"], "not allowed");
}

TEST_F(AuditTest, TextOfCallersCannotBreakALine) {
  const std::string line = AuditLine(Entry(1, "a\nb\"}\xff\x1b[31m"));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_EQ(json::parse(line)["call_id"], "0000000000000001");
}

TEST_F(AuditTest, WhatIsAppendedIsInTheFileSoonAndForItsOwnerOnly) {
  AuditLog log(loop_, dir_, {});
  log.Append(Entry(1));
  log.Append(Entry(2));
  RunUntil([&] { return std::filesystem::exists(dir_ + "/audit.jsonl") && Read().size() == 2; });
  log.Append(Entry(3));
  RunUntil([&] { return Read().size() == 3; });
  EXPECT_EQ(Read()[2]["call_id"], "0000000000000003");
  struct stat st{};
  ASSERT_EQ(::stat((dir_ + "/audit.jsonl").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(dir_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
}

TEST_F(AuditTest, WhatWaitsIsWrittenWhenTheLogEnds) {
  {
    AuditLog(loop_, dir_, {}).Append(Entry(7));
  }
  ASSERT_EQ(Read().size(), 1u);
}

TEST_F(AuditTest, ABatchThatWasNotBegunIsNotLostAtTheEnd) {
  for (int i = 0; i < 5; ++i) {
    AuditLog log(loop_, dir_, {});
    log.Append(Entry(static_cast<uint64_t>(i + 1)));
    RunFor(milliseconds(201));
  }
  EXPECT_EQ(Read().size(), 5u);
}

TEST_F(AuditTest, APolicyIsToldOnce) {
  {
    AuditLog log(loop_, dir_, {});
    Prepare prepare;
    prepare.policy = 0xabc;
    prepare.spec.secrets = {{"api.example.org", "Authorization", "the-value", {}, {}}};
    prepare.limits.timeout_ms = 0;
    log.NotePolicy(prepare);
    log.NotePolicy(prepare);
  }
  ASSERT_EQ(Read().size(), 1u);
  EXPECT_EQ(Read()[0]["event"], "policy");
  EXPECT_EQ(Read()[0]["policy"], "0000000000000abc");
  EXPECT_EQ(Read()[0]["timeout_sec"], nullptr);
  EXPECT_EQ(Read()[0]["memory_mb"], 1024);
  EXPECT_EQ(Read()[0]["isolation"], "cell");
  EXPECT_EQ(Read()[0]["secrets"][0], "api.example.org Authorization");
  EXPECT_EQ(Read()[0].dump().find("the-value"), std::string::npos);
}

TEST_F(AuditTest, ItIsRotatedBySizeAndTheOldestGoes) {
  const AuditSettings settings{.file_mb = 1, .files = 3};
  const std::string wide(100'000, 'w');
  for (uint64_t i = 1; i <= 60; ++i) {
    AuditLog log(loop_, dir_, settings);
    log.Append(Entry(i, wide));
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
    names.push_back(entry.path().filename().string());
    EXPECT_LE(entry.file_size(), 1u << 20);
  }
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(Read().back()["call_id"], "000000000000003c");
  const auto oldest = Read(dir_ + "/audit.jsonl.2");
  const auto newer = Read(dir_ + "/audit.jsonl.1");
  EXPECT_LT(oldest.back()["call_id"].get<std::string>(), newer[0]["call_id"].get<std::string>());
}

TEST_F(AuditTest, ADiskThatTakesNothingCostsEntriesThatAreCountedAndSaid) {
  std::filesystem::create_directories(dir_ + "/audit.jsonl");  // no file can be there
  {
    AuditLog log(loop_, dir_, {});
    log.Append(Entry(1));
    RunUntil([&] { return log.dropped() == 1; });
    std::filesystem::remove(dir_ + "/audit.jsonl");
    log.Append(Entry(2));
    RunUntil([&] { return std::filesystem::exists(dir_ + "/audit.jsonl") && Read().size() == 2; });
  }
  EXPECT_EQ(Read()[0]["call_id"], "0000000000000002");
  EXPECT_EQ(Read()[1]["event"], "dropped");
  EXPECT_EQ(Read()[1]["calls"], 1);
}

TEST_F(AuditTest, AFloodIsBoundedAndTheRestIsCounted) {
  {
    AuditLog log(loop_, dir_, {.most_waiting = 100});
    for (uint64_t i = 0; i < 105; ++i) log.Append(Entry(i + 1));
    EXPECT_EQ(log.dropped(), 5u);
  }
  EXPECT_EQ(Read().size(), 101u);
  EXPECT_EQ(Read().back()["calls"], 5);
}

TEST_F(AuditTest, SwitchedOffItWritesNothing) {
  {
    AuditLog(loop_, dir_, {.enabled = false}).Append(Entry(1));
  }
  EXPECT_FALSE(std::filesystem::exists(dir_));
}

}  // namespace
}  // namespace hutch
