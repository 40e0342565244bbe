// Measures the processes of a cell, or of the worker, through the root of a /proc. Reads only;
// allocates nothing.
//
// Memory is what the host loses when nothing is given back: anonymous pages (each shared one by its
// share), what is swapped out, shared memory, the scratch, page tables, and what sockets may hold.
// Pages of files are the image's and the environment's, and can be dropped; the pages that large
// arguments came in are the caller's, but for what was written to. A process that made itself
// undumpable hides its page counts; its whole resident size counts then.
//
// Thread contract: single-threaded.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace hutch {

struct Usage {
  uint64_t memory_kb = 0;  // anonymous and swapped, or resident
  uint64_t shared_kb = 0;  // shared memory in use by mappings; some of it may be the scratch's
  uint64_t cpu_us = 0;
  uint32_t processes = 0;
  int64_t walk_us = 0;  // of our own processor time, to find out
};

struct ScratchUse {
  uint64_t used_kb = 0;
  uint64_t files = 0;
  bool full = false;
};

// How exactly to look. A resident size is a few microseconds a process, and never less than the
// true share; that costs a walk of the page tables.
enum class Exactness { kResident, kShare };

// All processes that `proc`, a directory, shows, but `excluded_pid`.
Usage MeasureProcesses(int proc, pid_t excluded_pid, Exactness exactness);

// One process: anonymous, swapped and shared memory, or its resident size where the rest is hidden.
uint64_t ResidentKb(int proc, pid_t pid);

// What the kernel that `proc` belongs to has of anonymous and shared memory and of scratch: on
// gVisor, whose kernel is the container's alone, and which tells no shares of processes.
uint64_t KernelsMemoryKb(int proc);

ScratchUse MeasureScratch(int scratch);

// What the sockets of a cell's network may hold beyond those that any program has: no map shows
// what waits in them, so each counts as full of what it may send.
uint64_t SocketKb(int proc);

bool IsProc(int fd);     // a directory of a proc file system
bool IsScratch(int fd);  // a directory of a tmpfs

}  // namespace hutch
