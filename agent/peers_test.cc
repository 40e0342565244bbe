// SPDX-License-Identifier: Apache-2.0

#include "agent/peers.h"

#include <gtest/gtest.h>

#include <vector>

namespace hutch {
namespace {

class FakePeer final : public Peer {
 public:
  bool Send(const Message& message, std::span<const int>) override {
    sent.push_back(message);
    return true;
  }
  uint64_t id() const override { return 7; }
  uint32_t* lease_table() override { return nullptr; }

  std::vector<Message> sent;
};

TEST(Peers, AFailedRequestIsAnsweredAndWaitsNoMore) {
  Peers peers;
  FakePeer peer;
  EXPECT_TRUE(peers.Add(peer));
  EXPECT_FALSE(peers.Add(peer));
  Peers::State& state = *peers.Find(7);
  state.waiting[1] = {"key", 3};
  state.preparing[2] = nullptr;
  peers.Fail(7, 1, Error(Code::kBusy, "why", "hint", true));
  peers.Fail(7, 2, Error(Code::kBusy, "why"));
  EXPECT_TRUE(state.waiting.empty());
  EXPECT_TRUE(state.preparing.empty());
  ASSERT_EQ(peer.sent.size(), 2u);
  const auto& failed = std::get<Failed>(peer.sent[0]);
  EXPECT_EQ(failed.request, 1u);
  EXPECT_EQ(failed.message, "why");
  EXPECT_EQ(failed.hint, "hint");
  EXPECT_TRUE(failed.may_have_run);
}

TEST(Peers, NothingIsSentToAClientThatIsGone) {
  Peers peers;
  FakePeer peer;
  peers.Add(peer);
  peers.Find(7)->waiting[1] = {"key", 3};
  const auto state = peers.Remove(7);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->waiting.at(1).ticket, 3u);
  peers.Send(7, Answer{});
  peers.Fail(7, 1, Error(Code::kBusy, "why"));
  EXPECT_TRUE(peer.sent.empty());
  EXPECT_FALSE(peers.Remove(7));
}

}  // namespace
}  // namespace hutch
