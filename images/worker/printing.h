// SPDX-License-Identifier: Apache-2.0

// sys.stdout of a cell. It writes each line at once. Where many come quickly, a system call for
// each costs several times what the lines do: they are gathered then, and written when a page of
// them is full, when the oldest is kWaitNs old, and before anything by which somebody could notice
// that they are not there yet: a frame, a fork, another program, a file that is opened. Only what
// goes to the cell's own output is gathered: another file, which code puts in its place, may be
// full until that code itself reads, and PID 1 does not have it.
//
// What is gathered lies in a page that PID 1 of the cell has too. It writes what is left there when
// the user process is gone, whatever ended it.
//
// A thread, which runs no Python, writes what has become old. It lives as long as lines come
// quickly, and is gone in a fork, for which Python 3.12 warns of threads.
//
// Thread contract: any thread that holds the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

namespace hutch {

// Whatever a cell's code may have put there, PID 1 writes no more than a page.
struct OutputPage {
  volatile uint32_t size;
  char bytes[4096 - sizeof(uint32_t)];
};
// nullptr: there is none, and each line is written at once.
extern OutputPage* output_page;

// In a slot, for the cell that is made next, whose output is `output`: nothing of an earlier one is
// in it.
void RenewOutputPage(int output);

// Writes what is gathered.
void WriteGathered();

extern PyMethodDef printing_methods[];

}  // namespace hutch
