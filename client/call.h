// SPDX-License-Identifier: Apache-2.0

// A call, as it is given to a cell, and what becomes of it. Values: one thread at a time, but for a
// Blob, which does not change.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/lending.h"
#include "client/output.h"
#include "client/output_pipes.h"
#include "wire/cell_frame.h"
#include "wire/clock.h"
#include "wire/fd.h"
#include "wire/memfd.h"
#include "wire/sha256.h"
#include "wire/values.h"

namespace hutch {

// Of a call's meta data, function, arguments and places of buffers what is larger travels in a
// memfd: four of them fit a datagram.
inline constexpr size_t kInlineSection = 15 * 1024;

// Bytes placed once and sent with many calls: inline when small, else in a sealed memfd.
class Blob {
 public:
  explicit Blob(std::string bytes);
  const std::string& bytes() const { return bytes_; }
  int memfd() const { return memfd_.get(); }  // -1: inline
  size_t size() const { return size_; }

 private:
  std::string bytes_;
  size_t size_;
  Fd memfd_;
};

// Stops the clock of the call's wall time, or has it go on: returns how long. max(): for good.
using StopClock = std::function<Clock::duration(bool stop)>;

// What a call says, and, with `asks`, asks for, while it runs: `data` (bindings/decode.h) of which
// the first `body_size` bytes are the body. Returns the pickle that answers it, which is sent if it
// asked; nullopt: the call is to end. A clock that was stopped goes on when it returns.
using Dialogue = std::function<std::optional<std::string>(
    bool asks, const std::string& data, size_t body_size, const StopClock& stop_clock)>;

// What a call asks, as a Dialogue gets it. `number`: what the answer is for, where several may be
// open at once.
struct Question {
  std::string data;
  size_t body_size = 0;
  uint64_t number = 0;
};

struct CallRequest {
  std::string_view meta;
  const Blob* function = nullptr;
  std::string_view arguments;
  std::vector<Buffer> buffers;  // out of band
  CallLimits limits;
  // IdentityOf() `meta` and `function`, which a cell can load before this call. Zeros: nothing is
  // loaded ahead of it, and no cell keeps it.
  Sha256Digest identity{};
  // For calls on shared cells, to each of which `meta` and `function` are sent once: after how many
  // calls, and at what age, a cell is replaced. 0: a fresh cell, for this call only.
  uint64_t calls_of_cell = 0;
  Clock::duration age_of_cell{};
  const Dialogue* dialogue = nullptr;  // nullptr: the call may say nothing
  // What it says is passed on and not kept, so that `result_bytes` limits each message only.
  bool streams = false;
  // The pool has a network: its use is requested from the agent before the outcome is returned.
  bool network = false;

  bool shared() const { return calls_of_cell != 0; }
  // When the caller began to prepare it, which counts as "send" in its timings; zero: when Call()
  // is called.
  Clock::time_point begun{};
  // For the agent's audit log, see CallStats.
  uint64_t policy = 0;
  std::array<uint64_t, 2> code{};
};

struct CallHooks {
  std::function<bool()> interrupted;  // polled every quarter second and after each EINTR
  OutputHook output;                  // live, as it comes
  int cancel_fd = -1;                 // readable: cancel
};

// The result's bytes, ours alone.
class Payload {
 public:
  Payload(std::string bytes, size_t body) : bytes_(std::move(bytes)), body_(body) {}
  Payload(PrivateMapping mapping, size_t body) : mapping_(std::move(mapping)), body_(body) {}
  char* data() { return mapping_.data() != nullptr ? mapping_.data() : bytes_.data(); }
  size_t size() const { return mapping_.data() != nullptr ? mapping_.size() : bytes_.size(); }
  size_t body_size() const { return body_; }

 private:
  std::string bytes_;
  PrivateMapping mapping_;
  size_t body_;
};

enum class CallStatus {
  kReturned,
  kRaised,
  kUnencodable,
  kTooLarge,
  kOutOfMemory,  // its result is larger than its memory limit
  kTimedOut,
  kCancelled,
  kInterrupted,
  kEnded,
  kBroken  // the cell broke the protocol: hostile code, or code that wrote to a socket not its own
};

struct CallOutcome {
  explicit CallOutcome(uint64_t output_limit = 0, uint64_t id = 0)
      : output(output_limit), call_id(id) {}

  CallStatus status =
      CallStatus::kEnded;  // kEnded: the cell's end of the socket closed without a reply
  std::unique_ptr<Payload> payload;
  CallUsage usage;
  uint64_t result_size = 0;
  bool replied = false;  // the cell sent a reply, also to a call that was interrupted at its limit
  bool claimed = false;  // the limit that ended it is what the cell said
  std::string detail;    // of kBroken: what it did
  // When sending it began; when its reply had come, or it was over without one.
  Clock::time_point sent{}, ended{};
  Output output;
  uint64_t call_id;
};

// Where this thread runs, as a cell is informed (cell_frame.h, kCall).
uint64_t ThisCpu();

// A digest of everything that is loaded for a call, and of nothing that belongs to one call only.
// `code`: the digest of the function's bytes. `policy`: as in CallStats.
Sha256Digest IdentityOf(std::string_view meta, const Sha256Digest& code, uint64_t policy,
                        bool shared);

// The frame by which a cell loads the function of this request before its call comes, which brings
// everything once more. It contains nothing that belongs to one call only. `quick`: the call is to
// run on the CPU of the calling thread. "": it is too large for a frame.
std::string LoadFrame(const CallRequest& request, bool quick);

}  // namespace hutch
