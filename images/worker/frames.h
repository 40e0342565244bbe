// SPDX-License-Identifier: Apache-2.0

// Frames of wire/cell_frame.h for Python code, what a cell measures of the call it serves, and the
// signal that interrupts one. Everything that each call needs is done here, because Python code
// that runs for the first time in a fresh process has a page fault for every few objects.
//
// Thread contract: one thread at a time.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <string_view>

#include "wire/cell_frame.h"

namespace hutch {

inline constexpr int kMaxDescriptors = 8;

struct Frame {
  FrameHeader header;
  char payload[kMaxPayload];
};

struct Received {
  ssize_t size = 0;  // of the payload; -1: the other side is gone
  int descriptors[kMaxDescriptors];
  int count = 0;
};
void CloseAll(Received* received);
// One datagram into `part`, with its descriptors; -1: errno. `is_whole`: nothing of it was cut off.
ssize_t ReceiveInto(int fd, iovec part, int flags, bool* is_whole, Received* received);

// Blocks until a datagram arrives. The frame is valid until the next call, which overwrites it.
// nullptr, errno set: a failure, or not a valid frame (EPROTO).
const Frame* Receive(int fd, Received* received);

// The same, without the GIL.
const Frame* ReceiveUnlocked(int fd, Received* received);

PyObject* RaiseErrno();

// The sections of the last call received; valid until the next frame.
inline constexpr int kSections = 4;
struct CallSections {
  std::string_view identity;            // kIdentitySize bytes
  std::string_view section[kSections];  // data() is nullptr: it came as a descriptor
  std::string_view meta() const { return section[0]; }
  std::string_view function() const { return section[1]; }
  std::string_view arguments() const { return section[2]; }
  std::string_view places() const { return section[3]; }
  bool any_in_descriptor() const {
    for (const std::string_view one : section) {
      if (one.data() == nullptr) return true;
    }
    return false;
  }
};
// False: the frame is neither a call nor a request to load one.
bool SectionsOf(const Received& received, CallSections* sections);

// As tuples, new references or nullptr; None for a section that came as a descriptor.
PyObject* TupleOf(const CallSections& sections);
PyObject* Descriptors(const Received& received);

// Called in the zygote, for its cells: finds out which CPUs there are.
void LearnCpus();

// Keeps this thread on `cpus` CPUs (0: on all), from `cpu` on (-1: from the one that it is on).
void StayOn(int cpus, int cpu);
// Ends that if the last call took long: the next call then runs on any idle CPU.
void LeaveAfterLong();

// Called when a cell is ready: what its thread has waited for a processor until then is no call's.
void LearnCpuWait();

// After this, IsFork() is true in processes that are forked from this one: they serve no call.
void MindForks();
bool IsFork();

// Called in the zygote, for its cells: a SIGINT that names a call interrupts that one alone, at the
// earliest in its code; any other is Python's. False: errno.
bool InstallInterruptHandler();

// The times that a reply reports: when the call came, and when each of its steps ended. Stays on
// `cpus`.
void BeginMeasuring(int cpus, int cpu);
uint64_t MeasureLoad();  // ns
void TellSlowLoad(
    int fd, uint64_t id);  // MeasureLoad(); the clock of the call is restarted if it took long
void MeasureRun();
void MeasureEncoding();
// CPU time of a process that was waited for beside calls, on any thread: it is none of theirs.
void CountBeside(uint64_t cpu_us);

// False: an exception is set.
bool SendFrame(int fd, FrameHeader header, std::string_view payload = {});
bool SendReply(int fd, FrameHeader header, iovec body);

// For a table of methods; ends with an empty entry.
extern PyMethodDef frame_methods[];

}  // namespace hutch
