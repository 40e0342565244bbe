// SPDX-License-Identifier: Apache-2.0

// The host's ends of the two pipes that a cell prints to. One thread at a time.
#pragma once

#include <functional>
#include <string_view>
#include <utility>

#include "client/output.h"
#include "wire/fd.h"

namespace hutch {

using OutputHook = std::function<void(int stream, std::string_view)>;

class OutputPipes {
 public:
  OutputPipes(Fd out, Fd err) : pipes_{std::move(out), std::move(err)} {}

  int polled(int stream) const { return ended_[stream] ? -1 : pipes_[stream].get(); }
  bool ended() const { return ended_[0] && ended_[1]; }
  // Takes what came, at most a pipe's content: a writer that never stops must not delay the check
  // of a deadline.
  void Read(int stream, Output& output, const OutputHook& hook);
  void Read(Output& output, const OutputHook& hook) {
    for (const int stream : {0, 1}) Read(stream, output, hook);
  }
  // All of it. REQUIRES: the processes that wrote it are dead.
  void ReadRest(Output& output, const OutputHook& hook);

 private:
  Fd pipes_[2];
  bool ended_[2] = {false, false};
};

}  // namespace hutch
