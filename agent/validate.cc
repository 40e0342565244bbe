// SPDX-License-Identifier: Apache-2.0

#include "agent/validate.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "agent/limits.h"
#include "podman/mounts.h"
#include "wire/egress_rules.h"
#include "wire/error.h"

namespace hutch {
namespace {

std::string Bounds(const LimitField& limit) {
  char text[80];
  std::snprintf(text, sizeof text, "%s must be from %.8g to %.8g", limit.name, limit.least,
                limit.most);
  return text;
}

}  // namespace

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

void Validate(const Prepare& prepare) {
  const PoolSpec& spec = prepare.spec;
  const auto refuse = [](const std::string& what) { throw Error(Code::kInvalidArgument, what); };
  if (!IsHex(spec.base_id, 32) || !IsHex(spec.runtime_id, 32))
    refuse("base_id and runtime_id must be 32 hex digits");
  for (const LimitField& limit : kLimitFields) {
    const double asked = limit.asked(prepare);
    if (!(asked >= limit.least && asked <= limit.most)) refuse(Bounds(limit));
  }
  if (!(spec.cpus > 0)) refuse("cpus must be above 0");
  if (spec.max_calls < 1) refuse("max_calls must be 1 or more");
  if (!(spec.max_age_sec > 0 && spec.idle_sec > 0))
    refuse("max_age_sec and idle_sec must be above 0");
  if (spec.max_cells > 4096) refuse("max_cells must be 4096 or less");
  if (spec.isolation == Isolation::kShared)
    refuse("the isolation of a pool must be \"cell\", \"container\" or \"gvisor\"");
  if (spec.isolation == Isolation::kGvisor &&
      !(spec.mounts.empty() && spec.allow_network.empty() && spec.secrets.empty()))
    refuse("isolation=\"gvisor\" takes no mounts, and has no network");
  CheckMounts(spec);
  CheckEgress(spec);
}

}  // namespace hutch
