// SPDX-License-Identifier: Apache-2.0

// What callers may have, as agent.toml says: whether a policy is refused, whether one more cell may
// be leased, and which waiting callers come first when a quota has room again.
//
// Pure decisions; belongs to one thread. Without Configure() nothing is bounded.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "agent/ceiling.h"
#include "agent/config.h"
#include "agent/quotas.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/message.h"

namespace hutch {

class Admission {
 public:
  // The quotas that keep callers waiting.
  struct Shortage {
    bool host = false;
    std::set<std::string> tenants{};

    // Whether a cell with this reservation, once released, makes room.
    bool IsEasedBy(const Reservation& one) const { return host || tenants.contains(one.tenant); }
  };

  void Configure(const AgentConfig& config);
  const AgentConfig& config() const { return config_; }

  // Why a policy is refused before anything is built; nullopt: it is allowed. `enforcement`: of
  // limits on this host, as in PoolReady.
  std::optional<Error> WhyRefuse(const Prepare& prepare, std::string_view enforcement) const;

  // What each cell of such a pool takes of the quotas.
  Reservation ReservationOf(const PoolSpec& spec) const;
  bool MayTake(const Reservation& one) const { return quotas_.MayTake(one); }
  void Take(const Reservation& one) { quotas_.Take(one); }
  // True when a quota was full until now: callers may have been waiting for it.
  bool Release(const Reservation& one);

  // kBusy with the figures where one more session is more than a quota allows.
  std::optional<Error> WhyNoSession(const std::string& tenant) const;
  // The cell of that reservation, which was taken, is a session's from now on. True: as Release().
  bool Keep(Reservation* one);
  Quotas::Sessions sessions() const { return quotas_.sessions(""); }

  // `waiting`: the reservation of each pool in which callers wait.
  Shortage ShortageOf(std::span<const Reservation> waiting) const;
  // Waiting callers are served in ascending order of this: the tenants that hold the fewest cells
  // come first, callers without a tenant before them.
  uint64_t TurnOf(const Reservation& one) const;

  // The limits that a call runs with, in milliseconds: what its client says, but no more than the
  // ceiling. 0: no limit. `run`: for how long the call has run, which is taken off the ceiling.
  uint64_t TimeoutMs(uint64_t asked_ms, Clock::duration run = {}) const;
  uint64_t CpuMs(uint64_t asked_ms) const;
  // The same for what a cell loads before its call: the ceiling's timeout bounds its CPU time as
  // well.
  uint64_t LoadCpuMs(uint64_t asked_ms) const;
  // Whether the ceiling has a limit of time, which then holds for clients that name none.
  bool LimitsTime() const { return config_.ceiling.timeout_sec || config_.ceiling.cpu_sec; }

 private:
  AgentConfig config_;
  Quotas quotas_;
};

}  // namespace hutch
