// SPDX-License-Identifier: Apache-2.0

#include "client/result_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "wire/error.h"

namespace hutch {
namespace {

const std::string kUsage(sizeof(CallUsage), '\0');

std::string Text(const CallOutcome& outcome) {
  return {outcome.payload->data(), outcome.payload->size()};
}

TEST(ResultReader, TakesASmallResultFromItsFrame) {
  ResultReader reader;
  CallOutcome outcome;
  reader.Take({.b = 6, .c = 6}, kUsage + "result", outcome);
  EXPECT_EQ(Text(outcome), "result");
  EXPECT_EQ(outcome.result_size, 6u);
}

TEST(ResultReader, PutsPartsTogether) {
  ResultReader reader;
  CallOutcome outcome;
  reader.AddPart({.c = 6}, "res", 100);
  reader.AddPart({.c = 6}, "ult", 100);
  EXPECT_EQ(reader.parts_size(), 6u);
  reader.Take({.a = kFlagInParts, .b = 6, .c = 6}, kUsage, outcome);
  EXPECT_EQ(Text(outcome), "result");
  EXPECT_EQ(reader.parts_size(), 0u);
}

TEST(ResultReader, TakesALargeOneFromWhatTheCellWasGiven) {
  ResultReader reader;
  CallOutcome outcome;
  const int theirs = reader.GiveMemory(1 << 20, true);
  ASSERT_EQ(::pwrite(theirs, "result", 6, 0), 6);
  reader.Take({.a = kFlagInMemfd, .b = 6, .c = 6}, kUsage, outcome);
  EXPECT_EQ(Text(outcome), "result");
}

TEST(ResultReader, RefusesWhatContradictsItself) {
  const auto take = [](FrameHeader header, const std::string& payload) {
    ResultReader reader;
    CallOutcome outcome;
    reader.AddPart({.c = 6}, "res", 100);
    EXPECT_THROW(reader.Take(header, payload, outcome), Error);
  };
  take({.b = 6, .c = 6}, "");                         // no usage
  take({.b = 7, .c = 6}, kUsage + "result");          // a body larger than all
  take({.b = 6, .c = 7}, kUsage + "result");          // another size
  take({.a = 3, .b = 6, .c = 6}, kUsage);             // both ways
  take({.a = kFlagInParts, .b = 6, .c = 6}, kUsage);  // parts are missing
  take({.a = kFlagInMemfd, .b = 6, .c = 6}, kUsage);  // no memory was given
  ResultReader reader;
  EXPECT_THROW(reader.AddPart({.c = 101}, "x", 100), Error);
  reader.AddPart({.c = 6}, "res", 100);
  EXPECT_THROW(reader.AddPart({.c = 7}, "ult", 100), Error);
  EXPECT_THROW(reader.AddPart({.c = 6}, "results", 100), Error);
  EXPECT_THROW(reader.AddPart({.c = 6}, "", 100), Error);
}

TEST(ResultReader, OfAnotherCallNothingIsLeft) {
  ResultReader reader;
  reader.AddPart({.c = 6}, "res", 100);
  reader.GiveMemory(4096, true);
  reader.Begin();
  EXPECT_EQ(reader.parts_size(), 0u);
  EXPECT_FALSE(reader.given().has_result());
}

}  // namespace
}  // namespace hutch
