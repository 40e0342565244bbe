// SPDX-License-Identifier: Apache-2.0

// Measures the processes of a cell, or of the worker, through the root of a /proc. Reads only;
// allocates nothing.
//
// Memory means what the host cannot reclaim: anonymous pages (a shared page counts by its share),
// swapped pages, huge pages, shared memory, the scratch, page tables, what sockets may hold, and,
// if the host loses memory meanwhile, kernel objects that the cell caused.
// Pages of files belong to the image and the environment, and can be dropped. The pages of large
// arguments belong to the caller, except those that were written to. A process that made itself
// undumpable hides its page counts; then its whole resident size counts. A process whose first
// thread has ended is measured by another of its threads; one whose threads cannot be seen counts
// as all of the host's memory.
//
// Reading shares, maps and open files waits for locks that the processes themselves hold, for as
// long as they like: MeasureShares(), MeasureKernelObjects() and ListSharedAreas() are for the
// reader's thread (reader.h) if the processes run untrusted code. All other functions wait for no
// process.
//
// Thread contract: any thread; except for those three, one thread at a time lists a directory.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "images/warden/spent.h"

namespace hutch {

struct Usage {
  uint64_t memory_kb = 0;   // anonymous, swapped and huge, or resident
  uint64_t shared_kb = 0;   // shared memory that is mapped, but for what the next one has:
  uint64_t scratch_kb = 0;  // files of the scratch, memory for a result; where not exact, all
  bool exact = false;
  uint64_t cpu_us = 0;
  uint32_t processes = 0;
  int64_t walk_us = 0;        // processor time that the measurement took
  bool kept_waiting = false;  // for too long: some processes count as the most they may have
};

// The processes of one sample, in the order of their numbers.
struct ProcessTable {
  ProcessTimes one[SpentTime::kMost];
  size_t count = 0;
};

struct ScratchUse {
  uint64_t used_kb = 0;
  uint64_t files = 0;
  bool full = false;
};

// What to count for each process by the kernel's counters, which is never less than its true share.
// kResident: all that is resident, in a few microseconds. kMost: its own and shared memory, with
// page tables, swap and huge pages.
enum class Counting { kResident, kMost };

// Measures all processes in the directory `proc` except `excluded_pid`. `times`, if given, is
// filled with all of them, including that one; times are read only with kResident.
// `all_threads`: a process counts as running though its first thread does not run, if another does.
Usage MeasureProcesses(int proc, pid_t excluded_pid, Counting counting,
                       ProcessTable* times = nullptr, bool all_threads = false);

// In the order of their numbers; how many there are, `most` at the most.
inline constexpr int kMaxProcesses = 32768;  // more are not measured in one round
struct ProcessParent {
  pid_t pid;
  pid_t parent;
};
size_t ListParents(int proc, ProcessParent* parents, size_t most);

// The file systems that a cell's scratch is in.
struct Scratches {
  static constexpr size_t kMost = 3;
  dev_t device[kMost] = {};
  size_t count = 0;
  uint64_t used_kb = 0;

  void Add(int scratch, uint64_t used);  // a directory of one, or -1
  bool Have(dev_t one) const;
};

// The true shares, by a walk of the page tables; of `count` processes, where `only` names some.
Usage MeasureShares(int proc, pid_t excluded_pid, const pid_t* only = nullptr, size_t count = 0,
                    const Scratches& scratches = {});

// What the whole host has, in KiB.
struct HostMemory {
  uint64_t available_kb = 0;
  uint64_t slab_kb = 0;   // of the kernel's own objects, that it cannot drop
  uint64_t shmem_kb = 0;  // of all tmpfs and shared memory, whether anybody maps it or not
};
HostMemory MeasureHost(int proc);
uint64_t SharedKb();  // HostMemory::shmem_kb alone, in a microsecond
// What reads these.
struct HostReads {
  HostMemory (*all)(int proc) = MeasureHost;
  uint64_t (*shared_kb)() = SharedKb;
};

// How much of a processor a thread that can run has now, 1 at the most, and how many there are.
double ProcessorShare(int proc);
unsigned Processors();

// Memory that no size of a process includes: kernel objects behind its mappings and its open files
// (locks, watches, pipes). `whole` is false if something could not be seen: a hidden process, files
// in transit in a socket, or more than can be measured in time.
struct KernelObjects {
  uint64_t bytes = 0;
  bool whole = true;
  int64_t walk_us = 0;
  bool kept_waiting = false;
};
KernelObjects MeasureKernelObjects(int proc, pid_t excluded_pid);

// The areas of shared memory without a file that processes map: its pages may be in nobody's page
// tables, so that no size of a process shows them. Each area is known by its inode, and has the end
// of the farthest mapping of it that was seen.
struct SharedAreas {
  static constexpr size_t kMost = 128;
  static constexpr uint32_t kForgottenAfter = 8;
  struct One {
    uint64_t inode;
    uint64_t kb;
    uint32_t unseen;  // looks since it was seen
  };
  One one[kMost];
  size_t count = 0;
  bool whole = true;  // false: others are hidden, or there are too many
  bool cut = false;   // there was no time to see them all
  int64_t walk_us = 0;
  bool kept_waiting = false;

  void Add(uint64_t inode, uint64_t kb, uint32_t unseen = 0);
  // Adds what was seen before: all of it for a few looks, and the sizes for as long as the areas
  // are there.
  void Remember(const SharedAreas& before);
  // What they may hold in all, each `least_kb` or more.
  uint64_t MostKb(uint64_t least_kb) const;
};
SharedAreas ListSharedAreas(int proc, pid_t excluded_pid, const pid_t* only = nullptr,
                            size_t count = 0);

// How long the threads of a cell's processes, added up, had a processor, and could have run and
// waited for one; those that have ended are not in it. At most kMostThreadsSeen of them are asked.
inline constexpr int kMostThreadsSeen = 256;
struct ProcessorTime {
  uint64_t had_us = 0;
  uint64_t waited_us = 0;
};
ProcessorTime ProcessorTimeOf(int proc, pid_t excluded_pid);

// The resident size of one process. `threads`, where it is known: how many it has.
uint64_t ResidentKb(int proc, pid_t pid, uint32_t threads = UINT32_MAX);

// What the kernel that `proc` belongs to has of anonymous and shared memory and of scratch: on
// gVisor, whose kernel is the container's alone, and which reports no shares of processes.
uint64_t KernelsMemoryKb(int proc);

ScratchUse MeasureScratch(int scratch);

// What the sockets of a cell's network may hold beyond those that any program has: no map shows
// what waits in them, so each counts as full of what it may send.
uint64_t SocketKb(int proc);

bool IsProc(int fd);     // a directory of a proc file system
bool IsScratch(int fd);  // a directory of a tmpfs

}  // namespace hutch
