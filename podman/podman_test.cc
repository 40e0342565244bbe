// SPDX-License-Identifier: Apache-2.0

// Podman against a small server that misbehaves on purpose, and once against a real one where it
// runs.
#include "podman/podman.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/fake_podman.h"
#include "wire/error.h"
#include "wire/paths.h"

namespace hutch {
namespace {

using std::chrono::milliseconds;

std::string Reply(const std::string& status, const std::string& body) {
  return HttpReply(status, body);
}

bool Has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

Code CodeOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return Code::kInternal;
}

constexpr char kRunning[] =
    R"({"Id":"abc","Name":"box","State":{"Status":"running","ExitCode":0},"Config":{"Labels":{"k":"v"}}})";
constexpr char kExited[] =
    R"({"Id":"abc","Name":"box","State":{"Status":"exited","ExitCode":7},"Config":{"Labels":{"k":"v"}}})";

TEST(Podman, SaysThatNobodyListens) {
  const Podman podman("/nonexistent/podman.sock");
  EXPECT_FALSE(podman.Ping(milliseconds(500)));
  EXPECT_EQ(CodeOf([&] { podman.Version(); }), Code::kPodmanDown);
}

TEST(Podman, SendsAHostThatPodmanAccepts) {
  FakePodman fake([](const std::string&) { return Reply("200 OK", "OK"); });
  EXPECT_TRUE(Podman(fake.path()).Ping(milliseconds(2000)));
  ASSERT_EQ(fake.requests().size(), 1u);
  EXPECT_TRUE(Has(fake.requests()[0], "Host: localhost\r\n")) << fake.requests()[0];
}

TEST(Podman, TellsAbsenceFromFailure) {
  FakePodman fake([](const std::string& head) {
    return Has(head, "/absent/")
               ? Reply("404 Not Found", R"({"cause":"no such container"})")
               : Reply("500 Internal Server Error", R"({"message":"it is broken"})");
  });
  const Podman podman(fake.path());
  EXPECT_EQ(podman.Inspect("absent"), std::nullopt);
  EXPECT_EQ(CodeOf([&] { podman.Inspect("broken"); }), Code::kPodman);
}

TEST(Podman, CutsOffAHugeReply) {
  FakePodman fake([](const std::string&) { return Reply("200 OK", std::string(40 << 20, '[')); });
  EXPECT_EQ(CodeOf([&] { Podman(fake.path()).List("a=b"); }), Code::kPodman);
}

TEST(Podman, CutsOffAReplyThatOnlyClaimsToBeHuge) {
  FakePodman fake([](const std::string&) {
    return std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n{}");
  });
  EXPECT_EQ(CodeOf([&] { Podman(fake.path()).List("a=b"); }), Code::kPodman);
}

TEST(Podman, RefusesATruncatedReply) {
  FakePodman fake([](const std::string&) {
    return std::string("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[{\"Id\":\"a");
  });
  EXPECT_EQ(CodeOf([&] { Podman(fake.path()).List("a=b"); }), Code::kPodman);
}

TEST(Podman, RefusesChunksOfNoSensibleSize) {
  for (const char* size : {"-1", "-5", "ffffffffffffffff", "zz", "7fffffffffffffff"}) {
    FakePodman fake([size](const std::string&) {
      return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(size) +
             "\r\n[]\r\n0\r\n\r\n";
    });
    EXPECT_EQ(CodeOf([&] { Podman(fake.path()).List("a=b"); }), Code::kPodman) << size;
  }
}

TEST(Podman, RefusesWhatIsNoHttp) {
  FakePodman fake([](const std::string&) { return std::string("\x00\xff\x16garbage\n\n", 12); });
  EXPECT_EQ(CodeOf([&] { Podman(fake.path()).List("a=b"); }), Code::kPodman);
}

TEST(Podman, RefusesAHeaderWithoutEnd) {
  FakePodman fake(
      [](const std::string&) { return "HTTP/1.1 200 OK\r\nX: " + std::string(8 << 20, 'x'); });
  EXPECT_EQ(CodeOf([&] { Podman(fake.path()).List("a=b"); }), Code::kPodman);
}

TEST(Podman, RefusesHeadersWithoutEnd) {
  FakePodman fake([](const std::string&) {
    std::string lines = "HTTP/1.1 200 OK\r\n";
    for (int i = 0; i < 1 << 20; ++i) lines += "X: y\r\n";
    return lines;
  });
  EXPECT_EQ(CodeOf([&] { Podman(fake.path()).List("a=b"); }), Code::kPodman);
}

TEST(Podman, RefusesAnAnswerThatIsNoJson) {
  FakePodman fake([](const std::string&) { return Reply("200 OK", "<html>"); });
  EXPECT_EQ(CodeOf([&] { Podman(fake.path()).Inspect("box"); }), Code::kPodman);
}

TEST(Podman, SurvivesMembersOfTheWrongType) {
  FakePodman fake([](const std::string& head) {
    return Has(head, "/containers/json")
               ? Reply("200 OK",
                       R"([1,null,{"Id":5},{"Id":"a","Names":"x","Labels":[1],"State":{}}])")
               : Reply("200 OK", R"({"Id":"abc","Name":{},"State":[],"Config":7})");
  });
  const Podman podman(fake.path());
  ASSERT_EQ(podman.List("a=b").size(), 1u);
  EXPECT_EQ(podman.Inspect("box")->state, "");
  EXPECT_EQ(podman.Version().podman, "");
}

TEST(Podman, TellsWhichNetworkHelperItFinds) {
  const auto helper = [](const std::string& host) {
    FakePodman fake([&host](const std::string&) {
      return Reply("200 OK", R"({"version":{"Version":"5.4.2"},"host":)" + host + "}");
    });
    return Podman(fake.path()).Version().network_helper;
  };
  EXPECT_EQ(helper(R"({"slirp4netns":{"executable":"/a"},"pasta":{"executable":"/b"}})"),
            "slirp4netns");
  EXPECT_EQ(helper(R"({"slirp4netns":{"executable":""},"pasta":{"executable":"/b"}})"), "pasta");
  EXPECT_EQ(helper(R"({"slirp4netns":{"executable":""}})"), "");
}

TEST(Podman, GivesUpOnOneThatNeverAnswers) {
  std::atomic<bool> done = false;
  FakePodman fake([&done](const std::string&) {
    while (!done) std::this_thread::sleep_for(milliseconds(10));
    return std::string();
  });
  EXPECT_FALSE(Podman(fake.path()).Ping(milliseconds(100)));
  done = true;
}

TEST(Podman, RepeatsWhatALockedDatabaseRefused) {
  std::atomic<int> count = 0;
  FakePodman fake([&count](const std::string&) {
    return ++count < 4 ? Reply("500 Internal Server Error", R"({"cause":"database is locked"})")
                       : Reply("201 Created", R"({"Id":"abc"})");
  });
  EXPECT_EQ(Podman(fake.path()).Create(R"({"name":"box"})"), "abc");
  EXPECT_EQ(count, 4);
}

TEST(Podman, LooksAgainWhereAProcessEndedWhileItWasLookedAt) {
  for (const char* cause :
       {"read /proc/7/cgroup: no such process", "open /proc/7/cgroup: no such file or directory"}) {
    std::atomic<int> count = 0;
    FakePodman fake([&count, cause](const std::string&) {
      return ++count < 3 ? Reply("500 Internal Server Error",
                                 R"({"cause":")" + std::string(cause) + R"("})")
                         : Reply("200 OK", kExited);
    });
    const auto info = Podman(fake.path()).Inspect("box");
    ASSERT_TRUE(info) << cause;
    EXPECT_EQ(info->exit_code, 7);
    EXPECT_EQ(count, 3);
  }
}

TEST(Podman, RemovesWhatAServiceThatWasKilledHasHalfRemoved) {
  std::atomic<bool> removed = false;
  FakePodman fake([&removed](const std::string& head) {
    if (head.starts_with("DELETE ")) {
      removed = true;
      return Reply("200 OK", "[]");
    }
    if (head.find("/containers/json") != std::string::npos) {
      return Reply("200 OK", removed ? "[]"
                                     : R"([{"Id":"abc","Names":["box"],"State":"removing",)"
                                       R"("Labels":{"hutch.owner":"me"}}])");
    }
    if (removed) return Reply("404 Not Found", R"({"cause":"no such container"})");
    return Reply("500 Internal Server Error", R"({"cause":"container not known"})");
  });
  Podman podman(fake.path());
  for (const char* name : {"box", "abc"}) {
    const auto info = podman.Inspect(name);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->id + " " + info->name + " " + info->state, "abc box removing");
    EXPECT_EQ(info->labels.at("hutch.owner"), "me");
  }
  EXPECT_FALSE(podman.Inspect("other"));
  podman.Remove("abc");
  EXPECT_TRUE(removed);
}

TEST(Podman, CreatesAgainWhereAServiceThatWasKilledLeftTheNameTaken) {
  std::atomic<bool> removed = false;
  FakePodman fake([&removed](const std::string& head) {
    if (head.starts_with("DELETE ")) {
      EXPECT_NE(head.find("/containers/abc?"), std::string::npos) << head;
      removed = true;
      return Reply("200 OK", "[]");
    }
    if (head.find("external=true") != std::string::npos) {
      return Reply("200 OK", R"([{"Id":"def","Names":["other"],"State":"storage"},)"
                             R"({"Id":"ghi","Names":["box"],"State":"running"},)"
                             R"({"Id":"abc","Names":["box"],"State":"storage"}])");
    }
    if (head.starts_with("GET ")) return Reply("404 Not Found", R"({"cause":"no container"})");
    return removed ? Reply("201 Created", R"({"Id":"new"})")
                   : Reply("500 Internal Server Error", R"({"cause":"name is already in use"})");
  });
  EXPECT_EQ(Podman(fake.path()).Create(R"({"name":"box"})"), "new");
  EXPECT_TRUE(removed);
}

TEST(Podman, DoesNotRepeatAnyOtherFailure) {
  for (const char* cause : {"no space left on device", "read /proc/7/cgroup: no such process"}) {
    std::atomic<int> count = 0;
    FakePodman fake([&count, cause](const std::string&) {
      ++count;
      return Reply("500 Internal Server Error", R"({"cause":")" + std::string(cause) + R"("})");
    });
    EXPECT_EQ(CodeOf([&] { Podman(fake.path()).Start("box"); }), Code::kPodman);
    EXPECT_EQ(count, 1) << cause;
  }
}

TEST(Podman, CallsAServiceDownThatEndsInsteadOfAnswering) {
  std::string path;
  FakePodman fake([&path](const std::string&) {
    ::unlink(path.c_str());
    return std::string();
  });
  path = fake.path();
  EXPECT_EQ(CodeOf([&] { Podman(path).Inspect("box"); }), Code::kPodmanDown);
}

TEST(Podman, SurvivesAServiceThatHangsUpWhileItIsWrittenTo) {
  // The answer comes, and the connection goes, before the archive has been sent.
  FakePodman fake([](const std::string&) { return Reply("500 Internal Server Error", "{}"); });
  size_t left = 64 << 20;
  EXPECT_EQ(CodeOf([&] {
              Podman(fake.path()).ImportImage("localhost/x:1", [&left](char*, size_t size) {
                const size_t take = std::min(size, left);
                left -= take;
                return take;
              });
            }),
            Code::kPodman);
}

TEST(Podman, FindsTheContainerOfALostCreate) {
  FakePodman fake([](const std::string& head) {
    return Has(head, "POST") ? std::string("HTTP/1.1 201 Cre") : Reply("200 OK", kRunning);
  });
  EXPECT_EQ(Podman(fake.path()).Create(R"({"name":"box","labels":{"k":"v"}})"), "abc");
}

TEST(Podman, DoesNotTakeSomebodyElsesContainerOfThatName) {
  FakePodman fake([](const std::string& head) {
    return Has(head, "POST") ? Reply("409 Conflict", R"({"cause":"the name is already in use"})")
                             : Reply("200 OK", kRunning);
  });
  EXPECT_EQ(Podman(fake.path()).Create(R"({"name":"box","labels":{"k":"v"}})"), "abc");
  EXPECT_EQ(CodeOf([&] { Podman(fake.path()).Create(R"({"name":"box","labels":{"k":"other"}})"); }),
            Code::kPodman);
}

TEST(Podman, TakesAStoppedOrAbsentContainerAsKilled) {
  for (const char* status : {"404 Not Found", "409 Conflict", "204 No Content"}) {
    FakePodman fake([status](const std::string&) { return Reply(status, "{}"); });
    EXPECT_NO_THROW(Podman(fake.path()).Kill("box")) << status;
  }
}

TEST(Podman, TakesAnAbsentContainerAsRemoved) {
  FakePodman fake([](const std::string&) { return Reply("404 Not Found", "{}"); });
  EXPECT_NO_THROW(Podman(fake.path()).Remove("box"));
}

TEST(Podman, KillsBeforeItRemovesAndRetriesAnImproperState) {
  std::atomic<int> deletes = 0;
  std::atomic<bool> killed = false;
  FakePodman fake([&](const std::string& head) {
    if (Has(head, "/kill?")) {
      killed = true;
      return Reply("204 No Content", "");
    }
    if (head.starts_with("DELETE")) {
      EXPECT_TRUE(killed);
      return ++deletes < 3
                 ? Reply("500 Internal Server Error", R"({"cause":"container state improper"})")
                 : Reply("200 OK", "[]");
    }
    if (deletes >= 3) return Reply("404 Not Found", "{}");
    return Reply("200 OK", killed ? kExited : kRunning);
  });
  Podman(fake.path()).Remove("box");
  EXPECT_EQ(deletes, 3);
}

TEST(Podman, KeepsHostileNamesOutOfThePath) {
  FakePodman fake([](const std::string&) { return Reply("200 OK", "[]"); });
  Podman podman(fake.path());
  for (const std::string& name :
       {std::string("-rf"), std::string("../../images/x"), std::string("a/b"), std::string("a?b"),
        std::string("a\r\nX: y"), std::string("a\0b", 3), std::string(),
        std::string(10 << 10, 'a')}) {
    EXPECT_EQ(CodeOf([&] { podman.Start(name); }), Code::kInvalidArgument) << name;
    EXPECT_EQ(CodeOf([&] { podman.Remove(name); }), Code::kInvalidArgument) << name;
  }
  EXPECT_TRUE(fake.requests().empty());
  podman.List("a=b\r\nX: \"y\" &all=0");
  ASSERT_EQ(fake.requests().size(), 1u);
  EXPECT_FALSE(Has(fake.requests()[0], "\r\nX: ")) << fake.requests()[0];
}

TEST(Podman, TakesLogFramesWithLyingLengths) {
  FakePodman fake([](const std::string&) {
    return Reply("200 OK", std::string("\x01\0\0\0\0\0\0\x03one\x02\0\0\0\xff\xff\xff\xfftwo", 22));
  });
  EXPECT_EQ(Podman(fake.path()).Logs("box"), "onetwo");
  EXPECT_EQ(Podman(fake.path()).Logs("box", 3), "two");
}

TEST(Podman, StopsAnImportWhoseSourceFails) {
  FakePodman fake([](const std::string&) { return Reply("200 OK", R"({"Id":"abc"})"); });
  EXPECT_EQ(CodeOf([&] {
              Podman(fake.path()).ImportImage("localhost/x:1", [](char*, size_t) -> size_t {
                throw Error(Code::kPlatform, "the archive broke");
              });
            }),
            Code::kPlatform);
}

// The service of this user, where the launcher (or the caller, by $HUTCH_TEST_PODMAN) has one
// running.
TEST(RealPodman, GoesThroughAContainersLife) {
  std::string socket;
  std::string why = "no service answers";
  if (const char* given = std::getenv("HUTCH_TEST_PODMAN")) {
    socket = given;
  } else {
    try {
      socket = FindPaths().podman_socket();
    } catch (const Error& error) {
      why = error.what();
    }
  }
  Podman podman(socket.empty() ? "/nonexistent" : socket);
  if (!podman.Ping(milliseconds(2000))) GTEST_SKIP() << why;
  EXPECT_FALSE(podman.Version().podman.empty());
  const std::vector<std::string> images = podman.ListImages("localhost/hutch-base:");
  if (images.empty()) GTEST_SKIP() << "no base image is installed";
  const std::string name = "hutch-test-" + std::to_string(::getpid());
  const std::string spec =
      R"({"name":")" + name + R"(","image":")" + images[0] +
      R"x(","command":["/opt/python/bin/python3","-c","print('said'); raise SystemExit(5)"],)x" +
      R"("labels":{"hutch.test":")" + name + R"("},"netns":{"nsmode":"none"},)" +
      R"("log_configuration":{"driver":"k8s-file"}})";
  const std::string id = podman.Create(spec);
  EXPECT_EQ(podman.Create(spec), id) << "a repeated create finds the same container";
  podman.Start(id);
  EXPECT_EQ(podman.WaitExit(id, milliseconds(20000)), 5);
  EXPECT_NE(podman.Logs(id).find("said"), std::string::npos);
  EXPECT_EQ(podman.List("hutch.test=" + name).size(), 1u);
  podman.Kill(id);
  podman.Remove(id);
  podman.Remove(id);
  EXPECT_EQ(podman.Inspect(id), std::nullopt);
  EXPECT_EQ(podman.ImageId("localhost/hutch-base:no-such-tag"), std::nullopt);
}

}  // namespace
}  // namespace hutch
