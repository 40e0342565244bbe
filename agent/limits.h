// SPDX-License-Identifier: Apache-2.0

// The limits of a call, each declared once: its name, its bounds, and its place in a request and in
// the ceiling of an agent. The agent reads agent.toml, checks requests, compares them with a
// ceiling and writes the audit log by this table. A caller's side is
// bindings/hutch/_options/options.py; bindings/test_fields.py compares the two.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "wire/message.h"

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
  std::optional<std::vector<std::string>>
      allow_network{};  // entries that callers may use; empty: none
  std::optional<std::vector<std::string>>
      mounts{};                          // directories that sources must lie in; empty: none
  std::optional<Isolation> isolation{};  // the weakest that is allowed
  std::optional<bool> allow_sdists{};

  bool operator==(const Ceiling&) const = default;
};

struct LimitField {
  const char* name;  // ends with its unit
  double least;      // allowed for a whole number; any other must be above it
  double most;
  bool whole;
  bool can_be_none;                 // 0 in a request: no limit
  double (*asked)(const Prepare&);  // in the unit of the name
  std::optional<double> Ceiling::* ceiling;
};

inline constexpr double kYearSec = 366 * 86400.0;
inline constexpr double kMostMb = 1 << 20;
inline constexpr double kMib = 1 << 20;

// clang-format off
inline constexpr std::array<LimitField, 8> kLimitFields = {{
    {"timeout_sec", 0, kYearSec, false, true,
     [](const Prepare& p) { return static_cast<double>(p.limits.timeout_ms) / 1000; }, &Ceiling::timeout_sec},
    {"cpu_sec", 0, kYearSec, false, true,
     [](const Prepare& p) { return static_cast<double>(p.limits.cpu_ms) / 1000; }, &Ceiling::cpu_sec},
    {"memory_mb", 16, kMostMb, true, false,
     [](const Prepare& p) { return static_cast<double>(p.spec.memory_mb); }, &Ceiling::memory_mb},
    {"cpus", 0, 4096, false, false,
     [](const Prepare& p) { return p.spec.cpus; }, &Ceiling::cpus},
    {"pids", 1, 32768, true, false,
     [](const Prepare& p) { return static_cast<double>(p.spec.pids); }, &Ceiling::pids},
    {"disk_mb", 1, kMostMb, true, false,
     [](const Prepare& p) { return static_cast<double>(p.spec.disk_mb); }, &Ceiling::disk_mb},
    {"output_mb", 0, 4096, false, false,
     [](const Prepare& p) { return static_cast<double>(p.limits.output_bytes) / kMib; }, &Ceiling::output_mb},
    {"result_mb", 0, 65536, false, true,
     [](const Prepare& p) { return static_cast<double>(p.limits.result_bytes) / kMib; }, &Ceiling::result_mb},
}};
// clang-format on

}  // namespace hutch
