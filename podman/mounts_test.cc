// SPDX-License-Identifier: Apache-2.0

#include "podman/mounts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;

MountSpec At(const std::string& destination, bool writable = false) {
  MountSpec mount;
  mount.source = "/srv/data";
  mount.destination = destination;
  mount.writable = writable;
  mount.device = 5;
  mount.inode = 7;
  return mount;
}

bool Refused(std::vector<MountSpec> mounts) {
  PoolSpec spec;
  spec.mounts = std::move(mounts);
  try {
    CheckMounts(spec);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return true;
  }
}

TEST(Mounts, GoWhereNothingOfHutchOrTheSystemLies) {
  for (const char* fine : {"/data", "/opt/data", "/home/me/set", "/var/lib/set", "/etcetera"})
    EXPECT_FALSE(Refused({At(fine)})) << fine;
  for (const char* taken :
       {"/", "", "data", "/etc", "/etc/ssl", "/usr/lib", "/opt", "/opt/hutch/x", "/proc/1",
        "/tmp/a", "/work", "/data/../etc", "/data/", "/a//b", "/a:b", "/a,b", "/a\nb", "/var"}) {
    EXPECT_TRUE(Refused({At(taken)})) << taken;
  }
}

TEST(Mounts, DoNotLieInEachOther) {
  EXPECT_TRUE(Refused({At("/data"), At("/data/sub")}));
  EXPECT_TRUE(Refused({At("/data"), At("/data")}));
  EXPECT_FALSE(Refused({At("/data"), At("/data2")}));
}

TEST(Mounts, ACopyIsNamedByItsDigestAndOnlyRead) {
  MountSpec mount = At("/data");
  mount.copy = std::string(64, 'a');
  EXPECT_FALSE(Refused({mount}));
  mount.writable = true;
  EXPECT_TRUE(Refused({mount}));
  mount.writable = false;
  mount.copy = "../../etc";
  EXPECT_TRUE(Refused({mount}));
}

TEST(Mounts, AreToldToTheWardenWithWhatWasVetted) {
  EXPECT_EQ(MountLines({At("/data"), At("/out", true)}), "ro\t5\t7\t/data\nrw\t5\t7\t/out\n");
}

TEST(Mounts, CopiesThatNobodyUsesAreRemoved) {
  Paths paths;
  paths.state_dir = fs::path(::testing::TempDir()) / "mounts_test";
  for (const char* name : {"used", "old"}) {
    fs::create_directories(fs::path(paths.copies_dir()) / name / "content");
    fs::last_write_time(fs::path(paths.copies_dir()) / name,
                        fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  fs::create_directories(fs::path(paths.copies_dir()) / "new");
  SweepCopies(paths, {"used"}, std::chrono::hours(1));
  EXPECT_TRUE(fs::exists(paths.copies_dir() + "/used/content"));
  EXPECT_TRUE(fs::exists(paths.copies_dir() + "/new"));
  EXPECT_FALSE(fs::exists(paths.copies_dir() + "/old"));
  EXPECT_EQ(std::distance(fs::directory_iterator(paths.copies_dir()), {}), 2);
  fs::remove_all(paths.state_dir);
}

}  // namespace
}  // namespace hutch
