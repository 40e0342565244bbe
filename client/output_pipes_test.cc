// SPDX-License-Identifier: Apache-2.0

#include "client/output_pipes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "wire/channel.h"

namespace hutch {
namespace {

class OutputPipesTest : public ::testing::Test {
 protected:
  OutputPipesTest() : OutputPipesTest(MakePipe(), MakePipe()) {}

  void Print(const Fd& pipe, const std::string& text) {
    ASSERT_EQ(::write(pipe.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  Fd out_, err_;  // the cell's
  OutputPipes pipes_;
  Output output_{1 << 20};

 private:
  OutputPipesTest(std::pair<Fd, Fd> out, std::pair<Fd, Fd> err)
      : out_(std::move(out.second)),
        err_(std::move(err.second)),
        pipes_(std::move(out.first), std::move(err.first)) {}
};

TEST_F(OutputPipesTest, KeepsBothStreamsApartAndTellsThemLive) {
  std::string live[2];
  Print(out_, "out");
  Print(err_, "err");
  pipes_.Read(output_, [&](int stream, std::string_view text) { live[stream] += text; });
  EXPECT_EQ(output_.text(0), "out");
  EXPECT_EQ(output_.text(1), "err");
  EXPECT_EQ(live[0] + live[1], "outerr");
}

TEST_F(OutputPipesTest, AStreamThatEndedIsPolledNoMore) {
  out_.reset();
  pipes_.Read(output_, {});
  EXPECT_EQ(pipes_.polled(0), -1);
  EXPECT_GE(pipes_.polled(1), 0);
  EXPECT_FALSE(pipes_.ended());
  err_.reset();
  pipes_.Read(output_, {});
  EXPECT_TRUE(pipes_.ended());
}

TEST_F(OutputPipesTest, TheRestIsAllThatIsThere) {
  Print(out_, std::string(60'000, 'x'));
  Print(err_, "err");
  pipes_.ReadRest(output_, {});
  EXPECT_EQ(output_.size(0), 60'000u);
  EXPECT_EQ(output_.size(1), 3u);
}

}  // namespace
}  // namespace hutch
