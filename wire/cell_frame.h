// SPDX-License-Identifier: Apache-2.0

// The fixed little-endian frames spoken with a worker: client <-> cell, and agent <-> warden <->
// zygote and slots.
//
// Everything is one SOCK_SEQPACKET datagram: a 32-byte header, then at most kMaxPayload bytes. No
// length inside a datagram is believed beyond what recvmsg returned; a datagram that does not parse
// ends the connection and the worker. Descriptors travel only *towards* the worker (SCM_RIGHTS);
// one that comes the other way is closed unread. This header depends on nothing: the warden
// (static, no library of ours) and the cell include it too.
//
// clang-format off
//   offset size field
//   0      2    magic   0x4348 ("HC")
//   2      1    version kFrameVersion
//   3      1    kind    one of FrameKind
//   4      4    a       meaning depends on kind
//   8      8    id      call id (client <-> cell) or cell id (agent <-> warden), chosen by the host
//   16     8    b       meaning depends on kind
//   24     8    c       meaning depends on kind
//   32     ...  payload
//
// Two datagrams in hex, which channel_test.cc holds true:
//
//   kArm of cell 7: 30 s of wall time (0x7530 ms), no CPU limit, no memory given
//     48 43 03 22 00 00 00 00  07 00 00 00 00 00 00 00
//     30 75 00 00 00 00 00 00  00 00 00 00 00 00 00 00
//
//   kMisdirected of call 258: a header, and nothing else
//     48 43 03 0c 00 00 00 00  02 01 00 00 00 00 00 00
//     00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
//
// ---- client <-> cell
// kCall        client -> cell
//     a = number of sections (4). c = 0, or 1 + the number of the CPU on which the caller waits:
//     the cell then runs there, because waking another CPU would take longer than the call. Set
//     where the cell's last call took less than kQuickUs. payload = the identity of meta and
//     function (kIdentitySize bytes, zeros: none), one u32 length for each section, then the
//     sections:
//       [0] meta       a pickled dict, or kPlain and its like where nothing else is to be said
//       [1] function   its pickle; or text; or, after kMarshalled, (code, globals, defaults) by
//                      marshal
//       [2] arguments  the pickle of (args, kwargs); or args by marshal; for a chunk a list of
//                      those; for a program that is given anything, the pickle of
//                      ((), {args, stdin, files})
//       [3] buffers    three u64 for each out-of-band buffer: descriptor (with kFlagBytes: make a
//                      Python bytes of it), offset (a multiple of kArgumentAlignment), size
//     A section of length kSectionInDescriptor lies in the next descriptor of the datagram, a
//     sealed memfd whose size is the section's length. The descriptors after those are the ones
//     that [3] counts from 0: memfds that nobody in the cell can write to.
// kLoad        client -> cell, by way of the agent; once, before the kCall
//     As kCall, with no arguments. c is also set where the function's last call, in another cell,
//     took less than kQuickUs. The cell loads meta and function (it compiles a program) and sends
//     nothing. From then on it serves a kCall of that identity and no other.
// kMisdirected cell -> client
//     The call has another identity than what was loaded: nothing of it ran, and the cell ends. No
//     payload. The client never sends such a call, so it does not believe the frame.
// kStarted     cell -> client
//     Sent only when loading the call took over 20 ms: the wall clock of the call starts again
//     (once), but loading gets one second of its own at most. No payload.
// kResult      cell -> client   the value
//     a = flags; b = body size; c = total size. payload = CallUsage and the whole result if it fits
//     (c <= kMaxPayload - sizeof(CallUsage)). With kFlagInMemfd the total lies in the memfd that
//     the client sent after kNeed, with kFlagInParts in the payloads of the kPart frames before;
//     the payload is then CallUsage only.
// kRaised      cell -> client   the function raised
//     As kResult; the body is the error map (decode.h).
// kUnencodable cell -> client   the result cannot be returned as data
//     As kResult; the body is a map {path, type, hint, message}.
// kPart        cell -> client   a piece of a result of at most kMostInParts
//     c = total size, the same in each; payload = the next bytes, at least one. Their pages cost
//     less than those of fresh shared memory.
// kNeed        cell -> client   b = bytes wanted for a large result
//     Answered by kMemfd, or, above result_mb, by kRefused.
// kMemfd       client -> cell   one descriptor: a memfd of exactly b bytes, sealed GROW
//     It is emptied when the call is over, if the cell is kept.
// kRefused     client -> cell   too large; the cell then sends kTooLarge (b = size) as its result
// kTooLarge    cell -> client   b = size of the result that was not sent
//     payload = CallUsage, and, where the cell knows it, the body of a map {path} of the value that
//     is too large.
//
// kSay         cell -> client   something for the caller, while its call runs: what it shows or yields
//     Only of a call that may. b = its number among those and kAsk of the call, from 1; a = size of
//     the body (decode.h), c = size of all, at most kMostInParts. payload = all of it, or nothing
//     where the kPart frames before had it.
// kAsk         cell -> client   as kSay: a call of a tool, input(); the kAnswer with that number answers
//     it. Several may be open, where the client takes the call in turns, and are answered in any order.
// kAnswer      client -> cell   b = that of the kAsk
//     payload = a pickle, or one descriptor: a memfd with it, sealed but for shrinking, which is
//     emptied when the next one is sent, and when the call is over.
// kCommand     client -> cell, of a kept one, at any time: a command of the session. id = 0; no payload; four
//     descriptors: its channel, which is a socket as this one, the write ends of the pipes for its stdout
//     and stderr, and a sealed memfd with the pickle of the order, which the client empties when it is over.
//     When the client shuts or closes the channel, the command is killed with all that it has started. On it:
//   kCommandBegun cell -> client   it will be started
//   kCommandEnded cell -> client   a = CommandEnd, b = its exit code; payload = CallUsage (of the program alone)
//   kRaised       cell -> client   it could not be started
//     a = the CellLimit hit, else 0; b = c = size of the payload, which is the error map (decode.h)
//   kCommandDone  cell -> client   what it leaves (directory, variables) is the session's
// kUserEnded   cell -> client
//     Only of a kept cell, and only a hint: its user process has ended, and the agent has been informed
//     how. No payload; id = 0.
//
// ---- agent -> warden
// kMakeSlot    a = slot number (0, 1, ...): the zygote makes one more slot
// kMakeCell    a = slot number, id = cell id; three descriptors: the cell's socket, stdout, stderr
//     (write ends); in a pool with a network a fourth: the forwarder's end of the egress channel.
//     c = kSkipWarmUp: few cells are parked, so this one is not warmed up.
// kEndSlot     a = slot number, of a slot with no cell: it goes; kSlotGone follows
// kArm         id = cell id; the call has started
//     b = wall limit in ms (0: none), c = CPU limit in ms (0: none). The warden kills the cell at
//     the wall limit + 500 ms, at the CPU limit, and above its memory. a = KiB of memory that the
//     client gave it for its result (kNeed), 0: none; for a call that is armed already this changes
//     no other clock. a = kLoading: the cell loads what a call will need, and then waits for that
//     call; while it waits it is measured less often.
//     a = kBetweenCalls: a kept cell serves none now; it is watched without limits of time. What it
//     takes until the next kArm counts for no call.
// kKill        id = cell id: kill its PID namespace now; kCellExit follows
// kKeep        id = cell id: from kKept on it outlives its user process: when that ends, for a limit
//     too, its other processes are killed and kUserExit follows; then kNextUser is awaited, and
//     kUserReady of a new one follows
// kNextUser    id = cell id, of a kept cell whose user process has ended; one descriptor: the socket of
//     the calls of the next one. What code did to the last one's does not concern the next one's.
// kInterrupt   id = cell id, of a kept cell: SIGINT with the value a, the low 32 bits of a call's id, to
//     its user process, if b of them have ended before. a = 0: SIGURG instead, by which a process that runs
//     a call looks for kCommand
// kRestart     id = cell id, of a kept cell: kill its user process, if b of them have ended before
// kRetire      make no more; kill every cell and exit 0
// kConfigure   payload = lines KEY=value, each with a zero byte at its end: what the worker is for
// kPing        answered by kPong at once, whatever the worker does
//
// ---- the egress channel of one cell: forwarder <-> egress process. The worker's side may be
// hostile.
// kOpenStream  forwarder -> egress
//     a = number of the listener (egress_rules.h), id = number of the stream, counted up from 1
// kStream      egress -> forwarder
//     id = number of the stream; one descriptor: the stream, a SOCK_STREAM Unix socket
// kNoStream    egress -> forwarder
//     id = number of the stream: it is refused, so its connection is reset
//
// ---- warden -> agent
// kHello       sent before anything of a pool is there
//     a = kFrameVersion; payload = the token given to the warden in HUTCH_TOKEN; b = 0, or the
//     errno with which this host refused to make cells; c = NamespaceStep: what was tried.
// kZygoteReady payload = JSON text of notes (untrusted: preloads that failed), at most 16 KiB
// kSlotReady   a = slot
// kCellReady   a = slot, id = cell id, b = microseconds it took to make
// kCellExit    a = slot, id = cell id, payload = CellReport
// kKept        a = slot, id = cell id: as kKeep asked; b = 1: its user process cannot be replaced, and
//     ends the cell
// kUserExit    a = slot, id = cell id, payload = CellReport: the user process of a kept cell has ended
// kUserReady   a = slot, id = cell id: it has another one, b = microseconds it took to make
// kBackground  a = slot, id = cell id, of a kept cell, at the kArm of a call: its processes took b microseconds of
//     CPU time since the last kBackground, or since kKeep, those of calls among them
// kFailed      a slot or a cell was not made, and the slot is gone
//     a = slot, id = cell id or 0, b = errno or 0, payload = text of what failed
// kSlotGone    a = slot: it was ended as asked, or was gone already; its number is free
// kPong        answers a kPing
// kZygoteDied  a = wait status; payload = text. The worker is of no more use.
// kZygoteStderr for the agent's log
//     a = wait status of a zygote that is gone, 0 while it lives; payload = the last bytes that it
//     wrote on stderr since it was started or became ready (untrusted), at most kMaxZygoteStderr.
// clang-format on
#pragma once

#include <cstddef>
#include <cstdint>

namespace hutch {

inline constexpr uint16_t kFrameMagic = 0x4348;
// The layout of the header. kWireVersion (paths.h) covers what frames mean.
inline constexpr uint8_t kFrameVersion = 3;
inline constexpr uint64_t kSkipWarmUp = 1;
inline constexpr uint32_t kMostSlots = 128;  // of a worker
inline constexpr uint32_t kLoading = 0xffffffffu;
inline constexpr uint32_t kBetweenCalls = 0xfffffffeu;
inline constexpr uint64_t kQuickUs = 200;
inline constexpr size_t kMaxPayload = 64 * 1024;
inline constexpr size_t kMaxConfig = 48 * 1024;
inline constexpr size_t kMaxZygoteStderr = 4096;
inline constexpr uint32_t kSectionInDescriptor = 0xffffffffu;
inline constexpr size_t kIdentitySize = 32;           // a SHA-256
inline constexpr uint64_t kArgumentAlignment = 4096;  // of out-of-band argument buffers
// Meta of one byte, in place of a pickled dict.
inline constexpr char kPlain = 'P';       // a function is called once
inline constexpr char kPlainKept = 'K';   // the cell also serves the calls that come after it
inline constexpr char kPlainChunk = 'C';  // the function is called for each of a list of arguments
inline constexpr char kPlainProgram = 'R';  // a program is run
inline constexpr char kPickled = '\x80';    // every pickle begins with it
inline constexpr char kMarshalled = '\x81';
inline constexpr uint32_t kFlagInMemfd = 1;
inline constexpr uint32_t kFlagInParts = 2;
inline constexpr uint64_t kMostInParts = 4 << 20;
inline constexpr uint64_t kFlagBytes = uint64_t{1} << 32;

enum class FrameKind : uint8_t {
  kCall = 1,
  kStarted = 2,
  kResult = 3,
  kRaised = 4,
  kUnencodable = 5,
  kNeed = 6,
  kMemfd = 7,
  kRefused = 8,
  kTooLarge = 9,
  kLoad = 10,
  kPart = 11,
  kMisdirected = 12,
  kUserEnded = 13,
  kSay = 14,
  kAsk = 15,
  kAnswer = 16,
  kCommand = 17,
  kCommandBegun = 18,
  kCommandEnded = 19,
  kCommandDone = 20,

  kMakeSlot = 32,
  kMakeCell = 33,
  kArm = 34,
  kKill = 35,
  kRetire = 36,
  kConfigure = 37,
  kEndSlot = 38,
  kPing = 39,
  kKeep = 40,
  kRestart = 41,
  kInterrupt = 42,
  kNextUser = 43,

  kOpenStream = 48,
  kStream = 49,
  kNoStream = 50,

  kHello = 64,
  kZygoteReady = 65,
  kSlotReady = 66,
  kCellReady = 67,
  kCellExit = 68,
  kFailed = 69,
  kZygoteDied = 70,
  kSlotGone = 71,
  kPong = 72,
  kZygoteStderr = 73,
  kKept = 74,
  kUserExit = 75,
  kUserReady = 76,
  kBackground = 77,
};

struct FrameHeader {
  uint16_t magic = kFrameMagic;
  uint8_t version = kFrameVersion;
  FrameKind kind{};
  uint32_t a = 0;
  uint64_t id = 0;
  uint64_t b = 0;
  uint64_t c = 0;
};
static_assert(sizeof(FrameHeader) == 32);

// What the cell reports of itself with its reply; a claim, not a measurement.
struct CallUsage {
  uint64_t load_us = 0;    // loading function and arguments
  uint64_t wall_us = 0;    // from the start of the function to its end
  uint64_t cpu_us = 0;     // user + system time of the cell's process in that time
  uint64_t peak_kb = 0;    // VmHWM-like peak of the process
  uint64_t encode_us = 0;  // likewise, for the result; its wall time where that was short
  // Its main thread could have run, and waited for a processor; 0 where the call was short.
  uint64_t cpu_wait_us = 0;
  uint32_t minor_faults = 0;
  // The CellLimit that raised the uncaught exception (MemoryError, ENOSPC, EAGAIN), else 0.
  uint32_t limit = 0;
};
static_assert(sizeof(CallUsage) == 56);

enum CommandEnd : uint32_t {
  kCommandExited = 0,
  kCommandCancelled = 1,  // as the client asked
  kCommandCpuTime = 2,    // it took the CPU time that it may take
  kCommandNoThread = 3,   // nothing of it ran: the user process can have no more threads
  // It exited with another code than 0, while the scratch had no room, or no more files:
  kCommandNoSpace = 4,
  kCommandNoFiles = 5,
};

enum CellLimit : uint32_t {
  kNoLimit = 0,
  kLimitTime = 1,
  kLimitCpuTime = 2,
  kLimitMemory = 3,
  kLimitPids = 4,
  kLimitDisk = 5,
};
inline constexpr const char* kCellLimitNames[] = {"", "time", "cpu_time", "memory", "pids", "disk"};
// Which of them an exception can be, as the cell says itself. Time is measured outside.
constexpr bool IsReportedByCell(uint32_t cell_limit) {
  return cell_limit == kLimitMemory || cell_limit == kLimitPids || cell_limit == kLimitDisk;
}

constexpr const char* NameOfLimit(uint32_t cell_limit) {
  return cell_limit < sizeof kCellLimitNames / sizeof *kCellLimitNames ? kCellLimitNames[cell_limit]
                                                                       : "";
}

// What a cell needs from the kernel, in the order in which the warden tries it.
enum NamespaceStep : uint64_t {
  kNewNamespaces = 1,     // user, mount, network and UTS namespaces for a slot
  kMappedUser = 2,        // its uid there
  kNewMounts = 3,         // a tmpfs of its own
  kNestedNamespaces = 4,  // user, PID, mount, IPC and UTS namespaces for a cell in it
  kNewProc = 5,           // a /proc of its own
};

// Who ended a cell.
enum CellEnd : uint32_t {
  kEndedItself = 0,
  kKilled = 1,  // as the agent or a limit asked
  kLost = 2,    // a process of Hutch's that it depends on died: a fault, not the code's doing
};

// What the warden measured of a cell that has ended.
struct CellReport {
  int32_t exit_code = -1;  // of the user's process, -1 when it was killed by a signal or by us
  int32_t signal = 0;      // the one that killed the user's process, 0: none
  uint32_t limit = 0;      // the CellLimit for which the warden killed it
  uint32_t end = kEndedItself;
  uint64_t wall_us = 0;  // from kArm (or from ready) to its end
  uint64_t cpu_us = 0;   // of the whole PID namespace
  // Threads that lived when it was killed could have run, and waited for a processor: their sum.
  uint64_t cpu_wait_us = 0;
  uint64_t peak_kb = 0;  // largest sum of Pss + shmem + tmpfs seen, 0: never sampled
  uint64_t memory_limit_kb = 0;
  uint32_t pids_peak = 0;
  uint32_t disk_full = 0;  // 1: the scratch was full when it was last measured
};
static_assert(sizeof(CellReport) == 64);

}  // namespace hutch
