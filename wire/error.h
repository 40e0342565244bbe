// SPDX-License-Identifier: Apache-2.0

// The one exception type of Hutch's own code, and its closed set of codes.
//
// An Error says what *Hutch* failed at. What the user's function did is a value (Outcome), absence
// is std::optional. `may_have_run` is true when user code may already have been started for the
// failed request: such a request is never repeated by anybody. Errors are values once made; safe to
// copy between threads.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace hutch {

enum class Code {
  kInternal,         // a bug of ours
  kInvalidArgument,  // bad input: the message says which and what to do
  kUnavailable,      // the agent does not answer
  kVersionMismatch,  // the peer speaks another wire version
  kProtocol,         // the peer broke a protocol of ours
  kTimeout,          // a wait of ours ran out
  kBusy,             // the queue is full, or no cell came free in time
  kMissingBase,      // the base image is not there: install it, then ask again
  kMissingRuntime,   // the worker files are not there: install them, then ask again
  kUnknownPool,      // the agent does not know this pool key (it restarted): prepare again
  kInstallFailed,    // the dependency installer failed: the log says why
  kWorkerFailed,     // a worker could not be started or died before a cell was ready
  kPodman,           // libpod answered an error
  kPlatform,         // the host lacks something: the message names it, the hint what provides it
  kPodmanDown,       // Podman's service does not answer: `hutch-agent --install` starts it again
  kPodmanMissing,    // there is no podman on this host
  kCancelled,        // the caller gave up
};

std::string_view CodeName(Code code);

// What an error knows in figures, by name; of kBusy: queued, capacity, waited_sec, and, where there
// may be no more of them, sessions.
using Figures = std::map<std::string, double>;

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message, std::string hint = {}, bool may_have_run = false,
        Figures figures = {})
      : std::runtime_error(message),
        code_(code),
        hint_(std::move(hint)),
        may_have_run_(may_have_run),
        figures_(std::move(figures)) {}

  Code code() const { return code_; }
  const std::string& hint() const { return hint_; }
  bool may_have_run() const { return may_have_run_; }
  const Figures& figures() const { return figures_; }

 private:
  Code code_;
  std::string hint_;
  bool may_have_run_;
  Figures figures_;
};

// The hint where a disk is full, or may be.
inline constexpr char kMakeRoom[] = "free some space, then try again (`df -h` shows what is full)";

// Throws kInternal (or `code`) with "cannot <what>: strerror(errno)", and what can be done about
// it.
[[noreturn]] void ThrowErrno(std::string_view what, Code code = Code::kInternal);

}  // namespace hutch
