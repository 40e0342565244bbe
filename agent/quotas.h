// SPDX-License-Identifier: Apache-2.0

// How many cells and how much memory callers hold, in all and for each tenant, and who may have one
// more. Pure; belongs to one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "agent/config.h"

namespace hutch {

// What one leased cell takes of the quotas. `tenant`: its name, "" for a caller without one.
struct Reservation {
  std::string tenant{};
  uint64_t memory_mb = 0;
};

class Quotas {
 public:
  void Configure(const AgentConfig& config) {
    limits_.clear();
    limits_[""] = {config.host.cells, config.host.memory_mb};
    for (const Tenant& tenant : config.tenants)
      limits_[Key(tenant.name)] = {tenant.cells, tenant.memory_mb};
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
    uint64_t memory_mb = 0;
  };
  static std::string Key(const std::string& tenant) { return "/" + tenant; }  // "" is the host

  bool Fits(const std::string& key, const Reservation& one) const {
    const auto limit = limits_.find(key);
    if (limit == limits_.end()) return true;
    const auto held = held_.find(key);
    const Amount now = held == held_.end() ? Amount{} : held->second;
    if (limit->second.cells != 0 && now.cells >= limit->second.cells) return false;
    return limit->second.memory_mb == 0 || now.cells == 0 ||
           now.memory_mb + one.memory_mb <= limit->second.memory_mb;
  }
  void Add(const std::string& key, const Reservation& one) {
    Amount& held = held_[key];
    ++held.cells;
    held.memory_mb += one.memory_mb;
  }
  void Subtract(const std::string& key, const Reservation& one) {
    const auto held = held_.find(key);
    if (held == held_.end()) return;
    held->second.cells -= std::min<uint64_t>(held->second.cells, 1);
    held->second.memory_mb -= std::min(held->second.memory_mb, one.memory_mb);
    if (held->second.cells == 0) held_.erase(held);
  }

  std::map<std::string, Amount> limits_;  // 0: no limit
  std::map<std::string, Amount> held_;
};

}  // namespace hutch
