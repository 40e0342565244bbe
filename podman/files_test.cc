// SPDX-License-Identifier: Apache-2.0

#include "podman/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "wire/fd.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() {
    char name[] = "/tmp/hutch-files-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  ~Files() override { fs::remove_all(directory_); }

  fs::path directory_;
};

TEST_F(Files, AreReadUpToALimitAndNotBeyond) {
  const fs::path path = directory_ / "file";
  std::ofstream(path) << "four";
  EXPECT_EQ(ReadRegularFile(path, 4), "four");
  EXPECT_EQ(ReadRegularFile(path, 3), std::nullopt);
  fs::resize_file(path, uint64_t{1} << 40);  // nothing of it is on the disk
  EXPECT_EQ(ReadRegularFile(path, 1 << 20), std::nullopt);
  EXPECT_TRUE(ReadRegularFile("/proc/self/status", 1 << 16).has_value());  // of no size
  EXPECT_EQ(ReadRegularFile("/proc/self/status", 16), std::nullopt);
}

TEST_F(Files, OfOtherKindsAreNotReadNorWaitedFor) {
  std::ofstream(directory_ / "file") << "text";
  fs::create_symlink("file", directory_ / "link");
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe", "missing", "."})
    EXPECT_EQ(ReadRegularFile(directory_ / name, 100), std::nullopt) << name;
  EXPECT_EQ(ReadRegularFile("/dev/zero", 100), std::nullopt);
}

TEST_F(Files, OfATreeAreRemovedAndWhatLinksLeadToStays) {
  const fs::path tree = directory_ / "tree";
  fs::create_directories(tree / "a" / "b");
  std::ofstream(directory_ / "kept") << "x";
  std::ofstream(tree / "a" / "file") << "x";
  fs::create_symlink(directory_, tree / "up");
  fs::create_symlink(directory_ / "kept", tree / "a" / "b" / "link");
  fs::create_directory(tree / ".hutch-removed-0");
  std::ofstream(tree / ".hutch-removed-0" / "x") << "x";
  fs::create_directories(tree / "locked" / "inner");
  fs::permissions(tree / "locked" / "inner", fs::perms::none);
  fs::permissions(tree / "locked", fs::perms::none);
  RemoveTree(tree);
  EXPECT_FALSE(fs::exists(tree));
  EXPECT_TRUE(fs::exists(directory_ / "kept"));
  RemoveTree(directory_ / "kept");
  EXPECT_FALSE(fs::exists(directory_ / "kept"));
  RemoveTree(directory_ / "missing");
}

TEST_F(Files, OfATreeOfAnyDepthAreRemovedWithFewDescriptors) {
  const fs::path tree = directory_ / "tree";
  fs::create_directory(tree);
  Fd at(::open(tree.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), "d", 0700), 0);
    ASSERT_EQ(::mkdirat(at.get(), "e", 0700), 0);
    at.reset(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  at.reset();
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {40, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  RemoveTree(tree);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(fs::exists(tree));
}

}  // namespace
}  // namespace hutch
