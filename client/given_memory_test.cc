// SPDX-License-Identifier: Apache-2.0

#include "client/given_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "wire/error.h"

namespace hutch {
namespace {

constexpr size_t kSize = 1 << 20;

off_t SizeOf(int fd) {
  struct stat status{};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return status.st_size;
}

long PagesOf(int fd) {
  struct stat status{};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return status.st_blocks;
}

// What a cell does with a descriptor that it was sent: another number, the same open file.
Fd Got(int sent) { return Fd(::fcntl(sent, F_DUPFD_CLOEXEC, 0)); }

void Write(const Fd& theirs, const std::string& bytes) {
  ASSERT_EQ(::pwrite(theirs.get(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
}

std::string Text(const PrivateMapping& mapping) { return {mapping.data(), mapping.size()}; }

void ExpectGone(const Fd& theirs) {
  EXPECT_EQ(SizeOf(theirs.get()), 0);
  EXPECT_EQ(PagesOf(theirs.get()), 0);
  EXPECT_NE(::ftruncate(theirs.get(), kSize), 0) << "it may not grow again";
  EXPECT_LT(::pwrite(theirs.get(), "x", 1, 0), 0);
  EXPECT_NE(::fallocate(theirs.get(), 0, 0, kSize), 0);
}

TEST(GivenMemory, OfACellThatStaysNothingIsLeftOnceItsResultIsRead) {
  GivenMemory given;
  const Fd theirs = Got(given.GiveForResult(kSize, true));
  const std::string result(kSize, 'r');
  Write(theirs, result);
  const PrivateMapping read = given.TakeResult(kSize);
  given.TakeBack();
  EXPECT_EQ(Text(read), result);
  ExpectGone(theirs);
  EXPECT_FALSE(given.has_result());
}

TEST(GivenMemory, NorIfItIsMappedOrWasNotUsed) {
  GivenMemory given;
  const Fd theirs = Got(given.GiveForResult(kSize, true));
  void* const mapped = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, theirs.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  static_cast<char*>(mapped)[0] = 'x';
  given.TakeBack();
  ExpectGone(theirs);
  ::munmap(mapped, kSize);
}

TEST(GivenMemory, AResultThatNobodyElseHasIsNotCopied) {
  GivenMemory given;
  Fd theirs = Got(given.GiveForResult(kSize, true));
  Write(theirs, std::string(kSize, 'r'));
  theirs.reset();
  const PrivateMapping read = given.TakeResult(kSize);
  EXPECT_FALSE(given.has_result()) << "it lives by its mapping alone";
  given.TakeBack();
  EXPECT_EQ(Text(read), std::string(kSize, 'r'));
}

TEST(GivenMemory, AResultThatIsCutShortIsNoResultWhetherItIsStillHeldOrNot) {
  for (const bool held : {true, false}) {
    for (const off_t size : {0, 1, 4096}) {
      GivenMemory given;
      Fd theirs = Got(given.GiveForResult(kSize, true));
      ASSERT_EQ(::ftruncate(theirs.get(), size), 0);
      if (!held) theirs.reset();
      EXPECT_THROW(given.TakeResult(kSize), Error);
    }
  }
}

TEST(GivenMemory, ACellCannotForbidThatItIsTakenBack) {
  GivenMemory given;
  const Fd theirs = Got(given.GiveForResult(kSize, true));
  for (const int seal : {F_SEAL_SHRINK, F_SEAL_WRITE, F_SEAL_SEAL})
    EXPECT_NE(::fcntl(theirs.get(), F_ADD_SEALS, seal), 0);
  Write(theirs, "x");
  given.TakeBack();
  ExpectGone(theirs);
}

TEST(GivenMemory, ACellThatEndsWithItsCallTakesItsResultWithIt) {
  GivenMemory given;
  const Fd theirs = Got(given.GiveForResult(kSize, false));
  Write(theirs, "result");
  const PrivateMapping read = given.TakeResult(6);
  given.TakeBack();
  EXPECT_EQ(Text(read), "result");
  EXPECT_TRUE(given.has_result());
  EXPECT_NE(::ftruncate(theirs.get(), 1), 0) << "its reader would get SIGBUS";
}

TEST(GivenMemory, AnAnswerIsTakenBackWithTheNextAndTheLastAtTheEnd) {
  GivenMemory given;
  const std::string answer(kSize, 'a');
  const Fd first = Got(given.GiveAnswer(answer));
  std::string read(kSize, '\0');
  EXPECT_EQ(::pread(first.get(), read.data(), kSize, 0), static_cast<ssize_t>(kSize));
  EXPECT_EQ(read, answer);
  EXPECT_LT(::pwrite(first.get(), "x", 1, 0), 0);
  const Fd second = Got(given.GiveAnswer(answer));
  ExpectGone(first);
  EXPECT_EQ(SizeOf(second.get()), static_cast<off_t>(kSize));
  given.TakeBack();
  ExpectGone(second);
}

}  // namespace
}  // namespace hutch
