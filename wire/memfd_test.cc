// SPDX-License-Identifier: Apache-2.0

#include "wire/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

#include "wire/channel.h"
#include "wire/error.h"

namespace hutch {
namespace {

TEST(Memfd, ASealedOneNeverChanges) {
  const Fd fd = MakeSealedMemfd("test", "hello", 5);
  EXPECT_EQ(ReadSealedMemfd(fd.get(), 100), "hello");
  EXPECT_EQ(::pwrite(fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd.get(), 1), -1);
  EXPECT_EQ(::ftruncate(fd.get(), 100), -1);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(::mmap(nullptr, 5, PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
}

TEST(Memfd, AnEmptyOneIsReadAsNothing) {
  const Fd fd = MakeSealedMemfd("test", nullptr, 0);
  EXPECT_EQ(ReadSealedMemfd(fd.get(), 0), "");
}

TEST(Memfd, RefusesToReadWhatCouldBeCutShort) {
  const Fd fd(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), 10), 0);
  EXPECT_THROW(ReadSealedMemfd(fd.get(), 100), Error);
  auto pipe = std::to_array<int>({0, 0});
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const Fd read_end(pipe[0]);
  const Fd write_end(pipe[1]);
  EXPECT_THROW(ReadSealedMemfd(read_end.get(), 100), Error);
}

TEST(Memfd, RefusesToReadMoreThanTheLimit) {
  const Fd fd = MakeSealedMemfd("test", "hello", 5);
  EXPECT_THROW(ReadSealedMemfd(fd.get(), 4), Error);
}

TEST(Memfd, WhoIsLentOneHasAnOpenFileOfItsOwnToReadBy) {
  const Fd fd = MakeSealedMemfd("test", "hello", 5);
  const Fd one = LendMemfd(fd.get());
  const Fd other = LendMemfd(fd.get());
  EXPECT_EQ(::lseek(one.get(), 3, SEEK_SET), 3);
  EXPECT_EQ(::fcntl(one.get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(::lseek(other.get(), 0, SEEK_CUR), 0);
  EXPECT_EQ(::fcntl(other.get(), F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDONLY);
  EXPECT_EQ(ReadSealedMemfd(other.get(), 5), "hello");
}

TEST(Memfd, NobodyWhoIsLentALockedOneCanTellWhoElseLocksIt) {
  const Fd fd = MakeSealedMemfd("test", "hello", 5);
  HoldSharedLocks(fd.get());
  const Fd one = LendMemfd(fd.get());
  const Fd other = LendMemfd(fd.get());
  for (const int held : {LOCK_UN, LOCK_SH}) {
    EXPECT_EQ(::flock(one.get(), held | LOCK_NB), 0);
    EXPECT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), -1);
  }
}

TEST(Memfd, AResultCanBeFilledButNotResized) {
  const Fd fd = MakeResultMemfd(8);
  EXPECT_EQ(::pwrite(fd.get(), "12345678", 8, 0), 8);
  EXPECT_EQ(::pwrite(fd.get(), "9", 1, 8), -1);
  EXPECT_EQ(::ftruncate(fd.get(), 4), -1);
  EXPECT_EQ(::ftruncate(fd.get(), 16), -1);
}

TEST(Memfd, IsKnownToBeHeldElsewhereWhileAnyOpenFileOfItIsThere) {
  auto [ours, theirs] = MakeReturnableMemfd(4096);
  EXPECT_TRUE(IsHeldElsewhere(ours.get()));
  auto [one, other] = MakeSocketPair();  // on its way is held, too
  const char byte = 0;
  const iovec part{const_cast<char*>(&byte), 1};
  const int descriptor = theirs.get();
  ASSERT_EQ(SendDatagram(one.get(), {&part, 1}, {&descriptor, 1}), SendStatus::kSent);
  theirs.reset();
  EXPECT_TRUE(IsHeldElsewhere(ours.get()));
  other.reset();
  EXPECT_FALSE(IsHeldElsewhere(ours.get()));
  Fd reader = LendMemfd(ours.get());
  EXPECT_TRUE(IsHeldElsewhere(ours.get()));
  void* mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, reader.get(), 0);
  reader.reset();
  EXPECT_TRUE(IsHeldElsewhere(ours.get()));
  ::munmap(mapped, 4096);
  EXPECT_FALSE(IsHeldElsewhere(ours.get()));
}

TEST(PrivateMapping, SealsTheFileAndIsWritableForUsAlone) {
  const Fd fd = MakeResultMemfd(4);
  ASSERT_EQ(::pwrite(fd.get(), "abcd", 4, 0), 4);
  const PrivateMapping mapping(fd.get(), 4);
  EXPECT_EQ(std::string_view(mapping.data(), mapping.size()), "abcd");
  EXPECT_EQ(::pwrite(fd.get(), "x", 1, 0), -1) << "the peer may still write";
  mapping.data()[0] = 'z';
  char byte = 0;
  ASSERT_EQ(::pread(fd.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'a');
}

TEST(PrivateMapping, CopiesWhereThePeerKeepsAWritableMapping) {
  const Fd fd = MakeResultMemfd(4096);
  auto* theirs =
      static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(static_cast<void*>(theirs), MAP_FAILED);
  std::memcpy(theirs, "before", 6);
  const PrivateMapping mapping(fd.get(), 4096);
  std::memcpy(theirs, "after!", 6);
  EXPECT_EQ(std::string_view(mapping.data(), 6), "before");
  ::munmap(theirs, 4096);
}

TEST(PrivateMapping, OfNothingIsNothing) {
  const Fd fd = MakeResultMemfd(0);
  const PrivateMapping mapping(fd.get(), 0);
  EXPECT_EQ(mapping.data(), nullptr);
  EXPECT_EQ(mapping.size(), 0u);
}

TEST(PrivateMapping, IsMovedNotShared) {
  const Fd fd = MakeResultMemfd(1);
  PrivateMapping first(fd.get(), 1);
  PrivateMapping second(std::move(first));
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): what is left is the claim
  PrivateMapping third;
  third = std::move(second);
  EXPECT_NE(third.data(), nullptr);
}

}  // namespace
}  // namespace hutch
