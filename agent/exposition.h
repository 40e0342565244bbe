// SPDX-License-Identifier: Apache-2.0

// What the agent reports about itself: its state as JSON, and its metrics as JSON or in
// Prometheus' text format 0.0.4.
//
// Pure functions of what the broker gathered. Callers' text (names of requirements, labels) may be
// anywhere in it, so it is escaped, and bytes that are not UTF-8 are replaced.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/audit.h"
#include "agent/metrics.h"
#include "environments/environment.h"
#include "pool/pool.h"

namespace hutch {

struct PoolState {
  std::string key;
  std::string digest;  // of its environment, 64 hex digits
  std::vector<std::string> requirements;
  std::map<std::string, std::string> labels;
  uint64_t memory_mb = 0;
  std::string isolation;  // cells of isolation="shared" are those of "cell"
  Pool::Stats stats;
  PoolMetrics metrics;
  double calls_per_sec = 0;
  Histogram recent;  // durations of whole calls, see RecentHistogram
};

// The agent's own process, according to /proc.
struct ProcessState {
  uint64_t resident_bytes = 0;
  uint64_t open_descriptors = 0;
  uint64_t max_descriptors = 0;
  double cpu_sec = 0;
};
ProcessState ReadProcessState();

struct SessionState {
  std::string id;  // its client's
  uint64_t lease = 0;
  AuditCaller caller;
  std::string worker;
  std::string pool;  // its key
  double age_sec = 0;
  double unused_sec = 0;  // 0 while a call runs
  double idle_sec = 0;    // it ends when it is not used for so long; 0: never
  uint64_t calls = 0;     // that are over
  std::string state;      // "starting", "running", "idle", "ending"
};

struct AgentState {
  std::string generation;
  double uptime_sec = 0;
  double started_sec = 0;  // since 1970
  uint64_t calls = 0;
  uint64_t clients = 0;
  uint64_t leases = 0;
  uint64_t sessions = 0;
  uint64_t most_sessions = 0;  // 0: no bound
  uint64_t spares = 0;
  double pressure = 0;                   // of the host, 0 to 1
  std::string enforcement = "watchdog";  // of limits, see Cgroups
  std::string enforcement_note = {};     // why it is not "cgroup"
  uint64_t builds = 0;
  uint64_t builds_failed = 0;
  double build_sec = 0;
  bool stopping = false;
  ProcessState process;
  std::vector<PoolState> pools;
};

std::string StatusJson(const AgentState& agent);
std::string SessionsJson(const std::vector<SessionState>& sessions);
std::string EnvironmentsJson(const std::vector<EnvironmentInfo>& environments);

// The samples under one metric name.
struct Family {
  struct Sample {
    std::string suffix;  // after the family's name: "", "_bucket", "_sum", "_count"
    std::vector<std::pair<std::string, std::string>> labels;
    double value = 0;
  };
  std::string name;
  std::string type;  // "counter", "gauge" or "histogram"
  std::string help;
  std::vector<Sample> samples;
};
std::vector<Family> FamiliesOf(const AgentState& agent);
std::string PrometheusText(const std::vector<Family>& families);
std::string MetricsJson(const std::vector<Family>& families);

// Only the names: "pandas" for "pandas>=2; python_version > '3'".
std::string NamesOf(const std::vector<std::string>& requirements);

}  // namespace hutch
