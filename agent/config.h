// SPDX-License-Identifier: Apache-2.0

// agent.toml: what the operator of the agent lets its callers have. It lies in the state directory,
// and is read when the agent starts, on SIGHUP, and by `hutch agent reload`.
//
// Values; the parser is a pure function. Everything in the file is optional: a missing key sets no
// bound. docs/policy.md lists the keys.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "agent/limits.h"
#include "pool/sizing.h"
#include "wire/paths.h"

namespace hutch {

// A session that does nothing has a few megabytes and two processes.
inline constexpr uint64_t kDefaultSessions = 256;
inline constexpr uint64_t kDefaultSweepSec = 60;

// What all calls together may have. 0: no bound but the host's own.
struct HostQuotas {
  uint64_t cells = 0;                    // leased at once, but for those of sessions
  uint64_t sessions = kDefaultSessions;  // at once; never 0
  uint64_t memory_mb = 0;                // the memory_mb of both, added up
  uint64_t queue = 0;                    // calls that wait, in all pools
  uint64_t environment_disk_mb = 0;
  double idle_sec = 0;  // a pool that no call used for so long is ended, whatever its caller asked
  // Of a pool whose calls have a container each, where Pool(warm=) says nothing: at most.
  uint64_t warm_workers = kMostParkedWorkers;
  uint64_t sweep_sec = kDefaultSweepSec;  // between two looks for what an ended agent has left
  // PEM file on the host with the certificates that the egress process trusts where it speaks TLS
  // itself. "": those of the base image.
  std::string ca_bundle{};

  bool operator==(const HostQuotas&) const = default;
};

// The callers whose `labels=` hold all of these. The first such tenant in the file counts.
struct Tenant {
  std::string name{};
  std::map<std::string, std::string> labels{};
  uint64_t cells = 0;
  uint64_t sessions = 0;
  uint64_t memory_mb = 0;
  Ceiling ceiling{};  // in addition to the one for everybody

  bool operator==(const Tenant&) const = default;
};

struct AuditSettings {
  bool enabled = true;
  uint64_t file_mb = 16;
  uint64_t files = 8;
  size_t most_waiting =
      20'000;  // calls that the disk has not taken yet, about 5 MB; not in the file

  bool operator==(const AuditSettings&) const = default;
};

struct AgentConfig {
  Ceiling ceiling{};
  HostQuotas host{};
  std::vector<Tenant> tenants{};  // in the file's order
  AuditSettings audit{};

  bool operator==(const AgentConfig&) const = default;
};

std::string ConfigFile(const Paths& paths);

// Throws kInvalidArgument: one sentence with the place, what is wrong and what is expected. `name`:
// the file's, for that sentence.
AgentConfig ParseConfig(std::string_view text, const std::string& name);

// Without the file nothing is bounded. Throws kInvalidArgument also when it cannot be read.
AgentConfig LoadConfig(const std::string& file);

}  // namespace hutch
