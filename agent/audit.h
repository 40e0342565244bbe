// SPDX-License-Identifier: Apache-2.0

// The audit log: one JSON object a line for each call, and one for each policy when it is first
// used, in files that are rotated by size. Never an argument, a result, or what was printed.
//
// Belongs to the loop's thread, which only puts entries into a list: they are formatted and written
// by a thread of the log's own, a fraction of a second later. What the disk does not take in time
// is dropped, counted, and said in the log. The files hold nothing that is not written here, and
// are only their owner's to read. Nothing is synced: a power failure loses the last seconds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/config.h"
#include "loop/background.h"
#include "loop/loop.h"
#include "wire/message.h"

namespace hutch {

// Who called, as their client says: it is of the agent's own user.
struct AuditCaller {
  uint32_t uid = 0;
  int32_t pid = 0;
};

// What is the same for every call of a pool.
struct AuditPool {
  std::string key{};     // its name
  std::string digest{};  // of its environment
  std::map<std::string, std::string> labels{};
  std::string tenant{};  // "": nobody's
};

struct AuditEntry {
  std::shared_ptr<const AuditPool> pool{};
  AuditCaller caller{};
  CallNote note{};  // with how it ended
  std::string worker{};
  std::optional<CellReport> report{};  // the warden's, of the cell; not of a cell that is kept
  std::vector<NetworkRecord> network{};
  double time_sec = 0;  // since 1970; 0: now
};

class AuditLog {
 public:
  // `dir` is made when there is something to write. `loop` outlives it.
  AuditLog(Loop& loop, std::string dir, AuditSettings settings);
  ~AuditLog();  // writes what is left

  void Configure(const AuditSettings& settings) { settings_ = settings; }

  void Append(AuditEntry entry);
  // Once for each `prepare.policy`: what that number stands for.
  void NotePolicy(const Prepare& prepare);

  uint64_t dropped() const { return dropped_in_all_; }

 private:
  struct Files;  // the writing side, on the other thread
  struct Batch {
    std::vector<std::string> lines;
    std::vector<AuditEntry> entries;
    uint64_t dropped = 0;  // before these
    std::string Text() const;
  };

  void FlushSoon();
  void Flush();

  Loop& loop_;
  AuditSettings settings_;
  std::shared_ptr<Files> files_;
  Batch waiting_;
  std::shared_ptr<Batch> writing_;  // nullptr: nothing is being written
  std::set<uint64_t> noted_;
  uint64_t dropped_in_all_ = 0;
  TimerId timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Background> thread_;  // made with the first entry
};

// One line of it, without a line's end.
std::string AuditLine(const AuditEntry& entry);
std::string PolicyLine(const Prepare& prepare);

}  // namespace hutch
