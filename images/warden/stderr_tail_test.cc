// SPDX-License-Identifier: Apache-2.0

#include "images/warden/stderr_tail.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace hutch {
namespace {

// Writes as much of it as the pipe takes.
size_t Write(const StderrTail& tail, const std::string& text) {
  fcntl(tail.write_end(), F_SETFL, O_NONBLOCK);
  const ssize_t written = write(tail.write_end(), text.data(), text.size());
  return written < 0 ? 0 : static_cast<size_t>(written);
}

std::string Text(const StderrTail& tail) { return {tail.text(), tail.size()}; }

TEST(StderrTail, KeepsTheLastBytes) {
  StderrTail tail;
  tail.Open();
  Write(tail, "one ");
  tail.Read();
  Write(tail, "two");
  tail.Read();
  EXPECT_EQ(Text(tail), "one two");
  Write(tail, std::string(kMaxZygoteStderr - 5, 'x') + "end");
  tail.Read();
  EXPECT_EQ(Text(tail), "wo" + std::string(kMaxZygoteStderr - 5, 'x') + "end");
  tail.Clear();
  EXPECT_EQ(Text(tail), "");
  tail.Close();
}

TEST(StderrTail, EmptiesAFullPipeAndKeepsItsEnd) {
  StderrTail tail;
  tail.Open();
  const std::string big(64 * 1024, '\x1b');
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Write(tail, big), big.size());
    tail.Read();
    EXPECT_EQ(tail.size(), kMaxZygoteStderr);
  }
  Write(tail, "the end");
  tail.Read();
  EXPECT_TRUE(Text(tail).ends_with("the end"));
  tail.Close();
}

TEST(StderrTail, HasNothingWithoutAPipe) {
  StderrTail tail;
  tail.Read();
  EXPECT_EQ(tail.size(), 0u);
  tail.Open();
  Write(tail, "thrown away");
  tail.Close();
  tail.Read();
  EXPECT_EQ(tail.size(), 0u);
  EXPECT_EQ(tail.write_end(), -1);
}

}  // namespace
}  // namespace hutch
