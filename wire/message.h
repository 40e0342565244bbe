// SPDX-License-Identifier: Apache-2.0

// Requests and replies between client and agent, both ours and of one user: cereal inside, one
// datagram each.
//
// A client numbers its requests (1, 2, ...); a reply names the request it answers. A message over
// kInlineMessage bytes travels in a sealed memfd, the first descriptor of its datagram. Bytes that
// a sandbox made are never in a message, but for the text that an error quotes.
//
// The order of a connection, and of one call on it. Any request may be answered by Failed.
//
//   client                             agent
//   Hello                          ->            the wire version and who calls
//                                  <-  Welcome   with the lease table
//   Prepare                        ->            the pool of these requirements and this policy
//                                  <-  Progress  while packages are installed; any number
//                                  <-  PoolReady  its key
//   Acquire                        ->            one cell; the call waits in the pool's queue
//                                  <-  Leased    with the cell's socket, stdout and stderr
//   (the call: cell_frame.h, straight between client and cell)
//   Started                        ->            only if the call lasts: arms its limits
//   LeaseEnded                     ->            the lease is over, and how; asks for a next one
//                                  <-  Report    if wanted: what the warden measured
//                                  <-  Leased    ahead of the next call
//
// A lease that is kept for a session serves calls until it is over:
//
//   Keep                           ->            the cell outlives its user process
//                                  <-  Answer    it does
//   (a call, as above; Started as above)
//   Executed                       ->            the call is over
//   Interrupt                      ->            a call that runs raises KeyboardInterrupt
//   Restart                        ->            ends the user process
//                                  <-  UserEnded whenever it has ended, with the warden's report;
//                                      one descriptor: the socket of the calls of the next one
//                                  <-  UserReady the cell has another one
//                                  <-  BackgroundCpu  what it did between two calls, if one is
//                                  armed
//   LeaseEnded                     ->            the session is over
//
// Warm, Forget and Ask may come at any time after Welcome.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "wire/cell_frame.h"
#include "wire/error.h"
#include "wire/fd.h"
#include "wire/values.h"

namespace hutch {

inline constexpr size_t kInlineMessage = 32 * 1024;
inline constexpr size_t kMaxMessage = 256u << 20;
inline constexpr size_t kMaxSessionId = 64;
inline constexpr uint32_t kLeaseTableSlots = 1024;
inline constexpr size_t kLeaseTableBytes = 2 * kLeaseTableSlots * sizeof(uint32_t);

// What a slot of the lease table holds. After the slots there is a counter for each: how often the
// client used a lease that it keeps for a session.
// The table is one memfd for each connection, mapped by both
// sides: it decides, without a message, whether a lease that was handed out ahead is used by the
// client or taken back by the agent.
//
// A mark carries the low bits of its lease's id: a slot is given out again once its cell is gone,
// and a client that still holds the old lease must not mark the new one by mistake.
enum LeaseMark : uint32_t { kLeaseIdle = 0, kLeaseUsed = 1, kLeaseReclaimed = 2 };
constexpr uint32_t MarkOf(uint64_t lease, LeaseMark mark) {
  return static_cast<uint32_t>(lease << 2) | mark;
}

// ---- client -> agent
struct Hello {
  uint32_t wire_version = 0;
  int32_t pid = 0;
  uint32_t uid = 0;  // the caller's; root's clients connect as the service user
};
struct Prepare {
  uint64_t request = 0;
  uint64_t timeout_ms = 0;
  PoolSpec spec;
  CallLimits limits{};       // of each of its calls; checked against the ceiling
  bool shared = false;       // the client sends many calls to one cell
  bool hard_limits = false;  // refuse where the host cannot enforce each limit by a cgroup
  uint64_t policy = 0;       // a number for all that its calls may use and reach, for the audit log
  bool no_pool = false;      // the environment alone is wanted: the answer has no key
};
struct Warm {
  uint64_t request = 0;
  std::string key;
  int64_t cells = -1;
};
inline constexpr uint64_t kAheadPatienceMs = 60'000;
struct Acquire {  // answered by Leased with three descriptors, or Failed
  uint64_t request = 0;
  std::string key;
  uint64_t queue_ms = 0;
  bool ahead = false;    // for a later call: served from cells that nobody waits for
  bool session = false;  // it will be kept: refused at once where there may be no more sessions
};
struct Forget {  // the client no longer waits for `request`
  uint64_t request = 0;
};
// The call on this lease has been running for a while: the agent arms its limits. With no limit at
// all: the lease, which the client keeps for more calls, is unused now, and the agent may take it
// back while its mark says so.
struct Started {
  uint64_t lease = 0;
  uint64_t timeout_ms = 0;
  uint64_t cpu_ms = 0;
  uint64_t result_kb = 0;  // memory that the client gave the cell for its result; 0: none yet
};
// What became of a call, as the agent counts it.
enum class Ending : uint8_t {
  kNoCall,  // the lease served none
  kReturned,
  kRaised,
  kDied,
  kCancelled,
  kFault,
  kLimitTime,
  kLimitCpuTime,
  kLimitMemory,
  kLimitPids,
  kLimitDisk,
  kLimitResult,
  kUntold,  // the cell ended without a reply: the warden's report decides
};
// How a call ended that a CellLimit ended; kNoCall for kNoLimit.
constexpr Ending EndingOfLimit(uint32_t cell_limit) {
  switch (cell_limit) {
    case kLimitTime:
      return Ending::kLimitTime;
    case kLimitCpuTime:
      return Ending::kLimitCpuTime;
    case kLimitMemory:
      return Ending::kLimitMemory;
    case kLimitPids:
      return Ending::kLimitPids;
    case kLimitDisk:
      return Ending::kLimitDisk;
    default:
      return Ending::kNoCall;
  }
}
// A call as its client saw it, since the agent takes no part in a call. Times are in microseconds,
// from when the pool was known; `receive_us` ends when this is sent, before the result is decoded.
struct CallStats {
  Ending ending = Ending::kNoCall;
  uint64_t queue_us = 0;
  uint64_t send_us = 0;
  uint64_t run_us = 0;
  uint64_t receive_us = 0;
  // For the audit log and traces; 0: not known.
  uint64_t call_id = 0;
  uint64_t policy = 0;                 // as in Prepare
  std::array<uint64_t, 2> function{};  // the first 16 bytes of its code's SHA-256, big-endian
  uint32_t calls = 1;                  // how many the cell served: a shared one serves several
};
struct LeaseEnded {  // the lease is over; its cell dies
  uint64_t lease = 0;
  bool want_report = false;
  CallStats note;
  uint64_t next = 0;   // not 0: this is also an Acquire with that number, ahead, same pool
  std::string load{};  // the kLoad frame that the next cell gets before it is leased; "": none
  uint64_t load_cpu_ms = 0;  // how much CPU time loading may take; 0: no limit
};
// The lease is a session's. The agent ends it when it was not used for `idle_ms` (0: never): a
// client counts each use in the lease table. Refused where there may be no more sessions.
struct Keep {
  uint64_t request = 0;
  uint64_t lease = 0;
  uint64_t idle_ms = 0;
  std::string id{};  // the session's, for lists and the audit log; at most kMaxSessionId bytes
};
inline constexpr char kEndsWithUser[] =
    "once";        // answer to Keep: the cell ends with its user process
struct Executed {  // a call of a kept lease is over; its limits hold no more
  uint64_t lease = 0;
  CallStats note;
  bool beside = false;  // a command, beside which a call may run: nothing is known of its limits
};
struct Interrupt {  // the call with these low bits of its id, if it still runs; 0: see kInterrupt
  uint64_t lease = 0;
  uint64_t user = 0;  // as in Restart
  uint32_t call = 0;
};
struct Restart {
  uint64_t lease = 0;
  uint64_t user = 0;  // how many user processes of the cell have ended: this one is ended, no later
};
// `what`: "status", "sessions", "environments", "remove <digest>"; "stop <drain ms>", answered once
// it has drained; "await stop", answered when it begins to stop, with the milliseconds that it
// waits for what runs. An agent may not know a question that is newer.
struct Ask {
  uint64_t request = 0;
  std::string what;
};

// ---- agent -> client
struct Welcome {  // with one descriptor: the lease table
  uint32_t wire_version = 0;
  std::string agent;  // version and generation, for logs
};
struct Progress {
  uint64_t request = 0;
  std::string stage;  // base resolve download install import compile worker
  std::string text;
  double done = 0;
  double total = 0;
};
struct PoolReady {
  uint64_t request = 0;
  std::string key;
  std::string digest;
  std::string lock;
  std::vector<std::string> notes;
  bool built = false;
  double build_sec = 0;
  double worker_sec = 0;    // until the first worker was ready; 0: one was ready already
  std::string enforcement;  // "cgroup" or "watchdog"
  uint64_t max_cells = 0;   // that calls may have at once
};
struct Leased {
  uint64_t request = 0;
  uint64_t lease = 0;
  uint32_t table_slot = 0;
  std::string worker;
  uint64_t waited_us = 0;
  uint64_t worker_us = 0;  // part of the wait spent starting a worker
  double pressure = 0;     // of the host, 0 to 1; at 1 fewer calls at once would be faster
};
struct Report {
  uint64_t lease = 0;
  CellReport report;
  std::vector<NetworkRecord> network{};  // only in a pool with a network
};
struct UserEnded {
  uint64_t lease = 0;
  CellReport report;
};
struct UserReady {
  uint64_t lease = 0;
};
struct BackgroundCpu {
  uint64_t lease = 0;
  // CPU time of its processes since the last such message, as the warden measured it: of calls and
  // of what ran between them.
  uint64_t cpu_us = 0;
};
struct Answer {
  uint64_t request = 0;
  std::string text;
};
struct Failed {
  uint64_t request = 0;
  int32_t code = 0;
  std::string message;
  std::string hint;
  bool may_have_run = false;
  Figures figures{};
};

using Message = std::variant<Hello, Prepare, Warm, Acquire, Forget, Started, LeaseEnded, Ask, Keep,
                             Executed, Interrupt, Restart, Welcome, Progress, PoolReady, Leased,
                             Report, UserEnded, UserReady, BackgroundCpu, Answer, Failed>;

std::string EncodeMessage(const Message& message);
Message DecodeMessage(std::string_view bytes);  // throws kProtocol

// Sends without blocking. False: the socket is full. Throws kUnavailable when the peer is gone.
bool SendMessage(int fd, const Message& message, std::span<const int> descriptors = {});

struct ReceivedMessage {
  Message message;
  std::vector<Fd> descriptors;
};
// std::nullopt: there is none now. Throws kUnavailable at the end of the stream, kProtocol for
// bytes that are not a message.
std::optional<ReceivedMessage> ReceiveMessage(int fd);

}  // namespace hutch
