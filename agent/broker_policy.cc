// SPDX-License-Identifier: Apache-2.0

// The broker's side of agent.toml and of the audit log: what callers may ask for, how many cells
// they may hold, and what is written down of each call.
#include <algorithm>
#include <atomic>
#include <ctime>
#include <set>
#include <vector>

#include "agent/broker.h"
#include "wire/log.h"

namespace hutch {
namespace {

// An environment that was used so lately may be on its way to a pool.
constexpr int64_t kJustUsedSec = 120;
// As a client tells of a call only after so long (client/lease.cc).
constexpr auto kLoadUnwatched = std::chrono::milliseconds(5);

}  // namespace

void Broker::Configure(const AgentConfig& config) {
  if (!(config == config_)) InvalidatePools();
  config_ = config;
  shares_.Configure(config);
  queues_.capacity = config.host.queue != 0 ? config.host.queue : kMaxQueuedInAll;
  if (audit_ != nullptr) audit_->Configure(config.audit);
  if (egress_ != nullptr) egress_->Trust(config.host.ca_bundle);
  ServeWaiters();
  TrimEnvironments();
}

// Who has a pool, a cell ahead or a place in a queue asks again, and is refused where it may have
// it no more. Calls that run go on.
void Broker::InvalidatePools() {
  for (auto& [key, facts] : facts_) facts.stale = true;
  std::vector<uint64_t> ahead;  // a worker that is gone takes its leases with it
  for (const auto& [cell, lease] : leases_) {
    if (lease.ahead && !lease.releasing) ahead.push_back(cell);
  }
  for (const uint64_t cell : ahead) {
    if (const auto found = leases_.find(cell); found != leases_.end())
      TakeBack(cell, found->second);
  }
  for (auto& [id, state] : peers_) {
    for (const auto& [request, place] : std::map(state.waiting)) {
      if (Pool* pool = FindPool(place.first)) pool->Forget(place.second);
      Fail(id, request,
           Error(Code::kUnknownPool, "the agent's settings changed: prepare it again"));
    }
  }
}

void Broker::Reload() {
  if (config_file_.empty()) throw Error(Code::kInvalidArgument, "this agent reads no file");
  Configure(LoadConfig(config_file_));
  LogInfo("the configuration is read", {{"file", config_file_}});
}

std::optional<Error> Broker::WhyRefuse(const Prepare& prepare) const {
  if (prepare.hard_limits) {
    if (auto why = NotHard(Enforcement())) return why;
  }
  if (auto why = AboveCeiling(config_.ceiling, prepare, "[ceiling]")) return why;
  const auto share = [&](uint64_t memory_mb, const std::string& whose) {
    Ceiling whole;
    if (memory_mb != 0) whole.memory_mb = memory_mb;
    return AboveCeiling(whole, prepare, whose);
  };
  if (auto why = share(config_.host.memory_mb, "[host]")) return why;
  const Tenant* tenant = hutch::TenantOf(config_, prepare.spec);
  if (tenant == nullptr) return std::nullopt;
  if (auto why = AboveCeiling(tenant->ceiling, prepare, "[tenants." + tenant->name + ".ceiling]"))
    return why;
  return share(tenant->memory_mb, "[tenants." + tenant->name + "]");
}

void Broker::FactsOf(const std::string& key, const Pool& pool) {
  PoolFacts& facts = facts_[key];
  if (facts.audit != nullptr && !facts.stale) return;
  const Tenant* tenant = hutch::TenantOf(config_, pool.spec());
  const std::string name = tenant == nullptr ? "" : tenant->name;
  facts.audit = std::make_shared<const AuditPool>(
      AuditPool{key, pool.environment().digest, pool.spec().labels, name});
  facts.holding = {name, pool.spec().memory_mb};
  facts.stale = false;
}

// Somebody waits, and there is no room in a share: a cell that was leased ahead and is not used
// makes some.
void Broker::TakeBackForShares() {
  taking_back_ = false;
  std::set<std::string> full;  // tenants
  bool host_full = false;
  for (const auto& [key, pool] : pools_) {
    if (pool->GetStats().waiting == 0) continue;
    const Holding& wanted = facts_[key].holding;
    if (shares_.MayTake(wanted)) continue;
    if (shares_.TenantIsFull(wanted)) {
      full.insert(wanted.tenant);
    } else {
      host_full = true;
    }
  }
  for (auto& [cell, lease] : leases_) {
    if (!lease.ahead || lease.releasing) continue;
    if (!host_full && !full.contains(lease.holding.tenant)) continue;
    if (TakeBack(cell, lease)) return;
  }
}

// First those of whom the fewest hold a cell.
void Broker::ServeWaiters() {
  serving_ = false;
  std::vector<Pool*> waiting;
  for (const auto& [key, pool] : pools_) {
    if (pool->GetStats().waiting > 0) waiting.push_back(pool.get());
  }
  const auto held = [this](const Pool* pool) {
    const std::string& tenant = facts_[pool->key()].holding.tenant;
    return std::pair(tenant.empty() ? uint64_t{0} : shares_.cells(tenant), pool->last_use());
  };
  std::ranges::sort(waiting, {}, held);
  for (Pool* pool : waiting) pool->Serve();
}

void Broker::Arm(Lease& lease, const Started& started) {
  Pool* pool = FindPool(lease.pool);
  if (pool == nullptr) return;
  if (started.timeout_ms == 0 && started.cpu_ms == 0 && started.result_kb == 0) {
    lease.ahead = lease.kept = true;
    return pool->Arm(started.lease, 0, 0);
  }
  lease.armed = true;
  pool->Arm(started.lease, Bounded(started.timeout_ms, config_.ceiling.timeout_sec),
            Bounded(started.cpu_ms, config_.ceiling.cpu_sec), started.result_kb);
}

// What a cell loads is its caller's code as the call itself is, so it is held to the same limits.
// The warden hears of it after a moment, as of a call: most cells are used, and gone, before.
void Broker::WatchLoad(uint64_t cell, uint64_t cpu_ms) {
  loading_.push_back({Clock::now() + kLoadUnwatched, cell, cpu_ms});
  if (loading_.size() == 1) loop_.After(kLoadUnwatched, [this] { ArmLoads(); });
}

void Broker::ArmLoads() {
  const Clock::time_point now = Clock::now();
  for (; !loading_.empty() && loading_.front().due <= now; loading_.pop_front()) {
    const auto found = leases_.find(loading_.front().cell);
    // Once its call is armed, that holds for all that the cell does.
    if (found == leases_.end() || found->second.releasing || found->second.armed) continue;
    if (Pool* pool = FindPool(found->second.pool)) {
      const uint64_t cpu_ms = Bounded(loading_.front().cpu_ms, config_.ceiling.timeout_sec);
      pool->ArmLoading(loading_.front().cell, Bounded(cpu_ms, config_.ceiling.cpu_sec));
    }
  }
  if (!loading_.empty()) loop_.After(loading_.front().due - now, [this] { ArmLoads(); });
}

// A call runs for long, and its client did not say so.
void Broker::ArmForgotten() {
  if (!config_.ceiling.timeout_sec && !config_.ceiling.cpu_sec) return;
  for (auto& [cell, lease] : leases_) {
    if (lease.armed || lease.kept || lease.releasing) continue;
    PeerState* state = StateOf(lease.peer);
    if (state == nullptr) continue;
    uint32_t& mark = state->peer->lease_table()[lease.table_slot];
    if (std::atomic_ref<uint32_t>(mark).load() != MarkOf(cell, kLeaseUsed)) continue;
    lease.armed = true;
    if (Pool* pool = FindPool(lease.pool)) {
      pool->Arm(cell, Bounded(0, config_.ceiling.timeout_sec), Bounded(0, config_.ceiling.cpu_sec));
    }
  }
}

AuditEntry Broker::EntryOf(const Lease& lease) const {
  const auto facts = facts_.find(lease.pool);
  return {.pool = facts == facts_.end() ? nullptr : facts->second.audit,
          .caller = lease.caller,
          .worker = lease.worker,
          .network = lease.network};
}

void Broker::Audit(AuditEntry entry, const CallNote& note) {
  if (audit_ == nullptr || entry.pool == nullptr || note.ending == Ending::kNoCall) return;
  entry.note = note;
  audit_->Append(std::move(entry));
}

// Of what is in no pool, that which was used the longest ago goes first.
void Broker::TrimEnvironments() {
  const uint64_t most = config_.host.environment_disk_mb << 20;
  if (most == 0 || stopping_) return;
  std::set<std::string> used;
  for (const auto& [key, pool] : pools_) {
    if (!pool->abandoned()) used.insert(pool->environment().digest);
  }
  builder_threads_.Post([this, most, used] {
    std::vector<EnvironmentInfo> all = store_.List();
    std::ranges::sort(all, {}, &EnvironmentInfo::last_used_sec);
    uint64_t bytes = 0;
    for (const EnvironmentInfo& one : all) bytes += one.bytes;
    for (const EnvironmentInfo& one : all) {
      if (bytes <= most) return;
      if (used.contains(one.digest) || one.last_used_sec + kJustUsedSec > std::time(nullptr))
        continue;
      if (!store_.Remove(one.digest)) continue;
      bytes -= std::min(bytes, one.bytes);
      LogInfo("an environment was removed: the store held more than it may",
              {{"environment", one.digest.substr(0, 12)}});
    }
  });
}

}  // namespace hutch
