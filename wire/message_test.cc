// SPDX-License-Identifier: Apache-2.0

#include "wire/message.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <random>

#include "wire/channel.h"
#include "wire/memfd.h"

namespace hutch {
namespace {

Code CodeOfReceiving(int fd) {
  try {
    ReceiveMessage(fd);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kInternal;
}

PoolSpec FullSpec() {
  PoolSpec spec;
  spec.requirements = {"pandas>=2", "numpy"};
  spec.python_version = "3.11.7";
  spec.index.ca_bundle = "pem";
  spec.allow_sdists = true;
  spec.allow_urls = true;
  spec.index.find_links = "https://h/";
  spec.index.netrc = "machine h";
  spec.index.npm_sources = "registry=https://n/";
  spec.index.npm_credentials = "//n/:_authToken=t";
  spec.index.npm_ca_bundle = "pem";
  spec.node_requirements = {"lodash@4"};
  spec.constraints = {"a<2"};
  spec.lock = "a==1";
  spec.mounts.resize(2);
  spec.mounts[1].source = "/s";
  spec.mounts[1].destination = "/d";
  spec.mounts[1].writable = spec.mounts[1].as_caller = true;
  spec.mounts[1].copy = "c";
  spec.mounts[1].device = 7;
  spec.mounts[1].inode = 1ull << 40;
  spec.links = spec.venv = spec.mounts;
  spec.preload_given = true;
  spec.preload = {"pandas"};
  spec.nonce = "n";
  spec.setup = std::string("\0binary", 7);
  spec.modules = {{"a/b.py", "x = 1"}};
  spec.memory_mb = 7;
  spec.cpus = 0.5;
  spec.env = {{"K", "V"}};
  spec.labels = {{"team", "red"}};
  spec.warm = 3;
  spec.max_cells = 9;
  spec.isolation = Isolation::kContainer;
  spec.allow_network = {"*.example.org:8443"};
  spec.secrets = {{"api.example.org", "Authorization", "Bearer x", {"/v1"}, {"GET"}}};
  return spec;
}

TEST(Message, EveryFieldOfAPoolSpecArrives) {
  const PoolSpec spec = FullSpec();
  const Message read = DecodeMessage(EncodeMessage(Prepare{7, 1234, spec}));
  const auto& prepare = std::get<Prepare>(read);
  EXPECT_EQ(prepare.request, 7u);
  EXPECT_EQ(prepare.timeout_ms, 1234u);
  // Whatever is not carried would differ in a second encoding.
  EXPECT_EQ(EncodeMessage(prepare), EncodeMessage(Prepare{7, 1234, spec}));
  EXPECT_EQ(prepare.spec.requirements, spec.requirements);
  EXPECT_EQ(prepare.spec.index, spec.index);
  EXPECT_EQ(prepare.spec.setup, spec.setup);
  EXPECT_EQ(prepare.spec.modules, spec.modules);
  EXPECT_EQ(prepare.spec.env, spec.env);
  EXPECT_EQ(prepare.spec.mounts.at(1).destination, "/d");
  EXPECT_EQ(prepare.spec.mounts.at(1).inode, 1ull << 40);
  EXPECT_TRUE(prepare.spec.venv.at(1).writable);
  EXPECT_EQ(prepare.spec.labels, spec.labels);
  EXPECT_EQ(prepare.spec.cpus, spec.cpus);
  EXPECT_EQ(prepare.spec.warm, 3);
  EXPECT_EQ(prepare.spec.isolation, Isolation::kContainer);
  EXPECT_EQ(prepare.spec.allow_network, spec.allow_network);
  EXPECT_EQ(prepare.spec.secrets, spec.secrets);
}

TEST(Message, EveryAlternativeArrivesAsItself) {
  const Message all[] = {Hello{1, 2},
                         Prepare{1, 2, FullSpec()},
                         Warm{1, "k", -1},
                         Acquire{1, "k", 2, true, true},
                         Forget{1},
                         Started{1, 2, 3, 4},
                         LeaseEnded{1, true, {Ending::kReturned, 1, 2, 3, 4}, 5, "frame", 6},
                         Ask{1, "status"},
                         Keep{1, 2, 3, "id"},
                         Executed{1, {Ending::kLimitTime, 1, 2, 3, 4}, true},
                         Interrupt{1, 2, 3},
                         Restart{1, 2},
                         UserEnded{1, CellReport{.exit_code = 3}},
                         UserReady{1},
                         BackgroundCpu{1, 2},
                         Welcome{1, "agent"},
                         Progress{1, "download", "t", 0.5, 2},
                         PoolReady{1, "k", "d", "l", {"note"}, true, 1, 2, "cgroup", 3},
                         Leased{1, 2, 3, "w", 4, 5, 0.5},
                         Report{1,
                                CellReport{.exit_code = 3, .cpu_wait_us = 5, .peak_kb = 9},
                                {{"h", 1, true, "r", "s", 2, 3, 4}}},
                         Answer{1, "text"},
                         Failed{1, 2, "m", "h", true, {{"queued", 3}}}};
  for (const Message& message : all) {
    const Message read = DecodeMessage(EncodeMessage(message));
    EXPECT_EQ(read.index(), message.index());
    EXPECT_EQ(EncodeMessage(read), EncodeMessage(message)) << "alternative " << message.index();
  }
  EXPECT_EQ(std::size(all), std::variant_size_v<Message>);
}

TEST(Message, CrossesASocketWithItsDescriptors) {
  auto [a, b] = MakeSocketPair();
  auto [read_end, write_end] = MakePipe();
  const int descriptors[] = {read_end.get(), write_end.get()};
  ASSERT_TRUE(SendMessage(a.get(), Answer{5, "hello"}, descriptors));
  const auto received = ReceiveMessage(b.get());
  ASSERT_TRUE(received);
  EXPECT_EQ(std::get<Answer>(received->message).text, "hello");
  EXPECT_EQ(received->descriptors.size(), 2u);
  EXPECT_FALSE(ReceiveMessage(b.get()));
}

TEST(Message, ALargeOneTravelsInSharedMemory) {
  auto [a, b] = MakeSocketPair();
  const std::string text(3 << 20, 'x');
  auto [read_end, write_end] = MakePipe();
  const int descriptors[] = {read_end.get()};
  ASSERT_TRUE(SendMessage(a.get(), Answer{5, text}, descriptors));
  const auto received = ReceiveMessage(b.get());
  ASSERT_TRUE(received);
  EXPECT_EQ(std::get<Answer>(received->message).text, text);
  EXPECT_EQ(received->descriptors.size(), 1u) << "the message's own descriptor is not the caller's";
}

TEST(Message, SaysWhetherTheSocketIsFullOrClosed) {
  auto [a, b] = MakeSocketPair();
  bool sent = true;
  for (int i = 0; i < 1000 && sent; ++i)
    sent = SendMessage(a.get(), Answer{1, std::string(20'000, 'x')});
  EXPECT_FALSE(sent);
  b.reset();
  EXPECT_THROW(SendMessage(a.get(), Answer{1, "x"}), Error);
  EXPECT_EQ(CodeOfReceiving(a.get()), Code::kUnavailable);
}

TEST(Message, RefusesAnUnknownForm) {
  for (const std::string& bytes :
       {std::string("Z"), std::string("M"), std::string("I"), std::string("I\x7f"),
        std::string("I\0\0\0\0", 5), std::string(40'000, 'I')}) {
    auto [a, b] = MakeSocketPair();
    const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    ASSERT_EQ(SendDatagram(a.get(), {&part, 1}), SendStatus::kSent);
    EXPECT_EQ(CodeOfReceiving(b.get()), Code::kProtocol) << bytes.substr(0, 8);
  }
}

TEST(Message, RefusesSharedMemoryThatIsNotSealed) {
  auto [a, b] = MakeSocketPair();
  auto [read_end, write_end] = MakePipe();
  const int descriptors[] = {read_end.get()};
  char mark = 'M';
  const iovec part{&mark, 1};
  ASSERT_EQ(SendDatagram(a.get(), {&part, 1}, descriptors), SendStatus::kSent);
  EXPECT_EQ(CodeOfReceiving(b.get()), Code::kProtocol);
}

TEST(Message, RefusesBytesAfterItsEnd) {
  EXPECT_THROW(DecodeMessage(EncodeMessage(Forget{1}) + "x"), Error);
}

// Not even a length of exabytes: it is compared with what is left before anything is allocated.
TEST(Message, DamageIsAnErrorAndNothingElse) {
  std::mt19937 random(1);  // NOLINT(bugprone-random-generator-seed): the same damage each time
  const std::string whole =
      EncodeMessage(PoolReady{1, "key", "digest", "lock", {"a", "b"}, true, 1, 2, "cgroup", 3});
  for (size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_THROW(DecodeMessage(whole.substr(0, cut)), Error);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    for (uint32_t bits = 1 + random() % 3; bits > 0; --bits) {
      char& byte = bytes[random() % bytes.size()];
      byte = static_cast<char>(byte ^ (1 << (random() % 8)));
    }
    try {
      DecodeMessage(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kProtocol);
    }
  }
}

}  // namespace
}  // namespace hutch
