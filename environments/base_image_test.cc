// SPDX-License-Identifier: Apache-2.0

// Base images: what is believed of one, and what a caller hears of one that cannot be had.
#include "environments/base_image.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/fake_podman.h"
#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

EnvironmentSpec SpecOf(const std::string& base, const std::string& python = "3.12") {
  EnvironmentSpec spec;
  spec.base = base;
  spec.python_version = python;
  spec.platform = "linux_x86_64";
  spec.runtime_id = std::string(32, 'a');
  return spec;
}

std::string Said(const std::string& more = "", const std::string& version = "3.12.4") {
  return R"({"python":"/usr/local/bin/python3","implementation":"cpython","machine":"x86_64",)"
         R"("libc":"2.36","cell":"","installer":"","path":"/usr/local/bin:/usr/bin","version":")" +
         version + "\"" + more + "}";
}

template <typename Act>
Error Failure(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(Code::kInternal, "");
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(BaseImage, IsWhatItsInterpreterSays) {
  const BaseImage base = ReadInterpreter(
      Said(R"(,"shown":["/app","/opt/conda"],"packages":["/usr/local/lib/python3.12/p"])"),
      SpecOf("r/x"));
  EXPECT_EQ(base.python, "/usr/local/bin/python3");
  EXPECT_EQ(base.version, "3.12.4");
  EXPECT_EQ(base.path, "/usr/local/bin:/usr/bin");
  EXPECT_EQ(base.shown, (std::vector<std::string>{"/app", "/opt/conda"}));
  EXPECT_EQ(base.packages, std::vector<std::string>{"/usr/local/lib/python3.12/p"});
}

TEST(BaseImage, OfAnotherVersionIsRefusedWithBothVersions) {
  for (const char* wanted : {"3.11", "3.1", "3.12.3", "3.120"}) {
    const Error error = Failure([&] { ReadInterpreter(Said(), SpecOf("r/x:1", wanted)); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_TRUE(Has(error.what(), std::string("the base r/x:1 has Python 3.12.4, and the call ") +
                                      "needs " + wanted))
        << error.what();
    EXPECT_FALSE(error.hint().empty());
  }
  ReadInterpreter(Said(), SpecOf("r/x", "3.12.4"));
}

TEST(BaseImage, ThatCannotRunAWorkerIsRefusedWithTheReason) {
  const auto refused = [](const std::string& text) {
    return std::string(Failure([&] { ReadInterpreter(text, SpecOf("r/x")); }).what());
  };
  EXPECT_TRUE(Has(refused(Said(R"(,"cell":"GLIBC_2.34 not found")")), "GLIBC_2.34"));
  EXPECT_TRUE(Has(refused(Said(R"(,"machine":"aarch64")")), "aarch64"));
  EXPECT_TRUE(Has(refused(Said(R"(,"libc":"")")), "no glibc"));
  EXPECT_TRUE(Has(refused(Said(R"(,"implementation":"pypy")")), "not CPython"));
  EXPECT_TRUE(Has(refused(Said("", "2.7.18")), "does not run"));
  EXPECT_TRUE(Has(refused(""), "does not run"));
  EXPECT_TRUE(Has(refused("[]"), "does not run"));
  EXPECT_TRUE(Has(refused(R"({"python":5,"version":{}})"), "does not run"));
  EXPECT_TRUE(Has(refused(Said(R"(,"python":"/usr/../bin/python3")")), "does not run"));
}

TEST(BaseImage, ShowsNothingThatIsHutchsOwnAndNoOddPath) {
  const BaseImage base = ReadInterpreter(
      Said(R"(,"shown":["/run","/run/hutch","/opt/hutch/worker","/opt","/etc","/proc/1","/tmp/x",)"
           R"("relative","/a/../b","/a,b","/a:b","/a\tb","/var/lib",7,"/late"])"),
      SpecOf("r/x"));
  EXPECT_EQ(base.shown, std::vector<std::string>{}) << "a list ends at what is no text";
  const BaseImage other =
      ReadInterpreter(Said(R"(,"shown":["/runner","/etc/fonts","/srv"])"), SpecOf("r/x"));
  EXPECT_EQ(other.shown, (std::vector<std::string>{"/runner", "/etc/fonts", "/srv"}));
}

TEST(BaseImage, IsSpokenForWithoutTlsOnThisMachineOnly) {
  for (const char* here : {"localhost:5000/x", "127.0.0.1:5000/x:1", "127.1.2.3/x", "[::1]:5000/x"})
    EXPECT_TRUE(IsLoopback(here)) << here;
  for (const char* there : {"localhost/x", "localhost", "127.0.0.1.example.org/x", "example.org/x",
                            "localhost.example.org:5000/x", "x/127.0.0.1:5", "10.0.0.1:5000/x"})
    EXPECT_FALSE(IsLoopback(there)) << there;
}

// A service that has the images of `there`, and answers a pull with `pull`.
class BaseImagesTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hutch-base-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    paths_.state_dir = name;
    paths_.instance = "test";
    fs::create_directories(paths_.store_dir() + "/build");
  }
  void TearDown() override { fs::remove_all(paths_.state_dir); }

  std::string Answer(const std::string& head) {
    if (Has(head, "/images/pull")) {
      there_ = pulled_.load();
      return HttpReply("200 OK", pull_);
    }
    if (Has(head, "/images/"))
      return there_ ? HttpReply("200 OK", image_) : HttpReply("404 Not Found", "{}");
    if (Has(head, "/containers/create"))
      return HttpReply("500 Internal Server Error", R"({"message":")" + create_ + R"("})");
    return HttpReply("404 Not Found", "{}");
  }
  Error Ask(const EnvironmentSpec& spec) {
    return Failure([&] {
      images_.Get(
          spec, steady_clock::now() + seconds(20),
          [this](const BuildProgress& progress) { told_.push_back(progress); }, nullptr);
    });
  }

  Paths paths_;
  std::atomic<bool> there_ = false, pulled_ = false;
  std::string pull_ = R"({"error":"manifest unknown"})"
                      "\n";
  std::string image_ =
      R"({"Id":")" + std::string(64, 'e') + R"(","Architecture":"amd64","Os":"linux"})";
  std::string create_ = "crun: executable file `python3` not found in $PATH";
  std::vector<BuildProgress> told_;
  FakePodman fake_{[this](const std::string& head) { return Answer(head); }};
  Podman podman_{fake_.path()};
  BaseImages images_{podman_, paths_};
};

TEST_F(BaseImagesTest, SaysWhyAPullFailedAndWhatToDo) {
  const struct {
    const char* said;
    const char* hint;
  } cases[] = {
      {"reading manifest x: manifest unknown", "name and tag"},
      {"requested access to the resource is denied", "podman login"},
      {"pinging registry: dial tcp 10.0.0.1:443: i/o timeout", "be reached"},
      {"lookup r.invalid: no such host", "be reached"},
      {"x509: certificate signed by unknown authority", "certificate"},
      {"short-name \\\"x\\\" did not resolve", "docker.io/library"},
      {"write /var: no space left on device", "free some space"},
  };
  for (const auto& [said, hint] : cases) {
    pull_ = std::string(R"({"stream":"Trying to pull"})"
                        "\n"
                        R"({"error":")") +
            said + "\"}\n";
    const Error error = Ask(SpecOf("r.example/x:1"));
    EXPECT_EQ(error.code(), Code::kPodman);
    EXPECT_TRUE(Has(error.what(), "the base r.example/x:1 could not be pulled")) << error.what();
    EXPECT_TRUE(Has(error.hint(), hint)) << said << ": " << error.hint();
  }
  ASSERT_GE(told_.size(), 2u);
  EXPECT_EQ(told_[0].stage, "base");
  EXPECT_EQ(told_[1].text, "pulling r.example/x:1: Trying to pull");
}

TEST_F(BaseImagesTest, APullThatBreaksOffIsNoImage) {
  for (const char* pull : {"", "{\"stream\":\"Copying\"}\n", "[]\n7\nnonsense\n", "\n"}) {
    pull_ = pull;
    EXPECT_EQ(Ask(SpecOf("r.example/x")).code(), Code::kPodman) << pull;
  }
}

TEST_F(BaseImagesTest, ALocalNameIsNeverAskedOfARegistry) {
  EXPECT_TRUE(Has(Ask(SpecOf("localhost/x")).what(), "is not there"));
  for (const std::string& request : fake_.requests()) EXPECT_FALSE(Has(request, "/pull"));
}

TEST_F(BaseImagesTest, TlsIsLeftOutOnThisMachineAlone) {
  Ask(SpecOf("127.0.0.1:5000/x"));
  Ask(SpecOf("r.example/x"));
  std::vector<std::string> pulls = fake_.requests();
  std::erase_if(pulls, [](const std::string& head) { return !Has(head, "/images/pull"); });
  ASSERT_EQ(pulls.size(), 2u);
  EXPECT_TRUE(Has(pulls[0], "tlsVerify=false"));
  EXPECT_TRUE(Has(pulls[1], "tlsVerify=true"));
}

TEST_F(BaseImagesTest, AnImageThatIsThereIsNotPulled) {
  there_ = true;
  EXPECT_TRUE(Has(Ask(SpecOf("r.example/x")).what(), "has no python3 in its PATH"));
  for (const std::string& request : fake_.requests()) EXPECT_FALSE(Has(request, "/pull"));
}

TEST_F(BaseImagesTest, OnePulledIsLookedAtWithoutNetworkAsAStranger) {
  pulled_ = true;
  pull_ = "{\"stream\":\"x\"}\n{\"images\":[\"e\"],\"id\":\"e\"}\n";
  EXPECT_TRUE(Has(Ask(SpecOf("r.example/x")).what(), "has no python3"));
  create_ = "Podman is broken";
  EXPECT_TRUE(Has(Ask(SpecOf("r.example/x")).what(), "Podman is broken"));
  EXPECT_TRUE(fs::is_empty(paths_.store_dir() + "/build"));
}

TEST_F(BaseImagesTest, AnImageOfAnotherMachineOrThatCommandsTheRuntimeIsRefusedUnrun) {
  there_ = true;
  image_ = R"({"Id":"e","Architecture":"arm64","Os":"linux"})";
  EXPECT_TRUE(Has(Ask(SpecOf("r.example/x")).what(), "is for linux/arm64"));
  image_ = R"({"Id":"e","Architecture":"amd64","Os":"windows"})";
  EXPECT_TRUE(Has(Ask(SpecOf("r.example/x")).what(), "is for windows/amd64"));
  image_ = R"({"Id":"e","Architecture":"amd64","Os":"linux",)"
           R"("Annotations":{"run.oci.keep_original_groups":"1"}})";
  EXPECT_TRUE(Has(Ask(SpecOf("r.example/x")).what(), "run.oci.keep_original_groups"));
  for (const std::string& request : fake_.requests()) EXPECT_FALSE(Has(request, "/containers/"));
}

TEST_F(BaseImagesTest, APullThatNobodyWaitsForIsGivenUp) {
  const auto pull = [this](milliseconds patience, bool cancelled) {
    std::atomic<bool> over = false;
    FakePodman slow([&over](const std::string& head) {
      while (Has(head, "/images/pull") && !over) std::this_thread::sleep_for(milliseconds(5));
      return HttpReply("404 Not Found", "{}");
    });
    Podman podman(slow.path());
    BaseImages images(podman, paths_);
    const auto deadline = steady_clock::now() + patience;
    const Error error = Failure([&] {
      images.Get(SpecOf("r.example/x"), deadline, nullptr, [cancelled] { return cancelled; });
    });
    over = true;
    return error;
  };
  EXPECT_EQ(pull(seconds(600), true).code(), Code::kCancelled);
  const Error late = pull(milliseconds(500), false);
  EXPECT_EQ(late.code(), Code::kTimeout);
  EXPECT_TRUE(Has(late.what(), "was not pulled in time")) << late.what();
}

}  // namespace
}  // namespace hutch
