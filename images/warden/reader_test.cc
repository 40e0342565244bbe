// SPDX-License-Identifier: Apache-2.0

#include "images/warden/reader.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "images/warden/measured_pipe.h"

namespace hutch {
namespace {

Reader::Answer Wait(Reader* reader, int answered) {
  pollfd event{answered, POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 30'000), 1);
  uint64_t times = 0;
  EXPECT_EQ(read(answered, &times, sizeof times), static_cast<ssize_t>(sizeof times));
  Reader::Answer answer;
  EXPECT_TRUE(reader->Take(&answer));
  return answer;
}

Reader* NewReader(Reader::Measure measure, int answered) {
  auto* reader = new Reader;  // its thread stays
  EXPECT_TRUE(reader->Start(measure, answered));
  return reader;
}

TEST(ReaderTest, KeepsNobodyWaitingWhileItWaits) {
  const int answered = eventfd(0, EFD_CLOEXEC);
  static Reader* const reader = NewReader(&MeasurePipe, answered);
  const Pipe pipe;
  EXPECT_FALSE(reader->busy());
  reader->Ask({.owner = 7, .cell = 3, .proc = pipe.ends[0]});
  Reader::Answer answer;
  while (!reader->Waits()) usleep(1000);
  EXPECT_TRUE(reader->busy());
  EXPECT_FALSE(reader->Take(&answer));
  EXPECT_EQ(reader->job().owner, 7);
  pipe.Say(42);
  EXPECT_EQ(Wait(reader, answered).usage.memory_kb, 42u);
  EXPECT_FALSE(reader->busy());
  EXPECT_FALSE(reader->Take(&answer)) << "an answer is taken once";
  EXPECT_LT(fcntl(pipe.ends[0], F_GETFD), 0) << "the job's descriptor is closed";
}

TEST(ReaderTest, AnotherIsServedWhileOneIsKept) {
  const int answered = eventfd(0, EFD_CLOEXEC);
  static Reader* const kept = NewReader(&MeasurePipe, answered);
  static Reader* const other = NewReader(&MeasurePipe, answered);
  const Pipe slow;
  const Pipe quick;
  kept->Ask({.owner = 0, .proc = slow.ends[0]});
  for (char i = 1; i < 4; ++i) {
    quick.Say(i);
    other->Ask({.owner = 1, .proc = dup(quick.ends[0])});
    EXPECT_EQ(Wait(other, answered).usage.memory_kb, static_cast<uint64_t>(i));
  }
  EXPECT_TRUE(kept->busy());
  slow.Say(9);
  EXPECT_EQ(Wait(kept, answered).usage.memory_kb, 9u);
  close(quick.ends[0]);
}

TEST(ReaderTest, LooksAtTheProcessesThatItIsAskedFor) {
  const int answered = eventfd(0, EFD_CLOEXEC);
  static Reader* const reader = NewReader(&MeasureExactly, answered);
  const pid_t own[] = {getpid()};
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  reader->Ask({.owner = 0, .proc = dup(proc), .only = own, .only_count = 1});
  const Usage usage = Wait(reader, answered).usage;
  EXPECT_EQ(usage.processes, 1u);
  EXPECT_GT(usage.memory_kb, 100u);
  close(proc);
}

}  // namespace
}  // namespace hutch
