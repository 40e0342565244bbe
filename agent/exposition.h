// SPDX-License-Identifier: Apache-2.0

// What the agent tells of itself when it is asked: its state as JSON, and its metrics as JSON or as
// Prometheus reads them (text format 0.0.4).
//
// Pure functions of what the broker gathered. Everything here may hold text of callers' (names of
// requirements, labels), so it is escaped, and what is no UTF-8 is replaced.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/metrics.h"
#include "pool/pool.h"

namespace hutch {

struct PoolState {
  std::string key;
  std::string digest;  // of its environment, 64 hex digits
  std::vector<std::string> requirements;
  std::map<std::string, std::string> labels;
  uint64_t memory_mb = 0;
  Pool::Stats stats;
  PoolMetrics metrics;
  double calls_per_sec = 0;
  Histogram recent;  // of whole calls, see RecentHistogram
};

// What /proc says of the agent's own process.
struct ProcessState {
  uint64_t resident_bytes = 0;
  uint64_t open_descriptors = 0;
  uint64_t max_descriptors = 0;
  double cpu_sec = 0;
};
ProcessState ReadProcessState();

struct AgentState {
  std::string generation;
  double uptime_sec = 0;
  double started_sec = 0;  // since 1970
  uint64_t calls = 0;
  uint64_t clients = 0;
  uint64_t leases = 0;
  uint64_t spares = 0;
  double pressure = 0;                   // of the host, 0 to 1
  std::string enforcement = "watchdog";  // of limits, as Cgroups has it
  std::string enforcement_note = {};     // what keeps it from being "cgroup"
  uint64_t builds = 0;
  uint64_t builds_failed = 0;
  double build_sec = 0;
  bool stopping = false;
  ProcessState process;
  std::vector<PoolState> pools;
};

std::string StatusJson(const AgentState& agent);

// The metrics under one name.
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

// The names alone: "pandas" of "pandas>=2; python_version > '3'".
std::string NamesOf(const std::vector<std::string>& requirements);

}  // namespace hutch
