// SPDX-License-Identifier: Apache-2.0

// The audit log: one JSON object a line for each call, and one for each policy when it is first
// used, in files that are rotated by size. It never holds an argument, a result, or output.
//
// Belongs to the loop's thread, which only puts entries into a list: they are formatted and written
// by a thread of the log's own, a fraction of a second later. Entries that the disk does not take
// in time are dropped and counted, and the log says how many. Only their owner can read the files.
// Nothing is synced: a power failure loses the last seconds.
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

// The caller, as its client says: clients are of the agent's own user.
struct AuditCaller {
  uint32_t uid = 0;
  int32_t pid = 0;
};

// The part of an entry that is the same for every call of a pool.
struct AuditPool {
  std::string key{};
  std::string digest{};  // of its environment
  std::map<std::string, std::string> labels{};
  std::string tenant{};  // its name; "": none
};

struct AuditEntry {
  std::shared_ptr<const AuditPool> pool{};
  AuditCaller caller{};
  CallStats note{};  // its ending is known: not kUntold
  std::string worker{};
  std::optional<CellReport> report{};  // the warden's, of a cell that served this call alone
  std::vector<NetworkRecord> network{};
  std::string session{};  // its id; "": the call is no session's
  uint64_t number = 0;    // of the call in its session, from 1
  double time_sec = 0;    // since 1970; 0: now
};

class AuditLog {
 public:
  // `dir` is made when there is something to write. `loop` outlives it.
  AuditLog(Loop& loop, std::string dir, AuditSettings settings);
  ~AuditLog();  // writes what is left

  void Configure(const AuditSettings& settings) { settings_ = settings; }

  void Append(AuditEntry entry);
  // Writes the policy that the number `prepare.policy` stands for, the first time it is seen.
  void NotePolicy(const Prepare& prepare);

  uint64_t dropped() const { return dropped_in_all_; }

 private:
  struct Files;  // used by the other thread
  struct Batch {
    std::vector<std::string> lines;
    std::vector<AuditEntry> entries;
    uint64_t dropped = 0;  // entries, before these
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

// One line of the log, without its newline.
std::string AuditLine(const AuditEntry& entry);
std::string PolicyLine(const Prepare& prepare);

}  // namespace hutch
