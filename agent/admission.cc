// SPDX-License-Identifier: Apache-2.0

#include "agent/admission.h"

#include <algorithm>
#include <chrono>

namespace hutch {

void Admission::Configure(const AgentConfig& config) {
  config_ = config;
  quotas_.Configure(config);
}

std::optional<Error> Admission::WhyRefuse(const Prepare& prepare,
                                          std::string_view enforcement) const {
  if (prepare.hard_limits) {
    if (auto why = NotHard(enforcement)) return why;
  }
  if (auto why = AboveCeiling(config_.ceiling, prepare, "[ceiling]")) return why;
  const auto above_quota = [&](uint64_t memory_mb, const std::string& whose) {
    Ceiling quota;
    if (memory_mb != 0) quota.memory_mb = memory_mb;
    return AboveCeiling(quota, prepare, whose);
  };
  if (auto why = above_quota(config_.host.memory_mb, "[host]")) return why;
  const Tenant* tenant = TenantOf(config_, prepare.spec);
  if (tenant == nullptr) return std::nullopt;
  if (auto why = AboveCeiling(tenant->ceiling, prepare, "[tenants." + tenant->name + ".ceiling]"))
    return why;
  return above_quota(tenant->memory_mb, "[tenants." + tenant->name + "]");
}

Reservation Admission::ReservationOf(const PoolSpec& spec) const {
  const Tenant* tenant = TenantOf(config_, spec);
  return {tenant == nullptr ? "" : tenant->name, spec.memory_mb};
}

bool Admission::Release(const Reservation& one) {
  const bool was_full = !quotas_.MayTake(one);
  quotas_.Release(one);
  return was_full;
}

std::optional<Error> Admission::WhyNoSession(const std::string& tenant) const {
  const auto full = quotas_.WhyNoSession(tenant);
  if (!full) return std::nullopt;
  const std::string held = std::to_string(full->held) + " of " + std::to_string(full->most);
  const std::string whose = full->whose.empty() ? "host" : "tenants." + full->whose;
  return Error(
      Code::kBusy,
      "there is no room for one more session: " + held + " are open" +
          (full->whose.empty() ? "" : ", of the tenant \"" + full->whose + "\""),
      "close sessions that are not needed (`hutch sessions` lists them), give them a shorter "
      "idle_sec=, or "
      "raise sessions in [" +
          whose + "] of agent.toml",
      false,
      {{"queued", 0.0},
       {"capacity", static_cast<double>(full->most)},
       {"waited_sec", 0.0},
       {"sessions", static_cast<double>(full->held)}});
}

bool Admission::Keep(Reservation* one) {
  const bool was_full = Release(*one);
  one->session = true;
  quotas_.Take(*one);
  return was_full;
}

Admission::Shortage Admission::ShortageOf(std::span<const Reservation> waiting) const {
  Shortage shortage;
  for (const Reservation& wanted : waiting) {
    if (quotas_.MayTake(wanted)) continue;
    if (quotas_.TenantIsFull(wanted)) {
      shortage.tenants.insert(wanted.tenant);
    } else {
      shortage.host = true;
    }
  }
  return shortage;
}

uint64_t Admission::TurnOf(const Reservation& one) const {
  return one.tenant.empty() ? 0 : quotas_.cells(one.tenant);
}

uint64_t Admission::TimeoutMs(uint64_t asked_ms, Clock::duration run) const {
  if (!config_.ceiling.timeout_sec) return asked_ms;
  const double left = *config_.ceiling.timeout_sec - std::chrono::duration<double>(run).count();
  return Bounded(asked_ms, std::max(left, 0.001));
}

uint64_t Admission::CpuMs(uint64_t asked_ms) const {
  return Bounded(asked_ms, config_.ceiling.cpu_sec);
}

uint64_t Admission::LoadCpuMs(uint64_t asked_ms) const {
  return CpuMs(Bounded(asked_ms, config_.ceiling.timeout_sec));
}

}  // namespace hutch
