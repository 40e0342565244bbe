// SPDX-License-Identifier: Apache-2.0

// The warden: PID 1 of a worker. It starts the zygote, is the parent of every slot and cell, and is
// the only process of the worker that the agent talks to. It times, measures, kills, reaps and
// reports; it makes no cells itself.
//
// Theory of operation. One thread, one epoll loop; nothing in it blocks or allocates. Zygote, slots
// and cells run as the same uid, in the worker's or in nested user namespaces; as PID 1 the warden
// cannot be killed from among them, and it is not dumpable, so that its memory (the token) cannot
// be read. Any message from them may be forged: it is acted on only in a state that expects it, and
// a pid counts only if the kernel attached it and it is a child of the warden with no other role.
// Anything else ends the worker. When the warden exits, the kernel kills all of them.
//
// A slot's cell goes through: making (kMakeCell passed on), made (its PID 1 is known), ready (user
// process parked), armed (a call runs), dead (reaped: its PID namespace is empty, the slot may make
// the next).
//
// In a single-cell worker (control.h) the zygote is slot and user process in one, and the cell is
// the whole container except the warden: killing it kills everything, and there is no second one.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <cstdint>

#include "images/warden/channel.h"
#include "images/warden/environments.h"
#include "images/warden/measure.h"
#include "images/warden/namespace_probe.h"
#include "images/warden/reader.h"
#include "images/warden/stderr_tail.h"

namespace hutch {

struct Settings {
  const char* socket = nullptr;
  char* token = nullptr;
  const char* python = nullptr;
  const char* zygote = nullptr;  // the path of zygote.py
  NamespaceRefusal namespaces;
  bool any_environment = false;  // started ahead of the one it will serve
};

class Warden {
 public:
  // What `settings` points to outlives the warden.
  explicit Warden(const Settings& settings);

  // Serves the agent until the end of the worker; returns its exit status.
  int Run();

 private:
  static constexpr int kMaxSlots = kMostSlots;
  // What epoll_data carries: a slot's number, or one of these.
  enum : uint32_t {
    kAgentEvent = 1000,
    kZygoteEvent,
    kTimerEvent,
    kSignalEvent,
    kReaderEvent,
    kStderrEvent
  };
  static constexpr int kWorker = kMaxSlots;  // the owner of what is no cell's, to a reader
  static constexpr int kReaders = 4;

  enum class CellState { kNone, kMaking, kMade, kReady };
  struct Cell {
    CellState state = CellState::kNone;
    uint64_t id = 0;
    pid_t init = 0;
    int proc = -1;     // the root of its /proc
    int scratch = -1;  // the root of its tmpfs
    int64_t begun_us = 0;
    int64_t armed_us = 0;     // 0: not armed
    int64_t deadline_us = 0;  // 0: none
    uint64_t cpu_limit_us = 0;
    bool loading = false;              // armed for what it loads: its call is still to come
    bool kept = false;                 // it outlives its user process
    bool between = false;              // kept, and serves no call now
    uint64_t between_cpu_us = 0;       // of all that it had used when that began
    uint64_t background_limit_us = 0;  // of CPU time then; 0: none
    pid_t user_pid = 0;
    uint64_t users_ended = 0;
    int users = 0;  // of those, without an order, since:
    int64_t users_since_us = 0;
    bool restart_ordered = false;
    bool killed = false;       // the cell was, not only its user process
    int user = -1;             // pidfd of the user process; not in a worker of a single cell
    uint64_t used_cpu_us = 0;  // of all that it ran until now
    int64_t sampled_us = 0;
    uint64_t seen_cpu_us = 0;  // of the last sample
    bool quiet = false;        // it took no CPU time between the last two samples
    CellEnd end = kEndedItself;
    uint32_t limit = kNoLimit;
    bool ended = false;   // `status` is known
    int status = 0;       // raw wait status of the user process
    uint64_t cpu_us = 0;  // as last seen
    uint64_t peak_kb = 0;
    uint32_t pids_peak = 0;
    uint64_t base_kb = 0;  // single cell: what the zygote had before it became the cell
    uint64_t base_cpu_us = 0;
    uint32_t samples = 0;
    // When its memory may be measured exactly again, and when already if it has grown since.
    int64_t exact_after_us = 0;
    int64_t exact_if_grown_us = 0;
    uint64_t exact_kb = 0;  // as last seen, and the resident size that went with it
    uint64_t resident_kb = 0;
    SpentTime spent;
    uint64_t result_kb = 0;  // of memory that it was given to return its result in
    int64_t result_us = 0;
    HostMemory host;  // the most that was available, the least slab since the last sample
    uint64_t least_slab_kb = 0;  // since it was armed
    uint64_t kernel_kb = 0;      // of kernel objects, as last seen
    uint64_t scratch_kb = 0;     // as measured last
    uint64_t shared_kb = 0;      // likewise: shared memory that its processes map
    // Of the host's shared memory what no cell is known to have (UnexplainedKb): the least since it
    // was armed, and since the last look at its shared areas.
    uint64_t least_unexplained_kb = UINT64_MAX;
    uint64_t unexplained_kb = UINT64_MAX;
    SharedAreas areas;      // as measured last
    uint64_t areas_kb = 0;  // what they may hold
    int cut_samples = 0;    // the last measurements of them that had no time to see all
    bool wanted = false;    // an exact measurement, of objects too
    bool wanted_objects = false;
    bool wanted_areas = false;
    const Reader* reader = nullptr;  // at its processes now
    uint64_t asked_kb = 0;           // its resident size when it was sent
    uint32_t waits = 0;              // ticks at which it was kept waiting
    bool slow = false;               // it kept one waiting for too long
    bool disk_full = false;
  };
  enum class SlotState { kFree, kStarting, kServing, kLost };
  struct Slot {
    SlotState state = SlotState::kFree;
    int control = -1;
    pid_t pid = 0;
    int64_t begun_us = 0;
    int64_t waited_us = 0;  // of the time since it or its cell was begun, when we had none
    Cell cell;
  };
  struct Unsent {
    FrameHeader header;
    uint16_t size;
    char payload[256];
  };
  static constexpr size_t kMaxUnsent = 256;

  // agent
  bool Connect();
  void LoseAgent();
  void Announce();
  void OnAgent();
  void OnMakeSlot(const Datagram& message);
  void OnMakeCell(const Datagram& message);
  void OnEndSlot(const Datagram& message);
  void OnConfigure(const Datagram& message);
  const char* Text(const char* key) const;
  uint64_t Configured(const char* key, uint64_t otherwise) const;
  void OnArm(const FrameHeader& header);
  void OnKeep(const FrameHeader& header);
  static void EndUserFirst(const Cell& cell);
  void Pong();
  void Report(const FrameHeader& header, const void* payload = nullptr, size_t size = 0);
  void Flush();

  // zygote
  void StartZygote();
  void ConfigureZygote();
  void OnZygote();
  void OnZygoteDeath(int status);
  void SendLastWords(int status);
  void Skip(const char* line, size_t size);
  void SkipImported(const char* reason);

  // slots and cells
  void OnSlot(int number);
  void OnSlotMessage(int number, Datagram* message);
  bool TakeCell(Slot* slot, Datagram* message);
  void FailSlot(int number, int error, const char* text, size_t size);
  void FreeSlot(int number);
  void OnCellDeath(int number, const rusage& usage);
  void OnUserEnd(int number, int status);
  void InterruptUser(const Cell& cell, const FrameHeader& interrupt) const;
  void OnCellReady(int number, pid_t user);
  CellReport ReportOf(const Cell& cell, uint64_t cpu_us) const;
  void Kill(Cell* cell, CellEnd end, uint32_t limit = kNoLimit);
  // The cell, or of a kept one only its user process.
  void KillWhatRuns(Cell* cell, uint32_t limit);
  void TakeLastMeasurement(Cell* cell);
  ScratchUse Scratch(const Cell& cell) const;
  // single_cell.cc
  void TakeSingleCell(Cell* cell);
  void CheckForStop();
  bool OnSingleCellDeath(int status, const rusage& usage);
  Slot* FindCell(uint64_t id);

  // processes and time
  void Reap();
  void CheckForStopped();
  void OnDeath(pid_t pid, int status, const rusage& usage);
  bool IsNewChild(pid_t pid) const;
  void SampleHost();
  void BeginCall(Slot* slot);
  void Tick();
  void WatchCell(int number, int64_t now);
  Usage SampleCell(int number, int64_t now);
  uint64_t Sum(const Cell& cell, const Usage& usage, const ScratchUse& scratch, int64_t now) const;
  uint64_t MostOf(const Cell& cell, const ScratchUse& scratch, int64_t now) const;
  bool HostLostMemory(Cell* cell) const;
  uint64_t UnexplainedKb(const Cell& cell) const;
  uint64_t SharedGrowthKb(const Cell& cell) const;
  bool HostSharesMore(Cell* cell) const;
  void TakeAreas(Cell* cell, const SharedAreas& areas) const;
  void TakeObjects(Cell* cell, const KernelObjects& objects) const;
  void TakeMemory(Cell* cell, uint64_t exact_kb, uint64_t resident_kb);
  void WatchWorker();
  // readers
  void StartReaders();
  void SendReaders();
  Reader* FreeReader();
  void OnReaders();
  void TakeAnswer(const Reader& reader, const Reader::Job& job, const Reader::Answer& answer);
  void WatchReaders(int64_t now);
  uint64_t OwnMemoryKb();
  void JudgeWorker(uint64_t total_kb);
  void SetTick();
  void Watch(int fd, uint32_t what);  // in the epoll loop
  void WatchZygote();

  [[noreturn]] void Fatal(const char* text);

  const Settings settings_;
  Environments environments_;
  // What the agent said of the calls that are to come.
  bool configured_ = false;
  char config_[kMaxConfig];
  size_t config_size_ = 0;
  uint64_t memory_kb_ = 1048576;  // of a call
  uint64_t watch_kb_ = 1048576;   // above it the call is killed: more where a cgroup limits it
  uint64_t pids_ = 64;            // likewise
  uint64_t worker_kb_ = 0;        // of zygote and slots together
  bool single_cell_ = false;      // no cells can be made here
  bool gvisor_ = false;           // single cell, on gVisor's kernel
  uint64_t files_ = 0;  // single cell: the most in its scratch; 0: the scratch has a limit
  int more_scratch_[2] = {-1, -1};
  int epoll_ = -1;
  int timer_ = -1;
  int signals_ = -1;
  int proc_ = -1;
  int64_t period_ms_ = 0;  // of the timer, as set
  int64_t ticked_us_ = 0;

  int agent_ = -1;
  int64_t agent_gone_us_ = 0;
  bool agent_waits_ = false;  // for EPOLLOUT
  Unsent unsent_[kMaxUnsent];
  size_t unsent_first_ = 0;
  size_t unsent_count_ = 0;

  int zygote_control_ = -1;
  pid_t zygote_ = 0;
  StderrTail zygote_stderr_;
  bool zygote_ready_ = false;
  bool zygote_again_ = false;  // it asked to be started without a module
  int zygote_starts_ = 0;
  uint64_t zygote_kb_ = 0;
  char importing_[128] = {};
  int64_t import_deadline_us_ = 0;
  char notes_[16384];
  size_t notes_size_ = 0;
  char skip_[8192] = {};
  size_t skip_size_ = 0;

  int64_t worker_sampled_us_ = 0;
  uint64_t worker_allowed_kb_ = 0;
  pid_t own_[kMaxProcesses];  // the worker's processes that are no cell's; a reader may be at them
  size_t own_count_ = 0;
  bool own_wanted_ = false;
  const Reader* own_reader_ = nullptr;

  Reader readers_[kReaders];  // the first does it all, unless it is kept waiting
  uint32_t reader_waits_[kReaders] = {};
  int answered_ = -1;
  int next_wanted_ = 0;
  // Of a cell that waits for its call: its memory, and the most that it may have by its counters.
  uint64_t parked_kb_ = 0;
  uint64_t parked_most_kb_ = 0;
  HostMemory host_;               // as of this tick
  uint64_t known_shared_kb_ = 0;  // of its shared memory, what is in all our cells
  uint64_t random_ = 0;           // state of the generator that ticks come by
  bool ending_ = false;
  int64_t ending_us_ = 0;
  Slot slots_[kMaxSlots];
};

}  // namespace hutch
