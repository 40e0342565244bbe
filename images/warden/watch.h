// SPDX-License-Identifier: Apache-2.0

// Measures the processes of a cell, or of the worker, through the root of a /proc. Reads only;
// allocates nothing.
//
// Memory is what the host loses when nothing is given back: anonymous pages (each shared one by its
// share), what is swapped out, huge pages, shared memory, the scratch, page tables, what sockets
// may hold, and, where the host loses memory meanwhile, the kernel's objects that the cell had it
// make.
// Pages of files are the image's and the environment's, and can be dropped; the pages that large
// arguments came in are the caller's, but for what was written to. A process that made itself
// undumpable hides its page counts; its whole resident size counts then. A process whose first
// thread has ended is shown by another of its threads; one whose threads cannot be seen counts as
// all of the host's memory.
//
// Reading shares, maps and open files waits for locks that the processes themselves hold, for as
// long as they like: MeasureShares(), MeasureKernelObjects() and ListSharedAreas() are for the
// reader's thread (reader.h), where the processes run somebody's code. All others wait for nobody.
//
// Thread contract: from any thread; a directory is listed by one at a time but for those three.
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
  int64_t walk_us = 0;        // of our own processor time, to find out
  bool kept_waiting = false;  // for too long: some are counted as the most that they may have
};

// The processes of one look, in the order of their numbers.
struct ProcessTable {
  ProcessTimes one[SpentTime::kMost];
  size_t count = 0;
};

struct ScratchUse {
  uint64_t used_kb = 0;
  uint64_t files = 0;
  bool full = false;
};

// What to count for each process by the kernel's counters, which is never less than the true share:
// all that is resident, in a few microseconds; or what is its own or shared memory, page tables,
// swap and huge pages with it.
enum class Counting { kResident, kMost };

// All processes that `proc`, a directory, shows, but `excluded_pid`. `times`, where it is given, is
// filled with all of them, that one included; times are read with resident sizes alone.
// `all_threads`: a process runs though its first thread does not, if another does.
Usage MeasureProcesses(int proc, pid_t excluded_pid, Counting counting,
                       ProcessTable* times = nullptr, bool all_threads = false);

// In the order of their numbers; how many there are, `most` at the most.
inline constexpr int kMaxProcesses = 32768;  // more are not looked at in one round
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

// How much of a processor a thread that can run has now, 1 at the most, and how many there are.
double ProcessorShare(int proc);
unsigned Processors();

// What no size of a process shows: the kernel's objects behind its mappings, and behind what it has
// open: locks, watches, pipes. `whole` is false where something could not be seen: a process that
// is hidden, files on their way in a socket, or more than can be looked at in the time.
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
