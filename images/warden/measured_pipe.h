// SPDX-License-Identifier: Apache-2.0

// In place of a file that another process keeps locked: the descriptor of a job is a pipe, and the
// byte that is said there is what the job measures. For tests of the readers.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "images/warden/reader.h"

namespace hutch {

inline std::atomic<int> measurements_begun{0};

inline Reader::Answer MeasurePipe(const Reader::Job& job) {
  char byte = 0;
  Reader::Answer answer;
  ++measurements_begun;
  if (read(job.proc, &byte, 1) == 1) answer.usage.memory_kb = static_cast<uint64_t>(byte);
  return answer;
}

// Returns once the pipe keeps the reader waiting, and not what it waits for before.
inline void AskAndWait(Reader* reader, const Reader::Job& job) {
  const int before = measurements_begun;
  reader->Ask(job);
  while (measurements_begun == before || !reader->Waits()) usleep(1000);
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() { close(ends[1]); }
  void Say(char byte) const { EXPECT_EQ(write(ends[1], &byte, 1), 1); }
  int ends[2];
};

}  // namespace hutch
