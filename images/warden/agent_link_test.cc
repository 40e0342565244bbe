// SPDX-License-Identifier: Apache-2.0

#include "images/warden/agent_link.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "images/warden/channel.h"

namespace hutch {
namespace {

class AgentLinkTest : public testing::Test {
 protected:
  AgentLinkTest() {
    EXPECT_NE(mkdtemp(directory_), nullptr);
    path_ = std::string(directory_) + "/socket";
    settings_.socket = path_.c_str();
    settings_.token = token_;
    events_.Open();
  }
  ~AgentLinkTest() override {
    for (const int fd : {agent_, listener_}) {
      if (fd >= 0) close(fd);
    }
    unlink(path_.c_str());
    rmdir(directory_);
  }
  void Listen() {
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(listener_, 4), 0);
  }
  void Accept() { agent_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC); }
  void Say(uint64_t number, const std::string& text = "") {
    FrameHeader header;
    header.kind = FrameKind::kPong;
    header.id = number;
    link_->Report(header, text.data(), text.size());
  }
  // The number of the next frame; -1: there is none now, or no agent.
  int64_t Hear(std::string* text = nullptr) {
    Datagram message;
    if (Receive(agent_, &message) != Receiving::kDatagram) return -1;
    if (text != nullptr) text->assign(message.payload, message.size);
    return static_cast<int64_t>(message.header.id);
  }

  char directory_[32] = "/tmp/agent_link_XXXXXX";
  char token_[8] = "secret";
  std::string path_;
  Settings settings_;
  Events events_;
  std::unique_ptr<AgentLink> link_ = std::make_unique<AgentLink>(settings_, events_);
  int listener_ = -1;
  int agent_ = -1;
};

TEST_F(AgentLinkTest, SaysHelloWithItsToken) {
  EXPECT_FALSE(link_->Connect()) << "nobody listens";
  EXPECT_FALSE(link_->connected());
  Listen();
  ASSERT_TRUE(link_->Connect());
  Accept();
  Datagram hello;
  ASSERT_EQ(Receive(agent_, &hello), Receiving::kDatagram);
  EXPECT_EQ(hello.header.kind, FrameKind::kHello);
  EXPECT_EQ(std::string(hello.payload, hello.size), "secret");
}

TEST_F(AgentLinkTest, KeepsTheOrderOfWhatFindsNoRoom) {
  Listen();
  ASSERT_TRUE(link_->Connect());
  Accept();
  EXPECT_EQ(Hear(), 0);
  const std::string text(200, 'x');
  const int64_t first = 300, most = 320;  // of which some are sent, and the others queued
  for (int64_t i = 1; i <= first; ++i) Say(static_cast<uint64_t>(i), text);
  ASSERT_TRUE(link_->connected());
  std::string heard;
  for (int64_t i = 1; i <= most; ++i) {
    // There is room again when the last ones come.
    if (i == 6) {
      for (int64_t k = first + 1; k <= most; ++k) Say(static_cast<uint64_t>(k), text);
    }
    int64_t number = Hear(&heard);
    if (number < 0) {
      link_->Flush();
      number = Hear(&heard);
    }
    ASSERT_EQ(number, i);
    ASSERT_EQ(heard, text);
  }
  EXPECT_EQ(Hear(), -1);
}

TEST_F(AgentLinkTest, GivesUpAnAgentThatDoesNotReadAndServesTheNext) {
  Listen();
  ASSERT_TRUE(link_->Connect());
  Accept();
  for (uint64_t i = 1; i < 100'000 && link_->connected(); ++i) Say(i);
  EXPECT_FALSE(link_->connected());
  EXPECT_GT(link_->gone_us(), 0);
  Say(7);  // to nobody
  ASSERT_TRUE(link_->Connect());
  close(agent_);
  Accept();
  EXPECT_EQ(Hear(), 0) << "nothing of what the other one left comes before its hello";
  Say(8);
  EXPECT_EQ(Hear(), 8);
}

TEST_F(AgentLinkTest, CutsInTheQueueWhatIsTooLong) {
  Listen();
  ASSERT_TRUE(link_->Connect());
  Accept();
  EXPECT_EQ(Hear(), 0);
  const std::string text(1000, 'x');
  for (uint64_t i = 1; i <= 300; ++i) Say(i, text);
  ASSERT_TRUE(link_->connected());
  std::string heard;
  size_t least = text.size();
  for (int64_t i = 1; i <= 300; ++i) {
    if (Hear(&heard) < 0) {
      link_->Flush();
      ASSERT_EQ(Hear(&heard), i);
    }
    least = std::min(least, heard.size());
  }
  EXPECT_EQ(least, AgentLink::kMaxQueued);
}

}  // namespace
}  // namespace hutch
