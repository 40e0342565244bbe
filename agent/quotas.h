// SPDX-License-Identifier: Apache-2.0

// How many cells, sessions and how much memory callers hold, in all and for each tenant, and who
// may have one more. The cell of a session counts as a session and no more as a cell: it may be
// held for hours. Pure; belongs to one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "agent/config.h"

namespace hutch {

// What one leased cell takes of the quotas. `tenant`: its name, "" for a caller without one.
struct Reservation {
  std::string tenant{};
  uint64_t memory_mb = 0;
  bool session = false;
};

class Quotas {
 public:
  void Configure(const AgentConfig& config) {
    limits_.clear();
    limits_[""] = {config.host.cells, config.host.sessions, config.host.memory_mb};
    for (const Tenant& tenant : config.tenants) {
      // A tenant with a bound on cells does not get around it with sessions.
      const uint64_t sessions = tenant.sessions != 0 ? tenant.sessions : tenant.cells;
      limits_[Key(tenant.name)] = {tenant.cells, sessions, tenant.memory_mb};
    }
  }

  // A reservation that is larger than a whole quota is admitted when nothing else is held:
  // otherwise it would never be served.
  bool MayTake(const Reservation& one) const {
    return Fits("", one) && (one.tenant.empty() || Fits(Key(one.tenant), one));
  }
  // Whether the tenant's quota is what is full, rather than the host's.
  bool TenantIsFull(const Reservation& one) const {
    return !one.tenant.empty() && !Fits(Key(one.tenant), one);
  }
  void Take(const Reservation& one) {
    Add("", one);
    if (!one.tenant.empty()) Add(Key(one.tenant), one);
  }
  // A quota of sessions: `whose` is the tenant's name, or "" for the host's.
  struct Sessions {
    std::string whose{};
    uint64_t held = 0;
    uint64_t most = 0;
  };
  // The quota that one more session would exceed; nullopt: there is room.
  std::optional<Sessions> WhyNoSession(const std::string& tenant) const {
    if (Sessions all = sessions(""); all.held >= all.most && all.most != 0) return all;
    if (tenant.empty()) return std::nullopt;
    if (Sessions its = sessions(tenant); its.held >= its.most && its.most != 0) return its;
    return std::nullopt;
  }
  // Of the tenant; with "", of all.
  Sessions sessions(const std::string& tenant) const {
    const std::string key = tenant.empty() ? "" : Key(tenant);
    const auto limit = limits_.find(key);
    const auto held = held_.find(key);
    return {tenant, held == held_.end() ? 0 : held->second.sessions,
            limit == limits_.end() ? 0 : limit->second.sessions};
  }
  void Release(const Reservation& one) {
    Subtract("", one);
    if (!one.tenant.empty()) Subtract(Key(one.tenant), one);
  }
  // Cells that the tenant holds; with "", all cells.
  uint64_t cells(const std::string& tenant) const {
    const auto found = held_.find(tenant.empty() ? "" : Key(tenant));
    return found == held_.end() ? 0 : found->second.cells;
  }

 private:
  struct Amount {
    uint64_t cells = 0;
    uint64_t sessions = 0;
    uint64_t memory_mb = 0;
  };
  static std::string Key(const std::string& tenant) { return "/" + tenant; }  // "" is the host

  bool Fits(const std::string& key, const Reservation& one) const {
    const auto limit = limits_.find(key);
    if (limit == limits_.end()) return true;
    const auto held = held_.find(key);
    const Amount now = held == held_.end() ? Amount{} : held->second;
    if (limit->second.cells != 0 && now.cells >= limit->second.cells) return false;
    return limit->second.memory_mb == 0 || now.cells + now.sessions == 0 ||
           now.memory_mb + one.memory_mb <= limit->second.memory_mb;
  }
  void Add(const std::string& key, const Reservation& one) {
    Amount& held = held_[key];
    ++(one.session ? held.sessions : held.cells);
    held.memory_mb += one.memory_mb;
  }
  void Subtract(const std::string& key, const Reservation& one) {
    const auto held = held_.find(key);
    if (held == held_.end()) return;
    uint64_t& count = one.session ? held->second.sessions : held->second.cells;
    count -= std::min<uint64_t>(count, 1);
    held->second.memory_mb -= std::min(held->second.memory_mb, one.memory_mb);
    if (held->second.cells + held->second.sessions == 0) held_.erase(held);
  }

  std::map<std::string, Amount> limits_;  // 0: no limit
  std::map<std::string, Amount> held_;
};

}  // namespace hutch
