// SPDX-License-Identifier: Apache-2.0

#include "client/reports.h"

#include <utility>

#include "client/trace.h"

namespace hutch {

void Reports::Forget(uint64_t lease) {
  const Connection::Lock lock(connection_);
  reports_.erase(lease);
}

std::optional<Report> Reports::Await(uint64_t lease, Clock::duration patience) {
  const Connection::Lock lock(connection_);
  connection_.WaitFor(Clock::now() + patience, {},
                      [&]() REQUIRES(connection_lock) { return reports_[lease].has_value(); });
  return reports_[lease];
}

void Reports::Add(const Report& report) {
  if (IsTraced()) {
    Trace("report", {{"lease", report.lease},
                     {"limit", NameOfLimit(report.report.limit)},
                     {"wall_us", report.report.wall_us},
                     {"cpu_us", report.report.cpu_us},
                     {"peak_kb", report.report.peak_kb}});
  }
  const auto found = reports_.find(report.lease);
  if (found != reports_.end() && !found->second) found->second = report;
  SettleLoans(report.lease, report.report);
}

bool Reports::HoldLoans(uint64_t lease, Loans loans) {
  if (loans.empty()) return false;
  const Connection::Lock lock(connection_);
  loans_[lease] = std::move(loans);
  const auto known = reports_.find(lease);
  if (known == reports_.end() || !known->second) return true;
  SettleLoans(lease, known->second->report);  // it ended by itself
  return false;
}

void Reports::SettleLoans(uint64_t lease, const CellReport& report) {
  const auto found = loans_.find(lease);
  if (found == loans_.end()) return;
  // Only the warden sees that a cell is gone. A report without a memory limit is the agent's, made
  // because the warden was lost.
  if (report.memory_limit_kb != 0) {
    for (const std::shared_ptr<Segment>& segment : found->second) segment->Ended();
  }
  loans_.erase(found);
}

bool Reports::IsLost(uint64_t lease, bool hung_up) {
  const Connection::Lock lock(connection_);
  if (!connection_.broken()) connection_.ReadIfFree([] { return false; });
  return IsKnownLost(lease, hung_up);
}

bool Reports::IsKnownLost(uint64_t lease, bool hung_up) const {
  if (hung_up && connection_.broken()) return true;
  const auto found = reports_.find(lease);
  return found != reports_.end() && found->second &&
         (hung_up || found->second->report.end == kLost);
}

}  // namespace hutch
