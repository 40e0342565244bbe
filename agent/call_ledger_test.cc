// SPDX-License-Identifier: Apache-2.0

#include "agent/call_ledger.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

TEST(CallLedger, CountsACallInItsPoolAndInAll) {
  CallLedger ledger;
  PoolMetrics pool;
  ledger.Count(&pool, true, {.ending = Ending::kReturned}, Clock::now());
  ledger.Count(nullptr, false, {.ending = Ending::kReturned}, Clock::now());
  ledger.CountAbandoned(pool, false, Clock::now());
  EXPECT_EQ(ledger.calls(), 3u) << "also that of a pool that is gone";
  EXPECT_EQ(pool.calls(), 2u);
  EXPECT_EQ(pool.hits, 1u);
  EXPECT_EQ(pool.endings[static_cast<size_t>(Ending::kCancelled)], 1u);
}

TEST(CallLedger, ALeaseThatServedNoCallIsNotCounted) {
  CallLedger ledger;
  PoolMetrics pool;
  ledger.Count(&pool, true, {}, Clock::now());
  EXPECT_EQ(ledger.calls(), 0u);
  EXPECT_EQ(pool.calls(), 0u);
}

TEST(CallLedger, WithoutALogNothingIsWritten) {
  CallLedger ledger;
  ledger.Configure({});
  ledger.NotePolicy({});
  ledger.Audit({.pool = std::make_shared<const AuditPool>()}, {.ending = Ending::kReturned});
}

}  // namespace
}  // namespace hutch
