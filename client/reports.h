// SPDX-License-Identifier: Apache-2.0

// What the agent and the warden report of leases in use, and the memory that cells were lent, which
// is kept until a report says that the cell is dead.
//
// Thread-safe: under the lock of its Connection, which the functions take unless they require it.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>

#include "client/connection.h"
#include "client/lease.h"
#include "wire/message.h"

namespace hutch {

class Reports {
 public:
  explicit Reports(Connection& connection) : connection_(connection) {}

  // The lease is in use: a report of it is kept until Forget().
  void Expect(uint64_t lease) REQUIRES(connection_lock) { reports_[lease]; }
  void Forget(uint64_t lease) EXCLUDES(connection_lock);
  // Waits for it, for at most `patience`.
  std::optional<Report> Await(uint64_t lease, Clock::duration patience) EXCLUDES(connection_lock);

  // Keeps what the cell was lent until the warden says that it is dead. Returns whether it has not
  // said so yet.
  bool HoldLoans(uint64_t lease, Loans loans) EXCLUDES(connection_lock);
  bool has_loans() const REQUIRES(connection_lock) { return !loans_.empty(); }

  // Whether the cell has to be given up: the agent said that nobody watches it any more, or,
  // `hung_up`, that it is dead; or it hung up and nobody is left to say so.
  bool IsLost(uint64_t lease, bool hung_up) EXCLUDES(connection_lock);
  bool IsKnownLost(uint64_t lease, bool hung_up) const REQUIRES(connection_lock);

  void Add(const Report& report) REQUIRES(connection_lock);  // it came
  // No report will come any more.
  void OnConnectionLost() REQUIRES(connection_lock) { loans_.clear(); }

 private:
  void SettleLoans(uint64_t lease, const CellReport& report) REQUIRES(connection_lock);

  Connection& connection_;
  // Of leases in use; nullopt: none came yet.
  std::map<uint64_t, std::optional<Report>> reports_ GUARDED_BY(connection_lock);
  // Of leases that were given back, until their report comes.
  std::unordered_map<uint64_t, Loans> loans_ GUARDED_BY(connection_lock);
};

}  // namespace hutch
