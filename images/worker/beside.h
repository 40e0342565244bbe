// SPDX-License-Identifier: Apache-2.0

// Commands of a session that run beside whatever its user process does: each has a thread here
// (beside.py), which starts it and waits for it, for as long as it runs.
//
// The thread that runs calls takes what is ordered: between two calls as it comes (serving.cc),
// while it waits for an answer (Recv in frames.cc), and in the middle of a call by SIGURG, which
// wakes it where it sleeps. Code that never comes back to the interpreter keeps orders waiting; a
// command that runs already needs nobody, and is killed without the GIL.
//
// Thread contract: the GIL is held.
#pragma once

#include "images/worker/frames.h"

namespace hutch {

// Of a kCommand, whose descriptors it takes. Never fails, and leaves no exception: what cannot be
// started is reported on its channel.
void StartCommand(Received* received);

// While it lives, another thread reads the socket of calls, and takes commands from there.
class ReadingCalls {
 public:
  ReadingCalls();
  ~ReadingCalls();
  ReadingCalls(const ReadingCalls&) = delete;
  ReadingCalls& operator=(const ReadingCalls&) = delete;
};

// Starts what lies first in the socket of calls, if it is a command, and so on. Never waits.
void TakeCommands();

// For a table of methods; ends with an empty entry.
extern PyMethodDef beside_methods[];

}  // namespace hutch
