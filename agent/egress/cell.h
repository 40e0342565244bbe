// SPDX-License-Identifier: Apache-2.0

// One cell in the egress process: its channel to the forwarder, its streams, the bytes it used up,
// and the records of what was decided for it.
//
// Belongs to the loop's thread. The channel's other end may be hostile: a frame that is not exactly
// what the protocol says ends the channel and all streams of the cell.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "agent/egress/stream.h"

namespace hutch {

class EgressCell : public Stream::Owner {
 public:
  // `forwarder_gone` is called when the forwarder ends before CallIsOver() and Close().
  EgressCell(EgressShared& shared, std::shared_ptr<const EgressPolicy> policy, Fd channel,
             std::function<void()> forwarder_gone);
  ~EgressCell() override;

  void Tick(Clock::time_point now);
  void CallIsOver() { forwarder_gone_ = nullptr; }
  // Closes everything, and returns what was decided: the first records where there were too many.
  std::vector<NetworkRecord> Close();
  size_t streams() const { return streams_.size(); }

 private:
  const EgressPolicy& policy() const override { return *policy_; }
  bool HandOver(uint64_t stream, Fd end) override;
  void Reject(uint64_t stream) override;
  void Note(NetworkRecord record) override;
  bool Spend(uint64_t bytes) override;
  const std::shared_ptr<Resolver::Asker>& lookups() override { return lookups_; }
  void Ended(uint64_t stream) override;

  void OnChannel(uint32_t events);
  void Open(uint32_t listener, uint64_t id);
  void Reply(bool granted, uint64_t id, Fd end);
  void Flush();
  void Drop(const std::string& why);

  struct Pending {
    bool granted;
    uint64_t id;
    Fd end;
  };

  EgressShared& shared_;
  std::shared_ptr<const EgressPolicy> policy_;
  Fd channel_;
  std::function<void()> forwarder_gone_;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_;
  std::deque<Pending> replies_;  // that the socket has no room for; meanwhile it is not read
  uint64_t last_id_ = 0;
  uint64_t opened_ = 0;
  uint64_t spent_ = 0;
  std::shared_ptr<Resolver::Asker> lookups_ = std::make_shared<Resolver::Asker>();
  std::vector<NetworkRecord> records_;
  uint64_t dropped_records_ = 0;
};

}  // namespace hutch
