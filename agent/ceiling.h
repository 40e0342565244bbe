// SPDX-License-Identifier: Apache-2.0

// Compares what a caller asks for with what it may have, before anything is built. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "agent/config.h"
#include "wire/egress_rules.h"
#include "wire/error.h"
#include "wire/message.h"

namespace hutch {

// kInvalidArgument that names the first keyword above the ceiling, what was asked and what is
// allowed; nullopt: all are within it. `whose`: the table of agent.toml, for the hint.
std::optional<Error> AboveCeiling(const Ceiling& ceiling, const Prepare& prepare,
                                  std::string_view whose);

Isolation IsolationOf(const Prepare& prepare);

// Whether `allowed` covers every destination that `asked` does.
bool Covers(const EgressRule& allowed, const EgressRule& asked);

// The smaller of the limit that a client asks for and the ceiling's. 0: no limit.
uint64_t Bounded(uint64_t asked_ms, const std::optional<double>& ceiling_sec);

// Whether a path lies in one of these directories, by name. False for a path that is not absolute
// or has "..".
bool LiesIn(std::string_view path, const std::vector<std::string>& roots);

// kPlatform that names the limits this host does not enforce hard; nullopt: it enforces all.
// `enforcement`: as in PoolReady.
std::optional<Error> NotHard(std::string_view enforcement);

// The first tenant whose labels the spec has; nullptr: none.
const Tenant* TenantOf(const AgentConfig& config, const PoolSpec& spec);

}  // namespace hutch
