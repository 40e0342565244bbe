// SPDX-License-Identifier: Apache-2.0

// agent.toml: what whoever runs the agent lets its callers have. It lies in the state directory,
// and is read when the agent starts and when it is told to (SIGHUP, `hutch agent reload`).
//
// Values; the parser is a pure function. Everything in the file is optional: what is not there sets
// no bound. docs/policy.md has the keys.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wire/paths.h"
#include "wire/values.h"

namespace hutch {

// The policy that no caller exceeds. Unset: no bound.
struct Ceiling {
  std::optional<double> timeout_sec{};
  std::optional<double> cpu_sec{};
  std::optional<double> memory_mb{};
  std::optional<double> disk_mb{};
  std::optional<double> pids{};
  std::optional<double> cpus{};
  std::optional<double> output_mb{};
  std::optional<double> result_mb{};
  std::optional<std::vector<std::string>> allow_network{};  // what callers may name; empty: nothing
  std::optional<std::vector<std::string>> mounts{};  // directories that sources lie in; empty: none
  std::optional<Isolation> isolation{};              // the weakest there may be
  std::optional<bool> allow_sdists{};

  bool operator==(const Ceiling&) const = default;
};

// What all calls together may have. 0: as much as the host bears.
struct HostQuotas {
  uint64_t cells = 0;      // leased at once
  uint64_t memory_mb = 0;  // the memory_mb of those, added up
  uint64_t queue = 0;      // calls that wait, in all pools
  uint64_t environment_disk_mb = 0;
  // PEM file of the host: whom the egress process trusts where it speaks TLS itself. "": whom the
  // base image does.
  std::string ca_bundle{};

  bool operator==(const HostQuotas&) const = default;
};

// The callers whose `labels=` hold all of these; the first such tenant of the file is theirs.
struct Tenant {
  std::string name{};
  std::map<std::string, std::string> labels{};
  uint64_t cells = 0;
  uint64_t memory_mb = 0;
  Ceiling ceiling{};  // beside the one that holds for everybody

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

// Throws kInvalidArgument: one sentence with the place, what is wrong and what is meant. `name`: of
// the file.
AgentConfig ParseConfig(std::string_view text, const std::string& name);

// No file there: nothing is bounded. Throws kInvalidArgument also where it cannot be read.
AgentConfig LoadConfig(const std::string& file);

}  // namespace hutch
