// SPDX-License-Identifier: Apache-2.0

// What a caller asks for, held against what it may have: pure decisions, before anything is built.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "agent/config.h"
#include "wire/egress.h"
#include "wire/error.h"
#include "wire/message.h"

namespace hutch {

// The first keyword that asks for more than the ceiling allows, as kInvalidArgument with what was
// asked and what is allowed. `whose`: the table of agent.toml, for the hint.
std::optional<Error> AboveCeiling(const Ceiling& ceiling, const Prepare& prepare,
                                  std::string_view whose);

Isolation IsolationOf(const Prepare& prepare);

// Whether whatever `asked` lets a call reach, `allowed` lets it reach.
bool Covers(const EgressRule& allowed, const EgressRule& asked);

// The smaller of a limit that a client tells and of the ceiling's. 0: none.
uint64_t Bounded(uint64_t told_ms, const std::optional<double>& ceiling_sec);

// Whether a path lies in one of these directories, by name. REQUIRES: an absolute path; one with
// ".." lies nowhere.
bool LiesIn(std::string_view path, const std::vector<std::string>& roots);

// kPlatform with the limits that this host does not enforce hard, where a caller wants all of them
// hard. `enforcement`: as in Prepared.
std::optional<Error> NotHard(std::string_view enforcement);

// The tenant whose calls these are; nullptr: nobody's.
const Tenant* TenantOf(const AgentConfig& config, const PoolSpec& spec);

}  // namespace hutch
