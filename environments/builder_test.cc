// SPDX-License-Identifier: Apache-2.0

#include "environments/builder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/faults/fake_podman.h"
#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

// A build whose install step is refused by its installer as soon as it has a network.
class NetworkHelper : public testing::Test {
 protected:
  NetworkHelper() {
    char name[] = "/tmp/hutch-builder-XXXXXX";
    paths_.state_dir = ::mkdtemp(name);
    spec_.requirements = {"six"};
    spec_.base_id = std::string(32, 'b');
    spec_.runtime_id = std::string(32, 'a');
    fs::create_directories(paths_.runtime_dir(spec_.runtime_id) + "/environment");
    std::ofstream(paths_.runtime_dir(spec_.runtime_id) + "/environment/install.py");
    fs::create_directories(Directory());
  }
  ~NetworkHelper() override { fs::remove_all(paths_.state_dir); }

  std::string Directory() const { return paths_.store_dir() + "/build/b1"; }
  std::string Answer(const std::string& head, const std::string& body) {
    const std::string request = head.substr(0, head.find("\r\n"));
    const auto is = [&](const char* part) { return request.find(part) != std::string::npos; };
    if (is("/_ping")) return "HTTP/1.1 200 OK\r\nLibpod-API-Version: " + version_ + "\r\n\r\nOK";
    if (is("/info")) return HttpReply("200 OK", R"({"host":{)" + there_ + "}}");
    if (is("/images/")) return HttpReply("200 OK", R"({"Id":"image"})");
    if (is("/containers/create")) {
      if (std::exchange(exists_, true))
        return HttpReply("409 Conflict", R"({"cause":"that name is already in use"})");
      tried_.push_back(nlohmann::json::parse(body)["netns"]["nsmode"]);
      return HttpReply("201 Created", R"({"Id":"box"})");
    }
    if (is("/start")) {
      if (broken_ || there_.find(tried_.back()) == std::string::npos)
        return HttpReply("500 Internal Server Error", R"({"cause":"could not find it"})");
      if (!report_.empty()) std::ofstream(Directory() + "/report.jsonl") << report_ << std::endl;
      return HttpReply("204 No Content", "");
    }
    if (head.starts_with("DELETE")) exists_ = false;
    return exists_ ? HttpReply("200 OK", R"({"Id":"box"})") : HttpReply("404 Not Found", "{}");
  }
  Code Run() {
    FakePodman fake(FakePodman::AnswerBody(
        [this](const std::string& head, const std::string& body) { return Answer(head, body); }));
    Podman podman(fake.path());
    Builder builder(podman, paths_, "b1", [](const BuildProgress&) {}, [] { return false; });
    try {
      builder.Run(spec_);
    } catch (const Error& error) {
      for (const std::string& head : fake.requests()) asked_ |= head.find("/info") != head.npos;
      return error.code();
    }
    return Code::kInternal;
  }

  Paths paths_;
  EnvironmentSpec spec_;
  std::string version_ = "4.9.3";
  std::string report_ = R"({"failed": "resolve", "log": "no six"})";  // of the install step
  std::string there_;                                                 // members of /info's host
  bool exists_ = false;                                               // the step's container
  bool broken_ = false;  // no container starts, whatever its network
  Strings tried_;
  bool asked_ = false;  // whether Podman was asked for the versions of all that it uses
};

TEST_F(NetworkHelper, IsTheOneOfPodmansVersionWithoutAsking) {
  there_ = R"("slirp4netns":{"executable":"/a"})";
  EXPECT_EQ(Run(), Code::kInstallFailed);
  EXPECT_EQ(tried_, Strings{"slirp4netns"});
  EXPECT_FALSE(asked_);
}

TEST_F(NetworkHelper, IsAnotherFromPodman5On) {
  version_ = "5.0.0";
  there_ = R"("pasta":{"executable":"/a"})";
  EXPECT_EQ(Run(), Code::kInstallFailed);
  EXPECT_EQ(tried_, Strings{"pasta"});
}

TEST_F(NetworkHelper, IsTheOneThatIsThere) {
  there_ = R"("pasta":{"executable":"/a"})";
  EXPECT_EQ(Run(), Code::kInstallFailed);
  EXPECT_EQ(tried_, (Strings{"slirp4netns", "pasta"}));
}

TEST_F(NetworkHelper, IsNotBlamedForAnotherFault) {
  there_ = R"("slirp4netns":{"executable":"/a"})";
  broken_ = true;
  EXPECT_EQ(Run(), Code::kPodman);
  EXPECT_EQ(tried_, Strings{"slirp4netns"});
}

TEST_F(NetworkHelper, ThatIsMissingIsNamed) {
  there_ = R"("none":{})";
  EXPECT_EQ(Run(), Code::kPlatform);
  EXPECT_EQ(tried_, Strings{"slirp4netns"});
}

// A build whose install step ends well, as far as its report says.
class Fetched : public NetworkHelper {
 protected:
  Fetched() {
    there_ = R"("slirp4netns":{"executable":"/a"})";
    fs::create_directory(Directory() + "/tree");
    std::ofstream(Directory() + "/lock.txt") << "six==1.17.0 \\\n    --hash=sha256:00\n";
    report_ = R"({"packages": ["six==1.17.0"], "modules": [], "uncompiled": []})";
  }

  // What the build comes to, and how much memory it took at most, in bytes.
  std::optional<BuildResult> Run() {
    FakePodman fake(FakePodman::AnswerBody(
        [this](const std::string& head, const std::string& body) { return Answer(head, body); }));
    Podman podman(fake.path());
    Builder builder(
        podman, paths_, "b1", [this](const BuildProgress& progress) { said_.push_back(progress); },
        [] { return false; });
    try {
      return builder.Run(spec_);
    } catch (const Error& error) {
      error_ = error;
      return std::nullopt;
    }
  }

  std::vector<BuildProgress> said_;
  std::optional<Error> error_;
};

TEST_F(Fetched, LeavesALock) {
  const auto result = Run();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->lock, "six==1.17.0 \\\n    --hash=sha256:00\n");
  EXPECT_EQ(result->packages, Strings{"six==1.17.0"});
}

TEST_F(Fetched, LockThatWasGivenIsKeptAsItWas) {
  spec_.lock = "lock-version = '1.0' # \xc3\xa9\n";
  std::ofstream(Directory() + "/lock.txt") << "else";
  const auto result = Run();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->lock, spec_.lock);
}

TEST_F(Fetched, LockOfAnySizeOrKindIsAnErrorThatSaysSo) {
  const std::string lock = Directory() + "/lock.txt";
  const std::vector<std::function<void()>> ways = {
      [&] { fs::resize_file(lock, uint64_t{1} << 40); },
      [&] { std::ofstream(lock) << "six==1\n\x1b]0;title\x07"; },
      [&] {
        fs::remove(lock);
        fs::create_symlink("/proc/self/environ", lock);
      },
      [&] {
        fs::remove(lock);
        ASSERT_EQ(::mkfifo(lock.c_str(), 0600), 0);
      },
      [&] { fs::remove(lock); },
  };
  for (const auto& way : ways) {
    way();
    fs::remove(Directory() + "/report.jsonl");
    fs::remove(Directory() + "/install.json");
    EXPECT_FALSE(Run().has_value());
    ASSERT_TRUE(error_.has_value());
    EXPECT_EQ(error_->code(), Code::kInstallFailed);
    EXPECT_NE(std::string(error_->what()).find("lock.txt"), std::string::npos) << error_->what();
  }
}

TEST_F(Fetched, ReportOfAnyContentIsBounded) {
  const std::string end = report_;
  report_ = R"({"stage": "\u001b[2J", "text": "x"})"
            "\n"
            R"({"stage": "download", "text": ")" +
            std::string(5 << 20, 'x') + "\"}\n" +
            R"({"stage": "install", "done": 1e308})"
            "\n" +
            end;
  ASSERT_TRUE(Run().has_value());
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_LE(said_[0].text.size(), 1000u);

  fs::remove(Directory() + "/report.jsonl");
  std::string numbers;
  for (int i = 0; i < 1'000'000; ++i) numbers += "0,";
  report_ = R"({"x": [)" + numbers + R"(0], "packages": ["\u001b]0;x\u0007)" +
            std::string(10'000, 'n') + R"("], "bytes": -1, "files": 1e300})";
  const auto result = Run();
  if (result) {  // or what came so late was dropped, and there is no end
    for (const std::string& package : result->packages) EXPECT_LE(package.size(), 256u);
  }
}

TEST_F(Fetched, ReportWithoutEndIsAnError) {
  fs::remove(Directory() + "/report.jsonl");
  std::ofstream(Directory() + "/report.jsonl") << "x";
  fs::resize_file(Directory() + "/report.jsonl", uint64_t{1} << 40);
  report_.clear();
  EXPECT_FALSE(Run().has_value());
  EXPECT_EQ(error_->code(), Code::kProtocol);
}

}  // namespace
}  // namespace hutch
