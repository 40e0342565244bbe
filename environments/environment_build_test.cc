// SPDX-License-Identifier: Apache-2.0

// Builds real environments with a real Podman and a real package index.
//
// Needs a Podman service of our own user and what the launcher installs, so it asks for them:
//   HUTCH_TEST_PODMAN   the service's socket
//   HUTCH_TEST_STATE    a state directory of that user with runtime/<HUTCH_TEST_RUNTIME> in it
//   HUTCH_TEST_RUNTIME  the runtime's id
//   HUTCH_TEST_BASE     the base image's id
//   HUTCH_TEST_PYTHON   its Python version
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "environments/environment.h"
#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using std::chrono::steady_clock;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class EnvironmentBuild : public testing::Test {
 protected:
  void SetUp() override {
    if (Variable("HUTCH_TEST_PODMAN").empty()) {
      GTEST_SKIP() << "HUTCH_TEST_PODMAN does not name the socket of a Podman service";
    }
    paths_.state_dir = Variable("HUTCH_TEST_STATE");
    paths_.instance = "test";
    podman_ = std::make_unique<Podman>(Variable("HUTCH_TEST_PODMAN"));
    store_ = std::make_unique<EnvironmentStore>(*podman_, paths_);
    nonce_ = std::to_string(steady_clock::now().time_since_epoch().count());
  }
  void TearDown() override {
    if (!store_) return;
    for (const std::string& digest : made_) store_->Remove(digest);
    store_.reset();
    EXPECT_TRUE(Containers().empty());
  }

  EnvironmentSpec Spec(std::vector<std::string> requirements) const {
    EnvironmentSpec spec;
    spec.requirements = std::move(requirements);
    spec.python_version = Variable("HUTCH_TEST_PYTHON");
    spec.platform = "linux_x86_64";
    spec.base_id = Variable("HUTCH_TEST_BASE");
    spec.runtime_id = Variable("HUTCH_TEST_RUNTIME");
    spec.nonce = nonce_;
    return spec;
  }
  Environment Get(const EnvironmentSpec& spec,
                  const EnvironmentStore::ProgressFn& progress = nullptr,
                  const EnvironmentStore::Cancelled& cancelled = nullptr) {
    Environment environment =
        store_->Get(spec, steady_clock::now() + seconds(300), progress, cancelled);
    made_.insert(environment.digest);
    return environment;
  }
  Error Failure(const EnvironmentSpec& spec, const EnvironmentStore::Cancelled& cancelled = {}) {
    try {
      Get(spec, nullptr, cancelled);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "it was built";
    return Error(Code::kInternal, "");
  }
  std::vector<ContainerInfo> Containers() const {
    std::vector<ContainerInfo> ours = podman_->List("hutch.role=builder");
    std::erase_if(ours, [this](const ContainerInfo& container) {
      const auto label = container.labels.find("hutch.instance");
      return label == container.labels.end() || label->second != paths_.agent_container();
    });
    return ours;
  }
  std::set<std::string> Builds() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(paths_.store_dir() + "/build")) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  Paths paths_;
  std::unique_ptr<Podman> podman_;
  std::unique_ptr<EnvironmentStore> store_;
  std::string nonce_;
  std::mutex mutex_;
  std::set<std::string> made_;
};

TEST_F(EnvironmentBuild, InstallsImportsAndCompiles) {
  std::vector<std::string> stages;
  const Environment environment = Get(Spec({"six==1.17.0"}), [&](const BuildProgress& progress) {
    if (stages.empty() || stages.back() != progress.stage) stages.push_back(progress.stage);
  });
  EXPECT_TRUE(environment.built_now);
  EXPECT_EQ(environment.preload, std::vector<std::string>{"six"});
  EXPECT_TRUE(environment.lock.starts_with("six==1.17.0"));
  EXPECT_NE(environment.lock.find("--hash=sha256:"), std::string::npos);
  EXPECT_TRUE(fs::exists(environment.tree_dir + "/six.py"));
  EXPECT_FALSE(fs::is_empty(environment.tree_dir + "/__pycache__"));
  EXPECT_EQ(stages.front(), "resolve");
  EXPECT_NE(std::find(stages.begin(), stages.end(), "import"), stages.end());
  EXPECT_FALSE(Get(Spec({"six==1.17.0"})).built_now);
}

TEST_F(EnvironmentBuild, GivesAMisspeltNameTheResolversSentence) {
  const Error error = Failure(Spec({"pandsa-no-such-package-here"}));
  EXPECT_EQ(error.code(), Code::kInstallFailed);
  EXPECT_TRUE(std::string(error.what())
                  .starts_with(
                      "Because pandsa-no-such-package-here was not found in the package registry"));
  EXPECT_FALSE(error.hint().empty());
}

TEST_F(EnvironmentBuild, NamesBothSidesOfAConflict) {
  const Error error = Failure(Spec({"requests==2.31.0", "urllib3==1.20"}));
  EXPECT_EQ(error.code(), Code::kInstallFailed);
  EXPECT_NE(std::string(error.what()).find("requests==2.31.0 depends on"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("urllib3==1.20"), std::string::npos);
}

TEST_F(EnvironmentBuild, BuildsFromSourceOnlyWhereThatIsAllowed) {
  EnvironmentSpec spec = Spec({"docopt==0.6.2"});  // has never had a wheel
  const Error error = Failure(spec);
  EXPECT_EQ(error.code(), Code::kInstallFailed);
  EXPECT_NE(error.hint().find("allow_sdists"), std::string::npos);
  spec.allow_sdists = true;
  EXPECT_EQ(Get(spec).preload, std::vector<std::string>{"docopt"});
}

TEST_F(EnvironmentBuild, BlamesTheNetworkWhenTheIndexDoesNotAnswer) {
  EnvironmentSpec spec = Spec({"six"});
  spec.index.index_url = "https://user:hunter2@127.0.0.1:1/simple";
  const Error error = Failure(spec);
  EXPECT_EQ(error.code(), Code::kInstallFailed);
  EXPECT_EQ(std::string(error.what()).find("hunter2"), std::string::npos);
  EXPECT_NE(error.hint().find("network"), std::string::npos);
}

TEST_F(EnvironmentBuild, IsOneForAllWhoAskAtOnce) {
  const size_t before = store_->List().size();
  std::atomic<int> fine = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 10; ++i) {
    callers.emplace_back([&] {
      const Environment environment =
          store_->Get(Spec({"six"}), steady_clock::now() + seconds(300), nullptr, nullptr);
      const std::lock_guard lock(mutex_);
      made_.insert(environment.digest);
      fine += environment.built_now && fs::exists(environment.tree_dir + "/six.py");
    });
  }
  std::set<std::string> builders;
  while (fine == 0) {
    for (const ContainerInfo& container : Containers()) {
      if (container.labels.contains("hutch.build")) {
        builders.insert(container.labels.at("hutch.build"));
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (testing::Test::HasFailure()) break;
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(fine, 10);
  EXPECT_EQ(builders.size(), 1u);
  EXPECT_EQ(store_->List().size(), before + 1);
}

TEST_F(EnvironmentBuild, GoesOnForTheOthersWhenOneCallerGivesUp) {
  std::atomic<bool> give_up = false;
  std::thread impatient([&] {
    EXPECT_EQ(Failure(Spec({"six"}), [&] { return give_up.load(); }).code(), Code::kCancelled);
  });
  while (Containers().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::thread patient([&] { EXPECT_TRUE(Get(Spec({"six"})).built_now); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  give_up = true;
  impatient.join();
  patient.join();
}

TEST_F(EnvironmentBuild, IsGivenUpWithItsLastCaller) {
  const std::set<std::string> before = Builds();
  const Error error = Failure(Spec({"pandas"}), [&] { return !Containers().empty(); });
  EXPECT_EQ(error.code(), Code::kCancelled);
  store_ = std::make_unique<EnvironmentStore>(*podman_, paths_);  // waits for the old one's builds
  EXPECT_TRUE(Containers().empty());
  EXPECT_EQ(Builds(), before);
}

TEST_F(EnvironmentBuild, LeavesNothingAfterASweepWhenItWasCutOff) {
  fs::create_directories(paths_.store_dir() + "/build/0123456789abcdef/tree");
  const auto image = podman_->ImageId("localhost/hutch-base:" + Variable("HUTCH_TEST_BASE"));
  ASSERT_TRUE(image.has_value());
  podman_->Create(R"({"name": "hutch-builder-test-left-over", "image": ")" + *image +
                  R"(", "command": ["/usr/bin/true"], "labels": {"hutch.role": "builder",
                      "hutch.instance": ")" +
                  paths_.agent_container() + R"("}})");
  ASSERT_EQ(Containers().size(), 1u);
  store_->Sweep();
  EXPECT_TRUE(Containers().empty());
  EXPECT_FALSE(fs::exists(paths_.store_dir() + "/build/0123456789abcdef"));
}

TEST_F(EnvironmentBuild, SaysThatTheBaseImageIsMissing) {
  EnvironmentSpec spec = Spec({"six"});
  spec.base_id = "nosuchbase";
  EXPECT_EQ(Failure(spec).code(), Code::kMissingBase);
}

}  // namespace
}  // namespace hutch
