// Frames of wire/cell_frame.h as Python sees them, and what a cell measures of the call that it
// serves: everything that each call needs is done here, since the first run of Python code in a
// fresh process costs a page fault for every few objects that it meets.
//
// Thread contract: one thread at a time.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/types.h>

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

// Blocks for one datagram, into a frame that the next one overwrites. nullptr, errno set: a
// failure, or no frame of ours (EPROTO).
const Frame* Receive(int fd, Received* received);

PyObject* RaiseErrno();

// For a table of methods; ends with an empty entry.
extern PyMethodDef frame_methods[];

}  // namespace hutch
