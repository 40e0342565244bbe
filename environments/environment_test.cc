// SPDX-License-Identifier: Apache-2.0

#include "environments/environment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "tests/faults/own_mounts.h"
#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using std::chrono::steady_clock;

EnvironmentSpec Spec(std::vector<std::string> requirements) {
  EnvironmentSpec spec;
  spec.requirements = std::move(requirements);
  spec.python_version = "3.11.7";
  spec.platform = "linux_x86_64";
  spec.base_id = std::string(32, 'b');
  spec.runtime_id = std::string(32, 'a');
  return spec;
}

Code CodeOf(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return Code::kInternal;
}

TEST(EnvironmentDigest, IsOneForEveryOrderOfASet) {
  EXPECT_EQ(DigestOf(Spec({"a", "b>=2"})), DigestOf(Spec({"b>=2", "a", "a"})));
  EXPECT_EQ(DigestOf(Spec({})).size(), 64u);
}

TEST(EnvironmentDigest, IsAnotherForEverythingThatChangesTheContent) {
  const EnvironmentSpec base = Spec({"a", "b"});
  std::vector<EnvironmentSpec> others(18, base);
  others[0].requirements = {"ab"};
  others[1].python_version = "3.12.1";
  others[2].platform = "linux_aarch64";
  others[3].base_id = std::string(32, 'c');
  others[4].index.index_url = "https://index.example/simple";
  others[5].index.extra_index_urls = "https://index.example/simple";
  others[6].allow_sdists = true;
  others[7].nonce = "1";
  others[8].requirements = {"a", "b; python_version < '3'"};
  others[9].constraints = {"a<2"};
  others[10].lock = "a==1 --hash=sha256:0";
  others[11].index.find_links = "https://pages.example/";
  others[12].links.resize(1);
  others[12].links[0].source = "/wheels";
  others[13].venv = others[12].links;
  others[14].constraints = {"a<2", "b"};
  others[15].node_requirements = {"a@*", "b@*"};
  others[16].node_requirements = {"a@1", "b@*"};
  others[17].node_requirements = {"a@*", "b@*"};
  others[17].index.npm_sources = "registry=https://npm.example/";
  std::set<std::string> digests = {DigestOf(base)};
  for (const EnvironmentSpec& spec : others) EXPECT_TRUE(digests.insert(DigestOf(spec)).second);
}

TEST(EnvironmentDigest, IsTheSameWhateverBuildsItAndPreloadsIt) {
  EnvironmentSpec other = Spec({"a"});
  other.runtime_id = std::string(32, 'f');
  other.preload = {"a.b"};
  other.preload_given = true;
  other.index.https_proxy = "http://proxy.example:3128";
  EXPECT_EQ(DigestOf(other), DigestOf(Spec({"a"})));
}

TEST(EnvironmentSpec, TakesNamesWithExtrasVersionsAndMarkers) {
  EXPECT_NO_THROW(CheckSpec(
      Spec({"six", "Pandas>=2,<3", "a.b-c_d[x,y-z]==1.0.*", "numpy===1.2+local", "x~=1.4",
            "tomli>=1; python_version < \"3.11\"", "a ; (os_name == 'posix' or extra == \"b\")"})));
}

TEST(EnvironmentSpec, TakesAnAddressOnlyWhereThatIsAllowed) {
  EnvironmentSpec spec = Spec({"six @ https://files.example/six-1.0-py3-none-any.whl",
                               "a[b] @ http://h/a.whl ; python_version >= \"3.11\""});
  EXPECT_EQ(CodeOf([&] { CheckSpec(spec); }), Code::kInvalidArgument);
  spec.allow_urls = true;
  EXPECT_NO_THROW(CheckSpec(spec));
  for (const char* bad : {"six @ file:///x.whl", "six @ git+https://h/x", "six @ https://h/a b",
                          "six @ https://h/\n-e", "-x @ https://h/", "six @ https://h/${HOME}"}) {
    spec.requirements = {bad};
    EXPECT_EQ(CodeOf([&] { CheckSpec(spec); }), Code::kInvalidArgument) << bad;
  }
}

TEST(EnvironmentSpec, TakesPackagesOfNpmByNameAndVersionAlone) {
  EnvironmentSpec spec = Spec({});
  spec.node_requirements = {"lodash@4", "@types/node@>=1 <2 || 3.x - 4", "JSONStream@latest",
                            "a@*"};
  spec.index.npm_sources = "registry=https://h/npm/\n@mine:registry=http://h:1/";
  spec.index.npm_credentials = "//h/npm/:_authToken=abc==\n//h:1/:username=me";
  EXPECT_NO_THROW(CheckSpec(spec));
  for (const char* bad : {"lodash",
                          "@a/b",
                          "--ignore-scripts=false",
                          "-g@1",
                          "a@-g",
                          "../a@1",
                          "a@./b",
                          "a@file:b",
                          "a@https://h/a.tgz",
                          "a@git+ssh://h/a",
                          "a@me/a",
                          "a@npm:b@1",
                          "a@b.tgz",
                          "a@",
                          "a@~/b",
                          "a@1\n--x",
                          "@/b@1",
                          "@a/@1",
                          "a/b@1",
                          "@a/b/c@1",
                          ".bin@1",
                          "a@1\"",
                          "\u0430@1"}) {
    EnvironmentSpec other = Spec({});
    other.node_requirements = {bad};
    EXPECT_EQ(CodeOf([&] { CheckSpec(other); }), Code::kInvalidArgument) << bad;
  }
  for (const char* bad : {"ignore-scripts=false", "registry=https://h/ x", "registry", "git=/x",
                          "registry=a\nscript-shell=b", "//h/:_authToken=t", "node-options=x"}) {
    EnvironmentSpec other = spec;
    other.index.npm_sources = bad;
    EXPECT_EQ(CodeOf([&] { CheckSpec(other); }), Code::kInvalidArgument) << bad;
  }
  for (const char* bad : {"registry=https://h/", "//h/:tokenHelper=/bin/x", "//h/:keyfile=/x"}) {
    EnvironmentSpec other = spec;
    other.index.npm_credentials = bad;
    EXPECT_EQ(CodeOf([&] { CheckSpec(other); }), Code::kInvalidArgument) << bad;
  }
}

TEST(EnvironmentSpec, TakesNoOptionAsAConstraint) {
  EnvironmentSpec spec = Spec({"six"});
  spec.constraints = {"six<2"};
  EXPECT_NO_THROW(CheckSpec(spec));
  spec.constraints = {"-r /etc/passwd"};
  EXPECT_EQ(CodeOf([&] { CheckSpec(spec); }), Code::kInvalidArgument);
}

TEST(EnvironmentSpec, RefusesOptionsUrlsPathsAndControlCharacters) {
  for (const std::string& bad : {std::string("--index-url=http://evil"),
                                 std::string("-r /etc/passwd"),
                                 std::string("-e ."),
                                 std::string("-c f"),
                                 std::string("--config-settings=x"),
                                 std::string("pkg @ file:///x"),
                                 std::string("./x.whl"),
                                 std::string("/x.whl"),
                                 std::string("git+ssh://h/x"),
                                 std::string("https://h/x.whl"),
                                 std::string("x\ny"),
                                 std::string("x\r-e ."),
                                 std::string("x\0y", 3),
                                 std::string(" x"),
                                 std::string("x "),
                                 std::string(""),
                                 std::string("x # y"),
                                 std::string("${HOME}"),
                                 std::string("x\\"),
                                 std::string("p\xc3\xa4ndas"),
                                 std::string("pandas\xe2\x80\x91x"),
                                 std::string(10'240, 'a'),
                                 std::string("x[/]"),
                                 std::string("x[y"),
                                 std::string("x;"),
                                 std::string("x>=1 --pre@"),
                                 std::string("x y"),
                                 std::string("_x"),
                                 std::string("x; a @ b"),
                                 std::string("x[y]z")}) {
    if (bad == "x ") continue;  // a trailing space is harmless, and cut by the installer
    EXPECT_EQ(CodeOf([&] { CheckSpec(Spec({bad})); }), Code::kInvalidArgument) << bad;
  }
}

TEST(EnvironmentSpec, RefusesModulesAndIndexesThatAreNone) {
  const auto refuses = [](const std::function<void(EnvironmentSpec*)>& change) {
    EnvironmentSpec spec = Spec({"six"});
    change(&spec);
    EXPECT_EQ(CodeOf([&] { CheckSpec(spec); }), Code::kInvalidArgument);
  };
  for (const char* module : {"", "a b", "a..b", ".a", "a.", "1a", "a;b", "-m", "a/b", "a.2b"}) {
    refuses([&](EnvironmentSpec* spec) { spec->preload = {module}; });
  }
  for (const char* url :
       {"file:///etc", "ftp://h/", "https://", "https://h/ x", "-f", "https://h/\n"}) {
    refuses([&](EnvironmentSpec* spec) { spec->index.index_url = url; });
  }
  refuses([](EnvironmentSpec* spec) { spec->base_id = "../../x"; });
  refuses([](EnvironmentSpec* spec) { spec->runtime_id = "a/b"; });
  refuses([](EnvironmentSpec* spec) { spec->python_version = "3.11 --pre"; });
}

TEST(EnvironmentSpec, TakesTheNamesOfImagesAndNothingElse) {
  EnvironmentSpec spec = Spec({"six"});
  for (const char* name : {"python", "python:3.12-slim", "docker.io/library/python:3.12-slim",
                           "localhost/x:1", "127.0.0.1:5000/a/b_c:V1", "[::1]:5000/x",
                           "Registry.example.org/a--b/c.d", "c3e2d73873b0"}) {
    spec.base = name;
    EXPECT_NO_THROW(CheckSpec(spec)) << name;
  }
  spec.base = "r.example/x@sha256:" + std::string(64, 'a');
  EXPECT_NO_THROW(CheckSpec(spec));
  for (const char* name :
       {" ", "x ", "A/B", "x:", "x:a:b", "docker://x", "oci:/etc", "/etc/passwd", "../x", "x/../y",
        "x?policy=always", "x#", "x\ny", "x//y", "-x", "x@sha256:abc", "h:123456/x"}) {
    spec.base = name;
    EXPECT_EQ(CodeOf([&] { CheckSpec(spec); }), Code::kInvalidArgument) << name;
  }
  spec.base = std::string(600, 'a');
  EXPECT_EQ(CodeOf([&] { CheckSpec(spec); }), Code::kInvalidArgument);
}

TEST(EnvironmentSpec, OneImageIsOneBaseByWhateverName) {
  EnvironmentSpec spec = Spec({"six"}), other = spec;
  spec.base_image = other.base_image = std::string(64, 'e');
  spec.base = "r.example/x:1";
  other.base = "localhost/y";
  EXPECT_EQ(DigestOf(spec), DigestOf(other));
  other.base_image = std::string(64, 'f');
  EXPECT_NE(DigestOf(spec), DigestOf(other));
}

// A store in a directory of its own, and a Podman that nobody answers for.
class EnvironmentStoreTest : public testing::Test {
 protected:
  EnvironmentStoreTest() {
    char name[] = "/tmp/hutch-environment-XXXXXX";
    root_ = ::mkdtemp(name);
    paths_.state_dir = root_ + "/state";
    paths_.run_dir = root_ + "/run";
    podman_ = std::make_unique<Podman>(root_ + "/none.sock");
    store_ = std::make_unique<EnvironmentStore>(*podman_, paths_);
  }
  ~EnvironmentStoreTest() override {
    store_.reset();
    fs::remove_all(root_);
  }
  Environment Get(const EnvironmentSpec& spec) {
    return store_->Get(spec, steady_clock::now() + seconds(60), {}, {});
  }
  void InstallRuntime() {
    fs::create_directories(paths_.runtime_dir(std::string(32, 'a')) + "/environment");
    std::ofstream(paths_.runtime_dir(std::string(32, 'a')) + "/environment/install.py");
  }
  fs::path Published(const std::string& digest) const {
    return fs::path(paths_.environment_dir()) / digest;
  }

  std::string root_;
  Paths paths_;
  std::unique_ptr<Podman> podman_;
  std::unique_ptr<EnvironmentStore> store_;
};

TEST_F(EnvironmentStoreTest, GivesTheEmptySetWithoutAnyBuilder) {
  const Environment first = Get(Spec({}));
  EXPECT_TRUE(first.built_now);
  EXPECT_TRUE(fs::is_empty(first.tree_dir));
  EXPECT_EQ(first.digest, store_->Digest(Spec({})));
  EXPECT_FALSE(Get(Spec({})).built_now);
  ASSERT_EQ(store_->List().size(), 1u);
  EXPECT_EQ(store_->List()[0].digest, first.digest);
}

TEST(EnvironmentStore, NeedsASmallDiskForTheEmptySetAndALargeOneForPackages) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a disk";
  EXPECT_TRUE(InOwnMounts([] {
    ASSERT_TRUE(MountDisk("/tmp", 16 << 10));
    Paths paths;
    paths.state_dir = "/tmp/state";
    paths.run_dir = "/tmp/run";
    Podman podman("/tmp/none.sock");
    EnvironmentStore store(podman, paths);
    const auto get = [&store](const EnvironmentSpec& spec) {
      return store.Get(spec, steady_clock::now() + seconds(60), {}, {});
    };
    EXPECT_TRUE(fs::is_empty(get(Spec({})).tree_dir));
    try {
      get(Spec({"six"}));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the disk is full"), std::string::npos);
    }
  }));
}

TEST_F(EnvironmentStoreTest, LetsOthersFindAnEnvironmentAndListNone) {
  const fs::perms perms = fs::status(paths_.environment_dir()).permissions();
  EXPECT_EQ(perms & fs::perms::others_all, fs::perms::others_exec);
}

TEST_F(EnvironmentStoreTest, NeverUsesOneThatWasCutOff) {
  const std::string digest = store_->Digest(Spec({}));
  fs::create_directories(Published(digest) / "tree");
  std::ofstream(Published(digest) / "tree/half.py") << "x";
  const Environment environment = Get(Spec({}));  // no meta.json: not whole
  EXPECT_TRUE(environment.built_now);
  EXPECT_TRUE(fs::is_empty(environment.tree_dir));
}

TEST_F(EnvironmentStoreTest, DoubtsAnUnsyncedOneOfAnotherBoot) {
  const Environment environment = Get(Spec({}));
  store_ = std::make_unique<EnvironmentStore>(*podman_, paths_);  // the build's thread has ended
  const fs::path meta = Published(environment.digest) / "meta.json";
  std::stringstream text;
  text << std::ifstream(meta).rdbuf();
  std::string changed = text.str();
  const size_t at = changed.find("\"boot\": \"") + 9;
  changed[at] = changed[at] == '0' ? '1' : '0';
  std::ofstream(meta) << changed;
  EXPECT_FALSE(Get(Spec({})).built_now);  // its bytes had reached the disk
  fs::remove(Published(environment.digest) / "synced");
  EXPECT_TRUE(Get(Spec({})).built_now);
}

TEST_F(EnvironmentStoreTest, RemovesWhatItIsToldTo) {
  const std::string digest = Get(Spec({})).digest;
  EXPECT_TRUE(store_->Remove(digest));
  EXPECT_FALSE(store_->Remove(digest));
  EXPECT_TRUE(store_->List().empty());
  EXPECT_EQ(CodeOf([&] { store_->Remove("../../etc"); }), Code::kInvalidArgument);
}

TEST_F(EnvironmentStoreTest, SaysWhatIsMissingAndTriesAgainLater) {
  EXPECT_EQ(CodeOf([&] { Get(Spec({"six"})); }), Code::kMissingRuntime);
  InstallRuntime();
  EXPECT_EQ(CodeOf([&] { Get(Spec({"six"})); }), Code::kPodmanDown);  // the next step: Podman
}

TEST_F(EnvironmentStoreTest, GivesEveryCallerTheSameFailureAndLeavesNothing) {
  InstallRuntime();
  std::atomic<int> failures = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 10; ++i) {
    callers.emplace_back([&] {
      if (CodeOf([&] { Get(Spec({"six"})); }) == Code::kPodmanDown) ++failures;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 10);
  store_.reset();
  EXPECT_TRUE(fs::is_empty(paths_.store_dir() + "/build"));
  EXPECT_TRUE(fs::is_empty(paths_.environment_dir()));
}

}  // namespace
}  // namespace hutch
