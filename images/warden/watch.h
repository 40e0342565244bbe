// SPDX-License-Identifier: Apache-2.0

// Measures the processes of a cell, or of the worker, through the root of a /proc. Reads only;
// allocates nothing.
//
// Memory means what the host cannot reclaim: anonymous pages (a shared page counts by its share),
// swapped pages, huge pages, shared memory, the scratch, page tables, what sockets may hold, and,
// if the host loses memory meanwhile, kernel objects that the cell caused.
// Pages of files belong to the image and the environment, and can be dropped. The pages of large
// arguments belong to the caller, except those that were written to. A process that made itself
// undumpable hides its page counts; then its whole resident size counts.
//
// Reading shares, maps and open files waits for locks that the processes themselves hold, for as
// long as they like: MeasureShares() and MeasureKernelObjects() are for the reader's thread
// (reader.h) if the processes run untrusted code. All other functions wait for no process.
//
// Thread contract: any thread; except for those two, one thread at a time lists a directory.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "images/warden/spent.h"

namespace hutch {

struct Usage {
  uint64_t memory_kb = 0;  // anonymous, swapped and huge, or resident
  uint64_t shared_kb = 0;  // shared memory in use by mappings; some of it may be the scratch's
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
Usage MeasureProcesses(int proc, pid_t excluded_pid, Counting counting,
                       ProcessTable* times = nullptr);

// In the order of their numbers; how many there are, `most` at the most.
inline constexpr int kMaxProcesses = 32768;  // more are not measured in one round
struct ProcessParent {
  pid_t pid;
  pid_t parent;
};
size_t ListParents(int proc, ProcessParent* parents, size_t most);

// The true shares, by a walk of the page tables; of `count` processes, where `only` names some.
Usage MeasureShares(int proc, pid_t excluded_pid, const pid_t* only = nullptr, size_t count = 0);

// What the whole host has, in KiB.
struct HostMemory {
  uint64_t available_kb = 0;
  uint64_t slab_kb = 0;  // of the kernel's own objects, that it cannot drop
};
HostMemory MeasureHost(int proc);

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

// One process: anonymous, swapped and shared memory, or its resident size where the rest is hidden.
uint64_t ResidentKb(int proc, pid_t pid);

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
