// SPDX-License-Identifier: Apache-2.0

// Which client holds which leased cell: the leases by cell, the slot that each has in its client's
// lease table, and the leases whose cell ended before the client reported its call.
//
// Belongs to one thread, but for the marks in the lease tables, which the clients change at any
// time: they are read and written atomically. Nothing here knows pools, sockets or time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/audit.h"
#include "agent/quotas.h"
#include "wire/clock.h"
#include "wire/message.h"

namespace hutch {

// What a leased cell runs.
enum class Serves {
  kOneCall,
  kCalls,    // several, one after another, each of which its client reports
  kSession,  // it is kept for one
};

// The limits that the warden has for the call of a cell.
struct Arming {
  bool armed = false;
  Clock::time_point since{};  // when it was first given limits for that call
  bool announced = false;     // its client gave them
};

// One cell that a client holds.
struct LeaseRecord {
  std::string pool{};  // its key
  uint64_t peer = 0;
  uint32_t table_slot = 0;
  std::string worker{};
  unsigned ticks_unused = 0;  // not a time: the whole host may have been suspended
  bool ahead = false;      // may be reclaimed for a waiting call while its client does not use it
  bool releasing = false;  // its cell is being ended
  bool want_report = false;
  bool held_ahead = false;          // it was leased before the call that used it
  std::optional<CallStats> note{};  // its client's report of the call; the first one counts
  Serves serves = Serves::kOneCall;
  Arming arming{};
  bool was_used = false;  // at the last tick
  uint32_t uses = 0;      // the client's count then
  Reservation reservation{};
  AuditCaller caller{};
  std::vector<NetworkRecord> network{};  // what the egress process decided for its cell
};

// A lease whose cell ended by itself. Its client's report of the call is still to come.
struct EndedLease {
  std::string pool;
  bool held_ahead;
  Ending ending;     // as the warden reported it
  AuditEntry entry;  // complete but for the client's note
};

class LeaseBook {
 public:
  using Leases = std::map<uint64_t, LeaseRecord>;  // by cell; oldest first

  // `table` has kLeaseTableSlots marks, and as many counters after them, and stays mapped until
  // RemovePeer().
  void AddPeer(uint64_t peer, uint32_t* table);
  // The cells that it held. Their leases stay until they are removed; their marks are out of reach.
  std::set<uint64_t> RemovePeer(uint64_t peer);
  bool HasFreeSlot(uint64_t peer) const;  // false also for an unknown peer
  std::set<uint64_t> CellsOf(uint64_t peer) const;

  // Gives the lease of `cell` a slot in the table of `record.peer`, marked idle. REQUIRES:
  // HasFreeSlot(record.peer).
  LeaseRecord& Add(uint64_t cell, LeaseRecord record);
  LeaseRecord* Find(uint64_t cell);  // nullptr: not leased
  LeaseRecord* FindOf(uint64_t peer, uint64_t cell);
  // True when its client had no free slot until now, and may have been waiting for one.
  bool Remove(uint64_t cell);

  // Whether its client has marked the lease so. False once the client is gone.
  bool IsMarked(uint64_t cell, const LeaseRecord& lease, LeaseMark mark) const;
  // How often its client has used it, where it serves several calls; 0 once the client is gone.
  uint32_t UsesOf(const LeaseRecord& lease) const;
  // Takes an idle lease from its client and marks it as being ended. False: the client uses it, or
  // is gone.
  bool Reclaim(uint64_t cell, LeaseRecord& lease);
  // Called about once a second. A lease that was given for a call and has been idle for
  // kTicksToBegin calls may then be reclaimed like one that was leased ahead: its client is
  // stopped, or hangs.
  void OfferUnused();
  static constexpr unsigned kTicksToBegin = 3;

  // Keeps the newest kLeaseTableSlots of each client; nothing for a client that is gone.
  void KeepEnded(uint64_t peer, uint64_t cell, EndedLease ended);
  std::optional<EndedLease> TakeEnded(uint64_t peer, uint64_t cell);

  size_t size() const { return leases_.size(); }
  Leases::iterator begin() { return leases_.begin(); }
  Leases::iterator end() { return leases_.end(); }

 private:
  struct PeerLeases {
    uint32_t* table;
    std::set<uint64_t> cells;
    std::map<uint64_t, EndedLease> ended;
    std::vector<uint32_t> free_slots;
  };

  Leases leases_;
  std::unordered_map<uint64_t, PeerLeases> peers_;
};

}  // namespace hutch
